//! Audit log of tool calls and privileged events: ship, search, verify, prove, export and prune records.

mod export;
mod heads;
mod privileged;
mod rows;
pub mod sinks;
mod stats;
mod verification;

use std::{path::Path, sync::Arc};

use cynode_audit::{AuditSigner, AuditStore, AuditStoreError, MerkleTree, NewChain, StoreFuture};
use cynode_core::{
    ids::{CallId, ChainId, ProjectId, TaskId},
    paging::RecordCursor,
    roles::UserRole,
};
use cynode_db::{
    DbError,
    tools::audit::{self, AuditFilter},
};
pub use cynode_wire::tools::AuditReport as Report;
use cynode_wire::tools::{AuditPage, AuditProof};
use ed25519_dalek::Signer;
pub use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

pub use export::export_records;
pub use heads::{list_audit_heads, prove_append_only};
pub use privileged::{PRIVILEGED_METHOD, chain_privileged_events, run_privileged_chain};
pub(crate) use rows::to_audit_view;
pub use stats::{ToolStatsRequest, count_tool_calls};
pub use verification::{
    VerificationScope, verify_audit_log, verify_audit_log_as_admin, verify_audit_log_within,
};

pub use cynode_audit::{
    AgentFacts, AppendError, AuditCheckpoint, AuditEntry, AuditRecord, AuditWriter,
    AuditWriterOptions, BadPublicKeys, ChainRegistryHead, DigestKey, KeptHeads, KeyedDigest,
    MalformedBundle, Outcome, Phase, PublicAuditKey, PublicKeyring, RecordInclusionProof,
    RecoveryReport, Verdict, VerifiedBundle, verify_bundle,
};

use crate::{
    App, Ctx, Error,
    platform::{keys::InstallationKeys, operation},
};

/// Number of records per read.
const RECORD_PAGE_SIZE: i64 = 1000;

/// Opens the audit writer in its directory, takes over the files of dead processes, and ships records until `stop`.
pub fn open_audit_writer(
    app: &App,
    directory: &Path,
    options: AuditWriterOptions,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> Result<Arc<AuditWriter>, Error> {
    let (clock, ids) = (app.environment().clone(), app.environment().clone());
    let keys = app.gateway_parts()?.keys.clone();
    let signer = keys.clone();
    let (writer, recovered) = AuditWriter::open_in_directory(
        directory,
        options,
        AuditSigner::new(move || signer.signing_key()),
        Arc::new(move || clock.now()),
        Arc::new(move || ids.new_uuid(ids.now())),
    )
    .map_err(|error| Error::Internal(error.into()))?;
    for chain in recovered {
        let (records, cut_off) = (chain.records, chain.cut_off.len());
        tracing::warn!(
            event = "audit.recovered",
            chain = %chain.chain.map_or_else(String::new, |chain| ChainId::from_uuid(chain).to_string()),
            records, cut_off, condition = ?chain.condition,
            "recovered the records of a process that died"
        );
    }
    let writer = Arc::new(writer);
    let (shipper, store) =
        (writer.clone(), Arc::new(DatabaseAuditStore { app: app.clone(), keys }));
    tasks.spawn(async move {
        if let Err(left) = shipper.ship_records(store, stop).await {
            tracing::warn!(event = "audit.ship_failed", "{left}");
        }
    });
    Ok(writer)
}

/// Database as a store of records.
#[derive(Clone)]
struct DatabaseAuditStore {
    app: App,
    keys: InstallationKeys,
}

impl AuditStore for DatabaseAuditStore {
    fn register_chain<'a>(&'a self, chain: &'a NewChain) -> StoreFuture<'a> {
        let (this, chain) = (self.clone(), chain.clone());
        spawn_to_completion(async move { this.begin_chain(&chain).await.map_err(to_store_error) })
    }

    fn store_records<'a>(&'a self, records: &'a [AuditRecord]) -> StoreFuture<'a> {
        let given: Vec<_> = records.iter().map(rows::to_row).collect();
        let app = self.app.clone();
        spawn_to_completion(async move {
            let mut conn = app.conn().await.map_err(to_store_error)?;
            let there =
                audit::insert_audit_records(&mut conn, &given).await.map_err(to_store_error)?;
            for (seq, hash) in there {
                if !given.iter().any(|row| row.seq == seq && row.hash == hash) {
                    return Err(AuditStoreError::Conflict(format!("another record is at {seq}")));
                }
            }
            Ok(())
        })
    }

    fn store_checkpoint<'a>(&'a self, checkpoint: &'a AuditCheckpoint) -> StoreFuture<'a> {
        let (app, row) = (self.app.clone(), rows::checkpoint_row(checkpoint));
        spawn_to_completion(async move {
            let mut conn = app.conn().await.map_err(to_store_error)?;
            audit::insert_audit_checkpoint(&mut conn, &row).await.map_err(to_store_error)
        })
    }
}

/// Runs database work to completion, even when the caller does not wait: dropped midway, it could leave its
/// connection inside an open transaction.
fn spawn_to_completion(
    work: impl Future<Output = Result<(), AuditStoreError>> + Send + 'static,
) -> StoreFuture<'static> {
    let work = TaskTracker::new().spawn(work);
    Box::pin(async move {
        work.await.unwrap_or_else(|error| Err(AuditStoreError::Unavailable(error.into())))
    })
}

