//! `cynode admin`: operations that require access to the machine.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use cynode_app::{
    AppEnvironment,
    identity::{
        break_glass,
        service_tokens::{self, ServiceKind},
    },
    nodes,
    platform::certificates::{self, EarlierCertificates},
};
use cynode_core::names::{Handle, Title};
use cynode_db::platform::backup;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    block_on, bootstrap_link, break_glass_link, open_app_with_keys, restore,
    rotate_key::{self, RotatedKey},
};
use crate::{
    config::LoadedConfig,
    installation::InstallationArgs,
    master_key, output, restate,
    telemetry::{self, LogSink},
    tls,
};

/// Run administrative actions that require access to this machine.
#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// Print a one-time link that creates the first admin; valid for 24 hours.
    Bootstrap,
    /// Print a one-time link with which a named admin logs in when the usual way is closed; valid for 15 minutes. It needs the master
    /// key, and it is recorded.
    BreakGlass {
        /// Handle of the admin.
        handle: Handle,
    },
    /// Issue a service token for a program of the installation, and revoke its earlier tokens.
    Token {
        /// Kind of program.
        kind: ServiceKindArg,
        /// Name of the program.
        #[arg(long, default_value = "main")]
        name: Title,
    },
    /// Issue a one-time token with which a machine joins as a node (`cynode-node join`); valid for an hour.
    JoinToken {
        /// Label for the node; may be repeated.
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
    },
    /// Generate the master key, from which every key of the installation is derived. Keep a copy apart from the database's
    /// backups.
    MasterKey {
        /// Output file.
        file: PathBuf,
    },
    /// Make the certificate authority of an installation of `cynode serve`; `cynode up` makes its own. Every replica needs the same.
    CertificateAuthority {
        /// Output directory; `tls` in `storage.directory` by default.
        directory: Option<PathBuf>,
    },
    /// Issue a client certificate for a program of the installation on another machine, and revoke its earlier ones.
    Certificate {
        /// Kind of program.
        kind: ServiceKindArg,
        /// Name of the program.
        #[arg(long, default_value = "main")]
        name: Title,
        /// Name or address under which the program listens; may be repeated.
        #[arg(long = "host", value_name = "HOST")]
        hosts: Vec<String>,
        /// Output directory of `ca.pem`, `client.pem` and `client.key`.
        directory: PathBuf,
    },
    /// Rotate a key while the installation runs. Killed and repeated, it goes on.
    RotateKey {
        /// Key to rotate.
        key: RotatedKey,
        /// Only create the next master key, so that it can be copied to the other machines of the installation.
        #[arg(long)]
        prepare: bool,
        /// Retire the old key of tokens as soon as no stored token names it. Answer links that were sent before stop working.
        #[arg(long)]
        at_once: bool,
        /// Begin the rotation and leave the rest to the server.
        #[arg(long)]
        no_wait: bool,
    },
    /// List the keys of the installation with their age and use.
    Keys {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Begin the epoch of an installation whose database elsewhere was restored by its own tools: leases and sessions end, pending
    /// notifications are held, and work of the lost installation is looked up before it is repeated. Run it as the owner of the schema
    /// before any server starts. `cynode restore` does it by itself.
    BeginEpoch {
        /// Moment of the restored database, such as 2026-11-18T09:00:00Z.
        #[arg(long, value_name = "TIME", value_parser = restore::parse_time)]
        taken_at: OffsetDateTime,
        /// Begin although programs are connected to the database: they are none of this installation, such as a pool of connections.
        #[arg(long)]
        ignore_connections: bool,
    },
    /// Generate the signing key of an engine: `key.pem` for the engine, `key.pub` for the runner.
    EngineKey {
        /// Output directory of the two files.
        directory: PathBuf,
    },
}

/// Kind of program.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ServiceKindArg {
    /// Runs the workflow of tasks.
    Runner,
    /// Works on jobs.
    Worker,
    /// Runs the project manager.
    Manager,
    /// Runs analysts.
    Analyst,
}

impl ServiceKindArg {
    const fn service_kind(self) -> ServiceKind {
        match self {
            Self::Runner => ServiceKind::Runner,
            Self::Worker => ServiceKind::Worker,
            Self::Manager => ServiceKind::Manager,
            Self::Analyst => ServiceKind::Analyst,
        }
    }
}

