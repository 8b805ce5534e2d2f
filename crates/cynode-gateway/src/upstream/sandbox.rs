//! Sandbox of an upstream server that runs as a program: the same as that of a job.
//!
//! The program has a host user of its own (where the gateway is root), its own namespaces with no network, a read-only system, no
//! capabilities, Landlock, seccomp, and limits of memory, CPU, processes and files. A server that names hosts reaches them through a proxy
//! with an SSRF guard. No setting runs a server without all of this: what the machine cannot give is a refusal that says how to fix it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cynode_sandbox::{
    Backend, BindMount, BubblewrapBackend, EGRESS_PORT, EgressAllowlist, EgressDialer, EgressProxy,
    EgressReporter, HostEnv, SandboxError, SandboxLimits, SandboxOptions, SandboxProcess,
    SandboxRun, SocketForward, SystemLayers, bind_socket_server, check_dir_ownership,
    create_traversable_dir, proxy_environment,
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{UpstreamError, UpstreamOptions};

/// Value of `PATH` inside the sandbox.
const SANDBOX_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The only writable folder besides `/dev/shm`. Both are in memory and removed with the sandbox.
const SANDBOX_HOME: &str = "/tmp";
/// Time that sandboxes have to end when the gateway ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits of a server that runs as a program. It lives until it is closed, and it writes to no disk.
pub(super) const PROGRAM_LIMITS: SandboxLimits = SandboxLimits {
    memory_bytes: 1 << 30,
    cpu_percent: 100,
    processes: 128,
    file_bytes: 256 << 20,
    open_files: 1024,
    disk_bytes: 0,
    tmp_bytes: 256 << 20,
    despite_low_disk: true,
    wall: Duration::MAX,
};

/// Program that runs in the sandbox, with its environment, its files and the hosts that it may reach.
#[derive(Debug)]
pub(super) struct SandboxProgram<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a [String],
    pub(super) env: &'a [(String, SecretString)],
    pub(super) files: &'a [PathBuf],
    pub(super) network_hosts: &'a [String],
}

/// Sandboxes of all servers. They are prepared when the first program is started.
pub(super) struct ProgramSandbox {
    options: Option<SandboxOptions>,
    limits: SandboxLimits,
    dialer: EgressDialer,
    prepared: OnceCell<PreparedSandbox>,
    next_run: AtomicU64,
}

struct PreparedSandbox {
    env: Arc<HostEnv>,
    backend: BubblewrapBackend,
}

/// A program in its sandbox. Dropping it ends the program and its connections.
pub(super) struct SandboxedProgram {
    pub(super) process: SandboxProcess,
    /// Kept as long as the process, whose connections end with it.
    pub(super) egress: Option<ProgramEgress>,
}

impl ProgramSandbox {
    pub(super) fn new(options: UpstreamOptions) -> Self {
        Self {
            options: options.sandbox,
            limits: options.limits,
            dialer: options.dialer,
            prepared: OnceCell::new(),
            next_run: AtomicU64::new(0),
        }
    }

    /// Starts a program of a server. When it returns, the program is about to start and all restrictions are in effect.
    pub(super) async fn start_program(
        &self,
        server: Uuid,
        program: &SandboxProgram<'_>,
        tasks: &TaskTracker,
    ) -> Result<SandboxedProgram, UpstreamError> {
        let (env, binds) = (build_environment(program)?, build_binds(program)?);
        self.try_start(server, program, &env, &binds, tasks).await.map_err(|error| {
            let error = error.with_namespace_fix();
            tracing::warn!(event = "tool_server.sandbox_failed", server.id = %server, %error, "a tool server was not started");
            UpstreamError::Sandbox(error)
        })
    }

    async fn try_start(
        &self,
        server: Uuid,
        program: &SandboxProgram<'_>,
        env: &BTreeMap<String, String>,
        binds: &[BindMount],
        tasks: &TaskTracker,
    ) -> Result<SandboxedProgram, SandboxError> {
        let options = self.options.as_ref().ok_or_else(|| SandboxError::Missing {
            what: "this gateway has no sandbox for programs".into(),
            todo: "use a tool server that speaks HTTP".into(),
        })?;
        let prepared = self.prepared.get_or_try_init(|| prepare_sandbox(options.clone())).await?;
        let id = format!("run-{}", self.next_run.fetch_add(1, Ordering::Relaxed));
        let allowed = EgressAllowlist::for_tool_server(program.network_hosts, self.dialer.clone());
        let egress = allowed
            .map(|allowed| {
                let dir = egress_dir(&options.directory).join(&id);
                ProgramEgress::open_egress(dir, server, allowed, tasks)
            })
            .transpose()?;
        let sockets: Vec<SocketForward> =
            egress.iter().map(|egress| egress.forward.clone()).collect();
        let mut argv = vec![program.name.to_owned()];
        argv.extend_from_slice(program.args);
        let run = SandboxRun {
            id: &id,
            job: &server.to_string(),
            argv: &argv,
            env,
            cwd: SANDBOX_HOME,
            image: None,
            binds,
            overlays: &[],
            system: &SystemLayers::default(),
            sockets: &sockets,
            limits: &self.limits,
        };
        let process = prepared.backend.start_run(run).await?;
        Ok(SandboxedProgram { process, egress })
    }

    /// Gives the host user of a removed server back.
    pub(super) fn release_server(&self, server: Uuid) {
        if let Some(prepared) = self.prepared.get() {
            prepared.env.release_user(&server.to_string());
        }
    }

