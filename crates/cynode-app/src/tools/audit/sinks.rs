//! Export of audit records to sinks: receivers outside of the installation.
//!
//! A position per sink and chain says what was delivered. It moves after the receiver has taken a batch, under a lease: a receiver gets
//! every record at least once, in the order of its chain. A sink that is down keeps its position, and retention keeps the records.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration as Interval,
};

pub use cynode_audit_export::AuditExporter;
use cynode_audit_export::{DELIVERY_TIMEOUT, ExportBatch, ExportError, SinkTarget};
use cynode_core::{
    events::EventKind,
    metric_specs::{AUDIT_EXPORT_FAILURES, AUDIT_EXPORT_LAG_RECORDS, AUDIT_EXPORT_LAG_SECONDS},
    roles::UserRole,
    sync::lock_unpoisoned,
};
use cynode_db::{
    Conn, DbError,
    tools::{
        audit,
        audit_export::{self, AuditSinkRecord, PendingChain, SinkLag, SinkPosition},
    },
};
use cynode_wire::tools::audit::{AuditSinkView, SetAuditSink};
use secrecy::SecretString;
use serde_json::json;
use time::{Duration, OffsetDateTime};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{privileged, rows};
use crate::{
    App, Ctx, Error,
    platform::{
        context::EventDraft, error::log_background_error, keys::InstallationKeys, operation,
    },
};

/// Interval at which sinks are looked at.
const EXPORT_INTERVAL: Interval = Interval::from_secs(1);

/// Number of intervals after which an installation without sinks looks for one.
const MAX_IDLE_INTERVALS: u32 = 10;

/// Maximum number of records of one delivery.
const EXPORT_BATCH: i64 = 500;

/// Maximum number of deliveries to a sink before the lease is looked at again.
const MAX_DELIVERIES: usize = 20;

/// Maximum number of chains that are looked at for a sink.
const MAX_PENDING_CHAINS: i64 = 50;

/// Lifetime of the lease of a sink. A delivery takes less.
const SINK_LEASE_TTL: Duration = Duration::minutes(2);

/// Interval of signed heads.
const HEAD_INTERVAL: Duration = Duration::minutes(1);

/// Maximum delay after a failure. The first delay is a second, and each is twice the one before. It is not longer than the interval of
/// heads: a receiver that refuses records gets every head that it takes.
const MAX_RETRY_DELAY: Duration = HEAD_INTERVAL;

/// Maximum number of sinks.
const MAX_SINKS: usize = 20;

/// Returns the associated data of the sealed secret of a sink.
pub(crate) fn sink_associated_data(id: Uuid) -> Vec<u8> {
    [b"audit-sink/".as_slice(), id.as_bytes()].concat()
}

/// Lists the sinks with their lag.
#[tracing::instrument(name = "app.audit.list_sinks", skip_all)]
#[operation]
pub async fn list_sinks(ctx: &mut Ctx) -> Result<Vec<AuditSinkView>, Error> {
    ctx.require_role(UserRole::Admin)?;
    let now = ctx.now;
    let mut views = Vec::new();
    for sink in audit_export::list_sinks(ctx.conn()).await? {
        let lag = audit_export::measure_sink_lag(ctx.conn(), sink.id).await?;
        views.push(to_sink_view(sink, lag, now));
    }
    Ok(views)
}

