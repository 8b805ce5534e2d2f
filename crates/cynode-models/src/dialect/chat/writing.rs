use serde_json::{Map, Value, json};

use crate::{
    dialect::{Dialect, Target, function_fields, functions, media::data_url},
    talk::{
        Document, DocumentSource, Effort, FunctionTool, Image, ImageSource, Input, Level, Message,
        Mode, ModelError, Output, Part, Request, Role, Text, Thinking, ToolCall, ToolChoice,
        ToolResult,
    },
    tools::{as_arguments, flat_name},
};

const HERE: Dialect = Dialect::Chat;

/// The request for a provider, or why it cannot be said.
pub fn write_request(request: &Request, target: &Target) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("model".into(), json!(request.model));
    out.insert("messages".into(), Value::Array(messages(request, target)?));
    let tools = functions(&request.tools, None, (HERE, target), function)?;
    let has_tools = !tools.is_empty();
    if has_tools {
        out.insert("tools".into(), Value::Array(tools));
    }
    if let Some(choice) = request.tool_choice.as_ref().filter(|_| has_tools) {
        out.insert("tool_choice".into(), tool_choice(choice)?);
    }
    if let Some(parallel) = request.parallel_tool_calls.filter(|_| has_tools) {
        out.insert("parallel_tool_calls".into(), json!(parallel));
    }
    if let Some(output) = &request.output {
        out.insert("response_format".into(), response_format(output));
    }
    if let Some(limit) = request.max_output_tokens {
        let name =
            if target.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" };
        out.insert(name.into(), json!(limit));
    }
    if let Some(temperature) = &request.temperature {
        out.insert("temperature".into(), json!(temperature));
    }
    if let Some(top_p) = &request.top_p {
        out.insert("top_p".into(), json!(top_p));
    }
    if !request.stop.is_empty() {
        out.insert("stop".into(), json!(request.stop));
    }
    if let Some(seed) = request.seed {
        out.insert("seed".into(), json!(seed));
    }
    if let Some(effort) = request.thinking.as_ref().and_then(effort) {
        out.insert("reasoning_effort".into(), json!(effort.word()));
    }
    if let Some(verbosity) = &request.verbosity {
        out.insert("verbosity".into(), json!(verbosity));
    }
    if let Some(user) = &request.user {
        out.insert("user".into(), json!(user));
    }
    if request.stream {
        out.insert("stream".into(), json!(true));
        // What was used must be known, whether or not the client asked.
        out.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    request.extras.put_into(Level::Request, HERE, &mut out)?;
    Ok(Value::Object(out))
}

/// How hard to think, in a dialect that has nothing but this word for it.
pub(in crate::dialect) fn effort(thinking: &Thinking) -> Option<Effort> {
    let by_mode = match thinking.mode {
        Some(Mode::Budget(0..=4096)) => Some(Effort::Low),
        Some(Mode::Budget(4097..=16384)) => Some(Effort::Medium),
        Some(Mode::Budget(_)) => Some(Effort::High),
        // The provider's own default: not every model can be told to stop thinking.
        Some(Mode::Adaptive | Mode::BetweenTools | Mode::Disabled) | None => None,
    };
    thinking.effort.or(by_mode)
}

fn response_format(output: &Output) -> Value {
    match output {
        Output::JsonObject => json!({ "type": "json_object" }),
        Output::JsonSchema { .. } => {
            json!({ "type": "json_schema", "json_schema": schema_fields(output) })
        }
    }
}

/// Name, description, schema and strictness, as both `OpenAI` dialects have them.
pub(in crate::dialect) fn schema_fields(output: &Output) -> Map<String, Value> {
    let mut out = Map::new();
    if let Output::JsonSchema { name, description, schema, strict } = output {
        out.insert("name".into(), json!(name.as_deref().unwrap_or("answer")));
        if let Some(description) = description {
            out.insert("description".into(), json!(description));
        }
        out.insert("schema".into(), schema.clone());
        out.insert("strict".into(), json!(strict));
    }
    out
}

fn tool_choice(choice: &ToolChoice) -> Result<Value, ModelError> {
    Ok(match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::One(name) => json!({ "type": "function", "function": { "name": name } }),
        ToolChoice::Foreign(foreign) if foreign.from == HERE => foreign.value.clone(),
        ToolChoice::Foreign(foreign) => return Err(foreign_choice(&foreign.value)),
    })
}

