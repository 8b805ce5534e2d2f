use std::collections::BTreeMap;

use super::{
    Answer, Event, Extras, Input, ModelError, Opening, Part, Reasoning, Stop, ToolCall, Usage,
};

/// Puts the pieces of an answer together.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    id: String,
    model: String,
    usage: Option<Usage>,
    parts: BTreeMap<usize, Part>,
    end: Option<Result<Stop, ModelError>>,
}

impl Gather {
    /// Takes one piece.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Started { id, model, usage } => {
                self.id.clone_from(id);
                self.model.clone_from(model);
                self.usage = *usage;
            }
            Event::PartStarted { index, opening } => {
                self.parts.insert(*index, begun(opening));
            }
            Event::TextDelta { index, text }
            | Event::RefusalDelta { index, text }
            | Event::ReasoningDelta { index, text }
            | Event::ArgumentsDelta { index, text } => {
                if let Some(part) = self.parts.get_mut(index) {
                    append(part, text);
                }
            }
            Event::Sealed { index, seal } => {
                if let Some(Part::Reasoning(thought)) = self.parts.get_mut(index) {
                    thought.seal = Some(seal.clone());
                }
            }
            Event::PartEnded { .. } => {}
            Event::Ended { stop, usage } => {
                self.usage = usage.or(self.usage);
                self.end = Some(Ok(stop.clone()));
            }
            Event::Failed(error) => self.end = Some(Err(error.clone())),
        }
    }

    /// The part at `index`, as far as it has come.
    pub fn part(&self, index: usize) -> Option<&Part> {
        self.parts.get(&index)
    }

    /// The answer, if it came to its end.
    pub fn finish(self) -> Result<Answer, ModelError> {
        let stop = self.end.unwrap_or_else(|| Err(cut_short()))?;
        let parts = self.parts.into_values().filter(|part| !is_empty(part)).collect();
        Ok(Answer { id: self.id, model: self.model, parts, stop, usage: self.usage })
    }
}

/// Words that were never said are not a part.
fn is_empty(part: &Part) -> bool {
    match part {
        Part::Text(text) => text.text.is_empty(),
        Part::Refusal(text) => text.is_empty(),
        Part::Reasoning(thought) => thought.text.is_empty() && thought.seal.is_none(),
        Part::Image(_)
        | Part::Document(_)
        | Part::ToolCall(_)
        | Part::ToolResult(_)
        | Part::Foreign(_) => false,
    }
}

/// The stream stopped before the answer did.
pub(crate) fn cut_short() -> ModelError {
    ModelError::upstream("the provider's stream ended before the answer did")
}

fn begun(opening: &Opening) -> Part {
    match opening {
        Opening::Text => Part::text(""),
        Opening::Refusal => Part::Refusal(String::new()),
        Opening::Reasoning { .. } => Part::Reasoning(Reasoning::default()),
        Opening::Redacted(seal) => {
            Part::Reasoning(Reasoning { text: String::new(), seal: Some(seal.clone()) })
        }
        Opening::ToolCall { id, name, namespace, free } => {
            let input = if *free { Input::Free } else { Input::Json };
            let (id, name, namespace) = (id.clone(), name.clone(), namespace.clone());
            let extras = Extras::default();
            Part::ToolCall(ToolCall { id, name, namespace, input: input(String::new()), extras })
        }
    }
}

fn append(part: &mut Part, more: &str) {
    match part {
        Part::Text(text) => text.text.push_str(more),
        Part::Refusal(text) => text.push_str(more),
        Part::Reasoning(thought) => thought.text.push_str(more),
        Part::ToolCall(ToolCall { input: Input::Json(text) | Input::Free(text), .. }) => {
            text.push_str(more);
        }
        Part::Image(_) | Part::Document(_) | Part::ToolResult(_) | Part::Foreign(_) => {}
    }
}
