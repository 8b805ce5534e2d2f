//! Streams of each dialect, behind one type each.

use bytes::Bytes;

use super::{Dialect, Reply, chat, messages, responses};
use crate::{
    sse::SseEvent,
    talk::{Event, ModelError},
};

/// Reads a provider's stream. Nothing comes after [`Event::Ended`] or [`Event::Failed`].
#[derive(Clone, Debug)]
pub struct StreamReader {
    inner: Reading,
    done: bool,
}

#[derive(Clone, Debug)]
enum Reading {
    Chat(chat::Reader),
    Responses(responses::Reader),
    Messages(messages::Reader),
}

impl StreamReader {
    /// A reader that fails at content which has no word of ours.
    pub fn new(dialect: Dialect) -> Self {
        Self::reading(dialect, false)
    }

    /// A reader that passes over content which has no word of ours.
    pub(crate) fn tolerant(dialect: Dialect) -> Self {
        Self::reading(dialect, true)
    }

    fn reading(dialect: Dialect, tolerant: bool) -> Self {
        let inner = match dialect {
            Dialect::Chat => Reading::Chat(chat::Reader::default()),
            Dialect::Responses => Reading::Responses(responses::Reader::new(tolerant)),
            Dialect::Messages => Reading::Messages(messages::Reader::new(tolerant)),
        };
        Self { inner, done: false }
    }

    /// Reads one event of the stream.
    pub fn read(&mut self, event: &SseEvent) -> Vec<Event> {
        let mut out = Vec::new();
        if !self.done {
            match &mut self.inner {
                Reading::Chat(reader) => reader.read(event, &mut out),
                Reading::Responses(reader) => reader.read(event, &mut out),
                Reading::Messages(reader) => reader.read(event, &mut out),
            }
        }
        self.until_done(out)
    }

    /// The stream has ended. If the answer had not, that is an error.
    pub fn end(&mut self) -> Vec<Event> {
        let mut out = Vec::new();
        if !self.done {
            match &mut self.inner {
                Reading::Chat(reader) => reader.end(&mut out),
                Reading::Responses(_) | Reading::Messages(_) => {
                    out.push(Event::Failed(crate::talk::cut_short()));
                }
            }
        }
        self.until_done(out)
    }

    fn until_done(&mut self, mut events: Vec<Event>) -> Vec<Event> {
        let last =
            events.iter().position(|event| matches!(event, Event::Ended { .. } | Event::Failed(_)));
        if let Some(last) = last {
            self.done = true;
            events.truncate(last + 1);
        }
        events
    }
}

/// Writes a client's stream.
#[derive(Clone, Debug)]
pub struct StreamWriter {
    inner: Writing,
}

#[derive(Clone, Debug)]
enum Writing {
    Chat(chat::Writer),
    Responses(Box<responses::Writer>),
    Messages(messages::Writer),
}

impl StreamWriter {
    /// A writer of `dialect`.
    pub fn new(dialect: Dialect, reply: Reply) -> Self {
        let inner = match dialect {
            Dialect::Chat => Writing::Chat(chat::Writer::new(reply)),
            Dialect::Responses => Writing::Responses(Box::new(responses::Writer::new(reply))),
            Dialect::Messages => Writing::Messages(messages::Writer::new(reply)),
        };
        Self { inner }
    }

    /// The bytes that say `event`; there may be none.
    pub fn write(&mut self, event: Event) -> Bytes {
        let mut out = Vec::new();
        match &mut self.inner {
            Writing::Chat(writer) => writer.write(event, &mut out),
            Writing::Responses(writer) => writer.write(event, &mut out),
            Writing::Messages(writer) => writer.write(event, &mut out),
        }
        Bytes::from(out)
    }

    /// Bytes that say only that the stream is alive.
    pub const fn ping(&self) -> &'static [u8] {
        match self.inner {
            Writing::Chat(_) | Writing::Responses(_) => b": ping\n\n",
            Writing::Messages(_) => b"event: ping\ndata: {\"type\":\"ping\"}\n\n",
        }
    }
}

/// An event of the stream is not what streams are made of.
pub(super) fn not_json() -> Event {
    Event::Failed(ModelError::upstream("an event of the provider's stream is not JSON"))
}
