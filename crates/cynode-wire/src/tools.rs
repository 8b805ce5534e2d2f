//! The gate, as people see and change it: tokens, tools, rules, servers, approvals, records.

pub mod audit;
pub mod profile_checks;
pub mod profiles;
pub mod rules;

use std::collections::BTreeMap;

use cynode_core::{
    agents::{AgentKind, AgentRole, ToolScope},
    ids::{AgentTokenId, ApprovalId, CallId, JobId, ProjectId, RunId, ServerId, TaskId, UserId},
    paging::RecordCursor,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::SecretText;

/// Asks for a token of an agent.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueAgentToken {
    /// What the agent does; the type of agent follows from it.
    #[schema(value_type = String, example = "developer")]
    pub role: AgentRole,
    /// The project it works in.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// The task it works on; only a project manager may do without.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// The job it is.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// The profile it works under; when it is left out, that of the task, else that of the preference `memory.profile`, else `default`.
    #[serde(default)]
    pub profile: Option<String>,
    /// `false` takes the network away that the profile has. `true` is refused if the profile has none.
    #[serde(default)]
    pub network: Option<bool>,
    /// The only tools it is good for; all that the role may use when it is left out.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// The models it opens, by id (tiers such as `cynodeai.fast` too); none when it is left out.
    #[serde(default)]
    pub models: Vec<String>,
    /// How long it works, 60 to 604800; 3600 when it is left out.
    #[serde(default)]
    pub expires_in_seconds: Option<u32>,
}

/// A token of an agent, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentTokenView {
    /// Its id.
    #[schema(value_type = String)]
    pub agent_token_id: AgentTokenId,
    /// The type of agent.
    #[schema(value_type = String)]
    pub kind: AgentKind,
    /// What the agent does.
    #[schema(value_type = String)]
    pub role: AgentRole,
    /// In whose name it works.
    #[schema(value_type = Option<String>)]
    pub user_id: Option<UserId>,
    /// The project it works in.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// The task it works on.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// The run it works in.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// The job it is.
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// The profile it works under.
    pub profile: String,
    /// Whether its tools may use the network.
    pub network: bool,
    /// The only tools it is good for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The models it opens.
    pub models: Vec<String>,
    /// When it was issued.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ends.
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
}

/// A new token; the secret is shown this once.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct IssuedAgentToken {
    /// The secret: `Authorization: Bearer …` at `/mcp` of the internal port.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// What it is good for.
    #[serde(flatten)]
    pub about: AgentTokenView,
}

/// A tool, as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolView {
    /// Its name.
    pub name: String,
    /// What agents call it.
    pub wire_name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// What a person reads.
    pub title: String,
    /// What a model reads.
    pub description: String,
    /// Whether it is switched on.
    pub enabled: bool,
    /// Who may call it: `pm`, `sandbox` or `both`.
    #[schema(value_type = String)]
    pub scope: ToolScope,
    /// Where it comes from: `native`, or the id of a server.
    pub origin: String,
    /// Whether its definition is the one that was accepted.
    pub accepted: bool,
    /// The ids that tie a call to a task, run or job.
    pub bound_to: Vec<String>,
    /// Whether it reaches into the network.
    pub network: bool,
    /// What it does to the world.
    pub annotations: Value,
    /// The digest of its definition.
    pub definition_digest: String,
    /// The roles whose allowlist has it.
    pub roles: Vec<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

/// Changes a tool: what is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTool {
    /// Switches it on or off, at once and for everybody.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// Who may call it: `pm`, `sandbox` or `both`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub scope: Option<ToolScope>,
}

/// The allowlist of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowlistView {
    /// The role.
    #[schema(value_type = String)]
    pub role: AgentRole,
    /// The type of agent.
    #[schema(value_type = String)]
    pub kind: AgentKind,
    /// Its lines, in the order in which they are asked.
    pub lines: Vec<AllowlistLine>,
}

/// One line of an allowlist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowlistLine {
    /// A tool, or a group such as `db.*`.
    pub tools: String,
    /// The system setting that must be `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
}

/// Writes a rule.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetRule {
    /// What it does when it applies: `refuse`, `approve` or `shadow`.
    #[schema(example = "refuse")]
    pub mode: String,
    /// One Cedar `forbid`.
    #[schema(example = "forbid (principal, action in Action::\"git.*\", resource);")]
    pub text: String,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleView {
    /// Its name: it is in records and answers.
    pub name: String,
    /// What it does when it applies.
    pub mode: String,
    /// One Cedar `forbid`.
    pub text: String,
    /// How often it was written.
    pub version: i64,
    /// Who wrote it last; nobody when it came with the installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub updated_by: Option<UserId>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// Asks why a call would be allowed or refused. Nothing is called and nothing is recorded.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The token of the agent.
    #[schema(value_type = String)]
    pub agent_token_id: AgentTokenId,
    /// The tool, by the dotted name or the one on the wire.
    pub tool: String,
    /// The arguments; none when they are left out.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Option<Value>,
    /// Rules to be tried instead of those that hold.
    #[serde(default)]
    pub rules: Option<BTreeMap<String, SetRule>>,
}