impl DatabaseAuditStore {
    async fn begin_chain(&self, chain: &NewChain) -> Result<(), DbError> {
        let mut tx = self.app.begin().await?;
        register_chain(&mut tx, chain, &self.keys).await?;
        Ok(tx.commit().await?)
    }
}

/// Assigns a chain its position among the chains of the installation. Does nothing if it has one.
async fn register_chain(
    conn: &mut cynode_db::Conn,
    chain: &NewChain,
    keys: &InstallationKeys,
) -> Result<(), DbError> {
    audit::lock_chains(conn).await?;
    if audit::get_chain(conn, chain.chain).await?.is_none() {
        let last = audit::last_chain(conn).await?;
        let tip = last
            .map_or(ChainRegistryHead::ORIGIN, |row| rows::to_chain_start(&row).registry_head());
        let start = chain.sign_named_start(tip, &keys.signing_key());
        audit::insert_chain(conn, &rows::chain_row(&start)).await?;
    }
    Ok(())
}

fn to_store_error(error: DbError) -> AuditStoreError {
    AuditStoreError::Unavailable(error.into())
}

/// Proof for a verifier who has only a signed head and our public key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordProof {
    /// Proven record.
    pub record: AuditRecord,
    /// Signed head of the chain.
    pub checkpoint: AuditCheckpoint,
    /// Inclusion proof from the record to the head.
    pub inclusion: RecordInclusionProof,
    /// Public key that verifies the head.
    pub public_key: String,
}

/// Proves that a signed head covers the records of a call.
#[tracing::instrument(name = "app.audit.prove_call", skip_all)]
#[operation]
pub async fn prove_call(
    app: &App,
    call: CallId,
    keys: &PublicKeyring,
) -> Result<Vec<RecordProof>, Error> {
    let mut conn = app.conn().await?;
    let found = records_of_call(&mut conn, call).await?;
    build_record_proofs(&mut conn, found, keys).await
}

/// Proves a call for a caller who may see its records.
#[tracing::instrument(name = "app.audit.prove_call_for_caller", skip_all)]
#[operation]
pub async fn prove_call_for_caller(
    ctx: &mut Ctx,
    call: CallId,
    keys: &PublicKeyring,
) -> Result<Vec<AuditProof>, Error> {
    let found = load_visible_records(ctx, call).await?;
    let proofs = build_record_proofs(ctx.conn(), found, keys).await?;
    let written = proofs.into_iter().map(to_audit_proof).collect::<Result<_, _>>();
    written.map_err(|error| Error::Internal(error.into()))
}

