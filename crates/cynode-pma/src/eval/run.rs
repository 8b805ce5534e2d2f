//! Asks every row in both ways, one after the other, and keeps what was said.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use cynode_wire::handoffs::HandoffContext;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    plain,
    recording::{Call, Recorder},
    rows::{Row, Table},
    score::{Answered, Way},
    think::{self, Listening},
};
use crate::{
    brain::{self, Voice},
    compose,
    instructions::{self, Places},
    role::Role,
};

/// Most tokens of a plain answer.
const MOST_TOKENS: u32 = 128;

/// Who asks whom.
pub struct Asker {
    /// The way to the model.
    pub voice: Voice,
    /// The model.
    pub model: String,
    /// The system messages, by role.
    pub systems: Systems,
}

/// What each role is told before any question: the instructions, and nothing of any project or person.
pub struct Systems {
    manager: String,
    analyst: String,
}

impl Systems {
    /// From the bundles.
    pub fn load(places: &Places) -> anyhow::Result<Self> {
        let of = |role: Role| -> anyhow::Result<String> {
            let bundle = instructions::load(role, &places.of(role)?)?;
            Ok(compose::system(&bundle, &HandoffContext::default()))
        };
        Ok(Self { manager: of(Role::ProjectManager)?, analyst: of(Role::ProjectAnalyst)? })
    }

    fn of(&self, table: Table) -> &str {
        match think::role(table) {
            Role::ProjectManager => &self.manager,
            Role::ProjectAnalyst => &self.analyst,
        }
    }
}

/// At most so many rows of a table, of every label as many if there are. A seed says which; without one they are the first.
pub fn chosen(mut rows: Vec<Row>, limit: Option<usize>, seed: Option<u64>) -> Vec<Row> {
    if let Some(seed) = seed {
        rows.sort_by_cached_key(|row| Sha256::digest(format!("{seed} {}", row.id)));
    }
    let Some(limit) = limit else { return rows };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let turn = |row: &Row| {
        let turn = seen.entry(row.label.clone()).or_default();
        *turn += 1;
        *turn
    };
    let turns: Vec<usize> = rows.iter().map(turn).collect();
    let mut rows: Vec<(usize, Row)> = turns.into_iter().zip(rows).collect();
    rows.sort_by_key(|(turn, _)| *turn);
    rows.into_iter().take(limit).map(|(_, row)| row).collect()
}

impl Asker {
    /// Asks about rows in one way; tells of each when it is answered.
    pub async fn ask_all(
        &self,
        rows: &[Row],
        way: Way,
        mut recorder: Option<&mut Recorder>,
        told: &mut dyn FnMut(&Answered),
    ) -> anyhow::Result<Vec<Answered>> {
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let asked = match way {
                Way::Structured => self.structured(row).await,
                Way::Plain => self.plain(row).await,
            };
            let mut call = asked.with_context(|| format!("{}, {}", row.id, way.as_str()))?;
            if let Some(recorder) = recorder.as_deref_mut() {
                call.system = call.system.map(|text| recorder.text(&text));
                recorder.call(&call)?;
            }
            told(&call.outcome);
            answers.push(call.outcome);
        }
        Ok(answers)
    }

    async fn structured(&self, row: &Row) -> anyhow::Result<Call> {
        let brain = Listening::new(&self.voice, &self.model);
        let system = self.systems.of(row.table);
        let decided = think::decide(&brain, row.table, system, &think::question(row)).await;
        let (ask, heard) = brain.heard().context("nobody was asked")?;
        // Answers without the form are a result; no answers are not.
        let decision = match decided {
            Ok(decision) => Some(decision),
            Err(_) if !heard.texts.is_empty() && heard.texts.len() == heard.complaints.len() => {
                None
            }
            Err(trouble) => return Err(trouble.into()),
        };
        let said = decision.as_ref().and_then(|decision| think::label(row.table, decision));
        let used = (heard.input_tokens, heard.output_tokens);
        let outcome = outcome(row, Way::Structured, said, heard.attempts, used, heard.latency);
        Ok(Call {
            model: self.model.clone(),
            digest: Some(brain::digest(&ask)),
            system: Some(ask.system),
            user: ask.user,
            answers: heard.texts,
            decision,
            outcome,
        })
    }

    async fn plain(&self, row: &Row) -> anyhow::Result<Call> {
        let user = plain::question(row);
        let question = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": user }],
            "temperature": 0.0,
            "max_tokens": MOST_TOKENS,
        });
        let begun = Instant::now();
        let heard = self.voice.say(&question).await?;
        let said = plain::read(row.table, &heard.text).map(str::to_owned);
        let used = (heard.input_tokens, heard.output_tokens);
        Ok(Call {
            model: self.model.clone(),
            system: None,
            digest: None,
            user,
            answers: vec![heard.text],
            decision: None,
            outcome: outcome(row, Way::Plain, said, 1, used, begun.elapsed()),
        })
    }
}

fn outcome(
    row: &Row,
    way: Way,
    said: Option<String>,
    attempts: u32,
    (input_tokens, output_tokens): (u64, u64),
    latency: Duration,
) -> Answered {
    Answered {
        id: row.id.clone(),
        table: row.table,
        half: row.half(),
        way,
        truth: row.label.clone(),
        said,
        attempts,
        input_tokens,
        output_tokens,
        latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
    }
}
