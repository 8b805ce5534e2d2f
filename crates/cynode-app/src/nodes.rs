//! Nodes: join, authenticate, place jobs, record heartbeats.
//!
//! **Invariant**: this module is the only place that chooses a node for a job.

mod guidance;
pub(crate) mod job_log;
mod job_profiles;
pub(crate) mod job_reports;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Mutex,
    time::{Duration as Wait, Instant},
};

use cynode_core::{
    environments::EnvironmentBase,
    events::EventKind,
    ids::{JobId, NodeId, ProjectId, UserId},
    nodes::{NodeReport, NodeState},
    placement::{self, NODE_SILENCE_TIMEOUT_MS, PlacementError, PlacementRequirements},
    policies::{HOST_IMAGE, PlacementBounds, PolicyKey, PolicySet},
    roles::UserRole,
    sync::lock_unpoisoned,
    workflow::{
        findings::VerificationFinding,
        jobs::{CommitRule, JobSpec, RevisionFeedback, WorkerChoice},
        units::JobState,
    },
};
use cynode_db::{
    Conn, DbError,
    manager::reports,
    nodes::{
        self, ClaimedNodeJob, NewNode, NodeRecord, PendingInstruction, TokenPurpose, UnplacedJob,
    },
    tasks::policies,
    workflow::jobs,
};
use cynode_net::tls::split_pinned_token;
use cynode_wire::{
    identity::accounts::SecretText,
    nodes::{
        AskCertificate, AskChallenge, AskNodeToken, ChangeNode, ClaimAssignments, HeartbeatAnswer,
        IssueJoinToken, IssuedJoinToken, JobAssignment, JobAssignments, JobInstruction, JoinNode,
        JoinedNode, NodeCertificate, NodeChallenge, NodeHeartbeat, NodeToken, NodeView, StopJob,
        VerifiedNode, VerifyNode, signed_bytes,
    },
};
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signature, VerifyingKey};
use serde_json::json;
use time::Duration;
use uuid::Uuid;

pub use cynode_db::nodes::{JobEventRecord, JobSources};
pub use job_log::{JobLogItem, authorize_job_log, follow_job_log};
pub use job_reports::{
    ask_permission, list_job_events, store_blob, store_job_events, store_job_result,
};

use crate::{
    App, Ctx, Error, OperationRequest,
    delivery::{environments, pull_requests, repositories},
    manager::given_context,
    platform::{
        certificates,
        context::EventDraft,
        environment::derive_uuid,
        error::log_background_error,
        operation,
        timeouts::wait_timeout,
        tokens::{self, PresentedToken, TokenKind},
        wakeups,
    },
    tools::{
        agent_tokens::{self, JobTokenRequest},
        artifacts,
    },
    workflow::placement::{is_alive, placement_needs, takes_jobs, to_candidate},
};

/// How long a node may take to sign a challenge.
const CHALLENGE_TTL: Duration = Duration::minutes(1);

/// Domain-separation label of the tag over a challenge.
const CHALLENGE_TAG_LABEL: &[u8] = b"node-challenge";

/// Lifetime of a node's token.
const NODE_TOKEN_TTL_SECONDS: u32 = 900;

/// Lifetime of a join token when the request names none, and the range that a request may name.
const DEFAULT_JOIN_TTL_SECONDS: u32 = 3600;
const JOIN_TTL_SECONDS_RANGE: std::ops::RangeInclusive<u32> = 60..=86_400;

/// Minimum age of the stored last-seen time before it is updated. A node that waits for work calls several times a
/// second.
const SEEN_UPDATE_INTERVAL_MS: i64 = 2000;

/// Lease of a node's jobs. A job without a report for this long is lost.
const JOB_LEASE_MS: i64 = 60_000;

/// Maximum number of jobs read per query during placement.
const PLACEMENT_BATCH_SIZE: i64 = 200;

/// Message for a process of a node that may not renew its token.
const SUPERSEDED_MESSAGE: &str = "another process of this node started later and speaks for it now";

/// How long a claim waits for a wake-up before it polls, when no process-wide poll runs.
const CLAIM_POLL_INTERVAL: Wait = Wait::from_millis(250);

/// How long a cached token authenticates the heartbeat of an idle node. An idle node presents its token for jobs more
/// often than that.
const CACHED_TOKEN_TTL: Wait = Wait::from_secs(30);

/// Number of cached tokens from which on expired entries are evicted.
const MAX_CACHED_TOKENS: usize = 10_000;

/// A node that authenticated with its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticatedNode {
    /// Unique id of the node.
    pub id: NodeId,
    /// State of the node. It decides whether the node gets jobs.
    pub state: NodeState,
    /// Digest of the presented token.
    token: [u8; 32],
}

