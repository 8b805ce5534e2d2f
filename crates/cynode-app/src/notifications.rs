//! Notifications: channels, the transactional outbox and redelivery.

pub mod answer_links;
mod compose;
pub mod inbox;
mod link_token;
mod outbox_worker;
pub(crate) mod question;
pub mod web_push;

use cynode_core::{
    ids::{ChannelId, NotificationId, ProjectId, UserId},
    notifications::{
        ChannelKind, ChannelScope, NOTIFIABLE_EVENT_KINDS, NotificationState,
        TEST_NOTIFICATION_KIND,
    },
    roles::UserRole,
};
use cynode_core::{
    paging::{Page, PageRequest},
    settings::registry::NOTIFICATIONS_ALLOW_PRIVATE_SETTING,
};
use cynode_db::{
    Conn,
    notifications::{
        self, ChannelOwner, NotificationChannel, NotificationFilter, NotificationRecord,
    },
};
use cynode_net::url_policy::{UrlError, validate_public_url};
use cynode_notify::{
    DeliveryEgress, NotificationSender, WebhookSecret, is_mailbox, to_single_line,
};
use cynode_wire::{
    identity::accounts::SecretText,
    notifications::{
        AttemptView, ChannelView, ChannelWithSecret, CreateChannel, NotificationView, UpdateChannel,
    },
};
use serde_json::json;
use time::Duration;
use url::Url;

pub use link_token::QuestionRef;
pub use outbox_worker::{OutboxTiming, deliver_due, run_outbox_worker};
pub use question::{HumanQuestion, QuestionContext};

use crate::{
    AuthenticatedCaller, Ctx, Error,
    platform::{context::EventDraft, operation, settings},
};

/// Maximum number of channels that one user may create.
const MAX_USER_CHANNELS: i64 = 50;

/// Maximum number of notifications per hour that one user sends by hand. They go to any address, in the
/// installation's name.
const MAX_TESTS_PER_HOUR: i32 = 10;

/// How long the old secret of a webhook signs beside the new one.
const OLD_SECRET_TTL: Duration = Duration::days(1);

/// Maximum size of the address of a channel.
const MAX_ADDRESS_BYTES: usize = 2000;

/// Why a channel of a browser is not created by hand.
const BROWSER_SUBSCRIBES: &str =
    "a browser subscribes itself: press `Notify this browser` in the web console";

/// Resources that a process needs to deliver notifications.
#[derive(Debug)]
pub struct NotificationParts {
    /// Sends notifications to their channels.
    pub courier: NotificationSender,
    /// Public URL of the user-facing port. Without it notifications have no links.
    pub public_url: Option<Url>,
}

/// Loads the egress scope of notifications: the addresses that they may be sent to.
pub(crate) async fn load_egress_scope(conn: &mut Conn) -> Result<DeliveryEgress, Error> {
    Ok(
        if settings::setting_value(conn, NOTIFICATIONS_ALLOW_PRIVATE_SETTING).await?
            == Some(json!(true))
        {
            DeliveryEgress::Anywhere
        } else {
            DeliveryEgress::Public
        },
    )
}

/// Requires a person as caller. An agent may not decide who is notified.
fn require_person(ctx: &Ctx) -> Result<AuthenticatedCaller, Error> {
    let caller = ctx.caller()?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Viewer, "as a person: agents have no channels"));
    }
    Ok(caller)
}

/// Rejects a caller who may not manage the channel. For that caller the channel does not exist.
async fn authorize_channel(ctx: &mut Ctx, channel: &NotificationChannel) -> Result<(), Error> {
    let caller = require_person(ctx)?;
    let missing = || Error::not_found("notification channel", channel.id);
    let may = match channel.owner {
        ChannelOwner::User(user) => user == caller.user || caller.role >= Some(UserRole::Admin),
        ChannelOwner::Project(project) => {
            ctx.require_project_role(project, UserRole::Admin).await.is_ok()
        }
        ChannelOwner::Installation => caller.role >= Some(UserRole::Admin),
    };
    if may { Ok(()) } else { Err(missing()) }
}

fn invalid_input<T>(told: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(told.into()))
}

fn validate_channel_name(name: &str) -> Result<String, Error> {
    let name = to_single_line(name);
    if name.is_empty() || name.chars().count() > 100 {
        return invalid_input("`name` has 1 to 100 characters");
    }
    Ok(name)
}

