//! What holds for every answer, whatever the endpoint.

use axum::http::Method;
use cynode_testkit::{TestApp, TestDb};
use insta::assert_json_snapshot;
use serde_json::json;

#[tokio::test]
async fn a_refusal_is_problem_json_with_what_to_do_next() {
    let app = TestApp::new().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let reply = app.anonymous().with_header("traceparent", trace).get("/v1/me").await.expect(401);
    assert_eq!(reply.headers["content-type"], "application/problem+json");
    assert_eq!(reply.headers["www-authenticate"], "Bearer");
    assert_json_snapshot!(reply.json(), @r#"
    {
      "type": "urn:cynode:problem:unauthenticated",
      "title": "Unauthorized",
      "status": 401,
      "code": "unauthenticated",
      "detail": "credentials are missing, expired, revoked or wrong",
      "fix": "log in, or send a valid API key as `Authorization: Bearer …`",
      "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"
    }
    "#);
}

#[tokio::test]
async fn failures_of_the_framework_are_problem_json_too() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let big = "x".repeat(70_000);
    for (method, path, body, status, code) in [
        (Method::GET, "/nothing/here", None, 404, "path_not_found"),
        (Method::DELETE, "/v1/me", None, 405, "method_not_allowed"),
        (Method::GET, "/v1/users/nobody", None, 400, "malformed"),
        (Method::POST, "/v1/projects", Some("{".to_owned()), 400, "malformed"),
        (Method::POST, "/v1/projects", Some("[1]".to_owned()), 400, "malformed"),
        (Method::POST, "/v1/projects", None, 400, "malformed"),
        (Method::POST, "/v1/projects", Some(format!("{{\"slug\":\"{big}\"}}")), 413, "too_large"),
    ] {
        let response = admin.raw(method.clone(), path, body).await;
        assert_eq!(response.status(), status, "{method} {path}");
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json",
            "{method} {path}"
        );
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["code"], code, "S001-11: {method} {path}");
        assert_eq!(problem["status"], status, "{method} {path}");
    }
    let text = admin.with_header("content-type", "text/plain");
    text.post("/v1/projects", json!({ "slug": "x", "title": "x" })).await.expect(415);
}

#[tokio::test]
async fn two_authorization_headers_are_none() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let doubled = format!("Bearer {}", admin.token().unwrap());
    let mut request = axum::http::Request::get("/v1/me").body(axum::body::Body::empty()).unwrap();
    for _ in 0..2 {
        request.headers_mut().append("authorization", doubled.parse().unwrap());
    }
    assert_eq!(admin.oneshot(request).await.status(), 401);
}

#[tokio::test]
async fn an_id_of_the_wrong_kind_is_refused_with_the_form_that_is_expected() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let problem = admin.get("/v1/tasks/prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708").await.expect(400);
    assert_eq!(problem.text("detail"), "expected an id of the form `tsk_<32 hex digits>`");
}

#[tokio::test]
async fn the_trace_of_a_request_is_in_the_answer_and_in_the_event() {
    let app = TestApp::new().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let header = format!("00-{trace}-00f067aa0ba902b7-01");
    let admin = app.admin().await.with_header("traceparent", &header);
    let made =
        admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    assert_eq!(made.headers["x-trace-id"], trace);
    assert_eq!(app.db.texts("SELECT trace_id FROM events").await, [trace]);
    // Without one, the request gets a trace of its own.
    let other = app.user("other", None).await.get("/v1/me").await;
    assert_ne!(other.headers["x-trace-id"], trace);
    let admin = cynode_core::roles::UserRole::Admin;
    let second = app.user("second", Some(admin)).await;
    let body = json!({ "slug": "api", "title": "Api" });
    let made = second.post("/v1/projects", body).await.expect(201);
    let own = made.headers["x-trace-id"].to_str().unwrap().to_owned();
    let traces = app.db.texts("SELECT trace_id FROM events ORDER BY xact, seq").await;
    assert_eq!(traces, [trace.to_owned(), own], "B001-23: one is made and used everywhere");
}

#[tokio::test]
async fn a_program_more_than_one_release_away_is_refused_with_what_to_do() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let own = env!("CARGO_PKG_VERSION");
    let answer = admin.get("/v1/me").await.expect(200);
    assert_eq!(answer.headers["cynode-release"], own);
    let minor: u32 = env!("CARGO_PKG_VERSION_MINOR").parse().unwrap();
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    let with = |release: String| admin.with_header("cynode-release", &release);
    with(own.to_owned()).get("/v1/me").await.expect(200);
    with(format!("{major}.{}.0", minor + 1)).get("/v1/me").await.expect(200);
    let later = format!("{major}.{}.0", minor + 2);
    let refused = with(later.clone()).get("/v1/me").await.expect(426);
    assert_eq!(refused.text("code"), "release_skew");
    let detail = format!("the program is {later} and the server is {own}: the server is too old");
    assert_eq!(refused.text("detail"), detail);
    // Nothing is done before it is refused.
    let body = json!({ "slug": "web", "title": "Web" });
    with("next".to_owned()).post("/v1/projects", body).await.expect(426);
    assert_eq!(app.db.number("SELECT count(*) FROM projects").await, 0);
}

