//! Records that were given to an agent before, read again for a later claim of the same work.

use cynode_core::{
    memory::{MemoryScope, PromptMemory},
    workflow::given_context::GivenMemory,
};
use cynode_db::memory::{
    partitions::{self, EntryMode},
    records,
};

use crate::{
    App, Error,
    memory::search::{MemoryHit, fit_to_budget},
    platform::operation,
};

/// Reads records that were given before, with the scores that they had. Those that a search does not find any more are left out. The caller
/// must not have an open transaction, and has decided that the agent may read this scope.
#[tracing::instrument(name = "app.memory.read_given_memories", skip_all)]
#[operation]
pub async fn read_given_memories(
    app: &App,
    scope: &MemoryScope,
    given: &[GivenMemory],
    max_tokens: u32,
) -> Result<Vec<PromptMemory>, Error> {
    let mut tx = app.begin().await?;
    let entered = partitions::enter_partition(&mut tx, scope, EntryMode::Read).await?;
    let mut hits = Vec::with_capacity(given.len());
    if let Some(partition) = entered {
        for GivenMemory { memory_id, score } in given {
            let found = records::get_record(&mut tx, &partition, *memory_id).await?;
            let found = found.filter(|memory| memory.record_no.is_some());
            hits.extend(found.map(|memory| MemoryHit { memory, score: *score }));
        }
    }
    tx.rollback().await.map_err(cynode_db::DbError::from)?;
    Ok(fit_to_budget(hits, usize::try_from(max_tokens).unwrap_or_default()))
}
