//! Runs a program inside the sandbox from start to exit.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use cynode_core::{evidence::test_results::TestReport, nodes::JobEventData};
use cynode_test_reports::ReportReader;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};

use super::{HOME_DIR, SandboxRunner, WorkerInstruction};
use crate::{
    chunking::{MAX_LINE_BYTES, safe_cut_length},
    sandbox::{BindMount, SandboxError, SandboxExit, SandboxProcess},
};

/// Maximum number of bytes per read.
const READ_BUFFER_BYTES: usize = 8 * 1024;

/// Returns the base environment of every program.
pub(super) fn base_environment() -> BTreeMap<String, String> {
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", HOME_DIR),
        ("USER", "agent"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("NO_PROXY", "127.0.0.1,localhost"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Specification of a program run.
pub(super) struct ProgramSpec<'a> {
    pub(super) argv: &'a [String],
    /// Bind mounts besides the job's directories.
    pub(super) binds: &'a [BindMount],
    /// Standard input.
    pub(super) input: &'a [u8],
    /// Deadline of the program.
    pub(super) until: Instant,
    /// Maximum number of bytes of each stream that are forwarded as events.
    pub(super) most: usize,
    /// Number of bytes of the output's tail that are kept.
    pub(super) keep: usize,
    /// Text that is searched for in the whole output.
    pub(super) expect: Option<&'a str>,
    /// Reads results per test from the output.
    pub(super) report: Option<ReportReader>,
}

/// Outcome of a program.
#[derive(Debug)]
pub(super) struct ProgramOutcome {
    pub(super) ended: SandboxExit,
    pub(super) how: ProgramEnd,
    /// Tail of the output.
    pub(super) output: String,
    /// Whether the output was truncated.
    pub(super) truncated: bool,
    /// SHA-256 of the whole output, in order of arrival.
    pub(super) sha256: String,
    /// Whether one of the streams contains the searched text.
    pub(super) expected: Option<bool>,
    /// Results per test, where the output has them.
    pub(super) tests: Option<TestReport>,
    pub(super) took: Duration,
}

/// Reason why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramEnd {
    /// It exited by itself, or by a limit of its sandbox.
    Itself,
    /// Its deadline was reached.
    Late,
    /// A person cancelled it.
    Cancelled,
}

impl ProgramOutcome {
    pub(super) fn is_success(&self) -> bool {
        self.how == ProgramEnd::Itself && self.ended.exit_code == Some(0)
    }
}

/// Listens to instructions for workers that accept no messages while they run.
pub(super) struct InstructionListener<'a> {
    orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    events: mpsc::Sender<JobEventData>,
    paused: bool,
    deaf: bool,
}

impl<'a> InstructionListener<'a> {
    pub(super) fn new(
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
        events: mpsc::Sender<JobEventData>,
    ) -> Self {
        Self { orders, events, paused: false, deaf: false }
    }

    /// Waits for a cancel instruction and never returns without one.
    pub(super) async fn wait_cancelled(&mut self) {
        loop {
            if self.deaf {
                std::future::pending::<()>().await;
            }
            match self.orders.recv().await {
                Some(WorkerInstruction::Cancel) => return,
                Some(WorkerInstruction::Pause) => self.paused = true,
                Some(WorkerInstruction::Resume) => self.paused = false,
                Some(WorkerInstruction::Tell(text)) => {
                    let text = format!("This worker follows its list and cannot be told: {text}");
                    send_event(&self.events, JobEventData::Note { text }).await;
                }
                None => self.deaf = true,
            }
        }
    }

    /// Waits while paused. Returns whether the work may continue.
    pub(super) async fn wait_while_paused(&mut self, until: Instant) -> bool {
        loop {
            let order = match self.orders.try_recv() {
                Ok(order) => Some(order),
                Err(_) if !self.paused => return true,
                Err(_) => tokio::select! {
                    order = self.orders.recv() => order,
                    () = sleep_until(until) => return false,
                },
            };
            match order {
                Some(WorkerInstruction::Pause) => self.paused = true,
                Some(WorkerInstruction::Resume | WorkerInstruction::Tell(_)) => {
                    self.paused = false;
                }
                Some(WorkerInstruction::Cancel) | None => return false,
            }
        }
    }
}

