//! `cynork task`: tasks and their results.

mod create;
mod logs;
mod show;
mod steer;

use std::path::Path;

use clap::{Args, Subcommand};
use cynode_core::{ids::TaskId, tasks::TaskStateName};
use cynode_wire::{
    identity::accounts::MeView,
    tasks::{TaskView, projects::ProjectView},
};

pub(crate) use self::{
    create::{TaskDraft, TaskRequestArgs, create_task},
    show::{budget_text, fetch_newest_plan, fetch_timeline},
    steer::{
        RetryAction, build_retry_task, retry_action, send_answer, send_approval, send_instruction,
    },
};
use super::run;
use crate::{
    answers::PageArgs,
    client::{ApiRequest, ListResponse},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    operations,
    output::{CliOutputFormat, print_stderr_line},
    terminal::{Colorizer, TextStyle, first_line},
};

/// Default number of listed tasks.
const DEFAULT_LIST_LIMIT: u32 = 20;

/// Maximum number of pages that are searched for the person's newest task.
const MAX_SEARCH_PAGES: usize = 20;

#[derive(Subcommand)]
pub(crate) enum TaskCommand {
    /// Create a task and return at once.
    #[command(
        after_help = "Example: cynork task create \"Add a dark mode switch\" --project web --check 'make test'"
    )]
    Create(create::TaskCreateArgs),
    /// List the tasks you may see, newest first.
    #[command(after_help = "Example: cynork task list --project web --state running")]
    List(TaskListArgs),
    /// Show a task.
    #[command(after_help = "Example: cynork task show last")]
    Show(TaskSelector),
    /// Follow a task until it ends, and answer its questions.
    #[command(after_help = "Example: cynork task watch last")]
    Watch(TaskWatchArgs),
    /// Show the plan as a tree, with the state of each unit.
    #[command(after_help = "Example: cynork task plan last --mermaid")]
    Plan(show::TaskPlanArgs),
    /// Show the timeline of a task, step by step.
    #[command(after_help = "Example: cynork task timeline fix-login --project web")]
    Timeline(show::TaskTimelineArgs),
    /// Show the logs of a task: agent messages, tool calls and program output.
    #[command(after_help = "Example: cynork task logs last --follow --unit review")]
    Logs(logs::TaskLogsArgs),
    /// Show the diff of a task; not at a terminal, in the format of `git apply`.
    #[command(after_help = "Example: cynork task diff last --stat")]
    Diff(show::TaskDiffShowArgs),
    /// Show the results of independent checks and the findings of reviews.
    #[command(after_help = "Example: cynork task evidence last")]
    Evidence(TaskSelector),
    /// Run the checks of an ended task again, on the commits that it left.
    #[command(after_help = "Example: cynork task check last")]
    Check(TaskSelector),
    /// Estimate the cost and the duration of a task from completed tasks; nothing is created.
    #[command(
        after_help = "Example: cynork task estimate \"Add a dark mode switch\" --project web"
    )]
    Estimate(create::TaskEstimateArgs),
    /// Show the cost of a task by step and model, and its budget.
    #[command(after_help = "Example: cynork task cost last --json")]
    Cost(TaskSelector),
    /// Show the reports of agents; a report is an unverified claim.
    #[command(after_help = "Example: cynork task reports last")]
    Reports(TaskSelector),
    /// Approve the plan of a task, or reject it with a reason.
    #[command(
        after_help = "Example: cynork task approve last\n         cynork task approve last --reject \"leave the database alone\""
    )]
    Approve(steer::TaskApproveArgs),
    /// Answer the question that a task waits for.
    #[command(after_help = "Example: cynork task answer last \"the second one\"")]
    Answer(steer::TaskAnswerArgs),
    /// Pause a task at its next step.
    #[command(after_help = "Example: cynork task pause last")]
    Pause(steer::OptionalInstructionArgs),
    /// Resume a paused task.
    #[command(after_help = "Example: cynork task resume last")]
    Resume(steer::OptionalInstructionArgs),
    /// Revise the plan of a task with your feedback.
    #[command(after_help = "Example: cynork task revise last \"tests first\"")]
    Revise(steer::InstructionArgs),
    /// Expand the scope of a task.
    #[command(after_help = "Example: cynork task expand last \"and the same for the API\"")]
    Expand(steer::InstructionArgs),
    /// Reduce the scope of a task.
    #[command(after_help = "Example: cynork task reduce last \"no documentation yet\"")]
    Reduce(steer::InstructionArgs),
    /// Abort a running task.
    #[command(after_help = "Example: cynork task abort last --yes")]
    Abort(steer::OptionalInstructionArgs),
    /// Retry the failed work of a waiting task, or create a failed or cancelled task again.
    #[command(after_help = "Example: cynork task retry last")]
    Retry(steer::TaskRetryArgs),
    /// Mark a task that an agent wrote as reviewed by you.
    #[command(after_help = "Example: cynork task review last")]
    Review(TaskSelector),
    /// Cancel a task that has not ended, and the tasks that depend on it.
    #[command(after_help = "Example: cynork task cancel last --yes")]
    Cancel(TaskSelector),
    /// Show why a task is parked: kept from calling models.
    #[command(after_help = "Example: cynork task parked last")]
    Parked(TaskSelector),
    /// Let a parked task call models again.
    #[command(after_help = "Example: cynork task unpark last")]
    Unpark(TaskSelector),
}