/// Returns the records of a call for a caller who may see them.
pub(crate) async fn load_visible_records(
    ctx: &mut Ctx,
    call: CallId,
) -> Result<Vec<audit::AuditRow>, Error> {
    ctx.caller()?;
    let found = records_of_call(ctx.conn(), call).await?;
    for row in &found {
        let seen = match row.project_id {
            Some(project) => {
                ctx.require_project_role(ProjectId::from_uuid(project), UserRole::Viewer).await
            }
            None => ctx.require_role(UserRole::Viewer),
        };
        // A call that the caller may not see does not exist for the caller.
        seen.map_err(|_| Error::not_found("call", call))?;
    }
    Ok(found)
}

fn to_audit_proof(proof: RecordProof) -> Result<AuditProof, serde_json::Error> {
    Ok(AuditProof {
        record: serde_json::to_value(proof.record)?,
        checkpoint: serde_json::to_value(proof.checkpoint)?,
        inclusion: serde_json::to_value(proof.inclusion)?,
        public_key: proof.public_key,
    })
}

/// Returns the records of a call. There must be at least one.
async fn records_of_call(
    conn: &mut cynode_db::Conn,
    call: CallId,
) -> Result<Vec<audit::AuditRow>, Error> {
    let search = AuditFilter { call: Some(call.as_uuid()), ..AuditFilter::default() };
    let found = audit::search_audit_records(conn, &search, 10).await?;
    if found.is_empty() { Err(Error::not_found("call", call)) } else { Ok(found) }
}

async fn build_record_proofs(
    conn: &mut cynode_db::Conn,
    found: Vec<audit::AuditRow>,
    keys: &PublicKeyring,
) -> Result<Vec<RecordProof>, Error> {
    let mut proofs = Vec::new();
    for row in found {
        let unreadable = || DbError::Corrupt { table: "audit_records", column: "hash" };
        let record = rows::to_record(row).ok_or_else(unreadable)?;
        let heads = audit::list_audit_checkpoints(conn, record.chain).await?;
        let head = heads.iter().map(rows::to_checkpoint).find(|head| head.size > record.seq);
        let head = head
            .ok_or(Error::Conflict("no signed head covers the call yet: try again in a minute"))?;
        let tree = load_tree(conn, record.chain, head.size).await?;
        let inclusion = RecordInclusionProof::prove_record(record.chain, &tree, record.seq)
            .map_err(|error| Error::Internal(error.into()))?;
        let key = keys.verify_checkpoint(&head).map_err(|error| Error::Internal(error.into()))?;
        inclusion
            .verify_record(&record, &head, key)
            .map_err(|error| Error::Internal(error.into()))?;
        let public_key = data_encoding::HEXLOWER.encode(key.as_bytes());
        proofs.push(RecordProof { record, checkpoint: head, inclusion, public_key });
    }
    Ok(proofs)
}

/// Loads the tree over the first `size` records of a chain. It is smaller when records are missing.
async fn load_tree(
    conn: &mut cynode_db::Conn,
    chain: Uuid,
    size: u64,
) -> Result<MerkleTree, DbError> {
    let mut tree = MerkleTree::new();
    while tree.leaf_count() < size {
        let from = i64::try_from(tree.leaf_count()).unwrap_or(i64::MAX);
        let page = audit::list_record_hashes(conn, chain, from, RECORD_PAGE_SIZE).await?;
        if page.is_empty() {
            break;
        }
        for (seq, hash) in page {
            if seq.unsigned_abs() != tree.leaf_count() {
                return Ok(tree);
            }
            if tree.leaf_count() < size {
                tree.push(hash);
            }
        }
    }
    Ok(tree)
}

/// Filter of a search.
#[derive(Clone, Debug, Default)]
pub struct AuditSearchRequest {
    /// Only records of this project. Required of a caller who may not see all.
    pub project: Option<ProjectId>,
    /// Only records of this task.
    pub task: Option<TaskId>,
    /// Only records of this call.
    pub call: Option<CallId>,
    /// Only records of this tool.
    pub tool: Option<String>,
    /// Only records with this decision.
    pub decision: Option<String>,
    /// Only records since this time.
    pub since: Option<OffsetDateTime>,
    /// Only records before this time.
    pub until: Option<OffsetDateTime>,
    /// Only records after this one.
    pub cursor: Option<RecordCursor>,
    /// Maximum number of records.
    pub limit: u16,
}

