//! Names of tools: dotted inside, and on the wire what every model API accepts.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The namespaces of tools that are part of the product. Nobody else may use them, and the product uses no other.
pub const NATIVE_NAMESPACES: [&str; 19] = [
    "agent",
    "api",
    "artifact",
    "connector",
    "db",
    "git",
    "handoff",
    "help",
    "memory",
    "model",
    "node",
    "pm",
    "sandbox",
    "schedule",
    "skills",
    "think",
    "verification",
    "web",
    "workflow",
];

/// Most characters of a name on the wire: what model APIs accept.
pub const MAX_WIRE_NAME_LEN: usize = 64;

/// What stands for a dot on the wire.
const WIRE_DOT: &str = "__";

/// The name of a tool, as `db.task.get`.
///
/// Invariant: segments of letters and digits, inside which single `_` or `-` may separate; segments are joined by dots;
/// written for the wire it has at most 64 characters. Since no segment holds, begins with or ends with a double underscore,
/// writing each dot as `__` can be undone, and no two names are written alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(String);

/// Why a text is not the name of a tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A part is empty or holds what it may not.
    #[error(
        "a tool's name is made of parts of letters and digits, with single `_` or `-` inside, joined by dots"
    )]
    Shape,
    /// It would not fit on the wire.
    #[error("a tool's name has at most {MAX_WIRE_NAME_LEN} characters, each dot counted twice")]
    Length,
}

impl ToolName {
    /// The dotted name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as the wire has it.
    pub fn to_wire_name(&self) -> String {
        self.0.replace('.', WIRE_DOT)
    }

    /// Reads a name from the wire. The dotted name is understood too: protocol revisions since 2025-11-25 allow dots.
    pub fn from_wire_name(text: &str) -> Result<Self, NameError> {
        // What is longer than any name is not even looked at.
        if text.len() > MAX_WIRE_NAME_LEN {
            return Err(NameError::Length);
        }
        text.replace(WIRE_DOT, ".").parse()
    }

    /// The first part.
    pub fn namespace(&self) -> &str {
        self.0.split('.').next().unwrap_or(&self.0)
    }

    /// Whether the name belongs to the product: exactly one of its namespaces, not one that merely begins alike, and
    /// something inside it.
    pub fn is_native(&self) -> bool {
        self.0.contains('.') && NATIVE_NAMESPACES.contains(&self.namespace())
    }

    /// The groups the tool is in, narrowest first: `db.task.*`, `db.*`.
    pub fn group_patterns(&self) -> impl Iterator<Item = String> {
        let ends = self.0.rmatch_indices('.').map(|(at, _)| at);
        ends.map(|at| format!("{}.*", &self.0[..at]))
    }
}

impl FromStr for ToolName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let dots = text.bytes().filter(|byte| *byte == b'.').count();
        if text.len() + dots > MAX_WIRE_NAME_LEN {
            return Err(NameError::Length);
        }
        if text.split('.').all(is_name_segment) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Shape)
        }
    }
}

/// Whether the text is one part of a name.
fn is_name_segment(part: &str) -> bool {
    part.split(['_', '-'])
        .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

impl TryFrom<String> for ToolName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<ToolName> for String {
    fn from(name: ToolName) -> Self {
        name.0
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name, or a group of names: `db.*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolPattern(pub &'static str);

impl ToolPattern {
    /// Whether the name is meant. `db.*` means everything inside `db`, and not `db` itself nor `dbx.y`.
    pub fn matches_name(self, name: &ToolName) -> bool {
        match self.0.strip_suffix(".*") {
            Some(group) => {
                name.as_str().strip_prefix(group).is_some_and(|rest| rest.starts_with('.'))
            }
            None => self.0 == name.as_str(),
        }
    }
}

#[cfg(test)]
mod tests;
