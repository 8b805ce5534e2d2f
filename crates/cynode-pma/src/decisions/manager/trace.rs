//! Trace of planning, step by step: stored with the plan and logged.

use cynode_core::workflow::{handoffs::TraceEvent, plan::Plan};
use serde_json::{Value, json};

use super::super::{rank::RankedTool, unit::UnitPayload};
use crate::decision_context::DecisionContext;

/// Why planning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanningStop {
    /// The plan covers the goal.
    GoalMet,
    /// No more steps may be planned.
    MaxSteps,
    /// A tool or a model came to nothing; nothing more of this attempt is done.
    ToolFailure,
    /// There was nothing to look at: the plan rests on the words alone.
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

/// The trace of one planning.
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

    /// The tools that the goal is about.
    pub(super) fn record_tools(&mut self, ranked: &[RankedTool<'_>], of: usize) {
        let selected: Vec<_> =
            ranked.iter().map(|tool| json!({ "name": tool.name, "score": tool.score })).collect();
        self.record_event("plan:tools", 0, json!({ "selected": selected, "of": of }));
    }

    /// The units: what was looked at, why, and what is to be done.
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

    /// Planning failed: said in the log, since there is no plan to keep it with.
    pub(super) fn record_failure(mut self) {
        self.record_stop(PlanningStop::ToolFailure);
    }

    /// Planning came to an end.
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
