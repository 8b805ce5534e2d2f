//! Records of tool calls: kept, searched, checked, proven, and removed when their time is over.

mod rows;

use std::{path::Path, sync::Arc};

use cynode_audit::{
    ChainCheck, Checkpoint, Done, Inclusion, LinkCheck, NewChain, Record, Store, StoreError, Tip,
    Tree,
};
use cynode_core::{
    ids::{CallId, ChainId, ProjectId, TaskId},
    roles::Role,
};
use cynode_db::{
    DbError,
    audit::{self, Search},
};
pub use cynode_wire::gate::AuditReport as Report;
use cynode_wire::{
    gate::{AuditPage, AuditProof},
    page::RecordCursor,
};
pub use ed25519_dalek::VerifyingKey;
use ed25519_dalek::{Signer, Verifier};
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

pub use cynode_audit::{
    AgentFacts, Digest, DigestKey, Entry, Options, Outcome, Phase, Recovered, Refused, Verdict,
    Writer,
};

use crate::{App, Ctx, Error, Request, keys::Keys};

/// Records read at once.
const PAGE: i64 = 1000;

/// Opens the writer over its directory, takes over what dead processes left there, and ships in the background until `stop`.
pub fn open(
    app: &App,
    directory: &Path,
    options: Options,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> Result<Arc<Writer>, Error> {
    let (clock, ids) = (app.environment().clone(), app.environment().clone());
    let keys = app.gate()?.keys.clone();
    let (writer, recovered) = Writer::open(
        directory,
        options,
        keys.signing().clone(),
        Arc::new(move || clock.now()),
        Arc::new(move || ids.uuid(ids.now())),
    )
    .map_err(|error| Error::Internal(error.into()))?;
    for chain in recovered {
        let (records, cut_off) = (chain.records, chain.cut_off.len());
        tracing::warn!(
            event = "audit.recovered",
            chain = %chain.chain.map_or_else(String::new, |chain| ChainId::from_uuid(chain).to_string()),
            records, cut_off, condition = ?chain.condition,
            "took over records of a process that died"
        );
    }
    let writer = Arc::new(writer);
    let (shipper, store) = (writer.clone(), Arc::new(Kept { app: app.clone(), keys }));
    tasks.spawn(async move {
        if let Err(left) = shipper.ship(store, stop).await {
            tracing::warn!(event = "audit.unshipped", "{left}");
        }
    });
    Ok(writer)
}

/// The database as a store of records.
#[derive(Clone)]
struct Kept {
    app: App,
    keys: Keys,
}

impl Store for Kept {
    fn register<'a>(&'a self, chain: &'a NewChain) -> Done<'a> {
        let (this, chain) = (self.clone(), chain.clone());
        carried_out(async move { this.begin(&chain).await.map_err(unavailable) })
    }

    fn store<'a>(&'a self, records: &'a [Record]) -> Done<'a> {
        let given: Vec<_> = records.iter().map(rows::to_row).collect();
        let app = self.app.clone();
        carried_out(async move {
            let mut conn = app.pool().acquire().await.map_err(|e| unavailable(e.into()))?;
            let there = audit::store(&mut conn, &given).await.map_err(unavailable)?;
            for (seq, hash) in there {
                if !given.iter().any(|row| row.seq == seq && row.hash == hash) {
                    return Err(StoreError::Conflict(format!("another record is at {seq}")));
                }
            }
            Ok(())
        })
    }

    fn checkpoint<'a>(&'a self, checkpoint: &'a Checkpoint) -> Done<'a> {
        let (app, row) = (self.app.clone(), rows::checkpoint_row(checkpoint));
        carried_out(async move {
            let mut conn = app.pool().acquire().await.map_err(|e| unavailable(e.into()))?;
            audit::checkpoint(&mut conn, &row).await.map_err(unavailable)
        })
    }
}

/// Carries work with the database to its end, also when whoever asked does not wait: dropped in the middle, it could leave
/// its connection inside a transaction that nobody knows of.
fn carried_out(
    work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
) -> Done<'static> {
    let work = TaskTracker::new().spawn(work);
    Box::pin(async move {
        work.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.into())))
    })
}

