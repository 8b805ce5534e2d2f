//! What comes out of a sandbox.

use std::path::Path;

use cynode_core::nodes::JobEventData;
use cynode_wire::workflow::jobs::JobOutcome;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::{
    fake::Fake,
    program::{Machine, Running, job, sleep_forever, some_process},
};

struct Scene {
    fake: Fake,
    machine: Machine,
    _running: Running,
    id: cynode_core::ids::JobId,
}

impl Scene {
    /// A job that waits, so that its sockets stay open.
    async fn new(number: &str, flags: &[&str], hosts: &[&str]) -> Self {
        let fake = Fake::start().await;
        let machine = Machine::joined(&fake).with(flags);
        let running = machine.start();
        let mut assignment = job(vec![sleep_forever(number)]);
        assignment.work.sandbox.egress_hosts =
            hosts.iter().map(|host| (*host).to_owned()).collect();
        fake.give(assignment.clone());
        some_process(&format!("sleep {number}")).await;
        Self { fake, machine, _running: running, id: assignment.job_id }
    }

    fn socket(&self, name: &str) -> std::path::PathBuf {
        self.machine.state().join("jobs").join(self.id.to_string()).join("sockets").join(name)
    }

    async fn connect(&self, name: &str) -> UnixStream {
        connect(&self.socket(name)).await
    }

