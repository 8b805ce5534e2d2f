//! The whole program, and the rules about the code itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the counts of the conformance table are for people")]

mod arrows;
mod configuration;
mod language;
mod layers;
mod logs;
mod policy;
mod reference;
mod source;
mod up;
