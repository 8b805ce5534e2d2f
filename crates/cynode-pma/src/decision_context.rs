//! Decision context of one handoff: its request, the model client and the tool client.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{Mutex, MutexGuard},
};

use cynode_core::{models::Tier, sync::lock_unpoisoned, workflow::handoffs::TraceEvent};
use cynode_wire::manager::handoffs::HandoffAssignment;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// A boxed future.
pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Kind of a decision of the project manager. The list is closed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Classifies an input by the work it asks for.
    Classify,
    /// Assesses how much of the project an input affects.
    AssessScope,
    /// Analyses the layout of a project without instructions for agents.
    AnalyseProject,
    /// Proposes the units of a plan.
    Plan,
    /// Answers an agent's question about its unit.
    RefineTask,
    /// Reviews a result.
    ReviewArtifact,
    /// Decides about a failed unit.
    HandleFailure,
    /// Selects the role for a piece of work.
    Route,
    /// Decides whether tests are needed.
    ChooseTests,
    /// Summarizes a task.
    Summarise,
    /// Interprets a schedule.
    InterpretSchedule,
}

/// Typed answer of one decision kind, with a schema and validation.
pub trait DecisionOutput: Serialize + DeserializeOwned + JsonSchema + Send {
    /// Kind of the decision.
    const KIND: DecisionKind;

    /// Default model tier.
    const TIER: Tier;

    /// Validates rules that a schema cannot express. The error text is sent back to the model.
    fn validate_decision(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A decision request that is ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// Index of the decision in its handoff, from 0.
    pub step: u32,
    /// Kind of the decision.
    pub kind: DecisionKind,
    /// Model tier.
    pub tier: Tier,
    /// JSON Schema of the answer.
    pub schema: Value,
    /// System message: parts 1 to 5 of the composition.
    pub system: String,
    /// User message: part 6.
    pub user: String,
}

/// Error of a decision or a tool call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// The error may pass.
    #[error("{0}")]
    Transient(String),
    /// A timeout: the error may pass, but the failed request may be charged.
    #[error("{0}")]
    Late(String),
    /// A budget or a quota is used up; a person may raise it.
    #[error("{0}")]
    Budget(String),
    /// The trace of planning could not be stored: the attempt ends, and the error may pass.
    #[error("{0}")]
    Untraced(String),
    /// The error is permanent.
    #[error("{0}")]
    Permanent(String),
    /// A person paused the task. The orchestrator has the handoff again, and no result is reported.
    #[error("a person paused the task")]
    Paused,
    /// The gateway refused a tool call: a hard failure that is never retried.
    #[error("the gate refused `{tool}`: {reason}")]
    Refused {
        /// Name of the tool.
        tool: String,
        /// Code of the refusal.
        code: String,
        /// Reason in words.
        reason: String,
    },
}

/// Answers decision requests. An answer matches the schema and passes `check`; otherwise an error says why there is none.
pub trait DecisionBackend: Send + Sync {
    /// Requests a decision. `check` describes what is wrong with an answer that matches the schema.
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: &'a (dyn Fn(&Value) -> Result<(), String> + Send + Sync),
    ) -> BoxedFuture<'a, Result<Value, DecisionError>>;
}

/// A tool that the gateway offers to the caller.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedTool {
    /// Dotted name, `db.task.get`.
    pub name: String,
    /// Description of the tool.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input: Value,
    /// Whether it changes nothing.
    pub read_only: bool,
}

/// Calls tools through the gateway, on behalf of the handoff's user.
pub trait ToolClient: Send + Sync {
    /// Lists the tools that this caller may call.
    fn list_tools(&self) -> BoxedFuture<'_, Result<Vec<OfferedTool>, DecisionError>>;

    /// Calls a tool by its dotted name and returns its structured result.
    fn call_tool<'a>(
        &'a self,
        tool: &'a str,
        arguments: Value,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>>;
}

/// Stores the events of planning when they happen.
pub trait TraceRecorder: Send + Sync {
    /// Stores events. A repeated event has no effect.
    fn record_events<'a>(
        &'a self,
        events: &'a [TraceEvent],
    ) -> BoxedFuture<'a, Result<(), DecisionError>>;
}

/// Maximum size of the data of an event.
const MAX_EVENT_BYTES: usize = 12 * 1024;

/// Trace of planning that is being written.
#[derive(Debug, Default)]
struct TraceJournal {
    /// Profile of the trace. `None` while no trace is written.
    profile: Option<String>,
    /// Number of the last event.
    number: u32,
    /// The step that is under way, 0 before the first.
    step: u32,
    /// Events that are not stored yet.
    pending: Vec<TraceEvent>,
    /// Calls of the step that is under way, with their outcomes.
    calls: Vec<Value>,
}

/// Context of one handoff, with its backend and tool client.
pub struct DecisionContext<'a> {
    /// The handoff.
    pub handoff: &'a HandoffAssignment,
    /// Parts 1 to 5 of the composition, the same in every request of the handoff.
    pub system: String,
    /// Maximum number of steps of a plan, 1 to 50.
    pub max_steps: u32,
    brain: &'a dyn DecisionBackend,
    hands: &'a dyn ToolClient,
    recorder: &'a dyn TraceRecorder,
    step: std::sync::atomic::AtomicU32,
    journal: Mutex<TraceJournal>,
}

