//! `cynork api-key`: keys for your own programs.

use clap::{Args, Subcommand};
use cynode_wire::identity::accounts::{ApiKeyView, CreatedApiKey};
use serde_json::json;
use time::OffsetDateTime;

use crate::{
    answers::PageArgs, client::ApiRequest, context::CliContext, failure::Result,
    format::ValueFormatter, input, names, operations, output::render_record,
};

#[derive(Subcommand)]
pub(crate) enum ApiKeyCommand {
    /// List your API keys, without their secrets.
    #[command(after_help = "Example: cynork api-key list")]
    List {
        /// List the keys of this user, by handle or id; requires an admin.
        #[arg(long)]
        user: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Create an API key for yourself; printed once.
    #[command(
        after_help = "Example: cynork api-key create ci --days 90 --scope tasks --project web --quiet"
    )]
    Create(ApiKeyCreateArgs),
    /// Revoke an API key immediately.
    #[command(after_help = "Example: cynork api-key revoke ci")]
    Revoke {
        /// API key, by name or id.
        api_key: String,
    },
}

#[derive(Args)]
pub(crate) struct ApiKeyCreateArgs {
    /// Name of the key.
    name: String,
    /// Days until the key expires; defaults to the setting `auth.api_key_days`.
    #[arg(long, value_name = "N")]
    days: Option<u16>,
    /// Group of operations that the key opens; may be repeated. Without one it opens all, but changes neither accounts nor channels.
    #[arg(long = "scope", value_name = "SCOPE", value_parser = SCOPES)]
    scopes: Vec<String>,
    /// Only read with the key.
    #[arg(long)]
    read_only: bool,
    /// Project that the key opens, by name or id; may be repeated. Without one it opens all of yours.
    #[arg(long = "project", value_name = "PROJECT")]
    projects: Vec<String>,
}

/// The groups of operations that a key can be held to.
const SCOPES: [&str; 14] = [
    "accounts",
    "delivery",
    "events",
    "manager",
    "models",
    "nodes",
    "notifications",
    "operation",
    "projects",
    "schedules",
    "settings",
    "skills",
    "tasks",
    "tools",
];

/// Returns what a key opens, in words.
fn describe_limits(key: &ApiKeyView) -> String {
    let scopes = key
        .scopes
        .as_ref()
        .map(|scopes| scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(", "));
    let projects = key.projects.as_ref().map(|projects| format!("{} projects", projects.len()));
    let reads = key.read_only.then(|| "reads only".to_owned());
    let limits: Vec<String> = [scopes, projects, reads].into_iter().flatten().collect();
    if limits.is_empty() { "all".to_owned() } else { limits.join("; ") }
}

impl ApiKeyCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let mut projects = Vec::new();
        for project in &self.projects {
            projects.push(context.project_id(project).await?);
        }
        let body = input::without_nulls(json!({
            "name": self.name,
            "expires_in_days": self.days,
            "scopes": (!self.scopes.is_empty()).then_some(self.scopes),
            "read_only": self.read_only.then_some(true),
            "projects": (!projects.is_empty()).then_some(projects),
        }));
        let call = ApiRequest::for_operation(operations::CREATE_API_KEY).with_json_body(&body);
        let value = context.send_request(&call).await?;
        context.show_answer(
            &value,
            |it: &CreatedApiKey| vec![it.token.0.clone()],
            |it, look| {
                let key = &it.api_key;
                render_secret_once(
                    look,
                    &it.token.0,
                    &[
                        ("name", key.name.to_string()),
                        ("state", token_status(key.revoked_at, key.expires_at, look)),
                        ("opens", describe_limits(key)),
                        ("id", key.id.to_string()),
                    ],
                )
            },
        )
    }
}

/// Returns the state of a token: active, expired or revoked.
pub(super) fn token_status(
    revoked: Option<OffsetDateTime>,
    expires: Option<OffsetDateTime>,
    look: &ValueFormatter,
) -> String {
    match (revoked, expires) {
        (Some(at), _) => {
            format!("{} {}", look.style_state("revoked"), look.format_relative_time(at))
        }
        (None, Some(at)) if at <= look.now => {
            format!("{} {}", look.style_dim("ended"), look.format_relative_time(at))
        }
        (None, Some(at)) => {
            format!("{}, ends {}", look.style_state("active"), look.format_relative_time(at))
        }
        (None, None) => look.style_state("active"),
    }
}

impl ApiKeyCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { user, pages } => {
                let user = context.optional_user_id(user.as_deref()).await?;
                list_api_keys(context, user, &pages).await
            }
            Self::Create(create) => create.run(context).await,
            Self::Revoke { api_key } => {
                let id = names::API_KEY.resolve_id(context, &api_key).await?;
                context.confirm_action(&format!("Revoke the API key {api_key}?"))?;
                let call = ApiRequest::with_path_params(operations::REVOKE_API_KEY, [id]);
                let sentence =
                    |it: &ApiKeyView, _: &ValueFormatter| format!("{} works no more", it.name);
                context.show_outcome(&call, |it: &ApiKeyView| it.id.to_string(), sentence).await
            }
        }
    }
}

/// Renders a secret that is shown once, with its fields.
pub(super) fn render_secret_once(
    look: &ValueFormatter,
    token: &str,
    sides: &[(&str, String)],
) -> String {
    let mut all = vec![("token", look.style_bold(token))];
    all.extend_from_slice(sides);
    render_record(look.paint, &all) + &look.style_dim("Keep it now: it is not shown again.")
}

async fn list_api_keys(context: &CliContext, user: Option<String>, pages: &PageArgs) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_API_KEYS).with_query("user_id", user),
            Some(pages),
            |key: &ApiKeyView| key.name.to_string(),
            ["name", "state", "opens", "used", "made", "id"],
            |key, look| {
                [
                    look.style_bold(key.name.as_str()),
                    token_status(key.revoked_at, key.expires_at, look),
                    describe_limits(key),
                    look.format_optional_time(key.last_used_at),
                    look.format_relative_time(key.created_at),
                    look.style_dim(&key.id.to_string()),
                ]
            },
        )
        .await
}
