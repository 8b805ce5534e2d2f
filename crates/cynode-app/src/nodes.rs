//! Nodes: machines of the user that join, are given jobs, and tell what came of them.
//!
//! **Invariant**: this is the only place where a node is chosen for a job.

pub(crate) mod telling;

use std::time::{Duration as Wait, Instant};

use cynode_core::{
    events::EventKind,
    ids::{JobId, NodeId, UserId},
    placement::{self, Candidate, Needs, Unplaced},
    roles::Role,
    workflow::units::JobState,
};
use cynode_db::{
    DbError, jobs,
    nodes::{self, Claimed, NewNode, Node, Undelivered},
};
use cynode_wire::{
    accounts::SecretText,
    nodes::{
        AskChallenge, AskNodeToken, Assignment, Assignments, ChangeNode, ClaimAssignments,
        Heartbeat, HeartbeatAnswer, IssueJoinToken, IssuedJoinToken, JobInstruction, JoinNode,
        JoinedNode, NodeChallenge, NodeReport, NodeState, NodeToken, NodeView, StopJob,
        signed_bytes,
    },
    work::{CommitRule, RevisionFeedback, SandboxBackend, Work, WorkerChoice},
    workflow::Finding,
};
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signature, VerifyingKey};
use serde_json::json;
use time::Duration;
use uuid::Uuid;

pub use telling::{ask_permission, events, result, store_blob, tell};

use crate::{
    App, Ctx, Error, Request,
    agents::{self, ForJob},
    artifacts,
    context::Told,
    delivery,
    environment::derived,
    error::complain,
    repositories,
    tokens::{self, Presented, TokenKind},
    workflow::patience,
};

/// For how long a challenge may be signed.
const CHALLENGE: Duration = Duration::minutes(1);

/// What our tag under a challenge is for.
const CHALLENGED: &[u8] = b"node-challenge";

/// For how long a node's token works.
const TOKEN_SECONDS: u32 = 900;

/// How long a join token works when nobody says, and at most.
const JOIN_SECONDS: u32 = 3600;
const JOIN_RANGE: std::ops::RangeInclusive<u32> = 60..=86_400;

/// How long a node may be silent before it gets no jobs.
const SILENT_MS: i64 = 20_000;

/// How old it may be what is noted of when a node was heard of: one that waits for work asks several times a second.
const NOTED_MS: i64 = 2000;

/// How long a node's jobs may be silent before they are lost.
const LEASE_MS: i64 = 60_000;

/// Most jobs that are placed in one go.
const PLACED_AT_ONCE: i64 = 200;

/// How long a claim waits for a sign before it looks by itself.
const LOOK_EVERY: Wait = Wait::from_millis(250);

/// A node that showed its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The node.
    pub id: NodeId,
    /// Whether it gets jobs.
    pub state: NodeState,
    /// The token that it showed.
    token: [u8; 32],
}

impl App {
    /// Which node is behind a token, asked anew each time.
    #[tracing::instrument(name = "app.nodes.authenticate", skip_all)]
    pub async fn authenticate_node(&self, shown: &Presented) -> Result<Known, Error> {
        if shown.kind != TokenKind::Node {
            return Err(Error::Unauthenticated);
        }
        let mut conn = self.pool().acquire().await.map_err(DbError::from)?;
        let now = self.environment().now();
        let found = nodes::behind(&mut conn, &shown.hash, now).await?;
        let known = |(id, state)| Known { id, state, token: shown.hash };
        found.map(known).ok_or(Error::Unauthenticated)
    }
}

/// Lets one machine join.
#[tracing::instrument(name = "app.nodes.issue_join_token", skip_all)]
pub async fn issue_join_token(
    ctx: &mut Ctx,
    body: IssueJoinToken,
) -> Result<IssuedJoinToken, Error> {
    let caller = ctx.require(Role::Admin)?;
    let seconds = body.expires_in_seconds.unwrap_or(JOIN_SECONDS);
    if !JOIN_RANGE.contains(&seconds) {
        let (min, max) = (JOIN_RANGE.start(), JOIN_RANGE.end());
        return Err(Error::Invalid(format!("`expires_in_seconds` is {min} to {max}")));
    }
    let labels = labels(body.labels)?;
    issue(ctx, Some(caller.user), &labels, seconds).await
}

