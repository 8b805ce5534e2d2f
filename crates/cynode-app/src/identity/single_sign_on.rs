//! Single sign-on: the code flow with PKCE, accounts that are made or linked by it, and logout.
//!
//! A login that was begun lives in a sealed cookie of the browser and nowhere else. Its state works once: the answer of a
//! provider stores it before the code is redeemed.

use cynode_core::{
    accounts::{CallerCredential, LoginMethod, User, UserState},
    events::EventKind,
    ids::{ExternalIdentityId, IdentityProviderId, ProviderGrantId, SessionId, UserId},
    names::{EmailAddress, Handle, Title},
    roles::UserRole,
};
use cynode_db::identity::{
    accounts,
    identity_providers::{self, ExternalIdentity, IdentityProviderRecord, LinkedIdentity},
    provider_grants::{self, EndedGrants, NewGrant},
    scim::{self, ScimUserKey},
    second_factors,
};
use cynode_oidc::{GrantCheck, LoginValues, OidcError, VerifiedIdentity};
use cynode_wire::identity::{
    accounts::{SecretText, SessionView},
    single_sign_on::{IdentityList, IdentityView, ProviderLogout},
};
use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime};

use crate::{
    App, Ctx, Error, OperationRequest,
    identity::{
        identity_providers::{
            SignOnParts, callback_path, is_password_login_enabled, to_provider_error,
        },
        provider_grants::{
            GRANT_CHECK_INTERVAL, record_ended_sessions, seal_tokens, sync_groups, unseal_tokens,
        },
        session_origin::{self, SessionClient, start_session},
        sessions, users,
    },
    platform::{context::EventDraft, operation},
};

/// How long a person may take to log in at the provider.
pub const LOGIN_ATTEMPT_TTL: Duration = Duration::minutes(10);

/// How long the id of a logout token is remembered. Such a token is refused long before.
const LOGOUT_TOKEN_MEMORY: Duration = Duration::hours(1);

/// Associated data of sealed logins.
const ATTEMPT_PLACE: &[u8] = b"provider-login";

/// Methods of RFC 8176 that stand for a second factor: several factors, a one-time password, a key in hardware.
const SECOND_FACTOR_METHODS: [&str; 3] = ["mfa", "otp", "hwk"];

/// Maximum length of a path that a login returns to.
const MAX_RETURN_PATH_BYTES: usize = 500;

/// A login that was begun.
#[derive(Clone, Debug)]
pub struct StartedLogin {
    /// The address that the browser is sent to.
    pub authorization_url: String,
    /// Ties the answer to this login.
    pub state: String,
    /// The login itself, sealed, for a cookie of the browser.
    pub sealed: SecretText,
}

/// The answer of a provider that a browser brings.
#[derive(Clone, Debug, Default)]
pub struct LoginAnswer {
    /// State of the login.
    pub state: String,
    /// The code.
    pub code: Option<String>,
    /// The issuer, if the provider names it.
    pub issuer: Option<String>,
    /// Whether the provider refused.
    pub refused: bool,
}

/// A login that succeeded.
#[derive(Clone, Debug)]
pub enum FinishedLogin {
    /// A session was started.
    Session {
        /// The session.
        session: SessionView,
        /// The path that the browser returns to.
        return_to: String,
    },
    /// The account was linked to that of the caller.
    Linked {
        /// The path that the browser returns to.
        return_to: String,
    },
}

/// Why a login was refused. A person sees the reason on the login page.
#[derive(Debug, thiserror::Error)]
pub enum LoginRefusal {
    /// The login is not of this browser, is too old or was used.
    #[error("the login is not of this browser, is too old or was used already")]
    Stale,
    /// The person or the provider said no.
    #[error("the identity provider did not log the person in")]
    Denied,
    /// The provider cannot be used now.
    #[error("the identity provider failed: {0}")]
    Provider(OidcError),
    /// The person has no account, and none is made.
    #[error("the person has no account here, and the provider makes none")]
    NoAccount,
    /// The account is disabled.
    #[error("the account is disabled")]
    Disabled,
    /// The account of the provider belongs to another user, or the user has another one there.
    #[error("the account is linked already")]
    AlreadyLinked,
    /// Something else failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl LoginRefusal {
    /// Returns a stable code for the login page.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Denied => "denied",
            Self::Provider(OidcError::Unreachable(_)) => "unreachable",
            Self::Provider(_) => "provider",
            Self::NoAccount => "no_account",
            Self::Disabled => "disabled",
            Self::AlreadyLinked => "already_linked",
            Self::Failed(_) => "failed",
        }
    }
}

