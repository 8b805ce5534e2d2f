use std::collections::BTreeMap;

use cynode_net::sse::SseEvent;
use serde_json::Value;

use super::{
    answer::{decode_response, decode_stop_reason, decode_usage},
    decode::decode_reasoning,
};
use crate::dialect::{
    Dialect, DialectCodec as _,
    canonical::{CanonicalEvent, ModelError, PartStart},
    fields::text_field,
    stream::invalid_json_event,
};

const DIALECT: Dialect = Dialect::Responses;

/// Decodes the events of a provider.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was seen")]
pub(in crate::dialect) struct ResponsesStreamDecoder {
    tolerant: bool,
    started: bool,
    next: usize,
    called: bool,
    refused: bool,
    /// Open items, by the provider's index.
    items: BTreeMap<u64, OpenItem>,
}

#[derive(Clone, Debug)]
enum OpenItem {
    /// Text parts, by their index in the message.
    Message(BTreeMap<u64, OpenPart>),
    Call(OpenPart),
    /// Reasoning, and the index in its summary.
    Thought(OpenPart, u64),
    /// An item without a canonical form.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct OpenPart {
    index: usize,
    /// Whether a delta had content. If none had, the end holds the whole content.
    said: bool,
    ended: bool,
}

impl OpenPart {
    fn end_part(&mut self, out: &mut Vec<CanonicalEvent>) {
        if !std::mem::replace(&mut self.ended, true) {
            out.push(CanonicalEvent::PartEnded { index: self.index });
        }
    }
}

impl ResponsesStreamDecoder {
    pub(in crate::dialect) const fn new(tolerant: bool) -> Self {
        Self {
            tolerant,
            started: false,
            next: 0,
            called: false,
            refused: false,
            items: BTreeMap::new(),
        }
    }

