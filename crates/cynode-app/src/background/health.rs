//! Health checks: readiness for requests ([`check_readiness`]) and the report on everything that work needs
//! ([`report_health`]).

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use cynode_core::{
    agents::AgentRole,
    ids::ProjectId,
    models::{OFFER_COMMANDS, Tier},
    names::DottedKey,
    nodes::NodeState,
    placement::{self, PlacementError, PlacementRequirements},
    releases::Release,
    roles::UserRole,
    sync::lock_unpoisoned,
    workflow::{
        decisions::{IssueScope, UnitKind, assign_unit},
        jobs::WorkerChoice,
    },
};
use cynode_db::{
    DbError,
    identity::service_tokens,
    nodes::{self, NodeRecord},
    platform::{health, schema},
};
use cynode_wire::platform::health::{Readiness, ReadinessCheck, ReadinessStatus};
use serde_json::Value;

use crate::{
    App, Error, OperationRequest,
    background::reconciler::EngineHealth,
    identity::service_tokens::{PRESENCE_TIMEOUT_MS, ServiceKind},
    models::inference,
    platform::operation,
    workflow::{
        liveness,
        placement::{is_alive, placement_candidates, takes_jobs},
    },
};

/// Timeout of the database check.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of the engine check.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);

/// Free disk space below which the check warns, and below which nothing can be stored.
const DISK_LOW_BYTES: u64 = 2 << 30;
const DISK_FULL_BYTES: u64 = 256 << 20;

/// Coding agent that is used when no preference names one.
const DEFAULT_AGENT: &str = "goose";

/// Maximum number of failed checks that are remembered for the log.
const MAX_LOGGED_CHECKS: usize = 1000;

/// Maximum number of stalls that are named in one line.
const MAX_NAMED_STALLS: usize = 3;

/// Checks everything that requests need. Each failed check says what is missing and how to fix it.
#[tracing::instrument(name = "app.health.check_readiness", skip_all)]
#[operation]
pub async fn check_readiness(app: &App) -> Readiness {
    match tokio::time::timeout(DATABASE_TIMEOUT, run_readiness_checks(app)).await {
        Ok(Ok(checks)) => checks.into(),
        Ok(Err(error)) => unreachable_database(&format!("{:#}", anyhow::Error::from(error))),
        Err(_) => unreachable_database("it did not answer within 2 seconds"),
    }
}

fn unreachable_database(cause: &str) -> Readiness {
    tracing::warn!(event = "database.unavailable", error = cause, "the database cannot be used");
    vec![ReadinessCheck::failed_check(
        "database",
        "PostgreSQL cannot be reached; the log has the cause",
        "start PostgreSQL and check `database.url` with `cynode config check`",
    )]
    .into()
}

fn to_db_error(error: schema::MigrationError) -> DbError {
    match error {
        schema::MigrationError::Db(error) => error,
        schema::MigrationError::Migrate(_)
        | schema::MigrationError::Foreign { .. }
        | schema::MigrationError::TooNew { .. }
        | schema::MigrationError::NotOwner { .. } => {
            DbError::Corrupt { table: "_sqlx_migrations", column: "version" }
        }
    }
}

