use cynode_core::models::TokenCounts;
use serde::{Deserialize, Serialize};

use super::{CanonicalEvent, ContentPart, PartStart, ToolCall, ToolInput};

/// What a model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanonicalResponse {
    /// The provider's name for it.
    pub id: String,
    /// The model that answered, as the provider names it.
    pub model: String,
    /// Words, thoughts, calls.
    pub parts: Vec<ContentPart>,
    /// Why it ended.
    pub stop: StopReason,
    /// What was used; `None` when the provider did not say.
    pub usage: Option<TokenUsage>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model has said what it had to say.
    EndTurn,
    /// The answer may not be longer.
    MaxTokens,
    /// A word was said at which the answer ends: which one, if the provider tells.
    StopSequence(Option<String>),
    /// The model waits for its tools.
    ToolCalls,
    /// The model declined, or a filter did.
    Refusal,
    /// The provider wants to be asked to go on.
    Pause,
    /// The conversation fills all that the model can see.
    ContextWindow,
}

/// Tokens used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// All that went in, cached or not.
    pub input: u64,
    /// Of these, what was read from a cache.
    pub cached_input: u64,
    /// Of these, what was written to a cache.
    pub cache_written: u64,
    /// All that came out, thoughts too.
    pub output: u64,
    /// Of these, thoughts.
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
    /// The events with which the same answer would have come piece by piece.
    pub fn to_events(&self) -> Vec<CanonicalEvent> {
        let (id, model) = (self.id.clone(), self.model.clone());
        let mut events = vec![CanonicalEvent::Started { id, model, usage: None }];
        for (index, part) in self.parts.iter().enumerate() {
            append_part_events(index, part, &mut events);
        }
        events.push(CanonicalEvent::Ended { stop: self.stop.clone(), usage: self.usage });
        events
    }

    /// Whether the model waits for tools.
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
        // A model says none of these.
        ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => return,
    };
    events.push(CanonicalEvent::PartStarted { index, opening });
    events.extend(deltas.into_iter().filter(|delta| !delta.is_empty_delta()));
    events.push(CanonicalEvent::PartEnded { index });
}
