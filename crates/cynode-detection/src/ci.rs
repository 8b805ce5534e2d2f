//! Hints from CI files: commands that the project's own pipeline runs, system packages that it installs, services that it starts.

use cynode_core::environments::{EnvironmentCheckKind, EnvironmentService};
use serde_json::Value;

use crate::draft::{ProposalDraft, plain_check};
use crate::packages::known_package;
use crate::repository::RepositoryFiles;
use crate::shell::split_segments;

/// Maximum number of commands that are taken from CI files.
const MAX_CI_COMMANDS: usize = 300;

/// Maximum number of bytes of a CI file.
const MAX_CI_FILE_BYTES: usize = 256 << 10;

/// Command of a pipeline.
struct CiCommand {
    words: Vec<String>,
    file: String,
}

/// What the pipelines of a repository say.
#[derive(Default)]
pub(crate) struct CiHints {
    commands: Vec<CiCommand>,
    /// Images of services, with the file that names them.
    services: Vec<(String, String)>,
}

/// Returns whether a path is a workflow of GitHub.
pub(crate) fn is_workflow(path: &str) -> bool {
    path.strip_prefix(".github/workflows/").is_some_and(|name| {
        !name.contains('/') && (name.ends_with(".yml") || name.ends_with(".yaml"))
    })
}

impl CiHints {
    /// Reads the CI files. One that is no YAML becomes a warning.
    pub(crate) fn read(files: &RepositoryFiles<'_>, draft: &mut ProposalDraft) -> Self {
        let mut hints = Self::default();
        let paths = files.matching(|path| is_workflow(path) || path == ".gitlab-ci.yml");
        for path in paths {
            let Some(text) = files.text(path) else { continue };
            if text.len() > MAX_CI_FILE_BYTES {
                draft.add_warning(format!("`{path}` is too large to be read."));
                continue;
            }
            match serde_saphyr::from_str::<Value>(text) {
                Ok(document) if path == ".gitlab-ci.yml" => hints.read_gitlab(&document, path),
                Ok(document) => hints.read_workflow(&document, path),
                Err(_) => draft.add_warning(format!("`{path}` cannot be read as YAML.")),
            }
        }
        hints
    }

    fn read_workflow(&mut self, document: &Value, path: &str) {
        let jobs = document.get("jobs").and_then(Value::as_object);
        for job in jobs.into_iter().flat_map(|jobs| jobs.values()) {
            let runner = job.get("runs-on").and_then(Value::as_str).unwrap_or_default();
            if runner.starts_with("windows") || runner.starts_with("macos") {
                continue;
            }
            let steps = job.get("steps").and_then(Value::as_array);
            for step in steps.into_iter().flatten() {
                let condition = step.get("if").and_then(Value::as_str).unwrap_or_default();
                let elsewhere = ["windows", "macos", "Windows", "macOS"];
                if elsewhere.into_iter().any(|system| condition.contains(system)) {
                    continue;
                }
                if let Some(run) = step.get("run").and_then(Value::as_str) {
                    self.add_commands(run, path);
                }
            }
            let services = job.get("services").and_then(Value::as_object);
            for service in services.into_iter().flat_map(|services| services.values()) {
                let image = service.get("image").unwrap_or(service);
                if let Some(image) = image.as_str() {
                    self.services.push((image.to_owned(), path.to_owned()));
                }
            }
        }
    }

    fn read_gitlab(&mut self, document: &Value, path: &str) {
        let jobs = document.as_object().into_iter().flat_map(|jobs| jobs.iter());
        for (name, job) in jobs {
            let scripts = match name.as_str() {
                "before_script" | "script" => vec![Some(job)],
                _ => vec![job.get("before_script"), job.get("script")],
            };
            for script in scripts.into_iter().flatten() {
                match script {
                    Value::String(line) => self.add_commands(line, path),
                    Value::Array(lines) => {
                        let lines = lines.iter().filter_map(Value::as_str);
                        lines.for_each(|line| self.add_commands(line, path));
                    }
                    _ => {}
                }
            }
            let services = job.get("services").and_then(Value::as_array);
            for service in services.into_iter().flatten() {
                if let Some(image) = service.get("name").unwrap_or(service).as_str() {
                    self.services.push((image.to_owned(), path.to_owned()));
                }
            }
        }
    }