/// Time windows of a search, one after the other. Records are indexed by time, and most searches want the newest: a
/// full page ends the search early, regardless of the total number.
const SEARCH_WINDOWS: [Option<Duration>; 4] =
    [Some(Duration::HOUR), Some(Duration::DAY), Some(Duration::days(31)), None];

/// Searches records, newest first.
#[tracing::instrument(name = "app.audit.search_records", skip_all)]
#[operation]
pub async fn search_records(ctx: &mut Ctx, wanted: AuditSearchRequest) -> Result<AuditPage, Error> {
    let (found, more) = find_rows(ctx, &wanted).await?;
    let last = found.last().filter(|_| more);
    let next_cursor = last.map(|row| RecordCursor::new(row.recorded_at, row.seq, row.chain_id));
    Ok(AuditPage { items: found.into_iter().map(rows::to_audit_view).collect(), next_cursor })
}

/// Finds the newest rows that the caller may see and searches for. Returns whether there are more.
async fn find_rows(
    ctx: &mut Ctx,
    wanted: &AuditSearchRequest,
) -> Result<(Vec<audit::AuditRow>, bool), Error> {
    match wanted.project {
        Some(project) => ctx.require_project_role(project, UserRole::Viewer).await?,
        None => ctx.require_role(UserRole::Viewer)?,
    };
    let newest = wanted.cursor.map(RecordCursor::recorded_at).or(wanted.until).unwrap_or(ctx.now);
    // Tasks and calls are indexed, so one window is enough.
    let looks = if wanted.task.is_some() || wanted.call.is_some() {
        &SEARCH_WINDOWS[3..]
    } else {
        &SEARCH_WINDOWS
    };
    let mut search = AuditFilter {
        project: wanted.project.map(ProjectId::as_uuid),
        task: wanted.task.map(TaskId::as_uuid),
        call: wanted.call.map(CallId::as_uuid),
        tool: wanted.tool.clone(),
        decision: wanted.decision.clone(),
        since: wanted.since,
        until: wanted.until,
        behind: wanted.cursor,
    };
    let (most, mut found) = (usize::from(wanted.limit), Vec::new());
    for back in looks {
        search.since = back.and_then(|back| newest.checked_sub(back)).max(wanted.since);
        let rest = i64::from(wanted.limit) + 1 - i64::try_from(found.len()).unwrap_or(i64::MAX);
        found.extend(audit::search_audit_records(ctx.conn(), &search, rest).await?);
        if found.len() > most || search.since == wanted.since {
            break;
        }
        search.until = search.since;
    }
    let more = found.len() > most;
    found.truncate(most);
    Ok((found, more))
}

/// Prunes the records of chains that were closed before the retention period. A signature proves that the pruning was
/// ours.
#[tracing::instrument(name = "app.audit.prune_records", skip_all)]
#[operation]
pub async fn prune_records(app: &App, keep: Duration) -> Result<u64, Error> {
    let keys = &app.gateway_parts()?.keys;
    let now = app.environment().now();
    let mut conn = app.conn().await?;
    let old = audit::list_prunable_chains(&mut conn, now - keep, 100).await?;
    drop(conn);
    let mut removed = 0;
    for (chain, records) in old {
        let mut tx = app.begin().await?;
        let key = keys.signing_key();
        let signature = key.key.sign(&pruning_payload(chain, now)).to_bytes();
        audit::prune_chain(&mut tx, chain, now, &signature, key.id).await?;
        tx.commit().await.map_err(DbError::from)?;
        removed += records.unsigned_abs();
    }
    Ok(removed)
}

/// Returns the payload that is signed when a chain is pruned.
fn pruning_payload(chain: Uuid, at: OffsetDateTime) -> Vec<u8> {
    let micros = i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    [b"cynode/audit/pruned/v1\0".as_slice(), chain.as_bytes(), &micros.to_be_bytes()].concat()
}
