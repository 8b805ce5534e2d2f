//! `cynork pr`: what tasks brought, offered to people.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use cynode_core::delivery::ReviewVerdict;
use cynode_wire::delivery::{
    ChangedFiles, CommentView, DiffView, PullRequestDetail, PullRequestView, Reviewed,
};
use serde_json::{Value, json};

use crate::{
    answers::{Pages, whole},
    client::{Call, MERGING},
    context::Context,
    draw,
    failure::{Failure, Kind, Result},
    given,
    look::Look,
    names::In,
    operations,
    output::record,
    terminal::{Style, first_line},
};

#[derive(Subcommand)]
pub(crate) enum Pr {
    /// Lists the pull requests of a project, newest first.
    #[command(after_help = "Example: cynork pr list --project web --state open")]
    List(List),
    /// Shows a pull request with its checks, what was said and what people think.
    #[command(after_help = "Example: cynork pr show 3 --project web")]
    Show(Which),
    /// Lists the files that a pull request would change.
    #[command(after_help = "Example: cynork pr files 3 --project web")]
    Files(Which),
    /// Shows what a pull request would change.
    #[command(after_help = "Example: cynork pr diff 3 --project web --path src/main.rs")]
    Diff {
        #[command(flatten)]
        which: Which,
        /// Only of this file.
        #[arg(long)]
        path: Option<String>,
    },
    /// Says something about a pull request.
    #[command(
        after_help = "Example: cynork pr comment 3 --project web --message \"Why not a map?\" --path src/main.rs --line 12"
    )]
    Comment(Comment),
    /// Judges a pull request. What asks for something is given to a task that goes on with it.
    #[command(
        after_help = "Example: cynork pr review 3 changes --project web --message \"Say what it does.\""
    )]
    Review(Review),
    /// Takes a pull request that lives here over into its base branch.
    #[command(after_help = "Example: cynork pr merge 3 --project web")]
    Merge(Which),
    /// Closes a pull request that is not wanted any more.
    #[command(after_help = "Example: cynork pr close 3 --project web")]
    Close(Which),
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    place: In,
    /// Only in this state.
    #[arg(long, value_parser = ["opening", "open", "merged", "closed", "failed"])]
    state: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

/// One pull request.
#[derive(Args)]
pub(crate) struct Which {
    /// Its id, or its number in the project.
    #[arg(value_name = "PULL_REQUEST")]
    pull_request: String,
    #[command(flatten)]
    place: In,
}

#[derive(Args)]
pub(crate) struct Comment {
    #[command(flatten)]
    which: Which,
    /// What is to be said; `@FILE` takes it from a file, `@-` from standard input.
    #[arg(long, short, value_name = "TEXT")]
    message: String,
    /// The file that it is about.
    #[arg(long)]
    path: Option<String>,
    /// The line of that file, as it is offered.
    #[arg(long, requires = "path")]
    line: Option<u32>,
}

#[derive(Args)]
pub(crate) struct Review {
    #[command(flatten)]
    which: Which,
    /// What you think.
    #[arg(value_parser = ["approve", "changes", "comment"])]
    verdict: String,
    /// Why, or what should be different; `@FILE` takes it from a file, `@-` from standard input.
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// A remark on a line of a file; may be repeated.
    #[arg(long, value_name = "PATH:LINE=TEXT", value_parser = remark)]
    on: Vec<Value>,
    /// The commit that you looked at; refused when another is offered by now.
    #[arg(long)]
    commit: Option<String>,
}

/// Reads `PATH:LINE=TEXT`.
fn remark(text: &str) -> std::result::Result<Value, String> {
    let wrong = "write it like src/main.rs:12=Why not a map?";
    let (place, body) = text.split_once('=').ok_or(wrong)?;
    let (path, line) = place.rsplit_once(':').ok_or(wrong)?;
    let line: u32 = line.parse().map_err(|_| wrong)?;
    Ok(json!({ "path": path, "line": line, "body": body }))
}

