//! Memory: what a project knows under a profile.
//!
//! A record that a person writes is found at once. What an agent remembers is a proposal, until a person or the rule of the
//! installation accepts it. Everything is stored redacted.
//!
//! Everything happens in a transaction that entered the partition of one project and profile. Nothing of another is returned, ranked,
//! counted or logged. No text of a record is in an event or a log.
//!
//! # Search
//!
//! The score of a hit is from 0 to 1, higher is better, and hits with equal scores are ordered by id. BM25 over the lexemes chooses
//! [`MAX_CANDIDATES`](cynode_memory::rescore::MAX_CANDIDATES) candidates, and [`cynode_memory::rescore`] orders them.

pub mod backend;
pub mod decisions;
pub mod export;
pub mod forget;
pub mod given_memories;
pub mod ingest;
pub mod records;
pub mod search;

pub use cynode_db::memory::records::{ForgetFilter, Memory, RecordFilter};

pub use self::{
    decisions::{MemoryChange, accept, correct, pin, prepare_correction, reject, update_memory},
    export::export_memories,
    forget::{Forgotten, forget, forget_own_proposal, forget_records},
    given_memories::read_given_memories,
    records::{
        MemoryOrigin, PreparedMemory, RememberBy, get_memory, list_memories, remember,
        to_memory_view,
    },
    search::{MemoryHit, MemoryQuery, best_for_prompt, search_memories},
};
