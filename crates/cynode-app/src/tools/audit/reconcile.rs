//! Audit files of a restored installation whose database is of a later moment than they are.

use std::path::Path;

use cynode_audit::{NewChain, SegmentChange, StoredChain};
use cynode_db::{
    Conn, DbError,
    tools::audit::{self, AuditChainRow},
};

use super::{RECORD_PAGE_SIZE, privileged::PRIVILEGED_WRITER, rows};
use crate::{App, Error, platform::operation};

/// What was done to bring the audit files up to the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentReconciliation {
    /// Number of records that were added to files.
    pub records: u64,
    /// Number of starts of chains that were taken back: their records were not stored yet.
    pub starts: u64,
    /// Number of files that are damaged, and stay as they are.
    pub damaged: u64,
}

/// Brings the audit files of a restored installation up to its database, before any server uses them. The next server would otherwise close a
/// chain at the end of its file, although the database goes on: the chain would not verify any more.
#[tracing::instrument(name = "app.audit.reconcile_segments", skip_all)]
#[operation]
pub async fn reconcile_segments(
    app: &App,
    directory: &Path,
) -> Result<SegmentReconciliation, Error> {
    let mut tx = app.begin().await?;
    audit::lock_chains(&mut tx).await?;
    let mut done = SegmentReconciliation::default();
    let mut is_last = true;
    // From the last: only a start without a successor can be taken back.
    for row in audit::list_chains(&mut tx).await?.iter().rev() {
        // Privileged events are in no file.
        if row.writer == PRIVILEGED_WRITER {
            is_last = false;
            continue;
        }
        let file_error = |error: std::io::Error| Error::Internal(error.into());
        if row.pruned.is_some() {
            cynode_audit::remove_segment(directory, row.chain).map_err(file_error)?;
            is_last = false;
            continue;
        }
        let has_file = cynode_audit::has_segment(directory, row.chain).map_err(file_error)?;
        let heads = audit::list_audit_checkpoints(&mut tx, row.chain).await?;
        let closed = heads.iter().any(|head| head.closed);
        if closed && !has_file {
            is_last = false;
            continue;
        }
        let stored = load_chain(&mut tx, row, closed).await?;
        if stored.records.is_empty() {
            if is_last && !has_file && audit::delete_last_chain(&mut tx, row.chain).await? {
                done.starts += 1;
                continue;
            }
        } else {
            let extended = cynode_audit::extend_segment(directory, &stored)
                .map_err(|error| Error::Internal(error.into()))?;
            match extended {
                SegmentChange::Unchanged => {}
                SegmentChange::Extended(records) => done.records += records,
                SegmentChange::Damaged => done.damaged += 1,
            }
        }
        is_last = false;
    }
    tx.commit().await.map_err(DbError::from)?;
    Ok(done)
}

async fn load_chain(
    conn: &mut Conn,
    row: &AuditChainRow,
    closed: bool,
) -> Result<StoredChain, Error> {
    let chain = NewChain { chain: row.chain, at: row.started_at, writer: row.writer.clone() };
    let mut records = Vec::new();
    let mut from = 0;
    loop {
        let page = audit::list_chain_records(conn, row.chain, from, RECORD_PAGE_SIZE).await?;
        let Some(last) = page.last().map(|row| row.seq) else {
            return Ok(StoredChain { chain, records, closed });
        };
        for row in page {
            let seq = row.seq;
            records.push(rows::to_record(row).ok_or_else(|| {
                Error::Internal(anyhow::anyhow!("audit record {seq} cannot be read"))
            })?);
        }
        from = last + 1;
    }
}
