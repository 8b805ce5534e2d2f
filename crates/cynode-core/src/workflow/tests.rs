use std::collections::BTreeSet;

use super::*;

#[test]
fn the_graph_has_the_seven_nodes_of_the_project_manager() {
    let titles: Vec<_> = Node::ALL.iter().map(|node| node.title()).collect();
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
    for node in Node::ALL {
        assert_eq!(Node::from_name(node.as_str()), Some(node));
    }
    for verdict in Verdict::ALL {
        assert_eq!(Verdict::from_name(verdict.as_str()), Some(verdict));
    }
}

#[test]
fn a_plain_run_goes_from_load_to_finalize() {
    use Node::{
        CollectResult, DispatchStep, FinalizeSummary, LoadTaskContext, PlanSteps, VerifyStepResult,
    };
    let steps = [
        (LoadTaskContext, Verdict::Pass, Next::Go(PlanSteps)),
        (PlanSteps, Verdict::Pass, Next::Go(DispatchStep)),
        (DispatchStep, Verdict::Pass, Next::Go(CollectResult)),
        (CollectResult, Verdict::Pass, Next::Go(VerifyStepResult)),
        (VerifyStepResult, Verdict::Pass, Next::Go(DispatchStep)),
        (DispatchStep, Verdict::Done, Next::Go(FinalizeSummary)),
        (FinalizeSummary, Verdict::Pass, Next::End),
    ];
    for (node, verdict, expected) in steps {
        assert_eq!(next(node, verdict), expected, "{node:?} {verdict:?}");
    }
}

#[test]
fn a_failed_verification_goes_back_to_dispatch_and_without_retries_to_mark_failed() {
    assert_eq!(next(Node::VerifyStepResult, Verdict::Redo), Next::Go(Node::DispatchStep));
    assert_eq!(next(Node::VerifyStepResult, Verdict::Fail), Next::Go(Node::MarkFailed));
    assert_eq!(next(Node::MarkFailed, Verdict::Pass), Next::End);
}

#[test]
fn waiting_stays_and_every_node_that_has_not_ended_the_task_can_be_revised_or_given_up() {
    for node in Node::ALL {
        assert_eq!(next(node, Verdict::Wait), Next::Stay(node));
        if node != Node::MarkFailed {
            assert_eq!(next(node, Verdict::Fail), Next::Go(Node::MarkFailed));
            assert_eq!(next(node, Verdict::Revise), Next::Go(Node::PlanSteps));
        }
    }
}

#[test]
fn every_node_is_reached_and_from_every_node_the_end_is_reached() {
    let follow = |from: Node| {
        let mut seen = BTreeSet::from([from]);
        let mut ends = false;
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            for verdict in Verdict::ALL {
                match next(node, verdict) {
                    Next::Go(node) | Next::Stay(node) => {
                        if seen.insert(node) {
                            open.push(node);
                        }
                    }
                    Next::End => ends = true,
                }
            }
        }
        (seen.len(), ends)
    };
    assert_eq!(follow(Node::FIRST), (Node::ALL.len(), true));
    for node in Node::ALL {
        assert!(follow(node).1, "{node:?} never ends");
    }
}

#[test]
fn the_drawing_in_the_documents_is_the_graph() {
    let drawing = format!("```mermaid\n{}```", mermaid(None));
    let page = include_str!("../../../../docs/workflow.md");
    assert!(page.contains(&drawing), "docs/workflow.md must hold:\n{drawing}");
}

#[test]
fn the_place_of_a_run_is_marked() {
    let drawing = mermaid(Some(Node::CollectResult));
    assert!(drawing.ends_with("    class collect_result here\n"), "{drawing}");
}

#[test]
fn the_page_says_who_verifies_and_that_findings_go_into_the_state() {
    let page = include_str!("../../../../docs/workflow.md");
    let said =
        "Verify Step Result: the project manager tasks the analyst, findings go into the state";
    assert!(page.contains(said), "docs/workflow.md must hold: {said}");
}

#[test]
fn the_page_says_that_words_of_a_schedule_are_handed_over_and_nothing_is_enqueued() {
    let page = include_str!("../../../../docs/schedules.md").replace('\n', " ");
    for said in [
        "Words are handed to the project manager as they are: it says which tasks they mean this time, makes them through the gate and \
         asks for their start.",
        "The scheduler itself makes neither task nor run of words, and nothing is enqueued beside the handoff",
    ] {
        assert!(page.contains(said), "docs/schedules.md must hold: {said}");
    }
}
