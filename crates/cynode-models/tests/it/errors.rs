//! Errors of providers, told to clients.

use std::time::Duration;

use cynode_models::dialect::{
    Dialect, DialectCodec as _,
    canonical::{CanonicalEvent, ModelError, ModelErrorKind},
};
use serde_json::{Value, json};

use crate::support::{Said, dialect, lines, name, pairs, parse, read_stream, write_stream};

/// What each client is told of an error, before the answer and in the middle of it.
pub(crate) fn golden(conversation: &str, native: &Value) -> Value {
    let spoken = dialect(native);
    let status = u16::try_from(native["status"].as_u64().unwrap()).unwrap();
    let retry_after = native.get("retry_after").and_then(Value::as_u64).map(Duration::from_secs);
    let error = spoken.decode_error(status, &native["body"], retry_after);
    let mut said = Said::default();
    for (client, provider) in pairs() {
        let read = if provider == spoken {
            error.clone()
        } else {
            let wire = provider.encode_error(&error);
            provider.decode_error(wire.status, &wire.body, wire.retry_after)
        };
        let told = client.encode_error(&read);
        let back = client.decode_error(told.status, &told.body, told.retry_after);
        assert_eq!(back.kind, error.kind, "{conversation} for a client of {client}");
        assert!(back.message.ends_with(&error.message), "{conversation}: {}", back.message);
        let middle = write_stream(
            client,
            [CanonicalEvent::Failed(read)],
            &cynode_models::dialect::ResponseContext::default(),
        );
        let middle = parse(&middle);
        let events = read_stream(client, &middle);
        let [CanonicalEvent::Failed(failed)] = events.as_slice() else {
            panic!("{conversation}: {events:?}")
        };
        assert_eq!(failed.kind, error.kind, "{conversation} in the middle, for {client}");
        let told = json!({
            "status": told.status,
            "retry_after": told.retry_after.map(|after| after.as_secs()),
            "should_retry": told.should_retry,
            "body": told.body,
            "in_stream": lines(&middle),
        });
        said.add(name(client, provider), told);
    }
    json!({ "means": { "kind": error.kind, "code": error.code, "message": error.message }, "told": said.into_value() })
}

#[test]
fn a_budget_stop_has_the_status_at_which_each_agent_stops() {
    let error = ModelError::new(ModelErrorKind::BudgetExhausted, "the task's budget is used up");
    let told = [Dialect::Chat, Dialect::Responses, Dialect::Messages].map(|dialect| {
        let told = dialect.encode_error(&error);
        (told.status, told.should_retry, told.retry_after, told.body)
    });
    let message = "the task's budget is used up";
    assert_eq!(
        told,
        [
            (
                402,
                Some(false),
                None,
                json!({ "error": {
                    "message": message, "type": "insufficient_quota", "param": null, "code": "budget_exhausted",
                } }),
            ),
            (
                429,
                Some(false),
                None,
                json!({ "error": {
                    "message": message, "type": "insufficient_quota", "param": null, "code": "insufficient_quota",
                } }),
            ),
            (
                402,
                Some(false),
                None,
                json!({ "type": "error", "error": {
                    "type": "billing_error", "message": message, "details": { "error_code": "budget_exhausted" },
                } }),
            ),
        ]
    );
}

#[test]
fn every_kind_is_the_same_kind_for_the_client() {
    for kind in ModelErrorKind::ALL {
        for dialect in Dialect::ALL.iter().copied() {
            let told = dialect.encode_error(&ModelError::new(kind, "why"));
            let back = dialect.decode_error(told.status, &told.body, None);
            // A budget is ours: whoever reads of it sees an account with nothing left.
            let expected = if kind == ModelErrorKind::BudgetExhausted {
                ModelErrorKind::QuotaExhausted
            } else {
                kind
            };
            assert_eq!((back.kind, back.message.as_str()), (expected, "why"), "{dialect}");
        }
    }
}

#[test]
fn a_body_that_is_not_an_error_still_has_a_kind_and_words() {
    let told = [Dialect::Chat, Dialect::Responses, Dialect::Messages].map(|dialect| {
        let error =
            dialect.decode_error(503, &json!("<html>busy</html>"), Some(Duration::from_secs(3)));
        (error.kind, error.message, error.retry_after)
    });
    let expected =
        (ModelErrorKind::Unavailable, "<html>busy</html>".to_owned(), Some(Duration::from_secs(3)));
    assert_eq!(told, [expected.clone(), expected.clone(), expected]);
}

#[test]
fn a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for() {
    let body = json!({ "error": {
        "message": "the maximum context length is 8192 tokens",
        "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded",
    } });
    let error = Dialect::Chat.decode_error(400, &body, None);
    let told = Dialect::Messages.encode_error(&error);
    assert_eq!(
        (told.status, &told.body["error"]["message"]),
        (400, &json!("prompt is too long: the maximum context length is 8192 tokens")),
    );
    let back = Dialect::Messages.decode_error(told.status, &told.body, None);
    assert_eq!(
        (back.kind, back.code.as_deref()),
        (ModelErrorKind::BadRequest, Some("context_length_exceeded"))
    );
}
