//! Memory over HTTP, and what agents propose: isolation, search, decisions, forgetting.

use cynode_app::{
    AgentRestrictions, AuthenticatedCaller, Error, OperationRequest,
    memory::{
        self, MemoryHit, MemoryOrigin, MemoryQuery, RememberBy, best_for_prompt,
        records::{prepare_memory, prepare_records, store_records},
    },
};
use cynode_core::{
    accounts::CallerCredential,
    agents::AgentRole,
    ids::{ProjectId, TaskId},
    memory::{MemoryAuthor, MemoryKind, MemoryScope, MemoryText},
    roles::UserRole,
};
use cynode_testkit::{Client, TestApp};
use serde_json::{Value, json};

const MEMORIES: &str = "/v1/projects/web/memories";
const SEARCH: &str = "/v1/projects/web/memories/search";

fn fact(title: &str, content: &str) -> Value {
    json!({ "kind": "fact", "title": title, "content": content })
}

async fn write(client: &Client, title: &str, content: &str) -> Value {
    client.post(MEMORIES, fact(title, content)).await.expect(201).json()
}

async fn found(client: &Client, query: &str) -> Vec<Value> {
    let hits = client.post(SEARCH, json!({ "query": query })).await.expect(200).json();
    hits["hits"].as_array().unwrap().clone()
}

async fn titles(client: &Client, query: &str) -> Vec<String> {
    let hits = found(client, query).await;
    hits.iter().map(|hit| hit["memory"]["title"].as_str().unwrap().to_owned()).collect()
}

fn note(title: &str, content: &str) -> MemoryText {
    MemoryText {
        title: title.to_owned(),
        content: content.to_owned(),
        source: "note".to_owned(),
        path: None,
        url: None,
        commit: None,
    }
}

/// A project with an admin, and an agent of a task in it.
struct World {
    app: TestApp,
    admin: Client,
    project: ProjectId,
    task: TaskId,
    agent: OperationRequest,
}

impl World {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let admin = app.admin().await;
        let project = app.project(&admin, "web").await;
        let task = json!({ "project_id": project, "description": "x" });
        let task: TaskId =
            admin.post("/v1/tasks", task).await.expect(201).text("id").parse().unwrap();
        let token = json!({ "role": "developer", "project_id": project, "task_id": task });
        let token = admin.post("/v1/agent-tokens", token).await.expect(201);
        let bounds = AgentRestrictions { project, person: Some(UserRole::Operator) };
        let caller = AuthenticatedCaller {
            user: admin.user.unwrap(),
            credential: CallerCredential::Agent(token.text("agent_token_id").parse().unwrap()),
            role: None,
            bounds: Some(bounds),
            key: None,
        };
        let trace = app.app.environment().new_trace_id();
        let agent = OperationRequest { caller: Some(caller), trace, attempt: None };
        Self { app, admin, project, task, agent }
    }

    fn scope(&self, profile: &str) -> MemoryScope {
        MemoryScope { project: self.project, profile: profile.parse().unwrap() }
    }

    /// The agent remembers something; its id.
    async fn remember(&self, profile: &str, title: &str, content: &str) -> Result<String, Error> {
        let text = note(title, content);
        let prepared = prepare_memory(&self.app.app, MemoryKind::Finding, text).await?;
        let by = RememberBy { role: Some(AgentRole::Developer), task: Some(self.task) };
        let scope = self.scope(profile);
        let answer = self.app.app.mutate(&self.agent, |ctx| {
            Box::pin(async move { Ok(memory::remember(ctx, &scope, by, prepared).await?.id) })
        });
        Ok(serde_json::from_slice(&answer.await?.body).unwrap())
    }

    /// What the agent of a task finds.
    async fn search(&self, task: Option<TaskId>, text: &str) -> Result<Vec<MemoryHit>, Error> {
        let query =
            MemoryQuery { text: text.to_owned(), limit: 10, task, ..MemoryQuery::default() };
        memory::search_memories(&self.app.app, &self.agent, &self.scope("default"), query).await
    }
}

