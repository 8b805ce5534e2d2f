use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answer::{
    ResponseFrame, encode_content_part, encode_item, incomplete_reason, item_id_of,
};
use crate::dialect::{
    ResponseContext,
    canonical::{
        CanonicalEvent, ContentPart, ModelError, PartStart, ReasoningPart, ResponseAssembler,
        ToolCall, ToolInput,
    },
    chat::response_id,
    stream::write_sse_event,
};

/// Encodes events for a client.
#[derive(Clone, Debug)]
pub(in crate::dialect) struct ResponsesStreamEncoder {
    reply: ResponseContext,
    id: String,
    model: String,
    sequence: u64,
    /// All content so far: the end events of parts and of the response repeat it.
    gather: ResponseAssembler,
    open: BTreeMap<usize, OutputItem>,
    refused: bool,
    started: usize,
    /// Complete items.
    output: BTreeMap<usize, Value>,
}

#[derive(Clone, Debug)]
struct OutputItem {
    id: String,
    place: usize,
    /// Whether a reasoning summary has started.
    summary: bool,
}

impl ResponsesStreamEncoder {
    pub(in crate::dialect) fn new(reply: ResponseContext) -> Self {
        Self {
            id: reply.id.clone(),
            reply,
            model: String::new(),
            sequence: 0,
            gather: ResponseAssembler::default(),
            open: BTreeMap::new(),
            refused: false,
            started: 0,
            output: BTreeMap::new(),
        }
    }

    pub(in crate::dialect) fn encode_event(&mut self, event: CanonicalEvent, out: &mut Vec<u8>) {
        self.gather.push_event(&event);
        match event {
            CanonicalEvent::Started { id, model, .. } => {
                response_id(&id, &self.reply).clone_into(&mut self.id);
                self.model = model;
                let response = self.response_frame().in_progress_response();
                self.write_numbered_event(out, "response.created", json!({ "response": response }));
                self.write_numbered_event(
                    out,
                    "response.in_progress",
                    json!({ "response": response }),
                );
            }
            CanonicalEvent::PartStarted { index, opening } => self.start_item(index, &opening, out),
            CanonicalEvent::TextDelta { index, text } => {
                let fields = json!({ "content_index": 0, "delta": text, "logprobs": [] });
                self.write_delta(index, "response.output_text.delta", fields, out);
            }
            CanonicalEvent::RefusalDelta { index, text } => {
                let fields = json!({ "content_index": 0, "delta": text });
                self.write_delta(index, "response.refusal.delta", fields, out);
            }
            CanonicalEvent::ReasoningDelta { index, text } => {
                self.write_reasoning_delta(index, &text, out);
            }
            CanonicalEvent::ArgumentsDelta { index, text } => {
                let name = match self.gather.get_part(index) {
                    Some(ContentPart::ToolCall(ToolCall { input: ToolInput::Free(_), .. })) => {
                        "response.custom_tool_call_input.delta"
                    }
                    _ => "response.function_call_arguments.delta",
                };
                self.write_delta(index, name, json!({ "delta": text }), out);
            }
            // The end of the item holds the seal.
            CanonicalEvent::Sealed { .. } => {}
            CanonicalEvent::PartEnded { index } => self.end_part(index, out),
            CanonicalEvent::Ended { stop, usage } => {
                self.end_open_parts(out);
                let output = std::mem::take(&mut self.output).into_values().collect();
                let whole = incomplete_reason(&stop, self.refused).is_none();
                let name = if whole { "response.completed" } else { "response.incomplete" };
                let response = self.response_frame().final_response(
                    &stop,
                    self.refused,
                    output,
                    usage.as_ref(),
                );
                self.write_numbered_event(out, name, json!({ "response": response }));
            }
            CanonicalEvent::Failed(error) => self.write_failure(&error, out),
        }
    }

    fn write_failure(&mut self, error: &ModelError, out: &mut Vec<u8>) {
        let output = std::mem::take(&mut self.output).into_values().collect();
        let response = self.response_frame().failed_response(error, output);
        self.write_numbered_event(out, "response.failed", json!({ "response": response }));
    }

