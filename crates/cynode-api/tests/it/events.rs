//! The stream of events.

use std::time::Duration;

use axum::{body::BodyDataStream, http::Method};
use cynode_app::platform::stream_limits::MAX_EVENT_STREAMS_PER_ACCOUNT;
use cynode_core::roles::UserRole;
use cynode_testkit::{Client, TestApp};
use futures::StreamExt;
use serde_json::{Value, json};

/// A client's side of a stream.
pub(crate) struct Stream {
    body: BodyDataStream,
    text: String,
}

/// One event as a client sees it.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

impl Stream {
    pub(crate) async fn open(client: &Client, path: &str) -> Self {
        let response = client.raw(Method::GET, path, None).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body().into_data_stream(), text: String::new() }
    }

    /// The next event; `None` when the server ended the stream.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                if frame.starts_with(':') {
                    continue;
                }
                let field = |name: &str| {
                    let line = frame.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().trim().to_owned()
                };
                let data = serde_json::from_str(&field("data:")).unwrap();
                return Some(Frame { id: field("id:"), kind: field("event:"), data });
            }
            let chunk = tokio::time::timeout(Duration::from_secs(10), self.body.next());
            let chunk = chunk.await.expect("an event within ten seconds")?.unwrap();
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

/// Writes an event that is seen when its transaction is committed.
pub(crate) async fn write_one(conn: &mut cynode_db::Conn) {
    let event = cynode_db::tasks::events::NewEvent {
        kind: cynode_core::events::EventKind::SettingSet,
        actor: None,
        subject: None,
        project: None,
        task: None,
        data: json!({ "slow": true }),
    };
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736".parse().unwrap();
    cynode_db::tasks::events::insert_event(conn, &event, trace, cynode_testkit::NOW).await.unwrap();
}

async fn make_project(client: &Client, slug: &str) {
    client.post("/v1/projects", json!({ "slug": slug, "title": slug })).await.expect(201);
}

#[tokio::test]
async fn what_happens_arrives_with_who_where_and_why() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    make_project(&admin, "web").await;
    let event = stream.next().await.unwrap();
    assert_eq!(event.kind, "project.created");
    assert_eq!(event.data["id"], event.id.as_str());
    assert_eq!(event.data["actor_id"], json!(admin.user));
    assert_eq!(event.data["data"], json!({ "slug": "web" }), "S004-147: followers get the event");
    assert_eq!(event.data["occurred_at"], "2026-11-01T12:00:00Z");
}

#[tokio::test]
async fn a_client_that_comes_back_misses_nothing_and_sees_nothing_twice() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    make_project(&admin, "a").await;
    make_project(&admin, "b").await;
    let first = stream.next().await.unwrap();
    drop(stream);
    make_project(&admin, "c").await;

    let back = admin.with_header("last-event-id", &first.id);
    let mut stream = Stream::open(&back, "/v1/events").await;
    let slugs = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    assert_eq!(slugs.map(|event| event.data["data"]["slug"].clone()), ["b", "c"]);

    let everything = Stream::open(&admin, "/v1/events?after=0.0").await.next().await.unwrap();
    assert_eq!(everything.id, first.id);
    let wrong = admin.with_header("last-event-id", "yesterday");
    assert_eq!(wrong.raw(Method::GET, "/v1/events", None).await.status(), 400);
}

#[tokio::test]
async fn an_event_of_a_slow_transaction_is_not_skipped() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut stream = Stream::open(&admin, "/v1/events").await;

    // It writes its event first and commits last.
    let mut slow = app.db.begin().await;
    write_one(&mut slow).await;
    make_project(&admin, "quick").await;
    slow.commit().await.unwrap();

    let kinds = [stream.next().await.unwrap().kind, stream.next().await.unwrap().kind];
    assert_eq!(kinds, ["setting.set", "project.created"]);
}