#[tokio::test]
async fn a_person_writes_what_agents_and_people_find_at_once() {
    let world = World::new().await;
    let (app, admin) = (&world.app, &world.admin);
    let body = json!({ "kind": "convention", "title": "Retries", "content": "Wait twice as long before each retry, at most a minute.",
        "path": "docs/http.md" });
    let made = admin.post(MEMORIES, body).await.expect(201).json();
    assert_eq!(made["state"], "accepted");
    assert_eq!(made["path"], "docs/http.md", "S001-48");
    assert_eq!(made["profile"], "default", "S001-49");
    assert_eq!((&made["author"], &made["source"]), (&json!("person"), &json!("note")));
    write(admin, "Colours", "The console is green.").await;

    let hits = found(admin, "how long do we wait before a retry?").await;
    assert_eq!(hits[0]["memory"], made, "the best hit is first");
    let scores: Vec<f64> = hits.iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert!(
        scores.iter().all(|score| (0.0..=1.0).contains(score)),
        "S001-53: every hit has a score from 0 to 1: {scores:?}"
    );
    assert!(scores.windows(2).all(|pair| pair[0] >= pair[1]), "S001-50: higher is better");
    let hits = world.search(None, "retry").await.unwrap();
    assert_eq!(hits.first().unwrap().memory.text.title, "Retries");

    let path = format!("/v1/memories/{}", made["memory_id"].as_str().unwrap());
    assert_eq!(admin.get(&path).await.expect(200).json(), made);
    let listed = admin.get(&format!("{MEMORIES}?kind=convention")).await.expect(200).json();
    assert_eq!(listed["items"], json!([made]));
    assert_eq!(admin.get(&format!("{MEMORIES}?path_prefix=src/")).await.json()["items"], json!([]));

    // Another process over the same database, as after a restart.
    let (replica, _) = app.replica_app();
    let query = MemoryQuery { text: "retry".into(), limit: 5, ..MemoryQuery::default() };
    let scope = world.scope("default");
    let hits = memory::search_memories(&replica, &world.agent, &scope, query);
    let hit = hits.await.unwrap().into_iter().next().unwrap();
    assert_eq!(hit.memory.scope.profile.as_str(), "default", "S001-52");

    let events = app.db.texts("SELECT data::text FROM events WHERE kind = 'memory.recorded'").await;
    assert_eq!(events.len(), 2);
    for event in events {
        assert!(event.contains("default") && !event.contains("etries") && !event.contains("green"));
    }
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_and_what_hides_is_removed() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    for refused in [
        fact("", "content"),
        fact("two\nlines", "content"),
        fact("title", "  "),
        fact("title", &"x".repeat(16 * 1024 + 1)),
        json!({ "kind": "fact", "title": "t", "content": "c", "profile": "nobody" }),
    ] {
        let status = admin.post(MEMORIES, refused.clone()).await.status;
        assert!(matches!(status, 404 | 422), "{status} {refused}");
    }
    for malformed in [
        json!({ "kind": "rumour", "title": "t", "content": "c" }),
        json!({ "kind": "fact", "title": "t", "content": "c", "state": "accepted" }),
        json!({ "kind": "fact", "title": "t", "content": "c", "profile": "../b" }),
    ] {
        admin.post(MEMORIES, malformed).await.expect(400);
    }
    for body in [json!({ "query": "x", "limit": 0 }), json!({ "query": "x", "limit": 51 })] {
        admin.post(SEARCH, body).await.expect(400);
    }
    for body in [json!({}), json!({ "all": true, "source": "note" })] {
        admin.post(&format!("{MEMORIES}/forget"), body).await.expect(400);
    }
    assert_eq!(app.db.number("SELECT count(*) FROM memories").await, 0);
    let made = write(&admin, "a\u{202e}b", "one\u{200b}two\u{0007}").await;
    assert_eq!((&made["title"], &made["content"]), (&json!("ab"), &json!("onetwo")));
    // A query without a word finds nothing.
    assert_eq!(found(&admin, " ?! ").await, [json!(null); 0]);
}

