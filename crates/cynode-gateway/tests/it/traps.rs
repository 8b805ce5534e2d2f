//! Eighteen ways in which other gateways let calls through or lose sight of them (research: peers-gateway, section 7),
//! each as a test that it is not so here.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_app::{
    identity::service_tokens::{self, ServiceKind},
    platform::tokens::{self, TokenKind},
    tools::audit,
};
use cynode_policy::digest::Sha256Digest;
use cynode_testkit::mcp::{Agent, Era};
use futures::future::join_all;
use serde_json::{Value, json};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::{
    bench::{Bench, ROLES, promised},
    offering::{self, Offering},
};

/// Trap: no rules means allow (agentgateway).
#[tokio::test]
async fn no_rules_never_means_that_everything_is_allowed() {
    let bench = Bench::new().await;
    assert_eq!(bench.app.db.number("SELECT count(*) FROM policy_rules").await, 0);
    let task = json!({ "task_id": bench.task });
    let analyst = bench.agent("project_analyst").await;
    assert_eq!(
        analyst.call("db.task.cancel", task.clone()).await.verdict(),
        "refused not_allowlisted"
    );
    let developer = bench.agent("developer").await;
    assert_eq!(developer.call("db.task.get", task.clone()).await.verdict(), "refused wrong_scope");
    // Not the scope alone keeps it out.
    bench.set_tool("db.task.get", json!({ "scope": "both" })).await;
    assert_eq!(developer.call("db.task.get", task).await.verdict(), "refused not_allowlisted");
    assert_eq!(developer.call("nobody.wrote.this", json!({})).await.verdict(), "error -32602");
}

/// Trap: the token is optional by default (agentgateway).
#[tokio::test]
async fn without_a_token_nothing_is_answered() {
    let bench = Bench::new().await;
    let nobody = bench.app.at_gateway().await;
    for header in [None, Some("Bearer "), Some("Basic YTpi"), Some("bearer x"), Some("")] {
        let caller = match header {
            Some(value) => nobody.with_header("authorization", value),
            None => nobody.clone(),
        };
        for era in [Era::Modern, Era::Legacy] {
            let agent = caller.modern().in_era(era);
            for method in ["tools/list", "tools/call", "server/discover", "initialize", "ping", "x"]
            {
                let answer = agent.send(method, json!({ "name": "help.overview" })).await.0;
                assert_eq!(answer.status, 401, "S003-40, REQ-MCPGAT-0116: {header:?} {method}");
                let challenge = answer.headers["www-authenticate"].to_str().unwrap();
                assert!(challenge.starts_with("Bearer error=\"invalid_token\""), "{challenge}");
                assert_eq!(answer.json()["result"], Value::Null);
            }
        }
    }
}

/// Trap: a deny rule that cannot be evaluated allows (agentgateway).
#[tokio::test]
async fn a_rule_that_cannot_be_decided_refuses() {
    let bench = Bench::new().await;
    let overflows = "forbid (principal, action == Action::\"db.task.list\", resource) when \
        { context.arguments has limit && context.arguments.limit + 9223372036854775807 == 7 };";
    bench.rule("overflows", "refuse", overflows).await;
    let manager = bench.agent("project_manager").await;
    let refused = manager.call("db.task.list", json!({ "limit": 5 })).await;
    assert_eq!(refused.verdict(), "refused rule_failed");
    assert_eq!(manager.call("db.task.list", json!({})).await.verdict(), "ok");
    let kept = bench.records().await;
    assert_eq!(kept[0]["reason"], "rule_failed");
    assert_eq!(kept[0]["rules"], json!(["overflows"]));
}

