//! A whole installation for proofs of the workflow: every process is real, a scripted model answers, one node runs jobs. Needs
//! root.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use cynode_core::ids::TaskId;
use cynode_e2e::{
    faults::TcpProxy,
    nodes::{Machine, NodeSetup},
    world::{ManagerSetup, World},
};
use cynode_testkit::pause;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    Places,
    nodes::scene::{enlist, git},
};

/// Lease time of a runner in seconds.
const LEASE: u32 = 10;

/// The preference that chooses the worker of each kind.
pub(crate) const WORKERS: &str = "agents.project_manager.workers";

/// The scripted provider.
pub(crate) const SCRIPTED: &str = "sample";

/// What it is made of.
#[derive(Args)]
pub(crate) struct Parts {
    #[command(flatten)]
    places: Places,
    /// `cynode-node`.
    #[arg(long)]
    node: PathBuf,
    /// `cynode-runner`.
    #[arg(long)]
    runner: PathBuf,
    /// `cynode-pma`.
    #[arg(long)]
    pma: PathBuf,
    /// The instructions of the project manager and the analyst.
    #[arg(long)]
    instructions: PathBuf,
    /// What the namespace that is made is called; whoever starts this can so find and remove it.
    #[arg(long)]
    tag: String,
    /// Keeps the world's directory when something is wrong.
    #[arg(long)]
    keep: bool,
}