fn validate_event_kinds(wanted: Option<Vec<String>>) -> Result<Vec<String>, Error> {
    let Some(mut wanted) = wanted else {
        return Ok(NOTIFIABLE_EVENT_KINDS.map(str::to_owned).into());
    };
    wanted.sort_unstable();
    wanted.dedup();
    match wanted.iter().find(|kind| !NOTIFIABLE_EVENT_KINDS.contains(&kind.as_str())) {
        Some(_) => invalid_input(format!("`kinds` are of {}", NOTIFIABLE_EVENT_KINDS.join(", "))),
        None if wanted.is_empty() => invalid_input("`kinds` names at least one"),
        None => Ok(wanted),
    }
}

fn validate_min_gap(seconds: Option<u16>) -> Result<i32, Error> {
    match seconds.unwrap_or_default() {
        seconds @ 0..=3600 => Ok(seconds.into()),
        _ => invalid_input("`min_gap_seconds` is 0 to 3600"),
    }
}

/// Returns the error for an address that notifications may not be sent to, with the fix that an admin can apply.
fn unreachable_error(field: &str, error: UrlError) -> Error {
    Error::Invalid(match error {
        UrlError::PrivateAddress | UrlError::Plaintext => {
            format!(
                "`{field}`: {error}; the setting `{NOTIFICATIONS_ALLOW_PRIVATE_SETTING}` lets it, once an admin has set it to true"
            )
        }
        UrlError::Scheme | UrlError::NoHost | UrlError::Credentials | UrlError::Fragment => {
            format!("`{field}`: {error}")
        }
    })
}

/// Rejects a web address that notifications may not be sent to.
fn validate_web_address(field: &str, text: &str, egress: DeliveryEgress) -> Result<Url, Error> {
    let Ok(url) = text.parse::<Url>() else {
        return invalid_input(format!("`{field}` is no address: it begins with https://"));
    };
    validate_public_url(&url, egress.url_policy())
        .map_err(|error| unreachable_error(field, error))?;
    Ok(url)
}

/// Rejects an address that notifications cannot be sent to.
fn validate_channel_address(
    kind: ChannelKind,
    text: &str,
    egress: DeliveryEgress,
    parts: &NotificationParts,
) -> Result<String, Error> {
    match kind {
        ChannelKind::Mail if !is_mailbox(text) => invalid_input("`address` is no mailbox"),
        ChannelKind::Mail if !parts.courier.can_send_mail() => {
            invalid_input("no mail server is configured: set mail.server and mail.from")
        }
        ChannelKind::Mail => check_address_length("address", text.to_owned()),
        ChannelKind::Webhook | ChannelKind::Ntfy => {
            let url = validate_web_address("address", text, egress)?;
            if kind == ChannelKind::Ntfy && url.path().trim_matches('/').is_empty() {
                return invalid_input("`address` is the ntfy server with the topic");
            }
            check_address_length("address", url.into())
        }
        ChannelKind::WebPush => invalid_input(BROWSER_SUBSCRIBES),
    }
}

/// An address as it is stored: with everything percent-encoded it can be longer than what was given.
fn check_address_length(field: &str, address: String) -> Result<String, Error> {
    if address.len() > MAX_ADDRESS_BYTES {
        return invalid_input(format!("`{field}` has at most {MAX_ADDRESS_BYTES} bytes"));
    }
    Ok(address)
}

/// Returns the secret of a new channel and whether it was generated here.
fn prepare_secret(
    ctx: &Ctx,
    kind: ChannelKind,
    given: Option<SecretText>,
) -> Result<(Option<String>, bool), Error> {
    match (kind, given) {
        (ChannelKind::Webhook, Some(given)) => match WebhookSecret::parse_secret(&given.0) {
            Ok(secret) => Ok((Some(secret.to_secret_text()), false)),
            Err(error) => invalid_input(format!("`secret`: {error}")),
        },
        (ChannelKind::Webhook, None) => Ok((Some(generate_secret(ctx)?), true)),
        (ChannelKind::Ntfy, Some(given)) => {
            let visible = given.0.bytes().all(|b| (0x21..0x7f).contains(&b));
            if !(1..=1000).contains(&given.0.len()) || !visible {
                return invalid_input(
                    "`secret` has 1 to 1000 visible ASCII characters and no space",
                );
            }
            Ok((Some(given.0), false))
        }
        (ChannelKind::Mail, Some(_)) => invalid_input("a mailbox has no `secret`"),
        (ChannelKind::Ntfy | ChannelKind::Mail, None) => Ok((None, false)),
        (ChannelKind::WebPush, _) => invalid_input(BROWSER_SUBSCRIBES),
    }
}

