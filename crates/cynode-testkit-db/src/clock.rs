use std::time::Duration;

use time::{OffsetDateTime, macros::datetime};

/// The time at which every test begins.
pub const NOW: OffsetDateTime = datetime!(2026-11-01 12:00 UTC);

/// Sleeps in real time, for tests that wait for other processes.
pub async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