impl From<cynode_db::DbError> for LoginRefusal {
    fn from(error: cynode_db::DbError) -> Self {
        Self::Failed(error.into())
    }
}

/// The session that an account is linked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LinkTarget {
    user: UserId,
    session: SessionId,
}

/// A login between the two visits of the browser. It is sealed.
#[derive(Serialize, Deserialize)]
struct ProviderLoginAttempt {
    provider: IdentityProviderId,
    state: String,
    nonce: String,
    verifier: String,
    redirect_uri: String,
    return_to: String,
    link: Option<LinkTarget>,
    expires_at: i64,
}

impl ProviderLoginAttempt {
    fn to_login_values(&self) -> LoginValues {
        LoginValues {
            redirect_uri: self.redirect_uri.clone(),
            state: self.state.clone(),
            nonce: self.nonce.clone(),
            verifier: self.verifier.clone(),
        }
    }
}

/// Returns a path of this server that a browser may be sent to, else that of the console.
pub fn safe_return_path(path: Option<&str>) -> String {
    let good = |path: &&str| {
        path.starts_with('/')
            && !path.starts_with("//")
            && !path.starts_with("/v1/")
            && path.len() <= MAX_RETURN_PATH_BYTES
            && path.bytes().all(|b| (0x21..0x7f).contains(&b) && b != b'\\')
    };
    path.filter(good).unwrap_or("/").to_owned()
}

/// Begins a login at a provider. `origin` is the address of this server, as the browser knows it.
#[tracing::instrument(name = "app.single_sign_on.begin_login", skip_all)]
#[operation]
pub async fn begin_login(
    app: &App,
    name: &str,
    origin: &str,
    return_to: Option<&str>,
) -> Result<StartedLogin, Error> {
    begin_attempt(app, name, origin, safe_return_path(return_to), None).await
}

/// Begins to link an account at a provider to that of the caller. Only a session whose person has just logged in can do so: the
/// account that is linked logs in as the caller from then on.
#[tracing::instrument(name = "app.single_sign_on.begin_link", skip_all)]
#[operation]
pub async fn begin_link(
    app: &App,
    request: &OperationRequest,
    name: &str,
    origin: &str,
) -> Result<StartedLogin, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    let CallerCredential::Session(session) = caller.credential else {
        return Err(Error::Conflict("an API key cannot link an account: log in to link one"));
    };
    let now = app.environment().now();
    {
        let mut conn = app.conn().await?;
        session_origin::require_recent_login(&mut conn, session, now).await?;
        let enrolled = second_factors::is_enrolled(&mut conn, caller.user).await?;
        if enrolled && !accounts::has_second_factor(&mut conn, session).await? {
            return Err(Error::Conflict(
                "show your second factor in this session first: an account that is linked logs in as you from then on",
            ));
        }
    }
    let link = LinkTarget { user: caller.user, session };
    begin_attempt(app, name, origin, "/settings/sessions".to_owned(), Some(link)).await
}

async fn begin_attempt(
    app: &App,
    name: &str,
    origin: &str,
    return_to: String,
    link: Option<LinkTarget>,
) -> Result<StartedLogin, Error> {
    let parts = app.sign_on_parts()?;
    let provider = find_enabled_provider(app, name).await?;
    let config = parts.open_provider(&provider)?;
    let environment = app.environment();
    let secret = || BASE64URL_NOPAD.encode(&environment.random_bytes::<32>());
    let now = environment.now();
    let attempt = ProviderLoginAttempt {
        provider: provider.id,
        state: secret(),
        nonce: secret(),
        verifier: secret(),
        redirect_uri: format!("{origin}{}", callback_path(&provider.name)),
        return_to,
        link,
        expires_at: (now + LOGIN_ATTEMPT_TTL).unix_timestamp(),
    };
    let url = parts.client.authorization_url(&config, &attempt.to_login_values(), now).await;
    let url = url.map_err(|error| to_provider_error(&error))?;
    let text = serde_json::to_vec(&attempt).map_err(|error| Error::Internal(error.into()))?;
    let sealed = parts.keys.seal_secret(environment, ATTEMPT_PLACE, &text)?;
    Ok(StartedLogin {
        authorization_url: url.into(),
        state: attempt.state,
        sealed: SecretText(BASE64URL_NOPAD.encode(&sealed)),
    })
}

