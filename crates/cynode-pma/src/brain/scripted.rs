use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use cynode_core::sync::lock;
use cynode_wire::handoffs::Thought;
use serde_json::Value;

use super::{Check, Form, digest, name};
use crate::desk::{Ask, Boxed, Brain, ThinkKind, Trouble};

/// A brain that gives prepared answers, each kind its own in order: for tests and demonstrations. It asks nobody.
#[derive(Debug, Default)]
pub struct Scripted {
    answers: Mutex<BTreeMap<ThinkKind, VecDeque<Value>>>,
    asked: Mutex<Vec<Ask>>,
}

impl Scripted {
    /// A brain with these answers.
    pub fn new(answers: impl IntoIterator<Item = (ThinkKind, Value)>) -> Self {
        let scripted = Self::default();
        for (kind, answer) in answers {
            lock(&scripted.answers).entry(kind).or_default().push_back(answer);
        }
        scripted
    }

    /// What it was asked, in order.
    pub fn asked(&self) -> Vec<Ask> {
        lock(&self.asked).clone()
    }
}

impl Brain for Scripted {
    fn ask<'a>(&'a self, ask: Ask, check: Check<'a>) -> Boxed<'a, Result<Value, Trouble>> {
        let answer = lock(&self.answers).get_mut(&ask.kind).and_then(VecDeque::pop_front);
        let given = match answer {
            Some(answer) => accepted(&ask, answer, check),
            None => {
                let kind = name(ask.kind);
                Err(Trouble::Permanent(format!("the script has no answer to `{kind}`")))
            }
        };
        lock(&self.asked).push(ask);
        Box::pin(async { given })
    }
}

/// A brain that gives what was thought before, by the digest of the question. It asks nobody.
#[derive(Debug)]
pub struct Replay(BTreeMap<(String, String), Value>);

impl Replay {
    /// A brain that remembers these thoughts.
    pub fn new(thoughts: impl IntoIterator<Item = Thought>) -> Self {
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

impl Brain for Replay {
    fn ask<'a>(&'a self, ask: Ask, check: Check<'a>) -> Boxed<'a, Result<Value, Trouble>> {
        let kind = name(ask.kind);
        let given = match self.0.get(&(kind.to_owned(), digest(&ask))) {
            Some(answer) => accepted(&ask, answer.clone(), check),
            None => Err(Trouble::Permanent(format!("this question of `{kind}` was not recorded"))),
        };
        Box::pin(async { given })
    }
}

/// The answer, if a live brain would have taken it.
fn accepted(ask: &Ask, answer: Value, check: Check<'_>) -> Result<Value, Trouble> {
    let form = Form::of(&ask.schema).map_err(Trouble::Permanent)?;
    form.accept(answer, check).map_err(|complaint| {
        Trouble::Permanent(format!("the answer to `{}` is not usable: {complaint}", name(ask.kind)))
    })
}
