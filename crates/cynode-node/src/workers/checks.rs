//! Worker that runs checks: each in a fresh sandbox, and all of them whatever the earlier results.
//!
//! Checks are untrusted. Each sees only the files of the commit, with pinned files as they were before the change, and
//! an empty home: no check leaves anything for the next.

use std::{sync::Arc, time::Duration};

use cynode_core::{
    environments::TestReportFormat,
    evidence::{
        EvidenceCheck, is_plain_path,
        test_results::{LineCoverage, TestReport},
    },
    nodes::{CommandOutcome, JobEventData, WorkStopReason},
};
use cynode_test_reports::{
    ChangedLines, MAX_REPORT_FILE_BYTES, count_changed_lines, read_report_file,
};
use data_encoding::HEXLOWER;
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, time::Instant};

use super::{
    JobWorker, SandboxRunner, SessionStart, TurnOutcome, WorkerError, WorkerInstruction,
    WorkerSession, combine_exits,
    command::{CommandRun, describe_exit, empty_exit, run_step, stop_reason, to_step_outcome},
    process::{self, InstructionListener, ProgramEnd},
};
use crate::{sandbox::SandboxExit, workspace::PinConflict};

/// Workspace in which checks run.
pub(crate) trait CheckWorkspace: Send + Sync {
    /// Recreates the initial state: the files of the commit, and an empty home.
    fn recreate_files(&self) -> BoxFuture<'_, Result<(), WorkerError>>;

    /// Restores the pinned files. Returns those that could not be restored.
    fn restore_pinned_files(&self) -> BoxFuture<'_, Result<Vec<PinConflict>, PinRestoreError>>;

    /// Returns the lines of the commit that its task has changed, without those of tests.
    fn list_changed_lines(&self) -> BoxFuture<'_, ChangedLines>;

    /// Takes the build results that a check left, if they are worth keeping.
    fn take_build_results(&self) -> BoxFuture<'_, ()>;

    /// Stores the build results for later jobs, in the background.
    fn store_build_results(&self);
}

/// Reason why pinned files could not be restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PinRestoreError {
    /// There was no sandbox for it.
    #[error("{0}")]
    NoSandbox(WorkerError),
    /// The restore command failed.
    #[error("{0}")]
    Failed(String),
}

/// Worker that runs a list of checks in order.
pub(crate) struct ChecksWorker {
    checks: Vec<EvidenceCheck>,
    floor: Arc<dyn CheckWorkspace>,
}

impl ChecksWorker {
    pub(crate) fn new(checks: Vec<EvidenceCheck>, floor: Arc<dyn CheckWorkspace>) -> Self {
        Self { checks, floor }
    }
}

impl JobWorker for ChecksWorker {
    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>> {
        Box::pin(async move {
            let session: Box<dyn WorkerSession> = Box::new(ChecksSession {
                checks: self.checks.clone(),
                floor: Arc::clone(&self.floor),
                sandbox: start.sandbox,
                events: start.events,
                until: start.limits.until,
                ended: None,
            });
            Ok(session)
        })
    }
}

struct ChecksSession {
    checks: Vec<EvidenceCheck>,
    floor: Arc<dyn CheckWorkspace>,
    sandbox: Arc<dyn SandboxRunner>,
    events: mpsc::Sender<JobEventData>,
    until: Instant,
    ended: Option<SandboxExit>,
}

