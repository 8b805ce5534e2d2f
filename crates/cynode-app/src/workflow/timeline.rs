//! Timeline of a task: its steps, waits and jobs in order, for people.

use std::fmt::Write as _;

use cynode_core::{
    ids::TaskId,
    tasks::{Task, TaskState},
    workflow as graph,
    workflow::{
        WorkflowStep,
        timeline::{JobEntry, WaitEntry},
        units::{UnitState, UnitView},
        waits::WaitReason,
    },
};
use cynode_db::{
    delivery::environments,
    manager::given_context,
    tasks,
    workflow::{self, timeline, units},
};
use cynode_wire::workflow::timeline::TaskTimeline;

use crate::{App, Ctx, Error, OperationRequest, platform::operation, workflow::liveness};

/// Returns the timeline of a task's run.
#[tracing::instrument(name = "app.timeline.get_timeline", skip_all, fields(task.id = %id))]
#[operation]
pub async fn get_timeline(ctx: &mut Ctx, id: TaskId) -> Result<TaskTimeline, Error> {
    let task = crate::tasks::get_task(ctx, id).await?;
    build_timeline(ctx, task).await
}

/// Returns the timeline of a task of any project, for the program that drives tasks.
#[operation]
pub async fn get_timeline_of_any_project(app: &App, id: TaskId) -> Result<TaskTimeline, Error> {
    let task = crate::tasks::get_task_of_any_project(app, id).await?;
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    app.read(&request, |ctx| Box::pin(build_timeline(ctx, task))).await
}

async fn build_timeline(ctx: &mut Ctx, task: Task) -> Result<TaskTimeline, Error> {
    let id = task.id;
    let standing = workflow::get_run_status(ctx.conn(), id).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", id))?;
    let steps = timeline::list_step_entries(ctx.conn(), id).await?;
    let takeovers = timeline::list_lease_takeovers(ctx.conn(), id).await?;
    let waits = timeline::list_wait_entries(ctx.conn(), id).await?;
    // The result of a given plan is all that a person asked for.
    let is_given = environments::get_task_plan(ctx.conn(), id).await?.is_some();
    let units = units::list_task_units(ctx.conn(), id, is_given).await?;
    let jobs = timeline::list_job_entries(ctx.conn(), id).await?;
    let given = given_context::list_given_to_task(ctx.conn(), id).await?;
    let pull_request = crate::delivery::pull_requests::timeline_entry_of(ctx, id).await?;
    let node = standing.checkpoint.as_ref().and_then(|checkpoint| checkpoint.next_node);
    let node = node.filter(|_| !standing.ended);
    let hopeless = blocked_reason(ctx, &task).await?;
    let stalls =
        if standing.ended { Vec::new() } else { liveness::stalls_of_task(ctx, id).await? };
    let summary = standing.checkpoint.as_ref().and_then(|checkpoint| {
        let said = checkpoint.state.get("summary").and_then(serde_json::Value::as_str);
        said.map(str::to_owned)
    });
    Ok(TaskTimeline {
        summary,
        pull_request,
        task_id: id,
        run_id: standing.run,
        trace_id: standing.trace.to_string(),
        state: task.state.state_name(),
        node,
        standing: hopeless.unwrap_or_else(|| describe_standing(&task, node, waits.last(), &jobs)),
        stalls,
        retries_used: standing.retries_used,
        cost_micros: steps.iter().map(|step| step.cost_micros).sum(),
        mermaid: graph::render_mermaid(node),
        plan_mermaid: render_plan_mermaid(&units),
        steps,
        takeovers,
        waits,
        units,
        jobs,
        given,
    })
}

/// Returns why a queued task can never start: a dependency ended without being completed.
async fn blocked_reason(ctx: &mut Ctx, task: &Task) -> Result<Option<String>, Error> {
    if !matches!(task.state, TaskState::Queued) {
        return Ok(None);
    }
    for id in &task.depends_on {
        let Some(before) = tasks::get_task(ctx.conn(), *id).await? else { continue };
        let became = match before.state {
            TaskState::Failed { .. } => "was given up",
            TaskState::Cancelled { .. } => "was stopped",
            TaskState::Queued | TaskState::Running { .. } | TaskState::Completed { .. } => continue,
        };
        return Ok(Some(format!("cannot start: `{}`, on which it depends, {became}", before.name)));
    }
    Ok(None)
}

fn describe_standing(
    task: &Task,
    node: Option<WorkflowStep>,
    last: Option<&WaitEntry>,
    jobs: &[JobEntry],
) -> String {
    match (&task.state, node) {
        (TaskState::Queued, _) if task.depends_on.is_empty() => "waits for a runner".into(),
        (TaskState::Queued, _) => "waits for the tasks it depends on".into(),
        (TaskState::Completed { .. }, _) => "completed".into(),
        (TaskState::Failed { reason, .. }, _) => format!("given up: {reason}"),
        (TaskState::Cancelled { .. }, _) => "stopped by a person".into(),
        (TaskState::Running { .. }, node) => match last.filter(|wait| wait.resolved_at.is_none()) {
            Some(wait) => describe_wait(wait, jobs),
            None => node.map_or("begins", describe_step).to_owned(),
        },
    }
}

/// Describes the wait of a run for people.
fn describe_wait(wait: &WaitEntry, jobs: &[JobEntry]) -> String {
    let question = wait.question.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    let of = |state: &str| -> Vec<&str> {
        jobs.iter().filter(|job| job.state == state).map(|job| job.unit.as_str()).collect()
    };
    match wait.reason {
        WaitReason::Job => match (of("running"), of("queued")) {
            (running, _) if !running.is_empty() => {
                format!("waits for the work on {}", running.join(", "))
            }
            (_, queued) if !queued.is_empty() => {
                format!("waits for a node to take the job of {}", queued.join(", "))
            }
            _ => "waits for the result of a job".to_owned(),
        },
        WaitReason::Approval => format!("waits for you to say yes to the plan{question}"),
        WaitReason::HumanInput => format!("waits for your answer{question}"),
        WaitReason::Paused => format!("is paused{question}"),
        WaitReason::Retry => "waits for the time of its next attempt".to_owned(),
        WaitReason::Quota => "waits for a provider's quota".to_owned(),
        WaitReason::Agent => "waits for the project manager".to_owned(),
    }
}

/// Describes the step of a run for people.
const fn describe_step(node: WorkflowStep) -> &'static str {
    match node {
        WorkflowStep::LoadTaskContext => "reads the task",
        WorkflowStep::PlanSteps => "plans",
        WorkflowStep::DispatchStep => "sends out work",
        WorkflowStep::CollectResult => "collects results",
        WorkflowStep::VerifyStepResult => "has a result checked",
        WorkflowStep::FinalizeSummary => "sums up",
        WorkflowStep::MarkFailed => "ends",
    }
}

/// Renders the plan as a mermaid flowchart.
fn render_plan_mermaid(units: &[UnitView]) -> String {
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
