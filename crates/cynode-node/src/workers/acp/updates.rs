//! What an agent tells of its work, as events of the job.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, SessionUpdate, ToolCall, ToolCallContent, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use cynode_wire::nodes::Happened;
use serde_json::{Value, json};

use crate::pieces::{LINE, safe_cut};

/// From this many bytes on, words are not waited with.
const PIECE: usize = 4 * 1024;
/// The most bytes of an input in an event; questions to people have all of it.
const INPUT: usize = 16 * 1024;
/// The most of what was said last that is kept.
const SAID: usize = 64 * 1024;
/// The most uses of tools that are remembered at once.
const REMEMBERED: usize = 1000;
/// The most bytes of one use that are remembered.
const CALL: usize = 1024 * 1024;
/// The most bytes of all uses that are remembered at once.
const CALLS: usize = 8 * CALL;

/// Words of which kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    Said,
    Thought,
}

/// Collects what an agent tells in one turn.
#[derive(Debug, Default)]
pub(super) struct Updates {
    words: Option<(Voice, String)>,
    said: String,
    used_tool: bool,
    /// Uses that have not ended, the oldest first.
    calls: VecDeque<(String, Call)>,
    /// Whether one of them was forgotten.
    forgot: bool,
    /// Every use of a tool that ended, by what was done.
    pub(super) done: Vec<u64>,
}

/// A use of a tool, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Call {
    pub(super) title: String,
    kind: ToolKind,
    status: ToolCallStatus,
    input: Value,
    content: Vec<Value>,
    /// Whether this is not all that was told of it.
    shortened: bool,
}