/// The same for the person at the machine, who needs no account; there is no endpoint for it.
#[tracing::instrument(name = "app.nodes.issue_local_join_token", skip_all)]
pub async fn issue_local_join_token(app: &App, wanted: Vec<String>) -> Result<SecretText, Error> {
    let labels = labels(wanted)?;
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    let mut ctx = app.open(&request).await?;
    let issued = issue(&mut ctx, None, &labels, JOIN_SECONDS).await?;
    app.commit(ctx).await?;
    Ok(issued.join_token)
}

async fn issue(
    ctx: &mut Ctx,
    by: Option<UserId>,
    labels: &[String],
    seconds: u32,
) -> Result<IssuedJoinToken, Error> {
    let (join_token, hash) = tokens::issue(TokenKind::Join, ctx.environment());
    let (now, expires_at) = (ctx.now, ctx.now + Duration::seconds(seconds.into()));
    nodes::insert_join_token(ctx.conn(), &hash, labels, by, now, expires_at).await?;
    ctx.record(Told::new(EventKind::JoinTokenIssued, json!({ "labels": labels }))).await?;
    Ok(IssuedJoinToken { join_token, expires_at })
}

fn labels(mut labels: Vec<String>) -> Result<Vec<String>, Error> {
    labels.sort_unstable();
    labels.dedup();
    let good = |label: &String| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.'))
    };
    if labels.len() > 32 || !labels.iter().all(good) {
        let rule = "at most 32 labels, each of 1 to 63 of a-z, 0-9, `-`, `_` and `.`";
        return Err(Error::Invalid(rule.into()));
    }
    Ok(labels)
}

/// Makes a machine a node. Asked again with the same token and key, the answer is the same.
#[tracing::instrument(name = "app.nodes.join", skip_all)]
pub async fn join(app: &App, request: &Request, body: JoinNode) -> Result<JoinedNode, Error> {
    let shown = tokens::present(&body.join_token.0).map_err(|_| Error::Unauthenticated)?;
    if shown.kind != TokenKind::Join {
        return Err(Error::Unauthenticated);
    }
    let key = public_key(&body.public_key)?;
    let name: cynode_core::names::TaskName = body.name.parse().map_err(|_| {
        Error::Invalid("a node's name has 1 to 63 of a-z, 0-9 and `-`, a letter first".into())
    })?;
    let report = bounded(body.report)?;
    let mut ctx = app.open(request).await?;
    let now = ctx.now;
    let token = nodes::lock_join_token(ctx.conn(), &shown.hash, now).await?;
    let token = token.ok_or(Error::Unauthenticated)?;
    if let Some(id) = token.node {
        // It was used. Whoever has the key that it was used with lost our answer.
        let node = nodes::get(ctx.conn(), id).await?.ok_or(Error::Unauthenticated)?;
        if node.public_key != key || node.state == NodeState::Removed {
            return Err(Error::Unauthenticated);
        }
        return Ok(JoinedNode { node_id: id, name: node.name });
    }
    if token.expired {
        return Err(Error::Unauthenticated);
    }
    let id = NodeId::from_uuid(ctx.uuid());
    let new = NewNode {
        id,
        name: name.as_str(),
        public_key: &key,
        labels: &token.labels,
        report: &report,
        by: token.issued_by,
        token: &shown.hash,
    };
    nodes::insert(ctx.conn(), new, now).await.map_err(|error| match error {
        DbError::Refused { constraint } if constraint == "nodes_name_taken" => {
            Error::Taken { what: "node", name: name.to_string() }
        }
        DbError::Refused { .. } => Error::Conflict("the key belongs to another node"),
        other => other.into(),
    })?;
    ctx.record(Told::new(EventKind::NodeJoined, json!({ "node_id": id, "name": name }))).await?;
    app.commit(ctx).await?;
    Ok(JoinedNode { node_id: id, name: name.to_string() })
}

