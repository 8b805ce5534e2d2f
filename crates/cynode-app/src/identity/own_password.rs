//! The caller's own password: it is changed with the old one, and shown again before a second factor is enrolled or deleted.

use cynode_core::{accounts::CallerCredential, events::EventKind, ids::UserId};
use cynode_db::identity::accounts;
use cynode_wire::identity::accounts::{ChangePassword, SecretText};
use serde_json::json;

use crate::{
    App, ClientSource, Ctx, Error, HashedPassword, OperationRequest,
    identity::{
        api_keys, session_origin,
        sessions::{self, LoginAttempt},
    },
    platform::{context::EventDraft, operation},
};

/// Proof that the caller has just shown their password. An account without one has just logged in another way.
#[derive(Clone)]
pub struct PasswordProof {
    user: UserId,
    /// The hash that the password was compared with.
    stored: Option<String>,
}

/// Verifies the caller's password. Login throttling counts it like a login: a stolen session is no way to guess at it.
#[tracing::instrument(name = "app.own_password.prove_password", skip_all)]
#[operation]
pub async fn prove_password(
    app: &App,
    request: &OperationRequest,
    password: Option<&SecretText>,
    source: ClientSource,
) -> Result<PasswordProof, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    let CallerCredential::Session(session) = caller.credential else {
        let told = "only a person who is logged in can change how they log in";
        return Err(Error::KeyDenied(told.into()));
    };
    let (user, stored) = {
        let mut conn = app.conn().await?;
        let user = accounts::get_user(&mut conn, caller.user).await?;
        let user = user.ok_or(Error::Unauthenticated)?;
        let found = accounts::find_password_hash(&mut conn, &user.handle).await?;
        let Some((_, stored)) = found else {
            session_origin::require_recent_login(&mut conn, session, app.environment().now())
                .await?;
            return Ok(PasswordProof { user: user.id, stored: None });
        };
        (user, stored)
    };
    let password =
        password.ok_or_else(|| Error::Invalid("your present password is missing".into()))?;
    let mut attempt = LoginAttempt::begin(app, &user.handle, source)?;
    if !app.verify_password(password, Some(stored.clone()), source).await? {
        attempt.record_failure(request, Some(user.id)).await?;
        return Err(Error::Invalid("your present password is another one".into()));
    }
    attempt.record_success();
    Ok(PasswordProof { user: user.id, stored: Some(stored) })
}

impl PasswordProof {
    /// Rejects a proof of another caller, and one of a password that was changed meanwhile.
    pub(crate) async fn require_current(&self, ctx: &mut Ctx) -> Result<(), Error> {
        if ctx.caller()?.user != self.user {
            return Err(Error::Unauthenticated);
        }
        let current = match &self.stored {
            Some(stored) => accounts::is_password_current(ctx.conn(), self.user, stored).await?,
            None => accounts::password_changed_at(ctx.conn(), self.user).await?.is_none(),
        };
        if current { Ok(()) } else { Err(Error::Conflict("the password was changed meanwhile")) }
    }
}

/// Changes the caller's own password. Every other session ends; API keys stay unless asked.
#[tracing::instrument(name = "app.own_password.change_password", skip_all)]
#[operation]
pub async fn change_password(
    ctx: &mut Ctx,
    body: &ChangePassword,
    proof: &PasswordProof,
    password: &HashedPassword,
) -> Result<(), Error> {
    let (caller, session) = ctx.require_session("change their password")?;
    proof.require_current(ctx).await?;
    if proof.stored.is_none() {
        return Err(Error::Conflict("this account has no password: it logs in another way"));
    }
    if body.old_password == body.new_password {
        return Err(Error::Invalid("the new password is the old one".into()));
    }
    let now = ctx.now;
    accounts::set_password(ctx.conn(), caller.user, password.as_str(), now).await?;
    let ended = sessions::end_user_sessions(ctx, caller.user, Some(session)).await?;
    let keys =
        if body.revoke_keys { api_keys::revoke_all_api_keys(ctx, caller.user).await? } else { 0 };
    let data = json!({
        "user_id": caller.user,
        "password_changed": true,
        "sessions_ended": ended,
        "keys_revoked": keys,
    });
    ctx.record_event(EventDraft::new(EventKind::UserUpdated, data).with_subject(caller.user)).await
}