impl Updates {
    /// Takes an update; what is to be told now.
    pub(super) fn take(&mut self, update: SessionUpdate) -> Vec<Happened> {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => self.speak(Voice::Said, chunk),
            SessionUpdate::AgentThoughtChunk(chunk) => self.speak(Voice::Thought, chunk),
            SessionUpdate::ToolCall(call) => self.call(&as_update(call)),
            SessionUpdate::ToolCallUpdate(update) => self.call(&update),
            SessionUpdate::Plan(plan) => {
                let entries = serde_json::to_value(plan.entries).unwrap_or_default();
                self.after_words(Happened::Plan { entries })
            }
            SessionUpdate::UsageUpdate(usage) => {
                let usage = serde_json::to_value(usage).unwrap_or_default();
                self.after_words(Happened::Usage { usage })
            }
            // What it could do, what it is called, what people said: none of it is news.
            _ => Vec::new(),
        }
    }

    /// The words that have waited for more of them, as far as their lines have ended.
    pub(super) fn flush_lines(&mut self) -> Option<Happened> {
        let (voice, text) = self.words.as_mut()?;
        let rest = text.split_off(safe_cut(text.as_bytes(), LINE));
        let (voice, lines) = (*voice, std::mem::replace(text, rest));
        (!lines.is_empty()).then(|| told(voice, lines))
    }

    /// All words that have waited for more of them.
    pub(super) fn flush(&mut self) -> Option<Happened> {
        let (voice, text) = self.words.take()?;
        (!text.is_empty()).then(|| told(voice, text))
    }

    /// What was said last: after the last use of a tool, or before it when nothing came after.
    pub(super) fn said(&self) -> &str {
        self.said.trim()
    }

    /// What is asked for when permission for a use is asked: in the words of the request, and where those are missing, of the use.
    /// Nothing when what was told of the use is not all known any more and the request does not say it: nobody can judge that.
    pub(super) fn asked(&self, request: &ToolCallUpdate) -> Option<(String, Value)> {
        let known = self.known(&request.tool_call_id.0).map(|at| self.calls[at].1.clone());
        let lost = known.as_ref().map_or(self.forgot, |call| call.shortened);
        let fields = &request.fields;
        let carries = fields.raw_input.as_ref().is_some_and(says)
            || fields.content.as_ref().is_some_and(|it| !it.is_empty());
        if lost && !carries {
            return None;
        }
        let mut call = known.filter(|call| !call.shortened).unwrap_or_default();
        call.learn(fields);
        let mut input = json!({ "kind": call.kind, "input": call.input });
        if !call.content.is_empty() {
            input["content"] = Value::Array(call.content);
        }
        let title = if call.title.is_empty() { "Use a tool".to_owned() } else { call.title };
        Some((title, input))
    }

    fn known(&self, id: &str) -> Option<usize> {
        self.calls.iter().position(|(known, _)| known == id)
    }

    fn speak(&mut self, voice: Voice, chunk: ContentChunk) -> Vec<Happened> {
        let text = match chunk.content {
            ContentBlock::Text(text) => text.text,
            ContentBlock::ResourceLink(link) => link.uri,
            _ => return Vec::new(),
        };
        let mut told = Vec::new();
        if self.words.as_ref().is_some_and(|(before, _)| *before != voice) {
            told.extend(self.flush());
        }
        if voice == Voice::Said {
            if std::mem::take(&mut self.used_tool) {
                self.said.clear();
            }
            let room = SAID.saturating_sub(self.said.len());
            self.said.push_str(cut(&text, room));
        }
        let (_, words) = self.words.get_or_insert_with(|| (voice, String::new()));
        words.push_str(&text);
        if words.len() >= PIECE {
            told.extend(self.flush_lines());
        }
        told
    }

    fn call(&mut self, update: &ToolCallUpdate) -> Vec<Happened> {
        self.used_tool = true;
        let id = update.tool_call_id.0.to_string();
        let known = self.known(&id).and_then(|at| self.calls.remove(at));
        let is_known = known.is_some();
        let (_, mut call) = known.unwrap_or_default();
        let before = (call.status, call.input.is_null(), call.title.is_empty());
        call.learn(&update.fields);
        let same = before == (call.status, call.input.is_null(), call.title.is_empty());
        let ended = matches!(call.status, ToolCallStatus::Completed | ToolCallStatus::Failed);
        let happened = Happened::Tool {
            call: id.clone(),
            title: call.title.clone(),
            status: status(call.status).to_owned(),
            input: short(&call.input),
        };
        let news = !(is_known && same);
        if ended && news {
            let mut done = DefaultHasher::new();
            (&call.title, call.input.to_string()).hash(&mut done);
            self.done.push(done.finish());
        } else {
            self.remember(id, call);
        }
        if news { self.after_words(happened) } else { Vec::new() }
    }

    /// Remembers a use, and forgets those that were not told of for longest when there are too many.
    fn remember(&mut self, id: String, mut call: Call) {
        if call.weight() > CALL {
            call.shorten();
        }
        self.calls.push_back((id, call));
        let weight = |(id, call): &(String, Call)| id.len() + call.weight();
        let mut bytes: usize = self.calls.iter().map(weight).sum();
        while self.calls.len() > REMEMBERED || bytes > CALLS {
            let Some(oldest) = self.calls.pop_front() else { return };
            bytes -= weight(&oldest);
            self.forgot = true;
        }
    }

    fn after_words(&mut self, happened: Happened) -> Vec<Happened> {
        self.flush().into_iter().chain([happened]).collect()
    }
}

impl Call {
    fn learn(&mut self, fields: &ToolCallUpdateFields) {
        if let Some(title) = fields.title.as_ref().filter(|title| !title.is_empty()) {
            self.title.clone_from(title);
        }
        if let Some(kind) = fields.kind {
            self.kind = kind;
        }
        if let Some(status) = fields.status {
            self.status = status;
        }
        if let Some(input) = fields.raw_input.as_ref().filter(|it| says(it)) {
            self.input.clone_from(input);
        }
        if let Some(content) = &fields.content {
            // A terminal is only a name that is never the same; what it will do is in the input.
            let shown = |it: &&ToolCallContent| !matches!(it, ToolCallContent::Terminal(_));
            let value = |it| serde_json::to_value(it).unwrap_or_default();
            self.content = content.iter().filter(shown).map(value).collect();
        }
    }