impl App {
    /// Returns the node that a token belongs to. It queries the database on every call, so revocation takes effect at
    /// once.
    #[tracing::instrument(name = "app.nodes.authenticate_node", skip_all)]
    pub async fn authenticate_node(
        &self,
        shown: &PresentedToken,
    ) -> Result<AuthenticatedNode, Error> {
        if shown.kind != TokenKind::Node {
            return Err(Error::Unauthenticated);
        }
        let mut conn = self.conn().await?;
        let now = self.environment().now();
        let hashes = self.token_keys().token_hashes(&shown.hash);
        let found = nodes::find_node_by_token(&mut conn, &hashes, now).await?;
        let known = |(id, state)| AuthenticatedNode { id, state, token: shown.hash };
        let known = found.map(known);
        self.shared_state().node_tokens.cache_node(shown.hash, known);
        known.ok_or(Error::Unauthenticated)
    }

    /// Returns the node that recently authenticated with this token, from the cache. The cache is good enough for the
    /// heartbeat of an idle node: the heartbeat only updates the last-seen time, and a removed node is not updated.
    pub fn cached_node(&self, shown: &PresentedToken) -> Option<AuthenticatedNode> {
        self.shared_state().node_tokens.lookup_node(&shown.hash).filter(|_| self.has_shared_poll())
    }
}

/// Cache of recently authenticated node tokens, used for the heartbeats of idle nodes.
#[derive(Default)]
pub(crate) struct NodeTokenCache(Mutex<HashMap<[u8; 32], (AuthenticatedNode, Instant)>>);

impl NodeTokenCache {
    fn cache_node(&self, hash: [u8; 32], known: Option<AuthenticatedNode>) {
        let mut tokens = lock_unpoisoned(&self.0);
        if let Some(known) = known {
            tokens.insert(hash, (known, Instant::now()));
        } else {
            tokens.remove(&hash);
        }
        if tokens.len() > MAX_CACHED_TOKENS {
            tokens.retain(|_, (_, found)| found.elapsed() < CACHED_TOKEN_TTL);
        }
    }

    fn lookup_node(&self, hash: &[u8; 32]) -> Option<AuthenticatedNode> {
        let tokens = lock_unpoisoned(&self.0);
        let (known, found) = tokens.get(hash)?;
        (found.elapsed() < CACHED_TOKEN_TTL).then_some(*known)
    }
}

/// Issues a token with which one machine can join.
#[tracing::instrument(name = "app.nodes.issue_join_token", skip_all)]
#[operation]
pub async fn issue_join_token(
    app: &App,
    ctx: &mut Ctx,
    body: IssueJoinToken,
) -> Result<IssuedJoinToken, Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    let seconds = body.expires_in_seconds.unwrap_or(DEFAULT_JOIN_TTL_SECONDS);
    if !JOIN_TTL_SECONDS_RANGE.contains(&seconds) {
        let (min, max) = (JOIN_TTL_SECONDS_RANGE.start(), JOIN_TTL_SECONDS_RANGE.end());
        return Err(Error::Invalid(format!("`expires_in_seconds` is {min} to {max}")));
    }
    let labels = validate_labels(body.labels)?;
    let issued = store_join_token(ctx, Some(caller.user), &labels, seconds).await?;
    Ok(IssuedJoinToken { join_token: app.pin_join_token(issued.join_token), ..issued })
}

/// Issues a join token for an operator at the machine, who needs no account. No endpoint exposes this.
#[tracing::instrument(name = "app.nodes.issue_local_join_token", skip_all)]
#[operation]
pub async fn issue_local_join_token(app: &App, wanted: Vec<String>) -> Result<SecretText, Error> {
    let labels = validate_labels(wanted)?;
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    let issued = store_join_token(&mut ctx, None, &labels, DEFAULT_JOIN_TTL_SECONDS).await?;
    app.commit_operation(ctx).await?;
    Ok(app.pin_join_token(issued.join_token))
}

async fn store_join_token(
    ctx: &mut Ctx,
    by: Option<UserId>,
    labels: &[String],
    seconds: u32,
) -> Result<IssuedJoinToken, Error> {
    let (join_token, hash) = ctx.issue_token(TokenKind::Join);
    let (now, expires_at) = (ctx.now, ctx.now + Duration::seconds(seconds.into()));
    nodes::insert_join_token(ctx.conn(), &hash, labels, by, now, expires_at).await?;
    ctx.record_event(EventDraft::new(EventKind::JoinTokenIssued, json!({ "labels": labels })))
        .await?;
    Ok(IssuedJoinToken { join_token, expires_at })
}

