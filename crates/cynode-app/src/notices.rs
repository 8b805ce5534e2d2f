//! What people are told: the ways to them, the outbox, and whoever empties it.

mod compose;
pub(crate) mod question;
mod worker;

use cynode_core::{
    events::EventKind,
    ids::{ChannelId, NotificationId, ProjectId, UserId},
    notices::{ChannelKind, ChannelScope, NoticeState, TEST, TOLD},
    roles::Role,
};
use cynode_db::{
    Conn, models,
    notices::{self, Channel, Filter, Notification, Owner},
};
use cynode_notify::{Courier, Reach, Unreachable, WebhookSecret, check, is_mailbox, line};
use cynode_wire::{
    accounts::SecretText,
    notices::{
        AttemptView, ChannelView, ChannelWithSecret, CreateChannel, NotificationView, UpdateChannel,
    },
    page::{Page, PageRequest},
};
use secrecy::SecretString;
use serde_json::json;
use time::Duration;
use url::Url;

pub use question::{Asked, Circumstances, Question};
pub use worker::{Pace, run, turn};

use crate::{Caller, Ctx, Error, context::Told, gate, keys::Keys, settings};

/// The setting that lets notices go to this machine and to private networks.
pub const ALLOW_PRIVATE: &str = "notifications.allow_private";

/// Most channels that one person makes.
const MOST_CHANNELS: i64 = 50;

/// Most notices in an hour that one person sends by hand: they go wherever a channel leads, in the installation's name.
const MOST_TESTS: i32 = 10;

/// How long a webhook's old secret signs beside the new one.
const ROTATION: Duration = Duration::days(1);

/// What a process needs to tell people.
#[derive(Debug)]
pub struct Parts {
    /// Whoever carries it.
    pub courier: Courier,
    /// Where people reach the user-facing port; without it no notice has a link.
    pub public_url: Option<Url>,
}

/// How far notices may go.
pub(crate) async fn reach(conn: &mut Conn) -> Result<Reach, Error> {
    Ok(if settings::value(conn, ALLOW_PRIVATE).await? == Some(json!(true)) {
        Reach::Anywhere
    } else {
        Reach::Public
    })
}

/// A person; an agent decides nothing about who is told what.
fn person(ctx: &Ctx) -> Result<Caller, Error> {
    let caller = ctx.caller()?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(Role::Viewer, "as a person: agents have no channels"));
    }
    Ok(caller)
}

/// Refuses whoever may not decide about a channel. To them it does not exist.
async fn permit(ctx: &mut Ctx, channel: &Channel) -> Result<(), Error> {
    let caller = person(ctx)?;
    let missing = || Error::not_found("notification channel", channel.id);
    let may = match channel.owner {
        Owner::User(user) => user == caller.user || caller.role >= Some(Role::Admin),
        Owner::Project(project) => ctx.require_in(project, Role::Admin).await.is_ok(),
        Owner::Installation => caller.role >= Some(Role::Admin),
    };
    if may { Ok(()) } else { Err(missing()) }
}

fn invalid<T>(told: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(told.into()))
}

fn name(name: &str) -> Result<String, Error> {
    let name = line(name);
    if name.is_empty() || name.chars().count() > 100 {
        return invalid("`name` has 1 to 100 characters");
    }
    Ok(name)
}

fn kinds(wanted: Option<Vec<String>>) -> Result<Vec<String>, Error> {
    let Some(mut wanted) = wanted else { return Ok(TOLD.map(str::to_owned).into()) };
    wanted.sort_unstable();
    wanted.dedup();
    match wanted.iter().find(|kind| !TOLD.contains(&kind.as_str())) {
        Some(_) => invalid(format!("`kinds` are of {}", TOLD.join(", "))),
        None if wanted.is_empty() => invalid("`kinds` names at least one"),
        None => Ok(wanted),
    }
}

fn gap(seconds: Option<u16>) -> Result<i32, Error> {
    match seconds.unwrap_or_default() {
        seconds @ 0..=3600 => Ok(seconds.into()),
        _ => invalid("`min_gap_seconds` is 0 to 3600"),
    }
}

/// Why notices cannot go to an address, and what an admin can do about it.
fn refused(error: Unreachable) -> Error {
    Error::Invalid(match error {
        Unreachable::Private | Unreachable::Plain => {
            format!(
                "`address`: {error}; the setting `{ALLOW_PRIVATE}` lets it, once an admin has set it to true"
            )
        }
        Unreachable::Scheme
        | Unreachable::Host
        | Unreachable::Credential
        | Unreachable::Fragment => format!("`address`: {error}"),
    })
}

