//! Server-sent events out of bytes, and into bytes.
//!
//! The parser is pushed bytes as they come from the network, cut anywhere, and gives back the events that are complete.

use serde_json::Value;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its data, lines joined by line feeds.
    pub data: String,
}

/// An event is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub struct SseEventTooLong {
    /// The limit.
    pub limit: usize,
}

/// Takes events out of bytes.
#[derive(Clone, Debug)]
pub struct SseEventParser {
    limit: usize,
    line: Vec<u8>,
    name: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    /// No line has ended yet, so that the line may begin with a byte order mark.
    first: bool,
    /// How many of the bytes that were pushed last go up to where no event was under way.
    whole: usize,
}

impl SseEventParser {
    /// A parser that refuses events of more than `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            name: Vec::new(),
            data: None,
            after_return: false,
            first: true,
            whole: 0,
        }
    }

    /// How many of the bytes that were pushed last go up to the last end of an event; the rest begins another.
    pub(crate) const fn complete_len(&self) -> usize {
        self.whole
    }

    /// Takes the next bytes and appends the events that they complete to `events`.
    pub fn push_bytes(
        &mut self,
        mut bytes: &[u8],
        events: &mut Vec<SseEvent>,
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
            events.extend(self.end_line());
            self.mark_complete(length - bytes.len());
        }
        self.append_to_line(bytes)
    }

    /// A line has ended after so many bytes. Comments between events belong to none.
    const fn mark_complete(&mut self, at: usize) {
        if self.name.is_empty() && self.data.is_none() {
            self.whole = at;
        }
    }

    fn append_to_line(&mut self, more: &[u8]) -> Result<(), SseEventTooLong> {
        let held = self.line.len() + self.name.len() + self.data.as_ref().map_or(0, Vec::len);
        if held + more.len() > self.limit {
            return Err(SseEventTooLong { limit: self.limit });
        }
        self.line.extend_from_slice(more);
        Ok(())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
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
            b"event" => self.name = value.to_vec(),
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            // Comments, ids, times to wait, and what is not known yet.
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<SseEvent> {
        let name = std::mem::take(&mut self.name);
        let data = self.data.take()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(SseEvent { name: text(&name), data: text(&data) })
    }
}

/// Appends an event to `out`. JSON has no line breaks of its own, so one line of data is enough.
pub(crate) fn write_sse_event(out: &mut Vec<u8>, name: Option<&str>, data: &Value) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}
