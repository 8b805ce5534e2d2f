//! Models: registry, routing, ceilings, secrets, usage; asked through the real front doors.

use axum::http::Method;
use cynode_app::{ClientSource, platform::stream_limits::MAX_CHAT_STREAMS_PER_ACCOUNT};
use cynode_core::{ids::ProjectId, roles::UserRole};
use cynode_models::dialect::canonical::TokenUsage;
use cynode_testkit::{
    Client, Reply, TestApp,
    forges::{ForgeKind, REPOSITORY, TOKEN, TestForge},
    provider::{Behaviour, Ends, TestProvider},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};

/// A provider that answers by a script.
pub(crate) async fn scripted(admin: &Client, name: &str, local: bool, rules: Value) {
    let body = json!({ "kind": "scripted", "local": local, "script": { "rules": rules } });
    admin.put(&format!("/v1/providers/{name}"), body).await.expect(200);
}

/// A model with a route to each of the providers; every token costs a unit's millionth.
pub(crate) async fn model(admin: &Client, id: &str, providers: &[&str], more: Value) {
    let prices = json!({ "input": 1_000_000, "cached": 1_000_000, "cache_write": 1_000_000, "output": 1_000_000 });
    let routes: Vec<_> = providers
        .iter()
        .map(|name| json!({ "provider": name, "upstream": "theirs", "prices": prices }))
        .collect();
    let mut body =
        json!({ "context_tokens": 100_000, "max_output_tokens": 1000, "routes": routes });
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    admin.put(&format!("/v1/model-registry/{id}"), body).await.expect(200);
}

pub(crate) fn says(text: &str) -> Value {
    json!([{ "answer": { "text": text, "usage": { "input": 10, "output": 5 } } }])
}

pub(crate) fn chat(model: &str, text: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": text }] })
}

pub(crate) async fn ask(client: &Client, body: Value) -> Reply {
    client.post("/v1/chat/completions", body).await
}

/// Asks, and gives the answer as it comes, once it has begun.
pub(crate) async fn open(client: &Client, body: Value) -> axum::body::Body {
    let response = client.raw(Method::POST, "/v1/chat/completions", Some(body.to_string())).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    body
}

pub(crate) fn words(reply: &Reply) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// What the ceilings of a scope say: spent, held.
pub(crate) async fn spent(client: &Client, query: &str) -> Vec<(i64, i64)> {
    let found = client.get(&format!("/v1/budgets{query}")).await.expect(200).json();
    let items = found["items"].as_array().unwrap().clone();
    let number = |value: &Value| value.as_i64().unwrap();
    items
        .iter()
        .map(|item| (number(&item["spent_micros"]), number(&item["reserved_micros"])))
        .collect()
}

#[tokio::test]
async fn the_same_answer_comes_in_each_of_the_three_dialects() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("Hello.")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let reply = ask(&admin, chat("small", "hi")).await.expect(200);
    assert_eq!(words(&reply), "Hello.");
    assert_eq!(reply.json()["usage"]["total_tokens"], 15);
    let body = json!({ "model": "small", "input": "hi" });
    let reply = admin.post("/v1/responses", body).await.expect(200).json();
    assert_eq!(reply["output"][0]["content"][0]["text"], "Hello.");
    let body = json!({ "model": "small", "max_tokens": 100, "messages": [{ "role": "user", "content": "hi" }] });
    let reply = admin.post("/v1/messages", body).await.expect(200).json();
    assert_eq!(reply["content"][0]["text"], "Hello.");
    assert_eq!(reply["usage"]["output_tokens"], 5);
}

#[tokio::test]
async fn the_list_has_the_models_the_tiers_and_the_manager_and_agents_see_only_their_own() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({ "tier": "fast" })).await;
    model(&admin, "off", &["tape"], json!({ "enabled": false })).await;
    let listed = admin.get("/v1/models").await.expect(200).json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["cynodeai.fast", "cynodeai.pm", "small"], "S000-073");
    app.anonymous().get("/v1/models").await.expect(401);
    let agent = agent(&app, &admin, &["small"]).await;
    let listed = agent.client.get("/v1/models").await.expect(200).json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["small"]);
    model(&admin, "small", &["tape"], json!({ "tier": "deep" })).await;
    let listed = admin.get("/v1/models").await.expect(200).json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    let wanted = ["cynodeai.deep", "cynodeai.pm", "small"];
    assert_eq!(ids, wanted, "S000-076: other models behind it, and the id is the same");
}

pub(crate) struct Agent {
    pub(crate) client: Client,
    project: ProjectId,
    task: String,
}

/// An agent that works on a task, at the internal port.
pub(crate) async fn agent(app: &TestApp, by: &Client, models: &[&str]) -> Agent {
    agent_of(app, by, models, json!({})).await
}

async fn agent_of(app: &TestApp, by: &Client, models: &[&str], budget: Value) -> Agent {
    let project = app.project(by, "web").await;
    let body = json!({ "project_id": project, "description": "work", "budget": budget });
    let task = by.post("/v1/tasks", body).await.expect(201).text("id");
    let body =
        json!({ "role": "developer", "project_id": project, "task_id": task, "models": models });
    let issued = by.post("/v1/agent-tokens", body).await.expect(201);
    let client = app.at_internal_port().with_token(&issued.text("token"));
    Agent { client, project, task }
}

#[tokio::test]
async fn an_id_that_nobody_listed_is_an_error_in_the_clients_dialect_and_never_another_model() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    for id in ["other", "Small", "small ", "cynodeai.PM", "cynodeai.pm ", "cynodeai.deep", ""] {
        let reply = ask(&admin, chat(id, "hi")).await.expect(404).json();
        assert_eq!(reply["error"]["code"], "model_not_found", "S000-017, S000-031: {id}");
        let body = json!({ "model": id, "max_tokens": 1, "messages": [{ "role": "user", "content": "hi" }] });
        let reply = admin.post("/v1/messages", body).await.expect(404).json();
        assert_eq!(reply["error"]["type"], "not_found_error", "{id}");
    }
    let reply = ask(&admin, json!({ "messages": [] })).await.expect(400).json();
    assert_eq!(reply["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn only_a_chat_with_exactly_the_managers_id_reaches_the_manager() {
    let manager = TestProvider::serve(Behaviour::default()).await;
    let app = TestApp::with_manager(&manager.url()).await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let person = admin.with_header("openai-project", &project.to_string());
    scripted(&admin, "tape", true, says("Hello.")).await;
    model(&admin, "small", &["tape"], json!({ "tier": "fast" })).await;
    let listed = person.get("/v1/models").await.expect(200).json();
    for one in listed["data"].as_array().unwrap() {
        let id = one["id"].as_str().unwrap();
        if id != "cynodeai.pm" {
            let reply = ask(&person, chat(id, "hi")).await.expect(200);
            assert_eq!(words(&reply), "Hello.", "S000-030, S000-031: {id}");
        }
    }
    for id in ["cynodeai.PM", "CYNODEAI.pm", " cynodeai.pm", "cynodeai.pm ", "cynodeai.pm2", "pm"] {
        let reply = ask(&person, chat(id, "hi")).await.expect(404).json();
        assert_eq!(reply["error"]["code"], "model_not_found", "S000-017, S000-031: {id}");
    }
    let nameless = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let chosen = |id: &str, version: i64| json!({ "value": id, "expected_version": version });
    admin.put("/v1/settings/models.default", chosen("small", 0)).await.expect(200);
    let reply = ask(&person, nameless.clone()).await.expect(200);
    assert_eq!(words(&reply), "Hello.", "S000-017: the default is another model");
    let handoffs = "SELECT count(*) FROM handoffs";
    let asked = (manager.sent().len(), app.db.number(handoffs).await);
    assert_eq!(asked, (0, 0), "S000-017, S000-029, S000-031: the manager was not asked");

    admin.put("/v1/settings/models.default", chosen("cynodeai.pm", 1)).await.expect(200);
    for body in [chat("cynodeai.pm", "hi"), nameless] {
        let reply = ask(&person, body).await.expect(200);
        assert_eq!(words(&reply), "Hello there", "S000-016, S000-017: the manager's own words");
    }
    let sent = manager.sent();
    assert_eq!(sent.len(), 2, "S000-016");
    let thread = person.get("/v1/chat/threads").await.expect(200).json();
    let thread = &thread["items"][0]["thread_id"];
    for handoff in sent.iter().map(|sent| &sent.body) {
        assert_eq!(handoff["request"]["kind"], "chat", "S000-013");
        let context = &handoff["context"];
        let ids = [&context["user_id"], &context["project"]["id"], &context["thread_id"]];
        let expected = json!([admin.user.unwrap(), project, thread]);
        assert_eq!(json!(ids), expected, "S000-014: who, where and in which thread");
    }
}

#[tokio::test]
async fn a_message_to_the_manager_joins_the_conversation_that_it_names() {
    let manager = TestProvider::serve(Behaviour::default()).await;
    let app = TestApp::with_manager(&manager.url()).await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let other = app.project(&admin, "other").await;
    let person = admin.with_header("openai-project", &project.to_string());
    let named = |thread: &str| person.with_header("x-cynode-thread", thread);
    let say = async |client: &Client, text: &str| ask(client, chat("cynodeai.pm", text)).await;
    say(&person, "one").await.expect(200);
    app.clock.advance(time::Duration::seconds(1));
    say(&named("new"), "two").await.expect(200);
    let listed = person.get("/v1/chat/threads").await.expect(200).json();
    let threads = listed["items"].as_array().unwrap();
    let titles: Vec<_> = threads.iter().map(|thread| &thread["title"]).collect();
    assert_eq!(json!(titles), json!(["two", "one"]));
    let oldest = threads[1]["thread_id"].as_str().unwrap();
    // Long after a message without a name would begin a conversation of its own.
    let idle = json!({ "value": 720, "expected_version": 0 });
    admin.put("/v1/settings/auth.session_idle_minutes", idle).await.expect(200);
    app.clock.advance(time::Duration::hours(3));
    say(&named(oldest), "three").await.expect(200);
    let turns = person.get(&format!("/v1/chat/threads/{oldest}/messages")).await.expect(200).json();
    let words: Vec<_> =
        turns["items"].as_array().unwrap().iter().map(|turn| &turn["content"]).collect();
    assert_eq!(json!(words), json!(["one", "Hello there", "three", "Hello there"]));
    // A conversation of somebody else, of another project or of nobody does not exist.
    let stranger = app.user("second", Some(UserRole::Admin)).await;
    let stranger = stranger.with_header("openai-project", &project.to_string());
    say(&stranger.with_header("x-cynode-thread", oldest), "hi").await.expect(404);
    let elsewhere = named(oldest).with_header("openai-project", &other.to_string());
    say(&elsewhere, "hi").await.expect(404);
    say(&named("thr_0192d5c8b6f07cc1a1a3c2b4d5e6f708"), "hi").await.expect(404);
    say(&named("oldest"), "hi").await.expect(400);
    assert_eq!(app.db.number("SELECT count(*) FROM chat_threads").await, 2);
}

#[tokio::test]
async fn the_manager_is_listed_and_says_why_it_cannot_answer_yet() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let reply = ask(&admin, chat("cynodeai.pm", "hi")).await.expect(503).json();
    assert_eq!(reply["error"]["code"], "project_manager_not_configured");
    // Without a model the configured default is asked, and only then the manager.
    ask(&admin, json!({ "messages": [] })).await.expect(400);
    let body = json!({ "value": "cynodeai.pm", "expected_version": 0 });
    admin.put("/v1/settings/models.default", body).await.expect(200);
    let reply = ask(&admin, json!({ "messages": [] })).await.expect(503).json();
    assert_eq!(reply["error"]["code"], "project_manager_not_configured");
}

