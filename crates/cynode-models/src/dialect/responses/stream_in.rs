use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    answer::{read_answer, stop, usage},
    reading::thought,
};
use crate::{
    dialect::{Dialect, Speak as _, fields::word, stream::not_json},
    sse::SseEvent,
    talk::{Event, ModelError, Opening},
};

const HERE: Dialect = Dialect::Responses;

/// Reads the events of a provider.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was seen")]
pub(in crate::dialect) struct Reader {
    tolerant: bool,
    started: bool,
    next: usize,
    called: bool,
    refused: bool,
    /// The open items, by the provider's index.
    items: BTreeMap<u64, Item>,
}

#[derive(Clone, Debug)]
enum Item {
    /// Words, by the place in the message.
    Message(BTreeMap<u64, Open>),
    Call(Open),
    /// A thought and the place in its summary.
    Thought(Open, u64),
    /// Something that has no word.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    index: usize,
    /// Whether a delta said anything; if none does, the end says it all.
    said: bool,
    ended: bool,
}

impl Open {
    fn end(&mut self, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.ended, true) {
            out.push(Event::PartEnded { index: self.index });
        }
    }
}

impl Reader {
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

    pub(in crate::dialect) fn read(&mut self, event: &SseEvent, out: &mut Vec<Event>) {
        // Some servers end as Chat Completions does.
        if event.data.trim() == "[DONE]" {
            return;
        }
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            out.push(not_json());
            return;
        };
        let response = data.get("response").unwrap_or(&Value::Null);
        match word(&data, "type") {
            "response.created" | "response.in_progress" | "response.queued" => {
                self.start(response, out);
            }
            "response.output_item.added" => self.item_added(&data, out),
            "response.content_part.added" => {
                let refusal = data.pointer("/part/type").is_some_and(|kind| kind == "refusal");
                let text = data.pointer("/part/type").is_some_and(|kind| kind == "output_text");
                if refusal || text {
                    self.words(&data, refusal, out);
                }
            }
            "response.output_text.delta" => self.say(&data, false, "delta", out),
            "response.refusal.delta" => self.say(&data, true, "delta", out),
            "response.output_text.done" => self.say_if_silent(&data, false, "text", out),
            "response.refusal.done" => self.say_if_silent(&data, true, "refusal", out),
            "response.content_part.done" => self.content_done(&data, out),
            "response.reasoning_summary_text.delta" => self.think(&data, "summary_index", out),
            "response.reasoning_text.delta" => self.think(&data, "content_index", out),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(&data, out);
            }
            "response.output_item.done" => self.item_done(&data, out),
            "response.completed" | "response.incomplete" => self.ended(response, out),
            "response.failed" => out.push(Event::Failed(failure(response))),
            "error" => out.push(Event::Failed(HERE.read_error(0, &data, None))),
            // The ends of texts that the end of their item repeats, and events that are not known yet.
            _ => {}
        }
    }

    fn start(&mut self, response: &Value, out: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.started, true) {
            let (id, model) = (word(response, "id").to_owned(), word(response, "model").to_owned());
            out.push(Event::Started { id, model, usage: None });
        }
    }

    fn open(&mut self, opening: Opening, out: &mut Vec<Event>) -> Open {
        self.start(&Value::Null, out);
        let index = self.next;
        self.next += 1;
        out.push(Event::PartStarted { index, opening });
        Open { index, said: false, ended: false }
    }

    fn item_added(&mut self, data: &Value, out: &mut Vec<Event>) {
        let item = data.get("item").unwrap_or(&Value::Null);
        let opened = match word(item, "type") {
            "message" => Item::Message(BTreeMap::new()),
            "reasoning" => {
                let id = item.get("id").and_then(Value::as_str).map(str::to_owned);
                Item::Thought(self.open(Opening::Reasoning { id }, out), 0)
            }
            kind @ ("function_call" | "custom_tool_call") => {
                self.called = true;
                Item::Call(self.open(
                    Opening::ToolCall {
                        id: word(item, "call_id").to_owned(),
                        name: word(item, "name").to_owned(),
                        namespace: item.get("namespace").and_then(Value::as_str).map(str::to_owned),
                        free: kind == "custom_tool_call",
                    },
                    out,
                ))
            }
            _ if self.tolerant => Item::Unknown,
            other => {
                let message = format!(
                    "the provider's stream has an item `{other}`, for which there is no word"
                );
                out.push(Event::Failed(ModelError::upstream(message)));
                return;
            }
        };
        self.items.insert(place(data, "output_index"), opened);
    }

    /// The words at the place of `data`, opened if they are not.
    fn words(&mut self, data: &Value, refusal: bool, out: &mut Vec<Event>) -> Option<usize> {
        let (item, content) = (place(data, "output_index"), place(data, "content_index"));
        match self.items.get(&item) {
            Some(Item::Message(parts)) => {
                if let Some(open) = parts.get(&content) {
                    return Some(open.index);
                }
            }
            Some(_) => return None,
            None => {
                self.items.insert(item, Item::Message(BTreeMap::new()));
            }
        }
        self.refused |= refusal;
        let opening = if refusal { Opening::Refusal } else { Opening::Text };
        let open = self.open(opening, out);
        if let Some(Item::Message(parts)) = self.items.get_mut(&item) {
            parts.insert(content, open);
        }
        Some(open.index)
    }

    fn say(&mut self, data: &Value, refusal: bool, field: &str, out: &mut Vec<Event>) {
        let text = word(data, field).to_owned();
        let Some(index) = self.words(data, refusal, out) else { return };
        if text.is_empty() {
            return;
        }
        if let Some(open) = self.at(data) {
            if open.ended {
                return;
            }
            open.said = true;
        }
        out.push(if refusal {
            Event::RefusalDelta { index, text }
        } else {
            Event::TextDelta { index, text }
        });
    }

    fn say_if_silent(&mut self, data: &Value, refusal: bool, field: &str, out: &mut Vec<Event>) {
        if self.at(data).is_none_or(|open| !open.said && !open.ended) {
            self.say(data, refusal, field, out);
        }
    }

    fn at(&mut self, data: &Value) -> Option<&mut Open> {
        match self.items.get_mut(&place(data, "output_index"))? {
            Item::Message(parts) => parts.get_mut(&place(data, "content_index")),
            Item::Call(open) | Item::Thought(open, _) => Some(open),
            Item::Unknown => None,
        }
    }

    fn content_done(&mut self, data: &Value, out: &mut Vec<Event>) {
        if let Some(Item::Message(parts)) = self.items.get_mut(&place(data, "output_index"))
            && let Some(open) = parts.get_mut(&place(data, "content_index"))
        {
            open.end(out);
        }
    }

    fn think(&mut self, data: &Value, field: &str, out: &mut Vec<Event>) {
        let Some(Item::Thought(open, at)) = self.items.get_mut(&place(data, "output_index")) else {
            return;
        };
        let text = word(data, "delta");
        if text.is_empty() {
            return;
        }
        let new = std::mem::replace(at, place(data, field)) != *at;
        let text = if new && open.said { format!("\n\n{text}") } else { text.to_owned() };
        open.said = true;
        out.push(Event::ReasoningDelta { index: open.index, text });
    }

    fn arguments(&mut self, data: &Value, out: &mut Vec<Event>) {
        let Some(Item::Call(open)) = self.items.get_mut(&place(data, "output_index")) else {
            return;
        };
        let text = word(data, "delta").to_owned();
        if !text.is_empty() {
            open.said = true;
            out.push(Event::ArgumentsDelta { index: open.index, text });
        }
    }

    fn item_done(&mut self, data: &Value, out: &mut Vec<Event>) {
        let at = place(data, "output_index");
        if !self.items.contains_key(&at) {
            self.item_added(data, out);
        }
        let item = data.get("item").unwrap_or(&Value::Null);
        match self.items.remove(&at) {
            None | Some(Item::Unknown) => {}
            Some(Item::Message(parts)) => self.message_done(parts, item, out),
            Some(Item::Call(Open { index, said, .. })) => {
                let field =
                    if word(item, "type") == "custom_tool_call" { "input" } else { "arguments" };
                let text = word(item, field).to_owned();
                if !said && !text.is_empty() {
                    out.push(Event::ArgumentsDelta { index, text });
                }
                out.push(Event::PartEnded { index });
            }
            Some(Item::Thought(Open { index, said, .. }, _)) => {
                let thought = thought(item).unwrap_or_default();
                if !said && !thought.text.is_empty() {
                    out.push(Event::ReasoningDelta { index, text: thought.text });
                }
                out.extend(thought.seal.map(|seal| Event::Sealed { index, seal }));
                out.push(Event::PartEnded { index });
            }
        }
    }

    /// Says what no delta has said of a message, and ends what nothing has ended.
    fn message_done(&mut self, parts: BTreeMap<u64, Open>, item: &Value, out: &mut Vec<Event>) {
        let content = item.get("content").and_then(Value::as_array);
        let unsaid = parts.is_empty();
        for mut open in parts.into_values() {
            open.end(out);
        }
        for part in content.into_iter().flatten().filter(|_| unsaid) {
            let refusal = word(part, "type") == "refusal";
            let field = if refusal { "refusal" } else { "text" };
            let opening = if refusal { Opening::Refusal } else { Opening::Text };
            let text = word(part, field).to_owned();
            if text.is_empty() {
                continue;
            }
            self.refused |= refusal;
            let Open { index, .. } = self.open(opening, out);
            out.push(if refusal {
                Event::RefusalDelta { index, text }
            } else {
                Event::TextDelta { index, text }
            });
            out.push(Event::PartEnded { index });
        }
    }

    fn ended(&mut self, response: &Value, out: &mut Vec<Event>) {
        if self.next == 0 {
            // Nothing came piece by piece: the end has it whole.
            match read_answer(response) {
                Ok(answer) => {
                    let skip = usize::from(std::mem::replace(&mut self.started, true));
                    out.extend(answer.events().into_iter().skip(skip));
                }
                Err(error) if !self.tolerant => out.push(Event::Failed(error)),
                Err(_) => out.push(self.end(response)),
            }
            return;
        }
        for item in std::mem::take(&mut self.items).into_values() {
            match item {
                Item::Message(parts) => parts.into_values().for_each(|mut open| open.end(out)),
                Item::Call(mut open) | Item::Thought(mut open, _) => open.end(out),
                Item::Unknown => {}
            }
        }
        out.push(self.end(response));
    }

    fn end(&self, response: &Value) -> Event {
        let usage = response.get("usage").filter(|used| used.is_object()).map(usage);
        Event::Ended { stop: stop(response, self.called, self.refused), usage }
    }
}

fn failure(response: &Value) -> ModelError {
    HERE.read_error(0, response, None)
}

fn place(data: &Value, field: &str) -> u64 {
    data.get(field).and_then(Value::as_u64).unwrap_or(0)
}
