//! Upstream MCP servers that run as sandboxed processes and exchange lines of JSON. Backpressure: a bounded queue holds the messages that
//! the server has not read yet.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::catalog::UpstreamCatalog;
use super::error::{ConnectionEffect, ExchangeFailure};
use super::message::{self, ServerMessage, UpstreamEra};
use super::sandbox::{ProgramSandbox, SandboxProgram, SandboxedProgram};
use super::{
    CallProgress, MAX_ANSWER_BYTES, UpstreamCall, UpstreamError, UpstreamReply, UpstreamTool,
};
use cynode_core::sync::lock_unpoisoned;
use cynode_sandbox::ExitReason;

/// Maximum number of messages that wait for the server to read them.
const OUTBOX_CAPACITY: usize = 64;
/// Time that a server has to exit by itself after its input is closed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that the processes of a sandbox have to disappear after they are killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a server's stderr that are logged.
const MAX_STDERR_BYTES: usize = 64 * 1024;
/// Maximum number of bytes of one line of stderr that are logged.
const MAX_STDERR_LINE_BYTES: usize = 1024;

/// What it takes to start the program of a server.
#[derive(Clone, Copy)]
pub(super) struct ProgramLaunch<'a> {
    pub(super) sandbox: &'a ProgramSandbox,
    pub(super) server: Uuid,
    pub(super) program: &'a SandboxProgram<'a>,
    pub(super) tasks: &'a TaskTracker,
}

/// A running server whose era is known.
#[derive(Debug)]
pub(super) struct StdioConnection {
    pipe: ProcessPipe,
    era: UpstreamEra,
}

impl StdioConnection {
    /// Starts the server and detects its era.
    pub(super) async fn open_connection(
        launch: ProgramLaunch<'_>,
        patience: Duration,
    ) -> Result<Self, UpstreamError> {
        let mut pipe = ProcessPipe::spawn_process(launch).await?;
        let id = pipe.next_id();
        match timeout(patience, pipe.send_request(id, message::encode_discover(id)?, None)).await {
            Ok(Ok(result)) => {
                if let Some(era) = message::era_from_discovery(&result) {
                    return Ok(Self { pipe, era });
                }
            }
            // Some legacy servers exit when they do not understand the first request.
            Ok(Err(ExchangeFailure { effect: ConnectionEffect::Lose, .. })) => {
                pipe = ProcessPipe::spawn_process(launch).await?;
            }
            Ok(Err(_)) | Err(_) => {}
        }
        let id = pipe.next_id();
        let era = match pipe.send_request(id, message::encode_initialize(id)?, None).await {
            Ok(result) => message::era_from_initialize(&result)?,
            // The server was only slow to start when it got the first request.
            Err(failure) if message::supports_modern(&failure.error) => UpstreamEra::Modern,
            Err(failure) => return Err(failure.error),
        };
        if matches!(era, UpstreamEra::Legacy(_)) {
            pipe.send_message(message::encode_initialized()?)
                .await
                .map_err(|failure| failure.error)?;
        }
        Ok(Self { pipe, era })
    }

    /// Lists all tools of the server.
    pub(super) async fn list_tools(&self) -> Result<Vec<UpstreamTool>, ExchangeFailure> {
        let mut catalog = UpstreamCatalog::default();
        loop {
            let id = self.pipe.next_id();
            let body = message::encode_list_tools(id, self.era, catalog.next_cursor())
                .map_err(ExchangeFailure::keep_connection)?;
            match catalog.add_page(&self.pipe.send_request(id, body, None).await?)? {
                ControlFlow::Continue(next) => catalog = next,
                ControlFlow::Break(tools) => return Ok(tools),
            }
        }
    }

    /// Calls a tool.
    pub(super) async fn call_tool(
        &self,
        call: &UpstreamCall<'_>,
    ) -> Result<UpstreamReply, ExchangeFailure> {
        let id = self.pipe.next_id();
        let body = message::encode_call_tool(id, self.era, call)
            .map_err(ExchangeFailure::keep_connection)?;
        let result = self.pipe.send_request(id, body, call.progress.clone()).await?;
        message::parse_reply(self.era, result).map_err(ExchangeFailure::keep_connection)
    }

