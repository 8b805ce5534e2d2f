//! The three dialects: how each says what [`crate::talk`] has words for.
//!
//! Each submodule has the same six functions and two machines, a stream reader and a stream writer; this module only
//! chooses between them. To add a word, add it to [`crate::talk`] and let the compiler show where each dialect must say it.

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
    stream::{StreamReader, StreamWriter},
};
use crate::{
    talk::{Answer, FunctionTool, Level, ModelError, Request, Tool},
    tools::{as_function, flat_name},
};

/// What the provider behind a request can do, and what is chosen where the request leaves it open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one ability of a provider")]
pub struct Target {
    /// Messages must name a limit; this is the one if the client named none.
    pub default_max_tokens: u32,
    /// Chat: whether the limit is called `max_completion_tokens` (`OpenAI`) or `max_tokens` (most local servers).
    pub max_completion_tokens: bool,
    /// Chat: whether thoughts of earlier turns are given back as `reasoning_content`.
    pub reasoning_content: bool,
    /// Messages: whether `output_config.format` is known.
    pub schema_output: bool,
    /// Whether tools that only the client's dialect knows are left out instead of refused.
    pub drop_foreign_tools: bool,
}

impl Default for Target {
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

/// What an answer repeats of its request, and what it needs beside the model's words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// Seconds since 1970.
    pub created: u64,
    /// The id to use if the provider gave none.
    pub id: String,
    /// Whether a stream ends with what was used, where the dialect leaves it to the client.
    pub include_usage: bool,
    /// What Responses repeats: choice of tools, tools, limits.
    pub echo: Map<String, Value>,
}

impl Reply {
    /// The reply to `request`, made at `created`.
    pub fn to(request: &Request, created: u64, id: impl Into<String>) -> Self {
        Self {
            created,
            id: id.into(),
            include_usage: request.include_usage,
            echo: responses::echo(request),
        }
    }
}

/// What can be done in a dialect.
pub trait Speak: Copy {
    /// What a client asks.
    fn read_request(self, body: &Value) -> Result<Request, ModelError>;

    /// The request for a provider, or why it cannot be said.
    fn write_request(self, request: &Request, target: &Target) -> Result<Value, ModelError>;

    /// What a provider answered.
    fn read_answer(self, body: &Value) -> Result<Answer, ModelError>;

    /// The answer for a client, or why it cannot be said.
    fn write_answer(self, answer: &Answer, reply: &Reply) -> Result<Value, ModelError>;

    /// What a provider's error means.
    fn read_error(
        self,
        status: u16,
        body: &Value,
        retry_after: Option<std::time::Duration>,
    ) -> ModelError;

    /// An error for a client, before anything has been answered.
    fn write_error(self, error: &ModelError) -> WireError;
}

impl Speak for Dialect {
    fn read_request(self, body: &Value) -> Result<Request, ModelError> {
        match self {
            Self::Chat => chat::read_request(body),
            Self::Responses => responses::read_request(body),
            Self::Messages => messages::read_request(body),
        }
    }

    fn write_request(self, request: &Request, target: &Target) -> Result<Value, ModelError> {
        match self {
            Self::Chat => chat::write_request(request, target),
            Self::Responses => responses::write_request(request, target),
            Self::Messages => messages::write_request(request, target),
        }
    }

    fn read_answer(self, body: &Value) -> Result<Answer, ModelError> {
        match self {
            Self::Chat => chat::read_answer(body),
            Self::Responses => responses::read_answer(body),
            Self::Messages => messages::read_answer(body),
        }
    }

    fn write_answer(self, answer: &Answer, reply: &Reply) -> Result<Value, ModelError> {
        match self {
            Self::Chat => Ok(chat::write_answer(answer, reply)),
            Self::Responses => Ok(responses::write_answer(answer, reply)),
            Self::Messages => messages::write_answer(answer, reply),
        }
    }

    fn read_error(
        self,
        status: u16,
        body: &Value,
        retry_after: Option<std::time::Duration>,
    ) -> ModelError {
        match self {
            Self::Chat | Self::Responses => errors::read_openai(status, body, retry_after),
            Self::Messages => errors::read_anthropic(status, body, retry_after),
        }
    }

    fn write_error(self, error: &ModelError) -> WireError {
        errors::write(self, error)
    }
}

/// Whether it is one of the two that share most of their words.
pub(crate) const fn is_openai(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Chat | Dialect::Responses)
}

/// Tools for a provider that knows functions only, each said by `function`.
fn functions(
    tools: &[Tool],
    namespace: Option<&str>,
    (to, target): (Dialect, &Target),
    function: fn(&FunctionTool, Option<&str>) -> Result<Value, ModelError>,
) -> Result<Vec<Value>, ModelError> {
    let mut out = Vec::new();
    for tool in tools {
        match tool {
            Tool::Function(tool) => out.push(function(tool, namespace)?),
            Tool::Custom(tool) => out.push(function(&as_function(tool), namespace)?),
            Tool::Namespace(space) => {
                out.extend(functions(&space.tools, Some(&space.name), (to, target), function)?);
            }
            Tool::Foreign(foreign) if foreign.from == to => out.push(foreign.value.clone()),
            Tool::Foreign(foreign) => foreign_tool(&foreign.value, to, target)?,
        }
    }
    Ok(out)
}

/// The fields of one function, whose schema is under the name that the dialect has for it.
fn function_fields(
    tool: &FunctionTool,
    namespace: Option<&str>,
    schema: &str,
    to: Dialect,
) -> Result<Map<String, Value>, ModelError> {
    let mut out = Map::new();
    out.insert("name".into(), json!(flat_name(namespace, &tool.name)));
    if let Some(description) = &tool.description {
        out.insert("description".into(), json!(description));
    }
    out.insert(schema.into(), tool.parameters.clone());
    if tool.strict {
        out.insert("strict".into(), json!(true));
    }
    let within = |error: ModelError| error.within(format!("tool `{}`", tool.name));
    tool.extras.put_into(Level::Tool, to, &mut out).map_err(within)?;
    Ok(out)
}

/// What becomes of a tool that `to` does not know: left out if the target says so, else refused.
fn foreign_tool(value: &Value, to: Dialect, target: &Target) -> Result<(), ModelError> {
    if target.drop_foreign_tools {
        return Ok(());
    }
    let kind = fields::word(value, "type");
    Err(ModelError::bad(format!(
        "tools of type `{kind}` cannot be said in {to}, which this model's provider speaks"
    )))
}

/// The names of all tools that are called with free text.
fn custom_names(tools: &[Tool]) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for tool in tools {
        match tool {
            Tool::Custom(tool) => {
                names.insert(tool.name.as_str());
            }
            Tool::Namespace(space) => names.extend(custom_names(&space.tools)),
            Tool::Function(_) | Tool::Foreign(_) => {}
        }
    }
    names
}
