//! What the two roles decide: one function from a handoff to its answer.

use cynode_core::agents::AgentRole;
use cynode_wire::handoffs::HandoffAnswer;

use crate::desk::{Desk, Trouble};

pub mod analyst;
pub mod answers;
pub mod context;
pub mod decisions;
pub mod fence;
pub mod manager;
pub mod prompts;
pub mod rank;
pub mod unit;

/// What comes of a handoff.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is answered.
    Answer(Box<HandoffAnswer>),
    /// The analyst does its share first.
    Delegate,
}

/// Works on a handoff, as the role that it is for.
pub async fn work(desk: &Desk<'_>) -> Result<Outcome, Trouble> {
    let role = desk.handoff.request.kind().role();
    // The future of a manager is large; most of its time it waits.
    if role == AgentRole::ProjectAnalyst {
        Box::pin(analyst::work(desk)).await
    } else {
        Box::pin(manager::work(desk)).await
    }
}

#[cfg(test)]
mod tests;