/// Trap: where the policy cannot be asked, a stand-in says yes (docker).
#[tokio::test]
async fn a_gate_that_cannot_be_loaded_or_asked_lets_nothing_through() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await;
    let call = async || agent.call("ext.todo.echo", json!({ "text": "a" })).await;
    assert_eq!(call().await.verdict(), "ok");
    // A rule that nobody can load any more, put there behind our back.
    bench
        .app
        .db
        .execute(
            "INSERT INTO policy_rules (name, mode, text, version, updated_by, updated_at)
             SELECT 'odd', 'refuse', 'nonsense', 1, user_id, now() FROM users LIMIT 1",
        )
        .await;
    bench.app.db.execute("UPDATE policy_epoch SET epoch = epoch + 1").await;
    promised().await;
    assert_eq!(call().await.verdict(), "refused rule_failed");
    assert_eq!(agent.tools().await, Vec::<String>::new());
    // From here on nobody gets a connection any more.
    drop(bench.app.db.pool().close());
    promised().await;
    let answer = call().await;
    let ended = (answer.0.status, answer.verdict());
    assert_eq!(ended, (503, "error 503".into()), "B023-11: nothing is let through");
    assert_eq!(agent.send("tools/list", json!({})).await.0.status, 503);
    assert_eq!(offering.calls().len(), 1);
}

/// Trap: audit is off by default and blind to tool calls (`ContextForge`).
#[tokio::test]
async fn records_cannot_be_switched_off_and_tool_calls_are_in_them() {
    let bench = Bench::new().await;
    for key in ["audit.enabled", "gateway.audit", "gateway.records", "audit.tool_calls"] {
        let body = json!({ "value": false, "expected_version": 0 });
        bench.admin.put(&format!("/v1/settings/{key}"), body).await.expect(422);
    }
    promised().await;
    bench.agent("tester").await.call("help.overview", json!({})).await;
    assert_eq!(
        bench.story().await,
        [
            "tester help.overview decision allow allowed -",
            "tester help.overview outcome allow ok success",
        ]
    );
}

/// Trap: only what succeeded is recorded (Mikko).
#[tokio::test]
async fn refused_and_failed_calls_are_recorded_like_those_that_succeed() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let missing = "art_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
    agent.call("artifact.get", json!({ "task_id": bench.task, "artifact_id": missing })).await;
    agent.call("pm.instruct", json!({ "task_id": bench.task, "kind": "abort" })).await;
    agent.call("no.such.tool", json!({})).await;
    bench.app.at_gateway().await.modern().call("help.overview", json!({})).await;
    assert_eq!(
        bench.story().await,
        [
            "developer artifact.get decision allow allowed -",
            "developer artifact.get outcome allow not_found tool_error",
            "developer pm.instruct decision deny wrong_scope not_forwarded",
            "developer - decision deny unknown_tool not_forwarded",
            "- - decision deny invalid_token not_forwarded",
        ],
        "S003-03, S003-13, S003-14, S003-15, REQ-MCPGAT-0107, REQ-MCPGAT-0108"
    );
}

/// Trap: records are dropped when the database fails, and wait in a queue without bound (agentgateway).
#[tokio::test]
async fn records_wait_for_a_database_that_fails_and_calls_are_refused_before_they_become_too_many()
{
    let bench = Bench::new().await;
    let options = audit::AuditWriterOptions {
        max_backlog: 8,
        linger: Duration::from_millis(1),
        longest_pause: Duration::from_millis(64),
        ..audit::AuditWriterOptions::new("test")
    };
    let gate = bench.app.gateway_over(tempfile::tempdir().unwrap(), options).await;
    let issued = bench.issue(&bench.admin, "developer", json!({})).await;
    let agent = gate.client().with_token(issued["token"].as_str().unwrap()).modern();
    bench.app.db.execute("ALTER TABLE audit_records RENAME TO elsewhere").await;
    let mut verdicts = Vec::new();
    for _ in 0..6 {
        verdicts.push(agent.call("help.overview", json!({})).await.verdict());
    }
    assert_eq!(verdicts, ["ok", "ok", "ok", "ok", "error 503", "error 503"]);
    bench.app.db.execute("ALTER TABLE elsewhere RENAME TO audit_records").await;
    gate.recorded().await;
    assert_eq!(bench.app.db.number("SELECT count(*) FROM audit_records").await, 8);
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    gate.close().await;
    let report = audit::verify_audit_log(&bench.app.app, &bench.app.public_keys()).await.unwrap();
    assert_eq!((report.records, report.problems), (10, Vec::new()));
}

