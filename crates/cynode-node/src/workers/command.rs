//! Worker that runs commands in sequence.

use std::{sync::Arc, time::Duration};

use cynode_core::{
    environments::TestReportFormat,
    evidence::describe_exit_code,
    nodes::{CommandOutcome, JobEventData, WorkStopReason},
    workflow::jobs::{CommandStep, OnFailure},
};
use cynode_test_reports::ReportReader;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::{
    JobWorker, SandboxRunner, SessionStart, TurnOutcome, WorkerError, WorkerInstruction,
    WorkerSession, combine_exits,
    process::{self, InstructionListener, ProgramEnd, ProgramOutcome, ProgramSpec},
};
use crate::sandbox::{ExitReason, SandboxExit};

/// Maximum number of bytes of a command's output that are streamed as events.
const MAX_STREAMED_BYTES: usize = 1024 * 1024;
/// Number of bytes of the output's tail in the result.
const OUTPUT_TAIL_BYTES: usize = 32 * 1024;

/// Worker that runs a list of commands in order.
pub(super) struct CommandWorker {
    steps: Vec<CommandStep>,
}

impl CommandWorker {
    pub(super) fn new(steps: Vec<CommandStep>) -> Self {
        Self { steps }
    }
}

impl JobWorker for CommandWorker {
    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>> {
        Box::pin(async move {
            let session: Box<dyn WorkerSession> = Box::new(CommandSession {
                steps: self.steps.clone(),
                sandbox: start.sandbox,
                events: start.events,
                until: start.limits.until,
                ended: None,
            });
            Ok(session)
        })
    }
}

struct CommandSession {
    steps: Vec<CommandStep>,
    sandbox: Arc<dyn SandboxRunner>,
    events: mpsc::Sender<JobEventData>,
    until: Instant,
    ended: Option<SandboxExit>,
}

impl CommandSession {
    /// Runs the commands. Messages to the worker do not affect them.
    async fn run_steps(
        &mut self,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> Result<TurnOutcome, WorkerError> {
        let mut ear = InstructionListener::new(orders, self.events.clone());
        let mut turn = TurnOutcome::new(WorkStopReason::EndTurn);
        let (mut failed, all) = (0, self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            if !ear.wait_while_paused(self.until).await {
                turn.stop = stop_reason(self.until);
                turn.said = format!("It was stopped before command {} of {all}.", at + 1);
                return Ok(turn);
            }
            let own = step.timeout_seconds.map(|most| Duration::from_secs(u64::from(most)));
            let until = own.map_or(self.until, |own| self.until.min(Instant::now() + own));
            let one = CommandRun { at, argv: &step.argv, until, expect: None, format: None };
            let finished = run_step(&*self.sandbox, one, &self.events, &mut ear).await?;
            self.ended = Some(combine_exits(self.ended.take(), finished.ended.clone()));
            turn.steps.push(to_step_outcome(&step.argv, &finished));
            let (good, how) = (finished.is_success(), finished.how);
            if how == ProgramEnd::Cancelled || (how == ProgramEnd::Late && until == self.until) {
                turn.stop = stop_reason(self.until);
                turn.said = format!("Command {} of {all} {}.", at + 1, describe_exit(&finished));
                return Ok(turn);
            }
            if !good {
                failed += 1;
                turn.said = format!("Command {} of {all} {}.", at + 1, describe_exit(&finished));
                if step.on_failure == OnFailure::Stop {
                    turn.stop = WorkStopReason::Failed;
                    return Ok(turn);
                }
            }
        }
        turn.said = match (failed, all) {
            (0, 1) => "The command succeeded.".to_owned(),
            (0, _) => format!("All {all} commands succeeded."),
            _ => {
                format!("{failed} of {all} commands failed and the others were run. {}", turn.said)
            }
        };
        Ok(turn)
    }
}

impl WorkerSession for CommandSession {
    fn session_id(&self) -> Option<&str> {
        None
    }

