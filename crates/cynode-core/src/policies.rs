//! Mandatory policies: what admins demand and nobody below can relax.
//!
//! A policy is set for the installation, a group or a project. All that apply hold together, so a narrower scope can only
//! be stricter: a demand holds when any scope makes it, and an allowlist allows what every scope allows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::{
    delivery::REQUIRE_APPROVAL_PREFERENCE,
    ids::{GroupId, ProjectId, UserId},
    names::{DottedKey, nearest_name},
    preferences::{EffectivePreference, PreferenceResolution, PreferenceScope},
    workflow::limits::APPROVE_PLAN_PREFERENCE,
};

/// The preference about providers, and the end of the key that an agent has for itself.
const ALLOWED_PROVIDERS_PREFERENCE: &str = "model_routing.allowed_external_providers";

/// The preference that names the only node.
const PLACEMENT_NODE_PREFERENCE: &str = "agents.project_manager.placement.node";

/// The name that stands for no image in the list of images.
pub const HOST_IMAGE: &str = "host";

/// Maximum number of names in an allowlist.
const MAX_ALLOWLIST_NAMES: usize = 200;

/// Maximum length of a name in an allowlist, in bytes.
const MAX_ALLOWED_NAME_BYTES: usize = 300;

/// What a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKey {
    /// Another person than the author approves.
    FourEyes,
    /// A person approves each delivery.
    DeliveryApproval,
    /// External providers of models.
    AllowedProviders,
    /// Labels of nodes.
    AllowedLabels,
    /// Names of nodes.
    AllowedNodes,
    /// Images of sandboxes.
    AllowedImages,
    /// Domains of the web.
    AllowedDomains,
    /// A person approves each plan.
    PlanApproval,
}

impl PolicyKey {
    /// Every key, by name.
    pub const ALL: [Self; 8] = [
        Self::FourEyes,
        Self::DeliveryApproval,
        Self::AllowedProviders,
        Self::AllowedLabels,
        Self::AllowedNodes,
        Self::AllowedImages,
        Self::AllowedDomains,
        Self::PlanApproval,
    ];

    /// The name on the wire and in the database. A key that a preference has too bounds that preference.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FourEyes => "approvals.four_eyes",
            Self::DeliveryApproval => REQUIRE_APPROVAL_PREFERENCE,
            Self::AllowedProviders => ALLOWED_PROVIDERS_PREFERENCE,
            Self::AllowedLabels => "placement.allowed_labels",
            Self::AllowedNodes => "placement.allowed_nodes",
            Self::AllowedImages => "sandbox.allowed_images",
            Self::AllowedDomains => "security.web_browse.allowed_domains",
            Self::PlanApproval => APPROVE_PLAN_PREFERENCE,
        }
    }

    /// The key of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.as_str() == name)
    }

    /// What it does, in a sentence.
    pub const fn describe_effect(self) -> &'static str {
        match self {
            Self::FourEyes => {
                "The author of a task approves neither its plan, its calls nor its delivery, and does not merge it."
            }
            Self::DeliveryApproval => "A person approves a pull request before it is merged.",
            Self::AllowedProviders => "The only external providers of models; `[]` allows none.",
            Self::AllowedLabels => "A node gets jobs only if it has one of these labels.",
            Self::AllowedNodes => "A node gets jobs only if it has one of these names.",
            Self::AllowedImages => {
                "The only images of sandboxes; `host` stands for jobs that name no image."
            }
            Self::AllowedDomains => {
                "The only domains, each with those below it, that web tools and sandboxes of agents reach."
            }
            Self::PlanApproval => "A person approves a plan before anything is done.",
        }
    }

    /// Whether it is a demand; else it is an allowlist.
    pub const fn is_demand(self) -> bool {
        match self {
            Self::FourEyes | Self::DeliveryApproval | Self::PlanApproval => true,
            Self::AllowedProviders
            | Self::AllowedLabels
            | Self::AllowedNodes
            | Self::AllowedImages
            | Self::AllowedDomains => false,
        }
    }

    /// Whether it decides which node gets a job.
    pub const fn affects_placement(self) -> bool {
        matches!(self, Self::AllowedLabels | Self::AllowedNodes)
    }

    /// Whether an allowlist with `allowed` covers `name`.
    fn covers_name(self, allowed: &str, name: &str) -> bool {
        match self {
            Self::AllowedDomains => {
                name == allowed
                    || name.strip_suffix(allowed).is_some_and(|before| before.ends_with('.'))
            }
            Self::FourEyes
            | Self::DeliveryApproval
            | Self::AllowedProviders
            | Self::AllowedLabels
            | Self::AllowedNodes
            | Self::AllowedImages
            | Self::PlanApproval => name == allowed,
        }
    }
}