async fn find_enabled_provider(app: &App, name: &str) -> Result<IdentityProviderRecord, Error> {
    let mut conn = app.conn().await?;
    let provider = identity_providers::find_identity_provider(&mut conn, name).await?;
    let provider = provider.filter(|provider| provider.enabled);
    provider.ok_or_else(|| Error::not_found("identity provider", name))
}

/// Finishes a login with the answer that a browser brings. The caller of the request is the user who links an account.
#[tracing::instrument(name = "app.single_sign_on.finish_login", skip_all)]
#[operation]
pub async fn finish_login(
    app: &App,
    request: &OperationRequest,
    name: &str,
    answer: LoginAnswer,
    sealed: Option<&str>,
    client: &SessionClient,
) -> Result<FinishedLogin, LoginRefusal> {
    let parts = app.sign_on_parts()?;
    let provider = find_enabled_provider(app, name).await?;
    let now = app.environment().now();
    let attempt = open_attempt(&parts, &provider, &answer, sealed, now)?;
    use_state(app, &attempt, now).await?;
    let check = redeem_answer(&parts, &provider, &attempt, answer, now).await?;
    let own_request = OperationRequest { caller: None, ..request.clone() };
    if let Some(link) = attempt.link {
        // The same session that began it, and nobody else.
        let caller = request.caller.filter(|caller| {
            caller.user == link.user && caller.credential == CallerCredential::Session(link.session)
        });
        if caller.is_none() {
            return Err(LoginRefusal::Stale);
        }
        require_claims(&check.identity)?;
        let mut ctx = app.begin_transaction(&own_request).await?;
        link_identity(&mut ctx, &provider, &check.identity, link.user).await?;
        app.commit_operation(ctx).await?;
        return Ok(FinishedLogin::Linked { return_to: attempt.return_to });
    }
    let mut is_repeat = false;
    let session = loop {
        let mut ctx = app.begin_transaction(&own_request).await?;
        match find_or_create_account(&mut ctx, &provider, &check.identity).await {
            Ok(identity) => {
                let started =
                    start_provider_session(&mut ctx, &parts, &provider, &identity, &check, client);
                let session = started.await?;
                app.commit_operation(ctx).await?;
                break session;
            }
            // Another first login took the handle, or made the account, at the same moment. It is there now.
            Err(refusal) if !is_repeat && is_lost_race(&refusal) => is_repeat = true,
            Err(refusal) => {
                drop(ctx);
                record_refusal(app, &own_request, &provider, &refusal).await?;
                return Err(refusal);
            }
        }
    };
    Ok(FinishedLogin::Session { session, return_to: attempt.return_to })
}

/// Returns whether another login did the same at the same moment.
const fn is_lost_race(refusal: &LoginRefusal) -> bool {
    matches!(refusal, LoginRefusal::AlreadyLinked | LoginRefusal::Failed(Error::Conflict(_)))
}

/// Opens the login of the cookie and compares it with the answer.
fn open_attempt(
    parts: &SignOnParts,
    provider: &IdentityProviderRecord,
    answer: &LoginAnswer,
    sealed: Option<&str>,
    now: OffsetDateTime,
) -> Result<ProviderLoginAttempt, LoginRefusal> {
    let sealed = sealed.and_then(|text| BASE64URL_NOPAD.decode(text.as_bytes()).ok());
    let sealed = sealed.ok_or(LoginRefusal::Stale)?;
    let opened = parts.keys.unseal_secret(ATTEMPT_PLACE, &sealed);
    let opened = opened.map_err(|_| LoginRefusal::Stale)?;
    let attempt: ProviderLoginAttempt =
        serde_json::from_slice(&opened).map_err(|_| LoginRefusal::Stale)?;
    let digest = |text: &str| Sha256::digest(text.as_bytes());
    let good = attempt.provider == provider.id
        && digest(&attempt.state) == digest(&answer.state)
        && attempt.expires_at > now.unix_timestamp();
    if good { Ok(attempt) } else { Err(LoginRefusal::Stale) }
}

