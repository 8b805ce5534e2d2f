//! The gateway, over a real database and real servers.
#![expect(clippy::unwrap_used, reason = "a test stops at the first fault")]

mod admin;
mod approvals;
mod audit;
mod bench;
mod bombs;
mod delivery;
mod handoffs;
mod limits;
mod memory;
mod offering;
mod profiles;
mod rules;
mod scoping;
mod servers;
mod table;
mod tokens;
mod tools;
mod traps;
mod upstream;
