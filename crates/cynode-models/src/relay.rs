//! Relays a provider's stream to a client, in the client's dialect, and observes it.

use bytes::{Bytes, BytesMut};
use cynode_net::sse::{SseEvent, SseEventParser, SseEventTooLong};
use serde_json::Value;

use crate::{
    dialect::{
        Dialect, ResponseContext, StreamDecoder, StreamEncoder,
        canonical::{
            CanonicalEvent, CanonicalRequest, CanonicalResponse, ModelError, ModelErrorKind,
            ResponseAssembler,
        },
    },
    stream_observer::{ResponseObservation, ResponseObserver},
    tools::ToolRestorer,
};

/// Maximum size of one event in bytes.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Maximum size of one response in bytes. It bounds the memory for the parts that are assembled, held back or translated.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Counts the bytes of a response.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseMeter(usize);

impl ResponseMeter {
    /// Counts the next bytes. Fails if the response is too long.
    pub fn count_bytes(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        self.0 = self.0.saturating_add(bytes.len());
        if self.0 > MAX_RESPONSE_BYTES {
            let told = format!("the provider's answer is longer than {MAX_RESPONSE_BYTES} bytes");
            return Err(ModelError::new(ModelErrorKind::Upstream, told));
        }
        Ok(())
    }
}

/// Relay of one response.
#[derive(Debug)]
pub struct StreamRelay {
    client: Dialect,
    reply: ResponseContext,
    parser: SseEventParser,
    events: Vec<SseEvent>,
    observer: ResponseObserver,
    meter: ResponseMeter,
    way: RelayMode,
    /// Incomplete event at the end of the bytes so far, when bytes are relayed unchanged.
    held: BytesMut,
}

#[derive(Debug)]
enum RelayMode {
    /// Client and provider use the same dialect: bytes are relayed unchanged, in complete events.
    Same,
    /// Client and provider use Chat. The client did not request usage, but CyNode did: the usage chunk is removed.
    WithoutUsage,
    /// Every event is decoded and encoded in the other dialect.
    Translated(Box<StreamTranslation>),
}

#[derive(Debug)]
struct StreamTranslation {
    reader: StreamDecoder,
    restore: ToolRestorer,
    writer: StreamEncoder,
    /// Name of the model, if the provider does not send one.
    model: String,
}

impl StreamTranslation {
    /// Encodes events in the client's dialect, after the observer has seen them.
    fn translate_events(
        &mut self,
        events: Vec<CanonicalEvent>,
        observer: &mut ResponseObserver,
        out: &mut BytesMut,
    ) {
        for mut event in events {
            if let CanonicalEvent::Started { model, .. } = &mut event
                && model.is_empty()
            {
                model.clone_from(&self.model);
            }
            observer.record_event(&event);
            // An id of another dialect would be invalid here: the client gets the id of the response context.
            if let CanonicalEvent::Started { id, .. } = &mut event {
                id.clear();
            }
            for event in self.restore.restore_event(event) {
                out.extend_from_slice(&self.writer.encode_event(event));
            }
        }
    }
}

impl StreamRelay {
    /// Creates a relay from a provider to a client. `request` is the client's request.
    pub fn new(
        client: Dialect,
        provider: Dialect,
        request: &CanonicalRequest,
        reply: ResponseContext,
    ) -> Self {
        let way = if client != provider {
            RelayMode::Translated(Box::new(StreamTranslation {
                reader: StreamDecoder::new(provider),
                restore: ToolRestorer::new(request, provider),
                writer: StreamEncoder::new(client, reply.clone()),
                model: request.model.clone(),
            }))
        } else if client == Dialect::Chat && !request.include_usage {
            RelayMode::WithoutUsage
        } else {
            RelayMode::Same
        };
        let parser = SseEventParser::new(MAX_EVENT_BYTES);
        let observer = ResponseObserver::new(provider);
        let (events, meter) = (Vec::new(), ResponseMeter::default());
        Self { client, reply, parser, events, observer, meter, way, held: BytesMut::new() }
    }

