//! User accounts.

use cynode_core::{
    accounts::{User, UserState},
    budget::{self, Budget},
    events::EventKind,
    ids::{BudgetId, UserId},
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::{
    identity::{
        accounts::{self, DisabledBy},
        scim,
    },
    models::budgets,
    notifications,
    tools::agent_tokens,
};
use cynode_wire::identity::accounts::{CreateUser, UpdateUser};
use serde_json::json;

use crate::{
    Ctx, Error, HashedPassword,
    identity::{api_keys, second_factor, sessions, single_sign_on},
    platform::{context::EventDraft, operation, settings},
};

/// Creates an account.
#[tracing::instrument(name = "app.users.create_user", skip_all)]
#[operation]
pub async fn create_user(
    ctx: &mut Ctx,
    body: CreateUser,
    password: HashedPassword,
) -> Result<User, Error> {
    ctx.require_role(UserRole::Admin)?;
    let user = User {
        id: UserId::from_uuid(ctx.new_uuid()),
        handle: body.handle,
        display_name: body.display_name,
        email: body.email,
        role: body.role,
        can_create_projects: body.can_create_projects,
        state: UserState::Active,
        created_at: ctx.now,
    };
    store_user(ctx, &user, &password).await?;
    set_default_budget(ctx, user.id).await?;
    let data = json!({
        "user_id": user.id, "role": user.role, "can_create_projects": user.can_create_projects,
    });
    ctx.record_event(EventDraft::new(EventKind::UserCreated, data).with_subject(user.id)).await?;
    Ok(user)
}

/// Gives a new account the monthly budget that the setting `budget.user_default` says.
pub(crate) async fn set_default_budget(ctx: &mut Ctx, user: UserId) -> Result<(), Error> {
    let set = settings::setting_value(ctx.conn(), budget::USER_DEFAULT_SETTING).await?;
    let Some(limit) = budget::default_user_limit(set.as_ref()) else { return Ok(()) };
    let limits = Budget { max_cost_micros: Some(limit), max_tokens: None };
    let (id, now) = (BudgetId::from_uuid(ctx.new_uuid()), ctx.now);
    budgets::insert_default_budget(ctx.conn(), id, user, &limits, now).await?;
    Ok(())
}

/// Stores an account with its password.
pub(crate) async fn store_user(
    ctx: &mut Ctx,
    user: &User,
    password: &HashedPassword,
) -> Result<(), Error> {
    let now = ctx.now;
    match accounts::insert_user(ctx.conn(), user).await {
        Err(error) if error.is_refused_by("users_handle_unique") => {
            return Err(Error::AlreadyExists {
                what: "a user with the handle",
                name: user.handle.to_string(),
            });
        }
        result => result?,
    }
    accounts::set_password(ctx.conn(), user.id, password.as_str(), now).await?;
    Ok(())
}

/// Returns one account. Users may see their own, a viewer of the installation all.
#[tracing::instrument(name = "app.users.get_user", skip_all, fields(user.id = %id))]
#[operation]
pub async fn get_user(ctx: &mut Ctx, id: UserId) -> Result<User, Error> {
    if ctx.caller()?.user != id {
        ctx.require_role(UserRole::Viewer)?;
    }
    accounts::get_user(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("user", id))
}

/// Lists all accounts.
#[tracing::instrument(name = "app.users.list_users", skip_all)]
#[operation]
pub async fn list_users(ctx: &mut Ctx, page: PageRequest) -> Result<Page<User>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let users = accounts::list_users(ctx.conn(), page).await?;
    Ok(page.into_page(users, |user| user.id.as_uuid()))
}