/// Refuses an address that notices cannot go to.
fn address(kind: ChannelKind, text: &str, reach: Reach, parts: &Parts) -> Result<String, Error> {
    match kind {
        ChannelKind::Mail if !is_mailbox(text) => invalid("`address` is no mailbox"),
        ChannelKind::Mail if !parts.courier.sends_mail() => {
            invalid("no mail server is configured: set mail.server and mail.from")
        }
        ChannelKind::Mail => Ok(text.to_owned()),
        ChannelKind::Webhook | ChannelKind::Ntfy => {
            let Ok(url) = text.parse::<Url>() else {
                return invalid("`address` is no address: it begins with https://");
            };
            check(&url, reach).map_err(refused)?;
            if kind == ChannelKind::Ntfy && url.path().trim_matches('/').is_empty() {
                return invalid("`address` is the ntfy server with the topic");
            }
            Ok(url.into())
        }
    }
}

/// The secret of a new channel, and whether it was made here.
fn secret(
    ctx: &Ctx,
    kind: ChannelKind,
    given: Option<SecretText>,
) -> Result<(Option<String>, bool), Error> {
    match (kind, given) {
        (ChannelKind::Webhook, Some(given)) => match WebhookSecret::read(&given.0) {
            Ok(secret) => Ok((Some(secret.written()), false)),
            Err(error) => invalid(format!("`secret`: {error}")),
        },
        (ChannelKind::Webhook, None) => Ok((Some(made(ctx)?), true)),
        (ChannelKind::Ntfy, Some(given)) => {
            let visible = given.0.bytes().all(|b| (0x21..0x7f).contains(&b));
            if !(1..=1000).contains(&given.0.len()) || !visible {
                return invalid("`secret` has 1 to 1000 visible ASCII characters and no space");
            }
            Ok((Some(given.0), false))
        }
        (ChannelKind::Mail, Some(_)) => invalid("a mailbox has no `secret`"),
        (ChannelKind::Ntfy | ChannelKind::Mail, None) => Ok((None, false)),
    }
}

fn made(ctx: &Ctx) -> Result<String, Error> {
    let secret = WebhookSecret::new(ctx.environment().bytes::<32>().into());
    let secret = secret.ok_or_else(|| Error::Internal(anyhow::anyhow!("no secret was made")))?;
    Ok(secret.written())
}

/// What a sealed secret of a channel is good for.
fn place(id: ChannelId) -> Vec<u8> {
    [b"notification-channel".as_slice(), id.as_uuid().as_bytes()].concat()
}

fn seal(ctx: &Ctx, keys: &Keys, id: ChannelId, secret: &str) -> Result<Vec<u8>, Error> {
    keys.seal(ctx.environment(), &place(id), secret.as_bytes())
}

/// The secrets of a channel: the one that holds, and the one before it.
pub(crate) fn opened(channel: &Channel, keys: &Keys) -> Result<Vec<SecretString>, Error> {
    let old = channel.old.as_ref().map(|(old, _)| old);
    let open = |sealed: &Vec<u8>| -> Result<SecretString, Error> {
        let opened = keys.open(&place(channel.id), sealed)?;
        let text = String::from_utf8(opened).map_err(|error| Error::Internal(error.into()))?;
        Ok(text.into())
    };
    channel.sealed.iter().chain(old).map(open).collect()
}

/// Adds a way to be told. Everybody may for themselves, admins for their project or the installation.
#[tracing::instrument(name = "app.notices.create_channel", skip_all)]
pub async fn create_channel(
    ctx: &mut Ctx,
    (gate, parts): (&gate::Parts, &Parts),
    body: CreateChannel,
) -> Result<ChannelWithSecret, Error> {
    let caller = person(ctx)?;
    let owner = owner(ctx, caller, body.scope, body.project_id).await?;
    if notices::count_channels(ctx.conn(), caller.user).await? >= MOST_CHANNELS {
        return invalid(format!("one person makes at most {MOST_CHANNELS} channels"));
    }
    let reach = reach(ctx.conn()).await?;
    let (secret, new) = secret(ctx, body.kind, body.secret)?;
    let id = ChannelId::from_uuid(ctx.uuid());
    let sealed = secret.as_ref().map(|secret| seal(ctx, &gate.keys, id, secret)).transpose()?;
    let channel = Channel {
        id,
        owner,
        name: name(&body.name)?,
        kind: body.kind,
        address: address(body.kind, &body.address, reach, parts)?,
        sealed,
        old: None,
        kinds: kinds(body.kinds)?,
        min_gap_seconds: gap(body.min_gap_seconds)?,
        enabled: true,
        disabled_reason: None,
        created_by: caller.user,
        created_at: ctx.now,
    };
    let now = ctx.now;
    notices::set_channel(ctx.conn(), &channel, now).await?;
    if channel.sealed.is_some() {
        // Whoever asks models knows the new secret from now on.
        models::changed(ctx.conn()).await?;
    }
    changed(ctx, &channel, "added").await?;
    Ok(ChannelWithSecret { channel: view(channel), secret: secret.filter(|_| new).map(SecretText) })
}

