//! What people decide about the gate, and what they can see of it.

use cynode_core::roles::UserRole;
use serde_json::{Value, json};

use crate::{
    bench::{Bench, promised},
    offering::Offering,
};

#[tokio::test]
async fn a_tool_that_is_switched_off_is_off_for_everybody_at_every_replica_at_once() {
    let bench = Bench::new().await;
    let second = bench.app.another_gateway().await;
    let here = bench.agent("developer").await;
    let there = here.at(&second);
    let both = async || {
        let call = async |agent: &cynode_testkit::mcp::Agent| {
            let shown = agent.tools().await.contains(&"skills__list".to_owned());
            (shown, agent.call("skills.list", json!({})).await.verdict())
        };
        [call(&here).await, call(&there).await]
    };
    let (on, off) = ((true, "ok".to_owned()), (false, "refused disabled".to_owned()));
    assert_eq!(both().await, [on.clone(), on.clone()]);
    bench.set_tool("skills.list", json!({ "enabled": false })).await;
    assert_eq!(both().await, [off.clone(), off.clone()]);
    // No rule and no role brings it back.
    let manager = bench.agent("project_manager").await;
    assert_eq!(manager.call("skills.list", json!({})).await.verdict(), "refused disabled");
    bench.set_tool("skills__list", json!({ "enabled": true })).await;
    assert_eq!(both().await, [on.clone(), on]);
    let person = bench.app.user("person", Some(UserRole::Operator)).await;
    person.put("/v1/tools/skills.list", json!({ "enabled": false })).await.expect(403);
    bench.admin.put("/v1/tools/no.such", json!({ "enabled": false })).await.expect(404);
    second.close().await;
}

#[tokio::test]
async fn a_rule_that_cannot_be_used_is_refused_with_the_reason() {
    let bench = Bench::new().await;
    let all = "forbid (principal, action, resource);";
    let cases = [
        ("x", "refuse", "nonsense", "cannot be read"),
        ("x", "refuse", "permit (principal, action, resource);", "can only forbid"),
        (
            "x",
            "refuse",
            "forbid (principal, action == Action::\"web.fetsch\", resource);",
            "does not fit the tools",
        ),
        (
            "x",
            "refuse",
            "forbid (principal == Role::\"devloper\", action, resource);",
            "does not fit the tools",
        ),
        (
            "x",
            "refuse",
            "forbid (principal, action == Action::\"web.fetch\", resource) when { context.arguments has ulr && context.arguments.ulr == \"x\" };",
            "does not fit the tools",
        ),
        ("X_Y", "refuse", all, "a rule's name"),
        ("x", "allow", all, "`mode` is"),
    ];
    for (name, mode, text, reason) in cases {
        let refused = bench
            .admin
            .put(&format!("/v1/rules/{name}"), json!({ "mode": mode, "text": text }))
            .await
            .expect(422);
        assert!(refused.text("detail").contains(reason), "{}", refused.text("detail"));
    }
    assert_eq!(bench.admin.get("/v1/rules").await.expect(200).json()["items"], json!([]));
    let person = bench.app.user("person", Some(UserRole::Operator)).await;
    person.put("/v1/rules/x", json!({ "mode": "refuse", "text": all })).await.expect(403);
    bench.admin.delete("/v1/rules/x").await.expect(404);
    let agent = bench.agent("developer").await;
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
}

#[tokio::test]
async fn rules_only_narrow_and_look_at_roles_groups_and_arguments() {
    let bench = Bench::new().await;
    bench.rule("no-secrets", "refuse",
        "forbid (principal, action == Action::\"artifact.put\", resource) when { context.arguments has name && context.arguments.name like \"*.key\" };").await;
    bench
        .rule(
            "testers-rest",
            "refuse",
            "forbid (principal == Role::\"tester\", action in Action::\"skills.*\", resource);",
        )
        .await;
    bench.rule("managers-may", "refuse", "forbid (principal, action == Action::\"db.task.cancel\", resource) unless { principal == Role::\"developer\" };").await;
    let (developer, tester) = (bench.agent("developer").await, bench.agent("tester").await);
    let put = |name: &str| json!({ "task_id": bench.task, "name": name, "media_type": "text/plain", "text": "x" });
    assert_eq!(developer.call("artifact.put", put("a.txt")).await.verdict(), "ok");
    let refused = developer.call("artifact.put", put("id.key")).await;
    assert_eq!(refused.verdict(), "refused denied_by_rule");
    assert!(refused.text().contains("no-secrets"), "{}", refused.text());
    assert_eq!(developer.call("skills.list", json!({})).await.verdict(), "ok");
    let refused = tester.call("skills.list", json!({})).await.verdict();
    assert_eq!(refused, "refused denied_by_rule", "S000-093, S000-098: a rule narrows");
    // What a rule spares is not thereby allowed.
    let cancel = developer.call("db.task.cancel", json!({ "task_id": bench.task })).await;
    assert_eq!(cancel.verdict(), "refused wrong_scope", "S000-093: a rule does not widen");
    let records = bench.records().await;
    let rules: Vec<_> = records
        .iter()
        .filter(|record| record["reason"] == "denied_by_rule")
        .map(|record| record["rules"].clone())
        .collect();
    assert_eq!(rules, [json!(["no-secrets"]), json!(["testers-rest"])]);
}

