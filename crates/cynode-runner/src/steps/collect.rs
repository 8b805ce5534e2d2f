//! Collect Result: collects the next finished result, or waits.

use cynode_core::{
    nodes::WorkStopReason,
    workflow::{
        StepVerdict,
        environments::SETUP_FAILURE_PREFIX,
        findings::{FindingSeverity, VerificationFinding},
        handoffs::FailureDecision,
        instructions::InstructionKind,
        plan::{PlanFeedback, UnitKey},
        units::{JobState, UnitState, UnitView},
        waits::{ANSWER_STOP, WaitReason},
    },
};
use cynode_wire::{
    manager::handoffs::{PlanRevision, UnitsConflict},
    workflow::{RunState, StepEffect, StepResult},
};
use serde_json::Value;

use super::{
    CheckpointDraft, StepContext, ask_about_unit, attempts_left, await_answer,
    dispatch::unit_payload,
    environment::handle_failed_setup,
    hand_off, may_retry, open_ended_wait,
    pending_checks::{CheckProgress, check_progress, gather_evidence},
    unit_answer,
};
use crate::agent_backend::{AgentReply, FailureRemedy, FailureRequest, StepError};

/// Maximum number of characters of a worker's output that are quoted.
const MAX_OUTPUT_CHARS: usize = 2000;

struct CollectInput<'a> {
    units: &'a [UnitView],
    /// Unit that a person or the project manager was asked about. It comes first, so that the answer is used.
    asked: Option<&'a UnitKey>,
}

#[derive(Debug, PartialEq)]
enum CollectOutput {
    Result {
        unit: UnitKey,
        attempt: u32,
        output: Value,
    },
    Nothing(FailedAttempt),
    /// The environment of the job could not be set up: the work did not begin.
    NoEnvironment {
        unit: UnitKey,
        attempt: u32,
        why: String,
    },
    Apart {
        unit: UnitKey,
        attempt: u32,
        conflict: UnitsConflict,
    },
    Await,
    NothingOut,
}

/// An attempt at a unit that has no result.
#[derive(Debug, PartialEq)]
struct FailedAttempt {
    unit: UnitKey,
    attempt: u32,
    why: String,
    /// Whether the job was lost, so that nothing is known about the work.
    lost: bool,
}

/// Finds the next result. `ready` returns whether a result can be verified; one that cannot be is left for later.
fn find_result(
    input: &CollectInput<'_>,
    mut ready: impl FnMut(&UnitKey, u32, &Value) -> bool,
) -> CollectOutput {
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
            JobState::Succeeded => return CollectOutput::Result { unit, attempt, output },
            JobState::Failed if output["stop_reason"] == WorkStopReason::Conflict.as_str() => {
                match parse_conflict(&output) {
                    Some(conflict) => return CollectOutput::Apart { unit, attempt, conflict },
                    None => format!("the job failed: {}", excerpt_output(&output)),
                }
            }
            JobState::Failed if output["stop_reason"] == WorkStopReason::Environment.as_str() => {
                let why = output["summary"].as_str().unwrap_or_default().trim().to_owned();
                return CollectOutput::NoEnvironment { unit, attempt, why };
            }
            JobState::Failed => format!("the job failed: {}", excerpt_output(&output)),
            JobState::Lost => "nothing was heard of the job any more".to_owned(),
            JobState::Cancelled | JobState::Queued | JobState::Running => continue,
        };
        let lost = job.state == JobState::Lost;
        return CollectOutput::Nothing(FailedAttempt { unit, attempt, why, lost });
    }
    if any { CollectOutput::Await } else { CollectOutput::NothingOut }
}

/// Parses the conflicting units that the orchestrator names.
fn parse_conflict(output: &Value) -> Option<UnitsConflict> {
    let conflict = &output["conflict"];
    Some(UnitsConflict {
        unit: serde_json::from_value(conflict["unit"].clone()).ok()?,
        merged_units: serde_json::from_value(conflict["merged_units"].clone()).ok()?,
        files: serde_json::from_value(conflict["files"].clone()).ok()?,
    })
}

/// Returns an excerpt of a worker's output that is sufficient to see the failure.
fn excerpt_output(output: &Value) -> String {
    let text = describe_failure(output).unwrap_or_else(|| output.to_string());
    let words: String = text.chars().take(MAX_OUTPUT_CHARS).collect();
    if words.len() < text.len() { format!("{words} …") } else { words }
}

