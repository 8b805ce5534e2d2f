//! API keys: programs act with them in a user's name, within the scopes and projects of the key.

use cynode_core::{
    accounts::{ApiKey, ApiScope, CallerCredential},
    events::EventKind,
    ids::{ApiKeyId, ProjectId, UserId},
    paging::{Page, PageRequest},
    roles::UserRole,
    settings::registry::{
        API_KEY_DAYS_SETTING, DEFAULT_API_KEY_DAYS, DEFAULT_MAX_API_KEY_DAYS,
        MAX_API_KEY_DAYS_SETTING,
    },
};
use cynode_db::identity::accounts;
use cynode_wire::identity::accounts::{CreateApiKey, CreatedApiKey};
use serde_json::json;
use time::Duration;

use crate::{
    AuthenticatedCaller, Ctx, Error,
    platform::{
        context::{EventDraft, is_limited_to_projects},
        operation, settings,
        tokens::TokenKind,
    },
};

/// Maximum number of projects of a key.
const MAX_KEY_PROJECTS: usize = 50;

/// What a request does with what it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeUse {
    /// It changes nothing.
    Read,
    /// It changes something.
    Change,
}

/// Rejects an API key that does not open an operation. Every other credential passes.
pub fn require_scope(
    caller: &AuthenticatedCaller,
    scope: ApiScope,
    action: ScopeUse,
) -> Result<(), Error> {
    require_named_scope(caller, scope, action)?;
    if is_limited_to_projects(caller) && !scope.names_project() {
        return Err(Error::KeyDenied(format!(
            "this API key opens some projects only, and `{}` is about more than a project",
            scope.as_str()
        )));
    }
    Ok(())
}

/// Rejects an API key that does not open model calls, on behalf of a project or without one.
pub fn require_inference_scope(
    caller: &AuthenticatedCaller,
    project: Option<ProjectId>,
) -> Result<(), Error> {
    require_named_scope(caller, ApiScope::Models, ScopeUse::Change)?;
    if is_limited_to_projects(caller) && project.is_none() {
        let told = "this API key opens some projects only: name one as `OpenAI-Project`";
        return Err(Error::KeyDenied(told.into()));
    }
    Ok(())
}

/// Returns whether the caller may talk to the project manager, which acts with all rights of its user: an API key with scopes
/// needs that of the manager, and one of some projects may not.
pub(crate) fn may_chat_with_manager(caller: &AuthenticatedCaller) -> bool {
    caller.key.is_none_or(|key| {
        let named = key.scopes.is_none_or(|scopes| scopes.includes_scope(ApiScope::Manager));
        named && key.project_limit.is_none()
    })
}

/// Rejects an API key that may not issue tokens of agents. An agent does in its project what its user may do there, so that a
/// key with scopes would reach tasks and models that it does not open itself.
pub(crate) fn require_agent_scope(caller: &AuthenticatedCaller) -> Result<(), Error> {
    if may_chat_with_manager(caller) {
        return Ok(());
    }
    let told = "an agent acts with all rights of its user in a project: it takes a key with the scope `manager` and without a list of projects";
    Err(Error::KeyDenied(told.into()))
}

