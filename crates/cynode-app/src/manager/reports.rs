//! Reports of agents: heartbeats, checkpoints, results and findings. A report is a claim, not evidence.

use cynode_core::{
    events::EventKind,
    ids::{AgentTokenId, JobId, TaskId},
    roles::UserRole,
    tasks::Task,
    workflow::{
        findings::VerificationFinding,
        handoffs::HandoffRequest,
        reports::{ReportKind, ReportView},
    },
};
use cynode_db::manager::{
    handoffs::{self, HandoffRecord, ReportHandoffCounts},
    reports::{self, NewAgentReport, NewVerification, ReportingAgent},
};
use cynode_policy::agents::AgentIdentity;
use cynode_wire::workflow::VerificationStatus;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    App, Ctx, Error,
    manager::handoffs::HandoffSubject,
    platform::{context::EventDraft, environment::derive_uuid, operation},
};

/// Maximum number of questions of one job to the project manager, and separately of those that ask for a person.
const MAX_JOB_QUESTIONS: i64 = 10;

/// Maximum size of the data of a report or a checkpoint.
const MAX_REPORT_BYTES: usize = 64 * 1024;

/// Returns the reporting agent from its token.
fn to_speaker(agent: &AgentIdentity, task: TaskId) -> ReportingAgent {
    ReportingAgent { agent: agent.token, task, job: agent.job }
}

async fn require_operable_task(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    let task = crate::tasks::get_task(ctx, id).await?;
    ctx.require_project_role(task.project, UserRole::Operator).await?;
    Ok(task)
}

/// Records that an agent is alive.
#[tracing::instrument(name = "app.reports.record_agent_heartbeat", skip_all)]
#[operation]
pub async fn record_agent_heartbeat(
    ctx: &mut Ctx,
    agent: &AgentIdentity,
    task: TaskId,
    note: Option<String>,
) -> Result<(), Error> {
    require_operable_task(ctx, task).await?;
    if note.as_ref().is_some_and(|note| note.chars().count() > 2000) {
        return Err(Error::Invalid("`note` has at most 2000 characters".into()));
    }
    let now = ctx.now;
    Ok(reports::record_heartbeat(ctx.conn(), to_speaker(agent, task), note.as_deref(), now).await?)
}

/// Stores the checkpoint from which an agent resumes after a restart.
#[tracing::instrument(name = "app.reports.store_agent_checkpoint", skip_all)]
#[operation]
pub async fn store_agent_checkpoint(
    ctx: &mut Ctx,
    agent: &AgentIdentity,
    task: TaskId,
    state: &Value,
) -> Result<(), Error> {
    require_operable_task(ctx, task).await?;
    validate_data_size(state)?;
    let now = ctx.now;
    Ok(reports::save_agent_checkpoint(ctx.conn(), to_speaker(agent, task), state, now).await?)
}

fn validate_data_size(value: &Value) -> Result<(), Error> {
    if value.to_string().len() > MAX_REPORT_BYTES {
        return Err(Error::Invalid(format!("the data has at most {MAX_REPORT_BYTES} bytes")));
    }
    Ok(())
}

/// Returns the last checkpoint of the task and job.
#[tracing::instrument(name = "app.reports.last_checkpoint", skip_all)]
#[operation]
pub async fn last_checkpoint(
    ctx: &mut Ctx,
    task: TaskId,
    job: Option<JobId>,
) -> Result<Option<Value>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    Ok(reports::last_checkpoint(ctx.conn(), task, job).await?)
}

/// Redacts known and recognized secrets in a report.
#[operation]
pub async fn redact_report(
    app: &App,
    summary: String,
    mut details: Value,
) -> Result<(String, Value), Error> {
    crate::platform::redaction::redact_value(app, &mut details).await?;
    Ok((crate::platform::redaction::redact_text(app, summary).await?, details))
}

