//! How the project manager delivers: through the gate, for the task that it is tied to, and nobody else does.

use std::process::Command;

use cynode_testkit::Client;
use serde_json::{Value, json};

use crate::bench::Bench;

const OPEN: &str = "git.pull_request.open";

fn git(directory: &std::path::Path, args: &[&str]) -> String {
    let who =
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"];
    let done = Command::new("git").args(who).args(args).current_dir(directory).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

async fn put(client: &Client, path: &str, bytes: Vec<u8>) -> u16 {
    let request = axum::http::Request::put(path)
        .header("authorization", format!("Bearer {}", client.token().unwrap()))
        .body(axum::body::Body::from(bytes))
        .unwrap();
    client.oneshot(request).await.status().as_u16()
}

/// A unit of every task that is done, and a job of it that left a commit.
const WORKED: &str = "
    WITH unit AS (
        INSERT INTO work_units (unit_id, task_id, key, title, position, depends_on, payload, state, attempts, findings, updated_at)
        SELECT gen_random_uuid(), task_id, 'a', 'a', 0, '{}', '{}', 'done', 1, '[]', now() FROM tasks RETURNING unit_id, task_id
    )
    INSERT INTO jobs (job_id, task_id, unit_id, attempt, state, payload, fencing_token, worker, claim_id, lease_expires_at, deadline_at,
        result, trace_id, queued_at, started_at, ended_at, collected_at)
    SELECT gen_random_uuid(), task_id, unit_id, 1, 'succeeded', '{\"unit\": {\"work\": {}}, \"title\": \"a\", \"remedy\": null, \"timeout_seconds\": 9}',
        1, 'w', gen_random_uuid(), now(), now(), '{}', repeat('0', 32), now(), now(), now(), now()
    FROM unit";

/// The project has a repository, and each task a commit that says two.
async fn worked(bench: &Bench) -> String {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    git(at, &["init", "--quiet"]);
    std::fs::write(at.join("a.txt"), "one\n").unwrap();
    git(at, &["add", "."]);
    git(at, &["commit", "--quiet", "-m", "one"]);
    let base = git(at, &["rev-parse", "HEAD"]);
    git(at, &["checkout", "--quiet", "-b", "work"]);
    std::fs::write(at.join("a.txt"), "one\ntwo\n").unwrap();
    git(at, &["commit", "--quiet", "-am", "two"]);
    git(at, &["bundle", "create", "--quiet", ".git/all.bundle", "--branches"]);
    let bundle = std::fs::read(at.join(".git/all.bundle")).unwrap();
    let repository = format!("/v1/projects/{}/repository", bench.project);
    assert_eq!(put(&bench.admin, &repository, bundle).await, 200);
    assert!(bench.app.db.execute(WORKED).await > 0);
    let commit = git(at, &["rev-parse", "HEAD"]);
    let noted = format!("UPDATE jobs SET result = jsonb_build_object('commit', '{commit}'::text)");
    assert!(bench.app.db.execute(noted.leak()).await > 0);
    base
}

fn opening(task: &str) -> Value {
    json!({ "task_id": task, "title": "Say two", "body": "It says two." })
}

#[tokio::test]
async fn the_manager_opens_the_pull_request_of_its_own_task_once_and_nobody_else_does() {
    let bench = Bench::new().await;
    let base = worked(&bench).await;
    for role in ["project_analyst", "developer", "reviewer", "fixer"] {
        let agent = bench.agent(role).await;
        let refused = agent.call(OPEN, opening(&bench.task)).await;
        assert_ne!(refused.verdict(), "ok", "{role}");
    }
    let manager = bench.agent("project_manager").await;
    let other = bench.another_task().await;
    assert_ne!(manager.call(OPEN, opening(&other)).await.verdict(), "ok", "another task");
    assert_eq!(bench.app.db.number("SELECT count(*) FROM pull_requests").await, 0);

    let diff = manager.call("git.diff", json!({ "task_id": bench.task })).await.value();
    assert!(diff["diff"]["text"].as_str().unwrap().ends_with("+two\n"), "{diff}");
    let nothing = manager.call("git.pull_request.get", json!({ "task_id": bench.task })).await;
    assert_eq!(nothing.value(), json!({ "pull_request": null }));
    let opened = manager.call(OPEN, opening(&bench.task)).await.value()["pull_request"].clone();
    let shown = (&opened["state"], &opened["number"], &opened["base_commit"]);
    assert_eq!(shown, (&json!("open"), &json!(1), &json!(base)), "X-23");
    let again = manager.call(OPEN, opening(&bench.task)).await.value();
    assert_eq!(again, json!({ "pull_request": opened }));
    let got = manager.call("git.pull_request.get", json!({ "task_id": bench.task })).await.value();
    assert_eq!(got["pull_request"]["head_commit"], opened["head_commit"]);
    assert_eq!(bench.app.db.number("SELECT count(*) FROM pull_requests").await, 1);
}

#[tokio::test]
async fn secrets_in_the_words_of_a_pull_request_do_not_leave_the_house() {
    let bench = Bench::new().await;
    worked(&bench).await;
    let manager = bench.agent("project_manager").await;
    let secret = format!("ghp_{}", "a1B2".repeat(9));
    let opening = json!({ "task_id": bench.task, "title": format!("Use {secret}"), "body": format!("The key is {secret}.") });
    let opened = manager.call(OPEN, opening).await.value()["pull_request"].clone();
    assert_eq!(opened["state"], "open");
    assert!(!opened.to_string().contains(&secret), "{opened}");
    // What the commit says follows from the row.
    let kept = "SELECT title || ' ' || body FROM pull_requests UNION ALL SELECT title || ' ' || body FROM deliveries";
    let kept = bench.app.db.texts(kept).await;
    assert_eq!(kept.len(), 2);
    for words in kept {
        assert!(words.contains("[redacted:") && !words.contains(&secret), "{words}");
    }
}
