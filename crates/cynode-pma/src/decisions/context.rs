//! Project context before any decision: its files, its own instructions for agents, or a description.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::{ids::TaskId, workflow::handoffs::ProjectContext};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    fence,
    planning_trace::{DecidedBy, PlanningTrace},
    prompts,
    types::ProjectAnalysis,
    unit::is_repository_path,
};
use crate::decision_context::{DecisionContext, DecisionError, DecisionKind};

pub mod words;

/// File name of a project brief.
const BRIEF_FILE_NAME: &str = "PROJECT-BRIEF.md";
/// Files with a project's instructions for agents; the first that exists is read.
const AGENT_GUIDE_FILES: [&str; 2] = ["CLAUDE.md", "AGENTS.md"];
/// Build files that identify the toolchain of a project, the most specific first.
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
/// Maximum number of build files that are read.
const MAX_BUILD_FILES: usize = 3;
/// Maximum number of lines of a listing.
const MAX_LISTING_LINES: usize = 120;

/// Files of a repository, as `git.tree` returns them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RepositoryTree {
    /// Id of the commit.
    #[serde(default)]
    pub commit: String,
    /// Files and directories.
    #[serde(default)]
    pub entries: Vec<RepositoryEntry>,
    /// Whether the list is truncated.
    #[serde(default)]
    pub truncated: bool,
}

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RepositoryEntry {
    /// Path in the repository.
    pub path: String,
    /// `file` or `directory`.
    pub kind: String,
}

impl RepositoryTree {
    fn file_paths(&self) -> impl Iterator<Item = &str> {
        let files = self.entries.iter().filter(|entry| entry.kind == "file");
        files.map(|entry| entry.path.as_str())
    }

    /// Returns the number of files.
    pub fn file_count(&self) -> usize {
        self.file_paths().count()
    }

    /// Returns whether a file with exactly that path exists.
    pub fn has_file(&self, path: &str) -> bool {
        self.file_paths().any(|file| file == path)
    }