/// Why a call would be allowed or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyExplanation {
    /// `allow`, `deny` or `needs_approval`.
    pub decision: String,
    /// The code of the refusal; `allowed` when there is none.
    pub reason: String,
    /// In a sentence.
    pub detail: String,
    /// What the caller should do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The questions of the gate, in order.
    pub steps: Vec<ExplainedStep>,
    /// The rules that decided.
    pub rules: Vec<String>,
    /// Rules on trial that would have refused.
    pub shadow: Vec<String>,
    /// Names the policy that was asked.
    pub policy_hash: String,
    /// Names the catalogue that was asked.
    pub catalogue_hash: String,
    /// The profile that the agent works under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Version of that profile; 0 if there is none of that name any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_version: Option<u32>,
}

/// One question of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedStep {
    /// The question.
    pub step: String,
    /// `passed`, `refused`, `not_reached`, `at_the_call` for what only a real call can answer, or `not_recorded` for what depends on
    /// arguments that are not known.
    pub result: String,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ServerTransport {
    /// Streamable HTTP.
    Http {
        /// Where.
        url: String,
    },
    /// A program in a sandbox, spoken to by its standard input and output.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        #[serde(default)]
        args: Vec<String>,
        /// Whether the program may reach hosts outside. It then names them in `network_hosts`.
        #[serde(default)]
        network: bool,
        /// The hosts that the program may reach, by name: HTTPS on port 443, and plain GET on port 80, through a proxy that connects to
        /// public addresses only.
        #[serde(default)]
        network_hosts: Vec<String>,
    },
}

/// Whose agents may use a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AudienceView {
    /// Everybody's. Only an admin may choose it.
    Everybody,
    /// Those of a project.
    Project,
    /// Those that work in the owner's name.
    User,
}

/// Installs a tool server.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InstallServer {
    /// What it is called, `[a-z][a-z0-9-]*`; unique.
    pub name: String,
    /// What people read.
    #[serde(default)]
    pub title: Option<String>,
    /// How it is reached. Give this or `server_json`.
    #[serde(default)]
    pub transport: Option<ServerTransport>,
    /// The `server.json` of a registry; its first streamable HTTP remote is used.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub server_json: Option<Value>,
    /// Whether it may be on this machine or in a private network. Only an admin may allow that, and it ends when they are no
    /// admin any more.
    #[serde(default)]
    pub allow_private: bool,
    /// Headers of each request, or variables of the program. They are kept encrypted and never shown.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, SecretText>,
    /// Whose agents may use it; the caller's own when it is left out.
    #[serde(default)]
    pub audience: Option<AudienceView>,
    /// The project, when the audience is one.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// Who may call its tools: `pm`, `sandbox` or `both`.
    #[schema(value_type = String)]
    pub scope: ToolScope,
    /// What its tools' names begin with; `ext.NAME` when it is left out. Only an admin may choose another.
    #[serde(default)]
    pub prefix: Option<String>,
    /// How long a call may take, 100 to 600000; 30000 when it is left out.
    #[serde(default)]
    pub timeout_ms: Option<i32>,
    /// Most calls at once, 1 to 1000; 32 when it is left out.
    #[serde(default)]
    pub max_in_flight: Option<i32>,
}

/// Changes a server: what is left out stays as it is.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateServer {
    /// What people read.
    #[serde(default)]
    pub title: Option<String>,
    /// Whether it is in use.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// Whether it may be on this machine or in a private network. Only an admin may allow that.
    #[serde(default)]
    pub allow_private: Option<bool>,
    /// Who may call its tools.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub scope: Option<ToolScope>,
    /// How long a call may take.
    #[serde(default)]
    pub timeout_ms: Option<i32>,
    /// Most calls at once.
    #[serde(default)]
    pub max_in_flight: Option<i32>,
}

/// A tool server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerView {
    /// Its id.
    #[schema(value_type = String)]
    pub server_id: ServerId,
    /// What it is called.
    pub name: String,
    /// What people read.
    pub title: String,
    /// How it is reached.
    pub transport: ServerTransport,
    /// Whether it may be on this machine or in a private network: an admin allowed it and still is one.
    pub allow_private: bool,
    /// The names of its secrets.
    pub secrets: Vec<String>,
    /// What its tools' names begin with.
    pub prefix: String,
    /// Whose agents may use it.
    pub audience: AudienceView,
    /// The project, when the audience is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// Who installed it.
    #[schema(value_type = String)]
    pub owner_id: UserId,
    /// Who may call its tools.
    #[schema(value_type = String)]
    pub scope: ToolScope,
    /// How long a call may take.
    pub timeout_ms: i32,
    /// Most calls at once.
    pub max_in_flight: i32,
    /// Whether it is in use.
    pub enabled: bool,
    /// When its tools were last read.
    #[serde(with = "time::serde::rfc3339::option")]
    pub listed_at: Option<OffsetDateTime>,
    /// Why they could not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What it offers.
    pub tools: Vec<ServerToolView>,
}

