//! Applies the effects of a step in the transaction of its checkpoint.

use cynode_core::{
    evidence::{ChangeAnomaly, EvidenceCheck},
    ids::{TaskId, UnitId},
    tasks::Criterion,
    trace::TraceId,
    workflow::{
        findings::VerificationFinding,
        handoffs::{HandoffKind, HandoffRequest},
        plan::{Plan, PlanText, PlannedUnit, UnitKey},
        units::UnitState,
    },
};
use cynode_db::{
    delivery::evidence as db_evidence,
    tasks,
    workflow::{self, units},
};
use cynode_wire::workflow::StepEffect;

use crate::{
    Ctx, Error,
    delivery::{evidence, task_environments},
    manager::handoffs,
};

/// Applies all effects or none.
pub(super) async fn apply_effects(
    ctx: &mut Ctx,
    task: TaskId,
    trace: TraceId,
    effects: &[StepEffect],
) -> Result<(), Error> {
    for effect in effects {
        apply_effect(ctx, task, trace, effect).await?;
    }
    Ok(())
}

async fn apply_effect(
    ctx: &mut Ctx,
    task: TaskId,
    trace: TraceId,
    effect: &StepEffect,
) -> Result<(), Error> {
    match effect {
        StepEffect::PlanUnits { units } => plan_units(ctx, task, units).await,
        StepEffect::HandOff { about, request } => {
            store_run_handoff(ctx, task, about, request).await
        }
        StepEffect::TakeHandoff { handoff_id } => {
            if !cynode_db::manager::handoffs::take_handoff_answer(ctx.conn(), task, *handoff_id)
                .await?
            {
                return Err(Error::Invalid(format!("`{handoff_id}` has no answer to be taken")));
            }
            Ok(())
        }
        StepEffect::CreateJob { unit, attempt, remedy, work, timeout_seconds } => {
            let trace = trace.to_string();
            let job = units::NewUnitJob {
                id: ctx.new_uuid(),
                attempt: i32::try_from(*attempt).unwrap_or(i32::MAX),
                remedy,
                work: work.as_deref(),
                timeout_seconds: (*timeout_seconds).into(),
                trace: &trace,
            };
            units::dispatch_unit(ctx.conn(), task, unit, &job)
                .await?
                .ok_or_else(|| unit_state_error(unit, "get a job"))?;
            ctx.mark_job_queued();
            ctx.mark_job_changed();
            Ok(())
        }
        StepEffect::CollectJob { unit, attempt } => {
            if !units::mark_result_collected(ctx.conn(), task, unit, *attempt).await? {
                return Err(unit_state_error(unit, "be collected"));
            }
            transition_unit(ctx, task, unit, *attempt, UnitState::Collected, None).await
        }
        StepEffect::RetryUnit { unit, attempt, findings } => {
            // Marks the result of a failed job as collected. The result of a verified job is already marked.
            units::mark_result_collected(ctx.conn(), task, unit, *attempt).await?;
            transition_unit(ctx, task, unit, *attempt, UnitState::Pending, Some(findings)).await
        }
        StepEffect::GatherEvidence { unit, attempt, checks, timeout_seconds, rerun } => {
            let (timeout_seconds, rerun) = (*timeout_seconds, *rerun);
            let wanted = evidence::CheckRequest { checks, timeout_seconds, rerun };
            evidence::schedule_checks(ctx, task, unit, *attempt, wanted).await
        }
        StepEffect::TryChecks { checks } => evidence::schedule_base_checks(ctx, task, checks).await,
        StepEffect::SkipChecks => evidence::skip_base_checks(ctx, task).await,
        StepEffect::AcceptEnvironment { environment } => {
            task_environments::accept_as_answered(ctx, task, environment).await
        }
        StepEffect::SetCriteria { criteria } => set_criteria(ctx, task, criteria).await,
        StepEffect::AcceptUnit { unit, attempt, findings, waived, by_person, shown_anomalies } => {
            let shown = if *by_person { shown_anomalies.as_slice() } else { &[] };
            accept_evidence(ctx, task, (unit, *attempt), waived.as_deref(), shown).await?;
            transition_unit(ctx, task, unit, *attempt, UnitState::Done, Some(findings)).await
        }
        StepEffect::FailUnit { unit, attempt, findings } => {
            units::mark_result_collected(ctx.conn(), task, unit, *attempt).await?;
            transition_unit(ctx, task, unit, *attempt, UnitState::Failed, Some(findings)).await
        }
    }
}

