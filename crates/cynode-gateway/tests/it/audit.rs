//! What is recorded of calls, that it holds no payload, and that no change of it stays unseen.

use std::{path::Path, time::Duration};

use cynode_app::tools::audit::{self, AuditWriterOptions};
use cynode_core::roles::UserRole;
use cynode_policy::digest::Sha256Digest;
use cynode_testkit::mcp::Era;
use futures::future::join_all;
use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::{
    bench::{Bench, beside, told},
    offering::Offering,
};

impl Bench {
    async fn verified(&self) -> audit::Report {
        audit::verify_audit_log(&self.app.app, &self.app.public_keys()).await.unwrap()
    }
}

#[tokio::test]
async fn the_record_of_a_call_says_who_called_what_under_which_policy_and_how_it_ended() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    bench.agent("developer").await.call("ext.todo.echo", json!({ "text": "a" })).await;
    assert_json_snapshot!(bench.records().await, {
        "[].chain_id" => "[id]", "[].call_id" => "[id]", "[].agent_token_id" => "[id]", "[].user_id" => "[id]",
        "[].project_id" => "[id]", "[].task_id" => "[id]", "[].run_id" => "[id]", "[].server_id" => "[id]",
        "[].policy_hash" => "[hash]", "[].trace_id" => "[trace]", "[].arguments_digest" => "[digest]",
        "[].duration_us" => "[time]", "[].hash" => "[hash]",
    });
    for record in bench.records().await {
        for fact in ["policy_hash", "trace_id", "hash"] {
            assert!(record[fact].is_string(), "S003-06, REQ-MCPGAT-0102: {fact}");
        }
    }
}

#[tokio::test]
async fn the_record_of_a_refusal_is_one_and_says_why() {
    let bench = Bench::new().await;
    let forbids = "forbid (principal, action == Action::\"help.tool\", resource);";
    bench.rule("no-help", "refuse", forbids).await;
    bench.agent("tester").await.call("help.tool", json!({ "tool": "x" })).await;
    assert_json_snapshot!(bench.records().await, {
        "[].chain_id" => "[id]", "[].call_id" => "[id]", "[].agent_token_id" => "[id]", "[].user_id" => "[id]",
        "[].project_id" => "[id]", "[].task_id" => "[id]", "[].run_id" => "[id]",
        "[].policy_hash" => "[hash]", "[].trace_id" => "[trace]", "[].arguments_digest" => "[digest]",
        "[].duration_us" => "[time]", "[].hash" => "[hash]",
    });
}

#[tokio::test]
async fn every_way_in_which_a_call_can_end_is_recorded_as_what_it_was() {
    let bench = Bench::new().await;
    let mut offering = Offering::modern().await;
    bench.install_with(&offering, "todo", json!({ "timeout_ms": 150 })).await;
    let mut dying = Offering::modern().await;
    bench.install(&dying, "dying").await;
    let agent = bench.agent("developer").await;
    for tool in ["echo", "fail", "hang", "vanish", "refuse", "liar"] {
        agent.call(&format!("ext.todo.{tool}"), json!({})).await;
    }
    // The server dies while it works on the call.
    let caller = agent.clone();
    let call = beside(async move { caller.call("ext.dying.hang", json!({})).await });
    dying.hanging(1).await;
    dying.die().await;
    call.await.unwrap();
    offering.die().await;
    agent.call("ext.dying.echo", json!({})).await;
    agent.call("help.overview", json!({})).await;
    agent.call("db.task.list", json!({})).await;
    let outcomes: Vec<_> =
        bench.story().await.into_iter().filter(|line| !line.ends_with("allowed -")).collect();
    assert_eq!(
        outcomes,
        [
            "developer ext.todo.echo outcome allow ok success",
            "developer ext.todo.fail outcome allow tool_error tool_error",
            "developer ext.todo.hang outcome allow timeout timeout",
            "developer ext.todo.vanish outcome allow unreachable disconnected",
            "developer ext.todo.refuse outcome allow protocol_error protocol_error",
            "developer ext.todo.liar outcome allow output_schema_violation protocol_error",
            "developer ext.dying.hang outcome allow unreachable disconnected",
            "developer ext.dying.echo outcome allow unreachable disconnected",
            "developer help.overview outcome allow ok success",
            "developer db.task.list decision deny wrong_scope not_forwarded",
        ],
        "S001-44, S003-03, S003-13, S003-15: each failure of a tool is recorded with its kind; REQ-MCPGAT-0002, REQ-MCPGAT-0107, REQ-MCPGAT-0109"
    );
}

