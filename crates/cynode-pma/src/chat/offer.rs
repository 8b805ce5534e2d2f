//! Chooses the tools that a chat is offered: the relevant ones, never all.

use cynode_core::workflow::handoffs::ChatMessage;
use serde_json::{Value, json};

use crate::{decision_context::OfferedTool, decisions::rank, mcp_client::to_wire_name};

/// Maximum number of tools of a chat.
pub(super) const MAX_OFFERED_TOOLS: usize = 12;

/// Number of the last turns by which tools are ranked.
const RANKED_TURN_COUNT: usize = 4;

/// Tools that are offered besides the relevant ones, while there is room: a person may ask for them in any words.
const DEFAULT_TOOLS: [&str; 5] =
    ["db.task.create", "db.task.list", "db.task.get", "workflow.start", "help.overview"];

/// Selects the tools of a chat, sorted by name.
pub(super) fn select_tools(tools: Vec<OfferedTool>, turns: &[ChatMessage]) -> Vec<OfferedTool> {
    let last = &turns[turns.len().saturating_sub(RANKED_TURN_COUNT)..];
    let goal: String = last.iter().map(|turn| format!("{}\n", turn.content)).collect();
    let known: Vec<rank::RankableTool<'_>> = tools
        .iter()
        .map(|tool| rank::RankableTool { name: &tool.name, description: &tool.description })
        .collect();
    let ranked = rank::rank_tools(&goal, &known, MAX_OFFERED_TOOLS);
    let mut names: Vec<String> = ranked.into_iter().map(|tool| tool.name.to_owned()).collect();
    for name in DEFAULT_TOOLS {
        if names.len() < MAX_OFFERED_TOOLS && !names.iter().any(|chosen| chosen == name) {
            names.push(name.to_owned());
        }
    }
    let mut chosen: Vec<OfferedTool> =
        tools.into_iter().filter(|tool| names.contains(&tool.name)).collect();
    // The order does not depend on the ranking, so that providers can cache the prompt.
    chosen.sort_by(|a, b| a.name.cmp(&b.name));
    chosen
}

/// Converts the tools to definitions for a model, each with its own schema.
pub(super) fn to_tool_definitions(tools: &[OfferedTool]) -> Vec<Value> {
    let tools = tools.iter().map(|tool| {
        let function = json!({
            "name": to_wire_name(&tool.name), "description": tool.description, "parameters": tool.input,
        });
        json!({ "type": "function", "function": function })
    });
    tools.collect()
}

#[cfg(test)]
mod tests {
    use cynode_core::workflow::handoffs::ChatRole;

    use super::*;

    fn tool(name: &str, description: &str) -> OfferedTool {
        OfferedTool {
            name: name.into(),
            description: description.into(),
            input: json!({ "type": "object" }),
            read_only: false,
        }
    }

    fn says(content: &str) -> ChatMessage {
        ChatMessage { role: ChatRole::User, content: content.into() }
    }

    fn names(tools: &[OfferedTool]) -> Vec<&str> {
        tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    fn catalogue() -> Vec<OfferedTool> {
        let mut tools: Vec<OfferedTool> =
            (0..40).map(|n| tool(&format!("other.tool{n}"), "Does something else.")).collect();
        tools.push(tool("db.task.create", "Makes a task."));
        tools.push(tool("db.task.list", "Lists tasks."));
        tools.push(tool("web.fetch", "Reads a page of the web."));
        tools
    }

    #[test]
    fn a_chat_is_offered_what_it_is_about_and_the_few_that_are_always_wanted() {
        let chosen = select_tools(catalogue(), &[says("please fetch that web page")]);
        assert_eq!(names(&chosen), ["db.task.create", "db.task.list", "web.fetch"]);
        assert_eq!(names(&select_tools(catalogue(), &[])), ["db.task.create", "db.task.list"]);
    }

    #[test]
    fn never_more_than_a_dozen_are_offered() {
        let chosen = select_tools(catalogue(), &[says("something else with a task on a page")]);
        assert_eq!(chosen.len(), MAX_OFFERED_TOOLS);
        assert_eq!(
            chosen,
            select_tools(catalogue(), &[says("something else with a task on a page")])
        );
    }

    #[test]
    fn every_tool_is_told_with_its_own_name_and_schema() {
        assert_eq!(
            to_tool_definitions(&[tool("db.task.get", "Reads.")]),
            [json!({ "type": "function", "function": {
                "name": "db__task__get", "description": "Reads.", "parameters": { "type": "object" },
            } })]
        );
    }
}
