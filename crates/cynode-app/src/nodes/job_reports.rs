//! Reports of nodes about their jobs: events, permission requests, blobs and results.

use std::time::Instant;

use bytes::Bytes;
use cynode_core::{
    environments::PackageFetch,
    ids::{ArtifactId, CallId, JobId, NodeId, ProjectId},
    nodes::{JobEvent, JobEventData, WorkStopReason},
    workflow::{
        environments::SETUP_FAILURE_PREFIX,
        jobs::{CommitRule, JobSpec},
        plan::UnitKey,
        units::JobState,
    },
};
use cynode_db::{
    DbError,
    delivery::environments,
    nodes::{self, RunningNodeJob},
    tools::{agent_tokens, approvals as answers, artifacts},
    workflow::jobs,
};
use cynode_wire::{
    nodes::{
        AskPermission, EventsReceipt, JobEvents, MergeConflict, NodeResult, PermissionAnswer,
        StoredBlob, WorkResult,
    },
    workflow::jobs::{JobOutcome, JobStatusView},
};
use futures::{Stream, StreamExt};
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::{AuthenticatedNode, CLAIM_POLL_INTERVAL};
use crate::{
    App, Ctx, Error, OperationRequest,
    delivery::{
        evidence,
        repositories::{DiffStat, RepositoryError, find_quota_violation},
    },
    platform::{
        disk::{DISK_CHECK_BYTES, ask_node_to_retry},
        operation,
        timeouts::wait_timeout,
    },
    tools::{
        approvals::{self, ApprovalOutcome, ApprovalRequest},
        artifacts::{BlobQuota, decode_hex32, object_path as stored_at},
    },
};

/// Maximum number of events in one message, and maximum size of one event.
const MAX_JOB_EVENTS: usize = 500;
const MAX_EVENT_BYTES: usize = 64 * 1024;

/// Maximum number of characters that the events of a job are searched for.
const MAX_SEARCH_CHARS: usize = 200;

/// Tool name under which permission requests of agents are approved.
pub(crate) const PERMISSION_TOOL: &str = "agent.permission";

/// Maximum size of one stored blob of a job.
const MAX_BLOB_BYTES: u64 = 256 * 1024 * 1024;

/// Stores the redacted events of a job. Stored events are skipped; a gap is rejected.
#[tracing::instrument(name = "app.nodes.store_job_events", skip_all, fields(job.id = %job))]
#[operation]
pub async fn store_job_events(
    app: &App,
    node: AuthenticatedNode,
    job: JobId,
    mut body: JobEvents,
) -> Result<EventsReceipt, Error> {
    if body.events.len() > MAX_JOB_EVENTS {
        return Err(Error::Invalid(format!("at most {MAX_JOB_EVENTS} events at once")));
    }
    let first =
        i64::try_from(body.first).map_err(|_| Error::Invalid("`first` is out of range".into()))?;
    body.events = redact_events(app, body.events).await?;
    let mut tx = app.begin().await?;
    let held = require_claim(&mut tx, node, job, body.fencing_token).await?;
    if first > held.events_next {
        return Err(Error::Conflict("events before these are missing"));
    }
    let known = usize::try_from(held.events_next - first).unwrap_or(usize::MAX);
    let new = body.events.get(known..).unwrap_or_default();
    if !new.is_empty() {
        nodes::append_job_events(&mut tx, job, &held, new).await?;
        store_package_fetches(&mut tx, app.environment().now(), job, &held, new).await?;
        tx.commit().await.map_err(DbError::from)?;
        app.announce_job_log(job);
    }
    let next = held.events_next + i64::try_from(new.len()).unwrap_or(i64::MAX);
    Ok(EventsReceipt { next: u64::try_from(next).unwrap_or_default() })
}

/// Stores the fetches of packages that events report, in the transaction of the events: each is stored once.
async fn store_package_fetches(
    conn: &mut cynode_db::Conn,
    now: time::OffsetDateTime,
    job: JobId,
    held: &RunningNodeJob,
    events: &[JobEvent],
) -> Result<(), Error> {
    let fetches: Vec<PackageFetch> = events
        .iter()
        .filter_map(|event| match &event.data {
            JobEventData::Packages { fetches } => Some(fetches),
            _ => None,
        })
        .flatten()
        .cloned()
        .map(|fetch| {
            let is_digest = decode_hex32(&fetch.sha256).is_some();
            let sha256 = if is_digest { fetch.sha256 } else { String::new() };
            PackageFetch { sha256, ..fetch }
        })
        .collect();
    if fetches.is_empty() {
        return Ok(());
    }
    Ok(environments::insert_package_fetches(conn, held.project, held.task, job, &fetches, now)
        .await?)
}

