//! Runtime of a role: its instructions, the gateway client and the model client. It holds nothing about a handoff.

use std::time::Duration;

use cynode_wire::manager::handoffs::HandoffAssignment;
use secrecy::SecretString;

use crate::{
    instructions::InstructionBundle,
    llm::LlmClient,
    mcp_client::{self, McpClient, OrchestratorClient, RequestCredentials},
    prompt_composition,
};

/// Tuning parameters of a role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleTuning {
    /// Maximum number of steps of a plan, 1 to 50.
    pub max_steps: u32,
    /// Sampling temperature of decisions that select no label, 0 to 2.
    pub temperature: f64,
    /// Timeout of a model call.
    pub patience: Duration,
}

/// Runtime of one role.
#[derive(Clone, Debug)]
pub struct RoleRuntime {
    /// Instructions of the role.
    pub(crate) bundle: InstructionBundle,
    /// Tuning parameters.
    pub(crate) tuning: RoleTuning,
    /// Gateway client.
    pub(crate) gate: McpClient,
    /// Client for handoffs.
    pub(crate) host: OrchestratorClient,
    http: reqwest::Client,
    egress: String,
}

impl RoleRuntime {
    /// Creates a runtime that connects only to the orchestrator's internal port at `base`.
    pub fn new(
        bundle: InstructionBundle,
        tuning: RoleTuning,
        base: &str,
        token: SecretString,
    ) -> Result<Self, reqwest::Error> {
        let http = mcp_client::build_http_client()?;
        Ok(Self::with_client(bundle, tuning, base, token, http))
    }

    /// Creates a runtime like [`Self::new`] with an HTTP client that has its own trust and certificate.
    pub(crate) fn with_client(
        bundle: InstructionBundle,
        tuning: RoleTuning,
        base: &str,
        token: SecretString,
        http: reqwest::Client,
    ) -> Self {
        let gate = McpClient::new(http.clone(), base);
        let host = OrchestratorClient::new(gate.clone(), token);
        let egress = format!("{}/v1/chat/completions", base.trim_end_matches('/'));
        Self { bundle, tuning, gate, host, http, egress }
    }

    /// Returns parts 1 to 5 of every request of a handoff.
    pub(crate) fn system_prompt(&self, handoff: &HandoffAssignment) -> String {
        prompt_composition::compose_system_prompt(&self.bundle, &handoff.context)
    }

    /// Creates the model client of a handoff.
    pub(crate) fn llm_client(&self, handoff: &HandoffAssignment) -> LlmClient {
        let pass = RequestCredentials::from_handoff(handoff);
        LlmClient::new(self.http.clone(), self.egress.clone(), pass, self.tuning.patience)
            .with_think_seconds(handoff.think_seconds.clone())
    }

    /// Removes preferences of other roles from a handoff.
    pub(crate) fn drop_foreign_preferences(&self, handoff: &mut HandoffAssignment) {
        for key in
            prompt_composition::retain_own_preferences(self.bundle.role, &mut handoff.context)
        {
            tracing::warn!(event = "preference.ignored", handoff = %handoff.handoff_id, key, "a preference of another role was dropped");
        }
    }
}