impl Which {
    /// Its id; a number is looked for in the project.
    async fn id(&self, context: &Context) -> Result<String> {
        let named = self.pull_request.trim_start_matches('#');
        let Ok(number) = named.parse::<i64>() else { return Ok(named.to_owned()) };
        let project = context.project(self.place.project.clone())?;
        let list = whole(context, &Call::to(operations::LIST_PULL_REQUESTS, [&project])).await?;
        let mut items = list["items"].as_array().into_iter().flatten();
        let found = items.find(|it| it["number"] == number);
        found.and_then(|it| it["id"].as_str()).map(str::to_owned).ok_or_else(|| {
            // An id that nobody typed says nothing to anybody.
            let whose = if project.starts_with("prj_") { "the project" } else { project.as_str() };
            Failure::new(Kind::NotFound, format!("{whose} has no pull request {number}"))
                .fix("`cynork pr list --all` names those that there are")
        })
    }
}

impl Pr {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List(list) => list.run(context).await,
            Self::Show(which) => {
                let call = Call::to(operations::GET_PULL_REQUEST, [which.id(context).await?]);
                let value = context.ask(&call).await?;
                context.show(
                    &value,
                    |it: &PullRequestDetail| vec![it.pull_request.id.to_string()],
                    |it, look| whole_story(it, context.client.base(), look),
                )
            }
            Self::Files(which) => {
                let call = Call::to(operations::PULL_REQUEST_FILES, [which.id(context).await?]);
                let value = context.ask(&call).await?;
                context.show(
                    &value,
                    |it: &ChangedFiles| it.files.iter().map(|it| it.path.clone()).collect(),
                    |it, look| draw::files(it, look.paint).join("\n"),
                )
            }
            Self::Diff { which, path } => {
                let call = Call::to(operations::DIFF_PULL_REQUEST, [which.id(context).await?])
                    .query("path", path);
                let value = context.ask(&call).await?;
                context.show(
                    &value,
                    |it: &DiffView| vec![it.text.clone()],
                    |it, look| {
                        let mut text = draw::diff(&it.text, look.paint).join("\n");
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
                let id = which.id(context).await?;
                context.sure(&format!("Merge the pull request {}?", which.pull_request))?;
                let call = Call::to(operations::MERGE_PULL_REQUEST, [id]);
                let value: Value = context.client.send_slowly(&call, MERGING).await?;
                ended(context, &value)
            }
            Self::Close(which) => {
                let id = which.id(context).await?;
                context.sure(&format!("Close the pull request {}?", which.pull_request))?;
                ended(context, &context.ask(&Call::to(operations::CLOSE_PULL_REQUEST, [id])).await?)
            }
        }
    }
}

/// Says what became of a pull request.
fn ended(context: &Context, value: &Value) -> Result<()> {
    context.show(
        value,
        |it: &PullRequestView| vec![it.id.to_string()],
        |it, look| {
            let tick = look.paint.dye(Style::Green, "✓");
            let state = look.state(it.state.as_str());
            format!("{tick} #{} “{}” is {state}", it.number, it.title)
        },
    )
}

/// Where people look at it: what lives here is below our own address.
fn address(base: &str, url: &str) -> String {
    if url.starts_with('/') { format!("{base}{url}") } else { url.to_owned() }
}

impl List {
    async fn run(self, context: &Context) -> Result<()> {
        let project = context.project(self.place.project)?;
        let call = Call::to(operations::LIST_PULL_REQUESTS, [project]).query("state", self.state);
        context
            .list(
                &call,
                Some(&self.pages),
                |it: &PullRequestView| it.id.to_string(),
                ["number", "state", "title", "branch", "changed", "where"],
                |it, look| {
                    [
                        look.bold(&format!("#{}", it.number)),
                        look.state(it.state.as_str()),
                        it.title.clone(),
                        it.branch.clone(),
                        look.when(it.updated_at),
                        if it.url.starts_with('/') { "here".to_owned() } else { it.url.clone() },
                    ]
                },
            )
            .await
    }
}

