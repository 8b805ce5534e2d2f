//! Servers that run as sandboxed processes and speak in lines of JSON.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::catalog::Catalog;
use super::error::{Effect, Failure};
use super::message::{self, Era, Message};
use super::sandbox::{self, Program};
use super::{Call, Definition, MAX_ANSWER, Options, Progress, Reply, UpstreamError};
use cynode_core::sync::lock;

/// How many messages may wait for the server to read them.
const OUTBOX: usize = 64;
/// How long a server may take to end by itself when it is no longer spoken to.
const GRACE: Duration = Duration::from_millis(500);
/// How long the processes of a sandbox may take to be gone once they are killed.
const LAST_BREATH: Duration = Duration::from_secs(2);
/// How much of what a server complains about is logged.
const MAX_COMPLAINTS: usize = 64 * 1024;
/// How much of one line of it is.
const MAX_COMPLAINT: usize = 1024;

/// A running server whose era is known.
#[derive(Debug)]
pub(super) struct Stdio {
    pipe: Pipe,
    era: Era,
}

impl Stdio {
    /// Starts the server and finds out its era.
    pub(super) async fn open(
        options: &Options,
        program: &Program<'_>,
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        let bubblewrap = &options.bubblewrap;
        let mut pipe = Pipe::start(bubblewrap, program, tasks)?;
        let id = pipe.id();
        match timeout(options.patience, pipe.ask(id, message::discover(id)?, None)).await {
            Ok(Ok(result)) => {
                if let Some(era) = message::discovered(&result) {
                    return Ok(Self { pipe, era });
                }
            }
            // Some legacy servers end when they do not understand the first thing they hear.
            Ok(Err(Failure { effect: Effect::Lose, .. })) => {
                pipe = Pipe::start(bubblewrap, program, tasks)?;
            }
            Ok(Err(_)) | Err(_) => {}
        }
        let id = pipe.id();
        let era = match pipe.ask(id, message::initialize(id)?, None).await {
            Ok(result) => message::greeted(&result)?,
            // It was only slow to start when it was asked first.
            Err(failure) if message::names_modern(&failure.error) => Era::Modern,
            Err(failure) => return Err(failure.error),
        };
        if matches!(era, Era::Legacy(_)) {
            pipe.send(message::initialized()?).await.map_err(|failure| failure.error)?;
        }
        Ok(Self { pipe, era })
    }

    /// All tools of the server.
    pub(super) async fn list(&self) -> Result<Vec<Definition>, Failure> {
        let mut catalog = Catalog::default();
        loop {
            let id = self.pipe.id();
            let body = message::list(id, self.era, catalog.cursor()).map_err(Failure::keep)?;
            match catalog.add(&self.pipe.ask(id, body, None).await?)? {
                ControlFlow::Continue(next) => catalog = next,
                ControlFlow::Break(tools) => return Ok(tools),
            }
        }
    }

    /// Calls a tool.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Reply, Failure> {
        let id = self.pipe.id();
        let body = message::call(id, self.era, call).map_err(Failure::keep)?;
        let result = self.pipe.ask(id, body, call.progress.clone()).await?;
        message::reply(self.era, result).map_err(Failure::keep)
    }

    /// Whether the server still runs.
    pub(super) fn is_open(&self) -> bool {
        self.pipe.board.lock().ending.is_none()
    }

    /// Ends the server and waits until it has.
    pub(super) async fn close(&self) {
        self.pipe.stop.token().cancel();
        self.pipe.board.ended.cancelled().await;
    }
}

/// Why a server no longer answers.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Exited,
    TooLarge,
    Closed,
}

impl Ending {
    fn failure(self) -> Failure {
        Failure::lose(match self {
            Self::Exited => UpstreamError::unreachable("the process ended"),
            Self::TooLarge => UpstreamError::TooLarge { limit: MAX_ANSWER },
            Self::Closed => UpstreamError::Closed,
        })
    }
}

/// The way to a process and back. Dropping it ends the process.
#[derive(Debug)]
struct Pipe {
    board: Arc<Board>,
    outbox: mpsc::Sender<Vec<u8>>,
    next: AtomicU64,
    /// Ends the process, and is told to when the pipe is dropped.
    stop: DropGuard,
}

