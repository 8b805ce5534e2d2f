use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use cynode_core::{sync::lock_unpoisoned, workflow::handoffs::ModelDecision};
use serde_json::Value;

use super::{AnswerSchema, AnswerValidator, decision_kind_name, request_digest};
use crate::decision_context::{
    BoxedFuture, DecisionBackend, DecisionError, DecisionKind, DecisionRequest,
};

/// Decision backend with prepared answers per kind, in order, for tests and demos. It calls no model.
#[derive(Debug, Default)]
pub struct ScriptedBackend {
    answers: Mutex<BTreeMap<DecisionKind, VecDeque<Value>>>,
    asked: Mutex<Vec<DecisionRequest>>,
}

impl ScriptedBackend {
    /// Creates a backend with these answers.
    pub fn new(answers: impl IntoIterator<Item = (DecisionKind, Value)>) -> Self {
        let scripted = Self::default();
        for (kind, answer) in answers {
            lock_unpoisoned(&scripted.answers).entry(kind).or_default().push_back(answer);
        }
        scripted
    }

    /// Returns the received requests, in order.
    pub fn received_requests(&self) -> Vec<DecisionRequest> {
        lock_unpoisoned(&self.asked).clone()
    }
}

impl DecisionBackend for ScriptedBackend {
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: AnswerValidator<'a>,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        let answer =
            lock_unpoisoned(&self.answers).get_mut(&ask.kind).and_then(VecDeque::pop_front);
        let given = match answer {
            Some(answer) => accept_answer(&ask, answer, check),
            None => {
                let kind = decision_kind_name(ask.kind);
                Err(DecisionError::Permanent(format!("the script has no answer to `{kind}`")))
            }
        };
        lock_unpoisoned(&self.asked).push(ask);
        Box::pin(async { given })
    }
}

/// Decision backend that replays recorded decisions by the digest of the request. It calls no model.
#[derive(Debug)]
pub struct ReplayBackend(BTreeMap<(String, String), Value>);

impl ReplayBackend {
    /// Creates a backend with these decisions.
    pub fn new(thoughts: impl IntoIterator<Item = ModelDecision>) -> Self {
        let thoughts = thoughts.into_iter();
        Self(
            thoughts
                .filter_map(|thought| {
                    Some(((thought.kind, thought.prompt_digest), thought.output?))
                })
                .collect(),
        )
    }
}

impl DecisionBackend for ReplayBackend {
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: AnswerValidator<'a>,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        let kind = decision_kind_name(ask.kind);
        let given = match self.0.get(&(kind.to_owned(), request_digest(&ask))) {
            Some(answer) => accept_answer(&ask, answer.clone(), check),
            None => {
                Err(DecisionError::Permanent(format!("this question of `{kind}` was not recorded")))
            }
        };
        Box::pin(async { given })
    }
}

/// Validates an answer as the live backend does.
fn accept_answer(
    ask: &DecisionRequest,
    answer: Value,
    check: AnswerValidator<'_>,
) -> Result<Value, DecisionError> {
    let form = AnswerSchema::from_schema(&ask.schema).map_err(DecisionError::Permanent)?;
    form.validate_answer(answer, check).map_err(|complaint| {
        DecisionError::Permanent(format!(
            "the answer to `{}` is not usable: {complaint}",
            decision_kind_name(ask.kind)
        ))
    })
}
