//! Users, groups, their credentials, and what API keys are held to.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    ids::{AgentTokenId, ApiKeyId, GroupId, ProjectId, ScheduleId, ScimTokenId, SessionId, UserId},
    names::{EmailAddress, GroupName, Handle, Title},
    roles::UserRole,
};

/// A person with an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its id.
    pub id: UserId,
    /// What the person logs in with.
    pub handle: Handle,
    /// What others see.
    pub display_name: Title,
    /// Where the person can be written to.
    pub email: Option<EmailAddress>,
    /// The role given to this user in the whole installation, groups not counted.
    pub role: Option<UserRole>,
    /// Whether the user was given the permission to create projects, groups not counted.
    pub can_create_projects: bool,
    /// Whether the account may be used.
    pub state: UserState,
    /// When it was made.
    pub created_at: OffsetDateTime,
}

/// Whether an account may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserState {
    /// It may.
    Active,
    /// It was switched off.
    Disabled {
        /// When.
        at: OffsetDateTime,
    },
}

/// A key that a program uses in a user's name. The secret is known only to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: ApiKeyId,
    /// Whose it is.
    pub user: UserId,
    /// What the user calls it.
    pub name: Title,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it stops working.
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked.
    pub revoked_at: Option<OffsetDateTime>,
    /// When a request last used it, to the minute.
    pub last_used_at: Option<OffsetDateTime>,
    /// The only groups of operations that it opens; `None`: all that need no session.
    pub scopes: Option<ScopeSet>,
    /// Whether it only reads.
    pub read_only: bool,
    /// The only projects that it opens; `None`: all of its user. A key whose projects were deleted opens nothing.
    pub projects: Option<Vec<ProjectId>>,
    /// Whether the session that made it had shown a second factor.
    pub second_factor: bool,
}

/// A group of operations that an API key can be held to. Each is a tag of the OpenAPI document.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ApiScope {
    /// Users, groups and API keys.
    Accounts,
    /// Pull requests.
    Delivery,
    /// Events.
    Events,
    /// Handoffs, reports and conversations with the project manager.
    Manager,
    /// Memory: records, search and ingests.
    Memory,
    /// Models, providers, budgets and usage.
    Models,
    /// Nodes and the logs of jobs.
    Nodes,
    /// The inbox, notification channels and notifications.
    Notifications,
    /// Health and metrics.
    Operation,
    /// Projects, their members, repositories and environments.
    Projects,
    /// Schedules.
    Schedules,
    /// Settings, preferences and policies.
    Settings,
    /// Skills.
    Skills,
    /// Tasks and what they leave.
    Tasks,
    /// Agent tokens, tools, rules, approvals and audit records.
    Tools,
}

