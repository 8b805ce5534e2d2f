//! Base of all operations: context, errors, keys, settings, redaction. It depends on no feature module.

pub(crate) mod batch;
pub mod body_budget;
pub mod certificates;
pub(crate) mod context;
pub mod disk;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod idempotency;
pub mod keys;
pub(crate) mod orphan_cleanup;
pub(crate) mod password_hashing;
pub mod program_releases;
pub mod rate_limits;
pub mod redaction;
pub mod settings;
pub mod stream_limits;
pub(crate) mod tag_key;
pub(crate) mod timeouts;
pub mod tokens;
pub mod wakeups;

/// Boxes the future of an operation, so that it is compiled in this crate, once. Without it, the compiler makes it anew in every
/// crate that awaits it, together with everything that it awaits.
pub(crate) use async_recursion::async_recursion as operation;
