//! The structured way to ask: a desk, a brain and the questions of production, with a row in place of a handoff's matter.

use std::sync::Mutex;

use cynode_core::{ids::HandoffId, sync::lock};
use cynode_wire::{
    accounts::SecretText,
    handoffs::{Handoff, HandoffContext, HandoffRequest},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::rows::{Matter, Row, Table};
use crate::{
    brain::{self, Check, Form, Insisted, Voice},
    desk::{Ask, Boxed, Brain, Decision, Desk, Hands, Trouble},
    judge::{
        decisions::{Classified, FailureHandled, Reviewed, Routed, Scoped},
        prompts::{self, FailureQuestion, ReviewQuestion},
    },
    role::Role,
};

/// Who is asked about a table.
pub const fn role(table: Table) -> Role {
    match table {
        Table::Review => Role::ProjectAnalyst,
        Table::Classify | Table::Scope | Table::Route | Table::Failure => Role::ProjectManager,
    }
}

/// The question about a row, in the words of production.
pub fn question(row: &Row) -> String {
    match &row.matter {
        Matter::Classify { input, .. } => prompts::classify(input, None),
        Matter::Scope { input, facts, .. } => prompts::assess_scope(input, facts),
        Matter::Route { work, .. } => prompts::route(work),
        Matter::Review { title, requirements, result, .. } => prompts::review(&ReviewQuestion {
            title,
            requirements,
            result,
            ..ReviewQuestion::default()
        }),
        Matter::Failure { title, attempt, attempts_left, failure, .. } => {
            let (attempt, attempts_left) = (*attempt, *attempts_left);
            prompts::handle_failure(&FailureQuestion {
                title,
                attempt,
                attempts_left,
                why: failure,
            })
        }
    }
}

/// Thinks about a table's question at a desk of its own. Gives the decision, whole.
pub async fn decide(
    brain: &dyn Brain,
    table: Table,
    system: &str,
    user: &str,
) -> Result<Value, Trouble> {
    let handoff = handoff();
    let desk = Desk::new(&handoff, system.to_owned(), 1, brain, &NoHands);
    match table {
        Table::Classify => whole(desk.think::<Classified>(user).await?),
        Table::Scope => whole(desk.think::<Scoped>(user).await?),
        Table::Route => whole(desk.think::<Routed>(user).await?),
        Table::Review => whole(desk.think::<Reviewed>(user).await?),
        Table::Failure => whole(desk.think::<FailureHandled>(user).await?),
    }
}

fn whole(decision: impl Decision) -> Result<Value, Trouble> {
    serde_json::to_value(decision)
        .map_err(|error| Trouble::Permanent(format!("a decision cannot be written: {error}")))
}

/// The answer that counts in a decision.
pub fn label(table: Table, decision: &Value) -> Option<String> {
    decision.get(table.field()).and_then(Value::as_str).map(str::to_owned)
}

/// A brain that asks a model and keeps what was said.
pub struct Listening<'a> {
    voice: &'a Voice,
    model: &'a str,
    heard: Mutex<Option<(Ask, Insisted)>>,
}

impl<'a> Listening<'a> {
    /// A brain for one question.
    pub const fn new(voice: &'a Voice, model: &'a str) -> Self {
        Self { voice, model, heard: Mutex::new(None) }
    }

    /// What was asked last, and all that was said.
    pub fn heard(&self) -> Option<(Ask, Insisted)> {
        lock(&self.heard).take()
    }
}

impl Brain for Listening<'_> {
    fn ask<'a>(&'a self, ask: Ask, check: Check<'a>) -> Boxed<'a, Result<Value, Trouble>> {
        Box::pin(async move {
            let form = Form::of(&ask.schema).map_err(Trouble::Permanent)?;
            let temperature = brain::temperature(ask.kind, 0.0);
            let insisted = self.voice.insist(&ask, &form, self.model, temperature, check).await;
            let answer = insisted.answer.clone();
            *lock(&self.heard) = Some((ask, insisted));
            answer
        })
    }
}

/// A brain that hears the answers of a recording again, in their order, until one is taken.
pub struct Rehearing<'a> {
    answers: &'a [String],
    taken: Mutex<Option<(Ask, usize)>>,
}

impl<'a> Rehearing<'a> {
    /// A brain with these answers.
    pub const fn new(answers: &'a [String]) -> Self {
        Self { answers, taken: Mutex::new(None) }
    }

    /// What was asked, and how many answers were heard.
    pub fn taken(&self) -> Option<(Ask, usize)> {
        lock(&self.taken).take()
    }
}

impl Brain for Rehearing<'_> {
    fn ask<'a>(&'a self, ask: Ask, check: Check<'a>) -> Boxed<'a, Result<Value, Trouble>> {
        let heard = Form::of(&ask.schema).map_err(Trouble::Permanent).and_then(|form| {
            let read = self.answers.iter().map(|text| form.read(text, check));
            let taken = read.enumerate().find_map(|(at, read)| Some((at + 1, read.ok()?)));
            *lock(&self.taken) =
                Some((ask, taken.as_ref().map_or(self.answers.len(), |(heard, _)| *heard)));
            taken
                .map(|(_, value)| value)
                .ok_or_else(|| Trouble::Permanent("no answer has the form".into()))
        });
        Box::pin(async { heard })
    }
}

/// Nothing is done here, only decided.
struct NoHands;

impl Hands for NoHands {
    fn call<'a>(&'a self, tool: &'a str, _: Value) -> Boxed<'a, Result<Value, Trouble>> {
        let refused = format!("an evaluation calls no tools, not `{tool}` either");
        Box::pin(async { Err(Trouble::Permanent(refused)) })
    }
}

/// A handoff about nothing: the question says what it is about.
fn handoff() -> Handoff {
    Handoff {
        handoff_id: HandoffId::from_uuid(Uuid::nil()),
        fencing_token: 0,
        attempt: 1,
        request: HandoffRequest::Plan {
            before: None,
            feedback: Vec::new(),
            answer: None,
            attempt: 1,
            begun: Vec::new(),
        },
        context: HandoffContext::default(),
        token: SecretText(String::new()),
        models: Vec::new(),
        tool_models: Vec::new(),
        thoughts: Vec::new(),
        delegated: Vec::new(),
        expires_at: OffsetDateTime::UNIX_EPOCH,
    }
}
