//! Environments of projects: how they are proposed, decided, tried and given to jobs.

use std::path::Path;

use cynode_app::delivery::environments;
use cynode_testkit::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    nodes::{Machine, git, path, put, repository},
    workflow::Drive,
};

/// A project with a repository and a node.
struct World {
    drive: Drive,
    node: Machine,
    clone: TempDir,
}

impl World {
    async fn new() -> Self {
        let drive = Drive::new().await;
        let (clone, _, bundle) = repository();
        let world =
            Self { node: Machine::join(&drive.app, &drive.admin, 1, 10).await, drive, clone };
        world.import(bundle).await;
        world
    }

    async fn import(&self, bundle: Vec<u8>) {
        let place = format!("/v1/projects/{}/repository", self.drive.project);
        assert_eq!(put(&self.drive.admin, &place, bundle).await.0, 200);
    }

    /// Commits a file to the default branch and imports it.
    async fn commit(&self, file: &str, text: &str) {
        let at = self.clone.path();
        let place = at.join(file);
        std::fs::create_dir_all(place.parent().unwrap_or(Path::new(""))).unwrap();
        std::fs::write(place, text).unwrap();
        git(at, &["add", "."]);
        git(at, &["commit", "--quiet", "-m", file]);
        git(at, &["bundle", "create", "--quiet", ".git/all.bundle", "--branches"]);
        self.import(std::fs::read(at.join(".git/all.bundle")).unwrap()).await;
    }

    fn place(&self, rest: &str) -> String {
        format!("/v1/projects/{}/{rest}", self.drive.project)
    }

    fn admin(&self) -> &Client {
        &self.drive.admin
    }

    async fn propose(&self, spec: Value) -> Value {
        let body = json!({ "spec": spec });
        self.admin().post(&self.place("environments"), body).await.expect(201).json()
    }

    async fn accept(&self, version: &Value) -> Value {
        let place = self.place(&format!("environments/{version}/accept"));
        self.admin().post(&place, json!({})).await.expect(200).json()
    }

    /// Versions with their state and origin, the newest first.
    async fn versions(&self) -> Vec<(i64, String, String)> {
        let listed = self.admin().get(&self.place("environments")).await.expect(200).json();
        let one = |it: &Value| {
            let text = |name: &str| it[name].as_str().unwrap().to_owned();
            (it["version"].as_i64().unwrap(), text("state"), text("origin"))
        };
        listed["items"].as_array().unwrap().iter().map(one).collect()
    }

    async fn events(&self) -> Vec<String> {
        let query = "SELECT kind FROM events WHERE kind LIKE 'environment.%' ORDER BY xact, seq";
        self.drive.app.db.texts(query).await
    }
}

fn version(number: i64, state: &str, origin: &str) -> (i64, String, String) {
    (number, state.to_owned(), origin.to_owned())
}

/// A job that runs in an environment.
fn work_in(environment: &Value) -> Value {
    let reference = json!({ "version": environment["version"], "digest": environment["digest"] });
    json!({ "work": { "role": "developer", "worker": { "kind": "command", "steps": [{ "argv": ["true"] }] },
        "sandbox": { "environment": reference } } })
}

#[tokio::test]
async fn a_proposal_takes_effect_when_it_is_accepted_and_supersedes_the_one_before() {
    let world = World::new().await;
    world.admin().get(&world.place("environments/accepted")).await.expect(404);
    let first = world.propose(json!({ "setup": ["make"] })).await;
    assert_eq!((&first["version"], &first["state"]), (&json!(1), &json!("proposed")));
    assert_eq!(world.propose(json!({ "setup": ["make"] })).await, first, "it is there already");
    world.admin().get(&world.place("environments/accepted")).await.expect(404);
    assert_eq!(world.accept(&json!(1)).await["state"], "accepted");
    let again = world.place("environments/1/accept");
    world.admin().post(&again, json!({})).await.expect(409);
    world.propose(json!({ "setup": ["make", "make test"] })).await;
    world.accept(&json!(2)).await;
    let known = [version(2, "accepted", "person"), version(1, "superseded", "person")];
    assert_eq!(world.versions().await, known);
    let accepted = world.admin().get(&world.place("environments/accepted")).await.expect(200);
    assert_eq!(accepted.json()["spec"]["setup"], json!(["make", "make test"]));
    let reject = json!({ "note": "too slow" });
    let rejected = world.admin().post(&world.place("environments/2/reject"), reject).await;
    assert_eq!(rejected.expect(200).json()["note"], "too slow");
    world.admin().get(&world.place("environments/accepted")).await.expect(404);
    let told = [
        "environment.proposed",
        "environment.accepted",
        "environment.proposed",
        "environment.accepted",
        "environment.rejected",
    ];
    assert_eq!(world.events().await, told);
}

