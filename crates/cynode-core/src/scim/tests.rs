use proptest::prelude::*;
use serde_json::json;

use super::*;

const ADA: &str = "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

fn ada() -> UserId {
    ADA.parse().unwrap()
}

#[test]
fn a_user_is_read_as_directories_write_it() {
    let body = json!({
        "schemas": [USER_SCHEMA, "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
        "userName": "ada@example.com",
        "externalId": "00u1",
        "name": { "givenName": "Ada", "familyName": "Lovelace" },
        "emails": [{ "value": "home@example.com" }, { "value": "ada@example.com", "type": "work" }],
        "active": "True",
        "title": "Countess",
    });
    let expected = DescribedUser {
        user_name: "ada@example.com".to_owned(),
        external_id: Some("00u1".to_owned()),
        display_name: "Ada Lovelace".parse().unwrap(),
        email: Some("ada@example.com".parse().unwrap()),
        active: Some(true),
    };
    assert_eq!(parse_user(&body), Ok(expected));
    let least = parse_user(&json!({ "userName": "ada" })).unwrap();
    assert_eq!((least.display_name.as_str(), least.active, &least.email), ("ada", None, &None));
    let is_about_state = |change: &UserChange| matches!(change, UserChange::Active(_));
    assert!(!least.into_changes().iter().any(is_about_state), "nothing is said about it");
}

#[test]
fn a_user_that_cannot_be_stored_is_refused_with_the_word_of_the_standard() {
    let kind = |body: Value| parse_user(&body).unwrap_err().kind();
    assert_eq!(kind(json!([])), "invalidSyntax");
    assert_eq!(kind(json!({})), "invalidValue");
    assert_eq!(kind(json!({ "userName": "" })), "invalidValue");
    assert_eq!(kind(json!({ "userName": "a\u{202e}b" })), "invalidValue");
    assert_eq!(kind(json!({ "userName": "ada", "active": 1 })), "invalidValue");
    assert_eq!(kind(json!({ "userName": "ada", "emails": [{ "value": "x" }] })), "invalidValue");
    assert_eq!(kind(json!({ "userName": "ada", "password": "hunter2" })), "mutability");
}

#[test]
fn a_filter_is_equality_joined_by_and() {
    let read = parse_user_filter("USERNAME Eq \"a\\\"b\" and externalId eq \"1\"").unwrap();
    let expected = ScimFilter {
        user_name: Some("a\"b".to_owned()),
        external_id: Some("1".to_owned()),
        ..ScimFilter::default()
    };
    assert_eq!(read, expected);
    let twice = parse_user_filter("userName eq \"a\" and userName eq \"b\"").unwrap();
    assert!(twice.is_impossible);
    for wrong in [
        "",
        "userName",
        "userName eq",
        "userName eq a",
        "userName eq \"a",
        "userName co \"a\"",
        "userName eq \"a\" or userName eq \"b\"",
        "userName eq \"a\" and",
        "password eq \"a\"",
        "userName eq \"a\"and userName eq \"a\"x",
    ] {
        let refused = parse_user_filter(wrong).unwrap_err();
        assert_eq!(refused.kind(), "invalidFilter", "{wrong}");
    }
    assert!(parse_group_filter("userName eq \"a\"").is_err());
}

#[test]
fn users_are_changed_with_a_path_or_without_one() {
    let patch = |operations: Value| parse_user_patch(&json!({ "Operations": operations }));
    let off = Ok(vec![UserChange::Active(false)]);
    assert_eq!(patch(json!([{ "op": "replace", "path": "active", "value": false }])), off);
    assert_eq!(patch(json!([{ "op": "Replace", "path": "active", "value": "False" }])), off);
    assert_eq!(patch(json!([{ "op": "replace", "value": { "active": false } }])), off);
    let path = format!("{USER_SCHEMA}:active");
    assert_eq!(patch(json!([{ "op": "replace", "path": path, "value": false }])), off);
    let mail = json!([{ "op": "add", "path": "emails[type eq \"work\"].value", "value": "a@b.c" }]);
    assert_eq!(patch(mail), Ok(vec![UserChange::Email(Some("a@b.c".parse().unwrap()))]));
    let several = json!([
        { "op": "replace", "value": { "displayName": "Ada L.", "title": "Countess" } },
        { "op": "remove", "path": "externalId" },
    ]);
    let expected =
        vec![UserChange::DisplayName("Ada L.".parse().unwrap()), UserChange::ExternalId(None)];
    assert_eq!(patch(several), Ok(expected));
}

#[test]
fn a_change_of_a_user_that_makes_no_sense_is_refused() {
    let kind = |operation: Value| {
        parse_user_patch(&json!({ "Operations": [operation] })).unwrap_err().kind()
    };
    assert_eq!(kind(json!({ "op": "move", "path": "active" })), "invalidSyntax");
    assert_eq!(kind(json!({ "op": "remove" })), "noTarget");
    assert_eq!(kind(json!({ "op": "remove", "path": "userName" })), "invalidValue");
    assert_eq!(kind(json!({ "op": "replace", "path": "color", "value": 1 })), "invalidPath");
    assert_eq!(kind(json!({ "op": "replace", "path": "active" })), "invalidValue");
    assert_eq!(kind(json!({ "op": "replace", "path": "password", "value": "x" })), "mutability");
    assert!(parse_user_patch(&json!({ "Operations": [] })).is_err());
}

#[test]
fn members_are_added_removed_and_replaced() {
    let patch = |operation: Value| parse_group_patch(&json!({ "Operations": [operation] }));
    let members = json!([{ "value": ADA }]);
    assert_eq!(
        patch(json!({ "op": "add", "path": "members", "value": members })),
        Ok(vec![GroupChange::AddMembers(vec![ada()])])
    );
    assert_eq!(
        patch(json!({ "op": "remove", "path": format!("members[value eq \"{ADA}\"]") })),
        Ok(vec![GroupChange::RemoveMembers(vec![ada()])])
    );
    assert_eq!(
        patch(json!({ "op": "remove", "path": "members", "value": members })),
        Ok(vec![GroupChange::RemoveMembers(vec![ada()])])
    );
    assert_eq!(
        patch(json!({ "op": "remove", "path": "members" })),
        Ok(vec![GroupChange::ReplaceMembers(Vec::new())])
    );
    assert_eq!(
        patch(json!({ "op": "replace", "value": { "id": "x", "displayName": "Ops" } })),
        Ok(vec![GroupChange::DisplayName("Ops".to_owned())])
    );
    for wrong in ["members[display eq \"x\"]", "members[value eq \"nobody\"]", "owners"] {
        assert!(patch(json!({ "op": "remove", "path": wrong })).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn no_filter_makes_the_reader_panic(text in ".{0,80}|userName eq .{0,20}") {
        let _ = parse_user_filter(&text);
    }

    #[test]
    fn every_quoted_text_is_read_as_it_was_meant(value in ".{0,40}") {
        let text = format!("displayName eq {}", serde_json::to_string(&value).unwrap());
        prop_assert_eq!(parse_group_filter(&text).unwrap().display_name, Some(value));
    }
}