    /// Relays the next bytes of the provider. Returns the bytes for the client.
    pub fn push_bytes(&mut self, bytes: Bytes) -> Result<Bytes, ModelError> {
        let too_long =
            |error: SseEventTooLong| ModelError::new(ModelErrorKind::Upstream, error.to_string());
        self.meter.count_bytes(&bytes)?;
        self.parser.push_bytes(&bytes, &mut self.events).map_err(too_long)?;
        let mut out = BytesMut::new();
        for event in self.events.drain(..) {
            if let RelayMode::Translated(translation) = &mut self.way {
                let events = translation.reader.decode_event(&event);
                translation.translate_events(events, &mut self.observer, &mut out);
                continue;
            }
            self.observer.observe_event(&event);
            if matches!(self.way, RelayMode::WithoutUsage) && !is_usage_chunk(&event) {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(event.data.replace('\n', "\ndata: ").as_bytes());
                out.extend_from_slice(b"\n\n");
            }
        }
        Ok(if matches!(self.way, RelayMode::Same) {
            self.complete_events(bytes)
        } else {
            out.freeze()
        })
    }

    /// Returns the bytes up to the last end of an event. The rest is held back: after a partial event the client could not parse an error
    /// event that is appended.
    fn complete_events(&mut self, mut bytes: Bytes) -> Bytes {
        let whole = self.parser.complete_len();
        if whole > 0 && !self.held.is_empty() {
            self.held.extend_from_slice(&bytes[..whole]);
            let out = self.held.split().freeze();
            self.held.extend_from_slice(&bytes[whole..]);
            return out;
        }
        self.held.extend_from_slice(&bytes[whole..]);
        bytes.truncate(whole);
        bytes
    }

    /// Returns whether the response reached the end that its dialect defines. No content follows it.
    pub const fn has_ended(&self) -> bool {
        self.observer.has_ended()
    }

    /// Finishes the relay after the end of the provider's stream. Returns the remaining bytes for the client, and the observation.
    pub fn finish_stream(mut self) -> (Bytes, ResponseObservation) {
        let mut out = BytesMut::new();
        if let RelayMode::Translated(translation) = &mut self.way {
            let events = translation.reader.finish_stream();
            translation.translate_events(events, &mut self.observer, &mut out);
            return (out.freeze(), self.observer.into_observation());
        }
        let behind = self.has_ended();
        let seen = self.observer.finish_stream();
        if let Some(error) = &seen.error
            && seen.stop.is_none()
            && *error == crate::dialect::canonical::stream_cut_short_error()
        {
            let mut writer = StreamEncoder::new(self.client, with_observed_id(self.reply, &seen));
            out.extend_from_slice(&writer.encode_event(CanonicalEvent::Failed(error.clone())));
        } else if !behind {
            // Some providers omit the end of the last event.
            out = self.held;
        }
        (out.freeze(), seen)
    }

    /// Ends the relay after a failure of the provider. Returns the error event for the client, and the observation so far. A failure after
    /// the end of the response is ignored.
    pub fn fail_stream(mut self, error: ModelError) -> (Bytes, ResponseObservation) {
        if self.has_ended() {
            return (Bytes::new(), self.observer.into_observation());
        }
        let failed = CanonicalEvent::Failed(error.clone());
        let (out, mut seen) = match &mut self.way {
            RelayMode::Translated(translation) => {
                (translation.writer.encode_event(failed), self.observer.into_observation())
            }
            RelayMode::Same | RelayMode::WithoutUsage => {
                let seen = self.observer.finish_stream();
                let mut writer =
                    StreamEncoder::new(self.client, with_observed_id(self.reply, &seen));
                (writer.encode_event(failed), seen)
            }
        };
        seen.error = Some(error);
        (out, seen)
    }
}

/// Returns the context with the id under which the response began. Events that are added to an unchanged stream must have it.
fn with_observed_id(mut reply: ResponseContext, seen: &ResponseObservation) -> ResponseContext {
    if !seen.id.is_empty() {
        reply.id.clone_from(&seen.id);
    }
    reply
}

/// Assembles a streamed response while it is relayed, to record it.
#[derive(Debug)]
pub struct StreamAssembler {
    parser: SseEventParser,
    reader: StreamDecoder,
    gather: ResponseAssembler,
    meter: ResponseMeter,
    failed: Option<ModelError>,
}

impl StreamAssembler {
    /// Creates an assembler for a response in that dialect.
    pub fn new(provider: Dialect) -> Self {
        let (parser, reader) = (SseEventParser::new(MAX_EVENT_BYTES), StreamDecoder::new(provider));
        let (gather, meter) = (ResponseAssembler::default(), ResponseMeter::default());
        Self { parser, reader, gather, meter, failed: None }
    }

