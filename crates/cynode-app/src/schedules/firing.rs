//! Firing schedules. Any number of processes may, and any of them may die at any moment: before the commit nothing has happened.

use std::time::Duration;

use cynode_core::{
    accounts::Credential,
    events::EventKind,
    ids::ScheduleId,
    names::TaskName,
    roles::Role,
    schedules::{Cause, Schedule, What},
};
use cynode_db::{
    DbError, authentication,
    schedules::{self, Due, NewFiring, Outcome},
};
use cynode_wire::{handoffs::HandoffRequest, schedules::FiringView, tasks::CreateTask};
use serde_json::json;
use time::{OffsetDateTime, macros::format_description};
use tokio_util::sync::CancellationToken;

use super::{lasts, locked, timetable::Timetable};
use crate::{
    App, Ctx, Error, Request,
    context::Told,
    error::complain,
    handoffs::{self, Subject},
    tasks,
};

/// How often it is looked for schedules that are due.
const EVERY: Duration = Duration::from_secs(1);

/// Most schedules that are looked at together.
const BATCH: i64 = 100;

/// Most characters of a reason that is kept.
const MOST_REASON: usize = 500;

/// Most characters that a schedule gives to the names of its tasks; the rest is the time and a number.
const MOST_NAME: usize = 40;

const TOO_LATE: &str = "nobody was there at its time, and what is missed is left";

/// Fires schedules until it is told to stop. A failure is logged and tried again at the next turn.
pub async fn run(app: App, stop: CancellationToken) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Err(error) = turn(&app).await {
            complain(&error, "schedules could not be looked at; it is tried again");
        }
    }
}

/// Fires every schedule whose time has come and that nobody else fires. Gives how many.
#[tracing::instrument(name = "app.schedules.turn", skip_all)]
pub async fn turn(app: &App) -> Result<usize, Error> {
    let mut total = 0;
    loop {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        let due = schedules::due(&mut conn, app.environment().now(), BATCH).await?;
        drop(conn);
        let mut fired = 0;
        for one in &due {
            match fire(app, *one).await {
                Ok(true) => fired += 1,
                // Somebody else has it.
                Ok(false) => {}
                Err(error) => complain(&error, "a schedule could not be fired; it is tried again"),
            }
        }
        total += fired;
        // What others have or what failed is looked at again at the next turn, so that this one ends.
        if fired < due.len() || i64::try_from(due.len()).is_ok_and(|many| many < BATCH) {
            return Ok(total);
        }
    }
}

/// Fires a schedule in the name of whom it acts for. `false` when somebody else did, or it has changed meanwhile.
async fn fire(app: &App, due: Due) -> Result<bool, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let credential = Credential::Schedule(due.id);
    let caller = authentication::in_the_name_of(&mut conn, due.acts_for, credential).await?;
    drop(conn);
    let request = Request { caller, trace: app.environment().trace(), attempt: None };
    match do_work(app, &request, due).await {
        Err(error) if is_for_good(&error) => refuse(app, &request, due, &error).await,
        result => result,
    }
}

/// Whether trying it again would not help.
const fn is_for_good(error: &Error) -> bool {
    match error {
        Error::Unauthenticated
        | Error::Forbidden { .. }
        | Error::NotFound { .. }
        | Error::Invalid(_)
        | Error::Taken { .. }
        | Error::Transition(_)
        | Error::Conflict(_)
        | Error::Clash(_)
        | Error::TooLarge(_) => true,
        Error::Version { .. }
        | Error::KeyReused
        | Error::Busy
        | Error::TooOften { .. }
        | Error::Held { .. }
        | Error::Gate(_)
        | Error::Ended
        | Error::Fenced(_)
        | Error::Away { .. }
        | Error::Unavailable(_)
        | Error::Internal(_) => false,
    }
}

async fn do_work(app: &App, request: &Request, due: Due) -> Result<bool, Error> {
    let mut ctx = app.open(request).await?;
    match work(&mut ctx, due).await {
        Ok(true) => {
            app.commit(ctx).await?;
            Ok(true)
        }
        // Whoever notes why nothing came of it needs the schedule, which is ours until this is undone.
        other => {
            ctx.undo().await?;
            other
        }
    }
}

/// Asks for what a schedule is about, and moves it to its next time. `false` when somebody else has it.
async fn work(ctx: &mut Ctx, due: Due) -> Result<bool, Error> {
    let Some(schedule) = schedules::take(ctx.conn(), due).await? else { return Ok(false) };
    let table = Timetable::read(&schedule.when)?;
    let turn = table.turn(due.at, ctx.now, schedule.missed);
    let outcome = if turn.done {
        ask(ctx, &schedule, &table, turn.due).await?
    } else {
        Outcome::Skipped(TOO_LATE)
    };
    let fired = Fired { cause: Cause::Due, due_at: turn.due, missed: turn.missed, outcome };
    write(ctx, &schedule, fired).await?;
    schedules::set_next(ctx.conn(), schedule.id, turn.next, true).await?;
    Ok(true)
}

