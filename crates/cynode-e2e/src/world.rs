//! A whole installation of real processes: PostgreSQL, the engine, the orchestrator, runners, and optionally a project manager
//! and an analyst. Each of them can be killed, paused and restarted.

use std::{
    ffi::OsString,
    fs,
    net::{SocketAddr, TcpListener as StdListener},
    path::{Path, PathBuf},
    process::{Command as StdCommand, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cynode_testkit::pause;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio_util::task::TaskTracker;

use crate::faults::{Faults, HttpProxy, PostgresProxy, TcpProxy};

/// A process that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Victim {
    /// `cynode serve`.
    Orchestrator,
    /// The runner.
    Runner,
    /// `restate-server`.
    Engine,
    /// PostgreSQL.
    Database,
    /// The project manager.
    Manager,
    /// An analyst.
    Analyst,
}

impl Victim {
    /// The processes of every world.
    pub const ALL: [Self; 4] = [Self::Orchestrator, Self::Runner, Self::Engine, Self::Database];

    /// All possible processes, in the order in which they are ended.
    const ANY: [Self; 6] = [
        Self::Runner,
        Self::Manager,
        Self::Analyst,
        Self::Engine,
        Self::Orchestrator,
        Self::Database,
    ];

    /// Returns its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Orchestrator => "orchestrator",
            Self::Runner => "runner",
            Self::Engine => "engine",
            Self::Database => "database",
            Self::Manager => "manager",
            Self::Analyst => "analyst",
        }
    }
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Path of `cynode`.
    pub cynode: PathBuf,
    /// A runner, and its first arguments.
    pub runner: Vec<OsString>,
    /// Path of `restate-server`.
    pub restate: PathBuf,
    /// The directory of `initdb` and `postgres`.
    pub postgres: PathBuf,
}

/// Setup of a world.
#[derive(Clone, Debug)]
pub struct WorldSetup {
    /// Paths of the programs.
    pub programs: Programs,
    /// The file of scripts; a runner that hands everything to the project manager has none.
    pub scripts: Option<PathBuf>,
    /// Setup of the project manager and the analyst, if they are wanted.
    pub manager: Option<ManagerSetup>,
    /// Lease time of a runner in seconds.
    pub lease_seconds: u32,
    /// Whether processes communicate through proxies, where faults can be injected.
    pub proxied: bool,
    /// More of the orchestrator's configuration, as `key=value`.
    pub settings: Vec<String>,
}

/// Setup of the project manager and the analyst.
#[derive(Clone, Debug)]
pub struct ManagerSetup {
    /// Path of `cynode-pma`.
    pub program: PathBuf,
    /// The directory of the instructions of both roles.
    pub instructions: PathBuf,
    /// Seconds without a sign of life after which a handoff is reassigned.
    pub lease_seconds: u32,
}

/// A process and the command that restarts it.
struct ManagedProcess {
    spawn: Spawn,
    child: Option<std::process::Child>,
}

/// The processes of a world.
#[derive(Clone, Default)]
pub struct Processes(Arc<Mutex<[Option<ManagedProcess>; 6]>>);

/// A running installation.
pub struct World {
    dir: tempfile::TempDir,
    setup: WorldSetup,
    tasks: TaskTracker,
    /// Its processes.
    pub processes: Processes,
    /// Its fault points.
    pub faults: Faults,
    /// Address of the user API.
    pub user: SocketAddr,
    /// Address of the internal port, through the proxy if there is one.
    pub internal: SocketAddr,
    /// Address of the engine's ingress.
    pub ingress: SocketAddr,
    /// Address of the engine's administration.
    pub admin: SocketAddr,
    /// The runner, as the engine sees it.
    pub runner_link: TcpProxy,
    /// The first runner's connection to the orchestrator.
    pub runner_http: Option<HttpProxy>,
    internal_direct: SocketAddr,
    /// Connections of the harness itself, around the proxies.
    pub pool: PgPool,
    /// A token of the user API.
    pub token: String,
    /// A worker's token.
    pub worker_token: String,
    /// The project of all tasks.
    pub project: String,
    http: reqwest::Client,
}

/// How long PostgreSQL may take to restart after it was killed.
const MAX_DATABASE_START: Duration = Duration::from_mins(1);

/// Ports below the kernel's range for outgoing connections. While a process that listens there is dead, no other process takes
/// its port by chance, not even a client that tries to reach it and would be connected to itself.
const PORTS: std::ops::Range<u16> = 16_000..32_000;

