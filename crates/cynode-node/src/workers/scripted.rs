//! The worker that plays a list of moves: for tests and the demonstration.

use std::{
    collections::VecDeque,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cynode_core::ids::{JobId, TaskId};
use cynode_wire::{nodes::Happened, work::Move};
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    Order, Runs, Session, Start, Turn, WORKSPACE, Worker, WorkerError,
    command::{One, nothing, outcome, step_in, stopped, story},
    gate::{self, GateError},
    inside::{self, Ear, Finished},
    stops, together,
};
use crate::{client::Backoff, sandbox::Ended};

/// How often the list of tools is asked for.
const LISTINGS: u32 = 5;

/// A list of moves, and another for an attempt that is told what the last one got wrong.
pub(super) struct Scripted {
    moves: Vec<Move>,
    revised: Option<Vec<Move>>,
}

impl Scripted {
    pub(super) fn new(moves: Vec<Move>, revised: Option<Vec<Move>>) -> Self {
        Self { moves, revised }
    }

    fn moves(&self, told: bool) -> &[Move] {
        self.revised.as_ref().filter(|_| told).unwrap_or(&self.moves)
    }
}

impl Worker for Scripted {
    fn start<'a>(
        &'a self,
        start: Start<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Session>, WorkerError>> {
        Box::pin(async move {
            let told = start.assignment.work.context.revision_feedback.is_some();
            let session: Box<dyn Session> = Box::new(Playing {
                moves: self.moves(told).to_vec(),
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

struct Playing {
    moves: Vec<Move>,
    sandbox: Arc<dyn Runs>,
    events: mpsc::Sender<Happened>,
    gate: PathBuf,
    task: TaskId,
    job: JobId,
    until: Instant,
    ended: Option<Ended>,
}

impl Playing {
    async fn all(&mut self, orders: &mut mpsc::Receiver<Order>) -> Result<Turn, WorkerError> {
        let mut ear = Ear::new(orders, self.events.clone());
        let mut turn = Turn { stop: stops::END_TURN.into(), ..Turn::default() };
        let mut left: VecDeque<Move> = self.moves.clone().into();
        let mut played = 0;
        while let Some(one) = left.pop_front() {
            let at = played;
            played += 1;
            if !ear.may_go_on(self.until).await {
                turn.stop = stopped(self.until);
                return Ok(turn);
            }
            if let Move::When { path, moves, otherwise } = one {
                let there = self.has(at, &path, &mut ear).await?;
                let chosen = if there { moves } else { otherwise };
                for next in chosen.into_iter().rev() {
                    left.push_front(next);
                }
                continue;
            }
            if let Some(why) = self.play(at, one, &mut turn, &mut ear).await? {
                turn.stop = why;
                return Ok(turn);
            }
        }
        Ok(turn)
    }

    /// Whether a file of the workspace is there, by looking from inside.
    async fn has(&self, at: usize, path: &str, ear: &mut Ear<'_>) -> Result<bool, WorkerError> {
        let Some(inside) = below_workspace(path) else { return Ok(false) };
        let argv = ["test".to_owned(), "-e".to_owned(), inside];
        let one = One { at, argv: &argv, until: self.until, expect: None };
        let looked = step_in(&*self.sandbox, one, &self.events, ear).await?;
        Ok(outcome(&argv, &looked).exit_code == Some(0))
    }

    /// Plays one move; why the turn is over, when it is.
    async fn play(
        &mut self,
        at: usize,
        one: Move,
        turn: &mut Turn,
        ear: &mut Ear<'_>,
    ) -> Result<Option<String>, WorkerError> {
        match one {
            Move::Say { text } => {
                turn.said.clone_from(&text);
                inside::tell(&self.events, Happened::Said { text }).await;
                Ok(None)
            }
            Move::Write { path, text } => {
                let Some(inside) = below_workspace(&path) else {
                    return Ok(Some(failed(turn, format!("{path} is not in the workspace"))));
                };
                let written = inside::write_file(
                    &*self.sandbox,
                    &inside,
                    &text,
                    self.until,
                    &self.events,
                    ear,
                );
                let finished = written.await?;
                Ok(self.after(&format!("Writing {path}"), &finished, turn))
            }
            Move::Run { argv } => {
                let sandbox = Arc::clone(&self.sandbox);
                let one = One { at, argv: &argv, until: self.until, expect: None };
                let finished = step_in(&*sandbox, one, &self.events, ear).await?;
                turn.steps.push(outcome(&argv, &finished));
                Ok(self.after(&argv.join(" "), &finished, turn))
            }
            Move::Tool { name, arguments } => Ok(self.tool(at, &name, arguments, turn, ear).await),
            Move::Wait { milliseconds } => {
                let until = Instant::now() + Duration::from_millis(u64::from(milliseconds));
                tokio::select! {
                    () = sleep_until(until.min(self.until)) => {}
                    () = ear.cancelled() => return Ok(Some(stops::CANCELLED.into())),
                }
                Ok((Instant::now() >= self.until).then(|| stops::TIMEOUT.into()))
            }
            Move::Fail { text } => Ok(Some(failed(turn, text))),
            // Chosen among before anything is played.
            Move::When { .. } => Ok(None),
        }
    }

    /// Notes what a program used; why the turn is over when it did not succeed.
    fn after(&mut self, what: &str, finished: &Finished, turn: &mut Turn) -> Option<String> {
        self.ended = Some(together(self.ended.take(), finished.ended.clone()));
        if finished.succeeded() {
            return None;
        }
        let why = failed(turn, format!("{what} {}: {}", story(finished), finished.output));
        Some(if finished.how == inside::How::Itself { why } else { stopped(self.until) })
    }

    /// Calls a tool of the gate through the job's socket.
    async fn tool(
        &self,
        at: usize,
        name: &str,
        arguments: Value,
        turn: &mut Turn,
        ear: &mut Ear<'_>,
    ) -> Option<String> {
        let bound = tokio::select! {
            bound = self.bound(name, arguments) => bound,
            () = ear.cancelled() => return Some(stops::CANCELLED.into()),
            () = sleep_until(self.until) => return Some(stops::TIMEOUT.into()),
        };
        let arguments = match bound {
            Ok(arguments) => arguments,
            Err(error) => {
                return Some(failed(turn, format!("{name}: the tools cannot be listed: {error}")));
            }
        };
        let told = |status: &str| Happened::Tool {
            call: format!("step-{}", at + 1),
            title: name.to_owned(),
            status: status.to_owned(),
            input: arguments.clone(),
        };
        inside::tell(&self.events, told("in_progress")).await;
        let called = tokio::select! {
            called = gate::call(&self.gate, name, &arguments) => called,
            () = ear.cancelled() => return Some(stops::CANCELLED.into()),
            () = sleep_until(self.until) => return Some(stops::TIMEOUT.into()),
        };
        match called {
            Ok(_) => {
                inside::tell(&self.events, told("completed")).await;
                None
            }
            Err(error) => {
                inside::tell(&self.events, told("failed")).await;
                Some(failed(turn, format!("{name}: {error}")))
            }
        }
    }

    /// The arguments with the task and the job put in where the tool takes them and they are missing. Without the list of tools nobody
    /// knows whether it does: it is asked for a few times, and then the move has failed.
    async fn bound(&self, tool: &str, arguments: Value) -> Result<Value, GateError> {
        let mut arguments = match arguments {
            Value::Object(arguments) => arguments,
            Value::Null => Map::new(),
            other => return Ok(other),
        };
        let mut backoff = Backoff::default();
        let mut left = LISTINGS;
        let takes = loop {
            left -= 1;
            match gate::takes(&self.gate, tool).await {
                Ok(takes) => break takes,
                Err(error) if left == 0 => return Err(error),
                Err(_) => backoff.pause().await,
            }
        };
        // What the gate does not show it will refuse, with a reason: that is for the call to find out.
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

fn failed(turn: &mut Turn, why: String) -> String {
    turn.said = why;
    stops::FAILED.into()
}

/// A path of the workspace as it is inside, when it stays there by its words. Links are the sandbox's affair.
fn below_workspace(path: &str) -> Option<String> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    (plain && !path.is_empty() && !path.ends_with('/')).then(|| format!("{WORKSPACE}/{path}"))
}

impl Session for Playing {
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