/// A kind of approval that can need a second person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalKind {
    /// The tool call of an agent.
    Call,
    /// The environment of a project.
    Environment,
    /// The merge of a pull request.
    Merge,
    /// The plan of a task.
    Plan,
    /// The review of a pull request.
    Review,
    /// The tools of a tool server.
    Tools,
}

impl ApprovalKind {
    /// The names of all, in the order of the names.
    pub const NAMES: [&'static str; 6] =
        ["call", "environment", "merge", "plan", "review", "tools"];

    /// The name in the setting.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Environment => "environment",
            Self::Merge => "merge",
            Self::Plan => "plan",
            Self::Review => "review",
            Self::Tools => "tools",
        }
    }

    /// What a person does with it, as the end of a sentence.
    pub const fn describe_act(self) -> &'static str {
        match self {
            Self::Call => "approve the call",
            Self::Environment => "accept the environment",
            Self::Merge => "merge the pull request",
            Self::Plan => "approve the plan",
            Self::Review => "approve the pull request",
            Self::Tools => "accept the tools",
        }
    }

    /// Whether the policy [`PolicyKey::FourEyes`] is about it, too.
    pub const fn is_of_policy(self) -> bool {
        matches!(self, Self::Call | Self::Merge | Self::Plan | Self::Review)
    }
}

/// For whom a policy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyScope {
    /// Everybody.
    System,
    /// The members of a group: their own requests, and the tasks that they asked for.
    Group(GroupId),
    /// One project.
    Project(ProjectId),
}

impl PolicyScope {
    /// The scope of preferences that is as wide.
    pub const fn to_preference_scope(self) -> PreferenceScope {
        match self {
            Self::System => PreferenceScope::System,
            Self::Group(id) => PreferenceScope::Group(id),
            Self::Project(id) => PreferenceScope::Project(id),
        }
    }

    /// The scope that is as wide as one of preferences. Users and tasks have no policies.
    pub const fn from_preference_scope(scope: PreferenceScope) -> Option<Self> {
        match scope {
            PreferenceScope::System => Some(Self::System),
            PreferenceScope::Group(id) => Some(Self::Group(id)),
            PreferenceScope::Project(id) => Some(Self::Project(id)),
            PreferenceScope::User(_) | PreferenceScope::Task(_) => None,
        }
    }

    const fn describe_scope(self) -> &'static str {
        match self {
            Self::System => "the installation",
            Self::Group(_) => "a group",
            Self::Project(_) => "the project",
        }
    }
}

/// What a policy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyValue {
    /// It is demanded.
    Required,
    /// Only these are allowed.
    Allowed(BTreeSet<String>),
}

/// A policy that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyValueError {
    /// Nobody enforces it.
    #[error("there is no policy `{key}`{}; the policies are {}", suggest_key(nearest.as_deref()), list_keys())]
    Unknown {
        /// The key.
        key: String,
        /// The one that is perhaps meant.
        nearest: Option<String>,
    },
    /// A demand is made or deleted.
    #[error("the policy `{0}` takes `true`; delete it when it is to hold no longer")]
    NotRequired(&'static str),
    /// An allowlist is a list of names.
    #[error(
        "the policy `{0}` takes a list of at most 200 names, each of 1 to 300 visible characters without spaces"
    )]
    NotNames(&'static str),
}