#[tokio::test]
async fn a_secret_is_removed_before_a_record_is_stored() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let provider = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    admin.put("/v1/providers/tape", provider).await.expect(200);
    let secret = "correct-horse-battery-staple-4711";
    let key = json!({ "label": "first", "key": secret });
    admin.post("/v1/providers/tape/keys", key).await.expect(201);
    let made = write(&admin, &format!("key {secret}"), &format!("The key is {secret}.")).await;
    assert!(!made.to_string().contains(secret), "{made}");
    let path = format!("/v1/memories/{}", made["memory_id"].as_str().unwrap());
    let corrected = json!({ "content": format!("Now it is {secret}!") });
    admin.patch(&path, corrected).await.expect(200);
    let stored = "SELECT count(*) FROM memories m WHERE m::text LIKE '%correct-horse%'";
    assert_eq!(app.db.number(stored).await, 0);
    let indexed = "SELECT count(*) FROM memory_lexemes WHERE term LIKE '%staple%' OR term = '4711'";
    assert_eq!(app.db.number(indexed).await, 0);
}

#[tokio::test]
async fn equal_words_are_one_record_and_equal_scores_are_ordered_by_id() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let first = write(&admin, "Retries", "Wait before a retry.").await;
    let again = write(&admin, "Retries", "Wait before a retry.").await;
    assert_eq!(first, again);
    for source in ["a", "b", "c"] {
        let mut same = fact("Retries", "Wait before a retry.");
        same["source"] = json!(source);
        admin.post(MEMORIES, same).await.expect(201);
    }
    let hits = found(&admin, "retry").await;
    assert_eq!(hits.len(), 4);
    let order: Vec<(String, String)> = hits
        .iter()
        .map(|hit| (hit["score"].to_string(), hit["memory"]["memory_id"].to_string()))
        .collect();
    assert!(order.windows(2).all(|pair| pair[0].0 == pair[1].0 && pair[0].1 < pair[1].1));
    assert_eq!(found(&admin, "retry").await, hits, "S001-50: the same question, the same answer");
}

#[tokio::test]
async fn what_is_more_alike_has_a_higher_score() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    for (title, content) in [
        ("exact", "The scheduler retries a failed delivery three times."),
        ("near", "The scheduler starts each morning and checks the failed jobs."),
        ("far", "Bananas are yellow, and the harbour freezes in winter."),
        ("words", "Someone delivers letters."),
    ] {
        write(&admin, title, content).await;
    }
    let hits = found(&admin, "The scheduler retries a failed delivery three times.").await;
    let order: Vec<_> = hits.iter().map(|hit| hit["memory"]["title"].as_str().unwrap()).collect();
    assert_eq!(order[..2], ["exact", "near"], "S001-78: ordered by score");
    let score = |at: usize| hits[at]["score"].as_f64().unwrap();
    assert!(score(0) > score(1) + 0.1, "S001-78: scores correlate with similarity");
}

#[tokio::test]
async fn identifiers_and_text_without_spaces_are_found_by_their_parts() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    write(&admin, "Client", "fn parseRetryAfter(header: &str) -> max_backoff_millis").await;
    write(&admin, "备份", "数据库备份每天晚上运行。").await;
    write(&admin, "Straße", "Die Straßenbahn fährt über die Brücke.").await;
    assert_eq!(titles(&admin, "retry").await, ["Client"]);
    assert_eq!(titles(&admin, "backoff").await, ["Client"]);
    assert_eq!(titles(&admin, "数据库").await, ["备份"]);
    assert_eq!(titles(&admin, "BRÜCKE").await, ["Straße"]);
}

