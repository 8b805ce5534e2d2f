//! Agent backend: what steps need from agents, which is a plan and a verdict.

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

/// Why a node's work came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// It may pass: tried again after a while.
    #[error("{0}")]
    Transient(String),
    /// The answer cannot be used: asked again at once.
    #[error("{0}")]
    Domain(String),
    /// It could not be thought through: a person says whether it is tried once more.
    #[error("{0}")]
    Undecided(String),
    /// It will not pass: the task is given up.
    #[error("{0}")]
    Permanent(String),
    /// No agent is connected that could do it.
    #[error("no project manager is connected")]
    Unattended,
}

/// What an agent gives: what was asked for, a question to a person, or its word that it comes later.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentReply<T> {
    /// What was asked for, and what it cost in millionths.
    Done(T, u64),
    /// A person must say something first; what it cost to find that out.
    Ask(String, u64),
    /// It is to be handed off; the run is woken by the answer. The text names the question.
    Later(Box<HandoffRequest>, String),
    /// It was handed off, and is not answered yet.
    Waiting,
}

/// What was handed off before, as the run found it.
pub type PreviousHandoff<'a> = Option<&'a RunHandoff>;

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The task.
    pub task: &'a TaskContext,
    /// What must be shown for it to be done.
    pub criteria: &'a [Criterion],
    /// The plan before, when it is made anew.
    pub before: Option<&'a Plan>,
    /// What people said since.
    pub feedback: &'a [PlanFeedback],
    /// The answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Which attempt it is.
    pub attempt: u32,
    /// The units of the plan before that have been begun.
    pub begun: &'a BTreeMap<UnitKey, u32>,
    /// What was handed off before.
    pub handed: PreviousHandoff<'a>,
}

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct VerifyRequest<'a> {
    /// The task.
    pub task: &'a TaskContext,
    /// What must be shown for it to be done.
    pub criteria: &'a [Criterion],
    /// The unit.
    pub unit: &'a UnitKey,
    /// What was to be done.
    pub title: &'a Prose,
    /// What the plan says of it.
    pub payload: &'a Value,
    /// The plan it belongs to.
    pub plan: Option<&'a Plan>,
    /// Which attempt of the unit.
    pub unit_attempt: u32,
    /// How often the unit may be tried again.
    pub attempts_left: u32,
    /// What the worker reported: a claim, not evidence.
    pub output: &'a Value,
    /// What the orchestrator's own checks showed of it.
    pub evidence: &'a Evidence,
    /// The answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Which attempt of the judgement it is.
    pub attempt: u32,
    /// What was handed off before.
    pub handed: PreviousHandoff<'a>,
}

/// A judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationResult {
    /// What follows.
    pub outcome: VerifyOutcome,
    /// What was found.
    pub findings: Vec<VerificationFinding>,
    /// What to do about it.
    pub recommended_actions: Vec<String>,
    /// For the timeline.
    pub note: String,
    /// A person decided it: it counts whatever the number of attempts.
    pub by_person: bool,
    /// Why it is accepted though evidence speaks against it.
    pub waived: Option<String>,
}

/// Units that may be sent, and of which somebody must say by whom they are done.
#[derive(Clone, Debug)]
pub struct DispatchRequest<'a> {
    /// The units.
    pub units: Vec<ReadyUnit>,
    /// What was handed off before.
    pub handed: PreviousHandoff<'a>,
}

/// A unit that came to nothing.
#[derive(Clone, Copy, Debug)]
pub struct FailureRequest<'a> {
    /// The unit.
    pub unit: &'a UnitView,
    /// What the plan says of it.
    pub payload: &'a Value,
    /// The attempt.
    pub attempt: u32,
    /// How many are left.
    pub attempts_left: u32,
    /// Why.
    pub why: &'a str,
    /// The answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// What was handed off before.
    pub handed: PreviousHandoff<'a>,
}

/// What is to be done about a unit that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRemedy {
    /// What.
    pub decision: FailureDecision,
    /// Why, and what is to be done otherwise.
    pub note: Option<String>,
    /// A person decided it: it counts whatever the number of attempts.
    pub by_person: bool,
}

/// A task whose units are done.
#[derive(Clone, Copy, Debug)]
pub struct SummaryRequest<'a> {
    /// The units.
    pub units: &'a [UnitView],
    /// The answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// What was handed off before.
    pub handed: PreviousHandoff<'a>,
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSummary {
    /// For whoever asked for it.
    pub text: String,
    /// What the work was delivered as.
    pub pull_request: Option<PullRequestRef>,
}

/// The future of a reply.
pub type AgentFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<AgentReply<T>, StepError>> + Send + 'a>>;

/// The agents, as nodes see them. Asked the same twice, an answer may differ; only the one that is checkpointed counts.
pub trait AgentBackend: Send + Sync {
    /// Makes a plan.
    fn create_plan<'a>(&'a self, request: PlanRequest<'a>) -> AgentFuture<'a, Plan>;

    /// Judges a result.
    fn verify_result<'a>(
        &'a self,
        request: VerifyRequest<'a>,
    ) -> AgentFuture<'a, VerificationResult>;

    /// Says who does units whose plan does not. Without a word they are sent as they are.
    fn assign_units<'a>(
        &'a self,
        _: DispatchRequest<'a>,
    ) -> AgentFuture<'a, Vec<(UnitKey, JobSpec)>> {
        Box::pin(async { Ok(AgentReply::Done(Vec::new(), 0)) })
    }

    /// Says what to do about a unit that came to nothing: without a word it is tried again.
    fn handle_unit_failure<'a>(&'a self, _: FailureRequest<'a>) -> AgentFuture<'a, FailureRemedy> {
        Box::pin(async {
            let (decision, note, by_person) = (FailureDecision::Retry, None, false);
            Ok(AgentReply::Done(FailureRemedy { decision, note, by_person }, 0))
        })
    }

    /// Delivers what a task brought, and says what came of it; without a word it is counted.
    fn summarize_run<'a>(&'a self, _: SummaryRequest<'a>) -> AgentFuture<'a, Option<RunSummary>> {
        Box::pin(async { Ok(AgentReply::Done(None, 0)) })
    }
}

/// Nobody is there: runs wait until somebody is.
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
