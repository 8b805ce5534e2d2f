use serde::{Deserialize, Serialize};

use super::{ModelError, ReasoningSeal, StopReason, TokenUsage};

/// One piece of an answer that comes piece by piece.
///
/// The order: `Started`; for each part `PartStarted`, its deltas, `PartEnded` (parts may overlap, an index is used once);
/// then `Ended`, or `Failed` at any time. Nothing follows these two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CanonicalEvent {
    /// The model begins.
    Started {
        /// The provider's name for the answer.
        id: String,
        /// The model that answers.
        model: String,
        /// What is known already of what is used.
        usage: Option<TokenUsage>,
    },
    /// A part begins.
    PartStarted {
        /// The place of the part.
        index: usize,
        /// What it is.
        opening: PartStart,
    },
    /// More words.
    TextDelta {
        /// The place of the part.
        index: usize,
        /// The words.
        text: String,
    },
    /// More words of a refusal.
    RefusalDelta {
        /// The place of the part.
        index: usize,
        /// The words.
        text: String,
    },
    /// More of a thought.
    ReasoningDelta {
        /// The place of the part.
        index: usize,
        /// The words.
        text: String,
    },
    /// The provider's mark on a thought.
    Sealed {
        /// The place of the part.
        index: usize,
        /// The mark.
        seal: ReasoningSeal,
    },
    /// More of what a tool is given.
    ArgumentsDelta {
        /// The place of the part.
        index: usize,
        /// The text.
        text: String,
    },
    /// A part is complete.
    PartEnded {
        /// The place of the part.
        index: usize,
    },
    /// The answer is complete.
    Ended {
        /// Why.
        stop: StopReason,
        /// What was used, if the provider says.
        usage: Option<TokenUsage>,
    },
    /// There will be no more.
    Failed(ModelError),
}

/// What kind of part begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartStart {
    /// Words.
    Text,
    /// A refusal.
    Refusal,
    /// A thought.
    Reasoning {
        /// The provider's name for it, where there is one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        id: Option<String>,
    },
    /// A thought that only its provider can read, whole.
    Redacted(ReasoningSeal),
    /// A call of a tool.
    ToolCall {
        /// What the result refers to.
        id: String,
        /// The tool.
        name: String,
        /// The group that the tool is in, if it is in one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        namespace: Option<String>,
        /// Whether it is given free text.
        free: bool,
    },
}

impl CanonicalEvent {
    /// The part that it belongs to.
    pub const fn part_index(&self) -> Option<usize> {
        match self {
            Self::PartStarted { index, .. }
            | Self::TextDelta { index, .. }
            | Self::RefusalDelta { index, .. }
            | Self::ReasoningDelta { index, .. }
            | Self::Sealed { index, .. }
            | Self::ArgumentsDelta { index, .. }
            | Self::PartEnded { index } => Some(*index),
            Self::Started { .. } | Self::Ended { .. } | Self::Failed(_) => None,
        }
    }

    /// Whether it is a delta without content.
    pub(crate) fn is_empty_delta(&self) -> bool {
        match self {
            Self::TextDelta { text, .. }
            | Self::RefusalDelta { text, .. }
            | Self::ReasoningDelta { text, .. }
            | Self::ArgumentsDelta { text, .. } => text.is_empty(),
            Self::Started { .. }
            | Self::PartStarted { .. }
            | Self::Sealed { .. }
            | Self::PartEnded { .. }
            | Self::Ended { .. }
            | Self::Failed(_) => false,
        }
    }
}
