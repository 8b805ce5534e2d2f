//! The HTTP front door over a real database.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod accounts;
mod contract;
mod dropped;
mod events;
mod idempotency;
mod jobs;
mod models;
mod nodes;
mod permissions;
mod preferences;
mod projects;
mod settings;
mod signals;
mod sweep;
mod tasks;
mod workflow;
