//! Forms that every interface shares: problems, settings, health, keys.

pub mod backups;
pub mod certificates;
pub mod health;
pub mod keys;
pub mod problem;
pub mod processes;
pub mod settings;
