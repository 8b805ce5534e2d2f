//! Which ways to a model are tried, and in which order.

use cynode_core::{agents::AgentRole, preferences::Resolution};
use serde_json::Value;

/// What somebody wishes about where their questions go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What is local comes first.
    pub prefer_local: bool,
    /// The only places outside that may be asked, by name; `None`: all that the installation has.
    pub allowed_external: Option<Vec<String>>,
    /// The order of places, by name; those that are not named come after.
    pub order: Vec<String>,
}

/// A place that a model can be reached at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way<'a> {
    /// The provider's name.
    pub provider: &'a str,
    /// Whether nothing leaves what the person owns.
    pub local: bool,
}

impl Wishes {
    /// What the preferences say for an agent of that role, or for a person. An agent's own keys hold before the general
    /// ones; those of another agent are never looked at.
    pub fn of(role: Option<AgentRole>, preferences: &Resolution) -> Self {
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

    /// Whether a way may be tried at all.
    pub fn allow(&self, way: Way<'_>) -> bool {
        way.local
            || self
                .allowed_external
                .as_ref()
                .is_none_or(|names| names.iter().any(|name| name == way.provider))
    }

    /// The ways that may be tried, by their place in `ways`, best first.
    pub fn choose(&self, ways: &[Way<'_>]) -> Vec<usize> {
        let mut chosen: Vec<usize> = (0..ways.len()).filter(|at| self.allow(ways[*at])).collect();
        chosen.sort_by_key(|at| {
            let way = ways[*at];
            let place = self.order.iter().position(|name| name == way.provider);
            (self.prefer_local && !way.local, place.unwrap_or(usize::MAX), *at)
        });
        chosen
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::{
        names::DottedKey,
        preferences::{Entry, Scope, resolve, resolve_for},
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn entry(key: &str, value: Value) -> Entry {
        let key: DottedKey = key.parse().unwrap();
        Entry { scope: Scope::System, key, value, version: 1 }
    }

    const WAYS: [Way<'static>; 4] = [
        Way { provider: "openai", local: false },
        Way { provider: "ollama", local: true },
        Way { provider: "anthropic", local: false },
        Way { provider: "vllm", local: true },
    ];

    fn chosen(wishes: &Wishes) -> Vec<&'static str> {
        wishes.choose(&WAYS).into_iter().map(|at| WAYS[at].provider).collect()
    }

    #[test]
    fn without_wishes_the_order_is_that_of_the_registry() {
        assert_eq!(chosen(&Wishes::default()), ["openai", "ollama", "anthropic", "vllm"]);
    }

    #[test]
    fn what_is_local_comes_first_when_that_is_preferred() {
        let wishes = Wishes { prefer_local: true, ..Wishes::default() };
        assert_eq!(chosen(&wishes), ["ollama", "vllm", "openai", "anthropic"]);
    }

    #[test]
    fn what_is_outside_and_not_allowed_is_never_tried() {
        let allowed_external = Some(vec!["anthropic".to_owned()]);
        let wishes = Wishes { allowed_external, ..Wishes::default() };
        assert_eq!(chosen(&wishes), ["ollama", "anthropic", "vllm"]);
        let wishes = Wishes { allowed_external: Some(Vec::new()), ..Wishes::default() };
        assert_eq!(chosen(&wishes), ["ollama", "vllm"]);
    }

    #[test]
    fn named_places_come_in_their_order_and_before_the_others() {
        let order = vec!["vllm".to_owned(), "anthropic".to_owned(), "gone".to_owned()];
        let wishes = Wishes { order: order.clone(), ..Wishes::default() };
        assert_eq!(chosen(&wishes), ["vllm", "anthropic", "openai", "ollama"]);
        let wishes = Wishes { order, prefer_local: true, ..Wishes::default() };
        assert_eq!(chosen(&wishes), ["vllm", "ollama", "anthropic", "openai"]);
    }

    #[test]
    fn an_agents_own_keys_hold_before_the_general_ones() {
        let resolution = resolve([
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
        let pm = Wishes::of(Some(AgentRole::ProjectManager), &resolution);
        let expected = Wishes {
            prefer_local: false,
            allowed_external: Some(vec!["openai".into()]),
            order: vec!["vllm".into(), "openai".into()],
        };
        assert_eq!(pm, expected);
        let pa = Wishes::of(Some(AgentRole::ProjectAnalyst), &resolution);
        let expected =
            Wishes { prefer_local: true, allowed_external: Some(Vec::new()), order: Vec::new() };
        assert_eq!(pa, expected);
        let person = Wishes::of(None, &resolution);
        assert_eq!(person, Wishes { prefer_local: true, ..Wishes::default() });
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
                let held = resolve_for(other, entries.clone());
                prop_assert_eq!(Wishes::of(Some(other), &held), Wishes::default());
                prop_assert_eq!(Wishes::of(Some(other), &resolve(entries.clone())), Wishes::default());
                let held = resolve_for(owner, entries);
                let expected = Wishes {
                    prefer_local: prefer, allowed_external: Some(allowed.clone()), order: order.clone(),
                };
                prop_assert_eq!(Wishes::of(Some(owner), &held), expected);
            }
        }
    }
}
