//! Bounds of leases and of long polls that callers ask for.

use std::time::Duration;

use crate::Error;

/// Maximum lifetime of a lease.
const MAX_LEASE_TTL_SECONDS: u32 = 3600;

/// Validates a lifetime and returns it in milliseconds.
pub(crate) fn validate_ttl_ms(seconds: Option<u32>, default: u32) -> Result<i64, Error> {
    let seconds = seconds.unwrap_or(default);
    if !(1..=MAX_LEASE_TTL_SECONDS).contains(&seconds) {
        return Err(Error::Invalid(format!(
            "`expires_in_seconds` is 1 to {MAX_LEASE_TTL_SECONDS}"
        )));
    }
    Ok(i64::from(seconds) * 1000)
}

/// Returns the timeout of a long poll, bounded to 20 seconds.
pub(crate) fn wait_timeout(wait_ms: Option<u32>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or(0).min(20_000).into())
}