/// One task.
#[derive(Args)]
pub(crate) struct TaskSelector {
    /// Task, by name in the project, by id or a unique prefix of it, or `last` for your newest task in the project.
    #[arg(value_name = "TASK")]
    task: String,
    /// Project of the task, by id or name; defaults to the project of the current repository, then to the one chosen with
    /// `cynork project use`.
    #[arg(long, short)]
    project: Option<String>,
}

#[derive(Args)]
pub(crate) struct TaskWatchArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Print plain lines without live updates.
    #[arg(long)]
    plain: bool,
}

#[derive(Args)]
pub(crate) struct TaskListArgs {
    /// Filter by project, by id or name.
    #[arg(long, short)]
    project: Option<String>,
    /// Filter by state.
    #[arg(long, value_parser = ["queued", "running", "completed", "failed", "cancelled"])]
    state: Option<String>,
    #[command(flatten)]
    pages: PageArgs,
}

impl TaskCommand {
    pub(crate) async fn run(self, context: &mut CliContext) -> Result<()> {
        match self {
            Self::Create(create) => create.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Show(named) => show::show_task(&named, context).await,
            Self::Watch(watch) => {
                let task = watch.named.fetch_task(context).await?;
                Box::pin(run::watch_task(context, &task, watch.plain)).await
            }
            Self::Plan(plan) => plan.run(context).await,
            Self::Timeline(timeline) => timeline.run(context).await,
            Self::Logs(logs) => logs.run(context).await,
            Self::Diff(diff) => diff.run(context).await,
            Self::Evidence(named) => show::show_evidence(&named, context).await,
            Self::Check(named) => show::rerun_checks(&named, context).await,
            Self::Estimate(estimate) => estimate.run(context).await,
            Self::Cost(named) => show::show_cost(&named, context).await,
            Self::Reports(named) => show::show_reports(&named, context).await,
            Self::Approve(approve) => approve.run(context).await,
            Self::Answer(answer) => answer.run(context).await,
            Self::Pause(maybe) => maybe.pause_task(context).await,
            Self::Resume(maybe) => maybe.resume_task(context).await,
            Self::Revise(words) => words.revise_plan(context).await,
            Self::Expand(words) => words.expand_scope(context).await,
            Self::Reduce(words) => words.reduce_scope(context).await,
            Self::Abort(maybe) => maybe.abort_task(context).await,
            Self::Retry(retry) => retry.run(context).await,
            Self::Review(named) => steer::review_task(&named, context).await,
            Self::Cancel(named) => steer::cancel_task(&named, context).await,
            Self::Parked(named) => steer::show_parking(&named, context).await,
            Self::Unpark(named) => steer::unpark_task(&named, context).await,
        }
    }
}

/// Prefix of task ids.
const TASK_ID_PREFIX: &str = "tsk_";

/// Maximum number of candidates of a short id before the search ends.
const MAX_CANDIDATES: usize = 8;

impl TaskSelector {
    pub(crate) fn new(task: &str, project: Option<String>) -> Self {
        Self { task: task.to_owned(), project }
    }

    /// Resolves the id of the task.
    pub(crate) async fn resolve_task_id(&self, context: &CliContext) -> Result<String> {
        if self.task.parse::<TaskId>().is_ok() {
            return Ok(self.task.clone());
        }
        Ok(self.fetch_task(context).await?.id.to_string())
    }

    /// Returns the arguments that name it in another command.
    pub(crate) fn command_words(&self) -> String {
        match &self.project {
            Some(project) => format!("{} --project {project}", self.task),
            None => self.task.clone(),
        }
    }

    /// Fetches the task; a field that lists leave out may be missing.
    pub(crate) async fn fetch_task(&self, context: &CliContext) -> Result<TaskView> {
        if self.task == "last" {
            return self.find_last_task(context).await;
        }
        // No name contains a `_`, so names and ids are disjoint.
        let is_short =
            self.task.starts_with(TASK_ID_PREFIX) && self.task.parse::<TaskId>().is_err();
        if is_short && self.task.len() > TASK_ID_PREFIX.len() {
            return self.find_by_short_id(context).await;
        }
        let call = ApiRequest::with_path_params(operations::GET_TASK, [&self.task]);
        if self.task.contains('_') {
            return context.client.send(&call).await;
        }
        let project = context.require_project(self.project.clone())?;
        context.client.send(&call.with_query("project", Some(project))).await
    }

    /// Fetches the task with the fields that lists leave out.
    async fn fetch_whole_task(&self, context: &CliContext) -> Result<TaskView> {
        let id = self.resolve_task_id(context).await?;
        context.client.send(&ApiRequest::with_path_params(operations::GET_TASK, [id])).await
    }

