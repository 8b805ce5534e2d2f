//! Structured method of the evaluation: the context, client and prompts of production, with a row in place of a handoff's
//! payload.

use std::{collections::BTreeMap, sync::Mutex};

use cynode_core::{
    ids::HandoffId,
    sync::lock_unpoisoned,
    workflow::handoffs::{HandoffRequest, TraceEvent},
};
use cynode_wire::{
    identity::accounts::SecretText,
    manager::handoffs::{HandoffAssignment, HandoffContext},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::rows::{EvalRow, EvalTable, RowInput};
use crate::{
    decision_context::{
        BoxedFuture, DecisionBackend, DecisionContext, DecisionError, DecisionOutput,
        DecisionRequest, OfferedTool, ToolClient, TraceRecorder,
    },
    decisions::{
        prompts::{self, FailureQuestion, ReviewQuestion},
        types::{Classified, FailureHandled, Reviewed, Routed, Scoped},
    },
    llm::{self, AnswerSchema, AnswerValidator, LlmClient, StructuredCompletion},
    role::PmaRole,
};

/// Returns the role that decides about a table.
pub const fn role_for_table(table: EvalTable) -> PmaRole {
    match table {
        EvalTable::Review => PmaRole::ProjectAnalyst,
        EvalTable::Classify | EvalTable::Scope | EvalTable::Route | EvalTable::Failure => {
            PmaRole::ProjectManager
        }
    }
}

/// Builds the question about a row with the production prompts.
pub fn structured_question(row: &EvalRow) -> String {
    match &row.matter {
        RowInput::Classify { input, .. } => prompts::classify_prompt(input, None),
        RowInput::Scope { input, facts, .. } => prompts::assess_scope_prompt(input, facts),
        RowInput::Route { work, .. } => prompts::route_prompt(work),
        RowInput::Review { title, requirements, result, .. } => {
            prompts::review_prompt(&ReviewQuestion {
                title,
                requirements,
                result,
                ..ReviewQuestion::default()
            })
        }
        RowInput::Failure { title, attempt, attempts_left, failure, .. } => {
            let (attempt, attempts_left) = (*attempt, *attempts_left);
            prompts::handle_failure_prompt(&FailureQuestion {
                title,
                attempt,
                attempts_left,
                why: failure,
            })
        }
    }
}

/// Decides about a row in its own decision context and returns the whole decision.
pub async fn decide_row(
    brain: &dyn DecisionBackend,
    table: EvalTable,
    system: &str,
    user: &str,
) -> Result<Value, DecisionError> {
    let handoff = empty_handoff();
    let desk =
        DecisionContext::new(&handoff, system.to_owned(), 1, brain, &NoToolClient, &NoToolClient);
    match table {
        EvalTable::Classify => to_decision_value(desk.make_decision::<Classified>(user).await?),
        EvalTable::Scope => to_decision_value(desk.make_decision::<Scoped>(user).await?),
        EvalTable::Route => to_decision_value(desk.make_decision::<Routed>(user).await?),
        EvalTable::Review => to_decision_value(desk.make_decision::<Reviewed>(user).await?),
        EvalTable::Failure => to_decision_value(desk.make_decision::<FailureHandled>(user).await?),
    }
}

fn to_decision_value(decision: impl DecisionOutput) -> Result<Value, DecisionError> {
    serde_json::to_value(decision)
        .map_err(|error| DecisionError::Permanent(format!("a decision cannot be written: {error}")))
}

/// Returns the label of a decision.
pub fn label_of_decision(table: EvalTable, decision: &Value) -> Option<String> {
    decision.get(table.answer_field()).and_then(Value::as_str).map(str::to_owned)
}

/// Decision backend that asks a model and keeps the request and its answers.
pub struct CapturingBackend<'a> {
    voice: &'a LlmClient,
    model: &'a str,
    heard: Mutex<Option<(DecisionRequest, StructuredCompletion)>>,
}

