//! Break-glass access: somebody with the master key makes a one-time link on the host, with which a named admin logs in when
//! the usual way is closed.
//!
//! The link carries a tag of the master key. Who can write to the database alone cannot make one.

use cynode_core::{
    accounts::LoginMethod, events::EventKind, ids::UserId, names::Handle, roles::UserRole,
};
use cynode_db::{
    Conn,
    identity::{
        accounts, authentication,
        break_glass::{self, BreakGlassToken},
    },
};
use cynode_wire::identity::accounts::{RedeemBreakGlass, SecretText, SessionView};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::{
    App, Error, OperationRequest,
    identity::{
        second_factor,
        session_origin::{SessionClient, start_limited_session},
        sessions, single_sign_on,
    },
    platform::{
        context::EventDraft,
        keys::InstallationKeys,
        operation,
        tokens::{self, TokenKind},
    },
};

/// Lifetime of a link.
pub const BREAK_GLASS_TTL: Duration = Duration::minutes(15);

/// Lifetime of the session that a link opens: long enough to mend what is broken.
const BREAK_GLASS_SESSION_LIFETIME: Duration = Duration::HOUR;

/// Issues a one-time token for an active admin. Earlier ones of that admin stop working.
#[operation]
pub async fn issue_break_glass_token(
    app: &App,
    keys: &InstallationKeys,
    handle: &Handle,
) -> Result<SecretText, Error> {
    let trace = app.environment().new_trace_id();
    let request = OperationRequest { caller: None, trace, attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    let user = break_glass::find_active_user(ctx.conn(), handle).await?;
    let user = user.ok_or_else(|| Error::not_found("active user", handle))?;
    if !is_admin(ctx.conn(), user).await? {
        return Err(Error::Conflict("that user is no admin of the installation"));
    }
    let (token, digest) = tokens::issue_token(TokenKind::BreakGlass, app.environment());
    let now = ctx.now;
    // Whole seconds: the database stores no finer time than microseconds, and the tag is about the exact one.
    let seconds = (now + BREAK_GLASS_TTL).unix_timestamp();
    let expires_at = OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|error| Error::Internal(error.into()))?;
    // The tag is about the token itself: what the token is stored under changes when keys are rotated.
    let tag = compute_link_tag(keys, &digest, user, expires_at);
    let link = BreakGlassToken { user, tag, expires_at };
    break_glass::insert_token(ctx.conn(), &keys.hash_token(&digest), &link, now).await?;
    let told = EventDraft::new(EventKind::BreakGlassIssued, json!({ "user_id": user }));
    ctx.record_event(told.with_subject(user)).await?;
    ctx.commit().await?;
    Ok(token)
}

async fn is_admin(conn: &mut Conn, user: UserId) -> Result<bool, Error> {
    Ok(authentication::find_person_role(conn, user).await? == Some(UserRole::Admin))
}

fn compute_link_tag(
    keys: &InstallationKeys,
    digest: &[u8; 32],
    user: UserId,
    expires_at: OffsetDateTime,
) -> [u8; 32] {
    let seconds = expires_at.unix_timestamp().to_be_bytes();
    keys.compute_tag(&[b"break-glass", digest, user.as_uuid().as_bytes(), &seconds])
}

/// Returns the link of a token that works, with a tag of this installation's master key.
async fn find_valid_link(
    app: &App,
    conn: &mut Conn,
    digest: &[u8; 32],
) -> Result<BreakGlassToken, Error> {
    let now = app.environment().now();
    let hashes = app.token_keys().token_hashes(digest);
    let link = break_glass::find_token(conn, &hashes, now).await?.ok_or(Error::Unauthenticated)?;
    let keys = &app.gateway_parts()?.keys;
    let seconds = link.expires_at.unix_timestamp().to_be_bytes();
    let user = link.user.as_uuid();
    if keys.verify_tag(&[b"break-glass", digest, user.as_bytes(), &seconds], &link.tag) {
        return Ok(link);
    }
    tracing::warn!(
        event = "break_glass.forged",
        user.id = %link.user,
        "a break-glass link was not made with the master key"
    );
    Err(Error::Unauthenticated)
}

/// Logs an admin in with a link, once. It can set a new password and delete a lost second factor, which ends every other
/// session of the admin.
#[tracing::instrument(name = "app.break_glass.redeem_break_glass_token", skip_all)]
#[operation]
pub async fn redeem_break_glass_token(
    app: &App,
    request: &OperationRequest,
    body: &RedeemBreakGlass,
    client: &SessionClient,
) -> Result<SessionView, Error> {
    let shown = tokens::parse_token(&body.token.0).map_err(|_| Error::Unauthenticated)?;
    if shown.kind != TokenKind::BreakGlass {
        return Err(Error::Unauthenticated);
    }
    {
        // Anonymous callers must not be able to keep the hasher busy.
        let mut conn = app.conn().await?;
        find_valid_link(app, &mut conn, &shown.hash).await?;
    }
    let password = match &body.new_password {
        Some(password) => Some(app.hash_password(password).await?),
        None => None,
    };
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    let link = find_valid_link(app, ctx.conn(), &shown.hash).await?;
    let hashes = app.token_keys().token_hashes(&shown.hash);
    let used = break_glass::consume_token(ctx.conn(), &hashes, now).await?;
    // The account may have been disabled, or have lost the role, since the link was made.
    if !used || !is_admin(ctx.conn(), link.user).await? {
        return Err(Error::Unauthenticated);
    }
    if let Some(password) = &password {
        accounts::set_password(ctx.conn(), link.user, password.as_str(), now).await?;
        single_sign_on::remove_linked_identities(&mut ctx, link.user).await?;
    }
    let deleted = body.delete_second_factor
        && second_factor::delete_second_factor(&mut ctx, link.user).await?;
    if password.is_some() || deleted {
        sessions::end_user_sessions(&mut ctx, link.user, None).await?;
    }
    // The host itself is the second factor.
    let origin = client.to_origin(LoginMethod::BreakGlass, None, true);
    let lifetime = BREAK_GLASS_SESSION_LIFETIME;
    let session = start_limited_session(&mut ctx, link.user, &origin, lifetime).await?;
    let data = json!({
        "user_id": link.user,
        "password_changed": password.is_some(),
        "second_factor_deleted": deleted,
    });
    let told = EventDraft::new(EventKind::BreakGlassUsed, data);
    ctx.record_event(told.with_subject(link.user)).await?;
    app.commit_operation(ctx).await?;
    Ok(session)
}
