//! Nodes: how they join, which jobs they get, what they may tell.

use std::{path::Path, process::Command};

use axum::body::Body;
use cynode_core::ids::NodeId;
use cynode_testkit::{Client, TestApp};
use cynode_wire::nodes::signed_bytes;
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signer, SigningKey};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::Duration;

use crate::workflow::{Drive, create_job};

mod base_checks;
mod environments;
mod evidence;
mod job_log;
mod policies;
mod storage;

/// A machine with a key.
pub(crate) struct Machine {
    key: SigningKey,
    id: NodeId,
    pub(crate) client: Client,
}

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn report(slots: u32) -> Value {
    json!({
        "version": "0.1.0", "cores": 2, "memory_mib": 4096, "disk_free_mib": 9000, "slots": slots,
        "backends": [
            { "backend": "bubblewrap", "version": "0.8.0" },
            { "backend": "podman", "version": "4.3.1" },
        ],
        "agents": [{ "agent": "goose", "version": "1.37.0" }],
        "facts": { "cgroups": "v1" },
    })
}

async fn join_token(admin: &Client, body: Value) -> String {
    admin.post("/v1/nodes/join-tokens", body).await.expect(201).text("join_token")
}

fn joining(token: &str, name: &str, key: &SigningKey, slots: u32) -> Value {
    json!({ "join_token": token, "name": name, "report": report(slots),
        "public_key": HEXLOWER.encode(key.verifying_key().as_bytes()) })
}

/// A token of the node with that key.
async fn token(app: &TestApp, id: NodeId, key: &SigningKey) -> cynode_testkit::Reply {
    let internal = app.at_internal_port();
    let challenge = internal.post("/v1/nodes/challenge", json!({ "node_id": id })).await;
    let challenge = challenge.expect(200).text("challenge");
    let signature = HEXLOWER.encode(&key.sign(&signed_bytes(id, &challenge)).to_bytes());
    let body = json!({ "node_id": id, "challenge": challenge, "signature": signature });
    internal.post("/v1/nodes/token", body).await
}

impl Machine {
    pub(crate) async fn join(app: &TestApp, admin: &Client, number: u8, slots: u32) -> Self {
        let (once, key) = (join_token(admin, json!({})).await, key(number));
        let body = joining(&once, &format!("node-{number}"), &key, slots);
        let joined = app.at_internal_port().post("/v1/nodes/join", body).await.expect(200);
        let id: NodeId = joined.text("node_id").parse().unwrap();
        let shown = token(app, id, &key).await.expect(200).text("token");
        Self { key, id, client: app.at_internal_port().with_token(&shown) }
    }

    pub(crate) async fn claim(&self, number: u32, most: u32) -> Vec<Value> {
        let claim_id = format!("0192d5c8-b6f0-7cc1-a1a3-{number:012}");
        let body = json!({ "claim_id": claim_id, "max_jobs": most, "applies_profiles": true });
        let given = self.client.post("/v1/nodes/claim", body).await.expect(200).json();
        given["jobs"].as_array().unwrap().clone()
    }

    async fn heartbeat(&self, jobs: &[&Value], delivered: Value) -> Value {
        let held: Vec<_> = jobs
            .iter()
            .map(|job| json!({ "job_id": job["job_id"], "fencing_token": job["fencing_token"], "phase": "working" }))
            .collect();
        let body = json!({ "jobs": held, "delivered": delivered });
        self.client.post("/v1/nodes/heartbeat", body).await.expect(200).json()
    }
}

pub(crate) fn work() -> Value {
    json!({ "work": { "role": "developer", "worker": { "kind": "command", "steps": [{ "argv": ["true"] }] } } })
}

pub(crate) fn path(job: &Value, rest: &str) -> String {
    format!("/v1/nodes/jobs/{}/{rest}", job["job_id"].as_str().unwrap())
}

