//! What agents say: that they live, how far they are, what came of it, what they found. A report is a claim, not evidence.

use cynode_core::{
    events::EventKind,
    ids::{AgentTokenId, JobId, TaskId},
    roles::Role,
    tasks::Task,
};
use cynode_db::{
    agents::{self, NewVerification, Report, Speaker},
    handoffs::{self, Kept, Questions},
};
use cynode_policy::agents::Agent;
use cynode_wire::{
    handoffs::HandoffRequest,
    reports::{ReportKind, ReportView},
    workflow::{Finding, VerificationStatus},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{App, Ctx, Error, context::Told, environment::derived, handoffs::Subject};

/// Most questions of one job that the project manager is asked, and most for which a person is asked beside them.
const MOST_QUESTIONS: i64 = 10;

/// Most bytes of data that go with a report or a checkpoint.
const MOST_BYTES: usize = 64 * 1024;

/// Who speaks, from the token.
fn speaker(agent: &Agent, task: TaskId) -> Speaker {
    Speaker { agent: agent.token, task, job: agent.job }
}

async fn worked_on(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    let task = crate::tasks::get(ctx, id).await?;
    ctx.require_in(task.project, Role::Operator).await?;
    Ok(task)
}

/// Notes that an agent is alive.
#[tracing::instrument(name = "app.reports.heartbeat", skip_all)]
pub async fn heartbeat(
    ctx: &mut Ctx,
    agent: &Agent,
    task: TaskId,
    note: Option<String>,
) -> Result<(), Error> {
    worked_on(ctx, task).await?;
    if note.as_ref().is_some_and(|note| note.chars().count() > 2000) {
        return Err(Error::Invalid("`note` has at most 2000 characters".into()));
    }
    let now = ctx.now;
    Ok(agents::heartbeat(ctx.conn(), speaker(agent, task), note.as_deref(), now).await?)
}

/// Keeps what an agent wants to find again after a restart.
#[tracing::instrument(name = "app.reports.checkpoint", skip_all)]
pub async fn checkpoint(
    ctx: &mut Ctx,
    agent: &Agent,
    task: TaskId,
    state: &Value,
) -> Result<(), Error> {
    worked_on(ctx, task).await?;
    small(state)?;
    let now = ctx.now;
    Ok(agents::checkpoint(ctx.conn(), speaker(agent, task), state, now).await?)
}

fn small(value: &Value) -> Result<(), Error> {
    if value.to_string().len() > MOST_BYTES {
        return Err(Error::Invalid(format!("the data has at most {MOST_BYTES} bytes")));
    }
    Ok(())
}

/// The checkpoint that was kept last for the task and job.
#[tracing::instrument(name = "app.reports.last_checkpoint", skip_all)]
pub async fn last_checkpoint(
    ctx: &mut Ctx,
    task: TaskId,
    job: Option<JobId>,
) -> Result<Option<Value>, Error> {
    crate::tasks::get(ctx, task).await?;
    Ok(agents::last_checkpoint(ctx.conn(), task, job).await?)
}

/// What an agent reports, without the secrets that we know or recognise.
pub async fn without_secrets(
    app: &App,
    summary: String,
    mut details: Value,
) -> Result<(String, Value), Error> {
    crate::inference::redact(app, &mut details).await?;
    Ok((crate::inference::redacted(app, summary).await?, details))
}

/// Keeps a report to the project manager. What goes with it has the form of its kind; whoever works on a job reports while the job
/// runs, and not after. A report that asks for a decision is handed off.
#[tracing::instrument(name = "app.reports.report", skip_all)]
pub async fn report(
    ctx: &mut Ctx,
    agent: &Agent,
    task: TaskId,
    kind: ReportKind,
    summary: String,
    details: Value,
) -> Result<Uuid, Error> {
    let found = worked_on(ctx, task).await?;
    if !(1..=20_000).contains(&summary.chars().count()) {
        return Err(Error::Invalid("`summary` has 1 to 20000 characters".into()));
    }
    small(&details)?;
    let details = kind.payload(details).map_err(Error::Invalid)?;
    let details = serde_json::to_value(details).map_err(|error| Error::Internal(error.into()))?;
    let unit = match agent.job {
        Some(job) => {
            let unit = handoffs::running_unit(ctx.conn(), job).await?;
            Some(unit.ok_or(Error::Fenced("the job has ended, or was given to somebody else"))?)
        }
        None => None,
    };
    let asks = agent.job.filter(|_| kind.asks());
    if let Some(job) = asks {
        handoffs::one_question_at_a_time(ctx.conn(), job).await?;
    }
    let (id, now) = (ctx.uuid(), ctx.now);
    let report = Report {
        id,
        who: speaker(agent, task),
        role: agent.role.as_str(),
        project: found.project,
        kind: kind.as_str().to_owned(),
        summary,
        details,
    };
    agents::report(ctx.conn(), &report, now).await?;
    if kind == ReportKind::WorkCompleted {
        agents::complete(ctx.conn(), report.who, now).await?;
    }
    let data = json!({ "report_id": id, "kind": kind, "role": agent.role });
    ctx.record(Told::new(EventKind::AgentReported, data).project(found.project).task(task)).await?;
    if let Some(job) = asks {
        let subject = Subject {
            user: found.created_by,
            project: found.project,
            task: Some(task),
            run: agent.run,
            job: Some(job),
            thread: None,
        };
        let report = ReportView {
            report_id: id,
            agent_role: agent.role,
            job_id: agent.job,
            unit,
            kind,
            summary: report.summary,
            details: report.details,
            reported_at: now,
        };
        ask(ctx, job, subject, report).await?;
    }
    Ok(id)
}

/// Whether a job may ask one thing more now. No model is needed to ask a person, so that waits for no other question; only for the
/// one before that asks for a person too.
const fn may_ask(asked: Questions, of_people: bool) -> bool {
    if of_people {
        asked.of_people_open == 0 && asked.of_people < MOST_QUESTIONS
    } else {
        asked.open == 0 && asked.all < MOST_QUESTIONS
    }
}

/// Hands a question off: one of an agent at a time, and not without end. The rest is kept, and comes in its turn.
async fn ask(ctx: &mut Ctx, job: JobId, subject: Subject, report: ReportView) -> Result<(), Error> {
    let id = report.report_id;
    if let Some(same) =
        handoffs::asks_the_same(ctx.conn(), job, report.kind, &report.summary).await?
    {
        return Ok(handoffs::asks(ctx.conn(), same, id).await?);
    }
    let asked = handoffs::reports_of_job(ctx.conn(), job).await?;
    if !may_ask(asked, report.kind == ReportKind::RequestHumanInput) {
        return Ok(());
    }
    let request = HandoffRequest::Report { report };
    let handoff = crate::handoffs::hand_off(ctx, subject, None, None, &request).await?;
    Ok(handoffs::asks(ctx.conn(), handoff, id).await?)
}

/// Hands off what an agent asked while the question that has ended was open. Its job's questions are locked.
pub(crate) async fn ask_next(ctx: &mut Ctx, ended: &Kept) -> Result<(), Error> {
    let Some(job) = ended.job else { return Ok(()) };
    let asked = handoffs::reports_of_job(ctx.conn(), job).await?;
    // What may not be asked now must not stand before what may.
    let (of_people, others) = (may_ask(asked, true), may_ask(asked, false));
    let report = handoffs::unasked(ctx.conn(), job, of_people, others).await?;
    let Some(report) = report else { return Ok(()) };
    let subject = Subject {
        user: ended.user,
        project: ended.project,
        task: ended.task,
        run: ended.run,
        job: ended.job,
        thread: None,
    };
    ask(ctx, job, subject, report).await
}

/// Keeps a judgement of a task's work.
#[tracing::instrument(name = "app.reports.verify", skip_all)]
pub async fn verify(
    ctx: &mut Ctx,
    agent: AgentTokenId,
    role: &'static str,
    task: TaskId,
    unit: Option<String>,
    status: VerificationStatus,
    findings: Vec<Finding>,
) -> Result<Uuid, Error> {
    // The program that drives tasks works in nobody's name; everybody else must be allowed to see the task.
    let project = match ctx.caller() {
        Ok(_) => worked_on(ctx, task).await?.project,
        Err(_) => {
            let found = cynode_db::tasks::get(ctx.conn(), task).await?;
            found.ok_or_else(|| Error::not_found("task", task))?.project
        }
    };
    let findings = serde_json::to_value(findings).map_err(|error| Error::Internal(error.into()))?;
    small(&findings)?;
    // A judgement of a handoff is one, however often the handoff is begun.
    let id = match handoffs::of_token(ctx.conn(), agent).await? {
        Some(handoff) => {
            let unit = unit.as_deref().unwrap_or_default();
            derived(format!("{handoff} {unit}"))
        }
        None => ctx.uuid(),
    };
    let now = ctx.now;
    let status = match status {
        VerificationStatus::Pass => "pass",
        VerificationStatus::Fail => "fail",
        VerificationStatus::NeedsClarification => "needs_clarification",
    };
    let new = NewVerification { id, agent, role, task, unit, status, findings };
    if !agents::verify(ctx.conn(), &new, now).await? {
        return Ok(id);
    }
    let data = json!({ "verification_id": id, "status": status, "role": role });
    ctx.record(Told::new(EventKind::VerificationRecorded, data).project(project).task(task))
        .await?;
    Ok(id)
}

/// The images that sandboxes may be made from.
#[tracing::instrument(name = "app.reports.images", skip_all)]
pub async fn images(ctx: &mut Ctx) -> Result<Vec<String>, Error> {
    ctx.caller()?;
    Ok(agents::images(ctx.conn()).await?)
}

/// Adds an image. People need the role of an admin; for the project manager a person has switched it on, and whoever it works for
/// must be an operator still.
#[tracing::instrument(name = "app.reports.add_image", skip_all)]
pub async fn add_image(ctx: &mut Ctx, image: &str) -> Result<(), Error> {
    let caller = match ctx.caller()?.bounds {
        Some(bounds) => ctx.require_in(bounds.project, Role::Operator).await?,
        None => ctx.require(Role::Admin)?,
    };
    let good = (1..=300).contains(&image.len())
        && image.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b));
    if !good {
        return Err(Error::Invalid(
            "`image` is the name of an image with its tag or digest".into(),
        ));
    }
    let now = ctx.now;
    agents::add_image(ctx.conn(), image, caller.user, now).await?;
    ctx.record(Told::new(EventKind::ImagesChanged, json!({ "image": image, "allowed": true })))
        .await
}

/// Removes an image.
#[tracing::instrument(name = "app.reports.remove_image", skip_all)]
pub async fn remove_image(ctx: &mut Ctx, image: &str) -> Result<(), Error> {
    ctx.require(Role::Admin)?;
    if !agents::remove_image(ctx.conn(), image).await? {
        return Err(Error::not_found("image", image));
    }
    ctx.record(Told::new(EventKind::ImagesChanged, json!({ "image": image, "allowed": false })))
        .await
}