async fn owner(
    ctx: &mut Ctx,
    caller: Caller,
    scope: Option<ChannelScope>,
    project: Option<ProjectId>,
) -> Result<Owner, Error> {
    match (scope.unwrap_or(ChannelScope::User), project) {
        (ChannelScope::User, None) => Ok(Owner::User(caller.user)),
        (ChannelScope::Project, Some(project)) => {
            ctx.require_in(project, Role::Admin).await?;
            Ok(Owner::Project(project))
        }
        (ChannelScope::Installation, None) => {
            ctx.require(Role::Admin)?;
            Ok(Owner::Installation)
        }
        (ChannelScope::Project, None) => invalid("`project_id` is missing"),
        (ChannelScope::User | ChannelScope::Installation, Some(_)) => {
            invalid("only a channel of a `project` has a `project_id`")
        }
    }
}

/// Tells of a change of a channel; whose it is may see it.
async fn changed(ctx: &mut Ctx, channel: &Channel, change: &str) -> Result<(), Error> {
    let data = json!({ "channel_id": channel.id, "kind": channel.kind, "change": change });
    let told = Told::new(EventKind::NotificationChannelSet, data);
    ctx.record(match channel.owner {
        Owner::User(user) => told.about(user),
        Owner::Project(project) => told.project(project),
        Owner::Installation => told,
    })
    .await
}

/// The channels of the caller and of the projects that the caller is an admin of; all of them for an admin who asks for all.
#[tracing::instrument(name = "app.notices.channels", skip_all)]
pub async fn channels(
    ctx: &mut Ctx,
    all: bool,
    page: PageRequest,
) -> Result<Page<ChannelView>, Error> {
    let of = whose(ctx, all)?;
    let found = notices::channels(ctx.conn(), of, page).await?;
    Ok(page.cut(found, |channel| channel.id.as_uuid()).map(view))
}

fn whose(ctx: &mut Ctx, all: bool) -> Result<Option<UserId>, Error> {
    let caller = person(ctx)?;
    if all {
        ctx.require(Role::Admin)?;
        return Ok(None);
    }
    Ok(Some(caller.user))
}

async fn permitted(ctx: &mut Ctx, id: ChannelId) -> Result<Channel, Error> {
    person(ctx)?;
    let found = notices::lock_channel(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("notification channel", id))?;
    permit(ctx, &found).await?;
    Ok(found)
}

/// One channel.
#[tracing::instrument(name = "app.notices.channel", skip_all, fields(channel.id = %id))]
pub async fn channel(ctx: &mut Ctx, id: ChannelId) -> Result<ChannelView, Error> {
    person(ctx)?;
    let found = notices::channel(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("notification channel", id))?;
    permit(ctx, &found).await?;
    Ok(view(found))
}

/// Changes a channel. Where it leads cannot be changed: what was sealed for one place is not sent to another.
#[tracing::instrument(name = "app.notices.update_channel", skip_all, fields(channel.id = %id))]
pub async fn update_channel(
    ctx: &mut Ctx,
    gate: &gate::Parts,
    id: ChannelId,
    body: UpdateChannel,
) -> Result<ChannelWithSecret, Error> {
    let mut channel = permitted(ctx, id).await?;
    if let Some(given) = &body.name {
        channel.name = name(given)?;
    }
    if let Some(given) = body.kinds {
        channel.kinds = kinds(Some(given))?;
    }
    if let Some(seconds) = body.min_gap_seconds {
        channel.min_gap_seconds = gap(Some(seconds))?;
    }
    if let Some(enabled) = body.enabled {
        channel.enabled = enabled;
        channel.disabled_reason = (!enabled).then(|| "a person switched it off".to_owned());
    }
    let mut secret = None;
    if body.rotate_secret {
        if channel.kind != ChannelKind::Webhook {
            return invalid("only a webhook has a secret that is made here: add a new channel");
        }
        let new = made(ctx)?;
        let sealed = seal(ctx, &gate.keys, id, &new)?;
        channel.old = channel.sealed.replace(sealed).map(|old| (old, ctx.now + ROTATION));
        secret = Some(SecretText(new));
        models::changed(ctx.conn()).await?;
    }
    let now = ctx.now;
    notices::set_channel(ctx.conn(), &channel, now).await?;
    if !channel.enabled {
        notices::give_up(ctx.conn(), id, "the channel was switched off").await?;
    }
    changed(ctx, &channel, "changed").await?;
    Ok(ChannelWithSecret { channel: view(channel), secret })
}