    fn add_commands(&mut self, script: &str, path: &str) {
        for words in split_segments(script) {
            if self.commands.len() < MAX_CI_COMMANDS {
                self.commands.push(CiCommand { words, file: path.to_owned() });
            }
        }
    }

    /// Returns the words behind the first command that begins with these words and depends on no matrix, and the file that has it.
    pub(crate) fn arguments_of(&self, start: &[&str]) -> Option<(&[String], &str)> {
        self.commands.iter().find_map(|command| {
            let begins = command.words.len() >= start.len()
                && command.words.iter().zip(start).all(|(word, wanted)| word == wanted);
            let rest = command.words.get(start.len()..)?;
            let plain = !rest.iter().any(|word| word.contains("${{"));
            (begins && plain).then_some((rest, command.file.as_str()))
        })
    }

    /// Adds what the pipelines install and start, and their test command if there is no other.
    pub(crate) fn add_to(&self, draft: &mut ProposalDraft) {
        for command in &self.commands {
            add_packages(command, draft);
        }
        for (image, file) in &self.services {
            add_service(image, file, draft);
        }
        if draft.has_tests() {
            return;
        }
        let tests =
            [&["make", "test"][..], &["make", "check"], &["./test.sh"], &["./run-tests.sh"]];
        for start in tests {
            if let Some((rest, file)) = self.arguments_of(start) {
                let words: Vec<&str> =
                    start.iter().copied().chain(rest.iter().map(String::as_str)).collect();
                let check = plain_check(EnvironmentCheckKind::Test, words.join(" "));
                draft.add_check(check, file, "The project's pipeline runs it.");
                return;
            }
        }
    }
}

/// Adds the packages that a command of apt installs.
fn add_packages(command: &CiCommand, draft: &mut ProposalDraft) {
    let mut words = command.words.iter().map(String::as_str).filter(|word| *word != "sudo");
    let manager = words.find(|word| !word.contains('='));
    if !matches!(manager, Some("apt-get" | "apt")) {
        return;
    }
    let mut words = words.skip_while(|word| word.starts_with('-'));
    if words.next() != Some("install") {
        return;
    }
    for name in words.filter(|word| !word.starts_with('-')).take(50) {
        match known_package(name) {
            Some(package) => {
                let reason = "The project's pipeline installs it.";
                draft.add_package(package, &command.file, reason);
            }
            None => draft.add_warning(format!(
                "The pipeline in `{}` installs `{name}`. If a build or a test needs it, add it to `system_packages`.",
                command.file
            )),
        }
    }
}

/// Proposes a service for a well-known image.
fn add_service(image: &str, file: &str, draft: &mut ProposalDraft) {
    let name = image.rsplit('/').next().unwrap_or(image);
    let name = name.split([':', '@']).next().unwrap_or(name);
    let reason = "The project's pipeline starts it beside the tests.";
    let (packages, service): (&[&str], EnvironmentService) = match name {
        "postgres" => (
            &["postgresql", "postgresql-client"],
            EnvironmentService {
                name: "postgresql".to_owned(),
                command: "B=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); D=/tmp/postgresql; \
                          [ -d $D ] || $B/initdb -D $D -U postgres -A trust; \
                          exec $B/postgres -D $D -k /tmp -c listen_addresses=127.0.0.1"
                    .to_owned(),
                ready: "pg_isready -h 127.0.0.1 -U postgres".to_owned(),
                ready_seconds: None,
            },
        ),
        "redis" => (
            &["redis-server", "redis-tools"],
            EnvironmentService {
                name: "redis".to_owned(),
                command: "exec redis-server --bind 127.0.0.1 --dir /tmp --save ''".to_owned(),
                ready: "redis-cli -h 127.0.0.1 ping".to_owned(),
                ready_seconds: None,
            },
        ),
        _ => {
            draft.add_warning(format!(
                "The pipeline in `{file}` starts the service `{image}`. If tests need it, add it to `services`."
            ));
            return;
        }
    };
    draft.add_packages(packages, file, reason);
    draft.add_service(service, file, reason);
}