/// Creates or changes a sink. The secret belongs to its target: another target needs it again.
#[tracing::instrument(name = "app.audit.set_sink", skip_all)]
#[operation]
pub async fn set_sink(
    ctx: &mut Ctx,
    keys: &InstallationKeys,
    name: String,
    body: SetAuditSink,
) -> Result<AuditSinkView, Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    let target: SinkTarget = serde_json::from_value(body.target)
        .map_err(|error| Error::Invalid(format!("`target`: {error}")))?;
    target.validate_target().map_err(|error| Error::Invalid(error.to_string()))?;
    let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= 63
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if !is_name {
        let rule = "a sink's name has 1 to 63 of a-z, 0-9 and `-`, a letter first";
        return Err(Error::Invalid(rule.into()));
    }
    let stored = audit_export::list_sinks(ctx.conn()).await?;
    let before = stored.iter().find(|sink| sink.name == name);
    if before.is_none() && stored.len() >= MAX_SINKS {
        return Err(Error::LimitExceeded(format!("there are {MAX_SINKS} audit sinks already")));
    }
    let same_target = before
        .and_then(|sink| serde_json::from_value::<SinkTarget>(sink.target.clone()).ok())
        .is_some_and(|before| before == target);
    let id = before.map_or_else(|| ctx.new_uuid(), |sink| sink.id);
    let sealed = match (&body.secret, before) {
        (Some(secret), _) => {
            check_secret(&target, &secret.0)?;
            let place = sink_associated_data(id);
            Some(keys.seal_secret(ctx.environment(), &place, secret.0.as_bytes())?)
        }
        (None, Some(sink)) if same_target => sink.sealed.clone(),
        (None, _) => None,
    };
    if target.needs_secret() && sealed.is_none() {
        return Err(Error::Invalid("`secret` is missing: it belongs to this target".into()));
    }
    let now = ctx.now;
    let sink = AuditSinkRecord {
        id,
        name,
        kind: target.kind_name().to_owned(),
        target: serde_json::to_value(&target).map_err(|error| Error::Internal(error.into()))?,
        sealed,
        enabled: body.enabled.unwrap_or(true),
        created_by: before.map_or(caller.user, |sink| sink.created_by),
        created_at: before.map_or(now, |sink| sink.created_at),
        updated_at: now,
        sent_at: before.and_then(|sink| sink.sent_at),
        heads_sent_at: before.and_then(|sink| sink.heads_sent_at),
        failures: 0,
        last_error: None,
        retry_at: None,
    };
    audit_export::set_sink(ctx.conn(), &sink).await?;
    if sink.sealed.is_some() {
        // Its secret is redacted from now on.
        ctx.invalidate_models().await?;
    }
    let data = json!({
        "sink": sink.name, "kind": sink.kind, "enabled": sink.enabled,
        "change": if before.is_some() { "updated" } else { "created" },
    });
    ctx.record_event(EventDraft::new(EventKind::AuditSinkSet, data)).await?;
    let lag = audit_export::measure_sink_lag(ctx.conn(), id).await?;
    Ok(to_sink_view(sink, lag, now))
}

fn check_secret(target: &SinkTarget, secret: &str) -> Result<(), Error> {
    match target {
        SinkTarget::Webhook { .. } => cynode_notify::WebhookSecret::parse_secret(secret)
            .map(drop)
            .map_err(|error| Error::Invalid(format!("`secret`: {error}"))),
        SinkTarget::ObjectStore { .. } => {
            let visible = secret.bytes().all(|b| (0x21..0x7f).contains(&b));
            if (1..=256).contains(&secret.len()) && visible {
                Ok(())
            } else {
                Err(Error::Invalid("`secret` has 1 to 256 visible ASCII characters".into()))
            }
        }
        SinkTarget::Syslog { .. } => Err(Error::Invalid("syslog has no `secret`".into())),
    }
}

/// Deletes a sink with its position.
#[tracing::instrument(name = "app.audit.delete_sink", skip_all)]
#[operation]
pub async fn delete_sink(ctx: &mut Ctx, name: &str) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin)?;
    if !audit_export::delete_sink(ctx.conn(), name).await? {
        return Err(Error::not_found("audit sink", name));
    }
    let data = json!({ "sink": name, "change": "deleted" });
    ctx.record_event(EventDraft::new(EventKind::AuditSinkSet, data)).await
}

