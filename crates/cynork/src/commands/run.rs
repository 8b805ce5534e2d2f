//! `cynork run`: from words to a change that can be merged, with the person looking on.

mod before;
mod ending;
mod live;
mod repository;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use cynode_wire::{projects::ProjectView, tasks::TaskView};

use self::{
    ending::Ending,
    live::Scene,
    repository::{Brought, Repository},
};
use super::task::{Wish, made, project};
use crate::{
    context::Context,
    failure::Result,
    output::{Form, say},
    terminal::{Paint, Style, first_line},
};

pub use self::ending::SCHEMA;

/// How many files are named that were left behind.
const MOST_NAMED: usize = 5;

/// Asks for work and follows it. `--yes` says yes to the plan; whatever else is asked on the way is still asked.
#[derive(Args)]
#[command(
    after_help = "Example: cynork run \"add a dark mode switch\" --repo . --check 'make test' --budget 2.50\n\
                  Ctrl-C leaves; the work goes on, and `cynork task watch last` comes back to it."
)]
pub(crate) struct Run {
    #[command(flatten)]
    wish: Wish,
    /// The repository to work on; its commits are brought to the installation.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    repo: PathBuf,
    /// The project, by id or name; else that of the repository, which is made if there is none.
    #[arg(long, short)]
    project: Option<String>,
    /// Brings nothing: the work starts from what the project has.
    #[arg(long)]
    as_is: bool,
    /// Comes back as soon as the task was accepted.
    #[arg(long)]
    detach: bool,
    /// Plain lines, nothing that is drawn anew.
    #[arg(long)]
    plain: bool,
}

impl Run {
    pub(crate) async fn run(self, context: &mut Context) -> Result<()> {
        let task = self.begin(context).await?;
        if context.out.form == Form::Quiet {
            say(&task.id.to_string());
        }
        if self.detach {
            return match context.out.form {
                Form::Json => Ending::begun(&task).write(),
                Form::Quiet | Form::Readable => Ok(()),
            };
        }
        Box::pin(follow(context, task, self.plain, Duration::ZERO)).await
    }

    /// Finds or makes the project, brings what it lacks, asks for the task.
    async fn begin(&self, context: &Context) -> Result<TaskView> {
        let out = context.out;
        let tell = |name: &str, words: &str| {
            if out.form == Form::Readable {
                let name = out.paint.dye(Style::Dim, &format!("{name:<9}"));
                say(&format!("  {name} {words}"));
            }
        };
        let wanted = self.wish.read()?;
        let found = Repository::find(&self.repo)?;
        let project = match &found {
            Some(repository) if self.as_is => {
                let (project, _) = repository.project(context, self.project.as_deref()).await?;
                tell("project", &format!("{}, as it is", project.slug));
                project
            }
            Some(repository) => {
                let work = repository.work()?;
                let (project, new) = repository.project(context, self.project.as_deref()).await?;
                tell("project", &told(&project, new));
                let brought = repository.bring(context, &project, &work).await?;
                let commit = short(&work.head);
                tell(
                    "commits",
                    &match brought {
                        Brought::Known => {
                            format!("{} at {commit}, which the project has", work.branch)
                        }
                        Brought::Ahead(head) => {
                            format!(
                                "the project is ahead of {commit}: the work starts at {}",
                                short(&head)
                            )
                        }
                        Brought::Sent(bytes) => {
                            format!("{} at {commit} was brought ({})", work.branch, size(bytes))
                        }
                    },
                );
                if !work.left.is_empty() {
                    let words = format!("{} (not committed, so not taken)", listed(&work.left));
                    tell("left", &out.paint.dye(Style::Yellow, &words));
                }
                project
            }
            None => {
                let named = context.project_at(self.project.clone(), &self.repo).map_err(|failure| {
                    failure.fix("run it in a repository (`git init`), or name a project that has one with --project")
                })?;
                let project = project(context, &named).await?;
                tell("project", &told(&project, false));
                project
            }
        };
        let task = made(context, &wanted.task(project.id, Vec::new())).await?;
        let name = out.paint.dye(Style::Bold, task.name.as_str());
        tell("task", &format!("{name} ({})", task.id));
        let leave = if self.detach { "it goes on without you;" } else { "Ctrl-C leaves;" };
        tell("", &format!("{leave} come back with: cynork task watch {}", task.id));
        Ok(task)
    }
}

/// Follows a task that was asked for before.
pub(crate) async fn watch(context: &Context, task: &TaskView, plain: bool) -> Result<()> {
    if context.out.form == Form::Readable {
        let paint = context.out.paint;
        say(&format!(
            "{} ({})  {}",
            paint.dye(Style::Bold, task.name.as_str()),
            task.id,
            first_line(task.description.as_str())
        ));
    }
    let since = Duration::try_from(now() - task.created_at).unwrap_or_default();
    Box::pin(follow(context, task.clone(), plain, since)).await
}

/// Follows a task to its end, and says what came of it.
async fn follow(context: &Context, task: TaskView, plain: bool, since: Duration) -> Result<()> {
    let id = task.id.to_string();
    let ended = Scene::new(context, task, plain, since).play().await?;
    let ending = Ending::find(context, &id, ended).await?;
    ending.tell(context, if plain { Paint(false) } else { context.out.paint })
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long ago something was, for a person at this machine"
)]
fn now() -> time::OffsetDateTime {
    time::OffsetDateTime::now_utc()
}

fn told(project: &ProjectView, new: bool) -> String {
    let made = if new { ", which was made for this repository" } else { "" };
    format!("{}{made}", project.slug)
}

fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

fn size(bytes: usize) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST_NAMED) {
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
        assert_eq!(listed(&names(2)), "f0, f1");
        assert_eq!(listed(&names(7)), "f0, f1, f2, f3, f4 and 2 more");
    }

    #[test]
    fn sizes_are_told_as_people_do() {
        assert_eq!([size(900), size(12_345), size(45_000_000)], ["900 bytes", "12 kB", "45 MB"]);
    }
}
