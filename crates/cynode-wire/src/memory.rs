//! Memory: records, search and ingests.

pub mod ingests;
pub mod records;