async fn redact_events(app: &App, events: Vec<JobEvent>) -> Result<Vec<JobEvent>, Error> {
    let broken = |error: serde_json::Error| Error::Internal(error.into());
    let mut value = serde_json::to_value(&events).map_err(broken)?;
    for event in value.as_array_mut().into_iter().flatten() {
        let bytes = event.to_string().len();
        if bytes > MAX_EVENT_BYTES {
            *event = json!({ "at_ms": event["at_ms"], "event": "truncated", "data": { "bytes": bytes } });
        }
    }
    crate::platform::redaction::redact_value(app, &mut value).await?;
    replace_nul_chars(&mut value);
    serde_json::from_value(value).map_err(broken)
}

/// Replaces NUL characters, which PostgreSQL cannot store in text and which programs often write.
fn replace_nul_chars(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(items) => items.iter_mut().for_each(replace_nul_chars),
        Value::Object(fields) => {
            if fields.keys().any(|key| key.contains('\0')) {
                let named = std::mem::take(fields).into_iter();
                *fields =
                    named.map(|(key, value)| (key.replace('\0', "\u{fffd}"), value)).collect();
            }
            fields.values_mut().for_each(replace_nul_chars);
        }
        _ => {}
    }
}

async fn require_claim(
    conn: &mut cynode_db::Conn,
    node: AuthenticatedNode,
    job: JobId,
    fencing_token: i64,
) -> Result<RunningNodeJob, Error> {
    let held = nodes::lock_running_job(conn, node.id, job, fencing_token).await?;
    held.ok_or(Error::Fenced("the job is not yours under this token, or it has ended"))
}

/// Lists the events of a job for a caller who may see its project.
#[tracing::instrument(name = "app.nodes.list_job_events", skip_all, fields(job.id = %job))]
#[operation]
pub async fn list_job_events(
    ctx: &mut Ctx,
    job: JobId,
    from: u64,
    contains: Option<String>,
    most: u16,
) -> Result<Vec<cynode_db::nodes::JobEventRecord>, Error> {
    super::job_log::authorize_job_log(ctx, job).await?;
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    if contains.as_ref().is_some_and(|text| !(1..=MAX_SEARCH_CHARS).contains(&text.chars().count()))
    {
        return Err(Error::Invalid(format!("`contains` has 1 to {MAX_SEARCH_CHARS} characters")));
    }
    Ok(nodes::list_job_events(ctx.conn(), job, from, contains.as_deref(), most.into()).await?)
}

/// Asks people to permit an action of an agent. A repeat with the same text gets the same answer.
#[tracing::instrument(name = "app.nodes.ask_permission", skip_all, fields(job.id = %job))]
#[operation]
pub async fn ask_permission(
    app: &App,
    request: &OperationRequest,
    node: AuthenticatedNode,
    job: JobId,
    body: &AskPermission,
) -> Result<PermissionAnswer, Error> {
    let mut input = json!({ "title": body.title, "input": body.input });
    crate::platform::redaction::redact_value(app, &mut input).await?;
    replace_nul_chars(&mut input);
    let words = input.to_string();
    if words.len() > MAX_EVENT_BYTES {
        return Err(Error::Invalid("what is asked for is too long to be shown to a person".into()));
    }
    let keys = &app.gateway_parts()?.keys;
    let until = Instant::now() + wait_timeout(Some(body.wait_ms));
    loop {
        let mut conn = app.conn().await?;
        let held = nodes::lock_running_job(&mut conn, node.id, job, body.fencing_token).await?;
        let held = held.ok_or(Error::Fenced("the job is not yours any more"))?;
        let agent = agent_tokens::first_token_of_job(&mut conn, job).await?;
        let asked = ApprovalRequest {
            agent: agent.ok_or(Error::Fenced("the job has no agent any more"))?,
            project: Some(held.project),
            task: Some(held.task),
            tool: PERMISSION_TOOL.to_owned(),
            arguments: keys.digest_key().digest_bytes(words.as_bytes()).0,
            policy: keys.compute_tag(&[PERMISSION_TOOL.as_bytes()]),
            rules: Vec::new(),
        };
        let before = answers::find_approval_decision(&mut conn, &asked).await?;
        drop(conn);
        if let Some(allowed) = before {
            return Ok(if allowed { PermissionAnswer::Allowed } else { PermissionAnswer::Refused });
        }
        let call = CallId::from_uuid(app.environment().new_uuid(app.environment().now()));
        match approvals::obtain_approval(app, request, &asked, &words, call).await? {
            ApprovalOutcome::Spent(_) => return Ok(PermissionAnswer::Allowed),
            ApprovalOutcome::Refused(_) => return Ok(PermissionAnswer::Refused),
            // With too many pending requests, this one is asked after others were answered.
            ApprovalOutcome::Waiting(_) | ApprovalOutcome::TooMany => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(PermissionAnswer::Waiting);
        }
        // The answer may come from this process or another: both are noticed.
        let mut commits = app.subscribe_commits();
        let _ = tokio::time::timeout(
            left.min(app.stream_poll_delay(CLAIM_POLL_INTERVAL)),
            commits.changed(),
        )
        .await;
    }
}