/// Uses up the state of a login, before its code is redeemed.
async fn use_state(
    app: &App,
    attempt: &ProviderLoginAttempt,
    now: OffsetDateTime,
) -> Result<(), LoginRefusal> {
    let hash: [u8; 32] = Sha256::digest(attempt.state.as_bytes()).into();
    let mut conn = app.conn().await.map_err(Error::from)?;
    let expires_at = now + LOGIN_ATTEMPT_TTL;
    if identity_providers::use_login_value(&mut conn, &hash, expires_at).await? {
        Ok(())
    } else {
        Err(LoginRefusal::Stale)
    }
}

async fn redeem_answer(
    parts: &SignOnParts,
    provider: &IdentityProviderRecord,
    attempt: &ProviderLoginAttempt,
    answer: LoginAnswer,
    now: OffsetDateTime,
) -> Result<GrantCheck, LoginRefusal> {
    let config = parts.open_provider(provider)?;
    let issuer = answer.issuer.as_deref();
    let checked = parts.client.check_response_issuer(&config, issuer, now).await;
    checked.map_err(LoginRefusal::Provider)?;
    let code = answer.code.filter(|_| !answer.refused).ok_or(LoginRefusal::Denied)?;
    let values = attempt.to_login_values();
    let redeemed = Box::pin(parts.client.redeem_code(&config, &values, &code, now)).await;
    redeemed.map_err(LoginRefusal::Provider)
}

/// Rejects a person of the issuer whom this provider is not set up for, such as one of another company.
fn require_claims(person: &VerifiedIdentity) -> Result<(), LoginRefusal> {
    if person.has_required_claims { Ok(()) } else { Err(LoginRefusal::NoAccount) }
}

/// Records that a person whom the provider knows was refused.
async fn record_refusal(
    app: &App,
    request: &OperationRequest,
    provider: &IdentityProviderRecord,
    refusal: &LoginRefusal,
) -> Result<(), Error> {
    if !matches!(refusal, LoginRefusal::NoAccount | LoginRefusal::Disabled) {
        return Ok(());
    }
    let mut ctx = app.begin_transaction(request).await?;
    let data = json!({ "provider": provider.name, "reason": refusal.code() });
    ctx.record_event(EventDraft::new(EventKind::ProviderLoginRefused, data)).await?;
    app.commit_operation(ctx).await
}

/// Returns the account that a person of a provider has here, by issuer and subject alone. An e-mail address never counts.
async fn find_or_create_account(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    person: &VerifiedIdentity,
) -> Result<ExternalIdentity, LoginRefusal> {
    require_claims(person)?;
    let subject = &person.subject;
    match identity_providers::find_external_identity(ctx.conn(), provider.id, subject).await? {
        Some((identity, true)) => Ok(identity),
        Some((_, false)) => Err(LoginRefusal::Disabled),
        None => match find_directory_account(ctx, provider, person).await? {
            Some(user) => store_identity(ctx, provider, subject, user).await,
            None if may_create_account(ctx, provider, person).await? => {
                create_account(ctx, provider, person).await
            }
            None => Err(LoginRefusal::NoAccount),
        },
    }
}

/// Returns whether a person without an account gets one.
async fn may_create_account(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    person: &VerifiedIdentity,
) -> Result<bool, Error> {
    if !provider.create_accounts || !provider.mapped_groups_only {
        return Ok(provider.create_accounts);
    }
    let groups = person.groups.as_deref().unwrap_or_default();
    let mappings = identity_providers::list_group_mappings(ctx.conn(), provider.id).await?;
    Ok(mappings.iter().any(|mapping| groups.contains(&mapping.claim_value)))
}

