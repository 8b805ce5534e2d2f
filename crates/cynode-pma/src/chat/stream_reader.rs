//! Decodes a streamed answer: passes text on and assembles tool calls.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::turn::TurnUsage;

/// Maximum size of one event, of all text, and of all arguments of a round.
pub(super) const MAX_ROUND_BYTES: usize = 1024 * 1024;

/// Maximum number of tool calls in a round.
const MAX_TOOL_CALLS: usize = 16;

/// A tool call that a model requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelToolCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// One assembled answer of a model.
#[derive(Debug, Default)]
pub(super) struct CompletionRound {
    pub(super) text: String,
    pub(super) finish: Option<String>,
    pub(super) usage: TurnUsage,
    /// Tool calls by index; calls with the same index in order of arrival.
    calls: BTreeMap<(u64, usize), ModelToolCall>,
    bytes: usize,
}

/// Content of one chunk.
#[derive(Debug, PartialEq)]
pub(super) enum ChunkContent {
    /// Text to forward, and the creation time of the answer.
    Text { created: u64, text: String },
    /// The provider failed during the answer.
    Failed(Value),
    /// Content that is only collected.
    Kept { created: u64 },
    /// End of the stream.
    End,
}

impl CompletionRound {
    /// Applies one chunk.
    pub(super) fn apply_chunk(&mut self, data: &str) -> Result<ChunkContent, String> {
        if data == "[DONE]" {
            return Ok(ChunkContent::End);
        }
        let chunk: CompletionChunk = serde_json::from_str(data)
            .map_err(|error| format!("a piece of the answer cannot be read: {error}"))?;
        if let Some(error) = chunk.error {
            return Ok(ChunkContent::Failed(error));
        }
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        let created = chunk.created;
        let Some(choice) = chunk.choices.into_iter().next() else {
            return Ok(ChunkContent::Kept { created });
        };
        self.finish = choice.finish_reason.or(self.finish.take());
        for (place, delta) in (0..).zip(choice.delta.tool_calls.unwrap_or_default()) {
            self.apply_call_delta(place, delta)?;
        }
        let text = choice.delta.content.or(choice.delta.refusal).unwrap_or_default();
        self.count_bytes(text.len())?;
        if text.is_empty() {
            return Ok(ChunkContent::Kept { created });
        }
        self.text.push_str(&text);
        Ok(ChunkContent::Text { created, text })
    }

    fn apply_call_delta(&mut self, place: u64, delta: ToolCallDelta) -> Result<(), String> {
        let function = delta.function.unwrap_or_default();
        let arguments = function.arguments.unwrap_or_default();
        self.count_bytes(arguments.len())?;
        let id = delta.id.filter(|id| !id.is_empty());
        let name = function.name.filter(|name| !name.is_empty());
        // Some servers give every call the same index, others give every chunk of a call another id: a new call has both a new id
        // and a name.
        let anew = |call: &ModelToolCall| {
            !call.name.is_empty() && name.is_some() && id.as_ref().is_some_and(|id| *id != call.id)
        };
        let index = delta.index.unwrap_or(place);
        let slot = match self.calls.range((index, 0)..=(index, usize::MAX)).next_back() {
            Some(((_, number), call)) if anew(call) => (index, number + 1),
            Some((slot, _)) => *slot,
            None => (index, 0),
        };
        if !self.calls.contains_key(&slot) && self.calls.len() == MAX_TOOL_CALLS {
            return Err(format!("more than {MAX_TOOL_CALLS} tools were called at once"));
        }
        let call = self.calls.entry(slot).or_default();
        if call.id.is_empty() {
            call.id = id.unwrap_or_default();
        }
        if let Some(name) = name {
            call.name = name;
        }
        call.arguments.push_str(&arguments);
        Ok(())
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes += bytes;
        if self.bytes > MAX_ROUND_BYTES { Err("the answer is too long".into()) } else { Ok(()) }
    }

    /// Returns the tool calls in order, each with an id.
    pub(super) fn tool_calls(&self) -> Vec<ModelToolCall> {
        let calls = self.calls.iter().map(|((index, _), call)| {
            let mut call = call.clone();
            if call.id.is_empty() {
                call.id = format!("call_{index}");
            }
            call
        });
        calls.collect()
    }

    /// Returns the answer as an assistant message for the next round.
    pub(super) fn to_assistant_message(&self) -> Value {
        let calls: Vec<Value> = self
            .tool_calls()
            .into_iter()
            .map(|call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            })
            .collect();
        json!({ "role": "assistant", "content": self.text, "tool_calls": calls })
    }
}