    /// Returns whether the server still runs.
    pub(super) fn is_open(&self) -> bool {
        self.pipe.board.lock().ending.is_none()
    }

    /// Ends the server and waits for its exit.
    pub(super) async fn close_process(&self) {
        self.pipe.stop.token().cancel();
        self.pipe.board.ended.cancelled().await;
    }
}

/// Reason why a server no longer answers.
#[derive(Clone, Copy, Debug)]
enum ProcessEnd {
    Exited,
    TooLarge,
    Closed,
}

impl ProcessEnd {
    fn to_failure(self) -> ExchangeFailure {
        ExchangeFailure::lose_connection(match self {
            Self::Exited => UpstreamError::from_transport("the process ended"),
            Self::TooLarge => UpstreamError::TooLarge { limit: MAX_ANSWER_BYTES },
            Self::Closed => UpstreamError::Closed,
        })
    }
}

/// Channel to a process. Dropping it ends the process.
#[derive(Debug)]
struct ProcessPipe {
    board: Arc<PendingRequests>,
    outbox: mpsc::Sender<Vec<u8>>,
    next: AtomicU64,
    /// Ends the process when the channel is dropped.
    stop: DropGuard,
}

impl ProcessPipe {
    async fn spawn_process(launch: ProgramLaunch<'_>) -> Result<Self, UpstreamError> {
        let ProgramLaunch { sandbox, server, program, tasks } = launch;
        let mut started = sandbox.start_program(server, program, tasks).await?;
        let process = &mut started.process;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            return Err(UpstreamError::from_transport("the process has no pipes"));
        };
        let (outbox, queue) = mpsc::channel(OUTBOX_CAPACITY);
        let board = Arc::<PendingRequests>::default();
        let stop = CancellationToken::new();
        let keeper = ProcessSupervisor {
            board: Arc::clone(&board),
            server,
            answers: outbox.downgrade(),
            stop: stop.clone(),
        };
        let streams = ProcessStreams { stdin, stdout, stderr };
        // The task outlives the channel by the time it takes to end the process. If the runtime ends first, the process is killed when the
        // task is dropped.
        tasks.spawn(keeper.supervise_process(started, streams, queue));
        Ok(Self { board, outbox, next: AtomicU64::new(1), stop: stop.drop_guard() })
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    async fn send_message(&self, message: Vec<u8>) -> Result<(), ExchangeFailure> {
        let sent = self.outbox.send(to_line(message)).await;
        sent.map_err(|_| self.board.process_end().to_failure())
    }

    /// Sends a request and waits for its answer. If the caller stops waiting, the server is notified.
    async fn send_request(
        &self,
        id: u64,
        body: Vec<u8>,
        progress: Option<mpsc::Sender<CallProgress>>,
    ) -> Result<Box<RawValue>, ExchangeFailure> {
        let (answer, receiver) = oneshot::channel();
        self.board.register_request(id, PendingRequest { answer, progress })?;
        let _withdrawal = StdioCancelGuard { pipe: self, id };
        self.send_message(body).await?;
        match receiver.await {
            Ok(outcome) => outcome.map_err(ExchangeFailure::keep_connection),
            Err(_) => Err(self.board.process_end().to_failure()),
        }
    }
}

/// Removes a request from the pending ones on drop, and notifies the server if the request was still pending.
struct StdioCancelGuard<'a> {
    pipe: &'a ProcessPipe,
    id: u64,
}

impl Drop for StdioCancelGuard<'_> {
    fn drop(&mut self) {
        let open = self.pipe.board.lock().waiting.remove(&self.id).is_some();
        if open && let Ok(body) = message::encode_cancelled(self.id) {
            // A server that has not read earlier messages will not read this one either.
            drop(self.pipe.outbox.try_send(to_line(body)));
        }
    }
}