    /// Roughly how many bytes of memory it takes.
    fn weight(&self) -> usize {
        self.title.len() + weight(&self.input) + self.content.iter().map(weight).sum::<usize>()
    }

    /// Keeps what events need.
    fn shorten(&mut self) {
        self.title.truncate(cut(&self.title, INPUT).len());
        self.input = short(&self.input);
        self.content = Vec::new();
        self.shortened = true;
    }
}

/// A use that is told for the first time, in the form of all later times.
fn as_update(call: ToolCall) -> ToolCallUpdate {
    let fields = ToolCallUpdateFields::new()
        .title(call.title)
        .kind(call.kind)
        .status(call.status)
        .content(call.content)
        .raw_input(call.raw_input);
    ToolCallUpdate::new(call.tool_call_id, fields)
}

/// Words in a voice.
fn told(voice: Voice, text: String) -> Happened {
    match voice {
        Voice::Said => Happened::Said { text },
        Voice::Thought => Happened::Thought { text },
    }
}

const fn status(status: ToolCallStatus) -> &'static str {
    match status {
        ToolCallStatus::InProgress => "in_progress",
        ToolCallStatus::Completed => "completed",
        ToolCallStatus::Failed => "failed",
        _ => "pending",
    }
}

/// Whether an input says anything.
fn says(input: &Value) -> bool {
    !input.is_null() && input.as_object().is_none_or(|input| !input.is_empty())
}

/// An input that is not too long for an event.
fn short(input: &Value) -> Value {
    let text = input.to_string();
    if text.len() <= INPUT {
        return input.clone();
    }
    // Written once more, what is between the quotes becomes at most twice as long; so this is short itself.
    json!({ "truncated": text.len(), "begins": cut(&text, INPUT / 2 - 64) })
}

