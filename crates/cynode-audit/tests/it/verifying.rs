use cynode_audit::{
    AgentFacts, AuditCheckpoint, AuditEntry, AuditRecord, BadLink, ChainCheck, ChainRegistryHead,
    ChainVerifyError, KeyedDigest, LinkCheck, MerkleTree, NewChain, Outcome, Phase, Verdict,
    VerifiedChain, decode_entry, encode_entry, genesis_hash,
};
use ed25519_dalek::SigningKey;
use proptest::prelude::*;
use time::{Duration, macros::datetime};
use uuid::Uuid;

use crate::support::{Memory, Place, decision, denial, end, key, outcome};

const CHAIN: Uuid = Uuid::from_u128(100);

/// A chain of five records with checkpoints over three and, closing it, all of them.
async fn chain() -> (Vec<AuditRecord>, Vec<AuditCheckpoint>) {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.batch = 3;
    place.options.checkpoint_records = 3;
    let (writer, _) = place.open();
    let full = |entry| AuditEntry {
        arguments: Some(KeyedDigest([7; 32])),
        result: Some(KeyedDigest([8; 32])),
        ..entry
    };
    for entry in [decision(1), outcome(1), denial(2), decision(3), outcome(3)] {
        writer.append_entry(full(entry)).unwrap();
    }
    end(&writer, &store).await.unwrap();
    let checkpoints = store.checkpoints();
    assert_eq!(checkpoints.iter().map(|made| made.size).collect::<Vec<_>>(), [3, 5]);
    (store.records(), checkpoints)
}

fn check(
    records: &[AuditRecord],
    checkpoints: &[AuditCheckpoint],
) -> Result<VerifiedChain, ChainVerifyError> {
    let chain = records.first().map_or(CHAIN, |record| record.chain);
    let mut check = ChainCheck::new(chain, &[key().verifying_key()], checkpoints.to_vec())?;
    records.iter().try_for_each(|record| check.verify_next_record(record))?;
    check.finish_verification()
}

