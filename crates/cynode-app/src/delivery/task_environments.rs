//! Environment of a task: what its run and its project manager are told, and what people decide about it during the task.
//!
//! **Invariant**: a version is accepted only in the name of a person who may accept it, and only as they were shown it.

use cynode_core::{
    environments::{
        EnvironmentOrigin, EnvironmentRef, EnvironmentState, ProposalReason, REPOSITORY_FILE,
    },
    events::EventKind,
    ids::{ProjectId, TaskId, UserId},
    roles::UserRole,
    workflow::{
        environments::{
            EnvironmentBrief, EnvironmentChoice, EnvironmentFacts, EnvironmentOffer,
            is_accept_answer,
        },
        jobs::SandboxNeeds,
        limits::RunLimits,
    },
};
use cynode_db::{
    Conn,
    delivery::environments::{self, EnvironmentDecision, EnvironmentRecord},
    identity::authentication,
    tasks,
    workflow::{self, waits},
};
use serde_json::{Value, json};

use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{context::EventDraft, error::log_background_error},
};

/// Detects the environment of a project when work on a task begins, where a person would be asked about it. A failure is logged: it
/// must not keep the work from beginning.
pub(crate) async fn propose_for_task(app: &App, request: &OperationRequest, task: TaskId) {
    let detect = async {
        let subject = app.read(request, |ctx| Box::pin(find_detection_subject(ctx, task))).await?;
        if let Some(project) = subject {
            super::environments::propose_detected(app, project).await?;
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = Box::pin(detect).await {
        log_background_error(
            "environment.detect_failed",
            &error,
            "the environment of a project could not be detected; the task goes on without a proposal",
        );
    }
}

/// Returns the project whose environment is to be detected: it has a repository and no accepted environment, and the task begins.
async fn find_detection_subject(ctx: &mut Ctx, id: TaskId) -> Result<Option<ProjectId>, Error> {
    if !environments::may_need_detection(ctx.conn(), id).await? {
        return Ok(None);
    }
    let Some(task) = tasks::get_task(ctx.conn(), id).await? else { return Ok(None) };
    let project = task.project;
    let preferences = crate::tasks::preferences::workflow_preferences(ctx, &task).await?;
    let (limits, _) = RunLimits::from_preferences(&preferences);
    Ok(limits.ask_environment.then_some(project))
}

/// Returns the environment that jobs of a task run in: the accepted one, unless a person wants the task to go on without it.
pub(crate) async fn environment_of_task(
    conn: &mut Conn,
    project: ProjectId,
    task: TaskId,
) -> Result<Option<EnvironmentBrief>, Error> {
    let Some(record) = environments::get_accepted_environment(conn, project).await? else {
        return Ok(None);
    };
    if goes_without_environment(conn, task).await? {
        return Ok(None);
    }
    Ok(Some(EnvironmentBrief::new(record.reference(), &record.spec)))
}

/// Returns whether a person wants a task to go on without an environment. It is stored with the state of its run.
async fn goes_without_environment(conn: &mut Conn, task: TaskId) -> Result<bool, Error> {
    let standing = workflow::get_run_status(conn, task).await?;
    let state = standing.and_then(|it| it.checkpoint).map(|checkpoint| checkpoint.state);
    let choice = state.and_then(|mut state| state.get_mut("environment").map(Value::take));
    let choice = choice.and_then(|it| serde_json::from_value::<EnvironmentChoice>(it).ok());
    Ok(choice.is_some_and(|choice| choice.without))
}

/// Returns what a run and its project manager are told of the environment: the one that jobs run in or, where none is accepted, the
/// newest proposal that jobs would need.
pub(crate) async fn load_environment_facts(
    conn: &mut Conn,
    id: TaskId,
) -> Result<Option<EnvironmentFacts>, Error> {
    let Some(task) = tasks::get_task(conn, id).await? else { return Ok(None) };
    if environments::get_accepted_environment(conn, task.project).await?.is_some() {
        let accepted = environment_of_task(conn, task.project, id).await?;
        let told = |accepted| EnvironmentFacts { accepted: Some(accepted), proposed: None };
        return Ok(accepted.map(told));
    }
    // A task whose plan was given with it, such as a trial, plans nothing that an environment could help.
    if environments::get_task_plan(conn, id).await?.is_some() {
        return Ok(None);
    }
    let proposal = environments::get_newest_proposal(conn, task.project).await?;
    let proposal = proposal.filter(|record| record.spec.needs_setup());
    let proposed = proposal.map(|record| {
        EnvironmentOffer::new(record.reference(), &explain_lines(&record), &record.warnings)
    });
    let told = |proposed| EnvironmentFacts { accepted: None, proposed: Some(proposed) };
    Ok(proposed.map(told))
}

/// Returns the lines of a proposal with their reasons. One that was written has no reasons of its own; a person is shown its lines all the
/// same.
fn explain_lines(record: &EnvironmentRecord) -> Vec<ProposalReason> {
    if !record.reasons.is_empty() {
        return record.reasons.clone();
    }
    let (file, reason) = match record.origin {
        EnvironmentOrigin::Repository => (REPOSITORY_FILE, "The repository brings it."),
        EnvironmentOrigin::Devcontainer | EnvironmentOrigin::Detected => ("", "It was detected."),
        EnvironmentOrigin::Person => ("", "A person wrote it."),
    };
    let explain = |line| ProposalReason { line, file: file.to_owned(), reason: reason.to_owned() };
    record.spec.list_lines().into_iter().map(explain).collect()
}

/// Returns the sandbox of checks: that of the work, in the environment that jobs of the task run in now.
pub(crate) async fn sandbox_of_checks(
    conn: &mut Conn,
    id: TaskId,
    own: SandboxNeeds,
) -> Result<SandboxNeeds, Error> {
    let Some(task) = tasks::get_task(conn, id).await? else { return Ok(own) };
    let needs = match environment_of_task(conn, task.project, id).await? {
        Some(environment) => environment.sandbox_needs(),
        // It ran in an environment that a person does not want any more.
        None if own.environment.is_some() && goes_without_environment(conn, id).await? => {
            SandboxNeeds::plain_sandbox()
        }
        None => return Ok(own),
    };
    Ok(SandboxNeeds {
        memory_mib: needs.memory_mib.max(own.memory_mib),
        disk_mib: needs.disk_mib.max(own.disk_mib),
        egress_hosts: own.egress_hosts,
        ..needs
    })
}

/// Accepts a proposed version in the name of the person who answered the task's question. Nothing changes if they said something else, if
/// they may not accept it, or if it is not the proposal that they were shown: the run asks again.
pub(crate) async fn accept_as_answered(
    ctx: &mut Ctx,
    id: TaskId,
    shown: &EnvironmentRef,
) -> Result<(), Error> {
    let task = tasks::get_task(ctx.conn(), id).await?;
    let task = task.ok_or_else(|| Error::not_found("task", id))?;
    let (project, version) = (task.project, shown.version);
    let answer = waits::last_person_answer(ctx.conn(), id).await?;
    let Some((person, _)) = answer.filter(|(_, words)| is_accept_answer(words)) else {
        return Ok(());
    };
    if !is_project_admin(ctx.conn(), person, project).await? {
        tracing::info!(
            event = "environment.not_accepted",
            task.id = %id,
            project.id = %project,
            user.id = %person,
            version,
            "an environment was not accepted: only an admin of the project may accept it"
        );
        return Ok(());
    }
    environments::lock_environments(ctx.conn(), project).await?;
    let record = environments::get_environment(ctx.conn(), project, version).await?;
    let Some(record) = record.filter(|record| {
        record.digest == shown.digest && record.state == EnvironmentState::Proposed
    }) else {
        return Ok(());
    };
    let note = format!("accepted by an answer to task {id}");
    let decision =
        EnvironmentDecision { accepted: true, decided_by: person, note: Some(note.as_str()) };
    let now = ctx.now;
    if !environments::decide_environment(ctx.conn(), project, version, &decision, now).await? {
        return Ok(());
    }
    let data =
        json!({ "version": version, "origin": record.origin.as_str(), "digest": record.digest });
    let draft = EventDraft::new(EventKind::EnvironmentAccepted, data);
    ctx.record_event(draft.with_project(project).with_task(id)).await
}

/// Returns whether a person may accept environments of a project: by their role in the installation or in the project.
async fn is_project_admin(
    conn: &mut Conn,
    person: UserId,
    project: ProjectId,
) -> Result<bool, Error> {
    let everywhere = authentication::find_person_role(conn, person).await?;
    let own = authentication::project_role(conn, person, project).await?;
    Ok(own.max(everywhere) >= Some(UserRole::Admin))
}
