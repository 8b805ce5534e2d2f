//! Fires due schedules. Any number of processes may run it, and each may die at any moment: nothing happens before the
//! commit.

use std::time::Duration;

use cynode_core::{
    accounts::CallerCredential,
    events::EventKind,
    ids::ScheduleId,
    names::TaskName,
    roles::UserRole,
    schedules::{FiringCause, Schedule, ScheduleAction},
    workflow::handoffs::HandoffRequest,
};
use cynode_db::{
    manager::handoffs::set_handoff_profile,
    platform::backup,
    workflow::schedules::{self, DueSchedule, FiringOutcome, NewFiring},
};
use cynode_wire::{tasks::CreateTask, workflow::schedules::FiringView};
use serde_json::json;
use time::{OffsetDateTime, macros::format_description};
use tokio_util::sync::CancellationToken;

use super::{last_firings, lock_schedule, timetable::Timetable};
use crate::{
    App, Ctx, Error, OperationRequest,
    manager::handoffs::{self, HandoffSubject},
    platform::{context::EventDraft, error::log_background_error, operation},
    tasks::{self, profiles},
};

/// Poll interval for due schedules.
const SCHEDULE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of schedules per batch.
const SCHEDULE_BATCH_SIZE: i64 = 100;

/// Maximum number of characters of a stored reason.
const MAX_REASON_CHARS: usize = 500;

/// Maximum number of characters of a schedule's name in the names of its tasks. A time and a number follow.
const MAX_NAME_PREFIX_CHARS: usize = 40;

const MISSED_MESSAGE: &str = "nobody was there at its time, and what is missed is left";

const RESTORED_MESSAGE: &str = "the installation was restored from a backup after that time: the lost one may have done it; fire it \
     now if it did not";

/// What the project manager is told with a schedule that an agent wrote.
const UNREVIEWED_NOTE: &str = " (an agent wrote this schedule, and no person has reviewed it)";

/// Fires schedules until shutdown. A failure is logged and retried in the next round.
#[operation]
pub async fn run_scheduler(app: App, stop: CancellationToken) {
    loop {
        if let Err(error) = fire_due_schedules(&app).await {
            log_background_error(
                "schedule.poll_failed",
                &error,
                "due schedules could not be read; it is retried",
            );
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.until_schedule_due() => {}
            () = app.until_poll_due(SCHEDULE_POLL_INTERVAL) => {}
        }
    }
}

/// Fires every due schedule that no other process fires. Returns their number.
#[tracing::instrument(name = "app.schedules.fire_due_schedules", skip_all)]
#[operation]
pub async fn fire_due_schedules(app: &App) -> Result<usize, Error> {
    let mut total = 0;
    loop {
        let mut conn = app.conn().await?;
        let due =
            schedules::list_due_schedules(&mut conn, app.environment().now(), SCHEDULE_BATCH_SIZE)
                .await?;
        drop(conn);
        let mut fired = 0;
        for one in &due {
            match fire_schedule(app, *one).await {
                Ok(true) => fired += 1,
                // Another process fires it.
                Ok(false) => {}
                Err(error) => {
                    log_background_error(
                        "schedule.fire_failed",
                        &error,
                        "a schedule could not be fired; it is retried",
                    );
                }
            }
        }
        total += fired;
        // Locked or failed schedules are left for the next round, so that this one ends.
        if fired < due.len()
            || i64::try_from(due.len()).is_ok_and(|many| many < SCHEDULE_BATCH_SIZE)
        {
            return Ok(total);
        }
    }
}

/// Fires a schedule in the name of its user. Returns `false` when another process fired it or it has changed
/// meanwhile.
async fn fire_schedule(app: &App, due: DueSchedule) -> Result<bool, Error> {
    let credential = CallerCredential::Schedule(due.id);
    let caller = app.find_caller_on_behalf(due.acts_for, credential).await?;
    let request =
        OperationRequest { caller, trace: app.environment().new_trace_id(), attempt: None };
    match attempt_firing(app, &request, due).await {
        Err(error) if is_permanent(&error) => {
            record_firing_refusal(app, &request, due, &error).await
        }
        result => result,
    }
}

