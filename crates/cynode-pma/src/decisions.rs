//! Decisions of both roles: one function from a handoff to its answer.

use cynode_core::{agents::AgentRole, workflow::handoffs::HandoffAnswer};

use crate::decision_context::{DecisionContext, DecisionError};

pub mod analyst;
pub mod answers;
pub mod context;
pub mod fence;
pub mod manager;
mod observation;
mod planning_trace;
pub mod prompts;
pub mod rank;
pub mod types;
pub mod unit;

/// Outcome of a handoff.
#[derive(Clone, Debug, PartialEq)]
pub enum HandoffOutcome {
    /// The handoff is answered.
    Answer(Box<HandoffAnswer>),
    /// The analyst does its part first.
    Delegate,
}

/// Processes a handoff in the role that it is for.
pub async fn process_handoff(desk: &DecisionContext<'_>) -> Result<HandoffOutcome, DecisionError> {
    let role = desk.handoff.request.handoff_kind().assigned_role();
    // The future of the project manager is large, and it mostly waits: it is boxed.
    if role == AgentRole::ProjectAnalyst {
        Box::pin(analyst::process_analyst_handoff(desk)).await
    } else {
        Box::pin(manager::process_manager_handoff(desk)).await
    }
}

#[cfg(test)]
mod tests;