#[tokio::test]
async fn calls_are_counted_by_tool_for_those_who_may_see_them() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let forbids = "forbid (principal, action == Action::\"help.tool\", resource);";
    bench.rule("no-help", "refuse", forbids).await;
    let agent = bench.agent("developer").await;
    for tool in ["echo", "echo", "fail"] {
        agent.call(&format!("ext.todo.{tool}"), json!({})).await;
    }
    bench.agent("tester").await.call("help.tool", json!({ "tool": "x" })).await;
    bench.app.recorded().await;
    let counted = |stats: &Value| -> Vec<Value> {
        let items = stats["items"].as_array().unwrap().iter();
        // What a busy machine could not decide in time was refused and sent again.
        let counts = |it: &Value| {
            let refused = it["refused"].as_i64() > Some(0) && it["tool"] == "help.tool";
            json!([it["tool"], it["allowed"], refused, it["failed"], it["p95_us"].is_number()])
        };
        items.map(counts).collect()
    };
    let expected = [
        json!(["ext.todo.echo", 2, false, 0, true]),
        json!(["ext.todo.fail", 1, false, 1, true]),
        json!(["help.tool", 0, true, 0, false]),
    ];
    let all = bench.admin.get("/v1/tool-stats").await.expect(200).json();
    assert_eq!(counted(&all), expected);
    let person = bench.app.user("person", None).await;
    let own = person.get("/v1/tool-stats").await.expect(200).json();
    assert_eq!(counted(&own), Vec::<Value>::new(), "nothing of a project without a role in it");
    let path = format!("/v1/tool-stats?project_id={}", bench.project);
    person.get(&path).await.expect(404);
    bench.app.member(bench.project, &person, UserRole::Viewer).await;
    for path in ["/v1/tool-stats", path.as_str()] {
        assert_eq!(counted(&person.get(path).await.expect(200).json()), expected, "{path}");
    }
    let later =
        bench.admin.get("/v1/tool-stats?since=2026-11-01T12:00:01Z&until=2026-11-01T13:00:00Z");
    assert_eq!(counted(&later.await.expect(200).json()), Vec::<Value>::new());
    bench.admin.get("/v1/tool-stats?since=2026-01-01T00:00:00Z").await.expect(422);
}

#[tokio::test]
async fn a_call_that_its_caller_gives_up_is_recorded_as_cancelled() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await.in_era(Era::Legacy);
    let caller = agent.clone().naming(json!("the-one"));
    let call = beside(async move { caller.call("ext.todo.hang", json!({})).await });
    offering.hanging(1).await;
    // Of another request nothing is given up, and nobody else gives up this one.
    let stranger = bench.agent("developer").await.in_era(Era::Legacy);
    stranger.notify("notifications/cancelled", json!({ "requestId": "the-one" })).await.expect(202);
    agent.notify("notifications/cancelled", json!({ "requestId": "another" })).await.expect(202);
    assert!(!call.is_finished());
    agent.notify("notifications/cancelled", json!({ "requestId": "the-one" })).await.expect(202);
    assert_eq!(call.await.unwrap().verdict(), "failed cancelled");
    offering.abandoned(1).await;
    assert_eq!(
        bench.story().await,
        [
            "developer ext.todo.hang decision allow allowed -",
            "developer ext.todo.hang outcome allow cancelled cancelled",
        ],
        "S003-15, REQ-MCPGAT-0109"
    );
}

#[tokio::test]
async fn giving_up_a_call_ends_no_call_of_another_session_that_is_named_alike() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await.in_era(Era::Legacy).naming(json!(1));
    let sessions = ["left", "right"].map(|name| agent.with_header("mcp-session-id", name));
    let [left, right] = sessions.clone();
    let mut first = beside(async move { left.call("ext.todo.hang", json!({})).await });
    offering.hanging(1).await;
    let mut second = beside(async move { right.call("ext.todo.hang", json!({})).await });
    offering.hanging(2).await;
    let [left, right] = sessions;
    let given_up = json!({ "requestId": 1 });
    left.notify("notifications/cancelled", given_up.clone()).await.expect(202);
    tokio::select! {
        ended = &mut first => assert_eq!(ended.unwrap().verdict(), "failed cancelled"),
        ended = &mut second => panic!("{}", ended.unwrap().verdict()),
    }
    right.notify("notifications/cancelled", given_up).await.expect(202);
    assert_eq!(second.await.unwrap().verdict(), "failed cancelled");
    offering.abandoned(2).await;
}

