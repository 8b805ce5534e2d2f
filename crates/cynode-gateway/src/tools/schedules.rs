//! `schedule.*`: work that is asked for at its time, by the same operations as people's.

use cynode_app::schedules;
use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, ScheduleId},
    names::{Prose, TaskName},
    schedules::{Missed, What, When},
};
use cynode_policy::catalogue::{Annotations, Binding};
use cynode_wire::{page::PageRequest, schedules::CreateSchedule};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError, value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// What it is called, as `weekly-updates`.
    #[schema(value_type = String)]
    name: TaskName,
    /// When it is due: minute, hour, day of the month, month, day of the week, as `0 9 * * mon`.
    cron: String,
    /// The time zone whose clock it goes by, as `Europe/Berlin`; `UTC` when it is left out.
    zone: Option<String>,
    /// What is wanted each time, in words. You will be given them when it is due.
    #[schema(value_type = String)]
    description: Prose,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct List {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct One {
    /// The schedule.
    #[schema(value_type = String)]
    schedule_id: ScheduleId,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, annotations| About {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: Binding::NONE,
        annotations,
    };
    vec![
        about(
            "schedule.create",
            "Make a schedule",
            "Asks for work again and again, in the name of the person you work for.",
            Annotations::ADDS,
        )
        .does(create),
        about(
            "schedule.list",
            "List schedules",
            "The schedules of the project, with their next time and what came of the last.",
            Annotations::READS,
        )
        .does(list),
        about("schedule.delete", "Remove a schedule", "Removes a schedule.", Annotations::ENDS)
            .does(delete),
    ]
}

fn project(call: &Invocation) -> Result<ProjectId, ToolError> {
    call.agent.project.ok_or_else(|| ToolError::invalid("you work in no project"))
}

async fn create(call: Invocation, body: Create) -> Result<Value, ToolError> {
    let zone = body.zone.unwrap_or_else(|| "UTC".to_owned());
    let mut wanted = CreateSchedule {
        project_id: project(&call)?,
        name: body.name,
        when: When::Cron { expression: body.cron, zone },
        what: What::Words { text: body.description },
        missed: Missed::Once,
        enabled: true,
    };
    schedules::without_secrets(&call.app, &mut wanted.what).await?;
    let made = call.app.mutate(&call.request, |ctx| Box::pin(schedules::create(ctx, wanted)));
    value(&made.await?)
}

async fn list(call: Invocation, List {}: List) -> Result<Value, ToolError> {
    let project = Some(project(&call)?);
    let page = PageRequest { after: None, limit: PageRequest::MAX };
    let found =
        call.app.read(&call.request, |ctx| Box::pin(schedules::list(ctx, project, page))).await?;
    Ok(json!({ "items": found.items }))
}

async fn delete(call: Invocation, One { schedule_id }: One) -> Result<Value, ToolError> {
    let done = call.app.mutate(&call.request, |ctx| Box::pin(schedules::delete(ctx, schedule_id)));
    done.await?;
    Ok(json!({ "deleted": true }))
}
