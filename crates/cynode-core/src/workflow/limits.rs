//! Limits of a run: retries and timeouts from preferences, with defaults that hold for any input.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    names::DottedKey,
    tuning::{BoundedNumber, TuningNote},
    workflow::WorkflowStep,
};

/// How many units may be out at once.
pub const MAX_PARALLEL_UNITS: BoundedNumber<i64> =
    BoundedNumber { name: "workflow.max_parallel_units", min: 1, max: 32, default: 4 };

/// The preference that says whether a person is asked about a plan.
pub const APPROVE_PLAN_PREFERENCE: &str = "workflow.approve_plan";

/// The preference that says whether a person is asked about a proposed environment. Only the workflow goes by it, so that models are not
/// told it.
pub const ASK_ENVIRONMENT_PREFERENCE: &str = "workflow.ask_environment";

const BACKOFF_INITIAL_DELAY: Duration = Duration::from_secs(1);
const BACKOFF_MAX_DELAY: Duration = Duration::from_secs(30);

/// The numbers of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// How many units may be out at once.
    pub max_parallel_units: u32,
    /// How often a unit is tried.
    pub step_attempts: u32,
    /// How often a node is tried when the failure may pass.
    pub node_attempts: u32,
    /// How many retries the task has in all, of units and nodes together.
    pub retry_budget: u32,
    /// Whether a person must say yes to the plan. Only a clear `false` says no.
    pub approve_plan: bool,
    /// Whether the checks are tried on the base commit before anybody works.
    pub try_checks: bool,
    /// Whether a person is asked about a proposed environment where the project has none.
    pub ask_environment: bool,
    timeouts: BTreeMap<WorkflowStep, Duration>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            max_parallel_units: 4,
            step_attempts: 3,
            node_attempts: 3,
            retry_budget: 30,
            approve_plan: true,
            try_checks: true,
            ask_environment: true,
            timeouts: BTreeMap::new(),
        }
    }
}

impl RunLimits {
    /// Reads the preferences that hold; a value that cannot be used becomes the default, with a note.
    pub fn from_preferences(preferences: &BTreeMap<DottedKey, Value>) -> (Self, Vec<TuningNote>) {
        let mut notes = Vec::new();
        let mut limits = Self::default();
        for (key, value) in preferences {
            let Some(name) = key.as_str().strip_prefix("workflow.") else { continue };
            match name {
                "max_parallel_units" => {
                    let mut wanted = limits.max_parallel_units;
                    apply_positive(key, value, &mut wanted, &mut notes);
                    let (taken, note) = MAX_PARALLEL_UNITS.clamp_value(wanted.into());
                    limits.max_parallel_units = u32::try_from(taken).unwrap_or(1);
                    notes.extend(note);
                }
                "max_step_retries" => {
                    apply_positive(key, value, &mut limits.step_attempts, &mut notes);
                }
                "max_node_retries" => {
                    apply_positive(key, value, &mut limits.node_attempts, &mut notes);
                }
                "retry_budget" => apply_positive(key, value, &mut limits.retry_budget, &mut notes),
                "try_checks" => limits.try_checks = value.as_bool().unwrap_or(true),
                "ask_environment" => limits.ask_environment = value.as_bool().unwrap_or(true),
                "approve_plan" => limits.approve_plan = value.as_bool().unwrap_or(true),
                other => {
                    let node =
                        other.strip_prefix("node_timeouts.").and_then(WorkflowStep::from_name);
                    let Some(node) = node else { continue };
                    let mut seconds = 0;
                    apply_positive(key, value, &mut seconds, &mut notes);
                    if seconds > 0 {
                        let (taken, note) = timeout_bounds(node).clamp_value(seconds.into());
                        notes.extend(note);
                        limits.timeouts.insert(node, Duration::from_secs(taken.unsigned_abs()));
                    }
                }
            }
        }
        (limits, notes)
    }

    /// How long a node may take.
    pub fn step_timeout(&self, node: WorkflowStep) -> Duration {
        self.timeouts.get(&node).copied().unwrap_or_else(|| default_step_timeout(node))
    }
}

/// How long a node may be given: ten minutes, after which the engine would believe it dead; a job, whose time is that of
/// collecting, a day.
const fn timeout_bounds(node: WorkflowStep) -> BoundedNumber<i64> {
    let max = match node {
        WorkflowStep::CollectResult => 24 * 3600,
        WorkflowStep::LoadTaskContext
        | WorkflowStep::PlanSteps
        | WorkflowStep::DispatchStep
        | WorkflowStep::VerifyStepResult
        | WorkflowStep::FinalizeSummary
        | WorkflowStep::MarkFailed => 600,
    };
    BoundedNumber { name: "workflow.node_timeouts", min: 1, max, default: 60 }
}

