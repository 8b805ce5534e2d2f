//! Verify Step Result: requests a verdict on the result and decides from it.

use cynode_core::{
    evidence::ChangeAnomaly,
    workflow::{
        StepVerdict,
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{HandoffRequest, VerifyOutcome},
        waits::WaitReason,
    },
};
use cynode_wire::{
    manager::handoffs::PlanRevision,
    workflow::{StepEffect, StepResult, StepVerification, VerificationStatus},
};

use super::{
    CheckpointDraft, StepContext, ask_about_unit, attempts_left, await_answer,
    environment::{UnrunChecks, handle_unrun_checks},
    hand_off, may_retry, open_ended_wait,
    pending_checks::{CheckProgress, check_progress, gather_evidence, regather_evidence},
    requests_retry, unit_answer,
};
use crate::agent_backend::{AgentReply, StepError, VerificationResult, VerifyRequest};

struct VerifyInput<'a> {
    result: &'a StepResult,
}

enum VerifyOutput {
    /// The verdict, the anomalies that a person was shown, and the cost.
    Judged(VerificationResult, Vec<ChangeAnomaly>, u64),
    Ask(String, u64),
    HandOff(Box<HandoffRequest>, String),
    Await,
    /// Checks must run first.
    Checks(Option<StepEffect>),
}

async fn request_verification(
    input: VerifyInput<'_>,
    scene: &StepContext<'_>,
) -> Result<VerifyOutput, StepError> {
    let VerifyInput { result } = input;
    let unit = scene
        .state
        .plan
        .as_ref()
        .and_then(|plan| plan.planned_units().iter().find(|unit| unit.key == result.unit));
    let Some(unit) = unit else {
        return Err(StepError::Permanent(format!("unit `{}` is not in the plan", result.unit)));
    };
    let evidence = match check_progress(scene, &unit.key, result.attempt, &result.output) {
        CheckProgress::Known(evidence) => evidence,
        CheckProgress::Gathering => return Ok(VerifyOutput::Checks(None)),
        CheckProgress::Missing(checks) => {
            return Ok(VerifyOutput::Checks(Some(gather_evidence(
                scene,
                &unit.key,
                result.attempt,
                checks,
            ))));
        }
        CheckProgress::SetupFailed(why) | CheckProgress::Unable(why) => {
            return Err(StepError::Permanent(why));
        }
    };
    // A person has fixed the machine: the checks run again, and no worker does.
    if evidence.first_obstacle().is_some() && requests_retry(unit_answer(scene, &unit.key)) {
        return Ok(VerifyOutput::Checks(Some(regather_evidence(scene, &unit.key, result.attempt))));
    }
    let reply = scene.mind.verify_result(VerifyRequest {
        task: scene.task,
        criteria: &scene.state.acceptance_criteria,
        unit: &unit.key,
        title: &unit.title,
        payload: &unit.payload,
        plan: scene.state.plan.as_ref(),
        unit_attempt: result.attempt,
        attempts_left: attempts_left(scene, result.attempt),
        output: &result.output,
        evidence: &evidence,
        answer: unit_answer(scene, &unit.key),
        attempt: scene.state.node_failures + 1,
        handed: scene.position.handoff.as_ref(),
    });
    Ok(match reply.await? {
        AgentReply::Done(judgement, cost) => {
            VerifyOutput::Judged(judgement, evidence.listed_anomalies().to_vec(), cost)
        }
        AgentReply::Ask(question, cost) => VerifyOutput::Ask(question, cost),
        AgentReply::Later(request, about) => VerifyOutput::HandOff(request, about),
        AgentReply::Waiting => VerifyOutput::Await,
    })
}

/// Turns a finding for revision into a note on the accepted unit.
fn demote_finding(finding: VerificationFinding) -> VerificationFinding {
    match finding.severity {
        FindingSeverity::Critical | FindingSeverity::Major => {
            VerificationFinding { severity: FindingSeverity::Note, ..finding }
        }
        FindingSeverity::Minor | FindingSeverity::Note => finding,
    }
}

const fn verification_status(outcome: VerifyOutcome) -> VerificationStatus {
    match outcome {
        VerifyOutcome::Accept | VerifyOutcome::Revise => VerificationStatus::Pass,
        VerifyOutcome::Redo | VerifyOutcome::GiveUp => VerificationStatus::Fail,
    }
}

