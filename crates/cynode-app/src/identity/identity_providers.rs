//! Identity providers: administration, the groups that they map, and the file of the configuration.

use std::{collections::BTreeMap, sync::Arc};

use cynode_core::{
    events::EventKind,
    ids::{GroupId, IdentityProviderId},
    names::{GroupName, Title},
    roles::UserRole,
    settings::registry::DISABLE_LOCAL_LOGIN_SETTING,
};
use cynode_db::{
    Conn,
    identity::{
        groups,
        identity_providers::{self, GroupMapping, IdentityProviderRecord},
        provider_grants::{self, EndedGrants},
    },
    tools::policy,
};
use cynode_oidc::{OidcClient, OidcError, ProviderConfig};
use cynode_wire::identity::{
    accounts::SecretText,
    single_sign_on::{
        DiscoveryView, GroupMappingView, IdentityProviderList, IdentityProviderView, LoginOptions,
        LoginProvider, SetIdentityProvider,
    },
};
use serde_json::{Value, json};

use crate::{
    App, Ctx, Error, OperationRequest,
    identity::api_keys,
    platform::{context::EventDraft, keys::InstallationKeys, operation, settings},
};

/// Maximum number of identity providers.
const MAX_PROVIDERS: usize = 50;

/// Maximum number of mapped groups of one provider.
const MAX_MAPPINGS: usize = 1000;

/// Maximum number of scopes beside `openid`, and of values that stand for a second factor.
const MAX_SCOPES: usize = 20;

/// Maximum number of required claims, and of the values of one.
const MAX_REQUIRED_CLAIMS: usize = 10;
const MAX_CLAIM_VALUES: usize = 50;

/// Claim that names a person in the directory where nothing else is set.
const DEFAULT_DIRECTORY_CLAIM: &str = "sub";

/// How long a caller waits before it asks a provider again that cannot be reached.
const PROVIDER_RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(10);

/// What single sign-on needs: the client of providers, and the keys that seal its secrets.
#[derive(Clone)]
pub struct SignOnParts {
    /// Client of identity providers.
    pub client: Arc<OidcClient>,
    /// Keys of the installation.
    pub keys: InstallationKeys,
}

impl SignOnParts {
    /// Returns the configuration of a provider, with its secret opened.
    pub(crate) fn open_provider(
        &self,
        provider: &IdentityProviderRecord,
    ) -> Result<ProviderConfig, Error> {
        let place = secret_associated_data(provider.id, &provider.issuer);
        let secret = provider.sealed_secret.as_ref();
        let secret = secret.map(|sealed| self.keys.unseal_text(&place, sealed)).transpose()?;
        Ok(ProviderConfig {
            issuer: provider.issuer.clone(),
            client_id: provider.client_id.clone(),
            client_secret: secret,
            scopes: provider.scopes.clone(),
            groups_claim: provider.groups_claim.clone(),
            required_claims: provider.required_claims.clone(),
            directory_claim: provider.directory_claim.clone(),
        })
    }
}

/// Returns the associated data of a sealed client secret. It is of one provider at one issuer.
pub(crate) fn secret_associated_data(id: IdentityProviderId, issuer: &str) -> Vec<u8> {
    [b"identity-provider/".as_slice(), id.as_uuid().as_bytes(), issuer.as_bytes()].concat()
}

/// Turns a failure of a provider into the error of an operation.
pub(crate) fn to_provider_error(error: &OidcError) -> Error {
    let why = error.to_string();
    match error {
        OidcError::Unreachable(_) => {
            Error::UpstreamUnavailable { after: PROVIDER_RETRY_DELAY, why }
        }
        OidcError::Address(_) => Error::Invalid(why),
        OidcError::Refused(_)
        | OidcError::Client(_)
        | OidcError::Unrenewable
        | OidcError::Protocol(_) => Error::UpstreamRejected(why),
    }
}

fn invalid_input<T>(reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(reason.into()))
}

