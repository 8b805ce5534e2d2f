//! Disk usage limit of a run, by repeated measurement. File system quotas need a file system that was set up for them.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::timeout};

use super::cgroups::RunCgroup;

/// Maximum depth of a directory tree. No project has a deeper one; a deeper one is treated as an evasion.
const MAX_TREE_DEPTH: usize = 200;
/// Cost of a name and its inode, independent of the file size.
const ENTRY_OVERHEAD_BYTES: u64 = 512;
/// Minimum charge per name: many empty files cost inodes and scan time before they cost space.
const MIN_ENTRY_BYTES: u64 = 4096;
/// Minimum interval between two scans.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// A scan may use at most 1/n of the time.
const SCAN_TIME_DIVISOR: u32 = 20;
/// Maximum interval between two scans. Within it a job can exceed its quota.
const MAX_SCAN_INTERVAL: Duration = Duration::from_secs(3);
/// Maximum number of mappings of all processes of a run. Each takes time to scan; more are treated as an evasion.
const MAX_MAPPING_COUNT: u32 = 2_000_000;
/// Minimum number of free inodes on a file system.
const MIN_FREE_INODES: u64 = 10_000;

/// Disk quota of a run: the measured paths and their limit.
#[derive(Clone, Debug)]
pub(super) struct DiskQuota {
    pub(super) places: Vec<PathBuf>,
    pub(super) most: u64,
    /// Minimum free space on the file systems; the run ends below it. `None` disables the check.
    pub(super) floor: Option<u64>,
    pub(super) group: RunCgroup,
}

impl DiskQuota {
    /// Waits until the quota is exceeded.
    pub(super) async fn wait_exceeded(&self) {
        // A run that writes to no disk is not measured: its files are in memory, which its cgroup limits.
        if self.places.is_empty() {
            return std::future::pending().await;
        }
        // Free space is checked separately: it can change faster than a scan takes.
        tokio::select! {
            () = self.poll_until(Self::is_low, |_| MIN_SCAN_INTERVAL) => {}
            () = self.poll_until(|disk| !disk.is_within_quota(), pause_after) => {}
        }
    }

    /// Polls a condition until it holds. The pause depends on the duration of the last poll.
    async fn poll_until(&self, so: fn(&Self) -> bool, pause_after: fn(Duration) -> Duration) {
        let mut pause = MIN_SCAN_INTERVAL;
        loop {
            // A timeout of a pending future works as a sleep.
            let _ = timeout(pause, std::future::pending::<()>()).await;
            let disk = self.clone();
            let began = Instant::now();
            if spawn_blocking(move || so(&disk)).await.unwrap_or(false) {
                return;
            }
            pause = pause_after(began.elapsed());
        }
    }

    fn is_low(&self) -> bool {
        let low = |floor| self.places.iter().any(|place| is_low(place, floor));
        self.floor.is_some_and(low)
    }

    fn is_within_quota(&self) -> bool {
        let mut count = DiskUsageCounter::new(self.most);
        self.places.iter().all(|place| count.count_tree(place))
            && count.count_open_files(&self.group)
    }
}

/// Returns the pause after a scan of the given duration.
fn pause_after(took: Duration) -> Duration {
    (took * SCAN_TIME_DIVISOR).clamp(MIN_SCAN_INTERVAL, MAX_SCAN_INTERVAL)
}

/// Returns whether the file system of a path is low on space, or on inodes where their number is limited.
fn is_low(place: &Path, floor: u64) -> bool {
    let Ok(stat) = rustix::fs::statvfs(place) else { return false };
    stat.f_bavail * stat.f_frsize < floor || is_low_on_inodes(stat.f_files, stat.f_favail)
}

/// Returns whether too few inodes are free. A file system without a limit reports a total of zero.
fn is_low_on_inodes(all: u64, free: u64) -> bool {
    free < MIN_FREE_INODES.min(all / 20)
}

struct DiskUsageCounter {
    left: u64,
    /// Files with several hard links, counted once.
    seen: HashSet<(u64, u64)>,
    /// Number of mappings that may still be scanned.
    mappings: u32,
}

impl DiskUsageCounter {
    fn new(most: u64) -> Self {
        Self { left: most, seen: HashSet::new(), mappings: MAX_MAPPING_COUNT }
    }

