//! Secrets of a set-up: kept out of its events and of what it leaves behind.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use cynode_core::nodes::JobEventData;
use cynode_wire::nodes::AssignedEnvironment;

use crate::workers::setup_step;

/// Minimum length of a text that is looked for. A shorter one is in too many other texts.
const MIN_SECRET_BYTES: usize = 6;

/// Replacement of a secret in texts.
const REPLACEMENT: &str = "[secret]";

/// Texts that stand for secrets: whole values, and each line of a value with several.
#[derive(Debug)]
pub(super) struct SecretTexts(Vec<String>);

impl SecretTexts {
    /// Collects the secrets of an environment.
    pub(super) fn from_environment(assigned: &AssignedEnvironment) -> Self {
        Self::from_values(assigned.secrets.values().map(|secret| secret.0.as_str()))
    }

    fn from_values<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        let texts = values.flat_map(|value| std::iter::once(value).chain(value.lines()));
        let texts = texts.map(str::trim).filter(|text| text.len() >= MIN_SECRET_BYTES);
        let mut texts: Vec<_> = texts.map(str::to_owned).collect();
        // A text goes before those that are a part of it.
        texts.sort_by(|one, other| other.len().cmp(&one.len()).then(one.cmp(other)));
        texts.dedup();
        Self(texts)
    }

    /// Replaces the secrets in a text.
    pub(super) fn redact_text(&self, mut text: String) -> String {
        for secret in &self.0 {
            if text.contains(secret) {
                text = text.replace(secret, REPLACEMENT);
            }
        }
        text
    }

    /// Replaces the secrets in the output of a program.
    pub(super) fn redact_event(&self, event: JobEventData) -> JobEventData {
        match event {
            JobEventData::Output { stream, text } => {
                JobEventData::Output { stream, text: self.redact_text(text) }
            }
            JobEventData::Note { text } => JobEventData::Note { text: self.redact_text(text) },
            other => other,
        }
    }

    /// Returns a file of a tree that contains a secret, if there is one. It follows no symlink.
    pub(super) fn find_file(&self, tree: &Path) -> io::Result<Option<PathBuf>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut open = vec![tree.to_owned()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    open.push(entry.path());
                } else if kind.is_file()
                    && setup_step::has_any_text(File::open(entry.path())?, &self.0)?
                {
                    return Ok(Some(entry.path()));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_lines_are_replaced_the_longest_first() {
        let secrets =
            SecretTexts::from_values(["line-one\nline-two", "line-one-more", "ab"].into_iter());
        let text = "line-one-more, line-one, line-two, line-one\nline-two, ab".to_owned();
        assert_eq!(secrets.redact_text(text), "[secret], [secret], [secret], [secret], ab");
    }

    #[test]
    fn a_file_with_a_secret_is_found_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a")).unwrap();
        fs::write(&outside, "token=the-secret").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        let secrets = SecretTexts::from_values(["the-secret"].into_iter());
        assert_eq!(secrets.find_file(&tree).unwrap(), None);
        fs::copy(&outside, tree.join("a/config")).unwrap();
        assert_eq!(secrets.find_file(&tree).unwrap(), Some(tree.join("a/config")));
    }
}
