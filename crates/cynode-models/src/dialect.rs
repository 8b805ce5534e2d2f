//! The three dialects: how each encodes the types of [`canonical`].
//!
//! Each submodule has the same six functions, a stream decoder and a stream encoder. This module only dispatches to them. To add a concept,
//! add it to [`canonical`]; the compiler then shows where each dialect must encode it.

pub mod canonical;
pub mod chat;
pub mod messages;
pub mod responses;

mod errors;
mod fields;
mod media;
mod order;
mod seals;
mod stream;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

pub use cynode_core::models::Dialect;

pub use self::{
    errors::WireError,
    stream::{StreamDecoder, StreamEncoder},
};
use crate::{
    dialect::canonical::{
        CanonicalRequest, CanonicalResponse, CanonicalTool, ExtrasLevel, FunctionTool, ModelError,
    },
    tools::{flat_tool_name, to_function_tool},
};

/// Capabilities of the provider of a request, and defaults for fields that the request leaves open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one ability of a provider")]
pub struct ProviderCapabilities {
    /// Default output limit. Messages requires a limit, and this one applies if the client set none.
    pub default_max_tokens: u32,
    /// Chat: whether the limit is called `max_completion_tokens` (`OpenAI`) or `max_tokens` (most local servers).
    pub max_completion_tokens: bool,
    /// Chat: whether the reasoning of earlier turns is sent back as `reasoning_content`.
    pub reasoning_content: bool,
    /// Messages: whether the provider supports `output_config.format`.
    pub schema_output: bool,
    /// Whether tools that only the client's dialect supports are dropped instead of rejected.
    pub drop_foreign_tools: bool,
}

impl Default for ProviderCapabilities {
    fn default() -> Self {
        Self {
            default_max_tokens: 8192,
            max_completion_tokens: true,
            reasoning_content: false,
            schema_output: true,
            drop_foreign_tools: false,
        }
    }
}

/// Context of a response: fields that it repeats from its request, and metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseContext {
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Id of the response if the provider set none.
    pub id: String,
    /// Whether a stream ends with the token usage, in dialects where the client chooses.
    pub include_usage: bool,
    /// Request fields that Responses repeats: tool choice, tools, limits.
    pub echo: Map<String, Value>,
}

impl ResponseContext {
    /// Creates the context of a response to `request`, created at `created`.
    pub fn for_request(request: &CanonicalRequest, created: u64, id: impl Into<String>) -> Self {
        Self {
            created,
            id: id.into(),
            include_usage: request.include_usage,
            echo: responses::echo_request_fields(request),
        }
    }
}

/// Operations of a dialect.
pub trait DialectCodec: Copy {
    /// Decodes a client's request.
    fn decode_request(self, body: &Value) -> Result<CanonicalRequest, ModelError>;

    /// Encodes a request for a provider. Fails if the dialect cannot express it.
    fn encode_request(
        self,
        request: &CanonicalRequest,
        target: &ProviderCapabilities,
    ) -> Result<Value, ModelError>;

    /// Decodes a provider's response.
    fn decode_response(self, body: &Value) -> Result<CanonicalResponse, ModelError>;

    /// Encodes a response for a client. Fails if the dialect cannot express it.
    fn encode_response(
        self,
        answer: &CanonicalResponse,
        reply: &ResponseContext,
    ) -> Result<Value, ModelError>;

    /// Decodes a provider's error.
    fn decode_error(
        self,
        status: u16,
        body: &Value,
        retry_after: Option<std::time::Duration>,
    ) -> ModelError;

    /// Encodes an error for a client, before any part of the response was sent.
    fn encode_error(self, error: &ModelError) -> WireError;
}

impl DialectCodec for Dialect {
    fn decode_request(self, body: &Value) -> Result<CanonicalRequest, ModelError> {
        match self {
            Self::Chat => chat::decode_request(body),
            Self::Responses => responses::decode_request(body),
            Self::Messages => messages::decode_request(body),
        }
    }

    fn encode_request(
        self,
        request: &CanonicalRequest,
        target: &ProviderCapabilities,
    ) -> Result<Value, ModelError> {
        match self {
            Self::Chat => chat::encode_request(request, target),
            Self::Responses => responses::encode_request(request, target),
            Self::Messages => messages::encode_request(request, target),
        }
    }

