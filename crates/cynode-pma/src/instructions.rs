//! Instruction bundle of a role: a directory of Markdown files, read once at start.
//!
//! The first file by name is the baseline (identity and limits of the agent); the rest are its instructions. A bundle
//! that is missing, empty or incomplete stops the start. No role falls back to the bundle of the other.

use std::path::{Component, Path, PathBuf};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::role::PmaRole;

/// Default directory of the bundles.
pub const DEFAULT_INSTRUCTIONS_DIR: &str = "instructions";

/// Maximum size of a bundle.
const MAX_BUNDLE_BYTES: u64 = 256 * 1024;

/// Headings that every bundle must have, in three groups: contracts, duties and their limits, references.
const REQUIRED_HEADINGS: [&str; 5] = [
    "## Output contract",
    "## Tool-use contract",
    "## Responsibilities",
    "## Non-goals",
    "## References",
];

/// Instructions of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstructionBundle {
    /// Role of the bundle.
    pub role: PmaRole,
    /// Identity of the agent: part 1 of every composition.
    pub baseline: String,
    /// Remaining instructions: part 2.
    pub instructions: String,
    /// SHA-256 of the whole bundle, in hexadecimal.
    pub digest: String,
}

/// Paths of the bundles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstructionPaths {
    /// Directory of both bundles.
    pub root: PathBuf,
    /// Bundle of the project manager, if it is elsewhere.
    pub project_manager: Option<PathBuf>,
    /// Bundle of the analyst, if it is elsewhere.
    pub project_analyst: Option<PathBuf>,
}

/// Error of loading a bundle.
#[derive(Debug, thiserror::Error)]
pub enum InstructionsError {
    /// The bundle cannot be read.
    #[error("the instructions of {role} cannot be read at {}", path.display())]
    Unreadable {
        /// Role of the bundle.
        role: PmaRole,
        /// Path of the bundle.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: std::io::Error,
    },
    /// The bundle is empty.
    #[error("the instructions of {role} at {} are empty: Markdown files with text are needed", path.display())]
    Empty {
        /// Role of the bundle.
        role: PmaRole,
        /// Path of the bundle.
        path: PathBuf,
    },
    /// The bundle is too large for a model.
    #[error("the instructions of {role} at {} have more than {MAX_BUNDLE_BYTES} bytes", path.display())]
    TooLong {
        /// Role of the bundle.
        role: PmaRole,
        /// Path of the bundle.
        path: PathBuf,
    },
    /// A required section is missing.
    #[error("the instructions of {role} at {} lack the section `{heading}`", path.display())]
    Incomplete {
        /// Role of the bundle.
        role: PmaRole,
        /// Path of the bundle.
        path: PathBuf,
        /// Missing heading.
        heading: &'static str,
    },
    /// Both roles would get the same bundle.
    #[error("both roles would read {}: each role has a bundle of its own, unless both paths are set", path.display())]
    Shared {
        /// Path of the bundle.
        path: PathBuf,
    },
}

impl Default for InstructionPaths {
    fn default() -> Self {
        Self {
            root: PathBuf::from(DEFAULT_INSTRUCTIONS_DIR),
            project_manager: None,
            project_analyst: None,
        }
    }
}

impl InstructionPaths {
    /// Returns the bundle path of a role. It depends only on the settings, and is never the other role's path unless both settings
    /// name it.
    pub fn path_for_role(&self, role: PmaRole) -> Result<PathBuf, InstructionsError> {
        let place = |role: PmaRole| match self.configured_path(role) {
            Some(path) => normalize_path(path),
            None => normalize_path(&self.root.join(role.as_str())),
        };
        let (manager, analyst) = (place(PmaRole::ProjectManager), place(PmaRole::ProjectAnalyst));
        let both_set = PmaRole::ALL.into_iter().all(|role| self.configured_path(role).is_some());
        // Two names of one directory count as one directory.
        let one = |a: &Path, b: &Path| {
            a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
        };
        if !both_set && one(&manager, &analyst) {
            return Err(InstructionsError::Shared { path: manager });
        }
        Ok(match role {
            PmaRole::ProjectManager => manager,
            PmaRole::ProjectAnalyst => analyst,
        })
    }

    const fn configured_path(&self, role: PmaRole) -> Option<&PathBuf> {
        match role {
            PmaRole::ProjectManager => self.project_manager.as_ref(),
            PmaRole::ProjectAnalyst => self.project_analyst.as_ref(),
        }
    }
}

/// Normalizes a path lexically: removes `.` and resolves `..`.
fn normalize_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(plain.components().next_back(), Some(Component::Normal(_))) =>
            {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// Loads the bundle of a role: its Markdown files in the order of their names.
pub fn load_bundle(role: PmaRole, path: &Path) -> Result<InstructionBundle, InstructionsError> {
    let unreadable = |source| InstructionsError::Unreadable { role, path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".md") && !name.starts_with('.') {
            files.push(file);
        }
    }
    files.sort();
    let mut bytes = 0;
    let mut texts = Vec::new();
    for file in files {
        bytes += std::fs::metadata(&file).map_err(unreadable)?.len();
        if bytes > MAX_BUNDLE_BYTES {
            return Err(InstructionsError::TooLong { role, path: path.to_owned() });
        }
        texts.push(std::fs::read_to_string(&file).map_err(unreadable)?.trim().to_owned());
    }
    let empty = || InstructionsError::Empty { role, path: path.to_owned() };
    let (baseline, rest) = texts.split_first().ok_or_else(empty)?;
    if baseline.is_empty() || rest.iter().all(String::is_empty) {
        return Err(empty());
    }
    let bundle = InstructionBundle {
        role,
        baseline: baseline.clone(),
        instructions: rest.join("\n\n"),
        digest: HEXLOWER.encode(&Sha256::digest(texts.join("\0"))),
    };
    match missing_heading(&bundle) {
        None => Ok(bundle),
        Some(heading) => {
            Err(InstructionsError::Incomplete { role, path: path.to_owned(), heading })
        }
    }
}

/// Returns the first required section that is missing or empty.
pub fn missing_heading(bundle: &InstructionBundle) -> Option<&'static str> {
    let text = format!("{}\n\n{}", bundle.baseline, bundle.instructions);
    REQUIRED_HEADINGS.into_iter().find(|heading| {
        let mut lines = text.lines().skip_while(|line| line.trim_end() != *heading).skip(1);
        lines.find(|line| !line.trim().is_empty()).is_none_or(|line| line.starts_with('#'))
    })
}

#[cfg(test)]
mod tests;
