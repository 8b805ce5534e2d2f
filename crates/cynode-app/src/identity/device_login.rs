//! Logins of devices without a browser, in the shape of RFC 8628. The device shows a code; a person compares it in a
//! session of theirs and confirms the login. The device then gets a session of its own, which ends with what the
//! person's session hangs on at the identity provider.

use cynode_core::{
    accounts::{CallerCredential, LoginMethod, UserState},
    events::EventKind,
    ids::SessionId,
};
use cynode_db::identity::{
    accounts,
    device_authorizations::{self, DeviceAuthorization, DeviceState},
    provider_grants::{self, SessionOrigin},
};
use cynode_wire::identity::{
    accounts::SessionView,
    single_sign_on::{
        DecideDeviceLogin, DeviceLoginCodes, DeviceLoginRequest, DeviceLoginView,
        DeviceTokenAnswer, DeviceTokenStatus,
    },
};
use serde_json::json;
use time::Duration;

use crate::{
    App, AppEnvironment, ClientSource, Ctx, Error, OperationRequest,
    identity::session_origin::start_limited_session,
    platform::{
        context::EventDraft,
        operation,
        tokens::{self, TokenKind},
    },
};

/// How long the codes of a device work.
const DEVICE_CODE_TTL: Duration = Duration::minutes(10);

/// Minimum time between two questions of a device.
const DEVICE_POLL_INTERVAL: Duration = Duration::seconds(5);

/// Tolerance of [`DEVICE_POLL_INTERVAL`]: a request may be on its way for longer than the next.
const DEVICE_POLL_TOLERANCE: Duration = Duration::seconds(1);

/// Maximum number of logins from one source that wait for a decision.
const MAX_PENDING_PER_SOURCE: i64 = 20;

/// Maximum number of logins that wait for a decision.
const MAX_PENDING: i64 = 1000;

/// Letters of user codes: without vowels, so that they make no word, and without those that look alike.
const USER_CODE_ALPHABET: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";

/// Number of letters of a user code.
const USER_CODE_LENGTH: usize = 8;

/// Asks for the login of a device. `origin` is the address of this server, as the device knows it.
#[tracing::instrument(name = "app.device_login.begin_device_login", skip_all)]
#[operation]
pub async fn begin_device_login(
    app: &App,
    request: &OperationRequest,
    body: DeviceLoginRequest,
    source: ClientSource,
    origin: &str,
) -> Result<DeviceLoginCodes, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let (now, source) = (ctx.now, source.to_string());
    let pending = device_authorizations::count_pending_authorizations(ctx.conn(), &source, now);
    let (own, all) = pending.await?;
    if own >= MAX_PENDING_PER_SOURCE || all >= MAX_PENDING {
        return Err(Error::RateLimited {
            what: "too many logins of devices wait for a person",
            after: std::time::Duration::from_mins(1),
        });
    }
    let (device_code, hash) = app.issue_token(TokenKind::Device);
    let asked = DeviceAuthorization {
        user_code: new_user_code(app.environment()),
        device: body.device.into(),
        source,
        state: DeviceState::Pending,
        created_at: now,
        expires_at: now + DEVICE_CODE_TTL,
        polled_at: None,
    };
    device_authorizations::insert_device_authorization(ctx.conn(), &hash, &asked).await?;
    ctx.commit().await?;
    let user_code = format_user_code(&asked.user_code);
    let page = format!("{origin}/device");
    Ok(DeviceLoginCodes {
        device_code,
        verification_uri_complete: format!("{page}?code={user_code}"),
        verification_uri: page,
        user_code,
        expires_in: to_seconds(DEVICE_CODE_TTL),
        interval: to_seconds(DEVICE_POLL_INTERVAL),
    })
}

fn to_seconds(duration: Duration) -> u32 {
    u32::try_from(duration.whole_seconds()).unwrap_or_default()
}

/// Returns a user code, every one as likely as any other.
fn new_user_code(environment: &AppEnvironment) -> String {
    let mut code = String::with_capacity(USER_CODE_LENGTH);
    while code.len() < USER_CODE_LENGTH {
        let [byte] = environment.random_bytes::<1>();
        // 240 is the largest multiple of 20 that a byte holds: larger values would favour some letters.
        let letter = USER_CODE_ALPHABET.get(usize::from(byte % 20)).filter(|_| byte < 240);
        code.extend(letter.map(|letter| char::from(*letter)));
    }
    code
}

