use serde_json::{Map, Value, json};

use crate::{
    dialect::{
        Dialect, Target,
        chat::{foreign_choice, unknown_part},
        function_fields, functions,
    },
    talk::{
        Document, DocumentSource, Effort, Extras, FunctionTool, Image, ImageSource, Input, Level,
        Message, Mode, ModelError, Output, Part, Reasoning, Request, Role, Text, ToolCall,
        ToolChoice, ToolResult,
    },
    tools::{as_arguments, flat_name},
};

const HERE: Dialect = Dialect::Messages;

/// The request for a provider, or why it cannot be said.
pub fn write_request(request: &Request, target: &Target) -> Result<Value, ModelError> {
    sayable(request)?;
    let mut out = Map::new();
    out.insert("model".into(), json!(request.model));
    let limit = request.max_output_tokens.unwrap_or(target.default_max_tokens);
    out.insert("max_tokens".into(), json!(limit));
    if !request.instructions.is_empty() {
        let system = request.instructions.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        out.insert("system".into(), shortened(system));
    }
    out.insert("messages".into(), Value::Array(messages(&request.messages)?));
    let tools = functions(&request.tools, None, (HERE, target), function)?;
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        let parallel = request.parallel_tool_calls;
        if let Some(choice) = tool_choice(request.tool_choice.as_ref(), parallel)? {
            out.insert("tool_choice".into(), choice);
        }
    }
    let config = output_config(request, target)?;
    if !config.is_empty() {
        out.insert("output_config".into(), Value::Object(config));
    }
    if let Some(thinking) = thinking(request, limit)? {
        out.insert("thinking".into(), thinking);
    }
    if let Some(temperature) = &request.temperature {
        out.insert("temperature".into(), json!(temperature));
    }
    if let Some(top_p) = &request.top_p {
        out.insert("top_p".into(), json!(top_p));
    }
    if !request.stop.is_empty() {
        out.insert("stop_sequences".into(), json!(request.stop));
    }
    if let Some(user) = &request.user {
        out.insert("metadata".into(), json!({ "user_id": user }));
    }
    if request.stream {
        out.insert("stream".into(), json!(true));
    }
    request.extras.put_into(Level::Request, HERE, &mut out)?;
    Ok(Value::Object(out))
}

/// Refuses what has no place at all.
fn sayable(request: &Request) -> Result<(), ModelError> {
    if request.seed.is_some() {
        return Err(ModelError::bad("`seed` cannot be said in Messages"));
    }
    let hot = request.temperature.as_ref().and_then(|number| number.as_f64());
    if hot.is_some_and(|temperature| temperature > 1.0) {
        return Err(ModelError::bad("a `temperature` above 1 cannot be said in Messages"));
    }
    if request.output == Some(Output::JsonObject) {
        return Err(ModelError::bad(
            "an answer of any JSON object cannot be said in Messages: give a JSON schema",
        ));
    }
    Ok(())
}

fn output_config(request: &Request, target: &Target) -> Result<Map<String, Value>, ModelError> {
    let mut out = Map::new();
    match request.thinking.as_ref().and_then(|thinking| thinking.effort) {
        None | Some(Effort::None) => {}
        // The least that the dialect has a word for.
        Some(Effort::Minimal | Effort::Low) => {
            out.insert("effort".into(), json!("low"));
        }
        Some(effort) => {
            out.insert("effort".into(), json!(effort.word()));
        }
    }
    if let Some(Output::JsonSchema { schema, .. }) = &request.output {
        if !target.schema_output {
            return Err(ModelError::bad("this model's provider knows no answers by a JSON schema"));
        }
        out.insert("format".into(), json!({ "type": "json_schema", "schema": schema }));
    }
    Ok(out)
}

