//! Agent backend: the interface by which steps get plans, verdicts and other decisions from agents.

use std::{collections::BTreeMap, future::Future, pin::Pin};

use cynode_core::{
    delivery::PullRequestRef,
    names::Prose,
    tasks::Criterion,
    workflow::{
        evidence::Evidence,
        findings::VerificationFinding,
        handoffs::{FailureDecision, HandoffRequest, ReadyUnit, RunHandoff, VerifyOutcome},
        jobs::JobSpec,
        plan::{Plan, PlanFeedback, UnitKey},
        units::UnitView,
        waits::EndedWait,
    },
};
use cynode_wire::workflow::TaskContext;
use serde_json::Value;

/// Error of a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The error may pass: the step is retried after a delay.
    #[error("{0}")]
    Transient(String),
    /// The answer is unusable: the question is asked again at once.
    #[error("{0}")]
    Domain(String),
    /// No decision was reached: a person decides whether to retry.
    #[error("{0}")]
    Undecided(String),
    /// The error is permanent: the task fails.
    #[error("{0}")]
    Permanent(String),
    /// No connected agent can do the step.
    #[error("no project manager is connected")]
    Unattended,
}

/// Reply of an agent: a result, a question to a person, or a handoff.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentReply<T> {
    /// The result, and its cost in millionths.
    Done(T, u64),
    /// A question that a person must answer first, and the cost so far.
    Ask(String, u64),
    /// A handoff to create; its answer wakes the run. The text is the key of the question.
    Later(Box<HandoffRequest>, String),
    /// The handoff exists and is not answered yet.
    Waiting,
}

/// The previous handoff of the run, if there is one.
pub type PreviousHandoff<'a> = Option<&'a RunHandoff>;

/// Input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Context of the task.
    pub task: &'a TaskContext,
    /// Acceptance criteria.
    pub criteria: &'a [Criterion],
    /// Previous plan, for a replan.
    pub before: Option<&'a Plan>,
    /// Feedback of people since the previous plan.
    pub feedback: &'a [PlanFeedback],
    /// Answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Attempt number.
    pub attempt: u32,
    /// Units of the previous plan that were started, with their attempts.
    pub begun: &'a BTreeMap<UnitKey, u32>,
    /// Previous handoff.
    pub handed: PreviousHandoff<'a>,
}

/// Input of a verification.
#[derive(Clone, Copy, Debug)]
pub struct VerifyRequest<'a> {
    /// Context of the task.
    pub task: &'a TaskContext,
    /// Acceptance criteria.
    pub criteria: &'a [Criterion],
    /// Key of the unit.
    pub unit: &'a UnitKey,
    /// Title of the unit.
    pub title: &'a Prose,
    /// Payload of the unit in the plan.
    pub payload: &'a Value,
    /// Plan of the unit.
    pub plan: Option<&'a Plan>,
    /// Attempt number of the unit.
    pub unit_attempt: u32,
    /// Number of attempts that the unit has left.
    pub attempts_left: u32,
    /// Report of the worker: a claim, not evidence.
    pub output: &'a Value,
    /// Results of the orchestrator's own checks.
    pub evidence: &'a Evidence,
    /// Answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Attempt number of the verification.
    pub attempt: u32,
    /// Previous handoff.
    pub handed: PreviousHandoff<'a>,
}

/// Verdict on a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationResult {
    /// Outcome of the verification.
    pub outcome: VerifyOutcome,
    /// Findings about the result.
    pub findings: Vec<VerificationFinding>,
    /// Recommended actions for the findings.
    pub recommended_actions: Vec<String>,
    /// Note for the timeline.
    pub note: String,
    /// Whether a person decided it. Such a verdict counts regardless of the number of attempts.
    pub by_person: bool,
    /// Reason for accepting the result although evidence speaks against it.
    pub waived: Option<String>,
}

/// Ready units to which a worker must be assigned.
#[derive(Clone, Debug)]
pub struct DispatchRequest<'a> {
    /// Units that are ready for dispatch.
    pub units: Vec<ReadyUnit>,
    /// Previous handoff.
    pub handed: PreviousHandoff<'a>,
}

/// Input of a decision about a failed unit.
#[derive(Clone, Copy, Debug)]
pub struct FailureRequest<'a> {
    /// The failed unit.
    pub unit: &'a UnitView,
    /// Payload of the unit in the plan.
    pub payload: &'a Value,
    /// Attempt number that failed.
    pub attempt: u32,
    /// Number of attempts left.
    pub attempts_left: u32,
    /// Reason of the failure.
    pub why: &'a str,
    /// Answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Previous handoff.
    pub handed: PreviousHandoff<'a>,
}

/// Decision about a failed unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRemedy {
    /// The decision.
    pub decision: FailureDecision,
    /// Reason, and what to change in the next attempt.
    pub note: Option<String>,
    /// Whether a person decided it. Such a decision counts regardless of the number of attempts.
    pub by_person: bool,
}

/// Input of a summary: a task whose units are done.
#[derive(Clone, Copy, Debug)]
pub struct SummaryRequest<'a> {
    /// Units of the task.
    pub units: &'a [UnitView],
    /// Answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Previous handoff.
    pub handed: PreviousHandoff<'a>,
}

/// Summary of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSummary {
    /// Text for the requester.
    pub text: String,
    /// Pull request by which the work was delivered.
    pub pull_request: Option<PullRequestRef>,
}

/// Future of an agent's reply.
pub type AgentFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<AgentReply<T>, StepError>> + Send + 'a>>;

/// The agents, as steps see them. The same question may get different answers; only the checkpointed answer counts.
pub trait AgentBackend: Send + Sync {
    /// Creates a plan.
    fn create_plan<'a>(&'a self, request: PlanRequest<'a>) -> AgentFuture<'a, Plan>;

    /// Verifies a result.
    fn verify_result<'a>(
        &'a self,
        request: VerifyRequest<'a>,
    ) -> AgentFuture<'a, VerificationResult>;

    /// Assigns workers to units whose plan names none. By default the units are dispatched as they are.
    fn assign_units<'a>(
        &'a self,
        _: DispatchRequest<'a>,
    ) -> AgentFuture<'a, Vec<(UnitKey, JobSpec)>> {
        Box::pin(async { Ok(AgentReply::Done(Vec::new(), 0)) })
    }

    /// Decides about a failed unit. By default it is retried.
    fn handle_unit_failure<'a>(&'a self, _: FailureRequest<'a>) -> AgentFuture<'a, FailureRemedy> {
        Box::pin(async {
            let (decision, note, by_person) = (FailureDecision::Retry, None, false);
            Ok(AgentReply::Done(FailureRemedy { decision, note, by_person }, 0))
        })
    }

    /// Delivers the work of a task and summarizes it. By default there is no summary.
    fn summarize_run<'a>(&'a self, _: SummaryRequest<'a>) -> AgentFuture<'a, Option<RunSummary>> {
        Box::pin(async { Ok(AgentReply::Done(None, 0)) })
    }
}

/// Backend without agents: runs wait until one is connected.
#[derive(Clone, Copy, Debug)]
pub struct DisconnectedBackend;

impl AgentBackend for DisconnectedBackend {
    fn create_plan<'a>(&'a self, _: PlanRequest<'a>) -> AgentFuture<'a, Plan> {
        Box::pin(async { Err(StepError::Unattended) })
    }

    fn verify_result<'a>(&'a self, _: VerifyRequest<'a>) -> AgentFuture<'a, VerificationResult> {
        Box::pin(async { Err(StepError::Unattended) })
    }
}
