//! The golden corpus, real requests of coding agents, and properties.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agents;
mod corpus;
mod errors;
mod losses;
mod observing;
mod properties;
mod redaction;
mod requests;
mod streams;
mod support;