/// Creates an identity provider, or changes one. Its issuer never changes.
#[tracing::instrument(name = "app.identity_providers.set_identity_provider", skip_all)]
#[operation]
pub async fn set_identity_provider(
    ctx: &mut Ctx,
    parts: &SignOnParts,
    name: &str,
    body: SetIdentityProvider,
) -> Result<IdentityProviderView, Error> {
    ctx.require_role(UserRole::Admin)?;
    let existing = identity_providers::lock_identity_provider(ctx.conn(), name).await?;
    if existing.as_ref().is_some_and(|provider| provider.from_file) {
        return Err(Error::Conflict(
            "the file of the configuration owns this provider: change it there",
        ));
    }
    store_provider(ctx, parts, name, body, existing.as_ref(), false).await
}

/// Stores what was set, with its mappings, and ends its sessions if it was switched off.
async fn store_provider(
    ctx: &mut Ctx,
    parts: &SignOnParts,
    name: &str,
    body: SetIdentityProvider,
    existing: Option<&IdentityProviderRecord>,
    from_file: bool,
) -> Result<IdentityProviderView, Error> {
    validate_name(name)?;
    validate_body(&body)?;
    let mappings = body.mappings.clone();
    let provider = build_record(ctx, parts, name, body, existing, from_file)?;
    if existing.is_none() {
        let count = identity_providers::list_identity_providers(ctx.conn()).await?.len();
        if count >= MAX_PROVIDERS {
            return Err(Error::LimitExceeded(format!(
                "there are at most {MAX_PROVIDERS} identity providers"
            )));
        }
        parts
            .client
            .validate_issuer(&provider.issuer)
            .map_err(|error| to_provider_error(&error))?;
    }
    match identity_providers::set_identity_provider(ctx.conn(), &provider).await {
        Err(error) if error.is_refused_by("identity_providers_name_unique") => {
            let (what, name) = ("an identity provider with the name", provider.name);
            return Err(Error::AlreadyExists { what, name });
        }
        Err(error) if error.is_refused_by("identity_providers_issuer_unique") => {
            let (what, name) = ("an identity provider with the issuer", provider.issuer);
            return Err(Error::AlreadyExists { what, name });
        }
        result => result?,
    }
    if let Some(mappings) = mappings {
        let mappings: Vec<_> =
            mappings.into_iter().map(|entry| (entry.claim_value, entry.group_id)).collect();
        store_mappings(ctx, provider.id, &provider.name, &mappings).await?;
    }
    if !provider.enabled {
        end_provider_sessions(ctx, &provider, "provider_disabled").await?;
    }
    let change = if existing.is_some() { "changed" } else { "created" };
    let data = json!({
        "provider": provider.name,
        "change": change,
        "issuer": provider.issuer,
        "client_id": provider.client_id,
        "create_accounts": provider.create_accounts,
        "mapped_groups_only": provider.mapped_groups_only,
        "required_claims": provider.required_claims,
        "links_directory": provider.links_directory,
        "directory_claim": provider.directory_claim,
        "second_factor_contexts": provider.second_factor_contexts,
        "enabled": provider.enabled,
    });
    record_provider_change(ctx, data).await?;
    to_provider_view(ctx.conn(), provider).await
}

fn validate_name(name: &str) -> Result<(), Error> {
    let good = name.len() <= 31
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if good {
        Ok(())
    } else {
        invalid_input("a provider's name has 1 to 31 of a-z, 0-9 and `-`, and begins with a letter")
    }
}

