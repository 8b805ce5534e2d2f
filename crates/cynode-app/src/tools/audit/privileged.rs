//! Privileged events in chains of audit records: logins, changes of roles, settings, keys and rules, deletions.
//!
//! An event is queued in the transaction that causes it. This module takes it from the queue and appends a record to a chain in the
//! database, in one transaction: killed anywhere, no event is lost and none is recorded twice. The records are like those of tool calls,
//! so verification, proofs, heads and export cover both.

use std::{collections::HashMap, time::Duration as Interval};

use cynode_audit::{
    AgentFacts, AuditCheckpoint, AuditEntry, AuditRecord, KeyedDigest, NewChain, Outcome, Phase,
    Verdict, genesis_hash, truncate_to_micros,
};
use cynode_audit_export::EventDetail;
use cynode_core::{
    events::{EventKind, EventPosition},
    ids::{ProjectId, TaskId, UserId},
    metric_specs::{AUDIT_EVENT_QUEUE_SECONDS, AUDIT_UNFIT_EVENTS},
};
use cynode_db::{
    Conn, DbError,
    platform::backup,
    tools::{
        audit::{self, AuditChainRow, AuditRow},
        audit_export::{self, PrivilegedEvent, PrivilegedKinds, UnrecordedEvent},
    },
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime, UtcOffset};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{load_tree, register_chain, rows};
use crate::{
    App, Error,
    platform::{error::log_background_error, keys::InstallationKeys, operation},
};

/// Method of the records of privileged events.
pub const PRIVILEGED_METHOD: &str = "events/privileged";

/// Writer of the chains of privileged events. All replicas write the same chain, one after the other.
pub(super) const PRIVILEGED_WRITER: &str = "privileged events";

/// Interval at which the queue is read when this process has recorded events.
const CHAIN_INTERVAL: Interval = Interval::from_secs(1);

/// Number of intervals after which the queue is read anyway: another process may have recorded events, or a head is due.
const MAX_IDLE_INTERVALS: u32 = 5;

/// Reason of the record of an event that cannot be recorded as it is.
const UNFIT_REASON: &str = "event.unfit";

/// Tables with a partition for each month.
const EVENT_TABLE: &str = "events";
const RECORD_TABLE: &str = "audit_records";

/// Maximum number of events without a record that a verification names.
const MAX_UNRECORDED_EVENTS: i64 = 20;

/// Maximum difference between the clocks of two machines.
const MAX_CLOCK_SKEW: Duration = Duration::minutes(1);

/// Maximum number of events per transaction.
const EVENT_BATCH: i64 = 500;

/// Maximum number of records of a chain.
const MAX_CHAIN_RECORDS: i64 = 10_000;

/// Maximum age of a chain with records: retention can remove only a chain that has ended.
const MAX_CHAIN_AGE: Duration = Duration::hours(24);

/// Maximum number of records without a signed head, and maximum time until they have one.
const MAX_UNSIGNED_RECORDS: i64 = 1000;
const MAX_UNSIGNED_TIME: Duration = Duration::minutes(1);

/// Appends privileged events to their chain until shutdown. A failure is logged and retried.
#[operation]
pub async fn run_privileged_chain(app: App, stop: CancellationToken) {
    let mut turn = tokio::time::interval(CHAIN_INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut commits, mut idle) = (app.subscribe_commits(), MAX_IDLE_INTERVALS);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        let recorded = commits.has_changed().unwrap_or(true);
        if !recorded && idle < MAX_IDLE_INTERVALS {
            idle += 1;
            continue;
        }
        commits.mark_unchanged();
        idle = 0;
        if let Err(error) = chain_privileged_events(&app).await {
            let what = "privileged events could not be recorded; they stay queued";
            log_background_error("audit.privileged_chain_failed", &error, what);
        }
        match measure_queue_age(&app).await {
            Ok(age) => metrics::gauge!(AUDIT_EVENT_QUEUE_SECONDS.name).set(age.as_seconds_f64()),
            Err(error) => {
                let what = "the queue of privileged events cannot be measured";
                log_background_error("audit.privileged_chain_failed", &error, what);
            }
        }
    }
}