/// The refusal of a choice that only its own dialect knows.
pub(in crate::dialect) fn foreign_choice(choice: &Value) -> ModelError {
    let kind = choice.get("type").and_then(Value::as_str).unwrap_or("another");
    ModelError::bad(format!(
        "`tool_choice` of type `{kind}` cannot be said in the dialect of this model's provider"
    ))
}

fn function(tool: &FunctionTool, namespace: Option<&str>) -> Result<Value, ModelError> {
    let fields = function_fields(tool, namespace, "parameters", HERE)?;
    Ok(json!({ "type": "function", "function": fields }))
}

fn messages(request: &Request, target: &Target) -> Result<Vec<Value>, ModelError> {
    let mut out = Vec::new();
    if !request.instructions.is_empty() {
        let content = texts(request.instructions.iter())?;
        out.push(json!({ "role": "system", "content": content }));
    }
    for (index, message) in request.messages.iter().enumerate() {
        let within = |error: ModelError| error.within(format!("message {index}"));
        match message.role {
            Role::System => out.push(plain(message, "system").map_err(within)?),
            Role::User => out.push(plain(message, "user").map_err(within)?),
            Role::Assistant => out.push(assistant(message, target).map_err(within)?),
            Role::Tool => {
                for part in &message.parts {
                    out.push(tool_message(part).map_err(within)?);
                }
            }
        }
    }
    Ok(out)
}

/// One plain text as text, anything else as a list.
fn texts<'a>(parts: impl ExactSizeIterator<Item = &'a Text>) -> Result<Value, ModelError> {
    let mut out = parts.map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(shortened(&mut out))
}

fn shortened(parts: &mut Vec<Value>) -> Value {
    if let [Value::Object(only)] = parts.as_mut_slice()
        && only.len() == 2
        && only.get("type").is_some_and(|kind| kind == "text")
        && let Some(text) = only.remove("text")
    {
        return text;
    }
    Value::Array(std::mem::take(parts))
}