fn validate_body(body: &SetIdentityProvider) -> Result<(), Error> {
    let visible = |text: &str, max: usize| {
        (1..=max).contains(&text.len()) && text.bytes().all(|b| (0x21..0x7f).contains(&b))
    };
    if !visible(&body.issuer, 500) {
        return invalid_input("`issuer` has 1 to 500 visible ASCII characters");
    }
    if !visible(&body.client_id, 500) {
        return invalid_input("`client_id` has 1 to 500 visible ASCII characters");
    }
    let secret = body.client_secret.as_ref().map(|secret| secret.0.as_str()).unwrap_or_default();
    if !secret.is_empty() && !visible(secret, 4096) {
        return invalid_input("`client_secret` has at most 4096 visible ASCII characters");
    }
    let scopes = body.scopes.as_deref().unwrap_or_default();
    if scopes.len() > MAX_SCOPES || !scopes.iter().all(|scope| visible(scope, 100)) {
        return invalid_input(format!(
            "`scopes` has at most {MAX_SCOPES} names of 1 to 100 visible ASCII characters"
        ));
    }
    let contexts = body.second_factor_contexts.as_deref().unwrap_or_default();
    if contexts.len() > MAX_SCOPES || !contexts.iter().all(|context| visible(context, 200)) {
        return invalid_input(format!(
            "`second_factor_contexts` has at most {MAX_SCOPES} values of 1 to 200 visible ASCII characters"
        ));
    }
    if body.groups_claim.as_deref().is_some_and(|claim| !visible(claim, 200)) {
        return invalid_input("`groups_claim` has 1 to 200 visible ASCII characters");
    }
    if body.directory_claim.as_deref().is_some_and(|claim| !visible(claim, 200)) {
        return invalid_input("`directory_claim` has 1 to 200 visible ASCII characters");
    }
    let fits_claim = |(name, values): (&String, &Vec<String>)| {
        visible(name, 200)
            && (1..=MAX_CLAIM_VALUES).contains(&values.len())
            && values.iter().all(|value| visible(value, 300))
    };
    if body
        .required_claims
        .as_ref()
        .is_some_and(|claims| claims.len() > MAX_REQUIRED_CLAIMS || !claims.iter().all(fits_claim))
    {
        return invalid_input(format!(
            "`required_claims` has at most {MAX_REQUIRED_CLAIMS} claims, each with 1 to {MAX_CLAIM_VALUES} values of visible ASCII characters"
        ));
    }
    let mappings = body.mappings.as_deref().unwrap_or_default();
    let fits = |text: &str| {
        (1..=300).contains(&text.chars().count()) && !text.chars().any(char::is_control)
    };
    if mappings.len() > MAX_MAPPINGS || !mappings.iter().all(|entry| fits(&entry.claim_value)) {
        return invalid_input(format!(
            "`mappings` has at most {MAX_MAPPINGS} entries, each with a name of 1 to 300 characters"
        ));
    }
    Ok(())
}

fn build_record(
    ctx: &Ctx,
    parts: &SignOnParts,
    name: &str,
    body: SetIdentityProvider,
    existing: Option<&IdentityProviderRecord>,
    from_file: bool,
) -> Result<IdentityProviderRecord, Error> {
    if existing.is_some_and(|provider| provider.issuer != body.issuer) {
        return Err(Error::Conflict(
            "the issuer of a provider cannot change, because its people are others: create another provider",
        ));
    }
    let directory_claim = match (existing, body.directory_claim) {
        (Some(provider), Some(claim)) if claim != provider.directory_claim => {
            return Err(Error::Conflict(
                "the directory's claim of a provider cannot change, because its values are other people: create another provider",
            ));
        }
        (Some(provider), _) => provider.directory_claim.clone(),
        (None, claim) => claim.unwrap_or_else(|| DEFAULT_DIRECTORY_CLAIM.to_owned()),
    };
    let id = match existing {
        Some(provider) => provider.id,
        None => IdentityProviderId::from_uuid(ctx.new_uuid()),
    };
    let sealed_secret = match &body.client_secret {
        Some(SecretText(secret)) if secret.is_empty() => None,
        Some(SecretText(secret)) => {
            let place = secret_associated_data(id, &body.issuer);
            Some(parts.keys.seal_secret(ctx.environment(), &place, secret.as_bytes())?)
        }
        None => existing.and_then(|provider| provider.sealed_secret.clone()),
    };
    let default_scopes = || vec!["profile".to_owned(), "email".to_owned()];
    Ok(IdentityProviderRecord {
        id,
        name: name.to_owned(),
        display_name: body.display_name,
        issuer: body.issuer,
        client_id: body.client_id,
        sealed_secret,
        scopes: body
            .scopes
            .or_else(|| existing.map(|provider| provider.scopes.clone()))
            .unwrap_or_else(default_scopes),
        groups_claim: body
            .groups_claim
            .or_else(|| existing.map(|provider| provider.groups_claim.clone()))
            .unwrap_or_else(|| "groups".to_owned()),
        create_accounts: body
            .create_accounts
            .or(existing.map(|provider| provider.create_accounts))
            .unwrap_or(true),
        mapped_groups_only: body
            .mapped_groups_only
            .or(existing.map(|provider| provider.mapped_groups_only))
            .unwrap_or(false),
        required_claims: body
            .required_claims
            .or_else(|| existing.map(|provider| provider.required_claims.clone()))
            .unwrap_or_default(),
        directory_claim,
        links_directory: body
            .links_directory
            .or(existing.map(|provider| provider.links_directory))
            .unwrap_or(false),
        second_factor_contexts: body
            .second_factor_contexts
            .or_else(|| existing.map(|provider| provider.second_factor_contexts.clone()))
            .unwrap_or_default(),
        enabled: body.enabled.or(existing.map(|provider| provider.enabled)).unwrap_or(true),
        from_file,
        created_at: existing.map_or(ctx.now, |provider| provider.created_at),
        updated_at: ctx.now,
    })
}