fn to_sink_view(sink: AuditSinkRecord, lag: SinkLag, now: OffsetDateTime) -> AuditSinkView {
    let age = lag.oldest_at.map_or(Duration::ZERO, |oldest| now - oldest);
    AuditSinkView {
        name: sink.name,
        kind: sink.kind,
        target: sink.target,
        enabled: sink.enabled,
        updated_at: sink.updated_at,
        sent_at: sink.sent_at,
        heads_sent_at: sink.heads_sent_at,
        lag_records: lag.records.unsigned_abs(),
        lag_seconds: u64::try_from(age.whole_seconds()).unwrap_or_default(),
        failures: sink.failures.unsigned_abs(),
        error: sink.last_error,
        retry_at: sink.retry_at,
    }
}

/// Delivers records to every sink until shutdown. A sink that does not answer delays no other.
#[operation]
pub async fn run_audit_export(app: App, stop: CancellationToken) {
    let exporter = match AuditExporter::new() {
        Ok(exporter) => exporter,
        Err(error) => {
            log_background_error("audit.export_failed", &error, "audit records are not exported");
            return;
        }
    };
    let mut turn = tokio::time::interval(EXPORT_INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (deliveries, busy) = (TaskTracker::new(), Arc::new(Mutex::new(HashSet::new())));
    let mut idle = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = turn.tick() => {}
        }
        if idle > 0 {
            idle -= 1;
            continue;
        }
        let due = match list_due_sinks(&app).await {
            Ok(due) => due,
            Err(error) => {
                log_background_error("audit.export_failed", &error, "the sinks cannot be read");
                continue;
            }
        };
        if due.is_empty() {
            idle = MAX_IDLE_INTERVALS;
        }
        for sink in due {
            if !lock_unpoisoned(&busy).insert(sink.id) {
                continue;
            }
            let (app, exporter, busy) = (app.clone(), exporter.clone(), busy.clone());
            deliveries.spawn(async move {
                let id = sink.id;
                export_to_sink(&app, &exporter, sink).await;
                lock_unpoisoned(&busy).remove(&id);
            });
        }
    }
    deliveries.close();
    deliveries.wait().await;
}

async fn list_due_sinks(app: &App) -> Result<Vec<AuditSinkRecord>, Error> {
    let now = app.environment().now();
    let mut conn = app.conn().await?;
    let mut sinks = audit_export::list_sinks(&mut conn).await?;
    sinks.retain(|sink| sink.enabled && sink.retry_at.is_none_or(|at| at <= now));
    Ok(sinks)
}

/// Delivers what is pending to every sink, one after the other. Returns the number of records.
#[tracing::instrument(name = "app.audit.export_once", skip_all)]
#[operation]
pub async fn export_once(app: &App, exporter: &AuditExporter) -> Result<u64, Error> {
    let mut delivered = 0;
    for sink in list_due_sinks(app).await? {
        delivered += export_to_sink(app, exporter, sink).await;
    }
    Ok(delivered)
}

/// Delivers what is pending to a sink, and records a failure. Returns the number of records.
async fn export_to_sink(app: &App, exporter: &AuditExporter, sink: AuditSinkRecord) -> u64 {
    let (id, name) = (sink.id, sink.name.clone());
    let holder = app.environment().new_uuid(app.environment().now());
    let failures = sink.failures;
    let mut delivery = SinkDelivery { app, exporter, sink, holder, delivered: 0 };
    let result = delivery.run_deliveries().await;
    let delivered = delivery.delivered;
    if let Err(failure) = result {
        metrics::counter!(AUDIT_EXPORT_FAILURES.name, "sink" => name.clone()).increment(1);
        log_background_error(
            "audit.export_failed",
            &failure,
            "audit records could not be delivered; they are kept and delivered later",
        );
        let retry_at = app.environment().now() + retry_delay(failures);
        let noted = async {
            let mut conn = app.conn().await?;
            let text = failure.to_string();
            audit_export::record_delivery_failure(&mut conn, id, &text, retry_at).await
        };
        if let Err(error) = noted.await {
            log_background_error("audit.export_failed", &error, "a failure cannot be recorded");
        }
    }
    let measured = async {
        let mut conn = app.conn().await?;
        audit_export::release_sink(&mut conn, id, holder).await?;
        audit_export::measure_sink_lag(&mut conn, id).await
    };
    if let Ok(lag) = measured.await {
        let now = app.environment().now();
        let age = lag.oldest_at.map_or(Duration::ZERO, |oldest| now - oldest);
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        let records = lag.records as f64;
        metrics::gauge!(AUDIT_EXPORT_LAG_RECORDS.name, "sink" => name.clone()).set(records);
        metrics::gauge!(AUDIT_EXPORT_LAG_SECONDS.name, "sink" => name).set(age.as_seconds_f64());
    }
    delivered
}