    fn response_frame(&self) -> ResponseFrame<'_> {
        ResponseFrame { id: &self.id, model: &self.model, reply: &self.reply }
    }

    fn start_item(&mut self, index: usize, opening: &PartStart, out: &mut Vec<u8>) {
        let Some(part) = self.gather.get_part(index).cloned() else { return };
        let named = match opening {
            // The provider sends its own id of the reasoning before the seal arrives.
            PartStart::Reasoning { id: Some(id) } => Some(id.clone()),
            _ => None,
        };
        let place = self.started;
        self.started += 1;
        let id = named.unwrap_or_else(|| item_id_of(&part, &self.id, place));
        self.refused |= matches!(part, ContentPart::Refusal(_));
        // Reasoning that arrives complete is sent at the end of its item.
        let begun = match &part {
            ContentPart::Reasoning(_) => ContentPart::Reasoning(ReasoningPart::default()),
            part => part.clone(),
        };
        let item = encode_item(&begun, &id, "in_progress");
        self.write_numbered_event(
            out,
            "response.output_item.added",
            json!({ "output_index": place, "item": item }),
        );
        if let Some(content) = encode_content_part(&part) {
            let fields = json!({ "item_id": id, "output_index": place, "content_index": 0, "part": content });
            self.write_numbered_event(out, "response.content_part.added", fields);
        }
        self.open.insert(index, OutputItem { id, place, summary: false });
    }

    fn write_delta(&mut self, index: usize, name: &str, fields: Value, out: &mut Vec<u8>) {
        let Some(item) = self.open.get(&index) else { return };
        let mut data = Map::new();
        data.insert("item_id".into(), json!(item.id));
        data.insert("output_index".into(), json!(item.place));
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        self.write_numbered_event(out, name, Value::Object(data));
    }

    fn write_reasoning_delta(&mut self, index: usize, text: &str, out: &mut Vec<u8>) {
        let Some(item) = self.open.get_mut(&index) else { return };
        if !std::mem::replace(&mut item.summary, true) {
            let part = json!({ "type": "summary_text", "text": "" });
            let fields = json!({ "summary_index": 0, "part": part });
            self.write_delta(index, "response.reasoning_summary_part.added", fields, out);
        }
        let fields = json!({ "summary_index": 0, "delta": text });
        self.write_delta(index, "response.reasoning_summary_text.delta", fields, out);
    }

    fn end_open_parts(&mut self, out: &mut Vec<u8>) {
        while let Some(index) = self.open.keys().next().copied() {
            self.end_part(index, out);
        }
    }

    fn end_part(&mut self, index: usize, out: &mut Vec<u8>) {
        let Some(part) = self.gather.get_part(index).cloned() else { return };
        match &part {
            ContentPart::Text(text) => {
                let fields = json!({ "content_index": 0, "text": text.text, "logprobs": [] });
                self.write_delta(index, "response.output_text.done", fields, out);
            }
            ContentPart::Refusal(text) => {
                let fields = json!({ "content_index": 0, "refusal": text });
                self.write_delta(index, "response.refusal.done", fields, out);
            }
            ContentPart::ToolCall(call) => {
                let (name, fields) = match &call.input {
                    ToolInput::Json(text) => {
                        ("response.function_call_arguments.done", json!({ "arguments": text }))
                    }
                    ToolInput::Free(text) => {
                        ("response.custom_tool_call_input.done", json!({ "input": text }))
                    }
                };
                self.write_delta(index, name, fields, out);
            }
            ContentPart::Reasoning(thought)
                if self.open.get(&index).is_some_and(|item| item.summary) =>
            {
                let fields = json!({ "summary_index": 0, "text": thought.text });
                self.write_delta(index, "response.reasoning_summary_text.done", fields, out);
                let part = json!({ "type": "summary_text", "text": thought.text });
                let fields = json!({ "summary_index": 0, "part": part });
                self.write_delta(index, "response.reasoning_summary_part.done", fields, out);
            }
            _ => {}
        }
        if let Some(content) = encode_content_part(&part) {
            let fields = json!({ "content_index": 0, "part": content });
            self.write_delta(index, "response.content_part.done", fields, out);
        }
        let Some(OutputItem { id, place, .. }) = self.open.remove(&index) else { return };
        if let Some(item) = encode_item(&part, &id, "completed") {
            let fields = json!({ "output_index": place, "item": item });
            self.write_numbered_event(out, "response.output_item.done", fields);
            self.output.insert(place, item);
        }
    }

    /// Writes one numbered event. Its name is also its type.
    fn write_numbered_event(&mut self, out: &mut Vec<u8>, name: &str, fields: Value) {
        let mut data = Map::new();
        data.insert("type".into(), json!(name));
        data.insert("sequence_number".into(), json!(self.sequence));
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        self.sequence += 1;
        write_sse_event(out, Some(name), &Value::Object(data));
    }
}