/// Replaces the mappings of a provider, and records which of them are new and which are gone: they give rights.
async fn store_mappings(
    ctx: &mut Ctx,
    provider: IdentityProviderId,
    name: &str,
    mappings: &[(String, GroupId)],
) -> Result<(), Error> {
    let before = identity_providers::list_group_mappings(ctx.conn(), provider).await?;
    match identity_providers::set_group_mappings(ctx.conn(), provider, mappings).await {
        Err(error) if error.is_refused_by("provider_group_mappings_group_id_fkey") => {
            return invalid_input("`mappings` names a group that does not exist");
        }
        result => result?,
    }
    let is_same = |old: &GroupMapping, (value, group): &(String, GroupId)| {
        old.claim_value == *value && old.group == *group
    };
    let lost: Vec<&GroupMapping> =
        before.iter().filter(|old| !mappings.iter().any(|new| is_same(old, new))).collect();
    let added = mappings.iter().filter(|new| !before.iter().any(|old| is_same(old, new)));
    let to_entry = |value: &str, group: GroupId| json!({ "claim_value": value, "group_id": group });
    let added: Vec<Value> = added.map(|(value, group)| to_entry(value, *group)).collect();
    let removed: Vec<Value> =
        lost.iter().map(|old| to_entry(&old.claim_value, old.group)).collect();
    if !added.is_empty() || !removed.is_empty() {
        let data =
            json!({ "provider": name, "change": "mapped", "added": added, "removed": removed });
        record_provider_change(ctx, data).await?;
    }
    let groups: Vec<GroupId> = lost.iter().map(|old| old.group).collect();
    revoke_memberships(ctx, provider, &groups).await
}

/// Takes away what a provider gave in groups that lost one of their names in the claim. Nobody knows by which name a member
/// came, so everybody leaves; those who belong there come back with the next check, which is due at once.
async fn revoke_memberships(
    ctx: &mut Ctx,
    provider: IdentityProviderId,
    groups: &[GroupId],
) -> Result<(), Error> {
    let removed =
        identity_providers::remove_members_of_groups(ctx.conn(), provider, groups).await?;
    if removed == 0 {
        return Ok(());
    }
    let now = ctx.now;
    provider_grants::expire_confirmations(ctx.conn(), provider, now).await?;
    ctx.invalidate_policy().await
}

async fn record_provider_change(ctx: &mut Ctx, data: Value) -> Result<(), Error> {
    ctx.record_event(EventDraft::new(EventKind::IdentityProviderSet, data)).await
}

