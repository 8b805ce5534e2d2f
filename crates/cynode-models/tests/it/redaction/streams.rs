//! A stream gives what the whole text gives, wherever it is cut.

use cynode_testkit::secrets::{ALNUM, BASE64, Chance, KINDS, SETTINGS, secrets};
use proptest::prelude::*;

use crate::redaction::{planted::hostile, support::redactor};

#[test]
fn each_secret_cut_at_every_byte_is_taken_out_as_from_the_whole() {
    let redactor = redactor(&[]);
    for (number, planted) in secrets(11, KINDS.len()).iter().enumerate() {
        let text = SETTINGS[number % SETTINGS.len()](&planted.text);
        let whole = redactor.redact_text(&text);
        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut stream = redactor.stream_redactor();
            let mut out = stream.push_text(&text[..cut]);
            out.push_str(&stream.push_text(&text[cut..]));
            let rest = stream.finish();
            out.push_str(&rest.value);
            assert_eq!(out, whole.value, "{} cut at {cut}", planted.kind);
            assert_eq!(rest.found, whole.found, "{} cut at {cut}", planted.kind);
        }
    }
}

#[test]
fn a_secret_that_comes_letter_by_letter_is_never_given_out() {
    let redactor = redactor(&[]);
    for (number, planted) in secrets(12, KINDS.len()).iter().enumerate() {
        let text = SETTINGS[(number + 5) % SETTINGS.len()](&planted.text);
        let mut stream = redactor.stream_redactor();
        let mut out = String::new();
        for letter in text.chars() {
            out.push_str(&stream.push_text(letter.encode_utf8(&mut [0; 4])));
        }
        out.push_str(&stream.finish().value);
        assert_eq!(out, redactor.redact_text(&text).value, "{}", planted.kind);
    }
}

#[test]
fn ordinary_words_are_held_back_until_the_next_one_at_most() {
    let mut stream = redactor(&[]).stream_redactor();
    let words =
        ["The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", "."];
    let out: Vec<_> = words.iter().map(|word| stream.push_text(word)).collect();
    assert_eq!(
        out,
        ["", "The ", "quick ", "brown ", "fox ", "jumps ", "over ", "the ", "lazy ", ""]
    );
    assert_eq!(stream.finish().value, "dog.");
}

#[test]
fn what_is_held_back_has_a_bound_whatever_comes() {
    let mut chance = Chance::new(13);
    let endless_key = format!(
        "{0}BEGIN PRIVATE KEY{0}\n{1}",
        "-".repeat(5),
        (0..4000).map(|_| chance.letters(BASE64, 64) + "\n").collect::<String>()
    );
    let endless_word = chance.letters(ALNUM, 300_000);
    let endless_chain = "sk-".repeat(100_000);
    let endless_token = format!("eyJ{}", chance.letters(ALNUM, 300_000));
    for text in [endless_key, endless_word, endless_chain, endless_token] {
        let mut stream = redactor(&[]).stream_redactor();
        let mut most = 0;
        for piece in text.as_bytes().chunks(1000) {
            stream.push_text(std::str::from_utf8(piece).unwrap());
            most = most.max(stream.held_bytes());
        }
        assert!(most <= 65 * 1024, "{most}");
    }
}

proptest! {
    // a failure would be kept in a file, and that file would hold what looks like a secret
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_gives_what_the_whole_gives(
        text in hostile(),
        cuts in proptest::collection::vec(0.0..1.0_f64, 0..6),
    ) {
        let redactor = redactor(&[("ours", "knownknown-7"), ("other", "token = \"é")]);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a short text")]
        let mut places: Vec<usize> = cuts
            .iter()
            .map(|cut| text.floor_char_boundary((cut * text.len() as f64) as usize))
            .collect();
        places.sort_unstable();
        places.push(text.len());
        let mut stream = redactor.stream_redactor();
        let (mut out, mut at) = (String::new(), 0);
        for place in places {
            out.push_str(&stream.push_text(&text[at..place]));
            at = place;
        }
        let rest = stream.finish();
        out.push_str(&rest.value);
        let whole = redactor.redact_text(&text);
        prop_assert_eq!(out, whole.value);
        prop_assert_eq!(rest.found, whole.found);
    }
}
