use cynode_audit::{BadProof, Checkpoint, Consistency, Inclusion, Record, Tree};
use ed25519_dalek::SigningKey;
use time::macros::datetime;

use crate::support::{Memory, Place, denial, end, key};

/// The records of one chain.
async fn records(count: u128) -> Vec<Record> {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    for call in 0..count {
        writer.append(denial(call)).unwrap();
    }
    end(&writer, &store).await.unwrap();
    store.records()
}

fn checkpoint(records: &[Record]) -> (Tree, Checkpoint) {
    let tree: Tree = records.iter().map(|record| record.hash).collect();
    let last = records.last().unwrap();
    let at = datetime!(2026-11-15 12:00 UTC);
    let checkpoint = Checkpoint::sign(last.chain, &tree, last.hash, at, false, &key());
    (tree, checkpoint)
}

#[tokio::test]
async fn a_third_party_can_check_that_a_record_is_in_the_log() {
    let records = records(13).await;
    let verifying = key().verifying_key();
    for size in 1..=records.len() {
        let (tree, checkpoint) = checkpoint(&records[..size]);
        for record in &records[..size] {
            let proof = Inclusion::prove(record.chain, &tree, record.seq).unwrap();
            // All it needs comes as JSON.
            let sent = serde_json::to_string(&(&proof, record, &checkpoint)).unwrap();
            let (proof, record, checkpoint): (Inclusion, Record, Checkpoint) =
                serde_json::from_str(&sent).unwrap();
            assert_eq!(proof.verify(&record, &checkpoint, &verifying), Ok(()));
        }
    }
}

#[tokio::test]
async fn a_proof_of_something_else_proves_nothing() {
    let records = records(13).await;
    let verifying = key().verifying_key();
    let (tree, checkpoint) = checkpoint(&records);
    let chain = records[0].chain;
    let good = Inclusion::prove(chain, &tree, 5).unwrap();
    assert_eq!(Inclusion::prove(chain, &tree, 13), Err(BadProof::OutOfRange));

    let mut path = good.clone();
    path.path[1][0] ^= 1;
    let mut short = good.clone();
    short.path.pop();
    for bad in [path, short] {
        assert_eq!(bad.verify(&records[5], &checkpoint, &verifying), Err(BadProof::Path));
    }
    assert_eq!(good.verify(&records[6], &checkpoint, &verifying), Err(BadProof::Other));

    let mut changed = records[5].clone();
    changed.entry.duration_us += 1;
    assert_eq!(good.verify(&changed, &checkpoint, &verifying), Err(BadProof::Record));

    let mut grown = checkpoint.clone();
    grown.root[0] ^= 1;
    assert!(matches!(good.verify(&records[5], &grown, &verifying), Err(BadProof::Signature(_))));
    let other = SigningKey::from_bytes(&[1; 32]).verifying_key();
    assert!(good.verify(&records[5], &checkpoint, &other).is_err());
}

#[tokio::test]
async fn a_log_that_only_grew_can_show_it_and_a_rewritten_one_cannot() {
    let records = records(9).await;
    let verifying = key().verifying_key();
    let chain = records[0].chain;
    let (tree, later) = checkpoint(&records);
    for size in 1..=records.len() {
        let (_, earlier) = checkpoint(&records[..size]);
        let proof = Consistency::prove(chain, &tree, size as u64).unwrap();
        let sent = serde_json::to_string(&proof).unwrap();
        let proof: Consistency = serde_json::from_str(&sent).unwrap();
        assert_eq!(proof.verify(&earlier, &later, &verifying), Ok(()), "{size}");

        let mut rewritten = records[..size].to_vec();
        rewritten[0].hash[0] ^= 1;
        let (_, earlier) = checkpoint(&rewritten);
        assert_eq!(proof.verify(&earlier, &later, &verifying), Err(BadProof::Path), "{size}");
    }
    assert_eq!(Consistency::prove(chain, &tree, 0), Err(BadProof::OutOfRange));
    assert_eq!(Consistency::prove(chain, &tree, 10), Err(BadProof::OutOfRange));
}
