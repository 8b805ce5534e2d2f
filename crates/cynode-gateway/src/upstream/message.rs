//! JSON-RPC messages: ours are written, theirs are read, and what is inside is left as it is.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Call, Progress, Reply, UpstreamError};

/// The revision of the modern era.
pub(super) const MODERN: &str = "2026-07-28";
/// The revisions of the legacy era, the one we ask for first.
pub(super) const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// A header does not say what the body says.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// The revision is not one of the server's.
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// Self-contained requests.
    Modern,
    /// Requests after a handshake, at the revision agreed on in it.
    Legacy(&'static str),
}

impl Era {
    /// The revision spoken.
    pub(super) const fn version(self) -> &'static str {
        match self {
            Self::Modern => MODERN,
            Self::Legacy(version) => version,
        }
    }
}

#[derive(Serialize)]
struct Request<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct Notification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

#[derive(Serialize)]
struct Implementation {
    name: &'static str,
    version: &'static str,
}

/// Whom servers see. The protocol wants a name; it is a value, not a field of our own.
const SELF: Implementation = Implementation { name: "cynode", version: env!("CARGO_PKG_VERSION") };

/// What the client can do: what the agent's own client said, or nothing.
#[derive(Serialize)]
#[serde(untagged)]
enum Capabilities<'a> {
    Said(&'a RawValue),
    None {},
}

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(
        rename = "io.modelcontextprotocol/protocolVersion",
        skip_serializing_if = "Option::is_none"
    )]
    version: Option<&'static str>,
    #[serde(
        rename = "io.modelcontextprotocol/clientInfo",
        skip_serializing_if = "Option::is_none"
    )]
    client: Option<Implementation>,
    #[serde(
        rename = "io.modelcontextprotocol/clientCapabilities",
        skip_serializing_if = "Option::is_none"
    )]
    capabilities: Option<Capabilities<'a>>,
    #[serde(rename = "progressToken", skip_serializing_if = "Option::is_none")]
    progress: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl<'a> Meta<'a> {
    /// The context of a request: all of it in the modern era, nothing in the legacy one.
    const fn new(era: Era, capabilities: Option<&'a RawValue>) -> Self {
        match era {
            Era::Modern => Self {
                version: Some(MODERN),
                client: Some(SELF),
                capabilities: Some(match capabilities {
                    Some(said) => Capabilities::Said(said),
                    None => Capabilities::None {},
                }),
                progress: None,
                traceparent: None,
            },
            Era::Legacy(_) => Self {
                version: None,
                client: None,
                capabilities: None,
                progress: None,
                traceparent: None,
            },
        }
    }

    /// Leaves out what is empty.
    fn some(self) -> Option<Self> {
        let used = self.version.is_some() || self.progress.is_some() || self.traceparent.is_some();
        used.then_some(self)
    }
}

fn request<P: Serialize>(id: u64, method: &str, params: P) -> Result<Vec<u8>, UpstreamError> {
    encode(&Request { jsonrpc: "2.0", id, method, params })
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, UpstreamError> {
    // Plain structs and JSON that has been read before: writing them cannot fail.
    serde_json::to_vec(message).map_err(UpstreamError::unreachable)
}

/// Asks what the server speaks, in the words of the modern era.
pub(super) fn discover(id: u64) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    struct Params<'a> {
        #[serde(rename = "_meta")]
        meta: Meta<'a>,
    }
    request(id, "server/discover", Params { meta: Meta::new(Era::Modern, None) })
}

/// Greets a server of the legacy era. We offer it nothing.
pub(super) fn initialize(id: u64) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        protocol_version: &'a str,
        capabilities: Capabilities<'a>,
        client_info: Implementation,
    }
    let params = Params {
        protocol_version: LEGACY[0],
        capabilities: Capabilities::None {},
        client_info: SELF,
    };
    request(id, "initialize", params)
}

/// Ends the greeting.
pub(super) fn initialized() -> Result<Vec<u8>, UpstreamError> {
    encode(&Notification::<()> {
        jsonrpc: "2.0",
        method: "notifications/initialized",
        params: None,
    })
}

/// Asks for a page of the tools.
pub(super) fn list(id: u64, era: Era, cursor: Option<&str>) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    struct Params<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<&'a str>,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<Meta<'a>>,
    }
    request(id, "tools/list", Params { cursor, meta: Meta::new(era, None).some() })
}

