//! Sessions: login, logout and the authentication of tokens.

use cynode_core::{
    accounts::CallerCredential,
    events::EventKind,
    ids::{SessionId, UserId},
    names::Handle,
};
use cynode_db::{
    Conn, DbError, Pool,
    identity::{accounts, authentication},
    notifications::{NotificationChannel, web_push},
};
use cynode_wire::identity::accounts::{LoginRequest, MeView, SessionView};
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::{
    App, AppEnvironment, AuthenticatedCaller, ClientSource, Ctx, Error, OperationRequest,
    platform::{
        batch::{Batcher, LaneConnection},
        context::EventDraft,
        operation,
        tokens::{self, PresentedToken, TokenKind},
    },
};

/// Batches the token lookups of several requests.
pub(crate) type CallerBatcher = Batcher<PresentedToken, Option<AuthenticatedCaller>>;

pub(crate) fn spawn_caller_batcher(
    lanes: &TaskTracker,
    pool: &Pool,
    environment: &AppEnvironment,
) -> CallerBatcher {
    let (own, environment) = (LaneConnection::new(pool), environment.clone());
    Batcher::spawn_lane(lanes, move |shown: Vec<PresentedToken>| {
        let (own, environment) = (own.clone(), environment.clone());
        async move {
            let mut conn = own.take_connection().await.ok()?;
            let found = find_callers(&mut conn, &environment, &shown).await.ok()?;
            own.return_connection(conn).await;
            // Two equal tokens of a batch both get the caller.
            let caller =
                |hash| found.iter().find(|(known, _)| *known == hash).map(|(_, caller)| *caller);
            Some(shown.iter().map(|shown| caller(shown.hash)).collect())
        }
    })
}

async fn find_callers(
    conn: &mut Conn,
    environment: &AppEnvironment,
    shown: &[PresentedToken],
) -> Result<Vec<([u8; 32], AuthenticatedCaller)>, DbError> {
    let of_kind = |kind| -> Vec<[u8; 32]> {
        shown.iter().filter(|shown| shown.kind == kind).map(|shown| shown.hash).collect()
    };
    let (sessions, keys) = (of_kind(TokenKind::Session), of_kind(TokenKind::ApiKey));
    let now = environment.now();
    let mut found = Vec::new();
    if !sessions.is_empty() {
        found.extend(authentication::find_session_callers(conn, &sessions, now).await?);
    }
    if !keys.is_empty() {
        found.extend(authentication::find_api_key_callers(conn, &keys, now).await?);
    }
    Ok(found)
}

impl App {
    /// Returns the caller that a token belongs to. It queries the database on every call: a revoked, ended, expired
    /// or disabled credential stops working with the next request.
    #[tracing::instrument(name = "app.sessions.authenticate_caller", skip_all)]
    pub async fn authenticate_caller(
        &self,
        shown: &PresentedToken,
    ) -> Result<AuthenticatedCaller, Error> {
        let caller = if let Some(caller) = self.shared_state().callers.submit_item(*shown).await {
            caller
        } else {
            // The batched lookup failed. A lookup alone returns the error.
            let mut conn = self.conn().await?;
            let found = find_callers(&mut conn, self.environment(), &[*shown]).await?;
            found.into_iter().next().map(|(_, caller)| caller)
        };
        caller.ok_or(Error::Unauthenticated)
    }
}

/// Starts a session for a user with the right password. Each call starts another session: a login is safe to repeat,
/// and its answer is a secret that is not stored.
#[tracing::instrument(name = "app.sessions.login_user", skip_all)]
#[operation]
pub async fn login_user(
    app: &App,
    request: &OperationRequest,
    body: &LoginRequest,
    source: ClientSource,
) -> Result<SessionView, Error> {
    let (guesses, now) = (&app.shared_state().guesses, app.environment().now());
    // Login throttling comes before any other work for the attempt.
    guesses.begin_attempt(&body.handle, source, now).map_err(|after| Error::RateLimited {
        what: "too many wrong passwords for this handle",
        after,
    })?;
    let mut looked_at = LoginAttemptGuard { app, handle: &body.handle, source, ended: false };
    let checked = verify_login(app, request, body, &mut looked_at).await;
    drop(looked_at);
    let (user, stored) = checked?.ok_or(Error::Unauthenticated)?;

    let mut ctx = app.begin_transaction(request).await?;
    // The password may have been changed or the account disabled meanwhile, which ended its sessions.
    if !accounts::is_password_current(ctx.conn(), user, &stored).await? {
        return Err(Error::Unauthenticated);
    }
    let (token, hash) = tokens::issue_token(TokenKind::Session, app.environment());
    let session = SessionId::from_uuid(ctx.new_uuid());
    let (now, expires_at) = (ctx.now, ctx.now + ctx.policy.session_lifetime);
    accounts::insert_session(ctx.conn(), session, user, &hash, now, expires_at).await?;
    let told = EventDraft::new(EventKind::SessionStarted, json!({ "session_id": session }));
    ctx.record_event(told.with_subject(user)).await?;
    let user = accounts::get_user(ctx.conn(), user).await?.ok_or(Error::Unauthenticated)?;
    ctx.commit().await?;
    Ok(SessionView { token, expires_at, user: user.into() })
}