fn public_key(text: &str) -> Result<[u8; 32], Error> {
    // A key of low order would let anybody sign.
    let good = |key: &[u8; 32]| VerifyingKey::from_bytes(key).is_ok_and(|key| !key.is_weak());
    artifacts::bytes32(text).filter(good).ok_or_else(|| {
        Error::Invalid("`public_key` is an Ed25519 key, 32 bytes in hexadecimal".into())
    })
}

/// What a node says about itself is shown to people: it has a size.
fn bounded(mut report: NodeReport) -> Result<NodeReport, Error> {
    report.slots = report.slots.min(1000);
    if serde_json::to_string(&report).map_or(usize::MAX, |text| text.len()) > 64 * 1024 {
        return Err(Error::Invalid("a report has at most 64 KiB".into()));
    }
    Ok(report)
}

/// Something to sign. It is the same for nodes that are there and for others: nobody learns from it which are.
pub fn challenge(app: &App, body: &AskChallenge) -> Result<NodeChallenge, Error> {
    let expires = (app.environment().now() + CHALLENGE).unix_timestamp();
    let nonce = HEXLOWER.encode(&app.environment().bytes::<16>());
    let (node, expires) = (body.node_id.to_string(), expires.to_string());
    let tag =
        app.gate()?.keys.tag(&[CHALLENGED, node.as_bytes(), expires.as_bytes(), nonce.as_bytes()]);
    Ok(NodeChallenge { challenge: format!("{expires}.{nonce}.{}", HEXLOWER.encode(&tag)) })
}

/// A token for a node that signed a challenge of ours.
#[tracing::instrument(name = "app.nodes.token", skip_all)]
pub async fn token(app: &App, request: &Request, body: &AskNodeToken) -> Result<NodeToken, Error> {
    let refused = || Error::Unauthenticated;
    let mut parts = body.challenge.split('.');
    let (Some(expires), Some(nonce), Some(tag), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(refused());
    };
    let tag = HEXLOWER.decode(tag.as_bytes()).map_err(|_| refused())?;
    let node = body.node_id.to_string();
    let tagged = [CHALLENGED, node.as_bytes(), expires.as_bytes(), nonce.as_bytes()];
    if !app.gate()?.keys.tagged(&tagged, &tag) {
        return Err(refused());
    }
    let mut ctx = app.open(request).await?;
    let now = ctx.now;
    if expires.parse::<i64>().map_err(|_| refused())? < now.unix_timestamp() {
        return Err(refused());
    }
    let node = nodes::get(ctx.conn(), body.node_id).await?.ok_or_else(refused)?;
    let signature = HEXLOWER.decode(body.signature.as_bytes()).map_err(|_| refused())?;
    let signature = Signature::from_slice(&signature).map_err(|_| refused())?;
    let key = VerifyingKey::from_bytes(&node.public_key).map_err(|_| refused())?;
    let signed = signed_bytes(node.id, &body.challenge);
    key.verify_strict(&signed, &signature).map_err(|_| refused())?;
    if node.state == NodeState::Removed {
        return Err(refused());
    }
    let (token, hash) = tokens::issue(TokenKind::Node, ctx.environment());
    let expires_at = now + Duration::seconds(TOKEN_SECONDS.into());
    nodes::insert_token(ctx.conn(), node.id, &hash, now, expires_at).await?;
    app.commit(ctx).await?;
    Ok(NodeToken { token, expires_in_seconds: TOKEN_SECONDS })
}

/// Notes what a node can do now.
#[tracing::instrument(name = "app.nodes.report", skip_all, fields(node.id = %node.id))]
pub async fn report(app: &App, node: Known, body: NodeReport) -> Result<NodeView, Error> {
    let report = bounded(body)?;
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    nodes::report(&mut conn, node.id, &report).await?;
    let found = nodes::get(&mut conn, node.id).await?;
    found.map(view).ok_or_else(|| Error::not_found("node", node.id))
}

