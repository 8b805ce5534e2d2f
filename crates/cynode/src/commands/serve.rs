//! `cynode serve`: the HTTP interface over a database that exists.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use axum::serve::ListenerExt;
use cynode_api::AppState;
use cynode_app::{App, maintenance, remotes, schedules, sweep};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, signal::unix};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{app, block_on};
use crate::{
    config::{Config, Loaded},
    engine::{Places, Restate},
    gate,
    telemetry::{self, Sink},
};

/// Serves until it is told to stop.
pub(crate) fn run(loaded: Loaded) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start(&loaded.config.telemetry, &Sink::Stderr)?;
    loaded.warn();
    let config = loaded.config;
    let app = || app(&config, &config.database.options()?);
    block_on(async {
        let stop = stop_signal()?;
        let doors = Doors::open(&config).await?;
        let engine = match Places::elsewhere(&config.engine) {
            Some(places) => Some(Restate::new(places)?),
            None => None,
        };
        serve(&config, app()?, doors, engine, stop).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Cancelled when the process is asked to end.
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

/// The two ports, taken.
pub(crate) struct Doors {
    user: TcpListener,
    internal: TcpListener,
}

impl Doors {
    /// Takes both ports, or says which is taken and how to choose another.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            user: listen(config.server.listen, "server.listen").await?,
            internal: listen(config.server.internal_listen, "server.internal_listen").await?,
        })
    }
}

/// How long what was killed may be on its way out: it, and what it had started, ends a moment after that.
pub(crate) const LEAVING: Duration = Duration::from_secs(3);

/// Looks whether a port is free that a program of ours will take, and says which is taken as for our own.
pub(crate) async fn must_be_free(address: SocketAddr, key: &str) -> anyhow::Result<()> {
    let mut turn = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..LEAVING.as_millis() / 50 {
        turn.tick().await;
        if TcpListener::bind(address).await.is_ok() {
            return Ok(());
        }
    }
    listen(address, key).await.map(drop)
}

async fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: another program may have it; choose another with --set {key}=HOST:PORT")
    })
}

/// Serves until `stop`, then lets running requests end.
pub(crate) async fn serve(
    config: &Config,
    app: App,
    doors: Doors,
    engine: Option<Restate>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let tasks = TaskTracker::new();
    // Records are shipped to the very end: the last calls are answered after `stop`.
    let records = CancellationToken::new();
    let gate::Opened { app, gateway } =
        gate::open(config, app, &tasks, &stop, records.clone()).await?;
    tasks.spawn(maintenance::run(app.clone(), stop.clone()));
    tasks.spawn(fold_numbers(metrics.clone(), stop.clone()));
    let engine = engine.map(|engine| Arc::new(engine) as Arc<dyn sweep::Engine>);
    if engine.is_none() {
        let fix = "set engine.ingress_url, or use `cynode up`";
        tracing::warn!(
            event = "engine.missing",
            "no engine is configured: tasks wait for a runner that asks; {fix}"
        );
    }
    tasks.spawn(remotes::intake::run(app.clone(), stop.clone()));
    tasks.spawn(schedules::run(app.clone(), stop.clone()));
    tasks.spawn(sweep::run(app.clone(), engine, config.engine.pace, stop.clone()));
    let state = AppState { app, metrics, stop: stop.clone() };
    let internal = cynode_api::internal_router(state.clone(), config.server.limits);
    let internal = internal.merge(cynode_gateway::router(&gateway));
    let router = cynode_api::router(state, config.server.limits);
    tracing::info!(
        event = "server.started",
        listen = %config.server.listen,
        internal = %config.server.internal_listen,
        planner.max_steps = config.planner.max_steps,
        planner.temperature = config.planner.temperature,
        "listening"
    );

    let server = async {
        tokio::try_join!(
            answer(doors.user, router, stop.clone()),
            answer(doors.internal, internal, stop.clone()),
        )
    };
    let late = async {
        stop.cancelled().await;
        let _ = tokio::time::timeout(config.server.grace, std::future::pending::<()>()).await;
    };
    tokio::select! {
        result = server => {
            result.context("the server failed")?;
        }
        () = late => tracing::warn!(event = "server.cut", "requests were still running and were cut off"),
    }
    records.cancel();
    tasks.close();
    tasks.wait().await;
    tracing::info!(event = "server.stopped", "stopped");
    Ok(())
}

/// Answers on one port until `stop`, then lets running requests end.
async fn answer(
    listener: TcpListener,
    router: axum::Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = listener.tap_io(|stream| {
        // Answers are small; waiting for more bytes would only delay them.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Without it every measured duration would be kept until somebody asks for the numbers.
async fn fold_numbers(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut turn = tokio::time::interval(Duration::from_secs(5));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => metrics.run_upkeep(),
        }
    }
}
