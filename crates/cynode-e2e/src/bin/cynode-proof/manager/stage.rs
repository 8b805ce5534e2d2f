//! The installation on which the example runs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use cynode_e2e::{
    faults::TcpProxy,
    nodes::{Machine, NodeSetup},
    world::{ManagerSetup, World},
};
use cynode_testkit::pause;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Manager;
use crate::nodes::scene::{enlist, final_state, git};

/// Lease time of a runner in seconds.
const LEASE: u32 = 3;

/// Seconds without a sign of life after which a handoff is reassigned.
const SILENCE: u32 = 2;

/// The description of the task.
pub(super) const WORDS: &str = "Add dark mode toggle to settings page";

/// The recording of the model, in the sample and in the installation.
const CASSETTE: &str = "cassette";

/// The preference that chooses the worker of each kind.
const WORKERS: &str = "agents.project_manager.workers";

/// Questions to the model and its answers, by kind, and the script of each kind of worker.
pub(super) struct Sample {
    pub(super) answers: BTreeMap<String, SampleAnswer>,
    pub(super) workers: BTreeMap<String, Value>,
    /// The project's instructions for agents.
    pub(super) words: String,
}

/// One kind of question.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SampleAnswer {
    /// A pattern for its beginning.
    asked: String,
    pub(super) answer: Value,
}

impl Sample {
    fn read(directory: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        Self {
            answers: serde_json::from_str(&text("answers.json")).unwrap(),
            workers: serde_json::from_str(&text("workers.json")).unwrap(),
            words: text("repository/CLAUDE.md"),
        }
    }

    /// Returns the script from which the recording is made. It has no answer to any other question.
    fn script(&self) -> Value {
        let rules = self.answers.values().map(|SampleAnswer { asked, answer }| {
            json!({ "when": { "user_matches": asked }, "answer": { "text": answer.to_string() } })
        });
        json!({ "rules": rules.collect::<Vec<_>>() })
    }
}

/// Returns the sample repository as a bundle.
pub(super) fn bundle(from: &Path) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("repository");
    let copied = Command::new("cp").arg("--recursive").arg(from).arg(&to).status().unwrap();
    assert!(copied.success(), "{} cannot be copied", from.display());
    let run = |arguments: &[&str]| git(&to, arguments).unwrap();
    run(&["init", "--quiet", "--initial-branch=main"]);
    run(&["add", "--all"]);
    run(&["commit", "--quiet", "--message=A shop"]);
    run(&["bundle", "create", "--quiet", "../repository.bundle", "main"]);
    fs::read(place.path().join("repository.bundle")).unwrap()
}

/// An installation with a project manager, an analyst and a node.
pub(super) struct Stage {
    // Dropped before the world.
    #[expect(dead_code, reason = "it runs as long as it is there")]
    machine: Machine,
    #[expect(dead_code, reason = "connections through it end when it goes")]
    way: TcpProxy,
    pub(super) world: World,
    pub(super) sample: Sample,
}

impl Stage {
    pub(super) async fn new(manager: &Manager) -> Self {
        let mut setup = manager.places.setup(LEASE, true);
        setup.programs.runner = vec![manager.runner.clone().into()];
        setup.scripts = None;
        setup.manager = Some(ManagerSetup {
            program: manager.pma.clone(),
            instructions: fs::canonicalize(&manager.instructions).unwrap(),
            lease_seconds: SILENCE,
        });
        let mut world = World::start(setup).await;
        if manager.keep {
            world.keep();
            println!("kept unless all is well: {}", world.logs().display());
        }
        let sample = Sample::read(&manager.sample);
        let tape = manager.sample.join(CASSETTE);
        let source = match (manager.record, tape.exists()) {
            (true, _) => Source::Recorder,
            (false, true) => Source::Recording,
            (false, false) => Source::Script,
        };
        println!("answers of the model: {source:?}");
        if source == Source::Recording {
            copied(&tape, &tapes(&world).join(CASSETTE));
        }
        set_up(&world, &sample, source).await;
        // The model is asked the same in every run: what one leaves is not told to the next.
        let auto = json!({ "value": false, "expected_version": 0 });
        world.put("/v1/settings/memory.auto", &auto).await;
        world.bring(&world.project, bundle(&manager.sample.join("repository"))).await;
        let machine = Machine::new(NodeSetup {
            program: manager.node.clone(),
            name: "node".to_owned(),
            tag: manager.tag.clone(),
            directory: world.logs().join("nodes"),
            disk_mib: None,
            flags: Vec::new(),
        });
        let host = machine.cable.host;
        let way = TcpProxy::start_at(world.tasks(), host, world.internal_direct()).await;
        enlist(&world, &machine, &format!("http://{}", way.address)).await;
        Self { machine, way, world, sample }
    }