pub(crate) fn run_admin(
    command: &AdminCommand,
    installation: &InstallationArgs,
    loaded: &mut LoadedConfig,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    // The others only write files.
    if !matches!(
        command,
        AdminCommand::MasterKey { .. }
            | AdminCommand::EngineKey { .. }
            | AdminCommand::CertificateAuthority { .. }
    ) {
        installation.fill_config(&mut loaded.config, true)?;
    }
    match command {
        AdminCommand::Bootstrap => print_bootstrap_link(loaded),
        AdminCommand::BreakGlass { handle } => print_break_glass_link(loaded, handle),
        AdminCommand::Token { kind, name } => issue_service_token(loaded, *kind, name),
        AdminCommand::JoinToken { labels } => issue_join_token(loaded, labels.clone()),
        AdminCommand::CertificateAuthority { directory } => {
            create_certificate_authority(loaded, directory.clone())
        }
        AdminCommand::Certificate { kind, name, hosts, directory } => {
            issue_certificate(loaded, *kind, name, hosts, directory)
        }
        AdminCommand::MasterKey { file } => {
            master_key::create_master_key(file)?;
            output::print_line(&format!("wrote {}", file.display()));
            Ok(ExitCode::SUCCESS)
        }
        AdminCommand::RotateKey { key, prepare, at_once, no_wait } => {
            let options = rotate_key::RotationOptions {
                key: *key,
                prepare: *prepare,
                at_once: *at_once,
                no_wait: *no_wait,
            };
            rotate_key::run_rotation(loaded, options)
        }
        AdminCommand::Keys { json } => rotate_key::print_keys(loaded, *json),
        AdminCommand::BeginEpoch { taken_at, ignore_connections } => {
            begin_epoch(loaded, *taken_at, *ignore_connections)
        }
        AdminCommand::EngineKey { directory } => {
            let (private, public) = (directory.join("key.pem"), directory.join("key.pub"));
            anyhow::ensure!(!private.exists(), "{} is there already", private.display());
            std::fs::create_dir_all(directory)?;
            restate::create_key_pair(&private, &public)?;
            output::print_line(&format!("wrote {} and {}", private.display(), public.display()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn issue_service_token(
    loaded: &LoadedConfig,
    kind: ServiceKindArg,
    name: &Title,
) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let kind = kind.service_kind();
    let token = block_on(async {
        let app = open_app_with_keys(&loaded.config, &options).await?;
        Ok(service_tokens::issue_service_token(&app, kind, name).await?)
    })?;
    output::print_line(&token.0);
    Ok(ExitCode::SUCCESS)
}

fn begin_epoch(
    loaded: &LoadedConfig,
    taken_at: OffsetDateTime,
    ignore_connections: bool,
) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let now = AppEnvironment::from_system().now();
    // One moment is one restore: the command may be repeated.
    let id = Uuid::from_u128(taken_at.unix_timestamp_nanos().unsigned_abs());
    let summary = block_on(async {
        let pool = cynode_db::connect_pool(&options)?;
        let mut tx = cynode_db::begin_transaction(&pool).await?;
        let connected = backup::count_program_connections(&mut tx).await?;
        anyhow::ensure!(
            connected == 0 || ignore_connections,
            "{connected} connections of CyNode's programs are open: stop every server, and repeat this before any starts"
        );
        let summary = backup::begin_restored_epoch(&mut tx, id, taken_at, now).await?;
        tx.commit().await.context("the new epoch could not be recorded")?;
        Ok(summary)
    })?;
    match summary {
        Some(summary) => restore::print_summary(&summary),
        None => {
            output::print_line("the epoch of this moment has begun already: nothing was changed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create_certificate_authority(
    loaded: &LoadedConfig,
    directory: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    let directory = directory.or_else(|| tls::authority_directory(&loaded.config));
    let directory = directory.context("name a directory, or set storage.directory")?;
    let files = tls::AuthorityFiles::in_directory(&directory);
    anyhow::ensure!(!files.exist(), "{} has a certificate authority already", directory.display());
    tls::create_authority(&files, &AppEnvironment::from_system())?;
    let pin = tls::open_authority(&files)?.facts().pin;
    output::print_line(&format!("wrote a certificate authority to {}", directory.display()));
    output::print_line(&format!("its pin is {pin}"));
    Ok(ExitCode::SUCCESS)
}

fn issue_certificate(
    loaded: &LoadedConfig,
    kind: ServiceKindArg,
    name: &Title,
    hosts: &[String],
    directory: &Path,
) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let own = tls::authority_directory(&loaded.config);
    let own = own.context("set storage.directory, or name the installation with --data-dir")?;
    let authority = tls::open_authority(&tls::AuthorityFiles::in_directory(&own))?;
    restate::create_private_dir(directory)?;
    let kind = kind.service_kind();
    let issued = block_on(async {
        let app = open_app_with_keys(&loaded.config, &options).await?;
        let earlier = EarlierCertificates::Revoke;
        let issued =
            certificates::issue_service_certificate(&app, &authority, kind, name, hosts, earlier);
        Ok(issued.await?)
    })?;
    let (certificate, key) = (directory.join("client.pem"), directory.join("client.key"));
    tls::write_issued_key(&issued, &certificate, &key)?;
    let trusted = directory.join(tls::AUTHORITY_CERTIFICATE_FILE);
    restate::write_private_file(&trusted, authority.certificate_pem())?;
    output::print_line(&format!(
        "wrote {}, {} and {}; the certificate expires at {}",
        certificate.display(),
        key.display(),
        trusted.display(),
        issued.certificate.facts.not_after,
    ));
    Ok(ExitCode::SUCCESS)
}

fn issue_join_token(loaded: &LoadedConfig, labels: Vec<String>) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let token = block_on(async {
        let app = open_app_with_keys(&loaded.config, &options).await?;
        let app = match tls::issuing_parts(&loaded.config)? {
            Some(parts) => app.with_tls(parts),
            None => app,
        };
        Ok(nodes::issue_local_join_token(&app, labels).await?)
    })?;
    output::print_line(&token.0);
    Ok(ExitCode::SUCCESS)
}

fn print_break_glass_link(loaded: &LoadedConfig, handle: &Handle) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    // Whoever can read the database alone makes no link: the server checks the tag of the master key.
    master_key::ensure_key_exists(&loaded.config)?;
    let token = block_on(async {
        let app = open_app_with_keys(&loaded.config, &options).await?;
        let keys = app.installation_keys()?;
        Ok(break_glass::issue_break_glass_token(&app, &keys, handle).await?)
    })?;
    output::print_line(&break_glass_link(&loaded.config, &token.0));
    Ok(ExitCode::SUCCESS)
}

fn print_bootstrap_link(loaded: &LoadedConfig) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let token = block_on(async {
        let app = open_app_with_keys(&loaded.config, &options).await?;
        Ok(cynode_app::identity::bootstrap::issue_bootstrap_token(&app).await?)
    })?;
    if let Some(token) = token {
        output::print_line(&bootstrap_link(&loaded.config, &token.0));
        Ok(ExitCode::SUCCESS)
    } else {
        output::print_error("this installation has an admin already; ask them for an account");
        Ok(ExitCode::FAILURE)
    }
}
