//! `cynork task`: what was asked for and what became of it.

mod create;
mod logs;
mod look;
mod steer;

use clap::{Args, Subcommand};
use cynode_core::tasks::TaskStateName;
use cynode_wire::{accounts::MeView, projects::ProjectView, tasks::TaskView};

pub(crate) use self::{
    create::{Wish, made},
    look::{plan_of, timeline_of},
    steer::{answered, approved, instructed},
};
use super::run;
use crate::{
    answers::Pages,
    client::{Call, Items},
    context::Context,
    failure::{Failure, Kind, Result},
    operations,
    terminal::{Paint, Style, first_line},
};

/// How many tasks are listed where nobody says how many.
const LISTED: u32 = 20;

/// Most tasks of others that are looked through for the newest of one's own.
const MOST_PAGES: usize = 20;

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Asks for a piece of work and comes back at once.
    #[command(
        after_help = "Example: cynork task create \"Add a dark mode switch\" --project web --check 'make test'"
    )]
    Create(create::Create),
    /// Lists the tasks you may see, newest first.
    #[command(after_help = "Example: cynork task list --project web --state running")]
    List(List),
    /// Shows one task.
    #[command(after_help = "Example: cynork task show last")]
    Show(Named),
    /// Follows a task until it has ended, and answers it where it asks.
    #[command(after_help = "Example: cynork task watch last")]
    Watch(Watch),
    /// Shows the plan as a tree, with where each unit stands.
    #[command(after_help = "Example: cynork task plan last --mermaid")]
    Plan(look::Plan),
    /// Shows what happened, step by step.
    #[command(after_help = "Example: cynork task timeline fix-login --project web")]
    Timeline(look::TimelineOf),
    /// Shows what agents said and did and what programs wrote.
    #[command(after_help = "Example: cynork task logs last --follow --unit review")]
    Logs(logs::Logs),
    /// Shows what its pull request changes; not at a terminal, as `git apply` takes it.
    #[command(after_help = "Example: cynork task diff last --stat")]
    Diff(look::Diff),
    /// Shows what checks came to that no agent ran, and what everybody found.
    #[command(after_help = "Example: cynork task evidence last")]
    Evidence(Named),
    /// Shows what it cost, by step and by model, against its cap.
    #[command(after_help = "Example: cynork task cost last --json")]
    Cost(Named),
    /// Shows what agents reported. A report is a claim.
    #[command(after_help = "Example: cynork task reports last")]
    Reports(Named),
    /// Says yes to the plan, or no with a reason: shows it and asks.
    #[command(
        after_help = "Example: cynork task approve last\n         cynork task approve last --no \"leave the database alone\""
    )]
    Approve(steer::Approve),
    /// Answers the question that a task waits with.
    #[command(after_help = "Example: cynork task answer last \"the second one\"")]
    Answer(steer::Answer),
    /// Stops at the next step and waits.
    #[command(after_help = "Example: cynork task pause last")]
    Pause(steer::Maybe),
    /// Lets a task go on that was paused.
    #[command(after_help = "Example: cynork task resume last")]
    Resume(steer::Maybe),
    /// Has the plan made anew with what you say.
    #[command(after_help = "Example: cynork task revise last \"tests first\"")]
    Revise(steer::Words),
    /// Has something done too.
    #[command(after_help = "Example: cynork task expand last \"and the same for the API\"")]
    Expand(steer::Words),
    /// Has something left out.
    #[command(after_help = "Example: cynork task reduce last \"no documentation yet\"")]
    Reduce(steer::Words),
    /// Gives a running task up.
    #[command(after_help = "Example: cynork task abort last --yes")]
    Abort(steer::Maybe),
    /// Tries again: answers a task that asks, asks once more for one that was given up.
    #[command(after_help = "Example: cynork task retry last")]
    Retry(steer::Retry),
    /// Stops a task that has not ended, and what depends on it.
    #[command(after_help = "Example: cynork task cancel last --yes")]
    Cancel(Named),
    /// Says why a task may not ask models now, if it may not.
    #[command(after_help = "Example: cynork task parked last")]
    Parked(Named),
    /// Lets a task ask models again.
    #[command(after_help = "Example: cynork task unpark last")]
    Unpark(Named),
}

/// Which task is meant.
#[derive(Args)]
pub(crate) struct Named {
    /// Its id; or its name in a project; or `last`, the newest that you asked for.
    #[arg(value_name = "TASK")]
    task: String,
    /// The project that a name is in, by id or name; else that of this directory's repository, else the one you use.
    #[arg(long, short)]
    project: Option<String>,
}

#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    named: Named,
    /// Plain lines, nothing that is drawn anew.
    #[arg(long)]
    plain: bool,
}