/// Sends an event. A closed channel is ignored: no one needs the event then.
pub(super) async fn send_event(events: &mpsc::Sender<JobEventData>, happened: JobEventData) {
    let _ = events.send(happened).await;
}

/// Sends events in order.
async fn send_events(
    events: &mpsc::Sender<JobEventData>,
    happened: impl IntoIterator<Item = JobEventData>,
) {
    for happened in happened {
        send_event(events, happened).await;
    }
}

/// Runs a program to its end and forwards its output as events.
pub(super) async fn run_to_completion(
    sandbox: &dyn SandboxRunner,
    mut program: ProgramSpec<'_>,
    events: &mpsc::Sender<JobEventData>,
    ear: &mut InstructionListener<'_>,
) -> Result<ProgramOutcome, SandboxError> {
    let started = Instant::now();
    let mut process = sandbox.run_program(program.argv, &base_environment(), program.binds).await?;
    let mut run = ProgramRun::new(&mut program, &mut process);
    let killer = process.kill_handle();
    let mut exit = pin!(process.wait_for_exit());
    let (how, ended) = loop {
        // A program that closed both streams may continue until its deadline.
        let silent = run.is_silent();
        let happened = tokio::select! {
            read = run.stdout.read() => run.handle_stdout(read),
            read = run.stderr.read() => run.handle_stderr(read),
            written = run.stdin.write() => {
                run.stdin.advance(written);
                Vec::new()
            }
            ended = &mut exit, if silent => break (ProgramEnd::Itself, Some(ended)),
            () = ear.wait_cancelled() => break (ProgramEnd::Cancelled, None),
            () = sleep_until(program.until) => break (ProgramEnd::Late, None),
        };
        send_events(events, happened).await;
    };
    if how != ProgramEnd::Itself {
        killer.kill();
    }
    send_events(events, run.finish_streams()).await;
    let ended = match ended {
        Some(ended) => ended,
        None => exit.await,
    };
    Ok(run.into_outcome(how, ended, started.elapsed()))
}

/// State of a program run.
struct ProgramRun<'a> {
    stdin: ProgramInput<'a>,
    stdout: ProgramOutput<ChildStdout>,
    stderr: ProgramOutput<BufReader<ChildStderr>>,
    /// Both output streams, in order of arrival.
    merged: MergedOutput,
    report: Option<ReportReader>,
}

impl<'a> ProgramRun<'a> {
    /// Takes the streams of a process.
    fn new(program: &mut ProgramSpec<'a>, process: &mut SandboxProcess) -> Self {
        Self {
            stdin: ProgramInput::new(process.stdin.take(), program.input),
            stdout: ProgramOutput::new(process.stdout.take(), "stdout", program),
            stderr: ProgramOutput::new(process.stderr.take(), "stderr", program),
            merged: MergedOutput { tail: TailBuffer::new(program.keep), digest: Sha256::new() },
            report: program.report.take(),
        }
    }

    /// Returns whether the program closed both output streams.
    fn is_silent(&self) -> bool {
        self.stdout.reader.is_none() && self.stderr.reader.is_none()
    }

    /// Handles a read from standard output. Returns the events to send.
    fn handle_stdout(&mut self, read: Option<usize>) -> Vec<JobEventData> {
        if let Some((report, length)) = self.report.as_mut().zip(read) {
            report.push(&self.stdout.buffer[..length]);
        }
        self.stdout.handle_read(read, &mut self.merged)
    }

    /// Handles a read from standard error. Returns the events to send.
    fn handle_stderr(&mut self, read: Option<usize>) -> Vec<JobEventData> {
        if let Some((report, length)) = self.report.as_mut().zip(read) {
            report.push_stderr(&self.stderr.buffer[..length]);
        }
        self.stderr.handle_read(read, &mut self.merged)
    }

