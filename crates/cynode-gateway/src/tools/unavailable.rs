//! Tools that are not implemented yet. People see them with the reason; agents do not see them, and a call is refused.

use cynode_core::{agents::ToolScope, tools::ToolAnnotations};
use cynode_policy::catalogue::IdBinding;
use serde_json::{Value, json};

use super::{NativeTool, ToolSpec};

const NO_SANDBOXES_REASON: &str =
    "sandboxes are made for jobs; this version has none that are made by hand";
const NO_MODELS_REASON: &str = "this version has no way to models";
const NO_GIT_REASON: &str =
    "branches are made and pushed by the orchestrator: `git.pull_request.open` does it";
const NO_SEARCH_REASON: &str = "no search provider is configured";
const NO_CONNECTORS_REASON: &str = "this version has no connectors";

struct UnavailableTool {
    name: &'static str,
    title: &'static str,
    why: &'static str,
    annotations: ToolAnnotations,
    takes: &'static [&'static str],
}

const fn unavailable_tool(
    name: &'static str,
    title: &'static str,
    why: &'static str,
    annotations: ToolAnnotations,
    takes: &'static [&'static str],
) -> UnavailableTool {
    UnavailableTool { name, title, why, annotations, takes }
}

const UNAVAILABLE_TOOLS: &[UnavailableTool] = &[
    unavailable_tool(
        "sandbox.create",
        "Make a sandbox",
        NO_SANDBOXES_REASON,
        ToolAnnotations::IDEMPOTENT_WRITE,
        &["task_id", "image"],
    ),
    unavailable_tool(
        "sandbox.exec",
        "Run a command in a sandbox",
        NO_SANDBOXES_REASON,
        ToolAnnotations::UNKNOWN,
        &["task_id", "sandbox_id", "command"],
    ),
    unavailable_tool(
        "sandbox.put_file",
        "Write a file into a sandbox",
        NO_SANDBOXES_REASON,
        ToolAnnotations::IDEMPOTENT_WRITE,
        &["task_id", "sandbox_id", "path"],
    ),
    unavailable_tool(
        "sandbox.get_file",
        "Read a file of a sandbox",
        NO_SANDBOXES_REASON,
        ToolAnnotations::READ_ONLY,
        &["task_id", "sandbox_id", "path"],
    ),
    unavailable_tool(
        "sandbox.stream_logs",
        "Follow a sandbox",
        NO_SANDBOXES_REASON,
        ToolAnnotations::READ_ONLY,
        &["task_id", "sandbox_id"],
    ),
    unavailable_tool(
        "sandbox.destroy",
        "Remove a sandbox",
        NO_SANDBOXES_REASON,
        ToolAnnotations::DESTRUCTIVE_WRITE,
        &["task_id", "sandbox_id"],
    ),
    unavailable_tool(
        "model.list",
        "List models",
        NO_MODELS_REASON,
        ToolAnnotations::READ_ONLY,
        &[],
    ),
    unavailable_tool(
        "model.complete",
        "Ask a model",
        NO_MODELS_REASON,
        ToolAnnotations::UNKNOWN,
        &["model", "prompt"],
    ),
    unavailable_tool(
        "git.status",
        "State of a repository",
        NO_GIT_REASON,
        ToolAnnotations::READ_ONLY,
        &["task_id"],
    ),
    unavailable_tool(
        "git.branch",
        "Make a branch",
        NO_GIT_REASON,
        ToolAnnotations::IDEMPOTENT_WRITE,
        &["task_id", "name"],
    ),
    unavailable_tool(
        "git.push",
        "Push a branch",
        NO_GIT_REASON,
        ToolAnnotations::UNKNOWN,
        &["task_id", "branch"],
    ),
    unavailable_tool(
        "web.search",
        "Search the web",
        NO_SEARCH_REASON,
        ToolAnnotations::READ_ONLY,
        &["query"],
    ),
    unavailable_tool(
        "connector.list",
        "List connectors",
        NO_CONNECTORS_REASON,
        ToolAnnotations::READ_ONLY,
        &[],
    ),
];

pub(super) fn unavailable_tools() -> Vec<NativeTool> {
    UNAVAILABLE_TOOLS.iter().map(to_native_tool).collect()
}

fn to_native_tool(later: &UnavailableTool) -> NativeTool {
    let properties: serde_json::Map<String, Value> =
        later.takes.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
    let input = json!({
        "type": "object", "properties": properties, "required": later.takes, "additionalProperties": false,
    });
    let about = ToolSpec {
        name: later.name,
        title: later.title,
        description: later.title,
        scope: if later.name == "web.search" { ToolScope::Both } else { ToolScope::Pm },
        binding: if later.takes.contains(&"task_id") { IdBinding::TASK } else { IdBinding::NONE },
        annotations: later.annotations,
    };
    let mut definition = about.into_definition(input);
    definition.missing = Some(later.why);
    definition.network = later.name == "web.search";
    NativeTool { definition, run: None }
}