fn suggest_key(nearest: Option<&str>) -> String {
    nearest.map(|near| format!(" (is `{near}` meant?)")).unwrap_or_default()
}

fn list_keys() -> String {
    PolicyKey::ALL.map(|key| format!("`{}`", key.as_str())).join(", ")
}

/// The key of that name. A key that nobody enforces is refused.
pub fn parse_policy_key(name: &str) -> Result<PolicyKey, PolicyValueError> {
    PolicyKey::from_name(name).ok_or_else(|| {
        let nearest = nearest_name(name, PolicyKey::ALL.map(PolicyKey::as_str));
        PolicyValueError::Unknown { key: name.to_owned(), nearest: nearest.map(str::to_owned) }
    })
}

impl PolicyValue {
    /// Reads the value of a key.
    pub fn parse_value(key: PolicyKey, value: &Value) -> Result<Self, PolicyValueError> {
        if key.is_demand() {
            return match value {
                Value::Bool(true) => Ok(Self::Required),
                _ => Err(PolicyValueError::NotRequired(key.as_str())),
            };
        }
        let wrong = || PolicyValueError::NotNames(key.as_str());
        let items = value.as_array().ok_or_else(wrong)?;
        if items.len() > MAX_ALLOWLIST_NAMES {
            return Err(wrong());
        }
        let names: Option<BTreeSet<String>> =
            items.iter().map(|item| clean_name(key, item)).collect();
        names.map(Self::Allowed).ok_or_else(wrong)
    }

    /// The value as it is stored and shown.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Required => json!(true),
            Self::Allowed(names) => json!(names),
        }
    }

    /// Whether it allows nothing that `other` does not.
    pub fn is_within(&self, key: PolicyKey, other: &Self) -> bool {
        match (self, other) {
            (Self::Required, Self::Required) => true,
            (Self::Allowed(own), Self::Allowed(other)) => {
                own.iter().all(|name| other.iter().any(|allowed| key.covers_name(allowed, name)))
            }
            (Self::Required, Self::Allowed(_)) | (Self::Allowed(_), Self::Required) => false,
        }
    }

    fn allows_name(&self, key: PolicyKey, name: &str) -> bool {
        match self {
            Self::Required => true,
            Self::Allowed(names) => names.iter().any(|allowed| key.covers_name(allowed, name)),
        }
    }
}

/// A name of an allowlist; domains are compared in small letters.
fn clean_name(key: PolicyKey, item: &Value) -> Option<String> {
    let name = item.as_str()?;
    let visible = |c: char| !c.is_whitespace() && !c.is_control();
    if !(1..=MAX_ALLOWED_NAME_BYTES).contains(&name.len()) || !name.chars().all(visible) {
        return None;
    }
    if key != PolicyKey::AllowedDomains {
        return Some(name.to_owned());
    }
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    name.split('.').all(part).then(|| name.to_ascii_lowercase())
}

/// One stored policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// For whom it holds.
    pub scope: PolicyScope,
    /// What it is about.
    pub key: PolicyKey,
    /// What it says.
    pub value: PolicyValue,
    /// Who set it.
    pub set_by: UserId,
    /// The handle of that person.
    pub set_by_handle: String,
    /// When it was set.
    pub set_at: OffsetDateTime,
}

impl PolicyEntry {
    /// What it says and who set it, for a refusal.
    pub fn describe_policy(&self) -> String {
        let says = match &self.value {
            PolicyValue::Required => "demands it".to_owned(),
            PolicyValue::Allowed(names) if names.is_empty() => "allows none".to_owned(),
            PolicyValue::Allowed(names) => {
                let some: Vec<_> = names.iter().take(10).map(|name| format!("`{name}`")).collect();
                let more = if names.len() > some.len() { " and others" } else { "" };
                format!("allows only {}{more}", some.join(", "))
            }
        };
        format!(
            "the policy `{}` of {} {says}; {} set it on {}",
            self.key.as_str(),
            self.scope.describe_scope(),
            self.set_by_handle,
            self.set_at.date()
        )
    }
}

/// All policies that hold for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySet {
    entries: Vec<PolicyEntry>,
}

