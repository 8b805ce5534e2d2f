//! What can be said before the work begins: who will do it, with what models, what it may cost.

use std::collections::BTreeMap;

use cynode_core::{
    judgement::{Assignment, IssueScope, Stage, UnitKind, Units, assign},
    models::Tier,
    workflow::plan::Plan,
};
use cynode_wire::{
    handoffs::Planned,
    models::{ModelView, UsageSum},
    preferences::EffectiveView,
    tasks::TaskView,
    work::WorkerChoice,
};
use serde_json::Value;

use crate::{
    client::{Call, Items},
    context::Context,
    draw::money,
    failure::{Kind, Result},
    operations,
};

/// Where preferences name the workers.
const WORKERS: &str = "agents.project_manager.workers";

/// What was found out before the work begins, as lines with a name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) agents: String,
    pub(super) models: String,
    pub(super) estimate: String,
    pub(super) cap: String,
}

/// The stages of a workflow in a line.
pub(super) fn stages(stages: &[Stage]) -> String {
    let one = |stage: &Stage| match stage.units {
        Units::One => stage.kind.as_str().to_owned(),
        Units::Several => format!("{} (one or more)", stage.kind.as_str()),
    };
    stages.iter().map(one).collect::<Vec<_>>().join(" → ")
}

impl Before {
    /// Finds it out. What this person may not see is left open.
    pub(super) async fn find(
        context: &Context,
        task: &TaskView,
        planned: &Planned,
    ) -> Result<Self> {
        let crew = crew(&planned.plan, planned.scope);
        let call =
            Call::to(operations::EFFECTIVE_PREFERENCES, [""; 0]).query("task_id", Some(task.id));
        let preferences: Option<EffectiveView> = seen(context.client.for_a_while(&call).await)?;
        let call = Call::to(operations::LIST_REGISTRY, [""; 0]);
        let registry: Option<Items<ModelView>> = seen(context.client.for_a_while(&call).await)?;
        let preferences = preferences.map(|it| it.effective).unwrap_or_default();
        let registry = registry.map(|it| it.items).unwrap_or_default();
        Ok(Self {
            agents: agents(&crew, &preferences),
            models: models(&crew, &registry),
            estimate: estimate(&past(context, task).await?),
            cap: cap(task),
        })
    }
}

