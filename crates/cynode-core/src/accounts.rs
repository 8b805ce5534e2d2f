//! Users and groups.

use time::OffsetDateTime;

use crate::{
    ids::{AgentTokenId, ApiKeyId, GroupId, ScheduleId, SessionId, UserId},
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
