//! JSON-RPC messages: encodes requests and decodes responses. Parameters and results pass through unchanged.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{CallProgress, UpstreamCall, UpstreamError, UpstreamReply};

/// Protocol version of the modern era.
pub(super) const MODERN_VERSION: &str = "2026-07-28";
/// Protocol versions of the legacy era. The first one is requested.
pub(super) const LEGACY_VERSIONS: [&str; 4] =
    ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Error code: a header contradicts the body.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// Error code: the server does not support the protocol version.
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

/// Protocol era of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamEra {
    /// Requests are self-contained.
    Modern,
    /// Requests follow a handshake, which negotiated this version.
    Legacy(&'static str),
}

impl UpstreamEra {
    /// Returns the protocol version.
    pub(super) const fn protocol_version(self) -> &'static str {
        match self {
            Self::Modern => MODERN_VERSION,
            Self::Legacy(version) => version,
        }
    }
}

#[derive(Serialize)]
struct RpcRequest<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct RpcNotification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

#[derive(Serialize)]
struct ClientImplementation {
    name: &'static str,
    version: &'static str,
}

/// Client name that servers see. The protocol requires it as a value; it is not a proprietary field.
const CLIENT_IMPLEMENTATION: ClientImplementation =
    ClientImplementation { name: "cynode", version: env!("CARGO_PKG_VERSION") };

/// Capabilities of the client: those of the agent's client, or none.
#[derive(Serialize)]
#[serde(untagged)]
enum ClientCapabilities<'a> {
    Said(&'a RawValue),
    None {},
}

#[derive(Serialize)]
struct RequestMeta<'a> {
    #[serde(
        rename = "io.modelcontextprotocol/protocolVersion",
        skip_serializing_if = "Option::is_none"
    )]
    version: Option<&'static str>,
    #[serde(
        rename = "io.modelcontextprotocol/clientInfo",
        skip_serializing_if = "Option::is_none"
    )]
    client: Option<ClientImplementation>,
    #[serde(
        rename = "io.modelcontextprotocol/clientCapabilities",
        skip_serializing_if = "Option::is_none"
    )]
    capabilities: Option<ClientCapabilities<'a>>,
    #[serde(rename = "progressToken", skip_serializing_if = "Option::is_none")]
    progress: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl<'a> RequestMeta<'a> {
    /// Creates the context of a request: complete in the modern era, empty in the legacy era.
    const fn new(era: UpstreamEra, capabilities: Option<&'a RawValue>) -> Self {
        match era {
            UpstreamEra::Modern => Self {
                version: Some(MODERN_VERSION),
                client: Some(CLIENT_IMPLEMENTATION),
                capabilities: Some(match capabilities {
                    Some(said) => ClientCapabilities::Said(said),
                    None => ClientCapabilities::None {},
                }),
                progress: None,
                traceparent: None,
            },
            UpstreamEra::Legacy(_) => Self {
                version: None,
                client: None,
                capabilities: None,
                progress: None,
                traceparent: None,
            },
        }
    }

    /// Returns `None` for an empty context.
    fn non_empty(self) -> Option<Self> {
        let used = self.version.is_some() || self.progress.is_some() || self.traceparent.is_some();
        used.then_some(self)
    }
}

fn encode_request<P: Serialize>(
    id: u64,
    method: &str,
    params: P,
) -> Result<Vec<u8>, UpstreamError> {
    encode_message(&RpcRequest { jsonrpc: "2.0", id, method, params })
}

fn encode_message<T: Serialize>(message: &T) -> Result<Vec<u8>, UpstreamError> {
    // Plain structs and JSON that was already parsed: serialization cannot fail.
    serde_json::to_vec(message).map_err(UpstreamError::from_transport)
}

/// Encodes the discovery request of the modern era.
pub(super) fn encode_discover(id: u64) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    struct DiscoverParams<'a> {
        #[serde(rename = "_meta")]
        meta: RequestMeta<'a>,
    }
    encode_request(
        id,
        "server/discover",
        DiscoverParams { meta: RequestMeta::new(UpstreamEra::Modern, None) },
    )
}

