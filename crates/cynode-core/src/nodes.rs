//! Nodes: what a node reports of itself and of its jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    environments::PackageFetch, evidence::test_results::TestReport, ids::JobId,
    workflow::jobs::SandboxBackend,
};

/// What a node can do, as it measured; nothing in it is taken on trust where it would widen what a job may.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeReport {
    /// The version of its program.
    pub version: String,
    /// Cores.
    pub cores: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Free disk where jobs live, in MiB.
    pub disk_free_mib: u64,
    /// How many jobs it takes at once.
    pub slots: u32,
    /// The backends that it tried and that work.
    pub backends: Vec<BackendReport>,
    /// The coding agents that it found.
    pub agents: Vec<AgentReport>,
    /// What is wrong with its configuration, in a sentence each: it works without what they name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What it gives a job at most; unknown for a node that does not say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_limits: Option<JobLimitsReport>,
    /// The kernel, the control groups (`v1` or `v2`) and other facts for people.
    pub facts: BTreeMap<String, String>,
}

/// What a node gives one job at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobLimitsReport {
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// CPU, in hundredths of a core.
    pub cpu_percent: u32,
    /// Number of processes.
    pub processes: u32,
    /// Disk space for workspace and home together, in MiB.
    pub disk_mib: u32,
}

/// A backend that works on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendReport {
    /// Which.
    pub backend: SandboxBackend,
    /// Its version.
    pub version: String,
}

/// A coding agent on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentReport {
    /// The name of its recipe.
    pub agent: String,
    /// Its version.
    pub version: String,
}

/// Whether a node gets jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It gets jobs.
    Active,
    /// It ends what it has and gets no more.
    Draining,
    /// It is not ours any more.
    Removed,
}

impl NodeState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Active, Self::Draining, Self::Removed];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Removed => "removed",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// A job that a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeJobStatus {
    /// The job.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// The token of its claim.
    pub fencing_token: i64,
    /// How far it is.
    pub phase: JobPhase,
}

/// How far a job is on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// The workspace is being made.
    Preparing,
    /// The project's environment is being set up.
    SettingUp,
    /// The worker works.
    Working,
    /// A person is asked.
    Asking,
    /// The result is being put together and sent.
    Finishing,
}

/// Why the work of a job stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkStopReason {
    /// The worker says that it is done.
    EndTurn,
    /// The job's deadline was reached.
    Timeout,
    /// The worker was inactive for too long.
    Inactive,
    /// The worker repeated the same actions.
    NoProgress,
    /// The model refused, or the orchestrator did not accept the result.
    Refused,
    /// A person cancelled the work.
    Cancelled,
    /// The worker's process exited during the turn.
    Crashed,
    /// The worker or its model reached a limit, such as tokens or requests.
    Limit,
    /// The commits conflict, and the job has no worker that could resolve it.
    Conflict,
    /// The worker says that it failed.
    Failed,
    /// The worker could not run.
    Worker,
    /// The sandbox could not run.
    Sandbox,
    /// The workspace could not be prepared.
    Workspace,
    /// The project's environment could not be set up.
    Environment,
    /// The node's disk is full.
    DiskFull,
    /// The node had an error of its own.
    Node,
    /// The job cannot be done as planned. No node was given it.
    Impossible,
    /// The orchestrator could not verify the result.
    Unverified,
}

impl WorkStopReason {
    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::Timeout => "timeout",
            Self::Inactive => "inactive",
            Self::NoProgress => "no_progress",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Crashed => "crashed",
            Self::Limit => "limit",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
            Self::Worker => "worker",
            Self::Sandbox => "sandbox",
            Self::Workspace => "workspace",
            Self::Environment => "environment",
            Self::DiskFull => "disk_full",
            Self::Node => "node",
            Self::Impossible => "impossible",
            Self::Unverified => "unverified",
        }
    }
}

