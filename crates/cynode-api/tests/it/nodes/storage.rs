//! What jobs and imports may use of the orchestrator's memory and disk.

use cynode_app::{background::maintenance, platform::disk::DiskUsage};

use super::*;

/// A disk on which only a byte is free.
const FULL_DISK: DiskUsage = DiskUsage { free_bytes: 1, total_bytes: 1 << 40 };

/// A project with a repository, and jobs that a node has claimed.
struct Claimed {
    drive: Drive,
    node: Machine,
    jobs: Vec<Value>,
    head: String,
    directory: tempfile::TempDir,
}

impl Claimed {
    async fn new(units: &[&str]) -> Self {
        let drive = Drive::new().await;
        let (directory, head, bundle) = repository();
        let place = format!("/v1/projects/{}/repository", drive.project);
        assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
        drive.dispatched_with(units, &work()).await;
        let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
        let jobs = node.claim(1, 10).await;
        assert_eq!(jobs.len(), units.len());
        Self { drive, node, jobs, head, directory }
    }

    /// A commit on top of the head with one more line in a file, and its bundle.
    fn commit(&self) -> (String, Vec<u8>) {
        let at = self.directory.path();
        std::fs::write(at.join("a.txt"), "one\ntwo\n").unwrap();
        git(at, &["commit", "--quiet", "-am", "two"]);
        let range = format!("{}..HEAD", self.head);
        git(at, &["bundle", "create", "--quiet", ".git/job.bundle", &range, "HEAD"]);
        (git(at, &["rev-parse", "HEAD"]), std::fs::read(at.join(".git/job.bundle")).unwrap())
    }

    /// A bundle of some kilobytes, one file of which expands to so many bytes.
    fn delta_bomb(&self, expand: u64) -> (String, Vec<u8>) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../prove/support/delta_bomb.py");
        let file = self.directory.path().join(".git/bomb.bundle");
        let done = Command::new("python3")
            .arg(script)
            .arg(&file)
            .args(["--expand", &expand.to_string(), "--parent", &self.head])
            .args(["--ref", "refs/heads/cynode/work"])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let bundle = std::fs::read(file).unwrap();
        assert!(bundle.len() < 20_000);
        (String::from_utf8(done.stdout).unwrap().trim().to_owned(), bundle)
    }

    async fn report(&self, job: &Value, commit: &str, bundle: &Value) -> cynode_testkit::Reply {
        let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "summary": "done", "stop_reason": "end_turn", "commit": commit, "bundle": bundle } });
        self.node.client.post(&path(job, "result"), body).await
    }

    /// Reports a commit and gives what was stored as the result of the job.
    async fn result(&self, job: &Value, commit: &str, bundle: &Value) -> Value {
        self.report(job, commit, bundle).await.expect(200);
        results(&self.drive.app).await[unit(job)].clone()
    }

    /// Stores bytes that may be refused.
    async fn try_store(&self, job: &Value, bytes: &[u8]) -> (u16, Value) {
        let name = HEXLOWER.encode(&Sha256::digest(bytes));
        let place = path(job, &format!("blobs/{name}?fencing_token={}", job["fencing_token"]));
        put(&self.node.client, &place, bytes.to_vec()).await
    }

    async fn set(&self, key: &str, value: Value, version: i64) {
        let body = json!({ "value": value, "expected_version": version });
        self.drive.admin.put(&format!("/v1/settings/{key}"), body).await.expect(200);
    }

    fn set_disk(&self, reading: Option<DiskUsage>) {
        let parts = self.drive.app.app.gateway_parts().unwrap();
        parts.repositories.disk_probe().set_reading(reading);
    }

    /// The refs of the project's repository.
    fn refs(&self) -> Vec<String> {
        let place = self.drive.app.repository(&self.drive.project);
        let listed = git(&place, &["for-each-ref", "--format=%(refname)"]);
        listed.lines().map(str::to_owned).collect()
    }

    fn has_bytes(&self, bytes: &[u8]) -> bool {
        let name = HEXLOWER.encode(&Sha256::digest(bytes));
        let parts = self.drive.app.app.gateway_parts().unwrap();
        parts.objects_directory.join(format!("sha256/{}/{name}", &name[..2])).exists()
    }
}

