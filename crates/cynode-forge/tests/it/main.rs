//! The three dialects and git, against forges on loopback that keep what they are told.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod dialects;
mod pushing;
