//! Routing: which providers of a model are tried, and in which order.

use cynode_core::{agents::AgentRole, preferences::PreferenceResolution};
use serde_json::Value;

/// Preferences of a user about the providers of their requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingPreferences {
    /// Local providers come first.
    pub prefer_local: bool,
    /// Names of the only external providers that are allowed. `None` allows all providers of the installation.
    pub allowed_external: Option<Vec<String>>,
    /// Order of the providers, by name. Providers that are not named come last.
    pub order: Vec<String>,
}

/// A provider that offers a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderRoute<'a> {
    /// Name of the provider.
    pub provider: &'a str,
    /// Whether the provider is local: no data leaves the user's own machines.
    pub local: bool,
    /// Whether the model belongs to the project alone, instead of the whole installation.
    pub own: bool,
}

impl RoutingPreferences {
    /// Reads the preferences for an agent of that role, or for a person. An agent's own keys take precedence over the general ones. The
    /// keys of another role are ignored.
    pub fn from_preferences(role: Option<AgentRole>, preferences: &PreferenceResolution) -> Self {
        let find = |name: &str| {
            let own =
                role.map(|role| format!("agents.{}.model_routing.{name}", role.preference_name()));
            let keys = own.into_iter().chain([format!("model_routing.{name}")]);
            let mut held = keys.filter_map(|key| {
                let held = preferences.effective.iter().find(|(known, _)| known.as_str() == key);
                held.map(|(_, held)| &held.value)
            });
            held.next()
        };
        let names = |value: &Value| -> Vec<String> {
            let items = value.as_array().into_iter().flatten();
            items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
        };
        Self {
            prefer_local: find("prefer_local").and_then(Value::as_bool).unwrap_or(false),
            allowed_external: find("allowed_external_providers").map(names),
            order: find("fallback_provider_order").map(names).unwrap_or_default(),
        }
    }

    /// Returns whether a route may be tried.
    pub fn allows_route(&self, way: ProviderRoute<'_>) -> bool {
        way.local
            || self
                .allowed_external
                .as_ref()
                .is_none_or(|names| names.iter().any(|name| name == way.provider))
    }

