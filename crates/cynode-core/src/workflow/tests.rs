use std::collections::BTreeSet;

use super::*;

#[test]
fn the_graph_has_the_seven_nodes_of_the_project_manager() {
    let titles: Vec<_> = WorkflowStep::ALL.iter().map(|node| node.step_title()).collect();
    assert_eq!(
        titles,
        [
            "Load Task Context",
            "Plan Steps",
            "Dispatch Step",
            "Collect Result",
            "Verify Step Result",
            "Finalize Summary",
            "Mark Failed"
        ],
        "S002-05, S002-30"
    );
    for node in WorkflowStep::ALL {
        assert_eq!(WorkflowStep::from_name(node.as_str()), Some(node));
    }
    for verdict in StepVerdict::ALL {
        assert_eq!(StepVerdict::from_name(verdict.as_str()), Some(verdict));
    }
}

#[test]
fn a_plain_run_goes_from_load_to_finalize() {
    use WorkflowStep::{
        CollectResult, DispatchStep, FinalizeSummary, LoadTaskContext, PlanSteps, VerifyStepResult,
    };
    let steps = [
        (LoadTaskContext, StepVerdict::Pass, StepTransition::Go(PlanSteps)),
        (PlanSteps, StepVerdict::Pass, StepTransition::Go(DispatchStep)),
        (DispatchStep, StepVerdict::Pass, StepTransition::Go(CollectResult)),
        (CollectResult, StepVerdict::Pass, StepTransition::Go(VerifyStepResult)),
        (VerifyStepResult, StepVerdict::Pass, StepTransition::Go(DispatchStep)),
        (DispatchStep, StepVerdict::Done, StepTransition::Go(FinalizeSummary)),
        (FinalizeSummary, StepVerdict::Pass, StepTransition::End),
    ];
    for (node, verdict, expected) in steps {
        assert_eq!(next(node, verdict), expected, "B023-04: {node:?} {verdict:?}");
    }
}

#[test]
fn a_failed_verification_goes_back_to_dispatch_and_without_retries_to_mark_failed() {
    assert_eq!(
        next(WorkflowStep::VerifyStepResult, StepVerdict::Redo),
        StepTransition::Go(WorkflowStep::DispatchStep),
        "B023-04"
    );
    assert_eq!(
        next(WorkflowStep::VerifyStepResult, StepVerdict::Fail),
        StepTransition::Go(WorkflowStep::MarkFailed),
        "B023-04"
    );
    assert_eq!(next(WorkflowStep::MarkFailed, StepVerdict::Pass), StepTransition::End);
}

#[test]
fn waiting_stays_and_every_node_that_has_not_ended_the_task_can_be_revised_or_given_up() {
    for node in WorkflowStep::ALL {
        assert_eq!(next(node, StepVerdict::Wait), StepTransition::Stay(node));
        if node != WorkflowStep::MarkFailed {
            assert_eq!(next(node, StepVerdict::Fail), StepTransition::Go(WorkflowStep::MarkFailed));
            assert_eq!(
                next(node, StepVerdict::Revise),
                StepTransition::Go(WorkflowStep::PlanSteps)
            );
        }
    }
}

#[test]
fn every_node_is_reached_and_from_every_node_the_end_is_reached() {
    let follow = |from: WorkflowStep| {
        let mut seen = BTreeSet::from([from]);
        let mut ends = false;
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            for verdict in StepVerdict::ALL {
                match next(node, verdict) {
                    StepTransition::Go(node) | StepTransition::Stay(node) => {
                        if seen.insert(node) {
                            open.push(node);
                        }
                    }
                    StepTransition::End => ends = true,
                }
            }
        }
        (seen.len(), ends)
    };
    assert_eq!(follow(WorkflowStep::FIRST), (WorkflowStep::ALL.len(), true));
    for node in WorkflowStep::ALL {
        assert!(follow(node).1, "{node:?} never ends");
    }
}

#[test]
fn the_drawing_in_the_documents_is_the_graph() {
    let drawing = format!("```mermaid\n{}```", render_mermaid(None));
    let page = include_str!("../../../../docs/explanation/workflow.md");
    assert!(page.contains(&drawing), "S002-41: docs/explanation/workflow.md must hold:\n{drawing}");
}

#[test]
fn the_place_of_a_run_is_marked() {
    let drawing = render_mermaid(Some(WorkflowStep::CollectResult));
    assert!(drawing.ends_with("    class collect_result here\n"), "{drawing}");
}

#[test]
fn the_page_says_who_verifies_and_that_findings_go_into_the_state() {
    let page = include_str!("../../../../docs/explanation/workflow.md");
    let said =
        "Verify Step Result: the project manager tasks the analyst, findings go into the state";
    assert!(page.contains(said), "S002-56: docs/explanation/workflow.md must hold: {said}");
}

#[test]
fn the_page_of_nodes_says_that_every_job_is_placed_on_its_own() {
    let page = include_str!("../../../../docs/guides/nodes.md");
    let said = "The orchestrator places each job on one node";
    assert!(page.contains(said), "B001-05: docs/guides/nodes.md must hold: {said}");
}

