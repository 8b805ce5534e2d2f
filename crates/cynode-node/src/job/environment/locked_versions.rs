//! Versions that the lock files of a commit name. The package proxy lets set-up fetch them even if they were yanked since.

use std::{collections::BTreeSet, fs, path::Path};

use cynode_core::environments::PackageSource;
use serde::Deserialize;

/// Maximum size of a lock file that is read.
const MAX_LOCK_FILE_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Deserialize)]
struct CargoLock {
    #[serde(default)]
    package: Vec<LockedCrate>,
}

#[derive(Deserialize)]
struct LockedCrate {
    name: String,
    version: String,
}

/// Returns the versions that lock files name, as `SOURCE:PACKAGE==VERSION`. A file that cannot be read names none.
pub(super) fn find_locked_versions(workspace: &Path, lock_files: &[String]) -> BTreeSet<String> {
    lock_files.iter().flat_map(|path| read_locked_versions(&workspace.join(path))).collect()
}

fn read_locked_versions(path: &Path) -> Vec<String> {
    // The files are those of a commit: a link could lead anywhere.
    let is_plain = |meta: fs::Metadata| meta.is_file() && meta.len() <= MAX_LOCK_FILE_BYTES;
    if !fs::symlink_metadata(path).is_ok_and(is_plain) {
        return Vec::new();
    }
    let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
    if path.file_name().is_some_and(|name| name == "Cargo.lock") {
        list_crates(&text)
    } else {
        list_requirements(&text)
    }
}

fn list_crates(text: &str) -> Vec<String> {
    let lock = toml::from_str::<CargoLock>(text).map(|lock| lock.package).unwrap_or_default();
    let source = PackageSource::Crates.as_str();
    lock.iter().map(|it| format!("{source}:{}=={}", it.name, it.version)).collect()
}

/// Reads lines such as `six==1.17.0`, of requirements and constraints.
fn list_requirements(text: &str) -> Vec<String> {
    let source = PackageSource::Pypi.as_str();
    let pins = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once("==")?;
        let version = rest.split([' ', ';', '\\', ',', '#']).next()?.trim();
        let name = name.split('[').next()?.trim().to_ascii_lowercase().replace(['_', '.'], "-");
        let plain = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        (plain(&name) && plain(version)).then(|| format!("{source}:{name}=={version}"))
    });
    pins.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn versions_come_from_lock_files_and_from_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let lock = "version = 3\n[[package]]\nname = \"textwrap\"\nversion = \"0.15.1\"\n";
        fs::write(place.path().join("Cargo.lock"), lock).unwrap();
        let pins = "Six==1.17.0 ; python_version > '3'\nPy_YAML[c]==6.0.2 \\\n# x\nrequests>=2\n";
        fs::write(place.path().join("requirements.txt"), pins).unwrap();
        symlink(place.path().join("requirements.txt"), place.path().join("link.txt")).unwrap();
        let found = |files: &[&str]| {
            let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
            find_locked_versions(place.path(), &files).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(
            found(&["Cargo.lock", "requirements.txt", "missing"]),
            ["crates:textwrap==0.15.1", "pypi:py-yaml==6.0.2", "pypi:six==1.17.0"]
        );
        assert_eq!(found(&["link.txt"]), Vec::<String>::new());
    }
}
