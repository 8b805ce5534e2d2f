//! The package proxy on its socket, over a registry on loopback.
#![expect(clippy::unwrap_used, reason = "a test stops at the first fault")]

mod caching;
mod checking;
mod policy;
mod sealing;
mod support;
