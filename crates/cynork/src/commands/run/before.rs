//! The preview of a plan: its workers, models and possible cost.

use std::collections::BTreeMap;

use cynode_core::{
    budget::Currency,
    workflow::{
        decisions::{IssueScope, PipelineStage, StageUnits, UnitAssignment, UnitKind, assign_unit},
        handoffs::PlanAnswer,
        jobs::WorkerChoice,
        plan::Plan,
    },
};
use cynode_wire::{
    models::{ModelChoices, TierChoice, UsageSum},
    tasks::{TaskView, preferences::EffectiveView},
};
use serde_json::Value;

use crate::{
    client::{ApiClient, ApiRequest, ListResponse},
    commands::task::budget_text,
    draw::format_money,
    failure::{CliErrorKind, Result},
    format::format_amount,
    operations,
};

/// The preference key of the workers.
const WORKERS_PREFERENCE_KEY: &str = "agents.project_manager.workers";

/// The preview of a plan, as named lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PlanPreview {
    pub(super) agents: String,
    pub(super) models: String,
    pub(super) estimate: String,
    pub(super) limit: String,
    /// The checks that the person requested; they run whatever the plan says.
    pub(super) checks: Vec<String>,
}

impl PlanPreview {
    /// Returns the lines that a person sees before the approval, each with its name.
    pub(super) fn to_lines(&self) -> Vec<(&'static str, String)> {
        let one = |name, words: &str| (name, words.to_owned());
        let mut lines = vec![
            one("agents", &self.agents),
            one("models", &self.models),
            one("estimate", &self.estimate),
            one("limit", &self.limit),
        ];
        lines.extend(self.checks.iter().map(|check| one("check", check)));
        lines.retain(|(_, words)| !words.is_empty());
        lines
    }
}

/// Renders the stages of a workflow in one line.
pub(super) fn render_stages(stages: &[PipelineStage]) -> String {
    let one = |stage: &PipelineStage| match stage.units {
        StageUnits::One => stage.kind.as_str().to_owned(),
        StageUnits::Several => format!("{} (one or more)", stage.kind.as_str()),
    };
    stages.iter().map(one).collect::<Vec<_>>().join(" → ")
}

impl PlanPreview {
    /// Fetches the preview. Parts that this person may not see are left out.
    pub(super) async fn fetch_for_task(
        client: &ApiClient,
        currency: Currency,
        task: &TaskView,
        planned: &PlanAnswer,
    ) -> Result<Self> {
        let crew = count_assignments(&planned.plan, planned.scope);
        let call = ApiRequest::with_path_params(operations::EFFECTIVE_PREFERENCES, [""; 0])
            .with_query("task_id", Some(task.id));
        let preferences: Option<EffectiveView> =
            none_if_denied(client.send_with_retry_timeout(&call).await)?;
        let preferences = preferences.map(|it| it.effective).unwrap_or_default();
        Ok(Self {
            agents: render_agents(&crew, &preferences),
            models: render_models(&fetch_model_choices(client, task, &crew).await?),
            estimate: render_estimate(&fetch_cost_history(client, task).await?, currency),
            limit: budget_text(task, currency),
            checks: requested_checks(task),
        })
    }
}

