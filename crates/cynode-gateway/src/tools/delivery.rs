//! `git.pull_request.*` and `git.diff`: the project manager delivers a task. Commits, branches and credentials stay
//! with the orchestrator.

use cynode_app::delivery::pull_requests;
use cynode_core::{agents::ToolScope, ids::TaskId, tools::ToolAnnotations};
use cynode_policy::catalogue::IdBinding;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec};

/// Maximum size of a diff that an agent receives.
const MAX_DIFF_BYTES: usize = 256 * 1024;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OpenPullRequestArgs {
    /// The task whose work is delivered.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Title of the pull request, on one line.
    title: String,
    /// Description of the changes, as Markdown.
    body: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GetPullRequestArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GitDiffArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Only the diff of this file.
    #[serde(default)]
    path: Option<String>,
}

pub(super) fn delivery_tools() -> Vec<NativeTool> {
    let about = |name, title, description, annotations| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: IdBinding::TASK,
        annotations,
    };
    vec![
        about(
            "git.pull_request.open",
            "Open a pull request",
            "Delivers what the task's units brought as one commit on a branch of its own, and opens a pull request for it. Called \
             again, it gives the same one. `pull_request` is null when nothing was changed.",
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(open_pull_request),
        about(
            "git.pull_request.get",
            "Look at a pull request",
            "The pull request of a task, with checks, comments and reviews; null when there is none.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(get_pull_request),
        about(
            "git.diff",
            "What a task changed",
            "What the task's units changed so far, as a unified diff; null when they changed nothing.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(diff_task),
    ]
}

async fn open_pull_request(
    call: ToolInvocation,
    body: OpenPullRequestArgs,
) -> Result<Value, ToolError> {
    let OpenPullRequestArgs { task_id, title, body } = body;
    let opened =
        pull_requests::open_pull_request(&call.app, &call.request, task_id, &title, &body).await?;
    Ok(json!({ "pull_request": opened }))
}

async fn get_pull_request(
    call: ToolInvocation,
    body: GetPullRequestArgs,
) -> Result<Value, ToolError> {
    let task = body.task_id;
    let found =
        call.app.read(&call.request, |ctx| pull_requests::pull_request_of_task(ctx, task)).await?;
    Ok(json!({ "pull_request": found }))
}

async fn diff_task(call: ToolInvocation, body: GitDiffArgs) -> Result<Value, ToolError> {
    let path = body.path.as_deref();
    let found =
        pull_requests::diff_of_task_units(&call.app, &call.request, body.task_id, path).await?;
    let Some(mut diff) = found else { return Ok(json!({ "diff": null })) };
    if diff.text.len() > MAX_DIFF_BYTES {
        let mut end = MAX_DIFF_BYTES;
        while !diff.text.is_char_boundary(end) {
            end -= 1;
        }
        diff.text.truncate(end);
        diff.truncated = true;
    }
    Ok(json!({ "diff": diff }))
}