    /// Returns the remaining events of both streams.
    fn finish_streams(&mut self) -> Vec<JobEventData> {
        let mut happened = self.stdout.forwarded.finish_stream();
        happened.extend(self.stderr.forwarded.finish_stream());
        happened
    }

    fn into_outcome(self, how: ProgramEnd, ended: SandboxExit, took: Duration) -> ProgramOutcome {
        let Self { stdin: _, stdout, stderr, merged, report } = self;
        let MergedOutput { mut tail, digest } = merged;
        let mut tests = report.and_then(ReportReader::finish);
        if let Some(tests) = &mut tests {
            // A program that was stopped did not run all of its tests.
            tests.incomplete |= how != ProgramEnd::Itself || ended.exit_code.is_none();
        }
        let left_out = stdout.forwarded.left_out + stderr.forwarded.left_out;
        let matches = stdout.search.zip(stderr.search);
        ProgramOutcome {
            ended,
            how,
            truncated: tail.lost || left_out > 0,
            output: tail.read_text(),
            sha256: HEXLOWER.encode(&digest.finalize()),
            expected: matches.map(|(out, err)| out.is_match() || err.is_match()),
            tests,
            took,
        }
    }
}

/// Standard input of a program, and the bytes that are still to be written.
struct ProgramInput<'a> {
    writer: Option<ChildStdin>,
    rest: &'a [u8],
}

impl<'a> ProgramInput<'a> {
    fn new(writer: Option<ChildStdin>, input: &'a [u8]) -> Self {
        Self { writer: writer.filter(|_| !input.is_empty()), rest: input }
    }

    /// Writes some bytes and returns their number; 0 after an error. Without a writer it never returns.
    async fn write(&mut self) -> usize {
        match &mut self.writer {
            Some(writer) => writer.write(self.rest).await.unwrap_or(0),
            None => std::future::pending().await,
        }
    }

    /// Skips written bytes, and closes the stream after the last one. A program need not read all of its input.
    fn advance(&mut self, written: usize) {
        self.rest = if written == 0 { &[] } else { &self.rest[written..] };
        if self.rest.is_empty() {
            self.writer = None;
        }
    }
}

/// One output stream of a program.
struct ProgramOutput<R> {
    /// `None` after the end of the stream.
    reader: Option<R>,
    buffer: Vec<u8>,
    /// Each stream has its own search: output to both streams arrives in any order.
    search: Option<StreamSearch>,
    forwarded: OutputStream,
}

impl<R: AsyncRead + Unpin> ProgramOutput<R> {
    fn new(reader: Option<R>, stream: &'static str, program: &ProgramSpec<'_>) -> Self {
        Self {
            reader,
            buffer: vec![0; READ_BUFFER_BYTES],
            search: program.expect.map(StreamSearch::new),
            forwarded: OutputStream::new(stream, program.most),
        }
    }

    /// Reads some bytes into the buffer.
    async fn read(&mut self) -> Option<usize> {
        read_some(&mut self.reader, &mut self.buffer).await
    }

    /// Handles the outcome of a read. Returns the events to send.
    fn handle_read(&mut self, read: Option<usize>, merged: &mut MergedOutput) -> Vec<JobEventData> {
        let Some(length) = read else {
            self.reader = None;
            return self.forwarded.finish_stream();
        };
        let bytes = &self.buffer[..length];
        merged.push_bytes(bytes);
        if let Some(search) = &mut self.search {
            search.feed_bytes(bytes);
        }
        self.forwarded.push_bytes(bytes)
    }
}

/// Tail and digest of both output streams.
struct MergedOutput {
    tail: TailBuffer,
    digest: Sha256,
}

impl MergedOutput {
    fn push_bytes(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.tail.push_bytes(bytes);
    }
}

/// Script that writes standard input to a file.
const WRITE_FILE_SCRIPT: &str = r#"case $1 in */*) mkdir -p -- "${1%/*}";; esac && cat > "$1""#;
/// Script that writes standard input to a file that can be run.
const WRITE_PROGRAM_SCRIPT: &str =
    r#"case $1 in */*) mkdir -p -- "${1%/*}";; esac && cat > "$1" && chmod 755 -- "$1""#;
