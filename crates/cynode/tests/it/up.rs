//! `cynode up` on a machine with PostgreSQL's programs and nothing else.

use std::{
    fs::Permissions,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use cynode_net::tls::ClientTls;
use cynode_testkit_db::TestDb;
use data_encoding::HEXLOWER;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;

use crate::source::root;

/// The program, with an environment that holds none of our settings.
pub(crate) fn cynode() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cynode"));
    for name in ["DATABASE_URL", "PLANNER_MAX_STEPS", "MODEL_TEMPERATURE", "CYNODE_CONFIG"] {
        command.env_remove(name);
    }
    command
}

/// An address on loopback that is free now.
pub(crate) fn free_address() -> SocketAddr {
    // Below the ports that the kernel gives to outgoing connections: nobody takes it by chance before the program does.
    let ports = std::iter::repeat_with(|| rand::random_range(16_000_u16..32_000));
    let mut bound = ports.take(1000).flat_map(|port| TcpListener::bind(("127.0.0.1", port)));
    bound.next().unwrap().local_addr().unwrap()
}

/// A directory that PostgreSQL's user may enter.
pub(crate) fn data_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// What the owner, the group and others may do.
fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The files that another account of the machine could read: their mode allows it, and that account may enter their
/// directories. What is shown to every sandbox anyway, and the programs that users of their own start, are left out.
fn readable_by_others(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if ["node/agents", "node/sandboxes", "data/programs"]
            .iter()
            .any(|shown| path.ends_with(shown))
        {
            continue;
        }
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let mode = meta.permissions().mode();
        if meta.is_dir() && mode & 0o011 != 0 {
            found.extend(readable_by_others(&path));
        } else if meta.is_file() && mode & 0o044 != 0 {
            found.push(path);
        }
    }
    found
}

fn command(dir: &Path) -> Command {
    let mut command = cynode();
    command.args(["up", "--data-dir"]).arg(dir);
    for key in [
        "server.listen",
        "server.internal_listen",
        "engine.runner_listen",
        "manager.listen",
        "manager.analyst_listen",
    ] {
        command.arg("--set").arg(format!("{key}={}", free_address()));
    }
    command
}

/// Starts it where it must not start, and gives its complaint.
fn refused(dir: &Path) -> String {
    let output = command(dir).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Starts it and waits until it says that it runs. Returns what it said.
pub(crate) fn up(dir: &Path) -> (Child, String) {
    up_with(dir, &[])
}

/// Does the same with further settings.
fn up_with(dir: &Path, settings: &[&str]) -> (Child, String) {
    let mut command = command(dir);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended:\n{said}");
    }
    (child, said)
}

fn postmaster(dir: &Path) -> Pid {
    let text = std::fs::read_to_string(dir.join("postgres/data/postmaster.pid")).unwrap();
    Pid::from_raw(text.lines().next().unwrap().parse().unwrap()).unwrap()
}

/// The processes of that program that `up` keeps running.
fn helpers(up: &Child, program: &str) -> Vec<Pid> {
    let found = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t"))?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let name = String::from_utf8_lossy(command.split(|byte| *byte == 0).next()?).into_owned();
        let ours = parent == up.id().to_string() && name.ends_with(program);
        ours.then(|| Pid::from_raw(pid)).flatten()
    });
    found.collect()
}

/// The process of that program that `up` keeps running, waited for.
fn helper(up: &Child, program: &str) -> Pid {
    loop {
        if let Some(pid) = helpers(up, program).first() {
            return *pid;
        }
        std::thread::yield_now();
    }
}

