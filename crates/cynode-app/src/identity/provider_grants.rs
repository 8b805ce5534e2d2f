//! Grants of identity providers. A session of a provider works only while the provider confirms its grant: after
//! [`GRANT_CHECK_INTERVAL`] the next request waits for a new check. A person who was removed at the provider has no access
//! after that. The same holds for API keys of people whom nobody but a provider vouches for, and for what acts in their name: agent
//! tokens, schedules, answer links and notification channels. Rounds of checks find out about these.
//!
//! Only a provider's word about the person ends a grant. Whatever else fails, of the provider, of the network or of our own client, is
//! waited for: sessions go on for a grace period, and are held after it.

use std::time::Duration as StdDuration;

use cynode_core::{
    accounts::CallerCredential,
    events::EventKind,
    ids::{IdentityProviderId, ProviderGrantId, SessionId, UserId},
    settings::registry::{DEFAULT_PROVIDER_GRACE_MINUTES, PROVIDER_GRACE_SETTING},
};
use cynode_db::identity::{
    authentication,
    identity_providers::{self, IdentityProviderRecord},
    provider_grants::{self, DueGrant, EndedGrants, GrantCheckState, GrantCredential},
};
use cynode_oidc::{GrantCheck, GrantTokens, OidcError, ProviderConfig, VerifiedIdentity};
use futures::future::join_all;
use serde_json::json;
use time::{Duration, OffsetDateTime};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    App, AppEnvironment, AuthenticatedCaller, Ctx, Error, OperationRequest,
    identity::{
        identity_providers::{SignOnParts, to_provider_error},
        sessions,
    },
    platform::{
        context::EventDraft,
        error::log_background_error,
        keys::InstallationKeys,
        operation, settings,
        tokens::{PresentedToken, TokenKind},
    },
};

/// How long a session works without another check: less than a minute, so that a removal takes effect within one.
pub const GRANT_CHECK_INTERVAL: Duration = Duration::seconds(45);

/// Timeout of one check.
const CHECK_TIMEOUT: StdDuration = StdDuration::from_secs(12);

/// How long other requests leave a check to the one that began it. It is longer than [`CHECK_TIMEOUT`].
const CHECK_CLAIM_TTL: Duration = Duration::seconds(20);

/// Interval of the rounds that check the grants of people in whose name something acts.
const CHECK_ROUND_INTERVAL: StdDuration = StdDuration::from_secs(5);

/// How long before a check is due a round makes it, so that nothing has to wait for one.
const CHECK_LEAD: Duration = Duration::seconds(15);

/// Maximum number of people that one round checks, and of those at the same moment.
const CHECK_ROUND_SIZE: i64 = 500;
const MAX_CONCURRENT_CHECKS: usize = 16;

/// Interval at which requests look whether the check of another one is done.
const CHECK_POLL_INTERVAL: StdDuration = StdDuration::from_millis(50);

/// How long a request waits for the check of another one.
const CHECK_WAIT_TIMEOUT: StdDuration = StdDuration::from_secs(15);

/// Returns the associated data of the sealed tokens of a grant.
pub(crate) fn token_associated_data(id: ProviderGrantId) -> Vec<u8> {
    [b"provider-grant/".as_slice(), id.as_uuid().as_bytes()].concat()
}

/// Seals the tokens of a grant.
pub(crate) fn seal_tokens(
    keys: &InstallationKeys,
    environment: &AppEnvironment,
    id: ProviderGrantId,
    tokens: &GrantTokens,
) -> Result<Vec<u8>, Error> {
    let text = serde_json::to_vec(tokens).map_err(|error| Error::Internal(error.into()))?;
    keys.seal_secret(environment, &token_associated_data(id), &text)
}

/// Opens the tokens of a grant.
pub(crate) fn unseal_tokens(
    keys: &InstallationKeys,
    id: ProviderGrantId,
    sealed: &[u8],
) -> Result<GrantTokens, Error> {
    let text = keys.unseal_secret(&token_associated_data(id), sealed)?;
    serde_json::from_slice(&text).map_err(|error| Error::Internal(error.into()))
}

impl App {
    /// Makes sure that the provider was asked about the grants behind a session or an API key whose check may be due. Returns `false` if
    /// there was nothing to ask about.
    pub(crate) async fn confirm_grants(&self, shown: &PresentedToken) -> Result<bool, Error> {
        let hashes = self.token_keys().token_hashes(&shown.hash);
        let credential = if shown.kind == TokenKind::Session {
            GrantCredential::Session(&hashes)
        } else if shown.kind == TokenKind::ApiKey {
            GrantCredential::ApiKey(&hashes)
        } else {
            return Ok(false);
        };
        let now = self.environment().now();
        self.confirm_credential(credential, now).await
    }

