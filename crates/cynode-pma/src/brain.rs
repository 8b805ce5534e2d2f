//! Thinking: one question, one typed answer, nothing kept between them.
//!
//! **Invariant**: an answer is used only if it has the form that was asked for, and only after it was recorded. Whoever works on
//! the same handoff again finds it and asks nobody.

mod form;
mod live;
mod scripted;
mod voice;

use cynode_core::models::{OWN, Tier};
use cynode_wire::handoffs::Thought;
use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::desk::{Ask, ThinkKind};

pub use form::Form;
pub use live::Live;
pub use scripted::{Replay, Scripted};
pub use voice::{Heard, Insisted, Voice, VoiceError, question};

/// Says in words what is wrong with an answer that has the right form.
pub type Check<'a> = &'a (dyn Fn(&Value) -> Result<(), String> + Send + Sync);

/// The name of a kind, in records and on the wire.
pub const fn name(kind: ThinkKind) -> &'static str {
    match kind {
        ThinkKind::Classify => "classify",
        ThinkKind::AssessScope => "assess_scope",
        ThinkKind::AnalyseProject => "analyse_project",
        ThinkKind::Plan => "plan",
        ThinkKind::RefineTask => "refine_task",
        ThinkKind::ReviewArtifact => "review_artifact",
        ThinkKind::HandleFailure => "handle_failure",
        ThinkKind::Route => "route",
        ThinkKind::ChooseTests => "choose_tests",
        ThinkKind::Summarise => "summarise",
        ThinkKind::InterpretSchedule => "interpret_schedule",
    }
}

/// The digest of a whole question: the same question has the same digest in every process.
pub fn digest(ask: &Ask) -> String {
    let schema = ask.schema.to_string();
    let parts = [name(ask.kind), &ask.system, &ask.user, &schema, ask.tier.as_str()];
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
fn remembered<'a>(thoughts: &'a [Thought], ask: &Ask, digest: &str) -> Option<&'a Value> {
    let same = |thought: &&Thought| {
        thought.step == ask.step
            && thought.kind == name(ask.kind)
            && thought.prompt_digest == digest
            && thought.output.is_some()
    };
    thoughts.iter().find(same).and_then(|thought| thought.output.as_ref())
}

/// The model for a tier among those that are open: the tier itself, the nearest that is there, then any other.
pub fn model(models: &[String], tier: Tier) -> Option<&str> {
    let nearest = match tier {
        Tier::Fast => [Tier::Fast, Tier::Standard, Tier::Deep],
        Tier::Standard => [Tier::Standard, Tier::Deep, Tier::Fast],
        Tier::Deep => [Tier::Deep, Tier::Standard, Tier::Fast],
    };
    let tiers = nearest.into_iter().map(Tier::model_id);
    let found = tiers.into_iter().find_map(|id| models.iter().find(|model| **model == id));
    // What else begins like ours is no model: the project manager must not ask itself.
    found.or_else(|| models.iter().find(|model| !model.starts_with(OWN))).map(String::as_str)
}

/// How freely words are chosen: not at all where a label is chosen.
pub const fn temperature(kind: ThinkKind, tuned: f64) -> f64 {
    match kind {
        ThinkKind::Classify
        | ThinkKind::AssessScope
        | ThinkKind::ReviewArtifact
        | ThinkKind::HandleFailure
        | ThinkKind::Route
        | ThinkKind::ChooseTests => 0.0,
        ThinkKind::AnalyseProject
        | ThinkKind::Plan
        | ThinkKind::RefineTask
        | ThinkKind::Summarise
        | ThinkKind::InterpretSchedule => tuned,
    }
}

/// Most tokens of an answer, with room for models that think aloud.
pub const fn most_tokens(kind: ThinkKind) -> u32 {
    match kind {
        ThinkKind::Classify
        | ThinkKind::AssessScope
        | ThinkKind::HandleFailure
        | ThinkKind::Route
        | ThinkKind::ChooseTests => 2048,
        ThinkKind::AnalyseProject
        | ThinkKind::RefineTask
        | ThinkKind::ReviewArtifact
        | ThinkKind::Summarise
        | ThinkKind::InterpretSchedule => 4096,
        ThinkKind::Plan => 8192,
    }
}

/// Most tokens of the first answer. Where a label is wanted, little is enough: a small model that repeats itself without end is
/// stopped soon, and one that thinks aloud has the full room the second time.
pub const fn first_tokens(kind: ThinkKind) -> u32 {
    match kind {
        ThinkKind::Classify
        | ThinkKind::AssessScope
        | ThinkKind::HandleFailure
        | ThinkKind::Route
        | ThinkKind::ChooseTests => 512,
        ThinkKind::ReviewArtifact => 1536,
        ThinkKind::AnalyseProject
        | ThinkKind::RefineTask
        | ThinkKind::Summarise
        | ThinkKind::InterpretSchedule
        | ThinkKind::Plan => most_tokens(kind),
    }
}

#[cfg(test)]
mod tests;
