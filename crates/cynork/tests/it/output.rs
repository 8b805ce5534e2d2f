//! The program itself: what becomes of what it writes.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

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

/// A server that gives these answers, one after the other, whatever is asked. Its address.
fn answering(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for answer in answers {
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
    url
}

/// An answer that ends where the connection does.
fn answer(status: &str, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}")
}

#[test]
fn what_happens_is_told_until_nobody_reads_it() {
    let event = json!({ "id": "1.1", "kind": "task.created", "occurred_at": "2026-01-01T00:00:00Z",
        "actor_id": null, "project_id": null, "task_id": null, "trace_id": "", "data": {} });
    let stream = format!("id: 1.1\ndata: {event}\n\n");
    let url = answering(vec![
        answer("200 OK", "text/event-stream", &stream),
        // Whoever comes back for more is not let in.
        answer("401 Unauthorized", "application/json", "{}"),
    ]);
    assert_eq!(run(&["events", "--json", "--url", &url], unread()), (Some(0), String::new()));
}

#[test]
fn no_screen_is_drawn_on_a_terminal_that_only_takes_lines() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cynork"));
    command.env_clear().env("HOME", home.path()).env("TERM", "dumb").stdin(Stdio::null());
    let done = command.output().unwrap();
    let told = "cynork: the screen needs a terminal that it can draw on, and TERM says `dumb`\n        \
        next: use a command, such as `cynork task list`; `cynork --help` names all\n";
    let seen = (done.status.code(), String::from_utf8(done.stderr).unwrap());
    assert_eq!(seen, (Some(2), told.to_owned()));
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "");
}

#[test]
fn whoever_is_not_logged_in_is_told_how_to() {
    let problem = json!({ "type": "urn:cynode:problem:unauthenticated", "title": "Unauthorized", "status": 401,
        "code": "unauthenticated", "detail": "credentials are missing, expired, revoked or wrong",
        "fix": "send a key" });
    let said = answer("401 Unauthorized", "application/problem+json", &problem.to_string());
    let told = "cynork: you are not logged in\n        next: log in with `cynork login`\n";
    assert_eq!(
        run(&["task", "list", "--url", &answering(vec![said])], Stdio::null()),
        (Some(3), told.to_owned())
    );
}

#[test]
fn a_pull_request_that_is_not_there_is_not_told_with_an_id() {
    let said = answer("200 OK", "application/json", "{\"items\":[]}");
    let (url, project) = (answering(vec![said]), "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708");
    let words = ["pr", "show", "99", "--project", project, "--url", url.as_str()];
    let told = "cynork: the project has no pull request 99\n        \
        next: `cynork pr list --all` names those that there are\n";
    assert_eq!(run(&words, Stdio::null()), (Some(4), told.to_owned()));
}

#[test]
fn a_patch_that_cannot_be_applied_is_a_failure() {
    let task = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
    let timeline = json!({
        "task_id": task, "run_id": "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "trace_id": "",
        "state": "completed", "standing": "completed", "retries_used": 0, "cost_micros": 0,
        "steps": [], "waits": [], "units": [], "jobs": [], "mermaid": "", "plan_mermaid": "",
        "pull_request": { "id": "pul_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "number": 1, "url": "/", "state": "open",
            "title": "A logo", "branch": "cynode/a-logo" },
    });
    let mut diff = json!({ "base": "b", "head": "h", "text": "Binary files a/x and b/x differ\n",
        "truncated": false, "inexact": true });
    let run = |diff: &Value| {
        let said =
            [&timeline, diff].map(|it| answer("200 OK", "application/json", &it.to_string()));
        run(&["task", "diff", task, "--url", &answering(Vec::from(said))], Stdio::null())
    };
    let told = "cynork: this is not exact, so `git apply` does not take it: a file is binary or not UTF-8\n        \
        next: take it with git: `cynork project clone PROJECT`, and there `git diff --binary b h`\n";
    assert_eq!(run(&diff), (Some(1), told.to_owned()));
    // What an older server says nothing of is taken as before.
    diff.as_object_mut().unwrap().remove("inexact");
    assert_eq!(run(&diff), (Some(0), String::new()));
}
