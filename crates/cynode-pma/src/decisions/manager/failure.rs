//! Failure handling of a unit: retry, replan, or ask a person.

use cynode_core::workflow::{
    handoffs::{FailureDecision, HandoffAnswer, HandoffRequest},
    waits::EndedWait,
};

use super::super::{
    answers::{self, FAILURE_ANSWER_HINT, PersonAnswer},
    fence,
    prompts::{self, FailureQuestion},
    types::FailureHandled,
};
use crate::decision_context::{DecisionContext, DecisionError};

pub(super) async fn decide_failure(
    desk: &DecisionContext<'_>,
) -> Result<HandoffAnswer, DecisionError> {
    let HandoffRequest::Failure { unit, title, attempt, attempts_left, reason, answer, .. } =
        &desk.handoff.request
    else {
        return Err(DecisionError::Permanent("the handoff is about no failure".into()));
    };
    if let Some(said) = answers::parse_answer(answer.as_ref()) {
        return Ok(apply_person_answer(said, answer.as_ref()));
    }
    let question =
        FailureQuestion { title, attempt: *attempt, attempts_left: *attempts_left, why: reason };
    let FailureHandled { note, decision, .. } =
        desk.make_decision(&prompts::handle_failure_prompt(&question)).await?;
    let note = fence::sanitize_text(&note, 1_000);
    Ok(match decision {
        FailureDecision::Retry if *attempts_left > 0 => {
            HandoffAnswer::Decided { decision: FailureDecision::Retry, note, by_person: false }
        }
        FailureDecision::ReduceScope if *attempts_left > 0 => HandoffAnswer::Decided {
            decision: FailureDecision::ReduceScope,
            note,
            by_person: false,
        },
        // Without attempts left, the unit can neither be retried nor be reduced again.
        FailureDecision::Retry | FailureDecision::ReduceScope | FailureDecision::Escalate => {
            let (title, reason) =
                (fence::sanitize_line(title, 200), fence::sanitize_line(reason, 600));
            HandoffAnswer::Ask {
                question: format!(
                    "Unit `{unit}` ({title}) came to nothing in attempt {attempt}: {reason}\n{note}\n{FAILURE_ANSWER_HINT}"
                ),
            }
        }
    })
}

/// Applies a person's answer, which is final. `escalate` then means that the unit is abandoned: nobody is asked twice.
fn apply_person_answer(said: PersonAnswer, answer: Option<&EndedWait>) -> HandoffAnswer {
    let (decision, note) = match said {
        PersonAnswer::Stop(why) => (
            FailureDecision::Escalate,
            format!("a person gave it up: {}", fence::sanitize_line(&why, 300)),
        ),
        PersonAnswer::Proceed => {
            (FailureDecision::Retry, "a person wants it tried again".to_owned())
        }
        PersonAnswer::Words(words) => {
            (FailureDecision::Retry, answers::quote_answer(&words, answer))
        }
    };
    HandoffAnswer::Decided { decision, note, by_person: true }
}
