use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    answer::{refusal, stop, usage},
    reading::redacted,
};
use crate::{
    dialect::{Dialect, Speak as _, fields::word, seals, stream::not_json},
    sse::SseEvent,
    talk::{Event, ModelError, Opening, Stop},
};

const HERE: Dialect = Dialect::Messages;

/// Reads the events of a provider.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct Reader {
    tolerant: bool,
    /// The open blocks, by the provider's index.
    blocks: BTreeMap<u64, Block>,
    next: usize,
    called: bool,
    stop: Option<Stop>,
    refusal: Option<String>,
    /// What was used, as far as it has been said: later numbers replace earlier ones.
    used: Map<String, Value>,
}

#[derive(Clone, Debug)]
struct Block {
    index: usize,
    /// What a tool is given if no delta says it.
    input: Option<String>,
}

impl Reader {
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

    pub(in crate::dialect) fn read(&mut self, event: &SseEvent, out: &mut Vec<Event>) {
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            out.push(not_json());
            return;
        };
        match word(&data, "type") {
            "message_start" => {
                let message = data.get("message").unwrap_or(&Value::Null);
                self.merge(message.get("usage"));
                let (id, model) =
                    (word(message, "id").to_owned(), word(message, "model").to_owned());
                let usage = message.get("usage").map(usage);
                out.push(Event::Started { id, model, usage });
            }
            "content_block_start" => self.start(&data, out),
            "content_block_delta" => self.delta(&data, out),
            "content_block_stop" => {
                if let Some(Block { index, input }) = self.blocks.remove(&place(&data)) {
                    out.extend(input.map(|text| Event::ArgumentsDelta { index, text }));
                    out.push(Event::PartEnded { index });
                }
            }
            "message_delta" => {
                self.merge(data.get("usage"));
                let delta = data.get("delta").unwrap_or(&Value::Null);
                self.refusal = refusal(delta);
                let reason = word(delta, "stop_reason");
                if !reason.is_empty() {
                    self.stop = Some(stop(reason, delta.get("stop_sequence"), &[]));
                }
            }
            "message_stop" => self.stopped(out),
            "error" => out.push(Event::Failed(HERE.read_error(0, &data, None))),
            // Pings, and events that are not known yet.
            _ => {}
        }
    }

    fn stopped(&mut self, out: &mut Vec<Event>) {
        let open = std::mem::take(&mut self.blocks);
        out.extend(open.into_values().map(|block| Event::PartEnded { index: block.index }));
        if let Some(text) = self.refusal.take() {
            let index = self.take_index();
            out.push(Event::PartStarted { index, opening: Opening::Refusal });
            out.push(Event::RefusalDelta { index, text });
            out.push(Event::PartEnded { index });
        }
        let otherwise = if self.called { Stop::ToolCalls } else { Stop::EndTurn };
        let stop = self.stop.take().unwrap_or(otherwise);
        let used = Value::Object(std::mem::take(&mut self.used));
        let usage = used.as_object().is_some_and(|used| !used.is_empty()).then(|| usage(&used));
        out.push(Event::Ended { stop, usage });
    }

    fn merge(&mut self, usage: Option<&Value>) {
        let fields = usage.and_then(Value::as_object).into_iter().flatten();
        let said = fields.filter(|(_, value)| !value.is_null());
        self.used.extend(said.map(|(name, value)| (name.clone(), value.clone())));
    }

    const fn take_index(&mut self) -> usize {
        let index = self.next;
        self.next += 1;
        index
    }

    fn start(&mut self, data: &Value, out: &mut Vec<Event>) {
        let block = data.get("content_block").unwrap_or(&Value::Null);
        let mut input = None;
        let opening = match word(block, "type") {
            "text" => Opening::Text,
            "thinking" => Opening::Reasoning { id: None },
            "redacted_thinking" => Opening::Redacted(redacted(word(block, "data"))),
            "tool_use" => {
                self.called = true;
                input = Some(block.get("input").map_or_else(|| "{}".into(), Value::to_string));
                let (id, name) = (word(block, "id").to_owned(), word(block, "name").to_owned());
                Opening::ToolCall { id, name, namespace: None, free: false }
            }
            _ if self.tolerant => return,
            other => {
                let message = format!(
                    "the provider's stream has a block `{other}`, for which there is no word"
                );
                out.push(Event::Failed(ModelError::upstream(message)));
                return;
            }
        };
        let index = self.take_index();
        self.blocks.insert(place(data), Block { index, input });
        out.push(Event::PartStarted { index, opening });
        // A block may begin with its first words.
        let (text, thought) = (word(block, "text"), word(block, "thinking"));
        if !text.is_empty() {
            out.push(Event::TextDelta { index, text: text.to_owned() });
        }
        if !thought.is_empty() {
            out.push(Event::ReasoningDelta { index, text: thought.to_owned() });
        }
    }

    fn delta(&mut self, data: &Value, out: &mut Vec<Event>) {
        let Some(block) = self.blocks.get_mut(&place(data)) else { return };
        let index = block.index;
        let delta = data.get("delta").unwrap_or(&Value::Null);
        let event = match word(delta, "type") {
            "text_delta" => Event::TextDelta { index, text: word(delta, "text").to_owned() },
            "thinking_delta" => {
                Event::ReasoningDelta { index, text: word(delta, "thinking").to_owned() }
            }
            "signature_delta" => {
                let signature = word(delta, "signature");
                if signature.is_empty() {
                    return;
                }
                Event::Sealed { index, seal: seals::read(signature, HERE, None) }
            }
            "input_json_delta" => {
                let text = word(delta, "partial_json").to_owned();
                if !text.is_empty() {
                    block.input = None;
                }
                Event::ArgumentsDelta { index, text }
            }
            _ => return,
        };
        if !event.is_empty() {
            out.push(event);
        }
    }
}

fn place(data: &Value) -> u64 {
    data.get("index").and_then(Value::as_u64).unwrap_or(0)
}
