//! Converts session updates of an agent to job events.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, SessionUpdate, ToolCall, ToolCallContent, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use cynode_core::nodes::JobEventData;
use serde_json::{Value, json};

use crate::chunking::{MAX_LINE_BYTES, safe_cut_length};

/// Size from which text is flushed without waiting for more.
const TEXT_FLUSH_BYTES: usize = 4 * 1024;
/// Maximum size of an input in an event; permission requests contain all of it.
const MAX_INPUT_BYTES: usize = 16 * 1024;
/// Maximum size of a command's output in an event: its beginning and its end.
const MAX_OUTPUT_BYTES: usize = 16 * 1024;
/// Maximum size of the last message that is kept.
const MAX_LAST_MESSAGE_BYTES: usize = 64 * 1024;
/// Maximum number of tracked tool calls.
const MAX_TRACKED_CALLS: usize = 1000;
/// Maximum size of one tracked tool call.
const MAX_CALL_BYTES: usize = 1024 * 1024;
/// Maximum size of all tracked tool calls.
const MAX_TOTAL_CALL_BYTES: usize = 8 * MAX_CALL_BYTES;

/// Kind of an agent's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentTextKind {
    Said,
    Thought,
}

/// Collects the updates of one turn.
#[derive(Debug, Default)]
pub(super) struct UpdateCollector {
    words: Option<(AgentTextKind, String)>,
    said: String,
    used_tool: bool,
    /// Tool calls that have not ended, the oldest first.
    calls: VecDeque<(String, ToolCallState)>,
    /// Whether a tool call was evicted.
    forgot: bool,
    /// Ids of ended tool calls, the oldest first: later updates of them are ignored.
    ended: VecDeque<String>,
    /// Hash of every ended tool call, by its action.
    pub(super) done: Vec<u64>,
}

/// State of a tool call, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ToolCallState {
    pub(super) title: String,
    kind: ToolKind,
    status: ToolCallStatus,
    input: Value,
    content: Vec<Value>,
    /// Result that the agent reports separately from the content.
    result: Value,
    /// Whether details were dropped.
    shortened: bool,
    /// Whether the call was reported as an event.
    told: bool,
}

