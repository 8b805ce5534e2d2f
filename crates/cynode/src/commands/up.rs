//! `cynode up`: everything on this machine, for the first minutes and for one person.

mod service_certificates;

use std::{
    convert::Infallible,
    ffi::OsString,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use cynode_app::{
    App, AppEnvironment,
    identity::{
        bootstrap,
        service_tokens::{self, ServiceKind},
    },
    nodes,
    platform::certificates::EarlierCertificates,
};
use cynode_db::{DbOptions, platform::database_roles};
use secrecy::{ExposeSecret, SecretString};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use self::service_certificates::ServiceCertificates;
use super::{block_on, bootstrap_link, migrate::apply_migrations, open_app, serve};
use crate::{
    backup,
    browser::{self, ConsoleLink, DesktopSession},
    cluster::PostgresCluster,
    config::{CynodeConfig, LoadedConfig, MasterKeySource},
    engine::{EngineEndpoints, RestateClient},
    installation, master_key, output,
    program_zone::{ProgramKind, ProgramZone, UserSeparation},
    restate,
    supervise::{self, SupervisedProgram},
    telemetry::{self, LogSink},
    tls,
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
    /// Run every program as this user. Without it each has a user of its own if this one is root.
    #[arg(long)]
    one_user: bool,
}

/// Where the installation is, and how its programs are separated.
#[derive(Clone, Copy)]
struct InstallationPlace<'a> {
    dir: &'a Path,
    separation: UserSeparation,
}

impl InstallationPlace<'_> {
    fn zone_of(self, kind: ProgramKind) -> anyhow::Result<ProgramZone> {
        ProgramZone::for_program(kind, self.dir, self.separation)
    }
}

pub(crate) fn run_up(up: UpArgs, loaded: &mut LoadedConfig) -> anyhow::Result<ExitCode> {
    let named = up.data_dir.is_some();
    let dir = match up.data_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => installation::default_data_dir()?,
    };
    make_data_dir(&dir, named)?;
    let _lock = installation::lock_directory(&dir)?;
    ensure!(
        !dir.join(backup::RESTORE_PROGRESS_FILE).exists(),
        "a restore into {} was interrupted: run `cynode restore` again, or empty the directory",
        dir.display()
    );
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
    if loaded.config.master_key.source == MasterKeySource::File && !key.exists() {
        ensure!(
            !installation::has_recorded_database(&dir),
            "the master key {} of the installation in {} is missing: put it back, or name its file in storage.master_key_file \
             (a restored one is in storage/master.key); another key would open nothing",
            key.display(),
            dir.display()
        );
        master_key::create_master_key(&key)?;
    }
    if let Some(directory) = tls::authority_directory(&loaded.config) {
        let files = tls::AuthorityFiles::in_directory(&directory);
        tls::create_authority(&files, &AppEnvironment::from_system())?;
    }
    for key in &loaded.clear_text {
        output::print_line(&format!("warning: tls.insecure is set: {key} is reached without TLS"));
    }
    let separation = if up.one_user { UserSeparation::None } else { UserSeparation::WherePossible };
    let place = InstallationPlace { dir: &dir, separation };
    block_on(start_installation(&mut loaded.config, place, up.open))?;
    output::print_line("stopped; everything is kept");
    Ok(ExitCode::SUCCESS)
}