/// Returns a loopback port that is free now and that is not assigned at random.
pub fn free_address() -> SocketAddr {
    let ports = std::iter::repeat_with(|| rand::random_range(PORTS));
    let mut bound = ports.take(1000).flat_map(|port| StdListener::bind(("127.0.0.1", port)));
    bound.next().expect("a free port").local_addr().unwrap()
}

fn pid(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

impl Processes {
    fn with<T>(&self, victim: Victim, act: impl FnOnce(&mut ManagedProcess) -> T) -> T {
        let mut all = self.0.lock().unwrap();
        act(all[victim as usize].as_mut().expect("the process is part of the world"))
    }

    /// Returns the processes that are there.
    pub fn there(&self) -> Vec<Victim> {
        let all = self.0.lock().unwrap();
        Victim::ANY.into_iter().filter(|victim| all[*victim as usize].is_some()).collect()
    }

    fn put(&self, victim: Victim, spawn: Spawn) {
        let child = Some(spawn());
        self.0.lock().unwrap()[victim as usize] = Some(ManagedProcess { spawn, child });
    }

    /// Kills a process at once and waits until it is gone.
    pub fn kill(&self, victim: Victim) {
        self.with(victim, |process| {
            if let Some(mut child) = process.child.take() {
                let _ = kill_process(pid(&child), Signal::KILL);
                let _ = child.wait();
            }
        });
    }

    /// Starts a process that was killed.
    pub fn start(&self, victim: Victim) {
        self.with(victim, |process| {
            if process.child.is_none() {
                process.child = Some((process.spawn)());
            }
        });
    }

    /// Restarts a process that has exited by itself. Returns whether it had.
    pub fn revive(&self, victim: Victim) -> bool {
        self.with(victim, |process| {
            let ended = match &mut process.child {
                Some(child) => child.try_wait().ok().flatten().is_some(),
                None => false,
            };
            if ended {
                process.child = Some((process.spawn)());
            }
            ended
        })
    }

    /// Returns the processor time of a process and its children, in seconds.
    pub fn processor_seconds(&self, victim: Victim) -> f64 {
        let root = self.with(victim, |process| process.child.as_ref().map(std::process::Child::id));
        let Some(root) = root else { return 0.0 };
        let ticks: u64 = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
                let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
                // The name may contain anything; the text after its bracket does not.
                let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
                let parent: u32 = fields.get(1)?.parse().ok()?;
                let own = pid == root;
                if !own && parent != root {
                    return None;
                }
                // For the root process, include its ended children.
                let last = if own { 15 } else { 13 };
                (11..last).map(|field| fields.get(field)?.parse::<u64>().ok()).sum::<Option<u64>>()
            })
            .sum();
        #[expect(clippy::cast_precision_loss, reason = "hundredths of seconds of a proof")]
        let seconds = ticks as f64 / 100.0;
        seconds
    }

    /// Stops a process with `SIGSTOP`.
    pub fn pause(&self, victim: Victim) {
        self.signal(victim, Signal::STOP);
    }

    /// Resumes a paused process.
    pub fn go_on(&self, victim: Victim) {
        self.signal(victim, Signal::CONT);
    }

    fn signal(&self, victim: Victim, signal: Signal) {
        self.with(victim, |process| {
            if let Some(child) = &process.child {
                let _ = kill_process(pid(child), signal);
            }
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for victim in self.processes.there() {
            self.processes.go_on(victim);
            self.processes.kill(victim);
        }
        // PostgreSQL's children notice that their parent is gone and end by themselves.
    }
}

pub(crate) fn log(path: &Path) -> Stdio {
    fs::OpenOptions::new().create(true).append(true).open(path).unwrap().into()
}

/// Returns a command that dies with this process, and runs as PostgreSQL's user if it must.
fn program(path: &Path, as_postgres: bool) -> StdCommand {
    let mut command = StdCommand::new("setpriv");
    if as_postgres && rustix::process::geteuid().is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    command.arg("--pdeathsig=KILL").arg("--").arg(path);
    command.stdin(Stdio::null());
    command
}

impl World {
    /// Starts everything and waits until it works.
    pub async fn start(setup: WorldSetup) -> Self {
        let dir = tempfile::Builder::new().prefix("cynode-world-").tempdir_in("/tmp").unwrap();
        let root = dir.path().to_owned();
        set_mode(&root, 0o755);
        let (tasks, faults, processes) =
            (TaskTracker::new(), Faults::default(), Processes::default());

        let postgres = free_address();
        start_postgres(&setup, &root, postgres, &processes);
        let direct = format!("postgres://postgres@{postgres}/postgres?sslmode=disable");
        let pool = connect(&direct).await;
        let database = if setup.proxied {
            PostgresProxy::start(&tasks, postgres, faults.clone()).await.address
        } else {
            postgres
        };
        let url = format!("postgres://postgres@{database}/postgres?sslmode=disable");

        let cynode = |arguments: &[&str]| admin(&setup.programs.cynode, &direct, arguments);
        cynode(&["migrate"]);
        let bootstrap = cynode(&["admin", "bootstrap"]);
        let roles = setup.manager.as_ref().map_or(&[][..], |_| &["manager", "analyst"]);
        for name in roles.iter().chain(&["runner"]) {
            let token = cynode(&["admin", "token", name]);
            fs::write(root.join(format!("{name}-token")), token).unwrap();
        }
        let worker_token = cynode(&["admin", "token", "worker"]);
        cynode(&["admin", "engine-key", root.join("engine").to_str().unwrap()]);
        cynode(&["admin", "master-key", root.join("storage/master.key").to_str().unwrap()]);

        let (user, internal_direct) = (free_address(), free_address());
        let runner = free_address();
        let runner_link = TcpProxy::start(&tasks, runner).await;
        let (ingress, admin, node) = (free_address(), free_address(), free_address());
        let engine_seen = if setup.proxied {
            HttpProxy::start(&tasks, ingress, faults.clone()).await.address
        } else {
            ingress
        };
        let runner_seen = if setup.proxied { runner_link.address } else { runner };

        processes.put(
            Victim::Orchestrator,
            orchestrator_process(&setup, &root, url, {
                let own = vec![
                    format!("server.listen={user}"),
                    format!("server.internal_listen={internal_direct}"),
                    format!("engine.ingress_url=http://{engine_seen}"),
                    format!("engine.admin_url=http://{admin}"),
                    format!("engine.runner_url=http://{runner_seen}"),
                    "engine.reconcile_interval_ms=200".to_owned(),
                    "engine.redispatch_after_ms=1000".to_owned(),
                    "database.max_connections=12".to_owned(),
                    "telemetry.log=warn".to_owned(),
                    format!("storage.directory={}", root.join("storage").display()),
                ];
                [own, setup.settings.clone()].concat()
            }),
        );
        write_engine_config(&root, ingress, admin, node);
        processes.put(Victim::Engine, engine_process(&setup, &root));

        // The runner, and its own connection to the orchestrator.
        let runner_http = if setup.proxied {
            Some(HttpProxy::start(&tasks, internal_direct, faults.clone()).await)
        } else {
            None
        };
        let seen = runner_http.as_ref().map_or(internal_direct, |proxy| proxy.address);
        processes.put(Victim::Runner, runner_process(&setup, &root, runner, seen, "runner"));

        // Workers go through a proxy of their own, so that their calls are fault points too.
        let internal = if setup.proxied {
            HttpProxy::start(&tasks, internal_direct, faults.clone()).await.address
        } else {
            internal_direct
        };
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap();
        let mut world = Self {
            dir,
            setup,
            tasks,
            processes,
            faults,
            user,
            internal,
            ingress,
            admin,
            runner_link,
            runner_http,
            internal_direct,
            pool,
            token: String::new(),
            worker_token,
            project: String::new(),
            http,
        };
        world.start_manager().await;
        world.wait_until_it_works().await;
        world.log_in(&bootstrap).await;
        world
    }

    /// Starts the project manager and the analyst, if they are wanted, each with its own connection to the orchestrator.
    async fn start_manager(&self) {
        let Some(manager) = &self.setup.manager else { return };
        let direct = self.internal_direct;
        for victim in [Victim::Manager, Victim::Analyst] {
            let seen = if self.setup.proxied {
                let (faults, name) = (self.faults.clone(), victim.as_str());
                HttpProxy::start_for_agent(&self.tasks, direct, faults, name).await.address
            } else {
                direct
            };
            self.processes.put(victim, manager_process(manager, self.dir.path(), seen, victim));
        }
    }

    async fn log_in(&mut self, link: &str) {
        let bootstrap = link.rsplit('=').next().unwrap();
        let password = "correct horse battery staple";
        let body = json!({ "token": bootstrap, "handle": "ada", "display_name": "Ada", "password": password });
        self.post("/v1/bootstrap", body).await;
        let session =
            self.post("/v1/sessions", json!({ "handle": "ada", "password": password })).await;
        session["token"].as_str().unwrap().clone_into(&mut self.token);
        let project = self.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await;
        project["id"].as_str().unwrap().clone_into(&mut self.project);
        // There is no person in a world: plans need no approval unless a proof says otherwise.
        self.ask_about_plans(false, 0).await;
        // Nor is anybody asked about environments: what a proof's repository needs, its node has.
        let value = json!({ "value": false, "expected_version": 0 });
        self.put("/v1/preferences/workflow.ask_environment?scope_type=system", &value).await;
    }

    /// Sets whether a person must approve plans, everywhere; the preference has that version now.
    pub async fn ask_about_plans(&self, asks: bool, version: i64) {
        let value = json!({ "value": asks, "expected_version": version });
        self.put("/v1/preferences/workflow.approve_plan?scope_type=system", &value).await;
    }

    /// Starts a second runner for the same orchestrator, with its own connection to it. It is not one of the processes that can
    /// be killed; the caller owns the child.
    pub async fn second_runner(&self) -> (std::process::Child, SocketAddr, HttpProxy) {
        let proxy = HttpProxy::start(&self.tasks, self.internal_direct, self.faults.clone()).await;
        let listen = free_address();
        let spawn = runner_process(&self.setup, self.dir.path(), listen, proxy.address, "runner-2");
        let child = spawn();
        wait_for_port(listen).await;
        (child, listen, proxy)
    }

    /// Sends a request to the user API until it gets an answer.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        // One idempotency key for all attempts: the request takes effect once.
        let key = format!("{:032x}", rand::random::<u128>());
        loop {
            let mut request = self.http.post(format!("http://{}{path}", self.user)).json(&body);
            if path != "/v1/sessions" {
                request = request.header("idempotency-key", &key);
            }
            if !self.token.is_empty() {
                request = request.bearer_auth(&self.token);
            }
            match request.send().await {
                Ok(answer) if answer.status().is_success() => {
                    if let Ok(body) = answer.json().await {
                        return body;
                    }
                }
                Ok(answer) if answer.status().is_client_error() => {
                    panic!("{path}: {}", answer.text().await.unwrap_or_default())
                }
                Ok(_) | Err(_) => {}
            }
            pause(Duration::from_millis(20)).await;
        }
    }

    /// Sends a request to the user API once. Returns whether it succeeded.
    pub async fn try_post(&self, path: &str, body: &Value) -> bool {
        let url = format!("http://{}{path}", self.user);
        let sent = self.http.post(url).bearer_auth(&self.token).json(body).send().await;
        sent.is_ok_and(|answer| answer.status().is_success())
    }

    /// Reads from the user API. Returns `None` without an answer.
    pub async fn try_get(&self, path: &str) -> Option<Value> {
        let url = format!("http://{}{path}", self.user);
        let answer = self.http.get(url).bearer_auth(&self.token).send().await.ok()?;
        answer.json().await.ok()
    }

    /// Reads from the user API.
    pub async fn get(&self, path: &str) -> Value {
        let url = format!("http://{}{path}", self.user);
        let answer = self.http.get(url).bearer_auth(&self.token).send().await.unwrap();
        answer.json().await.unwrap()
    }

    /// Creates a task that runs `script`. Returns its id.
    pub async fn task(&self, script: &str) -> String {
        self.task_in(&self.project, script).await
    }

    /// Creates a task in a project that runs `script`. Returns its id.
    pub async fn task_in(&self, project: &str, script: &str) -> String {
        let name = format!("t{:016x}", rand::random::<u64>());
        let body = json!({ "project_id": project, "name": name, "description": script });
        self.post("/v1/tasks", body).await["id"].as_str().unwrap().to_owned()
    }

    /// Creates another project. Returns its id.
    pub async fn project(&self) -> String {
        let slug = format!("p{:08x}", rand::random::<u32>());
        let made = self.post("/v1/projects", json!({ "slug": slug, "title": slug })).await;
        made["id"].as_str().unwrap().to_owned()
    }

    /// Sends a `PUT` request to the user API.
    pub async fn put(&self, path: &str, body: &Value) {
        let url = format!("http://{}{path}", self.user);
        let sent = self.http.put(url).bearer_auth(&self.token).json(body).send().await.unwrap();
        assert!(sent.status().is_success(), "{path}: {}", sent.text().await.unwrap_or_default());
    }

    /// Uploads a git bundle as the repository of a project.
    pub async fn bring(&self, project: &str, bundle: Vec<u8>) {
        let url = format!("http://{}/v1/projects/{project}/repository", self.user);
        let sent = self.http.put(url).bearer_auth(&self.token).body(bundle).send().await.unwrap();
        assert!(sent.status().is_success(), "{}", sent.text().await.unwrap_or_default());
    }

    /// Returns the address of the internal port itself, around the proxies.
    pub const fn internal_direct(&self) -> SocketAddr {
        self.internal_direct
    }

    /// Returns the path of a project's repository in the orchestrator's storage.
    pub fn repository(&self, project: &str) -> PathBuf {
        self.dir.path().join("storage/repositories").join(format!("{project}.git"))
    }

    /// Returns a stored artifact by its SHA-256; `None` if there is none.
    pub fn artifact(&self, sha256: &str) -> Option<Vec<u8>> {
        let place = self.dir.path().join("storage/artifacts/sha256");
        fs::read(place.join(sha256.get(..2)?).join(sha256)).ok()
    }

    /// Returns the tracker of tasks that run as long as the world does.
    pub const fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Deletes all data of the engine, while it is not running.
    pub fn wipe_engine(&self) {
        fs::remove_dir_all(self.dir.path().join("engine/data")).unwrap();
    }

    /// Waits until every process answers.
    pub async fn wait_until_it_works(&self) {
        let user = format!("http://{}/readyz", self.user);
        let engine = format!("http://{}/restate/health", self.ingress);
        for url in [user, engine] {
            let begun = Instant::now();
            while !self.http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success())
            {
                assert!(begun.elapsed() < Duration::from_mins(1), "no answer from {url}");
                for victim in self.processes.there() {
                    self.processes.revive(victim);
                }
                pause(Duration::from_millis(20)).await;
            }
        }
    }

    /// Returns the directory of the logs.
    pub fn logs(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps the directory, for inspection.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }

    /// Removes the directory at the end after all.
    pub fn keep_not(&mut self) {
        self.dir.disable_cleanup(false);
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn start_postgres(setup: &WorldSetup, root: &Path, address: SocketAddr, processes: &Processes) {
    let home = root.join("pg");
    fs::create_dir(&home).unwrap();
    if rustix::process::geteuid().is_root() {
        let status = StdCommand::new("chown").arg("postgres").arg(&home).status().unwrap();
        assert!(status.success());
    }
    let made = program(&setup.programs.postgres.join("initdb"), true)
        .arg("-D")
        .arg(home.join("data"))
        .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
        .current_dir(&home)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (path, log_path) = (setup.programs.postgres.join("postgres"), root.join("postgres.log"));
    let spawn = move || {
        let mut command = program(&path, true);
        command
            .arg("-D")
            .arg(home.join("data"))
            .arg("-k")
            .arg(&home)
            .args(["-p", &address.port().to_string(), "-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "max_connections=200", "-c", "shared_buffers=256MB"])
            .current_dir(&home)
            .stdout(Stdio::null())
            .stderr(log(&log_path));
        // After a crash the children of a dead server may hold its shared memory for a moment; the next one then exits at once.
        let first = Instant::now();
        loop {
            assert!(
                first.elapsed() < MAX_DATABASE_START,
                "PostgreSQL does not start: {}",
                log_path.display()
            );
            let mut child = command.spawn().unwrap();
            let begun = Instant::now();
            let ended = loop {
                match child.try_wait() {
                    Ok(None) if begun.elapsed() < Duration::from_millis(150) => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Ok(None) => break false,
                    Ok(Some(_)) | Err(_) => break true,
                }
            };
            if !ended {
                return child;
            }
        }
    };
    processes.put(Victim::Database, Box::new(spawn));
}

/// Runs `cynode` to its end with the database at `url`. Returns its output.
fn admin(cynode: &Path, url: &str, arguments: &[&str]) -> String {
    let output = StdCommand::new(cynode).env("DATABASE_URL", url).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cynode {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn connect(url: &str) -> PgPool {
    let begun = Instant::now();
    loop {
        // A caller that waits for a killed database cannot restart it meanwhile.
        let options = sqlx::postgres::PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(1));
        match options.connect(url).await {
            Ok(pool) => return pool,
            Err(error) => {
                assert!(begun.elapsed() < Duration::from_mins(1), "{error}");
                pause(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn wait_for_port(address: SocketAddr) {
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody listens on {address}");
        pause(Duration::from_millis(20)).await;
    }
}

fn write_engine_config(root: &Path, ingress: SocketAddr, admin: SocketAddr, node: SocketAddr) {
    let home = root.join("engine");
    let home = home.display();
    let text = format!(
        r#"
node-name = "cynode"
base-dir = "{home}/data"
disable-telemetry = true
default-num-partitions = 4
listen-mode = "tcp"
bind-address = "{node}"
advertised-address = "http://{node}"
log-filter = "warn"
rocksdb-total-memory-size = "256 MiB"
[ingress]
bind-address = "{ingress}"
[admin]
bind-address = "{admin}"
disable-web-ui = true
[worker.invoker]
request-identity-private-key-pem-file = "{home}/key.pem"
"#
    );
    fs::create_dir_all(root.join("engine/spill")).unwrap();
    fs::write(root.join("engine/config.toml"), text).unwrap();
}

type Spawn = Box<dyn Fn() -> std::process::Child + Send + Sync>;

fn orchestrator_process(
    setup: &WorldSetup,
    root: &Path,
    url: String,
    settings: Vec<String>,
) -> Spawn {
    let (path, log_path) = (setup.programs.cynode.clone(), root.join("orchestrator.log"));
    Box::new(move || {
        let mut command = program(&path, false);
        command.arg("serve").env("DATABASE_URL", &url);
        for setting in &settings {
            command.args(["--set", setting]);
        }
        command.stdout(Stdio::null()).stderr(log(&log_path)).spawn().unwrap()
    })
}

fn engine_process(setup: &WorldSetup, root: &Path) -> Spawn {
    let (path, root) = (setup.programs.restate.clone(), root.to_owned());
    Box::new(move || {
        let output = root.join("engine.log");
        let mut command = program(&path, false);
        command.arg("--config-file").arg(root.join("engine/config.toml"));
        command.env("TMPDIR", root.join("engine/spill"));
        command.stdout(log(&output)).stderr(log(&output)).spawn().unwrap()
    })
}

fn runner_process(
    setup: &WorldSetup,
    root: &Path,
    listen: SocketAddr,
    orchestrator: SocketAddr,
    name: &'static str,
) -> Spawn {
    let (setup, root) = (setup.clone(), root.to_owned());
    Box::new(move || {
        let (path, arguments) = setup.programs.runner.split_first().unwrap();
        let mut command = program(Path::new(path), false);
        command.args(arguments);
        if let Some(scripts) = &setup.scripts {
            command.arg("--scripts").arg(scripts);
        }
        command.args(["--listen", &listen.to_string()]);
        command.args(["--orchestrator", &format!("http://{orchestrator}")]);
        command.arg("--token-file").arg(root.join("runner-token"));
        command.arg("--engine-key-file").arg(root.join("engine/key.pub"));
        command.args(["--lease-seconds", &setup.lease_seconds.to_string(), "--log", "info"]);
        command.stdout(Stdio::null()).stderr(log(&root.join(format!("{name}.log"))));
        command.spawn().unwrap()
    })
}

/// Returns the process of the project manager or an analyst.
fn manager_process(
    manager: &ManagerSetup,
    root: &Path,
    orchestrator: SocketAddr,
    victim: Victim,
) -> Spawn {
    let (manager, root, listen) = (manager.clone(), root.to_owned(), free_address());
    let name = victim.as_str();
    Box::new(move || {
        let mut command = program(&manager.program, false);
        command.arg(format!("--role=project_{name}"));
        command.arg("--instructions").arg(&manager.instructions);
        command.args(["--orchestrator", &format!("http://{orchestrator}")]);
        command.arg("--token-file").arg(root.join(format!("{name}-token")));
        command.args(["--listen", &listen.to_string()]);
        command.args(["--lease-seconds", &manager.lease_seconds.to_string()]);
        command.stdout(Stdio::null()).stderr(log(&root.join(format!("{name}.log"))));
        command.spawn().unwrap()
    })
}
