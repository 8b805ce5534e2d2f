//! Think calls: one question to a model, one typed answer, no memory between them.
//!
//! **Invariant**: an answer is used only if it matches its schema, and only after it was recorded. A process that
//! repeats a handoff replays the recorded answer and asks no model.

mod client;
mod live;
mod schema;
mod scripted;

use cynode_core::{
    models::{OWN_MODEL_PREFIX, Tier},
    workflow::handoffs::ModelDecision,
};
use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::decision_context::{DecisionKind, DecisionRequest};

pub use client::{
    LlmClient, LlmCompletion, LlmError, StructuredCompletion, build_completion_request,
};
pub use live::LiveBackend;
pub use schema::AnswerSchema;
pub use scripted::{ReplayBackend, ScriptedBackend};

/// Describes what is wrong with an answer that matches the schema.
pub type AnswerValidator<'a> = &'a (dyn Fn(&Value) -> Result<(), String> + Send + Sync);

/// Returns the name of a decision kind in records and on the wire.
pub const fn decision_kind_name(kind: DecisionKind) -> &'static str {
    match kind {
        DecisionKind::Classify => "classify",
        DecisionKind::AssessScope => "assess_scope",
        DecisionKind::AnalyseProject => "analyse_project",
        DecisionKind::Plan => "plan",
        DecisionKind::RefineTask => "refine_task",
        DecisionKind::ReviewArtifact => "review_artifact",
        DecisionKind::HandleFailure => "handle_failure",
        DecisionKind::Route => "route",
        DecisionKind::ChooseTests => "choose_tests",
        DecisionKind::Summarise => "summarise",
        DecisionKind::InterpretSchedule => "interpret_schedule",
    }
}

/// Returns the digest of a request. The same request has the same digest in every process.
pub fn request_digest(ask: &DecisionRequest) -> String {
    let schema = ask.schema.to_string();
    let parts = [decision_kind_name(ask.kind), &ask.system, &ask.user, &schema, ask.tier.as_str()];
    let mut hash = Sha256::new();
    for part in parts {
        // A length prefix makes the concatenation of the parts unambiguous.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    HEXLOWER.encode(&hash.finalize())
}

/// Returns the digest of a schema.
pub fn schema_digest(schema: &Value) -> String {
    HEXLOWER.encode(&Sha256::digest(schema.to_string()))
}

/// Returns the recorded answer to exactly this request.
fn find_recorded_answer<'a>(
    decisions: &'a [ModelDecision],
    ask: &DecisionRequest,
    digest: &str,
) -> Option<&'a Value> {
    let same = |decision: &&ModelDecision| {
        decision.step == ask.step
            && decision.kind == decision_kind_name(ask.kind)
            && decision.prompt_digest == digest
            && decision.output.is_some()
    };
    decisions.iter().find(same).and_then(|decision| decision.output.as_ref())
}

/// Selects an available model for a tier: the tier itself, the nearest available tier, then any other model.
pub fn select_model(models: &[String], tier: Tier) -> Option<&str> {
    let tiers = tier.fallback_order().into_iter().map(Tier::tier_model_id);
    let found = tiers.into_iter().find_map(|id| models.iter().find(|model| **model == id));
    // Other ids with our own prefix are not models: the project manager must not call itself.
    found
        .or_else(|| models.iter().find(|model| !model.starts_with(OWN_MODEL_PREFIX)))
        .map(String::as_str)
}

/// Returns the sampling temperature: zero for decisions that select a label.
pub const fn temperature_for_kind(kind: DecisionKind, tuned: f64) -> f64 {
    match kind {
        DecisionKind::Classify
        | DecisionKind::AssessScope
        | DecisionKind::ReviewArtifact
        | DecisionKind::HandleFailure
        | DecisionKind::Route
        | DecisionKind::ChooseTests => 0.0,
        DecisionKind::AnalyseProject
        | DecisionKind::Plan
        | DecisionKind::RefineTask
        | DecisionKind::Summarise
        | DecisionKind::InterpretSchedule => tuned,
    }
}

/// Returns the maximum number of tokens of an answer, with room for reasoning models.
pub const fn max_tokens_for_kind(kind: DecisionKind) -> u32 {
    match kind {
        DecisionKind::Classify
        | DecisionKind::AssessScope
        | DecisionKind::HandleFailure
        | DecisionKind::Route
        | DecisionKind::ChooseTests => 2048,
        DecisionKind::AnalyseProject
        | DecisionKind::RefineTask
        | DecisionKind::ReviewArtifact
        | DecisionKind::Summarise
        | DecisionKind::InterpretSchedule => 4096,
        DecisionKind::Plan => 8192,
    }
}

/// Returns the maximum number of tokens of the first attempt. A label needs few: a small model that repeats itself without end is
/// stopped early, and a reasoning model gets the full limit in the second attempt.
pub const fn first_attempt_max_tokens(kind: DecisionKind) -> u32 {
    match kind {
        DecisionKind::Classify
        | DecisionKind::AssessScope
        | DecisionKind::HandleFailure
        | DecisionKind::Route
        | DecisionKind::ChooseTests => 512,
        DecisionKind::ReviewArtifact => 1536,
        DecisionKind::AnalyseProject
        | DecisionKind::RefineTask
        | DecisionKind::Summarise
        | DecisionKind::InterpretSchedule
        | DecisionKind::Plan => max_tokens_for_kind(kind),
    }
}

#[cfg(test)]
mod tests;
