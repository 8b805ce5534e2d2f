//! What every query needs: pool, schema, roles of the database, settings, idempotency, wake-ups; and what a backup needs.

pub mod backup;
pub mod database_roles;
pub(crate) mod error;
pub mod health;
pub mod idempotency;
pub mod keyring;
pub(crate) mod pool;
pub mod processes;
pub mod schema;
pub mod settings;
pub mod wakeups;
