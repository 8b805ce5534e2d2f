//! What nodes tell of their jobs: events, questions to people, bytes, results.

use std::time::Instant;

use bytes::Bytes;
use cynode_core::{
    ids::{ArtifactId, CallId, JobId, NodeId},
    workflow::units::JobState,
};
use cynode_db::{
    DbError, agent_tokens, approvals as answers, artifacts, jobs,
    nodes::{self, Held},
};
use cynode_wire::{
    jobs::{JobOutcome, JobStanding},
    nodes::{
        AskPermission, EventsStored, JobEvent, JobEvents, NodeResult, Permission, StoredBlob,
        WorkResult,
    },
    work::{CommitRule, Work},
};
use futures::{Stream, StreamExt};
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::{Known, LOOK_EVERY};
use crate::{
    App, Ctx, Error, Request,
    approvals::{self, Asked, Standing},
    artifacts::{bytes32, path as stored_at},
    evidence, inference,
    repositories::DiffStat,
    workflow::patience,
};

/// Most events in one message, and most bytes of one.
const MOST_EVENTS: usize = 500;
const MOST_EVENT_BYTES: usize = 64 * 1024;

/// What a question of an agent is called among the tools that people approve.
pub(crate) const PERMISSION: &str = "agent.permission";

/// Most bytes that are stored for a job in one piece.
const MOST_BLOB_BYTES: u64 = 256 * 1024 * 1024;

/// Stores events of a job, redacted. What was stored before is left out; a gap is refused.
#[tracing::instrument(name = "app.nodes.tell", skip_all, fields(job.id = %job))]
pub async fn tell(
    app: &App,
    node: Known,
    job: JobId,
    mut body: JobEvents,
) -> Result<EventsStored, Error> {
    if body.events.len() > MOST_EVENTS {
        return Err(Error::Invalid(format!("at most {MOST_EVENTS} events at once")));
    }
    let first =
        i64::try_from(body.first).map_err(|_| Error::Invalid("`first` is out of range".into()))?;
    body.events = redacted(app, body.events).await?;
    let mut tx = app.pool().begin().await.map_err(DbError::from)?;
    let held = held(&mut tx, node, job, body.fencing_token).await?;
    if first > held.events_next {
        return Err(Error::Conflict("events before these are missing"));
    }
    let known = usize::try_from(held.events_next - first).unwrap_or(usize::MAX);
    let new = body.events.get(known..).unwrap_or_default();
    if !new.is_empty() {
        nodes::tell(&mut tx, job, &held, new).await?;
        tx.commit().await.map_err(DbError::from)?;
    }
    let next = held.events_next + i64::try_from(new.len()).unwrap_or(i64::MAX);
    Ok(EventsStored { next: u64::try_from(next).unwrap_or_default() })
}

async fn redacted(app: &App, events: Vec<JobEvent>) -> Result<Vec<JobEvent>, Error> {
    let broken = |error: serde_json::Error| Error::Internal(error.into());
    let mut value = serde_json::to_value(&events).map_err(broken)?;
    for event in value.as_array_mut().into_iter().flatten() {
        let bytes = event.to_string().len();
        if bytes > MOST_EVENT_BYTES {
            *event = json!({ "at_ms": event["at_ms"], "event": "truncated", "data": { "bytes": bytes } });
        }
    }
    inference::redact(app, &mut value).await?;
    storable(&mut value);
    serde_json::from_value(value).map_err(broken)
}

/// PostgreSQL holds no zero character in a text; programs write them all the time.
fn storable(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(items) => items.iter_mut().for_each(storable),
        Value::Object(fields) => {
            if fields.keys().any(|key| key.contains('\0')) {
                let named = std::mem::take(fields).into_iter();
                *fields =
                    named.map(|(key, value)| (key.replace('\0', "\u{fffd}"), value)).collect();
            }
            fields.values_mut().for_each(storable);
        }
        _ => {}
    }
}

async fn held(
    conn: &mut cynode_db::Conn,
    node: Known,
    job: JobId,
    fencing_token: i64,
) -> Result<Held, Error> {
    let held = nodes::held(conn, node.id, job, fencing_token).await?;
    held.ok_or(Error::Fenced("the job is not yours under this token, or it has ended"))
}

/// Events of a job, for whoever may see its project.
#[tracing::instrument(name = "app.nodes.events", skip_all, fields(job.id = %job))]
pub async fn events(
    ctx: &mut Ctx,
    job: JobId,
    from: u64,
    most: u16,
) -> Result<Vec<cynode_db::nodes::Told>, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("job", job);
    let task = jobs::task_of(ctx.conn(), job).await?.ok_or_else(missing)?;
    crate::tasks::get(ctx, task).await.map_err(|_| missing())?;
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    Ok(nodes::events(ctx.conn(), job, from, most.into()).await?)
}

