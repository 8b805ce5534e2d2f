//! Which tools a chat is offered: those that it is about, and never all of them.

use cynode_wire::handoffs::ChatMessage;
use serde_json::{Value, json};

use crate::{gate::Tool, judge::rank};

/// Most tools of a chat.
pub(super) const MOST_TOOLS: usize = 12;

/// How many of the last turns say what a chat is about.
const LAST_TURNS: usize = 4;

/// What is offered beside what fits, while there is room: a person may ask for these in any words.
const ALWAYS: [&str; 5] =
    ["db.task.create", "db.task.list", "db.task.get", "workflow.start", "help.overview"];

/// The tools for a chat, by name.
pub(super) fn offered(tools: Vec<Tool>, turns: &[ChatMessage]) -> Vec<Tool> {
    let last = &turns[turns.len().saturating_sub(LAST_TURNS)..];
    let goal: String = last.iter().map(|turn| format!("{}\n", turn.content)).collect();
    let known: Vec<rank::Tool<'_>> = tools
        .iter()
        .map(|tool| rank::Tool { name: &tool.name, description: &tool.description })
        .collect();
    let ranked = rank::rank(&goal, &known, MOST_TOOLS);
    let mut names: Vec<String> = ranked.into_iter().map(|tool| tool.name.to_owned()).collect();
    for name in ALWAYS {
        if names.len() < MOST_TOOLS && !names.iter().any(|chosen| chosen == name) {
            names.push(name.to_owned());
        }
    }
    let mut chosen: Vec<Tool> =
        tools.into_iter().filter(|tool| names.contains(&tool.name)).collect();
    // In one order whatever the ranking, so that providers can keep what they have read.
    chosen.sort_by(|a, b| a.name.cmp(&b.name));
    chosen
}

/// The tools as a model is told of them, each with a schema of its own.
pub(super) fn told(tools: &[Tool]) -> Vec<Value> {
    let tools = tools.iter().map(|tool| {
        let function = json!({
            "name": tool.wire_name(), "description": tool.description, "parameters": tool.input,
        });
        json!({ "type": "function", "function": function })
    });
    tools.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, description: &str) -> Tool {
        Tool {
            name: name.into(),
            description: description.into(),
            input: json!({ "type": "object" }),
        }
    }

    fn says(content: &str) -> ChatMessage {
        ChatMessage { role: "user".into(), content: content.into() }
    }

    fn names(tools: &[Tool]) -> Vec<&str> {
        tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    fn catalogue() -> Vec<Tool> {
        let mut tools: Vec<Tool> =
            (0..40).map(|n| tool(&format!("other.tool{n}"), "Does something else.")).collect();
        tools.push(tool("db.task.create", "Makes a task."));
        tools.push(tool("db.task.list", "Lists tasks."));
        tools.push(tool("web.fetch", "Reads a page of the web."));
        tools
    }

    #[test]
    fn a_chat_is_offered_what_it_is_about_and_the_few_that_are_always_wanted() {
        let chosen = offered(catalogue(), &[says("please fetch that web page")]);
        assert_eq!(names(&chosen), ["db.task.create", "db.task.list", "web.fetch"]);
        assert_eq!(names(&offered(catalogue(), &[])), ["db.task.create", "db.task.list"]);
    }

    #[test]
    fn never_more_than_a_dozen_are_offered() {
        let chosen = offered(catalogue(), &[says("something else with a task on a page")]);
        assert_eq!(chosen.len(), MOST_TOOLS);
        assert_eq!(chosen, offered(catalogue(), &[says("something else with a task on a page")]));
    }

    #[test]
    fn every_tool_is_told_with_its_own_name_and_schema() {
        assert_eq!(
            told(&[tool("db.task.get", "Reads.")]),
            [json!({ "type": "function", "function": {
                "name": "db__task__get", "description": "Reads.", "parameters": { "type": "object" },
            } })]
        );
    }
}