/// Returns a user code as people read it.
fn format_user_code(code: &str) -> String {
    code.split_at_checked(USER_CODE_LENGTH / 2)
        .map_or_else(|| code.to_owned(), |(first, second)| format!("{first}-{second}"))
}

/// Parses a user code as people write it: in any case, with or without dash and spaces.
fn parse_user_code(text: &str) -> Option<String> {
    let code: String = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '-')
        .take(USER_CODE_LENGTH + 1)
        .map(|c| c.to_ascii_uppercase())
        .collect();
    let good = code.len() == USER_CODE_LENGTH
        && code.bytes().all(|letter| USER_CODE_ALPHABET.contains(&letter));
    good.then_some(code)
}

/// Answers a device that asks whether its login was confirmed. A session is given once.
#[tracing::instrument(name = "app.device_login.redeem_device_code", skip_all)]
#[operation]
pub async fn redeem_device_code(
    app: &App,
    request: &OperationRequest,
    device_code: &str,
) -> Result<DeviceTokenAnswer, Error> {
    let without_session = |status| DeviceTokenAnswer { status, session: None };
    let shown = tokens::parse_token(device_code).ok();
    let Some(shown) = shown.filter(|shown| shown.kind == TokenKind::Device) else {
        return Ok(without_session(DeviceTokenStatus::ExpiredToken));
    };
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    let hashes = app.token_keys().token_hashes(&shown.hash);
    let asked = device_authorizations::lock_by_device_code(ctx.conn(), &hashes).await?;
    let Some(asked) = asked.filter(|asked| asked.expires_at > now) else {
        return Ok(without_session(DeviceTokenStatus::ExpiredToken));
    };
    let earliest = asked.polled_at.map(|at| at + DEVICE_POLL_INTERVAL - DEVICE_POLL_TOLERANCE);
    device_authorizations::record_device_poll(ctx.conn(), &hashes, now).await?;
    let answer = if earliest.is_some_and(|earliest| now < earliest) {
        without_session(DeviceTokenStatus::SlowDown)
    } else {
        match asked.state {
            DeviceState::Pending => without_session(DeviceTokenStatus::AuthorizationPending),
            DeviceState::Denied => {
                device_authorizations::delete_device_authorization(ctx.conn(), &hashes).await?;
                without_session(DeviceTokenStatus::AccessDenied)
            }
            DeviceState::Approved { session, .. } => {
                device_authorizations::delete_device_authorization(ctx.conn(), &hashes).await?;
                match start_device_session(&mut ctx, &asked, session).await? {
                    Some(session) => DeviceTokenAnswer {
                        status: DeviceTokenStatus::Granted,
                        session: Some(session),
                    },
                    None => without_session(DeviceTokenStatus::AccessDenied),
                }
            }
        }
    };
    app.commit_operation(ctx).await?;
    Ok(answer)
}

/// Starts the session of a device in the name of the person who approved it. `None` if the session that approved it has
/// ended since, or the account is disabled.
async fn start_device_session(
    ctx: &mut Ctx,
    asked: &DeviceAuthorization,
    approved_in: SessionId,
) -> Result<Option<SessionView>, Error> {
    let now = ctx.now;
    let DeviceState::Approved { user, .. } = asked.state else { return Ok(None) };
    let origin = provider_grants::find_session_origin(ctx.conn(), approved_in, now).await?;
    let account = accounts::get_user(ctx.conn(), user).await?;
    let active = account.is_some_and(|account| account.state == UserState::Active);
    let Some((_, grant, second_factor)) = origin.filter(|_| active) else { return Ok(None) };
    let left = accounts::find_session_end(ctx.conn(), approved_in).await?.map(|end| end - now);
    // It ends with the session that approved it at the latest: nobody stays logged in by way of one device after the other.
    let lifetime = left.unwrap_or_default().min(ctx.policy.session_lifetime);
    let origin = SessionOrigin {
        method: LoginMethod::Device,
        device: Some(asked.device.clone()),
        source: asked.source.clone(),
        grant,
        // What the person has shown counts for the device that they confirmed.
        second_factor,
    };
    start_limited_session(ctx, user, &origin, lifetime).await.map(Some)
}