fn validate_labels(mut labels: Vec<String>) -> Result<Vec<String>, Error> {
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

/// Registers a machine as a node. A repeat with the same token and key gets the same answer.
#[tracing::instrument(name = "app.nodes.join_node", skip_all)]
#[operation]
pub async fn join_node(
    app: &App,
    request: &OperationRequest,
    body: JoinNode,
) -> Result<JoinedNode, Error> {
    // A node keeps the pin that its token carries to itself. One that was sent is not part of the token.
    let (token, _) = split_pinned_token(&body.join_token.0).map_err(|_| Error::Unauthenticated)?;
    let shown = tokens::parse_token(token).map_err(|_| Error::Unauthenticated)?;
    if shown.kind != TokenKind::Join {
        return Err(Error::Unauthenticated);
    }
    let key = parse_public_key(&body.public_key)?;
    let name: cynode_core::names::TaskName = body.name.parse().map_err(|_| {
        Error::Invalid("a node's name has 1 to 63 of a-z, 0-9 and `-`, a letter first".into())
    })?;
    let report = validate_report(body.report)?;
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    let hashes = ctx.token_keys().token_hashes(&shown.hash);
    let token = nodes::lock_join_token(ctx.conn(), &hashes, now).await?;
    let token = token.ok_or(Error::Unauthenticated)?;
    if let Some(id) = token.node {
        // The token is used. A caller with the key that it was used with has lost our answer and gets it again.
        let node = nodes::get_node(ctx.conn(), id).await?.ok_or(Error::Unauthenticated)?;
        if node.public_key != key || node.state == NodeState::Removed {
            return Err(Error::Unauthenticated);
        }
        let certificate = certificates::issue_for_node(app, &mut ctx, id, &node.name, &key).await?;
        app.commit_operation(ctx).await?;
        return Ok(JoinedNode { node_id: id, name: node.name, certificate });
    }
    if token.expired {
        return Err(Error::Unauthenticated);
    }
    let id = NodeId::from_uuid(ctx.new_uuid());
    let new = NewNode {
        id,
        name: name.as_str(),
        public_key: &key,
        labels: &token.labels,
        report: &report,
        by: token.issued_by,
        token_hashes: &hashes,
    };
    nodes::insert_node(ctx.conn(), new, now).await.map_err(|error| match error {
        DbError::Refused { constraint } if constraint == "nodes_name_unique" => {
            Error::AlreadyExists { what: "node", name: name.to_string() }
        }
        DbError::Refused { .. } => Error::Conflict("the key belongs to another node"),
        other => other.into(),
    })?;
    ctx.record_event(EventDraft::new(
        EventKind::NodeJoined,
        json!({ "node_id": id, "name": name }),
    ))
    .await?;
    let certificate = certificates::issue_for_node(app, &mut ctx, id, name.as_str(), &key).await?;
    app.commit_operation(ctx).await?;
    Ok(JoinedNode { node_id: id, name: name.to_string(), certificate })
}

fn parse_public_key(text: &str) -> Result<[u8; 32], Error> {
    // Anybody could produce signatures for a key of low order.
    let good = |key: &[u8; 32]| VerifyingKey::from_bytes(key).is_ok_and(|key| !key.is_weak());
    artifacts::decode_hex32(text).filter(good).ok_or_else(|| {
        Error::Invalid("`public_key` is an Ed25519 key, 32 bytes in hexadecimal".into())
    })
}

/// Bounds the size of a node's report about itself, because the report is shown to people.
fn validate_report(mut report: NodeReport) -> Result<NodeReport, Error> {
    report.slots = report.slots.min(1000);
    if serde_json::to_string(&report).map_or(usize::MAX, |text| text.len()) > 64 * 1024 {
        return Err(Error::Invalid("a report has at most 64 KiB".into()));
    }
    Ok(report)
}

/// Creates a challenge for a node to sign. The answer is the same for unknown nodes, so it reveals no node's
/// existence.
pub fn create_challenge(app: &App, body: &AskChallenge) -> Result<NodeChallenge, Error> {
    let expires = (app.environment().now() + CHALLENGE_TTL).unix_timestamp();
    let nonce = HEXLOWER.encode(&app.environment().random_bytes::<16>());
    let (node, expires) = (body.node_id.to_string(), expires.to_string());
    let tag = app.gateway_parts()?.keys.compute_tag(&[
        CHALLENGE_TAG_LABEL,
        node.as_bytes(),
        expires.as_bytes(),
        nonce.as_bytes(),
    ]);
    Ok(NodeChallenge { challenge: format!("{expires}.{nonce}.{}", HEXLOWER.encode(&tag)) })
}

/// Issues a token to a node that signed a challenge. A starting process takes over: any earlier process of the node
/// is fenced off and cannot renew its token.
#[tracing::instrument(name = "app.nodes.issue_node_token", skip_all)]
#[operation]
pub async fn issue_node_token(
    app: &App,
    request: &OperationRequest,
    body: &AskNodeToken,
) -> Result<NodeToken, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let (challenge, signature) = (&body.challenge, &body.signature);
    let node = authenticate_signer(app, &mut ctx, body.node_id, challenge, signature).await?;
    let now = ctx.now;
    let (token, hash) = ctx.issue_token(TokenKind::Node);
    let expires_at = now + Duration::seconds(NODE_TOKEN_TTL_SECONDS.into());
    let asker = body.generation.map_or(TokenPurpose::Start, TokenPurpose::Renewal);
    let generation =
        nodes::insert_node_token(ctx.conn(), node.id, &hash, asker, now, expires_at).await?;
    let generation = generation.ok_or(Error::Fenced(SUPERSEDED_MESSAGE))?;
    app.commit_operation(ctx).await?;
    if asker == TokenPurpose::Start {
        tracing::info!(event = "node.process_started", node.id = %node.id, node.name = node.name, generation, "a new process of the node took over");
    }
    Ok(NodeToken { token, expires_in_seconds: NODE_TOKEN_TTL_SECONDS, generation })
}