/// A tool that a server offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerToolView {
    /// What the server calls it.
    pub tool: String,
    /// What we call it.
    pub name: String,
    /// `accepted`, `new`, `changed` or `gone`. Only accepted tools can be called.
    pub state: String,
    /// The digest of what the server says now: give it back to accept exactly that.
    pub definition_digest: String,
    /// What the server says now.
    #[schema(value_type = Object)]
    pub definition: Value,
    /// What was accepted before, when that is something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub accepted: Option<Value>,
    /// Who accepted a definition of it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub accepted_by: Option<UserId>,
    /// When a definition of it was accepted last.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub accepted_at: Option<OffsetDateTime>,
    /// What it does to the world, as a person judged it.
    #[schema(value_type = Object)]
    pub annotations: Value,
}

/// Accepts what servers offer, exactly as it was seen.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptTools {
    /// The digest that was seen, by the name that the server uses.
    pub tools: BTreeMap<String, String>,
}

/// A call that waits for a person's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    /// Its id.
    #[schema(value_type = String)]
    pub approval_id: ApprovalId,
    /// The agent.
    #[schema(value_type = String)]
    pub agent_token_id: AgentTokenId,
    /// The project.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// The task.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// The tool.
    pub tool: String,
    /// The keyed digest of the arguments: the yes is good for these and no others.
    pub arguments_digest: String,
    /// The arguments, for whoever looks at this one call before it is answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
    /// The policy and the tool's definition under which it was asked: others ask again.
    pub policy_hash: String,
    /// The rules that want it.
    pub rules: Vec<String>,
    /// `asked`, `approved`, `refused` or `used`.
    pub state: String,
    /// When it was asked.
    #[serde(with = "time::serde::rfc3339")]
    pub asked_at: OffsetDateTime,
    /// When it is too late.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// Who approved or denied it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub decided_by: Option<UserId>,
    /// When it was approved or denied.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub decided_at: Option<OffsetDateTime>,
}

/// A person's answer to a call.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// Whether the call may be made, once.
    pub approved: bool,
}

/// What checking all records of tool calls showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditReport {
    /// How many chains there are.
    pub chains: u64,
    /// How many of them had their records removed when their time was over.
    pub pruned: u64,
    /// How many chains are closed: nothing is missing at their end.
    pub closed: u64,
    /// How many records were checked.
    pub records: u64,
    /// How many of them a signed checkpoint covers.
    pub covered: u64,
    /// How many records of privileged events could not be compared with their events: an admin of the database dropped their months.
    #[serde(default)]
    pub dropped_events: u64,
    /// The end of the list of chains: keep it elsewhere, and a later list that lacks a chain is found out.
    pub head: String,
    /// What is wrong; nothing when everything is there and unchanged.
    pub problems: Vec<String>,
}

/// A proof for somebody who has a signed head and our public key, and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditProof {
    /// The record, as it was hashed.
    pub record: Value,
    /// The signed head.
    pub checkpoint: Value,
    /// The way from one to the other, in the tree of RFC 6962.
    pub inclusion: Value,
    /// Our public key, Ed25519, hex.
    pub public_key: String,
}

/// Records of tool calls, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The records.
    pub items: Vec<AuditView>,
    /// Give this as `cursor` to read on; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub next_cursor: Option<RecordCursor>,
}

/// A record of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// The chain it is in.
    pub chain_id: String,
    /// Its place there.
    pub seq: i64,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The call.
    #[schema(value_type = String)]
    pub call_id: CallId,
    /// `decision` or `outcome`.
    pub phase: String,
    /// `allow`, `deny` or `needs_approval`.
    pub decision: String,
    /// Why.
    pub reason: String,
    /// The rules that decided.
    pub rules: Vec<String>,
    /// Rules on trial that would have refused.
    pub shadow: Vec<String>,
    /// How it ended.
    pub outcome: Option<String>,
    /// The token.
    #[schema(value_type = Option<String>)]
    pub agent_token_id: Option<AgentTokenId>,
    /// The type of agent.
    pub agent_kind: Option<String>,
    /// What the agent does.
    pub agent_role: Option<String>,
    /// The profile that it worked under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// In whose name.
    #[schema(value_type = Option<String>)]
    pub user_id: Option<UserId>,
    /// The project.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// The task.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// The run.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// The job.
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// The method of the protocol.
    pub method: String,
    /// The tool.
    pub tool: Option<String>,
    /// The server.
    #[schema(value_type = Option<String>)]
    pub server_id: Option<ServerId>,
    /// Names the policy.
    pub policy_hash: String,
    /// The trace.
    pub trace_id: String,
    /// The keyed digest of the arguments.
    pub arguments_digest: Option<String>,
    /// How many bytes they had.
    pub arguments_size: i64,
    /// How many bytes the result had.
    pub result_size: i64,
    /// How long it took.
    pub duration_us: i64,
    /// The hash that chains it.
    pub hash: String,
}
