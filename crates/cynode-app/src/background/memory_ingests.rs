//! Background work of memory: reads the ingests that are due, and records what ended tasks leave. Any number of processes may run it, and
//! each may die at any moment: nothing happens before a commit.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::task_memories::record_task_memories;
use crate::{
    App, Error,
    memory::ingest::run_due_ingests,
    platform::{error::log_background_error, operation},
};

/// Interval at which due ingests and ended tasks are looked for where no process-wide poll runs.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Runs ingests and records of tasks until shutdown. A failure is logged and retried in the next round.
#[operation]
pub async fn run_memory_worker(app: App, stop: CancellationToken) {
    loop {
        tokio::select! {
            // What a worker leaves in the middle is due again after its lease.
            () = stop.cancelled() => return,
            () = run_memory_round(&app) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.until_memory_due() => {}
            () = app.until_poll_due(MEMORY_POLL_INTERVAL) => {}
        }
    }
}

async fn run_memory_round(app: &App) {
    log_failure("memory.ingest_poll_failed", run_due_ingests(app).await);
    log_failure("memory.task_record_failed", record_task_memories(app).await);
}

fn log_failure(event: &'static str, outcome: Result<usize, Error>) {
    if let Err(error) = outcome {
        log_background_error(event, &error, "memory could not be written; it is retried");
    }
}
