//! A call is tied to what its caller works on, and what is not the caller's is not touched.

use cynode_core::roles::UserRole;
use serde_json::json;

use crate::{
    bench::{Bench, ROLES, promised},
    offering::Offering,
};

const FOREIGN_JOB: &str = "job_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

#[tokio::test]
async fn a_call_for_another_task_is_refused_and_leaves_nothing_behind() {
    let bench = Bench::new().await;
    let other = bench.another_task().await;
    let writes = [
        ("artifact.put", json!({ "name": "a.txt", "media_type": "text/plain", "text": "x" })),
        ("pm.report", json!({ "kind": "work_completed", "summary": "done" })),
        ("agent.heartbeat", json!({})),
        ("agent.checkpoint", json!({ "state": { "n": 1 } })),
        ("agent.request_help", json!({ "question": "how?" })),
        ("agent.complete", json!({ "summary": "done" })),
    ];
    let agent = bench.agent("developer").await;
    for (tool, arguments) in &writes {
        for wrong in [
            json!(other),
            json!("tsk_nonsense"),
            json!(bench.task.to_uppercase()),
            json!(7),
            json!([bench.task]),
        ] {
            let mut arguments = arguments.clone();
            arguments["task_id"] = wrong.clone();
            assert_eq!(
                agent.call(tool, arguments).await.verdict(),
                "refused wrong_id",
                "S003-02, S003-12, REQ-MCPGAT-0001, REQ-MCPGAT-0106: {tool} {wrong}"
            );
        }
    }
    for table in [
        "SELECT count(*) FROM artifacts",
        "SELECT count(*) FROM agent_reports",
        "SELECT count(*) FROM agent_states",
        "SELECT count(*) FROM verifications",
    ] {
        assert_eq!(bench.app.db.number(table).await, 0, "S003-12: {table}");
    }
    let refused = bench.records().await;
    assert_eq!(refused.len(), writes.len() * 5);
    assert!(refused.iter().all(|record| record["outcome"] == "not_forwarded"));
}

#[tokio::test]
async fn ids_that_the_token_has_may_be_left_out_and_the_schema_says_so() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    for (tool, arguments) in [
        ("pm.report", json!({ "kind": "work_completed", "summary": "done" })),
        ("agent.complete", json!({ "summary": "done", "task_id": null })),
    ] {
        let verdict = agent.call(tool, arguments).await.verdict();
        assert_eq!(verdict, "ok", "S003-11: the gateway fills in what the token has: {tool}");
    }
    let told = "SELECT 'tsk_' || replace(task_id::text, '-', '') FROM agent_reports";
    assert_eq!(bench.app.db.texts(told).await, [bench.task.clone(), bench.task.clone()]);
    let listed = agent.listed().await;
    let report = listed.iter().find(|tool| tool["name"] == "pm__report").unwrap();
    let schema = &report["inputSchema"];
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    assert!(!required.contains(&json!("task_id")), "{required:?}");
    assert_eq!(schema["properties"]["task_id"]["description"], "Your token has it: leave it out.");
}