/// A pull request with everything about it.
fn whole_story(it: &PullRequestDetail, base: &str, look: &Look) -> String {
    let request = &it.pull_request;
    let mut text = record(
        look.paint,
        &[
            ("number", look.bold(&format!("#{}", request.number))),
            ("title", request.title.clone()),
            ("state", look.state(request.state.as_str())),
            ("from", format!("{} into {}", request.branch, request.base_branch)),
            ("commit", request.head_commit.clone().unwrap_or_default()),
            ("where", address(base, &request.url)),
            ("changed", look.when(request.updated_at)),
            ("failure", request.failure.clone().unwrap_or_default()),
            ("task", request.task_id.to_string()),
            ("id", request.id.to_string()),
        ],
    );
    let _ = write!(text, "\n{}\n", request.body.trim());
    for check in &it.checks {
        let summary = first_line(check.summary.as_deref().unwrap_or_default());
        let _ = write!(text, "\n{}  {}  {summary}", look.state(&check.state), check.name);
    }
    for review in &it.reviews {
        let old = if review.current { "" } else { " of an older commit" };
        let verdict = match review.verdict {
            ReviewVerdict::Approve => look.state("approved"),
            ReviewVerdict::Changes => look.state("changed") + " wanted",
            ReviewVerdict::Comment => "a comment".to_owned(),
        };
        let note = review.note.as_deref().unwrap_or_default();
        let _ = write!(text, "\n{verdict}{old}, {}: {note}", look.when(review.created_at));
    }
    for comment in &it.comments {
        let _ = write!(text, "\n{}", said(comment, look));
    }
    for task in &it.follow_ups {
        let _ = write!(text, "\nfollow-up {}: task {}, {}", task.number, task.task_id, task.source);
    }
    text
}

fn said(comment: &CommentView, look: &Look) -> String {
    let who = match (comment.author_role, comment.author_id) {
        (Some(role), _) => role.as_str().to_owned(),
        (None, Some(user)) => user.to_string(),
        (None, None) => "somebody".to_owned(),
    };
    let line = comment.line.map(|line| format!(":{line}")).unwrap_or_default();
    let place = comment.path.as_ref().map(|path| format!(" at {path}{line}")).unwrap_or_default();
    let head = look.dim(&format!("{who}{place}, {}:", look.when(comment.created_at)));
    format!("{head} {}", comment.body)
}

impl Comment {
    async fn run(self, context: &Context) -> Result<()> {
        let id = self.which.id(context).await?;
        let body = given::words(&self.message)?;
        let body = given::said(json!({ "body": body, "path": self.path, "line": self.line }));
        let call = Call::to(operations::COMMENT_PULL_REQUEST, [id]).body(&body);
        context
            .told(&call, |it: &CommentView| it.id.to_string(), |_, _| "it is said".to_owned())
            .await
    }
}

impl Review {
    async fn run(self, context: &Context) -> Result<()> {
        let id = self.which.id(context).await?;
        let note = self.message.as_deref().map(given::words).transpose()?;
        let body = given::said(json!({ "verdict": self.verdict, "note": note, "comments": self.on,
            "commit": self.commit }));
        let call = Call::to(operations::REVIEW_PULL_REQUEST, [id]).body(&body);
        let sentence = |it: &Reviewed, _: &Look| match (&it.follow_up, &it.no_follow_up) {
            (Some(task), _) => format!("task {task} goes on with it"),
            (None, Some(why)) => format!("it is noted; nobody goes on with it: {why}"),
            (None, None) => "it is noted".to_owned(),
        };
        context.told(&call, |it: &Reviewed| it.review.id.to_string(), sentence).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_names_a_line_and_says_something() {
        assert_eq!(
            remark("a:b.rs:12=x=1").unwrap(),
            json!({ "path": "a:b.rs", "line": 12, "body": "x=1" })
        );
        for wrong in ["a.rs=x", "a.rs:x=y", "a.rs:1"] {
            assert!(remark(wrong).is_err(), "{wrong}");
        }
    }
}
