//! Building blocks of outgoing requests: SSRF guard, URL validation, backoff, circuit breaker, server-sent events.
//!
//! [`ssrf`] decides which addresses are public and resolves names to those only. [`url_policy`] validates a URL before its
//! name is resolved. [`backoff`] spaces retries, [`circuit_breaker`] stops calls to a server that keeps failing, and
//! [`sse`] parses event streams.
//!
//! **Invariant**: this crate uses no other crate of the workspace and knows no message for a user beyond its errors. It
//! sends no request: callers own their HTTP clients and words.

pub mod backoff;
pub mod circuit_breaker;
pub mod sse;
pub mod ssrf;
pub mod url_policy;