fn unit(job: &Value) -> String {
    job["unit"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_machine_joins_once_and_whoever_has_its_key_may_ask_again() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let once = join_token(&admin, json!({ "labels": ["gpu", "linux"] })).await;
    let internal = app.at_internal_port();
    let body = joining(&once, "laptop", &key(1), 2);
    let joined = internal.post("/v1/nodes/join", body.clone()).await.expect(200).json();
    assert_eq!(internal.post("/v1/nodes/join", body).await.expect(200).json(), joined);
    let other = joining(&once, "thief", &key(2), 2);
    internal.post("/v1/nodes/join", other).await.expect(401);
    let nodes = admin.get("/v1/nodes").await.expect(200).json();
    let shown = &nodes["items"][0];
    let seen = (&shown["name"], &shown["state"], &shown["started"], &shown["alive"]);
    assert_eq!(seen, (&json!("laptop"), &json!("active"), &json!(false), &json!(false)));
    assert_eq!(shown["labels"], json!(["gpu", "linux"]));
    assert_eq!(nodes["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_join_token_that_is_old_wrong_or_of_another_kind_lets_nobody_in() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let internal = app.at_internal_port();
    let once = join_token(&admin, json!({ "expires_in_seconds": 60 })).await;
    app.clock.advance(Duration::seconds(61));
    let old = joining(&once, "late", &key(1), 1);
    internal.post("/v1/nodes/join", old).await.expect(401);
    let session = joining(&admin.token().unwrap(), "person", &key(1), 1);
    internal.post("/v1/nodes/join", session).await.expect(401);
    let once = join_token(&admin, json!({})).await;
    // A key with which anybody could sign.
    let mut weak = joining(&once, "weak", &key(1), 1);
    weak["public_key"] = json!("0100000000000000000000000000000000000000000000000000000000000000");
    internal.post("/v1/nodes/join", weak).await.expect(422);
    let named = joining(&once, "Not A Name", &key(1), 1);
    internal.post("/v1/nodes/join", named).await.expect(422);
    internal.post("/v1/nodes/join", joining(&once, "good", &key(1), 1)).await.expect(200);
    let again = join_token(&admin, json!({})).await;
    internal.post("/v1/nodes/join", joining(&again, "good", &key(2), 1)).await.expect(409);
}

#[tokio::test]
async fn only_who_signs_a_fresh_challenge_with_the_nodes_key_gets_a_token() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let node = Machine::join(&app, &admin, 1, 1).await;
    let other = Machine::join(&app, &admin, 2, 1).await;
    let internal = app.at_internal_port();
    token(&app, node.id, &other.key).await.expect(401);
    let challenge = internal.post("/v1/nodes/challenge", json!({ "node_id": node.id })).await;
    let challenge = challenge.expect(200).text("challenge");
    let signed = |id: NodeId, key: &SigningKey, challenge: &str| {
        let signature = key.sign(&signed_bytes(id, challenge)).to_bytes();
        json!({ "node_id": id, "challenge": challenge, "signature": HEXLOWER.encode(&signature) })
    };
    // Made for one node, it is no good for another; made up or changed, for nobody.
    let elsewhere = signed(other.id, &other.key, &challenge);
    internal.post("/v1/nodes/token", elsewhere).await.expect(401);
    let later = challenge.replacen(|c: char| c.is_ascii_digit(), "9", 1);
    internal.post("/v1/nodes/token", signed(node.id, &node.key, &later)).await.expect(401);
    let good = signed(node.id, &node.key, &challenge);
    internal.post("/v1/nodes/token", good.clone()).await.expect(200);
    app.clock.advance(Duration::seconds(61));
    internal.post("/v1/nodes/token", good).await.expect(401);
    // Tokens are short-lived, and end with the node.
    app.clock.advance(Duration::minutes(15));
    node.client.post("/v1/nodes/heartbeat", json!({})).await.expect(401);
    let fresh = token(&app, node.id, &node.key).await.expect(200).text("token");
    let fresh = internal.with_token(&fresh);
    fresh.post("/v1/nodes/heartbeat", json!({})).await.expect(200);
    admin.delete(&format!("/v1/nodes/{}", node.id)).await.expect(204);
    fresh.post("/v1/nodes/heartbeat", json!({})).await.expect(401);
    token(&app, node.id, &node.key).await.expect(401);
    // A person's token opens none of it.
    let person = internal.with_token(&admin.token().unwrap());
    person.post("/v1/nodes/heartbeat", json!({})).await.expect(401);
}

/// A body by which the node shows its key.
async fn signed(app: &TestApp, node: &Machine) -> Value {
    let internal = app.at_internal_port();
    let challenge = internal.post("/v1/nodes/challenge", json!({ "node_id": node.id })).await;
    let challenge = challenge.expect(200).text("challenge");
    let signature = node.key.sign(&signed_bytes(node.id, &challenge)).to_bytes();
    json!({ "node_id": node.id, "challenge": challenge, "signature": HEXLOWER.encode(&signature) })
}

#[tokio::test]
async fn looking_whether_a_node_is_known_takes_nothing_from_its_process() {
    let drive = Drive::new().await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 2).await;
    let stored = "SELECT encode(token_hash, 'hex') FROM node_tokens";
    let before = drive.app.db.texts(stored).await;
    let internal = drive.app.at_internal_port();
    let known = internal.post("/v1/nodes/verify", signed(&drive.app, &node).await).await;
    let known = known.expect(200).json();
    let wanted = json!({ "node_id": node.id, "name": "node-1", "state": "active", "alive": true });
    assert_eq!(known, wanted);
    assert_eq!(drive.app.db.texts(stored).await, before);
    drive.dispatched_with(&["a"], &work()).await;
    assert_eq!(node.claim(1, 1).await.len(), 1);
    // A signature of another key is of no use here either.
    let other = Machine::join(&drive.app, &drive.admin, 2, 2).await;
    let mut wrong = signed(&drive.app, &node).await;
    wrong["signature"] = signed(&drive.app, &other).await["signature"].clone();
    internal.post("/v1/nodes/verify", wrong).await.expect(401);
}

#[tokio::test]
async fn a_process_of_a_node_that_starts_later_shuts_the_earlier_one_out_with_a_reason() {
    let drive = Drive::new().await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 2).await;
    let internal = drive.app.at_internal_port();
    let ask = async |generation: Value| {
        let mut body = signed(&drive.app, &node).await;
        if !generation.is_null() {
            body["generation"] = generation;
        }
        internal.post("/v1/nodes/token", body).await
    };
    // The process renews its token: the old one goes on working until its time is over.
    let renewed = ask(json!(1)).await.expect(200);
    assert_eq!(renewed.json()["generation"], 1);
    drive.dispatched_with(&["a", "b"], &work()).await;
    assert_eq!(node.claim(1, 1).await.len(), 1);
    // Another process starts: nothing of the earlier one works any more, and it cannot come back.
    let later = ask(Value::Null).await.expect(200);
    assert_eq!(later.json()["generation"], 2);
    let claim = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-000000000002", "max_jobs": 1 });
    node.client.post("/v1/nodes/claim", claim.clone()).await.expect(401);
    let renewed = internal.with_token(&renewed.text("token"));
    renewed.post("/v1/nodes/claim", claim.clone()).await.expect(401);
    let refused = ask(json!(1)).await.expect(409).json();
    let told = "too late: another process of this node started later and speaks for it now";
    assert_eq!((&refused["code"], &refused["detail"]), (&json!("fenced"), &json!(told)));
    let later = internal.with_token(&later.text("token"));
    let given = later.post("/v1/nodes/claim", claim).await.expect(200).json();
    assert_eq!(given["jobs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_claim_that_waits_is_ended_when_another_process_of_its_node_starts() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let node = Machine::join(&app, &admin, 1, 2).await;
    let claim = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-000000000001", "max_jobs": 1, "wait_ms": 20_000 });
    let (waited, later) =
        tokio::join!(node.client.post("/v1/nodes/claim", claim), token(&app, node.id, &node.key));
    later.expect(200);
    waited.expect(401);
}

#[tokio::test]
async fn a_machine_that_joined_and_never_ran_gets_no_jobs() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let once = join_token(&drive.admin, json!({})).await;
    let body = joining(&once, "silent", &key(9), 4);
    drive.app.at_internal_port().post("/v1/nodes/join", body).await.expect(200);
    let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    assert_eq!(node.claim(1, 1).await.len(), 1);
}

#[tokio::test]
async fn jobs_are_shared_in_turns_and_given_once() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a", "b", "c", "d", "e", "f"], &work()).await;
    let left = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let right = Machine::join(&drive.app, &drive.admin, 2, 10).await;
    let first = left.claim(1, 10).await;
    assert_eq!(first.iter().map(unit).collect::<Vec<_>>(), ["a", "c", "e"], "S001-56");
    let again = left.claim(1, 10).await;
    assert_eq!(again.iter().map(unit).collect::<Vec<_>>(), ["a", "c", "e"]);
    let second = right.claim(2, 10).await;
    let turns: Vec<_> = second.iter().map(unit).collect();
    assert_eq!(
        turns,
        ["b", "d", "f"],
        "S001-56, S002-26, S002-63, X-12: in turns among those that can"
    );
    // Whoever works without a sandbox gets none of them.
    let worker =
        drive.app.service(cynode_app::identity::service_tokens::ServiceKind::Worker, "w").await;
    let body = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-000000000009", "max_jobs": 5 });
    let none = worker.post("/v1/jobs/claim", body).await.expect(200).json();
    assert_eq!(none["jobs"], json!([]));
}

