use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answer::{answer_id, finish_reason, write_usage};
use crate::{
    dialect::{Dialect, Reply, errors::openai_object},
    sse,
    talk::{Event, Opening, Part},
};

/// Writes chunks for a client.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct Writer {
    reply: Reply,
    id: String,
    model: String,
    /// The client's index of each call, by part, and whether it is given free text.
    calls: BTreeMap<usize, (usize, bool)>,
    refused: bool,
}

impl Writer {
    pub(in crate::dialect) fn new(reply: Reply) -> Self {
        let (id, model) = (String::new(), String::new());
        Self { reply, id, model, calls: BTreeMap::new(), refused: false }
    }

    pub(in crate::dialect) fn write(&mut self, event: Event, out: &mut Vec<u8>) {
        match event {
            Event::Started { id, model, .. } => {
                answer_id(&id, &self.reply).clone_into(&mut self.id);
                self.model = model;
                self.delta(&json!({ "role": "assistant", "content": "", "refusal": null }), out);
            }
            Event::PartStarted { index, opening } => self.started(index, opening, out),
            Event::TextDelta { text, .. } => self.delta(&json!({ "content": text }), out),
            Event::RefusalDelta { text, .. } => self.delta(&json!({ "refusal": text }), out),
            Event::ReasoningDelta { text, .. } => {
                self.delta(&json!({ "reasoning_content": text }), out);
            }
            Event::ArgumentsDelta { index, text } => {
                let Some((place, free)) = self.calls.get(&index) else { return };
                let call = if *free {
                    json!({ "index": place, "custom": { "input": text } })
                } else {
                    json!({ "index": place, "function": { "arguments": text } })
                };
                self.delta(&json!({ "tool_calls": [call] }), out);
            }
            // The dialect has no place for seals, and does not say that a part is complete.
            Event::Sealed { .. } | Event::PartEnded { .. } => {}
            Event::Ended { stop, usage } => {
                let parts =
                    if self.refused { vec![Part::Refusal(String::new())] } else { Vec::new() };
                let reason = finish_reason(&stop, &parts);
                self.chunk(&json!([choice(&json!({}), Some(reason))]), out);
                if self.reply.include_usage {
                    let mut chunk = self.head(&json!([]));
                    chunk.insert("usage".into(), json!(usage.as_ref().map(write_usage)));
                    sse::put(out, None, &Value::Object(chunk));
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            Event::Failed(error) => {
                // No `[DONE]`: what is here is not an answer.
                let error = json!({ "error": openai_object(Dialect::Chat, &error) });
                sse::put(out, None, &error);
            }
        }
    }

    fn started(&mut self, index: usize, opening: Opening, out: &mut Vec<u8>) {
        match opening {
            Opening::Refusal => self.refused = true,
            Opening::Text | Opening::Reasoning { .. } | Opening::Redacted(_) => {}
            Opening::ToolCall { id, name, free, .. } => {
                let place = self.calls.len();
                self.calls.insert(index, (place, free));
                let call = if free {
                    json!({ "index": place, "id": id, "type": "custom", "custom": { "name": name, "input": "" } })
                } else {
                    json!({ "index": place, "id": id, "type": "function", "function": { "name": name, "arguments": "" } })
                };
                self.delta(&json!({ "tool_calls": [call] }), out);
            }
        }
    }

    fn delta(&self, delta: &Value, out: &mut Vec<u8>) {
        self.chunk(&json!([choice(delta, None)]), out);
    }

    fn chunk(&self, choices: &Value, out: &mut Vec<u8>) {
        let mut chunk = self.head(choices);
        if self.reply.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        sse::put(out, None, &Value::Object(chunk));
    }

    fn head(&self, choices: &Value) -> Map<String, Value> {
        let mut chunk = Map::new();
        chunk.insert("id".into(), json!(self.id));
        chunk.insert("object".into(), json!("chat.completion.chunk"));
        chunk.insert("created".into(), json!(self.reply.created));
        chunk.insert("model".into(), json!(self.model));
        chunk.insert("choices".into(), choices.clone());
        chunk
    }
}

fn choice(delta: &Value, reason: Option<&str>) -> Value {
    json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason })
}
