//! `cynode up`: everything on this machine, for the first minutes and for one person.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::{File, TryLockError},
    io::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use cynode_app::{
    App,
    identity::{
        bootstrap,
        service_tokens::{self, ServiceKind},
    },
    nodes,
};
use secrecy::{ExposeSecret, SecretString};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{block_on, bootstrap_link, migrate::apply_migrations, open_app, serve};
use crate::{
    browser::{self, ConsoleLink, DesktopSession},
    cluster::PostgresCluster,
    config::{CynodeConfig, LoadedConfig},
    engine::{EngineEndpoints, RestateClient},
    installation, output, restate,
    supervise::{self, SupervisedProgram},
    telemetry::{self, LogSink},
};

/// File in the data directory with the link that creates the first admin. A command line that named the link itself could be
/// read by every process of the machine.
pub(super) const SETUP_LINK_FILE: &str = "setup-link";

/// Timeout of one question whether the server answers.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

const HEALTH_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Start a complete installation on this machine.
#[derive(Args)]
pub(crate) struct UpArgs {
    /// Data directory; defaults to /var/lib/cynode for root, else to ~/.local/share/cynode.
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// Open the web console in your browser as soon as it answers; at first, the page that creates the first admin.
    #[arg(long)]
    open: bool,
}

pub(crate) fn run_up(up: UpArgs, loaded: &mut LoadedConfig) -> anyhow::Result<ExitCode> {
    let named = up.data_dir.is_some();
    let dir = match up.data_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => installation::default_data_dir()?,
    };
    make_data_dir(&dir, named)?;
    let _lock = lock_data_dir(&dir)?;
    installation::ensure_same_database(&dir, &loaded.config)?;
    let log = dir.join("cynode.log");
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::File(&log))?;
    loaded.log_adjustments();
    for note in &loaded.notes {
        output::print_line(&format!("warning: {note}"));
    }
    let storage = &mut loaded.config.storage;
    let directory = storage.directory.get_or_insert_with(|| dir.join("storage")).clone();
    let key = storage.master_key_file.clone().unwrap_or_else(|| directory.join("master.key"));
    if !key.exists() {
        crate::gateway::create_master_key(&key)?;
    }
    block_on(start_installation(&mut loaded.config, &dir, up.open))?;
    output::print_line("stopped; everything is kept");
    Ok(ExitCode::SUCCESS)
}

async fn start_installation(
    config: &mut CynodeConfig,
    dir: &Path,
    opens_browser: bool,
) -> anyhow::Result<()> {
    let manager = configure_manager(config, dir)?;
    let stop = serve::stop_signal()?;
    let engine = restate::find_engine_program().with_context(|| {
        format!("the engine that drives tasks is not installed: {}", restate::INSTALL_HINT)
    })?;
    let runner = supervise::find_sibling_program("cynode-runner")?;
    // First the ports: they are the likeliest to be in use, and nothing has been started yet.
    let doors = serve::ServerListeners::bind_all(config).await?;
    ensure_helper_ports_free(config, manager.is_some()).await?;
    let mut own = match &config.database.url {
        Some(_) => None,
        None => {
            output::print_line("starting PostgreSQL …");
            Some(PostgresCluster::start_in(dir).await?)
        }
    };
    let url: SecretString = match (&config.database.url, &own) {
        (Some(url), _) => url.clone(),
        (None, Some(cluster)) => cluster.connection_url(),
        (None, None) => bail!("no database"),
    };
    let result = tokio::select! {
        result = serve_installation(config, &url, doors, dir, (engine, runner, manager), stop.clone()) => result,
        never = supervise_database(&mut own) => match never {},
        never = Box::pin(open_console_when_ready(config, dir, opens_browser, &stop)) => match never {},
    };
    if let Some(cluster) = own {
        cluster.stop_server().await?;
    }
    result
}