    fn run_prompt<'a>(
        &'a mut self,
        _text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>> {
        Box::pin(self.run_steps(orders))
    }

    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit> {
        Box::pin(async move { self.ended.unwrap_or_else(empty_exit) })
    }
}

/// Returns the exit of a worker that has run nothing.
pub(super) fn empty_exit() -> SandboxExit {
    SandboxExit {
        exit_code: None,
        signal: None,
        why: ExitReason::Exited,
        cpu: Duration::ZERO,
        peak_memory: 0,
        out_of_memory: false,
    }
}

/// Returns why a worker was stopped from outside: by its deadline or by a person.
pub(super) fn stop_reason(until: Instant) -> WorkStopReason {
    if Instant::now() >= until { WorkStopReason::Timeout } else { WorkStopReason::Cancelled }
}

/// One command of a list.
#[derive(Clone, Copy)]
pub(super) struct CommandRun<'a> {
    /// Index in the list.
    pub(super) at: usize,
    pub(super) argv: &'a [String],
    /// Deadline of the command.
    pub(super) until: Instant,
    /// Text that the output must contain.
    pub(super) expect: Option<&'a str>,
    /// Format of the results per test in the output; recognised from the output when it is left out.
    pub(super) format: Option<TestReportFormat>,
}

/// Runs one command and reports it as a tool call.
pub(super) async fn run_step(
    sandbox: &dyn SandboxRunner,
    CommandRun { at, argv, until, expect, format }: CommandRun<'_>,
    events: &mpsc::Sender<JobEventData>,
    ear: &mut InstructionListener<'_>,
) -> Result<ProgramOutcome, WorkerError> {
    let told = |status: &str, input: Value| JobEventData::Tool {
        call: format!("step-{}", at + 1),
        title: argv.join(" "),
        status: status.to_owned(),
        input,
    };
    process::send_event(events, told("in_progress", json!({ "argv": argv }))).await;
    let (binds, input) = (&[][..], &[][..]);
    let program = ProgramSpec {
        argv,
        binds,
        input,
        until,
        most: MAX_STREAMED_BYTES,
        keep: OUTPUT_TAIL_BYTES,
        expect,
        report: Some(ReportReader::new(format)),
    };
    let finished = process::run_to_completion(sandbox, program, events, ear).await;
    let good = finished.as_ref().is_ok_and(ProgramOutcome::is_success);
    process::send_event(events, told(if good { "completed" } else { "failed" }, Value::Null)).await;
    Ok(finished?)
}

/// Converts the outcome of a program to that of a command.
pub(super) fn to_step_outcome(argv: &[String], finished: &ProgramOutcome) -> CommandOutcome {
    CommandOutcome {
        argv: argv.to_vec(),
        exit_code: finished.ended.exit_code.filter(|_| is_own_exit(finished)),
        output: finished.output.clone(),
        expected: finished.expected,
        sha256: finished.sha256.clone(),
        truncated: finished.truncated,
        milliseconds: u64::try_from(finished.took.as_millis()).unwrap_or(u64::MAX),
        tests: finished.tests.clone(),
    }
}

/// Returns whether the command ended by itself or by a signal from within the sandbox.
fn is_own_exit(finished: &ProgramOutcome) -> bool {
    finished.how == ProgramEnd::Itself && finished.ended.why == ExitReason::Exited
}

/// Describes how a command ended.
pub(super) fn describe_exit(finished: &ProgramOutcome) -> String {
    match (finished.how, finished.ended.why, finished.ended.exit_code) {
        (ProgramEnd::Cancelled, ..) => "was stopped".into(),
        (ProgramEnd::Late, ..) | (_, ExitReason::WallClock, _) => "took too long".into(),
        (_, ExitReason::OutOfMemory, _) => "needed too much memory".into(),
        (_, ExitReason::Disk, _) => "needed too much disk".into(),
        (_, _, Some(0)) => "succeeded".into(),
        (_, _, Some(code)) => format!("failed with {}", describe_exit_code(code)),
        (_, _, None) => "was ended by a signal".into(),
    }
}
