//! Who calls tools. Everything here comes from a token, never from what a caller says about itself.

use std::sync::Arc;

use cynode_core::{
    agents::{AgentKind, AgentRole},
    ids::{AgentTokenId, JobId, ProjectId, RunId, TaskId, UserId},
    workflow::handoffs::HandoffKind,
};
use time::OffsetDateTime;

use crate::tool_names::ToolName;

/// An agent, as its token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIdentity {
    /// The token.
    pub token: AgentTokenId,
    /// What it does; its kind follows from it.
    pub role: AgentRole,
    /// In whose name it works; programs of the installation work in nobody's.
    pub user: Option<UserId>,
    /// The project it works in.
    pub project: Option<ProjectId>,
    /// The task it works on.
    pub task: Option<TaskId>,
    /// The run it works in.
    pub run: Option<RunId>,
    /// The job it is.
    pub job: Option<JobId>,
    /// The kind of handoff it works on.
    pub handoff: Option<HandoffKind>,
    /// What its profile lets it do.
    pub profile: AgentProfile,
    /// The only tools its token is good for; `None`: all that its role may use.
    pub tools: Option<Arc<[ToolName]>>,
    /// Whether the person it works for may still set agents to work, and not only read. Who works for nobody may.
    pub operates: bool,
    /// When the token ends; tokens of programs of the installation end when they are revoked.
    pub expires_at: Option<OffsetDateTime>,
}

/// A named policy that an agent works under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentProfile {
    /// What it is called.
    pub name: Arc<str>,
    /// Whether its tools may use the network.
    pub network: bool,
}

impl Default for AgentProfile {
    /// The profile of whoever was given none: no network.
    fn default() -> Self {
        Self { name: "default".into(), network: false }
    }
}

impl AgentIdentity {
    /// The type of agent.
    pub const fn agent_kind(&self) -> AgentKind {
        self.role.agent_kind()
    }
}
