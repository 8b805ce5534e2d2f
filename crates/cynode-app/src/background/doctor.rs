//! Diagnosis of the installation for its admins: the readiness checks, and what else the server can find out by itself.

use std::time::Duration;

use bytes::Bytes;
use cynode_core::{nodes::NodeState, roles::UserRole};
use cynode_db::{
    models::registry::{self, ProviderKey, ProviderRecord},
    nodes::{self, NodeRecord},
    platform::{
        backup::{self, BackupRecord},
        database_roles::{self, RolePrivileges},
        health::{self as database, ProviderHealth},
    },
    tools::audit_export::{self, EventBacklog},
};
use cynode_wire::platform::{
    health::{Diagnosis, DiagnosisCheck, ReadinessCheck, ReadinessStatus},
    keys::KeyringView,
};
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use time::OffsetDateTime;

use super::{health, key_rotation};
use crate::{
    App, Error, OperationRequest,
    platform::{certificates, operation},
    workflow::placement::{is_alive, takes_jobs},
};

/// Version of this program.
const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Difference between the clocks of server and database from which on the check warns, and from which on it fails: leases would end too
/// early or too late.
const MAX_CLOCK_SKEW: time::Duration = time::Duration::seconds(2);
const MAX_USABLE_CLOCK_SKEW: time::Duration = time::Duration::seconds(30);

/// Age of the last backup from which on the check warns, and from which on it fails: a day with some time to make it, and a week.
const MAX_BACKUP_AGE: time::Duration = time::Duration::hours(26);
const MAX_USABLE_BACKUP_AGE: time::Duration = time::Duration::days(7);

/// How far back calls of models are looked at.
const PROVIDER_HEALTH_PERIOD: time::Duration = time::Duration::hours(1);

/// Timeout of the storage check.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Diagnoses the installation. Only its admins may ask.
#[tracing::instrument(name = "app.doctor.diagnose_installation", skip_all)]
#[operation]
pub async fn diagnose_installation(
    app: &App,
    request: &OperationRequest,
) -> Result<Diagnosis, Error> {
    let permitted = app
        .read(request, |ctx| Box::pin(async move { ctx.require_role(UserRole::Admin).map(drop) }));
    permitted.await?;
    let readiness = health::report_health(app, request, None).await?.checks;
    let is_broken = readiness.iter().any(|check| {
        check.status == ReadinessStatus::Failed && ["database", "schema"].contains(&&*check.name)
    });
    let mut checks: Vec<DiagnosisCheck> = readiness.into_iter().map(Into::into).collect();
    if is_broken {
        return Ok(checks.into());
    }
    let now = app.environment().now();
    let mut conn = app.conn().await?;
    let facts = database::get_database_facts(&mut conn).await?;
    let providers = registry::list_providers(&mut conn).await?;
    let keys = registry::list_provider_keys(&mut conn).await?;
    let calls = database::list_provider_health(&mut conn, now - PROVIDER_HEALTH_PERIOD).await?;
    let nodes = nodes::list_nodes(&mut conn).await?;
    let backups = backup::list_backups(&mut conn, 1).await?;
    let role = database_roles::get_role_privileges(&mut conn).await?;
    let backlog = audit_export::measure_event_queue(&mut conn).await?;
    drop(conn);
    checks.push(check_clock(now, facts.now).into());
    checks.push(check_database_role(&role).into());
    checks.push(check_keys(&key_rotation::describe_keyring(app).await?, now).into());
    checks.push(check_event_queue(backlog, now).into());
    checks.extend(check_audit_sinks(app, now).await?.into_iter().map(DiagnosisCheck::from));
    checks.push(check_storage(app).await.into());
    for provider in &providers {
        let own = calls.iter().find(|calls| calls.provider == provider.name);
        checks.push(check_provider(provider, &keys, own, now));
    }
    checks.extend(nodes.iter().filter_map(check_node).map(DiagnosisCheck::from));
    checks.push(check_versions(&nodes, &facts.version).into());
    checks.extend(certificates::check_certificates(app, now));
    checks.push(match backups.first() {
        Some(last) => check_last_backup(last, now).into(),
        None => DiagnosisCheck::unknown_check(
            "backups",
            "the server does not know whether PostgreSQL, the stored files and the master key are backed up",
            "back up the database, `storage.directory` and the master key together, and try to restore them",
        ),
    });
    Ok(checks.into())
}

