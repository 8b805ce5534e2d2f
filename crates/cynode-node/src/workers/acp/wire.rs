//! JSON-RPC connection to an agent, one message per line. Reads are bounded, and invalid input never fails the
//! connection.

use std::{io, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, sleep_until},
};

use super::super::process::{OutputStream, TailBuffer, read_some};

/// Maximum length of a line. It may contain whole files.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of bytes that wait to be written to the agent.
const MAX_PENDING_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of bytes of stray output that are forwarded.
const MAX_STRAY_BYTES: usize = 256 * 1024;
/// Bytes of the stray output's tail that are kept, to explain a failure of the agent.
const STRAY_TAIL_BYTES: usize = 2 * 1024;
/// Time to wait for the standard error of an agent that has exited.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Message from the agent.
#[derive(Debug, PartialEq)]
pub(super) enum AgentMessage {
    /// Response to a request of the node.
    Answer {
        /// Id of the request.
        id: u64,
        /// Result or error.
        answer: Result<Value, String>,
    },
    /// Request of the agent.
    Request {
        /// The agent's id of the request.
        id: Value,
        /// Method name.
        method: String,
        /// Parameters of the request.
        params: Value,
    },
    /// Notification of the agent.
    Notification {
        /// Method name.
        method: String,
        /// Parameters of the notification.
        params: Value,
    },
    /// Output that is not a message.
    Stray(Vec<cynode_core::nodes::JobEventData>),
    /// A line exceeded the maximum length and was skipped; its size.
    TooLong(u64),
    /// The agent has exited, or does not read any more.
    Gone,
}

/// JSON-RPC connection to an agent.
pub(super) struct AcpConnection {
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    waiting: Vec<u8>,
    line: Vec<u8>,
    looked_at: usize,
    skipped: u64,
    last: u64,
    /// Deadline for the standard error after the agent has exited.
    last_words: Option<Instant>,
    out: OutputStream,
    err: OutputStream,
    tail: TailBuffer,
    pieces: Box<[Vec<u8>; 2]>,
}

