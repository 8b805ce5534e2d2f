//! How questions reach their rows: a question that reads a whole table is quick until the table has grown.

use std::{collections::BTreeSet, fs, path::Path};

use cynode_testkit_db::TestDb;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, Row};

/// What stays small, whatever is done with an installation: it is read whole.
const SMALL: [&str; 39] = [
    "allowed_images",
    "audit_chains",
    "audit_sinks",
    "bootstrap_tokens",
    // Links that work for 15 minutes, made by hand.
    "break_glass_tokens",
    // Projects whose files are not removed yet: within an hour they are.
    "deleted_project_files",
    // Logins that wait for a person: for ten minutes, and a thousand at most.
    "device_authorizations",
    // Blobs whose bytes are not removed yet: within an hour and ten minutes they are.
    "expired_blobs",
    "groups",
    "identity_providers",
    // One row for each restore.
    "installation_epochs",
    "installation_keys",
    // A few of each node and program, until they expire.
    "issued_certificates",
    // One row for each process that runs.
    "keyring_loads",
    "model_providers",
    // Calls under way, each as long as it lasts.
    "model_reservations",
    "model_routes",
    "models",
    "node_join_tokens",
    // The last token of each node.
    "node_tokens",
    "nodes",
    "notification_channels",
    "policy_epoch",
    "policy_rules",
    // Privileged events of the last moment, until they are chained.
    "privileged_event_queue",
    "project_remotes",
    // The secrets that people set by hand; redaction reads them all.
    "project_secrets",
    "provider_keys",
    "routing_epoch",
    "schema_requirements",
    "scim_groups",
    "scim_tokens",
    // As many as the company has people; SCIM asks for the number of all with every list.
    "scim_users",
    "server_tools",
    "service_tokens",
    "system_settings",
    "tool_overrides",
    "tool_servers",
    // The key of the installation: one row.
    "web_push_keys",
];

/// Questions that read more than they give, by words of theirs, and why that is so.
const WIDE: [(&str, &str); 21] = [
    ("GROUP BY 1 ORDER BY 7 DESC, 1 LIMIT 1000", "sums over months of calls, by what is asked for"),
    ("GROUP BY 1, 2 ORDER BY 1, 7 DESC, 2 LIMIT $9", "the same, by day or hour"),
    (
        "ORDER BY call_id DESC LIMIT $8",
        "what is asked for is known with the values: planned with them",
    ),
    ("ORDER BY recorded_at DESC, seq DESC, chain_id DESC LIMIT $11", "the same"),
    ("SELECT DISTINCT chain_id FROM audit_records", "the whole record is verified"),
    ("SELECT (SELECT count(*) FROM tasks) AS", "a backup and its verification count all rows"),
    ("UNION SELECT p.base_commit FROM pull_requests p", "a verification looks for every commit"),
    ("UPDATE workflow_leases SET fencing_token = fencing_token + $1", "a restore ends every lease"),
    ("UPDATE jobs SET fencing_token = fencing_token + $1", "the same"),
    ("WITH lost AS ( UPDATE jobs SET state = 'lost'", "the same"),
    ("UPDATE handoffs SET fencing_token = fencing_token + $1", "the same"),
    (
        "GROUP BY key, kind ORDER BY key, kind",
        "a rotation of keys counts everything that names one",
    ),
    (
        "WHERE arguments_sealed IS NOT NULL AND sealed_by <> $1",
        "a rotation of keys seals everything anew",
    ),
    ("FROM totp_credentials WHERE sealed_by <> $1", "the same"),
    ("FROM provider_grants WHERE sealed_by <> $1", "the same"),
    ("SELECT token_hash FROM user_sessions WHERE hash_key_id = $1", "the same with tokens"),
    ("SELECT token_hash FROM api_keys WHERE hash_key_id = $1", "the same with tokens"),
    ("SELECT token_hash FROM agent_tokens WHERE hash_key_id = $1", "the same with tokens"),
    (
        "JOIN users u USING (user_id) WHERE p.enabled AND u.state = 'active' AND EXISTS",
        "an admin switches passwords off",
    ),
    (
        "FROM artifacts UNION SELECT b.digest FROM job_blobs b",
        "a verification looks for every file",
    ),
    ("FROM processes p LEFT JOIN users u", "an admin looks at all programs of the last days"),
];

