//! Preferences on the wire.

use std::collections::BTreeMap;

use cynode_core::preferences::{PreferenceResolution, PreferenceScope, ScopeType};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What holds for a request, and who said it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveView {
    /// What holds, by key.
    pub effective: BTreeMap<String, Value>,
    /// Who said it, by key.
    pub sources: BTreeMap<String, SourceView>,
    /// Entries passed over because their value does not fit their key.
    pub invalid: Vec<InvalidView>,
}

/// Who said what holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SourceView {
    /// The kind of scope.
    #[schema(value_type = ScopeTypeName)]
    pub scope_type: ScopeType,
    /// Which one; absent for the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
    /// The version of the entry; 0 for a policy.
    pub version: i64,
    /// Whether a mandatory policy said it, which no preference overrides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub policy: bool,
}

/// An entry that was passed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvalidView {
    /// Its key.
    pub key: String,
    /// Where it stands.
    pub source: SourceView,
}

/// Names of [`ScopeType`] for the document.
#[derive(ToSchema)]
#[schema(as = ScopeType, rename_all = "snake_case")]
pub enum ScopeTypeName {
    /// Everybody.
    System,
    /// The members of a group.
    Group,
    /// One user.
    User,
    /// One project.
    Project,
    /// One task.
    Task,
}

fn to_source_view(scope: PreferenceScope, version: i64) -> SourceView {
    let scope_id = match scope {
        PreferenceScope::System => None,
        PreferenceScope::Group(id) => Some(id.to_string()),
        PreferenceScope::User(id) => Some(id.to_string()),
        PreferenceScope::Project(id) => Some(id.to_string()),
        PreferenceScope::Task(id) => Some(id.to_string()),
    };
    SourceView { scope_type: scope.scope_type(), scope_id, version, policy: false }
}

impl From<PreferenceResolution> for EffectiveView {
    fn from(resolution: PreferenceResolution) -> Self {
        let mut view = Self {
            effective: BTreeMap::new(),
            sources: BTreeMap::new(),
            invalid: Vec::with_capacity(resolution.invalid.len()),
        };
        for (key, held) in resolution.effective {
            let source =
                SourceView { policy: held.policy, ..to_source_view(held.scope, held.version) };
            view.sources.insert(key.to_string(), source);
            view.effective.insert(key.into(), held.value);
        }
        for entry in resolution.invalid {
            let source = to_source_view(entry.scope, entry.version);
            view.invalid.push(InvalidView { key: entry.key.into(), source });
        }
        view
    }
}
