//! Failures, questions of agents, summaries, schedules, and the analyst.

use cynode_core::{
    agents::AgentRole,
    delivery::PullRequestRef,
    ids::TaskId,
    workflow::{
        decisions::{IssueScope, WorkClass},
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{
            AnalysisAnswer, AnalysisStatus, AppliedPreference, EndedUnit, FailureDecision,
            HandoffAnswer, HandoffRequest, PlanAnswer, ProjectContext, ReadyUnit,
            ResultVerification, WorkAssignment,
        },
        jobs::WorkerChoice,
        reports::ReportKind,
        waits::EndedWait,
    },
};
use cynode_wire::manager::handoffs::HandoffAssignment;
use serde_json::{Value, json};
use uuid::Uuid;

use super::support::{
    Script, Tools, answer, asked, handoff, planning, prefer, report, run, said, task_id,
};
use crate::{
    decision_context::{DecisionContext, DecisionError, DecisionKind},
    decisions::{HandoffOutcome, analyst, context::failed_with, manager, unit::reviewable_output},
    mcp_client::McpError,
};

const WORDS: &str = "Add a toggle";

fn failure(attempts_left: u32, answer: Option<EndedWait>) -> HandoffAssignment {
    let request = HandoffRequest::Failure {
        unit: "add-it".parse().unwrap(),
        title: "Add it".to_owned(),
        payload: json!({}),
        attempt: 2,
        attempts_left,
        reason: "the job failed: timeout".to_owned(),
        answer,
    };
    handoff(WORDS, request)
}

fn thinks(decision: &str) -> Script {
    let answer = json!({"reason": "", "note": "smaller steps", "decision": decision});
    Script::of(&[(DecisionKind::HandleFailure, answer)])
}

fn decided(decision: FailureDecision, note: &str, by_person: bool) -> HandoffAnswer {
    HandoffAnswer::Decided { decision, note: note.to_owned(), by_person }
}

#[tokio::test]
async fn a_failure_is_tried_again_or_planned_smaller_or_brought_to_a_person() {
    let tools = Tools::default();
    let of = async |left, decision: &str| {
        answer(run(&failure(left, None), &thinks(decision), &tools).await)
    };
    let retry = decided(FailureDecision::Retry, "smaller steps", false);
    assert_eq!(
        of(1, "retry").await,
        retry,
        "S004-024, B004-31, X-11: the workflow asks what follows"
    );
    assert_eq!(
        of(1, "reduce_scope").await,
        decided(FailureDecision::ReduceScope, "smaller steps", false),
        "S004-024: reduce the scope"
    );
    let question = "Unit `add-it` (Add it) came to nothing in attempt 2: the job failed: timeout\nsmaller steps\n\
        Answer `stop` to give the task up, or say what is to be done otherwise: then it is tried again.";
    for (left, decision) in [(1, "escalate"), (0, "retry")] {
        let asks = HandoffAnswer::Ask { question: question.to_owned() };
        assert_eq!(of(left, decision).await, asks, "S004-024: escalate");
    }
}

#[tokio::test]
async fn a_person_who_was_asked_about_a_failure_has_the_last_word() {
    let (script, tools) = (Script::default(), Tools::default());
    let of = async |words| answer(run(&failure(0, Some(said(words))), &script, &tools).await);
    let stopped = decided(FailureDecision::Escalate, "a person gave it up: stop", true);
    assert_eq!(of("stop").await, stopped);
    let words = decided(FailureDecision::Retry, "a person says: use the mirror", true);
    assert_eq!(of("use the mirror").await, words);
    for words in ["yes", "no"] {
        let note = format!("a person says: {words}");
        assert_eq!(of(words).await, decided(FailureDecision::Retry, &note, true));
    }
    assert!(script.kinds().is_empty());
}

fn asking(kind: ReportKind) -> HandoffAssignment {
    let details = json!({});
    let report = report(AgentRole::Developer, "add-it", kind, details);
    handoff(WORDS, HandoffRequest::Report { report })
}

fn instructed(kind: &str, text: &str) -> Vec<(String, Value)> {
    let arguments = json!({"task_id": task_id(), "kind": kind, "text": text});
    vec![("pm.instruct".to_owned(), arguments)]
}

