//! What nodes need from agents: a plan, and a judgement.

use std::{future::Future, pin::Pin};

use cynode_core::{
    names::Prose,
    tasks::Criterion,
    workflow::plan::{Plan, UnitKey},
};
use cynode_wire::workflow::{EndedWait, Feedback, Finding, TaskContext, VerificationStatus};
use serde_json::Value;

/// Why a node's work came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// It may pass: tried again after a while.
    #[error("{0}")]
    Transient(String),
    /// The answer cannot be used: asked again at once.
    #[error("{0}")]
    Domain(String),
    /// It will not pass: the task is given up.
    #[error("{0}")]
    Permanent(String),
    /// No agent is connected that could do it.
    #[error("no project manager is connected")]
    Unattended,
}

/// What an agent gives: what was asked for, or a question to a person.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<T> {
    /// What was asked for, and what it cost in millionths.
    Done(T, u64),
    /// A person must say something first.
    Ask(String),
}

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
    pub feedback: &'a [Feedback],
    /// The answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Which attempt it is.
    pub attempt: u32,
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
    /// Which attempt of the unit.
    pub unit_attempt: u32,
    /// What the worker reported: a claim, not evidence.
    pub output: &'a Value,
    /// The answer to the last question.
    pub answer: Option<&'a EndedWait>,
    /// Which attempt of the judgement it is.
    pub attempt: u32,
}

/// A judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Whether it is good.
    pub status: VerificationStatus,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What to do about it.
    pub recommended_actions: Vec<String>,
}

/// The future of a reply.
pub type Thinking<'a, T> = Pin<Box<dyn Future<Output = Result<Reply<T>, NodeError>> + Send + 'a>>;

/// The agents, as nodes see them. Asked the same twice, an answer may differ; only the one that is checkpointed counts.
pub trait Mind: Send + Sync {
    /// Makes a plan.
    fn plan<'a>(&'a self, request: PlanRequest<'a>) -> Thinking<'a, Plan>;

    /// Judges a result.
    fn verify<'a>(&'a self, request: VerifyRequest<'a>) -> Thinking<'a, Judgement>;
}

/// Nobody is there: runs wait until somebody is.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Mind for Nobody {
    fn plan<'a>(&'a self, _: PlanRequest<'a>) -> Thinking<'a, Plan> {
        Box::pin(async { Err(NodeError::Unattended) })
    }

    fn verify<'a>(&'a self, _: VerifyRequest<'a>) -> Thinking<'a, Judgement> {
        Box::pin(async { Err(NodeError::Unattended) })
    }
}
