use cynode_models::{
    dialect::{
        Dialect, ResponseContext, StreamDecoder, StreamEncoder,
        canonical::{CanonicalEvent, CanonicalResponse, ModelError, ResponseAssembler},
    },
    tools::ToolRestorer,
};
use cynode_net::sse::{SseEvent, SseEventParser};
use serde_json::{Value, json};

/// Every pair of a client's dialect and a provider's.
pub(crate) fn pairs() -> impl Iterator<Item = (Dialect, Dialect)> {
    Dialect::ALL.iter().copied().flat_map(|client| {
        [Dialect::Chat, Dialect::Responses, Dialect::Messages].map(|provider| (client, provider))
    })
}

pub(crate) fn name(client: Dialect, provider: Dialect) -> String {
    format!("{} -> {}", client.as_str(), provider.as_str())
}

/// What each pair says, with pairs that say the same put together.
#[derive(Default)]
pub(crate) struct Said(Vec<(Vec<String>, Value)>);

impl Said {
    pub(crate) fn add(&mut self, pair: String, value: Value) {
        match self.0.iter_mut().find(|(_, known)| *known == value) {
            Some((pairs, _)) => pairs.push(pair),
            None => self.0.push((vec![pair], value)),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        self.0.into_iter().map(|(pairs, said)| json!({ "pairs": pairs, "said": said })).collect()
    }
}

pub(crate) fn refused(error: &ModelError) -> Value {
    json!({ "refused": error.message, "kind": error.kind })
}

/// The events of a stream that comes in one piece.
pub(crate) fn parse(bytes: &[u8]) -> Vec<SseEvent> {
    let mut events = Vec::new();
    SseEventParser::new(1 << 20).push_bytes(bytes, &mut events).unwrap();
    events
}

/// What a provider's stream says.
pub(crate) fn read_stream(dialect: Dialect, events: &[SseEvent]) -> Vec<CanonicalEvent> {
    let mut reader = StreamDecoder::new(dialect);
    let mut said: Vec<CanonicalEvent> =
        events.iter().flat_map(|event| reader.decode_event(event)).collect();
    said.extend(reader.finish_stream());
    said
}

/// The bytes of a client's stream.
pub(crate) fn write_stream(
    dialect: Dialect,
    events: impl IntoIterator<Item = CanonicalEvent>,
    reply: &ResponseContext,
) -> Vec<u8> {
    let mut writer = StreamEncoder::new(dialect, reply.clone());
    events.into_iter().flat_map(|event| writer.encode_event(event)).collect()
}

pub(crate) fn gather(events: &[CanonicalEvent]) -> Result<CanonicalResponse, ModelError> {
    let mut gather = ResponseAssembler::default();
    for event in events {
        gather.push_event(event);
    }
    gather.finish_response()
}

pub(crate) fn restored(events: Vec<CanonicalEvent>, restore: &ToolRestorer) -> Vec<CanonicalEvent> {
    let mut restore = restore.clone();
    events.into_iter().flat_map(|event| restore.restore_event(event)).collect()
}

/// A stream as lines that can be read.
pub(crate) fn lines(events: &[SseEvent]) -> Value {
    let line = |event: &SseEvent| match event.name.as_str() {
        "" => event.data.clone(),
        name => format!("{name}: {}", event.data),
    };
    events.iter().map(line).collect()
}

/// A stream as the corpus writes it: texts, objects, or pairs of a name and an object.
pub(crate) fn stream(value: &Value) -> Vec<SseEvent> {
    let data = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let event = |value: &Value| {
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default();
        SseEvent { name: kind.to_owned(), data: data(value) }
    };
    value.as_array().unwrap().iter().map(event).collect()
}

pub(crate) fn dialect(value: &Value) -> Dialect {
    serde_json::from_value(value["dialect"].clone()).unwrap()
}
