//! Single sign-on on the wire: identity providers, linked accounts, sessions, and logins of devices.

use std::collections::BTreeMap;

use cynode_core::{
    accounts::LoginMethod,
    ids::{ExternalIdentityId, GroupId, IdentityProviderId, SessionId},
    names::{GroupName, Title},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::accounts::{SecretText, SessionView};

/// Creates an identity provider or changes it. What is absent of an existing provider stays.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetIdentityProvider {
    /// What people see on the login page.
    #[schema(value_type = String, example = "Company account")]
    pub display_name: Title,
    /// The issuer, exactly as its discovery document says. It cannot be changed later.
    #[schema(example = "https://id.example.com")]
    pub issuer: String,
    /// The id of this installation at the provider.
    pub client_id: String,
    /// The secret of this installation at the provider. It is stored encrypted and never shown again. Empty text removes it,
    /// for a public client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Password)]
    pub client_secret: Option<SecretText>,
    /// What a login asks for beside `openid`; `profile` and `email` by default. With `offline_access` a provider gives a
    /// refresh token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// The claim that lists the groups of a person: a name, or a path with dots; `groups` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<String>,
    /// Whether a person without an account gets one at the first login; `true` by default. A new account has no rights but
    /// those of its groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_accounts: Option<bool>,
    /// Whether of people without an account only members of a mapped group get one; `false` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_groups_only: Option<bool>,
    /// Claims that a person must have to log in, each with one of the values; none by default. A provider of many companies needs one, such
    /// as `hd` or `tid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_claims: Option<BTreeMap<String, Vec<String>>>,
    /// Whether accounts that the directory made by SCIM log in by it: a claim of theirs is their `externalId`. `false` by default. Only
    /// the provider of the directory's own company may say who its people are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links_directory: Option<bool>,
    /// The claim that is the `externalId` of an account of the directory; `sub` by default. It cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory_claim: Option<String>,
    /// Values of the claim `acr` that say that the person has shown a second factor; none by default. `mfa`, `otp` or `hwk` in the
    /// claim `amr` always says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_factor_contexts: Option<Vec<String>>,
    /// Whether people can log in by it; `true` by default. Switching it off ends its sessions at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Which groups of the provider are which groups here. It replaces all earlier ones. A group that is not in it gives no
    /// right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mappings: Option<Vec<SetGroupMapping>>,
}

/// Says that a group of the provider is a group here.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetGroupMapping {
    /// The name of the group in the claim.
    pub claim_value: String,
    /// The group here.
    #[schema(value_type = String)]
    pub group_id: GroupId,
}

/// An identity provider, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct IdentityProviderView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: IdentityProviderId,
    /// Its name in addresses.
    pub name: String,
    /// What people see on the login page.
    #[schema(value_type = String)]
    pub display_name: Title,
    /// The issuer.
    pub issuer: String,
    /// The id of this installation at the provider.
    pub client_id: String,
    /// Whether a secret is stored.
    pub has_secret: bool,
    /// What a login asks for beside `openid`.
    pub scopes: Vec<String>,
    /// The claim that lists the groups of a person.
    pub groups_claim: String,
    /// Whether a person without an account gets one at the first login.
    pub create_accounts: bool,
    /// Whether of people without an account only members of a mapped group get one.
    pub mapped_groups_only: bool,
    /// Claims that a person must have to log in, each with one of the values.
    pub required_claims: BTreeMap<String, Vec<String>>,
    /// Whether accounts that the directory made by SCIM log in by it.
    pub links_directory: bool,
    /// The claim that is the `externalId` of an account of the directory.
    pub directory_claim: String,
    /// Values of the claim `acr` that say that the person has shown a second factor.
    pub second_factor_contexts: Vec<String>,
    /// Whether people can log in by it.
    pub enabled: bool,
    /// Whether the file of the configuration owns it. Then it is changed there.
    pub from_file: bool,
    /// Which groups of the provider are which groups here.
    pub mappings: Vec<GroupMappingView>,
    /// The path that the provider sends browsers back to: its redirect URI after the address of this server.
    pub callback_path: String,
    /// The path that the provider sends logout tokens to.
    pub logout_path: String,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was changed last.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A group of the provider and the group that it is here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupMappingView {
    /// The name of the group in the claim.
    pub claim_value: String,
    /// The group here.
    #[schema(value_type = String)]
    pub group_id: GroupId,
    /// Its name.
    #[schema(value_type = String)]
    pub group_name: GroupName,
}

/// All identity providers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IdentityProviderList {
    /// The providers, by name.
    pub items: Vec<IdentityProviderView>,
}

