//! The same attempts from the program of a tool server, which the gateway runs beside the database.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use cynode_gateway::upstream::{
    UpstreamCall, UpstreamError, UpstreamOptions, UpstreamPool, UpstreamReply, UpstreamServer,
    UpstreamTransport,
};
use cynode_sandbox::{SandboxLimits, SandboxOptions};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use super::{
    escape::{Health, compare, outside, read},
    layout::{BackendKind, NodeLayout, processes_with},
    targets::Targets,
};

/// Host that the server names. Nothing connects to it: the proxy is there to be attacked.
const NAMED_HOST: &str = "api.example.com";

#[derive(Args)]
pub(crate) struct ToolServerEscape {
    /// The program of attempts.
    #[arg(long)]
    script: PathBuf,
    /// The hostile tool server.
    #[arg(long)]
    server: PathBuf,
}

/// What the server says of a command that it ran.
#[derive(Debug, Deserialize)]
struct CommandReport {
    code: i32,
    stdout: String,
    stderr: String,
}

/// A command of the server, and the conditions on its end. No report: the server was ended.
struct ServerBomb {
    name: &'static str,
    script: &'static str,
    good: fn(Option<&CommandReport>) -> bool,
}

const SERVER_BOMBS: &[ServerBomb] = &[
    ServerBomb {
        name: "a fork bomb",
        script: "import os, signal, time\nkids = []\ntry:\n while len(kids) < 5000:\n  kid = os.fork()\n  if kid == 0: time.sleep(1000)\n  kids.append(kid)\nexcept OSError: pass\nfor kid in kids: os.kill(kid, signal.SIGKILL)\nprint(len(kids))",
        good: |report| printed_number(report).is_some_and(|forked| forked < 128 + 32),
    },
    ServerBomb {
        name: "a bomb of threads",
        script: "import os, threading, time\nn = 0\ntry:\n while n < 5000:\n  threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n  n += 1\nexcept RuntimeError: pass\nprint(n, flush=True)\nos._exit(0)",
        good: |report| printed_number(report).is_some_and(|threads| threads < 128 + 32),
    },
    ServerBomb {
        name: "more memory than allowed",
        script: "b = [bytearray(16 << 20) for _ in range(1000)]\nprint(0)",
        good: |report| report.is_none_or(|report| report.code != 0),
    },
    ServerBomb {
        name: "memory that is a file in /tmp",
        script: "import os\nf = open('/tmp/a', 'wb', buffering=0)\ntry:\n for _ in range(1000): f.write(bytes(1 << 20))\nexcept OSError: pass\nprint(os.fstat(f.fileno()).st_size >> 20)\nos.unlink('/tmp/a')",
        good: |report| printed_number(report).is_some_and(|size| size <= 32),
    },
    ServerBomb {
        name: "memory that is a file in /dev/shm",
        script: "import os\nf = open('/dev/shm/a', 'wb', buffering=0)\ntry:\n for _ in range(1000): f.write(bytes(1 << 20))\nexcept OSError: pass\nprint(os.fstat(f.fileno()).st_size >> 20)\nos.unlink('/dev/shm/a')",
        good: |report| printed_number(report).is_some_and(|size| size <= 32),
    },
    ServerBomb {
        name: "open files without end",
        script: "import os\ntry:\n while True: os.open('/dev/null', os.O_RDONLY)\nexcept OSError as e: print(e.errno)",
        good: |report| printed_number(report) == Some(24),
    },
    ServerBomb {
        name: "connections to the proxy without end",
        script: "import socket\nkept = []\nfor _ in range(900):\n try:\n  s = socket.create_connection(('127.0.0.1', 4003), 2); kept.append(s)\n except OSError: pass\nprint(1)",
        good: |report| printed_number(report) == Some(1),
    },
    ServerBomb {
        name: "the proxy towards the machine and its neighbours",
        script: "import socket\nn = 0\nfor target in ('127.0.0.1:443', '[::1]:443', '169.254.169.254:443', '10.0.0.1:443', 'localhost:443', 'api.example.com:22', 'other.example.com:443'):\n s = socket.create_connection(('127.0.0.1', 4003), 5)\n s.sendall(f'CONNECT {target} HTTP/1.1\\r\\nhost: {target}\\r\\n\\r\\n'.encode())\n n += b' 403 ' in s.recv(4096)\nprint(n)",
        good: |report| printed_number(report) == Some(7),
    },
    ServerBomb {
        name: "a daemon of a daemon",
        script: "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  for f in range(3): os.close(f)\n  os.execv('/bin/sleep', ['MARK', '1000'])\n os._exit(0)\nprint(1)",
        good: |report| printed_number(report) == Some(1),
    },
];

fn printed_number(report: Option<&CommandReport>) -> Option<u64> {
    report?.stdout.trim().parse().ok()
}

/// A gateway's tool servers, in a directory of their own.
struct ServerLayout<'a> {
    place: &'a NodeLayout,
    instance: String,
    tools: PathBuf,
    mark: String,
}