/// How long a node may take when nobody says otherwise.
pub const fn default_step_timeout(node: WorkflowStep) -> Duration {
    Duration::from_secs(match node {
        WorkflowStep::LoadTaskContext | WorkflowStep::DispatchStep | WorkflowStep::MarkFailed => 30,
        WorkflowStep::PlanSteps | WorkflowStep::VerifyStepResult => 120,
        WorkflowStep::CollectResult => 600,
        WorkflowStep::FinalizeSummary => 60,
    })
}

/// How long to wait before the attempt after `attempt` (1 is the first): 1 s, doubling, at most 30 s.
pub fn backoff_delay(attempt: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1).min(10));
    BACKOFF_INITIAL_DELAY.saturating_mul(doubled).min(BACKOFF_MAX_DELAY)
}

fn apply_positive(key: &DottedKey, value: &Value, taken: &mut u32, notes: &mut Vec<TuningNote>) {
    match value.as_u64().and_then(|value| u32::try_from(value).ok()) {
        Some(number) if number > 0 => *taken = number,
        Some(_) | None => {
            notes.push(TuningNote::new(format!("{key} must be above 0: using the default")));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(entries: &[(&str, Value)]) -> (RunLimits, Vec<String>) {
        let preferences =
            entries.iter().map(|(key, value)| (key.parse().unwrap(), value.clone())).collect();
        let (limits, notes) = RunLimits::from_preferences(&preferences);
        (limits, notes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn without_preferences_the_defaults_hold() {
        let (limits, notes) = read(&[]);
        assert_eq!(limits, RunLimits::default());
        assert_eq!((limits.step_attempts, limits.node_attempts), (3, 3));
        assert!(limits.approve_plan, "a person is asked about the plan");
        let seconds: Vec<_> =
            WorkflowStep::ALL.iter().map(|node| limits.step_timeout(*node).as_secs()).collect();
        assert_eq!(seconds, [30, 120, 30, 600, 120, 60, 30]);
        assert!(notes.is_empty());
    }

    #[test]
    fn preferences_change_the_numbers_and_bad_ones_become_the_default_with_a_note() {
        let (limits, notes) = read(&[
            ("workflow.max_step_retries", json!(5)),
            ("workflow.max_node_retries", json!(0)),
            ("workflow.max_parallel_units", json!(99)),
            ("workflow.node_timeouts.plan_steps", json!(7)),
            ("workflow.node_timeouts.collect_result", json!("soon")),
        ]);
        assert_eq!(limits.step_attempts, 5);
        assert_eq!(limits.node_attempts, 3);
        assert_eq!(limits.max_parallel_units, 32);
        assert_eq!(limits.step_timeout(WorkflowStep::PlanSteps), Duration::from_secs(7));
        assert_eq!(limits.step_timeout(WorkflowStep::CollectResult), Duration::from_mins(10));
        assert_eq!(
            notes,
            [
                "workflow.max_node_retries must be above 0: using the default",
                "workflow.max_parallel_units is 99, which is outside 1 to 32: using 32",
                "workflow.node_timeouts.collect_result must be above 0: using the default",
            ]
        );
    }

    #[test]
    fn only_a_clear_no_lets_a_plan_be_carried_out_unasked() {
        for (value, asked) in [(json!(false), false), (json!(true), true), (json!("false"), true)] {
            let (limits, _) = read(&[("workflow.approve_plan", value.clone())]);
            assert_eq!(limits.approve_plan, asked, "{value}");
        }
    }

    #[test]
    fn only_a_clear_no_keeps_a_person_from_being_asked_about_an_environment() {
        for (value, asked) in [(json!(false), false), (json!(true), true), (json!("no"), true)] {
            let (limits, _) = read(&[("workflow.ask_environment", value.clone())]);
            assert_eq!(limits.ask_environment, asked, "{value}");
        }
        assert!(read(&[]).0.ask_environment);
    }

    #[test]
    fn backing_off_starts_at_a_second_and_doubles_to_thirty() {
        let seconds: Vec<_> = (1..=8).map(|attempt| backoff_delay(attempt).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(backoff_delay(u32::MAX).as_secs(), 30);
    }
}
