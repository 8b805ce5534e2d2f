//! The workflow graph of a task.
//!
//! [`next`] is total over every step and verdict and has no wildcard: a new step does not compile until its successor
//! is named. [`render_mermaid`] draws the graph from that function, so the drawing is always correct.

pub mod decisions;
pub mod environments;
pub mod evidence;
pub mod findings;
pub mod given_context;
pub mod handoffs;
pub mod instructions;
pub mod jobs;
pub mod limits;
pub mod plan;
pub mod replays;
pub mod reports;
pub mod timeline;
pub mod units;
pub mod waits;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// One step of the project manager's work on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowStep {
    /// Reads the task, its criteria and the preferences that hold.
    LoadTaskContext,
    /// Makes the plan: a graph of work units.
    PlanSteps,
    /// Sends every unit that is ready, up to the limit.
    DispatchStep,
    /// Takes whichever result has come.
    CollectResult,
    /// Judges that result by evidence.
    VerifyStepResult,
    /// Says what was done, and ends the task well.
    FinalizeSummary,
    /// Says why it was given up, and ends the task.
    MarkFailed,
}

/// What a node found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepVerdict {
    /// Its work is done; the next node follows.
    Pass,
    /// Nothing is left to do.
    Done,
    /// The work unit must be tried again.
    Redo,
    /// The plan must be made anew, with feedback.
    Revise,
    /// Nothing can be done before something happens elsewhere; the node runs again then.
    Wait,
    /// It cannot succeed.
    Fail,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepTransition {
    /// This node.
    Go(WorkflowStep),
    /// The same node, once it is woken.
    Stay(WorkflowStep),
    /// Nothing: the task has ended.
    End,
}

impl WorkflowStep {
    /// Every node, in the order of a plain run.
    pub const ALL: [Self; 7] = [
        Self::LoadTaskContext,
        Self::PlanSteps,
        Self::DispatchStep,
        Self::CollectResult,
        Self::VerifyStepResult,
        Self::FinalizeSummary,
        Self::MarkFailed,
    ];

    /// Where every run begins.
    pub const FIRST: Self = Self::LoadTaskContext;

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LoadTaskContext => "load_task_context",
            Self::PlanSteps => "plan_steps",
            Self::DispatchStep => "dispatch_step",
            Self::CollectResult => "collect_result",
            Self::VerifyStepResult => "verify_step_result",
            Self::FinalizeSummary => "finalize_summary",
            Self::MarkFailed => "mark_failed",
        }
    }

    /// What people call it.
    pub const fn step_title(self) -> &'static str {
        match self {
            Self::LoadTaskContext => "Load Task Context",
            Self::PlanSteps => "Plan Steps",
            Self::DispatchStep => "Dispatch Step",
            Self::CollectResult => "Collect Result",
            Self::VerifyStepResult => "Verify Step Result",
            Self::FinalizeSummary => "Finalize Summary",
            Self::MarkFailed => "Mark Failed",
        }
    }

    /// The node of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|node| node.as_str() == name)
    }
}

impl StepVerdict {
    /// Every verdict.
    pub const ALL: [Self; 6] =
        [Self::Pass, Self::Done, Self::Redo, Self::Revise, Self::Wait, Self::Fail];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Done => "done",
            Self::Redo => "redo",
            Self::Revise => "revise",
            Self::Wait => "wait",
            Self::Fail => "fail",
        }
    }

    /// The verdict of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.as_str() == name)
    }
}

/// What follows a node with that verdict.
pub const fn next(node: WorkflowStep, verdict: StepVerdict) -> StepTransition {
    use StepVerdict::{Done, Fail, Pass, Redo, Revise, Wait};
    use WorkflowStep::{
        CollectResult, DispatchStep, FinalizeSummary, LoadTaskContext, MarkFailed, PlanSteps,
        VerifyStepResult,
    };
    match (node, verdict) {
        (MarkFailed, Pass | Done | Redo | Revise | Fail) => StepTransition::End,
        (FinalizeSummary, Pass | Done | Redo) => StepTransition::End,
        (node, Wait) => StepTransition::Stay(node),

        (
            LoadTaskContext | PlanSteps | DispatchStep | CollectResult | VerifyStepResult
            | FinalizeSummary,
            Fail,
        ) => StepTransition::Go(MarkFailed),
        (
            LoadTaskContext | PlanSteps | DispatchStep | CollectResult | VerifyStepResult
            | FinalizeSummary,
            Revise,
        ) => StepTransition::Go(PlanSteps),

        (LoadTaskContext, Pass | Done) => StepTransition::Go(PlanSteps),
        (LoadTaskContext, Redo) => StepTransition::Go(LoadTaskContext),
        (PlanSteps, Pass | Done) => StepTransition::Go(DispatchStep),
        (PlanSteps, Redo) => StepTransition::Go(PlanSteps),
        (DispatchStep, Pass) => StepTransition::Go(CollectResult),
        (DispatchStep, Done) => StepTransition::Go(FinalizeSummary),
        (DispatchStep, Redo) => StepTransition::Go(DispatchStep),
        (CollectResult, Pass) => StepTransition::Go(VerifyStepResult),
        // Nothing is out any more, or a job came to nothing: dispatching knows what remains.
        (CollectResult, Done | Redo) => StepTransition::Go(DispatchStep),
        (VerifyStepResult, Pass | Done | Redo) => StepTransition::Go(DispatchStep),
    }
}

/// The graph as a mermaid flowchart; `at` is marked as the place where a run stands.
pub fn render_mermaid(at: Option<WorkflowStep>) -> String {
    let mut drawing = String::from("flowchart TD\n");
    for node in WorkflowStep::ALL {
        let _ = writeln!(drawing, "    {}[\"{}\"]", node.as_str(), node.step_title());
    }
    let _ = writeln!(drawing, "    ended([\"ended\"])");
    for node in WorkflowStep::ALL {
        for (target, verdicts) in outgoing_edges(node) {
            let words: Vec<_> = verdicts.iter().map(|verdict| verdict.as_str()).collect();
            let _ = writeln!(drawing, "    {} -->|{}| {target}", node.as_str(), words.join(", "));
        }
    }
    if let Some(node) = at {
        let _ = writeln!(drawing, "    classDef here fill:#ffd54f,stroke:#e65100,stroke-width:3px");
        let _ = writeln!(drawing, "    class {} here", node.as_str());
    }
    drawing
}

/// Where a node's verdicts lead, each place once, in the order of the verdicts.
fn outgoing_edges(node: WorkflowStep) -> Vec<(&'static str, Vec<StepVerdict>)> {
    let mut arrows: Vec<(&'static str, Vec<StepVerdict>)> = Vec::new();
    for verdict in StepVerdict::ALL {
        let target = match next(node, verdict) {
            StepTransition::Go(node) | StepTransition::Stay(node) => node.as_str(),
            StepTransition::End => "ended",
        };
        match arrows.iter_mut().find(|(known, _)| *known == target) {
            Some((_, verdicts)) => verdicts.push(verdict),
            None => arrows.push((target, vec![verdict])),
        }
    }
    arrows
}

#[cfg(test)]
mod tests;
