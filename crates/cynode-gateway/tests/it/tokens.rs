//! Tokens of agents: who gets which, and when they stop.

use cynode_app::{
    identity::service_tokens::{self, ServiceKind},
    platform::tokens::{self, TokenKind},
};
use cynode_core::roles::UserRole;
use cynode_testkit::{Client, mcp::Era};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::{
    bench::{Bench, ROLES, beside, promised, told},
    offering::Offering,
};

#[tokio::test]
async fn a_token_is_issued_for_each_role_and_its_kind_follows_from_the_role() {
    let bench = Bench::new().await;
    let mut kinds = Vec::new();
    for role in ROLES {
        let issued = bench.issue(&bench.admin, role, json!({})).await;
        let token = issued["token"].as_str().unwrap();
        let prefix = token.split('_').nth(1).unwrap();
        kinds.push(format!("{role} {} {prefix}", issued["kind"].as_str().unwrap()));
        let seen = bench.holding(&issued).await.call("help.overview", json!({})).await.value();
        let you = (&seen["you"]["role"], &seen["you"]["kind"]);
        assert_eq!(you, (&json!(role), &issued["kind"]), "S003-37, S003-40, REQ-MCPGAT-0116");
    }
    assert_eq!(
        kinds,
        [
            "project_manager pm pm",
            "project_analyst pa pa",
            "architect sandbox sbx",
            "designer sandbox sbx",
            "developer sandbox sbx",
            "reviewer sandbox sbx",
            "tester sandbox sbx",
            "fixer sandbox sbx",
        ],
        "S000-084, S003-38, S003-39: a token is for one kind of agent; REQ-MCPGAT-0116"
    );
}

#[tokio::test]
async fn a_token_says_what_it_is_good_for_and_shows_its_secret_once() {
    let bench = Bench::new().await;
    let more = json!({ "tools": ["help__overview", "artifact.get"], "profile": "careful", "expires_in_seconds": 60 });
    let issued = bench.issue(&bench.admin, "developer", more).await;
    assert_json_snapshot!(issued, {
        ".token" => "[secret]", ".agent_token_id" => "[id]", ".user_id" => "[id]", ".project_id" => "[id]",
        ".task_id" => "[id]", ".run_id" => "[id]",
    }, @r#"
    {
      "token": "[secret]",
      "agent_token_id": "[id]",
      "kind": "sandbox",
      "role": "developer",
      "user_id": "[id]",
      "project_id": "[id]",
      "task_id": "[id]",
      "run_id": "[id]",
      "job_id": null,
      "profile": "careful",
      "network": true,
      "tools": [
        "help.overview",
        "artifact.get"
      ],
      "models": [],
      "created_at": "2026-11-01T12:00:00Z",
      "expires_at": "2026-11-01T12:01:00Z",
      "revoked_at": null
    }
    "#);
    let path = format!("/v1/agent-tokens?project_id={}", bench.project);
    let listed = bench.admin.get(&path).await.expect(200).json();
    let mut shown = issued.clone();
    shown.as_object_mut().unwrap().remove("token");
    assert_eq!(listed["items"], json!([shown]));
}

#[tokio::test]
async fn a_token_that_would_be_tied_to_nothing_or_to_somebody_elses_work_is_not_issued() {
    let bench = Bench::new().await;
    let elsewhere = bench.app.project(&bench.admin, "other").await;
    let foreign = bench.task_in(elsewhere).await;
    let good = json!({ "role": "developer", "project_id": bench.project, "task_id": bench.task });
    let issue = async |by: &Client, key: &str, value: Value| {
        let mut body = good.clone();
        body[key] = value;
        by.post("/v1/agent-tokens", body).await.status
    };
    let by = &bench.admin;
    assert_eq!(issue(by, "task_id", json!(null)).await, 422);
    assert_eq!(issue(by, "task_id", json!(foreign)).await, 404);
    assert_eq!(issue(by, "project_id", json!(elsewhere)).await, 404);
    assert_eq!(issue(by, "job_id", json!("job_0192d5c8b6f07cc1a1a3c2b4d5e6f708")).await, 404);
    assert_eq!(issue(by, "role", json!("workflow_runner")).await, 422);
    assert_eq!(issue(by, "role", json!("root")).await, 400);
    assert_eq!(issue(by, "expires_in_seconds", json!(59)).await, 422);
    assert_eq!(issue(by, "expires_in_seconds", json!(604_801)).await, 422);
    let viewer = bench.app.user("viewer", Some(UserRole::Viewer)).await;
    assert_eq!(issue(&viewer, "role", json!("developer")).await, 403);
    let stranger = bench.app.user("stranger", None).await;
    assert_eq!(issue(&stranger, "role", json!("developer")).await, 404);
    assert_eq!(bench.app.db.number("SELECT count(*) FROM agent_tokens").await, 0);
}

#[tokio::test]
async fn what_is_no_working_token_of_an_agent_opens_nothing_and_is_recorded_with_what_is_known() {
    let bench = Bench::new().await;
    let name = "w".parse().unwrap();
    let worker = service_tokens::issue_service_token(&bench.app.app, ServiceKind::Worker, &name)
        .await
        .unwrap()
        .0;
    let expired = bench.issue(&bench.admin, "tester", json!({ "expires_in_seconds": 60 })).await;
    let revoked = bench.issue(&bench.admin, "fixer", json!({})).await;
    let path = format!("/v1/agent-tokens/{}", revoked["agent_token_id"].as_str().unwrap());
    bench.admin.delete(&path).await.expect(204);
    bench.app.clock.advance(time::Duration::seconds(60));
    let (expired, revoked) =
        (expired["token"].as_str().unwrap(), revoked["token"].as_str().unwrap());
    let (unknown, _) = tokens::issue_token(TokenKind::Sandbox, bench.app.app.environment());
    let mistyped = format!("{}x", &expired[..expired.len() - 1]);
    // The secret of one kind under the prefix of another.
    let disguised = expired.replace("cyn_sbx_", "cyn_pm_");
    let cases = [
        (expired.to_owned(), 401, "invalid_token"),
        (revoked.to_owned(), 401, "invalid_token"),
        (unknown.0, 401, "invalid_token"),
        (mistyped, 401, "invalid_token"),
        (disguised, 401, "invalid_token"),
        (bench.admin.token().unwrap(), 403, "insufficient_scope"),
        (worker, 403, "insufficient_scope"),
    ];
    for (token, status, error) in cases {
        for era in [Era::Modern, Era::Legacy] {
            let agent = bench.at_gateway(&token).await.in_era(era);
            let answer = agent.call("help.overview", json!({})).await.0;
            assert_eq!(answer.status, status, "S000-085, S003-41: REQ-MCPGAT-0116: {token}");
            let challenge = answer.headers["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with(&format!("Bearer error=\"{error}\"")), "{challenge}");
            assert!(challenge.contains("resource_metadata="), "{challenge}");
        }
    }
    let mut story = bench.story().await;
    story.dedup();
    assert_eq!(
        story,
        [
            "tester - decision deny token_expired not_forwarded",
            "fixer - decision deny token_revoked not_forwarded",
            "- - decision deny invalid_token not_forwarded",
            "- - decision deny not_granted_by_token not_forwarded",
        ],
        "S003-41, REQ-MCPGAT-0116"
    );
    let facts = bench.records().await[0].clone();
    assert_eq!((&facts["task_id"], &facts["agent_kind"]), (&json!(bench.task), &json!("sandbox")));
}

