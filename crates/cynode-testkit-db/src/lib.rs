//! Test support, a dev-dependency only: [`TestDb`] is a real database for one test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot be set up has failed"
)]

mod clock;
mod database;

pub use clock::{NOW, pause};
pub use database::TestDb;