#[tokio::test]
async fn an_agent_that_asks_is_told_what_the_task_says_or_waits_for_a_person() {
    let refined = |can_answer: bool| {
        let answer = json!({"reason": "", "instruction": "Use blue.", "can_answer": can_answer});
        Script::of(&[(DecisionKind::RefineTask, answer)])
    };
    let waits = "The developer waits for a person: That is what I did.";
    let cases = [
        (ReportKind::NeedsClarification, refined(true), "resume", "Use blue."),
        (ReportKind::NeedsClarification, refined(false), "pause", waits),
        (ReportKind::WorkBlocked, thinks("retry"), "resume", "smaller steps"),
        (ReportKind::WorkBlocked, thinks("reduce_scope"), "reduce_scope", "smaller steps"),
        (ReportKind::WorkBlocked, thinks("escalate"), "pause", waits),
        (ReportKind::RequestHumanInput, Script::default(), "pause", waits),
    ];
    for (kind, script, told, text) in cases {
        let tools = Tools::default();
        let reply = answer(run(&asking(kind), &script, &tools).await);
        let calls = tools.calls();
        assert_eq!(calls, instructed(told, text), "S004-008, S004-057, S004-068: {kind:?}");
        assert_eq!(reply, HandoffAnswer::Replied { note: format!("told to {told}: {text}") });
    }
}

#[tokio::test]
async fn an_agent_that_only_reports_is_told_nothing_and_a_task_that_has_ended_is_told_in_vain() {
    let tools = Tools::default();
    let reply = answer(run(&asking(ReportKind::WorkCompleted), &Script::default(), &tools).await);
    assert_eq!(reply, HandoffAnswer::Replied { note: "the report asks for nothing".into() });
    assert!(tools.calls().is_empty());

    let ended =
        DecisionError::Permanent("`pm.instruct` failed (invalid_state): it has ended".into());
    let tools = Tools::default().answering("pm.instruct", Err(ended));
    let script = Script::default();
    let reply = answer(run(&asking(ReportKind::RequestHumanInput), &script, &tools).await);
    let note = "in vain: `pm.instruct` failed (invalid_state): it has ended".to_owned();
    assert_eq!(reply, HandoffAnswer::Replied { note });

    let refused = DecisionError::Refused {
        tool: "pm.instruct".into(),
        code: "x".into(),
        reason: "no".into(),
    };
    let tools = Tools::default().answering("pm.instruct", Err(refused.clone()));
    let outcome = run(&asking(ReportKind::RequestHumanInput), &script, &tools).await;
    assert_eq!(outcome, Err(refused));
}

fn ending(answer: Option<EndedWait>) -> HandoffAssignment {
    let units = vec![EndedUnit {
        unit: "add-it".parse().unwrap(),
        title: "Add it".to_owned(),
        attempts: 2,
        findings: vec![VerificationFinding::new(FindingSeverity::Minor, "no animation".to_owned())],
        output: json!({"commit": "abc"}),
    }];
    handoff(WORDS, HandoffRequest::Summarise { units, answer })
}

fn summarising() -> Script {
    Script::of(&[(DecisionKind::Summarise, json!({"summary": "A toggle was added."}))])
}

fn summed_up(pull_request: Option<PullRequestRef>) -> HandoffAnswer {
    HandoffAnswer::Summarised { summary: "A toggle was added.".into(), pull_request }
}

#[tokio::test]
async fn a_summary_is_written_and_what_the_units_brought_is_delivered_with_it() {
    let opened = json!({"pull_request": {"number": 3, "url": "/v1/pull-requests/pul_1"}});
    let tools = Tools::default().answering("git.pull_request.open", Ok(opened));
    let script = summarising();
    let summary = answer(run(&ending(None), &script, &tools).await);
    let reference = PullRequestRef { number: 3, url: "/v1/pull-requests/pul_1".into() };
    assert_eq!(summary, summed_up(Some(reference)), "S004-159");
    let question = &script.questions()[0];
    assert!(question.contains("no animation") && question.contains("abc"));
    let body = "A toggle was added.\n\n## What was done\n\n- Add it (2 attempts)\n\n## What was noted\n\n- minor: no animation";
    let arguments = json!({"task_id": task_id(), "title": WORDS, "body": body});
    let calls = [("git.pull_request.open".to_owned(), arguments)];
    assert_eq!(tools.calls(), calls, "S004-159, S004-046: a pull request is the end");
}