/// Trap: several fields of permission are united (`LiteLLM`).
#[tokio::test]
async fn what_a_token_a_role_and_a_scope_permit_is_what_all_of_them_permit() {
    let bench = Bench::new().await;
    let tools =
        json!({ "tools": ["db.task.get", "help.overview", "skills.list", "ext.todo.echo"] });
    let agent = bench.agent_with("developer", tools).await;
    let task = json!({ "task_id": bench.task });
    // In the token and not on the role's list; on the list and not in the token; in both.
    bench.set_tool("db.task.get", json!({"enabled": true, "scope": "both"})).await;
    let refused = agent.call("db.task.get", task.clone()).await.verdict();
    assert_eq!(refused, "refused not_allowlisted", "S000-085, S000-093: a switch does not widen");
    let verdict = agent.call("artifact.list", task).await.verdict();
    assert_eq!(verdict, "refused not_granted_by_token", "S003-37, REQ-MCPGAT-0116");
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    assert_eq!(agent.tools().await, ["help__overview", "skills__list"]);
    bench.set_tool("help.overview", json!({ "scope": "pm" })).await;
    let refused = agent.call("help.overview", json!({})).await.verdict();
    assert_eq!(refused, "refused wrong_scope", "S000-085: the tool's scope limits too");
    bench.set_tool("skills.list", json!({ "enabled": false })).await;
    assert_eq!(agent.call("skills.list", json!({})).await.verdict(), "refused disabled");
    assert_eq!(agent.tools().await, Vec::<String>::new());
}

/// Trap: the list shows what a call denies (Envoy, Kong, `LiteLLM`).
#[tokio::test]
async fn the_list_shows_exactly_what_a_call_lets_through_for_every_role_and_tool() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install_with(&offering, "todo", json!({ "scope": "sandbox" })).await;
    bench.set_tool("artifact.get", json!({ "enabled": false })).await;
    bench.set_tool("help.tool", json!({ "scope": "sandbox" })).await;
    let mut agents = vec![(
        "manager of no task",
        bench.agent_with("project_manager", json!({ "task_id": null })).await,
    )];
    for role in ROLES {
        agents.push((role, bench.agent(role).await));
        agents.push((role, bench.agent_with(role, json!({ "network": false })).await));
    }
    let runner = "runner".parse().unwrap();
    let runner = service_tokens::issue_service_token(&bench.app.app, ServiceKind::Runner, &runner)
        .await
        .unwrap();
    agents.push(("runner", bench.at_gateway(&runner.0).await));
    let catalogue = bench.admin.get("/v1/tools").await.expect(200).json();
    let catalogue = catalogue["items"].as_array().unwrap();
    assert!(catalogue.len() > 60, "{}", catalogue.len());
    let lists = bench.admin.get("/v1/allowlists").await.expect(200).json();
    let allows = |role: &str, wire_name: &str| {
        let name = wire_name.replace("__", ".");
        let all = lists["items"].as_array().unwrap().iter();
        let lines = all.filter(|list| list["role"] == role).map(|list| &list["lines"]);
        lines.flat_map(|lines| lines.as_array().unwrap()).any(|line| {
            let pattern = line["tools"].as_str().unwrap();
            pattern == name
                || pattern.strip_suffix('*').is_some_and(|start| name.starts_with(start))
        })
    };
    for (who, agent) in &agents {
        let listed: BTreeSet<_> = agent.tools().await.into_iter().collect();
        let asked = join_all(catalogue.iter().map(|tool| reaches(agent, tool, &bench.task))).await;
        let callable: BTreeSet<_> = asked.into_iter().flatten().collect();
        assert_eq!(listed, callable, "{who}");
        let all_on = |role: &str| callable.iter().all(|name| allows(role, name));
        if *who == "project_manager" {
            assert!(all_on(who), "S000-077, S000-088: only what is on its list: {callable:?}");
        }
        if *who == "project_analyst" {
            assert!(all_on(who), "S000-077, S000-091: only what is on its list: {callable:?}");
        }
    }
    // Rules of people are asked last, when the arguments are right.
    let forbids =
        "forbid (principal == Role::\"tester\", action in Action::\"artifact.*\", resource);";
    bench.rule("no-artifacts", "refuse", forbids).await;
    let (developer, tester) = (bench.agent("developer").await, bench.agent("tester").await);
    let of = async |agent: &Agent| {
        let shown = agent.tools().await.contains(&"artifact__list".to_owned());
        (shown, agent.call("artifact.list", json!({ "task_id": bench.task })).await.verdict())
    };
    assert_eq!(of(&developer).await, (true, "ok".into()));
    assert_eq!(of(&tester).await, (false, "refused denied_by_rule".into()));
}