/// Returns whether a retry would not help.
const fn is_permanent(error: &Error) -> bool {
    match error {
        Error::Unauthenticated
        | Error::SecondFactorRequired
        | Error::KeyDenied(_)
        | Error::Forbidden { .. }
        | Error::NotFound { .. }
        | Error::Invalid(_)
        | Error::PolicyDenied(_)
        | Error::AlreadyExists { .. }
        | Error::InvalidState(_)
        | Error::Conflict(_)
        | Error::ChainTruncated { .. }
        | Error::MergeConflict(_)
        | Error::UpstreamRejected(_)
        | Error::LimitExceeded(_)
        | Error::StorageFull(_)
        | Error::TooLarge(_) => true,
        Error::VersionConflict { .. }
        | Error::IdempotencyKeyReused
        | Error::Overloaded
        | Error::RateLimited { .. }
        | Error::LeaseHeld { .. }
        | Error::NotRunnable(_)
        | Error::TaskEnded
        | Error::Fenced(_)
        | Error::UpstreamUnavailable { .. }
        | Error::Unavailable(_)
        | Error::Internal(_) => false,
    }
}

async fn attempt_firing(
    app: &App,
    request: &OperationRequest,
    due: DueSchedule,
) -> Result<bool, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    match perform_firing(&mut ctx, due).await {
        Ok(true) => {
            app.commit_operation(ctx).await?;
            Ok(true)
        }
        // Recording the refusal needs the row lock of the schedule, which this transaction holds until its rollback.
        other => {
            ctx.rollback().await?;
            other
        }
    }
}

/// Requests the work of a schedule and sets its next due time. Returns `false` when another process has it locked.
async fn perform_firing(ctx: &mut Ctx, due: DueSchedule) -> Result<bool, Error> {
    let Some(schedule) = schedules::lock_due_schedule(ctx.conn(), due).await? else {
        return Ok(false);
    };
    let table = Timetable::parse_trigger(&schedule.trigger)?;
    let turn = table.decide_firing(due.at, ctx.now, schedule.missed_policy);
    // What was due before a restore has probably been done: it is held like notifications, so that nothing is done twice outside.
    let epoch = backup::get_epoch(ctx.conn()).await?;
    let is_held = epoch.epoch > 1 && turn.due <= epoch.began_at;
    let outcome = if is_held {
        FiringOutcome::Skipped(RESTORED_MESSAGE)
    } else if turn.done {
        request_work(ctx, &schedule, &table, turn.due).await?
    } else {
        FiringOutcome::Skipped(MISSED_MESSAGE)
    };
    let fired = FiringEntry {
        cause: FiringCause::Due,
        due_at: turn.due,
        missed_count: turn.missed_count + u32::from(is_held && turn.done),
        outcome,
    };
    record_firing(ctx, &schedule, fired).await?;
    schedules::set_next_firing(ctx.conn(), schedule.id, turn.next, true).await?;
    Ok(true)
}

/// Records that the work could not be requested. If its user lost the permission, the next firing would fail too, so
/// the schedule is disabled.
async fn record_firing_refusal(
    app: &App,
    request: &OperationRequest,
    due: DueSchedule,
    error: &Error,
) -> Result<bool, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let Some(schedule) = schedules::lock_due_schedule(ctx.conn(), due).await? else {
        return Ok(false);
    };
    let next = match error {
        Error::Unauthenticated | Error::Forbidden { .. } | Error::NotFound { .. } => None,
        // An invalid trigger has no next due time.
        _ => Timetable::parse_trigger(&schedule.trigger)
            .ok()
            .map(|table| table.next_after(ctx.now.max(due.at))),
    };
    let why = match error {
        Error::Unauthenticated => {
            "the account that it acts for may not be used any more".to_owned()
        }
        Error::Forbidden { .. } | Error::NotFound { .. } => {
            "whoever it acts for may not ask for work in this project any more".to_owned()
        }
        error => error.to_string().chars().take(MAX_REASON_CHARS).collect(),
    };
    let why = match next {
        Some(_) => why,
        None => format!("{why}: it was switched off, until somebody who may writes it anew"),
    };
    let outcome = FiringOutcome::Refused(&why);
    let fired = FiringEntry { cause: FiringCause::Due, due_at: due.at, missed_count: 0, outcome };
    record_firing(&mut ctx, &schedule, fired).await?;
    schedules::set_next_firing(ctx.conn(), schedule.id, next.flatten(), next.is_some()).await?;
    app.commit_operation(ctx).await?;
    tracing::warn!(event = "schedule.refused", schedule.id = %due.id, "{why}");
    Ok(true)
}

