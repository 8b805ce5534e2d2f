//! Verification of an exported bundle without the installation: only the file and the public keys are needed.

use std::collections::HashMap;

use serde::Deserialize;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    AuditCheckpoint, AuditRecord, BadProof, MalformedBundle, PublicKeyring, RecordInclusionProof,
};

/// Version of the form of a bundle that this version reads.
const BUNDLE_VERSION: u32 = 1;

/// Age from which on a record must be under a signed head. Writers sign one every minute.
pub const MAX_UNPROVEN_AGE: Duration = Duration::minutes(5);

/// A line of a bundle.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum BundleLine {
    Bundle {
        version: u32,
    },
    Checkpoint {
        checkpoint: Box<AuditCheckpoint>,
    },
    Record {
        record: Box<AuditRecord>,
        #[serde(default)]
        inclusion: Option<RecordInclusionProof>,
    },
    End {
        records: u64,
        proven: u64,
        complete: bool,
    },
}

/// Result of the verification of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedBundle {
    /// Number of records.
    pub records: u64,
    /// Number of records that a signed head covers. Only their hash protects the others: whoever changes one can compute it anew.
    pub proven: u64,
    /// Number of records without a proof that are too young for one: they follow the signed head of their chain, and are at most
    /// [`MAX_UNPROVEN_AGE`] older than the newest signed head.
    pub recent: u64,
    /// Number of signed heads.
    pub heads: u64,
    /// Whether these are all records that were searched for.
    pub complete: bool,
    /// What is wrong, in the order of the lines.
    pub problems: Vec<String>,
}

impl VerifiedBundle {
    /// Returns the number of records that nobody has signed, and that are old enough for it.
    pub const fn unproven(&self) -> u64 {
        self.records.saturating_sub(self.proven).saturating_sub(self.recent)
    }
}

/// A record without a proof.
struct UnprovenRecord {
    chain: Uuid,
    seq: u64,
    at: OffsetDateTime,
}

/// Verifies the lines of a bundle: every signature, every hash and every proof.
pub fn verify_bundle(text: &str, keys: &PublicKeyring) -> Result<VerifiedBundle, MalformedBundle> {
    let mut found = VerifiedBundle::default();
    let mut heads: HashMap<Uuid, AuditCheckpoint> = HashMap::new();
    let (mut end, mut unproven) = (None, Vec::new());
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let wrong = |_| MalformedBundle::Line(number);
        let line: BundleLine = serde_json::from_str(line).map_err(wrong)?;
        match (number, line) {
            (1, BundleLine::Bundle { version: BUNDLE_VERSION }) => {}
            (1, _) | (_, BundleLine::Bundle { .. }) => return Err(MalformedBundle::Line(number)),
            _ if end.is_some() => return Err(MalformedBundle::Line(number)),
            (_, BundleLine::Checkpoint { checkpoint }) => {
                found.heads += 1;
                if keys.verify_checkpoint(&checkpoint).is_ok() {
                    heads.insert(checkpoint.chain, *checkpoint);
                } else {
                    found.problems.push(format!(
                        "line {number}: the head of {} was changed, or another key signed it",
                        checkpoint.size
                    ));
                }
            }
            (_, BundleLine::Record { record, inclusion }) => {
                found.records += 1;
                match verify_record(&record, inclusion.as_ref(), &heads, keys) {
                    Ok(true) => found.proven += 1,
                    Ok(false) => unproven.push(UnprovenRecord {
                        chain: record.chain,
                        seq: record.seq,
                        at: record.entry.at,
                    }),
                    Err(problem) => found.problems.push(format!("line {number}: {problem}")),
                }
            }
            (_, BundleLine::End { records, proven, complete }) => {
                end = Some((records, proven, complete));
            }
        }
    }
    let (records, proven, complete) = end.ok_or(MalformedBundle::NoEnd)?;
    found.complete = complete;
    let recent = unproven.iter().filter(|record| is_recent(record, &heads)).count();
    found.recent = u64::try_from(recent).unwrap_or(u64::MAX);
    if records != found.records || found.problems.is_empty() && proven != found.proven {
        found.problems.push(format!(
            "the last line names {records} records and {proven} proofs, and there are {} and {}",
            found.records, found.proven
        ));
    }
    Ok(found)
}

/// Returns whether a record is too young for a proof. Only signed heads tell the time: without any, no record is young.
fn is_recent(record: &UnprovenRecord, heads: &HashMap<Uuid, AuditCheckpoint>) -> bool {
    let follows = heads.get(&record.chain).is_none_or(|head| record.seq >= head.size);
    let newest = heads.values().map(|head| head.at).max();
    follows && newest.is_some_and(|newest| newest - record.at < MAX_UNPROVEN_AGE)
}

/// Verifies a record. Returns whether a signed head covers it.
fn verify_record(
    record: &AuditRecord,
    inclusion: Option<&RecordInclusionProof>,
    heads: &HashMap<Uuid, AuditCheckpoint>,
    keys: &PublicKeyring,
) -> Result<bool, BadProof> {
    if !record.has_valid_hash() || record.entry.validate_fields().is_err() {
        return Err(BadProof::Record);
    }
    let Some(inclusion) = inclusion else { return Ok(false) };
    let head = heads.get(&record.chain).ok_or(BadProof::Other)?;
    let key = keys.verify_checkpoint(head)?;
    inclusion.verify_record(record, head, key)?;
    Ok(true)
}
