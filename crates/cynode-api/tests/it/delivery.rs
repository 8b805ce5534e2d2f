//! Delivery: what a task brought becomes a pull request, and what people make of it. (S004-159)

use std::path::PathBuf;

use cynode_app::{Error, OperationRequest, delivery::pull_requests, platform::tokens};
use cynode_core::roles::UserRole;
use cynode_forge::ForgeKind;
use cynode_testkit::{
    Client, Reply,
    forges::{self, TestForge, Trouble},
};
use cynode_wire::delivery::PullRequestView;
use serde_json::{Value, json};

use crate::{
    nodes::{Machine, git, path, put, repository, store, work},
    workflow::{Drive, Held, create_job},
};

/// A project with a repository, a node, and a task that brings something.
struct Desk {
    drive: Drive,
    node: Machine,
    /// A clone in which workers and people commit.
    clone: tempfile::TempDir,
    /// The commit that work started from.
    base: String,
    claims: std::cell::Cell<u32>,
}

impl Desk {
    async fn new() -> Self {
        let drive = Drive::new().await;
        let (clone, base, bundle) = repository();
        let place = format!("/v1/projects/{}/repository", drive.project);
        assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
        let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
        Self { drive, node, clone, base, claims: std::cell::Cell::new(0) }
    }

    fn bare(&self) -> PathBuf {
        self.drive.app.repository(&self.drive.project)
    }

    fn inside(&self, args: &[&str]) -> String {
        git(&self.bare(), args)
    }

    /// What a branch has.
    fn at(&self, branch: &str) -> String {
        self.inside(&["rev-parse", &format!("refs/heads/{branch}")])
    }

    /// A commit in the clone that follows another, and its bundle.
    fn committed(&self, after: &str, files: &[(&str, &str)]) -> (String, Vec<u8>) {
        let at = self.clone.path();
        if !self.clone.path().join(".git/bare").exists() {
            git(at, &["remote", "add", "bare", &self.bare().to_string_lossy()]);
            std::fs::write(at.join(".git/bare"), "").unwrap();
        }
        git(at, &["fetch", "--quiet", "bare", "+refs/*:refs/remotes/bare/*"]);
        git(at, &["checkout", "--quiet", "--detach", after]);
        for (name, text) in files {
            std::fs::write(at.join(name), text).unwrap();
        }
        git(at, &["add", "."]);
        git(at, &["commit", "--quiet", "--allow-empty", "-m", "work in progress"]);
        let commit = git(at, &["rev-parse", "HEAD"]);
        let range = format!("{after}..HEAD");
        git(at, &["bundle", "create", "--quiet", ".git/job.bundle", &range, "HEAD"]);
        (commit, std::fs::read(at.join(".git/job.bundle")).unwrap())
    }

    /// Drives a task to the place where its unit is done with a commit of these files, and only its end is missing.
    async fn worked(&self, task: &str, files: &[(&str, &str)]) -> (Held, String) {
        let mut held = self.drive.start_task(task).await;
        self.drive.go(&mut held, "pass", json!({})).await;
        let mut payload = work();
        payload["work"]["commit"] = json!("required");
        let units = json!([{ "key": "a", "title": "a", "payload": payload }]);
        let plan = json!([{ "effect": "plan_units", "units": units }]);
        self.drive.go(&mut held, "pass", json!({ "effects": plan })).await;
        self.drive.go(&mut held, "pass", json!({ "effects": [create_job("a", 1)] })).await;
        self.claims.set(self.claims.get() + 1);
        let job = self.node.claim(self.claims.get(), 1).await.remove(0);
        let base = job["base"].as_str().unwrap().to_owned();
        let (commit, bundle) = self.committed(&base, files);
        let stored = store(&self.node, &job, &bundle).await;
        let done = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "summary": "done", "stop_reason": "end_turn", "commit": commit, "bundle": stored } });
        let said = self.node.client.post(&path(&job, "result"), done).await.expect(200);
        assert_eq!(said.text("state"), "succeeded");
        let collect = json!([{ "effect": "collect_job", "unit": "a", "attempt": 1 }]);
        self.drive.go(&mut held, "pass", json!({ "effects": collect })).await;
        let accept = json!([{ "effect": "accept_unit", "unit": "a", "attempt": 1 }]);
        self.drive.go(&mut held, "pass", json!({ "effects": accept })).await;
        self.drive.go(&mut held, "done", json!({})).await;
        (held, commit)
    }

    async fn request(&self) -> OperationRequest {
        let app = &self.drive.app.app;
        let shown = tokens::parse_token(&self.drive.admin.token().unwrap()).unwrap();
        let caller = Some(app.authenticate_caller(&shown).await.unwrap());
        OperationRequest { caller, trace: app.environment().new_trace_id(), attempt: None }
    }

    /// What the project manager's tool does.
    async fn open(&self, task: &str) -> Result<Option<PullRequestView>, Error> {
        let (request, id) = (self.request().await, task.parse().unwrap());
        pull_requests::open_pull_request(
            &self.drive.app.app,
            &request,
            id,
            "Say two",
            "It says *two*.",
        )
        .await
    }

    /// A task that brought these files and whose pull request is open.
    async fn opened(&self, files: &[(&str, &str)]) -> (Held, PullRequestView) {
        let (held, _) = self.worked(&self.drive.task, files).await;
        let opened = self.open(&self.drive.task).await.unwrap().unwrap();
        (held, opened)
    }

    async fn shown(&self, opened: &PullRequestView) -> Value {
        self.drive.admin.get(&opened.url).await.expect(200).json()
    }

    async fn prefer(&self, key: &str, value: Value) {
        let place =
            format!("/v1/preferences/{key}?scope_type=project&scope_id={}", self.drive.project);
        let body = json!({ "value": value, "expected_version": 0 });
        self.drive.admin.put(&place, body).await.expect(200);
    }

    async fn review(&self, opened: &PullRequestView, body: Value) -> Reply {
        self.drive.admin.post(&format!("{}/reviews", opened.url), body).await
    }

    async fn merge(&self, opened: &PullRequestView) -> Reply {
        self.drive.admin.post(&format!("{}/merge", opened.url), json!(null)).await
    }

    async fn told(&self, kind: &str) -> i64 {
        let kinds = self.drive.app.db.texts("SELECT kind FROM events").await;
        i64::try_from(kinds.iter().filter(|told| *told == kind).count()).unwrap()
    }
}

