//! Whoever empties the outbox. Any number of processes may, and any of them may die at any moment: what it had taken comes back.

use std::time::Duration;

use cynode_core::{
    events::EventKind,
    notices::{ChannelKind, NoticeState, next_attempt},
};
use cynode_db::{
    DbError,
    notices::{self, Channel, Notification, Outcome, Owner},
};
use cynode_notify::{self as notify, Failed, Sent, WebhookSecret};
use futures::future::join_all;
use serde_json::json;
use time::OffsetDateTime;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    compose::{Composed, compose},
    place,
};
use crate::{App, Error, Request, context::Told, error::complain, keys::Keys};

/// Most notices taken at once; they are told at the same moment.
const BATCH: usize = 16;

/// Most notices that one process tells at the same moment.
const PLACES: usize = 32;

/// How the outbox is emptied.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How often it is looked at without a sign.
    pub every: Duration,
    /// How long a claim lasts: longer than an attempt takes.
    pub lease: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { every: Duration::from_secs(1), lease: Duration::from_secs(30) }
    }
}

/// Tells people until it is told to stop. A failure is logged and tried again at the next turn. Each place is free as soon as its
/// notice is told: whoever answers slowly keeps nobody else waiting.
pub async fn run(app: App, pace: Pace, stop: CancellationToken) {
    let mut tick = tokio::time::interval(pace.every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Whatever is still in it at the end is given up: it comes back when its claim ends.
    let mut telling = JoinSet::new();
    loop {
        while let Some(told) = telling.try_join_next() {
            ended(told);
        }
        let room = PLACES.saturating_sub(telling.len()).min(BATCH);
        let claim = app.environment().uuid(app.environment().now());
        let taken = tokio::select! {
            () = stop.cancelled() => return,
            taken = take(&app, claim, pace.lease, room) => taken,
        };
        let taken = taken.unwrap_or_else(|error| {
            complain(&error, "people could not be told; it is tried again");
            Vec::new()
        });
        if !taken.is_empty() {
            for row in taken {
                let app = app.clone();
                telling.spawn(async move { Box::pin(tell(&app, claim, row)).await });
            }
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Some(told) = telling.join_next() => ended(told),
            () = app.until_told() => {}
            _ = tick.tick() => {}
        }
    }
}

fn ended(told: Result<Result<(), Error>, JoinError>) {
    let told = told.unwrap_or_else(|error| Err(Error::Internal(error.into())));
    if let Err(error) = told {
        complain(&error, "somebody could not be told; it is tried again");
    }
}

/// Takes what is due, tells it and waits until all of it is told; gives how many were taken.
#[tracing::instrument(name = "app.notices.turn", skip_all)]
pub async fn turn(app: &App, lease: Duration) -> Result<usize, Error> {
    let claim = app.environment().uuid(app.environment().now());
    let taken = take(app, claim, lease, BATCH).await?;
    let count = taken.len();
    for told in join_all(taken.into_iter().map(|row| tell(app, claim, row))).await {
        ended(Ok(told));
    }
    Ok(count)
}

fn request(app: &App) -> Request {
    Request { caller: None, trace: app.environment().trace(), attempt: None }
}

/// Claims what is due, except what a channel's quiet puts off. Each statement stands for itself: whoever locks several rows takes
/// the channel first.
async fn take(
    app: &App,
    claim: Uuid,
    lease: Duration,
    most: usize,
) -> Result<Vec<Notification>, Error> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let mut taken = Vec::new();
    for row in notices::claim(&mut conn, claim, lease, most).await? {
        let channel = notices::channel(&mut conn, row.channel).await?;
        let gap = channel.is_some_and(|channel| channel.min_gap_seconds > 0);
        if gap && !notices::begin_quiet(&mut conn, row.channel).await? {
            notices::postpone(&mut conn, row.id, claim).await?;
        } else {
            taken.push(row);
        }
    }
    Ok(taken)
}