/// Verifies a signed challenge and returns the stored facts about the node. It does not affect a running process of
/// the node.
#[tracing::instrument(name = "app.nodes.verify_node", skip_all)]
#[operation]
pub async fn verify_node(
    app: &App,
    request: &OperationRequest,
    body: &VerifyNode,
) -> Result<VerifiedNode, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let (challenge, signature) = (&body.challenge, &body.signature);
    let node = authenticate_signer(app, &mut ctx, body.node_id, challenge, signature).await?;
    let alive = is_alive(&node);
    Ok(VerifiedNode { node_id: node.id, name: node.name, state: node.state, alive })
}

/// Issues a client certificate to a node that signed a challenge. It does not affect a running process of the node, nor its other
/// certificates: they work until they expire.
#[tracing::instrument(name = "app.nodes.renew_certificate", skip_all)]
#[operation]
pub async fn renew_certificate(
    app: &App,
    request: &OperationRequest,
    body: &AskCertificate,
) -> Result<NodeCertificate, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let (challenge, signature) = (&body.challenge, &body.signature);
    let node = authenticate_signer(app, &mut ctx, body.node_id, challenge, signature).await?;
    let key = &node.public_key;
    let issued = certificates::issue_for_node(app, &mut ctx, node.id, &node.name, key).await?;
    let issued = issued.ok_or(Error::Conflict("the internal port does not speak TLS"))?;
    app.commit_operation(ctx).await?;
    Ok(issued)
}

/// Returns the node whose key signed the challenge.
async fn authenticate_signer(
    app: &App,
    ctx: &mut Ctx,
    id: NodeId,
    challenge: &str,
    signature: &str,
) -> Result<NodeRecord, Error> {
    let refused = || Error::Unauthenticated;
    let mut parts = challenge.split('.');
    let (Some(expires), Some(nonce), Some(tag), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(refused());
    };
    let tag = HEXLOWER.decode(tag.as_bytes()).map_err(|_| refused())?;
    let name = id.to_string();
    let tagged = [CHALLENGE_TAG_LABEL, name.as_bytes(), expires.as_bytes(), nonce.as_bytes()];
    if !app.gateway_parts()?.keys.verify_tag(&tagged, &tag) {
        return Err(refused());
    }
    if expires.parse::<i64>().map_err(|_| refused())? < ctx.now.unix_timestamp() {
        return Err(refused());
    }
    let node = nodes::get_node(ctx.conn(), id).await?.ok_or_else(refused)?;
    let signature = HEXLOWER.decode(signature.as_bytes()).map_err(|_| refused())?;
    let signature = Signature::from_slice(&signature).map_err(|_| refused())?;
    let key = VerifyingKey::from_bytes(&node.public_key).map_err(|_| refused())?;
    key.verify_strict(&signed_bytes(node.id, challenge), &signature).map_err(|_| refused())?;
    if node.state == NodeState::Removed {
        return Err(refused());
    }
    Ok(node)
}

/// Stores a node's report about its capabilities.
#[tracing::instrument(name = "app.nodes.update_node_report", skip_all, fields(node.id = %node.id))]
#[operation]
pub async fn update_node_report(
    app: &App,
    node: AuthenticatedNode,
    body: NodeReport,
) -> Result<NodeView, Error> {
    let report = validate_report(body)?;
    let mut conn = app.conn().await?;
    nodes::update_node_report(&mut conn, node.id, &report).await?;
    let found = nodes::get_node(&mut conn, node.id).await?;
    found.map(to_node_view).ok_or_else(|| Error::not_found("node", node.id))
}

/// Requires a role of a person. An agent that passed the gateway needs none: it plans work and must know the
/// available nodes.
fn require_node_access(ctx: &mut Ctx) -> Result<(), Error> {
    match ctx.caller()?.bounds {
        Some(_) => Ok(()),
        None => ctx.require_role(UserRole::Viewer).map(drop),
    }
}

/// Returns all nodes, ordered by name.
#[tracing::instrument(name = "app.nodes.list_nodes", skip_all)]
#[operation]
pub async fn list_nodes(ctx: &mut Ctx) -> Result<Vec<NodeView>, Error> {
    require_node_access(ctx)?;
    Ok(nodes::list_nodes(ctx.conn()).await?.into_iter().map(to_node_view).collect())
}

/// Returns one node.
#[tracing::instrument(name = "app.nodes.get_node", skip_all)]
#[operation]
pub async fn get_node(ctx: &mut Ctx, id: NodeId) -> Result<NodeView, Error> {
    require_node_access(ctx)?;
    let node = nodes::get_node(ctx.conn(), id).await?;
    node.map(to_node_view).ok_or_else(|| Error::not_found("node", id))
}

