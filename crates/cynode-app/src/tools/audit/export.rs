//! Export of audit records with their proofs, for a reader without access to the installation.

use std::collections::{BTreeMap, HashMap};

use cynode_audit::{MerkleTree, RecordInclusionProof};
use cynode_db::{
    DbError,
    tools::audit::{self, AuditRow},
};
use cynode_wire::tools::audit::AuditBundleLine;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::{
    AuditSearchRequest, PublicKeyring, find_rows,
    heads::{active_key, list_public_keys, to_checkpoint_view},
    load_tree, rows,
};
use crate::{Ctx, Error, platform::operation};

/// Version of the form of a bundle.
const BUNDLE_VERSION: u32 = 1;

/// Exports the records that are searched for, newest first up to the limit, with the signed heads and proofs that cover them: one
/// JSON object per line. The limit bounds the whole answer, so it either comes whole or not at all.
#[tracing::instrument(name = "app.audit.export_records", skip_all)]
#[operation]
pub async fn export_records(
    ctx: &mut Ctx,
    keys: &PublicKeyring,
    wanted: AuditSearchRequest,
) -> Result<String, Error> {
    let (found, more) = find_rows(ctx, &wanted).await?;
    let mut bundle = BundleText::default();
    bundle.append_line(&AuditBundleLine::Bundle {
        version: BUNDLE_VERSION,
        exported_at: ctx.now,
        public_key: active_key(keys),
        public_keys: list_public_keys(keys),
        filter: describe_filter(&wanted)?,
    })?;
    let mut by_chain: BTreeMap<Uuid, Vec<AuditRow>> = BTreeMap::new();
    for row in found {
        by_chain.entry(row.chain_id).or_default().push(row);
    }
    let ids: Vec<_> = by_chain.keys().copied().collect();
    let newest = audit::list_newest_checkpoints(ctx.conn(), &ids).await?;
    let newest: HashMap<_, _> = newest.iter().map(|row| (row.chain, row)).collect();
    for (chain, mut found) in by_chain {
        found.sort_by_key(|row| row.seq);
        let mut tree = MerkleTree::new();
        if let Some(row) = newest.get(&chain) {
            let head = rows::to_checkpoint(row);
            tree = load_tree(ctx.conn(), chain, head.size).await?;
            // Without all of its records nothing can be proven by the head.
            if tree.leaf_count() < head.size {
                tree = MerkleTree::new();
            }
            let checkpoint = to_checkpoint_view(&head);
            bundle.append_line(&AuditBundleLine::Checkpoint { checkpoint })?;
        }
        for row in found {
            bundle.append_record(row, &tree)?;
        }
    }
    let BundleText { records, proven, .. } = bundle;
    bundle.append_line(&AuditBundleLine::End { records, proven, complete: !more })?;
    Ok(bundle.text)
}

/// The lines of a bundle.
#[derive(Default)]
struct BundleText {
    text: String,
    records: u64,
    proven: u64,
}

impl BundleText {
    fn append_line(&mut self, line: &AuditBundleLine) -> Result<(), Error> {
        self.text.push_str(&serde_json::to_string(line).map_err(to_internal)?);
        self.text.push('\n');
        Ok(())
    }

    fn append_record(&mut self, row: AuditRow, tree: &MerkleTree) -> Result<(), Error> {
        let unreadable = || DbError::Corrupt { table: "audit_records", column: "hash" };
        let record = rows::to_record(row).ok_or_else(unreadable)?;
        let proof = RecordInclusionProof::prove_record(record.chain, tree, record.seq).ok();
        self.records += 1;
        self.proven += u64::from(proof.is_some());
        let inclusion = proof.map(serde_json::to_value).transpose().map_err(to_internal)?;
        let record = serde_json::to_value(record).map_err(to_internal)?;
        self.append_line(&AuditBundleLine::Record { record, inclusion })
    }
}

fn to_internal(error: serde_json::Error) -> Error {
    Error::Internal(error.into())
}

/// Writes down what was searched for.
fn describe_filter(wanted: &AuditSearchRequest) -> Result<Value, Error> {
    let written = |moment: Option<OffsetDateTime>| {
        let written = moment.map(|moment| moment.format(&Rfc3339)).transpose();
        written.map_err(|error| Error::Internal(error.into()))
    };
    Ok(json!({
        "project_id": wanted.project,
        "task_id": wanted.task,
        "call_id": wanted.call,
        "tool": wanted.tool,
        "decision": wanted.decision,
        "since": written(wanted.since)?,
        "until": written(wanted.until)?,
        "limit": wanted.limit,
    }))
}