#[tokio::test]
async fn filters_of_a_search_are_exact_also_behind_many_other_records() {
    let world = World::new().await;
    let texts = |kind, word: &str, count: usize| -> Vec<(MemoryKind, MemoryText)> {
        (0..count)
            .map(|number| {
                let mut text = note(&format!("{word} {number}"), &format!("retry {word} {number}"));
                text.path = Some(format!("{word}/{number}.md"));
                (kind, text)
            })
            .collect()
    };
    let mut all = texts(MemoryKind::Document, "docs", 700);
    all.extend(texts(MemoryKind::Code, "src", 3));
    let prepared = prepare_records(&world.app.app, all).await.unwrap();
    let scope = world.scope("default");
    let origin = MemoryOrigin {
        author: MemoryAuthor::System,
        user: None,
        role: None,
        task: None,
        ingest: None,
        untrusted: true,
    };
    let stored = world.app.app.mutate(&world.agent, |ctx| {
        Box::pin(async move { Ok(store_records(ctx, &scope, &origin, prepared).await?.ids.len()) })
    });
    assert_eq!(stored.await.unwrap().body, b"703");
    for filter in [json!({ "kinds": ["code"] }), json!({ "path_prefix": "src/" })] {
        let mut body = json!({ "query": "retry docs", "limit": 50 });
        body.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
        let hits = world.admin.post(SEARCH, body).await.expect(200).json();
        let hits = hits["hits"].as_array().unwrap();
        assert_eq!(hits.len(), 3, "{filter}");
        for hit in hits {
            assert!(hit["memory"]["path"].as_str().unwrap().starts_with("src/"), "{hit}");
        }
    }
}

#[tokio::test]
async fn what_an_agent_remembers_is_found_by_others_only_after_a_person_accepted_it() {
    let world = World::new().await;
    let id = world.remember("default", "Deploys", "Deploys need the blue key.").await.unwrap();
    let own = Some(world.task);
    assert_eq!(world.search(own, "deploys").await.unwrap().len(), 1, "the same task finds it");
    assert_eq!(world.search(None, "deploys").await.unwrap().len(), 0, "another one does not");
    assert_eq!(titles(&world.admin, "deploys").await, [""; 0]);
    let scope = world.scope("default");
    let given = best_for_prompt(&world.app.app, &scope, "deploys", 500).await.unwrap();
    assert!(given.is_empty(), "no prompt has what nobody accepted");
    let path = format!("/v1/memories/{id}");
    let proposal = world.admin.get(&path).await.expect(200).json();
    assert_eq!(proposal["state"], "proposed");
    assert_eq!((&proposal["role"], &proposal["untrusted"]), (&json!("developer"), &json!(true)));

    // Agents decide nothing.
    let memory_id = id.parse().unwrap();
    let refused = world.app.app.mutate(&world.agent, |ctx| {
        Box::pin(async move { Ok(memory::accept(ctx, memory_id).await?.id) })
    });
    assert!(matches!(refused.await, Err(Error::Forbidden { .. })));

    let accepted =
        world.admin.post(&format!("{path}/accept"), json!(null)).await.expect(200).json();
    assert_eq!(accepted["state"], "accepted");
    assert_eq!(accepted["decided_by"], json!(world.admin.user.unwrap()));
    assert_eq!(world.search(None, "deploys").await.unwrap().len(), 1);
    let given = best_for_prompt(&world.app.app, &scope, "deploys", 500).await.unwrap();
    assert!(given.len() == 1 && given[0].untrusted, "{given:?}");

    let rejected =
        world.admin.post(&format!("{path}/reject"), json!(null)).await.expect(200).json();
    assert_eq!(rejected["state"], "rejected");
    assert_eq!(world.search(own, "deploys").await.unwrap().len(), 0);
    let again = world.remember("default", "Deploys", "Deploys need the blue key.").await.unwrap();
    assert_eq!(again, id, "what was rejected is not proposed again");
    assert_eq!(world.search(own, "deploys").await.unwrap().len(), 0);
    assert_eq!(world.app.db.number("SELECT count(*) FROM memory_lexemes").await, 0);
}