#[tokio::test]
async fn every_tool_that_is_tied_to_a_task_refuses_another_task_for_every_role_that_has_it() {
    let bench = Bench::new().await;
    let other = bench.another_task().await;
    let catalogue = bench.admin.get("/v1/tools").await.expect(200).json();
    let tied: Vec<_> = catalogue["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tool| tool["bound_to"].as_array().unwrap().contains(&json!("task_id")))
        .map(|tool| tool["wire_name"].as_str().unwrap().to_owned())
        .collect();
    let mut asked = 0;
    for role in ROLES {
        let agent = bench.agent(role).await;
        let (shown, listed) = (agent.tools().await, agent.listed().await);
        for tool in tied.iter().filter(|tool| shown.contains(tool)) {
            asked += 1;
            let wrong = agent.call(tool, json!({ "task_id": other })).await.verdict();
            assert_eq!(
                wrong, "refused wrong_id",
                "S003-02, S003-12, REQ-MCPGAT-0106: {role} {tool}"
            );
            // The task is the token's, so that nobody has to name it.
            let schema = &listed.iter().find(|it| it["name"] == **tool).unwrap()["inputSchema"];
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            assert!(!required.contains(&json!("task_id")), "{role} {tool}: {schema}");
        }
    }
    assert!(asked > 60, "{asked}");
}

#[tokio::test]
async fn ids_of_other_runs_jobs_and_projects_are_refused_wherever_they_stand() {
    let bench = Bench::new().await;
    let elsewhere = bench.app.project(&bench.admin, "other").await;
    let manager = bench.agent("project_manager").await;
    for tool in ["db.task.list", "db.project.get", "db.preference.list"] {
        let verdict = manager.call(tool, json!({ "project_id": elsewhere })).await.verdict();
        assert_eq!(verdict, "refused wrong_id", "{tool}");
        let verdict = manager.call(tool, json!({ "project_id": bench.project })).await.verdict();
        assert_eq!(verdict, "ok", "{tool}");
    }
    let create = json!({ "project_id": elsewhere, "description": "Elsewhere" });
    assert_eq!(manager.call("db.task.create", create).await.verdict(), "refused wrong_id");
    assert_eq!(bench.app.db.number("SELECT count(*) FROM tasks").await, 1);
    // An analyst without a job has no business with jobs; the manager asks for one that does not exist.
    let job = json!({ "task_id": bench.task, "job_id": FOREIGN_JOB });
    let analyst = bench.agent("project_analyst").await;
    assert_eq!(analyst.call("db.job.get", job.clone()).await.verdict(), "refused unbound_token");
    assert!(!analyst.tools().await.contains(&"db__job__get".to_owned()));
    assert_eq!(manager.call("db.job.get", job).await.verdict(), "failed not_found");
    // A run is checked although no tool of ours asks for one: whoever names one must mean their own.
    let named = json!({ "task_id": bench.task, "run_id": "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708" });
    let verdict = analyst.call("db.task.get", named).await.verdict();
    assert_eq!(verdict, "refused wrong_id", "S003-12, REQ-MCPGAT-0106: another run");
}

#[tokio::test]
async fn an_agent_that_is_a_job_is_held_to_that_job() {
    let bench = Bench::new().await;
    let jobs = jobs(&bench).await;
    let analyst = bench.agent_with("project_analyst", json!({ "job_id": jobs[0] })).await;
    let get = async |job: &str| {
        analyst.call("db.job.get", json!({ "task_id": bench.task, "job_id": job })).await
    };
    // What the tool then says is for `tools` to test: here it is only not refused.
    let own = get(&jobs[0]).await.verdict();
    assert!(!own.starts_with("refused"), "{own}");
    let other = get(&jobs[1]).await.verdict();
    assert_eq!(other, "refused wrong_id", "S003-12, REQ-MCPGAT-0106: another job");
    let own = analyst.call("db.job.get", json!({})).await.verdict();
    assert!(!own.starts_with("refused"), "{own}");
    let records = bench.records().await;
    assert!(records.iter().all(|record| record["job_id"] == json!(jobs[0])));
}

/// Two jobs of the task, made by driving it.
pub(crate) async fn jobs(bench: &Bench) -> Vec<String> {
    let runner = bench.app.runner().await;
    let start = json!({ "task_id": bench.task, "holder": "runner", "idempotency_key": "k" });
    let started = runner.post("/v1/workflow/start", start).await.expect(200).json();
    let mut position = started["position"].clone();
    let lease = json!({ "task_id": bench.task, "lease_id": started["lease"]["lease_id"],
        "fencing_token": started["lease"]["fencing_token"] });
    let units = json!([{ "effect": "plan_units", "units": [{ "key": "a", "title": "a" }, { "key": "b", "title": "b" }] }]);
    let create = |unit: &str| json!({ "effect": "create_job", "unit": unit, "attempt": 1, "timeout_seconds": 600 });
    for effects in [json!([]), units, json!([create("a"), create("b")])] {
        let body = json!({
            "lease": lease, "sequence": position["sequence"].as_i64().unwrap() + 1, "node": position["next"]["node"],
            "verdict": "pass", "state": {}, "seen_wakes": position["wakes"], "attempt": 1, "duration_ms": 5,
            "effects": effects,
        });
        position = runner.post("/v1/workflow/checkpoint", body).await.expect(200).json();
    }
    let ids = "SELECT 'job_' || replace(job_id::text, '-', '') FROM jobs ORDER BY job_id";
    let ids = bench.app.db.texts(ids).await;
    assert_eq!(ids.len(), 2);
    ids
}

#[tokio::test]
async fn a_role_in_the_arguments_is_checked_against_the_token_and_never_believed() {
    let bench = Bench::new().await;
    let agent = bench.agent("tester").await;
    let report = |role: &str| json!({ "task_id": bench.task, "kind": "tests_passed", "summary": "all", "agent_role": role });
    for role in ["project_manager", "developer", "Tester", ""] {
        assert_eq!(
            agent.call("pm.report", report(role)).await.verdict(),
            "refused wrong_role",
            "B004-65, X-06: {role}"
        );
    }
    assert_eq!(bench.app.db.number("SELECT count(*) FROM agent_reports").await, 0);
    assert_eq!(agent.call("pm.report", report("tester")).await.verdict(), "ok");
    assert_eq!(agent.call("apmas_report_to_pm", report("tester")).await.verdict(), "ok");
    let kept = bench.app.db.texts("SELECT agent_role FROM agent_reports").await;
    assert_eq!(kept, ["tester", "tester"]);
}

#[tokio::test]
async fn a_manager_works_on_any_task_of_its_project_and_on_none_outside_even_for_an_admin() {
    let bench = Bench::new().await;
    let second = bench.another_task().await;
    let elsewhere = bench.app.project(&bench.admin, "other").await;
    let foreign = bench.task_in(elsewhere).await;
    let manager = bench.agent_with("project_manager", json!({ "task_id": null })).await;
    let get = async |tool: &str, task: &str| manager.call(tool, json!({ "task_id": task })).await;
    for task in [&bench.task, &second] {
        assert_eq!(get("db.task.get", task).await.value()["id"], json!(task));
    }
    let nameless = manager.call("db.task.get", json!({})).await.verdict();
    assert_eq!(nameless, "refused missing_id", "S003-11, REQ-MCPGAT-0106");
    for tool in [
        "db.task.get",
        "db.task.cancel",
        "db.task.logs",
        "artifact.list",
        "db.preference.effective",
    ] {
        assert_eq!(get(tool, &foreign).await.verdict(), "failed not_found", "{tool}");
    }
    let put = json!({ "task_id": foreign, "name": "a", "media_type": "text/plain", "text": "x" });
    assert_eq!(manager.call("artifact.put", put).await.verdict(), "failed not_found");
    let tell = json!({ "task_id": foreign, "kind": "abort" });
    assert_eq!(manager.call("pm.instruct", tell).await.verdict(), "failed not_found");
    let state = bench.admin.get(&format!("/v1/tasks/{foreign}")).await.expect(200).text("state");
    assert_eq!(state, "queued");
    let seen = manager.call("db.project.list", json!({})).await.value();
    assert_eq!(seen["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_agent_may_not_do_more_than_the_person_it_works_for() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let person = bench.app.user("person", None).await;
    bench.app.member(bench.project, &person, UserRole::Operator).await;
    let issued = bench.issue(&person, "project_manager", json!({})).await;
    let manager = bench.holding(&issued).await;
    let beyond =
        [("ext.todo.echo", json!({})), ("web.fetch", json!({ "url": "http://127.0.0.1/" }))];
    for (tool, arguments) in beyond.clone() {
        let verdict = manager.call(tool, arguments).await.verdict();
        assert!(!verdict.starts_with("refused"), "{tool} {verdict}");
        assert!(manager.tools().await.contains(&tool.replace('.', "__")), "{tool}");
    }
    let update = json!({ "task_id": bench.task, "description": "Mend more" });
    assert_eq!(manager.call("db.task.update", update.clone()).await.verdict(), "ok");
    bench.app.member(bench.project, &person, UserRole::Viewer).await;
    assert_eq!(manager.call("db.task.update", update).await.verdict(), "failed forbidden");
    let read = manager.call("db.task.get", json!({ "task_id": bench.task })).await;
    assert_eq!(read.value()["description"], "Mend more");
    // What no operation of ours looks at is closed too.
    promised().await;
    for (tool, arguments) in beyond {
        let explained = json!({ "agent_token_id": issued["agent_token_id"], "tool": tool, "arguments": arguments });
        let explained = bench.admin.post("/v1/policy/explain", explained).await.expect(200).json();
        assert_eq!(explained["reason"], "user_lacks_permission", "{tool}");
        let verdict = manager.call(tool, arguments).await.verdict();
        assert_eq!(verdict, "refused user_lacks_permission", "{tool}");
        assert!(!manager.tools().await.contains(&tool.replace('.', "__")), "{tool}");
    }
    assert_eq!(offering.calls().len(), 1);
}

#[tokio::test]
async fn no_agent_can_change_settings_tools_rules_servers_or_tokens_by_any_door() {
    let bench = Bench::new().await;
    let manager = bench.agent_with("project_manager", json!({ "task_id": null })).await;
    let shown = manager.tools().await;
    for word in ["setting", "rule", "token", "server", "policy", "approve", "allowlist"] {
        assert!(!shown.iter().any(|tool| tool.contains(word)), "{word}");
    }
    for role in ["project_manager", "developer"] {
        let token = bench.agent(role).await.client.token().unwrap();
        // The doors of people, with the token of an agent.
        for door in [bench.app.anonymous(), bench.app.at_internal_port()] {
            let door = door.with_token(&token);
            for (path, body) in [
                (
                    "/v1/settings/gateway.pm_allowed_images",
                    json!({ "value": true, "expected_version": 0 }),
                ),
                ("/v1/tools/git.push", json!({ "enabled": true })),
                (
                    "/v1/rules/x",
                    json!({ "mode": "shadow", "text": "forbid (principal, action, resource);" }),
                ),
            ] {
                let status = door.put(path, body).await.status;
                assert!([401, 403, 404].contains(&status), "{path} {status}");
            }
            for (path, body) in [
                (
                    "/v1/agent-tokens",
                    json!({ "role": "project_manager", "project_id": bench.project }),
                ),
                (
                    "/v1/tool-servers",
                    json!({ "name": "x", "scope": "both", "transport": { "type": "http", "url": "https://example.com" } }),
                ),
                ("/v1/allowed-images", json!({ "image": "debian" })),
                ("/v1/profiles", json!({ "name": "open", "spec": { "tools": ["*"] } })),
            ] {
                let status = door.post(path, body).await.status;
                assert!([401, 403, 404].contains(&status), "{path} {status}");
            }
        }
    }
    for table in [
        "SELECT count(*) FROM system_settings",
        "SELECT count(*) FROM policy_rules",
        "SELECT count(*) FROM tool_overrides",
        "SELECT count(*) FROM tool_servers",
        "SELECT count(*) FROM allowed_images",
    ] {
        assert_eq!(bench.app.db.number(table).await, 0, "{table}");
    }
    assert_eq!(bench.app.db.number("SELECT count(*) FROM agent_tokens").await, 3);
}