/// Opens the console in the person's browser as soon as the server answers, if that is wanted.
async fn open_console_when_ready(
    config: &CynodeConfig,
    dir: &Path,
    wanted: bool,
    stop: &CancellationToken,
) -> Infallible {
    if wanted {
        let console = console_address(config);
        let desktop = DesktopSession::from_process();
        let tasks = TaskTracker::new();
        let opened = match wait_until_healthy(config).await {
            Ok(()) => {
                let link = setup_console_link(&console, dir);
                browser::open_console(link, desktop, &tasks, stop).await
            }
            Err(error) => Err(format!("{error:#}")),
        };
        for line in browser::describe_opening(&console, "", desktop, &opened) {
            output::print_line(&format!("  {line}"));
        }
    }
    std::future::pending().await
}

/// Returns the link to the page that creates the first admin, or to the console if there is an admin.
fn setup_console_link(console: &str, dir: &Path) -> ConsoleLink {
    let link = std::fs::read_to_string(dir.join(SETUP_LINK_FILE)).unwrap_or_default();
    match link.trim().split_once("/setup#") {
        Some((_, token)) => ConsoleLink {
            console: console.to_owned(),
            destination: format!("{console}setup#{token}"),
            cookie: None,
        },
        None => ConsoleLink::without_secret(console.to_owned()),
    }
}

/// Returns the address of the console for a browser on this machine. It ends with `/`.
fn console_address(config: &CynodeConfig) -> String {
    match &config.server.public_url {
        Some(url) if url.starts_with("https:") => format!("{}/", url.trim_end_matches('/')),
        Some(_) | None => format!("http://{}/", loopback_address(config.server.listen)),
    }
}

/// Returns an address at which this machine reaches a port of its own.
fn loopback_address(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Waits until the server answers.
async fn wait_until_healthy(config: &CynodeConfig) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().timeout(HEALTH_TIMEOUT).no_proxy().build()?;
    let url = format!("http://{}/healthz", loopback_address(config.server.listen));
    let mut turn = tokio::time::interval(HEALTH_POLL_INTERVAL);
    loop {
        turn.tick().await;
        if http.get(&url).send().await.is_ok_and(|response| response.status().is_success()) {
            return Ok(());
        }
    }
}

/// Describes the database, without its credentials.
fn describe_database(config: &CynodeConfig) -> String {
    let Some(url) = &config.database.url else { return "a database of its own".to_owned() };
    let Ok(url) = Url::parse(url.expose_secret()) else { return "a database elsewhere".to_owned() };
    let host = url.host_str().unwrap_or_default();
    format!("the database {} at {host}, as configured", url.path().trim_start_matches('/'))
}

/// Checks that the ports of supervised programs are free. Otherwise such a program would exit again and again, and say so only
/// in its log.
async fn ensure_helper_ports_free(config: &CynodeConfig, manager: bool) -> anyhow::Result<()> {
    let own = config.engine.own;
    serve::ensure_port_free(own.runner, "engine.runner_listen").await?;
    serve::ensure_port_free(own.ingress, "engine.ingress_listen").await?;
    serve::ensure_port_free(own.admin, "engine.admin_listen").await?;
    serve::ensure_port_free(own.node, "engine.node_listen").await?;
    if manager {
        serve::ensure_port_free(config.manager.listen, "manager.listen").await?;
        serve::ensure_port_free(config.manager.analyst_listen, "manager.analyst_listen").await?;
    }
    Ok(())
}

/// Keeps our own database running; an external one is managed by others.
async fn supervise_database(own: &mut Option<PostgresCluster>) -> Infallible {
    match own {
        Some(cluster) => cluster.supervise_server().await,
        None => std::future::pending().await,
    }
}