/// Asks people whether an agent may do what it wants to do. Asked again in the same words, the answer is the same.
#[tracing::instrument(name = "app.nodes.ask_permission", skip_all, fields(job.id = %job))]
pub async fn ask_permission(
    app: &App,
    request: &Request,
    node: Known,
    job: JobId,
    body: &AskPermission,
) -> Result<Permission, Error> {
    let mut input = json!({ "title": body.title, "input": body.input });
    inference::redact(app, &mut input).await?;
    storable(&mut input);
    let words = input.to_string();
    if words.len() > MOST_EVENT_BYTES {
        return Err(Error::Invalid("what is asked for is too long to be shown to a person".into()));
    }
    let keys = &app.gate()?.keys;
    let until = Instant::now() + patience(Some(body.wait_ms));
    loop {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        let held = nodes::held(&mut conn, node.id, job, body.fencing_token).await?;
        let held = held.ok_or(Error::Fenced("the job is not yours any more"))?;
        let agent = agent_tokens::of_job(&mut conn, job).await?;
        let asked = Asked {
            agent: agent.ok_or(Error::Fenced("the job has no agent any more"))?,
            project: Some(held.project),
            task: Some(held.task),
            tool: PERMISSION.to_owned(),
            arguments: keys.digest().digest(words.as_bytes()).0,
            policy: keys.tag(&[PERMISSION.as_bytes()]),
            rules: Vec::new(),
        };
        let before = answers::answered(&mut conn, &asked).await?;
        drop(conn);
        if let Some(allowed) = before {
            return Ok(if allowed { Permission::Allowed } else { Permission::Refused });
        }
        let call = CallId::from_uuid(app.environment().uuid(app.environment().now()));
        match approvals::seek(app, request, &asked, &words, call).await? {
            Standing::Spent(_) => return Ok(Permission::Allowed),
            Standing::Refused(_) => return Ok(Permission::Refused),
            // Where too many wait, this one is asked when others were answered.
            Standing::Waiting(_) | Standing::TooMany => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Permission::Waiting);
        }
        // Whoever answers does so in this process or in another: both are seen.
        let mut commits = app.commits();
        let _ = tokio::time::timeout(left.min(LOOK_EVERY), commits.changed()).await;
    }
}