#[tokio::test]
async fn a_rule_on_trial_is_noted_and_never_changes_a_decision() {
    let bench = Bench::new().await;
    bench.rule("trial", "shadow", "forbid (principal, action, resource);").await;
    let agent = bench.agent("developer").await;
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    assert!(agent.tools().await.contains(&"help__overview".to_owned()));
    assert_eq!(agent.call("db.task.list", json!({})).await.verdict(), "refused wrong_scope");
    let noted: Vec<_> =
        bench.records().await.iter().map(|record| record["shadow"].clone()).collect();
    assert_eq!(noted, [json!(["trial"]), json!(["trial"]), json!([])]);
}

#[tokio::test]
async fn why_a_call_would_pass_or_not_is_explained_step_by_step_and_nothing_is_called() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    bench.set_tool("skills.get", json!({ "enabled": false })).await;
    bench
        .rule(
            "no-list",
            "refuse",
            "forbid (principal, action == Action::\"skills.list\", resource);",
        )
        .await;
    let issued = bench.issue(&bench.admin, "developer", json!({ "network": false })).await;
    let explain = async |tool: &str, arguments: Value| {
        let body = json!({ "agent_token_id": issued["agent_token_id"], "tool": tool, "arguments": arguments });
        bench.admin.post("/v1/policy/explain", body).await.expect(200).json()
    };
    let steps = |told: &Value| {
        let each = told["steps"].as_array().unwrap().iter();
        each.map(|step| step["result"].as_str().unwrap().chars().next().unwrap())
            .collect::<String>()
    };
    // p passed, r refused, n not reached, a at the call.
    for (tool, arguments, decision, reason, way) in [
        ("help.overview", json!({}), "allow", "allowed", "ppppppppaa"),
        ("no.such", json!({}), "deny", "unknown_tool", "prnnnnnnnn"),
        ("skills.get", json!({}), "deny", "disabled", "pprnnnnnnn"),
        ("db.task.get", json!({}), "deny", "wrong_scope", "ppprnnnnnn"),
        ("web.fetch", json!({ "url": "x" }), "deny", "network_denied", "ppppprnnnn"),
        ("ext.todo.echo", json!({}), "deny", "network_denied", "ppppprnnnn"),
        ("artifact.list", json!({}), "allow", "allowed", "ppppppppaa"),
        ("help.overview", json!({ "x": 1 }), "deny", "invalid_arguments", "pppppprnnn"),
        ("skills.list", json!({}), "deny", "denied_by_rule", "ppppppprnn"),
    ] {
        let told = explain(tool, arguments).await;
        assert_eq!(
            (told["decision"].as_str(), told["reason"].as_str()),
            (Some(decision), Some(reason)),
            "{tool}"
        );
        assert_eq!(steps(&told), way, "{tool}");
    }
    // Rules that are not written yet can be tried, instead of those that hold.
    let tried = json!({ "agent_token_id": issued["agent_token_id"], "tool": "skills.list",
        "rules": { "maybe": { "mode": "approve", "text": "forbid (principal, action in Action::\"skills.*\", resource);" } } });
    let told = bench.admin.post("/v1/policy/explain", tried.clone()).await.expect(200).json();
    assert_eq!((&told["decision"], &told["rules"]), (&json!("needs_approval"), &json!(["maybe"])));
    let path = format!("/v1/agent-tokens/{}", issued["agent_token_id"].as_str().unwrap());
    bench.admin.delete(&path).await.expect(204);
    let told = explain("help.overview", json!({})).await;
    assert_eq!(
        (told["reason"].as_str(), steps(&told).as_str()),
        (Some("token_revoked"), "rnnnnnnnnn")
    );
    bench.app.user("stranger", None).await.post("/v1/policy/explain", tried).await.expect(404);
    assert_eq!((bench.records().await.len(), offering.calls().len()), (0, 0));
}

