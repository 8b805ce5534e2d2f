//! Test support, a dev-dependency only: [`TestDb`] is a real database for one test, [`TestApp`] the whole
//! application over it, called in process, with a clock that stands still and ids that repeat.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot be set up has failed"
)]

mod app;
mod database;
pub mod echo;
mod executor;
pub mod faults;
pub mod forges;
pub mod inbox;
pub mod mcp;
pub mod nodes;
pub mod provider;
mod script;
pub mod secrets;
mod sources;
pub mod turnstile;
pub mod world;

pub use app::{Client, Reply, TestApp, TestGate};
pub use database::TestDb;
pub use executor::{Executor, Ledger, pause};
pub use script::{Attempt, Failure, Script, ScriptedMind, Scripts};
pub use sources::{NOW, SeededRandom, TestClock};
