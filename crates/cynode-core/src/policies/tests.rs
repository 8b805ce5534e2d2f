use proptest::prelude::*;
use time::macros::datetime;
use uuid::Uuid;

use super::*;
use crate::preferences::{PreferenceEntry, resolve_preferences};

fn policy(scope: PolicyScope, key: PolicyKey, value: impl Into<Value>) -> PolicyEntry {
    PolicyEntry {
        scope,
        key,
        value: PolicyValue::parse_value(key, &value.into()).unwrap(),
        set_by: UserId::from_uuid(Uuid::nil()),
        set_by_handle: "ann".to_owned(),
        set_at: datetime!(2026-11-17 12:00 UTC),
    }
}

fn project() -> PolicyScope {
    PolicyScope::Project(ProjectId::from_uuid(Uuid::from_u128(1)))
}

fn preference(scope: PreferenceScope, key: &str, value: Value) -> PreferenceEntry {
    PreferenceEntry { scope, key: key.parse().unwrap(), value, version: 1 }
}

fn own_scope() -> PreferenceScope {
    PreferenceScope::User(UserId::from_uuid(Uuid::from_u128(7)))
}

#[test]
fn each_key_has_its_own_name_and_the_names_are_ordered() {
    let names = PolicyKey::ALL.map(PolicyKey::as_str);
    assert!(names.is_sorted());
    for key in PolicyKey::ALL {
        assert_eq!(PolicyKey::from_name(key.as_str()), Some(key));
        assert!(key.as_str().parse::<DottedKey>().is_ok());
    }
}

#[test]
fn the_page_lists_every_policy_with_its_effect() {
    let page = include_str!("../../../../docs/reference/policies.md");
    for key in PolicyKey::ALL {
        let takes = if key.is_demand() { "`true`" } else { "a list of names" };
        let row = format!("| `{}` | {takes} | {} |", key.as_str(), key.describe_effect());
        assert!(page.contains(&row), "docs/reference/policies.md must hold: {row}");
    }
}

#[test]
fn a_key_that_nobody_enforces_and_a_value_that_says_nothing_are_refused() {
    let refused = parse_policy_key("workflow.approve_plans").unwrap_err().to_string();
    assert!(refused.contains("is `workflow.approve_plan` meant?"), "{refused}");
    for (key, value) in [
        (PolicyKey::PlanApproval, json!(false)),
        (PolicyKey::PlanApproval, json!(null)),
        (PolicyKey::AllowedProviders, json!("openai")),
        (PolicyKey::AllowedProviders, json!([""])),
        (PolicyKey::AllowedNodes, json!([1])),
        (PolicyKey::AllowedDomains, json!(["https://example.com"])),
        (PolicyKey::AllowedDomains, json!([".example.com"])),
    ] {
        assert!(PolicyValue::parse_value(key, &value).is_err(), "{key:?} {value}");
    }
}

#[test]
fn an_allowlist_allows_what_every_scope_allows() {
    let held = PolicySet::from_entries(vec![
        policy(PolicyScope::System, PolicyKey::AllowedDomains, json!(["Example.com", "docs.rs"])),
        policy(project(), PolicyKey::AllowedDomains, json!(["api.example.com", "evil.org"])),
    ]);
    let allowed = |host: &str| held.find_refusal(PolicyKey::AllowedDomains, host).is_none();
    assert!(allowed("api.example.com"));
    assert!(allowed("v1.api.example.com"));
    for host in
        ["example.com", "docs.rs", "evil.org", "notexample.com", "api.example.com.evil.org", ""]
    {
        assert!(!allowed(host), "{host}");
    }
    let merged = held.merge_values(PolicyKey::AllowedDomains).unwrap();
    assert_eq!(merged.to_json(), json!(["api.example.com"]));
    assert_eq!(held.merge_values(PolicyKey::AllowedImages), None);
}

