//! The HTTP front door over a real database.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod accounts;
mod contract;
mod events;
mod idempotency;
mod permissions;
mod preferences;
mod projects;
mod settings;
mod tasks;