#[tokio::test]
async fn the_rule_of_the_installation_decides_about_proposals() {
    let world = World::new().await;
    let own = Some(world.task);
    let rule = |value: &str| json!({ "value": value, "expected_version": 0 });
    world.admin.put("/v1/settings/memory.accept", rule("nobody")).await.expect(422);
    let first = rule("person");
    world.admin.put("/v1/settings/memory.accept", first).await.expect(200);
    world.remember("default", "Deploys", "Deploys need the blue key.").await.unwrap();
    assert_eq!(world.search(own, "deploys").await.unwrap().len(), 0, "not even the same task");
    let second = json!({ "value": "all", "expected_version": 1 });
    world.admin.put("/v1/settings/memory.accept", second).await.expect(200);
    world.remember("default", "Backups", "Backups run at night.").await.unwrap();
    assert_eq!(titles(&world.admin, "backups").await, ["Backups"]);
    assert_eq!(titles(&world.admin, "deploys").await, [""; 0]);
}

#[tokio::test]
async fn an_agent_has_its_project_and_the_profile_of_its_token_only() {
    let world = World::new().await;
    let own = json!({ "name": "own", "spec": { "tools": ["*"], "memory": "write" } });
    world.admin.post("/v1/profiles", own).await.expect(201);
    let refused = world.remember("own", "Deploys", "Deploys need the blue key.").await;
    assert!(matches!(refused, Err(Error::NotFound { .. })), "S001-14: {refused:?}");
    let other = world.app.project(&world.admin, "api").await;
    let scope = MemoryScope { project: other, ..world.scope("default") };
    let query = MemoryQuery { text: "x".into(), limit: 5, ..MemoryQuery::default() };
    let refused = memory::search_memories(&world.app.app, &world.agent, &scope, query).await;
    assert!(matches!(refused, Err(Error::NotFound { .. })), "S001-14");
    assert_eq!(world.app.db.number("SELECT count(*) FROM memory_partitions").await, 0);
}

#[tokio::test]
async fn an_agent_takes_back_only_its_own_proposal() {
    let world = World::new().await;
    let own = world.remember("default", "Deploys", "Deploys need the blue key.").await.unwrap();
    let made = write(&world.admin, "Backups", "Backups run at night.").await;
    let by = RememberBy { role: Some(AgentRole::Developer), task: Some(world.task) };
    let other = RememberBy { task: None, ..by };
    for (id, by, works) in [
        (made["memory_id"].as_str().unwrap(), by, false),
        (own.as_str(), other, false),
        (own.as_str(), by, true),
        (own.as_str(), by, false),
    ] {
        let (id, scope) = (id.parse().unwrap(), world.scope("default"));
        let done = world.app.app.mutate(&world.agent, |ctx| {
            Box::pin(async move { memory::forget_own_proposal(ctx, &scope, by, id).await })
        });
        assert_eq!(done.await.is_ok(), works, "{id} {by:?}");
    }
    assert_eq!(world.app.db.texts("SELECT title FROM memories").await, ["Backups"]);
}

