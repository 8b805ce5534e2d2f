//! Programs of the installation with their releases, and its backups: what an admin looks at before an upgrade.

use cynode_core::{
    nodes::NodeState,
    releases::{Release, ReleaseSkew},
    roles::UserRole,
};
use cynode_db::{
    nodes::{self, NodeRecord},
    platform::{
        backup::{self, BackupRecord},
        health as database,
        processes::{self, ProcessRecord},
    },
};
use cynode_wire::platform::{
    backups::BackupView,
    processes::{ProcessKind, ProcessView},
};
use time::{Duration, OffsetDateTime};

use crate::{
    App, Error, OperationRequest,
    platform::{operation, program_releases::PROCESS_RETENTION},
    workflow::placement::is_alive,
};

/// How long a program counts as present: it is written once a minute.
const PRESENCE_PERIOD: Duration = Duration::minutes(3);

/// Maximum number of backups in a list.
const MAX_LISTED_BACKUPS: i64 = 1000;

/// How long the engine may take to say its version.
const ENGINE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Lists every program of the installation with its release. Only admins of the installation may ask.
#[tracing::instrument(name = "app.processes.list_processes", skip_all)]
#[operation]
pub async fn list_processes(
    app: &App,
    request: &OperationRequest,
) -> Result<Vec<ProcessView>, Error> {
    let permitted = app
        .read(request, |ctx| Box::pin(async move { ctx.require_role(UserRole::Admin).map(drop) }));
    permitted.await?;
    load_processes(app).await
}

/// Loads every program of the installation with its release.
pub(super) async fn load_processes(app: &App) -> Result<Vec<ProcessView>, Error> {
    let now = app.environment().now();
    let engine = match app.engine() {
        Some(engine) => {
            tokio::time::timeout(ENGINE_TIMEOUT, engine.engine_version()).await.ok().flatten()
        }
        None => None,
    };
    let mut conn = app.conn().await?;
    let facts = database::get_database_facts(&mut conn).await?;
    let nodes = nodes::list_nodes(&mut conn).await?;
    let programs = processes::list_processes(&mut conn, now - PROCESS_RETENTION).await?;
    drop(conn);
    let external = |kind, name: &str, version| ProcessView {
        kind,
        name: name.to_owned(),
        version,
        present: true,
        last_seen_at: now,
        skewed: false,
    };
    let mut views = vec![external(ProcessKind::Database, "postgresql", facts.version)];
    views.extend(engine.map(|version| external(ProcessKind::Engine, "restate", version)));
    views.extend(programs.into_iter().filter_map(|program| to_view(program, now)));
    let present = nodes.into_iter().filter(|node| node.state != NodeState::Removed);
    views.extend(present.map(to_node_view));
    views.sort_by(|left, right| (left.kind, &left.name).cmp(&(right.kind, &right.name)));
    Ok(views)
}

fn to_view(program: ProcessRecord, now: OffsetDateTime) -> Option<ProcessView> {
    let kind = ProcessKind::from_name(&program.kind)?;
    Some(ProcessView {
        kind,
        skewed: is_skewed(kind, &program.release),
        name: program.name,
        version: program.release,
        present: now - program.last_seen_at < PRESENCE_PERIOD,
        last_seen_at: program.last_seen_at,
    })
}

fn to_node_view(node: NodeRecord) -> ProcessView {
    ProcessView {
        kind: ProcessKind::Node,
        skewed: is_skewed(ProcessKind::Node, &node.report.version),
        present: is_alive(&node),
        last_seen_at: node.last_seen_at,
        name: node.name,
        version: node.report.version,
    }
}

/// Returns whether a program does not work with this server. Servers, nodes and command lines may be one release apart; the others come with
/// the server.
fn is_skewed(kind: ProcessKind, release: &str) -> bool {
    let Ok(release) = release.parse::<Release>() else { return true };
    match kind {
        ProcessKind::Engine | ProcessKind::Database => false,
        ProcessKind::Runner | ProcessKind::Manager | ProcessKind::Analyst => {
            release != Release::current()
        }
        ProcessKind::Server
        | ProcessKind::Worker
        | ProcessKind::Node
        | ProcessKind::CommandLine => {
            Release::current().skew_of(release) != ReleaseSkew::Compatible
        }
    }
}

/// Lists the backups with their last verification, newest first. Only admins of the installation may ask.
#[tracing::instrument(name = "app.backups.list_backups", skip_all)]
#[operation]
pub async fn list_backups(app: &App, request: &OperationRequest) -> Result<Vec<BackupView>, Error> {
    app.read(request, |ctx| {
        Box::pin(async move {
            ctx.require_role(UserRole::Admin)?;
            let found = backup::list_backups(ctx.conn(), MAX_LISTED_BACKUPS).await?;
            Ok(found.into_iter().map(to_backup_view).collect())
        })
    })
    .await
}

fn to_backup_view(backup: BackupRecord) -> BackupView {
    BackupView {
        backup_id: backup.id.to_string(),
        taken_at: backup.taken_at,
        completed_at: backup.completed_at,
        location: backup.location,
        program_version: backup.program_version,
        bytes: backup.bytes,
        recipients: backup.recipients,
        verified_at: backup.verified_at,
        problems: backup.problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_come_with_the_server_have_its_release_and_others_may_be_one_apart() {
        let skewed = |kind, release: &str| is_skewed(kind, release);
        let own = Release::current().to_string();
        assert!(!skewed(ProcessKind::Runner, &own) && !skewed(ProcessKind::Node, &own));
        let next = "0.2.0";
        assert!(skewed(ProcessKind::Runner, next) && !skewed(ProcessKind::Node, next));
        assert!(skewed(ProcessKind::CommandLine, "0.3.0"));
        assert!(skewed(ProcessKind::Node, "unknown"));
        assert!(!skewed(ProcessKind::Engine, "1.7.2"));
    }
}
