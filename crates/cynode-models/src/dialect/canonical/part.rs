use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DialectExtras;
use crate::dialect::Dialect;

/// One piece of a message or of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentPart {
    /// Words.
    Text(TextPart),
    /// A picture.
    Image(ImagePart),
    /// A document.
    Document(DocumentPart),
    /// The model wants a tool to be called.
    ToolCall(ToolCall),
    /// What a tool gave back.
    ToolResult(ToolResult),
    /// What the model thought on the way.
    Reasoning(ReasoningPart),
    /// The words with which the model declined.
    Refusal(String),
    /// Something that only its own dialect understands.
    Foreign(ForeignValue),
}

impl ContentPart {
    /// Plain words.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::Text(TextPart::from_text(text))
    }
}

/// Words, as the instructions and messages are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextPart {
    /// The words.
    pub text: String,
    /// What the dialect adds, such as a mark for caching.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

impl TextPart {
    /// Words and nothing else.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self { text: text.into(), extras: DialectExtras::default() }
    }
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImagePart {
    /// Where it is.
    pub source: ImageSource,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Where a picture is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageSource {
    /// At an address that the provider fetches.
    Url(String),
    /// In the message.
    Base64 {
        /// Such as `image/png`.
        media_type: String,
        /// The bytes.
        data: String,
    },
    /// In the provider's own store: only that provider knows it.
    File {
        /// Whose store.
        from: Dialect,
        /// Its name there.
        id: String,
    },
}

/// A document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentPart {
    /// Where it is.
    pub source: DocumentSource,
    /// What it is called.
    pub name: Option<String>,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Where a document is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentSource {
    /// At an address that the provider fetches.
    Url(String),
    /// In the message.
    Base64 {
        /// Such as `application/pdf`.
        media_type: String,
        /// The bytes.
        data: String,
    },
    /// In the message, as words.
    Text(String),
    /// In the provider's own store: only that provider knows it.
    File {
        /// Whose store.
        from: Dialect,
        /// Its name there.
        id: String,
    },
}

/// A call of a tool, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the result refers to.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The group that the tool is in, if it is in one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// What the tool is given.
    pub input: ToolInput,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// What a tool is given, as text: it is the model's, and nobody here writes it anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolInput {
    /// A JSON object, if the model made no mistake.
    Json(String),
    /// Free text, for a custom tool.
    Free(String),
}

/// What a tool gave back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call.
    pub id: String,
    /// Words, pictures, documents.
    pub parts: Vec<ContentPart>,
    /// Whether the tool failed. Only Messages can say it.
    pub is_error: bool,
    /// Whether a custom tool gave it.
    pub custom: bool,
    /// What the dialect adds.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// What the model thought on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningPart {
    /// The thought, or a summary of it; empty when the provider keeps it to itself.
    pub text: String,
    /// With what the provider knows its own thought again.
    pub seal: Option<ReasoningSeal>,
}

/// A provider's mark on a thought. Nobody but that provider can read or check it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningSeal {
    /// The dialect of the provider that made it.
    pub by: Dialect,
    /// The name of the thought, where there is one.
    pub id: Option<String>,
    /// The mark itself.
    pub data: String,
    /// Whether the thought is inside the mark and nowhere else.
    pub redacted: bool,
}

/// Something that only its own dialect understands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignValue {
    /// The dialect.
    pub from: Dialect,
    /// The thing, as it was said.
    pub value: Value,
}
