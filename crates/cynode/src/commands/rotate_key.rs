//! `cynode admin rotate-key` and `cynode admin keys`.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use cynode_app::{
    App,
    background::key_rotation,
    platform::keys::{self, KeyPurpose, KeyringChange},
};
use cynode_wire::platform::keys::{KeyView, KeyringView, MasterKeyView};

use super::{block_on, open_app_with_keys};
use crate::{config::LoadedConfig, master_key, output};

/// Interval of the steps of a rotation.
const STEP_INTERVAL: Duration = Duration::from_secs(1);

/// Key to rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RotatedKey {
    /// The master key, which wraps all others, and the key that seals secrets.
    Master,
    /// The key that signs audit records.
    Signing,
    /// The key under which tokens are stored, and that authenticates links.
    Token,
}

impl RotatedKey {
    const fn purpose(self) -> KeyPurpose {
        match self {
            Self::Master => KeyPurpose::Master,
            Self::Signing => KeyPurpose::Signing,
            Self::Token => KeyPurpose::Token,
        }
    }
}

/// Options of a rotation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotationOptions {
    pub(crate) key: RotatedKey,
    pub(crate) prepare: bool,
    pub(crate) at_once: bool,
    pub(crate) no_wait: bool,
}

/// Rotates a key. The server goes on with a rotation that this command began, and this command does its steps too, so that it needs no
/// server.
pub(crate) fn run_rotation(
    loaded: &LoadedConfig,
    options: RotationOptions,
) -> anyhow::Result<ExitCode> {
    let config = &loaded.config;
    ensure!(
        master_key::has_key_location(config),
        "no master key is named: point storage.directory at the installation's, or give --data-dir"
    );
    master_key::ensure_key_exists(config)?;
    ensure!(
        !options.prepare || options.key == RotatedKey::Master,
        "only the master key is prepared"
    );
    block_on(async {
        let app = open_app_with_keys(config, &config.database.pool_options()?).await?;
        if options.prepare {
            let version = keys::prepare_master_key(&app).await?;
            output::print_line(&format!("the next master key is {version}"));
            return Ok(());
        }
        rotate_key(&app, options).await
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn rotate_key(app: &App, options: RotationOptions) -> anyhow::Result<()> {
    let change = KeyringChange { purpose: options.key.purpose(), at_once: options.at_once };
    let is_unfinished = options.key == RotatedKey::Master
        && app.installation_keys()?.is_rotation_unfinished(app).await?;
    // A command that was killed may have left nothing but the end to do.
    let created =
        if is_unfinished { Vec::new() } else { keys::begin_rotation(app, change).await? };
    if created.is_empty() {
        output::print_line("a rotation of this key is under way; it goes on");
    }
    for id in created {
        let seconds = keys::ACTIVATION_DELAY.whole_seconds();
        output::print_line(&format!("created the key {id}; it is used in {seconds} seconds"));
    }
    if !options.no_wait {
        wait_for_rotation(app).await?;
    }
    if options.key == RotatedKey::Master && !options.no_wait {
        // Nothing is wrapped by the old master key any more, and nothing that follows from it opens a secret.
        app.installation_keys()?.finish_master_rotation(app).await.context(
            "the old master key still opens what it wrapped: the end of the rotation is missing",
        )?;
        output::print_line(
            "the master key is the new one. Keep a copy of it apart from the database's backups, and the old one with the backups \
             that were made before.",
        );
    }
    if !options.no_wait {
        output::print_line("back up after a rotation: `cynode backup`");
    }
    Ok(())
}

/// Does the steps of a rotation until nothing names an old key.
async fn wait_for_rotation(app: &App) -> anyhow::Result<()> {
    let mut turn = tokio::time::interval(STEP_INTERVAL);
    let mut shown = String::new();
    loop {
        turn.tick().await;
        let step = key_rotation::advance_rotations(app).await?;
        if !step.stuck.is_empty() {
            bail!(
                "these secrets cannot be opened and keep the old key: {}; set or delete them, and repeat the command",
                step.stuck.join(", ")
            );
        }
        let keyring = key_rotation::describe_keyring(app).await?;
        let progress = describe_progress(&keyring);
        if progress != shown {
            output::print_line(&progress);
            shown = progress;
        }
        if step.finished || is_waiting_for_links(&keyring) {
            return Ok(());
        }
    }
}

/// Returns whether nothing is left to do but to wait for links that were sent: their key is kept for longer than a person waits.
fn is_waiting_for_links(keyring: &KeyringView) -> bool {
    let mut live = keyring.keys.iter().filter(|key| key.retired_at.is_none());
    keyring.remaining == 0 && live.all(|key| key.state == "active" || has_link_grace(keyring, key))
}

/// Returns whether an old key of tokens is kept for links that were sent.
fn has_link_grace(keyring: &KeyringView, old: &KeyView) -> bool {
    let mut keys = keyring.keys.iter();
    let newest = keys.rfind(|key| key.purpose == "token" && key.state == "active");
    let end = old.retires_at.filter(|_| old.purpose == "token" && old.state == "retiring");
    newest.zip(end).is_some_and(|(new, end)| end > new.activates_at + time::Duration::HOUR)
}

fn describe_progress(keyring: &KeyringView) -> String {
    if !keyring.rotating {
        return "nothing names an old key; it is retired".to_owned();
    }
    if !keyring.waiting_for.is_empty() {
        let processes = keyring.waiting_for.join(", ");
        return format!(
            "these processes have not loaded the new key, the rotation waits for them: {processes}"
        );
    }
    if keyring.keys.iter().any(|key| key.state == "staged") {
        return "every process loads the new key …".to_owned();
    }
    if keyring.remaining > 0 {
        return format!("{} secrets and tokens name an old key …", keyring.remaining);
    }
    let end =
        keyring.keys.iter().filter(|key| key.state == "retiring").filter_map(|key| key.retires_at);
    match end.max() {
        Some(end) => format!("nothing stored names an old key; it is retired after {end}"),
        None => "nothing stored names an old key".to_owned(),
    }
}

/// Prints the keys of the installation.
pub(crate) fn print_keys(loaded: &LoadedConfig, json: bool) -> anyhow::Result<ExitCode> {
    let config = &loaded.config;
    let keyring = block_on(async {
        let app = open_app_with_keys(config, &config.database.pool_options()?).await?;
        Ok(key_rotation::describe_keyring(&app).await?)
    })?;
    if json {
        output::print_line(&serde_json::to_string_pretty(&keyring)?);
        return Ok(ExitCode::SUCCESS);
    }
    for key in &keyring.keys {
        let uses: u64 = key.uses.iter().map(|named| named.count).sum();
        let note = match (key.derived, key.unkeyed) {
            (_, true) if key.retired_at.is_none() => ", SHA-256 without a key",
            (true, _) => ", derived from the first master key",
            _ => "",
        };
        output::print_line(&format!(
            "{}  {:<8} {:<9} since {}, named {uses} times{note}",
            key.key_id, key.purpose, key.state, key.created_at
        ));
    }
    if let Some(master) = &keyring.master_key {
        output::print_line(&describe_master_key(master));
    }
    if keyring.rotating {
        output::print_line(&describe_progress(&keyring));
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes the master key itself: it is no key of the keyring.
fn describe_master_key(master: &MasterKeyView) -> String {
    let version = master.version.as_deref().unwrap_or("the first one");
    let since = master.since.map_or_else(String::new, |since| format!(" since {since}"));
    let end = match (master.unfinished, &master.problem) {
        (true, _) => {
            ". The end of its rotation is missing: run `cynode admin rotate-key master` again"
                .to_owned()
        }
        (false, Some(problem)) => format!(". Whether its rotation has ended is unknown: {problem}"),
        (false, None) => String::new(),
    };
    format!("master key ({}): {version}{since}{end}", master.place)
}