fn thinking(request: &Request, limit: u32) -> Result<Option<Value>, ModelError> {
    let Some(thinking) = &request.thinking else { return Ok(None) };
    let mut out = Map::new();
    let mode = match (thinking.mode, thinking.effort) {
        (Some(mode), _) => mode,
        (None, Some(Effort::None)) => Mode::Disabled,
        (None, Some(_)) => Mode::Adaptive,
        (None, None) => return Ok(None),
    };
    let kind = match mode {
        Mode::Adaptive => "adaptive",
        Mode::BetweenTools => "between_tools",
        Mode::Budget(_) => "enabled",
        Mode::Disabled => "disabled",
    };
    out.insert("type".into(), json!(kind));
    if let Mode::Budget(budget) = mode {
        let Some(budget) = super::budget_within(budget.into(), limit.into()) else {
            return Ok(None);
        };
        out.insert("budget_tokens".into(), json!(budget));
    }
    thinking.extras.put_into(Level::Thinking, HERE, &mut out)?;
    Ok(Some(Value::Object(out)))
}

fn tool_choice(
    choice: Option<&ToolChoice>,
    parallel: Option<bool>,
) -> Result<Option<Value>, ModelError> {
    let mut out = match choice {
        None if parallel == Some(false) => json!({ "type": "auto" }),
        None => return Ok(None),
        Some(ToolChoice::Auto) => json!({ "type": "auto" }),
        Some(ToolChoice::None) => return Ok(Some(json!({ "type": "none" }))),
        Some(ToolChoice::Required) => json!({ "type": "any" }),
        Some(ToolChoice::One(name)) => json!({ "type": "tool", "name": name }),
        Some(ToolChoice::Foreign(foreign)) if foreign.from == HERE => foreign.value.clone(),
        Some(ToolChoice::Foreign(foreign)) => return Err(foreign_choice(&foreign.value)),
    };
    if let Some(parallel) = parallel {
        out["disable_parallel_tool_use"] = json!(!parallel);
    }
    Ok(Some(out))
}

fn function(tool: &FunctionTool, namespace: Option<&str>) -> Result<Value, ModelError> {
    function_fields(tool, namespace, "input_schema", HERE).map(Value::Object)
}

/// The turns. Results of tools and the user's words that follow them are one message.
fn messages(messages: &[Message]) -> Result<Vec<Value>, ModelError> {
    let mut out: Vec<(Role, Map<String, Value>, Vec<Value>)> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let within = |error: ModelError| error.within(format!("message {index}"));
        let mut blocks = Vec::new();
        for part in &message.parts {
            blocks.extend(block(part, message.role).map_err(within)?);
        }
        // Empty messages are refused, and say nothing.
        if blocks.is_empty() {
            continue;
        }
        let mut head = Map::new();
        head.insert("role".into(), json!(wire_role(message.role)));
        message.extras.put_into(Level::Message, HERE, &mut head).map_err(within)?;
        match out.last_mut() {
            Some((Role::Tool, _, last)) if message.role == Role::User => last.extend(blocks),
            _ => out.push((message.role, head, blocks)),
        }
    }
    Ok(out
        .into_iter()
        .map(|(_, mut head, blocks)| {
            head.insert("content".into(), shortened(blocks));
            Value::Object(head)
        })
        .collect())
}

const fn wire_role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User | Role::Tool => "user",
        Role::Assistant => "assistant",
    }
}

/// One plain text as text, anything else as a list.
fn shortened(mut blocks: Vec<Value>) -> Value {
    if let [Value::Object(only)] = blocks.as_mut_slice()
        && only.len() == 2
        && only.get("type").is_some_and(|kind| kind == "text")
        && let Some(text) = only.remove("text")
    {
        return text;
    }
    Value::Array(blocks)
}

fn block(part: &Part, role: Role) -> Result<Option<Value>, ModelError> {
    match part {
        // An empty text is refused, and says nothing.
        Part::Text(words) if words.text.is_empty() => Ok(None),
        Part::Text(words) => text(words).map(Some),
        Part::Image(picture) => image(picture).map(Some),
        Part::Document(paper) => document(paper).map(Some),
        Part::ToolCall(call) => tool_use(call).map(Some),
        Part::ToolResult(result) => tool_result(result).map(Some),
        Part::Reasoning(thought) => Ok(thinking_block(thought)),
        Part::Refusal(words) if role == Role::Assistant => text(&Text::plain(words)).map(Some),
        Part::Refusal(_) => Err(ModelError::bad("only the model declines")),
        Part::Foreign(foreign) if foreign.from == HERE => Ok(Some(foreign.value.clone())),
        Part::Foreign(foreign) => Err(unknown_part(&foreign.value)),
    }
}

