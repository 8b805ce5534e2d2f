//! Upper bound of the input tokens of a request, known before the request is sent. A budget reserves its cost.

use serde_json::Value;

/// Maximum number of tokens that a provider adds around each message and tool: role markers, names, the frame of a schema.
const OVERHEAD_TOKENS_PER_OBJECT: u64 = 64;

/// Maximum number of tokens that a provider adds once per request: its own instructions for tools and for JSON.
const OVERHEAD_TOKENS_PER_REQUEST: u64 = 2048;

/// Maximum number of tokens of an image or a recording, whatever its size in bytes.
const MAX_MEDIA_TOKENS: u64 = 50_000;

/// Fields that refer to content outside the request.
const EXTERNAL_CONTENT_FIELDS: [&str; 6] =
    ["previous_response_id", "conversation", "prompt", "file_id", "file_url", "file_data"];

/// Returns the maximum number of input tokens of a body, for a model with a context window of `context` tokens. Every tokenizer in use
/// makes at most one token of a byte. The number of objects in the body limits the tokens that the provider adds. Content outside the body
/// (a stored conversation, the pages of a document) can fill the whole context window.
pub fn max_input_tokens(body: &Value, context: u64) -> u64 {
    let mut bound = OVERHEAD_TOKENS_PER_REQUEST;
    if add_token_bound(body, false, &mut bound) { bound.min(context) } else { context }
}

/// Fields that hold schemas. Field names inside a schema are arbitrary.
const SCHEMA_FIELDS: [&str; 5] = ["tools", "functions", "response_format", "text", "output_config"];

/// Adds the maximum number of tokens of a value to `bound`. Returns `false` if it has no limit. Inside a schema, field names have no
/// special meaning.
fn add_token_bound(value: &Value, schema: bool, bound: &mut u64) -> bool {
    match value {
        Value::Null | Value::Bool(_) => *bound += 1,
        Value::Number(_) => *bound += 24,
        Value::String(text) => *bound += text.len() as u64 + 2,
        Value::Array(items) => {
            return items.iter().all(|item| add_token_bound(item, schema, bound));
        }
        Value::Object(fields) => {
            *bound += OVERHEAD_TOKENS_PER_OBJECT;
            let kind = fields.get("type").and_then(Value::as_str);
            match kind.filter(|_| !schema) {
                Some("document" | "input_file" | "file") => return false,
                Some("image" | "image_url" | "input_image" | "input_audio") => {
                    *bound += MAX_MEDIA_TOKENS;
                }
                _ => {}
            }
            for (name, value) in fields {
                if !schema && EXTERNAL_CONTENT_FIELDS.contains(&name.as_str()) && !value.is_null() {
                    return false;
                }
                *bound += name.len() as u64 + 4;
                let schema =
                    schema || (SCHEMA_FIELDS.contains(&name.as_str()) && !value.is_string());
                if !add_token_bound(value, schema, bound) {
                    return false;
                }
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn the_bound_is_never_less_than_the_bytes_of_all_texts(texts in proptest::collection::vec(".{0,200}", 0..20)) {
            let bytes: usize = texts.iter().map(String::len).sum();
            let messages: Vec<_> =
                texts.iter().map(|text| json!({ "role": "user", "content": text })).collect();
            let body = json!({ "model": "m", "messages": messages });
            prop_assert!(max_input_tokens(&body, u64::MAX) >= (bytes + 64 * texts.len()) as u64);
            prop_assert_eq!(max_input_tokens(&body, 100), 100);
        }
    }

    #[test]
    fn an_image_counts_as_a_large_one_however_few_bytes_it_has() {
        for image in [
            json!({ "type": "image_url", "image_url": { "url": "https://example.org/a.png" } }),
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } }),
            json!({ "type": "image", "source": { "type": "base64", "data": "AAAA" } }),
            json!({ "type": "input_image", "image_url": "data:image/png;base64,AAAA" }),
        ] {
            assert!(max_input_tokens(&image, u64::MAX) > MAX_MEDIA_TOKENS, "{image}");
        }
    }

    #[test]
    fn what_is_not_in_the_body_may_fill_all_that_the_model_reads() {
        for body in [
            json!({ "previous_response_id": "r" }),
            json!({ "prompt": { "id": "p" } }),
            json!({ "messages": [{ "content": [{ "type": "document", "source": { "data": "AAAA" } }] }] }),
            json!({ "input": [{ "type": "input_file", "file_id": "f" }] }),
        ] {
            assert_eq!(max_input_tokens(&body, 200_000), 200_000, "{body}");
        }
        assert!(max_input_tokens(&json!({ "previous_response_id": null }), 200_000) < 200_000);
        let tool = json!({ "tools": [{ "type": "function", "parameters": { "properties": {
            "prompt": { "type": "string" }, "file_id": { "type": "file" } } } }] });
        assert!(max_input_tokens(&tool, 200_000) < 200_000, "a parameter may have any name");
    }
}