#[tokio::test]
async fn a_node_is_told_all_that_it_needs_and_its_agents_token_ends_with_the_job() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    let secret = job["agent_token"].as_str().unwrap().to_owned();
    insta::assert_json_snapshot!(job, {
        ".job_id" => "[id]", ".task_id" => "[id]", ".run_id" => "[id]", ".project_id" => "[id]",
        ".agent_token" => "[secret]", ".agent_token_id" => "[id]", ".trace_id" => "[trace]",
        ".branch" => "[branch]", ".seconds_left" => "[seconds]", ".profile.spec" => "[spec]",
    });
    let agent = drive.app.at_internal_port().with_token(&secret);
    agent.get("/v1/models").await.expect(200);
    let done = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded", "result": { "stop_reason": "end_turn" } });
    let said = node.client.post(&path(&job, "result"), done.clone()).await.expect(200).json();
    assert_eq!(said["state"], "succeeded");
    assert_eq!(node.client.post(&path(&job, "result"), done).await.expect(200).json(), said);
    agent.get("/v1/models").await.expect(401);
}

#[tokio::test]
async fn an_agent_without_a_profile_works_under_the_preferred_one_of_its_task() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a", "b", "c", "d"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 9).await;
    let mut profiles = Vec::new();
    let of_project = format!("project&scope_id={}", drive.project);
    // Nobody wishes anything; then the installation, and the project.
    let spec = json!({ "paths": { "read": ["**"] } });
    let house = json!({ "name": "house", "spec": spec });
    drive.admin.post("/v1/profiles", house).await.expect(201);
    let careful = json!({ "name": "careful", "project_id": drive.project, "spec": spec });
    drive.admin.post("/v1/profiles", careful).await.expect(201);
    let wishes = [("", ""), ("system", "house"), (&of_project, "careful")];
    for (number, (scope, name)) in (1..).zip(wishes) {
        if !scope.is_empty() {
            let place = format!("/v1/preferences/memory.profile?scope_type={scope}");
            let body = json!({ "value": name, "expected_version": 0 });
            drive.admin.put(&place, body).await.expect(200);
        }
        let job = node.claim(number, 1).await.remove(0);
        let token = job["agent_token_id"].as_str().unwrap();
        let all = format!("/v1/agent-tokens?project_id={}&all=true&limit=200", drive.project);
        let listed = drive.admin.get(&all).await.expect(200).json();
        let all = listed["items"].as_array().unwrap().iter();
        let mine = all.filter(|it| it["agent_token_id"] == token).map(|it| it["profile"].clone());
        profiles.extend(mine);
    }
    assert_eq!(profiles, ["default", "house", "careful"], "S001-18");
    // What is no name is refused, and permits nothing where an earlier release has stored it.
    let place = format!("/v1/preferences/memory.profile?scope_type=task&scope_id={}", drive.task);
    let body = json!({ "value": "NO NAME", "expected_version": 0 });
    drive.admin.put(&place, body).await.expect(422);
    drive.app.db.execute("UPDATE preferences SET value = '\"NO NAME\"'").await;
    assert_eq!(node.claim(4, 1).await, Vec::<Value>::new());
    let summary = "SELECT result ->> 'summary' FROM jobs WHERE state = 'failed'";
    let summary = drive.app.db.texts(summary).await.remove(0);
    assert!(summary.contains("`invalid-preference`"), "S001-18: {summary}");
}

