//! Summaries of tasks, and the interpretation of schedules.

use cynode_core::{
    ids::TaskId,
    names::TaskName,
    workflow::{
        handoffs::{EndedUnit, HandoffAnswer},
        waits::EndedWait,
    },
};
use serde_json::{Value, json};

use super::{
    super::{
        context::failed_with,
        fence, prompts,
        types::{ScheduleInterpretation, TaskSummary},
        unit::reviewable_output,
    },
    delivery::{self, DeliveryOutcome},
};
use crate::decision_context::{DecisionContext, DecisionError};

pub(super) async fn summarize_task(
    desk: &DecisionContext<'_>,
    ended: &[EndedUnit],
    answer: Option<&EndedWait>,
) -> Result<HandoffAnswer, DecisionError> {
    let task = super::handoff_task(desk)?;
    let units: Vec<_> = ended
        .iter()
        .map(|unit| {
            (unit.title.clone(), unit.findings.clone(), reviewable_output(&unit.output).to_string())
        })
        .collect();
    let question =
        prompts::summarize_prompt(&task.description, &super::criterion_texts(task), &units);
    let TaskSummary { summary } = desk.make_decision(&question).await?;
    let summary = fence::sanitize_text(&summary, 8_000);
    match delivery::deliver_changes(desk, ended, &summary, answer).await? {
        DeliveryOutcome::As(pull_request) => {
            Ok(HandoffAnswer::Summarised { summary, pull_request })
        }
        DeliveryOutcome::Ask(question) => Ok(HandoffAnswer::Ask { question }),
    }
}

pub(super) async fn create_scheduled_tasks(
    desk: &DecisionContext<'_>,
    schedule: &str,
    text: &str,
) -> Result<HandoffAnswer, DecisionError> {
    let Some(project) = &desk.handoff.context.project else {
        return Err(DecisionError::Permanent("the handoff names no project".into()));
    };
    let question = prompts::interpret_schedule_prompt(schedule, text);
    let ScheduleInterpretation { note, tasks: wanted } = desk.make_decision(&question).await?;
    let mut tasks: Vec<TaskId> = Vec::new();
    for (index, task) in wanted.iter().enumerate() {
        let name = scheduled_task_name(desk, schedule, index)?;
        let criteria: Vec<Value> = task
            .acceptance_criteria
            .iter()
            .map(|text| fence::sanitize_text(text, 2_000))
            .filter(|text| !text.is_empty())
            .map(|text| json!({ "text": text }))
            .collect();
        let arguments = json!({
            "project_id": project.id,
            "name": name,
            "description": fence::sanitize_text(&task.description, 8_000),
            "acceptance_criteria": criteria,
        });
        match desk.call_tool("db.task.create", arguments).await {
            Ok(made) => tasks.extend(task_id_of(&made)),
            // An earlier attempt of this handoff has created the task already.
            Err(trouble) if failed_with(&trouble, "db.task.create", "already_exists") => {
                tasks.extend(find_existing_task(desk, &name).await?);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(HandoffAnswer::Interpreted { tasks, note: fence::sanitize_text(&note, 1_000) })
}

/// Returns the name of a scheduled task. It is the same in every attempt of the handoff, independent of the model's text, and different
/// for the next time that the schedule is due.
fn scheduled_task_name(
    desk: &DecisionContext<'_>,
    schedule: &str,
    index: usize,
) -> Result<TaskName, DecisionError> {
    let base: String = TaskName::derive_name(schedule).as_str().chars().take(40).collect();
    let id = desk.handoff.handoff_id.as_uuid().simple().to_string();
    let end = &id[id.len() - 12..];
    format!("{}-{end}-{}", base.trim_end_matches('-'), index + 1)
        .parse()
        .map_err(|error| DecisionError::Permanent(format!("a task cannot be named: {error}")))
}

fn task_id_of(made: &Value) -> Option<TaskId> {
    serde_json::from_value(made.get("id")?.clone()).ok()
}

async fn find_existing_task(
    desk: &DecisionContext<'_>,
    name: &TaskName,
) -> Result<Option<TaskId>, DecisionError> {
    let listed = desk.call_tool("db.task.list", json!({ "limit": 200 })).await?;
    let items = listed.get("items").and_then(Value::as_array);
    let same = |task: &&Value| task.get("name").and_then(Value::as_str) == Some(name.as_str());
    Ok(items.and_then(|items| items.iter().find(same)).and_then(task_id_of))
}
