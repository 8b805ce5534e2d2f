//! `cynork run`: from a description to a change that can be merged, with live progress.

mod before;
mod ending;
mod live;
mod repository;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use cynode_core::{budget::Currency, workflow::handoffs::PlanAnswer};
use cynode_wire::tasks::{CreateTask, TaskView, projects::ProjectView};

use self::{
    ending::TaskOutcome,
    live::TaskFollower,
    repository::{ImportOutcome, WorkingCopy},
};
use super::{
    readiness,
    task::{TaskRequestArgs, budget_text, create_task, fetch_project},
};
use crate::{
    client::ApiClient,
    context::CliContext,
    failure::{CliErrorKind, Result},
    output::{CliOutputFormat, print_line},
    terminal::{Colorizer, TextStyle, first_line},
};

pub use self::ending::RUN_OUTPUT_SCHEMA;

/// Maximum number of uncommitted files that are named.
const MAX_LISTED_FILES: usize = 5;

/// Request work and follow it. `--yes` approves the plan; other questions are still asked.
#[derive(Args)]
#[command(
    after_help = "Example: cynork run \"add a dark mode switch\" --repo . --check 'make test' --budget 2.50\n\
                  Ctrl-C detaches; the work goes on, and `cynork task watch last` follows it again."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    wish: TaskRequestArgs,
    /// Repository to work on; its commits are imported into the project.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    repo: PathBuf,
    /// Project, by id or name; defaults to the project of the repository, which is created if there is none.
    #[arg(long, short)]
    project: Option<String>,
    /// Import nothing; start from the project's head.
    #[arg(long)]
    no_import: bool,
    /// Create the task even if nothing can run it now; it waits.
    #[arg(long)]
    force: bool,
    /// Return as soon as the task is accepted.
    #[arg(long)]
    detach: bool,
    /// Print plain lines without live updates.
    #[arg(long)]
    plain: bool,
}

impl RunArgs {
    pub(crate) async fn run(self, context: &mut CliContext) -> Result<()> {
        let task = self.start_task(context).await?;
        if context.out.form == CliOutputFormat::Quiet {
            print_line(&task.id.to_string());
        }
        if self.detach {
            return match context.out.form {
                CliOutputFormat::Json => TaskOutcome::for_detached_task(&task).write_json(),
                CliOutputFormat::Quiet | CliOutputFormat::Readable => Ok(()),
            };
        }
        Box::pin(follow_task(context, task, self.plain, Duration::ZERO)).await
    }