/// Describes a failed job in words that a person can read.
fn describe_failure(output: &Value) -> Option<String> {
    let summary = output["summary"].as_str().filter(|text| !text.trim().is_empty())?;
    let stop_reason = output["stop_reason"].as_str().unwrap_or(WorkStopReason::Failed.as_str());
    let steps = output["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let failing = steps.iter().rev().find(|step| step["exit_code"] != 0);
    let wrote = failing.and_then(|step| step["output"].as_str()).unwrap_or_default().trim();
    let from = wrote.char_indices().rev().nth(MAX_OUTPUT_CHARS / 2).map_or(0, |(at, _)| at);
    let wrote = wrote[from..].trim();
    let end = if wrote.is_empty() { String::new() } else { format!("\nIt wrote: {wrote}") };
    Some(format!("{} ({stop_reason}){end}", summary.trim()))
}

/// Returns whether there is nothing to collect yet.
pub(super) fn has_only_open_jobs(units: &[UnitView]) -> bool {
    find_result(&CollectInput { units, asked: None }, |_, _, _| true) == CollectOutput::Await
}

pub(super) async fn run_collect_step(
    scene: &StepContext<'_>,
) -> Result<CheckpointDraft, StepError> {
    let state = scene.state.clone();
    // Checks of every available result start at once, so that parallel units do not wait for each other.
    let mut checks: Vec<StepEffect> = Vec::new();
    let asked = state.question_unit.as_ref();
    let input = CollectInput { units: &scene.position.units, asked };
    let output = find_result(&input, |unit, attempt, output| {
        match check_progress(scene, unit, attempt, output) {
            CheckProgress::Known(_) | CheckProgress::SetupFailed(_) | CheckProgress::Unable(_) => {
                true
            }
            CheckProgress::Gathering => false,
            CheckProgress::Missing(due) => {
                checks.push(gather_evidence(scene, unit, attempt, due));
                false
            }
        }
    });
    let step = apply_collect_output(scene, state, output).await?;
    Ok(CheckpointDraft { effects: [checks, step.effects].concat(), ..step })
}

async fn apply_collect_output(
    scene: &StepContext<'_>,
    state: RunState,
    output: CollectOutput,
) -> Result<CheckpointDraft, StepError> {
    match output {
        CollectOutput::Result { unit, attempt, output } => {
            Ok(accept_result(state, unit, attempt, output))
        }
        CollectOutput::Nothing(failed) => handle_failed_attempt(scene, state, failed).await,
        // A worker that the plan names runs in the environment that the plan names: nobody can choose another one.
        CollectOutput::NoEnvironment { unit, attempt, why }
            if unit_payload(scene, &unit).get("work").is_some() =>
        {
            let why = format!("{SETUP_FAILURE_PREFIX}{why}");
            let failed = FailedAttempt { unit, attempt, why, lost: false };
            handle_failed_attempt(scene, state, failed).await
        }
        CollectOutput::NoEnvironment { unit, attempt, why } => {
            Ok(handle_failed_setup(scene, state, unit, attempt, &why))
        }
        CollectOutput::Apart { unit, attempt, conflict } => {
            Ok(revise_for_conflict(state, unit, attempt, conflict))
        }
        CollectOutput::Await => {
            Ok(CheckpointDraft::with_wait(state, open_ended_wait(WaitReason::Job), None))
        }
        CollectOutput::NothingOut => Ok(CheckpointDraft::new(StepVerdict::Done, state)),
    }
}

/// Collects the result of a job that succeeded; the next step verifies it.
fn accept_result(
    mut state: RunState,
    unit: UnitKey,
    attempt: u32,
    mut output: Value,
) -> CheckpointDraft {
    // Only the job that runs the checks needs this field, and it may be large.
    if let Some(fields) = output.as_object_mut() {
        fields.remove("restored_tests");
    }
    state.last_result = Some(StepResult { unit: unit.clone(), attempt, output });
    CheckpointDraft {
        effects: vec![StepEffect::CollectJob { unit: unit.clone(), attempt }],
        unit: Some(unit),
        ..CheckpointDraft::new(StepVerdict::Pass, state)
    }
}

/// Fails a unit that conflicts with merged units, and has the plan revised.
fn revise_for_conflict(
    mut state: RunState,
    unit: UnitKey,
    attempt: u32,
    conflict: UnitsConflict,
) -> CheckpointDraft {
    let merged: Vec<_> = conflict.merged_units.iter().map(|key| format!("`{key}`")).collect();
    let (merged, files) = (merged.join(", "), conflict.files.join(", "));
    let why = format!("`{}` does not fit to {merged}: {files}", conflict.unit);
    let findings = vec![VerificationFinding::new(FindingSeverity::Major, why.clone())];
    let revision = PlanRevision {
        unit: unit.clone(),
        findings: findings.clone(),
        recommended_actions: Vec::new(),
        conflict: Some(conflict),
    };
    state.feedback.push(revision.to_feedback());
    CheckpointDraft {
        effects: vec![StepEffect::FailUnit { unit: unit.clone(), attempt, findings }],
        unit: Some(unit),
        note: Some(why),
        ..CheckpointDraft::new(StepVerdict::Revise, state)
    }
}

/// Requests a remedy for a failed attempt and applies it.
async fn handle_failed_attempt(
    scene: &StepContext<'_>,
    mut state: RunState,
    failed: FailedAttempt,
) -> Result<CheckpointDraft, StepError> {
    if failed.lost {
        // An unreachable node says nothing about the work.
        let (decision, note, by_person) = (FailureDecision::Retry, None, false);
        let remedy = FailureRemedy { decision, note, by_person };
        return Ok(apply_remedy(scene, state, failed, remedy));
    }
    let reply = request_remedy(scene, &failed.unit, failed.attempt, &failed.why).await?;
    Ok(match reply {
        // A reduced unit is a new unit with its own attempts, so reductions must be limited.
        AgentReply::Done(
            FailureRemedy { decision: FailureDecision::ReduceScope, by_person: false, .. },
            cost_micros,
        ) if !may_retry(scene, state.scope_reductions) => {
            let question = reduction_limit_question(&failed, state.scope_reductions);
            ask_about_unit(state, &failed.unit, question, cost_micros)
        }
        AgentReply::Done(remedy, cost_micros) => {
            CheckpointDraft { cost_micros, ..apply_remedy(scene, state, failed, remedy) }
        }
        AgentReply::Ask(question, cost_micros) => {
            ask_about_unit(state, &failed.unit, question, cost_micros)
        }
        AgentReply::Later(request, about) => {
            state.question_unit = Some(failed.unit);
            hand_off(state, *request, about)
        }
        AgentReply::Waiting => await_answer(state),
    })
}

/// Applies the decision about a failed attempt: less is planned, the unit is tried again, or the task fails.
fn apply_remedy(
    scene: &StepContext<'_>,
    mut state: RunState,
    failed: FailedAttempt,
    remedy: FailureRemedy,
) -> CheckpointDraft {
    let FailedAttempt { unit, attempt, why, lost: _ } = failed;
    let FailureRemedy { decision, note, by_person } = remedy;
    let mut findings = vec![VerificationFinding::new(FindingSeverity::Critical, why.clone())];
    if let Some(text) = &note {
        findings.push(VerificationFinding::new(FindingSeverity::Note, text.clone()));
    }
    let why = note.filter(|_| decision != FailureDecision::Retry).unwrap_or(why);
    let about_unit = format!("unit `{unit}`: {why}");
    let unit_failed = |findings| StepEffect::FailUnit { unit: unit.clone(), attempt, findings };
    match decision {
        FailureDecision::ReduceScope => {
            let effects = vec![unit_failed(findings)];
            state.scope_reductions += 1;
            let kind = InstructionKind::ReduceScope;
            state.feedback.push(PlanFeedback { kind, text: about_unit });
            let step = CheckpointDraft::new(StepVerdict::Revise, state);
            CheckpointDraft { effects, unit: Some(unit), note: Some(why), ..step }
        }
        FailureDecision::Retry if by_person || may_retry(scene, attempt) => {
            let effects = vec![StepEffect::RetryUnit { unit: unit.clone(), attempt, findings }];
            let step = CheckpointDraft::new(StepVerdict::Redo, state);
            CheckpointDraft { effects, unit: Some(unit), note: Some(why), ..step }
        }
        FailureDecision::Retry | FailureDecision::Escalate => {
            let effects = vec![unit_failed(findings)];
            let step = CheckpointDraft::fail_task(state, about_unit);
            CheckpointDraft { effects, unit: Some(unit), ..step }
        }
    }
}

/// Builds the question about a unit that has reached the limit of reductions.
fn reduction_limit_question(failed: &FailedAttempt, reduced: u32) -> String {
    let FailedAttempt { unit, attempt, why, .. } = failed;
    let why: String = why.chars().take(MAX_OUTPUT_CHARS / 2).collect();
    let limit = match reduced {
        0 => "The task has used up what may be tried again.".to_owned(),
        times => format!("Less was planned {times} times already."),
    };
    format!(
        "Unit `{unit}` came to nothing in attempt {attempt}: {why}\n{limit} Answer `{ANSWER_STOP}` to give the \
         task up, or say what is to be done otherwise: then it is tried again."
    )
}

/// Requests a decision about a unit whose job failed.
async fn request_remedy(
    scene: &StepContext<'_>,
    key: &UnitKey,
    attempt: u32,
    why: &str,
) -> Result<AgentReply<FailureRemedy>, StepError> {
    let unit = scene.position.units.iter().find(|unit| unit.key == *key);
    let Some(unit) = unit else {
        return Err(StepError::Permanent(format!("unit `{key}` is not there")));
    };
    let request = FailureRequest {
        unit,
        payload: unit_payload(scene, key),
        attempt,
        attempts_left: attempts_left(scene, attempt),
        why,
        answer: unit_answer(scene, key),
        handed: scene.position.handoff.as_ref(),
    };
    scene.mind.handle_unit_failure(request).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_is_told_in_words_and_what_has_none_as_it_is() {
        let plain = json!({ "summary": "Nothing was changed. ", "stop_reason": "unverified", "anomalies": [], "base": "c" });
        assert_eq!(excerpt_output(&plain), "Nothing was changed. (unverified)");
        let steps = json!([{ "exit_code": 0, "output": "fine" }, { "exit_code": 2, "output": "1 of 3 failed\n" }]);
        let ran =
            json!({ "summary": "Command 2 of 2 failed.", "stop_reason": "failed", "steps": steps });
        assert_eq!(
            excerpt_output(&ran),
            "Command 2 of 2 failed. (failed)\nIt wrote: 1 of 3 failed"
        );
        assert_eq!(excerpt_output(&json!({ "error": "no" })), r#"{"error":"no"}"#);
    }
}