async fn serve_installation(
    config: &CynodeConfig,
    url: &SecretString,
    doors: serve::ServerListeners,
    dir: &Path,
    (engine, runner, manager): (PathBuf, PathBuf, Option<PathBuf>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    output::print_line("bringing the schema up to date …");
    apply_migrations(config.database.pool_options_for(url)).await?;
    installation::record_database(dir, config)?;
    let app = open_app(config, &config.database.pool_options_for(url))?;
    let admin = bootstrap::issue_bootstrap_token(&app).await?;
    output::print_line("starting the engine, the runner, the project manager and the node …");
    let kept = prepare_engine_and_runner(config, &app, dir, engine, runner).await?;
    let helpers = TaskTracker::new();
    for program in kept {
        helpers.spawn(program.run_supervised(stop.clone()));
    }
    let has_manager = manager.is_some();
    if let Some(path) = manager {
        for program in prepare_manager_programs(config, &app, dir, &path).await? {
            helpers.spawn(program.run_supervised(stop.clone()));
        }
    }
    let node = prepare_node_program(config, &app, dir).await?;
    let has_node = node.is_some();
    if let Some((join, program)) = node {
        helpers.spawn(join_and_supervise(join, program, stop.clone()));
    }
    output::print_line("CyNode is running");
    output::print_line(&format!("  server http://{}", config.server.listen));
    let link_file = dir.join(SETUP_LINK_FILE);
    if let Some(token) = admin {
        restate::write_private_file(
            &link_file,
            &format!("{}\n", bootstrap_link(config, &token.0)),
        )?;
        output::print_line(&format!(
            "  admin  cynork setup --link-file {} --handle NAME",
            link_file.display()
        ));
        output::print_line("         makes the first admin and logs in; works once, for 24 hours");
        output::print_line(
            "         as another user: `sudo cat` that file, then `cynork setup --handle NAME` asks for the link",
        );
        let lifetime = config.auth.policy.bootstrap_lifetime.unsigned_abs();
        helpers.spawn(remove_used_link(app.clone(), link_file, lifetime, stop.clone()));
    } else {
        remove_setup_link(&link_file);
        output::print_line(&format!(
            "  login  cynork login http://{} --handle NAME",
            config.server.listen
        ));
    }
    output::print_line(&if has_node {
        let state = dir.join("node");
        format!(
            "  node   this machine runs jobs; `cynode-node --state {} doctor` says how well",
            state.display()
        )
    } else {
        "  node   none: `cynode-node` is not beside this program, so jobs wait until a machine joins".to_owned()
    });
    output::print_line(if has_manager {
        "  chat   the model `cynodeai.pm` is the project manager"
    } else {
        "  chat   no project manager: `cynode-pma` or its instructions are not beside this program, so tasks wait for one"
    });
    output::print_line(&format!("  data   {}", dir.display()));
    output::print_line(&format!("  store  {}", describe_database(config)));
    output::print_line(&format!("  log    {}", dir.join("cynode.log").display()));
    output::print_line("  stop   Ctrl-C");
    let engine = RestateClient::new(EngineEndpoints::for_local_engine(config.engine.own))?;
    let served = serve::serve_requests(config, app, doors, Some(engine), stop.clone()).await;
    // The engine and the runner end with the server, and before the database.
    stop.cancel();
    helpers.close();
    helpers.wait().await;
    served
}

/// Removes the setup link as soon as an admin exists or the link has expired. The next `up` replaces one that stays.
async fn remove_used_link(
    app: App,
    link_file: PathBuf,
    lifetime: Duration,
    stop: CancellationToken,
) {
    let expiry = tokio::time::Instant::now() + lifetime;
    let mut commits = app.subscribe_commits();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep_until(expiry) => break,
            changed = commits.changed() => match (changed, bootstrap::is_bootstrapped(&app).await) {
                (Ok(()), Ok(true)) => break,
                // An error is of the database, which comes back; the next commit asks again.
                (Ok(()), Ok(false) | Err(_)) => {}
                (Err(_), _) => return,
            },
        }
    }
    remove_setup_link(&link_file);
}

fn remove_setup_link(link_file: &Path) {
    match std::fs::remove_file(link_file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(event = "setup_link.remove_failed", %error, "remove {} by hand", link_file.display());
        }
        _ => {}
    }
}

/// Prepares the supervised engine and runner. The runner gets a new token at every start.
async fn prepare_engine_and_runner(
    config: &CynodeConfig,
    app: &App,
    dir: &Path,
    engine: PathBuf,
    runner: PathBuf,
) -> anyhow::Result<[SupervisedProgram; 2]> {
    let ports = config.engine.own;
    let prepared = restate::EngineFiles::prepare_in(&dir.join("engine"), ports)?;
    let name = "up".parse()?;
    let token = service_tokens::issue_service_token(app, ServiceKind::Runner, &name).await?;
    let token_file = dir.join("runner-token");
    restate::write_private_file(&token_file, &token.0)?;
    let mut arguments: Vec<OsString> = Vec::new();
    arguments.extend(["--listen".into(), ports.runner.to_string().into()]);
    let orchestrator = format!("http://{}", config.server.internal_listen);
    arguments.extend(["--orchestrator".into(), orchestrator.into()]);
    arguments.extend(["--token-file".into(), token_file.into()]);
    arguments.extend(["--engine-key-file".into(), prepared.public_key.clone().into()]);
    let log = dir.join("runner.log");
    let runner = SupervisedProgram::new("cynode-runner", runner, arguments, log);
    Ok([prepared.to_program(engine), runner])
}

