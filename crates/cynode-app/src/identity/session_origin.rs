//! Where and how sessions were started: device, address and identity provider. A user sees their sessions and ends any of
//! them.

use cynode_core::{
    accounts::{CallerCredential, LoginMethod},
    events::EventKind,
    ids::{ProviderGrantId, SessionId, UserId},
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::identity::{
    accounts,
    provider_grants::{self, OpenSession, SessionOrigin},
};
use cynode_wire::identity::{accounts::SessionView, single_sign_on::OpenSessionView};
use serde_json::json;
use time::Duration;

use crate::{
    ClientSource, Ctx, Error,
    identity::sessions,
    platform::{context::EventDraft, operation, tokens::TokenKind},
};

/// Maximum length of the name of a device.
const MAX_DEVICE_CHARS: usize = 200;

/// The client that asks for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClient {
    /// What it calls itself.
    pub device: Option<String>,
    /// Where its request comes from.
    pub source: ClientSource,
}

impl SessionClient {
    /// Returns a client with the name that it gives itself, such as the header `User-Agent`. What cannot be shown is left
    /// out.
    pub fn new(device: Option<&str>, source: ClientSource) -> Self {
        let shown = device.map(|text| {
            let printable = text.chars().filter(|c| !c.is_control()).take(MAX_DEVICE_CHARS);
            printable.collect::<String>().trim().to_owned()
        });
        Self { device: shown.filter(|text| !text.is_empty()), source }
    }

    /// Returns the origin of a session that this client starts.
    pub(crate) fn to_origin(
        &self,
        method: LoginMethod,
        grant: Option<ProviderGrantId>,
        second_factor: bool,
    ) -> SessionOrigin {
        let source = self.source.to_string();
        SessionOrigin { method, device: self.device.clone(), source, grant, second_factor }
    }
}

/// Starts a session of a user who has proven who they are.
pub(crate) async fn start_session(
    ctx: &mut Ctx,
    user: UserId,
    origin: &SessionOrigin,
) -> Result<SessionView, Error> {
    let lifetime = ctx.policy.session_lifetime;
    start_limited_session(ctx, user, origin, lifetime).await
}

/// Does the same, with a lifetime of its own. The caller commits it.
pub(crate) async fn start_limited_session(
    ctx: &mut Ctx,
    user: UserId,
    origin: &SessionOrigin,
    lifetime: Duration,
) -> Result<SessionView, Error> {
    let (token, hash) = ctx.issue_token(TokenKind::Session);
    let session = SessionId::from_uuid(ctx.new_uuid());
    let (now, expires_at) = (ctx.now, ctx.now + lifetime);
    accounts::insert_session(ctx.conn(), session, user, &hash, now, expires_at).await?;
    provider_grants::set_session_origin(ctx.conn(), session, origin).await?;
    let data = json!({
        "session_id": session, "method": origin.method, "second_factor": origin.second_factor,
        "source": origin.source,
    });
    ctx.record_event(EventDraft::new(EventKind::SessionStarted, data).with_subject(user)).await?;
    let user = accounts::get_user(ctx.conn(), user).await?.ok_or(Error::Unauthenticated)?;
    Ok(SessionView { token, expires_at, user: user.into() })
}

/// Lists the caller's own sessions, or those of `user` for an admin.
#[tracing::instrument(name = "app.session_origin.list_sessions", skip_all)]
#[operation]
pub async fn list_sessions(
    ctx: &mut Ctx,
    user: Option<UserId>,
    page: PageRequest,
) -> Result<Page<OpenSessionView>, Error> {
    let caller = ctx.caller()?;
    let user = user.unwrap_or(caller.user);
    if user != caller.user {
        ctx.require_role(UserRole::Admin)?;
        let known = accounts::get_user(ctx.conn(), user).await?;
        known.ok_or_else(|| Error::not_found("user", user))?;
    }
    let now = ctx.now;
    let sessions = provider_grants::list_open_sessions(ctx.conn(), user, page, now).await?;
    let page = page.into_page(sessions, |session| session.id.as_uuid());
    Ok(page.map(|session| {
        let current = caller.credential == CallerCredential::Session(session.id);
        to_session_view(session, current)
    }))
}

fn to_session_view(session: OpenSession, current: bool) -> OpenSessionView {
    OpenSessionView {
        id: session.id,
        current,
        method: session.method,
        provider: session.provider,
        device: session.device,
        source: session.source,
        created_at: session.created_at,
        expires_at: session.expires_at,
    }
}

/// Ends a session of the caller, or of any user for an admin. It stops working with the next request.
#[tracing::instrument(name = "app.session_origin.end_session", skip_all, fields(session.id = %id))]
#[operation]
pub async fn end_session(ctx: &mut Ctx, id: SessionId) -> Result<(), Error> {
    let (caller, now) = (ctx.caller()?, ctx.now);
    let owner = provider_grants::find_session_owner(ctx.conn(), id, now).await?;
    // A session of another user does not exist for a caller who may not manage it.
    let owner = owner
        .filter(|owner| *owner == caller.user || caller.role >= Some(UserRole::Admin))
        .ok_or_else(|| Error::not_found("session", id))?;
    sessions::end_one_session(ctx, id, owner).await?;
    let told = EventDraft::new(EventKind::SessionEnded, json!({ "session_id": id }));
    ctx.record_event(told.with_subject(owner)).await
}
