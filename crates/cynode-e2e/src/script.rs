//! Agents and workers that run a script: plans, results, findings and failures come from a file and are always the same.
//!
//! The first word of a task's description names its script.

use std::{collections::BTreeMap, path::Path, time::Duration};

use cynode_core::workflow::{
    findings::{FindingSeverity, VerificationFinding},
    handoffs::VerifyOutcome,
    plan::{Plan, PlanText},
    waits::WaitResolution,
};
use cynode_runner::agent_backend::{
    AgentBackend, AgentFuture, AgentReply, PlanRequest, StepError, VerificationResult,
    VerifyRequest,
};
use cynode_testkit::pause;
use cynode_wire::workflow::jobs::JobOutcome;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Every script, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scripts(pub BTreeMap<String, Script>);

/// The course of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The plan of the task.
    pub plan: PlanText,
    /// Failures of the first attempts at planning.
    #[serde(default)]
    pub plan_failures: Vec<Failure>,
    /// A question that is asked before the plan is made.
    #[serde(default)]
    pub question: Option<String>,
    /// Duration of planning and reviewing in milliseconds.
    #[serde(default)]
    pub think_ms: u64,
    /// Duration of a job in milliseconds.
    #[serde(default)]
    pub work_ms: u64,
    /// Outcomes of a unit's attempts, in order; later attempts succeed.
    #[serde(default)]
    pub attempts: BTreeMap<String, Vec<Attempt>>,
}

/// Kind of failure of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A retry may succeed.
    Transient,
    /// The answer cannot be used.
    Domain,
    /// A retry cannot succeed.
    Permanent,
}

/// Outcome of one attempt of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// The job succeeds, and the review approves it.
    #[default]
    Good,
    /// The job succeeds, and the review rejects it.
    Bad,
    /// The job fails.
    Fails,
    /// The worker disappears.
    Vanishes,
}

impl Scripts {
    /// Reads a file of scripts.
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns the script that a description names.
    pub fn of(&self, description: &str) -> Option<(&str, &Script)> {
        let name = description.split_whitespace().next()?;
        self.0.get_key_value(name).map(|(name, script)| (name.as_str(), script))
    }

    /// Returns the outcome of an attempt.
    pub fn attempt(&self, script: &str, unit: &str, attempt: u32) -> Attempt {
        let planned = self.0.get(script).and_then(|script| script.attempts.get(unit));
        let index = usize::try_from(attempt).unwrap_or(1).saturating_sub(1);
        planned.and_then(|attempts| attempts.get(index)).copied().unwrap_or_default()
    }

    /// Returns the report of a worker about an attempt; `None` if it disappears.
    pub fn outcome(&self, script: &str, unit: &str, attempt: u32) -> Option<(JobOutcome, Value)> {
        let result = json!({ "unit": unit, "attempt": attempt });
        match self.attempt(script, unit, attempt) {
            Attempt::Good | Attempt::Bad => Some((JobOutcome::Succeeded, result)),
            Attempt::Fails => Some((JobOutcome::Failed, result)),
            Attempt::Vanishes => None,
        }
    }
}

/// Agents that run a script.
#[derive(Clone, Debug)]
pub struct ScriptedBackend(pub Scripts);

async fn think(script: &Script) {
    if script.think_ms > 0 {
        pause(Duration::from_millis(script.think_ms)).await;
    }
}

impl ScriptedBackend {
    fn script(&self, description: &str) -> Result<(&str, &Script), StepError> {
        let none = || StepError::Permanent(format!("no script is called `{description}`"));
        self.0.of(description).ok_or_else(none)
    }
}

impl AgentBackend for ScriptedBackend {
    fn create_plan<'a>(&'a self, request: PlanRequest<'a>) -> AgentFuture<'a, Plan> {
        Box::pin(async move {
            let (name, script) = self.script(request.task.description.as_str())?;
            think(script).await;
            let attempt = usize::try_from(request.attempt).unwrap_or(1).saturating_sub(1);
            match script.plan_failures.get(attempt) {
                Some(Failure::Transient) => return Err(StepError::Transient("scripted".into())),
                Some(Failure::Domain) => return Err(StepError::Domain("scripted".into())),
                Some(Failure::Permanent) => return Err(StepError::Permanent("scripted".into())),
                None => {}
            }
            let answered =
                request.answer.is_some_and(|wait| wait.resolution == WaitResolution::Answered);
            if let Some(question) = script.question.as_ref().filter(|_| !answered) {
                return Ok(AgentReply::Ask(question.clone(), 0));
            }
            let mut text = script.plan.clone();
            // Units with work for a node keep it; the others are for the scripted worker.
            for unit in text.steps.iter_mut().filter(|unit| unit.payload.get("work").is_none()) {
                unit.payload = json!({ "script": name, "work_ms": script.work_ms });
            }
            // Each message of a person becomes one unit.
            for (number, said) in request.feedback.iter().enumerate() {
                let key = format!("feedback-{}", number + 1);
                text.steps.push(cynode_core::workflow::plan::PlannedUnit {
                    key: key.parse().map_err(|_| StepError::Permanent("a bad key".into()))?,
                    title: said
                        .text
                        .parse()
                        .map_err(|_| StepError::Domain("a bad title".into()))?,
                    depends_on: Vec::new(),
                    payload: json!({ "script": name, "work_ms": script.work_ms }),
                });
            }
            let plan =
                Plan::try_from(text).map_err(|error| StepError::Domain(error.to_string()))?;
            Ok(AgentReply::Done(plan, 1000))
        })
    }

    fn verify_result<'a>(
        &'a self,
        request: VerifyRequest<'a>,
    ) -> AgentFuture<'a, VerificationResult> {
        Box::pin(async move {
            let (name, script) = self.script(request.task.description.as_str())?;
            think(script).await;
            let bad =
                self.0.attempt(name, request.unit.as_str(), request.unit_attempt) == Attempt::Bad;
            let findings = if bad {
                vec![VerificationFinding::new(FindingSeverity::Major, "scripted finding")]
            } else {
                Vec::new()
            };
            let outcome = if bad { VerifyOutcome::Redo } else { VerifyOutcome::Accept };
            let (recommended_actions, note) = (Vec::new(), String::new());
            let by_person = false;
            let judged = VerificationResult {
                outcome,
                findings,
                recommended_actions,
                note,
                by_person,
                waived: None,
            };
            Ok(AgentReply::Done(judged, 500))
        })
    }
}