#[tokio::test]
async fn each_port_lets_in_its_own_and_an_agent_opens_only_the_models_of_its_token() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    model(&admin, "large", &["tape"], json!({})).await;
    let agent = agent(&app, &admin, &["small"]).await;
    ask(&agent.client, chat("small", "hi")).await.expect(200);
    let reply = ask(&agent.client, chat("large", "hi")).await.expect(403).json();
    assert_eq!(reply["error"]["code"], "model_not_allowed");
    let token = agent.client.token().unwrap();
    ask(&app.anonymous().with_token(&token), chat("small", "hi")).await.expect(401);
    let session = admin.token().unwrap();
    ask(&app.at_internal_port().with_token(&session), chat("small", "hi")).await.expect(401);
    // Clients of Messages send their key in a header of its own.
    let body = json!({ "model": "small", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] });
    let nobody = app.at_internal_port();
    nobody.with_header("x-api-key", &token).post("/v1/messages", body.clone()).await.expect(200);
    let reply = nobody.post("/v1/messages", body).await.expect(401).json();
    assert_eq!(reply["error"]["type"], "authentication_error");
}

#[tokio::test]
async fn an_agent_asks_no_model_for_a_person_who_may_only_read_in_the_project() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let ann = app.user("ann", None).await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let project = app.project(&admin, "web").await;
    app.member(project, &ann, UserRole::Operator).await;
    let body = json!({ "project_id": project, "description": "work" });
    let task = ann.post("/v1/tasks", body).await.expect(201).text("id");
    let body =
        json!({ "role": "developer", "project_id": project, "task_id": task, "models": ["small"] });
    let token = ann.post("/v1/agent-tokens", body).await.expect(201).text("token");
    let agent = app.at_internal_port().with_token(&token);
    ask(&agent, chat("small", "hi")).await.expect(200);
    app.member(project, &ann, UserRole::Viewer).await;
    ask(&agent, chat("small", "hi")).await.expect(403);
    app.member(project, &ann, UserRole::Operator).await;
    ask(&agent, chat("small", "hi")).await.expect(200);
}

#[tokio::test]
async fn a_call_is_accounted_to_the_project_that_the_header_names_if_the_caller_works_there() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let ann = app.user("ann", None).await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let project = app.project(&admin, "web").await;
    let with = |id: &str| ann.with_header("openai-project", id);
    ask(&with(&project.to_string()), chat("small", "hi")).await.expect(404);
    app.member(project, &ann, UserRole::Viewer).await;
    ask(&with(&project.to_string()), chat("small", "hi")).await.expect(403);
    app.member(project, &ann, UserRole::Operator).await;
    ask(&with(&project.to_string()), chat("small", "hi")).await.expect(200);
    // Its name does as well; one that nobody has does not.
    ask(&with("web"), chat("small", "hi")).await.expect(200);
    ask(&with("wob"), chat("small", "hi")).await.expect(404);
    let used = ann.get(&format!("/v1/usage?project_id={project}")).await.expect(200).json();
    let expected = json!({ "items": [{ "key": "small", "calls": 2, "failed": 0, "input_tokens": 20,
        "cached_tokens": 0, "output_tokens": 10, "cost_micros": 30 }] });
    assert_eq!(used, expected);
    let series =
        ann.get(&format!("/v1/usage/series?project_id={project}&by=model")).await.expect(200);
    let expected = json!({ "items": [{ "at": "2026-11-01T12:00:00Z", "key": "small", "calls": 2, "failed": 0,
        "input_tokens": 20, "output_tokens": 10, "cost_micros": 30 }] });
    assert_eq!(series.json(), expected);
    let whole =
        ann.get("/v1/usage/series?step=day&from=2026-10-01T00:00:00Z").await.expect(200).json();
    assert_eq!(
        (&whole["items"][0]["at"], &whole["items"][0]["key"]),
        (&json!("2026-11-01T00:00:00Z"), &json!(null))
    );
    let stranger = app.user("stranger", None).await;
    assert_eq!(stranger.get("/v1/usage/series").await.expect(200).json(), json!({ "items": [] }));
    ann.get("/v1/usage/series?by=day").await.expect(422);
}

#[tokio::test]
async fn an_account_without_any_role_asks_no_model_outside_of_projects() {
    let app = TestApp::new().await;
    let (admin, mallory) = (app.admin().await, app.user("mallory", None).await);
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({ "tier": "fast" })).await;
    for id in ["small", "cynodeai.fast"] {
        let refused = ask(&mallory, chat(id, "hi")).await.expect(403).json();
        assert_eq!(refused["error"]["code"], "role_required", "{refused}");
        let said = refused["error"]["message"].as_str().unwrap();
        assert!(said.contains("name a project in which you are an operator"), "{said}");
    }
    assert_eq!(app.db.number("SELECT count(*) FROM model_calls").await, 0);
    let project = app.project(&admin, "web").await;
    app.member(project, &mallory, UserRole::Operator).await;
    ask(&mallory, chat("small", "hi")).await.expect(403);
    let there = mallory.with_header("openai-project", "web");
    ask(&there, chat("small", "hi")).await.expect(200);
    let viewer = app.user("vera", Some(UserRole::Viewer)).await;
    ask(&viewer, chat("small", "hi")).await.expect(200);
}

#[tokio::test]
async fn a_new_user_begins_with_a_budget() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let body = json!({ "handle": "ann", "display_name": "Ann", "password": "long enough!", "role": "operator" });
    let ann = admin.post("/v1/users", body).await.expect(201).text("id");
    let path = format!("/v1/budgets?scope_type=user&scope_id={ann}");
    let held = admin.get(&path).await.expect(200).json();
    let shown = &held["items"][0];
    assert_eq!(
        (&shown["period"], &shown["max_cost_micros"], &shown["source"]),
        (&json!("month"), &json!(20_000_000), &json!("default"))
    );
}

#[tokio::test]
async fn what_a_call_cost_is_spent_at_every_level_and_nothing_stays_held() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let agent = agent_of(&app, &admin, &["small"], json!({ "max_cost_micros": 1_000_000 })).await;
    let user = admin.user.unwrap();
    for body in [
        json!({ "scope_type": "user", "scope_id": user, "period": "day", "max_cost_micros": 1_000_000 }),
        json!({ "scope_type": "project", "scope_id": agent.project, "period": "total", "max_tokens": 1_000_000 }),
    ] {
        admin.put("/v1/budgets", body).await.expect(200);
    }
    for n in 1..=3 {
        ask(&agent.client, chat("small", &format!("hi {n}"))).await.expect(200);
    }
    assert_eq!(spent(&admin, "").await, [(45, 0); 4]);
    let task = format!("?scope_type=task&scope_id={}", agent.task);
    assert_eq!(spent(&admin, &task).await, [(45, 0)]);
    let calls =
        admin.get(&format!("/v1/usage/calls?task_id={}", agent.task)).await.expect(200).json();
    let items = calls["items"].as_array().unwrap();
    assert_eq!(items.iter().map(|call| call["cost_micros"].as_i64().unwrap()).sum::<i64>(), 45);
    assert!(
        items.iter().all(|call| call["agent_role"] == "developer" && call["basis"] == "reported")
    );
}

