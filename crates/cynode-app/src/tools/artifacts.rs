//! Artifacts: bytes in the object store under their SHA-256 digest, metadata in the database. Path traversal is
//! impossible: the path of an object is made from its digest, never from a name.

use std::ops::Range;

use bytes::Bytes;
use cynode_core::settings::registry::{
    ARTIFACT_BYTES_SETTING, DEFAULT_PROJECT_BLOB_BYTES, DEFAULT_TASK_ARTIFACT_BYTES,
    PROJECT_BLOB_BYTES_SETTING,
};
use cynode_core::{
    ids::{AgentTokenId, ArtifactId, JobId, ProjectId, TaskId},
    roles::UserRole,
};
use cynode_db::tools::artifacts;
use data_encoding::HEXLOWER;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use object_store::{GetOptions, ObjectStoreExt, PutPayload, path::Path};
use sha2::{Digest, Sha256};

pub use cynode_db::tools::artifacts::Artifact;

use crate::{
    App, Ctx, Error,
    platform::{operation, settings},
};

/// Maximum size of an artifact that an agent stores, or that is read in one piece. Jobs store larger ones.
pub const MAX_ARTIFACT_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of artifacts of one task, which is also the maximum of a list.
const MAX_TASK_ARTIFACTS: i64 = 1000;

/// Bytes of an artifact as they are read.
pub type ArtifactStream = BoxStream<'static, object_store::Result<Bytes>>;

/// Metadata of a new artifact.
#[derive(Clone, Debug)]
pub struct NewArtifact {
    /// Task that it belongs to.
    pub task: TaskId,
    /// Job that produced it.
    pub job: Option<JobId>,
    /// Name of the artifact.
    pub name: String,
    /// Media type of the bytes.
    pub media_type: String,
    /// Token of the agent that stores it.
    pub by: AgentTokenId,
}

/// Bytes of a new artifact with their digest.
#[derive(Clone, Debug)]
pub struct ArtifactContent {
    bytes: Bytes,
    digest: [u8; 32],
}

impl ArtifactContent {
    /// Creates the content. Rejects too many bytes.
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

/// Checks whether an artifact may be stored and returns its project. It runs before any byte is stored, because bytes
/// without metadata would be orphans.
#[tracing::instrument(name = "app.artifacts.authorize_artifact", skip_all)]
#[operation]
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
    // Larger blobs of jobs have limits of their own and are not counted.
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
    let quota = BlobQuota::load_quota(ctx.conn(), task.project, &piece.digest).await?;
    quota.require_bytes(piece.bytes.len() as u64)?;
    Ok(task.project)
}

/// Returns the maximum number of bytes that agents may store per task.
async fn max_task_bytes(ctx: &mut Ctx) -> Result<i64, Error> {
    settings::setting_number(ctx.conn(), ARTIFACT_BYTES_SETTING, DEFAULT_TASK_ARTIFACT_BYTES).await
}

/// Quota of a project for its artifacts, bundles and other blobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlobQuota {
    used: u64,
    max: u64,
}

impl BlobQuota {
    /// Loads the quota and what is used of it, apart from the bytes of a digest.
    pub(crate) async fn load_quota(
        conn: &mut cynode_db::Conn,
        project: ProjectId,
        digest: &[u8; 32],
    ) -> Result<Self, Error> {
        let max =
            settings::setting_number(conn, PROJECT_BLOB_BYTES_SETTING, DEFAULT_PROJECT_BLOB_BYTES)
                .await?;
        let used = artifacts::sum_project_blobs(conn, project, digest).await?;
        let bytes = |number: i64| u64::try_from(number).unwrap_or_default();
        Ok(Self { used: bytes(used), max: bytes(max) })
    }

    /// Refuses bytes above the quota.
    pub(crate) fn require_bytes(self, bytes: u64) -> Result<(), Error> {
        let Self { used, max } = self;
        if used.saturating_add(bytes) <= max {
            return Ok(());
        }
        Err(Error::TooLarge(format!(
            "the project keeps {used} bytes of artifacts and bundles, and at most {max} are kept for one: wait until the files \
             of ended tasks expire, or ask an admin to raise `{PROJECT_BLOB_BYTES_SETTING}`"
        )))
    }
}

