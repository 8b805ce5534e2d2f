//! Artifacts: bytes in the object store under their SHA-256 digest, metadata in the database. Path traversal is
//! impossible: the path of an object is made from its digest, never from a name.

use bytes::Bytes;
use cynode_core::settings::registry::{ARTIFACT_BYTES_SETTING, DEFAULT_TASK_ARTIFACT_BYTES};
use cynode_core::{
    ids::{AgentTokenId, ArtifactId, JobId, ProjectId, TaskId},
    roles::UserRole,
};
use cynode_db::tools::artifacts;
use data_encoding::HEXLOWER;
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use sha2::{Digest, Sha256};

pub use cynode_db::tools::artifacts::Artifact;

use crate::{App, Ctx, Error, platform::settings};

/// Most bytes of one artifact that an agent stores, or that anybody reads in one piece. Jobs bring larger ones.
pub const MAX_ARTIFACT_BYTES: usize = 4 * 1024 * 1024;

/// Most artifacts of one task: as many as a list of them shows.
const MAX_TASK_ARTIFACTS: i64 = 1000;

/// What agents leave free on the disk, or a twentieth of a smaller one.
const MIN_FREE_DISK_BYTES: u64 = 1024 * 1024 * 1024;

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

/// Bytes that an agent wants to store.
#[derive(Clone, Debug)]
pub struct ArtifactContent {
    bytes: Bytes,
    digest: [u8; 32],
}

impl ArtifactContent {
    /// The bytes, if they are not too many.
    pub fn new(bytes: Bytes) -> Result<Self, Error> {
        if bytes.len() > MAX_ARTIFACT_BYTES {
            return Err(Error::Invalid(format!(
                "an artifact has at most {MAX_ARTIFACT_BYTES} bytes"
            )));
        }
        let digest = Sha256::digest(&bytes).into();
        Ok(Self { bytes, digest })
    }

    fn byte_len(&self) -> i64 {
        i64::try_from(self.bytes.len()).unwrap_or(i64::MAX)
    }
}

/// Whether an artifact may be stored; gives its project. It is asked before a byte is stored, since nobody finds bytes again
/// that belong to nothing.
#[tracing::instrument(name = "app.artifacts.authorize_artifact", skip_all)]
pub async fn authorize_artifact(
    ctx: &mut Ctx,
    new: &NewArtifact,
    piece: &ArtifactContent,
) -> Result<ProjectId, Error> {
    let task = crate::tasks::get_task(ctx, new.task).await?;
    ctx.require_project_role(task.project, UserRole::Operator).await?;
    let fits = |text: &str, most: usize| {
        (1..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control)
    };
    if !fits(&new.name, 200) || !fits(&new.media_type, 100) {
        let rule = "`name` has 1 to 200 and `media_type` 1 to 100 characters, none of them a control character";
        return Err(Error::Invalid(rule.into()));
    }
    // What jobs bring in larger pieces has bounds of its own.
    let piecemeal = i64::try_from(MAX_ARTIFACT_BYTES).unwrap_or(i64::MAX);
    let (conn, digest) = (ctx.conn(), &piece.digest);
    let there =
        artifacts::artifact_totals_of_task(conn, new.task, &new.name, digest, piecemeal).await?;
    if there.is_there {
        return Ok(task.project);
    }
    let most = max_task_bytes(ctx).await?;
    if there.objects >= MAX_TASK_ARTIFACTS || there.bytes.saturating_add(piece.byte_len()) > most {
        return Err(Error::TooLarge(format!(
            "the task has {} artifacts already, with {} bytes, and at most {MAX_TASK_ARTIFACTS} and {most} bytes are kept for one: \
             leave out what nobody reads, put several into one, or ask an admin to raise `{ARTIFACT_BYTES_SETTING}`",
            there.objects, there.bytes
        )));
    }
    Ok(task.project)
}

/// Most bytes that agents store with one task.
async fn max_task_bytes(ctx: &mut Ctx) -> Result<i64, Error> {
    let set = settings::setting_value(ctx.conn(), ARTIFACT_BYTES_SETTING).await?;
    Ok(set.and_then(|value| value.as_i64()).unwrap_or(DEFAULT_TASK_ARTIFACT_BYTES))
}

/// Stores bytes under their digest. Stored again, nothing changes; nobody can put other bytes there.
#[tracing::instrument(name = "app.artifacts.put_artifact_bytes", skip_all)]
pub async fn put_artifact_bytes(app: &App, piece: &ArtifactContent) -> Result<(), Error> {
    let parts = app.gateway_parts()?;
    let (store, path) = (&parts.objects, object_path(&piece.digest));
    // Whatever is there has this digest, unless somebody wrote to the disk behind our back: it is checked when it is read.
    if store.head(&path).await.is_ok() {
        return Ok(());
    }
    // Where the disk cannot be asked, writing to it says what is wrong.
    let disk = rustix::fs::statvfs(&parts.objects_directory);
    let is_low = |disk: rustix::fs::StatVfs| {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        is_almost_full(bytes(disk.f_bavail), bytes(disk.f_blocks))
    };
    if disk.is_ok_and(is_low) {
        let why = "the disk is almost full, and what is left is kept for records of calls: whoever runs the installation must make \
                   room where `storage.directory` is";
        return Err(Error::StorageFull(why));
    }
    store
        .put(&path, PutPayload::from_bytes(piece.bytes.clone()))
        .await
        .map_err(object_store_error)?;
    Ok(())
}

