//! Watching an answer that is passed on unchanged.

use serde_json::Value;

use crate::{
    dialect::{Dialect, Speak as _, StreamReader},
    sse::SseEvent,
    talk::{Answer, Event, Input, ModelError, Part, Stop, ToolCall, Usage},
};

/// What was seen of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The provider's name for the answer.
    pub id: String,
    /// The model that answered.
    pub model: String,
    /// Why it ended; `None` if it did not.
    pub stop: Option<Stop>,
    /// What was used, if the provider said.
    pub usage: Option<Usage>,
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
pub struct Observer {
    dialect: Dialect,
    reader: StreamReader,
    seen: Seen,
}

impl Observer {
    /// An observer of `dialect`.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, reader: StreamReader::tolerant(dialect), seen: Seen::default() }
    }

    /// Watches one event of a stream.
    pub fn event(&mut self, event: &SseEvent) {
        for event in self.reader.read(event) {
            self.take(&event);
        }
    }

    /// The stream has ended.
    pub fn end(mut self) -> Seen {
        for event in self.reader.end() {
            self.take(&event);
        }
        self.seen
    }

    /// Whether the provider has said that its answer ends.
    pub(crate) const fn ended(&self) -> bool {
        self.seen.stop.is_some()
    }

    /// What was seen so far, by whoever reads the events for us.
    pub(crate) fn seen(self) -> Seen {
        self.seen
    }

    /// Watches a whole answer.
    pub fn whole(self, body: &Value) -> Seen {
        match self.dialect.read_answer(body) {
            Ok(answer) => of_answer(answer),
            // There may be content without a word of ours: the rest is still there to be read.
            Err(error) => match self.dialect.read_answer(&without_content(body)) {
                Ok(answer) => of_answer(answer),
                Err(_) => Seen { error: Some(error), ..Seen::default() },
            },
        }
    }

    /// Takes note of one event that was read already.
    pub(crate) fn take(&mut self, event: &Event) {
        let seen = &mut self.seen;
        match event {
            Event::Started { id, model, usage } => {
                (seen.id, seen.model, seen.usage) = (id.clone(), model.clone(), *usage);
            }
            Event::PartStarted { opening, .. } => {
                if let crate::talk::Opening::ToolCall { .. } = opening {
                    seen.tool_calls += 1;
                }
            }
            Event::TextDelta { text, .. }
            | Event::RefusalDelta { text, .. }
            | Event::ReasoningDelta { text, .. }
            | Event::ArgumentsDelta { text, .. } => seen.output_bytes += length(text),
            Event::Sealed { .. } | Event::PartEnded { .. } => {}
            Event::Ended { stop, usage } => {
                seen.stop = Some(stop.clone());
                seen.usage = usage.or(seen.usage);
            }
            Event::Failed(error) => seen.error = Some(error.clone()),
        }
    }
}

fn of_answer(answer: Answer) -> Seen {
    let said = answer.parts.iter().map(|part| match part {
        Part::Text(text) => length(&text.text),
        Part::Refusal(text) => length(text),
        Part::Reasoning(thought) => length(&thought.text),
        Part::ToolCall(ToolCall { input: Input::Json(text) | Input::Free(text), .. }) => {
            length(text)
        }
        Part::Image(_) | Part::Document(_) | Part::ToolResult(_) | Part::Foreign(_) => 0,
    });
    let calls = answer.parts.iter().filter(|part| matches!(part, Part::ToolCall(_))).count();
    Seen {
        output_bytes: said.sum(),
        tool_calls: u64::try_from(calls).unwrap_or(u64::MAX),
        id: answer.id,
        model: answer.model,
        stop: Some(answer.stop),
        usage: answer.usage,
        error: None,
    }
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// The answer with only the content that every reader knows.
fn without_content(body: &Value) -> Value {
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