#[tokio::test]
async fn a_call_whose_caller_goes_away_is_recorded_as_disconnected_and_given_up() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await;
    let call = beside(async move { agent.call("ext.todo.hang", json!({})).await });
    offering.hanging(1).await;
    call.abort();
    offering.abandoned(1).await;
    // The outcome is written when the call has ended; nobody waits for it but us.
    while bench.records().await.len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        bench.story().await,
        [
            "developer ext.todo.hang decision allow allowed -",
            "developer ext.todo.hang outcome allow client_disconnected disconnected",
        ],
        "S003-15, REQ-MCPGAT-0109"
    );
}

#[tokio::test]
async fn of_many_calls_at_once_each_has_exactly_its_decision_and_its_outcome() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agents = [bench.agent("developer").await, bench.agent("project_manager").await];
    let calls = (0..40).map(|number| {
        let tool = ["ext.todo.echo", "ext.todo.fail", "help.overview", "db.task.list"][number % 4];
        let agent = agents[number / 20].clone();
        async move { agent.call(tool, json!({ "text": number.to_string() })).await.call_id() }
    });
    let calls = join_all(calls).await;
    let records = bench.records().await;
    for call in &calls {
        let own: Vec<_> =
            records.iter().filter(|record| record["call_id"] == json!(call)).collect();
        let phases: Vec<_> = own.iter().map(|record| record["phase"].as_str().unwrap()).collect();
        match own[0]["decision"].as_str().unwrap() {
            "deny" => assert_eq!(phases, ["decision"]),
            _ => assert_eq!(phases, ["decision", "outcome"]),
        }
    }
    let allowed = records.iter().filter(|record| record["phase"] == "outcome").count();
    assert_eq!(records.len(), calls.len() + allowed, "S003-03, S003-13, REQ-MCPGAT-0107");
    let of_manager = records.iter().filter(|record| {
        record["phase"] == "decision" && record["agent_role"] == "project_manager"
    });
    assert_eq!(of_manager.count(), 20, "S000-083: as many records as calls of the manager");
}

/// Every row of every table of records, with bytes as hex.
const DUMP: &str = "SELECT r::text FROM audit_records r UNION ALL SELECT c::text FROM audit_chains c \
    UNION ALL SELECT k::text FROM audit_checkpoints k";

fn files(directory: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            bytes.extend(files(&path));
        } else {
            bytes.extend(std::fs::read(path).unwrap());
        }
    }
    bytes
}

fn holds(bytes: &[u8], marker: &str) -> bool {
    bytes.windows(marker.len()).any(|window| window == marker.as_bytes())
}

#[tokio::test]
async fn neither_arguments_nor_results_are_in_any_record_or_file() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await;
    let said = agent.call("ext.todo.echo", json!({ "text": "ARGUMENT-MARKER" })).await;
    assert!(said.text().contains("RESULT-MARKER") && said.text().contains("ARGUMENT-MARKER"));
    agent.call("ext.todo.fail", json!({ "ARGUMENT-MARKER": 1 })).await;
    agent.call("db.task.list", json!({ "ARGUMENT-MARKER": "ARGUMENT-MARKER" })).await;
    agent.call("ARGUMENT-MARKER", json!({})).await;
    agent.call("artifact.put", json!({ "task_id": bench.task, "name": "ARGUMENT-MARKER", "media_type": "text/plain", "text": "ARGUMENT-MARKER" })).await;
    agent.send("ARGUMENT-MARKER", json!({})).await;
    bench.app.at_gateway().await.modern().send("ARGUMENT-MARKER", json!({})).await;
    let written = files(&bench.app.records_directory().await);
    let rows = {
        bench.app.recorded().await;
        bench.app.db.texts(DUMP).await.join("\n")
    };
    // What is looked for would be found.
    assert!(rows.contains("ext.todo.echo") && holds(&written, "ext.todo.echo"));
    for marker in ["ARGUMENT-MARKER", "RESULT-MARKER"] {
        let hex = marker.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let found = rows.contains(marker) || rows.contains(&hex);
        assert!(!found, "X-16, S003-16, S003-17: REQ-MCPGAT-0110: {marker}: {rows}");
        assert!(!holds(&written, marker), "{marker}");
    }
}

