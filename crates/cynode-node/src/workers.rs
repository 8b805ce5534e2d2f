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
    nodes::{CommandOutcome, JobEventData},
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

pub use recipes::{AgentRecipe, AgentRecipes};

/// Where models are inside the sandbox.
pub const MODELS_URL: &str = "http://127.0.0.1:4001";
/// Where the tool gate is inside the sandbox.
pub const TOOLS_URL: &str = "http://127.0.0.1:4002/mcp";
/// What stands for a key inside the sandbox; the node replaces it on the way out.
pub const PLACEHOLDER_KEY: &str = "sandbox";
/// The workspace, inside.
pub const WORKSPACE_DIR: &str = "/work";
/// The home, inside.
pub const HOME_DIR: &str = "/home/agent";
/// Where the agents are, inside.
pub const AGENTS_DIR: &str = "/opt/agents";

/// Starts sessions.
pub trait JobWorker: Send + Sync {
    /// Starts one, or takes one up again.
    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>>;
}

/// What a worker needs to start.
pub struct SessionStart<'a> {
    /// Runs programs in the job's sandbox.
    pub sandbox: Arc<dyn SandboxRunner>,
    /// The job.
    pub assignment: &'a JobAssignment,
    /// The session that is to be taken up again.
    pub resume: Option<&'a str>,
    /// Where to tell what happens.
    pub events: mpsc::Sender<JobEventData>,
    /// Asks people.
    pub permissions: Arc<dyn PermissionPrompt>,
    /// The job's socket of the tool gate, on the host.
    pub gate: &'a Path,
    /// Whether the worker asks people before what it does, instead of being free in its sandbox.
    pub ask_permission: bool,
    /// How long it may take.
    pub limits: WorkerTimeouts,
}

/// Runs programs in the sandbox of one job, with its workspace, home, sockets and limits.
pub trait SandboxRunner: Send + Sync {
    /// Starts a program. The environment is what it gets beside the sandbox's own.
    fn run_program<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>>;
}

/// Asks a person.
pub trait PermissionPrompt: Send + Sync {
    /// Whether it may be done; waits for the answer.
    fn request_permission(&self, title: String, input: Value) -> BoxFuture<'_, bool>;
}

/// A worker at work.
pub trait WorkerSession: Send {
    /// The worker's own name of it, by which it can be taken up again.
    fn session_id(&self) -> Option<&str>;

    /// Whether it was taken up again, and so knows what it was told before.
    fn is_resumed(&self) -> bool {
        false
    }

    /// Has it do something, until it stops or is stopped.
    fn run_prompt<'a>(
        &'a mut self,
        text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>>;

    /// Ends it and everything it started.
    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit>;
}

/// What people want of a worker meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerInstruction {
    /// Stop. The turn ends.
    Cancel,
    /// Know this, and go on.
    Tell(String),
    /// Stop and wait.
    Pause,
    /// Go on after a pause.
    Resume,
}

/// What came of a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnOutcome {
    /// Why it ended: one of [`stops`].
    pub stop: String,
    /// What was said last, or why it failed.
    pub said: String,
    /// What the worker says it used.
    pub usage: Value,
    /// The commands that ran, for workers that run commands.
    pub steps: Vec<CommandOutcome>,
}

/// Why a turn ended.
pub mod stops {
    /// The worker says that it is done.
    pub const END_TURN: &str = "end_turn";
    /// The time of the job was up.
    pub const TIMEOUT: &str = "timeout";
    /// Nothing was heard for too long.
    pub const INACTIVE: &str = "inactive";
    /// The same was done over and over.
    pub const NO_PROGRESS: &str = "no_progress";
    /// The model refused.
    pub const REFUSED: &str = "refused";
    /// People wanted it to stop.
    pub const CANCELLED: &str = "cancelled";
    /// The worker's process ended in the middle.
    pub const CRASHED: &str = "crashed";
    /// A limit of the worker or its model: tokens, requests.
    pub const LIMIT: &str = "limit";
    /// Commits do not fit together, and nobody was there to mend that.
    pub const CONFLICT: &str = "conflict";
    /// The worker says that it failed.
    pub const FAILED: &str = "failed";
}

/// How long a worker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTimeouts {
    /// When everything must have ended.
    pub until: Instant,
    /// How long it may take to be ready.
    pub startup: Duration,
    /// How long nothing may be heard of it.
    pub inactive: Duration,
    /// How long it has to end a turn by itself when it was told to.
    pub grace: Duration,
    /// How many uses of tools in a row are looked at: when they are all one of two, nothing comes of them.
    pub repeats: usize,
}

impl WorkerTimeouts {
    /// The usual limits, for a job that must have ended by then.
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

/// Why a worker does not work.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// There is no recipe of that name.
    #[error("there is no recipe for the agent {0}")]
    NoRecipe(String),
    /// The agent is not installed.
    #[error("the agent {0} is not installed on this node: run `cynode-node agents install {0}`")]
    NotInstalled(String),
    /// The work names no model, and the agent needs one.
    #[error("the work names no model for the agent {0}")]
    NoModel(String),
    /// The model has a name that no recipe can hold.
    #[error("a model of the name {0:?} cannot be given to an agent")]
    BadModel(String),
    /// What the work stands on could not be made anew.
    #[error("the workspace could not be made anew: {0}")]
    Workspace(String),
    /// There is nobody to be started for such work.
    #[error("nobody is started for such work")]
    Nobody,
    /// The sandbox could not be made.
    #[error("the sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    /// The worker was not ready in time.
    #[error("{agent} was not ready within {seconds} s{}", format_output_suffix(.told))]
    Slow {
        /// Which.
        agent: String,
        /// How long it had.
        seconds: u64,
        /// The end of what it wrote.
        told: String,
    },
    /// The worker ended before it was ready.
    #[error("{agent} ended before it was ready{}", format_output_suffix(.told))]
    Ended {
        /// Which.
        agent: String,
        /// The end of what it wrote.
        told: String,
    },
    /// The worker does not speak as it should.
    #[error("{agent} answered {method} with: {told}")]
    Refused {
        /// Which.
        agent: String,
        /// What was asked.
        method: &'static str,
        /// What it said.
        told: String,
    },
}

fn format_output_suffix(told: &str) -> String {
    if told.is_empty() { String::new() } else { format!("; it wrote: {told}") }
}

/// The worker that an assignment asks for; `agents` is the folder of the installed agents.
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
        // These need more than a place to run: the job does it.
        WorkerChoice::Checks { .. } | WorkerChoice::Merge => return Err(WorkerError::Nobody),
        WorkerChoice::Scripted { moves, revised } => {
            Box::new(scripted::ScriptedWorker::new(moves.clone(), revised.clone()))
        }
    })
}

/// Sees when the same is done over and over: the last uses of tools were all one of two.
#[derive(Debug)]
struct RepetitionDetector {
    window: usize,
    last: VecDeque<u64>,
}

impl RepetitionDetector {
    fn new(window: usize) -> Self {
        Self { window, last: VecDeque::with_capacity(window) }
    }

    /// Notes a use; whether nothing comes of it any more.
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

/// What several runs of a sandbox used together.
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
