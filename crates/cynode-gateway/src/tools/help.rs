//! `help.*`: usage help for models.

use cynode_core::{agents::ToolScope, tools::ToolAnnotations};
use cynode_policy::{
    catalogue::IdBinding,
    decision::{check_tool_access, list_permitted_tools},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HelpOverviewArgs {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HelpToolArgs {
    /// Name of the tool.
    tool: String,
}

pub(super) fn help_tools() -> Vec<NativeTool> {
    let about = |name, title, description| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: IdBinding::NONE,
        annotations: ToolAnnotations::READ_ONLY,
    };
    vec![
        about(
            "help.overview",
            "How things are done here",
            "Who you are to the gateway, what you may call, and what to do when you are refused.",
        )
        .with_handler(show_overview),
        about(
            "help.tool",
            "How a tool is used",
            "What a tool does, what it wants, and whether you may call it.",
        )
        .with_handler(explain_tool),
    ]
}

async fn show_overview(
    call: ToolInvocation,
    HelpOverviewArgs {}: HelpOverviewArgs,
) -> Result<Value, ToolError> {
    let agent = &call.agent;
    let tools: Vec<_> = list_permitted_tools(agent, &call.gate)
        .iter()
        .map(|tool| tool.definition.name.to_wire_name())
        .collect();
    let blocked = if tools.iter().any(|tool| tool == "pm__report") {
        "A refusal is final unless it says when to try again: report with pm__report that you are blocked."
    } else {
        "A refusal is final unless it says when to try again: say what you could not do, and why."
    };
    Ok(json!({
        "you": {
            "role": agent.role, "kind": agent.agent_kind(), "profile": call.profile_name(), "project_id": agent.project,
            "task_id": agent.task, "run_id": agent.run, "job_id": agent.job,
        },
        "tools": tools,
        "rules": [
            "Every call is decided by a gate and recorded, also the refused ones.",
            "Give the ids above wherever a tool asks for them; others are refused.",
            blocked,
            "A report is a claim: it will be checked.",
        ],
    }))
}

async fn explain_tool(
    call: ToolInvocation,
    HelpToolArgs { tool }: HelpToolArgs,
) -> Result<Value, ToolError> {
    let found = call.gate.catalogue.find_by_wire_name(&tool);
    // Tools that the caller may not call are not revealed.
    let found = found.filter(|tool| check_tool_access(&call.agent, &call.gate, tool).is_ok());
    let found = found.ok_or_else(|| ToolError {
        code: "not_found",
        detail: "there is no such tool for you".into(),
        fix: Some("tools/list shows those that there are"),
    })?;
    let definition = &found.definition;
    Ok(json!({
        "name": definition.name.to_wire_name(),
        "title": definition.title,
        "description": definition.description,
        "needs": definition.binding.id_arguments().collect::<Vec<_>>(),
        "annotations": definition.annotations,
        "input_schema": definition.input,
    }))
}
