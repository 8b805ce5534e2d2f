//! Parser of server-sent events, after the HTML standard.
//!
//! The parser takes chunks of bytes as they come from the network, split at any byte, and returns the complete events. Lines end with LF,
//! CR or CR LF. An event that the stream does not finish with an empty line is not returned.

/// One event of a stream, as bytes. For callers that need the exact bytes that were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawSseEvent {
    /// The field `id` of this event; empty if the event has none. Later events do not inherit an id.
    pub id: Vec<u8>,
    /// The field `event`; empty if the event has none.
    pub name: Vec<u8>,
    /// The fields `data`, joined by line feeds.
    pub data: Vec<u8>,
}

impl RawSseEvent {
    /// Returns whether the event has the default type: no name, or the name `message`.
    pub fn is_message(&self) -> bool {
        self.name.is_empty() || self.name == b"message"
    }
}

/// One event of a stream, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The field `event`; empty if the event has none.
    pub name: String,
    /// The fields `data`, joined by line feeds.
    pub data: String,
}

impl From<RawSseEvent> for SseEvent {
    fn from(event: RawSseEvent) -> Self {
        Self { name: decode_text(event.name), data: decode_text(event.data) }
    }
}

/// Decodes UTF-8. As the standard says, invalid bytes become replacement characters.
fn decode_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Error: an event is longer than the parser's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub struct SseEventTooLong {
    /// Maximum length of an event in bytes.
    pub limit: usize,
}

/// Parser of one stream of events.
#[derive(Clone, Debug)]
pub struct SseEventParser {
    limit: usize,
    line: Vec<u8>,
    id: Vec<u8>,
    name: Vec<u8>,
    data: Option<Vec<u8>>,
    /// Whether the last byte was a carriage return. A line feed that follows belongs to the same line end.
    after_return: bool,
    /// Whether no line has ended yet. The first line may begin with a byte order mark.
    first: bool,
    /// Number of bytes of the last push up to the last point at which no event was incomplete.
    whole: usize,
}