/// Stores the units of a plan.
async fn plan_units(ctx: &mut Ctx, task: TaskId, units: &[PlannedUnit]) -> Result<(), Error> {
    let text = PlanText { steps: units.to_vec(), assumptions: Vec::new() };
    let plan = Plan::try_from(text).map_err(|error| Error::Invalid(error.to_string()))?;
    let new: Vec<_> =
        plan.planned_units().iter().map(|unit| (UnitId::from_uuid(ctx.new_uuid()), unit)).collect();
    units::upsert_planned_units(ctx.conn(), task, &new).await?;
    // Jobs of units that the plan does not name any more are cancelled.
    ctx.mark_job_changed();
    Ok(())
}

/// Replaces the acceptance criteria of a task.
async fn set_criteria(ctx: &mut Ctx, task: TaskId, criteria: &[Criterion]) -> Result<(), Error> {
    let mut checks = criteria.iter().filter_map(|criterion| criterion.check.as_ref());
    if let Some(reason) = checks.find_map(EvidenceCheck::validation_error) {
        return Err(Error::Invalid(reason));
    }
    let now = ctx.now;
    Ok(tasks::set_task_criteria(ctx.conn(), task, criteria, now).await?)
}

/// Rejects a unit with failing evidence, unless it is waived with a reason. Only a person's waiver also accepts the
/// anomalies that were shown. A waiver by policy accepts this unit only, and no anomaly for later ones.
async fn accept_evidence(
    ctx: &mut Ctx,
    task: TaskId,
    (unit, attempt): (&UnitKey, u32),
    waived: Option<&str>,
    shown_anomalies: &[ChangeAnomaly],
) -> Result<(), Error> {
    let waived = waived.filter(|reason| !reason.trim().is_empty());
    if !db_evidence::allows_acceptance(ctx.conn(), task, unit, attempt, waived).await? {
        return Err(Error::Invalid(format!("unit `{unit}` has evidence against it")));
    }
    if let Some(reason) = waived {
        let conn = ctx.conn();
        db_evidence::record_acceptance(conn, task, unit, attempt, reason, shown_anomalies).await?;
    }
    Ok(())
}

/// Creates a handoff to the project manager for a run.
async fn store_run_handoff(
    ctx: &mut Ctx,
    task: TaskId,
    about: &str,
    request: &HandoffRequest,
) -> Result<(), Error> {
    let standing = workflow::get_run_status(ctx.conn(), task).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", task))?;
    let found = tasks::get_task(ctx.conn(), task).await?;
    let found = found.ok_or_else(|| Error::not_found("task", task))?;
    if matches!(
        request.handoff_kind(),
        HandoffKind::Chat | HandoffKind::Analyse | HandoffKind::Report | HandoffKind::Schedule
    ) {
        return Err(Error::Invalid("a run does not ask for that".into()));
    }
    if !(1..=200).contains(&about.len()) {
        return Err(Error::Invalid("`about` has 1 to 200 characters".into()));
    }
    // A run has one question at a time, so earlier ones are cancelled.
    handoffs::cancel_run_handoffs(ctx, task).await?;
    let subject = handoffs::HandoffSubject {
        user: found.created_by,
        project: found.project,
        task: Some(task),
        run: Some(standing.run),
        job: None,
        thread: None,
    };
    handoffs::store_handoff(ctx, subject, None, Some(about), request).await.map(|_| ())
}

async fn transition_unit(
    ctx: &mut Ctx,
    task: TaskId,
    unit: &UnitKey,
    attempt: u32,
    to: UnitState,
    findings: Option<&[VerificationFinding]>,
) -> Result<(), Error> {
    if units::set_unit_state(ctx.conn(), task, unit, attempt, to, findings).await? {
        Ok(())
    } else {
        Err(unit_state_error(unit, to.as_str()))
    }
}

fn unit_state_error(unit: &UnitKey, verb: &str) -> Error {
    Error::Invalid(format!("unit `{unit}` cannot {verb} in its present state and attempt"))
}
