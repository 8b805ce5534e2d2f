pub mod liveness;
pub mod pending;
