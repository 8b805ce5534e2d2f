//! The most that a question can cost, known before it is asked.

use serde_json::Value;

/// Tokens that a provider may add around each message and tool: marks of roles, names, the frame of a schema.
const OVERHEAD_TOKENS_PER_OBJECT: u64 = 64;

/// Tokens that a provider may add once: its own instructions for tools and for JSON.
const OVERHEAD_TOKENS_PER_REQUEST: u64 = 2048;

/// Tokens of an image or a recording, however few bytes it has.
const MAX_MEDIA_TOKENS: u64 = 50_000;

/// Fields by which a request means more than it says.
const EXTERNAL_CONTENT_FIELDS: [&str; 6] =
    ["previous_response_id", "conversation", "prompt", "file_id", "file_url", "file_data"];

/// The most tokens that a body can be read as, for a model that reads at most `context`. Every tokenizer in use makes at most
/// one token of a byte; what the provider adds by itself is bounded by the number of things in the body. What is not in the
/// body (a stored conversation, the pages of a document) can fill all that the model reads.
pub fn max_input_tokens(body: &Value, context: u64) -> u64 {
    let mut bound = OVERHEAD_TOKENS_PER_REQUEST;
    if add_token_bound(body, false, &mut bound) { bound.min(context) } else { context }
}

/// Fields that hold schemas, in which any name may stand for anything.
const SCHEMA_FIELDS: [&str; 5] = ["tools", "functions", "response_format", "text", "output_config"];

/// Adds what a value may be read as; `false` when that cannot be told. In a schema names mean nothing.
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
