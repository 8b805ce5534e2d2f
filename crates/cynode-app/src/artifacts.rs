//! Artifacts: bytes under their digest in the object store, and what they are in the database.

use bytes::Bytes;
use cynode_core::{
    ids::{AgentTokenId, ArtifactId, JobId, TaskId},
    roles::Role,
};
use cynode_db::artifacts;
use data_encoding::HEXLOWER;
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use sha2::{Digest, Sha256};

pub use cynode_db::artifacts::Artifact;

use crate::{App, Ctx, Error};

/// Most bytes of one artifact that an agent stores, or that anybody reads in one piece. Jobs bring larger ones.
pub const MOST_BYTES: usize = 4 * 1024 * 1024;

/// What is to be stored.
#[derive(Clone, Debug)]
pub struct NewArtifact {
    /// The task it belongs to.
    pub task: TaskId,
    /// The job that made it.
    pub job: Option<JobId>,
    /// What it is called.
    pub name: String,
    /// What kind of bytes.
    pub media_type: String,
    /// The agent.
    pub by: AgentTokenId,
}

/// Stores bytes under their digest. Stored again, nothing changes; nobody can put other bytes there.
#[tracing::instrument(name = "app.artifacts.put_bytes", skip_all)]
pub async fn put_bytes(app: &App, bytes: Bytes) -> Result<[u8; 32], Error> {
    if bytes.len() > MOST_BYTES {
        return Err(Error::Invalid(format!("an artifact has at most {MOST_BYTES} bytes")));
    }
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    let store = &app.gate()?.objects;
    let path = path(&digest);
    // Whatever is there has this digest, unless somebody wrote to the disk behind our back: it is checked when it is read.
    if store.head(&path).await.is_err() {
        store.put(&path, PutPayload::from_bytes(bytes)).await.map_err(broken)?;
    }
    Ok(digest)
}

/// Notes an artifact whose bytes are stored. The bytes come first: a note without bytes is never seen.
#[tracing::instrument(name = "app.artifacts.note", skip_all)]
pub async fn note(
    ctx: &mut Ctx,
    new: NewArtifact,
    digest: [u8; 32],
    size: usize,
) -> Result<Artifact, Error> {
    let task = crate::tasks::get(ctx, new.task).await?;
    ctx.require_in(task.project, Role::Operator).await?;
    let fits = |text: &str, most: usize| {
        (1..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control)
    };
    if !fits(&new.name, 200) || !fits(&new.media_type, 100) {
        let rule = "`name` has 1 to 200 and `media_type` 1 to 100 characters, none of them a control character";
        return Err(Error::Invalid(rule.into()));
    }
    let mut artifact = Artifact {
        id: ArtifactId::from_uuid(ctx.uuid()),
        project: task.project,
        task: Some(new.task),
        job: new.job,
        name: new.name,
        media_type: new.media_type,
        digest,
        size: i64::try_from(size).unwrap_or(i64::MAX),
        created_by: new.by,
        created_at: ctx.now,
    };
    artifact.id = artifacts::insert(ctx.conn(), &artifact).await?;
    Ok(artifact)
}

/// One artifact, for whoever may see its project.
#[tracing::instrument(name = "app.artifacts.get", skip_all)]
pub async fn get(ctx: &mut Ctx, id: ArtifactId) -> Result<Artifact, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("artifact", id);
    let artifact = artifacts::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    ctx.require_in(artifact.project, Role::Viewer).await.map_err(|_| missing())?;
    Ok(artifact)
}

/// The artifacts of a task, oldest first.
#[tracing::instrument(name = "app.artifacts.of_task", skip_all)]
pub async fn of_task(ctx: &mut Ctx, task: TaskId) -> Result<Vec<Artifact>, Error> {
    crate::tasks::get(ctx, task).await?;
    Ok(artifacts::of_task(ctx.conn(), task).await?)
}

/// The bytes of an artifact, checked against its digest. One that is too large is not read: all of it would be in memory, and
/// more than once by the time it is an answer.
#[tracing::instrument(name = "app.artifacts.bytes", skip_all)]
pub async fn bytes(app: &App, artifact: &Artifact) -> Result<Bytes, Error> {
    let store = &app.gate()?.objects;
    let path = path(&artifact.digest);
    let found = store.get(&path).await.map_err(broken)?;
    // What is stored counts, and not what somebody noted of it.
    let size = found.meta.size;
    if size > MOST_BYTES as u64 {
        return Err(Error::TooLarge(format!(
            "the artifact has {size} bytes, and at most {MOST_BYTES} are read in one piece; whoever runs the installation \
             finds it as `artifacts/{path}` in `gate.directory`"
        )));
    }
    let bytes = found.bytes().await.map_err(broken)?;
    if <[u8; 32]>::from(Sha256::digest(&bytes)) != artifact.digest {
        return Err(Error::Internal(anyhow::anyhow!("the stored bytes were changed")));
    }
    Ok(bytes)
}

/// Thirty-two bytes as lower-case hexadecimal, the one spelling that digests and keys have.
pub(crate) fn bytes32(text: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

pub(crate) fn path(digest: &[u8; 32]) -> Path {
    let hex = HEXLOWER.encode(digest);
    Path::from(format!("sha256/{}/{hex}", &hex[..2]))
}

fn broken(error: object_store::Error) -> Error {
    Error::Internal(anyhow::Error::from(error).context("the object store failed"))
}