#[tokio::test]
async fn nothing_is_delivered_that_was_not_brought_or_is_not_wanted() {
    let mut unwanted = ending(None);
    prefer(&mut unwanted, "delivery.mode", json!("none"));
    let mut homeless = ending(None);
    homeless.context.project.as_mut().unwrap().head = None;
    let mut empty = ending(None);
    if let HandoffRequest::Summarise { units, .. } = &mut empty.request {
        units[0].output = json!({"summary": "looked at it"});
    }
    for handoff in [unwanted, homeless, empty, ending(Some(said("End without.")))] {
        let tools = Tools::default();
        let summary = answer(run(&handoff, &summarising(), &tools).await);
        assert_eq!(summary, summed_up(None));
        assert_eq!(tools.calls(), []);
    }
}

#[tokio::test]
async fn what_cannot_be_delivered_is_a_question_and_what_may_pass_is_tried_again() {
    let refuse =
        |trouble: DecisionError| Tools::default().answering("git.pull_request.open", Err(trouble));
    let conflict =
        "`git.pull_request.open` failed (merge_conflict): somebody else moved the branch";
    let question = asked(
        run(&ending(None), &summarising(), &refuse(DecisionError::Permanent(conflict.into())))
            .await,
    );
    assert_eq!(
        question,
        format!(
            "The pull request could not be opened: {conflict}\nAnswer `again` to try it once more, or `end without` to end the task \
             without one."
        )
    );
    let away = DecisionError::Transient("the forge is away".into());
    let outcome = run(&ending(Some(said("again"))), &summarising(), &refuse(away.clone())).await;
    assert_eq!(outcome, Err(away));
}

fn scheduled() -> HandoffAssignment {
    let mut handoff = handoff(
        "",
        HandoffRequest::Schedule {
            schedule: "nightly".to_owned(),
            text: "Update the dependencies every night".to_owned(),
        },
    );
    handoff.context.task = None;
    handoff
}

fn reads_schedule(name: &str) -> Script {
    let answer = json!({
        "note": "one task", "tasks": [{
            "name": name, "description": "Update the dependencies", "acceptance_criteria": ["It builds", " "],
        }],
    });
    Script::of(&[(DecisionKind::InterpretSchedule, answer)])
}

#[tokio::test]
async fn a_schedule_makes_its_tasks_under_names_that_are_the_same_each_time_it_is_worked_on() {
    let made = TaskId::from_uuid(Uuid::from_u128(5));
    let expected = HandoffAnswer::Interpreted { tasks: vec![made], note: "one task".to_owned() };
    let tools = Tools::default().answering("db.task.create", Ok(json!({"id": made})));
    let handoff = scheduled();
    let script = reads_schedule("Update the dependencies");
    assert_eq!(answer(run(&handoff, &script, &tools).await), expected);
    let name = "nightly-000000000abc-1";
    assert_eq!(
        tools.calls(),
        [(
            "db.task.create".to_owned(),
            json!({
                "project_id": handoff.context.project.as_ref().unwrap().id,
                "name": name,
                "description": "Update the dependencies",
                "acceptance_criteria": [{"text": "It builds"}],
            })
        )],
        "S002-48, S002-50: the task is made, and nothing else is asked for"
    );
    // Somebody began it before and made the task, in other words.
    let taken = DecisionError::Permanent(
        "`db.task.create` failed (already_exists): the name is in use".into(),
    );
    let tools = Tools::default()
        .answering("db.task.create", Err(taken))
        .answering("db.task.list", Ok(json!({"items": [{"id": made, "name": name}]})));
    let script = reads_schedule("Refresh what we build on");
    assert_eq!(answer(run(&handoff, &script, &tools).await), expected);
    assert_eq!(tools.calls()[0].1["name"], name);
}

#[test]
fn what_the_gate_says_of_a_failed_tool_is_understood() {
    let failed = McpError::Failed { code: "not_found".into(), detail: "no".into() };
    let trouble = failed.into_decision_error("git.tree");
    assert!(failed_with(&trouble, "git.tree", "not_found"));
    assert!(!failed_with(&trouble, "git.read", "not_found"));
    assert!(!failed_with(&trouble, "git.tree", "already_exists"));
    let refused = McpError::Refused { code: "not_found".into(), reason: "no".into() };
    assert!(!failed_with(&refused.into_decision_error("git.tree"), "git.tree", "not_found"));
}

