//! What a job gets under a profile: variables, files, hosts and the size of its sandbox.

use cynode_core::{
    environments::{EnvironmentRef, EnvironmentSpec, PackagePolicy},
    evidence::EvidenceCheck,
    nodes::{JobEventData, WorkStopReason},
    profiles::{NetworkRule, ProfileName, ProfileSpec, shipped_profile},
    workflow::jobs::{CommitRule, ScriptedMove, WorkerChoice},
};
use cynode_wire::{
    nodes::{AssignedEnvironment, AssignedProfile, JobAssignment, NodeResult},
    workflow::jobs::JobOutcome,
};

use crate::{
    fake::Fake,
    program::{
        Machine, Running, bring_back, change, git, job, repository, say, shell, sleep_forever,
        some_process, write,
    },
};

struct Scene {
    fake: Fake,
    machine: Machine,
    _running: Running,
    origin: tempfile::TempDir,
    base: String,
}

impl Scene {
    async fn new(flags: &[&str]) -> Self {
        let fake = Fake::start().await;
        let origin = tempfile::tempdir().unwrap();
        let base = repository(origin.path());
        fake.serve_repository(origin.path());
        let machine = Machine::joined(&fake).with(flags);
        let running = machine.start();
        Self { fake, machine, _running: running, origin, base }
    }

    fn working(&self, profile: &AssignedProfile, moves: Vec<ScriptedMove>) -> JobAssignment {
        let mut assignment = job(moves);
        assignment.base = Some(self.base.clone());
        assignment.profile = Some(Box::new(profile.clone()));
        assignment
    }

    async fn result(&self, assignment: &JobAssignment) -> NodeResult {
        self.fake.give(assignment.clone());
        self.fake.result(assignment.job_id).await
    }

    fn output(&self, assignment: &JobAssignment) -> String {
        let world = self.fake.world();
        let texts =
            world.jobs[&assignment.job_id].events.iter().filter_map(|event| match &event.data {
                JobEventData::Output { text, .. } => Some(text.as_str()),
                _ => None,
            });
        texts.collect()
    }
}

fn profile(change: impl FnOnce(&mut ProfileSpec)) -> AssignedProfile {
    let mut spec = shipped_profile(&ProfileName::default()).unwrap();
    change(&mut spec);
    AssignedProfile { name: "careful".parse().unwrap(), version: 4, spec }
}

fn environment() -> AssignedEnvironment {
    let mut spec = EnvironmentSpec::default();
    for (name, value) in [("APP_MODE", "test"), ("API_URL", "http://x"), ("APP_LEVEL", "2")] {
        spec.variables.insert(name.to_owned(), value.to_owned());
    }
    AssignedEnvironment {
        reference: EnvironmentRef { version: 1, digest: "ab".repeat(32) },
        spec,
        secrets: [].into(),
        package_policy: PackagePolicy::default(),
        trusted_commit: None,
    }
}

fn in_environment(mut assignment: JobAssignment) -> JobAssignment {
    let assigned = environment();
    assignment.work.sandbox.environment = Some(assigned.reference.clone());
    assignment.environment = Some(assigned);
    assignment
}

const SHOW_VARIABLES: &str = "env | grep -E '^(APP|API)_' | sort";

// S001-10
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_the_variables_that_its_profile_names_and_a_check_gets_those_of_the_project()
{
    let scene = Scene::new(&[]).await;
    for (variables, seen) in [
        (vec!["APP_*"], "APP_LEVEL=2\nAPP_MODE=test\n"),
        (vec!["API_URL"], "API_URL=http://x\n"),
        (vec!["*"], "API_URL=http://x\nAPP_LEVEL=2\nAPP_MODE=test\n"),
        (vec![], ""),
    ] {
        let names: Vec<String> = variables.iter().map(|name| (*name).to_owned()).collect();
        let profile = profile(|spec| spec.variables.clone_from(&names));
        let moves = vec![shell(SHOW_VARIABLES), say("done")];
        let assignment = in_environment(scene.working(&profile, moves));
        let result = scene.result(&assignment).await;
        assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
        assert_eq!(scene.output(&assignment), seen, "{names:?}");
    }
    let nothing = profile(|spec| spec.variables.clear());
    let mut checking = in_environment(scene.working(&nothing, Vec::new()));
    let checks = vec![EvidenceCheck::from_shell_line(SHOW_VARIABLES)];
    checking.work.worker = WorkerChoice::Checks { checks, pinned_from: None };
    checking.work.commit = CommitRule::Never;
    let result = scene.result(&checking).await;
    let output = &result.result.steps[0].output;
    assert_eq!(output, "API_URL=http://x\nAPP_LEVEL=2\nAPP_MODE=test\n", "{result:?}");
}

