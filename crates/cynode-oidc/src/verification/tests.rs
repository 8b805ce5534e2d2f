use data_encoding::BASE64URL_NOPAD;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::json;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-01-05 12:00 UTC);
const ISSUER: &str = "https://id.example";
const CLIENT: &str = "cynode";

fn expected() -> ExpectedToken<'static> {
    ExpectedToken { issuer: ISSUER, client_id: CLIENT, now: NOW }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn key_set(keys: &[(&str, &SigningKey)]) -> CoreJsonWebKeySet {
    let keys: Vec<Value> = keys
        .iter()
        .map(|(kid, key)| {
            let x = BASE64URL_NOPAD.encode(key.verifying_key().as_bytes());
            json!({ "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": kid, "x": x })
        })
        .collect();
    serde_json::from_value(json!({ "keys": keys })).unwrap()
}

fn sign(key: &SigningKey, header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = key.sign(signed.as_bytes()).to_bytes();
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

fn header(kid: &str) -> Value {
    json!({ "alg": "EdDSA", "kid": kid })
}

fn id_claims(changes: &Value) -> Value {
    let seconds = NOW.unix_timestamp();
    merge(
        json!({ "iss": ISSUER, "aud": CLIENT, "sub": "7", "iat": seconds, "exp": seconds + 300, "nonce": "n" }),
        changes,
    )
}

/// Sets the members that are given; `null` removes one.
fn merge(mut claims: Value, changes: &Value) -> Value {
    let members = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
    claims
}

fn id_outcome(changes: &Value) -> Result<(), String> {
    let key = key(1);
    let token = sign(&key, &header("a"), &id_claims(changes));
    describe(verify_id_token(&token, &key_set(&[("a", &key)]), expected(), Some("n")))
}

fn describe<T>(result: Result<T, VerificationError>) -> Result<(), String> {
    match result {
        Ok(_) => Ok(()),
        Err(VerificationError::UnknownKey) => Err("unknown key".into()),
        Err(VerificationError::Invalid(reason)) => Err(reason),
    }
}

#[test]
fn an_id_token_is_of_this_issuer_client_login_and_time() {
    assert_eq!(id_outcome(&json!({})), Ok(()));
    assert_eq!(id_outcome(&json!({ "azp": CLIENT })), Ok(()));
    let at = |offset: i64| NOW.unix_timestamp() + offset;
    for (changes, reason) in [
        (json!({ "iss": "https://other.example" }), "its ID token is of another issuer"),
        (json!({ "aud": "other" }), "its ID token was made for another client"),
        (json!({ "aud": [CLIENT, "other"] }), "its ID token was made for another client"),
        (json!({ "azp": "other" }), "its ID token was made for another client"),
        (json!({ "nonce": "m" }), "its ID token is not of this login"),
        (json!({ "nonce": null }), "its ID token is not of this login"),
        (json!({ "exp": at(-61) }), "its ID token has expired or is not valid yet"),
        (json!({ "iat": at(61) }), "its ID token has expired or is not valid yet"),
        (json!({ "exp": null }), "its ID token is not one"),
        (json!({ "sub": null }), "its ID token is not one"),
    ] {
        assert_eq!(id_outcome(&changes), Err(reason.to_owned()), "{changes}");
    }
    // The clocks may differ by a minute.
    assert_eq!(id_outcome(&json!({ "exp": at(-59), "iat": at(59) })), Ok(()));
}

#[test]
fn a_signature_is_of_a_published_key_and_of_an_accepted_algorithm() {
    let (own, foreign) = (key(1), key(2));
    let keys = key_set(&[("a", &own)]);
    let outcome = |token: &str| describe(verify_id_token(token, &keys, expected(), Some("n")));
    let claims = id_claims(&json!({}));
    let wrong = Err("the signature of its ID token is wrong".to_owned());
    assert_eq!(outcome(&sign(&foreign, &header("a"), &claims)), wrong);
    assert_eq!(outcome(&sign(&own, &header("b"), &claims)), Err("unknown key".to_owned()));
    let unsigned = sign(&own, &json!({ "alg": "none" }), &claims);
    let unsigned = unsigned.rsplit_once('.').unwrap().0;
    assert!(outcome(&format!("{unsigned}.")).is_err());
    assert!(outcome(&sign(&own, &json!({ "alg": "HS256", "kid": "a" }), &claims)).is_err());
    assert!(outcome("").is_err() && outcome("a.b.c").is_err());
}

fn logout_claims(changes: &Value) -> Value {
    merge(
        json!({ "iss": ISSUER, "aud": CLIENT, "sub": "7", "sid": "s", "jti": "j", "iat": NOW.unix_timestamp(),
            "events": { LOGOUT_EVENT: {} } }),
        changes,
    )
}

#[test]
fn a_logout_token_is_fresh_signed_and_for_this_client() {
    let own = key(1);
    let keys = key_set(&[("a", &own)]);
    let verify = |changes: &Value| {
        let token = sign(&own, &header("a"), &logout_claims(changes));
        verify_logout_token(&token, &keys, expected())
    };
    let good =
        LogoutClaims { token_id: "j".into(), subject: Some("7".into()), session: Some("s".into()) };
    assert_eq!(verify(&json!({ "aud": [CLIENT] })).unwrap(), good);
    let old = NOW.unix_timestamp() - 361;
    for changes in [
        json!({ "iss": "https://other.example" }),
        json!({ "aud": "other" }),
        json!({ "aud": null }),
        json!({ "events": {} }),
        json!({ "events": { LOGOUT_EVENT: true } }),
        json!({ "nonce": "n" }),
        json!({ "jti": null }),
        json!({ "iat": old }),
        json!({ "iat": null }),
        json!({ "exp": old }),
        json!({ "sub": null, "sid": null }),
    ] {
        assert!(verify(&changes).is_err(), "{changes}");
    }
    let foreign = sign(&key(2), &header("a"), &logout_claims(&json!({})));
    assert!(verify_logout_token(&foreign, &keys, expected()).is_err());
    let unknown = sign(&own, &header("b"), &logout_claims(&json!({})));
    let unknown = verify_logout_token(&unknown, &keys, expected());
    assert_eq!(describe(unknown), Err("unknown key".to_owned()));
}
