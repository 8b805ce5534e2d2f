//! Records of tool calls that cannot be changed unseen.
//!
//! Every call leaves two records, or one if it was refused: what was decided, and how it ended.
//! A record names the call and its circumstances and holds no payload: the only trace of arguments
//! and results is their size and a keyed [`Digest`].
//!
//! * The [`AuditWriter`] chains the records, writes them ahead to a file of its own and ships them to a
//!   [`AuditStore`]. What it accepted survives the death of its process, and after
//!   [`AuditWriter::durable`] also a power loss. What it cannot keep it refuses, so that a gate in
//!   front of it can fail closed.
//! * A [`AuditCheckpoint`] signs the Merkle root over the records of a chain so far, so that a third
//!   party can be shown that a record is in it ([`RecordInclusionProof`]) and that nothing before it was
//!   rewritten ([`ChainConsistencyProof`]).
//! * A [`ChainStart`] links the chains of an installation, so that a whole chain cannot vanish.
//! * [`ChainCheck`] and [`LinkCheck`] find the first thing that is wrong with what was stored.
//!
//! There is no database, no network and no clock in here: the caller gives them in.

mod bytes;
mod chain;
mod checkpoint;
mod digest;
mod encoding;
mod entry;
mod hex;
mod open_calls;
mod proof;
mod segment;
mod start;
mod store;
mod tree;
mod verify;
mod writer;

pub use chain::{AuditRecord, genesis_hash};
pub use checkpoint::{AuditCheckpoint, BadSignature};
pub use digest::{DigestKey, KeyedDigest};
pub use encoding::{DecodeError, decode_entry, encode_entry};
pub use entry::{
    AgentFacts, AuditEntry, BadEntry, CUT_OFF_REASON, Outcome, Phase, UnknownWord, Verdict,
    truncate_to_micros,
};
pub use proof::{BadProof, ChainConsistencyProof, RecordInclusionProof};
pub use start::{ChainRegistryHead, ChainStart, NewChain};
pub use store::{AuditStore, AuditStoreError, StoreFuture};
pub use tree::MerkleTree;
pub use verify::{BadLink, ChainCheck, ChainVerifyError, LinkCheck, VerifiedChain};
pub use writer::{
    AppendError, AuditWriter, AuditWriterOptions, NewId, Now, OpenError, RecordTicket,
    RecoveryReport, SegmentCondition, UnshippedError, WriterStatus,
};
