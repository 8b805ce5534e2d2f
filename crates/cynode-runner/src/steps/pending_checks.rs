//! Pending checks of a result: which are due, and their progress.

use std::collections::BTreeSet;

use cynode_core::{
    evidence::{ChangeAnomaly, CheckTally, EvidenceCheck, MAX_CHECKS},
    workflow::{
        WorkflowStep,
        evidence::{CheckResult, Evidence, EvidenceState, EvidenceView},
        plan::{Plan, UnitKey, find_final_units, unit_leaves_files},
    },
};
use cynode_wire::workflow::StepEffect;
use serde_json::Value;

use super::StepContext;

/// Maximum number of times that checks are restarted when their sandbox fails.
const MAX_CHECK_ATTEMPTS: u32 = 5;

/// Progress of the evidence about a result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CheckProgress {
    /// All due checks have results.
    Known(Evidence),
    /// Checks must be run.
    Missing(Vec<EvidenceCheck>),
    /// Checks are running.
    Gathering,
    /// The checks cannot be run here.
    Unable(String),
}

/// Returns the due checks of a unit: its own, and for a final unit those of the task's criteria.
pub(super) fn due_checks(scene: &StepContext<'_>, unit: &UnitKey) -> Vec<EvidenceCheck> {
    let Some(plan) = scene.state.plan.as_ref() else { return Vec::new() };
    let Some(planned) = plan.planned_units().iter().find(|it| it.key == *unit) else {
        return Vec::new();
    };
    if !unit_leaves_files(&planned.payload) {
        return Vec::new();
    }
    let listed = planned.payload["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let own =
        listed.iter().filter_map(|it| serde_json::from_value::<EvidenceCheck>(it.clone()).ok());
    let mut due: Vec<EvidenceCheck> =
        own.filter(|check| check.validation_error().is_none()).collect();
    let mut criteria: Vec<EvidenceCheck> = Vec::new();
    if final_units(plan).contains(&unit) {
        let checks = scene.state.acceptance_criteria.iter().filter_map(|it| it.check.clone());
        for check in checks {
            if !criteria.contains(&check) {
                criteria.push(check);
            }
        }
    }
    // Checks above the limit would never run. Checks that people asked for are never left out.
    due.retain(|check| !criteria.contains(check));
    due.truncate(MAX_CHECKS.saturating_sub(criteria.len()));
    due.extend(criteria);
    due
}

/// Returns the final units: those whose work is the result of the whole plan.
pub(super) fn final_units(plan: &Plan) -> Vec<&UnitKey> {
    let steps = plan.planned_units();
    let left: BTreeSet<UnitKey> = steps
        .iter()
        .filter(|unit| unit_leaves_files(&unit.payload))
        .map(|unit| unit.key.clone())
        .collect();
    let graph = steps.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
    find_final_units(&graph.collect::<Vec<_>>(), &left)
}

/// Returns the progress of the evidence about a result.
pub(super) fn check_progress(
    scene: &StepContext<'_>,
    unit: &UnitKey,
    attempt: u32,
    output: &Value,
) -> CheckProgress {
    let anomalies: Vec<ChangeAnomaly> =
        serde_json::from_value(output["anomalies"].clone()).unwrap_or_default();
    let commit = output["commit"].as_str().or(output["base"].as_str()).map(ToOwned::to_owned);
    let mut due = due_checks(scene, unit);
    if commit.is_none() {
        // Checks that the plan or the project proposes count only where they can run.
        due.retain(|check| !check.if_runnable && !check.unless_before);
    }
    if due.is_empty() {
        return CheckProgress::Known(Evidence { commit, checks: Vec::new(), anomalies });
    }
    if commit.is_none() {
        // Without a repository the checks cannot run, so there is no evidence.
        let none = due.into_iter().map(|check| CheckResult {
            check,
            tally: CheckTally::Again,
            rounds: 0,
            exit_code: None,
            sha256: String::new(),
            excerpt: String::new(),
            milliseconds: 0,
            repeated: false,
            tests: None,
        });
        return CheckProgress::Known(Evidence { commit, checks: none.collect(), anomalies });
    }
    let own = |it: &&EvidenceView| it.unit == *unit && it.attempt == attempt;
    let Some(view) = scene.position.evidence.iter().find(own) else {
        return CheckProgress::Missing(due);
    };
    let has = |check: &EvidenceCheck| view.checks.iter().any(|it| it.check == *check);
    match view.state {
        EvidenceState::Gathering => CheckProgress::Gathering,
        EvidenceState::Unable if view.attempts < MAX_CHECK_ATTEMPTS => CheckProgress::Missing(due),
        EvidenceState::Unable => {
            let why = view.error.clone().unwrap_or_else(|| "no reason was given".to_owned());
            CheckProgress::Unable(format!(
                "the checks could not be run {} times: {why}",
                view.attempts
            ))
        }
        EvidenceState::Passed | EvidenceState::Failed if due.iter().all(has) => {
            CheckProgress::Known(Evidence { commit, checks: view.checks.clone(), anomalies })
        }
        EvidenceState::Passed | EvidenceState::Failed => CheckProgress::Missing(due),
    }
}

/// Runs the checks again that could not run on the machine.
pub(super) fn regather_evidence(
    scene: &StepContext<'_>,
    unit: &UnitKey,
    attempt: u32,
) -> StepEffect {
    let mut effect = gather_evidence(scene, unit, attempt, due_checks(scene, unit));
    if let StepEffect::GatherEvidence { rerun, .. } = &mut effect {
        *rerun = true;
    }
    effect
}

/// Runs the checks.
pub(super) fn gather_evidence(
    scene: &StepContext<'_>,
    unit: &UnitKey,
    attempt: u32,
    checks: Vec<EvidenceCheck>,
) -> StepEffect {
    let timeout = scene.limits.step_timeout(WorkflowStep::CollectResult).as_secs();
    let timeout_seconds = u32::try_from(timeout).unwrap_or(u32::MAX);
    StepEffect::GatherEvidence {
        unit: unit.clone(),
        attempt,
        checks,
        timeout_seconds,
        rerun: false,
    }
}
