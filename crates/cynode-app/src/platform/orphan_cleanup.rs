//! Orphan cleanup: removes files that killed processes left behind, once nobody has written to them for an hour.

use std::{
    io::{self, ErrorKind},
    path::Path,
    time::SystemTime,
};

use tokio::fs::{self, DirEntry};

/// Minimum age of an orphan since its last write. Any upload in progress has completed or failed long before.
pub(crate) const ORPHAN_MIN_AGE: time::Duration = time::Duration::HOUR;

/// Removes the entries of a directory whose names have the prefix and that were last written before a time. Returns
/// their number. Several processes may do this at once.
pub(crate) async fn remove_orphans(
    directory: &Path,
    begins: &str,
    before: SystemTime,
) -> io::Result<u64> {
    let mut entries = match fs::read_dir(directory).await {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    while let Some(entry) = entries.next_entry().await? {
        if !entry.file_name().to_string_lossy().starts_with(begins) {
            continue;
        }
        match remove_orphan(&entry, before).await {
            Ok(gone) => removed += u64::from(gone),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

async fn remove_orphan(entry: &DirEntry, before: SystemTime) -> io::Result<bool> {
    let about = entry.metadata().await?;
    if about.modified()? >= before {
        return Ok(false);
    }
    if about.is_dir() {
        fs::remove_dir_all(entry.path()).await?;
    } else {
        fs::remove_file(entry.path()).await?;
    }
    Ok(true)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