/// Finds the program of the project manager and sets its address in the configuration; returns `None` if there is none. A
/// configured manager is used as it is.
fn configure_manager(config: &mut CynodeConfig, dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    if config.manager.url.is_some() {
        return Ok(None);
    }
    let Ok(path) = supervise::find_sibling_program("cynode-pma") else { return Ok(None) };
    let Some(instructions) = find_instructions(config.manager.instructions.take(), &path) else {
        return Ok(None);
    };
    let file = dir.join("manager-credential");
    let secret = cynode_app::AppEnvironment::from_system().random_bytes::<32>();
    restate::write_private_file(&file, &data_encoding::HEXLOWER.encode(&secret))?;
    config.manager.url = Some(format!("http://{}", config.manager.listen));
    config.manager.credential_file = Some(file);
    config.manager.instructions = Some(instructions);
    Ok(Some(path))
}

/// Finds the instructions: as configured, beside the program, where packages install them, in the working directory, or in the
/// source tree.
pub(super) fn find_instructions(configured: Option<PathBuf>, program: &Path) -> Option<PathBuf> {
    if configured.is_some() {
        return configured;
    }
    let beside = program.parent()?;
    let places = [
        beside.join("instructions"),
        beside.join("../share/cynode/instructions"),
        PathBuf::from("instructions"),
        beside.join("../../instructions"),
    ];
    let found = places.into_iter().find(|place| place.join("project_manager").is_dir())?;
    std::path::absolute(found).ok()
}

/// Prepares the supervised project manager and an analyst. Each gets a new token at every start.
async fn prepare_manager_programs(
    config: &CynodeConfig,
    app: &App,
    dir: &Path,
    path: &Path,
) -> anyhow::Result<Vec<SupervisedProgram>> {
    let roles = [
        (ServiceKind::Manager, "manager", "project_manager", config.manager.listen),
        (ServiceKind::Analyst, "analyst", "project_analyst", config.manager.analyst_listen),
    ];
    let mut programs = Vec::new();
    for (kind, name, role, listen) in roles {
        let token = service_tokens::issue_service_token(app, kind, &"up".parse()?).await?;
        let token_file = dir.join(format!("{name}-token"));
        restate::write_private_file(&token_file, &token.0)?;
        let mut arguments: Vec<OsString> = vec![format!("--role={role}").into()];
        arguments.extend(["--listen".into(), listen.to_string().into()]);
        let orchestrator = format!("http://{}", config.server.internal_listen);
        arguments.extend(["--orchestrator".into(), orchestrator.into()]);
        arguments.extend(["--token-file".into(), token_file.into()]);
        if let Some(instructions) = &config.manager.instructions {
            arguments.extend(["--instructions".into(), instructions.into()]);
        }
        if let Some(file) = &config.manager.credential_file
            && kind == ServiceKind::Manager
        {
            arguments.extend(["--credential-file".into(), file.into()]);
        }
        let log = dir.join(format!("{name}.log"));
        programs.push(SupervisedProgram::new("cynode-pma", path.to_owned(), arguments, log));
    }
    Ok(programs)
}