/// Returns the account that the directory made for a person of its own provider: its external id is a claim of theirs. Every other
/// provider is asked for nobody of the directory.
async fn find_directory_account(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    person: &VerifiedIdentity,
) -> Result<Option<UserId>, LoginRefusal> {
    let Some(id) = person.directory_id.as_deref().filter(|_| provider.links_directory) else {
        return Ok(None);
    };
    let found = scim::find_scim_users(ctx.conn(), ScimUserKey::ExternalId(id)).await?;
    match found.as_slice() {
        [] => Ok(None),
        [account] if account.active => Ok(Some(account.user)),
        [_] => Err(LoginRefusal::Disabled),
        // The directory gave one id to several people: nobody knows which of them it is.
        _ => Err(LoginRefusal::NoAccount),
    }
}

/// Returns whether the provider says that the person has shown a second factor.
fn asserts_second_factor(provider: &IdentityProviderRecord, person: &VerifiedIdentity) -> bool {
    let context = person.authentication_context.as_ref();
    context.is_some_and(|context| provider.second_factor_contexts.contains(context))
        || person
            .authentication_methods
            .iter()
            .any(|method| SECOND_FACTOR_METHODS.contains(&method.as_str()))
}

/// Creates an account at the first login. It has no role and no password.
async fn create_account(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    person: &VerifiedIdentity,
) -> Result<ExternalIdentity, LoginRefusal> {
    let handle = choose_handle(ctx, person).await?;
    let display_name = person.display_name.as_deref().and_then(|name| name.parse::<Title>().ok());
    let display_name = match display_name {
        Some(name) => name,
        None => handle.as_str().parse::<Title>().map_err(|_| LoginRefusal::NoAccount)?,
    };
    let user = User {
        id: UserId::from_uuid(ctx.new_uuid()),
        handle,
        display_name,
        email: person.email.as_deref().and_then(|text| text.parse::<EmailAddress>().ok()),
        role: None,
        can_create_projects: false,
        state: UserState::Active,
        created_at: ctx.now,
    };
    match accounts::insert_user(ctx.conn(), &user).await {
        Err(error) if error.is_refused_by("users_handle_unique") => {
            return Err(LoginRefusal::Failed(Error::Conflict(
                "another user got this handle at the same moment: log in again",
            )));
        }
        result => result?,
    }
    users::set_default_budget(ctx, user.id).await?;
    let data = json!({ "user_id": user.id, "role": user.role, "provider": provider.name });
    ctx.record_event(EventDraft::new(EventKind::UserCreated, data).with_subject(user.id)).await?;
    let identity = store_identity(ctx, provider, &person.subject, user.id).await?;
    identity_providers::mark_made_account(ctx.conn(), identity.id).await?;
    Ok(identity)
}

async fn store_identity(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    subject: &str,
    user: UserId,
) -> Result<ExternalIdentity, LoginRefusal> {
    let identity = ExternalIdentity {
        id: ExternalIdentityId::from_uuid(ctx.new_uuid()),
        provider: provider.id,
        subject: subject.to_owned(),
        user,
        linked_at: ctx.now,
    };
    match identity_providers::insert_external_identity(ctx.conn(), &identity).await {
        Err(error)
            if error.is_refused_by("external_identities_subject_unique")
                || error.is_refused_by("external_identities_user_unique") =>
        {
            return Err(LoginRefusal::AlreadyLinked);
        }
        result => result?,
    }
    let data = json!({ "identity_id": identity.id, "provider": provider.name, "user_id": user });
    ctx.record_event(EventDraft::new(EventKind::IdentityLinked, data).with_subject(user)).await?;
    Ok(identity)
}

async fn link_identity(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    person: &VerifiedIdentity,
    user: UserId,
) -> Result<(), LoginRefusal> {
    store_identity(ctx, provider, &person.subject, user).await.map(|_| ())
}

