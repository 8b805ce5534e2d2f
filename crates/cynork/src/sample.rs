//! What the demonstration is played with, and whoever wants to try a first task without a model: a small repository, what the model answers, what the agents do.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    client::{Call, Client},
    failure::{Failure, Kind, Result},
    operations,
};

/// The repository: where each file is, what it says.
const FILES: [(&str, &str); 6] = [
    ("slug", include_str!("sample/repository/slug")),
    ("README.md", include_str!("sample/repository/README.md")),
    ("CLAUDE.md", include_str!("sample/repository/CLAUDE.md")),
    ("tests/cases.sh", include_str!("sample/repository/tests/cases.sh")),
    ("tests/names_test.sh", include_str!("sample/repository/tests/names_test.sh")),
    ("tests/max_test.sh", include_str!("sample/repository/tests/max_test.sh")),
];

/// The file that can be run.
const PROGRAM: &str = "slug";

/// What the developer writes at first: it cuts names within words.
const FIRST: &str = include_str!("sample/first/slug");

/// What the developer writes when told so.
const SECOND: &str = include_str!("sample/second/slug");

const README: &str = include_str!("sample/first/README.md");

const ANSWERS: &str = include_str!("sample/answers.json");

/// What is asked for.
pub const WORDS: &str =
    "Add an option --max LENGTH to slug: no name is longer, and names are cut between words.";

/// What must be shown for it to be done, and by what command.
pub const CRITERION: (&str, [&str; 2]) =
    ("`slug --max LENGTH` does what its tests say", ["sh", "tests/max_test.sh"]);

/// The most that it may cost, in millionths.
pub const CAP_MICROS: u64 = 500_000;

/// How long an agent takes to think before it writes, so that there is something to watch.
const THINKING: u32 = 1500;

/// One kind of question to the model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered {
    /// How the question begins, as a pattern.
    asked: String,
    answer: Value,
}

/// The script of the model, as the provider takes it.
pub fn script() -> Result<Value> {
    let answers: BTreeMap<String, Answered> = serde_json::from_str(ANSWERS).map_err(|error| {
        Failure::internal(format!("the sample's answers cannot be read: {error}"))
    })?;
    let rules = answers.into_values().map(|Answered { asked, answer }| {
        json!({ "when": { "user_matches": asked }, "answer": { "text": answer.to_string() } })
    });
    Ok(json!({ "rules": rules.collect::<Vec<_>>() }))
}

/// The task, as it is asked for.
pub fn task(project: &str) -> Value {
    let (text, argv) = CRITERION;
    json!({
        "project_id": project,
        "name": "slug-max",
        "description": WORDS,
        "acceptance_criteria": [{ "text": text, "check": { "argv": argv } }],
        "budget": { "max_cost_micros": CAP_MICROS, "max_tokens": null },
    })
}