    /// Ends all sandboxes. No program may be started afterwards.
    pub(super) async fn shut_down(&self) {
        if let Some(prepared) = self.prepared.get()
            && timeout(SHUTDOWN_TIMEOUT, prepared.env.shut_down()).await.is_err()
        {
            tracing::warn!("sandboxes of tool servers did not end in time");
        }
    }
}

/// Prepares the machine, and ends what an earlier process of this installation left behind.
async fn prepare_sandbox(options: SandboxOptions) -> Result<PreparedSandbox, SandboxError> {
    let prepared = spawn_blocking(move || {
        create_traversable_dir(&options.directory)?;
        check_dir_ownership(&options.directory)?;
        // The sockets of an earlier process lead nowhere.
        let _ = fs::remove_dir_all(egress_dir(&options.directory));
        let env = HostEnv::prepare_env(options)?;
        env.check_directory_reachable()?;
        let backend = BubblewrapBackend::new(&env)?;
        Ok::<_, SandboxError>(PreparedSandbox { env, backend })
    });
    let prepared =
        prepared.await.map_err(|_| SandboxError::Start("the gateway is ending".into()))??;
    prepared.backend.cleanup_orphans(&[]).await;
    Ok(prepared)
}

fn egress_dir(directory: &Path) -> PathBuf {
    directory.join("egress")
}

/// Proxy of one program to the hosts of its server. Dropping it ends every connection.
pub(super) struct ProgramEgress {
    forward: SocketForward,
    dir: PathBuf,
    _stop: DropGuard,
}

impl ProgramEgress {
    fn open_egress(
        dir: PathBuf,
        server: Uuid,
        allowed: EgressAllowlist,
        tasks: &TaskTracker,
    ) -> Result<Self, SandboxError> {
        let reporter: EgressReporter = Arc::new(move |text| {
            tracing::info!(event = "tool_server.egress", server.id = %server, "{text}");
        });
        create_traversable_dir(&dir)?;
        let stop = CancellationToken::new();
        let proxy = EgressProxy::new(allowed, reporter, tasks.clone(), stop.clone());
        let forward = bind_socket_server(&dir, "net", EGRESS_PORT, Arc::new(proxy), tasks, &stop);
        let forward = forward.map_err(|source: io::Error| SandboxError::Io {
            what: format!("cannot open a socket in {}", dir.display()),
            source,
        })?;
        Ok(Self { forward, dir, _stop: stop.drop_guard() })
    }
}

impl Drop for ProgramEgress {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Builds the complete environment. It reaches the program on a pipe: on a command line every user of the machine could read its secrets.
fn build_environment(
    program: &SandboxProgram<'_>,
) -> Result<BTreeMap<String, String>, UpstreamError> {
    let mut env: BTreeMap<String, String> =
        [("PATH", SANDBOX_PATH), ("HOME", SANDBOX_HOME), ("LANG", "C.UTF-8")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    if !program.network_hosts.is_empty() {
        env.extend(proxy_environment());
        // Without it, programs for Node.js ignore the proxy.
        env.insert("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    }
    for (name, value) in program.env {
        let value = value.expose_secret();
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(UpstreamError::Misconfigured("a variable of the environment"));
        }
        if name.starts_with("LD_") || name == "GLIBC_TUNABLES" {
            return Err(UpstreamError::Misconfigured("a variable that the loader obeys"));
        }
        env.insert(name.clone(), value.to_owned());
    }
    Ok(env)
}

fn build_binds(program: &SandboxProgram<'_>) -> Result<Vec<BindMount>, UpstreamError> {
    if program.name.is_empty() {
        return Err(UpstreamError::Misconfigured("no program"));
    }
    if program.files.iter().any(|file| !file.is_absolute() || file.parent().is_none()) {
        return Err(UpstreamError::Misconfigured("files are given by absolute path, and not all"));
    }
    let bind =
        |file: &PathBuf| BindMount { host: file.clone(), inside: file.clone(), writable: false };
    Ok(program.files.iter().map(bind).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(env: &[(String, SecretString)]) -> SandboxProgram<'_> {
        SandboxProgram { name: "server", args: &[], env, files: &[], network_hosts: &[] }
    }

    #[test]
    fn a_program_learns_of_the_proxy_only_when_it_names_hosts() {
        let names = |program: &SandboxProgram<'_>| {
            build_environment(program).unwrap().into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(&program(&[])), ["HOME", "LANG", "PATH"]);
        let hosts = ["api.example.com".to_owned()];
        let with = SandboxProgram { network_hosts: &hosts, ..program(&[]) };
        let env = build_environment(&with).unwrap();
        assert_eq!(env["HTTPS_PROXY"], "http://127.0.0.1:4003");
    }

    #[test]
    fn what_the_loader_obeys_and_what_is_no_path_is_refused() {
        for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "", "A=B"] {
            let env = [(name.to_owned(), SecretString::from("x"))];
            assert!(build_environment(&program(&env)).is_err(), "{name}");
        }
        for file in ["relative", "/"] {
            let files = [PathBuf::from(file)];
            let program = SandboxProgram { files: &files, ..program(&[]) };
            assert!(build_binds(&program).is_err(), "{file}");
        }
        assert!(build_binds(&SandboxProgram { name: "", ..program(&[]) }).is_err());
    }
}
