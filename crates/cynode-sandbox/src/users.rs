//! One host user per job: a process that escapes its sandbox has no rights on the host and none over another job.

use std::{
    collections::HashMap,
    fs,
    ops::Range,
    os::unix::fs::{MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::{IoContext, SandboxError, layers::is_whiteout};

/// Assignment of host users to jobs.
pub(super) struct SandboxUsers {
    range: Range<u32>,
    /// File with the next user id, so that after a restart a user who still owns files is not reused at once.
    kept: PathBuf,
    jobs: Mutex<HashMap<String, u32>>,
}

impl SandboxUsers {
    /// Creates the assignment from a range of host users that no one else uses.
    pub(super) fn new(range: Range<u32>, directory: &Path) -> Result<Self, SandboxError> {
        if range.is_empty() || range.start < 1000 {
            return Err(SandboxError::Refused(
                "users of sandboxes need a range of their own".into(),
            ));
        }
        Ok(Self { range, kept: directory.join("next-user"), jobs: Mutex::default() })
    }

    /// Returns the user of a job: its current one, the owner of its files, or a new one.
    pub(super) fn user_of_job(&self, job: &str, owned: Option<&Path>) -> Result<u32, SandboxError> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(user) = jobs.get(job) {
            return Ok(*user);
        }
        let owner = owned.and_then(|path| fs::symlink_metadata(path).ok()).map(|meta| meta.uid());
        let user = match owner.filter(|owner| self.range.contains(owner)) {
            Some(owner) => owner,
            None => self.next(&jobs)?,
        };
        jobs.insert(job.to_owned(), user);
        Ok(user)
    }

    /// Releases the user of a finished job.
    pub(super) fn release_job(&self, job: &str) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(job);
    }

    fn next(&self, taken: &HashMap<String, u32>) -> Result<u32, SandboxError> {
        let kept = fs::read_to_string(&self.kept).ok().and_then(|text| text.trim().parse().ok());
        let mut user = kept.filter(|user| self.range.contains(user)).unwrap_or(self.range.start);
        for _ in self.range.clone() {
            let following = if user + 1 == self.range.end { self.range.start } else { user + 1 };
            if !taken.values().any(|other| *other == user) {
                fs::write(&self.kept, following.to_string())
                    .with_io_context(|| format!("cannot write {}", self.kept.display()))?;
                return Ok(user);
            }
            user = following;
        }
        Err(SandboxError::Refused("every user of the range has a job".into()))
    }
}

/// Changes the owner of a directory tree. The root directory comes last: if it has the owner, the whole tree has, and the call
/// does nothing.
pub fn chown_tree(path: &Path, user: u32) -> Result<(), SandboxError> {
    let meta = read_metadata(path)?;
    if meta.uid() == user {
        return Ok(());
    }
    if meta.is_dir() {
        chown_contents(path, user)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .with_io_context(|| format!("cannot change the mode of {}", path.display()))?;
    } else if meta.nlink() > 1 {
        return Err(SandboxError::Shared(path.to_owned()));
    }
    chown_path(path, user)
}

fn chown_contents(root: &Path, user: u32) -> Result<(), SandboxError> {
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory)
            .with_io_context(|| format!("cannot read {}", directory.display()))?;
        for entry in entries {
            let path =
                entry.with_io_context(|| format!("cannot read {}", directory.display()))?.path();
            let meta = read_metadata(&path)?;
            // The kernel gives all marks of deleted files one inode. Nobody opens them.
            if is_whiteout(&meta) {
                continue;
            }
            if meta.is_dir() {
                open.push(path.clone());
            } else if meta.nlink() > 1 && meta.uid() != user {
                return Err(SandboxError::Shared(path));
            }
            chown_path(&path, user)?;
        }
    }
    Ok(())
}

/// Gives a socket to a user and removes access for everyone else.
pub(super) fn chown_socket(path: &Path, user: u32) -> Result<(), SandboxError> {
    if read_metadata(path)?.uid() == user {
        return Ok(());
    }
    chown_path(path, user)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .with_io_context(|| format!("cannot change the mode of {}", path.display()))
}

/// Checks that a user without groups can reach a path.
pub(super) fn check_reachable(path: &Path, user: u32) -> Result<(), SandboxError> {
    for above in path.ancestors().skip(1) {
        let meta = read_metadata(above)?;
        let bit = if meta.uid() == user { 0o100 } else { 0o001 };
        if meta.mode() & bit == 0 {
            return Err(SandboxError::Unreachable(above.to_owned()));
        }
    }
    Ok(())
}

fn read_metadata(path: &Path) -> Result<fs::Metadata, SandboxError> {
    fs::symlink_metadata(path).with_io_context(|| format!("cannot look at {}", path.display()))
}

fn chown_path(path: &Path, user: u32) -> Result<(), SandboxError> {
    lchown(path, Some(user), Some(user))
        .with_io_context(|| format!("cannot give away {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_keeps_its_user_and_another_job_has_another() {
        let place = tempfile::tempdir().unwrap();
        let users = SandboxUsers::new(5000..5003, place.path()).unwrap();
        let given = ["a", "b", "a", "c"].map(|job| users.user_of_job(job, None).unwrap());
        assert_eq!(given, [5000, 5001, 5000, 5002]);
        assert!(users.user_of_job("d", None).is_err());
        users.release_job("b");
        assert_eq!(users.user_of_job("d", None).unwrap(), 5001);
    }

    #[test]
    fn a_restart_goes_on_where_the_last_one_stopped() {
        let place = tempfile::tempdir().unwrap();
        let first =
            SandboxUsers::new(5000..6000, place.path()).unwrap().user_of_job("a", None).unwrap();
        let second =
            SandboxUsers::new(5000..6000, place.path()).unwrap().user_of_job("b", None).unwrap();
        assert_eq!((first, second), (5000, 5001));
    }

    #[test]
    fn who_owns_the_files_of_a_job_is_its_user_again() {
        let place = tempfile::tempdir().unwrap();
        let owner = fs::metadata(place.path()).unwrap().uid();
        let users = SandboxUsers {
            range: owner..owner + 2,
            kept: place.path().join("n"),
            jobs: Mutex::default(),
        };
        fs::write(&users.kept, (owner + 1).to_string()).unwrap();
        assert_eq!(users.user_of_job("a", Some(place.path())).unwrap(), owner);
    }

    #[test]
    fn what_has_another_name_elsewhere_is_not_given_away() {
        let place = tempfile::tempdir().unwrap();
        let (workspace, mirror) = (place.path().join("w"), place.path().join("object"));
        fs::create_dir(&workspace).unwrap();
        fs::write(&mirror, "x").unwrap();
        fs::hard_link(&mirror, workspace.join("object")).unwrap();
        let refused = chown_tree(&workspace, fs::metadata(&mirror).unwrap().uid() + 1);
        assert!(matches!(refused, Err(SandboxError::Shared(path)) if path.ends_with("w/object")));
    }

    #[test]
    fn a_directory_that_strangers_cannot_enter_is_named() {
        let place = tempfile::tempdir().unwrap();
        let below = place.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let unreachable = check_reachable(&below, u32::MAX - 1);
        assert!(
            matches!(unreachable, Err(SandboxError::Unreachable(path)) if path == place.path())
        );
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(check_reachable(&below, u32::MAX - 1).is_ok());
    }
}