// Who is sent.

fn sending(kind: &str, size: &str, prefers: &[(&str, Value)]) -> HandoffAssignment {
    let unit = ReadyUnit {
        unit: "add-it".parse().unwrap(),
        title: "Add it".to_owned(),
        payload: json!({"kind": kind, "scope": size, "brief": {"requirements": ["It holds"]}, "iteration": 0}),
        attempt: 2,
        findings: vec![
            VerificationFinding::new(FindingSeverity::Major, "no test".to_owned()),
            VerificationFinding::new(FindingSeverity::Minor, "spaces".to_owned()),
        ],
        results: std::collections::BTreeMap::new(),
    };
    let mut handoff = handoff(WORDS, HandoffRequest::Dispatch { units: vec![unit] });
    for (key, value) in prefers {
        prefer(&mut handoff, key, value.clone());
    }
    handoff
}

async fn sent(kind: &str, size: &str, prefers: &[(&str, Value)]) -> WorkAssignment {
    sent_by(&sending(kind, size, prefers)).await
}

async fn sent_by(handoff: &HandoffAssignment) -> WorkAssignment {
    match answer(run(handoff, &Script::default(), &Tools::default()).await) {
        HandoffAnswer::Assigned { assignments } => assignments.into_iter().next().unwrap(),
        other => panic!("nobody was sent: {other:?}"),
    }
}

#[tokio::test]
async fn whoever_is_sent_may_ask_the_nearest_tier_that_is_open() {
    let mut seen = Vec::new();
    for open in [&["cynodeai.fast", "cynodeai.standard"][..], &["cynodeai.standard"], &["own"], &[]]
    {
        let mut handoff = sending("implementation", "small", &[]);
        handoff.models = open.iter().map(|id| (*id).to_owned()).collect();
        seen.push(sent_by(&handoff).await.work.models);
    }
    assert_eq!(seen, [["cynodeai.fast"], ["cynodeai.standard"], ["own"], ["cynodeai.fast"]]);
}

#[tokio::test]
async fn a_typo_and_a_new_subsystem_are_sent_to_different_agents() {
    let prefers = [
        ("agents.project_manager.workers.fixer", json!({"kind": "acp", "agent": "codex"})),
        ("agents.project_manager.workers.specialist", json!({"kind": "acp", "agent": "opencode"})),
    ];
    let mut seen = Vec::new();
    for (kind, size) in [("fix", "trivial"), ("implementation", "large")] {
        let work = sent(kind, size, &prefers).await.work;
        seen.push((work.role, work.worker, work.models));
    }
    let acp = |name: &str| WorkerChoice::Acp { agent: name.to_owned() };
    assert_eq!(
        seen,
        [
            (AgentRole::Fixer, acp("codex"), vec!["cynodeai.fast".to_owned()]),
            (AgentRole::Developer, acp("opencode"), vec!["cynodeai.standard".to_owned()]),
        ],
        "S004-099, S004-144: role, coding agent and model follow from scope and kind"
    );
}

#[tokio::test]
async fn preferences_name_the_worker_of_a_role_before_that_of_a_kind_and_bad_ones_are_passed_over()
{
    let agent = |name: &str| json!({"kind": "acp", "agent": name});
    let acp = |name: &str| WorkerChoice::Acp { agent: name.to_owned() };
    let (role, kind) =
        ("agents.project_manager.workers.developer", "agents.project_manager.workers.specialist");
    let of = async |prefers: &[(&str, Value)]| {
        sent("implementation", "large", prefers).await.work.worker
    };
    assert_eq!(of(&[]).await, acp("goose"));
    assert_eq!(of(&[(kind, agent("codex"))]).await, acp("codex"));
    assert_eq!(of(&[(kind, agent("codex")), (role, agent("opencode"))]).await, acp("opencode"));
    assert_eq!(of(&[(kind, agent("codex")), (role, json!("opencode"))]).await, acp("codex"));
}

#[tokio::test]
async fn a_machine_that_people_name_is_kept_and_otherwise_the_registry_chooses() {
    let none = sent("fix", "small", &[]).await.work.placement;
    assert_eq!(serde_json::to_value(none).unwrap(), json!({}));
    let prefers = [
        ("agents.project_manager.placement.node", json!("big-box")),
        ("agents.project_manager.placement.labels", json!(["gpu", 7, ""])),
    ];
    let named = sent("fix", "small", &prefers).await.work.placement;
    let wanted = json!({"node": "big-box", "labels": ["gpu"]});
    assert_eq!(serde_json::to_value(named).unwrap(), wanted, "X-12");
}