impl Pipe {
    fn start(
        bubblewrap: &Path,
        program: &Program<'_>,
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        let mut child =
            sandbox::command(bubblewrap, program)?.spawn().map_err(UpstreamError::Sandbox)?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(UpstreamError::unreachable("the process has no pipes"));
        };
        let (outbox, queue) = mpsc::channel(OUTBOX);
        let board = Arc::<Board>::default();
        let stop = CancellationToken::new();
        let keeper = Keeper {
            board: Arc::clone(&board),
            child,
            answers: outbox.downgrade(),
            stop: stop.clone(),
        };
        // It outlives this by what it takes to end the process. Should the runtime not, then the
        // process is killed when the task is dropped.
        tasks.spawn(keeper.keep(stdin, stdout, stderr, queue));
        Ok(Self { board, outbox, next: AtomicU64::new(1), stop: stop.drop_guard() })
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    async fn send(&self, message: Vec<u8>) -> Result<(), Failure> {
        let sent = self.outbox.send(line(message)).await;
        sent.map_err(|_| self.board.ending().failure())
    }

    /// Sends a request and waits for its answer. When nobody waits any more, the server is told.
    async fn ask(
        &self,
        id: u64,
        body: Vec<u8>,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Box<RawValue>, Failure> {
        let (answer, receiver) = oneshot::channel();
        self.board.expect(id, Waiting { answer, progress })?;
        let _withdrawal = Withdrawal { pipe: self, id };
        self.send(body).await?;
        match receiver.await {
            Ok(outcome) => outcome.map_err(Failure::keep),
            Err(_) => Err(self.board.ending().failure()),
        }
    }
}

/// Strikes a request off the board, and tells the server if it was still on it.
struct Withdrawal<'a> {
    pipe: &'a Pipe,
    id: u64,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        let open = self.pipe.board.lock().waiting.remove(&self.id).is_some();
        if open && let Ok(body) = message::cancelled(self.id) {
            // A server that does not read what it was sent before will not read this either.
            drop(self.pipe.outbox.try_send(line(body)));
        }
    }
}

/// Who waits for what.
#[derive(Debug, Default)]
struct Board {
    entries: Mutex<Entries>,
    /// Cancelled when the process is gone.
    ended: CancellationToken,
}

#[derive(Debug, Default)]
struct Entries {
    waiting: HashMap<u64, Waiting>,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<Box<RawValue>, UpstreamError>>,
    progress: Option<mpsc::Sender<Progress>>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }

    fn expect(&self, id: u64, waiting: Waiting) -> Result<(), Failure> {
        let mut entries = self.lock();
        if let Some(ending) = entries.ending {
            return Err(ending.failure());
        }
        entries.waiting.insert(id, waiting);
        Ok(())
    }

    fn ending(&self) -> Ending {
        self.lock().ending.unwrap_or(Ending::Exited)
    }

    /// Lets everybody who waits know that nothing will come.
    fn end(&self, ending: Ending) {
        let mut entries = self.lock();
        entries.ending = Some(ending);
        entries.waiting.clear();
    }

    /// Takes in one line from the server; gives back what is to be answered.
    fn hear(&self, line: &[u8]) -> Option<Vec<u8>> {
        match message::read(line) {
            Ok(Message::Answer { id: Some(id), outcome }) => {
                if let Some(waiting) = self.lock().waiting.remove(&id) {
                    drop(waiting.answer.send(outcome.map(ToOwned::to_owned)));
                }
                None
            }
            Ok(Message::Progress { token, progress }) => {
                if let Some(Waiting { progress: Some(channel), .. }) =
                    self.lock().waiting.get(&token)
                {
                    // A reader that is slow or gone must not hold up the others.
                    drop(channel.try_send(progress));
                }
                None
            }
            Ok(Message::Request { id, method }) => message::answer_to(id, &method).ok(),
            Ok(Message::Answer { id: None, .. } | Message::Other) => None,
            Err(_) => {
                tracing::debug!(bytes = line.len(), "a server printed a line that is not MCP");
                None
            }
        }
    }
}

/// Owns a process and moves lines in and out of it.
struct Keeper {
    board: Arc<Board>,
    child: Child,
    answers: mpsc::WeakSender<Vec<u8>>,
    stop: CancellationToken,
}

