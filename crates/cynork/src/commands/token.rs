//! `cynork token`: keys for your own programs, and tokens of agents.

use clap::{Args, Subcommand};
use cynode_wire::{
    accounts::{ApiKeyView, CreatedApiKey},
    gate::{AgentTokenView, IssuedAgentToken},
};
use serde_json::json;
use time::OffsetDateTime;

use crate::{
    answers::Pages,
    client::Call,
    context::Context,
    failure::Result,
    given,
    look::Look,
    names::{self, In},
    operations,
    output::record,
};

#[derive(Subcommand)]
pub(crate) enum Token {
    /// Lists your API keys, without their secrets.
    #[command(after_help = "Example: cynork token list")]
    List {
        /// Those of this user, by handle or id, for an admin of the installation.
        #[arg(long)]
        user: Option<String>,
        #[command(flatten)]
        pages: Pages,
    },
    /// Makes an API key for yourself. It is shown only once.
    #[command(after_help = "Example: cynork token create ci --days 90 --quiet")]
    Create {
        /// What you call it.
        name: String,
        /// Days until it stops working, 1 to 3650; until it is revoked when it is left out.
        #[arg(long, value_name = "N")]
        days: Option<u16>,
    },
    /// Revokes an API key: it stops working at once.
    #[command(after_help = "Example: cynork token revoke ci")]
    Revoke {
        /// By name or id.
        token: String,
    },
    /// Tokens of agents.
    #[command(subcommand)]
    Agent(Agent),
}

#[derive(Subcommand)]
pub(crate) enum Agent {
    /// Lists the tokens of a project's agents, newest first.
    #[command(after_help = "Example: cynork token agent list --project web")]
    List {
        #[command(flatten)]
        place: In,
        #[command(flatten)]
        pages: Pages,
    },
    /// Gives an agent a token. It is shown only once.
    #[command(
        after_help = "Example: cynork token agent issue developer --project web --task tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Issue(Box<Issue>),
    /// Ends an agent's token, at once and everywhere.
    #[command(
        after_help = "Example: cynork token agent revoke agt_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Revoke {
        /// Its id.
        token: String,
    },
}

#[derive(Args)]
pub(crate) struct Issue {
    /// What the agent does, such as `developer` or `reviewer`.
    role: String,
    #[command(flatten)]
    place: In,
    /// The task it works on, by name or id; only a project manager may do without.
    #[arg(long)]
    task: Option<String>,
    /// The job it is.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// The profile it works under.
    #[arg(long)]
    profile: Option<String>,
    /// Its tools may use the network.
    #[arg(long)]
    network: bool,
    /// The only tools it is good for; may be repeated. All that the role may use when it is left out.
    #[arg(long)]
    tool: Vec<String>,
    /// A model that it opens; may be repeated.
    #[arg(long)]
    model: Vec<String>,
    /// How long it works, 60 to 604800; an hour when it is left out.
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u32>,
}

/// Where a token stands.
fn standing(
    revoked: Option<OffsetDateTime>,
    expires: Option<OffsetDateTime>,
    look: &Look,
) -> String {
    match (revoked, expires) {
        (Some(at), _) => format!("{} {}", look.state("revoked"), look.when(at)),
        (None, Some(at)) if at <= look.now => format!("{} {}", look.dim("ended"), look.when(at)),
        (None, Some(at)) => format!("{}, ends {}", look.state("active"), look.when(at)),
        (None, None) => look.state("active"),
    }
}

impl Token {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { user, pages } => {
                let user = context.user_if(user.as_deref()).await?;
                list(context, user, &pages).await
            }
            Self::Create { name, days } => {
                let body = given::said(json!({ "name": name, "expires_in_days": days }));
                let value = context.ask(&Call::of(operations::CREATE_API_KEY).body(&body)).await?;
                context.show(
                    &value,
                    |it: &CreatedApiKey| vec![it.token.0.clone()],
                    |it, look| {
                        let key = &it.api_key;
                        once(
                            look,
                            &it.token.0,
                            &[
                                ("name", key.name.to_string()),
                                ("state", standing(key.revoked_at, key.expires_at, look)),
                                ("id", key.id.to_string()),
                            ],
                        )
                    },
                )
            }
            Self::Revoke { token } => {
                let id = names::API_KEY.id(context, &token).await?;
                context.sure(&format!("Revoke the API key {token}?"))?;
                let call = Call::to(operations::REVOKE_API_KEY, [id]);
                let sentence = |it: &ApiKeyView, _: &Look| format!("{} works no more", it.name);
                context.told(&call, |it: &ApiKeyView| it.id.to_string(), sentence).await
            }
            Self::Agent(agent) => agent.run(context).await,
        }
    }
}

/// A secret that is shown once, with what it is.
fn once(look: &Look, token: &str, sides: &[(&str, String)]) -> String {
    let mut all = vec![("token", look.bold(token))];
    all.extend_from_slice(sides);
    record(look.paint, &all) + &look.dim("Keep it now: it is not shown again.")
}

async fn list(context: &Context, user: Option<String>, pages: &Pages) -> Result<()> {
    context
        .list(
            &Call::of(operations::LIST_API_KEYS).query("user_id", user),
            Some(pages),
            |key: &ApiKeyView| key.name.to_string(),
            ["name", "state", "made", "id"],
            |key, look| {
                [
                    look.bold(key.name.as_str()),
                    standing(key.revoked_at, key.expires_at, look),
                    look.when(key.created_at),
                    look.dim(&key.id.to_string()),
                ]
            },
        )
        .await
}

impl Agent {
    async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { place, pages } => {
                let project = context.project_id(&context.project(place.project)?).await?;
                let call =
                    Call::of(operations::LIST_AGENT_TOKENS).query("project_id", Some(project));
                context
                    .list(
                        &call,
                        Some(&pages),
                        |it: &AgentTokenView| it.agent_token_id.to_string(),
                        ["role", "state", "task", "issued", "id"],
                        |it, look| {
                            [
                                look.bold(it.role.as_str()),
                                standing(it.revoked_at, it.expires_at, look),
                                it.task_id.map(|id| id.to_string()).unwrap_or_default(),
                                look.when(it.created_at),
                                it.agent_token_id.to_string(),
                            ]
                        },
                    )
                    .await
            }
            Self::Issue(issue) => issue.run(context).await,
            Self::Revoke { token } => {
                context.sure(&format!("End the token {token}? Whoever works with it stops."))?;
                let call = Call::to(operations::REVOKE_AGENT_TOKEN, [&token]);
                context.done(&call, &format!("{token} works no more")).await
            }
        }
    }
}

impl Issue {
    async fn run(self, context: &Context) -> Result<()> {
        let project = context.project(self.place.project)?;
        let task = context.task_id_if(self.task.as_deref(), Some(&project)).await?;
        let body = given::said(json!({
            "role": self.role, "project_id": context.project_id(&project).await?, "task_id": task,
            "job_id": self.job, "profile": self.profile, "network": self.network,
            "tools": (!self.tool.is_empty()).then_some(self.tool), "models": self.model,
            "expires_in_seconds": self.expires_in,
        }));
        let value = context.ask(&Call::of(operations::ISSUE_AGENT_TOKEN).body(&body)).await?;
        context.show(
            &value,
            |it: &IssuedAgentToken| vec![it.token.0.clone()],
            |it, look| {
                let about = &it.about;
                once(
                    look,
                    &it.token.0,
                    &[
                        ("role", about.role.as_str().to_owned()),
                        ("state", standing(about.revoked_at, about.expires_at, look)),
                        ("id", about.agent_token_id.to_string()),
                    ],
                )
            },
        )
    }
}
