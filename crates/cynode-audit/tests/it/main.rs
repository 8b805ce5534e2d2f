//! A real directory, and a store in memory that can fail.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod encoding;
mod keys;
mod proofs;
mod reconciliation;
mod recovery;
mod shipping;
mod support;
mod verifying;
mod writing;
