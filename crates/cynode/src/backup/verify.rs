//! Verifies a backup by restoring it: a copy that was never restored is only a hope.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, ensure};
use cynode_app::{
    App, AppEnvironment, LifetimePolicy,
    platform::keys::InstallationKeys,
    tools::audit::{self, VerificationScope},
};
use cynode_core::ids::ProjectId;
use cynode_db::platform::backup::{self, FencedCounts, ProjectCommits};
use data_encoding::HEXLOWER;

use super::{
    encryption::DecryptionArgs,
    manifest::{BackupIndex, BackupManifest, BackupVerification, IndexedFile, public_keys_of},
    refs::{find_lost_refs, git_command, list_refs},
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
    let mut keys = None;
    let problems = match recover_installation(&plan).await {
        Ok(restored) => {
            let found = find_problems(&restored, &data_dir, config, &mut keys).await;
            // What cannot be verified is no good backup, and an earlier verification must not say so.
            let mut problems =
                found.unwrap_or_else(|error| vec![format!("it cannot be verified: {error:#}")]);
            if let Err(error) = restored.stop().await {
                problems.push(format!("its database does not stop: {error:#}"));
            }
            problems
        }
        Err(error) => vec![format!("it cannot be restored: {error:#}")],
    };
    let removed = fs::remove_dir_all(&data_dir);
    let now = AppEnvironment::from_system().now();
    let verification = BackupVerification::new(manifest.backup_id, now, problems, keys.as_ref())?;
    verification.store(path)?;
    removed.with_context(|| format!("{} could not be removed", data_dir.display()))?;
    Ok((manifest, verification))
}

/// Compares a restored installation with its manifest. Returns what differs, and gives its keys, which sign the result.
async fn find_problems(
    restored: &RestoredInstallation,
    data_dir: &Path,
    config: &CynodeConfig,
    opened: &mut Option<InstallationKeys>,
) -> anyhow::Result<Vec<String>> {
    let pool = cynode_db::connect_pool(&restored.owner_options())?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    let storage = data_dir.join("storage");
    let counts = backup::count_fenced_rows(&mut conn).await?;
    let mut problems = compare_counts(&restored.manifest.counts, &counts);
    let digests = backup::list_stored_digests(&mut conn).await?;
    problems.extend(compare_stored_bytes(&digests, &restored.index));
    problems.extend(find_lost_refs(&restored.index.refs, &list_refs(&storage)?));
    for project in backup::list_project_commits(&mut conn).await? {
        problems.extend(check_repository(&storage, &project)?);
    }
    drop(conn);
    let app = App::new(pool, AppEnvironment::from_system(), LifetimePolicy::default());
    let keys = match master_key::load_restored_keys(config, &storage, &app).await {
        Ok(keys) => opened.insert(keys),
        Err(error) => {
            problems.push(format!("the master key does not open the database: {error:#}"));
            return Ok(problems);
        }
    };
    if !restored.manifest.is_signed_by(&public_keys_of(keys)) {
        problems.push("the master key is not that of the installation that signed".to_owned());
    }
    // Records that had no signed head yet when the backup was taken get none in it.
    let as_of = Some(restored.manifest.taken_at);
    let scope = VerificationScope { as_of, ..VerificationScope::default() };
    match audit::verify_audit_log_within(&app, &keys.public_keys(), &scope).await {
        Ok(report) => {
            let found = report.problems.into_iter().map(|problem| format!("audit log: {problem}"));
            problems.extend(found);
        }
        Err(error) => problems.push(format!("the audit log cannot be read: {error:#}")),
    }
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

/// Compares the bytes that rows name with those of the backup. A stored file is named by the digest of its content, and what was restored has
/// the digest of the index: a file that was broken before the backup is found, too.
fn compare_stored_bytes(digests: &[Vec<u8>], index: &BackupIndex) -> Vec<String> {
    const STORED: &str = "storage/artifacts/sha256/";
    let is_missing = |digest: &&Vec<u8>| {
        let name = HEXLOWER.encode(digest);
        let folder = name.get(..2).unwrap_or_default();
        !index.files.contains_key(&format!("{STORED}{folder}/{name}"))
    };
    let is_changed = |(path, file): &(&String, &IndexedFile)| {
        let name = path.strip_prefix(STORED).and_then(|path| path.rsplit('/').next());
        // Another name is not that of a stored file.
        name.is_some_and(|name| name.len() == 64 && name != file.sha256)
    };
    let (missing, total) = (digests.iter().filter(is_missing).count(), digests.len());
    let changed = index.files.iter().filter(is_changed).count();
    let mut problems = Vec::new();
    if missing > 0 {
        problems.push(format!("the bytes of {missing} of {total} artifacts are missing"));
    }
    if changed > 0 {
        problems.push(format!("{changed} stored files have other bytes than their name says"));
    }
    problems
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
    fn bytes_that_are_not_what_their_name_says_are_a_problem() {
        let digests = [vec![0xab; 32], vec![0xcd; 32], vec![0xef; 32]];
        let mut index = BackupIndex::default();
        for (named, content) in [("ab", "ab"), ("cd", "00")] {
            let name = named.repeat(32);
            let file = IndexedFile {
                part: "files-00001.tar.gz.age".to_owned(),
                bytes: 1,
                sha256: content.repeat(32),
                mode: 0o600,
                modified_ns: 1,
            };
            index.files.insert(format!("storage/artifacts/sha256/{named}/{name}"), file);
        }
        assert_eq!(
            compare_stored_bytes(&digests, &index),
            [
                "the bytes of 1 of 3 artifacts are missing",
                "1 stored files have other bytes than their name says",
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
