//! `cynork agent-token`: tokens of agents.

use clap::{Args, Subcommand};
use cynode_wire::tools::{AgentTokenView, IssuedAgentToken};
use serde_json::json;

use super::api_key::{render_secret_once, token_status};
use crate::{
    answers::PageArgs, client::ApiRequest, context::CliContext, failure::Result, input,
    names::ProjectSelector, operations,
};

#[derive(Subcommand)]
pub(crate) enum AgentTokenCommand {
    /// List the agent tokens of a project, newest first.
    #[command(after_help = "Example: cynork agent-token list --project web")]
    List {
        #[command(flatten)]
        place: ProjectSelector,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Issue an agent token; printed once.
    #[command(
        after_help = "Example: cynork agent-token issue developer --project web --task tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Issue(Box<AgentTokenIssueArgs>),
    /// Revoke an agent token immediately.
    #[command(
        after_help = "Example: cynork agent-token revoke agt_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Revoke {
        /// Token id.
        token: String,
    },
}

#[derive(Args)]
pub(crate) struct AgentTokenIssueArgs {
    /// Role of the agent, such as `developer` or `reviewer`.
    role: String,
    #[command(flatten)]
    place: ProjectSelector,
    /// Task of the agent, by name or id; required except for a project manager.
    #[arg(long)]
    task: Option<String>,
    /// Job of the agent.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Profile of the agent. Defaults to that of the task.
    #[arg(long)]
    profile: Option<String>,
    /// Refuse a profile without network.
    #[arg(long)]
    network: bool,
    /// Tool that the token allows; may be repeated. Defaults to every tool of the role.
    #[arg(long)]
    tool: Vec<String>,
    /// Model that the token allows; may be repeated.
    #[arg(long)]
    model: Vec<String>,
    /// Lifetime of the token, 60 to 604800; defaults to an hour.
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u32>,
}

impl AgentTokenCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { place, pages } => {
                let project = context.project_id(&context.require_project(place.project)?).await?;
                let call = ApiRequest::for_operation(operations::LIST_AGENT_TOKENS)
                    .with_query("project_id", Some(project));
                context
                    .show_list(
                        &call,
                        Some(&pages),
                        |it: &AgentTokenView| it.agent_token_id.to_string(),
                        ["role", "state", "task", "issued", "id"],
                        |it, look| {
                            [
                                look.style_bold(it.role.as_str()),
                                token_status(it.revoked_at, it.expires_at, look),
                                it.task_id.map(|id| id.to_string()).unwrap_or_default(),
                                look.format_relative_time(it.created_at),
                                it.agent_token_id.to_string(),
                            ]
                        },
                    )
                    .await
            }
            Self::Issue(issue) => issue.run(context).await,
            Self::Revoke { token } => {
                context.confirm_action(&format!(
                    "End the token {token}? Whoever works with it stops."
                ))?;
                let call = ApiRequest::with_path_params(operations::REVOKE_AGENT_TOKEN, [&token]);
                context.send_and_confirm(&call, &format!("{token} works no more")).await
            }
        }
    }
}

impl AgentTokenIssueArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project(self.place.project)?;
        let task = context.optional_task_id(self.task.as_deref(), Some(&project)).await?;
        let body = input::without_nulls(json!({
            "role": self.role, "project_id": context.project_id(&project).await?, "task_id": task,
            "job_id": self.job, "profile": self.profile, "network": self.network.then_some(true),
            "tools": (!self.tool.is_empty()).then_some(self.tool), "models": self.model,
            "expires_in_seconds": self.expires_in,
        }));
        let value = context
            .send_request(
                &ApiRequest::for_operation(operations::ISSUE_AGENT_TOKEN).with_json_body(&body),
            )
            .await?;
        context.show_answer(
            &value,
            |it: &IssuedAgentToken| vec![it.token.0.clone()],
            |it, look| {
                let about = &it.about;
                render_secret_once(
                    look,
                    &it.token.0,
                    &[
                        ("role", about.role.as_str().to_owned()),
                        ("state", token_status(about.revoked_at, about.expires_at, look)),
                        ("id", about.agent_token_id.to_string()),
                    ],
                )
            },
        )
    }
}
