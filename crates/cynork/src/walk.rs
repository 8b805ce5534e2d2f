//! Walks a directory for the files that an ingest sends.
//!
//! Files that `.gitignore` or `.cynodeignore` exclude are left out, as are version control directories, `.env` files and symbolic links. The
//! order is the same on every machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cynode_core::memory::ingests::{
    MAX_INGEST_FILE_BYTES, MAX_INGEST_FILES, ingestible_text, normalize_ingest_path,
};

use crate::failure::{CliError, CliErrorKind, Result};

/// Files that hold patterns of what is left out.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".cynodeignore"];

/// Directories that are never read.
const SKIPPED_DIRECTORIES: [&str; 4] = [".git", ".hg", ".svn", ".jj"];

/// Maximum depth of directories.
const MAX_DEPTH: usize = 64;

/// The files of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkedFiles {
    /// Paths below the root, with `/` between their parts, and where they are.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// How many files were passed over because they cannot be text, or have a name that cannot be sent.
    pub(crate) skipped: u32,
}

/// Lists the files below a path. A path of one file gives that file.
pub(crate) fn walk_files(root: &Path) -> Result<WalkedFiles> {
    let about = fs::metadata(root).map_err(|error| unreadable(root, &error))?;
    let mut walked = WalkedFiles::default();
    if about.is_file() {
        let name = root.file_name().map(|name| name.to_string_lossy().into_owned());
        walked.add_file(&name.unwrap_or_default(), root.to_owned(), about.len())?;
        return Ok(walked);
    }
    walk_directory(root, "", &IgnoreRules::default(), 0, &mut walked)?;
    Ok(walked)
}

/// Reads the text of a file, or `None` if it is binary, empty or too large.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    Ok(ingestible_text(&bytes).map(str::to_owned))
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(CliErrorKind::Usage, format!("{} cannot be read: {error}", path.display()))
}

impl WalkedFiles {
    fn add_file(&mut self, relative: &str, path: PathBuf, bytes: u64) -> Result<()> {
        let fits = usize::try_from(bytes).is_ok_and(|bytes| bytes <= MAX_INGEST_FILE_BYTES);
        match normalize_ingest_path(relative).filter(|_| fits) {
            Some(normal) => self.files.push((normal, path)),
            None => self.skipped = self.skipped.saturating_add(1),
        }
        if self.files.len() > MAX_INGEST_FILES {
            let what = format!("there are more than {MAX_INGEST_FILES} files");
            let fix = "ingest its directories one by one, or exclude some in .cynodeignore";
            return Err(CliError::new(CliErrorKind::Usage, what).with_fix(fix));
        }
        Ok(())
    }
}

fn walk_directory(
    directory: &Path,
    relative: &str,
    outer: &IgnoreRules,
    depth: usize,
    walked: &mut WalkedFiles,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Ok(());
    }
    let mut rules = outer.clone();
    for name in IGNORE_FILES {
        if let Ok(text) = fs::read_to_string(directory.join(name)) {
            rules.add_rules(relative, &text);
        }
    }
    let entries = fs::read_dir(directory).map_err(|error| unreadable(directory, &error))?;
    let mut entries = entries
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(|error| unreadable(directory, &error))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // The metadata of the entry itself: a link is not followed.
        let about = entry.metadata().map_err(|error| unreadable(&path, &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = if relative.is_empty() { name.clone() } else { format!("{relative}/{name}") };
        if rules.excludes(&below, about.is_dir()) {
            continue;
        }
        if about.is_dir() && !SKIPPED_DIRECTORIES.contains(&name.as_str()) {
            walk_directory(&path, &below, &rules, depth + 1, walked)?;
        } else if about.is_file() && !is_secret_file(&name) {
            walked.add_file(&below, path, about.len())?;
        }
    }
    Ok(())
}

/// Returns whether a file holds variables of an environment, which are often secrets.
fn is_secret_file(name: &str) -> bool {
    name == ".env" || (name.starts_with(".env.") && name != ".env.example")
}

/// One pattern of an ignore file.
#[derive(Clone, Debug)]
struct IgnoreRule {
    /// Directory of the ignore file, below the root.
    base: String,
    parts: Vec<String>,
    only_directories: bool,
    includes: bool,
}

/// The patterns that hold in a directory. Of several that match, the last one counts.
#[derive(Clone, Debug, Default)]
struct IgnoreRules(Vec<IgnoreRule>);

impl IgnoreRules {
    fn add_rules(&mut self, base: &str, text: &str) {
        self.0.extend(text.lines().filter_map(|line| IgnoreRule::parse(base, line)));
    }

    fn excludes(&self, path: &str, is_directory: bool) -> bool {
        let last = self.0.iter().rev().find(|rule| rule.matches(path, is_directory));
        last.is_some_and(|rule| !rule.includes)
    }
}

impl IgnoreRule {
    /// Parses a line as git does. An empty line and a comment are no pattern.
    fn parse(base: &str, line: &str) -> Option<Self> {
        let line = line.trim_end();
        let (includes, pattern) = match line.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, line),
        };
        if pattern.is_empty() || line.starts_with('#') {
            return None;
        }
        let pattern = pattern.strip_prefix('\\').unwrap_or(pattern);
        let (only_directories, pattern) = match pattern.strip_suffix('/') {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        // A slash inside of a pattern ties it to the directory of its file.
        let is_anchored = pattern.contains('/');
        let mut parts: Vec<String> = Vec::new();
        if !is_anchored {
            parts.push("**".to_owned());
        }
        parts.extend(pattern.split('/').filter(|part| !part.is_empty()).map(str::to_owned));
        (!parts.is_empty()).then(|| Self {
            base: base.to_owned(),
            parts,
            only_directories,
            includes,
        })
    }

    fn matches(&self, path: &str, is_directory: bool) -> bool {
        if self.only_directories && !is_directory {
            return false;
        }
        let below = match self.base.as_str() {
            "" => Some(path),
            base => path.strip_prefix(base).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(below) = below else { return false };
        let names: Vec<&str> = below.split('/').collect();
        matches_parts(&self.parts, &names)
    }
}