#[tokio::test]
async fn a_bundle_that_expands_to_any_size_is_refused_for_good_and_reaches_no_node() {
    let claimed = Claimed::new(&["a", "b", "c"]).await;
    let too_large = (150 << 20) / 0xff_ffff * 0xff_ffff;
    for (job, expand, why) in [
        // More than the memory of git.
        (0, 512 << 20, "it needs more memory or time than git is given".to_owned()),
        // Within the memory of git, and more than a file may have.
        (
            1,
            150 << 20,
            format!("a blob in its history has {too_large} bytes, and at most 104857600"),
        ),
    ] {
        let job = &claimed.jobs[job];
        let (commit, bundle) = claimed.delta_bomb(expand);
        let stored = store(&claimed.node, job, &bundle).await;
        let result = claimed.result(job, &commit, &stored).await;
        assert_eq!(
            (&result["commit"], &result["stop_reason"]),
            (&json!(null), &json!("unverified"))
        );
        let summary = result["summary"].as_str().unwrap();
        assert!(summary.starts_with("the commit does not count: "), "{summary}");
        assert!(summary.contains(&why), "{summary}");
        // Sent again it is not read again: the verdict stands.
        let again = claimed.report(job, &commit, &stored).await.expect(200).json();
        assert_eq!(again["state"], "failed");
    }
    assert_eq!(claimed.refs(), ["refs/heads/main"]);
    // Whoever brings a bundle as a person is refused, too.
    let (_, bundle) = claimed.delta_bomb(512 << 20);
    let place = format!("/v1/projects/{}/repository?branch=cynode/work", claimed.drive.project);
    let (status, problem) = put(&claimed.drive.admin, &place, bundle).await;
    assert_eq!(status, 422, "{problem}");
    // Good work of the same project counts.
    let (job, (commit, bundle)) = (&claimed.jobs[2], claimed.commit());
    let stored = store(&claimed.node, job, &bundle).await;
    assert_eq!(claimed.result(job, &commit, &stored).await["commit"], json!(commit));
    let kept = format!("refs/cynode/jobs/{}", job["job_id"].as_str().unwrap());
    assert_eq!(claimed.refs(), [kept, "refs/heads/main".to_owned()]);
}

#[tokio::test]
async fn jobs_store_no_more_bytes_than_their_project_may_keep_whether_a_result_names_them_or_not() {
    const QUOTA: &str = "storage.max_blob_bytes_per_project";
    let claimed = Claimed::new(&["a", "b"]).await;
    claimed.set(QUOTA, json!(1000), 0).await;
    store(&claimed.node, &claimed.jobs[0], &[1; 600]).await;
    for job in &claimed.jobs {
        let (status, problem) = claimed.try_store(job, &[2; 600]).await;
        let why = format!(
            "the project keeps 600 bytes of artifacts and bundles, and at most 1000 are kept for one: wait until the files of \
             ended tasks expire, or ask an admin to raise `{QUOTA}`"
        );
        assert_eq!((status, &problem["detail"]), (413, &json!(why)));
    }
    assert!(!claimed.has_bytes(&[2; 600]));
    // Bytes that are there already take no room.
    store(&claimed.node, &claimed.jobs[1], &[1; 600]).await;
    store(&claimed.node, &claimed.jobs[1], &[3; 400]).await;
    claimed.set(QUOTA, json!(2000), 1).await;
    store(&claimed.node, &claimed.jobs[0], &[2; 600]).await;
}

