//! `cynork remote`: a project's repository on a forge.

use clap::{Args, Subcommand};
use cynode_wire::delivery::forges::{RemoteView, WantedIssueView};
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input::{self, SecretPrompt},
    names::ProjectSelector,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum RemoteCommand {
    /// Show the forge connection of a project and what is missing.
    #[command(after_help = "Example: cynork remote show --project web")]
    Show(ProjectSelector),
    /// Connect a project to its repository on a forge; the token is typed or read from standard input.
    #[command(
        after_help = "Example: cynork remote set github https://github.com/acme/web.git --project web"
    )]
    Set(Box<RemoteSetArgs>),
    /// Delete the connection and its token; the repository on the forge stays.
    #[command(after_help = "Example: cynork remote delete --project web")]
    Delete(ProjectSelector),
    /// List the forge issues taken as tasks, and their outcomes.
    #[command(after_help = "Example: cynork remote issues --project web")]
    Issues(ProjectSelector),
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
pub(crate) struct RemoteSetArgs {
    /// Kind of forge; use `gitea` for Forgejo.
    #[arg(value_parser = ["github", "gitlab", "gitea"])]
    forge: String,
    /// Clone URL.
    #[arg(value_name = "URL")]
    clone_url: String,
    #[command(flatten)]
    place: ProjectSelector,
    /// Name of the repository on the forge; defaults to the path of the URL.
    #[arg(long, value_name = "OWNER/NAME")]
    repository: Option<String>,
    /// Base branch of tasks and pull requests.
    #[arg(long, default_value = "main")]
    branch: String,
    /// Base URL of the forge's API; defaults to the usual one of the forge.
    #[arg(long, value_name = "URL")]
    api_url: Option<String>,
    /// Turn issues with this label into tasks.
    #[arg(long)]
    label: Option<String>,
    /// Turn issues assigned to the token's account into tasks.
    #[arg(long)]
    assigned_to_bot: bool,
    /// Include issues of authors without write access to the repository.
    #[arg(long)]
    allow_untrusted_authors: bool,
    /// Polling interval, 10 to 86400.
    #[arg(long, value_name = "SECONDS")]
    poll_seconds: Option<u32>,
    /// Skip the connection check.
    #[arg(long)]
    no_check: bool,
    /// Read the token from the first line of standard input. Without a token, the stored one stays.
    #[arg(long)]
    token_stdin: bool,
    /// Read the webhook secret from standard input, from the line after the token.
    #[arg(long)]
    webhook_secret_stdin: bool,
}

impl RemoteCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Show(place) => {
                let call = ApiRequest::with_path_params(
                    operations::GET_REMOTE,
                    [context.require_project(place.project)?],
                );
                context.show_item(&call, |it: &RemoteView| it.url.clone(), remote_fields).await
            }
            Self::Set(set) => set.run(context).await,
            Self::Delete(place) => {
                let project = context.require_project(place.project)?;
                context
                    .confirm_action(&format!("Delete the remote of {project}, with its token?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_REMOTE, [&project]);
                context
                    .send_and_confirm(
                        &call,
                        &format!("{project} is no longer connected to a forge"),
                    )
                    .await
            }
            Self::Issues(place) => list_issues(context, place).await,
        }
    }
}

fn remote_fields(remote: &RemoteView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    let intake = [
        remote.intake.label.as_ref().map(|label| format!("with the label {label}")),
        remote.intake.assigned_to_bot.then(|| "assigned to the bot".to_owned()),
        remote.intake.allow_untrusted_authors.then(|| "from untrusted authors".to_owned()),
    ];
    let intake: Vec<String> = intake.into_iter().flatten().collect();
    vec![
        ("repository", look.style_bold(&remote.repository)),
        ("forge", remote.forge.as_str().to_owned()),
        ("cloned from", remote.url.clone()),
        ("api", remote.api.clone()),
        ("branch", remote.default_branch.clone()),
        ("as", remote.login.clone().unwrap_or_default()),
        ("issues", intake.join(", ")),
        ("polled at", look.format_optional_time(remote.polled_at)),
        ("fetched", look.format_optional_time(remote.fetched_at)),
        ("deliveries to", remote.webhook_path.clone()),
        ("signed with", remote.webhook_secret.as_ref().map(|it| it.0.clone()).unwrap_or_default()),
        (
            "refused",
            Some(remote.refused_deliveries)
                .filter(|it| *it > 0)
                .map(|it| it.to_string())
                .unwrap_or_default(),
        ),
        ("missing", remote.missing.join("\n")),
        ("failure", remote.failure.clone().unwrap_or_default()),
    ]
}

/// Derives the name of a repository from its clone URL.
fn repository_name(url: &str) -> Option<String> {
    let path = url::Url::parse(url).ok()?.path().trim_matches('/').to_owned();
    let name = path.strip_suffix(".git").unwrap_or(&path).to_owned();
    Some(name).filter(|name| name.contains('/'))
}

impl RemoteSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project(self.place.project)?;
        let repository =
            self.repository.or_else(|| repository_name(&self.clone_url)).ok_or_else(|| {
                CliError::new(CliErrorKind::Usage, "what is the repository called there?")
                    .with_fix("say it with --repository OWNER/NAME")
            })?;
        let ask = SecretPrompt {
            prompt: "Token of the forge (empty: leave it)",
            flag: "--token-stdin",
            stdin: self.token_stdin,
        };
        let token = input::read_optional_secret(context, ask)?;
        let signs = if self.webhook_secret_stdin { Some(input::read_stdin_line()?) } else { None };
        let body = input::without_nulls(json!({
            "forge": self.forge, "url": self.clone_url, "api": self.api_url, "repository": repository,
            "default_branch": self.branch,
            "credential": token.as_ref().map(|it| it.expose_secret()),
            "webhook_secret": signs.as_ref().map(|it| it.expose_secret()),
            "intake": { "label": self.label, "assigned_to_bot": self.assigned_to_bot,
                "allow_untrusted_authors": self.allow_untrusted_authors },
            "poll_seconds": self.poll_seconds,
            "check": self.no_check.then_some(false),
        }));
        let call =
            ApiRequest::with_path_params(operations::SET_REMOTE, [&project]).with_json_body(&body);
        context.show_item(&call, |it: &RemoteView| it.url.clone(), remote_fields).await
    }
}

async fn list_issues(context: &CliContext, place: ProjectSelector) -> Result<()> {
    context
        .show_list(
            &ApiRequest::with_path_params(
                operations::LIST_ISSUES,
                [context.require_project(place.project)?],
            ),
            None,
            |issue: &WantedIssueView| issue.number.to_string(),
            ["issue", "by", "seen", "task", "where"],
            |issue, look| {
                [
                    look.style_bold(&format!("#{}", issue.number)),
                    issue.author.clone(),
                    look.format_relative_time(issue.seen_at),
                    issue.task_id.map_or_else(
                        || {
                            look.style_state("refused")
                                + ": "
                                + issue.rejection_reason.as_deref().unwrap_or_default()
                        },
                        |task| task.to_string(),
                    ),
                    issue.url.clone(),
                ]
            },
        )
        .await
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_name_of_a_repository_is_in_its_address() {
        assert_eq!(super::repository_name("https://github.com/acme/web.git").unwrap(), "acme/web");
        assert_eq!(
            super::repository_name("http://forge/deep/group/web").unwrap(),
            "deep/group/web"
        );
        assert_eq!(super::repository_name("https://forge/web"), None);
    }
}
