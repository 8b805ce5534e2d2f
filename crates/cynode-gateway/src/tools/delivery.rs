//! `git.pull_request.*` and `git.diff`: how the project manager delivers what a task brought. Commits, branches and credentials stay
//! with the orchestrator.

use cynode_app::delivery;
use cynode_core::{agents::ToolScope, ids::TaskId};
use cynode_policy::catalogue::{Annotations, Binding};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError};

/// Most bytes of a difference that an agent is given.
const MOST_DIFF: usize = 256 * 1024;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Open {
    /// The task whose work is delivered.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// One line that says what it is.
    title: String,
    /// What was done, as Markdown.
    body: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Diff {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Only of this file.
    #[serde(default)]
    path: Option<String>,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, annotations| About {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: Binding::TASK,
        annotations,
    };
    vec![
        about(
            "git.pull_request.open",
            "Open a pull request",
            "Delivers what the task's units brought as one commit on a branch of its own, and opens a pull request for it. Called \
             again, it gives the same one. `pull_request` is null when nothing was changed.",
            Annotations::WRITES,
        )
        .does(open),
        about(
            "git.pull_request.get",
            "Look at a pull request",
            "The pull request of a task, with checks, comments and reviews; null when there is none.",
            Annotations::READS,
        )
        .does(get),
        about(
            "git.diff",
            "What a task changed",
            "What the task's units changed so far, as a unified diff; null when they changed nothing.",
            Annotations::READS,
        )
        .does(diff),
    ]
}

async fn open(call: Invocation, body: Open) -> Result<Value, ToolError> {
    let Open { task_id, title, body } = body;
    let opened = delivery::open(&call.app, &call.request, task_id, &title, &body).await?;
    Ok(json!({ "pull_request": opened }))
}

async fn get(call: Invocation, body: Get) -> Result<Value, ToolError> {
    let task = body.task_id;
    let found = call.app.read(&call.request, |ctx| Box::pin(delivery::of_task(ctx, task))).await?;
    Ok(json!({ "pull_request": found }))
}

async fn diff(call: Invocation, body: Diff) -> Result<Value, ToolError> {
    let path = body.path.as_deref();
    let found = delivery::diff_of_task(&call.app, &call.request, body.task_id, path).await?;
    let Some(mut diff) = found else { return Ok(json!({ "diff": null })) };
    if diff.text.len() > MOST_DIFF {
        let mut end = MOST_DIFF;
        while !diff.text.is_char_boundary(end) {
            end -= 1;
        }
        diff.text.truncate(end);
        diff.truncated = true;
    }
    Ok(json!({ "diff": diff }))
}
