use proptest::prelude::*;

use super::*;
use crate::agents::AgentKind;

fn every() -> impl Iterator<Item = (WorkClass, IssueScope)> {
    WorkClass::ALL.into_iter().flat_map(|class| IssueScope::ALL.map(|scope| (class, scope)))
}

fn told(class: WorkClass, scope: IssueScope) -> String {
    let stages = workflow_stages(class, scope).iter().map(|stage| match stage.units {
        StageUnits::One => stage.kind.as_str().to_owned(),
        StageUnits::Several => format!("{}*", stage.kind.as_str()),
    });
    stages.collect::<Vec<_>>().join(" ")
}

#[test]
fn every_class_and_scope_has_the_workflow_of_the_table() {
    let table: Vec<_> = every()
        .map(|(class, scope)| {
            format!("{} {}: {}", class.as_str(), scope.as_str(), told(class, scope))
        })
        .collect();
    assert_eq!(
        table,
        [
            "new_project trivial: init spec design implementation* review test",
            "new_project small: init spec design implementation* review test",
            "new_project medium: init spec design implementation* review test",
            "new_project large: init spec design implementation* review test",
            "feature_request trivial: implementation review",
            "feature_request small: implementation review",
            "feature_request medium: implementation* review",
            "feature_request large: spec implementation* review test",
            "quick_fix trivial: fix",
            "quick_fix small: fix",
            "quick_fix medium: fix",
            "quick_fix large: fix",
        ],
        "B004-45"
    );
}

#[test]
fn a_stage_comes_after_every_stage_before_it_that_leaves_files() {
    for (class, scope) in every() {
        let stages = workflow_stages(class, scope);
        for (index, stage) in stages.iter().enumerate() {
            let before: Vec<_> = stages[..index].iter().map(|stage| stage.kind).collect();
            assert!(stage.after.iter().all(|kind| before.contains(kind)), "{class:?} {scope:?}");
            // A job starts from the commits of the units that it names, so that none may be left out.
            let files = before.iter().filter(|kind| kind.leaves_files());
            assert!(files.clone().all(|kind| stage.after.contains(kind)), "{class:?} {scope:?}");
        }
    }
}

#[test]
fn every_kind_of_unit_in_every_scope_has_somebody_of_the_table() {
    let mut table = Vec::new();
    for kind in UnitKind::ALL {
        for scope in IssueScope::ALL {
            let UnitAssignment { role, worker, tier } = assign_unit(scope, kind);
            table.push(format!(
                "{} {}: {} {} {}",
                kind.as_str(),
                scope.as_str(),
                role.as_str(),
                worker.as_str(),
                tier.as_str()
            ));
        }
    }
    assert_eq!(
        table,
        [
            "init trivial: developer specialist standard",
            "init small: developer specialist standard",
            "init medium: developer specialist standard",
            "init large: developer specialist standard",
            "spec trivial: architect planner standard",
            "spec small: architect planner standard",
            "spec medium: architect planner standard",
            "spec large: architect planner deep",
            "design trivial: designer planner standard",
            "design small: designer planner standard",
            "design medium: designer planner standard",
            "design large: designer planner standard",
            "implementation trivial: developer fixer fast",
            "implementation small: developer fixer fast",
            "implementation medium: developer specialist standard",
            "implementation large: developer specialist standard",
            "integration trivial: fixer fixer fast",
            "integration small: fixer fixer fast",
            "integration medium: fixer fixer fast",
            "integration large: fixer fixer fast",
            "fix trivial: fixer fixer fast",
            "fix small: fixer fixer fast",
            "fix medium: fixer fixer fast",
            "fix large: fixer fixer fast",
            "review trivial: reviewer reviewer fast",
            "review small: reviewer reviewer fast",
            "review medium: reviewer reviewer standard",
            "review large: reviewer reviewer deep",
            "test trivial: tester tester fast",
            "test small: tester tester fast",
            "test medium: tester tester standard",
            "test large: tester tester standard",
        ]
    );
}

#[test]
fn a_typo_and_a_new_subsystem_get_different_agents() {
    let agents = |class, scope| -> Vec<UnitAssignment> {
        workflow_stages(class, scope).iter().map(|stage| assign_unit(scope, stage.kind)).collect()
    };
    let typo = agents(WorkClass::QuickFix, IssueScope::Trivial);
    let subsystem = agents(WorkClass::FeatureRequest, IssueScope::Large);
    assert!(typo.iter().all(|agent| !subsystem.contains(agent)));
}

#[test]
fn whoever_is_sent_works_in_a_sandbox_and_has_a_kind_of_unit() {
    for kind in UnitKind::ALL {
        for scope in IssueScope::ALL {
            let role = assign_unit(scope, kind).role;
            assert_eq!(role.agent_kind(), AgentKind::Sandbox, "X-17: {role:?}");
            assert!(unit_kind_for_role(role).is_some());
        }
    }
    for role in AgentRole::ALL {
        assert_eq!(
            unit_kind_for_role(role).is_some(),
            role.agent_kind() == AgentKind::Sandbox,
            "{role:?}"
        );
    }
    // The table is total: whoever is in no sandbox is one of these.
    let outside: Vec<&str> = AgentRole::ALL
        .into_iter()
        .filter(|role| role.agent_kind() != AgentKind::Sandbox)
        .map(AgentRole::as_str)
        .collect();
    for role in ["project_manager", "project_analyst"] {
        assert!(outside.contains(&role), "X-17: {role} is of the control plane: {outside:?}");
    }
}

#[test]
fn classes_and_scopes_have_one_name_each_and_a_bug_fix_is_a_quick_fix() {
    for class in WorkClass::ALL {
        assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
    }
    for scope in IssueScope::ALL {
        assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
    }
    for kind in UnitKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
    for worker in WorkerKind::ALL {
        assert_eq!(serde_json::to_value(worker).unwrap(), worker.as_str());
    }
    for name in ["spec", "design", "implementation", "review", "test"] {
        assert!(UnitKind::ALL.iter().any(|kind| kind.as_str() == name), "B004-04: {name}");
    }
    let read = |name: &str| serde_json::from_value::<WorkClass>(name.into()).ok();
    assert_eq!(read("bug_fix"), Some(WorkClass::QuickFix));
    assert_eq!(read("BUG_FIX"), None);
    assert_eq!(read("chore"), None);
}

#[test]
fn a_key_is_made_from_the_title_and_numbered_when_it_is_taken() {
    let mut taken = BTreeSet::new();
    let mut key = |title: &str| {
        let key = derive_unit_key(title, &taken);
        taken.insert(key.clone());
        key.to_string()
    };
    assert_eq!(key("Add the toggle: Settings.razor"), "add-the-toggle-settings-razor");
    assert_eq!(key("Add the toggle, settings/razor!"), "add-the-toggle-settings-razor-2");
    assert_eq!(key("¿¿¿"), "task");
    assert_eq!(key("3 fixes"), "task-3-fixes");
    assert_eq!(key("日本語"), "task-2");
}

proptest! {
    #[test]
    fn any_titles_give_different_keys(titles in prop::collection::vec(".{0,80}", 0..20)) {
        let mut taken = BTreeSet::new();
        for title in titles {
            let key = derive_unit_key(&title, &taken);
            prop_assert!(key.as_str().parse::<UnitKey>().is_ok(), "{}", key);
            prop_assert!(taken.insert(key));
        }
    }
}
