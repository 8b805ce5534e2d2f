//! Sessions: login, logout and the authentication of tokens.

use cynode_core::{
    accounts::{CallerCredential, LoginMethod},
    events::EventKind,
    ids::{SessionId, UserId},
    names::Handle,
    roles::UserRole,
    settings::registry::DISABLE_LOCAL_LOGIN_SETTING,
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
    identity::{
        identity_providers,
        second_factor::{self, CodeCheck},
        session_origin::{self, SessionClient},
    },
    platform::{
        batch::{Batcher, LaneConnection},
        context::EventDraft,
        operation,
        tokens::{PresentedToken, TokenKeys, TokenKind},
    },
};

/// Batches the token lookups of several requests.
pub(crate) type CallerBatcher = Batcher<PresentedToken, Option<AuthenticatedCaller>>;

pub(crate) fn spawn_caller_batcher(
    lanes: &TaskTracker,
    pool: &Pool,
    environment: &AppEnvironment,
    tokens: &TokenKeys,
) -> CallerBatcher {
    let (own, environment) = (LaneConnection::new(pool), environment.clone());
    let tokens = tokens.clone();
    Batcher::spawn_lane(lanes, move |shown: Vec<PresentedToken>| {
        let (own, environment, tokens) = (own.clone(), environment.clone(), tokens.clone());
        async move {
            let mut conn = own.take_connection().await.ok()?;
            let found = find_callers(&mut conn, &environment, &tokens, &shown).await.ok()?;
            own.return_connection(conn).await;
            // Two equal tokens of a batch both get the caller.
            let caller =
                |hash| found.iter().find(|(known, _)| *known == hash).map(|(_, caller)| *caller);
            Some(shown.iter().map(|shown| caller(shown.hash)).collect())
        }
    })
}

/// Finds the callers of tokens. Each is returned with the digest of its token.
async fn find_callers(
    conn: &mut Conn,
    environment: &AppEnvironment,
    tokens: &TokenKeys,
    shown: &[PresentedToken],
) -> Result<Vec<([u8; 32], AuthenticatedCaller)>, DbError> {
    let of_kind = |kind: TokenKind| -> Vec<[u8; 32]> {
        shown.iter().filter(|shown| shown.kind == kind).map(|shown| shown.hash).collect()
    };
    let stored = |kind: TokenKind| tokens.expand_digests(&of_kind(kind));
    let (sessions, keys) = (stored(TokenKind::Session), stored(TokenKind::ApiKey));
    let now = environment.now();
    let mut found = Vec::new();
    let hashes = sessions.lookup_hashes();
    if !hashes.is_empty() {
        let callers = authentication::find_session_callers(conn, &hashes, now).await?;
        found.extend(callers.into_iter().map(|(hash, caller)| (sessions.digest_of(&hash), caller)));
    }
    let hashes = keys.lookup_hashes();
    if !hashes.is_empty() {
        let callers = authentication::find_api_key_callers(conn, &hashes, now).await?;
        found.extend(callers.into_iter().map(|(hash, caller)| (keys.digest_of(&hash), caller)));
    }
    Ok(found.into_iter().filter_map(|(digest, caller)| Some((digest?, caller))).collect())
}

impl App {
    /// Returns the caller that a token belongs to, and notes the use of the token. It queries the database on every call: a
    /// revoked, ended, expired, idle or disabled credential stops working with the next request.
    #[tracing::instrument(name = "app.sessions.authenticate_caller", skip_all)]
    pub async fn authenticate_caller(
        &self,
        shown: &PresentedToken,
    ) -> Result<AuthenticatedCaller, Error> {
        let caller = self.reauthenticate_caller(shown).await?;
        self.note_use(caller.credential).await;
        Ok(caller)
    }

    /// Returns the caller of a token of a request that no person makes: a page opens its stream again whenever it ends, and loads again what
    /// has changed. It is no use of a session. It is one of an API key, which a program shows.
    #[tracing::instrument(name = "app.sessions.authenticate_unattended", skip_all)]
    pub async fn authenticate_unattended(
        &self,
        shown: &PresentedToken,
    ) -> Result<AuthenticatedCaller, Error> {
        let caller = self.reauthenticate_caller(shown).await?;
        if matches!(caller.credential, CallerCredential::ApiKey(_)) {
            self.note_use(caller.credential).await;
        }
        Ok(caller)
    }