/// Stores a report to the project manager. Its data must have the form of its kind. A job can report only while it
/// runs. A report that asks for a decision becomes a handoff.
#[tracing::instrument(name = "app.reports.store_report", skip_all)]
#[operation]
pub async fn store_report(
    ctx: &mut Ctx,
    agent: &AgentIdentity,
    task: TaskId,
    kind: ReportKind,
    summary: String,
    details: Value,
) -> Result<Uuid, Error> {
    let found = require_operable_task(ctx, task).await?;
    if !(1..=20_000).contains(&summary.chars().count()) {
        return Err(Error::Invalid("`summary` has 1 to 20000 characters".into()));
    }
    validate_data_size(&details)?;
    let details = kind.parse_payload(details).map_err(Error::Invalid)?;
    let details = serde_json::to_value(details).map_err(|error| Error::Internal(error.into()))?;
    let unit = match agent.job {
        Some(job) => {
            let unit = handoffs::running_unit(ctx.conn(), job).await?;
            Some(unit.ok_or(Error::Fenced("the job has ended, or was given to somebody else"))?)
        }
        None => None,
    };
    let asks = agent.job.filter(|_| kind.needs_decision());
    if let Some(job) = asks {
        handoffs::lock_job_questions(ctx.conn(), job).await?;
    }
    let (id, now) = (ctx.new_uuid(), ctx.now);
    let report = NewAgentReport {
        id,
        who: to_speaker(agent, task),
        role: agent.role.as_str(),
        project: found.project,
        kind: kind.as_str().to_owned(),
        summary,
        details,
    };
    reports::insert_agent_report(ctx.conn(), &report, now).await?;
    if kind == ReportKind::WorkCompleted {
        reports::record_completion(ctx.conn(), report.who, now).await?;
    }
    let data = json!({ "report_id": id, "kind": kind, "role": agent.role });
    ctx.record_event(
        EventDraft::new(EventKind::AgentReported, data).with_project(found.project).with_task(task),
    )
    .await?;
    if let Some(job) = asks {
        let subject = HandoffSubject {
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
        hand_off_question(ctx, job, subject, report).await?;
    }
    Ok(id)
}

/// Returns whether a job may ask another question now. A question to a person needs no model, so it waits only for an earlier
/// question to a person.
const fn may_ask_question(asked: ReportHandoffCounts, of_people: bool) -> bool {
    if of_people {
        asked.of_people_open == 0 && asked.of_people < MAX_JOB_QUESTIONS
    } else {
        asked.open == 0 && asked.all < MAX_JOB_QUESTIONS
    }
}

/// Creates a handoff for a question: one per agent at a time, up to a maximum. Further questions are stored and asked
/// in turn.
async fn hand_off_question(
    ctx: &mut Ctx,
    job: JobId,
    subject: HandoffSubject,
    report: ReportView,
) -> Result<(), Error> {
    let id = report.report_id;
    if let Some(same) =
        handoffs::find_duplicate_question(ctx.conn(), job, report.kind, &report.summary).await?
    {
        return Ok(handoffs::link_report_handoff(ctx.conn(), same, id).await?);
    }
    let asked = handoffs::count_job_report_handoffs(ctx.conn(), job).await?;
    if !may_ask_question(asked, report.kind == ReportKind::RequestHumanInput) {
        return Ok(());
    }
    let request = HandoffRequest::Report { report };
    let handoff =
        crate::manager::handoffs::store_handoff(ctx, subject, None, None, &request).await?;
    Ok(handoffs::link_report_handoff(ctx.conn(), handoff, id).await?)
}

/// Creates a handoff for the next stored question, after an earlier one has ended. The questions of the job are
/// locked.
pub(crate) async fn hand_off_next_question(
    ctx: &mut Ctx,
    ended: &HandoffRecord,
) -> Result<(), Error> {
    let Some(job) = ended.job else { return Ok(()) };
    let asked = handoffs::count_job_report_handoffs(ctx.conn(), job).await?;
    // A question that may not be asked now must not block one that may.
    let (of_people, others) = (may_ask_question(asked, true), may_ask_question(asked, false));
    let report = handoffs::next_unasked_report(ctx.conn(), job, of_people, others).await?;
    let Some(report) = report else { return Ok(()) };
    let subject = HandoffSubject {
        user: ended.user,
        project: ended.project,
        task: ended.task,
        run: ended.run,
        job: ended.job,
        thread: None,
    };
    hand_off_question(ctx, job, subject, report).await
}

/// Stores a verification of a task's work.
#[tracing::instrument(name = "app.reports.record_verification", skip_all)]
#[operation]
pub async fn record_verification(
    ctx: &mut Ctx,
    agent: AgentTokenId,
    role: &'static str,
    task: TaskId,
    unit: Option<String>,
    status: VerificationStatus,
    findings: Vec<VerificationFinding>,
) -> Result<Uuid, Error> {
    // The runner acts in nobody's name. Every other caller must be allowed to see the task.
    let project = match ctx.caller() {
        Ok(_) => require_operable_task(ctx, task).await?.project,
        Err(_) => {
            let found = cynode_db::tasks::get_task(ctx.conn(), task).await?;
            found.ok_or_else(|| Error::not_found("task", task))?.project
        }
    };
    let findings = serde_json::to_value(findings).map_err(|error| Error::Internal(error.into()))?;
    validate_data_size(&findings)?;
    // A handoff gives one verification, regardless of its number of attempts.
    let id = match handoffs::handoff_of_token(ctx.conn(), agent).await? {
        Some(handoff) => {
            let unit = unit.as_deref().unwrap_or_default();
            derive_uuid(format!("{handoff} {unit}"))
        }
        None => ctx.new_uuid(),
    };
    let now = ctx.now;
    let status = match status {
        VerificationStatus::Pass => "pass",
        VerificationStatus::Fail => "fail",
        VerificationStatus::NeedsClarification => "needs_clarification",
    };
    let new = NewVerification { id, agent, role, task, unit, status, findings };
    if !reports::insert_verification(ctx.conn(), &new, now).await? {
        return Ok(id);
    }
    let data = json!({ "verification_id": id, "status": status, "role": role });
    ctx.record_event(
        EventDraft::new(EventKind::VerificationRecorded, data)
            .with_project(project)
            .with_task(task),
    )
    .await?;
    Ok(id)
}

/// Lists the allowlist of sandbox images.
#[tracing::instrument(name = "app.reports.list_images", skip_all)]
#[operation]
pub async fn list_images(ctx: &mut Ctx) -> Result<Vec<String>, Error> {
    ctx.caller()?;
    Ok(reports::list_allowed_images(ctx.conn()).await?)
}

/// Adds an image to the allowlist. A person needs the role of an admin. For the project manager a person has enabled
/// it, and the user that it works for must still be an operator.
#[tracing::instrument(name = "app.reports.add_image", skip_all)]
#[operation]
pub async fn add_image(ctx: &mut Ctx, image: &str) -> Result<(), Error> {
    let caller = match ctx.caller()?.bounds {
        Some(bounds) => ctx.require_project_role(bounds.project, UserRole::Operator).await?,
        None => ctx.require_role(UserRole::Admin)?,
    };
    let good = (1..=300).contains(&image.len())
        && image.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b));
    if !good {
        return Err(Error::Invalid(
            "`image` is the name of an image with its tag or digest".into(),
        ));
    }
    let now = ctx.now;
    reports::add_allowed_image(ctx.conn(), image, caller.user, now).await?;
    ctx.record_event(EventDraft::new(
        EventKind::ImagesChanged,
        json!({ "image": image, "allowed": true }),
    ))
    .await
}

/// Removes an image from the allowlist.
#[tracing::instrument(name = "app.reports.remove_image", skip_all)]
#[operation]
pub async fn remove_image(ctx: &mut Ctx, image: &str) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin)?;
    if !reports::remove_allowed_image(ctx.conn(), image).await? {
        return Err(Error::not_found("image", image));
    }
    ctx.record_event(EventDraft::new(
        EventKind::ImagesChanged,
        json!({ "image": image, "allowed": false }),
    ))
    .await
}