#[tokio::test]
async fn a_correction_takes_the_place_of_a_record() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let old = write(&admin, "Ports", "The server listens on seventeen.").await;
    let path = format!("/v1/memories/{}", old["memory_id"].as_str().unwrap());
    let change = json!({ "content": "The server listens on eighteen.", "pinned": true });
    let new = admin.patch(&path, change).await.expect(200).json();
    assert_eq!(new["supersedes"], old["memory_id"]);
    assert_eq!((&new["pinned"], &new["title"]), (&json!(true), &json!("Ports")));
    let hits = found(&admin, "where does the server listen, on seventeen?").await;
    assert_eq!(hits.len(), 1, "the old one is no longer found");
    assert_eq!(hits[0]["memory"]["memory_id"], new["memory_id"]);
    assert_eq!(admin.get(&path).await.expect(200).json()["superseded_by"], new["memory_id"]);
    assert_eq!(admin.get(MEMORIES).await.json()["items"].as_array().unwrap().len(), 1);
    let all = admin.get(&format!("{MEMORIES}?superseded=true")).await.json();
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
    admin.patch(&path, json!({ "pinned": false })).await.expect(409);
    admin.post(&format!("{path}/accept"), json!(null)).await.expect(409);
    admin.patch(&path, json!({})).await.expect(422);
    // To forget the newest version forgets all of them.
    let path = format!("/v1/memories/{}", new["memory_id"].as_str().unwrap());
    admin.delete(&path).await.expect(204);
    admin.get(&path).await.expect(404);
    assert_eq!(app.db.number("SELECT count(*) FROM memories").await, 0);
    assert_eq!(app.db.number("SELECT count(*) FROM memory_lexemes").await, 0);
}

#[tokio::test]
async fn a_correction_can_be_taken_back_and_what_was_corrected_is_not_written_again() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let path = |record: &Value| format!("/v1/memories/{}", record["memory_id"].as_str().unwrap());
    let (one, two) = ("It listens on seventeen.", "It listens on eighteen.");
    let first = write(&admin, "Ports", one).await;
    let change = json!({ "content": two });
    let second = admin.patch(&path(&first), change).await.expect(200).json();
    let refused = admin.post(MEMORIES, fact("Ports", one)).await.expect(409);
    assert!(refused.text("detail").contains("supersedes"), "the one that counts is another");
    let back = json!({ "content": one });
    let third = admin.patch(&path(&second), back).await.expect(200).json();
    assert_eq!((&third["content"], &third["supersedes"]), (&json!(one), &second["memory_id"]));
    admin.get(&path(&first)).await.expect(404);
    let earlier = admin.get(&path(&second)).await.expect(200).json();
    assert_eq!(
        (&earlier["supersedes"], &earlier["superseded_by"]),
        (&json!(null), &third["memory_id"])
    );
    assert_eq!(titles(&admin, "seventeen").await, ["Ports"]);
    admin.delete(&path(&third)).await.expect(204);
    assert_eq!(app.db.number("SELECT count(*) FROM memories").await, 0);
}

#[tokio::test]
async fn a_corrected_proposal_is_open_no_more_and_a_strangers_text_stays_untrusted() {
    let world = World::new().await;
    let id = world.remember("default", "Deploys", "Deploys need the blue key.").await.unwrap();
    let path = format!("/v1/memories/{id}");
    let renamed = json!({ "title": "How to deploy", "kind": "fact" });
    let renamed = world.admin.patch(&path, renamed).await.expect(200).json();
    assert_eq!(renamed["untrusted"], true, "the text is still that of the agent");
    let hits = world.search(Some(world.task), "deploys").await.unwrap();
    let found: Vec<&str> = hits.iter().map(|hit| hit.memory.text.title.as_str()).collect();
    assert_eq!(found, ["How to deploy"], "the proposal is found no more");
    let by = RememberBy { role: Some(AgentRole::Developer), task: Some(world.task) };
    let (own, scope) = (id.parse().unwrap(), world.scope("default"));
    let taken = world.app.app.mutate(&world.agent, |ctx| {
        Box::pin(async move { memory::forget_own_proposal(ctx, &scope, by, own).await })
    });
    assert!(matches!(taken.await, Err(Error::NotFound { .. })));
    let path = format!("/v1/memories/{}", renamed["memory_id"].as_str().unwrap());
    let written = json!({ "content": "Deploys need the green key." });
    let written = world.admin.patch(&path, written).await.expect(200).json();
    assert_eq!(written["untrusted"], false, "a person wrote this text");
}

