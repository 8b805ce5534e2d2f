use std::time::Duration;

use cynode_wire::manager::handoffs::{
    BeginDecision, ClaimHandoff, ClaimedHandoff, CompleteHandoff, DecisionPermit, DelegateHandoff,
    FailHandoff, HandoffAssignment, RecordDecision, RenewHandoff,
};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{CALL_TIMEOUT, McpClient, McpError, RequestCredentials};

/// What the process itself asks the orchestrator for, with its own token: handoffs, and a place for what was thought.
#[derive(Clone, Debug)]
pub struct OrchestratorClient {
    gate: McpClient,
    pass: RequestCredentials,
}

/// Why the orchestrator did not do what the process asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrchestratorError {
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

impl OrchestratorClient {
    /// A host with its token.
    pub const fn new(gate: McpClient, token: SecretString) -> Self {
        Self { gate, pass: RequestCredentials::new(token) }
    }

    /// Asks for a handoff, and waits for one as long as the claim says.
    pub async fn claim_handoff(
        &self,
        claim: &ClaimHandoff,
    ) -> Result<Option<Box<HandoffAssignment>>, OrchestratorError> {
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or_default().into());
        let claimed: ClaimedHandoff =
            self.call_typed(&self.pass, "handoff.claim", claim, wait + CALL_TIMEOUT).await?;
        Ok(claimed.handoff)
    }

    /// Says that a handoff is still worked on.
    pub async fn renew_handoff(
        &self,
        trace: &str,
        keep: &RenewHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.keep", keep).await
    }

    /// Ends a handoff well.
    pub async fn complete_handoff(
        &self,
        trace: &str,
        answer: &CompleteHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.complete", answer).await
    }

    /// Says that a handoff came to nothing this time.
    pub async fn fail_handoff(
        &self,
        trace: &str,
        failure: &FailHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.fail", failure).await
    }

    /// Gives the analyst its share.
    pub async fn delegate_handoff(
        &self,
        trace: &str,
        share: &DelegateHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.delegate", share).await
    }

    /// Says that a model is about to be asked, and gives whether it may be.
    pub async fn begin_decision(
        &self,
        trace: &str,
        begin: &BeginDecision,
    ) -> Result<DecisionPermit, OrchestratorError> {
        self.call_typed(&self.pass.with_trace(trace), "think.begin", begin, CALL_TIMEOUT).await
    }

    /// Records a decision.
    pub async fn record_decision(
        &self,
        trace: &str,
        decision: &RecordDecision,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "think.record", decision).await
    }

    async fn call_in_trace(
        &self,
        trace: &str,
        tool: &str,
        arguments: &impl Serialize,
    ) -> Result<(), OrchestratorError> {
        let pass = self.pass.with_trace(trace);
        self.call_typed(&pass, tool, arguments, CALL_TIMEOUT).await.map(|_: Value| ())
    }

    async fn call_typed<T: DeserializeOwned>(
        &self,
        pass: &RequestCredentials,
        tool: &str,
        arguments: &impl Serialize,
        patience: Duration,
    ) -> Result<T, OrchestratorError> {
        let answer = self.gate.call_tool_raw(pass, tool, arguments, patience).await;
        let text = answer.map_err(|error| classify_error(tool, error))?;
        serde_json::from_str(&text).map_err(|error| {
            OrchestratorError::Refused(format!("`{tool}` gave something unknown: {error}"))
        })
    }
}

/// What a failure at the gate means for the process. Refusals that say "in a moment" pass; the others do not.
fn classify_error(tool: &str, error: McpError) -> OrchestratorError {
    match error {
        McpError::Away(why) => OrchestratorError::Away(why),
        McpError::Failed { code, detail } => match code.as_str() {
            "fenced" | "task_ended" | "not_found" => OrchestratorError::Fenced(detail),
            "unavailable"
            | "upstream_unavailable"
            | "internal"
            | "overloaded"
            | "rate_limited"
            | "timeout" => OrchestratorError::Away(detail),
            _ => OrchestratorError::Refused(format!("`{tool}` failed ({code}): {detail}")),
        },
        McpError::Refused { code, reason } => match code.as_str() {
            "stale_policy" | "audit_unavailable" | "rate_limited" => {
                OrchestratorError::Away(reason)
            }
            _ => {
                OrchestratorError::Refused(format!("the gate refused `{tool}` ({code}): {reason}"))
            }
        },
    }
}
