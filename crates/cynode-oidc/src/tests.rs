use serde_json::json;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-01-05 12:00 UTC);

fn provider(groups_claim: &str) -> ProviderConfig {
    ProviderConfig {
        issuer: "https://id.example".into(),
        client_id: "cynode".into(),
        client_secret: None,
        scopes: Vec::new(),
        groups_claim: groups_claim.into(),
        required_claims: BTreeMap::new(),
        directory_claim: "sub".into(),
    }
}

fn identity(claims: &Value, path: &str) -> Result<VerifiedIdentity, OidcError> {
    VerifiedIdentity::from_claims(claims.as_object().unwrap(), &provider(path))
}

#[test]
fn a_required_claim_has_one_of_its_values_and_a_person_of_the_directory_is_named_by_its_claim() {
    let mut provider = provider("groups");
    provider.required_claims = BTreeMap::from([
        ("hd".into(), vec!["example.com".into(), "example.org".into()]),
        ("member".into(), vec!["true".into()]),
    ]);
    provider.directory_claim = "oid".into();
    let read = |claims: Value| {
        let found = VerifiedIdentity::from_claims(claims.as_object().unwrap(), &provider).unwrap();
        (found.has_required_claims, found.directory_id)
    };
    let good = json!({ "sub": "7", "hd": "example.org", "member": true, "oid": "o-7" });
    assert_eq!(read(good), (true, Some("o-7".into())));
    let listed = json!({ "sub": "7", "hd": ["a.example", "example.com"], "member": "true" });
    assert_eq!(read(listed), (true, None));
    for wrong in [
        json!({ "sub": "7" }),
        json!({ "sub": "7", "hd": "example.com" }),
        json!({ "sub": "7", "hd": "evil.example", "member": true }),
        json!({ "sub": "7", "hd": { "example.com": 1 }, "member": true }),
        json!({ "sub": "7", "hd": null, "member": true }),
    ] {
        assert!(!read(wrong.clone()).0, "{wrong}");
    }
}

#[test]
fn groups_are_read_by_name_or_by_path_and_are_unknown_when_nothing_is_said() {
    let groups = |claims: Value, path: &str| identity(&claims, path).map(|found| found.groups);
    let some = |names: &[&str]| -> Result<Option<Vec<String>>, OidcError> {
        Ok(Some(names.iter().map(|name| (*name).to_owned()).collect()))
    };
    assert_eq!(groups(json!({ "sub": "7", "groups": ["a", "b"] }), "groups"), some(&["a", "b"]));
    assert_eq!(groups(json!({ "sub": "7", "groups": "a" }), "groups"), some(&["a"]));
    let nested = json!({ "sub": "7", "realm_access": { "roles": ["a"] } });
    assert_eq!(groups(nested, "realm_access.roles"), some(&["a"]));
    let dotted = json!({ "sub": "7", "https://a.example/groups": ["a"] });
    assert_eq!(groups(dotted, "https://a.example/groups"), some(&["a"]));
    assert_eq!(groups(json!({ "sub": "7" }), "groups"), Ok(None));
    assert!(groups(json!({ "sub": "7", "groups": [1] }), "groups").is_err());
    assert!(groups(json!({ "sub": "7", "groups": { "a": true } }), "groups").is_err());
}

#[test]
fn a_person_has_a_subject_and_an_address_counts_only_if_it_is_verified() {
    let claims = json!({ "sub": "7", "name": "Ada", "email": "ada@example.com", "sid": "s" });
    let expected = VerifiedIdentity {
        subject: "7".into(),
        session: Some("s".into()),
        display_name: Some("Ada".into()),
        user_name: None,
        email: None,
        groups: None,
        authentication_methods: Vec::new(),
        authentication_context: None,
        directory_id: Some("7".into()),
        has_required_claims: true,
    };
    assert_eq!(identity(&claims, "groups"), Ok(expected.clone()));
    let mut claims = claims;
    claims["email_verified"] = json!(true);
    let verified = VerifiedIdentity { email: Some("ada@example.com".into()), ..expected };
    assert_eq!(identity(&claims, "groups"), Ok(verified));
    assert!(identity(&json!({ "sub": "" }), "groups").is_err());
    assert!(identity(&json!({ "name": "Ada" }), "groups").is_err());
}