/// Something that happened in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// Milliseconds since the job was claimed, by the node's steady clock.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub data: JobEventData,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum JobEventData {
    /// The job is in another phase.
    Phase {
        /// Which.
        phase: JobPhase,
    },
    /// A session of the agent began; by its id it can be taken up again.
    Session {
        /// The id, as the agent gave it.
        session: String,
        /// Whether it was taken up again.
        resumed: bool,
    },
    /// A prompt to the agent.
    Prompt {
        /// Its text.
        text: String,
    },
    /// A message of the agent.
    Message {
        /// Its text.
        text: String,
    },
    /// Reasoning that the agent shows.
    Reasoning {
        /// Its text.
        text: String,
    },
    /// The agent's own plan.
    Plan {
        /// Its entries, with their status.
        entries: Value,
    },
    /// The agent uses a tool of its own or one of the gate's.
    Tool {
        /// Names this use.
        call: String,
        /// What it is, for people.
        title: String,
        /// `pending`, `in_progress`, `completed` or `failed`.
        status: String,
        /// The exact command or arguments, when the agent told them.
        #[serde(default)]
        input: Value,
    },
    /// What the agent says it used.
    Usage {
        /// As it said.
        usage: Value,
    },
    /// A person is asked for permission, or has answered.
    Permission {
        /// Names the question.
        request: String,
        /// What it is about.
        title: String,
        /// `asked`, `allowed` or `refused`.
        state: String,
    },
    /// A step of the set-up of the environment began or ended.
    Setup {
        /// What is done, for people: `packages`, or the command.
        step: String,
        /// Number of the step, from 1.
        number: u32,
        /// Number of steps.
        of: u32,
        /// Whether it succeeded; none while it runs.
        #[serde(default)]
        succeeded: Option<bool>,
        /// How long it took, in milliseconds.
        #[serde(default)]
        milliseconds: u64,
    },
    /// Packages that the job fetched or was refused.
    Packages {
        /// The fetches.
        fetches: Vec<PackageFetch>,
    },
    /// Lines that a program wrote.
    Output {
        /// `stdout` or `stderr`.
        stream: String,
        /// The text.
        text: String,
    },
    /// Output was left out: there was too much.
    Truncated {
        /// How many bytes.
        bytes: u64,
    },
    /// Something that people should know.
    Note {
        /// The text.
        text: String,
    },
}

/// What came of one command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandOutcome {
    /// The command.
    pub argv: Vec<String>,
    /// Its exit code; 128 and the signal when one ended it, which is what shells say and what some programs give by themselves; none
    /// when a limit ended it.
    pub exit_code: Option<i32>,
    /// The end of what it wrote.
    pub output: String,
    /// Whether the words that it must write are in all that it wrote; none when there are no such words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<bool>,
    /// The SHA-256 of all that it wrote, in hexadecimal.
    #[serde(default)]
    pub sha256: String,
    /// Whether some of it is missing.
    pub truncated: bool,
    /// How long it took.
    pub milliseconds: u64,
    /// Results per test, where the command gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_reason_has_the_same_name_in_json_and_in_text() {
        let reasons = [
            WorkStopReason::EndTurn,
            WorkStopReason::Timeout,
            WorkStopReason::Inactive,
            WorkStopReason::NoProgress,
            WorkStopReason::Refused,
            WorkStopReason::Cancelled,
            WorkStopReason::Crashed,
            WorkStopReason::Limit,
            WorkStopReason::Conflict,
            WorkStopReason::Failed,
            WorkStopReason::Worker,
            WorkStopReason::Sandbox,
            WorkStopReason::Workspace,
            WorkStopReason::Environment,
            WorkStopReason::DiskFull,
            WorkStopReason::Node,
            WorkStopReason::Impossible,
            WorkStopReason::Unverified,
        ];
        for reason in reasons {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        assert!(serde_json::from_str::<WorkStopReason>("\"tired\"").is_err());
    }
}