/// Returns the age of the oldest event that is in no chain yet.
async fn measure_queue_age(app: &App) -> Result<Duration, Error> {
    let mut conn = app.conn().await?;
    let backlog = audit_export::measure_event_queue(&mut conn).await?;
    let now = app.environment().now();
    Ok(backlog.oldest_at.map_or(Duration::ZERO, |oldest| (now - oldest).max(Duration::ZERO)))
}

/// The open chain of privileged events.
struct PrivilegedChain {
    chain: Uuid,
    started_at: OffsetDateTime,
    next_seq: i64,
    head: [u8; 32],
}

/// Appends queued events to the chain, and signs its head when that is due. Returns the number of events. Does nothing while another
/// process does it.
#[tracing::instrument(name = "app.audit.chain_privileged_events", skip_all)]
#[operation]
pub async fn chain_privileged_events(app: &App) -> Result<u64, Error> {
    let keys = app.installation_keys()?;
    let now = app.environment().now();
    let mut tx = app.begin().await?;
    if !audit_export::try_lock_privileged_chain(&mut tx).await? {
        return Ok(0);
    }
    let events = audit_export::list_queued_events(&mut tx, EVENT_BATCH).await?;
    let mut open = load_open_chain(&mut tx).await?;
    if let Some(chain) = &open
        && (chain.next_seq >= MAX_CHAIN_RECORDS
            || now - chain.started_at >= MAX_CHAIN_AGE
            || is_of_lost_installation(&mut tx, chain).await?)
    {
        sign_head(&mut tx, chain, &keys, now, true).await?;
        open = None;
    }
    if !events.is_empty() {
        let mut chain = match open.take() {
            Some(chain) => chain,
            None => begin_chain(app, &mut tx, &keys, now).await?,
        };
        append_events(&mut tx, &mut chain, &events, now).await?;
        open = Some(chain);
    }
    if let Some(chain) = &open
        && is_head_due(&mut tx, chain, now).await?
    {
        sign_head(&mut tx, chain, &keys, now, false).await?;
    }
    tx.commit().await.map_err(DbError::from)?;
    Ok(events.len() as u64)
}

/// Returns whether a chain was begun before the installation was restored. The lost installation may have gone on with it, and what it
/// wrote may be exported: two records of one place would look like a forgery.
async fn is_of_lost_installation(conn: &mut Conn, chain: &PrivilegedChain) -> Result<bool, Error> {
    let epoch = backup::get_epoch(conn).await?;
    Ok(epoch.epoch > 1 && chain.started_at < epoch.began_at)
}

async fn load_open_chain(conn: &mut Conn) -> Result<Option<PrivilegedChain>, Error> {
    let Some(open) = audit_export::find_open_chain(conn, PRIVILEGED_WRITER).await? else {
        return Ok(None);
    };
    let last = audit_export::last_record(conn, open.chain).await?;
    let (next_seq, head) =
        last.map_or_else(|| (0, genesis_hash(open.chain)), |(seq, hash)| (seq + 1, hash));
    let (chain, started_at) = (open.chain, open.started_at);
    Ok(Some(PrivilegedChain { chain, started_at, next_seq, head }))
}

async fn begin_chain(
    app: &App,
    conn: &mut Conn,
    keys: &InstallationKeys,
    now: OffsetDateTime,
) -> Result<PrivilegedChain, Error> {
    let chain = app.environment().new_uuid(now);
    let new = NewChain { chain, at: now, writer: PRIVILEGED_WRITER.to_owned() };
    register_chain(conn, &new, keys).await?;
    Ok(PrivilegedChain { chain, started_at: now, next_seq: 0, head: genesis_hash(chain) })
}