/// Who plays which role, as preferences name them.
pub fn workers() -> [(&'static str, Value); 2] {
    [("developer", developer()), ("reviewer", reviewer())]
}

/// Says first that it is done and is not; then mends it.
fn developer() -> Value {
    let first = "Done: slug has --max, and the README says so. It works for all lengths.";
    let second = "The name was cut within words. It is cut between them now.";
    json!({
        "kind": "scripted",
        "moves": [
            say("I read slug and its tests."),
            wait(THINKING),
            write(PROGRAM, FIRST),
            write("README.md", README),
            run(&["sh", "tests/names_test.sh"]),
            say(first),
            completed(first),
        ],
        "revised": [
            say("The checks show what is wrong: `hello-wide-` and `hello-wi`."),
            wait(THINKING),
            write(PROGRAM, SECOND),
            write("README.md", README),
            run(&["sh", "tests/max_test.sh"]),
            say(second),
            completed(second),
        ],
    })
}

fn reviewer() -> Value {
    let said = "Cuts between words, one place, described.";
    let minor = json!({
        "description": "A LENGTH that is no number ends with the shell's own words",
        "file_location": "slug:6",
        "how_to_fix": "say what is expected",
    });
    let details = json!({ "critical_issues": [], "major_issues": [], "minor_issues": [minor], "summary": said });
    let report = json!({ "kind": "review_approved", "summary": said, "details": details });
    json!({
        "kind": "scripted",
        "moves": [
            run(&["sh", "tests/names_test.sh"]),
            wait(THINKING),
            say(said),
            { "move": "tool", "name": "pm.report", "arguments": report },
        ],
    })
}

fn say(text: &str) -> Value {
    json!({ "move": "say", "text": text })
}

fn wait(milliseconds: u32) -> Value {
    json!({ "move": "wait", "milliseconds": milliseconds })
}

fn write(path: &str, text: &str) -> Value {
    json!({ "move": "write", "path": path, "text": text })
}

fn run(argv: &[&str]) -> Value {
    json!({ "move": "run", "argv": argv })
}

fn completed(summary: &str) -> Value {
    let details = json!({ "files_modified": [PROGRAM, "README.md"], "artifacts": [], "notes": [] });
    let report = json!({ "kind": "work_completed", "summary": summary, "details": details });
    json!({ "move": "tool", "name": "pm.report", "arguments": report })
}

/// The models of one project, one for each tier. They play a script, so no other project may ask them.
fn models(slug: &str, project: &str) -> Vec<(String, Value)> {
    let prices = json!({ "input": 1_000_000, "cached": 100_000, "cache_write": 1_000_000, "output": 4_000_000 });
    let model = |tier: &str| {
        let model = json!({
            "context_tokens": 200_000, "max_output_tokens": 4_000, "tools": true, "json_schema": true, "tier": tier,
            "project_id": project,
            "routes": [{ "provider": "sample", "upstream": "scripted", "prices": prices }],
        });
        (format!("sample-{slug}-{tier}"), model)
    };
    ["fast", "standard", "deep"].map(model).into()
}

/// A project with the sample, a scripted model for each tier that only it may ask, agents that play their moves, a person
/// who is asked. Done again, it is done once.
pub async fn set_up(client: &Client, repository: &Repository, slug: &str) -> Result<String> {
    let body = json!({ "slug": slug, "title": slug });
    let call = Call::to(operations::CREATE_PROJECT, NONE).body(&body);
    let project: Value = client.until_taken(&call.key(format!("sample-project-{slug}"))).await?;
    let project =
        project["id"].as_str().ok_or_else(|| Failure::internal("a project without id"))?;
    let provider = json!({ "kind": "scripted", "script": script()? });
    let call = Call::to(operations::SET_PROVIDER, ["sample"]).body(&provider);
    let _: Value = client.until_taken(&call.key("sample-provider")).await?;
    for (name, model) in models(slug, project) {
        let key = format!("{name}-{project}");
        let call = Call::to(operations::SET_MODEL, [name]).body(&model);
        let _: Value = client.until_taken(&call.key(key)).await?;
    }
    let call = Call::to(operations::IMPORT_REPOSITORY, [project])
        .file(repository.bundle()?, "application/x-git-bundle");
    let _: Value = client.until_taken(&call.key(format!("sample-repository-{project}"))).await?;
    let mut preferences: Vec<(String, Value)> = workers()
        .into_iter()
        .map(|(role, worker)| (format!("agents.project_manager.workers.{role}"), worker))
        .collect();
    preferences.push(("workflow.approve_plan".to_owned(), json!(true)));
    for (key, value) in preferences {
        let body = json!({ "value": value, "expected_version": 0 });
        let call = Call::to(operations::SET_PREFERENCE, [&key])
            .query("scope_type", Some("project"))
            .query("scope_id", Some(project))
            .body(&body);
        let _: Value = client.until_taken(&call.key(format!("sample-{project}-{key}"))).await?;
    }
    Ok(project.to_owned())
}

/// No places in a path.
const NONE: [&str; 0] = [];

fn unwritten(file: &Path, error: &std::io::Error) -> Failure {
    Failure::invalid(format!("{} cannot be written: {error}", file.display()))
}

/// The repository of the person who tries it: a working copy with one commit.
#[derive(Debug)]
pub struct Repository {
    /// Where it is.
    pub path: PathBuf,
}

impl Repository {
    /// Writes the sample into `path` and makes its first commit: always the same one.
    pub fn create(path: PathBuf) -> Result<Self> {
        for (name, text) in FILES {
            let file = path.join(name);
            let written = file.parent().map_or(Ok(()), fs::create_dir_all);
            let written = written.and_then(|()| fs::write(&file, text));
            written.map_err(|error| unwritten(&file, &error))?;
        }
        fs::set_permissions(path.join(PROGRAM), fs::Permissions::from_mode(0o755))
            .map_err(|error| unwritten(&path, &error))?;
        let repository = Self { path };
        repository.git(&["init", "--quiet", "--initial-branch=main"])?;
        repository.git(&["add", "--all"])?;
        repository.git(&["commit", "--quiet", "--message=Titles as names of files"])?;
        Ok(repository)
    }

    /// All of it, to be sent.
    pub fn bundle(&self) -> Result<Vec<u8>> {
        self.git(&["bundle", "create", "--quiet", ".git/demo.bundle", "main"])?;
        let file = self.path.join(".git/demo.bundle");
        let bundle = fs::read(&file).and_then(|bundle| fs::remove_file(&file).map(|()| bundle));
        bundle.map_err(|error| unwritten(&file, &error))
    }

    /// Brings the working copy up to what was merged.
    pub fn pull(&self, from: &Path) -> Result<()> {
        let from = from.to_string_lossy();
        self.git(&["pull", "--quiet", "--ff-only", &from, "main"])?;
        Ok(())
    }

    /// Runs git as nobody in particular and without the settings of whoever runs this.
    pub fn git(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("git")
            .args(["-c", "user.name=CyNode demo", "-c", "user.email=demo@localhost"])
            .args(["-c", "commit.gpgsign=false", "-c", "safe.directory=*"])
            .args(arguments)
            .current_dir(&self.path)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z")
            .env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
            .output()
            .map_err(|error| {
                Failure::internal(format!("git cannot be run: {error}"))
                    .fix("`apt-get install -y git`")
            })?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let what = format!("git {}: {}", arguments.join(" "), said.trim());
            return Err(Failure::new(Kind::EndedBadly, what));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests;
