//! `cynork pr`: pull requests of tasks.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use cynode_core::delivery::ReviewVerdict;
use cynode_wire::delivery::{
    ChangedFiles, CommentView, DiffView, PullRequestDetail, PullRequestView, ReviewReceipt,
};
use serde_json::{Value, json};

use crate::{
    answers::{PageArgs, fetch_all_pages},
    client::{ApiRequest, MERGE_TIMEOUT},
    context::CliContext,
    draw,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input,
    names::ProjectSelector,
    operations,
    output::render_record,
    terminal::{TextStyle, first_line},
};

#[derive(Subcommand)]
pub(crate) enum PullRequestCommand {
    /// List the pull requests of a project, newest first.
    #[command(after_help = "Example: cynork pr list --project web --state open")]
    List(PullRequestListArgs),
    /// Show a pull request with its checks, comments and reviews.
    #[command(after_help = "Example: cynork pr show 3 --project web")]
    Show(PullRequestSelector),
    /// List the files that a pull request changes.
    #[command(after_help = "Example: cynork pr files 3 --project web")]
    Files(PullRequestSelector),
    /// Show the diff of a pull request.
    #[command(after_help = "Example: cynork pr diff 3 --project web --path src/main.rs")]
    Diff {
        #[command(flatten)]
        which: PullRequestSelector,
        /// Filter by file.
        #[arg(long)]
        path: Option<String>,
    },
    /// Comment on a pull request.
    #[command(
        after_help = "Example: cynork pr comment 3 --project web --message \"Why not a map?\" --path src/main.rs --line 12"
    )]
    Comment(PullRequestCommentArgs),
    /// Review a pull request; requested changes start a follow-up task.
    #[command(
        after_help = "Example: cynork pr review 3 changes --project web --message \"Say what it does.\""
    )]
    Review(PullRequestReviewArgs),
    /// Merge a local pull request into its base branch.
    #[command(after_help = "Example: cynork pr merge 3 --project web")]
    Merge(PullRequestSelector),
    /// Close a pull request without merging it.
    #[command(after_help = "Example: cynork pr close 3 --project web")]
    Close(PullRequestSelector),
}

#[derive(Args)]
pub(crate) struct PullRequestListArgs {
    #[command(flatten)]
    place: ProjectSelector,
    /// Filter by state.
    #[arg(long, value_parser = ["opening", "open", "merged", "closed", "failed"])]
    state: Option<String>,
    #[command(flatten)]
    pages: PageArgs,
}