/// Encodes the handshake request of the legacy era. The gateway offers no capabilities.
pub(super) fn encode_initialize(id: u64) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct InitializeParams<'a> {
        protocol_version: &'a str,
        capabilities: ClientCapabilities<'a>,
        client_info: ClientImplementation,
    }
    let params = InitializeParams {
        protocol_version: LEGACY_VERSIONS[0],
        capabilities: ClientCapabilities::None {},
        client_info: CLIENT_IMPLEMENTATION,
    };
    encode_request(id, "initialize", params)
}

/// Encodes the notification that ends the handshake.
pub(super) fn encode_initialized() -> Result<Vec<u8>, UpstreamError> {
    encode_message(&RpcNotification::<()> {
        jsonrpc: "2.0",
        method: "notifications/initialized",
        params: None,
    })
}

/// Encodes the request for a page of the tool list.
pub(super) fn encode_list_tools(
    id: u64,
    era: UpstreamEra,
    cursor: Option<&str>,
) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    struct ListToolsParams<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<&'a str>,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<RequestMeta<'a>>,
    }
    encode_request(
        id,
        "tools/list",
        ListToolsParams { cursor, meta: RequestMeta::new(era, None).non_empty() },
    )
}

/// Encodes a tool call. The request id is also the progress token.
pub(super) fn encode_call_tool(
    id: u64,
    era: UpstreamEra,
    call: &UpstreamCall<'_>,
) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct CallToolParams<'a> {
        name: &'a str,
        arguments: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_responses: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_state: Option<&'a RawValue>,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<RequestMeta<'a>>,
    }
    if call.input.is_some() && era != UpstreamEra::Modern {
        // The server was modern when it requested the input. Its present era cannot carry the responses.
        return Err(UpstreamError::Malformed("the server takes no input responses"));
    }
    let mut meta = RequestMeta::new(era, call.capabilities);
    meta.progress = call.progress.is_some().then_some(id);
    meta.traceparent = call.trace;
    let params = CallToolParams {
        name: call.tool,
        arguments: call.arguments,
        input_responses: call.input.and_then(|input| input.responses),
        request_state: call.input.and_then(|input| input.state),
        meta: meta.non_empty(),
    };
    encode_request(id, "tools/call", params)
}

/// Encodes the cancellation of a request.
pub(super) fn encode_cancelled(id: u64) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct CancelledParams {
        request_id: u64,
    }
    encode_message(&RpcNotification {
        jsonrpc: "2.0",
        method: "notifications/cancelled",
        params: Some(CancelledParams { request_id: id }),
    })
}

/// Encodes the answer to a server's request: an empty result for a ping, "method not found" for everything else.
pub(super) fn encode_answer_to(id: &RawValue, method: &str) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    struct PongResult {}
    #[derive(Serialize)]
    struct MethodNotFound {
        code: i64,
        message: &'static str,
    }
    #[derive(Serialize)]
    struct RpcResponse<'a> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<PongResult>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<MethodNotFound>,
    }
    let ping = method == "ping";
    encode_message(&RpcResponse {
        jsonrpc: "2.0",
        id,
        result: ping.then_some(PongResult {}),
        error: (!ping).then_some(MethodNotFound { code: -32601, message: "Method not found" }),
    })
}

/// A message of a server.
#[derive(Debug)]
pub(super) enum ServerMessage<'a> {
    /// An answer to a request of the gateway. An error about a request that the server could not read has no id.
    Answer { id: Option<u64>, outcome: Result<&'a RawValue, UpstreamError> },
    /// A request to the gateway.
    Request { id: &'a RawValue, method: Cow<'a, str> },
    /// Progress of a request of the gateway.
    Progress { token: u64, progress: CallProgress },
    /// Any other notification.
    Other,
}

#[derive(Deserialize)]
struct RawServerMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<ErrorObject<'a>>,
}

#[derive(Deserialize)]
struct ErrorObject<'a> {
    code: i64,
    message: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

