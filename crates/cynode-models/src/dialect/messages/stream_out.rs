use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answer::{stop_fields, thinking_block, write_usage};
use crate::{
    dialect::{Dialect, Reply, chat::answer_id, errors::anthropic_object, order::InOrder, seals},
    sse,
    talk::{Event, Opening},
};

const HERE: Dialect = Dialect::Messages;

/// Writes events for a client.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct Writer {
    reply: Reply,
    order: InOrder,
    /// The client's index of each part.
    places: BTreeMap<usize, usize>,
    /// Free text for tools, which becomes an object when it is complete.
    free: BTreeMap<usize, String>,
    /// The words of a refusal, which come with the end.
    refusal: String,
}

impl Writer {
    pub(in crate::dialect) fn new(reply: Reply) -> Self {
        Self {
            reply,
            order: InOrder::default(),
            places: BTreeMap::new(),
            free: BTreeMap::new(),
            refusal: String::new(),
        }
    }

    pub(in crate::dialect) fn write(&mut self, event: Event, out: &mut Vec<u8>) {
        for event in self.order.take(event) {
            self.put(event, out);
        }
    }

    fn put(&mut self, event: Event, out: &mut Vec<u8>) {
        match event {
            Event::Started { id, model, usage } => {
                let message = json!({
                    "id": answer_id(&id, &self.reply),
                    "type": "message",
                    "role": "assistant",
                    "model": model,
                    "content": [],
                    "stop_reason": null,
                    "stop_sequence": null,
                    "usage": write_usage(&usage.unwrap_or_default()),
                });
                say(out, "message_start", json!({ "message": message }));
                say(out, "ping", json!({}));
            }
            Event::PartStarted { index, opening } => self.start(index, opening, out),
            Event::TextDelta { index, text } => {
                self.delta(index, &json!({ "type": "text_delta", "text": text }), out);
            }
            Event::ReasoningDelta { index, text } => {
                self.delta(index, &json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Event::Sealed { index, seal } => {
                let signature = seals::write(&seal, HERE);
                let delta = json!({ "type": "signature_delta", "signature": signature });
                self.delta(index, &delta, out);
            }
            Event::ArgumentsDelta { index, text } => match self.free.get_mut(&index) {
                Some(held) => held.push_str(&text),
                None => self.arguments(index, &text, out),
            },
            Event::RefusalDelta { text, .. } => self.refusal.push_str(&text),
            Event::PartEnded { index } => {
                if let Some(text) = self.free.remove(&index) {
                    self.arguments(index, &crate::tools::as_arguments(&text), out);
                }
                if let Some(place) = self.places.get(&index) {
                    say(out, "content_block_stop", json!({ "index": place }));
                }
            }
            Event::Ended { stop, usage } => {
                let delta = stop_fields(&stop, &self.refusal);
                let usage = write_usage(&usage.unwrap_or_default());
                say(out, "message_delta", json!({ "delta": delta, "usage": usage }));
                say(out, "message_stop", json!({}));
            }
            Event::Failed(error) => {
                say(out, "error", json!({ "error": anthropic_object(&error) }));
            }
        }
    }

    fn start(&mut self, index: usize, opening: Opening, out: &mut Vec<u8>) {
        let block = match opening {
            Opening::Refusal => return,
            Opening::Text => json!({ "type": "text", "text": "" }),
            Opening::Reasoning { .. } => thinking_block("", None),
            Opening::Redacted(seal) => thinking_block("", Some(&seal)),
            Opening::ToolCall { id, name, free, .. } => {
                if free {
                    self.free.insert(index, String::new());
                }
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
            }
        };
        let place = self.places.len();
        self.places.insert(index, place);
        say(out, "content_block_start", json!({ "index": place, "content_block": block }));
    }

    fn arguments(&self, index: usize, text: &str, out: &mut Vec<u8>) {
        self.delta(index, &json!({ "type": "input_json_delta", "partial_json": text }), out);
    }

    fn delta(&self, index: usize, delta: &Value, out: &mut Vec<u8>) {
        if let Some(place) = self.places.get(&index) {
            say(out, "content_block_delta", json!({ "index": place, "delta": delta }));
        }
    }
}

/// One event; its name is its type as well.
fn say(out: &mut Vec<u8>, name: &str, fields: Value) {
    let mut data = serde_json::Map::new();
    data.insert("type".into(), json!(name));
    if let Value::Object(fields) = fields {
        data.extend(fields);
    }
    sse::put(out, Some(name), &Value::Object(data));
}
