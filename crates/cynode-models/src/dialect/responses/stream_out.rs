use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answer::{Frame, content_part, incomplete, item_id, write_item};
use crate::{
    dialect::{Reply, chat::answer_id},
    sse,
    talk::{Event, Gather, Input, ModelError, Opening, Part, Reasoning, ToolCall},
};

/// Writes events for a client.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct Writer {
    reply: Reply,
    id: String,
    model: String,
    sequence: u64,
    /// All that has been said: the ends of parts and of the response repeat it.
    gather: Gather,
    open: BTreeMap<usize, Item>,
    refused: bool,
    started: usize,
    /// The complete items.
    output: BTreeMap<usize, Value>,
}

#[derive(Clone, Debug)]
struct Item {
    id: String,
    place: usize,
    /// A summary of a thought has begun.
    summary: bool,
}

impl Writer {
    pub(in crate::dialect) fn new(reply: Reply) -> Self {
        Self {
            id: reply.id.clone(),
            reply,
            model: String::new(),
            sequence: 0,
            gather: Gather::default(),
            open: BTreeMap::new(),
            refused: false,
            started: 0,
            output: BTreeMap::new(),
        }
    }

    pub(in crate::dialect) fn write(&mut self, event: Event, out: &mut Vec<u8>) {
        self.gather.take(&event);
        match event {
            Event::Started { id, model, .. } => {
                answer_id(&id, &self.reply).clone_into(&mut self.id);
                self.model = model;
                let response = self.frame().in_progress();
                self.say(out, "response.created", json!({ "response": response }));
                self.say(out, "response.in_progress", json!({ "response": response }));
            }
            Event::PartStarted { index, opening } => self.start(index, &opening, out),
            Event::TextDelta { index, text } => {
                let fields = json!({ "content_index": 0, "delta": text, "logprobs": [] });
                self.delta(index, "response.output_text.delta", fields, out);
            }
            Event::RefusalDelta { index, text } => {
                let fields = json!({ "content_index": 0, "delta": text });
                self.delta(index, "response.refusal.delta", fields, out);
            }
            Event::ReasoningDelta { index, text } => self.think(index, &text, out),
            Event::ArgumentsDelta { index, text } => {
                let name = match self.gather.part(index) {
                    Some(Part::ToolCall(ToolCall { input: Input::Free(_), .. })) => {
                        "response.custom_tool_call_input.delta"
                    }
                    _ => "response.function_call_arguments.delta",
                };
                self.delta(index, name, json!({ "delta": text }), out);
            }
            // The end of the item says it.
            Event::Sealed { .. } => {}
            Event::PartEnded { index } => self.end_part(index, out),
            Event::Ended { stop, usage } => {
                self.end_open(out);
                let output = std::mem::take(&mut self.output).into_values().collect();
                let whole = incomplete(&stop, self.refused).is_none();
                let name = if whole { "response.completed" } else { "response.incomplete" };
                let response = self.frame().ended(&stop, self.refused, output, usage.as_ref());
                self.say(out, name, json!({ "response": response }));
            }
            Event::Failed(error) => self.fail(&error, out),
        }
    }

    fn fail(&mut self, error: &ModelError, out: &mut Vec<u8>) {
        let output = std::mem::take(&mut self.output).into_values().collect();
        let response = self.frame().failed(error, output);
        self.say(out, "response.failed", json!({ "response": response }));
    }