// S001-10
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_changes_other_files_than_the_profile_allows_is_refused_and_names_them() {
    let scene = Scene::new(&[]).await;
    let docs = profile(|spec| spec.paths.write = vec!["docs/**".to_owned()]);
    let allowed = scene.working(&docs, vec![write("docs/guide/a.md", "a\n"), say("written")]);
    let result = scene.result(&allowed).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
    bring_back(&scene.fake, scene.origin.path(), &result.result);
    let names = git(scene.origin.path(), &["diff", "--name-only", &scene.base, "back"]);
    assert_eq!(names, "docs/guide/a.md");

    let moves = vec![write("docs/b.md", "b\n"), write("src/c", "c\n"), shell("rm README")];
    let refused = scene.working(&docs, moves);
    let result = scene.result(&refused).await;
    assert_eq!(result.outcome, JobOutcome::Failed);
    assert_eq!(result.result.stop_reason, Some(WorkStopReason::Refused));
    assert_eq!((&result.result.commit, &result.result.bundle), (&None, &None));
    let told = "The profile `careful` (version 4) does not let the result change: README, src/c.";
    assert!(result.result.summary.contains(told), "{}", result.result.summary);

    // The shipped `reviewer` changes nothing.
    let name: ProfileName = "reviewer".parse().unwrap();
    let spec = shipped_profile(&name).unwrap();
    let reviewer = AssignedProfile { name, version: 1, spec };
    let result = scene.result(&scene.working(&reviewer, vec![write("docs/b.md", "b\n")])).await;
    assert_eq!(result.outcome, JobOutcome::Failed, "{result:?}");
    assert!(result.result.summary.contains("`reviewer`"), "{}", result.result.summary);
    let result = scene.result(&scene.working(&reviewer, vec![shell("cat README")])).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");

    // Many files: some are named, the others are counted.
    let many = scene.working(&docs, vec![shell("for i in $(seq 100 130); do echo > f$i; done")]);
    let result = scene.result(&many).await;
    assert!(result.result.summary.contains("f119 and 11 more."), "{}", result.result.summary);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_cannot_hide_a_change_by_its_history_or_among_its_objects() {
    let scene = Scene::new(&[]).await;
    let docs = profile(|spec| spec.paths.write = vec!["docs/**".to_owned()]);
    let rewrites = "echo evil > README; git add --all; git -c user.name=a -c user.email=a@b \
        commit --quiet --message mine; git update-index --assume-unchanged README";
    // The tree of the base is replaced by the one that the job makes: git of the job sees no difference.
    let forges = "old=$(git rev-parse HEAD^{tree}); echo evil > README; git add --all; new=$(git write-tree); \
        place() { echo .git/objects/$(echo $1 | cut -c 1-2)/$(echo $1 | cut -c 3-); }; \
        rm -f $(place $old); cp $(place $new) $(place $old); git diff-tree -r --name-only $old $new";
    for script in [rewrites, forges] {
        let result = scene.result(&scene.working(&docs, vec![shell(script)])).await;
        assert_eq!(result.outcome, JobOutcome::Failed, "{script}: {result:?}");
        assert_eq!((&result.result.commit, &result.result.bundle), (&None, &None), "{script}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_units_changed_is_not_taken_for_a_change_of_the_job() {
    let scene = Scene::new(&[]).await;
    let other = change(scene.origin.path(), &scene.base, "mkdir src; echo other > src/other");
    let base = change(scene.origin.path(), &scene.base, "mkdir lib; echo base > lib/base");
    let docs = profile(|spec| spec.paths.write = vec!["docs/**".to_owned()]);
    let working = |moves| {
        let mut assignment = scene.working(&docs, moves);
        assignment.base = Some(base.clone());
        assignment.merge = vec![other.clone()];
        assignment
    };
    let result = scene.result(&working(vec![write("docs/a.md", "a\n")])).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}\n{}", scene.machine.log());
    bring_back(&scene.fake, scene.origin.path(), &result.result);
    let names = git(scene.origin.path(), &["ls-tree", "-r", "--name-only", "back"]);
    assert_eq!(names, "README\ndocs/a.md\nlib/base\nsrc/other");
    // To undo the work of another unit is a change, too.
    let result = scene.result(&working(vec![shell("rm src/other")])).await;
    assert_eq!(result.outcome, JobOutcome::Failed);
    assert!(result.result.summary.contains("src/other"), "{}", result.result.summary);
}

// S001-10, B001-17
#[tokio::test(flavor = "multi_thread")]
async fn hosts_files_and_the_size_of_the_sandbox_are_those_of_the_profile() {
    let scene = Scene::new(&["--egress-host", "registry.invalid", "--slots", "4"]).await;
    let asks = |number: &str, profile: &AssignedProfile| {
        let mut assignment = job(vec![sleep_forever(number)]);
        assignment.work.sandbox.egress_hosts = vec!["registry.invalid".to_owned()];
        assignment.profile = Some(Box::new(profile.clone()));
        assignment
    };
    let rule =
        NetworkRule { domain: "registry.invalid".to_owned(), methods: vec!["GET".to_owned()] };
    let offline = asks("71234771", &profile(|_| {}));
    let online = asks("71234772", &profile(|spec| spec.network = vec![rule]));
    // Agents that were given no profile keep the hosts of their plan.
    let name = ProfileName::default();
    let spec = shipped_profile(&name).unwrap();
    let default = asks("71234773", &AssignedProfile { name, version: 1, spec });
    for (assignment, number, reaches) in
        [(&offline, "71234771", false), (&online, "71234772", true), (&default, "71234773", true)]
    {
        scene.fake.give(assignment.clone());
        some_process(&format!("sleep {number}")).await;
        let job = scene.machine.state().join("jobs").join(assignment.job_id.to_string());
        assert_eq!(job.join("sockets/net.sock").exists(), reaches, "{number}");
    }

    let large = change(scene.origin.path(), &scene.base, "head -c 2000000 /dev/zero > large");
    let small = profile(|spec| spec.sandbox.disk_mib = Some(1));
    let mut assignment = scene.working(&small, vec![say("never")]);
    assignment.base = Some(large);
    // What the job asks for is lowered.
    assignment.work.sandbox.disk_mib = Some(100);
    let result = scene.result(&assignment).await;
    assert_eq!(result.outcome, JobOutcome::Failed);
    assert!(result.result.summary.contains("1048576 bytes"), "{}", result.result.summary);

    let hides = profile(|spec| spec.paths.read = vec!["docs/**".to_owned()]);
    let result = scene.result(&scene.working(&hides, vec![say("never")])).await;
    assert_eq!(result.result.stop_reason, Some(WorkStopReason::Workspace), "{result:?}");
    assert!(result.result.summary.contains("cannot hide files"), "{}", result.result.summary);
}
