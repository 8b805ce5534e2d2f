//! The worker that runs commands, one after the other.

use std::{sync::Arc, time::Duration};

use cynode_core::evidence::told_exit;
use cynode_wire::{
    nodes::{Happened, StepOutcome},
    work::{CommandStep, OnFailure},
};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Order, Runs, Session, Start, Turn, Worker, WorkerError,
    inside::{self, Ear, Finished, How, Program},
    stops, together,
};
use crate::sandbox::{Ended, Why};

/// How much of the output of a step is passed on as it comes.
const PASSED_ON: usize = 1024 * 1024;
/// How much of the end of its output is in the result.
const KEPT: usize = 32 * 1024;

/// Commands in order.
pub(super) struct Command {
    steps: Vec<CommandStep>,
}

impl Command {
    pub(super) fn new(steps: Vec<CommandStep>) -> Self {
        Self { steps }
    }
}

impl Worker for Command {
    fn start<'a>(
        &'a self,
        start: Start<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Session>, WorkerError>> {
        Box::pin(async move {
            let session: Box<dyn Session> = Box::new(Listed {
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

struct Listed {
    steps: Vec<CommandStep>,
    sandbox: Arc<dyn Runs>,
    events: mpsc::Sender<Happened>,
    until: Instant,
    ended: Option<Ended>,
}

impl Listed {
    /// Runs the steps. What the worker is told makes no difference to them.
    async fn all(&mut self, orders: &mut mpsc::Receiver<Order>) -> Result<Turn, WorkerError> {
        let mut ear = Ear::new(orders, self.events.clone());
        let mut turn = Turn { stop: stops::END_TURN.into(), ..Turn::default() };
        let (mut failed, all) = (0, self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            if !ear.may_go_on(self.until).await {
                turn.stop = stopped(self.until);
                turn.said = format!("It was stopped before command {} of {all}.", at + 1);
                return Ok(turn);
            }
            let own = step.timeout_seconds.map(|most| Duration::from_secs(u64::from(most)));
            let until = own.map_or(self.until, |own| self.until.min(Instant::now() + own));
            let one = One { at, argv: &step.argv, until, expect: None };
            let finished = step_in(&*self.sandbox, one, &self.events, &mut ear).await?;
            self.ended = Some(together(self.ended.take(), finished.ended.clone()));
            turn.steps.push(outcome(&step.argv, &finished));
            let (good, how) = (finished.succeeded(), finished.how);
            if how == How::Cancelled || (how == How::Late && until == self.until) {
                turn.stop = stopped(self.until);
                turn.said = format!("Command {} of {all} {}.", at + 1, story(&finished));
                return Ok(turn);
            }
            if !good {
                failed += 1;
                turn.said = format!("Command {} of {all} {}.", at + 1, story(&finished));
                if step.on_failure == OnFailure::Stop {
                    turn.stop = stops::FAILED.into();
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

impl Session for Listed {
    fn id(&self) -> Option<&str> {
        None
    }

    fn prompt<'a>(
        &'a mut self,
        _text: &'a str,
        orders: &'a mut mpsc::Receiver<Order>,
    ) -> BoxFuture<'a, Result<Turn, WorkerError>> {
        Box::pin(self.all(orders))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Ended> {
        Box::pin(async move { self.ended.unwrap_or_else(nothing) })
    }
}

/// How a worker ended that has run nothing.
pub(super) fn nothing() -> Ended {
    Ended {
        exit_code: None,
        signal: None,
        why: Why::Exited,
        cpu: Duration::ZERO,
        peak_memory: 0,
        out_of_memory: false,
    }
}

/// Why a worker was stopped from outside: its time, or people.
pub(super) fn stopped(until: Instant) -> String {
    if Instant::now() >= until { stops::TIMEOUT } else { stops::CANCELLED }.to_owned()
}

/// One command of a list.
#[derive(Clone, Copy)]
pub(super) struct One<'a> {
    /// Its place in the list.
    pub(super) at: usize,
    pub(super) argv: &'a [String],
    /// When it must have ended.
    pub(super) until: Instant,
    /// Words that it must write.
    pub(super) expect: Option<&'a str>,
}

/// Runs one command and tells of it as of the use of a tool.
pub(super) async fn step_in(
    sandbox: &dyn Runs,
    One { at, argv, until, expect }: One<'_>,
    events: &mpsc::Sender<Happened>,
    ear: &mut Ear<'_>,
) -> Result<Finished, WorkerError> {
    let told = |status: &str, input: Value| Happened::Tool {
        call: format!("step-{}", at + 1),
        title: argv.join(" "),
        status: status.to_owned(),
        input,
    };
    inside::tell(events, told("in_progress", json!({ "argv": argv }))).await;
    let (binds, input) = (&[][..], &[][..]);
    let program = Program { argv, binds, input, until, most: PASSED_ON, keep: KEPT, expect };
    let finished = inside::run(sandbox, program, events, ear).await;
    let good = finished.as_ref().is_ok_and(Finished::succeeded);
    inside::tell(events, told(if good { "completed" } else { "failed" }, Value::Null)).await;
    Ok(finished?)
}

/// What came of a command, for the result.
pub(super) fn outcome(argv: &[String], finished: &Finished) -> StepOutcome {
    StepOutcome {
        argv: argv.to_vec(),
        exit_code: finished.ended.exit_code.filter(|_| is_its_own(finished)),
        output: finished.output.clone(),
        expected: finished.expected,
        sha256: finished.sha256.clone(),
        truncated: finished.truncated,
        milliseconds: u64::try_from(finished.took.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Whether nobody but the command itself, or a signal from within, ended it.
fn is_its_own(finished: &Finished) -> bool {
    finished.how == How::Itself && finished.ended.why == Why::Exited
}

/// How a command ended, in words.
pub(super) fn story(finished: &Finished) -> String {
    match (finished.how, finished.ended.why, finished.ended.exit_code) {
        (How::Cancelled, ..) => "was stopped".into(),
        (How::Late, ..) | (_, Why::WallClock, _) => "took too long".into(),
        (_, Why::OutOfMemory, _) => "needed too much memory".into(),
        (_, Why::Disk, _) => "needed too much disk".into(),
        (_, _, Some(0)) => "succeeded".into(),
        (_, _, Some(code)) => format!("failed with {}", told_exit(code)),
        (_, _, None) => "was ended by a signal".into(),
    }
}
