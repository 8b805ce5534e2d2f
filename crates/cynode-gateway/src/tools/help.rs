//! `help.*`: how things are done here, for a model that has to find its way.

use cynode_core::agents::ToolScope;
use cynode_policy::{
    catalogue::{Annotations, Binding},
    gate::{list, open_to},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OneTool {
    /// The tool.
    tool: String,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description| About {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: Binding::NONE,
        annotations: Annotations::READS,
    };
    vec![
        about(
            "help.overview",
            "How things are done here",
            "Who you are to the gateway, what you may call, and what to do when you are refused.",
        )
        .does(overview),
        about(
            "help.tool",
            "How a tool is used",
            "What a tool does, what it wants, and whether you may call it.",
        )
        .does(tool),
    ]
}

async fn overview(call: Invocation, Nothing {}: Nothing) -> Result<Value, ToolError> {
    let agent = &call.agent;
    let tools: Vec<_> =
        list(agent, &call.gate).iter().map(|tool| tool.definition.name.wire()).collect();
    Ok(json!({
        "you": {
            "role": agent.role, "kind": agent.kind(), "profile": call.profile(), "project_id": agent.project,
            "task_id": agent.task, "run_id": agent.run, "job_id": agent.job,
        },
        "tools": tools,
        "rules": [
            "Every call is decided by a gate and recorded, also the refused ones.",
            "Give the ids above wherever a tool asks for them; others are refused.",
            "A refusal is final unless it says when to try again: report with pm__report that you are blocked.",
            "A report is a claim: it will be checked.",
        ],
    }))
}

async fn tool(call: Invocation, OneTool { tool }: OneTool) -> Result<Value, ToolError> {
    let found = call.gate.catalogue.on_the_wire(&tool);
    // What is not for the caller is not spoken of.
    let found = found.filter(|tool| open_to(&call.agent, &call.gate, tool).is_ok());
    let found = found.ok_or_else(|| ToolError {
        code: "not_found",
        detail: "there is no such tool for you".into(),
        fix: Some("tools/list shows those that there are"),
    })?;
    let definition = &found.definition;
    Ok(json!({
        "name": definition.name.wire(),
        "title": definition.title,
        "description": definition.description,
        "needs": definition.binding.arguments().collect::<Vec<_>>(),
        "annotations": definition.annotations,
        "input_schema": definition.input,
    }))
}