/// Checks the age of the last backup and whether it was restored for a trial.
pub fn check_last_backup(last: &BackupRecord, now: OffsetDateTime) -> ReadinessCheck {
    const NAME: &str = "backups";
    let age = now - last.taken_at;
    let detail = format!("the last backup is {} hours old", age.whole_hours());
    let command = "cynode backup DIRECTORY --verify --recipient AGE1… --identity FILE";
    match (&last.verified_at, last.problems.first()) {
        (_, Some(problem)) => {
            let detail = format!("{detail}, and cannot be relied on: {problem}");
            ReadinessCheck::failed_check(NAME, detail, "make another backup")
                .with_commands([command])
        }
        _ if age > MAX_USABLE_BACKUP_AGE => {
            ReadinessCheck::failed_check(NAME, detail, "make a backup").with_commands([command])
        }
        (None, None) => {
            let detail = format!("{detail}, and was never restored for a trial");
            let fix = "verify it on a machine that has the key";
            let check = format!(
                "cynode restore --check {} --identity FILE --public-key HEX",
                last.location
            );
            ReadinessCheck::warning_check(NAME, detail, fix).with_commands([check])
        }
        (Some(_), None) if age > MAX_BACKUP_AGE => {
            ReadinessCheck::warning_check(NAME, detail, "make backups every day")
                .with_commands([command])
        }
        (Some(_), None) => {
            ReadinessCheck::passed_check(NAME, format!("{detail} and was restored for a trial"))
        }
    }
}

/// Checks that the role of the running server reads and writes rows only.
fn check_database_role(role: &RolePrivileges) -> ReadinessCheck {
    const NAME: &str = "database role";
    let name = &role.role;
    if role.is_restricted() {
        let detail = format!("`{name}` reads and writes rows and creates nothing");
        return ReadinessCheck::passed_check(NAME, detail);
    }
    let detail = format!("the server's role `{name}` may change and drop tables");
    let fix = "create the role `cynode_runtime`, migrate as the owner of the schema, and serve as `cynode_runtime`";
    ReadinessCheck::warning_check(NAME, detail, fix)
}

/// Checks that the clocks of server and database agree.
fn check_clock(here: OffsetDateTime, there: OffsetDateTime) -> ReadinessCheck {
    const NAME: &str = "clock";
    let skew = (here - there).abs();
    let detail =
        format!("the clocks of server and database differ by {} ms", skew.whole_milliseconds());
    let fix = "synchronise the clocks of both machines, for example with chrony";
    if skew <= MAX_CLOCK_SKEW {
        ReadinessCheck::passed_check(NAME, detail)
    } else if skew <= MAX_USABLE_CLOCK_SKEW {
        ReadinessCheck::warning_check(NAME, detail, fix)
    } else {
        ReadinessCheck::failed_check(NAME, detail, fix)
    }
}

/// Age of a key from which on the check warns.
const MAX_KEY_AGE: time::Duration = time::Duration::days(365);

/// Age of a rotation from which on the check warns: it should have ended.
const MAX_ROTATION_AGE: time::Duration = time::Duration::hours(26);

/// Lag of an audit sink from which on the check warns.
const MAX_SINK_LAG: time::Duration = time::Duration::minutes(5);

/// Reports a rotation that waits for an admin: its end is missing, the master key does not answer, or a process lacks the new key.
fn check_stuck_rotation(keyring: &KeyringView) -> Option<ReadinessCheck> {
    const NAME: &str = "keys";
    let master = keyring.master_key.as_ref();
    let (detail, fix, command) = if master.is_some_and(|master| master.unfinished) {
        let detail = "the end of a rotation of the master key is missing: the old one still opens what it wrapped";
        (detail.to_owned(), "end it", "cynode admin rotate-key master  # on the server")
    } else if let Some(problem) = master.and_then(|master| master.problem.as_ref()) {
        let detail = format!("the master key does not answer: {problem}");
        (detail, "check the place of the master key", "cynode admin keys  # on the server")
    } else if keyring.waiting_for.is_empty() {
        return None;
    } else {
        let processes = keyring.waiting_for.join(", ");
        let detail =
            format!("a rotation waits for processes that have not loaded the new key: {processes}");
        let fix =
            "see in the log of each why (`keys.refresh_failed`): it may have another master key";
        (detail, fix, "cynode admin keys  # on the server")
    };
    Some(ReadinessCheck::warning_check(NAME, detail, fix).with_commands([command]))
}

