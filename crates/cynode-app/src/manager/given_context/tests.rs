use cynode_core::{
    agents::AgentRole,
    workflow::{
        handoffs::ChatMessage,
        jobs::{CommitRule, PlacementSpec, SandboxNeeds, StructuredContext},
    },
};
use serde_json::json;

use super::*;

fn work(worker: WorkerChoice) -> JobSpec {
    JobSpec {
        role: AgentRole::Developer,
        worker,
        context: StructuredContext {
            task_summary: "Retry what failed.".into(),
            requirements: vec!["It gives up after three attempts.".into()],
            files_to_modify: vec!["src/client.rs".into()],
            architecture: "One program.".into(),
            ..StructuredContext::default()
        },
        models: Vec::new(),
        tools: None,
        sandbox: SandboxNeeds::default(),
        placement: PlacementSpec::default(),
        commit: CommitRule::default(),
    }
}

#[test]
fn a_job_is_searched_for_by_its_title_summary_files_and_requirements() {
    let text = job_text("Retries", &work(WorkerChoice::Acp { agent: "goose".into() }));
    let wanted = "Retries\nRetry what failed.\nsrc/client.rs\nIt gives up after three attempts.\n";
    assert_eq!(text.as_deref(), Some(wanted));
}

#[test]
fn nothing_is_searched_for_work_that_no_agent_does() {
    for worker in [WorkerChoice::Merge, WorkerChoice::Command { steps: Vec::new() }] {
        assert_eq!(job_text("Retries", &work(worker)), None);
    }
    let context = HandoffContext::default();
    assert_eq!(handoff_text(&HandoffRequest::Dispatch { units: Vec::new() }, &context), None);
    let summary = HandoffRequest::Summarise { units: Vec::new(), answer: None };
    assert_eq!(handoff_text(&summary, &context), None);
}

#[test]
fn a_chat_is_searched_for_by_what_the_person_said_last() {
    let said = |role, content: &str| ChatMessage { role, content: content.into() };
    let messages = vec![
        said(ChatRole::User, "one"),
        said(ChatRole::User, "two"),
        said(ChatRole::Assistant, "IGNORED"),
        said(ChatRole::User, "three"),
        said(ChatRole::System, "IGNORED"),
        said(ChatRole::User, "four"),
    ];
    let text = handoff_text(&HandoffRequest::Chat { messages }, &HandoffContext::default());
    assert_eq!(text.as_deref(), Some("four\nthree\ntwo\n"));
}

#[test]
fn a_failure_is_searched_for_by_its_reason_and_by_the_texts_of_its_unit() {
    let request = HandoffRequest::Failure {
        unit: "retries".parse().unwrap(),
        title: "Retries".into(),
        payload: json!({ "kind": "implementation", "brief": { "files_to_modify": ["src/client.rs"], "n": 3 } }),
        attempt: 1,
        attempts_left: 1,
        reason: "the build failed".into(),
        answer: None,
    };
    let text = handoff_text(&request, &HandoffContext::default());
    assert_eq!(text.as_deref(), Some("Retries\nthe build failed\nsrc/client.rs\n"));
}

#[test]
fn a_text_without_end_is_cut_at_a_character() {
    let mut text = SearchText::default();
    text.push(&"ä".repeat(10 * MAX_QUERY_CHARS));
    text.push("more");
    let text = text.into_text().unwrap();
    assert!(text.len() <= MAX_QUERY_CHARS + 1 && text.starts_with("ää"), "{}", text.len());
    assert!(!text.contains("more"));
}