impl<'a> DecisionContext<'a> {
    /// Creates the context of a handoff.
    pub fn new(
        handoff: &'a HandoffAssignment,
        system: String,
        max_steps: u32,
        brain: &'a dyn DecisionBackend,
        hands: &'a dyn ToolClient,
        recorder: &'a dyn TraceRecorder,
    ) -> Self {
        let step = std::sync::atomic::AtomicU32::new(0);
        let journal = Mutex::new(TraceJournal::default());
        Self { handoff, system, max_steps, brain, hands, recorder, step, journal }
    }

    /// Requests one typed decision. Nothing is kept between decisions.
    pub async fn make_decision<T: DecisionOutput>(&self, prompt: &str) -> Result<T, DecisionError> {
        self.make_decision_at_tier(prompt, T::TIER).await
    }

    /// Requests a decision at the given model tier.
    pub async fn make_decision_at_tier<T: DecisionOutput>(
        &self,
        prompt: &str,
        tier: Tier,
    ) -> Result<T, DecisionError> {
        self.make_checked_decision::<T>(prompt, tier, |_| Ok(())).await
    }

    /// Requests a decision with an additional rule for this request. The rule's error text is sent back to the model.
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
        self.flush_trace().await?;
        let value = self.brain.request_decision(ask, &read).await?;
        serde_json::from_value(value)
            .map_err(|error| DecisionError::Permanent(format!("an answer cannot be read: {error}")))
    }

    /// Calls a tool through the gateway. While a trace is written, the call is recorded before it is made.
    pub async fn call_tool(&self, tool: &str, arguments: Value) -> Result<Value, DecisionError> {
        let traced = self.journal().profile.is_some();
        let mut note = json!({ "tool": tool });
        if let Some(path) = arguments.get("path") {
            note["path"] = path.clone();
        }
        if traced {
            self.trace_event("plan:call", note.clone());
            self.flush_trace().await?;
        }
        let answer = self.hands.call_tool(tool, arguments).await;
        if traced {
            note["outcome"] = call_outcome(&answer).into();
            self.journal().calls.push(note);
        }
        answer
    }

    /// Lists the tools that this handoff may call.
    pub async fn list_tools(&self) -> Result<Vec<OfferedTool>, DecisionError> {
        self.hands.list_tools().await
    }

    fn journal(&self) -> MutexGuard<'_, TraceJournal> {
        lock_unpoisoned(&self.journal)
    }

    /// Begins the trace of planning.
    pub(crate) fn begin_trace(&self, profile: &str) {
        self.journal().profile = Some(profile.to_owned());
    }

    /// Begins the next step of the trace.
    pub(crate) fn begin_trace_step(&self) {
        let mut journal = self.journal();
        journal.step = journal.step.saturating_add(1);
        journal.calls.clear();
    }

    /// Ends the steps: what follows is about the plan as a whole.
    pub(crate) fn end_trace_steps(&self) {
        self.journal().step = 0;
    }

    /// Returns the calls of the step so far and their outcomes.
    pub(crate) fn take_traced_calls(&self) -> Vec<Value> {
        mem::take(&mut self.journal().calls)
    }

    /// Adds an event to the trace. It is stored before the next call of a tool or a model.
    pub(crate) fn trace_event(&self, event: &str, data: Value) {
        let mut journal = self.journal();
        let Some(profile) = journal.profile.clone() else { return };
        let too_large = data.to_string().len() > MAX_EVENT_BYTES;
        let data = if too_large { json!({ "left_out": "it is too large" }) } else { data };
        journal.number = journal.number.saturating_add(1);
        let (number, step) = (journal.number, journal.step);
        let trace_id = self.handoff.context.trace_id.clone();
        tracing::info!(event, trace_id, step, profile, "planning");
        journal.pending.push(TraceEvent {
            number,
            event: event.to_owned(),
            trace_id,
            step,
            profile,
            data,
        });
    }

    /// Stores the events that are not stored yet.
    pub(crate) async fn flush_trace(&self) -> Result<(), DecisionError> {
        let pending = mem::take(&mut self.journal().pending);
        if pending.is_empty() {
            return Ok(());
        }
        let stored = self.recorder.record_events(&pending).await;
        if stored.is_err() {
            // They are stored with those that follow, if the attempt gets so far.
            self.journal().pending.splice(0..0, pending);
        }
        stored
    }
}

/// Returns how a call of a tool ended, as one word.
fn call_outcome(answer: &Result<Value, DecisionError>) -> &'static str {
    match answer {
        Ok(_) => "answered",
        Err(DecisionError::Refused { .. }) => "refused",
        Err(DecisionError::Transient(_) | DecisionError::Late(_)) => "unanswered",
        Err(
            DecisionError::Permanent(_)
            | DecisionError::Budget(_)
            | DecisionError::Untraced(_)
            | DecisionError::Paused,
        ) => "failed",
    }
}