/// One pull request.
#[derive(Args)]
pub(crate) struct PullRequestSelector {
    /// Pull request, by id or by number in the project.
    #[arg(value_name = "PULL_REQUEST")]
    pull_request: String,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct PullRequestCommentArgs {
    #[command(flatten)]
    which: PullRequestSelector,
    /// Text of the comment; `@FILE` reads a file, `@-` reads standard input.
    #[arg(long, short, value_name = "TEXT")]
    message: String,
    /// File to comment on.
    #[arg(long)]
    path: Option<String>,
    /// Line of the new version of that file.
    #[arg(long, requires = "path")]
    line: Option<u32>,
}

#[derive(Args)]
pub(crate) struct PullRequestReviewArgs {
    #[command(flatten)]
    which: PullRequestSelector,
    /// Verdict of the review.
    #[arg(value_parser = ["approve", "changes", "comment"])]
    verdict: String,
    /// Reason or requested changes; `@FILE` reads a file, `@-` reads standard input.
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Comment on a line of a file; may be repeated.
    #[arg(long, value_name = "PATH:LINE=TEXT", value_parser = parse_line_comment)]
    line_comment: Vec<Value>,
    /// Commit that you reviewed; the server refuses the review if the head has moved.
    #[arg(long)]
    commit: Option<String>,
}

/// Parses `PATH:LINE=TEXT`.
fn parse_line_comment(text: &str) -> std::result::Result<Value, String> {
    let wrong = "write it like src/main.rs:12=Why not a map?";
    let (place, body) = text.split_once('=').ok_or(wrong)?;
    let (path, line) = place.rsplit_once(':').ok_or(wrong)?;
    let line: u32 = line.parse().map_err(|_| wrong)?;
    Ok(json!({ "path": path, "line": line, "body": body }))
}

impl PullRequestSelector {
    /// Resolves the id; a number is looked up in the project.
    async fn resolve_pull_request_id(&self, context: &CliContext) -> Result<String> {
        let named = self.pull_request.trim_start_matches('#');
        let Ok(number) = named.parse::<i64>() else { return Ok(named.to_owned()) };
        let project = context.require_project(self.place.project.clone())?;
        let list = fetch_all_pages(
            context,
            &ApiRequest::with_path_params(operations::LIST_PULL_REQUESTS, [&project]),
        )
        .await?;
        let mut items = list["items"].as_array().into_iter().flatten();
        let found = items.find(|it| it["number"] == number);
        found.and_then(|it| it["id"].as_str()).map(str::to_owned).ok_or_else(|| {
            // An id that the user did not type is not helpful in a message.
            let whose = if project.starts_with("prj_") { "the project" } else { project.as_str() };
            CliError::new(CliErrorKind::NotFound, format!("{whose} has no pull request {number}"))
                .with_fix("`cynork pr list --all` names those that there are")
        })
    }
}

impl PullRequestCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(list) => list.run(context).await,
            Self::Show(which) => {
                let call = ApiRequest::with_path_params(
                    operations::GET_PULL_REQUEST,
                    [which.resolve_pull_request_id(context).await?],
                );
                let value = context.send_request(&call).await?;
                context.show_answer(
                    &value,
                    |it: &PullRequestDetail| vec![it.pull_request.id.to_string()],
                    render_pull_request,
                )
            }
            Self::Files(which) => {
                let call = ApiRequest::with_path_params(
                    operations::PULL_REQUEST_FILES,
                    [which.resolve_pull_request_id(context).await?],
                );
                let value = context.send_request(&call).await?;
                context.show_answer(
                    &value,
                    |it: &ChangedFiles| it.files.iter().map(|it| it.path.clone()).collect(),
                    |it, look| draw::render_changed_files(it, look.paint).join("\n"),
                )
            }
            Self::Diff { which, path } => {
                let call = ApiRequest::with_path_params(
                    operations::DIFF_PULL_REQUEST,
                    [which.resolve_pull_request_id(context).await?],
                )
                .with_query("path", path);
                let value = context.send_request(&call).await?;
                context.show_answer(
                    &value,
                    |it: &DiffView| vec![it.text.clone()],
                    |it, look| {
                        let mut text = draw::render_diff(&it.text, look.paint).join("\n");
                        if it.truncated {
                            text.push_str(
                                "\n… there is more than is shown; name a file with --path",
                            );
                        }
                        text
                    },
                )
            }
            Self::Comment(comment) => comment.run(context).await,
            Self::Review(review) => review.run(context).await,
            Self::Merge(which) => {
                let id = which.resolve_pull_request_id(context).await?;
                context
                    .confirm_action(&format!("Merge the pull request {}?", which.pull_request))?;
                let call = ApiRequest::with_path_params(operations::MERGE_PULL_REQUEST, [id]);
                let value: Value = context.client.send_with_timeout(&call, MERGE_TIMEOUT).await?;
                show_pull_request_state(context, &value)
            }
            Self::Close(which) => {
                let id = which.resolve_pull_request_id(context).await?;
                context
                    .confirm_action(&format!("Close the pull request {}?", which.pull_request))?;
                show_pull_request_state(
                    context,
                    &context
                        .send_request(&ApiRequest::with_path_params(
                            operations::CLOSE_PULL_REQUEST,
                            [id],
                        ))
                        .await?,
                )
            }
        }
    }
}

/// Shows the new state of a pull request.
fn show_pull_request_state(context: &CliContext, value: &Value) -> Result<()> {
    context.show_answer(
        value,
        |it: &PullRequestView| vec![it.id.to_string()],
        |it, look| {
            let tick = look.paint.apply_style(TextStyle::Green, "✓");
            let state = look.style_state(it.state.as_str());
            format!("{tick} #{} “{}” is {state}", it.number, it.title)
        },
    )
}

/// Returns the page of a pull request; one that is hosted here has none.
fn page_location(url: &str) -> String {
    if url.starts_with('/') { "here".to_owned() } else { url.to_owned() }
}

impl PullRequestListArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project(self.place.project)?;
        let call = ApiRequest::with_path_params(operations::LIST_PULL_REQUESTS, [project])
            .with_query("state", self.state);
        context
            .show_list(
                &call,
                Some(&self.pages),
                |it: &PullRequestView| it.id.to_string(),
                ["number", "state", "title", "branch", "changed", "where"],
                |it, look| {
                    [
                        look.style_bold(&format!("#{}", it.number)),
                        look.style_state(it.state.as_str()),
                        it.title.clone(),
                        it.branch.clone(),
                        look.format_relative_time(it.updated_at),
                        page_location(&it.url),
                    ]
                },
            )
            .await
    }
}