fn generate_secret(ctx: &Ctx) -> Result<String, Error> {
    let secret = WebhookSecret::new(ctx.environment().random_bytes::<32>().into());
    let secret = secret.ok_or_else(|| Error::Internal(anyhow::anyhow!("no secret was made")))?;
    Ok(secret.to_secret_text())
}

/// Creates a notification channel. Users create their own; admins create those of their project or of the
/// installation.
#[tracing::instrument(name = "app.notices.create_channel", skip_all)]
#[operation]
pub async fn create_channel(
    ctx: &mut Ctx,
    (gate, parts): (&crate::GatewayParts, &NotificationParts),
    body: CreateChannel,
) -> Result<ChannelWithSecret, Error> {
    let caller = require_person(ctx)?;
    let owner = resolve_owner(ctx, caller, body.scope, body.project_id).await?;
    if notifications::count_channels(ctx.conn(), caller.user).await? >= MAX_USER_CHANNELS {
        return invalid_input(format!("one person makes at most {MAX_USER_CHANNELS} channels"));
    }
    let egress = load_egress_scope(ctx.conn()).await?;
    let (secret, new) = prepare_secret(ctx, body.kind, body.secret)?;
    let id = ChannelId::from_uuid(ctx.new_uuid());
    let sealed = secret
        .as_ref()
        .map(|secret| gate.keys.seal_channel_secret(ctx.environment(), id, secret))
        .transpose()?;
    let channel = NotificationChannel {
        id,
        owner,
        name: validate_channel_name(&body.name)?,
        kind: body.kind,
        address: validate_channel_address(body.kind, &body.address, egress, parts)?,
        sealed,
        old: None,
        kinds: validate_event_kinds(body.kinds)?,
        min_gap_seconds: validate_min_gap(body.min_gap_seconds)?,
        enabled: true,
        disabled_reason: None,
        created_by: caller.user,
        created_at: ctx.now,
    };
    let now = ctx.now;
    notifications::set_channel(ctx.conn(), &channel, now).await?;
    if channel.sealed.is_some() {
        // Bumping the epoch makes every redactor load the new secret.
        ctx.invalidate_models().await?;
    }
    record_channel_event(ctx, &channel, "added").await?;
    Ok(ChannelWithSecret {
        channel: to_channel_view(channel),
        secret: secret.filter(|_| new).map(SecretText),
    })
}

async fn resolve_owner(
    ctx: &mut Ctx,
    caller: AuthenticatedCaller,
    scope: Option<ChannelScope>,
    project: Option<ProjectId>,
) -> Result<ChannelOwner, Error> {
    match (scope.unwrap_or(ChannelScope::User), project) {
        (ChannelScope::User, None) => Ok(ChannelOwner::User(caller.user)),
        (ChannelScope::Project, Some(project)) => {
            ctx.require_project_role(project, UserRole::Admin).await?;
            Ok(ChannelOwner::Project(project))
        }
        (ChannelScope::Installation, None) => {
            ctx.require_role(UserRole::Admin)?;
            Ok(ChannelOwner::Installation)
        }
        (ChannelScope::Project, None) => invalid_input("`project_id` is missing"),
        (ChannelScope::User | ChannelScope::Installation, Some(_)) => {
            invalid_input("only a channel of a `project` has a `project_id`")
        }
    }
}

/// Records the event of a changed channel. The owner of the channel can see it.
async fn record_channel_event(
    ctx: &mut Ctx,
    channel: &NotificationChannel,
    change: &str,
) -> Result<(), Error> {
    let told = EventDraft::of_channel(channel, change);
    ctx.record_event(match channel.owner {
        ChannelOwner::User(user) => told.with_subject(user),
        ChannelOwner::Project(project) => told.with_project(project),
        ChannelOwner::Installation => told,
    })
    .await
}

/// Lists the channels of the caller and of the projects that the caller administers. An admin may list all channels.
#[tracing::instrument(name = "app.notices.list_channels", skip_all)]
#[operation]
pub async fn list_channels(
    ctx: &mut Ctx,
    all: bool,
    page: PageRequest,
) -> Result<Page<ChannelView>, Error> {
    let of = owner_filter(ctx, all)?;
    let found = notifications::list_channels(ctx.conn(), of, page).await?;
    Ok(page.into_page(found, |channel| channel.id.as_uuid()).map(to_channel_view))
}

fn owner_filter(ctx: &mut Ctx, all: bool) -> Result<Option<UserId>, Error> {
    let caller = require_person(ctx)?;
    if all {
        ctx.require_role(UserRole::Admin)?;
        return Ok(None);
    }
    Ok(Some(caller.user))
}