#[tokio::test]
async fn a_call_whose_worst_case_does_not_fit_is_refused_in_the_way_at_which_each_client_stops() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let budget = json!({ "scope_type": "installation", "period": "total", "max_cost_micros": 100 });
    admin.put("/v1/budgets", budget).await.expect(200);
    let reply = ask(&admin, chat("small", "hi")).await.expect(402);
    assert_eq!(reply.headers["x-should-retry"], "false");
    assert_eq!(reply.json()["error"]["type"], "insufficient_quota");
    assert_eq!(reply.json()["error"]["code"], "budget_exhausted");
    let body = json!({ "model": "small", "max_tokens": 10, "messages": [{ "role": "user", "content": "hi" }] });
    let reply = admin.post("/v1/messages", body).await.expect(402).json();
    assert_eq!(reply["error"]["type"], "billing_error");
    let body = json!({ "model": "small", "input": "hi" });
    admin.post("/v1/responses", body.clone()).await.expect(402);
    let codex = admin.with_header("user-agent", "codex_exec/0.166.0");
    let reply = codex.post("/v1/responses", body).await.expect(429).json();
    assert_eq!(reply["error"]["code"], "insufficient_quota");
    let used = spent(&admin, "?scope_type=installation").await;
    assert_eq!(used, [(0, 0); 2], "B001-18: a call beyond the budget is refused");
}

#[tokio::test]
async fn a_tasks_own_ceiling_stops_it_and_leaves_others_alone() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({ "max_output_tokens": 10 })).await;
    let agent = agent_of(&app, &admin, &["small"], json!({ "max_tokens": 2600 })).await;
    let mut answered = 0;
    while ask(&agent.client, chat("small", &format!("hi {answered}"))).await.status == 200 {
        answered += 1;
        assert!(answered < 1000, "nothing stopped it");
    }
    assert!(answered > 0, "the first fits");
    let task = format!("?scope_type=task&scope_id={}", agent.task);
    let found = admin.get(&format!("/v1/budgets{task}")).await.expect(200).json();
    assert_eq!(found["items"][0]["spent_tokens"], 15 * answered);
    assert_eq!(found["items"][0]["reserved_tokens"], 0);
    ask(&admin, chat("small", "hi")).await.expect(200);
}

#[tokio::test]
async fn a_tasks_own_ceiling_that_was_removed_stays_removed() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({ "max_output_tokens": 10 })).await;
    let agent = agent_of(&app, &admin, &["small"], json!({ "max_tokens": 2600 })).await;
    ask(&agent.client, chat("small", "one")).await.expect(200);
    let task = format!("/v1/budgets?scope_type=task&scope_id={}", agent.task);
    let found = admin.get(&task).await.expect(200).json();
    let id = found["items"][0]["budget_id"].as_str().unwrap();
    admin.delete(&format!("/v1/budgets/{id}")).await.expect(204);
    ask(&agent.client, chat("small", "two")).await.expect(200);
    assert_eq!(admin.get(&task).await.expect(200).json()["items"], json!([]));
}

#[tokio::test]
async fn preferences_choose_the_provider_and_those_of_one_agent_never_reach_another() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "outside", false, says("outside")).await;
    scripted(&admin, "inside", true, says("inside")).await;
    model(&admin, "both", &["outside", "inside"], json!({})).await;
    assert_eq!(words(&ask(&admin, chat("both", "1")).await.expect(200)), "outside");
    let prefer = |key: &str, value: Value| {
        let (admin, key) = (admin.clone(), key.to_owned());
        async move {
            let path = format!("/v1/preferences/{key}?scope_type=system");
            let held = admin.get(&path).await;
            let version = held.json()["version"].as_i64().unwrap_or(0);
            admin
                .put(&path, json!({ "value": value, "expected_version": version }))
                .await
                .expect(200);
        }
    };
    prefer("model_routing.prefer_local", json!(true)).await;
    assert_eq!(words(&ask(&admin, chat("both", "2")).await.expect(200)), "inside");
    prefer("model_routing.prefer_local", json!(false)).await;
    prefer("agents.project_manager.model_routing.allowed_external_providers", json!([])).await;
    assert_eq!(words(&ask(&admin, chat("both", "3")).await.expect(200)), "outside");
    let project = app.project(&admin, "web").await;
    let issue = |role: &'static str, task: Option<String>| {
        let (admin, app) = (admin.clone(), &app);
        async move {
            let body =
                json!({ "role": role, "project_id": project, "task_id": task, "models": ["both"] });
            let issued = admin.post("/v1/agent-tokens", body).await.expect(201);
            app.at_internal_port().with_token(&issued.text("token"))
        }
    };
    let task = json!({ "project_id": project, "description": "work" });
    let task = admin.post("/v1/tasks", task).await.expect(201).text("id");
    let manager = issue("project_manager", None).await;
    let analyst = issue("project_analyst", Some(task)).await;
    let asked =
        async |agent: &Client, text: &str| words(&ask(agent, chat("both", text)).await.expect(200));
    assert_eq!(asked(&manager, "4").await, "inside", "S000-106: the manager's key applies to it");
    assert_eq!(asked(&analyst, "5").await, "outside", "S000-108: and not to the analyst");
    prefer("agents.project_manager.model_routing.allowed_external_providers", Value::Null).await;
    prefer("agents.project_analyst.model_routing.prefer_local", json!(true)).await;
    assert_eq!(asked(&analyst, "7").await, "inside", "S000-107: the analyst's key applies to it");
    assert_eq!(asked(&manager, "8").await, "outside", "S000-108: and not to the manager");
    // Where nothing is left that may be asked, nothing is.
    model(&admin, "far", &["outside"], json!({})).await;
    prefer("model_routing.allowed_external_providers", json!(["elsewhere"])).await;
    let reply = ask(&admin, chat("far", "6")).await.expect(503).json();
    assert_eq!(reply["error"]["code"], "no_route");
}

#[tokio::test]
async fn a_preference_written_in_a_loop_holds_at_once_and_concerns_nobody_else() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let eve = app.user("eve", Some(UserRole::Operator)).await;
    scripted(&admin, "outside", false, says("outside")).await;
    scripted(&admin, "inside", true, says("inside")).await;
    model(&admin, "both", &["outside", "inside"], json!({})).await;
    model(&admin, "far", &["outside"], json!({})).await;
    let epochs = "SELECT m.epoch + g.epoch FROM routing_epoch m, policy_epoch g";
    let before = app.db.number(epochs).await;
    let write = async |key: &str, value: Value, version: i64| {
        let path = format!("/v1/preferences/{key}?scope_type=user&scope_id={}", eve.user.unwrap());
        eve.put(&path, json!({ "value": value, "expected_version": version })).await.expect(200);
    };
    let asked = async |client: &Client, text: String| {
        words(&ask(client, chat("both", &text)).await.expect(200))
    };
    for version in 0..20 {
        let local = version % 2 == 0;
        write("model_routing.prefer_local", json!(local), version).await;
        let wanted = if local { "inside" } else { "outside" };
        assert_eq!(asked(&eve, format!("eve {version}")).await, wanted);
        assert_eq!(asked(&admin, format!("admin {version}")).await, "outside");
    }
    // Also where it leaves nothing, and where it allows something again.
    let allowed = "model_routing.allowed_external_providers";
    ask(&eve, chat("far", "1")).await.expect(200);
    write(allowed, json!([]), 0).await;
    let reply = ask(&eve, chat("far", "2")).await.expect(503).json();
    assert_eq!(reply["error"]["code"], "no_route");
    ask(&admin, chat("far", "3")).await.expect(200);
    write(allowed, json!(["outside"]), 1).await;
    ask(&eve, chat("far", "4")).await.expect(200);
    assert_eq!(app.db.number(epochs).await, before);
}

#[tokio::test]
async fn a_model_of_one_project_answers_no_other() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "one", true, says("one")).await;
    let (own, other) = (app.project(&admin, "own").await, app.project(&admin, "other").await);
    model(&admin, "a", &["one"], json!({ "tier": "fast", "project_id": own })).await;
    let mut seen = Vec::new();
    for project in [Some(own), Some(other), None] {
        let asker = match project {
            Some(project) => admin.with_header("openai-project", &project.to_string()),
            None => admin.clone(),
        };
        for id in ["cynodeai.fast", "a"] {
            seen.push(ask(&asker, chat(id, "1")).await.status);
        }
    }
    assert_eq!(seen, [200, 200, 404, 404, 404, 404]);
    let nobody = format!("prj_{:032x}", 1);
    let body = json!({ "context_tokens": 1, "max_output_tokens": 1, "project_id": nobody,
        "routes": [{ "provider": "one", "upstream": "x" }] });
    admin.put("/v1/model-registry/b", body).await.expect(404);
}

#[tokio::test]
async fn a_tier_is_answered_by_a_model_of_that_tier() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "one", true, says("one")).await;
    scripted(&admin, "two", true, says("two")).await;
    model(&admin, "a", &["one"], json!({ "tier": "fast" })).await;
    model(&admin, "b", &["two"], json!({ "tier": "deep" })).await;
    assert_eq!(words(&ask(&admin, chat("cynodeai.fast", "1")).await.expect(200)), "one");
    assert_eq!(words(&ask(&admin, chat("cynodeai.deep", "1")).await.expect(200)), "two");
    ask(&admin, chat("cynodeai.standard", "1")).await.expect(404);
}

/// A provider over the network, with a key.
pub(crate) async fn networked(admin: &Client, name: &str, dialect: &str, provider: &TestProvider) {
    let body = json!({ "kind": "compatible", "dialect": dialect, "base_url": provider.url(), "local": false });
    admin.put(&format!("/v1/providers/{name}"), body).await.expect(200);
    let key = json!({ "label": "first", "key": format!("{name}-secret-key-0001") });
    admin.post(&format!("/v1/providers/{name}/keys"), key).await.expect(201);
}

