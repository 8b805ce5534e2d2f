//! Commits that are put together before the worker begins.

use cynode_core::{
    nodes::{JobEventData, WorkStopReason},
    workflow::jobs::{CommitRule, SandboxBackend, ScriptedMove, WorkerChoice},
};
use cynode_wire::{
    nodes::{JobAssignment, MergeConflict, NodeResult, SandboxUse, WorkResult},
    workflow::jobs::JobOutcome,
};

use crate::{
    fake::Fake,
    program::{
        Machine, Running, bring_back, change, git, job, no_process, processes, repository, say,
        shell, some_process, until, write,
    },
    world::{IMAGE, image},
};

struct Scene {
    fake: Fake,
    machine: Machine,
    _running: Running,
    origin: tempfile::TempDir,
    base: String,
}

impl Scene {
    async fn new() -> Self {
        let fake = Fake::start().await;
        let origin = tempfile::tempdir().unwrap();
        let base = repository(origin.path());
        fake.serve_repository(origin.path());
        let machine = Machine::joined(&fake).with(&["--default-image", IMAGE]);
        let running = machine.start();
        Self { fake, machine, _running: running, origin, base }
    }

    fn change(&self, from: &str, script: &str) -> String {
        change(self.origin.path(), from, script)
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(self.origin.path(), arguments)
    }

    /// A job that puts commits together and nothing else.
    fn merging(&self, commits: &[&String]) -> JobAssignment {
        let mut assignment = self.working(commits, Vec::new());
        assignment.work.worker = WorkerChoice::Merge;
        assignment
    }

    fn working(&self, commits: &[&String], moves: Vec<ScriptedMove>) -> JobAssignment {
        let mut assignment = job(moves);
        assignment.base = Some(self.base.clone());
        assignment.merge = commits.iter().map(|commit| (*commit).clone()).collect();
        assignment
    }

    async fn result(&self, assignment: &JobAssignment) -> NodeResult {
        self.fake.give(assignment.clone());
        self.fake.result(assignment.job_id).await
    }

    /// The commit that came back; the job must have succeeded.
    async fn commit(&self, assignment: &JobAssignment) -> String {
        self.fake.give(assignment.clone());
        self.brought(assignment).await
    }

    async fn brought(&self, assignment: &JobAssignment) -> String {
        let result = self.fake.result(assignment.job_id).await;
        assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
        assert_eq!(result.result.conflict, None);
        bring_back(&self.fake, self.origin.path(), &result.result)
    }

    /// Whether a commit comes from another.
    fn comes_from(&self, commit: &str, other: &str) -> bool {
        let mut command = std::process::Command::new("git");
        command.arg("-C").arg(self.origin.path());
        command.args(["merge-base", "--is-ancestor", other, commit]);
        command.status().unwrap().success()
    }

    fn parents(&self, commit: &str) -> String {
        self.git(&["log", "-1", "--format=%P", commit])
    }
}