    fn frame(&self) -> Frame<'_> {
        Frame { id: &self.id, model: &self.model, reply: &self.reply }
    }

    fn start(&mut self, index: usize, opening: &Opening, out: &mut Vec<u8>) {
        let Some(part) = self.gather.part(index).cloned() else { return };
        let named = match opening {
            // The provider's own name for a thought comes before its seal.
            Opening::Reasoning { id: Some(id) } => Some(id.clone()),
            _ => None,
        };
        let place = self.started;
        self.started += 1;
        let id = named.unwrap_or_else(|| item_id(&part, &self.id, place));
        self.refused |= matches!(part, Part::Refusal(_));
        // A thought that comes whole is told whole at its end.
        let begun = match &part {
            Part::Reasoning(_) => Part::Reasoning(Reasoning::default()),
            part => part.clone(),
        };
        let item = write_item(&begun, &id, "in_progress");
        self.say(out, "response.output_item.added", json!({ "output_index": place, "item": item }));
        if let Some(content) = content_part(&part) {
            let fields = json!({ "item_id": id, "output_index": place, "content_index": 0, "part": content });
            self.say(out, "response.content_part.added", fields);
        }
        self.open.insert(index, Item { id, place, summary: false });
    }

    fn delta(&mut self, index: usize, name: &str, fields: Value, out: &mut Vec<u8>) {
        let Some(item) = self.open.get(&index) else { return };
        let mut data = Map::new();
        data.insert("item_id".into(), json!(item.id));
        data.insert("output_index".into(), json!(item.place));
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        self.say(out, name, Value::Object(data));
    }

    fn think(&mut self, index: usize, text: &str, out: &mut Vec<u8>) {
        let Some(item) = self.open.get_mut(&index) else { return };
        if !std::mem::replace(&mut item.summary, true) {
            let part = json!({ "type": "summary_text", "text": "" });
            let fields = json!({ "summary_index": 0, "part": part });
            self.delta(index, "response.reasoning_summary_part.added", fields, out);
        }
        let fields = json!({ "summary_index": 0, "delta": text });
        self.delta(index, "response.reasoning_summary_text.delta", fields, out);
    }

    fn end_open(&mut self, out: &mut Vec<u8>) {
        while let Some(index) = self.open.keys().next().copied() {
            self.end_part(index, out);
        }
    }

    fn end_part(&mut self, index: usize, out: &mut Vec<u8>) {
        let Some(part) = self.gather.part(index).cloned() else { return };
        match &part {
            Part::Text(text) => {
                let fields = json!({ "content_index": 0, "text": text.text, "logprobs": [] });
                self.delta(index, "response.output_text.done", fields, out);
            }
            Part::Refusal(text) => {
                let fields = json!({ "content_index": 0, "refusal": text });
                self.delta(index, "response.refusal.done", fields, out);
            }
            Part::ToolCall(call) => {
                let (name, fields) = match &call.input {
                    Input::Json(text) => {
                        ("response.function_call_arguments.done", json!({ "arguments": text }))
                    }
                    Input::Free(text) => {
                        ("response.custom_tool_call_input.done", json!({ "input": text }))
                    }
                };
                self.delta(index, name, fields, out);
            }
            Part::Reasoning(thought) if self.open.get(&index).is_some_and(|item| item.summary) => {
                let fields = json!({ "summary_index": 0, "text": thought.text });
                self.delta(index, "response.reasoning_summary_text.done", fields, out);
                let part = json!({ "type": "summary_text", "text": thought.text });
                let fields = json!({ "summary_index": 0, "part": part });
                self.delta(index, "response.reasoning_summary_part.done", fields, out);
            }
            _ => {}
        }
        if let Some(content) = content_part(&part) {
            let fields = json!({ "content_index": 0, "part": content });
            self.delta(index, "response.content_part.done", fields, out);
        }
        let Some(Item { id, place, .. }) = self.open.remove(&index) else { return };
        if let Some(item) = write_item(&part, &id, "completed") {
            let fields = json!({ "output_index": place, "item": item });
            self.say(out, "response.output_item.done", fields);
            self.output.insert(place, item);
        }
    }

    /// One event, numbered; its name is its type as well.
    fn say(&mut self, out: &mut Vec<u8>, name: &str, fields: Value) {
        let mut data = Map::new();
        data.insert("type".into(), json!(name));
        data.insert("sequence_number".into(), json!(self.sequence));
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        self.sequence += 1;
        sse::put(out, Some(name), &Value::Object(data));
    }
}
