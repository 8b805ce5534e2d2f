//! The sample of the demo and of a first task without a model: a small repository, the answers of the model, the moves of the
//! agents.

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
    client::{ApiClient, ApiRequest},
    failure::{CliError, CliErrorKind, Result},
    operations,
};

/// The files of the repository: path and content.
const REPOSITORY_FILES: [(&str, &str); 6] = [
    ("slug", include_str!("sample/repository/slug")),
    ("README.md", include_str!("sample/repository/README.md")),
    ("CLAUDE.md", include_str!("sample/repository/CLAUDE.md")),
    ("tests/cases.sh", include_str!("sample/repository/tests/cases.sh")),
    ("tests/names_test.sh", include_str!("sample/repository/tests/names_test.sh")),
    ("tests/max_test.sh", include_str!("sample/repository/tests/max_test.sh")),
];

/// The executable file.
const PROGRAM_FILE: &str = "slug";

/// The developer's first attempt: it cuts names within words.
const FIRST_ATTEMPT_SOURCE: &str = include_str!("sample/first/slug");

/// The developer's second attempt, after the finding.
const SECOND_ATTEMPT_SOURCE: &str = include_str!("sample/second/slug");

const README_SOURCE: &str = include_str!("sample/first/README.md");

const MODEL_ANSWERS_JSON: &str = include_str!("sample/answers.json");

/// The description of the task.
pub const TASK_DESCRIPTION: &str =
    "Add an option --max LENGTH to slug: no name is longer, and names are cut between words.";

/// The acceptance criterion, and its check command.
pub const ACCEPTANCE_CRITERION: (&str, [&str; 2]) =
    ("`slug --max LENGTH` does what its tests say", ["sh", "tests/max_test.sh"]);

/// The budget of the task, in millionths.
pub const BUDGET_MICROS: u64 = 500_000;

/// Simulated thinking time of an agent, so that the progress is visible.
const THINKING_MILLISECONDS: u32 = 1500;

/// One kind of question to the model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedAnswer {
    /// A pattern for the beginning of the question.
    asked: String,
    answer: Value,
}

/// Returns the script of the model, in the format of the provider.
pub fn model_script() -> Result<Value> {
    let answers: BTreeMap<String, ScriptedAnswer> = serde_json::from_str(MODEL_ANSWERS_JSON)
        .map_err(|error| {
            CliError::internal_error(format!("the sample's answers cannot be read: {error}"))
        })?;
    let rules = answers.into_values().map(|ScriptedAnswer { asked, answer }| {
        json!({ "when": { "user_matches": asked }, "answer": { "text": answer.to_string() } })
    });
    Ok(json!({ "rules": rules.collect::<Vec<_>>() }))
}

/// Returns the request that creates the task.
pub fn task_request(project: &str) -> Value {
    let (text, argv) = ACCEPTANCE_CRITERION;
    json!({
        "project_id": project,
        "name": "slug-max",
        "description": TASK_DESCRIPTION,
        "acceptance_criteria": [{ "text": text, "check": { "argv": argv } }],
        "budget": { "max_cost_micros": BUDGET_MICROS, "max_tokens": null },
    })
}

/// Returns the worker of each role, in the format of the preference.
pub fn scripted_workers() -> [(&'static str, Value); 2] {
    [("developer", developer_script()), ("reviewer", reviewer_script())]
}

/// Returns the developer's moves: first a false claim of success, then the fix.
fn developer_script() -> Value {
    let first = "Done: slug has --max, and the README says so. It works for all lengths.";
    let second = "The name was cut within words. It is cut between them now.";
    json!({
        "kind": "scripted",
        "moves": [
            say_move("I read slug and its tests."),
            wait_move(THINKING_MILLISECONDS),
            write_move(PROGRAM_FILE, FIRST_ATTEMPT_SOURCE),
            write_move("README.md", README_SOURCE),
            run_move(&["sh", "tests/names_test.sh"]),
            say_move(first),
            completion_move(first),
        ],
        "revised": [
            say_move("The checks show what is wrong: `hello-wide-` and `hello-wi`."),
            wait_move(THINKING_MILLISECONDS),
            write_move(PROGRAM_FILE, SECOND_ATTEMPT_SOURCE),
            write_move("README.md", README_SOURCE),
            run_move(&["sh", "tests/max_test.sh"]),
            say_move(second),
            completion_move(second),
        ],
    })
}

fn reviewer_script() -> Value {
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
            run_move(&["sh", "tests/names_test.sh"]),
            wait_move(THINKING_MILLISECONDS),
            say_move(said),
            { "move": "tool", "name": "pm.report", "arguments": report },
        ],
    })
}

fn say_move(text: &str) -> Value {
    json!({ "move": "say", "text": text })
}

fn wait_move(milliseconds: u32) -> Value {
    json!({ "move": "wait", "milliseconds": milliseconds })
}

fn write_move(path: &str, text: &str) -> Value {
    json!({ "move": "write", "path": path, "text": text })
}

fn run_move(argv: &[&str]) -> Value {
    json!({ "move": "run", "argv": argv })
}

