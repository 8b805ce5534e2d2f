//! The whole program, and the rules about the code itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod architecture;
mod arrows;
mod backup;
mod configuration;
mod language;
mod layers;
mod logs;
mod policy;
mod read_keys;
mod reference;
mod source;
mod up;
