//! Environments of projects in runs: what is told, who accepts, and what runs in them.

use cynode_core::{ids::ProjectId, roles::UserRole};

use super::*;
use crate::workflow::Held;

/// A task of a project with a repository, about to be planned.
struct Scene {
    drive: Drive,
    held: Held,
}

impl Scene {
    async fn new() -> Self {
        let mut drive = Drive::new().await;
        let (_directory, _, bundle) = repository();
        let place = format!("/v1/projects/{}/repository", drive.project);
        assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
        let spec = json!({
            "setup": ["npm ci"],
            "checks": [{ "kind": "test", "command": "npm test" }],
            "limits": { "memory_mib": 2048, "disk_mib": 4096 },
        });
        drive.admin.post(&environments(&drive), json!({ "spec": spec })).await.expect(201);
        drive.task = drive.another(json!([])).await;
        let mut held = drive.start().await;
        drive.go(&mut held, "pass", json!({})).await;
        Self { drive, held }
    }

    /// Somebody is asked about the proposal and answers; then the run asks for it to be accepted.
    async fn answered_by(&mut self, client: &Client) {
        let asked = json!({ "wait": { "reason": "human_input", "question": "Accept it?" } });
        self.drive.step(&self.held, "wait", asked).await.expect(200);
        let place = format!("/v1/tasks/{}/answer", self.drive.task);
        client.post(&place, json!({ "text": "accept" })).await.expect(200);
        self.held = self.drive.start().await;
        let shown = self.held.position["environment"]["proposed"]["reference"].clone();
        let accept = json!([{ "effect": "accept_environment", "environment": shown }]);
        let more = json!({ "effects": accept, "wait": { "reason": "job", "wake_in_ms": 0 } });
        self.drive.step(&self.held, "wait", more).await.expect(200);
        self.held = self.drive.start().await;
    }

    /// Plans a unit and has its check tried before any change. Returns the job.
    async fn try_check(&self, node: &Machine, claim: u32) -> Value {
        let units = json!([{ "key": "a", "title": "a", "payload": work() }]);
        let checks = json!([{ "argv": ["npm", "test"] }]);
        let effects = json!([{ "effect": "plan_units", "units": units },
            { "effect": "try_checks", "checks": checks }]);
        let more = json!({ "effects": effects, "wait": { "reason": "job", "wake_in_ms": 60_000 } });
        self.drive.step(&self.held, "wait", more).await.expect(200);
        node.claim(claim, 10).await.remove(0)
    }
}

fn environments(drive: &Drive) -> String {
    format!("/v1/projects/{}/environments", drive.project)
}

#[tokio::test]
async fn an_environment_is_accepted_in_the_name_of_a_person_who_may_and_of_nobody_else() {
    let mut scene = Scene::new().await;
    let project: ProjectId = scene.drive.project.parse().unwrap();
    let operator = scene.drive.app.user("op", None).await;
    scene.drive.app.member(project, &operator, UserRole::Operator).await;
    let proposed = &scene.held.position["environment"]["proposed"];
    assert_eq!(proposed["reference"]["version"], 1);
    assert_eq!(proposed["lines"][0]["line"], "setup: npm ci", "what a person wrote is shown");

    scene.answered_by(&operator).await;
    assert_eq!(scene.held.position["environment"]["proposed"]["reference"]["version"], 1);
    let state = "SELECT state FROM project_environments";
    assert_eq!(scene.drive.app.db.texts(state).await, ["proposed"]);

    let admin = scene.drive.admin.clone();
    scene.answered_by(&admin).await;
    let told = &scene.held.position["environment"];
    assert_eq!(told.get("proposed"), None);
    assert_eq!(
        json!([
            told["accepted"]["reference"]["version"],
            told["accepted"]["limits"],
            told["accepted"]["checks"]
        ]),
        json!([1, { "memory_mib": 2048, "disk_mib": 4096 }, [{ "kind": "test", "command": "npm test" }]])
    );
    let by = "SELECT u.handle FROM project_environments e JOIN users u ON u.user_id = e.decided_by WHERE e.state = 'accepted'";
    assert_eq!(scene.drive.app.db.texts(by).await, ["admin"]);
    let events = "SELECT count(*) FROM events WHERE kind = 'environment.accepted'";
    assert_eq!(scene.drive.app.db.number(events).await, 1);
}

#[tokio::test]
async fn checks_run_in_the_accepted_environment_unless_the_task_goes_on_without_it() {
    let mut scene = Scene::new().await;
    let accept = format!("{}/1/accept", environments(&scene.drive));
    scene.drive.admin.post(&accept, json!({})).await.expect(200);
    let node = Machine::join(&scene.drive.app, &scene.drive.admin, 1, 10).await;
    let job = scene.try_check(&node, 1).await;
    let sandbox = &job["work"]["sandbox"];
    assert_eq!(
        json!([sandbox["environment"]["version"], sandbox["memory_mib"], sandbox["disk_mib"]]),
        json!([1, 2048, 4096])
    );
    // Its set-up fails: a repeat would fail too, and the reason says so.
    let failed = json!({ "fencing_token": job["fencing_token"], "outcome": "failed",
        "result": { "stop_reason": "environment", "summary": "step 1 of 1 (`npm ci`) failed" } });
    node.client.post(&path(&job, "result"), failed).await.expect(200);
    scene.held = scene.drive.start().await;
    assert_eq!(
        scene.held.position["base_checks"]["error"],
        "the environment could not be set up: step 1 of 1 (`npm ci`) failed"
    );
    // A person goes on without it.
    scene.held.position["state"]["environment"] = json!({ "without": true });
    let job = scene.try_check(&node, 2).await;
    assert_eq!(job["work"]["sandbox"], json!({}));
}