/// Checks the age of the keys of the installation, and the progress of a rotation.
fn check_keys(keyring: &KeyringView, now: OffsetDateTime) -> ReadinessCheck {
    const NAME: &str = "keys";
    let mut active = keyring.keys.iter().filter(|key| key.state == "active");
    if let Some(stuck) = check_stuck_rotation(keyring) {
        return stuck;
    }
    if keyring.rotating {
        let detail = format!(
            "a rotation is under way; {} secrets and tokens name an old key",
            keyring.remaining
        );
        let began =
            keyring.keys.iter().filter(|key| key.retired_at.is_none()).map(|key| key.created_at);
        let is_late = began.max().is_some_and(|began| now - began > MAX_ROTATION_AGE);
        return if is_late {
            ReadinessCheck::warning_check(NAME, detail, "see what keeps the old key")
                .with_commands(["cynode admin keys  # on the server"])
        } else {
            ReadinessCheck::passed_check(NAME, detail)
        };
    }
    let old: Vec<_> = active
        .clone()
        .filter(|key| now - key.created_at > MAX_KEY_AGE)
        .map(|key| key.purpose.as_str())
        .collect();
    if !old.is_empty() {
        let detail = format!("keys are older than a year: {}", old.join(", "));
        let commands =
            old.iter().map(|purpose| format!("cynode admin rotate-key {purpose}  # on the server"));
        return ReadinessCheck::warning_check(NAME, detail, "rotate them").with_commands(commands);
    }
    if active.any(|key| key.unkeyed) {
        let detail = "tokens are stored without a key, as the first version did";
        return ReadinessCheck::passed_check(NAME, detail);
    }
    ReadinessCheck::passed_check(NAME, "every key is younger than a year")
}

/// Age of the oldest privileged event without a record from which on the check warns.
const MAX_EVENT_QUEUE_AGE: time::Duration = time::Duration::minutes(1);

/// Checks that privileged events get their records.
fn check_event_queue(backlog: EventBacklog, now: OffsetDateTime) -> ReadinessCheck {
    const NAME: &str = "privileged events";
    let is_late = backlog.oldest_at.is_some_and(|oldest| now - oldest > MAX_EVENT_QUEUE_AGE);
    let detail = format!("{} of them wait for their audit record", backlog.events);
    if is_late {
        let fix = "see in the log why (`audit.privileged_chain_failed`); nothing is lost";
        ReadinessCheck::warning_check(NAME, format!("{detail} for more than a minute"), fix)
            .with_commands(["cynode audit verify  # on the server"])
    } else {
        ReadinessCheck::passed_check(NAME, detail)
    }
}

/// Checks that every sink of audit records receives them.
async fn check_audit_sinks(app: &App, now: OffsetDateTime) -> Result<Vec<ReadinessCheck>, Error> {
    const NAME: &str = "audit sink";
    let mut conn = app.conn().await?;
    let mut checks = Vec::new();
    for sink in audit_export::list_sinks(&mut conn).await? {
        let name = &sink.name;
        if !sink.enabled {
            checks.push(ReadinessCheck::passed_check(NAME, format!("`{name}` is disabled")));
            continue;
        }
        let lag = audit_export::measure_sink_lag(&mut conn, sink.id).await?;
        let is_late = lag.oldest_at.is_some_and(|oldest| now - oldest > MAX_SINK_LAG);
        checks.push(if is_late || sink.failures > 0 {
            let cause = sink.last_error.as_deref().unwrap_or("it is behind");
            let detail = format!("`{name}` has not received {} records: {cause}", lag.records);
            ReadinessCheck::warning_check(NAME, detail, "check the receiver; nothing is lost")
                .with_commands(["cynork audit sink list"])
        } else {
            let detail =
                format!("`{name}` receives audit records; {} are on their way", lag.records);
            ReadinessCheck::passed_check(NAME, detail)
        });
    }
    Ok(checks)
}

