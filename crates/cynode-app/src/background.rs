//! Background work: the reconciler, maintenance and health checks.

pub mod health;
pub mod maintenance;
pub mod reconciler;
