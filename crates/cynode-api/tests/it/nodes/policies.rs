//! Nodes are bound to projects by admins: what a node says of itself does not bring it a job.

use serde_json::{Value, json};

use super::{Machine, git, path, put, repository, unit, work};
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
    // Under a profile with network, the policy holds beside it.
    let of_project =
        format!("/v1/preferences/memory.profile?scope_type=project&scope_id={}", drive.project);
    let research = json!({ "value": "research", "expected_version": 0 });
    drive.admin.put(&of_project, research).await.expect(200);
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

#[tokio::test]
async fn a_node_reads_the_commits_of_its_job_and_nothing_else_of_the_repository() {
    let drive = Drive::new().await;
    let (clone, base, bundle) = repository();
    let place = format!("/v1/projects/{}/repository", drive.project);
    assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    let job = node.claim(1, 1).await.remove(0);
    assert_eq!(job["base"], json!(base));

    // Later work on the default branch, and work of another task.
    let at = clone.path();
    std::fs::write(at.join("later.txt"), "later\n").unwrap();
    git(at, &["add", "."]);
    git(at, &["commit", "--quiet", "-m", "later"]);
    let later = git(at, &["rev-parse", "HEAD"]);
    git(at, &["bundle", "create", "--quiet", ".git/more.bundle", "HEAD"]);
    let bare = drive.app.repository(&drive.project);
    let bundle = at.join(".git/more.bundle");
    let refs = ["HEAD:refs/heads/later", "HEAD:refs/cynode/jobs/another"];
    git(&bare, &["fetch", "--quiet", &bundle.to_string_lossy(), refs[0], refs[1]]);

    let offered =
        node.client.get(&path(&job, "git/info/refs?service=git-upload-pack")).await.expect(200);
    let offered = String::from_utf8_lossy(&offered.body).into_owned();
    assert!(offered.contains(&format!("{base} refs/cynode/{base}")), "{offered}");
    for hidden in [later.as_str(), "refs/heads", "refs/cynode/jobs"] {
        assert!(!offered.contains(hidden), "{hidden} in {offered}");
    }
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let ask = async |wanted: &str, version: u8| {
        let question = if version == 2 {
            let wanted = line(&format!("want {wanted}\n"));
            format!("{}0001{wanted}{}0000", line("command=fetch\n"), line("done\n"))
        } else {
            format!("{}0000{}", line(&format!("want {wanted} no-progress\n")), line("done\n"))
        };
        let request = axum::http::Request::post(path(&job, "git/git-upload-pack"))
            .header("authorization", format!("Bearer {}", node.client.token().unwrap()))
            .header("git-protocol", format!("version={version}"))
            .body(axum::body::Body::from(question))
            .unwrap();
        let body = node.client.oneshot(request).await.into_body();
        let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        body.windows(4).any(|word| word == b"PACK")
    };
    assert_eq!((ask(&base, 1).await, ask(&later, 1).await), (true, false));
    assert!(!ask(&later, 2).await, "version 2 gives whatever is named");
}
