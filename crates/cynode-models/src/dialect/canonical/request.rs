use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::{ContentPart, DialectExtras, ForeignValue, TextPart};

/// Request to a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CanonicalRequest {
    /// Id of the model.
    pub model: String,
    /// Instructions before the conversation.
    pub instructions: Vec<TextPart>,
    /// The conversation so far.
    pub messages: Vec<CanonicalMessage>,
    /// Tools that the model may call.
    pub tools: Vec<CanonicalTool>,
    /// Whether the model must call a tool.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several tools at once.
    pub parallel_tool_calls: Option<bool>,
    /// Output format. `None` for free text.
    pub output: Option<OutputFormat>,
    /// Maximum number of output tokens.
    pub max_output_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: Option<Number>,
    /// Nucleus sampling: probability mass of the candidate tokens.
    pub top_p: Option<Number>,
    /// Stop sequences.
    pub stop: Vec<String>,
    /// Sampling seed, for reproducible responses.
    pub seed: Option<i64>,
    /// Thinking configuration.
    pub thinking: Option<ThinkingConfig>,
    /// Verbosity of the response: low, medium, high.
    pub verbosity: Option<String>,
    /// End user of the request, as the client names them.
    pub user: Option<String>,
    /// Whether the response is streamed.
    pub stream: bool,
    /// Whether the stream ends with the token usage.
    pub include_usage: bool,
    /// Extra fields of the client's dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty")]
    pub extras: DialectExtras,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanonicalMessage {
    /// Role of the speaker.
    pub role: MessageRole,
    /// Content of the turn.
    pub parts: Vec<ContentPart>,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

impl CanonicalMessage {
    /// Creates a turn without extra fields.
    pub fn new(role: MessageRole, parts: Vec<ContentPart>) -> Self {
        Self { role, parts, extras: DialectExtras::default() }
    }
}

/// Role of the speaker of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageRole {
    /// The developer of the application, in the middle of a conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// Tools: all results of one turn.
    Tool,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CanonicalTool {
    /// A tool that is called with a JSON object.
    Function(FunctionTool),
    /// A tool that is called with free text.
    Custom(CustomTool),
    /// Several tools under one name.
    Namespace(ToolNamespace),
    /// A tool that the provider itself runs or defines.
    Foreign(ForeignValue),
}

/// A tool that is called with a JSON object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionTool {
    /// Name of the tool.
    pub name: String,
    /// Purpose of the tool.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// Whether the provider enforces the schema.
    pub strict: bool,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// A tool that is called with free text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomTool {
    /// Name of the tool.
    pub name: String,
    /// Purpose of the tool.
    pub description: Option<String>,
    /// Required format of the text.
    pub format: Option<CustomToolFormat>,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Several tools under one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolNamespace {
    /// Name of the namespace.
    pub name: String,
    /// Purpose of the tools.
    pub description: Option<String>,
    /// Tools of the namespace.
    pub tools: Vec<CanonicalTool>,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Required format of the text for a custom tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomToolFormat {
    /// Any text.
    Text,
    /// Text that matches a grammar.
    Grammar {
        /// `lark` or `regex`.
        syntax: String,
        /// Definition of the grammar.
        definition: String,
    },
}

/// Whether the model must call a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must not call a tool.
    None,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    One(String),
    /// A choice that only its own dialect supports.
    Foreign(ForeignValue),
}

/// Output format of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema {
        /// Name of the format.
        name: Option<String>,
        /// Purpose of the format.
        description: Option<String>,
        /// JSON Schema of the output.
        schema: Value,
        /// Whether the provider enforces the schema.
        strict: bool,
    },
}

/// Thinking configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThinkingConfig {
    /// Reasoning effort.
    pub effort: Option<ReasoningEffort>,
    /// Thinking mode, if the dialect has one.
    pub mode: Option<ThinkingMode>,
    /// Form of the reasoning summary, if the dialect has one.
    pub summary: Option<String>,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty")]
    pub extras: DialectExtras,
}

/// Reasoning effort of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    /// No reasoning.
    None,
    /// Minimal effort.
    Minimal,
    /// Low effort.
    Low,
    /// Medium effort.
    Medium,
    /// High effort.
    High,
    /// Very high effort.
    Xhigh,
    /// Maximum effort.
    Max,
}

impl ReasoningEffort {
    /// All efforts, lowest first.
    pub const ALL: [Self; 7] =
        [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }

    /// Returns the effort with this name.
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.as_str() == word)
    }
}

/// Thinking mode of Messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingMode {
    /// The model decides how much it thinks.
    Adaptive,
    /// The model thinks only between tool calls.
    BetweenTools,
    /// The model thinks for at most this number of tokens.
    Budget(u32),
    /// Thinking is disabled.
    Disabled,
}
