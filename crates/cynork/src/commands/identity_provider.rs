//! `cynork identity-provider`: identity providers, by which people log in.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use cynode_wire::identity::single_sign_on::{
    DiscoveryView, IdentityProviderList, IdentityProviderView,
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input::{self, SecretPrompt},
    names, operations,
};

#[derive(Subcommand)]
pub(crate) enum IdentityProviderCommand {
    /// List identity providers, without their secrets.
    #[command(after_help = "Example: cynork identity-provider list")]
    List,
    /// Create an identity provider (OpenID Connect), or change one.
    #[command(
        after_help = "Example: cynork identity-provider set company --display-name \"Company account\" --issuer https://id.example.com --client-id cynode --map cynode-admins=admins"
    )]
    Set(Box<IdentityProviderSetArgs>),
    /// Read the discovery document of an identity provider, to see whether it can be used.
    #[command(after_help = "Example: cynork identity-provider test company")]
    Test {
        /// Provider.
        #[arg(value_name = "PROVIDER")]
        identity_provider: String,
    },
    /// Delete an identity provider; its sessions end.
    #[command(after_help = "Example: cynork identity-provider delete company")]
    Delete {
        /// Provider.
        #[arg(value_name = "PROVIDER")]
        identity_provider: String,
    },
}

#[derive(Args)]
pub(crate) struct IdentityProviderSetArgs {
    /// Name of the provider in addresses.
    #[arg(value_name = "PROVIDER")]
    identity_provider: String,
    /// Name that people see on the login page; needed for a new provider.
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,
    /// Issuer, exactly as its discovery document says; needed for a new provider.
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// Id of this installation at the provider; needed for a new provider.
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Read the secret of this installation at the provider from the first line of standard input.
    #[arg(long)]
    secret_stdin: bool,
    /// Scope that a login asks for beside `openid`; may be repeated.
    #[arg(long, value_name = "SCOPE")]
    scope: Vec<String>,
    /// Claim that lists the groups of a person.
    #[arg(long, value_name = "CLAIM")]
    groups_claim: Option<String>,
    /// Whether a person without an account gets one at the first login.
    #[arg(long, value_name = "BOOL")]
    create_accounts: Option<bool>,
    /// Whether of people without an account only members of a mapped group get one.
    #[arg(long, value_name = "BOOL")]
    mapped_groups_only: Option<bool>,
    /// Claim that a person must have to log in, with a value; may be repeated, and replaces all earlier ones. One of the values of a claim is
    /// enough.
    #[arg(long, value_name = "CLAIM=VALUE")]
    require_claim: Vec<String>,
    /// Whether accounts that the directory made by SCIM log in by it: a claim of theirs is their external id.
    #[arg(long, value_name = "BOOL")]
    links_directory: Option<bool>,
    /// Claim that is the external id of an account of the directory; `sub` by default. It cannot be changed later.
    #[arg(long, value_name = "CLAIM")]
    directory_claim: Option<String>,
    /// Value of the claim `acr` that says that the person has shown a second factor; may be repeated, and replaces all earlier ones.
    #[arg(long, value_name = "ACR")]
    second_factor_context: Vec<String>,
    /// Whether people can log in by it.
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// Group of the provider and the group that it is here; may be repeated, and replaces all earlier ones.
    #[arg(long, value_name = "VALUE=GROUP")]
    map: Vec<String>,
}

impl IdentityProviderCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_providers(context).await,
            Self::Set(set) => set.run(context).await,
            Self::Test { identity_provider } => test_provider(context, &identity_provider).await,
            Self::Delete { identity_provider: provider } => {
                context.confirm_action(&format!(
                    "Delete the identity provider {provider}, and end its sessions?"
                ))?;
                let call =
                    ApiRequest::with_path_params(operations::DELETE_IDENTITY_PROVIDER, [&provider]);
                context.send_and_confirm(&call, &format!("{provider} is deleted")).await
            }
        }
    }
}

async fn list_providers(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_IDENTITY_PROVIDERS),
            None,
            |it: &IdentityProviderView| it.name.clone(),
            ["name", "shown as", "in use", "makes accounts", "groups", "issuer"],
            |it, look| {
                let groups = it.mappings.iter();
                let groups = groups.map(|map| format!("{}={}", map.claim_value, map.group_name));
                [
                    look.style_bold(&it.name),
                    it.display_name.to_string(),
                    look.format_yes_no(it.enabled),
                    look.format_yes_no(it.create_accounts),
                    groups.collect::<Vec<_>>().join(", "),
                    it.issuer.clone(),
                ]
            },
        )
        .await
}