async fn run_readiness_checks(app: &App) -> Result<Vec<ReadinessCheck>, DbError> {
    let mut conn = app.conn().await?;
    health::ping_database(&mut conn).await?;
    let mut checks = vec![ReadinessCheck::passed_check("database", "PostgreSQL answers")];
    let present = Release::current();
    if let Err(error) = schema::ensure_release_fits(&mut conn, present).await {
        let schema::MigrationError::TooNew { needed, .. } = error else {
            return Err(to_db_error(error));
        };
        let detail = format!("the schema needs {needed} or newer, and this server is {present}");
        let fix =
            format!("install {needed} or newer, or restore the backup from before the upgrade");
        checks.push(ReadinessCheck::failed_check("schema", detail, fix));
        return Ok(checks);
    }
    let pending = schema::pending_migrations(&mut conn).await.map_err(to_db_error)?;
    if !pending.is_empty() {
        let detail = format!("{} migrations are missing: {}", pending.len(), pending.join(", "));
        checks.push(ReadinessCheck::failed_check("schema", detail, "run `cynode migrate`"));
        return Ok(checks);
    }
    checks.push(ReadinessCheck::passed_check("schema", "every migration is applied"));
    let now = app.environment().now();
    let this = schema::tables_without_partition(&mut conn, now).await?;
    let next = schema::tables_without_partition(&mut conn, now + time::Duration::days(31)).await?;
    let fix = "run `cynode migrate`";
    checks.push(if !this.is_empty() {
        let detail = format!("this month has no place in {}", this.join(", "));
        ReadinessCheck::failed_check("partitions", detail, fix)
    } else if !next.is_empty() {
        let detail = format!("next month has no place in {}", next.join(", "));
        ReadinessCheck::warning_check("partitions", detail, fix)
    } else {
        ReadinessCheck::passed_check(
            "partitions",
            "this and next month have a place in every table",
        )
    });
    checks.push(if health::has_admin(&mut conn).await? {
        ReadinessCheck::passed_check("admin", "the installation has an admin")
    } else {
        ReadinessCheck::warning_check(
            "admin",
            "nobody can log in yet",
            "run `cynode admin bootstrap` and open the link",
        )
    });
    Ok(checks)
}

/// Checks everything that work needs, for a project or for the installation: runner, nodes, agents and models. Each
/// failed check names a command that fixes it.
#[tracing::instrument(name = "app.health.report_health", skip_all)]
#[operation]
pub async fn report_health(
    app: &App,
    request: &OperationRequest,
    project: Option<ProjectId>,
) -> Result<Readiness, Error> {
    let permitted = app.read(request, |ctx| {
        Box::pin(async move {
            match project {
                Some(project) => ctx.require_project_role(project, UserRole::Viewer).await,
                None => ctx.require_role(UserRole::Viewer),
            }
        })
    });
    let caller = permitted.await?;
    let mut checks = check_readiness(app).await.checks;
    if checks.iter().any(|check| check.status == ReadinessStatus::Failed) {
        return Ok(checks.into());
    }
    let engine = engine_health(app).await;
    let menu = inference::load_model_snapshot(app).await?;
    let mut conn = app.conn().await?;
    let preferences = match project {
        Some(_) => {
            let held = crate::tasks::preferences::resolve_effective(
                &mut conn,
                Some(AgentRole::ProjectManager),
                caller.user,
                project,
                None,
            )
            .await?;
            held.effective.into_iter().map(|(key, held)| (key, held.value)).collect()
        }
        None => BTreeMap::new(),
    };
    let there = nodes::list_nodes(&mut conn).await?;
    checks.extend(engine_checks(app, engine));
    for kind in [ServiceKind::Manager, ServiceKind::Analyst] {
        let present =
            service_tokens::list_present_services(&mut conn, kind, PRESENCE_TIMEOUT_MS).await?;
        checks.push(check_agent_service(kind, &present));
    }
    checks.extend(check_nodes(&there));
    checks.push(check_coding_agents(&there, &preferences, project.is_some()));
    checks.push(check_models(&menu, project));
    checks.extend(check_disk(app));
    checks.push(check_stalls(&liveness::find_stalls(&mut conn, None).await?, project));
    app.readiness_log().log_changes(project, &checks);
    Ok(checks.into())
}

/// Checks that have failed. Each failure is logged once, and its end once.
#[derive(Debug, Default)]
pub(crate) struct ReadinessLog {
    open: Mutex<BTreeMap<(Option<ProjectId>, String), String>>,
}

impl ReadinessLog {
    /// Logs the changes since the last check.
    fn log_changes(&self, project: Option<ProjectId>, checks: &[ReadinessCheck]) {
        let mut open = lock_unpoisoned(&self.open);
        for check in checks.iter().filter(|check| check.status != ReadinessStatus::Ok) {
            let key = (project, check.name.clone());
            if open.get(&key).is_some_and(|detail| *detail == check.detail)
                || open.len() >= MAX_LOGGED_CHECKS
            {
                continue;
            }
            tracing::warn!(
                event = "readiness.failed",
                check = check.name,
                project.id = project.map(tracing::field::display),
                "{}; to do: {}",
                check.detail,
                check.commands.join("; ")
            );
            open.insert(key, check.detail.clone());
        }
        open.retain(|(of, name), detail| {
            let ok =
                |check: &ReadinessCheck| check.name == *name && check.status == ReadinessStatus::Ok;
            let over = *of == project && checks.iter().any(ok);
            if over {
                tracing::info!(
                    event = "readiness.restored",
                    check = name,
                    detail,
                    "the check passes again"
                );
            }
            !over
        });
    }
}

