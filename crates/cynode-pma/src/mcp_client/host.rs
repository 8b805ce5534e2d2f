use std::{future::Future, time::Duration};

use cynode_core::workflow::handoffs::TraceEvent;
use cynode_wire::manager::handoffs::{
    BeginDecision, ClaimHandoff, ClaimedHandoff, CompleteHandoff, DecisionPermit, DelegateHandoff,
    FailHandoff, HandoffAssignment, RecordDecision, RecordPlanning, RenewHandoff,
};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{CALL_TIMEOUT, McpClient, McpError, ORCHESTRATOR_BACKOFF, RequestCredentials};
use crate::decision_context::{BoxedFuture, DecisionError, TraceRecorder};

/// Maximum number of attempts of a request that the orchestrator cannot answer.
const MAX_REQUEST_ATTEMPTS: u32 = 3;

/// Client for the process's own requests with its own token: handoffs and records of decisions.
#[derive(Clone, Debug)]
pub struct OrchestratorClient {
    gate: McpClient,
    pass: RequestCredentials,
}

/// Error of a request to the orchestrator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrchestratorError {
    /// The orchestrator is unreachable or cannot answer now. It may have executed the request.
    #[error("the orchestrator cannot be reached: {0}")]
    Away(String),
    /// The lease of the handoff is lost: the request was fenced off.
    #[error("superseded: {0}")]
    Fenced(String),
    /// The orchestrator rejected the request permanently.
    #[error("{0}")]
    Refused(String),
}

impl OrchestratorError {
    /// Converts the error for a decision: `what` could not be done. A lost lease may be another process's by now.
    pub(crate) fn into_decision_error(self, what: &str) -> DecisionError {
        let told = format!("{what}: {}", self.reason());
        match self {
            Self::Away(_) | Self::Fenced(_) => DecisionError::Transient(told),
            Self::Refused(_) => DecisionError::Permanent(told),
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Away(why) | Self::Fenced(why) | Self::Refused(why) => why,
        }
    }
}

/// Sends an idempotent request again while the orchestrator cannot answer, a few times.
pub(crate) async fn retry_while_away<T, F>(
    mut send: impl FnMut() -> F,
) -> Result<T, OrchestratorError>
where
    F: Future<Output = Result<T, OrchestratorError>>,
{
    let (mut tries, mut backoff) = (0, ORCHESTRATOR_BACKOFF);
    loop {
        tries += 1;
        match send().await {
            Err(OrchestratorError::Away(_)) if tries < MAX_REQUEST_ATTEMPTS => {
                backoff.wait_next_delay().await;
            }
            answer => return answer,
        }
    }
}

impl OrchestratorClient {
    /// Creates a client with the process's token.
    pub const fn new(gate: McpClient, token: SecretString) -> Self {
        Self { gate, pass: RequestCredentials::new(token) }
    }

    /// Claims a handoff, by long poll.
    pub async fn claim_handoff(
        &self,
        claim: &ClaimHandoff,
    ) -> Result<Option<Box<HandoffAssignment>>, OrchestratorError> {
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or_default().into());
        let claimed: ClaimedHandoff =
            self.call_typed(&self.pass, "handoff.claim", claim, wait + CALL_TIMEOUT).await?;
        Ok(claimed.handoff)
    }

    /// Renews the lease of a handoff.
    pub async fn renew_handoff(
        &self,
        trace: &str,
        keep: &RenewHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.keep", keep).await
    }

    /// Completes a handoff.
    pub async fn complete_handoff(
        &self,
        trace: &str,
        answer: &CompleteHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.complete", answer).await
    }

    /// Reports the failure of a handoff.
    pub async fn fail_handoff(
        &self,
        trace: &str,
        failure: &FailHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.fail", failure).await
    }

    /// Delegates a part of a handoff to the analyst.
    pub async fn delegate_handoff(
        &self,
        trace: &str,
        share: &DelegateHandoff,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "handoff.delegate", share).await
    }

    /// Announces a model call. Returns whether it is allowed.
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

    /// Stores events of planning.
    pub async fn record_planning(
        &self,
        trace: &str,
        planning: &RecordPlanning,
    ) -> Result<(), OrchestratorError> {
        self.call_in_trace(trace, "think.trace", planning).await
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

/// Stores the events of one handoff's planning at the orchestrator.
#[derive(Debug)]
pub struct PlanningRecorder<'a> {
    host: &'a OrchestratorClient,
    handoff: &'a HandoffAssignment,
}

impl<'a> PlanningRecorder<'a> {
    /// Creates the recorder of a handoff.
    pub const fn new(host: &'a OrchestratorClient, handoff: &'a HandoffAssignment) -> Self {
        Self { host, handoff }
    }
}

impl TraceRecorder for PlanningRecorder<'_> {
    fn record_events<'b>(
        &'b self,
        events: &'b [TraceEvent],
    ) -> BoxedFuture<'b, Result<(), DecisionError>> {
        Box::pin(async move {
            let HandoffAssignment { handoff_id, fencing_token, .. } = *self.handoff;
            let body = RecordPlanning { handoff_id, fencing_token, events: events.to_vec() };
            let trace = &self.handoff.context.trace_id;
            let stored = retry_while_away(|| self.host.record_planning(trace, &body)).await;
            stored.map_err(|error| {
                match error.into_decision_error("the planning could not be recorded") {
                    DecisionError::Transient(told) => DecisionError::Untraced(told),
                    other => other,
                }
            })
        })
    }
}

/// Classifies a gateway error. Refusals that are transient are retried; the others are permanent.
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