/// Checks that the object store takes bytes and gives them back.
async fn check_storage(app: &App) -> ReadinessCheck {
    const NAME: &str = "storage";
    let fix = "check that the disk of `storage.directory` is mounted, writable and not full";
    match tokio::time::timeout(STORAGE_TIMEOUT, probe_storage(app)).await {
        Ok(Ok(())) => ReadinessCheck::passed_check(NAME, "files can be stored and read"),
        Ok(Err(error)) => {
            let detail = format!("files cannot be stored: {}", format_cause(&error));
            ReadinessCheck::failed_check(NAME, detail, fix)
        }
        Err(_) => {
            let detail = format!("it did not answer within {} seconds", STORAGE_TIMEOUT.as_secs());
            ReadinessCheck::failed_check(NAME, detail, fix)
        }
    }
}

/// Stores a few bytes, reads them and removes them. Orphan cleanup removes them if this process dies in between.
async fn probe_storage(app: &App) -> Result<(), Error> {
    let broken = |error: object_store::Error| Error::Internal(error.into());
    let store = &app.gateway_parts()?.objects;
    let name = app.environment().new_uuid(app.environment().now());
    let path = Path::from(format!("incoming/{name}"));
    let probe = Bytes::from_static(b"probe");
    store.put(&path, PutPayload::from_bytes(probe.clone())).await.map_err(broken)?;
    let stored = store.get(&path).await.map_err(broken)?.bytes().await.map_err(broken)?;
    store.delete(&path).await.map_err(broken)?;
    if stored == probe {
        Ok(())
    } else {
        Err(Error::Internal(anyhow::anyhow!("other bytes came back")))
    }
}

/// Formats an error without what the error type says about where it happened.
fn format_cause(error: &Error) -> String {
    match error {
        Error::Internal(cause) | Error::Unavailable(cause) => format!("{cause:#}"),
        other => other.to_string(),
    }
}

/// Checks how the last calls of a provider went.
fn check_provider(
    provider: &ProviderRecord,
    keys: &[ProviderKey],
    calls: Option<&ProviderHealth>,
    now: OffsetDateTime,
) -> DiagnosisCheck {
    const NAME: &str = "provider";
    let name = &provider.name;
    if !provider.enabled {
        return ReadinessCheck::passed_check(NAME, format!("`{name}` is disabled")).into();
    }
    let mut own = keys.iter().filter(|key| key.provider == provider.id).peekable();
    let parked = |key: &ProviderKey| key.parked_until.is_some_and(|until| until > now);
    if own.peek().is_some() && own.all(parked) {
        let detail = format!("`{name}` is not called: the quota of all its keys is used up");
        return ReadinessCheck::warning_check(NAME, detail, "wait, or add another key")
            .with_commands([format!("cynork provider add-key {name}")])
            .into();
    }
    match calls {
        None => DiagnosisCheck::unknown_check(
            NAME,
            format!("`{name}` was not called within the last hour"),
            "call one of its models, for example with `cynork chat`",
        ),
        Some(calls) if calls.last_answered => {
            let detail = format!(
                "`{name}` answers; {} of {} calls of the last hour failed",
                calls.failures, calls.calls
            );
            ReadinessCheck::passed_check(NAME, detail).into()
        }
        Some(calls) => {
            let cause = calls.last_error.as_deref().unwrap_or("no answer came");
            let detail = format!("the last call of `{name}` failed: {cause}");
            ReadinessCheck::warning_check(NAME, detail, "check its address and its keys")
                .with_commands(["cynork provider list", "cynork usage calls"])
                .into()
        }
    }
}

/// Reports a node that takes jobs, with what its self-test found. The readiness checks report the others.
fn check_node(node: &NodeRecord) -> Option<ReadinessCheck> {
    if !takes_jobs(node) {
        return None;
    }
    let backends: Vec<String> = node
        .report
        .backends
        .iter()
        .map(|it| format!("{:?} {}", it.backend, it.version).to_lowercase())
        .collect();
    let (name, free) = (&node.name, node.report.disk_free_mib);
    Some(if backends.is_empty() {
        let detail = format!("`{name}` has no sandbox that works");
        ReadinessCheck::failed_check("node", detail, "see what is missing there")
            .with_commands(["cynode-node doctor  # on that machine"])
    } else {
        let detail = format!(
            "`{name}` has {} of {} slots in use, works with {}, and has {free} MiB of free disk",
            node.jobs,
            node.report.slots,
            backends.join(" and ")
        );
        ReadinessCheck::passed_check("node", detail)
    })
}