#[test]
fn an_agents_own_key_and_a_narrower_scope_do_not_widen_the_providers() {
    let own = "agents.sandbox_agent.model_routing.allowed_external_providers";
    let held = PolicySet::from_entries(vec![policy(
        PolicyScope::System,
        PolicyKey::AllowedProviders,
        json!(["eu"]),
    )]);
    let mut resolution = resolve_preferences([
        preference(own_scope(), ALLOWED_PROVIDERS_PREFERENCE, json!(["eu", "us"])),
        preference(own_scope(), own, json!(["us"])),
    ]);
    held.clamp_preferences(&mut resolution);
    let values: BTreeMap<_, _> =
        resolution.effective.iter().map(|(key, held)| (key.as_str(), &held.value)).collect();
    assert_eq!(
        values,
        BTreeMap::from([(ALLOWED_PROVIDERS_PREFERENCE, &json!(["eu"])), (own, &json!([]))])
    );
    assert!(resolution.effective.values().all(|held| held.policy));

    let mut nothing_said = PreferenceResolution::default();
    held.clamp_preferences(&mut nothing_said);
    let key: DottedKey = ALLOWED_PROVIDERS_PREFERENCE.parse().unwrap();
    assert_eq!(nothing_said.effective[&key].value, json!(["eu"]));
}

#[test]
fn a_demand_is_not_switched_off_and_what_contradicts_it_is_named() {
    let held =
        PolicySet::from_entries(vec![policy(project(), PolicyKey::PlanApproval, json!(true))]);
    let key: DottedKey = APPROVE_PLAN_PREFERENCE.parse().unwrap();
    let contradicted = held.find_contradiction(&key, &json!(false)).unwrap();
    assert_eq!(
        contradicted.describe_policy(),
        "the policy `workflow.approve_plan` of the project demands it; ann set it on 2026-11-17"
    );
    assert_eq!(held.find_contradiction(&key, &json!(true)), None);
    let mut values = BTreeMap::from([(key.clone(), json!(false))]);
    held.clamp_values(&mut values);
    assert_eq!(values, BTreeMap::from([(key, json!(true))]));
}

#[test]
fn a_node_gets_jobs_only_where_every_policy_allows_its_name_and_a_label() {
    let held = PolicySet::from_entries(vec![
        policy(PolicyScope::System, PolicyKey::AllowedLabels, json!(["eu", "ch"])),
        policy(project(), PolicyKey::AllowedNodes, json!(["a", "b"])),
    ]);
    let bounds = held.placement_bounds();
    let allowed = |name: &str, labels: &[&str]| {
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        bounds.find_refusal(name, &labels).is_none()
    };
    assert!(allowed("a", &["linux", "eu"]));
    assert!(!allowed("a", &["linux"]));
    assert!(!allowed("a", &[]));
    assert!(!allowed("c", &["eu"]));
    assert!(PlacementBounds::default().find_refusal("c", &[]).is_none());
}

proptest! {
    #[test]
    fn whatever_is_preferred_the_providers_stay_within_every_policy(
        system in proptest::collection::btree_set("[a-d]", 0..4),
        narrow in proptest::option::of(proptest::collection::btree_set("[a-d]", 0..4)),
        preferred in proptest::option::of(proptest::collection::vec("[a-d]", 0..4)),
        own in proptest::option::of(proptest::collection::vec("[a-d]", 0..4)),
    ) {
        let mut entries = vec![policy(PolicyScope::System, PolicyKey::AllowedProviders, json!(system))];
        entries.extend(narrow.as_ref().map(|names| policy(project(), PolicyKey::AllowedProviders, json!(names))));
        let held = PolicySet::from_entries(entries);
        let own_key = "agents.project_manager.model_routing.allowed_external_providers";
        let preferences = [(ALLOWED_PROVIDERS_PREFERENCE, preferred), (own_key, own)];
        let entries = preferences.into_iter().filter_map(|(key, names)| {
            names.map(|names| preference(own_scope(), key, json!(names)))
        });
        let mut resolution = resolve_preferences(entries);
        held.clamp_preferences(&mut resolution);
        let general: DottedKey = ALLOWED_PROVIDERS_PREFERENCE.parse().unwrap();
        prop_assert!(resolution.effective.contains_key(&general));
        for held in resolution.effective.values() {
            for name in held.value.as_array().unwrap() {
                let name = name.as_str().unwrap();
                prop_assert!(system.contains(name));
                prop_assert!(narrow.as_ref().is_none_or(|names| names.contains(name)));
            }
        }
    }
}
