//! Building blocks of outgoing requests: SSRF guard, URL validation, backoff, circuit breaker, server-sent events. And one of incoming
//! requests: the server of ports that strangers can reach.
//!
//! [`ssrf`] decides which addresses are public and resolves names to public addresses only. [`url_policy`] validates a URL before its name
//! is resolved. [`backoff`] spaces retries, [`circuit_breaker`] stops calls to a server that keeps failing, and [`sse`] parses event
//! streams. [`server`] accepts connections under timeouts and limits, and [`concurrency`] counts what is open by key. [`tls`] has certificates
//! and trust, and [`transport`] refuses to send in clear text what leaves the machine.
//!
//! **Invariant**: this crate depends on no other crate of the workspace and has no user-facing messages except those of its errors. It
//! sends no request: callers own their HTTP clients and their messages.

pub mod backoff;
pub mod circuit_breaker;
pub mod concurrency;
pub mod server;
pub mod sse;
pub mod ssrf;
pub mod tls;
pub mod transport;
pub mod url_policy;
