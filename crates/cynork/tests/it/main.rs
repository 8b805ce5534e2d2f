//! What the program promises, without an installation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod contract;
mod output;