#[tokio::test]
async fn a_ready_installation_says_so_and_names_what_is_left_to_do() {
    let app = TestApp::new().await;
    let ready = app.anonymous().get("/readyz").await.expect(200).json();
    assert_json_snapshot!(ready, @r#"
    {
      "ready": true,
      "checks": [
        {
          "name": "database",
          "status": "ok",
          "detail": "PostgreSQL answers"
        },
        {
          "name": "schema",
          "status": "ok",
          "detail": "every migration is applied"
        },
        {
          "name": "partitions",
          "status": "ok",
          "detail": "this and next month have a place in every table"
        },
        {
          "name": "admin",
          "status": "warning",
          "detail": "nobody can log in yet",
          "fix": "run `cynode admin bootstrap` and open the link"
        }
      ]
    }
    "#);
}

#[tokio::test]
async fn a_month_without_a_place_is_said_whichever_table_lacks_it() {
    let app = TestApp::new().await;
    app.db.execute("DROP TABLE think_calls_2026_12").await;
    let ready = app.anonymous().get("/readyz").await.expect(200).json();
    let next = json!({ "name": "partitions", "status": "warning", "fix": "run `cynode migrate`",
        "detail": "next month has no place in think_calls" });
    assert_eq!(ready["checks"][2], next);
    app.db.execute("DROP TABLE audit_records_2026_11").await;
    let reply = app.anonymous().get("/readyz").await.expect(503).json();
    let this = json!({ "name": "partitions", "status": "failed", "fix": "run `cynode migrate`",
        "detail": "this month has no place in audit_records" });
    assert_eq!(reply["checks"][2], this);
}

#[tokio::test]
async fn an_installation_without_tables_is_not_ready_and_says_how_to_mend_it() {
    let app = TestApp::over(TestDb::empty().await);
    let reply = app.anonymous().get("/readyz").await.expect(503).json();
    assert_eq!(reply["ready"], false);
    assert_eq!(reply["checks"][1]["status"], "failed");
    assert_eq!(reply["checks"][1]["fix"], "run `cynode migrate`");
    app.anonymous().get("/healthz").await.expect(200);
}

#[tokio::test]
async fn a_database_that_went_away_is_said_and_nothing_is_done() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.db.pool().close().await;
    let reply = app.anonymous().get("/readyz").await.expect(503).json();
    assert_eq!(reply["checks"][0]["name"], "database");
    assert_eq!(reply["checks"][0]["status"], "failed");
    let problem = admin.get("/v1/me").await.expect(503);
    assert_eq!(problem.text("code"), "unavailable");
}

#[tokio::test]
async fn the_home_page_talks_to_this_server_only() {
    let app = TestApp::new().await;
    let page = app.anonymous().get("/").await.expect(200);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("connect-src 'self'"));
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(!text.contains("http://") && !text.contains("https://"));
}

#[tokio::test]
async fn the_server_serves_its_own_document() {
    let app = TestApp::new().await;
    let served = app.anonymous().get("/v1/openapi.json").await.expect(200).json();
    assert_eq!(served, serde_json::to_value(cynode_api::public_openapi()).unwrap());
}

#[test]
fn the_committed_openapi_document_is_the_one_the_code_makes() {
    let made = serde_json::to_string_pretty(&cynode_api::public_openapi()).unwrap();
    let committed = include_str!("../../../../docs/openapi.json");
    assert!(made.trim() == committed.trim(), "docs/openapi.json is out of date: run `just gen`");
}

#[tokio::test]
async fn the_same_requests_give_the_same_ids_tokens_and_answers() {
    let run = async || {
        let app = TestApp::new().await;
        let admin = app.admin().await;
        let mut answers = Vec::new();
        for (path, body) in [
            ("/v1/projects", json!({ "slug": "web", "title": "Web" })),
            ("/v1/api-keys", json!({ "name": "ci" })),
            (
                "/v1/users",
                json!({ "handle": "bob", "display_name": "Bob", "password": "long enough!" }),
            ),
        ] {
            answers.push(admin.post(path, body).await.expect(201).body);
        }
        let project = admin.get("/v1/projects/web").await.expect(200).text("id");
        for name in [None, Some("given")] {
            let body = json!({ "project_id": project, "description": "Do it", "name": name });
            answers.push(admin.post("/v1/tasks", body).await.expect(201).body);
        }
        let traces = app.db.texts("SELECT trace_id FROM events ORDER BY xact, seq").await;
        let hashes = app.db.texts("SELECT phc FROM password_credentials").await;
        (answers, traces, hashes)
    };
    assert_eq!(run().await, run().await, "S001-07: the same clock and id source repeat a run");
}
