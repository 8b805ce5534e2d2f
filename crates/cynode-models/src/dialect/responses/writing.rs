use serde_json::{Map, Value, json};

use super::reading::SEALS;
use crate::{
    dialect::{
        Dialect, Target,
        chat::{effort, foreign_choice, schema_fields, unknown_part},
        custom_names, foreign_tool,
        media::data_url,
        seals,
    },
    talk::{
        CustomTool, Document, DocumentSource, Extras, Format, FunctionTool, Image, ImageSource,
        Input, Level, Message, ModelError, Namespace, Output, Part, Reasoning, Request, Role, Text,
        Tool, ToolCall, ToolChoice, ToolResult,
    },
};

const HERE: Dialect = Dialect::Responses;

/// The request for a provider, or why it cannot be said.
pub fn write_request(request: &Request, target: &Target) -> Result<Value, ModelError> {
    sayable(request)?;
    let mut out = Map::new();
    out.insert("model".into(), json!(request.model));
    let (instructions, mut input) = instructions(&request.instructions)?;
    if let Some(instructions) = instructions {
        out.insert("instructions".into(), json!(instructions));
    }
    for (index, message) in request.messages.iter().enumerate() {
        let within = |error: ModelError| error.within(format!("message {index}"));
        items(message, &mut input).map_err(within)?;
    }
    out.insert("input".into(), Value::Array(input));
    let tools = tools(&request.tools, target)?;
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        if let Some(choice) = &request.tool_choice {
            out.insert("tool_choice".into(), tool_choice(choice, &request.tools)?);
        }
        if let Some(parallel) = request.parallel_tool_calls {
            out.insert("parallel_tool_calls".into(), json!(parallel));
        }
    }
    let text = text_config(request);
    if !text.is_empty() {
        out.insert("text".into(), Value::Object(text));
    }
    if let Some(limit) = request.max_output_tokens {
        out.insert("max_output_tokens".into(), json!(limit));
    }
    if let Some(temperature) = &request.temperature {
        out.insert("temperature".into(), json!(temperature));
    }
    if let Some(top_p) = &request.top_p {
        out.insert("top_p".into(), json!(top_p));
    }
    if let Some(reasoning) = reasoning(request)? {
        out.insert("reasoning".into(), reasoning);
        // Nothing is stored, so the client carries the thoughts.
        out.insert("include".into(), json!([SEALS]));
    }
    if let Some(user) = &request.user {
        out.insert("user".into(), json!(user));
    }
    out.insert("store".into(), json!(false));
    if request.stream {
        out.insert("stream".into(), json!(true));
    }
    if let Some(include) = request.extras.get("include") {
        out.insert("include".into(), include.clone());
    }
    request.extras.put_into(Level::Request, HERE, &mut out)?;
    Ok(Value::Object(out))
}

/// Refuses what has no place at all.
fn sayable(request: &Request) -> Result<(), ModelError> {
    if !request.stop.is_empty() {
        return Err(ModelError::bad("words at which the answer ends cannot be said in Responses"));
    }
    if request.seed.is_some() {
        return Err(ModelError::bad("`seed` cannot be said in Responses"));
    }
    Ok(())
}

/// The first instructions have a field of their own; further ones, or marked ones, are a message.
fn instructions(texts: &[Text]) -> Result<(Option<&str>, Vec<Value>), ModelError> {
    let parts =
        texts.iter().map(|words| text(words, "input_text")).collect::<Result<Vec<_>, _>>()?;
    let plain = |part: &Value| part.as_object().is_some_and(|part| part.len() == 2);
    let developer =
        |parts: &[Value]| json!({ "type": "message", "role": "developer", "content": parts });
    match (texts, parts.as_slice()) {
        ([first, ..], [part, rest @ ..]) if plain(part) => {
            let rest = if rest.is_empty() { Vec::new() } else { vec![developer(rest)] };
            Ok((Some(&first.text), rest))
        }
        (_, []) => Ok((None, Vec::new())),
        (_, parts) => Ok((None, vec![developer(parts)])),
    }
}

fn reasoning(request: &Request) -> Result<Option<Value>, ModelError> {
    let Some(thinking) = &request.thinking else { return Ok(None) };
    let mut out = Map::new();
    if let Some(effort) = effort(thinking) {
        out.insert("effort".into(), json!(effort.word()));
    }
    if let Some(summary) = &thinking.summary {
        out.insert("summary".into(), json!(summary));
    }
    thinking.extras.put_into(Level::Thinking, HERE, &mut out)?;
    Ok((!out.is_empty()).then_some(Value::Object(out)))
}

