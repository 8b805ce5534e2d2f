//! Installs coding agents at the user's request, and finds installed ones.
//!
//! An agent is a directory `NAME` below the node's agents directory, made by npm from the recipe's lock file: every
//! package is verified against its digest. Package scripts never run. The programs run in sandboxes only.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use cynode_core::nodes::AgentReport;
use serde_json::json;
use tokio::{process::Command, sync::mpsc, time::Instant};

use super::{
    AGENTS_DIR, AgentRecipe, AgentRecipes, SandboxRunner,
    process::{self, InstructionListener, ProgramSpec},
};
use crate::sandbox::SandboxError;

/// Marker file that names the recipe of an installed agent; written last.
const MARKER_FILE_NAME: &str = "cynode-agent.json";

/// Error of an installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// npm is missing.
    #[error(
        "npm cannot be started ({0}): install Node.js with npm on this machine, it is only needed to fetch agents"
    )]
    NoNpm(io::Error),
    /// npm failed.
    #[error("npm could not fetch {agent}: {told}")]
    Npm {
        /// Name of the agent.
        agent: String,
        /// Tail of npm's output.
        told: String,
    },
    /// The installed packages lack a program of the recipe: they do not support this machine.
    #[error("{agent} has no program for this machine: {path} is missing")]
    NoProgram {
        /// Name of the agent.
        agent: String,
        /// Path of the missing program.
        path: String,
    },
    /// A file or directory could not be written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file or directory.
        path: String,
        /// Cause of the failure.
        error: io::Error,
    },
}

/// Installs an agent into `agents`. An earlier installation is replaced when the new one is complete; sessions that use it continue.
pub async fn install_agent(recipe: &AgentRecipe, agents: &Path) -> Result<PathBuf, InstallError> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |error| InstallError::Io { path, error }
    };
    let (new, old) = (
        agents.join(format!(".{}.new", recipe.name)),
        agents.join(format!(".{}.old", recipe.name)),
    );
    remove_dir_if_exists(&new).map_err(at(&new))?;
    remove_dir_if_exists(&old).map_err(at(&old))?;
    fs::create_dir_all(&new).map_err(at(&new))?;
    let package = json!({
        "private": true,
        "dependencies": recipe.packages,
        "optionalDependencies": recipe.native,
    });
    write_text(&new.join("package.json"), &package.to_string()).map_err(at(&new))?;
    let command = match &recipe.lock {
        Some(lock) => {
            write_text(&new.join("package-lock.json"), lock).map_err(at(&new))?;
            "ci"
        }
        None => "install",
    };
    let npm = Command::new("npm")
        .args([
            command,
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-progress",
            "--loglevel=error",
        ])
        .current_dir(&new)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let done = npm.await.map_err(InstallError::NoNpm)?;
    if !done.status.success() {
        let mut told = process::TailBuffer::new(2000);
        told.push_bytes(&done.stdout);
        told.push_bytes(&done.stderr);
        return Err(InstallError::Npm { agent: recipe.name.clone(), told: told.read_text() });
    }
    let programs = program_paths(recipe, &new);
    for program in &programs {
        let missing = |_| InstallError::NoProgram {
            agent: recipe.name.clone(),
            path: program.strip_prefix(&new).unwrap_or(program).display().to_string(),
        };
        fs::metadata(program).map_err(missing)?;
    }
    // Sandboxes run as another user, who must be able to read the files.
    make_world_readable(&new).map_err(at(&new))?;
    if let Some(program) = programs.first() {
        fs::set_permissions(program, Permissions::from_mode(0o755)).map_err(at(program))?;
    }
    write_text(&new.join(MARKER_FILE_NAME), &marker_text(recipe)).map_err(at(&new))?;
    let place = agents.join(&recipe.name);
    if place.exists() {
        fs::rename(&place, &old).map_err(at(&place))?;
    }
    fs::rename(&new, &place).map_err(at(&place))?;
    remove_dir_if_exists(&old).map_err(at(&old))?;
    Ok(place)
}

/// Returns whether the agent is installed as its recipe requires.
pub fn is_installed(recipe: &AgentRecipe, agents: &Path) -> bool {
    let place = agents.join(&recipe.name);
    fs::read_to_string(place.join(MARKER_FILE_NAME)).is_ok_and(|found| found == marker_text(recipe))
        && program_paths(recipe, &place).iter().all(|program| program.is_file())
}

/// Returns the installed agents, each with the version that it prints in a sandbox.
/// An agent that prints none is left out, and the reason is returned.
pub async fn probe_agents(
    recipes: &AgentRecipes,
    agents: &Path,
    sandbox: &dyn SandboxRunner,
    until: Instant,
) -> (Vec<AgentReport>, Vec<(String, AgentProbeError)>) {
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for recipe in recipes.iter().filter(|recipe| is_installed(recipe, agents)) {
        match probe_version(recipe, agents, sandbox, until).await {
            Ok(version) => found.push(AgentReport { agent: recipe.name.clone(), version }),
            Err(error) => broken.push((recipe.name.clone(), error)),
        }
    }
    (found, broken)
}

