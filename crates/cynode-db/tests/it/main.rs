//! Queries and constraints on a real database.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backup;
mod chat;
mod database_roles;
mod environments;
mod memory;
mod migrations;
mod partitions;
mod schema;
mod sign_on;
mod transport;
mod ways;
