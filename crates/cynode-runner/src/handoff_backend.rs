//! Handoff backend: every question becomes a handoff, and the run reads its answer when it is woken.

use cynode_core::workflow::{
    handoffs::{
        EndedUnit, HandoffAnswer, HandoffRequest, HandoffState, ResultVerification, VerifyAnswer,
    },
    jobs::JobSpec,
    plan::{Plan, UnitKey},
};
use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    agent_backend::{
        AgentBackend, AgentFuture, AgentReply, DispatchRequest, FailureRemedy, FailureRequest,
        PlanRequest, PreviousHandoff, RunSummary, StepError, SummaryRequest, VerificationResult,
        VerifyRequest,
    },
    steps,
};

/// Hands every question off to the project manager. It is stateless: questions and answers are in the run's position.
#[derive(Clone, Copy, Debug)]
pub struct HandoffBackend;

/// Returns the key of a question. It includes a person's answer: when the project manager's later answer wakes the run, the person's
/// answer is not in the position any more.
fn question_key(request: &HandoffRequest) -> Result<String, StepError> {
    let value = serde_json::to_value(request);
    let mut value = value.map_err(|error| StepError::Permanent(error.to_string()))?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("answer");
    }
    let mut text = String::new();
    write_canonical_json(&value, &mut text);
    let digest = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    Ok(format!("{}:{digest}", request.handoff_kind().as_str()))
}

/// Writes JSON with sorted keys: the database returns another key order than was stored.
fn write_canonical_json(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<_> = fields.iter().collect();
            keys.sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (key, value) in keys {
                text.push_str(&Value::String(key.clone()).to_string());
                text.push(':');
                write_canonical_json(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_canonical_json(item, text);
                text.push(',');
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

/// Returns the answer to `request` if there is one, otherwise the handoff to create or to wait for.
fn resolve_handoff<T>(
    request: HandoffRequest,
    handed: PreviousHandoff<'_>,
    read: impl FnOnce(HandoffAnswer) -> Option<T>,
) -> Result<AgentReply<T>, StepError> {
    let about = question_key(&request)?;
    let Some(handed) = handed.filter(|handed| handed.about == about) else {
        return Ok(AgentReply::Later(Box::new(request), about));
    };
    match (handed.state, handed.answer.clone()) {
        (HandoffState::Queued | HandoffState::Claimed | HandoffState::Delegated, _) => {
            Ok(AgentReply::Waiting)
        }
        (HandoffState::Done, Some(HandoffAnswer::Ask { question })) => {
            Ok(AgentReply::Ask(question, handed.cost_micros))
        }
        (HandoffState::Done, Some(answer)) => match read(answer) {
            Some(answer) => Ok(AgentReply::Done(answer, handed.cost_micros)),
            None => Err(StepError::Domain("the project manager answered something else".into())),
        },
        (HandoffState::Done, None) | (HandoffState::Cancelled, _) => {
            Ok(AgentReply::Later(Box::new(request), about))
        }
        (HandoffState::Failed, _) => {
            let why = handed.failure.clone().unwrap_or_else(|| "no reason was given".into());
            Err(StepError::Undecided(format!("the project manager could not decide: {why}")))
        }
    }
}

impl AgentBackend for HandoffBackend {
    fn create_plan<'a>(&'a self, request: PlanRequest<'a>) -> AgentFuture<'a, Plan> {
        Box::pin(async move {
            let asking = HandoffRequest::Plan {
                previous_plan: request.before.cloned(),
                feedback: request.feedback.to_vec(),
                answer: request.answer.cloned(),
                attempt: request.attempt,
                started_units: request.begun.keys().cloned().collect(),
            };
            resolve_handoff(asking, request.handed, |answer| match answer {
                HandoffAnswer::Planned(planned) => Some(planned.plan),
                _ => None,
            })
        })
    }

    fn verify_result<'a>(
        &'a self,
        request: VerifyRequest<'a>,
    ) -> AgentFuture<'a, VerificationResult> {
        Box::pin(async move {
            let asking = HandoffRequest::Verify(ResultVerification {
                unit: request.unit.clone(),
                title: request.title.to_string(),
                payload: request.payload.clone(),
                unit_attempt: request.unit_attempt,
                attempts_left: Some(request.attempts_left),
                output: request.output.clone(),
                evidence: Some(request.evidence.clone()).filter(|shown| !shown.is_empty()),
                plan: request.plan.cloned(),
                answer: request.answer.cloned(),
                attempt: request.attempt,
            });
            resolve_handoff(asking, request.handed, |answer| match answer {
                HandoffAnswer::Judged(judged) => Some(to_verification_result(judged)),
                _ => None,
            })
        })
    }

    fn assign_units<'a>(
        &'a self,
        request: DispatchRequest<'a>,
    ) -> AgentFuture<'a, Vec<(UnitKey, JobSpec)>> {
        Box::pin(async move {
            let open: Vec<_> = request.units.into_iter().filter(steps::needs_assignment).collect();
            if open.is_empty() {
                return Ok(AgentReply::Done(Vec::new(), 0));
            }
            resolve_handoff(HandoffRequest::Dispatch { units: open }, request.handed, |answer| {
                match answer {
                    HandoffAnswer::Assigned { assignments } => {
                        Some(assignments.into_iter().map(|one| (one.unit, one.work)).collect())
                    }
                    _ => None,
                }
            })
        })
    }

    fn handle_unit_failure<'a>(
        &'a self,
        request: FailureRequest<'a>,
    ) -> AgentFuture<'a, FailureRemedy> {
        Box::pin(async move {
            let asking = HandoffRequest::Failure {
                unit: request.unit.key.clone(),
                title: request.unit.title.to_string(),
                payload: request.payload.clone(),
                attempt: request.attempt,
                attempts_left: request.attempts_left,
                reason: request.why.to_owned(),
                answer: request.answer.cloned(),
            };
            resolve_handoff(asking, request.handed, |answer| match answer {
                HandoffAnswer::Decided { decision, note, by_person } => {
                    let note = (!note.is_empty()).then_some(note);
                    Some(FailureRemedy { decision, note, by_person })
                }
                _ => None,
            })
        })
    }

    fn summarize_run<'a>(
        &'a self,
        request: SummaryRequest<'a>,
    ) -> AgentFuture<'a, Option<RunSummary>> {
        Box::pin(async move {
            let units = request.units.iter().map(|unit| EndedUnit {
                unit: unit.key.clone(),
                title: unit.title.to_string(),
                attempts: unit.attempts,
                findings: unit.findings.clone(),
                output: unit.job.as_ref().and_then(|job| job.result.clone()).unwrap_or_default(),
            });
            let answer = request.answer.cloned();
            let asking = HandoffRequest::Summarise { units: units.collect(), answer };
            resolve_handoff(asking, request.handed, |answer| match answer {
                HandoffAnswer::Summarised { summary: text, pull_request } => {
                    Some(Some(RunSummary { text, pull_request }))
                }
                _ => None,
            })
        })
    }
}