impl Kept {
    async fn begin(&self, chain: &NewChain) -> Result<(), DbError> {
        let mut tx = self.app.pool().begin().await?;
        audit::lock_chains(&mut tx).await?;
        if audit::chain(&mut tx, chain.chain).await?.is_none() {
            let last = audit::last_chain(&mut tx).await?;
            let tip = last.map_or(Tip::ORIGIN, |row| rows::start(&row).tip());
            let start = chain.sign(tip, self.keys.signing());
            audit::begin(&mut tx, &rows::chain_row(&start)).await?;
        }
        Ok(tx.commit().await?)
    }
}

fn unavailable(error: DbError) -> StoreError {
    StoreError::Unavailable(error.into())
}

/// Checks every record, chain and signature. It reads everything, in order.
#[tracing::instrument(name = "app.audit.verify", skip_all)]
pub async fn verify(app: &App, key: &VerifyingKey) -> Result<Report, Error> {
    // All as it was at one moment: what is removed after its time meanwhile is not missing.
    let mut conn = app.pool().begin().await.map_err(DbError::from)?;
    audit::at_one_moment(&mut conn).await?;
    let chains = audit::chains(&mut conn).await?;
    let mut report = Report {
        chains: chains.len() as u64,
        pruned: 0,
        closed: 0,
        records: 0,
        covered: 0,
        tip: String::new(),
        problems: Vec::new(),
    };
    for chain in audit::strays(&mut conn).await? {
        report.problems.push(format!("{}: nobody began this chain", ChainId::from_uuid(chain)));
    }
    // What a process that has just begun takes over is closed within a minute.
    let settled = app.environment().now() - Duration::minutes(1);
    let mut links = LinkCheck::new(std::slice::from_ref(key));
    for row in &chains {
        let name = ChainId::from_uuid(row.chain);
        if let Err(problem) = links.start(&rows::start(row)) {
            report.problems.push(format!("{name}: {problem}"));
        }
        let checkpoints = audit::checkpoints(&mut conn, row.chain).await?;
        let checkpoints = checkpoints.iter().map(rows::checkpoint).collect::<Vec<_>>();
        if let Some((at, signature)) = row.pruned {
            report.pruned += 1;
            for head in checkpoints.iter().filter(|head| head.verify(key).is_err()) {
                report
                    .problems
                    .push(format!("{name}: the signed head of {} was changed", head.size));
            }
            let left = audit::records(&mut conn, row.chain, 0, 1).await?;
            let signed = ed25519_dalek::Signature::from_bytes(&signature);
            if !left.is_empty() || key.verify(&pruning(row.chain, at), &signed).is_err() {
                report.problems.push(format!("{name}: its records were removed, and not by us"));
            }
            continue;
        }
        match check_chain(&mut conn, row.chain, key, checkpoints).await? {
            Ok(verified) => {
                if verified.records == 0 {
                    // A chain is only begun for a record.
                    report.problems.push(format!("{name}: its records are gone"));
                }
                let followed = chains.iter().any(|later| {
                    later.writer == row.writer
                        && later.number > row.number
                        && later.started_at < settled
                });
                if followed && !verified.closed {
                    let told = "it is not closed, though its writer has begun another: its end may be missing";
                    report.problems.push(format!("{name}: {told}"));
                }
                report.records += verified.records;
                report.covered += verified.covered;
                report.closed += u64::from(verified.closed);
            }
            Err(problem) => report.problems.push(format!("{name}: {problem}")),
        }
    }
    report.tip =
        format!("{}:{}", links.tip().number, data_encoding::HEXLOWER.encode(&links.tip().link));
    Ok(report)
}

/// The same for an admin of the installation; one at a time in a process, since it reads everything.
pub async fn check(app: &App, request: &Request) -> Result<Report, Error> {
    app.read(request, |ctx| Box::pin(async { ctx.require(Role::Admin) })).await?;
    let key = app.gate()?.keys.verifying();
    let _alone = app.shared().checking.try_lock().map_err(|_| {
        Error::Conflict("the records are being checked already: ask again when that is done")
    })?;
    verify(app, &key).await
}