    /// Returns the caller that a user is by something that stands for them. Nobody, if the account may not be used or if nobody vouches for
    /// the person any more; the provider is asked first where its word is needed.
    pub(crate) async fn find_caller_on_behalf(
        &self,
        user: UserId,
        credential: CallerCredential,
    ) -> Result<Option<AuthenticatedCaller>, Error> {
        let now = self.environment().now();
        {
            let mut conn = self.conn().await?;
            let found = authentication::find_caller_on_behalf(&mut conn, user, credential, now);
            if let Some(caller) = found.await? {
                return Ok(Some(caller));
            }
        }
        if !self.confirm_credential(GrantCredential::User(user), now).await? {
            return Ok(None);
        }
        let mut conn = self.conn().await?;
        Ok(authentication::find_caller_on_behalf(&mut conn, user, credential, now).await?)
    }

    async fn confirm_credential(
        &self,
        credential: GrantCredential<'_>,
        at: OffsetDateTime,
    ) -> Result<bool, Error> {
        let check = Box::pin(wait_for_check(self, credential, at));
        let checked = tokio::time::timeout(CHECK_WAIT_TIMEOUT, check).await;
        checked.unwrap_or_else(|_| Err(unreachable_error("its answer is waited for")))
    }
}

/// Checks the grants behind a credential that are not confirmed at a time, until one is confirmed or none is left, or waits for the
/// request that checks one.
async fn wait_for_check(
    app: &App,
    credential: GrantCredential<'_>,
    at: OffsetDateTime,
) -> Result<bool, Error> {
    let mut turn = tokio::time::interval(CHECK_POLL_INTERVAL);
    let mut asked = false;
    loop {
        turn.tick().await;
        let mut conn = app.conn().await?;
        let state =
            provider_grants::claim_grant_check(&mut conn, credential, at, CHECK_CLAIM_TTL).await?;
        drop(conn);
        match state {
            None => return Ok(asked),
            Some(GrantCheckState::Confirmed) => return Ok(true),
            Some(GrantCheckState::Claimed) => asked = true,
            // The check goes on when its request is given up: a refresh token works once.
            Some(GrantCheckState::Due(grant)) => {
                asked = true;
                let check = check_grant(app.clone(), grant).in_current_span();
                let checked = TaskTracker::new().spawn(check).await;
                checked.map_err(|error| Error::Internal(error.into()))??;
            }
        }
    }
}

/// Checks the grants of people in whose name something acts, in rounds, until shutdown.
#[operation]
pub async fn run_grant_checks(app: App, stop: CancellationToken) {
    loop {
        if let Err(error) = check_due_users(&app).await {
            log_background_error(
                "provider_grants.round_failed",
                &error,
                "people could not be checked at their identity provider; it is retried",
            );
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.until_poll_due(CHECK_ROUND_INTERVAL) => {}
        }
    }
}

/// Checks the grants of people with agent tokens, schedules or notification channels that are due soon. Returns how many people there
/// were.
#[tracing::instrument(name = "app.provider_grants.check_due_users", skip_all)]
#[operation]
pub async fn check_due_users(app: &App) -> Result<usize, Error> {
    let at = app.environment().now() + CHECK_LEAD;
    let users = {
        let mut conn = app.conn().await?;
        provider_grants::list_users_to_confirm(&mut conn, at, CHECK_ROUND_SIZE).await?
    };
    for some in users.chunks(MAX_CONCURRENT_CHECKS) {
        join_all(some.iter().map(|user| check_user(app, *user, at))).await;
    }
    Ok(users.len())
}

async fn check_user(app: &App, user: UserId, at: OffsetDateTime) {
    let checked = app.confirm_credential(GrantCredential::User(user), at).await;
    // That their provider cannot be used was told already.
    if let Err(error) = checked
        && !matches!(error, Error::UpstreamUnavailable { .. })
    {
        log_background_error(
            "provider_grant.check_failed",
            &error,
            "a person could not be checked at their identity provider; it is retried",
        );
    }
}

fn unreachable_error(reason: &str) -> Error {
    to_provider_error(&OidcError::Unreachable(reason.to_owned()))
}