impl<'a> CapturingBackend<'a> {
    /// Creates a backend for one request.
    pub const fn new(voice: &'a LlmClient, model: &'a str) -> Self {
        Self { voice, model, heard: Mutex::new(None) }
    }

    /// Takes the last request and its completion.
    pub fn take_capture(&self) -> Option<(DecisionRequest, StructuredCompletion)> {
        lock_unpoisoned(&self.heard).take()
    }
}

impl DecisionBackend for CapturingBackend<'_> {
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: AnswerValidator<'a>,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        Box::pin(async move {
            let form = AnswerSchema::from_schema(&ask.schema).map_err(DecisionError::Permanent)?;
            let temperature = llm::temperature_for_kind(ask.kind, 0.0);
            let insisted =
                self.voice.complete_structured(&ask, &form, self.model, temperature, check).await;
            let answer = insisted.answer.clone();
            *lock_unpoisoned(&self.heard) = Some((ask, insisted));
            answer
        })
    }
}

/// Decision backend that replays recorded answers in order until one is valid.
pub struct RecordedBackend<'a> {
    answers: &'a [String],
    taken: Mutex<Option<(DecisionRequest, usize)>>,
}

impl<'a> RecordedBackend<'a> {
    /// Creates a backend with these answers.
    pub const fn new(answers: &'a [String]) -> Self {
        Self { answers, taken: Mutex::new(None) }
    }

    /// Takes the request and the number of replayed answers.
    pub fn take_request(&self) -> Option<(DecisionRequest, usize)> {
        lock_unpoisoned(&self.taken).take()
    }
}

impl DecisionBackend for RecordedBackend<'_> {
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: AnswerValidator<'a>,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        let heard = AnswerSchema::from_schema(&ask.schema)
            .map_err(DecisionError::Permanent)
            .and_then(|form| {
                let read = self.answers.iter().map(|text| form.parse_answer(text, check));
                let taken = read.enumerate().find_map(|(at, read)| Some((at + 1, read.ok()?)));
                *lock_unpoisoned(&self.taken) =
                    Some((ask, taken.as_ref().map_or(self.answers.len(), |(heard, _)| *heard)));
                taken
                    .map(|(_, value)| value)
                    .ok_or_else(|| DecisionError::Permanent("no answer has the form".into()))
            });
        Box::pin(async { heard })
    }
}

/// Tool client that rejects all calls: an evaluation only decides.
struct NoToolClient;

impl TraceRecorder for NoToolClient {
    fn record_events<'a>(
        &'a self,
        _: &'a [TraceEvent],
    ) -> BoxedFuture<'a, Result<(), DecisionError>> {
        Box::pin(async { Ok(()) })
    }
}

impl ToolClient for NoToolClient {
    fn list_tools(&self) -> BoxedFuture<'_, Result<Vec<OfferedTool>, DecisionError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn call_tool<'a>(
        &'a self,
        tool: &'a str,
        _: Value,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        let refused = format!("an evaluation calls no tools, not `{tool}` either");
        Box::pin(async { Err(DecisionError::Permanent(refused)) })
    }
}

/// Returns a handoff without content: the row provides the question.
fn empty_handoff() -> HandoffAssignment {
    HandoffAssignment {
        handoff_id: HandoffId::from_uuid(Uuid::nil()),
        fencing_token: 0,
        attempt: 1,
        request: HandoffRequest::Plan {
            previous_plan: None,
            feedback: Vec::new(),
            answer: None,
            attempt: 1,
            started_units: Vec::new(),
        },
        context: HandoffContext::default(),
        token: SecretText(String::new()),
        models: Vec::new(),
        tool_models: Vec::new(),
        think_seconds: BTreeMap::new(),
        decisions: Vec::new(),
        delegated: Vec::new(),
        expires_at: OffsetDateTime::UNIX_EPOCH,
    }
}