/// Parses one message.
pub(super) fn parse_server_message(bytes: &[u8]) -> Result<ServerMessage<'_>, UpstreamError> {
    let incoming: RawServerMessage<'_> = serde_json::from_slice(bytes)
        .map_err(|_| UpstreamError::Malformed("not a JSON-RPC message"))?;
    match incoming {
        RawServerMessage { method: Some(method), id: Some(id), .. } => {
            Ok(ServerMessage::Request { id, method })
        }
        RawServerMessage { method: Some(method), params, .. } => {
            Ok(parse_notification(&method, params))
        }
        RawServerMessage {
            id,
            error: Some(ErrorObject { code, message, data }),
            result: None,
            ..
        } => {
            let data = data.map(ToOwned::to_owned);
            let outcome = Err(UpstreamError::Protocol { code, message, data });
            Ok(ServerMessage::Answer { id: id.and_then(parse_request_id), outcome })
        }
        RawServerMessage { id: Some(id), result: Some(result), error: None, .. } => {
            Ok(ServerMessage::Answer { id: parse_request_id(id), outcome: Ok(result) })
        }
        RawServerMessage { .. } => {
            Err(UpstreamError::Malformed("neither request, answer nor notification"))
        }
    }
}

fn parse_request_id(id: &RawValue) -> Option<u64> {
    id.get().parse().ok()
}

fn parse_notification<'a>(method: &str, params: Option<&'a RawValue>) -> ServerMessage<'a> {
    #[derive(Deserialize)]
    struct ProgressParams {
        #[serde(rename = "progressToken")]
        token: u64,
        #[serde(flatten)]
        progress: CallProgress,
    }
    if method != "notifications/progress" {
        return ServerMessage::Other;
    }
    // A token that is not one of the gateway's numbers belongs to no request.
    params
        .and_then(|params| serde_json::from_str(params.get()).ok())
        .map_or(ServerMessage::Other, |ProgressParams { token, progress }| {
            ServerMessage::Progress { token, progress }
        })
}

/// Returns the era from the answer to [`encode_discover`]. `None` if it is not the modern era.
pub(super) fn era_from_discovery(result: &RawValue) -> Option<UpstreamEra> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct DiscoverResult {
        supported_versions: Vec<String>,
    }
    let discovered: DiscoverResult = serde_json::from_str(result.get()).ok()?;
    discovered
        .supported_versions
        .iter()
        .any(|version| version == MODERN_VERSION)
        .then_some(UpstreamEra::Modern)
}

/// Returns whether an error shows that the server supports the modern era, in the gateway's version.
pub(super) fn supports_modern(error: &UpstreamError) -> bool {
    #[derive(Deserialize)]
    struct UnsupportedVersionData {
        supported: Vec<String>,
    }
    let UpstreamError::Protocol { code: UNSUPPORTED_VERSION, data: Some(data), .. } = error else {
        return false;
    };
    serde_json::from_str(data.get()).is_ok_and(|UnsupportedVersionData { supported }| {
        supported.iter().any(|version| version == MODERN_VERSION)
    })
}

/// Returns the era with the version that the legacy handshake negotiated.
pub(super) fn era_from_initialize(result: &RawValue) -> Result<UpstreamEra, UpstreamError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct InitializeResult<'a> {
        #[serde(borrow)]
        protocol_version: Cow<'a, str>,
    }
    let InitializeResult { protocol_version } = serde_json::from_str(result.get())
        .map_err(|_| UpstreamError::Malformed("the greeting names no revision"))?;
    LEGACY_VERSIONS
        .into_iter()
        .find(|version| *version == protocol_version)
        .map(UpstreamEra::Legacy)
        .ok_or(UpstreamError::Malformed("the greeting names a revision that does not exist"))
}