/// Ends every session of a provider and takes away the groups that it gave: it vouches for nobody any more. API keys of people who log in by it
/// alone stop working until it confirms them again.
async fn end_provider_sessions(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    reason: &'static str,
) -> Result<(), Error> {
    let now = ctx.now;
    let ended =
        provider_grants::end_grants(ctx.conn(), EndedGrants::Provider(provider.id), now).await?;
    super::provider_grants::record_ended_sessions(ctx, &ended, reason).await?;
    provider_grants::clear_confirmation(ctx.conn(), provider.id, None).await?;
    let removed =
        identity_providers::remove_provider_memberships(ctx.conn(), provider.id, None).await?;
    if removed > 0 {
        ctx.invalidate_policy().await?;
    }
    Ok(())
}

/// Deletes an identity provider with the accounts that it knows. Their users stay, and their sessions end. API keys of users for whom nobody
/// vouches any more are revoked.
#[tracing::instrument(name = "app.identity_providers.delete_identity_provider", skip_all)]
#[operation]
pub async fn delete_identity_provider(ctx: &mut Ctx, name: &str) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin)?;
    let provider = identity_providers::lock_identity_provider(ctx.conn(), name).await?;
    let provider = provider.ok_or_else(|| Error::not_found("identity provider", name))?;
    if provider.from_file {
        return Err(Error::Conflict(
            "the file of the configuration owns this provider: remove it there first",
        ));
    }
    end_provider_sessions(ctx, &provider, "provider_deleted").await?;
    for user in provider_grants::list_dependent_users(ctx.conn(), provider.id).await? {
        api_keys::revoke_all_api_keys(ctx, user).await?;
    }
    identity_providers::delete_identity_provider(ctx.conn(), provider.id).await?;
    record_provider_change(ctx, json!({ "provider": name, "change": "deleted" })).await
}

/// Lists all identity providers.
#[tracing::instrument(name = "app.identity_providers.list_identity_providers", skip_all)]
#[operation]
pub async fn list_identity_providers(ctx: &mut Ctx) -> Result<IdentityProviderList, Error> {
    ctx.require_role(UserRole::Admin)?;
    let mut items = Vec::new();
    for provider in identity_providers::list_identity_providers(ctx.conn()).await? {
        items.push(to_provider_view(ctx.conn(), provider).await?);
    }
    Ok(IdentityProviderList { items })
}

async fn to_provider_view(
    conn: &mut Conn,
    provider: IdentityProviderRecord,
) -> Result<IdentityProviderView, Error> {
    let mappings = identity_providers::list_group_mappings(conn, provider.id).await?;
    let mappings = mappings.into_iter().map(|mapping| GroupMappingView {
        claim_value: mapping.claim_value,
        group_id: mapping.group,
        group_name: mapping.group_name,
    });
    Ok(IdentityProviderView {
        id: provider.id,
        callback_path: callback_path(&provider.name),
        logout_path: format!("/v1/sso/{}/backchannel-logout", provider.name),
        name: provider.name,
        display_name: provider.display_name,
        issuer: provider.issuer,
        client_id: provider.client_id,
        has_secret: provider.sealed_secret.is_some(),
        scopes: provider.scopes,
        groups_claim: provider.groups_claim,
        create_accounts: provider.create_accounts,
        mapped_groups_only: provider.mapped_groups_only,
        required_claims: provider.required_claims,
        links_directory: provider.links_directory,
        directory_claim: provider.directory_claim,
        second_factor_contexts: provider.second_factor_contexts,
        enabled: provider.enabled,
        from_file: provider.from_file,
        mappings: mappings.collect(),
        created_at: provider.created_at,
        updated_at: provider.updated_at,
    })
}

/// Returns the path that a provider sends browsers back to. Each provider has its own, so that the answer of one is never
/// taken for that of another.
pub(crate) fn callback_path(name: &str) -> String {
    format!("/v1/sso/{name}/callback")
}

