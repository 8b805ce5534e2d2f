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
        "S004-129, S004-142, B004-45"
    );
}

#[test]
fn there_are_three_classes_and_four_scopes_and_no_other() {
    // A further one does not compile here.
    let class = |class: WorkClass| match class {
        WorkClass::NewProject => "new_project",
        WorkClass::FeatureRequest => "feature_request",
        WorkClass::QuickFix => "quick_fix",
    };
    let scope = |scope: IssueScope| match scope {
        IssueScope::Trivial => "trivial",
        IssueScope::Small => "small",
        IssueScope::Medium => "medium",
        IssueScope::Large => "large",
    };
    assert_eq!(
        WorkClass::ALL.map(class),
        ["new_project", "feature_request", "quick_fix"],
        "S004-028"
    );
    assert_eq!(IssueScope::ALL.map(scope), ["trivial", "small", "medium", "large"], "S004-033");
}

#[test]
fn each_class_and_scope_has_the_stages_of_the_decision_tree() {
    use IssueScope::{Large, Medium, Small, Trivial};
    use WorkClass::{FeatureRequest, NewProject, QuickFix};
    for scope in IssueScope::ALL {
        let all = "init spec design implementation* review test";
        assert_eq!(told(NewProject, scope), all, "S004-029, S004-040: the full pipeline, in order");
        assert_eq!(told(QuickFix, scope), "fix", "S004-031, S004-046: one fix, and no review");
    }
    let features = IssueScope::ALL.map(|scope| told(FeatureRequest, scope));
    let scoped = [
        "implementation review",
        "implementation review",
        "implementation* review",
        "spec implementation* review test",
    ];
    assert_eq!(features, scoped, "S004-030: the scope decides the pipeline of a feature");
    let large = told(FeatureRequest, Large);
    assert!(large.starts_with("spec "), "S004-037, S004-042: an architect plans first: {large}");
    assert!(large.ends_with(" review test"), "S004-042, S004-047: a full review: {large}");
    let medium = told(FeatureRequest, Medium);
    assert_eq!(medium, "implementation* review", "S004-043, S004-047: no architect, then a review");
    let small = told(FeatureRequest, Small);
    assert_eq!(small, "implementation review", "S004-044: directly to the developer");
    assert_eq!(told(FeatureRequest, Trivial), small, "S004-045: trivial is as small");
}

#[test]
fn class_and_scope_decide_the_worker_and_its_tier() {
    use IssueScope::{Large, Medium, Small, Trivial};
    let assigned = |role, worker, tier| UnitAssignment { role, worker, tier };
    let fixer = assigned(AgentRole::Developer, WorkerKind::Fixer, Tier::Fast);
    let specialist = assigned(AgentRole::Developer, WorkerKind::Specialist, Tier::Standard);
    let implements = |scope| assign_unit(scope, UnitKind::Implementation);
    assert_eq!(implements(Trivial), fixer, "S004-034: the fixer and the fast tier");
    assert_eq!(implements(Small), fixer, "S004-035: the fixer and the fast tier");
    assert_eq!(implements(Medium), specialist, "S004-036: the specialist and the standard tier");
    let bug = assign_unit(Small, UnitKind::Fix);
    let mends = assigned(AgentRole::Fixer, WorkerKind::Fixer, Tier::Fast);
    assert_eq!(bug, mends, "S004-046: a bug is the fixer's");
    let reviews = |scope| assign_unit(scope, UnitKind::Review).tier;
    assert_eq!(reviews(Small), Tier::Fast, "S004-044, S004-047: a quick review");
    assert_eq!(reviews(Large), Tier::Deep, "S004-042, S004-047: a full review");
    let agents = |class, scope| -> Vec<UnitAssignment> {
        workflow_stages(class, scope).iter().map(|stage| assign_unit(scope, stage.kind)).collect()
    };
    let feature = agents(WorkClass::FeatureRequest, Small);
    assert_ne!(agents(WorkClass::QuickFix, Small), feature, "S004-007: the class decides");
    assert_ne!(agents(WorkClass::FeatureRequest, Large), feature, "S004-007: the scope decides");
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
        ],
        "S004-100, S004-101, S004-102, S004-103, S004-104, S004-105, S004-134, S004-140, S004-144: each scope and kind of unit has a \
         role, a kind of worker of a neutral name and a tier"
    );
}

#[test]
fn a_typo_and_a_new_subsystem_get_different_agents() {
    let agents = |class, scope| -> Vec<UnitAssignment> {
        workflow_stages(class, scope).iter().map(|stage| assign_unit(scope, stage.kind)).collect()
    };
    let typo = agents(WorkClass::QuickFix, IssueScope::Trivial);
    let subsystem = agents(WorkClass::FeatureRequest, IssueScope::Large);
    assert!(typo.iter().all(|agent| !subsystem.contains(agent)), "S004-099");
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
    let written = serde_json::to_value(WorkClass::QuickFix).unwrap();
    assert_eq!(written, "quick_fix", "S004-032: one name is written");
    assert_eq!(read("bug_fix"), Some(WorkClass::QuickFix), "S004-032: and the other is read");
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
