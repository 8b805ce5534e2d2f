//! Collect Result: takes whichever result has come; waits when none has.

use cynode_core::workflow::instructions::InstructionKind;
use cynode_core::workflow::{
    Verdict,
    plan::UnitKey,
    units::{JobState, UnitState},
    waits::WaitReason,
};
use cynode_wire::{
    handoffs::FailureDecision,
    workflow::{Effect, Feedback, Finding, Severity, StepResult, UnitView},
};
use serde_json::Value;

use super::{Scene, Step, answered, ask, await_answer, hand_off, may_retry, waiting};
use crate::mind::{FailureRequest, NodeError, Remedy, Reply};

/// Most characters of a worker's output that are repeated.
const MOST_WORDS: usize = 2000;

struct Input<'a> {
    units: &'a [UnitView],
}

#[derive(Debug, PartialEq)]
enum Output {
    Result { unit: UnitKey, attempt: u32, output: Value },
    Nothing { unit: UnitKey, attempt: u32, why: String, lost: bool },
    Await,
    NothingOut,
}

fn run(input: &Input<'_>) -> Output {
    let out = input.units.iter().filter(|unit| unit.state == UnitState::Dispatched);
    let mut any = false;
    for unit in out {
        any = true;
        let Some(job) = unit.job.as_ref().filter(|job| job.state.is_final() && !job.collected)
        else {
            continue;
        };
        let (unit, attempt) = (unit.key.clone(), job.attempt);
        let output = job.result.clone().unwrap_or_default();
        let why = match job.state {
            JobState::Succeeded => return Output::Result { unit, attempt, output },
            JobState::Failed => format!("the job failed: {}", cut(&output)),
            JobState::Lost => "nothing was heard of the job any more".to_owned(),
            JobState::Cancelled | JobState::Queued | JobState::Running => continue,
        };
        return Output::Nothing { unit, attempt, why, lost: job.state == JobState::Lost };
    }
    if any { Output::Await } else { Output::NothingOut }
}

/// Enough of a worker's words to see what was wrong.
fn cut(output: &Value) -> String {
    let text = output.to_string();
    let words: String = text.chars().take(MOST_WORDS).collect();
    if words.len() < text.len() { format!("{words} …") } else { words }
}

/// Whether there is nothing to collect yet.
pub(super) fn awaits(units: &[UnitView]) -> bool {
    run(&Input { units }) == Output::Await
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let mut state = scene.state.clone();
    Ok(match run(&Input { units: &scene.position.units }) {
        Output::Result { unit, attempt, output } => {
            state.last_result = Some(StepResult { unit: unit.clone(), attempt, output });
            let effects = vec![Effect::CollectJob { unit: unit.clone(), attempt }];
            Step { effects, unit: Some(unit), ..Step::new(Verdict::Pass, state) }
        }
        Output::Nothing { unit, attempt, why, lost } => {
            let mut findings = vec![Finding { severity: Severity::Critical, text: why.clone() }];
            let reply = if lost { None } else { Some(remedy(scene, &unit, attempt, &why).await?) };
            let (remedy, cost_micros) = match reply {
                // A machine that is not heard of says nothing about the work.
                None => {
                    let (decision, note, by_person) = (FailureDecision::Retry, None, false);
                    (Remedy { decision, note, by_person }, 0)
                }
                Some(Reply::Done(remedy, cost)) => (remedy, cost),
                Some(Reply::Ask(question, cost)) => return Ok(ask(state, question, cost)),
                Some(Reply::Later(request, about)) => return Ok(hand_off(state, *request, about)),
                Some(Reply::Waiting) => return Ok(await_answer(state)),
            };
            let Remedy { decision, note, by_person } = remedy;
            findings.extend(
                note.iter().map(|text| Finding { severity: Severity::Note, text: text.clone() }),
            );
            let why = note.filter(|_| decision != FailureDecision::Retry).unwrap_or(why);
            let step = if decision == FailureDecision::ReduceScope {
                let effects = vec![Effect::FailUnit { unit: unit.clone(), attempt, findings }];
                let kind = InstructionKind::ReduceScope;
                state.feedback.push(Feedback { kind, text: format!("unit `{unit}`: {why}") });
                let step = Step::new(Verdict::Revise, state);
                Step { effects, unit: Some(unit), note: Some(why), ..step }
            } else if decision == FailureDecision::Retry && (by_person || may_retry(scene, attempt))
            {
                let effects = vec![Effect::RetryUnit { unit: unit.clone(), attempt, findings }];
                let step = Step::new(Verdict::Redo, state);
                Step { effects, unit: Some(unit), note: Some(why), ..step }
            } else {
                let effects = vec![Effect::FailUnit { unit: unit.clone(), attempt, findings }];
                let step = Step::give_up(state, format!("unit `{unit}`: {why}"));
                Step { effects, unit: Some(unit), ..step }
            };
            Step { cost_micros, ..step }
        }
        Output::Await => Step::wait(state, waiting(WaitReason::Job), None),
        Output::NothingOut => Step::new(Verdict::Done, state),
    })
}

/// What is to be done about a unit whose job failed.
async fn remedy(
    scene: &Scene<'_>,
    key: &UnitKey,
    attempt: u32,
    why: &str,
) -> Result<Reply<Remedy>, NodeError> {
    let unit = scene.position.units.iter().find(|unit| unit.key == *key);
    let Some(unit) = unit else {
        return Err(NodeError::Permanent(format!("unit `{key}` is not there")));
    };
    let left = scene.limits.step_attempts.saturating_sub(attempt);
    let attempts_left = if may_retry(scene, attempt) { left } else { 0 };
    let request = FailureRequest {
        unit,
        payload: super::dispatch::payload(scene, key),
        attempt,
        attempts_left,
        why,
        answer: answered(scene),
        handed: scene.position.handoff.as_ref(),
    };
    scene.mind.failure(request).await
}
