//! Signals of people to a running task: instruct, approve, answer, stop.

use std::collections::BTreeSet;

use cynode_core::{
    events::EventKind,
    ids::{AgentTokenId, InstructionId, JobId, TaskId, WaitId},
    policies::ApprovalKind,
    roles::UserRole,
    tasks::Task,
    workflow::{
        handoffs::HandoffKind,
        instructions::{InstructionEffect, InstructionKind},
        waits::{WaitReason, WaitResolution},
    },
};
use cynode_db::{
    manager::handoffs::{self, HandoffRecord},
    models::budgets,
    tasks,
    tools::agent_tokens,
    workflow::{self, instructions, jobs, units, waits},
};
use cynode_wire::{
    manager::handoffs::PlanRevision,
    workflow::timeline::{AnswerQuestion, ApprovePlan, InstructTask, InstructionReceipt},
};
use serde_json::json;

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, environment::derive_uuid, operation},
    tasks::{
        has_ended,
        policies::{policies_of_task, require_second_person},
        record_instruction,
    },
};

/// Locks a task that the caller may steer.
async fn lock_steerable_task(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    crate::tasks::get_task(ctx, id).await?;
    let task =
        tasks::lock_task(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    ctx.require_project_role(task.project, UserRole::Operator).await?;
    Ok(task)
}

/// Gives an instruction to a task. A stop and the end of a pause take effect at once, the rest at the next step.
#[tracing::instrument(name = "app.workflow.instruct_task", skip_all, fields(task.id = %id, kind = body.kind.as_str()))]
#[operation]
pub async fn instruct_task(
    ctx: &mut Ctx,
    id: TaskId,
    body: &InstructTask,
) -> Result<InstructionReceipt, Error> {
    give_instruction(ctx, id, body, None).await
}

/// Gives an instruction of an agent to a task. The answer to a report goes to the job that reported, once, regardless
/// of the attempts of its handoff.
#[tracing::instrument(name = "app.workflow.reply_to_report", skip_all, fields(task.id = %id, kind = body.kind.as_str()))]
#[operation]
pub async fn reply_to_report(
    ctx: &mut Ctx,
    agent: AgentTokenId,
    id: TaskId,
    body: &InstructTask,
) -> Result<InstructionReceipt, Error> {
    let handoff = match handoffs::handoff_of_token(ctx.conn(), agent).await? {
        Some(handoff) => handoffs::get_handoff(ctx.conn(), handoff).await?,
        None => None,
    };
    let report = handoff.filter(|kept| kept.kind == HandoffKind::Report);
    give_instruction(ctx, id, body, report.as_ref()).await
}

/// Returns the id of the instruction that answers a report. It is derived, so it is the same at each attempt.
fn answer_instruction_id(report: &HandoffRecord) -> InstructionId {
    InstructionId::from_uuid(derive_uuid(format!("{} instruction", report.id)))
}

/// Returns the job that gets the answer, or `None` when it no longer runs.
async fn reporting_job(ctx: &mut Ctx, report: &HandoffRecord) -> Result<Option<JobId>, Error> {
    let Some(job) = report.job else { return Ok(None) };
    match handoffs::running_unit(ctx.conn(), job).await? {
        Some(_) => Ok(Some(job)),
        None => Err(Error::Conflict("the job that asked has ended: nobody is left to be told")),
    }
}

async fn give_instruction(
    ctx: &mut Ctx,
    id: TaskId,
    body: &InstructTask,
    report: Option<&HandoffRecord>,
) -> Result<InstructionReceipt, Error> {
    let task = lock_steerable_task(ctx, id).await?;
    let kind = body.kind;
    if kind.requires_text() && body.text.is_none() {
        return Err(Error::Invalid(format!("`{}` needs a `text`", kind.as_str())));
    }
    let by = ctx.caller()?.user;
    let person = ctx.caller()?.bounds.is_none();
    reject_reserved_text(body.text.as_ref().map(|text| text.as_str()))?;
    let (instruction, job) = match report {
        Some(report) => {
            let answer = answer_instruction_id(report);
            // The task is locked, so no other transaction can insert the instruction in between.
            if let Some(kind) = instructions::find_instruction_kind(ctx.conn(), id, answer).await? {
                let instruction_id =
                    (kind.instruction_effect() != InstructionEffect::Stop).then_some(answer);
                return Ok(InstructionReceipt {
                    instruction_id,
                    kind,
                    state: task.state.state_name(),
                });
            }
            (answer, reporting_job(ctx, report).await?)
        }
        None => (InstructionId::from_uuid(ctx.new_uuid()), None),
    };
    let text = body.text.as_ref().map(ToString::to_string);
    let given = instructions::Instruction { id: instruction, kind, text, by, job };
    if kind.instruction_effect() == InstructionEffect::Stop {
        let task = cancel_with_dependents(ctx, task).await?;
        if given.text.is_some() {
            // The reason of the cancellation is stored with the other instructions.
            instructions::insert_job_instruction(ctx.conn(), id, &given).await?;
        }
        return Ok(InstructionReceipt {
            instruction_id: None,
            kind,
            state: task.state.state_name(),
        });
    }
    if has_ended(&task) {
        return Err(ended_task_error(&task, "be instructed"));
    }
    if kind == InstructionKind::Resume && !person {
        // Only a person ends a pause. A `resume` of an agent is an answer to the working agents.
        instructions::insert_job_instruction(ctx.conn(), id, &given).await?;
        return record_instruction(ctx, &task, kind, Some(given.id)).await;
    }
    if kind == InstructionKind::Resume {
        // Resuming a task also unparks it.
        budgets::unpark_task(ctx.conn(), id).await?;
        ctx.mark_job_queued();
    }
    // A pause ends at once, unless earlier instructions are pending: then it ends in turn.
    let standing = workflow::get_run_status(ctx.conn(), id).await?;
    let paused = standing
        .filter(|standing| standing.instructions_waiting == 0)
        .and_then(|standing| standing.open_wait)
        .filter(|wait| wait.reason == WaitReason::Paused);
    if kind == InstructionKind::Resume
        && let Some(wait) = paused
    {
        // Lock order: the run before the wait.
        workflow::wake_runs(ctx.conn(), &[id.as_uuid()]).await?;
        waits::resolve_wait(ctx.conn(), wait.id, WaitResolution::Resumed, None, Some(by)).await?;
        // Paused agents are told to resume, with the text.
        instructions::insert_job_instruction(ctx.conn(), id, &given).await?;
        return record_instruction(ctx, &task, kind, Some(given.id)).await;
    }
    instructions::insert_instruction(ctx.conn(), id, &given).await?;
    record_instruction(ctx, &task, kind, Some(given.id)).await
}

/// Rejects reserved texts: nobody else may write the feedback with which a verification requests a new plan.
fn reject_reserved_text(text: Option<&str>) -> Result<(), Error> {
    match text {
        Some(text) if PlanRevision::is_marked(text) => {
            Err(Error::Invalid("the text begins with words that only the workflow uses".into()))
        }
        Some(_) | None => Ok(()),
    }
}

fn ended_task_error(task: &Task, verb: &'static str) -> Error {
    let state = task.state.state_name().as_str();
    Error::InvalidState(cynode_core::InvalidTransition { what: "task", state, verb })
}

/// Resolves the open wait for a person, if it is the expected one.
async fn resolve_wait(
    ctx: &mut Ctx,
    id: TaskId,
    (only, reason): (Option<WaitId>, WaitReason),
    resolution: WaitResolution,
    answer: Option<&str>,
) -> Result<Task, Error> {
    let task = lock_steerable_task(ctx, id).await?;
    if has_ended(&task) {
        return Err(ended_task_error(&task, "be answered"));
    }
    let by = ctx.caller()?.user;
    // Lock order: the run before the wait. A refusal rolls the wake-up back.
    workflow::wake_runs(ctx.conn(), &[id.as_uuid()]).await?;
    let meant =
        |wait: &waits::OpenWait| wait.reason == reason && only.is_none_or(|only| wait.id == only);
    let Some(wait) = waits::lock_open_wait(ctx.conn(), id).await?.filter(meant) else {
        return Err(Error::Conflict(match (reason, only) {
            (WaitReason::Approval, None) => "the task does not wait for a yes",
            (_, None) => "the task does not wait for an answer",
            (_, Some(_)) => "the task does not wait for this any more; look at what it waits for",
        }));
    };
    waits::resolve_wait(ctx.conn(), wait.id, resolution, answer, Some(by)).await?;
    ctx.wake_task(id);
    let data = json!({ "name": task.name, "kind": resolution });
    let told = EventDraft::new(EventKind::TaskInstructed, data);
    ctx.record_event(told.with_project(task.project).with_task(id)).await?;
    Ok(task)
}

/// Approves or refuses a plan.
#[tracing::instrument(name = "app.workflow.approve_plan", skip_all, fields(task.id = %id))]
#[operation]
pub async fn approve_plan(ctx: &mut Ctx, id: TaskId, body: &ApprovePlan) -> Result<Task, Error> {
    let resolution =
        if body.approved { WaitResolution::Approved } else { WaitResolution::Rejected };
    let note = body.note.as_ref().map(|note| note.as_str());
    reject_reserved_text(note)?;
    if body.approved {
        let task = crate::tasks::get_task(ctx, id).await?;
        let held = policies_of_task(ctx, &task).await?;
        let authors = tasks::policies::list_task_authors(ctx.conn(), id).await?;
        let user = ctx.caller()?.user;
        require_second_person(ctx, &held, &authors, user, ApprovalKind::Plan).await?;
    }
    resolve_wait(ctx, id, (body.wait_id, WaitReason::Approval), resolution, note).await
}

/// Answers the question of a task.
#[tracing::instrument(name = "app.workflow.answer_task_question", skip_all, fields(task.id = %id))]
#[operation]
pub async fn answer_task_question(
    ctx: &mut Ctx,
    id: TaskId,
    body: &AnswerQuestion,
) -> Result<Task, Error> {
    let text = Some(body.text.as_str());
    resolve_wait(ctx, id, (body.wait_id, WaitReason::HumanInput), WaitResolution::Answered, text)
        .await
}

/// Cancels a task and all tasks that depend on it.
#[tracing::instrument(name = "app.workflow.signals.cancel_task", skip_all, fields(task.id = %id))]
#[operation]
pub async fn cancel_task(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    let task = lock_steerable_task(ctx, id).await?;
    cancel_with_dependents(ctx, task).await
}

/// Cancels a task and its dependents: revokes their leases and cancels their jobs.
async fn cancel_with_dependents(ctx: &mut Ctx, task: Task) -> Result<Task, Error> {
    let now = ctx.now;
    let state = task.state.clone().into_cancelled(now)?;
    let mut seen = BTreeSet::new();
    // The creation of a dependent task holds a lock on its dependency until the new task is visible. So the list is
    // read again after each lock.
    loop {
        let listed = workflow::list_active_dependents(ctx.conn(), task.id).await?;
        let new: Vec<_> = listed.into_iter().filter(|id| seen.insert(*id)).collect();
        if new.is_empty() {
            break;
        }
        for id in new {
            cancel_one_task(ctx, id, task.id).await?;
        }
    }
    Ok(Task { state, updated_at: now, ..task })
}

/// Cancels one task because of another.
async fn cancel_one_task(ctx: &mut Ctx, id: TaskId, asked: TaskId) -> Result<(), Error> {
    let now = ctx.now;
    let Some(one) = tasks::lock_task(ctx.conn(), id).await? else { return Ok(()) };
    // It may have ended since it was listed.
    let Ok(state) = one.state.clone().into_cancelled(now) else { return Ok(()) };
    workflow::revoke_lease(ctx.conn(), id).await?;
    tasks::set_task_state(ctx.conn(), id, &state, now).await?;
    workflow::end_run(ctx.conn(), id, "cancelled").await?;
    if let Some(wait) = waits::lock_open_wait(ctx.conn(), id).await? {
        waits::resolve_wait(ctx.conn(), wait.id, WaitResolution::Cancelled, None, None).await?;
    }
    units::cancel_task_units(ctx.conn(), id).await?;
    jobs::cancel_unwanted_jobs(ctx.conn(), id).await?;
    crate::manager::handoffs::cancel_task_handoffs(ctx, id).await?;
    agent_tokens::revoke_task_tokens(ctx.conn(), id, now).await?;
    let because = (id != asked).then_some(asked);
    let data = json!({ "name": one.name, "because_of": because });
    let told = EventDraft::new(EventKind::TaskCancelled, data);
    ctx.record_event(told.with_project(one.project).with_task(id)).await
}