/// Requests that wait for an answer.
#[derive(Debug, Default)]
struct PendingRequests {
    entries: Mutex<PendingState>,
    /// Cancelled when the process is gone.
    ended: CancellationToken,
}

#[derive(Debug, Default)]
struct PendingState {
    waiting: HashMap<u64, PendingRequest>,
    ending: Option<ProcessEnd>,
}

#[derive(Debug)]
struct PendingRequest {
    answer: oneshot::Sender<Result<Box<RawValue>, UpstreamError>>,
    progress: Option<mpsc::Sender<CallProgress>>,
}

impl PendingRequests {
    fn lock(&self) -> MutexGuard<'_, PendingState> {
        lock_unpoisoned(&self.entries)
    }

    fn register_request(&self, id: u64, waiting: PendingRequest) -> Result<(), ExchangeFailure> {
        let mut entries = self.lock();
        if let Some(ending) = entries.ending {
            return Err(ending.to_failure());
        }
        entries.waiting.insert(id, waiting);
        Ok(())
    }

    fn process_end(&self) -> ProcessEnd {
        self.lock().ending.unwrap_or(ProcessEnd::Exited)
    }

    /// Fails all pending requests.
    fn fail_pending(&self, ending: ProcessEnd) {
        let mut entries = self.lock();
        entries.ending = Some(ending);
        entries.waiting.clear();
    }

    /// Handles one line from the server. Returns the answer to send, if any.
    fn handle_line(&self, line: &[u8]) -> Option<Vec<u8>> {
        match message::parse_server_message(line) {
            Ok(ServerMessage::Answer { id: Some(id), outcome }) => {
                if let Some(waiting) = self.lock().waiting.remove(&id) {
                    drop(waiting.answer.send(outcome.map(ToOwned::to_owned)));
                }
                None
            }
            Ok(ServerMessage::Progress { token, progress }) => {
                if let Some(PendingRequest { progress: Some(channel), .. }) =
                    self.lock().waiting.get(&token)
                {
                    // A slow or closed reader must not delay other requests.
                    drop(channel.try_send(progress));
                }
                None
            }
            Ok(ServerMessage::Request { id, method }) => {
                message::encode_answer_to(id, &method).ok()
            }
            Ok(ServerMessage::Answer { id: None, .. } | ServerMessage::Other) => None,
            Err(_) => {
                tracing::debug!(bytes = line.len(), "a server printed a line that is not MCP");
                None
            }
        }
    }
}

/// Standard streams of a process.
struct ProcessStreams {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: BufReader<ChildStderr>,
}

/// Supervises a process and moves lines in and out of it.
struct ProcessSupervisor {
    board: Arc<PendingRequests>,
    server: Uuid,
    answers: mpsc::WeakSender<Vec<u8>>,
    stop: CancellationToken,
}

impl ProcessSupervisor {
    async fn supervise_process(
        self,
        started: SandboxedProgram,
        streams: ProcessStreams,
        queue: mpsc::Receiver<Vec<u8>>,
    ) {
        // Pending requests must also fail when this future is dropped.
        let board = Arc::clone(&self.board);
        let _end = EndOnDrop(&board);
        let ProcessStreams { stdin, stdout, stderr } = streams;
        let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
        let ending = tokio::select! {
            biased;
            () = self.stop.cancelled() => ProcessEnd::Closed,
            ending = self.read_messages(&mut stdout) => ending,
            () = write_messages(stdin, queue) => ProcessEnd::Exited,
            () = log_stderr(stderr) => ProcessEnd::Exited,
        };
        self.board.fail_pending(ending);
        let SandboxedProgram { process, egress } = started;
        let killer = process.kill_handle();
        // It returns when no process is left inside the sandbox.
        let exit = process.wait_for_exit();
        tokio::pin!(exit);
        let exited = match timeout(EXIT_TIMEOUT, &mut exit).await {
            Ok(exited) => Some(exited),
            Err(_) => {
                killer.kill();
                timeout(KILL_TIMEOUT, &mut exit).await.ok()
            }
        };
        drop(egress);
        if exited.as_ref().is_some_and(|exited| exited.why == ExitReason::OutOfMemory) {
            tracing::warn!(event = "tool_server.out_of_memory", server.id = %self.server, "a tool server used more memory than it may");
        }
        tracing::debug!(?ending, ?exited, "a server's process has ended");
    }

