//! What people may tell a task while it runs: instructions, a yes or no, an answer, a stop.

use std::collections::BTreeSet;

use cynode_core::{
    events::EventKind,
    ids::{AgentTokenId, InstructionId, JobId, TaskId, WaitId},
    roles::Role,
    tasks::{Task, TaskState},
    workflow::{
        instructions::{InstructionKind, Steering},
        waits::WaitReason,
    },
};
use cynode_db::{
    agent_tokens, budgets,
    handoffs::{self, Kept},
    instructions, jobs, tasks, units, waits, workflow,
};
use cynode_wire::{
    handoffs::{HandoffKind, Revision},
    timeline::{AnswerQuestion, Approve, Instruct, Instructed},
    workflow::Resolution,
};
use serde_json::json;

use crate::{Ctx, Error, context::Told, environment::derived};

/// Locks a task that the caller may steer.
async fn steered(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    crate::tasks::get(ctx, id).await?;
    let task = tasks::lock(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    ctx.require_in(task.project, Role::Operator).await?;
    Ok(task)
}

const fn has_ended(task: &Task) -> bool {
    match task.state {
        TaskState::Queued | TaskState::Running { .. } => false,
        TaskState::Completed { .. } | TaskState::Failed { .. } | TaskState::Cancelled { .. } => {
            true
        }
    }
}

/// Tells a task something. A stop and the end of a pause take effect at once, the rest at the next step.
#[tracing::instrument(name = "app.workflow.instruct", skip_all, fields(task.id = %id, kind = body.kind.as_str()))]
pub async fn instruct(ctx: &mut Ctx, id: TaskId, body: &Instruct) -> Result<Instructed, Error> {
    say(ctx, id, body, None).await
}

/// What an agent tells a task. An answer to a report is for the job that reported, and is one, however often its handoff is begun.
#[tracing::instrument(name = "app.workflow.reply", skip_all, fields(task.id = %id, kind = body.kind.as_str()))]
pub async fn reply(
    ctx: &mut Ctx,
    agent: AgentTokenId,
    id: TaskId,
    body: &Instruct,
) -> Result<Instructed, Error> {
    let handoff = match handoffs::of_token(ctx.conn(), agent).await? {
        Some(handoff) => handoffs::get(ctx.conn(), handoff).await?,
        None => None,
    };
    let report = handoff.filter(|kept| kept.kind == HandoffKind::Report);
    say(ctx, id, body, report.as_ref()).await
}

/// The instruction that answers a report: the same whenever it is given.
fn answer_to(report: &Kept) -> InstructionId {
    InstructionId::from_uuid(derived(format!("{} instruction", report.id)))
}

/// The job that is told; whoever does not work any more is told nothing.
async fn asker(ctx: &mut Ctx, report: &Kept) -> Result<Option<JobId>, Error> {
    let Some(job) = report.job else { return Ok(None) };
    match handoffs::running_unit(ctx.conn(), job).await? {
        Some(_) => Ok(Some(job)),
        None => Err(Error::Conflict("the job that asked has ended: nobody is left to be told")),
    }
}

async fn say(
    ctx: &mut Ctx,
    id: TaskId,
    body: &Instruct,
    report: Option<&Kept>,
) -> Result<Instructed, Error> {
    let task = steered(ctx, id).await?;
    let kind = body.kind;
    if kind.needs_text() && body.text.is_none() {
        return Err(Error::Invalid(format!("`{}` needs a `text`", kind.as_str())));
    }
    let by = ctx.caller()?.user;
    let person = ctx.caller()?.bounds.is_none();
    unmarked(body.text.as_ref().map(|text| text.as_str()))?;
    let (instruction, job) = match report {
        Some(report) => {
            let answer = answer_to(report);
            // The task is locked, so nobody gives it in between.
            if let Some(kind) = instructions::given(ctx.conn(), id, answer).await? {
                let instruction_id = (kind.steering() != Steering::Stop).then_some(answer);
                return Ok(Instructed { instruction_id, kind, state: task.state.name() });
            }
            (answer, asker(ctx, report).await?)
        }
        None => (InstructionId::from_uuid(ctx.uuid()), None),
    };
    let text = body.text.as_ref().map(ToString::to_string);
    let given = instructions::Instruction { id: instruction, kind, text, by, job };
    if kind.steering() == Steering::Stop {
        let task = stop(ctx, task).await?;
        if given.text.is_some() {
            // Why it was given up is kept with whatever else it was told.
            instructions::pass_on(ctx.conn(), id, &given).await?;
        }
        return Ok(Instructed { instruction_id: None, kind, state: task.state.name() });
    }
    if has_ended(&task) {
        return Err(ended(&task, "be instructed"));
    }
    if kind == InstructionKind::Continue && !person {
        // Only a person ends a pause; an agent that says `continue` answers those who work.
        instructions::pass_on(ctx.conn(), id, &given).await?;
        return told(ctx, &task, kind, Some(given.id)).await;
    }
    if kind == InstructionKind::Continue {
        // Whoever lets it go on lets it think, too.
        budgets::unpark_task(ctx.conn(), id).await?;
        ctx.queue();
    }
    // A pause ends at once, unless something that was said before waits to be taken up: then in its turn.
    let standing = workflow::standing(ctx.conn(), id).await?;
    let paused = standing
        .filter(|standing| standing.instructions_waiting == 0)
        .and_then(|standing| standing.open_wait)
        .filter(|wait| wait.reason == WaitReason::Paused);
    if kind == InstructionKind::Continue
        && let Some(wait) = paused
    {
        // The run first, then the wait, as everybody does.
        workflow::wake(ctx.conn(), &[id.as_uuid()]).await?;
        waits::resolve(ctx.conn(), wait.id, Resolution::Continued, None, Some(by)).await?;
        // Agents that were told to pause are told to go on, with what was said.
        instructions::pass_on(ctx.conn(), id, &given).await?;
        return told(ctx, &task, kind, Some(given.id)).await;
    }
    instructions::give(ctx.conn(), id, &given).await?;
    told(ctx, &task, kind, Some(given.id)).await
}

/// Refuses words that are ours: what a judgement sends back to planning must not be written by anybody else.
fn unmarked(text: Option<&str>) -> Result<(), Error> {
    match text {
        Some(text) if Revision::is_marked(text) => {
            Err(Error::Invalid("the text begins with words that only the workflow uses".into()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Pauses a task that goes in circles, in the name of whoever its agent works for. A person lets it go on.
pub(crate) async fn pause(
    ctx: &mut Ctx,
    id: TaskId,
    by: cynode_core::ids::UserId,
    why: &str,
) -> Result<(), Error> {
    let Some(task) = tasks::lock(ctx.conn(), id).await?.filter(|task| !has_ended(task)) else {
        return Ok(());
    };
    let kind = InstructionKind::Pause;
    let id = InstructionId::from_uuid(ctx.uuid());
    let given = instructions::Instruction { id, kind, text: Some(why.to_owned()), by, job: None };
    instructions::give(ctx.conn(), task.id, &given).await?;
    told(ctx, &task, kind, Some(given.id)).await.map(|_| ())
}

async fn told(
    ctx: &mut Ctx,
    task: &Task,
    kind: InstructionKind,
    instruction_id: Option<InstructionId>,
) -> Result<Instructed, Error> {
    ctx.wake(task.id);
    let told = Told::new(EventKind::TaskInstructed, json!({ "name": task.name, "kind": kind }));
    ctx.record(told.project(task.project).task(task.id)).await?;
    Ok(Instructed { instruction_id, kind, state: task.state.name() })
}

fn ended(task: &Task, verb: &'static str) -> Error {
    let state = task.state.name().as_str();
    Error::Transition(cynode_core::InvalidTransition { what: "task", state, verb })
}

/// Ends a wait for a person: the one that is open, if it is the one that is meant.
async fn resolve(
    ctx: &mut Ctx,
    id: TaskId,
    (only, reason): (Option<WaitId>, WaitReason),
    resolution: Resolution,
    answer: Option<&str>,
) -> Result<Task, Error> {
    let task = steered(ctx, id).await?;
    if has_ended(&task) {
        return Err(ended(&task, "be answered"));
    }
    let by = ctx.caller()?.user;
    // The run first, then the wait, as everybody does; a refusal undoes it.
    workflow::wake(ctx.conn(), &[id.as_uuid()]).await?;
    let meant =
        |wait: &waits::Open| wait.reason == reason && only.is_none_or(|only| wait.id == only);
    let Some(wait) = waits::lock_open(ctx.conn(), id).await?.filter(meant) else {
        return Err(Error::Conflict(match (reason, only) {
            (WaitReason::Approval, None) => "the task does not wait for a yes",
            (_, None) => "the task does not wait for an answer",
            (_, Some(_)) => "the task does not wait for this any more; look at what it waits for",
        }));
    };
    waits::resolve(ctx.conn(), wait.id, resolution, answer, Some(by)).await?;
    ctx.wake(id);
    let data = json!({ "name": task.name, "kind": resolution });
    let told = Told::new(EventKind::TaskInstructed, data);
    ctx.record(told.project(task.project).task(id)).await?;
    Ok(task)
}

/// Says yes or no to a plan.
#[tracing::instrument(name = "app.workflow.approve", skip_all, fields(task.id = %id))]
pub async fn approve(ctx: &mut Ctx, id: TaskId, body: &Approve) -> Result<Task, Error> {
    let resolution = if body.approved { Resolution::Approved } else { Resolution::Rejected };
    let note = body.note.as_ref().map(|note| note.as_str());
    unmarked(note)?;
    resolve(ctx, id, (body.wait_id, WaitReason::Approval), resolution, note).await
}

/// Answers a task's question.
#[tracing::instrument(name = "app.workflow.answer", skip_all, fields(task.id = %id))]
pub async fn answer(ctx: &mut Ctx, id: TaskId, body: &AnswerQuestion) -> Result<Task, Error> {
    let text = Some(body.text.as_str());
    resolve(ctx, id, (body.wait_id, WaitReason::HumanInput), Resolution::Answered, text).await
}

/// Stops a task and everything that depends on it: whoever drives them is shut out, their jobs are not wanted any more.
pub(crate) async fn stop(ctx: &mut Ctx, task: Task) -> Result<Task, Error> {
    let now = ctx.now;
    let state = task.state.clone().cancel(now)?;
    let mut seen = BTreeSet::new();
    // Whoever makes a task below one of these holds that one until the new task can be seen: after it is locked, we look again.
    loop {
        let listed = workflow::unended_with_dependents(ctx.conn(), task.id).await?;
        let new: Vec<_> = listed.into_iter().filter(|id| seen.insert(*id)).collect();
        if new.is_empty() {
            break;
        }
        for id in new {
            stop_one(ctx, id, task.id).await?;
        }
    }
    Ok(Task { state, updated_at: now, ..task })
}

/// Stops one task, because of the one that was asked for.
async fn stop_one(ctx: &mut Ctx, id: TaskId, asked: TaskId) -> Result<(), Error> {
    let now = ctx.now;
    let Some(one) = tasks::lock(ctx.conn(), id).await? else { return Ok(()) };
    // It may have ended since it was listed.
    let Ok(state) = one.state.clone().cancel(now) else { return Ok(()) };
    workflow::revoke(ctx.conn(), id).await?;
    tasks::set_state(ctx.conn(), id, &state, now).await?;
    workflow::end(ctx.conn(), id, "cancelled").await?;
    if let Some(wait) = waits::lock_open(ctx.conn(), id).await? {
        waits::resolve(ctx.conn(), wait.id, Resolution::Cancelled, None, None).await?;
    }
    units::cancel_all(ctx.conn(), id).await?;
    jobs::cancel_unwanted(ctx.conn(), id).await?;
    crate::handoffs::drop_all(ctx, id).await?;
    agent_tokens::revoke_of_task(ctx.conn(), id, now).await?;
    let because = (id != asked).then_some(asked);
    let data = json!({ "name": one.name, "because_of": because });
    let told = Told::new(EventKind::TaskCancelled, data);
    ctx.record(told.project(one.project).task(id)).await
}