#[tokio::test]
async fn all_who_listen_see_every_event_and_so_does_a_process_that_did_not_listen() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut one = Stream::open(&admin, "/v1/events").await;
    let mut other = Stream::open(&admin, "/v1/events").await;
    make_project(&admin, "a").await;
    make_project(&admin, "b").await;
    // Events are kept in the database, and no process keeps any for whoever may come.
    let elsewhere = app.replica().with_token(&admin.token().unwrap());
    let mut late = Stream::open(&elsewhere, "/v1/events?after=0.0").await;
    for stream in [&mut one, &mut other, &mut late] {
        let seen = [stream.next().await.unwrap(), stream.next().await.unwrap()];
        let slugs = seen.map(|event| event.data["data"]["slug"].clone());
        assert_eq!(slugs, ["a", "b"], "B004-58");
    }
}

#[tokio::test]
async fn an_event_written_by_another_process_arrives() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    let elsewhere = app.replica().with_token(&admin.token().unwrap());
    make_project(&elsewhere, "web").await;
    assert_eq!(stream.next().await.unwrap().kind, "project.created");
}

#[tokio::test]
async fn a_member_sees_what_happens_in_its_projects_and_to_its_account_only() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let web = app.project(&admin, "web").await;
    let api = app.project(&admin, "api").await;
    app.member(web, &bob, UserRole::Viewer).await;
    let mut stream = Stream::open(&bob, "/v1/events").await;
    for (project, name) in [(api, "hidden"), (web, "seen")] {
        let body = json!({ "project_id": project, "name": name, "description": "x" });
        admin.post("/v1/tasks", body).await.expect(201);
    }
    let set = json!({ "value": 1, "expected_version": 0 });
    admin.put("/v1/settings/manager.max_concurrent_analysts", set).await.expect(200);
    bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let seen = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    assert_eq!(seen[0].data["data"], json!({ "name": "seen" }));
    assert_eq!(seen[1].kind, "api_key.created");
}

#[tokio::test]
async fn a_stream_can_be_narrowed_to_a_project_or_a_task() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    let mut of_web = Stream::open(&admin, &format!("/v1/events?project_id={web}")).await;
    let mut ids = Vec::new();
    for project in [api, web] {
        let body = json!({ "project_id": project, "description": "x" });
        ids.push(admin.post("/v1/tasks", body).await.expect(201).text("id"));
    }
    assert_eq!(of_web.next().await.unwrap().data["task_id"], json!(ids[1]));
    let path = format!("/v1/events?after=0.0&task_id={}", ids[0]);
    assert_eq!(
        Stream::open(&admin, &path).await.next().await.unwrap().data["task_id"],
        json!(ids[0])
    );
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_revoked() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let made = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).json();
    let program = app.anonymous().with_token(made["token"].as_str().unwrap());
    let mut stream = Stream::open(&program, "/v1/events").await;
    let id = made["api_key"]["id"].as_str().unwrap();
    admin.delete(&format!("/v1/api-keys/{id}")).await.expect(200);
    let last = stream.next().await.unwrap();
    assert_eq!((last.id.as_str(), last.kind.as_str()), ("", "stream.failed"));
    assert_eq!(
        (&last.data["code"], &last.data["status"]),
        (&json!("unauthenticated"), &json!(401))
    );
    assert!(stream.next().await.is_none(), "nothing may be seen with a revoked key");
}

#[tokio::test]
async fn a_stream_ends_when_the_server_stops() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    app.stop.cancel();
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn an_account_that_opens_streams_without_end_is_refused_and_keeps_nobody_out() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let mut held = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..200 {
        let response = bob.raw(Method::GET, "/v1/events", None).await;
        if response.status() == 200 { held.push(response) } else { refused.push(response) }
    }
    assert_eq!((held.len(), refused.len()), (MAX_EVENT_STREAMS_PER_ACCOUNT, 184));
    assert!(refused.iter().all(|response| response.status() == 429));
    assert!(refused.iter().all(|response| response.headers().contains_key("retry-after")));
    let refused = bob.get("/v1/events").await.expect(429);
    assert_eq!(refused.text("code"), "rate_limited");
    let sentence = "this account has too many event streams open: close one";
    assert_eq!(refused.text("detail"), sentence);
    // Another credential of the same account is no way around it.
    let key = bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    app.anonymous().with_token(&key).get("/v1/events").await.expect(429);
    let mut stream = Stream::open(&admin, "/v1/events").await;
    make_project(&admin, "web").await;
    // The key was created just before the stream began: positions are given out in order, so it may still be held back then.
    let mut kind = stream.next().await.unwrap().kind;
    if kind == "api_key.created" {
        kind = stream.next().await.unwrap().kind;
    }
    assert_eq!(kind, "project.created");
    drop(held);
    Stream::open(&bob, "/v1/events").await;
}

