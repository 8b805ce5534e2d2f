//! Lexemes and BM25.

use cynode_memory::{
    bm25::{self, Posting, TermPostings, score_postings},
    lexemes::{MAX_LEXEME_BYTES, TITLE_WEIGHT, lexemes, record_term_counts, stem, term_counts},
};
use proptest::prelude::*;

fn has(text: &str, lexeme: &str) -> bool {
    lexemes(text).iter().any(|it| it == lexeme)
}

#[test]
fn identifiers_are_split_and_kept_whole() {
    assert_eq!(
        lexemes("maxHTTPRetries_2"),
        ["max", "http", "retri", "2", "maxhttpretries2"],
        "parts in their order, then the whole"
    );
    assert_eq!(lexemes("max_retries"), ["max", "retri", "maxretries"]);
    assert_eq!(lexemes("maxRetries"), lexemes("max_retries"));
    assert_eq!(lexemes("sha256"), ["sha", "256", "sha256"]);
    assert_eq!(lexemes("__init__"), ["init"]);
    assert!(has("fn parse_header(x: u8)", "parseheader"));
}

#[test]
fn a_digest_is_one_lexeme() {
    assert_eq!(lexemes("a3f9c04be1"), ["a3f9c04be1"]);
}

#[test]
fn words_of_one_family_have_one_stem() {
    let families = [
        &["cache", "caches", "cached", "caching"][..],
        &["configure", "configures", "configured", "configuration", "configurations"],
        &["validate", "validates", "validated", "validating", "validation"],
        &["retry", "retries", "retried"],
        &["connect", "connects", "connected", "connecting", "connection", "connections"],
        &["serialize", "serialized", "serializing"],
        &["process", "processes", "processing"],
    ];
    for family in families {
        let stems: Vec<String> = family.iter().map(|word| stem(word)).collect();
        assert!(stems.windows(2).all(|pair| pair[0] == pair[1]), "{stems:?}");
    }
    for word in ["status", "this", "axis", "speed", "string", "class", "user", "größe"] {
        assert!(stem(word).len() >= word.len().min(4), "{word} became {}", stem(word));
    }
}

#[test]
fn words_without_meaning_are_left_out() {
    assert_eq!(lexemes("how do I get the count of a key?"), ["get", "count", "key"]);
    assert_eq!(lexemes("of the"), [] as [&str; 0]);
}

#[test]
fn words_of_other_scripts_are_whole_and_normalized() {
    assert_eq!(lexemes("Un café"), ["un", "café"], "B001-28");
    assert_eq!(lexemes("cafe\u{301}"), lexemes("café"));
    assert_eq!(lexemes("ＡＰＩ ﬁle"), lexemes("api file"), "full width letters and ligatures");
    assert_eq!(lexemes("Größe ДОМ"), ["größe", "дом"]);
}

#[test]
fn text_without_spaces_is_found_by_pairs_and_single_characters() {
    assert_eq!(lexemes("東京都"), ["東", "東京", "京", "京都", "都"]);
    let text = term_counts("連線池的大小由設定決定");
    assert!(["連線", "設定", "池"].iter().all(|word| text.contains_key(*word)), "B001-28");
    assert!(lexemes("รหัสผ่าน").iter().any(|it| it.chars().count() == 2));
}

#[test]
fn words_of_the_title_count_more() {
    let counts = record_term_counts("Install", "Install it with cargo.");
    assert_eq!(counts["install"], TITLE_WEIGHT + 1);
    assert_eq!(counts["cargo"], 1);
}

#[test]
fn bm25_rises_with_rarity_and_repeats_and_falls_with_length() {
    let rare = bm25::idf(1000, 3);
    assert!(rare > bm25::idf(1000, 300));
    assert!(bm25::idf(1000, 1000) > 0.0, "a word of every record counts a little");
    assert_eq!(bm25::idf(10, 20), bm25::idf(10, 10), "counts that contradict each other");
    let score = |tf, len| bm25::term_score(tf, len, 100.0, rare);
    assert!(score(2, 100) > score(1, 100));
    assert!(score(1, 50) > score(1, 100));
    assert!(score(1000, 100) < rare * (bm25::K1 + 1.0));
    assert!(bm25::term_score(1, 1, 0.0, rare).is_finite());
}

#[test]
fn the_logarithm_is_that_of_the_platform_to_the_last_digits() {
    for (records, df) in [(1_u32, 0_u32), (10, 1), (1_000, 7), (123_456, 3), (4_000_000_000, 1)] {
        let (n, d) = (f64::from(records), f64::from(df));
        let expected = (1.0 + (n - d + 0.5) / (d + 0.5)).ln();
        let actual = bm25::idf(records.into(), df.into());
        assert!((actual - expected).abs() <= 4.0 * f64::EPSILON * expected, "{actual} {expected}");
    }
    // The same bits on every platform: the value is written down.
    assert_eq!(bm25::idf(1000, 7).to_bits(), 4_617_196_005_666_691_986, "S001-46");
}

fn term(idf: f64, records: &[i64]) -> TermPostings {
    let postings = records.iter().map(|record| Posting { record: *record, tf: 1, len: 10 });
    TermPostings { idf, postings: postings.collect() }
}

#[test]
fn records_with_more_and_rarer_terms_go_first_and_equal_ones_by_number() {
    let terms = [term(2.0, &[7, 3]), term(1.0, &[9, 7])];
    let order = |top| -> Vec<i64> {
        score_postings(&terms, 10.0, top).into_iter().map(|(record, _)| record).collect()
    };
    assert_eq!(order(9), [7, 3, 9]);
    assert_eq!(order(2), [7, 3]);
    assert_eq!(order(0), []);
    assert_eq!(score_postings(&[term(1.0, &[5, 4])], 10.0, 1)[0].0, 4);
}

#[test]
fn numbers_that_are_far_apart_have_the_same_scores_as_near_ones() {
    let near = score_postings(&[term(2.0, &[1, 2]), term(1.0, &[2])], 10.0, 9);
    let far = score_postings(&[term(2.0, &[1, i64::MAX]), term(1.0, &[i64::MAX])], 10.0, 9);
    let scores = |found: &[(i64, f64)]| found.iter().map(|(_, score)| *score).collect::<Vec<_>>();
    assert_eq!(scores(&near), scores(&far));
}

proptest! {
    #[test]
    fn lexemes_of_any_text_are_bounded_lower_case_and_repeatable(text in any::<String>()) {
        let found = lexemes(&text);
        prop_assert_eq!(&found, &lexemes(&text));
        for lexeme in &found {
            prop_assert!(!lexeme.is_empty() && lexeme.len() <= MAX_LEXEME_BYTES);
            prop_assert!(!lexeme.contains(char::is_whitespace) && !lexeme.contains('\0'));
        }
        let counted: u32 = term_counts(&text).values().sum();
        prop_assert_eq!(usize::try_from(counted).unwrap(), found.len());
    }

    #[test]
    fn a_long_word_is_cut(word in "[a-z]{60,300}") {
        prop_assert!(lexemes(&word).iter().all(|lexeme| lexeme.len() <= MAX_LEXEME_BYTES));
    }

    #[test]
    fn case_and_spaces_around_words_change_nothing(word in "[a-z]{2,12}") {
        let spaced = format!("  {}\n", word.to_uppercase());
        prop_assert_eq!(lexemes(&word), lexemes(&spaced));
    }
}
