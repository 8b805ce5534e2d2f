//! Plans: an acyclic graph of work units, and which of them are ready to dispatch.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    names::{Prose, TaskName},
    tuning::PLANNER_MAX_STEPS,
    workflow::{decisions::UnitKind, instructions::InstructionKind, units::UnitState},
};

/// The name of a unit in its plan; the rule is that of a task's name.
pub type UnitKey = TaskName;

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedUnit {
    /// Its name, unique in the task.
    #[schema(value_type = String)]
    pub key: UnitKey,
    /// What is to be done.
    #[schema(value_type = String)]
    pub title: Prose,
    /// The units that must be done before it.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub depends_on: Vec<UnitKey>,
    /// What the job is given.
    #[serde(default)]
    pub payload: Value,
}

/// A plan that holds together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "PlanText", into = "PlanText")]
pub struct Plan {
    /// The units.
    steps: Vec<PlannedUnit>,
    /// What the plan takes for granted.
    #[schema(value_type = Vec<String>)]
    assumptions: Vec<Prose>,
}

/// A plan as it is written, not yet looked at.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanText {
    /// The units.
    pub steps: Vec<PlannedUnit>,
    /// What the plan takes for granted.
    #[serde(default)]
    pub assumptions: Vec<Prose>,
}

/// Why a plan does not hold together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too few or too many units.
    #[error("a plan has 1 to {max} units, got {got}")]
    Size {
        /// Most units.
        max: i64,
        /// How many there are.
        got: usize,
    },
    /// Two units have one name.
    #[error("the plan has two units called `{0}`")]
    Twice(UnitKey),
    /// A unit depends on one that is not there.
    #[error("unit `{unit}` depends on `{missing}`, which is not in the plan")]
    Missing {
        /// The unit.
        unit: UnitKey,
        /// What is not there.
        missing: UnitKey,
    },
    /// Units depend on each other in a circle.
    #[error("units depend on each other in a circle: {0}")]
    Circle(String),
}

impl Plan {
    /// The units, in the order of the plan.
    pub fn planned_units(&self) -> &[PlannedUnit] {
        &self.steps
    }

    /// What the plan takes for granted.
    pub fn assumptions(&self) -> &[Prose] {
        &self.assumptions
    }
}

impl TryFrom<PlanText> for Plan {
    type Error = PlanError;

    fn try_from(text: PlanText) -> Result<Self, PlanError> {
        let PlanText { steps, assumptions } = text;
        let max = PLANNER_MAX_STEPS.max;
        if steps.is_empty() || i64::try_from(steps.len()).is_ok_and(|got| got > max) {
            return Err(PlanError::Size { max, got: steps.len() });
        }
        let mut keys = BTreeSet::new();
        if let Some(twice) = steps.iter().find(|unit| !keys.insert(&unit.key)) {
            return Err(PlanError::Twice(twice.key.clone()));
        }
        for unit in &steps {
            if let Some(missing) = unit.depends_on.iter().find(|key| !keys.contains(key)) {
                let (unit, missing) = (unit.key.clone(), missing.clone());
                return Err(PlanError::Missing { unit, missing });
            }
        }
        if let Some(circle) = find_cycle(&steps) {
            return Err(PlanError::Circle(circle));
        }
        Ok(Self { steps, assumptions })
    }
}

impl From<Plan> for PlanText {
    fn from(plan: Plan) -> Self {
        Self { steps: plan.steps, assumptions: plan.assumptions }
    }
}

