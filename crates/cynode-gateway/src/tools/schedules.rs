//! `schedule.*`: schedules, by the same operations that users call.

use cynode_app::workflow::schedules;
use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, ScheduleId},
    names::{Prose, TaskName},
    paging::PageRequest,
    schedules::{MissedPolicy, ScheduleAction, ScheduleTrigger},
    tools::ToolAnnotations,
};
use cynode_policy::catalogue::IdBinding;
use cynode_wire::workflow::schedules::CreateSchedule;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateScheduleArgs {
    /// Name of the schedule, such as `weekly-updates`.
    #[schema(value_type = String)]
    name: TaskName,
    /// Cron expression: minute, hour, day of the month, month, day of the week, such as `0 9 * * mon`.
    cron: String,
    /// Time zone of the cron expression, such as `Europe/Berlin`; `UTC` if omitted.
    timezone: Option<String>,
    /// Instructions for each run, in words. You receive them when the schedule is due.
    #[schema(value_type = String)]
    description: Prose,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListSchedulesArgs {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DeleteScheduleArgs {
    /// The schedule.
    #[schema(value_type = String)]
    schedule_id: ScheduleId,
}

pub(super) fn schedule_tools() -> Vec<NativeTool> {
    let about = |name, title, description, annotations| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: IdBinding::NONE,
        annotations,
    };
    vec![
        about(
            "schedule.create",
            "Make a schedule",
            "Asks for work again and again, in the name of the person you work for.",
            ToolAnnotations::ADDITIVE_WRITE,
        )
        .with_handler(create_schedule),
        about(
            "schedule.list",
            "List schedules",
            "The schedules of the project, with their next time and what came of the last.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(list_schedules),
        about(
            "schedule.delete",
            "Remove a schedule",
            "Removes a schedule.",
            ToolAnnotations::DESTRUCTIVE_WRITE,
        )
        .with_handler(delete_schedule),
    ]
}

fn project_of_caller(call: &ToolInvocation) -> Result<ProjectId, ToolError> {
    call.agent.project.ok_or_else(|| ToolError::invalid_arguments("you work in no project"))
}

async fn create_schedule(
    call: ToolInvocation,
    body: CreateScheduleArgs,
) -> Result<Value, ToolError> {
    let timezone = body.timezone.unwrap_or_else(|| "UTC".to_owned());
    let mut wanted = CreateSchedule {
        project_id: project_of_caller(&call)?,
        name: body.name,
        trigger: ScheduleTrigger::Cron { expression: body.cron, timezone },
        action: ScheduleAction::Words { text: body.description },
        // Its work is done under the profile of the agent's own work.
        profile: None,
        missed_policy: MissedPolicy::Once,
        enabled: true,
    };
    schedules::redact_schedule(&call.app, &mut wanted.action).await?;
    let made = call.app.mutate(&call.request, |ctx| schedules::create_schedule(ctx, wanted));
    answer_value(&made.await?)
}

async fn list_schedules(
    call: ToolInvocation,
    ListSchedulesArgs {}: ListSchedulesArgs,
) -> Result<Value, ToolError> {
    let project = Some(project_of_caller(&call)?);
    let page = PageRequest { after: None, limit: PageRequest::MAX_LIMIT };
    let found =
        call.app.read(&call.request, |ctx| schedules::list_schedules(ctx, project, page)).await?;
    Ok(json!({ "items": found.items }))
}

async fn delete_schedule(
    call: ToolInvocation,
    DeleteScheduleArgs { schedule_id }: DeleteScheduleArgs,
) -> Result<Value, ToolError> {
    let done = call.app.mutate(&call.request, |ctx| schedules::delete_schedule(ctx, schedule_id));
    done.await?;
    Ok(json!({ "deleted": true }))
}
