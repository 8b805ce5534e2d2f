//! Trace of planning. Each step observes, reasons and acts, in this order, and each event is stored when it happens: calls of tools
//! before they are made, the rest before the next call of a tool or a model.

use serde_json::{Value, json};

use super::rank::RankedTool;
use crate::decision_context::{DecisionContext, DecisionError, DecisionKind};

/// Reason why planning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanningStop {
    /// The plan covers the goal.
    GoalMet,
    /// The maximum number of steps is reached.
    MaxSteps,
    /// The planner wanted to look further, and there was nothing that it had not seen.
    NothingNew,
    /// A person is asked.
    Question,
    /// A budget is used up.
    Budget,
    /// A tool or a model failed; this attempt ends.
    ToolFailure,
    /// No tool is relevant: the plan is based on the text alone.
    NoRelevantTool,
}

impl PlanningStop {
    const fn as_str(self) -> &'static str {
        match self {
            Self::GoalMet => "goal_met",
            Self::MaxSteps => "max_steps",
            Self::NothingNew => "nothing_new",
            Self::Question => "question",
            Self::Budget => "budget",
            Self::ToolFailure => "tool_failure",
            Self::NoRelevantTool => "no_relevant_tool",
        }
    }

    /// Returns the reason behind an error.
    pub(super) const fn from_error(error: &DecisionError) -> Self {
        match error {
            DecisionError::Budget(_) => Self::Budget,
            DecisionError::Transient(_)
            | DecisionError::Late(_)
            | DecisionError::Untraced(_)
            | DecisionError::Permanent(_)
            | DecisionError::Paused
            | DecisionError::Refused { .. } => Self::ToolFailure,
        }
    }
}

/// How a step was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecidedBy {
    /// A model was asked.
    Model,
    /// A rule of the program knew the answer.
    Rule,
}

/// Trace of one planning attempt.
pub(super) struct PlanningTrace<'a> {
    desk: &'a DecisionContext<'a>,
}

impl<'a> PlanningTrace<'a> {
    pub(super) fn start_trace(
        desk: &'a DecisionContext<'a>,
        profile: &str,
        attempt: u32,
        again: bool,
    ) -> Self {
        desk.begin_trace(profile);
        let data = json!({ "attempt": attempt, "again": again, "max_steps": desk.max_steps });
        desk.trace_event("plan:start", data);
        Self { desk }
    }

    /// Begins the next step.
    pub(super) fn begin_step(&self) {
        self.desk.begin_trace_step();
    }

    /// Records the tools that were selected for the goal, out of those that this caller may call.
    pub(super) fn record_selection(&self, ranked: &[RankedTool<'_>], of: usize) {
        let selected: Vec<_> =
            ranked.iter().map(|tool| json!({ "name": tool.name, "score": tool.score })).collect();
        self.desk.trace_event("plan:tools", json!({ "selected": selected, "of": of }));
    }

    /// Records what the calls of this step gave.
    pub(super) fn record_observation(&self, learned: &str) {
        let calls = self.desk.take_traced_calls();
        self.desk.trace_event("plan:observe", json!({ "calls": calls, "learned": learned }));
    }

    /// Records the decision of this step.
    pub(super) fn record_reason(
        &self,
        kind: DecisionKind,
        by: DecidedBy,
        decided: &Value,
        why: &str,
    ) {
        let by = match by {
            DecidedBy::Model => "model",
            DecidedBy::Rule => "rule",
        };
        let why = super::fence::sanitize_line(why, 300);
        let data = json!({ "decision": kind, "by": by, "decided": decided, "why": why });
        self.desk.trace_event("plan:reason", data);
    }

    /// Records what follows from the decision of this step.
    pub(super) fn record_action(&self, act: &str, detail: &Value) {
        self.desk.trace_event("plan:act", json!({ "act": act, "detail": detail }));
    }

    /// Ends the trace with the reason, and the number of units if there is a plan.
    pub(super) async fn finish_trace(
        self,
        stop: PlanningStop,
        units: Option<usize>,
    ) -> Result<(), DecisionError> {
        self.desk.end_trace_steps();
        self.desk.trace_event("plan:stop", json!({ "condition": stop.as_str() }));
        if let Some(units) = units {
            self.desk.trace_event("plan:finish", json!({ "units": units }));
        }
        self.desk.flush_trace().await
    }
}
