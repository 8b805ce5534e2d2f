use cynode_core::models::TokenCounts;
use serde::{Deserialize, Serialize};

use super::{CanonicalEvent, ContentPart, PartStart, ToolCall, ToolInput};

/// Response of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanonicalResponse {
    /// Id of the response, as the provider sent it.
    pub id: String,
    /// Name of the model, as the provider sent it.
    pub model: String,
    /// Content: text, reasoning, tool calls.
    pub parts: Vec<ContentPart>,
    /// Reason why the response ended.
    pub stop: StopReason,
    /// Token usage. `None` if the provider did not report it.
    pub usage: Option<TokenUsage>,
}

/// Reason why a response ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model finished its turn.
    EndTurn,
    /// The response reached the output limit.
    MaxTokens,
    /// The model produced a stop sequence: which one, if the provider reports it.
    StopSequence(Option<String>),
    /// The model waits for the results of its tool calls.
    ToolCalls,
    /// The model refused, or a content filter did.
    Refusal,
    /// The provider paused the turn and expects a request to continue it.
    Pause,
    /// The conversation fills the context window.
    ContextWindow,
}

/// Token usage of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Number of all input tokens, cached or not.
    pub input: u64,
    /// Number of input tokens that were read from a cache.
    pub cached_input: u64,
    /// Number of input tokens that were written to a cache.
    pub cache_written: u64,
    /// Number of all output tokens, including reasoning.
    pub output: u64,
    /// Number of output tokens that were used for reasoning.
    pub reasoning: u64,
}

impl From<TokenUsage> for TokenCounts {
    fn from(usage: TokenUsage) -> Self {
        Self {
            input: usage.input,
            cached: usage.cached_input,
            cache_write: usage.cache_written,
            output: usage.output,
            reasoning: usage.reasoning,
        }
    }
}

impl CanonicalResponse {
    /// Returns the events of a stream with the same content.
    pub fn to_events(&self) -> Vec<CanonicalEvent> {
        let (id, model) = (self.id.clone(), self.model.clone());
        let mut events = vec![CanonicalEvent::Started { id, model, usage: None }];
        for (index, part) in self.parts.iter().enumerate() {
            append_part_events(index, part, &mut events);
        }
        events.push(CanonicalEvent::Ended { stop: self.stop.clone(), usage: self.usage });
        events
    }

    /// Returns whether the model waits for tools.
    pub(crate) fn has_tool_calls(parts: &[ContentPart]) -> bool {
        parts.iter().any(|part| matches!(part, ContentPart::ToolCall(_)))
    }
}

fn append_part_events(index: usize, part: &ContentPart, events: &mut Vec<CanonicalEvent>) {
    let (opening, deltas) = match part {
        ContentPart::Text(text) => {
            (PartStart::Text, vec![CanonicalEvent::TextDelta { index, text: text.text.clone() }])
        }
        ContentPart::Refusal(text) => {
            (PartStart::Refusal, vec![CanonicalEvent::RefusalDelta { index, text: text.clone() }])
        }
        ContentPart::ToolCall(ToolCall { id, name, namespace, input, .. }) => {
            let (id, name, namespace) = (id.clone(), name.clone(), namespace.clone());
            let (free, text) = match input {
                ToolInput::Json(text) => (false, text.clone()),
                ToolInput::Free(text) => (true, text.clone()),
            };
            let opening = PartStart::ToolCall { id, name, namespace, free };
            (opening, vec![CanonicalEvent::ArgumentsDelta { index, text }])
        }
        ContentPart::Reasoning(thought) => match &thought.seal {
            Some(seal) if seal.redacted => (PartStart::Redacted(seal.clone()), Vec::new()),
            seal => {
                let seal = seal.clone().map(|seal| CanonicalEvent::Sealed { index, seal });
                let text = CanonicalEvent::ReasoningDelta { index, text: thought.text.clone() };
                let id = thought.seal.as_ref().and_then(|seal| seal.id.clone());
                (PartStart::Reasoning { id }, [Some(text), seal].into_iter().flatten().collect())
            }
        },
        // A model produces none of these.
        ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => return,
    };
    events.push(CanonicalEvent::PartStarted { index, opening });
    events.extend(deltas.into_iter().filter(|delta| !delta.is_empty_delta()));
    events.push(CanonicalEvent::PartEnded { index });
}
