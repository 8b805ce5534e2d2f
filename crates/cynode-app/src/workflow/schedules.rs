//! Schedules: cron-like work in a user's name.
//!
//! **Invariant**: a due time fires once, whatever the number of processes. The process that fires a schedule holds its
//! row lock; the work, its record and the next due time are one transaction. A prompt goes to the project manager
//! unchanged; a complete task is created by the same operation that users call.

mod firing;
mod timetable;

use std::collections::HashMap;

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, ScheduleId, TaskId},
    paging::{Page, PageRequest},
    roles::UserRole,
    schedules::{Schedule, ScheduleAction, ScheduleTrigger, TaskTemplate},
    workflow::handoffs::HandoffAnswer,
};
use cynode_db::workflow::schedules::{self, FiringRecord, ScheduleFilter};
use cynode_wire::workflow::schedules::{
    CreateSchedule, FiredTask, FiringView, ScheduleView, UpdateSchedule,
};
use serde_json::json;
use time::OffsetDateTime;

use self::timetable::Timetable;
use crate::{
    App, Ctx, Error,
    platform::{context::EventDraft, operation},
    tasks::{self, profiles},
};

pub use firing::{fire_due_schedules, fire_schedule_now, run_scheduler};

/// Maximum number of schedules of a project. It stops an agent that creates them in a loop.
const MAX_PROJECT_SCHEDULES: i64 = 200;

/// Redacts known and recognized secrets in the texts of a schedule.
#[operation]
pub async fn redact_schedule(app: &App, action: &mut ScheduleAction) -> Result<(), Error> {
    let texts = match action {
        ScheduleAction::Words { text } => vec![text],
        ScheduleAction::Task(TaskTemplate { description, acceptance_criteria, .. }) => {
            tasks::task_texts(description, acceptance_criteria)
        }
    };
    crate::platform::redaction::redact_prose(app, texts).await
}

/// Creates a schedule. It acts in the name of the caller.
#[tracing::instrument(name = "app.schedules.create_schedule", skip_all, fields(project.id = %body.project_id))]
#[operation]
pub async fn create_schedule(ctx: &mut Ctx, body: CreateSchedule) -> Result<ScheduleView, Error> {
    let caller = ctx.require_project_role(body.project_id, UserRole::Operator).await?;
    validate_action(&body.action)?;
    let profile = tasks::profile_for_caller(ctx, caller.credential, body.profile).await?;
    profiles::require_named_profile(ctx.conn(), body.project_id, profile.as_ref()).await?;
    let next = next_due_time(&body.trigger, ctx.now)?;
    if schedules::count_schedules(ctx.conn(), body.project_id).await? >= MAX_PROJECT_SCHEDULES {
        return Err(Error::LimitExceeded(format!(
            "a project has at most {MAX_PROJECT_SCHEDULES} schedules: remove one that is not needed"
        )));
    }
    let schedule = Schedule {
        id: ScheduleId::from_uuid(ctx.new_uuid()),
        project: body.project_id,
        name: body.name,
        trigger: body.trigger,
        action: body.action,
        profile,
        missed_policy: body.missed_policy,
        enabled: body.enabled,
        next_at: body.enabled.then_some(next),
        firings: 0,
        version: 1,
        unreviewed: caller.bounds.is_some(),
        acts_for: caller.user,
        created_by: caller.user,
        created_at: ctx.now,
        updated_at: ctx.now,
    };
    let stored = schedules::insert_schedule(ctx.conn(), &schedule).await;
    map_store_error(stored, &schedule)?;
    record_schedule_event(ctx, &schedule, "created").await?;
    Ok(to_schedule_view(schedule, None))
}

