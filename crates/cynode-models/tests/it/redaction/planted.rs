//! Nothing of a planted secret survives.

use std::collections::BTreeSet;

use cynode_testkit::secrets::{ALNUM, BASE64, Chance, KINDS, SETTINGS, secrets, survivors};
use proptest::prelude::*;

use crate::redaction::support::{RULES, redactor};

#[test]
fn of_a_thousand_secrets_in_every_setting_no_piece_survives() {
    let redactor = redactor(&[]);
    let mut failures = Vec::new();
    for (number, planted) in secrets(1, 1000).iter().enumerate() {
        let setting = number % SETTINGS.len();
        let text = SETTINGS[setting](&planted.text);
        let redacted = redactor.redact_text(&text).value;
        // line by line: settings put marks between the lines of a key
        let left: Vec<_> =
            planted.secret.lines().flat_map(|line| survivors(line, &redacted)).collect();
        if !left.is_empty() {
            failures.push(format!("{} in setting {setting}: {left:?}\n{redacted}", planted.kind));
        }
    }
    assert_eq!(failures, Vec::<String>::new());
}

#[test]
fn every_kind_survives_in_no_setting() {
    let redactor = redactor(&[]);
    let mut failures = BTreeSet::new();
    for planted in secrets(2, KINDS.len() * 2) {
        for (number, setting) in SETTINGS.iter().enumerate() {
            let redacted = redactor.redact_text(&setting(&planted.text)).value.into_owned();
            if planted.secret.lines().any(|line| !survivors(line, &redacted).is_empty()) {
                failures.insert((planted.kind, number));
            }
        }
    }
    assert_eq!(failures, BTreeSet::new());
}

#[test]
fn each_kind_is_called_by_its_name() {
    let redactor = redactor(&[]);
    let kinds: BTreeSet<_> = KINDS.iter().map(|(kind, _)| *kind).collect();
    assert!(kinds.len() >= 40, "{}", kinds.len());
    for planted in secrets(3, KINDS.len() * 3) {
        let found = redactor.redact_text(&planted.text).found;
        let seen: Vec<_> = found.iter().collect();
        assert_eq!(seen, [(planted.kind, 1)], "{}", planted.text);
    }
}

#[test]
fn the_words_around_a_secret_stay() {
    let redactor = redactor(&[]);
    let token = format!("ghp_{}", Chance::new(4).letters(ALNUM, 36));
    let text = format!("git clone https://ada:{token}@github.com/a/b # {token}");
    let redacted = redactor.redact_text(&text).value.into_owned();
    let (_, placeholder) = redacted.split_once("# ").unwrap();
    assert!(placeholder.starts_with("[redacted:github_token#"), "{placeholder}");
    assert_eq!(
        redacted,
        format!("git clone https://ada:{placeholder}@github.com/a/b # {placeholder}")
    );
}

#[test]
fn two_secrets_of_a_kind_can_be_told_apart_and_another_key_tells_otherwise() {
    use cynode_models::redact::{FingerprintKey, Redactor};
    let mut chance = Chance::new(5);
    let [a, b] = [0, 1].map(|_| format!("ghp_{}", chance.letters(ALNUM, 36)));
    let ours = redactor(&[]);
    let theirs = Redactor::new(RULES.clone(), FingerprintKey::new([8; 32]), []).unwrap();
    assert_ne!(ours.redact_text(&a).value, ours.redact_text(&b).value);
    assert_eq!(ours.redact_text(&a).value, ours.redact_text(&a).value);
    assert_ne!(ours.redact_text(&a).value, theirs.redact_text(&a).value);
}

#[test]
fn secrets_with_nothing_between_them_are_gone_at_once() {
    let redactor = redactor(&[]);
    for first in secrets(8, KINDS.len()) {
        for second in secrets(9, KINDS.len()) {
            let text = format!("{}{}", first.text, second.text);
            let once = redactor.redact_text(&text).value.into_owned();
            assert_eq!(redactor.redact_text(&once).value, once, "{} {}", first.kind, second.kind);
        }
    }
}

