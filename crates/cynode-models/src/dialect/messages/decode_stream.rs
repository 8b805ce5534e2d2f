use std::collections::BTreeMap;

use cynode_net::sse::SseEvent;
use serde_json::{Map, Value};

use super::{
    answer::{decode_stop_reason, decode_usage, refusal_text},
    decode::decode_redacted_seal,
};
use crate::dialect::{
    Dialect, DialectCodec as _,
    canonical::{CanonicalEvent, ModelError, PartStart, StopReason},
    fields::text_field,
    seals,
    stream::invalid_json_event,
};

const DIALECT: Dialect = Dialect::Messages;

/// Decodes the events of a provider.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct MessagesStreamDecoder {
    tolerant: bool,
    /// Open blocks, by the provider's index.
    blocks: BTreeMap<u64, OpenBlock>,
    next: usize,
    called: bool,
    stop: Option<StopReason>,
    refusal: Option<String>,
    /// Token usage so far: later numbers replace earlier ones.
    used: Map<String, Value>,
}

#[derive(Clone, Debug)]
struct OpenBlock {
    index: usize,
    /// Input of a tool, used if no delta sends it.
    input: Option<String>,
}

impl MessagesStreamDecoder {
    pub(in crate::dialect) fn new(tolerant: bool) -> Self {
        Self {
            tolerant,
            blocks: BTreeMap::new(),
            next: 0,
            called: false,
            stop: None,
            refusal: None,
            used: Map::new(),
        }
    }

    pub(in crate::dialect) fn decode_event(
        &mut self,
        event: &SseEvent,
        out: &mut Vec<CanonicalEvent>,
    ) {
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            out.push(invalid_json_event());
            return;
        };
        match text_field(&data, "type") {
            "message_start" => {
                let message = data.get("message").unwrap_or(&Value::Null);
                self.merge_usage(message.get("usage"));
                let (id, model) =
                    (text_field(message, "id").to_owned(), text_field(message, "model").to_owned());
                let usage = message.get("usage").map(decode_usage);
                out.push(CanonicalEvent::Started { id, model, usage });
            }
            "content_block_start" => self.start_block(&data, out),
            "content_block_delta" => self.decode_delta(&data, out),
            "content_block_stop" => {
                if let Some(OpenBlock { index, input }) = self.blocks.remove(&block_index(&data)) {
                    out.extend(input.map(|text| CanonicalEvent::ArgumentsDelta { index, text }));
                    out.push(CanonicalEvent::PartEnded { index });
                }
            }
            "message_delta" => {
                self.merge_usage(data.get("usage"));
                let delta = data.get("delta").unwrap_or(&Value::Null);
                self.refusal = refusal_text(delta);
                let reason = text_field(delta, "stop_reason");
                if !reason.is_empty() {
                    self.stop = Some(decode_stop_reason(reason, delta.get("stop_sequence"), &[]));
                }
            }
            "message_stop" => self.finish_message(out),
            "error" => out.push(CanonicalEvent::Failed(DIALECT.decode_error(0, &data, None))),
            // Pings, and unknown events.
            _ => {}
        }
    }

    fn finish_message(&mut self, out: &mut Vec<CanonicalEvent>) {
        let open = std::mem::take(&mut self.blocks);
        out.extend(
            open.into_values().map(|block| CanonicalEvent::PartEnded { index: block.index }),
        );
        if let Some(text) = self.refusal.take() {
            let index = self.next_part_index();
            out.push(CanonicalEvent::PartStarted { index, opening: PartStart::Refusal });
            out.push(CanonicalEvent::RefusalDelta { index, text });
            out.push(CanonicalEvent::PartEnded { index });
        }
        let otherwise = if self.called { StopReason::ToolCalls } else { StopReason::EndTurn };
        let stop = self.stop.take().unwrap_or(otherwise);
        let used = Value::Object(std::mem::take(&mut self.used));
        let usage =
            used.as_object().is_some_and(|used| !used.is_empty()).then(|| decode_usage(&used));
        out.push(CanonicalEvent::Ended { stop, usage });
    }

    fn merge_usage(&mut self, usage: Option<&Value>) {
        let fields = usage.and_then(Value::as_object).into_iter().flatten();
        let said = fields.filter(|(_, value)| !value.is_null());
        self.used.extend(said.map(|(name, value)| (name.clone(), value.clone())));
    }

    const fn next_part_index(&mut self) -> usize {
        let index = self.next;
        self.next += 1;
        index
    }

    fn start_block(&mut self, data: &Value, out: &mut Vec<CanonicalEvent>) {
        let block = data.get("content_block").unwrap_or(&Value::Null);
        let mut input = None;
        let opening = match text_field(block, "type") {
            "text" => PartStart::Text,
            "thinking" => PartStart::Reasoning { id: None },
            "redacted_thinking" => {
                PartStart::Redacted(decode_redacted_seal(text_field(block, "data")))
            }
            "tool_use" => {
                self.called = true;
                input = Some(block.get("input").map_or_else(|| "{}".into(), Value::to_string));
                let (id, name) =
                    (text_field(block, "id").to_owned(), text_field(block, "name").to_owned());
                PartStart::ToolCall { id, name, namespace: None, free: false }
            }
            _ if self.tolerant => return,
            other => {
                let message = format!(
                    "the provider's stream has a block `{other}`, for which there is no word"
                );
                out.push(CanonicalEvent::Failed(ModelError::upstream_error(message)));
                return;
            }
        };
        let index = self.next_part_index();
        self.blocks.insert(block_index(data), OpenBlock { index, input });
        out.push(CanonicalEvent::PartStarted { index, opening });
        // A block may start with its first text.
        let (text, thought) = (text_field(block, "text"), text_field(block, "thinking"));
        if !text.is_empty() {
            out.push(CanonicalEvent::TextDelta { index, text: text.to_owned() });
        }
        if !thought.is_empty() {
            out.push(CanonicalEvent::ReasoningDelta { index, text: thought.to_owned() });
        }
    }

    fn decode_delta(&mut self, data: &Value, out: &mut Vec<CanonicalEvent>) {
        let Some(block) = self.blocks.get_mut(&block_index(data)) else { return };
        let index = block.index;
        let delta = data.get("delta").unwrap_or(&Value::Null);
        let event = match text_field(delta, "type") {
            "text_delta" => {
                CanonicalEvent::TextDelta { index, text: text_field(delta, "text").to_owned() }
            }
            "thinking_delta" => CanonicalEvent::ReasoningDelta {
                index,
                text: text_field(delta, "thinking").to_owned(),
            },
            "signature_delta" => {
                let signature = text_field(delta, "signature");
                if signature.is_empty() {
                    return;
                }
                CanonicalEvent::Sealed { index, seal: seals::decode_seal(signature, DIALECT, None) }
            }
            "input_json_delta" => {
                let text = text_field(delta, "partial_json").to_owned();
                if !text.is_empty() {
                    block.input = None;
                }
                CanonicalEvent::ArgumentsDelta { index, text }
            }
            _ => return,
        };
        if !event.is_empty_delta() {
            out.push(event);
        }
    }
}

fn block_index(data: &Value) -> u64 {
    data.get("index").and_then(Value::as_u64).unwrap_or(0)
}