#[tokio::test]
async fn the_tables_of_records_have_no_column_that_could_hold_a_payload() {
    let bench = Bench::new().await;
    let wide = "SELECT table_name || '.' || column_name FROM information_schema.columns \
        WHERE table_name LIKE 'audit\\_%' AND data_type IN ('json', 'jsonb', 'xml') ORDER BY 1";
    let wide = bench.app.db.texts(wide).await;
    assert_eq!(
        wide,
        // Where a sink is, as an admin wrote it; no record.
        ["audit_sinks.target"],
        "S003-16, S003-17, REQ-MCPGAT-0110, X-16: no column holds a payload"
    );
    let texts = "SELECT DISTINCT column_name::text FROM information_schema.columns \
        WHERE table_name LIKE 'audit\\_records%' AND data_type IN ('text', 'ARRAY', 'character varying') ORDER BY 1";
    assert_eq!(
        bench.app.db.texts(texts).await,
        [
            "agent_kind",
            "agent_role",
            "decision",
            "method",
            "outcome",
            "phase",
            "profile",
            "reason",
            "rules",
            "shadow_rules",
            "tool",
            "trace_id",
        ],
        "S003-16, S003-17, REQ-MCPGAT-0110"
    );
}

/// One change of each column of a record.
const CHANGES: [(&str, &str); 34] = [
    ("chain_id", "UPDATE audit_records SET chain_id = gen_random_uuid() WHERE seq = 1"),
    ("seq", "UPDATE audit_records SET seq = 77 WHERE seq = 1"),
    (
        "recorded_at",
        "UPDATE audit_records SET recorded_at = recorded_at + interval '1 microsecond' WHERE seq = 1",
    ),
    ("call_id", "UPDATE audit_records SET call_id = gen_random_uuid() WHERE seq = 1"),
    ("phase", "UPDATE audit_records SET phase = 'decision' WHERE seq = 1"),
    ("decision", "UPDATE audit_records SET decision = 'deny' WHERE seq = 1"),
    ("reason", "UPDATE audit_records SET reason = 'other' WHERE seq = 1"),
    ("rules", "UPDATE audit_records SET rules = '{a}' WHERE seq = 1"),
    ("shadow_rules", "UPDATE audit_records SET shadow_rules = '{a}' WHERE seq = 1"),
    ("outcome", "UPDATE audit_records SET outcome = 'timeout' WHERE seq = 1"),
    ("agent_token_id", "UPDATE audit_records SET agent_token_id = gen_random_uuid() WHERE seq = 1"),
    ("agent_kind", "UPDATE audit_records SET agent_kind = 'pm' WHERE seq = 1"),
    ("agent_role", "UPDATE audit_records SET agent_role = 'tester' WHERE seq = 1"),
    ("user_id", "UPDATE audit_records SET user_id = gen_random_uuid() WHERE seq = 1"),
    ("project_id", "UPDATE audit_records SET project_id = NULL WHERE seq = 1"),
    ("task_id", "UPDATE audit_records SET task_id = gen_random_uuid() WHERE seq = 1"),
    ("run_id", "UPDATE audit_records SET run_id = NULL WHERE seq = 1"),
    ("job_id", "UPDATE audit_records SET job_id = gen_random_uuid() WHERE seq = 1"),
    ("method", "UPDATE audit_records SET method = 'ping' WHERE seq = 1"),
    ("tool", "UPDATE audit_records SET tool = 'help.tool' WHERE seq = 1"),
    ("definition_digest", "UPDATE audit_records SET definition_digest = sha256('x') WHERE seq = 1"),
    ("server_id", "UPDATE audit_records SET server_id = gen_random_uuid() WHERE seq = 1"),
    ("node_id", "UPDATE audit_records SET node_id = gen_random_uuid() WHERE seq = 1"),
    ("policy_hash", "UPDATE audit_records SET policy_hash = sha256('x') WHERE seq = 1"),
    ("catalogue_hash", "UPDATE audit_records SET catalogue_hash = sha256('x') WHERE seq = 1"),
    ("trace_id", "UPDATE audit_records SET trace_id = repeat('a', 32) WHERE seq = 1"),
    ("arguments_digest", "UPDATE audit_records SET arguments_digest = sha256('x') WHERE seq = 1"),
    ("arguments_size", "UPDATE audit_records SET arguments_size = 99 WHERE seq = 1"),
    ("result_digest", "UPDATE audit_records SET result_digest = NULL WHERE seq = 1"),
    ("result_size", "UPDATE audit_records SET result_size = 99999 WHERE seq = 1"),
    ("duration_us", "UPDATE audit_records SET duration_us = duration_us + 1 WHERE seq = 1"),
    ("previous_hash", "UPDATE audit_records SET previous_hash = sha256('x') WHERE seq = 1"),
    ("hash", "UPDATE audit_records SET hash = sha256('x') WHERE seq = 1"),
    ("profile", "UPDATE audit_records SET profile = 'other' WHERE seq = 1"),
];

