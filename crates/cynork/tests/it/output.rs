//! The program itself: what becomes of what it writes.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
};

/// Runs it with that as its standard output: its exit code, and what it told.
fn run(words: &[&str], output: impl Into<Stdio>) -> (Option<i32>, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cynork"));
    command.args(words).env_clear().env("HOME", home.path());
    let done = command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped()).output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

/// A standard output that nobody reads.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn what_cannot_be_written_is_a_failure() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let why = "standard output cannot be written: No space left on device (os error 28)";
    for words in [&["completions", "bash"][..], &["config", "show", "--quiet"], &["--help"]] {
        assert_eq!(run(words, full()), (Some(8), format!("cynork: {why}\n")), "{words:?}");
    }
    let told = format!("{{\"kind\":\"internal\",\"detail\":\"{why}\"}}\n");
    assert_eq!(run(&["config", "show", "--json"], full()), (Some(8), told));
}

#[test]
fn a_reader_that_has_gone_away_is_no_failure() {
    for words in [&["completions", "bash"][..], &["config", "show", "--json"], &["--help"]] {
        assert_eq!(run(words, unread()), (Some(0), String::new()), "{words:?}");
    }
}

#[test]
fn what_happens_is_told_until_nobody_reads_it() {
    let event = r#"{"id":"1.1","kind":"task.created","occurred_at":"2026-01-01T00:00:00Z","actor_id":null,"project_id":null,"task_id":null,"trace_id":"","data":{}}"#;
    let stream = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nid: 1.1\ndata: {event}\n\n"
    );
    // Whoever comes back for more is not let in.
    let no = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for answer in [stream.as_str(), no] {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                socket.read_exact(&mut byte).unwrap();
                asked.extend(byte);
            }
            socket.write_all(answer.as_bytes()).unwrap();
        }
    });
    assert_eq!(run(&["events", "--json", "--url", &url], unread()), (Some(0), String::new()));
}
