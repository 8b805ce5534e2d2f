//! Users, sessions, API keys and groups on the wire.

use cynode_core::{
    accounts::{ApiKey, Group, User, UserState},
    budget::Currency,
    ids::{ApiKeyId, GroupId, UserId},
    names::{EmailAddress, GroupName, Handle, Title},
    roles::UserRole,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// A word that opens a door. It is never printed by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// Makes the first admin with the one-time token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BootstrapRequest {
    /// The token that `cynode up` or `cynode admin bootstrap` printed.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// What the admin logs in with.
    #[schema(value_type = String, example = "ada")]
    pub handle: Handle,
    /// What others see.
    #[schema(value_type = String, example = "Ada Lovelace")]
    pub display_name: Title,
    /// At least 12 characters.
    #[schema(value_type = String, format = Password)]
    pub password: SecretText,
}

/// Logs a user in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    /// The user's handle.
    #[schema(value_type = String)]
    pub handle: Handle,
    /// The user's password.
    #[schema(value_type = String, format = Password)]
    pub password: SecretText,
}

/// A login that succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Send it as `Authorization: Bearer …`. It is shown only here.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// When it stops working.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// Who logged in.
    pub user: UserView,
}

/// A login of a browser that succeeded. The token is in a cookie that scripts cannot read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BrowserSessionView {
    /// When the session ends.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// Who logged in.
    pub user: UserView,
}

/// The caller, as the system sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MeView {
    /// The account.
    pub user: UserView,
    /// The caller's role in the whole installation, groups counted.
    #[schema(value_type = Option<RoleName>)]
    pub installation_role: Option<UserRole>,
    /// The currency of all prices and limits, as an ISO 4217 code.
    #[serde(default)]
    #[schema(value_type = String, example = "USD")]
    pub currency: Currency,
}

/// Names of `Role` for the document.
#[derive(ToSchema)]
#[schema(as = Role, rename_all = "snake_case")]
pub enum RoleName {
    /// Reads.
    Viewer,
    /// Creates and steers work.
    Operator,
    /// Decides about people, settings and policy.
    Admin,
}

/// Makes a user.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateUser {
    /// What the user logs in with.
    #[schema(value_type = String)]
    pub handle: Handle,
    /// What others see.
    #[schema(value_type = String)]
    pub display_name: Title,
    /// Where the user can be written to.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub email: Option<EmailAddress>,
    /// At least 12 characters.
    #[schema(value_type = String, format = Password)]
    pub password: SecretText,
    /// A role in the whole installation; without it the user sees only their projects.
    #[serde(default)]
    #[schema(value_type = Option<RoleName>)]
    pub role: Option<UserRole>,
}

/// Changes a user; what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateUser {
    /// Whether the account may be used. Switching it off ends its sessions at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// The role in the whole installation; `none` takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<RoleChange>,
    /// A new password. For somebody else it ends every session, revokes every API key and switches off the channels of
    /// that user; your own ends your other sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Password)]
    pub password: Option<SecretText>,
    /// Revokes every API key of the user, with or without a new password.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoke_keys: bool,
}

/// A role to be given, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoleChange {
    /// No role.
    None,
    /// Reads.
    Viewer,
    /// Creates and steers work.
    Operator,
    /// Decides about people, settings and policy.
    Admin,
}

impl From<RoleChange> for Option<UserRole> {
    fn from(change: RoleChange) -> Self {
        match change {
            RoleChange::None => None,
            RoleChange::Viewer => Some(UserRole::Viewer),
            RoleChange::Operator => Some(UserRole::Operator),
            RoleChange::Admin => Some(UserRole::Admin),
        }
    }
}

/// A user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserView {
    /// Its id.
    #[schema(value_type = String, example = "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub id: UserId,
    /// What the user logs in with.
    #[schema(value_type = String)]
    pub handle: Handle,
    /// What others see.
    #[schema(value_type = String)]
    pub display_name: Title,
    /// Where the user can be written to.
    #[schema(value_type = Option<String>)]
    pub email: Option<EmailAddress>,
    /// The user's own role in the whole installation, groups not counted.
    #[schema(value_type = Option<RoleName>)]
    pub role: Option<UserRole>,
    /// Whether the account may be used.
    pub active: bool,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl From<User> for UserView {
    fn from(user: User) -> Self {
        let User { id, handle, display_name, email, role, state, created_at } = user;
        let active = matches!(state, UserState::Active);
        Self { id, handle, display_name, email, role, active, created_at }
    }
}

/// Makes an API key for the caller.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateApiKey {
    /// What to call it.
    #[schema(value_type = String, example = "ci")]
    pub name: Title,
    /// Days until it stops working, 1 to 3650; absent: until it is revoked.
    #[serde(default)]
    pub expires_in_days: Option<u16>,
}

/// An API key that was just made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedApiKey {
    /// Send it as `Authorization: Bearer …`. It is shown only here.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// The key without its secret.
    pub api_key: ApiKeyView,
}

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiKeyView {
    /// Its id.
    #[schema(value_type = String, example = "key_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub id: ApiKeyId,
    /// What the user calls it.
    #[schema(value_type = String)]
    pub name: Title,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it stops working.
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
}

impl From<ApiKey> for ApiKeyView {
    fn from(key: ApiKey) -> Self {
        let ApiKey { id, user: _, name, created_at, expires_at, revoked_at } = key;
        Self { id, name, created_at, expires_at, revoked_at }
    }
}

/// Makes a group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGroup {
    /// Its name.
    #[schema(value_type = String)]
    pub name: GroupName,
}

/// Says who is in a group and what it may do in the whole installation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateGroup {
    /// The role of its members in the whole installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<RoleChange>,
    /// Users to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub add: Vec<UserId>,
    /// Users to take out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub remove: Vec<UserId>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: GroupId,
    /// Its name.
    #[schema(value_type = String)]
    pub name: GroupName,
    /// The role of its members in the whole installation.
    #[schema(value_type = Option<RoleName>)]
    pub role: Option<UserRole>,
    /// Who is in it.
    #[schema(value_type = Vec<String>)]
    pub members: Vec<UserId>,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl From<Group> for GroupView {
    fn from(group: Group) -> Self {
        let Group { id, name, role, members, created_at } = group;
        Self { id, name, role, members, created_at }
    }
}