#[tokio::test]
async fn a_change_of_any_column_of_any_record_is_found_out() {
    let mut bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    agent.call("help.overview", json!({})).await;
    agent.call("db.task.list", json!({})).await;
    drop(agent);
    bench.app.close_gateway().await.unwrap();
    let report = bench.verified().await;
    assert_eq!(
        (report.records, report.covered, report.closed, report.problems),
        (3, 3, 1, Vec::new())
    );
    let columns = "SELECT column_name::text FROM information_schema.columns \
        WHERE table_name = 'audit_records' ORDER BY ordinal_position";
    assert_eq!(bench.app.db.texts(columns).await, CHANGES.map(|(column, _)| column.to_owned()));
    bench.app.db.execute("CREATE TABLE kept AS SELECT * FROM audit_records").await;
    let whole = async || {
        bench.app.db.execute("DELETE FROM audit_records").await;
        bench.app.db.execute("INSERT INTO audit_records SELECT * FROM kept").await;
    };
    for (column, change) in CHANGES {
        assert_eq!(bench.app.db.execute(change).await, 1, "{column}");
        assert_ne!(bench.verified().await.problems, Vec::<String>::new(), "{column}");
        whole().await;
    }
    for (what, change) in [
        ("a record that is missing", "DELETE FROM audit_records WHERE seq = 1"),
        ("a record that is missing at the end", "DELETE FROM audit_records WHERE seq = 2"),
        ("all records that are missing", "DELETE FROM audit_records"),
        (
            "a record that nobody wrote",
            "INSERT INTO audit_records SELECT (jsonb_populate_record(r, '{\"seq\": 3}')).* FROM audit_records r WHERE seq = 2",
        ),
    ] {
        assert!(bench.app.db.execute(change).await > 0, "{what}");
        assert_ne!(bench.verified().await.problems, Vec::<String>::new(), "{what}");
        whole().await;
    }
    assert_eq!(bench.verified().await.problems, Vec::<String>::new());
    for (what, change) in [
        ("the writer of a chain", "UPDATE audit_chains SET writer = 'other'"),
        ("the head of a chain", "UPDATE audit_checkpoints SET root = sha256('x')"),
        ("a chain that is missing", "DELETE FROM audit_chains"),
    ] {
        assert!(bench.app.db.execute(change).await > 0, "{what}");
        assert_ne!(bench.verified().await.problems, Vec::<String>::new(), "{what}");
    }
}

#[tokio::test]
async fn a_call_can_be_proven_to_somebody_who_has_only_a_signed_head_and_the_public_key() {
    let mut bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let call = agent.call("help.overview", json!({})).await.call_id();
    for _ in 0..4 {
        agent.call("skills.list", json!({})).await;
    }
    drop(agent);
    bench.app.close_gateway().await.unwrap();
    let key = bench.app.verifying_key();
    let proofs = audit::prove_call(&bench.app.app, call.parse().unwrap(), &bench.app.public_keys())
        .await
        .unwrap();
    assert_eq!(proofs.len(), 2);
    for proof in &proofs {
        proof.inclusion.verify_record(&proof.record, &proof.checkpoint, &key).unwrap();
        let mut changed = proof.record.clone();
        changed.entry.reason = "other".into();
        assert!(proof.inclusion.verify_record(&changed, &proof.checkpoint, &key).is_err());
    }
    let swapped = proofs[0].inclusion.verify_record(&proofs[1].record, &proofs[0].checkpoint, &key);
    assert!(swapped.is_err());
}

