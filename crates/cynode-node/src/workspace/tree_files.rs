//! Files of commits and of layers on the host.
//!
//! The trees were written by jobs: nothing here follows a symlink, and no process of the job is alive any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};

/// Minimum size with which a name counts. It bounds the number of names, too.
const MIN_ENTRY_BYTES: u64 = 4096;

/// Files of a commit: paths with the ids of their blobs, and the directories above them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TrackedFiles {
    pub(crate) blobs: BTreeMap<Vec<u8>, String>,
    pub(crate) directories: BTreeSet<Vec<u8>>,
}

impl TrackedFiles {
    /// Parses a recursive listing of git: mode, kind and object, a tab, the path, and a NUL byte per file.
    pub(crate) fn parse_listing(listing: &[u8]) -> Self {
        let mut files = Self::default();
        for entry in listing.split(|byte| *byte == 0) {
            let mut halves = entry.splitn(2, |byte| *byte == b'\t');
            let (Some(head), Some(path)) = (halves.next(), halves.next()) else { continue };
            files.directories.extend(parent_paths(path).map(<[u8]>::to_vec));
            let head = String::from_utf8_lossy(head);
            let mut words = head.split(' ').skip(1);
            match (words.next(), words.next()) {
                (Some("blob"), Some(id)) => {
                    files.blobs.insert(path.to_vec(), id.to_owned());
                }
                // A submodule is a directory.
                _ => {
                    files.directories.insert(path.to_vec());
                }
            }
        }
        files
    }
}

/// Returns the directories above a path, the nearest first.
fn parent_paths(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
    slashes.filter_map(|(at, _)| path.get(..at))
}

/// Returns the directories above some paths.
pub(crate) fn directories_above<'a>(
    paths: impl IntoIterator<Item = &'a Vec<u8>>,
) -> BTreeSet<Vec<u8>> {
    paths.into_iter().flat_map(|path| parent_paths(path)).map(<[u8]>::to_vec).collect()
}

/// An entry below the top of a tree.
struct TreeEntry {
    path: PathBuf,
    /// Path below the top.
    relative: Vec<u8>,
    kind: fs::FileType,
}

/// Lists a directory, without the repository at the top.
fn list_directory(directory: &Path, relative: &[u8]) -> io::Result<Vec<TreeEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if relative.is_empty() && name == ".git" {
            continue;
        }
        let mut below = relative.to_vec();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(name.as_bytes());
        entries.push(TreeEntry { path: entry.path(), relative: below, kind: entry.file_type()? });
    }
    Ok(entries)
}

/// Modification time of files that were not changed since a commit.
#[derive(Debug)]
pub(crate) struct SourceAge {
    /// The time, in seconds of the wall clock.
    pub(crate) seconds: u64,
    /// Files that were changed since, and directories in which any file may have been.
    pub(crate) changed: BTreeSet<Vec<u8>>,
}

/// Sets the modification time of everything in a new workspace, except for changed paths and the directories above them.
pub(crate) fn set_source_times(
    workspace: &Path,
    seconds: u64,
    changed: &BTreeSet<Vec<u8>>,
) -> io::Result<()> {
    set_source_ages(workspace, &[SourceAge { seconds, changed: changed.clone() }])
}

/// Sets the modification times of everything in a new workspace: the first age since which a path was not changed. What was changed
/// since all of them stays as it is.
pub(crate) fn set_source_ages(workspace: &Path, ages: &[SourceAge]) -> io::Result<()> {
    let ages: Vec<_> = ages
        .iter()
        .map(|age| {
            let seconds = i64::try_from(age.seconds).unwrap_or(i64::MAX);
            (modification_times(seconds, 0), &age.changed, directories_above(&age.changed))
        })
        .collect();
    let mut open = vec![(workspace.to_owned(), Vec::new(), 0)];
    while let Some((directory, relative, first)) = open.pop() {
        for entry in list_directory(&directory, &relative)? {
            let possible = || ages.iter().enumerate().skip(first);
            let own = possible().find(|(_, (_, changed, above))| {
                !changed.contains(&entry.relative) && !above.contains(&entry.relative)
            });
            if let Some((_, (times, ..))) = own {
                set_times(&entry.path, times)?;
            }
            if !entry.kind.is_dir() {
                continue;
            }
            let below = possible().find(|(_, (_, changed, _))| !changed.contains(&entry.relative));
            if let Some((at, _)) = below {
                open.push((entry.path, entry.relative, at));
            }
        }
    }
    Ok(())
}

fn modification_times(tv_sec: i64, nanoseconds: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec, tv_nsec: nanoseconds },
    }
}