fn text_config(request: &Request) -> Map<String, Value> {
    let mut out = Map::new();
    match &request.output {
        None => {}
        Some(Output::JsonObject) => {
            out.insert("format".into(), json!({ "type": "json_object" }));
        }
        Some(schema @ Output::JsonSchema { .. }) => {
            let mut format = Map::new();
            format.insert("type".into(), json!("json_schema"));
            format.extend(schema_fields(schema));
            out.insert("format".into(), Value::Object(format));
        }
    }
    if let Some(verbosity) = &request.verbosity {
        out.insert("verbosity".into(), json!(verbosity));
    }
    out
}

pub(super) fn tool_choice(choice: &ToolChoice, tools: &[Tool]) -> Result<Value, ModelError> {
    Ok(match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::One(name) => {
            let custom = custom_names(tools).contains(name.as_str());
            json!({ "type": if custom { "custom" } else { "function" }, "name": name })
        }
        ToolChoice::Foreign(foreign) if foreign.from == HERE => foreign.value.clone(),
        ToolChoice::Foreign(foreign) => return Err(foreign_choice(&foreign.value)),
    })
}

pub(super) fn tools(tools: &[Tool], target: &Target) -> Result<Vec<Value>, ModelError> {
    let mut out = Vec::new();
    for tool in tools {
        match tool {
            Tool::Function(tool) => out.push(function(tool)?),
            Tool::Custom(tool) => out.push(custom(tool)?),
            Tool::Namespace(space) => out.push(namespace(space, target)?),
            Tool::Foreign(foreign) if foreign.from == HERE => out.push(foreign.value.clone()),
            Tool::Foreign(foreign) => foreign_tool(&foreign.value, HERE, target)?,
        }
    }
    Ok(out)
}

fn head(kind: &str, name: &str, description: Option<&str>) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".into(), json!(kind));
    out.insert("name".into(), json!(name));
    if let Some(description) = description {
        out.insert("description".into(), json!(description));
    }
    out
}

