//! All SQL of the product: one module per aggregate, free functions, the caller owns the transaction.
//!
//! **Invariant**: no other crate that ships writes SQL or names `sqlx`; they use [`Pool`], [`Tx`] and [`Conn`].
//!
//! # To add a query
//!
//! 1. Write a free function in the module of its aggregate. Take `&mut Conn` first, then ids and values,
//!    then `now` if a time is written. Use `sqlx::query!` or `query_as!` with a private row struct.
//! 2. Turn the row into a domain type with `TryFrom`; a row that no version of us would write is
//!    [`DbError::Corrupt`], not a panic and not a default.
//! 3. Run `just sqlx`, which checks the query against a real schema, and commit `.sqlx/`.

pub mod accounts;
pub mod agent_tokens;
pub mod agents;
pub mod approvals;
pub mod artifacts;
pub mod audit;
pub mod authentication;
pub mod budgets;
pub mod chat;
pub mod deliveries;
mod error;
pub mod events;
pub mod evidence;
pub mod gate;
pub mod groups;
pub mod handoffs;
pub mod health;
pub mod idempotency;
pub mod instructions;
pub mod jobs;
pub mod liveness;
pub mod models;
pub mod nodes;
pub mod notices;
pub mod pending;
mod pool;
pub mod preferences;
pub mod projects;
pub mod pull_requests;
pub mod remotes;
pub mod repositories;
pub mod schedules;
pub mod schema;
pub mod servers;
pub mod service_tokens;
pub mod settings;
pub mod skills;
pub mod tasks;
pub mod timeline;
pub mod units;
pub mod usage;
pub mod waits;
pub mod wakeups;
pub mod workflow;

pub use error::DbError;
pub use pool::{ConnectError, DbOptions, connect_pool};

/// A pool of connections.
pub type Pool = sqlx::PgPool;
/// An open transaction; it is rolled back when dropped.
pub type Tx = sqlx::Transaction<'static, sqlx::Postgres>;
/// A connection that goes back to its pool when it is dropped.
pub type PooledConn = sqlx::pool::PoolConnection<sqlx::Postgres>;
/// One connection, inside or outside a transaction.
pub type Conn = sqlx::PgConnection;