async fn lock_authorized_channel(
    ctx: &mut Ctx,
    id: ChannelId,
) -> Result<NotificationChannel, Error> {
    require_person(ctx)?;
    let found = notifications::lock_channel(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("notification channel", id))?;
    authorize_channel(ctx, &found).await?;
    Ok(found)
}

/// Returns one channel.
#[tracing::instrument(name = "app.notices.get_channel", skip_all, fields(channel.id = %id))]
#[operation]
pub async fn get_channel(ctx: &mut Ctx, id: ChannelId) -> Result<ChannelView, Error> {
    require_person(ctx)?;
    let found = notifications::get_channel(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("notification channel", id))?;
    authorize_channel(ctx, &found).await?;
    Ok(to_channel_view(found))
}

/// Updates a channel. Its address cannot be changed: a secret that was sealed for one address is never sent to
/// another.
#[tracing::instrument(name = "app.notices.update_channel", skip_all, fields(channel.id = %id))]
#[operation]
pub async fn update_channel(
    ctx: &mut Ctx,
    gate: &crate::GatewayParts,
    id: ChannelId,
    body: UpdateChannel,
) -> Result<ChannelWithSecret, Error> {
    let mut channel = lock_authorized_channel(ctx, id).await?;
    if let Some(given) = &body.name {
        channel.name = validate_channel_name(given)?;
    }
    if let Some(given) = body.kinds {
        channel.kinds = validate_event_kinds(Some(given))?;
    }
    if let Some(seconds) = body.min_gap_seconds {
        channel.min_gap_seconds = validate_min_gap(Some(seconds))?;
    }
    if let Some(enabled) = body.enabled {
        channel.enabled = enabled;
        channel.disabled_reason = (!enabled).then(|| "a person switched it off".to_owned());
    }
    let mut secret = None;
    if body.rotate_secret {
        if channel.kind != ChannelKind::Webhook {
            return invalid_input(
                "only a webhook has a secret that is made here: add a new channel",
            );
        }
        let new = generate_secret(ctx)?;
        let sealed = gate.keys.seal_channel_secret(ctx.environment(), id, &new)?;
        channel.old = channel.sealed.replace(sealed).map(|old| (old, ctx.now + OLD_SECRET_TTL));
        secret = Some(SecretText(new));
        ctx.invalidate_models().await?;
    }
    let now = ctx.now;
    notifications::set_channel(ctx.conn(), &channel, now).await?;
    if !channel.enabled {
        notifications::fail_pending_notifications(ctx.conn(), id, "the channel was switched off")
            .await?;
    }
    record_channel_event(ctx, &channel, "changed").await?;
    Ok(ChannelWithSecret { channel: to_channel_view(channel), secret })
}

/// Deletes a channel with its pending notifications.
#[tracing::instrument(name = "app.notices.delete_channel", skip_all, fields(channel.id = %id))]
#[operation]
pub async fn delete_channel(ctx: &mut Ctx, id: ChannelId) -> Result<(), Error> {
    let channel = lock_authorized_channel(ctx, id).await?;
    // The epoch is bumped before the channel is removed: readers of the registry load the channels after they see the
    // bump.
    if channel.sealed.is_some() || channel.old.is_some() {
        ctx.invalidate_models().await?;
    }
    notifications::remove_channel(ctx.conn(), id).await?;
    record_channel_event(ctx, &channel, "removed").await
}

/// Sends a test notification to a channel. The outcome appears in the list of notifications.
#[tracing::instrument(name = "app.notices.test_channel", skip_all, fields(channel.id = %id))]
#[operation]
pub async fn test_channel(ctx: &mut Ctx, id: ChannelId) -> Result<NotificationView, Error> {
    let channel = lock_authorized_channel(ctx, id).await?;
    if !channel.enabled {
        return Err(Error::Conflict("the channel is switched off"));
    }
    check_test_rate_limit(ctx).await?;
    let (new, trace, now) = (NotificationId::from_uuid(ctx.new_uuid()), ctx.trace, ctx.now);
    notifications::queue_test_notification(ctx.conn(), new, id, trace, now).await?;
    ctx.mark_notified();
    load_notification(ctx, new).await
}