#[tokio::test]
async fn an_answer_that_is_kept_for_a_repeat_shows_no_text() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let keyed = |key: &str| admin.with_header("idempotency-key", key);
    let made = write(&keyed("k1"), "Harbour", "The harbour freezes.").await;
    assert_eq!(write(&keyed("k1"), "Harbour", "The harbour freezes.").await, made);
    let path = format!("/v1/memories/{}", made["memory_id"].as_str().unwrap());
    keyed("k2").post(&format!("{path}/reject"), json!(null)).await.expect(200);
    keyed("k3").post(&format!("{path}/accept"), json!(null)).await.expect(200);
    let change = json!({ "content": "The harbour thaws." });
    keyed("k4").patch(&path, change).await.expect(200);
    let kept = "SELECT count(*) FROM idempotency_keys WHERE key IN ('k1', 'k2', 'k3', 'k4')";
    assert_eq!(app.db.number(kept).await, 4);
    let shown =
        "SELECT count(*) FROM idempotency_keys WHERE position('harbour'::bytea IN answer) > 0";
    assert_eq!(app.db.number(shown).await, 0);
}

#[tokio::test]
async fn records_are_forgotten_by_source_by_age_and_all_together() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    for (title, source) in
        [("old", "note"), ("pinned", "note"), ("new", "note"), ("page", "https://example.com")]
    {
        let mut body = fact(title, &format!("The {title} record about retries."));
        body["source"] = json!(source);
        admin.post(MEMORIES, body).await.expect(201);
    }
    app.db
        .execute(
            "UPDATE memories SET created_at = created_at - interval '30 days', pinned = title = 'pinned'
             WHERE title IN ('old', 'pinned')",
        )
        .await;
    let forget = format!("{MEMORIES}/forget");
    let body = json!({ "older_than_days": 7 });
    let done = admin.post(&forget, body.clone()).await.expect(200).json();
    assert_eq!(done, json!({ "forgotten": 1, "more": false }), "a pinned record outlives its age");
    let mut left = titles(&admin, "retries").await;
    left.sort();
    assert_eq!(left, ["new", "page", "pinned"]);
    let done = admin.post(&forget, json!({ "source": "https://example.com" })).await.expect(200);
    assert_eq!(done.json()["forgotten"], 1);
    let done = admin.post(&forget, json!({ "all": true })).await.expect(200).json();
    assert_eq!(done["forgotten"], 2);
    for table in [
        "SELECT count(*) FROM memories",
        "SELECT count(*) FROM memory_lexemes",
        "SELECT count(*) FROM memory_partitions",
    ] {
        assert_eq!(app.db.number(table).await, 0, "{table}");
    }
    assert_eq!(admin.post(&forget, body).await.expect(200).json()["forgotten"], 0);
}

#[tokio::test]
async fn an_export_has_every_record_of_the_profile_and_no_other() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let own = json!({ "name": "own", "spec": {} });
    admin.post("/v1/profiles", own).await.expect(201);
    for number in 0..120 {
        write(&admin, &format!("record {number}"), "text").await;
    }
    let mut other = fact("other", "text");
    other["profile"] = json!("own");
    admin.post(MEMORIES, other).await.expect(201);
    let exported = admin.get(&format!("{MEMORIES}/export")).await.expect(200);
    assert_eq!(exported.headers["content-type"], "application/x-ndjson");
    let text = String::from_utf8(exported.body.to_vec()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 120);
    assert!(lines.iter().all(|line| line["profile"] == "default" && line["title"] != "other"));
    let none = admin.get(&format!("{MEMORIES}/export?profile=offline")).await.expect(200);
    assert!(none.body.is_empty());
}

