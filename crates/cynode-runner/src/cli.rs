//! Command line of a runner, for any agent backend.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use cynode_net::{
    tls::ClientTls,
    transport::{Transport, check_transport, is_loopback_listener},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{RunnerOptions, agent_backend::AgentBackend, serve_runner};

/// Run the workflow of tasks: the engine calls the runner, and the runner calls the orchestrator.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct RunnerCli {
    /// Listen address for calls of the engine.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:12084")]
    listen: SocketAddr,
    /// URL of the orchestrator's internal port.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:12082")]
    orchestrator: String,
    /// Certificate authority (PEM) of the orchestrator's internal port, if it is the installation's own.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Client certificate (PEM), from `cynode admin certificate runner`. A changed file is loaded without a restart.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    certificate_file: Option<PathBuf>,
    /// Key (PEM) of the client certificate.
    #[arg(long, value_name = "FILE", requires = "certificate_file")]
    key_file: Option<PathBuf>,
    /// Allow clear text beyond this machine: everybody on the way can read and change it.
    #[arg(long)]
    insecure: bool,
    /// File with the runner's token, from `cynode admin token runner`.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// File with the public key of the engine's signatures, `publickeyv1_…`.
    #[arg(long, value_name = "FILE")]
    engine_key_file: PathBuf,
    /// Name of the runner, the same for all its processes.
    #[arg(long, default_value = "runner")]
    name: String,
    /// Lease of a task, after which another runner may take it, 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    lease_seconds: u32,
    /// How long to wait for the result of a job before the run is suspended, 0 to 10000.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    linger_ms: u32,
    /// Log filter.
    #[arg(long, default_value = "info")]
    log: String,
}

impl RunnerCli {
    /// Serves until the process receives a stop signal.
    pub fn serve_until_signal(self, mind: Arc<dyn AgentBackend>) -> anyhow::Result<()> {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log)?;
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
        self.check_clear_text()?;
        let identity = self.certificate_file.as_deref().zip(self.key_file.as_deref());
        let tls = ClientTls::from_files(self.ca_file.as_deref(), identity)?;
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            anyhow::Ok(text.trim().to_owned())
        };
        let options = RunnerOptions {
            token: read(&self.token_file)?.into(),
            engine_key: read(&self.engine_key_file)?,
            listen: self.listen,
            orchestrator: self.orchestrator,
            tls,
            name: self.name,
            lease: Duration::from_secs(self.lease_seconds.into()),
            linger: Duration::from_millis(self.linger_ms.into()),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let asked = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                stop.cancel();
            };
            let (served, ()) = tokio::join!(serve_runner(options, mind, stop.clone()), asked);
            served
        })
    }

    /// Refuses clear text beyond this machine, or warns of it where it is allowed.
    fn check_clear_text(&self) -> anyhow::Result<()> {
        let transport = check_transport(&self.orchestrator, self.insecure)?;
        let open_listener = !is_loopback_listener(self.listen);
        anyhow::ensure!(
            self.insecure || !open_listener,
            "--listen {} is beyond this machine, and calls of the engine are not encrypted: listen on loopback beside the engine, or allow \
             clear text with --insecure",
            self.listen
        );
        if open_listener || transport == Transport::Insecure {
            tracing::warn!(
                event = "tls.insecure",
                orchestrator = self.orchestrator,
                listen = %self.listen,
                "--insecure is set: clear text leaves this machine, and everybody on the way can read and change it"
            );
        }
        Ok(())
    }
}
