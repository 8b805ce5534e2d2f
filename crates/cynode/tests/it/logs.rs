//! What the running program writes about itself.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Stdio},
    sync::mpsc,
    thread,
};

use cynode_testkit_db::TestDb;
use serde_json::Value;

use crate::up::{cynode, free_address};

/// A server of its own over a database of its own.
struct Running {
    child: Child,
    address: SocketAddr,
    db: TestDb,
    _gate: tempfile::TempDir,
}

impl Running {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(flags: &[String]) -> Self {
        let db = TestDb::new().await;
        let address = free_address();
        let gate = tempfile::tempdir().unwrap();
        let made =
            cynode().args(["admin", "master-key"]).arg(gate.path().join("master.key")).output();
        assert!(made.unwrap().status.success());
        let child = cynode()
            .args(["serve", "--set", "telemetry.log=trace"])
            .arg("--set")
            .arg(format!("server.listen={address}"))
            .arg("--set")
            .arg(format!("server.internal_listen={}", free_address()))
            .arg("--set")
            .arg(format!("storage.directory={}", gate.path().display()))
            .args(flags)
            .env("DATABASE_URL", db.url())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, address, db, _gate: gate }
    }

    /// One request over a connection of its own; returns the whole answer.
    fn send(&self, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let length = body.len();
        write!(stream, "{head}\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// What it writes, line by line. It is read at once: whoever writes more than a pipe holds must not wait for us, nor we for him.
    fn lines(&mut self) -> mpsc::Receiver<String> {
        let mut stderr = BufReader::new(self.child.stderr.take().unwrap());
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).unwrap() > 0 {
                let _ = tell.send(std::mem::take(&mut line));
            }
        });
        told
    }

    /// Tells it to stop and gives the rest of what it wrote.
    fn stop(mut self, lines: &mpsc::Receiver<String>) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let rest = lines.iter().collect();
        assert!(self.child.wait().unwrap().success(), "it ended with an error");
        rest
    }
}

/// Reads lines until one holds `text`.
fn until(lines: &mpsc::Receiver<String>, text: &str) -> String {
    let mut all = String::new();
    for line in lines {
        all.push_str(&line);
        if line.contains(text) {
            return all;
        }
    }
    panic!("no line holds {text}:\n{all}");
}

