//! Observes a response that is relayed unchanged.

use cynode_net::sse::SseEvent;
use serde_json::Value;

use crate::dialect::{
    Dialect, DialectCodec as _, StreamDecoder,
    canonical::{
        CanonicalEvent, CanonicalResponse, ContentPart, ModelError, StopReason, TokenUsage,
        ToolCall, ToolInput,
    },
};

/// Observed facts of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseObservation {
    /// Id of the response, as the provider sent it.
    pub id: String,
    /// Name of the model that responded.
    pub model: String,
    /// Stop reason. `None` if the response did not end.
    pub stop: Option<StopReason>,
    /// Token usage, if the provider reported it.
    pub usage: Option<TokenUsage>,
    /// Number of bytes that the model wrote: text, reasoning and tool arguments.
    pub output_bytes: u64,
    /// Number of tool calls.
    pub tool_calls: u64,
    /// Error, if the response failed or was truncated.
    pub error: Option<ModelError>,
}

/// Observes one response, in the dialect that client and provider share.
///
/// The bytes are relayed unchanged. Content without a canonical form is skipped: only client and provider need to understand it.
#[derive(Clone, Debug)]
pub struct ResponseObserver {
    dialect: Dialect,
    reader: StreamDecoder,
    seen: ResponseObservation,
}

impl ResponseObserver {
    /// Creates an observer for `dialect`.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            reader: StreamDecoder::new_lenient(dialect),
            seen: ResponseObservation::default(),
        }
    }

    /// Observes one event of a stream.
    pub fn observe_event(&mut self, event: &SseEvent) {
        for event in self.reader.decode_event(event) {
            self.record_event(&event);
        }
    }

    /// Records the end of the stream and returns the observation.
    pub fn finish_stream(mut self) -> ResponseObservation {
        for event in self.reader.finish_stream() {
            self.record_event(&event);
        }
        self.seen
    }

    /// Returns whether the provider has marked the end of its response.
    pub(crate) const fn has_ended(&self) -> bool {
        self.seen.stop.is_some()
    }

    /// Returns the observation so far. For callers that decode the events themselves.
    pub(crate) fn into_observation(self) -> ResponseObservation {
        self.seen
    }

    /// Observes a complete response.
    pub fn observe_response(self, body: &Value) -> ResponseObservation {
        match self.dialect.decode_response(body) {
            Ok(answer) => observation_of(answer),
            // The response may have content without a canonical form. The remaining content is still observed.
            Err(error) => match self.dialect.decode_response(&strip_unknown_content(body)) {
                Ok(answer) => observation_of(answer),
                Err(_) => {
                    ResponseObservation { error: Some(error), ..ResponseObservation::default() }
                }
            },
        }
    }

    /// Records one event that is already decoded.
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

/// Returns the response with only the content that every decoder supports.
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
