use serde::{Deserialize, Serialize};

use super::{ModelError, ReasoningSeal, StopReason, TokenUsage};

/// One event of a streamed response.
///
/// The order: `Started`; for each part `PartStarted`, its deltas, `PartEnded` (parts may overlap, an index is used once); then `Ended`, or
/// `Failed` at any time. No event follows these two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CanonicalEvent {
    /// The response starts.
    Started {
        /// Id of the response, as the provider sent it.
        id: String,
        /// Name of the model.
        model: String,
        /// Token usage, as far as it is known at the start.
        usage: Option<TokenUsage>,
    },
    /// A part starts.
    PartStarted {
        /// Index of the part.
        index: usize,
        /// Kind of the part.
        opening: PartStart,
    },
    /// More text.
    TextDelta {
        /// Index of the part.
        index: usize,
        /// The text.
        text: String,
    },
    /// More text of a refusal.
    RefusalDelta {
        /// Index of the part.
        index: usize,
        /// The text.
        text: String,
    },
    /// More text of reasoning.
    ReasoningDelta {
        /// Index of the part.
        index: usize,
        /// The text.
        text: String,
    },
    /// The provider's seal of a reasoning part.
    Sealed {
        /// Index of the part.
        index: usize,
        /// The seal.
        seal: ReasoningSeal,
    },
    /// More text of the arguments of a tool call.
    ArgumentsDelta {
        /// Index of the part.
        index: usize,
        /// The text.
        text: String,
    },
    /// A part is complete.
    PartEnded {
        /// Index of the part.
        index: usize,
    },
    /// The response is complete.
    Ended {
        /// Reason why the response ended.
        stop: StopReason,
        /// Token usage, if the provider reports it.
        usage: Option<TokenUsage>,
    },
    /// The response failed. No event follows.
    Failed(ModelError),
}

/// Kind of a part that starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartStart {
    /// Text.
    Text,
    /// A refusal.
    Refusal,
    /// Reasoning.
    Reasoning {
        /// Id of the reasoning part, if the provider sent one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        id: Option<String>,
    },
    /// Complete reasoning that only its provider can read.
    Redacted(ReasoningSeal),
    /// A tool call.
    ToolCall {
        /// Id of the call, which the result refers to.
        id: String,
        /// Name of the tool.
        name: String,
        /// Namespace of the tool, if it has one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        namespace: Option<String>,
        /// Whether the tool takes free text.
        free: bool,
    },
}

impl CanonicalEvent {
    /// Returns the index of the part that the event belongs to.
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

    /// Returns whether the event is a delta without content.
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