fn with_tool_extras(mut out: Map<String, Value>, extras: &Extras) -> Result<Value, ModelError> {
    extras.put_into(Level::Tool, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn function(tool: &FunctionTool) -> Result<Value, ModelError> {
    let mut out = head("function", &tool.name, tool.description.as_deref());
    out.insert("parameters".into(), tool.parameters.clone());
    // Left out, it would mean yes here, and no in the other dialects.
    out.insert("strict".into(), json!(tool.strict));
    with_tool_extras(out, &tool.extras)
}

fn custom(tool: &CustomTool) -> Result<Value, ModelError> {
    let mut out = head("custom", &tool.name, tool.description.as_deref());
    match &tool.format {
        None => {}
        Some(Format::Text) => {
            out.insert("format".into(), json!({ "type": "text" }));
        }
        Some(Format::Grammar { syntax, definition }) => {
            let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
            out.insert("format".into(), format);
        }
    }
    with_tool_extras(out, &tool.extras)
}

fn namespace(space: &Namespace, target: &Target) -> Result<Value, ModelError> {
    let mut out = head("namespace", &space.name, space.description.as_deref());
    out.insert("tools".into(), Value::Array(tools(&space.tools, target)?));
    with_tool_extras(out, &space.extras)
}

fn items(message: &Message, out: &mut Vec<Value>) -> Result<(), ModelError> {
    match message.role {
        Role::System => out.push(input_message(message, "developer")?),
        Role::User => out.push(input_message(message, "user")?),
        Role::Assistant | Role::Tool => {
            for part in &message.parts {
                out.extend(item(part)?);
            }
        }
    }
    Ok(())
}

fn input_message(message: &Message, role: &str) -> Result<Value, ModelError> {
    let content = message.parts.iter().map(input_part).collect::<Result<Vec<_>, _>>()?;
    let mut out = Map::new();
    out.insert("type".into(), json!("message"));
    out.insert("role".into(), json!(role));
    out.insert("content".into(), Value::Array(content));
    message.extras.put_into(Level::Message, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn item(part: &Part) -> Result<Option<Value>, ModelError> {
    let said =
        |part: Value| Some(json!({ "type": "message", "role": "assistant", "content": [part] }));
    Ok(match part {
        Part::Text(words) => {
            let part = text(words, "output_text")?;
            let plain = part.as_object().is_some_and(|part| part.len() == 2);
            if plain {
                // As a list, the words would need the id that they once had.
                Some(json!({ "type": "message", "role": "assistant", "content": words.text }))
            } else {
                said(part)
            }
        }
        Part::Refusal(words) => said(json!({ "type": "refusal", "refusal": words })),
        Part::ToolCall(call) => Some(tool_call(call)?),
        Part::ToolResult(result) => Some(tool_result(result)?),
        Part::Reasoning(thought) => reasoning_item(thought),
        Part::Foreign(foreign) if foreign.from == HERE => Some(foreign.value.clone()),
        Part::Foreign(foreign) => return Err(unknown_part(&foreign.value)),
        Part::Image(_) | Part::Document(_) => {
            return Err(ModelError::bad("the model's own words cannot have this content"));
        }
    })
}

fn tool_call(call: &ToolCall) -> Result<Value, ModelError> {
    let mut out = Map::new();
    let (kind, field, text) = match &call.input {
        Input::Json(text) => ("function_call", "arguments", text),
        Input::Free(text) => ("custom_tool_call", "input", text),
    };
    out.insert("type".into(), json!(kind));
    out.insert("call_id".into(), json!(call.id));
    out.insert("name".into(), json!(call.name));
    if let Some(namespace) = &call.namespace {
        out.insert("namespace".into(), json!(namespace));
    }
    out.insert(field.into(), json!(text));
    call.extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn tool_result(result: &ToolResult) -> Result<Value, ModelError> {
    let output = match result.parts.as_slice() {
        [] => json!(""),
        [Part::Text(words)]
            if text(words, "input_text")?.as_object().is_some_and(|part| part.len() == 2) =>
        {
            json!(words.text)
        }
        parts => Value::Array(parts.iter().map(input_part).collect::<Result<_, _>>()?),
    };
    let mut out = Map::new();
    let kind = if result.custom { "custom_tool_call_output" } else { "function_call_output" };
    out.insert("type".into(), json!(kind));
    out.insert("call_id".into(), json!(result.id));
    out.insert("output".into(), output);
    result.extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

/// A thought goes back only to the provider that sealed it: no other could read it.
fn reasoning_item(thought: &Reasoning) -> Option<Value> {
    let seal = thought.seal.as_ref().filter(|seal| seal.by == HERE)?;
    let mut out = Map::new();
    out.insert("type".into(), json!("reasoning"));
    if let Some(id) = &seal.id {
        out.insert("id".into(), json!(id));
    }
    out.insert("summary".into(), super::answer::summary(&thought.text));
    out.insert("encrypted_content".into(), json!(seals::write(seal, HERE)));
    Some(Value::Object(out))
}

fn text(text: &Text, kind: &str) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!(kind));
    out.insert("text".into(), json!(text.text));
    with(out, &text.extras)
}

fn with(mut out: Map<String, Value>, extras: &Extras) -> Result<Value, ModelError> {
    extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

fn input_part(part: &Part) -> Result<Value, ModelError> {
    match part {
        Part::Text(words) => text(words, "input_text"),
        Part::Image(picture) => image(picture),
        Part::Document(paper) => document(paper),
        Part::Foreign(foreign) if foreign.from == HERE => Ok(foreign.value.clone()),
        Part::Foreign(foreign) => Err(unknown_part(&foreign.value)),
        Part::ToolCall(_) | Part::ToolResult(_) | Part::Reasoning(_) | Part::Refusal(_) => {
            Err(ModelError::bad("only the model calls tools, thinks and declines"))
        }
    }
}

fn image(picture: &Image) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("input_image"));
    match &picture.source {
        ImageSource::Url(url) => out.insert("image_url".into(), json!(url)),
        ImageSource::Base64 { media_type, data } => {
            out.insert("image_url".into(), json!(data_url(media_type, data)))
        }
        ImageSource::File { from, id } if *from == HERE => out.insert("file_id".into(), json!(id)),
        ImageSource::File { .. } => {
            return Err(ModelError::bad("an image in a provider's file store cannot be said here"));
        }
    };
    picture.extras.put_into(Level::Part, HERE, &mut out)?;
    out.entry("detail").or_insert_with(|| json!("auto"));
    Ok(Value::Object(out))
}

fn document(paper: &Document) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("input_file"));
    if let Some(name) = &paper.name {
        out.insert("filename".into(), json!(name));
    }
    match &paper.source {
        DocumentSource::Url(url) => out.insert("file_url".into(), json!(url)),
        DocumentSource::Base64 { media_type, data } => {
            if paper.name.is_none() {
                out.insert("filename".into(), json!("document.pdf"));
            }
            out.insert("file_data".into(), json!(data_url(media_type, data)))
        }
        DocumentSource::File { from, id } if *from == HERE => {
            out.insert("file_id".into(), json!(id))
        }
        DocumentSource::File { .. } => {
            return Err(ModelError::bad(
                "a document in a provider's file store cannot be said here",
            ));
        }
        DocumentSource::Text(_) => {
            return Err(ModelError::bad("a document of plain text cannot be said in Responses"));
        }
    };
    with(out, &paper.extras)
}
