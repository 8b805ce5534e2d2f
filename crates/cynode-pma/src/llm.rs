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

/// Says in words what is wrong with an answer that has the right form.
pub type AnswerValidator<'a> = &'a (dyn Fn(&Value) -> Result<(), String> + Send + Sync);

/// The name of a kind, in records and on the wire.
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

/// The digest of a whole question: the same question has the same digest in every process.
pub fn request_digest(ask: &DecisionRequest) -> String {
    let schema = ask.schema.to_string();
    let parts = [decision_kind_name(ask.kind), &ask.system, &ask.user, &schema, ask.tier.as_str()];
    let mut hash = Sha256::new();
    for part in parts {
        // With its length before it, no part can look like the end of one and the beginning of another.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    HEXLOWER.encode(&hash.finalize())
}

/// The digest of a form.
pub fn schema_digest(schema: &Value) -> String {
    HEXLOWER.encode(&Sha256::digest(schema.to_string()))
}

/// What was answered to this very question before.
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

/// The model for a tier among those that are open: the tier itself, the nearest that is there, then any other.
pub fn select_model(models: &[String], tier: Tier) -> Option<&str> {
    let tiers = tier.fallback_order().into_iter().map(Tier::tier_model_id);
    let found = tiers.into_iter().find_map(|id| models.iter().find(|model| **model == id));
    // What else begins like ours is no model: the project manager must not ask itself.
    found
        .or_else(|| models.iter().find(|model| !model.starts_with(OWN_MODEL_PREFIX)))
        .map(String::as_str)
}

/// How freely words are chosen: not at all where a label is chosen.
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

/// Most tokens of an answer, with room for models that think aloud.
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

/// Most tokens of the first answer. Where a label is wanted, little is enough: a small model that repeats itself without end is
/// stopped soon, and one that thinks aloud has the full room the second time.
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
