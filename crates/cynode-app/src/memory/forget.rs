//! Forgetting: records and all that the index has of them are deleted.

use cynode_core::{
    events::EventKind,
    ids::MemoryId,
    memory::{MemoryAuthor, MemoryScope, MemoryState},
    roles::UserRole,
};
use cynode_db::memory::{
    partitions::{self, EntryMode, Partition},
    records::{self, ForgetFilter, Memory},
};
use serde_json::json;

use crate::{
    Ctx, Error,
    memory::records::{RememberBy, get_record, require_memory_role, require_person},
    platform::{context::EventDraft, operation},
};

/// Records whose index entries are removed by one statement.
const DELETE_BATCH_SIZE: i64 = 100;

/// Records that are forgotten by one request. What is left is forgotten by the next.
const MAX_FORGOTTEN_AT_ONCE: u64 = 5000;

/// What was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// How many records.
    pub records: u64,
    /// Whether there are more: ask again.
    pub more: bool,
}

/// Forgets one record, with the versions of it that were corrected before.
#[tracing::instrument(name = "app.memory.forget", skip_all)]
#[operation]
pub async fn forget(ctx: &mut Ctx, id: MemoryId) -> Result<(), Error> {
    require_person(ctx)?;
    let (mut partition, record) = super::records::enter_record(ctx, id, EntryMode::Lock).await?;
    let ids = records::list_versions(ctx.conn(), &partition, record.id).await?;
    let deleted = records::delete_records(ctx.conn(), &mut partition, &ids).await?;
    record_forgotten(ctx, &record.scope, deleted, Some(id)).await
}

/// Forgets the records of a scope that meet all conditions of a filter; without a condition, all of them. A pinned record outlives its age.
#[tracing::instrument(name = "app.memory.forget_records", skip_all)]
#[operation]
pub async fn forget_records(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    filter: ForgetFilter,
) -> Result<Forgotten, Error> {
    require_person(ctx)?;
    require_memory_role(ctx, scope, UserRole::Operator).await?;
    let entered = partitions::enter_partition(ctx.conn(), scope, EntryMode::Lock).await?;
    let Some(mut partition) = entered else {
        return Ok(Forgotten { records: 0, more: false });
    };
    let done = if filter == ForgetFilter::default() {
        let records = partitions::delete_partition(ctx.conn(), &partition).await?;
        Forgotten { records, more: false }
    } else {
        let records = delete_matching(ctx, &mut partition, &filter, MAX_FORGOTTEN_AT_ONCE).await?;
        let left = records::find_forgettable(ctx.conn(), &partition, &filter, 1).await?;
        Forgotten { records, more: !left.is_empty() }
    };
    if done.records > 0 {
        record_forgotten(ctx, scope, done.records, None).await?;
    }
    Ok(done)
}

/// Deletes the records that a filter names, up to a number of them; how many.
pub(crate) async fn delete_matching(
    ctx: &mut Ctx,
    partition: &mut Partition,
    filter: &ForgetFilter,
    max: u64,
) -> Result<u64, Error> {
    let mut deleted = 0;
    while deleted < max {
        let ids =
            records::find_forgettable(ctx.conn(), partition, filter, DELETE_BATCH_SIZE).await?;
        if ids.is_empty() {
            break;
        }
        deleted += records::delete_records(ctx.conn(), partition, &ids).await?;
    }
    Ok(deleted)
}

/// Takes back a proposal of an agent that nobody decided: the agent of a task one of its task, any other agent one of its user without a
/// task. Every other record does not exist for it.
#[tracing::instrument(name = "app.memory.forget_own_proposal", skip_all)]
#[operation]
pub async fn forget_own_proposal(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    by: RememberBy,
    id: MemoryId,
) -> Result<(), Error> {
    let caller = require_memory_role(ctx, scope, UserRole::Operator).await?;
    let missing = || Error::not_found("memory", id);
    let entered = partitions::enter_partition(ctx.conn(), scope, EntryMode::Lock).await?;
    let mut partition = entered.ok_or_else(missing)?;
    let record = get_record(ctx, &partition, id).await?;
    let is_own = match by.task {
        Some(task) => record.origin.task == Some(task),
        None => record.origin.task.is_none() && record.origin.user == Some(caller.user),
    };
    if !is_own || !is_open_proposal(&record) {
        return Err(missing());
    }
    records::delete_records(ctx.conn(), &mut partition, &[id]).await?;
    record_forgotten(ctx, scope, 1, Some(id)).await
}

fn is_open_proposal(record: &Memory) -> bool {
    record.state == MemoryState::Proposed
        && record.superseded_by.is_none()
        && record.origin.author == MemoryAuthor::Agent
}

async fn record_forgotten(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    records: u64,
    id: Option<MemoryId>,
) -> Result<(), Error> {
    let data = json!({ "profile": scope.profile, "records": records, "memory_id": id });
    ctx.record_event(EventDraft::new(EventKind::MemoryForgotten, data).with_project(scope.project))
        .await
}