/// Returns how a person is asked when the checks of a result could not run because the environment could not be set up.
fn handle_failed_setup(scene: &StepContext<'_>, result: &StepResult) -> Option<CheckpointDraft> {
    let (unit, attempt) = (&result.unit, result.attempt);
    let CheckProgress::SetupFailed(why) = check_progress(scene, unit, attempt, &result.output)
    else {
        return None;
    };
    let gather = regather_evidence(scene, unit, attempt);
    let unrun = UnrunChecks { unit, attempt: Some(attempt), why: why.as_str(), gather };
    Some(handle_unrun_checks(scene, scene.state.clone(), unrun))
}

pub(super) async fn run_verify_step(scene: &StepContext<'_>) -> Result<CheckpointDraft, StepError> {
    let mut state = scene.state.clone();
    let Some(result) = scene.state.last_result.as_ref() else {
        return Err(StepError::Permanent("there is no result to judge".into()));
    };
    let (unit, attempt) = (result.unit.clone(), result.attempt);
    if let Some(draft) = handle_failed_setup(scene, result) {
        return Ok(draft);
    }
    let (judgement, listed, cost_micros) = match request_verification(VerifyInput { result }, scene)
        .await?
    {
        VerifyOutput::Ask(question, cost) => {
            return Ok(ask_about_unit(state, &unit, question, cost));
        }
        VerifyOutput::Checks(effect) => {
            let effects = effect.into_iter().collect();
            let step = CheckpointDraft::with_wait(state, open_ended_wait(WaitReason::Job), None);
            return Ok(CheckpointDraft { effects, unit: Some(unit), ..step });
        }
        VerifyOutput::HandOff(request, about) => return Ok(hand_off(state, *request, about)),
        VerifyOutput::Await => return Ok(await_answer(state)),
        VerifyOutput::Judged(judgement, listed, cost) => (judgement, listed, cost),
    };
    let VerificationResult { outcome, findings, recommended_actions, note, by_person, waived } =
        judgement;
    state.verification = Some(StepVerification {
        unit: unit.clone(),
        status: verification_status(outcome),
        findings: findings.clone(),
        recommended_actions: recommended_actions.clone(),
    });
    let key = unit.clone();
    let noted = |step: CheckpointDraft| CheckpointDraft {
        note: (!note.is_empty()).then(|| note.clone()),
        ..step
    };
    let why = || {
        let texts: Vec<_> = findings.iter().map(|finding| finding.text.as_str()).collect();
        if texts.is_empty() { "it was judged bad".to_owned() } else { texts.join("; ") }
    };
    let (step, effect) = match outcome {
        VerifyOutcome::Accept => {
            let shown_anomalies = if by_person && waived.is_some() { listed } else { Vec::new() };
            let accept = StepEffect::AcceptUnit {
                unit,
                attempt,
                findings,
                waived,
                by_person,
                shown_anomalies,
            };
            (noted(CheckpointDraft::new(StepVerdict::Pass, state)), accept)
        }
        // The unit did its part; its findings are for the next plan.
        VerifyOutcome::Revise => {
            let (of, found) = (unit.clone(), findings.clone());
            let revision =
                PlanRevision { unit: of, findings: found, recommended_actions, conflict: None };
            state.feedback.push(revision.to_feedback());
            let step = CheckpointDraft {
                note: Some(why()),
                ..CheckpointDraft::new(StepVerdict::Revise, state)
            };
            let findings = findings.into_iter().map(demote_finding).collect();
            let accept = StepEffect::AcceptUnit {
                unit,
                attempt,
                findings,
                waived,
                by_person: false,
                shown_anomalies: Vec::new(),
            };
            (step, accept)
        }
        VerifyOutcome::Redo if by_person || may_retry(scene, attempt) => {
            let step = CheckpointDraft {
                note: Some(why()),
                ..CheckpointDraft::new(StepVerdict::Redo, state)
            };
            (step, StepEffect::RetryUnit { unit, attempt, findings })
        }
        VerifyOutcome::Redo => {
            let why = format!("unit `{unit}` was judged bad {attempt} times: {}", why());
            (
                CheckpointDraft::fail_task(state, why),
                StepEffect::FailUnit { unit, attempt, findings },
            )
        }
        VerifyOutcome::GiveUp => {
            let why = if note.is_empty() { why() } else { note.clone() };
            let why = format!("unit `{unit}`: {why}");
            (
                CheckpointDraft::fail_task(state, why),
                StepEffect::FailUnit { unit, attempt, findings },
            )
        }
    };
    Ok(CheckpointDraft { effects: vec![effect], unit: Some(key), cost_micros, ..step })
}