/// Renders a pull request with all its details.
fn render_pull_request(it: &PullRequestDetail, look: &ValueFormatter) -> String {
    let request = &it.pull_request;
    let mut text = render_record(
        look.paint,
        &[
            ("number", look.style_bold(&format!("#{}", request.number))),
            ("title", request.title.clone()),
            ("state", look.style_state(request.state.as_str())),
            ("from", format!("{} into {}", request.branch, request.base_branch)),
            ("commit", request.head_commit.clone().unwrap_or_default()),
            ("where", page_location(&request.url)),
            ("changed", look.format_relative_time(request.updated_at)),
            ("failure", request.failure.clone().unwrap_or_default()),
            ("task", request.task_id.to_string()),
            ("id", request.id.to_string()),
        ],
    );
    let _ = write!(text, "\n{}\n", request.body.trim());
    for check in &it.checks {
        let summary = first_line(check.summary.as_deref().unwrap_or_default());
        let _ = write!(text, "\n{}  {}  {summary}", look.style_state(&check.state), check.name);
    }
    for review in &it.reviews {
        let old = if review.current { "" } else { " of an older commit" };
        let verdict = match review.verdict {
            ReviewVerdict::Approve => look.style_state("approved"),
            ReviewVerdict::Changes => look.style_state("changed") + " wanted",
            ReviewVerdict::Comment => "a comment".to_owned(),
        };
        let note = review.note.as_deref().unwrap_or_default();
        let _ = write!(
            text,
            "\n{verdict}{old}, {}: {note}",
            look.format_relative_time(review.created_at)
        );
    }
    for comment in &it.comments {
        let _ = write!(text, "\n{}", render_comment(comment, look));
    }
    for task in &it.follow_ups {
        let _ = write!(text, "\nfollow-up {}: task {}, {}", task.number, task.task_id, task.source);
    }
    text
}

fn render_comment(comment: &CommentView, look: &ValueFormatter) -> String {
    let who = match (comment.author_role, comment.author_id) {
        (Some(role), _) => role.as_str().to_owned(),
        (None, Some(user)) => user.to_string(),
        (None, None) => "somebody".to_owned(),
    };
    let line = comment.line.map(|line| format!(":{line}")).unwrap_or_default();
    let place = comment.path.as_ref().map(|path| format!(" at {path}{line}")).unwrap_or_default();
    let head = look
        .style_dim(&format!("{who}{place}, {}:", look.format_relative_time(comment.created_at)));
    format!("{head} {}", comment.body)
}

impl PullRequestCommentArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.which.resolve_pull_request_id(context).await?;
        let body = input::read_text_argument(&self.message)?;
        let body =
            input::without_nulls(json!({ "body": body, "path": self.path, "line": self.line }));
        let call = ApiRequest::with_path_params(operations::COMMENT_PULL_REQUEST, [id])
            .with_json_body(&body);
        context
            .show_outcome(
                &call,
                |it: &CommentView| it.id.to_string(),
                |_, _| "it is said".to_owned(),
            )
            .await
    }
}

impl PullRequestReviewArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.which.resolve_pull_request_id(context).await?;
        let note = self.message.as_deref().map(input::read_text_argument).transpose()?;
        let body = input::without_nulls(
            json!({ "verdict": self.verdict, "note": note, "comments": self.line_comment,
            "commit": self.commit }),
        );
        let call = ApiRequest::with_path_params(operations::REVIEW_PULL_REQUEST, [id])
            .with_json_body(&body);
        let sentence =
            |it: &ReviewReceipt, _: &ValueFormatter| match (&it.follow_up, &it.no_follow_up) {
                (Some(task), _) => format!("task {task} goes on with it"),
                (None, Some(why)) => format!("it is noted; nobody goes on with it: {why}"),
                (None, None) => "it is noted".to_owned(),
            };
        context.show_outcome(&call, |it: &ReviewReceipt| it.review.id.to_string(), sentence).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_names_a_line_and_says_something() {
        assert_eq!(
            parse_line_comment("a:b.rs:12=x=1").unwrap(),
            json!({ "path": "a:b.rs", "line": 12, "body": "x=1" })
        );
        for wrong in ["a.rs=x", "a.rs:x=y", "a.rs:1"] {
            assert!(parse_line_comment(wrong).is_err(), "{wrong}");
        }
    }
}
