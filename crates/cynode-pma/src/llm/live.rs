use cynode_core::{models::no_model_message, workflow::handoffs::ModelDecision};
use cynode_wire::manager::handoffs::{
    BeginDecision, DecisionPermit, HandoffAssignment, RecordDecision,
};
use serde_json::Value;

use super::{
    AnswerSchema, AnswerValidator, LlmClient, StructuredCompletion, build_completion_request,
    decision_kind_name, find_recorded_answer, request_digest, schema_digest, select_model,
};
use crate::{
    decision_context::{BoxedFuture, DecisionBackend, DecisionError, DecisionRequest},
    mcp_client::{OrchestratorClient, retry_while_away},
};

/// Decision backend for one handoff, by the orchestrator's inference endpoint.
#[derive(Debug)]
pub struct LiveBackend<'a> {
    handoff: &'a HandoffAssignment,
    voice: LlmClient,
    host: OrchestratorClient,
    temperature: f64,
}

impl<'a> LiveBackend<'a> {
    /// Creates the backend of a handoff: it asks models through `voice` and records decisions through `host`.
    pub const fn new(
        handoff: &'a HandoffAssignment,
        voice: LlmClient,
        host: OrchestratorClient,
        temperature: f64,
    ) -> Self {
        Self { handoff, voice, host, temperature }
    }

    async fn resolve_decision(
        &self,
        ask: &DecisionRequest,
        check: AnswerValidator<'_>,
    ) -> Result<Value, DecisionError> {
        let form = AnswerSchema::from_schema(&ask.schema)
            .map_err(|why| DecisionError::Permanent(format!("a form cannot be used: {why}")))?;
        let digest = request_digest(ask);
        if let Some(known) = find_recorded_answer(&self.handoff.decisions, ask, &digest)
            && let Ok(known) = form.validate_answer(known.clone(), check)
        {
            tracing::info!(event = "think_call.replayed", handoff = %self.handoff.handoff_id, kind = decision_kind_name(ask.kind), step = ask.step);
            return Ok(known);
        }
        let model = select_model(&self.handoff.models, ask.tier).ok_or_else(|| {
            // A model may become available at any time; the next claim of the handoff can then use it.
            DecisionError::Transient(no_model_message())
        })?;
        self.announce_decision().await?;
        let temperature = super::temperature_for_kind(ask.kind, self.temperature);
        let insisted = self.voice.complete_structured(ask, &form, model, temperature, check).await;
        tracing::info!(
            event = "think_call.completed", handoff = %self.handoff.handoff_id, kind = decision_kind_name(ask.kind), step = ask.step, model,
            attempts = insisted.attempts, input_tokens = insisted.input_tokens, output_tokens = insisted.output_tokens,
            milliseconds = insisted.latency.as_millis(), answered = insisted.answer.is_ok(),
        );
        // No model has answered: there is nothing to record.
        if insisted.texts.is_empty() {
            return insisted.answer;
        }
        let prompt = build_completion_request(ask, &form, model, temperature, None);
        let recorded = self
            .record_decision(
                build_decision_record(ask, digest, model, &insisted),
                prompt,
                &insisted,
            )
            .await;
        match insisted.answer {
            // An answer that could not be recorded is not used: another process might get a different one.
            Ok(value) => recorded.map(|()| value),
            Err(trouble) => Err(trouble),
        }
    }

    /// Announces a model call to the orchestrator, which rejects it while a person has paused the task.
    async fn announce_decision(&self) -> Result<(), DecisionError> {
        let HandoffAssignment { handoff_id, fencing_token, .. } = *self.handoff;
        let begin = BeginDecision { handoff_id, fencing_token };
        let trace = &self.handoff.context.trace_id;
        match retry_while_away(|| self.host.begin_decision(trace, &begin)).await {
            Ok(DecisionPermit { paused: false }) => Ok(()),
            Ok(DecisionPermit { paused: true }) => Err(DecisionError::Paused),
            Err(error) => Err(error.into_decision_error("a decision could not be begun")),
        }
    }

    async fn record_decision(
        &self,
        decision: ModelDecision,
        prompt: Value,
        insisted: &StructuredCompletion,
    ) -> Result<(), DecisionError> {
        let record = RecordDecision {
            handoff_id: self.handoff.handoff_id,
            fencing_token: self.handoff.fencing_token,
            decision,
            prompt,
            calls: insisted.calls.clone(),
        };
        let trace = &self.handoff.context.trace_id;
        let recorded = retry_while_away(|| self.host.record_decision(trace, &record)).await;
        recorded.map_err(|error| error.into_decision_error("a decision could not be recorded"))
    }
}

fn build_decision_record(
    ask: &DecisionRequest,
    prompt_digest: String,
    model: &str,
    insisted: &StructuredCompletion,
) -> ModelDecision {
    ModelDecision {
        step: ask.step,
        kind: decision_kind_name(ask.kind).to_owned(),
        prompt_digest,
        schema_digest: schema_digest(&ask.schema),
        model: model.to_owned(),
        output: insisted.answer.as_ref().ok().cloned(),
        attempts: insisted.attempts,
        validation_errors: insisted.complaints.clone(),
        input_tokens: insisted.input_tokens,
        output_tokens: insisted.output_tokens,
        latency_ms: u64::try_from(insisted.latency.as_millis()).unwrap_or(u64::MAX),
    }
}

impl DecisionBackend for LiveBackend<'_> {
    fn request_decision<'b>(
        &'b self,
        ask: DecisionRequest,
        check: AnswerValidator<'b>,
    ) -> BoxedFuture<'b, Result<Value, DecisionError>> {
        Box::pin(async move { self.resolve_decision(&ask, check).await })
    }
}
