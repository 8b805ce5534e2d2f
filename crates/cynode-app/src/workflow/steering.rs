//! What people told a run, taken up between two nodes.

use cynode_core::{
    ids::{TaskId, WaitId},
    workflow::{Node, Verdict, instructions::Steering, waits::WaitReason},
};
use cynode_db::{
    instructions, waits,
    workflow::{self, Counters, Resting, Step},
};
use cynode_wire::workflow::{Feedback, Resolution, RunState};

use crate::{Ctx, Error};

/// A place between two nodes.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The last checkpoint.
    pub(super) sequence: i64,
    /// The node that is next.
    pub(super) next: Node,
    /// What later nodes need.
    pub(super) state: RunState,
}

/// What became of the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steered {
    /// There was none, or they cancelled each other out.
    No,
    /// A pause has ended, and nothing else.
    Continued,
    /// The run goes back to planning.
    Replanned,
    /// The run waits until a person lets it go on.
    Paused,
}

/// Takes up what waits. `open` is the wait that the run is in, if it is in one.
pub(super) async fn take_up(
    ctx: &mut Ctx,
    task: TaskId,
    counters: &Counters,
    at: &mut Place,
    open: Option<&waits::Open>,
) -> Result<Steered, Error> {
    if counters.instructions_waiting == 0 {
        return Ok(Steered::No);
    }
    let taken = instructions::take_up(ctx.conn(), task, at.sequence).await?;
    let was_paused = open.is_some_and(|wait| wait.reason == WaitReason::Paused);
    let (mut paused, mut replanned) = (was_paused, false);
    let asked_before = match open {
        Some(wait) if was_paused => waits::get(ctx.conn(), wait.id).await?,
        Some(_) | None => None,
    };
    let asked_before: Vec<String> =
        asked_before.and_then(|wait| wait.question).into_iter().collect();
    let mut asked = asked_before.clone();
    for instruction in &taken {
        match instruction.kind.steering() {
            Steering::Pause => {
                paused = true;
                asked.extend(instruction.text.clone());
            }
            Steering::Continue => {
                paused = false;
                asked.clear();
            }
            Steering::Replan => {
                let (kind, text) = (instruction.kind, instruction.text.clone().unwrap_or_default());
                at.state.feedback.push(Feedback { kind, text });
                replanned = true;
            }
            // It was carried out when it was given.
            Steering::Stop => {}
        }
    }
    let by = taken.last().map(|instruction| instruction.by.to_string()).unwrap_or_default();
    // Whoever pauses what is paused asks one thing more: it is told too.
    let news = paused != was_paused || asked != asked_before;
    if let Some(wait) = open
        && (replanned || news)
    {
        let resolution =
            if was_paused && !paused { Resolution::Continued } else { Resolution::Cancelled };
        waits::resolve(ctx.conn(), wait.id, resolution, None, None).await?;
    }
    if replanned {
        // Before the context is loaded there is nothing to plan anew: what was said is kept for the first plan.
        let (verdict, next) = match at.next {
            Node::LoadTaskContext => (Verdict::Redo, Node::LoadTaskContext),
            _ => (Verdict::Revise, Node::PlanSteps),
        };
        // What a node failed at before is no failure of the next plan.
        at.state.node_failures = 0;
        turn(ctx, task, at, &by, verdict, next).await?;
    }
    if paused && (replanned || news) {
        turn(ctx, task, at, &by, Verdict::Wait, at.next).await?;
        let question = (!asked.is_empty()).then(|| asked.join("\n\n"));
        let wait = waits::NewWait {
            id: WaitId::from_uuid(ctx.uuid()),
            sequence: at.sequence,
            reason: WaitReason::Paused,
            question: question.as_deref(),
            expires_in_ms: None,
        };
        workflow::rest(ctx.conn(), task, Resting::AtAGate, counters.wakes, None).await?;
        waits::open(ctx.conn(), task, &wait).await?;
        super::tell_who_waits(ctx, task, &wait).await?;
    }
    Ok(match (paused, replanned) {
        (true, _) => Steered::Paused,
        (false, true) => Steered::Replanned,
        (false, false) if was_paused => Steered::Continued,
        (false, false) => Steered::No,
    })
}

/// Writes a change of course down as a step of its own.
async fn turn(
    ctx: &mut Ctx,
    task: TaskId,
    at: &mut Place,
    by: &str,
    verdict: Verdict,
    next: Node,
) -> Result<(), Error> {
    let state = serde_json::to_value(&at.state).map_err(|error| Error::Internal(error.into()))?;
    let step = Step {
        sequence: at.sequence + 1,
        node: at.next,
        verdict,
        next_node: Some(next),
        state: &state,
        unit: None,
        attempt: 1,
        duration_ms: 0,
        cost_micros: 0,
        note: Some("a person steered"),
    };
    workflow::steer(ctx.conn(), task, by, &step).await?;
    at.sequence += 1;
    at.next = next;
    Ok(())
}
