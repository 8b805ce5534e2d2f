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
        ]
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
    assert!(page.contains(&drawing), "docs/explanation/workflow.md must hold:\n{drawing}");
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
    assert!(page.contains(said), "docs/explanation/workflow.md must hold: {said}");
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
        "Words are handed to the project manager as they are: it says which tasks they mean this time, makes them through the gate and \
         asks for their start.",
        "The scheduler itself makes neither task nor run of words, and nothing is enqueued beside the handoff",
    ] {
        assert!(page.contains(said), "docs/guides/schedules.md must hold: {said}");
    }
}
