//! What to do about a unit that came to nothing: try again, plan less, or ask a person.

use cynode_wire::{
    handoffs::{FailureDecision, HandoffAnswer, HandoffRequest},
    workflow::EndedWait,
};

use super::super::{
    answers::{self, OTHERWISE, Said},
    decisions::FailureHandled,
    fence,
    prompts::{self, FailureQuestion},
};
use crate::desk::{Desk, Trouble};

pub(super) async fn failure(desk: &Desk<'_>) -> Result<HandoffAnswer, Trouble> {
    let HandoffRequest::Failure { unit, title, attempt, attempts_left, why, answer, .. } =
        &desk.handoff.request
    else {
        return Err(Trouble::Permanent("the handoff is about no failure".into()));
    };
    if let Some(said) = answers::read(answer.as_ref()) {
        return Ok(by_person(said, answer.as_ref()));
    }
    let question = FailureQuestion { title, attempt: *attempt, attempts_left: *attempts_left, why };
    let FailureHandled { note, decision, .. } =
        desk.think(&prompts::handle_failure(&question)).await?;
    let note = fence::clean(&note, 1_000);
    Ok(match decision {
        FailureDecision::Retry if *attempts_left > 0 => {
            HandoffAnswer::Decided { decision: FailureDecision::Retry, note, by_person: false }
        }
        FailureDecision::ReduceScope if *attempts_left > 0 => HandoffAnswer::Decided {
            decision: FailureDecision::ReduceScope,
            note,
            by_person: false,
        },
        // An attempt that is not left cannot be made, nor can it become smaller for ever.
        FailureDecision::Retry | FailureDecision::ReduceScope | FailureDecision::Escalate => {
            let (title, why) = (fence::line(title, 200), fence::line(why, 600));
            HandoffAnswer::Ask {
                question: format!(
                    "Unit `{unit}` ({title}) came to nothing in attempt {attempt}: {why}\n{note}\n{OTHERWISE}"
                ),
            }
        }
    })
}

/// A person who was asked has the last word. `escalate` then means that it is given up: nobody is asked twice.
fn by_person(said: Said, answer: Option<&EndedWait>) -> HandoffAnswer {
    let (decision, note) = match said {
        Said::Stop(why) => {
            (FailureDecision::Escalate, format!("a person gave it up: {}", fence::line(&why, 300)))
        }
        Said::Proceed => (FailureDecision::Retry, "a person wants it tried again".to_owned()),
        Said::Words(words) => (FailureDecision::Retry, answers::quoted(&words, answer)),
    };
    HandoffAnswer::Decided { decision, note, by_person: true }
}
