//! The way to upstream servers, against real ones of both eras and both transports.

mod echoing;
mod fake;
mod hostile;
mod http;
mod resilience;
mod stdio;
mod support;
mod wire;
