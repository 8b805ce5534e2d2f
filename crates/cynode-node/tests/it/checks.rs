//! Checks of a commit: run in a sandbox of their own, by files as they were before the change.

use cynode_core::{
    environments::{TestReportFormat, TestReportSource},
    evidence::{
        EvidenceCheck,
        test_results::{TestReport, TestStatus},
    },
    nodes::{CommandOutcome, WorkStopReason},
    workflow::jobs::{CommitRule, SandboxBackend, WorkerChoice},
};
use cynode_wire::{
    nodes::{JobAssignment, NodeResult, SandboxUse, WorkResult},
    workflow::jobs::JobOutcome,
};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::{
    fake::Fake,
    program::{Machine, Running, change, job, no_process, repository, some_process},
    world::{IMAGE, image},
};

struct Scene {
    fake: Fake,
    machine: Machine,
    running: Running,
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
        Self { fake, machine, running, origin, base }
    }

    fn change(&self, from: &str, script: &str) -> String {
        change(self.origin.path(), from, script)
    }

    async fn result(&self, assignment: &JobAssignment) -> NodeResult {
        self.fake.give(assignment.clone());
        self.fake.result(assignment.job_id).await
    }

    /// What came of the checks of a commit; all of them could be run.
    async fn run(
        &self,
        commit: &str,
        from: Option<&str>,
        checks: &[EvidenceCheck],
    ) -> Vec<CommandOutcome> {
        let result = self.result(&checking(commit, from, checks)).await;
        let said = match checks.len() {
            1 => "The check was run.".to_owned(),
            count => format!("All {count} checks were run."),
        };
        let steps = timeless(result.result.steps);
        let rest = WorkResult {
            steps: Vec::new(),
            resource_usage: SandboxUse::default(),
            ..result.result
        };
        let expected = WorkResult {
            summary: said,
            stop_reason: Some(WorkStopReason::EndTurn),
            ..WorkResult::default()
        };
        assert_eq!((result.outcome, rest), (JobOutcome::Succeeded, expected));
        steps
    }
}

fn checking(commit: &str, from: Option<&str>, checks: &[EvidenceCheck]) -> JobAssignment {
    let mut assignment = job(Vec::new());
    assignment.base = Some(commit.to_owned());
    assignment.work.commit = CommitRule::Never;
    let pinned_from = from.map(str::to_owned);
    assignment.work.worker = WorkerChoice::Checks { checks: checks.to_vec(), pinned_from };
    assignment
}

/// The outcomes without the times, which are never the same.
fn timeless(mut steps: Vec<CommandOutcome>) -> Vec<CommandOutcome> {
    for step in &mut steps {
        step.milliseconds = 0;
    }
    steps
}

fn outcome(check: &EvidenceCheck, exit_code: Option<i32>, output: &str) -> CommandOutcome {
    CommandOutcome {
        argv: check.argv.clone(),
        exit_code,
        output: output.into(),
        expected: None,
        sha256: HEXLOWER.encode(&Sha256::digest(output)),
        truncated: false,
        milliseconds: 0,
        tests: None,
    }
}

/// A check that could not be run: nothing was written.
fn unrun(check: &EvidenceCheck, why: &str) -> CommandOutcome {
    CommandOutcome { output: why.into(), ..outcome(check, None, "") }
}