/// The tool's name, if a call of it is stopped by nothing but its own arguments: one that does not exist is added.
async fn reaches(agent: &Agent, tool: &Value, task: &str) -> Option<String> {
    let mut arguments =
        json!({ "task_id": task, "run_id": "x", "job_id": "x", "no_such": 1, "text": 1 });
    let known = tool["input_schema"]["properties"].as_object().unwrap();
    for id in ["task_id", "run_id", "job_id"] {
        if !known.contains_key(id) {
            arguments.as_object_mut().unwrap().remove(id);
        }
    }
    let name = tool["wire_name"].as_str().unwrap();
    let answer = agent.call(name, arguments).await;
    let verdict = answer.verdict();
    assert_ne!(verdict, "ok", "{name}");
    (verdict == "refused invalid_arguments").then(|| name.to_owned())
}

/// Trap: the header `Mcp-Name` is trusted instead of the body (zentinel #443).
#[tokio::test]
async fn the_body_decides_whatever_the_header_says_is_called() {
    let bench = Bench::new().await;
    let analyst = bench.agent("project_analyst").await;
    let params = json!({ "name": "db.task.cancel", "arguments": { "task_id": bench.task } });
    let body = analyst.message("tools/call", params.clone()).to_string();
    let answer = analyst.send_text("tools/call", Some("help.overview"), body.clone()).await;
    assert_eq!((answer.0.status, answer.verdict()), (400, "error -32020".into()));
    let answer = analyst.send_text("tools/call", None, body).await;
    assert_eq!((answer.0.status, answer.verdict()), (400, "error -32020".into()));
    let legacy = analyst.clone().in_era(Era::Legacy);
    let misled = legacy.with_header("mcp-name", "help.overview");
    assert_eq!(misled.send("tools/call", params.clone()).await.verdict(), "error -32020");
    assert_eq!(legacy.send("tools/call", params).await.verdict(), "refused not_allowlisted");
    let state = bench.admin.get(&format!("/v1/tasks/{}", bench.task)).await.expect(200);
    assert_eq!(state.text("state"), "queued");
}

/// Trap: the workflow is what the caller says in a field of its own (cMCP).
#[tokio::test]
async fn ids_and_roles_that_a_caller_puts_beside_its_arguments_change_nothing() {
    let bench = Bench::new().await;
    let other = bench.another_task().await;
    let agent = bench.agent("developer").await;
    let claims = json!({
        "task_id": other, "workflow_id": other, "run_id": "run_x", "agent_role": "project_manager", "user": "root",
        "_meta": { "task_id": other, "cynode/task": other, "agentRole": "project_manager", "workflow": other },
    });
    let answer = agent.call_with("help.overview", json!({}), claims.clone()).await;
    assert_eq!(answer.value()["you"]["task_id"], json!(bench.task));
    assert_eq!(answer.value()["you"]["role"], "developer");
    let mine = json!({ "task_id": bench.task });
    let verdict = async |tool: &str, arguments: &Value| {
        let claimed = agent.call_with(tool, arguments.clone(), claims.clone()).await.verdict();
        let plain = agent.call(tool, arguments.clone()).await.verdict();
        assert_eq!(claimed, plain, "S003-07, S003-42, REQ-MCPGAT-0102, REQ-MCPGAT-0116");
        claimed
    };
    assert_eq!(verdict("db.task.get", &mine).await, "refused wrong_scope");
    assert_eq!(verdict("artifact.list", &json!({ "task_id": other })).await, "refused wrong_id");
    assert_eq!(verdict("artifact.list", &mine).await, "ok");
    for record in bench.records().await {
        assert_eq!(
            (&record["task_id"], &record["agent_role"]),
            (&json!(bench.task), &json!("developer"))
        );
    }
}

