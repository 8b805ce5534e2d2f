//! Preferences: who may set one, and which scope wins.
//!
//! Precedence is task > project > user > group > system. Among groups the greater id wins. `null` hides the value of
//! the scopes below. A stored value of the wrong type is skipped and reported, so that it never overrides a valid one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agents::AgentRole,
    delivery::DeliveryMode,
    ids::{GroupId, ProjectId, TaskId, UserId},
    names::{DottedKey, ProfileName},
    policies::PolicyKey,
};

/// Whom a preference speaks for.
///
/// The order of the variants is the precedence, weakest first; the derived order is relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PreferenceScope {
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
    /// [`PreferenceScope::System`]
    System,
    /// [`PreferenceScope::Group`]
    Group,
    /// [`PreferenceScope::User`]
    User,
    /// [`PreferenceScope::Project`]
    Project,
    /// [`PreferenceScope::Task`]
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

impl PreferenceScope {
    /// The kind of this scope.
    pub const fn scope_type(self) -> ScopeType {
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
pub struct PreferenceEntry {
    /// Whom it speaks for.
    pub scope: PreferenceScope,
    /// What it is about.
    pub key: DottedKey,
    /// What it says.
    pub value: Value,
    /// How often it was written.
    pub version: i64,
}

/// The word that holds for one key, and who said it.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectivePreference {
    /// What holds.
    pub value: Value,
    /// Who said it.
    pub scope: PreferenceScope,
    /// The version of that entry; 0 when a policy said it.
    pub version: i64,
    /// Whether a mandatory policy said it, which no preference overrides.
    pub policy: bool,
}

/// Everything that holds for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreferenceResolution {
    /// What holds, by key.
    pub effective: BTreeMap<DottedKey, EffectivePreference>,
    /// Entries passed over because their value does not fit their key.
    pub invalid: Vec<PreferenceEntry>,
}

impl PreferenceResolution {
    /// The text that holds for a key, if one does.
    pub fn text_of_key(&self, key: &str) -> Option<&str> {
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
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Who works: an object with its `kind`.
    Worker,
    /// Anything: it is told to a model as it is.
    Any,
}

/// A preference that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value does not fit its key.
    #[error("the value of `{key}` must be {wanted}, or null")]
    Unfit {
        /// The key.
        key: DottedKey,
        /// What it takes.
        wanted: String,
    },
    /// It bounds and does not advise, so admins set it.
    #[error("`{key}` is a policy, which admins set (`cynork policy set`), and no preference")]
    PolicyOnly {
        /// The key.
        key: DottedKey,
    },
    /// Nobody reads it.
    #[error("there is no preference `{key}`; {}", suggest_nearest_key(nearest.as_deref()))]
    Unknown {
        /// The key.
        key: DottedKey,
        /// The one that is perhaps meant.
        nearest: Option<String>,
    },
}

fn suggest_nearest_key(nearest: Option<&str>) -> String {
    match nearest {
        Some(known) => format!("is `{known}` meant?"),
        None => "docs/reference/preferences.md lists them all; what agents are to be told goes under `standards.<name>`".to_owned(),
    }
}

impl ValueKind {
    /// What it takes, in words.
    pub fn describe_expected(self) -> String {
        match self {
            Self::Boolean => "true or false".to_owned(),
            Self::String => "a text".to_owned(),
            Self::Strings => "a list of texts".to_owned(),
            Self::Count => "a whole number from 0 up".to_owned(),
            Self::StringOrStrings => "a text or a list of texts".to_owned(),
            Self::DeliveryMode => "`pull_request`, `branch` or `none`".to_owned(),
            Self::OneOf(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                format!("one of {}", words.join(", "))
            }
            Self::Worker => "an object with `kind`: `acp`, `command` or `scripted`".to_owned(),
            Self::Any => "any value".to_owned(),
        }
    }

    fn accepts_value(self, value: &Value) -> bool {
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
            Self::OneOf(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Self::Worker => {
                let kind = value.get("kind").and_then(Value::as_str);
                kind.is_some_and(|kind| matches!(kind, "acp" | "command" | "scripted"))
            }
            Self::Any => true,
        }
    }
}

/// The kind of value that `key` takes; `None` for keys that nobody reads.
pub fn value_kind_of(key: &DottedKey) -> Option<ValueKind> {
    registry::find_preference(key.as_str()).map(|known| known.kind)
}

/// Refuses a value that does not fit its key. `null` always fits: it hides the scopes below. A key that nobody reads, which an
/// earlier version may have stored, takes anything.
pub fn validate_preference(key: &DottedKey, value: &Value) -> Result<(), ValueError> {
    match value_kind_of(key) {
        Some(kind) if !value.is_null() && !kind.accepts_value(value) => {
            Err(ValueError::Unfit { key: key.clone(), wanted: kind.describe_expected() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses what would be ignored: a key that nobody reads, and a value that does not fit its key.
pub fn validate_new_preference(key: &DottedKey, value: &Value) -> Result<(), ValueError> {
    if value_kind_of(key).is_none() && PolicyKey::from_name(key.as_str()).is_some() {
        return Err(ValueError::PolicyOnly { key: key.clone() });
    }
    if value_kind_of(key).is_none() {
        return Err(ValueError::Unknown {
            key: key.clone(),
            nearest: registry::nearest_key(key.as_str()),
        });
    }
    let names_no_profile =
        PROFILE_KEYS.contains(&key.as_str()) && value.as_str().is_some_and(is_no_profile_name);
    if names_no_profile {
        let wanted = "the name of a profile: small letters, digits and single dashes".to_owned();
        return Err(ValueError::Unfit { key: key.clone(), wanted });
    }
    validate_preference(key, value)
}

/// The keys whose value is the name of a profile.
const PROFILE_KEYS: [&str; 2] = ["agents.project_manager.profile", "memory.profile"];

fn is_no_profile_name(text: &str) -> bool {
    text.parse::<ProfileName>().is_err()
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
pub fn resolve_preferences(
    entries: impl IntoIterator<Item = PreferenceEntry>,
) -> PreferenceResolution {
    let mut resolution = PreferenceResolution::default();
    for PreferenceEntry { scope, key, value, version } in entries {
        if validate_preference(&key, &value).is_err() {
            resolution.invalid.push(PreferenceEntry { scope, key, value, version });
            continue;
        }
        let weaker = resolution.effective.get(&key).is_none_or(|held| held.scope < scope);
        if weaker {
            let policy = false;
            resolution.effective.insert(key, EffectivePreference { value, scope, version, policy });
        }
    }
    // A `null` that won hides its key altogether.
    resolution.effective.retain(|_, held| !held.value.is_null());
    resolution
}

/// What holds for an agent of `role`: nothing of another agent's keys, neither value nor complaint.
pub fn resolve_for_role(
    role: AgentRole,
    entries: impl IntoIterator<Item = PreferenceEntry>,
) -> PreferenceResolution {
    resolve_preferences(entries.into_iter().filter(|entry| applies_to(&entry.key, role)))
}

pub mod guidance;
pub mod registry;
#[cfg(test)]
mod tests;