#[tokio::test]
async fn a_providers_key_goes_to_the_provider_and_nowhere_else() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    ask(&admin, chat("small", "hi")).await.expect(200);
    let sent = provider.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].headers["authorization"], "Bearer far-secret-key-0001");
    assert_eq!(sent[0].body["model"], "theirs");
    assert!(!format!("{:?}", sent[0].headers).contains("cyn_"), "no token of ours goes out");
    for path in ["/v1/providers", "/v1/model-registry", "/v1/models", "/v1/usage/calls"] {
        let shown = admin.get(path).await.expect(200);
        assert!(!String::from_utf8_lossy(&shown.body).contains("secret-key"), "{path}");
    }
    let stored = app
        .db
        .texts("SELECT provider_keys::text || encode(sealed_key, 'escape') FROM provider_keys")
        .await;
    assert!(!stored.concat().contains("secret-key"));
}

#[tokio::test]
async fn a_stream_is_passed_on_and_settled_by_what_the_provider_says() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let usage = TokenUsage { input: 30, cached_input: 8, output: 4, ..TokenUsage::default() };
    let provider =
        TestProvider::serve(Behaviour { usage: Some(usage), ..Behaviour::default() }).await;
    for (name, path) in [
        ("chat", "/v1/chat/completions"),
        ("responses", "/v1/responses"),
        ("messages", "/v1/messages"),
    ] {
        networked(&admin, name, name, &provider).await;
        model(&admin, name, &[name], json!({})).await;
        for client in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
            let content = format!("{name} {client}");
            let message = json!([{ "role": "user", "content": content }]);
            let mut body =
                json!({ "model": name, "stream": true, "max_tokens": 50, "messages": message });
            if client == "/v1/responses" {
                body = json!({ "model": name, "stream": true, "input": content });
            }
            let reply = admin.post(client, body).await.expect(200);
            assert_eq!(reply.headers["content-type"], "text/event-stream");
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            assert!(
                text.contains("Hello") && text.contains("there"),
                "{client} over {name}: {text}"
            );
            let asked = provider.sent().last().unwrap().path.clone();
            assert_eq!(asked, path, "S000-030: the provider was asked");
        }
    }
    app.settled().await;
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let calls = calls["items"].as_array().unwrap();
    assert_eq!(calls.len(), 9);
    for call in calls {
        let seen =
            (&call["input_tokens"], &call["cached_tokens"], &call["output_tokens"], &call["basis"]);
        assert_eq!(seen, (&json!(30), &json!(8), &json!(4), &json!("reported")), "{call}");
    }
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(9 * 34, 0)]);
}

#[tokio::test]
async fn a_provider_that_fails_is_passed_over_and_costs_nothing() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let down = TestProvider::serve(Behaviour {
        fails: Some((500, json!({ "error": { "message": "oh", "type": "server_error" } }), None)),
        ..Behaviour::default()
    })
    .await;
    networked(&admin, "down", "chat", &down).await;
    scripted(&admin, "up", true, says("up")).await;
    model(&admin, "small", &["down", "up"], json!({})).await;
    for n in 0..8 {
        let reply = ask(&admin, chat("small", &n.to_string())).await.expect(200);
        assert_eq!(words(&reply), "up");
    }
    assert_eq!(down.sent().len(), 5, "then it is left alone");
    let sums = admin.get("/v1/usage?by=provider").await.expect(200).json();
    let expected = json!({ "items": [
        { "key": "up", "calls": 8, "failed": 0, "input_tokens": 80, "cached_tokens": 0, "output_tokens": 40, "cost_micros": 120 },
        { "key": "down", "calls": 5, "failed": 5, "input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "cost_micros": 0 },
    ] });
    assert_eq!(sums, expected);
}

#[tokio::test]
async fn a_key_whose_quota_is_used_up_rests_for_everybody_and_so_does_the_task() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour {
        fails: Some((
            429,
            json!({ "error": { "message": "no more", "code": "insufficient_quota" } }),
            Some(120),
        )),
        ..Behaviour::default()
    })
    .await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let agent = agent(&app, &admin, &["small"]).await;
    let reply = ask(&agent.client, chat("small", "1")).await.expect(402).json();
    assert_eq!(reply["error"]["code"], "quota_exhausted");
    ask(&admin, chat("small", "2")).await.expect(402);
    assert_eq!(provider.sent().len(), 1, "it was asked once for everybody");
    let park = admin.get(&format!("/v1/tasks/{}/park", agent.task)).await.expect(200).json();
    assert_eq!((&park["kind"], &park["until"]), (&json!("quota"), &json!("2026-11-01T12:02:00Z")));
    provider.behave(Behaviour::default());
    app.clock.advance(time::Duration::seconds(121));
    ask(&agent.client, chat("small", "3")).await.expect(200);
    assert_eq!(
        admin.get(&format!("/v1/tasks/{}/park", agent.task)).await.expect(200).json(),
        Value::Null
    );
}

#[tokio::test]
async fn a_task_does_not_rest_for_a_quota_while_somebody_else_is_only_left_alone_for_a_moment() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let failing = |fails| Behaviour { fails: Some(fails), ..Behaviour::default() };
    let down = json!({ "error": { "message": "oh", "type": "server_error" } });
    let down = TestProvider::serve(failing((500, down, None))).await;
    let full = json!({ "error": { "message": "no more", "code": "insufficient_quota" } });
    let full = TestProvider::serve(failing((429, full, Some(120)))).await;
    networked(&admin, "down", "chat", &down).await;
    networked(&admin, "full", "chat", &full).await;
    model(&admin, "shaky", &["down"], json!({})).await;
    model(&admin, "small", &["down", "full"], json!({})).await;
    for n in 0..5 {
        ask(&admin, chat("shaky", &n.to_string())).await;
    }
    let agent = agent(&app, &admin, &["small"]).await;
    ask(&agent.client, chat("small", "hi")).await.expect(503);
    assert_eq!((down.sent().len(), full.sent().len()), (5, 1));
    let park = admin.get(&format!("/v1/tasks/{}/park", agent.task)).await.expect(200).json();
    assert_eq!(park, Value::Null);
}

#[tokio::test]
async fn a_task_that_asks_the_same_over_and_over_is_parked_until_a_person_lets_it_go_on() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    admin
        .put(
            "/v1/settings/models.loop_guard.max_identical_calls",
            json!({ "value": 3, "expected_version": 0 }),
        )
        .await
        .expect(200);
    let agent = agent(&app, &admin, &["small"]).await;
    for _ in 0..3 {
        ask(&agent.client, chat("small", "again")).await.expect(200);
    }
    let reply = ask(&agent.client, chat("small", "again")).await.expect(402).json();
    assert_eq!(reply["error"]["code"], "task_parked");
    ask(&agent.client, chat("small", "something else")).await.expect(402);
    let park = admin.get(&format!("/v1/tasks/{}/park", agent.task)).await.expect(200).json();
    assert_eq!(park["kind"], "repeats");
    let events = app.db.texts("SELECT kind FROM events WHERE kind LIKE 'task.%'").await;
    assert!(
        events.contains(&"task.parked".to_owned())
            && events.contains(&"task.instructed".to_owned()),
        "{events:?}"
    );
    let body = json!({ "kind": "resume" });
    admin.post(&format!("/v1/tasks/{}/instructions", agent.task), body).await.expect(202);
    ask(&agent.client, chat("small", "again")).await.expect(200);
}

/// A task whose third question is the last that may be the same.
async fn impatient(app: &TestApp, admin: &Client) -> Agent {
    let value = json!({ "value": 3, "expected_version": 0 });
    admin.put("/v1/settings/models.loop_guard.max_identical_calls", value).await.expect(200);
    agent(app, admin, &["small"]).await
}

#[tokio::test]
async fn a_task_that_waits_for_a_ceilings_next_period_does_not_go_in_circles() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let agent = impatient(&app, &admin).await;
    let budget = json!({ "scope_type": "installation", "period": "day", "max_cost_micros": 100 });
    admin.put("/v1/budgets", budget).await.expect(200);
    for _ in 0..5 {
        let reply = ask(&agent.client, chat("small", "again")).await.expect(402).json();
        assert_eq!(reply["error"]["code"], "budget_exhausted");
    }
    let park = admin.get(&format!("/v1/tasks/{}/park", agent.task)).await.expect(200).json();
    assert_eq!(park, Value::Null);
    let budget =
        json!({ "scope_type": "installation", "period": "day", "max_cost_micros": 1_000_000_000 });
    admin.put("/v1/budgets", budget).await.expect(200);
    for _ in 0..3 {
        ask(&agent.client, chat("small", "again")).await.expect(200);
    }
    let reply = ask(&agent.client, chat("small", "again")).await.expect(402).json();
    assert_eq!(reply["error"]["code"], "task_parked", "what is asked still counts");
}

/// Parks every task as a process does that dies before it tells anybody.
const UNTOLD: &str = "INSERT INTO task_parks (task_id, kind, reason, parked_at)
    SELECT task_id, 'repeats', 'the same question was asked 4 times in a row', now() FROM tasks";

/// What people were told of parked tasks.
const TOLD: &str =
    "SELECT kind FROM events WHERE kind IN ('task.parked', 'task.instructed') ORDER BY kind";

