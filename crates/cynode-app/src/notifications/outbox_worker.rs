//! Outbox worker: claims due notifications with a lease and delivers them. Any number of processes may run it; an
//! expired lease returns the notification to the queue.

use std::time::Duration;

use cynode_core::{
    events::EventKind,
    notifications::{ChannelKind, NotificationState, next_attempt_delay},
};
use cynode_db::notifications::{
    self, ChannelOwner, NotificationChannel, NotificationOutcome, NotificationRecord, web_push,
};
use cynode_notify::{self as notify, DeliveryError, DeliveryReceipt, WebhookSecret};
use futures::future::join_all;
use serde_json::json;
use time::OffsetDateTime;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    NotificationParts,
    compose::{ComposeOutcome, compose_notification},
    web_push::open_push_target,
};
use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{
        context::EventDraft, error::log_background_error, keys::InstallationKeys, operation,
    },
};

/// Maximum number of notifications per batch. They are delivered concurrently.
const NOTIFICATION_BATCH_SIZE: usize = 16;

/// Maximum number of concurrent deliveries per process.
const MAX_CONCURRENT_DELIVERIES: usize = 32;

/// Timing of the outbox worker.
#[derive(Clone, Copy, Debug)]
pub struct OutboxTiming {
    /// Poll interval without a wake-up.
    pub every: Duration,
    /// Lease of a claimed notification. It must be longer than a delivery attempt.
    pub lease: Duration,
}

impl Default for OutboxTiming {
    fn default() -> Self {
        Self { every: Duration::from_secs(1), lease: Duration::from_secs(30) }
    }
}

/// Delivers notifications until shutdown. A failure is logged and retried in the next round. Each slot is freed on
/// its own, so a slow receiver delays nobody else.
#[operation]
pub async fn run_outbox_worker(app: App, pace: OutboxTiming, stop: CancellationToken) {
    // Deliveries still in progress at shutdown are aborted. They return to the queue when their leases expire.
    let mut telling = JoinSet::new();
    loop {
        while let Some(told) = telling.try_join_next() {
            log_delivery_failure(told);
        }
        let room =
            MAX_CONCURRENT_DELIVERIES.saturating_sub(telling.len()).min(NOTIFICATION_BATCH_SIZE);
        let claim = app.environment().new_uuid(app.environment().now());
        let taken = tokio::select! {
            () = stop.cancelled() => return,
            taken = claim_due(&app, claim, pace.lease, room) => taken,
        };
        let taken = taken.unwrap_or_else(|error| {
            log_background_error(
                "notification.claim_failed",
                &error,
                "due notifications could not be claimed; it is retried",
            );
            Vec::new()
        });
        if !taken.is_empty() {
            for row in taken {
                let app = app.clone();
                telling
                    .spawn(async move { Box::pin(deliver_notification(&app, claim, row)).await });
            }
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Some(told) = telling.join_next() => log_delivery_failure(told),
            () = app.until_notification_due() => {}
            () = app.until_poll_due(pace.every) => {}
        }
    }
}

fn log_delivery_failure(told: Result<Result<(), Error>, JoinError>) {
    let told = told.unwrap_or_else(|error| Err(Error::Internal(error.into())));
    if let Err(error) = told {
        log_background_error(
            "notification.delivery_failed",
            &error,
            "a notification could not be delivered; it is retried",
        );
    }
}

/// Claims due notifications, delivers them and waits for all. Returns the number of claimed ones.
#[tracing::instrument(name = "app.notices.deliver_due", skip_all)]
#[operation]
pub async fn deliver_due(app: &App, lease: Duration) -> Result<usize, Error> {
    let claim = app.environment().new_uuid(app.environment().now());
    let taken = claim_due(app, claim, lease, NOTIFICATION_BATCH_SIZE).await?;
    let count = taken.len();
    for told in join_all(taken.into_iter().map(|row| deliver_notification(app, claim, row))).await {
        log_delivery_failure(Ok(told));
    }
    Ok(count)
}

