//! The nodes: each decides from what it is given, and says what is to be stored. None stores anything itself.

mod collect;
mod dispatch;
mod fail;
mod finalize;
mod load;
mod plan;
mod shown;
mod verify;

use cynode_core::{
    delivery::AGAIN,
    workflow::{
        Node, Verdict,
        limits::{Limits, backoff},
        plan::UnitKey,
        waits::{STOP, WaitReason, stops},
    },
};
use cynode_wire::{
    handoffs::{HandoffRequest, HandoffState, ReadyUnit, RunHandoff},
    workflow::{Effect, EndedWait, NewWait, Position, Resolution, RunState, TaskContext},
};

use crate::mind::{Mind, NodeError};

/// How long a run waits for an agent to be connected before it looks again.
const UNATTENDED_MS: u64 = 600_000;

/// What a node is given.
pub(crate) struct Scene<'a> {
    pub(crate) task: &'a TaskContext,
    pub(crate) position: &'a Position,
    pub(crate) state: &'a RunState,
    pub(crate) limits: &'a Limits,
    pub(crate) mind: &'a dyn Mind,
}

/// What a node did, to be stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) verdict: Verdict,
    pub(crate) state: RunState,
    pub(crate) effects: Vec<Effect>,
    pub(crate) wait: Option<NewWait>,
    pub(crate) unit: Option<UnitKey>,
    pub(crate) note: Option<String>,
    pub(crate) cost_micros: u64,
}

impl Step {
    /// A step that only says what follows.
    pub(crate) const fn new(verdict: Verdict, state: RunState) -> Self {
        Self {
            verdict,
            state,
            effects: Vec::new(),
            wait: None,
            unit: None,
            note: None,
            cost_micros: 0,
        }
    }

    /// The run waits.
    pub(crate) fn wait(state: RunState, wait: NewWait, note: Option<String>) -> Self {
        Self { wait: Some(wait), note, ..Self::new(Verdict::Wait, state) }
    }

    /// The task is given up.
    pub(crate) fn give_up(mut state: RunState, why: String) -> Self {
        state.failure = Some(why.clone());
        Self { note: Some(why), ..Self::new(Verdict::Fail, state) }
    }
}

/// Waits for `reason`, without an end.
pub(crate) const fn waiting(reason: WaitReason) -> NewWait {
    NewWait { reason, question: None, wake_in_ms: None, expires_in_seconds: None }
}

/// Asks a person.
pub(crate) fn ask(state: RunState, question: String, cost_micros: u64) -> Step {
    let wait = NewWait { question: Some(question), ..waiting(WaitReason::HumanInput) };
    Step { cost_micros, ..Step::wait(state, wait, None) }
}

/// Hands something off and waits for the answer.
pub(crate) fn hand_off(state: RunState, request: HandoffRequest, about: String) -> Step {
    let note = Some(format!("asked the project manager: {}", request.kind().as_str()));
    let effects = vec![Effect::HandOff { about, request: Box::new(request) }];
    Step { effects, note, ..await_answer(state) }
}

/// Waits for an answer that was asked for.
pub(crate) fn await_answer(state: RunState) -> Step {
    let wait = NewWait { wake_in_ms: Some(UNATTENDED_MS), ..waiting(WaitReason::Agent) };
    Step::wait(state, wait, None)
}

/// Asks a person about a unit.
pub(crate) fn ask_about(
    mut state: RunState,
    unit: &UnitKey,
    question: String,
    cost_micros: u64,
) -> Step {
    state.asked = Some(unit.clone());
    Step { unit: Some(unit.clone()), ..ask(state, question, cost_micros) }
}

/// What a person answered about a unit, if that is what the run was woken by and it is what they were asked about.
pub(crate) fn answered_about<'a>(scene: &Scene<'a>, unit: &UnitKey) -> Option<&'a EndedWait> {
    answered(scene).filter(|_| scene.state.asked.as_ref().is_none_or(|asked| asked == unit))
}

/// What a person answered, if that is what the run was woken by.
pub(crate) fn answered<'a>(scene: &Scene<'a>) -> Option<&'a EndedWait> {
    // A question that a pause cut off was not answered.
    let spoke = |wait: &&EndedWait| {
        matches!(wait.reason, WaitReason::HumanInput | WaitReason::Approval)
            && !matches!(wait.resolution, Resolution::Cancelled | Resolution::Woken)
    };
    scene.position.ended_wait.as_ref().filter(spoke)
}

