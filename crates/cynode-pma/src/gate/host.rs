use std::time::Duration;

use cynode_wire::handoffs::{
    BeginThought, ClaimHandoff, ClaimedHandoff, CompleteHandoff, DelegateHandoff, FailHandoff,
    Handoff, KeepHandoff, RecordThought, ThoughtBegun,
};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Gate, GateError, PATIENCE, Pass};

/// What the process itself asks the orchestrator for, with its own token: handoffs, and a place for what was thought.
#[derive(Clone, Debug)]
pub struct Host {
    gate: Gate,
    pass: Pass,
}

/// Why the orchestrator did not do what the process asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It cannot be reached, or cannot answer now. It may have done it.
    #[error("the orchestrator cannot be reached: {0}")]
    Away(String),
    /// The handoff is not ours any more.
    #[error("superseded: {0}")]
    Fenced(String),
    /// It will never do it.
    #[error("{0}")]
    Refused(String),
}

impl Host {
    /// A host with its token.
    pub const fn new(gate: Gate, token: SecretString) -> Self {
        Self { gate, pass: Pass::new(token) }
    }

    /// Asks for a handoff, and waits for one as long as the claim says.
    pub async fn claim(&self, claim: &ClaimHandoff) -> Result<Option<Box<Handoff>>, HostError> {
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or_default().into());
        let claimed: ClaimedHandoff =
            self.ask(&self.pass, "handoff.claim", claim, wait + PATIENCE).await?;
        Ok(claimed.handoff)
    }

    /// Says that a handoff is still worked on.
    pub async fn keep(&self, trace: &str, keep: &KeepHandoff) -> Result<(), HostError> {
        self.tell(trace, "handoff.keep", keep).await
    }

    /// Ends a handoff well.
    pub async fn complete(&self, trace: &str, answer: &CompleteHandoff) -> Result<(), HostError> {
        self.tell(trace, "handoff.complete", answer).await
    }

    /// Says that a handoff came to nothing this time.
    pub async fn fail(&self, trace: &str, failure: &FailHandoff) -> Result<(), HostError> {
        self.tell(trace, "handoff.fail", failure).await
    }

    /// Gives the analyst its share.
    pub async fn delegate(&self, trace: &str, share: &DelegateHandoff) -> Result<(), HostError> {
        self.tell(trace, "handoff.delegate", share).await
    }

    /// Says that a model is about to be asked, and gives whether it may be.
    pub async fn begin(
        &self,
        trace: &str,
        begin: &BeginThought,
    ) -> Result<ThoughtBegun, HostError> {
        self.ask(&self.pass.tracing(trace), "think.begin", begin, PATIENCE).await
    }

    /// Keeps a thought.
    pub async fn record(&self, trace: &str, thought: &RecordThought) -> Result<(), HostError> {
        self.tell(trace, "think.record", thought).await
    }

    async fn tell(
        &self,
        trace: &str,
        tool: &str,
        arguments: &impl Serialize,
    ) -> Result<(), HostError> {
        let pass = self.pass.tracing(trace);
        self.ask(&pass, tool, arguments, PATIENCE).await.map(|_: Value| ())
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        pass: &Pass,
        tool: &str,
        arguments: &impl Serialize,
        patience: Duration,
    ) -> Result<T, HostError> {
        let answer = self.gate.call_raw(pass, tool, arguments, patience).await;
        let text = answer.map_err(|error| meaning(tool, error))?;
        serde_json::from_str(&text).map_err(|error| {
            HostError::Refused(format!("`{tool}` gave something unknown: {error}"))
        })
    }
}

/// What a failure at the gate means for the process. Refusals that say "in a moment" pass; the others do not.
fn meaning(tool: &str, error: GateError) -> HostError {
    match error {
        GateError::Away(why) => HostError::Away(why),
        GateError::Failed { code, detail } => match code.as_str() {
            "fenced" | "ended" | "not_found" => HostError::Fenced(detail),
            "unavailable" | "internal" | "busy" | "timeout" => HostError::Away(detail),
            _ => HostError::Refused(format!("`{tool}` failed ({code}): {detail}")),
        },
        GateError::Refused { code, reason } => match code.as_str() {
            "stale" | "no_audit" | "too_fast" => HostError::Away(reason),
            _ => HostError::Refused(format!("the gate refused `{tool}` ({code}): {reason}")),
        },
    }
}
