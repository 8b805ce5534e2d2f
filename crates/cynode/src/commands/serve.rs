//! `cynode serve`: the HTTP server over an existing database.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use cynode_api::{AppState, BrowserAccess, ConsoleFiles};
use cynode_app::{
    App, AppEnvironment,
    background::{key_rotation, maintenance, memory_ingests, reconciler},
    delivery::{environments, forges},
    identity::provider_grants,
    platform::{certificates::TlsParts, wakeups},
    tools::audit,
    workflow::schedules,
};
use cynode_net::{
    server::{LimitedServer, ServerOptions},
    tls::ServerTls,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, signal::unix};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{block_on, open_app};
use crate::{
    config::{CynodeConfig, LoadedConfig},
    engine::{EngineEndpoints, RestateClient},
    gateway, open_files,
    telemetry::{self, LogSink},
    tls::{self, CertificateUpkeep, PortProtection, PortsTls},
};

/// Serves until a stop signal.
pub(crate) fn run_serve(loaded: LoadedConfig) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Stderr)?;
    loaded.log_adjustments();
    let config = loaded.config;
    let app = || open_app(&config, &config.database.pool_options()?);
    block_on(async {
        let stop = stop_signal()?;
        let mut doors = ServerListeners::bind_all(&config).await?;
        let engine = match EngineEndpoints::from_config(&config.engine) {
            Some(places) => Some(RestateClient::new(places)?),
            None => None,
        };
        let app = doors.attach_tls(app()?);
        serve_requests(&config, app, doors, engine, stop).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a token that is cancelled when the process is asked to end.
pub(crate) fn stop_signal() -> anyhow::Result<CancellationToken> {
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    #[expect(
        clippy::disallowed_methods,
        reason = "it must outlive everything that shutdown waits for"
    )]
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        token.cancel();
    });
    Ok(stop)
}

/// The two bound listeners, and their TLS.
pub(crate) struct ServerListeners {
    user: TcpListener,
    internal: TcpListener,
    user_tls: Option<ServerTls>,
    internal_tls: Option<ServerTls>,
    tls_parts: Option<TlsParts>,
    upkeep: CertificateUpkeep,
}

impl ServerListeners {
    /// Binds both ports, or reports which is in use and how to choose another. A port beyond loopback that nothing encrypts is refused.
    pub(crate) async fn bind_all(config: &CynodeConfig) -> anyhow::Result<Self> {
        let tls = PortsTls::open(config, &AppEnvironment::from_system())?;
        let (user_tls, internal_tls, tls_parts, upkeep) = tls.into_parts();
        Ok(Self {
            user: bind_listener(config.server.listen, "server.listen").await?,
            internal: bind_listener(config.server.internal_listen, "server.internal_listen")
                .await?,
            user_tls,
            internal_tls,
            tls_parts: Some(tls_parts),
            upkeep,
        })
    }

    /// Returns the application with the TLS of the ports.
    pub(crate) fn attach_tls(&mut self, app: App) -> App {
        match self.tls_parts.take() {
            Some(parts) => app.with_tls(parts),
            None => app,
        }
    }
}

/// How long the processes of a killed predecessor may take to exit: they end shortly after it.
pub(crate) const PREDECESSOR_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Checks that a port for one of our programs is free, and reports a conflict as for our own ports.
pub(crate) async fn ensure_port_free(address: SocketAddr, key: &str) -> anyhow::Result<()> {
    let mut turn = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..PREDECESSOR_EXIT_TIMEOUT.as_millis() / 50 {
        turn.tick().await;
        if TcpListener::bind(address).await.is_ok() {
            return Ok(());
        }
    }
    bind_listener(address, key).await.map(drop)
}

async fn bind_listener(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: another program may have it; choose another with --set {key}=HOST:PORT")
    })
}

/// Returns what people call this process: its machine, its port and its number there.
fn describe_process(config: &CynodeConfig) -> String {
    let system = rustix::system::uname();
    let (host, port) = (system.nodename().to_string_lossy(), config.server.internal_listen);
    format!("{host} {port} (process {})", std::process::id())
}