#[tokio::test]
async fn a_parked_task_of_which_nobody_was_told_is_told_of_once_by_those_who_ask_next() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let agent = agent(&app, &admin, &["small"]).await;
    app.db.execute(UNTOLD).await;
    let asked = || ask(&agent.client, chat("small", "again"));
    let (first, second, third) = tokio::join!(asked(), asked(), asked());
    assert_eq!([first.status, second.status, third.status], [402; 3]);
    assert_eq!(app.db.texts(TOLD).await, ["task.instructed", "task.parked"]);
    let paused = app.db.texts("SELECT kind FROM task_instructions").await;
    assert_eq!(paused, ["pause"]);
}

#[tokio::test]
async fn a_parked_task_of_which_nobody_was_told_is_told_of_by_the_sweep_when_nobody_asks() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    agent(&app, &admin, &[]).await;
    app.db.execute(UNTOLD).await;
    for _ in 0..2 {
        cynode_app::background::reconciler::reap_expired(&app.app, false).await.unwrap();
    }
    assert_eq!(app.db.texts(TOLD).await, ["task.instructed", "task.parked"]);
    let paused = app.db.texts("SELECT kind FROM task_instructions").await;
    assert_eq!(paused, ["pause"]);
}

#[tokio::test]
async fn secrets_do_not_reach_the_provider_whichever_kind_they_are() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "messages", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let github = format!("ghp_{}", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    let ours = admin.token().unwrap();
    let text = format!("use {github} and far-secret-key-0001 and {ours} please");
    let reply = ask(&admin, chat("small", &text)).await.expect(200);
    assert_eq!(words(&reply), "Hello there");
    let sent = provider.sent()[0].body.to_string();
    for secret in [github.as_str(), "far-secret-key-0001", ours.as_str()] {
        assert!(!sent.contains(secret), "{sent}");
    }
    assert!(sent.contains("please"), "{sent}");
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    assert_eq!(calls["items"][0]["redactions"], 3);
}

#[tokio::test]
async fn secrets_of_forges_and_channels_do_not_reach_the_provider_from_when_they_are_set() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "messages", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    ask(&admin, chat("small", "hi")).await.expect(200);
    let secrets = [TOKEN, "a-secret-of-some-length", "quiet-evening-words"];
    let project = app.project(&admin, "web").await;
    let forge = TestForge::serve(ForgeKind::Gitea).await;
    let remote = json!({
        "forge": forge.kind.as_str(), "url": forge.clone_url(), "repository": REPOSITORY, "default_branch": "main",
        "credential": secrets[0], "webhook_secret": secrets[1], "intake": { "label": "cynode", "assigned_to_bot": true },
    });
    admin.put(&format!("/v1/projects/{project}/remote"), remote).await.expect(200);
    let text = secrets.join(" and ");
    ask(&admin, chat("small", &text)).await.expect(200);
    let sent = provider.sent()[1].body.to_string();
    assert_eq!(secrets.map(|secret| sent.contains(secret)), [false, false, true], "{sent}");
    let value = json!({ "value": true, "expected_version": 0 });
    admin.put("/v1/settings/notifications.allow_private", value).await.expect(200);
    let channel = json!({
        "name": "bell", "kind": "ntfy", "address": "http://127.0.0.1:9/topic", "secret": secrets[2],
    });
    admin.post("/v1/notification-channels", channel).await.expect(201);
    ask(&admin, chat("small", &text)).await.expect(200);
    let sent = provider.sent()[2].body.to_string();
    assert_eq!(secrets.map(|secret| sent.contains(secret)), [false; 3], "{sent}");
}

#[tokio::test]
async fn secrets_do_not_reach_the_manager_from_when_they_are_set() {
    let manager = TestProvider::serve(Behaviour::default()).await;
    let app = TestApp::with_manager(&manager.url()).await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let person = admin.with_header("openai-project", &project.to_string());
    ask(&person, chat("cynodeai.pm", "hi")).await.expect(200);
    networked(&admin, "far", "chat", &manager).await;
    let text = "use far-secret-key-0001 please";
    ask(&person, chat("cynodeai.pm", text)).await.expect(200);
    let sent = manager.sent()[1].body.to_string();
    assert!(sent.contains("please") && !sent.contains("far-secret"), "S000-010: {sent}");
    let said = app.db.texts(SAID).await.concat();
    assert!(said.contains("please") && !said.contains("far-secret"), "S000-010: {said}");
}

#[tokio::test]
async fn the_manager_is_told_nothing_of_a_project_that_the_person_may_not_see() {
    let manager = TestProvider::serve(Behaviour::default()).await;
    let app = TestApp::with_manager(&manager.url()).await;
    let (admin, ann) = (app.admin().await, app.user("ann", None).await);
    let project = app.project(&admin, "web").await;
    let person = ann.with_header("openai-project", &project.to_string());
    ask(&person, chat("cynodeai.pm", "hi")).await.expect(404);
    assert_eq!(manager.sent().len(), 0, "S000-063: nothing is handed over without access");
    app.member(project, &ann, UserRole::Operator).await;
    ask(&person, chat("cynodeai.pm", "hi")).await.expect(200);
    let sent = manager.sent();
    assert_eq!(sent[0].body["context"]["project"]["slug"], "web", "S000-062: with access it is");
}

#[tokio::test]
async fn tools_that_a_provider_would_run_itself_are_not_passed_on() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "responses", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let own = json!({ "type": "function", "name": "shell", "parameters": { "type": "object", "properties": {} } });
    let body = json!({ "model": "small", "input": "hi", "tools": [{ "type": "web_search" }, own] });
    admin.post("/v1/responses", body).await.expect(200);
    assert_eq!(provider.sent()[0].body["tools"], json!([own]));
    assert_eq!(provider.sent()[0].body["store"], json!(false));
}

#[tokio::test]
async fn a_call_of_which_nothing_was_heard_counts_as_the_worst_it_could_have_cost() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour { stalls: true, ..Behaviour::default() }).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let mut body = chat("small", "hi");
    body["stream"] = json!(true);
    let streaming = open(&admin, body).await;
    let [(0, held)] = spent(&admin, "?scope_type=installation").await[..] else {
        panic!("nothing is held")
    };
    assert!(held > 1000, "{held}");
    // As if the process had died: nobody renews what is held.
    app.db.execute("UPDATE model_reservations SET expires_at = now() - interval '1 second'").await;
    assert_eq!(cynode_app::models::inference::settle_lost_calls(&app.app).await.unwrap(), 1);
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(held, 0)]);
    // The answer comes after all: what was settled stays.
    provider.go_on();
    drop(streaming);
    app.settled().await;
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(held, 0)]);
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let calls = calls["items"].as_array().unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!((&calls[0]["outcome"], &calls[0]["cost_micros"]), (&json!("lost"), &json!(held)));
}

#[tokio::test]
async fn a_client_that_goes_away_pays_for_what_was_said_until_then() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour { stalls: true, ..Behaviour::default() }).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let mut body = chat("small", "hi");
    body["stream"] = json!(true);
    let streaming = open(&admin, body).await;
    drop(streaming);
    app.settled().await;
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let call = &calls["items"][0];
    assert_eq!((&call["outcome"], &call["basis"]), (&json!("given_up"), &json!("bounded")));
    // It may have thought unseen, as far as it was allowed to.
    assert_eq!(call["output_tokens"], 1000);
    let cost = call["cost_micros"].as_i64().unwrap();
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(cost, 0)]);
}

#[tokio::test]
async fn a_provider_is_left_at_once_when_nobody_waits_for_its_whole_answer_any_more() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour { stalls: true, ..Behaviour::default() }).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let asking = admin.post("/v1/chat/completions", chat("small", "hi"));
    let asked = async {
        while provider.sent().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    // Whoever asked gives up while the provider thinks.
    tokio::select! {
        answer = asking => panic!("there was an answer: {:?}", answer.status),
        () = asked => {}
    }
    let second = std::time::Duration::from_secs(1);
    tokio::time::timeout(second, provider.until_left()).await.expect("the provider was left");
    app.settled().await;
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let calls = calls["items"].as_array().unwrap();
    let ended: Vec<_> = calls.iter().map(|call| (&call["outcome"], &call["basis"])).collect();
    assert_eq!(ended, [(&json!("given_up"), &json!("bounded"))]);
    let cost = calls[0]["cost_micros"].as_i64().unwrap();
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(cost, 0)]);
}

#[tokio::test]
async fn how_long_a_model_may_think_is_kept_with_it_and_bounded() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({ "think_seconds": 600 })).await;
    let listed = admin.get("/v1/model-registry").await.expect(200).json();
    assert_eq!(listed["items"][0]["think_seconds"], 600);
    model(&admin, "small", &["far"], json!({})).await;
    let listed = admin.get("/v1/model-registry").await.expect(200).json();
    assert_eq!(listed["items"][0].get("think_seconds"), None);
    let body = json!({
        "context_tokens": 1000, "max_output_tokens": 100, "think_seconds": 3601,
        "routes": [{ "provider": "far", "upstream": "m" }],
    });
    let refused = admin.put("/v1/model-registry/small", body).await.expect(422).json();
    assert_eq!(refused["detail"], "`think_seconds` is 1 to 3600");
    let set = json!({ "value": 3601, "expected_version": 0 });
    let path = "/v1/settings/manager.think_timeout_seconds";
    let refused = admin.put(path, set).await.expect(422).json();
    assert_eq!(refused["detail"], "`manager.think_timeout_seconds` is 1 to 3600");
}