/// Stores a blob of a job under its digest. The bytes must match the given digest and fit into the project's quota.
#[tracing::instrument(name = "app.nodes.store_blob", skip_all, fields(job.id = %job))]
pub async fn store_blob<E>(
    app: &App,
    node: AuthenticatedNode,
    job: JobId,
    fencing_token: i64,
    sha256: &str,
    bytes: impl Stream<Item = Result<Bytes, E>> + Send,
) -> Result<StoredBlob, Error> {
    let digest = decode_hex32(sha256)
        .ok_or_else(|| Error::Invalid("bytes are named by their SHA-256, in hexadecimal".into()))?;
    let mut conn = app.conn().await?;
    let project = require_claim(&mut conn, node, job, fencing_token).await?.project;
    let quota = BlobQuota::load_quota(&mut conn, project, &digest).await?;
    drop(conn);
    let parts = app.gateway_parts()?;
    let disk = parts.repositories.disk_probe();
    disk.require_space_for_node(&parts.objects_directory)?;
    let (objects, place) = (&parts.objects, stored_at(&digest));
    let broken = |error: object_store::Error| {
        Error::Internal(anyhow::Error::from(error).context("the object store failed"))
    };
    // The blob has a temporary name until its digest is verified.
    let waiting =
        Path::from(format!("incoming/{}", app.environment().new_uuid(app.environment().now())));
    let mut upload = object_store::buffered::BufWriter::new(objects.clone(), waiting.clone());
    let (mut hash, mut size, mut measured) = (Sha256::new(), 0_u64, 0_u64);
    let mut bytes = std::pin::pin!(bytes);
    let outcome = loop {
        match bytes.next().await {
            None => break Ok(()),
            Some(Err(_)) => break Err(Error::Invalid("the bytes were cut off".into())),
            Some(Ok(piece)) => {
                size += piece.len() as u64;
                if size > MAX_BLOB_BYTES {
                    let why = format!("at most {MAX_BLOB_BYTES} bytes are stored in one piece");
                    break Err(Error::Invalid(why));
                }
                if let Err(refusal) = quota.require_bytes(size) {
                    break Err(refusal);
                }
                if size - measured >= DISK_CHECK_BYTES {
                    if let Err(refusal) = disk.require_space_for_node(&parts.objects_directory) {
                        break Err(refusal);
                    }
                    measured = size;
                }
                hash.update(&piece);
                if let Err(error) = upload.write_all(&piece).await {
                    break Err(Error::Internal(error.into()));
                }
            }
        }
    };
    if let Err(error) = outcome {
        let _ = upload.abort().await;
        return Err(error);
    }
    if <[u8; 32]>::from(hash.finalize()) != digest {
        let _ = upload.abort().await;
        return Err(Error::Invalid("the bytes do not have the digest that was named".into()));
    }
    if let Err(error) = record_blob(app, project, job, &digest, size).await {
        let _ = upload.abort().await;
        return Err(error);
    }
    if size == 0 {
        objects.put(&place, PutPayload::new()).await.map_err(broken)?;
    } else {
        upload.shutdown().await.map_err(|error| Error::Internal(error.into()))?;
        objects.rename(&waiting, &place).await.map_err(broken)?;
    }
    Ok(StoredBlob { sha256: sha256.to_owned(), bytes: size })
}

