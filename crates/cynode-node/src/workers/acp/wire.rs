//! The connection to an agent: JSON-RPC, one message a line. Whatever the agent writes, this neither fails nor grows without bound.

use std::{io, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, sleep_until},
};

use super::super::inside::{Output, Tail, some};

/// The longest line that is read. Whole files may be in one.
const LONGEST: usize = 16 * 1024 * 1024;
/// The most bytes that wait to be read by the agent.
const MOST_WAITING: usize = 32 * 1024 * 1024;
/// The most bytes of stray output that are passed on.
const STRAY: usize = 256 * 1024;
/// How much of the end of it is kept, to say why an agent failed.
const KEPT: usize = 2 * 1024;
/// How long the complaints of an agent that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// What came from the agent.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// It answered a request of ours.
    Answer {
        /// Which.
        id: u64,
        /// What.
        answer: Result<Value, String>,
    },
    /// It asks something.
    Request {
        /// Its name of the request.
        id: Value,
        /// What is asked.
        method: String,
        /// The particulars.
        params: Value,
    },
    /// It says something.
    Notification {
        /// What is said.
        method: String,
        /// The particulars.
        params: Value,
    },
    /// It wrote something that is no message.
    Stray(Vec<cynode_wire::nodes::Happened>),
    /// A line was too long and was left out.
    TooLong(u64),
    /// It has ended, or does not read any more.
    Gone,
}

/// A connection.
pub(super) struct Wire {
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    waiting: Vec<u8>,
    line: Vec<u8>,
    looked_at: usize,
    skipped: u64,
    last: u64,
    /// Until when its complaints are waited for, once it has ended.
    last_words: Option<Instant>,
    out: Output,
    err: Output,
    tail: Tail,
    pieces: Box<[Vec<u8>; 2]>,
}

impl Wire {
    pub(super) fn new(
        stdin: Option<Writer>,
        stdout: Option<Reader>,
        stderr: Option<Reader>,
    ) -> Self {
        Self {
            stdin,
            stdout,
            stderr,
            waiting: Vec::new(),
            line: Vec::new(),
            looked_at: 0,
            skipped: 0,
            last: 0,
            last_words: None,
            out: Output::new("stdout", STRAY),
            err: Output::new("stderr", STRAY),
            tail: Tail::new(KEPT),
            pieces: Box::new([vec![0; 64 * 1024], vec![0; 8 * 1024]]),
        }
    }

