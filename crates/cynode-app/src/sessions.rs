//! Logging in and out, and who is behind a token.

use cynode_core::{accounts::Credential, events::EventKind, ids::SessionId};
use cynode_db::{DbError, accounts, authentication};
use cynode_wire::accounts::{Login, MeView, SessionView};
use serde_json::json;

use crate::{
    App, Caller, Ctx, Error, Request,
    context::Told,
    tokens::{self, Presented, TokenKind},
};

impl App {
    /// Who is behind a token, asked anew each time: what was revoked, ended, expired or switched off
    /// stops working with the next request.
    #[tracing::instrument(name = "app.sessions.authenticate", skip_all)]
    pub async fn authenticate(&self, shown: &Presented) -> Result<Caller, Error> {
        let now = self.environment().now();
        let mut conn = self.pool().acquire().await.map_err(DbError::from)?;
        let caller = match shown.kind {
            TokenKind::Session => authentication::session(&mut conn, &shown.hash, now).await?,
            TokenKind::ApiKey => authentication::api_key(&mut conn, &shown.hash, now).await?,
            TokenKind::Bootstrap => None,
        };
        caller.ok_or(Error::Unauthenticated)
    }
}

/// Starts a session for a user who knows the password. Each call starts another: a login is safe to
/// repeat, and its answer is a secret that is not kept.
#[tracing::instrument(name = "app.sessions.login", skip_all)]
pub async fn login(app: &App, request: &Request, body: &Login) -> Result<SessionView, Error> {
    let mut ctx = app.open(request).await?;
    let found = accounts::login(ctx.conn(), &body.handle).await?;
    // The connection goes back while the password is hashed.
    drop(ctx);
    let (user, stored) = found.unzip();
    let good = app.verify_password(&body.password, stored).await?;
    let user = user.filter(|_| good).ok_or(Error::Unauthenticated)?;

    let mut ctx = app.open(request).await?;
    let (token, hash) = tokens::issue(TokenKind::Session, app.environment());
    let session = SessionId::from_uuid(ctx.uuid());
    let (now, expires_at) = (ctx.now, ctx.now + ctx.policy.session_lifetime);
    accounts::insert_session(ctx.conn(), session, user, &hash, now, expires_at).await?;
    let told = Told::new(EventKind::SessionStarted, json!({ "session_id": session }));
    ctx.record(told.about(user)).await?;
    let user = accounts::user(ctx.conn(), user).await?.ok_or(Error::Unauthenticated)?;
    ctx.commit().await?;
    Ok(SessionView { token, expires_at, user: user.into() })
}

/// Ends the caller's session. A program's key has no session; it is revoked instead.
#[tracing::instrument(name = "app.sessions.logout", skip_all)]
pub async fn logout(ctx: &mut Ctx) -> Result<(), Error> {
    let caller = ctx.caller()?;
    let Credential::Session(session) = caller.credential else {
        return Err(Error::Conflict("an API key has no session to end: revoke the key instead"));
    };
    let now = ctx.now;
    accounts::end_session(ctx.conn(), session, now).await?;
    let told = Told::new(EventKind::SessionEnded, json!({ "session_id": session }));
    ctx.record(told.about(caller.user)).await
}

/// The caller, as the system sees it.
#[tracing::instrument(name = "app.sessions.me", skip_all)]
pub async fn me(ctx: &mut Ctx) -> Result<MeView, Error> {
    let caller = ctx.caller()?;
    let user = accounts::user(ctx.conn(), caller.user).await?.ok_or(Error::Unauthenticated)?;
    Ok(MeView { user: user.into(), installation_role: caller.role })
}
