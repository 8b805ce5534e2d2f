//! The example of the specification, from a plain sentence to a delivery: "Add dark mode toggle to settings page".

use cynode_core::{
    agents::AgentRole,
    workflow::{
        decisions::{IssueScope, WorkClass},
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{
            AnalysisAnswer, AnalysisStatus, HandoffAnswer, HandoffRequest, PlanAnswer, ReadyUnit,
            VerifyOutcome, WorkAssignment,
        },
        reports::ReportKind,
    },
};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

use super::support::{
    Script, Tools, answer, class, handoff, judged, judging, planned, planning, report, run, scope,
    shape, task_id, tests,
};
use crate::{decision_context::DecisionKind, decisions::HandoffOutcome};

const WORDS: &str = "Add dark mode toggle to settings page";

const CLAUDE_MD: &str = "# Shop\n\n## Architecture\n\nThree layers: Core, then Infrastructure, then App.\n\n\
    ## Key paths\n\n- `Pages/`: what people see\n- `Shared/` - parts of several pages\n\n\
    ## Patterns\n\n- **Settings**: kept in the local storage\n\n\
    ## Build\n\n```bash\ndotnet build\ndotnet test\n```\n";

fn files() -> Tools {
    Tools::with_files(&[
        ("CLAUDE.md", CLAUDE_MD),
        ("Pages/Preferences.razor", "<Toggle />"),
        ("Pages/Settings.razor", "<h1>Settings</h1>"),
        ("Shared/ThemeProvider.razor", ""),
    ])
}

fn proposal() -> (DecisionKind, Value) {
    let unit = json!({
        "title": "Add dark mode toggle to settings",
        "kind": "implementation",
        "files_to_modify": ["Pages/Settings.razor", "Shared/ThemeProvider.razor"],
        "files_to_read_first": ["Pages/Preferences.razor"],
        "pattern_reference": "Follow existing toggle in Pages/Preferences.razor",
        "constraints": ["Keep the choice in the local storage"],
        "requirements": ["The toggle switches the theme at once"],
        "depends_on": [],
        "checks": [{"argv": ["dotnet", "build"]}],
    });
    let plan = json!({
        "reason": "one component", "units": [unit], "leave_out": [],
        "assumptions": ["The theme can be changed at run time"], "question": "",
    });
    (DecisionKind::Plan, plan)
}

/// The plan, with what it took.
async fn plan() -> (PlanAnswer, Script, Tools) {
    let script = Script::of(&[class("feature_request"), scope("small"), proposal()]);
    let tools = files();
    let planned = planned(run(&handoff(WORDS, planning()), &script, &tools).await);
    (planned, script, tools)
}

fn ready(planned: &PlanAnswer, key: &str, results: &[(&str, Value)]) -> HandoffRequest {
    let unit = planned.plan.planned_units().iter().find(|unit| unit.key.as_str() == key).unwrap();
    HandoffRequest::Dispatch {
        units: vec![ReadyUnit {
            unit: unit.key.clone(),
            title: unit.title.to_string(),
            payload: unit.payload.clone(),
            attempt: 1,
            findings: Vec::new(),
            results: results
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.clone()))
                .collect(),
        }],
    }
}

async fn sent(planned: &PlanAnswer, key: &str) -> WorkAssignment {
    let mut handoff = handoff(WORDS, ready(planned, key, &[]));
    handoff.context.planned = Some(Box::new(planned.clone()));
    let (script, tools) = (Script::default(), Tools::default());
    let HandoffAnswer::Assigned { assignments } = answer(run(&handoff, &script, &tools).await)
    else {
        panic!("nobody was sent");
    };
    assert!(script.kinds().is_empty(), "who is sent is no matter of thinking");
    assignments.into_iter().next().unwrap()
}