/// Updates an account. The last admin can neither be disabled nor lose the role.
///
/// When an admin sets a user's password, all other access as that user ends: sessions, API keys, and notification
/// channels, whose links answer without a credential. Accounts at identity providers that were linked later are unlinked. Nobody changes their own password or second factor here: that needs
/// the old one. With a session ends the subscription of its browser to notifications.
#[tracing::instrument(name = "app.users.update_user", skip_all, fields(user.id = %id))]
#[operation]
pub async fn update_user(
    ctx: &mut Ctx,
    id: UserId,
    body: UpdateUser,
    password: Option<HashedPassword>,
) -> Result<User, Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    let now = ctx.now;
    if caller.user == id && (password.is_some() || body.delete_second_factor) {
        return Err(Error::Conflict(
            "your own password and second factor are changed with the old ones, at `/v1/me`",
        ));
    }
    let role = body.role.map(Option::<UserRole>::from);
    if body.active == Some(false) || role.is_some_and(|role| role != Some(UserRole::Admin)) {
        require_other_admin(ctx, id).await?;
    }
    if let Some(active) = body.active {
        let state = if active { UserState::Active } else { UserState::Disabled { at: now } };
        accounts::set_user_state(ctx.conn(), id, state, DisabledBy::Admin, now).await?;
    }
    let user =
        accounts::get_user(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("user", id))?;
    if let Some(role) = role {
        accounts::set_installation_role(ctx.conn(), id, role, now).await?;
    }
    if role.is_some() || body.active.is_some() {
        // A private address that an admin allowed for a tool server is allowed only while they are one.
        ctx.invalidate_policy().await?;
    }
    if let Some(allowed) = body.can_create_projects {
        accounts::set_project_creation(ctx.conn(), id, allowed, now).await?;
    }
    if let Some(name) = &body.scim_user_name {
        set_directory_name(ctx, id, name).await?;
    }
    if let Some(password) = &password {
        accounts::set_password(ctx.conn(), id, password.as_str(), now).await?;
    }
    if body.delete_second_factor {
        second_factor::delete_second_factor(ctx, id).await?;
    }
    let ended = end_access_for_update(ctx, id, &body, password.is_some()).await?;
    let unlinked = match &password {
        Some(_) => single_sign_on::remove_linked_identities(ctx, id).await?,
        None => 0,
    };
    let data = json!({
        "user_id": id,
        "active": body.active,
        "role": role,
        "can_create_projects": body.can_create_projects,
        "in_directory": body.scim_user_name.as_ref().map(|name| !name.is_empty()),
        "password_changed": password.is_some(),
        "sessions_ended": ended.sessions,
        "identities_unlinked": unlinked,
        "keys_revoked": ended.keys,
        "agent_tokens_revoked": ended.agent_tokens,
        "channels_switched_off": ended.channels,
    });
    ctx.record_event(EventDraft::new(EventKind::UserUpdated, data).with_subject(id)).await?;
    let can_create_projects = body.can_create_projects.unwrap_or(user.can_create_projects);
    Ok(User { role: role.unwrap_or(user.role), can_create_projects, ..user })
}

/// Rejects a change that would leave the installation without an active admin.
pub(crate) async fn require_other_admin(ctx: &mut Ctx, user: UserId) -> Result<(), Error> {
    if accounts::count_other_admins(ctx.conn(), user).await? > 0 {
        return Ok(());
    }
    Err(Error::Conflict("an installation needs an active admin: make another one first"))
}

/// Ends the access that a change of an account is to end: all of it with a new password, the sessions of a disabled account
/// or of one without its second factor, and the keys if asked.
async fn end_access_for_update(
    ctx: &mut Ctx,
    id: UserId,
    body: &UpdateUser,
    reset: bool,
) -> Result<EndedAccess, Error> {
    if reset {
        return end_all_access(ctx, id, "an admin set a new password: switch it on if it is yours")
            .await;
    }
    let mut ended = EndedAccess::default();
    if body.active == Some(false) || body.delete_second_factor {
        ended.sessions = sessions::end_user_sessions(ctx, id, None).await?;
    }
    if body.revoke_keys {
        ended.keys = api_keys::revoke_all_api_keys(ctx, id).await?;
    }
    Ok(ended)
}

/// Numbers of what ended with a user's access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndedAccess {
    pub(crate) sessions: u64,
    pub(crate) keys: usize,
    pub(crate) agent_tokens: u64,
    pub(crate) channels: usize,
}

/// Ends every session, API key, agent token and notification channel of a user.
pub(crate) async fn end_all_access(
    ctx: &mut Ctx,
    user: UserId,
    reason: &str,
) -> Result<EndedAccess, Error> {
    let now = ctx.now;
    Ok(EndedAccess {
        sessions: sessions::end_user_sessions(ctx, user, None).await?,
        keys: api_keys::revoke_all_api_keys(ctx, user).await?,
        agent_tokens: agent_tokens::revoke_issued_by(ctx.conn(), user, now).await?,
        channels: disable_notification_channels(ctx, user, reason).await?,
    })
}

/// Puts an account under the directory, or takes it out with an empty name.
async fn set_directory_name(ctx: &mut Ctx, user: UserId, name: &str) -> Result<(), Error> {
    let now = ctx.now;
    scim::delete_scim_user(ctx.conn(), user).await?;
    if name.is_empty() {
        return Ok(());
    }
    let invalid =
        |error: cynode_core::scim::ScimSyntaxError| Error::Invalid(error.detail().to_owned());
    cynode_core::scim::validate_user_name(name).map_err(invalid)?;
    match scim::insert_scim_user(ctx.conn(), user, name, None, now).await {
        Err(error) if error.is_refused_by("scim_users_user_name_unique") => {
            Err(Error::AlreadyExists {
                what: "a user of the directory with the name",
                name: name.into(),
            })
        }
        result => Ok(result?),
    }
}

/// Disables the notification channels of a user, since somebody else may have created them.
async fn disable_notification_channels(
    ctx: &mut Ctx,
    user: UserId,
    reason: &str,
) -> Result<usize, Error> {
    let now = ctx.now;
    let disabled = notifications::disable_user_channels(ctx.conn(), user, reason, now).await?;
    for channel in &disabled {
        let reason = "the channel was switched off";
        notifications::fail_pending_notifications(ctx.conn(), channel.id, reason).await?;
        ctx.record_event(EventDraft::of_channel(channel, "changed").with_subject(user)).await?;
    }
    Ok(disabled.len())
}
