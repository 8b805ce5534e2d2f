//! Verifies a backup by restoring it: a copy that was never restored is only a hope.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use cynode_app::{
    App, AppEnvironment, LifetimePolicy,
    tools::audit::{self, VerificationScope},
};
use cynode_core::{ids::ProjectId, releases::Release};
use cynode_db::{
    Conn,
    platform::backup::{self, FencedCounts, ProjectCommits},
};
use data_encoding::HEXLOWER;

use super::{
    encryption::DecryptionArgs,
    manifest::{BackupManifest, BackupVerification, public_keys_of},
    restore::{RestorePlan, RestoredInstallation, recover_installation},
};
use crate::{config::CynodeConfig, installation, master_key, restate};

/// Restores a backup into an empty scratch directory, compares it with its manifest, and removes it again. The result is stored beside the
/// backup.
pub(crate) async fn verify_backup(
    path: &Path,
    scratch: &Path,
    opening: &DecryptionArgs,
    public_key: Option<&str>,
    config: &CynodeConfig,
) -> anyhow::Result<(BackupManifest, BackupVerification)> {
    let manifest = BackupManifest::load(path)?;
    manifest.ensure_origin(public_key)?;
    // A key that does not open it says nothing about the backup, whose last verification stays.
    opening.open_key(path)?;
    // Two verifications at once would remove each other's files and call a good backup broken.
    let _lock = installation::lock_directory(scratch)?;
    // The path of PostgreSQL's socket has a limit, so that the name is short.
    let name = manifest.backup_id.simple().to_string();
    let data_dir = scratch.join(name.get(24..).unwrap_or(&name));
    if data_dir.exists() {
        fs::remove_dir_all(&data_dir)?;
    }
    let plan = RestorePlan {
        backup: path.to_owned(),
        data_dir: data_dir.clone(),
        opening,
        public_key,
        wal_archive: None,
        until: None,
    };
    let problems = match recover_installation(&plan).await {
        Ok(restored) => {
            let problems = find_problems(&restored, &data_dir, config).await;
            let stopped = restored.stop().await;
            problems.and_then(|problems| stopped.map(|_| problems))
        }
        Err(error) => Ok(vec![format!("it cannot be restored: {error:#}")]),
    };
    let removed = fs::remove_dir_all(&data_dir);
    let verification = BackupVerification {
        verified_at: AppEnvironment::from_system().now(),
        program_version: Release::CURRENT.to_string(),
        problems: problems?,
    };
    removed.with_context(|| format!("{} could not be removed", data_dir.display()))?;
    verification.store(path)?;
    Ok((manifest, verification))
}

/// Compares a restored installation with its manifest. Returns what differs.
async fn find_problems(
    restored: &RestoredInstallation,
    data_dir: &Path,
    config: &CynodeConfig,
) -> anyhow::Result<Vec<String>> {
    let pool = cynode_db::connect_pool(&restored.owner_options())?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    let storage = data_dir.join("storage");
    let counts = backup::count_fenced_rows(&mut conn).await?;
    let mut problems = compare_counts(&restored.manifest.counts, &counts);
    problems.extend(find_missing_artifacts(&mut conn, &storage).await?);
    for project in backup::list_project_commits(&mut conn).await? {
        problems.extend(check_repository(&storage, &project)?);
    }
    drop(conn);
    let app = App::new(pool, AppEnvironment::from_system(), LifetimePolicy::default());
    let keys = master_key::load_restored_keys(config, &storage, &app).await?;
    if !restored.manifest.is_signed_by(&public_keys_of(&keys)) {
        problems.push("the master key is not that of the installation that signed".to_owned());
    }
    // Records that had no signed head yet when the backup was taken get none in it.
    let as_of = Some(restored.manifest.taken_at);
    let scope = VerificationScope { as_of, ..VerificationScope::default() };
    let report = audit::verify_audit_log_within(&app, &keys.public_keys(), &scope).await?;
    problems.extend(report.problems.into_iter().map(|problem| format!("audit log: {problem}")));
    Ok(problems)
}

fn compare_counts(expected: &FencedCounts, restored: &FencedCounts) -> Vec<String> {
    let numbers = |counts: &FencedCounts| {
        [
            ("tasks", counts.tasks),
            ("jobs", counts.jobs),
            ("artifacts", counts.artifacts),
            ("repositories", counts.repositories),
            ("pull requests", counts.pull_requests),
            ("deliveries", counts.deliveries),
            ("audit chains", counts.audit_chains),
            ("audit records", counts.audit_records),
        ]
    };
    let mut problems: Vec<String> = numbers(expected)
        .into_iter()
        .zip(numbers(restored))
        .filter(|((_, expected), (_, restored))| expected != restored)
        .map(|((name, expected), (_, restored))| {
            format!("{restored} {name} were restored, and {expected} were backed up")
        })
        .collect();
    if expected.audit_head != restored.audit_head {
        problems.push("the newest audit chain is another one than was backed up".to_owned());
    }
    problems
}