#[tokio::test]
async fn the_findings_of_an_attempt_go_with_the_next_without_the_minor_ones() {
    let feedback = sent("implementation", "small", &[]).await.work.context.revision_feedback;
    let texts: Vec<_> = feedback.unwrap().findings.into_iter().map(|it| it.text).collect();
    assert_eq!(texts, ["no test"], "S004-096, S004-110");
    let all = [("agents.project_manager.review.skip_minor_issues", json!(false))];
    let feedback = sent("implementation", "small", &all).await.work.context.revision_feedback;
    let texts: Vec<_> = feedback.unwrap().findings.into_iter().map(|it| it.text).collect();
    assert_eq!(texts, ["no test", "spaces"], "S004-110: the option is off");
}

#[tokio::test]
async fn what_architect_and_designer_left_goes_with_those_who_build_on_it() {
    let step = |key: &str, kind: &str, after: &[&str]| {
        let payload = json!({"kind": kind, "scope": "large", "brief": {}, "iteration": 0});
        json!({"key": key, "title": key, "depends_on": after, "payload": payload})
    };
    let plan = json!({"steps": [
        step("spec", "spec", &[]), step("design", "design", &["spec"]),
        step("one", "implementation", &["spec", "design"]),
        step("two", "implementation", &["spec", "design", "one"]),
    ]});
    let mut handoff = sending("implementation", "large", &[]);
    handoff.context.planned = Some(Box::new(PlanAnswer {
        plan: serde_json::from_value(plan).unwrap(),
        class: WorkClass::FeatureRequest,
        scope: IssueScope::Large,
        project: ProjectContext::default(),
    }));
    let HandoffRequest::Dispatch { units } = &mut handoff.request else { unreachable!() };
    units[0].results.insert("spec".to_owned(), json!({"commit": "abc"}));
    let HandoffAnswer::Assigned { assignments } =
        answer(run(&handoff, &Script::default(), &Tools::default()).await)
    else {
        panic!("nobody was sent");
    };
    let context = &assignments[0].work.context;
    assert_eq!(context.spec_artifact_path.as_deref(), Some("docs/specs/dark-mode.md"), "S004-094");
    assert_eq!(context.design_artifact_path, None);
    assert_eq!(context.requirements, ["It holds"], "one of several answers for its own part");
}

#[tokio::test]
async fn a_unit_that_was_not_planned_here_is_not_sent() {
    let outcome = run(&sending("dance", "small", &[]), &Script::default(), &Tools::default()).await;
    assert!(matches!(outcome, Err(DecisionError::Permanent(_))));
}

// The analyst.

fn analysing(payload: Value, output: Value) -> HandoffAssignment {
    let judge = ResultVerification {
        evidence: None,
        unit: "add-it".parse().unwrap(),
        title: "Add it".to_owned(),
        payload,
        unit_attempt: 1,
        attempts_left: None,
        output,
        plan: None,
        answer: None,
        attempt: 1,
    };
    let mut handoff = handoff(WORDS, HandoffRequest::Analyse(judge));
    prefer(&mut handoff, "definition_of_done.required_checks", json!(["lint"]));
    handoff.context.preferences_applied.insert(
        "definition_of_done.required_checks".parse().unwrap(),
        AppliedPreference { scope: "project".to_owned(), version: 3 },
    );
    handoff
}

fn payload() -> Value {
    json!({
        "kind": "implementation", "scope": "small", "iteration": 0,
        "brief": {"requirements": ["The toggle holds"]},
    })
}

fn finds(status: &str, severity: &str) -> Script {
    let answer = json!({
        "reason": "", "findings": [{"text": "no test", "severity": severity}],
        "recommended_actions": ["add one"], "status": status,
    });
    Script::of(&[(DecisionKind::ReviewArtifact, answer)])
}

