//! Any bytes are a message or are refused; what was read is what the body says, in one way only.
#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../crates/cynode-gateway/src/responses.rs"]
mod responses;
#[path = "../../crates/cynode-gateway/src/envelope.rs"]
mod envelope;
#[path = "../../crates/cynode-gateway/src/headers.rs"]
mod headers;
#[path = "../../crates/cynode-gateway/src/strict_json.rs"]
mod strict_json;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 6] =
    ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region", "host", "origin"];

fuzz_target!(|data: &[u8]| {
    // Headers first, one line each, up to an empty line; then the body.
    let mut map = HeaderMap::new();
    let mut rest = data;
    for _ in 0..8 {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { break };
        let (line, after) = rest.split_at(end);
        rest = &after[1..];
        let Some((name, value)) = line.split_first() else { break };
        let name = HeaderName::from_static(NAMES[usize::from(*name) % NAMES.len()]);
        if let Ok(value) = HeaderValue::from_bytes(value) {
            map.append(name, value);
        }
    }
    headers::AllowedHosts::default().admits_request(&map);
    if let Ok(envelope::McpMessage::Request(request)) = envelope::parse_message(&map, rest) {
        if let Some(call) = request.call {
            // The bytes that are passed on say what was decided upon.
            let again: serde_json::Value = serde_json::from_str(call.raw.get()).unwrap();
            assert_eq!(again, call.arguments);
            let schema = serde_json::json!({ "properties": { "a": { "type": "string", "x-mcp-header": "Region" } } });
            let _ = headers::check_mirrored_headers(&map, &schema, &call.arguments);
        }
    }
});