const TWO: &[(&str, &str)] = &[("a.txt", "one\ntwo\n")];

#[tokio::test]
async fn what_a_task_brought_becomes_one_signed_off_commit_on_a_branch_of_its_own() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    insta::assert_json_snapshot!(desk.shown(&opened).await, {
        ".id" => "[id]", ".project_id" => "[id]", ".task_id" => "[id]", ".url" => "[url]", ".branch" => "[branch]",
        ".base_commit" => "[commit]", ".head_commit" => "[commit]",
        ".deliveries[].task_id" => "[id]", ".deliveries[].commit" => "[commit]", ".deliveries[].source" => "[commit]",
    });
    let task = &desk.drive.task;
    assert_eq!(opened.branch, format!("cynode/mend-it-{}", &task[task.len() - 8..]));
    let head = opened.head_commit.clone().unwrap();
    assert_eq!(desk.at(&opened.branch), head);
    assert_eq!(
        desk.inside(&["log", "--format=%P%n%an <%ae>%n%cn <%ce>%n%aI%n%B", "-1", &head]),
        format!(
            "{}\nCyNode <cynode@localhost>\nCyNode <cynode@localhost>\n2026-11-01T12:00:00Z\nSay two\n\nIt says *two*.\n\n\
             CyNode-Task: {task}\nSigned-off-by: CyNode <cynode@localhost>",
            desk.base
        )
    );
    assert_eq!(desk.inside(&["show", &format!("{head}:a.txt")]), "one\ntwo");
    assert_eq!(desk.at("main"), desk.base, "the default branch is where it was");
    assert_eq!(desk.told("pull_request.opened").await, 1);
    let timeline = desk.drive.admin.get(&format!("/v1/tasks/{task}/timeline")).await.expect(200);
    assert_eq!(timeline.json()["pull_request"]["commit"], json!(head));
}

#[tokio::test]
async fn the_difference_is_shown_as_text_and_by_file() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(&[("a.txt", "one\ntwo\n"), ("b.txt", "new\n")]).await;
    let client = &desk.drive.admin;
    let files = client.get(&format!("{}/files", opened.url)).await.expect(200).json();
    assert_eq!(
        files,
        json!({ "base": desk.base, "head": opened.head_commit, "truncated": false, "files": [
            { "path": "a.txt", "insertions": 1, "deletions": 0 },
            { "path": "b.txt", "insertions": 1, "deletions": 0 },
        ] })
    );
    let one = client.get(&format!("{}/diff?path=b.txt", opened.url)).await.expect(200).json();
    let text = one["text"].as_str().unwrap();
    assert!(text.starts_with("diff --git a/b.txt b/b.txt\n") && text.ends_with("+new\n"), "{text}");
    assert!(!text.contains("a.txt"), "{text}");
    assert_eq!(one["truncated"], false);
    assert_eq!(one.get("inexact"), None);
}

#[tokio::test]
async fn a_difference_that_cannot_be_applied_says_so() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(&[("a.txt", "one\ntwo\n"), ("b.bin", "\0new\n")]).await;
    let client = &desk.drive.admin;
    let all = client.get(&format!("{}/diff", opened.url)).await.expect(200).json();
    assert_eq!((&all["inexact"], &all["truncated"]), (&json!(true), &json!(false)));
    let text = client.get(&format!("{}/diff?path=a.txt", opened.url)).await.expect(200).json();
    assert_eq!(text.get("inexact"), None);
}