/// Returns the delay after a failure that follows `failures` others.
fn retry_delay(failures: i32) -> Duration {
    let doublings = u32::try_from(failures).unwrap_or_default().min(16);
    Duration::seconds(1_i64 << doublings).min(MAX_RETRY_DELAY)
}

/// Reason why records were not delivered.
#[derive(Debug, thiserror::Error)]
enum SinkFailure {
    /// The receiver did not take them.
    #[error(transparent)]
    Delivery(#[from] ExportError),
    /// The installation could not read or note them.
    #[error("the installation could not read its records")]
    Own(#[from] Error),
}

impl From<DbError> for SinkFailure {
    fn from(error: DbError) -> Self {
        Self::Own(error.into())
    }
}

/// A round of deliveries to one sink.
struct SinkDelivery<'a> {
    app: &'a App,
    exporter: &'a AuditExporter,
    sink: AuditSinkRecord,
    /// Fencing token: a process that lost the lease moves no position.
    holder: Uuid,
    delivered: u64,
}

impl SinkDelivery<'_> {
    async fn run_deliveries(&mut self) -> Result<(), SinkFailure> {
        let (target, secret) = self.open_target()?;
        for _ in 0..MAX_DELIVERIES {
            if !self.take_lease().await? {
                return Ok(());
            }
            let mut conn = self.app.conn().await?;
            let chains =
                audit_export::list_pending_chains(&mut conn, self.sink.id, MAX_PENDING_CHAINS)
                    .await?;
            drop(conn);
            let mut progress = false;
            for chain in &chains {
                // Heads wait for no records: they show an attack on those.
                self.deliver_heads(&target, secret.as_ref()).await?;
                // Each delivery takes less than the lease lasts.
                if !self.take_lease().await? {
                    return Ok(());
                }
                progress |= self.deliver_chain(&target, secret.as_ref(), chain).await?;
            }
            if !progress {
                break;
            }
        }
        self.deliver_heads(&target, secret.as_ref()).await?;
        let mut conn = self.app.conn().await?;
        Ok(audit_export::clear_delivery_failures(&mut conn, self.sink.id).await?)
    }

    fn open_target(&self) -> Result<(SinkTarget, Option<SecretString>), SinkFailure> {
        let target = serde_json::from_value(self.sink.target.clone())
            .map_err(|error| Error::Internal(error.into()))?;
        let keys = self.app.installation_keys()?;
        let place = sink_associated_data(self.sink.id);
        let secret = self.sink.sealed.as_ref().map(|sealed| keys.unseal_text(&place, sealed));
        Ok((target, secret.transpose()?))
    }

    async fn take_lease(&self) -> Result<bool, SinkFailure> {
        let now = self.app.environment().now();
        let mut conn = self.app.conn().await?;
        let until = now + SINK_LEASE_TTL;
        Ok(audit_export::lease_sink(&mut conn, self.sink.id, self.holder, now, until).await?)
    }