async fn start_installation(
    config: &mut CynodeConfig,
    place: InstallationPlace<'_>,
    opens_browser: bool,
) -> anyhow::Result<()> {
    let mut manager = configure_manager(config, place)?;
    let stop = serve::stop_signal()?;
    let mut engine = restate::find_tested_engine()?;
    let mut runner = supervise::find_sibling_program("cynode-runner")?;
    place_programs(config, place, [&mut engine, &mut runner], manager.as_mut())?;
    // First the ports: they are the likeliest to be in use, and nothing has been started yet.
    let doors = serve::ServerListeners::bind_all(config).await?;
    ensure_helper_ports_free(config, manager.is_some()).await?;
    let mut own = match &config.database.url {
        Some(_) => None,
        None => {
            output::print_line("starting PostgreSQL …");
            let archive = config.database.wal_archive.as_deref();
            Some(PostgresCluster::start_in(place.dir, archive).await?)
        }
    };
    let urls = match (&config.database.url, &own) {
        (Some(url), _) => DatabaseUrls {
            owner: config.database.owner_url.as_ref().unwrap_or(url).clone(),
            runtime: url.clone(),
        },
        (None, Some(cluster)) => {
            DatabaseUrls { owner: cluster.connection_url(), runtime: cluster.runtime_url().await? }
        }
        (None, None) => bail!("no database"),
    };
    let result = tokio::select! {
        result = serve_installation(config, &urls, doors, place, (engine, runner, manager), stop.clone()) => result,
        never = supervise_database(&mut own) => match never {},
        never = Box::pin(open_console_when_ready(config, place.dir, opens_browser, &stop)) => match never {},
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
        Some(_) | None => {
            let url = tls::browser_url(config).unwrap_or_else(|| tls::user_port_url(config));
            format!("{url}/")
        }
    }
}

/// Waits until the server answers. The request has no secret and its answer is not read, so a certificate for other names, or of an
/// authority that this machine does not know, is no obstacle: the browser checks it.
async fn wait_until_healthy(config: &CynodeConfig) -> anyhow::Result<()> {
    let http = reqwest::Client::builder()
        .timeout(HEALTH_TIMEOUT)
        .no_proxy()
        .tls_danger_accept_invalid_certs(true)
        .build()?;
    let url = format!("{}/healthz", tls::user_port_url(config));
    let mut turn = tokio::time::interval(HEALTH_POLL_INTERVAL);
    loop {
        turn.tick().await;
        if http.get(&url).send().await.is_ok_and(|response| response.status().is_success()) {
            return Ok(());
        }
    }
}

/// The two ways to the database. They are the same for one elsewhere without `database.owner_url`.
struct DatabaseUrls {
    /// Of the owner of the schema, who migrates.
    owner: SecretString,
    /// Of the running server.
    runtime: SecretString,
}

/// Puts programs where their own users can reach them, before anything is started.
fn place_programs(
    config: &CynodeConfig,
    place: InstallationPlace<'_>,
    [engine, runner]: [&mut PathBuf; 2],
    manager: Option<&mut PathBuf>,
) -> anyhow::Result<()> {
    *engine = place.zone_of(ProgramKind::Engine)?.place_program(engine, place.dir)?;
    let runner_zone = place.zone_of(ProgramKind::Runner)?;
    *runner = runner_zone.place_program(runner, place.dir)?;
    runner_zone.ensure_reachable(place.dir)?;
    if let Some(manager) = manager {
        let zone = place.zone_of(ProgramKind::Manager)?;
        *manager = zone.place_program(manager, place.dir)?;
        if let Some(instructions) = &config.manager.instructions {
            zone.ensure_reachable(instructions)?;
        }
    }
    Ok(())
}