/// The rows as they were before the last step was written down.
const OPENING: &str = "
    WITH back AS (UPDATE deliveries SET commit_id = NULL, delivered_at = NULL)
    UPDATE pull_requests SET state = 'opening', head_commit = NULL, tree = NULL, opened_at = NULL";

#[tokio::test]
async fn opened_again_after_a_stop_at_any_step_there_is_one_commit_and_one_pull_request() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let again = desk.open(&desk.drive.task).await.unwrap().unwrap();
    assert_eq!(again, opened);
    // Stopped after the branch was made, before it was written down.
    desk.drive.app.clock.advance(time::Duration::minutes(5));
    desk.drive.app.db.execute(OPENING).await;
    let after_branch = desk.open(&desk.drive.task).await.unwrap().unwrap();
    assert_eq!(after_branch.head_commit, opened.head_commit);
    // Stopped before the branch was made: the commit is the same all the same.
    desk.drive.app.db.execute(OPENING).await;
    desk.inside(&["update-ref", "-d", &format!("refs/heads/{}", opened.branch)]);
    let before_branch = desk.open(&desk.drive.task).await.unwrap().unwrap();
    assert_eq!(
        (before_branch.id, &before_branch.head_commit, before_branch.number),
        (opened.id, &opened.head_commit, 1)
    );
    assert_eq!(desk.at(&opened.branch), opened.head_commit.unwrap());
    let rows =
        "SELECT (SELECT count(*) FROM pull_requests) * 10 + (SELECT count(*) FROM deliveries)";
    assert_eq!(desk.drive.app.db.number(rows).await, 11);
}

#[tokio::test]
async fn two_who_open_at_once_open_one() {
    let desk = Desk::new().await;
    desk.worked(&desk.drive.task, TWO).await;
    let (left, right) = tokio::join!(desk.open(&desk.drive.task), desk.open(&desk.drive.task));
    let (left, right) = (left.unwrap().unwrap(), right.unwrap().unwrap());
    assert_eq!((left.id, &left.head_commit), (right.id, &right.head_commit));
    assert_eq!(desk.told("pull_request.opened").await, 1);
}

#[tokio::test]
async fn a_branch_that_somebody_else_moved_is_left_alone_and_said() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    desk.drive.app.db.execute(OPENING).await;
    let name = format!("refs/heads/{}", opened.branch);
    desk.inside(&["update-ref", &name, &desk.base]);
    let refused = desk.open(&desk.drive.task).await.unwrap_err();
    assert!(
        matches!(&refused, Error::MergeConflict(why) if why.contains("moved the branch")),
        "{refused:?}"
    );
    assert_eq!(desk.at(&opened.branch), desk.base);
    let shown = desk.shown(&opened).await;
    assert_eq!(
        (&shown["state"], &shown["failure"]),
        (&json!("failed"), &json!(refused.to_string()))
    );
    // Put right by a person, it is tried again.
    desk.inside(&["update-ref", "-d", &name]);
    assert_eq!(desk.open(&desk.drive.task).await.unwrap().unwrap().head_commit, opened.head_commit);
    assert_eq!(desk.shown(&opened).await["state"], "open");
}

#[tokio::test]
async fn a_task_does_not_complete_before_its_work_is_offered() {
    let desk = Desk::new().await;
    let (held, _) = desk.worked(&desk.drive.task, TWO).await;
    let refused = desk.drive.step(&held, "pass", json!({})).await.expect(422);
    assert!(refused.text("detail").contains("in no open pull request"), "{}", refused.json());
    desk.open(&desk.drive.task).await.unwrap().unwrap();
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
    let task = desk.drive.admin.get(&format!("/v1/tasks/{}", desk.drive.task)).await.expect(200);
    assert_eq!(task.text("state"), "completed");
    assert!(matches!(desk.open(&desk.drive.task).await, Err(Error::TaskEnded)));
}

#[tokio::test]
async fn a_person_may_end_a_task_without_a_pull_request_and_a_preference_may_say_so_before() {
    let desk = Desk::new().await;
    let (mut held, _) = desk.worked(&desk.drive.task, TWO).await;
    let wait = json!({ "wait": { "reason": "human_input", "question": "again, or end without?" } });
    desk.drive.go(&mut held, "wait", wait).await;
    let answer = format!("/v1/tasks/{}/answer", desk.drive.task);
    desk.drive.admin.post(&answer, json!({ "text": "End without." })).await.expect(200);
    let mut held = desk.drive.start().await;
    desk.drive.go(&mut held, "pass", json!({})).await;
    assert_eq!(held.position["next"], json!({ "do": "end" }));
    assert_eq!(desk.drive.app.db.number("SELECT count(*) FROM pull_requests").await, 0);

    desk.prefer("delivery.mode", json!("none")).await;
    let other = desk.drive.another(json!([])).await;
    let (held, _) = desk.worked(&other, TWO).await;
    assert!(matches!(desk.open(&other).await, Err(Error::Conflict(_))));
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
}

