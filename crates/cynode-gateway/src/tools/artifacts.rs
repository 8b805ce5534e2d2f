//! `artifact.*`: bytes that belong to a task.

use bytes::Bytes;
use cynode_app::artifacts::{self, Artifact, NewArtifact, Piece};
use cynode_core::{
    agents::ToolScope,
    ids::{ArtifactId, TaskId},
};
use cynode_policy::catalogue::{Annotations, Binding};
use data_encoding::{BASE64, HEXLOWER};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError, value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Put {
    /// The task it belongs to.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What it is called, as `report.md`.
    name: String,
    /// What kind of bytes, as `text/markdown`; guessed by nobody.
    media_type: String,
    /// The content as text. Give this or `base64`.
    text: Option<String>,
    /// The content in base64.
    base64: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The task it belongs to.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The artifact.
    #[schema(value_type = String)]
    artifact_id: ArtifactId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, annotations| About {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: Binding::TASK,
        annotations,
    };
    vec![
        about(
            "artifact.put",
            "Store an artifact",
            "Stores text or bytes with the task, under their digest.",
            Annotations::WRITES,
        )
        .does(put),
        about(
            "artifact.get",
            "Read an artifact",
            "The content of an artifact of the task.",
            Annotations::READS,
        )
        .does(get),
        about("artifact.list", "List artifacts", "The artifacts of the task.", Annotations::READS)
            .does(list),
    ]
}

fn view(artifact: &Artifact) -> Value {
    json!({
        "artifact_id": artifact.id,
        "name": artifact.name,
        "media_type": artifact.media_type,
        "sha256": HEXLOWER.encode(&artifact.digest),
        "size": artifact.size,
    })
}

async fn put(call: Invocation, body: Put) -> Result<Value, ToolError> {
    let bytes = match (body.text, body.base64) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(encoded)) => {
            let decoded = BASE64.decode(encoded.as_bytes());
            Bytes::from(decoded.map_err(|_| ToolError::invalid("`base64` is not base64"))?)
        }
        _ => return Err(ToolError::invalid("give `text` or `base64`")),
    };
    let new = NewArtifact {
        task: body.task_id,
        job: call.agent.job,
        name: body.name,
        media_type: body.media_type,
        by: call.agent.token,
    };
    let piece = Piece::new(bytes)?;
    // Whether it may be stored is asked before a byte is.
    let (asked, wanted) = (new.clone(), piece.clone());
    let may = call.app.read(&call.request, |ctx| {
        Box::pin(async move { artifacts::may_store(ctx, &asked, &wanted).await })
    });
    may.await?;
    artifacts::put_bytes(&call.app, &piece).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { Ok(view(&artifacts::note(ctx, new, &piece).await?)) })
    });
    value(&answer.await?)
}

async fn get(call: Invocation, Get { task_id, artifact_id }: Get) -> Result<Value, ToolError> {
    let found =
        call.app.read(&call.request, |ctx| Box::pin(artifacts::get(ctx, artifact_id))).await?;
    if found.task != Some(task_id) {
        let detail = format!("artifact `{artifact_id}` does not exist");
        return Err(ToolError { code: "not_found", detail, fix: None });
    }
    let bytes = artifacts::bytes(&call.app, &found).await?;
    let mut view = view(&found);
    match std::str::from_utf8(&bytes) {
        Ok(text) => view["text"] = json!(text),
        Err(_) => view["base64"] = json!(BASE64.encode(&bytes)),
    }
    Ok(view)
}

async fn list(call: Invocation, List { task_id }: List) -> Result<Value, ToolError> {
    let found =
        call.app.read(&call.request, |ctx| Box::pin(artifacts::of_task(ctx, task_id))).await?;
    Ok(json!({ "items": found.iter().map(view).collect::<Vec<_>>() }))
}