impl UpdateCollector {
    /// Processes an update. Returns the events to send now.
    pub(super) fn collect_update(&mut self, update: SessionUpdate) -> Vec<JobEventData> {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => self.append_text(AgentTextKind::Said, chunk),
            SessionUpdate::AgentThoughtChunk(chunk) => {
                self.append_text(AgentTextKind::Thought, chunk)
            }
            SessionUpdate::ToolCall(call) => self.update_call(&as_update(call), true),
            SessionUpdate::ToolCallUpdate(update) => self.update_call(&update, false),
            SessionUpdate::Plan(plan) => {
                let entries = serde_json::to_value(plan.entries).unwrap_or_default();
                self.flush_before(JobEventData::Plan { entries })
            }
            SessionUpdate::UsageUpdate(usage) => {
                let usage = serde_json::to_value(usage).unwrap_or_default();
                self.flush_before(JobEventData::Usage { usage })
            }
            // Other updates, such as available commands, modes and echoed user messages, are ignored.
            _ => Vec::new(),
        }
    }

    /// Returns the buffered text up to its last complete line.
    pub(super) fn flush_lines(&mut self) -> Option<JobEventData> {
        let (voice, text) = self.words.as_mut()?;
        let rest = text.split_off(safe_cut_length(text.as_bytes(), MAX_LINE_BYTES));
        let (voice, lines) = (*voice, std::mem::replace(text, rest));
        (!lines.is_empty()).then(|| to_text_event(voice, lines))
    }

    /// Returns all buffered text.
    pub(super) fn flush_text(&mut self) -> Option<JobEventData> {
        let (voice, text) = self.words.take()?;
        (!text.is_empty()).then(|| to_text_event(voice, text))
    }

    /// Returns the last message: the text after the last tool call, or before it if there is none.
    pub(super) fn last_message(&self) -> &str {
        self.said.trim()
    }

    /// Returns the title and input of a permission request. Missing fields are taken from the tracked tool call.
    /// Returns `None` if details of the call were dropped and the request does not contain them: a person could not decide on it.
    pub(super) fn permission_subject(&self, request: &ToolCallUpdate) -> Option<(String, Value)> {
        let known = self.find_call(&request.tool_call_id.0).map(|at| self.calls[at].1.clone());
        let lost = known.as_ref().map_or(self.forgot, |call| call.shortened);
        let fields = &request.fields;
        let carries = fields.raw_input.as_ref().is_some_and(has_content)
            || fields.content.as_ref().is_some_and(|it| !it.is_empty());
        if lost && !carries {
            return None;
        }
        let mut call = known.filter(|call| !call.shortened).unwrap_or_default();
        call.apply_fields(fields);
        let mut input = json!({ "kind": call.kind, "input": call.input });
        if !call.content.is_empty() {
            input["content"] = Value::Array(call.content);
        }
        let title = if call.title.is_empty() { "Use a tool".to_owned() } else { call.title };
        Some((title, input))
    }

    fn find_call(&self, id: &str) -> Option<usize> {
        self.calls.iter().position(|(known, _)| known == id)
    }

    fn append_text(&mut self, voice: AgentTextKind, chunk: ContentChunk) -> Vec<JobEventData> {
        let text = match chunk.content {
            ContentBlock::Text(text) => text.text,
            ContentBlock::ResourceLink(link) => link.uri,
            _ => return Vec::new(),
        };
        let mut told = Vec::new();
        if self.words.as_ref().is_some_and(|(before, _)| *before != voice) {
            told.extend(self.flush_text());
        }
        if voice == AgentTextKind::Said {
            if std::mem::take(&mut self.used_tool) {
                self.said.clear();
            }
            let room = MAX_LAST_MESSAGE_BYTES.saturating_sub(self.said.len());
            self.said.push_str(truncate_text(&text, room));
        }
        let (_, words) = self.words.get_or_insert_with(|| (voice, String::new()));
        words.push_str(&text);
        if words.len() >= TEXT_FLUSH_BYTES {
            told.extend(self.flush_lines());
        }
        told
    }

    /// Processes an update of a tool call. The call is reported once when its action is known, and once when it has ended.
    fn update_call(&mut self, update: &ToolCallUpdate, begins: bool) -> Vec<JobEventData> {
        self.used_tool = true;
        let id = update.tool_call_id.0.to_string();
        if begins {
            self.ended.retain(|ended| *ended != id);
        } else if self.ended.contains(&id) {
            return Vec::new();
        }
        let known = self.find_call(&id).and_then(|at| self.calls.remove(at));
        let (_, mut call) = known.unwrap_or_default();
        call.apply_fields(&update.fields);
        let ended = matches!(call.status, ToolCallStatus::Completed | ToolCallStatus::Failed);
        let event = |call: &ToolCallState, status: &str| JobEventData::Tool {
            call: id.clone(),
            title: call.title.clone(),
            status: status.to_owned(),
            input: truncate_input(&call.input),
        };
        let mut told = Vec::new();
        if !call.told && (ended || has_content(&call.input)) {
            let first = if ended { "in_progress" } else { status_name(call.status) };
            told.push(event(&call, first));
            call.told = true;
        }
        if ended {
            let stream = "stdout".to_owned();
            told.extend(call.command_output().map(|text| JobEventData::Output { stream, text }));
            told.push(event(&call, status_name(call.status)));
            let mut done = DefaultHasher::new();
            (&call.title, call.input.to_string()).hash(&mut done);
            self.done.push(done.finish());
            self.ended.push_back(id);
            if self.ended.len() > MAX_TRACKED_CALLS {
                self.ended.pop_front();
            }
        } else {
            self.track_call(id, call);
        }
        if told.is_empty() { told } else { self.flush_text().into_iter().chain(told).collect() }
    }

    /// Tracks a tool call, and evicts the least recently updated ones if there are too many.
    fn track_call(&mut self, id: String, mut call: ToolCallState) {
        if call.memory_size() > MAX_CALL_BYTES {
            call.strip_details();
        }
        self.calls.push_back((id, call));
        let weight = |(id, call): &(String, ToolCallState)| id.len() + call.memory_size();
        let mut bytes: usize = self.calls.iter().map(weight).sum();
        while self.calls.len() > MAX_TRACKED_CALLS || bytes > MAX_TOTAL_CALL_BYTES {
            let Some(oldest) = self.calls.pop_front() else { return };
            bytes -= weight(&oldest);
            self.forgot = true;
        }
    }

    fn flush_before(&mut self, happened: JobEventData) -> Vec<JobEventData> {
        self.flush_text().into_iter().chain([happened]).collect()
    }
}