type Change<T> = (&'static str, fn(&mut T));

/// One change to every field of an entry, each to another value that could stand there.
const ENTRY: &[Change<AuditEntry>] = &[
    ("call", |e| e.call = Uuid::from_u128(999)),
    ("at", |e| e.at += Duration::microseconds(1)),
    ("at, too fine to be seen", |e| e.at += Duration::nanoseconds(1)),
    ("phase", |e| {
        e.phase = if e.phase == Phase::Decision { Phase::Outcome } else { Phase::Decision };
    }),
    ("decision", |e| {
        e.decision = if e.decision == Verdict::Allow { Verdict::Deny } else { Verdict::Allow };
    }),
    ("reason", |e| e.reason.push('2')),
    ("rules, one less", |e| drop(e.rules.pop())),
    ("rules, order", |e| e.rules.reverse()),
    ("rules, moved", |e| e.shadow.extend(e.rules.pop())),
    ("shadow", |e| e.shadow.clear()),
    ("outcome", |e| {
        e.outcome = if e.outcome.is_none() { Some(Outcome::Timeout) } else { None };
    }),
    ("agent", |e| e.agent = None),
    ("agent.token", |e| agent(e).token = Uuid::nil()),
    ("agent.kind", |e| agent(e).kind.push('2')),
    ("agent.role", |e| agent(e).role.insert(0, 'x')),
    ("agent.user", |e| agent(e).user = None),
    ("agent.project", |e| agent(e).project = None),
    ("agent.task", |e| agent(e).task = Some(Uuid::nil())),
    ("agent.run", |e| agent(e).run = None),
    ("agent.job", |e| agent(e).job = None),
    ("agent.profile", |e| agent(e).profile = None),
    ("agent.profile, another", |e| agent(e).profile = Some("other".to_owned())),
    ("method", |e| e.method.push('s')),
    ("tool", |e| e.tool = None),
    ("definition", |e| e.definition = Some([9; 32])),
    ("server", |e| e.server = None),
    ("node", |e| e.node = None),
    ("policy", |e| e.policy[31] ^= 1),
    ("catalogue", |e| e.catalogue[0] ^= 1),
    ("trace", |e| e.trace = "0".repeat(32)),
    ("arguments", |e| e.arguments = None),
    ("arguments_size", |e| e.arguments_size += 1),
    ("result", |e| e.result = Some(KeyedDigest([0; 32]))),
    ("result_size", |e| e.result_size += 1),
    ("duration_us", |e| e.duration_us += 1),
];

fn agent(entry: &mut AuditEntry) -> &mut AgentFacts {
    entry.agent.as_mut().unwrap()
}

const RECORD: &[Change<AuditRecord>] = &[
    ("chain", |r| r.chain = Uuid::from_u128(12_345)),
    ("seq, up", |r| r.seq += 1),
    ("prev", |r| r.prev[7] ^= 1),
    ("hash", |r| r.hash[7] ^= 1),
];

const CHECKPOINT: &[Change<AuditCheckpoint>] = &[
    ("chain", |c| c.chain = Uuid::from_u128(12_345)),
    ("size", |c| c.size += 1),
    ("size, down", |c| c.size -= 1),
    ("root", |c| c.root[0] ^= 1),
    ("head", |c| c.head[0] ^= 1),
    ("at", |c| c.at += Duration::microseconds(1)),
    ("at, too fine to be seen", |c| c.at += Duration::nanoseconds(1)),
    ("closed", |c| c.closed = !c.closed),
    ("signature", |c| c.signature[63] ^= 1),
];

#[tokio::test]
async fn a_chain_as_it_was_written_is_in_order() {
    let (records, checkpoints) = chain().await;
    let verified = check(&records, &checkpoints).unwrap();
    assert_eq!((verified.records, verified.covered, verified.closed), (5, 5, true));
    let verified = check(&records, &[]).unwrap();
    assert_eq!((verified.records, verified.covered, verified.closed), (5, 0, false));
}

#[tokio::test]
async fn a_change_to_any_field_of_any_record_is_found() {
    // Even without a checkpoint: the hashes alone tell it.
    let (records, _) = chain().await;
    for place in 0..records.len() {
        for (field, change) in ENTRY {
            let mut changed = records.clone();
            change(&mut changed[place].entry);
            let problem = check(&changed, &[]).unwrap_err();
            let seq = place as u64;
            let found = [ChainVerifyError::WrongHash { seq }, ChainVerifyError::BadEntry { seq }];
            assert!(found.contains(&problem), "{field} of {place}: {problem}");
        }
        for (field, change) in RECORD.iter().filter(|(field, _)| place > 0 || *field != "chain") {
            let mut changed = records.clone();
            change(&mut changed[place]);
            assert!(check(&changed, &[]).is_err(), "{field} of {place}");
        }
    }
}

#[tokio::test]
async fn a_change_to_any_field_of_any_checkpoint_is_found() {
    let (records, checkpoints) = chain().await;
    for place in 0..checkpoints.len() {
        for (field, change) in CHECKPOINT {
            let mut changed = checkpoints.clone();
            change(&mut changed[place]);
            assert!(check(&records, &changed).is_err(), "{field} of {place}");
        }
    }
}

#[tokio::test]
async fn records_missing_doubled_or_out_of_order_are_found() {
    let (records, checkpoints) = chain().await;
    let without = |place: usize| {
        let mut rest = records.clone();
        rest.remove(place);
        check(&rest, &checkpoints)
    };
    assert_eq!(without(2), Err(ChainVerifyError::Gap { expected: 2, found: 3 }));
    assert_eq!(without(4), Err(ChainVerifyError::Missing { size: 5, records: 4 }));
    assert_eq!(check(&records[..0], &[]).unwrap().records, 0);

    let mut doubled = records.clone();
    doubled.insert(2, records[1].clone());
    assert_eq!(check(&doubled, &checkpoints), Err(ChainVerifyError::Duplicate { seq: 1 }));

    let mut swapped = records.clone();
    swapped.swap(1, 2);
    assert_eq!(check(&swapped, &checkpoints), Err(ChainVerifyError::Gap { expected: 1, found: 2 }));
}

#[tokio::test]
async fn a_chain_made_anew_after_a_change_is_found_by_its_checkpoints() {
    let (mut records, checkpoints) = chain().await;
    records[1].entry.duration_us += 1;
    rebuild(&mut records);
    assert_eq!(check(&records, &[]).unwrap().covered, 0, "the hashes alone do not tell");
    assert_eq!(check(&records, &checkpoints), Err(ChainVerifyError::WrongRoot { size: 3 }));

    let tree: MerkleTree = records.iter().map(|record| record.hash).collect();
    let (chain, head) = (records[0].chain, records[4].hash);
    let at = datetime!(2026-11-15 12:00 UTC);
    let other = SigningKey::from_bytes(&[1; 32]);
    let forged = AuditCheckpoint::sign_tree(chain, &tree, head, at, true, &other);
    assert_eq!(check(&records, &[forged]), Err(ChainVerifyError::BadSignature { size: 5 }));
}

#[test]
fn a_checkpoint_over_nothing_covers_nothing() {
    let at = datetime!(2026-11-15 12:00 UTC);
    let empty = AuditCheckpoint::sign_tree(
        CHAIN,
        &MerkleTree::new(),
        genesis_hash(CHAIN),
        at,
        false,
        &key(),
    );
    let verified = check(&[], &[empty]).unwrap();
    assert_eq!((verified.records, verified.covered, verified.closed), (0, 0, false));
}

#[tokio::test]
async fn a_record_after_the_end_is_found() {
    let (mut records, checkpoints) = chain().await;
    let mut more = records[4].clone();
    more.seq = 5;
    records.push(more);
    rebuild(&mut records);
    assert_eq!(check(&records, &checkpoints), Err(ChainVerifyError::AfterClose { seq: 5 }));
}

/// Makes the hashes fit again, as somebody with the whole chain in hand could.
fn rebuild(records: &mut [AuditRecord]) {
    let mut prev = genesis_hash(records[0].chain);
    for record in records {
        record.prev = prev;
        record.hash = hash(record);
        prev = record.hash;
    }
}

/// The hash of a record, written down a second time so that a change of the first is seen.
fn hash(record: &AuditRecord) -> [u8; 32] {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    hash.update(b"cynode/audit/record/v1\0");
    hash.update(record.chain.as_bytes());
    hash.update(record.seq.to_be_bytes());
    hash.update(record.prev);
    hash.update(encode_entry(&record.entry));
    hash.finalize().into()
}

proptest! {
    #[test]
    fn one_flipped_bit_of_an_encoded_record_is_found(
        place in any::<prop::sample::Index>(), bit in 0_u32..8,
    ) {
        let mut record = AuditRecord {
            chain: CHAIN, seq: 0, entry: decision(1), prev: genesis_hash(CHAIN), hash: [0; 32],
        };
        record.hash = hash(&record);
        prop_assert!(check(std::slice::from_ref(&record), &[]).is_ok());
        let mut bytes = encode_entry(&record.entry);
        let place = place.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        if let Ok(entry) = decode_entry(&bytes) {
            let changed = AuditRecord { entry, ..record };
            prop_assert_eq!(check(&[changed], &[]), Err(ChainVerifyError::WrongHash { seq: 0 }));
        }
    }
}

#[test]
fn a_chain_taken_out_of_the_list_is_found() {
    let mut tip = ChainRegistryHead::ORIGIN;
    let mut starts = Vec::new();
    for number in 1..=4 {
        let (chain, at) = (Uuid::from_u128(number), datetime!(2026-11-15 12:00 UTC));
        let start = NewChain { chain, at, writer: "gateway-1".to_owned() }.sign_start(tip, &key());
        tip = start.registry_head();
        starts.push(start);
    }
    let keys = [key().verifying_key()];
    let check = |starts: &[_]| {
        let mut links = LinkCheck::new(&keys);
        starts
            .iter()
            .try_for_each(|start| links.verify_next_start(start))
            .map(|()| links.registry_head())
    };
    assert_eq!(check(&starts), Ok(tip));
    for place in 0..3 {
        let mut rest = starts.clone();
        rest.remove(place);
        assert!(matches!(check(&rest), Err(BadLink::Number { .. })), "{place}");
    }
    assert_ne!(check(&starts[..3]), Ok(tip), "the last one is missed by who kept the tip");

    let changes: &[Change<cynode_audit::ChainStart>] = &[
        ("chain", |s| s.chain = Uuid::nil()),
        ("number", |s| s.number += 1),
        ("previous", |s| s.previous[0] ^= 1),
        ("at", |s| s.at += Duration::microseconds(1)),
        ("at, too fine to be seen", |s| s.at += Duration::nanoseconds(1)),
        ("writer", |s| s.writer.push('2')),
        ("signature", |s| s.signature[0] ^= 1),
    ];
    for place in 0..starts.len() {
        for (field, change) in changes {
            let mut changed = starts.clone();
            change(&mut changed[place]);
            assert!(check(&changed).is_err(), "{field} of {place}");
        }
    }
}