/// Tells one notice and writes down what came of it.
async fn tell(app: &App, claim: Uuid, row: Notification) -> Result<(), Error> {
    let (gate, parts) = (app.gate()?, app.notices()?);
    let now = app.environment().now();
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    // Removed meanwhile, and its notices with it.
    let Some(channel) = notices::channel(&mut conn, row.channel).await? else { return Ok(()) };
    let reach = super::reach(&mut conn).await?;
    let composed = compose(&mut conn, (&gate.keys, parts), &row, &channel, now).await?;
    drop(conn);
    let notice = match composed {
        Composed::Tell(notice) => notice,
        Composed::Drop(why) => {
            let mut ctx = app.open(&request(app)).await?;
            let ended = Outcome::Ended(NoticeState::Dropped, Some(why));
            notices::finish(ctx.conn(), row.id, claim, ended).await?;
            return ctx.commit().await;
        }
    };
    let result = match open(&channel, &gate.keys, now) {
        Ok(open) => parts.courier.send(&open, &notice, reach, now).await,
        Err(why) => Err(Failed { again: false, after: None, gone: false, why: why.to_owned() }),
    };
    settle(app, claim, &row, &channel, result).await
}

/// A channel with its secrets opened.
fn open(
    channel: &Channel,
    keys: &Keys,
    now: OffsetDateTime,
) -> Result<notify::Channel, &'static str> {
    let read = |sealed: &[u8]| {
        let opened = keys.open(&place(channel.id), sealed).ok();
        opened.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or("the secret cannot be opened")
    };
    let url = || channel.address.parse().map_err(|_| "the address is no address");
    let secret = channel.sealed.as_deref().map(read).transpose()?;
    Ok(match channel.kind {
        ChannelKind::Webhook => {
            let old = channel.old.as_ref().filter(|(_, until)| *until > now);
            let old = old.map(|(sealed, _)| read(sealed)).transpose()?;
            let secrets = secret.iter().chain(&old).map(|text| WebhookSecret::read(text));
            let secrets = secrets.collect::<Result<_, _>>().map_err(|_| "the secret is none")?;
            notify::Channel::Webhook { url: url()?, secrets }
        }
        ChannelKind::Mail => notify::Channel::Mail { to: channel.address.clone() },
        ChannelKind::Ntfy => notify::Channel::Ntfy { url: url()?, token: secret.map(Into::into) },
    })
}

async fn settle(
    app: &App,
    claim: Uuid,
    row: &Notification,
    channel: &Channel,
    result: Result<Sent, Failed>,
) -> Result<(), Error> {
    let mut ctx = app.open(&request(app)).await?;
    if let Ok(trace) = row.trace.parse() {
        ctx.trace = trace;
    }
    let age = Duration::from_millis(row.age_ms.unsigned_abs());
    let (sent, answer) = match &result {
        Ok(sent) => (true, &sent.answer),
        Err(failed) => (false, &failed.why),
    };
    let outcome = match &result {
        Ok(_) => Outcome::Ended(NoticeState::Sent, None),
        Err(failed) => {
            let pause =
                if failed.again { next_attempt(row.attempts, age, failed.after) } else { None };
            match pause {
                Some(pause) => Outcome::Again(
                    i64::try_from(pause.as_millis()).unwrap_or(i64::MAX),
                    &failed.why,
                ),
                None => Outcome::Ended(NoticeState::Failed, Some(&failed.why)),
            }
        }
    };
    let now = ctx.now;
    let gone = match &result {
        // The channel before its notices, as everybody locks them.
        Err(Failed { gone: true, why, .. }) => {
            notices::disable(ctx.conn(), channel.id, why, now).await?
        }
        Ok(_) | Err(_) => false,
    };
    // Who lost the claim has told it all the same; whoever has it now says what became of it.
    if !notices::finish(ctx.conn(), row.id, claim, outcome).await? {
        return Ok(());
    }
    notices::record_attempt(ctx.conn(), row.id, row.tries, sent, answer).await?;
    if let Outcome::Ended(NoticeState::Failed, _) = outcome {
        let data = json!({
            "notification_id": row.id, "channel_id": channel.id, "kind": row.kind, "reason": answer,
        });
        ctx.record(owned(EventKind::NotificationFailed, data, channel)).await?;
    }
    if gone {
        notices::give_up(ctx.conn(), channel.id, "the channel is gone").await?;
        let data = json!({ "channel_id": channel.id, "kind": channel.kind, "change": "gone" });
        ctx.record(owned(EventKind::NotificationChannelSet, data, channel)).await?;
    }
    app.commit(ctx).await
}

fn owned(kind: EventKind, data: serde_json::Value, channel: &Channel) -> Told {
    let told = Told::new(kind, data);
    match channel.owner {
        Owner::User(user) => told.about(user),
        Owner::Project(project) => told.project(project),
        Owner::Installation => told,
    }
}
