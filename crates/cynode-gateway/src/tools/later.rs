//! Tools whose part of the system is not there yet. They are listed for people with the reason, shown to no agent, and
//! refused when called: nothing is pretended.

use cynode_core::agents::ToolScope;
use cynode_policy::catalogue::{Annotations, Binding};
use serde_json::{Value, json};

use super::{About, Native};

const NODES: &str = "sandboxes are made for jobs; this version has none that are made by hand";
const MODELS: &str = "this version has no way to models";
const GIT: &str =
    "branches are made and pushed by the orchestrator: `git.pull_request.open` does it";
const SEARCH: &str = "no search provider is configured";
const CONNECTORS: &str = "this version has no connectors";

struct Later {
    name: &'static str,
    title: &'static str,
    why: &'static str,
    annotations: Annotations,
    takes: &'static [&'static str],
}

const fn later(
    name: &'static str,
    title: &'static str,
    why: &'static str,
    annotations: Annotations,
    takes: &'static [&'static str],
) -> Later {
    Later { name, title, why, annotations, takes }
}

const LATER: &[Later] = &[
    later("sandbox.create", "Make a sandbox", NODES, Annotations::WRITES, &["task_id", "image"]),
    later(
        "sandbox.exec",
        "Run a command in a sandbox",
        NODES,
        Annotations::UNKNOWN,
        &["task_id", "sandbox_id", "command"],
    ),
    later(
        "sandbox.put_file",
        "Write a file into a sandbox",
        NODES,
        Annotations::WRITES,
        &["task_id", "sandbox_id", "path"],
    ),
    later(
        "sandbox.get_file",
        "Read a file of a sandbox",
        NODES,
        Annotations::READS,
        &["task_id", "sandbox_id", "path"],
    ),
    later(
        "sandbox.stream_logs",
        "Follow a sandbox",
        NODES,
        Annotations::READS,
        &["task_id", "sandbox_id"],
    ),
    later(
        "sandbox.destroy",
        "Remove a sandbox",
        NODES,
        Annotations::ENDS,
        &["task_id", "sandbox_id"],
    ),
    later("model.list", "List models", MODELS, Annotations::READS, &[]),
    later("model.complete", "Ask a model", MODELS, Annotations::UNKNOWN, &["model", "prompt"]),
    later("git.status", "State of a repository", GIT, Annotations::READS, &["task_id"]),
    later("git.branch", "Make a branch", GIT, Annotations::WRITES, &["task_id", "name"]),
    later("git.push", "Push a branch", GIT, Annotations::UNKNOWN, &["task_id", "branch"]),
    later("web.search", "Search the web", SEARCH, Annotations::READS, &["query"]),
    later("connector.list", "List connectors", CONNECTORS, Annotations::READS, &[]),
];

pub(super) fn tools() -> Vec<Native> {
    LATER.iter().map(tool).collect()
}

fn tool(later: &Later) -> Native {
    let properties: serde_json::Map<String, Value> =
        later.takes.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
    let input = json!({
        "type": "object", "properties": properties, "required": later.takes, "additionalProperties": false,
    });
    let about = About {
        name: later.name,
        title: later.title,
        description: later.title,
        scope: if later.name == "web.search" { ToolScope::Both } else { ToolScope::Pm },
        binding: if later.takes.contains(&"task_id") { Binding::TASK } else { Binding::NONE },
        annotations: later.annotations,
    };
    let mut definition = about.definition(input);
    definition.missing = Some(later.why);
    definition.network = later.name == "web.search";
    Native { definition, run: None }
}
