//! Any JSON is a request, a response or an error of a dialect, or is refused; what one dialect reads every other writes or refuses. Once an
//! agent's request is accepted, no provider has to fetch anything for it, in whatever dialect it is sent on.
#![no_main]

use cynode_core::models::{Dialect, ProviderKind};
use cynode_models::{
    dialect::{
        DialectCodec as _, ProviderCapabilities, ResponseContext, StreamDecoder, StreamEncoder,
        canonical::{
            CanonicalRequest, ContentPart, DocumentSource, ImageSource, ResponseAssembler,
        },
    },
    request_rewrite::RequestRewrite,
};
use cynode_net::sse::SseEvent;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const DIALECTS: [Dialect; 3] = [Dialect::Chat, Dialect::Responses, Dialect::Messages];

/// Fields that hold the conversation.
const CONVERSATION_FIELDS: [&str; 5] =
    ["messages", "input", "instructions", "system", "prediction"];

/// Fields whose URL a provider fetches.
const FETCHED_FIELDS: [&str; 8] =
    ["audio_url", "file_data", "file_url", "image_url", "source", "uri", "url", "video_url"];

/// Fields that belong to the tools of a client: a provider passes them on and fetches nothing.
const TOOL_FIELDS: [&str; 10] = [
    "action",
    "arguments",
    "input",
    "input_examples",
    "input_schema",
    "operation",
    "output_schema",
    "parameters",
    "schema",
    "tools",
];

fuzz_target!(|data: &[u8]| {
    let Ok(body) = serde_json::from_slice::<Value>(data) else { return };
    for from in DIALECTS {
        if let Ok(request) = from.decode_request(&body) {
            encode_everywhere(&request);
        }
        check_response(from, &body);
        check_stream(from, &body);
        for to in DIALECTS {
            let _ = to.encode_error(&from.decode_error(400, &body, None));
        }
        check_agent(from, &body);
    }
});

/// Writes a request in every dialect that can express it.
fn encode_everywhere(request: &CanonicalRequest) -> Vec<Value> {
    let capabilities = [false, true].map(|ability| ProviderCapabilities {
        max_completion_tokens: ability,
        reasoning_content: ability,
        schema_output: ability,
        drop_foreign_tools: ability,
        ..ProviderCapabilities::default()
    });
    let each =
        DIALECTS.into_iter().flat_map(|to| capabilities.iter().map(move |target| (to, target)));
    each.filter_map(|(to, target)| to.encode_request(request, target).ok()).collect()
}

fn check_response(from: Dialect, body: &Value) {
    let Ok(response) = from.decode_response(body) else { return };
    for to in DIALECTS {
        let _ = to.encode_response(&response, &ResponseContext::default());
    }
}

/// A list is a stream of events, as a provider sends them.
fn check_stream(from: Dialect, body: &Value) {
    let Value::Array(events) = body else { return };
    let mut decoder = StreamDecoder::new(from);
    let mut decoded = Vec::new();
    for event in events {
        let name = event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let data = event.as_str().map_or_else(|| event.to_string(), str::to_owned);
        decoded.extend(decoder.decode_event(&SseEvent { name, data }));
    }
    decoded.extend(decoder.finish_stream());
    let mut assembler = ResponseAssembler::default();
    for event in &decoded {
        assembler.push_event(event);
    }
    let _ = assembler.finish_response();
    for to in DIALECTS {
        let mut encoder = StreamEncoder::new(to, ResponseContext::default());
        for event in &decoded {
            encoder.encode_event(event.clone());
        }
    }
}

/// Sends a request as an agent does, to a provider of its dialect and to those of the others.
fn check_agent(from: Dialect, body: &Value) {
    let Ok(mut request) = RequestRewrite::new(from, body.clone()) else { return };
    request.strip_hosted_tools();
    if request.restrict_agent_content().is_err() {
        return;
    }
    for kind in [ProviderKind::OpenAi, ProviderKind::Compatible, ProviderKind::Anthropic] {
        assert_nothing_fetched(&request.to_provider_body(kind, "model", 100));
    }
    let Ok(canonical) = from.decode_request(request.as_body()) else { return };
    for message in &canonical.messages {
        assert_inline(&message.parts);
    }
    for sent in encode_everywhere(&canonical) {
        assert_nothing_fetched(&sent);
    }
    // What was accepted once is accepted again, and nothing more is removed.
    assert_eq!(request.restrict_agent_content().ok(), Some(0));
}

/// All media are in the request.
fn assert_inline(parts: &[ContentPart]) {
    for part in parts {
        match part {
            ContentPart::Image(image) => match &image.source {
                ImageSource::Url(url) => assert!(!is_remote_url(url), "{url}"),
                ImageSource::Base64 { .. } => {}
                ImageSource::File { id, .. } => panic!("the provider has the image {id}"),
            },
            ContentPart::Document(document) => match &document.source {
                DocumentSource::Url(url) => assert!(!is_remote_url(url), "{url}"),
                DocumentSource::Base64 { .. } | DocumentSource::Text(_) => {}
                DocumentSource::File { id, .. } => panic!("the provider has the document {id}"),
            },
            ContentPart::ToolResult(result) => assert_inline(&result.parts),
            ContentPart::Foreign(foreign) => assert_no_url(&foreign.value, ""),
            ContentPart::Text(_)
            | ContentPart::ToolCall(_)
            | ContentPart::Reasoning(_)
            | ContentPart::Refusal(_) => {}
        }
    }
}

fn assert_nothing_fetched(body: &Value) {
    for name in CONVERSATION_FIELDS {
        if let Some(conversation) = body.get(name) {
            assert_no_url(conversation, "");
        }
    }
}

/// No field that a provider fetches holds a URL.
fn assert_no_url(value: &Value, name: &str) {
    match value {
        Value::String(text) => {
            assert!(!(FETCHED_FIELDS.contains(&name) && is_remote_url(text)), "`{name}`: {text}");
        }
        Value::Array(items) => items.iter().for_each(|item| assert_no_url(item, name)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if !TOOL_FIELDS.contains(&name.as_str()) {
                    assert_no_url(value, name);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_remote_url(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    text.starts_with("http://") || text.starts_with("https://")
}
