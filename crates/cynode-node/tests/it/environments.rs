//! Environments: set up once, jobs start over them, and nothing of a job reaches the next one.

use cynode_core::{
    environments::{
        EnvironmentRef, EnvironmentService, EnvironmentSpec, PackagePolicy, PackageSource,
    },
    evidence::{EvidenceCheck, test_results::LineCoverage},
    ids::JobId,
    nodes::{JobEventData, JobPhase, WorkStopReason},
    workflow::jobs::{CommitRule, ScriptedMove, WorkerChoice},
};
use cynode_wire::{
    identity::accounts::SecretText,
    nodes::{AssignedEnvironment, JobAssignment, NodeResult},
    workflow::jobs::JobOutcome,
};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::{
    fake::Fake,
    program::{
        Machine, Running, bring_back, change, git, job, no_process, processes, repository, say,
        shell, some_process, until,
    },
};

struct Scene {
    fake: Fake,
    machine: Machine,
    origin: tempfile::TempDir,
    base: String,
}

impl Scene {
    async fn new() -> (Self, Running) {
        let fake = Fake::start().await;
        let origin = tempfile::tempdir().unwrap();
        let base = repository(origin.path());
        fake.serve_repository(origin.path());
        let machine = Machine::joined(&fake).with(&["--slots", "3"]);
        let running = machine.start();
        (Self { fake, machine, origin, base }, running)
    }

    fn change(&self, from: &str, script: &str) -> String {
        change(self.origin.path(), from, script)
    }

    /// A job in an environment, from a commit.
    fn working(
        assigned: &AssignedEnvironment,
        commit: &str,
        moves: Vec<ScriptedMove>,
    ) -> JobAssignment {
        let mut assignment = job(moves);
        assignment.base = Some(commit.to_owned());
        assignment.work.sandbox.environment = Some(assigned.reference.clone());
        let trusted_commit = assigned.trusted_commit.clone().or_else(|| Some(commit.to_owned()));
        assignment.environment = Some(AssignedEnvironment { trusted_commit, ..assigned.clone() });
        assignment
    }

    /// What a script in an environment writes, as a job of its own.
    async fn output(&self, assigned: &AssignedEnvironment, commit: &str, script: &str) -> String {
        let assignment = Self::working(assigned, commit, vec![shell(script)]);
        let result = self.result(&assignment).await;
        assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", self.machine.log());
        self.worker_output(assignment.job_id)
    }

    /// What the checks of a commit write.
    async fn checked(
        &self,
        assigned: &AssignedEnvironment,
        commit: &str,
        scripts: &[&str],
    ) -> Vec<(Option<i32>, String)> {
        let mut assignment = Self::working(assigned, commit, Vec::new());
        let checks = scripts.iter().map(|line| EvidenceCheck::from_shell_line(line)).collect();
        assignment.work.worker = WorkerChoice::Checks { checks, pinned_from: None };
        assignment.work.commit = CommitRule::Never;
        let result = self.result(&assignment).await;
        assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", self.machine.log());
        result.result.steps.into_iter().map(|step| (step.exit_code, step.output)).collect()
    }

    async fn result(&self, assignment: &JobAssignment) -> NodeResult {
        self.fake.give(assignment.clone());
        self.fake.result(assignment.job_id).await
    }

    fn events(&self, job: JobId) -> Vec<JobEventData> {
        self.fake.world().jobs[&job].events.iter().map(|event| event.data.clone()).collect()
    }

    fn worker_output(&self, job: JobId) -> String {
        let is_start =
            |what: &JobEventData| matches!(what, JobEventData::Phase { phase: JobPhase::Working });
        let events = self.events(job).into_iter().skip_while(|what| !is_start(what));
        let texts = events.filter_map(|what| match what {
            JobEventData::Output { text, .. } => Some(text),
            _ => None,
        });
        texts.collect()
    }

