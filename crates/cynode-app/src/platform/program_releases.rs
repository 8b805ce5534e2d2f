//! Releases that programs of the installation named. Each is written once a minute at most.

use std::{collections::HashMap, sync::Mutex};

use cynode_core::{releases::Release, sync::lock_unpoisoned};
use cynode_db::platform::processes::{self, ProcessRecord};
use cynode_wire::platform::processes::ProcessKind;
use time::{Duration, OffsetDateTime};
use tokio_util::sync::CancellationToken;

use super::{error::log_background_error, operation};
use crate::App;

/// How long a release that was written stands for the next requests.
const WRITE_INTERVAL: Duration = Duration::MINUTE;

/// Interval at which a server writes its own release.
const HEARTBEAT_INTERVAL: std::time::Duration = std::time::Duration::from_mins(1);

/// How long a program that is not seen any more is remembered.
pub(crate) const PROCESS_RETENTION: Duration = Duration::days(30);

/// Maximum number of programs whose last write is remembered.
const MAX_TRACKED_PROGRAMS: usize = 10_000;

type ProgramKey = (ProcessKind, String, Release);

/// When this process last wrote the release of a program.
#[derive(Default)]
pub(crate) struct ProgramReleaseLog(Mutex<HashMap<ProgramKey, OffsetDateTime>>);

impl ProgramReleaseLog {
    /// Returns whether the release of a program is to be written now.
    fn begin_write(&self, key: ProgramKey, now: OffsetDateTime) -> bool {
        let mut written = lock_unpoisoned(&self.0);
        // A clock that was set back must not stop the writes.
        if written.get(&key).is_some_and(|at| (now - *at).abs() < WRITE_INTERVAL) {
            return false;
        }
        if written.len() >= MAX_TRACKED_PROGRAMS {
            written.clear();
        }
        written.insert(key, now);
        true
    }
}

impl App {
    /// Notes the release that a program named. A failure is only logged: the request itself matters more.
    pub async fn note_release(&self, kind: ProcessKind, name: &str, release: Release) {
        let now = self.environment().now();
        let key = (kind, name.to_owned(), release);
        if self.shared_state().program_releases.begin_write(key, now) {
            self.write_release(kind, name, release, now).await;
        }
    }

    async fn write_release(
        &self,
        kind: ProcessKind,
        name: &str,
        release: Release,
        now: OffsetDateTime,
    ) {
        let process = ProcessRecord {
            kind: kind.as_str().to_owned(),
            name: name.chars().take(300).collect(),
            release: release.to_string(),
            last_seen_at: now,
        };
        let written = async {
            let mut conn = self.conn().await?;
            processes::record_process(&mut conn, &process).await
        };
        if let Err(error) = written.await {
            let what = "the release of a program could not be recorded";
            log_background_error("process.release_failed", &error, what);
        }
    }
}

/// Writes the release of this server until shutdown, and removes programs that were not seen for long.
#[operation]
pub async fn run_release_heartbeat(app: App, name: String, stop: CancellationToken) {
    let mut turn = tokio::time::interval(HEARTBEAT_INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        let now = app.environment().now();
        app.write_release(ProcessKind::Server, &name, Release::current(), now).await;
        let pruned = async {
            let mut conn = app.conn().await?;
            processes::delete_processes(&mut conn, now - PROCESS_RETENTION).await
        };
        if let Err(error) = pruned.await {
            let what = "programs that are gone could not be removed from the list";
            log_background_error("process.prune_failed", &error, what);
        }
    }
}
