//! Secrets in JSON values.

use cynode_testkit::secrets::{ALNUM, Chance, KINDS, secrets, survivors};
use serde_json::{Value, json};

use crate::redaction::support::redactor;

#[test]
fn strings_keys_and_arguments_are_all_looked_at() {
    let redactor = redactor(&[]);
    for planted in secrets(21, KINDS.len()) {
        let arguments = json!({"path": "x", "content": planted.text}).to_string();
        let mut value = json!({
            "messages": [{"role": "user", "content": [{"type": "text", "text": planted.text}]}],
            "tool": {"arguments": arguments},
            planted.text.clone(): 1,
        });
        let found = redactor.redact_json(&mut value);
        let left = value.to_string();
        assert!(planted.secret.lines().all(|line| survivors(line, &left).is_empty()), "{left}");
        assert_eq!(found.total_count(), 3, "{left}");
        assert!(
            serde_json::from_str::<Value>(value["tool"]["arguments"].as_str().unwrap()).is_ok()
        );
    }
}

#[test]
fn a_key_that_announces_a_secret_makes_its_value_one() {
    let redactor = redactor(&[]);
    let secret = format!("{}7!", Chance::new(22).letters(ALNUM, 14));
    let mut value = json!({
        "db_password": secret,
        "tokens": [secret],
        "total_tokens": 1234,
        "token_type": "bearer_access",
        "note": "short",
    });
    let found = redactor.redact_json(&mut value);
    let placeholder = value["db_password"].as_str().unwrap().to_owned();
    assert!(placeholder.starts_with("[redacted:secret#"), "{placeholder}");
    assert_eq!(
        value,
        json!({
            "db_password": placeholder,
            "tokens": [placeholder],
            "total_tokens": 1234,
            "token_type": "bearer_access",
            "note": "short",
        })
    );
    assert_eq!(found.iter().collect::<Vec<_>>(), [("secret", 2)]);
    let before = value.clone();
    assert!(redactor.redact_json(&mut value).is_empty());
    assert_eq!(value, before);
}

#[test]
fn escapes_do_not_hide_a_secret_in_json_text() {
    let redactor = redactor(&[]);
    let token = format!("ghp_{}", Chance::new(23).letters(ALNUM, 36));
    let hidden = token.replacen('_', "\\u005f", 1);
    let mut value = json!({"arguments": format!("{{\"b\":1,\"a\":\"{hidden}\"}}")});
    let found = redactor.redact_json(&mut value);
    assert_eq!(found.iter().collect::<Vec<_>>(), [("github_token", 1)]);
    assert!(survivors(&token[4..], &value.to_string()).is_empty());
}

#[test]
fn a_value_without_secrets_stays_byte_for_byte() {
    let redactor = redactor(&[]);
    let mut value = json!({"arguments": "{ \"z\": 1,\n  \"a\": \"b\" }", "n": [1, null, true]});
    let before = value.clone();
    assert!(redactor.redact_json(&mut value).is_empty());
    assert_eq!(value, before);
}

#[test]
fn two_secret_keys_stay_two_entries() {
    let redactor = redactor(&[]);
    let mut chance = Chance::new(24);
    let mut map = serde_json::Map::new();
    for number in 0..2000 {
        map.insert(format!("ghp_{}", chance.letters(ALNUM, 36)), json!(number));
    }
    let mut value = Value::Object(map);
    redactor.redact_json(&mut value);
    assert_eq!(value.as_object().unwrap().len(), 2000);
}
