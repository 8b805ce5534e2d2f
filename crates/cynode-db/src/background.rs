//! Queries of the reconciler and of liveness.

pub mod liveness;
pub mod pending;