/// People need a role for it. Agents that the gate let through plan work, for which they must know what there is.
fn may_look(ctx: &mut Ctx) -> Result<(), Error> {
    match ctx.caller()?.bounds {
        Some(_) => Ok(()),
        None => ctx.require(Role::Viewer).map(drop),
    }
}

/// The nodes, by name.
#[tracing::instrument(name = "app.nodes.list", skip_all)]
pub async fn list(ctx: &mut Ctx) -> Result<Vec<NodeView>, Error> {
    may_look(ctx)?;
    Ok(nodes::list(ctx.conn()).await?.into_iter().map(view).collect())
}

/// One node.
#[tracing::instrument(name = "app.nodes.get", skip_all)]
pub async fn get(ctx: &mut Ctx, id: NodeId) -> Result<NodeView, Error> {
    may_look(ctx)?;
    let node = nodes::get(ctx.conn(), id).await?;
    node.map(view).ok_or_else(|| Error::not_found("node", id))
}

/// Lets a node end what it has and get no more, or gives it jobs again, or other labels.
#[tracing::instrument(name = "app.nodes.change", skip_all)]
pub async fn change(ctx: &mut Ctx, id: NodeId, body: ChangeNode) -> Result<NodeView, Error> {
    ctx.require(Role::Admin)?;
    let missing = || Error::not_found("node", id);
    let node = nodes::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    if node.state == NodeState::Removed {
        return Err(Error::Conflict("the node was removed; it can only join anew"));
    }
    let state = match body.draining {
        Some(true) => NodeState::Draining,
        Some(false) => NodeState::Active,
        None => node.state,
    };
    let labels = body.labels.map_or(Ok(node.labels), labels)?;
    nodes::change(ctx.conn(), id, state, &labels).await?;
    let data = json!({ "node_id": id, "state": state, "labels": labels });
    ctx.record(Told::new(EventKind::NodeUpdated, data)).await?;
    nodes::get(ctx.conn(), id).await?.map(view).ok_or_else(missing)
}

/// Removes a node: its token stops working at once, and its jobs are given up when they are not heard of.
#[tracing::instrument(name = "app.nodes.remove", skip_all)]
pub async fn remove(ctx: &mut Ctx, id: NodeId) -> Result<(), Error> {
    ctx.require(Role::Admin)?;
    let node = nodes::get(ctx.conn(), id).await?;
    let node = node.filter(|node| node.state != NodeState::Removed);
    let node = node.ok_or_else(|| Error::not_found("node", id))?;
    nodes::change(ctx.conn(), id, NodeState::Removed, &node.labels).await?;
    let data = json!({ "node_id": id, "name": node.name });
    ctx.record(Told::new(EventKind::NodeRemoved, data)).await
}

fn view(node: Node) -> NodeView {
    NodeView {
        node_id: node.id,
        name: node.name,
        state: node.state,
        alive: node.silent_ms < SILENT_MS && node.state != NodeState::Removed,
        labels: node.labels,
        jobs: node.jobs,
        report: node.report,
        joined_at: node.joined_at,
        last_seen_at: node.last_seen_at,
    }
}

/// Gives a node the jobs that were placed on it; if so asked, it waits for some.
#[tracing::instrument(name = "app.nodes.claim", skip_all, fields(node.id = %node.id))]
pub async fn claim(
    app: &App,
    request: &Request,
    node: Known,
    body: &ClaimAssignments,
) -> Result<Assignments, Error> {
    if !(1..=100).contains(&body.most) {
        return Err(Error::Invalid("`most` is 1 to 100".into()));
    }
    let until = Instant::now() + patience(Some(body.wait_ms));
    loop {
        let mut sign = std::pin::pin!(app.sign_of_work());
        sign.as_mut().enable();
        if place(app).await? {
            app.queued();
        }
        let given = give(app, request, node, body).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !given.jobs.is_empty() || left.is_zero() {
            return Ok(given);
        }
        let _ = tokio::time::timeout(left.min(LOOK_EVERY), sign).await;
    }
}

