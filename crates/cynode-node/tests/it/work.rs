use std::collections::BTreeMap;

use cynode_core::{
    nodes::{JobEventData, JobPhase, WorkStopReason},
    workflow::{
        instructions::InstructionKind,
        jobs::{CommitRule, ScriptedMove},
    },
};
use cynode_wire::{nodes::JobInstruction, workflow::jobs::JobOutcome};
use uuid::Uuid;

use crate::{
    fake::{Fake, World},
    program::{
        Machine, bring_back, change, git, job, no_process, repository, say, shell, sleep_forever,
        some_process, until, write,
    },
};

fn told(world: &World, job: cynode_core::ids::JobId) -> Vec<JobEventData> {
    world.jobs[&job].events.iter().map(|event| event.data.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_comes_back_as_a_commit_on_its_base() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let running = machine.start();
    let mut assignment = job(vec![
        shell("cat README && git log --format=%s && git remote | wc -l"),
        write("new file", "made here\n"),
        say("I made a file."),
    ]);
    assignment.base = Some(base.clone());
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(
        (result.outcome, result.result.stop_reason),
        (JobOutcome::Succeeded, Some(WorkStopReason::EndTurn)),
        "{result:?}"
    );
    assert_eq!(result.result.summary, "I made a file.");
    let (commit, bundle) = (result.result.commit.unwrap(), result.result.bundle.unwrap());
    let file = origin.path().join("work.bundle");
    std::fs::write(&file, &fake.world().blobs[&bundle.sha256]).unwrap();
    git(
        origin.path(),
        &["fetch", "--quiet", file.to_str().unwrap(), "refs/heads/cynode/work:back"],
    );
    assert_eq!(git(origin.path(), &["rev-parse", "back"]), commit);
    assert_eq!(git(origin.path(), &["rev-parse", "back^"]), base);
    assert_eq!(git(origin.path(), &["show", "back:new file"]), "made here");
    assert_eq!(
        git(origin.path(), &["log", "-1", "--format=%an|%s", "back"]),
        "CyNode developer|Add a file"
    );
    machine.cleared().await;
    let world = fake.world();
    let events = told(&world, assignment.job_id);
    let phases: Vec<_> = events
        .iter()
        .filter_map(|what| match what {
            JobEventData::Phase { phase } => Some(*phase),
            _ => None,
        })
        .collect();
    assert_eq!(phases, [JobPhase::Preparing, JobPhase::Working, JobPhase::Finishing]);
    let output: String = events
        .iter()
        .filter_map(|what| match what {
            JobEventData::Output { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(output, "hello\nBegin\n0\n");
    assert_eq!(world.jobs[&assignment.job_id].posts, 1);
    drop((world, running));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_is_fetched_once_for_the_same_commit() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake).with(&["--slots", "1"]);
    let _running = machine.start();
    let mut fetches = Vec::new();
    for _ in 0..2 {
        let mut assignment = job(vec![say("read")]);
        assignment.base = Some(base.clone());
        fake.give(assignment.clone());
        fake.result(assignment.job_id).await;
        fetches.push(fake.world().fetches);
    }
    assert!(fetches[0] > 0);
    assert_eq!(fetches[0], fetches[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_has_fails_the_job_and_says_so() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let mut assignment = job(vec![say("never")]);
    assignment.base = Some("ab".repeat(20));
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(
        (result.outcome, result.result.stop_reason),
        (JobOutcome::Failed, Some(WorkStopReason::Workspace))
    );
    assert!(result.result.summary.contains(&"ab".repeat(20)), "{}", result.result.summary);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_files_are_larger_than_the_disk_of_a_job_is_not_checked_out() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    // Small in the repository.
    let large = change(origin.path(), &base, "head -c 2000000 /dev/zero > large");
    // The files alone would fit.
    let many = "for d in $(seq 200); do mkdir $d; : > $d/f; done";
    let many = change(origin.path(), &base, many);
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    for commit in [large, many] {
        let mut assignment = job(vec![say("never")]);
        assignment.base = Some(commit.clone());
        assignment.work.sandbox.disk_mib = Some(1);
        fake.give(assignment.clone());
        let result = fake.result(assignment.job_id).await;
        let why = format!(
            "the files of the commit {commit} need more than the 1048576 bytes of disk that the job has"
        );
        assert_eq!(
            (result.outcome, result.result.stop_reason, result.result.summary),
            (JobOutcome::Failed, Some(WorkStopReason::Workspace), why)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_said_to_be_in_the_files_is_not_in_the_commit() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    let base = change(
        origin.path(),
        &base,
        "echo '*.log' > .gitignore; echo run > run; chmod +x run; mkdir sub
         git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub",
    );
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let script = "
        blob=$(echo huge | git hash-object -w --stdin)
        git update-index --add --cacheinfo 100644,$blob,huge && git update-index --skip-worktree huge
        git update-index --assume-unchanged README && echo changed > README
        echo kept > kept.log && git add --force kept.log
        echo meant > meant && git add --intent-to-add meant
    ";
    let mut assignment = job(vec![shell(script)]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    bring_back(&fake, origin.path(), &result.result);
    let tree = git(origin.path(), &["ls-tree", "--format=%(objectmode) %(path)", "back"]);
    let expected =
        "100644 .gitignore\n100644 README\n100644 kept.log\n100644 meant\n100755 run\n160000 sub";
    assert_eq!(tree, expected);
    assert_eq!(git(origin.path(), &["show", "back:README"]), "changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_hides_from_git_is_in_the_commit_as_files_and_no_program_of_it_runs() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    let base = change(
        origin.path(),
        &base,
        "mkdir sub; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub",
    );
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    // The filter would stand in the way of the bundle.
    let script = "
        git init --quiet api && echo x > api/f
        git init --quiet whole && echo x > whole/f && git -C whole add f
        git -C whole -c user.name=x -c user.email=x@x commit --quiet -m whole
        git add whole && echo y > whole/f && echo '* filter=evil' > whole/.gitattributes
        printf '[filter \"evil\"]\\nclean = mkdir /out/work.bundle\\n' >> whole/.git/config
        echo shut > shut && chmod 000 shut
        mkdir -p closed/in && echo x > closed/in/f && git init --quiet closed/in/api && echo x > closed/in/api/f
        chmod 500 closed/in/api && chmod 000 closed/in && chmod 000 closed
    ";
    let mut assignment = job(vec![shell(script)]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    bring_back(&fake, origin.path(), &result.result);
    let tree = git(origin.path(), &["ls-tree", "-r", "--format=%(objectmode) %(path)", "back"]);
    let expected = "100644 README\n100644 api/f\n100644 closed/in/api/f\n100644 closed/in/f\n\
                    100644 shut\n160000 sub\n100644 whole/.gitattributes\n100644 whole/f";
    assert_eq!(tree, expected);
    assert_eq!(git(origin.path(), &["show", "back:whole/f"]), "y");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submodule_is_at_the_commit_that_is_checked_out_in_it_though_nobody_staged_that() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let begin = repository(origin.path());
    let begin = begin.as_str();
    let base = change(
        origin.path(),
        begin,
        "for sub in aside branch detached empty evil packed; do
             mkdir $sub; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),$sub
         done",
    );
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    // One has its repository where none of a submodule is, and one names a file that is no ref.
    let script = "
        git init --quiet branch
        mkdir -p .git/modules && git init --quiet --separate-git-dir=.git/modules/other detached
        git init --quiet packed
        git init --quiet --separate-git-dir=elsewhere aside
        git init --quiet evil
        for sub in branch detached packed aside evil; do
            git -C $sub -c user.name=x -c user.email=x@x commit --quiet --allow-empty -m $sub
            git -C $sub rev-parse HEAD >> commits
        done
        git -C detached checkout --quiet --detach
        git -C packed pack-refs --all
        echo 'ref: refs/../../../commits' > evil/.git/HEAD
    ";
    let mut assignment = job(vec![shell(script)]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    bring_back(&fake, origin.path(), &result.result);
    let commits = git(origin.path(), &["show", "back:commits"]);
    let [branch, detached, packed, ..] = commits.lines().collect::<Vec<_>>()[..] else {
        panic!("{commits}");
    };
    let tree =
        git(origin.path(), &["ls-tree", "--format=%(objectmode) %(objectname) %(path)", "back"]);
    let links: Vec<_> = tree.lines().filter_map(|line| line.strip_prefix("160000 ")).collect();
    let expected = [
        (begin, "aside"),
        (branch, "branch"),
        (detached, "detached"),
        (begin, "empty"),
        (begin, "evil"),
        (packed, "packed"),
    ];
    assert_eq!(links, expected.map(|(commit, path)| format!("{commit} {path}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_does_to_its_repository_does_not_reach_the_result() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let script = "
        git checkout --quiet --orphan elsewhere && git rm --quiet -rf . && echo mine > mine
        git -c user.name=x -c user.email=x@x commit --quiet --allow-empty -m rewritten
        mkdir -p .git/hooks .git/info
        for hook in pre-commit post-commit post-index-change reference-transaction; do
            printf '#!/bin/sh\\ntouch /work/hooked\\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook
        done
        echo '* filter=evil' > .git/info/attributes
        printf '[core]\\nfsmonitor = touch /work/monitored\\nworktree = /home/agent\\n' >> .git/config
        printf '[filter \"evil\"]\\nclean = touch /work/filtered\\n' >> .git/config
        echo planted > /out/commit
    ";
    let mut assignment = job(vec![shell(script)]);
    assignment.base = Some(base.clone());
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    let bundle = result.result.bundle.clone().unwrap_or_else(|| panic!("{result:?}"));
    let file = origin.path().join("work.bundle");
    std::fs::write(&file, &fake.world().blobs[&bundle.sha256]).unwrap();
    git(
        origin.path(),
        &["fetch", "--quiet", file.to_str().unwrap(), "refs/heads/cynode/work:back"],
    );
    assert_eq!(git(origin.path(), &["rev-parse", "back^"]), base);
    assert_eq!(git(origin.path(), &["ls-tree", "--name-only", "back"]), "mine");
    assert_eq!(git(origin.path(), &["show", "back:mine"]), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_says_more_than_anybody_could_read_is_not_taken() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let script = "
        commit=$(head -c 20000000 /dev/zero | tr '\\0' x |
            git -c user.name=x -c user.email=x@x commit-tree -p HEAD 'HEAD^{tree}')
        git update-ref HEAD $commit
    ";
    let mut assignment = job(vec![shell(script), say("I wrote much.")]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await.result;
    let why = "I wrote much.\n\nWhat was changed is lost: the work could not be put together: \
               a commit in its history is larger than 16777216 bytes.";
    assert_eq!((result.commit, result.summary.as_str()), (None, why));
}

/// A pack of some kilobytes in a new repository, one file of which expands to half a gibibyte. Gives its last commit.
fn delta_bomb(file: &std::path::Path, parent: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../prove/support/delta_bomb.py");
    let done = std::process::Command::new("python3")
        .arg(script)
        .arg(file)
        .args(["--expand", "536870912", "--parent", parent])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_expands_to_any_size_is_not_taken_though_a_later_commit_removes_it() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let root = repository(origin.path());
    let bomb = delta_bomb(&origin.path().join("bomb.pack"), &root);
    git(origin.path(), &["index-pack", "bomb.pack"]);
    git(origin.path(), &["add", "--force", "bomb.pack", "bomb.idx"]);
    git(origin.path(), &["commit", "--quiet", "--message", "Bring what the agent would write"]);
    let base = git(origin.path(), &["rev-parse", "HEAD"]);
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let script = format!(
        "
        for end in pack idx; do cp bomb.$end .git/objects/pack/pack-{bomb}.$end; done
        commit=$(git -c user.name=x -c user.email=x@x commit-tree -p HEAD -p {bomb} -m x 'HEAD^{{tree}}')
        git update-ref HEAD $commit
        "
    );
    let mut assignment = job(vec![shell(&script), say("I wrote a little.")]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await.result;
    let why = "I wrote a little.\n\nWhat was changed is lost: the work could not be put together: \
               a blob in its history is larger than 104857600 bytes.";
    assert_eq!((result.commit, result.summary.as_str()), (None, why));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_expands_to_any_size_fails_the_job_at_once_and_leaves_the_node_alone() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let root = repository(origin.path());
    let file = origin.path().join(".git/objects/pack/pack-bomb.pack");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let bomb = delta_bomb(&file, &root);
    git(origin.path(), &["index-pack", file.to_str().unwrap()]);
    git(origin.path(), &["update-ref", "refs/heads/bomb", &bomb]);
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let mut assignment = job(vec![say("never")]);
    assignment.base = Some(bomb);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(
        (result.outcome, result.result.stop_reason),
        (JobOutcome::Failed, Some(WorkStopReason::Workspace))
    );
    let summary = result.result.summary;
    let why = "git fetch needs more memory, time or space than it is given";
    assert!(summary.contains(why), "{summary}");
    let world = fake.world();
    let again = told(&world, assignment.job_id).into_iter().filter(|what| {
        matches!(what, JobEventData::Note { text } if text.contains("could not be fetched, again"))
    });
    assert_eq!(again.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn git_outside_of_sandboxes_is_limited_and_is_not_root() {
    use std::os::unix::fs::MetadataExt;

    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    let running = machine.start();
    let mut assignment = job(vec![shell("git fsck --strict && cat README"), write("a", "b")]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
    drop(running);
    let owner = std::fs::metadata(machine.state()).unwrap().uid();
    let mirrors: Vec<_> =
        std::fs::read_dir(machine.state().join("mirrors")).unwrap().flatten().collect();
    assert_eq!(mirrors.len(), 1);
    let meta = mirrors[0].metadata().unwrap();
    assert_eq!(meta.mode() & 0o777, 0o700);
    // A node that is root gives its mirrors to a user without any rights, who is none of a job.
    assert_eq!(meta.uid() != owner, owner == 0);
    let own =
        if owner == 0 { vec!["--user".to_owned(), meta.uid().to_string()] } else { Vec::new() };
    let mut hold = machine.command();
    hold.args(["hold", "--confine"]).args(&own);
    hold.args([
        "--",
        "sh",
        "-c",
        "id -u; ulimit -d; ulimit -v; ulimit -t; grep NoNewPrivs /proc/self/status",
    ]);
    let piped = std::process::Stdio::piped;
    let mut child = hold.stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    // The program ends when this pipe closes.
    let held = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held);
    let said = String::from_utf8(output.stdout).unwrap();
    let meant = format!("{}\n229376\n524288\n300\nNoNewPrivs:\t1\n", meta.uid());
    assert_eq!(said, meant, "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_commit_that_is_not_there_is_a_failure() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let mut required = job(vec![say("I did nothing.")]);
    required.work.commit = CommitRule::Required;
    let mut never = job(vec![write("thrown away", "x"), say("I looked.")]);
    never.work.commit = CommitRule::Never;
    fake.give(required.clone());
    fake.give(never.clone());
    let result = fake.result(required.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Failed);
    assert_eq!(result.result.summary, "I did nothing.\n\nNothing was changed.");
    let result = fake.result(never.job_id).await;
    assert_eq!((result.outcome, result.result.commit), (JobOutcome::Succeeded, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_files_in_out_come_back_as_artifacts_and_links_do_not() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let script = "echo good > /out/report.txt; ln -s /etc/passwd /out/link; mkfifo /out/pipe; mkdir /out/dir";
    let assignment = job(vec![shell(script)]);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    let names: Vec<_> = result.result.artifacts.keys().cloned().collect();
    assert_eq!(names, ["report.txt"]);
    let blob = &result.result.artifacts["report.txt"];
    assert_eq!(fake.world().blobs[&blob.sha256], b"good\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_to_stop_stops_with_all_its_processes() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let assignment = job(vec![sleep_forever("71234501")]);
    fake.give(assignment.clone());
    fake.phase(assignment.job_id, JobPhase::Working).await;
    some_process("sleep 71234501").await;
    let began = std::time::Instant::now();
    fake.world().jobs.get_mut(&assignment.job_id).unwrap().stop = Some("cancelled".to_owned());
    no_process("sleep 71234501").await;
    assert!(began.elapsed().as_secs_f64() < 2.0, "B004-39: {:?}", began.elapsed());
    machine.cleared().await;
    assert_eq!(fake.world().jobs[&assignment.job_id].posts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_ends_the_job_with_a_result_and_is_acknowledged() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let assignment = job(vec![sleep_forever("71234502")]);
    fake.give(assignment.clone());
    fake.phase(assignment.job_id, JobPhase::Working).await;
    some_process("sleep 71234502").await;
    let instruction_id = Uuid::from_u128(5);
    fake.instruct(JobInstruction {
        instruction_id,
        job_id: assignment.job_id,
        kind: InstructionKind::Abort,
        text: String::new(),
    });
    let result = fake.result(assignment.job_id).await;
    assert_eq!(
        (result.outcome, result.result.stop_reason),
        (JobOutcome::Failed, Some(WorkStopReason::Cancelled)),
        "S004-076: the agent ends"
    );
    no_process("sleep 71234502").await;
    fake.until("the instruction is acknowledged", |world| {
        world.delivered.contains(&instruction_id).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_takes_too_long_is_ended_and_what_it_did_is_kept() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let mut assignment = job(vec![write("half", "done"), sleep_forever("71234503")]);
    assignment.seconds_left = 3;
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(
        (result.outcome, result.result.stop_reason),
        (JobOutcome::Failed, Some(WorkStopReason::Timeout)),
        "{result:?}"
    );
    assert!(result.result.commit.is_some());
    no_process("sleep 71234503").await;
    let left = crate::program::processes("sleep 71234503");
    assert_eq!(left, Vec::<String>::new(), "B004-48: the process that took too long has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_jobs_run_at_once_as_there_are_slots() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake).with(&["--slots", "2"]);
    let _running = machine.start();
    let jobs: Vec<_> = (0..6).map(|_| job(vec![shell("sleep 0.2")])).collect();
    for assignment in &jobs {
        fake.give(assignment.clone());
    }
    for assignment in &jobs {
        fake.result(assignment.job_id).await;
    }
    let world = fake.world();
    assert!(world.claims.values().all(|jobs| jobs.len() <= 2));
    let posts: BTreeMap<_, _> = world.jobs.iter().map(|(id, record)| (*id, record.posts)).collect();
    assert!(posts.values().all(|posts| *posts == 1), "{posts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_and_one_without_room_take_no_jobs_and_give_up_what_nobody_needs() {
    let fake = Fake::start().await;
    fake.world().draining = true;
    let machine = Machine::joined(&fake);
    let running = machine.start();
    fake.until("it is heard", |world| (world.heartbeats > 0).then_some(())).await;
    let assignment = job(vec![ScriptedMove::Say { text: "done".to_owned() }]);
    // The first claim may have been under way before the node knew.
    fake.until("it is heard again", |world| (world.heartbeats > 1).then_some(())).await;
    drop(running);
    let full = Machine::joined(&fake).with(&["--min-free-disk-mib", "4000000000"]);
    let unused = full.state().join("mirrors/unused.git/objects");
    std::fs::create_dir_all(&unused).unwrap();
    fake.world().draining = false;
    let running = full.start();
    let heard = fake.world().heartbeats;
    fake.give(assignment.clone());
    fake.until("it is heard", |world| (world.heartbeats > heard + 1).then_some(())).await;
    assert_eq!(fake.world().queue.len(), 1);
    // What is only a copy and nobody needs makes room.
    until(|| !unused.exists(), || "the unused mirror is gone".to_owned()).await;
    full.cleared().await;
    drop(running);
    let _running = machine.start();
    assert_eq!(fake.result(assignment.job_id).await.outcome, JobOutcome::Succeeded);
}