#[derive(Deserialize)]
struct CompletionChunk {
    #[serde(default)]
    created: u64,
    #[serde(default)]
    choices: Vec<ChunkChoice>,
    usage: Option<TurnUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChunkChoice {
    #[serde(default)]
    delta: ChunkDelta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChunkDelta {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<ToolCallDelta>>,
}

#[derive(Deserialize)]
struct ToolCallDelta {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_put_together_from_pieces_and_text_is_passed_on() {
        let mut round = CompletionRound::default();
        let pieces = [
            json!({ "created": 7, "choices": [{ "delta": { "role": "assistant", "content": "" } }] }),
            json!({ "created": 7, "choices": [{ "delta": { "content": "so" } }] }),
            json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 1, "function": { "name": "b", "arguments": "{}" } }] } }] }),
            json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "id": "x", "type": "function", "function": { "name": "a", "arguments": "" } }] } }] }),
            json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": { "arguments": "{\"k\":" } }] } }] }),
            json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": { "arguments": "1}" } }] } }] }),
            json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11 } }),
        ];
        let taken: Vec<ChunkContent> =
            pieces.iter().map(|piece| round.apply_chunk(&piece.to_string()).unwrap()).collect();
        assert_eq!(taken[1], ChunkContent::Text { created: 7, text: "so".into() });
        assert_eq!(
            taken.iter().filter(|piece| matches!(piece, ChunkContent::Kept { .. })).count(),
            7
        );
        assert_eq!(round.apply_chunk("[DONE]"), Ok(ChunkContent::End));
        let call = |id: &str, name: &str, arguments: &str| ModelToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(round.tool_calls(), [call("x", "a", "{\"k\":1}"), call("call_1", "b", "{}")]);
        assert_eq!(round.usage, TurnUsage { prompt_tokens: 5, completion_tokens: 6 });
        assert_eq!(
            round.to_assistant_message(),
            json!({ "role": "assistant", "content": "so", "tool_calls": [
                { "id": "x", "type": "function", "function": { "name": "a", "arguments": "{\"k\":1}" } },
                { "id": "call_1", "type": "function", "function": { "name": "b", "arguments": "{}" } },
            ] })
        );
    }

    #[test]
    fn calls_that_share_an_index_or_have_none_stay_apart() {
        let piece = |call: Value| json!({ "choices": [{ "delta": { "tool_calls": [call] } }] });
        let begun = |index: Value, id: &str, name: &str, arguments: &str| json!({ "index": index, "id": id, "function": { "name": name, "arguments": arguments } });
        let call = |id: &str, name: &str, arguments: &str| ModelToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        let expected = [call("x", "list", "{\"a\":1}"), call("y", "get", "{}")];
        for index in [json!(0), json!(null)] {
            let mut round = CompletionRound::default();
            let more = json!({ "index": index, "id": "z", "function": { "arguments": "1}" } });
            // A piece with another id and without a name goes on with the call before it.
            let pieces = [
                piece(begun(index.clone(), "x", "list", "{\"a\":")),
                piece(more),
                piece(begun(index.clone(), "y", "get", "{}")),
            ];
            for piece in &pieces {
                round.apply_chunk(&piece.to_string()).unwrap();
            }
            assert_eq!(round.tool_calls(), expected, "{index}");
        }
        // Two in one piece, without an index and with a use of tokens that is not known.
        let calls =
            [begun(json!(null), "x", "list", "{\"a\":1}"), begun(json!(null), "y", "get", "{}")];
        let both = json!({ "choices": [{ "delta": { "tool_calls": calls } }], "usage": { "prompt_tokens": null, "completion_tokens": 2 } });
        let mut round = CompletionRound::default();
        round.apply_chunk(&both.to_string()).unwrap();
        assert_eq!(round.tool_calls(), expected);
        assert_eq!(round.usage, TurnUsage { prompt_tokens: 0, completion_tokens: 2 });
    }

    #[test]
    fn an_answer_without_end_is_refused() {
        let mut round = CompletionRound::default();
        let piece =
            json!({ "choices": [{ "delta": { "content": "x".repeat(600_000) } }] }).to_string();
        assert!(round.apply_chunk(&piece).is_ok());
        assert!(round.apply_chunk(&piece).is_err());
        let mut round = CompletionRound::default();
        let call = |index: usize| {
            json!({ "choices": [{ "delta": { "tool_calls": [{ "index": index }] } }] }).to_string()
        };
        assert!((0..MAX_TOOL_CALLS).all(|index| round.apply_chunk(&call(index)).is_ok()));
        assert!(round.apply_chunk(&call(MAX_TOOL_CALLS)).is_err());
    }
}
