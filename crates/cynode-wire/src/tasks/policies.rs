//! Mandatory policies on the wire.

use cynode_core::{
    ids::UserId,
    policies::{PolicyEntry, PolicyKey, PolicySet},
    preferences::{PreferenceScope, ScopeType},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::preferences::ScopeTypeName;

/// Sets a policy.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// `true` for a demand, a list of names for an allowlist.
    pub value: Value,
}

/// A policy of one scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// What it is about.
    pub key: String,
    /// What it says.
    pub value: Value,
    /// For whom it holds.
    #[schema(value_type = ScopeTypeName)]
    pub scope_type: ScopeType,
    /// Which group or project; absent for the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
    /// Who set it.
    #[schema(value_type = String)]
    pub set_by: UserId,
    /// The handle of that person.
    pub set_by_handle: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub set_at: OffsetDateTime,
}

impl From<&PolicyEntry> for PolicyView {
    fn from(entry: &PolicyEntry) -> Self {
        let scope = entry.scope.to_preference_scope();
        let scope_id = match scope {
            PreferenceScope::System => None,
            PreferenceScope::Group(id) => Some(id.to_string()),
            PreferenceScope::User(id) => Some(id.to_string()),
            PreferenceScope::Project(id) => Some(id.to_string()),
            PreferenceScope::Task(id) => Some(id.to_string()),
        };
        Self {
            key: entry.key.as_str().to_owned(),
            value: entry.value.to_json(),
            scope_type: scope.scope_type(),
            scope_id,
            set_by: entry.set_by,
            set_by_handle: entry.set_by_handle.clone(),
            set_at: entry.set_at,
        }
    }
}

/// The policies of one scope, by key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyList {
    /// The policies.
    pub items: Vec<PolicyView>,
}

impl From<&PolicySet> for PolicyList {
    fn from(policies: &PolicySet) -> Self {
        Self { items: policies.list_entries().iter().map(PolicyView::from).collect() }
    }
}

/// A policy that holds, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EffectivePolicyView {
    /// What it is about.
    pub key: String,
    /// What holds when the policies of all scopes are put together.
    pub value: Value,
    /// What it does, in a sentence.
    pub effect: String,
    /// The policies that it comes from, the widest scope first.
    pub sources: Vec<PolicyView>,
}

/// Everything that holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EffectivePolicyList {
    /// The policies that hold, by key.
    pub items: Vec<EffectivePolicyView>,
}

impl From<&PolicySet> for EffectivePolicyList {
    fn from(policies: &PolicySet) -> Self {
        let items = PolicyKey::ALL.into_iter().filter_map(|key| {
            let value = policies.merge_values(key)?.to_json();
            let entries = policies.list_entries().iter().filter(|entry| entry.key == key);
            Some(EffectivePolicyView {
                key: key.as_str().to_owned(),
                value,
                effect: key.describe_effect().to_owned(),
                sources: entries.map(PolicyView::from).collect(),
            })
        });
        Self { items: items.collect() }
    }
}