#[tokio::test]
async fn work_that_changes_nothing_is_not_offered_and_ends() {
    let desk = Desk::new().await;
    let task = desk.drive.task.clone();
    let (held, _) = desk.worked(&task, &[("a.txt", "one\n")]).await;
    desk.drive.step(&held, "pass", json!({})).await.expect(422);
    for _ in 0..2 {
        assert_eq!(desk.open(&task).await.unwrap(), None);
    }
    assert_eq!(desk.drive.app.db.number("SELECT count(*) FROM pull_requests").await, 0);
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
}

#[tokio::test]
async fn merging_moves_the_default_branch_forward_once() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let merged = desk.merge(&opened).await.expect(200).json();
    let head = json!(opened.head_commit);
    assert_eq!((&merged["state"], &merged["merge_commit"]), (&json!("merged"), &head));
    assert_eq!(json!(desk.at("main")), head);
    assert_eq!(desk.merge(&opened).await.expect(200).json(), merged);
    // Stopped after the branch had moved.
    let back = "UPDATE pull_requests SET state = 'open', merged_at = NULL";
    desk.drive.app.db.execute(back).await;
    desk.drive.app.db.execute("UPDATE repositories SET head = repeat('0', 40)").await;
    assert_eq!(desk.merge(&opened).await.expect(200).json()["merge_commit"], head);
    let place = format!("/v1/projects/{}/repository", desk.drive.project);
    assert_eq!(desk.drive.admin.get(&place).await.expect(200).json()["head"], head);
    // Stopped before it had.
    desk.drive.app.db.execute(back).await;
    desk.inside(&["update-ref", "refs/heads/main", &desk.base]);
    assert_eq!(desk.merge(&opened).await.expect(200).json()["merge_commit"], head);
    assert_eq!(json!(desk.at("main")), head);
    desk.drive.admin.post(&format!("{}/close", opened.url), json!(null)).await.expect(409);
}

#[tokio::test]
async fn what_came_meanwhile_is_put_together_and_what_clashes_is_said() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let (other, _) = desk.committed(&desk.base, &[("b.txt", "from a person\n")]);
    desk.inside(&["fetch", "--quiet", &desk.clone.path().to_string_lossy(), "HEAD"]);
    desk.inside(&["update-ref", "refs/heads/main", &other]);
    let merged = desk.merge(&opened).await.expect(200).json();
    let commit = merged["merge_commit"].as_str().unwrap();
    assert_eq!(desk.at("main"), commit);
    let parents = format!("{other} {}", opened.head_commit.as_ref().unwrap());
    assert_eq!(desk.inside(&["log", "--format=%P", "-1", commit]), parents);
    assert_eq!(desk.inside(&["ls-tree", "--name-only", commit]), "a.txt\nb.txt");
    let back = "UPDATE pull_requests SET state = 'open', merged_at = NULL";
    desk.drive.app.db.execute(back).await;
    assert_eq!(desk.merge(&opened).await.expect(200).json()["merge_commit"], commit);

    let second = desk.drive.another(json!([])).await;
    desk.worked(&second, &[("b.txt", "from an agent\n")]).await;
    let clashing = desk.open(&second).await.unwrap().unwrap();
    let (other, _) = desk.committed(commit, &[("b.txt", "from a person, again\n")]);
    desk.inside(&["fetch", "--quiet", &desk.clone.path().to_string_lossy(), "HEAD"]);
    desk.inside(&["update-ref", "refs/heads/main", &other]);
    let refused = desk.merge(&clashing).await.expect(409);
    assert_eq!(refused.text("code"), "merge_conflict");
    let why = "`main` and the pull request changed the same places: b.txt";
    assert_eq!(refused.text("detail"), why);
    assert_eq!((desk.at("main"), &desk.shown(&clashing).await["state"]), (other, &json!("open")));
}

#[tokio::test]
async fn where_approval_is_wanted_nothing_is_merged_without_it_and_an_objection_always_counts() {
    let desk = Desk::new().await;
    desk.prefer("delivery.require_approval", json!(true)).await;
    let (held, opened) = desk.opened(TWO).await;
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
    let refused = desk.merge(&opened).await.expect(409);
    assert_eq!(refused.text("detail"), "nobody has approved the commit that is offered");
    let stale = json!({ "verdict": "approve", "commit": desk.base });
    desk.review(&opened, stale).await.expect(409);
    let other = desk.drive.app.user("eve", Some(UserRole::Operator)).await;
    let no = json!({ "verdict": "changes", "note": "Say three." });
    other.post(&format!("{}/reviews", opened.url), no).await.expect(201);
    desk.review(&opened, json!({ "verdict": "approve" })).await.expect(201);
    let refused = desk.merge(&opened).await.expect(409);
    assert_eq!(refused.text("detail"), "somebody wants changes: they must approve it first");
    let yes = json!({ "verdict": "approve" });
    other.post(&format!("{}/reviews", opened.url), yes).await.expect(201);
    desk.merge(&opened).await.expect(200);
    desk.review(&opened, json!({ "verdict": "approve" })).await.expect(409);
}