/// Notes that the work could not be asked for. Whoever may not ask any more will not be able to at the next time either: the schedule
/// is switched off.
async fn refuse(app: &App, request: &Request, due: Due, error: &Error) -> Result<bool, Error> {
    let mut ctx = app.open(request).await?;
    let Some(schedule) = schedules::take(ctx.conn(), due).await? else { return Ok(false) };
    let next = match error {
        Error::Unauthenticated | Error::Forbidden { .. } | Error::NotFound { .. } => None,
        // What cannot be read has no next time.
        _ => {
            Timetable::read(&schedule.when).ok().map(|table| table.next_after(ctx.now.max(due.at)))
        }
    };
    let why = match error {
        Error::Unauthenticated => {
            "the account that it acts for may not be used any more".to_owned()
        }
        Error::Forbidden { .. } | Error::NotFound { .. } => {
            "whoever it acts for may not ask for work in this project any more".to_owned()
        }
        error => error.to_string().chars().take(MOST_REASON).collect(),
    };
    let why = match next {
        Some(_) => why,
        None => format!("{why}: it was switched off, until somebody who may writes it anew"),
    };
    let outcome = Outcome::Refused(&why);
    let fired = Fired { cause: Cause::Due, due_at: due.at, missed: 0, outcome };
    write(&mut ctx, &schedule, fired).await?;
    schedules::set_next(ctx.conn(), schedule.id, next.flatten(), next.is_some()).await?;
    app.commit(ctx).await?;
    tracing::warn!(event = "schedule.refused", schedule.id = %due.id, "{why}");
    Ok(true)
}

/// Fires a schedule now, in the name of the caller. When it is due by itself stays as it is.
#[tracing::instrument(name = "app.schedules.ask_now", skip_all, fields(schedule.id = %id))]
pub async fn ask_now(ctx: &mut Ctx, id: ScheduleId) -> Result<FiringView, Error> {
    let schedule = locked(ctx, id).await?;
    ctx.require_in(schedule.project, Role::Operator).await?;
    let table = Timetable::read(&schedule.when)?;
    let now = ctx.now;
    let outcome = ask(ctx, &schedule, &table, now).await?;
    let fired = Fired { cause: Cause::Asked, due_at: now, missed: 0, outcome };
    write(ctx, &schedule, fired).await?;
    let last = lasts(ctx, &[id]).await?.remove(&id);
    last.ok_or_else(|| Error::not_found("firing of schedule", id))
}

/// Asks for the work: a whole task is made, words go to the project manager.
async fn ask(
    ctx: &mut Ctx,
    schedule: &Schedule,
    table: &Timetable,
    due: OffsetDateTime,
) -> Result<Outcome<'static>, Error> {
    let caller = ctx.require_in(schedule.project, Role::Operator).await?;
    match &schedule.what {
        What::Task(template) => {
            let body = CreateTask {
                project_id: schedule.project,
                name: None,
                description: template.description.clone(),
                acceptance_criteria: template.acceptance_criteria.clone(),
                budget: template.budget,
                depends_on: Vec::new(),
            };
            let name = named(&schedule.name, due)?;
            let task = tasks::accept_like(ctx, body, name, caller.user).await?;
            Ok(Outcome::Task(task.id))
        }
        What::Words { text } => {
            let subject = Subject {
                user: caller.user,
                project: schedule.project,
                task: None,
                run: None,
                job: None,
                thread: None,
            };
            let told = format!("{}, {}", schedule.name, table.told(due));
            let request = HandoffRequest::Schedule { schedule: told, text: text.to_string() };
            Ok(Outcome::Handoff(handoffs::hand_off(ctx, subject, None, None, &request).await?))
        }
    }
}

/// The name of the task of a schedule at a time: the same whoever asks.
fn named(schedule: &TaskName, due: OffsetDateTime) -> Result<TaskName, Error> {
    let at = format_description!("[year][month][day]-[hour][minute]");
    let at = due.to_offset(time::UtcOffset::UTC).format(at);
    let at = at.map_err(|error| Error::Internal(error.into()))?;
    let base: String = schedule.as_str().chars().take(MOST_NAME).collect();
    let name = format!("{}-{at}", base.trim_end_matches('-'));
    name.try_into().map_err(|error: cynode_core::names::TextError| Error::Internal(error.into()))
}

/// A firing, before it has a number.
#[derive(Clone, Copy)]
struct Fired<'a> {
    cause: Cause,
    due_at: OffsetDateTime,
    missed: u32,
    outcome: Outcome<'a>,
}

/// Writes a firing down, and tells of it.
async fn write(ctx: &mut Ctx, schedule: &Schedule, fired: Fired<'_>) -> Result<(), Error> {
    let Fired { cause, due_at, missed, outcome } = fired;
    let (fired_at, trace) = (ctx.now, ctx.trace);
    let new = NewFiring { schedule: schedule.id, cause, due_at, fired_at, missed, outcome, trace };
    let number = schedules::fire(ctx.conn(), &new).await?;
    let (kind, task, handoff, reason) = match outcome {
        Outcome::Task(task) => (EventKind::ScheduleFired, Some(task), None, None),
        Outcome::Handoff(handoff) => (EventKind::ScheduleFired, None, Some(handoff), None),
        Outcome::Skipped(why) => (EventKind::ScheduleFired, None, None, Some(why)),
        Outcome::Refused(why) => (EventKind::ScheduleRefused, None, None, Some(why)),
    };
    let data = json!({
        "schedule_id": schedule.id, "name": schedule.name, "number": number, "cause": cause, "missed": missed,
        "outcome": outcome.as_str(), "task_id": task, "handoff_id": handoff, "reason": reason,
    });
    ctx.record(Told::new(kind, data).project(schedule.project)).await
}