#[derive(Args)]
pub(crate) struct List {
    /// Only of this project, by id or name.
    #[arg(long, short)]
    project: Option<String>,
    /// Only in this state.
    #[arg(long, value_parser = ["queued", "running", "completed", "failed", "cancelled"])]
    state: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

impl Task {
    pub(crate) async fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Create(create) => create.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Show(named) => look::show(&named, context).await,
            Self::Watch(watch) => {
                let task = watch.named.view(context).await?;
                Box::pin(run::watch(context, &task, watch.plain)).await
            }
            Self::Plan(plan) => plan.run(context).await,
            Self::Timeline(timeline) => timeline.run(context).await,
            Self::Logs(logs) => logs.run(context).await,
            Self::Diff(diff) => diff.run(context).await,
            Self::Evidence(named) => look::evidence(&named, context).await,
            Self::Cost(named) => look::cost(&named, context).await,
            Self::Reports(named) => look::reports(&named, context).await,
            Self::Approve(approve) => approve.run(context).await,
            Self::Answer(answer) => answer.run(context).await,
            Self::Pause(maybe) => maybe.pause(context).await,
            Self::Resume(maybe) => maybe.resume(context).await,
            Self::Revise(words) => words.revise(context).await,
            Self::Expand(words) => words.expand(context).await,
            Self::Reduce(words) => words.reduce(context).await,
            Self::Abort(maybe) => maybe.abort(context).await,
            Self::Retry(retry) => retry.run(context).await,
            Self::Cancel(named) => steer::cancel(&named, context).await,
            Self::Parked(named) => steer::parked(&named, context).await,
            Self::Unpark(named) => steer::unpark(&named, context).await,
        }
    }
}

impl Named {
    /// The id of the task.
    pub(crate) async fn id(&self, context: &Context) -> Result<String> {
        // No name has a `_`, so names and ids never meet.
        if self.task.contains('_') {
            return Ok(self.task.clone());
        }
        Ok(self.view(context).await?.id.to_string())
    }

    /// The task.
    pub(crate) async fn view(&self, context: &Context) -> Result<TaskView> {
        if self.task == "last" {
            return self.last(context).await;
        }
        let call = Call::to(operations::GET_TASK, [&self.task]);
        if self.task.contains('_') {
            return context.client.send(&call).await;
        }
        let project = context.project(self.project.clone())?;
        context.client.send(&call.query("project", Some(project))).await
    }

    /// The newest that the person asked for.
    async fn last(&self, context: &Context) -> Result<TaskView> {
        let me: MeView = context.client.send(&Call::to(operations::ME, [""; 0])).await?;
        let mut cursor = None;
        for page in 0..MOST_PAGES {
            let call = Call::to(operations::LIST_TASKS, [""; 0])
                .query("project", self.project.as_ref())
                .query("limit", Some(if page == 0 { 20 } else { 200 }))
                .query("cursor", cursor.take());
            let listed: Items<TaskView> = context.client.send(&call).await?;
            let own = listed.items.into_iter().find(|task| task.created_by == me.user.id);
            if let Some(own) = own {
                return Ok(own);
            }
            cursor = listed.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        let what = if cursor.is_some() {
            "none of the newest tasks is yours"
        } else {
            "you have not asked for anything yet"
        };
        Err(Failure::new(Kind::NotFound, what)
            .fix("name a task by its id (`cynork task list`), or ask for one with `cynork run`"))
    }
}

/// A project, by id or name.
pub(crate) async fn project(context: &Context, named: &str) -> Result<ProjectView> {
    context.client.send(&Call::to(operations::GET_PROJECT, [named])).await
}

impl List {
    async fn run(self, context: &mut Context) -> Result<()> {
        let call = Call::to(operations::LIST_TASKS, [""; 0])
            .query("project", self.project)
            .query("state", self.state);
        context
            .list(
                &call,
                Some(&self.pages.or(LISTED)),
                |task: &TaskView| task.id.to_string(),
                ["id", "state", "name", "what"],
                |task, look| {
                    [
                        task.id.to_string(),
                        state(task.state, look.paint),
                        task.name.as_str().to_owned(),
                        first_line(task.description.as_str()),
                    ]
                },
            )
            .await
    }
}

/// A state in its colour.
pub(crate) fn state(state: TaskStateName, paint: Paint) -> String {
    let style = match state {
        TaskStateName::Queued => Style::Dim,
        TaskStateName::Running => Style::Cyan,
        TaskStateName::Completed => Style::Green,
        TaskStateName::Failed => Style::Red,
        TaskStateName::Cancelled => Style::Yellow,
    };
    paint.dye(style, state.as_str())
}