#[tokio::test]
async fn every_line_is_json_and_no_line_holds_a_secret_or_a_person() {
    let mut running = Running::start().await;
    let lines = running.lines();
    let mut log = until(&lines, "server.started");

    let secrets = [
        "hunter2-planted-password",
        "cyn_ses_PLANTEDplantedPLANTEDplantedPLANTEDplantedPLANTEDpl",
        "sk-plantedplantedplantedplanted",
    ];
    let persons = ["grace.hopper@example.org", "Grace Planted Hopper", "planted-grace"];
    let [password, token, key] = secrets;
    let [email, person, handle] = persons;
    let body = format!(
        r#"{{"token":"{token}","handle":"{handle}","display_name":"{person}","password":"{password}"}}"#
    );
    running.send("POST /v1/bootstrap HTTP/1.1", &body);
    running.send(
        "POST /v1/sessions HTTP/1.1",
        &format!(r#"{{"handle":"{handle}","password":"{password}"}}"#),
    );
    running.send(&format!("GET /v1/users HTTP/1.1\r\nAuthorization: Bearer {token}"), "");
    running.send(&format!("GET /v1/tasks/{key}?project={email}&password={password} HTTP/1.1"), "");
    running.send("POST /v1/sessions HTTP/1.1", &format!(r#"{{"{password}": "{email}" "#));
    log.push_str(&running.stop(&lines));

    assert!(log.lines().count() > 10, "{log}");
    for line in log.lines() {
        let parsed: Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("S001-66: {e}: {line}"));
        assert!(parsed["level"].is_string() && parsed["timestamp"].is_string(), "S001-66: {line}");
    }
    for secret in secrets {
        assert!(!log.contains(secret), "S001-68, X-16: {secret} is in the log");
    }
    for personal in persons {
        assert!(!log.contains(personal), "S001-67: {personal} is in the log");
    }
}

#[tokio::test]
async fn the_trace_of_a_request_is_in_its_log_lines_down_to_the_query() {
    let mut running = Running::start().await;
    let lines = running.lines();
    let mut log = until(&lines, "server.started");
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let token = cynode_app::platform::tokens::issue_token(
        cynode_app::platform::tokens::TokenKind::Session,
        &cynode_app::AppEnvironment::from_system(),
    );
    let head = format!(
        "GET /v1/me HTTP/1.1\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\nAuthorization: Bearer {}",
        token.0.0
    );
    assert!(running.send(&head, "").starts_with("HTTP/1.1 401"));
    log.push_str(&running.stop(&lines));
    let of_request: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["spans"][0]["trace_id"] == trace)
        .collect();
    let spans = |line: &Value| -> Vec<String> {
        let spans = line["spans"].as_array().unwrap();
        spans.iter().map(|span| span["name"].as_str().unwrap().to_owned()).collect()
    };
    let deepest = [
        "http.request",
        "app.sessions.authenticate_caller",
        "db.authentication.find_session_callers",
    ];
    assert!(of_request.iter().any(|line| spans(line) == deepest), "X-15: {of_request:?}");
    let answered = of_request.iter().find(|line| line["message"] == "answered").unwrap();
    assert_eq!(answered["http.status"], 401);
}

#[tokio::test]
async fn a_connection_to_a_backend_and_an_error_are_told_as_events() {
    let mut running = Running::start().await;
    let lines = running.lines();
    let mut log = until(&lines, "server.started");
    assert!(running.send("GET /readyz HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    running.db.execute("DROP TABLE user_sessions CASCADE").await;
    let token = cynode_app::platform::tokens::issue_token(
        cynode_app::platform::tokens::TokenKind::Session,
        &cynode_app::AppEnvironment::from_system(),
    );
    let head = format!("GET /v1/me HTTP/1.1\r\nAuthorization: Bearer {}", token.0.0);
    let answer = running.send(&head, "");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(!answer.contains("user_sessions"), "the cause stays in the log: {answer}");
    log.push_str(&running.stop(&lines));
    let events: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone())
        .collect();
    assert!(events.contains(&"backend.connected".into()), "S001-75: {events:?}");
    let failed = events.iter().filter(|event| *event == "request.failed").count();
    assert_eq!(failed, 1, "S001-76: one event for the one error: {events:?}");
    assert!(events.contains(&"server.stopped".into()));
}

/// Takes what is exported on loopback until it holds `wanted`.
fn collect(listener: &std::net::TcpListener, wanted: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while !all.windows(wanted.len()).any(|window| window == wanted) {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut length) = (String::new(), 0);
        while {
            line.clear();
            reader.read_line(&mut line).unwrap() > 2
        } {
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        all.extend(body);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
    }
    all
}

#[tokio::test]
async fn spans_are_exported_under_the_trace_of_the_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("telemetry.otlp_endpoint=http://{}", listener.local_addr().unwrap());
    let trace: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    let collector = std::thread::spawn(move || collect(&listener, &trace.to_be_bytes()));
    let mut running = Running::start_with(&["--set".into(), endpoint]).await;
    let lines = running.lines();
    until(&lines, "server.started");
    let head = format!("GET /healthz HTTP/1.1\r\ntraceparent: 00-{trace:032x}-00f067aa0ba902b7-01");
    running.send(&head, "");
    // Stopping exports what is left.
    running.stop(&lines);
    let exported = collector.join().unwrap();
    let text = String::from_utf8_lossy(&exported);
    assert!(text.contains("http.request") && text.contains("cynode"), "{text}");
}
