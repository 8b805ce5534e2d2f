use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;

fn key(text: &str) -> DottedKey {
    text.parse().unwrap()
}

fn entry(scope: PreferenceScope, name: &str, value: Value) -> PreferenceEntry {
    PreferenceEntry { scope, key: key(name), value, version: 1 }
}

fn group(number: u128) -> PreferenceScope {
    PreferenceScope::Group(GroupId::from_uuid(Uuid::from_u128(number)))
}

fn every_scope() -> [PreferenceScope; 6] {
    let one = Uuid::from_u128(1);
    [
        PreferenceScope::System,
        group(1),
        group(2),
        PreferenceScope::User(UserId::from_uuid(one)),
        PreferenceScope::Project(ProjectId::from_uuid(one)),
        PreferenceScope::Task(TaskId::from_uuid(one)),
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
        let expected = EffectivePreference {
            value: json!(format!("{strongest:?}")),
            scope: strongest,
            version: 1,
            policy: false,
        };
        assert_eq!(
            resolve_preferences(entries).effective,
            BTreeMap::from([(key("output.summary_style"), expected)]),
            "S000-067"
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
    assert_eq!(resolve_preferences(entries.clone()), PreferenceResolution::default());
    let with_task = entries.into_iter().chain([entry(task, "language.preferred", json!("go"))]);
    assert_eq!(
        resolve_preferences(with_task).effective[&key("language.preferred")].value,
        json!("go")
    );
}

#[test]
fn a_value_of_the_wrong_kind_never_overrides_a_good_one_and_is_reported() {
    let [system, .., task] = every_scope();
    let bad = entry(task, "agents.project_manager.model_routing.prefer_local", json!("yes"));
    let good = entry(system, "agents.project_manager.model_routing.prefer_local", json!(true));
    let resolution = resolve_preferences([bad.clone(), good.clone()]);
    assert_eq!(resolution.effective[&good.key].scope, system);
    assert_eq!(resolution.invalid, [bad]);
}

#[test]
fn the_project_managers_keys_apply_to_the_project_manager() {
    for name in ["prefer_local", "allowed_external_providers", "fallback_provider_order"] {
        let name = key(&format!("agents.project_manager.model_routing.{name}"));
        assert!(value_kind_of(&name).is_some(), "S000-106: {name}");
        assert!(applies_to(&name, AgentRole::ProjectManager), "S000-106: {name}");
    }
}

#[test]
fn the_analysts_keys_apply_to_the_analyst() {
    for name in ["prefer_local", "allowed_external_providers", "anything_else"] {
        let name = key(&format!("agents.project_analyst.model_routing.{name}"));
        assert!(applies_to(&name, AgentRole::ProjectAnalyst), "S000-107: {name}");
    }
}

#[test]
fn a_key_that_only_looks_like_an_agents_key_reaches_no_agent() {
    for name in ["agents.project_manager", "agents.project_managers.x", "agents.x.project_manager"]
    {
        for role in AgentRole::ALL {
            assert!(!applies_to(&key(name), role), "S000-108: {name}");
        }
    }
}

#[test]
fn a_preference_for_a_profile_takes_the_name_of_one() {
    for name in ["memory.profile", "agents.project_manager.profile"] {
        for value in ["NO NAME", "", "a--b"] {
            let refused = validate_new_preference(&key(name), &json!(value)).unwrap_err();
            assert!(refused.to_string().contains("the name of a profile"), "{name}: {refused}");
        }
        for value in [json!("careful"), json!(null)] {
            assert!(validate_new_preference(&key(name), &value).is_ok(), "{name}: {value}");
        }
    }
}

#[test]
fn a_preference_that_nobody_reads_is_refused_with_the_nearest_name() {
    let refused = |name: &str| {
        validate_new_preference(&key(name), &json!(1)).map_err(|error| error.to_string())
    };
    assert_eq!(
        refused("workflow.aprove_plan"),
        Err("there is no preference `workflow.aprove_plan`; is `workflow.approve_plan` meant?"
            .into())
    );
    assert_eq!(
        refused("agents.project_manager.workers.develper"),
        Err("there is no preference `agents.project_manager.workers.develper`; \
            is `agents.project_manager.workers.developer` meant?"
            .into())
    );
    assert_eq!(
        refused("foo.bar"),
        Err("there is no preference `foo.bar`; docs/reference/preferences.md lists them all; what agents are to be told goes under \
            `standards.<name>`".into())
    );
    assert!(refused("agents.architect.additional_context").is_err());
    assert_eq!(refused("standards.naming.files"), Ok(()));
    assert_eq!(
        refused("standards.markdown.line_length").and(refused("workflow.node_timeouts.plan_steps")),
        Ok(())
    );
    assert_eq!(
        refused("workflow.approve_plan"),
        Err("the value of `workflow.approve_plan` must be true or false, or null".into())
    );
}

#[test]
fn every_preference_is_found_by_its_own_key_and_they_are_in_order() {
    for pair in registry::KNOWN.windows(2) {
        assert!(pair[0].key < pair[1].key, "{} {}", pair[0].key, pair[1].key);
    }
    for one in registry::KNOWN {
        let words = ["<agent>", "<step>", "<worker>", "<name>"];
        let word = words.into_iter().find(|word| one.key.contains(word)).unwrap_or("<none>");
        let mut values = registry::placeholder_values(word);
        values.push(if word == "<name>" { "any.thing" } else { "" });
        for value in values.into_iter().filter(|value| word == "<none>" || !value.is_empty()) {
            let name = one.key.replace(word, value);
            assert_eq!(registry::find_preference(&name), Some(one), "{name}");
        }
    }
}

#[test]
fn the_reference_page_has_the_table_that_the_code_has() {
    let page = include_str!("../../../../docs/reference/preferences.md");
    let table = registry::render_table();
    assert!(page.contains(&table), "docs/reference/preferences.md must contain:\n{table}");
}

#[test]
fn every_number_of_a_run_that_is_listed_is_read() {
    let good = |one: &registry::Preference| match one.kind {
        ValueKind::Boolean => json!(false),
        _ => json!(7),
    };
    for one in registry::KNOWN.iter().filter(|one| one.key.starts_with("workflow.")) {
        let name = one.key.replace("<step>", "plan_steps");
        let set = BTreeMap::from([(key(&name), good(one))]);
        let (limits, notes) = crate::workflow::limits::RunLimits::from_preferences(&set);
        assert_eq!(notes, [], "{name}");
        assert_ne!(limits, crate::workflow::limits::RunLimits::default(), "{name} changes nothing");
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
            let build = |role: AgentRole, raw: &[(String, bool, usize)]| -> Vec<PreferenceEntry> {
                raw.iter()
                    .map(|(name, value, scope)| {
                        entry(scopes[*scope], &format!("agents.{}.{name}", role.as_str()), json!(value))
                    })
                    .collect()
            };
            let alone = resolve_for_role(role, build(role, &own));
            let mixed = resolve_for_role(role, build(other, &foreign).into_iter().chain(build(role, &own)));
            prop_assert_eq!(alone, mixed, "S000-108: keys of the other role change nothing");
        }
    }
}

#[test]
fn what_people_prefer_becomes_constraints_of_coding_agents() {
    let held = resolve_for_role(
        AgentRole::Developer,
        [
            entry(PreferenceScope::System, "code.language.disallowed", json!(["python", "perl"])),
            entry(PreferenceScope::System, "language.preferred", json!("rust")),
            entry(PreferenceScope::System, "standards.markdown.line_length", json!(100)),
            entry(PreferenceScope::System, "standards.naming.files", json!({ "case": "kebab" })),
            entry(PreferenceScope::System, "standards.tests", json!("One for each sentence.")),
            entry(
                PreferenceScope::System,
                "agents.sandbox_agent.additional_context",
                json!(["One.", "Two."]),
            ),
            entry(
                PreferenceScope::System,
                "agents.project_manager.additional_context",
                json!("Not for them."),
            ),
            entry(PreferenceScope::System, "output.summary_style", json!("short")),
        ],
    );
    let expected = [
        "Add no file in these languages, or the change is sent back: python, perl.",
        "Where there is a choice, the preferred language is: rust.",
        "A line of Markdown has at most 100 characters.",
        "Standard `naming.files`: {\"case\":\"kebab\"}",
        "Standard `tests`: One for each sentence.",
    ];
    assert_eq!(held.agent_constraints(), expected);
    assert_eq!(held.agent_additional_context().as_deref(), Some("One.\n\nTwo."));
    let manager = resolve_for_role(
        AgentRole::ProjectManager,
        [entry(PreferenceScope::System, "agents.sandbox_agent.additional_context", json!("x"))],
    );
    assert_eq!(manager.agent_additional_context(), None, "S000-068");
    assert_eq!(PreferenceResolution::default().agent_constraints(), Vec::<String>::new());
}

#[test]
fn what_is_told_to_coding_agents_is_bounded() {
    let names = (0..150).map(|at| format!("standards.s{at:03}"));
    let long = json!("x".repeat(30_000));
    let mut entries: Vec<_> =
        names.map(|name| entry(PreferenceScope::System, &name, long.clone())).collect();
    entries.push(entry(PreferenceScope::System, "agents.sandbox_agent.additional_context", long));
    let held = resolve_for_role(AgentRole::Tester, entries);
    let told = held.agent_constraints();
    assert_eq!(told.len(), 100);
    assert!(told.iter().all(|text| text.chars().count() <= 2000));
    assert_eq!(held.agent_additional_context().map(|text| text.len()), Some(24_000));
}