/// Returns whether a pattern matches a whole path, part by part.
fn matches_parts(parts: &[String], names: &[&str]) -> bool {
    match parts.split_first() {
        None => names.is_empty(),
        Some((part, rest)) if part == "**" => {
            (0..=names.len()).any(|skip| matches_parts(rest, names.get(skip..).unwrap_or_default()))
        }
        Some((part, rest)) => match names.split_first() {
            Some((name, others)) => matches_name(part, name) && matches_parts(rest, others),
            None => false,
        },
    }
}

/// Returns whether a pattern with `*`, `?` and `[…]` matches a whole name.
fn matches_name(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut seen) = (0, 0);
    // Where the last `*` was, and what it has taken: it takes one more when the rest does not match.
    let mut star: Option<(usize, usize)> = None;
    while let Some(letter) = name.get(seen) {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, seen));
            at += 1;
        } else if let Some(next) = match_letter(&pattern, at, *letter) {
            (at, seen) = (next, seen + 1);
        } else if let Some((place, taken)) = star {
            star = Some((place, taken + 1));
            (at, seen) = (place + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|rest| *rest == '*')
}

/// Matches one letter. Returns the place in the pattern after it.
fn match_letter(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => match_class(pattern, at, letter),
        '\\' => (pattern.get(at + 1) == Some(&letter)).then_some(at + 2),
        plain => (*plain == letter).then_some(at + 1),
    }
}

/// Matches a letter against a class such as `[a-z]` or `[!0-9]`. A class without an end is a plain bracket.
fn match_class(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    let inner = pattern.get(at + 1..).unwrap_or_default();
    let Some(length) = inner.iter().skip(1).position(|c| *c == ']').map(|place| place + 1) else {
        return (letter == '[').then_some(at + 1);
    };
    let class = inner.get(..length).unwrap_or_default();
    let (is_negated, class) = match class.split_first() {
        Some(('!' | '^', rest)) => (true, rest),
        _ => (false, class),
    };
    let mut found = false;
    let mut rest = class;
    while let Some((first, tail)) = rest.split_first() {
        match tail {
            ['-', last, others @ ..] => {
                found |= (*first..=*last).contains(&letter);
                rest = others;
            }
            _ => {
                found |= *first == letter;
                rest = tail;
            }
        }
    }
    (found != is_negated).then_some(at + length + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_matched_as_a_shell_does() {
        for (pattern, name) in [
            ("*.md", "a.md"),
            ("*", ""),
            ("a*b*c", "aXbYbZc"),
            ("?ä", "xä"),
            ("[a-c]1", "b1"),
            ("[!a-c]1", "d1"),
            ("\\*", "*"),
            ("[", "["),
        ] {
            assert!(matches_name(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.md", "a.mdx"), ("a*b", "ac"), ("?", ""), ("[a-c]", "d"), ("[!a]", "a")]
        {
            assert!(!matches_name(pattern, name), "{pattern} {name}");
        }
        let long = "a".repeat(2000);
        assert!(!matches_name(&"*a".repeat(500), &format!("{long}b")));
    }

    #[test]
    fn patterns_exclude_as_in_git() {
        let mut rules = IgnoreRules::default();
        rules.add_rules(
            "",
            "# build\ntarget/\n*.log\n!keep.log\n/only-here\ndocs/**/draft.md\n\n\\#odd\n",
        );
        rules.add_rules("web", "/dist\n");
        for (path, is_directory) in [
            ("target", true),
            ("crates/a/target", true),
            ("a.log", false),
            ("deep/er/a.log", false),
            ("only-here", false),
            ("docs/draft.md", false),
            ("docs/a/b/draft.md", false),
            ("#odd", false),
            ("web/dist", true),
        ] {
            assert!(rules.excludes(path, is_directory), "{path}");
        }
        for (path, is_directory) in [
            ("target", false),
            ("keep.log", false),
            ("a/only-here", false),
            ("draft.md", false),
            ("dist", true),
            ("web/a/dist", true),
        ] {
            assert!(!rules.excludes(path, is_directory), "{path}");
        }
    }

    #[test]
    fn a_directory_is_walked_in_order_without_what_is_excluded() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("README.md", "# a");
        write("docs/b.md", "b");
        write("docs/a.md", "a");
        write("docs/.gitignore", "b.md\n");
        write("target/x", "x");
        write(".gitignore", "target/\n");
        write(".git/config", "x");
        write(".env", "KEY=secret");
        write("large.txt", &"x".repeat(MAX_INGEST_FILE_BYTES + 1));
        std::os::unix::fs::symlink("/etc/hostname", place.path().join("link")).unwrap();
        let walked = walk_files(place.path()).unwrap();
        let paths: Vec<&str> = walked.files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [".gitignore", "README.md", "docs/.gitignore", "docs/a.md"],
            "S001-48: the paths are those below the root"
        );
        assert_eq!(walked.skipped, 1);
        let one = walk_files(&place.path().join("docs/b.md")).unwrap();
        assert_eq!(one.files.len(), 1);
        assert_eq!(one.files[0].0, "b.md");
        let failure = walk_files(&place.path().join("nothing")).unwrap_err();
        assert_eq!(failure.kind, CliErrorKind::Usage);
    }
}