async fn engine_health(app: &App) -> EngineHealth {
    let Some(engine) = app.engine() else { return EngineHealth::default() };
    tokio::time::timeout(ENGINE_TIMEOUT, engine.check_health()).await.unwrap_or_else(|_| {
        EngineHealth {
            engine: Some(Err("it did not answer within 5 seconds".to_owned())),
            runner: None,
        }
    })
}

fn engine_checks(app: &App, seen: EngineHealth) -> Vec<ReadinessCheck> {
    if app.engine().is_none() {
        let fix = "set engine.ingress_url, or use `cynode up`";
        let detail = "no engine is configured: tasks wait for a runner that asks by itself";
        return vec![ReadinessCheck::warning_check("engine", detail, fix)];
    }
    let one = |name: &str, seen: Option<Result<String, String>>| match seen? {
        Ok(detail) => Some(ReadinessCheck::passed_check(name, detail)),
        Err(why) => {
            let fix =
                format!("start it; `cynode up` starts the {name} and starts it again when it ends");
            let failed =
                ReadinessCheck::failed_check(name, format!("nothing drives tasks: {why}"), fix);
            Some(failed.with_commands(["cynode up"]).with_blocking())
        }
    };
    [one("engine", seen.engine), one("runner", seen.runner)].into_iter().flatten().collect()
}

/// Checks that a program of the project manager or an analyst is present.
fn check_agent_service(kind: ServiceKind, present: &[String]) -> ReadinessCheck {
    let (name, who, role) = match kind {
        ServiceKind::Analyst => ("analyst", "an analyst", "project_analyst"),
        _ => ("manager", "the project manager", "project_manager"),
    };
    match present.len() {
        0 => {
            let detail = format!("no process of {who} asks for work: tasks wait for one");
            let fix = format!("start it: `cynode up` does, or `cynode-pma --role={role}` by hand");
            let by_hand =
                format!("cynode-pma --role={role} --orchestrator ADDRESS --token-file FILE");
            let failed = ReadinessCheck::failed_check(name, detail, fix)
                .with_commands(["cynode up".to_owned(), by_hand]);
            if kind == ServiceKind::Manager { failed.with_blocking() } else { failed }
        }
        1 => ReadinessCheck::passed_check(name, format!("{who} asks for work")),
        count => ReadinessCheck::passed_check(name, format!("{count} processes ask for work")),
    }
}

