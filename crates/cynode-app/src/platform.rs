//! The base of all operations: context, errors, keys, settings, redaction. It knows no feature.

pub(crate) mod batch;
pub(crate) mod context;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod idempotency;
pub mod keys;
pub(crate) mod orphan_cleanup;
pub(crate) mod password_hashing;
pub mod redaction;
pub mod settings;
pub(crate) mod timeouts;
pub mod tokens;
pub mod wakeups;