    /// Asks the agent something; by the number its answer is known.
    pub(super) fn request(&mut self, method: &str, params: &impl Serialize) -> u64 {
        self.last += 1;
        let id = self.last;
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// Tells the agent something.
    pub(super) fn notify(&mut self, method: &str, params: &impl Serialize) {
        self.write(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Answers the agent.
    pub(super) fn answer(&mut self, id: &Value, result: &impl Serialize) {
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    /// Refuses the agent something.
    pub(super) fn refuse(&mut self, id: &Value, code: i32, message: &str) {
        let error = json!({ "code": code, "message": message });
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    fn write(&mut self, message: &Value) {
        if serde_json::to_writer(&mut self.waiting, message).is_ok() {
            self.waiting.push(b'\n');
        }
    }

    /// The end of what the agent wrote that was no message.
    pub(super) fn strays(&mut self) -> String {
        self.tail.text().trim().to_owned()
    }

    /// What has waited for the end of its line, when that is not waited for any more.
    pub(super) fn flush(&mut self) -> Vec<cynode_wire::nodes::Happened> {
        self.out.flush().into_iter().chain(self.err.flush()).collect()
    }

    /// What comes next. It can be given up at any time and loses nothing.
    pub(super) async fn next(&mut self) -> Incoming {
        loop {
            if let Some(incoming) = self.next_line() {
                return incoming;
            }
            let said_all =
                self.stderr.is_none() || self.last_words.is_some_and(|end| end <= Instant::now());
            if (self.stdout.is_none() && said_all) || self.waiting.len() > MOST_WAITING {
                return Incoming::Gone;
            }
            let last_words = self.last_words;
            let [first, second] = &mut *self.pieces;
            tokio::select! {
                read = some(&mut self.stdout, first) => match read {
                    Some(length) => self.line.extend_from_slice(&first[..length]),
                    None => {
                        self.stdout = None;
                        self.last_words = Some(Instant::now() + LAST_WORDS);
                    }
                },
                read = some(&mut self.stderr, second) => match read {
                    Some(length) => {
                        self.tail.take(&second[..length]);
                        let told = self.err.take(&second[..length]);
                        if !told.is_empty() {
                            return Incoming::Stray(told);
                        }
                    }
                    None => self.stderr = None,
                },
                written = write_some(&mut self.stdin, &self.waiting) => match written {
                    Ok(length) => drop(self.waiting.drain(..length)),
                    // It may still have something to say.
                    Err(_) => self.stdin = None,
                },
                () = async {
                    match last_words {
                        Some(end) => sleep_until(end).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    /// The next line, when it is all there.
    fn next_line(&mut self) -> Option<Incoming> {
        loop {
            let found = self.line[self.looked_at..].iter().position(|byte| *byte == b'\n');
            let Some(found) = found else {
                self.looked_at = self.line.len();
                if self.skipped > 0 || self.line.len() > LONGEST {
                    self.skipped += self.line.len() as u64;
                    self.line.clear();
                    self.looked_at = 0;
                }
                return None;
            };
            let end = self.looked_at + found;
            let rest = self.line.split_off(end + 1);
            let line = std::mem::replace(&mut self.line, rest);
            self.looked_at = 0;
            if self.skipped > 0 {
                let bytes = std::mem::take(&mut self.skipped) + line.len() as u64;
                return Some(Incoming::TooLong(bytes));
            }
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            if let Some(incoming) = message(line) {
                return Some(incoming);
            }
            self.tail.take(line);
            self.tail.take(b"\n");
            let mut told = self.out.take(line);
            told.extend(self.out.take(b"\n"));
            return Some(Incoming::Stray(told));
        }
    }
}

/// Writes some of what waits. Waits for ever when there is nothing to write or nobody to read it.
async fn write_some(to: &mut Option<Writer>, waiting: &[u8]) -> io::Result<usize> {
    match to {
        Some(to) if !waiting.is_empty() => match to.write(waiting).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            length => Ok(length),
        },
        _ => std::future::pending().await,
    }
}

/// The message on a line, when it is one.
fn message(line: &[u8]) -> Option<Incoming> {
    let mut message: Value = serde_json::from_slice(line).ok()?;
    let object = message.as_object_mut()?;
    let id = object.remove("id").filter(|id| !id.is_null());
    if let Some(method) = object.remove("method") {
        let method = method.as_str()?.to_owned();
        let params = object.remove("params").unwrap_or_default();
        return Some(match id {
            Some(id) => Incoming::Request { id, method, params },
            None => Incoming::Notification { method, params },
        });
    }
    let id = id?.as_u64()?;
    let answer = match (object.remove("result"), object.remove("error")) {
        (_, Some(error)) if !error.is_null() => Err(told(&error)),
        (Some(result), _) => Ok(result),
        (None, _) => return None,
    };
    Some(Incoming::Answer { id, answer })
}

/// An error in words. Agents put what matters now into the message and now into the data beside it.
fn told(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("it gave no reason");
    let data = match &error["data"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        data => match data["details"].as_str().or_else(|| data["message"].as_str()) {
            Some(text) => text.to_owned(),
            None => data.to_string(),
        },
    };
    let told = if data.is_empty() || message.contains(&data) {
        message.to_owned()
    } else {
        format!("{message}: {data}")
    };
    told.chars().take(2000).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn reading(bytes: Vec<u8>) -> Wire {
        Wire::new(None, Some(Box::new(io::Cursor::new(bytes))), None)
    }

    #[tokio::test]
    async fn messages_of_every_kind_are_told_apart() {
        let lines = concat!(
            r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#,
            "\n",
            r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"Internal error","data":{"details":"402 no budget"}}}"#,
            "\r\n",
            "\n",
            r#"{"jsonrpc":"2.0","id":"x","method":"fs/read_text_file","params":{}}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"b":2}}"#,
            "\n",
        );
        let mut wire = reading(lines.as_bytes().to_vec());
        let told = "Internal error: 402 no budget".to_owned();
        for expected in [
            Incoming::Answer { id: 1, answer: Ok(json!({ "a": 1 })) },
            Incoming::Answer { id: 2, answer: Err(told) },
            Incoming::Request {
                id: json!("x"),
                method: "fs/read_text_file".into(),
                params: json!({}),
            },
            Incoming::Notification { method: "session/update".into(), params: json!({ "b": 2 }) },
            Incoming::Gone,
        ] {
            assert_eq!(wire.next().await, expected);
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_passed_on_as_output() {
        let mut wire = reading(b"Starting\n[1,2]\n{\"id\":null}\n{\"id\":1}\n\xff\n".to_vec());
        let mut strays = String::new();
        while let Incoming::Stray(told) = wire.next().await {
            for happened in told {
                let cynode_wire::nodes::Happened::Output { stream, text } = happened else {
                    panic!()
                };
                assert_eq!(stream, "stdout");
                strays += &text;
            }
        }
        assert_eq!(strays, "Starting\n[1,2]\n{\"id\":null}\n{\"id\":1}\n\u{fffd}\n");
        assert_eq!(wire.strays(), strays.trim());
    }

    #[tokio::test]
    async fn a_line_without_end_is_left_out_and_the_next_one_read() {
        let mut bytes = vec![b'x'; LONGEST + 100_000];
        bytes.extend_from_slice(b"\n{\"method\":\"a\"}\n");
        let mut wire = reading(bytes);
        assert_eq!(wire.next().await, Incoming::TooLong((LONGEST + 100_001) as u64));
        let next = Incoming::Notification { method: "a".into(), params: Value::Null };
        assert_eq!(wire.next().await, next);
        assert!(wire.line.capacity() < 4 * LONGEST);
    }

    #[tokio::test]
    async fn an_agent_that_reads_slowly_gets_everything_while_it_is_listened_to() {
        let (ours, theirs) = duplex(64);
        let (mut read, mut write) = tokio::io::split(theirs);
        let (read_ours, write_ours) = tokio::io::split(ours);
        let mut wire = Wire::new(Some(Box::new(write_ours)), Some(Box::new(read_ours)), None);
        let long = "y".repeat(10_000);
        assert_eq!(wire.request("a", &long), 1);
        let agent = async {
            // It speaks before it listens.
            write.write_all(b"{\"method\":\"hello\",\"params\":\"").await.unwrap();
            write.write_all("z".repeat(5_000).as_bytes()).await.unwrap();
            write.write_all(b"\"}\n").await.unwrap();
            let mut seen = vec![0; 10_000];
            tokio::io::AsyncReadExt::read_exact(&mut read, &mut seen).await.unwrap();
            write.write_all(b"{\"id\":1,\"result\":null}\n").await.unwrap();
        };
        let us = async {
            assert!(matches!(wire.next().await, Incoming::Notification { .. }));
            assert_eq!(wire.next().await, Incoming::Answer { id: 1, answer: Ok(Value::Null) });
        };
        tokio::join!(agent, us);
    }
}
