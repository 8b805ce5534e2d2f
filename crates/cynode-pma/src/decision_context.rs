//! Decision context of one handoff: its request, the model client and the tool client.

use std::{future::Future, pin::Pin};

use cynode_core::models::Tier;
use cynode_wire::manager::handoffs::HandoffAssignment;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A future that is boxed.
pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the project manager thinks about. The list is closed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// What an input asks for.
    Classify,
    /// How much it touches.
    AssessScope,
    /// How a project without words for agents is laid out.
    AnalyseProject,
    /// Which units.
    Plan,
    /// What a unit's agent is to be told.
    RefineTask,
    /// Whether a result is good.
    ReviewArtifact,
    /// What to do about a failure.
    HandleFailure,
    /// Who is to do something.
    Route,
    /// Whether tests are needed.
    ChooseTests,
    /// What came of a task.
    Summarise,
    /// What a schedule means.
    InterpretSchedule,
}

/// The answer to one kind of question: typed, with a schema, and checked.
pub trait DecisionOutput: Serialize + DeserializeOwned + JsonSchema + Send {
    /// What is decided.
    const KIND: DecisionKind;

    /// How much thought it is worth, when nobody says otherwise.
    const TIER: Tier;

    /// What a schema cannot say. The words go back to the model.
    fn validate_decision(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A question that is ready to be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// The number of the question in its handoff, from 0.
    pub step: u32,
    /// What is decided.
    pub kind: DecisionKind,
    /// How much thought it is worth.
    pub tier: Tier,
    /// The JSON Schema of the answer.
    pub schema: Value,
    /// The system message: parts 1 to 5 of the composition.
    pub system: String,
    /// The question itself: part 6.
    pub user: String,
}

/// Why something came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// It may pass.
    #[error("{0}")]
    Transient(String),
    /// It may pass, but what was asked for in vain may be paid for.
    #[error("{0}")]
    Late(String),
    /// It will not pass.
    #[error("{0}")]
    Permanent(String),
    /// A person paused the task: the orchestrator has the handoff again, and there is nothing to say about it.
    #[error("a person paused the task")]
    Paused,
    /// The gate refused a tool: a hard failure, never tried again.
    #[error("the gate refused `{tool}`: {reason}")]
    Refused {
        /// The tool.
        tool: String,
        /// The name of the reason.
        code: String,
        /// In words.
        reason: String,
    },
}

/// Whoever answers questions. Gives an answer that fits the schema and that `check` accepts, or says why there is none.
pub trait DecisionBackend: Send + Sync {
    /// Asks. `check` says in words what is wrong with an answer that the schema lets through.
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: &'a (dyn Fn(&Value) -> Result<(), String> + Send + Sync),
    ) -> BoxedFuture<'a, Result<Value, DecisionError>>;
}

/// Whoever calls tools, through the gate, in the name of the handoff's person.
pub trait ToolClient: Send + Sync {
    /// Calls a tool by its dotted name and gives its structured result.
    fn call_tool<'a>(
        &'a self,
        tool: &'a str,
        arguments: Value,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>>;
}

/// One handoff and the ways out.
pub struct DecisionContext<'a> {
    /// What is asked, and about what.
    pub handoff: &'a HandoffAssignment,
    /// Parts 1 to 5 of the composition; the same in every question of the handoff.
    pub system: String,
    /// Most steps of a plan, 1 to 50.
    pub max_steps: u32,
    brain: &'a dyn DecisionBackend,
    hands: &'a dyn ToolClient,
    step: std::sync::atomic::AtomicU32,
}

impl<'a> DecisionContext<'a> {
    /// A desk for a handoff.
    pub fn new(
        handoff: &'a HandoffAssignment,
        system: String,
        max_steps: u32,
        brain: &'a dyn DecisionBackend,
        hands: &'a dyn ToolClient,
    ) -> Self {
        let step = std::sync::atomic::AtomicU32::new(0);
        Self { handoff, system, max_steps, brain, hands, step }
    }

    /// Thinks: one question, one typed answer, nothing kept.
    pub async fn make_decision<T: DecisionOutput>(&self, prompt: &str) -> Result<T, DecisionError> {
        self.make_decision_at_tier(prompt, T::TIER).await
    }

    /// Thinks with a hint how much thought it is worth.
    pub async fn make_decision_at_tier<T: DecisionOutput>(
        &self,
        prompt: &str,
        tier: Tier,
    ) -> Result<T, DecisionError> {
        self.make_checked_decision::<T>(prompt, tier, |_| Ok(())).await
    }

    /// Thinks by a rule that holds for this question only. Its words go back to the model.
    pub async fn make_checked_decision<T: DecisionOutput>(
        &self,
        prompt: &str,
        tier: Tier,
        rule: impl Fn(&T) -> Result<(), String> + Send + Sync,
    ) -> Result<T, DecisionError> {
        let step = self.step.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let schema = serde_json::to_value(schemars::schema_for!(T)).map_err(|error| {
            DecisionError::Permanent(format!("a schema cannot be written: {error}"))
        })?;
        let system = self.system.clone();
        let ask =
            DecisionRequest { step, kind: T::KIND, tier, schema, system, user: prompt.to_owned() };
        let read = |value: &Value| {
            let answer: T =
                serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
            answer.validate_decision()?;
            rule(&answer)
        };
        let value = self.brain.request_decision(ask, &read).await?;
        serde_json::from_value(value)
            .map_err(|error| DecisionError::Permanent(format!("an answer cannot be read: {error}")))
    }

    /// Calls a tool through the gate.
    pub async fn call_tool(&self, tool: &str, arguments: Value) -> Result<Value, DecisionError> {
        self.hands.call_tool(tool, arguments).await
    }
}
