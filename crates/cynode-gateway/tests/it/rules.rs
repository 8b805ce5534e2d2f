//! Rules tried on recorded calls, decisions explained afterwards, and rules drafted from decisions.

use cynode_core::roles::UserRole;
use serde_json::{Value, json};

use crate::bench::Bench;

const NO_OVERVIEW: &str =
    "forbid (principal == Role::\"developer\", action == Action::\"help.overview\", resource);";

impl Bench {
    async fn backtest(&self, mode: &str, text: &str) -> Value {
        let body = json!({ "name": "tried", "mode": mode, "text": text });
        let report = self.admin.post("/v1/rules/backtest", body).await.expect(200).json();
        let count = |field: &str| report[field].as_u64().unwrap();
        let parts = ["hits", "misses", "not_reached", "undecidable"].map(count);
        assert_eq!(count("calls"), parts.iter().sum::<u64>(), "{report}");
        report
    }
}

#[tokio::test]
async fn a_backtest_counts_the_recorded_calls_that_a_rule_would_have_hit() {
    let bench = Bench::new().await;
    let developer = bench.agent("developer").await;
    for _ in 0..3 {
        developer.call("help.overview", json!({})).await;
    }
    developer.call("no.such", json!({})).await;
    bench.agent("tester").await.call("help.overview", json!({})).await;
    bench.records().await;

    let report = bench.backtest("refuse", NO_OVERVIEW).await;
    assert_eq!(
        (&report["hits"], &report["misses"], &report["undecidable"], &report["complete"]),
        (&json!(3), &json!(1), &json!(0), &json!(true))
    );
    assert!(report["not_reached"].as_u64() >= Some(1), "the tool that does not exist: {report}");
    assert_eq!(report["effects"], json!({ "refuse": 3, "approve": 0, "shadow": 0 }));
    assert_eq!(report["decisions"], json!([{ "then": "allow", "now": "deny", "calls": 3 }]));
    let overview = json!({ "tool": "help.overview", "calls": 4, "hits": 3, "undecidable": 0 });
    assert_eq!(report["by_tool"][0], overview);
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 1, "calls that are alike are one sample: {samples:?}");
    let sample = ["tool", "agent_role", "result", "then", "reason_then", "now"];
    assert_eq!(
        sample.map(|field| samples[0][field].as_str().unwrap()),
        ["help.overview", "developer", "hit", "allow", "allowed", "deny"]
    );

    let asked = bench.backtest("approve", NO_OVERVIEW).await;
    assert_eq!(asked["decisions"][0]["now"], "needs_approval");
    let shadow = bench.backtest("shadow", NO_OVERVIEW).await;
    assert_eq!(shadow["decisions"][0]["now"], "allow");
    assert_eq!(shadow["effects"], json!({ "refuse": 0, "approve": 0, "shadow": 3 }));

    let other = bench.app.project(&bench.admin, "other").await;
    let body = json!({ "mode": "refuse", "text": NO_OVERVIEW, "project_id": other });
    let none = bench.admin.post("/v1/rules/backtest", body).await.expect(200).json();
    assert_eq!(none["calls"], 0);
    let after = bench.app.db.number("SELECT count(*) FROM policy_rules").await;
    assert_eq!(after, 0, "a backtest stores nothing");

    for (body, told) in [
        (json!({ "mode": "refuse", "text": NO_OVERVIEW, "days": 31 }), "`days` is 1 to 30"),
        (
            json!({ "mode": "refuse", "text": "permit (principal, action, resource);" }),
            "only forbid",
        ),
        (json!({ "mode": "x", "text": NO_OVERVIEW }), "`mode`"),
    ] {
        let refused = bench.admin.post("/v1/rules/backtest", body).await.expect(422);
        assert!(refused.text("detail").contains(told), "{}", refused.text("detail"));
    }
}