#[tokio::test]
async fn an_environment_that_no_sandbox_may_have_is_refused_with_the_reason() {
    let world = World::new().await;
    let place = world.place("environments");
    let body = json!({ "spec": { "variables": { "LD_PRELOAD": "x" } } });
    let refused = world.admin().post(&place, body).await.expect(422).json();
    assert!(
        refused["detail"].as_str().unwrap().starts_with("`LD_PRELOAD` is no name"),
        "{refused}"
    );
    let body = json!({ "spec": { "steps": [] } });
    world.admin().post(&place, body).await.expect(400);
    assert!(world.versions().await.is_empty());
}

#[tokio::test]
async fn a_file_of_the_repository_is_only_ever_a_proposal() {
    let world = World::new().await;
    let app = &world.drive.app.app;
    assert_eq!(environments::scan_repositories(app).await.unwrap(), 1);
    assert_eq!(environments::scan_repositories(app).await.unwrap(), 0, "nothing has moved");
    assert!(world.versions().await.is_empty());
    world.commit(".cynode/environment.toml", "setup = [\"make\"]\n").await;
    environments::scan_repositories(app).await.unwrap();
    assert_eq!(world.versions().await, [version(1, "proposed", "repository")]);
    world.admin().get(&world.place("environments/accepted")).await.expect(404);
    // Another commit with the same file says nothing new, not even after it was rejected.
    world.admin().post(&world.place("environments/1/reject"), json!({})).await.expect(200);
    world.commit("b.txt", "b\n").await;
    assert_eq!(environments::scan_repositories(app).await.unwrap(), 1);
    assert_eq!(world.versions().await, [version(1, "rejected", "repository")]);
    world.commit(".cynode/environment.toml", "setup = [\"make\"]\nsteps = 1\n").await;
    environments::scan_repositories(app).await.unwrap();
    assert_eq!(world.versions().await, [version(1, "rejected", "repository")]);
    let told = ["environment.proposed", "environment.rejected", "environment.unreadable"];
    assert_eq!(world.events().await, told);
    let reason = "SELECT data->>'reason' FROM events WHERE kind = 'environment.unreadable'";
    let reason = world.drive.app.db.texts(reason).await.remove(0);
    assert!(reason.starts_with("`.cynode/environment.toml`, line 2: "), "{reason}");
}

#[tokio::test]
async fn a_file_that_comes_back_is_proposed_again_and_a_hostile_one_is_read_once() {
    let world = World::new().await;
    let app = &world.drive.app.app;
    for command in ["make", "make all", "make"] {
        let text = format!("setup = [\"{command}\"]\n");
        world.commit(".cynode/environment.toml", &text).await;
        environments::scan_repositories(app).await.unwrap();
    }
    let known = [
        version(3, "proposed", "repository"),
        version(2, "superseded", "repository"),
        version(1, "superseded", "repository"),
    ];
    assert_eq!(world.versions().await, known);
    world.commit(".cynode/environment.toml", "\"a\\u0000\" = 1\n").await;
    assert_eq!(environments::scan_repositories(app).await.unwrap(), 1);
    assert_eq!(environments::scan_repositories(app).await.unwrap(), 0, "it is not retried");
    assert_eq!(world.versions().await, known);
}

