//! Stream decoder and stream encoder of all dialects.

use bytes::Bytes;
use cynode_net::sse::SseEvent;
use serde_json::Value;

use super::{Dialect, ResponseContext, chat, messages, responses};
use crate::dialect::canonical::{CanonicalEvent, ModelError};

/// Decodes a provider's stream. No event follows [`CanonicalEvent::Ended`] or [`CanonicalEvent::Failed`].
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    inner: DialectStreamDecoder,
    done: bool,
}

#[derive(Clone, Debug)]
enum DialectStreamDecoder {
    Chat(chat::ChatStreamDecoder),
    Responses(responses::ResponsesStreamDecoder),
    Messages(messages::MessagesStreamDecoder),
}

impl StreamDecoder {
    /// Creates a decoder that fails at content without a canonical form.
    pub fn new(dialect: Dialect) -> Self {
        Self::for_dialect(dialect, false)
    }

    /// Creates a decoder that skips content without a canonical form.
    pub(crate) fn new_lenient(dialect: Dialect) -> Self {
        Self::for_dialect(dialect, true)
    }

    fn for_dialect(dialect: Dialect, tolerant: bool) -> Self {
        let inner = match dialect {
            Dialect::Chat => DialectStreamDecoder::Chat(chat::ChatStreamDecoder::default()),
            Dialect::Responses => {
                DialectStreamDecoder::Responses(responses::ResponsesStreamDecoder::new(tolerant))
            }
            Dialect::Messages => {
                DialectStreamDecoder::Messages(messages::MessagesStreamDecoder::new(tolerant))
            }
        };
        Self { inner, done: false }
    }

    /// Decodes one event of the stream.
    pub fn decode_event(&mut self, event: &SseEvent) -> Vec<CanonicalEvent> {
        let mut out = Vec::new();
        if !self.done {
            match &mut self.inner {
                DialectStreamDecoder::Chat(reader) => reader.decode_event(event, &mut out),
                DialectStreamDecoder::Responses(reader) => reader.decode_event(event, &mut out),
                DialectStreamDecoder::Messages(reader) => reader.decode_event(event, &mut out),
            }
        }
        self.truncate_after_end(out)
    }

    /// Handles the end of the stream. Returns an error event if the response was not complete.
    pub fn finish_stream(&mut self) -> Vec<CanonicalEvent> {
        let mut out = Vec::new();
        if !self.done {
            match &mut self.inner {
                DialectStreamDecoder::Chat(reader) => reader.finish_stream(&mut out),
                DialectStreamDecoder::Responses(_) | DialectStreamDecoder::Messages(_) => {
                    out.push(CanonicalEvent::Failed(
                        crate::dialect::canonical::stream_cut_short_error(),
                    ));
                }
            }
        }
        self.truncate_after_end(out)
    }

    fn truncate_after_end(&mut self, mut events: Vec<CanonicalEvent>) -> Vec<CanonicalEvent> {
        let last = events.iter().position(|event| {
            matches!(event, CanonicalEvent::Ended { .. } | CanonicalEvent::Failed(_))
        });
        if let Some(last) = last {
            self.done = true;
            events.truncate(last + 1);
        }
        events
    }
}

/// Encodes a client's stream.
#[derive(Clone, Debug)]
pub struct StreamEncoder {
    inner: DialectStreamEncoder,
}

#[derive(Clone, Debug)]
enum DialectStreamEncoder {
    Chat(chat::ChatStreamEncoder),
    Responses(Box<responses::ResponsesStreamEncoder>),
    Messages(messages::MessagesStreamEncoder),
}

impl StreamEncoder {
    /// Creates an encoder for `dialect`.
    pub fn new(dialect: Dialect, reply: ResponseContext) -> Self {
        let inner = match dialect {
            Dialect::Chat => DialectStreamEncoder::Chat(chat::ChatStreamEncoder::new(reply)),
            Dialect::Responses => DialectStreamEncoder::Responses(Box::new(
                responses::ResponsesStreamEncoder::new(reply),
            )),
            Dialect::Messages => {
                DialectStreamEncoder::Messages(messages::MessagesStreamEncoder::new(reply))
            }
        };
        Self { inner }
    }

    /// Encodes `event`. The result may be empty.
    pub fn encode_event(&mut self, event: CanonicalEvent) -> Bytes {
        let mut out = Vec::new();
        match &mut self.inner {
            DialectStreamEncoder::Chat(writer) => writer.encode_event(event, &mut out),
            DialectStreamEncoder::Responses(writer) => writer.encode_event(event, &mut out),
            DialectStreamEncoder::Messages(writer) => writer.encode_event(event, &mut out),
        }
        Bytes::from(out)
    }

    /// Returns a keep-alive event.
    pub const fn ping_bytes(&self) -> &'static [u8] {
        match self.inner {
            DialectStreamEncoder::Chat(_) | DialectStreamEncoder::Responses(_) => b": ping\n\n",
            DialectStreamEncoder::Messages(_) => b"event: ping\ndata: {\"type\":\"ping\"}\n\n",
        }
    }
}

/// Returns the failure of an event that is not JSON.
pub(super) fn invalid_json_event() -> CanonicalEvent {
    CanonicalEvent::Failed(ModelError::upstream_error(
        "an event of the provider's stream is not JSON",
    ))
}

/// Appends a server-sent event to `out`. JSON has no line breaks of its own, so one line of data is enough.
pub(super) fn write_sse_event(out: &mut Vec<u8>, name: Option<&str>, data: &Value) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}
