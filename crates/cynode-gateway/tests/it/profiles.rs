//! Profiles at the gateway: each thing that a profile does not name is refused where it is used, also to tokens that exist.

use std::sync::Arc;

use axum::{
    Router,
    response::Redirect,
    routing::{any, get},
};
use cynode_core::{
    policies::PolicySet,
    profiles::{NetworkRule, ProfileSpec},
};
use cynode_gateway::{EgressClient, EgressError, EgressRequest};
use cynode_policy::agents::AgentProfile;
use cynode_testkit::mcp::Agent;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use crate::bench::{Bench, promised};

async fn verdict(agent: &Agent, tool: &str, arguments: Value) -> String {
    agent.call(tool, arguments).await.verdict()
}

async fn create(bench: &Bench, name: &str, spec: Value) {
    let body = json!({ "name": name, "spec": spec });
    bench.admin.post("/v1/profiles", body).await.expect(201);
}

async fn under(bench: &Bench, profile: &str) -> Agent {
    bench.agent_with("developer", json!({ "profile": profile })).await
}

/// A site on this machine, reached as `127.0.0.1` and as `localhost`.
struct Site {
    port: u16,
    _serving: JoinSet<()>,
}

impl Site {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let elsewhere = format!("http://localhost:{port}/page");
        let results = json!({ "results": [
            { "title": "Retries", "url": "https://docs.example/retries", "content": "Three." },
        ] })
        .to_string();
        let router = Router::new()
            .route("/page", any(|| async { "a page" }))
            .route("/away", get(move || std::future::ready(Redirect::temporary(&elsewhere))))
            .route("/near", get(|| async { Redirect::temporary("/page") }))
            .route("/search", get(move || std::future::ready(results.clone())));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { port, _serving: serving }
    }

    fn hosts(&self) -> Vec<String> {
        ["127.0.0.1", "localhost"].map(|host| format!("{host}:{}", self.port)).into()
    }

    fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port)
    }
}

/// A profile that permits these methods at this host.
fn profile(domain: &str, methods: &[&str]) -> AgentProfile {
    let methods = methods.iter().map(|method| (*method).to_owned()).collect();
    let network = vec![NetworkRule { domain: domain.to_owned(), methods }];
    let spec = ProfileSpec { network, ..ProfileSpec::default() };
    AgentProfile { name: "narrow".into(), version: 3, spec: Arc::new(spec) }
}

#[tokio::test]
async fn what_a_profile_does_not_name_is_not_listed_and_cannot_be_called() {
    let bench = Bench::new().await;
    create(&bench, "narrow", json!({ "tools": ["help.*", "skills.list"] })).await;
    let agent = under(&bench, "narrow").await;
    assert_eq!(verdict(&agent, "skills.list", json!({})).await, "ok");
    let refused = agent.call("artifact.list", json!({ "task_id": bench.task })).await;
    assert_eq!(refused.verdict(), "refused not_in_profile", "S001-10, B001-13");
    assert!(refused.text().contains("`narrow`"), "{}", refused.text());
    let listed = agent.tools().await;
    assert!(listed.contains(&"skills__list".to_owned()), "B001-14: {listed:?}");
    assert!(!listed.contains(&"artifact__list".to_owned()), "B001-14: {listed:?}");
    let records = bench.records().await;
    let record = records.iter().find(|record| record["tool"] == "artifact.list").unwrap();
    assert_eq!(
        (&record["profile"], &record["reason"], &record["outcome"]),
        (&json!("narrow"), &json!("not_in_profile"), &json!("not_forwarded")),
        "B001-13: the record has profile, tool and code, and no handler ran"
    );
}

#[tokio::test]
async fn a_change_of_a_profile_reaches_tokens_that_exist_and_its_deletion_ends_what_they_can_do() {
    let bench = Bench::new().await;
    create(&bench, "changing", json!({ "tools": ["help.*", "skills.list"] })).await;
    let agent = under(&bench, "changing").await;
    assert_eq!(verdict(&agent, "skills.list", json!({})).await, "ok");
    let body = json!({ "expected_version": 1, "spec": { "tools": ["help.*"] } });
    bench.admin.put("/v1/profiles/changing", body).await.expect(200);
    promised().await;
    assert_eq!(verdict(&agent, "skills.list", json!({})).await, "refused not_in_profile", "X-13");
    assert_eq!(agent.tools().await, ["help__overview", "help__tool"], "X-13");
    assert_eq!(verdict(&agent, "help.overview", json!({})).await, "ok");
    bench.admin.delete("/v1/profiles/changing").await.expect(204);
    promised().await;
    let refused = verdict(&agent, "help.overview", json!({})).await;
    assert_eq!(refused, "refused unknown_profile", "X-13: nothing falls back to `default`");
    assert_eq!(agent.tools().await, Vec::<String>::new());
    let last = bench.story().await.pop().unwrap();
    assert!(last.contains("deny unknown_profile not_forwarded"), "{last}");
}

