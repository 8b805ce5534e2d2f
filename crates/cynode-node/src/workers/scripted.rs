//! Worker that plays a script, for tests and the demo.

use std::{
    collections::VecDeque,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cynode_core::{
    ids::{JobId, TaskId},
    nodes::{JobEventData, WorkStopReason},
    workflow::jobs::ScriptedMove,
};
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    JobWorker, SandboxRunner, SessionStart, TurnOutcome, WORKSPACE_DIR, WorkerError,
    WorkerInstruction, WorkerSession, combine_exits,
    command::{CommandRun, describe_exit, empty_exit, run_step, stop_reason, to_step_outcome},
    mcp_client::{self, ToolCallError},
    process::{self, InstructionListener, ProgramOutcome},
};
use crate::{client::CALL_BACKOFF, sandbox::SandboxExit};

/// Maximum number of requests for the tool list.
const MAX_LISTING_ATTEMPTS: u32 = 5;

/// Worker that plays a list of moves, and another list for an attempt that receives feedback on the last one.
pub(super) struct ScriptedWorker {
    moves: Vec<ScriptedMove>,
    revised: Option<Vec<ScriptedMove>>,
}

impl ScriptedWorker {
    pub(super) fn new(moves: Vec<ScriptedMove>, revised: Option<Vec<ScriptedMove>>) -> Self {
        Self { moves, revised }
    }

    fn select_moves(&self, told: bool) -> &[ScriptedMove] {
        self.revised.as_ref().filter(|_| told).unwrap_or(&self.moves)
    }
}

impl JobWorker for ScriptedWorker {
    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>> {
        Box::pin(async move {
            let told = start.assignment.work.context.revision_feedback.is_some();
            let session: Box<dyn WorkerSession> = Box::new(ScriptedSession {
                moves: self.select_moves(told).to_vec(),
                sandbox: start.sandbox,
                events: start.events,
                gate: start.gate.to_owned(),
                task: start.assignment.task_id,
                job: start.assignment.job_id,
                until: start.limits.until,
                ended: None,
            });
            Ok(session)
        })
    }
}

struct ScriptedSession {
    moves: Vec<ScriptedMove>,
    sandbox: Arc<dyn SandboxRunner>,
    events: mpsc::Sender<JobEventData>,
    gate: PathBuf,
    task: TaskId,
    job: JobId,
    until: Instant,
    ended: Option<SandboxExit>,
}

