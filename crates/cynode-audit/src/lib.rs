//! Tamper-evident audit log of tool calls.
//!
//! Every call leaves two records, or one if it was denied: the policy decision, and the outcome. A record names the call and its
//! circumstances and holds no payload: the only trace of arguments and results is their size and a [`KeyedDigest`].
//!
//! * The [`AuditWriter`] chains the records, appends them to its own write-ahead file and ships them to an
//!   [`AuditStore`]. A record that it accepted survives the death of the process, and after
//!   [`AuditWriter::wait_durable`] also a power loss. It rejects a record that it cannot store, so that a gateway in
//!   front of it can fail closed.
//! * An [`AuditCheckpoint`] signs the Merkle root over the records of a chain so far. A third
//!   party can verify that a record is in the chain ([`RecordInclusionProof`]) and that no earlier record was
//!   rewritten ([`ChainConsistencyProof`]).
//! * A [`ChainStart`] links the chains of an installation, so that a whole chain cannot vanish.
//! * A signing key is rotated without a restart ([`AuditSigner`]). Statements name their key, and a [`PublicKeyring`] verifies them.
//! * [`verify_bundle`] verifies an export without the installation.
//! * [`ChainCheck`] and [`LinkCheck`] find the first error in the stored records.
//!
//! This crate has no database, no network and no clock: the caller supplies them.

mod bundle;
mod bytes;
mod chain;
mod checkpoint;
mod digest;
mod encoding;
mod entry;
mod hex;
mod kept_heads;
mod keyring;
mod open_calls;
mod proof;
mod segment;
mod start;
mod store;
mod tree;
mod verify;
mod writer;

pub use bundle::{MAX_UNPROVEN_AGE, VerifiedBundle, verify_bundle};
pub use chain::{AuditRecord, genesis_hash};
pub use checkpoint::{AuditCheckpoint, BadSignature};
pub use digest::{DigestKey, KeyedDigest};
pub use encoding::{DecodeError, decode_entry, encode_entry};
pub use entry::{
    AgentFacts, AuditEntry, BadEntry, CUT_OFF_REASON, Outcome, Phase, UnknownWord, Verdict,
    truncate_to_micros,
};
pub use kept_heads::{BadRegistryHead, KeptHeads, NoKeptHead};
pub use keyring::{
    AuditSigner, BadPublicKeys, KeyIntroduction, NamedSigningKey, PublicAuditKey, PublicKeyring,
};
pub use proof::{BadProof, ChainConsistencyProof, MalformedBundle, RecordInclusionProof};
pub use start::{ChainRegistryHead, ChainStart, NewChain};
pub use store::{AuditStore, AuditStoreError, StoreFuture};
pub use tree::MerkleTree;
pub use verify::{BadLink, ChainCheck, ChainVerifyError, LinkCheck, VerifiedChain};
pub use writer::{
    AppendError, AuditWriter, AuditWriterOptions, NewId, Now, OpenError, RecordTicket,
    RecoveryReport, SegmentCondition, UnshippedError, WriterStatus,
};