#[tokio::test]
async fn a_profile_of_a_project_holds_there_before_its_namesake_and_nowhere_else() {
    let bench = Bench::new().await;
    create(&bench, "local", json!({ "tools": ["help.*"] })).await;
    let own = json!({ "name": "local", "project_id": bench.project, "spec": { "tools": ["skills.list"] } });
    bench.admin.post("/v1/profiles", own).await.expect(201);
    let elsewhere = bench.app.project(&bench.admin, "other").await;
    let task = bench.task_in(elsewhere).await;
    let here = under(&bench, "local").await;
    let more = json!({ "project_id": elsewhere, "task_id": task, "profile": "local" });
    let there = bench.agent_with("developer", more).await;
    assert_eq!(verdict(&here, "skills.list", json!({})).await, "ok", "X-13");
    assert_eq!(verdict(&here, "help.overview", json!({})).await, "refused not_in_profile");
    assert_eq!(verdict(&there, "help.overview", json!({})).await, "ok", "X-13");
    assert_eq!(verdict(&there, "skills.list", json!({})).await, "refused not_in_profile");
    let own = format!("/v1/profiles/local?project_id={}", bench.project);
    bench.admin.delete(&own).await.expect(204);
    promised().await;
    let refused = verdict(&here, "help.overview", json!({})).await;
    assert_eq!(refused, "refused unknown_profile", "X-13: its namesake does not follow");
    assert_eq!(verdict(&there, "help.overview", json!({})).await, "ok");
}

#[tokio::test]
async fn memory_is_open_as_far_as_the_profile_says() {
    let bench = Bench::new().await;
    for access in ["none", "read"] {
        create(&bench, access, json!({ "tools": ["memory.*"], "memory": access })).await;
    }
    let query = json!({ "query": "retries" });
    let fact = json!({ "kind": "fact", "title": "Retries", "text": "There are three." });
    let none = under(&bench, "none").await;
    for (tool, arguments) in [("memory.search", &query), ("memory.remember", &fact)] {
        let refused = verdict(&none, tool, arguments.clone()).await;
        assert_eq!(refused, "refused not_in_profile", "S001-14: {tool}");
    }
    let read = under(&bench, "read").await;
    assert_eq!(verdict(&read, "memory.search", query).await, "ok");
    assert_eq!(verdict(&read, "memory.remember", fact).await, "refused not_in_profile");
}

#[tokio::test]
async fn each_hop_of_a_request_is_checked_by_host_and_method() {
    let site = Site::start().await;
    let egress = EgressClient::new(site.hosts()).unwrap();
    let send = async |method: Method, url: String, profile: AgentProfile| {
        let (headers, body, policies) = (Vec::new(), None, PolicySet::default());
        let request = EgressRequest { method, url, headers, body, policies, profile };
        egress.send_request(request).await.map(|answered| answered.status)
    };
    let here = || profile("127.0.0.1", &["GET", "POST"]);
    let url = |path: &str| site.url("127.0.0.1", path);
    assert_eq!(send(Method::GET, url("/page"), here()).await, Ok(200));
    assert_eq!(send(Method::POST, url("/page"), here()).await, Ok(200));
    assert_eq!(send(Method::GET, url("/near"), here()).await, Ok(200), "the same host");
    let refused = [
        send(Method::DELETE, url("/page"), here()).await,
        send(Method::GET, site.url("localhost", "/page"), here()).await,
        send(Method::GET, url("/away"), here()).await,
        send(Method::GET, url("/page"), AgentProfile::default()).await,
    ];
    for (place, answer) in refused.into_iter().enumerate() {
        let Err(EgressError::ProfileDenied(told)) = answer else {
            panic!("S001-40: {place} is {answer:?}");
        };
        assert!(told.contains("the profile `"), "S001-40: {told}");
    }
    let everywhere = profile("*", &["*"]);
    assert_eq!(send(Method::GET, url("/away"), everywhere).await, Ok(200));
}

#[tokio::test]
async fn a_header_that_names_another_method_is_refused() {
    let site = Site::start().await;
    let egress = EgressClient::new(site.hosts()).unwrap();
    for name in ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override"] {
        let request = EgressRequest {
            method: Method::GET,
            url: site.url("127.0.0.1", "/page"),
            headers: vec![(name.to_owned(), "DELETE".to_owned())],
            body: None,
            policies: PolicySet::default(),
            profile: profile("127.0.0.1", &["GET"]),
        };
        let refused = egress.send_request(request).await.map(|answered| answered.status);
        assert!(matches!(refused, Err(EgressError::Refused(_))), "S001-40: {name}: {refused:?}");
    }
}

#[tokio::test]
async fn an_agent_with_research_reads_a_page_and_one_with_offline_is_told_why_not() {
    let bench = Bench::new().await;
    let site = Site::start().await;
    let gateway = bench.app.gateway_with_open_hosts(site.hosts()).await;
    let page = json!({ "url": site.url("localhost", "/page") });
    let research = under(&bench, "research").await.at(&gateway);
    let read = research.call("web.fetch", page.clone()).await;
    assert_eq!(read.verdict(), "ok", "S001-40: {}", read.json());
    assert_eq!(read.value()["body"], "a page");
    let post = json!({ "method": "POST", "url": site.url("localhost", "/page") });
    let refused = research.call("api.call", post).await;
    assert_eq!(refused.verdict(), "failed egress_refused", "S001-40");
    assert!(refused.json().to_string().contains("`research`"), "{}", refused.json());
    let offline = under(&bench, "offline").await.at(&gateway);
    let refused = offline.call("web.fetch", page.clone()).await;
    assert_eq!(refused.verdict(), "refused not_in_profile", "S001-40");
    assert!(refused.text().contains("`offline`"), "S001-40: {}", refused.text());
    let default = under(&bench, "default").await.at(&gateway);
    assert_eq!(verdict(&default, "web.fetch", page).await, "refused network_denied", "S001-40");
    gateway.close().await;
}

