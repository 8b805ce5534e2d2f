//! Verify Step Result: has the result judged, and decides from the judgement in the state.

use cynode_core::{
    evidence::Odd,
    workflow::{Verdict, waits::WaitReason},
};
use cynode_wire::{
    handoffs::{HandoffRequest, JudgedOutcome, Revision},
    workflow::{Effect, Finding, Severity, StepResult, Verification, VerificationStatus},
};

use super::{
    Scene, Step, answered_about, ask_about, attempts_left, await_answer, hand_off, may_retry,
    shown::{Shown, gather, shown},
    waiting,
};
use crate::mind::{Judgement, NodeError, Reply, VerifyRequest};

struct Input<'a> {
    result: &'a StepResult,
}

enum Output {
    /// With what a person was shown of what is odd.
    Judged(Judgement, Vec<Odd>, u64),
    Ask(String, u64),
    HandOff(Box<HandoffRequest>, String),
    Await,
    /// Checks are run first.
    Checks(Option<Effect>),
}

async fn run(input: Input<'_>, scene: &Scene<'_>) -> Result<Output, NodeError> {
    let Input { result } = input;
    let unit = scene
        .state
        .plan
        .as_ref()
        .and_then(|plan| plan.steps().iter().find(|unit| unit.key == result.unit));
    let Some(unit) = unit else {
        return Err(NodeError::Permanent(format!("unit `{}` is not in the plan", result.unit)));
    };
    let evidence = match shown(scene, &unit.key, result.attempt, &result.output) {
        Shown::Known(evidence) => evidence,
        Shown::Gathering => return Ok(Output::Checks(None)),
        Shown::Missing(checks) => {
            return Ok(Output::Checks(Some(gather(scene, &unit.key, result.attempt, checks))));
        }
        Shown::Unable(why) => return Err(NodeError::Permanent(why)),
    };
    let reply = scene.mind.verify(VerifyRequest {
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
        answer: answered_about(scene, &unit.key),
        attempt: scene.state.node_failures + 1,
        handed: scene.position.handoff.as_ref(),
    });
    Ok(match reply.await? {
        Reply::Done(judgement, cost) => {
            Output::Judged(judgement, evidence.listed_odd().to_vec(), cost)
        }
        Reply::Ask(question, cost) => Output::Ask(question, cost),
        Reply::Later(request, about) => Output::HandOff(request, about),
        Reply::Waiting => Output::Await,
    })
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let mut state = scene.state.clone();
    let Some(result) = scene.state.last_result.as_ref() else {
        return Err(NodeError::Permanent("there is no result to judge".into()));
    };
    let (unit, attempt) = (result.unit.clone(), result.attempt);
    let (judgement, listed, cost_micros) = match run(Input { result }, scene).await? {
        Output::Ask(question, cost) => return Ok(ask_about(state, &unit, question, cost)),
        Output::Checks(effect) => {
            let effects = effect.into_iter().collect();
            let step = Step::wait(state, waiting(WaitReason::Job), None);
            return Ok(Step { effects, unit: Some(unit), ..step });
        }
        Output::HandOff(request, about) => return Ok(hand_off(state, *request, about)),
        Output::Await => return Ok(await_answer(state)),
        Output::Judged(judgement, listed, cost) => (judgement, listed, cost),
    };
    let Judgement { outcome, findings, recommended_actions, note, by_person, waived } = judgement;
    let status = match outcome {
        JudgedOutcome::Accept | JudgedOutcome::Revise => VerificationStatus::Pass,
        JudgedOutcome::Redo | JudgedOutcome::GiveUp => VerificationStatus::Fail,
    };
    state.verification = Some(Verification {
        unit: unit.clone(),
        status,
        findings: findings.clone(),
        recommended_actions: recommended_actions.clone(),
    });
    let key = unit.clone();
    let noted = |step: Step| Step { note: (!note.is_empty()).then(|| note.clone()), ..step };
    let why = || {
        let texts: Vec<_> = findings.iter().map(|finding| finding.text.as_str()).collect();
        if texts.is_empty() { "it was judged bad".to_owned() } else { texts.join("; ") }
    };
    let (step, effect) = match outcome {
        JudgedOutcome::Accept => {
            let shown = if by_person && waived.is_some() { listed } else { Vec::new() };
            let accept = Effect::AcceptUnit { unit, attempt, findings, waived, by_person, shown };
            (noted(Step::new(Verdict::Pass, state)), accept)
        }
        // The unit did its part; what it found is for whoever plans what follows.
        JudgedOutcome::Revise => {
            let (of, found) = (unit.clone(), findings.clone());
            let revision =
                Revision { unit: of, findings: found, recommended_actions, conflict: None };
            state.feedback.push(revision.feedback());
            let step = Step { note: Some(why()), ..Step::new(Verdict::Revise, state) };
            // What is sent back to be mended is not left: it is only worth knowing.
            let findings = findings.into_iter().map(|finding| match finding.severity {
                Severity::Critical | Severity::Major => {
                    Finding { severity: Severity::Note, ..finding }
                }
                Severity::Minor | Severity::Note => finding,
            });
            let findings = findings.collect();
            let (by_person, shown) = (false, Vec::new());
            (step, Effect::AcceptUnit { unit, attempt, findings, waived, by_person, shown })
        }
        JudgedOutcome::Redo if by_person || may_retry(scene, attempt) => {
            let step = Step { note: Some(why()), ..Step::new(Verdict::Redo, state) };
            (step, Effect::RetryUnit { unit, attempt, findings })
        }
        JudgedOutcome::Redo => {
            let why = format!("unit `{unit}` was judged bad {attempt} times: {}", why());
            (Step::give_up(state, why), Effect::FailUnit { unit, attempt, findings })
        }
        JudgedOutcome::GiveUp => {
            let why = if note.is_empty() { why() } else { note.clone() };
            let why = format!("unit `{unit}`: {why}");
            (Step::give_up(state, why), Effect::FailUnit { unit, attempt, findings })
        }
    };
    Ok(Step { effects: vec![effect], unit: Some(key), cost_micros, ..step })
}
