use cynode_audit::{
    AuditCheckpoint, AuditRecord, BadProof, ChainConsistencyProof, MerkleTree, RecordInclusionProof,
};
use ed25519_dalek::SigningKey;
use time::macros::datetime;

use crate::support::{Memory, Place, denial, end, key};

/// The records of one chain.
async fn records(count: u128) -> Vec<AuditRecord> {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    for call in 0..count {
        writer.append_entry(denial(call)).unwrap();
    }
    end(&writer, &store).await.unwrap();
    store.records()
}

fn checkpoint(records: &[AuditRecord]) -> (MerkleTree, AuditCheckpoint) {
    let tree: MerkleTree = records.iter().map(|record| record.hash).collect();
    let last = records.last().unwrap();
    let at = datetime!(2026-11-15 12:00 UTC);
    let checkpoint = AuditCheckpoint::sign_tree(last.chain, &tree, last.hash, at, false, &key());
    (tree, checkpoint)
}

#[tokio::test]
async fn a_third_party_can_check_that_a_record_is_in_the_log() {
    let records = records(13).await;
    let verifying = key().verifying_key();
    for size in 1..=records.len() {
        let (tree, checkpoint) = checkpoint(&records[..size]);
        for record in &records[..size] {
            let proof =
                RecordInclusionProof::prove_record(record.chain, &tree, record.seq).unwrap();
            // All it needs comes as JSON.
            let sent = serde_json::to_string(&(&proof, record, &checkpoint)).unwrap();
            let (proof, record, checkpoint): (RecordInclusionProof, AuditRecord, AuditCheckpoint) =
                serde_json::from_str(&sent).unwrap();
            assert_eq!(proof.verify_record(&record, &checkpoint, &verifying), Ok(()));
        }
    }
}

#[tokio::test]
async fn a_proof_of_something_else_proves_nothing() {
    let records = records(13).await;
    let verifying = key().verifying_key();
    let (tree, checkpoint) = checkpoint(&records);
    let chain = records[0].chain;
    let good = RecordInclusionProof::prove_record(chain, &tree, 5).unwrap();
    assert_eq!(RecordInclusionProof::prove_record(chain, &tree, 13), Err(BadProof::OutOfRange));

    let mut path = good.clone();
    path.path[1][0] ^= 1;
    let mut short = good.clone();
    short.path.pop();
    for bad in [path, short] {
        assert_eq!(bad.verify_record(&records[5], &checkpoint, &verifying), Err(BadProof::Path));
    }
    assert_eq!(good.verify_record(&records[6], &checkpoint, &verifying), Err(BadProof::Other));

    let mut changed = records[5].clone();
    changed.entry.duration_us += 1;
    assert_eq!(good.verify_record(&changed, &checkpoint, &verifying), Err(BadProof::Record));

    let mut grown = checkpoint.clone();
    grown.root[0] ^= 1;
    assert!(matches!(
        good.verify_record(&records[5], &grown, &verifying),
        Err(BadProof::Signature(_))
    ));
    let other = SigningKey::from_bytes(&[1; 32]).verifying_key();
    assert!(good.verify_record(&records[5], &checkpoint, &other).is_err());
}

#[tokio::test]
async fn a_log_that_only_grew_can_show_it_and_a_rewritten_one_cannot() {
    let records = records(9).await;
    let verifying = key().verifying_key();
    let chain = records[0].chain;
    let (tree, later) = checkpoint(&records);
    for size in 1..=records.len() {
        let (_, earlier) = checkpoint(&records[..size]);
        let proof = ChainConsistencyProof::prove_append_only(chain, &tree, size as u64).unwrap();
        let sent = serde_json::to_string(&proof).unwrap();
        let proof: ChainConsistencyProof = serde_json::from_str(&sent).unwrap();
        assert_eq!(proof.verify_append_only(&earlier, &later, &verifying), Ok(()), "{size}");

        let mut rewritten = records[..size].to_vec();
        rewritten[0].hash[0] ^= 1;
        let (_, earlier) = checkpoint(&rewritten);
        assert_eq!(
            proof.verify_append_only(&earlier, &later, &verifying),
            Err(BadProof::Path),
            "{size}"
        );
    }
    assert_eq!(
        ChainConsistencyProof::prove_append_only(chain, &tree, 0),
        Err(BadProof::OutOfRange)
    );
    assert_eq!(
        ChainConsistencyProof::prove_append_only(chain, &tree, 10),
        Err(BadProof::OutOfRange)
    );
}
