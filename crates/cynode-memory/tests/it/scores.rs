//! The score of the default retrieval, as the documentation of the crate says it.

use std::thread;

use cynode_memory::{
    embedders::{Embedder, FileEmbedder, Hashing4096},
    rescore::{Candidate, MAX_CANDIDATES, WEIGHTS, rescore},
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use uuid::Uuid;

const CRATE_DOCS: &str = include_str!("../../src/lib.rs");

fn candidate<'a>(number: u128, title: &'a str, text: &'a str, bm25: f64) -> Candidate<'a> {
    Candidate { id: Uuid::from_u128(number), title, text, bm25 }
}

fn order(query: &str, candidates: &[Candidate<'_>]) -> Vec<u128> {
    rescore(query, candidates, None).iter().map(|hit| hit.id.as_u128()).collect()
}

#[test]
fn range_direction_and_tie_rule_are_documented() {
    for sentence in [
        "- **Range**: a score is a number from 0 to 1, both included. It is never NaN.",
        "- **Direction**: higher is better.",
        "- **Tie rule**: hits with equal scores are ordered by id, lowest first.",
        "- **No match, no hit**: a record that shares nothing with the query is not returned.",
    ] {
        assert!(CRATE_DOCS.contains(&format!("//! {sentence}")), "S001-50: {sentence}");
    }
    let page = include_str!("../../../../docs/explanation/memory.md");
    for row in [
        "| range | 0 to 1, both included; never NaN |",
        "| direction | higher is better |",
        "| tie rule | hits with equal scores are ordered by id, lowest first |",
        "| no match | a record that shares nothing with the query is no hit |",
    ] {
        assert!(page.contains(row), "S001-50: {row}");
    }
}

#[test]
fn scores_correlate_with_similarity_and_hits_are_ordered_by_score() {
    // From the most similar text to the least.
    let texts = [
        "A failed job is retried three times.",
        "Retries of a job have a limit.",
        "A job runs in a sandbox.",
        "Sandboxes have no network.",
        "Invoices are due in March.",
    ];
    let candidates: Vec<_> =
        (0..).zip(texts).map(|(number, text)| candidate(number, "", text, 1.0)).collect();
    let hits = rescore("how often is a failed job retried", &candidates, None);
    let ids: Vec<_> = hits.iter().map(|hit| hit.id.as_u128()).collect();
    assert_eq!(&ids[..3], [0, 1, 2], "S001-78: {hits:?}");
    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score), "S001-78: {hits:?}");
    let score = |number: u128| hits.iter().find(|hit| hit.id.as_u128() == number).unwrap().score;
    assert!(score(0) > score(1) && score(1) > score(2) && score(2) > score(4), "S001-78: {hits:?}");
}

#[test]
fn equal_scores_are_ordered_by_id_lowest_first() {
    let candidates = [
        candidate(9, "a", "same", 1.0),
        candidate(2, "a", "same", 1.0),
        candidate(5, "a", "same", 1.0),
    ];
    assert_eq!(order("same", &candidates), [2, 5, 9], "S001-50, S001-55");
}

#[test]
fn a_title_a_form_of_a_word_and_a_pair_of_words_count() {
    let titled =
        [candidate(1, "Guide", "about it", 1.0), candidate(2, "Retry limits", "about it", 1.0)];
    assert_eq!(order("limit of a retry", &titled)[0], 2);
    let forms = [candidate(1, "", "the parser", 1.0), candidate(2, "", "the tokenizers", 1.0)];
    assert_eq!(order("tokenize", &forms)[0], 2, "character features find parts of words");
    let pairs = [
        candidate(1, "", "pool of a connection to nothing", 1.0),
        candidate(2, "", "of a connection pool to nothing", 1.0),
    ];
    assert_eq!(order("connection pool", &pairs)[0], 2);
    let ranked = [candidate(1, "", "same text", 1.0), candidate(2, "", "same text", 3.0)];
    assert_eq!(order("same text", &ranked)[0], 2, "a better BM25 score counts");
}

#[test]
fn candidates_behind_the_limit_are_left_out() {
    let many: Vec<_> =
        (0..).take(MAX_CANDIDATES + 5).map(|number| candidate(number, "", "text", 1.0)).collect();
    assert_eq!(order("text", &many).len(), MAX_CANDIDATES);
    assert_eq!(order("text", &[]), []);
}

#[test]
fn an_embedder_finds_what_shares_no_word() {
    let words = b"feline 1 0\ncat 1 0\ndoor 0 1\n";
    let digest: String = Sha256::digest(words).iter().map(|byte| format!("{byte:02x}")).collect();
    let embedder = FileEmbedder::from_bytes(words, &digest).unwrap();
    let candidates = [candidate(1, "", "door", 1.0), candidate(2, "", "cat", 1.0)];
    let with: &dyn Embedder = &embedder;
    let hits = rescore("feline", &candidates, Some(with));
    assert_eq!(hits[0].id.as_u128(), 2);
    assert!(hits.iter().all(|hit| (0.0..=1.0).contains(&hit.score)), "{hits:?}");
}

#[test]
fn the_weights_are_a_share_each() {
    let sum = WEIGHTS.bm25 + WEIGHTS.title + WEIGHTS.words + WEIGHTS.pairs + WEIGHTS.grams;
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
}

#[test]
fn scores_are_the_same_bits_on_every_platform() {
    let candidates = [
        candidate(1, "Guide > Retries", "Jobs are retried with backoff.", 3.25),
        candidate(2, "src/retry.rs::max_retries", "pub fn max_retries() -> u32 { 3 }", 2.5),
        candidate(3, "再試行", "ジョブは三回まで再試行されます。", 0.5),
    ];
    let hits = rescore("max retries of a job 再試行", &candidates, Some(&Hashing4096));
    let bits: Vec<_> = hits.iter().map(|hit| (hit.id.as_u128(), hit.score.to_bits())).collect();
    assert_eq!(
        bits,
        [
            (2, 4_603_178_247_048_259_769),
            (1, 4_602_825_665_145_425_701),
            (3, 4_594_434_260_286_519_752),
        ],
        "S001-46"
    );
}

proptest! {
    #[test]
    fn any_candidates_have_scores_in_range_and_the_order_of_candidates_changes_nothing(
        query in any::<String>(),
        texts in prop::collection::vec((any::<String>(), any::<String>(), any::<f64>()), 0..6),
    ) {
        let mut candidates: Vec<_> =
            (0..).zip(&texts).map(|(number, (title, text, bm25))| candidate(number, title, text, *bm25)).collect();
        let hits = rescore(&query, &candidates, None);
        prop_assert_eq!(hits.len(), candidates.len());
        prop_assert!(hits.iter().all(|hit| (0.0..=1.0).contains(&hit.score)), "S001-50: {:?}", hits);
        for pair in hits.windows(2) {
            let ordered = pair[0].score > pair[1].score || (pair[0].score == pair[1].score && pair[0].id < pair[1].id);
            prop_assert!(ordered, "S001-50: {:?}", hits);
        }
        candidates.reverse();
        prop_assert_eq!(rescore(&query, &candidates, None), hits.clone());
        let texts = texts.clone();
        let elsewhere = thread::spawn(move || {
            let candidates: Vec<_> =
                (0..).zip(&texts).map(|(number, (title, text, bm25))| candidate(number, title, text, *bm25)).collect();
            rescore(&query, &candidates, None)
        });
        prop_assert_eq!(elsewhere.join().unwrap(), hits, "S001-46");
    }
}
