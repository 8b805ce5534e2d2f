//! Free space of the disk: a floor that jobs and imports must leave. Without space for audit records no call would be
//! possible.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_core::sync::lock_unpoisoned;

use crate::Error;

/// Minimum free disk space, or a twentieth of a smaller disk.
const MIN_FREE_DISK_BYTES: u64 = 1024 * 1024 * 1024;

/// Time after which a node tries again to store something.
const NODE_RETRY_DELAY: Duration = Duration::from_mins(1);

/// Number of bytes of an upload after which the disk is measured again.
pub(crate) const DISK_CHECK_BYTES: u64 = 32 * 1024 * 1024;

const DISK_FULL_MESSAGE: &str = "the disk is almost full, and what is left is kept for records of calls: whoever runs the \
     installation must make room where `storage.directory` is";

/// Size of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// Free space in bytes.
    pub free_bytes: u64,
    /// Size in bytes.
    pub total_bytes: u64,
}

impl DiskUsage {
    /// Returns whether the disk is too full to store more on it.
    fn is_almost_full(self) -> bool {
        self.free_bytes < MIN_FREE_DISK_BYTES.min(self.total_bytes / 20)
    }
}

/// Measures the disk of a directory.
#[derive(Clone, Debug, Default)]
pub struct DiskProbe {
    reading: Arc<Mutex<Option<DiskUsage>>>,
}

impl DiskProbe {
    /// Replaces what is measured, for tests.
    pub fn set_reading(&self, reading: Option<DiskUsage>) {
        *lock_unpoisoned(&self.reading) = reading;
    }

    /// Returns whether the disk of a directory is too full to store more on it. If it cannot be measured, the write
    /// reports the error.
    fn is_almost_full(&self, directory: &Path) -> bool {
        let usage = lock_unpoisoned(&self.reading).or_else(|| {
            // A directory that does not exist yet will be on the disk of the one above.
            let there = directory.ancestors().find(|path| path.exists())?;
            let disk = rustix::fs::statvfs(there).ok()?;
            let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
            let (free_bytes, total_bytes) = (bytes(disk.f_bavail), bytes(disk.f_blocks));
            Some(DiskUsage { free_bytes, total_bytes })
        });
        usage.is_some_and(DiskUsage::is_almost_full)
    }

    /// Refuses what a person or an agent stores when the disk is almost full.
    pub(crate) fn require_space(&self, directory: &Path) -> Result<(), Error> {
        if self.is_almost_full(directory) {
            return Err(Error::StorageFull(DISK_FULL_MESSAGE));
        }
        Ok(())
    }

    /// Refuses what a node stores when the disk is almost full.
    pub(crate) fn require_space_for_node(&self, directory: &Path) -> Result<(), Error> {
        self.require_space(directory).map_err(ask_node_to_retry)
    }
}

/// Makes the node that a full disk refused try again: its work is done and would be lost.
pub(crate) fn ask_node_to_retry(error: Error) -> Error {
    match error {
        Error::StorageFull(why) => {
            Error::UpstreamUnavailable { after: NODE_RETRY_DELAY, why: why.to_owned() }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_almost_full_when_a_gibibyte_is_left_or_a_twentieth_of_a_small_one() {
        const GIB: u64 = 1024 * 1024 * 1024;
        let is_almost_full = |free_bytes, total_bytes| {
            let probe = DiskProbe::default();
            probe.set_reading(Some(DiskUsage { free_bytes, total_bytes }));
            probe.is_almost_full(Path::new("/"))
        };
        assert!(is_almost_full(GIB - 1, 500 * GIB));
        assert!(!is_almost_full(GIB, 500 * GIB));
        assert!(is_almost_full(GIB / 20 - 1, GIB));
        assert!(!is_almost_full(GIB / 20, GIB));
        // A file system that tells nothing of itself.
        assert!(!is_almost_full(0, 0));
    }
}
