//! Workers: the programs that do the work of a job, inside its sandbox.
//!
//! A worker starts once per sandbox start and opens a session. A session runs one turn after another and receives
//! instructions of people meanwhile. A worker's statements, exit codes included, are claims and not evidence.

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::Arc,
    time::Duration,
};

use cynode_core::{
    nodes::{CommandOutcome, JobEventData, WorkStopReason},
    workflow::jobs::WorkerChoice,
};
use cynode_wire::nodes::JobAssignment;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use crate::sandbox::{BindMount, SandboxError, SandboxExit, SandboxProcess};

mod acp;
pub(crate) mod checks;
mod command;
pub mod install;
mod mcp_client;
mod process;
pub mod prompt;
pub mod recipes;
mod scripted;
pub(crate) mod setup_step;

pub use recipes::{AgentRecipe, AgentRecipes};

/// URL of the models inside the sandbox.
pub const MODELS_URL: &str = "http://127.0.0.1:4001";
/// URL of the gateway inside the sandbox.
pub const TOOLS_URL: &str = "http://127.0.0.1:4002/mcp";
/// Placeholder API key inside the sandbox; the node replaces it in forwarded requests.
pub const PLACEHOLDER_KEY: &str = "sandbox";
/// Path of the workspace inside the sandbox.
pub const WORKSPACE_DIR: &str = "/work";
/// Path of the home directory inside the sandbox.
pub const HOME_DIR: &str = "/home/agent";
/// Directory of the installed agents inside the sandbox.
pub const AGENTS_DIR: &str = "/opt/agents";

/// A worker: starts sessions.
pub trait JobWorker: Send + Sync {
    /// Returns the directory inside the sandbox where the worker puts skills; `None` if it is told of them in its prompt.
    fn skills_dir(&self) -> Option<String> {
        None
    }

    /// Starts a session, or resumes one.
    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>>;
}

/// Inputs of a session start.
pub struct SessionStart<'a> {
    /// Runs programs in the job's sandbox.
    pub sandbox: Arc<dyn SandboxRunner>,
    /// Assignment of the job.
    pub assignment: &'a JobAssignment,
    /// Id of the session to resume.
    pub resume: Option<&'a str>,
    /// Channel for job events.
    pub events: mpsc::Sender<JobEventData>,
    /// Requests permissions from people.
    pub permissions: Arc<dyn PermissionPrompt>,
    /// Host path of the job's gateway socket.
    pub gate: &'a Path,
    /// Whether the worker asks for permission before it acts. If false, it acts freely in its sandbox.
    pub ask_permission: bool,
    /// Timeouts of the worker.
    pub limits: WorkerTimeouts,
}

/// Runs programs in the sandbox of one job, with its workspace, home, sockets and limits.
pub trait SandboxRunner: Send + Sync {
    /// Starts a program. `env` is added to the sandbox's own environment.
    fn run_program<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>>;
}

/// Requests permission from a person.
pub trait PermissionPrompt: Send + Sync {
    /// Waits for the answer and returns whether the action is allowed.
    fn request_permission(&self, title: String, input: Value) -> BoxFuture<'_, bool>;
}

/// A running session of a worker.
pub trait WorkerSession: Send {
    /// Returns the worker's own id of the session, by which it can be resumed.
    fn session_id(&self) -> Option<&str>;

    /// Returns whether the session was resumed and so has its earlier context.
    fn is_resumed(&self) -> bool {
        false
    }

    /// Runs one turn until it ends or is stopped.
    fn run_prompt<'a>(
        &'a mut self,
        text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>>;

    /// Ends the session and every process of it.
    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit>;
}

/// Instruction of a person to a running worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerInstruction {
    /// Stops the work. The turn ends.
    Cancel,
    /// Passes a message; the work continues.
    Tell(String),
    /// Stops the work and waits.
    Pause,
    /// Continues after a pause.
    Resume,
}

/// Outcome of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnOutcome {
    /// Stop reason.
    pub stop: WorkStopReason,
    /// Last message of the worker, or the reason of the failure.
    pub said: String,
    /// Usage that the worker reports.
    pub usage: Value,
    /// Outcomes of the commands, for workers that run commands.
    pub steps: Vec<CommandOutcome>,
}

impl TurnOutcome {
    /// Creates an outcome that has only a stop reason.
    pub const fn new(stop: WorkStopReason) -> Self {
        Self { stop, said: String::new(), usage: Value::Null, steps: Vec::new() }
    }
}

/// Timeouts of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTimeouts {
    /// Deadline of all work.
    pub until: Instant,
    /// Timeout until the worker is ready.
    pub startup: Duration,
    /// Maximum time without a sign of activity.
    pub inactive: Duration,
    /// Grace period to end a turn after a stop request.
    pub grace: Duration,
    /// Window of the loop guard: the turn ends if that many consecutive tool calls have at most two distinct values.
    pub repeats: usize,
}