#[tokio::test]
async fn a_node_that_finds_no_work_wakes_no_stream_and_is_not_written_down_each_time() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let node = Machine::join(&app, &admin, 1, 1).await;
    let long_ago = "UPDATE nodes SET last_seen_at = now() - interval '10 seconds'";
    assert_eq!(app.db.execute(long_ago).await, 1);
    let commits = app.app.subscribe_commits();
    let mut written = Vec::new();
    for number in 0..8 {
        assert_eq!(node.claim(number, 1).await, Vec::<Value>::new());
        written.extend(app.db.texts("SELECT xmin::text FROM nodes").await);
    }
    assert!(!commits.has_changed().unwrap(), "there is nothing to read");
    written.dedup();
    assert!(written.len() < 8, "eight claims, {} writes", written.len());
    let silent = "SELECT count(*) FROM nodes WHERE last_seen_at < now() - interval '5 seconds'";
    assert_eq!(app.db.number(silent).await, 0);
    // What happened is there at once.
    let draining = json!({ "draining": true });
    admin.patch(&format!("/v1/nodes/{}", node.id), draining).await.expect(200);
    assert!(commits.has_changed().unwrap(), "there is something to read");
}

#[tokio::test]
async fn a_node_that_is_asked_for_gets_the_job_and_nobody_else_does() {
    let drive = Drive::new().await;
    let mut wanted = work();
    wanted["work"]["placement"] = json!({ "node": "node-2" });
    drive.dispatched_with(&["a"], &wanted).await;
    let left = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    assert_eq!(left.claim(1, 1).await, Vec::<Value>::new());
    let right = Machine::join(&drive.app, &drive.admin, 2, 3).await;
    assert_eq!(left.claim(2, 1).await, Vec::<Value>::new(), "X-12, S002-28: a named node is kept");
    let given = right.claim(3, 1).await.len();
    assert_eq!(given, 1, "S002-26, S002-28: the registry gives the job to the wanted node");
}

#[tokio::test]
async fn a_job_that_fits_nowhere_or_may_not_begin_is_not_written_by_those_who_look_for_a_place() {
    let drive = Drive::new().await;
    let mut wanted = work();
    wanted["work"]["placement"] = json!({ "node": "node-2" });
    drive.dispatched_with(&["a"], &wanted).await;
    let left = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    // A lock is written into the row.
    let row = "SELECT xmin::text || ' ' || xmax::text FROM jobs";
    let before = drive.app.db.texts(row).await;
    assert_eq!(left.claim(1, 1).await, Vec::<Value>::new());
    assert_eq!(drive.app.db.texts(row).await, before);
    let to_place = async || {
        let mut conn = drive.app.db.conn().await;
        cynode_db::nodes::has_jobs_to_place(&mut conn, 20_000).await.unwrap()
    };
    assert!(to_place().await);
    let park = "INSERT INTO task_parks (task_id, kind, reason, parked_until, parked_at)
        SELECT task_id, 'quota', 'used up', clock_timestamp() + interval '1 hour', clock_timestamp() FROM tasks";
    drive.app.db.execute(park).await;
    assert!(!to_place().await, "a parked task waits for no node");
    drive.app.db.execute("UPDATE task_parks SET parked_until = clock_timestamp()").await;
    let right = Machine::join(&drive.app, &drive.admin, 2, 3).await;
    assert_eq!(right.claim(2, 1).await.len(), 1);
}

#[tokio::test]
async fn what_waits_for_a_node_that_drains_or_is_silent_goes_to_another() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a", "b", "c"], &work()).await;
    let left = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    assert_eq!(left.claim(1, 1).await.len(), 1);
    let right = Machine::join(&drive.app, &drive.admin, 2, 10).await;
    assert_eq!(right.claim(2, 10).await, Vec::<Value>::new());
    let node = format!("/v1/nodes/{}", left.id);
    drive.admin.patch(&node, json!({ "draining": true })).await.expect(200);
    assert_eq!(right.claim(3, 10).await.len(), 2);
    assert_eq!(left.claim(4, 10).await, Vec::<Value>::new());
    assert_eq!(left.heartbeat(&[], json!([])).await["draining"], true);
}