/// Stores bytes under their digest. It is idempotent, and nobody can store other bytes there.
#[tracing::instrument(name = "app.artifacts.put_artifact_bytes", skip_all)]
#[operation]
pub async fn put_artifact_bytes(app: &App, piece: &ArtifactContent) -> Result<(), Error> {
    let parts = app.gateway_parts()?;
    let (store, path) = (&parts.objects, object_path(&piece.digest));
    // Bytes that are about to be removed stay, or are gone before they are looked for.
    let mut conn = app.conn().await?;
    artifacts::delay_blob_removal(&mut conn, &piece.digest).await?;
    drop(conn);
    // An existing object has this digest unless the disk was tampered with. Reading verifies it.
    if store.head(&path).await.is_ok() {
        return Ok(());
    }
    parts.repositories.disk_probe().require_space(&parts.objects_directory)?;
    store
        .put(&path, PutPayload::from_bytes(piece.bytes.clone()))
        .await
        .map_err(object_store_error)?;
    Ok(())
}

/// Removes bytes that no artifact refers to. It is idempotent.
pub(crate) async fn remove_artifact_bytes(app: &App, digest: &[u8; 32]) -> Result<(), Error> {
    match app.gateway_parts()?.objects.delete(&object_path(digest)).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(object_store_error(error)),
    }
}

/// Stores the metadata of an artifact. Its bytes are stored first: metadata without bytes must never be visible.
#[tracing::instrument(name = "app.artifacts.record_artifact", skip_all)]
#[operation]
pub async fn record_artifact(
    ctx: &mut Ctx,
    new: NewArtifact,
    piece: &ArtifactContent,
) -> Result<Artifact, Error> {
    // The lock serializes concurrent writers, so that the second counts the bytes of the first.
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

/// Returns one artifact for a caller who may see its project.
#[tracing::instrument(name = "app.artifacts.get_artifact", skip_all)]
#[operation]
pub async fn get_artifact(ctx: &mut Ctx, id: ArtifactId) -> Result<Artifact, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("artifact", id);
    let artifact = artifacts::get_artifact(ctx.conn(), id).await?.ok_or_else(missing)?;
    ctx.require_project_role(artifact.project, UserRole::Viewer).await.map_err(|_| missing())?;
    Ok(artifact)
}

/// Lists the artifacts of a task, oldest first.
#[tracing::instrument(name = "app.artifacts.list_task_artifacts", skip_all)]
#[operation]
pub async fn list_task_artifacts(ctx: &mut Ctx, task: TaskId) -> Result<Vec<Artifact>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    Ok(artifacts::list_task_artifacts(ctx.conn(), task).await?)
}

/// Reads the bytes of an artifact and verifies their digest. One that is too large is not read, because its bytes
/// would be in memory several times.
#[tracing::instrument(name = "app.artifacts.read_artifact_bytes", skip_all)]
#[operation]
pub async fn read_artifact_bytes(app: &App, artifact: &Artifact) -> Result<Bytes, Error> {
    let store = &app.gateway_parts()?.objects;
    let path = object_path(&artifact.digest);
    let found = store.get(&path).await.map_err(object_store_error)?;
    // The stored size counts, not the recorded one.
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

/// Opens the bytes of an artifact, all of them or a range, as a stream. The digest of a whole file is verified while it is read: when it
/// differs, the stream ends with an error.
#[tracing::instrument(name = "app.artifacts.open_artifact_bytes", skip_all)]
#[operation]
pub async fn open_artifact_bytes(
    app: &App,
    artifact: &Artifact,
    range: Option<Range<u64>>,
) -> Result<ArtifactStream, Error> {
    let store = &app.gateway_parts()?.objects;
    let is_whole = range.is_none();
    let options = GetOptions::default().with_range(range);
    let path = object_path(&artifact.digest);
    let stored = store.get_opts(&path, options).await.map_err(|error| match error {
        object_store::Error::NotFound { .. } => Error::not_found("artifact", artifact.id),
        other => object_store_error(other),
    })?;
    let bytes = stored.into_stream();
    Ok(if is_whole { verify_stream(bytes, artifact.digest) } else { bytes })
}

/// Ends a stream with an error when its bytes do not have the digest.
fn verify_stream(bytes: ArtifactStream, digest: [u8; 32]) -> ArtifactStream {
    let verified =
        stream::try_unfold((bytes, Sha256::new()), move |(mut bytes, mut hash)| async move {
            if let Some(piece) = bytes.next().await {
                let piece = piece?;
                hash.update(&piece);
                return Ok(Some((piece, (bytes, hash))));
            }
            if <[u8; 32]>::from(hash.finalize()) == digest {
                return Ok(None);
            }
            Err(object_store::Error::Generic {
                store: "artifacts",
                source: "the stored bytes were changed".into(),
            })
        });
    verified.boxed()
}

/// Decodes 32 bytes of lower-case hexadecimal, the only spelling of digests and keys.
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
