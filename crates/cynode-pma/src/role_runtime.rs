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

/// The numbers that people turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleTuning {
    /// Most steps of a plan, 1 to 50.
    pub max_steps: u32,
    /// How freely words are chosen where no label is chosen, 0 to 2.
    pub temperature: f64,
    /// How long a model may think.
    pub patience: Duration,
}

/// One role at work.
#[derive(Clone, Debug)]
pub struct RoleRuntime {
    /// The role's words.
    pub(crate) bundle: InstructionBundle,
    /// The numbers.
    pub(crate) tuning: RoleTuning,
    /// The way to tools.
    pub(crate) gate: McpClient,
    /// The way to handoffs.
    pub(crate) host: OrchestratorClient,
    http: reqwest::Client,
    egress: String,
}

impl RoleRuntime {
    /// An office that knows the orchestrator at `base`, its internal port, and nobody else.
    pub fn new(
        bundle: InstructionBundle,
        tuning: RoleTuning,
        base: &str,
        token: SecretString,
    ) -> Result<Self, reqwest::Error> {
        let http = mcp_client::build_http_client()?;
        let gate = McpClient::new(http.clone(), base);
        let host = OrchestratorClient::new(gate.clone(), token);
        let egress = format!("{}/v1/chat/completions", base.trim_end_matches('/'));
        Ok(Self { bundle, tuning, gate, host, http, egress })
    }

    /// Parts 1 to 5 of every question of a handoff.
    pub(crate) fn system_prompt(&self, handoff: &HandoffAssignment) -> String {
        prompt_composition::compose_system_prompt(&self.bundle, &handoff.context)
    }

    /// The way to the models of a handoff.
    pub(crate) fn llm_client(&self, handoff: &HandoffAssignment) -> LlmClient {
        let pass = RequestCredentials::from_handoff(handoff);
        LlmClient::new(self.http.clone(), self.egress.clone(), pass, self.tuning.patience)
            .with_think_seconds(handoff.think_seconds.clone())
    }

    /// Takes out of a handoff what is not for this role.
    pub(crate) fn drop_foreign_preferences(&self, handoff: &mut HandoffAssignment) {
        for key in
            prompt_composition::retain_own_preferences(self.bundle.role, &mut handoff.context)
        {
            tracing::warn!(event = "preference.ignored", handoff = %handoff.handoff_id, key, "a preference of another role was dropped");
        }
    }
}
