//! Passes a provider's stream on to a client, in the client's dialect, and watches it go by.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use crate::{
    dialect::{Dialect, Reply, StreamReader, StreamWriter},
    observe::{Observer, Seen},
    sse::{Parser, SseEvent},
    talk::{Answer, Event, Gather, Kind, ModelError, Request},
    tools::Restore,
};

/// Most bytes of one event.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// Most bytes of one answer: what is gathered, held back or translated of it is in memory.
pub const MOST_ANSWER: usize = 64 * 1024 * 1024;

/// Counts the bytes of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter(usize);

impl Meter {
    /// Takes the next bytes, unless the answer is too long.
    pub fn count(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        self.0 = self.0.saturating_add(bytes.len());
        if self.0 > MOST_ANSWER {
            let told = format!("the provider's answer is longer than {MOST_ANSWER} bytes");
            return Err(ModelError::new(Kind::Upstream, told));
        }
        Ok(())
    }
}

/// One answer on its way.
#[derive(Debug)]
pub struct Relay {
    client: Dialect,
    reply: Reply,
    parser: Parser,
    events: Vec<SseEvent>,
    observer: Observer,
    meter: Meter,
    way: Way,
    /// The beginning of an event whose end has not come, where bytes go on as they are.
    held: BytesMut,
}

#[derive(Debug)]
enum Way {
    /// Both speak the same: bytes go on as they are, whole events at a time.
    Same,
    /// Both speak Chat, and the client did not ask what was used: we did.
    WithoutUsage,
    /// Every event is read and said anew.
    Translated(Box<Translation>),
}

#[derive(Debug)]
struct Translation {
    reader: StreamReader,
    restore: Restore,
    writer: StreamWriter,
    /// What the model is called if the provider does not say.
    model: String,
}

impl Translation {
    /// Says events anew, after the observer has seen them.
    fn say(&mut self, events: Vec<Event>, observer: &mut Observer, out: &mut BytesMut) {
        for mut event in events {
            if let Event::Started { model, .. } = &mut event
                && model.is_empty()
            {
                model.clone_from(&self.model);
            }
            observer.take(&event);
            // A name in the words of another dialect is none: the client gets ours.
            if let Event::Started { id, .. } = &mut event {
                id.clear();
            }
            for event in self.restore.event(event) {
                out.extend_from_slice(&self.writer.write(event));
            }
        }
    }
}

impl Relay {
    /// The way from a provider to a client. `request` is what the client asked.
    pub fn new(client: Dialect, provider: Dialect, request: &Request, reply: Reply) -> Self {
        let way = if client != provider {
            Way::Translated(Box::new(Translation {
                reader: StreamReader::new(provider),
                restore: Restore::new(request, provider),
                writer: StreamWriter::new(client, reply.clone()),
                model: request.model.clone(),
            }))
        } else if client == Dialect::Chat && !request.include_usage {
            Way::WithoutUsage
        } else {
            Way::Same
        };
        let parser = Parser::new(MOST_BYTES);
        let observer = Observer::new(provider);
        let (events, meter) = (Vec::new(), Meter::default());
        Self { client, reply, parser, events, observer, meter, way, held: BytesMut::new() }
    }

    /// What the client gets for the next bytes of the provider.
    pub fn push(&mut self, bytes: Bytes) -> Result<Bytes, ModelError> {
        let too_long =
            |error: crate::sse::TooLong| ModelError::new(Kind::Upstream, error.to_string());
        self.meter.count(&bytes)?;
        self.parser.push(&bytes, &mut self.events).map_err(too_long)?;
        let mut out = BytesMut::new();
        for event in self.events.drain(..) {
            if let Way::Translated(translation) = &mut self.way {
                let events = translation.reader.read(&event);
                translation.say(events, &mut self.observer, &mut out);
                continue;
            }
            self.observer.event(&event);
            if matches!(self.way, Way::WithoutUsage) && !is_usage(&event) {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(event.data.replace('\n', "\ndata: ").as_bytes());
                out.extend_from_slice(b"\n\n");
            }
        }
        Ok(if matches!(self.way, Way::Same) { self.whole_events(bytes) } else { out.freeze() })
    }

