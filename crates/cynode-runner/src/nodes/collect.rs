//! Collect Result: takes whichever result has come; waits when none has.

use cynode_core::workflow::instructions::InstructionKind;
use cynode_core::workflow::{
    Verdict,
    plan::UnitKey,
    units::{JobState, UnitState},
    waits::{STOP, WaitReason},
};
use cynode_wire::{
    handoffs::{FailureDecision, Revision, UnitsConflict},
    workflow::{Effect, Feedback, Finding, RunState, Severity, StepResult, UnitView},
};
use serde_json::Value;

use super::{
    Scene, Step, answered_about, ask_about, attempts_left, await_answer, hand_off, may_retry,
    shown::{Shown, gather, shown},
    waiting,
};
use crate::mind::{FailureRequest, NodeError, Remedy, Reply};

/// Most characters of a worker's output that are repeated.
const MOST_WORDS: usize = 2000;

struct Input<'a> {
    units: &'a [UnitView],
    /// The unit that a person or the project manager was asked about: it comes first, so that what they answered is used.
    asked: Option<&'a UnitKey>,
}

#[derive(Debug, PartialEq)]
enum Output {
    Result { unit: UnitKey, attempt: u32, output: Value },
    Nothing { unit: UnitKey, attempt: u32, why: String, lost: bool },
    Apart { unit: UnitKey, attempt: u32, conflict: UnitsConflict },
    Await,
    NothingOut,
}

/// What has come. `ready` says whether a result can be judged; one that cannot is left where it is.
fn run(input: &Input<'_>, mut ready: impl FnMut(&UnitKey, u32, &Value) -> bool) -> Output {
    let out = input.units.iter().filter(|unit| unit.state == UnitState::Dispatched);
    let mut out: Vec<_> = out.collect();
    out.sort_by_key(|unit| input.asked.is_some_and(|asked| *asked != unit.key));
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
            JobState::Succeeded if !ready(&unit, attempt, &output) => continue,
            JobState::Succeeded => return Output::Result { unit, attempt, output },
            JobState::Failed if output["stop"] == "conflict" => match apart(&output) {
                Some(conflict) => return Output::Apart { unit, attempt, conflict },
                None => format!("the job failed: {}", cut(&output)),
            },
            JobState::Failed => format!("the job failed: {}", cut(&output)),
            JobState::Lost => "nothing was heard of the job any more".to_owned(),
            JobState::Cancelled | JobState::Queued | JobState::Running => continue,
        };
        return Output::Nothing { unit, attempt, why, lost: job.state == JobState::Lost };
    }
    if any { Output::Await } else { Output::NothingOut }
}

/// The units that do not fit together, as the orchestrator names them.
fn apart(output: &Value) -> Option<UnitsConflict> {
    let conflict = &output["conflict"];
    Some(UnitsConflict {
        unit: serde_json::from_value(conflict["unit"].clone()).ok()?,
        with: serde_json::from_value(conflict["with_units"].clone()).ok()?,
        files: serde_json::from_value(conflict["files"].clone()).ok()?,
    })
}

/// Enough of a worker's words to see what was wrong.
fn cut(output: &Value) -> String {
    let text = told(output).unwrap_or_else(|| output.to_string());
    let words: String = text.chars().take(MOST_WORDS).collect();
    if words.len() < text.len() { format!("{words} …") } else { words }
}

