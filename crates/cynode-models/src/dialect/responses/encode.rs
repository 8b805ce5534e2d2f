use serde_json::{Map, Value, json};

use super::decode::INCLUDE_ENCRYPTED_REASONING;
use crate::dialect::{
    Dialect, ProviderCapabilities,
    canonical::{
        CanonicalMessage, CanonicalRequest, CanonicalTool, ContentPart, CustomTool,
        CustomToolFormat, DialectExtras, DocumentPart, DocumentSource, ExtrasLevel, FunctionTool,
        ImagePart, ImageSource, MessageRole, ModelError, OutputFormat, ReasoningPart, TextPart,
        ToolCall, ToolChoice, ToolInput, ToolNamespace, ToolResult,
    },
    chat::{encode_schema_fields, foreign_choice_error, foreign_part_error, resolve_effort},
    check_foreign_tool, custom_tool_names,
    media::data_url,
    seals,
};

const DIALECT: Dialect = Dialect::Responses;

/// Encodes a request for a provider. Fails if the dialect cannot express it.
pub fn encode_request(
    request: &CanonicalRequest,
    target: &ProviderCapabilities,
) -> Result<Value, ModelError> {
    check_encodable(request)?;
    let mut out = Map::new();
    out.insert("model".into(), json!(request.model));
    let (instructions, mut input) = encode_instructions(&request.instructions)?;
    if let Some(instructions) = instructions {
        out.insert("instructions".into(), json!(instructions));
    }
    for (index, message) in request.messages.iter().enumerate() {
        let within = |error: ModelError| error.with_context(format!("message {index}"));
        encode_items(message, &mut input).map_err(within)?;
    }
    out.insert("input".into(), Value::Array(input));
    let tools = encode_tools(&request.tools, target)?;
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        if let Some(choice) = &request.tool_choice {
            out.insert("tool_choice".into(), encode_tool_choice(choice, &request.tools)?);
        }
        if let Some(parallel) = request.parallel_tool_calls {
            out.insert("parallel_tool_calls".into(), json!(parallel));
        }
    }
    let text = encode_text_config(request);
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
    if let Some(reasoning) = encode_reasoning_config(request)? {
        out.insert("reasoning".into(), reasoning);
        // The provider stores nothing, so the client carries the reasoning.
        out.insert("include".into(), json!([INCLUDE_ENCRYPTED_REASONING]));
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
    request.extras.write_into(ExtrasLevel::Request, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

/// Rejects fields that the dialect cannot express.
fn check_encodable(request: &CanonicalRequest) -> Result<(), ModelError> {
    if !request.stop.is_empty() {
        return Err(ModelError::bad_request(
            "words at which the answer ends cannot be said in Responses",
        ));
    }
    if request.seed.is_some() {
        return Err(ModelError::bad_request("`seed` cannot be said in Responses"));
    }
    Ok(())
}

/// Encodes the instructions. The first one has a field of its own; further ones, or marked ones, become a message.
fn encode_instructions(texts: &[TextPart]) -> Result<(Option<&str>, Vec<Value>), ModelError> {
    let parts = texts
        .iter()
        .map(|words| encode_text(words, "input_text"))
        .collect::<Result<Vec<_>, _>>()?;
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

fn encode_reasoning_config(request: &CanonicalRequest) -> Result<Option<Value>, ModelError> {
    let Some(thinking) = &request.thinking else { return Ok(None) };
    let mut out = Map::new();
    if let Some(effort) = resolve_effort(thinking) {
        out.insert("effort".into(), json!(effort.as_str()));
    }
    if let Some(summary) = &thinking.summary {
        out.insert("summary".into(), json!(summary));
    }
    thinking.extras.write_into(ExtrasLevel::Thinking, DIALECT, &mut out)?;
    Ok((!out.is_empty()).then_some(Value::Object(out)))
}

fn encode_text_config(request: &CanonicalRequest) -> Map<String, Value> {
    let mut out = Map::new();
    match &request.output {
        None => {}
        Some(OutputFormat::JsonObject) => {
            out.insert("format".into(), json!({ "type": "json_object" }));
        }
        Some(schema @ OutputFormat::JsonSchema { .. }) => {
            let mut format = Map::new();
            format.insert("type".into(), json!("json_schema"));
            format.extend(encode_schema_fields(schema));
            out.insert("format".into(), Value::Object(format));
        }
    }
    if let Some(verbosity) = &request.verbosity {
        out.insert("verbosity".into(), json!(verbosity));
    }
    out
}

pub(super) fn encode_tool_choice(
    choice: &ToolChoice,
    tools: &[CanonicalTool],
) -> Result<Value, ModelError> {
    Ok(match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::One(name) => {
            let custom = custom_tool_names(tools).contains(name.as_str());
            json!({ "type": if custom { "custom" } else { "function" }, "name": name })
        }
        ToolChoice::Foreign(foreign) if foreign.from == DIALECT => foreign.value.clone(),
        ToolChoice::Foreign(foreign) => return Err(foreign_choice_error(&foreign.value)),
    })
}

pub(super) fn encode_tools(
    tools: &[CanonicalTool],
    target: &ProviderCapabilities,
) -> Result<Vec<Value>, ModelError> {
    let mut out = Vec::new();
    for tool in tools {
        match tool {
            CanonicalTool::Function(tool) => out.push(encode_function(tool)?),
            CanonicalTool::Custom(tool) => out.push(encode_custom_tool(tool)?),
            CanonicalTool::Namespace(space) => out.push(encode_namespace(space, target)?),
            CanonicalTool::Foreign(foreign) if foreign.from == DIALECT => {
                out.push(foreign.value.clone());
            }
            CanonicalTool::Foreign(foreign) => check_foreign_tool(&foreign.value, DIALECT, target)?,
        }
    }
    Ok(out)
}

fn tool_header(kind: &str, name: &str, description: Option<&str>) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("type".into(), json!(kind));
    out.insert("name".into(), json!(name));
    if let Some(description) = description {
        out.insert("description".into(), json!(description));
    }
    out
}

fn with_tool_extras(
    mut out: Map<String, Value>,
    extras: &DialectExtras,
) -> Result<Value, ModelError> {
    extras.write_into(ExtrasLevel::Tool, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_function(tool: &FunctionTool) -> Result<Value, ModelError> {
    let mut out = tool_header("function", &tool.name, tool.description.as_deref());
    out.insert("parameters".into(), tool.parameters.clone());
    // An absent field means true here, and false in the other dialects.
    out.insert("strict".into(), json!(tool.strict));
    with_tool_extras(out, &tool.extras)
}

fn encode_custom_tool(tool: &CustomTool) -> Result<Value, ModelError> {
    let mut out = tool_header("custom", &tool.name, tool.description.as_deref());
    match &tool.format {
        None => {}
        Some(CustomToolFormat::Text) => {
            out.insert("format".into(), json!({ "type": "text" }));
        }
        Some(CustomToolFormat::Grammar { syntax, definition }) => {
            let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
            out.insert("format".into(), format);
        }
    }
    with_tool_extras(out, &tool.extras)
}

fn encode_namespace(
    space: &ToolNamespace,
    target: &ProviderCapabilities,
) -> Result<Value, ModelError> {
    let mut out = tool_header("namespace", &space.name, space.description.as_deref());
    out.insert("tools".into(), Value::Array(encode_tools(&space.tools, target)?));
    with_tool_extras(out, &space.extras)
}

fn encode_items(message: &CanonicalMessage, out: &mut Vec<Value>) -> Result<(), ModelError> {
    match message.role {
        MessageRole::System => out.push(encode_input_message(message, "developer")?),
        MessageRole::User => out.push(encode_input_message(message, "user")?),
        MessageRole::Assistant | MessageRole::Tool => {
            for part in &message.parts {
                out.extend(encode_item(part)?);
            }
        }
    }
    Ok(())
}

fn encode_input_message(message: &CanonicalMessage, role: &str) -> Result<Value, ModelError> {
    let content = message.parts.iter().map(encode_input_part).collect::<Result<Vec<_>, _>>()?;
    let mut out = Map::new();
    out.insert("type".into(), json!("message"));
    out.insert("role".into(), json!(role));
    out.insert("content".into(), Value::Array(content));
    message.extras.write_into(ExtrasLevel::Message, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_item(part: &ContentPart) -> Result<Option<Value>, ModelError> {
    let said =
        |part: Value| Some(json!({ "type": "message", "role": "assistant", "content": [part] }));
    Ok(match part {
        ContentPart::Text(words) => {
            let part = encode_text(words, "output_text")?;
            let plain = part.as_object().is_some_and(|part| part.len() == 2);
            if plain {
                // As a list, the text would need its original id.
                Some(json!({ "type": "message", "role": "assistant", "content": words.text }))
            } else {
                said(part)
            }
        }
        ContentPart::Refusal(words) => said(json!({ "type": "refusal", "refusal": words })),
        ContentPart::ToolCall(call) => Some(encode_tool_call(call)?),
        ContentPart::ToolResult(result) => Some(encode_tool_result(result)?),
        ContentPart::Reasoning(thought) => encode_reasoning_item(thought),
        ContentPart::Foreign(foreign) if foreign.from == DIALECT => Some(foreign.value.clone()),
        ContentPart::Foreign(foreign) => return Err(foreign_part_error(&foreign.value)),
        ContentPart::Image(_) | ContentPart::Document(_) => {
            return Err(ModelError::bad_request("the model's own words cannot have this content"));
        }
    })
}

fn encode_tool_call(call: &ToolCall) -> Result<Value, ModelError> {
    let mut out = Map::new();
    let (kind, field, text) = match &call.input {
        ToolInput::Json(text) => ("function_call", "arguments", text),
        ToolInput::Free(text) => ("custom_tool_call", "input", text),
    };
    out.insert("type".into(), json!(kind));
    out.insert("call_id".into(), json!(call.id));
    out.insert("name".into(), json!(call.name));
    if let Some(namespace) = &call.namespace {
        out.insert("namespace".into(), json!(namespace));
    }
    out.insert(field.into(), json!(text));
    call.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_tool_result(result: &ToolResult) -> Result<Value, ModelError> {
    let output = match result.parts.as_slice() {
        [] => json!(""),
        [ContentPart::Text(words)]
            if encode_text(words, "input_text")?
                .as_object()
                .is_some_and(|part| part.len() == 2) =>
        {
            json!(words.text)
        }
        parts => Value::Array(parts.iter().map(encode_input_part).collect::<Result<_, _>>()?),
    };
    let mut out = Map::new();
    let kind = if result.custom { "custom_tool_call_output" } else { "function_call_output" };
    out.insert("type".into(), json!(kind));
    out.insert("call_id".into(), json!(result.id));
    out.insert("output".into(), output);
    result.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

/// Encodes reasoning for the provider that sealed it. Other providers could not read it, so they do not get it.
fn encode_reasoning_item(thought: &ReasoningPart) -> Option<Value> {
    let seal = thought.seal.as_ref().filter(|seal| seal.by == DIALECT)?;
    let mut out = Map::new();
    out.insert("type".into(), json!("reasoning"));
    if let Some(id) = &seal.id {
        out.insert("id".into(), json!(id));
    }
    out.insert("summary".into(), super::answer::encode_summary(&thought.text));
    out.insert("encrypted_content".into(), json!(seals::encode_seal(seal, DIALECT)));
    Some(Value::Object(out))
}

fn encode_text(text: &TextPart, kind: &str) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!(kind));
    out.insert("text".into(), json!(text.text));
    with_part_extras(out, &text.extras)
}

fn with_part_extras(
    mut out: Map<String, Value>,
    extras: &DialectExtras,
) -> Result<Value, ModelError> {
    extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_input_part(part: &ContentPart) -> Result<Value, ModelError> {
    match part {
        ContentPart::Text(words) => encode_text(words, "input_text"),
        ContentPart::Image(picture) => encode_image(picture),
        ContentPart::Document(paper) => encode_document(paper),
        ContentPart::Foreign(foreign) if foreign.from == DIALECT => Ok(foreign.value.clone()),
        ContentPart::Foreign(foreign) => Err(foreign_part_error(&foreign.value)),
        ContentPart::ToolCall(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Reasoning(_)
        | ContentPart::Refusal(_) => {
            Err(ModelError::bad_request("only the model calls tools, thinks and declines"))
        }
    }
}

fn encode_image(picture: &ImagePart) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("input_image"));
    match &picture.source {
        ImageSource::Url(url) => out.insert("image_url".into(), json!(url)),
        ImageSource::Base64 { media_type, data } => {
            out.insert("image_url".into(), json!(data_url(media_type, data)))
        }
        ImageSource::File { from, id } if *from == DIALECT => {
            out.insert("file_id".into(), json!(id))
        }
        ImageSource::File { .. } => {
            return Err(ModelError::bad_request(
                "an image in a provider's file store cannot be said here",
            ));
        }
    };
    picture.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    out.entry("detail").or_insert_with(|| json!("auto"));
    Ok(Value::Object(out))
}

fn encode_document(paper: &DocumentPart) -> Result<Value, ModelError> {
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
        DocumentSource::File { from, id } if *from == DIALECT => {
            out.insert("file_id".into(), json!(id))
        }
        DocumentSource::File { .. } => {
            return Err(ModelError::bad_request(
                "a document in a provider's file store cannot be said here",
            ));
        }
        DocumentSource::Text(_) => {
            return Err(ModelError::bad_request(
                "a document of plain text cannot be said in Responses",
            ));
        }
    };
    with_part_extras(out, &paper.extras)
}