    /// The bytes up to the last end of an event. The rest is held back: behind half an event nobody could read what else is said.
    fn whole_events(&mut self, mut bytes: Bytes) -> Bytes {
        let whole = self.parser.whole();
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

    /// Whether the answer came to the end that its dialect has. Nothing that belongs to it comes after that.
    pub const fn ended(&self) -> bool {
        self.observer.ended()
    }

    /// The provider has said all. Gives what the client gets still, and what was seen.
    pub fn end(mut self) -> (Bytes, Seen) {
        let mut out = BytesMut::new();
        if let Way::Translated(translation) = &mut self.way {
            let events = translation.reader.end();
            translation.say(events, &mut self.observer, &mut out);
            return (out.freeze(), self.observer.seen());
        }
        let behind = self.ended();
        let seen = self.observer.end();
        if let Some(error) = &seen.error
            && seen.stop.is_none()
            && *error == crate::talk::cut_short()
        {
            let mut writer = StreamWriter::new(self.client, as_begun(self.reply, &seen));
            out.extend_from_slice(&writer.write(Event::Failed(error.clone())));
        } else if !behind {
            // Some leave out the end of the last event.
            out = self.held;
        }
        (out.freeze(), seen)
    }

    /// The provider failed in the middle. Gives what the client is told, and what was seen until then. A failure behind the end
    /// of the answer is nobody's.
    pub fn fail(mut self, error: ModelError) -> (Bytes, Seen) {
        if self.ended() {
            return (Bytes::new(), self.observer.seen());
        }
        let failed = Event::Failed(error.clone());
        let (out, mut seen) = match &mut self.way {
            Way::Translated(translation) => {
                (translation.writer.write(failed), self.observer.seen())
            }
            Way::Same | Way::WithoutUsage => {
                let seen = self.observer.end();
                let mut writer = StreamWriter::new(self.client, as_begun(self.reply, &seen));
                (writer.write(failed), seen)
            }
        };
        seen.error = Some(error);
        (out, seen)
    }
}

/// What we add to bytes that went on as they are bears the name under which the answer began.
fn as_begun(mut reply: Reply, seen: &Seen) -> Reply {
    if !seen.id.is_empty() {
        reply.id.clone_from(&seen.id);
    }
    reply
}

/// Puts an answer together that passes by, to be kept.
#[derive(Debug)]
pub struct Gathering {
    parser: Parser,
    reader: StreamReader,
    gather: Gather,
    meter: Meter,
    failed: Option<ModelError>,
}

impl Gathering {
    /// Nothing of an answer in that dialect yet.
    pub fn new(provider: Dialect) -> Self {
        let (parser, reader) = (Parser::new(MOST_BYTES), StreamReader::new(provider));
        let (gather, meter) = (Gather::default(), Meter::default());
        Self { parser, reader, gather, meter, failed: None }
    }

    /// Takes the next bytes. After a failure nothing more is kept.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.meter.count(bytes) {
            self.gather = Gather::default();
            self.failed = Some(error);
            return;
        }
        let mut events = Vec::new();
        if self.parser.push(bytes, &mut events).is_err() {
            self.failed = Some(crate::talk::cut_short());
        }
        for event in events {
            for event in self.reader.read(&event) {
                self.gather.take(&event);
            }
        }
    }

    /// Whether nothing can come of it any more.
    pub const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The answer, if it came to its end.
    pub fn finish(mut self) -> Result<Answer, ModelError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        for event in self.reader.end() {
            self.gather.take(&event);
        }
        self.gather.finish()
    }
}