async fn check_chain(
    conn: &mut cynode_db::Conn,
    chain: Uuid,
    key: &VerifyingKey,
    checkpoints: Vec<Checkpoint>,
) -> Result<Result<cynode_audit::Verified, String>, DbError> {
    let mut check = match ChainCheck::new(chain, std::slice::from_ref(key), checkpoints) {
        Ok(check) => check,
        Err(problem) => return Ok(Err(problem.to_string())),
    };
    let mut from = 0;
    loop {
        let page = audit::records(conn, chain, from, PAGE).await?;
        let Some(last) = page.last().map(|row| row.seq) else { break };
        for row in page {
            let seq = row.seq;
            let taken = match rows::to_record(row) {
                Some(record) => check.record(&record).map_err(|problem| problem.to_string()),
                None => Err(format!("record {seq} cannot be read")),
            };
            if let Err(problem) = taken {
                return Ok(Err(problem));
            }
        }
        from = last + 1;
    }
    Ok(check.finish().map_err(|problem| problem.to_string()))
}

/// A proof for somebody who has a signed head and our public key, and nothing else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// The record.
    pub record: Record,
    /// The signed head.
    pub checkpoint: Checkpoint,
    /// The way from one to the other.
    pub inclusion: Inclusion,
    /// Our public key.
    pub public_key: String,
}

/// Proves that the records of a call are among those that a signed head covers.
#[tracing::instrument(name = "app.audit.prove", skip_all)]
pub async fn prove(app: &App, call: CallId, key: &VerifyingKey) -> Result<Vec<Proof>, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let found = of_call(&mut conn, call).await?;
    proofs(&mut conn, found, key).await
}

/// The same for whoever may see the records of the call.
#[tracing::instrument(name = "app.audit.prove_for", skip_all)]
pub async fn prove_for(
    ctx: &mut Ctx,
    call: CallId,
    key: &VerifyingKey,
) -> Result<Vec<AuditProof>, Error> {
    ctx.caller()?;
    let found = of_call(ctx.conn(), call).await?;
    for row in &found {
        let seen = match row.project_id {
            Some(project) => ctx.require_in(ProjectId::from_uuid(project), Role::Viewer).await,
            None => ctx.require(Role::Viewer),
        };
        // A call that the caller may not see does not exist.
        seen.map_err(|_| Error::not_found("call", call))?;
    }
    let proofs = proofs(ctx.conn(), found, key).await?;
    let written = proofs.into_iter().map(written).collect::<Result<_, _>>();
    written.map_err(|error| Error::Internal(error.into()))
}

fn written(proof: Proof) -> Result<AuditProof, serde_json::Error> {
    Ok(AuditProof {
        record: serde_json::to_value(proof.record)?,
        checkpoint: serde_json::to_value(proof.checkpoint)?,
        inclusion: serde_json::to_value(proof.inclusion)?,
        public_key: proof.public_key,
    })
}

/// The records of a call; there must be one.
async fn of_call(conn: &mut cynode_db::Conn, call: CallId) -> Result<Vec<audit::Row>, Error> {
    let search = Search { call: Some(call.as_uuid()), ..Search::default() };
    let found = audit::search(conn, &search, 10).await?;
    if found.is_empty() { Err(Error::not_found("call", call)) } else { Ok(found) }
}

async fn proofs(
    conn: &mut cynode_db::Conn,
    found: Vec<audit::Row>,
    key: &VerifyingKey,
) -> Result<Vec<Proof>, Error> {
    let mut proofs = Vec::new();
    for row in found {
        let unreadable = || DbError::Corrupt { table: "audit_records", column: "hash" };
        let record = rows::to_record(row).ok_or_else(unreadable)?;
        let heads = audit::checkpoints(conn, record.chain).await?;
        let head = heads.iter().map(rows::checkpoint).find(|head| head.size > record.seq);
        let head = head
            .ok_or(Error::Conflict("no signed head covers the call yet: try again in a minute"))?;
        let mut tree = Tree::new();
        let mut from = 0;
        while tree.size() < head.size {
            let page = audit::records(conn, record.chain, from, PAGE).await?;
            let Some(last) = page.last().map(|row| row.seq) else { break };
            for row in page {
                if tree.size() < head.size {
                    tree.push(row.hash.try_into().map_err(|_| unreadable())?);
                }
            }
            from = last + 1;
        }
        let inclusion = Inclusion::prove(record.chain, &tree, record.seq)
            .map_err(|error| Error::Internal(error.into()))?;
        inclusion.verify(&record, &head, key).map_err(|error| Error::Internal(error.into()))?;
        let public_key = data_encoding::HEXLOWER.encode(key.as_bytes());
        proofs.push(Proof { record, checkpoint: head, inclusion, public_key });
    }
    Ok(proofs)
}

