use std::collections::BTreeMap;

use super::{
    CanonicalEvent, CanonicalResponse, ContentPart, DialectExtras, ModelError, PartStart,
    ReasoningPart, StopReason, TokenUsage, ToolCall, ToolInput,
};

/// Assembles the events of a streamed response.
#[derive(Clone, Debug, Default)]
pub struct ResponseAssembler {
    id: String,
    model: String,
    usage: Option<TokenUsage>,
    parts: BTreeMap<usize, ContentPart>,
    end: Option<Result<StopReason, ModelError>>,
}

impl ResponseAssembler {
    /// Adds one event.
    pub fn push_event(&mut self, event: &CanonicalEvent) {
        match event {
            CanonicalEvent::Started { id, model, usage } => {
                self.id.clone_from(id);
                self.model.clone_from(model);
                self.usage = *usage;
            }
            CanonicalEvent::PartStarted { index, opening } => {
                self.parts.insert(*index, empty_part(opening));
            }
            CanonicalEvent::TextDelta { index, text }
            | CanonicalEvent::RefusalDelta { index, text }
            | CanonicalEvent::ReasoningDelta { index, text }
            | CanonicalEvent::ArgumentsDelta { index, text } => {
                if let Some(part) = self.parts.get_mut(index) {
                    append_delta(part, text);
                }
            }
            CanonicalEvent::Sealed { index, seal } => {
                if let Some(ContentPart::Reasoning(thought)) = self.parts.get_mut(index) {
                    thought.seal = Some(seal.clone());
                }
            }
            CanonicalEvent::PartEnded { .. } => {}
            CanonicalEvent::Ended { stop, usage } => {
                self.usage = usage.or(self.usage);
                self.end = Some(Ok(stop.clone()));
            }
            CanonicalEvent::Failed(error) => self.end = Some(Err(error.clone())),
        }
    }

    /// Returns the part at `index`, as far as it has arrived.
    pub fn get_part(&self, index: usize) -> Option<&ContentPart> {
        self.parts.get(&index)
    }

    /// Returns the response if it is complete.
    pub fn finish_response(self) -> Result<CanonicalResponse, ModelError> {
        let stop = self.end.unwrap_or_else(|| Err(stream_cut_short_error()))?;
        let parts = self.parts.into_values().filter(|part| !is_empty_part(part)).collect();
        Ok(CanonicalResponse { id: self.id, model: self.model, parts, stop, usage: self.usage })
    }
}

/// Returns whether a part has no content. Such a part is dropped.
fn is_empty_part(part: &ContentPart) -> bool {
    match part {
        ContentPart::Text(text) => text.text.is_empty(),
        ContentPart::Refusal(text) => text.is_empty(),
        ContentPart::Reasoning(thought) => thought.text.is_empty() && thought.seal.is_none(),
        ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolCall(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => false,
    }
}

/// Returns the error of a stream that ended before its response did.
pub(crate) fn stream_cut_short_error() -> ModelError {
    ModelError::upstream_error("the provider's stream ended before the answer did")
}

fn empty_part(opening: &PartStart) -> ContentPart {
    match opening {
        PartStart::Text => ContentPart::from_text(""),
        PartStart::Refusal => ContentPart::Refusal(String::new()),
        PartStart::Reasoning { .. } => ContentPart::Reasoning(ReasoningPart::default()),
        PartStart::Redacted(seal) => {
            ContentPart::Reasoning(ReasoningPart { text: String::new(), seal: Some(seal.clone()) })
        }
        PartStart::ToolCall { id, name, namespace, free } => {
            let input = if *free { ToolInput::Free } else { ToolInput::Json };
            let (id, name, namespace) = (id.clone(), name.clone(), namespace.clone());
            let extras = DialectExtras::default();
            ContentPart::ToolCall(ToolCall {
                id,
                name,
                namespace,
                input: input(String::new()),
                extras,
            })
        }
    }
}

fn append_delta(part: &mut ContentPart, more: &str) {
    match part {
        ContentPart::Text(text) => text.text.push_str(more),
        ContentPart::Refusal(text) => text.push_str(more),
        ContentPart::Reasoning(thought) => thought.text.push_str(more),
        ContentPart::ToolCall(ToolCall {
            input: ToolInput::Json(text) | ToolInput::Free(text),
            ..
        }) => {
            text.push_str(more);
        }
        ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => {}
    }
}