impl SseEventParser {
    /// Creates a parser that rejects events of more than `limit` bytes, field names included.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            id: Vec::new(),
            name: Vec::new(),
            data: None,
            after_return: false,
            first: true,
            whole: 0,
        }
    }

    /// Returns the number of bytes of the last push up to the last end of an event. The remaining bytes begin another event.
    pub const fn complete_len(&self) -> usize {
        self.whole
    }

    /// Parses the next bytes and appends the events that they complete to `events`. Events before an error are appended too.
    pub fn push_bytes(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<SseEvent>,
    ) -> Result<(), SseEventTooLong> {
        self.parse_bytes(bytes, |event| events.push(event.into()))
    }

    /// Parses like [`Self::push_bytes`], but appends events as bytes.
    pub fn push_raw_bytes(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<RawSseEvent>,
    ) -> Result<(), SseEventTooLong> {
        self.parse_bytes(bytes, |event| events.push(event))
    }

    fn parse_bytes(
        &mut self,
        mut bytes: &[u8],
        mut emit: impl FnMut(RawSseEvent),
    ) -> Result<(), SseEventTooLong> {
        let length = bytes.len();
        self.whole = 0;
        if bytes.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.after_return) {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            self.mark_complete(length - bytes.len());
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, rest) = bytes.split_at(end);
            self.append_to_line(line)?;
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_return = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
            if let Some(event) = self.end_line() {
                emit(event);
            }
            self.mark_complete(length - bytes.len());
        }
        self.append_to_line(bytes)
    }

    /// Records that a line has ended at offset `at`. Comments and ids between events belong to no event.
    const fn mark_complete(&mut self, at: usize) {
        if self.name.is_empty() && self.data.is_none() {
            self.whole = at;
        }
    }

    fn append_to_line(&mut self, more: &[u8]) -> Result<(), SseEventTooLong> {
        let fields = self.id.len() + self.name.len() + self.data.as_ref().map_or(0, Vec::len);
        if self.line.len() + fields + more.len() > self.limit {
            return Err(SseEventTooLong { limit: self.limit });
        }
        self.line.extend_from_slice(more);
        Ok(())
    }

    fn end_line(&mut self) -> Option<RawSseEvent> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if std::mem::take(&mut self.first) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.end_event();
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"id" => self.id = value.to_vec(),
            b"event" => self.name = value.to_vec(),
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            // Ignored: comments, retry times, and fields of later standards.
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<RawSseEvent> {
        let (id, name) = (std::mem::take(&mut self.id), std::mem::take(&mut self.name));
        let data = self.data.take()?;
        Some(RawSseEvent { id, name, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, name: &str, data: &str) -> RawSseEvent {
        RawSseEvent { id: id.into(), name: name.into(), data: data.into() }
    }

    fn parse_chunks(bytes: &[u8], size: usize) -> Vec<RawSseEvent> {
        let (mut parser, mut events) = (SseEventParser::new(100), Vec::new());
        for chunk in bytes.chunks(size) {
            parser.push_raw_bytes(chunk, &mut events).unwrap();
        }
        events
    }

    #[test]
    fn comments_names_ids_several_lines_and_every_line_ending_are_parsed() {
        let bytes = "\u{feff}: hello\r\nevent: a\rdata: 1\ndata:2\r\ndata\r\n\r\nid: 7\nretry: 3\n\ndata:  x\n\n\
            id: 8\ndata:\n\nevent: unfinished";
        let expected = [event("", "a", "1\n2\n"), event("", "", " x"), event("8", "", "")];
        for size in 1..=bytes.len() {
            assert_eq!(parse_chunks(bytes.as_bytes(), size), expected, "chunks of {size}");
        }
    }

    #[test]
    fn chunks_may_cut_the_stream_anywhere() {
        let stream = ": hello\r\n\r\nid: 1\r\nevent: message\r\ndata: {\"a\":\r\ndata:1}\r\n\r\n\
            event: other\ndata: no\n\ndata: second\n\nid: 3\ndata:\n\ndata: unfinished\n";
        let expected = [
            event("1", "message", "{\"a\":\n1}"),
            event("", "other", "no"),
            event("", "", "second"),
            event("3", "", ""),
        ];
        for size in 1..stream.len() {
            assert_eq!(parse_chunks(stream.as_bytes(), size), expected, "chunks of {size}");
        }
        assert_eq!(expected.map(|event| event.is_message()), [true, false, true, true]);
    }

    #[test]
    fn characters_may_be_cut_at_any_two_places() {
        let bytes =
            "event: ä\r\ndata: é🦀\r\n\r\n:c\rdata: {\"a\":\rdata: 1}\r\rdata: z\n\n".as_bytes();
        let text = |name: &str, data: &str| SseEvent { name: name.into(), data: data.into() };
        let expected = [text("ä", "é🦀"), text("", "{\"a\":\n1}"), text("", "z")];
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let (mut parser, mut events) = (SseEventParser::new(100), Vec::new());
                for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    parser.push_bytes(piece, &mut events).unwrap();
                }
                assert_eq!(events, expected, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn the_limit_holds_for_each_event_and_not_for_the_stream() {
        let (mut parser, mut events) = (SseEventParser::new(20), Vec::new());
        assert_eq!(parser.push_bytes("data: xxxx\n\n".repeat(6).as_bytes(), &mut events), Ok(()));
        assert_eq!(events.len(), 6);
    }

    #[test]
    fn an_event_that_is_too_long_in_one_line_or_in_many_is_refused() {
        let refused = Err(SseEventTooLong { limit: 64 });
        for piece in ["data: xx", "data: xx\n", "id: xxxxxxxx"] {
            let (mut parser, mut events) = (SseEventParser::new(64), Vec::new());
            let mut pushes = (0..100).map(|_| parser.push_bytes(piece.as_bytes(), &mut events));
            assert_eq!(pushes.find(Result::is_err), Some(refused), "{piece}");
        }
    }

    #[test]
    fn events_before_the_one_that_is_too_long_are_returned() {
        let (mut parser, mut events) = (SseEventParser::new(20), Vec::new());
        let bytes = format!("data: a\n\ndata: {}", "x".repeat(30));
        assert!(parser.push_bytes(bytes.as_bytes(), &mut events).is_err());
        assert_eq!(events, [SseEvent { name: String::new(), data: "a".into() }]);
    }

    #[test]
    fn text_that_is_not_utf8_is_replaced_and_bytes_are_kept() {
        let (bytes, mut raw, mut text) = (b"data: a\xff\n\n", Vec::new(), Vec::new());
        SseEventParser::new(100).push_raw_bytes(bytes, &mut raw).unwrap();
        SseEventParser::new(100).push_bytes(bytes, &mut text).unwrap();
        assert_eq!(raw[0].data, b"a\xff");
        assert_eq!(text[0].data, "a\u{fffd}");
    }
}
