//! Refs of repositories, as git lists them: a second witness of what a backup must have.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

/// Commits of the refs of each repository.
pub(super) type RefLists = BTreeMap<String, BTreeMap<String, String>>;

/// Lists the refs of all repositories of a storage.
pub(super) fn list_refs(storage: &Path) -> anyhow::Result<RefLists> {
    let directory = storage.join("repositories");
    let unreadable = || format!("cannot read {}", directory.display());
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(RefLists::new()),
        Err(error) => return Err(error).with_context(unreadable),
    };
    let mut lists = RefLists::new();
    for entry in entries {
        let entry = entry.with_context(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".git")
            && let Some(refs) = list_repository_refs(&entry.path())?
        {
            lists.insert(name, refs);
        }
    }
    Ok(lists)
}

/// Lists the refs of one repository. Returns `None` if it was removed meanwhile.
fn list_repository_refs(repository: &Path) -> anyhow::Result<Option<BTreeMap<String, String>>> {
    let listed = git_command(repository)
        .args(["for-each-ref", "--format=%(objectname) %(refname)"])
        .stdin(Stdio::null())
        .output()
        .context("git could not be started")?;
    if !repository.is_dir() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&listed.stderr);
    ensure!(
        listed.status.success(),
        "the refs of {} cannot be listed: {}",
        repository.display(),
        said.trim()
    );
    let text = String::from_utf8_lossy(&listed.stdout);
    let refs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(Some(refs.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect()))
}

/// Returns the refs that led to the same commit before and after: they did at each moment in between, too.
pub(super) fn stable_refs(before: RefLists, after: &RefLists) -> RefLists {
    let stable = before.into_iter().filter_map(|(repository, mut refs)| {
        let later = after.get(&repository)?;
        refs.retain(|name, commit| later.get(name) == Some(commit));
        Some((repository, refs))
    });
    stable.collect()
}

/// Compares the refs of a restored storage with those that a backup must have.
pub(super) fn find_lost_refs(expected: &RefLists, restored: &RefLists) -> Vec<String> {
    let lost_of = |repository: &String, refs: &BTreeMap<String, String>| {
        let found = restored.get(repository);
        let is_lost = |(name, commit): &(&String, &String)| {
            found.is_none_or(|found| found.get(*name) != Some(*commit))
        };
        refs.iter().filter(is_lost).map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let lost = expected.iter().filter_map(|(repository, refs)| {
        let lost = lost_of(repository, refs);
        let first = lost.first()?;
        let count = lost.len();
        Some(format!("the repository {repository} lacks {count} refs, the first is {first}"))
    });
    lost.collect()
}

/// Returns a git command that ignores all configuration of the machine.
pub(super) fn git_command(repository: &Path) -> Command {
    let mut command = Command::new("git");
    let path = std::env::join_paths(crate::config::search_path()).unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("HOME", "/nonexistent")
        .args(["-c", "safe.directory=*", "--git-dir"])
        .arg(repository);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(repository: &Path, words: &[&str]) -> String {
        let done = git_command(repository)
            .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.com"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_ref_that_a_restored_repository_lacks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let repository = dir.path().join("repositories/prj_1.git");
        fs::create_dir_all(&repository).unwrap();
        git(&repository, &["init", "--quiet", "--bare"]);
        let tree = git(&repository, &["hash-object", "-t", "tree", "-w", "--stdin"]);
        let commit = git(&repository, &["commit-tree", "-m", "first", &tree]);
        for branch in ["refs/heads/main", "refs/heads/feature/audit.log"] {
            git(&repository, &["update-ref", branch, &commit]);
        }
        let before = list_refs(dir.path()).unwrap();
        let names: Vec<_> = before["prj_1.git"].keys().collect();
        assert_eq!(names, ["refs/heads/feature/audit.log", "refs/heads/main"]);
        assert_eq!(find_lost_refs(&before, &before), Vec::<String>::new());

        fs::remove_file(repository.join("refs/heads/feature/audit.log")).unwrap();
        let after = list_refs(dir.path()).unwrap();
        assert_eq!(
            find_lost_refs(&before, &after),
            ["the repository prj_1.git lacks 1 refs, the first is refs/heads/feature/audit.log"]
        );
        assert_eq!(stable_refs(before, &after), after);
        assert_eq!(stable_refs(after, &RefLists::new()), RefLists::new());
        assert_eq!(list_refs(&repository).unwrap(), RefLists::new());
    }
}
