//! What every query needs: pool, schema, settings, idempotency, wake-ups.

pub(crate) mod error;
pub mod health;
pub mod idempotency;
pub(crate) mod pool;
pub mod schema;
pub mod settings;
pub mod wakeups;