/// Returns a handle that nobody has, made of the name that the provider gives.
async fn choose_handle(ctx: &mut Ctx, person: &VerifiedIdentity) -> Result<Handle, LoginRefusal> {
    let name = person.user_name.as_deref().or(person.display_name.as_deref()).unwrap_or_default();
    let base = to_handle_base(name);
    let used = identity_providers::list_handles_with_prefix(ctx.conn(), &base).await?;
    let free = std::iter::once(base.clone())
        .chain((2..=10_001_u32).map(|number| format!("{base}-{number}")))
        .find(|candidate| !used.contains(candidate));
    let free = free.and_then(|text| text.parse::<Handle>().ok());
    free.ok_or(LoginRefusal::NoAccount)
}

/// Returns the letters and digits of a name as a handle: the part before `@`, in small letters, joined by dashes.
fn to_handle_base(name: &str) -> String {
    let name = name.split('@').next().unwrap_or_default().to_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let joined = words.collect::<Vec<_>>().join("-");
    let lettered = joined.starts_with(|c: char| c.is_ascii_lowercase());
    let joined = if lettered { joined } else { format!("user-{joined}") };
    let cut: String = joined.chars().take(50).collect();
    cut.trim_end_matches('-').to_owned()
}

async fn start_provider_session(
    ctx: &mut Ctx,
    parts: &SignOnParts,
    provider: &IdentityProviderRecord,
    identity: &ExternalIdentity,
    check: &GrantCheck,
    client: &SessionClient,
) -> Result<SessionView, Error> {
    sync_groups(ctx, provider, identity.user, &check.identity).await?;
    let id = ProviderGrantId::from_uuid(ctx.new_uuid());
    let grant = NewGrant {
        id,
        identity: identity.id,
        provider_session: check.identity.session.clone(),
        sealed_tokens: seal_tokens(&parts.keys, ctx.environment(), id, &check.tokens)?,
        created_at: ctx.now,
        valid_until: ctx.now + GRANT_CHECK_INTERVAL,
    };
    provider_grants::insert_grant(ctx.conn(), &grant).await?;
    let second_factor = asserts_second_factor(provider, &check.identity);
    let origin = client.to_origin(LoginMethod::Provider, Some(id), second_factor);
    start_session(ctx, identity.user, &origin).await
}

/// Lists the accounts at identity providers of the caller, or those of `user` for an admin.
#[tracing::instrument(name = "app.single_sign_on.list_identities", skip_all)]
#[operation]
pub async fn list_identities(ctx: &mut Ctx, user: Option<UserId>) -> Result<IdentityList, Error> {
    let caller = ctx.caller()?;
    let user = match user {
        Some(user) => {
            ctx.require_role(UserRole::Admin)?;
            let known = accounts::get_user(ctx.conn(), user).await?;
            known.ok_or_else(|| Error::not_found("user", user))?.id
        }
        None => caller.user,
    };
    let items = identity_providers::list_linked_identities(ctx.conn(), user).await?;
    let items = items.into_iter().map(|identity| IdentityView {
        id: identity.id,
        provider: identity.provider,
        provider_title: identity.provider_title,
        subject: identity.subject,
        linked_at: identity.linked_at,
    });
    Ok(IdentityList { items: items.collect() })
}

/// Unlinks an account of the caller at an identity provider. Its sessions end, and so do the groups that it stands for. A
/// user without a password that works keeps the last one: nobody could log in as them any more.
#[tracing::instrument(name = "app.single_sign_on.unlink_identity", skip_all, fields(identity.id = %id))]
#[operation]
pub async fn unlink_identity(ctx: &mut Ctx, id: ExternalIdentityId) -> Result<(), Error> {
    let caller = ctx.caller()?;
    if !matches!(caller.credential, CallerCredential::Session(_)) {
        return Err(Error::Conflict("an API key cannot unlink an account: log in to unlink one"));
    }
    // Of two that are unlinked at the same moment the second one is the last.
    identity_providers::lock_identity_owner(ctx.conn(), caller.user).await?;
    let linked = identity_providers::list_linked_identities(ctx.conn(), caller.user).await?;
    let found = linked.iter().find(|identity| identity.id == id);
    let identity = found.ok_or_else(|| Error::not_found("linked account", id))?;
    if linked.len() <= 1 && !has_usable_password(ctx, caller.user).await? {
        return Err(Error::Conflict(
            "this is the only way to log in to your account: ask an admin to set a password first",
        ));
    }
    remove_identity(ctx, caller.user, identity, "identity_unlinked").await
}

