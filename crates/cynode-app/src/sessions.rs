//! Logging in and out, and who is behind a token.

use cynode_core::{
    accounts::Credential,
    events::EventKind,
    ids::{SessionId, UserId},
    names::Handle,
};
use cynode_db::{Conn, DbError, Pool, accounts, authentication};
use cynode_wire::accounts::{Login, MeView, SessionView};
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::{
    App, Caller, Ctx, Environment, Error, Request,
    batch::{Batcher, OwnConnection},
    context::Told,
    tokens::{self, Presented, TokenKind},
};

/// Looks up who is behind the tokens of several requests at once.
pub(crate) type Callers = Batcher<Presented, Option<Caller>>;

pub(crate) fn callers(lanes: &TaskTracker, pool: &Pool, environment: &Environment) -> Callers {
    let (own, environment) = (OwnConnection::new(pool), environment.clone());
    Batcher::start(lanes, move |shown: Vec<Presented>| {
        let (own, environment) = (own.clone(), environment.clone());
        async move {
            let mut conn = own.take().await.ok()?;
            let found = look_up(&mut conn, &environment, &shown).await.ok()?;
            own.put_back(conn).await;
            // Of two equal tokens both get the caller.
            let caller =
                |hash| found.iter().find(|(known, _)| *known == hash).map(|(_, caller)| *caller);
            Some(shown.iter().map(|shown| caller(shown.hash)).collect())
        }
    })
}

async fn look_up(
    conn: &mut Conn,
    environment: &Environment,
    shown: &[Presented],
) -> Result<Vec<([u8; 32], Caller)>, DbError> {
    let of_kind = |kind| -> Vec<[u8; 32]> {
        shown.iter().filter(|shown| shown.kind == kind).map(|shown| shown.hash).collect()
    };
    let (sessions, keys) = (of_kind(TokenKind::Session), of_kind(TokenKind::ApiKey));
    let now = environment.now();
    let mut found = Vec::new();
    if !sessions.is_empty() {
        found.extend(authentication::sessions(conn, &sessions, now).await?);
    }
    if !keys.is_empty() {
        found.extend(authentication::api_keys(conn, &keys, now).await?);
    }
    Ok(found)
}

impl App {
    /// Who is behind a token, asked anew each time: what was revoked, ended, expired or switched off
    /// stops working with the next request.
    #[tracing::instrument(name = "app.sessions.authenticate", skip_all)]
    pub async fn authenticate(&self, shown: &Presented) -> Result<Caller, Error> {
        let caller = if let Some(caller) = self.shared().callers.submit(*shown).await {
            caller
        } else {
            // The shared look-up failed; alone we learn why.
            let mut conn = self.pool().acquire().await.map_err(DbError::from)?;
            let found = look_up(&mut conn, self.environment(), &[*shown]).await?;
            found.into_iter().next().map(|(_, caller)| caller)
        };
        caller.ok_or(Error::Unauthenticated)
    }
}

/// Starts a session for a user who knows the password. Each call starts another: a login is safe to
/// repeat, and its answer is a secret that is not kept.
#[tracing::instrument(name = "app.sessions.login", skip_all)]
pub async fn login(app: &App, request: &Request, body: &Login) -> Result<SessionView, Error> {
    let (guesses, now) = (&app.shared().guesses, app.environment().now());
    // Before anything else is done for whoever guesses.
    guesses.begin(&body.handle, now).map_err(|after| Error::TooOften {
        what: "too many wrong passwords for this handle",
        after,
    })?;
    let mut looked_at = LookedAt { app, handle: &body.handle, ended: false };
    let checked = known(app, request, body, &mut looked_at).await;
    drop(looked_at);
    let (user, stored) = checked?.ok_or(Error::Unauthenticated)?;

    let mut ctx = app.open(request).await?;
    // Meanwhile the password may have been changed or the account switched off, which ended its sessions.
    if !accounts::still(ctx.conn(), user, &stored).await? {
        return Err(Error::Unauthenticated);
    }
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

/// A password while it is looked at. Of one that nobody looked at to the end nothing is counted, also when the caller leaves.
struct LookedAt<'a> {
    app: &'a App,
    handle: &'a Handle,
    ended: bool,
}

impl Drop for LookedAt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.app.shared().guesses.take_back(self.handle);
        }
    }
}

/// The user with that handle and that password, and its hash. The log tells of a password that is wrong.
async fn known(
    app: &App,
    request: &Request,
    body: &Login,
    looked_at: &mut LookedAt<'_>,
) -> Result<Option<(UserId, String)>, Error> {
    let mut ctx = app.open(request).await?;
    let found = accounts::login(ctx.conn(), &body.handle).await?;
    // The connection goes back while the password is hashed.
    drop(ctx);
    let (user, stored) = found.unzip();
    let good = app.verify_password(&body.password, stored.clone()).await?;
    let guesses = &app.shared().guesses;
    looked_at.ended = true;
    if good && user.is_some() {
        guesses.right(&body.handle);
    } else {
        let wrong = guesses.wrong(&body.handle, app.environment().now());
        // Of a handle that nobody has nothing is written down: it may be a password in the wrong place.
        let user = user.map(tracing::field::display);
        tracing::warn!(event = "login.refused", user.id = user, wrong, "a password was wrong");
    }
    Ok(user.zip(stored).filter(|_| good))
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
