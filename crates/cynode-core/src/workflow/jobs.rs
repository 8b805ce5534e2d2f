//! Jobs: what a unit of a plan asks of a worker, with what context, in what sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    agents::AgentRole,
    environments::{EnvironmentBase, EnvironmentLimits, EnvironmentRef},
    evidence::EvidenceCheck,
    ids::{JobId, TaskId},
    memory::PromptMemory,
    profiles::ProfileSandbox,
    skills::SelectedSkill,
    workflow::{findings::VerificationFinding, plan::UnitKey},
};

/// The work of a unit; the field `work` of its payload. Units without it are for foreign workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The role of the agent that does it.
    #[schema(value_type = String)]
    pub role: AgentRole,
    /// Who does it.
    pub worker: WorkerChoice,
    /// What the agent is told; its prompt is made from this and from nothing else.
    #[serde(default)]
    pub context: StructuredContext,
    /// The models it may use, the one to start with first. Empty: none.
    #[serde(default)]
    pub models: Vec<String>,
    /// The tools it may call by name; all that its role may when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Where and how it runs.
    #[serde(default)]
    pub sandbox: SandboxNeeds,
    /// On which machine.
    #[serde(default)]
    pub placement: PlacementSpec,
    /// Whether a result must bring a commit. Agents that say they are done without one have failed.
    #[serde(default)]
    pub commit: CommitRule,
}

/// Who does the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkerChoice {
    /// A coding agent over the Agent Client Protocol.
    Acp {
        /// The name of its recipe, such as `goose`.
        agent: String,
    },
    /// Commands in order.
    Command {
        /// The commands.
        steps: Vec<CommandStep>,
    },
    /// Checks of a commit, one after the other, whatever the ones before came to. Nobody asks for this in a plan: evidence is gathered
    /// by the orchestrator.
    Checks {
        /// The checks.
        checks: Vec<EvidenceCheck>,
        /// The commit from which files are taken that checks go by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pinned_from: Option<String>,
    },
    /// Nobody: what several units made is put together, and that is all.
    Merge,
    /// A file of moves that are played: for tests and the demo.
    Scripted {
        /// The moves.
        moves: Vec<ScriptedMove>,
        /// The moves of an attempt that is told what the last one got wrong; the same when it is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revised: Option<Vec<ScriptedMove>>,
    },
}

impl WorkerChoice {
    /// Returns whether the work is that of an agent or of a plan. Checks and merges are work of the installation itself.
    pub const fn is_agent_work(&self) -> bool {
        match self {
            Self::Acp { .. } | Self::Command { .. } | Self::Scripted { .. } => true,
            Self::Checks { .. } | Self::Merge => false,
        }
    }
}

/// One command of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandStep {
    /// Program and arguments; no shell reads them.
    pub argv: Vec<String>,
    /// Most seconds; the job's own limit when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// What happens to the rest when it fails.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// What happens after a command that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The job has failed.
    #[default]
    Stop,
    /// The next command runs.
    Continue,
}

/// One move of a scripted worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "move", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScriptedMove {
    /// Says something.
    Say {
        /// The text.
        text: String,
    },
    /// Writes a file of the workspace.
    Write {
        /// Where, below the workspace.
        path: String,
        /// What.
        text: String,
    },
    /// Runs a command in the sandbox.
    Run {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// Calls a tool through the gate.
    Tool {
        /// The tool.
        name: String,
        /// Its arguments; the ids of task and job are put in where the tool takes them and they are missing.
        #[serde(default)]
        arguments: serde_json::Value,
    },
    /// Plays moves only when a file of the workspace is there.
    When {
        /// Where, below the workspace.
        path: String,
        /// The moves.
        #[schema(no_recursion)]
        moves: Vec<ScriptedMove>,
        /// The moves that are played when it is not.
        #[serde(default)]
        #[schema(no_recursion)]
        otherwise: Vec<ScriptedMove>,
    },
    /// Lets time pass.
    Wait {
        /// How long.
        milliseconds: u32,
    },
    /// Ends as failed.
    Fail {
        /// Why.
        text: String,
    },
}

/// What an agent is told, field by field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StructuredContext {
    /// One or two sentences.
    pub task_summary: String,
    /// What must hold at the end.
    pub requirements: Vec<String>,
    /// How the project is laid out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// Places worth knowing: what is there, by path.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub key_paths: BTreeMap<String, String>,
    /// How things are done in this project, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub patterns: BTreeMap<String, String>,
    /// The files to change, exactly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_to_modify: Vec<String>,
    /// The files to read before anything else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files_to_read_first: Vec<String>,
    /// An example to follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern_reference: Option<String>,
    /// What must not be done otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<String>,
    /// What the architect left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_artifact_path: Option<String>,
    /// What the designer left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub design_artifact_path: Option<String>,
    /// What the last attempt got wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_feedback: Option<RevisionFeedback>,
    /// What the project knows about it, the best first. The orchestrator searches for it when a node takes the job; what a plan says here
    /// is dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<PromptMemory>,
    /// What people want every agent in a sandbox to keep in mind. The orchestrator says it when a node takes the job; what a plan says here
    /// is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_context: Option<String>,
    /// The skills that the agent is given, the best first. The orchestrator chooses them when a node takes the job; what a plan says here is
    /// dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SelectedSkill>,
}

