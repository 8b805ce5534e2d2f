//! Monotonic time that survives wall-clock steps and restarts of the program.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Timestamp that can be persisted and compared after a restart of the program, and usually of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PersistentInstant {
    /// Boot id of the machine.
    boot: String,
    /// Milliseconds since that boot, including suspend.
    since_boot_ms: u64,
    /// Wall-clock time, used if the machine rebooted in between.
    unix_ms: u64,
}

impl PersistentInstant {
    /// Returns the current time.
    pub(crate) fn now() -> Self {
        Self {
            boot: read_boot_id(),
            since_boot_ms: read_clock_ms(ClockId::Boottime),
            unix_ms: read_clock_ms(ClockId::Realtime),
        }
    }

    /// Returns the time elapsed since then.
    pub(crate) fn elapsed(&self) -> Duration {
        let now = Self::now();
        Duration::from_millis(self.millis_until(&now))
    }

    fn millis_until(&self, now: &Self) -> u64 {
        if self.boot == now.boot {
            now.since_boot_ms.saturating_sub(self.since_boot_ms)
        } else {
            now.unix_ms.saturating_sub(self.unix_ms)
        }
    }
}

/// Returns the wall-clock time in seconds.
pub(crate) fn unix_seconds() -> u64 {
    read_clock_ms(ClockId::Realtime) / 1000
}

fn read_boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn read_clock_ms(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, since_boot_ms: u64, unix_ms: u64) -> PersistentInstant {
        PersistentInstant { boot: boot.to_owned(), since_boot_ms, unix_ms }
    }

    #[test]
    fn a_step_of_the_wall_clock_changes_nothing_within_a_boot() {
        let then = moment("a", 1_000, 9_000_000);
        assert_eq!(then.millis_until(&moment("a", 1_500, 0)), 500);
        assert_eq!(then.millis_until(&moment("a", 1_500, 99_000_000)), 500);
    }

    #[test]
    fn after_a_new_boot_the_wall_clock_counts_and_never_runs_backwards() {
        let then = moment("a", 1_000, 5_000);
        assert_eq!(then.millis_until(&moment("b", 20, 7_000)), 2_000);
        assert_eq!(then.millis_until(&moment("b", 20, 3_000)), 0);
    }
}