impl PolicySet {
    /// Puts the policies of all scopes together.
    pub fn from_entries(mut entries: Vec<PolicyEntry>) -> Self {
        entries.sort_by_key(|entry| (entry.key, entry.scope));
        Self { entries }
    }

    /// Adds the policies of another scope.
    pub fn add_policies(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.entries.sort_by_key(|entry| (entry.key, entry.scope));
    }

    /// All of them, by key and scope.
    pub fn list_entries(&self) -> &[PolicyEntry] {
        &self.entries
    }

    fn entries_of(&self, key: PolicyKey) -> impl Iterator<Item = &PolicyEntry> {
        self.entries.iter().filter(move |entry| entry.key == key)
    }

    /// The policy that makes a demand, if one does.
    pub fn find_demand(&self, key: PolicyKey) -> Option<&PolicyEntry> {
        self.entries_of(key).find(|entry| entry.value == PolicyValue::Required)
    }

    /// The policy that does not allow a name, if one does not.
    pub fn find_refusal(&self, key: PolicyKey, name: &str) -> Option<&PolicyEntry> {
        self.entries_of(key).find(|entry| !entry.value.allows_name(key, name))
    }

    /// The names that every scope allows; `None` when nobody bounds them.
    pub fn merge_allowlists(&self, key: PolicyKey) -> Option<BTreeSet<String>> {
        let all = self.entries_of(key).filter_map(|entry| match &entry.value {
            PolicyValue::Allowed(names) => Some(names),
            PolicyValue::Required => None,
        });
        let mut named = all.peekable();
        named.peek()?;
        let names: BTreeSet<_> = named.flatten().cloned().collect();
        Some(names.into_iter().filter(|name| self.find_refusal(key, name).is_none()).collect())
    }

    /// What holds of a key over all scopes; `None` when nobody says anything.
    pub fn merge_values(&self, key: PolicyKey) -> Option<PolicyValue> {
        if key.is_demand() {
            return self.find_demand(key).map(|_| PolicyValue::Required);
        }
        self.merge_allowlists(key).map(PolicyValue::Allowed)
    }

    /// The bounds of placement.
    pub fn placement_bounds(&self) -> PlacementBounds {
        let bounds = self.entries.iter().filter(|entry| entry.key.affects_placement());
        PlacementBounds { policies: bounds.cloned().collect() }
    }

    /// The policy that a preference contradicts, if it does. `null` contradicts none: it says nothing.
    pub fn find_contradiction(&self, key: &DottedKey, value: &Value) -> Option<&PolicyEntry> {
        let names = || value.as_array().into_iter().flatten().filter_map(Value::as_str);
        match bounded_by(key.as_str())? {
            bound @ (PolicyKey::PlanApproval | PolicyKey::DeliveryApproval) => {
                self.find_demand(bound).filter(|_| *value == json!(false))
            }
            PolicyKey::AllowedNodes => {
                value.as_str().and_then(|name| self.find_refusal(PolicyKey::AllowedNodes, name))
            }
            bound @ (PolicyKey::AllowedProviders
            | PolicyKey::FourEyes
            | PolicyKey::AllowedLabels
            | PolicyKey::AllowedImages
            | PolicyKey::AllowedDomains) => names().find_map(|name| self.find_refusal(bound, name)),
        }
    }

    /// Makes resolved preferences obey: what contradicts a policy is replaced by what the policy says.
    pub fn clamp_preferences(&self, resolution: &mut PreferenceResolution) {
        for key in [PolicyKey::PlanApproval, PolicyKey::DeliveryApproval] {
            if let Some(entry) = self.find_demand(key) {
                clamp_key(resolution, key.as_str(), entry, json!(true));
            }
        }
        if let Some(entry) = self.entries_of(PolicyKey::AllowedProviders).next() {
            self.clamp_providers(resolution, entry);
        }
        resolution.effective.retain(|key, held| {
            key.as_str() != PLACEMENT_NODE_PREFERENCE
                || self.find_contradiction(key, &held.value).is_none()
        });
    }

