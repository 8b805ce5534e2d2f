//! Bootstrap of the first admin with a one-time token. No default password exists.

use cynode_core::{
    accounts::{User, UserState},
    events::EventKind,
    ids::UserId,
    roles::UserRole,
};
use cynode_db::{identity::accounts, platform::health};
use cynode_wire::identity::accounts::{BootstrapRequest, SecretText};
use serde_json::json;

use crate::{
    App, Ctx, Error, HashedPassword, OperationRequest,
    identity::users,
    platform::{
        context::EventDraft,
        operation,
        tokens::{self, TokenKind},
    },
};

/// Issues a one-time token, or returns `None` when an admin exists. Earlier tokens stop working.
#[operation]
pub async fn issue_bootstrap_token(app: &App) -> Result<Option<SecretText>, Error> {
    let trace = app.environment().new_trace_id();
    let request = OperationRequest { caller: None, trace, attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    accounts::lock_bootstrap(ctx.conn()).await?;
    if health::has_admin(ctx.conn()).await? {
        return Ok(None);
    }
    let (token, hash) = app.issue_token(TokenKind::Bootstrap);
    let (now, expires_at) = (ctx.now, ctx.now + ctx.policy.bootstrap_lifetime);
    accounts::insert_bootstrap_token(ctx.conn(), &hash, now, expires_at).await?;
    ctx.commit().await?;
    Ok(Some(token))
}

/// Returns whether the installation has an admin, so that no bootstrap token works any more.
#[operation]
pub async fn is_bootstrapped(app: &App) -> Result<bool, Error> {
    let mut conn = app.conn().await?;
    Ok(health::has_admin(&mut conn).await?)
}

/// Hashes the password of the first admin, for a caller with a valid token: anonymous callers must not be able to
/// keep the hasher busy. A used token may still repeat its request with its idempotency key.
#[operation]
pub async fn hash_admin_password(
    app: &App,
    body: &BootstrapRequest,
) -> Result<HashedPassword, Error> {
    let shown = tokens::parse_token(&body.token.0).map_err(|_| Error::Unauthenticated)?;
    let mut conn = app.conn().await?;
    let hashes = app.token_keys().token_hashes(&shown.hash);
    let known = accounts::has_bootstrap_token(&mut conn, &hashes).await?;
    drop(conn);
    if !known {
        return Err(Error::Unauthenticated);
    }
    app.hash_password(&body.password).await
}

/// Creates the first admin.
#[tracing::instrument(name = "app.bootstrap.redeem_bootstrap_token", skip_all)]
#[operation]
pub async fn redeem_bootstrap_token(
    ctx: &mut Ctx,
    body: BootstrapRequest,
    password: HashedPassword,
) -> Result<User, Error> {
    let shown = tokens::parse_token(&body.token.0).map_err(|_| Error::Unauthenticated)?;
    let now = ctx.now;
    let hashes = ctx.token_keys().token_hashes(&shown.hash);
    accounts::lock_bootstrap(ctx.conn()).await?;
    let good = shown.kind == TokenKind::Bootstrap
        && accounts::use_bootstrap_token(ctx.conn(), &hashes, now).await?;
    if !good {
        return Err(Error::Unauthenticated);
    }
    if health::has_admin(ctx.conn()).await? {
        return Err(Error::Conflict("this installation has an admin already"));
    }
    let user = User {
        id: UserId::from_uuid(ctx.new_uuid()),
        handle: body.handle,
        display_name: body.display_name,
        email: None,
        role: Some(UserRole::Admin),
        can_create_projects: false,
        state: UserState::Active,
        created_at: now,
    };
    users::store_user(ctx, &user, &password).await?;
    let told = EventDraft::new(EventKind::InstallationBootstrapped, json!({ "user_id": user.id }));
    ctx.record_event(told.with_subject(user.id)).await?;
    Ok(user)
}
