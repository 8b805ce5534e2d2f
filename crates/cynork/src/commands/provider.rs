//! `cynork provider`: providers of models, and their keys.

use clap::{Args, Subcommand};
use cynode_wire::models::{ProviderKeyView, ProviderView};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::{
    client::{ApiRequest, ListResponse},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input::{self, SecretPrompt},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum ProviderCommand {
    /// List model providers.
    #[command(after_help = "Example: cynork provider list")]
    List,
    /// Create or replace a provider.
    #[command(
        after_help = "Example: cynork provider set local --kind compatible --base-url http://127.0.0.1:11434/v1"
    )]
    Set(ProviderSetArgs),
    /// Add an API key to a provider, typed or read from standard input. It is stored encrypted and never shown again.
    #[command(after_help = "Example: cynork provider add-key openai --label team")]
    AddKey {
        /// Provider.
        provider: String,
        /// Label of the key.
        #[arg(long, default_value = "default")]
        label: String,
        /// Read the key from the first line of standard input.
        #[arg(long)]
        key_stdin: bool,
    },
    /// Delete an API key of a provider.
    #[command(after_help = "Example: cynork provider delete-key openai team")]
    DeleteKey {
        /// Provider.
        provider: String,
        /// Key, by label or id.
        key: String,
    },
    /// Delete a provider and its keys.
    #[command(after_help = "Example: cynork provider delete local")]
    Delete {
        /// Provider.
        provider: String,
    },
}

#[derive(Args)]
pub(crate) struct ProviderSetArgs {
    /// Name of the provider.
    provider: String,
    /// Kind of provider.
    #[arg(long, value_parser = ["compatible", "openai", "anthropic", "scripted", "record", "replay"])]
    kind: String,
    /// Base URL, up to and including `/v1`.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// API dialect; defaults to that of the kind.
    #[arg(long, value_parser = ["chat", "responses", "messages"])]
    dialect: Option<String>,
    /// Whether requests stay on machines that you own; defaults to whether the address is private.
    #[arg(long, value_name = "BOOL")]
    local: Option<bool>,
    /// Store the provider disabled.
    #[arg(long)]
    disabled: bool,
    /// JSON file with the answers of a `scripted` provider; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    script: Option<String>,
    /// Provider that a `record` provider records.
    #[arg(long, value_name = "PROVIDER")]
    source: Option<String>,
    /// Name of the recording of a `record` or `replay` provider.
    #[arg(long)]
    cassette: Option<String>,
}

impl ProviderCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_providers(context).await,
            Self::Set(set) => set.run(context).await,
            Self::AddKey { provider, label, key_stdin } => {
                let ask = SecretPrompt { prompt: "Key", flag: "--key-stdin", stdin: key_stdin };
                let key = input::read_secret(context, ask)?;
                let call = ApiRequest::with_path_params(operations::ADD_PROVIDER_KEY, [&provider])
                    .with_json_body(&json!({ "label": label, "key": key.expose_secret() }));
                let sentence = |it: &ProviderKeyView, _: &ValueFormatter| {
                    format!("{provider} has the key {}", it.label)
                };
                context
                    .show_outcome(&call, |it: &ProviderKeyView| it.key_id.to_string(), sentence)
                    .await
            }
            Self::DeleteKey { provider, key } => {
                let id = find_key_id(context, &provider, &key).await?;
                context.confirm_action(&format!("Delete the key {key} of {provider}?"))?;
                let call =
                    ApiRequest::with_path_params(operations::DELETE_PROVIDER_KEY, [&provider, &id]);
                context
                    .send_and_confirm(&call, &format!("the key {key} of {provider} is deleted"))
                    .await
            }
            Self::Delete { provider } => {
                context
                    .confirm_action(&format!("Delete the provider {provider} with its keys?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_PROVIDER, [&provider]);
                context.send_and_confirm(&call, &format!("{provider} is deleted")).await
            }
        }
    }
}

async fn list_providers(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_PROVIDERS),
            None,
            |it: &ProviderView| it.name.clone(),
            ["name", "kind", "speaks", "in use", "local", "keys", "address"],
            |it, look| {
                [
                    look.style_bold(&it.name),
                    it.kind.as_str().to_owned(),
                    it.dialect.to_string(),
                    look.format_yes_no(it.enabled),
                    look.format_yes_no(it.local),
                    it.keys
                        .iter()
                        .map(|key| render_key_label(key, look))
                        .collect::<Vec<_>>()
                        .join(", "),
                    it.base_url
                        .clone()
                        .or_else(|| it.recorded_provider.clone())
                        .unwrap_or_default(),
                ]
            },
        )
        .await
}

/// Renders a key, and until when it is suspended.
fn render_key_label(key: &ProviderKeyView, look: &ValueFormatter) -> String {
    match key.parked_until {
        Some(until) => {
            format!(
                "{} ({}, until {})",
                key.label,
                look.style_state("parked"),
                look.format_relative_time(until)
            )
        }
        None => key.label.clone(),
    }
}

impl ProviderSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let script = self.script.as_deref().map(input::read_file_json).transpose()?;
        let body = input::without_nulls(json!({
            "kind": self.kind, "base_url": self.base_url, "dialect": self.dialect, "local": self.local,
            "enabled": self.disabled.then_some(false), "script": script, "recorded_provider": self.source,
            "cassette": self.cassette,
        }));
        let call = ApiRequest::with_path_params(operations::SET_PROVIDER, [&self.provider])
            .with_json_body(&body);
        let sentence = |it: &ProviderView, _: &ValueFormatter| {
            if !it.dropped_keys.is_empty() {
                return format!(
                    "{0} is known; its kind or its address is another one, so its keys are dropped ({1}); give them \
                     again: cynork provider add-key {0}",
                    it.name,
                    it.dropped_keys.join(", ")
                );
            }
            match (it.keys.len(), it.kind.as_str()) {
                (0, "openai" | "anthropic") => {
                    format!(
                        "{} is known; give it a key: cynork provider add-key {}",
                        it.name, it.name
                    )
                }
                _ => format!("{} is known", it.name),
            }
        };
        context.show_outcome(&call, |it: &ProviderView| it.name.clone(), sentence).await
    }
}

/// Finds the id of a provider's key.
async fn find_key_id(context: &CliContext, provider: &str, key: &str) -> Result<String> {
    if key.starts_with("pky_") {
        return Ok(key.to_owned());
    }
    let providers: ListResponse<Value> =
        context.fetch_as(&ApiRequest::for_operation(operations::LIST_PROVIDERS)).await?;
    let mut found = providers.items.iter().filter(|it| it["name"] == provider);
    let keys = found.next().and_then(|it| it["keys"].as_array()).into_iter().flatten();
    let mut keys = keys.filter(|it| it["label"] == key);
    keys.next().and_then(|it| it["key_id"].as_str()).map(str::to_owned).ok_or_else(|| {
        CliError::new(CliErrorKind::NotFound, format!("{provider} has no key {key}"))
            .with_fix("see `cynork provider list`")
    })
}
