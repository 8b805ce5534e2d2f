//! What all tests at the gate share: an installation with a project and a task, agents, servers, records.

use std::{collections::BTreeMap, future::Future};

use cynode_core::ids::ProjectId;
use cynode_testkit::{Client, TestApp, mcp::Agent};
use serde_json::{Value, json};

use crate::offering::Offering;

pub(crate) struct Bench {
    pub(crate) app: TestApp,
    pub(crate) admin: Client,
    pub(crate) project: ProjectId,
    pub(crate) task: String,
}

/// Roles that people can issue tokens for.
pub(crate) const ROLES: [&str; 8] = [
    "project_manager",
    "project_analyst",
    "architect",
    "designer",
    "developer",
    "reviewer",
    "tester",
    "fixer",
];

/// A profile of the installation that permits everything, also every request. It is written by hand: no event is about it.
const CAREFUL_PROFILE: &str = r#"
    INSERT INTO profiles (profile_id, name, version, spec, created_at, updated_at, updated_by)
    SELECT gen_random_uuid(), 'careful', 1, '{
        "tools": ["*", "ext.*", "echo"], "network": [{ "domain": "*", "methods": ["*"] }], "variables": ["*"],
        "paths": { "read": ["**"], "write": ["**"] }, "models": ["*"], "memory": "write"
    }', created_at, created_at, user_id FROM users LIMIT 1"#;

impl Bench {
    /// An installation whose admin has deleted the rules that it came with: most tests are about the checks before rules, and about
    /// rules of their own.
    pub(crate) async fn new() -> Self {
        let bench = Self::with_shipped_rules().await;
        bench.app.db.execute("DELETE FROM policy_rules").await;
        bench.app.db.execute("UPDATE policy_epoch SET epoch = epoch + 1").await;
        bench
    }

    /// An installation as it is shipped.
    pub(crate) async fn with_shipped_rules() -> Self {
        let app = TestApp::new().await;
        let admin = app.admin().await;
        let project = app.project(&admin, "web").await;
        app.db.execute(CAREFUL_PROFILE).await;
        let mut bench = Self { app, admin, project, task: String::new() };
        bench.task = bench.another_task().await;
        bench
    }

    /// Another task of the project.
    pub(crate) async fn another_task(&self) -> String {
        self.task_in(self.project).await
    }

    pub(crate) async fn task_in(&self, project: ProjectId) -> String {
        let body = json!({ "project_id": project, "description": "Mend it",
            "acceptance_criteria": [{ "text": "the tests pass" }] });
        self.admin.post("/v1/tasks", body).await.expect(201).text("id")
    }

    /// A token for the task, under a profile that permits everything, with what `more` says otherwise.
    pub(crate) async fn issue(&self, by: &Client, role: &str, more: Value) -> Value {
        let mut body = json!({ "role": role, "project_id": self.project, "task_id": self.task, "profile": "careful" });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        by.post("/v1/agent-tokens", body).await.expect(201).json()
    }

    /// An agent on the task.
    pub(crate) async fn agent(&self, role: &str) -> Agent {
        self.agent_with(role, json!({})).await
    }

    pub(crate) async fn agent_with(&self, role: &str, more: Value) -> Agent {
        let issued = self.issue(&self.admin, role, more).await;
        self.holding(&issued).await
    }

    /// Whoever holds that token.
    pub(crate) async fn holding(&self, issued: &Value) -> Agent {
        self.at_gateway(issued["token"].as_str().unwrap()).await
    }

    pub(crate) async fn at_gateway(&self, token: &str) -> Agent {
        self.app.at_gateway().await.with_token(token).modern()
    }

    /// Installs a server for everybody and both sides, as the admin, and accepts what it offers. Gives its id.
    pub(crate) async fn install(&self, offering: &Offering, name: &str) -> String {
        self.install_with(offering, name, json!({})).await
    }

    pub(crate) async fn install_with(
        &self,
        offering: &Offering,
        name: &str,
        more: Value,
    ) -> String {
        let mut body = json!({ "name": name, "transport": { "type": "http", "url": offering.url },
            "audience": "everybody", "scope": "both", "allow_private": true });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let server = self.admin.post("/v1/tool-servers", body).await.expect(201).text("server_id");
        self.refresh(&server).await;
        self.accept(&server).await;
        server
    }

    /// Asks a server what it offers.
    pub(crate) async fn refresh(&self, server: &str) -> Value {
        let path = format!("/v1/tool-servers/{server}/refresh");
        self.admin.post(&path, json!(null)).await.expect(200).json()
    }

    /// Accepts what a server offers now.
    pub(crate) async fn accept(&self, server: &str) {
        let seen = self.server(server).await;
        let seen: BTreeMap<_, _> = seen["tools"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|tool| tool["state"] != "gone")
            .map(|tool| (tool["tool"].as_str().unwrap(), &tool["definition_digest"]))
            .collect();
        let path = format!("/v1/tool-servers/{server}/accept");
        self.admin.post(&path, json!({ "tools": seen })).await.expect(200);
    }

    pub(crate) async fn server(&self, server: &str) -> Value {
        self.admin.get(&format!("/v1/tool-servers/{server}")).await.expect(200).json()
    }

    /// Writes a rule.
    pub(crate) async fn rule(&self, name: &str, mode: &str, text: &str) {
        let body = json!({ "mode": mode, "text": text });
        self.admin.put(&format!("/v1/rules/{name}"), body).await.expect(200);
        promised().await;
    }

    /// Writes a setting that was not written before.
    pub(crate) async fn setting(&self, key: &str, value: Value) {
        let body = json!({ "value": value, "expected_version": 0 });
        self.admin.put(&format!("/v1/settings/{key}"), body).await.expect(200);
        promised().await;
    }

    /// Switches a tool.
    pub(crate) async fn set_tool(&self, name: &str, body: Value) {
        self.admin.put(&format!("/v1/tools/{name}"), body).await.expect(200);
        promised().await;
    }

    /// Everything that was recorded, oldest first.
    pub(crate) async fn records(&self) -> Vec<Value> {
        self.app.recorded().await;
        self.searched("").await
    }

    /// What a search finds, oldest first.
    pub(crate) async fn searched(&self, query: &str) -> Vec<Value> {
        let found = self.admin.get(&format!("/v1/audit?limit=1000{query}")).await.expect(200);
        let mut found = found.json()["items"].as_array().unwrap().clone();
        found.reverse();
        // What a busy machine could not decide in time was sent again.
        let stale = |record: &Value| record["reason"] == "stale_policy";
        let undecided: Vec<_> = found
            .iter()
            .filter(|record| stale(record))
            .map(|record| record["call_id"].clone())
            .collect();
        found.retain(|record| !undecided.contains(&record["call_id"]));
        found
    }

    /// Who, what and how of each record, oldest first.
    pub(crate) async fn story(&self) -> Vec<String> {
        self.records().await.iter().map(told).collect()
    }
}

/// A record in one line.
pub(crate) fn told(record: &Value) -> String {
    let word = |key: &str| record[key].as_str().unwrap_or("-").to_owned();
    ["agent_role", "tool", "phase", "decision", "reason", "outcome"].map(word).join(" ")
}

/// Waits as long as a gate may go by what it knew before: from then on every replica has to know better.
pub(crate) async fn promised() {
    let _ = tokio::time::timeout(cynode_gateway::MAX_STALENESS, std::future::pending::<()>()).await;
}

/// Starts something that goes on beside the test.
pub(crate) fn beside<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio_util::task::TaskTracker::new().spawn(work)
}
