//! Labelled inputs: the fields of a row, and its half. `eval/README.md` says how the labels were decided.

use std::{collections::BTreeSet, path::Path};

use cynode_core::{
    agents::AgentRole,
    workflow::{
        decisions::{IssueScope, WorkClass},
        handoffs::{AnalysisStatus, FailureDecision},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// One kind of decision and its file of rows.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum EvalTable {
    /// What an input asks for.
    Classify,
    /// How much it touches.
    Scope,
    /// Who is to do something.
    Route,
    /// Whether a result is good.
    Review,
    /// What to do about a failure.
    Failure,
}

impl EvalTable {
    /// All tables.
    pub const ALL: [Self; 5] =
        [Self::Classify, Self::Scope, Self::Route, Self::Review, Self::Failure];

    /// Returns the name of the table, which is its file name without `.jsonl`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Classify => "classify",
            Self::Scope => "scope",
            Self::Route => "route",
            Self::Review => "review",
            Self::Failure => "failure",
        }
    }

    /// Returns the name of the answer field, in a row and in a decision.
    pub const fn answer_field(self) -> &'static str {
        match self {
            Self::Classify => "class",
            Self::Scope => "scope",
            Self::Route => "role",
            Self::Review => "status",
            Self::Failure => "decision",
        }
    }

    /// Returns the possible answers.
    pub const fn answer_labels(self) -> &'static [&'static str] {
        match self {
            Self::Classify => &["new_project", "feature_request", "quick_fix"],
            Self::Scope => &["trivial", "small", "medium", "large"],
            Self::Route => &["architect", "designer", "developer", "reviewer", "tester", "fixer"],
            Self::Review => &["pass", "fail", "needs_clarification"],
            Self::Failure => &["retry", "reduce_scope", "escalate"],
        }
    }
}

impl std::fmt::Display for EvalTable {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.as_str())
    }
}

/// Split of the rows; prompts are tuned on the first only.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum RowHalf {
    /// Prompts may be tuned on it.
    Tuning,
    /// Nobody looks at it while wordings are tried.
    HeldOut,
}

/// Input of a row, with its correct answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "table", rename_all = "snake_case", deny_unknown_fields)]
pub enum RowInput {
    /// An input to classify.
    Classify {
        /// Text that a person wrote.
        input: String,
        /// Correct answer.
        class: WorkClass,
    },
    /// An input to assess within a project.
    Scope {
        /// Text that a person wrote.
        input: String,
        /// Facts about the project.
        facts: String,
        /// Correct answer.
        scope: IssueScope,
    },
    /// A piece of work to route.
    Route {
        /// Description of the work.
        work: String,
        /// Correct answer.
        role: AgentRole,
    },
    /// A result to review.
    Review {
        /// Title of the unit.
        title: String,
        /// Requirements of the unit.
        requirements: Vec<String>,
        /// Result of the worker.
        result: String,
        /// Correct answer.
        status: AnalysisStatus,
    },
    /// A failed unit.
    Failure {
        /// Title of the unit.
        title: String,
        /// Attempt number that failed.
        attempt: u32,
        /// Number of attempts left.
        attempts_left: u32,
        /// Reason of the failure.
        failure: String,
        /// Correct answer.
        decision: FailureDecision,
    },
}

/// One labelled input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalRow {
    /// Permanent id of the row.
    pub id: String,
    /// Table of the row.
    pub table: EvalTable,
    /// Input and correct answer.
    pub matter: RowInput,
    /// Name of the correct answer.
    pub label: String,
    /// Language, if it is not English.
    pub lang: Option<String>,
    /// `hostile` or `ambiguous`.
    pub tag: Option<String>,
}

/// Error of loading rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// A file cannot be read.
    #[error("{file}: {error}")]
    File {
        /// Name of the file.
        file: String,
        /// Cause of the failure.
        error: std::io::Error,
    },
    /// A line is not a valid row.
    #[error("{table}.jsonl, line {line}: {problem}")]
    Line {
        /// Name of the table.
        table: &'static str,
        /// Line number, from 1.
        line: usize,
        /// Description of the error.
        problem: String,
    },
}

/// Loads the rows of a table from a directory.
pub fn load_rows(folder: &Path, table: EvalTable) -> Result<Vec<EvalRow>, RowsError> {
    let file = folder.join(format!("{}.jsonl", table.as_str()));
    let text = std::fs::read_to_string(&file)
        .map_err(|error| RowsError::File { file: file.display().to_string(), error })?;
    parse_rows(table, &text)
}

/// Parses the rows of a file. Each has a unique id and the fields of its table.
pub fn parse_rows(table: EvalTable, text: &str) -> Result<Vec<EvalRow>, RowsError> {
    let mut ids = BTreeSet::new();
    text.lines()
        .enumerate()
        .map(|(at, line)| {
            let wrong =
                |problem: String| RowsError::Line { table: table.as_str(), line: at + 1, problem };
            let row = parse_row(table, line).map_err(wrong)?;
            if ids.insert(row.id.clone()) {
                Ok(row)
            } else {
                Err(wrong(format!("`{}` is there twice", row.id)))
            }
        })
        .collect()
}

fn parse_row(table: EvalTable, line: &str) -> Result<EvalRow, String> {
    let mut fields: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let mut take = |name: &str| match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{name}` is no text")),
    };
    let id = take("id")?.ok_or("a row has an `id`")?;
    let (lang, tag, why) = (take("lang")?, take("tag")?, take("why")?);
    if tag.is_some() != why.is_some() {
        return Err("`tag` and `why` go together".to_owned());
    }
    fields.insert("table".to_owned(), table.as_str().into());
    let matter: RowInput =
        serde_json::from_value(fields.into()).map_err(|error| error.to_string())?;
    let label = matter.label_name();
    if !table.answer_labels().contains(&label.as_str()) {
        return Err(format!("`{label}` is no answer of this table"));
    }
    Ok(EvalRow { id, table, matter, label, lang, tag })
}

impl EvalRow {
    /// Returns the half of the row, which depends on its id only.
    pub fn row_half(&self) -> RowHalf {
        let even = Sha256::digest(self.id.as_bytes()).first().is_some_and(|byte| byte % 2 == 0);
        if even { RowHalf::Tuning } else { RowHalf::HeldOut }
    }
}

impl RowInput {
    /// Returns the name of the correct answer.
    pub fn label_name(&self) -> String {
        match self {
            Self::Classify { class, .. } => serialized_name(class),
            Self::Scope { scope, .. } => serialized_name(scope),
            Self::Route { role, .. } => serialized_name(role),
            Self::Review { status, .. } => serialized_name(status),
            Self::Failure { decision, .. } => serialized_name(decision),
        }
    }
}

/// Returns the serialized name of an enum value.
pub fn serialized_name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}