/// Finds a node for each job that has none. Gives whether any was found.
#[tracing::instrument(name = "app.nodes.place", skip_all)]
async fn place(app: &App) -> Result<bool, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    if !nodes::to_place(&mut conn, SILENT_MS).await? {
        return Ok(false);
    }
    drop(conn);
    let mut tx = app.pool().begin().await.map_err(DbError::from)?;
    if !nodes::place_alone(&mut tx).await? {
        return Ok(false);
    }
    nodes::take_back(&mut tx, SILENT_MS).await?;
    let fit = |node: &Node| node.state == NodeState::Active && node.silent_ms < SILENT_MS;
    let there: Vec<_> = nodes::list(&mut tx).await?.into_iter().filter(fit).collect();
    let mut candidates: Vec<_> = there.iter().map(candidate).collect();
    let (mut any, mut behind) = (false, None);
    // What fits nowhere must not keep what is behind it from being placed.
    while candidates.iter().any(|node| node.free > 0) {
        let waiting = nodes::unplaced(&mut tx, behind, PLACED_AT_ONCE).await?;
        let Some((queued_at, job, _)) = waiting.last() else { break };
        behind = Some((*queued_at, *job));
        for (_, job, work) in waiting {
            // What cannot be read is placed anywhere: whoever claims it is told, and so is the task.
            let work: Option<Work> = serde_json::from_value(work).ok();
            let needs = work.as_ref().map(needs).unwrap_or_default();
            match placement::choose(needs, &candidates) {
                Ok(at) => {
                    if let Some(turn) = nodes::place(&mut tx, job, there[at].id).await? {
                        candidates[at].turn = turn;
                        candidates[at].free -= 1;
                        any = true;
                    }
                }
                Err(Unplaced::Busy) => {}
                Err(why) => tracing::debug!(job.id = %job, %why, "a job waits for a node"),
            }
        }
    }
    tx.commit().await.map_err(DbError::from)?;
    Ok(any)
}

fn candidate(node: &Node) -> Candidate {
    let report = &node.report;
    let backends = report.backends.iter().map(|there| backend(there.backend).to_owned());
    Candidate {
        name: node.name.clone(),
        labels: node.labels.clone(),
        backends: backends.collect(),
        agents: report.agents.iter().map(|there| there.agent.clone()).collect(),
        memory_mib: report.memory_mib,
        free: report.slots.saturating_sub(node.jobs),
        turn: node.turn,
    }
}

fn needs(work: &Work) -> Needs<'_> {
    Needs {
        node: work.placement.node.as_deref(),
        labels: &work.placement.labels,
        backend: work.sandbox.backend.map(backend),
        agent: match &work.worker {
            WorkerChoice::Acp { agent } => Some(agent),
            WorkerChoice::Command { .. }
            | WorkerChoice::Scripted { .. }
            | WorkerChoice::Checks { .. }
            | WorkerChoice::Merge => None,
        },
        memory_mib: work.sandbox.memory_mib.unwrap_or_default().into(),
    }
}

const fn backend(backend: SandboxBackend) -> &'static str {
    match backend {
        SandboxBackend::Bubblewrap => "bubblewrap",
        SandboxBackend::Podman => "podman",
    }
}

