//! Agents: programs that act by calling tools.

use serde::{Deserialize, Serialize};

/// The type of an agent: where it runs, and so which tools can be for it at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentKind {
    /// The project manager, on the orchestrator's side.
    Pm,
    /// An analyst of the project manager, on the orchestrator's side.
    Pa,
    /// A worker inside a sandbox.
    Sandbox,
    /// The program that drives tasks through the graph, on the orchestrator's side.
    Runner,
    /// The program in which the project manager or an analyst runs. It takes handoffs, and acts with the token of each.
    Host,
}

/// What an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRole {
    /// Plans, dispatches, decides.
    ProjectManager,
    /// Verifies one task.
    ProjectAnalyst,
    /// Lays out large work.
    Architect,
    /// Shapes what people see.
    Designer,
    /// Writes the change.
    Developer,
    /// Judges the change.
    Reviewer,
    /// Tries the change.
    Tester,
    /// Mends what review or tests found.
    Fixer,
    /// Drives tasks.
    WorkflowRunner,
    /// Runs the project manager.
    ManagerHost,
    /// Runs analysts.
    AnalystHost,
}

impl AgentKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Pm, Self::Pa, Self::Sandbox, Self::Runner, Self::Host];

    /// Whether it is a program of the installation, which works in nobody's name.
    pub const fn is_service_program(self) -> bool {
        matches!(self, Self::Runner | Self::Host)
    }

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pm => "pm",
            Self::Pa => "pa",
            Self::Sandbox => "sandbox",
            Self::Runner => "runner",
            Self::Host => "host",
        }
    }
}

impl AgentRole {
    /// Every role.
    pub const ALL: [Self; 11] = [
        Self::ProjectManager,
        Self::ProjectAnalyst,
        Self::Architect,
        Self::Designer,
        Self::Developer,
        Self::Reviewer,
        Self::Tester,
        Self::Fixer,
        Self::WorkflowRunner,
        Self::ManagerHost,
        Self::AnalystHost,
    ];

    /// What preferences call it: all workers in sandboxes have one name.
    pub const fn preference_name(self) -> &'static str {
        match self {
            Self::ProjectManager => "project_manager",
            Self::ProjectAnalyst => "project_analyst",
            Self::Architect
            | Self::Designer
            | Self::Developer
            | Self::Reviewer
            | Self::Tester
            | Self::Fixer => "sandbox_agent",
            Self::WorkflowRunner => "workflow_runner",
            Self::ManagerHost => "manager_host",
            Self::AnalystHost => "analyst_host",
        }
    }

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProjectManager => "project_manager",
            Self::ProjectAnalyst => "project_analyst",
            Self::Architect => "architect",
            Self::Designer => "designer",
            Self::Developer => "developer",
            Self::Reviewer => "reviewer",
            Self::Tester => "tester",
            Self::Fixer => "fixer",
            Self::WorkflowRunner => "workflow_runner",
            Self::ManagerHost => "manager_host",
            Self::AnalystHost => "analyst_host",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// The type of agent that has this role. There is one answer for each: nobody chooses it.
    pub const fn agent_kind(self) -> AgentKind {
        match self {
            Self::ProjectManager => AgentKind::Pm,
            Self::ProjectAnalyst => AgentKind::Pa,
            Self::Architect
            | Self::Designer
            | Self::Developer
            | Self::Reviewer
            | Self::Tester
            | Self::Fixer => AgentKind::Sandbox,
            Self::WorkflowRunner => AgentKind::Runner,
            Self::ManagerHost | Self::AnalystHost => AgentKind::Host,
        }
    }
}

/// Which side of the wall a tool may be called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolScope {
    /// By agents on the orchestrator's side.
    Pm,
    /// By agents inside sandboxes. Not to be mixed up with the tools `sandbox.*`, which manage sandboxes.
    Sandbox,
    /// By both.
    Both,
}

impl ToolScope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::Pm, Self::Sandbox, Self::Both];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pm => "pm",
            Self::Sandbox => "sandbox",
            Self::Both => "both",
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    /// Whether an agent of that kind is on the right side.
    pub const fn allows_kind(self, kind: AgentKind) -> bool {
        match (self, kind) {
            (Self::Both, _)
            | (Self::Pm, AgentKind::Pm | AgentKind::Pa | AgentKind::Runner | AgentKind::Host)
            | (Self::Sandbox, AgentKind::Sandbox) => true,
            (Self::Pm, AgentKind::Sandbox)
            | (
                Self::Sandbox,
                AgentKind::Pm | AgentKind::Pa | AgentKind::Runner | AgentKind::Host,
            ) => false,
        }
    }
}