/// Drains a node, lets it get jobs again, or changes its labels. A draining node finishes its jobs and gets no more.
#[tracing::instrument(name = "app.nodes.update_node", skip_all)]
#[operation]
pub async fn update_node(ctx: &mut Ctx, id: NodeId, body: ChangeNode) -> Result<NodeView, Error> {
    ctx.require_role(UserRole::Admin)?;
    let missing = || Error::not_found("node", id);
    let node = nodes::get_node(ctx.conn(), id).await?.ok_or_else(missing)?;
    if node.state == NodeState::Removed {
        return Err(Error::Conflict("the node was removed; it can only join anew"));
    }
    let state = match body.draining {
        Some(true) => NodeState::Draining,
        Some(false) => NodeState::Active,
        None => node.state,
    };
    let labels = body.labels.map_or(Ok(node.labels.clone()), validate_labels)?;
    if labels != node.labels {
        // Jobs that wait at a node are placed anew. Placement takes its lock before the rows of nodes, too.
        nodes::lock_placement(ctx.conn()).await?;
        nodes::unplace_queued_jobs(ctx.conn(), None).await?;
        ctx.mark_job_queued();
    }
    nodes::update_node(ctx.conn(), id, state, &labels).await?;
    let data = json!({ "node_id": id, "state": state, "labels": labels });
    ctx.record_event(EventDraft::new(EventKind::NodeUpdated, data)).await?;
    nodes::get_node(ctx.conn(), id).await?.map(to_node_view).ok_or_else(missing)
}

/// Removes a node. Its token stops working at once, and its jobs are lost when their leases expire.
#[tracing::instrument(name = "app.nodes.remove_node", skip_all)]
#[operation]
pub async fn remove_node(ctx: &mut Ctx, id: NodeId) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin)?;
    let node = nodes::get_node(ctx.conn(), id).await?;
    let node = node.filter(|node| node.state != NodeState::Removed);
    let node = node.ok_or_else(|| Error::not_found("node", id))?;
    nodes::update_node(ctx.conn(), id, NodeState::Removed, &node.labels).await?;
    certificates::revoke_for_node(ctx, id, &node.name).await?;
    let data = json!({ "node_id": id, "name": node.name });
    ctx.record_event(EventDraft::new(EventKind::NodeRemoved, data)).await
}

fn to_node_view(node: NodeRecord) -> NodeView {
    let alive = is_alive(&node);
    NodeView {
        node_id: node.id,
        name: node.name,
        state: node.state,
        alive,
        started: node.generation > 0,
        labels: node.labels,
        jobs: node.jobs,
        report: node.report,
        joined_at: node.joined_at,
        last_seen_at: node.last_seen_at,
    }
}

/// Hands a node the jobs that were placed on it. With a wait time it long-polls until there is a job.
#[tracing::instrument(name = "app.nodes.claim_assignments", skip_all, fields(node.id = %node.id))]
#[operation]
pub async fn claim_assignments(
    app: &App,
    request: &OperationRequest,
    node: AuthenticatedNode,
    body: &ClaimAssignments,
) -> Result<JobAssignments, Error> {
    if !(1..=100).contains(&body.max_jobs) {
        return Err(Error::Invalid("`max_jobs` is 1 to 100".into()));
    }
    let until = Instant::now() + wait_timeout(Some(body.wait_ms));
    // A node that asks may have free slots that it did not have before.
    app.set_unplaced();
    let mut gives = true;
    loop {
        let mut own = std::pin::pin!(app.node_signal(node.id));
        own.as_mut().enable();
        let mut work = std::pin::pin!(app.work_signal());
        work.as_mut().enable();
        place_unplaced_jobs(app).await?;
        if gives {
            let given = claim_and_assign(app, request, node, body).await?;
            if !given.jobs.is_empty() {
                return Ok(given);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(JobAssignments { jobs: Vec::new() });
        }
        // Only a node that a job was placed on is woken. A pending placement is remembered as a flag, a job placed on
        // this node is not: so its signal is polled first.
        gives = tokio::select! {
            biased;
            () = own => true,
            () = work => false,
            () = wakeups::sleep_for(left.min(app.poll_delay(CLAIM_POLL_INTERVAL))) => {
                // The shared poll would have woken this claim, so there is nothing.
                if app.has_shared_poll() && Instant::now() >= until {
                    return Ok(JobAssignments { jobs: Vec::new() });
                }
                app.set_unplaced();
                true
            }
        };
    }
}

/// Places jobs that have no node. One task does this for the whole process: jobs that arrive meanwhile are left to
/// the task that holds the lock.
async fn place_unplaced_jobs(app: &App) -> Result<(), Error> {
    while app.is_unplaced() {
        let Ok(_alone) = app.shared_state().placing.try_lock() else { return Ok(()) };
        while app.take_unplaced() {
            // When this future is dropped midway, the guard marks the work as still to be done.
            let mut undone = PlacementGuard { app, armed: true };
            let nodes = place_jobs(app).await?;
            undone.armed = false;
            app.announce_placed_jobs(&nodes);
        }
    }
    Ok(())
}

/// Marks jobs as unplaced again when placement did not finish.
struct PlacementGuard<'a> {
    app: &'a App,
    armed: bool,
}

impl Drop for PlacementGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.app.set_unplaced();
        }
    }
}

