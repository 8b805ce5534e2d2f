//! Asks every row in both ways and records the answers.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use cynode_wire::manager::handoffs::HandoffContext;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    plain,
    recording::{CallRecorder, RecordedCall},
    rows::{EvalRow, EvalTable},
    score::{AskMethod, EvalAnswer},
    think::{self, CapturingBackend},
};
use crate::{
    instructions::{self, InstructionPaths},
    llm::{self, LlmClient},
    prompt_composition,
    role::PmaRole,
};

/// Maximum number of tokens of a plain answer.
const MAX_PLAIN_TOKENS: u32 = 128;

/// Runs an evaluation.
pub struct EvalRunner {
    /// Client of the model.
    pub voice: LlmClient,
    /// Name of the model.
    pub model: String,
    /// System messages by role.
    pub systems: SystemPrompts,
}

/// System messages of both roles: the instructions only, without any project or user.
pub struct SystemPrompts {
    manager: String,
    analyst: String,
}

impl SystemPrompts {
    /// Loads the system messages from the bundles.
    pub fn load_prompts(places: &InstructionPaths) -> anyhow::Result<Self> {
        let of = |role: PmaRole| -> anyhow::Result<String> {
            let bundle = instructions::load_bundle(role, &places.path_for_role(role)?)?;
            Ok(prompt_composition::compose_system_prompt(&bundle, &HandoffContext::default()))
        };
        Ok(Self { manager: of(PmaRole::ProjectManager)?, analyst: of(PmaRole::ProjectAnalyst)? })
    }

    fn prompt_for_table(&self, table: EvalTable) -> &str {
        match think::role_for_table(table) {
            PmaRole::ProjectManager => &self.manager,
            PmaRole::ProjectAnalyst => &self.analyst,
        }
    }
}

/// Samples at most `limit` rows of a table, with labels balanced where possible. A seed selects them; without one they are the first.
pub fn sample_rows(
    mut rows: Vec<EvalRow>,
    limit: Option<usize>,
    seed: Option<u64>,
) -> Vec<EvalRow> {
    if let Some(seed) = seed {
        rows.sort_by_cached_key(|row| Sha256::digest(format!("{seed} {}", row.id)));
    }
    let Some(limit) = limit else { return rows };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let turn = |row: &EvalRow| {
        let turn = seen.entry(row.label.clone()).or_default();
        *turn += 1;
        *turn
    };
    let turns: Vec<usize> = rows.iter().map(turn).collect();
    let mut rows: Vec<(usize, EvalRow)> = turns.into_iter().zip(rows).collect();
    rows.sort_by_key(|(turn, _)| *turn);
    rows.into_iter().take(limit).map(|(_, row)| row).collect()
}

impl EvalRunner {
    /// Asks about rows by one method and reports each answer.
    pub async fn ask_rows(
        &self,
        rows: &[EvalRow],
        way: AskMethod,
        mut recorder: Option<&mut CallRecorder>,
        told: &mut dyn FnMut(&EvalAnswer),
    ) -> anyhow::Result<Vec<EvalAnswer>> {
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let asked = match way {
                AskMethod::Structured => self.ask_structured(row).await,
                AskMethod::Plain => self.ask_plain(row).await,
            };
            let mut call = asked.with_context(|| format!("{}, {}", row.id, way.as_str()))?;
            if let Some(recorder) = recorder.as_deref_mut() {
                call.system = call.system.map(|text| recorder.record_text(&text));
                recorder.record_call(&call)?;
            }
            told(&call.outcome);
            answers.push(call.outcome);
        }
        Ok(answers)
    }

    async fn ask_structured(&self, row: &EvalRow) -> anyhow::Result<RecordedCall> {
        let brain = CapturingBackend::new(&self.voice, &self.model);
        let system = self.systems.prompt_for_table(row.table);
        let decided =
            think::decide_row(&brain, row.table, system, &think::structured_question(row)).await;
        let (ask, heard) = brain.take_capture().context("nobody was asked")?;
        // Answers that do not match the schema are a result; missing answers are an error.
        let decision = match decided {
            Ok(decision) => Some(decision),
            Err(_) if !heard.texts.is_empty() && heard.texts.len() == heard.complaints.len() => {
                None
            }
            Err(trouble) => return Err(trouble.into()),
        };
        let said =
            decision.as_ref().and_then(|decision| think::label_of_decision(row.table, decision));
        let used = (heard.input_tokens, heard.output_tokens);
        let outcome =
            build_answer(row, AskMethod::Structured, said, heard.attempts, used, heard.latency);
        Ok(RecordedCall {
            model: self.model.clone(),
            digest: Some(llm::request_digest(&ask)),
            system: Some(ask.system),
            user: ask.user,
            answers: heard.texts,
            decision,
            outcome,
        })
    }

    async fn ask_plain(&self, row: &EvalRow) -> anyhow::Result<RecordedCall> {
        let user = plain::plain_question(row);
        let question = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": user }],
            "temperature": 0.0,
            "max_tokens": MAX_PLAIN_TOKENS,
        });
        let begun = Instant::now();
        let heard = self.voice.complete_once(&question).await?;
        let said = plain::parse_label(row.table, &heard.text).map(str::to_owned);
        let used = (heard.input_tokens, heard.output_tokens);
        Ok(RecordedCall {
            model: self.model.clone(),
            system: None,
            digest: None,
            user,
            answers: vec![heard.text],
            decision: None,
            outcome: build_answer(row, AskMethod::Plain, said, 1, used, begun.elapsed()),
        })
    }
}

fn build_answer(
    row: &EvalRow,
    way: AskMethod,
    said: Option<String>,
    attempts: u32,
    (input_tokens, output_tokens): (u64, u64),
    latency: Duration,
) -> EvalAnswer {
    EvalAnswer {
        id: row.id.clone(),
        table: row.table,
        half: row.row_half(),
        way,
        truth: row.label.clone(),
        said,
        attempts,
        input_tokens,
        output_tokens,
        latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
    }
}
