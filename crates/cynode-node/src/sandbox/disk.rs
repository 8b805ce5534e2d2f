//! How much lies in what a run may change. Quotas of the file system would be better, but need one that was set up for them; so it is
//! counted, again and again, at a cost that is kept low.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::timeout};

use super::cgroups::Group;

/// No tree of a project is deeper; one that is hides something.
const DEEPEST: usize = 200;
/// What a name and its inode cost, whatever is in the file.
const ENTRY_BYTES: u64 = 512;
/// The least that a name counts: empty files are many before they are large, and each takes its time to count.
const LEAST_BYTES: u64 = 4096;
/// Between two counts, at least.
const PAUSE: Duration = Duration::from_millis(500);
/// A count may take one part in this of the time.
const SHARE: u32 = 20;
/// Between two counts, at most: in this time a job outruns its quota.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How many files must still fit on a file system.
const FREE_FILES: u64 = 10_000;

/// What is counted, and how much may be found.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) places: Vec<PathBuf>,
    pub(super) most: u64,
    /// What must stay free on the file systems.
    pub(super) floor: u64,
    pub(super) group: Group,
}

impl Disk {
    /// Returns when there is too much.
    pub(super) async fn exceeded(&self) {
        // What is free changes faster than a count may take.
        tokio::select! {
            () = self.until(Self::is_low, |_| PAUSE) => {}
            () = self.until(|disk| !disk.fits(), pause_after) => {}
        }
    }

    /// Looks again and again, with a pause that depends on how long the look took; returns when it is so.
    async fn until(&self, so: fn(&Self) -> bool, pause_after: fn(Duration) -> Duration) {
        let mut pause = PAUSE;
        loop {
            // A timeout of nothing is a pause.
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
        self.places.iter().any(|place| is_low(place, self.floor))
    }

    fn fits(&self) -> bool {
        let mut count = Count { left: self.most, seen: HashSet::new() };
        self.places.iter().all(|place| count.tree(place)) && count.open_files(&self.group)
    }
}

/// How long there is no count after one that took so long.
fn pause_after(took: Duration) -> Duration {
    (took * SHARE).clamp(PAUSE, LONGEST_PAUSE)
}

/// Whether too little is free where a place is: of space, or of files where their number is limited.
fn is_low(place: &Path, floor: u64) -> bool {
    let Ok(stat) = rustix::fs::statvfs(place) else { return false };
    stat.f_bavail * stat.f_frsize < floor || few_files(stat.f_files, stat.f_favail)
}

/// Whether too few files can still be made of all that a file system may have. One without such a limit says that it may have none.
fn few_files(all: u64, free: u64) -> bool {
    free < FREE_FILES.min(all / 20)
}

struct Count {
    left: u64,
    /// Files with several names count once.
    seen: HashSet<(u64, u64)>,
}

impl Count {
    /// Whether a tree fits into what is left. What vanishes meanwhile counts nothing; what cannot be looked at does not fit.
    fn tree(&mut self, root: &Path) -> bool {
        let mut open = vec![(root.to_owned(), 0)];
        while let Some((directory, depth)) = open.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // A node that is not root cannot look into what a job has closed: it counts as too much.
                Err(_) => return false,
            };
            for entry in entries.flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                if !self.take(&meta) {
                    return false;
                }
                if meta.is_dir() {
                    if depth == DEEPEST {
                        return false;
                    }
                    open.push((entry.path(), depth + 1));
                }
            }
        }
        true
    }

    /// Files that have no name any more but are still open take their space too.
    fn open_files(&mut self, group: &Group) -> bool {
        for process in group.processes() {
            let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { continue };
            for file in files.flatten() {
                if let Ok(meta) = fs::metadata(file.path())
                    && meta.is_file()
                    && meta.nlink() == 0
                    && self.seen.insert((meta.dev(), meta.ino()))
                    && !self.subtract(meta.blocks() * 512)
                {
                    return false;
                }
            }
        }
        true
    }

    fn take(&mut self, meta: &fs::Metadata) -> bool {
        let again =
            meta.nlink() > 1 && !meta.is_dir() && !self.seen.insert((meta.dev(), meta.ino()));
        let blocks = if again { 0 } else { meta.blocks() * 512 };
        self.subtract(LEAST_BYTES.max(ENTRY_BYTES + blocks))
    }

    fn subtract(&mut self, bytes: u64) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(place: &Path, most: u64) -> bool {
        Count { left: most, seen: HashSet::new() }.tree(place)
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
        assert!(!fits(place.path(), 100 * LEAST_BYTES - 1));
    }

    #[test]
    fn a_long_count_is_soon_followed_by_the_next() {
        let pauses = [0, 50, 10_000].map(|took| pause_after(Duration::from_millis(took)));
        assert_eq!(pauses, [PAUSE, Duration::from_secs(1), LONGEST_PAUSE]);
    }

    #[test]
    fn a_file_system_is_low_when_its_space_or_its_files_are() {
        let place = tempfile::tempdir().unwrap();
        assert!(is_low(place.path(), u64::MAX));
        assert!(!is_low(&place.path().join("missing"), u64::MAX));
        let files = [(0, 0), (1 << 24, 9_999), (1 << 24, 10_000), (1000, 49), (1000, 50)];
        let few = files.map(|(all, free)| few_files(all, free));
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
    fn a_tree_that_is_too_deep_does_not_fit() {
        let place = tempfile::tempdir().unwrap();
        let mut path = place.path().to_owned();
        for _ in 0..=DEEPEST + 1 {
            path.push("d");
        }
        fs::create_dir_all(path).unwrap();
        assert!(!fits(place.path(), u64::MAX));
    }
}
