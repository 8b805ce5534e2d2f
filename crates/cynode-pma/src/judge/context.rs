//! What is known of a project before anything is decided: its files, its own words for agents, or a description of it.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::ids::TaskId;
use cynode_wire::handoffs::ProjectContext;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{decisions::ProjectAnalysed, fence, prompts, unit::is_path};
use crate::desk::{Desk, Trouble};

pub mod words;

/// The name of a brief.
const BRIEF: &str = "PROJECT-BRIEF.md";
/// The files in which a project tells agents about itself; the first that is there is read.
const OWN_WORDS: [&str; 2] = ["CLAUDE.md", "AGENTS.md"];
/// Files that say what a project is made with, the most telling first.
const BUILD_FILES: [&str; 16] = [
    "Cargo.toml",
    "package.json",
    "pyproject.toml",
    "go.mod",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "composer.json",
    "Gemfile",
    "mix.exs",
    "CMakeLists.txt",
    "requirements.txt",
    "Makefile",
    "justfile",
    "README.md",
    "README",
];
/// Most build files that are read.
const MOST_FILES: usize = 3;
/// Most lines of a listing.
const MOST_LINES: usize = 120;

/// The files of a repository, as `git.tree` tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Tree {
    /// The commit.
    #[serde(default)]
    pub commit: String,
    /// What is there.
    #[serde(default)]
    pub entries: Vec<TreeEntry>,
    /// Whether there is more.
    #[serde(default)]
    pub truncated: bool,
}

/// A file or a directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TreeEntry {
    /// Where.
    pub path: String,
    /// `file` or `directory`.
    pub kind: String,
}

impl Tree {
    fn files(&self) -> impl Iterator<Item = &str> {
        let files = self.entries.iter().filter(|entry| entry.kind == "file");
        files.map(|entry| entry.path.as_str())
    }

    /// Whether there is a file of exactly that path.
    pub fn has(&self, path: &str) -> bool {
        self.files().any(|file| file == path)
    }

