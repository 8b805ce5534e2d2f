use serde_json::json;

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn modern_headers(method: &str, name: Option<&str>) -> HeaderMap {
    let mut pairs = vec![("mcp-protocol-version", MODERN_VERSION), ("mcp-method", method)];
    pairs.extend(name.map(|name| ("mcp-name", name)));
    headers(&pairs)
}

fn meta() -> Value {
    json!({ META_VERSION_KEY: MODERN_VERSION, META_CAPABILITIES_KEY: {} })
}

fn call(name: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": name, "arguments": { "a": 1 }, "_meta": meta() } })
    .to_string()
}

fn refused(headers: &HeaderMap, body: &str) -> i64 {
    parse_message(headers, body.as_bytes()).unwrap_err().error_code()
}

#[test]
fn the_body_decides_and_the_headers_must_say_the_same() {
    let body = call("help__overview");
    let good =
        parse_message(&modern_headers("tools/call", Some("help__overview")), body.as_bytes())
            .unwrap();
    let McpMessage::Request(request) = good else { panic!("{good:?}") };
    assert_eq!((request.era, request.id), (ProtocolEra::Modern, json!(7)));
    assert_eq!(request.call.unwrap().raw.get(), r#"{"a":1}"#);
    for (method, name) in [
        ("tools/call", Some("other")),
        ("tools/call", None),
        ("tools/list", Some("help__overview")),
        ("TOOLS/CALL", Some("help__overview")),
    ] {
        assert_eq!(
            refused(&modern_headers(method, name), &body),
            code::HEADER_MISMATCH,
            "{method} {name:?}"
        );
    }
    let padded = modern_headers("tools/call", Some("=?base64?aGVscF9fb3ZlcnZpZXc=?="));
    assert!(parse_message(&padded, body.as_bytes()).is_ok());
    let mut twice = modern_headers("tools/call", Some("help__overview"));
    twice.append("mcp-name", "help__overview".parse().unwrap());
    assert_eq!(refused(&twice, &body), code::HEADER_MISMATCH);
}

#[test]
fn a_key_that_is_there_twice_is_refused_wherever_it_is() {
    let header = modern_headers("tools/call", Some("a"));
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"tools/list","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"task_id":"x","task_id":"y"}}}"#,
    ] {
        assert_eq!(refused(&header, body), code::INVALID_REQUEST, "{body}");
    }
}

#[test]
fn what_a_request_that_stands_alone_must_carry_is_asked_for_in_order() {
    let list = |meta: Value| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": meta } })
            .to_string()
    };
    let header = modern_headers("tools/list", None);
    assert_eq!(
        refused(&header, r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#),
        code::INVALID_PARAMS
    );
    assert_eq!(refused(&header, &list(json!({ META_CAPABILITIES_KEY: {} }))), code::INVALID_PARAMS);
    assert_eq!(
        refused(&header, &list(json!({ META_VERSION_KEY: MODERN_VERSION }))),
        code::INVALID_PARAMS
    );
    assert_eq!(
        refused(&header, &list(json!({ META_VERSION_KEY: "v999", META_CAPABILITIES_KEY: {} }))),
        code::HEADER_MISMATCH
    );
    let both = headers(&[("mcp-protocol-version", "v999"), ("mcp-method", "tools/list")]);
    assert_eq!(
        refused(&both, &list(json!({ META_VERSION_KEY: "v999", META_CAPABILITIES_KEY: {} }))),
        code::UNSUPPORTED_VERSION
    );
    assert!(parse_message(&header, list(meta()).as_bytes()).is_ok());
}

#[test]
fn an_older_client_needs_none_of_it() {
    let body = r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"a"}}"#;
    for header in [headers(&[]), headers(&[("mcp-protocol-version", "2025-03-26")])] {
        let Ok(McpMessage::Request(request)) = parse_message(&header, body.as_bytes()) else {
            panic!()
        };
        let call = request.call.unwrap();
        assert_eq!(
            (request.era, call.name.as_str(), call.raw.get()),
            (ProtocolEra::Legacy, "a", "{}")
        );
    }
}

#[test]
fn batches_odd_ids_and_what_is_no_message_are_refused() {
    let none = HeaderMap::new();
    assert_eq!(refused(&none, "nonsense"), code::PARSE_ERROR);
    for body in [
        "[]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
        r#"{"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
    ] {
        assert_eq!(refused(&none, body), code::INVALID_REQUEST, "{body}");
    }
    let told =
        parse_message(&none, br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).unwrap();
    assert!(matches!(told, McpMessage::Notification { .. }));
    assert_eq!(
        parse_message(&none, br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).unwrap(),
        McpMessage::Response
    );
}
