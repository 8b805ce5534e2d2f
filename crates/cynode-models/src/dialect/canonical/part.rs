use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DialectExtras;
use crate::dialect::Dialect;

/// One part of a message or of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentPart {
    /// Text.
    Text(TextPart),
    /// An image.
    Image(ImagePart),
    /// A document.
    Document(DocumentPart),
    /// A tool call of the model.
    ToolCall(ToolCall),
    /// The result of a tool call.
    ToolResult(ToolResult),
    /// Reasoning of the model.
    Reasoning(ReasoningPart),
    /// Text of a refusal.
    Refusal(String),
    /// A value that only its own dialect supports.
    Foreign(ForeignValue),
}

impl ContentPart {
    /// Creates a part of plain text.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::Text(TextPart::from_text(text))
    }
}

/// Text of instructions and messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextPart {
    /// The text.
    pub text: String,
    /// Extra fields of the dialect, such as a cache marker.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

impl TextPart {
    /// Creates a text without extra fields.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self { text: text.into(), extras: DialectExtras::default() }
    }
}

/// An image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImagePart {
    /// Location of the image.
    pub source: ImageSource,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Location of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageSource {
    /// A URL that the provider fetches.
    Url(String),
    /// Embedded in the message.
    Base64 {
        /// Media type, such as `image/png`.
        media_type: String,
        /// The bytes in base64.
        data: String,
    },
    /// A file at the provider: only that provider can resolve it.
    File {
        /// Dialect of the provider.
        from: Dialect,
        /// Id of the file.
        id: String,
    },
}

/// A document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentPart {
    /// Location of the document.
    pub source: DocumentSource,
    /// Name of the document.
    pub name: Option<String>,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Location of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentSource {
    /// A URL that the provider fetches.
    Url(String),
    /// Embedded in the message.
    Base64 {
        /// Media type, such as `application/pdf`.
        media_type: String,
        /// The bytes in base64.
        data: String,
    },
    /// Embedded in the message, as text.
    Text(String),
    /// A file at the provider: only that provider can resolve it.
    File {
        /// Dialect of the provider.
        from: Dialect,
        /// Id of the file.
        id: String,
    },
}

/// A tool call, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id of the call, which the result refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Namespace of the tool, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Input of the tool.
    pub input: ToolInput,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Input of a tool, as the text that the model wrote. It is never re-serialized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolInput {
    /// A JSON object, if the model made no mistake.
    Json(String),
    /// Free text, for a custom tool.
    Free(String),
}

/// Result of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Id of the call.
    pub id: String,
    /// Text, images, documents.
    pub parts: Vec<ContentPart>,
    /// Whether the tool failed. Only Messages can express it.
    pub is_error: bool,
    /// Whether the result comes from a custom tool.
    pub custom: bool,
    /// Extra fields of the dialect.
    #[serde(skip_serializing_if = "DialectExtras::is_empty", default)]
    pub extras: DialectExtras,
}

/// Reasoning of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningPart {
    /// The reasoning, or a summary of it. Empty if the provider does not reveal it.
    pub text: String,
    /// Seal by which the provider recognizes its own reasoning.
    pub seal: Option<ReasoningSeal>,
}

/// A provider's seal of a reasoning part: a signature or encrypted content. Only that provider can read or verify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningSeal {
    /// Dialect of the provider that made the seal.
    pub by: Dialect,
    /// Id of the reasoning part, if it has one.
    pub id: Option<String>,
    /// Data of the seal.
    pub data: String,
    /// Whether the seal is the only place that holds the reasoning.
    pub redacted: bool,
}

/// A value that only its own dialect supports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignValue {
    /// The dialect of the value.
    pub from: Dialect,
    /// The value, unchanged.
    pub value: Value,
}