#[tokio::test]
async fn of_uploads_at_the_same_moment_no_more_than_the_quota_is_kept() {
    let claimed = Claimed::new(&["a"]).await;
    claimed.set("storage.max_blob_bytes_per_project", json!(1000), 0).await;
    let job = &claimed.jobs[0];
    let all = [[1_u8; 600], [2; 600], [3; 600], [4; 600]];
    let sent = futures::future::join_all(all.iter().map(|bytes| claimed.try_store(job, bytes)));
    let mut statuses: Vec<u16> = sent.await.into_iter().map(|(status, _)| status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 413, 413, 413]);
    let kept = all.iter().filter(|bytes| claimed.has_bytes(bytes.as_slice())).count();
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn on_a_disk_that_is_almost_full_nothing_is_stored_and_no_result_is_lost() {
    let claimed = Claimed::new(&["a"]).await;
    let (job, (commit, bundle)) = (&claimed.jobs[0], claimed.commit());
    claimed.set_disk(Some(FULL_DISK));
    let (status, problem) = claimed.try_store(job, &bundle).await;
    assert_eq!((status, &problem["code"]), (503, &json!("upstream_unavailable")));
    assert!(problem["detail"].as_str().unwrap().starts_with("the disk is almost full"));
    assert!(!claimed.has_bytes(&bundle));
    claimed.set_disk(None);
    let stored = store(&claimed.node, job, &bundle).await;
    claimed.set_disk(Some(FULL_DISK));
    claimed.report(job, &commit, &stored).await.expect(503);
    let place = format!("/v1/projects/{}/repository", claimed.drive.project);
    let (status, problem) = put(&claimed.drive.admin, &place, bundle).await;
    assert_eq!((status, &problem["code"]), (409, &json!("storage_full")));
    assert_eq!(claimed.refs(), ["refs/heads/main"]);
    // With room again the node's next attempt counts.
    claimed.set_disk(None);
    assert_eq!(claimed.result(job, &commit, &stored).await["commit"], json!(commit));
}

#[tokio::test]
async fn a_repository_takes_no_more_than_its_project_may_keep() {
    const QUOTA: &str = "storage.max_repository_bytes_per_project";
    let claimed = Claimed::new(&["a"]).await;
    claimed.set(QUOTA, json!(1), 0).await;
    let (job, (commit, bundle)) = (&claimed.jobs[0], claimed.commit());
    let stored = store(&claimed.node, job, &bundle).await;
    let result = claimed.result(job, &commit, &stored).await;
    let summary = result["summary"].as_str().unwrap();
    assert!(summary.starts_with("the commit does not count: the project's repository has "));
    assert!(summary.contains(&format!("ask an admin to raise `{QUOTA}`")), "{summary}");
    assert_eq!(claimed.refs(), ["refs/heads/main"]);
    let place = format!("/v1/projects/{}/repository", claimed.drive.project);
    assert_eq!(put(&claimed.drive.admin, &place, bundle).await.0, 413);
}

