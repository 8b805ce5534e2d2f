//! Schedules: work that is asked for at its time, in somebody's name.
//!
//! **Invariant**: a time is due once, however many processes look: whoever fires a schedule holds its row, and what it asks for, what is
//! known of it and its next time are one transaction. Words go to the project manager as they are; only a whole task is made here, by
//! the same operation as everybody's.

mod firing;
mod timetable;

use std::collections::HashMap;

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, ScheduleId, TaskId},
    roles::Role,
    schedules::{Schedule, TaskTemplate, What, When},
};
use cynode_db::schedules::{self, Filter, Firing};
use cynode_wire::{
    handoffs::HandoffAnswer,
    page::{Page, PageRequest},
    schedules::{CreateSchedule, FiredTask, FiringView, ScheduleView, UpdateSchedule},
};
use serde_json::json;
use time::OffsetDateTime;

use self::timetable::Timetable;
use crate::{App, Ctx, Error, context::Told, inference, tasks};

pub use firing::{ask_now, run, turn};

/// Most schedules of a project: an agent that makes one after the other is stopped here.
const MOST: i64 = 200;

/// Takes the secrets that we know or recognise out of what a schedule is to ask for.
pub async fn without_secrets(app: &App, what: &mut What) -> Result<(), Error> {
    let texts = match what {
        What::Words { text } => vec![text],
        What::Task(TaskTemplate { description, acceptance_criteria, .. }) => {
            tasks::texts(description, acceptance_criteria)
        }
    };
    inference::without_secrets(app, texts).await
}

/// Makes a schedule. It acts in the name of the caller.
#[tracing::instrument(name = "app.schedules.create", skip_all, fields(project.id = %body.project_id))]
pub async fn create(ctx: &mut Ctx, body: CreateSchedule) -> Result<ScheduleView, Error> {
    let caller = ctx.require_in(body.project_id, Role::Operator).await?;
    check(&body.what)?;
    let next = next_time(&body.when, ctx.now)?;
    if schedules::count(ctx.conn(), body.project_id).await? >= MOST {
        return Err(Error::Clash(format!(
            "a project has at most {MOST} schedules: remove one that is not needed"
        )));
    }
    let schedule = Schedule {
        id: ScheduleId::from_uuid(ctx.uuid()),
        project: body.project_id,
        name: body.name,
        when: body.when,
        what: body.what,
        missed: body.missed,
        enabled: body.enabled,
        next_at: body.enabled.then_some(next),
        firings: 0,
        version: 1,
        acts_for: caller.user,
        created_by: caller.user,
        created_at: ctx.now,
        updated_at: ctx.now,
    };
    let stored = schedules::insert(ctx.conn(), &schedule).await;
    named(stored, &schedule)?;
    tell(ctx, &schedule, "created").await?;
    Ok(view(schedule, None))
}

/// Changes a schedule, if nobody did in between. It acts in the name of the caller from then on: nobody makes another say what
/// they did not write.
#[tracing::instrument(name = "app.schedules.update", skip_all, fields(schedule.id = %id))]
pub async fn update(
    ctx: &mut Ctx,
    id: ScheduleId,
    body: UpdateSchedule,
) -> Result<ScheduleView, Error> {
    let mut schedule = locked(ctx, id).await?;
    let caller = ctx.require_in(schedule.project, Role::Operator).await?;
    let (expected, actual) = (i64::from(body.expected_version), schedule.version);
    if expected != actual {
        return Err(Error::Version { key: schedule.name.into(), expected, actual });
    }
    let was_enabled = schedule.enabled;
    schedule.enabled = body.enabled.unwrap_or(was_enabled);
    if let Some(what) = body.what {
        check(&what)?;
        schedule.what = what;
    }
    let retimed = body.when.is_some() || (schedule.enabled && !was_enabled);
    if let Some(when) = body.when {
        schedule.when = when;
    }
    if retimed {
        // A time that was done is over, whatever the clock of this process says.
        let done = schedules::last_due(ctx.conn(), id).await?;
        let from = done.map_or(ctx.now, |done| ctx.now.max(done));
        schedule.next_at = Some(next_time(&schedule.when, from)?);
    }
    schedule.next_at = schedule.next_at.filter(|_| schedule.enabled);
    schedule.name = body.name.unwrap_or(schedule.name);
    schedule.missed = body.missed.unwrap_or(schedule.missed);
    (schedule.version, schedule.acts_for, schedule.updated_at) = (actual + 1, caller.user, ctx.now);
    let stored = schedules::update(ctx.conn(), &schedule).await;
    named(stored, &schedule)?;
    tell(ctx, &schedule, "updated").await?;
    one(ctx, schedule).await
}

/// Removes a schedule. What it asked for stays.
#[tracing::instrument(name = "app.schedules.delete", skip_all, fields(schedule.id = %id))]
pub async fn delete(ctx: &mut Ctx, id: ScheduleId) -> Result<(), Error> {
    let schedule = locked(ctx, id).await?;
    ctx.require_in(schedule.project, Role::Operator).await?;
    schedules::delete(ctx.conn(), id).await?;
    tell(ctx, &schedule, "deleted").await
}

/// One schedule, with what came of it last.
#[tracing::instrument(name = "app.schedules.get", skip_all, fields(schedule.id = %id))]
pub async fn get(ctx: &mut Ctx, id: ScheduleId) -> Result<ScheduleView, Error> {
    let schedule = seen(ctx, id).await?;
    one(ctx, schedule).await
}

