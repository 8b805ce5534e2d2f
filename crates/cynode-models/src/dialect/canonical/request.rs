use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::{ContentPart, DialectExtras, ForeignValue, TextPart};

/// What a model is asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CanonicalRequest {
    /// The model's id.
    pub model: String,
    /// What stands before the conversation.
    pub instructions: Vec<TextPart>,
    /// The conversation so far.
    pub messages: Vec<CanonicalMessage>,
    /// What the model may call.
    pub tools: Vec<CanonicalTool>,
    /// Whether it must.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several at once.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer, if it is not free.
    pub output: Option<OutputFormat>,
    /// How long the answer may be.
    pub max_output_tokens: Option<u32>,
    /// How freely words are chosen.
    pub temperature: Option<Number>,
    /// The other way to say it.
    pub top_p: Option<Number>,
    /// Words at which the answer ends.
    pub stop: Vec<String>,
    /// For answers that can be had again.
    pub seed: Option<i64>,
    /// How much the model thinks.
    pub thinking: Option<ThinkingConfig>,
    /// How many words it makes: low, medium, high.
    pub verbosity: Option<String>,
    /// For whom it is asked, as the client puts it.
    pub user: Option<String>,
    /// Whether the answer comes piece by piece.
    pub stream: bool,
    /// Whether the pieces end with what was used.
    pub include_usage: bool,
    /// What only the client's dialect knows.
    #[serde(skip_serializing_if = "DialectExtras::is_empty")]
    pub extras: DialectExtras,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanonicalMessage {
    /// Who speaks.
    pub role: MessageRole,
    /// What is said.
    pub parts: Vec<ContentPart>,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

impl CanonicalMessage {
    /// A turn and nothing else.
    pub fn new(role: MessageRole, parts: Vec<ContentPart>) -> Self {
        Self { role, parts, extras: DialectExtras::default() }
    }
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageRole {
    /// Whoever made the application, in the middle of a conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// Tools: all results of one turn.
    Tool,
}

/// What the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CanonicalTool {
    /// Called with a JSON object.
    Function(FunctionTool),
    /// Called with free text.
    Custom(CustomTool),
    /// Several under one name.
    Namespace(ToolNamespace),
    /// A tool that the provider itself runs or defines.
    Foreign(ForeignValue),
}

/// A tool that is called with a JSON object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionTool {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// Whether the provider holds the model to the schema.
    pub strict: bool,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// A tool that is called with free text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomTool {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// What the text must look like.
    pub format: Option<CustomToolFormat>,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Tools under one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolNamespace {
    /// Its name.
    pub name: String,
    /// What its tools are for.
    pub description: Option<String>,
    /// Its tools.
    pub tools: Vec<CanonicalTool>,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// What the text for a custom tool must look like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomToolFormat {
    /// Anything.
    Text,
    /// What a grammar allows.
    Grammar {
        /// `lark` or `regex`.
        syntax: String,
        /// The grammar.
        definition: String,
    },
}

/// Whether a tool must be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// As the model likes.
    Auto,
    /// None may be called.
    None,
    /// At least one must be called.
    Required,
    /// This one must be called.
    One(String),
    /// A choice that only its own dialect knows.
    Foreign(ForeignValue),
}

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// Any JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema {
        /// What the form is called.
        name: Option<String>,
        /// What it is for.
        description: Option<String>,
        /// The schema.
        schema: Value,
        /// Whether the provider holds the model to it.
        strict: bool,
    },
}

/// How much the model thinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThinkingConfig {
    /// How hard.
    pub effort: Option<ReasoningEffort>,
    /// In which way, where the dialect can say it.
    pub mode: Option<ThinkingMode>,
    /// How the thoughts are told, where the dialect can say it.
    pub summary: Option<String>,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty")]
    pub extras: DialectExtras,
}

/// How hard the model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// Hardly.
    Minimal,
    /// A little.
    Low,
    /// Somewhat.
    Medium,
    /// Hard.
    High,
    /// Harder.
    Xhigh,
    /// As hard as it can.
    Max,
}

impl ReasoningEffort {
    /// Every effort, least first.
    pub const ALL: [Self; 7] =
        [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// The word on the wire.
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

    /// The effort called `word`.
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.as_str() == word)
    }
}

/// The way of thinking in Messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingMode {
    /// As the model sees fit.
    Adaptive,
    /// Only between calls of tools.
    BetweenTools,
    /// At most so many tokens.
    Budget(u32),
    /// Not at all.
    Disabled,
}
