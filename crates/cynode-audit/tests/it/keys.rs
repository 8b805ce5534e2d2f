use cynode_audit::{
    AuditCheckpoint, AuditRecord, BadLink, BadPublicKeys, BadSignature, ChainRegistryHead,
    KeyIntroduction, LinkCheck, MAX_UNPROVEN_AGE, MalformedBundle, MerkleTree, NamedSigningKey,
    NewChain, PublicAuditKey, PublicKeyring, RecordInclusionProof, VerifiedBundle, genesis_hash,
    verify_bundle,
};
use ed25519_dalek::SigningKey;
use time::{Duration, OffsetDateTime, macros::datetime};
use uuid::Uuid;

use crate::support::decision;

const AT: OffsetDateTime = datetime!(2026-11-18 12:00 UTC);

fn named(seed: u8) -> NamedSigningKey {
    NamedSigningKey { id: Uuid::from_u128(seed.into()), key: SigningKey::from_bytes(&[seed; 32]) }
}

fn public(key: &NamedSigningKey, retired_at: Option<OffsetDateTime>) -> PublicAuditKey {
    PublicAuditKey {
        key_id: key.id,
        public_key: key.key.verifying_key(),
        retired_at,
        introduction: None,
        endorsement: None,
    }
}

fn head(key: &NamedSigningKey, at: OffsetDateTime) -> AuditCheckpoint {
    AuditCheckpoint::sign_named(Uuid::from_u128(9), &MerkleTree::new(), [0; 32], at, false, key)
}

#[test]
fn a_head_is_verified_with_the_key_that_it_names_and_no_other() {
    let (first, second) = (named(1), named(2));
    let keys = PublicKeyring::new(vec![public(&first, None), public(&second, None)]);
    assert_eq!(keys.verify_checkpoint(&head(&first, AT)), Ok(&first.key.verifying_key()));
    assert_eq!(keys.verify_checkpoint(&head(&second, AT)), Ok(&second.key.verifying_key()));
    let renamed = AuditCheckpoint { key_id: second.id, ..head(&first, AT) };
    assert_eq!(keys.verify_checkpoint(&renamed), Err(BadSignature));
    let unknown = AuditCheckpoint { key_id: Uuid::from_u128(3), ..head(&first, AT) };
    assert_eq!(keys.verify_checkpoint(&unknown), Err(BadSignature));
    // A head of an earlier version names none.
    let unnamed = AuditCheckpoint { key_id: Uuid::nil(), ..head(&first, AT) };
    assert_eq!(keys.verify_checkpoint(&unnamed), Ok(&first.key.verifying_key()));
}

#[test]
fn a_retired_key_verifies_what_it_signed_before_its_end_and_nothing_later() {
    let key = named(1);
    let keys = PublicKeyring::new(vec![public(&key, Some(AT))]);
    assert!(keys.verify_checkpoint(&head(&key, AT)).is_ok());
    let later = head(&key, AT + Duration::microseconds(1));
    assert_eq!(keys.verify_checkpoint(&later), Err(BadSignature));
}

#[test]
fn chains_that_different_keys_began_follow_each_other() {
    let (first, second) = (named(1), named(2));
    let chain = |number| NewChain {
        chain: Uuid::from_u128(number),
        at: AT,
        writer: "gateway-1".to_owned(),
    };
    let start = chain(1).sign_named_start(ChainRegistryHead::ORIGIN, &first);
    let next = chain(2).sign_named_start(start.registry_head(), &second);
    let both = PublicKeyring::new(vec![public(&first, None), public(&second, None)]);
    let mut links = LinkCheck::new(&both);
    assert_eq!(links.verify_next_start(&start), Ok(()));
    assert_eq!(links.verify_next_start(&next), Ok(()));
    let mut links = LinkCheck::new(PublicKeyring::new(vec![public(&first, None)]));
    assert_eq!(links.verify_next_start(&start), Ok(()));
    assert_eq!(links.verify_next_start(&next), Err(BadLink::BadSignature { number: 2 }));
}

#[test]
fn public_keys_are_read_as_lines_of_hex_or_as_json() {
    let key = named(1);
    let hex: String =
        key.key.verifying_key().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    let lines = PublicKeyring::parse_text(&format!("{hex}\n\n")).unwrap();
    assert_eq!(lines.public_keys(), [PublicAuditKey::unnamed(key.key.verifying_key())]);
    let written = [public(&key, Some(AT))];
    let json = serde_json::to_string(&written).unwrap();
    assert_eq!(PublicKeyring::parse_text(&json).unwrap().public_keys(), written);
    for text in ["", "[]", "hunter2", "[{}]", &hex[2..]] {
        assert_eq!(PublicKeyring::parse_text(text), Err(BadPublicKeys), "{text}");
    }
}

