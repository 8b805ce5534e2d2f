//! What a node changes, applied in the transaction of its checkpoint.

use cynode_core::{
    ids::{TaskId, UnitId},
    trace::TraceId,
    workflow::{
        plan::{Plan, PlanText, UnitKey},
        units::UnitState,
    },
};
use cynode_db::units;
use cynode_wire::workflow::{Effect, Finding};

use crate::{Ctx, Error};

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
        Effect::CreateJob { unit, attempt, remedy, timeout_seconds } => {
            let trace = trace.to_string();
            let job = units::NewJob {
                id: ctx.uuid(),
                attempt: i32::try_from(*attempt).unwrap_or(i32::MAX),
                remedy,
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
        Effect::AcceptUnit { unit, attempt, findings } => {
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
