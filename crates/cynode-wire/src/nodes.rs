//! The contract with nodes: machines of the user that run jobs in sandboxes. A node always calls, it is never called.
//!
//! Joining: `POST /v1/nodes/join`, once, with a one-time token. Then, for each of its short-lived tokens,
//! `POST /v1/nodes/challenge` and `POST /v1/nodes/token` with the challenge signed by the node's Ed25519 key.
//! `POST /v1/nodes/verify` takes the same signature, makes no token and disturbs nobody: it is for looking whether all is well.
//! With that token: `report`, `claim`, `heartbeat`, and below `jobs/{job}`: `events`, `permission`, `blobs`, `result`, `git/…`.

use std::collections::BTreeMap;

use cynode_core::{
    environments::{EnvironmentRef, EnvironmentSpec, PackagePolicy},
    ids::{AgentTokenId, JobId, NodeId, ProjectId, RunId, TaskId},
    nodes::{CommandOutcome, JobEvent, NodeJobStatus, NodeReport, NodeState, WorkStopReason},
    profiles::{ProfileName, ProfileSpec},
    workflow::{
        instructions::InstructionKind,
        jobs::{JobSpec, SandboxBackend},
        plan::UnitKey,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{identity::accounts::SecretText, workflow::jobs::JobOutcome};

/// What a node signs to show that it has its key: this text, the node's id and the challenge, each on a line.
pub const TOKEN_SIGNATURE_CONTEXT: &str = "cynode node token v1";

/// The bytes that a node signs to get a token.
pub fn signed_bytes(node: NodeId, challenge: &str) -> Vec<u8> {
    format!("{TOKEN_SIGNATURE_CONTEXT}\n{node}\n{challenge}").into_bytes()
}

/// Makes a machine a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinNode {
    /// The one-time token. With the same key it may be shown again and gives the same node.
    #[schema(value_type = String)]
    pub join_token: SecretText,
    /// What the node wants to be called.
    pub name: String,
    /// Its Ed25519 key, 32 bytes in hexadecimal.
    pub public_key: String,
    /// What it can do, as it measured.
    pub report: NodeReport,
}

/// A node that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinedNode {
    /// Its id.
    #[schema(value_type = String)]
    pub node_id: NodeId,
    /// What it is called.
    pub name: String,
    /// Its client certificate, where the internal port speaks TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<NodeCertificate>,
}

/// A client certificate for the key of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeCertificate {
    /// The certificate and that of the certificate authority, in PEM.
    pub chain_pem: String,
    /// The certificate of the certificate authority, in PEM.
    pub authority_pem: String,
    /// When it expires.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// Asks for a client certificate. It needs none, so that a node whose certificate has expired gets another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskCertificate {
    /// The node.
    #[schema(value_type = String)]
    pub node_id: NodeId,
    /// The challenge.
    pub challenge: String,
    /// The signature over [`signed_bytes`], 64 bytes in hexadecimal.
    pub signature: String,
}

/// Asks for something to sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskChallenge {
    /// The node.
    #[schema(value_type = String)]
    pub node_id: NodeId,
}

/// Something to sign, good for a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeChallenge {
    /// The text.
    pub challenge: String,
}

/// Asks for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskNodeToken {
    /// The node.
    #[schema(value_type = String)]
    pub node_id: NodeId,
    /// The challenge.
    pub challenge: String,
    /// The signature over [`signed_bytes`], 64 bytes in hexadecimal.
    pub signature: String,
    /// The generation of the process that renews its token. A process that starts leaves it out: it takes over from any other process
    /// of the node, whose tokens end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// Shows that a machine has the key of a node. No token is made and nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyNode {
    /// The node.
    #[schema(value_type = String)]
    pub node_id: NodeId,
    /// The challenge.
    pub challenge: String,
    /// The signature over [`signed_bytes`], 64 bytes in hexadecimal.
    pub signature: String,
}

/// A node as the control plane knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifiedNode {
    /// Its id.
    #[schema(value_type = String)]
    pub node_id: NodeId,
    /// What it is called.
    pub name: String,
    /// Whether it gets jobs.
    pub state: NodeState,
    /// Whether its program was heard of lately.
    pub alive: bool,
}

/// A node's token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeToken {
    /// The token.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// For how long it works.
    pub expires_in_seconds: u32,
    /// The generation of the process that asked, to renew the token with.
    pub generation: i64,
}