/// Calls a tool. The request's id doubles as the token of its progress.
pub(super) fn call(id: u64, era: Era, call: &Call<'_>) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        name: &'a str,
        arguments: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_responses: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_state: Option<&'a RawValue>,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<Meta<'a>>,
    }
    if call.input.is_some() && era != Era::Modern {
        // It spoke the modern era when it asked. What it asked for cannot be told it any more.
        return Err(UpstreamError::Malformed("the server takes no input responses"));
    }
    let mut meta = Meta::new(era, call.capabilities);
    meta.progress = call.progress.is_some().then_some(id);
    meta.traceparent = call.trace;
    let params = Params {
        name: call.tool,
        arguments: call.arguments,
        input_responses: call.input.and_then(|input| input.responses),
        request_state: call.input.and_then(|input| input.state),
        meta: meta.some(),
    };
    request(id, "tools/call", params)
}

/// Withdraws a request.
pub(super) fn cancelled(id: u64) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        request_id: u64,
    }
    encode(&Notification {
        jsonrpc: "2.0",
        method: "notifications/cancelled",
        params: Some(Params { request_id: id }),
    })
}

/// Answers what a server asks us: a ping with a pong, everything else with "method not found".
pub(super) fn answer_to(id: &RawValue, method: &str) -> Result<Vec<u8>, UpstreamError> {
    #[derive(Serialize)]
    struct Pong {}
    #[derive(Serialize)]
    struct NotFound {
        code: i64,
        message: &'static str,
    }
    #[derive(Serialize)]
    struct Response<'a> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Pong>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<NotFound>,
    }
    let ping = method == "ping";
    encode(&Response {
        jsonrpc: "2.0",
        id,
        result: ping.then_some(Pong {}),
        error: (!ping).then_some(NotFound { code: -32601, message: "Method not found" }),
    })
}

/// What a server sent.
#[derive(Debug)]
pub(super) enum Message<'a> {
    /// An answer to one of our requests. Errors about a request it could not read have no id.
    Answer { id: Option<u64>, outcome: Result<&'a RawValue, UpstreamError> },
    /// A request to us.
    Request { id: &'a RawValue, method: Cow<'a, str> },
    /// How far one of our requests has come.
    Progress { token: u64, progress: Progress },
    /// Any other notification.
    Other,
}

#[derive(Deserialize)]
struct Incoming<'a> {
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

/// Reads one message.
pub(super) fn read(bytes: &[u8]) -> Result<Message<'_>, UpstreamError> {
    let incoming: Incoming<'_> = serde_json::from_slice(bytes)
        .map_err(|_| UpstreamError::Malformed("not a JSON-RPC message"))?;
    match incoming {
        Incoming { method: Some(method), id: Some(id), .. } => Ok(Message::Request { id, method }),
        Incoming { method: Some(method), params, .. } => Ok(notification(&method, params)),
        Incoming { id, error: Some(ErrorObject { code, message, data }), result: None, .. } => {
            let data = data.map(ToOwned::to_owned);
            let outcome = Err(UpstreamError::Protocol { code, message, data });
            Ok(Message::Answer { id: id.and_then(number), outcome })
        }
        Incoming { id: Some(id), result: Some(result), error: None, .. } => {
            Ok(Message::Answer { id: number(id), outcome: Ok(result) })
        }
        Incoming { .. } => {
            Err(UpstreamError::Malformed("neither request, answer nor notification"))
        }
    }
}

fn number(id: &RawValue) -> Option<u64> {
    id.get().parse().ok()
}

fn notification<'a>(method: &str, params: Option<&'a RawValue>) -> Message<'a> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "progressToken")]
        token: u64,
        #[serde(flatten)]
        progress: Progress,
    }
    if method != "notifications/progress" {
        return Message::Other;
    }
    // A token that is not a number of ours belongs to nobody here.
    params
        .and_then(|params| serde_json::from_str(params.get()).ok())
        .map_or(Message::Other, |Params { token, progress }| Message::Progress { token, progress })
}

/// What the server speaks according to its answer to [`discover`]: `None` if not the modern era.
pub(super) fn discovered(result: &RawValue) -> Option<Era> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
    }
    let discovered: Discovered = serde_json::from_str(result.get()).ok()?;
    discovered.supported_versions.iter().any(|version| version == MODERN).then_some(Era::Modern)
}