/// Script that reads the beginning of a plain file.
const READ_FILE_SCRIPT: &str = r#"test -f "$1" && exec head -c "$2" -- "$1""#;
/// Script that removes a file or a directory.
const REMOVE_FILE_SCRIPT: &str = r#"rm -rf -- "$1""#;

/// Returns whether a command only reads, writes or removes a file.
pub(super) fn is_file_access(argv: &[String]) -> bool {
    let scripts = [WRITE_FILE_SCRIPT, WRITE_PROGRAM_SCRIPT, READ_FILE_SCRIPT, REMOVE_FILE_SCRIPT];
    argv.get(2).is_some_and(|script| scripts.contains(&script.as_str()))
}

/// Writes a file and creates its parent directories. The path is resolved inside the sandbox: a symlink cannot lead out of it.
pub(super) async fn write_file(
    sandbox: &dyn SandboxRunner,
    path: &str,
    text: &str,
    until: Instant,
    events: &mpsc::Sender<JobEventData>,
    ear: &mut InstructionListener<'_>,
) -> Result<ProgramOutcome, SandboxError> {
    write_by_script(sandbox, [WRITE_FILE_SCRIPT, path], text, until, events, ear).await
}

/// Writes a file that can be run, as [`write_file`] does.
pub(super) async fn write_program(
    sandbox: &dyn SandboxRunner,
    path: &str,
    text: &str,
    until: Instant,
    events: &mpsc::Sender<JobEventData>,
    ear: &mut InstructionListener<'_>,
) -> Result<ProgramOutcome, SandboxError> {
    write_by_script(sandbox, [WRITE_PROGRAM_SCRIPT, path], text, until, events, ear).await
}

async fn write_by_script(
    sandbox: &dyn SandboxRunner,
    [script, path]: [&str; 2],
    text: &str,
    until: Instant,
    events: &mpsc::Sender<JobEventData>,
    ear: &mut InstructionListener<'_>,
) -> Result<ProgramOutcome, SandboxError> {
    let argv = ["/bin/sh", "-c", script, "sh", path].map(str::to_owned);
    let (input, binds) = (text.as_bytes(), &[][..]);
    let program = ProgramSpec {
        argv: &argv,
        binds,
        input,
        until,
        most: READ_BUFFER_BYTES,
        keep: READ_BUFFER_BYTES,
        expect: None,
        report: None,
    };
    run_to_completion(sandbox, program, events, ear).await
}

/// Reads a file. The path is resolved inside the sandbox: a symlink cannot lead out of it. Returns nothing for a file that is
/// missing, special or too large.
pub(super) async fn read_file(
    sandbox: &dyn SandboxRunner,
    path: &str,
    max_bytes: usize,
    until: Instant,
) -> Result<Option<Vec<u8>>, SandboxError> {
    let limit = max_bytes.saturating_add(1);
    let argv =
        ["/bin/sh", "-c", READ_FILE_SCRIPT, "sh", path, &limit.to_string()].map(str::to_owned);
    let mut process = sandbox.run_program(&argv, &base_environment(), &[]).await?;
    let mut bytes = Vec::new();
    if let Some(stdout) = process.stdout.take() {
        let mut stdout = stdout.take(limit as u64);
        if timeout_at(until, stdout.read_to_end(&mut bytes)).await.is_err() {
            process.kill();
        }
    }
    let ended = process.wait_for_exit().await;
    Ok((ended.exit_code == Some(0) && bytes.len() <= max_bytes).then_some(bytes))
}

/// Removes a file or a directory. The path is resolved inside the sandbox.
pub(super) async fn remove_file(
    sandbox: &dyn SandboxRunner,
    path: &str,
    until: Instant,
) -> Result<(), SandboxError> {
    let argv = ["/bin/sh", "-c", REMOVE_FILE_SCRIPT, "sh", path].map(str::to_owned);
    let process = sandbox.run_program(&argv, &base_environment(), &[]).await?;
    let killer = process.kill_handle();
    let mut exit = pin!(process.wait_for_exit());
    if timeout_at(until, &mut exit).await.is_err() {
        killer.kill();
        exit.await;
    }
    Ok(())
}