#[tokio::test]
async fn a_plain_sentence_becomes_a_feature_of_small_scope_for_developer_and_reviewer() {
    let (planned, script, tools) = plan().await;
    assert_eq!(
        script.kinds(),
        [DecisionKind::Classify, DecisionKind::AssessScope, DecisionKind::Plan],
        "S004-120, S004-142: it is classified first"
    );
    assert_eq!(tools.names(), ["git.tree", "git.read CLAUDE.md", "db.task.refine"]);
    assert_eq!(planned.class, WorkClass::FeatureRequest, "S004-126, S004-142");
    assert_eq!(planned.scope, IssueScope::Small, "S004-128, S004-142");
    assert_eq!(
        serde_json::to_value(&planned.project).unwrap(),
        json!({
            "claude_md": CLAUDE_MD,
            "architecture": "Three layers: Core, then Infrastructure, then App.",
            "key_paths": {"Pages/": "what people see", "Shared/": "parts of several pages"},
            "patterns": {"Settings": "kept in the local storage"},
            "build_commands": ["dotnet build", "dotnet test"],
        }),
        "S004-127, S004-142: the context is gathered before the plan"
    );
    assert_eq!(
        shape(&planned),
        [
            "add-dark-mode-toggle-to-settings (implementation) after nothing",
            "review (review) after add-dark-mode-toggle-to-settings",
        ],
        "S004-142: the workflow of a small feature"
    );
    assert_json_snapshot!(planned);
}

#[tokio::test]
async fn the_developer_is_sent_with_the_task_two_files_and_the_pattern_to_follow() {
    let (planned, ..) = plan().await;
    let sent = sent(&planned, "add-dark-mode-toggle-to-settings").await;
    let work = serde_json::to_value(&sent.work).unwrap();
    assert_eq!(
        json!([work["role"], work["worker"], work["models"]]),
        json!(["developer", {"kind": "acp", "agent": "goose"}, ["cynodeai.fast"]]),
        "S004-100: role, worker and model go with the context"
    );
    let context = &work["context"];
    assert_eq!(
        json!([
            context["task_summary"],
            context["files_to_modify"],
            context["files_to_read_first"],
            context["pattern_reference"],
        ]),
        json!([
            format!("Add dark mode toggle to settings (The whole task: {WORDS})"),
            ["Pages/Settings.razor", "Shared/ThemeProvider.razor"],
            ["Pages/Preferences.razor"],
            "Follow existing toggle in Pages/Preferences.razor",
        ]),
        "S004-084, S004-100, S004-133, S004-143: the agent gets fields and no free notes"
    );
    assert_eq!(
        json!([context["architecture"], context["key_paths"], context["patterns"]]),
        json!([
            "Three layers: Core, then Infrastructure, then App.",
            {"Pages/": "what people see", "Shared/": "parts of several pages"},
            {"Settings": "kept in the local storage", "build and test": "dotnet build; dotnet test"},
        ]),
        "S004-097, S004-133: the words of CLAUDE.md"
    );
    assert_json_snapshot!(sent);
}

#[tokio::test]
async fn a_sentence_is_classified_with_the_files_and_assessed_with_what_the_project_says() {
    let (planned, script, tools) = plan().await;
    let (kinds, questions) = (script.kinds(), script.questions());
    assert_eq!(kinds[0], DecisionKind::Classify, "S004-021, S004-038: the first decision");
    assert_eq!(kinds[1], DecisionKind::AssessScope, "S004-022, S004-041: the second decision");
    let is_listed = |question: &str| question.contains("Shared/ThemeProvider.razor");
    let is_described = |question: &str| question.contains("Three layers: Core");
    assert!(is_listed(&questions[0]), "S004-048, S004-049: the files are read before the class");
    assert!(!is_described(&questions[0]), "S004-049: the class is decided before the context");
    assert!(
        is_described(&questions[1]),
        "S004-048, S004-049: the context is read before the scope"
    );
    assert!(is_described(&questions[2]), "S004-048: the plan is made with the context");
    let judged = (planned.class, planned.scope);
    let expected = (WorkClass::FeatureRequest, IssueScope::Small);
    assert_eq!(judged, expected, "S004-005, S004-027, S004-041: a plain sentence is classified");
    let units = [
        "add-dark-mode-toggle-to-settings (implementation) after nothing",
        "review (review) after add-dark-mode-toggle-to-settings",
    ];
    assert_eq!(shape(&planned), units, "S004-006, S004-030, S004-044: not the full pipeline");
    let called = ["git.tree", "git.read CLAUDE.md", "db.task.refine"];
    assert_eq!(tools.names(), called, "S004-055: CLAUDE.md is read");
    let analysed = kinds.contains(&DecisionKind::AnalyseProject);
    assert!(!analysed, "S004-055: CLAUDE.md is parsed, and no model is asked about the project");
}