/// A question as the macros describe it: its text, and how many values it is given.
fn questions() -> Vec<(String, usize)> {
    let described = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let files = fs::read_dir(described).unwrap().map(|file| file.unwrap().path());
    let mut questions: Vec<_> = files
        .map(|file| {
            let described: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
            let values = described["describe"]["parameters"]["Left"].as_array().map_or(0, Vec::len);
            (described["query"].as_str().unwrap().to_owned(), values)
        })
        .collect();
    questions.sort();
    questions
}

/// What a plan reads whole: tables, and indexes from one end to the other, unless it stops after a page.
fn whole(plan: &Value, partial: &BTreeSet<String>, paged: bool, found: &mut BTreeSet<String>) {
    let text = |key: &str| plan[key].as_str().unwrap_or_default().to_owned();
    let node = text("Node Type");
    let paged = paged || node == "Limit";
    let all = match node.as_str() {
        "Seq Scan" => true,
        "Index Scan" | "Index Only Scan" => {
            plan["Index Cond"].is_null() && !paged && !partial.contains(&text("Index Name"))
        }
        _ => false,
    };
    let table = text("Relation Name");
    if all && !SMALL.contains(&table.as_str()) && !table.starts_with("pg_") {
        found.insert(table);
    }
    for part in plan["Plans"].as_array().into_iter().flatten() {
        whole(part, partial, paged, found);
    }
}

/// The plan of a question for whatever values it is given, where an index is used if there is one that can be.
async fn plan(conn: &mut PgConnection, question: &str, values: usize) -> Value {
    let values = vec!["NULL"; values].join(", ");
    let values = if values.is_empty() { values } else { format!("({values})") };
    let statements = format!(
        "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; DEALLOCATE ALL;
         PREPARE question AS {question}; EXPLAIN (FORMAT JSON) EXECUTE question{values};"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(conn).await;
    let rows = rows.unwrap_or_else(|error| panic!("{question}: {error}"));
    let explained: Value = rows[0].get_unchecked(0);
    explained[0]["Plan"].clone()
}

#[tokio::test]
async fn no_question_reads_the_whole_of_a_table_that_grows() {
    let db = TestDb::new().await;
    let partial = "SELECT indexrelid::regclass::text FROM pg_index WHERE indpred IS NOT NULL";
    let partial: BTreeSet<String> = db.texts(partial).await.into_iter().collect();
    let questions = questions();
    assert!(questions.len() > 400, "only {} questions are described", questions.len());
    let mut conn = db.conn().await;
    let mut reading = Vec::new();
    let mut wide = Vec::new();
    for (question, values) in questions {
        let words = question.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(known) = WIDE.iter().position(|(own, _)| words.contains(own)) {
            wide.push(known);
            continue;
        }
        let mut found = BTreeSet::new();
        whole(&plan(&mut conn, &question, values).await, &partial, false, &mut found);
        if !found.is_empty() {
            reading.push(format!("{found:?}: {question}"));
        }
    }
    assert!(reading.is_empty(), "{}", reading.join("\n"));
    wide.sort_unstable();
    assert_eq!(wide, (0..WIDE.len()).collect::<Vec<_>>(), "each of them is a question of today");
}

#[tokio::test]
async fn what_a_channel_is_told_next_is_found_however_much_waits() {
    let db = TestDb::new().await;
    let claims = |question: &str| question.contains("SET claim_id = $1, attempts = attempts + 1");
    let (question, values) = questions().into_iter().find(|(text, _)| claims(text)).unwrap();
    let plan = plan(&mut *db.conn().await, &question, values).await.to_string();
    assert!(plan.contains("notifications_next") && !plan.contains("WindowAgg"), "{plan}");
}