impl ToolCallState {
    fn apply_fields(&mut self, fields: &ToolCallUpdateFields) {
        if let Some(title) = fields.title.as_ref().filter(|title| !title.is_empty()) {
            self.title.clone_from(title);
        }
        if let Some(kind) = fields.kind {
            self.kind = kind;
        }
        if let Some(status) = fields.status {
            self.status = status;
        }
        if let Some(input) = fields.raw_input.as_ref().filter(|it| has_content(it)) {
            self.input.clone_from(input);
        }
        if let Some(result) = &fields.raw_output {
            self.result.clone_from(result);
        }
        if let Some(content) = &fields.content {
            // A terminal is only an id that is different each time; its command is in the input.
            let shown = |it: &&ToolCallContent| !matches!(it, ToolCallContent::Terminal(_));
            let value = |it| serde_json::to_value(it).unwrap_or_default();
            self.content = content.iter().filter(shown).map(value).collect();
        }
    }

    /// Returns the output of a command; `None` for other tools, whose results are files and the like.
    fn command_output(&self) -> Option<String> {
        let command =
            ["command", "argv", "cmd"].into_iter().any(|name| !self.input[name].is_null());
        if self.kind != ToolKind::Execute && !command {
            return None;
        }
        let texts = self.content.iter().filter_map(|it| it["content"]["text"].as_str());
        let mut text = texts.collect::<Vec<_>>().join("\n");
        if text.trim().is_empty() {
            let fields = ["output", "stdout", "stderr"].into_iter();
            let said = fields.filter_map(|name| self.result[name].as_str());
            text = match self.result.as_str() {
                Some(text) => text.to_owned(),
                None => said.collect::<Vec<_>>().join("\n"),
            };
        }
        if text.len() > MAX_OUTPUT_BYTES {
            let (head, rest) = text.split_at(text.floor_char_boundary(MAX_OUTPUT_BYTES / 2));
            let tail = rest.ceil_char_boundary(rest.len() - MAX_OUTPUT_BYTES / 2);
            text = format!("{head}\n… {tail} bytes left out …\n{}", &rest[tail..]);
        }
        (!text.trim().is_empty()).then_some(text)
    }

    /// Returns the approximate memory usage in bytes.
    fn memory_size(&self) -> usize {
        self.title.len()
            + value_memory_size(&self.input)
            + value_memory_size(&self.result)
            + self.content.iter().map(value_memory_size).sum::<usize>()
    }

    /// Drops all details that events do not need.
    fn strip_details(&mut self) {
        self.title.truncate(truncate_text(&self.title, MAX_INPUT_BYTES).len());
        self.input = truncate_input(&self.input);
        self.content = Vec::new();
        self.result = Value::Null;
        self.shortened = true;
    }
}

/// Converts a new tool call to the form of an update.
fn as_update(call: ToolCall) -> ToolCallUpdate {
    let fields = ToolCallUpdateFields::new()
        .title(call.title)
        .kind(call.kind)
        .status(call.status)
        .content(call.content)
        .raw_input(call.raw_input)
        .raw_output(call.raw_output);
    ToolCallUpdate::new(call.tool_call_id, fields)
}

/// Builds the event for a text of the given kind.
fn to_text_event(voice: AgentTextKind, text: String) -> JobEventData {
    match voice {
        AgentTextKind::Said => JobEventData::Message { text },
        AgentTextKind::Thought => JobEventData::Reasoning { text },
    }
}

const fn status_name(status: ToolCallStatus) -> &'static str {
    match status {
        ToolCallStatus::InProgress => "in_progress",
        ToolCallStatus::Completed => "completed",
        ToolCallStatus::Failed => "failed",
        _ => "pending",
    }
}

/// Returns whether an input is not empty.
fn has_content(input: &Value) -> bool {
    !input.is_null() && input.as_object().is_none_or(|input| !input.is_empty())
}