/// Why a person who was asked wants the task given up, if they do.
pub(crate) fn given_up(scene: &Scene<'_>) -> Option<&'static str> {
    let wait = answered(scene).filter(|wait| wait.reason == WaitReason::HumanInput)?;
    match wait.resolution {
        Resolution::Expired => Some("nobody answered in time"),
        Resolution::Rejected => Some("a person gave it up"),
        _ => wait.answer.as_deref().is_some_and(stops).then_some("a person gave it up"),
    }
}

/// The answer that a step has used up: it is taken in the same checkpoint. A step that asks anew drops what was asked before.
fn taken(handoff: Option<&RunHandoff>, step: &mut Step) {
    let answered =
        handoff.filter(|it| matches!(it.state, HandoffState::Done | HandoffState::Failed));
    let asks = step.effects.iter().any(|effect| matches!(effect, Effect::HandOff { .. }));
    if let Some(handoff) = answered.filter(|_| !asks) {
        step.effects.insert(0, Effect::TakeHandoff { handoff_id: handoff.handoff_id });
    }
}

/// Whether the task may try something once more.
pub(crate) fn may_retry(scene: &Scene<'_>, attempts: u32) -> bool {
    attempts < scene.limits.step_attempts && scene.position.retries_used < scene.limits.retry_budget
}

/// How often a unit may be tried again after that many attempts.
pub(crate) fn attempts_left(scene: &Scene<'_>, attempts: u32) -> u32 {
    let left = scene.limits.step_attempts.saturating_sub(attempts);
    if may_retry(scene, attempts) { left } else { 0 }
}

/// Whether collecting would find nothing but jobs that are out.
pub(crate) fn awaits(position: &Position) -> bool {
    collect::awaits(&position.units)
}

/// Whether somebody must say who does this unit.
pub(crate) fn is_open(unit: &ReadyUnit) -> bool {
    dispatch::open(unit)
}

/// Runs a node; what comes to nothing becomes a step too: a wait for the next attempt or for a person, or the end.
pub(crate) async fn run(node: Node, scene: &Scene<'_>) -> Step {
    if scene.state.undecided {
        return Box::pin(once_more(node, scene)).await;
    }
    play(node, scene).await
}

/// Runs a node about which a person was asked, since nobody could decide it. What they answered is about that: any word but `stop` has
/// it tried once more.
async fn once_more(node: Node, scene: &Scene<'_>) -> Step {
    let state = RunState { undecided: false, ..scene.state.clone() };
    if let Some(why) = given_up(scene) {
        return Step::give_up(state, format!("{}: {why}", node.title()));
    }
    let position = Position { ended_wait: None, ..scene.position.clone() };
    let Scene { task, limits, mind, .. } = *scene;
    play(node, &Scene { task, position: &position, state: &state, limits, mind }).await
}

async fn play(node: Node, scene: &Scene<'_>) -> Step {
    let timeout = scene.limits.timeout(node);
    let work = async {
        match node {
            Node::LoadTaskContext => Ok(load::step(scene)),
            Node::PlanSteps => plan::step(scene).await,
            Node::DispatchStep => dispatch::step(scene).await,
            Node::CollectResult => collect::step(scene).await,
            Node::VerifyStepResult => verify::step(scene).await,
            Node::FinalizeSummary => finalize::step(scene).await,
            Node::MarkFailed => Ok(fail::step(scene)),
        }
    };
    let done = tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        Err(NodeError::Transient(format!("{} took longer than {timeout:?}", node.title())))
    });
    let mut step = match done {
        Ok(mut step) => {
            // Whoever waits for an answer has neither failed nor done it yet.
            let waits_for = step.wait.as_ref().map(|wait| wait.reason);
            if waits_for != Some(WaitReason::Agent) {
                step.state.node_failures = 0;
            }
            // Whoever waits on has not used the answer up yet.
            if !matches!(
                waits_for,
                Some(WaitReason::Agent | WaitReason::HumanInput | WaitReason::Job)
            ) {
                step.state.asked = None;
            }
            step
        }
        Err(error) => failed(node, scene, &error),
    };
    taken(scene.position.handoff.as_ref(), &mut step);
    step
}

/// What is stored when the orchestrator will never take what a node did, best first. Work that was done is not given up because it may not
/// end yet: a person is asked. The last is always to give the task up, without the state, which may be what was too large.
pub(crate) fn after_refusal(
    node: Node,
    status: u16,
    state: &RunState,
    handoff: Option<&RunHandoff>,
    detail: &str,
) -> Vec<Step> {
    let mut instead = Vec::new();
    if node == Node::FinalizeSummary && status == 422 {
        let question = format!(
            "Everything is done, and yet the task may not end: {detail}\nAnswer `{AGAIN}` when that is mended, or cancel the task."
        );
        let mut asking = ask(state.clone(), question, 0);
        // What was said before is used up: whoever answers has it done once more.
        taken(handoff, &mut asking);
        instead.push(asking);
    }
    let little = RunState { runner: state.runner.clone(), ..RunState::default() };
    instead.push(Step::give_up(little, format!("{}: {detail}", node.title())));
    instead
}

fn failed(node: Node, scene: &Scene<'_>, error: &NodeError) -> Step {
    let mut state = scene.state.clone();
    let why = format!("{}: {error}", node.title());
    let delay = match error {
        NodeError::Unattended => {
            let wait = NewWait { wake_in_ms: Some(UNATTENDED_MS), ..waiting(WaitReason::Agent) };
            return Step::wait(state, wait, Some(why));
        }
        // What was done so far is not lost because somebody could not think.
        NodeError::Undecided(_) => {
            let question = format!(
                "{why}\nAnswer `{AGAIN}` to have it tried once more, or `{STOP}` to give the task up."
            );
            (state.undecided, state.node_failures) = (true, 0);
            return ask(state, question, 0);
        }
        NodeError::Permanent(_) => return Step::give_up(state, why),
        NodeError::Transient(_) => backoff(state.node_failures + 1).as_millis(),
        NodeError::Domain(_) => 0,
    };
    state.node_failures += 1;
    let left = state.node_failures < scene.limits.node_attempts
        && scene.position.retries_used < scene.limits.retry_budget;
    if !left {
        let why =
            format!("{why} (attempt {} of {})", state.node_failures, scene.limits.node_attempts);
        return Step::give_up(state, why);
    }
    let wake_in_ms = Some(u64::try_from(delay).unwrap_or(u64::MAX));
    let wait = NewWait { wake_in_ms, ..waiting(WaitReason::Retry) };
    Step::wait(state, wait, Some(why))
}

#[cfg(test)]
mod tests;