    /// Sends a request and gives everything that comes back.
    async fn ask(&self, name: &str, request: &str) -> String {
        let mut stream = self.connect(name).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// The paths of sockets are short, those of tests are not.
async fn connect(path: &Path) -> UnixStream {
    let dir = std::fs::File::open(path.parent().unwrap()).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
    let name = path.file_name().unwrap().to_str().unwrap();
    UnixStream::connect(format!("/proc/self/fd/{fd}/{name}")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_reaches_the_models_with_the_token_of_the_job_and_streams_back() {
    let scene = Scene::new("71234531", &[], &[]).await;
    let mut stream = scene.connect("llm.sock").await;
    let request = "POST /v1/messages?beta=true HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        authorization: Bearer sandbox\r\nx-api-key: other\r\ncookie: who=root\r\nx-forwarded-for: 1.2.3.4\r\n\
        traceparent: 00-11111111111111111111111111111111-2222222222222222-01\r\n\
        anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut got = String::new();
    let mut buffer = [0; 1024];
    // The first piece is here before the second is sent: nothing waits for the end.
    while !got.contains("first,") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{got}");
        got.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(!got.contains("second"));
    let seen = scene.fake.world().agents[0].clone();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v1/messages"));
    assert_eq!(seen.body.as_ref(), b"{}");
    assert_eq!(seen.headers["authorization"], "Bearer the-job-token", "B023-14");
    assert_eq!(seen.headers["anthropic-version"], "2023-06-01");
    let trace = seen.headers["traceparent"].to_str().unwrap();
    let of_job = trace.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-");
    assert!(of_job, "X-15: an agent's calls have the trace of its job: {trace}");
    for name in ["x-api-key", "cookie", "x-forwarded-for"] {
        assert!(!seen.headers.contains_key(name), "{name}");
    }
    scene.fake.until("it is held", |world| (world.held > 0).then_some(())).await;
    scene.fake.release();
    while !got.contains("second") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{got}");
        got.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    let head = got.to_ascii_lowercase();
    assert!(head.contains("content-type: text/event-stream"));
    assert!(!head.contains("set-cookie") && !head.contains("secret.example"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_models_and_tools_is_let_out() {
    let scene = Scene::new("71234532", &[], &[]).await;
    for (socket, request) in [
        ("llm.sock", "GET /v1/nodes/report HTTP/1.1\r\n"),
        ("llm.sock", "POST /mcp HTTP/1.1\r\ncontent-length: 0\r\n"),
        ("llm.sock", "POST http://127.0.0.1:1/v1/messages HTTP/1.1\r\ncontent-length: 0\r\n"),
        ("llm.sock", "CONNECT 127.0.0.1:22 HTTP/1.1\r\n"),
        ("llm.sock", "POST /v1/../v1/messages HTTP/1.1\r\ncontent-length: 0\r\n"),
        ("mcp.sock", "POST /v1/messages HTTP/1.1\r\ncontent-length: 0\r\n"),
        ("mcp.sock", "PUT /mcp HTTP/1.1\r\ncontent-length: 0\r\n"),
        ("mcp.sock", "GET / HTTP/1.1\r\n"),
    ] {
        let answer =
            scene.ask(socket, &format!("{request}host: x\r\nconnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{request}: {answer}");
        assert!(answer.contains("not let out of this sandbox"), "{answer}");
    }
    let head =
        scene.ask("llm.sock", "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(scene.fake.world().agents.is_empty());
    assert!(!scene.socket("net.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused_before_and_while_it_is_sent() {
    let scene = Scene::new("71234533", &[], &[]).await;
    let long =
        "POST /mcp HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 99999999\r\n\r\n";
    assert!(scene.ask("mcp.sock", long).await.starts_with("HTTP/1.1 413"));
    let mut stream = scene.connect("mcp.sock").await;
    let head = "POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let feed = async {
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        for _ in 0..200 {
            if write.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
    };
    let mut answer = Vec::new();
    tokio::join!(feed, async {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            answer.extend_from_slice(&buffer[..count]);
            if answer.windows(4).any(|four| four == b"\r\n\r\n") {
                break;
            }
        }
    });
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_has_only_so_many_requests_open_at_once() {
    let scene = Scene::new("71234534", &[], &[]).await;
    let request = "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut stream = scene.connect("llm.sock").await;
        stream.write_all(request.as_bytes()).await.unwrap();
        open.push(stream);
    }
    scene.fake.until("all are held", |world| (world.held == 16).then_some(())).await;
    let more =
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    assert!(scene.ask("llm.sock", more).await.starts_with("HTTP/1.1 429"));
    scene.fake.release();
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn package_hosts_are_let_out_only_when_both_sides_name_them() {
    let flags = ["--egress-host", "registry.invalid"];
    let scene = Scene::new("71234535", &flags, &["registry.invalid", "evil.example"]).await;
    for (target, why) in [
        ("evil.example:443", "not among the hosts"),
        ("127.0.0.1:443", "no host name"),
        ("[::1]:443", "no host name"),
        ("registry.invalid:22", "only port 443"),
        ("registry.invalid:443", "not found"),
    ] {
        let request =
            format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
        let answer = scene.ask("net.sock", &request).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(why), "{target}: {answer}");
    }
    let post = "POST http://registry.invalid/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    assert!(scene.ask("net.sock", post).await.starts_with("HTTP/1.1 403"));
    let notes = scene
        .fake
        .until("every use is told", |world| {
            let notes: Vec<_> = world.jobs[&scene.id]
                .events
                .iter()
                .filter_map(|event| match &event.data {
                    JobEventData::Note { text } if text.starts_with("network:") => {
                        Some(text.clone())
                    }
                    _ => None,
                })
                .collect();
            (notes.len() == 6).then_some(notes)
        })
        .await;
    assert!(notes[0].contains("refused `CONNECT evil.example:443`"), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_token_nor_an_address_is_to_be_found_inside() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let look = "
        env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
        find / -xdev -name '*.json' -path '*job*' 2>/dev/null
        grep -rl the-job-token /work /home /out /run /tmp /etc 2>/dev/null || true
    ";
    let assignment = job(vec![crate::program::shell(look)]);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
    let world = fake.world();
    let all = format!("{:?}", world.jobs[&assignment.job_id].events);
    assert!(all.contains("PATH="), "{all}");
    for word in ["the-job-token\\n", "token-0", &fake.url, "assignment.json"] {
        assert!(!all.contains(word), "B001-15, B023-14: {word}: {all}");
    }
}