    pub(in crate::dialect) fn decode_event(
        &mut self,
        event: &SseEvent,
        out: &mut Vec<CanonicalEvent>,
    ) {
        // Some servers end the stream as Chat Completions does.
        if event.data.trim() == "[DONE]" {
            return;
        }
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            out.push(invalid_json_event());
            return;
        };
        let response = data.get("response").unwrap_or(&Value::Null);
        match text_field(&data, "type") {
            "response.created" | "response.in_progress" | "response.queued" => {
                self.start_response(response, out);
            }
            "response.output_item.added" => self.handle_item_added(&data, out),
            "response.content_part.added" => {
                let refusal = data.pointer("/part/type").is_some_and(|kind| kind == "refusal");
                let text = data.pointer("/part/type").is_some_and(|kind| kind == "output_text");
                if refusal || text {
                    self.open_text_part(&data, refusal, out);
                }
            }
            "response.output_text.delta" => self.append_text(&data, false, "delta", out),
            "response.refusal.delta" => self.append_text(&data, true, "delta", out),
            "response.output_text.done" => self.append_missing_text(&data, false, "text", out),
            "response.refusal.done" => self.append_missing_text(&data, true, "refusal", out),
            "response.content_part.done" => self.handle_content_done(&data, out),
            "response.reasoning_summary_text.delta" => {
                self.append_reasoning(&data, "summary_index", out);
            }
            "response.reasoning_text.delta" => self.append_reasoning(&data, "content_index", out),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.append_arguments(&data, out);
            }
            "response.output_item.done" => self.handle_item_done(&data, out),
            "response.completed" | "response.incomplete" => self.finish_response(response, out),
            "response.failed" => out.push(CanonicalEvent::Failed(decode_failure(response))),
            "error" => out.push(CanonicalEvent::Failed(DIALECT.decode_error(0, &data, None))),
            // Text ends, which the end of the item repeats, and unknown events.
            _ => {}
        }
    }

    fn start_response(&mut self, response: &Value, out: &mut Vec<CanonicalEvent>) {
        if !std::mem::replace(&mut self.started, true) {
            let (id, model) =
                (text_field(response, "id").to_owned(), text_field(response, "model").to_owned());
            out.push(CanonicalEvent::Started { id, model, usage: None });
        }
    }

    fn open_part(&mut self, opening: PartStart, out: &mut Vec<CanonicalEvent>) -> OpenPart {
        self.start_response(&Value::Null, out);
        let index = self.next;
        self.next += 1;
        out.push(CanonicalEvent::PartStarted { index, opening });
        OpenPart { index, said: false, ended: false }
    }

    fn handle_item_added(&mut self, data: &Value, out: &mut Vec<CanonicalEvent>) {
        let item = data.get("item").unwrap_or(&Value::Null);
        let opened = match text_field(item, "type") {
            "message" => OpenItem::Message(BTreeMap::new()),
            "reasoning" => {
                let id = item.get("id").and_then(Value::as_str).map(str::to_owned);
                OpenItem::Thought(self.open_part(PartStart::Reasoning { id }, out), 0)
            }
            kind @ ("function_call" | "custom_tool_call") => {
                self.called = true;
                OpenItem::Call(self.open_part(
                    PartStart::ToolCall {
                        id: text_field(item, "call_id").to_owned(),
                        name: text_field(item, "name").to_owned(),
                        namespace: item.get("namespace").and_then(Value::as_str).map(str::to_owned),
                        free: kind == "custom_tool_call",
                    },
                    out,
                ))
            }
            _ if self.tolerant => OpenItem::Unknown,
            other => {
                let message = format!(
                    "the provider's stream has an item `{other}`, for which there is no word"
                );
                out.push(CanonicalEvent::Failed(ModelError::upstream_error(message)));
                return;
            }
        };
        self.items.insert(index_field(data, "output_index"), opened);
    }

    /// Returns the text part at the position in `data`. Opens it if needed.
    fn open_text_part(
        &mut self,
        data: &Value,
        refusal: bool,
        out: &mut Vec<CanonicalEvent>,
    ) -> Option<usize> {
        let (item, content) =
            (index_field(data, "output_index"), index_field(data, "content_index"));
        match self.items.get(&item) {
            Some(OpenItem::Message(parts)) => {
                if let Some(open) = parts.get(&content) {
                    return Some(open.index);
                }
            }
            Some(_) => return None,
            None => {
                self.items.insert(item, OpenItem::Message(BTreeMap::new()));
            }
        }
        self.refused |= refusal;
        let opening = if refusal { PartStart::Refusal } else { PartStart::Text };
        let open = self.open_part(opening, out);
        if let Some(OpenItem::Message(parts)) = self.items.get_mut(&item) {
            parts.insert(content, open);
        }
        Some(open.index)
    }

    fn append_text(
        &mut self,
        data: &Value,
        refusal: bool,
        field: &str,
        out: &mut Vec<CanonicalEvent>,
    ) {
        let text = text_field(data, field).to_owned();
        let Some(index) = self.open_text_part(data, refusal, out) else { return };
        if text.is_empty() {
            return;
        }
        if let Some(open) = self.open_part_at(data) {
            if open.ended {
                return;
            }
            open.said = true;
        }
        out.push(if refusal {
            CanonicalEvent::RefusalDelta { index, text }
        } else {
            CanonicalEvent::TextDelta { index, text }
        });
    }

    fn append_missing_text(
        &mut self,
        data: &Value,
        refusal: bool,
        field: &str,
        out: &mut Vec<CanonicalEvent>,
    ) {
        if self.open_part_at(data).is_none_or(|open| !open.said && !open.ended) {
            self.append_text(data, refusal, field, out);
        }
    }

    fn open_part_at(&mut self, data: &Value) -> Option<&mut OpenPart> {
        match self.items.get_mut(&index_field(data, "output_index"))? {
            OpenItem::Message(parts) => parts.get_mut(&index_field(data, "content_index")),
            OpenItem::Call(open) | OpenItem::Thought(open, _) => Some(open),
            OpenItem::Unknown => None,
        }
    }

    fn handle_content_done(&mut self, data: &Value, out: &mut Vec<CanonicalEvent>) {
        if let Some(OpenItem::Message(parts)) =
            self.items.get_mut(&index_field(data, "output_index"))
            && let Some(open) = parts.get_mut(&index_field(data, "content_index"))
        {
            open.end_part(out);
        }
    }

    fn append_reasoning(&mut self, data: &Value, field: &str, out: &mut Vec<CanonicalEvent>) {
        let Some(OpenItem::Thought(open, at)) =
            self.items.get_mut(&index_field(data, "output_index"))
        else {
            return;
        };
        let text = text_field(data, "delta");
        if text.is_empty() {
            return;
        }
        let new = std::mem::replace(at, index_field(data, field)) != *at;
        let text = if new && open.said { format!("\n\n{text}") } else { text.to_owned() };
        open.said = true;
        out.push(CanonicalEvent::ReasoningDelta { index: open.index, text });
    }

    fn append_arguments(&mut self, data: &Value, out: &mut Vec<CanonicalEvent>) {
        let Some(OpenItem::Call(open)) = self.items.get_mut(&index_field(data, "output_index"))
        else {
            return;
        };
        let text = text_field(data, "delta").to_owned();
        if !text.is_empty() {
            open.said = true;
            out.push(CanonicalEvent::ArgumentsDelta { index: open.index, text });
        }
    }

    fn handle_item_done(&mut self, data: &Value, out: &mut Vec<CanonicalEvent>) {
        let at = index_field(data, "output_index");
        if !self.items.contains_key(&at) {
            self.handle_item_added(data, out);
        }
        let item = data.get("item").unwrap_or(&Value::Null);
        match self.items.remove(&at) {
            None | Some(OpenItem::Unknown) => {}
            Some(OpenItem::Message(parts)) => self.finish_message(parts, item, out),
            Some(OpenItem::Call(OpenPart { index, said, .. })) => {
                let field = if text_field(item, "type") == "custom_tool_call" {
                    "input"
                } else {
                    "arguments"
                };
                let text = text_field(item, field).to_owned();
                if !said && !text.is_empty() {
                    out.push(CanonicalEvent::ArgumentsDelta { index, text });
                }
                out.push(CanonicalEvent::PartEnded { index });
            }
            Some(OpenItem::Thought(OpenPart { index, said, .. }, _)) => {
                let thought = decode_reasoning(item).unwrap_or_default();
                if !said && !thought.text.is_empty() {
                    out.push(CanonicalEvent::ReasoningDelta { index, text: thought.text });
                }
                out.extend(thought.seal.map(|seal| CanonicalEvent::Sealed { index, seal }));
                out.push(CanonicalEvent::PartEnded { index });
            }
        }
    }

    /// Emits the content of a message that no delta held, and ends all parts that are still open.
    fn finish_message(
        &mut self,
        parts: BTreeMap<u64, OpenPart>,
        item: &Value,
        out: &mut Vec<CanonicalEvent>,
    ) {
        let content = item.get("content").and_then(Value::as_array);
        let unsaid = parts.is_empty();
        for mut open in parts.into_values() {
            open.end_part(out);
        }
        for part in content.into_iter().flatten().filter(|_| unsaid) {
            let refusal = text_field(part, "type") == "refusal";
            let field = if refusal { "refusal" } else { "text" };
            let opening = if refusal { PartStart::Refusal } else { PartStart::Text };
            let text = text_field(part, field).to_owned();
            if text.is_empty() {
                continue;
            }
            self.refused |= refusal;
            let OpenPart { index, .. } = self.open_part(opening, out);
            out.push(if refusal {
                CanonicalEvent::RefusalDelta { index, text }
            } else {
                CanonicalEvent::TextDelta { index, text }
            });
            out.push(CanonicalEvent::PartEnded { index });
        }
    }

    fn finish_response(&mut self, response: &Value, out: &mut Vec<CanonicalEvent>) {
        if self.next == 0 {
            // No content was streamed: the end holds all of it.
            match decode_response(response) {
                Ok(answer) => {
                    let skip = usize::from(std::mem::replace(&mut self.started, true));
                    out.extend(answer.to_events().into_iter().skip(skip));
                }
                Err(error) if !self.tolerant => out.push(CanonicalEvent::Failed(error)),
                Err(_) => out.push(self.end_event(response)),
            }
            return;
        }
        for item in std::mem::take(&mut self.items).into_values() {
            match item {
                OpenItem::Message(parts) => {
                    for mut open in parts.into_values() {
                        open.end_part(out);
                    }
                }
                OpenItem::Call(mut open) | OpenItem::Thought(mut open, _) => open.end_part(out),
                OpenItem::Unknown => {}
            }
        }
        out.push(self.end_event(response));
    }

    fn end_event(&self, response: &Value) -> CanonicalEvent {
        let usage = response.get("usage").filter(|used| used.is_object()).map(decode_usage);
        CanonicalEvent::Ended {
            stop: decode_stop_reason(response, self.called, self.refused),
            usage,
        }
    }
}

fn decode_failure(response: &Value) -> ModelError {
    DIALECT.decode_error(0, response, None)
}

fn index_field(data: &Value, field: &str) -> u64 {
    data.get(field).and_then(Value::as_u64).unwrap_or(0)
}