/// What is found when this person may see it.
fn seen<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(failure) if matches!(failure.kind, Kind::Refused | Kind::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Who the units of a plan will be given to, each with how many.
fn crew(plan: &Plan, scope: IssueScope) -> Vec<(Assignment, usize)> {
    let mut crew: Vec<(Assignment, usize)> = Vec::new();
    for unit in plan.steps() {
        let read = |name: &str| unit.payload[name].clone();
        let Ok(kind) = serde_json::from_value::<UnitKind>(read("kind")) else { continue };
        // Whoever puts work together is no agent.
        if kind == UnitKind::Integration {
            continue;
        }
        let scope = serde_json::from_value(read("scope")).unwrap_or(scope);
        let wanted = assign(scope, kind);
        match crew.iter_mut().find(|(it, _)| *it == wanted) {
            Some((_, count)) => *count += 1,
            None => crew.push((wanted, 1)),
        }
    }
    crew
}

fn agents(crew: &[(Assignment, usize)], preferences: &BTreeMap<String, Value>) -> String {
    let mut named: Vec<(String, usize)> = Vec::new();
    for (wanted, count) in crew {
        let worker = worker(*wanted, preferences);
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

/// The worker that preferences name for the role, else for the kind of worker.
fn worker(wanted: Assignment, preferences: &BTreeMap<String, Value>) -> Option<String> {
    let keys = [wanted.role.as_str(), wanted.worker.as_str()];
    let value = keys.iter().find_map(|name| preferences.get(&format!("{WORKERS}.{name}")))?;
    Some(match serde_json::from_value::<WorkerChoice>(value.clone()).ok()? {
        WorkerChoice::Acp { agent } => agent,
        WorkerChoice::Command { .. } => "commands".to_owned(),
        WorkerChoice::Scripted { .. } => "scripted".to_owned(),
        WorkerChoice::Checks { .. } | WorkerChoice::Merge => return None,
    })
}

fn models(crew: &[(Assignment, usize)], registry: &[ModelView]) -> String {
    let mut tiers: Vec<Tier> = Vec::new();
    for (wanted, _) in crew {
        if !tiers.contains(&wanted.tier) {
            tiers.push(wanted.tier);
        }
    }
    let one = |tier: &Tier| {
        let offered = registry.iter().find(|model| model.enabled && model.tier == Some(*tier));
        match offered {
            Some(model) => format!("{} ({})", model.id, tier.as_str()),
            None => tier.model_id(),
        }
    };
    tiers.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What may be spent.
fn cap(task: &TaskView) -> String {
    let money = task.budget.max_cost_micros.map(|most| money(most.into()));
    let tokens = task.budget.max_tokens.map(|most| format!("{} tokens", u64::from(most)));
    let most: Vec<String> = money.into_iter().chain(tokens).collect();
    if most.is_empty() {
        "none of its own (--budget sets one); those of project and installation hold".to_owned()
    } else {
        most.join(", ")
    }
}

/// What was learned from the tasks before.
#[derive(Debug, PartialEq, Eq)]
enum Past {
    /// It is the first.
    First,
    /// This person may not see what they cost, or none of them was completed.
    Unknown,
    /// What each that was completed cost, in millionths.
    Costs(Vec<u64>),
}

/// What the tasks of the project that were completed before cost.
async fn past(context: &Context, task: &TaskView) -> Result<Past> {
    let call = Call::to(operations::LIST_TASKS, [""; 0])
        .query("project", Some(task.project_id))
        .query("limit", Some(200));
    let before: Items<TaskView> = context.client.for_a_while(&call).await?;
    let before: Vec<TaskView> = before.items.into_iter().filter(|it| it.id != task.id).collect();
    if before.is_empty() {
        return Ok(Past::First);
    }
    let call = Call::to(operations::SUM_USAGE, [""; 0])
        .query("project_id", Some(task.project_id))
        .query("by", Some("task"));
    let sums: Option<Items<UsageSum>> = seen(context.client.for_a_while(&call).await)?;
    let sums = sums.map(|sums| sums.items).unwrap_or_default();
    let done = before.iter().filter(|it| it.state == cynode_core::tasks::TaskStateName::Completed);
    let costs = done.filter_map(|task| {
        let (id, plain) = (task.id.to_string(), task.id.as_uuid().to_string());
        let sum =
            sums.iter().find(|sum| sum.key.as_ref().is_some_and(|it| *it == id || *it == plain));
        sum.and_then(|sum| u64::try_from(sum.cost_micros).ok())
    });
    let costs: Vec<u64> = costs.collect();
    Ok(if costs.is_empty() { Past::Unknown } else { Past::Costs(costs) })
}

fn estimate(past: &Past) -> String {
    match past {
        Past::First => "no estimate yet: this is the project's first task".to_owned(),
        Past::Unknown => "no estimate yet: no task of this project was completed before".to_owned(),
        Past::Costs(costs) => {
            let (least, most) = (costs.iter().min(), costs.iter().max());
            let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
            let tasks = match costs.len() {
                1 => "the task completed before it".to_owned(),
                count => format!("the {count} tasks completed before it"),
            };
            if least == most {
                format!("{}, what {tasks} in this project cost", money(most))
            } else {
                format!("{} to {}, what {tasks} in this project cost", money(least), money(most))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::judgement::{WorkClass, workflow};
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
        let told = |class, scope| stages(workflow(class, scope));
        assert_eq!(told(WorkClass::QuickFix, IssueScope::Large), "fix");
        assert_eq!(
            told(WorkClass::FeatureRequest, IssueScope::Large),
            "spec → implementation (one or more) → review → test"
        );
    }

    #[test]
    fn agents_are_counted_and_named_as_preferences_want_them() {
        let crew = crew(&plan(), IssueScope::Small);
        assert_eq!(agents(&crew, &BTreeMap::new()), "2 × developer, reviewer");
        let wanted = BTreeMap::from([
            (format!("{WORKERS}.developer"), json!({ "kind": "acp", "agent": "goose" })),
            (format!("{WORKERS}.reviewer"), json!({ "kind": "scripted", "moves": [] })),
        ]);
        assert_eq!(agents(&crew, &wanted), "2 × developer (goose), reviewer (scripted)");
        let wanted = BTreeMap::from([(
            format!("{WORKERS}.specialist"),
            json!({ "kind": "acp", "agent": "claude" }),
        )]);
        assert_eq!(agents(&crew, &wanted), "2 × developer (claude), reviewer");
    }

    #[test]
    fn models_are_named_by_the_registry_or_by_their_tier() {
        let model: ModelView = serde_json::from_value(json!({
            "id": "big", "title": "big", "tier": "standard", "context_tokens": 1, "max_output_tokens": 1,
            "tools": true, "images": false, "json_schema": true, "skills": false, "enabled": true, "routes": [],
        }))
        .unwrap();
        let crew = crew(&plan(), IssueScope::Small);
        assert_eq!(models(&crew, &[model]), "big (standard)");
        assert_eq!(models(&crew, &[]), "cynodeai.standard");
    }

    #[test]
    fn nothing_is_estimated_that_is_not_known() {
        assert_eq!(estimate(&Past::First), "no estimate yet: this is the project's first task");
        assert_eq!(
            estimate(&Past::Costs(vec![30_000, 10_000])),
            "0.0100 to 0.0300, what the 2 tasks completed before it in this project cost"
        );
        assert_eq!(
            estimate(&Past::Costs(vec![30_000])),
            "0.0300, what the task completed before it in this project cost"
        );
    }
}