/// Whether a chunk of Chat says nothing but what was used.
fn is_usage(event: &SseEvent) -> bool {
    // Most chunks need no second look.
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
    use crate::talk::Usage;

    const CHAT: &str = concat!(
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,",
        "\"delta\":{\"role\":\"assistant\",\"content\":\"he\"},\"finish_reason\":null}]}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,",
        "\"delta\":{\"content\":\"llo\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],",
        "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n",
        "data: [DONE]\n\n",
    );

    fn relay(client: Dialect, include_usage: bool) -> Relay {
        let request =
            Request { model: "m".into(), stream: true, include_usage, ..Request::default() };
        let reply = Reply::to(&request, 1, "c");
        Relay::new(client, Dialect::Chat, &request, reply)
    }

    /// What the client gets, and what was seen, when the provider's bytes come in pieces of that size.
    fn passed(mut relay: Relay, text: &str, size: usize) -> (String, Seen) {
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            out.extend_from_slice(&relay.push(Bytes::copy_from_slice(piece)).unwrap());
        }
        let (rest, seen) = relay.end();
        out.extend_from_slice(&rest);
        (String::from_utf8(out).unwrap(), seen)
    }

    #[test]
    fn in_the_same_dialect_the_bytes_go_on_as_they_are_wherever_they_are_cut() {
        for size in 1..CHAT.len() {
            let (out, seen) = passed(relay(Dialect::Chat, true), CHAT, size);
            assert_eq!(out, CHAT);
            assert_eq!(seen.usage, Some(Usage { input: 5, output: 2, ..Usage::default() }));
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
            assert_eq!(seen.usage, Some(Usage { input: 5, output: 2, ..Usage::default() }));
        }
    }

    #[test]
    fn in_another_dialect_the_client_gets_the_same_words_in_its_own() {
        let (out, seen) = passed(relay(Dialect::Messages, true), CHAT, 10);
        assert_eq!(seen.usage, Some(Usage { input: 5, output: 2, ..Usage::default() }));
        let mut parser = Parser::new(1 << 20);
        let mut events = Vec::new();
        parser.push(out.as_bytes(), &mut events).unwrap();
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
        Parser::new(1 << 20).push(out.as_bytes(), &mut events).unwrap();
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
            let request = Request { model: "m".into(), stream: true, ..Request::default() };
            let relay =
                || Relay::new(client, Dialect::Chat, &request, Reply::to(&request, 1, ours));
            let (out, seen) = passed(relay(), &cut, 9);
            assert_eq!(seen.id, "chatcmpl-1", "we know the provider's");
            assert!(!out.contains("chatcmpl"), "{out}");
            assert!(!ids(&out).is_empty() && ids(&out).iter().all(|id| id == ours), "{out}");
            let mut failing = relay();
            let begun = failing.push(Bytes::from(cut.clone())).unwrap();
            let (failed, _) = failing.fail(ModelError::new(Kind::Timeout, "silent"));
            let out = [begun, failed].concat();
            let told = ids(&String::from_utf8_lossy(&out));
            assert!(!told.is_empty() && told.iter().all(|id| id == ours), "{told:?}");
        }
        // Where the bytes go on as they are, the name is the provider's to the end.
        let request = Request { model: "m".into(), stream: true, ..Request::default() };
        let begun = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\
            \"response\":{\"id\":\"resp_theirs\",\"object\":\"response\",\"created_at\":1,\"status\":\"in_progress\",\
            \"model\":\"m\",\"output\":[]}}\n\n";
        let same = || {
            let reply = Reply::to(&request, 1, "resp_ours");
            let mut relay = Relay::new(Dialect::Responses, Dialect::Responses, &request, reply);
            relay.push(Bytes::from_static(begun.as_bytes())).unwrap();
            relay
        };
        let (failed, _) = same().fail(ModelError::new(Kind::Timeout, "silent"));
        assert_eq!(ids(&String::from_utf8_lossy(&failed)), ["resp_theirs"]);
        let (cut, _) = same().end();
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
        let request = Request { model: "m".into(), stream: true, ..Request::default() };
        for (dialect, cut) in [(Dialect::Messages, messages), (Dialect::Responses, responses)] {
            let same = || Relay::new(dialect, dialect, &request, Reply::to(&request, 1, "c"));
            for end in ["\n", "\r\n", "\r"] {
                broken_off(same, &cut.replace('\n', end));
            }
        }
    }

    /// However such a stream breaks off, the client can read every event, and the last is an error.
    fn broken_off(relay: impl Fn() -> Relay, cut: &str) {
        let read = |out: &str| -> Vec<Value> {
            let mut events = Vec::new();
            Parser::new(1 << 20).push(out.as_bytes(), &mut events).unwrap();
            let data = events.iter().map(|event| serde_json::from_str::<Value>(&event.data));
            data.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error} in {out}"))
        };
        for size in [1, 9, cut.len()] {
            let (out, seen) = passed(relay(), cut, size);
            assert_eq!(seen.error, Some(crate::talk::cut_short()));
            let told = read(&out);
            assert!(told.len() > 1 && told.last().unwrap().to_string().contains("error"), "{out}");
            let (mut failing, mut out) = (relay(), Vec::new());
            for piece in cut.as_bytes().chunks(size) {
                out.extend_from_slice(&failing.push(Bytes::copy_from_slice(piece)).unwrap());
            }
            let (rest, seen) = failing.fail(ModelError::new(Kind::Timeout, "silent"));
            out.extend_from_slice(&rest);
            let out = String::from_utf8(out).unwrap();
            assert!(read(&out).last().unwrap().to_string().contains("silent"), "{out}");
            assert_eq!(seen.error.unwrap().kind, Kind::Timeout);
        }
    }

    #[test]
    fn half_an_event_is_held_back_and_what_lies_between_events_is_not() {
        let pushed =
            ["data: {\"a\":", "1}\r", "\n\r", "\n: ping\n", ": pi", "ng\n\nda", "ta: {}\n"];
        let mut relay = relay(Dialect::Chat, true);
        let told = pushed.map(|piece| {
            let out = relay.push(Bytes::from_static(piece.as_bytes())).unwrap();
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
                relay.push(Bytes::from_static(begun.as_bytes())).unwrap();
                assert!(!relay.ended(), "{client}: what was used comes behind the reason");
                relay.push(Bytes::from_static(end.as_bytes())).unwrap();
                assert!(relay.ended(), "{client}");
                let (out, seen) = relay.fail(ModelError::new(Kind::Timeout, "silent"));
                let used = Some(Usage { input: 5, output: 2, ..Usage::default() });
                assert_eq!((out, seen.usage, seen.error), (Bytes::new(), used, None), "{client}");
            }
        }
    }

    fn endless() -> ModelError {
        let told = format!("the provider's answer is longer than {MOST_ANSWER} bytes");
        ModelError::new(Kind::Upstream, told)
    }

    #[test]
    fn an_answer_without_an_end_is_broken_off_in_the_clients_dialect() {
        let first = CHAT.find("\n\n").unwrap() + 2;
        let piece = Bytes::from_static(&CHAT.as_bytes()[..first]);
        for client in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
            let mut relay = relay(client, true);
            relay.push(piece.clone()).unwrap();
            assert_eq!(relay.meter.0, piece.len(), "{client}");
            relay.meter.0 = MOST_ANSWER - piece.len();
            relay.push(piece.clone()).unwrap();
            assert_eq!(relay.push(piece.clone()), Err(endless()), "{client}");
            let (out, seen) = relay.fail(endless());
            assert!(String::from_utf8_lossy(&out).contains(&endless().message), "{client}");
            assert_eq!(seen.error, Some(endless()), "{client}");
        }
    }

    #[test]
    fn an_answer_without_an_end_is_not_gathered() {
        let mut gathering = Gathering::new(Dialect::Chat);
        gathering.push(CHAT.as_bytes());
        // What says nothing counts too.
        let silence = format!(":{}\n", " ".repeat(MOST_BYTES / 2));
        for _ in 0..=MOST_ANSWER / silence.len() {
            assert!(!gathering.has_failed());
            gathering.push(silence.as_bytes());
        }
        assert!(gathering.has_failed());
        assert_eq!(gathering.finish(), Err(endless()));
    }
}
