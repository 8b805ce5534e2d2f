//! End-to-end support for the proofs: [`world`] is a whole installation of real processes, [`nodes`] are real nodes in network
//! namespaces, [`faults`] and [`node_proxy`] inject faults between them. The program `cynode-proof` runs them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a proof that cannot be set up has failed"
)]

mod executor;
pub mod faults;
pub mod node_proxy;
pub mod nodes;
mod script;
pub mod world;

pub use executor::{Executor, WorkLedger};
pub use script::{Attempt, Failure, Script, ScriptedBackend, Scripts};