#[tokio::test]
async fn a_cancelled_job_is_stopped_with_the_next_heartbeat_and_its_result_is_refused() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    let good = json!({ "stop": [], "instructions": [], "draining": false });
    assert_eq!(node.heartbeat(&[&job], json!([])).await, good);
    drive.admin.post(&format!("/v1/tasks/{}/cancel", drive.task), json!(null)).await.expect(200);
    let answer = node.heartbeat(&[&job], json!([])).await;
    assert_eq!(answer["stop"][0]["job_id"], job["job_id"]);
    let done =
        json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded", "result": {} });
    let refused = node.client.post(&path(&job, "result"), done).await.expect(409);
    assert_eq!(refused.text("code"), "fenced");
    // Another node cannot speak for it.
    let other = Machine::join(&drive.app, &drive.admin, 2, 3).await;
    let events = json!({ "fencing_token": 1, "first": 0, "events": [] });
    other.client.post(&path(&job, "events"), events).await.expect(409);
}

#[tokio::test]
async fn an_instruction_reaches_the_agent_at_work_and_is_given_until_it_was_passed_on() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    let tell = json!({ "kind": "expand_scope", "text": "also the docs" });
    drive.admin.post(&format!("/v1/tasks/{}/instructions", drive.task), tell).await.expect(202);
    let told = node.heartbeat(&[&job], json!([])).await["instructions"][0].clone();
    let instruction = json!([told["kind"], told["text"]]);
    let expected = json!(["expand_scope", "also the docs"]);
    assert_eq!(instruction, expected, "S004-071, S004-077: the agent at work gets it");
    let again = node.heartbeat(&[&job], json!([])).await["instructions"][0].clone();
    assert_eq!(again, told, "B004-35: it is stored until somebody has it");
    let after = node.heartbeat(&[&job], json!([told["instruction_id"]])).await;
    assert_eq!(after["instructions"], json!([]));
}

#[tokio::test]
async fn an_answer_that_came_when_its_agent_had_ended_reaches_the_next_at_the_same_unit() {
    let drive = Drive::new().await;
    let agent =
        json!({ "work": { "role": "developer", "worker": { "kind": "acp", "agent": "goose" } } });
    let held = drive.dispatched_with(&["a", "b", "c"], &agent).await;
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let asks = node.claim(1, 1).await.remove(0);
    let beside = node.claim(2, 1).await.remove(0);
    let instructions = format!("/v1/tasks/{}/instructions", drive.task);
    let tell = async |body: Value| drive.admin.post(&instructions, body).await.expect(202);
    tell(json!({ "kind": "pause", "text": "Which key?" })).await;
    drive.start_as(&drive.task, "runner", "paused").await.expect(409);
    let given_up = json!({ "fencing_token": asks["fencing_token"], "outcome": "failed", "result": { "stop_reason": "cancelled" } });
    node.client.post(&path(&asks, "result"), given_up).await.expect(200);
    tell(json!({ "kind": "resume", "text": "The one for tests" })).await;
    let ids = |told: &Value| -> Vec<Value> {
        told.as_array().unwrap().iter().map(|one| one["instruction_id"].clone()).collect()
    };
    let told = node.heartbeat(&[&beside], json!([])).await["instructions"].clone();
    let words: Vec<_> = told
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["kind"].clone(), one["text"].clone()))
        .collect();
    let said = ("resume".into(), "The one for tests".into());
    assert_eq!(words, [("pause".into(), "Which key?".into()), said]);
    assert_eq!(node.heartbeat(&[&beside], json!(ids(&told))).await["instructions"], json!([]));
    let mut held = drive.start().await;
    let (unit, effect) = (unit(&asks), "retry_unit");
    let retry = json!({ "effects": [{ "effect": effect, "unit": unit, "attempt": 1 }] });
    drive.go(&mut held, "redo", retry).await;
    drive.go(&mut held, "pass", json!({ "effects": [create_job(&unit, 2)] })).await;
    // Whoever is the first at its unit begins with what holds by then.
    let first = node.claim(3, 1).await.remove(0);
    assert_eq!(node.heartbeat(&[&beside, &first], json!([])).await["instructions"], json!([]));
    let next = node.claim(4, 1).await.remove(0);
    let told = node.heartbeat(&[&beside, &first, &next], json!([])).await["instructions"].clone();
    assert_eq!(
        told,
        json!([{ "instruction_id": ids(&told)[0], "job_id": next["job_id"], "kind": "resume",
            "text": "The one for tests" }])
    );
    let after = node.heartbeat(&[&beside, &first, &next], json!(ids(&told))).await;
    assert_eq!(after["instructions"], json!([]));
}

#[tokio::test]
async fn an_instruction_to_one_job_reaches_no_other_and_what_people_say_reaches_all() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a", "b"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let jobs = node.claim(1, 2).await;
    let [first, second] = jobs.as_slice() else { panic!("two jobs are given") };
    let instructions = format!("/v1/tasks/{}/instructions", drive.task);
    for text in ["for one", "for all"] {
        let tell = json!({ "kind": "expand_scope", "text": text });
        drive.admin.post(&instructions, tell).await.expect(202);
    }
    let only = "UPDATE task_instructions SET job_id = replace($1, 'job_', '')::uuid WHERE text = 'for one'";
    drive.app.db.execute_with(only, first["job_id"].as_str().unwrap()).await;
    let answer = node.heartbeat(&[first, second], json!([])).await;
    let mut told: Vec<_> = answer["instructions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|told| (told["text"].to_string(), told["job_id"] == first["job_id"]))
        .collect();
    told.sort();
    let told: Vec<_> = told.iter().map(|(text, first)| (text.as_str(), *first)).collect();
    assert_eq!(told, [("\"for all\"", false), ("\"for all\"", true), ("\"for one\"", true)]);
}

