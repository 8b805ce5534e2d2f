//! User accounts.

use cynode_core::{
    accounts::{CallerCredential, User, UserState},
    budget::{self, Budget},
    events::EventKind,
    ids::{BudgetId, UserId},
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::{identity::accounts, models::budgets, notifications, tools::agent_tokens};
use cynode_wire::identity::accounts::{CreateUser, UpdateUser};
use serde_json::json;

use crate::{
    Ctx, Error, HashedPassword,
    identity::{api_keys, sessions},
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
        state: UserState::Active,
        created_at: ctx.now,
    };
    store_user(ctx, &user, &password).await?;
    set_default_budget(ctx, user.id).await?;
    let data = json!({ "user_id": user.id, "role": user.role });
    ctx.record_event(EventDraft::new(EventKind::UserCreated, data).with_subject(user.id)).await?;
    Ok(user)
}

/// Gives a new account the monthly budget that the setting `budget.user_default` says.
async fn set_default_budget(ctx: &mut Ctx, user: UserId) -> Result<(), Error> {
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
/// channels, whose links answer without a credential. A user who changes their own password stays logged in here and
/// keeps the rest unless asked. With a session ends the subscription of its browser to notifications.
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
    let role = body.role.map(Option::<UserRole>::from);
    let weakened =
        body.active == Some(false) || role.is_some_and(|role| role != Some(UserRole::Admin));
    if weakened && accounts::count_other_admins(ctx.conn(), id).await? == 0 {
        return Err(Error::Conflict(
            "an installation needs an active admin: make another one first",
        ));
    }
    if let Some(active) = body.active {
        let state = if active { UserState::Active } else { UserState::Disabled { at: now } };
        accounts::set_user_state(ctx.conn(), id, state, now).await?;
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
    if let Some(password) = &password {
        accounts::set_password(ctx.conn(), id, password.as_str(), now).await?;
    }
    let own = caller.user == id;
    if password.is_some() || body.active == Some(false) {
        let kept = match caller.credential {
            CallerCredential::Session(session) if own => Some(session),
            _ => None,
        };
        sessions::end_user_sessions(ctx, id, kept).await?;
    }
    let reset = password.is_some() && !own;
    let keys =
        if reset || body.revoke_keys { api_keys::revoke_all_api_keys(ctx, id).await? } else { 0 };
    let agents = if reset { agent_tokens::revoke_issued_by(ctx.conn(), id, now).await? } else { 0 };
    let channels = if reset { disable_notification_channels(ctx, id).await? } else { 0 };
    let data = json!({
        "user_id": id,
        "active": body.active,
        "role": role,
        "password_changed": password.is_some(),
        "keys_revoked": keys,
        "agent_tokens_revoked": agents,
        "channels_switched_off": channels,
    });
    ctx.record_event(EventDraft::new(EventKind::UserUpdated, data).with_subject(id)).await?;
    Ok(User { role: role.unwrap_or(user.role), ..user })
}

/// Disables the notification channels of a user, since somebody else may have created them.
async fn disable_notification_channels(ctx: &mut Ctx, user: UserId) -> Result<usize, Error> {
    let (now, reason) = (ctx.now, "an admin set a new password: switch it on if it is yours");
    let disabled = notifications::disable_user_channels(ctx.conn(), user, reason, now).await?;
    for channel in &disabled {
        let reason = "the channel was switched off";
        notifications::fail_pending_notifications(ctx.conn(), channel.id, reason).await?;
        ctx.record_event(EventDraft::of_channel(channel, "changed").with_subject(user)).await?;
    }
    Ok(disabled.len())
}