/// Enforces the rate limit of notifications that a user sends by hand: counts this one and rejects it above the
/// limit.
async fn check_test_rate_limit(ctx: &mut Ctx) -> Result<(), Error> {
    let (user, now, hour) = (ctx.caller()?.user, ctx.now, Duration::HOUR);
    let since =
        notifications::count_channel_test(ctx.conn(), user, now, now - hour, MAX_TESTS_PER_HOUR)
            .await?;
    let Some(since) = since else { return Ok(()) };
    let after = (since + hour - now).unsigned_abs();
    Err(Error::RateLimited { what: "channels are tried at most ten times in an hour", after })
}

async fn load_notification(ctx: &mut Ctx, id: NotificationId) -> Result<NotificationView, Error> {
    let found = notifications::lock_notification(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("notification", id))?;
    let mut views = to_notification_views(ctx, vec![found]).await?;
    views.pop().ok_or_else(|| Error::not_found("notification", id))
}

async fn to_notification_views(
    ctx: &mut Ctx,
    found: Vec<NotificationRecord>,
) -> Result<Vec<NotificationView>, Error> {
    let ids: Vec<_> = found.iter().map(|row| row.id).collect();
    let attempts = notifications::list_attempts(ctx.conn(), &ids).await?;
    let views = found.into_iter().map(|row| {
        let own = attempts.iter().filter(|attempt| attempt.of == row.id);
        let attempts = own.map(|attempt| AttemptView {
            number: attempt.number,
            at: attempt.at,
            sent: attempt.sent,
            answer: attempt.answer.clone(),
        });
        NotificationView {
            notification_id: row.id,
            channel_id: row.channel,
            kind: row.kind,
            project_id: row.project,
            task_id: row.task,
            state: row.state,
            reason: row.reason,
            occurred_at: row.occurred_at,
            due_at: row.due_at,
            ended_at: row.ended_at,
            attempts: attempts.collect(),
        }
    });
    Ok(views.collect())
}

/// Lists the sent and pending notifications of the channels that the caller can see, newest first.
#[tracing::instrument(name = "app.notices.list_notifications", skip_all)]
#[operation]
pub async fn list_notifications(
    ctx: &mut Ctx,
    all: bool,
    state: Option<NotificationState>,
    page: PageRequest,
) -> Result<Page<NotificationView>, Error> {
    let of = owner_filter(ctx, all)?;
    let found =
        notifications::list_notifications(ctx.conn(), NotificationFilter { of, state }, page)
            .await?;
    let Page { items, next_cursor } = page.into_page(found, |row| row.id.as_uuid());
    Ok(Page { items: to_notification_views(ctx, items).await?, next_cursor })
}

/// Redelivers a notification under the same id.
#[tracing::instrument(name = "app.notices.redeliver_notification", skip_all, fields(notification.id = %id))]
#[operation]
pub async fn redeliver_notification(
    ctx: &mut Ctx,
    id: NotificationId,
) -> Result<NotificationView, Error> {
    require_person(ctx)?;
    let missing = || Error::not_found("notification", id);
    let found = notifications::lock_notification(ctx.conn(), id).await?.ok_or_else(missing)?;
    let channel =
        notifications::get_channel(ctx.conn(), found.channel).await?.ok_or_else(missing)?;
    authorize_channel(ctx, &channel).await.map_err(|_| missing())?;
    if found.state == NotificationState::Pending {
        return Err(Error::Conflict("it is still being told"));
    }
    if !channel.enabled {
        return Err(Error::Conflict("the channel is switched off"));
    }
    // A notification that did not arrive may be redelivered without limit.
    if found.kind == TEST_NOTIFICATION_KIND || found.state == NotificationState::Sent {
        check_test_rate_limit(ctx).await?;
    }
    notifications::requeue_notification(ctx.conn(), id).await?;
    ctx.mark_notified();
    load_notification(ctx, id).await
}

fn to_channel_view(channel: NotificationChannel) -> ChannelView {
    let (user_id, project_id) = match channel.owner {
        ChannelOwner::User(user) => (Some(user), None),
        ChannelOwner::Project(project) => (None, Some(project)),
        ChannelOwner::Installation => (None, None),
    };
    ChannelView {
        channel_id: channel.id,
        scope: channel.owner.channel_scope(),
        user_id,
        project_id,
        name: channel.name,
        kind: channel.kind,
        address: channel.address,
        has_secret: channel.sealed.is_some(),
        old_secret_until: channel.old.map(|(_, until)| until),
        kinds: channel.kinds,
        min_gap_seconds: u16::try_from(channel.min_gap_seconds).unwrap_or(u16::MAX),
        enabled: channel.enabled,
        disabled_reason: channel.disabled_reason,
        created_at: channel.created_at,
    }
}