fn text(text: &Text) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("text"));
    out.insert("text".into(), json!(text.text));
    text.extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn plain(message: &Message, role: &str) -> Result<Value, ModelError> {
    let mut parts = message.parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let content = if parts.is_empty() { json!("") } else { shortened(&mut parts) };
    let mut out = Map::new();
    out.insert("role".into(), json!(role));
    out.insert("content".into(), content);
    message.extras.put_into(Level::Message, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn part(part: &Part) -> Result<Value, ModelError> {
    match part {
        Part::Text(words) => text(words),
        Part::Image(picture) => image(picture),
        Part::Document(paper) => document(paper),
        Part::Foreign(foreign) if foreign.from == HERE => Ok(foreign.value.clone()),
        Part::Foreign(foreign) => Err(unknown_part(&foreign.value)),
        Part::ToolCall(_) | Part::ToolResult(_) | Part::Reasoning(_) | Part::Refusal(_) => {
            Err(ModelError::bad("only the model calls tools, thinks and declines"))
        }
    }
}

/// The refusal of content that only its own dialect knows.
pub(in crate::dialect) fn unknown_part(value: &Value) -> ModelError {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("unknown");
    ModelError::bad(format!(
        "content of type `{kind}` cannot be said in the dialect of this model's provider"
    ))
}

fn image(picture: &Image) -> Result<Value, ModelError> {
    let url = match &picture.source {
        ImageSource::Url(url) => url.clone(),
        ImageSource::Base64 { media_type, data } => data_url(media_type, data),
        ImageSource::File { .. } => {
            return Err(ModelError::bad("an image in a provider's file store cannot be said here"));
        }
    };
    let mut extras = Map::new();
    picture.extras.put_into(Level::Part, HERE, &mut extras)?;
    let mut inner = Map::new();
    inner.insert("url".into(), json!(url));
    if let Some(detail) = extras.shift_remove("detail") {
        inner.insert("detail".into(), detail);
    }
    let mut out = Map::new();
    out.insert("type".into(), json!("image_url"));
    out.insert("image_url".into(), Value::Object(inner));
    out.extend(extras);
    Ok(Value::Object(out))
}

fn document(paper: &Document) -> Result<Value, ModelError> {
    let mut inner = Map::new();
    match &paper.source {
        DocumentSource::Base64 { media_type, data } => {
            let name = paper.name.as_deref().unwrap_or("document.pdf");
            inner.insert("filename".into(), json!(name));
            inner.insert("file_data".into(), json!(data_url(media_type, data)));
        }
        DocumentSource::File { from, id } if *from == HERE => {
            inner.insert("file_id".into(), json!(id));
        }
        DocumentSource::File { .. } => {
            return Err(ModelError::bad(
                "a document in a provider's file store cannot be said here",
            ));
        }
        DocumentSource::Url(_) => {
            return Err(ModelError::bad(
                "a document by its address cannot be said in Chat Completions",
            ));
        }
        DocumentSource::Text(_) => {
            return Err(ModelError::bad(
                "a document of plain text cannot be said in Chat Completions",
            ));
        }
    }
    let mut out = Map::new();
    out.insert("type".into(), json!("file"));
    out.insert("file".into(), Value::Object(inner));
    paper.extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn assistant(message: &Message, target: &Target) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("role".into(), json!("assistant"));
    let (mut content, mut calls) = (Vec::new(), Vec::new());
    let (mut refusal, mut thoughts) = (String::new(), String::new());
    for part in &message.parts {
        match part {
            Part::Text(words) => content.push(text(words)?),
            Part::Refusal(words) => refusal.push_str(words),
            Part::Reasoning(thought) => thoughts.push_str(&thought.text),
            Part::ToolCall(call) => calls.push(tool_call(call)?),
            Part::Image(_) | Part::Document(_) | Part::ToolResult(_) => {
                return Err(ModelError::bad("the model's own words cannot have this content"));
            }
            Part::Foreign(foreign) if foreign.from == HERE => content.push(foreign.value.clone()),
            Part::Foreign(foreign) => return Err(unknown_part(&foreign.value)),
        }
    }
    let content = if content.is_empty() { Value::Null } else { shortened(&mut content) };
    out.insert("content".into(), content);
    if target.reasoning_content && !thoughts.is_empty() {
        out.insert("reasoning_content".into(), json!(thoughts));
    }
    if !refusal.is_empty() {
        out.insert("refusal".into(), json!(refusal));
    }
    if !calls.is_empty() {
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    message.extras.put_into(Level::Message, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn tool_call(call: &ToolCall) -> Result<Value, ModelError> {
    let arguments = match &call.input {
        Input::Json(text) => text.clone(),
        Input::Free(text) => as_arguments(text),
    };
    let name = flat_name(call.namespace.as_deref(), &call.name);
    let mut out = Map::new();
    out.insert("id".into(), json!(call.id));
    out.insert("type".into(), json!("function"));
    out.insert("function".into(), json!({ "name": name, "arguments": arguments }));
    call.extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn tool_message(part: &Part) -> Result<Value, ModelError> {
    let result = match part {
        Part::ToolResult(result) => result,
        Part::Foreign(foreign) => return Err(unknown_part(&foreign.value)),
        _ => return Err(ModelError::bad("among the results of tools there is something else")),
    };
    let mut out = Map::new();
    out.insert("role".into(), json!("tool"));
    out.insert("tool_call_id".into(), json!(result.id));
    out.insert("content".into(), result_content(result)?);
    result.extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn result_content(result: &ToolResult) -> Result<Value, ModelError> {
    let mut parts = Vec::new();
    for part in &result.parts {
        match part {
            Part::Text(words) => parts.push(text(words)?),
            Part::Image(_) | Part::Document(_) => {
                return Err(ModelError::bad(
                    "images and documents in a tool's result cannot be said in Chat Completions",
                ));
            }
            Part::Foreign(foreign) => return Err(unknown_part(&foreign.value)),
            Part::ToolCall(_) | Part::ToolResult(_) | Part::Reasoning(_) | Part::Refusal(_) => {
                return Err(ModelError::bad("a tool's result cannot have this content"));
            }
        }
    }
    Ok(if parts.is_empty() { json!("") } else { shortened(&mut parts) })
}
