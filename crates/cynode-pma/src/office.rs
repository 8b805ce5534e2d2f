//! What a process has while it works: its role and its words, the gate, the egress. Nothing about any handoff.

use std::time::Duration;

use cynode_wire::handoffs::Handoff;
use secrecy::SecretString;

use crate::{
    brain::Voice,
    compose,
    gate::{self, Gate, Host, Pass},
    instructions::Bundle,
};

/// The numbers that people turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Most steps of a plan, 1 to 50.
    pub max_steps: u32,
    /// How freely words are chosen where no label is chosen, 0 to 2.
    pub temperature: f64,
    /// How long a model may think.
    pub patience: Duration,
}

/// One role at work.
#[derive(Clone, Debug)]
pub struct Office {
    /// The role's words.
    pub(crate) bundle: Bundle,
    /// The numbers.
    pub(crate) tuning: Tuning,
    /// The way to tools.
    pub(crate) gate: Gate,
    /// The way to handoffs.
    pub(crate) host: Host,
    http: reqwest::Client,
    egress: String,
}

impl Office {
    /// An office that knows the orchestrator at `base`, its internal port, and nobody else.
    pub fn new(
        bundle: Bundle,
        tuning: Tuning,
        base: &str,
        token: SecretString,
    ) -> Result<Self, reqwest::Error> {
        let http = gate::http()?;
        let gate = Gate::new(http.clone(), base);
        let host = Host::new(gate.clone(), token);
        let egress = format!("{}/v1/chat/completions", base.trim_end_matches('/'));
        Ok(Self { bundle, tuning, gate, host, http, egress })
    }

    /// Parts 1 to 5 of every question of a handoff.
    pub(crate) fn system(&self, handoff: &Handoff) -> String {
        compose::system(&self.bundle, &handoff.context)
    }

    /// The way to the models of a handoff.
    pub(crate) fn voice(&self, handoff: &Handoff) -> Voice {
        let pass = Pass::of(handoff);
        Voice::new(self.http.clone(), self.egress.clone(), pass, self.tuning.patience)
    }

    /// Takes out of a handoff what is not for this role.
    pub(crate) fn receive(&self, handoff: &mut Handoff) {
        for key in compose::keep_own(self.bundle.role, &mut handoff.context) {
            tracing::warn!(event = "preference.foreign", handoff = %handoff.handoff_id, key, "a preference of another role was dropped");
        }
    }
}
