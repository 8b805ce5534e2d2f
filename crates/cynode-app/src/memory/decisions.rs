//! Decisions of people about records: to accept, to reject, to correct, to pin.

use cynode_core::{
    events::EventKind,
    ids::MemoryId,
    memory::{MemoryAuthor, MemoryState, MemoryText},
};
use cynode_db::memory::{
    partitions::{EntryMode, Partition},
    records::{self, Memory, MemoryOrigin, NewMemory, insert_records},
};
use cynode_wire::memory::records::UpdateMemory;

use crate::{
    App, Ctx, Error, OperationRequest,
    memory::records::{
        CORRECTED_MESSAGE, PreparedMemory, decide, enter_record, get_memory, get_record,
        prepare_memory, record_memory_event, require_person, to_new_memory,
    },
    platform::operation,
};

/// What a person changes of a record.
#[derive(Clone, Debug, Default)]
pub struct MemoryChange {
    /// The text that takes the place of the record's.
    pub correction: Option<PreparedMemory>,
    /// Whether it outlives its age.
    pub pinned: Option<bool>,
}

/// Locks the partition of a record that was not corrected.
async fn lock_present_record(ctx: &mut Ctx, id: MemoryId) -> Result<(Partition, Memory), Error> {
    require_person(ctx)?;
    let (partition, record) = enter_record(ctx, id, EntryMode::Lock).await?;
    if record.superseded_by.is_some() {
        return Err(Error::Conflict(CORRECTED_MESSAGE));
    }
    Ok((partition, record))
}

/// Accepts a record: searches find it.
#[tracing::instrument(name = "app.memory.accept", skip_all)]
#[operation]
pub async fn accept(ctx: &mut Ctx, id: MemoryId) -> Result<Memory, Error> {
    let (mut partition, record) = lock_present_record(ctx, id).await?;
    match record.state {
        MemoryState::Accepted => Ok(record),
        MemoryState::Proposed | MemoryState::Rejected => {
            decide(ctx, &mut partition, &record, MemoryState::Accepted).await
        }
    }
}

/// Rejects a record: no search finds it, and the same text is not proposed again.
#[tracing::instrument(name = "app.memory.reject", skip_all)]
#[operation]
pub async fn reject(ctx: &mut Ctx, id: MemoryId) -> Result<Memory, Error> {
    let (mut partition, record) = lock_present_record(ctx, id).await?;
    match record.state {
        MemoryState::Rejected => Ok(record),
        MemoryState::Proposed | MemoryState::Accepted => {
            decide(ctx, &mut partition, &record, MemoryState::Rejected).await
        }
    }
}

/// Pins a record, so that it outlives its age, or unpins it.
#[tracing::instrument(name = "app.memory.pin", skip_all)]
#[operation]
pub async fn pin(ctx: &mut Ctx, id: MemoryId, pinned: bool) -> Result<Memory, Error> {
    let (partition, record) = lock_present_record(ctx, id).await?;
    if record.pinned == pinned {
        return Ok(record);
    }
    records::set_pinned(ctx.conn(), &partition, id, pinned).await?;
    let record = Memory { pinned, ..record };
    record_memory_event(ctx, EventKind::MemoryUpdated, &record).await?;
    Ok(record)
}

/// Corrects a record: a new record of the caller takes its place, and the old one is no longer found. Whoever changes only the title or
/// the kind of a stranger's text vouches for none of it.
#[tracing::instrument(name = "app.memory.correct", skip_all)]
#[operation]
pub async fn correct(
    ctx: &mut Ctx,
    id: MemoryId,
    prepared: PreparedMemory,
) -> Result<Memory, Error> {
    let (mut partition, old) = lock_present_record(ctx, id).await?;
    let origin = MemoryOrigin {
        author: MemoryAuthor::Person,
        user: Some(ctx.caller()?.user),
        role: None,
        task: old.origin.task,
        ingest: None,
        untrusted: old.origin.untrusted && prepared.text.content == old.text.content,
    };
    let mut new = to_new_memory(ctx, prepared, origin, MemoryState::Accepted);
    if new.digest == old.digest && new.text.source == old.text.source {
        return Ok(old);
    }
    if let Some(earlier) = remove_earlier_version(ctx, &mut partition, &new).await? {
        new.origin.untrusted |= earlier.origin.untrusted;
    }
    (new.pinned, new.supersedes) = (old.pinned, Some(old.id));
    let (new_id, now) = (new.id, ctx.now);
    if insert_records(ctx.conn(), &mut partition, &[new], now).await?.is_empty() {
        return Err(Error::Conflict("another record of this source has this text already"));
    }
    records::supersede_record(ctx.conn(), &mut partition, old.id, new_id).await?;
    let corrected = get_record(ctx, &partition, new_id).await?;
    record_memory_event(ctx, EventKind::MemoryUpdated, &corrected).await?;
    Ok(corrected)
}

/// Removes the record that says the same as a correction and was corrected itself, so that a correction can be taken back. Returns it.
async fn remove_earlier_version(
    ctx: &mut Ctx,
    partition: &mut Partition,
    new: &NewMemory,
) -> Result<Option<Memory>, Error> {
    let found =
        records::find_equal_record(ctx.conn(), partition, &new.text.source, &new.digest).await?;
    let Some(id) = found else { return Ok(None) };
    let earlier = get_record(ctx, partition, id).await?;
    if earlier.superseded_by.is_none() {
        return Ok(None);
    }
    records::unlink_version(ctx.conn(), partition, id).await?;
    records::delete_records(ctx.conn(), partition, &[id]).await?;
    Ok(Some(earlier))
}

/// Prepares the change that a request asks for. The caller must not have an open transaction.
#[operation]
pub async fn prepare_correction(
    app: &App,
    request: &OperationRequest,
    id: MemoryId,
    body: UpdateMemory,
) -> Result<MemoryChange, Error> {
    let UpdateMemory { kind, title, content, pinned } = body;
    if kind.is_none() && title.is_none() && content.is_none() {
        return match pinned {
            Some(_) => Ok(MemoryChange { correction: None, pinned }),
            None => Err(Error::Invalid(
                "say what to change: `kind`, `title`, `content` or `pinned`".into(),
            )),
        };
    }
    let old = get_memory(app, request, id).await?;
    let text = MemoryText {
        title: title.unwrap_or(old.text.title),
        content: content.unwrap_or(old.text.content),
        ..old.text
    };
    let correction = prepare_memory(app, kind.unwrap_or(old.kind), text).await?;
    Ok(MemoryChange { correction: Some(correction), pinned })
}

/// Corrects a record, pins it, or both.
#[tracing::instrument(name = "app.memory.update_memory", skip_all)]
#[operation]
pub async fn update_memory(
    ctx: &mut Ctx,
    id: MemoryId,
    change: MemoryChange,
) -> Result<Memory, Error> {
    let record = match change.correction {
        Some(prepared) => Some(correct(ctx, id, prepared).await?),
        None => None,
    };
    let present = record.as_ref().map_or(id, |record| record.id);
    match (change.pinned, record) {
        (Some(pinned), _) => pin(ctx, present, pinned).await,
        (None, Some(record)) => Ok(record),
        (None, None) => Err(Error::Invalid("say what to change".into())),
    }
}