async fn give(
    app: &App,
    request: &Request,
    node: Known,
    body: &ClaimAssignments,
) -> Result<Assignments, Error> {
    let mut ctx = app.open(request).await?;
    jobs::one_claim_at_a_time(ctx.conn(), body.claim_id).await?;
    // A claim of an earlier life of the node waits on, though nobody hears its answer: what it took would be nobody's.
    if nodes::has_newer_token(ctx.conn(), node.id, &node.token).await? {
        return Ok(Assignments { jobs: Vec::new() });
    }
    nodes::seen(ctx.conn(), node.id, NOTED_MS).await?;
    let claimed =
        nodes::claim(ctx.conn(), node.id, body.claim_id, body.most.into(), LEASE_MS).await?;
    app.commit(ctx).await?;
    // What follows may ask git, and is done again when the claim is repeated: no transaction is held meanwhile.
    let mut given = Vec::new();
    for job in claimed {
        let (id, fencing_token) = (job.job, job.fencing_token);
        match assign(app, request, job).await {
            Ok(assignment) => given.push(assignment),
            Err(Error::Invalid(why)) => telling::fail(app, node, id, fencing_token, &why).await?,
            // The others need not wait for it: unheard of, it is given up and tried again.
            Err(error) => complain(&error, "a job could not be given to its node"),
        }
    }
    Ok(Assignments { jobs: given })
}

/// What a node is told about a job that it has claimed; `Invalid` when the job cannot be done as it was planned.
async fn assign(app: &App, request: &Request, job: Claimed) -> Result<Assignment, Error> {
    let work = job.payload.unit.get("work").cloned().unwrap_or_default();
    let mut work: Work = serde_json::from_value(work)
        .map_err(|error| Error::Invalid(format!("the unit's `work` cannot be read: {error}")))?;
    if let Some(image) = &work.sandbox.image {
        must_be_allowed(app, image).await?;
    }
    if let Some(feedback) = feedback(&job.payload.remedy) {
        work.context.revision_feedback = Some(feedback);
    }
    if work.context.task_summary.is_empty() {
        work.context.task_summary.clone_from(&job.payload.title);
    }
    // What an earlier attempt left is there already: this one may find nothing more to change.
    if job.again && work.commit == CommitRule::Required {
        work.commit = CommitRule::IfChanged;
    }
    let (base, merge) = base(app, &job).await?;
    let mut ctx = app.open(request).await?;
    nodes::set_base(ctx.conn(), job.job, base.as_deref(), &merge).await?;
    let seconds_left = u32::try_from(job.seconds_left).unwrap_or(u32::MAX);
    let for_job = ForJob {
        role: work.role,
        user: job.user,
        project: job.project,
        task: job.task,
        run: job.run,
        job: job.job,
        tools: work.tools.as_deref(),
        models: &work.models,
        // The result may be put together a little after the last moment.
        seconds: seconds_left.saturating_add(60),
    };
    let (agent_token_id, agent_token): (_, SecretText) =
        agents::issue_for_job(&mut ctx, for_job).await?;
    app.commit(ctx).await?;
    Ok(Assignment {
        job_id: job.job,
        task_id: job.task,
        run_id: job.run,
        project_id: job.project,
        branch: format!("cynode/{}/{}", job.task, job.unit.as_str()),
        unit: job.unit,
        title: job.payload.title,
        attempt: job.attempt,
        fencing_token: job.fencing_token,
        work,
        base,
        merge,
        agent_token,
        agent_token_id,
        seconds_left,
        trace_id: job.trace_id,
    })
}

/// Refuses an image that is not among those that sandboxes may be made from. While none is named, each may be.
async fn must_be_allowed(app: &App, image: &str) -> Result<(), Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let allowed = cynode_db::agents::images(&mut conn).await?;
    if allowed.is_empty() || allowed.iter().any(|there| there == image) {
        return Ok(());
    }
    Err(Error::Invalid(format!("the image `{image}` is not among those that are allowed")))
}

/// What the last attempt got wrong.
fn feedback(remedy: &serde_json::Value) -> Option<RevisionFeedback> {
    let findings: Vec<Finding> = serde_json::from_value(remedy.get("findings")?.clone()).ok()?;
    let summary = match findings.len() {
        0 => return None,
        1 => "The last attempt was not good: one thing was found.".to_owned(),
        n => format!("The last attempt was not good: {n} things were found."),
    };
    Some(RevisionFeedback { summary, findings })
}