/// Records a blob of a job before its bytes get their name: what is stored is always counted. The lock serializes
/// concurrent uploads into a project, so that the second counts the bytes of the first.
async fn record_blob(
    app: &App,
    project: ProjectId,
    job: JobId,
    digest: &[u8; 32],
    size: u64,
) -> Result<(), Error> {
    let mut tx = app.begin().await?;
    cynode_db::tasks::projects::lock_project(&mut tx, project).await?;
    BlobQuota::load_quota(&mut tx, project, digest).await?.require_bytes(size)?;
    let (size, now) = (i64::try_from(size).unwrap_or(i64::MAX), app.environment().now());
    artifacts::insert_job_blob(&mut tx, project, job, digest, size, now).await?;
    tx.commit().await.map_err(DbError::from)?;
    Ok(())
}

/// Stores the result of a job and wakes its run. A commit is verified before it counts. A repeat has no effect; a
/// late report or one of another node is rejected.
#[tracing::instrument(name = "app.nodes.store_job_result", skip_all, fields(job.id = %job))]
#[operation]
pub async fn store_job_result(
    app: &App,
    node: AuthenticatedNode,
    job: JobId,
    body: NodeResult,
) -> Result<JobStatusView, Error> {
    let mut conn = app.conn().await?;
    let found = nodes::lock_running_job(&mut conn, node.id, job, body.fencing_token).await?;
    let Some(held) = found else {
        // The result is already stored. The first report stands.
        let ours = |there: &jobs::JobClaimState| {
            matches!(there.state, JobState::Succeeded | JobState::Failed)
                && there.fencing_token == body.fencing_token
                && there.worker.as_deref() == Some(&node.id.to_string())
        };
        return match jobs::get_claim_state(&mut conn, job).await? {
            Some(there) if ours(&there) => Ok(JobStatusView { job_id: job, state: there.state }),
            None => Err(Error::not_found("job", job)),
            Some(_) => Err(Error::Fenced("the job is not yours under this token, or it has ended")),
        };
    };
    // Verifying a commit takes time, so the connection is returned first.
    drop(conn);
    let (outcome, result) = validate_result(app, &held, job, body.outcome, body.result).await?;
    finish_job(app, node, job, body.fencing_token, outcome, &result).await
}

/// Fails a job that cannot be done as planned. Its node was never given the job.
pub(super) async fn fail_job(
    app: &App,
    node: AuthenticatedNode,
    job: JobId,
    fencing_token: i64,
    why: &str,
) -> Result<(), Error> {
    // A person can mend an environment, and is asked as about a set-up that failed.
    let (stop_reason, why) = match why.strip_prefix(SETUP_FAILURE_PREFIX) {
        Some(why) => (WorkStopReason::Environment, why),
        None => (WorkStopReason::Impossible, why),
    };
    let result = WorkResult {
        summary: why.to_owned(),
        stop_reason: Some(stop_reason),
        ..WorkResult::default()
    };
    let result = serde_json::to_value(result).map_err(|error| Error::Internal(error.into()))?;
    finish_job(app, node, job, fencing_token, JobOutcome::Failed, &result).await.map(drop)
}

/// Validates a result. A commit must be present if one is required, and must descend from its base.
async fn validate_result(
    app: &App,
    held: &RunningNodeJob,
    job: JobId,
    said: JobOutcome,
    mut result: WorkResult,
) -> Result<(JobOutcome, Value), Error> {
    if evidence::is_check_job(&held.work) {
        result = evidence::strip_untrusted_fields(result);
    }
    let validated = validate_commit(app, held, job, said, result).await?;
    let value = render_result(app, held, &validated).await?;
    Ok((validated.outcome, value))
}

/// A result whose commit is validated.
struct ValidatedResult {
    outcome: JobOutcome,
    result: WorkResult,
    diff: Option<DiffStat>,
    inspection: evidence::ChangeInspection,
}

impl ValidatedResult {
    /// Fails the job and drops its commit.
    fn refuse(&mut self, why: &str) {
        self.outcome = JobOutcome::Failed;
        self.result.summary = format!("{why}. The worker said: {}", self.result.summary);
        self.result.stop_reason = Some(WorkStopReason::Unverified);
        self.result.commit = None;
    }