/// Takes away what depends on nothing left, until nothing remains; what remains holds a circle, which is named.
fn find_cycle(steps: &[PlannedUnit]) -> Option<String> {
    let mut left: BTreeMap<&UnitKey, &[UnitKey]> =
        steps.iter().map(|unit| (&unit.key, unit.depends_on.as_slice())).collect();
    loop {
        let free: Vec<&UnitKey> = left
            .iter()
            .filter(|(_, needs)| needs.iter().all(|key| !left.contains_key(key)))
            .map(|(key, _)| *key)
            .collect();
        if free.is_empty() {
            break;
        }
        for key in free {
            left.remove(key);
        }
    }
    let mut at: &UnitKey = left.first_key_value()?.0;
    let mut path: Vec<&UnitKey> = Vec::new();
    while !path.contains(&at) {
        path.push(at);
        at = left.get(at)?.iter().find(|key| left.contains_key(key))?;
    }
    let from = path.iter().position(|key| *key == at)?;
    let names = path[from..].iter().chain([&at]).map(|key| key.as_str());
    Some(names.collect::<Vec<_>>().join(" → "))
}

/// Whether what the plan says of a unit lets it leave files behind. Where nothing is said, it may.
pub fn unit_leaves_files(payload: &Value) -> bool {
    match serde_json::from_value::<UnitKind>(payload["kind"].clone()) {
        Ok(kind) => kind.leaves_files(),
        Err(_) => payload["work"]["commit"] != "never",
    }
}

/// Those of `left` that no other of them builds on: what they leave is what the whole leaves. In the order of the plan.
pub fn find_final_units<'a>(
    graph: &[(&'a UnitKey, &'a [UnitKey])],
    left: &BTreeSet<UnitKey>,
) -> Vec<&'a UnitKey> {
    let needs: BTreeMap<&UnitKey, &[UnitKey]> = graph.iter().copied().collect();
    // Everything that something in `left` builds on, however far away.
    let mut built_on: BTreeSet<&UnitKey> = BTreeSet::new();
    let mut open: Vec<&UnitKey> = left.iter().collect();
    while let Some(key) = open.pop() {
        for before in needs.get(key).copied().unwrap_or_default() {
            if built_on.insert(before) {
                open.push(before);
            }
        }
    }
    let last = graph.iter().map(|(key, _)| *key);
    last.filter(|key| left.contains(*key) && !built_on.contains(*key)).collect()
}

/// A unit as the decision about dispatching sees it.
#[derive(Clone, Copy, Debug)]
pub struct UnitStatus<'a> {
    /// Its name.
    pub key: &'a UnitKey,
    /// What must be done before.
    pub depends_on: &'a [UnitKey],
    /// Where it stands.
    pub state: UnitState,
}

/// What dispatching is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DispatchDecision<'a> {
    /// Send these units.
    Send(Vec<&'a UnitKey>),
    /// Nothing can be sent now; results are awaited.
    Await,
    /// Every unit has ended well or is not wanted any more.
    Done,
    /// Nothing is out and nothing can ever be sent: this unit can never start.
    Stuck(&'a UnitKey),
}

/// Decides which units to send: those whose dependencies are done, in the order of the plan, while places are free.
pub fn decide_dispatch<'a>(units: &[UnitStatus<'a>], max_parallel: u32) -> DispatchDecision<'a> {
    let state_of = |key: &UnitKey| units.iter().find(|unit| unit.key == key).map(|unit| unit.state);
    let ready = |unit: &&UnitStatus<'a>| {
        unit.state == UnitState::Pending
            && unit.depends_on.iter().all(|key| state_of(key) == Some(UnitState::Done))
    };
    let out = units
        .iter()
        .filter(|unit| matches!(unit.state, UnitState::Dispatched | UnitState::Collected))
        .count();
    let places = usize::try_from(max_parallel).unwrap_or(usize::MAX).saturating_sub(out);
    let send: Vec<_> = units.iter().filter(ready).map(|unit| unit.key).take(places).collect();
    if !send.is_empty() {
        return DispatchDecision::Send(send);
    }
    if out > 0 {
        return DispatchDecision::Await;
    }
    match units.iter().find(|unit| !matches!(unit.state, UnitState::Done | UnitState::Cancelled)) {
        Some(unit) => DispatchDecision::Stuck(unit.key),
        None => DispatchDecision::Done,
    }
}

/// What a person said about the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanFeedback {
    /// What kind of instruction it was.
    pub kind: InstructionKind,
    /// What was said.
    pub text: String,
}

#[cfg(test)]
mod tests;