/// Stores bytes of a job under their digest, which must be the one that was named.
#[tracing::instrument(name = "app.nodes.store_blob", skip_all, fields(job.id = %job))]
pub async fn store_blob<E>(
    app: &App,
    node: Known,
    job: JobId,
    fencing_token: i64,
    sha256: &str,
    bytes: impl Stream<Item = Result<Bytes, E>> + Send,
) -> Result<StoredBlob, Error> {
    let digest = bytes32(sha256)
        .ok_or_else(|| Error::Invalid("bytes are named by their SHA-256, in hexadecimal".into()))?;
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    held(&mut conn, node, job, fencing_token).await?;
    drop(conn);
    let parts = app.gate()?;
    let (objects, place) = (&parts.objects, stored_at(&digest));
    let broken = |error: object_store::Error| {
        Error::Internal(anyhow::Error::from(error).context("the object store failed"))
    };
    // They wait under another name until it is known that they are what they are called.
    let waiting =
        Path::from(format!("incoming/{}", app.environment().uuid(app.environment().now())));
    let mut upload = object_store::buffered::BufWriter::new(objects.clone(), waiting.clone());
    let (mut hash, mut size) = (Sha256::new(), 0_u64);
    let mut bytes = std::pin::pin!(bytes);
    let outcome = loop {
        match bytes.next().await {
            None => break Ok(()),
            Some(Err(_)) => break Err(Error::Invalid("the bytes were cut off".into())),
            Some(Ok(piece)) => {
                size += piece.len() as u64;
                if size > MOST_BLOB_BYTES {
                    let why = format!("at most {MOST_BLOB_BYTES} bytes are stored in one piece");
                    break Err(Error::Invalid(why));
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
    if size == 0 {
        objects.put(&place, PutPayload::new()).await.map_err(broken)?;
    } else {
        upload.shutdown().await.map_err(|error| Error::Internal(error.into()))?;
        objects.rename(&waiting, &place).await.map_err(broken)?;
    }
    Ok(StoredBlob { sha256: sha256.to_owned(), bytes: size })
}

/// Stores what came of a job and wakes its run. A commit is looked at before it counts. Reported again, nothing changes;
/// reported late or by somebody else, it is refused.
#[tracing::instrument(name = "app.nodes.result", skip_all, fields(job.id = %job))]
pub async fn result(
    app: &App,
    node: Known,
    job: JobId,
    body: NodeResult,
) -> Result<JobStanding, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let found = nodes::held(&mut conn, node.id, job, body.fencing_token).await?;
    let Some(held) = found else {
        // Known already: nothing changes. Whatever was said then stands.
        let ours = |there: &jobs::Standing| {
            matches!(there.state, JobState::Succeeded | JobState::Failed)
                && there.fencing_token == body.fencing_token
                && there.worker.as_deref() == Some(&node.id.to_string())
        };
        return match jobs::standing(&mut conn, job).await? {
            Some(there) if ours(&there) => Ok(JobStanding { job_id: job, state: there.state }),
            None => Err(Error::not_found("job", job)),
            Some(_) => Err(Error::Fenced("the job is not yours under this token, or it has ended")),
        };
    };
    // Looking at a commit takes its time.
    drop(conn);
    let (outcome, result) = judged(app, &held, job, body.outcome, body.result).await?;
    finish(app, node, job, body.fencing_token, outcome, &result).await
}

/// Fails a job that its node was never told of, because it cannot be done as it was planned.
pub(super) async fn fail(
    app: &App,
    node: Known,
    job: JobId,
    fencing_token: i64,
    why: &str,
) -> Result<(), Error> {
    let result = WorkResult {
        summary: why.to_owned(),
        stop: "impossible".to_owned(),
        ..WorkResult::default()
    };
    let result = serde_json::to_value(result).map_err(|error| Error::Internal(error.into()))?;
    finish(app, node, job, fencing_token, JobOutcome::Failed, &result).await.map(drop)
}

/// What a result is worth: a commit must be there and follow its base, and be there at all when one is required.
async fn judged(
    app: &App,
    held: &Held,
    job: JobId,
    said: JobOutcome,
    mut result: WorkResult,
) -> Result<(JobOutcome, Value), Error> {
    let work: Option<Work> = serde_json::from_value(held.work.clone()).ok();
    let rule = work.map(|work| work.commit).unwrap_or_default();
    if evidence::is_of_checks(&held.work) {
        result = evidence::stripped(result);
    }
    let mut outcome = said;
    let mut refuse = |result: &mut WorkResult, why: String| {
        outcome = JobOutcome::Failed;
        result.summary = format!("{why}. The worker said: {}", result.summary);
        "unverified".clone_into(&mut result.stop);
        result.commit = None;
    };
    let (mut diff, mut looked) = (None, evidence::Looked::default());
    match (result.commit.clone(), rule) {
        (Some(_), CommitRule::Never) => result.commit = None,
        (Some(commit), CommitRule::IfChanged | CommitRule::Required) => {
            match taken(app, held, job, &commit, result.bundle.as_ref()).await? {
                Ok(stat) => {
                    diff = stat;
                    looked = evidence::looked_at(app, held.project, held.task, &commit).await?;
                }
                Err(why) => refuse(&mut result, format!("the commit does not count: {why}")),
            }
        }
        // What an earlier attempt left stands, with all that was to be answered for.
        // And what was put together before is already together.
        (None, CommitRule::Required | CommitRule::IfChanged)
            if said == JobOutcome::Succeeded && (held.again || merges(&held.work)) =>
        {
            result.commit.clone_from(&held.base);
            if let Some(commit) = &held.base {
                looked = evidence::looked_at(app, held.project, held.task, commit).await?;
            }
        }
        (None, CommitRule::Required) if said == JobOutcome::Succeeded => {
            refuse(&mut result, "nothing was changed, though something had to be".to_owned());
        }
        // Who changes nothing leaves what others left: checks run with the same tests as they were, and what was odd still is.
        (None, CommitRule::IfChanged) if said == JobOutcome::Succeeded => {
            if let Some(commit) = &held.base {
                looked = evidence::looked_at(app, held.project, held.task, commit).await?;
            }
        }
        (None, _) => {}
    }
    let mut value = serde_json::to_value(&result).map_err(|e| Error::Internal(e.into()))?;
    inference::redact(app, &mut value).await?;
    storable(&mut value);
    value["base"] = json!(held.base);
    value["diff"] = json!(diff);
    value["odd"] = json!(looked.odd);
    value["put_back"] = json!(looked.put_back);
    if let Some(conflict) = &result.conflict {
        // What it started from was there before anything was put together with it.
        let with: Vec<String> = held.base.iter().chain(&conflict.with).cloned().collect();
        let mut commits = with.clone();
        commits.push(conflict.commit.clone());
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        let units = cynode_db::units::brought(&mut conn, held.task, &commits).await?;
        let named = |commit: &String| units.get(commit).cloned();
        value["conflict"]["unit"] = json!(named(&conflict.commit));
        value["conflict"]["with_units"] =
            with.iter().filter_map(named).map(|key| json!(key)).collect();
    }
    Ok((outcome, value))
}

/// Whether nobody works, and commits are only put together.
fn merges(work: &Value) -> bool {
    work["worker"]["kind"] == "merge"
}

async fn taken(
    app: &App,
    held: &Held,
    job: JobId,
    commit: &str,
    bundle: Option<&StoredBlob>,
) -> Result<Result<Option<DiffStat>, String>, Error> {
    let Some(bundle) = bundle else { return Ok(Err("no bundle came with it".to_owned())) };
    let Some(digest) = bytes32(&bundle.sha256) else {
        return Ok(Err("its bundle has no good name".to_owned()));
    };
    let parts = app.gate()?;
    let stored = match parts.objects.get(&stored_at(&digest)).await {
        Ok(stored) => stored,
        Err(object_store::Error::NotFound { .. }) => {
            return Ok(Err("its bundle was not stored".to_owned()));
        }
        Err(error) => return Err(Error::Internal(error.into())),
    };
    let name = app.environment().uuid(app.environment().now()).to_string();
    let file = parts.repositories.receive(&name, stored.into_stream()).await?;
    // What was put together must all be in what came of it.
    let (base, merge) = (held.base.as_deref(), held.merge.as_slice());
    match parts.repositories.take(held.project, job, file.path(), commit, base, merge).await {
        Ok(stat) => Ok(Ok(stat)),
        Err(crate::repositories::GitError::Refused(why)) => Ok(Err(why)),
        Err(other) => Err(other.into()),
    }
}

/// Stores the result, wakes the run, and ends what the agent could do.
async fn finish(
    app: &App,
    node: Known,
    job: JobId,
    fencing_token: i64,
    outcome: JobOutcome,
    result: &Value,
) -> Result<JobStanding, Error> {
    let (state, worker) = (outcome.state(), node.id.to_string());
    let claim = jobs::Claim { job, worker: &worker, fencing_token };
    let mut tx = app.pool().begin().await.map_err(DbError::from)?;
    let agent = agent_tokens::of_job(&mut tx, job).await?;
    let Some(task) = jobs::report(&mut tx, claim, state, result).await? else {
        // Somebody was quicker: the same report sent twice, or a cancellation.
        let standing = jobs::standing(&mut tx, job).await?;
        return match standing {
            Some(there) if there.state == state && there.worker.as_deref() == Some(&worker) => {
                Ok(JobStanding { job_id: job, state })
            }
            _ => Err(Error::Fenced("the job is not yours under this token, or it has ended")),
        };
    };
    let now = app.environment().now();
    if let Some(agent) = agent {
        note_artifacts(app, &mut tx, node.id, job, task, agent, result).await?;
    }
    agent_tokens::revoke_of_job(&mut tx, job, now).await?;
    let more = evidence::record(app, &mut tx, job, outcome, result).await?;
    tx.commit().await.map_err(DbError::from)?;
    app.committed();
    if more {
        app.queued();
    }
    app.woken(&[task]);
    Ok(JobStanding { job_id: job, state })
}

/// Notes the stored bytes of a result, so that people find them with the task.
async fn note_artifacts(
    app: &App,
    conn: &mut cynode_db::Conn,
    node: NodeId,
    job: JobId,
    task: cynode_core::ids::TaskId,
    agent: cynode_core::ids::AgentTokenId,
    result: &Value,
) -> Result<(), Error> {
    let Some(project) = cynode_db::tasks::get(conn, task).await?.map(|task| task.project) else {
        return Ok(());
    };
    let result: WorkResult = WorkResult {
        bundle: serde_json::from_value(result["bundle"].clone()).ok().flatten(),
        artifacts: serde_json::from_value(result["artifacts"].clone()).unwrap_or_default(),
        ..WorkResult::default()
    };
    let bundle = result.bundle.into_iter().map(|blob| (format!("{job}.bundle"), blob));
    for (name, blob) in bundle.chain(result.artifacts) {
        let Some(digest) = bytes32(&blob.sha256) else { continue };
        // A note without bytes is never seen.
        if app.gate()?.objects.head(&stored_at(&digest)).await.is_err() {
            tracing::warn!(%node, job.id = %job, "a result names bytes that were not stored");
            continue;
        }
        let now = app.environment().now();
        let artifact = artifacts::Artifact {
            id: ArtifactId::from_uuid(app.environment().uuid(now)),
            project,
            task: Some(task),
            job: Some(job),
            name: name.chars().filter(|c| !c.is_control()).take(200).collect(),
            media_type: "application/octet-stream".to_owned(),
            digest,
            size: i64::try_from(blob.bytes).unwrap_or(i64::MAX),
            created_by: agent,
            created_at: now,
        };
        artifacts::insert(conn, &artifact).await?;
    }
    Ok(())
}