    /// Checks whether the task could run.
    async fn check_readiness(
        &self,
        context: &CliContext,
        project: &ProjectView,
        tell: &impl Fn(&str, &str),
    ) -> Result<()> {
        match readiness::check_run_readiness(context, project.id).await {
            Ok(warnings) => warnings.iter().for_each(|warning| tell("warning", warning)),
            Err(failure) if self.force && failure.kind == CliErrorKind::Conflict => {
                let words = context.out.paint.apply_style(TextStyle::Yellow, &failure.detail);
                tell("warning", &words);
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Finds or creates the project, uploads missing commits, creates the task.
    async fn start_task(&self, context: &CliContext) -> Result<TaskView> {
        let out = context.out;
        let tell = |name: &str, words: &str| {
            if out.form == CliOutputFormat::Readable {
                let name = out.paint.apply_style(TextStyle::Dim, &format!("{name:<9}"));
                print_line(&format!("  {name} {words}"));
            }
        };
        let wanted = self.wish.to_task_draft()?;
        let found = WorkingCopy::find_repository(&self.repo)?;
        let project = match &found {
            Some(repository) if self.no_import => {
                let (project, _) =
                    repository.find_or_create_project(context, self.project.as_deref()).await?;
                tell("project", &format!("{}, as it is", project.slug));
                self.check_readiness(context, &project, &tell).await?;
                project
            }
            Some(repository) => {
                let work = repository.checked_out_branch()?;
                let (project, new) =
                    repository.find_or_create_project(context, self.project.as_deref()).await?;
                tell("project", &describe_project(&project, new));
                self.check_readiness(context, &project, &tell).await?;
                let brought = repository.import_commits(context, &project, &work).await?;
                let commit = short_commit(&work.head);
                tell(
                    "commits",
                    &match brought {
                        ImportOutcome::Known => {
                            format!("{} at {commit}, which the project has", work.branch)
                        }
                        ImportOutcome::Ahead(head) => {
                            format!(
                                "the project is ahead of {commit}: the work starts at {}",
                                short_commit(&head)
                            )
                        }
                        ImportOutcome::Sent(bytes) => {
                            format!(
                                "{} at {commit} was brought ({})",
                                work.branch,
                                format_size(bytes)
                            )
                        }
                    },
                );
                if !work.left.is_empty() {
                    let words = format!("{} (not committed, so not taken)", join_names(&work.left));
                    tell("left", &out.paint.apply_style(TextStyle::Yellow, &words));
                }
                project
            }
            None => {
                let named = context.require_project_at(self.project.clone(), &self.repo).map_err(|failure| {
                    failure.with_fix("run it in a repository (`git init`), or name a project that has one with --project")
                })?;
                let project = fetch_project(context, &named).await?;
                tell("project", &describe_project(&project, false));
                self.check_readiness(context, &project, &tell).await?;
                project
            }
        };
        context.record_project(&project);
        let default_limit = !wanted.has_limit();
        // The approval in advance is stored with the task, so that it holds whichever client follows.
        let approve_plan = context.yes.then_some(false);
        let wanted = CreateTask { approve_plan, ..wanted.into_create_task(project.id, Vec::new()) };
        let task = create_task(context, &wanted).await?;
        context.fetch_currency().await;
        let name = out.paint.apply_style(TextStyle::Bold, task.name.as_str());
        tell("task", &format!("{name} ({})", task.id));
        let limit = budget_text(&task, context.currency());
        let from = if default_limit && task.budget.max_cost_micros.is_some() {
            " (the installation's default; --budget sets another)"
        } else {
            ""
        };
        tell("limit", &format!("{limit}{from}"));
        let leave = if self.detach { "it goes on without you;" } else { "Ctrl-C leaves;" };
        tell(
            "",
            &format!("{leave} come back with: cynork task watch {}", context.task_reference(&task)),
        );
        Ok(task)
    }
}

/// Fetches the preview that a person sees before approving a plan: workers, models, possible cost, final checks.
pub(crate) async fn fetch_plan_preview(
    client: &ApiClient,
    currency: Currency,
    task: &TaskView,
    planned: &PlanAnswer,
) -> Result<Vec<(&'static str, String)>> {
    Ok(before::PlanPreview::fetch_for_task(client, currency, task, planned).await?.to_lines())
}

/// Follows an existing task.
pub(crate) async fn watch_task(context: &CliContext, task: &TaskView, plain: bool) -> Result<()> {
    if context.out.form == CliOutputFormat::Readable {
        let paint = context.out.paint;
        print_line(&format!(
            "{} ({})  {}",
            paint.apply_style(TextStyle::Bold, task.name.as_str()),
            task.id,
            first_line(task.description.as_str())
        ));
    }
    let since = Duration::try_from(current_time() - task.created_at).unwrap_or_default();
    Box::pin(follow_task(context, task.clone(), plain, since)).await
}

/// Follows a task to its end, and reports its outcome.
async fn follow_task(
    context: &CliContext,
    task: TaskView,
    plain: bool,
    since: Duration,
) -> Result<()> {
    let id = task.id.to_string();
    let ended = TaskFollower::new(context, task, plain, since).follow_to_end().await?;
    let ending = TaskOutcome::fetch_outcome(context, &id, ended).await?;
    ending.report_outcome(context, if plain { Colorizer(false) } else { context.out.paint })
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long ago something was, for a person at this machine"
)]
fn current_time() -> time::OffsetDateTime {
    time::OffsetDateTime::now_utc()
}

fn describe_project(project: &ProjectView, new: bool) -> String {
    let made = if new { ", which was made for this repository" } else { "" };
    format!("{}{made}", project.slug)
}

fn short_commit(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

fn format_size(bytes: usize) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

fn join_names(names: &[String]) -> String {
    let shown =
        names.iter().take(MAX_LISTED_FILES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_LISTED_FILES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_files_are_named_and_the_rest_is_counted() {
        let names = |count: usize| (0..count).map(|at| format!("f{at}")).collect::<Vec<_>>();
        assert_eq!(join_names(&names(2)), "f0, f1");
        assert_eq!(join_names(&names(7)), "f0, f1, f2, f3, f4 and 2 more");
    }

    #[test]
    fn sizes_are_told_as_people_do() {
        assert_eq!(
            [format_size(900), format_size(12_345), format_size(45_000_000)],
            ["900 bytes", "12 kB", "45 MB"]
        );
    }
}