/// Chooses a node for each unplaced job. Returns the nodes that now have jobs to claim.
#[tracing::instrument(name = "app.nodes.place_jobs", skip_all)]
async fn place_jobs(app: &App) -> Result<Vec<NodeId>, Error> {
    let mut conn = app.conn().await?;
    if !nodes::has_jobs_to_place(&mut conn, NODE_SILENCE_TIMEOUT_MS).await? {
        return Ok(Vec::new());
    }
    drop(conn);
    let mut tx = app.begin().await?;
    nodes::lock_placement(&mut tx).await?;
    nodes::unplace_stale_jobs(&mut tx, NODE_SILENCE_TIMEOUT_MS).await?;
    let there: Vec<_> = nodes::list_nodes(&mut tx).await?.into_iter().filter(takes_jobs).collect();
    let mut candidates: Vec<_> = there.iter().map(to_candidate).collect();
    let (mut chosen, mut behind) = (Vec::new(), None);
    let mut bounds: HashMap<(UserId, ProjectId), PlacementBounds> = HashMap::new();
    // A job that fits no node must not block the jobs behind it.
    while candidates.iter().any(|node| node.free > 0) {
        let waiting = nodes::list_unplaced_jobs(&mut tx, behind, PLACEMENT_BATCH_SIZE).await?;
        let Some(last) = waiting.last() else { break };
        behind = Some((last.queued_at, last.job));
        for UnplacedJob { job, work, project, author, worked_on, profile, .. } in waiting {
            let bounds: &PlacementBounds = match bounds.entry((author, project)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let held = policies::load_policies(&mut tx, author, Some(project)).await?;
                    unknown.insert(held.placement_bounds())
                }
            };
            // A job that cannot be parsed is placed on any allowed node: its claim reports the error to the task.
            let work: Option<JobSpec> = serde_json::from_value(work).ok();
            let work = job_profiles::limit_needs(&mut tx, project, profile, work).await?;
            let needs = PlacementRequirements {
                bounds: Some(bounds),
                avoid: &worked_on,
                ..work.as_ref().map(placement_needs).unwrap_or_default()
            };
            match placement::choose_node(needs, &candidates) {
                Ok(at) => {
                    if let Some(turn) = nodes::place_job(&mut tx, job, there[at].id).await? {
                        candidates[at].turn = turn;
                        candidates[at].free -= 1;
                        chosen.push(there[at].id);
                    }
                }
                Err(PlacementError::Busy) => {}
                Err(why) => tracing::debug!(job.id = %job, %why, "a job waits for a node"),
            }
        }
    }
    tx.commit().await.map_err(DbError::from)?;
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

async fn claim_and_assign(
    app: &App,
    request: &OperationRequest,
    node: AuthenticatedNode,
    body: &ClaimAssignments,
) -> Result<JobAssignments, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    jobs::lock_claim(ctx.conn(), body.claim_id).await?;
    // A claim of a superseded process of the node may still wait, and nobody would receive its answer: the jobs that
    // it took would be orphans. A process that still listens renews its token and learns there that it was
    // superseded.
    let hashes = ctx.token_keys().token_hashes(&node.token);
    if !nodes::has_node_token(ctx.conn(), node.id, &hashes).await? {
        return Err(Error::Unauthenticated);
    }
    nodes::touch_node(ctx.conn(), node.id, SEEN_UPDATE_INTERVAL_MS).await?;
    let max_jobs = body.max_jobs.into();
    let claimed =
        nodes::claim_node_jobs(ctx.conn(), node.id, body.claim_id, max_jobs, JOB_LEASE_MS).await?;
    if !claimed.is_empty() {
        ctx.mark_job_changed();
    }
    app.commit_operation(ctx).await?;
    // Building assignments may run git and is repeated with the claim: no transaction stays open meanwhile.
    let mut given = Vec::new();
    for job in claimed {
        let (id, fencing_token) = (job.job, job.fencing_token);
        match build_assignment(app, request, node, job, body.applies_profiles).await {
            Ok(mut assignment) => {
                given_context::give_to_job(app, request, &mut assignment).await;
                given.push(assignment);
            }
            Err(Error::Invalid(why)) => {
                job_reports::fail_job(app, node, id, fencing_token, &why).await?;
            }
            // The other jobs do not wait for this one: without a report its lease expires and it is retried.
            Err(error) => log_background_error(
                "job.assign_failed",
                &error,
                "a job could not be assigned to its node",
            ),
        }
    }
    Ok(JobAssignments { jobs: given })
}

