//! Queries and constraints on a real database.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chat;
mod environments;
mod partitions;
mod schema;
mod ways;