fn set_times(path: &Path, times: &Timestamps) -> io::Result<()> {
    Ok(rustix::fs::utimensat(CWD, path, times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// What a set-up made in its workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SetupRemains {
    /// Patterns of git for the topmost paths that it made.
    pub(crate) patterns: Vec<String>,
    /// Tracked files that it wrote or removed. Their content may be the same.
    pub(crate) touched: Vec<Vec<u8>>,
    /// Tracked files of [`SetupRemains::touched`] that are plain files, with their content's place.
    pub(crate) rewritten: BTreeMap<Vec<u8>, PathBuf>,
}

/// Finds what a set-up made in a workspace whose tracked files all had one modification time.
pub(crate) fn find_setup_remains(
    workspace: &Path,
    tracked: &TrackedFiles,
    seconds: u64,
) -> io::Result<SetupRemains> {
    let mut remains = SetupRemains::default();
    let mut missing: BTreeSet<&Vec<u8>> = tracked.blobs.keys().collect();
    let mut open = vec![(workspace.to_owned(), Vec::new())];
    while let Some((directory, relative)) = open.pop() {
        for entry in list_directory(&directory, &relative)? {
            let is_dir = entry.kind.is_dir();
            if tracked.blobs.contains_key(&entry.relative) {
                missing.remove(&entry.relative);
                let meta = fs::symlink_metadata(&entry.path)?;
                let same = u64::try_from(meta.mtime()).is_ok_and(|time| time == seconds)
                    && meta.mtime_nsec() == 0
                    && !is_dir;
                if !same {
                    if meta.is_file() {
                        remains.rewritten.insert(entry.relative.clone(), entry.path);
                    }
                    remains.touched.push(entry.relative);
                }
            } else if is_dir && tracked.directories.contains(&entry.relative) {
                open.push((entry.path, entry.relative));
            } else if !is_dir || fs::read_dir(&entry.path)?.next().is_some() {
                remains.patterns.push(to_git_pattern(&entry.relative, is_dir));
            }
        }
    }
    remains.touched.extend(missing.into_iter().cloned());
    remains.touched.sort_unstable();
    remains.patterns.sort_unstable();
    Ok(remains)
}

/// Removes the repository and the tracked files from a workspace, and the directories that are empty then.
pub(crate) fn remove_tracked_files(workspace: &Path, tracked: &TrackedFiles) -> io::Result<()> {
    remove_path(&workspace.join(".git"))?;
    remove_tracked_below(workspace, &[], tracked)
}

fn remove_tracked_below(
    directory: &Path,
    relative: &[u8],
    tracked: &TrackedFiles,
) -> io::Result<()> {
    for entry in list_directory(directory, relative)? {
        if tracked.blobs.contains_key(&entry.relative) {
            remove_path(&entry.path)?;
        } else if entry.kind.is_dir() && tracked.directories.contains(&entry.relative) {
            // The depth is that of the commit, which git limits.
            remove_tracked_below(&entry.path, &entry.relative, tracked)?;
            match fs::remove_dir(&entry.path) {
                Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes a file, a symlink or a whole directory, if it is there.
fn remove_path(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a directory with everything in it. It does not call itself, as the standard library does: a tree of a job may be so deep
/// that the stack of the node would not suffice. One that is deeper than a path can say is an error.
fn remove_tree(path: &Path) -> io::Result<()> {
    let mut directories = vec![path.to_owned()];
    let mut at = 0;
    while let Some(directory) = directories.get(at).cloned() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        at += 1;
    }
    directories.iter().rev().try_for_each(fs::remove_dir)
}

/// Returns whether the files of a tree fit into a number of bytes when they are copied or read: every name counts with the whole
/// length of its file. Holes and hard links take no disk space until then.
pub(crate) fn fits_when_copied(tree: &Path, bytes_left: &mut u64) -> io::Result<bool> {
    let mut open = vec![tree.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = match fs::read_dir(&directory) {
            // A node that is not root opens a directory that set-up has closed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
                fs::read_dir(&directory)?
            }
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let meta = fs::symlink_metadata(&path)?;
            let length = if meta.is_file() { meta.len() } else { 0 };
            match bytes_left.checked_sub(length.max(MIN_ENTRY_BYTES)) {
                Some(left) => *bytes_left = left,
                None => return Ok(false),
            }
            if meta.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(true)
}

/// Returns the pattern of git that matches exactly this path. A byte that is no text matches any byte.
pub(crate) fn to_git_pattern(path: &[u8], is_dir: bool) -> String {
    let mut pattern = "/".to_owned();
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\n' | '\r' | '\0' => pattern.push('?'),
                '\\' | '*' | '?' | '[' | ' ' => pattern.extend(['\\', letter]),
                letter => pattern.push(letter),
            }
        }
        pattern.extend(chunk.invalid().iter().map(|_| '?'));
    }
    if is_dir {
        pattern.push('/');
    }
    pattern
}

/// Copies what is in one tree and not in the other. Modes and modification times are kept, and blocks are shared where the file system
/// can. Everything that is no file, directory or symlink is left out.
pub(crate) fn copy_missing_files(from: &Path, to: &Path) -> io::Result<()> {
    let mut open = vec![(from.to_owned(), to.to_owned())];
    let mut made = Vec::new();
    while let Some((from, to)) = open.pop() {
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let meta = fs::symlink_metadata(&source)?;
            let there = match fs::symlink_metadata(&target) {
                Ok(there) => Some(there),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            match there {
                Some(there) if there.is_dir() && meta.is_dir() => open.push((source, target)),
                Some(_) => {}
                None if meta.is_dir() => {
                    fs::create_dir(&target)?;
                    made.push((target.clone(), meta));
                    open.push((source, target));
                }
                None if meta.is_file() => {
                    fs::copy(&source, &target)?;
                    set_times(&target, &modification_times(meta.mtime(), meta.mtime_nsec()))?;
                }
                None if meta.is_symlink() => {
                    symlink(fs::read_link(&source)?, &target)?;
                    set_times(&target, &modification_times(meta.mtime(), meta.mtime_nsec()))?;
                }
                None => {}
            }
        }
    }
    // A directory gets its mode and time after everything in it.
    for (target, meta) in made.into_iter().rev() {
        fs::set_permissions(&target, fs::Permissions::from_mode(meta.mode() & 0o777))?;
        set_times(&target, &modification_times(meta.mtime(), meta.mtime_nsec()))?;
    }
    Ok(())
}

/// Formats a path for people.
pub(crate) fn display_path(path: &[u8]) -> String {
    OsStr::from_bytes(path).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: u64 = 1_700_000_000;

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn set_of(paths: &[&str]) -> BTreeSet<Vec<u8>> {
        paths.iter().map(|path| path.as_bytes().to_vec()).collect()
    }

    fn listing(paths: &[&str]) -> Vec<u8> {
        let lines = paths.iter().map(|path| format!("100644 blob a{path}b\t{path}\0"));
        lines.collect::<String>().into_bytes()
    }

    #[test]
    fn a_listing_is_files_and_the_directories_above_them() {
        let listing = b"100644 blob ab12\tsrc/a b.c\x00120000 blob cd34\tlink\x00160000 commit ef56\tlib/sub\0";
        let files = TrackedFiles::parse_listing(listing);
        let blobs = [("src/a b.c", "ab12"), ("link", "cd34")];
        let blobs = blobs.map(|(path, id)| (path.as_bytes().to_vec(), id.to_owned())).into();
        let directories = set_of(&["src", "lib", "lib/sub"]);
        assert_eq!(files, TrackedFiles { blobs, directories });
    }

    #[test]
    fn unchanged_files_get_the_time_and_changed_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/b/changed", "a/same", "c/same"] {
            put(&dir.path().join(name), "x");
        }
        put(&dir.path().join(".git/config"), "x");
        symlink("/etc/passwd", dir.path().join("link")).unwrap();
        set_source_times(dir.path(), THEN, &set_of(&["a/b/changed"])).unwrap();
        let names = ["a", "a/b", "a/b/changed", "a/same", "c", "c/same", "link", ".git/config"];
        let old = names.map(|name| {
            let meta = fs::symlink_metadata(dir.path().join(name)).unwrap();
            u64::try_from(meta.mtime()).unwrap() == THEN
        });
        assert_eq!(old, [false, false, false, true, true, true, true, false]);
        assert_ne!(fs::metadata("/etc/passwd").unwrap().mtime(), i64::try_from(THEN).unwrap());
    }

    #[test]
    fn a_file_gets_the_first_age_since_which_it_was_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["same", "later/file", "new/file", "tests/any/file"] {
            put(&dir.path().join(name), "x");
        }
        let first = set_of(&["later/file", "new/file", "tests"]);
        let second = set_of(&["new/file", "tests"]);
        let ages = [
            SourceAge { seconds: THEN, changed: first },
            SourceAge { seconds: THEN + 9, changed: second },
        ];
        set_source_ages(dir.path(), &ages).unwrap();
        let names = ["same", "later", "later/file", "new", "new/file", "tests", "tests/any/file"];
        let then = i64::try_from(THEN).unwrap();
        let found = names.map(|name| {
            let after = fs::metadata(dir.path().join(name)).unwrap().mtime() - then;
            if after > 9 { 99 } else { after }
        });
        assert_eq!(found, [0, 9, 9, 99, 99, 99, 99]);
    }

    #[test]
    fn what_set_up_made_is_told_from_what_the_commit_has() {
        let dir = tempfile::tempdir().unwrap();
        let tracked = TrackedFiles::parse_listing(&listing(&[
            "package.json",
            "src/main.c",
            "src/gone.c",
            "docs/page",
        ]));
        for name in ["package.json", "src/main.c", "docs/page", ".git/HEAD"] {
            put(&dir.path().join(name), "x");
        }
        set_source_times(dir.path(), THEN, &BTreeSet::new()).unwrap();
        put(&dir.path().join("package.json"), "changed");
        put(&dir.path().join("src/main.o"), "x");
        put(&dir.path().join("node_modules/[a]/b"), "x");
        fs::create_dir(dir.path().join("empty")).unwrap();
        let remains = find_setup_remains(dir.path(), &tracked, THEN).unwrap();
        let expected = SetupRemains {
            patterns: vec!["/node_modules/".to_owned(), "/src/main.o".to_owned()],
            touched: vec![b"package.json".to_vec(), b"src/gone.c".to_vec()],
            rewritten: [(b"package.json".to_vec(), dir.path().join("package.json"))].into(),
        };
        assert_eq!(remains, expected);
        remove_tracked_files(dir.path(), &tracked).unwrap();
        let there = [".git", "package.json", "docs", "src/main.c", "src/main.o", "node_modules"];
        let there = there.map(|name| dir.path().join(name).exists());
        assert_eq!(there, [false, false, false, false, true, true]);
    }

    #[test]
    fn a_directory_that_became_a_symlink_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, work) = (dir.path().join("outside"), dir.path().join("work"));
        put(&outside.join("main.c"), "keep");
        fs::create_dir(&work).unwrap();
        symlink(&outside, work.join("src")).unwrap();
        let tracked = TrackedFiles::parse_listing(&listing(&["src/main.c"]));
        let remains = find_setup_remains(&work, &tracked, THEN).unwrap();
        assert_eq!(remains.patterns, ["/src"]);
        remove_tracked_files(&work, &tracked).unwrap();
        put(&dir.path().join("layer/src/new.c"), "new");
        copy_missing_files(&dir.path().join("layer"), &work).unwrap();
        let names: Vec<_> =
            fs::read_dir(&outside).unwrap().flatten().map(|it| it.file_name()).collect();
        assert_eq!(names, ["main.c"]);
    }

    #[test]
    fn a_deep_tree_is_removed_and_a_link_in_it_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        put(&outside, "keep");
        put(&tree.join("a/".repeat(500)).join("file"), "x");
        symlink(&outside, tree.join("a/link")).unwrap();
        remove_path(&tree).unwrap();
        assert_eq!(
            (tree.exists(), fs::read_to_string(&outside).unwrap().as_str()),
            (false, "keep")
        );
    }

    #[test]
    fn holes_and_further_names_of_a_file_count_as_they_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        put(&tree.join("hole"), "");
        fs::OpenOptions::new()
            .write(true)
            .open(tree.join("hole"))
            .unwrap()
            .set_len(10_000)
            .unwrap();
        fs::hard_link(tree.join("hole"), tree.join("name")).unwrap();
        let fits = |mut bytes: u64| fits_when_copied(&tree, &mut bytes).unwrap();
        assert_eq!((fits(20_000), fits(19_999)), (true, false));
    }

    #[test]
    fn odd_names_are_quoted_for_git() {
        assert_eq!(to_git_pattern(b"a b/[x]*\\\n", false), "/a\\ b/\\[x]\\*\\\\?");
        assert_eq!(to_git_pattern(b"\xff\xfe!", true), "/??!/");
    }

    #[test]
    fn a_copy_adds_what_is_missing_and_keeps_times_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        put(&from.join("bin/tool"), "tool");
        put(&from.join("shared"), "layer");
        put(&to.join("shared"), "own");
        symlink("bin/tool", from.join("link")).unwrap();
        fs::set_permissions(from.join("bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        set_source_times(&from, THEN, &BTreeSet::new()).unwrap();
        copy_missing_files(&from, &to).unwrap();
        let meta = fs::metadata(to.join("bin/tool")).unwrap();
        assert_eq!((meta.mode() & 0o777, meta.mtime()), (0o755, i64::try_from(THEN).unwrap()));
        assert_eq!(fs::metadata(to.join("bin")).unwrap().mtime(), i64::try_from(THEN).unwrap());
        assert_eq!(fs::read_to_string(to.join("shared")).unwrap(), "own");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("bin/tool"));
    }
}
