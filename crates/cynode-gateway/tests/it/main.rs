//! The gateway, over a real database and real servers.
#![expect(clippy::unwrap_used, reason = "a test stops at the first fault")]

mod upstream;
