//! Plan Steps: asks for a plan, and for a person's yes where one is wanted.

use cynode_core::workflow::{
    Verdict, instructions::InstructionKind, plan::Plan, waits::WaitReason,
};
use cynode_wire::workflow::{Effect, EndedWait, Feedback, NewWait, Resolution, RunState};

use super::{Scene, Step, ask, waiting};
use crate::mind::{NodeError, PlanRequest, Reply};

/// Where planning stands.
enum Input<'a> {
    /// A plan is to be made; the text is what a person said when the last was refused.
    Make { refused: Option<&'a str> },
    /// The plan was approved.
    Approved,
    /// Nobody said yes in time.
    TooLate,
}

enum Output {
    Planned { plan: Plan, cost_micros: u64 },
    Go,
    Ask(String),
    GiveUp(&'static str),
}

fn input<'a>(state: &'a RunState, ended: Option<&'a EndedWait>) -> Input<'a> {
    let approval = ended.filter(|wait| wait.reason == WaitReason::Approval);
    match (approval.map(|wait| (wait.resolution, wait.answer.as_deref())), &state.plan) {
        // A yes to a plan about which more was said since is no yes to the next.
        (Some((Resolution::Approved, _)), Some(_)) if state.feedback.is_empty() => Input::Approved,
        (Some((Resolution::Rejected, note)), _) => Input::Make { refused: note.or(Some("no")) },
        (Some((Resolution::Expired, _)), _) => Input::TooLate,
        (Some(_) | None, _) => Input::Make { refused: None },
    }
}

async fn run(input: Input<'_>, scene: &Scene<'_>) -> Result<Output, NodeError> {
    let refused = match input {
        Input::Approved => return Ok(Output::Go),
        Input::TooLate => return Ok(Output::GiveUp("nobody approved the plan in time")),
        Input::Make { refused } => refused,
    };
    let state = scene.state;
    let mut feedback = state.feedback.clone();
    if let Some(text) = refused {
        feedback.push(Feedback { kind: InstructionKind::Revise, text: text.to_owned() });
    }
    let reply = scene.mind.plan(PlanRequest {
        task: scene.task,
        criteria: &state.acceptance_criteria,
        before: state.plan.as_ref(),
        feedback: &feedback,
        answer: scene.position.ended_wait.as_ref(),
        attempt: state.node_failures + 1,
    });
    Ok(match reply.await? {
        Reply::Done(plan, cost_micros) => Output::Planned { plan, cost_micros },
        Reply::Ask(question) => Output::Ask(question),
    })
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let mut state = scene.state.clone();
    let output = run(input(scene.state, scene.position.ended_wait.as_ref()), scene).await?;
    Ok(match output {
        Output::Go => Step::new(Verdict::Pass, state),
        Output::Ask(question) => ask(state, question),
        Output::GiveUp(why) => Step::give_up(state, why.to_owned()),
        Output::Planned { plan, cost_micros } => {
            let effects = vec![Effect::PlanUnits { units: plan.steps().to_vec() }];
            let question = format!("May the plan of {} units be carried out?", plan.steps().len());
            state.plan = Some(plan);
            // The plan was made with it.
            state.feedback.clear();
            let step = if scene.limits.approve_plan {
                let wait = NewWait { question: Some(question), ..waiting(WaitReason::Approval) };
                Step::wait(state, wait, None)
            } else {
                Step::new(Verdict::Pass, state)
            };
            Step { effects, cost_micros, ..step }
        }
    })
}