/// Updates a schedule. Optimistic locking: a concurrent update is a version conflict. From then on it acts in the
/// name of the caller: nobody can make another user say words they did not write.
#[tracing::instrument(name = "app.schedules.update_schedule", skip_all, fields(schedule.id = %id))]
#[operation]
pub async fn update_schedule(
    ctx: &mut Ctx,
    id: ScheduleId,
    body: UpdateSchedule,
) -> Result<ScheduleView, Error> {
    let mut schedule = lock_schedule(ctx, id).await?;
    let caller = ctx.require_project_role(schedule.project, UserRole::Operator).await?;
    let (expected, actual) = (i64::from(body.expected_version), schedule.version);
    if expected != actual {
        return Err(Error::VersionConflict { key: schedule.name.into(), expected, actual });
    }
    let was_enabled = schedule.enabled;
    schedule.enabled = body.enabled.unwrap_or(was_enabled);
    if let Some(action) = body.action {
        validate_action(&action)?;
        schedule.action = action;
    }
    if let Some(wished) = body.profile {
        let wished = tasks::profile_for_caller(ctx, caller.credential, Some(wished)).await?;
        let project = schedule.project;
        profiles::require_named_profile(ctx.conn(), project, wished.as_ref()).await?;
        schedule.profile = wished;
    }
    let retimed = body.trigger.is_some() || (schedule.enabled && !was_enabled);
    if let Some(trigger) = body.trigger {
        schedule.trigger = trigger;
    }
    if retimed {
        // A due time that has fired is over, regardless of the clock of this process.
        let done = schedules::last_due_at(ctx.conn(), id).await?;
        let from = done.map_or(ctx.now, |done| ctx.now.max(done));
        schedule.next_at = Some(next_due_time(&schedule.trigger, from)?);
    }
    schedule.next_at = schedule.next_at.filter(|_| schedule.enabled);
    schedule.name = body.name.unwrap_or(schedule.name);
    schedule.missed_policy = body.missed_policy.unwrap_or(schedule.missed_policy);
    (schedule.version, schedule.acts_for, schedule.updated_at) = (actual + 1, caller.user, ctx.now);
    schedule.unreviewed = caller.bounds.is_some();
    let stored = schedules::update_schedule(ctx.conn(), &schedule).await;
    map_store_error(stored, &schedule)?;
    record_schedule_event(ctx, &schedule, "updated").await?;
    load_schedule_view(ctx, schedule).await
}

/// Deletes a schedule. The work that it requested stays.
#[tracing::instrument(name = "app.schedules.delete_schedule", skip_all, fields(schedule.id = %id))]
#[operation]
pub async fn delete_schedule(ctx: &mut Ctx, id: ScheduleId) -> Result<(), Error> {
    let schedule = lock_schedule(ctx, id).await?;
    ctx.require_project_role(schedule.project, UserRole::Operator).await?;
    schedules::delete_schedule(ctx.conn(), id).await?;
    record_schedule_event(ctx, &schedule, "deleted").await
}

/// Returns one schedule with its last firing.
#[tracing::instrument(name = "app.schedules.get_schedule", skip_all, fields(schedule.id = %id))]
#[operation]
pub async fn get_schedule(ctx: &mut Ctx, id: ScheduleId) -> Result<ScheduleView, Error> {
    let schedule = require_visible_schedule(ctx, id).await?;
    load_schedule_view(ctx, schedule).await
}

/// Lists the schedules that the caller may see with their last firings, newest first.
#[tracing::instrument(name = "app.schedules.list_schedules", skip_all)]
#[operation]
pub async fn list_schedules(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    page: PageRequest,
) -> Result<Page<ScheduleView>, Error> {
    let filter = match project {
        Some(id) => {
            ctx.require_project_role(id, UserRole::Viewer).await?;
            ScheduleFilter { project, member: None }
        }
        None => ScheduleFilter { project, member: ctx.visibility_filter()? },
    };
    let found = schedules::list_schedules(ctx.conn(), filter, page).await?;
    let page = page.into_page(found, |schedule| schedule.id.as_uuid());
    let ids: Vec<ScheduleId> = page.items.iter().map(|schedule| schedule.id).collect();
    let mut last = last_firings(ctx, &ids).await?;
    Ok(page.map(|schedule| {
        let last = last.remove(&schedule.id);
        to_schedule_view(schedule, last)
    }))
}

/// Returns the next due time. Rejects a trigger that has none.
fn next_due_time(trigger: &ScheduleTrigger, now: OffsetDateTime) -> Result<OffsetDateTime, Error> {
    Timetable::parse_trigger(trigger)?.next_after(now).ok_or_else(|| {
        Error::Invalid("that time is over or never comes: give one that is to come".into())
    })
}

fn validate_action(action: &ScheduleAction) -> Result<(), Error> {
    match action {
        ScheduleAction::Words { .. } => Ok(()),
        ScheduleAction::Task(template) => {
            tasks::validate_criteria(&template.acceptance_criteria, &[])
        }
    }
}

