//! The words that all dialects are turned into: what is asked, what is answered, and what goes wrong.

mod answer;
mod error;
mod event;
mod extras;
mod gather;
mod part;
mod request;

pub use self::{
    answer::{Answer, Stop, Usage},
    error::{Kind, ModelError},
    event::{Event, Opening},
    extras::Extras,
    gather::Gather,
    part::{
        Document, DocumentSource, Foreign, Image, ImageSource, Input, Part, Reasoning, Seal, Text,
        ToolCall, ToolResult,
    },
    request::{
        CustomTool, Effort, Format, FunctionTool, Message, Mode, Namespace, Output, Request, Role,
        Thinking, Tool, ToolChoice,
    },
};
pub(crate) use self::{error::CONTEXT_LENGTH, extras::Level, gather::cut_short};
