//! What happened to a task, for people.

use std::fmt::Write as _;

use cynode_core::{
    ids::TaskId,
    tasks::{Task, TaskState},
    workflow::{self as graph, Node, units::UnitState},
};
use cynode_db::{tasks, timeline, units, workflow};
use cynode_wire::{
    timeline::{Timeline, WaitEntry},
    workflow::UnitView,
};

use crate::{App, Ctx, Error, Request};

/// The story of a task's run.
#[tracing::instrument(name = "app.timeline.get", skip_all, fields(task.id = %id))]
pub async fn get(ctx: &mut Ctx, id: TaskId) -> Result<Timeline, Error> {
    let task = crate::tasks::get(ctx, id).await?;
    story(ctx, task).await
}

/// The story of a task of any project, for the program that drives tasks.
pub async fn of_any_project(app: &App, id: TaskId) -> Result<Timeline, Error> {
    let task = crate::tasks::of_any_project(app, id).await?;
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    app.read(&request, |ctx| Box::pin(story(ctx, task))).await
}

async fn story(ctx: &mut Ctx, task: Task) -> Result<Timeline, Error> {
    let id = task.id;
    let standing = workflow::standing(ctx.conn(), id).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", id))?;
    let steps = timeline::steps(ctx.conn(), id).await?;
    let waits = timeline::waits(ctx.conn(), id).await?;
    let units = units::of_task(ctx.conn(), id, false).await?;
    let jobs = timeline::jobs(ctx.conn(), id).await?;
    let pull_request = crate::delivery::entry(ctx, id).await?;
    let node = standing.checkpoint.as_ref().and_then(|checkpoint| checkpoint.next_node);
    let node = node.filter(|_| !standing.ended);
    let hopeless = hopeless(ctx, &task).await?;
    let summary = standing.checkpoint.as_ref().and_then(|checkpoint| {
        let said = checkpoint.state.get("summary").and_then(serde_json::Value::as_str);
        said.map(str::to_owned)
    });
    Ok(Timeline {
        summary,
        pull_request,
        task_id: id,
        run_id: standing.run,
        trace_id: standing.trace.to_string(),
        state: task.state.name(),
        node,
        standing: hopeless.unwrap_or_else(|| sentence(&task, node, waits.last())),
        retries_used: standing.retries_used,
        cost_micros: steps.iter().map(|step| step.cost_micros).sum(),
        mermaid: graph::mermaid(node),
        plan_mermaid: plan(&units),
        steps,
        waits,
        units,
        jobs,
    })
}

/// Why a task that has not begun never will: something it depends on has ended without being completed.
async fn hopeless(ctx: &mut Ctx, task: &Task) -> Result<Option<String>, Error> {
    if !matches!(task.state, TaskState::Queued) {
        return Ok(None);
    }
    for id in &task.depends_on {
        let Some(before) = tasks::get(ctx.conn(), *id).await? else { continue };
        let became = match before.state {
            TaskState::Failed { .. } => "was given up",
            TaskState::Cancelled { .. } => "was stopped",
            TaskState::Queued | TaskState::Running { .. } | TaskState::Completed { .. } => continue,
        };
        return Ok(Some(format!("cannot start: `{}`, on which it depends, {became}", before.name)));
    }
    Ok(None)
}

fn sentence(task: &Task, node: Option<Node>, last: Option<&WaitEntry>) -> String {
    match (&task.state, node) {
        (TaskState::Queued, _) if task.depends_on.is_empty() => "waits for a runner".into(),
        (TaskState::Queued, _) => "waits for the tasks it depends on".into(),
        (TaskState::Completed { .. }, _) => "completed".into(),
        (TaskState::Failed { reason, .. }, _) => format!("given up: {reason}"),
        (TaskState::Cancelled { .. }, _) => "stopped by a person".into(),
        (TaskState::Running { .. }, node) => {
            let at = node.map_or("its beginning", Node::title);
            match last.filter(|wait| wait.resolved_at.is_none()) {
                Some(wait) => {
                    let question = wait.question.as_deref().map(|text| format!(": {text}"));
                    format!(
                        "waits at {at} for {} (owner: {}){}",
                        wait.reason.as_str(),
                        wait.owner,
                        question.unwrap_or_default()
                    )
                }
                None => format!("works at {at}"),
            }
        }
    }
}

/// The plan as a mermaid flowchart.
fn plan(units: &[UnitView]) -> String {
    let mut drawing = String::from("flowchart LR\n");
    for unit in units {
        let (key, state) = (&unit.key, unit.state.as_str());
        let _ = writeln!(
            drawing,
            "    {key}[\"{key}<br/>{state}, attempt {}\"]:::{state}",
            unit.attempts
        );
        for needed in &unit.depends_on {
            let _ = writeln!(drawing, "    {needed} --> {key}");
        }
    }
    for state in UnitState::ALL {
        let colour = match state {
            UnitState::Pending => "#eceff1",
            UnitState::Dispatched => "#ffd54f",
            UnitState::Collected => "#81d4fa",
            UnitState::Done => "#a5d6a7",
            UnitState::Failed => "#ef9a9a",
            UnitState::Cancelled => "#bdbdbd",
        };
        let _ = writeln!(drawing, "    classDef {} fill:{colour}", state.as_str());
    }
    drawing
}
