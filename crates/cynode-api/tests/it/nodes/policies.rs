//! Nodes are bound to projects by admins: what a node says of itself does not bring it a job.

use serde_json::{Value, json};

use super::{Machine, unit, work};
use crate::workflow::Drive;

async fn demand(drive: &Drive, key: &str, value: Value) {
    let path = format!("/v1/policies/{key}?scope_type=project&scope_id={}", drive.project);
    drive.admin.put(&path, json!({ "value": value })).await.expect(200);
}

async fn label(drive: &Drive, node: &Machine, labels: Value) {
    let path = format!("/v1/nodes/{}", node.id);
    drive.admin.patch(&path, json!({ "labels": labels })).await.expect(200);
}

#[tokio::test]
async fn a_node_outside_the_allowed_labels_gets_nothing_however_much_it_says_it_has() {
    let drive = Drive::new().await;
    demand(&drive, "placement.allowed_labels", json!(["eu"])).await;
    drive.dispatched_with(&["a", "b"], &work()).await;
    let greedy = Machine::join(&drive.app, &drive.admin, 1, 1000).await;
    assert_eq!(greedy.claim(1, 100).await, Vec::<Value>::new());
    label(&drive, &greedy, json!(["us"])).await;
    assert_eq!(greedy.claim(2, 100).await, Vec::<Value>::new());
    let allowed = Machine::join(&drive.app, &drive.admin, 2, 10).await;
    label(&drive, &allowed, json!(["eu"])).await;
    let given = allowed.claim(3, 100).await;
    assert_eq!(given.iter().map(unit).collect::<Vec<_>>(), ["a", "b"]);
}

#[tokio::test]
async fn a_job_that_waits_at_a_node_is_taken_back_when_a_policy_forbids_the_node() {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a", "b"], &work()).await;
    let first = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    assert_eq!(first.claim(1, 1).await.len(), 1);
    demand(&drive, "placement.allowed_nodes", json!(["node-2"])).await;
    assert_eq!(first.claim(2, 10).await, Vec::<Value>::new());
    let second = Machine::join(&drive.app, &drive.admin, 2, 10).await;
    assert_eq!(second.claim(3, 10).await.iter().map(unit).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn images_and_hosts_that_a_policy_does_not_allow_are_not_given_to_a_job() {
    let drive = Drive::new().await;
    demand(&drive, "sandbox.allowed_images", json!(["builder:new"])).await;
    demand(&drive, "security.web_browse.allowed_domains", json!(["crates.io"])).await;
    let mut payload = work();
    let hosts = json!(["static.crates.io", "evil.example", "notcrates.io"]);
    payload["work"]["sandbox"] = json!({ "image": "builder:new", "egress_hosts": hosts });
    drive.dispatched_with(&["a"], &payload).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    let given = node.claim(1, 1).await;
    assert_eq!(given[0]["work"]["sandbox"]["egress_hosts"], json!(["static.crates.io"]));

    let other = Drive::new().await;
    demand(&other, "sandbox.allowed_images", json!(["builder:new"])).await;
    other.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&other.app, &other.admin, 1, 10).await;
    assert_eq!(node.claim(1, 1).await, Vec::<Value>::new());
    let why = "SELECT result ->> 'summary' FROM jobs WHERE state = 'failed'";
    let said = other.app.db.texts(why).await.remove(0);
    assert!(said.starts_with("the image `host` cannot be used: the policy"), "{said}");
}