    /// Returns whether a path exists as a file or directory.
    fn has_path(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.entries.iter().any(|entry| {
            entry.path == path
                || entry.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Returns whether the repository has documents and metadata but no code yet.
    pub fn has_no_code(&self) -> bool {
        !self.truncated
            && self.file_paths().all(|path| {
                let name = path.rsplit('/').next().unwrap_or(path);
                let words = [".md", ".txt", ".rst", ".adoc", ".png", ".jpg", ".svg", ".pdf"];
                path.starts_with('.')
                    || name.starts_with('.')
                    || words.iter().any(|ending| name.to_lowercase().ends_with(ending))
                    || matches!(name, "LICENSE" | "NOTICE" | "README" | "CODEOWNERS" | "COPYING")
            })
    }

    /// Renders the files for a prompt, those near the root first, up to the maximum.
    pub fn render_listing(&self) -> String {
        let mut files: Vec<&str> = self.file_paths().collect();
        files.sort_by_key(|path| (path.matches('/').count(), *path));
        let mut lines: Vec<String> = files
            .iter()
            .take(MAX_LISTING_LINES)
            .map(|path| fence::sanitize_line(path, 200))
            .collect();
        let more = files.len().saturating_sub(MAX_LISTING_LINES);
        if self.truncated {
            lines.push("… and more than could be listed".to_owned());
        } else if more > 0 {
            lines.push(format!("… and {more} more"));
        }
        lines.join("\n")
    }
}

/// Returns whether a tool call failed because the object does not exist.
fn is_not_found(trouble: &DecisionError, tool: &str) -> bool {
    failed_with(trouble, tool, "not_found")
}

/// Returns whether a tool failed with this code. It parses the text that `McpError::into_decision_error` writes.
pub(super) fn failed_with(trouble: &DecisionError, tool: &str, code: &str) -> bool {
    match trouble {
        DecisionError::Permanent(told) => told.starts_with(&format!("`{tool}` failed ({code})")),
        DecisionError::Transient(_)
        | DecisionError::Late(_)
        | DecisionError::Budget(_)
        | DecisionError::Untraced(_)
        | DecisionError::Paused
        | DecisionError::Refused { .. } => false,
    }
}

/// Calls a tool and returns `None` if the object does not exist.
async fn call_optional(
    desk: &DecisionContext<'_>,
    tool: &str,
    arguments: Value,
) -> Result<Option<Value>, DecisionError> {
    match desk.call_tool(tool, arguments).await {
        Ok(value) => Ok(Some(value)),
        Err(trouble) if is_not_found(&trouble, tool) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// Loads the files of the project; `None` if it has no repository.
pub async fn load_tree(
    desk: &DecisionContext<'_>,
    task: TaskId,
) -> Result<RepositoryTree, DecisionError> {
    let project = desk.handoff.context.project.as_ref();
    if project.is_none_or(|project| project.head.is_none()) {
        return Ok(RepositoryTree::default());
    }
    let Some(value) = call_optional(desk, "git.tree", json!({ "task_id": task })).await? else {
        return Ok(RepositoryTree::default());
    };
    let mut tree: RepositoryTree = serde_json::from_value(value).map_err(|error| {
        DecisionError::Transient(format!("`git.tree` gave something else: {error}"))
    })?;
    // File names are untrusted data too: invalid paths are dropped.
    tree.entries.retain(|entry| is_repository_path(&entry.path));
    Ok(tree)
}

/// Reads one file of the project.
pub(super) async fn read_file(
    desk: &DecisionContext<'_>,
    task: TaskId,
    path: &str,
) -> Result<Option<String>, DecisionError> {
    let found = call_optional(desk, "git.read", json!({ "task_id": task, "path": path })).await?;
    Ok(found.and_then(|value| Some(value.get("text")?.as_str()?.to_owned())))
}

/// Returns the brief of a new project: the brief file if there is no code yet, or the input itself.
pub async fn find_brief(
    desk: &DecisionContext<'_>,
    task: TaskId,
    tree: &RepositoryTree,
    input: &str,
) -> Result<Option<String>, DecisionError> {
    if is_brief(input) {
        return Ok(Some(String::new()));
    }
    if tree.has_file(BRIEF_FILE_NAME) && tree.has_no_code() {
        return Ok(Some(read_file(desk, task, BRIEF_FILE_NAME).await?.unwrap_or_default()));
    }
    Ok(None)
}

/// Returns whether a text calls itself a project brief in its first line.
pub fn is_brief(input: &str) -> bool {
    let first = input.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let title = first.trim_start_matches(['#', ' ', '*', '`']).to_lowercase();
    title.starts_with("project brief") || title.starts_with("project-brief")
}

/// Gathers the project context: its own instructions for agents if it has some, else a description that a model derives from its files.
pub(super) async fn gather_project_context(
    desk: &DecisionContext<'_>,
    task: TaskId,
    tree: &RepositoryTree,
    trace: &PlanningTrace<'_>,
) -> Result<ProjectContext, DecisionError> {
    let kind = DecisionKind::AnalyseProject;
    for name in AGENT_GUIDE_FILES {
        if tree.has_file(name)
            && let Some(text) = read_file(desk, task, name).await?
            && !text.trim().is_empty()
        {
            trace.record_observation(&format!("the project has words for agents in {name}"));
            let why = "the project's own words count more than a description";
            trace.record_reason(kind, DecidedBy::Rule, &json!(name), why);
            return Ok(words::parse_agent_guide(&text));
        }
    }
    if tree.has_no_code() {
        trace.record_observation("there is no code yet");
        let why = "there is nothing to describe";
        trace.record_reason(kind, DecidedBy::Rule, &Value::Null, why);
        return Ok(ProjectContext::default());
    }
    let mut files = Vec::new();
    for name in BUILD_FILES {
        if files.len() == MAX_BUILD_FILES {
            break;
        }
        if tree.has_file(name)
            && let Some(text) = read_file(desk, task, name).await?
        {
            files.push((name.to_owned(), text));
        }
    }
    trace.record_observation(&format!("{} build files were read", files.len()));
    let analysed = desk
        .make_decision::<ProjectAnalysis>(&prompts::analyse_project_prompt(
            &tree.render_listing(),
            &files,
        ))
        .await?;
    let context = to_project_context(analysed, tree);
    let decided = json!({ "build_commands": context.build_commands.len() });
    trace.record_reason(kind, DecidedBy::Model, &decided, &context.architecture);
    Ok(context)
}

/// Converts an analysis to a project context; paths that do not exist are left out.
fn to_project_context(analysed: ProjectAnalysis, tree: &RepositoryTree) -> ProjectContext {
    let ProjectAnalysis { architecture, key_paths, patterns, build_commands } = analysed;
    let key_paths: BTreeMap<_, _> = key_paths
        .into_iter()
        .filter(|place| is_repository_path(&place.path) && tree.has_path(&place.path))
        .map(|place| (place.path, fence::sanitize_line(&place.what, 300)))
        .collect();
    let patterns = patterns
        .into_iter()
        .map(|pattern| {
            (fence::sanitize_line(&pattern.name, 60), fence::sanitize_line(&pattern.how, 300))
        })
        .collect();
    let mut seen = BTreeSet::new();
    let build_commands = build_commands
        .iter()
        .map(|command| fence::sanitize_line(command, 300))
        .filter(|command| !command.is_empty() && seen.insert(command.clone()))
        .collect();
    let architecture = fence::truncate_middle(architecture.trim(), 2_000);
    ProjectContext { claude_md: None, architecture, key_paths, patterns, build_commands }
}

#[cfg(test)]
mod tests;
