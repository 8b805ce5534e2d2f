//! What came of a task, and what a schedule means.

use cynode_core::{ids::TaskId, names::TaskName};
use cynode_wire::{
    handoffs::{EndedUnit, HandoffAnswer},
    workflow::EndedWait,
};
use serde_json::{Value, json};

use super::{
    super::{
        context::failed_with,
        decisions::{ScheduleRead, Summarised},
        fence, prompts,
        unit::brought,
    },
    delivery::{self, Delivered},
};
use crate::desk::{Desk, Trouble};

pub(super) async fn summarise(
    desk: &Desk<'_>,
    ended: &[EndedUnit],
    answer: Option<&EndedWait>,
) -> Result<HandoffAnswer, Trouble> {
    let task = super::task(desk)?;
    let units: Vec<_> = ended
        .iter()
        .map(|unit| (unit.title.clone(), unit.findings.clone(), brought(&unit.output).to_string()))
        .collect();
    let question = prompts::summarise(&task.description, &super::criteria(task), &units);
    let Summarised { summary } = desk.think(&question).await?;
    let summary = fence::clean(&summary, 8_000);
    match delivery::deliver(desk, ended, &summary, answer).await? {
        Delivered::As(pull_request) => Ok(HandoffAnswer::Summarised { summary, pull_request }),
        Delivered::Ask(question) => Ok(HandoffAnswer::Ask { question }),
    }
}

pub(super) async fn schedule(
    desk: &Desk<'_>,
    schedule: &str,
    text: &str,
) -> Result<HandoffAnswer, Trouble> {
    let Some(project) = &desk.handoff.context.project else {
        return Err(Trouble::Permanent("the handoff names no project".into()));
    };
    let question = prompts::interpret_schedule(schedule, text);
    let ScheduleRead { note, tasks: wanted } = desk.think(&question).await?;
    let mut tasks: Vec<TaskId> = Vec::new();
    for (index, task) in wanted.iter().enumerate() {
        let name = named(desk, schedule, index)?;
        let criteria: Vec<Value> = task
            .acceptance_criteria
            .iter()
            .map(|text| fence::clean(text, 2_000))
            .filter(|text| !text.is_empty())
            .map(|text| json!({ "text": text }))
            .collect();
        let arguments = json!({
            "project_id": project.id,
            "name": name,
            "description": fence::clean(&task.description, 8_000),
            "acceptance_criteria": criteria,
        });
        match desk.call("db.task.create", arguments).await {
            Ok(made) => tasks.extend(id_of(&made)),
            // Made before, by somebody who began this handoff and did not end it.
            Err(trouble) if failed_with(&trouble, "db.task.create", "taken") => {
                tasks.extend(made_before(desk, &name).await?);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(HandoffAnswer::Interpreted { tasks, note: fence::clean(&note, 1_000) })
}

/// The same name whenever the handoff is worked on, whatever words a model finds, and another the next time that the schedule is due.
fn named(desk: &Desk<'_>, schedule: &str, index: usize) -> Result<TaskName, Trouble> {
    let base: String = TaskName::derive(schedule).as_str().chars().take(40).collect();
    let id = desk.handoff.handoff_id.as_uuid().simple().to_string();
    let end = &id[id.len() - 12..];
    format!("{}-{end}-{}", base.trim_end_matches('-'), index + 1)
        .parse()
        .map_err(|error| Trouble::Permanent(format!("a task cannot be named: {error}")))
}

fn id_of(made: &Value) -> Option<TaskId> {
    serde_json::from_value(made.get("id")?.clone()).ok()
}

async fn made_before(desk: &Desk<'_>, name: &TaskName) -> Result<Option<TaskId>, Trouble> {
    let listed = desk.call("db.task.list", json!({ "limit": 200 })).await?;
    let items = listed.get("items").and_then(Value::as_array);
    let same = |task: &&Value| task.get("name").and_then(Value::as_str) == Some(name.as_str());
    Ok(items.and_then(|items| items.iter().find(same)).and_then(id_of))
}
