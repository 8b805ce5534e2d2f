//! Directory of the segment files. Several processes may share it.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::{SegmentFile, SegmentFrame, SegmentHeader};
use crate::AuditEntry;

pub(super) const SEGMENT_EXTENSION: &str = "wal";
const DAMAGED_EXTENSION: &str = "damaged";
const LOCK_FILE_NAME: &str = "lock";

/// Directory of the segment files.
///
/// A process holds the lock of the directory only briefly: while it creates and locks a new file, and while it looks for orphans. So no
/// process claims a file between its creation and its locking.
#[derive(Debug)]
pub(crate) struct SegmentDirectory {
    path: PathBuf,
    handle: File,
    lock: File,
}

/// A file whose process is dead. This process holds it now, if it can be opened at all.
#[derive(Debug)]
pub(crate) struct OrphanedSegment {
    pub(crate) path: PathBuf,
    pub(crate) file: io::Result<File>,
}

impl SegmentDirectory {
    /// Opens the directory. Creates it if it does not exist, readable by its owner only.
    pub(crate) fn open_directory(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let handle = File::open(path)?;
        let lock = segment_open_options().create(true).open(path.join(LOCK_FILE_NAME))?;
        Ok(Self { path: path.to_owned(), handle, lock })
    }

    /// Creates and locks the file of a new chain and writes the open calls into it.
    pub(crate) fn create_segment(
        &self,
        header: &SegmentHeader,
        carried: &[AuditEntry],
    ) -> io::Result<SegmentFile> {
        let path = self.path.join(format!("{}.{SEGMENT_EXTENSION}", header.chain.simple()));
        let mut frames = Vec::new();
        SegmentFrame::Header(header.clone()).append_to(&mut frames);
        for entry in carried {
            SegmentFrame::Carried(entry.clone()).append_to(&mut frames);
        }
        let _held = self.lock_directory()?;
        let file = segment_open_options().create_new(true).open(&path)?;
        let made = self.lock_and_write(&file, &frames);
        if let Err(error) = made {
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(SegmentFile::new(path, file, frames.len() as u64))
    }

    /// Removes a file durably, so that a power loss does not bring it back.
    pub(crate) fn remove_segment(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)?;
        self.handle.sync_all()
    }

    fn lock_and_write(&self, mut file: &File, frames: &[u8]) -> io::Result<()> {
        flock(file, FlockOperation::NonBlockingLockExclusive)?;
        io::Write::write_all(&mut file, frames)?;
        file.sync_data()?;
        // The name of the file must survive a power loss, as its content does.
        self.handle.sync_all()
    }

    /// Claims every file that no living process holds.
    pub(crate) fn claim_orphans(&self) -> io::Result<Vec<OrphanedSegment>> {
        let _held = self.lock_directory()?;
        let mut taken = Vec::new();
        for item in std::fs::read_dir(&self.path)? {
            let path = item?.path();
            if path.extension().is_some_and(|extension| extension == SEGMENT_EXTENSION) {
                taken.extend(
                    lock_orphan(&path).transpose().map(|file| OrphanedSegment { path, file }),
                );
            }
        }
        Ok(taken)
    }

    fn lock_directory(&self) -> io::Result<DirectoryLock<'_>> {
        flock(&self.lock, FlockOperation::LockExclusive)?;
        Ok(DirectoryLock(&self.lock))
    }
}

/// Renames a file that must neither be lost nor be read again.
pub(crate) fn quarantine_segment(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension(DAMAGED_EXTENSION);
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

struct DirectoryLock<'a>(&'a File);

impl Drop for DirectoryLock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Opens and locks a file. Returns `None` if a living process holds it.
fn lock_orphan(path: &Path) -> io::Result<Option<File>> {
    let file = match segment_open_options().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // The process may have removed the file between the opening and the locking.
    let still_there = file.metadata()?.nlink() > 0;
    Ok(still_there.then_some(file))
}

fn segment_open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600);
    options
}