    /// Sets the inspection of the change. A change that git refuses to read is refused: a repeat would end the same way.
    fn set_inspection(
        &mut self,
        found: Result<evidence::ChangeInspection, Error>,
    ) -> Result<(), Error> {
        match found {
            Ok(inspection) => self.inspection = inspection,
            Err(Error::Invalid(why)) => self.refuse(&format!("the commit does not count: {why}")),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// What is done about the commit of a result.
#[derive(Debug, PartialEq, Eq)]
enum CommitAction {
    /// The reported commit is imported and inspected.
    Import(String),
    /// The base becomes the commit of the result, and is inspected.
    KeepBase,
    /// The result has no commit, and the base is inspected.
    InspectBase,
    /// The result is refused, because it has no commit.
    RefuseMissing,
    /// The result has no commit, and nothing is inspected.
    NoCommit,
}

/// Chooses what is done about the commit of a result. `base_stands` says that the base may be the result of the job.
fn choose_commit_action(
    commit: Option<String>,
    rule: CommitRule,
    said: JobOutcome,
    base_stands: bool,
) -> CommitAction {
    match (commit, rule, said) {
        (_, CommitRule::Never, _) => CommitAction::NoCommit,
        (Some(commit), CommitRule::IfChanged | CommitRule::Required, _) => {
            CommitAction::Import(commit)
        }
        (None, _, JobOutcome::Failed) => CommitAction::NoCommit,
        (None, _, JobOutcome::Succeeded) if base_stands => CommitAction::KeepBase,
        (None, CommitRule::Required, JobOutcome::Succeeded) => CommitAction::RefuseMissing,
        // A job without changes keeps the state of its base: checks run with the same restored tests, and the
        // anomalies stay.
        (None, CommitRule::IfChanged, JobOutcome::Succeeded) => CommitAction::InspectBase,
    }
}

/// Validates the commit of a result and inspects its change.
async fn validate_commit(
    app: &App,
    held: &RunningNodeJob,
    job: JobId,
    said: JobOutcome,
    result: WorkResult,
) -> Result<ValidatedResult, Error> {
    let work: Option<JobSpec> = serde_json::from_value(held.work.clone()).ok();
    let rule = work.map(|work| work.commit).unwrap_or_default();
    // The commit of an earlier attempt stands, with its anomalies. A merge job without a new commit had nothing left
    // to merge.
    let base_stands = held.again || is_merge_job(&held.work);
    let action = choose_commit_action(result.commit.clone(), rule, said, base_stands);
    let inspection = evidence::ChangeInspection::default();
    let mut validated = ValidatedResult { outcome: said, result, diff: None, inspection };
    match action {
        CommitAction::Import(commit) => {
            let bundle = validated.result.bundle.as_ref();
            match import_commit(app, held, job, &commit, bundle).await? {
                Ok(diff) => {
                    validated.diff = diff;
                    let found =
                        evidence::inspect_change(app, held.project, held.task, &commit).await;
                    validated.set_inspection(found)?;
                }
                Err(why) => validated.refuse(&format!("the commit does not count: {why}")),
            }
        }
        CommitAction::KeepBase => {
            validated.result.commit.clone_from(&held.base);
            validated.set_inspection(inspect_base(app, held).await)?;
        }
        CommitAction::InspectBase => validated.set_inspection(inspect_base(app, held).await)?,
        CommitAction::RefuseMissing => {
            validated.refuse("nothing was changed, though something had to be");
        }
        CommitAction::NoCommit => validated.result.commit = None,
    }
    Ok(validated)
}

/// Inspects the change of the job's base, if it has one.
async fn inspect_base(
    app: &App,
    held: &RunningNodeJob,
) -> Result<evidence::ChangeInspection, Error> {
    match &held.base {
        Some(commit) => evidence::inspect_change(app, held.project, held.task, commit).await,
        None => Ok(evidence::ChangeInspection::default()),
    }
}

/// Renders a result as it is stored: without secrets, and with the facts that the server adds.
async fn render_result(
    app: &App,
    held: &RunningNodeJob,
    validated: &ValidatedResult,
) -> Result<Value, Error> {
    let ValidatedResult { result, diff, inspection, .. } = validated;
    let mut value = serde_json::to_value(result).map_err(|e| Error::Internal(e.into()))?;
    crate::platform::redaction::redact_value(app, &mut value).await?;
    replace_nul_chars(&mut value);
    value["base"] = json!(held.base);
    value["diff"] = json!(diff);
    value["anomalies"] = json!(inspection.anomalies);
    value["restored_tests"] = json!(inspection.restored_tests);
    if let Some(conflict) = &result.conflict {
        let units = find_conflict_units(app, held, conflict).await?;
        value["conflict"]["unit"] = json!(units.unit);
        value["conflict"]["merged_units"] = json!(units.merged_units);
    }
    Ok(value)
}

/// Units whose commits are in a merge conflict.
struct ConflictUnits {
    /// Unit of the commit that could not be merged.
    unit: Option<UnitKey>,
    /// Units of the commits that were merged before.
    merged_units: Vec<UnitKey>,
}

async fn find_conflict_units(
    app: &App,
    held: &RunningNodeJob,
    conflict: &MergeConflict,
) -> Result<ConflictUnits, Error> {
    // The base was there before any merge.
    let merged: Vec<String> = held.base.iter().chain(&conflict.merged_commits).cloned().collect();
    let mut commits = merged.clone();
    commits.push(conflict.commit.clone());
    let mut conn = app.conn().await?;
    let units = cynode_db::workflow::units::units_by_commit(&mut conn, held.task, &commits).await?;
    let unit_of = |commit: &String| units.get(commit).cloned();
    Ok(ConflictUnits {
        unit: unit_of(&conflict.commit),
        merged_units: merged.iter().filter_map(unit_of).collect(),
    })
}

/// Returns whether the job only merges commits, without an agent.
fn is_merge_job(work: &Value) -> bool {
    work["worker"]["kind"] == "merge"
}

async fn import_commit(
    app: &App,
    held: &RunningNodeJob,
    job: JobId,
    commit: &str,
    bundle: Option<&StoredBlob>,
) -> Result<Result<Option<DiffStat>, String>, Error> {
    let Some(bundle) = bundle else { return Ok(Err("no bundle came with it".to_owned())) };
    let Some(digest) = decode_hex32(&bundle.sha256) else {
        return Ok(Err("its bundle has no good name".to_owned()));
    };
    // Whoever knows a digest does not have the bytes: only an upload shows that.
    if artifacts::find_job_blob(&mut *app.conn().await?, job, held.task, &digest).await?.is_none() {
        return Ok(Err("its bundle was not stored".to_owned()));
    }
    let parts = app.gateway_parts()?;
    parts.repositories.require_space_for_node()?;
    let stored = match parts.objects.get(&stored_at(&digest)).await {
        Ok(stored) => stored,
        Err(object_store::Error::NotFound { .. }) => {
            return Ok(Err("its bundle was not stored".to_owned()));
        }
        Err(error) => return Err(Error::Internal(error.into())),
    };
    if let Some(why) = find_quota_violation(app, held.project, stored.meta.size).await? {
        return Ok(Err(why));
    }
    let name = app.environment().new_uuid(app.environment().now()).to_string();
    let received = parts.repositories.receive_bundle(&name, stored.into_stream()).await;
    let file = received.map_err(ask_node_to_retry)?;
    // All commits to be merged must be in the result.
    let (base, merge) = (held.base.as_deref(), held.merge.as_slice());
    match parts
        .repositories
        .import_job_commit(held.project, job, file.path(), commit, base, merge)
        .await
    {
        Ok(stat) => Ok(Ok(stat)),
        // A verdict on the bundle is final: it is part of the result, and the node does not send the bundle again.
        Err(verdict @ (RepositoryError::Refused(_) | RepositoryError::OverLimit(_))) => {
            Ok(Err(verdict.to_string()))
        }
        Err(other) => Err(other.into()),
    }
}

/// Stores the result, wakes the run and revokes the agent's tokens.
async fn finish_job(
    app: &App,
    node: AuthenticatedNode,
    job: JobId,
    fencing_token: i64,
    outcome: JobOutcome,
    result: &Value,
) -> Result<JobStatusView, Error> {
    let (state, worker) = (outcome.job_state(), node.id.to_string());
    let claim = jobs::JobClaim { job, worker: &worker, fencing_token };
    let mut tx = app.begin().await?;
    let agent = agent_tokens::first_token_of_job(&mut tx, job).await?;
    let Some(task) = jobs::record_job_result(&mut tx, claim, state, result).await? else {
        // Another report was faster: a duplicate or a cancellation.
        let standing = jobs::get_claim_state(&mut tx, job).await?;
        return match standing {
            Some(there) if there.state == state && there.worker.as_deref() == Some(&worker) => {
                Ok(JobStatusView { job_id: job, state })
            }
            _ => Err(Error::Fenced("the job is not yours under this token, or it has ended")),
        };
    };
    let now = app.environment().now();
    if let Some(agent) = agent {
        record_artifacts(app, &mut tx, node.id, job, task, agent, result).await?;
    }
    agent_tokens::revoke_job_tokens(&mut tx, job, now).await?;
    let more = evidence::record_check_result(app, &mut tx, job, outcome, result).await?;
    tx.commit().await.map_err(DbError::from)?;
    app.announce_commit();
    app.announce_job_log(job);
    if more {
        app.announce_queued_work();
    }
    app.announce_due_runs(&[task]);
    Ok(JobStatusView { job_id: job, state })
}

/// Records the blobs of a result as artifacts, so that people find them with the task.
async fn record_artifacts(
    app: &App,
    conn: &mut cynode_db::Conn,
    node: NodeId,
    job: JobId,
    task: cynode_core::ids::TaskId,
    agent: cynode_core::ids::AgentTokenId,
    result: &Value,
) -> Result<(), Error> {
    let Some(project) = cynode_db::tasks::get_task(conn, task).await?.map(|task| task.project)
    else {
        return Ok(());
    };
    let result: WorkResult = WorkResult {
        bundle: serde_json::from_value(result["bundle"].clone()).ok().flatten(),
        artifacts: serde_json::from_value(result["artifacts"].clone()).unwrap_or_default(),
        ..WorkResult::default()
    };
    let bundle = result.bundle.into_iter().map(|blob| (format!("{job}.bundle"), blob));
    for (name, blob) in bundle.chain(result.artifacts) {
        let Some(digest) = decode_hex32(&blob.sha256) else { continue };
        // An artifact without bytes must never be visible, nor the bytes of somebody else.
        let known = artifacts::find_job_blob(conn, job, task, &digest).await?;
        let there = app.gateway_parts()?.objects.head(&stored_at(&digest)).await.is_ok();
        let Some(size) = known.filter(|_| there) else {
            tracing::warn!(%node, job.id = %job, "a result names bytes that were not stored");
            continue;
        };
        let now = app.environment().now();
        let artifact = artifacts::Artifact {
            id: ArtifactId::from_uuid(app.environment().new_uuid(now)),
            project,
            task: Some(task),
            job: Some(job),
            name: name.chars().filter(|c| !c.is_control()).take(200).collect(),
            media_type: "application/octet-stream".to_owned(),
            digest,
            size,
            created_by: agent,
            created_at: now,
        };
        artifacts::insert_artifact(conn, &artifact).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_the_outcome_and_the_base_decide_about_the_commit() {
        use CommitRule::{IfChanged, Never, Required};
        use JobOutcome::{Failed, Succeeded};
        let with = |rule, said, base_stands| {
            choose_commit_action(Some("c1".to_owned()), rule, said, base_stands)
        };
        let without = |rule, said, base_stands| choose_commit_action(None, rule, said, base_stands);
        let import = || CommitAction::Import("c1".to_owned());
        for base_stands in [false, true] {
            for said in [Succeeded, Failed] {
                assert_eq!(with(Never, said, base_stands), CommitAction::NoCommit);
                assert_eq!(without(Never, said, base_stands), CommitAction::NoCommit);
                assert_eq!(with(IfChanged, said, base_stands), import());
                assert_eq!(with(Required, said, base_stands), import());
            }
            assert_eq!(without(IfChanged, Failed, base_stands), CommitAction::NoCommit);
            assert_eq!(without(Required, Failed, base_stands), CommitAction::NoCommit);
        }
        assert_eq!(without(IfChanged, Succeeded, true), CommitAction::KeepBase);
        assert_eq!(without(Required, Succeeded, true), CommitAction::KeepBase);
        assert_eq!(without(IfChanged, Succeeded, false), CommitAction::InspectBase);
        assert_eq!(without(Required, Succeeded, false), CommitAction::RefuseMissing);
    }
}