/// How a node is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its id.
    #[schema(value_type = String)]
    pub node_id: NodeId,
    /// What it is called.
    pub name: String,
    /// `active`, `draining` or `removed`.
    pub state: NodeState,
    /// Whether it was heard of lately.
    pub alive: bool,
    /// Whether its program has ever run; a machine that only joined takes no jobs.
    pub started: bool,
    /// Its labels.
    pub labels: Vec<String>,
    /// The jobs it has.
    pub jobs: u32,
    /// What it can do.
    pub report: NodeReport,
    /// When it joined.
    #[serde(with = "time::serde::rfc3339")]
    pub joined_at: OffsetDateTime,
    /// When it was heard of last.
    #[serde(with = "time::serde::rfc3339")]
    pub last_seen_at: OffsetDateTime,
}

/// Lets one machine join.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IssueJoinToken {
    /// The labels that the node will have.
    pub labels: Vec<String>,
    /// For how long the token works, 60 to 86400 seconds; 3600 when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
}

/// A join token; it is shown once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedJoinToken {
    /// The token.
    #[schema(value_type = String)]
    pub join_token: SecretText,
    /// When it stops working.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// Changes what people decide about a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChangeNode {
    /// `true`: no more jobs. `false`: jobs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// All its labels from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<String>>,
}

/// Asks for jobs that were placed on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimAssignments {
    /// Names this claim: sent again, it gives the same jobs and no others.
    pub claim_id: Uuid,
    /// Most jobs, 1 to 100.
    pub max_jobs: u16,
    /// How long to wait when there is none, at most 20000.
    #[serde(default)]
    pub wait_ms: u32,
    /// Whether the node applies the profile of a job. Nodes of earlier releases leave it out.
    #[serde(default)]
    pub applies_profiles: bool,
}

/// The jobs of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAssignments {
    /// The jobs, oldest first.
    pub jobs: Vec<JobAssignment>,
}

/// A job, with all that a node needs to do it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAssignment {
    /// Its id.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// The task it is for.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The run of the task.
    #[schema(value_type = String)]
    pub run_id: RunId,
    /// The project.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// The unit it is an attempt of.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// What is to be done, in a line.
    pub title: String,
    /// Which attempt.
    pub attempt: u32,
    /// The token that everything said about the job must carry.
    pub fencing_token: i64,
    /// What is to be done. The feedback to the last attempt is in its context.
    pub work: JobSpec,
    /// The commit to start from; none when the project has no repository: the workspace starts empty.
    pub base: Option<String>,
    /// Commits that are put together with the one to start from, in this order, before the worker begins. Where they do not fit, the
    /// worker finds the marks of the first that does not; [`cynode_core::workflow::jobs::WorkerChoice::Merge`] ends with the
    /// conflict instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merge: Vec<String>,
    /// The branch that the work is on.
    pub branch: String,
    /// What opens models and tools for this job. It stays on the node: sandboxes never see it.
    #[schema(value_type = String)]
    pub agent_token: SecretText,
    /// Its id, which may be written down.
    #[schema(value_type = String)]
    pub agent_token_id: AgentTokenId,
    /// Most seconds from now to the result.
    pub seconds_left: u32,
    /// The trace that everything about it carries.
    pub trace_id: String,
    /// What the last attempt of the unit wrote down with `agent.checkpoint`, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// The environment that `work.sandbox.environment` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<AssignedEnvironment>,
    /// The profile that its agent works under; none from an orchestrator that knows no profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Box<AssignedProfile>>,
}

/// The profile of a job, as it was when the job was assigned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssignedProfile {
    /// Its name.
    #[schema(value_type = String)]
    pub name: ProfileName,
    /// Its version.
    pub version: u32,
    /// What it permits.
    pub spec: ProfileSpec,
}

/// An environment, with all that a node needs to set it up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssignedEnvironment {
    /// Its version and digest.
    pub reference: EnvironmentRef,
    /// What it is made of.
    pub spec: EnvironmentSpec,
    /// Secrets for set-up, by variable. They stay out of agents, checks and logs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, SecretText>,
    /// What policy says about packages.
    #[serde(default)]
    pub package_policy: PackagePolicy,
    /// The commit of the default branch that the task's work began with. Set-up uses its files; those of a commit that nobody has
    /// reviewed only where its lock files are others, and then neither secrets nor other jobs have to do with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_commit: Option<String>,
}