/// Checks that nodes are present and that their sandboxes work, and reports the problems that nodes name.
fn check_nodes(there: &[NodeRecord]) -> Vec<ReadinessCheck> {
    let names = |nodes: &[&NodeRecord]| {
        nodes.iter().map(|node| format!("`{}`", node.name)).collect::<Vec<_>>().join(", ")
    };
    let ready: Vec<_> = there.iter().filter(|node| takes_jobs(node)).collect();
    let working: Vec<_> =
        ready.iter().copied().filter(|node| !node.report.backends.is_empty()).collect();
    let start = "cynode-node run  # on that machine; `cynode up` starts its own";
    let mut checks = Vec::new();
    checks.push(if there.is_empty() {
        ReadinessCheck::failed_check(
            "nodes",
            "no machine runs jobs: none has joined",
            "let one join",
        )
        .with_commands([
            "cynork node join-token",
            "cynode-node join --url ADDRESS --token-stdin  # on that machine",
            start,
        ])
        .with_blocking()
    } else if ready.is_empty() {
        let all: Vec<_> = there.iter().collect();
        let detail =
            format!("no node takes jobs: {} silent, draining or never started", names(&all));
        ReadinessCheck::failed_check("nodes", detail, "start one of them")
            .with_commands(["cynork node list", start])
            .with_blocking()
    } else if working.is_empty() {
        let detail = format!("no sandbox works on {}", names(&ready));
        ReadinessCheck::failed_check("nodes", detail, "see what is missing there")
            .with_commands(["cynode-node doctor  # on that machine"])
            .with_blocking()
    } else {
        let slots: u32 = working.iter().map(|node| node.report.slots).sum();
        ReadinessCheck::passed_check(
            "nodes",
            format!("{} can take up to {slots} jobs, in sandboxes that work", names(&working)),
        )
    });
    for node in there {
        let about = |detail: String, fix: &str, command: String| {
            ReadinessCheck::warning_check("node", format!("`{}` {detail}", node.name), fix)
                .with_commands([command])
        };
        if node.generation == 0 {
            let fix = "start its program";
            checks.push(about("joined and never ran".to_owned(), fix, start.to_owned()));
        } else if !is_alive(node) {
            let detail = "has not been heard of for more than 20 seconds".to_owned();
            checks.push(about(detail, "start it, or remove it", start.to_owned()));
        } else if node.state == NodeState::Draining {
            let command = format!("cynork node undrain {}", node.name);
            checks.push(about(
                "gets no more jobs: it is drained".to_owned(),
                "give it jobs again",
                command,
            ));
        }
        for warning in &node.report.warnings {
            let command = "cynode-node doctor  # on that machine".to_owned();
            checks.push(about(format!("says: {warning}"), "mend it there", command));
        }
    }
    checks
}

/// Checks that the nodes have the coding agents that tasks need.
fn check_coding_agents(
    there: &[NodeRecord],
    preferences: &BTreeMap<DottedKey, Value>,
    of_project: bool,
) -> ReadinessCheck {
    let ready = placement_candidates(there);
    let mut installed: Vec<_> = ready.iter().flat_map(|node| node.agents.iter()).collect();
    installed.sort_unstable();
    installed.dedup();
    let (node, labels) = placement_of(preferences);
    for kind in [UnitKind::Implementation, UnitKind::Review] {
        let WorkerChoice::Acp { agent } = worker_of(preferences, kind) else { continue };
        let needs = PlacementRequirements {
            node: node.as_deref(),
            labels: &labels,
            agent: Some(&agent),
            ..PlacementRequirements::default()
        };
        match placement::choose_node(needs, &ready) {
            // The check of nodes reports that there are none.
            Ok(_) | Err(PlacementError::Busy | PlacementError::NoNodes) => {}
            Err(why) => {
                let install = format!(
                    "cynode-node agents install {agent}  # on a node, as the user of its program"
                );
                let choose = "cynork prefs set agents.project_manager.workers.developer '{\"kind\":\"acp\",\"agent\":\"NAME\"}' --project PROJECT  # or another agent";
                let fix = "install it on a node, or choose another";
                let check = ReadinessCheck::failed_check("agents", why.to_string(), fix)
                    .with_commands([install, choose.to_owned()]);
                return if of_project { check.with_blocking() } else { check };
            }
        }
    }
    if installed.is_empty() {
        ReadinessCheck::passed_check(
            "agents",
            "none is installed, and what this project does needs none",
        )
    } else {
        let names: Vec<_> = installed.into_iter().map(String::as_str).collect();
        ReadinessCheck::passed_check("agents", format!("installed on nodes: {}", names.join(", ")))
    }
}

/// Returns the worker of a kind of unit, as the project manager will choose it.
fn worker_of(preferences: &BTreeMap<DottedKey, Value>, kind: UnitKind) -> WorkerChoice {
    let assigned = assign_unit(IssueScope::Small, kind);
    let keys = [assigned.role.as_str(), assigned.worker.as_str()];
    let named = keys.into_iter().find_map(|name| {
        let value =
            find_preference(preferences, &format!("agents.project_manager.workers.{name}"))?;
        let chosen = serde_json::from_value(value.clone()).ok()?;
        let does_work = matches!(
            chosen,
            WorkerChoice::Acp { .. } | WorkerChoice::Command { .. } | WorkerChoice::Scripted { .. }
        );
        does_work.then_some(chosen)
    });
    named.unwrap_or_else(|| WorkerChoice::Acp { agent: DEFAULT_AGENT.to_owned() })
}