/// Whether an error says that the server speaks the modern era, in our revision.
pub(super) fn names_modern(error: &UpstreamError) -> bool {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let UpstreamError::Protocol { code: UNSUPPORTED_VERSION, data: Some(data), .. } = error else {
        return false;
    };
    serde_json::from_str(data.get())
        .is_ok_and(|Data { supported }| supported.iter().any(|version| version == MODERN))
}

/// The revision agreed on in a legacy greeting.
pub(super) fn greeted(result: &RawValue) -> Result<Era, UpstreamError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Greeted<'a> {
        #[serde(borrow)]
        protocol_version: Cow<'a, str>,
    }
    let Greeted { protocol_version } = serde_json::from_str(result.get())
        .map_err(|_| UpstreamError::Malformed("the greeting names no revision"))?;
    LEGACY
        .into_iter()
        .find(|version| *version == protocol_version)
        .map(Era::Legacy)
        .ok_or(UpstreamError::Malformed("the greeting names a revision that does not exist"))
}

/// What the result of a call is.
pub(super) fn reply(era: Era, result: Box<RawValue>) -> Result<Reply, UpstreamError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Glance<'a> {
        #[serde(default)]
        is_error: bool,
        #[serde(borrow)]
        result_type: Option<Cow<'a, str>>,
    }
    let Glance { is_error, result_type } = serde_json::from_str(result.get())
        .map_err(|_| UpstreamError::Malformed("the result of a call"))?;
    match (era, result_type.as_deref()) {
        (Era::Legacy(_), _) | (Era::Modern, None | Some("complete")) => {
            Ok(Reply::Result { result, is_error })
        }
        (Era::Modern, Some("input_required")) => Ok(Reply::InputRequired(result)),
        // Such as a task, which needs an extension that we did not declare.
        (Era::Modern, Some(_)) => Err(UpstreamError::Malformed("a result of an unknown type")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use serde_json::{Number, Value, json};

    use super::super::Input;
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
        for era in [Era::Modern, Era::Legacy(LEGACY[0])] {
            let written = text(call(7, era, &Call::new("t", &odd)));
            assert!(written.contains(odd.get()), "{written}");
        }
    }

    #[test]
    fn a_modern_call_carries_its_context() {
        let arguments = raw("{}");
        let capabilities = raw(r#"{"elicitation":{"form":{}}}"#);
        let state = raw(r#""opaque""#);
        let responses = raw(r#"{"q":{"action":"accept"}}"#);
        let written = text(call(
            7,
            Era::Modern,
            &Call {
                trace: Some("00-1-2-01"),
                capabilities: Some(&capabilities),
                input: Some(Input { responses: Some(&responses), state: Some(&state) }),
                ..Call::new("t", &arguments)
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
            text(call(7, Era::Legacy(LEGACY[0]), &Call::new("t", &arguments))),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":{"a":1}}}"#
        );
    }

    #[test]
    fn the_second_round_of_a_call_is_not_sent_to_a_legacy_server() {
        let arguments = raw("{}");
        let input = Some(Input { responses: None, state: None });
        let outcome =
            call(7, Era::Legacy(LEGACY[0]), &Call { input, ..Call::new("t", &arguments) });
        assert!(matches!(outcome, Err(UpstreamError::Malformed(_))));
    }

    #[test]
    fn a_ping_is_answered_and_sampling_is_not_found() {
        let id = raw(r#""a""#);
        assert_eq!(text(answer_to(&id, "ping")), r#"{"jsonrpc":"2.0","id":"a","result":{}}"#);
        assert_eq!(
            text(answer_to(&id, "sampling/createMessage")),
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
            assert!(read(garbage.as_bytes()).is_err(), "{garbage}");
        }
    }

    #[test]
    fn progress_is_read() {
        let bytes = br#"{"jsonrpc":"2.0","method":"notifications/progress",
            "params":{"progressToken":4,"progress":1,"total":2.5,"message":"half"}}"#;
        let Message::Progress { token, progress } = read(bytes).unwrap() else { panic!() };
        assert_eq!(token, 4);
        assert_eq!(
            progress,
            Progress {
                progress: 1.into(),
                total: Number::from_f64(2.5),
                message: Some("half".to_owned()),
            }
        );
    }

    #[test]
    fn a_task_is_not_taken_for_a_result() {
        let task = to_raw_value(&json!({"resultType": "task"})).unwrap();
        assert!(matches!(reply(Era::Modern, task), Err(UpstreamError::Malformed(_))));
    }
}
