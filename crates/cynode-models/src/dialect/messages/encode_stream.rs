use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answer::{encode_stop_fields, encode_thinking_block, encode_usage};
use crate::dialect::{
    Dialect, ResponseContext,
    canonical::{CanonicalEvent, PartStart},
    chat::response_id,
    errors::anthropic_error_object,
    order::PartSequencer,
    seals,
    stream::write_sse_event,
};

const DIALECT: Dialect = Dialect::Messages;

/// Encodes events for a client.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct MessagesStreamEncoder {
    reply: ResponseContext,
    order: PartSequencer,
    /// The client's index of each part.
    places: BTreeMap<usize, usize>,
    /// Free text for custom tools, which becomes an object when it is complete.
    free: BTreeMap<usize, String>,
    /// Text of a refusal, which is sent with the end.
    refusal: String,
}

impl MessagesStreamEncoder {
    pub(in crate::dialect) fn new(reply: ResponseContext) -> Self {
        Self {
            reply,
            order: PartSequencer::default(),
            places: BTreeMap::new(),
            free: BTreeMap::new(),
            refusal: String::new(),
        }
    }

    pub(in crate::dialect) fn encode_event(&mut self, event: CanonicalEvent, out: &mut Vec<u8>) {
        for event in self.order.push_event(event) {
            self.write_event(event, out);
        }
    }

    fn write_event(&mut self, event: CanonicalEvent, out: &mut Vec<u8>) {
        match event {
            CanonicalEvent::Started { id, model, usage } => {
                let message = json!({
                    "id": response_id(&id, &self.reply),
                    "type": "message",
                    "role": "assistant",
                    "model": model,
                    "content": [],
                    "stop_reason": null,
                    "stop_sequence": null,
                    "usage": encode_usage(&usage.unwrap_or_default()),
                });
                write_named_event(out, "message_start", json!({ "message": message }));
                write_named_event(out, "ping", json!({}));
            }
            CanonicalEvent::PartStarted { index, opening } => self.start_block(index, opening, out),
            CanonicalEvent::TextDelta { index, text } => {
                self.write_delta(index, &json!({ "type": "text_delta", "text": text }), out);
            }
            CanonicalEvent::ReasoningDelta { index, text } => {
                self.write_delta(
                    index,
                    &json!({ "type": "thinking_delta", "thinking": text }),
                    out,
                );
            }
            CanonicalEvent::Sealed { index, seal } => {
                let signature = seals::encode_seal(&seal, DIALECT);
                let delta = json!({ "type": "signature_delta", "signature": signature });
                self.write_delta(index, &delta, out);
            }
            CanonicalEvent::ArgumentsDelta { index, text } => match self.free.get_mut(&index) {
                Some(held) => held.push_str(&text),
                None => self.write_arguments_delta(index, &text, out),
            },
            CanonicalEvent::RefusalDelta { text, .. } => self.refusal.push_str(&text),
            CanonicalEvent::PartEnded { index } => {
                if let Some(text) = self.free.remove(&index) {
                    self.write_arguments_delta(index, &crate::tools::wrap_arguments(&text), out);
                }
                if let Some(place) = self.places.get(&index) {
                    write_named_event(out, "content_block_stop", json!({ "index": place }));
                }
            }
            CanonicalEvent::Ended { stop, usage } => {
                let delta = encode_stop_fields(&stop, &self.refusal);
                let usage = encode_usage(&usage.unwrap_or_default());
                write_named_event(out, "message_delta", json!({ "delta": delta, "usage": usage }));
                write_named_event(out, "message_stop", json!({}));
            }
            CanonicalEvent::Failed(error) => {
                write_named_event(out, "error", json!({ "error": anthropic_error_object(&error) }));
            }
        }
    }

    fn start_block(&mut self, index: usize, opening: PartStart, out: &mut Vec<u8>) {
        let block = match opening {
            PartStart::Refusal => return,
            PartStart::Text => json!({ "type": "text", "text": "" }),
            PartStart::Reasoning { .. } => encode_thinking_block("", None),
            PartStart::Redacted(seal) => encode_thinking_block("", Some(&seal)),
            PartStart::ToolCall { id, name, free, .. } => {
                if free {
                    self.free.insert(index, String::new());
                }
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
            }
        };
        let place = self.places.len();
        self.places.insert(index, place);
        write_named_event(
            out,
            "content_block_start",
            json!({ "index": place, "content_block": block }),
        );
    }

    fn write_arguments_delta(&self, index: usize, text: &str, out: &mut Vec<u8>) {
        self.write_delta(index, &json!({ "type": "input_json_delta", "partial_json": text }), out);
    }

    fn write_delta(&self, index: usize, delta: &Value, out: &mut Vec<u8>) {
        if let Some(place) = self.places.get(&index) {
            write_named_event(
                out,
                "content_block_delta",
                json!({ "index": place, "delta": delta }),
            );
        }
    }
}

/// Writes one event. Its name is also its type.
fn write_named_event(out: &mut Vec<u8>, name: &str, fields: Value) {
    let mut data = serde_json::Map::new();
    data.insert("type".into(), json!(name));
    if let Value::Object(fields) = fields {
        data.extend(fields);
    }
    write_sse_event(out, Some(name), &Value::Object(data));
}