/// Roughly how many bytes of memory a value takes.
fn weight(value: &Value) -> usize {
    const EACH: usize = 64;
    EACH + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, it)| name.len() + weight(it)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The beginning of a text, at most so many bytes of it.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most.min(text.len()))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(updates: &mut Updates, update: Value) -> Vec<Happened> {
        updates.take(serde_json::from_value(update).unwrap())
    }

    fn said(text: &str) -> Value {
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } })
    }

    #[test]
    fn words_are_told_together_and_before_what_comes_after_them() {
        let mut updates = Updates::default();
        assert_eq!(taken(&mut updates, said("Hel")), []);
        assert_eq!(taken(&mut updates, said("lo.")), []);
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "kind": "execute", "status": "pending",
            "rawInput": { "command": "ls" } });
        let tool = |status: &str| Happened::Tool {
            call: "1".into(),
            title: "ls".into(),
            status: status.into(),
            input: json!({ "command": "ls" }),
        };
        let told = taken(&mut updates, call);
        assert_eq!(told, [Happened::Said { text: "Hello.".into() }, tool("pending")]);
        let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "content": [] });
        assert_eq!(taken(&mut updates, more), []);
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed" });
        assert_eq!(taken(&mut updates, done), [tool("completed")]);
        assert_eq!((updates.done.len(), updates.said()), (1, "Hello."));
        taken(&mut updates, said("Done."));
        assert_eq!(updates.said(), "Done.");
        assert_eq!(updates.flush(), Some(Happened::Said { text: "Done.".into() }));
        assert_eq!(updates.flush(), None);
    }

    #[test]
    fn words_are_cut_where_a_line_ends_and_a_long_line_at_white_space() {
        let told = |text: &str| Happened::Said { text: text.into() };
        let mut updates = Updates::default();
        taken(&mut updates, said("One.\nkey-ab"));
        assert_eq!(updates.flush_lines(), Some(told("One.\n")));
        assert_eq!(updates.flush_lines(), None);
        taken(&mut updates, said("cd\n"));
        assert_eq!(updates.flush_lines(), Some(told("key-abcd\n")));
        assert_eq!(updates.flush(), None);
        let long = "word ".repeat(1000);
        assert_eq!(taken(&mut updates, said(&format!("{long}key-ab"))), [told(&long)]);
        assert_eq!(taken(&mut updates, said("cd")), []);
        assert_eq!(updates.flush(), Some(told("key-abcd")));
    }

    #[test]
    fn the_same_done_twice_is_the_same() {
        let mut updates = Updates::default();
        for (id, command) in [("1", "ls"), ("2", "ls"), ("3", "pwd")] {
            let call = json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "sh", "status": "completed",
                "rawInput": { "command": command } });
            taken(&mut updates, call);
        }
        let done = &updates.done;
        assert_eq!((done[0] == done[1], done[1] == done[2]), (true, false));
    }

    #[test]
    fn a_question_shows_the_exact_command_also_when_it_was_told_before() {
        let mut updates = Updates::default();
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "Terminal", "kind": "execute",
            "rawInput": { "command": "rm -rf build" } });
        taken(&mut updates, call);
        let request = serde_json::from_value(json!({ "toolCallId": "1", "title": "rm" })).unwrap();
        let input = json!({ "kind": "execute", "input": { "command": "rm -rf build" } });
        assert_eq!(updates.asked(&request), Some(("rm".into(), input)));
        let diff = json!({ "type": "diff", "path": "/work/a", "oldText": "1", "newText": "2" });
        let request = json!({ "toolCallId": "2", "title": "Edit a", "kind": "edit",
            "content": [diff, { "type": "terminal", "terminalId": "2" }] });
        let input = json!({ "kind": "edit", "input": null, "content": [diff] });
        let asked = updates.asked(&serde_json::from_value(request).unwrap());
        assert_eq!(asked, Some(("Edit a".into(), input)));
    }

    #[test]
    fn however_much_is_told_of_tools_little_is_remembered_and_what_is_lost_is_not_asked_for() {
        let mut updates = Updates::default();
        let tell = |updates: &mut Updates, id: &str, length: usize| {
            taken(
                updates,
                json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "sh", "kind": "execute",
                    "rawInput": { "command": "x".repeat(length) } }),
            );
        };
        let ask = |updates: &Updates, request: Value| {
            updates.asked(&serde_json::from_value(request).unwrap())
        };
        tell(&mut updates, "long", 2 * CALL);
        assert!(updates.calls[0].1.weight() < 2 * INPUT);
        assert_eq!(ask(&updates, json!({ "toolCallId": "long" })), None);
        for at in 0..20 {
            tell(&mut updates, &at.to_string(), CALL / 2);
        }
        let bytes: usize = updates.calls.iter().map(|(_, call)| call.weight()).sum();
        assert!(bytes <= CALLS && updates.calls.len() == 15, "{bytes}");
        assert_eq!(ask(&updates, json!({ "toolCallId": "0", "title": "rm" })), None);
        let request = json!({ "toolCallId": "0", "title": "rm", "rawInput": { "command": "rm" } });
        let input = json!({ "kind": "other", "input": { "command": "rm" } });
        assert_eq!(ask(&updates, request), Some(("rm".into(), input)));
        assert!(ask(&updates, json!({ "toolCallId": "19" })).is_some());
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "19", "status": "completed" });
        assert!(
            matches!(&taken(&mut updates, done)[..], [Happened::Tool { title, .. }] if title == "sh")
        );
        assert_eq!((updates.calls.len(), updates.done.len()), (14, 1));
    }

    #[test]
    fn long_inputs_and_long_words_are_cut_in_events() {
        let mut updates = Updates::default();
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "write", "rawInput": "é".repeat(INPUT) });
        let [Happened::Tool { input, .. }] = &taken(&mut updates, call)[..] else { panic!() };
        assert_eq!(input["truncated"], 2 * INPUT + 2);
        assert!(input["begins"].as_str().unwrap().len() <= INPUT);
        let [Happened::Said { text }] = &taken(&mut updates, said(&"x".repeat(3 * SAID)))[..]
        else {
            panic!()
        };
        assert_eq!(text.len(), 3 * SAID);
        assert_eq!(updates.said().len(), SAID);
    }
}