    /// Returns the caller of a token that was authenticated before, for a stream that goes on. It is no use of the token: a
    /// session ends when its person is away, whatever page is left open.
    pub(crate) async fn reauthenticate_caller(
        &self,
        shown: &PresentedToken,
    ) -> Result<AuthenticatedCaller, Error> {
        let caller = if let Some(caller) = self.shared_state().callers.submit_item(*shown).await {
            caller
        } else {
            // The batched lookup failed. A lookup alone returns the error.
            let mut conn = self.conn().await?;
            let found =
                find_callers(&mut conn, self.environment(), self.token_keys(), &[*shown]).await?;
            found.into_iter().next().map(|(_, caller)| caller)
        };
        match caller {
            Some(caller) => Ok(caller),
            // It may be a credential of a person whose check at an identity provider is due.
            None => self.authenticate_after_check(shown).await,
        }
    }

    async fn authenticate_after_check(
        &self,
        shown: &PresentedToken,
    ) -> Result<AuthenticatedCaller, Error> {
        if !self.confirm_grants(shown).await? {
            return Err(Error::Unauthenticated);
        }
        let mut conn = self.conn().await?;
        let found =
            find_callers(&mut conn, self.environment(), self.token_keys(), &[*shown]).await?;
        found.into_iter().next().map(|(_, caller)| caller).ok_or(Error::Unauthenticated)
    }
}

/// Starts a session for a user with the right password and, where one is enrolled, the code of the second factor. Each call
/// starts another session: a login is safe to repeat, and its answer is a secret that is not stored.
#[tracing::instrument(name = "app.sessions.login_user", skip_all)]
#[operation]
pub async fn login_user(
    app: &App,
    request: &OperationRequest,
    body: &LoginRequest,
    client: &SessionClient,
) -> Result<SessionView, Error> {
    let source = client.source;
    // Login throttling comes before any other work for the attempt.
    let mut attempt = LoginAttempt::begin(app, &body.handle, source)?;
    require_password_login(app).await?;
    let found = {
        let mut conn = app.conn().await?;
        accounts::find_password_hash(&mut conn, &body.handle).await?
    };
    let (user, stored) = found.unzip();
    let good = app.verify_password(&body.password, stored.clone(), source).await?;
    let Some((user, stored)) = user.zip(stored).filter(|_| good) else {
        attempt.record_failure(request, user).await?;
        return Err(Error::Unauthenticated);
    };
    let mut ctx = app.begin_transaction(request).await?;
    // The password may have been changed or the account disabled meanwhile, which ended its sessions.
    if !accounts::is_password_current(ctx.conn(), user, &stored).await? {
        return Err(Error::Unauthenticated);
    }
    let checked = second_factor::check_login_code(app, &mut ctx, user, body.code.as_ref()).await?;
    let second_factor = match checked {
        CodeCheck::NotEnrolled => false,
        CodeCheck::Accepted => true,
        CodeCheck::Missing => return Err(Error::SecondFactorRequired),
        CodeCheck::Wrong => {
            drop(ctx);
            attempt.record_failure(request, Some(user)).await?;
            return Err(Error::Unauthenticated);
        }
    };
    let origin = client.to_origin(LoginMethod::Password, None, second_factor);
    let session = session_origin::start_session(&mut ctx, user, &origin).await?;
    ctx.commit().await?;
    attempt.record_success();
    Ok(session)
}

/// Refuses a login with a password where the installation allows none.
async fn require_password_login(app: &App) -> Result<(), Error> {
    let mut conn = app.conn().await?;
    if identity_providers::is_password_login_enabled(&mut conn).await? {
        return Ok(());
    }
    tracing::warn!(event = "login.disabled", "a login with a password was refused by a setting");
    Err(Error::PolicyDenied(format!(
        "nobody logs in with a password here: the setting `{DISABLE_LOCAL_LOGIN_SETTING}` is on; use an identity provider"
    )))
}