/// Reads the discovery document of a provider anew. It tells an admin whether the provider can be used.
#[tracing::instrument(name = "app.identity_providers.test_identity_provider", skip_all)]
#[operation]
pub async fn test_identity_provider(
    app: &App,
    request: &OperationRequest,
    name: &str,
) -> Result<DiscoveryView, Error> {
    let parts = app.sign_on_parts()?;
    let name = name.to_owned();
    let provider = app.read(request, |ctx| {
        Box::pin(async move {
            ctx.require_role(UserRole::Admin)?;
            let provider = identity_providers::find_identity_provider(ctx.conn(), &name).await?;
            provider.ok_or_else(|| Error::not_found("identity provider", &name))
        })
    });
    let provider = provider.await?;
    // The connection went back to the pool: the provider may be slow.
    let now = app.environment().now();
    let found = parts.client.test_discovery(&provider.issuer, now).await;
    let found = found.map_err(|error| to_provider_error(&error))?;
    Ok(DiscoveryView {
        issuer: found.issuer,
        authorization_endpoint: found.authorization_endpoint.into(),
        token_endpoint: found.token_endpoint.into(),
        userinfo_endpoint: found.userinfo_endpoint.map(String::from),
        end_session_endpoint: found.end_session_endpoint.map(String::from),
        scopes: found.scopes_supported.unwrap_or_default(),
        names_issuer: found.authorization_response_iss_parameter_supported,
        sends_logout_tokens: found.backchannel_logout_supported,
    })
}

/// Returns how people can log in. Everybody may know it.
#[tracing::instrument(name = "app.identity_providers.login_options", skip_all)]
#[operation]
pub async fn login_options(app: &App) -> Result<LoginOptions, Error> {
    let mut conn = app.conn().await?;
    let providers = identity_providers::list_identity_providers(&mut conn).await?;
    let providers = providers.into_iter().filter(|provider| provider.enabled);
    let providers = providers.map(|provider| LoginProvider {
        login_path: format!("/v1/sso/{}/login", provider.name),
        name: provider.name,
        display_name: provider.display_name,
    });
    let providers = providers.collect();
    Ok(LoginOptions { password: is_password_login_enabled(&mut conn).await?, providers })
}

/// Returns whether passwords of this installation work.
pub(crate) async fn is_password_login_enabled(conn: &mut Conn) -> Result<bool, Error> {
    let set = settings::setting_value(conn, DISABLE_LOCAL_LOGIN_SETTING).await?;
    // What is no switch disables nothing and is refused when it is set.
    Ok(set != Some(Value::Bool(true)))
}

/// An identity provider of the file of the configuration.
#[derive(Clone, Debug)]
pub struct FileProvider {
    /// Its name in addresses.
    pub name: String,
    /// What people see.
    pub display_name: Title,
    /// The issuer.
    pub issuer: String,
    /// Our id at the provider.
    pub client_id: String,
    /// Our secret at the provider. A public client has none.
    pub client_secret: Option<SecretText>,
    /// What a login asks for beside `openid`.
    pub scopes: Option<Vec<String>>,
    /// The claim that lists groups.
    pub groups_claim: Option<String>,
    /// Whether a person without an account gets one.
    pub create_accounts: bool,
    /// Whether of people without an account only members of a mapped group get one.
    pub mapped_groups_only: bool,
    /// Claims that a person must have to log in, each with one of the values.
    pub required_claims: BTreeMap<String, Vec<String>>,
    /// Whether accounts of the directory log in by it.
    pub links_directory: bool,
    /// The claim that is the external id of an account of the directory.
    pub directory_claim: Option<String>,
    /// Values of the claim `acr` that stand for a second factor.
    pub second_factor_contexts: Vec<String>,
    /// Groups of the provider and the groups that they are here. A group that does not exist is created.
    pub groups: BTreeMap<String, GroupName>,
    /// Roles of groups here in the whole installation.
    pub roles: BTreeMap<GroupName, UserRole>,
}