/// Builds the assignment of a claimed job. Returns `Invalid` when the job cannot be done as planned.
async fn build_assignment(
    app: &App,
    request: &OperationRequest,
    node: AuthenticatedNode,
    job: ClaimedNodeJob,
    applies_profiles: bool,
) -> Result<JobAssignment, Error> {
    let work = job.payload.unit.get("work").cloned().unwrap_or_default();
    let mut work: JobSpec = serde_json::from_value(work)
        .map_err(|error| Error::Invalid(format!("the unit's `work` cannot be read: {error}")))?;
    let mut conn = app.conn().await?;
    let held = policies::load_policies(&mut conn, job.user, Some(job.project)).await?;
    require_allowed_node(&mut conn, &held, node).await?;
    require_allowed_image(&mut conn, &held, work.sandbox.image.as_deref()).await?;
    drop(conn);
    let mut environment = match &work.sandbox.environment {
        Some(wanted) => {
            Some(environments::assign_environment(app, job.project, job.task, wanted).await?)
        }
        None => None,
    };
    if let Some(EnvironmentBase::Image(image)) = environment.as_ref().map(|it| &it.spec.base) {
        let mut conn = app.conn().await?;
        require_allowed_image(&mut conn, &held, Some(image.as_str())).await?;
    }
    let reachable = |host: &String| {
        let host = host.to_ascii_lowercase();
        held.find_refusal(PolicyKey::AllowedDomains, &host).is_none()
    };
    work.sandbox.egress_hosts.retain(reachable);
    if let Some(feedback) = parse_revision_feedback(&job.payload.remedy) {
        work.context.revision_feedback = Some(feedback);
    }
    if work.context.task_summary.is_empty() {
        work.context.task_summary.clone_from(&job.payload.title);
    }
    // The commits of an earlier attempt are already there: this attempt may find nothing more to change.
    if job.again && work.commit == CommitRule::Required {
        work.commit = CommitRule::IfChanged;
    }
    let (base, merge) = base_commits_of(app, &job).await?;
    if base.is_none() && matches!(work.worker, WorkerChoice::Checks { .. }) {
        return Err(Error::Invalid("the repository of the project has no commit yet".into()));
    }
    if let Some(environment) = &mut environment {
        // The first job of a task begins with the default branch.
        environment.trusted_commit = environment.trusted_commit.take().or_else(|| base.clone());
    }
    let mut ctx = app.begin_transaction(request).await?;
    let profile = job_profiles::assign_profile(&mut ctx, &job, &mut work, applies_profiles).await?;
    guidance::guide_job(ctx.conn(), &job, &mut work).await?;
    nodes::set_job_base(ctx.conn(), job.job, base.as_deref(), &merge).await?;
    if let Some(commit) = base.as_ref().filter(|_| job.payload.unit["base"] == true) {
        cynode_db::delivery::evidence::set_base_commit(ctx.conn(), job.job, commit).await?;
    }
    let seconds_left = match &environment {
        // The set-up does not take its time from the work.
        Some(environment) => {
            let more = environment.spec.setup_seconds();
            let left =
                nodes::extend_job_deadline(ctx.conn(), job.job, job.fencing_token, more).await?;
            left.ok_or(Error::Fenced("the job was given to somebody else, or it has ended"))?
        }
        None => job.seconds_left,
    };
    let seconds_left = u32::try_from(seconds_left).unwrap_or(u32::MAX);
    let for_job = JobTokenRequest {
        role: work.role,
        user: job.user,
        project: job.project,
        task: job.task,
        run: job.run,
        job: job.job,
        tools: work.tools.as_deref(),
        models: &work.models,
        // The node may assemble the result shortly after the deadline.
        seconds: seconds_left.saturating_add(60),
    };
    let (agent_token_id, agent_token): (_, SecretText) =
        agent_tokens::issue_for_job(&mut ctx, for_job).await?;
    let checkpoint = reports::last_checkpoint(ctx.conn(), job.task, Some(job.job)).await?;
    app.commit_operation(ctx).await?;
    Ok(JobAssignment {
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
        checkpoint,
        environment,
        profile,
    })
}

/// Rejects a node that a policy keeps from the job. Placement does so too; labels or policies may have changed since.
async fn require_allowed_node(
    conn: &mut Conn,
    held: &PolicySet,
    node: AuthenticatedNode,
) -> Result<(), Error> {
    let bounds = held.placement_bounds();
    if bounds == PlacementBounds::default() {
        return Ok(());
    }
    let found = nodes::get_node(conn, node.id).await?.ok_or(Error::Unauthenticated)?;
    match bounds.find_refusal(&found.name, &found.labels) {
        Some(entry) => Err(Error::Invalid(format!(
            "the node `{}` may not do it: {}",
            found.name,
            entry.describe_policy()
        ))),
        None => Ok(()),
    }
}

/// Rejects an image that a policy or the allowlist of sandbox images does not allow. An empty allowlist allows every
/// image. Without an image a job uses the node's own system, which only a policy can forbid.
async fn require_allowed_image(
    conn: &mut Conn,
    held: &PolicySet,
    image: Option<&str>,
) -> Result<(), Error> {
    let named = image.unwrap_or(HOST_IMAGE);
    if let Some(entry) = held.find_refusal(PolicyKey::AllowedImages, named) {
        return Err(Error::Invalid(format!(
            "the image `{named}` cannot be used: {}",
            entry.describe_policy()
        )));
    }
    let Some(image) = image else { return Ok(()) };
    let allowed = cynode_db::manager::reports::list_allowed_images(conn).await?;
    if allowed.is_empty() || allowed.iter().any(|there| there == image) {
        return Ok(());
    }
    Err(Error::Invalid(format!("the image `{image}` is not among those that are allowed")))
}