/// What a node says of a job that failed, in words: a person may read it.
fn told(output: &Value) -> Option<String> {
    let summary = output["summary"].as_str().filter(|text| !text.trim().is_empty())?;
    let stop = output["stop"].as_str().unwrap_or("failed");
    let steps = output["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let failing = steps.iter().rev().find(|step| step["exit_code"] != 0);
    let wrote = failing.and_then(|step| step["output"].as_str()).unwrap_or_default().trim();
    let from = wrote.char_indices().rev().nth(MOST_WORDS / 2).map_or(0, |(at, _)| at);
    let wrote = wrote[from..].trim();
    let end = if wrote.is_empty() { String::new() } else { format!("\nIt wrote: {wrote}") };
    Some(format!("{} ({stop}){end}", summary.trim()))
}

/// Whether there is nothing to collect yet.
pub(super) fn awaits(units: &[UnitView]) -> bool {
    run(&Input { units, asked: None }, |_, _, _| true) == Output::Await
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let mut state = scene.state.clone();
    // Checks of whatever has come are begun at once, so that units beside each other do not wait for each other.
    let mut checks: Vec<Effect> = Vec::new();
    let input = Input { units: &scene.position.units, asked: state.asked.as_ref() };
    let output = run(&input, |unit, attempt, output| match shown(scene, unit, attempt, output) {
        Shown::Known(_) | Shown::Unable(_) => true,
        Shown::Gathering => false,
        Shown::Missing(due) => {
            checks.push(gather(scene, unit, attempt, due));
            false
        }
    });
    let step = collected(scene, &mut state, output).await?;
    Ok(Step { effects: [checks, step.effects].concat(), ..step })
}

async fn collected(
    scene: &Scene<'_>,
    state: &mut RunState,
    output: Output,
) -> Result<Step, NodeError> {
    let mut state = std::mem::take(state);
    Ok(match output {
        Output::Apart { unit, attempt, conflict } => {
            let files = conflict.files.join(", ");
            let with: Vec<_> = conflict.with.iter().map(|key| format!("`{key}`")).collect();
            let why = format!("`{}` does not fit to {}: {files}", conflict.unit, with.join(", "));
            let findings = vec![Finding::new(Severity::Major, why.clone())];
            let revision = Revision {
                unit: unit.clone(),
                findings: findings.clone(),
                recommended_actions: Vec::new(),
                conflict: Some(conflict),
            };
            state.feedback.push(revision.feedback());
            let effects = vec![Effect::FailUnit { unit: unit.clone(), attempt, findings }];
            let step = Step::new(Verdict::Revise, state);
            Step { effects, unit: Some(unit), note: Some(why), ..step }
        }
        Output::Result { unit, attempt, mut output } => {
            // Only whoever runs the checks needs it, and there may be much of it.
            if let Some(fields) = output.as_object_mut() {
                fields.remove("put_back");
            }
            state.last_result = Some(StepResult { unit: unit.clone(), attempt, output });
            let effects = vec![Effect::CollectJob { unit: unit.clone(), attempt }];
            Step { effects, unit: Some(unit), ..Step::new(Verdict::Pass, state) }
        }
        Output::Nothing { unit, attempt, why, lost } => {
            let mut findings = vec![Finding::new(Severity::Critical, why.clone())];
            let reply = if lost { None } else { Some(remedy(scene, &unit, attempt, &why).await?) };
            let (remedy, cost_micros) = match reply {
                // A machine that is not heard of says nothing about the work.
                None => {
                    let (decision, note, by_person) = (FailureDecision::Retry, None, false);
                    (Remedy { decision, note, by_person }, 0)
                }
                Some(Reply::Done(remedy, cost)) => (remedy, cost),
                Some(Reply::Ask(question, cost)) => {
                    return Ok(ask_about(state, &unit, question, cost));
                }
                Some(Reply::Later(request, about)) => {
                    state.asked = Some(unit);
                    return Ok(hand_off(state, *request, about));
                }
                Some(Reply::Waiting) => return Ok(await_answer(state)),
            };
            let Remedy { decision, note, by_person } = remedy;
            // What is planned smaller is another unit with attempts of its own: it must end at some time.
            let reduces = decision == FailureDecision::ReduceScope && !by_person;
            if reduces && !may_retry(scene, state.reduced) {
                let question = no_smaller(&unit, attempt, &why, state.reduced);
                return Ok(ask_about(state, &unit, question, cost_micros));
            }
            findings.extend(note.iter().map(|text| Finding::new(Severity::Note, text.clone())));
            let why = note.filter(|_| decision != FailureDecision::Retry).unwrap_or(why);
            let step = if decision == FailureDecision::ReduceScope {
                let effects = vec![Effect::FailUnit { unit: unit.clone(), attempt, findings }];
                let kind = InstructionKind::ReduceScope;
                state.reduced += 1;
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

/// Asks what is to be done about a unit for which nothing smaller is planned any more.
fn no_smaller(unit: &UnitKey, attempt: u32, why: &str, reduced: u32) -> String {
    let why: String = why.chars().take(MOST_WORDS / 2).collect();
    let limit = match reduced {
        0 => "The task has used up what may be tried again.".to_owned(),
        times => format!("Less was planned {times} times already."),
    };
    format!(
        "Unit `{unit}` came to nothing in attempt {attempt}: {why}\n{limit} Answer `{STOP}` to give the \
         task up, or say what is to be done otherwise: then it is tried again."
    )
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
    let request = FailureRequest {
        unit,
        payload: super::dispatch::payload(scene, key),
        attempt,
        attempts_left: attempts_left(scene, attempt),
        why,
        answer: answered_about(scene, key),
        handed: scene.position.handoff.as_ref(),
    };
    scene.mind.failure(request).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_is_told_in_words_and_what_has_none_as_it_is() {
        let plain = json!({ "summary": "Nothing was changed. ", "stop": "unverified", "odd": [], "base": "c" });
        assert_eq!(cut(&plain), "Nothing was changed. (unverified)");
        let steps = json!([{ "exit_code": 0, "output": "fine" }, { "exit_code": 2, "output": "1 of 3 failed\n" }]);
        let ran = json!({ "summary": "Command 2 of 2 failed.", "stop": "failed", "steps": steps });
        assert_eq!(cut(&ran), "Command 2 of 2 failed. (failed)\nIt wrote: 1 of 3 failed");
        assert_eq!(cut(&json!({ "error": "no" })), r#"{"error":"no"}"#);
    }
}