/// The schedules that the caller may see, newest first, each with what came of it last.
#[tracing::instrument(name = "app.schedules.list", skip_all)]
pub async fn list(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    page: PageRequest,
) -> Result<Page<ScheduleView>, Error> {
    let filter = match project {
        Some(id) => {
            ctx.require_in(id, Role::Viewer).await?;
            Filter { project, member: None }
        }
        None => Filter { project, member: ctx.seen_by()? },
    };
    let found = schedules::list(ctx.conn(), filter, page).await?;
    let page = page.cut(found, |schedule| schedule.id.as_uuid());
    let ids: Vec<ScheduleId> = page.items.iter().map(|schedule| schedule.id).collect();
    let mut last = lasts(ctx, &ids).await?;
    Ok(page.map(|schedule| {
        let last = last.remove(&schedule.id);
        view(schedule, last)
    }))
}

/// The first time from now, which there must be.
fn next_time(when: &When, now: OffsetDateTime) -> Result<OffsetDateTime, Error> {
    Timetable::read(when)?.next_after(now).ok_or_else(|| {
        Error::Invalid("that time is over or never comes: give one that is to come".into())
    })
}

fn check(what: &What) -> Result<(), Error> {
    match what {
        What::Words { .. } => Ok(()),
        What::Task(template) => tasks::check(&template.acceptance_criteria, &[]),
    }
}

fn named(stored: Result<(), cynode_db::DbError>, schedule: &Schedule) -> Result<(), Error> {
    match stored {
        Err(error) if error.refused_by("schedules_name_taken") => {
            Err(Error::Taken { what: "a schedule with the name", name: schedule.name.to_string() })
        }
        Err(error) if error.refused_by("schedules_project_id_fkey") => {
            Err(Error::not_found("project", schedule.project))
        }
        result => Ok(result?),
    }
}

/// A schedule of a project that the caller may see.
async fn seen(ctx: &mut Ctx, id: ScheduleId) -> Result<Schedule, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("schedule", id);
    let schedule = schedules::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_in(schedule.project, Role::Viewer).await {
        // In a project that the caller may not see, it does not exist either.
        Err(Error::NotFound { .. }) => Err(missing()),
        result => result.map(|_| schedule),
    }
}

/// The same, which nobody else changes or fires meanwhile.
async fn locked(ctx: &mut Ctx, id: ScheduleId) -> Result<Schedule, Error> {
    seen(ctx, id).await?;
    schedules::lock(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("schedule", id))
}

async fn tell(ctx: &mut Ctx, schedule: &Schedule, change: &str) -> Result<(), Error> {
    let data = json!({
        "schedule_id": schedule.id, "name": schedule.name, "change": change, "version": schedule.version,
        "enabled": schedule.enabled,
    });
    ctx.record(Told::new(EventKind::ScheduleSet, data).project(schedule.project)).await
}

async fn one(ctx: &mut Ctx, schedule: Schedule) -> Result<ScheduleView, Error> {
    let last = lasts(ctx, &[schedule.id]).await?.remove(&schedule.id);
    Ok(view(schedule, last))
}

/// What came of each of these schedules last.
async fn lasts(
    ctx: &mut Ctx,
    ids: &[ScheduleId],
) -> Result<HashMap<ScheduleId, FiringView>, Error> {
    let firings = schedules::last(ctx.conn(), ids).await?;
    let made: Vec<TaskId> = firings.iter().flat_map(tasks_of).copied().collect();
    let made: HashMap<TaskId, FiredTask> = schedules::tasks(ctx.conn(), &made)
        .await?
        .into_iter()
        .map(|(task_id, name, state)| (task_id, FiredTask { task_id, name, state }))
        .collect();
    Ok(firings.into_iter().map(|firing| (firing.schedule, firing_view(firing, &made))).collect())
}

/// The tasks that came of a firing.
fn tasks_of(firing: &Firing) -> impl Iterator<Item = &TaskId> {
    let interpreted = match &firing.answer {
        Some(HandoffAnswer::Interpreted { tasks, .. }) => tasks.as_slice(),
        _ => &[],
    };
    firing.task.iter().chain(interpreted)
}

fn firing_view(firing: Firing, made: &HashMap<TaskId, FiredTask>) -> FiringView {
    let tasks = tasks_of(&firing).filter_map(|id| made.get(id)).cloned().collect();
    let said = match firing.answer {
        Some(HandoffAnswer::Interpreted { note, .. }) => Some(note),
        _ => None,
    };
    FiringView {
        number: firing.number,
        cause: firing.cause,
        due_at: firing.due_at,
        fired_at: firing.fired_at,
        missed: firing.missed,
        outcome: firing.outcome,
        handoff_id: firing.handoff.map(|(id, _)| id),
        handoff_state: firing.handoff.map(|(_, state)| state),
        tasks,
        note: firing.reason.or(said),
        trace_id: firing.trace,
    }
}

fn view(schedule: Schedule, last: Option<FiringView>) -> ScheduleView {
    ScheduleView {
        schedule_id: schedule.id,
        project_id: schedule.project,
        name: schedule.name,
        when: schedule.when,
        what: schedule.what,
        missed: schedule.missed,
        enabled: schedule.enabled,
        next_at: schedule.next_at,
        firings: schedule.firings,
        last,
        version: schedule.version,
        acts_for: schedule.acts_for,
        created_by: schedule.created_by,
        created_at: schedule.created_at,
        updated_at: schedule.updated_at,
    }
}