async fn test_provider(context: &CliContext, provider: &str) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::TEST_IDENTITY_PROVIDER, [provider]);
    context
        .show_item(
            &call,
            |it: &DiscoveryView| it.issuer.clone(),
            |it, look| {
                vec![
                    ("issuer", look.style_bold(&it.issuer)),
                    ("login", it.authorization_endpoint.clone()),
                    ("tokens", it.token_endpoint.clone()),
                    ("claims", it.userinfo_endpoint.clone().unwrap_or_default()),
                    ("logout", it.end_session_endpoint.clone().unwrap_or_default()),
                    ("sends logouts", look.format_yes_no(it.sends_logout_tokens)),
                    ("scopes", it.scopes.join(", ")),
                ]
            },
        )
        .await
}

impl IdentityProviderSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let listed: IdentityProviderList = context
            .fetch_as(&ApiRequest::for_operation(operations::LIST_IDENTITY_PROVIDERS))
            .await?;
        let known = listed.items.into_iter().find(|it| it.name == self.identity_provider);
        let secret = if self.secret_stdin {
            let ask = SecretPrompt { prompt: "Secret", flag: "--secret-stdin", stdin: true };
            Some(input::read_secret(context, ask)?)
        } else {
            None
        };
        let mappings = self.resolve_mappings(context).await?;
        let required_claims = self.collect_required_claims()?;
        let (title, issuer, client_id) = match &known {
            Some(it) => (
                Some(it.display_name.to_string()),
                Some(it.issuer.clone()),
                Some(it.client_id.clone()),
            ),
            None => (None, None, None),
        };
        let body = input::without_nulls(json!({
            "display_name": require_value(self.display_name.or(title), "--display-name")?,
            "issuer": require_value(self.issuer.or(issuer), "--issuer")?,
            "client_id": require_value(self.client_id.or(client_id), "--client-id")?,
            "client_secret": secret.as_ref().map(|secret| secret.expose_secret()),
            "scopes": (!self.scope.is_empty()).then_some(&self.scope),
            "groups_claim": self.groups_claim,
            "create_accounts": self.create_accounts,
            "mapped_groups_only": self.mapped_groups_only,
            "required_claims": required_claims,
            "links_directory": self.links_directory,
            "directory_claim": self.directory_claim,
            "second_factor_contexts":
                (!self.second_factor_context.is_empty()).then_some(&self.second_factor_context),
            "enabled": self.enabled,
            "mappings": mappings,
        }));
        let call = ApiRequest::with_path_params(
            operations::SET_IDENTITY_PROVIDER,
            [&self.identity_provider],
        )
        .with_json_body(&body);
        let sentence = |it: &IdentityProviderView, _: &ValueFormatter| {
            format!(
                "{} is known; register the redirect URI that ends with {}",
                it.name, it.callback_path
            )
        };
        context.show_outcome(&call, |it: &IdentityProviderView| it.name.clone(), sentence).await
    }

    /// Returns the required claims for the request, or none when there are none to set.
    fn collect_required_claims(&self) -> Result<Option<BTreeMap<String, Vec<String>>>> {
        let mut claims: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for text in &self.require_claim {
            let Some((name, value)) = text.split_once('=') else {
                return Err(CliError::new(CliErrorKind::Usage, format!("`{text}` names no value"))
                    .with_fix("write it like --require-claim hd=example.com"));
            };
            claims.entry(name.to_owned()).or_default().push(value.to_owned());
        }
        Ok((!claims.is_empty()).then_some(claims))
    }

    /// Returns the mappings for the request, or none when there are none to set.
    async fn resolve_mappings(&self, context: &CliContext) -> Result<Option<Vec<Value>>> {
        if self.map.is_empty() {
            return Ok(None);
        }
        let mut mappings = Vec::new();
        for map in &self.map {
            let Some((value, group)) = map.rsplit_once('=') else {
                return Err(CliError::new(CliErrorKind::Usage, format!("`{map}` maps nothing"))
                    .with_fix("write it like --map cynode-admins=admins"));
            };
            let group = names::GROUP.resolve_id(context, group).await?;
            mappings.push(json!({ "claim_value": value, "group_id": group }));
        }
        Ok(Some(mappings))
    }
}

fn require_value(value: Option<String>, flag: &str) -> Result<String> {
    value.ok_or_else(|| {
        CliError::new(
            CliErrorKind::Usage,
            "a new identity provider needs a name, an issuer and a client id",
        )
        .with_fix(format!("say it with {flag}"))
    })
}