/// Says what the node is at: one message for all its jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeHeartbeat {
    /// The jobs that it has.
    pub jobs: Vec<NodeJobStatus>,
    /// Instructions that it has passed on, by id: they are not given again.
    pub delivered: Vec<Uuid>,
}

/// What the orchestrator says to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// Jobs that are to be ended at once, with the reason; nothing more is wanted of them.
    pub stop: Vec<StopJob>,
    /// What the agents are to be told.
    pub instructions: Vec<JobInstruction>,
    /// Whether the node gets no more jobs.
    pub draining: bool,
}

/// A job that is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopJob {
    /// The job.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// The token of the claim that was named.
    pub fencing_token: i64,
    /// Why.
    pub reason: String,
}

/// What an agent at work is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobInstruction {
    /// Names it.
    pub instruction_id: Uuid,
    /// The job.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// What kind.
    #[schema(value_type = String)]
    pub kind: InstructionKind,
    /// The words.
    pub text: String,
}

/// Events of a job, in order. Sent again, nothing is stored twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobEvents {
    /// The token of the claim.
    pub fencing_token: i64,
    /// The number of the first one; the first of a claim has 0.
    pub first: u64,
    /// The events, at most 500.
    pub events: Vec<JobEvent>,
}

/// How far the orchestrator has the events of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsReceipt {
    /// The number it expects next.
    pub next: u64,
}

/// Asks a person for permission for what an agent wants to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskPermission {
    /// The token of the claim.
    pub fencing_token: i64,
    /// What it is, in a line.
    pub title: String,
    /// Exactly what is to be done: a command, a diff, arguments.
    pub input: Value,
    /// How long to wait for the answer, at most 20000.
    #[serde(default)]
    pub wait_ms: u32,
}

/// What a person said. Asked again in the same words while the job runs, the answer is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum PermissionAnswer {
    /// Do it.
    Allowed,
    /// Do not.
    Refused,
    /// Nobody has answered yet: ask again.
    Waiting,
}

/// Bytes that were stored for a job: `PUT /v1/nodes/jobs/{job}/blobs/{sha256}?fencing_token=…`, raw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredBlob {
    /// Their SHA-256, in hexadecimal.
    pub sha256: String,
    /// How many.
    pub bytes: u64,
}

/// What came of a job on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeResult {
    /// The token of the claim.
    pub fencing_token: i64,
    /// Whether the worker says it succeeded. A claim, not evidence.
    pub outcome: JobOutcome,
    /// What came of it.
    pub result: WorkResult,
}

/// What came of work in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkResult {
    /// What the worker said last, or why it failed.
    pub summary: String,
    /// Why the work stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<WorkStopReason>,
    /// The commit that was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The stored git bundle that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<StoredBlob>,
    /// Other stored bytes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub artifacts: BTreeMap<String, StoredBlob>,
    /// The agent's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The commands that ran, for workers that run commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<CommandOutcome>,
    /// Where commits did not fit together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<MergeConflict>,
    /// What the sandbox used.
    pub resource_usage: SandboxUse,
}

/// Two commits that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MergeConflict {
    /// The commit that did not fit.
    pub commit: String,
    /// Those that had been merged before it.
    pub merged_commits: Vec<String>,
    /// The files, at most 100.
    pub files: Vec<String>,
}

/// What a sandbox used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxUse {
    /// Which backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SandboxBackend>,
    /// CPU time.
    pub cpu_ms: u64,
    /// The most memory at once.
    pub peak_memory_bytes: u64,
    /// From claim to result.
    pub wall_ms: u64,
    /// Whether the memory limit ended something.
    pub out_of_memory: bool,
}

/// An event of a job, as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobEventView {
    /// Its number in the job.
    pub number: u64,
    /// When it came.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Milliseconds since the job was claimed.
    pub at_ms: u64,
    /// What kind.
    pub event: String,
    /// What; the fields depend on the kind.
    pub data: Value,
    /// The profile that the job was given; none for a job from before there were profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The trace of the job.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_id: String,
}

/// The repository of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryView {
    /// The project.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// The branch that work starts from.
    pub default_branch: String,
    /// Its commit.
    pub head: String,
    /// When it was brought, or brought up to date.
    #[serde(with = "time::serde::rfc3339")]
    pub imported_at: OffsetDateTime,
}