#[tokio::test]
async fn records_say_who_the_token_is_whatever_the_arguments_say() {
    let bench = Bench::new().await;
    let other = bench.another_task().await;
    let issued = bench.issue(&bench.admin, "reviewer", json!({})).await;
    let agent = bench.holding(&issued).await;
    let lies = json!({ "task_id": other, "kind": "work_completed", "summary": "done", "agent_role": "project_manager" });
    assert_eq!(agent.call("pm.report", lies).await.verdict(), "refused wrong_id");
    agent.call("help.overview", json!({})).await;
    for record in bench.records().await {
        for (fact, said) in [
            ("agent_token_id", &issued["agent_token_id"]),
            ("agent_kind", &json!("sandbox")),
            ("agent_role", &json!("reviewer")),
            ("user_id", &issued["user_id"]),
            ("project_id", &json!(bench.project)),
            ("task_id", &json!(bench.task)),
            ("run_id", &issued["run_id"]),
            ("job_id", &Value::Null),
        ] {
            assert_eq!(&record[fact], said, "S003-43, S003-44, S003-45, REQ-MCPGAT-0116: {fact}");
        }
    }
}

/// A call under way that a change ends, and what is then recorded.
async fn ended_by(change: impl AsyncFnOnce(&Bench, &Value)) -> (Vec<String>, Vec<String>) {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let issued = bench.issue(&bench.admin, "developer", json!({})).await;
    let agent = bench.holding(&issued).await;
    let hanging = agent.clone();
    let call = beside(async move { hanging.call("ext.todo.hang", json!({})).await });
    offering.hanging(1).await;
    change(&bench, &issued).await;
    let first = call.await.unwrap();
    promised().await;
    let next = agent.call("ext.todo.hang", json!({})).await;
    offering.abandoned(1).await;
    assert_eq!(offering.calls().len(), 1);
    let words = vec![first.verdict(), format!("{} {}", next.0.status, next.verdict())];
    (words, bench.records().await.iter().map(told).collect())
}

const BEGUN: &str = "developer ext.todo.hang decision allow allowed -";

#[tokio::test]
async fn a_revoked_token_is_refused_and_ends_the_call_that_is_under_way() {
    let (words, records) = ended_by(async |bench, issued| {
        let path = format!("/v1/agent-tokens/{}", issued["agent_token_id"].as_str().unwrap());
        bench.admin.delete(&path).await.expect(204);
    })
    .await;
    let wanted = ["refused token_revoked", "401 error 401"];
    assert_eq!(words, wanted, "S003-41, REQ-MCPGAT-0116");
    assert_eq!(
        records,
        [
            BEGUN,
            "developer ext.todo.hang outcome allow token_revoked revoked",
            "developer - decision deny token_revoked not_forwarded",
        ]
    );
}

