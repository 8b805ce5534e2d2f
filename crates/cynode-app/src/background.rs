//! Work that nobody asks for: the reconciler, maintenance and health.

pub mod health;
pub mod maintenance;
pub mod reconciler;
