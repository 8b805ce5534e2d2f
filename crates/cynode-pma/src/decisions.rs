//! Decisions of both roles: one function from a handoff to its answer.

use cynode_core::{agents::AgentRole, workflow::handoffs::HandoffAnswer};

use crate::decision_context::{DecisionContext, DecisionError};

pub mod analyst;
pub mod answers;
pub mod context;
pub mod fence;
pub mod manager;
pub mod prompts;
pub mod rank;
pub mod types;
pub mod unit;

/// What comes of a handoff.
#[derive(Clone, Debug, PartialEq)]
pub enum HandoffOutcome {
    /// It is answered.
    Answer(Box<HandoffAnswer>),
    /// The analyst does its share first.
    Delegate,
}

/// Works on a handoff, as the role that it is for.
pub async fn process_handoff(desk: &DecisionContext<'_>) -> Result<HandoffOutcome, DecisionError> {
    let role = desk.handoff.request.handoff_kind().assigned_role();
    // The future of a manager is large; most of its time it waits.
    if role == AgentRole::ProjectAnalyst {
        Box::pin(analyst::process_analyst_handoff(desk)).await
    } else {
        Box::pin(manager::process_manager_handoff(desk)).await
    }
}

#[cfg(test)]
mod tests;
