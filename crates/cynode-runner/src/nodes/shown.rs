//! What is shown of a result: which checks are due, and how far they are.

use std::collections::BTreeSet;

use cynode_core::{
    evidence::{Check, MOST_CHECKS, Odd, Tally},
    workflow::{
        Node,
        plan::{Plan, UnitKey, finals, leaves_files},
    },
};
use cynode_wire::{
    evidence::{CheckResult, Evidence, EvidenceState, EvidenceView},
    workflow::Effect,
};
use serde_json::Value;

use super::Scene;

/// How often checks are begun anew when their sandbox comes to nothing.
const MOST_TRIES: u32 = 5;

/// How far the evidence about a result is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shown {
    /// All that is due is known.
    Known(Evidence),
    /// Checks are to be run.
    Missing(Vec<Check>),
    /// Checks run.
    Gathering,
    /// They cannot be run here.
    Unable(String),
}

/// The checks that are due of a unit: its own, and where it is what the whole task leaves, those of the task's criteria.
pub(super) fn due(scene: &Scene<'_>, unit: &UnitKey) -> Vec<Check> {
    let Some(plan) = scene.state.plan.as_ref() else { return Vec::new() };
    let Some(planned) = plan.steps().iter().find(|it| it.key == *unit) else { return Vec::new() };
    if !leaves_files(&planned.payload) {
        return Vec::new();
    }
    let listed = planned.payload["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let own = listed.iter().filter_map(|it| serde_json::from_value::<Check>(it.clone()).ok());
    let mut due: Vec<Check> = own.filter(|check| check.complaint().is_none()).collect();
    let mut criteria: Vec<Check> = Vec::new();
    if lasting(plan).contains(&unit) {
        let checks = scene.state.acceptance_criteria.iter().filter_map(|it| it.check.clone());
        for check in checks {
            if !criteria.contains(&check) {
                criteria.push(check);
            }
        }
    }
    // More than anybody runs would never be known. What people asked for is never left out.
    due.retain(|check| !criteria.contains(check));
    due.truncate(MOST_CHECKS.saturating_sub(criteria.len()));
    due.extend(criteria);
    due
}

/// The units whose work is what the whole plan leaves.
pub(super) fn lasting(plan: &Plan) -> Vec<&UnitKey> {
    let steps = plan.steps();
    let left: BTreeSet<UnitKey> = steps
        .iter()
        .filter(|unit| leaves_files(&unit.payload))
        .map(|unit| unit.key.clone())
        .collect();
    let graph = steps.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
    finals(&graph.collect::<Vec<_>>(), &left)
}

/// How far the evidence about a result is.
pub(super) fn shown(scene: &Scene<'_>, unit: &UnitKey, attempt: u32, output: &Value) -> Shown {
    let odd: Vec<Odd> = serde_json::from_value(output["odd"].clone()).unwrap_or_default();
    let commit = output["commit"].as_str().or(output["base"].as_str()).map(ToOwned::to_owned);
    let mut due = due(scene, unit);
    if commit.is_none() {
        // What a plan thought up, or a project says of itself, counts where it can be run.
        due.retain(|check| !check.if_runnable && !check.unless_before);
    }
    if due.is_empty() {
        return Shown::Known(Evidence { commit, checks: Vec::new(), odd });
    }
    if commit.is_none() {
        // There is no repository in which they could run: nobody can show anything.
        let none = due.into_iter().map(|check| CheckResult {
            check,
            tally: Tally::Again,
            rounds: 0,
            exit_code: None,
            sha256: String::new(),
            excerpt: String::new(),
            milliseconds: 0,
        });
        return Shown::Known(Evidence { commit, checks: none.collect(), odd });
    }
    let own = |it: &&EvidenceView| it.unit == *unit && it.attempt == attempt;
    let Some(view) = scene.position.evidence.iter().find(own) else { return Shown::Missing(due) };
    let has = |check: &Check| view.checks.iter().any(|it| it.check == *check);
    match view.state {
        EvidenceState::Gathering => Shown::Gathering,
        EvidenceState::Unable if view.tries < MOST_TRIES => Shown::Missing(due),
        EvidenceState::Unable => {
            let why = view.trouble.clone().unwrap_or_else(|| "no reason was given".to_owned());
            Shown::Unable(format!("the checks could not be run {} times: {why}", view.tries))
        }
        EvidenceState::Passed | EvidenceState::Failed if due.iter().all(has) => {
            Shown::Known(Evidence { commit, checks: view.checks.clone(), odd })
        }
        EvidenceState::Passed | EvidenceState::Failed => Shown::Missing(due),
    }
}

/// Has the checks run.
pub(super) fn gather(
    scene: &Scene<'_>,
    unit: &UnitKey,
    attempt: u32,
    checks: Vec<Check>,
) -> Effect {
    let timeout = scene.limits.timeout(Node::CollectResult).as_secs();
    let timeout_seconds = u32::try_from(timeout).unwrap_or(u32::MAX);
    Effect::GatherEvidence { unit: unit.clone(), attempt, checks, timeout_seconds }
}