/// What the discovery document of a provider says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiscoveryView {
    /// The issuer.
    pub issuer: String,
    /// Where browsers are sent to log in.
    pub authorization_endpoint: String,
    /// Where codes are redeemed.
    pub token_endpoint: String,
    /// Where claims about a person are read.
    pub userinfo_endpoint: Option<String>,
    /// Where browsers are sent to log out.
    pub end_session_endpoint: Option<String>,
    /// Scopes that it lists.
    pub scopes: Vec<String>,
    /// Whether it names itself in its answers (RFC 9207).
    pub names_issuer: bool,
    /// Whether it sends logout tokens.
    pub sends_logout_tokens: bool,
}

/// How people can log in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoginOptions {
    /// Whether passwords of this installation work.
    pub password: bool,
    /// Identity providers.
    pub providers: Vec<LoginProvider>,
}

/// An identity provider on the login page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoginProvider {
    /// Its name in addresses.
    pub name: String,
    /// What people see.
    #[schema(value_type = String)]
    pub display_name: Title,
    /// The path to open in a browser.
    pub login_path: String,
}

/// Begins to link an account of an identity provider to your own.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkIdentity {
    /// The name of the provider.
    pub provider: String,
}

/// A link that was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkStarted {
    /// The address to open in the same browser.
    pub authorization_url: String,
}

/// An account of a person at an identity provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IdentityView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ExternalIdentityId,
    /// The name of the provider.
    pub provider: String,
    /// What people see of the provider.
    pub provider_title: String,
    /// The identifier of the person there.
    pub subject: String,
    /// When it was linked.
    #[serde(with = "time::serde::rfc3339")]
    pub linked_at: OffsetDateTime,
}

/// The accounts of a person at identity providers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IdentityList {
    /// The accounts, by provider.
    pub items: Vec<IdentityView>,
}

/// A session that can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpenSessionView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: SessionId,
    /// Whether this request belongs to it.
    pub current: bool,
    /// How it was started; absent for one from before this was recorded.
    pub method: Option<LoginMethod>,
    /// What people see of its identity provider.
    pub provider: Option<String>,
    /// What its client calls itself.
    pub device: Option<String>,
    /// The address that it was started from; the network of it for IPv6.
    pub source: Option<String>,
    /// When it was started.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ends by itself.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// A session that was ended here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProviderLogout {
    /// The address at which the browser logs out at the identity provider, if the session is of one that has such an
    /// address.
    #[schema(value_type = Option<String>)]
    pub logout_url: Option<SecretText>,
}

/// Asks for the login of a device without a browser (RFC 8628).
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceLoginRequest {
    /// What the device calls itself. The person who confirms the login sees it.
    #[schema(value_type = String, example = "cynork on build-3")]
    pub device: Title,
}

/// The codes of a login of a device. The names are those of RFC 8628.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceLoginCodes {
    /// The secret of the device.
    #[schema(value_type = String)]
    pub device_code: SecretText,
    /// The code that the person compares.
    #[schema(example = "BCDF-GHJK")]
    pub user_code: String,
    /// The page on which a person confirms the login.
    pub verification_uri: String,
    /// The same page with the code.
    pub verification_uri_complete: String,
    /// Seconds until the codes stop working.
    pub expires_in: u32,
    /// Seconds between two questions of the device.
    pub interval: u32,
}

/// A device asks whether its login was confirmed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceTokenRequest {
    /// The secret of the device.
    #[schema(value_type = String)]
    pub device_code: SecretText,
}

/// The answer to a device. The names of its states are those of RFC 8628.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceTokenAnswer {
    /// What has happened.
    pub status: DeviceTokenStatus,
    /// The session, once and only when it was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionView>,
}

/// State of the login of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceTokenStatus {
    /// A person confirmed it: the session is in the answer.
    Granted,
    /// Nobody has decided yet.
    AuthorizationPending,
    /// The device asks too often: it waits five seconds longer from now on.
    SlowDown,
    /// A person denied it.
    AccessDenied,
    /// The codes work no more, or never did.
    ExpiredToken,
}

/// The login of a device, as the person sees it who decides about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceLoginView {
    /// The code that the device shows. They have to be the same.
    pub user_code: String,
    /// What the device calls itself. It may lie.
    pub device: String,
    /// The address that the device asks from; the network of it for IPv6.
    pub source: String,
    /// When it asked.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When its codes stop working.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// Decides about the login of a device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideDeviceLogin {
    /// Whether the device may act in your name.
    pub approved: bool,
}