    async fn read_messages(&self, stdout: &mut (impl AsyncBufRead + Unpin)) -> ProcessEnd {
        let mut line = Vec::new();
        loop {
            line.clear();
            match read_line(stdout, &mut line, MAX_ANSWER_BYTES).await {
                Ok(LineRead::Whole) => {}
                Ok(LineRead::TooLong) => return ProcessEnd::TooLarge,
                Ok(LineRead::End) | Err(_) => return ProcessEnd::Exited,
            }
            if let Some(answer) = self.board.handle_line(&line)
                && let Some(answers) = self.answers.upgrade()
            {
                drop(answers.try_send(self::to_line(answer)));
            }
            line.shrink_to(64 * 1024);
        }
    }
}

struct EndOnDrop<'a>(&'a PendingRequests);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let ending = self.0.process_end();
        self.0.fail_pending(ending);
        self.0.ended.cancel();
    }
}

/// Writes messages until the server stops reading.
async fn write_messages(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Logs the stderr of the server up to a limit, and keeps reading afterwards: a full pipe would block the server. Another task detects the
/// server's end.
async fn log_stderr(mut stderr: impl AsyncBufRead + Unpin) {
    let mut logged = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        match read_line(&mut stderr, &mut line, MAX_STDERR_LINE_BYTES).await {
            Ok(LineRead::Whole | LineRead::TooLong) if logged < MAX_STDERR_BYTES => {
                logged += line.len() + 1;
                tracing::debug!(line = %String::from_utf8_lossy(&line), "a server complains");
            }
            Ok(LineRead::Whole | LineRead::TooLong) => {}
            Ok(LineRead::End) | Err(_) => return std::future::pending().await,
        }
    }
}

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
enum LineRead {
    Whole,
    /// The buffer holds the first part; the rest is unread.
    TooLong,
    End,
}

/// Reads up to the end of a line, which is excluded, or up to `limit`.
async fn read_line(
    source: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    limit: usize,
) -> std::io::Result<LineRead> {
    loop {
        let available = source.fill_buf().await?;
        if available.is_empty() {
            return Ok(LineRead::End);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        let fits = part.len().min(limit - line.len());
        let too_long = fits < part.len();
        line.extend_from_slice(&part[..fits]);
        let used = if too_long { fits } else { part.len() + usize::from(end.is_some()) };
        source.consume(used);
        if too_long {
            return Ok(LineRead::TooLong);
        }
        if end.is_some() {
            return Ok(LineRead::Whole);
        }
    }
}

/// Encodes a message as a line. In JSON a line break can only be white space, so replacing it does not change the meaning.
fn to_line(mut message: Vec<u8>) -> Vec<u8> {
    for byte in &mut message {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message.push(b'\n');
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_read_up_to_their_limit() {
        let mut source = BufReader::with_capacity(4, &b"short\n\n0123456789\nlast"[..]);
        let mut read = Vec::new();
        loop {
            let mut line = Vec::new();
            let how = read_line(&mut source, &mut line, 8).await.unwrap();
            if how == LineRead::End {
                break;
            }
            read.push((how, String::from_utf8(line).unwrap()));
        }
        assert_eq!(
            read,
            [
                (LineRead::Whole, "short".to_owned()),
                (LineRead::Whole, String::new()),
                (LineRead::TooLong, "01234567".to_owned()),
                (LineRead::Whole, "89".to_owned()),
            ]
        );
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(to_line(b"{\r\n\"a\":1\n}".to_vec()), b"{  \"a\":1 }\n", "B004-62");
    }
}
