//! The gateway of this process: its keys, its egress, its audit records.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, bail, ensure};
use cynode_app::{
    App, GatewayParts,
    delivery::repositories::RepositoryStore,
    manager::chat::ManagerEndpoint,
    models::inference::{self, InferenceRuntime},
    notifications,
    platform::program_releases::run_release_heartbeat,
    tools::audit,
};
use cynode_gateway::{
    AllowedHosts, EgressClient, Gateway, GatewayOptions, tools,
    upstream::{self, UpstreamPool},
};
use cynode_net::tls::ClientTls;
use cynode_notify::NotificationSender;
use cynode_oidc::OidcClient;
use cynode_sandbox::SandboxOptions;
use data_encoding::HEXLOWER;
use object_store::local::LocalFileSystem;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use crate::{
    config::CynodeConfig, identity_provider_file, master_key, restate::create_private_dir,
};

/// Returns the address of the project manager, if one is connected.
fn manager_endpoint(config: &CynodeConfig) -> anyhow::Result<Option<ManagerEndpoint>> {
    let (Some(url), Some(file)) = (&config.manager.url, &config.manager.credential_file) else {
        return Ok(None);
    };
    let url = url.parse().with_context(|| format!("manager.url: `{url}` is no address"))?;
    let credential = fs::read_to_string(file)
        .with_context(|| format!("cannot read manager.credential_file {}", file.display()))?;
    let credential = credential.trim();
    if credential.len() < 32 {
        bail!("manager.credential_file {} holds fewer than 32 characters", file.display());
    }
    let manager = ManagerEndpoint::new(url, credential.to_owned().into());
    Ok(Some(match &config.manager.ca_file {
        Some(path) => manager.with_tls(ClientTls::trust_file(path).context("manager.ca_file")?)?,
        None => manager,
    }))
}

/// Builds the parts of notifications: their delivery, and the base of answer links.
fn notification_parts(config: &CynodeConfig) -> anyhow::Result<notifications::NotificationParts> {
    let courier = NotificationSender::new(config.mail.mail_server()?).context("in [mail]")?;
    let public = config.server.public_url.as_ref().or(config.gateway.public_url.as_ref());
    let public_url = public.map(|text| -> anyhow::Result<Url> {
        let url: Url = text.parse().with_context(|| format!("`{text}` is no address"))?;
        let good = matches!(url.scheme(), "http" | "https") && url.query().is_none();
        ensure!(good, "`{text}` is not http(s)://HOST[:PORT][/PATH]");
        Ok(url)
    });
    let public_url = public_url.transpose().context("in server.public_url")?;
    Ok(notifications::NotificationParts { courier, public_url })
}

/// Number of host users for the tool servers of one installation.
const TOOL_SERVER_USER_COUNT: u32 = 1000;
/// Number of disjoint user ranges on one machine. They follow those of nodes.
const TOOL_SERVER_RANGE_COUNT: u32 = 200;
/// First host user of tool servers.
const FIRST_TOOL_SERVER_USER: u32 = 1_910_000_000;

/// Returns the options of the sandboxes of tool servers that are programs.
///
/// As root each server has a user of its own, who must be able to traverse the directory: `storage.directory` is closed to others, so the
/// sandboxes are beside it.
fn tool_sandbox_options(config: &CynodeConfig, directory: &Path) -> anyhow::Result<SandboxOptions> {
    let directory = std::path::absolute(directory)?;
    let mut place = directory.as_os_str().as_encoded_bytes().to_vec();
    // Replicas on one machine may share the directory and must not end each other's sandboxes.
    place.extend(config.server.internal_listen.to_string().bytes());
    let digest = ring::digest::digest(&ring::digest::SHA256, &place);
    let digest = digest.as_ref();
    let instance = format!("tools-{}", HEXLOWER.encode(&digest[..8]));
    let sandboxes = match directory.file_name() {
        Some(name) if rustix::process::geteuid().is_root() => {
            let mut name = name.to_owned();
            name.push("-sandboxes");
            directory.with_file_name(name)
        }
        _ => directory.join("sandboxes"),
    };
    let mut options = SandboxOptions::new(&instance, sandboxes.join(&instance));
    let share = u32::from(digest[8]) % TOOL_SERVER_RANGE_COUNT * TOOL_SERVER_USER_COUNT;
    let first = FIRST_TOOL_SERVER_USER + share;
    options.users = first..first + TOOL_SERVER_USER_COUNT;
    Ok(options)
}

