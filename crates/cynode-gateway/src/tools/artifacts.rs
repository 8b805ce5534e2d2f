//! `artifact.*`: artifacts of a task.

use bytes::Bytes;
use cynode_app::tools::artifacts::{self, Artifact, ArtifactContent, NewArtifact};
use cynode_core::{
    agents::ToolScope,
    ids::{ArtifactId, TaskId},
    tools::ToolAnnotations,
};
use cynode_policy::catalogue::IdBinding;
use data_encoding::{BASE64, HEXLOWER};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PutArtifactArgs {
    /// The task that the artifact belongs to.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Name of the artifact, such as `report.md`.
    name: String,
    /// Media type, such as `text/markdown`; it is not guessed.
    media_type: String,
    /// The content as text. Give this or `base64`.
    text: Option<String>,
    /// The content in base64.
    base64: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GetArtifactArgs {
    /// The task that the artifact belongs to.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The artifact.
    #[schema(value_type = String)]
    artifact_id: ArtifactId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListArtifactsArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
}

pub(super) fn artifact_tools() -> Vec<NativeTool> {
    let about = |name, title, description, annotations| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: IdBinding::TASK,
        annotations,
    };
    vec![
        about(
            "artifact.put",
            "Store an artifact",
            "Stores text or bytes with the task, under their digest.",
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(put_artifact),
        about(
            "artifact.get",
            "Read an artifact",
            "The content of an artifact of the task.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(get_artifact),
        about(
            "artifact.list",
            "List artifacts",
            "The artifacts of the task.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(list_artifacts),
    ]
}

fn artifact_view(artifact: &Artifact) -> Value {
    json!({
        "artifact_id": artifact.id,
        "name": artifact.name,
        "media_type": artifact.media_type,
        "sha256": HEXLOWER.encode(&artifact.digest),
        "size": artifact.size,
    })
}

async fn put_artifact(call: ToolInvocation, body: PutArtifactArgs) -> Result<Value, ToolError> {
    let bytes = match (body.text, body.base64) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(encoded)) => {
            let decoded = BASE64.decode(encoded.as_bytes());
            Bytes::from(
                decoded.map_err(|_| ToolError::invalid_arguments("`base64` is not base64"))?,
            )
        }
        _ => return Err(ToolError::invalid_arguments("give `text` or `base64`")),
    };
    let new = NewArtifact {
        task: body.task_id,
        job: call.agent.job,
        name: body.name,
        media_type: body.media_type,
        by: call.agent.token,
    };
    let piece = ArtifactContent::new(bytes)?;
    // The permission to store is checked before any byte is stored.
    let (asked, wanted) = (new.clone(), piece.clone());
    let may = call.app.read(&call.request, |ctx| {
        Box::pin(async move { artifacts::authorize_artifact(ctx, &asked, &wanted).await })
    });
    may.await?;
    artifacts::put_artifact_bytes(&call.app, &piece).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(
            async move { Ok(artifact_view(&artifacts::record_artifact(ctx, new, &piece).await?)) },
        )
    });
    answer_value(&answer.await?)
}

async fn get_artifact(
    call: ToolInvocation,
    GetArtifactArgs { task_id, artifact_id }: GetArtifactArgs,
) -> Result<Value, ToolError> {
    let found =
        call.app.read(&call.request, |ctx| artifacts::get_artifact(ctx, artifact_id)).await?;
    if found.task != Some(task_id) {
        let detail = format!("artifact `{artifact_id}` does not exist");
        return Err(ToolError { code: "not_found", detail, fix: None });
    }
    let bytes = artifacts::read_artifact_bytes(&call.app, &found).await?;
    let mut view = artifact_view(&found);
    match std::str::from_utf8(&bytes) {
        Ok(text) => view["text"] = json!(text),
        Err(_) => view["base64"] = json!(BASE64.encode(&bytes)),
    }
    Ok(view)
}

async fn list_artifacts(
    call: ToolInvocation,
    ListArtifactsArgs { task_id }: ListArtifactsArgs,
) -> Result<Value, ToolError> {
    let found =
        call.app.read(&call.request, |ctx| artifacts::list_task_artifacts(ctx, task_id)).await?;
    Ok(json!({ "items": found.iter().map(artifact_view).collect::<Vec<_>>() }))
}