/// The commit that a job starts from, and those that are put together with it: what an earlier attempt or the units before it made,
/// else the pull request that its task goes on with, else the project's own.
async fn base(app: &App, job: &Claimed) -> Result<(Option<String>, Vec<String>), Error> {
    match job.bases.as_slice() {
        [] => {
            // What begins later begins where the first of the task began: a change is measured from there.
            let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
            let first = cynode_db::evidence::grounds(&mut conn, job.task).await?.base;
            drop(conn);
            if first.is_some() {
                return Ok((first, Vec::new()));
            }
            let continued = delivery::continued_from(app, job.task).await?;
            let head = match continued {
                Some(head) => Some(head),
                None => {
                    crate::remotes::freshen(app, job.project).await;
                    repositories::head(app, job.project).await?
                }
            };
            Ok((head, Vec::new()))
        }
        [one] => Ok((Some(one.clone()), Vec::new())),
        several => {
            let mut heads = app.gate()?.repositories.heads(job.project, several).await?.into_iter();
            Ok((heads.next(), heads.collect()))
        }
    }
}

/// Takes note of what a node is at, and says which of its jobs are not wanted any more and what its agents are to be told.
#[tracing::instrument(name = "app.nodes.heartbeat", skip_all, fields(node.id = %node.id))]
pub async fn heartbeat(app: &App, node: Known, body: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
    if body.jobs.len() > 1000 || body.delivered.len() > 1000 {
        return Err(Error::Invalid("a heartbeat names at most 1000 jobs and instructions".into()));
    }
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let kept = nodes::keep(&mut conn, node.id, &body.jobs, LEASE_MS).await?;
    let mut stop = Vec::new();
    for held in body.jobs.iter().filter(|held| !kept.contains(&held.job_id)) {
        let standing = jobs::standing(&mut conn, held.job_id).await?;
        let reason = why_not(standing.as_ref(), node, held.fencing_token).to_owned();
        stop.push(StopJob { job_id: held.job_id, fencing_token: held.fencing_token, reason });
    }
    let told = match kept.as_slice() {
        [] => Vec::new(),
        kept => nodes::undelivered(&mut conn, kept).await?,
    };
    // An instruction is for a task; each of its agents is told, under a name of its own.
    let (passed_on, new): (Vec<_>, Vec<_>) =
        told.iter().partition(|told| body.delivered.contains(&named(told)));
    if !passed_on.is_empty() {
        nodes::delivered(&mut conn, &passed_on).await?;
    }
    let instructions = new.into_iter().map(|told| JobInstruction {
        instruction_id: named(told),
        job_id: told.job,
        kind: told.kind,
        text: told.text.clone().unwrap_or_default(),
    });
    Ok(HeartbeatAnswer {
        stop,
        instructions: instructions.collect(),
        draining: node.state == NodeState::Draining,
    })
}

/// The name of an instruction to one agent, the same whenever it is given.
fn named(told: &Undelivered) -> Uuid {
    derived([told.job.as_uuid().into_bytes(), told.id.as_uuid().into_bytes()].concat())
}

fn why_not(standing: Option<&jobs::Standing>, node: Known, fencing_token: i64) -> &'static str {
    match standing {
        None => "there is no such job",
        Some(there)
            if there.fencing_token != fencing_token
                || there.worker.as_deref() != Some(&node.id.to_string()) =>
        {
            "the job was given to somebody else"
        }
        Some(there) => match there.state {
            JobState::Cancelled => "the task was cancelled, or the work is not wanted any more",
            JobState::Lost => "nothing was heard of the job for too long",
            JobState::Succeeded | JobState::Failed => "its result is known",
            JobState::Running => "its time is over",
            JobState::Queued => "it was not claimed",
        },
    }
}

/// The project whose repository a node may read for a job that it has.
#[tracing::instrument(name = "app.nodes.project_of", skip_all)]
pub async fn project_of(
    app: &App,
    node: Known,
    job: JobId,
) -> Result<cynode_core::ids::ProjectId, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let project = nodes::works_on(&mut conn, node.id, job).await?;
    project.ok_or_else(|| Error::not_found("job of this node", job))
}