#[tokio::test]
async fn the_context_of_a_project_has_what_its_words_for_agents_say() {
    let (planned, ..) = plan().await;
    let context = serde_json::to_value(&planned.project).unwrap();
    assert_eq!(context["claude_md"], CLAUDE_MD, "S004-050");
    let architecture = "Three layers: Core, then Infrastructure, then App.";
    assert_eq!(context["architecture"], architecture, "S004-051");
    let key_paths = json!({"Pages/": "what people see", "Shared/": "parts of several pages"});
    assert_eq!(context["key_paths"], key_paths, "S004-052");
    let patterns = json!({"Settings": "kept in the local storage"});
    assert_eq!(context["patterns"], patterns, "S004-053");
    assert_eq!(context["build_commands"], json!(["dotnet build", "dotnet test"]), "S004-054");
}

#[tokio::test]
async fn who_is_sent_is_an_answer_that_a_test_double_can_take() {
    let (planned, script, tools) = plan().await;
    let assignment = sent(&planned, "add-dark-mode-toggle-to-settings").await;
    let sent = serde_json::to_value(&assignment).unwrap();
    let worker = json!([sent["unit"], sent["work"]["role"], sent["work"]["models"]]);
    let expected = json!(["add-dark-mode-toggle-to-settings", "developer", ["cynodeai.fast"]]);
    assert_eq!(worker, expected, "S004-019: the doubles of model, store and spawner are enough");
    let used = (script.kinds().len(), tools.names().len());
    assert_eq!(used, (3, 3), "S004-019: both doubles were used");
}

#[tokio::test]
async fn completed_work_is_given_to_an_analyst_and_accepted_when_it_passes() {
    let (planned, ..) = plan().await;
    let unit = "add-dark-mode-toggle-to-settings";
    let output =
        json!({"summary": "Added toggle with localStorage persistence", "stop_reason": "end_turn"});
    let verify = HandoffRequest::Verify(judging(&planned, unit, output));
    let mut handoff = handoff(WORDS, verify);
    let details = json!({"files_modified": ["Pages/Settings.razor"], "artifacts": [], "notes": []});
    let done = report(AgentRole::Developer, unit, ReportKind::WorkCompleted, details);
    handoff.context.reports = vec![done];
    handoff.context.planned = Some(Box::new(planned));
    let (script, tools) = (Script::default(), Tools::default());
    let asked = run(&handoff, &script, &tools).await;
    assert_eq!(asked, Ok(HandoffOutcome::Delegate), "S000-024, S002-32");

    handoff.delegated = vec![AnalysisAnswer {
        task_id: task_id(),
        status: AnalysisStatus::Pass,
        findings: vec![],
        recommended_actions: vec![],
        preferences_applied: std::collections::BTreeMap::new(),
    }];
    let judgement = judged(run(&handoff, &script, &tools).await);
    assert_eq!(judgement.outcome, VerifyOutcome::Accept);
    assert!(script.kinds().is_empty());
}

#[tokio::test]
async fn the_reviewer_is_sent_with_the_context_and_leaves_nothing_behind() {
    let (planned, ..) = plan().await;
    assert_json_snapshot!(sent(&planned, "review").await);
}

#[tokio::test]
async fn an_approved_review_with_a_minor_issue_ends_it_without_tests() {
    let (planned, ..) = plan().await;
    let verify =
        HandoffRequest::Verify(judging(&planned, "review", json!({"summary": "Looks good"})));
    let mut handoff = handoff(WORDS, verify);
    let details = json!({
        "minor_issues": [{"description": "Consider adding transition animation"}],
        "summary": "Looks good",
    });
    handoff.context.reports =
        vec![report(AgentRole::Reviewer, "review", ReportKind::ReviewApproved, details)];
    handoff.context.planned = Some(Box::new(planned));
    let (script, tools) = (Script::of(&[tests(false)]), Tools::default());
    let judgement = judged(run(&handoff, &script, &tools).await);
    assert_eq!(script.kinds(), [DecisionKind::ChooseTests], "S004-158");
    assert_eq!(
        judgement.outcome,
        VerifyOutcome::Accept,
        "S004-158: tests that need not run are not required to pass"
    );
    assert_eq!(
        judgement.findings,
        [VerificationFinding::new(
            FindingSeverity::Minor,
            "Consider adding transition animation".to_owned()
        )]
    );
    assert_eq!(
        judgement.note,
        "the review found it good; no tests are needed: a small change of looks, a look is enough"
    );
}
