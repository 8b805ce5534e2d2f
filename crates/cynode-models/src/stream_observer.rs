//! Watching an answer that is passed on unchanged.

use cynode_net::sse::SseEvent;
use serde_json::Value;

use crate::dialect::{
    Dialect, DialectCodec as _, StreamDecoder,
    canonical::{
        CanonicalEvent, CanonicalResponse, ContentPart, ModelError, StopReason, TokenUsage,
        ToolCall, ToolInput,
    },
};

/// What was seen of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseObservation {
    /// The provider's name for the answer.
    pub id: String,
    /// The model that answered.
    pub model: String,
    /// Why it ended; `None` if it did not.
    pub stop: Option<StopReason>,
    /// What was used, if the provider said.
    pub usage: Option<TokenUsage>,
    /// The bytes that the model wrote: words, thoughts and what tools are given.
    pub output_bytes: u64,
    /// The calls of tools.
    pub tool_calls: u64,
    /// Why there is no more, if it failed or was cut short.
    pub error: Option<ModelError>,
}

/// Watches one answer, in the dialect that client and provider share.
///
/// The bytes go on as they are. Content that has no word of ours is passed over: it is between the two of them.
#[derive(Clone, Debug)]
pub struct ResponseObserver {
    dialect: Dialect,
    reader: StreamDecoder,
    seen: ResponseObservation,
}

impl ResponseObserver {
    /// An observer of `dialect`.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            reader: StreamDecoder::new_lenient(dialect),
            seen: ResponseObservation::default(),
        }
    }

    /// Watches one event of a stream.
    pub fn observe_event(&mut self, event: &SseEvent) {
        for event in self.reader.decode_event(event) {
            self.record_event(&event);
        }
    }

    /// The stream has ended.
    pub fn finish_stream(mut self) -> ResponseObservation {
        for event in self.reader.finish_stream() {
            self.record_event(&event);
        }
        self.seen
    }

    /// Whether the provider has said that its answer ends.
    pub(crate) const fn has_ended(&self) -> bool {
        self.seen.stop.is_some()
    }

    /// What was seen so far, by whoever reads the events for us.
    pub(crate) fn into_observation(self) -> ResponseObservation {
        self.seen
    }

    /// Watches a whole answer.
    pub fn observe_response(self, body: &Value) -> ResponseObservation {
        match self.dialect.decode_response(body) {
            Ok(answer) => observation_of(answer),
            // There may be content without a word of ours: the rest is still there to be read.
            Err(error) => match self.dialect.decode_response(&strip_unknown_content(body)) {
                Ok(answer) => observation_of(answer),
                Err(_) => {
                    ResponseObservation { error: Some(error), ..ResponseObservation::default() }
                }
            },
        }
    }

    /// Takes note of one event that was read already.
    pub(crate) fn record_event(&mut self, event: &CanonicalEvent) {
        let seen = &mut self.seen;
        match event {
            CanonicalEvent::Started { id, model, usage } => {
                (seen.id, seen.model, seen.usage) = (id.clone(), model.clone(), *usage);
            }
            CanonicalEvent::PartStarted { opening, .. } => {
                if let crate::dialect::canonical::PartStart::ToolCall { .. } = opening {
                    seen.tool_calls += 1;
                }
            }
            CanonicalEvent::TextDelta { text, .. }
            | CanonicalEvent::RefusalDelta { text, .. }
            | CanonicalEvent::ReasoningDelta { text, .. }
            | CanonicalEvent::ArgumentsDelta { text, .. } => seen.output_bytes += byte_len(text),
            CanonicalEvent::Sealed { .. } | CanonicalEvent::PartEnded { .. } => {}
            CanonicalEvent::Ended { stop, usage } => {
                seen.stop = Some(stop.clone());
                seen.usage = usage.or(seen.usage);
            }
            CanonicalEvent::Failed(error) => seen.error = Some(error.clone()),
        }
    }
}

fn observation_of(answer: CanonicalResponse) -> ResponseObservation {
    let said = answer.parts.iter().map(|part| match part {
        ContentPart::Text(text) => byte_len(&text.text),
        ContentPart::Refusal(text) => byte_len(text),
        ContentPart::Reasoning(thought) => byte_len(&thought.text),
        ContentPart::ToolCall(ToolCall {
            input: ToolInput::Json(text) | ToolInput::Free(text),
            ..
        }) => byte_len(text),
        ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => 0,
    });
    let calls = answer.parts.iter().filter(|part| matches!(part, ContentPart::ToolCall(_))).count();
    ResponseObservation {
        output_bytes: said.sum(),
        tool_calls: u64::try_from(calls).unwrap_or(u64::MAX),
        id: answer.id,
        model: answer.model,
        stop: Some(answer.stop),
        usage: answer.usage,
        error: None,
    }
}

fn byte_len(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// The answer with only the content that every reader knows.
fn strip_unknown_content(body: &Value) -> Value {
    let known = |item: &Value| {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
        matches!(
            kind,
            "text"
                | "thinking"
                | "redacted_thinking"
                | "tool_use"
                | "message"
                | "reasoning"
                | "function_call"
                | "custom_tool_call"
        )
    };
    let mut body = body.clone();
    for name in ["content", "output"] {
        if let Some(Value::Array(items)) = body.get_mut(name) {
            items.retain(known);
        }
    }
    body
}
