//! Store: the final destination of audit records.

use std::{error::Error, pin::Pin};

use crate::{AuditCheckpoint, AuditRecord, NewChain};

/// Result of one operation of a store.
pub type StoreFuture<'a> = Pin<Box<dyn Future<Output = Result<(), AuditStoreError>> + Send + 'a>>;

/// Reason why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum AuditStoreError {
    /// The store is unavailable. The shipper retries the same operation later.
    #[error("the store cannot take records now")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The store holds something else at that position and will never accept the data: another process wrote there, or the file or the
    /// store was restored from an old copy.
    #[error("the store holds another record in this place: {0}")]
    Conflict(String),
}

/// Final destination of records: a database, or another service.
///
/// A writer that died may have stored its last records without knowing it, so its successor submits all records of its open chains again.
/// Therefore every operation is idempotent.
pub trait AuditStore: Send + Sync {
    /// Assigns the chain its position among the chains of the installation ([`NewChain::sign_start`]), before its first record is stored.
    /// Does nothing if the chain is already registered.
    fn register_chain<'a>(&'a self, chain: &'a NewChain) -> StoreFuture<'a>;

    /// Stores records of one registered chain, in order. A record whose `(chain, seq)` is already stored is skipped if its hash is the
    /// same, and is an [`AuditStoreError::Conflict`] otherwise.
    fn store_records<'a>(&'a self, records: &'a [AuditRecord]) -> StoreFuture<'a>;

    /// Stores a checkpoint. A checkpoint with the same `(chain, size, closed)` may already be stored, made at another time. The store may
    /// keep either of the two.
    fn store_checkpoint<'a>(&'a self, checkpoint: &'a AuditCheckpoint) -> StoreFuture<'a>;
}