fn completion_move(summary: &str) -> Value {
    let details =
        json!({ "files_modified": [PROGRAM_FILE, "README.md"], "artifacts": [], "notes": [] });
    let report = json!({ "kind": "work_completed", "summary": summary, "details": details });
    json!({ "move": "tool", "name": "pm.report", "arguments": report })
}

/// Returns the models of one project, one for each tier. They answer from a script, so no other project may use them.
fn scripted_models(slug: &str, project: &str) -> Vec<(String, Value)> {
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

/// Creates a project with the sample, a scripted model for each tier that only it may use, scripted agents, and required plan
/// approval. Idempotent.
pub async fn set_up(
    client: &ApiClient,
    repository: &SampleRepository,
    slug: &str,
) -> Result<String> {
    let body = json!({ "slug": slug, "title": slug });
    let call = ApiRequest::with_path_params(operations::CREATE_PROJECT, NO_PATH_PARAMS)
        .with_json_body(&body);
    let project: Value = client
        .send_with_retry(&call.with_idempotency_key(format!("sample-project-{slug}")))
        .await?;
    let project =
        project["id"].as_str().ok_or_else(|| CliError::internal_error("a project without id"))?;
    let provider = json!({ "kind": "scripted", "script": model_script()? });
    let call = ApiRequest::with_path_params(operations::SET_PROVIDER, ["sample"])
        .with_json_body(&provider);
    let _: Value = client.send_with_retry(&call.with_idempotency_key("sample-provider")).await?;
    for (name, model) in scripted_models(slug, project) {
        let key = format!("{name}-{project}");
        let call =
            ApiRequest::with_path_params(operations::SET_MODEL, [name]).with_json_body(&model);
        let _: Value = client.send_with_retry(&call.with_idempotency_key(key)).await?;
    }
    let call = ApiRequest::with_path_params(operations::IMPORT_REPOSITORY, [project])
        .with_file_body(repository.create_bundle()?, "application/x-git-bundle");
    let _: Value = client
        .send_with_retry(&call.with_idempotency_key(format!("sample-repository-{project}")))
        .await?;
    let mut preferences: Vec<(String, Value)> = scripted_workers()
        .into_iter()
        .map(|(role, worker)| (format!("agents.project_manager.workers.{role}"), worker))
        .collect();
    preferences.push(("workflow.approve_plan".to_owned(), json!(true)));
    for (key, value) in preferences {
        let body = json!({ "value": value, "expected_version": 0 });
        let call = ApiRequest::with_path_params(operations::SET_PREFERENCE, [&key])
            .with_query("scope_type", Some("project"))
            .with_query("scope_id", Some(project))
            .with_json_body(&body);
        let _: Value = client
            .send_with_retry(&call.with_idempotency_key(format!("sample-{project}-{key}")))
            .await?;
    }
    Ok(project.to_owned())
}

/// A path without parameters.
const NO_PATH_PARAMS: [&str; 0] = [];

fn write_error(file: &Path, error: &std::io::Error) -> CliError {
    CliError::invalid_input(format!("{} cannot be written: {error}", file.display()))
}

/// The sample repository: a working copy with one commit.
#[derive(Debug)]
pub struct SampleRepository {
    /// Path of the working copy.
    pub path: PathBuf,
}

impl SampleRepository {
    /// Writes the sample into `path` and makes its first commit, which is deterministic.
    pub fn create_at(path: PathBuf) -> Result<Self> {
        for (name, text) in REPOSITORY_FILES {
            let file = path.join(name);
            let written = file.parent().map_or(Ok(()), fs::create_dir_all);
            let written = written.and_then(|()| fs::write(&file, text));
            written.map_err(|error| write_error(&file, &error))?;
        }
        fs::set_permissions(path.join(PROGRAM_FILE), fs::Permissions::from_mode(0o755))
            .map_err(|error| write_error(&path, &error))?;
        let repository = Self { path };
        repository.run_git(&["init", "--quiet", "--initial-branch=main"])?;
        repository.run_git(&["add", "--all"])?;
        repository.run_git(&["commit", "--quiet", "--message=Titles as names of files"])?;
        Ok(repository)
    }

    /// Returns a bundle of the repository.
    pub fn create_bundle(&self) -> Result<Vec<u8>> {
        self.run_git(&["bundle", "create", "--quiet", ".git/demo.bundle", "main"])?;
        let file = self.path.join(".git/demo.bundle");
        let bundle = fs::read(&file).and_then(|bundle| fs::remove_file(&file).map(|()| bundle));
        bundle.map_err(|error| write_error(&file, &error))
    }

    /// Updates the working copy to the merged state.
    pub fn pull_from(&self, from: &Path) -> Result<()> {
        let from = from.to_string_lossy();
        self.run_git(&["pull", "--quiet", "--ff-only", &from, "main"])?;
        Ok(())
    }

    /// Runs git with a neutral identity and without the user's settings.
    pub fn run_git(&self, arguments: &[&str]) -> Result<String> {
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
                CliError::internal_error(format!("git cannot be run: {error}"))
                    .with_fix("`apt-get install -y git`")
            })?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let what = format!("git {}: {}", arguments.join(" "), said.trim());
            return Err(CliError::new(CliErrorKind::Failed, what));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests;