impl ScriptedSession {
    async fn run_moves(
        &mut self,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> Result<TurnOutcome, WorkerError> {
        let mut ear = InstructionListener::new(orders, self.events.clone());
        let mut turn = TurnOutcome::new(WorkStopReason::EndTurn);
        let mut left: VecDeque<ScriptedMove> = self.moves.clone().into();
        let mut played = 0;
        while let Some(one) = left.pop_front() {
            let at = played;
            played += 1;
            if !ear.wait_while_paused(self.until).await {
                turn.stop = stop_reason(self.until);
                return Ok(turn);
            }
            if let ScriptedMove::When { path, moves, otherwise } = one {
                let there = self.has_file(at, &path, &mut ear).await?;
                let chosen = if there { moves } else { otherwise };
                for next in chosen.into_iter().rev() {
                    left.push_front(next);
                }
                continue;
            }
            if let Some(why) = self.run_move(at, one, &mut turn, &mut ear).await? {
                turn.stop = why;
                return Ok(turn);
            }
        }
        Ok(turn)
    }

    /// Returns whether a file exists in the workspace, checked from inside the sandbox.
    async fn has_file(
        &self,
        at: usize,
        path: &str,
        ear: &mut InstructionListener<'_>,
    ) -> Result<bool, WorkerError> {
        let Some(inside) = below_workspace(path) else { return Ok(false) };
        let argv = ["test".to_owned(), "-e".to_owned(), inside];
        let one = CommandRun { at, argv: &argv, until: self.until, expect: None, format: None };
        let looked = run_step(&*self.sandbox, one, &self.events, ear).await?;
        Ok(to_step_outcome(&argv, &looked).exit_code == Some(0))
    }

    /// Plays one move. Returns the stop reason if the turn is over.
    async fn run_move(
        &mut self,
        at: usize,
        one: ScriptedMove,
        turn: &mut TurnOutcome,
        ear: &mut InstructionListener<'_>,
    ) -> Result<Option<WorkStopReason>, WorkerError> {
        match one {
            ScriptedMove::Say { text } => {
                turn.said.clone_from(&text);
                process::send_event(&self.events, JobEventData::Message { text }).await;
                Ok(None)
            }
            ScriptedMove::Write { path, text } => {
                let Some(inside) = below_workspace(&path) else {
                    return Ok(Some(fail_turn(turn, format!("{path} is not in the workspace"))));
                };
                let written = process::write_file(
                    &*self.sandbox,
                    &inside,
                    &text,
                    self.until,
                    &self.events,
                    ear,
                );
                let finished = written.await?;
                Ok(self.record_outcome(&format!("Writing {path}"), &finished, turn))
            }
            ScriptedMove::Run { argv } => {
                let sandbox = Arc::clone(&self.sandbox);
                let one =
                    CommandRun { at, argv: &argv, until: self.until, expect: None, format: None };
                let finished = run_step(&*sandbox, one, &self.events, ear).await?;
                turn.steps.push(to_step_outcome(&argv, &finished));
                Ok(self.record_outcome(&argv.join(" "), &finished, turn))
            }
            ScriptedMove::Tool { name, arguments } => {
                Ok(self.run_tool_move(at, &name, arguments, turn, ear).await)
            }
            ScriptedMove::Wait { milliseconds } => {
                let until = Instant::now() + Duration::from_millis(u64::from(milliseconds));
                tokio::select! {
                    () = sleep_until(until.min(self.until)) => {}
                    () = ear.wait_cancelled() => return Ok(Some(WorkStopReason::Cancelled)),
                }
                Ok((Instant::now() >= self.until).then_some(WorkStopReason::Timeout))
            }
            ScriptedMove::Fail { text } => Ok(Some(fail_turn(turn, text))),
            // Conditional moves are resolved before anything is played.
            ScriptedMove::When { .. } => Ok(None),
        }
    }

    /// Records the resource usage of a program. Returns the stop reason if the program failed.
    fn record_outcome(
        &mut self,
        what: &str,
        finished: &ProgramOutcome,
        turn: &mut TurnOutcome,
    ) -> Option<WorkStopReason> {
        self.ended = Some(combine_exits(self.ended.take(), finished.ended.clone()));
        if finished.is_success() {
            return None;
        }
        let why =
            fail_turn(turn, format!("{what} {}: {}", describe_exit(finished), finished.output));
        Some(if finished.how == process::ProgramEnd::Itself {
            why
        } else {
            stop_reason(self.until)
        })
    }

    /// Calls a tool of the gateway through the job's socket.
    async fn run_tool_move(
        &self,
        at: usize,
        name: &str,
        arguments: Value,
        turn: &mut TurnOutcome,
        ear: &mut InstructionListener<'_>,
    ) -> Option<WorkStopReason> {
        let bound = tokio::select! {
            bound = self.fill_job_arguments(name, arguments) => bound,
            () = ear.wait_cancelled() => return Some(WorkStopReason::Cancelled),
            () = sleep_until(self.until) => return Some(WorkStopReason::Timeout),
        };
        let arguments = match bound {
            Ok(arguments) => arguments,
            Err(error) => {
                return Some(fail_turn(
                    turn,
                    format!("{name}: the tools cannot be listed: {error}"),
                ));
            }
        };
        let told = |status: &str| JobEventData::Tool {
            call: format!("step-{}", at + 1),
            title: name.to_owned(),
            status: status.to_owned(),
            input: arguments.clone(),
        };
        process::send_event(&self.events, told("in_progress")).await;
        let called = tokio::select! {
            called = mcp_client::call_tool(&self.gate, name, &arguments) => called,
            () = ear.wait_cancelled() => return Some(WorkStopReason::Cancelled),
            () = sleep_until(self.until) => return Some(WorkStopReason::Timeout),
        };
        match called {
            Ok(_) => {
                process::send_event(&self.events, told("completed")).await;
                None
            }
            Err(error) => {
                process::send_event(&self.events, told("failed")).await;
                Some(fail_turn(turn, format!("{name}: {error}")))
            }
        }
    }

    /// Adds the task and job ids to the arguments if the tool takes them and they are missing. This depends on the tool list, which is
    /// requested a few times; without it the move fails.
    async fn fill_job_arguments(
        &self,
        tool: &str,
        arguments: Value,
    ) -> Result<Value, ToolCallError> {
        let mut arguments = match arguments {
            Value::Object(arguments) => arguments,
            Value::Null => Map::new(),
            other => return Ok(other),
        };
        let mut backoff = CALL_BACKOFF;
        let mut left = MAX_LISTING_ATTEMPTS;
        let takes = loop {
            left -= 1;
            match mcp_client::fetch_tool_arguments(&self.gate, tool).await {
                Ok(takes) => break takes,
                Err(error) if left == 0 => return Err(error),
                Err(_) => backoff.wait_next_delay().await,
            }
        };
        // The gateway rejects a tool that it does not list, with a reason: the call reports it.
        let takes = takes.unwrap_or_default();
        let ours = [("task_id", self.task.to_string()), ("job_id", self.job.to_string())];
        for (name, value) in ours {
            if takes.iter().any(|taken| taken == name) {
                arguments.entry(name).or_insert_with(|| value.into());
            }
        }
        Ok(arguments.into())
    }
}

fn fail_turn(turn: &mut TurnOutcome, why: String) -> WorkStopReason {
    turn.said = why;
    WorkStopReason::Failed
}

/// Returns the path inside the sandbox if it lexically stays in the workspace. Symlinks are resolved inside the sandbox.
fn below_workspace(path: &str) -> Option<String> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    (plain && !path.is_empty() && !path.ends_with('/')).then(|| format!("{WORKSPACE_DIR}/{path}"))
}

impl WorkerSession for ScriptedSession {
    fn session_id(&self) -> Option<&str> {
        None
    }

    fn run_prompt<'a>(
        &'a mut self,
        _text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>> {
        Box::pin(self.run_moves(orders))
    }

    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit> {
        Box::pin(async move { self.ended.unwrap_or_else(empty_exit) })
    }
}

#[cfg(test)]
mod tests {
    use super::below_workspace;

    #[test]
    fn only_plain_paths_below_the_workspace_are_written() {
        assert_eq!(below_workspace("src/a.rs").as_deref(), Some("/work/src/a.rs"));
        for wrong in ["", "/etc/passwd", "../a", "a/../../b", "a/"] {
            assert_eq!(below_workspace(wrong), None, "{wrong}");
        }
    }
}