/// Asks the provider about a grant, and stores its answer.
#[operation]
async fn check_grant(app: App, grant: DueGrant) -> Result<(), Error> {
    let parts = app.sign_on_parts()?;
    let mut conn = app.conn().await?;
    let provider = identity_providers::get_identity_provider(&mut conn, grant.provider).await?;
    drop(conn);
    let Some(provider) = provider.filter(|provider| provider.enabled) else {
        return end_refused_grant(
            &app,
            &grant,
            GrantEndCause::ProviderRefusal,
            "provider_disabled",
        )
        .await;
    };
    let config = parts.open_provider(&provider)?;
    let tokens = unseal_tokens(&parts.keys, grant.id, &grant.sealed_tokens)?;
    let answer = ask_provider(&app, &parts, &config, &grant, &tokens);
    let answer = tokio::time::timeout(CHECK_TIMEOUT, answer)
        .await
        .unwrap_or_else(|_| Ok(Err(OidcError::Unreachable("there was no answer in time".into()))));
    match answer? {
        Ok(Some(check)) => store_confirmation(&app, &parts, &provider, &grant, &check).await,
        Ok(None) => Ok(()),
        Err(OidcError::Unrenewable) => {
            end_refused_grant(&app, &grant, GrantEndCause::NoRenewalToken, "grant_expired").await
        }
        Err(OidcError::Refused(reason)) => {
            tracing::warn!(
                event = "provider_grant.refused",
                user.id = %grant.user,
                provider = provider.name,
                reason,
                "an identity provider no longer confirms a session"
            );
            end_refused_grant(&app, &grant, GrantEndCause::ProviderRefusal, "provider_refused")
                .await
        }
        Err(
            failure @ (OidcError::Unreachable(_)
            | OidcError::Client(_)
            | OidcError::Protocol(_)
            | OidcError::Address(_)),
        ) => extend_unreachable_grant(&app, &provider, &grant, &failure).await,
    }
}

/// Renews the tokens of a grant, stores them, and asks about its person. `None` if another check or a logout came in between.
async fn ask_provider(
    app: &App,
    parts: &SignOnParts,
    config: &ProviderConfig,
    grant: &DueGrant,
    tokens: &GrantTokens,
) -> Result<Result<Option<GrantCheck>, OidcError>, Error> {
    let now = app.environment().now();
    let renewed = match parts.client.renew_grant(config, tokens, now).await {
        Ok(renewed) => renewed,
        Err(error) => return Ok(Err(error)),
    };
    // The refresh token before may work no more, whatever becomes of this check.
    if renewed.is_new {
        let sealed = seal_tokens(&parts.keys, app.environment(), grant.id, &renewed.tokens)?;
        let mut conn = app.conn().await?;
        if !provider_grants::store_grant_tokens(&mut conn, grant, &sealed).await? {
            return Ok(Ok(None));
        }
    }
    let check = parts.client.check_grant(config, &grant.subject, renewed, now).await;
    Ok(check.map(Some))
}

fn background_request(app: &App) -> OperationRequest {
    let trace = app.environment().new_trace_id();
    OperationRequest { caller: None, trace, attempt: None }
}

async fn store_confirmation(
    app: &App,
    parts: &SignOnParts,
    provider: &IdentityProviderRecord,
    grant: &DueGrant,
    check: &GrantCheck,
) -> Result<(), Error> {
    let mut ctx = app.begin_transaction(&background_request(app)).await?;
    let sealed = seal_tokens(&parts.keys, app.environment(), grant.id, &check.tokens)?;
    let (now, valid_until) = (ctx.now, ctx.now + GRANT_CHECK_INTERVAL);
    let stored =
        provider_grants::confirm_grant(ctx.conn(), grant, &sealed, now, valid_until).await?;
    // A logout or another check came in between: its word counts.
    if !stored {
        return Ok(());
    }
    // Where the provider was not asked about groups, they stay.
    if check.identity.groups.is_some() {
        sync_groups(&mut ctx, provider, grant.user, &check.identity).await?;
    }
    app.commit_operation(ctx).await
}

/// Gives a user the groups that their provider names, and takes away those that it named before.
pub(crate) async fn sync_groups(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    user: UserId,
    identity: &VerifiedIdentity,
) -> Result<(), Error> {
    let now = ctx.now;
    let names = identity.groups.as_deref().unwrap_or_default();
    let (added, removed) =
        identity_providers::sync_group_members(ctx.conn(), provider.id, user, names, now).await?;
    if added.is_empty() && removed.is_empty() {
        return Ok(());
    }
    // The preferences of the user may have changed, and whether they are an admin.
    ctx.invalidate_policy().await?;
    let data = json!({ "provider": provider.name, "added": added, "removed": removed });
    ctx.record_event(EventDraft::new(EventKind::IdentityGroupsChanged, data).with_subject(user))
        .await
}