#[test]
fn a_bundle_that_is_not_whole_is_refused_and_a_foreign_head_is_a_problem() {
    let key = named(1);
    let keys = PublicKeyring::new(vec![public(&key, None)]);
    let bundle = r#"{"type":"bundle","version":1,"exported_at":"2026-11-18T12:00:00Z","public_key":"","filter":{}}"#;
    let end = r#"{"type":"end","records":0,"proven":0,"complete":true}"#;
    let checkpoint = |key: &NamedSigningKey| {
        let head = serde_json::to_value(head(key, AT)).unwrap();
        serde_json::json!({ "type": "checkpoint", "checkpoint": head }).to_string()
    };
    let whole = [bundle, &checkpoint(&key), end].join("\n");
    let found = verify_bundle(&whole, &keys).unwrap();
    assert_eq!((found.heads, found.complete, found.problems), (1, true, Vec::new()));
    let foreign = [bundle, &checkpoint(&named(2)), end].join("\n");
    assert_eq!(verify_bundle(&foreign, &keys).unwrap().problems.len(), 1);
    assert_eq!(verify_bundle(bundle, &keys), Err(MalformedBundle::NoEnd));
    assert_eq!(verify_bundle(end, &keys), Err(MalformedBundle::Line(1)));
    let twice = [bundle, end, end].join("\n");
    assert_eq!(verify_bundle(&twice, &keys), Err(MalformedBundle::Line(3)));
}

/// A bundle of three records: two under a head that was signed at `AT`, and one that follows it. Each record was written at its time.
fn bundle_of(key: &NamedSigningKey, times: [OffsetDateTime; 3]) -> Vec<serde_json::Value> {
    let chain = Uuid::from_u128(9);
    let (mut tree, mut records, mut previous) =
        (MerkleTree::new(), Vec::<AuditRecord>::new(), genesis_hash(chain));
    for (seq, at) in (0_u64..).zip(times) {
        let entry = cynode_audit::AuditEntry { at, ..decision(seq.into()) };
        let record = AuditRecord::chain_entry(chain, seq, previous, entry);
        previous = record.hash;
        records.push(record);
    }
    records[..2].iter().for_each(|record| tree.push(record.hash));
    let head = AuditCheckpoint::sign_named(chain, &tree, records[1].hash, AT, false, key);
    let mut lines = vec![
        serde_json::json!({ "type": "bundle", "version": 1 }),
        serde_json::json!({ "type": "checkpoint", "checkpoint": head }),
    ];
    for record in records {
        let inclusion = RecordInclusionProof::prove_record(chain, &tree, record.seq).ok();
        let record = serde_json::to_value(record).unwrap();
        lines.push(
            serde_json::json!({ "type": "record", "record": record, "inclusion": inclusion }),
        );
    }
    lines.push(serde_json::json!({ "type": "end", "records": 3, "proven": 2, "complete": true }));
    lines
}

fn verified(lines: &[serde_json::Value], key: &NamedSigningKey) -> VerifiedBundle {
    let text: Vec<_> = lines.iter().map(ToString::to_string).collect();
    let keys = PublicKeyring::new(vec![public(key, None)]);
    verify_bundle(&text.join("\n"), &keys).unwrap()
}

#[test]
fn a_record_without_a_proof_counts_as_unproven_unless_it_is_younger_than_the_heads() {
    let key = named(1);
    let counts = |found: &VerifiedBundle| (found.proven, found.recent, found.unproven());
    let second = Duration::seconds(1);
    let lines = bundle_of(&key, [AT - second, AT, AT + second]);
    let found = verified(&lines, &key);
    assert_eq!((counts(&found), found.problems), ((2, 1, 0), Vec::new()));
    // The record behind the head is as old as a head must be.
    let old = bundle_of(&key, [AT - second, AT, AT - MAX_UNPROVEN_AGE]);
    assert_eq!(counts(&verified(&old, &key)), (2, 0, 1));

    // A record is changed, its hash computed anew, its proof left out, and the last line says so.
    let mut forged = lines.clone();
    let mut record: AuditRecord = serde_json::from_value(forged[3]["record"].clone()).unwrap();
    record.entry.reason = "another".to_owned();
    let record = AuditRecord::chain_entry(record.chain, record.seq, record.prev, record.entry);
    forged[3] = serde_json::json!({ "type": "record", "record": record });
    forged[5]["proven"] = 1.into();
    let found = verified(&forged, &key);
    assert_eq!((counts(&found), found.problems), ((1, 1, 1), Vec::new()));

    // Without any head, no record is young.
    let mut headless = lines;
    headless.remove(1);
    for line in &mut headless[1..4] {
        line["inclusion"] = serde_json::Value::Null;
    }
    headless[4]["proven"] = 0.into();
    let found = verified(&headless, &key);
    assert_eq!((counts(&found), found.problems), ((0, 0, 3), Vec::new()));
}

#[test]
fn an_introduction_is_of_one_key_by_one_key() {
    let (old, new) = (named(1), named(2));
    let (old_public, new_public) = (old.key.verifying_key(), new.key.verifying_key());
    let introduction = KeyIntroduction::sign_successor(&old, new.id, &new_public);
    assert_eq!(introduction.verify_successor(&old_public, new.id, &new_public), Ok(()));
    for (signer, id, key) in [
        (&new_public, new.id, &new_public),
        (&old_public, old.id, &new_public),
        (&old_public, new.id, &old_public),
    ] {
        assert_eq!(introduction.verify_successor(signer, id, key), Err(BadSignature));
    }
}
