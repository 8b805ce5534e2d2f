//! `cynork`: everything that an installation of CyNode can do, from a terminal.
//!
//! **Invariant**: no way to the database and no power of its own: what it does is a call of the public HTTP
//! interface with the rights of whoever logged in. [`operations::ALL`] names each of those calls.

pub mod client;
pub mod contract;
pub mod draw;
pub mod follow;
mod format;
mod input;
pub mod operations;
pub mod sample;
mod suggestions;
pub mod terminal;

mod answers;
mod cli;
mod commands;
mod complete;
mod config;
mod context;
mod failure;
mod names;
mod output;
mod page;

pub use cli::{build_command, main};
pub use commands::run::RUN_OUTPUT_SCHEMA as RUN_SCHEMA;
