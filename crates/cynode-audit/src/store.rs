//! Where records end up.

use std::{error::Error, pin::Pin};

use crate::{AuditCheckpoint, AuditRecord, NewChain};

/// The end of one piece of work of a store.
pub type StoreFuture<'a> = Pin<Box<dyn Future<Output = Result<(), AuditStoreError>> + Send + 'a>>;

/// Why a store did not take what it was given.
#[derive(Debug, thiserror::Error)]
pub enum AuditStoreError {
    /// It cannot now; the same is tried again later.
    #[error("the store cannot take records now")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// It holds something else in that place and never will take it: somebody wrote there, or
    /// went back to an old copy of the file or of the store.
    #[error("the store holds another record in this place: {0}")]
    Conflict(String),
}

/// Where records end up: a database, or another service.
///
/// A writer that died may have stored its last records without knowing it, so its successor gives
/// all records of its open chains again. Everything here is therefore done at most once, however
/// often it is asked for.
pub trait AuditStore: Send + Sync {
    /// Gives the chain its place among the chains of the installation ([`NewChain::sign`]), before
    /// its first record is stored. Does nothing if the chain has its place already.
    fn register_chain<'a>(&'a self, chain: &'a NewChain) -> StoreFuture<'a>;

    /// Keeps records of one registered chain, in order. One whose `(chain, seq)` is there already
    /// is skipped if the hash is the same and is a [`AuditStoreError::Conflict`] if not.
    fn store_records<'a>(&'a self, records: &'a [AuditRecord]) -> StoreFuture<'a>;

    /// Keeps a checkpoint. One with the same `(chain, size, closed)` may be there already, made
    /// at another time; either of the two may be kept.
    fn store_checkpoint<'a>(&'a self, checkpoint: &'a AuditCheckpoint) -> StoreFuture<'a>;
}