/// Returns `None` if the person lacks the permission.
fn none_if_denied<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(failure) if matches!(failure.kind, CliErrorKind::Refused | CliErrorKind::NotFound) => {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Counts the assignments of a plan's units.
fn count_assignments(plan: &Plan, scope: IssueScope) -> Vec<(UnitAssignment, usize)> {
    let mut crew: Vec<(UnitAssignment, usize)> = Vec::new();
    for unit in plan.planned_units() {
        let read = |name: &str| unit.payload[name].clone();
        let Ok(kind) = serde_json::from_value::<UnitKind>(read("kind")) else { continue };
        // Integration is not done by an agent.
        if kind == UnitKind::Integration {
            continue;
        }
        let scope = serde_json::from_value(read("scope")).unwrap_or(scope);
        let wanted = assign_unit(scope, kind);
        match crew.iter_mut().find(|(it, _)| *it == wanted) {
            Some((_, count)) => *count += 1,
            None => crew.push((wanted, 1)),
        }
    }
    crew
}

fn render_agents(
    crew: &[(UnitAssignment, usize)],
    preferences: &BTreeMap<String, Value>,
) -> String {
    let mut named: Vec<(String, usize)> = Vec::new();
    for (wanted, count) in crew {
        let worker = preferred_worker(*wanted, preferences);
        let worker = worker.map(|worker| format!(" ({worker})")).unwrap_or_default();
        let name = format!("{}{worker}", wanted.role.as_str());
        match named.iter_mut().find(|(it, _)| *it == name) {
            Some((_, all)) => *all += count,
            None => named.push((name, *count)),
        }
    }
    let one = |(name, count): &(String, usize)| match count {
        1 => name.clone(),
        count => format!("{count} × {name}"),
    };
    named.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the worker that preferences name for the role, else for the kind of unit.
fn preferred_worker(
    wanted: UnitAssignment,
    preferences: &BTreeMap<String, Value>,
) -> Option<String> {
    let keys = [wanted.role.as_str(), wanted.worker.as_str()];
    let value = keys
        .iter()
        .find_map(|name| preferences.get(&format!("{WORKERS_PREFERENCE_KEY}.{name}")))?;
    Some(match serde_json::from_value::<WorkerChoice>(value.clone()).ok()? {
        WorkerChoice::Acp { agent } => agent,
        WorkerChoice::Command { .. } => "commands".to_owned(),
        WorkerChoice::Scripted { .. } => "scripted".to_owned(),
        WorkerChoice::Checks { .. } | WorkerChoice::Merge => return None,
    })
}

/// Fetches the first model of each tier, as the installation would choose it now for this task.
async fn fetch_model_choices(
    client: &ApiClient,
    task: &TaskView,
    crew: &[(UnitAssignment, usize)],
) -> Result<Vec<TierChoice>> {
    let mut chosen: Vec<TierChoice> = Vec::new();
    for (wanted, _) in crew {
        if chosen.iter().any(|choice| choice.tier == wanted.tier) {
            continue;
        }
        let call = ApiRequest::with_path_params(operations::EXPLAIN_MODELS, [""; 0])
            .with_query("task_id", Some(task.id))
            .with_query("agent_role", Some(wanted.role.as_str()))
            .with_query("tier", Some(wanted.tier.as_str()));
        let found: Option<ModelChoices> =
            none_if_denied(client.send_with_retry_timeout(&call).await)?;
        chosen.extend(found.into_iter().flat_map(|found| found.tiers));
    }
    Ok(chosen)
}

fn render_models(choices: &[TierChoice]) -> String {
    let one = |choice: &TierChoice| {
        let tier = choice.tier.as_str();
        match (&choice.model, choice.fallback_tier) {
            (Some(model), None) => format!("{model} ({tier})"),
            (Some(model), Some(near)) => format!("{model} ({}, as none is {tier})", near.as_str()),
            (None, _) => format!("none for {tier}: `cynork model explain {tier}` says why"),
        }
    };
    choices.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the checks that were requested with the task.
fn requested_checks(task: &TaskView) -> Vec<String> {
    let checks = task.acceptance_criteria.iter().filter_map(|criterion| criterion.check.as_ref());
    checks.map(|check| format!("{} (yours, run in the end)", check.command_line())).collect()
}

/// The cost of earlier tasks.
#[derive(Debug, PartialEq, Eq)]
enum CostHistory {
    /// It is the first task.
    First,
    /// The person may not see the costs, or no earlier task was completed.
    Unknown,
    /// The cost of each completed task, in millionths.
    Costs(Vec<u64>),
}

/// Fetches the cost of the project's completed tasks.
async fn fetch_cost_history(client: &ApiClient, task: &TaskView) -> Result<CostHistory> {
    let call = ApiRequest::with_path_params(operations::LIST_TASKS, [""; 0])
        .with_query("project", Some(task.project_id))
        .with_query("limit", Some(200));
    let before: ListResponse<TaskView> = client.send_with_retry_timeout(&call).await?;
    let before: Vec<TaskView> = before.items.into_iter().filter(|it| it.id != task.id).collect();
    if before.is_empty() {
        return Ok(CostHistory::First);
    }
    let call = ApiRequest::with_path_params(operations::SUM_USAGE, [""; 0])
        .with_query("project_id", Some(task.project_id))
        .with_query("by", Some("task"));
    let sums: Option<ListResponse<UsageSum>> =
        none_if_denied(client.send_with_retry_timeout(&call).await)?;
    let sums = sums.map(|sums| sums.items).unwrap_or_default();
    let done = before.iter().filter(|it| it.state == cynode_core::tasks::TaskStateName::Completed);
    let costs = done.filter_map(|task| {
        let (id, plain) = (task.id.to_string(), task.id.as_uuid().to_string());
        let sum =
            sums.iter().find(|sum| sum.key.as_ref().is_some_and(|it| *it == id || *it == plain));
        sum.and_then(|sum| u64::try_from(sum.cost_micros).ok())
    });
    let costs: Vec<u64> = costs.collect();
    Ok(if costs.is_empty() { CostHistory::Unknown } else { CostHistory::Costs(costs) })
}

fn render_estimate(past: &CostHistory, currency: Currency) -> String {
    match past {
        CostHistory::First => "no estimate yet: this is the project's first task".to_owned(),
        CostHistory::Unknown => {
            "no estimate yet: no task of this project was completed before".to_owned()
        }
        CostHistory::Costs(costs) => {
            let (least, most) = (costs.iter().min(), costs.iter().max());
            let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
            let tasks = match costs.len() {
                1 => "the task completed before it".to_owned(),
                count => format!("the {count} tasks completed before it"),
            };
            if least == most {
                format!("{}, what {tasks} in this project cost", format_money(most, currency))
            } else {
                let (least, most) = (format_amount(least), format_money(most, currency));
                format!("{least} to {most}, what {tasks} in this project cost")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::workflow::decisions::{WorkClass, workflow_stages};
    use serde_json::json;

    use super::*;

    fn plan() -> Plan {
        let unit = |key: &str, kind: &str| json!({ "key": key, "title": key, "payload": { "kind": kind, "scope": "medium" } });
        let steps = [
            unit("one", "implementation"),
            unit("two", "implementation"),
            unit("both", "integration"),
            unit("look", "review"),
            json!({ "key": "odd", "title": "odd", "payload": {} }),
        ];
        serde_json::from_value(json!({ "steps": steps })).unwrap()
    }

    #[test]
    fn a_workflow_is_told_in_a_line() {
        let told = |class, scope| render_stages(workflow_stages(class, scope));
        assert_eq!(told(WorkClass::QuickFix, IssueScope::Large), "fix");
        assert_eq!(
            told(WorkClass::FeatureRequest, IssueScope::Large),
            "spec → implementation (one or more) → review → test"
        );
    }

    #[test]
    fn agents_are_counted_and_named_as_preferences_want_them() {
        let crew = count_assignments(&plan(), IssueScope::Small);
        assert_eq!(render_agents(&crew, &BTreeMap::new()), "2 × developer, reviewer");
        let wanted = BTreeMap::from([
            (
                format!("{WORKERS_PREFERENCE_KEY}.developer"),
                json!({ "kind": "acp", "agent": "goose" }),
            ),
            (
                format!("{WORKERS_PREFERENCE_KEY}.reviewer"),
                json!({ "kind": "scripted", "moves": [] }),
            ),
        ]);
        assert_eq!(render_agents(&crew, &wanted), "2 × developer (goose), reviewer (scripted)");
        let wanted = BTreeMap::from([(
            format!("{WORKERS_PREFERENCE_KEY}.specialist"),
            json!({ "kind": "acp", "agent": "claude" }),
        )]);
        assert_eq!(render_agents(&crew, &wanted), "2 × developer (claude), reviewer");
    }

    #[test]
    fn models_are_named_as_the_installation_would_choose_them() {
        let choice = |model: Option<&str>, fallback: Option<&str>| -> TierChoice {
            let choice = json!({ "tier": "standard", "model_id": "cynodeai.standard", "model": model, "fallback_tier": fallback,
                "choices": [] });
            serde_json::from_value(choice).unwrap()
        };
        assert_eq!(render_models(&[choice(Some("big"), None)]), "big (standard)");
        assert_eq!(
            render_models(&[choice(Some("small"), Some("fast"))]),
            "small (fast, as none is standard)"
        );
        assert_eq!(
            render_models(&[choice(None, None)]),
            "none for standard: `cynork model explain standard` says why"
        );
        assert_eq!(render_models(&[]), "");
    }

    #[test]
    fn nothing_is_estimated_that_is_not_known() {
        assert_eq!(
            render_estimate(&CostHistory::First, Currency::USD),
            "no estimate yet: this is the project's first task"
        );
        assert_eq!(
            render_estimate(&CostHistory::Costs(vec![30_000, 10_000]), Currency::USD),
            "0.0100 to 0.0300 USD, what the 2 tasks completed before it in this project cost"
        );
        assert_eq!(
            render_estimate(&CostHistory::Costs(vec![30_000]), Currency::USD),
            "0.0300 USD, what the task completed before it in this project cost"
        );
    }
}