impl AcpConnection {
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
            out: OutputStream::new("stdout", MAX_STRAY_BYTES),
            err: OutputStream::new("stderr", MAX_STRAY_BYTES),
            tail: TailBuffer::new(STRAY_TAIL_BYTES),
            pieces: Box::new([vec![0; 64 * 1024], vec![0; 8 * 1024]]),
        }
    }

    /// Sends a request and returns its id.
    pub(super) fn send_request(&mut self, method: &str, params: &impl Serialize) -> u64 {
        self.last += 1;
        let id = self.last;
        self.queue_message(
            &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }),
        );
        id
    }

    /// Sends a notification.
    pub(super) fn send_notification(&mut self, method: &str, params: &impl Serialize) {
        self.queue_message(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a response.
    pub(super) fn send_response(&mut self, id: &Value, result: &impl Serialize) {
        self.queue_message(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    /// Sends an error response.
    pub(super) fn send_error(&mut self, id: &Value, code: i32, message: &str) {
        let error = json!({ "code": code, "message": message });
        self.queue_message(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    fn queue_message(&mut self, message: &Value) {
        if serde_json::to_writer(&mut self.waiting, message).is_ok() {
            self.waiting.push(b'\n');
        }
    }

    /// Returns the tail of the stray output.
    pub(super) fn stray_tail(&mut self) -> String {
        self.tail.read_text().trim().to_owned()
    }

    /// Returns pending partial lines without waiting for their end.
    pub(super) fn flush_strays(&mut self) -> Vec<cynode_core::nodes::JobEventData> {
        self.out.flush().into_iter().chain(self.err.flush()).collect()
    }

    /// Returns the next message. It is cancel-safe.
    pub(super) async fn next(&mut self) -> AgentMessage {
        loop {
            if let Some(incoming) = self.next_line() {
                return incoming;
            }
            let said_all =
                self.stderr.is_none() || self.last_words.is_some_and(|end| end <= Instant::now());
            if (self.stdout.is_none() && said_all) || self.waiting.len() > MAX_PENDING_BYTES {
                return AgentMessage::Gone;
            }
            let last_words = self.last_words;
            let [first, second] = &mut *self.pieces;
            tokio::select! {
                read = read_some(&mut self.stdout, first) => match read {
                    Some(length) => self.line.extend_from_slice(&first[..length]),
                    None => {
                        self.stdout = None;
                        self.last_words = Some(Instant::now() + STDERR_DRAIN_TIMEOUT);
                    }
                },
                read = read_some(&mut self.stderr, second) => match read {
                    Some(length) => {
                        self.tail.push_bytes(&second[..length]);
                        let told = self.err.push_bytes(&second[..length]);
                        if !told.is_empty() {
                            return AgentMessage::Stray(told);
                        }
                    }
                    None => self.stderr = None,
                },
                written = write_some(&mut self.stdin, &self.waiting) => match written {
                    Ok(length) => drop(self.waiting.drain(..length)),
                    // The agent may still have output.
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

    /// Returns the next complete line as a message.
    fn next_line(&mut self) -> Option<AgentMessage> {
        loop {
            let found = self.line[self.looked_at..].iter().position(|byte| *byte == b'\n');
            let Some(found) = found else {
                self.looked_at = self.line.len();
                if self.skipped > 0 || self.line.len() > MAX_MESSAGE_BYTES {
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
                return Some(AgentMessage::TooLong(bytes));
            }
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            if let Some(incoming) = parse_message(line) {
                return Some(incoming);
            }
            self.tail.push_bytes(line);
            self.tail.push_bytes(b"\n");
            let mut told = self.out.push_bytes(line);
            told.extend(self.out.push_bytes(b"\n"));
            return Some(AgentMessage::Stray(told));
        }
    }
}

/// Writes pending bytes. Without pending bytes or a writer it never returns.
async fn write_some(to: &mut Option<Writer>, waiting: &[u8]) -> io::Result<usize> {
    match to {
        Some(to) if !waiting.is_empty() => match to.write(waiting).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            length => Ok(length),
        },
        _ => std::future::pending().await,
    }
}

/// Parses a line as a message.
fn parse_message(line: &[u8]) -> Option<AgentMessage> {
    let mut message: Value = serde_json::from_slice(line).ok()?;
    let object = message.as_object_mut()?;
    let id = object.remove("id").filter(|id| !id.is_null());
    if let Some(method) = object.remove("method") {
        let method = method.as_str()?.to_owned();
        let params = object.remove("params").unwrap_or_default();
        return Some(match id {
            Some(id) => AgentMessage::Request { id, method, params },
            None => AgentMessage::Notification { method, params },
        });
    }
    let id = id?.as_u64()?;
    let answer = match (object.remove("result"), object.remove("error")) {
        (_, Some(error)) if !error.is_null() => Err(format_rpc_error(&error)),
        (Some(result), _) => Ok(result),
        (None, _) => return None,
    };
    Some(AgentMessage::Answer { id, answer })
}

/// Formats a JSON-RPC error. Agents put the relevant text into the message or into the data.
fn format_rpc_error(error: &Value) -> String {
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

    fn reading(bytes: Vec<u8>) -> AcpConnection {
        AcpConnection::new(None, Some(Box::new(io::Cursor::new(bytes))), None)
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
            AgentMessage::Answer { id: 1, answer: Ok(json!({ "a": 1 })) },
            AgentMessage::Answer { id: 2, answer: Err(told) },
            AgentMessage::Request {
                id: json!("x"),
                method: "fs/read_text_file".into(),
                params: json!({}),
            },
            AgentMessage::Notification {
                method: "session/update".into(),
                params: json!({ "b": 2 }),
            },
            AgentMessage::Gone,
        ] {
            assert_eq!(wire.next().await, expected);
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_passed_on_as_output() {
        let mut wire = reading(b"Starting\n[1,2]\n{\"id\":null}\n{\"id\":1}\n\xff\n".to_vec());
        let mut strays = String::new();
        while let AgentMessage::Stray(told) = wire.next().await {
            for happened in told {
                let cynode_core::nodes::JobEventData::Output { stream, text } = happened else {
                    panic!()
                };
                assert_eq!(stream, "stdout");
                strays += &text;
            }
        }
        assert_eq!(strays, "Starting\n[1,2]\n{\"id\":null}\n{\"id\":1}\n\u{fffd}\n");
        assert_eq!(wire.stray_tail(), strays.trim());
    }

    #[tokio::test]
    async fn a_line_without_end_is_left_out_and_the_next_one_read() {
        let mut bytes = vec![b'x'; MAX_MESSAGE_BYTES + 100_000];
        bytes.extend_from_slice(b"\n{\"method\":\"a\"}\n");
        let mut wire = reading(bytes);
        assert_eq!(wire.next().await, AgentMessage::TooLong((MAX_MESSAGE_BYTES + 100_001) as u64));
        let next = AgentMessage::Notification { method: "a".into(), params: Value::Null };
        assert_eq!(wire.next().await, next);
        assert!(wire.line.capacity() < 4 * MAX_MESSAGE_BYTES);
    }

    #[tokio::test]
    async fn an_agent_that_reads_slowly_gets_everything_while_it_is_listened_to() {
        let (ours, theirs) = duplex(64);
        let (mut read, mut write) = tokio::io::split(theirs);
        let (read_ours, write_ours) = tokio::io::split(ours);
        let mut wire =
            AcpConnection::new(Some(Box::new(write_ours)), Some(Box::new(read_ours)), None);
        let long = "y".repeat(10_000);
        assert_eq!(wire.send_request("a", &long), 1);
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
            assert!(matches!(wire.next().await, AgentMessage::Notification { .. }));
            assert_eq!(wire.next().await, AgentMessage::Answer { id: 1, answer: Ok(Value::Null) });
        };
        tokio::join!(agent, us);
    }
}
