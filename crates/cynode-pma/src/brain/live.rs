use cynode_wire::handoffs::{BeginThought, Handoff, RecordThought, Thought, ThoughtBegun};
use serde_json::Value;

use super::{
    Check, Form, Insisted, Voice, digest, model, name, question, remembered, schema_digest,
};
use crate::{
    backoff::Backoff,
    desk::{Ask, Boxed, Brain, Trouble},
    gate::{Host, HostError},
};

/// How often the orchestrator is told of a thought that it cannot take.
const MOST_RECORDINGS: u32 = 3;

/// Thinks for one handoff, at the orchestrator's model egress.
#[derive(Debug)]
pub struct Live<'a> {
    handoff: &'a Handoff,
    voice: Voice,
    host: Host,
    temperature: f64,
}

impl<'a> Live<'a> {
    /// A brain for a handoff: its models through `voice`, its thoughts kept by `host`.
    pub const fn new(handoff: &'a Handoff, voice: Voice, host: Host, temperature: f64) -> Self {
        Self { handoff, voice, host, temperature }
    }

    async fn think(&self, ask: &Ask, check: Check<'_>) -> Result<Value, Trouble> {
        let form = Form::of(&ask.schema)
            .map_err(|why| Trouble::Permanent(format!("a form cannot be used: {why}")))?;
        let digest = digest(ask);
        if let Some(known) = remembered(&self.handoff.thoughts, ask, &digest)
            && let Ok(known) = form.accept(known.clone(), check)
        {
            tracing::info!(event = "think.remembered", handoff = %self.handoff.handoff_id, kind = name(ask.kind), step = ask.step);
            return Ok(known);
        }
        let model = model(&self.handoff.models, ask.tier).ok_or_else(|| {
            // One may be offered again at any moment, and whoever takes the handoff then has it.
            Trouble::Transient("the handoff opens no model: an admin must offer one".into())
        })?;
        self.begin().await?;
        let temperature = super::temperature(ask.kind, self.temperature);
        let insisted = self.voice.insist(ask, &form, model, temperature, check).await;
        tracing::info!(
            event = "think.asked", handoff = %self.handoff.handoff_id, kind = name(ask.kind), step = ask.step, model,
            attempts = insisted.attempts, input_tokens = insisted.input_tokens, output_tokens = insisted.output_tokens,
            milliseconds = insisted.latency.as_millis(), answered = insisted.answer.is_ok(),
        );
        // Nobody was heard: there is nothing to keep.
        if insisted.texts.is_empty() {
            return insisted.answer;
        }
        let prompt = question(ask, &form, model, temperature, None);
        let recorded = self.record(thought(ask, digest, model, &insisted), prompt, &insisted).await;
        match insisted.answer {
            // An answer that could not be kept is not used: another process might get another.
            Ok(value) => recorded.map(|()| value),
            Err(trouble) => Err(trouble),
        }
    }

    /// Says that a model is about to be asked; it is not while a person has paused the task.
    async fn begin(&self) -> Result<(), Trouble> {
        let Handoff { handoff_id, fencing_token, .. } = *self.handoff;
        let begin = BeginThought { handoff_id, fencing_token };
        let (mut tries, mut backoff) = (0, Backoff::default());
        loop {
            tries += 1;
            match self.host.begin(&self.handoff.context.trace_id, &begin).await {
                Ok(ThoughtBegun { paused: false }) => return Ok(()),
                Ok(ThoughtBegun { paused: true }) => return Err(Trouble::Paused),
                Err(HostError::Away(_)) if tries < MOST_RECORDINGS => backoff.pass().await,
                Err(HostError::Away(why) | HostError::Fenced(why)) => {
                    return Err(Trouble::Transient(format!("a thought could not be begun: {why}")));
                }
                Err(HostError::Refused(why)) => {
                    return Err(Trouble::Permanent(format!("a thought could not be begun: {why}")));
                }
            }
        }
    }

    async fn record(
        &self,
        thought: Thought,
        prompt: Value,
        insisted: &Insisted,
    ) -> Result<(), Trouble> {
        let record = RecordThought {
            handoff_id: self.handoff.handoff_id,
            fencing_token: self.handoff.fencing_token,
            thought,
            prompt,
            calls: insisted.calls.clone(),
        };
        let (mut tries, mut backoff) = (0, Backoff::default());
        loop {
            tries += 1;
            match self.host.record(&self.handoff.context.trace_id, &record).await {
                Ok(()) => return Ok(()),
                Err(HostError::Away(_)) if tries < MOST_RECORDINGS => backoff.pass().await,
                Err(HostError::Away(why) | HostError::Fenced(why)) => {
                    return Err(Trouble::Transient(format!("a thought could not be kept: {why}")));
                }
                Err(HostError::Refused(why)) => {
                    return Err(Trouble::Permanent(format!("a thought could not be kept: {why}")));
                }
            }
        }
    }
}

fn thought(ask: &Ask, prompt_digest: String, model: &str, insisted: &Insisted) -> Thought {
    Thought {
        step: ask.step,
        kind: name(ask.kind).to_owned(),
        prompt_digest,
        schema_digest: schema_digest(&ask.schema),
        model: model.to_owned(),
        output: insisted.answer.as_ref().ok().cloned(),
        attempts: insisted.attempts,
        complaints: insisted.complaints.clone(),
        input_tokens: insisted.input_tokens,
        output_tokens: insisted.output_tokens,
        latency_ms: u64::try_from(insisted.latency.as_millis()).unwrap_or(u64::MAX),
    }
}

impl Brain for Live<'_> {
    fn ask<'b>(&'b self, ask: Ask, check: Check<'b>) -> Boxed<'b, Result<Value, Trouble>> {
        Box::pin(async move { self.think(&ask, check).await })
    }
}
