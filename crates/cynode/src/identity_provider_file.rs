//! The file of identity providers, `auth.identity_providers_file`. It is applied when the server starts.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, ensure};
use cynode_app::{
    App,
    identity::identity_providers::{self, FileProvider},
};
use cynode_core::{
    names::{GroupName, Title},
    roles::UserRole,
};
use cynode_wire::identity::accounts::SecretText;
use serde::Deserialize;

use crate::config::AuthConfig;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderFile {
    #[serde(default)]
    provider: Vec<ProviderEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    name: String,
    display_name: Title,
    issuer: String,
    client_id: String,
    client_secret_file: Option<PathBuf>,
    scopes: Option<Vec<String>>,
    groups_claim: Option<String>,
    #[serde(default = "enabled_by_default")]
    create_accounts: bool,
    #[serde(default)]
    mapped_groups_only: bool,
    #[serde(default)]
    required_claims: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    links_directory: bool,
    directory_claim: Option<String>,
    #[serde(default)]
    second_factor_contexts: Vec<String>,
    #[serde(default)]
    groups: BTreeMap<String, GroupName>,
    #[serde(default)]
    roles: BTreeMap<GroupName, UserRole>,
}

const fn enabled_by_default() -> bool {
    true
}

/// Makes the identity providers of the configured file those of the installation. Without a file, earlier ones of a file are
/// switched off.
pub(crate) async fn apply_configured_file(app: &App, config: &AuthConfig) -> anyhow::Result<()> {
    let providers = match &config.identity_providers_file {
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            parse_provider_file(&text).with_context(|| format!("in {}", path.display()))?
        }
        None => Vec::new(),
    };
    identity_providers::apply_provider_file(app, providers)
        .await
        .context("in auth.identity_providers_file")
}

fn parse_provider_file(text: &str) -> anyhow::Result<Vec<FileProvider>> {
    let file: ProviderFile = toml::from_str(text)?;
    file.provider.into_iter().map(to_file_provider).collect()
}

fn to_file_provider(entry: ProviderEntry) -> anyhow::Result<FileProvider> {
    let client_secret = match &entry.client_secret_file {
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let secret = text.trim().to_owned();
            ensure!(!secret.is_empty(), "{} is empty", path.display());
            Some(SecretText(secret))
        }
        None => None,
    };
    Ok(FileProvider {
        name: entry.name,
        display_name: entry.display_name,
        issuer: entry.issuer,
        client_id: entry.client_id,
        client_secret,
        scopes: entry.scopes,
        groups_claim: entry.groups_claim,
        create_accounts: entry.create_accounts,
        mapped_groups_only: entry.mapped_groups_only,
        required_claims: entry.required_claims,
        links_directory: entry.links_directory,
        directory_claim: entry.directory_claim,
        second_factor_contexts: entry.second_factor_contexts,
        groups: entry.groups,
        roles: entry.roles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lists_providers_with_their_groups_and_roles() {
        let text = r#"
            [[provider]]
            name = "company"
            display_name = "Company account"
            issuer = "https://id.example.com"
            client_id = "cynode"
            scopes = ["profile", "email", "offline_access"]
            groups = { "cynode-admins" = "admins" }
            roles = { admins = "admin" }
        "#;
        let providers = parse_provider_file(text).unwrap();
        let [provider] = providers.as_slice() else { panic!("{providers:?}") };
        assert_eq!(provider.name, "company");
        assert!(provider.create_accounts && provider.client_secret.is_none());
        let admins: GroupName = "admins".parse().unwrap();
        assert_eq!(provider.groups["cynode-admins"], admins);
        assert_eq!(provider.roles[&admins], UserRole::Admin);
        assert!(parse_provider_file("").unwrap().is_empty());
    }

    #[test]
    fn a_file_with_an_unknown_key_or_without_its_secret_is_refused() {
        assert!(parse_provider_file("[[provider]]\nname = 'a'\nsecret = 'b'").is_err());
        let text = "[[provider]]\nname = 'a'\ndisplay_name = 'A'\nissuer = 'https://id.example.com'\n\
            client_id = 'b'\nclient_secret_file = '/nowhere/secret'";
        let error = parse_provider_file(text).unwrap_err();
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
    }
}