#[tokio::test]
async fn events_are_stored_once_in_order_and_without_secrets() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    let secret = "ghp_R4nd0mL00kingT0kenOfTheRightLength12"; // not a real one
    let said =
        |n: u64, text: &str| json!({ "at_ms": n, "event": "message", "data": { "text": text } });
    let tell = |first: u64, events: Vec<Value>| json!({ "fencing_token": job["fencing_token"], "first": first, "events": events });
    let events = path(&job, "events");
    let both = vec![said(1, "one"), said(2, &format!("the key is {secret}"))];
    for _ in 0..2 {
        let stored = node.client.post(&events, tell(0, both.clone())).await.expect(200).json();
        assert_eq!(stored, json!({ "next": 2 }));
    }
    let overlapping = tell(1, vec![said(2, "again"), said(3, "three")]);
    let stored = node.client.post(&events, overlapping).await.expect(200).json();
    assert_eq!(stored, json!({ "next": 3 }));
    node.client.post(&events, tell(9, vec![said(9, "gap")])).await.expect(409);
    let log = format!("/v1/jobs/{}/events", job["job_id"].as_str().unwrap());
    let shown = drive.admin.get(&log).await.expect(200).json();
    let texts: Vec<_> =
        shown["items"].as_array().unwrap().iter().map(|e| e["data"]["text"].clone()).collect();
    assert_eq!(texts.len(), 3, "S001-60, S004-146: every event is there once");
    assert_eq!(
        (&texts[0], &texts[2]),
        (&json!("one"), &json!("three")),
        "S001-60, S004-146: in order"
    );
    assert!(!shown.to_string().contains(secret), "S001-68: {shown}");
    // The texts of the log can be searched, also for what JSON writes in another way, and nothing else of it.
    let odd = tell(3, vec![said(4, "say \"YES\"\nand go")]);
    node.client.post(&events, odd).await.expect(200);
    for (words, numbers) in [
        ("THREE", vec![2]),
        ("y%20%22yes%22%0Aand", vec![3]),
        ("%22", vec![3]),
        ("text", vec![]),
        ("nowhere", vec![]),
    ] {
        let found = drive.admin.get(&format!("{log}?contains={words}")).await.expect(200).json();
        let found: Vec<_> =
            found["items"].as_array().unwrap().iter().map(|e| e["number"].clone()).collect();
        assert_eq!(found, numbers, "{words}");
    }
    drive.admin.get(&format!("{log}?contains=")).await.expect(422);
}

#[tokio::test]
async fn a_person_sees_the_exact_command_and_the_answer_holds_for_the_job() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    let ask = |command: &str| {
        json!({ "fencing_token": job["fencing_token"], "title": "Run a command",
            "input": { "command": command } })
    };
    let permission = path(&job, "permission");
    let waiting = node.client.post(&permission, ask("rm -r build")).await.expect(200).json();
    assert_eq!(waiting, json!({ "answer": "waiting" }));
    let open = drive.admin.get("/v1/approvals").await.expect(200).json();
    let id = open["items"][0]["approval_id"].as_str().unwrap().to_owned();
    let shown = drive.admin.get(&format!("/v1/approvals/{id}")).await.expect(200).json();
    assert!(shown.to_string().contains("rm -r build"), "{shown}");
    let yes = json!({ "approved": true });
    drive.admin.post(&format!("/v1/approvals/{id}"), yes).await.expect(200);
    let decided = drive.admin.get("/v1/approvals?decided=true").await.expect(200).json();
    let me = drive.admin.get("/v1/me").await.expect(200).json();
    let about = |name: &str| decided["items"][0][name].clone();
    let who = (about("approval_id"), about("state"), about("decided_by"), about("arguments"));
    assert_eq!(who, (json!(id), json!("approved"), me["user"]["id"].clone(), json!(null)));
    assert_eq!(decided["items"].as_array().unwrap().len(), 1);
    for _ in 0..2 {
        let answer = node.client.post(&permission, ask("rm -r build")).await.expect(200).json();
        assert_eq!(answer, json!({ "answer": "allowed" }));
    }
    let other = node.client.post(&permission, ask("rm -r src")).await.expect(200).json();
    assert_eq!(other, json!({ "answer": "waiting" }));
    // Who does not work any more needs no answer.
    let open = drive.admin.get("/v1/approvals").await.expect(200).json();
    let id = open["items"][0]["approval_id"].as_str().unwrap().to_owned();
    let done = json!({ "fencing_token": job["fencing_token"], "outcome": "failed", "result": { "stop_reason": "cancelled" } });
    node.client.post(&path(&job, "result"), done).await.expect(200);
    assert_eq!(drive.admin.get("/v1/approvals").await.expect(200).json()["items"], json!([]));
    let yes = json!({ "approved": true });
    drive.admin.post(&format!("/v1/approvals/{id}"), yes).await.expect(409);
}

