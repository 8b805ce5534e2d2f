use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    answer::{stop, usage},
    reading::arguments,
};
use crate::{
    dialect::{Dialect, Speak as _, fields::word},
    sse::SseEvent,
    talk::{Event, Opening, Part, Usage, cut_short},
};

/// Reads the chunks of a provider.
#[derive(Clone, Debug, Default)]
pub(in crate::dialect) struct Reader {
    started: bool,
    /// The next part's place.
    next: usize,
    /// The part that words go to now.
    open: Option<(Words, usize)>,
    /// The newest call of a tool at each of the provider's indices: its id and its part's place. They stay open until the
    /// end: nothing says that one is complete, and a provider may write several at once.
    calls: BTreeMap<u64, (String, usize)>,
    /// A stand-in for each part, enough to tell why the answer ended.
    kinds: Vec<Part>,
    reason: Option<String>,
    usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Reasoning,
    Text,
    Refusal,
}

impl Reader {
    pub(in crate::dialect) fn read(&mut self, event: &SseEvent, out: &mut Vec<Event>) {
        if event.data.trim() == "[DONE]" {
            self.end(out);
            return;
        }
        let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else {
            out.push(super::super::stream::not_json());
            return;
        };
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            out.push(Event::Failed(Dialect::Chat.read_error(0, &chunk, None)));
            return;
        }
        if !std::mem::replace(&mut self.started, true) {
            let (id, model) = (word(&chunk, "id").to_owned(), word(&chunk, "model").to_owned());
            out.push(Event::Started { id, model, usage: None });
        }
        if let Some(used) = chunk.get("usage").filter(|used| used.is_object()) {
            self.usage = Some(usage(used));
        }
        // Only the first answer is ever asked for.
        let Some(choice) = chunk.pointer("/choices/0") else { return };
        if let Some(delta) = choice.get("delta") {
            self.delta(delta, out);
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.reason = Some(reason.to_owned());
        }
    }

    fn delta(&mut self, delta: &Value, out: &mut Vec<Event>) {
        let thought = match word(delta, "reasoning_content") {
            "" => word(delta, "reasoning"),
            thought => thought,
        };
        self.words(Words::Reasoning, thought, out);
        self.words(Words::Text, word(delta, "content"), out);
        self.words(Words::Refusal, word(delta, "refusal"), out);
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        for (place, call) in calls.into_iter().flatten().enumerate() {
            self.call(place, call, out);
        }
    }

    fn words(&mut self, kind: Words, text: &str, out: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        let index = match self.open {
            Some((open, index)) if open == kind => index,
            _ => {
                let (opening, part) = match kind {
                    Words::Reasoning => (Opening::Reasoning { id: None }, Part::text("")),
                    Words::Text => (Opening::Text, Part::text("")),
                    Words::Refusal => (Opening::Refusal, Part::Refusal(String::new())),
                };
                let index = self.start(opening, part, out);
                self.open = Some((kind, index));
                index
            }
        };
        let text = text.to_owned();
        out.push(match kind {
            Words::Reasoning => Event::ReasoningDelta { index, text },
            Words::Text => Event::TextDelta { index, text },
            Words::Refusal => Event::RefusalDelta { index, text },
        });
    }

    fn call(&mut self, place: usize, call: &Value, out: &mut Vec<Event>) {
        let place = u64::try_from(place).unwrap_or(u64::MAX);
        let place = call.get("index").and_then(Value::as_u64).unwrap_or(place);
        let free = call.get("custom").is_some();
        let function = call.get(if free { "custom" } else { "function" }).unwrap_or(&Value::Null);
        let (id, name) = (word(call, "id"), word(function, "name"));
        // Some servers give every call the same index, others every piece of a call another id: a new call has both a new id
        // and a name.
        let anew = |known: &str| !id.is_empty() && id != known && !name.is_empty();
        let index = match self.calls.get(&place) {
            Some((known, index)) if !anew(known) => *index,
            before => {
                out.extend(before.map(|(_, index)| Event::PartEnded { index: *index }));
                let (id, name) = (id.to_owned(), name.to_owned());
                let part = Part::ToolCall(crate::talk::ToolCall {
                    id: id.clone(),
                    name: name.clone(),
                    namespace: None,
                    input: crate::talk::Input::Json(String::new()),
                    extras: crate::talk::Extras::default(),
                });
                let opening = Opening::ToolCall { id: id.clone(), name, namespace: None, free };
                let index = self.start(opening, part, out);
                self.calls.insert(place, (id, index));
                index
            }
        };
        let text = arguments(function.get(if free { "input" } else { "arguments" }));
        if !text.is_empty() {
            out.push(Event::ArgumentsDelta { index, text });
        }
    }

    /// Begins a part; words before it are complete.
    fn start(&mut self, opening: Opening, part: Part, out: &mut Vec<Event>) -> usize {
        if let Some((_, index)) = self.open.take() {
            out.push(Event::PartEnded { index });
        }
        let index = self.next;
        self.next += 1;
        self.kinds.push(part);
        out.push(Event::PartStarted { index, opening });
        index
    }

    /// The provider says no more.
    pub(in crate::dialect) fn end(&mut self, out: &mut Vec<Event>) {
        let Some(reason) = self.reason.take() else {
            out.push(Event::Failed(cut_short()));
            return;
        };
        let open = self.open.take().map(|(_, index)| index);
        let open = open.into_iter().chain(self.calls.values().map(|(_, index)| *index));
        out.extend(open.map(|index| Event::PartEnded { index }));
        out.push(Event::Ended { stop: stop(&reason, &self.kinds), usage: self.usage });
    }
}