async fn append_events(
    conn: &mut Conn,
    chain: &mut PrivilegedChain,
    events: &[PrivilegedEvent],
    now: OffsetDateTime,
) -> Result<(), Error> {
    let months = audit_export::list_partitions(conn, RECORD_TABLE).await?;
    let mut given = Vec::with_capacity(events.len());
    for event in events {
        let (seq, mut entry) = (chain.next_seq.unsigned_abs(), to_entry(event));
        let month = partition_of(RECORD_TABLE, entry.at);
        if entry.validate_fields().is_err() || !months.contains(&month) {
            metrics::counter!(AUDIT_UNFIT_EVENTS.name).increment(1);
            tracing::error!(
                event = "audit.event_unfit",
                position = %event.position,
                "a privileged event cannot be recorded as it is; its record names it"
            );
            entry = to_placeholder(event, now);
        }
        let record = AuditRecord::chain_entry(chain.chain, seq, chain.head, entry);
        (chain.next_seq, chain.head) = (chain.next_seq + 1, record.hash);
        given.push(rows::to_row(&record));
    }
    let there = audit::insert_audit_records(conn, &given).await?;
    if !there.is_empty() {
        let what = "another record is in the place of a privileged event";
        return Err(Error::Internal(anyhow::anyhow!(what)));
    }
    let positions: Vec<_> = events.iter().map(|event| event.position).collect();
    Ok(audit_export::dequeue_events(conn, &positions).await?)
}

async fn is_head_due(
    conn: &mut Conn,
    chain: &PrivilegedChain,
    now: OffsetDateTime,
) -> Result<bool, Error> {
    let newest = audit::list_newest_checkpoints(conn, &[chain.chain]).await?.pop();
    let (size, since) = newest.map_or((0, chain.started_at), |signed| (signed.size, signed.at));
    let unsigned = chain.next_seq - size;
    Ok(unsigned > 0 && (unsigned >= MAX_UNSIGNED_RECORDS || now - since >= MAX_UNSIGNED_TIME))
}

async fn sign_head(
    conn: &mut Conn,
    chain: &PrivilegedChain,
    keys: &InstallationKeys,
    now: OffsetDateTime,
    closed: bool,
) -> Result<(), Error> {
    let tree = load_tree(conn, chain.chain, chain.next_seq.unsigned_abs()).await?;
    let key = keys.signing_key();
    let head = AuditCheckpoint::sign_named(chain.chain, &tree, chain.head, now, closed, &key);
    Ok(audit::insert_audit_checkpoint(conn, &rows::checkpoint_row(&head)).await?)
}

/// Returns the id of the record of an event. The position of the event follows from it.
fn record_id_of(position: EventPosition) -> Uuid {
    Uuid::from_u64_pair(position.xact.unsigned_abs(), position.seq.unsigned_abs())
}

fn position_of(record: Uuid) -> Option<EventPosition> {
    let (xact, seq) = record.as_u64_pair();
    Some(EventPosition { xact: i64::try_from(xact).ok()?, seq: i64::try_from(seq).ok()? })
}

/// Returns the record of an event that cannot be recorded as it is. It names the event and has its digest, so that the event is compared
/// like any other, and does not keep the events behind it from being recorded.
fn to_placeholder(event: &PrivilegedEvent, now: OffsetDateTime) -> AuditEntry {
    AuditEntry {
        at: truncate_to_micros(now),
        reason: UNFIT_REASON.to_owned(),
        trace: "0".repeat(32),
        ..to_entry(event)
    }
}

fn to_entry(event: &PrivilegedEvent) -> AuditEntry {
    let text = canonical_event(event);
    let refusals =
        [EventKind::LoginRefused, EventKind::ProviderLoginRefused, EventKind::WebhookRefused];
    let refused = refusals.iter().any(|kind| event.kind == kind.as_str());
    let (decision, outcome) = if refused {
        (Verdict::Deny, Outcome::NotForwarded)
    } else {
        (Verdict::Allow, Outcome::Success)
    };
    let actor = if event.actor.is_some() { "user" } else { "system" };
    AuditEntry {
        call: record_id_of(event.position),
        at: truncate_to_micros(event.occurred_at),
        phase: Phase::Decision,
        decision,
        reason: event.kind.clone(),
        rules: Vec::new(),
        shadow: Vec::new(),
        outcome: Some(outcome),
        agent: Some(AgentFacts {
            token: Uuid::nil(),
            kind: actor.to_owned(),
            role: actor.to_owned(),
            user: event.actor.map(UserId::as_uuid),
            project: event.project.map(ProjectId::as_uuid),
            task: event.task.map(TaskId::as_uuid),
            run: None,
            job: None,
            profile: None,
        }),
        method: PRIVILEGED_METHOD.to_owned(),
        tool: None,
        definition: None,
        server: None,
        node: None,
        policy: [0; 32],
        catalogue: [0; 32],
        trace: event.trace.clone(),
        arguments: Some(KeyedDigest(Sha256::digest(text.as_bytes()).into())),
        arguments_size: u32::try_from(text.len()).unwrap_or(u32::MAX),
        result: None,
        result_size: 0,
        duration_us: 0,
    }
}

