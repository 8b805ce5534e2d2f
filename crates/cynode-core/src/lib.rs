//! The pure domain: ids, names, roles, states, stored forms and rules without input or output.
//!
//! **Invariant**: nothing here reads a clock, draws a random number, opens a file or awaits. A type moves into this
//! crate only when two crates need it.
//!
//! A stored form is a value that the database keeps as JSON, or gives to its callers as it is. It derives its JSON and its
//! schema here; requests and views that nobody stores are in `cynode-wire`.
//!
//! To add a checked text type, write its rule as a function in [`names`] and one line in the `checked_text!` list. To
//! add an id, write one line in [`ids`].

pub mod accounts;
pub mod agents;
pub mod budget;
pub mod delivery;
pub mod environments;
pub mod error_chain;
pub mod events;
pub mod evidence;
pub mod git_limits;
pub mod ids;
pub mod memory;
pub mod metric_specs;
pub mod models;
pub mod names;
pub mod nodes;
pub mod notifications;
pub mod paging;
pub mod placement;
pub mod policies;
pub mod preferences;
pub mod profiles;
pub mod projects;
pub mod releases;
pub mod roles;
pub mod schedules;
pub mod scim;
pub mod settings;
pub mod skills;
pub mod sync;
pub mod tasks;
pub mod tools;
pub mod trace;
pub mod tuning;
pub mod workflow;

/// A state machine was asked for a step that its present state does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {what} that is {state} cannot {verb}")]
pub struct InvalidTransition {
    /// The kind of thing, as a person calls it.
    pub what: &'static str,
    /// The state it is in.
    pub state: &'static str,
    /// What it was asked to do.
    pub verb: &'static str,
}