/// Returns the placement that the preferences ask for.
fn placement_of(preferences: &BTreeMap<DottedKey, Value>) -> (Option<String>, Vec<String>) {
    let text = |value: &Value| {
        value.as_str().map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned)
    };
    let node = find_preference(preferences, "agents.project_manager.placement.node").and_then(text);
    let labels = match find_preference(preferences, "agents.project_manager.placement.labels") {
        Some(Value::Array(labels)) => labels.iter().filter_map(text).collect(),
        Some(one) => text(one).into_iter().collect(),
        None => Vec::new(),
    };
    (node, labels)
}

fn find_preference<'a>(
    preferences: &'a BTreeMap<DottedKey, Value>,
    key: &str,
) -> Option<&'a Value> {
    preferences.iter().find(|(name, _)| name.as_str() == key).map(|(_, value)| value)
}

/// Checks which models are available, by tier.
fn check_models(menu: &inference::ModelSnapshot, project: Option<ProjectId>) -> ReadinessCheck {
    let offered = menu.model_ids(project);
    if offered.is_empty() {
        let (detail, fix) = match project {
            Some(_) => (
                "no model is offered to this project: nobody can plan or work",
                "an admin offers one",
            ),
            None => ("no model is offered to all projects", "offer one, or one to each project"),
        };
        let check = match project {
            Some(_) => ReadinessCheck::failed_check("models", detail, fix).with_blocking(),
            None => ReadinessCheck::warning_check("models", detail, fix),
        };
        return check.with_commands(OFFER_COMMANDS);
    }
    let missing = Tier::ALL.iter().filter(|tier| !offered.contains(&tier.tier_model_id()));
    let missing: Vec<_> = missing.map(|tier| tier.as_str()).collect();
    let nearest = match missing.as_slice() {
        [] => String::new(),
        missing => format!("; for {} the nearest of them is asked", missing.join(" and ")),
    };
    ReadinessCheck::passed_check("models", format!("{}{nearest}", offered.join(", ")))
}

/// Checks the free space of the disk that stores the results of agents.
fn check_disk(app: &App) -> Option<ReadinessCheck> {
    const NAME: &str = "disk";
    let parts = app.gateway_parts().ok()?;
    let place = parts.objects_directory.display();
    let stat = match rustix::fs::statvfs(&parts.objects_directory) {
        Ok(stat) => stat,
        Err(error) => {
            let detail = format!("{place} cannot be measured: {error}");
            return Some(ReadinessCheck::warning_check(NAME, detail, "look with `df -h`"));
        }
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let detail = format!("{} MiB are free in {place}", free / (1 << 20));
    let command = format!("df -h {place}");
    Some(match free {
        0..DISK_FULL_BYTES => ReadinessCheck::failed_check(NAME, detail, "make room there")
            .with_commands([command])
            .with_blocking(),
        DISK_FULL_BYTES..DISK_LOW_BYTES => {
            ReadinessCheck::warning_check(NAME, detail, "make room there").with_commands([command])
        }
        DISK_LOW_BYTES.. => ReadinessCheck::passed_check(NAME, detail),
    })
}

/// Reports stalled work that no worker takes, of the project or of all projects.
fn check_stalls(
    found: &[(
        cynode_db::background::liveness::Stall,
        cynode_wire::workflow::timeline::StallView,
    )],
    project: Option<ProjectId>,
) -> ReadinessCheck {
    const NAME: &str = "work";
    let of_it = found.iter().filter(|(stall, _)| project.is_none_or(|id| stall.project == id));
    let mut told: Vec<&str> = of_it.clone().map(|(_, view)| view.detail.as_str()).collect();
    let count = told.len();
    let Some((_, first)) = of_it.clone().next() else {
        return ReadinessCheck::passed_check(NAME, "nothing waits that nobody takes");
    };
    told.dedup();
    told.truncate(MAX_NAMED_STALLS);
    let detail = format!("{count} waiting and not taken: {}", told.join("; "));
    ReadinessCheck::failed_check(NAME, detail, "see who should take it")
        .with_commands(first.commands.clone())
}