/// The running gateway of this process.
pub(crate) struct RunningGateway {
    pub(crate) app: App,
    pub(crate) gateway: Gateway,
}

/// Starts the gateway: takes over the records of a dead process, and starts the background tasks. Records are shipped until
/// `records` is cancelled, which must be after the last call.
pub(crate) async fn start_gateway(
    config: &CynodeConfig,
    app: App,
    tasks: &TaskTracker,
    stop: &CancellationToken,
    records: CancellationToken,
) -> anyhow::Result<RunningGateway> {
    let directory =
        config.storage.directory.clone().context("set storage.directory, or use `cynode up`")?;
    master_key::ensure_key_exists(config)?;
    let keys = master_key::load_keys(config, &app).await?;
    // It contains the source of every project, its artifacts and the responses of models.
    create_private_dir(&directory)?;
    let artifacts = directory.join("artifacts");
    fs::create_dir_all(&artifacts)
        .with_context(|| format!("cannot make {}", artifacts.display()))?;
    let upstreams = Arc::new(UpstreamPool::new(upstream::UpstreamOptions {
        sandbox: Some(tool_sandbox_options(config, &directory)?),
        ..upstream::UpstreamOptions::default()
    })?);
    let egress = EgressClient::new(config.egress.allow_private.clone())?;
    let app = app.with_gateway(GatewayParts {
        keys,
        native: tools::tool_definitions(),
        reach: cynode_gateway::build_tool_server_adapter(upstreams.clone()),
        objects: Arc::new(LocalFileSystem::new_with_prefix(&artifacts)?.with_fsync(true)),
        objects_directory: artifacts,
        repositories: RepositoryStore::new(directory.join("repositories")),
        pages: Arc::new(egress.clone()),
        audit_retention: config.retention.audit,
        transcript_retention: config.retention.transcripts,
    });
    let models = InferenceRuntime::open_runtime(&app, directory.join("cassettes"))?;
    let models = match manager_endpoint(config)? {
        Some(manager) => manager.connect_to(models),
        None => models,
    };
    let app = app.with_models(models).with_notifications(notification_parts(config)?);
    let app = app.with_identity_client(OidcClient::new(config.auth.private_issuers.clone())?);
    let app = match config.memory.load_embedder()? {
        Some(embedder) => app.with_embedder(embedder),
        None => app,
    };
    identity_provider_file::apply_configured_file(&app, &config.auth).await?;
    tasks.spawn(inference::run_reservation_upkeep(app.clone(), stop.clone()));
    tasks.spawn(notifications::run_outbox_worker(
        app.clone(),
        notifications::OutboxTiming::default(),
        stop.clone(),
    ));
    // Unique among replicas: of two chains of one writer the older one must have been closed.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let replica = format!("{host} {}", config.server.internal_listen);
    tasks.spawn(run_release_heartbeat(app.clone(), replica.clone(), stop.clone()));
    let writer = format!("gateway {replica}");
    let writer = audit::open_audit_writer(
        &app,
        &directory.join("audit"),
        audit::AuditWriterOptions::new(writer),
        tasks,
        records,
    )?;
    let options = GatewayOptions {
        // Nodes reach the port under the names of its certificate.
        hosts: AllowedHosts(
            config.gateway.allowed_hosts.iter().chain(&config.tls.names).cloned().collect(),
        ),
        public_url: config
            .gateway
            .public_url
            .clone()
            .or_else(|| config.server.public_url.clone())
            .unwrap_or_else(|| crate::tls::user_port_url(config)),
        patience: config.server.limits.time,
        most_bytes: config.gateway.max_message_bytes,
    };
    let gateway = Gateway::open_gateway(app.clone(), writer, upstreams, egress, options).await?;
    gateway.spawn_background(tasks, stop);
    Ok(RunningGateway { app, gateway })
}
