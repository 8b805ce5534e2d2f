//! Files of a repository: their paths, and the texts of some of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::MAX_FILE_BYTES;

/// Paths of a repository and the texts that were read.
pub(crate) struct RepositoryFiles<'repo> {
    paths: BTreeSet<&'repo str>,
    texts: &'repo BTreeMap<String, String>,
}

impl<'repo> RepositoryFiles<'repo> {
    pub(crate) fn new(paths: &'repo [String], texts: &'repo BTreeMap<String, String>) -> Self {
        Self { paths: paths.iter().map(String::as_str).collect(), texts }
    }

    /// Returns whether the repository has the file.
    pub(crate) fn has_file(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// Returns whether the repository has a file below the directory, which ends with a slash.
    pub(crate) fn has_directory(&self, directory: &str) -> bool {
        self.paths.iter().any(|path| path.starts_with(directory))
    }

    /// Returns the text of a file, unless it is missing or too large.
    pub(crate) fn text(&self, path: &str) -> Option<&'repo str> {
        self.texts.get(path).map(String::as_str).filter(|text| text.len() <= MAX_FILE_BYTES)
    }

    /// Returns the paths that a condition holds for, sorted.
    pub(crate) fn matching(
        &self,
        condition: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &'repo str> {
        self.paths.iter().copied().filter(move |path| condition(path))
    }

    /// Returns the files whose text is too large.
    pub(crate) fn unreadable(&self) -> impl Iterator<Item = &'repo str> {
        let large = self.texts.iter().filter(|(_, text)| text.len() > MAX_FILE_BYTES);
        large.map(|(path, _)| path.as_str())
    }
}