    /// Creates the task of the example. Returns its id.
    pub(super) async fn begin(&self) -> String {
        // The model is given the name of the task, and names are unique: every run is the first of its name.
        let renamed = "UPDATE tasks SET name = 'earlier-' || replace(task_id::text, '-', '')";
        sqlx::query(renamed).execute(&self.world.pool).await.unwrap();
        let body = json!({ "project_id": self.world.project, "description": WORDS });
        self.world.post("/v1/tasks", body).await["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a task has ended, and restarts processes that have exited meanwhile. Returns whether the task ended.
    pub(super) async fn ends(&self, task: &str, timeout: Duration) -> bool {
        let begun = Instant::now();
        while final_state(&self.world.pool, task).await.is_none() {
            if begun.elapsed() > timeout {
                return false;
            }
            for victim in self.world.processes.there() {
                self.world.processes.revive(victim);
            }
            pause(Duration::from_millis(10)).await;
        }
        true
    }

    /// Replaces the sample's recording by the new one. Returns its number of answers.
    pub(super) fn recorded(&self, sample: &Path) -> usize {
        let (made, place) = (tapes(&self.world).join(CASSETTE), sample.join(CASSETTE));
        if place.exists() {
            fs::remove_dir_all(&place).unwrap();
        }
        copied(&made, &place);
        fs::read_dir(&place).unwrap().count()
    }

    /// Reads a list, which must fit on one page.
    pub(super) async fn list(&self, path: &str) -> Vec<Value> {
        let mut page = self.world.get(path).await;
        assert!(page["next_cursor"].is_null(), "{path} has more than one page");
        match page["items"].take() {
            Value::Array(items) => items,
            other => panic!("{path}: {other}"),
        }
    }
}

/// Returns the directory of an installation's recordings.
fn tapes(world: &World) -> PathBuf {
    world.logs().join("storage/cassettes")
}

/// Copies the files of a directory.
fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Source of the model's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The script of the sample.
    Script,
    /// The same, recorded.
    Recorder,
    /// The recording.
    Recording,
}

/// Creates a model of each tier, and the workers of the project.
async fn set_up(world: &World, sample: &Sample, source: Source) {
    let script = json!({ "kind": "scripted", "script": sample.script() });
    let provider = match source {
        Source::Script => script,
        Source::Recorder => {
            world.put("/v1/providers/script", &script).await;
            json!({ "kind": "record", "recorded_provider": "script", "cassette": CASSETTE })
        }
        Source::Recording => json!({ "kind": "replay", "cassette": CASSETTE }),
    };
    world.put("/v1/providers/sample", &provider).await;
    let prices = json!({ "input": 1000, "cached": 100, "cache_write": 1000, "output": 2000 });
    for tier in ["fast", "standard", "deep"] {
        let model = json!({
            "context_tokens": 200_000, "max_output_tokens": 16_000, "tools": true, "json_schema": true, "tier": tier,
            "routes": [{ "provider": "sample", "upstream": "scripted", "prices": prices }],
        });
        world.put(&format!("/v1/model-registry/sample-{tier}"), &model).await;
    }
    for (kind, worker) in &sample.workers {
        let scope = format!("scope_type=project&scope_id={}", world.project);
        let body = json!({ "value": worker, "expected_version": 0 });
        world.put(&format!("/v1/preferences/{WORKERS}.{kind}?{scope}"), &body).await;
    }
}
