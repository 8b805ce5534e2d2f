use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;

fn key(text: &str) -> DottedKey {
    text.parse().unwrap()
}

fn entry(scope: Scope, name: &str, value: Value) -> Entry {
    Entry { scope, key: key(name), value, version: 1 }
}

fn group(number: u128) -> Scope {
    Scope::Group(GroupId::from_uuid(Uuid::from_u128(number)))
}

fn every_scope() -> [Scope; 6] {
    let one = Uuid::from_u128(1);
    [
        Scope::System,
        group(1),
        group(2),
        Scope::User(UserId::from_uuid(one)),
        Scope::Project(ProjectId::from_uuid(one)),
        Scope::Task(TaskId::from_uuid(one)),
    ]
}

#[test]
fn task_beats_project_beats_user_beats_group_beats_system() {
    let scopes = every_scope();
    for (position, strongest) in scopes.into_iter().enumerate() {
        let entries = scopes[..=position]
            .iter()
            .rev()
            .map(|scope| entry(*scope, "output.summary_style", json!(format!("{scope:?}"))));
        let expected =
            Effective { value: json!(format!("{strongest:?}")), scope: strongest, version: 1 };
        assert_eq!(
            resolve(entries).effective,
            BTreeMap::from([(key("output.summary_style"), expected)])
        );
    }
}

#[test]
fn null_hides_what_the_scopes_below_say() {
    let [system, .., project, task] = every_scope();
    let entries = [
        entry(system, "language.preferred", json!("rust")),
        entry(project, "language.preferred", Value::Null),
    ];
    assert_eq!(resolve(entries.clone()), Resolution::default());
    let with_task = entries.into_iter().chain([entry(task, "language.preferred", json!("go"))]);
    assert_eq!(resolve(with_task).effective[&key("language.preferred")].value, json!("go"));
}

#[test]
fn a_value_of_the_wrong_kind_never_overrides_a_good_one_and_is_reported() {
    let [system, .., task] = every_scope();
    let bad = entry(task, "agents.project_manager.model_routing.prefer_local", json!("yes"));
    let good = entry(system, "agents.project_manager.model_routing.prefer_local", json!(true));
    let resolution = resolve([bad.clone(), good.clone()]);
    assert_eq!(resolution.effective[&good.key].scope, system);
    assert_eq!(resolution.invalid, [bad]);
}

#[test]
fn the_project_managers_keys_apply_to_the_project_manager() {
    for name in ["prefer_local", "allowed_external_providers", "fallback_provider_order"] {
        let name = key(&format!("agents.project_manager.model_routing.{name}"));
        assert!(known(&name).is_some(), "{name}");
        assert!(applies_to(&name, AgentRole::ProjectManager), "{name}");
    }
}

#[test]
fn the_analysts_keys_apply_to_the_analyst() {
    for name in ["prefer_local", "allowed_external_providers", "anything_else"] {
        let name = key(&format!("agents.project_analyst.model_routing.{name}"));
        assert!(applies_to(&name, AgentRole::ProjectAnalyst), "{name}");
    }
}

#[test]
fn a_key_that_only_looks_like_an_agents_key_reaches_no_agent() {
    for name in ["agents.project_manager", "agents.project_managers.x", "agents.x.project_manager"]
    {
        for role in AgentRole::ALL {
            assert!(!applies_to(&key(name), role), "{name}");
        }
    }
}

proptest! {
    #[test]
    fn keys_of_one_agent_never_affect_the_other(
        own in proptest::collection::vec(("[a-z]{1,8}", any::<bool>(), 0_usize..6), 0..12),
        foreign in proptest::collection::vec(("[a-z]{1,8}", any::<bool>(), 0_usize..6), 0..12),
    ) {
        let scopes = every_scope();
        for (role, other) in [
            (AgentRole::ProjectManager, AgentRole::ProjectAnalyst),
            (AgentRole::ProjectAnalyst, AgentRole::ProjectManager),
        ] {
            let build = |role: AgentRole, raw: &[(String, bool, usize)]| -> Vec<Entry> {
                raw.iter()
                    .map(|(name, value, scope)| {
                        entry(scopes[*scope], &format!("agents.{}.{name}", role.as_str()), json!(value))
                    })
                    .collect()
            };
            let alone = resolve_for(role, build(role, &own));
            let mixed = resolve_for(role, build(other, &foreign).into_iter().chain(build(role, &own)));
            prop_assert_eq!(alone, mixed);
        }
    }
}