fn system_request(app: &App) -> OperationRequest {
    OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None }
}

/// Claims due notifications, except those that a channel's quiet hours defer. Each statement commits by itself. Lock
/// order: the channel before its notifications.
async fn claim_due(
    app: &App,
    claim: Uuid,
    lease: Duration,
    most: usize,
) -> Result<Vec<NotificationRecord>, Error> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut conn = app.conn().await?;
    let mut taken = Vec::new();
    for row in notifications::claim_notifications(&mut conn, claim, lease, most).await? {
        let channel = notifications::get_channel(&mut conn, row.channel).await?;
        let gap = channel.is_some_and(|channel| channel.min_gap_seconds > 0);
        if gap && !notifications::start_quiet_period(&mut conn, row.channel).await? {
            notifications::postpone_notification(&mut conn, row.id, claim).await?;
        } else {
            taken.push(row);
        }
    }
    Ok(taken)
}

/// Delivers one notification and stores the outcome.
async fn deliver_notification(
    app: &App,
    claim: Uuid,
    row: NotificationRecord,
) -> Result<(), Error> {
    let (gate, parts) = (app.gateway_parts()?, app.notification_parts()?);
    let now = app.environment().now();
    let mut conn = app.conn().await?;
    // The channel was deleted meanwhile with its notifications.
    let Some(channel) = notifications::get_channel(&mut conn, row.channel).await? else {
        return Ok(());
    };
    let egress = super::load_egress_scope(&mut conn).await?;
    let composed =
        compose_notification(&mut conn, (&gate.keys, parts), &row, &channel, now).await?;
    let push_key = match channel.kind {
        ChannelKind::WebPush => web_push::find_web_push_key(&mut conn).await?,
        ChannelKind::Webhook | ChannelKind::Mail | ChannelKind::Ntfy => None,
    };
    drop(conn);
    let notice = match composed {
        ComposeOutcome::Tell(notice) => notice,
        ComposeOutcome::Drop(why) => {
            let mut ctx = app.begin_transaction(&system_request(app)).await?;
            let ended = NotificationOutcome::Ended(NotificationState::Dropped, Some(why));
            notifications::finish_notification(ctx.conn(), row.id, claim, ended).await?;
            return ctx.commit().await;
        }
    };
    let result = match open_channel(&channel, (&gate.keys, parts), push_key.as_deref(), now) {
        Ok(open) => parts.courier.send_notification(&open, &notice, egress, now).await,
        Err(why) => {
            Err(DeliveryError { again: false, after: None, gone: false, why: why.to_owned() })
        }
    };
    settle_delivery(app, claim, &row, &channel, result).await
}

/// Unseals the secrets of a channel.
fn open_channel(
    channel: &NotificationChannel,
    (keys, parts): (&InstallationKeys, &NotificationParts),
    push_key: Option<&[u8]>,
    now: OffsetDateTime,
) -> Result<notify::DeliveryChannel, &'static str> {
    let read = |sealed: &[u8]| {
        keys.unseal_channel_secret(channel.id, sealed).map_err(|_| "the secret cannot be opened")
    };
    let url = || channel.address.parse().map_err(|_| "the address is no address");
    let secret = channel.sealed.as_deref().map(read).transpose()?;
    Ok(match channel.kind {
        ChannelKind::Webhook => {
            let old = channel.old.as_ref().filter(|(_, until)| *until > now);
            let old = old.map(|(sealed, _)| read(sealed)).transpose()?;
            let secrets = secret.iter().chain(&old).map(|text| WebhookSecret::parse_secret(text));
            let secrets = secrets.collect::<Result<_, _>>().map_err(|_| "the secret is none")?;
            notify::DeliveryChannel::Webhook { url: url()?, secrets }
        }
        ChannelKind::Mail => notify::DeliveryChannel::Mail { to: channel.address.clone() },
        ChannelKind::Ntfy => {
            notify::DeliveryChannel::Ntfy { url: url()?, token: secret.map(Into::into) }
        }
        ChannelKind::WebPush => {
            let target = open_push_target(keys, parts, url()?, secret.as_deref(), push_key)?;
            notify::DeliveryChannel::WebPush(Box::new(target))
        }
    })
}