/// Prepares the supervised node on this machine, and its join if it has not joined. Returns `None` if there is no such program.
async fn prepare_node_program(
    config: &CynodeConfig,
    app: &App,
    dir: &Path,
) -> anyhow::Result<Option<(Option<SupervisedProgram>, SupervisedProgram)>> {
    let Ok(path) = supervise::find_sibling_program("cynode-node") else { return Ok(None) };
    let (state, log) = (dir.join("node"), dir.join("node.log"));
    let program = |arguments: Vec<OsString>| {
        let flag: [OsString; 2] = ["--state".into(), state.clone().into()];
        let arguments = flag.into_iter().chain(arguments).collect();
        let advice = Some(format!("cynode-node --state {} doctor", state.display()));
        SupervisedProgram {
            advice,
            ..SupervisedProgram::new("cynode-node", path.clone(), arguments, log.clone())
        }
    };
    let url = format!("http://{}", config.server.internal_listen);
    // The port may differ from the one at the time of the join.
    let run = program(vec!["run".into(), "--url".into(), url.clone().into()]);
    let token_file = dir.join("node-join-token");
    if state.join("node.json").exists() {
        // The token was used.
        let _ = std::fs::remove_file(&token_file);
        return Ok(Some((None, run)));
    }
    let token = nodes::issue_local_join_token(app, Vec::new()).await?;
    restate::write_private_file(&token_file, &token.0)?;
    let mut join: Vec<OsString> = vec!["join".into(), "--url".into(), url.into()];
    join.extend(["--token-file".into(), token_file.into(), "--name".into(), "local".into()]);
    Ok(Some((Some(program(join)), run)))
}

/// Joins, as soon as the server answers, and then runs jobs.
async fn join_and_supervise(
    join: Option<SupervisedProgram>,
    run: SupervisedProgram,
    stop: CancellationToken,
) {
    if let Some(join) = join
        && !join.run_until_success(&stop).await
    {
        return;
    }
    run.run_supervised(stop).await;
}

/// Locks the data directory: two instances in one directory would compete for the database. The lock ends with the process,
/// whose id is in the file.
fn lock_data_dir(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let unwritten = || format!("cannot write {}", path.display());
    // The holder wrote its id there: the file must not be truncated before we hold the lock.
    let opened = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let mut file = opened.with_context(unwritten)?;
    restate::close_file_to_others(&file).with_context(unwritten)?;
    // A predecessor that was killed just now may still be exiting.
    let turn = Duration::from_millis(50);
    let mut turns = serve::PREDECESSOR_EXIT_TIMEOUT.as_millis() / turn.as_millis();
    while turns > 0 && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        std::thread::sleep(turn);
        turns -= 1;
    }
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).with_context(unwritten)?;
            writeln!(file, "{}", std::process::id()).with_context(unwritten)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            bail!(
                "another `cynode up` uses {}: stop it, or choose another --data-dir",
                dir.display()
            )
        }
        Err(TryLockError::Error(error)) => Err(error).context("cannot lock the data directory"),
    }
}

/// Creates the data directory. PostgreSQL and the jobs have their own users if we are root: they may traverse it, and not list
/// it. An existing directory that a user named keeps its permissions.
fn make_data_dir(dir: &Path, named: bool) -> anyhow::Result<()> {
    let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
    let there = dir.exists();
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if there && named {
        return Ok(());
    }
    let found = std::fs::metadata(dir)?;
    let before = found.mode() & 0o7777;
    let after = if there { before & (mode | 0o7000) } else { mode };
    // The owner of a directory of another account decided about its permissions.
    if after == before || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(after))
        .with_context(|| format!("cannot close {} to others", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browser_is_led_to_the_setup_page_until_there_is_an_admin() {
        let dir = tempfile::tempdir().unwrap();
        let console = "http://127.0.0.1:12080/";
        let link = setup_console_link(console, dir.path());
        assert_eq!((link.console.as_str(), link.destination.as_str()), (console, console));
        let text = "http://0.0.0.0:12080/setup#bootstrap=cyn_boot_x\n";
        std::fs::write(dir.path().join(SETUP_LINK_FILE), text).unwrap();
        let link = setup_console_link(console, dir.path());
        assert_eq!(link.console, console);
        assert_eq!(link.destination, "http://127.0.0.1:12080/setup#bootstrap=cyn_boot_x");
        assert_eq!(link.cookie, None);
    }

    #[test]
    fn a_port_of_all_addresses_is_reached_over_loopback() {
        for (listen, reached) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.7:1", "192.0.2.7:1"),
        ] {
            assert_eq!(loopback_address(listen.parse().unwrap()).to_string(), reached);
        }
    }
}
