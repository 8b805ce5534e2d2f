//! Instructions of people to a running task.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The kind of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstructionKind {
    /// Stop at the next step and wait.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Give the task up.
    Abort,
    /// Make the plan anew with this feedback.
    Revise,
    /// Do this too.
    ExpandScope,
    /// Leave this out.
    ReduceScope,
}

/// What an instruction does to a run, once it is taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionEffect {
    /// The run waits until it is told to go on.
    Pause,
    /// A pause ends.
    Resume,
    /// The run goes back to planning with the text as feedback.
    Replan,
    /// The task is stopped at once.
    Stop,
}

impl InstructionKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Pause,
        Self::Resume,
        Self::Abort,
        Self::Revise,
        Self::ExpandScope,
        Self::ReduceScope,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Abort => "abort",
            Self::Revise => "revise",
            Self::ExpandScope => "expand_scope",
            Self::ReduceScope => "reduce_scope",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// What it does.
    pub const fn instruction_effect(self) -> InstructionEffect {
        match self {
            Self::Pause => InstructionEffect::Pause,
            Self::Resume => InstructionEffect::Resume,
            Self::Abort => InstructionEffect::Stop,
            Self::Revise | Self::ExpandScope | Self::ReduceScope => InstructionEffect::Replan,
        }
    }

    /// Whether it says nothing without a text.
    pub const fn requires_text(self) -> bool {
        matches!(self.instruction_effect(), InstructionEffect::Replan)
    }
}
