//! Trace of planning, step by step: stored with the plan and logged.

use cynode_core::workflow::{handoffs::TraceEvent, plan::Plan};
use serde_json::{Value, json};

use super::super::{rank::RankedTool, unit::UnitPayload};
use crate::decision_context::DecisionContext;

/// Reason why planning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanningStop {
    /// The plan covers the goal.
    GoalMet,
    /// The maximum number of steps is reached.
    MaxSteps,
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
            Self::ToolFailure => "tool_failure",
            Self::NoRelevantTool => "no_relevant_tool",
        }
    }
}

/// Trace of one planning attempt.
pub(super) struct PlanningTrace {
    id: String,
    profile: String,
    events: Vec<TraceEvent>,
}

impl PlanningTrace {
    pub(super) fn start_trace(desk: &DecisionContext<'_>, attempt: u32, again: bool) -> Self {
        let context = &desk.handoff.context;
        let profile = ["agents.project_manager.profile", "memory.profile"]
            .into_iter()
            .find_map(|key| {
                super::find_preference(&context.preferences, key).and_then(Value::as_str)
            })
            .unwrap_or("default");
        let mut trace =
            Self { id: context.trace_id.clone(), profile: profile.to_owned(), events: Vec::new() };
        trace.record_event(
            "plan:start",
            0,
            json!({ "attempt": attempt, "again": again, "max_steps": desk.max_steps }),
        );
        trace
    }

    /// Records the tools that are relevant for the goal.
    pub(super) fn record_tools(&mut self, ranked: &[RankedTool<'_>], of: usize) {
        let selected: Vec<_> =
            ranked.iter().map(|tool| json!({ "name": tool.name, "score": tool.score })).collect();
        self.record_event("plan:tools", 0, json!({ "selected": selected, "of": of }));
    }

    /// Records each unit of the plan: its dependencies, title and kind.
    fn record_units(&mut self, plan: &Plan) {
        for (index, unit) in plan.planned_units().iter().enumerate() {
            let kind = UnitPayload::from_unit(unit).map(|payload| payload.kind.as_str());
            let step = u32::try_from(index + 1).unwrap_or(u32::MAX);
            let data = json!({
                "observe": unit.depends_on, "reason": unit.title, "act": { "unit": unit.key, "kind": kind },
            });
            self.record_event("plan:step", step, data);
        }
    }

    /// Logs a failed attempt, because there is no plan to store the trace with.
    pub(super) fn record_failure(mut self) {
        self.record_stop(PlanningStop::ToolFailure);
    }

    /// Completes the trace.
    pub(super) fn finish_trace(mut self, plan: &Plan, stop: PlanningStop) -> Vec<TraceEvent> {
        self.record_units(plan);
        self.record_stop(stop);
        self.record_event("plan:finish", 0, json!({ "units": plan.planned_units().len() }));
        self.events
    }

    fn record_stop(&mut self, stop: PlanningStop) {
        self.record_event("plan:stop", 0, json!({ "condition": stop.as_str() }));
    }

    fn record_event(&mut self, event: &str, step: u32, data: Value) {
        let Self { id: trace_id, profile, .. } = self;
        tracing::info!(event, trace_id, step, profile, "planning");
        self.events.push(TraceEvent {
            event: event.to_owned(),
            trace_id: trace_id.clone(),
            step,
            profile: profile.clone(),
            data,
        });
    }
}
