//! What all tests share.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use cynode_gateway::upstream::{
    UpstreamCall, UpstreamError, UpstreamOptions, UpstreamPool, UpstreamReply, UpstreamServer,
    UpstreamTransport,
};
use cynode_sandbox::SandboxOptions;
use secrecy::SecretString;
use serde_json::Value;
use serde_json::value::RawValue;
use tempfile::TempDir;
use uuid::Uuid;

const SCRIPT: &str = include_str!("server.py");

pub(crate) fn upstreams() -> UpstreamPool {
    UpstreamPool::new(UpstreamOptions::default()).unwrap()
}

/// A pool whose programs run in sandboxes, in a directory that is removed with it.
pub(crate) struct Sandboxed {
    pool: UpstreamPool,
    pub(crate) place: TempDir,
}

impl Deref for Sandboxed {
    type Target = UpstreamPool;

    fn deref(&self) -> &UpstreamPool {
        &self.pool
    }
}

/// A pool for programs, with options that a test changes.
pub(crate) fn sandboxed(change: impl FnOnce(&mut UpstreamOptions)) -> Sandboxed {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let name = place.path().file_name().unwrap().to_string_lossy().to_lowercase();
    let instance = format!("test-{}", name.trim_start_matches('.'));
    let mut options = UpstreamOptions {
        sandbox: Some(SandboxOptions::new(instance, place.path().join("sandboxes"))),
        ..UpstreamOptions::default()
    };
    change(&mut options);
    Sandboxed { pool: UpstreamPool::new(options).unwrap(), place }
}

/// A server in a sandbox. `mark` is on its command line, so that its processes can be found.
pub(crate) fn program(era: &str, mark: &str) -> UpstreamServer {
    UpstreamServer {
        id: Uuid::from_u128(1),
        transport: UpstreamTransport::Stdio {
            program: "python3".to_owned(),
            args: ["-c", SCRIPT, era, mark].map(ToOwned::to_owned).to_vec(),
            env: vec![("TOKEN".to_owned(), SecretString::from("of-the-server"))],
            files: Vec::new(),
            network_hosts: Vec::new(),
        },
        timeout: Duration::from_secs(10),
        max_in_flight: 4,
    }
}

/// The processes that have `mark` on their command line, by their folders in `/proc`.
pub(crate) fn find(mark: &str) -> Vec<PathBuf> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
        })
        .collect()
}

pub(crate) fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

pub(crate) fn http(url: &str) -> UpstreamServer {
    UpstreamServer {
        id: Uuid::from_u128(1),
        transport: UpstreamTransport::Http {
            url: url.to_owned(),
            headers: Vec::new(),
            private: true,
        },
        timeout: Duration::from_secs(5),
        max_in_flight: 8,
    }
}

/// Calls a tool and gives the text it answers with, and whether it failed.
pub(crate) async fn say(
    upstreams: &UpstreamPool,
    server: &UpstreamServer,
    tool: &str,
    arguments: &str,
) -> Result<(String, bool), UpstreamError> {
    let arguments = raw(arguments);
    upstreams.call_server_tool(server, UpstreamCall::new(tool, &arguments)).await.map(text)
}

/// The text of a result, and whether it is an error.
pub(crate) fn text(reply: UpstreamReply) -> (String, bool) {
    let UpstreamReply::Result { result, is_error } = reply else { panic!("no result: {reply:?}") };
    let result: Value = serde_json::from_str(result.get()).unwrap();
    (result["content"][0]["text"].as_str().unwrap().to_owned(), is_error)
}

/// Waits until `done`, looking every few milliseconds, and panics if it takes too long.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let mut clock = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..1_000 {
        clock.tick().await;
        if done() {
            return;
        }
    }
    panic!("waited in vain until {what}");
}
