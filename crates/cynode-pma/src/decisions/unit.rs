//! Payload of a unit: stored in the plan and returned at dispatch and verification.

use cynode_core::{
    evidence::EvidenceCheck,
    workflow::{
        decisions::{IssueScope, UnitKind},
        findings::VerificationFinding,
        jobs::UnitNeeds,
        plan::{Plan, PlannedUnit, UnitKey},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision_context::DecisionError;

/// Payload of a unit. Other components may add their own fields, which are ignored here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitPayload {
    /// Kind of work.
    pub kind: UnitKind,
    /// Scope of the whole task.
    pub scope: IssueScope,
    /// Brief of the unit's agent.
    #[serde(default)]
    pub brief: UnitBrief,
    /// Number of revisions when the unit was created.
    #[serde(default)]
    pub iteration: u32,
    /// Checks that are run on its result: its own, and the project's for a final unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<EvidenceCheck>,
    /// Resources that it needs beyond the project's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<UnitNeeds>,
}

impl UnitPayload {
    /// Creates the payload of a unit of the first iteration.
    pub const fn new(kind: UnitKind, scope: IssueScope, brief: UnitBrief) -> Self {
        Self { kind, scope, brief, iteration: 0, checks: Vec::new(), needs: None }
    }
}

/// Brief of a unit's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnitBrief {
    /// Files to change.
    pub files_to_modify: Vec<String>,
    /// Files to read first.
    pub files_to_read_first: Vec<String>,
    /// Existing example to follow.
    pub pattern_reference: Option<String>,
    /// Constraints of the work.
    pub constraints: Vec<String>,
    /// Requirements of the result.
    pub requirements: Vec<String>,
    /// Commands that succeed if the unit is done well.
    pub checks: Vec<EvidenceCheck>,
    /// Findings to fix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<VerificationFinding>,
}

impl UnitPayload {
    /// Parses the payload of a unit. A unit that the project manager did not plan cannot be verified by it.
    pub fn parse_payload(unit: &UnitKey, payload: &Value) -> Result<Self, DecisionError> {
        serde_json::from_value(payload.clone()).map_err(|error| {
            DecisionError::Permanent(format!(
                "the plan says nothing usable of unit `{unit}`: {error}"
            ))
        })
    }

    /// Returns the payload of a planned unit.
    pub fn from_unit(unit: &PlannedUnit) -> Option<Self> {
        serde_json::from_value(unit.payload.clone()).ok()
    }

    /// Returns the payload as stored in the plan.
    pub fn to_value(&self) -> Result<Value, DecisionError> {
        serde_json::to_value(self)
            .map_err(|error| DecisionError::Permanent(format!("a unit cannot be written: {error}")))
    }
}

/// Finds a unit of a plan by its key, with its payload.
pub fn find_unit<'a>(plan: &'a Plan, key: &UnitKey) -> Option<(&'a PlannedUnit, UnitPayload)> {
    let unit = plan.planned_units().iter().find(|unit| unit.key == *key)?;
    Some((unit, UnitPayload::from_unit(unit)?))
}

/// Returns whether a plan has a unit of that kind.
pub fn has_unit_of_kind(plan: &Plan, kind: UnitKind) -> bool {
    plan.planned_units()
        .iter()
        .filter_map(UnitPayload::from_unit)
        .any(|payload| payload.kind == kind)
}

/// Returns whether a text is a path inside a repository that an agent can be pointed to.
pub fn is_repository_path(text: &str) -> bool {
    !text.is_empty()
        && text.chars().count() <= 300
        && !text.starts_with(['/', '~', '-'])
        && !text.contains(['\\', '`', '\n'])
        && !text.chars().any(char::is_control)
        && text.split('/').all(|part| part != "..")
}

/// Returns the worker's output for a model, without resource usage and transport fields: they say nothing about the quality and differ
/// in every run.
pub(super) fn reviewable_output(output: &Value) -> Value {
    let mut told = output.clone();
    remove_fields(&mut told, &["resource_usage", "bundle"]);
    let steps = told.get_mut("steps").and_then(Value::as_array_mut);
    for step in steps.into_iter().flatten() {
        remove_fields(step, &["milliseconds", "sha256"]);
    }
    told
}

fn remove_fields(value: &mut Value, names: &[&str]) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !names.contains(&name.as_str()));
    }
}
