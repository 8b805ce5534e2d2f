use cynode_core::models::Tokens;
use serde::{Deserialize, Serialize};

use super::{Event, Input, Opening, Part, ToolCall};

/// What a model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The provider's name for it.
    pub id: String,
    /// The model that answered, as the provider names it.
    pub model: String,
    /// Words, thoughts, calls.
    pub parts: Vec<Part>,
    /// Why it ended.
    pub stop: Stop,
    /// What was used; `None` when the provider did not say.
    pub usage: Option<Usage>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
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
pub struct Usage {
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

impl From<Usage> for Tokens {
    fn from(usage: Usage) -> Self {
        Self {
            input: usage.input,
            cached: usage.cached_input,
            cache_write: usage.cache_written,
            output: usage.output,
            reasoning: usage.reasoning,
        }
    }
}

impl Answer {
    /// The events with which the same answer would have come piece by piece.
    pub fn events(&self) -> Vec<Event> {
        let (id, model) = (self.id.clone(), self.model.clone());
        let mut events = vec![Event::Started { id, model, usage: None }];
        for (index, part) in self.parts.iter().enumerate() {
            part_events(index, part, &mut events);
        }
        events.push(Event::Ended { stop: self.stop.clone(), usage: self.usage });
        events
    }

    /// Whether the model waits for tools.
    pub(crate) fn calls_tools(parts: &[Part]) -> bool {
        parts.iter().any(|part| matches!(part, Part::ToolCall(_)))
    }
}

fn part_events(index: usize, part: &Part, events: &mut Vec<Event>) {
    let (opening, deltas) = match part {
        Part::Text(text) => {
            (Opening::Text, vec![Event::TextDelta { index, text: text.text.clone() }])
        }
        Part::Refusal(text) => {
            (Opening::Refusal, vec![Event::RefusalDelta { index, text: text.clone() }])
        }
        Part::ToolCall(ToolCall { id, name, namespace, input, .. }) => {
            let (id, name, namespace) = (id.clone(), name.clone(), namespace.clone());
            let (free, text) = match input {
                Input::Json(text) => (false, text.clone()),
                Input::Free(text) => (true, text.clone()),
            };
            let opening = Opening::ToolCall { id, name, namespace, free };
            (opening, vec![Event::ArgumentsDelta { index, text }])
        }
        Part::Reasoning(thought) => match &thought.seal {
            Some(seal) if seal.redacted => (Opening::Redacted(seal.clone()), Vec::new()),
            seal => {
                let seal = seal.clone().map(|seal| Event::Sealed { index, seal });
                let text = Event::ReasoningDelta { index, text: thought.text.clone() };
                let id = thought.seal.as_ref().and_then(|seal| seal.id.clone());
                (Opening::Reasoning { id }, [Some(text), seal].into_iter().flatten().collect())
            }
        },
        // A model says none of these.
        Part::Image(_) | Part::Document(_) | Part::ToolResult(_) | Part::Foreign(_) => return,
    };
    events.push(Event::PartStarted { index, opening });
    events.extend(deltas.into_iter().filter(|delta| !delta.is_empty()));
    events.push(Event::PartEnded { index });
}
