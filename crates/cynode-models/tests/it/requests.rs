//! Choices that the caller of a provider has.

use cynode_models::dialect::{
    Dialect, DialectCodec as _, ProviderCapabilities,
    canonical::{
        CanonicalMessage, CanonicalRequest, ContentPart, MessageRole, ModelErrorKind, OutputFormat,
        ReasoningPart, ReasoningSeal, ThinkingConfig, ThinkingMode,
    },
};
use serde_json::json;

fn asked() -> CanonicalRequest {
    CanonicalRequest {
        model: "m".into(),
        messages: vec![CanonicalMessage::new(
            MessageRole::User,
            vec![ContentPart::from_text("Hi")],
        )],
        ..CanonicalRequest::default()
    }
}

#[test]
fn messages_has_the_limit_that_the_caller_gives_when_the_client_names_none() {
    let target = ProviderCapabilities { default_max_tokens: 77, ..ProviderCapabilities::default() };
    let written = Dialect::Messages.encode_request(&asked(), &target).unwrap();
    assert_eq!(
        written,
        json!({ "model": "m", "max_tokens": 77, "messages": [{ "role": "user", "content": "Hi" }] })
    );
}

#[test]
fn a_budget_for_thinking_stays_below_the_limit_or_is_left_out() {
    for (budget, limit, left) in [
        (2048, 4000, Some(2048)),
        (4000, 4000, Some(3999)),
        (9000, 1025, Some(1024)),
        (9000, 1024, None),
        (9000, 0, None),
    ] {
        let thinking = ThinkingConfig {
            mode: Some(ThinkingMode::Budget(budget)),
            ..ThinkingConfig::default()
        };
        let request = CanonicalRequest {
            max_output_tokens: Some(limit),
            thinking: Some(thinking),
            ..asked()
        };
        let written =
            Dialect::Messages.encode_request(&request, &ProviderCapabilities::default()).unwrap();
        let mut expected = json!({ "model": "m", "max_tokens": limit,
            "messages": [{ "role": "user", "content": "Hi" }] });
        if let Some(left) = left {
            expected["thinking"] = json!({ "type": "enabled", "budget_tokens": left });
        }
        assert_eq!(written, expected, "{budget} of {limit}");
    }
}

#[test]
fn a_local_server_gets_the_limit_by_its_old_name() {
    let target =
        ProviderCapabilities { max_completion_tokens: false, ..ProviderCapabilities::default() };
    let request = CanonicalRequest { max_output_tokens: Some(9), ..asked() };
    let written = Dialect::Chat.encode_request(&request, &target).unwrap();
    assert_eq!(
        written,
        json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 9 })
    );
}

#[test]
fn a_provider_of_messages_without_answers_by_schema_refuses_them() {
    let target = ProviderCapabilities { schema_output: false, ..ProviderCapabilities::default() };
    let output =
        OutputFormat::JsonSchema { name: None, description: None, schema: json!({}), strict: true };
    let request = CanonicalRequest { output: Some(output), ..asked() };
    let error = Dialect::Messages.encode_request(&request, &target).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ModelErrorKind::BadRequest, "this model's provider knows no answers by a JSON schema")
    );
}

#[test]
fn thoughts_go_back_to_a_server_of_chat_only_if_it_wants_them() {
    let thought = ContentPart::Reasoning(ReasoningPart { text: "Hm.".into(), seal: None });
    let turn = CanonicalMessage::new(
        MessageRole::Assistant,
        vec![thought, ContentPart::from_text("Yes.")],
    );
    let request = CanonicalRequest { messages: vec![turn], ..asked() };
    let said = |reasoning_content| {
        let target = ProviderCapabilities { reasoning_content, ..ProviderCapabilities::default() };
        Dialect::Chat.encode_request(&request, &target).unwrap()["messages"].clone()
    };
    assert_eq!(said(false), json!([{ "role": "assistant", "content": "Yes." }]));
    assert_eq!(
        said(true),
        json!([{ "role": "assistant", "content": "Yes.", "reasoning_content": "Hm." }])
    );
}

#[test]
fn a_seal_comes_back_to_its_provider_through_a_client_of_another_dialect() {
    let seal = |by, id: Option<&str>, redacted| ReasoningSeal {
        by,
        id: id.map(str::to_owned),
        data: "a.b=".into(),
        redacted,
    };
    let through = [
        (Dialect::Messages, seal(Dialect::Responses, Some("rs_1"), false)),
        (Dialect::Responses, seal(Dialect::Messages, None, false)),
        (Dialect::Responses, seal(Dialect::Messages, None, true)),
    ];
    for (client, seal) in through {
        let text = if seal.redacted { "" } else { "Hm." };
        let thought = ReasoningPart { text: text.into(), seal: Some(seal.clone()) };
        let answer = cynode_models::dialect::canonical::CanonicalResponse {
            id: "a".into(),
            model: "m".into(),
            parts: vec![ContentPart::Reasoning(thought.clone())],
            stop: cynode_models::dialect::canonical::StopReason::EndTurn,
            usage: None,
        };
        let told = client
            .encode_response(&answer, &cynode_models::dialect::ResponseContext::default())
            .unwrap();
        let given_back = match client {
            Dialect::Messages => json!({ "model": "m", "max_tokens": 1, "messages": [
                { "role": "assistant", "content": told["content"] },
            ] }),
            Dialect::Chat | Dialect::Responses => json!({ "model": "m", "input": told["output"] }),
        };
        let request = client.decode_request(&given_back).unwrap();
        assert_eq!(
            request.messages[0].parts,
            [ContentPart::Reasoning(thought)],
            "through {client}"
        );
        let back = seal.by.encode_request(&request, &ProviderCapabilities::default()).unwrap();
        assert!(back.to_string().contains("\"a.b=\""), "{back}");
        let other = client.encode_request(&request, &ProviderCapabilities::default()).unwrap();
        assert!(!other.to_string().contains("a.b="), "{other}");
    }
}

#[test]
fn the_result_of_a_tool_for_free_text_in_chat_is_one_in_responses() {
    let asked = json!({ "model": "m", "messages": [
        { "role": "user", "content": "Patch it" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "call_1", "type": "custom", "custom": { "name": "apply_patch", "input": "aaa" } },
            { "id": "call_2", "type": "function", "function": { "name": "time", "arguments": "{}" } },
        ] },
        { "role": "tool", "tool_call_id": "call_2", "content": "Noon." },
        { "role": "tool", "tool_call_id": "call_1", "content": "Done." },
    ] });
    let request = Dialect::Chat.decode_request(&asked).unwrap();
    let written =
        Dialect::Responses.encode_request(&request, &ProviderCapabilities::default()).unwrap();
    assert_eq!(
        written,
        json!({ "model": "m", "store": false, "input": [
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Patch it" }] },
            { "type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": "aaa" },
            { "type": "function_call", "call_id": "call_2", "name": "time", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "call_2", "output": "Noon." },
            { "type": "custom_tool_call_output", "call_id": "call_1", "output": "Done." },
        ] })
    );
}