/// A pattern for one kind of question, and the answer.
pub(crate) type ScriptedAnswer = (&'static str, Value);

/// The installation.
pub(crate) struct Whole {
    // Dropped before the world.
    #[expect(dead_code, reason = "it runs as long as it is there")]
    machine: Machine,
    #[expect(dead_code, reason = "connections through it end when it goes")]
    way: TcpProxy,
    pub(crate) world: World,
}

impl Whole {
    /// Starts it, with this number of job slots on the node.
    pub(crate) async fn start(parts: &Parts, answers: &[ScriptedAnswer], slots: u16) -> Self {
        Self::start_with(parts, answers, slots, |_| ()).await
    }

    /// Starts it, and prepares the machine before it joins as a node.
    pub(crate) async fn start_with(
        parts: &Parts,
        answers: &[(impl AsRef<str>, Value)],
        slots: u16,
        prepare: impl FnOnce(&Machine),
    ) -> Self {
        let mut setup = parts.places.setup(LEASE, false);
        setup.programs.runner = vec![parts.runner.clone().into()];
        setup.scripts = None;
        setup.manager = Some(ManagerSetup {
            program: parts.pma.clone(),
            instructions: fs::canonicalize(&parts.instructions).unwrap(),
            lease_seconds: LEASE,
        });
        let mut world = World::start(setup).await;
        if parts.keep {
            world.keep();
            println!("kept unless all is well: {}", world.logs().display());
        }
        model(&world, answers).await;
        let machine = Machine::new(NodeSetup {
            program: parts.node.clone(),
            name: "node".to_owned(),
            tag: parts.tag.clone(),
            directory: world.logs().join("nodes"),
            disk_mib: None,
            flags: vec!["--slots".to_owned(), slots.to_string()],
        });
        prepare(&machine);
        let host = machine.cable.host;
        let way = TcpProxy::start_at(world.tasks(), host, world.internal_direct()).await;
        enlist(&world, &machine, &format!("http://{}", way.address)).await;
        Self { machine, way, world }
    }

    /// Creates another project with a repository and preferences. Returns its id.
    pub(crate) async fn project(&self, bundle: &[u8], preferences: &[(String, Value)]) -> String {
        let project = self.world.project().await;
        self.world.bring(&project, bundle.to_vec()).await;
        for (key, value) in preferences {
            let body = json!({ "value": value, "expected_version": 0 });
            let scope = format!("scope_type=project&scope_id={project}");
            self.world.put(&format!("/v1/preferences/{key}?{scope}"), &body).await;
        }
        project
    }

    /// Creates a task. Returns its id.
    pub(crate) async fn task(&self, project: &str, words: &str, criteria: Value) -> String {
        let body =
            json!({ "project_id": project, "description": words, "acceptance_criteria": criteria });
        self.world.post("/v1/tasks", body).await["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a task has ended, a person is asked, or it is paused. Returns its state and the question; `None` on timeout.
    pub(crate) async fn stands_still(&self, task: &str, timeout: Duration) -> Option<SettledTask> {
        let query = "SELECT t.state, r.ended_at IS NOT NULL,
                (SELECT CASE reason WHEN 'paused' THEN reason ELSE coalesce(question, reason) END FROM waits w WHERE w.task_id = t.task_id AND w.resolved_at IS NULL AND w.owner = 'person')
            FROM tasks t JOIN workflow_runs r USING (task_id) WHERE t.task_id = $1";
        let begun = std::time::Instant::now();
        while begun.elapsed() < timeout {
            let row = sqlx::query_as::<_, (String, bool, Option<String>)>(query)
                .bind(raw(task))
                .fetch_optional(&self.world.pool)
                .await;
            // A busy machine may exceed the pool's timeout.
            if let Ok(Some((state, ended, question))) = row
                && (ended || question.is_some())
            {
                return Some(SettledTask { state, question });
            }
            pause(Duration::from_millis(100)).await;
        }
        None
    }
}

/// A task that does not continue by itself.
pub(crate) struct SettledTask {
    pub(crate) state: String,
    pub(crate) question: Option<String>,
}

pub(crate) fn raw(task: &str) -> Uuid {
    task.parse::<TaskId>().unwrap().as_uuid()
}

/// Creates a model of each tier that answers by the script. It has no answer to any other question.
async fn model(world: &World, answers: &[(impl AsRef<str>, Value)]) {
    let rules = answers.iter().map(|(asked, answer)| {
        let asked = asked.as_ref();
        json!({ "when": { "user_matches": asked }, "answer": { "text": answer.to_string() } })
    });
    let script = json!({ "rules": rules.collect::<Vec<_>>() });
    // A project that is restricted to other providers never gets an answer of the script.
    let provider = json!({ "kind": "scripted", "script": script, "local": false });
    world.put(&format!("/v1/providers/{SCRIPTED}"), &provider).await;
    let prices = json!({ "input": 1, "cached": 1, "cache_write": 1, "output": 1 });
    for tier in ["fast", "standard", "deep"] {
        let model = json!({
            "context_tokens": 200_000, "max_output_tokens": 16_000, "tools": true, "json_schema": true, "tier": tier,
            "routes": [{ "provider": SCRIPTED, "upstream": "scripted", "prices": prices }],
        });
        world.put(&format!("/v1/model-registry/sample-{tier}"), &model).await;
    }
}

/// The project's description of itself, so that no agent has to discover it.
const OWN_WORDS: &str = "# A project\n\n## Architecture\n\nA few files, each with one task.\n\n## Key paths\n\n- `tests/`: what shows that it works\n\n\
    ## Patterns\n\n- **Files**: short\n";

/// Returns a folder as a bundle of a repository with one commit.
pub(crate) fn bundle_of(folder: &Path) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| git(place.path(), arguments).unwrap();
    run(&["init", "--quiet", "--initial-branch=main"]);
    let tree = format!("--work-tree={}", fs::canonicalize(folder).unwrap().display());
    run(&[&tree, "add", "--all"]);
    run(&[&tree, "commit", "--quiet", "--message=Something"]);
    bundled(place.path())
}

/// Returns a repository as a bundle: one commit for each list of files.
pub(crate) fn bundle(commits: &[&[(&str, &str)]]) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("CLAUDE.md"), OWN_WORDS).unwrap();
    let run = |arguments: &[&str]| git(place.path(), arguments).unwrap();
    run(&["init", "--quiet", "--initial-branch=main"]);
    for files in commits {
        for (path, text) in *files {
            let file = place.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        run(&["add", "--all"]);
        run(&["commit", "--quiet", "--message=Something"]);
    }
    bundled(place.path())
}

fn bundled(repository: &Path) -> Vec<u8> {
    let to = tempfile::tempdir().unwrap();
    let file = to.path().join("repository.bundle");
    git(repository, &["bundle", "create", "--quiet", file.to_str().unwrap(), "main"]).unwrap();
    fs::read(file).unwrap()
}
