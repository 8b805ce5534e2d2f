//! Answers that are passed on unchanged.

use cynode_models::{
    dialect::{
        Dialect, DialectCodec as _, ResponseContext,
        canonical::{
            CanonicalResponse, ContentPart, DialectExtras, ModelError, StopReason, TokenUsage,
            ToolCall, ToolInput,
        },
    },
    stream_observer::{ResponseObservation, ResponseObserver},
};
use serde_json::json;

use crate::support::{parse, stream, write_stream};

fn answer() -> CanonicalResponse {
    let call = ToolCall {
        id: "call_1".into(),
        name: "weather".into(),
        namespace: None,
        input: ToolInput::Json("{}".into()),
        extras: DialectExtras::default(),
    };
    CanonicalResponse {
        id: "a".into(),
        model: "m".into(),
        parts: vec![ContentPart::from_text("Héllo"), ContentPart::ToolCall(call)],
        stop: StopReason::ToolCalls,
        usage: Some(TokenUsage {
            input: 9,
            cached_input: 4,
            cache_written: 1,
            output: 3,
            reasoning: 0,
        }),
    }
}

fn seen() -> ResponseObservation {
    ResponseObservation {
        id: "a".into(),
        model: "m".into(),
        stop: Some(StopReason::ToolCalls),
        usage: answer().usage,
        output_bytes: 8,
        tool_calls: 1,
        error: None,
    }
}

fn reply() -> ResponseContext {
    ResponseContext { include_usage: true, ..ResponseContext::default() }
}

#[test]
fn an_observer_sees_the_same_of_a_whole_answer_and_of_its_pieces() {
    for dialect in Dialect::ALL.iter().copied() {
        let body = dialect.encode_response(&answer(), &reply()).unwrap();
        assert_eq!(ResponseObserver::new(dialect).observe_response(&body), seen(), "{dialect}");
        let mut observer = ResponseObserver::new(dialect);
        for event in parse(&write_stream(dialect, answer().to_events(), &reply())) {
            observer.observe_event(&event);
        }
        assert_eq!(observer.finish_stream(), seen(), "{dialect}");
    }
}

#[test]
fn an_observer_sees_that_a_stream_was_cut_short_and_what_had_come() {
    for dialect in Dialect::ALL.iter().copied() {
        let mut observer = ResponseObserver::new(dialect);
        let events = parse(&write_stream(dialect, answer().to_events(), &reply()));
        let said = events.iter().position(|event| event.data.contains("Héllo")).unwrap();
        events.iter().take(said + 1).for_each(|event| observer.observe_event(event));
        let seen = observer.finish_stream();
        let cut = ModelError::new(
            cynode_models::dialect::canonical::ModelErrorKind::Upstream,
            "the provider's stream ended before the answer did",
        );
        assert_eq!((seen.stop, seen.output_bytes, seen.error), (None, 6, Some(cut)), "{dialect}");
    }
}

#[test]
fn an_observer_passes_over_content_that_is_between_client_and_provider() {
    let usage = json!({ "input_tokens": 5, "output_tokens": 2 });
    let blocks = json!([
        { "type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {} },
        { "type": "text", "text": "Ok." },
    ]);
    let body = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks,
        "stop_reason": "end_turn", "usage": usage,
    });
    let whole = ResponseObserver::new(Dialect::Messages).observe_response(&body);
    let mut observer = ResponseObserver::new(Dialect::Messages);
    let events = json!([
        { "type": "message_start", "message": { "id": "msg_1", "model": "m", "usage": usage } },
        { "type": "content_block_start", "index": 0, "content_block": blocks[0] },
        { "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta", "partial_json": "{}" } },
        { "type": "content_block_stop", "index": 0 },
        { "type": "content_block_start", "index": 1, "content_block": { "type": "text", "text": "" } },
        { "type": "content_block_delta", "index": 1, "delta": { "type": "text_delta", "text": "Ok." } },
        { "type": "content_block_stop", "index": 1 },
        { "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } },
        { "type": "message_stop" },
    ]);
    for event in stream(&events) {
        observer.observe_event(&event);
    }
    assert_eq!(observer.finish_stream(), whole);
    assert_eq!(
        (whole.stop, whole.output_bytes, whole.usage),
        (
            Some(StopReason::EndTurn),
            3,
            Some(TokenUsage { input: 5, output: 2, ..TokenUsage::default() })
        )
    );
}
