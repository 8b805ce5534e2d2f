//! Observation by tools: of our own tools that the manager may call and that change nothing, those that share words with the goal are
//! called, and their answers are shown to the planner.

use serde_json::{Map, Value};

use super::{
    fence,
    planning_trace::PlanningTrace,
    rank::{RankableTool, rank_tools},
};
use crate::decision_context::{DecisionContext, DecisionError, OfferedTool};

/// Maximum number of tools that are selected for a goal.
const MAX_SELECTED_TOOLS: usize = 3;

/// Maximum length of one answer in a prompt.
const MAX_ANSWER_CHARS: usize = 800;

/// Tools with which the planner reads the repository in any case, as its steps need it.
const REPOSITORY_TOOLS: [&str; 2] = ["git.tree", "git.read"];

/// Tools whose answers change by themselves. With them in a prompt, a plan that is made again could not reuse its recorded decisions. What
/// the memory of the project says of the task comes with the handoff.
const VOLATILE_TOOLS: [&str; 9] = [
    "db.job.list",
    "db.task.get",
    "db.task.logs",
    "db.task.result",
    "db.work_unit.list",
    "memory.search",
    "node.get",
    "node.list",
    "schedule.list",
];

/// Prefix of the names of tools that other programs serve. They are not called unasked: their words are not ours, and an id may mean
/// something else to them.
const FOREIGN_TOOL_PREFIX: &str = "ext.";

/// Something that the planner looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// Name of the tool or path of the file.
    pub(super) source: String,
    /// The answer, truncated.
    pub(super) text: String,
}

/// Selects tools for the goal among those that this handoff may call, and calls them. An observation that fails is left out, and after a
/// refusal none follows: what nobody asked for does not end the planning.
pub(super) async fn observe_by_tools(
    desk: &DecisionContext<'_>,
    goal: &str,
    trace: &PlanningTrace<'_>,
) -> Result<Vec<Observation>, DecisionError> {
    let offered = match desk.list_tools().await {
        Ok(offered) => offered,
        Err(trouble) => {
            tracing::warn!(event = "planning.tools_unknown", error = %trouble, "the tools could not be listed");
            Vec::new()
        }
    };
    let callable: Vec<(&OfferedTool, Value)> = offered
        .iter()
        .filter(|tool| tool.read_only && is_observation(&tool.name))
        .filter_map(|tool| Some((tool, known_arguments(desk, tool)?)))
        .collect();
    let known: Vec<RankableTool<'_>> = callable
        .iter()
        .map(|(tool, _)| RankableTool { name: &tool.name, description: &tool.description })
        .collect();
    let ranked = rank_tools(goal, &known, MAX_SELECTED_TOOLS);
    trace.record_selection(&ranked, known.len());
    let mut observations = Vec::new();
    for selected in &ranked {
        let Some((tool, arguments)) = callable.iter().find(|(tool, _)| tool.name == selected.name)
        else {
            continue;
        };
        match desk.call_tool(&tool.name, arguments.clone()).await {
            Ok(answer) => observations.push(Observation {
                source: tool.name.clone(),
                text: fence::truncate_middle(&answer.to_string(), MAX_ANSWER_CHARS),
            }),
            Err(trouble @ (DecisionError::Untraced(_) | DecisionError::Paused)) => {
                return Err(trouble);
            }
            // It is recorded as refused or failed; the plan is made without it.
            Err(DecisionError::Refused { .. }) => break,
            Err(_) => {}
        }
    }
    Ok(observations)
}

/// Returns whether a tool may be called to observe something for a plan.
fn is_observation(name: &str) -> bool {
    !name.starts_with(FOREIGN_TOOL_PREFIX)
        && !REPOSITORY_TOOLS.contains(&name)
        && !VOLATILE_TOOLS.contains(&name)
}

/// Returns the arguments of a tool if the handoff knows all that it requires.
fn known_arguments(desk: &DecisionContext<'_>, tool: &OfferedTool) -> Option<Value> {
    let context = &desk.handoff.context;
    let mut arguments = Map::new();
    for name in tool.input.get("required").and_then(Value::as_array).into_iter().flatten() {
        let value = match name.as_str()? {
            "task_id" => context.task.as_ref()?.id.to_string(),
            "project_id" => context.project.as_ref()?.id.to_string(),
            _ => return None,
        };
        arguments.insert(name.as_str()?.to_owned(), value.into());
    }
    Some(Value::Object(arguments))
}