/// Checks that the role of the running server reads and writes rows only.
async fn ensure_role_restricted(app_options: &DbOptions) -> anyhow::Result<()> {
    let pool = cynode_db::connect_pool(app_options)?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    let privileges = database_roles::get_role_privileges(&mut conn).await?;
    drop(conn);
    pool.close().await;
    ensure!(
        privileges.is_restricted(),
        "the role `{}` of the running server may change the schema: it must only read and write rows",
        privileges.role
    );
    ensure!(
        privileges.unreadable_tables == 0,
        "the role `{}` of the running server lacks {} tables: `cynode migrate` as the owner grants them",
        privileges.role,
        privileges.unreadable_tables
    );
    Ok(())
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
    serve::ensure_port_free(config.engine.runner_listen, "engine.runner_listen").await?;
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
    urls: &DatabaseUrls,
    mut doors: serve::ServerListeners,
    place: InstallationPlace<'_>,
    (engine, runner, manager): (PathBuf, PathBuf, Option<PathBuf>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let dir = place.dir;
    output::print_line("bringing the schema up to date …");
    apply_migrations(config.database.pool_options_for(&urls.owner)).await?;
    installation::record_database(dir, config)?;
    let options = config.database.pool_options_for(&urls.runtime);
    if config.database.url.is_none() || config.database.owner_url.is_some() {
        ensure_role_restricted(&options).await?;
    } else {
        output::print_line(
            "warning: the running server has the role of the schema's owner: name that one in database.owner_url_file, and \
             one that changes no table in database.url_file",
        );
    }
    let app = open_app(config, &options)?;
    let app = app.clone().with_keys(master_key::load_keys(config, &app).await?);
    let app = doors.attach_tls(app);
    let certificates = ServiceCertificates::for_config(config, place)?;
    if let Some(certificates) = &certificates {
        certificates.issue_all(&app, EarlierCertificates::Revoke).await?;
    }
    let certificates = certificates.as_ref();
    let admin = bootstrap::issue_bootstrap_token(&app).await?;
    output::print_line("starting the engine, the runner, the project manager and the node …");
    let programs = (engine, runner);
    let kept = prepare_engine_and_runner(config, &app, place, programs, certificates).await?;
    let helpers = TaskTracker::new();
    if let Some(certificates) = certificates {
        helpers.spawn(certificates.clone().run_renewal(app.clone(), stop.clone()));
    }
    for program in kept {
        helpers.spawn(program.run_supervised(stop.clone()));
    }
    let has_manager = manager.is_some();
    if let Some(path) = manager {
        for program in prepare_manager_programs(config, &app, place, &path, certificates).await? {
            helpers.spawn(program.run_supervised(stop.clone()));
        }
    }
    let node = prepare_node_program(config, &app, place, certificates).await?;
    let has_node = node.is_some();
    if let Some((join, program)) = node {
        helpers.spawn(join_and_supervise(join, program, stop.clone()));
    }
    output::print_line("CyNode is running");
    let url = tls::user_port_url(config);
    output::print_line(&format!("  server {url}"));
    if tls::PortProtection::of_user_port(config) == tls::PortProtection::Own
        && let Some(place) = tls::authority_directory(config)
    {
        let authority = place.join(tls::AUTHORITY_CERTIFICATE_FILE);
        output::print_line(&format!("  trust  {}, with `cynork --ca-file`", authority.display()));
    }
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
        output::print_line(&format!("  login  cynork login {url} --handle NAME"));
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
    let engine =
        EngineEndpoints::for_local_engine(&dir.join("engine"), config.engine.runner_listen);
    let engine = RestateClient::new(engine)?;
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
    place: InstallationPlace<'_>,
    (engine, runner): (PathBuf, PathBuf),
    certificates: Option<&ServiceCertificates>,
) -> anyhow::Result<[SupervisedProgram; 2]> {
    let dir = place.dir;
    let engine_zone = place.zone_of(ProgramKind::Engine)?;
    let prepared = restate::EngineFiles::prepare_in(&dir.join("engine"), engine_zone)?;
    let zone = place.zone_of(ProgramKind::Runner)?;
    let name = "up".parse()?;
    let token = service_tokens::issue_service_token(app, ServiceKind::Runner, &name).await?;
    let token_file = dir.join("runner-token");
    write_program_file(&zone, &token_file, &token.0)?;
    // The runner cannot enter the directory of the engine: it has a copy of the public key.
    let key_file = dir.join("engine-key.pub");
    write_program_file(&zone, &key_file, &std::fs::read_to_string(&prepared.public_key)?)?;
    let mut arguments: Vec<OsString> = Vec::new();
    arguments.extend(["--listen".into(), config.engine.runner_listen.to_string().into()]);
    let orchestrator = tls::internal_port_url(config);
    arguments.extend(["--orchestrator".into(), orchestrator.into()]);
    arguments.extend(certificates.map(|own| own.arguments_of("runner")).unwrap_or_default());
    arguments.extend(["--token-file".into(), token_file.into()]);
    arguments.extend(["--engine-key-file".into(), key_file.into()]);
    let log = dir.join("runner.log");
    let runner = SupervisedProgram::new("cynode-runner", runner, arguments, log, zone);
    Ok([prepared.to_program(engine), runner])
}

/// Writes a private file that a program reads.
fn write_program_file(zone: &ProgramZone, path: &Path, text: &str) -> anyhow::Result<()> {
    restate::write_private_file(path, text)?;
    zone.own_file(path)
}

/// Finds the program of the project manager and sets its address in the configuration; returns `None` if there is none. A
/// configured manager is used as it is.
fn configure_manager(
    config: &mut CynodeConfig,
    place: InstallationPlace<'_>,
) -> anyhow::Result<Option<PathBuf>> {
    if config.manager.url.is_some() {
        return Ok(None);
    }
    let Ok(path) = supervise::find_sibling_program("cynode-pma") else { return Ok(None) };
    let Some(instructions) = find_instructions(config.manager.instructions.take(), &path) else {
        return Ok(None);
    };
    let file = place.dir.join("manager-credential");
    let secret = cynode_app::AppEnvironment::from_system().random_bytes::<32>();
    let zone = place.zone_of(ProgramKind::Manager)?;
    write_program_file(&zone, &file, &data_encoding::HEXLOWER.encode(&secret))?;
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
    place: InstallationPlace<'_>,
    path: &Path,
    certificates: Option<&ServiceCertificates>,
) -> anyhow::Result<Vec<SupervisedProgram>> {
    let dir = place.dir;
    let roles = [
        (ServiceKind::Manager, "manager", "project_manager", config.manager.listen),
        (ServiceKind::Analyst, "analyst", "project_analyst", config.manager.analyst_listen),
    ];
    let mut programs = Vec::new();
    for (kind, name, role, listen) in roles {
        let token = service_tokens::issue_service_token(app, kind, &"up".parse()?).await?;
        let zone = place.zone_of(match kind {
            ServiceKind::Manager => ProgramKind::Manager,
            _ => ProgramKind::Analyst,
        })?;
        let token_file = dir.join(format!("{name}-token"));
        write_program_file(&zone, &token_file, &token.0)?;
        let mut arguments: Vec<OsString> = vec![format!("--role={role}").into()];
        arguments.extend(["--listen".into(), listen.to_string().into()]);
        let orchestrator = tls::internal_port_url(config);
        arguments.extend(["--orchestrator".into(), orchestrator.into()]);
        arguments.extend(certificates.map(|own| own.arguments_of(name)).unwrap_or_default());
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
        programs.push(SupervisedProgram::new("cynode-pma", path.to_owned(), arguments, log, zone));
    }
    Ok(programs)
}

/// Prepares the supervised node on this machine, and its join if it has not joined. Returns `None` if there is no such program.
async fn prepare_node_program(
    config: &CynodeConfig,
    app: &App,
    place: InstallationPlace<'_>,
    certificates: Option<&ServiceCertificates>,
) -> anyhow::Result<Option<(Option<SupervisedProgram>, SupervisedProgram)>> {
    let dir = place.dir;
    let Ok(path) = supervise::find_sibling_program("cynode-node") else { return Ok(None) };
    let (state, log) = (dir.join("node"), dir.join("node.log"));
    let zone = place.zone_of(ProgramKind::Node)?;
    let program = |arguments: Vec<OsString>| {
        let flag: [OsString; 2] = ["--state".into(), state.clone().into()];
        let arguments = flag.into_iter().chain(arguments).collect();
        let advice = Some(format!("cynode-node --state {} doctor", state.display()));
        let (path, log, zone) = (path.clone(), log.clone(), zone.clone());
        SupervisedProgram {
            advice,
            ..SupervisedProgram::new("cynode-node", path, arguments, log, zone)
        }
    };
    let url = tls::internal_port_url(config);
    let trust = certificates.map(ServiceCertificates::node_arguments).unwrap_or_default();
    // The port may differ from the one at the time of the join.
    let mut run: Vec<OsString> = vec!["run".into(), "--url".into(), url.clone().into()];
    run.extend(trust.clone());
    let run = program(run);
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
    join.extend(trust);
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
}