/// Returns whether a user can log in with a password.
async fn has_usable_password(ctx: &mut Ctx, user: UserId) -> Result<bool, Error> {
    Ok(identity_providers::has_password(ctx.conn(), user).await?
        && is_password_login_enabled(ctx.conn()).await?)
}

/// Removes an account of any user at an identity provider, for an admin: also the only way to log in.
#[tracing::instrument(name = "app.single_sign_on.remove_user_identity", skip_all, fields(user.id = %user, identity.id = %id))]
#[operation]
pub async fn remove_user_identity(
    ctx: &mut Ctx,
    user: UserId,
    id: ExternalIdentityId,
) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin)?;
    identity_providers::lock_identity_owner(ctx.conn(), user).await?;
    let linked = identity_providers::list_linked_identities(ctx.conn(), user).await?;
    let found = linked.iter().find(|identity| identity.id == id);
    let identity = found.ok_or_else(|| Error::not_found("linked account", id))?;
    remove_identity(ctx, user, identity, "identity_removed").await
}

/// Removes the accounts at identity providers that were linked to that of a user later on: somebody else may have done it. What the
/// account was made by stays, and so does what the directory vouches for. Returns how many there were.
pub(crate) async fn remove_linked_identities(ctx: &mut Ctx, user: UserId) -> Result<usize, Error> {
    identity_providers::lock_identity_owner(ctx.conn(), user).await?;
    let linked = identity_providers::list_linked_identities(ctx.conn(), user).await?;
    let mut removed = 0;
    for identity in &linked {
        if identity.of_directory || identity.made_account {
            continue;
        }
        remove_identity(ctx, user, identity, "identity_removed").await?;
        removed += 1;
    }
    Ok(removed)
}

/// Removes an account at an identity provider with its sessions and the groups that it stands for.
async fn remove_identity(
    ctx: &mut Ctx,
    user: UserId,
    identity: &LinkedIdentity,
    reason: &'static str,
) -> Result<(), Error> {
    let (now, provider) = (ctx.now, identity.provider_id);
    let removed =
        identity_providers::remove_provider_memberships(ctx.conn(), provider, Some(user)).await?;
    if removed > 0 {
        ctx.invalidate_policy().await?;
    }
    let subject = Some(identity.subject.as_str());
    let which = EndedGrants::Logout { provider, subject, session: None };
    let ended = provider_grants::end_grants(ctx.conn(), which, now).await?;
    record_ended_sessions(ctx, &ended, reason).await?;
    identity_providers::delete_external_identity(ctx.conn(), identity.id).await?;
    let data = json!({ "identity_id": identity.id, "provider": identity.provider });
    let told = EventDraft::new(EventKind::IdentityUnlinked, data);
    ctx.record_event(told.with_subject(user)).await
}

/// Returns the address at which the browser of the caller logs out at the identity provider, if its session is of one.
#[tracing::instrument(name = "app.single_sign_on.provider_logout_url", skip_all)]
#[operation]
pub async fn provider_logout_url(
    app: &App,
    request: &OperationRequest,
    origin: &str,
) -> Result<Option<SecretText>, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    let CallerCredential::Session(session) = caller.credential else { return Ok(None) };
    let mut conn = app.conn().await?;
    let grant = provider_grants::find_session_grant(&mut conn, session).await?;
    let Some((grant, provider, sealed)) = grant else { return Ok(None) };
    let provider = identity_providers::get_identity_provider(&mut conn, provider).await?;
    let Some(provider) = provider else { return Ok(None) };
    drop(conn);
    let parts = app.sign_on_parts()?;
    let tokens = unseal_tokens(&parts.keys, grant, &sealed)?;
    let config = parts.open_provider(&provider)?;
    let (now, return_to) = (app.environment().now(), format!("{origin}/login"));
    let hint = tokens.id_token.as_deref();
    match parts.client.end_session_url(&config, hint, &return_to, now).await {
        Ok(url) => Ok(url.map(|url| SecretText(url.into()))),
        // The person is logged out here in any case.
        Err(error) => {
            let reason = error.to_string();
            tracing::warn!(event = "provider_logout.failed", reason, "no logout at the provider");
            Ok(None)
        }
    }
}