fn to_verification_result(judged: VerifyAnswer) -> VerificationResult {
    let VerifyAnswer { outcome, findings, recommended_actions, note, by_person, waived } = judged;
    VerificationResult { outcome, findings, recommended_actions, note, by_person, waived }
}

#[cfg(test)]
mod tests {
    use cynode_core::{
        ids::HandoffId,
        workflow::{
            handoffs::{FailureDecision, RunHandoff},
            waits::{EndedWait, WaitReason, WaitResolution},
        },
    };
    use serde_json::json;

    use super::*;

    fn question(payload: Value, answer: Option<EndedWait>) -> HandoffRequest {
        HandoffRequest::Failure {
            unit: "a".parse().unwrap(),
            title: "a".into(),
            payload,
            attempt: 1,
            attempts_left: 2,
            reason: "it broke".into(),
            answer,
        }
    }

    fn handed(about: &str, state: HandoffState, answer: Option<HandoffAnswer>) -> RunHandoff {
        RunHandoff {
            handoff_id: "hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse::<HandoffId>().unwrap(),
            about: about.to_owned(),
            state,
            answer,
            failure: Some("no model".into()),
            cost_micros: 7,
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "whoever reads an answer is given it")]
    fn read(answer: HandoffAnswer) -> Option<FailureDecision> {
        match answer {
            HandoffAnswer::Decided { decision, .. } => Some(decision),
            _ => None,
        }
    }

    #[test]
    fn a_question_has_one_name_in_whatever_order_its_parts_stand_and_whatever_a_person_answered() {
        let name = |payload, answer| question_key(&question(payload, answer)).unwrap();
        let person = EndedWait {
            reason: WaitReason::HumanInput,
            resolution: WaitResolution::Answered,
            question: Some("Which?".into()),
            answer: Some("go on".into()),
        };
        let one = name(json!({ "a": 1, "b": { "c": [1, 2], "d": null } }), None);
        assert_eq!(one, name(json!({ "b": { "d": null, "c": [1, 2] }, "a": 1 }), Some(person)));
        assert!(one.starts_with("failure:"), "{one}");
        for other in [json!({ "a": 2 }), json!({ "a": 1, "b": { "c": [2, 1], "d": null } })] {
            assert_ne!(one, name(other, None));
        }
    }

    #[test]
    fn what_is_asked_is_handed_off_once_waited_for_and_taken_when_it_is_there() {
        let ask =
            |handed: PreviousHandoff<'_>| resolve_handoff(question(json!({}), None), handed, read);
        let Ok(AgentReply::Later(request, name)) = ask(None) else { panic!("it is handed off") };
        assert_eq!(*request, question(json!({}), None));
        for open in [HandoffState::Queued, HandoffState::Claimed, HandoffState::Delegated] {
            assert_eq!(ask(Some(&handed(&name, open, None))), Ok(AgentReply::Waiting));
        }
        let decided = HandoffAnswer::Decided {
            decision: FailureDecision::Retry,
            note: "x".into(),
            by_person: false,
        };
        let done = handed(&name, HandoffState::Done, Some(decided.clone()));
        assert_eq!(ask(Some(&done)), Ok(AgentReply::Done(FailureDecision::Retry, 7)));
        let person = HandoffAnswer::Ask { question: "Which?".into() };
        let asks = handed(&name, HandoffState::Done, Some(person));
        assert_eq!(ask(Some(&asks)), Ok(AgentReply::Ask("Which?".into(), 7)));
        let other = HandoffAnswer::Replied { note: String::new() };
        let wrong = handed(&name, HandoffState::Done, Some(other));
        assert!(matches!(ask(Some(&wrong)), Err(StepError::Domain(_))));
        let failed = ask(Some(&handed(&name, HandoffState::Failed, None))).unwrap_err();
        let why = "the project manager could not decide: no model";
        assert_eq!(failed, StepError::Undecided(why.into()));
        let stale = handed("failure:0", HandoffState::Done, Some(decided));
        assert!(
            matches!(ask(Some(&stale)), Ok(AgentReply::Later(..))),
            "an answer to another question"
        );
    }
}