/// Parses the findings of the previous attempt.
fn parse_revision_feedback(remedy: &serde_json::Value) -> Option<RevisionFeedback> {
    let findings: Vec<VerificationFinding> =
        serde_json::from_value(remedy.get("findings")?.clone()).ok()?;
    let summary = match findings.len() {
        0 => return None,
        1 => "The last attempt was not good: one thing was found.".to_owned(),
        n => format!("The last attempt was not good: {n} things were found."),
    };
    Some(RevisionFeedback { summary, findings })
}

/// Returns the commit that a job starts from and the commits merged into it: those of an earlier attempt or of the
/// preceding units, else the head of the pull request that the task continues, else the head of the project.
async fn base_commits_of(
    app: &App,
    job: &ClaimedNodeJob,
) -> Result<(Option<String>, Vec<String>), Error> {
    match job.bases.as_slice() {
        [] => {
            // A later job starts from the same base as the first job of the task, because the change is measured from
            // there.
            let mut conn = app.conn().await?;
            let earlier =
                cynode_db::delivery::evidence::get_task_continuation(&mut conn, job.task).await?;
            let first = match earlier {
                Some(earlier) => Some(earlier.start_commit),
                None => {
                    cynode_db::delivery::evidence::load_change_baseline(&mut conn, job.task)
                        .await?
                        .base
                }
            };
            drop(conn);
            if first.is_some() {
                return Ok((first, Vec::new()));
            }
            let continued = pull_requests::continuation_base(app, job.task).await?;
            let head = match continued {
                Some(head) => Some(head),
                None => {
                    crate::delivery::forges::refresh_stale_commits(app, job.project).await;
                    repositories::project_head(app, job.project).await?
                }
            };
            Ok((head, Vec::new()))
        }
        [one] => Ok((Some(one.clone()), Vec::new())),
        several => {
            let mut heads = app
                .gateway_parts()?
                .repositories
                .independent_heads(job.project, several)
                .await?
                .into_iter();
            Ok((heads.next(), heads.collect()))
        }
    }
}

/// Returns whether a heartbeat reports no jobs and no delivered instructions.
pub const fn is_idle(body: &NodeHeartbeat) -> bool {
    body.jobs.is_empty() && body.delivered.is_empty()
}

/// Records a heartbeat. Returns the jobs that are to be cancelled and the instructions for the node's agents.
#[tracing::instrument(name = "app.nodes.record_heartbeat", skip_all, fields(node.id = %node.id))]
#[operation]
pub async fn record_heartbeat(
    app: &App,
    node: AuthenticatedNode,
    body: &NodeHeartbeat,
) -> Result<HeartbeatAnswer, Error> {
    if body.jobs.len() > 1000 || body.delivered.len() > 1000 {
        return Err(Error::Invalid("a heartbeat names at most 1000 jobs and instructions".into()));
    }
    // The heartbeats of all idle nodes are written together.
    if is_idle(body) && app.record_idle_heartbeat(node.id) {
        return Ok(HeartbeatAnswer {
            stop: Vec::new(),
            instructions: Vec::new(),
            draining: node.state == NodeState::Draining,
        });
    }
    let mut conn = app.conn().await?;
    let kept = nodes::renew_job_leases(&mut conn, node.id, &body.jobs, JOB_LEASE_MS).await?;
    let mut stop = Vec::new();
    for held in body.jobs.iter().filter(|held| !kept.contains(&held.job_id)) {
        let standing = jobs::get_claim_state(&mut conn, held.job_id).await?;
        let reason = stop_reason(standing.as_ref(), node, held.fencing_token).to_owned();
        stop.push(StopJob { job_id: held.job_id, fencing_token: held.fencing_token, reason });
    }
    let told = match kept.as_slice() {
        [] => Vec::new(),
        kept => nodes::list_pending_instructions(&mut conn, kept).await?,
    };
    // An instruction is for a task. Each of its agents gets it under an id of its own.
    let (passed_on, new): (Vec<_>, Vec<_>) =
        told.iter().partition(|told| body.delivered.contains(&instruction_uuid(told)));
    if !passed_on.is_empty() {
        nodes::mark_instructions_delivered(&mut conn, &passed_on).await?;
    }
    let instructions = new.into_iter().map(|told| JobInstruction {
        instruction_id: instruction_uuid(told),
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

/// Derives the id of an instruction to one agent. The id is the same on every heartbeat.
fn instruction_uuid(told: &PendingInstruction) -> Uuid {
    derive_uuid([told.job.as_uuid().into_bytes(), told.id.as_uuid().into_bytes()].concat())
}

fn stop_reason(
    standing: Option<&jobs::JobClaimState>,
    node: AuthenticatedNode,
    fencing_token: i64,
) -> &'static str {
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

/// Returns the project and the commits of its repository that a node may read for one of its jobs.
#[tracing::instrument(name = "app.nodes.sources_of_job", skip_all)]
#[operation]
pub async fn sources_of_job(
    app: &App,
    node: AuthenticatedNode,
    job: JobId,
) -> Result<JobSources, Error> {
    let mut conn = app.conn().await?;
    let sources = nodes::sources_of_running_job(&mut conn, node.id, job).await?;
    sources.ok_or_else(|| Error::not_found("job of this node", job))
}