impl ServerLayout<'_> {
    fn open_pool(&self) -> anyhow::Result<UpstreamPool> {
        let sandbox = SandboxOptions::new(&self.instance, self.place.path("tool-sandboxes"));
        let limits = SandboxLimits {
            memory_bytes: 256 << 20,
            tmp_bytes: 32 << 20,
            ..UpstreamOptions::default().limits
        };
        let options =
            UpstreamOptions { sandbox: Some(sandbox), limits, ..UpstreamOptions::default() };
        Ok(UpstreamPool::new(options)?)
    }

    fn hostile_server(&self) -> UpstreamServer {
        let script = self.tools.join("escape_server.py").display().to_string();
        UpstreamServer {
            id: Uuid::from_u128(1),
            transport: UpstreamTransport::Stdio {
                program: "python3".to_owned(),
                args: vec![script, self.mark.clone()],
                env: Vec::new(),
                files: vec![self.tools.clone()],
                network_hosts: vec![NAMED_HOST.to_owned()],
            },
            timeout: Duration::from_mins(5),
            max_in_flight: 1,
        }
    }

    /// Lets the server run a command. `None` if that ended the server.
    async fn run_command(
        &self,
        pool: &UpstreamPool,
        argv: &[&str],
    ) -> anyhow::Result<Option<CommandReport>> {
        let arguments = RawValue::from_string(json!({ "argv": argv }).to_string())?;
        let call = UpstreamCall::new("run", &arguments);
        match pool.call_server_tool(&self.hostile_server(), call).await {
            Ok(UpstreamReply::Result { result, .. }) => {
                let result: Value = serde_json::from_str(result.get())?;
                let text = result["content"][0]["text"].as_str().unwrap_or_default();
                Ok(Some(serde_json::from_str(text)?))
            }
            Ok(UpstreamReply::InputRequired(_)) => anyhow::bail!("the server asks for input"),
            Err(UpstreamError::Unreachable(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the cgroup directories that servers left behind.
    fn remaining_cgroups(&self) -> Vec<PathBuf> {
        let name = format!("cynode-{}", self.instance);
        let top = Path::new("/sys/fs/cgroup");
        let below = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
        let own = below.chain([top.to_owned()]).map(|path| path.join(&name));
        own.flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten())
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    }
}

pub(crate) async fn run(escape: ToolServerEscape) -> anyhow::Result<bool> {
    let script = escape.script.canonicalize()?;
    let place = NodeLayout::new(BackendKind::Bubblewrap, None)?;
    let health = Health::watch();
    let targets = Targets::new(&place, &script).await?;
    let layout = ServerLayout {
        place: &place,
        instance: format!("proof-tools-{}", std::process::id()),
        tools: place.folder("tools", "/", false).host,
        mark: format!("tool-server-{}", std::process::id()),
    };
    fs::copy(&script, layout.tools.join("escape.py"))?;
    fs::copy(&escape.server, layout.tools.join("escape_server.py"))?;
    fs::write(layout.tools.join("given"), "given")?;
    // A file of root in a folder that the server was given.
    let kept = layout.tools.join("kept");
    fs::write(&kept, &targets.secret)?;
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o600))?;
    let differences = json!({"workspace": "/tmp", "readonly": layout.tools, "beside_system": "/tmp",
        "own_socket": "/run/cynode/net.sock", "file": kept});
    let facts = targets.facts_for(false, &differences);
    fs::write(layout.tools.join("facts.json"), facts.to_string())?;

    let control = outside(&place, &targets, &script)?;
    let pool = layout.open_pool()?;
    let (program, facts) = (layout.tools.join("escape.py"), layout.tools.join("facts.json"));
    let argv = ["python3".into(), program.display().to_string(), facts.display().to_string()];
    let report = layout.run_command(&pool, &argv.each_ref().map(String::as_str)).await?;
    let Some(report) = report else { anyhow::bail!("the server ended in the middle") };
    anyhow::ensure!(report.code == 0, "{}", report.stderr);
    pool.shutdown_all().await;
    let mut good = compare(&control, &read(&report.stdout)?);

    let mut failed = 0;
    for bomb in SERVER_BOMBS {
        let script = bomb.script.replace("MARK", &layout.mark);
        // Each has a server of its own: one that was ended is started anew.
        let pool = layout.open_pool()?;
        let report = layout.run_command(&pool, &["python3", "-c", &script]).await?;
        pool.shutdown_all().await;
        let left = processes_with(&layout.mark);
        if !(bomb.good)(report.as_ref()) || !left.is_empty() {
            failed += 1;
            println!("BOMB: {}: {report:?}, left: {left:?}", bomb.name);
        }
    }
    println!("{} bombs, {failed} not as they must", SERVER_BOMBS.len());
    good &= failed == 0;
    let (cgroups, processes) = (layout.remaining_cgroups(), processes_with(&layout.mark));
    println!("left of it all: {} cgroups, {} processes", cgroups.len(), processes.len());
    good &= cgroups.is_empty() && processes.is_empty();
    targets.unharmed(&place).await?;
    good &= health.print_report();
    place.backend.cleanup_orphans(&[]).await;
    Ok(good)
}