    /// Adds the next bytes. After a failure, further bytes are ignored.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.meter.count_bytes(bytes) {
            self.gather = ResponseAssembler::default();
            self.failed = Some(error);
            return;
        }
        let mut events = Vec::new();
        if self.parser.push_bytes(bytes, &mut events).is_err() {
            self.failed = Some(crate::dialect::canonical::stream_cut_short_error());
        }
        for event in events {
            for event in self.reader.decode_event(&event) {
                self.gather.push_event(&event);
            }
        }
    }

    /// Returns whether the assembly has failed.
    pub const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns the response if it is complete.
    pub fn finish_response(mut self) -> Result<CanonicalResponse, ModelError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        for event in self.reader.finish_stream() {
            self.gather.push_event(&event);
        }
        self.gather.finish_response()
    }
}

/// Returns whether a chunk of Chat holds only the token usage.
fn is_usage_chunk(event: &SseEvent) -> bool {
    // Fast path: most chunks need no JSON parsing.
    if !event.data.contains("\"usage\"") {
        return false;
    }
    let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else { return false };
    let empty = chunk.get("choices").and_then(Value::as_array).is_none_or(Vec::is_empty);
    empty && chunk.get("usage").is_some_and(Value::is_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dialect::canonical::TokenUsage;

    const CHAT: &str = concat!(
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,",
        "\"delta\":{\"role\":\"assistant\",\"content\":\"he\"},\"finish_reason\":null}]}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,",
        "\"delta\":{\"content\":\"llo\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],",
        "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n",
        "data: [DONE]\n\n",
    );

    fn relay(client: Dialect, include_usage: bool) -> StreamRelay {
        let request = CanonicalRequest {
            model: "m".into(),
            stream: true,
            include_usage,
            ..CanonicalRequest::default()
        };
        let reply = ResponseContext::for_request(&request, 1, "c");
        StreamRelay::new(client, Dialect::Chat, &request, reply)
    }

    /// What the client gets, and what was seen, when the provider's bytes come in pieces of that size.
    fn passed(mut relay: StreamRelay, text: &str, size: usize) -> (String, ResponseObservation) {
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            out.extend_from_slice(&relay.push_bytes(Bytes::copy_from_slice(piece)).unwrap());
        }
        let (rest, seen) = relay.finish_stream();
        out.extend_from_slice(&rest);
        (String::from_utf8(out).unwrap(), seen)
    }

    #[test]
    fn in_the_same_dialect_the_bytes_go_on_as_they_are_wherever_they_are_cut() {
        for size in 1..CHAT.len() {
            let (out, seen) = passed(relay(Dialect::Chat, true), CHAT, size);
            assert_eq!(out, CHAT);
            assert_eq!(
                seen.usage,
                Some(TokenUsage { input: 5, output: 2, ..TokenUsage::default() })
            );
            assert_eq!((seen.output_bytes, seen.error), (5, None));
        }
    }

    #[test]
    fn a_client_that_did_not_ask_what_was_used_is_not_told_and_we_know_it_all_the_same() {
        let expected: String =
            CHAT.split_inclusive("\n\n").filter(|event| !event.contains("usage")).collect();
        for size in [1, 7, CHAT.len()] {
            let (out, seen) = passed(relay(Dialect::Chat, false), CHAT, size);
            assert_eq!(out, expected);
            assert_eq!(
                seen.usage,
                Some(TokenUsage { input: 5, output: 2, ..TokenUsage::default() })
            );
        }
    }

    #[test]
    fn in_another_dialect_the_client_gets_the_same_words_in_its_own() {
        let (out, seen) = passed(relay(Dialect::Messages, true), CHAT, 10);
        assert_eq!(seen.usage, Some(TokenUsage { input: 5, output: 2, ..TokenUsage::default() }));
        let mut parser = SseEventParser::new(1 << 20);
        let mut events = Vec::new();
        parser.push_bytes(out.as_bytes(), &mut events).unwrap();
        let names: Vec<_> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names.first(), Some(&"message_start"), "{out}");
        assert_eq!(names.last(), Some(&"message_stop"), "{out}");
        let words: String = events
            .iter()
            .filter_map(|event| {
                let data: Value = serde_json::from_str(&event.data).unwrap();
                data["delta"]["text"].as_str().map(str::to_owned)
            })
            .collect();
        assert_eq!(words, "hello");
        assert_eq!(json!(seen.stop), json!("end_turn"));
    }

    #[test]
    fn a_model_that_the_provider_does_not_name_is_called_as_the_client_called_it() {
        let nameless = CHAT.replace("\"model\":\"m\",", "");
        let (out, _) = passed(relay(Dialect::Messages, true), &nameless, 10);
        assert!(out.contains("\"model\":\"m\""), "{out}");
    }

    /// The ids of the answer that the client was told, in the order of its events.
    fn ids(out: &str) -> Vec<String> {
        let mut events = Vec::new();
        SseEventParser::new(1 << 20).push_bytes(out.as_bytes(), &mut events).unwrap();
        let told = events.iter().filter_map(|event| {
            let data: Value = serde_json::from_str(&event.data).ok()?;
            let places = ["/response/id", "/message/id"];
            places.iter().find_map(|place| data.pointer(place)?.as_str().map(str::to_owned))
        });
        told.collect()
    }

    #[test]
    fn an_answer_has_one_name_from_its_beginning_to_its_failure_and_in_the_clients_dialect() {
        let cut =
            CHAT[..CHAT.find("llo").unwrap()].replace("\"id\":\"c\"", "\"id\":\"chatcmpl-1\"");
        for (client, ours) in [(Dialect::Responses, "resp_1"), (Dialect::Messages, "msg_1")] {
            let request =
                CanonicalRequest { model: "m".into(), stream: true, ..CanonicalRequest::default() };
            let relay = || {
                StreamRelay::new(
                    client,
                    Dialect::Chat,
                    &request,
                    ResponseContext::for_request(&request, 1, ours),
                )
            };
            let (out, seen) = passed(relay(), &cut, 9);
            assert_eq!(seen.id, "chatcmpl-1", "we know the provider's");
            assert!(!out.contains("chatcmpl"), "{out}");
            assert!(!ids(&out).is_empty() && ids(&out).iter().all(|id| id == ours), "{out}");
            let mut failing = relay();
            let begun = failing.push_bytes(Bytes::from(cut.clone())).unwrap();
            let (failed, _) =
                failing.fail_stream(ModelError::new(ModelErrorKind::Timeout, "silent"));
            let out = [begun, failed].concat();
            let told = ids(&String::from_utf8_lossy(&out));
            assert!(!told.is_empty() && told.iter().all(|id| id == ours), "{told:?}");
        }
        // Where the bytes go on as they are, the name is the provider's to the end.
        let request =
            CanonicalRequest { model: "m".into(), stream: true, ..CanonicalRequest::default() };
        let begun = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\
            \"response\":{\"id\":\"resp_theirs\",\"object\":\"response\",\"created_at\":1,\"status\":\"in_progress\",\
            \"model\":\"m\",\"output\":[]}}\n\n";
        let same = || {
            let reply = ResponseContext::for_request(&request, 1, "resp_ours");
            let mut relay =
                StreamRelay::new(Dialect::Responses, Dialect::Responses, &request, reply);
            relay.push_bytes(Bytes::from_static(begun.as_bytes())).unwrap();
            relay
        };
        let (failed, _) = same().fail_stream(ModelError::new(ModelErrorKind::Timeout, "silent"));
        assert_eq!(ids(&String::from_utf8_lossy(&failed)), ["resp_theirs"]);
        let (cut, _) = same().finish_stream();
        assert_eq!(ids(&String::from_utf8_lossy(&cut)), ["resp_theirs"]);
    }

    #[test]
    fn a_stream_that_breaks_off_ends_with_an_error_in_the_clients_dialect() {
        let cut = &CHAT[..CHAT.find("llo").unwrap()];
        for client in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
            broken_off(|| relay(client, true), cut);
        }
        broken_off(|| relay(Dialect::Chat, false), cut);
    }

    #[test]
    fn a_stream_that_breaks_off_within_an_event_ends_with_an_error_that_can_be_read() {
        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\
            \"role\":\"assistant\",\"model\":\"m\",\"content\":[]}}\n\nevent: content_block_start\ndata: {\"type\":\"content_bl";
        let responses = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\
            \"response\":{\"id\":\"r\",\"object\":\"response\",\"created_at\":1,\"status\":\"in_progress\",\
            \"model\":\"m\",\"output\":[]}}\n\nevent: response.output_item.added\ndata: {\"type\":\"response.out";
        let request =
            CanonicalRequest { model: "m".into(), stream: true, ..CanonicalRequest::default() };
        for (dialect, cut) in [(Dialect::Messages, messages), (Dialect::Responses, responses)] {
            let same = || {
                StreamRelay::new(
                    dialect,
                    dialect,
                    &request,
                    ResponseContext::for_request(&request, 1, "c"),
                )
            };
            for end in ["\n", "\r\n", "\r"] {
                broken_off(same, &cut.replace('\n', end));
            }
        }
    }

    /// However such a stream breaks off, the client can read every event, and the last is an error.
    fn broken_off(relay: impl Fn() -> StreamRelay, cut: &str) {
        let read = |out: &str| -> Vec<Value> {
            let mut events = Vec::new();
            SseEventParser::new(1 << 20).push_bytes(out.as_bytes(), &mut events).unwrap();
            let data = events.iter().map(|event| serde_json::from_str::<Value>(&event.data));
            data.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error} in {out}"))
        };
        for size in [1, 9, cut.len()] {
            let (out, seen) = passed(relay(), cut, size);
            assert_eq!(seen.error, Some(crate::dialect::canonical::stream_cut_short_error()));
            let told = read(&out);
            assert!(told.len() > 1 && told.last().unwrap().to_string().contains("error"), "{out}");
            let (mut failing, mut out) = (relay(), Vec::new());
            for piece in cut.as_bytes().chunks(size) {
                out.extend_from_slice(&failing.push_bytes(Bytes::copy_from_slice(piece)).unwrap());
            }
            let (rest, seen) =
                failing.fail_stream(ModelError::new(ModelErrorKind::Timeout, "silent"));
            out.extend_from_slice(&rest);
            let out = String::from_utf8(out).unwrap();
            assert!(read(&out).last().unwrap().to_string().contains("silent"), "{out}");
            assert_eq!(seen.error.unwrap().kind, ModelErrorKind::Timeout);
        }
    }

    #[test]
    fn half_an_event_is_held_back_and_what_lies_between_events_is_not() {
        let pushed =
            ["data: {\"a\":", "1}\r", "\n\r", "\n: ping\n", ": pi", "ng\n\nda", "ta: {}\n"];
        let mut relay = relay(Dialect::Chat, true);
        let told = pushed.map(|piece| {
            let out = relay.push_bytes(Bytes::from_static(piece.as_bytes())).unwrap();
            String::from_utf8(out.to_vec()).unwrap()
        });
        let expected = ["", "", "data: {\"a\":1}\r\n\r", "\n: ping\n", "", ": ping\n\n", ""];
        assert_eq!(told, expected);
    }

    #[test]
    fn an_answer_ends_where_its_dialect_says_and_a_failure_behind_that_is_not_told() {
        let (begun, end) = CHAT.split_at(CHAT.find("data: [DONE]").unwrap());
        for client in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
            for include_usage in [true, false] {
                let mut relay = relay(client, include_usage);
                relay.push_bytes(Bytes::from_static(begun.as_bytes())).unwrap();
                assert!(!relay.has_ended(), "{client}: what was used comes behind the reason");
                relay.push_bytes(Bytes::from_static(end.as_bytes())).unwrap();
                assert!(relay.has_ended(), "{client}");
                let (out, seen) =
                    relay.fail_stream(ModelError::new(ModelErrorKind::Timeout, "silent"));
                let used = Some(TokenUsage { input: 5, output: 2, ..TokenUsage::default() });
                assert_eq!((out, seen.usage, seen.error), (Bytes::new(), used, None), "{client}");
            }
        }
    }

    fn endless() -> ModelError {
        let told = format!("the provider's answer is longer than {MAX_RESPONSE_BYTES} bytes");
        ModelError::new(ModelErrorKind::Upstream, told)
    }

    #[test]
    fn an_answer_without_an_end_is_broken_off_in_the_clients_dialect() {
        let first = CHAT.find("\n\n").unwrap() + 2;
        let piece = Bytes::from_static(&CHAT.as_bytes()[..first]);
        for client in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
            let mut relay = relay(client, true);
            relay.push_bytes(piece.clone()).unwrap();
            assert_eq!(relay.meter.0, piece.len(), "{client}");
            relay.meter.0 = MAX_RESPONSE_BYTES - piece.len();
            relay.push_bytes(piece.clone()).unwrap();
            assert_eq!(relay.push_bytes(piece.clone()), Err(endless()), "{client}");
            let (out, seen) = relay.fail_stream(endless());
            assert!(String::from_utf8_lossy(&out).contains(&endless().message), "{client}");
            assert_eq!(seen.error, Some(endless()), "{client}");
        }
    }

    #[test]
    fn an_answer_without_an_end_is_not_gathered() {
        let mut gathering = StreamAssembler::new(Dialect::Chat);
        gathering.push_bytes(CHAT.as_bytes());
        // What says nothing counts too.
        let silence = format!(":{}\n", " ".repeat(MAX_EVENT_BYTES / 2));
        for _ in 0..=MAX_RESPONSE_BYTES / silence.len() {
            assert!(!gathering.has_failed());
            gathering.push_bytes(silence.as_bytes());
        }
        assert!(gathering.has_failed());
        assert_eq!(gathering.finish_response(), Err(endless()));
    }
}