pub(crate) fn end(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn up_starts_prints_a_link_for_the_admin_and_leaves_nothing_running() {
    let dir = data_dir();
    let (child, said) = up(dir.path());
    assert!(said.starts_with("starting PostgreSQL …\n"), "{said}");
    let link = dir.path().join("setup-link");
    let line = format!("  admin  cynork setup --link-file {} --handle NAME\n", link.display());
    assert!(said.contains(&line), "{said}");
    assert!(!said.contains("cyn_boot_"), "the token is in the terminal");
    assert_eq!(mode(&link), 0o600);
    let link = std::fs::read_to_string(link).unwrap();
    assert!(link.starts_with("http://") && link.contains("/setup#bootstrap=cyn_boot_"), "{link}");
    let log = std::fs::read_to_string(dir.path().join("cynode.log")).unwrap();
    assert!(!log.contains("cyn_boot_"), "the token is in the log");
    let database = postmaster(dir.path());
    let helpers = [helper(&child, "restate-server"), helper(&child, "cynode-runner")];
    end(child);
    for pid in helpers.into_iter().chain([database]) {
        assert!(test_kill_process(pid).is_err(), "a helper outlived Ctrl-C");
    }
}

#[test]
fn nobody_else_on_the_machine_looks_into_what_up_keeps() {
    let dir = data_dir();
    let data = dir.path().join("data");
    let (child, _) = up(&data);
    end(child);
    let whole = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
    assert_eq!(readable_by_others(&data), [] as [PathBuf; 0]);
    let private =
        [data.clone(), data.join("storage"), data.join("engine"), data.join("engine/data")];
    assert_eq!(private.each_ref().map(|path| mode(path)), [whole, 0o700, whole, 0o700]);
    // As an older version left it.
    for path in ["storage", "engine"] {
        std::fs::set_permissions(data.join(path), Permissions::from_mode(0o755)).unwrap();
    }
    let logs =
        ["cynode", "runner", "manager", "analyst", "node", "postgres/server", "engine/server"];
    let logs = logs.map(|name| format!("{name}.log"));
    let files = logs.iter().map(String::as_str).chain(["lock", "setup-link"]);
    for path in files.map(|name| data.join(name)).filter(|path| path.exists()) {
        std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }
    let (child, _) = up(&data);
    end(child);
    assert_eq!(readable_by_others(&data), [] as [PathBuf; 0]);
    assert_eq!(private.each_ref().map(|path| mode(path)), [whole, 0o700, whole, 0o700]);
}

/// What the kernel says about a process: the variables of its environment, and its user.
fn zone_of(pid: Pid) -> (Vec<String>, u32) {
    let place = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let environment = std::fs::read(place.join("environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let names =
        environment.split('\0').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name);
    let status = std::fs::read_to_string(place.join("status")).unwrap();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).unwrap();
    let user = user.split_whitespace().next().unwrap().parse().unwrap();
    (names.map(str::to_owned).collect(), user)
}

#[test]
fn programs_of_up_have_users_and_environments_of_their_own_and_the_engine_has_no_port() {
    let dir = data_dir();
    let mut command = command(dir.path());
    command.env("PGPASSWORD", "planted").env("CYNODE_MAIL_PASSWORD", "planted");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended:\n{said}");
    }
    let programs = ["restate-server", "cynode-runner"].map(|name| helper(&child, name));
    let zones = programs.map(zone_of);
    let names = zones.each_ref().map(|(names, _)| {
        let mut names = names.clone();
        names.sort_unstable();
        names.join(" ")
    });
    assert_eq!(names, ["LC_ALL PATH TMPDIR", "LC_ALL PATH"]);
    if rustix::process::geteuid().is_root() {
        let [(_, engine), (_, runner)] = zones;
        assert!(engine != 0 && runner != 0 && engine != runner, "{engine} {runner}");
    }
    for socket in ["ingress.sock", "admin.sock"] {
        let path = dir.path().join("engine/data/cynode").join(socket);
        while !path.exists() {
            std::thread::yield_now();
        }
    }
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", programs[0].as_raw_nonzero())).unwrap();
    let sockets: Vec<String> = sockets
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let listening = ["tcp", "tcp6"].iter().flat_map(|table| {
        let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    // The fourth column is the state, 0A is listening; the tenth is the number of the socket.
    let ports: Vec<String> = listening
        .filter(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns.get(3) == Some(&"0A")
                && columns.get(9).is_some_and(|number| sockets.iter().any(|own| own == number))
        })
        .collect();
    assert_eq!(ports, Vec::<String>::new(), "the engine has a port");
    end(child);
}

#[tokio::test]
async fn the_running_server_of_up_reads_and_writes_rows_and_creates_nothing() {
    let dir = data_dir();
    let (child, said) = up(dir.path());
    let installation = Installation::set_up(dir.path(), &said).await;
    installation.task_is_driven().await;
    let password = std::fs::read_to_string(dir.path().join("postgres/runtime-password")).unwrap();
    let socket = dir.path().join("postgres/run");
    let statement = |text: &str| {
        let output = Command::new("psql")
            .args(["-X", "-At", "-U", "cynode_runtime", "-d", "postgres", "-c", text])
            .env("PGHOST", &socket)
            .env("PGPASSWORD", password.trim())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(statement("SELECT count(*) FROM tasks").0);
    for refused in [
        "CREATE TABLE own (number int)",
        "ALTER TABLE tasks ADD COLUMN own int",
        "DROP TABLE events",
        "TRUNCATE tasks",
        "UPDATE audit_records SET seq = 0",
        "DELETE FROM _sqlx_migrations",
        "CREATE ROLE own SUPERUSER",
        "SELECT grant_runtime_privileges('cynode_runtime')",
        "COPY tasks TO PROGRAM 'cat'",
    ] {
        let (done, stderr) = statement(refused);
        assert!(!done, "{refused}");
        let told = ["permission denied", "must be owner", "must be superuser"];
        assert!(told.iter().any(|reason| stderr.contains(reason)), "{refused}: {stderr}");
    }
    end(child);
}

#[test]
fn up_takes_over_after_its_process_was_killed() {
    let dir = data_dir();
    let (mut child, _) = up(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    // PostgreSQL is on its way out, or still there; both must do.
    let (child, said) = up(dir.path());
    assert!(said.contains("CyNode is running"));
    end(child);
}

/// Waits until the node of this machine belongs to another address than this one, and gives it.
fn address_of_node(dir: &Path, before: &str) -> String {
    loop {
        let text = std::fs::read_to_string(dir.join("node/node.json")).unwrap_or_default();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        match read["url"].as_str() {
            Some(url) if url != before => return url.to_owned(),
            _ => std::thread::yield_now(),
        }
    }
}

#[test]
fn the_node_of_this_machine_follows_when_up_has_another_port() {
    let dir = data_dir();
    let (child, _) = up(dir.path());
    let first = address_of_node(dir.path(), "");
    end(child);
    let (child, _) = up(dir.path());
    let node = helper(&child, "cynode-node");
    let second = address_of_node(dir.path(), &first);
    let line = std::fs::read(format!("/proc/{}/cmdline", node.as_raw_nonzero())).unwrap();
    let line = String::from_utf8(line).unwrap().replace('\0', " ");
    assert!(line.ends_with(&format!("run --url {second} ")), "{line}");
    end(child);
}

#[test]
fn a_database_that_was_killed_while_up_was_away_is_recovered_by_the_next_up() {
    let dir = data_dir();
    let (mut child, _) = up(dir.path());
    let database = postmaster(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    // It may be on its way out by itself.
    let _ = kill_process(database, Signal::KILL);
    let (child, said) = up(dir.path());
    assert!(said.contains("CyNode is running"));
    end(child);
}

#[tokio::test]
async fn up_starts_its_database_again_and_everything_goes_on() {
    let dir = data_dir();
    let (child, said) = up(dir.path());
    let installation = Installation::set_up(dir.path(), &said).await;
    installation.task_is_driven().await;
    let (old, runner) = (postmaster(dir.path()), helper(&child, "cynode-runner"));
    let orphans = children(old);
    assert!(!orphans.is_empty(), "somebody is connected");
    kill_process(old, Signal::KILL).unwrap();
    installation.task_is_driven().await;
    assert_ne!(postmaster(dir.path()), old);
    assert!(!orphans.iter().any(|pid| is_running(*pid)), "two servers at once");
    assert_eq!(helper(&child, "cynode-runner"), runner, "nothing else was started again");
    let log = std::fs::read_to_string(dir.path().join("cynode.log")).unwrap();
    assert!(log.contains(r#""event":"backend.exited""#), "{log}");
    end(child);
}

/// Whether a process runs; one that has ended and that nobody asked about yet does not.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

/// The processes that a process has started and that live.
fn children(of: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let child = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t"))?;
        (parent == of.as_raw_nonzero().to_string()).then(|| Pid::from_raw(pid)).flatten()
    };
    entries.filter_map(child).collect()
}

#[test]
fn up_says_in_the_terminal_why_its_node_keeps_ending_and_what_to_type() {
    let dir = data_dir();
    let state = dir.path().join("node");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("node.toml"), "no_such_key = 1\n").unwrap();
    let mut child = command(dir.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    let told = loop {
        let before = said.len();
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended:\n{said}");
        if said[before..].starts_with("cynode-node keeps ending: ") {
            break said[before..].to_owned();
        }
    };
    assert!(told.contains("no_such_key"), "{told}");
    let advice = format!("`cynode-node --state {} doctor` says more", state.display());
    assert!(told.contains(&advice), "{told}");
    end(child);
}

#[test]
fn what_postgresqls_user_put_in_the_place_of_a_directory_is_not_followed() {
    let dir = data_dir();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("postgres")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("postgres/run")).unwrap();
    let stderr = refused(dir.path());
    assert!(stderr.contains("postgres/run is not a directory"), "{stderr}");
}

#[test]
fn a_database_of_a_version_that_is_gone_says_which_one_to_install() {
    let dir = data_dir();
    let data = dir.path().join("postgres/data");
    std::fs::create_dir_all(&data).unwrap();
    // Older than any that is installed.
    std::fs::write(data.join("PG_VERSION"), "11\n").unwrap();
    let stderr = refused(dir.path());
    assert!(stderr.contains("was made by PostgreSQL 11, and "), "{stderr}");
    assert!(stderr.contains("`apt-get install postgresql-11`"), "{stderr}");
}

#[test]
fn a_number_that_another_process_got_meanwhile_is_not_taken_for_postgresql() {
    let dir = data_dir();
    let (child, _) = up(dir.path());
    end(child);
    // What a crash leaves behind, with a number that now belongs to another process.
    let stale = format!("1\n{}\n", dir.path().join("postgres/data").display());
    std::fs::write(dir.path().join("postgres/data/postmaster.pid"), stale).unwrap();
    let (child, said) = up(dir.path());
    assert!(said.contains("CyNode is running"));
    end(child);
}

#[test]
fn a_second_up_over_the_same_directory_is_refused() {
    let dir = data_dir();
    let (child, _) = up(dir.path());
    let stderr = refused(dir.path());
    assert!(stderr.contains("stop it, or choose another --data-dir"), "{stderr}");
    end(child);
}

#[tokio::test]
async fn up_does_not_exchange_its_database_for_that_of_a_variable() {
    let dir = data_dir();
    let (child, said) = up(dir.path());
    assert!(said.contains("\n  store  a database of its own\n"), "{said}");
    end(child);
    let other = TestDb::empty().await;
    let output = command(dir.path()).env("DATABASE_URL", other.url()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let told = "has a database of its own, and another is configured: unset DATABASE_URL";
    assert_eq!((output.status.code(), stderr.contains(told)), (Some(1), true), "{stderr}");
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(other.texts(tables).await, Vec::<String>::new());
    // Nor the other way round.
    std::fs::write(dir.path().join("database"), "elsewhere\n").unwrap();
    let stderr = refused(dir.path());
    assert!(stderr.contains("is elsewhere, and none is configured: set DATABASE_URL"), "{stderr}");
}

#[test]
fn whoever_is_at_the_machine_gives_commands_to_what_up_runs() {
    let dir = data_dir();
    let (child, _) = up(dir.path());
    let commands: [&[&str]; 5] = [
        &["admin", "join-token"],
        &["admin", "bootstrap"],
        &["audit", "verify"],
        &["audit", "key"],
        &["migrate"],
    ];
    let give = |words: &[&str]| {
        let output = cynode().args(words).arg("--data-dir").arg(dir.path()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), stderr)
    };
    for words in commands {
        let (code, stdout, stderr) = give(words);
        assert_eq!(code, Some(0), "{words:?}: {stderr}");
        assert!(!stdout.is_empty(), "{words:?}");
    }
    end(child);
    let (code, _, stderr) = give(&["admin", "join-token"]);
    let told = format!("start `cynode up --data-dir {}` first", dir.path().display());
    assert_eq!((code, stderr.contains(&told)), (Some(1), true), "{stderr}");
}

#[test]
fn records_are_not_checked_with_a_new_key() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = cynode();
    command.args(["audit", "verify"]).env("DATABASE_URL", "postgres://nobody@localhost/nothing");
    command.arg("--set").arg(format!("storage.directory={}", dir.path().display()));
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let told = format!(
        "cannot read the master key {}: point storage.directory or storage.master_key_file at the installation's",
        dir.path().join("master.key").display()
    );
    assert_eq!((output.status.code(), stderr.contains(&told)), (Some(1), true), "{stderr}");
    assert!(!stderr.contains("make one"), "{stderr}");
}

#[test]
fn a_port_that_another_program_has_is_named_before_anything_is_started() {
    let instructions = format!("manager.instructions={}/instructions", root().display());
    let begun = ["engine.runner_listen", "manager.listen", "manager.analyst_listen"].map(|key| {
        let (dir, held) = (data_dir(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = held.local_addr().unwrap();
        let mut command = command(dir.path());
        command.args(["--set", &instructions, "--set", &format!("{key}={address}")]);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        (key, address, child, dir, held)
    });
    for (key, address, child, dir, _held) in begun {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let told = format!(
            "cannot listen on {address}: another program may have it; choose another with --set {key}=HOST:PORT"
        );
        assert!(stderr.contains(&told), "{stderr}");
        assert_eq!(
            (output.status.code(), dir.path().join("postgres").exists()),
            (Some(1), false),
            "{key}"
        );
    }
}

#[test]
fn an_initialisation_that_was_cut_off_is_begun_anew() {
    let dir = data_dir();
    // What a kill in the middle of initdb leaves behind.
    std::fs::create_dir_all(dir.path().join("postgres/data.new/base")).unwrap();
    let (child, said) = up(dir.path());
    assert!(said.contains("CyNode is running"));
    end(child);
}

/// An installation of `up`, with its first admin logged in.
pub(crate) struct Installation {
    pub(crate) base: String,
    pub(crate) token: String,
    project: String,
    http: reqwest::Client,
}

/// Sends a request until it is answered: a database that is being started again is a reason to ask again.
pub(crate) async fn answered(request: reqwest::RequestBuilder) -> serde_json::Value {
    loop {
        let answer = request.try_clone().unwrap().send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        if status != reqwest::StatusCode::SERVICE_UNAVAILABLE {
            assert!(status.is_success(), "{status}: {text}");
            return serde_json::from_str(&text).unwrap();
        }
        cynode_testkit_db::pause(std::time::Duration::from_millis(20)).await;
    }
}

pub(crate) async fn post(
    http: &reqwest::Client,
    url: &str,
    token: &str,
    body: serde_json::Value,
) -> serde_json::Value {
    let key = HEXLOWER.encode(&cynode_app::AppEnvironment::from_system().random_bytes::<16>());
    let request = http.post(url).bearer_auth(token).json(&body);
    answered(request.header("idempotency-key", key)).await
}

impl Installation {
    pub(crate) async fn set_up(dir: &Path, said: &str) -> Self {
        let word = |start: &str| {
            let at = said.find(start).unwrap() + start.len();
            said[at..].split_whitespace().next().unwrap().to_owned()
        };
        let base = word("  server ");
        let builder = reqwest::Client::builder();
        let http = if base.starts_with("https://") {
            let authority = ClientTls::trust_file(&dir.join("storage/tls/ca.pem")).unwrap();
            authority.configure_client(builder).unwrap().build().unwrap()
        } else {
            builder.build().unwrap()
        };
        let password = "correct horse battery";
        let link_file = dir.join("setup-link");
        let link = std::fs::read_to_string(&link_file).unwrap();
        let bootstrap = link.split_once("#bootstrap=").unwrap().1.trim();
        let body = json!({ "token": bootstrap, "handle": "ada", "display_name": "Ada", "password": password });
        post(&http, &format!("{base}/v1/bootstrap"), "", body).await;
        let login = json!({ "handle": "ada", "password": password });
        let session = post(&http, &format!("{base}/v1/sessions"), "", login).await;
        // A link that was used does not stay.
        while link_file.exists() {
            cynode_testkit_db::pause(std::time::Duration::from_millis(20)).await;
        }
        let token = session["token"].as_str().unwrap().to_owned();
        let body = json!({ "slug": "web", "title": "Web" });
        let project = post(&http, &format!("{base}/v1/projects"), &token, body).await;
        Self { base, token, project: project["id"].as_str().unwrap().to_owned(), http }
    }

    /// Asks for a task, and waits until the runner has driven it as far as it goes without a project manager.
    pub(crate) async fn task_is_driven(&self) {
        let body = json!({ "project_id": self.project, "description": "Mend it" });
        let task = post(&self.http, &format!("{}/v1/tasks", self.base), &self.token, body).await;
        let url = format!("{}/v1/tasks/{}/timeline", self.base, task["id"].as_str().unwrap());
        loop {
            let request = self.http.get(&url).bearer_auth(&self.token);
            let timeline = answered(request).await;
            if timeline["standing"] == "waits for the project manager" {
                return;
            }
            cynode_testkit_db::pause(std::time::Duration::from_millis(20)).await;
        }
    }
}

/// Longest that a task may take, processes that are started again included.
const DRIVEN_WITHIN: std::time::Duration = std::time::Duration::from_mins(5);

#[tokio::test]
async fn up_drives_a_task_and_starts_again_whatever_is_killed() {
    let dir = data_dir();
    let (child, said) = up(dir.path());
    let installation = Installation::set_up(dir.path(), &said).await;
    installation.task_is_driven().await;
    assert_eq!(helpers(&child, "restate-server").len(), 1, "S002-04: there is one engine");
    for program in ["cynode-runner", "restate-server"] {
        let old = helper(&child, program);
        kill_process(old, Signal::KILL).unwrap();
        let driven = tokio::time::timeout(DRIVEN_WITHIN, installation.task_is_driven()).await;
        driven.expect("S000-035: the runner is started for the task and drives it");
        let new = helper(&child, program);
        assert_ne!(new, old, "S002-38, S002-52: {program} is a process of its own, started again");
    }
    end(child);
}

#[tokio::test]
async fn with_tls_on_loopback_people_and_the_programs_of_up_use_it() {
    let dir = data_dir();
    let (child, said) = up_with(dir.path(), &["tls.loopback=true"]);
    assert!(said.contains("  server https://127.0.0.1:"), "{said}");
    let installation = Installation::set_up(dir.path(), &said).await;
    // The runner shows its client certificate, else no task would be driven.
    tokio::time::timeout(DRIVEN_WITHIN, installation.task_is_driven()).await.unwrap();
    let listed = format!("{}/v1/certificates", installation.base);
    let listed = answered(installation.http.get(listed).bearer_auth(&installation.token)).await;
    let uses: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|item| item["used_for"].clone()).collect();
    assert_eq!(uses[..3], [json!("user_port"), json!("internal_port"), json!("authority")]);
    assert!(uses.contains(&json!("service")), "{uses:?}");
    // Without the authority nobody trusts it, and clear text gets no answer.
    assert!(reqwest::Client::new().get(&installation.base).send().await.unwrap_err().is_connect());
    let plain = installation.base.replace("https://", "http://");
    assert!(reqwest::Client::new().get(plain).send().await.is_err());
    end(child);
    let tls = dir.path().join("storage/tls");
    assert_eq!([tls.join("ca.key"), tls.join("server.key")].map(|path| mode(&path)), [0o600; 2]);
}

#[test]
fn serve_beyond_loopback_without_tls_does_not_start() {
    let dir = data_dir();
    let output = cynode()
        .args(["serve", "--set", "server.listen=0.0.0.0:0", "--set"])
        .arg(format!("storage.directory={}", dir.path().display()))
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("nothing encrypts it"), "{told}");
    assert!(told.contains("cynode admin certificate-authority"), "{told}");
}

#[test]
fn the_service_manager_is_told_when_the_ports_are_open_and_the_setup_link_is_written() {
    let dir = data_dir();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    let data = dir.path().join("data");
    let mut command = command(&data);
    let listen = command.get_args().filter_map(|arg| arg.to_str()?.strip_prefix("server.listen="));
    let listen: SocketAddr = listen.last().unwrap().parse().unwrap();
    let child = command.env("NOTIFY_SOCKET", &socket).stdout(Stdio::null()).spawn().unwrap();
    let mut message = [0; 64];
    let length = manager.recv(&mut message).unwrap();
    assert_eq!(String::from_utf8_lossy(&message[..length]), "READY=1\n");
    assert!(data.join("setup-link").exists());
    TcpStream::connect(listen).unwrap();
    end(child);
}

#[test]
fn an_engine_of_another_release_is_refused_before_anything_starts() {
    let dir = data_dir();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let engine = bin.join("restate-server");
    std::fs::write(&engine, "#!/bin/sh\necho restate-server 1.8.0\n").unwrap();
    std::fs::set_permissions(&engine, Permissions::from_mode(0o755)).unwrap();
    let data = dir.path().join("data");
    let output =
        command(&data).env("PATH", format!("{}:/usr/bin:/bin", bin.display())).output().unwrap();
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("restate-server 1.8.0 in ") && told.contains("tested with"), "{told}");
    assert!(!data.join("postgres").exists(), "nothing was started");
}