/// Asks, reads until the answer has ended, and leaves.
async fn read_until(client: &Client, path: &str, body: Value, end: &str) {
    let response = client.raw(Method::POST, path, Some(body.to_string())).await;
    assert_eq!(response.status(), 200);
    let (mut body, mut read) = (response.into_body(), String::new());
    while !read.contains(end) {
        let frame = body.frame().await.unwrap().unwrap();
        read.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
}

#[tokio::test]
async fn a_client_that_leaves_at_the_end_of_the_answer_pays_for_what_was_used() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let usage = Some(TokenUsage { input: 30, output: 4, ..TokenUsage::default() });
    let provider =
        TestProvider::serve(Behaviour { usage, ends: Ends::Never, ..Behaviour::default() }).await;
    for name in ["chat", "responses", "messages"] {
        networked(&admin, name, name, &provider).await;
        model(&admin, name, &[name], json!({})).await;
        let message = json!([{ "role": "user", "content": name }]);
        let body = json!({ "model": name, "stream": true, "max_tokens": 50, "messages": message });
        read_until(&admin, "/v1/chat/completions", body.clone(), "[DONE]").await;
        read_until(&admin, "/v1/messages", body, "message_stop").await;
        let body = json!({ "model": name, "stream": true, "input": name });
        read_until(&admin, "/v1/responses", body, "response.completed").await;
    }
    app.settled().await;
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let calls = calls["items"].as_array().unwrap();
    assert_eq!(calls.len(), 9);
    for call in calls {
        let seen = ["outcome", "basis", "input_tokens", "output_tokens"].map(|name| &call[name]);
        assert_eq!(json!(seen), json!(["answered", "reported", 30, 4]), "{call}");
    }
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(9 * 34, 0)]);
}

#[tokio::test]
async fn what_the_manager_said_is_whole_for_whoever_leaves_at_its_end() {
    let manager =
        TestProvider::serve(Behaviour { ends: Ends::Never, ..Behaviour::default() }).await;
    let app = TestApp::with_manager(&manager.url()).await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let person = admin.with_header("openai-project", &project.to_string());
    let mut body = chat("cynodeai.pm", "hi");
    body["stream"] = json!(true);
    read_until(&person, "/v1/chat/completions", body, "[DONE]").await;
    app.settled().await;
    assert_eq!(app.db.texts(SAID).await, ["user whole hi", "assistant whole Hello there"]);
}

/// What was said to the manager and by it.
const SAID: &str =
    "SELECT role || ' ' || state || ' ' || content FROM chat_messages ORDER BY thread_id, number";

#[tokio::test]
async fn a_provider_that_breaks_off_before_its_answer_may_have_worked_and_counts_as_the_worst() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour { hangs_up: true, ..Behaviour::default() }).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    ask(&admin, chat("small", "hi")).await.expect(502);
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let call = &calls["items"][0];
    assert_eq!((&call["outcome"], &call["basis"]), (&json!("failed"), &json!("worst_case")));
    assert_eq!(call["output_tokens"], 1000);
    let cost = call["cost_micros"].as_i64().unwrap();
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(cost, 0)]);
    // What was never connected was never asked.
    drop(provider);
    let body = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    admin.put("/v1/providers/far", body).await.expect(200);
    ask(&admin, chat("small", "again")).await.expect(503);
    assert_eq!(spent(&admin, "?scope_type=installation").await, [(cost, 0)]);
}

#[tokio::test]
async fn when_one_key_rests_the_next_is_asked_at_once() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let quota = json!({ "error": { "message": "no more", "code": "insufficient_quota" } });
    let fails = Some((429, quota, Some(120)));
    let behaviour =
        Behaviour { fails, only_for: Some("far-secret-key-0001".into()), ..Behaviour::default() };
    let provider = TestProvider::serve(behaviour).await;
    networked(&admin, "far", "chat", &provider).await;
    let key = json!({ "label": "second", "key": "far-secret-key-0002" });
    admin.post("/v1/providers/far/keys", key).await.expect(201);
    model(&admin, "small", &["far"], json!({})).await;
    assert_eq!(words(&ask(&admin, chat("small", "hi")).await.expect(200)), "Hello there");
    let keys: Vec<_> = provider
        .sent()
        .iter()
        .map(|sent| sent.headers["authorization"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys, ["Bearer far-secret-key-0001", "Bearer far-secret-key-0002"]);
}

#[tokio::test]
async fn a_short_wait_is_told_in_full_and_parks_nobody() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let slow = json!({ "error": { "message": "slowly", "code": "rate_limit_exceeded" } });
    let slowly =
        |wait| Behaviour { fails: Some((429, slow.clone(), Some(wait))), ..Behaviour::default() };
    let provider = TestProvider::serve(slowly(4)).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let agent = agent(&app, &admin, &["small"]).await;
    // Whoever may ask again at once is left alone for a moment all the same.
    for (wait, told) in [(4, 4), (0, 1)] {
        provider.behave(slowly(wait));
        let before = provider.sent().len();
        let reply = ask(&agent.client, chat("small", "hi")).await.expect(429);
        assert_eq!(reply.headers["retry-after"], told.to_string());
        assert_eq!(provider.sent().len(), before + 1, "it is asked once");
        let park = admin.get(&format!("/v1/tasks/{}/park", agent.task)).await.expect(200).json();
        assert_eq!(park, Value::Null);
        provider.behave(Behaviour::default());
        app.clock.advance(time::Duration::seconds(told));
        ask(&agent.client, chat("small", "hi")).await.expect(200);
    }
}

#[tokio::test]
async fn a_rate_limit_that_one_project_provokes_parks_the_key_for_no_other() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let slow = json!({ "error": { "message": "too large", "code": "rate_limit_exceeded" } });
    let limited = Behaviour { fails: Some((429, slow, Some(60))), ..Behaviour::default() };
    let provider = TestProvider::serve(limited.clone()).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    for slug in ["greedy", "innocent"] {
        app.project(&admin, slug).await;
    }
    let greedy = admin.with_header("openai-project", "greedy");
    let innocent = admin.with_header("openai-project", "innocent");
    for _ in 0..3 {
        ask(&greedy, chat("small", "hi")).await.expect(402);
    }
    assert_eq!(provider.sent().len(), 1, "the key rests for the project that provoked it");
    provider.behave(Behaviour::default());
    assert_eq!(words(&ask(&innocent, chat("small", "hi")).await.expect(200)), "Hello there");
    ask(&greedy, chat("small", "hi")).await.expect(402);
    let parked = "SELECT kind FROM events WHERE kind = 'provider_key.parked'";
    assert_eq!(app.db.texts(parked).await, [""; 0]);
    app.clock.advance(time::Duration::seconds(61));
    ask(&greedy, chat("small", "hi")).await.expect(200);

    // Tenants of several users see it: it is the key's own limit.
    provider.behave(limited);
    let bob = app.user("bob", Some(UserRole::Operator)).await;
    for client in [&greedy, &innocent] {
        ask(client, chat("small", "again")).await.expect(402);
    }
    ask(&bob, chat("small", "again")).await.expect(402);
    let asked = provider.sent().len();
    ask(&admin, chat("small", "again")).await.expect(402);
    assert_eq!(provider.sent().len(), asked, "it rests for everybody");
    assert_eq!(app.db.texts(parked).await, ["provider_key.parked"]);
}

#[tokio::test]
async fn an_account_has_a_bounded_number_of_model_requests_at_once() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", Some(UserRole::Operator)).await);
    scripted(&admin, "tape", true, says("Hello.")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let open_one = || app.app.open_chat_stream(bob.user.unwrap(), ClientSource::LOCAL);
    let held: Vec<_> = (0..MAX_CHAT_STREAMS_PER_ACCOUNT).map(|_| open_one().unwrap()).collect();
    let refused = ask(&bob, chat("small", "hi")).await.expect(429);
    assert_eq!(refused.headers["retry-after"], "5");
    let sentence = "this account has too many model requests open: wait until one ends";
    assert_eq!(refused.json()["error"]["message"], sentence);
    ask(&admin, chat("small", "hi")).await.expect(200);
    drop(held);
    ask(&bob, chat("small", "hi")).await.expect(200);
}

#[tokio::test]
async fn what_a_provider_says_of_our_key_is_not_repeated() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let told = json!({ "error": { "message": "invalid key far-secret-key-0001", "code": "invalid_api_key" } });
    let provider =
        TestProvider::serve(Behaviour { fails: Some((401, told, None)), ..Behaviour::default() })
            .await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let reply = ask(&admin, chat("small", "hi")).await;
    assert!(!String::from_utf8_lossy(&reply.body).contains("0001"), "{:?}", reply.body);
    let shown = admin.get("/v1/providers").await.expect(200);
    assert!(!String::from_utf8_lossy(&shown.body).contains("key-0001"), "{:?}", shown.body);
}

#[tokio::test]
async fn a_provider_that_wants_a_key_and_has_none_does_not_look_like_a_client_without_one() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let told = json!({ "error": { "message": "no key", "code": "invalid_api_key" } });
    let provider =
        TestProvider::serve(Behaviour { fails: Some((401, told, None)), ..Behaviour::default() })
            .await;
    let body = json!({ "kind": "compatible", "base_url": provider.url() });
    admin.put("/v1/providers/far", body).await.expect(200);
    model(&admin, "small", &["far"], json!({})).await;
    let reply = ask(&admin, chat("small", "hi")).await.expect(502).json();
    assert_eq!(reply["error"]["code"], "provider_refused");
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_told_of_and_counts_as_what_it_can_have_cost() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider =
        TestProvider::serve(Behaviour { ends: Ends::AfterOne, ..Behaviour::default() }).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let mut body = chat("small", "hi");
    body["stream"] = json!(true);
    let reply = ask(&admin, body).await.expect(200);
    assert!(String::from_utf8_lossy(&reply.body).contains("error"), "{:?}", reply.body);
    app.settled().await;
    let calls = admin.get("/v1/usage/calls").await.expect(200).json();
    let call = &calls["items"][0];
    assert_eq!((&call["outcome"], &call["basis"]), (&json!("failed"), &json!("bounded")));
}