impl ChecksSession {
    async fn run_checks(
        &mut self,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> Result<TurnOutcome, WorkerError> {
        let mut ear = InstructionListener::new(orders, self.events.clone());
        let mut turn = TurnOutcome::new(WorkStopReason::EndTurn);
        let all = self.checks.len();
        for (at, check) in self.checks.iter().enumerate() {
            if !ear.wait_while_paused(self.until).await {
                turn.stop = stop_reason(self.until);
                turn.said = format!("It was stopped before check {} of {all}.", at + 1);
                return Ok(turn);
            }
            // The first check uses the workspace as it was prepared.
            if at > 0 {
                self.floor.recreate_files().await?;
            }
            if let Some(why) = self.find_blocking_reason(check).await? {
                turn.steps.push(blocked_step_outcome(check, why));
                continue;
            }
            let file = report_file(check);
            if let Some((_, path)) = file {
                // A report that the commit brings is none of this run.
                process::remove_file(&*self.sandbox, path, self.file_deadline()).await?;
            }
            let coverage = check.coverage.as_deref().filter(|path| is_plain_path(path));
            if let Some(path) = coverage {
                process::remove_file(&*self.sandbox, path, self.file_deadline()).await?;
            }
            let own = Duration::from_secs(u64::from(check.timeout_seconds()));
            let until = self.until.min(Instant::now() + own);
            let expect = check.expect_output.as_deref();
            let format = check.report.as_ref().map(|report| report.format);
            let one = CommandRun { at, argv: &check.argv, until, expect, format };
            let finished = run_step(&*self.sandbox, one, &self.events, &mut ear).await?;
            self.ended = Some(combine_exits(self.ended.take(), finished.ended.clone()));
            let mut step = to_step_outcome(&check.argv, &finished);
            if let Some((format, path)) = file {
                step.tests = self.read_report(format, path, finished.how).await?;
            }
            if let (Some(path), Some(tests)) = (coverage, &mut step.tests) {
                tests.coverage = self.read_coverage(path, finished.how).await?;
            }
            turn.steps.push(step);
            let how = finished.how;
            if how == ProgramEnd::Itself {
                self.floor.take_build_results().await;
            }
            if how == ProgramEnd::Cancelled || (how == ProgramEnd::Late && until == self.until) {
                turn.stop = stop_reason(self.until);
                turn.said = format!("Check {} of {all} {}.", at + 1, describe_exit(&finished));
                return Ok(turn);
            }
        }
        self.floor.store_build_results();
        turn.said = match all {
            1 => "The check was run.".to_owned(),
            _ => format!("All {all} checks were run."),
        };
        Ok(turn)
    }

    /// Returns the deadline of reading or removing a file.
    fn file_deadline(&self) -> Instant {
        self.until.min(Instant::now() + REPORT_FILE_TIMEOUT)
    }

    /// Reads the report that a check wrote; none when there is none that is understood.
    async fn read_report(
        &self,
        format: TestReportFormat,
        path: &str,
        how: ProgramEnd,
    ) -> Result<Option<TestReport>, WorkerError> {
        if how == ProgramEnd::Cancelled {
            return Ok(None);
        }
        let until = self.file_deadline();
        let bytes = process::read_file(&*self.sandbox, path, MAX_REPORT_FILE_BYTES, until).await?;
        let mut report = bytes.and_then(|bytes| read_report_file(format, &bytes));
        if let Some(report) = &mut report {
            report.incomplete |= how != ProgramEnd::Itself;
        }
        Ok(report)
    }

    /// Reads which changed lines the tests of a check ran; none when there is no report that is understood.
    async fn read_coverage(
        &self,
        path: &str,
        how: ProgramEnd,
    ) -> Result<Option<LineCoverage>, WorkerError> {
        if how != ProgramEnd::Itself {
            return Ok(None);
        }
        let changed = self.floor.list_changed_lines().await;
        if changed.is_empty() {
            return Ok(None);
        }
        let until = self.file_deadline();
        let bytes = process::read_file(&*self.sandbox, path, MAX_REPORT_FILE_BYTES, until).await?;
        Ok(bytes.and_then(|bytes| count_changed_lines(&bytes, &changed)))
    }

    /// Restores the pinned files. Returns the reason why this check cannot run, if there is one.
    async fn find_blocking_reason(
        &self,
        check: &EvidenceCheck,
    ) -> Result<Option<String>, WorkerError> {
        let spoilt = match self.floor.restore_pinned_files().await {
            Ok(spoilt) => spoilt,
            Err(PinRestoreError::NoSandbox(error)) => return Err(error),
            Err(PinRestoreError::Failed(why)) => {
                return Ok(Some(format!("The files that it goes by could not be put back: {why}")));
            }
        };
        let pinned = check.pinned_paths();
        if let Some(path) = pinned.iter().find(|path| !is_plain_path(path)) {
            return Ok(Some(format!("It goes by {path:?}, which is no path of a file.")));
        }
        let found = spoilt.into_iter().find(|one| pinned.contains(&one.path));
        Ok(found.map(|PinConflict { path, reason }| format!("It goes by `{path}`: {reason}.")))
    }
}

/// Timeout of reading or removing a report file.
const REPORT_FILE_TIMEOUT: Duration = Duration::from_mins(1);

/// Returns the format and the path of the report file of a check.
fn report_file(check: &EvidenceCheck) -> Option<(TestReportFormat, &str)> {
    let report = check.report.as_ref()?;
    let path = report.path.as_deref().filter(|path| is_plain_path(path))?;
    Some((report.format, path))
}

/// Builds the outcome of a check that could not run.
fn blocked_step_outcome(check: &EvidenceCheck, why: String) -> CommandOutcome {
    CommandOutcome {
        argv: check.argv.clone(),
        exit_code: None,
        output: why,
        expected: None,
        sha256: HEXLOWER.encode(&Sha256::digest(b"")),
        truncated: false,
        milliseconds: 0,
        tests: None,
    }
}

impl WorkerSession for ChecksSession {
    fn session_id(&self) -> Option<&str> {
        None
    }

    fn run_prompt<'a>(
        &'a mut self,
        _text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>> {
        Box::pin(self.run_checks(orders))
    }

    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit> {
        Box::pin(async move { self.ended.unwrap_or_else(empty_exit) })
    }
}
