//! Canonical form between all dialects: request, response, events and errors.

mod answer;
mod collect;
mod error;
mod event;
mod extras;
mod part;
mod request;

pub use self::{
    answer::{CanonicalResponse, StopReason, TokenUsage},
    collect::ResponseAssembler,
    error::{ModelError, ModelErrorKind},
    event::{CanonicalEvent, PartStart},
    extras::DialectExtras,
    part::{
        ContentPart, DocumentPart, DocumentSource, ForeignValue, ImagePart, ImageSource,
        ReasoningPart, ReasoningSeal, TextPart, ToolCall, ToolInput, ToolResult,
    },
    request::{
        CanonicalMessage, CanonicalRequest, CanonicalTool, CustomTool, CustomToolFormat,
        FunctionTool, MessageRole, OutputFormat, ReasoningEffort, ThinkingConfig, ThinkingMode,
        ToolChoice, ToolNamespace,
    },
};
pub(crate) use self::{
    collect::stream_cut_short_error, error::CONTEXT_LENGTH_CODE, extras::ExtrasLevel,
};