#[tokio::test]
async fn answers_are_kept_and_played_again_without_the_provider() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "chat", &provider).await;
    let record = json!({ "kind": "record", "recorded_provider": "far", "cassette": "tape" });
    admin.put("/v1/providers/recorder", record).await.expect(200);
    model(&admin, "small", &["recorder"], json!({})).await;
    let mut streamed = chat("small", "two");
    streamed["stream"] = json!(true);
    assert_eq!(words(&ask(&admin, chat("small", "one")).await.expect(200)), "Hello there");
    ask(&admin, streamed.clone()).await.expect(200);
    app.settled().await;
    let replay = json!({ "kind": "replay", "cassette": "tape" });
    admin.put("/v1/providers/player", replay).await.expect(200);
    model(&admin, "small", &["player"], json!({})).await;
    assert_eq!(provider.sent().len(), 2);
    assert_eq!(words(&ask(&admin, chat("small", "one")).await.expect(200)), "Hello there");
    assert_eq!(words(&ask(&admin, chat("small", "two")).await.expect(200)), "Hello there");
    let reply = ask(&admin, streamed).await.expect(200);
    assert!(String::from_utf8_lossy(&reply.body).contains("there"));
    assert_eq!(provider.sent().len(), 2, "nobody was asked");
    ask(&admin, chat("small", "three")).await.expect(404);
}

#[tokio::test]
async fn what_a_script_answers_is_kept_too_and_played_again() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "script", true, says("By the book")).await;
    let record = json!({ "kind": "record", "recorded_provider": "script", "cassette": "tape" });
    admin.put("/v1/providers/recorder", record).await.expect(200);
    model(&admin, "small", &["recorder"], json!({})).await;
    ask(&admin, chat("small", "one")).await.expect(200);
    let replay = json!({ "kind": "replay", "cassette": "tape" });
    admin.put("/v1/providers/player", replay).await.expect(200);
    model(&admin, "small", &["player"], json!({})).await;
    assert_eq!(words(&ask(&admin, chat("small", "one")).await.expect(200)), "By the book");
    ask(&admin, chat("small", "two")).await.expect(404);
}

#[tokio::test]
async fn managers_whose_model_takes_skills_are_given_the_default_one_and_nobody_else_is() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "skilled", &["far"], json!({ "skills": true })).await;
    model(&admin, "plain", &["far"], json!({})).await;
    let project = app.project(&admin, "web").await;
    let body =
        json!({ "role": "project_manager", "project_id": project, "models": ["skilled", "plain"] });
    let issued = admin.post("/v1/agent-tokens", body).await.expect(201);
    let manager = app.at_internal_port().with_token(&issued.text("token"));
    ask(&manager, chat("skilled", "1")).await.expect(200);
    ask(&manager, chat("plain", "2")).await.expect(200);
    ask(&admin, chat("skilled", "3")).await.expect(200);
    let given: Vec<bool> = provider
        .sent()
        .iter()
        .map(|sent| sent.body["messages"][0]["content"].to_string().contains("Working with CyNode"))
        .collect();
    assert_eq!(given, [true, false, false], "S000-095, S000-096");
    let counts: Vec<_> = provider
        .sent()
        .iter()
        .map(|sent| sent.body["messages"].as_array().unwrap().len())
        .collect();
    assert_eq!(counts, [2, 1, 1], "S000-096: without skills the request is as it was");
}

#[tokio::test]
async fn ceilings_of_many_tasks_hide_no_other_and_those_of_ended_tasks_are_left_out() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    // Eleven hundred tasks with a ceiling each: the first hundred have ended.
    app.db.execute(
        "INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, state, started_at, ended_at,
            created_by, created_at, updated_at)
         SELECT gen_random_uuid(), project_id, 'task-' || n, 'Do it', '[]', CASE WHEN n <= 100 THEN 'completed' ELSE 'queued' END,
            CASE WHEN n <= 100 THEN now() END, CASE WHEN n <= 100 THEN now() END, created_by, now(), now()
         FROM projects, generate_series(1, 1100) AS n WHERE slug = 'web'",
    ).await;
    app.db
        .execute(
            "INSERT INTO budgets (budget_id, scope_type, scope_id, period, max_tokens, updated_at)
         SELECT gen_random_uuid(), 'task', task_id, 'total', 5, now() FROM tasks",
        )
        .await;
    let own = json!({ "scope_type": "user", "scope_id": admin.user.unwrap(), "period": "day", "max_tokens": 5 });
    admin.put("/v1/budgets", own).await.expect(200);
    let listed = async || {
        let found = admin.get("/v1/budgets").await.expect(200).json();
        let items = found["items"].as_array().unwrap();
        let kinds = items.iter().map(|item| item["scope_type"].as_str().unwrap().to_owned());
        let mut kinds: Vec<String> = kinds.collect();
        let count = kinds.len();
        kinds.dedup();
        (count, kinds)
    };
    let kinds = ["installation", "user", "task"].map(str::to_owned).to_vec();
    assert_eq!(listed().await, (1000, kinds.clone()));
    app.db.execute("UPDATE tasks SET state = 'cancelled', ended_at = now() WHERE name <> 'task-1100' AND state = 'queued'").await;
    assert_eq!(listed().await, (3, kinds));
}

#[tokio::test]
async fn only_admins_change_providers_models_and_the_installations_ceilings() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    let operator = app.user("olga", Some(UserRole::Operator)).await;
    let provider = json!({ "kind": "scripted", "script": { "rules": says("x") } });
    operator.put("/v1/providers/mine", provider).await.expect(403);
    operator.delete("/v1/providers/tape").await.expect(403);
    operator.post("/v1/providers/tape/keys", json!({ "label": "l", "key": "k" })).await.expect(403);
    operator.delete("/v1/model-registry/small").await.expect(403);
    let budget = json!({ "scope_type": "installation", "period": "month", "max_cost_micros": 1 });
    operator.put("/v1/budgets", budget).await.expect(403);
    let found = admin.get("/v1/budgets").await.expect(200).json();
    let id = found["items"][0]["budget_id"].as_str().unwrap().to_owned();
    operator.delete(&format!("/v1/budgets/{id}")).await.expect(403);
    let own = json!({ "scope_type": "user", "scope_id": operator.user.unwrap(), "period": "day", "max_tokens": 5 });
    operator.put("/v1/budgets", own).await.expect(403);
    admin.delete(&format!("/v1/budgets/{id}")).await.expect(204);
    admin.delete("/v1/model-registry/small").await.expect(204);
    ask(&admin, chat("small", "hi")).await.expect(404);
}

#[tokio::test]
async fn a_provider_is_refused_whose_address_would_let_a_key_travel_in_the_open() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for url in
        ["http://example.org/v1", "ftp://example.org", "https://a:b@example.org/v1", "no address"]
    {
        let body = json!({ "kind": "compatible", "base_url": url });
        admin.put("/v1/providers/far", body).await.expect(422);
    }
    let body = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:11434/v1" });
    assert_eq!(admin.put("/v1/providers/near", body).await.expect(200).json()["local"], true);
    let body = json!({ "kind": "anthropic" });
    let view = admin.put("/v1/providers/far", body).await.expect(200).json();
    assert_eq!((&view["local"], &view["dialect"]), (&json!(false), &json!("messages")));
}

#[tokio::test]
async fn a_projects_own_model_is_asked_before_a_general_one_of_the_same_tier() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    for (name, words) in [("general", "general"), ("own", "own"), ("other", "other")] {
        scripted(&admin, name, true, says(words)).await;
    }
    // By name the general one would be first.
    model(&admin, "a-general", &["general"], json!({ "tier": "fast" })).await;
    model(&admin, "b-own", &["own"], json!({ "tier": "fast", "project_id": web, "tools": true }))
        .await;
    model(&admin, "c-other", &["other"], json!({ "tier": "fast", "project_id": api })).await;
    model(&admin, "d-off", &["own"], json!({ "tier": "fast", "enabled": false })).await;
    let asked = async |project: &str| {
        let client = admin.with_header("openai-project", project);
        words(&ask(&client, chat("cynodeai.fast", "hi")).await.expect(200))
    };
    assert_eq!(asked(&web.to_string()).await, "own");
    assert_eq!(asked("web").await, "own", "by its name");
    assert_eq!(asked("api").await, "other");
    assert_eq!(words(&ask(&admin, chat("cynodeai.fast", "hi")).await.expect(200)), "general");
    let lost = admin.with_header("openai-project", "wep");
    let lost = ask(&lost, chat("cynodeai.fast", "hi")).await.expect(404).json();
    assert_eq!(lost["error"]["message"], "project `wep` does not exist; is `web` meant?");
    // Whoever asks why is told the same.
    let path = format!("/v1/model-choices?project_id={web}&tier=fast");
    let told = admin.get(&path).await.expect(200).json();
    let choice = |model: &str,
                  provider: Option<&str>,
                  position: Option<u32>,
                  own: bool,
                  reason: &str| {
        let mut choice = json!({ "model": model, "project_specific": own, "selected": position == Some(1),
                "reason": reason });
        if let (Some(provider), Some(position)) = (provider, position) {
            choice["provider"] = json!(provider);
            choice["upstream"] = json!("theirs");
            choice["position"] = json!(position);
        }
        choice
    };
    let no_tools = "; it calls no tools, which coding agents need (`--tools`)";
    let fast = json!({ "tier": "fast", "model_id": "cynodeai.fast", "model": "b-own", "choices": [
        choice("b-own", Some("own"), Some(1), true, "the project's own model goes before a general one"),
        choice("a-general", Some("general"), Some(2), false, &format!("a general model, for every project{no_tools}")),
        choice("c-other", None, None, true, "it answers in another project alone"),
        choice("d-off", None, None, false, "it is switched off: `cynork model set d-off …` without --disabled offers it"),
    ] });
    assert_eq!(told, json!({ "project_id": web, "tiers": [fast], "blockers": [] }));
    // A tier that no model is of is answered by the nearest.
    let deep =
        admin.get(&format!("/v1/model-choices?project_id={web}&tier=deep")).await.expect(200);
    let deep = deep.json()["tiers"][0].clone();
    assert_eq!((&deep["model"], &deep["fallback_tier"]), (&json!("b-own"), &json!("fast")));
}