#[tokio::test]
async fn streams_of_many_accounts_from_one_source_are_bounded_too() {
    let app = TestApp::new().await;
    let mut held = Vec::new();
    let mut refused = 0;
    for number in 0..10 {
        let user = app.user(&format!("user-{number}"), None).await.at_address("192.0.2.7");
        for _ in 0..16 {
            let response = user.raw(Method::GET, "/v1/events", None).await;
            if response.status() == 200 { held.push(response) } else { refused += 1 }
        }
    }
    assert_eq!((held.len(), refused), (128, 32));
    let elsewhere = app.user("elsewhere", None).await.at_address("192.0.2.8");
    Stream::open(&elsewhere, "/v1/events").await;
}

#[tokio::test]
async fn a_hundred_streams_read_the_log_as_often_as_one() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let mut streams = Vec::new();
    for number in 0..10 {
        let user = app.user(&format!("user-{number}"), Some(UserRole::Viewer)).await;
        for _ in 0..10 {
            streams.push(Stream::open(&user, "/v1/events").await);
        }
    }
    let slugs: Vec<String> = (0..10).map(|number| format!("project-{number}")).collect();
    for slug in &slugs {
        make_project(&admin, slug).await;
    }
    for stream in &mut streams {
        for slug in &slugs {
            assert_eq!(stream.next().await.unwrap().data["data"]["slug"], slug.as_str());
        }
    }
    // Each stream for itself would have read once for each event at least.
    let reads = app.app.count_event_log_reads();
    assert!(reads < 100, "{reads} reads for 100 streams and 10 events");
}

#[tokio::test]
async fn whoever_is_removed_from_a_project_sees_nothing_more_of_it() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let web = app.project(&admin, "web").await;
    let member = format!("/v1/projects/web/members/{}", bob.user.unwrap());
    let mut stream = Stream::open(&bob, "/v1/events").await;
    let task = |name: &str| json!({ "project_id": web, "name": name, "description": "x" });
    admin.put(&member, json!({ "role": "viewer" })).await.expect(204);
    admin.post("/v1/tasks", task("seen")).await.expect(201);
    let mut kinds = vec![stream.next().await.unwrap().kind, stream.next().await.unwrap().kind];
    admin.delete(&member).await.expect(204);
    admin.post("/v1/tasks", task("hidden")).await.expect(201);
    bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    kinds.extend([stream.next().await.unwrap().kind, stream.next().await.unwrap().kind]);
    let wanted =
        ["project.member_set", "task.created", "project.member_removed", "api_key.created"];
    assert_eq!(kinds, wanted);
}

#[tokio::test]
async fn a_member_who_reads_from_the_beginning_gets_its_own_events_of_a_long_log() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let mut others = app.db.begin().await;
    for _ in 0..1500 {
        write_one(&mut others).await;
    }
    others.commit().await.unwrap();
    bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let mut stream = Stream::open(&bob, "/v1/events?after=0.0").await;
    assert_eq!(stream.next().await.unwrap().kind, "api_key.created");
    let mut all = Stream::open(&admin, "/v1/events?after=0.0").await;
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..1501 {
        ids.insert(all.next().await.unwrap().id);
    }
    assert_eq!(ids.len(), 1501, "each came once");
    bob.post("/v1/api-keys", json!({ "name": "cd" })).await.expect(201);
    for stream in [&mut stream, &mut all] {
        assert_eq!(stream.next().await.unwrap().kind, "api_key.created");
    }
}