#[tokio::test]
async fn an_analyst_records_what_it_found_and_says_which_preferences_it_went_by() {
    let handoff = analysing(payload(), json!({"summary": "done"}));
    let (script, tools) = (finds("fail", "major"), Tools::default());
    let found = answer(run(&handoff, &script, &tools).await);
    let finding = VerificationFinding::new(FindingSeverity::Major, "no test".to_owned());
    assert_eq!(
        found,
        HandoffAnswer::Analysed(AnalysisAnswer {
            task_id: task_id(),
            status: AnalysisStatus::Fail,
            findings: vec![finding.clone()],
            recommended_actions: vec!["add one".to_owned()],
            preferences_applied: handoff.context.preferences_applied.clone(),
        }),
        "S000-042"
    );
    assert_eq!(
        tools.calls(),
        [(
            "verification.record".to_owned(),
            json!({"task_id": task_id(), "unit": "add-it", "status": "fail", "findings": [finding]})
        )],
        "S000-042"
    );
    let question = &script.questions()[0];
    for words in ["The toggle holds", "A switch on the page changes the colours", "lint"] {
        assert!(question.contains(words), "{words}");
    }
}

#[tokio::test]
async fn what_cannot_be_told_is_recorded_as_such() {
    let handoff = analysing(payload(), json!({}));
    let tools = Tools::default();
    let script = finds("needs_clarification", "note");
    let HandoffAnswer::Analysed(found) = answer(run(&handoff, &script, &tools).await) else {
        panic!("nothing was found");
    };
    assert_eq!(found.status, AnalysisStatus::NeedsClarification);
    let (_, recorded) = &tools.calls()[0];
    assert_eq!(recorded["status"], "needs_clarification");
}

#[test]
fn what_work_took_and_how_it_came_is_not_told_to_a_model() {
    let output = json!({
        "summary": "done", "resource_usage": {"cpu_ms": 25}, "bundle": {"bytes": 9},
        "steps": [{"argv": ["true"], "exit_code": 0, "milliseconds": 7, "sha256": "e3b0"}],
    });
    let told = json!({"summary": "done", "steps": [{"argv": ["true"], "exit_code": 0}]});
    assert_eq!(reviewable_output(&output), told);
    assert_eq!(reviewable_output(&json!("words")), json!("words"));
}

#[tokio::test]
async fn an_analyst_looks_at_its_own_task_only() {
    let other = TaskId::from_uuid(Uuid::from_u128(77));
    let mut foreign = payload();
    foreign["task_id"] = json!(other);
    let mut nameless = analysing(payload(), json!({}));
    nameless.context.task = None;
    for handoff in
        [analysing(foreign, json!({})), analysing(payload(), json!({"task_id": other})), nameless]
    {
        let (script, tools) = (Script::default(), Tools::default());
        let outcome = run(&handoff, &script, &tools).await;
        let refused = matches!(outcome, Err(DecisionError::Permanent(_)));
        assert!(refused, "S000-041, S002-31: {outcome:?}");
        assert!(script.kinds().is_empty() && tools.calls().is_empty(), "S000-041");
    }
}

#[tokio::test]
async fn a_record_that_is_refused_is_a_failure() {
    let refused = DecisionError::Refused {
        tool: "verification.record".into(),
        code: "x".into(),
        reason: "no".into(),
    };
    let tools = Tools::default().answering("verification.record", Err(refused.clone()));
    let handoff = analysing(payload(), json!({}));
    assert_eq!(run(&handoff, &finds("pass", "minor"), &tools).await, Err(refused));
}

#[tokio::test]
async fn a_manager_never_analyses_and_an_analyst_does_nothing_else() {
    let (script, tools) = (Script::default(), Tools::default());
    let analyse = analysing(payload(), json!({}));
    let desk = DecisionContext::new(&analyse, String::new(), 20, &script, &tools, &tools);
    let why = "a project manager does not analyse";
    assert_eq!(
        manager::process_manager_handoff(&desk).await,
        Err(DecisionError::Permanent(why.into()))
    );
    let others = [
        handoff(WORDS, planning()),
        failure(1, None),
        asking(ReportKind::WorkBlocked),
        scheduled(),
        sending("fix", "small", &[]),
    ];
    for other in &others {
        let desk = DecisionContext::new(other, String::new(), 20, &script, &tools, &tools);
        let refused: Result<HandoffOutcome, _> = analyst::process_analyst_handoff(&desk).await;
        let why = DecisionError::Permanent("an analyst only analyses".into());
        assert_eq!(refused, Err(why), "S002-31");
    }
    assert!(script.kinds().is_empty() && tools.calls().is_empty());
}
