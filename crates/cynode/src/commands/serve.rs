//! `cynode serve`: the HTTP interface over a database that exists.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use axum::serve::ListenerExt;
use cynode_api::AppState;
use cynode_app::{App, maintenance};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, signal::unix};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{app, block_on};
use crate::{
    config::{Config, Loaded},
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
        let listener = listen(&config).await?;
        serve(&config, app()?, listener, stop).await
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

/// Takes the port, or says who else might have it.
pub(crate) async fn listen(config: &Config) -> anyhow::Result<TcpListener> {
    let address = config.server.listen;
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: another program may have it; choose another with --set server.listen=HOST:PORT")
    })
}

/// Serves until `stop`, then lets running requests end.
pub(crate) async fn serve(
    config: &Config,
    app: App,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let tasks = TaskTracker::new();
    tasks.spawn(maintenance::run(app.clone(), stop.clone()));
    tasks.spawn(fold_numbers(metrics.clone(), stop.clone()));
    let state = AppState { app, metrics, stop: stop.clone() };
    let router = cynode_api::router(state, config.server.limits);
    tracing::info!(
        event = "server.started",
        listen = %config.server.listen,
        planner.max_steps = config.planner.max_steps,
        planner.temperature = config.planner.temperature,
        "listening"
    );

    let listener = listener.tap_io(|stream| {
        // Answers are small; waiting for more bytes would only delay them.
        let _ = stream.set_nodelay(true);
    });
    let server =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let server = async { server.await };
    let late = async {
        stop.cancelled().await;
        let _ = tokio::time::timeout(config.server.grace, std::future::pending::<()>()).await;
    };
    tokio::select! {
        result = server => result.context("the server failed")?,
        () = late => tracing::warn!(event = "server.cut", "requests were still running and were cut off"),
    }
    tasks.close();
    tasks.wait().await;
    tracing::info!(event = "server.stopped", "stopped");
    Ok(())
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