#[test]
fn the_page_says_that_words_of_a_schedule_are_handed_over_and_nothing_is_enqueued() {
    let page = include_str!("../../../../docs/guides/schedules.md").replace('\n', " ");
    for said in [
        "Words are handed to the project manager as they are: it says which tasks they mean this time, makes them through the gateway \
         with `db.task.create`, which also requests their runs.",
        "The scheduler itself makes neither task nor run of words, and nothing is enqueued beside the handoff",
    ] {
        assert!(page.contains(said), "S002-58: docs/guides/schedules.md must hold: {said}");
    }
}

/// The page about the workflow, in one line.
fn workflow_page() -> String {
    include_str!("../../../../docs/explanation/workflow.md").replace('\n', " ")
}

#[test]
fn the_page_says_who_asks_for_a_run_and_who_starts_it() {
    let page = workflow_page();
    for said in [
        "Every trigger ends in the same operation: it requests one run for a task. Only `start` drives a run.",
        "It dispatches runs that are due and have no live lease to the engine",
        "| engine | Restate; it calls the runner |",
    ] {
        assert!(page.contains(said), "S002-23: docs/explanation/workflow.md must hold: {said}");
    }
}

#[test]
fn the_page_says_how_chats_start_tasks_and_how_later_messages_reach_them() {
    let page = workflow_page();
    for said in [
        "The project manager requests the run of a task that it creates in a chat or for a schedule.",
        "A chat thread is not a workflow. Later messages reach a running task as instructions, answers and approvals.",
    ] {
        assert!(page.contains(said), "S002-36: docs/explanation/workflow.md must hold: {said}");
    }
}

#[test]
fn the_page_says_that_the_runner_is_a_process_of_its_own_with_a_contract() {
    let page = workflow_page();
    let process =
        "The runner is a process of its own. It serves no chat and has no access to the database.";
    assert!(page.contains(process), "S002-54, S002-59: {process}");
    for call in ["start", "checkpoint", "renew", "release", "resume"] {
        let call = format!("`POST /v1/workflow/{call}`");
        assert!(page.contains(&call), "S002-54: docs/explanation/workflow.md must hold: {call}");
    }
    let manager = include_str!("../../../../docs/explanation/project-manager.md");
    let process = "`cynode up` starts one process of each role beside the server.";
    assert!(manager.contains(process), "S002-59: docs/explanation/project-manager.md: {process}");
}

#[test]
fn the_page_says_where_the_lease_is_and_how_it_is_taken() {
    let page = workflow_page();
    for said in [
        "Who may drive the task, and until when by the clock of the database.",
        "takes the lease.",
        "Nobody else holds the lease (409 `lease_held`).",
        "Every grant raises `fencing_token`. An expired lease is free.",
    ] {
        assert!(page.contains(said), "S002-57: docs/explanation/workflow.md must hold: {said}");
    }
}

#[test]
fn one_drawing_shows_both_ways_from_a_request_to_the_end() {
    let page = include_str!("../../../../docs/explanation/workflow.md");
    let (_, drawing) = page.split_once("## From request to end\n\n```mermaid\n").unwrap();
    let (drawing, _) = drawing.split_once("```").unwrap();
    for edge in [
        "POST /v1/tasks\"] --> run[\"run requested",
        "--> engine[\"engine:",
        "engine --> start[\"runner: POST start (preconditions, lease)\"]",
        "start --> steps[\"step after step, one checkpoint each\"]",
        "steps --> dispatch[\"Dispatch Step: jobs queued\"] --> worker[\"a worker claims, works, reports\"]",
        "worker -->|wakes| run",
        "steps --> verify[\"Verify Step Result: the project manager tasks the analyst",
        "steps --> ended[\"Finalize Summary or Mark Failed\"]",
        "schedule[\"a scheduled run that needs interpretation\"] --> pma[\"project manager: creates the task, requests its run\"] --> run",
    ] {
        assert!(drawing.contains(edge), "S002-60: docs/explanation/workflow.md must draw: {edge}");
    }
}

#[test]
fn the_documents_hold_the_six_decisions_about_the_workflow() {
    let pages = [
        include_str!("../../../../docs/explanation/workflow.md"),
        include_str!("../../../../docs/guides/schedules.md"),
        include_str!("../../../../docs/decisions/0006-engine-and-postgresql.md"),
    ];
    let text = pages.join("\n").replace('\n', " ");
    for decision in [
        "**The contract is ours**: start, resume, checkpoint, renew and release over HTTP",
        "The `state` of a checkpoint is an object with these fields and no others.",
        "Verify Step Result: the project manager tasks the analyst, findings go into the state",
        "PostgreSQL holds all state.",
        "nothing is enqueued beside the handoff",
        "The runner is a process of its own.",
    ] {
        assert!(text.contains(decision), "S002-37: the documents must hold: {decision}");
    }
    let language = "The language is Rust, not Python or Go as in the specification.";
    assert!(text.contains(language), "S002-38: docs/decisions/0006 must hold: {language}");
}