/// Reads some bytes; 0 at the end. Without a reader it never returns.
pub(super) async fn read_some<R: AsyncRead + Unpin>(
    from: &mut Option<R>,
    into: &mut [u8],
) -> Option<usize> {
    match from {
        Some(from) => from.read(into).await.ok().filter(|length| *length > 0),
        None => std::future::pending().await,
    }
}

/// Streaming substring search (Knuth-Morris-Pratt): reads each byte once and buffers none.
#[derive(Debug)]
pub(super) struct StreamSearch {
    words: Vec<u8>,
    /// Failure table: for each prefix of the pattern, the length of its longest proper prefix that is also its suffix.
    falls: Vec<usize>,
    /// Length of the pattern prefix that matches at the end of the input.
    so_far: usize,
}

impl StreamSearch {
    pub(super) fn new(words: &str) -> Self {
        let words = words.as_bytes().to_vec();
        let mut falls = vec![0; words.len()];
        let mut length = 0;
        for at in 1..words.len() {
            while length > 0 && words[at] != words[length] {
                length = falls[length - 1];
            }
            length += usize::from(words[at] == words[length]);
            falls[at] = length;
        }
        Self { words, falls, so_far: 0 }
    }

    pub(super) fn feed_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.is_match() {
                return;
            }
            while self.so_far > 0 && self.words[self.so_far] != *byte {
                self.so_far = self.falls[self.so_far - 1];
            }
            self.so_far += usize::from(self.words[self.so_far] == *byte);
        }
    }

    pub(super) fn is_match(&self) -> bool {
        self.so_far == self.words.len()
    }
}

/// Buffer of the output's tail.
#[derive(Debug)]
pub(super) struct TailBuffer {
    bytes: Vec<u8>,
    keep: usize,
    lost: bool,
}

impl TailBuffer {
    pub(super) fn new(keep: usize) -> Self {
        Self { bytes: Vec::new(), keep, lost: false }
    }

    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // The buffer may grow to twice its size, so that bytes are rarely moved.
        if self.bytes.len() > 2 * self.keep {
            self.trim_front();
        }
    }

    fn trim_front(&mut self) {
        if let Some(over) = self.bytes.len().checked_sub(self.keep).filter(|over| *over > 0) {
            self.bytes.drain(..over);
            self.lost = true;
        }
    }

    pub(super) fn read_text(&mut self) -> String {
        self.trim_front();
        String::from_utf8_lossy(&self.bytes).trim_start_matches('\u{fffd}').to_owned()
    }
}

/// Forwards one output stream in whole lines where possible, up to a maximum size.
#[derive(Debug)]
pub(super) struct OutputStream {
    stream: &'static str,
    pending: Vec<u8>,
    room: usize,
    left_out: u64,
    noted: bool,
}

impl OutputStream {
    pub(super) fn new(stream: &'static str, most: usize) -> Self {
        Self { stream, pending: Vec::new(), room: most, left_out: 0, noted: false }
    }

