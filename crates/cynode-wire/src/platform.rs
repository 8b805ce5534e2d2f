//! Forms that every interface shares: pages, problems, settings, health.

pub mod health;
pub mod page;
pub mod problem;
pub mod settings;
