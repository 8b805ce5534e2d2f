//! Payload of a unit: stored in the plan and returned at dispatch and verification.

use cynode_core::{
    evidence::EvidenceCheck,
    workflow::{
        decisions::{IssueScope, UnitKind},
        findings::VerificationFinding,
        plan::{Plan, PlannedUnit, UnitKey},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision_context::DecisionError;

/// The payload of a unit. Others may add fields of their own; they are not ours to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitPayload {
    /// What kind of work it is.
    pub kind: UnitKind,
    /// How much the whole task touches.
    pub scope: IssueScope,
    /// What its agent is told.
    #[serde(default)]
    pub brief: UnitBrief,
    /// How often work had been sent back when the unit was made.
    #[serde(default)]
    pub iteration: u32,
    /// What is run over its result: its own checks, and the project's where it is what the whole plan leaves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<EvidenceCheck>,
}

impl UnitPayload {
    /// A unit of the first round.
    pub const fn new(kind: UnitKind, scope: IssueScope, brief: UnitBrief) -> Self {
        Self { kind, scope, brief, iteration: 0, checks: Vec::new() }
    }
}

/// What the agent of a unit is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnitBrief {
    /// The files to change.
    pub files_to_modify: Vec<String>,
    /// The files to read first.
    pub files_to_read_first: Vec<String>,
    /// An example to follow.
    pub pattern_reference: Option<String>,
    /// What must not be done otherwise.
    pub constraints: Vec<String>,
    /// What must hold.
    pub requirements: Vec<String>,
    /// Commands that succeed when it is done well.
    pub checks: Vec<EvidenceCheck>,
    /// What is to be mended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<VerificationFinding>,
}

impl UnitPayload {
    /// Reads the payload of a unit; one that was not planned here cannot be judged here.
    pub fn parse_payload(unit: &UnitKey, payload: &Value) -> Result<Self, DecisionError> {
        serde_json::from_value(payload.clone()).map_err(|error| {
            DecisionError::Permanent(format!(
                "the plan says nothing usable of unit `{unit}`: {error}"
            ))
        })
    }

    /// The payload of a unit of a plan.
    pub fn from_unit(unit: &PlannedUnit) -> Option<Self> {
        serde_json::from_value(unit.payload.clone()).ok()
    }

    /// As it is kept in the plan.
    pub fn to_value(&self) -> Result<Value, DecisionError> {
        serde_json::to_value(self)
            .map_err(|error| DecisionError::Permanent(format!("a unit cannot be written: {error}")))
    }
}

/// The unit of that key in a plan, with what the plan says of it.
pub fn find_unit<'a>(plan: &'a Plan, key: &UnitKey) -> Option<(&'a PlannedUnit, UnitPayload)> {
    let unit = plan.planned_units().iter().find(|unit| unit.key == *key)?;
    Some((unit, UnitPayload::from_unit(unit)?))
}

/// Whether a plan has a unit of that kind.
pub fn has_unit_of_kind(plan: &Plan, kind: UnitKind) -> bool {
    plan.planned_units()
        .iter()
        .filter_map(UnitPayload::from_unit)
        .any(|payload| payload.kind == kind)
}

/// Whether a text is a path inside a repository that an agent can be pointed to.
pub fn is_repository_path(text: &str) -> bool {
    !text.is_empty()
        && text.chars().count() <= 300
        && !text.starts_with(['/', '~', '-'])
        && !text.contains(['\\', '`', '\n'])
        && !text.chars().any(char::is_control)
        && text.split('/').all(|part| part != "..")
}

/// What a worker brought, for a model. What it took and how it was carried here is no reason to find it good or bad, and never
/// twice the same.
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