/// Looks for the bytes of every artifact. Their content was compared with the index when it was restored.
async fn find_missing_artifacts(conn: &mut Conn, storage: &Path) -> anyhow::Result<Option<String>> {
    let digests = backup::list_artifact_digests(conn).await?;
    let total = digests.len();
    let missing = digests.into_iter().filter(|digest| {
        let name = HEXLOWER.encode(digest);
        let folder = name.get(..2).unwrap_or_default();
        !storage.join("artifacts/sha256").join(folder).join(&name).is_file()
    });
    Ok(match missing.count() {
        0 => None,
        count => Some(format!("the bytes of {count} of {total} artifacts are missing")),
    })
}

/// Checks that a repository has the commits that rows name, and all objects that its refs lead to.
fn check_repository(storage: &Path, project: &ProjectCommits) -> anyhow::Result<Vec<String>> {
    let name = format!("{}.git", ProjectId::from_uuid(project.project));
    let repository = storage.join("repositories").join(&name);
    if !repository.is_dir() {
        return Ok(vec![format!("the repository {name} is missing")]);
    }
    let mut problems = Vec::new();
    let missing = find_missing_commits(&repository, &project.commits)?;
    if !missing.is_empty() {
        let count = missing.len();
        problems.push(format!("the repository {name} lacks {count} commits that rows name"));
    }
    let checked = git_command(&repository)
        .args(["fsck", "--connectivity-only", "--no-dangling", "--no-progress"])
        .stdin(Stdio::null())
        .output()
        .context("git could not be started")?;
    if !checked.status.success() {
        let said = String::from_utf8_lossy(&checked.stderr);
        let first = said.lines().next().unwrap_or_default();
        problems.push(format!("the repository {name} is not whole: {first}"));
    }
    Ok(problems)
}

fn find_missing_commits(repository: &Path, commits: &[String]) -> anyhow::Result<Vec<String>> {
    let wanted: BTreeSet<&String> = commits.iter().collect();
    let list: String = wanted.iter().map(|commit| format!("{commit}^{{commit}}\n")).collect();
    let mut child = git_command(repository)
        .args(["cat-file", "--batch-check"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("git could not be started")?;
    let mut input = child.stdin.take().context("git has no input")?;
    // Another thread writes: git answers before it has read everything.
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = input.write_all(list.as_bytes());
        });
        child.wait_with_output()
    })?;
    ensure!(output.status.success(), "git cat-file ended with {}", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    let lines = said.lines().filter(|line| line.ends_with(" missing"));
    Ok(lines.map(str::to_owned).collect())
}

/// Returns a git command that ignores all configuration of the machine.
fn git_command(repository: &Path) -> Command {
    let mut command = Command::new("git");
    let path = std::env::join_paths(crate::config::search_path()).unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("HOME", "/nonexistent")
        .args(["-c", "safe.directory=*", "--git-dir"])
        .arg(repository);
    command
}

/// Makes the directory in which backups are verified.
pub(crate) fn create_verification_dir(place: &Path) -> anyhow::Result<PathBuf> {
    // PostgreSQL has a user of its own if we are root: it must be able to enter.
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt as _;
        fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
        fs::set_permissions(place, fs::Permissions::from_mode(0o711))?;
    } else {
        restate::create_private_dir(place)?;
    }
    Ok(place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_both_numbers() {
        let expected = FencedCounts {
            tasks: 3,
            jobs: 2,
            artifacts: 1,
            repositories: 1,
            pull_requests: 1,
            deliveries: 1,
            audit_chains: 1,
            audit_records: 10,
            audit_head: "aa".to_owned(),
        };
        assert_eq!(compare_counts(&expected, &expected), Vec::<String>::new());
        let restored = FencedCounts { tasks: 2, audit_head: "bb".to_owned(), ..expected.clone() };
        assert_eq!(
            compare_counts(&expected, &restored),
            [
                "2 tasks were restored, and 3 were backed up",
                "the newest audit chain is another one than was backed up",
            ]
        );
    }

    #[test]
    fn a_repository_without_a_commit_that_rows_name_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let project = ProjectCommits { project: uuid::Uuid::nil(), commits: Vec::new() };
        let name = format!("{}.git", ProjectId::from_uuid(project.project));
        assert_eq!(
            check_repository(dir.path(), &project).unwrap(),
            [format!("the repository {name} is missing")]
        );
        let repository = dir.path().join("repositories").join(&name);
        fs::create_dir_all(&repository).unwrap();
        let made = git_command(&repository).args(["init", "--quiet", "--bare"]).status().unwrap();
        assert!(made.success());
        assert_eq!(check_repository(dir.path(), &project).unwrap(), Vec::<String>::new());
        let lacking = ProjectCommits { commits: vec!["a".repeat(40)], ..project };
        assert_eq!(
            check_repository(dir.path(), &lacking).unwrap(),
            [format!("the repository {name} lacks 1 commits that rows name")]
        );
    }
}
