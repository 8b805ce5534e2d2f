use cynode_audit::{
    AuditCheckpoint, AuditRecord, BadProof, ChainConsistencyProof, MerkleTree, RecordInclusionProof,
};
use ed25519_dalek::SigningKey;
use sha2::{Digest as _, Sha256};
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

/// The hash of RFC 6962 §2.1 over leaves, by its definition.
fn tree_hash(leaves: &[[u8; 32]]) -> [u8; 32] {
    match leaves {
        [leaf] => Sha256::new().chain_update([0_u8]).chain_update(leaf).finalize().into(),
        _ => {
            let (left, right) = leaves.split_at(largest_power_below(leaves.len()));
            Sha256::new()
                .chain_update([1_u8])
                .chain_update(tree_hash(left))
                .chain_update(tree_hash(right))
                .finalize()
                .into()
        }
    }
}

/// The largest power of two smaller than `count`.
fn largest_power_below(count: usize) -> usize {
    count.next_power_of_two() / 2
}

/// `PATH(m, D[n])` of RFC 6962 §2.1.1.
fn inclusion_path(place: usize, leaves: &[[u8; 32]]) -> Vec<[u8; 32]> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let middle = largest_power_below(leaves.len());
    let (left, right) = leaves.split_at(middle);
    let (mut path, sibling) = if place < middle {
        (inclusion_path(place, left), tree_hash(right))
    } else {
        (inclusion_path(place - middle, right), tree_hash(left))
    };
    path.push(sibling);
    path
}

/// `SUBPROOF(m, D[n], b)` of RFC 6962 §2.1.2.
fn subproof(size: usize, leaves: &[[u8; 32]], whole: bool) -> Vec<[u8; 32]> {
    if size == leaves.len() {
        return if whole { Vec::new() } else { vec![tree_hash(leaves)] };
    }
    let middle = largest_power_below(leaves.len());
    let (left, right) = leaves.split_at(middle);
    let (mut path, sibling) = if size <= middle {
        (subproof(size, left, whole), tree_hash(right))
    } else {
        (subproof(size - middle, right, false), tree_hash(left))
    };
    path.push(sibling);
    path
}

#[test]
fn roots_and_proofs_are_those_of_rfc_6962() {
    let leaves: Vec<[u8; 32]> = (0..33).map(|number| [number; 32]).collect();
    let chain = uuid::Uuid::from_u128(1);
    for size in 1..=leaves.len() {
        let leaves = &leaves[..size];
        let tree: MerkleTree = leaves.iter().copied().collect();
        assert_eq!(tree.merkle_root(), tree_hash(leaves), "{size}");
        for part in 0..size {
            let inclusion = RecordInclusionProof::prove_record(chain, &tree, part as u64).unwrap();
            assert_eq!(inclusion.path, inclusion_path(part, leaves), "{part} of {size}");
            let earlier = part + 1;
            let consistency =
                ChainConsistencyProof::prove_append_only(chain, &tree, earlier as u64).unwrap();
            assert_eq!(consistency.path, subproof(earlier, leaves, true), "{earlier} of {size}");
        }
    }
}
