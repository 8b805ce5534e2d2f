use std::collections::BTreeMap;

use cynode_net::sse::SseEvent;
use serde_json::Value;

use super::{
    answer::{decode_stop_reason, decode_usage},
    decode::arguments_text,
};
use crate::dialect::{
    Dialect, DialectCodec as _,
    canonical::{CanonicalEvent, ContentPart, PartStart, TokenUsage, stream_cut_short_error},
    fields::text_field,
};

/// Decodes the chunks of a provider.
#[derive(Clone, Debug, Default)]
pub(in crate::dialect) struct ChatStreamDecoder {
    started: bool,
    /// Index of the next part.
    next: usize,
    /// The part that receives text now.
    open: Option<(TextKind, usize)>,
    /// The newest tool call at each of the provider's indices: its id and the index of its part. Calls stay open until the end: no event
    /// marks a call as complete, and a provider may write several at once.
    calls: BTreeMap<u64, (String, usize)>,
    /// A stub of each part, enough to derive the stop reason.
    kinds: Vec<ContentPart>,
    reason: Option<String>,
    usage: Option<TokenUsage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Reasoning,
    Text,
    Refusal,
}

impl ChatStreamDecoder {
    pub(in crate::dialect) fn decode_event(
        &mut self,
        event: &SseEvent,
        out: &mut Vec<CanonicalEvent>,
    ) {
        if event.data.trim() == "[DONE]" {
            self.finish_stream(out);
            return;
        }
        let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else {
            out.push(super::super::stream::invalid_json_event());
            return;
        };
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            out.push(CanonicalEvent::Failed(Dialect::Chat.decode_error(0, &chunk, None)));
            return;
        }
        if !std::mem::replace(&mut self.started, true) {
            let (id, model) =
                (text_field(&chunk, "id").to_owned(), text_field(&chunk, "model").to_owned());
            out.push(CanonicalEvent::Started { id, model, usage: None });
        }
        if let Some(used) = chunk.get("usage").filter(|used| used.is_object()) {
            self.usage = Some(decode_usage(used));
        }
        // Only one choice is ever requested.
        let Some(choice) = chunk.pointer("/choices/0") else { return };
        if let Some(delta) = choice.get("delta") {
            self.decode_delta(delta, out);
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.reason = Some(reason.to_owned());
        }
    }

    fn decode_delta(&mut self, delta: &Value, out: &mut Vec<CanonicalEvent>) {
        let thought = match text_field(delta, "reasoning_content") {
            "" => text_field(delta, "reasoning"),
            thought => thought,
        };
        self.append_text(TextKind::Reasoning, thought, out);
        self.append_text(TextKind::Text, text_field(delta, "content"), out);
        self.append_text(TextKind::Refusal, text_field(delta, "refusal"), out);
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        for (place, call) in calls.into_iter().flatten().enumerate() {
            self.append_call_delta(place, call, out);
        }
    }

    fn append_text(&mut self, kind: TextKind, text: &str, out: &mut Vec<CanonicalEvent>) {
        if text.is_empty() {
            return;
        }
        let index = match self.open {
            Some((open, index)) if open == kind => index,
            _ => {
                let (opening, part) = match kind {
                    TextKind::Reasoning => {
                        (PartStart::Reasoning { id: None }, ContentPart::from_text(""))
                    }
                    TextKind::Text => (PartStart::Text, ContentPart::from_text("")),
                    TextKind::Refusal => (PartStart::Refusal, ContentPart::Refusal(String::new())),
                };
                let index = self.start_part(opening, part, out);
                self.open = Some((kind, index));
                index
            }
        };
        let text = text.to_owned();
        out.push(match kind {
            TextKind::Reasoning => CanonicalEvent::ReasoningDelta { index, text },
            TextKind::Text => CanonicalEvent::TextDelta { index, text },
            TextKind::Refusal => CanonicalEvent::RefusalDelta { index, text },
        });
    }

    fn append_call_delta(&mut self, place: usize, call: &Value, out: &mut Vec<CanonicalEvent>) {
        let place = u64::try_from(place).unwrap_or(u64::MAX);
        let place = call.get("index").and_then(Value::as_u64).unwrap_or(place);
        let free = call.get("custom").is_some();
        let function = call.get(if free { "custom" } else { "function" }).unwrap_or(&Value::Null);
        let (id, name) = (text_field(call, "id"), text_field(function, "name"));
        // Some servers send the same index for every call, others send another id with every piece of a call: a new call has both a new id
        // and a name.
        let anew = |known: &str| !id.is_empty() && id != known && !name.is_empty();
        let index = match self.calls.get(&place) {
            Some((known, index)) if !anew(known) => *index,
            before => {
                out.extend(before.map(|(_, index)| CanonicalEvent::PartEnded { index: *index }));
                let (id, name) = (id.to_owned(), name.to_owned());
                let part = ContentPart::ToolCall(crate::dialect::canonical::ToolCall {
                    id: id.clone(),
                    name: name.clone(),
                    namespace: None,
                    input: crate::dialect::canonical::ToolInput::Json(String::new()),
                    extras: crate::dialect::canonical::DialectExtras::default(),
                });
                let opening = PartStart::ToolCall { id: id.clone(), name, namespace: None, free };
                let index = self.start_part(opening, part, out);
                self.calls.insert(place, (id, index));
                index
            }
        };
        let text = arguments_text(function.get(if free { "input" } else { "arguments" }));
        if !text.is_empty() {
            out.push(CanonicalEvent::ArgumentsDelta { index, text });
        }
    }

    /// Starts a part. Text before it is complete.
    fn start_part(
        &mut self,
        opening: PartStart,
        part: ContentPart,
        out: &mut Vec<CanonicalEvent>,
    ) -> usize {
        if let Some((_, index)) = self.open.take() {
            out.push(CanonicalEvent::PartEnded { index });
        }
        let index = self.next;
        self.next += 1;
        self.kinds.push(part);
        out.push(CanonicalEvent::PartStarted { index, opening });
        index
    }

    /// Handles the end of the provider's stream.
    pub(in crate::dialect) fn finish_stream(&mut self, out: &mut Vec<CanonicalEvent>) {
        let Some(reason) = self.reason.take() else {
            out.push(CanonicalEvent::Failed(stream_cut_short_error()));
            return;
        };
        let open = self.open.take().map(|(_, index)| index);
        let open = open.into_iter().chain(self.calls.values().map(|(_, index)| *index));
        out.extend(open.map(|index| CanonicalEvent::PartEnded { index }));
        out.push(CanonicalEvent::Ended {
            stop: decode_stop_reason(&reason, &self.kinds),
            usage: self.usage,
        });
    }
}