pub(crate) fn git(directory: &Path, args: &[&str]) -> String {
    let done = Command::new("git")
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// A repository with one commit, and its bundle.
pub(crate) fn repository() -> (tempfile::TempDir, String, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    git(at, &["init", "--quiet"]);
    std::fs::write(at.join("a.txt"), "one\n").unwrap();
    git(at, &["add", "."]);
    git(at, &["commit", "--quiet", "-m", "one"]);
    let head = git(at, &["rev-parse", "HEAD"]);
    git(at, &["bundle", "create", "--quiet", ".git/all.bundle", "--branches"]);
    let bundle = std::fs::read(at.join(".git/all.bundle")).unwrap();
    (directory, head, bundle)
}

pub(crate) async fn put(client: &Client, path: &str, bytes: Vec<u8>) -> (u16, Value) {
    let request = axum::http::Request::put(path)
        .header("authorization", format!("Bearer {}", client.token().unwrap()))
        .body(Body::from(bytes))
        .unwrap();
    let (parts, body) = client.oneshot(request).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), serde_json::from_slice(&body).unwrap())
}

pub(crate) async fn store(node: &Machine, job: &Value, bytes: &[u8]) -> Value {
    let name = HEXLOWER.encode(&Sha256::digest(bytes));
    let place = path(job, &format!("blobs/{name}?fencing_token={}", job["fencing_token"]));
    let (status, stored) = put(&node.client, &place, bytes.to_vec()).await;
    assert_eq!((status, &stored), (200, &json!({ "sha256": name, "bytes": bytes.len() })));
    stored
}

/// What came of each unit's job.
async fn results(app: &TestApp) -> Value {
    let all = "SELECT json_build_object(key, result)::text FROM jobs JOIN work_units USING (unit_id) WHERE result IS NOT NULL";
    let mut results = json!({});
    for row in app.db.texts(all).await {
        let row: Value = serde_json::from_str(&row).unwrap();
        results.as_object_mut().unwrap().extend(row.as_object().unwrap().clone());
    }
    results
}

#[tokio::test]
async fn stored_bytes_are_what_they_are_called() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    store(&node, &job, b"some bytes").await;
    store(&node, &job, b"").await;
    let name = HEXLOWER.encode(&Sha256::digest(b"other"));
    let place = path(&job, &format!("blobs/{name}?fencing_token=1"));
    assert_eq!(put(&node.client, &place, b"some bytes".to_vec()).await.0, 422);
    let place = path(&job, &format!("blobs/{name}?fencing_token=2"));
    assert_eq!(put(&node.client, &place, b"other".to_vec()).await.0, 409);
}

#[tokio::test]
async fn a_result_names_only_bytes_that_were_uploaded_for_its_job() {
    let drive = Drive::new().await;
    let secret = b"a letter of another job";
    drive.dispatched_with(&["a", "b"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let jobs = node.claim(1, 2).await;
    let (owner, thief) = (&jobs[0], &jobs[1]);
    let stored = store(&node, owner, secret).await;
    let own = store(&node, thief, b"own bytes").await;
    let result = json!({ "fencing_token": thief["fencing_token"], "outcome": "succeeded", "result": {
        "summary": "done", "stop_reason": "end_turn", "artifacts": { "stolen.txt": stored, "own.txt": own } } });
    node.client.post(&path(thief, "result"), result).await.expect(200);
    let attached = drive.app.db.texts("SELECT name FROM artifacts ORDER BY name").await;
    assert_eq!(attached, ["own.txt"]);
    // Whoever uploaded them attaches them, and a repeat of the upload changes nothing.
    let again = store(&node, owner, secret).await;
    let result = json!({ "fencing_token": owner["fencing_token"], "outcome": "succeeded", "result": {
        "summary": "done", "stop_reason": "end_turn", "artifacts": { "letter.txt": again } } });
    node.client.post(&path(owner, "result"), result).await.expect(200);
    let attached = drive.app.db.texts("SELECT name FROM artifacts ORDER BY name").await;
    assert_eq!(attached, ["letter.txt", "own.txt"]);
}

#[tokio::test]
async fn a_commit_counts_only_when_it_is_there_and_follows_where_it_started() {
    let drive = Drive::new().await;
    let (directory, head, bundle) = repository();
    let place = format!("/v1/projects/{}/repository", drive.project);
    let (status, shown) = put(&drive.admin, &place, bundle.clone()).await;
    assert_eq!(
        (status, &shown["head"], &shown["default_branch"]),
        (200, &json!(head), &json!("main"))
    );
    // Brought again, nothing changes; what is no bundle is refused.
    assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
    assert_eq!(put(&drive.admin, &place, b"not a bundle".to_vec()).await.0, 422);

    let mut required = work();
    required["work"]["commit"] = json!("required");
    drive.dispatched_with(&["a", "b", "c", "d"], &required).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    let jobs = node.claim(1, 10).await;
    assert!(jobs.iter().all(|job| job["base"] == json!(head)));

    let at = directory.path();
    std::fs::write(at.join("a.txt"), "one\ntwo\n").unwrap();
    git(at, &["commit", "--quiet", "-am", "two"]);
    let commit = git(at, &["rev-parse", "HEAD"]);
    git(at, &["bundle", "create", "--quiet", ".git/job.bundle", &format!("{head}..HEAD"), "HEAD"]);
    let good = std::fs::read(at.join(".git/job.bundle")).unwrap();
    git(at, &["checkout", "--quiet", "--orphan", "elsewhere"]);
    git(at, &["commit", "--quiet", "-m", "from nowhere"]);
    let strange = git(at, &["rev-parse", "HEAD"]);
    git(at, &["bundle", "create", "--quiet", ".git/bad.bundle", "HEAD"]);
    let bad = std::fs::read(at.join(".git/bad.bundle")).unwrap();

    let done = |job: &Value, commit: Option<&str>, bundle: Option<Value>| {
        json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "summary": "done", "stop_reason": "end_turn", "commit": commit, "bundle": bundle } })
    };
    let ended = async |job: &Value, body: Value| {
        let said = node.client.post(&path(job, "result"), body).await.expect(200).json();
        (said["state"].clone(), results(&drive.app).await[job["unit"].as_str().unwrap()].clone())
    };
    let stored = store(&node, &jobs[0], &good).await;
    let (state, result) =
        ended(&jobs[0], done(&jobs[0], Some(&commit), Some(stored.clone()))).await;
    assert_eq!((state, &result["commit"]), (json!("succeeded"), &json!(commit)));
    assert_eq!(result["diff"], json!({ "files": 1, "insertions": 1, "deletions": 0 }));
    // Named, but not in the bundle.
    let (state, result) = ended(&jobs[1], done(&jobs[1], Some(&strange), Some(stored))).await;
    assert_eq!(
        (state, &result["commit"], &result["stop_reason"]),
        (json!("failed"), &json!(null), &json!("unverified"))
    );
    // In the bundle, but made from nothing.
    let stored = store(&node, &jobs[2], &bad).await;
    let (state, result) = ended(&jobs[2], done(&jobs[2], Some(&strange), Some(stored))).await;
    assert_eq!((state, &result["commit"]), (json!("failed"), &json!(null)));
    // Said to be done, with nothing to show.
    let (state, _) = ended(&jobs[3], done(&jobs[3], None, None)).await;
    assert_eq!(state, json!("failed"));
}