#[tokio::test]
async fn prompts_get_the_best_records_within_their_budget() {
    let world = World::new().await;
    let long = "The scheduler retries a delivery. ".repeat(100);
    write(&world.admin, "Scheduler", &long).await;
    write(&world.admin, "Harbour", "The harbour freezes in winter.").await;
    let scope = world.scope("default");
    let given = best_for_prompt(&world.app.app, &scope, "make the scheduler retry less", 200);
    let given = given.await.unwrap();
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(given[0].title, "Scheduler");
    assert!(given[0].estimated_tokens() <= 200 && given[0].text.len() < long.len());
    assert!(!given[0].untrusted && given[0].source == "note");
    let none = best_for_prompt(&world.app.app, &scope, "make the scheduler retry less", 0).await;
    assert!(none.unwrap().is_empty());
}

/// Pseudo-random numbers, the same in every run.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: u64) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % bound).unwrap()
    }
}

#[tokio::test]
async fn nothing_of_one_profile_or_project_is_returned_ranked_or_counted_in_another() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let web = app.project(&admin, "web").await;
    app.project(&admin, "api").await;
    admin.post("/v1/profiles", json!({ "name": "own", "spec": {} })).await.expect(201);
    let scopes = [("web", "default"), ("web", "own"), ("api", "default")];
    let words = ["retry", "delivery", "scheduler", "harbour", "winter", "key"];
    let mut random = Sequence(25);
    let search = async |(project, profile): (&str, &str), query: &str| {
        let path = format!("/v1/projects/{project}/memories/search");
        let body = json!({ "query": query, "profile": profile, "limit": 50 });
        admin.post(&path, body).await.expect(200).json()
    };
    for number in 0..120 {
        let at = random.below(3);
        let (project, profile) = scopes[at];
        let watched = scopes[(at + 1 + random.below(2)) % 3];
        let query = words[random.below(6)];
        let before = search(watched, query).await;
        let content = format!("{} {} {number}", words[random.below(6)], words[random.below(6)]);
        let body = json!({ "kind": "fact", "title": format!("{project} {profile}"), "content": content, "profile": profile });
        let made = admin.post(&format!("/v1/projects/{project}/memories"), body).await.expect(201);
        if random.below(6) == 0 {
            admin.delete(&format!("/v1/memories/{}", made.text("memory_id"))).await.expect(204);
        }
        // Records, order and scores of another scope are what they were, to the last bit.
        assert_eq!(search(watched, query).await, before, "B001-24: {number}");
        for hit in search((project, profile), query).await["hits"].as_array().unwrap() {
            assert_eq!(hit["memory"]["title"], format!("{project} {profile}"), "S001-14");
        }
    }
    // For a person of one project the records of another do not exist, whatever is asked.
    let ada = app.user("ada", None).await;
    app.member(web, &ada, UserRole::Operator).await;
    let made = admin.post("/v1/projects/api/memories", fact("api", "retry")).await.expect(201);
    let path = format!("/v1/memories/{}", made.text("memory_id"));
    ada.get(&path).await.expect(404);
    ada.patch(&path, json!({ "pinned": true })).await.expect(404);
    ada.patch(&path, json!({ "content": "x" })).await.expect(404);
    ada.delete(&path).await.expect(404);
    ada.post(&format!("{path}/reject"), json!(null)).await.expect(404);
    ada.get("/v1/projects/api/memories").await.expect(404);
    ada.get("/v1/projects/api/memories/export").await.expect(404);
    ada.post("/v1/projects/api/memories/search", json!({ "query": "retry" })).await.expect(404);
    assert_eq!(admin.get(&path).await.expect(200).json(), made.json());
}

#[tokio::test]
async fn the_quota_of_a_partition_is_kept() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.project(&admin, "web").await;
    let most = json!({ "value": 2, "expected_version": 0 });
    admin.put("/v1/settings/memory.max_records_per_partition", most).await.expect(200);
    write(&admin, "one", "text").await;
    write(&admin, "two", "text").await;
    let refused = admin.post(MEMORIES, fact("three", "text")).await;
    assert!(refused.text("detail").contains("memory.max_records_per_partition"));
    assert_eq!(app.db.number("SELECT count(*) FROM memories").await, 2);
}
