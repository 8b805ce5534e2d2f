use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answer::{encode_finish_reason, encode_usage, response_id};
use crate::dialect::{
    Dialect, ResponseContext,
    canonical::{CanonicalEvent, ContentPart, PartStart},
    errors::openai_error_object,
    stream::write_sse_event,
};

/// Encodes chunks for a client.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct ChatStreamEncoder {
    reply: ResponseContext,
    id: String,
    model: String,
    /// The client's index of each tool call, by part, and whether the tool takes free text.
    calls: BTreeMap<usize, (usize, bool)>,
    refused: bool,
}

impl ChatStreamEncoder {
    pub(in crate::dialect) fn new(reply: ResponseContext) -> Self {
        let (id, model) = (String::new(), String::new());
        Self { reply, id, model, calls: BTreeMap::new(), refused: false }
    }

    pub(in crate::dialect) fn encode_event(&mut self, event: CanonicalEvent, out: &mut Vec<u8>) {
        match event {
            CanonicalEvent::Started { id, model, .. } => {
                response_id(&id, &self.reply).clone_into(&mut self.id);
                self.model = model;
                self.write_delta(
                    &json!({ "role": "assistant", "content": "", "refusal": null }),
                    out,
                );
            }
            CanonicalEvent::PartStarted { index, opening } => self.start_part(index, opening, out),
            CanonicalEvent::TextDelta { text, .. } => {
                self.write_delta(&json!({ "content": text }), out);
            }
            CanonicalEvent::RefusalDelta { text, .. } => {
                self.write_delta(&json!({ "refusal": text }), out);
            }
            CanonicalEvent::ReasoningDelta { text, .. } => {
                self.write_delta(&json!({ "reasoning_content": text }), out);
            }
            CanonicalEvent::ArgumentsDelta { index, text } => {
                let Some((place, free)) = self.calls.get(&index) else { return };
                let call = if *free {
                    json!({ "index": place, "custom": { "input": text } })
                } else {
                    json!({ "index": place, "function": { "arguments": text } })
                };
                self.write_delta(&json!({ "tool_calls": [call] }), out);
            }
            // The dialect has no field for seals, and no event for the end of a part.
            CanonicalEvent::Sealed { .. } | CanonicalEvent::PartEnded { .. } => {}
            CanonicalEvent::Ended { stop, usage } => {
                let parts = if self.refused {
                    vec![ContentPart::Refusal(String::new())]
                } else {
                    Vec::new()
                };
                let reason = encode_finish_reason(&stop, &parts);
                self.write_chunk(&json!([encode_choice(&json!({}), Some(reason))]), out);
                if self.reply.include_usage {
                    let mut chunk = self.chunk_header(&json!([]));
                    chunk.insert("usage".into(), json!(usage.as_ref().map(encode_usage)));
                    write_sse_event(out, None, &Value::Object(chunk));
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            CanonicalEvent::Failed(error) => {
                // No `[DONE]`: the response is not complete.
                let error = json!({ "error": openai_error_object(Dialect::Chat, &error) });
                write_sse_event(out, None, &error);
            }
        }
    }

    fn start_part(&mut self, index: usize, opening: PartStart, out: &mut Vec<u8>) {
        match opening {
            PartStart::Refusal => self.refused = true,
            PartStart::Text | PartStart::Reasoning { .. } | PartStart::Redacted(_) => {}
            PartStart::ToolCall { id, name, free, .. } => {
                let place = self.calls.len();
                self.calls.insert(index, (place, free));
                let call = if free {
                    json!({ "index": place, "id": id, "type": "custom", "custom": { "name": name, "input": "" } })
                } else {
                    json!({ "index": place, "id": id, "type": "function", "function": { "name": name, "arguments": "" } })
                };
                self.write_delta(&json!({ "tool_calls": [call] }), out);
            }
        }
    }

    fn write_delta(&self, delta: &Value, out: &mut Vec<u8>) {
        self.write_chunk(&json!([encode_choice(delta, None)]), out);
    }

    fn write_chunk(&self, choices: &Value, out: &mut Vec<u8>) {
        let mut chunk = self.chunk_header(choices);
        if self.reply.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        write_sse_event(out, None, &Value::Object(chunk));
    }

    fn chunk_header(&self, choices: &Value) -> Map<String, Value> {
        let mut chunk = Map::new();
        chunk.insert("id".into(), json!(self.id));
        chunk.insert("object".into(), json!("chat.completion.chunk"));
        chunk.insert("created".into(), json!(self.reply.created));
        chunk.insert("model".into(), json!(self.model));
        chunk.insert("choices".into(), choices.clone());
        chunk
    }
}

fn encode_choice(delta: &Value, reason: Option<&str>) -> Value {
    json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason })
}
