//! Users, sessions, second factors, API keys and groups on the wire.

use cynode_core::{
    accounts::{ApiKey, ApiScope, Group, ScimToken, User, UserState},
    budget::Currency,
    ids::{ApiKeyId, GroupId, ProjectId, ScimTokenId, UserId},
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
    /// The code that the second factor shows, or a recovery code; for a user who has enrolled one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "492039")]
    pub code: Option<SecretText>,
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
    /// Whether the caller may create projects.
    #[serde(default)]
    pub can_create_projects: bool,
    /// Whether the role in the whole installation is withheld until the caller shows a second factor.
    #[serde(default)]
    pub needs_second_factor: bool,
}

/// Changes the caller's own password.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangePassword {
    /// The present password.
    #[schema(value_type = String, format = Password)]
    pub old_password: SecretText,
    /// At least 12 characters.
    #[schema(value_type = String, format = Password)]
    pub new_password: SecretText,
    /// Revokes every API key of the caller, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoke_keys: bool,
}

/// The caller's second factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SecondFactorView {
    /// Whether the caller has enrolled one.
    pub enrolled: bool,
    /// Whether this session was started with it.
    pub session_verified: bool,
    /// Whether the caller's role in the whole installation needs it.
    pub required: bool,
    /// How many recovery codes are left.
    pub recovery_codes_left: u32,
}

/// Begins the enrolment of a second factor.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginSecondFactor {
    /// The caller's password; only an account without one leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Password)]
    pub password: Option<SecretText>,
}

/// A second factor to be put into an authenticator. It is shown only here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SecondFactorEnrolment {
    /// The secret, to be typed where no picture can be read.
    #[schema(value_type = String)]
    pub secret: SecretText,
    /// The secret with its parameters, as `otpauth://…`.
    #[schema(value_type = String)]
    pub uri: SecretText,
    /// The same as a QR code: an SVG document.
    #[schema(value_type = String)]
    pub qr_svg: SecretText,
}

/// Shows the code of a second factor.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecondFactorCode {
    /// The six digits that the authenticator shows.
    #[schema(value_type = String, example = "492039")]
    pub code: SecretText,
}

/// Deletes the caller's second factor.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSecondFactor {
    /// The caller's password; only an account without one leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Password)]
    pub password: Option<SecretText>,
    /// The code that the second factor shows, or a recovery code.
    #[schema(value_type = String)]
    pub code: SecretText,
}

/// Codes that each stand in for the second factor once. They are shown only here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryCodes {
    /// The codes.
    #[schema(value_type = Vec<String>)]
    pub codes: Vec<SecretText>,
}

/// Logs an admin in with a link that was made on the host.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedeemBreakGlass {
    /// The token of the link that `cynode admin break-glass` printed.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// Sets a new password; the old one stays without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Password)]
    pub new_password: Option<SecretText>,
    /// Deletes the second factor, for an admin who has lost it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_second_factor: bool,
}

/// Issues a token for a directory, which provisions users and groups by SCIM 2.0 at `/scim/v2`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateScimToken {
    /// What to call it.
    #[schema(value_type = String, example = "entra")]
    pub name: Title,
    /// Days until it stops working, 1 to 3650; 365 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_days: Option<u16>,
}

/// A token of a directory that was just issued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedScimToken {
    /// The directory sends it as `Authorization: Bearer …`. It is shown only here.
    #[schema(value_type = String)]
    pub token: SecretText,
    /// The token without its secret.
    pub scim_token: ScimTokenView,
}

/// A token of a directory without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScimTokenView {
    /// Its id.
    #[schema(value_type = String, example = "sct_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub id: ScimTokenId,
    /// What admins call it.
    #[schema(value_type = String)]
    pub name: Title,
    /// Who issued it.
    #[schema(value_type = String)]
    pub created_by: UserId,
    /// When it was issued.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it stops working.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// When it was revoked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
    /// When the directory last used it, to the minute.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_used_at: Option<OffsetDateTime>,
}

impl From<ScimToken> for ScimTokenView {
    fn from(token: ScimToken) -> Self {
        let ScimToken { id, name, created_by, created_at, expires_at, revoked_at, last_used_at } =
            token;
        Self { id, name, created_by, created_at, expires_at, revoked_at, last_used_at }
    }
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
    /// Whether the user may create projects without being an operator of the whole installation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_create_projects: bool,
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
    /// Whether the user may create projects without being an operator of the whole installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can_create_projects: Option<bool>,
    /// A new password for somebody else. It ends every session, revokes every API key and switches off the channels of
    /// that user. Your own is changed at `/v1/me/password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Password)]
    pub password: Option<SecretText>,
    /// Revokes every API key of the user, with or without a new password.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoke_keys: bool,
    /// Deletes the second factor of a user who has lost it, and ends their sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_second_factor: bool,
    /// Puts the account under the directory, which knows it by this `userName`; an empty text takes it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "ada@example.com")]
    pub scim_user_name: Option<String>,
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
    /// Whether the user was given the permission to create projects, groups not counted.
    #[serde(default)]
    pub can_create_projects: bool,
    /// Whether the account may be used.
    pub active: bool,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl From<User> for UserView {
    fn from(user: User) -> Self {
        let User { id, handle, display_name, email, role, can_create_projects, state, created_at } =
            user;
        let active = matches!(state, UserState::Active);
        Self { id, handle, display_name, email, role, can_create_projects, active, created_at }
    }
}

/// Makes an API key for the caller.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateApiKey {
    /// What to call it.
    #[schema(value_type = String, example = "ci")]
    pub name: Title,
    /// Days until it stops working, 1 to what the setting `auth.api_key_max_days` says; by default what `auth.api_key_days` says.
    #[serde(default)]
    pub expires_in_days: Option<u16>,
    /// The only groups of operations that it opens. Without them it opens all that you may do, but changes neither accounts nor
    /// notification channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<ApiScope>>,
    /// Whether it only reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The only projects that it opens, by id. Such a key has no role in the whole installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub projects: Option<Vec<ProjectId>>,
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
    /// When a request last used it, to the minute.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub last_used_at: Option<OffsetDateTime>,
    /// The only groups of operations that it opens; without them all, but no change of accounts or notification channels.
    #[serde(default)]
    pub scopes: Option<Vec<ApiScope>>,
    /// Whether it only reads.
    #[serde(default)]
    pub read_only: bool,
    /// The only projects that it opens.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub projects: Option<Vec<ProjectId>>,
}

impl From<ApiKey> for ApiKeyView {
    fn from(key: ApiKey) -> Self {
        let ApiKey {
            id,
            user: _,
            name,
            created_at,
            expires_at,
            revoked_at,
            last_used_at,
            scopes,
            read_only,
            projects,
            second_factor: _,
        } = key;
        let scopes = scopes.map(|scopes| scopes.list_scopes());
        Self {
            id,
            name,
            created_at,
            expires_at,
            revoked_at,
            last_used_at,
            scopes,
            read_only,
            projects,
        }
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
    /// Whether its members may create projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can_create_projects: Option<bool>,
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
    /// Whether its members may create projects.
    #[serde(default)]
    pub can_create_projects: bool,
    /// Who is in it.
    #[schema(value_type = Vec<String>)]
    pub members: Vec<UserId>,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl From<Group> for GroupView {
    fn from(group: Group) -> Self {
        let Group { id, name, role, can_create_projects, members, created_at } = group;
        Self { id, name, role, can_create_projects, members, created_at }
    }
}