/// Whether so little of a disk is free that agents store nothing more on it: without room for records no call is made at all.
fn is_almost_full(free: u64, all: u64) -> bool {
    free < MIN_FREE_DISK_BYTES.min(all / 20)
}

/// Removes bytes that belong to no artifact any more. Removed again, nothing changes.
pub(crate) async fn remove_artifact_bytes(app: &App, digest: &[u8; 32]) -> Result<(), Error> {
    match app.gateway_parts()?.objects.delete(&object_path(digest)).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(object_store_error(error)),
    }
}

/// Notes an artifact whose bytes are stored. The bytes come first: a note without bytes is never seen.
#[tracing::instrument(name = "app.artifacts.record_artifact", skip_all)]
pub async fn record_artifact(
    ctx: &mut Ctx,
    new: NewArtifact,
    piece: &ArtifactContent,
) -> Result<Artifact, Error> {
    // Of two who store at once, the second counts what the first has stored.
    cynode_db::tasks::lock_task(ctx.conn(), new.task).await?;
    let project = authorize_artifact(ctx, &new, piece).await?;
    let mut artifact = Artifact {
        id: ArtifactId::from_uuid(ctx.new_uuid()),
        project,
        task: Some(new.task),
        job: new.job,
        name: new.name,
        media_type: new.media_type,
        digest: piece.digest,
        size: piece.byte_len(),
        created_by: new.by,
        created_at: ctx.now,
    };
    artifact.id = artifacts::insert_artifact(ctx.conn(), &artifact).await?;
    Ok(artifact)
}

/// One artifact, for whoever may see its project.
#[tracing::instrument(name = "app.artifacts.get_artifact", skip_all)]
pub async fn get_artifact(ctx: &mut Ctx, id: ArtifactId) -> Result<Artifact, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("artifact", id);
    let artifact = artifacts::get_artifact(ctx.conn(), id).await?.ok_or_else(missing)?;
    ctx.require_project_role(artifact.project, UserRole::Viewer).await.map_err(|_| missing())?;
    Ok(artifact)
}

/// The artifacts of a task, oldest first.
#[tracing::instrument(name = "app.artifacts.list_task_artifacts", skip_all)]
pub async fn list_task_artifacts(ctx: &mut Ctx, task: TaskId) -> Result<Vec<Artifact>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    Ok(artifacts::list_task_artifacts(ctx.conn(), task).await?)
}

/// The bytes of an artifact, checked against its digest. One that is too large is not read: all of it would be in memory, and
/// more than once by the time it is an answer.
#[tracing::instrument(name = "app.artifacts.read_artifact_bytes", skip_all)]
pub async fn read_artifact_bytes(app: &App, artifact: &Artifact) -> Result<Bytes, Error> {
    let store = &app.gateway_parts()?.objects;
    let path = object_path(&artifact.digest);
    let found = store.get(&path).await.map_err(object_store_error)?;
    // What is stored counts, and not what somebody noted of it.
    let size = found.meta.size;
    if size > MAX_ARTIFACT_BYTES as u64 {
        return Err(Error::TooLarge(format!(
            "the artifact has {size} bytes, and at most {MAX_ARTIFACT_BYTES} are read in one piece; whoever runs the installation \
             finds it as `artifacts/{path}` in `storage.directory`"
        )));
    }
    let bytes = found.bytes().await.map_err(object_store_error)?;
    if <[u8; 32]>::from(Sha256::digest(&bytes)) != artifact.digest {
        return Err(Error::Internal(anyhow::anyhow!("the stored bytes were changed")));
    }
    Ok(bytes)
}

/// Thirty-two bytes as lower-case hexadecimal, the one spelling that digests and keys have.
pub(crate) fn decode_hex32(text: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

pub(crate) fn object_path(digest: &[u8; 32]) -> Path {
    let hex = HEXLOWER.encode(digest);
    Path::from(format!("sha256/{}/{hex}", &hex[..2]))
}

fn object_store_error(error: object_store::Error) -> Error {
    Error::Internal(anyhow::Error::from(error).context("the object store failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_almost_full_when_a_gibibyte_is_left_or_a_twentieth_of_a_small_one() {
        const GIB: u64 = 1024 * 1024 * 1024;
        assert!(is_almost_full(GIB - 1, 500 * GIB));
        assert!(!is_almost_full(GIB, 500 * GIB));
        assert!(is_almost_full(GIB / 20 - 1, GIB));
        assert!(!is_almost_full(GIB / 20, GIB));
        // A file system that tells nothing of itself.
        assert!(!is_almost_full(0, 0));
    }
}