#[test]
fn the_methods_and_the_class_of_a_login_are_read_and_malformed_ones_are_none() {
    let claims = json!({ "sub": "7", "amr": ["pwd", "mfa", 7], "acr": "gold" });
    let found = identity(&claims, "groups").unwrap();
    assert_eq!(found.authentication_methods, ["pwd", "mfa"]);
    assert_eq!(found.authentication_context.as_deref(), Some("gold"));
    let found = identity(&json!({ "sub": "7", "amr": "mfa", "acr": 1 }), "groups").unwrap();
    assert_eq!(found.authentication_methods, Vec::<String>::new());
    assert_eq!(found.authentication_context, None);
}

#[test]
fn an_issuer_is_public_and_encrypted_unless_the_configuration_names_it() {
    let client = OidcClient::new(vec!["127.0.0.1:4000".into(), "id.internal:443".into()]).unwrap();
    for good in ["https://id.example/realms/a", "http://127.0.0.1:4000", "https://id.internal"] {
        assert_eq!(client.validate_issuer(good), Ok(()), "{good}");
    }
    for bad in [
        "http://id.example",
        "http://127.0.0.1:4001",
        "https://10.0.0.1",
        "https://a:b@id.example",
        "https://id.example?x=1",
        "id.example",
        "file:///etc/passwd",
    ] {
        assert!(client.validate_issuer(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_refusal_is_told_by_its_code_and_only_an_invalid_grant_is_a_word_about_the_person() {
    let parse = |status: u16, body: &str| {
        let status = StatusCode::from_u16(status).unwrap();
        parse_tokens(&ProviderResponse { status, body: body.into() }, NOW)
    };
    let client = |code: &str| Err(OidcError::Client(code.to_owned()));
    assert_eq!(
        parse(400, r#"{"error":"invalid_grant","error_description":"x"}"#),
        Err(OidcError::Refused("invalid_grant".into()))
    );
    assert_eq!(parse(401, r#"{"error":"invalid_client"}"#), client("invalid_client"));
    assert_eq!(parse(400, r#"{"error":"invalid_scope"}"#), client("invalid_scope"));
    // A text of the provider is never shown.
    assert_eq!(parse(401, r#"{"error":"<script>"}"#), client("status 401"));
    assert_eq!(parse(403, "no"), client("status 403"));
    assert!(matches!(parse(200, "{}"), Err(OidcError::Protocol(_))));
    let tokens = parse(200, r#"{"access_token":"a","expires_in":60}"#).unwrap();
    assert_eq!(
        tokens,
        GrantTokens {
            access_token: "a".into(),
            access_expires_at: Some(NOW + Duration::MINUTE),
            refresh_token: None,
            id_token: None,
            groups_source: None,
        }
    );
}

#[test]
fn tokens_that_were_stored_without_the_source_of_groups_are_read() {
    let stored =
        r#"{"access_token":"a","access_expires_at":null,"refresh_token":"r","id_token":null}"#;
    let tokens: GrantTokens = serde_json::from_str(stored).unwrap();
    assert_eq!((tokens.refresh_token.as_deref(), tokens.groups_source), (Some("r"), None));
}

#[test]
fn the_client_proves_itself_as_the_provider_wants_it() {
    let metadata = |methods: Value| -> ProviderMetadata {
        serde_json::from_value(json!({
            "issuer": "https://id.example",
            "authorization_endpoint": "https://id.example/a",
            "token_endpoint": "https://id.example/t",
            "jwks_uri": "https://id.example/k",
            "token_endpoint_auth_methods_supported": methods,
        }))
        .unwrap()
    };
    assert!(uses_basic_authentication(&metadata(json!(null))));
    assert!(uses_basic_authentication(&metadata(json!(["client_secret_basic", "none"]))));
    assert!(!uses_basic_authentication(&metadata(json!(["client_secret_post"]))));
    assert_eq!(join_scopes(&["profile".into(), "openid".into()]), "openid profile");
}