/// Returns the session of the caller, who may decide about devices: a person at a browser.
async fn require_deciding_session(ctx: &mut Ctx) -> Result<SessionId, Error> {
    let (caller, now) = (ctx.caller()?, ctx.now);
    let CallerCredential::Session(session) = caller.credential else {
        return Err(Error::Conflict("an API key cannot confirm the login of a device: log in"));
    };
    match provider_grants::find_session_origin(ctx.conn(), session, now).await? {
        Some((Some(LoginMethod::Device), _, _)) => Err(Error::Conflict(
            "the session of a device cannot confirm the login of another: log in with a browser",
        )),
        // It is for an hour, to mend what is broken.
        Some((Some(LoginMethod::BreakGlass), _, _)) => Err(Error::Conflict(
            "a break-glass session cannot confirm the login of a device: log in the usual way",
        )),
        Some(_) => Ok(session),
        None => Err(Error::Unauthenticated),
    }
}

/// Finds a login that waits for a decision. Looking one up is rate limited, so that codes cannot be guessed.
async fn lock_pending_login(ctx: &mut Ctx, code: &str) -> Result<DeviceAuthorization, Error> {
    ctx.count_device_code()?;
    let missing = || Error::not_found("code of a device", "…");
    let code = parse_user_code(code).ok_or_else(missing)?;
    let asked = device_authorizations::lock_by_user_code(ctx.conn(), &code).await?;
    let now = ctx.now;
    asked
        .filter(|asked| asked.expires_at > now && asked.state == DeviceState::Pending)
        .ok_or_else(missing)
}

/// Returns the login of a device that waits for a decision, for the person who has its code.
#[tracing::instrument(name = "app.device_login.get_device_login", skip_all)]
#[operation]
pub async fn get_device_login(ctx: &mut Ctx, code: &str) -> Result<DeviceLoginView, Error> {
    require_deciding_session(ctx).await?;
    Ok(to_device_view(lock_pending_login(ctx, code).await?))
}

fn to_device_view(asked: DeviceAuthorization) -> DeviceLoginView {
    DeviceLoginView {
        user_code: format_user_code(&asked.user_code),
        device: asked.device,
        source: asked.source,
        created_at: asked.created_at,
        expires_at: asked.expires_at,
    }
}

/// Approves or denies the login of a device. An approved device acts in the name of the caller.
#[tracing::instrument(name = "app.device_login.decide_device_login", skip_all)]
#[operation]
pub async fn decide_device_login(
    ctx: &mut Ctx,
    code: &str,
    body: DecideDeviceLogin,
) -> Result<DeviceLoginView, Error> {
    let caller = ctx.caller()?;
    let session = require_deciding_session(ctx).await?;
    let asked = lock_pending_login(ctx, code).await?;
    let decided = device_authorizations::decide_device_authorization(
        ctx.conn(),
        &asked.user_code,
        body.approved,
        caller.user,
        session,
    );
    if !decided.await? {
        return Err(Error::Conflict("somebody has decided about this device already"));
    }
    let data = json!({
        "approved": body.approved,
        "device": asked.device,
        "source": asked.source,
        "session_id": session,
    });
    let told = EventDraft::new(EventKind::DeviceLoginDecided, data);
    ctx.record_event(told.with_subject(caller.user)).await?;
    Ok(to_device_view(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_code_is_read_however_it_is_written() {
        for text in ["BCDF-GHJK", "bcdfghjk", " bcdf ghjk ", "B-C-D-F-G-H-J-K"] {
            assert_eq!(parse_user_code(text).as_deref(), Some("BCDFGHJK"), "{text}");
        }
        for text in ["", "BCDF-GHJ", "BCDF-GHJKL", "BCDF-GHJA", "BCDF-GHJ1", "BCDF-GHJ\u{c9}"] {
            assert_eq!(parse_user_code(text), None, "{text}");
        }
    }

    #[test]
    fn user_codes_are_of_the_alphabet_and_differ() {
        let environment = AppEnvironment::from_system();
        let codes: std::collections::HashSet<_> =
            (0..1000).map(|_| new_user_code(&environment)).collect();
        assert_eq!(codes.len(), 1000);
        for code in codes {
            assert_eq!(parse_user_code(&format_user_code(&code)), Some(code));
        }
    }
}
