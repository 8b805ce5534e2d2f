//! What the project manager decides by tables: which workflow an input gets, who does which unit, when a review ends.
//!
//! **Invariant**: every table is total, and no model is asked where a table knows the answer.

use serde::{Deserialize, Serialize};

/// What an input asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkClass {
    /// A brief for something that does not exist yet: the whole pipeline.
    NewProject,
    /// Something more of what exists: a pipeline as large as its scope.
    FeatureRequest,
    /// A bug or a typo: the shortest pipeline. `bug_fix` is taken for it.
    #[serde(alias = "bug_fix")]
    QuickFix,
}

/// How much an input touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueScope {
    /// A line.
    Trivial,
    /// A file.
    Small,
    /// Several files.
    Medium,
    /// The architecture.
    Large,
}

/// What kind of work a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitKind {
    /// Lays the ground of a new project.
    Init,
    /// Lays out how something is built.
    Spec,
    /// Lays out what people see.
    Design,
    /// Makes the change.
    Implementation,
    /// Mends what review or tests found.
    Fix,
    /// Judges the change.
    Review,
    /// Tries the change.
    Test,
}

/// How able a worker must be. Preferences say which coding agent that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Small changes, quickly.
    Fixer,
    /// Anything.
    Specialist,
    /// Thinks before others build.
    Planner,
    /// Judges.
    Reviewer,
    /// Tries.
    Tester,
}