/// Removes the channel of a browser whose subscription has ended, with its notifications: it never works again, and the
/// browser makes a new one.
async fn end_subscription(
    app: &App,
    mut ctx: Ctx,
    channel: &NotificationChannel,
) -> Result<(), Error> {
    // Lock order: the channel before the epoch.
    if notifications::lock_channel(ctx.conn(), channel.id).await?.is_none() {
        return Ok(());
    }
    ctx.invalidate_models().await?;
    notifications::remove_channel(ctx.conn(), channel.id).await?;
    let data = json!({ "channel_id": channel.id, "kind": channel.kind, "change": "gone" });
    ctx.record_event(to_channel_event(EventKind::NotificationChannelSet, data, channel)).await?;
    app.commit_operation(ctx).await
}

async fn settle_delivery(
    app: &App,
    claim: Uuid,
    row: &NotificationRecord,
    channel: &NotificationChannel,
    result: Result<DeliveryReceipt, DeliveryError>,
) -> Result<(), Error> {
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    if let Ok(trace) = row.trace.parse() {
        ctx.trace = trace;
    }
    let ended = matches!(&result, Err(failed) if failed.gone);
    if ended && channel.kind == ChannelKind::WebPush {
        return end_subscription(app, ctx, channel).await;
    }
    let age = Duration::from_millis(row.age_ms.unsigned_abs());
    let (sent, answer) = match &result {
        Ok(sent) => (true, &sent.answer),
        Err(failed) => (false, &failed.why),
    };
    let outcome = match &result {
        Ok(_) => NotificationOutcome::Ended(NotificationState::Sent, None),
        Err(failed) => {
            let pause = if failed.again {
                next_attempt_delay(row.attempts, age, failed.after)
            } else {
                None
            };
            match pause {
                Some(pause) => NotificationOutcome::Again(
                    i64::try_from(pause.as_millis()).unwrap_or(i64::MAX),
                    &failed.why,
                ),
                None => NotificationOutcome::Ended(NotificationState::Failed, Some(&failed.why)),
            }
        }
    };
    let now = ctx.now;
    let gone = match &result {
        // Lock order: the channel before its notifications.
        Err(DeliveryError { gone: true, why, .. }) => {
            notifications::disable_channel(ctx.conn(), channel.id, why, now).await?
        }
        Ok(_) | Err(_) => false,
    };
    // The lease was lost after the delivery. The present holder records the outcome.
    if !notifications::finish_notification(ctx.conn(), row.id, claim, outcome).await? {
        return Ok(());
    }
    notifications::record_attempt(ctx.conn(), row.id, row.tries, sent, answer).await?;
    if let NotificationOutcome::Ended(NotificationState::Failed, _) = outcome {
        let data = json!({
            "notification_id": row.id, "channel_id": channel.id, "kind": row.kind, "reason": answer,
        });
        ctx.record_event(to_channel_event(EventKind::NotificationFailed, data, channel)).await?;
    }
    if gone {
        notifications::fail_pending_notifications(ctx.conn(), channel.id, "the channel is gone")
            .await?;
        let data = json!({ "channel_id": channel.id, "kind": channel.kind, "change": "gone" });
        ctx.record_event(to_channel_event(EventKind::NotificationChannelSet, data, channel))
            .await?;
    }
    app.commit_operation(ctx).await
}

fn to_channel_event(
    kind: EventKind,
    data: serde_json::Value,
    channel: &NotificationChannel,
) -> EventDraft {
    let told = EventDraft::new(kind, data);
    match channel.owner {
        ChannelOwner::User(user) => told.with_subject(user),
        ChannelOwner::Project(project) => told.with_project(project),
        ChannelOwner::Installation => told,
    }
}
