//! Vector backends.

use cynode_memory::{
    backend::{
        KNOWN_BACKENDS, LocalBackend, UnknownBackend, VectorBackend, VectorBackendError,
        VectorRecord, backend_of_name, score_of_distance,
    },
    embedders::{Hashing64, Hashing4096},
};
use proptest::prelude::*;
use uuid::Uuid;

fn record(number: u128, text: &str) -> VectorRecord {
    VectorRecord { id: Uuid::from_u128(number), text: text.to_owned() }
}

#[test]
fn a_backend_connects_stores_and_searches_with_scores() {
    let mut backend = LocalBackend::new(Box::new(Hashing4096));
    let records = [record(1, "retry a failed job"), record(2, "paint the door")];
    assert_eq!(backend.upsert(&records), Err(VectorBackendError::NotConnected), "S001-45");
    assert_eq!(backend.search("retry", 1), Err(VectorBackendError::NotConnected));
    backend.connect().unwrap();
    backend.connect().unwrap();
    backend.upsert(&records).unwrap();
    let hits = backend.search("retries of jobs", 5).unwrap();
    assert_eq!(hits.first().map(|hit| hit.id), Some(Uuid::from_u128(1)), "S001-45");
    assert!(hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0), "S001-53: {hits:?}");
    backend.upsert(&[record(1, "paint the door")]).unwrap();
    let hits = backend.search("door", 5).unwrap();
    assert_eq!(hits.len(), 2, "a record whose id is there is replaced");
    assert_eq!(hits[0].score, hits[1].score);
    assert!(hits[0].id < hits[1].id, "ties by id");
}

#[test]
fn an_unknown_or_unusable_backend_fails_where_it_is_constructed() {
    assert_eq!(KNOWN_BACKENDS, ["local", "faiss", "chroma", "qdrant"], "B001-07");
    let mut local = backend_of_name("local").unwrap();
    assert_eq!(local.search("anything", 3), Ok(Vec::new()), "S001-51: it is ready");
    assert_eq!(local.connect(), Ok(()));
    let refusal = |name| backend_of_name(name).err();
    assert_eq!(
        refusal("pinecone"),
        Some(UnknownBackend::Name("pinecone".into())),
        "S001-51, B001-07"
    );
    assert_eq!(refusal(""), Some(UnknownBackend::Name(String::new())), "S001-51");
    for name in ["faiss", "chroma", "qdrant"] {
        assert_eq!(
            refusal(name),
            Some(UnknownBackend::NotBuiltIn(name.into())),
            "S001-51, B001-07"
        );
    }
    assert!(refusal("pinecone").unwrap().to_string().contains("use `local`"));
}

#[test]
fn a_distance_becomes_a_score_where_higher_is_better() {
    assert_eq!(score_of_distance(0.0), 1.0, "B001-09");
    assert_eq!(score_of_distance(1.0), 0.5, "B001-09");
    assert_eq!(score_of_distance(3.0), 0.25, "B001-09");
    assert_eq!(score_of_distance(f64::INFINITY), 0.0);
    assert_eq!(score_of_distance(f64::NAN), 0.0);
}

proptest! {
    #[test]
    fn a_smaller_distance_never_has_a_lower_score(near in 0.0..1e6, more in 0.0..1e6) {
        prop_assert!(score_of_distance(near) >= score_of_distance(near + more), "B001-09");
    }

    #[test]
    fn hits_are_ordered_by_score_and_repeat_themselves(
        texts in prop::collection::vec("[a-c ]{0,12}", 0..10), query in "[a-c ]{1,8}", top in 0_usize..12,
    ) {
        let search = |reversed: bool| {
            let mut backend = LocalBackend::new(Box::new(Hashing64));
            backend.connect().unwrap();
            let mut records: Vec<_> = (0..).zip(&texts).map(|(number, text)| record(number, text)).collect();
            if reversed {
                records.reverse();
            }
            backend.upsert(&records).unwrap();
            backend.search(&query, top).unwrap()
        };
        let hits = search(false);
        prop_assert!(hits.len() <= top);
        prop_assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score), "S001-78");
        prop_assert_eq!(search(true), hits, "S001-46");
    }
}
