//! The command line: one role per process, or an evaluation.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::{Parser, Subcommand};
use cynode_net::{
    server::{LimitedServer, ServerOptions},
    tls::{ClientAuthentication, ClientTls, KeySource, ReloadableKey, ServerTls},
    transport::{Transport, check_transport, is_loopback_listener},
};
use secrecy::SecretString;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    chat,
    config::{PmaConfig, PmaEnvironment, SettingsLayer},
    decisions,
    eval::EvalCommand,
    instructions, mcp_client,
    role::PmaRole,
    role_runtime::RoleRuntime,
    service::{self, ServiceLimits},
};

/// Time that work in progress may take after a stop signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// Interval at which the files of the certificate are looked at.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum length of a token or credential.
const MIN_SECRET_BYTES: usize = 16;

/// Run the project manager or the analyst: take handoffs from the orchestrator and decide.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub struct PmaCli {
    /// Configuration file (TOML); flags override it, and it overrides the environment.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: SettingsLayer,
    #[command(subcommand)]
    command: Option<PmaCommand>,
}

#[derive(Debug, Subcommand)]
enum PmaCommand {
    /// Evaluate the decisions of a model.
    #[command(subcommand)]
    Eval(EvalCommand),
}

impl PmaCli {
    /// Executes the selected command.
    pub fn run_command(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match self.command {
            Some(PmaCommand::Eval(eval)) => runtime.block_on(eval.run_command()),
            None => {
                let file = match &self.config {
                    Some(path) => SettingsLayer::parse_file(&read_text_file(path)?)?,
                    None => SettingsLayer::default(),
                };
                let (config, notes) =
                    PmaConfig::resolve_layers(self.flags, file, &PmaEnvironment::from_process())?;
                let filter = tracing_subscriber::EnvFilter::try_new(&config.log)?;
                tracing_subscriber::fmt()
                    .json()
                    .flatten_event(true)
                    .with_env_filter(filter)
                    .with_writer(std::io::stderr)
                    .init();
                for note in notes {
                    tracing::warn!(event = "config.adjusted", "{note}");
                }
                runtime.block_on(serve_until_signal(config))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Serves the role until the process receives a stop signal.
async fn serve_until_signal(config: PmaConfig) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let served = serve_role(config, stop.clone());
    let asked = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = served => served,
        () = asked => Ok(()),
    }
}

/// Serves the role until `stop`, plus a grace period for work in progress.
pub async fn serve_role(config: PmaConfig, stop: CancellationToken) -> anyhow::Result<()> {
    let PmaConfig { role, .. } = config;
    let bundle = instructions::load_bundle(role, &config.places.path_for_role(role)?)?;
    let digest = bundle.digest.clone();
    let token = read_secret(&config.token_file)?;
    let credential = config.credential_file.as_deref().map(read_secret).transpose()?;
    if role == PmaRole::ProjectManager && credential.is_none() {
        tracing::warn!(
            event = "chat.disabled",
            "no chat is accepted: --credential-file is missing"
        );
    }
    let http = build_trusted_client(&config)?;
    let office = RoleRuntime::with_client(bundle, config.tuning, &config.orchestrator, token, http);
    let chats = TaskTracker::new();
    let router = chat::build_router(&office, credential.as_ref(), &chats);
    let tls = open_listener_tls(&config, &stop)?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", config.listen))?;
    tracing::info!(event = "pma.started", role = %role, listen = %config.listen, instructions = digest);
    let pace = ServiceLimits {
        handoffs: config.concurrency,
        lease: config.lease,
        grace: SHUTDOWN_TIMEOUT,
    };
    let working = service::run_service(
        Arc::new(office),
        pace,
        |desk| Box::pin(decisions::process_handoff(desk)),
        stop.clone(),
    );
    let listening = async {
        let server = LimitedServer::new(ServerOptions::default());
        let serving = server.serve_tls_listener(listener, tls, router, stop.clone());
        let patience = async {
            stop.cancelled().await;
            let _ = timeout(SHUTDOWN_TIMEOUT, std::future::pending::<()>()).await;
        };
        tokio::select! {
            () = serving => {}
            () = patience => {}
        }
    };
    tokio::join!(working, listening);
    tracing::info!(event = "pma.stopped", role = %role);
    Ok(())
}

/// Returns the TLS of a listener beyond this machine: it uses the certificate with which the process also calls the orchestrator.
fn open_listener_tls(
    config: &PmaConfig,
    stop: &CancellationToken,
) -> anyhow::Result<Option<ServerTls>> {
    let Some((certificate, key)) = &config.identity_files else { return Ok(None) };
    if is_loopback_listener(config.listen) {
        return Ok(None);
    }
    let key = KeySource::File(key.clone());
    let key = Arc::new(ReloadableKey::load_client_files(certificate.clone(), key)?);
    let tls = ServerTls::new(key.clone(), ClientAuthentication::None)?;
    let stop = stop.clone();
    TaskTracker::new().spawn(async move {
        let mut turn = tokio::time::interval(CERTIFICATE_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = turn.tick() => key.refresh_if_due(),
            }
        }
    });
    Ok(Some(tls))
}

/// Builds the HTTP client with the trust and the certificate of the configuration. Warns of clear text that leaves this machine.
fn build_trusted_client(config: &PmaConfig) -> anyhow::Result<reqwest::Client> {
    let open_listener = config.identity_files.is_none() && !is_loopback_listener(config.listen);
    let transport = check_transport(&config.orchestrator, config.insecure)?;
    if open_listener || transport == Transport::Insecure {
        tracing::warn!(
            event = "tls.insecure",
            orchestrator = config.orchestrator,
            listen = %config.listen,
            "--insecure is set: clear text leaves this machine, and everybody on the way can read and change it"
        );
    }
    let identity = config.identity_files.as_ref();
    let identity = identity.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    let tls = ClientTls::from_files(config.ca_file.as_deref(), identity)?;
    Ok(tls.configure_client(mcp_client::http_client_builder())?.build()?)
}

fn read_text_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a secret from its file.
fn read_secret(path: &Path) -> anyhow::Result<SecretString> {
    let text = read_text_file(path)?;
    let text = text.trim();
    anyhow::ensure!(
        text.len() >= MIN_SECRET_BYTES,
        "{} holds no secret: it has fewer than {MIN_SECRET_BYTES} characters",
        path.display()
    );
    Ok(text.to_owned().into())
}
