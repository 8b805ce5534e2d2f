use std::{fs, path::Path};

use cynode_audit::{
    NewChain, Outcome, ReconcileError, SegmentChange, StoredChain, extend_segment, has_segment,
    remove_segment,
};

use crate::support::{Memory, Place, decision, denial, end, files, outcome, while_shipping};

/// What the store has of every chain, in the order of their numbers.
fn stored_chains(store: &Memory) -> Vec<StoredChain> {
    let (records, checkpoints) = (store.records(), store.checkpoints());
    let starts = store.starts().into_iter();
    starts
        .map(|start| StoredChain {
            records: records.iter().filter(|it| it.chain == start.chain).cloned().collect(),
            closed: checkpoints.iter().any(|it| it.chain == start.chain && it.closed),
            chain: NewChain { chain: start.chain, at: start.at, writer: start.writer },
        })
        .collect()
}

fn extend_all(directory: &Path, store: &Memory) -> Vec<SegmentChange> {
    let chains = stored_chains(store);
    chains.iter().map(|chain| extend_segment(directory, chain).unwrap()).collect()
}

#[tokio::test]
async fn chains_go_on_behind_their_last_stored_record_when_the_store_is_of_a_later_moment() {
    let (place, store) = (Place::new(), Memory::new());
    let (open, _) = place.open();
    let (closing, _) = place.open();
    open.append_entry(decision(1)).unwrap();
    closing.append_entry(decision(4)).unwrap();
    let backup = place.snapshot();
    // What follows is in the store, and not in the files of the backup.
    open.append_entry(outcome(1)).unwrap();
    open.append_entry(decision(2)).unwrap();
    closing.append_entry(outcome(4)).unwrap();
    let (begun_later, _) = place.open();
    begun_later.append_entry(decision(3)).unwrap();
    while_shipping(&open, &store, open.wait_flushed()).await.unwrap();
    while_shipping(&begun_later, &store, begun_later.wait_flushed()).await.unwrap();
    end(&closing, &store).await.unwrap();

    let changes = extend_all(&backup, &store);
    assert_eq!(changes, [2, 1, 1].map(SegmentChange::Extended));
    assert_eq!(extend_all(&backup, &store), [SegmentChange::Unchanged; 3], "once is enough");

    let (writer, recovered) = place.open_in(&backup);
    assert_eq!(recovered.len(), 3);
    end(&writer, &store).await.unwrap();
    let outcomes = [1, 2, 3, 4].map(|call| store.outcomes(call));
    let (known, unknown) = ([Outcome::Success], [Outcome::Unknown]);
    assert_eq!(outcomes, [known, unknown, unknown, known]);
    let chains = store.verify();
    let ends: Vec<_> = chains.iter().map(|chain| (chain.records, chain.closed)).collect();
    assert_eq!(ends, [(4, true), (2, true), (2, true)]);
}

#[tokio::test]
async fn a_file_that_is_further_than_the_store_stays_as_it_is() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(denial(1)).unwrap();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    writer.append_entry(denial(2)).unwrap();
    let backup = place.snapshot();
    let before = fs::read(&files(&backup)[0]).unwrap();
    assert_eq!(extend_all(&backup, &store), [SegmentChange::Unchanged]);
    assert_eq!(fs::read(&files(&backup)[0]).unwrap(), before);
    drop(writer);
    let (writer, _) = place.open_in(&backup);
    end(&writer, &store).await.unwrap();
    assert_eq!(store.verify()[0].records, 2);
}

#[tokio::test]
async fn a_store_that_was_changed_does_not_change_a_file() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    for call in 1..=2 {
        writer.append_entry(denial(call)).unwrap();
    }
    let backup = place.snapshot();
    writer.append_entry(denial(3)).unwrap();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    let good = stored_chains(&store).remove(0);

    let mut changed = good.clone();
    changed.records[2].entry.arguments_size += 1;
    let refused = extend_segment(&backup, &changed).unwrap_err();
    assert!(matches!(refused, ReconcileError::BrokenChain { seq: 2 }), "{refused}");

    // Whole in itself, but not what the file has.
    let (other, others) = (Place::new(), Memory::new());
    let (rewriter, _) = other.open();
    for call in 7..=9 {
        rewriter.append_entry(denial(call)).unwrap();
    }
    while_shipping(&rewriter, &others, rewriter.wait_flushed()).await.unwrap();
    let rewritten = stored_chains(&others).remove(0);
    assert_eq!(rewritten.chain.chain, good.chain.chain, "ids are counted");
    let refused = extend_segment(&backup, &rewritten).unwrap_err();
    assert!(matches!(refused, ReconcileError::Conflict { seq: 2 }), "{refused}");
    assert_eq!(extend_segment(&backup, &good).unwrap(), SegmentChange::Extended(1));

    let chain = good.chain.chain;
    assert!(remove_segment(&backup, chain).unwrap() && !has_segment(&backup, chain).unwrap());
    assert!(!remove_segment(&backup, chain).unwrap());
}
