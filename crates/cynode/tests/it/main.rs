//! The whole program, and the rules about the code itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arrows;
mod configuration;
mod logs;
mod policy;
mod source;
mod up;
