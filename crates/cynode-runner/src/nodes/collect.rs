//! Collect Result: takes whichever result has come; waits when none has.

use cynode_core::workflow::{
    Verdict,
    plan::UnitKey,
    units::{JobState, UnitState},
    waits::WaitReason,
};
use cynode_wire::workflow::{Effect, Finding, Severity, StepResult, UnitView};
use serde_json::Value;

use super::{Scene, Step, may_retry, waiting};

/// Most characters of a worker's output that are repeated.
const MOST_WORDS: usize = 2000;

struct Input<'a> {
    units: &'a [UnitView],
}

#[derive(Debug, PartialEq)]
enum Output {
    Result { unit: UnitKey, attempt: u32, output: Value },
    Nothing { unit: UnitKey, attempt: u32, why: String },
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
        return Output::Nothing { unit, attempt, why };
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

pub(super) fn step(scene: &Scene<'_>) -> Step {
    let mut state = scene.state.clone();
    match run(&Input { units: &scene.position.units }) {
        Output::Result { unit, attempt, output } => {
            state.last_result = Some(StepResult { unit: unit.clone(), attempt, output });
            let effects = vec![Effect::CollectJob { unit: unit.clone(), attempt }];
            Step { effects, unit: Some(unit), ..Step::new(Verdict::Pass, state) }
        }
        Output::Nothing { unit, attempt, why } => {
            let findings = vec![Finding { severity: Severity::Critical, text: why.clone() }];
            if may_retry(scene, attempt) {
                let effects = vec![Effect::RetryUnit { unit: unit.clone(), attempt, findings }];
                let step = Step::new(Verdict::Redo, state);
                Step { effects, unit: Some(unit), note: Some(why), ..step }
            } else {
                let effects = vec![Effect::FailUnit { unit: unit.clone(), attempt, findings }];
                let step = Step::give_up(state, format!("unit `{unit}`: {why}"));
                Step { effects, unit: Some(unit), ..step }
            }
        }
        Output::Await => Step::wait(state, waiting(WaitReason::Job), None),
        Output::NothingOut => Step::new(Verdict::Done, state),
    }
}