/// A login attempt in progress. An attempt that was not verified is not counted, even when the caller disconnects.
struct LoginAttemptGuard<'a> {
    app: &'a App,
    handle: &'a Handle,
    source: ClientSource,
    ended: bool,
}

impl Drop for LoginAttemptGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.app.shared_state().guesses.cancel_attempt(self.handle, self.source);
        }
    }
}

/// Verifies handle and password. Returns the user and the stored hash. Logs a wrong password.
async fn verify_login(
    app: &App,
    request: &OperationRequest,
    body: &LoginRequest,
    looked_at: &mut LoginAttemptGuard<'_>,
) -> Result<Option<(UserId, String)>, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let found = accounts::find_password_hash(ctx.conn(), &body.handle).await?;
    // The connection returns to the pool while the password is hashed.
    drop(ctx);
    let (user, stored) = found.unzip();
    let source = looked_at.source;
    let good = app.verify_password(&body.password, stored.clone(), source).await?;
    let guesses = &app.shared_state().guesses;
    looked_at.ended = true;
    if good && user.is_some() {
        guesses.record_success(&body.handle, source);
    } else {
        let wrong = guesses.record_failure(&body.handle, source, app.environment().now());
        // An unknown handle is not logged: it may be a password in the wrong field.
        let user = user.map(tracing::field::display);
        tracing::warn!(event = "login.failed", user.id = user, wrong, "a password was wrong");
    }
    Ok(user.zip(stored).filter(|_| good))
}

/// Ends the caller's session, and the subscription of its browser to notifications. An API key has no session and is
/// revoked instead.
#[tracing::instrument(name = "app.sessions.logout_user", skip_all)]
#[operation]
pub async fn logout_user(ctx: &mut Ctx) -> Result<(), Error> {
    let caller = ctx.caller()?;
    let CallerCredential::Session(session) = caller.credential else {
        return Err(Error::Conflict("an API key has no session to end: revoke the key instead"));
    };
    let now = ctx.now;
    accounts::end_session(ctx.conn(), session, now).await?;
    let browsers = web_push::remove_session_browsers(ctx.conn(), session).await?;
    record_removed_browsers(ctx, caller.user, &browsers).await?;
    let told = EventDraft::new(EventKind::SessionEnded, json!({ "session_id": session }));
    ctx.record_event(told.with_subject(caller.user)).await
}

/// Ends every session of a user, but for `kept`, and with them the subscriptions of browsers to notifications.
pub(crate) async fn end_user_sessions(
    ctx: &mut Ctx,
    user: UserId,
    kept: Option<SessionId>,
) -> Result<(), Error> {
    let now = ctx.now;
    accounts::end_sessions(ctx.conn(), user, kept, now).await?;
    let browsers = web_push::remove_user_browsers(ctx.conn(), user, kept).await?;
    record_removed_browsers(ctx, user, &browsers).await
}

/// Records that channels of browsers were removed. The redactor may keep their secrets: they open nothing any more.
async fn record_removed_browsers(
    ctx: &mut Ctx,
    user: UserId,
    browsers: &[NotificationChannel],
) -> Result<(), Error> {
    for channel in browsers {
        ctx.record_event(EventDraft::of_channel(channel, "removed").with_subject(user)).await?;
    }
    Ok(())
}

/// Returns the caller's account and roles.
#[tracing::instrument(name = "app.sessions.current_user", skip_all)]
#[operation]
pub async fn current_user(ctx: &mut Ctx) -> Result<MeView, Error> {
    let caller = ctx.caller()?;
    let user = accounts::get_user(ctx.conn(), caller.user).await?.ok_or(Error::Unauthenticated)?;
    let currency = crate::platform::settings::currency_setting(ctx.conn()).await?;
    Ok(MeView { user: user.into(), installation_role: caller.role, currency })
}