/// Fires a schedule now, in the name of the caller. Its next due time stays unchanged.
#[tracing::instrument(name = "app.schedules.fire_schedule_now", skip_all, fields(schedule.id = %id))]
#[operation]
pub async fn fire_schedule_now(ctx: &mut Ctx, id: ScheduleId) -> Result<FiringView, Error> {
    let schedule = lock_schedule(ctx, id).await?;
    ctx.require_project_role(schedule.project, UserRole::Operator).await?;
    let table = Timetable::parse_trigger(&schedule.trigger)?;
    let now = ctx.now;
    let outcome = request_work(ctx, &schedule, &table, now).await?;
    let fired = FiringEntry { cause: FiringCause::Asked, due_at: now, missed_count: 0, outcome };
    record_firing(ctx, &schedule, fired).await?;
    let last = last_firings(ctx, &[id]).await?.remove(&id);
    last.ok_or_else(|| Error::not_found("firing of schedule", id))
}

/// Requests the work: creates a complete task, or hands a prompt to the project manager.
async fn request_work(
    ctx: &mut Ctx,
    schedule: &Schedule,
    table: &Timetable,
    due: OffsetDateTime,
) -> Result<FiringOutcome<'static>, Error> {
    let caller = ctx.require_project_role(schedule.project, UserRole::Operator).await?;
    match &schedule.action {
        ScheduleAction::Task(template) => {
            let body = CreateTask {
                project_id: schedule.project,
                name: None,
                description: template.description.clone(),
                acceptance_criteria: template.acceptance_criteria.clone(),
                budget: template.budget,
                depends_on: Vec::new(),
                approve_plan: None,
                profile: schedule.profile.clone(),
            };
            let name = firing_task_name(&schedule.name, due)?;
            let task = tasks::accept_named_task(ctx, body, name, caller.user).await?;
            Ok(FiringOutcome::Task(task.id))
        }
        ScheduleAction::Words { text } => {
            let subject = HandoffSubject {
                user: caller.user,
                project: schedule.project,
                task: None,
                run: None,
                job: None,
                thread: None,
            };
            let mut told = format!("{}, {}", schedule.name, table.describe_due_time(due));
            if schedule.unreviewed {
                told.push_str(UNREVIEWED_NOTE);
            }
            let request = HandoffRequest::Schedule { schedule: told, text: text.to_string() };
            // Whoever wrote the schedule named a profile that may be gone by now.
            let named = schedule.profile.as_ref();
            profiles::require_named_profile(ctx.conn(), schedule.project, named).await?;
            let handoff = handoffs::store_handoff(ctx, subject, None, None, &request).await?;
            if let Some(profile) = named {
                set_handoff_profile(ctx.conn(), handoff, profile).await?;
            }
            Ok(FiringOutcome::Handoff(handoff))
        }
    }
}

/// Returns the task name of a firing. It is the same in every process.
fn firing_task_name(schedule: &TaskName, due: OffsetDateTime) -> Result<TaskName, Error> {
    let at = format_description!("[year][month][day]-[hour][minute]");
    let at = due.to_offset(time::UtcOffset::UTC).format(at);
    let at = at.map_err(|error| Error::Internal(error.into()))?;
    let base: String = schedule.as_str().chars().take(MAX_NAME_PREFIX_CHARS).collect();
    let name = format!("{}-{at}", base.trim_end_matches('-'));
    name.try_into().map_err(|error: cynode_core::names::TextError| Error::Internal(error.into()))
}

/// A firing before it has a number.
#[derive(Clone, Copy)]
struct FiringEntry<'a> {
    cause: FiringCause,
    due_at: OffsetDateTime,
    missed_count: u32,
    outcome: FiringOutcome<'a>,
}

/// Stores a firing and records its event.
async fn record_firing(
    ctx: &mut Ctx,
    schedule: &Schedule,
    fired: FiringEntry<'_>,
) -> Result<(), Error> {
    let FiringEntry { cause, due_at, missed_count, outcome } = fired;
    let (fired_at, trace) = (ctx.now, ctx.trace);
    let new =
        NewFiring { schedule: schedule.id, cause, due_at, fired_at, missed_count, outcome, trace };
    let number = schedules::insert_firing(ctx.conn(), &new).await?;
    let (kind, task, handoff, reason) = match outcome {
        FiringOutcome::Task(task) => (EventKind::ScheduleFired, Some(task), None, None),
        FiringOutcome::Handoff(handoff) => (EventKind::ScheduleFired, None, Some(handoff), None),
        FiringOutcome::Skipped(why) => (EventKind::ScheduleFired, None, None, Some(why)),
        FiringOutcome::Refused(why) => (EventKind::ScheduleRefused, None, None, Some(why)),
    };
    let data = json!({
        "schedule_id": schedule.id, "name": schedule.name, "number": number, "cause": cause, "missed_count": missed_count,
        "outcome": outcome.as_str(), "task_id": task, "handoff_id": handoff, "reason": reason,
    });
    ctx.record_event(EventDraft::new(kind, data).with_project(schedule.project)).await
}
