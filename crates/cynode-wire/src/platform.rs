//! Forms that every interface shares: problems, settings, health.

pub mod health;
pub mod problem;
pub mod settings;