    fn phases(&self, job: JobId) -> Vec<JobPhase> {
        let events = self.events(job).into_iter();
        let phases = events.filter_map(|what| match what {
            JobEventData::Phase { phase } => Some(phase),
            _ => None,
        });
        phases.collect()
    }

    /// The steps of set-ups that began and ended, with whether they succeeded.
    fn setup_steps(&self, job: JobId) -> Vec<(String, u32, u32, Option<bool>)> {
        let events = self.events(job).into_iter();
        let steps = events.filter_map(|what| match what {
            JobEventData::Setup { step, number, of, succeeded, .. } => {
                Some((step, number, of, succeeded))
            }
            _ => None,
        });
        steps.collect()
    }

    fn notes(&self, job: JobId) -> Vec<String> {
        let events = self.events(job).into_iter();
        let notes = events.filter_map(|what| match what {
            JobEventData::Note { text } => Some(text),
            _ => None,
        });
        notes.collect()
    }

    /// Directories of layers, also of those that are not whole.
    fn layers(&self) -> Vec<std::path::PathBuf> {
        let projects = std::fs::read_dir(self.machine.state().join("environments")).unwrap();
        let layers = projects
            .flatten()
            .flat_map(|project| std::fs::read_dir(project.path()).into_iter().flatten().flatten());
        layers.map(|layer| layer.path()).collect()
    }
}

fn environment(change: impl FnOnce(&mut EnvironmentSpec)) -> AssignedEnvironment {
    let mut spec = EnvironmentSpec::default();
    change(&mut spec);
    let digest = HEXLOWER.encode(&Sha256::digest(serde_json::to_vec(&spec).unwrap()));
    AssignedEnvironment {
        reference: EnvironmentRef { version: 1, digest },
        spec,
        secrets: [].into(),
        package_policy: PackagePolicy::default(),
        trusted_commit: None,
    }
}

fn set_up_by(commands: &[&str]) -> AssignedEnvironment {
    let commands: Vec<_> = commands.iter().map(|command| (*command).to_owned()).collect();
    environment(|spec| spec.setup = commands)
}

