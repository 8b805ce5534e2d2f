//! Keys that programs use in a user's name.

use cynode_core::{
    accounts::{ApiKey, Credential},
    events::EventKind,
    ids::{ApiKeyId, UserId},
    roles::Role,
};
use cynode_db::accounts;
use cynode_wire::{
    accounts::{CreateApiKey, CreatedApiKey},
    page::{Page, PageRequest},
};
use serde_json::json;
use time::Duration;

use crate::{
    Ctx, Error,
    context::Told,
    tokens::{self, TokenKind},
};

/// Makes a key for the caller. The secret is in the answer and nowhere else.
#[tracing::instrument(name = "app.api_keys.create", skip_all)]
pub async fn create(ctx: &mut Ctx, body: CreateApiKey) -> Result<CreatedApiKey, Error> {
    let caller = ctx.caller()?;
    // A key that leaked must not be able to outlive its own end by making others.
    if !matches!(caller.credential, Credential::Session(_)) {
        return Err(Error::Conflict("an API key cannot make API keys: log in to make one"));
    }
    let days = match body.expires_in_days {
        Some(days) if !(1..=3650).contains(&days) => {
            return Err(Error::Invalid("`expires_in_days` is 1 to 3650".into()));
        }
        days => days,
    };
    let (token, hash) = tokens::issue(TokenKind::ApiKey, ctx.environment());
    let key = ApiKey {
        id: ApiKeyId::from_uuid(ctx.uuid()),
        user: caller.user,
        name: body.name,
        created_at: ctx.now,
        expires_at: days.map(|days| ctx.now + Duration::days(days.into())),
        revoked_at: None,
    };
    accounts::insert_api_key(ctx.conn(), &key, &hash).await?;
    let told = Told::new(EventKind::ApiKeyCreated, json!({ "api_key_id": key.id }));
    ctx.record(told.about(caller.user)).await?;
    Ok(CreatedApiKey { token, api_key: key.into() })
}

/// The caller's own keys, or those of `user` for an admin.
#[tracing::instrument(name = "app.api_keys.list", skip_all)]
pub async fn list(
    ctx: &mut Ctx,
    user: Option<UserId>,
    page: PageRequest,
) -> Result<Page<ApiKey>, Error> {
    let caller = ctx.caller()?;
    let user = user.unwrap_or(caller.user);
    if user != caller.user {
        ctx.require(Role::Admin)?;
        let known = accounts::user(ctx.conn(), user).await?;
        known.ok_or_else(|| Error::not_found("user", user))?;
    }
    let keys = accounts::api_keys(ctx.conn(), user, page).await?;
    Ok(page.cut(keys, |key| key.id.as_uuid()))
}

/// Revokes a key of the caller, or anybody's for an admin. It stops working with the next request.
#[tracing::instrument(name = "app.api_keys.revoke", skip_all, fields(api_key.id = %id))]
pub async fn revoke(ctx: &mut Ctx, id: ApiKeyId) -> Result<ApiKey, Error> {
    let caller = ctx.caller()?;
    let owner = accounts::api_key_owner(ctx.conn(), id).await?;
    // A key of somebody else does not exist for whoever may not touch it.
    if owner != Some(caller.user) && caller.role < Some(Role::Admin) {
        return Err(Error::not_found("API key", id));
    }
    let now = ctx.now;
    let key = accounts::revoke_api_key(ctx.conn(), id, now).await?;
    let key = key.ok_or_else(|| Error::not_found("API key", id))?;
    let told = Told::new(EventKind::ApiKeyRevoked, json!({ "api_key_id": id }));
    ctx.record(told.about(key.user)).await?;
    Ok(key)
}

/// Revokes every key of a user; gives how many there were.
pub(crate) async fn revoke_all(ctx: &mut Ctx, user: UserId) -> Result<usize, Error> {
    let now = ctx.now;
    let revoked = accounts::revoke_api_keys(ctx.conn(), user, now).await?;
    for id in &revoked {
        let told = Told::new(EventKind::ApiKeyRevoked, json!({ "api_key_id": id }));
        ctx.record(told.about(user)).await?;
    }
    Ok(revoked.len())
}
