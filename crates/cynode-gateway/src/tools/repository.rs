//! `git.tree` and `git.read`: files of a task's repository, read from git. Nothing is checked out or executed.

use cynode_app::delivery::repositories;
use cynode_core::{agents::ToolScope, ids::TaskId, tools::ToolAnnotations};
use cynode_policy::catalogue::IdBinding;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListFilesArgs {
    /// The task whose project's repository is read.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReadFileArgs {
    /// The task whose project's repository is read.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Path of the file, from the root.
    path: String,
}

pub(super) fn repository_tools() -> Vec<NativeTool> {
    let about = |name, title, description| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: IdBinding::TASK,
        annotations: ToolAnnotations::READ_ONLY,
    };
    vec![
        about(
            "git.tree",
            "List a repository's files",
            "The files of the project's repository at the commit that work starts from.",
        )
        .with_handler(list_files),
        about(
            "git.read",
            "Read a file of a repository",
            "The text of one file at the commit that work starts from.",
        )
        .with_handler(read_file),
    ]
}

async fn list_files(call: ToolInvocation, body: ListFilesArgs) -> Result<Value, ToolError> {
    let found = repositories::list_task_files(&call.app, &call.request, body.task_id).await?;
    let (commit, entries, truncated) = found;
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| json!({ "path": entry.path, "kind": "file", "bytes": entry.bytes }))
        .collect();
    Ok(json!({ "commit": commit, "entries": entries, "truncated": truncated }))
}

async fn read_file(call: ToolInvocation, body: ReadFileArgs) -> Result<Value, ToolError> {
    let found =
        repositories::read_task_file(&call.app, &call.request, body.task_id, &body.path).await?;
    let (text, truncated) = found;
    Ok(json!({ "path": body.path, "text": text, "truncated": truncated }))
}