    /// Adds output. Returns the events to send now.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> Vec<JobEventData> {
        let kept = bytes.len().min(self.room);
        self.room -= kept;
        self.left_out += (bytes.len() - kept) as u64;
        self.pending.extend_from_slice(&bytes[..kept]);
        self.emit_until(safe_cut_length(&self.pending, MAX_LINE_BYTES)).into_iter().collect()
    }

    /// Returns the pending partial line without waiting for its end. An incomplete UTF-8 character stays pending.
    pub(super) fn flush(&mut self) -> Option<JobEventData> {
        self.emit_until(self.pending.len())
    }

    fn emit_until(&mut self, end: usize) -> Option<JobEventData> {
        let whole = match std::str::from_utf8(&self.pending[..end]) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => end,
        };
        let rest = self.pending.split_off(whole);
        let told = self.take_event();
        self.pending = rest;
        told
    }

    /// Returns the remaining output at the end of the stream, and a truncation mark if output is missing.
    pub(super) fn finish_stream(&mut self) -> Vec<JobEventData> {
        if self.left_out > 0 {
            // A partial line may contain a partial secret.
            let whole = safe_cut_length(&self.pending, MAX_LINE_BYTES);
            self.left_out += (self.pending.len() - whole) as u64;
            self.pending.truncate(whole);
        }
        let mut told: Vec<_> = self.take_event().into_iter().collect();
        if self.left_out > 0 && !self.noted {
            self.noted = true;
            told.push(JobEventData::Truncated { bytes: self.left_out });
        }
        told
    }

    fn take_event(&mut self) -> Option<JobEventData> {
        let bytes = std::mem::take(&mut self.pending);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (!text.is_empty()).then(|| JobEventData::Output { stream: self.stream.to_owned(), text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(text: &str) -> JobEventData {
        JobEventData::Output { stream: "stdout".into(), text: text.into() }
    }

    #[test]
    fn output_is_told_in_whole_lines_and_the_rest_when_asked_for() {
        let mut out = OutputStream::new("stdout", 1000);
        assert_eq!(out.push_bytes(b"one\ntwo\nth"), [output("one\ntwo\n")]);
        assert_eq!(out.push_bytes(b"re"), []);
        assert_eq!(out.flush(), Some(output("three".get(..4).unwrap())));
        assert_eq!(out.push_bytes(b"e"), []);
        assert_eq!(out.finish_stream(), [output("e")]);
    }

    #[test]
    fn a_character_in_two_pieces_is_told_whole() {
        let mut out = OutputStream::new("stdout", 1000);
        let bytes = "é".as_bytes();
        assert_eq!(out.push_bytes(&bytes[..1]), []);
        assert_eq!(out.flush(), None);
        assert_eq!(out.push_bytes(&bytes[1..]), []);
        assert_eq!(out.flush(), Some(output("é")));
    }

    #[test]
    fn too_much_output_is_cut_and_said_to_be() {
        let mut out = OutputStream::new("stdout", 4);
        assert_eq!(out.push_bytes(b"ab\ncdef"), [output("ab\n")]);
        assert_eq!(out.push_bytes(b"gh"), []);
        assert_eq!(out.finish_stream(), [JobEventData::Truncated { bytes: 6 }]);
        assert_eq!(out.finish_stream(), []);
        let mut out = OutputStream::new("stdout", 4);
        assert_eq!(out.push_bytes(b"abcd"), []);
        assert_eq!(out.finish_stream(), [output("abcd")]);
    }

    #[test]
    fn a_line_that_comes_over_several_reads_is_told_in_one_piece() {
        let mut out = OutputStream::new("stdout", 100_000);
        let line = format!("{}\n", "words and ".repeat(400));
        let (first, second) = line.split_at(3000);
        assert_eq!(out.push_bytes(first.as_bytes()), []);
        assert_eq!(out.push_bytes(second.as_bytes()), [output(&line)]);
        let long = "words and ".repeat(800);
        assert_eq!(out.push_bytes(long.as_bytes()), [output(&long)]);
        assert_eq!(out.push_bytes(b"key-abc"), []);
        assert_eq!(out.push_bytes(b"def\n"), [output("key-abcdef\n")]);
    }

    proptest::proptest! {
        #[test]
        fn words_are_found_wherever_they_are_and_however_they_come(
            words in "[ab]{0,6}",
            pieces in proptest::collection::vec("[ab]{0,5}", 0..12),
        ) {
            let mut sought = StreamSearch::new(&words);
            for piece in &pieces {
                sought.feed_bytes(piece.as_bytes());
            }
            proptest::prop_assert_eq!(sought.is_match(), pieces.concat().contains(&words));
        }
    }

    #[test]
    fn the_tail_is_the_end_and_knows_that_it_is_not_all() {
        let mut tail = TailBuffer::new(4);
        tail.push_bytes(b"abc");
        assert_eq!((tail.read_text(), tail.lost), ("abc".into(), false));
        tail.push_bytes(b"defghi");
        assert_eq!((tail.read_text(), tail.lost), ("fghi".into(), true));
    }
}