/// Parses the result of a call.
pub(super) fn parse_reply(
    era: UpstreamEra,
    result: Box<RawValue>,
) -> Result<UpstreamReply, UpstreamError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct CallResultHead<'a> {
        #[serde(default)]
        is_error: bool,
        #[serde(borrow)]
        result_type: Option<Cow<'a, str>>,
    }
    let CallResultHead { is_error, result_type } = serde_json::from_str(result.get())
        .map_err(|_| UpstreamError::Malformed("the result of a call"))?;
    match (era, result_type.as_deref()) {
        (UpstreamEra::Legacy(_), _) | (UpstreamEra::Modern, None | Some("complete")) => {
            Ok(UpstreamReply::Result { result, is_error })
        }
        (UpstreamEra::Modern, Some("input_required")) => Ok(UpstreamReply::InputRequired(result)),
        // For example a task, which needs an extension that the gateway did not declare.
        (UpstreamEra::Modern, Some(_)) => {
            Err(UpstreamError::Malformed("a result of an unknown type"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use serde_json::{Number, Value, json};

    use super::super::UpstreamInput;
    use super::*;

    fn text(bytes: Result<Vec<u8>, UpstreamError>) -> String {
        String::from_utf8(bytes.unwrap()).unwrap()
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn arguments_keep_their_bytes() {
        let odd = raw(r#"{ "b":1.0,"a" : 1e2,  "a":"\u00e9" }"#);
        for era in [UpstreamEra::Modern, UpstreamEra::Legacy(LEGACY_VERSIONS[0])] {
            let written = text(encode_call_tool(7, era, &UpstreamCall::new("t", &odd)));
            assert!(written.contains(odd.get()), "{written}");
        }
    }

    #[test]
    fn a_modern_call_carries_its_context() {
        let arguments = raw("{}");
        let capabilities = raw(r#"{"elicitation":{"form":{}}}"#);
        let state = raw(r#""opaque""#);
        let responses = raw(r#"{"q":{"action":"accept"}}"#);
        let written = text(encode_call_tool(
            7,
            UpstreamEra::Modern,
            &UpstreamCall {
                trace: Some("00-1-2-01"),
                capabilities: Some(&capabilities),
                input: Some(UpstreamInput { responses: Some(&responses), state: Some(&state) }),
                ..UpstreamCall::new("t", &arguments)
            },
        ));
        assert_eq!(
            serde_json::from_str::<Value>(&written).unwrap(),
            json!({
                "jsonrpc": "2.0",
                "id": 7,
                "method": "tools/call",
                "params": {
                    "name": "t",
                    "arguments": {},
                    "inputResponses": {"q": {"action": "accept"}},
                    "requestState": "opaque",
                    "_meta": {
                        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                        "io.modelcontextprotocol/clientInfo":
                            {"name": "cynode", "version": env!("CARGO_PKG_VERSION")},
                        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
                        "traceparent": "00-1-2-01",
                    },
                },
            })
        );
    }

    #[test]
    fn a_plain_legacy_call_carries_no_meta() {
        let arguments = raw(r#"{"a":1}"#);
        assert_eq!(
            text(encode_call_tool(
                7,
                UpstreamEra::Legacy(LEGACY_VERSIONS[0]),
                &UpstreamCall::new("t", &arguments)
            )),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":{"a":1}}}"#
        );
    }

    #[test]
    fn the_second_round_of_a_call_is_not_sent_to_a_legacy_server() {
        let arguments = raw("{}");
        let input = Some(UpstreamInput { responses: None, state: None });
        let outcome = encode_call_tool(
            7,
            UpstreamEra::Legacy(LEGACY_VERSIONS[0]),
            &UpstreamCall { input, ..UpstreamCall::new("t", &arguments) },
        );
        assert!(matches!(outcome, Err(UpstreamError::Malformed(_))));
    }

    #[test]
    fn a_ping_is_answered_and_sampling_is_not_found() {
        let id = raw(r#""a""#);
        assert_eq!(
            text(encode_answer_to(&id, "ping")),
            r#"{"jsonrpc":"2.0","id":"a","result":{}}"#
        );
        assert_eq!(
            text(encode_answer_to(&id, "sampling/createMessage")),
            r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"Method not found"}}"#
        );
    }

    #[test]
    fn what_is_not_a_message_is_refused() {
        for garbage in [
            "",
            "[]",
            "17",
            "{}",
            r#"{"id":1}"#,
            r#"{"id":1,"result":{},"error":{"code":1,"message":""}}"#,
        ] {
            assert!(parse_server_message(garbage.as_bytes()).is_err(), "{garbage}");
        }
    }

    #[test]
    fn progress_is_read() {
        let bytes = br#"{"jsonrpc":"2.0","method":"notifications/progress",
            "params":{"progressToken":4,"progress":1,"total":2.5,"message":"half"}}"#;
        let ServerMessage::Progress { token, progress } = parse_server_message(bytes).unwrap()
        else {
            panic!()
        };
        assert_eq!(token, 4);
        assert_eq!(
            progress,
            CallProgress {
                progress: 1.into(),
                total: Number::from_f64(2.5),
                message: Some("half".to_owned()),
            }
        );
    }

    #[test]
    fn a_task_is_not_taken_for_a_result() {
        let task = to_raw_value(&json!({"resultType": "task"})).unwrap();
        assert!(matches!(parse_reply(UpstreamEra::Modern, task), Err(UpstreamError::Malformed(_))));
    }
}