/// Returns the text of an event whose SHA-256 its record holds: JSON without spaces, the keys of every object sorted.
fn canonical_event(event: &PrivilegedEvent) -> String {
    let micros = i64::try_from(event.occurred_at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    let whole = json!({
        "id": event.position,
        "kind": event.kind,
        "occurred_at_us": micros,
        "actor_id": event.actor,
        "subject_id": event.subject,
        "project_id": event.project,
        "task_id": event.task,
        "trace_id": event.trace,
        "data": event.data,
    });
    sort_keys(whole).to_string()
}

/// Sorts the keys of every object, by their bytes.
fn sort_keys(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().collect();
            fields.sort_by(|(left, _), (right, _)| left.cmp(right));
            let sorted = fields.into_iter().map(|(key, value)| (key, sort_keys(value)));
            Value::Object(sorted.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sort_keys).collect()),
        other => other,
    }
}

/// Returns the name of the partition of a table for a moment.
fn partition_of(table: &str, at: OffsetDateTime) -> String {
    let at = at.to_offset(UtcOffset::UTC);
    format!("{table}_{:04}_{:02}", at.year(), u8::from(at.month()))
}

/// Lists the partitions of the event log.
pub(super) async fn list_event_months(conn: &mut Conn) -> Result<Vec<String>, DbError> {
    audit_export::list_partitions(conn, EVENT_TABLE).await
}

/// Returns the moment from which on every privileged event has a record: the start of the first chain of them that was not pruned.
/// Nothing if no chain was begun.
pub(super) async fn first_compared_moment(
    conn: &mut Conn,
    chains: &[AuditChainRow],
) -> Result<Option<OffsetDateTime>, DbError> {
    let own: Vec<_> = chains.iter().filter(|row| row.writer == PRIVILEGED_WRITER).collect();
    let Some(pruned) = own.iter().rposition(|row| row.pruned.is_some()) else {
        return Ok(own.first().map(|row| row.started_at));
    };
    // The chains are written one after the other. Another machine may have written the end of the one before.
    if let Some(next) = own.get(pruned + 1) {
        return Ok(Some(next.started_at + MAX_CLOCK_SKEW));
    }
    let last = own.get(pruned).map(|row| row.chain).unwrap_or_default();
    let heads = audit::list_audit_checkpoints(conn, last).await?;
    Ok(heads.last().map(|head| head.at + MAX_CLOCK_SKEW))
}