/// What is searched for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only of this project; needed by whoever may not see all.
    pub project: Option<ProjectId>,
    /// Only of this task.
    pub task: Option<TaskId>,
    /// Only of this call.
    pub call: Option<CallId>,
    /// Only of this tool.
    pub tool: Option<String>,
    /// Only with this decision.
    pub decision: Option<String>,
    /// Only since then.
    pub since: Option<OffsetDateTime>,
    /// Only before.
    pub until: Option<OffsetDateTime>,
    /// Only what comes behind this record.
    pub cursor: Option<RecordCursor>,
    /// Most records.
    pub limit: u16,
}

/// How far back one look after another goes. Records are found by when they were written, and most people want the newest: a page
/// that is full before ends the search, however many records there are.
const LOOKS: [Option<Duration>; 4] =
    [Some(Duration::HOUR), Some(Duration::DAY), Some(Duration::days(31)), None];

/// The records that were searched for, newest first.
#[tracing::instrument(name = "app.audit.search", skip_all)]
pub async fn search(ctx: &mut Ctx, wanted: Wanted) -> Result<AuditPage, Error> {
    match wanted.project {
        Some(project) => ctx.require_in(project, Role::Viewer).await?,
        None => ctx.require(Role::Viewer)?,
    };
    let newest = wanted.cursor.map(RecordCursor::at).or(wanted.until).unwrap_or(ctx.now);
    // What is found by a task or a call is found at once.
    let looks = if wanted.task.is_some() || wanted.call.is_some() { &LOOKS[3..] } else { &LOOKS };
    let mut search = Search {
        project: wanted.project.map(ProjectId::as_uuid),
        task: wanted.task.map(TaskId::as_uuid),
        call: wanted.call.map(CallId::as_uuid),
        tool: wanted.tool,
        decision: wanted.decision,
        since: wanted.since,
        until: wanted.until,
        behind: wanted.cursor,
    };
    let (most, mut found) = (usize::from(wanted.limit), Vec::new());
    for back in looks {
        search.since = back.and_then(|back| newest.checked_sub(back)).max(wanted.since);
        let rest = i64::from(wanted.limit) + 1 - i64::try_from(found.len()).unwrap_or(i64::MAX);
        found.extend(audit::search(ctx.conn(), &search, rest).await?);
        if found.len() > most || search.since == wanted.since {
            break;
        }
        search.until = search.since;
    }
    let more = found.len() > most;
    found.truncate(most);
    let last = found.last().filter(|_| more);
    let next_cursor = last.map(|row| RecordCursor::new(row.at, row.seq, row.chain_id));
    Ok(AuditPage { items: found.into_iter().map(rows::view).collect(), next_cursor })
}

/// Removes the records of chains that were closed longer ago than they are to be kept. What stays says, signed, that it was us.
#[tracing::instrument(name = "app.audit.prune", skip_all)]
pub async fn prune(app: &App, keep: Duration) -> Result<u64, Error> {
    let keys = &app.gate()?.keys;
    let now = app.environment().now();
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let old = audit::prunable(&mut conn, now - keep, 100).await?;
    drop(conn);
    let mut removed = 0;
    for (chain, records) in old {
        let mut tx = app.pool().begin().await.map_err(DbError::from)?;
        let signature = keys.signing().sign(&pruning(chain, now)).to_bytes();
        audit::prune(&mut tx, chain, now, &signature).await?;
        tx.commit().await.map_err(DbError::from)?;
        removed += records.unsigned_abs();
    }
    Ok(removed)
}

/// What is signed when the records of a chain are removed.
fn pruning(chain: Uuid, at: OffsetDateTime) -> Vec<u8> {
    let micros = i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    [b"cynode/audit/pruned/v1\0".as_slice(), chain.as_bytes(), &micros.to_be_bytes()].concat()
}
