//! Orphan cleanup: removes files that killed processes left behind, once nobody has written to them for an hour.

use std::{
    io::{self, ErrorKind},
    path::Path,
    time::SystemTime,
};

use tokio::fs::{self, DirEntry};

/// How long nobody has written to it: whatever is on its way has come in, or has been given up, long before.
pub(crate) const ORPHAN_MIN_AGE: time::Duration = time::Duration::HOUR;

/// Removes what is in a directory, has a name that begins so, and was last written to before then. Gives how many. Somebody else may
/// do the same at once.
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