fn argv(words: &[&str]) -> EvidenceCheck {
    EvidenceCheck::new(words.iter().map(|word| (*word).to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_check_is_run_whatever_the_ones_before_came_to() {
    let scene = Scene::new().await;
    let mut late = EvidenceCheck::from_shell_line("echo begun; exec sleep 71234601");
    late.time_limit_seconds = Some(1);
    let mut mute = EvidenceCheck::from_shell_line("exec >&- 2>&- sleep 71234601");
    mute.time_limit_seconds = Some(1);
    let checks = [
        EvidenceCheck::from_shell_line("cat README; exit 3"),
        late,
        EvidenceCheck::from_shell_line("kill -SEGV $$"),
        argv(&["no-such-program"]),
        EvidenceCheck::from_shell_line("echo words >&2"),
        argv(&["cat", "README"]),
        mute,
        EvidenceCheck::from_shell_line("exit 137"),
    ];
    let steps = scene.run(&scene.base, None, &checks).await;
    let missing = "cynode-sandbox-init: cannot run no-such-program in /work: No such file or directory (os error 2)\n";
    let expected = [
        outcome(&checks[0], Some(3), "hello\n"),
        outcome(&checks[1], None, "begun\n"),
        // 128 and the signal, as a shell says it; a program may also give it by itself.
        outcome(&checks[2], Some(139), ""),
        outcome(&checks[3], Some(127), missing),
        outcome(&checks[4], Some(0), "words\n"),
        outcome(&checks[5], Some(0), "hello\n"),
        outcome(&checks[6], None, ""),
        outcome(&checks[7], Some(137), ""),
    ];
    assert_eq!(steps, expected);
    no_process("sleep 71234601").await;
    scene.machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_checks_write_is_taken_out() {
    let scene = Scene::new().await;
    let script = "echo new > new; echo more >> README; echo left > /out/report; git add --all";
    let mut assignment = checking(&scene.base, None, &[EvidenceCheck::from_shell_line(script)]);
    assignment.work.commit = CommitRule::Required;
    let result = scene.result(&assignment).await;
    let found = (result.result.commit, result.result.bundle, result.result.artifacts.len());
    assert_eq!((result.outcome, found), (JobOutcome::Succeeded, (None, None, 0)));
    assert!(scene.fake.world().blobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_have_neither_models_nor_tools_nor_a_token() {
    let scene = Scene::new().await;
    let script = "
        ls /run/cynode/*.sock 2>/dev/null
        for port in 4001 4002 4003; do
            (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && echo open $port
        done
        grep -rsl the-job-token /home /work /out /run /tmp /proc/self/environ
        env | grep -i token
        ls -A /home/agent /out
        true";
    let check = argv(&["bash", "-c", script]);
    let steps = scene.run(&scene.base, None, std::slice::from_ref(&check)).await;
    assert_eq!(steps, [outcome(&check, Some(0), "/home/agent:\n\n/out:\n")]);
    assert!(scene.fake.world().agents.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_checks_go_by_are_as_they_were_before_the_change() {
    let scene = Scene::new().await;
    let before = scene.change(
        &scene.base,
        "printf '#!/bin/sh\necho honest; exit 1\n' > check.sh; chmod +x check.sh; mkdir -p deep/er
         echo right > deep/er/expected; echo right > other; echo before > 'a name'; echo first > gone.txt; ln -s other link.txt",
    );
    let after = scene.change(
        &before,
        "printf '#!/bin/sh\necho all good\n' > check.sh; chmod -x check.sh; rm -r deep; ln -s /etc deep
         echo wrong > other; echo after > 'a name'; rm gone.txt link.txt; ln -s check.sh link.txt; echo new > new.txt
         printf '* text eol=crlf ident filter=evil\ngone.txt working-tree-encoding=UTF-16LE\n' > .gitattributes",
    );
    let mut pinned = argv(&["cat", "a name", "other"]);
    pinned.pins = vec!["a name".into(), "no such file".into(), "deep".into()];
    let checks = [
        argv(&["./check.sh"]),
        EvidenceCheck::from_shell_line("cat deep/er/expected gone.txt; readlink link.txt"),
        pinned,
        // It was not there before: it is the change's own.
        argv(&["cat", "new.txt"]),
    ];
    let steps = scene.run(&after, Some(&before), &checks).await;
    let expected = [
        outcome(&checks[0], Some(1), "honest\n"),
        outcome(&checks[1], Some(0), "right\nfirst\nother\n"),
        outcome(&checks[2], Some(0), "before\nwrong\r\n"),
        outcome(&checks[3], Some(0), "new\r\n"),
    ];
    assert_eq!(steps, expected);
    let unpinned = scene.run(&after, None, &checks[2..3]).await;
    assert_ne!(unpinned, steps[2..3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_cannot_change_what_the_next_one_goes_by() {
    let scene = Scene::new().await;
    let before = scene.change(&scene.base, "echo 'echo honest; exit 1' > second.sh");
    let after = scene.change(
        &before,
        "echo 'echo exit 0 > second.sh; rm -rf .git; mkdir x; touch x/left' > first.sh
         echo 'x=$(echo thgir | rev); echo echo $x > third.sh' > third.sh",
    );
    let checks = [
        EvidenceCheck::from_shell_line("sh first.sh"),
        EvidenceCheck::from_shell_line("sh ./second.sh"),
        // In the place of the file, a way to somewhere else; then a directory.
        EvidenceCheck::from_shell_line("rm second.sh && ln -s /etc/passwd second.sh"),
        EvidenceCheck::from_shell_line("sh ./second.sh"),
        EvidenceCheck::from_shell_line("rm second.sh && mkdir second.sh && touch second.sh/full"),
        EvidenceCheck::from_shell_line("sh ./second.sh"),
        EvidenceCheck::from_shell_line("ls x"),
        // It mends what the next one looks at, which no check goes by.
        EvidenceCheck::from_shell_line("sh third.sh"),
        EvidenceCheck::from_shell_line("grep -c right third*"),
    ];
    let steps = scene.run(&after, Some(&before), &checks).await;
    let honest = |at: usize| outcome(&checks[at], Some(1), "honest\n");
    let silent = |at: usize| outcome(&checks[at], Some(0), "");
    assert_eq!(
        steps,
        [
            silent(0),
            honest(1),
            silent(2),
            honest(3),
            silent(4),
            honest(5),
            // What is not in the commit is not there either.
            outcome(&checks[6], Some(2), "ls: cannot access 'x': No such file or directory\n"),
            silent(7),
            outcome(&checks[8], Some(1), "0\n"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_check_finds_the_files_of_the_commit_and_nothing_that_another_left() {
    let scene = Scene::new().await;
    let before = scene.change(&scene.base, "echo '*.built' > .gitignore; echo 1 > version");
    let after = scene.change(&before, "echo 2 > version");
    let leave = EvidenceCheck::from_shell_line(
        "echo spoilt > README; touch new a.built ~/left /out/left .git/left; git config alias.x y
         rm -f version; chmod 500 . .git ~; git rev-parse HEAD",
    );
    let look = EvidenceCheck::from_shell_line(
        "cat README; cat version; ls -A; ls -A ~ /out; ls .git/left 2>&1; git config alias.x; git status --short; git rev-parse HEAD",
    );
    let told = |check: &EvidenceCheck| {
        let list = ".git\n.gitignore\nREADME\nversion\n";
        let gone = "ls: cannot access '.git/left': No such file or directory\n";
        let text = format!("hello\n2\n{list}/home/agent:\n\n/out:\n{gone}{after}\n");
        outcome(check, Some(0), &text)
    };
    let head = outcome(&leave, Some(0), &format!("{after}\n"));
    let checks = [look.clone(), leave.clone(), look.clone(), leave.clone(), look.clone()];
    // Whether there are files to go by or not.
    for from in [Some(before.as_str()), None] {
        let steps = scene.run(&after, from, &checks).await;
        assert_eq!(steps, [told(&look), head.clone(), told(&look), head.clone(), told(&look)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_must_be_written_are_looked_for_in_all_that_is_written() {
    let scene = Scene::new().await;
    let expecting = |line: &str, words: &str| EvidenceCheck {
        expect_output: Some(words.to_owned()),
        ..EvidenceCheck::from_shell_line(line)
    };
    let flood = "yes | head -c 3000000";
    let checks = [
        expecting(&format!("echo 3 passed; {flood}"), "3 passed"),
        expecting(&format!("echo 3 passed >&2; {flood}"), "3 passed\n"),
        expecting(&format!("printf '3 pas'; {flood} >&2; printf 'sed'"), "3 passed"),
        expecting(&format!("echo 2 passed; {flood}"), "3 passed"),
        expecting("echo 3 passed; exit 1", "3 passed"),
    ];
    let steps = scene.run(&scene.base, None, &checks).await;
    let found: Vec<_> = steps
        .iter()
        .zip(&checks)
        .map(|(step, check)| {
            (step.expected, check.is_satisfied_by(step.exit_code, &step.output, step.expected))
        })
        .collect();
    let yes = (Some(true), true);
    assert_eq!(found, [yes, yes, yes, (Some(false), false), (Some(true), false)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn results_per_test_are_read_from_the_output_and_from_the_file_of_the_run() {
    let scene = Scene::new().await;
    let report = |format, path: Option<&str>, line: &str| EvidenceCheck {
        report: Some(TestReportSource { format, path: path.map(str::to_owned) }),
        ..EvidenceCheck::from_shell_line(line)
    };
    let junit = TestReportFormat::Junit;
    let xml = |name: &str| format!("<testsuite><testcase name=\"{name}\"/></testsuite>");
    let commit = scene.change(&scene.base, &format!("echo '{}' > report.xml", xml("forged")));
    let flood = "yes | head -c 3000000 >&2";
    let checks = [
        EvidenceCheck::from_shell_line(&format!(
            "echo TAP version 13; echo 1..1; echo ok 1 - a; {flood}"
        )),
        EvidenceCheck::from_shell_line("echo TAP version 13; echo not ok 1 - a; exit 1"),
        report(junit, Some("report.xml"), &format!("echo '{}' > report.xml", xml("real"))),
        report(junit, Some("report.xml"), "true"),
        report(junit, Some("report.xml"), "ln -s /etc/passwd report.xml"),
        report(junit, Some("report.xml"), "mkfifo report.xml"),
        EvidenceCheck::from_shell_line("echo hello"),
    ];
    let steps = scene.run(&commit, None, &checks).await;
    let single = |format, name: &str, status| {
        let mut report = TestReport::new(format);
        report.record_result(name, status);
        report
    };
    let tap = |status| single(TestReportFormat::Tap, "a", status);
    let cut = TestReport { incomplete: true, ..tap(TestStatus::Failed) };
    let expected = [
        Some(tap(TestStatus::Passed)),
        Some(cut),
        Some(single(junit, "real", TestStatus::Passed)),
        None,
        None,
        None,
        None,
    ];
    let found: Vec<_> = steps.into_iter().map(|step| step.tests).collect();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_put_back_is_no_success() {
    let scene = Scene::new().await;
    let before = scene.change(&scene.base, "echo 'exit 1' > check.sh");
    let after = scene.change(
        &before,
        "rm check.sh; mkdir check.sh; echo 'exit 0' > check.sh/x; echo 'exit 0' > other",
    );
    let mut odd = EvidenceCheck::from_shell_line("true");
    odd.pins = vec!["../outside".into()];
    let checks = [argv(&["sh", "./check.sh"]), odd, argv(&["sh", "other"])];
    let spoilt = "It goes by `check.sh`: it was a file before the change and is a directory now.";
    let expected = [
        unrun(&checks[0], spoilt),
        unrun(&checks[1], "It goes by \"../outside\", which is no path of a file."),
        outcome(&checks[2], Some(0), ""),
    ];
    assert_eq!(scene.run(&after, Some(&before), &checks).await, expected);
    // A directory in which nothing can be replaced is gone with the check that made it so.
    let gone = scene.change(&before, "rm check.sh");
    let checks = [
        EvidenceCheck::from_shell_line("rm -f ./check.sh; chmod a-w ."),
        argv(&["sh", "check.sh"]),
    ];
    let steps = scene.run(&gone, Some(&before), &checks).await;
    assert_eq!(steps, [outcome(&checks[0], Some(0), ""), outcome(&checks[1], Some(1), "")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_forks_ends_with_all_that_it_started() {
    let scene = Scene::new().await;
    let checks = [
        EvidenceCheck::from_shell_line(
            "(setsid sleep 71234602; touch late) > /dev/null 2>&1 & (sleep 71234602; touch late) & echo done",
        ),
        EvidenceCheck::from_shell_line("ls; pgrep sleep || echo nobody"),
    ];
    let steps = scene.run(&scene.base, None, &checks).await;
    assert_eq!(
        steps,
        [outcome(&checks[0], Some(0), "done\n"), outcome(&checks[1], Some(0), "README\nnobody\n")]
    );
    no_process("sleep 71234602").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_is_of_all_that_was_written() {
    let scene = Scene::new().await;
    let check = EvidenceCheck::from_shell_line("yes | head -c 3000000; echo the end");
    let steps = scene.run(&scene.base, None, std::slice::from_ref(&check)).await;
    let all = ["y\n".repeat(1_500_000).as_bytes(), b"the end\n"].concat();
    let step = &steps[0];
    assert_eq!((step.output.len(), step.truncated), (32 * 1024, true));
    assert_eq!(step.sha256, HEXLOWER.encode(&Sha256::digest(all)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_time_is_up_has_not_run_its_checks() {
    let scene = Scene::new().await;
    let checks = [
        EvidenceCheck::from_shell_line("exec sleep 71234603"),
        EvidenceCheck::from_shell_line("true"),
    ];
    let mut assignment = checking(&scene.base, None, &checks);
    assignment.seconds_left = 2;
    let result = scene.result(&assignment).await;
    assert_eq!(
        (result.outcome, result.result.stop_reason),
        (JobOutcome::Failed, Some(WorkStopReason::Timeout))
    );
    assert_eq!(timeless(result.result.steps), [outcome(&checks[0], None, "")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_checks_they_begin_anew() {
    let scene = Scene::new().await;
    let before = scene
        .change(&scene.base, "echo 'exec 2>&1; cat /home/agent/seen; ls; cat README' > look.sh");
    let after = scene.change(&before, "rm look.sh");
    let mut slow = EvidenceCheck::from_shell_line("exec sleep 71234604");
    slow.time_limit_seconds = Some(3);
    let spoil =
        "cat README; echo spoilt | tee README > /home/agent/seen; rm look.sh; mkdir ./look.sh";
    let checks = [EvidenceCheck::from_shell_line("sh look.sh"), argv(&["sh", "-c", spoil]), slow];
    let assignment = checking(&after, Some(&before), &checks);
    scene.fake.give(assignment.clone());
    some_process("sleep 71234604").await;
    let Scene { fake, machine, running, origin: _origin, .. } = scene;
    running.kill();
    no_process("sleep 71234604").await;
    let _running = machine.start();
    let result = fake.result(assignment.job_id).await;
    let look = "cat: /home/agent/seen: No such file or directory\nREADME\nlook.sh\nhello\n";
    let expected = [
        outcome(&checks[0], Some(0), look),
        outcome(&checks[1], Some(0), "hello\n"),
        outcome(&checks[2], None, ""),
    ];
    assert_eq!(
        (result.outcome, timeless(result.result.steps)),
        (JobOutcome::Succeeded, expected.to_vec())
    );
    assert_eq!(fake.world().jobs[&assignment.job_id].results.len(), 1);
    machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_container_too_files_are_as_they_were() {
    image();
    let scene = Scene::new().await;
    let before = scene.change(&scene.base, "echo 'cat README; exit 1' > check.sh");
    let after = scene.change(&before, "echo 'exit 0' > check.sh");
    let checks = [
        EvidenceCheck::from_shell_line("sh check.sh"),
        EvidenceCheck::from_shell_line("echo exit 0 > check.sh; cat check.sh"),
    ];
    let checks = [checks[0].clone(), checks[1].clone(), checks[0].clone()];
    let mut assignment = checking(&after, Some(&before), &checks);
    assignment.work.sandbox.backend = Some(SandboxBackend::Podman);
    let result = scene.result(&assignment).await;
    let honest = outcome(&checks[0], Some(1), "hello\n");
    let expected = [honest.clone(), outcome(&checks[1], Some(0), "exit 0\n"), honest];
    assert_eq!(
        (result.outcome, timeless(result.result.steps)),
        (JobOutcome::Succeeded, expected.to_vec())
    );
}