/// Ends the caller's session, and its grant if no other session hangs on it. `logout_url` is that of
/// [`provider_logout_url`].
#[tracing::instrument(name = "app.single_sign_on.logout_at_provider", skip_all)]
#[operation]
pub async fn logout_at_provider(
    ctx: &mut Ctx,
    logout_url: Option<SecretText>,
) -> Result<ProviderLogout, Error> {
    let caller = ctx.caller()?;
    let CallerCredential::Session(session) = caller.credential else {
        return Err(Error::Conflict("an API key has no session to end: revoke the key instead"));
    };
    let now = ctx.now;
    sessions::end_one_session(ctx, session, caller.user).await?;
    let grant = provider_grants::find_session_grant(ctx.conn(), session).await?;
    if let Some((grant, _, _)) = grant
        && !provider_grants::has_open_session(ctx.conn(), grant, now).await?
    {
        provider_grants::end_grants(ctx.conn(), EndedGrants::One(grant), now).await?;
    }
    let told = EventDraft::new(EventKind::SessionEnded, json!({ "session_id": session }));
    ctx.record_event(told.with_subject(caller.user)).await?;
    Ok(ProviderLogout { logout_url })
}

/// Ends the sessions that a logout token of a provider names (OpenID Connect Back-Channel Logout 1.0).
#[tracing::instrument(name = "app.single_sign_on.logout_by_provider", skip_all)]
#[operation]
pub async fn logout_by_provider(
    app: &App,
    request: &OperationRequest,
    name: &str,
    token: &str,
) -> Result<(), Error> {
    let parts = app.sign_on_parts()?;
    let provider = find_enabled_provider(app, name).await?;
    let config = parts.open_provider(&provider)?;
    let now = app.environment().now();
    let claims = parts.client.verify_logout_token(&config, token, now).await;
    let claims = claims.map_err(|error| match error {
        // The provider repeats what was not taken.
        OidcError::Unreachable(_) => to_provider_error(&error),
        error => Error::Invalid(error.to_string()),
    })?;
    let mut ctx = app.begin_transaction(request).await?;
    let used = Sha256::new()
        .chain_update(b"logout-token/")
        .chain_update(provider.id.as_uuid().as_bytes())
        .chain_update(claims.token_id.as_bytes());
    let used: [u8; 32] = used.finalize().into();
    let expires_at = now + LOGOUT_TOKEN_MEMORY;
    if !identity_providers::use_login_value(ctx.conn(), &used, expires_at).await? {
        return Err(Error::Invalid("the logout token was used already".into()));
    }
    let which = EndedGrants::Logout {
        provider: provider.id,
        subject: claims.subject.as_deref(),
        session: claims.session.as_deref(),
    };
    let ended = provider_grants::end_grants(ctx.conn(), which, now).await?;
    record_ended_sessions(&mut ctx, &ended, "provider_logout").await?;
    app.commit_operation(ctx).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_returns_to_a_page_of_this_server_only() {
        for path in ["/", "/tasks?a=b", "/device?code=BCDF-GHJK"] {
            assert_eq!(safe_return_path(Some(path)), path);
        }
        for path in [
            "",
            "tasks",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/v1/sso/a/login",
            "/a b",
            "/a\nb",
        ] {
            assert_eq!(safe_return_path(Some(path)), "/", "{path}");
        }
        assert_eq!(safe_return_path(None), "/");
    }

    #[test]
    fn a_name_of_a_provider_becomes_a_handle() {
        for (name, handle) in [
            ("ada", "ada"),
            ("Ada.Lovelace@example.com", "ada-lovelace"),
            ("7of9", "user-7of9"),
            ("--", "user"),
            ("", "user"),
            ("Ærø", "r"),
            ("Ωμέγα", "user"),
        ] {
            assert_eq!(to_handle_base(name), handle, "{name}");
            assert!(to_handle_base(name).parse::<Handle>().is_ok(), "{name}");
        }
        let long = "a".repeat(80);
        assert_eq!(to_handle_base(&long).len(), 50);
    }
}