fn text(text: &Text) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("text"));
    out.insert("text".into(), json!(text.text));
    with(out, &text.extras)
}

fn with(mut out: Map<String, Value>, extras: &Extras) -> Result<Value, ModelError> {
    extras.put_into(Level::Part, HERE, &mut out)?;
    Ok(Value::Object(out))
}

/// A thought goes back only to the provider that sealed it: no other could check it.
fn thinking_block(thought: &Reasoning) -> Option<Value> {
    let seal = thought.seal.as_ref().filter(|seal| seal.by == HERE)?;
    Some(super::answer::thinking_block(&thought.text, Some(seal)))
}

fn image(picture: &Image) -> Result<Value, ModelError> {
    let source = match &picture.source {
        ImageSource::Url(url) => json!({ "type": "url", "url": url }),
        ImageSource::Base64 { media_type, data } => {
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
        ImageSource::File { from, id } if *from == HERE => json!({ "type": "file", "file_id": id }),
        ImageSource::File { .. } => {
            return Err(ModelError::bad("an image in a provider's file store cannot be said here"));
        }
    };
    let mut out = Map::new();
    out.insert("type".into(), json!("image"));
    out.insert("source".into(), source);
    with(out, &picture.extras)
}

fn document(paper: &Document) -> Result<Value, ModelError> {
    let source = match &paper.source {
        DocumentSource::Url(url) => json!({ "type": "url", "url": url }),
        DocumentSource::Base64 { media_type, data } if media_type == "application/pdf" => {
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
        DocumentSource::Base64 { media_type, .. } => {
            return Err(ModelError::bad(format!(
                "a document of type `{media_type}` cannot be said in Messages"
            )));
        }
        DocumentSource::Text(words) => {
            json!({ "type": "text", "media_type": "text/plain", "data": words })
        }
        DocumentSource::File { from, id } if *from == HERE => {
            json!({ "type": "file", "file_id": id })
        }
        DocumentSource::File { .. } => {
            return Err(ModelError::bad(
                "a document in a provider's file store cannot be said here",
            ));
        }
    };
    let mut out = Map::new();
    out.insert("type".into(), json!("document"));
    out.insert("source".into(), source);
    if let Some(name) = &paper.name {
        out.insert("title".into(), json!(name));
    }
    with(out, &paper.extras)
}

fn tool_use(call: &ToolCall) -> Result<Value, ModelError> {
    let input = match &call.input {
        Input::Json(text) => super::answer::input_object(&call.name, text)?,
        Input::Free(text) => super::answer::input_object(&call.name, &as_arguments(text))?,
    };
    let mut out = Map::new();
    out.insert("type".into(), json!("tool_use"));
    out.insert("id".into(), json!(clean_id(&call.id)));
    out.insert("name".into(), json!(flat_name(call.namespace.as_deref(), &call.name)));
    out.insert("input".into(), input);
    with(out, &call.extras)
}

/// Ids have letters, digits, `_` and `-` only; other providers' ids may have more.
fn clean_id(id: &str) -> String {
    let clean = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    id.chars().map(|letter| if clean(letter) { letter } else { '_' }).collect()
}

fn tool_result(result: &ToolResult) -> Result<Value, ModelError> {
    let mut content = Vec::new();
    for part in &result.parts {
        content.extend(block(part, Role::Tool)?);
    }
    let mut out = Map::new();
    out.insert("type".into(), json!("tool_result"));
    out.insert("tool_use_id".into(), json!(clean_id(&result.id)));
    if !content.is_empty() {
        out.insert("content".into(), shortened(content));
    }
    if result.is_error {
        out.insert("is_error".into(), json!(true));
    }
    with(out, &result.extras)
}