fn map_store_error(
    stored: Result<(), cynode_db::DbError>,
    schedule: &Schedule,
) -> Result<(), Error> {
    match stored {
        Err(error) if error.is_refused_by("schedules_name_unique") => Err(Error::AlreadyExists {
            what: "a schedule with the name",
            name: schedule.name.to_string(),
        }),
        Err(error) if error.is_refused_by("schedules_project_id_fkey") => {
            Err(Error::not_found("project", schedule.project))
        }
        result => Ok(result?),
    }
}

/// Returns a schedule of a project that the caller may see.
async fn require_visible_schedule(ctx: &mut Ctx, id: ScheduleId) -> Result<Schedule, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("schedule", id);
    let schedule = schedules::get_schedule(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_project_role(schedule.project, UserRole::Viewer).await {
        // A schedule in a project that the caller may not see does not exist for the caller.
        Err(Error::NotFound { .. }) => Err(missing()),
        result => result.map(|_| schedule),
    }
}

/// Returns a visible schedule and locks it against concurrent changes and firings.
async fn lock_schedule(ctx: &mut Ctx, id: ScheduleId) -> Result<Schedule, Error> {
    require_visible_schedule(ctx, id).await?;
    schedules::lock_schedule(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("schedule", id))
}

async fn record_schedule_event(
    ctx: &mut Ctx,
    schedule: &Schedule,
    change: &str,
) -> Result<(), Error> {
    let data = json!({
        "schedule_id": schedule.id, "name": schedule.name, "change": change, "version": schedule.version,
        "enabled": schedule.enabled,
    });
    ctx.record_event(EventDraft::new(EventKind::ScheduleSet, data).with_project(schedule.project))
        .await
}

async fn load_schedule_view(ctx: &mut Ctx, schedule: Schedule) -> Result<ScheduleView, Error> {
    let last = last_firings(ctx, &[schedule.id]).await?.remove(&schedule.id);
    Ok(to_schedule_view(schedule, last))
}

/// Returns the last firing of each of these schedules.
async fn last_firings(
    ctx: &mut Ctx,
    ids: &[ScheduleId],
) -> Result<HashMap<ScheduleId, FiringView>, Error> {
    let firings = schedules::list_last_firings(ctx.conn(), ids).await?;
    let made: Vec<TaskId> = firings.iter().flat_map(tasks_of_firing).copied().collect();
    let made: HashMap<TaskId, FiredTask> = schedules::list_fired_tasks(ctx.conn(), &made)
        .await?
        .into_iter()
        .map(|(task_id, name, state)| (task_id, FiredTask { task_id, name, state }))
        .collect();
    Ok(firings.into_iter().map(|firing| (firing.schedule, to_firing_view(firing, &made))).collect())
}

/// Returns the tasks that a firing created.
fn tasks_of_firing(firing: &FiringRecord) -> impl Iterator<Item = &TaskId> {
    let interpreted = match &firing.answer {
        Some(HandoffAnswer::Interpreted { tasks, .. }) => tasks.as_slice(),
        _ => &[],
    };
    firing.task.iter().chain(interpreted)
}

fn to_firing_view(firing: FiringRecord, made: &HashMap<TaskId, FiredTask>) -> FiringView {
    let tasks = tasks_of_firing(&firing).filter_map(|id| made.get(id)).cloned().collect();
    let said = match firing.answer {
        Some(HandoffAnswer::Interpreted { note, .. }) => Some(note),
        _ => None,
    };
    FiringView {
        number: firing.number,
        cause: firing.cause,
        due_at: firing.due_at,
        fired_at: firing.fired_at,
        missed_count: firing.missed_count,
        outcome: firing.outcome,
        handoff_id: firing.handoff.map(|(id, _)| id),
        handoff_state: firing.handoff.map(|(_, state)| state),
        tasks,
        note: firing.reason.or(said),
        trace_id: firing.trace,
    }
}

fn to_schedule_view(schedule: Schedule, last_firing: Option<FiringView>) -> ScheduleView {
    ScheduleView {
        schedule_id: schedule.id,
        project_id: schedule.project,
        name: schedule.name,
        trigger: schedule.trigger,
        action: schedule.action,
        profile: schedule.profile,
        missed_policy: schedule.missed_policy,
        enabled: schedule.enabled,
        next_at: schedule.next_at,
        firings: schedule.firings,
        last_firing,
        version: schedule.version,
        unreviewed: schedule.unreviewed,
        acts_for: schedule.acts_for,
        created_by: schedule.created_by,
        created_at: schedule.created_at,
        updated_at: schedule.updated_at,
    }
}