/// An attempt to show a password or a code. One that was not verified is not counted, even when the caller disconnects.
pub(crate) struct LoginAttempt<'a> {
    app: &'a App,
    handle: &'a Handle,
    source: ClientSource,
    ended: bool,
}

impl<'a> LoginAttempt<'a> {
    /// Begins an attempt. Rejects it while the handle is throttled.
    pub(crate) fn begin(
        app: &'a App,
        handle: &'a Handle,
        source: ClientSource,
    ) -> Result<Self, Error> {
        let (guesses, now) = (&app.shared_state().guesses, app.environment().now());
        guesses.begin_attempt(handle, source, now).map_err(|after| Error::RateLimited {
            what: "too many wrong passwords for this handle",
            after,
        })?;
        Ok(Self { app, handle, source, ended: false })
    }

    /// Counts, logs and records a wrong password or code.
    pub(crate) async fn record_failure(
        &mut self,
        request: &OperationRequest,
        user: Option<UserId>,
    ) -> Result<(), Error> {
        self.ended = true;
        let now = self.app.environment().now();
        let guesses = &self.app.shared_state().guesses;
        let wrong = guesses.record_failure(self.handle, self.source, now);
        // An unknown handle is not logged: it may be a password in the wrong field.
        let shown = user.map(tracing::field::display);
        tracing::warn!(event = "login.failed", user.id = shown, wrong, "a password was wrong");
        let Some(user) = user else { return Ok(()) };
        let mut ctx = self.app.begin_transaction(request).await?;
        let data = json!({ "failures": wrong, "source": self.source.to_string() });
        let told = EventDraft::new(EventKind::LoginRefused, data);
        ctx.record_event(told.with_subject(user)).await?;
        self.app.commit_operation(ctx).await
    }

    /// Resets the failures of the handle.
    pub(crate) fn record_success(&mut self) {
        self.ended = true;
        self.app.shared_state().guesses.record_success(self.handle, self.source);
    }
}

impl Drop for LoginAttempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.app.shared_state().guesses.cancel_attempt(self.handle, self.source);
        }
    }
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
    end_one_session(ctx, session, caller.user).await?;
    let told = EventDraft::new(EventKind::SessionEnded, json!({ "session_id": session }));
    ctx.record_event(told.with_subject(caller.user)).await
}

/// Ends a session of a user, and the subscription of its browser to notifications.
pub(crate) async fn end_one_session(
    ctx: &mut Ctx,
    session: SessionId,
    user: UserId,
) -> Result<(), Error> {
    let now = ctx.now;
    accounts::end_session(ctx.conn(), session, now).await?;
    remove_session_browsers(ctx, session, user).await
}

/// Ends the subscriptions of the browser of a session that has ended.
pub(crate) async fn remove_session_browsers(
    ctx: &mut Ctx,
    session: SessionId,
    user: UserId,
) -> Result<(), Error> {
    let browsers = web_push::remove_session_browsers(ctx.conn(), session).await?;
    record_removed_browsers(ctx, user, &browsers).await
}

/// Ends every session of a user, but for `kept`, and with them the subscriptions of browsers to notifications. Returns how
/// many sessions ended.
pub(crate) async fn end_user_sessions(
    ctx: &mut Ctx,
    user: UserId,
    kept: Option<SessionId>,
) -> Result<u64, Error> {
    let now = ctx.now;
    let ended = accounts::end_sessions(ctx.conn(), user, kept, now).await?;
    let browsers = web_push::remove_user_browsers(ctx.conn(), user, kept).await?;
    record_removed_browsers(ctx, user, &browsers).await?;
    Ok(ended)
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
    let can_create_projects = caller.role >= Some(UserRole::Operator)
        || authentication::can_create_projects(ctx.conn(), caller.user).await?;
    let needs_second_factor = second_factor::is_role_withheld(ctx, &caller).await?;
    Ok(MeView {
        user: user.into(),
        installation_role: caller.role,
        currency,
        can_create_projects,
        needs_second_factor,
    })
}