#[tokio::test]
async fn a_search_asks_the_provider_of_the_installation_and_is_refused_without_one() {
    let bench = Bench::new().await;
    let site = Site::start().await;
    let gateway = bench.app.gateway_with_open_hosts(site.hosts()).await;
    create(
        &bench,
        "docs",
        json!({ "tools": ["web.*"], "network": [
        { "domain": "docs.example", "methods": ["GET"] } ] }),
    )
    .await;
    let agent = under(&bench, "docs").await.at(&gateway);
    let query = json!({ "query": "how many retries" });
    let refused = agent.call("web.search", query.clone()).await;
    assert_eq!(refused.verdict(), "failed not_configured");
    assert!(refused.json().to_string().contains("web.search_url"), "{}", refused.json());
    bench
        .admin
        .put("/v1/settings/web.search_url", json!({ "value": "ftp://x/", "expected_version": 0 }))
        .await
        .expect(422);
    bench.setting("web.search_url", json!(site.url("127.0.0.1", "/search"))).await;
    let found = agent.call("web.search", query.clone()).await;
    assert_eq!(found.verdict(), "ok", "{}", found.json());
    let found = found.value();
    assert_eq!(found["results"][0]["url"], "https://docs.example/retries");
    assert_eq!(found["untrusted"], true, "what strangers wrote is marked");
    let offline = under(&bench, "default").await.at(&gateway);
    let refused = verdict(&offline, "web.search", query).await;
    assert_eq!(refused, "refused network_denied", "S001-40: a search is a request, too");
    gateway.close().await;
}

#[tokio::test]
async fn a_model_is_asked_only_when_token_and_profile_have_it() {
    let bench = Bench::new().await;
    let answer = json!({ "text": "four", "usage": { "input": 10, "output": 5 } });
    let script = json!({ "rules": [{ "answer": answer }] });
    let provider = json!({ "kind": "scripted", "local": true, "script": script });
    bench.admin.put("/v1/providers/tape", provider).await.expect(200);
    let prices = json!({ "input": 1_000_000, "cached": 1_000_000, "cache_write": 1_000_000, "output": 1_000_000 });
    let route = json!({ "provider": "tape", "upstream": "theirs", "prices": prices });
    for model in ["small-one", "large"] {
        let model_body =
            json!({ "context_tokens": 1000, "max_output_tokens": 10, "routes": [route] });
        let path = format!("/v1/model-registry/{model}");
        bench.admin.put(&path, model_body).await.expect(200);
    }
    create(&bench, "thrifty", json!({ "tools": ["model.*"], "models": ["small-*"] })).await;
    let more = json!({ "profile": "thrifty", "models": ["small-one", "large"] });
    let issued = bench.issue(&bench.admin, "developer", more).await;
    let direct = bench.app.at_internal_port().with_token(issued["token"].as_str().unwrap());
    let ask = |model: &str| {
        let messages = json!([{ "role": "user", "content": "two and two?" }]);
        json!({ "model": model, "messages": messages })
    };
    direct.post("/v1/chat/completions", ask("small-one")).await.expect(200);
    let refused = direct.post("/v1/chat/completions", ask("large")).await.expect(403).json();
    assert_eq!(refused["error"]["code"], "model_not_in_profile", "S001-10");
    let offered = direct.get("/v1/models").await.expect(200).json();
    let ids: Vec<_> = offered["data"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, ["small-one"], "S001-10");

    let agent = bench.holding(&issued).await;
    let listed = agent.call("model.list", json!({})).await.value();
    assert_eq!(listed["models"].as_array().unwrap().len(), 1);
    let question = |model: &str| json!({ "model": model, "prompt": "two and two?" });
    let answered = agent.call("model.ask", question("small-one")).await;
    assert_eq!(answered.verdict(), "ok", "{}", answered.json());
    assert_eq!(answered.value()["text"], "four");
    let refused = verdict(&agent, "model.ask", question("large")).await;
    assert_eq!(refused, "failed model_not_in_profile", "S001-10");
    bench.app.settled().await;
    let charged =
        "SELECT count(*) FROM model_calls WHERE task_id IS NOT NULL AND model = 'small-one'";
    assert_eq!(bench.app.db.number(charged).await, 2, "both calls are charged to the task");
    bench.admin.delete("/v1/profiles/thrifty").await.expect(204);
    let refused = direct.post("/v1/chat/completions", ask("small-one")).await.expect(403).json();
    assert_eq!(refused["error"]["code"], "unknown_profile", "X-13");
}