#[tokio::test]
async fn an_admin_checks_all_records_over_http_and_whoever_sees_a_call_gets_its_proof() {
    let mut bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let call = agent.call("help.overview", json!({})).await.call_id();
    agent.call("db.task.list", json!({})).await;
    drop(agent);
    let (viewer, nobody) = (bench.app.user("vera", None).await, bench.app.user("noah", None).await);
    bench.app.member(bench.project, &viewer, UserRole::Viewer).await;
    let proof = format!("/v1/audit/{call}/proof");
    bench.app.close_gateway().await.unwrap();

    let report = bench.admin.get("/v1/audit/verify").await.expect(200).parse::<audit::Report>();
    assert_eq!(report, bench.verified().await, "the same as the command line finds");
    assert_eq!((report.records, report.covered, report.problems), (3, 3, Vec::new()));
    let operator = bench.app.user("olga", Some(UserRole::Operator)).await;
    operator.get("/v1/audit/verify").await.expect(403);

    for seer in [&bench.admin, &viewer] {
        let proofs = seer.get(&proof).await.expect(200).json()["items"].clone();
        let proofs: Vec<audit::RecordProof> = serde_json::from_value(proofs).unwrap();
        assert_eq!(proofs.len(), 2);
        for proof in proofs {
            let key = bench.app.verifying_key();
            proof.inclusion.verify_record(&proof.record, &proof.checkpoint, &key).unwrap();
        }
    }
    nobody.get(&proof).await.expect(404);

    bench.app.db.execute("UPDATE audit_records SET reason = 'other' WHERE seq = 2").await;
    let report = bench.admin.get("/v1/audit/verify").await.expect(200).parse::<audit::Report>();
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].contains("record 2 was changed"), "{:?}", report.problems);
}

/// Leaf and node of RFC 6962, computed here by its definition.
fn leaf(hash: [u8; 32]) -> [u8; 32] {
    Sha256Digest::of_bytes(&[[0_u8].as_slice(), hash.as_slice()].concat()).0
}

fn node(left: [u8; 32], right: [u8; 32]) -> [u8; 32] {
    Sha256Digest::of_bytes(&[[1_u8].as_slice(), left.as_slice(), right.as_slice()].concat()).0
}

fn hex(bytes: [u8; 32]) -> String {
    data_encoding::HEXLOWER.encode(&bytes)
}

/// An installation whose closed chain has three records, and what it exports.
async fn closed_chain() -> (Bench, Value, Vec<Value>) {
    let mut bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    agent.call("help.overview", json!({})).await;
    agent.call("db.task.list", json!({})).await;
    drop(agent);
    bench.app.close_gateway().await.unwrap();
    let heads = bench.admin.get("/v1/audit/head").await.expect(200).json();
    let export = bench.admin.get("/v1/audit/export").await.expect(200);
    assert_eq!(export.headers["content-type"], "application/x-ndjson");
    let text = String::from_utf8(export.body.to_vec()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (bench, heads, lines)
}

#[tokio::test]
async fn an_export_is_checked_by_a_reader_who_has_only_the_public_key() {
    let (bench, heads, lines) = closed_chain().await;
    let key = bench.app.verifying_key();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["bundle", "checkpoint", "record", "record", "record", "end"]);
    assert_eq!(lines[0]["public_key"], heads["public_key"]);
    assert_eq!(lines[1]["checkpoint"], heads["heads"][0]["checkpoint"]);
    let head: audit::AuditCheckpoint =
        serde_json::from_value(lines[1]["checkpoint"].clone()).unwrap();
    for (seq, line) in (0..).zip(&lines[2..5]) {
        let record: audit::AuditRecord = serde_json::from_value(line["record"].clone()).unwrap();
        let inclusion: audit::RecordInclusionProof =
            serde_json::from_value(line["inclusion"].clone()).unwrap();
        assert_eq!(record.seq, seq);
        inclusion.verify_record(&record, &head, &key).unwrap();
    }
    let end = json!({ "type": "end", "records": 3, "proven": 3, "complete": true });
    assert_eq!(lines[5], end);

    let newest = bench.admin.get("/v1/audit/export?limit=1").await.expect(200);
    let text = String::from_utf8(newest.body.to_vec()).unwrap();
    let end: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(end, json!({ "type": "end", "records": 1, "proven": 1, "complete": false }));

    let viewer = bench.app.user("vera", None).await;
    bench.app.member(bench.project, &viewer, UserRole::Viewer).await;
    viewer.get("/v1/audit/export").await.expect(403);
    let own = format!("/v1/audit/export?project_id={}", bench.project);
    let own = String::from_utf8(viewer.get(&own).await.expect(200).body.to_vec()).unwrap();
    assert_eq!(own.lines().count(), 6);
    bench.admin.get("/v1/audit/export?limit=5001").await.expect(400);
}