#[tokio::test]
async fn commits_and_bytes_of_a_task_expire_after_its_end_and_those_of_others_do_not() {
    let mut claimed = Claimed::new(&["a"]).await;
    claimed.drive.task = claimed.drive.another(json!([])).await;
    claimed.drive.dispatched_with(&["b"], &work()).await;
    claimed.drive.task = claimed.drive.another(json!([])).await;
    claimed.drive.dispatched_with(&["c"], &work()).await;
    let later = claimed.node.claim(2, 10).await;
    claimed.jobs.extend(later);
    let (commit, bundle) = claimed.commit();
    for job in &claimed.jobs {
        store(&claimed.node, job, format!("only {}", unit(job)).as_bytes()).await;
        let stored = store(&claimed.node, job, &bundle).await;
        assert_eq!(claimed.result(job, &commit, &stored).await["commit"], json!(commit));
    }
    let db = &claimed.drive.app.db;
    let end = "UPDATE tasks SET state = 'cancelled', ended_at = '2000-01-01' WHERE task_id IN \
        (SELECT u.task_id FROM work_units u WHERE u.key = $1)";
    db.execute_with(end, "a").await;
    let end = "UPDATE tasks SET state = 'cancelled', ended_at = '2100-01-01' WHERE task_id IN \
        (SELECT u.task_id FROM work_units u WHERE u.key = $1)";
    db.execute_with(end, "b").await;
    let refs_of = |units: &[&str]| {
        let jobs = claimed.jobs.iter().filter(|job| units.contains(&unit(job).as_str()));
        let mut refs: Vec<String> = jobs
            .map(|job| format!("refs/cynode/jobs/{}", job["job_id"].as_str().unwrap()))
            .collect();
        refs.sort();
        refs.push("refs/heads/main".to_owned());
        refs
    };
    assert_eq!(claimed.refs(), refs_of(&["a", "b", "c"]));
    let run = || maintenance::run_maintenance_once(&claimed.drive.app.app);
    run().await.unwrap();
    assert_eq!(claimed.refs(), refs_of(&["b", "c"]));
    let expired = "SELECT u.key FROM work_units u JOIN tasks t USING (task_id) WHERE t.files_expired_at IS NOT NULL";
    assert_eq!(db.texts(expired).await, ["a"]);
    assert_eq!(db.number("SELECT count(*) FROM artifacts").await, 2);
    assert_eq!(db.number("SELECT count(*) FROM job_blobs").await, 4);
    // The bytes follow when nobody can be bringing the same ones any more. The bundle is also that of others.
    assert!(claimed.has_bytes(b"only a") && claimed.has_bytes(&bundle));
    db.execute("UPDATE expired_blobs SET expired_at = expired_at - interval '2 hours'").await;
    run().await.unwrap();
    let there = [b"only a", b"only b", b"only c"].map(|bytes| claimed.has_bytes(bytes));
    assert_eq!((there, claimed.has_bytes(&bundle)), ([false, true, true], true));
    assert_eq!(db.number("SELECT count(*) FROM expired_blobs").await, 0);
    // What was done is not done again, and stays done.
    run().await.unwrap();
    assert_eq!(claimed.refs(), refs_of(&["b", "c"]));
}

#[tokio::test]
async fn bytes_that_are_stored_again_while_they_expire_stay() {
    let claimed = Claimed::new(&["a", "b"]).await;
    store(&claimed.node, &claimed.jobs[0], b"shared").await;
    let db = &claimed.drive.app.db;
    db.execute("DELETE FROM job_blobs").await;
    let expire =
        "INSERT INTO expired_blobs (digest, expired_at) VALUES (sha256('shared'), '2000-01-01')";
    db.execute(expire).await;
    store(&claimed.node, &claimed.jobs[1], b"shared").await;
    maintenance::run_maintenance_once(&claimed.drive.app.app).await.unwrap();
    assert!(claimed.has_bytes(b"shared"));
    // With nobody left who has them they go.
    db.execute("DELETE FROM job_blobs").await;
    db.execute(expire).await;
    maintenance::run_maintenance_once(&claimed.drive.app.app).await.unwrap();
    assert!(!claimed.has_bytes(b"shared"));
}

#[tokio::test]
async fn while_a_backup_runs_no_bytes_are_removed() {
    let claimed = Claimed::new(&["a"]).await;
    store(&claimed.node, &claimed.jobs[0], b"wanted").await;
    let app = &claimed.drive.app;
    app.db.execute("DELETE FROM job_blobs").await;
    let expire =
        "INSERT INTO expired_blobs (digest, expired_at) VALUES (sha256('wanted'), '2000-01-01')";
    app.db.execute(expire).await;
    let backup = cynode_db::platform::backup::lock_backups(&app.db.pool()).await.unwrap();
    assert!(backup.is_some());
    maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert!(claimed.has_bytes(b"wanted"));
    drop(backup);
    // Its connection closes in the background.
    while claimed.has_bytes(b"wanted") {
        maintenance::run_maintenance_once(&app.app).await.unwrap();
    }
}
