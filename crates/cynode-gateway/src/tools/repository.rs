//! `git.tree` and `git.read`: the files of a task's project, for whoever plans work. Nothing is checked out and nothing is run.

use cynode_app::repositories;
use cynode_core::{agents::ToolScope, ids::TaskId};
use cynode_policy::catalogue::{Annotations, Binding};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Tree {
    /// The task whose project is meant.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Read {
    /// The task whose project is meant.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The file, from the root.
    path: String,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description| About {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: Binding::TASK,
        annotations: Annotations::READS,
    };
    vec![
        about(
            "git.tree",
            "List a repository's files",
            "The files of the project's repository at the commit that work starts from.",
        )
        .does(tree),
        about(
            "git.read",
            "Read a file of a repository",
            "The text of one file at the commit that work starts from.",
        )
        .does(read),
    ]
}

async fn tree(call: Invocation, body: Tree) -> Result<Value, ToolError> {
    let found = repositories::tree(&call.app, &call.request, body.task_id).await?;
    let (commit, entries, truncated) = found;
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| json!({ "path": entry.path, "kind": "file", "bytes": entry.bytes }))
        .collect();
    Ok(json!({ "commit": commit, "entries": entries, "truncated": truncated }))
}

async fn read(call: Invocation, body: Read) -> Result<Value, ToolError> {
    let found = repositories::read(&call.app, &call.request, body.task_id, &body.path).await?;
    let (text, truncated) = found;
    Ok(json!({ "path": body.path, "text": text, "truncated": truncated }))
}