/// Truncates an input to the maximum size of an event.
fn truncate_input(input: &Value) -> Value {
    let text = input.to_string();
    if text.len() <= MAX_INPUT_BYTES {
        return input.clone();
    }
    // The text is quoted again, which can double its size; so it is truncated to half.
    json!({ "truncated": text.len(), "begins": truncate_text(&text, MAX_INPUT_BYTES / 2 - 64) })
}

/// Returns the approximate memory usage of a value in bytes.
fn value_memory_size(value: &Value) -> usize {
    const VALUE_OVERHEAD_BYTES: usize = 64;
    VALUE_OVERHEAD_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(value_memory_size).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(name, it)| name.len() + value_memory_size(it)).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Returns the beginning of a text, at most `most` bytes.
fn truncate_text(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most.min(text.len()))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(updates: &mut UpdateCollector, update: Value) -> Vec<JobEventData> {
        updates.collect_update(serde_json::from_value(update).unwrap())
    }

    fn said(text: &str) -> Value {
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } })
    }

    #[test]
    fn words_are_told_together_and_before_what_comes_after_them() {
        let mut updates = UpdateCollector::default();
        assert_eq!(taken(&mut updates, said("Hel")), []);
        assert_eq!(taken(&mut updates, said("lo.")), []);
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "kind": "execute", "status": "pending",
            "rawInput": { "command": "ls" } });
        let tool = |status: &str| JobEventData::Tool {
            call: "1".into(),
            title: "ls".into(),
            status: status.into(),
            input: json!({ "command": "ls" }),
        };
        let told = taken(&mut updates, call);
        assert_eq!(told, [JobEventData::Message { text: "Hello.".into() }, tool("pending")]);
        let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "content": [] });
        assert_eq!(taken(&mut updates, more), []);
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed" });
        assert_eq!(taken(&mut updates, done), [tool("completed")]);
        assert_eq!((updates.done.len(), updates.last_message()), (1, "Hello."));
        taken(&mut updates, said("Done."));
        assert_eq!(updates.last_message(), "Done.");
        assert_eq!(updates.flush_text(), Some(JobEventData::Message { text: "Done.".into() }));
        assert_eq!(updates.flush_text(), None);
    }

    #[test]
    fn a_command_is_told_once_with_what_it_wrote_and_a_file_that_is_read_is_not_repeated() {
        let mut updates = UpdateCollector::default();
        let begun = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "shell", "kind": "other", "status": "pending" });
        assert_eq!(taken(&mut updates, begun), [], "nobody knows yet what is done");
        let tool = |status: &str| JobEventData::Tool {
            call: "1".into(),
            title: "shell".into(),
            status: status.into(),
            input: json!({ "command": "make test" }),
        };
        let running = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress",
            "rawInput": { "command": "make test" } });
        assert_eq!(taken(&mut updates, running.clone()), [tool("in_progress")]);
        assert_eq!(taken(&mut updates, running), []);
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": "2 passed" } }] });
        let wrote = JobEventData::Output { stream: "stdout".into(), text: "2 passed".into() };
        assert_eq!(taken(&mut updates, done.clone()), [wrote, tool("completed")]);
        assert_eq!(taken(&mut updates, done), [], "it has ended");
        let read = json!({ "sessionUpdate": "tool_call", "toolCallId": "2", "title": "Read a", "kind": "read", "status": "completed",
            "rawInput": { "path": "a" }, "content": [{ "type": "content", "content": { "type": "text", "text": "all of it" } }] });
        let told = taken(&mut updates, read);
        assert!(!told.iter().any(|it| matches!(it, JobEventData::Output { .. })), "{told:?}");
    }

    #[test]
    fn words_are_cut_where_a_line_ends_and_a_long_line_at_white_space() {
        let told = |text: &str| JobEventData::Message { text: text.into() };
        let mut updates = UpdateCollector::default();
        taken(&mut updates, said("One.\nkey-ab"));
        assert_eq!(updates.flush_lines(), Some(told("One.\n")));
        assert_eq!(updates.flush_lines(), None);
        taken(&mut updates, said("cd\n"));
        assert_eq!(updates.flush_lines(), Some(told("key-abcd\n")));
        assert_eq!(updates.flush_text(), None);
        let long = "word ".repeat(1000);
        assert_eq!(taken(&mut updates, said(&format!("{long}key-ab"))), [told(&long)]);
        assert_eq!(taken(&mut updates, said("cd")), []);
        assert_eq!(updates.flush_text(), Some(told("key-abcd")));
    }

    #[test]
    fn the_same_done_twice_is_the_same() {
        let mut updates = UpdateCollector::default();
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
        let mut updates = UpdateCollector::default();
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "Terminal", "kind": "execute",
            "rawInput": { "command": "rm -rf build" } });
        taken(&mut updates, call);
        let request = serde_json::from_value(json!({ "toolCallId": "1", "title": "rm" })).unwrap();
        let input = json!({ "kind": "execute", "input": { "command": "rm -rf build" } });
        assert_eq!(updates.permission_subject(&request), Some(("rm".into(), input)));
        let diff = json!({ "type": "diff", "path": "/work/a", "oldText": "1", "newText": "2" });
        let request = json!({ "toolCallId": "2", "title": "Edit a", "kind": "edit",
            "content": [diff, { "type": "terminal", "terminalId": "2" }] });
        let input = json!({ "kind": "edit", "input": null, "content": [diff] });
        let asked = updates.permission_subject(&serde_json::from_value(request).unwrap());
        assert_eq!(asked, Some(("Edit a".into(), input)));
    }

    #[test]
    fn however_much_is_told_of_tools_little_is_remembered_and_what_is_lost_is_not_asked_for() {
        let mut updates = UpdateCollector::default();
        let tell = |updates: &mut UpdateCollector, id: &str, length: usize| {
            taken(
                updates,
                json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "sh", "kind": "execute",
                    "rawInput": { "command": "x".repeat(length) } }),
            );
        };
        let ask = |updates: &UpdateCollector, request: Value| {
            updates.permission_subject(&serde_json::from_value(request).unwrap())
        };
        tell(&mut updates, "long", 2 * MAX_CALL_BYTES);
        assert!(updates.calls[0].1.memory_size() < 2 * MAX_INPUT_BYTES);
        assert_eq!(ask(&updates, json!({ "toolCallId": "long" })), None);
        for at in 0..20 {
            tell(&mut updates, &at.to_string(), MAX_CALL_BYTES / 2);
        }
        let bytes: usize = updates.calls.iter().map(|(_, call)| call.memory_size()).sum();
        assert!(bytes <= MAX_TOTAL_CALL_BYTES && updates.calls.len() == 15, "{bytes}");
        assert_eq!(ask(&updates, json!({ "toolCallId": "0", "title": "rm" })), None);
        let request = json!({ "toolCallId": "0", "title": "rm", "rawInput": { "command": "rm" } });
        let input = json!({ "kind": "other", "input": { "command": "rm" } });
        assert_eq!(ask(&updates, request), Some(("rm".into(), input)));
        assert!(ask(&updates, json!({ "toolCallId": "19" })).is_some());
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "19", "status": "completed" });
        assert!(
            matches!(&taken(&mut updates, done)[..], [JobEventData::Tool { title, .. }] if title == "sh")
        );
        assert_eq!((updates.calls.len(), updates.done.len()), (14, 1));
    }

    #[test]
    fn long_inputs_and_long_words_are_cut_in_events() {
        let mut updates = UpdateCollector::default();
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "write", "rawInput": "é".repeat(MAX_INPUT_BYTES) });
        let [JobEventData::Tool { input, .. }] = &taken(&mut updates, call)[..] else { panic!() };
        assert_eq!(input["truncated"], 2 * MAX_INPUT_BYTES + 2);
        assert!(input["begins"].as_str().unwrap().len() <= MAX_INPUT_BYTES);
        let [JobEventData::Message { text }] =
            &taken(&mut updates, said(&"x".repeat(3 * MAX_LAST_MESSAGE_BYTES)))[..]
        else {
            panic!()
        };
        assert_eq!(text.len(), 3 * MAX_LAST_MESSAGE_BYTES);
        assert_eq!(updates.last_message().len(), MAX_LAST_MESSAGE_BYTES);
    }
}