    /// Delivers the next records of a chain. Returns whether there were any, or the chain was finished.
    async fn deliver_chain(
        &mut self,
        target: &SinkTarget,
        secret: Option<&SecretString>,
        chain: &PendingChain,
    ) -> Result<bool, SinkFailure> {
        let mut conn = self.app.conn().await?;
        let page =
            audit::list_chain_records(&mut conn, chain.chain, chain.next_seq, EXPORT_BATCH).await?;
        let next_seq = page.last().map_or(chain.next_seq, |row| row.seq + 1);
        // Records that were removed after their retention cannot be delivered any more.
        let finished = chain.pruned || chain.closed_size == Some(next_seq);
        if page.is_empty() && !finished {
            return Ok(false);
        }
        let heads =
            if finished { closing_heads(&mut conn, chain.chain).await? } else { Vec::new() };
        let details = privileged::load_event_details(&mut conn, &page).await?;
        drop(conn);
        let unreadable = || DbError::Corrupt { table: "audit_records", column: "hash" };
        let records = page.into_iter().map(|row| rows::to_record(row).ok_or_else(unreadable));
        let batch = ExportBatch {
            records: records.collect::<Result<_, _>>()?,
            heads,
            registry_head: String::new(),
            details,
        };
        let count = batch.records.len() as u64;
        if count > 0 || !batch.heads.is_empty() {
            let now = self.app.environment().now();
            self.exporter.deliver_batch(target, secret, &batch, now).await?;
        }
        let (sink, holder, chain) = (self.sink.id, self.holder, chain.chain);
        let position = SinkPosition { sink, holder, chain, next_seq, finished };
        let mut tx = self.app.begin().await?;
        if !audit_export::set_sink_position(&mut tx, position).await? {
            // Another process has the lease and delivers these records too.
            return Err(Error::Fenced("another process delivers to this sink").into());
        }
        audit_export::record_delivery(&mut tx, sink, self.app.environment().now()).await?;
        tx.commit().await.map_err(DbError::from)?;
        self.delivered += count;
        Ok(true)
    }

    /// Delivers the newest signed heads, once a minute.
    async fn deliver_heads(
        &mut self,
        target: &SinkTarget,
        secret: Option<&SecretString>,
    ) -> Result<(), SinkFailure> {
        let now = self.app.environment().now();
        if self.sink.heads_sent_at.is_some_and(|sent| now - sent < HEAD_INTERVAL) {
            return Ok(());
        }
        let mut conn = self.app.conn().await?;
        let batch = load_newest_heads(&mut conn).await?;
        drop(conn);
        if !batch.heads.is_empty() {
            self.exporter.deliver_batch(target, secret, &batch, now).await?;
            let mut conn = self.app.conn().await?;
            audit_export::record_heads_delivery(&mut conn, self.sink.id, now).await?;
            self.sink.heads_sent_at = Some(now);
        }
        Ok(())
    }
}

/// Returns the head that closes a chain.
async fn closing_heads(
    conn: &mut Conn,
    chain: Uuid,
) -> Result<Vec<cynode_audit::AuditCheckpoint>, DbError> {
    let heads = audit::list_audit_checkpoints(conn, chain).await?;
    Ok(heads.iter().filter(|head| head.closed).map(rows::to_checkpoint).collect())
}

/// Returns the newest signed heads of every chain that is not closed and of the newest closed ones, and the head of the list of chains.
async fn load_newest_heads(conn: &mut Conn) -> Result<ExportBatch, DbError> {
    let registry_head = audit::last_chain(conn).await?.map_or_else(String::new, |row| {
        let head = rows::to_chain_start(&row).registry_head();
        format!("{}:{}", head.number, data_encoding::HEXLOWER.encode(&head.link))
    });
    let chains = audit_export::list_head_chains(conn, MAX_CLOSED_HEADS).await?;
    let heads = audit::list_newest_checkpoints(conn, &chains).await?;
    let heads = heads.iter().map(rows::to_checkpoint).collect();
    Ok(ExportBatch { heads, registry_head, ..ExportBatch::default() })
}

/// Maximum number of closed chains whose heads are delivered every minute.
const MAX_CLOSED_HEADS: i64 = 20;

/// The lease outlives a delivery.
const _: () =
    assert!(SINK_LEASE_TTL.whole_seconds().unsigned_abs() > 2 * DELIVERY_TIMEOUT.as_secs());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_after_failures_doubles_and_is_bounded() {
        assert_eq!(retry_delay(0), Duration::seconds(1));
        assert_eq!(retry_delay(3), Duration::seconds(8));
        assert_eq!(retry_delay(i32::MAX), MAX_RETRY_DELAY);
    }
}