impl WorkerTimeouts {
    /// Returns the default timeouts for a job with this deadline.
    pub const fn with_deadline(until: Instant) -> Self {
        Self {
            until,
            startup: Duration::from_mins(2),
            inactive: Duration::from_mins(10),
            grace: Duration::from_secs(3),
            repeats: 24,
        }
    }
}

/// Error of a worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The recipe does not exist.
    #[error("there is no recipe for the agent {0}")]
    NoRecipe(String),
    /// The agent is not installed.
    #[error("the agent {0} is not installed on this node: run `cynode-node agents install {0}`")]
    NotInstalled(String),
    /// The assignment names no model, and the agent needs one.
    #[error("the work names no model for the agent {0}")]
    NoModel(String),
    /// The model name contains characters that a recipe cannot contain.
    #[error("a model of the name {0:?} cannot be given to an agent")]
    BadModel(String),
    /// The workspace could not be recreated.
    #[error("the workspace could not be made anew: {0}")]
    Workspace(String),
    /// The job has no worker process to start.
    #[error("nobody is started for such work")]
    Nobody,
    /// The sandbox failed.
    #[error("the sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    /// The worker was not ready in time.
    #[error("{agent} was not ready within {seconds} s{}", format_output_suffix(.told))]
    Slow {
        /// Name of the agent.
        agent: String,
        /// Timeout in seconds.
        seconds: u64,
        /// Tail of its output.
        told: String,
    },
    /// The worker exited before it was ready.
    #[error("{agent} ended before it was ready{}", format_output_suffix(.told))]
    Ended {
        /// Name of the agent.
        agent: String,
        /// Tail of its output.
        told: String,
    },
    /// The worker violated the protocol.
    #[error("{agent} answered {method} with: {told}")]
    Refused {
        /// Name of the agent.
        agent: String,
        /// Method that was called.
        method: &'static str,
        /// Response of the agent.
        told: String,
    },
}

fn format_output_suffix(told: &str) -> String {
    if told.is_empty() { String::new() } else { format!("; it wrote: {told}") }
}

/// Creates the worker for an assignment; `agents` is the directory of the installed agents.
pub fn create_worker(
    choice: &WorkerChoice,
    recipes: &AgentRecipes,
    agents: &Path,
) -> Result<Box<dyn JobWorker>, WorkerError> {
    Ok(match choice {
        WorkerChoice::Acp { agent } => {
            let recipe =
                recipes.get(agent).ok_or_else(|| WorkerError::NoRecipe(agent.clone()))?.clone();
            Box::new(acp::AcpWorker::new(recipe, agents))
        }
        WorkerChoice::Command { steps } => Box::new(command::CommandWorker::new(steps.clone())),
        // These need the job's workspace, so the job runs them itself.
        WorkerChoice::Checks { .. } | WorkerChoice::Merge => return Err(WorkerError::Nobody),
        WorkerChoice::Scripted { moves, revised } => {
            Box::new(scripted::ScriptedWorker::new(moves.clone(), revised.clone()))
        }
    })
}

/// Loop guard: detects that the last tool calls have at most two distinct values.
#[derive(Debug)]
struct RepetitionDetector {
    window: usize,
    last: VecDeque<u64>,
}

impl RepetitionDetector {
    fn new(window: usize) -> Self {
        Self { window, last: VecDeque::with_capacity(window) }
    }

    /// Records a tool call. Returns whether the worker is stuck in a loop.
    fn is_stuck_after(&mut self, used: u64) -> bool {
        if self.window < 3 {
            return false;
        }
        if self.last.len() == self.window {
            self.last.pop_front();
        }
        self.last.push_back(used);
        let mut distinct: Vec<u64> = Vec::with_capacity(3);
        for seen in &self.last {
            if !distinct.contains(seen) {
                distinct.push(*seen);
            }
        }
        self.last.len() == self.window && distinct.len() <= 2
    }
}

/// Combines the exits of two runs and sums their resource usage.
fn combine_exits(ended: Option<SandboxExit>, next: SandboxExit) -> SandboxExit {
    let Some(before) = ended else { return next };
    SandboxExit {
        cpu: before.cpu + next.cpu,
        peak_memory: before.peak_memory.max(next.peak_memory),
        out_of_memory: before.out_of_memory || next.out_of_memory,
        ..next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_things_in_turn_are_no_progress_and_three_are() {
        let mut two = RepetitionDetector::new(6);
        let stuck: Vec<_> = (0..8).map(|at| two.is_stuck_after(at % 2)).collect();
        assert_eq!(stuck, [false, false, false, false, false, true, true, true]);
        let mut three = RepetitionDetector::new(6);
        assert!(!(0..100).any(|at| three.is_stuck_after(at % 3)));
    }

    #[test]
    fn something_new_starts_the_count_again() {
        let mut seen = RepetitionDetector::new(4);
        assert_eq!(
            [1, 1, 1, 2, 3, 3, 3, 3].map(|used| seen.is_stuck_after(used)),
            [false, false, false, true, false, false, true, true]
        );
    }
}
