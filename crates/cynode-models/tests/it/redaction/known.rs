//! Secrets that are known by value.

use cynode_testkit::secrets::survivors;
use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use proptest::prelude::*;

use crate::redaction::support::redactor;

/// A value that no rule would find, with letters that every encoding changes.
const VALUE: &str = "correct horse/battery+staple \"ä\"";

#[test]
fn a_known_secret_goes_in_every_encoding_and_all_have_one_name() {
    let redactor = redactor(&[("Provider key", VALUE)]);
    let plain = redactor.redact_text(VALUE).value.into_owned();
    assert!(plain.starts_with("[redacted:provider_key#"), "{plain}");
    let quoted = serde_json::Value::from(VALUE).to_string();
    let twice = serde_json::Value::from(quoted.as_str()).to_string();
    let encoded = [
        HEXLOWER.encode(VALUE.as_bytes()),
        HEXUPPER.encode(VALUE.as_bytes()),
        quoted[1..quoted.len() - 1].to_owned(),
        twice[3..twice.len() - 3].to_owned(),
        "correct%20horse%2Fbattery%2Bstaple%20%22%C3%A4%22".to_owned(),
        "correct+horse%2Fbattery%2Bstaple+%22%C3%A4%22".to_owned(),
    ];
    for text in encoded {
        assert_eq!(
            redactor.redact_text(&format!("<{text}>")).value,
            format!("<{plain}>"),
            "{text}"
        );
    }
}

#[test]
fn a_known_secret_goes_from_base64_of_something_longer() {
    let redactor = redactor(&[("key", VALUE)]);
    for before in ["", "a", "ab", "abc"] {
        for base in [&BASE64, &BASE64URL] {
            let blob = base.encode(format!("{before}{VALUE} and more").as_bytes());
            let alone = base.encode(VALUE.as_bytes());
            let redacted = redactor.redact_text(&blob).value.into_owned();
            assert!(redacted.contains("[redacted:key#"), "{redacted}");
            assert_eq!(survivors(&alone, &redacted), Vec::<&str>::new(), "{redacted}");
        }
    }
}

#[test]
fn short_secrets_are_told_rather_than_looked_for() {
    let redactor = redactor(&[("pin", "1234"), ("key", "a-longer-value")]);
    assert_eq!(redactor.unguarded_names(), ["pin"]);
    assert_eq!(redactor.redact_text("1234 apples").value, "1234 apples");
}

#[test]
fn a_known_secret_and_a_rule_that_overlap_leave_nothing_of_either() {
    let value = "swordfish99 and a second half";
    let redactor = redactor(&[("key", value)]);
    let redacted = redactor.redact_text(&format!("password={value}.")).value.into_owned();
    assert!(redacted.starts_with("password=[redacted:key#"), "{redacted}");
    assert!(redacted.ends_with("]."), "{redacted}");
}

#[test]
fn a_known_secret_cannot_hide_in_a_false_placeholder_nor_break_a_true_one() {
    let redactor = redactor(&[("key", "redacted"), ("other", "abcdefgh12")]);
    let hidden = redactor.redact_text("[redacted:abcdefgh12#0000]").value.into_owned();
    assert!(!hidden.contains("abcdefgh12"), "{hidden}");
    let once = redactor.redact_text("abcdefgh12").value.into_owned();
    assert_eq!(redactor.redact_text(&once).value, once);
}

#[test]
fn long_secrets_are_found_too_and_nothing_of_them_is_left() {
    let value: String = (0..3000).map(|number| format!("{number:x}.")).collect();
    let redactor = redactor(&[("key", &value)]);
    let text = format!("before {value} after");
    let redacted = redactor.redact_text(&text).value.into_owned();
    assert_eq!(survivors(&value, &redacted), Vec::<&str>::new());
    assert!(redacted.starts_with("before [redacted:key#") && redacted.ends_with("] after"));
}

proptest! {
    // a failure would be kept in a file, and that file would hold what looks like a secret
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_value_and_the_text_it_is_gone(
        value in "[ -~é]{8,40}",
        before in "[ -~é\n]{0,30}",
        after in "[ -~é\n]{0,30}",
    ) {
        let redactor = redactor(&[("key", &value)]);
        let redacted = redactor.redact_text(&format!("{before}{value}{after}")).value.into_owned();
        prop_assert!(!redacted.contains(&value), "{}", redacted);
        prop_assert_eq!(&redactor.redact_text(&redacted).value, &redacted);
    }
}