/// Reason why the version of an agent is unknown.
#[derive(Debug, thiserror::Error)]
pub enum AgentProbeError {
    /// The sandbox failed.
    #[error("the sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    /// The agent printed no version.
    #[error("it printed no version but: {0}")]
    NoVersion(String),
}

/// Returns the version that an agent prints.
async fn probe_version(
    recipe: &AgentRecipe,
    agents: &Path,
    sandbox: &dyn SandboxRunner,
    until: Instant,
) -> Result<String, AgentProbeError> {
    let argv = recipe.version_argv();
    let binds = [super::acp::agent_bind_mount(recipe, &agents.join(&recipe.name))];
    let (events, mut told) = mpsc::channel(8);
    let (_, mut orders) = mpsc::channel(1);
    let mut ear = InstructionListener::new(&mut orders, events.clone());
    let (input, expect) = (&[][..], None);
    let program = ProgramSpec {
        argv: &argv,
        binds: &binds,
        input,
        until,
        most: 0,
        keep: 2000,
        expect,
        report: None,
    };
    let run = process::run_to_completion(sandbox, program, &events, &mut ear);
    let drain = async { while told.recv().await.is_some() {} };
    let finished = tokio::select! {
        finished = run => finished?,
        () = drain => return Err(AgentProbeError::NoVersion(String::new())),
    };
    find_version(&finished.output).ok_or(AgentProbeError::NoVersion(finished.output))
}

/// Returns the first word that looks like a version.
fn find_version(text: &str) -> Option<String> {
    let words = text.split_whitespace().map(|word| word.trim_start_matches('v'));
    let looks = |word: &&str| {
        word.starts_with(|first: char| first.is_ascii_digit())
            && word.contains('.')
            && word.len() <= 64
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte))
    };
    words.into_iter().find(looks).map(str::to_owned)
}

/// Returns the host paths of the programs that the recipe starts.
fn program_paths(recipe: &AgentRecipe, place: &Path) -> Vec<PathBuf> {
    let inside = format!("{AGENTS_DIR}/{}/", recipe.name);
    let argv = recipe.program_argv("");
    argv.iter().filter_map(|word| word.strip_prefix(&inside)).map(|word| place.join(word)).collect()
}

/// Returns the content of an agent's marker file.
fn marker_text(recipe: &AgentRecipe) -> String {
    let packages = json!({ "packages": recipe.packages, "native": recipe.native });
    json!({ "agent": recipe.name, "made_of": packages }).to_string()
}

fn write_text(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
}

fn remove_dir_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a directory tree readable by all users and writable by its owner only. Symlinks are skipped.
fn make_world_readable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            make_world_readable(&entry.path())?;
        } else if kind.is_file() {
            let runs = entry.metadata()?.permissions().mode() & 0o100 != 0;
            let mode = if runs { 0o755 } else { 0o644 };
            fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_print() {
        for (printed, version) in [
            (" 1.52.0\n", Some("1.52.0")),
            ("codex-cli 0.166.0", Some("0.166.0")),
            ("2.1.312 (Claude Code)", Some("2.1.312")),
            ("v22.23.3", Some("22.23.3")),
            ("error: no such file", None),
            ("", None),
        ] {
            assert_eq!(find_version(printed).as_deref(), version, "{printed}");
        }
    }

    #[test]
    fn an_agent_is_there_only_when_it_is_whole_and_of_the_versions_of_its_recipe() {
        let agents = tempfile::tempdir().unwrap();
        let mut recipe = AgentRecipes::built_in().unwrap().get("goose").unwrap().clone();
        assert!(!is_installed(&recipe, agents.path()));
        let place = agents.path().join("goose");
        let program = program_paths(&recipe, &place).remove(0);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, "").unwrap();
        assert!(!is_installed(&recipe, agents.path()), "nothing says that npm was done");
        fs::write(place.join(MARKER_FILE_NAME), marker_text(&recipe)).unwrap();
        assert!(is_installed(&recipe, agents.path()));
        recipe.packages.insert("@aaif/goose-binary-linux-x64".into(), "2.0.0".into());
        assert!(!is_installed(&recipe, agents.path()), "the recipe wants another version");
    }

    #[test]
    fn everybody_may_read_an_agent_and_nobody_change_it() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, file, program) = (
            folder.path().join("a"),
            folder.path().join("a/file"),
            folder.path().join("a/program"),
        );
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        fs::write(&program, "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        make_world_readable(folder.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&inner), mode(&file), mode(&program)], [0o755, 0o644, 0o755]);
    }
}