/// Switches off the channels of a user's own, since whoever made them may not have been that user.
pub(crate) async fn switch_off_those_of(ctx: &mut Ctx, user: UserId) -> Result<usize, Error> {
    let (now, why) = (ctx.now, "an admin set a new password: switch it on if it is yours");
    let off = notices::disable_those_of(ctx.conn(), user, why, now).await?;
    for channel in &off {
        notices::give_up(ctx.conn(), channel.id, "the channel was switched off").await?;
        changed(ctx, channel, "changed").await?;
    }
    Ok(off.len())
}

/// Removes a channel with everything that was to be told by it.
#[tracing::instrument(name = "app.notices.remove_channel", skip_all, fields(channel.id = %id))]
pub async fn remove_channel(ctx: &mut Ctx, id: ChannelId) -> Result<(), Error> {
    let channel = permitted(ctx, id).await?;
    // Before the channel goes: those who tell of a change of models look at channels after it.
    models::changed(ctx.conn()).await?;
    notices::remove_channel(ctx.conn(), id).await?;
    changed(ctx, &channel, "removed").await
}

/// Tells a channel that it works. What comes of it is with the notices.
#[tracing::instrument(name = "app.notices.try_channel", skip_all, fields(channel.id = %id))]
pub async fn try_channel(ctx: &mut Ctx, id: ChannelId) -> Result<NotificationView, Error> {
    let channel = permitted(ctx, id).await?;
    if !channel.enabled {
        return Err(Error::Conflict("the channel is switched off"));
    }
    not_too_often(ctx).await?;
    let (new, trace, now) = (NotificationId::from_uuid(ctx.uuid()), ctx.trace, ctx.now);
    notices::queue_test(ctx.conn(), new, id, trace, now).await?;
    ctx.has_told();
    one(ctx, new).await
}

/// Counts a notice that a person sends by hand, and refuses one too many.
async fn not_too_often(ctx: &mut Ctx) -> Result<(), Error> {
    let (user, now, hour) = (ctx.caller()?.user, ctx.now, Duration::HOUR);
    let since = notices::count_test(ctx.conn(), user, now, now - hour, MOST_TESTS).await?;
    let Some(since) = since else { return Ok(()) };
    let after = (since + hour - now).unsigned_abs();
    Err(Error::TooOften { what: "channels are tried at most ten times in an hour", after })
}

async fn one(ctx: &mut Ctx, id: NotificationId) -> Result<NotificationView, Error> {
    let found = notices::lock(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("notification", id))?;
    let mut views = with_attempts(ctx, vec![found]).await?;
    views.pop().ok_or_else(|| Error::not_found("notification", id))
}

async fn with_attempts(
    ctx: &mut Ctx,
    found: Vec<Notification>,
) -> Result<Vec<NotificationView>, Error> {
    let ids: Vec<_> = found.iter().map(|row| row.id).collect();
    let attempts = notices::attempts(ctx.conn(), &ids).await?;
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

/// What was told and what is to be told by the channels that the caller sees, newest first.
#[tracing::instrument(name = "app.notices.list", skip_all)]
pub async fn list(
    ctx: &mut Ctx,
    all: bool,
    state: Option<NoticeState>,
    page: PageRequest,
) -> Result<Page<NotificationView>, Error> {
    let of = whose(ctx, all)?;
    let found = notices::list(ctx.conn(), Filter { of, state }, page).await?;
    let Page { items, next_cursor } = page.cut(found, |row| row.id.as_uuid());
    Ok(Page { items: with_attempts(ctx, items).await?, next_cursor })
}

/// Tells something once more, under the same id.
#[tracing::instrument(name = "app.notices.replay", skip_all, fields(notification.id = %id))]
pub async fn replay(ctx: &mut Ctx, id: NotificationId) -> Result<NotificationView, Error> {
    person(ctx)?;
    let missing = || Error::not_found("notification", id);
    let found = notices::lock(ctx.conn(), id).await?.ok_or_else(missing)?;
    let channel = notices::channel(ctx.conn(), found.channel).await?.ok_or_else(missing)?;
    permit(ctx, &channel).await.map_err(|_| missing())?;
    if found.state == NoticeState::Pending {
        return Err(Error::Conflict("it is still being told"));
    }
    if !channel.enabled {
        return Err(Error::Conflict("the channel is switched off"));
    }
    // What did not arrive may be told as often as it takes.
    if found.kind == TEST || found.state == NoticeState::Sent {
        not_too_often(ctx).await?;
    }
    notices::replay(ctx.conn(), id).await?;
    ctx.has_told();
    one(ctx, id).await
}

fn view(channel: Channel) -> ChannelView {
    let (user_id, project_id) = match channel.owner {
        Owner::User(user) => (Some(user), None),
        Owner::Project(project) => (None, Some(project)),
        Owner::Installation => (None, None),
    };
    ChannelView {
        channel_id: channel.id,
        scope: channel.owner.scope(),
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