/// Lists privileged events of a time that are neither recorded nor queued: somebody added them, or took them from the queue.
pub(super) async fn list_unrecorded_events(
    conn: &mut Conn,
    since: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<Vec<UnrecordedEvent>, DbError> {
    let names = |wanted: fn(&EventKind) -> bool| {
        EventKind::ALL.iter().copied().filter(wanted).map(|kind| kind.as_str().to_owned()).collect()
    };
    let kinds = PrivilegedKinds {
        always: names(|kind| kind.is_privileged(false)),
        by_person: names(|kind| kind.is_privileged(true) && !kind.is_privileged(false)),
    };
    audit_export::list_unrecorded_events(
        conn,
        &kinds,
        PRIVILEGED_METHOD,
        (since, until),
        MAX_UNRECORDED_EVENTS,
    )
    .await
}

/// Loads what the events of privileged records say beside the records, by the id of the record.
pub(super) async fn load_event_details(
    conn: &mut Conn,
    page: &[AuditRow],
) -> Result<HashMap<Uuid, EventDetail>, DbError> {
    let records = page.iter().filter(|row| row.method == PRIVILEGED_METHOD);
    let positions: Vec<_> = records.filter_map(|row| position_of(row.call_id)).collect();
    if positions.is_empty() {
        return Ok(HashMap::new());
    }
    let events = audit_export::list_events_at(conn, &positions).await?;
    let details = events.into_iter().map(|event| {
        // That of an IPv6 client is the network of its subscriber.
        let source = event.data.get("source").and_then(Value::as_str);
        let source = source.and_then(|text| text.split('/').next()?.parse().ok());
        let subject = event.subject.map(UserId::as_uuid);
        (record_id_of(event.position), EventDetail { subject, source })
    });
    Ok(details.collect())
}

/// Compares the records of privileged events with the events. Returns the number of events in months that an admin of the database
/// dropped, or the first problem: an event that was changed or removed.
pub(super) async fn compare_events(
    conn: &mut Conn,
    page: &[AuditRow],
    months: &[String],
) -> Result<Result<u64, String>, DbError> {
    let records: Vec<_> = page.iter().filter(|row| row.method == PRIVILEGED_METHOD).collect();
    if records.is_empty() {
        return Ok(Ok(0));
    }
    let mut dropped = 0;
    let positions: Vec<_> = records.iter().filter_map(|row| position_of(row.call_id)).collect();
    let events = audit_export::list_events_at(conn, &positions).await?;
    for row in records {
        let event = events.iter().find(|event| record_id_of(event.position) == row.call_id);
        let Some(event) = event else {
            if !months.contains(&partition_of(EVENT_TABLE, row.recorded_at)) {
                dropped += 1;
                continue;
            }
            return Ok(Err(format!("the event of record {} was removed", row.seq)));
        };
        let digest: [u8; 32] = Sha256::digest(canonical_event(event).as_bytes()).into();
        if row.arguments_digest.as_deref() != Some(digest.as_slice()) {
            return Ok(Err(format!("the event of record {} was changed", row.seq)));
        }
    }
    Ok(Ok(dropped))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn event(data: Value) -> PrivilegedEvent {
        PrivilegedEvent {
            position: EventPosition { xact: 742, seq: 17 },
            occurred_at: datetime!(2026-11-18 12:00 UTC),
            kind: "user.updated".to_owned(),
            actor: None,
            subject: None,
            project: None,
            task: None,
            trace: "4bf92f3577b34da6a3ce929d0e0e4736".to_owned(),
            data,
        }
    }

    #[test]
    fn the_order_of_keys_does_not_matter_and_every_value_does() {
        let text = canonical_event(&event(json!({ "b": [{ "d": 1, "c": 2 }], "a": null })));
        assert_eq!(text, canonical_event(&event(json!({ "a": null, "b": [{ "c": 2, "d": 1 }] }))));
        assert_ne!(text, canonical_event(&event(json!({ "a": null, "b": [{ "c": 2, "d": 2 }] }))));
        assert!(text.starts_with(
            r#"{"actor_id":null,"data":{"a":null,"b":[{"c":2,"d":1}]},"id":"742.17""#
        ));
    }

    #[test]
    fn the_record_of_an_event_is_one_that_a_writer_would_accept_and_leads_back_to_it() {
        let event = event(json!({ "role": "admin" }));
        let entry = to_entry(&event);
        assert_eq!(entry.validate_fields(), Ok(()));
        assert!(!entry.expects_outcome());
        assert_eq!(position_of(entry.call), Some(event.position));
    }

    #[test]
    fn an_event_that_is_unfit_has_a_record_that_names_it_and_has_its_digest() {
        let event =
            PrivilegedEvent { kind: "a".repeat(65), trace: "?".to_owned(), ..event(json!({})) };
        let (unfit, now) = (to_entry(&event), datetime!(2026-11-18 12:00:30.000000001 UTC));
        assert!(unfit.validate_fields().is_err());
        let entry = to_placeholder(&event, now);
        assert_eq!(entry.validate_fields(), Ok(()));
        assert_eq!((&*entry.reason, entry.call), (UNFIT_REASON, unfit.call));
        assert_eq!(entry.arguments, unfit.arguments);
    }
}