#[test]
fn a_key_that_happens_to_have_one_digit_at_its_end_is_no_word() {
    let redactor = redactor(&[]);
    let letters = &ALNUM[..52];
    for seed in 0..200 {
        let key = format!("sk-{}7", Chance::new(seed).letters(letters, 47));
        let redacted = redactor.redact_text(&key).value.into_owned();
        assert!(redacted.starts_with("[redacted:openai_key#"), "{seed}: {redacted}");
    }
    let name = "sk-estimatorDocumentationLinkColumn7";
    assert_eq!(redactor.redact_text(name).value, name);
}

#[test]
fn a_key_that_is_cut_short_is_taken_out_as_far_as_it_goes() {
    let redactor = redactor(&[]);
    let mut chance = Chance::new(6);
    let body: Vec<_> = (0..9).map(|_| chance.letters(BASE64, 64)).collect();
    let dashes = "-".repeat(5);
    let text = format!("{dashes}BEGIN RSA PRIVATE KEY{dashes}\n{}\n[truncated]", body.join("\n"));
    let redacted = redactor.redact_text(&text).value.into_owned();
    assert!(body.iter().all(|line| survivors(line, &redacted).is_empty()), "{redacted}");
    assert!(redacted.ends_with("\n[truncated]"), "{redacted}");
}

#[test]
fn a_key_in_the_source_of_a_program_goes_line_by_line() {
    let redactor = redactor(&[]);
    let mut chance = Chance::new(7);
    let body: Vec<_> = (0..5).map(|_| chance.letters(BASE64, 64)).collect();
    let lines: Vec<_> = body.iter().map(|line| format!("{:40}\"{line}\\n\"\n", "")).collect();
    let dashes = "-".repeat(5);
    let text = format!(
        "char *key = \"{dashes}BEGIN PRIVATE KEY{dashes}\\n\"\n{}    \"{dashes}END PRIVATE KEY{dashes}\";",
        lines.concat()
    );
    let redacted = redactor.redact_text(&text).value.into_owned();
    let opening = format!("char *key = \"{dashes}BEGIN PRIVATE KEY{dashes}[redacted:private_key#");
    assert!(redacted.starts_with(&opening), "{redacted}");
    assert_eq!(redacted.len(), opening.len() + "0000]\";".len(), "{redacted}");
}

/// Pieces that make texts which are near to secrets.
fn piece() -> impl Strategy<Value = String> {
    let words = [
        "password",
        "token",
        "secret",
        "=",
        " = ",
        ": ",
        "\"",
        "'",
        "\\",
        "\\n",
        "\n",
        " ",
        "://",
        "postgres://",
        "@",
        ":",
        "Bearer ",
        "Authorization: ",
        "sk-",
        "AKIA",
        "eyJ",
        ".",
        "ghp_",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----END RSA PRIVATE KEY-----",
        "[redacted:jwt#12ab]",
        "[redacted:",
        "[",
        "]",
        "-us1",
        ".atlasv1.",
        "NRAL",
        "login ",
        "<",
        ">",
        "(",
        "é",
        "known",
    ];
    prop_oneof![
        3 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        2 => "[A-Za-z0-9+/_-]{1,50}",
        1 => "[ -~]{1,10}",
        1 => (0_u64..1_000_000, 0..KINDS.len()).prop_map(|(seed, kind)| KINDS[kind].1(&mut Chance::new(seed)).0),
    ]
}

/// Texts that are near to secrets.
pub(crate) fn hostile() -> impl Strategy<Value = String> {
    proptest::collection::vec(piece(), 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    // a failure would be kept in a file, and that file would hold what looks like a secret
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn redacting_twice_changes_nothing_more(text in hostile()) {
        let redactor = redactor(&[("ours", "knownknown-7")]);
        let once = redactor.redact_text(&text).value.into_owned();
        let twice = redactor.redact_text(&once);
        prop_assert_eq!(&twice.value, &once);
        prop_assert!(twice.found.is_empty());
    }
}