#[tokio::test]
async fn a_tool_that_is_switched_off_is_refused_and_ends_the_call_that_is_under_way() {
    let (words, records) = ended_by(async |bench, _| {
        bench.admin.put("/v1/tools/ext.todo.hang", json!({ "enabled": false })).await.expect(200);
    })
    .await;
    let wanted = ["refused disabled", "200 refused disabled"];
    assert_eq!(words, wanted, "S003-26, REQ-MCPGAT-0113");
    assert_eq!(
        records,
        [
            BEGUN,
            "developer ext.todo.hang outcome allow disabled revoked",
            "developer ext.todo.hang decision deny disabled not_forwarded",
        ]
    );
}

#[tokio::test]
async fn an_admin_turns_a_tool_off_and_on_again_and_nobody_else_does() {
    let bench = Bench::new().await;
    let agent = bench.agent("tester").await;
    let person = bench.app.user("person", None).await;
    let mut verdicts = Vec::new();
    for enabled in [false, true] {
        bench.set_tool("help.overview", json!({ "enabled": enabled })).await;
        verdicts.push(agent.call("help.overview", json!({})).await.verdict());
        let other = json!({ "enabled": !enabled });
        let refused = person.put("/v1/tools/help.overview", other).await.status;
        assert_eq!(refused, 403, "S003-25, REQ-MCPGAT-0113");
    }
    assert_eq!(verdicts, ["refused disabled", "ok"], "S003-25, REQ-MCPGAT-0113");
}

#[tokio::test]
async fn a_cancelled_task_takes_the_tokens_of_its_agents_with_it() {
    let (words, records) = ended_by(async |bench, _| {
        let path = format!("/v1/tasks/{}/cancel", bench.task);
        bench.admin.post(&path, json!(null)).await.expect(200);
    })
    .await;
    assert_eq!(words, ["refused token_revoked", "401 error 401"]);
    assert_eq!(records[1], "developer ext.todo.hang outcome allow token_revoked revoked");
}

#[tokio::test]
async fn a_person_who_is_switched_off_takes_the_tokens_of_their_agents_with_them() {
    let bench = Bench::new().await;
    let person = bench.app.user("person", None).await;
    bench.app.member(bench.project, &person, UserRole::Operator).await;
    let issued = bench.issue(&person, "project_manager", json!({})).await;
    let agent = bench.holding(&issued).await;
    assert_eq!(agent.call("db.task.list", json!({})).await.verdict(), "ok");
    let path = format!("/v1/users/{}", person.user.unwrap());
    bench.admin.patch(&path, json!({ "active": false })).await.expect(200);
    promised().await;
    assert_eq!(agent.call("db.task.list", json!({})).await.0.status, 401);
    assert_eq!(
        bench.story().await.last().unwrap(),
        "project_manager - decision deny token_revoked not_forwarded"
    );
}

#[tokio::test]
async fn a_person_who_leaves_the_project_takes_the_tokens_of_their_agents_with_them() {
    let bench = Bench::new().await;
    let person = bench.app.user("person", None).await;
    bench.app.member(bench.project, &person, UserRole::Operator).await;
    let issued = bench.issue(&person, "project_manager", json!({})).await;
    let agent = bench.holding(&issued).await;
    let arguments = json!({ "task_id": bench.task });
    assert_eq!(agent.call("db.task.get", arguments.clone()).await.verdict(), "ok");
    let path = format!("/v1/projects/{}/members/{}", bench.project, person.user.unwrap());
    bench.admin.delete(&path).await.expect(204);
    promised().await;
    assert_eq!(agent.call("db.task.get", arguments).await.0.status, 401);
}

#[tokio::test]
async fn a_person_who_may_only_read_from_now_on_ends_the_call_that_is_under_way() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let person = bench.app.user("person", None).await;
    bench.app.member(bench.project, &person, UserRole::Operator).await;
    let issued = bench.issue(&person, "developer", json!({})).await;
    let agent = bench.holding(&issued).await;
    let call = beside(async move { agent.call("ext.todo.hang", json!({})).await });
    offering.hanging(1).await;
    bench.app.member(bench.project, &person, UserRole::Viewer).await;
    assert_eq!(call.await.unwrap().verdict(), "refused user_lacks_permission");
    offering.abandoned(1).await;
    assert_eq!(
        bench.story().await.last().unwrap(),
        "developer ext.todo.hang outcome allow user_lacks_permission revoked"
    );
}

#[tokio::test]
async fn only_who_may_issue_tokens_of_a_project_may_revoke_them() {
    let bench = Bench::new().await;
    let issued = bench.issue(&bench.admin, "developer", json!({})).await;
    let path = format!("/v1/agent-tokens/{}", issued["agent_token_id"].as_str().unwrap());
    let stranger = bench.app.user("stranger", None).await;
    stranger.delete(&path).await.expect(404);
    let viewer = bench.app.user("viewer", Some(UserRole::Viewer)).await;
    viewer.delete(&path).await.expect(403);
    let agent = bench.holding(&issued).await;
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
}