#[tokio::test]
async fn a_chain_shows_that_it_only_grew_and_one_that_was_cut_off_cannot() {
    let (bench, heads, lines) = closed_chain().await;
    let records: Vec<audit::AuditRecord> = lines[2..5]
        .iter()
        .map(|line| serde_json::from_value(line["record"].clone()).unwrap())
        .collect();
    let [first, second, third] = [0, 1, 2].map(|at: usize| leaf(records[at].hash));
    let root = node(node(first, second), third);
    let head = &heads["heads"][0];
    assert_eq!(head["checkpoint"]["root"], hex(root));
    assert_eq!(
        (&head["checkpoint"]["size"], &head["checkpoint"]["closed"]),
        (&json!(3), &json!(true))
    );
    let chain = head["chain_id"].as_str().unwrap();
    let consistency = |query: &str| format!("/v1/audit/consistency?chain={chain}&{query}");

    // A reader who has the head of one record computes the root of three from the proof.
    let proof = bench.admin.get(&consistency("from=1")).await.expect(200).json();
    assert_eq!(proof["path"], json!([hex(second), hex(third)]));
    assert_eq!((&proof["from"], &proof["to"]), (&json!(1), &json!(3)));
    assert_eq!(proof["checkpoint"], head["checkpoint"]);
    let proof = bench.admin.get(&consistency("from=2&to=3")).await.expect(200).json();
    assert_eq!(proof["path"], json!([hex(third)]));
    let proof = bench.admin.get(&consistency("from=3")).await.expect(200).json();
    assert_eq!(proof["path"], json!([]));

    for (query, status, code) in [
        ("from=0", 422, "invalid"),
        ("from=3&to=2", 422, "invalid"),
        ("from=4", 409, "chain_truncated"),
        ("from=1&to=9", 409, "chain_truncated"),
    ] {
        let refused = bench.admin.get(&consistency(query)).await.expect(status);
        assert_eq!(refused.text("code"), code, "{query}");
    }
    let other = "/v1/audit/consistency?chain=chn_0192d5c8b6f07cc1a1a3c2b4d5e6f708&from=1";
    bench.admin.get(other).await.expect(404);
    let viewer = bench.app.user("vera", None).await;
    viewer.get(&consistency("from=1")).await.expect(403);
    bench.app.member(bench.project, &viewer, UserRole::Viewer).await;
    viewer.get(&consistency("from=1")).await.expect(200);

    bench.app.db.execute("DELETE FROM audit_records WHERE seq = 2").await;
    let refused = bench.admin.get(&consistency("from=1")).await.expect(409);
    assert_eq!(refused.text("code"), "chain_truncated");
    assert!(
        refused
            .text("detail")
            .contains("a signed head of 3 records is asked for, and the chain has 2")
    );
    bench.app.db.execute("DELETE FROM audit_checkpoints").await;
    let refused = bench.admin.get(&consistency("from=3")).await.expect(409);
    assert_eq!(refused.text("code"), "chain_truncated");
}

fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    std::fs::create_dir(to.path().join("audit")).unwrap();
    for entry in std::fs::read_dir(from.join("audit")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join("audit").join(entry.file_name())).unwrap();
    }
    to
}

#[tokio::test]
async fn what_a_gate_that_died_had_begun_is_recorded_as_of_unknown_outcome_by_the_next_one() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    // The store is away, so that what the dead gate knew is in its files alone.
    let options = AuditWriterOptions {
        longest_pause: Duration::from_millis(64),
        ..AuditWriterOptions::new("dies")
    };
    let gate = bench.app.gateway_over(tempfile::tempdir().unwrap(), options).await;
    let agent = bench.agent("developer").await.at(&gate);
    bench.app.db.execute("ALTER TABLE audit_records RENAME TO elsewhere").await;
    assert_eq!(agent.call("ext.todo.echo", json!({ "text": "a" })).await.verdict(), "ok");
    let call = beside(async move { agent.call("ext.todo.hang", json!({})).await });
    offering.hanging(1).await;
    // The disk of a machine that died at this moment.
    let left = copied(gate.directory());
    let next = bench
        .app
        .gateway_over(
            left,
            AuditWriterOptions {
                linger: Duration::from_millis(1),
                ..AuditWriterOptions::new("next")
            },
        )
        .await;
    bench.app.db.execute("ALTER TABLE elsewhere RENAME TO audit_records").await;
    next.recorded().await;
    let story: Vec<_> = bench.searched("").await.iter().map(told).collect();
    let mut story = story;
    story.sort();
    assert_eq!(
        story,
        [
            "developer ext.todo.echo decision allow allowed -",
            "developer ext.todo.echo outcome allow ok success",
            "developer ext.todo.hang decision allow allowed -",
            "developer ext.todo.hang outcome allow cut_off unknown",
        ],
        "S003-15, REQ-MCPGAT-0109"
    );
    next.close().await;
    assert_eq!(bench.verified().await.problems, Vec::<String>::new());
    call.abort();
}

