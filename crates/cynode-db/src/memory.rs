//! Memory: partitions, records, their index, and search.
//!
//! Every function but [`partitions::enter_partition`] works in a partition that the transaction has entered, and names it in every query.
//! The row rules of the schema see to it that a query which forgets this finds nothing.

pub mod ended_tasks;
pub mod ingests;
pub mod partitions;
pub mod postings;
pub mod records;
pub mod search;