#[tokio::test]
async fn the_allowlists_can_be_read_as_they_are_enforced() {
    let bench = Bench::new().await;
    let lists = bench.admin.get("/v1/allowlists").await.expect(200).json();
    let of = |role: &str| {
        let lists = lists["items"].as_array().unwrap();
        let list = lists.iter().find(|list| list["role"] == role).unwrap();
        list["lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line["tools"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for wanted in [
        "db.*",
        "node.*",
        "sandbox.*",
        "artifact.*",
        "model.*",
        "connector.*",
        "web.fetch",
        "web.search",
        "api.call",
        "git.*",
        "help.*",
    ] {
        assert!(of("project_manager").contains(&wanted.to_owned()), "S000-089: {wanted}");
    }
    for wanted in ["artifact.*", "web.fetch", "web.search", "api.call", "help.*"] {
        assert!(of("project_analyst").contains(&wanted.to_owned()), "S000-092: {wanted}");
    }
    for denied in ["db.*", "node.*", "sandbox.*", "model.*", "connector.*", "git.*"] {
        assert!(!of("project_analyst").contains(&denied.to_owned()), "S000-092: {denied}");
    }
    let first = &lists["items"][0]["lines"][0];
    assert_eq!(
        first,
        &json!({ "tools": "sandbox.allowed_images.*", "setting": "gateway.pm_allowed_images" })
    );
}

#[tokio::test]
async fn records_are_found_by_task_tool_decision_call_and_project_by_those_who_may() {
    let bench = Bench::new().await;
    let other = bench.another_task().await;
    let here = bench.agent("developer").await;
    let there = bench.agent_with("tester", json!({ "task_id": other })).await;
    let call = here.call("help.overview", json!({})).await.call_id();
    here.call("db.task.list", json!({})).await;
    there.call("help.overview", json!({})).await;
    bench.app.recorded().await;
    let count = async |query: String| bench.searched(&query).await.len();
    assert_eq!(count(String::new()).await, 5);
    assert_eq!(count(format!("&task_id={}", bench.task)).await, 3);
    assert_eq!(count("&tool=help.overview".into()).await, 4);
    assert_eq!(count("&decision=deny".into()).await, 1);
    assert_eq!(count(format!("&call_id={call}")).await, 2);
    assert_eq!(count(format!("&project_id={}&decision=allow", bench.project)).await, 4);
    assert_eq!(count("&since=2026-11-01T12:00:01Z".into()).await, 0);
    bench.admin.get("/v1/audit?limit=0").await.expect(400);
    bench.admin.get("/v1/audit?cursor=c1").await.expect(400);
    let person = bench.app.user("person", None).await;
    let path = format!("/v1/audit?project_id={}", bench.project);
    person.get("/v1/audit").await.expect(403);
    person.get(&path).await.expect(404);
    bench.app.member(bench.project, &person, UserRole::Viewer).await;
    let seen = person.get(&path).await.expect(200).json();
    assert_eq!(seen["items"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn records_are_read_page_by_page_each_once_however_old_they_are() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    for _ in 0..6 {
        agent.call("help.overview", json!({})).await;
    }
    bench.app.recorded().await;
    // Two at a time of the same moment, minutes, hours, days, weeks and years ago.
    bench
        .app
        .db
        .execute(
            "UPDATE audit_records SET recorded_at = recorded_at - (ARRAY['0', '2 minutes', '5 hours', '3 days', '3 weeks', '2 days'])[1 + seq / 2]::interval",
        )
        .await;
    let whole = bench.admin.get("/v1/audit").await.expect(200).json();
    let whole = whole["items"].as_array().unwrap().clone();
    assert_eq!(whole.len(), 12);
    for (limit, filter) in [(1, ""), (5, "&decision=allow"), (11, ""), (12, "&tool=help.overview")]
    {
        let mut read = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = bench.admin.get(&format!("/v1/audit?limit={limit}{filter}{cursor}")).await;
            let page = page.expect(200).json();
            read.extend(page["items"].as_array().unwrap().clone());
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(read, whole, "{limit} at a time");
    }
}

#[tokio::test]
async fn a_server_whose_tools_a_rule_speaks_of_stays_until_the_rule_goes() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    let server = bench.install(&offering, "todo").await;
    bench
        .rule(
            "careful",
            "refuse",
            "forbid (principal, action == Action::\"ext.todo.fail\", resource);",
        )
        .await;
    let path = format!("/v1/tool-servers/{server}");
    let refused = bench.admin.delete(&path).await.expect(422);
    assert!(refused.text("detail").contains("careful"), "{}", refused.text("detail"));
    let agent = bench.agent("developer").await;
    assert_eq!(agent.call("ext.todo.fail", json!({})).await.verdict(), "refused denied_by_rule");
    assert_eq!(agent.call("ext.todo.echo", json!({})).await.verdict(), "ok");
    bench.admin.delete("/v1/rules/careful").await.expect(204);
    bench.admin.delete(&path).await.expect(204);
    promised().await;
    assert_eq!(agent.call("ext.todo.echo", json!({})).await.verdict(), "error -32602");
}

#[tokio::test]
async fn a_server_that_drops_a_tool_which_a_rule_speaks_of_does_not_stop_everybody() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    let server = bench.install(&offering, "todo").await;
    bench.rule("careful", "refuse", "forbid (principal, action == Action::\"ext.todo.fail\", resource) when { context.arguments has text && context.arguments.text == \"x\" };").await;
    // The server no longer offers it, and offers another under an argument that the rule cannot compare.
    let mut echo = crate::offering::plain("echo");
    echo["inputSchema"]["properties"]["text"]["type"] = json!("integer");
    offering.offer(vec![echo]);
    bench.refresh(&server).await;
    promised().await;
    let agent = bench.agent("developer").await;
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    assert_eq!(
        agent.call("ext.todo.fail", json!({})).await.verdict(),
        "refused definition_changed"
    );
}
