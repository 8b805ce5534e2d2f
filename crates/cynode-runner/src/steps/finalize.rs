//! Finalize Summary: requests the delivery and writes the summary.

use cynode_core::{
    delivery::{
        ANSWER_END_WITHOUT, ANSWER_RETRY, DeliveryMode, PullRequestRef, is_end_without_answer,
    },
    evidence::EvidenceCheck,
    workflow::{
        StepVerdict,
        evidence::Evidence,
        units::{UnitState, UnitView},
        waits::{ANSWER_STOP, WaitReason},
    },
};
use cynode_wire::{manager::handoffs::PlanRevision, workflow::RunState};

use super::{
    CheckpointDraft, StepContext, abandonment_reason, ask_person, await_answer,
    environment::{UnrunChecks, handle_unrun_checks},
    hand_off, open_ended_wait,
    pending_checks::{
        CheckProgress, check_progress, due_checks, final_units, gather_evidence, regather_evidence,
    },
    person_answer, requests_retry,
};
use crate::agent_backend::{AgentReply, RunSummary, StepError, SummaryRequest};

struct FinalizeInput<'a> {
    units: &'a [UnitView],
    said: Option<RunSummary>,
    without: bool,
}

struct FinalizeOutput {
    summary: String,
}

fn render_summary(input: FinalizeInput<'_>) -> FinalizeOutput {
    let done: Vec<_> = input.units.iter().filter(|unit| unit.state == UnitState::Done).collect();
    let lines = done.iter().map(|unit| match unit.attempts {
        1 => format!("- {}", unit.title),
        attempts => format!("- {} ({attempts} attempts)", unit.title),
    });
    let lines: Vec<_> = lines.collect();
    let noun = if done.len() == 1 { "unit" } else { "units" };
    let counted = format!("{} {noun} done:\n{}", done.len(), lines.join("\n"));
    let (text, delivered) = match input.said {
        Some(RunSummary { text, pull_request }) => (Some(text), pull_request),
        None => (None, None),
    };
    let delivered = delivered.map(|it| render_delivery(&it));
    let without =
        input.without.then(|| "A person decided that it ends without a pull request.".to_owned());
    let parts = [text, Some(counted), delivered, without];
    FinalizeOutput { summary: parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n") }
}

/// Names the pull request. The path of a local one is an address of the API and means nothing to a reader.
fn render_delivery(delivered: &PullRequestRef) -> String {
    let PullRequestRef { number, url } = delivered;
    if url.starts_with("https://") || url.starts_with("http://") {
        format!("Pull request #{number}: {url}")
    } else {
        format!("Pull request #{number}")
    }
}

/// Returns whether undelivered work would be lost if the task ended now.
fn requires_delivery(state: &RunState, units: &[UnitView]) -> bool {
    let left_commit = |unit: &UnitView| {
        let result = unit.job.as_ref().and_then(|job| job.result.as_ref());
        result.is_some_and(|result| result["commit"].is_string())
    };
    let said = state.preferences_effective.iter();
    let mut said = said
        .filter(|(key, _)| key.as_str() == DeliveryMode::PREFERENCE_KEY)
        .map(|(_, value)| value);
    DeliveryMode::from_preference(said.next_back()) != DeliveryMode::None
        && units.iter().any(left_commit)
}

/// Builds the question about a check that cannot run on the machine.
fn obstacle_question(evidence: &Evidence) -> String {
    let told = evidence.first_obstacle().map(|(result, why)| {
        let (check, why, remedy) = (
            result.check.command_line(),
            why.describe_obstacle(),
            why.suggested_fix(&result.check),
        );
        format!("`{check}` cannot run here: {why}. {remedy}\n")
    });
    let told = told.unwrap_or_default();
    format!(
        "{told}Answer `{ANSWER_RETRY}` when it can run: the checks are run again, and no agent works for it. Answer `{ANSWER_STOP}` to give the task up."
    )
}

/// Checks the final units of the current plan before the task ends: a replan can change which units are final.
fn check_final_units(scene: &StepContext<'_>) -> Result<Option<CheckpointDraft>, StepError> {
    let Some(plan) = scene.state.plan.as_ref() else { return Ok(None) };
    let mut checks = Vec::new();
    for key in final_units(plan) {
        let unit = scene.position.units.iter().find(|unit| unit.key == *key);
        let unit = unit.filter(|unit| unit.state == UnitState::Done);
        let Some(output) = unit.and_then(|unit| unit.job.as_ref()?.result.as_ref()) else {
            continue;
        };
        let attempt = unit.map_or(1, |unit| unit.attempts);
        let view =
            scene.position.evidence.iter().find(|it| it.unit == *key && it.attempt == attempt);
        let has = |check: &EvidenceCheck| {
            view.is_some_and(|view| view.checks.iter().any(|it| it.check == *check))
        };
        // A waiver covers the checks that had run when it was given.
        if view.is_some_and(|view| view.waived.is_some()) && due_checks(scene, key).iter().all(has)
        {
            continue;
        }
        match check_progress(scene, key, attempt, output) {
            // The anomalies were decided when the unit was accepted.
            CheckProgress::Known(Evidence { checks, .. })
                if checks.iter().all(|it| it.tally.is_good()) => {}
            CheckProgress::Known(evidence) if evidence.commit.is_none() => {}
            CheckProgress::Known(evidence) if evidence.first_obstacle().is_some() => {
                if requests_retry(person_answer(scene)) {
                    checks.push(Some(regather_evidence(scene, key, attempt)));
                    continue;
                }
                if let Some(why) = abandonment_reason(scene) {
                    return Ok(Some(CheckpointDraft::fail_task(
                        scene.state.clone(),
                        why.to_owned(),
                    )));
                }
                return Ok(Some(ask_person(scene.state.clone(), obstacle_question(&evidence), 0)));
            }
            CheckProgress::Known(evidence) => {
                let mut state = scene.state.clone();
                let findings = evidence.to_findings();
                let why = format!("what unit `{key}` left does not hold in the end");
                let (recommended_actions, conflict) = (Vec::new(), None);
                let revision =
                    PlanRevision { unit: key.clone(), findings, recommended_actions, conflict };
                state.feedback.push(revision.to_feedback());
                let step = CheckpointDraft::new(StepVerdict::Revise, state);
                return Ok(Some(CheckpointDraft {
                    unit: Some(key.clone()),
                    note: Some(why),
                    ..step
                }));
            }
            CheckProgress::Missing(due) => {
                checks.push(Some(gather_evidence(scene, key, attempt, due)));
            }
            CheckProgress::Gathering => checks.push(None),
            CheckProgress::SetupFailed(why) => {
                let gather = regather_evidence(scene, key, attempt);
                let state = scene.state.clone();
                let checks = UnrunChecks { unit: key, attempt: None, why: &why, gather };
                return Ok(Some(handle_unrun_checks(scene, state, checks)));
            }
            CheckProgress::Unable(why) => return Err(StepError::Permanent(why)),
        }
    }
    if checks.is_empty() {
        return Ok(None);
    }
    let effects = checks.into_iter().flatten().collect();
    let step =
        CheckpointDraft::with_wait(scene.state.clone(), open_ended_wait(WaitReason::Job), None);
    Ok(Some(CheckpointDraft { effects, ..step }))
}

pub(super) async fn run_finalize_step(
    scene: &StepContext<'_>,
) -> Result<CheckpointDraft, StepError> {
    let units = &scene.position.units;
    let mut state = scene.state.clone();
    if let Some(step) = check_final_units(scene)? {
        return Ok(step);
    }
    let answer = person_answer(scene);
    let words = answer.and_then(|wait| wait.answer.as_deref()).unwrap_or_default();
    let without = is_end_without_answer(words);
    let request = SummaryRequest { units, answer, handed: scene.position.handoff.as_ref() };
    let (said, cost_micros) = if without {
        // A person's decision is final, even if no agent is available for a summary.
        (None, 0)
    } else {
        match scene.mind.summarize_run(request).await {
            Ok(AgentReply::Done(said, cost)) => (said, cost),
            Ok(AgentReply::Later(request, about)) => return Ok(hand_off(state, *request, about)),
            Ok(AgentReply::Waiting) => return Ok(await_answer(state)),
            Ok(AgentReply::Ask(question, cost)) => return Ok(ask_person(state, question, cost)),
            // Finished work must not be lost because the delivery failed.
            Err(StepError::Permanent(why) | StepError::Undecided(why) | StepError::Domain(why))
                if requires_delivery(&state, units) =>
            {
                let question = format!(
                    "What was done could not be delivered: {why}\nAnswer `{ANSWER_RETRY}` to try it once more, or `{ANSWER_END_WITHOUT}` to \
                     end the task without a pull request."
                );
                return Ok(ask_person(state, question, 0));
            }
            Err(error) if requires_delivery(&state, units) => return Err(error),
            // Finished work does not fail because its summary is missing.
            Err(_) => (None, 0),
        }
    };
    let FinalizeOutput { summary } = render_summary(FinalizeInput { units, said, without });
    state.current_step_index = u32::try_from(scene.position.units.len()).unwrap_or(u32::MAX);
    state.summary = Some(summary);
    Ok(CheckpointDraft { cost_micros, ..CheckpointDraft::new(StepVerdict::Pass, state) })
}
