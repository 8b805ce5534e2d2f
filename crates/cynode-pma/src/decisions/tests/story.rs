//! The example of the specification, from a plain sentence to a delivery: "Add dark mode toggle to settings page".

use cynode_core::{
    agents::AgentRole,
    workflow::{
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
        [DecisionKind::Classify, DecisionKind::AssessScope, DecisionKind::Plan]
    );
    assert_eq!(tools.names(), ["git.tree", "git.read CLAUDE.md"]);
    assert_eq!(
        shape(&planned),
        [
            "add-dark-mode-toggle-to-settings (implementation) after nothing",
            "review (review) after add-dark-mode-toggle-to-settings",
        ]
    );
    assert_json_snapshot!(planned);
}

#[tokio::test]
async fn the_developer_is_sent_with_the_task_two_files_and_the_pattern_to_follow() {
    let (planned, ..) = plan().await;
    assert_json_snapshot!(sent(&planned, "add-dark-mode-toggle-to-settings").await);
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
    assert_eq!(asked, Ok(HandoffOutcome::Delegate), "S002-32");

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
    assert_eq!(script.kinds(), [DecisionKind::ChooseTests]);
    assert_eq!(judgement.outcome, VerifyOutcome::Accept);
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
