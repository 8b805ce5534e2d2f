//! `cynork`: all operations of a CyNode installation, from a terminal.
//!
//! **Invariant**: it has no access to the database and no privilege of its own: every action is a request to the public HTTP
//! API with the rights of the logged-in user. [`operations::ALL`] lists those requests.

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
mod untrusted_text;

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
mod walk;

pub use cli::{build_command, main};
pub use commands::run::RUN_OUTPUT_SCHEMA as RUN_SCHEMA;
