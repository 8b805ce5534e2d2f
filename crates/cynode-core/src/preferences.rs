//! Preferences: who may say what, and which word holds.
//!
//! Precedence is task > project > user > group > system. Among groups the one with the greater id
//! holds. `null` hides what the scopes below say. A stored value that does not fit its key's type
//! is passed over and reported, so that it can never override a good value below it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agents::AgentRole,
    delivery::DeliveryMode,
    ids::{GroupId, ProjectId, TaskId, UserId},
    names::DottedKey,
};

/// Whom a preference speaks for.
///
/// The order of the variants is the precedence, weakest first; the derived order is relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Everybody.
    System,
    /// The members of a group.
    Group(GroupId),
    /// One user.
    User(UserId),
    /// One project.
    Project(ProjectId),
    /// One task.
    Task(TaskId),
}

/// The kind of a scope, as it is named on the wire and in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeType {
    /// [`Scope::System`]
    System,
    /// [`Scope::Group`]
    Group,
    /// [`Scope::User`]
    User,
    /// [`Scope::Project`]
    Project,
    /// [`Scope::Task`]
    Task,
}

impl ScopeType {
    /// Every kind, weakest first.
    pub const ALL: [Self; 5] = [Self::System, Self::Group, Self::User, Self::Project, Self::Task];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Group => "group",
            Self::User => "user",
            Self::Project => "project",
            Self::Task => "task",
        }
    }
}

impl Scope {
    /// The kind of this scope.
    pub const fn kind(self) -> ScopeType {
        match self {
            Self::System => ScopeType::System,
            Self::Group(_) => ScopeType::Group,
            Self::User(_) => ScopeType::User,
            Self::Project(_) => ScopeType::Project,
            Self::Task(_) => ScopeType::Task,
        }
    }
}

/// One stored preference.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Whom it speaks for.
    pub scope: Scope,
    /// What it is about.
    pub key: DottedKey,
    /// What it says.
    pub value: Value,
    /// How often it was written.
    pub version: i64,
}

/// The word that holds for one key, and who said it.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// What holds.
    pub value: Value,
    /// Who said it.
    pub scope: Scope,
    /// The version of that entry.
    pub version: i64,
}

/// Everything that holds for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolution {
    /// What holds, by key.
    pub effective: BTreeMap<DottedKey, Effective>,
    /// Entries passed over because their value does not fit their key.
    pub invalid: Vec<Entry>,
}

impl Resolution {
    /// The text that holds for a key, if one does.
    pub fn text(&self, key: &str) -> Option<&str> {
        let (_, held) = self.effective.iter().find(|(held, _)| held.as_str() == key)?;
        held.value.as_str()
    }
}

/// The kinds of value that a known key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `true` or `false`.
    Boolean,
    /// A text.
    String,
    /// A list of texts.
    Strings,
    /// A whole number from 0 up.
    Count,
    /// A text or a list of texts.
    StringOrStrings,
    /// A way to deliver.
    DeliveryMode,
}

/// A value that does not fit its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value of `{key}` must be {wanted}, or null")]
pub struct ValueError {
    key: DottedKey,
    wanted: &'static str,
}

impl ValueKind {
    const fn wanted(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::String => "a text",
            Self::Strings => "a list of texts",
            Self::Count => "a whole number from 0 up",
            Self::StringOrStrings => "a text or a list of texts",
            Self::DeliveryMode => "`pull_request`, `branch` or `none`",
        }
    }

    fn fits(self, value: &Value) -> bool {
        let strings = |value: &Value| {
            value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
        };
        match self {
            Self::Boolean => value.is_boolean(),
            Self::String => value.is_string(),
            Self::Strings => strings(value),
            Self::Count => value.is_u64(),
            Self::StringOrStrings => value.is_string() || strings(value),
            Self::DeliveryMode => value.as_str().and_then(DeliveryMode::from_name).is_some(),
        }
    }
}

/// The kind of value `key` takes; `None` for keys that are not ours, which take anything.
pub fn known(key: &DottedKey) -> Option<ValueKind> {
    let key = key.as_str();
    let agent_key = key.strip_prefix("agents.").and_then(|rest| rest.split_once('.'));
    let name = match agent_key {
        Some(("project_manager" | "project_analyst" | "sandbox_agent", name)) => name,
        Some(_) => return None,
        None => key,
    };
    match name {
        "model_routing.prefer_local" | "workflow.approve_plan" | "delivery.require_approval" => {
            Some(ValueKind::Boolean)
        }
        "model_routing.allowed_external_providers" | "model_routing.fallback_provider_order" => {
            Some(ValueKind::Strings)
        }
        "additional_context" if agent_key.is_some() => Some(ValueKind::StringOrStrings),
        "workflow.max_step_retries"
        | "workflow.max_node_retries"
        | "workflow.max_parallel_units"
        | "workflow.retry_budget"
        | "standards.markdown.line_length" => Some(ValueKind::Count),
        DeliveryMode::KEY => Some(ValueKind::DeliveryMode),
        "output.summary_style" | "language.preferred" => Some(ValueKind::String),
        "definition_of_done.required_checks"
        | "security.web_browse.allowed_domains"
        | "code.language.disallowed" => Some(ValueKind::Strings),
        _ if name.starts_with("workflow.node_timeouts.") => Some(ValueKind::Count),
        _ => None,
    }
}

/// Refuses a value that does not fit its key. `null` always fits: it hides the scopes below.
pub fn check(key: &DottedKey, value: &Value) -> Result<(), ValueError> {
    match known(key) {
        Some(kind) if !value.is_null() && !kind.fits(value) => {
            Err(ValueError { key: key.clone(), wanted: kind.wanted() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether `key` may reach an agent of `role`: the keys of one agent never reach another.
pub fn applies_to(key: &DottedKey, role: AgentRole) -> bool {
    match key.as_str().strip_prefix("agents.") {
        Some(rest) => {
            rest.split_once('.').is_some_and(|(owner, _)| owner == role.preference_name())
        }
        None => true,
    }
}

/// Finds, for each key, the word that holds.
pub fn resolve(entries: impl IntoIterator<Item = Entry>) -> Resolution {
    let mut resolution = Resolution::default();
    for Entry { scope, key, value, version } in entries {
        if check(&key, &value).is_err() {
            resolution.invalid.push(Entry { scope, key, value, version });
            continue;
        }
        let weaker = resolution.effective.get(&key).is_none_or(|held| held.scope < scope);
        if weaker {
            resolution.effective.insert(key, Effective { value, scope, version });
        }
    }
    // A `null` that won hides its key altogether.
    resolution.effective.retain(|_, held| !held.value.is_null());
    resolution
}

/// What holds for an agent of `role`: nothing of another agent's keys, neither value nor complaint.
pub fn resolve_for(role: AgentRole, entries: impl IntoIterator<Item = Entry>) -> Resolution {
    resolve(entries.into_iter().filter(|entry| applies_to(&entry.key, role)))
}

#[cfg(test)]
mod tests;