#[tokio::test]
async fn a_model_that_cannot_be_asked_now_is_told_with_what_to_do() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let web = app.project(&admin, "web").await;
    admin.put("/v1/providers/paid", json!({ "kind": "anthropic" })).await.expect(200);
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "a", &["paid"], json!({ "tier": "fast", "tools": true })).await;
    model(&admin, "b", &["tape"], json!({ "tier": "fast", "tools": true })).await;
    let told = async |query: &str| {
        let path = format!("/v1/model-choices?project_id={web}&tier=fast{query}");
        admin.get(&path).await.expect(200).json()
    };
    let first = told("").await["tiers"][0].clone();
    assert_eq!(first["model"], "b");
    assert_eq!(
        first["choices"][0]["reason"],
        "provider `paid` has no key: `cynork provider add-key paid --label first`"
    );
    // An agent's own preferences count for it alone.
    let key = "agents.project_manager.model_routing.allowed_external_providers";
    let body = json!({ "value": [], "expected_version": 0 });
    admin.put(&format!("/v1/preferences/{key}?scope_type=system"), body).await.expect(200);
    let manager = told("&agent_role=project_manager").await["tiers"][0]["choices"].clone();
    assert_eq!(
        manager[1]["reason"],
        "provider `paid` is outside and not in the preference `model_routing.allowed_external_providers`"
    );
    assert_eq!(told("").await["tiers"][0]["choices"].as_array().unwrap().len(), 2);
    // A ceiling without room keeps all of them from being asked.
    let body =
        json!({ "scope_type": "project", "scope_id": web, "period": "total", "max_tokens": 0 });
    admin.put("/v1/budgets", body).await.expect(200);
    let blocked = told("").await["blockers"].clone();
    assert_eq!(
        blocked,
        json!([
            "the project's budget does not cover the worst case of this call (0 of 0 tokens used, 0 held by calls under way); \
            ask an admin to raise it (`cynork budget set`)"
        ])
    );
}

#[tokio::test]
async fn a_ceiling_says_where_it_comes_from() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let sources = async || {
        let found = admin.get("/v1/budgets").await.expect(200).json();
        let items = found["items"].as_array().unwrap().clone();
        items.iter().map(|it| (it["period"].clone(), it["source"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(sources().await, [(json!("month"), json!("default"))]);
    for period in ["day", "month"] {
        let body = json!({ "scope_type": "installation", "period": period, "max_tokens": 1 });
        admin.put("/v1/budgets", body).await.expect(200);
    }
    assert_eq!(
        sources().await,
        [(json!("day"), json!("person")), (json!("month"), json!("person"))]
    );
}

#[tokio::test]
async fn a_question_of_too_many_values_is_refused_and_one_of_a_stranger_is_not_read() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let path = "/v1/chat/completions";
    let status = async |client: &Client, body: &str| {
        client.raw(Method::POST, path, Some(body.to_owned())).await.status().as_u16()
    };
    let bomb = format!("[{}0]", "0,".repeat(300_000));
    for (body, known) in [("{", 400), (bomb.as_str(), 413)] {
        assert_eq!(status(&app.anonymous(), body).await, 401, "{}", body.len());
        assert_eq!(status(&admin, body).await, known, "{}", body.len());
    }
}

#[tokio::test]
async fn a_question_waits_for_memory_and_is_then_refused_until_there_is_some() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    scripted(&admin, "script", true, says("yes")).await;
    model(&admin, "m", &["script"], json!({})).await;
    let long = "x".repeat(40_000);
    assert_eq!(words(&ask(&admin, chat("m", &long)).await), "yes");
    let budget = app.app.body_budget();
    let mut reserved = Vec::new();
    // Four callers take all that is there for large bodies.
    for caller in 0..4 {
        reserved.push(budget.reserve_memory([caller; 32], usize::MAX).await.unwrap());
    }
    let refused = ask(&admin, chat("m", &long)).await;
    assert_eq!((refused.status, refused.headers["retry-after"].to_str().unwrap()), (429, "1"));
    assert_eq!(words(&ask(&admin, chat("m", "short")).await), "yes", "small ones still pass");
    reserved.pop();
    assert_eq!(words(&ask(&admin, chat("m", &long)).await), "yes");
}

#[tokio::test]
async fn a_provider_that_moves_to_another_origin_or_kind_loses_its_keys() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let provider = TestProvider::serve(Behaviour::default()).await;
    let thief = TestProvider::serve(Behaviour::default()).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let set = async |kind: &str, url: String| {
        let body = json!({ "kind": kind, "dialect": "chat", "base_url": url, "local": false });
        let view = admin.put("/v1/providers/far", body).await.expect(200).json();
        let labels = view["keys"].as_array().unwrap().iter().map(|key| key["label"].clone());
        (labels.collect::<Vec<_>>(), view["dropped_keys"].clone())
    };
    let kept = (vec![json!("first")], Value::Null);
    let dropped = (vec![], json!(["first"]));
    assert_eq!(set("compatible", provider.url()).await, kept, "nothing has moved");
    assert_eq!(set("compatible", thief.url()).await, dropped);
    ask(&admin, chat("small", "one")).await.expect(200);
    assert_eq!(set("compatible", provider.url()).await, (vec![], Value::Null), "it stays gone");
    let key = json!({ "label": "first", "key": "far-secret-key-0002" });
    admin.post("/v1/providers/far/keys", key.clone()).await.expect(201);
    assert_eq!(set("openai", provider.url()).await, dropped, "another kind");
    assert_eq!(set("compatible", provider.url()).await, (vec![], Value::Null));
    admin.post("/v1/providers/far/keys", key).await.expect(201);
    ask(&admin, chat("small", "two")).await.expect(200);
    let sent = provider.sent();
    assert_eq!(sent.last().unwrap().headers["authorization"], "Bearer far-secret-key-0002");
    // A provider that is moved in the database does not take its key along.
    let moved = "UPDATE model_providers SET endpoint = jsonb_set(endpoint, '{base_url}', to_jsonb($1::text))";
    assert_eq!(app.db.execute_with(moved, &thief.url()).await, 1);
    app.db.execute("UPDATE routing_epoch SET epoch = epoch + 1").await;
    ask(&admin, chat("small", "three")).await.expect(200);
    let stolen = thief.sent();
    assert_eq!(stolen.len(), 2);
    for sent in stolen {
        assert!(!sent.headers.contains_key("authorization"), "{:?}", sent.headers);
        assert!(!format!("{:?}", sent.headers).contains("secret-key"));
    }
    let changes = app
        .db
        .texts(
            "SELECT data->>'change' FROM events WHERE kind = 'provider_key.set' ORDER BY xact, seq",
        )
        .await;
    assert_eq!(changes, ["added", "dropped", "added", "dropped", "added"]);
}

#[tokio::test]
async fn an_account_sees_general_models_and_those_of_its_projects_only() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    scripted(&admin, "tape", true, says("a")).await;
    model(&admin, "general", &["tape"], json!({ "tier": "fast" })).await;
    model(&admin, "of-web", &["tape"], json!({ "tier": "fast", "project_id": web })).await;
    model(&admin, "of-api", &["tape"], json!({ "tier": "fast", "project_id": api })).await;
    let nobody = app.user("nora", None).await;
    let member = app.user("mia", None).await;
    app.member(web, &member, UserRole::Viewer).await;
    let viewer = app.user("vera", Some(UserRole::Viewer)).await;
    let listed = async |client: &Client| {
        let reply = client.get("/v1/model-registry").await.expect(200);
        let ids = reply.json()["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["id"].clone())
            .collect::<Vec<_>>();
        (ids, String::from_utf8_lossy(&reply.body).contains(&api.to_string()))
    };
    assert_eq!(listed(&nobody).await, (vec![json!("general")], false));
    assert_eq!(listed(&member).await, (vec![json!("general"), json!("of-web")], false));
    let all = vec![json!("general"), json!("of-api"), json!("of-web")];
    assert_eq!(listed(&viewer).await, (all, true));
    // The explanation of a choice names no model of another project either.
    let explained = async |client: &Client| {
        let path = format!("/v1/model-choices?project_id={web}&tier=fast");
        let told = client.get(&path).await.expect(200);
        String::from_utf8_lossy(&told.body).contains("of-api")
    };
    assert_eq!((explained(&member).await, explained(&viewer).await), (false, true));
}
