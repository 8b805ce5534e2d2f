//! The two roles. A process has one for its whole life.

use std::fmt;

use cynode_core::agents::AgentRole;

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PmaRole {
    /// Plans, dispatches, decides and chats.
    ProjectManager,
    /// Verifies one task.
    ProjectAnalyst,
}

impl PmaRole {
    /// Both roles.
    pub const ALL: [Self; 2] = [Self::ProjectManager, Self::ProjectAnalyst];

    /// Returns the corresponding agent role.
    pub const fn agent_role(self) -> AgentRole {
        match self {
            Self::ProjectManager => AgentRole::ProjectManager,
            Self::ProjectAnalyst => AgentRole::ProjectAnalyst,
        }
    }

    /// Returns the name of the role.
    pub const fn as_str(self) -> &'static str {
        self.agent_role().as_str()
    }

    /// Returns the role with exactly that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for PmaRole {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}
