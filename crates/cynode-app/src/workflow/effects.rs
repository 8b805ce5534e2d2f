//! What a node changes, applied in the transaction of its checkpoint.

use cynode_core::{
    ids::{TaskId, UnitId},
    trace::TraceId,
    workflow::{
        plan::{Plan, PlanText, UnitKey},
        units::UnitState,
    },
};
use cynode_db::{tasks, units, workflow};
use cynode_wire::{
    handoffs::HandoffKind,
    workflow::{Effect, Finding},
};

use crate::{Ctx, Error, evidence, handoffs};

/// Applies every effect, or refuses all.
pub(super) async fn apply(
    ctx: &mut Ctx,
    task: TaskId,
    trace: TraceId,
    effects: &[Effect],
) -> Result<(), Error> {
    for effect in effects {
        one(ctx, task, trace, effect).await?;
    }
    Ok(())
}

async fn one(ctx: &mut Ctx, task: TaskId, trace: TraceId, effect: &Effect) -> Result<(), Error> {
    match effect {
        Effect::PlanUnits { units } => {
            let text = PlanText { steps: units.clone(), assumptions: Vec::new() };
            let plan = Plan::try_from(text).map_err(|error| Error::Invalid(error.to_string()))?;
            let new: Vec<_> =
                plan.steps().iter().map(|unit| (UnitId::from_uuid(ctx.uuid()), unit)).collect();
            Ok(units::plan(ctx.conn(), task, &new).await?)
        }
        Effect::HandOff { about, request } => {
            let standing = workflow::standing(ctx.conn(), task).await?;
            let standing = standing.ok_or_else(|| Error::not_found("workflow of task", task))?;
            let found = tasks::get(ctx.conn(), task).await?;
            let found = found.ok_or_else(|| Error::not_found("task", task))?;
            if matches!(
                request.kind(),
                HandoffKind::Chat
                    | HandoffKind::Analyse
                    | HandoffKind::Report
                    | HandoffKind::Schedule
            ) {
                return Err(Error::Invalid("a run does not ask for that".into()));
            }
            if !(1..=200).contains(&about.len()) {
                return Err(Error::Invalid("`about` has 1 to 200 characters".into()));
            }
            // What was asked before is not wanted any more: a run has one question at a time.
            handoffs::drop_asked(ctx, task).await?;
            let subject = handoffs::Subject {
                user: found.created_by,
                project: found.project,
                task: Some(task),
                run: Some(standing.run),
                job: None,
                thread: None,
            };
            handoffs::hand_off(ctx, subject, None, Some(about), request).await.map(|_| ())
        }
        Effect::TakeHandoff { handoff_id } => {
            if !cynode_db::handoffs::take(ctx.conn(), task, *handoff_id).await? {
                return Err(Error::Invalid(format!("`{handoff_id}` has no answer to be taken")));
            }
            Ok(())
        }
        Effect::CreateJob { unit, attempt, remedy, work, timeout_seconds } => {
            let trace = trace.to_string();
            let job = units::NewJob {
                id: ctx.uuid(),
                attempt: i32::try_from(*attempt).unwrap_or(i32::MAX),
                remedy,
                work: work.as_deref(),
                timeout_seconds: (*timeout_seconds).into(),
                trace: &trace,
            };
            match units::dispatch(ctx.conn(), task, unit, &job).await? {
                Some(()) => {
                    ctx.queue();
                    Ok(())
                }
                None => Err(refused(unit, "get a job")),
            }
        }
        Effect::CollectJob { unit, attempt } => {
            if !units::take_result(ctx.conn(), task, unit, *attempt).await? {
                return Err(refused(unit, "be collected"));
            }
            go(ctx, task, unit, *attempt, UnitState::Collected, None).await
        }
        Effect::RetryUnit { unit, attempt, findings } => {
            // A job that came to nothing is taken with it; one that was judged has been taken before.
            units::take_result(ctx.conn(), task, unit, *attempt).await?;
            go(ctx, task, unit, *attempt, UnitState::Pending, Some(findings)).await
        }
        Effect::GatherEvidence { unit, attempt, checks, timeout_seconds } => {
            evidence::gather(ctx, task, unit, *attempt, checks, *timeout_seconds).await
        }
        Effect::AcceptUnit { unit, attempt, findings, waived, by_person, shown } => {
            let waived = waived.as_deref().filter(|why| !why.trim().is_empty());
            let good =
                cynode_db::evidence::lets_through(ctx.conn(), task, unit, *attempt, waived).await?;
            if !good {
                return Err(Error::Invalid(format!("unit `{unit}` has evidence against it")));
            }
            if let Some(why) = waived {
                // A policy takes the unit, and nothing for those that follow.
                let shown = if *by_person { shown.as_slice() } else { &[] };
                cynode_db::evidence::take(ctx.conn(), task, unit, *attempt, why, shown).await?;
            }
            go(ctx, task, unit, *attempt, UnitState::Done, Some(findings)).await
        }
        Effect::FailUnit { unit, attempt, findings } => {
            units::take_result(ctx.conn(), task, unit, *attempt).await?;
            go(ctx, task, unit, *attempt, UnitState::Failed, Some(findings)).await
        }
    }
}

async fn go(
    ctx: &mut Ctx,
    task: TaskId,
    unit: &UnitKey,
    attempt: u32,
    to: UnitState,
    findings: Option<&[Finding]>,
) -> Result<(), Error> {
    if units::move_on(ctx.conn(), task, unit, attempt, to, findings).await? {
        Ok(())
    } else {
        Err(refused(unit, to.as_str()))
    }
}

fn refused(unit: &UnitKey, verb: &str) -> Error {
    Error::Invalid(format!("unit `{unit}` cannot {verb} in its present state and attempt"))
}
