//! Plan Steps: asks for a plan, and for a person's yes where one is wanted.

use cynode_core::workflow::{
    Verdict,
    instructions::InstructionKind,
    plan::{Plan, UnitKey},
    units::UnitState,
    waits::WaitReason,
};
use cynode_wire::{
    handoffs::{HandoffRequest, Revision},
    workflow::{Effect, EndedWait, Feedback, NewWait, Resolution, RunState},
};

use super::{Scene, Step, answered, ask, await_answer, given_up, hand_off, waiting};
use crate::mind::{NodeError, PlanRequest, Reply};

/// Where planning stands.
enum Input<'a> {
    /// A plan is to be made; the text is what a person said when the last was refused. It is kept with the state: the run may wait
    /// for the plan, and be woken by something else.
    Make { refused: Option<&'a str> },
    /// The plan was approved.
    Approved,
    /// Nobody said yes in time.
    TooLate,
}

enum Output {
    Planned { plan: Plan, cost_micros: u64 },
    Go,
    Ask(String, u64),
    HandOff(Box<HandoffRequest>, String),
    Await,
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

async fn run(
    input: Input<'_>,
    scene: &Scene<'_>,
    state: &mut RunState,
) -> Result<Output, NodeError> {
    let refused = match input {
        Input::Approved => return Ok(Output::Go),
        Input::TooLate => return Ok(Output::GiveUp("nobody approved the plan in time")),
        Input::Make { refused } => refused,
    };
    if let Some(text) = refused {
        state.feedback.push(Feedback { kind: InstructionKind::Revise, text: text.to_owned() });
    }
    if let Some(why) = given_up(scene) {
        return Ok(Output::GiveUp(why));
    }
    let answer = answered(scene);
    // A no to a plan is kept as well: whoever is asked once more must not go on from what was refused.
    let holds = |wait: &&EndedWait| {
        wait.reason == WaitReason::HumanInput || wait.resolution == Resolution::Rejected
    };
    if let Some(wait) = answer.filter(holds) {
        state.answered = Some(wait.clone());
    }
    // What failed is not under way: whoever plans anew may leave it out.
    let failed = |key: &UnitKey| {
        let mut units = scene.position.units.iter();
        units.any(|unit| unit.key == *key && unit.state == UnitState::Failed)
    };
    let mut begun = state.attempts_by_step.clone();
    begun.retain(|key, _| !failed(key));
    let reply = scene.mind.plan(PlanRequest {
        task: scene.task,
        criteria: &state.acceptance_criteria,
        before: state.plan.as_ref(),
        feedback: &state.feedback,
        answer: answer.or(state.answered.as_ref()),
        attempt: state.node_failures + 1,
        begun: &begun,
        handed: scene.position.handoff.as_ref(),
    });
    Ok(match reply.await? {
        Reply::Done(plan, cost_micros) => Output::Planned { plan, cost_micros },
        Reply::Ask(question, cost) => Output::Ask(question, cost),
        Reply::Later(request, about) => Output::HandOff(request, about),
        Reply::Waiting => Output::Await,
    })
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let mut state = scene.state.clone();
    let input = input(scene.state, scene.position.ended_wait.as_ref());
    let output = run(input, scene, &mut state).await?;
    Ok(match output {
        Output::Go => Step::new(Verdict::Pass, state),
        Output::Ask(question, cost) => ask(state, question, cost),
        Output::HandOff(request, about) => hand_off(state, *request, about),
        Output::Await => await_answer(state),
        Output::GiveUp(why) => Step::give_up(state, why.to_owned()),
        Output::Planned { plan, cost_micros } => {
            let effects = vec![Effect::PlanUnits { units: plan.steps().to_vec() }];
            let question = format!("May the plan of {} units be carried out?", plan.steps().len());
            state.plan = Some(plan);
            // What a review or tests sent back is mended in the plan that a person said yes to.
            let own = |said: &Feedback| Revision::read(said).is_some();
            let asks = scene.limits.approve_plan
                && (state.feedback.is_empty() || !state.feedback.iter().all(own));
            // The plan was made with it.
            state.feedback.clear();
            state.answered = None;
            let step = if asks {
                let wait = NewWait { question: Some(question), ..waiting(WaitReason::Approval) };
                Step::wait(state, wait, None)
            } else {
                Step::new(Verdict::Pass, state)
            };
            Step { effects, cost_micros, ..step }
        }
    })
}
