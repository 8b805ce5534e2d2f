//! `cynork remote`: a project's repository on a forge.

use clap::{Args, Subcommand};
use cynode_wire::remotes::{RemoteView, WantedIssueView};
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    given::{self, SecretPrompt},
    look::ValueFormatter,
    names::ProjectSelector,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum RemoteCommand {
    /// Shows where a project's repository is, and what does not work yet.
    #[command(after_help = "Example: cynork remote show --project web")]
    Show(ProjectSelector),
    /// Connects a project with its repository on a forge; the token is typed, or read from standard input.
    #[command(
        after_help = "Example: cynork remote set github https://github.com/acme/web.git --project web"
    )]
    Set(Box<RemoteSetArgs>),
    /// Takes the connection away, with its token. What is on the forge stays there.
    #[command(after_help = "Example: cynork remote remove --project web")]
    Remove(ProjectSelector),
    /// Lists the issues of the forge that were wanted, and what became of them.
    #[command(after_help = "Example: cynork remote issues --project web")]
    Issues(ProjectSelector),
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
pub(crate) struct RemoteSetArgs {
    /// The kind of forge; Forgejo is `gitea`.
    #[arg(value_parser = ["github", "gitlab", "gitea"])]
    forge: String,
    /// Where it is cloned from.
    #[arg(value_name = "URL")]
    cloned_from: String,
    #[command(flatten)]
    place: ProjectSelector,
    /// Its name there; taken from the address when it is left out.
    #[arg(long, value_name = "OWNER/NAME")]
    repository: Option<String>,
    /// The branch that work starts from and that pull requests are for.
    #[arg(long, default_value = "main")]
    branch: String,
    /// Where the forge's API is; the usual place when it is left out.
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// Issues with this label become tasks.
    #[arg(long)]
    label: Option<String>,
    /// Issues that are assigned to the account of the token become tasks.
    #[arg(long)]
    assigned: bool,
    /// Also issues of people who may not write to the repository.
    #[arg(long)]
    from_anyone: bool,
    /// How often it is looked at, 10 to 86400.
    #[arg(long, value_name = "SECONDS")]
    poll_seconds: Option<u32>,
    /// Does not ask the forge now whether all works.
    #[arg(long)]
    no_check: bool,
    /// Reads the token from standard input, its first line. Without one, the token that is there stays.
    #[arg(long)]
    token_stdin: bool,
    /// Reads what the forge signs its deliveries with from standard input, the line behind the token.
    #[arg(long)]
    webhook_stdin: bool,
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
            Self::Remove(place) => {
                let project = context.require_project(place.project)?;
                context.confirm_action(&format!(
                    "Take the remote of {project} away, with its token?"
                ))?;
                let call = ApiRequest::with_path_params(operations::REMOVE_REMOTE, [&project]);
                context
                    .send_and_confirm(
                        &call,
                        &format!("{project} is connected with no forge any more"),
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

/// The name of a repository, from where it is cloned from.
fn repository_name(url: &str) -> Option<String> {
    let path = url::Url::parse(url).ok()?.path().trim_matches('/').to_owned();
    let name = path.strip_suffix(".git").unwrap_or(&path).to_owned();
    Some(name).filter(|name| name.contains('/'))
}

impl RemoteSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project(self.place.project)?;
        let repository =
            self.repository.or_else(|| repository_name(&self.cloned_from)).ok_or_else(|| {
                CliError::new(CliErrorKind::Usage, "what is the repository called there?")
                    .with_fix("say it with --repository OWNER/NAME")
            })?;
        let ask = SecretPrompt {
            prompt: "Token of the forge (empty: leave it)",
            flag: "--token-stdin",
            stdin: self.token_stdin,
        };
        let token = given::read_optional_secret(context, ask)?;
        let signs = if self.webhook_stdin { Some(given::read_stdin_line()?) } else { None };
        let body = given::without_nulls(json!({
            "forge": self.forge, "url": self.cloned_from, "api": self.api, "repository": repository,
            "default_branch": self.branch,
            "credential": token.as_ref().map(|it| it.expose_secret()),
            "webhook_secret": signs.as_ref().map(|it| it.expose_secret()),
            "intake": { "label": self.label, "assigned_to_bot": self.assigned,
                "allow_untrusted_authors": self.from_anyone },
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