/// What an attempt is to mend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RevisionFeedback {
    /// In short.
    pub summary: String,
    /// One by one.
    pub findings: Vec<VerificationFinding>,
}

/// Where and how a job runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxNeeds {
    /// The backend; whichever the node prefers when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SandboxBackend>,
    /// An image that the installation allows; the node's own system, read-only, when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Most memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Most CPU, in hundredths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Most processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Most disk for workspace and home together, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Hosts that may be asked for packages; none when it is empty. The installation must allow them too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress_hosts: Vec<String>,
    /// The version of the project's environment that it runs in; a plain sandbox when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentRef>,
}

impl SandboxNeeds {
    /// Returns the needs, lowered to the maximum of a profile.
    #[must_use]
    pub fn limit_to(mut self, max: ProfileSandbox) -> Self {
        let lower = |asked: Option<u32>, max: Option<u32>| match (asked, max) {
            (Some(asked), Some(max)) => Some(asked.min(max)),
            (asked, max) => asked.or(max),
        };
        self.memory_mib = lower(self.memory_mib, max.memory_mib);
        self.cpu_percent = lower(self.cpu_percent, max.cpu_percent);
        self.processes = lower(self.processes, max.processes);
        self.disk_mib = lower(self.disk_mib, max.disk_mib);
        self
    }

    /// Returns the needs of a job that runs in the node's own system with the node's limits and without an environment.
    pub const fn plain_sandbox() -> Self {
        Self {
            backend: None,
            image: None,
            memory_mib: None,
            cpu_percent: None,
            processes: None,
            disk_mib: None,
            egress_hosts: Vec::new(),
            environment: None,
        }
    }

    /// Returns the needs of a job that runs in an environment: its base, its resources and the version itself.
    pub fn in_environment(
        reference: EnvironmentRef,
        base: &EnvironmentBase,
        limits: EnvironmentLimits,
    ) -> Self {
        let image = match base {
            EnvironmentBase::Image(name) => Some(name.clone()),
            EnvironmentBase::Host | EnvironmentBase::Debian(_) => None,
        };
        Self {
            backend: image.is_some().then_some(SandboxBackend::Podman),
            image,
            memory_mib: limits.memory_mib,
            cpu_percent: limits.cpu_percent,
            processes: limits.processes,
            disk_mib: limits.disk_mib,
            egress_hosts: Vec::new(),
            environment: Some(reference),
        }
    }

    /// Adds what a unit says it needs. A unit can only ask for more than its environment has.
    #[must_use]
    pub fn with_unit_needs(mut self, needs: UnitNeeds) -> Self {
        let larger = |own: Option<u32>, asked: Option<u32>, max: u32| {
            own.max(asked.map(|asked| asked.clamp(1, max)))
        };
        self.memory_mib = larger(self.memory_mib, needs.memory_mib, MAX_UNIT_MIB);
        self.disk_mib = larger(self.disk_mib, needs.disk_mib, MAX_UNIT_MIB);
        self
    }
}

/// Maximum memory and maximum disk space that a unit can ask for, in MiB: 1 TiB.
const MAX_UNIT_MIB: u32 = 1024 * 1024;

/// Maximum time that a unit can ask for, in minutes: a day.
const MAX_UNIT_MINUTES: u32 = 24 * 60;

/// What a unit says it needs; the field `needs` of its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UnitNeeds {
    /// Memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Disk space, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Time from claim to result, in minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minutes: Option<u32>,
}

impl UnitNeeds {
    /// Reads the needs of a unit from its payload. Needs that cannot be read are none.
    pub fn of_payload(payload: &Value) -> Self {
        payload
            .get("needs")
            .and_then(|needs| serde_json::from_value(needs.clone()).ok())
            .unwrap_or_default()
    }

    /// Returns the timeout of a job: the given one, or more where the unit asks for more.
    pub fn timeout_seconds(self, at_least: u32) -> u32 {
        let asked = self.minutes.unwrap_or_default().min(MAX_UNIT_MINUTES) * 60;
        at_least.max(asked)
    }
}

/// What makes the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxBackend {
    /// Namespaces by bubblewrap.
    Bubblewrap,
    /// Containers by podman.
    Podman,
}

/// On which machine a job may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementSpec {
    /// This one and no other, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only those with all of these labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// Whether a commit is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitRule {
    /// Whatever was changed becomes one; nothing changed is good too.
    #[default]
    IfChanged,
    /// Something must have been changed.
    Required,
    /// What was changed is thrown away: reviews and tests.
    Never,
}

/// A job that was claimed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimedJob {
    /// Its id.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// The task it is for.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The unit it is an attempt of.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// Which attempt.
    pub attempt: u32,
    /// The token that every report must carry.
    pub fencing_token: i64,
    /// What is to be done.
    pub payload: JobPayload,
    /// When it is given up, whatever is heard of it.
    #[serde(with = "time::serde::rfc3339")]
    pub deadline_at: OffsetDateTime,
    /// The trace that everything about it carries.
    pub trace_id: String,
}

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobPayload {
    /// The unit's title.
    pub title: String,
    /// The unit's own payload, as the plan gave it.
    pub unit: Value,
    /// What is to be done otherwise than the last time; an object with `findings`.
    pub remedy: Value,
    /// Most seconds from claim to result.
    pub timeout_seconds: u32,
}
