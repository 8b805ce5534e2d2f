//! The JSON that only a client and the server exchange: requests, views, problems.
//!
//! Values that are stored in this form live in `cynode-core`, so that the database does not need this crate.
//!
//! **Invariant**: pure types. A request type refuses unknown fields; a view is made from a domain
//! value by `From`, so that a new domain field does not leak by accident.

pub mod delivery;
pub mod identity;
pub mod manager;
pub mod memory;
pub mod models;
pub mod nodes;
pub mod notifications;
pub mod platform;
pub mod tasks;
pub mod tools;
pub mod workflow;