#[tokio::test]
async fn where_four_eyes_are_demanded_no_author_approves_or_merges() {
    let desk = Desk::new().await;
    let (held, opened) = desk.opened(TWO).await;
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
    // An approval of the author from before the policy does not count.
    desk.review(&opened, json!({ "verdict": "approve" })).await.expect(201);
    let scope = format!("scope_type=project&scope_id={}", desk.drive.project);
    for key in ["approvals.four_eyes", "delivery.require_approval"] {
        let path = format!("/v1/policies/{key}?{scope}");
        desk.drive.admin.put(&path, json!({ "value": true })).await.expect(200);
    }
    let yes = || json!({ "verdict": "approve" });
    assert_eq!(desk.review(&opened, yes()).await.expect(403).text("code"), "policy_denied");
    let refused = desk.merge(&opened).await.expect(403);
    let why = "you asked for this work, so another person must merge the pull request: the policy `approvals.four_eyes` of the project demands it; admin set it on";
    assert!(refused.text("detail").starts_with(why), "{}", refused.text("detail"));
    // Who told the agents what to do is an author, too.
    let mallory = desk.drive.app.user("mallory", Some(UserRole::Operator)).await;
    let steered =
        "INSERT INTO task_instructions (instruction_id, task_id, kind, text, issued_by, issued_at)
        SELECT gen_random_uuid(), t.task_id, 'revise', 'Add a door.', u.user_id, now()
        FROM tasks t, users u WHERE u.handle = 'mallory'";
    desk.drive.app.db.execute(steered).await;
    mallory.post(&format!("{}/reviews", opened.url), yes()).await.expect(403);
    mallory.post(&format!("{}/merge", opened.url), json!(null)).await.expect(403);
    // Nor does it reach the default branch as an import.
    let place = format!("/v1/projects/{}/repository", desk.drive.project);
    assert_eq!(put(&mallory, &place, Vec::new()).await.0, 403);
    let eve = desk.drive.app.user("eve", Some(UserRole::Operator)).await;
    let merge = format!("{}/merge", opened.url);
    let refused = eve.post(&merge, json!(null)).await.expect(409);
    assert_eq!(refused.text("detail"), "nobody has approved the commit that is offered");
    eve.post(&format!("{}/reviews", opened.url), yes()).await.expect(201);
    eve.post(&merge, json!(null)).await.expect(200);
}

#[tokio::test]
async fn what_a_review_asks_for_becomes_one_task_that_goes_on_with_the_same_branch() {
    let desk = Desk::new().await;
    let (held, opened) = desk.opened(TWO).await;
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
    let body = json!({ "verdict": "changes", "note": "Nearly.",
        "comments": [{ "path": "a.txt", "line": 2, "body": "Say three as well." }] });
    let keyed = desk.drive.admin.with_header("idempotency-key", "once");
    let place = format!("{}/reviews", opened.url);
    let first = keyed.post(&place, body.clone()).await.expect(201).json();
    assert_eq!(keyed.post(&place, body).await.expect(201).json(), first);
    let follow_up = first["follow_up"].as_str().unwrap().to_owned();
    let task = desk.drive.admin.get(&format!("/v1/tasks/{follow_up}")).await.expect(200).json();
    assert_eq!(
        task["description"],
        json!(format!(
            "Follow up 1 on pull request 1, \"Say two\": deal with what was said about it.\n\nThe work goes on from branch `{}`, \
             where everything done so far is.\n\n- admin: Nearly.\n- admin at `a.txt` line 2: Say three as well.\n\n\
             What was asked for at first:\n\nMend it",
            opened.branch
        ))
    );
    let (held, _) = desk.worked(&follow_up, &[("a.txt", "one\ntwo\nthree\n")]).await;
    let updated = desk.open(&follow_up).await.unwrap().unwrap();
    assert_eq!((updated.id, updated.number), (opened.id, 1));
    let head = updated.head_commit.clone().unwrap();
    let parent = desk.inside(&["log", "--format=%P", "-1", &head]);
    assert_eq!(Some(parent), opened.head_commit, "one commit more on the same branch");
    assert_eq!(desk.inside(&["show", &format!("{head}:a.txt")]), "one\ntwo\nthree");
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
    let shown = desk.shown(&updated).await;
    assert_eq!(shown["reviews"][0]["current"], false, "it was about another commit");
    let follow_ups = shown["follow_ups"].as_array().unwrap().len();
    let told = (desk.told("pull_request.updated").await, desk.told("pull_request.follow_up").await);
    assert_eq!((follow_ups, told), (1, (1, 1)));
}