/// Ends a process of a sandbox from outside, so that the script that waits for it goes on.
fn end_process(line: &str) {
    for process in processes(line) {
        let (pid, rest) = process.split_once(' ').unwrap();
        if rest.trim() == line {
            let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_set_up_once_and_no_job_changes_it_or_brings_it_back() {
    let (scene, _running) = Scene::new().await;
    let make = "mkdir deps && echo dep > deps/lib && echo made > made";
    let assigned = set_up_by(&[make, "echo once >> ~/count"]);
    let look = "cat deps/lib made ~/count";
    let spoil = "rm made; echo mine > deps/lib; echo more > deps/more; echo x > ~/count";
    let moves = vec![shell(look), shell(spoil), shell("echo new > new"), say("done")];
    let first = Scene::working(&assigned, &scene.base, moves);
    let result = scene.result(&first).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
    assert_eq!(scene.worker_output(first.job_id), "dep\nmade\nonce\n");
    bring_back(&scene.fake, scene.origin.path(), &result.result);
    let names = git(scene.origin.path(), &["diff", "--name-only", &scene.base, "back"]);
    assert_eq!(names, "new");
    let setup = &assigned.spec.setup;
    let step = |at: usize, number: u32, succeeded| (setup[at].clone(), number, 2, succeeded);
    let steps =
        [step(0, 1, None), step(0, 1, Some(true)), step(1, 2, None), step(1, 2, Some(true))];
    assert_eq!(scene.setup_steps(first.job_id), steps);
    let phases = [JobPhase::Preparing, JobPhase::SettingUp, JobPhase::Working, JobPhase::Finishing];
    assert_eq!(scene.phases(first.job_id), phases);

    let second = Scene::working(
        &assigned,
        &scene.base,
        vec![shell(look), shell("ls; git status --porcelain")],
    );
    let result = scene.result(&second).await;
    assert_eq!((result.outcome, result.result.commit), (JobOutcome::Succeeded, None));
    let seen = "dep\nmade\nonce\nREADME\ndeps\nmade\n";
    assert_eq!(scene.worker_output(second.job_id), seen);
    assert!(scene.setup_steps(second.job_id).is_empty());
    let phases = [JobPhase::Preparing, JobPhase::Working, JobPhase::Finishing];
    assert_eq!(scene.phases(second.job_id), phases);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_come_together_wait_for_one_set_up() {
    let (scene, _running) = Scene::new().await;
    let assigned = set_up_by(&["sleep 71234702; echo made > made"]);
    let jobs = [1, 2, 3].map(|_| Scene::working(&assigned, &scene.base, vec![shell("cat made")]));
    for assignment in &jobs {
        scene.fake.give(assignment.clone());
    }
    for assignment in &jobs {
        scene.fake.phase(assignment.job_id, JobPhase::SettingUp).await;
    }
    some_process("sleep 71234702").await;
    end_process("sleep 71234702");
    let mut begun = 0;
    for assignment in &jobs {
        let result = scene.fake.result(assignment.job_id).await;
        assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
        assert_eq!(scene.worker_output(assignment.job_id), "made\n");
        begun += scene.setup_steps(assignment.job_id).len();
    }
    assert_eq!((begun, scene.layers().len()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_check_starts_over_the_environment_as_it_was_set_up() {
    let (scene, _running) = Scene::new().await;
    let assigned = set_up_by(&["mkdir deps && echo dep > deps/lib"]);
    let script = "cat deps/lib; echo changed > deps/lib; echo left > left; echo left > ~/left";
    let second = "cat deps/lib; ls . ~";
    let outcomes = scene.checked(&assigned, &scene.base, &[script, second]).await;
    let expected = [(Some(0), "dep\n"), (Some(0), "dep\n.:\nREADME\ndeps\n\n/home/agent:\n")];
    assert_eq!(outcomes, expected.map(|(code, text)| (code, text.to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_set_up_ends_the_job_with_the_step_and_nothing_is_kept() {
    let (scene, _running) = Scene::new().await;
    let assigned = set_up_by(&["echo one > one", "echo broken >&2; exit 3"]);
    let assignment = Scene::working(&assigned, &scene.base, vec![shell("cat one")]);
    let result = scene.result(&assignment).await;
    let summary = "The set-up of the environment failed at step 2 of 2, `echo broken >&2; exit 3`: \
                   it failed with exit code 3.\n\nbroken";
    assert_eq!(
        (result.outcome, result.result.stop_reason, result.result.summary.as_str()),
        (JobOutcome::Failed, Some(WorkStopReason::Environment), summary)
    );
    assert_eq!(scene.layers(), Vec::<std::path::PathBuf>::new());
    scene.machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_names_another_environment_does_not_run() {
    let (scene, _running) = Scene::new().await;
    let assigned = set_up_by(&["true"]);
    let mut assignment = Scene::working(&assigned, &scene.base, vec![shell("echo ran")]);
    assignment.environment = None;
    let result = scene.result(&assignment).await;
    assert_eq!(result.result.stop_reason, Some(WorkStopReason::Environment), "{result:?}");
    assert_eq!(scene.worker_output(assignment.job_id), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_set_up_nothing_of_it_is_used() {
    let (scene, running) = Scene::new().await;
    let assigned = set_up_by(&["echo run >> runs; sleep 71234701; echo whole > whole"]);
    let assignment = Scene::working(&assigned, &scene.base, vec![shell("cat runs whole")]);
    scene.fake.give(assignment.clone());
    some_process("sleep 71234701").await;
    running.kill();
    no_process("sleep 71234701").await;
    assert_eq!(scene.layers(), Vec::<std::path::PathBuf>::new());
    // As a node leaves it that is killed while it stores a layer.
    let project =
        scene.machine.state().join("environments").join(assignment.project_id.to_string());
    std::fs::create_dir_all(project.join("ab.partial-01/work")).unwrap();
    let _running = scene.machine.start();
    some_process("sleep 71234701").await;
    end_process("sleep 71234701");
    let result = scene.fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
    assert_eq!(scene.worker_output(assignment.job_id), "run\nwhole\n");
    assert_eq!(scene.layers().len(), 1);
    scene.machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_lock_file_starts_from_the_environment_of_before() {
    let (scene, _running) = Scene::new().await;
    let assigned = environment(|spec| {
        spec.setup = vec!["cp lock copy; echo run >> runs".to_owned()];
        spec.lock_files = vec!["lock".to_owned()];
    });
    let one = scene.change(&scene.base, "echo 1 > lock");
    let two = scene.change(&one, "echo 2 > lock");
    let later = scene.change(&two, "echo later > README");
    let look = "cat copy runs";
    assert_eq!(scene.output(&assigned, &one, look).await, "1\nrun\n");
    assert_eq!(scene.output(&assigned, &two, look).await, "2\nrun\nrun\n");
    assert_eq!(scene.output(&assigned, &later, look).await, "2\nrun\nrun\n");
    assert_eq!(scene.output(&assigned, &one, look).await, "1\nrun\n");
    assert_eq!(scene.layers().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stricter_package_policy_sets_up_anew_and_from_nothing() {
    let (scene, _running) = Scene::new().await;
    let lax = environment(|spec| {
        spec.setup = vec!["echo run >> runs".to_owned()];
        spec.package_sources = vec![PackageSource::Npm];
    });
    let forbidden = vec!["npm:left-pad".to_owned()];
    let package_policy = PackagePolicy { forbidden, ..PackagePolicy::default() };
    let strict = AssignedEnvironment { package_policy, ..lax.clone() };
    for (assigned, layers) in [(&lax, 1), (&strict, 2), (&strict, 2), (&lax, 2)] {
        assert_eq!(scene.output(assigned, &scene.base, "cat runs").await, "run\n");
        assert_eq!(scene.layers().len(), layers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_that_cannot_go_on_from_before_starts_from_nothing() {
    let (scene, _running) = Scene::new().await;
    let assigned = environment(|spec| {
        spec.setup = vec!["cp lock copy; mkdir made".to_owned()];
        spec.lock_files = vec!["lock".to_owned()];
    });
    let one = scene.change(&scene.base, "echo 1 > lock");
    let two = scene.change(&one, "echo 2 > lock");
    assert_eq!(scene.output(&assigned, &one, "cat copy").await, "1\n");
    assert_eq!(scene.output(&assigned, &two, "cat copy; ls -d made").await, "2\nmade\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_different_is_built_again() {
    let (scene, _running) = Scene::new().await;
    let rules = "all: a.out b.out\n%.out: %.in\n\tcp $< $@\n";
    let script = format!(
        "printf '{}' > Makefile; echo a > a.in; echo b > b.in",
        rules.replace('\n', "\\n").replace('\t', "\\t").replace('%', "%%")
    );
    let commit = scene.change(&scene.base, &script);
    let changed = scene.change(&commit, "echo other > b.in");
    let assigned = set_up_by(&["make"]);
    let same = scene.checked(&assigned, &commit, &["make", "make"]).await;
    let nothing = (Some(0), "make: Nothing to be done for 'all'.\n".to_owned());
    assert_eq!(same, [nothing.clone(), nothing]);
    let outcomes = scene.checked(&assigned, &changed, &["make && cat b.out"]).await;
    assert_eq!(outcomes, [(Some(0), "cp b.in b.out\nother\n".to_owned())]);
    // The files of a job that merges commits have their times too.
    let side = scene.change(&commit, "echo side > a.in");
    let mut merging = Scene::working(&assigned, &changed, vec![shell("make; cat a.out b.out")]);
    merging.merge = vec![side];
    let result = scene.result(&merging).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
    let built = "cp a.in a.out\ncp b.in b.out\nside\nother\n";
    assert_eq!(scene.worker_output(merging.job_id), built);
}

impl Scene {
    /// Waits until the build results of a commit are stored, of the default branch or of another one.
    async fn stored(&self, commit: &str, is_default: bool) {
        let is_there = || {
            self.layers().iter().any(|dir| {
                let text = std::fs::read_to_string(dir.join("layer.json")).unwrap_or_default();
                let name = dir.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with("cache-")
                    && !name.contains(".partial-")
                    && text.contains(commit)
                    && text.contains("\"branch\":\"default\"") == is_default
            })
        };
        until(is_there, || format!("{commit} is stored\n{}", self.machine.log())).await;
    }

    /// A commit with two files, each copied into `out` by make.
    fn copied_files(&self) -> String {
        let rules = "all: out/a out/b\nout/%: %.in\n\t@mkdir -p out\n\tcp $< $@\n";
        let rules = rules.replace('\n', "\\n").replace('\t', "\\t").replace('%', "%%");
        let script = format!("printf '{rules}' > Makefile; echo a > a.in; echo b > b.in");
        self.change(&self.base, &script)
    }
}

/// An environment whose build results are in `out`.
fn with_cache() -> AssignedEnvironment {
    environment(|spec| {
        spec.setup = vec!["mkdir deps && echo dep > deps/lib".to_owned()];
        spec.caches = vec!["out".to_owned()];
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn build_results_of_the_default_branch_are_there_and_only_what_changed_is_built() {
    let (scene, _running) = Scene::new().await;
    let assigned = with_cache();
    let first = scene.copied_files();
    let second = scene.change(&first, "echo other > b.in");
    let back = scene.change(&second, "echo b > b.in");
    let built = |text: &str| vec![(Some(0), text.to_owned())];
    let (all, one) = ("cp a.in out/a\ncp b.in out/b\n", "cp b.in out/b\n");
    let nothing = "make: Nothing to be done for 'all'.\n";
    assert_eq!(scene.checked(&assigned, &first, &["make"]).await, built(all));
    scene.stored(&first, true).await;
    assert_eq!(scene.checked(&assigned, &first, &["make"]).await, built(nothing));
    assert_eq!(scene.checked(&assigned, &second, &["make"]).await, built(one));
    scene.stored(&second, true).await;
    assert_eq!(scene.checked(&assigned, &second, &["make"]).await, built(nothing));
    // The file is as it was during set-up, and its build result is not.
    let text = format!("{one}a\nb\n");
    let outcome = scene.checked(&assigned, &back, &["make && cat out/a out/b"]).await;
    assert_eq!(outcome, built(&text));
    // An agent starts over them too, and they never become part of its result.
    let moves = vec![shell("cat deps/lib out/a; echo x > out/a; echo y > out/new"), say("done")];
    let agent = Scene::working(&assigned, &back, moves);
    let result = scene.result(&agent).await;
    assert_eq!((result.outcome, result.result.commit), (JobOutcome::Succeeded, None));
    assert_eq!(scene.worker_output(agent.job_id), "dep\na\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changed_lines_that_tests_ran_stand_beside_their_results() {
    let (scene, _running) = Scene::new().await;
    let assigned =
        AssignedEnvironment { trusted_commit: Some(scene.base.clone()), ..set_up_by(&["true"]) };
    let script = "printf 'one\\ntwo\\nthree\\n' > a.py; mkdir tests; echo x > tests/test_a.py; \
                  echo 'SF:a.py' > cov.lcov; echo 'DA:3,1' >> cov.lcov";
    let commit = scene.change(&scene.base, script);
    let run = "printf 'TAP version 13\\n1..1\\nok 1 - one\\n'";
    let lines = "SF:/work/a.py\\nDA:1,1\\nDA:2,0\\nSF:tests/test_a.py\\nDA:1,1\\n";
    let covering = |line: &str| EvidenceCheck {
        coverage: Some("cov.lcov".to_owned()),
        ..EvidenceCheck::from_shell_line(line)
    };
    let checks = vec![covering(&format!("{run}; printf '{lines}' > cov.lcov")), covering(run)];
    let mut assignment = Scene::working(&assigned, &commit, Vec::new());
    assignment.work.worker = WorkerChoice::Checks { checks, pinned_from: None };
    assignment.work.commit = CommitRule::Never;
    let result = scene.result(&assignment).await;
    let steps = result.result.steps.into_iter();
    let coverage: Vec<_> = steps.map(|step| step.tests.unwrap().coverage).collect();
    // The report that the commit brings is none of the run.
    assert_eq!(coverage, [Some(LineCoverage { run: 1, total: 2 }), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_checks_of_a_task_leave_reaches_no_check_and_no_other_task() {
    let (scene, _running) = Scene::new().await;
    let first = scene.copied_files();
    let assigned = AssignedEnvironment { trusted_commit: Some(first.clone()), ..with_cache() };
    scene.checked(&assigned, &first, &["make"]).await;
    scene.stored(&first, true).await;
    let hostile = scene.change(&first, "echo hostile > c.in");
    let spoil = "echo spoilt > out/a; ln -s /etc out/link; echo spoilt > out/c; rm out/b";
    let mut spoiling = Scene::working(&assigned, &hostile, Vec::new());
    let checks = vec![EvidenceCheck::from_shell_line(spoil)];
    spoiling.work.worker = WorkerChoice::Checks { checks, pinned_from: None };
    spoiling.work.commit = CommitRule::Never;
    let result = scene.result(&spoiling).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
    scene.stored(&hostile, false).await;
    let look = "cat out/a out/b; ls out";
    let clean = vec![(Some(0), "a\nb\na\nb\n".to_owned())];
    for commit in [&first, &hostile] {
        let mut checking = Scene::working(&assigned, commit, Vec::new());
        checking.task_id = spoiling.task_id;
        let checks = vec![EvidenceCheck::from_shell_line(look)];
        checking.work.worker = WorkerChoice::Checks { checks, pinned_from: None };
        checking.work.commit = CommitRule::Never;
        let result = scene.result(&checking).await;
        let steps = result.result.steps.into_iter().map(|step| (step.exit_code, step.output));
        assert_eq!(steps.collect::<Vec<_>>(), clean);
    }
    assert_eq!(scene.output(&assigned, &hostile, look).await, "a\nb\na\nb\n");
    let mut own = Scene::working(&assigned, &hostile, vec![shell("cat out/a; ls out")]);
    own.task_id = spoiling.task_id;
    scene.result(&own).await;
    assert_eq!(scene.worker_output(own.job_id), "spoilt\na\nc\nlink\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tracked_file_that_set_up_changes_stays_as_the_commit_has_it() {
    let (scene, _running) = Scene::new().await;
    let assigned = set_up_by(&["echo changed >> README; echo made > made"]);
    let assignment = Scene::working(&assigned, &scene.base, vec![shell("cat README made")]);
    let result = scene.result(&assignment).await;
    assert_eq!((result.outcome, result.result.commit), (JobOutcome::Succeeded, None));
    assert_eq!(scene.worker_output(assignment.job_id), "hello\nmade\n");
    let note = "the set-up changed tracked files; that is not kept: README";
    assert!(scene.notes(assignment.job_id).iter().any(|text| text == note));
    let again = set_up_by(&["cp README copy; cat copy > README; echo made > made"]);
    let assignment = Scene::working(&again, &scene.base, vec![shell("cat README made")]);
    scene.result(&assignment).await;
    let notes = scene.notes(assignment.job_id);
    assert!(!notes.iter().any(|text| text.contains("tracked files")), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_for_set_up_only_and_stay_nowhere() {
    const SECRET: &str = "the-value-of-a-secret";
    let (scene, _running) = Scene::new().await;
    let with_secret = |commands: &[&str]| {
        let secrets = [("TOKEN".to_owned(), SecretText(SECRET.to_owned()))].into();
        AssignedEnvironment { secrets, ..set_up_by(commands) }
    };
    let script = format!("echo token $TOKEN; test $TOKEN = {SECRET}; echo made > made");
    let assigned = with_secret(&[&script.replace(SECRET, "the-value-of-a-\"\"secret")]);
    let assignment =
        Scene::working(&assigned, &scene.base, vec![shell("cat made; echo ${TOKEN-none}")]);
    let result = scene.result(&assignment).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
    assert_eq!(scene.worker_output(assignment.job_id), "made\nnone\n");
    let events = format!("{:?}", scene.events(assignment.job_id));
    assert!(events.contains("token [secret]") && !events.contains(SECRET), "{events}");

    let assigned = with_secret(&["mkdir deps; echo password=$TOKEN > deps/config"]);
    let assignment = Scene::working(&assigned, &scene.base, vec![shell("cat deps/config")]);
    let result = scene.result(&assignment).await;
    assert_eq!(result.result.stop_reason, Some(WorkStopReason::Environment));
    assert!(result.result.summary.contains("/work/deps/config"), "{result:?}");
    scene.machine.cleared().await;
    let search = std::process::Command::new("grep")
        .args(["-rlF", SECRET])
        .arg(scene.machine.state())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&search.stdout), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_variables_are_beside_every_check_and_end_with_it() {
    let (scene, _running) = Scene::new().await;
    let answer = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/README').read().decode(), end='')";
    let assigned = environment(|spec| {
        spec.variables = [("GREETING".to_owned(), "it's \"me\"".to_owned())].into();
        spec.services = vec![EnvironmentService {
            name: "web".to_owned(),
            command: "exec python3 -m http.server 8123 --bind 127.0.0.1".to_owned(),
            ready: format!("python3 -c \"{answer}\""),
            ready_seconds: Some(20),
        }];
    });
    let ask = format!("python3 -c \"{answer}\"; echo $GREETING; exit 7");
    let outcomes = scene.checked(&assigned, &scene.base, &[&ask, "echo $GREETING"]).await;
    let expected = [(Some(7), "hello\nit's \"me\"\n"), (Some(0), "it's \"me\"\n")];
    assert_eq!(outcomes, expected.map(|(code, text)| (code, text.to_owned())));
    no_process("http.server 8123").await;
    assert_eq!(scene.layers(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_does_not_answer_is_named() {
    let (scene, _running) = Scene::new().await;
    let assigned = environment(|spec| {
        spec.services = vec![EnvironmentService {
            name: "db".to_owned(),
            command: "echo no room; exit 1".to_owned(),
            ready: "false".to_owned(),
            ready_seconds: Some(5),
        }];
    });
    let outcomes = scene.checked(&assigned, &scene.base, &["echo ran"]).await;
    let told = "the service db ended before it answered\nno room\n".to_owned();
    assert_eq!(outcomes, [(Some(125), told)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_nobody_reviewed_reaches_neither_the_environment_of_others_nor_secrets() {
    let (scene, _running) = Scene::new().await;
    let base = scene.change(&scene.base, "printf 'echo good' > hook.sh; echo 1 > lock");
    let hostile = scene.change(&base, "printf 'echo evil' > hook.sh");
    let relocked = scene.change(&hostile, "echo 2 > lock");
    let mut assigned = environment(|spec| {
        spec.setup = vec!["sh hook.sh > made; printf '%s' \"$TOKEN\" | wc -c >> made".to_owned()];
        spec.lock_files = vec!["lock".to_owned()];
        spec.secrets = [("TOKEN".to_owned(), "token".to_owned())].into();
    });
    assigned.secrets = [("TOKEN".to_owned(), SecretText("twelve-bytes".to_owned()))].into();
    assigned.trusted_commit = Some(base.clone());
    let show = "cat made";
    let own = scene.output(&assigned, &relocked, show).await;
    let made =
        [scene.output(&assigned, &hostile, show).await, scene.output(&assigned, &base, show).await];
    assert_eq!(
        (own.as_str(), made),
        ("evil\n0\n", ["good\n12\n", "good\n12\n"].map(str::to_owned))
    );
}