impl Keeper {
    async fn keep(
        mut self,
        stdin: ChildStdin,
        stdout: ChildStdout,
        stderr: ChildStderr,
        queue: mpsc::Receiver<Vec<u8>>,
    ) {
        // Also when this future is dropped, those who wait have to learn of it.
        let board = Arc::clone(&self.board);
        let _end = EndOnDrop(&board);
        let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
        let ending = tokio::select! {
            biased;
            () = self.stop.cancelled() => Ending::Closed,
            ending = self.read(&mut stdout) => ending,
            () = write(stdin, queue) => Ending::Exited,
            () = log(BufReader::new(stderr)) => Ending::Exited,
        };
        self.board.end(ending);
        let left = timeout(GRACE, self.child.wait()).await.is_ok();
        if !left {
            self.kill().await;
        }
        // Those inside the sandbox follow its first process in their own time. The pipe ends when
        // the last of them has.
        let mut nowhere = tokio::io::sink();
        let rest = tokio::io::copy_buf(&mut stdout, &mut nowhere);
        let gone = timeout(LAST_BREATH, rest).await.is_ok();
        tracing::debug!(?ending, left, gone, "a server's process has ended");
    }

    /// Kills the sandbox from within, so that bubblewrap, which waits for it outside, buries it.
    /// Were bubblewrap killed instead, this would fall to the machine's first process, and where
    /// that is we, or one that does not care, the dead would pile up.
    async fn kill(&mut self) {
        if let Some(outside) = self.child.id() {
            sandbox::kill_inside(outside);
        }
        if timeout(GRACE, self.child.wait()).await.is_err() {
            drop(self.child.kill().await);
        }
    }

    async fn read(&self, stdout: &mut (impl AsyncBufRead + Unpin)) -> Ending {
        let mut line = Vec::new();
        loop {
            line.clear();
            match read_line(stdout, &mut line, MAX_ANSWER).await {
                Ok(Line::Whole) => {}
                Ok(Line::TooLong) => return Ending::TooLarge,
                Ok(Line::End) | Err(_) => return Ending::Exited,
            }
            if let Some(answer) = self.board.hear(&line)
                && let Some(answers) = self.answers.upgrade()
            {
                drop(answers.try_send(self::line(answer)));
            }
            line.shrink_to(64 * 1024);
        }
    }
}

struct EndOnDrop<'a>(&'a Board);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let ending = self.0.ending();
        self.0.end(ending);
        self.0.ended.cancel();
    }
}

/// Writes until the server reads no more.
async fn write(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Logs what the server complains about, up to a bound, and reads on without end: a full pipe
/// would stop the server, and its end is noticed elsewhere.
async fn log(mut stderr: impl AsyncBufRead + Unpin) {
    let mut logged = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        match read_line(&mut stderr, &mut line, MAX_COMPLAINT).await {
            Ok(Line::Whole | Line::TooLong) if logged < MAX_COMPLAINTS => {
                logged += line.len() + 1;
                tracing::debug!(line = %String::from_utf8_lossy(&line), "a server complains");
            }
            Ok(Line::Whole | Line::TooLong) => {}
            Ok(Line::End) | Err(_) => return std::future::pending().await,
        }
    }
}

/// How reading a line went.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole,
    /// The buffer holds the first part; the rest is still to be read.
    TooLong,
    End,
}

/// Reads up to the end of a line, which is left out, or up to `limit`.
async fn read_line(
    source: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    limit: usize,
) -> std::io::Result<Line> {
    loop {
        let available = source.fill_buf().await?;
        if available.is_empty() {
            return Ok(Line::End);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        let fits = part.len().min(limit - line.len());
        let too_long = fits < part.len();
        line.extend_from_slice(&part[..fits]);
        let used = if too_long { fits } else { part.len() + usize::from(end.is_some()) };
        source.consume(used);
        if too_long {
            return Ok(Line::TooLong);
        }
        if end.is_some() {
            return Ok(Line::Whole);
        }
    }
}

/// A message as a line. In JSON a line break can only be white space, so that replacing it changes
/// nothing of what is said.
fn line(mut message: Vec<u8>) -> Vec<u8> {
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
            if how == Line::End {
                break;
            }
            read.push((how, String::from_utf8(line).unwrap()));
        }
        assert_eq!(
            read,
            [
                (Line::Whole, "short".to_owned()),
                (Line::Whole, String::new()),
                (Line::TooLong, "01234567".to_owned()),
                (Line::Whole, "89".to_owned()),
            ]
        );
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(line(b"{\r\n\"a\":1\n}".to_vec()), b"{  \"a\":1 }\n");
    }
}