impl ApiScope {
    /// Every scope, by name.
    pub const ALL: [Self; 15] = [
        Self::Accounts,
        Self::Delivery,
        Self::Events,
        Self::Manager,
        Self::Memory,
        Self::Models,
        Self::Nodes,
        Self::Notifications,
        Self::Operation,
        Self::Projects,
        Self::Schedules,
        Self::Settings,
        Self::Skills,
        Self::Tasks,
        Self::Tools,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accounts => "accounts",
            Self::Delivery => "delivery",
            Self::Events => "events",
            Self::Manager => "manager",
            Self::Memory => "memory",
            Self::Models => "models",
            Self::Nodes => "nodes",
            Self::Notifications => "notifications",
            Self::Operation => "operation",
            Self::Projects => "projects",
            Self::Schedules => "schedules",
            Self::Settings => "settings",
            Self::Skills => "skills",
            Self::Tasks => "tasks",
            Self::Tools => "tools",
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    /// The scope of the operations with that tag in the OpenAPI document.
    pub fn from_tag(tag: &str) -> Option<Self> {
        match tag {
            "gate" => Some(Self::Tools),
            "single-sign-on" => Some(Self::Accounts),
            _ => Self::from_name(tag),
        }
    }

    /// Whether every operation of it is about a project that it names, so that a key of some projects may use it.
    pub const fn names_project(self) -> bool {
        match self {
            Self::Delivery
            | Self::Events
            | Self::Memory
            | Self::Projects
            | Self::Schedules
            | Self::Tasks => true,
            Self::Accounts
            | Self::Manager
            | Self::Models
            | Self::Nodes
            | Self::Notifications
            | Self::Operation
            | Self::Settings
            | Self::Skills
            | Self::Tools => false,
        }
    }

    /// Whether a key must name it to change something: with users, groups and channels a lost key would outlive its revocation.
    pub const fn must_be_named(self) -> bool {
        matches!(self, Self::Accounts | Self::Notifications)
    }

    const fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

/// Some of the scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeSet(u16);

impl ScopeSet {
    /// Whether the scope is among them.
    pub const fn includes_scope(self, scope: ApiScope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// The scopes, by name.
    pub fn list_scopes(self) -> Vec<ApiScope> {
        ApiScope::ALL.into_iter().filter(|scope| self.includes_scope(*scope)).collect()
    }
}

impl FromIterator<ApiScope> for ScopeSet {
    fn from_iter<I: IntoIterator<Item = ApiScope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

/// What an API key is held to, beside what its user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRestrictions {
    /// The only groups of operations; `None`: all that need no session.
    pub scopes: Option<ScopeSet>,
    /// Whether it only reads.
    pub read_only: bool,
    /// `Some` if the key opens some projects only, with the role of its user in the whole installation, which counts in those.
    pub project_limit: Option<ProjectLimit>,
}

/// A key opens some projects only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectLimit {
    /// The role of its user in the whole installation.
    pub person: Option<UserRole>,
}

/// A token of a directory that provisions users and groups. The secret is known only to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScimToken {
    /// Its id.
    pub id: ScimTokenId,
    /// What admins call it.
    pub name: Title,
    /// Who made it.
    pub created_by: UserId,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it stops working.
    pub expires_at: OffsetDateTime,
    /// When it was revoked.
    pub revoked_at: Option<OffsetDateTime>,
    /// When a request last used it, to the minute.
    pub last_used_at: Option<OffsetDateTime>,
}

/// How a session was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoginMethod {
    /// With a password of this installation.
    Password,
    /// At an identity provider.
    Provider,
    /// On a device without a browser, confirmed in another session.
    Device,
    /// With a break-glass link that was made on the host.
    BreakGlass,
}

impl LoginMethod {
    /// Every method.
    pub const ALL: [Self; 4] = [Self::Password, Self::Provider, Self::Device, Self::BreakGlass];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Provider => "provider",
            Self::Device => "device",
            Self::BreakGlass => "break_glass",
        }
    }

    /// The method with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }
}

/// A named set of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its id.
    pub id: GroupId,
    /// Its name.
    pub name: GroupName,
    /// The role its members have in the whole installation.
    pub role: Option<UserRole>,
    /// Whether its members may create projects.
    pub can_create_projects: bool,
    /// Who is in it, by id.
    pub members: Vec<UserId>,
    /// When it was made.
    pub created_at: OffsetDateTime,
}

/// What a caller showed to prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerCredential {
    /// A login.
    Session(SessionId),
    /// A program's key.
    ApiKey(ApiKeyId),
    /// A link that stands for a user and for one question.
    Link(UserId),
    /// An agent's token: the person is the one it works for.
    Agent(AgentTokenId),
    /// A schedule that acts in the name of the person.
    Schedule(ScheduleId),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_scopes_holds_exactly_what_it_was_made_of() {
        for scope in ApiScope::ALL {
            let set: ScopeSet = [scope].into_iter().collect();
            assert_eq!(set.list_scopes(), [scope]);
            assert_eq!(ApiScope::from_name(scope.as_str()), Some(scope));
        }
        let all: ScopeSet = ApiScope::ALL.into_iter().collect();
        assert_eq!(all.list_scopes(), ApiScope::ALL);
        assert!(ScopeSet::default().list_scopes().is_empty());
    }

    #[test]
    fn scopes_are_ordered_by_name() {
        assert!(ApiScope::ALL.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()));
    }
}
