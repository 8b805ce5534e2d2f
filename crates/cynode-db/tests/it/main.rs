//! Queries and constraints on a real database.

mod partitions;
mod schema;