#[tokio::test]
async fn detection_proposes_what_the_files_say_once() {
    let world = World::new().await;
    let package = json!({ "name": "x", "scripts": { "test": "node test.js" } }).to_string();
    world.commit("package.json", &package).await;
    let place = world.place("environments/detect");
    let found = world.admin().post(&place, json!({})).await.expect(200).json();
    assert_eq!((&found["state"], &found["origin"]), (&json!("proposed"), &json!("detected")));
    assert!(found["source_commit"].is_string(), "{found}");
    let again = world.admin().post(&place, json!({})).await.expect(200).json();
    assert_eq!(again["version"], found["version"]);
    let devcontainer = json!({ "devcontainer": true });
    world.admin().post(&place, devcontainer).await.expect(404);
}

#[tokio::test]
async fn a_job_gets_the_environment_that_it_names_with_more_time_for_the_set_up() {
    let world = World::new().await;
    let settings =
        [("packages.forbidden", json!(["npm:left-pad"])), ("packages.min_age_days", json!(7))];
    for (key, value) in settings {
        let body = json!({ "value": value, "expected_version": 0 });
        world.admin().put(&format!("/v1/settings/{key}"), body).await.expect(200);
    }
    let spec = json!({ "setup": ["make"], "limits": { "setup_seconds": 300 } });
    let made = world.propose(spec.clone()).await;
    world.accept(&made["version"]).await;
    world.drive.dispatched_with(&["a"], &work_in(&made)).await;
    let job = world.node.claim(1, 1).await.remove(0);
    let given = &job["environment"];
    assert_eq!(given["reference"]["digest"], made["digest"]);
    assert_eq!(given["spec"]["setup"], spec["setup"]);
    assert_eq!((&given["trusted_commit"], job["base"].is_string()), (&job["base"], true));
    assert_eq!(
        given["package_policy"],
        json!({ "forbidden": ["npm:left-pad"], "min_age_days": 7 })
    );
    let left = job["seconds_left"].as_i64().unwrap();
    assert!((880..=900).contains(&left), "{left}");
    let again = world.node.claim(1, 1).await.remove(0);
    assert!(again["seconds_left"].as_i64().unwrap() <= left, "a repeat gives no more time");
}

#[tokio::test]
async fn a_job_whose_environment_nobody_accepted_cannot_be_done() {
    let world = World::new().await;
    let made = world.propose(json!({ "setup": ["make"] })).await;
    world.drive.dispatched_with(&["a"], &work_in(&made)).await;
    assert!(world.node.claim(1, 1).await.is_empty());
    let query = "SELECT result->>'stop_reason' || ': ' || (result->>'summary') FROM jobs";
    assert_eq!(
        world.drive.app.db.texts(query).await,
        [
            "environment: version 1 of the project's environment is not accepted: `cynork project environment accept 1`"
        ]
    );
}

#[tokio::test]
async fn secrets_are_never_shown_and_reach_set_up_only_where_the_installation_allows_it() {
    let world = World::new().await;
    let place = world.place("secrets/npm-token");
    world.admin().put(&place, json!({ "value": "short" })).await.expect(422);
    let body = json!({ "value": "s3cret-of-the-team" });
    let set = world.admin().put(&place, body).await.expect(200).json();
    assert_eq!((&set["name"], set.get("value")), (&json!("npm-token"), None));
    let listed = world.admin().get(&world.place("secrets")).await.expect(200).json();
    assert!(!listed.to_string().contains("s3cret"), "{listed}");
    let stored = "SELECT count(*) FROM project_secrets WHERE position('s3cret' IN encode(sealed, 'escape')) > 0";
    assert_eq!(world.drive.app.db.number(stored).await, 0);
    let spec = json!({ "setup": ["npm ci"], "secrets": { "NPM_TOKEN": "npm-token" } });
    let made = world.propose(spec).await;
    world.accept(&made["version"]).await;
    world.drive.dispatched_with(&["a", "b"], &work_in(&made)).await;
    assert!(world.node.claim(1, 1).await.is_empty(), "the setting is not set");
    let body = json!({ "value": true, "expected_version": 0 });
    world.admin().put("/v1/settings/environments.allow_secrets", body).await.expect(200);
    let job = world.node.claim(2, 1).await.remove(0);
    assert_eq!(job["environment"]["secrets"], json!({ "NPM_TOKEN": "s3cret-of-the-team" }));
    world.admin().delete(&place).await.expect(204);
    world.admin().delete(&place).await.expect(404);
}