#[tokio::test]
async fn a_pull_request_is_followed_up_three_times_one_after_the_other() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let ask = json!({ "verdict": "comment", "comments": [{ "body": "And this?" }] });
    let mut before = desk.drive.task.clone();
    for _ in 0..3 {
        let said = desk.review(&opened, ask.clone()).await.expect(201).json();
        let task = said["follow_up"].as_str().unwrap().to_owned();
        let shown = desk.drive.admin.get(&format!("/v1/tasks/{task}")).await.expect(200).json();
        assert_eq!(shown["depends_on"], json!([before]), "each begins when the last has ended");
        before = task;
    }
    let fourth = desk.review(&opened, ask).await.expect(201).json();
    assert_eq!(
        (&fourth["follow_up"], &fourth["no_follow_up"]),
        (&Value::Null, &json!("it was followed up three times: a person must go on"))
    );
    let asks_nothing = json!({ "verdict": "changes" });
    desk.review(&opened, asks_nothing).await.expect(422);
    let praise = json!({ "verdict": "approve", "comments": [{ "body": "Nice." }] });
    assert_eq!(desk.review(&opened, praise).await.expect(201).json()["follow_up"], Value::Null);
}

#[tokio::test]
async fn who_only_looks_decides_nothing() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let viewer = desk.drive.app.user("vic", Some(UserRole::Viewer)).await;
    viewer.get(&opened.url).await.expect(200);
    let nobody: Client = desk.drive.app.user("nob", None).await;
    nobody.get(&opened.url).await.expect(404);
    for (what, body) in [
        ("merge", json!(null)),
        ("close", json!(null)),
        ("reviews", json!({ "verdict": "approve" })),
        ("comments", json!({ "body": "Hm." })),
    ] {
        let place = format!("{}/{what}", opened.url);
        viewer.post(&place, body.clone()).await.expect(403);
        nobody.post(&place, body).await.expect(404);
    }
    assert_eq!(desk.at("main"), desk.base);
}

#[tokio::test]
async fn secrets_in_what_is_said_about_a_pull_request_are_not_kept() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let github = format!("ghp_{}", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    let words = format!("{github} opens the door");
    let place = format!("{}/comments", opened.url);
    let comment = json!({ "body": words });
    let said = desk.drive.admin.post(&place, comment).await.expect(201).text("body");
    let praise = json!({ "verdict": "approve", "note": words, "comments": [{ "body": words }] });
    desk.review(&opened, praise).await.expect(201);
    let kept = desk.shown(&opened).await.to_string();
    assert_eq!(kept.matches(" opens the door").count(), 3, "{kept}");
    for text in [said, kept] {
        assert!(!text.contains("a1B2c3D4"), "{text}");
    }
}