/// Checks that the nodes run the version of the server.
fn check_versions(nodes: &[NodeRecord], database: &str) -> ReadinessCheck {
    const NAME: &str = "versions";
    let differs = |node: &&NodeRecord| {
        node.state != NodeState::Removed && is_alive(node) && node.report.version != SERVER_VERSION
    };
    let others: Vec<String> = nodes
        .iter()
        .filter(differs)
        .map(|node| format!("`{}` runs {}", node.name, node.report.version))
        .collect();
    let detail = format!("the server is {SERVER_VERSION}, PostgreSQL is {database}");
    if others.is_empty() {
        return ReadinessCheck::passed_check(NAME, format!("{detail}, and all nodes run the same"));
    }
    let detail = format!("{detail}; {}", others.join(", "));
    ReadinessCheck::warning_check(NAME, detail, "install the same version everywhere")
}

#[cfg(test)]
mod tests {
    use cynode_wire::platform::keys::MasterKeyView;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn clocks_that_differ_are_told_by_how_much() {
        let here = datetime!(2026-11-18 12:00 UTC);
        let status = |milliseconds| {
            check_clock(here, here + time::Duration::milliseconds(milliseconds)).status
        };
        assert_eq!(status(-2000), ReadinessStatus::Ok);
        assert_eq!(status(2001), ReadinessStatus::Warning);
        assert_eq!(status(-30_001), ReadinessStatus::Failed);
        let check = check_clock(here, here - time::Duration::milliseconds(250));
        assert_eq!(check.detail, "the clocks of server and database differ by 250 ms");
    }

    #[test]
    fn a_rotation_that_waits_for_an_admin_is_told_before_its_progress() {
        let now = datetime!(2026-11-18 12:00 UTC);
        let detail = |unfinished, problem: Option<&str>, waiting_for: &[&str]| {
            let keyring = KeyringView {
                keys: Vec::new(),
                rotating: true,
                remaining: 3,
                waiting_for: waiting_for.iter().map(|name| (*name).to_owned()).collect(),
                master_key: Some(MasterKeyView {
                    place: "vault".to_owned(),
                    version: None,
                    since: None,
                    unfinished,
                    problem: problem.map(str::to_owned),
                }),
            };
            let check = check_keys(&keyring, now);
            (check.status, check.detail)
        };
        let warning = |text: &str| (ReadinessStatus::Warning, text.to_owned());
        assert_eq!(
            detail(true, None, &[]),
            warning(
                "the end of a rotation of the master key is missing: the old one still opens what it wrapped"
            )
        );
        assert_eq!(detail(false, Some("403"), &[]), warning("the master key does not answer: 403"));
        assert_eq!(
            detail(false, None, &["web-2"]),
            warning("a rotation waits for processes that have not loaded the new key: web-2")
        );
        assert_eq!(detail(false, None, &[]).0, ReadinessStatus::Ok);
    }

    #[test]
    fn privileged_events_that_wait_for_more_than_a_minute_are_told() {
        let now = datetime!(2026-11-18 12:00 UTC);
        let check = |seconds| {
            let oldest_at = Some(now - time::Duration::seconds(seconds));
            check_event_queue(EventBacklog { events: 3, oldest_at }, now)
        };
        assert_eq!(check(60).status, ReadinessStatus::Ok);
        assert_eq!(check(61).status, ReadinessStatus::Warning);
        let none = check_event_queue(EventBacklog::default(), now);
        assert_eq!(none.detail, "0 of them wait for their audit record");
    }

    #[test]
    fn a_backup_that_is_old_or_was_never_restored_is_told() {
        let now = datetime!(2026-11-18 12:00 UTC);
        let status = |hours: i64, verified: bool, problems: &[&str]| {
            let taken_at = now - time::Duration::hours(hours);
            let last = BackupRecord {
                id: uuid::Uuid::nil(),
                taken_at,
                completed_at: taken_at,
                location: "/backups/one".to_owned(),
                program_version: "0.1.0".to_owned(),
                bytes: 1,
                verified_at: verified.then_some(taken_at),
                problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
            };
            check_last_backup(&last, now).status
        };
        assert_eq!(status(1, true, &[]), ReadinessStatus::Ok);
        assert_eq!(status(27, true, &[]), ReadinessStatus::Warning);
        assert_eq!(status(1, false, &[]), ReadinessStatus::Warning);
        assert_eq!(status(24 * 8, true, &[]), ReadinessStatus::Failed);
        assert_eq!(status(1, true, &["2 tasks are missing"]), ReadinessStatus::Failed);
    }
}
