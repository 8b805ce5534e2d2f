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

pub mod background;
pub mod delivery;
pub mod identity;
pub mod manager;
pub mod memory;
pub mod models;
pub mod nodes;
pub mod notifications;
pub mod platform;
pub mod tasks;
pub mod tools;
pub mod workflow;

pub use platform::error::DbError;
pub use platform::pool::{
    ConnectError, DbOptions, acquire_connection, begin_transaction, connect_pool,
    is_protected_connection,
};

/// A pool of connections.
pub type Pool = sqlx::PgPool;
/// An open transaction; it is rolled back when dropped.
pub type Tx = sqlx::Transaction<'static, sqlx::Postgres>;
/// A connection that goes back to its pool when it is dropped.
pub type PooledConn = sqlx::pool::PoolConnection<sqlx::Postgres>;
/// One connection, inside or outside a transaction.
pub type Conn = sqlx::PgConnection;
