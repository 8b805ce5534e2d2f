//! API keys: programs act with them in a user's name.

use cynode_core::{
    accounts::{ApiKey, CallerCredential},
    events::EventKind,
    ids::{ApiKeyId, UserId},
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::identity::accounts;
use cynode_wire::identity::accounts::{CreateApiKey, CreatedApiKey};
use serde_json::json;
use time::Duration;

use crate::{
    Ctx, Error,
    platform::{
        context::EventDraft,
        operation,
        tokens::{self, TokenKind},
    },
};

/// Creates an API key for the caller. Only the answer contains the secret.
#[tracing::instrument(name = "app.api_keys.create_api_key", skip_all)]
#[operation]
pub async fn create_api_key(ctx: &mut Ctx, body: CreateApiKey) -> Result<CreatedApiKey, Error> {
    let caller = ctx.caller()?;
    // A leaked key must not outlive its expiry by creating other keys.
    if !matches!(caller.credential, CallerCredential::Session(_)) {
        return Err(Error::Conflict("an API key cannot make API keys: log in to make one"));
    }
    let days = match body.expires_in_days {
        Some(days) if !(1..=3650).contains(&days) => {
            return Err(Error::Invalid("`expires_in_days` is 1 to 3650".into()));
        }
        days => days,
    };
    let (token, hash) = tokens::issue_token(TokenKind::ApiKey, ctx.environment());
    let key = ApiKey {
        id: ApiKeyId::from_uuid(ctx.new_uuid()),
        user: caller.user,
        name: body.name,
        created_at: ctx.now,
        expires_at: days.map(|days| ctx.now + Duration::days(days.into())),
        revoked_at: None,
    };
    accounts::insert_api_key(ctx.conn(), &key, &hash).await?;
    let told = EventDraft::new(EventKind::ApiKeyCreated, json!({ "api_key_id": key.id }));
    ctx.record_event(told.with_subject(caller.user)).await?;
    Ok(CreatedApiKey { token, api_key: key.into() })
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