/// Trap: whoever can check a token can make one (Mikko).
#[tokio::test]
async fn nobody_can_make_a_token_from_what_the_database_holds() {
    let bench = Bench::new().await;
    let issued = bench.issue(&bench.admin, "project_manager", json!({})).await;
    let token = issued["token"].as_str().unwrap();
    let hash = Sha256Digest::of_bytes(token.as_bytes()).to_string();
    let kept = bench.app.db.texts("SELECT t::text FROM agent_tokens t").await.remove(0);
    assert!(
        kept.contains(&hash) && !kept.contains(token) && !kept.contains(&token[7..50]),
        "{kept}"
    );
    // The right form and checksum, and nobody ever issued it.
    let (made_up, _) = tokens::issue_token(TokenKind::Pm, bench.app.app.environment());
    let shown = [made_up.0, hash.clone(), format!("cyn_pm_{hash}"), format!("{token} ")];
    for shown in shown {
        let answer = bench.at_gateway(&shown).await.call("help.overview", json!({})).await.0;
        assert_eq!(answer.status, 401, "{shown}");
    }
    assert_eq!(bench.holding(&issued).await.call("help.overview", json!({})).await.verdict(), "ok");
}

/// Trap: hashes of arguments without a key, which anybody can guess against (cMCP, Mikko, `OpenBB`).
#[tokio::test]
async fn the_digest_of_arguments_cannot_be_guessed_without_the_key() {
    let bench = Bench::new().await;
    let issued = bench.issue(&bench.admin, "developer", json!({})).await;
    let arguments = json!({ "tool": "help.overview" });
    let ours = bench.holding(&issued).await.call("help.tool", arguments.clone()).await.call_id();
    let other = bench.app.gateway_with_another_key().await;
    let agent = other.client().with_token(issued["token"].as_str().unwrap()).modern();
    let theirs = agent.call("help.tool", arguments.clone()).await.call_id();
    bench.app.recorded().await;
    other.recorded().await;
    let digest = async |call: &str| {
        let found = bench.searched(&format!("&call_id={call}")).await;
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["arguments_size"], json!(arguments.to_string().len()));
        found[0]["arguments_digest"].as_str().unwrap().to_owned()
    };
    let (ours, theirs) = (digest(&ours).await, digest(&theirs).await);
    assert_ne!(ours, theirs);
    let plain = Sha256Digest::of_bytes(arguments.to_string().as_bytes()).to_string();
    assert!(ours != plain && theirs != plain);
    other.close().await;
}

/// Trap: a hook changes the call after it was decided (`ToolHive`).
#[tokio::test]
async fn what_was_decided_is_what_the_server_gets_byte_for_byte() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await;
    let arguments = "{\"zz\" : 1.50e2,\t\"text\":\"\\u0041\\/\u{e9} \" ,  \"aa\":[ ]}";
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{\"arguments\": {arguments} ,\
         \"name\":\"ext.todo.echo\",\"_meta\":{{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
         \"io.modelcontextprotocol/clientCapabilities\":{{}}}}}}}}"
    );
    let answer = agent.send_text("tools/call", Some("ext.todo.echo"), body).await;
    assert_eq!(answer.verdict(), "ok");
    let received = offering.calls().remove(0).text;
    assert!(received.contains(&format!("\"arguments\":{arguments}")), "{received}");
    let keys = &bench.app.app.gateway_parts().unwrap().keys;
    let digest = keys.digest_key().digest_bytes(arguments.as_bytes()).to_string();
    for record in bench.records().await {
        assert_eq!(record["arguments_digest"], json!(digest));
    }
}

/// Remembers what is told at INFO or louder.
#[derive(Clone, Default)]
struct Loud(Arc<Mutex<Vec<String>>>);