#[tokio::test]
async fn a_trial_is_a_task_with_a_plan_of_its_own_and_without_secrets() {
    let world = World::new().await;
    let check = json!({ "kind": "test", "command": "make test" });
    let spec = json!({ "setup": ["make"], "checks": [check], "secrets": { "T": "npm-token" } });
    let made = world.propose(spec).await;
    let task = world.admin().post(&world.place("environments/try"), json!({})).await.expect(201);
    assert_eq!(task.text("name"), "try-environment-1");
    let body =
        json!({ "task_id": task.text("id"), "holder": "runner", "idempotency_key": "trial" });
    let started = world.drive.runner.post("/v1/workflow/start", body).await.expect(200).json();
    let work = &started["task"]["plan"]["steps"][0]["payload"]["work"];
    let argv = json!(["sh", "-c", "make test"]);
    assert_eq!((&work["worker"]["checks"][0]["argv"], &work["commit"]), (&argv, &json!("never")));
    assert_eq!(work["sandbox"]["environment"]["digest"], made["digest"]);
    world.admin().post(&world.place("environments/1/reject"), json!({})).await.expect(200);
    let tried = json!({ "version": 1 });
    world.admin().post(&world.place("environments/try"), tried).await.expect(409);
}

#[tokio::test]
async fn packages_that_a_job_reports_are_listed_with_their_task() {
    let world = World::new().await;
    world.drive.dispatched_with(&["a"], &crate::nodes::work()).await;
    let job = world.node.claim(1, 1).await.remove(0);
    let digest = "c".repeat(64);
    let good = json!({ "source": "npm", "package": "left-pad", "version": "1.3.0", "sha256": digest, "bytes": 700, "cached": true });
    let bad = json!({ "source": "pypi", "package": "evil", "version": "1", "refused": "it is too young" });
    let event = json!({ "at_ms": 5, "event": "packages", "data": { "fetches": [good, bad] } });
    let body = json!({ "fencing_token": job["fencing_token"], "first": 0, "events": [event] });
    world.node.client.post(&path(&job, "events"), body.clone()).await.expect(200);
    // Sent again, nothing is stored twice.
    world.node.client.post(&path(&job, "events"), body).await.expect(200);
    let listed = world.admin().get(&world.place("packages")).await.expect(200).json();
    let seen: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|it| &it["package"]).collect();
    assert_eq!(seen, ["evil", "left-pad"]);
    assert_eq!(listed["items"][1]["sha256"], json!(digest));
    assert_eq!(listed["items"][1]["task_id"], json!(world.drive.task));
    let refused = world.admin().get(&world.place("packages?refused=true")).await.expect(200);
    assert_eq!(refused.json()["items"][0]["refused"], "it is too young");
    assert_eq!(refused.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn who_may_not_change_the_project_decides_nothing_about_its_environment() {
    let world = World::new().await;
    world.propose(json!({ "setup": ["make"] })).await;
    let operator = world.drive.app.user("bob", Some(cynode_core::roles::UserRole::Operator)).await;
    let accept = world.place("environments/1/accept");
    operator.post(&accept, json!({})).await.expect(403);
    operator.get(&world.place("secrets")).await.expect(403);
    assert_eq!(world.versions().await, [version(1, "proposed", "person")]);
    // Whoever may ask for work may propose and try.
    let body = json!({ "spec": { "setup": ["make", "make lint"] } });
    operator.post(&world.place("environments"), body).await.expect(201);
    operator.post(&world.place("environments/try"), json!({})).await.expect(201);
}