    /// Counts a tree and returns whether it fits into the remaining quota. A file that vanishes meanwhile counts zero; a directory
    /// that cannot be read does not fit.
    fn count_tree(&mut self, root: &Path) -> bool {
        let mut open = vec![(root.to_owned(), 0)];
        while let Some((directory, depth)) = open.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // A node that is not root cannot read a directory that the job has closed: it counts as too much.
                Err(_) => return false,
            };
            for entry in entries.flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                if !self.count_entry(&meta) {
                    return false;
                }
                if meta.is_dir() {
                    if depth == MAX_TREE_DEPTH {
                        return false;
                    }
                    open.push((entry.path(), depth + 1));
                }
            }
        }
        true
    }

    /// Counts unlinked files that are still open, or that are closed and still mapped: they use space too.
    fn count_open_files(&mut self, group: &RunCgroup) -> bool {
        let threads: Vec<_> =
            group.list_processes().into_iter().filter_map(find_live_thread).collect();
        threads
            .into_iter()
            .all(|thread| self.count_descriptors(thread) && self.count_mappings(thread))
    }

    fn count_descriptors(&mut self, thread: i32) -> bool {
        let files = fs::read_dir(format!("/proc/{thread}/fd")).into_iter().flatten().flatten();
        for file in files {
            if let Ok(meta) = fs::metadata(file.path())
                && !self.count_unlinked(&meta)
            {
                return false;
            }
        }
        true
    }

    /// Counts unlinked mapped files. Only root can read them.
    fn count_mappings(&mut self, thread: i32) -> bool {
        let Ok(maps) = File::open(format!("/proc/{thread}/maps")) else { return true };
        for line in BufReader::new(maps).split(b'\n') {
            // The thread has exited.
            let Ok(line) = line else { break };
            let Some(left) = self.mappings.checked_sub(1) else { return false };
            self.mappings = left;
            let Some(piece) = parse_deleted_mapping(&line) else { continue };
            let path = format!("/proc/{thread}/map_files/{piece}");
            if let Ok(meta) = fs::metadata(&path)
                && !is_in_memory(&path)
                && !self.count_unlinked(&meta)
            {
                return false;
            }
        }
        true
    }

    fn count_unlinked(&mut self, meta: &fs::Metadata) -> bool {
        let counts =
            meta.is_file() && meta.nlink() == 0 && self.seen.insert((meta.dev(), meta.ino()));
        !counts || self.subtract_bytes(meta.blocks() * 512)
    }

    fn count_entry(&mut self, meta: &fs::Metadata) -> bool {
        let again =
            meta.nlink() > 1 && !meta.is_dir() && !self.seen.insert((meta.dev(), meta.ino()));
        let blocks = if again { 0 } else { meta.blocks() * 512 };
        self.subtract_bytes(MIN_ENTRY_BYTES.max(ENTRY_OVERHEAD_BYTES + blocks))
    }

    fn subtract_bytes(&mut self, bytes: u64) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return false,
        }
        true
    }
}

/// Returns a live thread of a process. The main thread shows no files once it has exited, although others live.
fn find_live_thread(process: i32) -> Option<i32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<i32>().ok());
    numbers.find(|thread| fs::read_link(format!("/proc/{thread}/exe")).is_ok())
}

/// Returns the address range of a mapping of an unlinked file, in the form of the names in `map_files`.
fn parse_deleted_mapping(line: &[u8]) -> Option<String> {
    let line = line.strip_suffix(b" (deleted)")?;
    let piece = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
    let (from, to) = piece.split_once('-')?;
    Some(format!("{}-{}", from.trim_start_matches('0'), to.trim_start_matches('0')))
}

/// Returns whether a file is in memory (tmpfs or anonymous shared memory), which has its own limit.
fn is_in_memory(path: &str) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == 0x0102_1994)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(place: &Path, most: u64) -> bool {
        DiskUsageCounter::new(most).count_tree(place)
    }

    #[test]
    fn a_tree_fits_when_its_blocks_and_names_do() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("below")).unwrap();
        fs::write(place.path().join("below/file"), vec![1; 100_000]).unwrap();
        assert!(fits(place.path(), 200_000));
        assert!(!fits(place.path(), 100_000));
    }

    #[test]
    fn many_names_of_nothing_are_not_free() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(place.path().join(number.to_string()), "").unwrap();
        }
        assert!(!fits(place.path(), 100 * MIN_ENTRY_BYTES - 1));
    }

    #[test]
    fn a_long_count_is_soon_followed_by_the_next() {
        let pauses = [0, 50, 10_000].map(|took| pause_after(Duration::from_millis(took)));
        assert_eq!(pauses, [MIN_SCAN_INTERVAL, Duration::from_secs(1), MAX_SCAN_INTERVAL]);
    }

    #[test]
    fn a_file_system_is_low_when_its_space_or_its_files_are() {
        let place = tempfile::tempdir().unwrap();
        assert!(is_low(place.path(), u64::MAX));
        assert!(!is_low(&place.path().join("missing"), u64::MAX));
        let files = [(0, 0), (1 << 24, 9_999), (1 << 24, 10_000), (1000, 49), (1000, 50)];
        let few = files.map(|(all, free)| is_low_on_inodes(all, free));
        assert_eq!(few, [false, true, false, true, false]);
    }

    #[test]
    fn a_file_with_two_names_counts_once_and_a_link_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("one"), vec![1; 100_000]).unwrap();
        fs::hard_link(place.path().join("one"), place.path().join("two")).unwrap();
        std::os::unix::fs::symlink("/", place.path().join("all")).unwrap();
        assert!(fits(place.path(), 150_000));
    }

    #[test]
    fn what_is_mapped_of_a_file_without_a_name_is_found_by_the_name_of_its_piece() {
        let line = |path: &str| format!("00400000-0f000000 rw-s 00000000 fe:00 7     {path}");
        let found = ["/work/a b (deleted)", "/work/a", ""]
            .map(|path| parse_deleted_mapping(line(path).as_bytes()));
        assert_eq!(found, [Some("400000-f000000".to_owned()), None, None]);
        assert_eq!(parse_deleted_mapping(b"\xff (deleted)"), None);
    }

    #[test]
    fn a_tree_that_is_too_deep_does_not_fit() {
        let place = tempfile::tempdir().unwrap();
        let mut path = place.path().to_owned();
        for _ in 0..=MAX_TREE_DEPTH + 1 {
            path.push("d");
        }
        fs::create_dir_all(path).unwrap();
        assert!(!fits(place.path(), u64::MAX));
    }
}
