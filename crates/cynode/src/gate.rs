//! The gate of this process: its master key, its way out, its records.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use cynode_app::{
    App, Environment, audit,
    gate::Parts,
    inference::{self, ManagerPlace, Models},
    keys::Keys,
    notices,
    repositories::Repositories,
};
use cynode_gateway::{
    Egress, Gateway, Hosts, Options, tools,
    upstream::{self, Upstreams},
};
use cynode_notify::Courier;
use data_encoding::HEXLOWER;
use object_store::local::LocalFileSystem;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use crate::{
    config::Config,
    restate::{keep_private, write_secret},
};

/// Writes a new master key.
pub(crate) fn make_key(path: &Path) -> anyhow::Result<()> {
    ensure!(!path.exists(), "{} is there already; it is not overwritten", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let key = Environment::system().bytes::<32>();
    write_secret(path, &format!("{}\n", HEXLOWER.encode(&key)))
}

/// Whether the configuration says where the master key is.
pub(crate) const fn names_key(config: &Config) -> bool {
    config.gate.key_file.is_some() || config.gate.directory.is_some()
}

/// Reads the master key of an installation. Another key would find everything wrong, so none is made.
pub(crate) fn keys(config: &Config) -> anyhow::Result<Keys> {
    let path = key_file(config)?;
    let text = fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read the master key {}: point gate.directory or gate.key_file at the installation's",
            path.display()
        )
    })?;
    let mode = fs::metadata(&path)?.permissions().mode();
    ensure!(
        mode.trailing_zeros() >= 6,
        "others may read the master key {0}: chmod 600 {0}",
        path.display()
    );
    let key = HEXLOWER.decode(text.trim().as_bytes()).ok().and_then(|key| key.try_into().ok());
    let key: [u8; 32] = key.with_context(|| format!("{} holds no master key", path.display()))?;
    Ok(Keys::from_master(&key))
}

fn key_file(config: &Config) -> anyhow::Result<PathBuf> {
    match (&config.gate.key_file, &config.gate.directory) {
        (Some(file), _) => Ok(file.clone()),
        (None, Some(directory)) => Ok(directory.join("master.key")),
        (None, None) => bail!(
            "no master key is named: point gate.directory at the installation's, or name the data directory of `cynode up` with --data-dir"
        ),
    }
}

/// Where the project manager answers, if one is connected.
fn manager(config: &Config) -> anyhow::Result<Option<ManagerPlace>> {
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
    Ok(Some(ManagerPlace::new(url, credential.to_owned().into())))
}

/// How people are told, and where they answer.
fn way_to_people(config: &Config) -> anyhow::Result<notices::Parts> {
    let courier = Courier::new(config.mail.server()?).context("in [mail]")?;
    let public = config.server.public_url.as_ref().or(config.gate.public_url.as_ref());
    let public_url = public.map(|text| -> anyhow::Result<Url> {
        let url: Url = text.parse().with_context(|| format!("`{text}` is no address"))?;
        let good = matches!(url.scheme(), "http" | "https") && url.query().is_none();
        ensure!(good, "`{text}` is not http(s)://HOST[:PORT][/PATH]");
        Ok(url)
    });
    let public_url = public_url.transpose().context("in server.public_url")?;
    Ok(notices::Parts { courier, public_url })
}

/// What runs behind the gate of this process.
pub(crate) struct Opened {
    pub(crate) app: App,
    pub(crate) gateway: Gateway,
}

/// Opens the gate: takes over what a dead process left, and starts what works in the background. Records are shipped until
/// `records` is cancelled, which is to be after the last call.
pub(crate) async fn open(
    config: &Config,
    app: App,
    tasks: &TaskTracker,
    stop: &CancellationToken,
    records: CancellationToken,
) -> anyhow::Result<Opened> {
    let directory =
        config.gate.directory.clone().context("set gate.directory, or use `cynode up`")?;
    let key = key_file(config)?;
    ensure!(
        key.exists(),
        "there is no master key {0}: point gate.directory or gate.key_file at the installation's, \
         or make one for a new installation with `cynode admin master-key {0}`",
        key.display()
    );
    let keys = keys(config)?;
    // Below it is the source of every project, its artifacts and what models answered.
    keep_private(&directory)?;
    let artifacts = directory.join("artifacts");
    fs::create_dir_all(&artifacts)
        .with_context(|| format!("cannot make {}", artifacts.display()))?;
    let upstreams = Arc::new(Upstreams::new(upstream::Options::default())?);
    let app = app.with_gate(Parts {
        keys,
        native: tools::definitions(),
        reach: cynode_gateway::reach(upstreams.clone()),
        objects: Arc::new(LocalFileSystem::new_with_prefix(&artifacts)?.with_fsync(true)),
        objects_directory: artifacts,
        repositories: Repositories::new(directory.join("repositories")),
        keep_records: time::Duration::days(config.gate.audit_days),
        keep_transcripts: time::Duration::days(config.gate.transcript_days),
    });
    let models = Models::open(&app, directory.join("cassettes"))?.with_manager(manager(config)?);
    let app = app.with_models(models).with_notices(way_to_people(config)?);
    tasks.spawn(inference::keep(app.clone(), stop.clone()));
    tasks.spawn(notices::run(app.clone(), notices::Pace::default(), stop.clone()));
    // Unlike any other replica: of two chains of one writer the older one must have been closed.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let writer = format!("gateway {host} {}", config.server.internal_listen);
    let writer =
        audit::open(&app, &directory.join("audit"), audit::Options::new(writer), tasks, records)?;
    let options = Options {
        hosts: Hosts(config.gate.hosts.clone()),
        public_url: config
            .gate
            .public_url
            .clone()
            .or_else(|| config.server.public_url.clone())
            .unwrap_or_else(|| format!("http://{}", config.server.listen)),
        patience: config.server.limits.time,
        most_bytes: config.server.limits.body.max(8 * 1024 * 1024),
    };
    let egress = Egress::new(config.gate.opened.clone())?;
    let gateway = Gateway::open(app.clone(), writer, upstreams, egress, options).await?;
    gateway.start(tasks, stop);
    Ok(Opened { app, gateway })
}