/// Makes the identity providers of the file those of the installation. One that left the file is switched off, and its
/// sessions end.
#[tracing::instrument(name = "app.identity_providers.apply_provider_file", skip_all)]
#[operation]
pub async fn apply_provider_file(app: &App, providers: Vec<FileProvider>) -> Result<(), Error> {
    let parts = app.sign_on_parts()?;
    let trace = app.environment().new_trace_id();
    let request = OperationRequest { caller: None, trace, attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    // Replicas that start together apply it one after the other.
    policy::lock_policy(ctx.conn()).await?;
    for mut known in identity_providers::list_identity_providers(ctx.conn()).await? {
        let listed = providers.iter().any(|provider| provider.name == known.name);
        if known.from_file && known.enabled && !listed {
            known.enabled = false;
            known.updated_at = ctx.now;
            identity_providers::set_identity_provider(ctx.conn(), &known).await?;
            end_provider_sessions(&mut ctx, &known, "provider_disabled").await?;
            let data = json!({ "provider": known.name, "change": "left_file", "enabled": false });
            record_provider_change(&mut ctx, data).await?;
        }
    }
    for provider in providers {
        apply_file_provider(&mut ctx, &parts, provider).await?;
    }
    app.commit_operation(ctx).await
}

async fn apply_file_provider(
    ctx: &mut Ctx,
    parts: &SignOnParts,
    file: FileProvider,
) -> Result<(), Error> {
    let known = groups::list_group_names(ctx.conn()).await?;
    let mut known: BTreeMap<GroupName, GroupId> = known.into_iter().collect();
    let mut mappings = Vec::new();
    for (claim_value, name) in file.groups {
        let id = ensure_group(ctx, &mut known, name).await?;
        mappings.push((claim_value, id));
    }
    for (name, role) in file.roles {
        let id = ensure_group(ctx, &mut known, name).await?;
        bind_file_role(ctx, id, role).await?;
    }
    let existing = identity_providers::lock_identity_provider(ctx.conn(), &file.name).await?;
    let body = SetIdentityProvider {
        display_name: file.display_name,
        issuer: file.issuer,
        client_id: file.client_id,
        // Without a secret in the file there is none.
        client_secret: Some(file.client_secret.unwrap_or_else(|| SecretText(String::new()))),
        scopes: file.scopes,
        groups_claim: file.groups_claim,
        create_accounts: Some(file.create_accounts),
        mapped_groups_only: Some(file.mapped_groups_only),
        required_claims: Some(file.required_claims),
        links_directory: Some(file.links_directory),
        directory_claim: file.directory_claim,
        second_factor_contexts: Some(file.second_factor_contexts),
        enabled: Some(true),
        mappings: None,
    };
    let stored = store_provider(ctx, parts, &file.name, body, existing.as_ref(), true).await?;
    store_mappings(ctx, stored.id, &stored.name, &mappings).await?;
    ctx.invalidate_policy().await
}

/// Gives a group the role of the file, and records it if it is another one than before.
async fn bind_file_role(ctx: &mut Ctx, id: GroupId, role: UserRole) -> Result<(), Error> {
    let there = groups::lock_group(ctx.conn(), id).await?;
    if there.is_some_and(|group| group.role == Some(role)) {
        return Ok(());
    }
    let now = ctx.now;
    groups::set_group_role(ctx.conn(), id, None, Some(role), now).await?;
    let data = json!({ "group_id": id, "role": role });
    ctx.record_event(EventDraft::new(EventKind::GroupUpdated, data)).await
}

async fn ensure_group(
    ctx: &mut Ctx,
    known: &mut BTreeMap<GroupName, GroupId>,
    name: GroupName,
) -> Result<GroupId, Error> {
    if let Some(id) = known.get(&name) {
        return Ok(*id);
    }
    let (id, now) = (GroupId::from_uuid(ctx.new_uuid()), ctx.now);
    groups::insert_group(ctx.conn(), id, &name, now).await?;
    ctx.record_event(EventDraft::new(EventKind::GroupCreated, json!({ "group_id": id }))).await?;
    known.insert(name, id);
    Ok(id)
}
