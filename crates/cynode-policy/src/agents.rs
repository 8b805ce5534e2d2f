//! Who calls tools. Everything here comes from a token, never from what a caller says about itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use cynode_core::{
    agents::{AgentKind, AgentRole},
    ids::{AgentTokenId, JobId, ProjectId, RunId, TaskId, UserId},
    profiles::{ProfileName, ProfileSpec, ProfileVersion, SHIPPED_PROFILES, shipped_profile},
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

/// The profile that an agent works under, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProfile {
    /// Name of the profile.
    pub name: Arc<str>,
    /// Version of the profile; 0 if there is no profile of that name any more.
    pub version: u32,
    /// What it permits; nothing if there is no profile of that name.
    pub spec: Arc<ProfileSpec>,
}

/// Version of the profiles that come with the product.
const SHIPPED_VERSION: u32 = 1;

/// The profiles that come with the product, by name.
static SHIPPED: LazyLock<BTreeMap<&'static str, Arc<ProfileSpec>>> = LazyLock::new(|| {
    let specs = SHIPPED_PROFILES.into_iter().filter_map(|name| {
        let spec = shipped_profile(&name.parse().ok()?)?;
        Some((name, Arc::new(spec)))
    });
    specs.collect()
});

impl AgentProfile {
    /// Returns a profile that comes with the product.
    pub fn from_shipped(name: &str) -> Option<Self> {
        let spec = SHIPPED.get(name)?.clone();
        Some(Self { name: name.into(), version: SHIPPED_VERSION, spec })
    }

    /// Returns the profile of an agent whose profile does not exist. It permits nothing.
    pub fn unknown(name: &str) -> Self {
        Self { name: name.into(), version: 0, spec: Arc::default() }
    }

    /// Returns whether there is a profile of that name.
    pub const fn is_known(&self) -> bool {
        self.version > 0
    }

    /// Returns whether requests of the agent may leave the installation.
    pub fn network(&self) -> bool {
        self.spec.has_network()
    }

    /// Returns the same profile without network.
    #[must_use]
    pub fn without_network(self) -> Self {
        if !self.network() {
            return self;
        }
        let spec = ProfileSpec { network: Vec::new(), ..ProfileSpec::clone(&self.spec) };
        Self { spec: Arc::new(spec), ..self }
    }
}

impl Default for AgentProfile {
    /// Returns the profile of agents that were given none: no network.
    fn default() -> Self {
        let name = ProfileName::default();
        Self::from_shipped(name.as_str()).unwrap_or_else(|| Self::unknown(name.as_str()))
    }
}

impl From<ProfileVersion> for AgentProfile {
    fn from(profile: ProfileVersion) -> Self {
        Self { name: profile.name.as_str().into(), version: profile.version, spec: profile.spec }
    }
}

impl AgentIdentity {
    /// The type of agent.
    pub const fn agent_kind(&self) -> AgentKind {
        self.role.agent_kind()
    }
}