impl Subscriber for Loud {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        self.0.lock().unwrap().push(format!("{} {}", metadata.target(), metadata.name()));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Trap: a line of log for each request, behind one lock (Kuadrant).
#[tokio::test]
async fn a_call_writes_no_line_of_log() {
    let loud = Loud::default();
    tracing::subscriber::set_global_default(loud.clone()).unwrap();
    tracing::info!("heard");
    assert_eq!(std::mem::take(&mut *loud.0.lock().unwrap()).len(), 1);
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await;
    assert_eq!(agent.call("ext.todo.echo", json!({ "text": "a" })).await.verdict(), "ok");
    loud.0.lock().unwrap().clear();
    assert_eq!(agent.call("ext.todo.echo", json!({ "text": "b" })).await.verdict(), "ok");
    assert_eq!(agent.call("ext.todo.fail", json!({})).await.verdict(), "failed");
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    assert_eq!(agent.call("db.task.list", json!({})).await.verdict(), "refused wrong_scope");
    agent.tools().await;
    bench.app.recorded().await;
    let lines = loud.0.lock().unwrap().clone();
    assert_eq!(lines, Vec::<String>::new(), "S003-18, S003-19, REQ-MCPGAT-0111");
}

/// Trap: every look at a server's tools opens a new session (metamcp #324).
#[tokio::test]
async fn calls_and_looks_at_a_servers_tools_share_the_session_that_is_open() {
    let bench = Bench::new().await;
    let offering = Offering::start(offering::Era::Legacy).await;
    let server = bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await;
    let call = async |text: &str| {
        assert_eq!(agent.call("ext.todo.echo", json!({ "text": text })).await.verdict(), "ok");
    };
    call("first").await;
    let peers = |offering: &Offering| -> HashSet<_> {
        offering.seen().iter().map(|seen| seen.peer).collect()
    };
    // One for those who look, one for those who call.
    let (opened, connected) = (offering.count("initialize"), peers(&offering));
    assert_eq!((opened, connected.len()), (2, 2));
    for text in ["a", "b", "c", "d", "e"] {
        bench.refresh(&server).await;
        call(text).await;
        agent.tools().await;
    }
    assert_eq!(offering.count("initialize"), 2);
    assert_eq!(peers(&offering), connected);
}

/// Trap: a list that was made for one caller is marked `public` for caches.
#[tokio::test]
async fn what_one_agent_is_shown_is_kept_by_no_cache() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let listed = agent.send("tools/list", json!({})).await;
    assert_eq!(listed.result()["cacheScope"], "private");
    assert_eq!(listed.0.headers["cache-control"], "private, no-store");
    let legacy = agent.clone().in_era(Era::Legacy).send("tools/list", json!({})).await;
    assert_eq!(legacy.0.headers["cache-control"], "private, no-store");
    assert_eq!(agent.send("server/discover", json!({})).await.result()["cacheScope"], "private");
    let manager = bench.agent("project_manager").await;
    assert_ne!(manager.tools().await, agent.tools().await);
}

/// Trap: whether a request comes from somebody else's page is not asked unless configured (rmcp, agentgateway).
#[tokio::test]
async fn a_page_of_somebody_else_is_turned_away_by_default_even_with_a_token() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let evil = [
        ("origin", "http://evil.example"),
        ("origin", "https://localhost.evil.example"),
        ("origin", "null"),
        ("host", "evil.example"),
        ("host", "rebound.example:12082"),
    ];
    for (name, value) in evil {
        let misled = agent.with_header(name, value);
        for method in ["tools/list", "tools/call"] {
            let answer = misled.send(method, json!({ "name": "help.overview" })).await;
            assert_eq!(
                (answer.0.status, answer.verdict()),
                (403, "error 403".into()),
                "{name}: {value}"
            );
            // Whoever set up a name for it must find out which setting is missing.
            assert!(String::from_utf8_lossy(&answer.0.body).contains("`gateway.allowed_hosts`"));
        }
    }
    for (name, value) in [("origin", "http://127.0.0.1:12082"), ("host", "localhost:12082")] {
        let own = agent.with_header(name, value);
        assert_eq!(own.call("help.overview", json!({})).await.verdict(), "ok", "{name}: {value}");
    }
}
