//! Bytes of streams.

use cynode_models::dialect::{
    Dialect, ResponseContext, StreamDecoder, StreamEncoder,
    canonical::{
        CanonicalEvent, CanonicalResponse, ContentPart, DialectExtras, StopReason, ToolCall,
        ToolInput,
    },
};
use serde_json::{Value, json};

use crate::support::{gather, parse, read_stream, stream, write_stream};

#[test]
fn a_client_of_messages_gets_these_bytes() {
    let answer = CanonicalResponse {
        id: "msg_1".into(),
        model: "m".into(),
        parts: vec![ContentPart::from_text("Hi")],
        stop: StopReason::EndTurn,
        usage: None,
    };
    let bytes = write_stream(Dialect::Messages, answer.to_events(), &ResponseContext::default());
    let lines: Vec<_> = String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect();
    let names: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(
        &lines[9..12],
        [
            "event: content_block_delta",
            r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#,
            ""
        ]
    );
}

#[test]
fn a_ping_says_nothing_to_any_reader() {
    for dialect in Dialect::ALL.iter().copied() {
        let writer = StreamEncoder::new(dialect, ResponseContext::default());
        let mut reader = StreamDecoder::new(dialect);
        let said: Vec<CanonicalEvent> = parse(writer.ping_bytes())
            .iter()
            .flat_map(|event| reader.decode_event(event))
            .collect();
        assert_eq!(said, [], "{dialect}");
    }
}

#[test]
fn nothing_follows_the_end_of_an_answer() {
    for dialect in Dialect::ALL.iter().copied() {
        let answer = CanonicalResponse {
            id: "a".into(),
            model: "m".into(),
            parts: vec![ContentPart::from_text("Hi")],
            stop: StopReason::EndTurn,
            usage: None,
        };
        let mut events =
            parse(&write_stream(dialect, answer.to_events(), &ResponseContext::default()));
        let once = read_stream(dialect, &events);
        events.extend(events.clone());
        assert_eq!(read_stream(dialect, &events), once, "{dialect}");
    }
}

/// What a server of Chat answers that writes these pieces of calls.
fn called(pieces: &[Value]) -> CanonicalResponse {
    let chunk = |delta: Value, reason: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": reason });
        json!({ "id": "c", "model": "m", "choices": [choice] })
    };
    let mut chunks: Vec<Value> =
        pieces.iter().map(|piece| chunk(json!({ "tool_calls": [piece] }), None)).collect();
    chunks.push(chunk(json!({}), Some("tool_calls")));
    chunks.push(json!("[DONE]"));
    gather(&read_stream(Dialect::Chat, &stream(&Value::Array(chunks)))).unwrap()
}

fn calls(calls: &[(&str, &str, &str)]) -> CanonicalResponse {
    let call = |(id, name, arguments): &(&str, &str, &str)| {
        ContentPart::ToolCall(ToolCall {
            id: (*id).to_owned(),
            name: (*name).to_owned(),
            namespace: None,
            input: ToolInput::Json((*arguments).to_owned()),
            extras: DialectExtras::default(),
        })
    };
    CanonicalResponse {
        id: "c".into(),
        model: "m".into(),
        parts: calls.iter().map(call).collect(),
        stop: StopReason::ToolCalls,
        usage: None,
    }
}

#[test]
fn calls_of_a_server_that_gives_all_the_same_index_stay_apart_by_their_ids() {
    let pieces = [
        json!({ "index": 0, "id": "a", "function": { "name": "weather", "arguments": "{\"x\"" } }),
        json!({ "index": 0, "function": { "arguments": ":1}" } }),
        json!({ "index": 0, "id": "b", "function": { "name": "time", "arguments": "{\"y\"" } }),
        json!({ "index": 0, "id": "b", "function": { "name": "time", "arguments": ":" } }),
        json!({ "index": 0, "id": "", "function": { "arguments": "2}" } }),
    ];
    assert_eq!(
        called(&pieces),
        calls(&[("a", "weather", r#"{"x":1}"#), ("b", "time", r#"{"y":2}"#)])
    );
}

#[test]
fn a_call_whose_pieces_each_have_another_id_is_one_call() {
    let pieces = [
        json!({ "index": 0, "id": "a", "function": { "name": "weather" } }),
        json!({ "index": 0, "id": "b", "function": { "arguments": "{\"x\"" } }),
        json!({ "index": 0, "id": "c", "function": { "arguments": ":1}" } }),
    ];
    assert_eq!(called(&pieces), calls(&[("a", "weather", r#"{"x":1}"#)]));
}
