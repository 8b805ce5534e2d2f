//! Records of tool calls that cannot be changed unseen.
//!
//! Every call leaves two records, or one if it was refused: what was decided, and how it ended.
//! A record names the call and its circumstances and holds no payload: the only trace of arguments
//! and results is their size and a keyed [`Digest`].
//!
//! * The [`Writer`] chains the records, writes them ahead to a file of its own and ships them to a
//!   [`Store`]. What it accepted survives the death of its process, and after
//!   [`Writer::durable`] also a power loss. What it cannot keep it refuses, so that a gate in
//!   front of it can fail closed.
//! * A [`Checkpoint`] signs the Merkle root over the records of a chain so far, so that a third
//!   party can be shown that a record is in it ([`Inclusion`]) and that nothing before it was
//!   rewritten ([`Consistency`]).
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

pub use chain::{Record, genesis};
pub use checkpoint::{BadSignature, Checkpoint};
pub use digest::{Digest, DigestKey};
pub use encoding::{DecodeError, decode, encode};
pub use entry::{
    AgentFacts, BadEntry, CUT_OFF, Entry, Outcome, Phase, UnknownWord, Verdict, whole_micros,
};
pub use proof::{BadProof, Consistency, Inclusion};
pub use start::{ChainStart, NewChain, Tip};
pub use store::{Done, Store, StoreError};
pub use tree::Tree;
pub use verify::{BadLink, ChainCheck, LinkCheck, Problem, Verified};
pub use writer::{
    Condition, NewId, Now, OpenError, Options, Recovered, Refused, Status, Ticket, Unshipped,
    Writer,
};