/// Serves until `stop`, then lets running requests end.
pub(crate) async fn serve_requests(
    config: &CynodeConfig,
    app: App,
    doors: ServerListeners,
    engine: Option<RestateClient>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let tasks = TaskTracker::new();
    // Records are shipped to the very end: the last calls are answered after `stop`.
    let records = CancellationToken::new();
    let gateway::RunningGateway { app, gateway } =
        gateway::start_gateway(config, app, &tasks, &stop, records.clone()).await?;
    let process = describe_process(config);
    tasks.spawn(key_rotation::run_key_rotation(app.clone(), process, stop.clone()));
    tasks.spawn(audit::run_privileged_chain(app.clone(), stop.clone()));
    tasks.spawn(audit::sinks::run_audit_export(app.clone(), stop.clone()));
    tasks.spawn(maintenance::run_maintenance(app.clone(), stop.clone()));
    tasks.spawn(provider_grants::run_grant_checks(app.clone(), stop.clone()));
    tasks.spawn(run_metrics_upkeep(metrics.clone(), stop.clone()));
    let engine = engine.map(|engine| Arc::new(engine) as Arc<dyn reconciler::WorkflowEngine>);
    let app = match &engine {
        Some(engine) => app.with_engine(Arc::clone(engine)),
        None => app,
    };
    if engine.is_none() {
        let fix = "set engine.ingress_url, or use `cynode up`";
        tracing::warn!(
            event = "engine.not_configured",
            "no engine is configured: tasks wait for a runner that asks; {fix}"
        );
    }
    tasks.spawn(forges::issue_sync::run_issue_sync(app.clone(), stop.clone()));
    tasks.spawn(environments::run_repository_scan(app.clone(), stop.clone()));
    tasks.spawn(schedules::run_scheduler(app.clone(), stop.clone()));
    tasks.spawn(memory_ingests::run_memory_worker(app.clone(), stop.clone()));
    tasks.spawn(wakeups::run_wakeups(app.clone(), config.engine.pace, stop.clone()));
    tasks.spawn(reconciler::run_reconciler(app.clone(), engine, config.engine.pace, stop.clone()));
    let state = AppState {
        app,
        metrics,
        stop: stop.clone(),
        browser: browser_access(config)?,
        console: ConsoleFiles::load_embedded(),
    };
    let internal = cynode_api::internal_router(state.clone(), config.server.limits);
    let internal = internal.merge(cynode_gateway::gateway_router(&gateway));
    let internal = cynode_api::require_client_certificates(internal, state.app.clone());
    let router = cynode_api::public_router(state, config.server.limits);
    tracing::info!(
        event = "server.started",
        listen = %config.server.listen,
        internal = %config.server.internal_listen,
        tls = ?PortProtection::of_user_port(config),
        internal_tls = ?PortProtection::of_internal_port(config),
        planner.max_steps = config.planner.max_steps,
        planner.temperature = config.planner.temperature,
        "listening"
    );

    // Each port has its own limits: strangers on the one must not keep nodes out of the other.
    let options = connection_options(config);
    let servers = [PortProtection::of_user_port(config), PortProtection::of_internal_port(config)]
        .map(|protection| ServerOptions {
            only_trusted_peers: protection == PortProtection::Proxy,
            ..options.clone()
        })
        .map(LimitedServer::new);
    let ServerListeners {
        user, internal: internal_listener, user_tls, internal_tls, upkeep, ..
    } = doors;
    upkeep.spawn(&tasks, AppEnvironment::from_system(), stop.clone())?;
    tell_service_manager();
    let server = async {
        tokio::join!(
            servers[0].serve_tls_listener(user, user_tls, router, stop.clone()),
            servers[1].serve_tls_listener(internal_listener, internal_tls, internal, stop.clone()),
        )
    };
    let late = async {
        stop.cancelled().await;
        let _ = tokio::time::timeout(config.server.grace, std::future::pending::<()>()).await;
    };
    tokio::select! {
        ((), ()) = server => {}
        () = late => tracing::warn!(event = "server.requests_aborted", "requests were still running and were cut off"),
    }
    records.cancel();
    tasks.close();
    tasks.wait().await;
    tracing::info!(event = "server.stopped", "stopped");
    Ok(())
}

/// Tells systemd that both ports are open, so that whatever is ordered after the unit finds them. Elsewhere nobody listens.
fn tell_service_manager() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(event = "server.manager_not_told", %error, "the service manager was not told that the server is ready");
    }
}

/// Returns how browsers may use cookie sessions: over HTTPS if `server.public_url` says so or the port speaks TLS, else on this machine alone.
fn browser_access(config: &CynodeConfig) -> anyhow::Result<BrowserAccess> {
    let url = config.server.public_url.clone().or_else(|| tls::browser_url(config));
    let url = url.as_deref().map(str::parse::<Url>).transpose();
    Ok(BrowserAccess::from_public_url(url.context("in server.public_url")?.as_ref()))
}

/// Returns the limits of connections. Those from other machines and from this one, of both ports, take at most half of the files that the
/// process may open: the database and the audit records need the rest.
fn connection_options(config: &CynodeConfig) -> ServerOptions {
    let mut options = config.server.connections.clone();
    let files = open_files::raise_open_file_limit();
    options.max_connections = options.max_connections.min(files / 8);
    // One address never takes all places.
    let most = (options.max_connections / 4).max(8);
    options.max_connections_per_source = options.max_connections_per_source.min(most);
    if options.max_connections < config.server.connections.max_connections {
        tracing::warn!(
            event = "server.connections_limited",
            max_connections = options.max_connections,
            files,
            "the process may open too few files for server.max_connections; raise its hard limit (ulimit -Hn, LimitNOFILE)"
        );
    }
    options
}

/// Runs the upkeep of metrics. Without it every measured duration would be kept until the metrics are read.
async fn run_metrics_upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut turn = tokio::time::interval(Duration::from_secs(5));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => metrics.run_upkeep(),
        }
    }
}