#[tokio::test]
async fn a_closed_pull_request_takes_nothing_more() {
    let desk = Desk::new().await;
    let (_, opened) = desk.opened(TWO).await;
    let comment = json!({ "path": "a.txt", "line": 2, "body": "Not this." });
    desk.drive.admin.post(&format!("{}/comments", opened.url), comment).await.expect(201);
    let closed = desk.drive.admin.post(&format!("{}/close", opened.url), json!(null)).await;
    assert_eq!(closed.expect(200).json()["state"], "closed");
    let refused = desk.open(&desk.drive.task).await.unwrap_err();
    assert_eq!(refused.to_string(), "a person closed the pull request");
    desk.merge(&opened).await.expect(409);
    desk.review(&opened, json!({ "verdict": "approve" })).await.expect(409);
    let listed = format!("/v1/projects/{}/pull-requests?state=closed", desk.drive.project);
    let listed = desk.drive.admin.get(&listed).await.expect(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert_eq!(desk.at(&opened.branch), opened.head_commit.unwrap(), "its branch stays");
}

/// The same desk, with the repository at a forge.
async fn at_forge(kind: ForgeKind) -> (Desk, TestForge) {
    let drive = Drive::new().await;
    let forge = TestForge::serve(kind).await;
    let body = json!({ "forge": kind.as_str(), "url": forge.clone_url(), "api": forge.api(),
        "repository": forges::REPOSITORY, "default_branch": "main", "credential": forges::TOKEN });
    let place = format!("/v1/projects/{}/remote", drive.project);
    drive.admin.put(&place, body).await.expect(200);
    let base = forge.tip("main").unwrap();
    let clone = tempfile::tempdir().unwrap();
    git(clone.path(), &["init", "--quiet"]);
    let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    let desk = Desk { drive, node, clone, base, claims: std::cell::Cell::new(0) };
    (desk, forge)
}

const KINDS: [ForgeKind; 3] = ForgeKind::ALL;

#[tokio::test]
async fn at_a_forge_the_branch_is_pushed_and_one_pull_request_opened_also_after_a_stop() {
    for kind in KINDS {
        let (desk, forge) = at_forge(kind).await;
        let (held, opened) = desk.opened(TWO).await;
        let head = opened.head_commit.clone().unwrap();
        let pulls = forge.pulls();
        assert_eq!(pulls.len(), 1, "{kind}");
        assert_eq!(opened.remote_number, i64::try_from(pulls[0].number).ok());
        assert_eq!(forge.tip(&opened.branch), Some(head.clone()), "{kind}");
        assert_eq!(forge.tip("main"), Some(desk.base.clone()), "{kind}");
        // Stopped after it was opened there, before that was written down.
        desk.drive.app.db.execute(OPENING).await;
        let again = desk.open(&desk.drive.task).await.unwrap().unwrap();
        assert_eq!(
            (again.id, &again.head_commit, &again.url),
            (opened.id, &opened.head_commit, &opened.url)
        );
        assert_eq!(forge.pulls().len(), 1, "{kind}");
        desk.drive.step(&held, "pass", json!({})).await.expect(200);
        // It is merged and reviewed where it lives.
        let id = format!("/v1/pull-requests/{}", opened.id);
        desk.drive.admin.post(&format!("{id}/merge"), json!(null)).await.expect(409);
        let approve = json!({ "verdict": "approve" });
        desk.drive.admin.post(&format!("{id}/reviews"), approve).await.expect(409);
    }
}

#[tokio::test]
async fn what_lives_at_a_forge_is_closed_here_once_the_project_has_left_it() {
    let (desk, _forge) = at_forge(ForgeKind::Gitea).await;
    let (held, opened) = desk.opened(TWO).await;
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
    let close = format!("/v1/pull-requests/{}/close", opened.id);
    desk.drive.admin.post(&close, json!(null)).await.expect(409);
    let remote = format!("/v1/projects/{}/remote", desk.drive.project);
    desk.drive.admin.delete(&remote).await.expect(204);
    let closed = desk.drive.admin.post(&close, json!(null)).await.expect(200).json();
    assert_eq!(closed["state"], "closed");
}

#[tokio::test]
async fn at_a_forge_a_stop_after_the_push_leads_to_one_pull_request() {
    for kind in KINDS {
        let (desk, forge) = at_forge(kind).await;
        desk.worked(&desk.drive.task, TWO).await;
        // It answers the push, and then nothing more for a while.
        forge.trouble(Trouble::Broken);
        let first = desk.open(&desk.drive.task).await;
        let pushed = desk.drive.app.db.texts("SELECT branch FROM pull_requests").await;
        let again = desk.open(&desk.drive.task).await.unwrap().unwrap();
        assert!(first.is_err(), "{kind}");
        assert_eq!(pushed, std::slice::from_ref(&again.branch));
        assert_eq!(
            (forge.pulls().len(), forge.tip(&again.branch)),
            (1, again.head_commit),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn a_branch_that_the_forge_refuses_is_a_failure_in_words() {
    let (desk, forge) = at_forge(ForgeKind::Gitea).await;
    desk.worked(&desk.drive.task, TWO).await;
    let task = &desk.drive.task;
    let branch = format!("cynode/mend-it-{}", &task[task.len() - 8..]);
    let other = forge.commit(&branch, "b.txt", "somebody else's\n");
    let refused = desk.open(task).await.unwrap_err();
    assert!(matches!(refused, Error::UpstreamRejected(_)), "{refused:?}");
    assert_eq!(forge.tip(&branch), Some(other), "nothing is forced");
    let shown = desk.drive.app.db.texts("SELECT state FROM pull_requests").await;
    assert_eq!((shown, forge.pulls().len()), (vec!["failed".to_owned()], 0));
}

/// What a restore writes down.
const RESTORED: &str =
    "INSERT INTO installation_epochs (epoch, reason, began_at, backup_id, backup_taken_at)
    VALUES (2, 'restored', now(), gen_random_uuid(), now())";

#[tokio::test]
async fn a_restored_installation_builds_upon_what_the_lost_one_pushed_for_the_task() {
    let (desk, forge) = at_forge(ForgeKind::Gitea).await;
    desk.worked(&desk.drive.task, TWO).await;
    let task = &desk.drive.task;
    let branch = format!("cynode/mend-it-{}", &task[task.len() - 8..]);
    let message = format!("Say two\n\nCyNode-Task: {task}\n");
    let there = forge.directory();
    let lost = git(&there, &["commit-tree", "main^{tree}", "-p", "main", "-m", &message]);
    forge.force(&branch, &lost);
    desk.drive.app.db.execute(RESTORED).await;
    let opened = desk.open(task).await.unwrap().unwrap();
    let head = opened.head_commit.clone().unwrap();
    assert_eq!((opened.branch.as_str(), forge.tip(&branch)), (branch.as_str(), Some(head.clone())));
    let parents = git(&there, &["log", "-1", "--format=%P", &head]);
    assert_eq!(parents, format!("{} {lost}", desk.base), "nothing is forced");
    assert_eq!(git(&there, &["show", &format!("{head}:a.txt")]), "one\ntwo");
    // Stopped before that was written down, the repetition takes what it pushed itself.
    desk.drive.app.db.execute(OPENING).await;
    let again = desk.open(task).await.unwrap().unwrap();
    assert_eq!((again.head_commit, forge.tip(&branch)), (Some(head.clone()), Some(head)));
    assert_eq!(forge.pulls().len(), 1);
}

#[tokio::test]
async fn a_restored_installation_takes_nobody_elses_commit_for_its_own() {
    let (desk, forge) = at_forge(ForgeKind::Github).await;
    desk.worked(&desk.drive.task, TWO).await;
    let task = &desk.drive.task;
    let branch = format!("cynode/mend-it-{}", &task[task.len() - 8..]);
    let other = forge.commit(&branch, "b.txt", "somebody else's\n");
    desk.drive.app.db.execute(RESTORED).await;
    let refused = desk.open(task).await.unwrap_err();
    assert!(matches!(refused, Error::UpstreamRejected(_)), "{refused:?}");
    assert_eq!(forge.tip(&branch), Some(other));
}

#[tokio::test]
async fn where_only_a_branch_is_wanted_no_pull_request_is_opened_there() {
    let (desk, forge) = at_forge(ForgeKind::Github).await;
    desk.prefer("delivery.mode", json!("branch")).await;
    let (held, opened) = desk.opened(TWO).await;
    assert_eq!((forge.tip(&opened.branch), forge.pulls().len()), (opened.head_commit, 0));
    desk.drive.step(&held, "pass", json!({})).await.expect(200);
}

#[tokio::test]
async fn people_fetch_the_branches_of_a_project_with_git_and_nothing_else_of_it() {
    let desk = Desk::new().await;
    let (commit, bundle) = desk.committed(&desk.base, &[("kept.txt", "aside\n")]);
    let file = desk.clone.path().join(".git/aside.bundle");
    std::fs::write(&file, bundle).unwrap();
    let aside = format!("{commit}:refs/jobs/one");
    desk.inside(&["fetch", "--quiet", &file.to_string_lossy(), &aside]);
    let viewer = desk.drive.app.user("vera", None).await;
    let project = desk.drive.project.parse().unwrap();
    let place = format!("/v1/projects/{}/git", desk.drive.project);
    let refs = format!("{place}/info/refs?service=git-upload-pack");
    assert_eq!(viewer.get(&refs).await.status, 404);
    desk.drive.app.member(project, &viewer, UserRole::Viewer).await;
    let offered = viewer.get(&refs).await.expect(200);
    let offered = String::from_utf8_lossy(&offered.body).into_owned();
    assert!(offered.contains(&format!("{} refs/heads/main", desk.base)), "{offered}");
    assert!(!offered.contains(&commit), "{offered}");
    // What is not offered is not given to whoever knows its name either.
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let ask = async |wanted: &str, version: u8| {
        let question = if version == 2 {
            let wanted = line(&format!("want {wanted}\n"));
            format!("{}0001{wanted}{}0000", line("command=fetch\n"), line("done\n"))
        } else {
            format!("{}0000{}", line(&format!("want {wanted} no-progress\n")), line("done\n"))
        };
        let request = axum::http::Request::post(format!("{place}/git-upload-pack"))
            .header("authorization", format!("Bearer {}", viewer.token().unwrap()))
            .header("git-protocol", format!("version={version}"))
            .body(axum::body::Body::from(question))
            .unwrap();
        let body = viewer.oneshot(request).await.into_body();
        let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        body.windows(4).any(|word| word == b"PACK")
    };
    assert_eq!((ask(&desk.base, 1).await, ask(&commit, 1).await), (true, false));
    assert!(!ask(&commit, 2).await, "version 2 gives whatever is named");
    let pushing = format!("{place}/info/refs?service=git-receive-pack");
    viewer.get(&pushing).await.expect(400);
}

#[tokio::test]
async fn a_branch_that_lacks_what_the_project_has_is_refused_with_what_to_do() {
    let desk = Desk::new().await;
    let bundle = {
        let at = tempfile::tempdir().unwrap();
        git(at.path(), &["init", "--quiet"]);
        std::fs::write(at.path().join("b.txt"), "another story\n").unwrap();
        git(at.path(), &["add", "."]);
        git(at.path(), &["commit", "--quiet", "-m", "another"]);
        git(at.path(), &["bundle", "create", "--quiet", ".git/all.bundle", "--branches"]);
        std::fs::read(at.path().join(".git/all.bundle")).unwrap()
    };
    let place = format!("/v1/projects/{}/repository", desk.drive.project);
    let (status, said) = put(&desk.drive.admin, &place, bundle).await;
    assert_eq!(status, 422, "{said}");
    assert!(said["detail"].as_str().unwrap().contains("branches only move forward"), "{said}");
    assert_eq!(desk.at("main"), desk.base);
}
