//! The runner as the engine sees it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{net::TcpListener, process::Command};

use reqwest::{Client, StatusCode};

/// A runner on a port of its own, which trusts the engine with that key and nobody else.
struct Running {
    child: std::process::Child,
    base: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const KEY: &str = "publickeyv1_w7YHemBctH5Ck2nQRQ47iBBqhNHy4FV7t2Usbye2A6f";

async fn start(dir: &std::path::Path) -> Running {
    std::fs::write(dir.join("token"), "cyn_run_x").unwrap();
    std::fs::write(dir.join("key.pub"), KEY).unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_cynode-runner"))
        .args(["--listen", &listen.to_string()])
        .arg("--token-file")
        .arg(dir.join("token"))
        .arg("--engine-key-file")
        .arg(dir.join("key.pub"))
        .spawn()
        .unwrap();
    while tokio::net::TcpStream::connect(listen).await.is_err() {
        tokio::task::yield_now().await;
    }
    Running { child, base: format!("http://{listen}") }
}

/// The engine speaks HTTP/2 without asking first.
fn client() -> Client {
    Client::builder().http2_prior_knowledge().no_proxy().build().unwrap()
}

#[tokio::test]
async fn the_runner_serves_no_chat() {
    let dir = tempfile::tempdir().unwrap();
    let runner = start(dir.path()).await;
    for path in
        ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/internal/chat/completion"]
    {
        let sent = client().post(format!("{}{path}", runner.base)).body("{}").send().await;
        let status = sent.unwrap().status();
        assert!(
            status == StatusCode::NOT_FOUND || status == StatusCode::UNAUTHORIZED,
            "S000-037, S002-53: {path}: {status}"
        );
    }
}

#[tokio::test]
async fn a_call_that_the_engine_did_not_sign_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let runner = start(dir.path()).await;
    let url = format!("{}/invoke/TaskDriver/advance", runner.base);
    let kind = "application/vnd.restate.invocation.v5";
    let sent = client().post(url).header("content-type", kind).body("").send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::UNAUTHORIZED);
}