#[tokio::test]
async fn a_backtest_says_which_calls_it_cannot_decide_and_which_it_would_release() {
    let bench = Bench::new().await;
    bench.rule("tried", "refuse", NO_OVERVIEW).await;
    let developer = bench.agent("developer").await;
    developer.call("help.overview", json!({})).await;
    developer.call("help.tool", json!({ "tool": "web.fetch" })).await;
    bench.records().await;

    let by_argument = "forbid (principal, action == Action::\"help.tool\", resource) when { context.arguments has tool && context.arguments.tool == \"x\" };";
    let report = bench.backtest("refuse", by_argument).await;
    assert_eq!((&report["hits"], &report["undecidable"]), (&json!(0), &json!(1)));
    assert_eq!(report["undecidable_reasons"][0]["reason"], "arguments_not_recorded");
    // The old text stopped a call that the new one does not speak of.
    assert_eq!(report["released"], 1);
    assert_eq!(report["decisions"], json!([{ "then": "deny", "now": "allow", "calls": 1 }]));
    let results: Vec<_> =
        report["samples"].as_array().unwrap().iter().map(|it| it["result"].clone()).collect();
    assert_eq!(results, ["released", "undecidable"]);

    let ruled_out = "forbid (principal, action == Action::\"help.tool\", resource) when { context.agent.kind == \"pm\" && context.arguments has tool };";
    let report = bench.backtest("refuse", ruled_out).await;
    assert_eq!((&report["hits"], &report["undecidable"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn a_recorded_call_is_explained_as_it_was_decided_and_as_it_would_be_now() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let call = agent.call("help.overview", json!({})).await.call_id();
    bench.records().await;
    let explain = async |arguments: Option<Value>| {
        let mut body = json!({ "call_id": call });
        if let Some(arguments) = arguments {
            body["arguments"] = arguments;
        }
        bench.admin.post("/v1/policy/explain-call", body).await.expect(200).json()
    };
    let step = |explained: &Value, step: &str| {
        let steps = explained["steps"].as_array().unwrap();
        steps.iter().find(|it| it["step"] == step).unwrap()["result"].clone()
    };
    let explained = explain(None).await;
    assert_eq!(explained["record"]["call_id"], call.as_str());
    assert_eq!(
        (&explained["then"]["decision"], &explained["now"]["decision"]),
        (&json!("allow"), &json!("allow"))
    );
    assert_eq!(
        (step(&explained["then"], "arguments"), step(&explained["then"], "audit")),
        (json!("passed"), json!("passed"))
    );
    assert_eq!(step(&explained["now"], "arguments"), "not_recorded");
    assert_eq!(step(&explained["now"], "rules"), "passed");
    assert_eq!(step(&explain(Some(json!({}))).await["now"], "arguments"), "passed");
    assert_eq!(
        [&explained["changed"], &explained["same_policy"], &explained["same_catalogue"]],
        [false, true, true]
    );

    bench.rule("no-overview", "refuse", NO_OVERVIEW).await;
    let explained = explain(None).await;
    assert_eq!(
        (&explained["then"]["reason"], &explained["now"]["reason"]),
        (&json!("allowed"), &json!("denied_by_rule"))
    );
    assert_eq!(explained["now"]["rules"], json!(["no-overview"]));
    assert_eq!((&explained["changed"], &explained["same_policy"]), (&json!(true), &json!(false)));

    let refused = agent.call("help.overview", json!({})).await.call_id();
    bench.records().await;
    let body = json!({ "call_id": refused });
    let explained =
        bench.admin.post("/v1/policy/explain-call", body.clone()).await.expect(200).json();
    assert_eq!(
        (step(&explained["then"], "rules"), step(&explained["then"], "limits")),
        (json!("refused"), json!("not_reached"))
    );
    assert_eq!(explained["changed"], false);

    let (viewer, nobody) = (bench.app.user("vera", None).await, bench.app.user("noah", None).await);
    bench.app.member(bench.project, &viewer, UserRole::Viewer).await;
    viewer.post("/v1/policy/explain-call", body.clone()).await.expect(200);
    nobody.post("/v1/policy/explain-call", body).await.expect(404);
}

#[tokio::test]
async fn a_rule_drafted_from_an_approval_decides_the_next_such_call_alike() {
    let bench = Bench::new().await;
    let asking = "forbid (principal, action == Action::\"artifact.put\", resource);";
    bench.rule("ask-first", "approve", asking).await;
    let agent = bench.agent("developer").await;
    let put = |text: &str| json!({ "task_id": bench.task, "name": "a.txt", "media_type": "text/plain", "text": text });
    assert_eq!(agent.call("artifact.put", put("x")).await.verdict(), "refused needs_approval");
    let waiting = bench.admin.get("/v1/approvals").await.expect(200).json();
    let id = waiting["items"][0]["approval_id"].as_str().unwrap().to_owned();
    let draft = async |approved: bool| {
        let path = format!("/v1/approvals/{id}/draft-rule");
        bench.admin.post(&path, json!({ "approved": approved })).await.expect(200).json()
    };

    let refusal = draft(false).await;
    assert_eq!(refusal["name"], "refuse-artifact-put");
    assert_eq!(
        (&refusal["rule"]["mode"], &refusal["arguments_included"]),
        (&json!("shadow"), &json!(true))
    );
    assert_eq!(
        bench.app.db.number("SELECT count(*) FROM policy_rules").await,
        1,
        "nothing is stored"
    );
    bench.admin.put("/v1/rules/refuse-artifact-put", refusal["rule"].clone()).await.expect(200);
    bench.admin.delete("/v1/rules/refuse-artifact-put").await.expect(204);

    let narrowed = draft(true).await;
    assert_eq!(
        (&narrowed["name"], &narrowed["replaces"]),
        (&json!("ask-first-narrowed"), &json!("ask-first"))
    );
    let text = narrowed["rule"]["text"].as_str().unwrap();
    bench.rule("ask-first", "approve", text).await;
    assert_eq!(agent.call("artifact.put", put("x")).await.verdict(), "ok");
    assert_eq!(agent.call("artifact.put", put("y")).await.verdict(), "refused needs_approval");

    // The arguments are erased with the answer.
    let answered = format!("/v1/approvals/{id}");
    bench.admin.post(&answered, json!({ "approved": false })).await.expect(200);
    let late = draft(false).await;
    assert_eq!(late["arguments_included"], false);
    assert!(!late["rule"]["text"].as_str().unwrap().contains("context.arguments"));

    bench.admin.delete("/v1/rules/ask-first").await.expect(204);
    let path = format!("/v1/approvals/{id}/draft-rule");
    bench.admin.post(&path, json!({ "approved": true })).await.expect(409);
    let member = bench.app.user("mia", None).await;
    member.post(&path, json!({ "approved": false })).await.expect(404);
    bench.app.member(bench.project, &member, UserRole::Operator).await;
    member.post(&path, json!({ "approved": false })).await.expect(403);
}
