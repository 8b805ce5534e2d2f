//! Parser of server-sent events, as far as MCP uses them.

use super::UpstreamError;

/// How much one stream may carry: an answer and the notifications around it.
const MAX_STREAM_BYTES: usize = 4 * super::MAX_ANSWER_BYTES;

/// Turns the chunks of a stream into the data of its events.
///
/// Lines end with LF or CR LF. A lone CR, which the format allows too, is no line end here: no
/// MCP server sends it, and it can otherwise only be decided with the next chunk in hand.
#[derive(Debug)]
pub(super) struct McpEventParser {
    buffer: Vec<u8>,
    /// Where the line that is being read begins.
    line: usize,
    /// How far that line has been searched for its end.
    searched: usize,
    data: Option<Vec<u8>>,
    /// Whether the event is one of MCP's, which have no name or the name `message`.
    ours: bool,
    limit: usize,
    left: usize,
}

impl McpEventParser {
    /// A reader of events up to `limit` bytes each.
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            line: 0,
            searched: 0,
            data: None,
            ours: true,
            limit,
            left: MAX_STREAM_BYTES,
        }
    }

    /// Takes a chunk in.
    pub(super) fn feed_chunk(&mut self, chunk: &[u8]) -> Result<(), UpstreamError> {
        self.left = self
            .left
            .checked_sub(chunk.len())
            .ok_or(UpstreamError::TooLarge { limit: MAX_STREAM_BYTES })?;
        self.buffer.drain(..self.line);
        self.searched -= self.line;
        self.line = 0;
        self.buffer.extend_from_slice(chunk);
        Ok(())
    }

    /// The data of the next event that is complete.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, UpstreamError> {
        let too_large = UpstreamError::TooLarge { limit: self.limit };
        while let Some(offset) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
            let end = self.searched + offset;
            let line = &self.buffer[self.line..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let event = if line.is_empty() {
                self.data.take().filter(|_| std::mem::replace(&mut self.ours, true))
            } else {
                take_line(line, &mut self.data, &mut self.ours);
                None
            };
            self.line = end + 1;
            self.searched = self.line;
            if self.data.as_ref().is_some_and(|data| data.len() > self.limit) {
                return Err(too_large);
            }
            if event.is_some() {
                return Ok(event);
            }
        }
        self.searched = self.buffer.len();
        // The field's name and what is around it is allowed for.
        if self.searched - self.line > self.limit + 64 { Err(too_large) } else { Ok(None) }
    }
}

fn take_line(line: &[u8], data: &mut Option<Vec<u8>>, ours: &mut bool) {
    let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
    let (field, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
    let value = value.strip_prefix(b" ").unwrap_or(value);
    match field {
        b"data" => match data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => *data = Some(value.to_vec()),
        },
        b"event" => *ours = value == b"message",
        // Ids are for resuming, which we do not; a line without a field is a comment.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str, chunk: usize) -> Vec<String> {
        let mut events = McpEventParser::new(64);
        let mut read = Vec::new();
        for chunk in stream.as_bytes().chunks(chunk) {
            events.feed_chunk(chunk).unwrap();
            while let Some(data) = events.next().unwrap() {
                read.push(String::from_utf8(data).unwrap());
            }
        }
        read
    }

    #[test]
    fn events_are_read_whatever_the_chunks() {
        let stream = ": hello\r\n\r\nid: 1\r\nevent: message\r\ndata: {\"a\":\r\ndata:1}\r\n\r\n\
            event: other\ndata: no\n\ndata: second\n\nid: 3\ndata:\n\ndata: unfinished\n";
        for chunk in 1..stream.len() {
            assert_eq!(read(stream, chunk), ["{\"a\":\n1}", "second", ""], "chunks of {chunk}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut events = McpEventParser::new(64);
        let outcome = (0..100).try_for_each(|_| {
            events.feed_chunk(b"data: xx")?;
            events.next().map(|_| ())
        });
        assert!(matches!(outcome, Err(UpstreamError::TooLarge { limit: 64 })));
    }

    #[test]
    fn an_event_of_many_lines_is_refused() {
        let mut events = McpEventParser::new(64);
        let outcome = (0..100).try_for_each(|_| {
            events.feed_chunk(b"data: xx\n")?;
            events.next().map(|_| ())
        });
        assert!(matches!(outcome, Err(UpstreamError::TooLarge { limit: 64 })));
    }
}