    /// Whether a path is there, as a file or as what files are in.
    fn knows(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.entries.iter().any(|entry| {
            entry.path == path
                || entry.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Whether nothing was built yet: words about the project, and what surrounds them, but no code.
    pub fn is_bare(&self) -> bool {
        !self.truncated
            && self.files().all(|path| {
                let name = path.rsplit('/').next().unwrap_or(path);
                let words = [".md", ".txt", ".rst", ".adoc", ".png", ".jpg", ".svg", ".pdf"];
                path.starts_with('.')
                    || name.starts_with('.')
                    || words.iter().any(|ending| name.to_lowercase().ends_with(ending))
                    || matches!(name, "LICENSE" | "NOTICE" | "README" | "CODEOWNERS" | "COPYING")
            })
    }

    /// The files, those near the root first, as many as a question bears.
    pub fn listing(&self) -> String {
        let mut files: Vec<&str> = self.files().collect();
        files.sort_by_key(|path| (path.matches('/').count(), *path));
        let mut lines: Vec<String> =
            files.iter().take(MOST_LINES).map(|path| fence::line(path, 200)).collect();
        let more = files.len().saturating_sub(MOST_LINES);
        if self.truncated {
            lines.push("… and more than could be listed".to_owned());
        } else if more > 0 {
            lines.push(format!("… and {more} more"));
        }
        lines.join("\n")
    }
}

/// What a tool that was let through says when something is not there.
fn not_there(trouble: &Trouble, tool: &str) -> bool {
    failed_with(trouble, tool, "not_found")
}

/// Whether a tool came to nothing for that reason. See `GateError::trouble`, which writes these words.
pub(super) fn failed_with(trouble: &Trouble, tool: &str, code: &str) -> bool {
    match trouble {
        Trouble::Permanent(told) => told.starts_with(&format!("`{tool}` failed ({code})")),
        Trouble::Transient(_) | Trouble::Late(_) | Trouble::Paused | Trouble::Refused { .. } => {
            false
        }
    }
}

/// The answer of a tool, or nothing when what was asked for is not there.
async fn asked(desk: &Desk<'_>, tool: &str, arguments: Value) -> Result<Option<Value>, Trouble> {
    match desk.call(tool, arguments).await {
        Ok(value) => Ok(Some(value)),
        Err(trouble) if not_there(&trouble, tool) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// The files of the project; none when it has no repository.
pub async fn look(desk: &Desk<'_>, task: TaskId) -> Result<Tree, Trouble> {
    let project = desk.handoff.context.project.as_ref();
    if project.is_none_or(|project| project.head.is_none()) {
        return Ok(Tree::default());
    }
    let Some(value) = asked(desk, "git.tree", json!({ "task_id": task })).await? else {
        return Ok(Tree::default());
    };
    let mut tree: Tree = serde_json::from_value(value)
        .map_err(|error| Trouble::Transient(format!("`git.tree` gave something else: {error}")))?;
    // Names are data too: those that cannot be pointed to are not looked at.
    tree.entries.retain(|entry| is_path(&entry.path));
    Ok(tree)
}

/// One file of the project.
async fn file(desk: &Desk<'_>, task: TaskId, path: &str) -> Result<Option<String>, Trouble> {
    let found = asked(desk, "git.read", json!({ "task_id": task, "path": path })).await?;
    Ok(found.and_then(|value| Some(value.get("text")?.as_str()?.to_owned())))
}

/// What a brief for a new project says: the file of that name while nothing else was built, or the input itself.
pub async fn brief(
    desk: &Desk<'_>,
    task: TaskId,
    tree: &Tree,
    input: &str,
) -> Result<Option<String>, Trouble> {
    if is_brief(input) {
        return Ok(Some(String::new()));
    }
    if tree.has(BRIEF) && tree.is_bare() {
        return Ok(Some(file(desk, task, BRIEF).await?.unwrap_or_default()));
    }
    Ok(None)
}

/// Whether a text calls itself a project brief in its first line.
pub fn is_brief(input: &str) -> bool {
    let first = input.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let title = first.trim_start_matches(['#', ' ', '*', '`']).to_lowercase();
    title.starts_with("project brief") || title.starts_with("project-brief")
}

/// What is known of the project: its own words where it has some, else a description that is thought up from its files.
pub async fn gather(desk: &Desk<'_>, task: TaskId, tree: &Tree) -> Result<ProjectContext, Trouble> {
    for name in OWN_WORDS {
        if tree.has(name)
            && let Some(text) = file(desk, task, name).await?
            && !text.trim().is_empty()
        {
            return Ok(words::read(&text));
        }
    }
    if tree.is_bare() {
        return Ok(ProjectContext::default());
    }
    let mut files = Vec::new();
    for name in BUILD_FILES {
        if files.len() == MOST_FILES {
            break;
        }
        if tree.has(name)
            && let Some(text) = file(desk, task, name).await?
        {
            files.push((name.to_owned(), text));
        }
    }
    let analysed =
        desk.think::<ProjectAnalysed>(&prompts::analyse_project(&tree.listing(), &files)).await?;
    Ok(described(analysed, tree))
}

/// A description as everybody else has it; places that are not there are left out.
fn described(analysed: ProjectAnalysed, tree: &Tree) -> ProjectContext {
    let ProjectAnalysed { architecture, key_paths, patterns, build_commands } = analysed;
    let key_paths: BTreeMap<_, _> = key_paths
        .into_iter()
        .filter(|place| is_path(&place.path) && tree.knows(&place.path))
        .map(|place| (place.path, fence::line(&place.what, 300)))
        .collect();
    let patterns = patterns
        .into_iter()
        .map(|pattern| (fence::line(&pattern.name, 60), fence::line(&pattern.how, 300)))
        .collect();
    let mut seen = BTreeSet::new();
    let build_commands = build_commands
        .iter()
        .map(|command| fence::line(command, 300))
        .filter(|command| !command.is_empty() && seen.insert(command.clone()))
        .collect();
    let architecture = fence::cut(architecture.trim(), 2_000);
    ProjectContext { claude_md: None, architecture, key_paths, patterns, build_commands }
}

#[cfg(test)]
mod tests;