    /// Returns the indices of the routes in `ways` that may be tried, best first: a project's own model before a general one, then local
    /// providers if they are preferred, then the preferred order, then the order of `ways`.
    pub fn rank_routes(&self, ways: &[ProviderRoute<'_>]) -> Vec<usize> {
        let mut chosen: Vec<usize> =
            (0..ways.len()).filter(|at| self.allows_route(ways[*at])).collect();
        chosen.sort_by_key(|at| {
            let way = ways[*at];
            let place = self.order.iter().position(|name| name == way.provider);
            (!way.own, self.prefer_local && !way.local, place.unwrap_or(usize::MAX), *at)
        });
        chosen
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::{
        names::DottedKey,
        preferences::{PreferenceEntry, PreferenceScope, resolve_for_role, resolve_preferences},
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn entry(key: &str, value: Value) -> PreferenceEntry {
        let key: DottedKey = key.parse().unwrap();
        PreferenceEntry { scope: PreferenceScope::System, key, value, version: 1 }
    }

    const WAYS: [ProviderRoute<'static>; 4] = [
        ProviderRoute { provider: "openai", local: false, own: false },
        ProviderRoute { provider: "ollama", local: true, own: false },
        ProviderRoute { provider: "anthropic", local: false, own: false },
        ProviderRoute { provider: "vllm", local: true, own: false },
    ];

    fn chosen(wishes: &RoutingPreferences) -> Vec<&'static str> {
        wishes.rank_routes(&WAYS).into_iter().map(|at| WAYS[at].provider).collect()
    }

    #[test]
    fn without_wishes_the_order_is_that_of_the_registry() {
        assert_eq!(
            chosen(&RoutingPreferences::default()),
            ["openai", "ollama", "anthropic", "vllm"]
        );
    }

    #[test]
    fn what_is_local_comes_first_when_that_is_preferred() {
        let wishes = RoutingPreferences { prefer_local: true, ..RoutingPreferences::default() };
        assert_eq!(chosen(&wishes), ["ollama", "vllm", "openai", "anthropic"]);
    }

    #[test]
    fn what_is_outside_and_not_allowed_is_never_tried() {
        let allowed_external = Some(vec!["anthropic".to_owned()]);
        let wishes = RoutingPreferences { allowed_external, ..RoutingPreferences::default() };
        assert_eq!(chosen(&wishes), ["ollama", "anthropic", "vllm"]);
        let wishes = RoutingPreferences {
            allowed_external: Some(Vec::new()),
            ..RoutingPreferences::default()
        };
        assert_eq!(chosen(&wishes), ["ollama", "vllm"]);
    }

    #[test]
    fn named_places_come_in_their_order_and_before_the_others() {
        let order = vec!["vllm".to_owned(), "anthropic".to_owned(), "gone".to_owned()];
        let wishes = RoutingPreferences { order: order.clone(), ..RoutingPreferences::default() };
        assert_eq!(chosen(&wishes), ["vllm", "anthropic", "openai", "ollama"]);
        let wishes =
            RoutingPreferences { order, prefer_local: true, ..RoutingPreferences::default() };
        assert_eq!(chosen(&wishes), ["vllm", "ollama", "anthropic", "openai"]);
    }

    #[test]
    fn a_projects_own_model_comes_before_a_general_one_whatever_is_preferred() {
        let ways = [
            ProviderRoute { provider: "ollama", local: true, own: false },
            ProviderRoute { provider: "sample", local: false, own: true },
            ProviderRoute { provider: "vllm", local: true, own: true },
        ];
        let chosen = |wishes: &RoutingPreferences| -> Vec<&str> {
            wishes.rank_routes(&ways).into_iter().map(|at| ways[at].provider).collect()
        };
        assert_eq!(chosen(&RoutingPreferences::default()), ["sample", "vllm", "ollama"]);
        let wishes = RoutingPreferences { prefer_local: true, ..RoutingPreferences::default() };
        assert_eq!(chosen(&wishes), ["vllm", "sample", "ollama"]);
        let wishes = RoutingPreferences {
            order: vec!["ollama".to_owned()],
            ..RoutingPreferences::default()
        };
        assert_eq!(chosen(&wishes), ["sample", "vllm", "ollama"]);
        // What may not be asked is not asked because it is the project's own.
        let wishes = RoutingPreferences {
            allowed_external: Some(Vec::new()),
            ..RoutingPreferences::default()
        };
        assert_eq!(chosen(&wishes), ["vllm", "ollama"]);
    }

    #[test]
    fn an_agents_own_keys_hold_before_the_general_ones() {
        let resolution = resolve_preferences([
            entry("model_routing.prefer_local", json!(true)),
            entry("agents.project_manager.model_routing.prefer_local", json!(false)),
            entry(
                "agents.project_manager.model_routing.allowed_external_providers",
                json!(["openai"]),
            ),
            entry(
                "agents.project_manager.model_routing.fallback_provider_order",
                json!(["vllm", "openai"]),
            ),
            entry("agents.project_analyst.model_routing.allowed_external_providers", json!([])),
        ]);
        let pm = RoutingPreferences::from_preferences(Some(AgentRole::ProjectManager), &resolution);
        let expected = RoutingPreferences {
            prefer_local: false,
            allowed_external: Some(vec!["openai".into()]),
            order: vec!["vllm".into(), "openai".into()],
        };
        assert_eq!(pm, expected);
        let pa = RoutingPreferences::from_preferences(Some(AgentRole::ProjectAnalyst), &resolution);
        let expected = RoutingPreferences {
            prefer_local: true,
            allowed_external: Some(Vec::new()),
            order: Vec::new(),
        };
        assert_eq!(pa, expected);
        let person = RoutingPreferences::from_preferences(None, &resolution);
        assert_eq!(
            person,
            RoutingPreferences { prefer_local: true, ..RoutingPreferences::default() }
        );
    }

    proptest! {
        #[test]
        fn the_keys_of_the_manager_never_reach_the_analyst_and_the_other_way_round(
            prefer in any::<bool>(), allowed in proptest::collection::vec("[a-z]{1,6}", 0..3),
            order in proptest::collection::vec("[a-z]{1,6}", 0..3),
        ) {
            for (owner, other) in [
                (AgentRole::ProjectManager, AgentRole::ProjectAnalyst),
                (AgentRole::ProjectAnalyst, AgentRole::ProjectManager),
            ] {
                let key = |name: &str| format!("agents.{}.model_routing.{name}", owner.as_str());
                let entries = vec![
                    entry(&key("prefer_local"), json!(prefer)),
                    entry(&key("allowed_external_providers"), json!(allowed)),
                    entry(&key("fallback_provider_order"), json!(order)),
                ];
                let held = resolve_for_role(other, entries.clone());
                prop_assert_eq!(RoutingPreferences::from_preferences(Some(other), &held), RoutingPreferences::default());
                prop_assert_eq!(RoutingPreferences::from_preferences(Some(other), &resolve_preferences(entries.clone())), RoutingPreferences::default());
                let held = resolve_for_role(owner, entries);
                let expected = RoutingPreferences {
                    prefer_local: prefer, allowed_external: Some(allowed.clone()), order: order.clone(),
                };
                prop_assert_eq!(RoutingPreferences::from_preferences(Some(owner), &held), expected);
            }
        }
    }
}