    /// Finds the person's newest task: in the current project, else in all.
    async fn find_last_task(&self, context: &CliContext) -> Result<TaskView> {
        let me: MeView =
            context.client.send(&ApiRequest::with_path_params(operations::ME, [""; 0])).await?;
        let project = context.resolve_project(self.project.clone(), Path::new("."));
        let (mut found, whole) = self
            .search_tasks(context, project.as_deref(), 1, |task| task.created_by == me.user.id)
            .await?;
        if let Some(task) = found.pop() {
            if project.is_none() && context.out.form == CliOutputFormat::Readable {
                print_stderr_line(&format!(
                    "cynork: `last` is {}, your newest task of all projects: you are in no repository of a project, and --project names none",
                    task.name
                ));
            }
            return Ok(task);
        }
        let place = if project.is_some() { " in this project" } else { "" };
        let what = if whole {
            format!("you have not asked for anything{place} yet")
        } else {
            format!("none of the newest tasks{place} is yours")
        };
        Err(CliError::new(CliErrorKind::NotFound, what)
            .with_fix("name a task (`cynork task list`), another project with --project, or ask for one with `cynork run`"))
    }

    /// Finds the only task whose id begins with the prefix.
    async fn find_by_short_id(&self, context: &CliContext) -> Result<TaskView> {
        let begins = |task: &TaskView| task.id.to_string().starts_with(&self.task);
        let project = self.project.as_deref();
        let (mut found, _) = self.search_tasks(context, project, MAX_CANDIDATES, begins).await?;
        match (found.pop(), found.as_slice()) {
            (Some(one), []) => Ok(one),
            (Some(last), others) => {
                Err(ambiguous_failure(&self.task, others.iter().chain([&last])))
            }
            (None, _) => {
                let what = format!("no task of yours has an id that begins with {}", self.task);
                Err(CliError::new(CliErrorKind::NotFound, what).with_fix("see `cynork task list`"))
            }
        }
    }

    /// Returns the newest matching tasks, and whether all tasks were searched.
    async fn search_tasks(
        &self,
        context: &CliContext,
        project: Option<&str>,
        most: usize,
        wants: impl Fn(&TaskView) -> bool,
    ) -> Result<(Vec<TaskView>, bool)> {
        let (mut found, mut cursor) = (Vec::new(), None);
        for page in 0..MAX_SEARCH_PAGES {
            let call = ApiRequest::with_path_params(operations::LIST_TASKS, [""; 0])
                .with_query("project", project)
                .with_query("limit", Some(if page == 0 { 20 } else { 200 }))
                .with_query("cursor", cursor.take());
            let listed: ListResponse<TaskView> = context.client.send(&call).await?;
            found.extend(listed.items.into_iter().filter(|task| wants(task)));
            found.truncate(most);
            cursor = listed.next_cursor;
            if found.len() == most || cursor.is_none() {
                break;
            }
        }
        Ok((found, cursor.is_none()))
    }
}

/// Returns the error for an ambiguous task.
fn ambiguous_failure<'a>(named: &str, tasks: impl Iterator<Item = &'a TaskView>) -> CliError {
    let tasks: Vec<String> = tasks.map(|task| format!("{} ({})", task.name, task.id)).collect();
    let what = format!("{named} could be any of {}", tasks.join(", "));
    CliError::new(CliErrorKind::Conflict, what).with_fix("write more of the id, or name the task")
}

/// Fetches a project by id or name.
pub(crate) async fn fetch_project(context: &CliContext, named: &str) -> Result<ProjectView> {
    context.client.send(&ApiRequest::with_path_params(operations::GET_PROJECT, [named])).await
}

impl TaskListArgs {
    async fn run(self, context: &mut CliContext) -> Result<()> {
        let call = ApiRequest::with_path_params(operations::LIST_TASKS, [""; 0])
            .with_query("project", self.project)
            .with_query("state", self.state);
        context
            .show_list(
                &call,
                Some(&self.pages.or_limit(DEFAULT_LIST_LIMIT)),
                |task: &TaskView| task.id.to_string(),
                ["id", "state", "name", "what"],
                |task, look| {
                    [
                        task.id.to_string(),
                        paint_state(task.state, look.paint),
                        task.name.as_str().to_owned(),
                        first_line(task.description.as_str()),
                    ]
                },
            )
            .await
    }
}

/// Returns a state in its colour.
pub(crate) fn paint_state(state: TaskStateName, paint: Colorizer) -> String {
    let style = match state {
        TaskStateName::Queued => TextStyle::Dim,
        TaskStateName::Running => TextStyle::Cyan,
        TaskStateName::Completed => TextStyle::Green,
        TaskStateName::Failed => TextStyle::Red,
        TaskStateName::Cancelled => TextStyle::Yellow,
    };
    paint.apply_style(style, state.as_str())
}

#[cfg(test)]
mod tests;