/// Lets the sessions of a grant go on for the grace period while its provider says nothing about the person.
async fn extend_unreachable_grant(
    app: &App,
    provider: &IdentityProviderRecord,
    grant: &DueGrant,
    failure: &OidcError,
) -> Result<(), Error> {
    let mut ctx = app.begin_transaction(&background_request(app)).await?;
    let minutes = settings::setting_number(
        ctx.conn(),
        PROVIDER_GRACE_SETTING,
        DEFAULT_PROVIDER_GRACE_MINUTES,
    );
    let grace_end = grant.confirmed_at + Duration::minutes(minutes.await?);
    let now = ctx.now;
    let valid_until = grace_end.min(now + GRANT_CHECK_INTERVAL).max(now);
    let since = grant.unreachable_since.unwrap_or(now);
    if !provider_grants::extend_grant(ctx.conn(), grant, since, valid_until).await? {
        return Ok(());
    }
    if grant.unreachable_since.is_none() {
        record_unreachable_provider(&mut ctx, provider, grant, failure, grace_end).await?;
    }
    let reason = failure.to_string();
    tracing::warn!(
        event = "identity_provider.unreachable",
        provider = provider.name,
        reason,
        "an identity provider cannot be asked about a person"
    );
    app.commit_operation(ctx).await?;
    if valid_until > now { Ok(()) } else { Err(unreachable_error("the grace period is over")) }
}

async fn record_unreachable_provider(
    ctx: &mut Ctx,
    provider: &IdentityProviderRecord,
    grant: &DueGrant,
    failure: &OidcError,
    grace_end: OffsetDateTime,
) -> Result<(), Error> {
    let data = json!({
        "provider": provider.name,
        "reason": failure.to_string(),
        "user_id": grant.user,
        "grace_ends_at": grace_end.unix_timestamp(),
    });
    let told = EventDraft::new(EventKind::IdentityProviderUnreachable, data);
    ctx.record_event(told.with_subject(grant.user)).await
}

/// Why a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantEndCause {
    /// The provider no longer confirms the person.
    ProviderRefusal,
    /// The provider could not be asked again. Groups stay as after a logout, and its last word counts for API keys for a while.
    NoRenewalToken,
}

/// Ends a grant that its provider no longer confirms, with its sessions and, after a refusal, the groups that it stands for.
async fn end_refused_grant(
    app: &App,
    grant: &DueGrant,
    cause: GrantEndCause,
    reason: &'static str,
) -> Result<(), Error> {
    let mut ctx = app.begin_transaction(&background_request(app)).await?;
    let now = ctx.now;
    let ended = provider_grants::end_grants(ctx.conn(), EndedGrants::Refused(grant), now).await?;
    record_ended_sessions(&mut ctx, &ended, reason).await?;
    if cause == GrantEndCause::ProviderRefusal {
        revoke_confirmation(&mut ctx, grant.provider, &grant.subject, grant.user).await?;
    }
    app.commit_operation(ctx).await
}

/// Takes away the groups that a provider gave to a user whom it no longer confirms at all. API keys of the user lose the
/// rights of these groups too, and stop working if nobody else vouches for the user. Another grant of the user that the provider
/// still confirms brings both back with its check.
async fn revoke_confirmation(
    ctx: &mut Ctx,
    provider: IdentityProviderId,
    subject: &str,
    user: UserId,
) -> Result<(), Error> {
    let now = ctx.now;
    if provider_grants::has_confirmed_grant(ctx.conn(), provider, subject, now).await? {
        return Ok(());
    }
    provider_grants::clear_confirmation(ctx.conn(), provider, Some(subject)).await?;
    let removed =
        identity_providers::remove_provider_memberships(ctx.conn(), provider, Some(user)).await?;
    if removed > 0 {
        ctx.invalidate_policy().await?;
    }
    Ok(())
}

/// Records the end of sessions that nobody logged out of, and ends the subscriptions of their browsers.
pub(crate) async fn record_ended_sessions(
    ctx: &mut Ctx,
    ended: &[(SessionId, UserId)],
    reason: &'static str,
) -> Result<(), Error> {
    for (session, user) in ended {
        sessions::remove_session_browsers(ctx, *session, *user).await?;
        let data = json!({ "session_id": session, "reason": reason });
        ctx.record_event(EventDraft::new(EventKind::SessionEnded, data).with_subject(*user))
            .await?;
    }
    Ok(())
}