    /// Makes values that were resolved earlier obey, as [`Self::clamp_preferences`] does.
    pub fn clamp_values(&self, values: &mut BTreeMap<DottedKey, Value>) {
        if self.entries.is_empty() {
            return;
        }
        let mut resolution = PreferenceResolution::default();
        for (key, value) in std::mem::take(values) {
            let scope = PreferenceScope::System;
            let held = EffectivePreference { value, scope, version: 0, policy: false };
            resolution.effective.insert(key, held);
        }
        self.clamp_preferences(&mut resolution);
        *values = resolution.effective.into_iter().map(|(key, held)| (key, held.value)).collect();
    }

    /// Bounds the providers of everybody and those that an agent has for itself.
    fn clamp_providers(&self, resolution: &mut PreferenceResolution, entry: &PolicyEntry) {
        let general = self.merge_allowlists(PolicyKey::AllowedProviders).unwrap_or_default();
        let mut keys = resolution.effective.keys();
        if keys.all(|key| key.as_str() != ALLOWED_PROVIDERS_PREFERENCE) {
            clamp_key(resolution, ALLOWED_PROVIDERS_PREFERENCE, entry, json!(general));
        }
        for (key, held) in &mut resolution.effective {
            if bounded_by(key.as_str()) != Some(PolicyKey::AllowedProviders) {
                continue;
            }
            let Some(refusal) = self.find_contradiction(key, &held.value) else { continue };
            let items = held.value.as_array().into_iter().flatten().filter_map(Value::as_str);
            let left: Vec<_> = items.filter(|name| general.contains(*name)).collect();
            *held = clamped_preference(refusal, json!(left));
        }
    }
}

/// The policy that bounds a preference, if one does.
fn bounded_by(preference: &str) -> Option<PolicyKey> {
    let own = || {
        let rest = preference.strip_prefix("agents.")?;
        rest.split_once('.').map(|(_, name)| name)
    };
    match preference {
        APPROVE_PLAN_PREFERENCE => Some(PolicyKey::PlanApproval),
        REQUIRE_APPROVAL_PREFERENCE => Some(PolicyKey::DeliveryApproval),
        PLACEMENT_NODE_PREFERENCE => Some(PolicyKey::AllowedNodes),
        ALLOWED_PROVIDERS_PREFERENCE => Some(PolicyKey::AllowedProviders),
        _ if own() == Some(ALLOWED_PROVIDERS_PREFERENCE) => Some(PolicyKey::AllowedProviders),
        _ => None,
    }
}

fn clamped_preference(entry: &PolicyEntry, value: Value) -> EffectivePreference {
    let scope = entry.scope.to_preference_scope();
    EffectivePreference { value, scope, version: 0, policy: true }
}

/// Sets a preference to what a policy says, unless it says so already.
fn clamp_key(resolution: &mut PreferenceResolution, key: &str, entry: &PolicyEntry, value: Value) {
    let Ok(key) = key.parse::<DottedKey>() else { return };
    if resolution.effective.get(&key).is_none_or(|held| held.value != value) {
        resolution.effective.insert(key, clamped_preference(entry, value));
    }
}

/// Which nodes may get the jobs of a project and person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementBounds {
    policies: Vec<PolicyEntry>,
}

impl PlacementBounds {
    /// The policy that keeps a node from the jobs, if one does.
    pub fn find_refusal(&self, name: &str, labels: &[String]) -> Option<&PolicyEntry> {
        let allows = |entry: &PolicyEntry| match entry.key {
            PolicyKey::AllowedNodes => entry.value.allows_name(entry.key, name),
            PolicyKey::AllowedLabels => {
                labels.iter().any(|label| entry.value.allows_name(entry.key, label))
            }
            PolicyKey::FourEyes
            | PolicyKey::DeliveryApproval
            | PolicyKey::AllowedProviders
            | PolicyKey::AllowedImages
            | PolicyKey::AllowedDomains
            | PolicyKey::PlanApproval => true,
        };
        self.policies.iter().find(|entry| !allows(entry))
    }
}

#[cfg(test)]
mod tests;