#[tokio::test]
async fn work_that_cannot_be_read_fails_with_the_reason_instead_of_waiting() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &json!({ "work": { "role": "wizard" } })).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    assert_eq!(node.claim(1, 1).await, Vec::<Value>::new());
    let result = results(&drive.app).await["a"].clone();
    assert_eq!(result["stop_reason"], "impossible");
    assert!(result["summary"].as_str().unwrap().contains("cannot be read"), "{result}");
}

#[tokio::test]
async fn a_job_from_an_image_that_is_not_allowed_fails_with_the_reason_once_any_is() {
    let drive = Drive::new().await;
    let mut payload = work();
    payload["work"]["sandbox"] = json!({ "image": "builder:old" });
    drive.dispatched_with(&["a", "b", "c"], &payload).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let given = async |number: u32| node.claim(number, 1).await.len();
    let allow = async |image: &str| {
        drive.admin.post("/v1/allowed-images", json!({ "image": image })).await.expect(204);
    };
    assert_eq!(given(1).await, 1, "nobody has named any");
    allow("builder:new").await;
    assert_eq!(given(2).await, 0);
    let why = "SELECT (result ->> 'stop_reason') || ': ' || (result ->> 'summary') FROM jobs WHERE state = 'failed'";
    assert_eq!(
        drive.app.db.texts(why).await,
        ["impossible: the image `builder:old` is not among those that are allowed"]
    );
    allow("builder:old").await;
    assert_eq!(given(3).await, 1);
}

#[tokio::test]
async fn turns_are_fair_also_when_everybody_asks_at_once() {
    let drive = Drive::new().await;
    let keys: Vec<_> = (0..40).map(|number| format!("u{number}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    drive.dispatched_with(&keys, &work()).await;
    let mut nodes = Vec::new();
    for number in 1..=4 {
        nodes.push(Machine::join(&drive.app, &drive.admin, number, 100).await);
    }
    let mut given = vec![Vec::new(); nodes.len()];
    // Each asks for one at a time, all four at the same moment, until there is nothing more.
    for round in 0..40 {
        let asked = nodes.iter().enumerate().map(async |(at, node)| {
            let number = u32::try_from(round * 4 + at).unwrap();
            node.claim(number, 1).await
        });
        for (at, jobs) in futures::future::join_all(asked).await.into_iter().enumerate() {
            given[at].extend(jobs.iter().map(unit));
        }
    }
    let counts: Vec<_> = given.iter().map(Vec::len).collect();
    assert_eq!(counts, [10, 10, 10, 10], "S001-58, S001-80: fair under concurrent calls");
    let mut all: Vec<_> = given.concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 40, "S001-57: concurrent selections give each job once");
}

#[tokio::test]
async fn what_agents_said_is_forgotten_after_its_time() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 3).await;
    let job = node.claim(1, 1).await.remove(0);
    let told = json!({ "fencing_token": 1, "first": 0,
        "events": [{ "at_ms": 1, "event": "message", "data": { "text": "hello" } }] });
    node.client.post(&path(&job, "events"), told).await.expect(200);
    let kept = "SELECT count(*) FROM job_events";
    cynode_app::background::maintenance::run_maintenance_once(&drive.app.app).await.unwrap();
    assert_eq!(drive.app.db.number(kept).await, 1);
    drive.app.clock.advance(Duration::days(200));
    cynode_app::background::maintenance::run_maintenance_once(&drive.app.app).await.unwrap();
    assert_eq!(drive.app.db.number(kept).await, 0);
}
