//! `cynode config`: the effective configuration and its sources.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use crate::{config::LoadedConfig, output};

/// Show and check the configuration.
#[derive(Subcommand)]
pub(crate) enum CynodeConfigCommand {
    /// Check the configuration and print the effective values, with secrets masked.
    Check {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration file with every key, its default and its meaning.
    Default,
}

pub(crate) fn run_config(
    command: &CynodeConfigCommand,
    loaded: &LoadedConfig,
) -> anyhow::Result<ExitCode> {
    if let CynodeConfigCommand::Check { json: true } = command {
        let values: Vec<_> = loaded
            .effective
            .iter()
            .map(|e| json!({ "key": e.key, "value": e.value, "source": e.source.as_str() }))
            .collect();
        let warnings: Vec<_> = loaded.notes.iter().map(ToString::to_string).collect();
        output::print_json(&json!({ "values": values, "warnings": warnings }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = loaded.effective.iter().map(|e| e.key.len()).max().unwrap_or(0);
    for effective in &loaded.effective {
        let source = effective.source.as_str();
        output::print_line(&format!("{:width$}  {}  ({source})", effective.key, effective.value));
    }
    for note in &loaded.notes {
        output::print_line(&format!("warning: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}