    fn decode_response(self, body: &Value) -> Result<CanonicalResponse, ModelError> {
        match self {
            Self::Chat => chat::decode_response(body),
            Self::Responses => responses::decode_response(body),
            Self::Messages => messages::decode_response(body),
        }
    }

    fn encode_response(
        self,
        answer: &CanonicalResponse,
        reply: &ResponseContext,
    ) -> Result<Value, ModelError> {
        match self {
            Self::Chat => Ok(chat::encode_response(answer, reply)),
            Self::Responses => Ok(responses::encode_response(answer, reply)),
            Self::Messages => messages::encode_response(answer, reply),
        }
    }

    fn decode_error(
        self,
        status: u16,
        body: &Value,
        retry_after: Option<std::time::Duration>,
    ) -> ModelError {
        match self {
            Self::Chat | Self::Responses => errors::decode_openai_error(status, body, retry_after),
            Self::Messages => errors::decode_anthropic_error(status, body, retry_after),
        }
    }

    fn encode_error(self, error: &ModelError) -> WireError {
        errors::encode_wire_error(self, error)
    }
}

/// Returns whether the dialect is one of the two `OpenAI` dialects, which share most of their fields.
pub(crate) const fn is_openai(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Chat | Dialect::Responses)
}

/// Encodes tools for a provider that supports functions only. `function` encodes each one.
fn encode_function_tools(
    tools: &[CanonicalTool],
    namespace: Option<&str>,
    (to, target): (Dialect, &ProviderCapabilities),
    function: fn(&FunctionTool, Option<&str>) -> Result<Value, ModelError>,
) -> Result<Vec<Value>, ModelError> {
    let mut out = Vec::new();
    for tool in tools {
        match tool {
            CanonicalTool::Function(tool) => out.push(function(tool, namespace)?),
            CanonicalTool::Custom(tool) => out.push(function(&to_function_tool(tool), namespace)?),
            CanonicalTool::Namespace(space) => {
                out.extend(encode_function_tools(
                    &space.tools,
                    Some(&space.name),
                    (to, target),
                    function,
                )?);
            }
            CanonicalTool::Foreign(foreign) if foreign.from == to => {
                out.push(foreign.value.clone());
            }
            CanonicalTool::Foreign(foreign) => check_foreign_tool(&foreign.value, to, target)?,
        }
    }
    Ok(out)
}

/// Encodes the fields of one function. The schema gets the field name that the dialect uses.
fn encode_function_fields(
    tool: &FunctionTool,
    namespace: Option<&str>,
    schema: &str,
    to: Dialect,
) -> Result<Map<String, Value>, ModelError> {
    let mut out = Map::new();
    out.insert("name".into(), json!(flat_tool_name(namespace, &tool.name)));
    if let Some(description) = &tool.description {
        out.insert("description".into(), json!(description));
    }
    out.insert(schema.into(), tool.parameters.clone());
    if tool.strict {
        out.insert("strict".into(), json!(true));
    }
    let within = |error: ModelError| error.with_context(format!("tool `{}`", tool.name));
    tool.extras.write_into(ExtrasLevel::Tool, to, &mut out).map_err(within)?;
    Ok(out)
}

/// Checks a tool that `to` does not support: drops it if the capabilities say so, rejects it otherwise.
fn check_foreign_tool(
    value: &Value,
    to: Dialect,
    target: &ProviderCapabilities,
) -> Result<(), ModelError> {
    if target.drop_foreign_tools {
        return Ok(());
    }
    let kind = fields::text_field(value, "type");
    Err(ModelError::bad_request(format!(
        "tools of type `{kind}` cannot be said in {to}, which this model's provider speaks"
    )))
}

/// Returns the names of all custom tools, which are called with free text.
fn custom_tool_names(tools: &[CanonicalTool]) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for tool in tools {
        match tool {
            CanonicalTool::Custom(tool) => {
                names.insert(tool.name.as_str());
            }
            CanonicalTool::Namespace(space) => names.extend(custom_tool_names(&space.tools)),
            CanonicalTool::Function(_) | CanonicalTool::Foreign(_) => {}
        }
    }
    names
}