#[tokio::test]
async fn a_database_of_a_later_moment_than_the_audit_files_verifies_after_they_were_brought_up_to_it()
 {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    agent.call("help.overview", json!({})).await;
    bench.app.recorded().await;
    let backup = copied(&bench.app.records_directory().await);
    // The database goes on after the backup, and so it is restored: with what the files do not have.
    agent.call("help.overview", json!({})).await;
    agent.call("db.task.list", json!({})).await;
    bench.app.recorded().await;
    // Another replica has begun a chain, and its records are later than the restored moment.
    let replica = bench.app.another_gateway().await;
    agent.clone().at(&replica).call("help.overview", json!({})).await;
    replica.recorded().await;
    for deletion in [
        "DELETE FROM audit_checkpoints WHERE chain_id = (SELECT chain_id FROM audit_chains ORDER BY number DESC LIMIT 1)",
        "DELETE FROM audit_records WHERE chain_id = (SELECT chain_id FROM audit_chains ORDER BY number DESC LIMIT 1)",
    ] {
        bench.app.db.execute(deletion).await;
    }

    let directory = backup.path().join("audit");
    let reconcile = async || audit::reconcile_segments(&bench.app.app, &directory).await.unwrap();
    let done = reconcile().await;
    assert_eq!((done.records, done.starts, done.damaged), (3, 1, 0));
    assert_eq!(reconcile().await, audit::SegmentReconciliation::default());

    let restored = bench.app.gateway_over(backup, AuditWriterOptions::new("restored")).await;
    agent.at(&restored).call("help.overview", json!({})).await;
    restored.recorded().await;
    restored.close().await;
    let report = bench.verified().await;
    assert_eq!(
        (report.chains, report.closed, report.records, report.problems),
        (2, 2, 7, Vec::new())
    );
}

#[tokio::test]
async fn records_whose_time_is_over_are_removed_and_what_stays_says_that_it_was_us() {
    let mut bench = Bench::new().await;
    bench.agent("developer").await.call("help.overview", json!({})).await;
    bench.app.close_gateway().await.unwrap();
    let keep = time::Duration::days(30);
    assert_eq!(audit::prune_records(&bench.app.app, keep).await.unwrap(), 0);
    bench.app.clock.advance(time::Duration::days(31));
    assert_eq!(audit::prune_records(&bench.app.app, keep).await.unwrap(), 2);
    assert_eq!(bench.app.db.number("SELECT count(*) FROM audit_records").await, 0);
    let report = bench.verified().await;
    assert_eq!(
        (report.chains, report.pruned, report.records, report.problems),
        (1, 1, 0, Vec::new())
    );
    bench.app.db.execute("UPDATE audit_chains SET pruned_at = pruned_at + interval '1 day'").await;
    assert_ne!(bench.verified().await.problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_message_that_is_no_call_is_answered_and_leaves_no_record() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    agent.tools().await;
    agent.send("server/discover", json!({})).await.0.expect(200);
    let legacy = agent.clone().in_era(Era::Legacy);
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "x", "version": "1" } });
    let hello = legacy.send("initialize", hello).await;
    assert_eq!(hello.result()["protocolVersion"], "2025-06-18");
    let odd = json!({ "protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": { "name": "x", "version": "1" } });
    let odd = legacy.send("initialize", odd).await;
    assert_eq!(odd.result()["protocolVersion"], "2025-11-25", "B004-61");
    legacy.notify("notifications/initialized", json!({})).await.expect(202);
    assert_eq!(legacy.send("ping", json!({})).await.result(), json!({}));
    assert_eq!(bench.records().await, Vec::<Value>::new());
}
