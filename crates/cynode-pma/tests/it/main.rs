//! What the program promises, from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chatting;
mod eval;
mod fake;
mod inside;
mod program;
mod thinking;
mod working;