/// The result without what is never the same.
fn plain(mut result: WorkResult) -> WorkResult {
    result.resource_usage = SandboxUse::default();
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_put_together_in_their_order_and_again_to_the_same_commit() {
    let scene = Scene::new().await;
    let [a, b, c] =
        ["a", "b", "c"].map(|name| scene.change(&scene.base, &format!("echo {name} > {name}")));
    let first = scene.merging(&[&a, &b, &c]);
    let commit = scene.commit(&first).await;
    // The first is only followed; each other one is a merge.
    let before = scene.git(&["rev-parse", "back^"]);
    assert_eq!(scene.parents(&commit), format!("{before} {c}"));
    assert_eq!(scene.parents(&before), format!("{a} {b}"));
    assert_eq!(scene.git(&["ls-tree", "--name-only", "back"]), "README\na\nb\nc");
    let how = scene.git(&[
        "log",
        "-1",
        "--format=%an <%ae>|%cn|%s|%(trailers:key=Task,valueonly)",
        "back",
    ]);
    let expected =
        format!("CyNode <agent@cynode.invalid>|CyNode|Merge {}|{}", &c[..12], first.task_id);
    assert_eq!(how, expected);
    let mut again = scene.merging(&[&a, &b, &c]);
    again.task_id = first.task_id;
    assert_eq!(scene.commit(&again).await, commit);
    let mut other = scene.merging(&[&c, &b, &a]);
    other.task_id = first.task_id;
    let other = scene.commit(&other).await;
    assert_eq!(scene.git(&["rev-parse", "back^2"]), a);
    assert_eq!(
        scene.git(&["rev-parse", &format!("{other}^{{tree}}")]),
        scene.git(&["rev-parse", &format!("{commit}^{{tree}}")])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_the_base_is_the_result_as_it_is() {
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo a > a");
    let b = scene.change(&a, "echo b > b");
    let assignment = scene.merging(&[&a, &b]);
    assert_eq!(scene.commit(&assignment).await, b);
    let nothing = scene.merging(&[&scene.base]);
    let result = scene.result(&nothing).await;
    let summary = "One commit was put together with the work.".to_owned();
    let expected =
        WorkResult { summary, stop_reason: Some(WorkStopReason::EndTurn), ..WorkResult::default() };
    assert_eq!((result.outcome, plain(result.result)), (JobOutcome::Succeeded, expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_that_starts_empty_takes_the_first_and_puts_the_others_to_it() {
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo a > a");
    let b = scene.change(&scene.base, "echo b > b");
    let mut assignment = scene.merging(&[&a, &b]);
    assignment.base = None;
    let commit = scene.commit(&assignment).await;
    assert_eq!(scene.parents(&commit), format!("{a} {b}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_that_nobody_can_mend_is_a_result_without_a_commit() {
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo a > README");
    let b = scene.change(&scene.base, "echo b > README; echo b > b");
    let c = scene.change(&scene.base, "echo c > c");
    let result = scene.result(&scene.merging(&[&a, &b, &c])).await;
    let summary = format!("The commit {b} does not fit, after one other was put together: README.");
    let conflict =
        MergeConflict { commit: b, merged_commits: vec![a], files: vec!["README".into()] };
    let expected = WorkResult {
        summary,
        stop_reason: Some(WorkStopReason::Conflict),
        conflict: Some(conflict),
        ..WorkResult::default()
    };
    assert_eq!((result.outcome, plain(result.result)), (JobOutcome::Failed, expected));
    scene.machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_conflict_names_its_files_and_leaves_a_tree_to_work_in() {
    let scene = Scene::new().await;
    let start = scene.change(
        &scene.base,
        r"seq 1 40 > moved; seq 100 140 > dropped; printf 'a\0b' > binary; mkdir dir; seq 1 9 > dir/x; echo t > 'odd
name é'; ln -s README link",
    );
    let ours = scene.change(
        &start,
        r"mv moved here; seq 100 141 > dropped; printf 'a\0c' > binary; rm -r dir; echo now a file > dir; echo u > 'odd
name é'; ln -sfn dropped link; echo ours > added",
    );
    let theirs = scene.change(
        &start,
        r"mv moved there; rm dropped; printf 'a\0d' > binary; echo 10 >> dir/x; echo v > 'odd
name é'; ln -sfn binary link; echo theirs > added",
    );
    let result = scene.result(&scene.merging(&[&ours, &theirs])).await;
    let files =
        result.result.conflict.unwrap_or_else(|| panic!("{:?}", result.result.summary)).files;
    for file in ["added", "binary", "dropped", "here", "link", "odd\nname é", "there"] {
        assert!(files.iter().any(|it| it == file), "{file:?} in {files:?}");
    }
    assert!(files.iter().any(|it| it.starts_with("dir")), "{files:?}");
    // A worker finds a repository in which git works, and whatever it decides comes back.
    let script = "git status --porcelain > /out/status; git add --all; git diff --cached --quiet HEAD || true; cat added";
    let commit = scene.commit(&scene.working(&[&ours, &theirs], vec![shell(script)])).await;
    assert_eq!(scene.parents(&commit), format!("{ours} {theirs}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_hundred_files_are_not_named_one_by_one() {
    let scene = Scene::new().await;
    let [a, b] = ["a", "b"].map(|side| {
        scene.change(&scene.base, &format!("for n in $(seq 1000 1149); do echo {side} > f$n; done"))
    });
    let result = scene.result(&scene.merging(&[&a, &b])).await;
    let expected: Vec<_> = (1000..1100).map(|n| format!("f{n}")).collect();
    assert_eq!(result.result.conflict.unwrap().files, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_mends_the_conflict_and_the_commit_comes_from_both() {
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo a > README");
    let b = scene.change(&scene.base, "echo b > README; echo b > b");
    let c = scene.change(&scene.base, "echo c > c");
    let look = shell("cat README; git rev-parse MERGE_HEAD");
    let moves = vec![look, write("README", "a and b\n"), say("Both hold now.")];
    let assignment = scene.working(&[&a, &b, &c], moves);
    let commit = scene.commit(&assignment).await;
    assert_eq!(scene.parents(&commit), format!("{a} {b}"));
    assert_eq!(scene.git(&["show", "back:README"]), "a and b");
    assert_eq!(scene.git(&["ls-tree", "--name-only", "back"]), "README\nb");
    assert!(!scene.comes_from(&commit, &c));
    let world = scene.fake.world();
    let output: String = world.jobs[&assignment.job_id]
        .events
        .iter()
        .filter_map(|event| match &event.data {
            JobEventData::Output { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let short = scene.git(&["rev-parse", "--short=7", &scene.base]);
    assert_eq!(
        output,
        format!("<<<<<<< HEAD\na\n||||||| {short}\nhello\n=======\nb\n>>>>>>> {b}\n{b}\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_worker_does_to_the_merge_the_commit_comes_from_everything_that_was_merged() {
    let scene = Scene::new().await;
    let z = scene.change(&scene.base, "echo z > z");
    let a = scene.change(&scene.base, "echo a > README");
    let b = scene.change(&scene.base, "echo b > README");
    let commit = "git -c user.name=x -c user.email=x@x commit --quiet";
    let scripts = [
        "git merge --abort".to_owned(),
        "git merge --abort; echo mine > mine".to_owned(),
        format!("echo both > README; git add README; {commit} -m merged"),
        format!("echo both > README; git add README; {commit} -m merged; echo more > more"),
        "rm .git/MERGE_HEAD; echo both > README".to_owned(),
        format!("rm .git/MERGE_HEAD; echo both > README; git add README; {commit} -m plain"),
        format!("git reset --quiet --hard {}; echo other > README", scene.base),
        format!("git reset --quiet --hard {b}"),
        format!(
            "git update-ref -d refs/cynode/merge/0; git reset --quiet --hard; git checkout --quiet --orphan x; {commit} -m new"
        ),
        "true".to_owned(),
    ];
    let jobs = scripts.map(|script| (scene.working(&[&z, &a, &b], vec![shell(&script)]), script));
    for (assignment, _) in &jobs {
        scene.fake.give(assignment.clone());
    }
    for (assignment, script) in jobs {
        let made = scene.brought(&assignment).await;
        for merged in [&scene.base, &z, &a, &b] {
            assert!(scene.comes_from(&made, merged), "{script}: {merged}");
        }
    }
    // The last one left the marks, and they are seen.
    assert!(scene.git(&["show", "back:README"]).starts_with("<<<<<<< HEAD\na\n||||||| "));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_together_is_no_change_of_the_worker() {
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo a > a");
    let b = scene.change(&scene.base, "echo b > b");
    let mut idle = scene.working(&[&a, &b], vec![say("I did nothing.")]);
    idle.work.commit = CommitRule::Required;
    let result = scene.result(&idle).await;
    let summary = "I did nothing.\n\nNothing was changed.".to_owned();
    assert_eq!(
        (result.outcome, result.result.summary, result.result.commit),
        (JobOutcome::Failed, summary, None)
    );
    let mut busy = scene.working(&[&a, &b], vec![write("d", "d")]);
    busy.work.commit = CommitRule::Required;
    scene.commit(&busy).await;
    assert_eq!(scene.git(&["ls-tree", "--name-only", "back"]), "README\na\nb\nd");
    // Where nothing is asked for, what was put together comes back.
    let made = scene.commit(&scene.working(&[&a, &b], vec![say("Nothing to do.")])).await;
    assert_eq!(scene.parents(&made), format!("{a} {b}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_has_cannot_be_put_together() {
    let scene = Scene::new().await;
    for (wrong, told) in [
        ("ab".repeat(20), "is not in the project's repository"),
        ("--help".into(), "is no name for git"),
    ] {
        let result = scene.result(&scene.merging(&[&wrong])).await;
        assert_eq!(
            (result.outcome, result.result.stop_reason),
            (JobOutcome::Failed, Some(WorkStopReason::Workspace))
        );
        assert!(result.result.summary.contains(told), "{}", result.result.summary);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_commit_says_about_files_runs_nothing_and_reaches_nothing() {
    let scene = Scene::new().await;
    let outside = tempfile::tempdir().unwrap();
    let hole = outside.path().join("hole");
    let attributes = "* merge=evil filter=evil diff=evil conflict-marker-size=40";
    // Settings come from no commit; a driver that is named and known to nobody is git's own.
    let a = scene.change(&scene.base, &format!(
        "echo '{attributes}' > .gitattributes; echo a > README; printf '[merge \"evil\"]\\ndriver = touch {hole}\\n' > .gitconfig
         mkdir -p hooks .githooks; printf '#!/bin/sh\\ntouch {hole}\\n' > hooks/post-merge; chmod +x hooks/post-merge; cp hooks/post-merge .githooks/
         ln -s {out} dir", hole = hole.display(), out = outside.path().display()));
    let b = scene.change(&scene.base, "echo b > README; mkdir dir; echo written > dir/hole; printf '[submodule \"x\"]\\npath = x\\nurl = ext::touch\\n' > .gitmodules");
    let result = scene.result(&scene.merging(&[&a, &b])).await;
    let conflict = result.result.conflict.unwrap_or_else(|| panic!("{:?}", result.result.summary));
    assert!(conflict.files.iter().any(|file| file == "README"), "{conflict:?}");
    assert!(!hole.exists());
    // The marks are as long as everywhere, so that they are found.
    let made = scene.commit(&scene.working(&[&a, &b], vec![say("I leave it.")])).await;
    assert!(scene.git(&["show", &format!("{made}:README")]).starts_with("<<<<<<< HEAD\n"));
    assert!(!hole.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_lines_that_were_never_settled_do_not_stand_in_the_way() {
    let scene = Scene::new().await;
    let before = scene.change(&scene.base, "printf 'one\r\ntwo\r\n' > lines");
    let start = scene.change(&before, "echo '* text' > .gitattributes");
    let a = scene.change(&start, "printf 'one\r\ntwo\r\nthree\r\n' > lines");
    let b = scene.change(&start, "echo b > b");
    let mut assignment = scene.merging(&[&b, &a]);
    assignment.base = Some(start);
    let commit = scene.commit(&assignment).await;
    assert_eq!(scene.parents(&commit), format!("{b} {a}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_writes_at_once_is_seen() {
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo one > a");
    // As long as before, in the same second, in the same file.
    let made =
        scene.commit(&scene.working(&[&a], vec![shell("echo two > a; echo jello > README")])).await;
    let both = ["a", "README"].map(|path| scene.git(&["show", &format!("{made}:{path}")]));
    assert_eq!(both, ["two", "jello"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_merge_it_comes_to_the_same_commits() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    let many = "mkdir -p d; for n in $(seq 400); do echo $n > d/$n; done";
    let base = change(origin.path(), &base, many);
    let commits: Vec<_> = (1..=8)
        .map(|side| {
            let each = format!("for n in $(seq {side} 8 400); do echo {side} >> d/$n; done");
            change(origin.path(), &base, &each)
        })
        .collect();
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let mut assignment = job(Vec::new());
    assignment.base = Some(base);
    assignment.merge = commits;
    assignment.work.worker = WorkerChoice::Merge;
    let mut undisturbed = assignment.clone();
    undisturbed.job_id = job(Vec::new()).job_id;
    let running = machine.start();
    fake.give(undisturbed.clone());
    let expected = fake.result(undisturbed.job_id).await.result.commit.unwrap();
    running.kill();
    fake.give(assignment.clone());
    let dir = machine.state().join("jobs").join(assignment.job_id.to_string());
    for merges in [0, 2] {
        let running = machine.start();
        // It is in the middle: some are put together and the others are not.
        some_process(&format!("merge {}", assignment.task_id)).await;
        let reflog = dir.join("workspace/.git/logs/HEAD");
        let far = || std::fs::read_to_string(&reflog).map_or(0, |log| log.lines().count()) > merges;
        until(far, || format!("{merges} are put together: {:?}", processes("merge"))).await;
        running.kill();
        assert!(!dir.join("merged.json").exists());
        no_process(&assignment.job_id.to_string()).await;
    }
    let _running = machine.start();
    let result = fake.result(assignment.job_id).await;
    assert_eq!((result.outcome, result.result.commit), (JobOutcome::Succeeded, Some(expected)));
    assert_eq!(fake.world().jobs[&assignment.job_id].results.len(), 1);
    machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_a_container_finds_what_was_put_together() {
    image();
    let scene = Scene::new().await;
    let a = scene.change(&scene.base, "echo a > README; echo a > a");
    let b = scene.change(&scene.base, "echo b > README");
    let mut assignment =
        scene.working(&[&a, &b], vec![shell("grep -c '^[<|>]' README; cat a > README")]);
    assignment.work.sandbox.backend = Some(SandboxBackend::Podman);
    let commit = scene.commit(&assignment).await;
    assert_eq!(scene.parents(&commit), format!("{a} {b}"));
    assert_eq!(scene.git(&["show", "back:README"]), "a");
}