fn require_named_scope(
    caller: &AuthenticatedCaller,
    scope: ApiScope,
    action: ScopeUse,
) -> Result<(), Error> {
    let Some(key) = caller.key else { return Ok(()) };
    let is_change = action == ScopeUse::Change;
    let name = scope.as_str();
    match key.scopes {
        Some(scopes) if !scopes.includes_scope(scope) => {
            Err(Error::KeyDenied(format!("this API key lacks the scope `{name}`")))
        }
        None if is_change && scope.must_be_named() => Err(Error::KeyDenied(format!(
            "an API key changes this only if it was created with the scope `{name}`"
        ))),
        Some(_) | None if is_change && key.read_only => {
            Err(Error::KeyDenied("this API key only reads".into()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Creates an API key for the caller. Only the answer contains the secret.
#[tracing::instrument(name = "app.api_keys.create_api_key", skip_all)]
#[operation]
pub async fn create_api_key(ctx: &mut Ctx, body: CreateApiKey) -> Result<CreatedApiKey, Error> {
    let caller = ctx.caller()?;
    // A leaked key must not outlive its expiry by creating other keys.
    let CallerCredential::Session(session) = caller.credential else {
        return Err(Error::Conflict("an API key cannot make API keys: log in to make one"));
    };
    let days = choose_lifetime(ctx, body.expires_in_days).await?;
    if body.scopes.as_ref().is_some_and(Vec::is_empty) {
        return Err(Error::Invalid("`scopes` names at least one".into()));
    }
    let projects = match body.projects {
        Some(projects) => Some(require_projects(ctx, projects).await?),
        None => None,
    };
    let second_factor = accounts::has_second_factor(ctx.conn(), session).await?;
    let (token, hash) = ctx.issue_token(TokenKind::ApiKey);
    let key = ApiKey {
        id: ApiKeyId::from_uuid(ctx.new_uuid()),
        user: caller.user,
        name: body.name,
        created_at: ctx.now,
        expires_at: Some(ctx.now + Duration::days(days)),
        revoked_at: None,
        last_used_at: None,
        scopes: body.scopes.map(|scopes| scopes.into_iter().collect()),
        read_only: body.read_only,
        projects,
        second_factor,
    };
    match accounts::insert_api_key(ctx.conn(), &key, &hash).await {
        Err(error) if error.is_refused_by("api_key_projects_project_id_fkey") => {
            return Err(Error::Invalid("`projects` names a project that does not exist".into()));
        }
        result => result?,
    }
    let scopes = key.scopes.map(|scopes| scopes.list_scopes());
    let data = json!({
        "api_key_id": key.id,
        "scopes": scopes,
        "read_only": key.read_only,
        "projects": key.projects,
    });
    let told = EventDraft::new(EventKind::ApiKeyCreated, data);
    ctx.record_event(told.with_subject(caller.user)).await?;
    Ok(CreatedApiKey { token, api_key: key.into() })
}

/// Returns the days until a new key expires. No key lives for ever.
async fn choose_lifetime(ctx: &mut Ctx, wanted: Option<u16>) -> Result<i64, Error> {
    let conn = ctx.conn();
    let max =
        settings::setting_number(conn, MAX_API_KEY_DAYS_SETTING, DEFAULT_MAX_API_KEY_DAYS).await?;
    let default =
        settings::setting_number(conn, API_KEY_DAYS_SETTING, DEFAULT_API_KEY_DAYS).await?;
    match wanted.map(i64::from) {
        None => Ok(default.min(max)),
        Some(days) if (1..=max).contains(&days) => Ok(days),
        Some(_) => Err(Error::Invalid(format!("`expires_in_days` is 1 to {max}"))),
    }
}

/// Rejects projects that the caller may not see.
async fn require_projects(
    ctx: &mut Ctx,
    mut projects: Vec<ProjectId>,
) -> Result<Vec<ProjectId>, Error> {
    projects.sort_unstable();
    projects.dedup();
    if !(1..=MAX_KEY_PROJECTS).contains(&projects.len()) {
        return Err(Error::Invalid(format!("`projects` names 1 to {MAX_KEY_PROJECTS}")));
    }
    for project in &projects {
        // A caller with a role in the installation passes for a missing project, too: the foreign key refuses it.
        ctx.require_project_role(*project, UserRole::Viewer).await?;
    }
    Ok(projects)
}

/// Lists the caller's own keys, or those of `user` for an admin.
#[tracing::instrument(name = "app.api_keys.list_api_keys", skip_all)]
#[operation]
pub async fn list_api_keys(
    ctx: &mut Ctx,
    user: Option<UserId>,
    page: PageRequest,
) -> Result<Page<ApiKey>, Error> {
    let caller = ctx.caller()?;
    let user = user.unwrap_or(caller.user);
    if user != caller.user {
        ctx.require_role(UserRole::Admin)?;
        let known = accounts::get_user(ctx.conn(), user).await?;
        known.ok_or_else(|| Error::not_found("user", user))?;
    }
    let keys = accounts::list_api_keys(ctx.conn(), user, page).await?;
    Ok(page.into_page(keys, |key| key.id.as_uuid()))
}

/// Revokes a key of the caller, or of any user for an admin. It stops working with the next request.
#[tracing::instrument(name = "app.api_keys.revoke_api_key", skip_all, fields(api_key.id = %id))]
#[operation]
pub async fn revoke_api_key(ctx: &mut Ctx, id: ApiKeyId) -> Result<ApiKey, Error> {
    let caller = ctx.caller()?;
    let owner = accounts::api_key_owner(ctx.conn(), id).await?;
    // A key of another user does not exist for a caller who may not manage it.
    if owner != Some(caller.user) && caller.role < Some(UserRole::Admin) {
        return Err(Error::not_found("API key", id));
    }
    let now = ctx.now;
    let key = accounts::revoke_api_key(ctx.conn(), id, now).await?;
    let key = key.ok_or_else(|| Error::not_found("API key", id))?;
    let told = EventDraft::new(EventKind::ApiKeyRevoked, json!({ "api_key_id": id }));
    ctx.record_event(told.with_subject(key.user)).await?;
    Ok(key)
}

/// Revokes every key of a user. Returns their number.
pub(crate) async fn revoke_all_api_keys(ctx: &mut Ctx, user: UserId) -> Result<usize, Error> {
    let now = ctx.now;
    let revoked = accounts::revoke_api_keys(ctx.conn(), user, now).await?;
    for id in &revoked {
        let told = EventDraft::new(EventKind::ApiKeyRevoked, json!({ "api_key_id": id }));
        ctx.record_event(told.with_subject(user)).await?;
    }
    Ok(revoked.len())
}

#[cfg(test)]
mod tests {
    use cynode_core::accounts::{KeyRestrictions, ProjectLimit};
    use uuid::Uuid;

    use super::*;

    fn caller_with(key: Option<KeyRestrictions>) -> AuthenticatedCaller {
        AuthenticatedCaller {
            user: UserId::from_uuid(Uuid::from_u128(1)),
            credential: CallerCredential::ApiKey(ApiKeyId::from_uuid(Uuid::from_u128(2))),
            role: None,
            bounds: None,
            key,
        }
    }

    fn admits(key: KeyRestrictions, scope: ApiScope, action: ScopeUse) -> bool {
        require_scope(&caller_with(Some(key)), scope, action).is_ok()
    }

    const OPEN: KeyRestrictions =
        KeyRestrictions { scopes: None, read_only: false, project_limit: None };

    #[test]
    fn a_key_without_scopes_changes_everything_but_accounts_and_channels() {
        for scope in ApiScope::ALL {
            assert!(admits(OPEN, scope, ScopeUse::Read), "{scope:?}");
            let named = matches!(scope, ApiScope::Accounts | ApiScope::Notifications);
            assert_eq!(admits(OPEN, scope, ScopeUse::Change), !named, "{scope:?}");
        }
    }

    #[test]
    fn a_key_with_scopes_opens_those_and_no_others() {
        let own: cynode_core::accounts::ScopeSet =
            [ApiScope::Accounts, ApiScope::Tasks].into_iter().collect();
        let key = KeyRestrictions { scopes: Some(own), ..OPEN };
        for scope in ApiScope::ALL {
            for action in [ScopeUse::Read, ScopeUse::Change] {
                assert_eq!(admits(key, scope, action), own.includes_scope(scope), "{scope:?}");
            }
        }
    }

    #[test]
    fn a_key_that_only_reads_changes_nothing() {
        let key = KeyRestrictions { read_only: true, ..OPEN };
        for scope in ApiScope::ALL {
            assert!(admits(key, scope, ScopeUse::Read), "{scope:?}");
            assert!(!admits(key, scope, ScopeUse::Change), "{scope:?}");
        }
    }

    #[test]
    fn a_key_of_projects_opens_only_what_names_a_project() {
        let limit = ProjectLimit { person: Some(UserRole::Admin) };
        let key = KeyRestrictions { project_limit: Some(limit), ..OPEN };
        for scope in ApiScope::ALL {
            assert_eq!(admits(key, scope, ScopeUse::Read), scope.names_project(), "{scope:?}");
        }
        assert!(require_inference_scope(&caller_with(Some(key)), None).is_err());
        let project = ProjectId::from_uuid(Uuid::from_u128(3));
        assert!(require_inference_scope(&caller_with(Some(key)), Some(project)).is_ok());
    }

    #[test]
    fn what_is_no_key_passes() {
        for scope in ApiScope::ALL {
            assert!(require_scope(&caller_with(None), scope, ScopeUse::Change).is_ok());
        }
    }
}
