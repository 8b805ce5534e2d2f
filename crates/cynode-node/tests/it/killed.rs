//! The program is killed at every state of a job, and started again: the result is posted once, and nothing is left.

use cynode_core::nodes::JobPhase;
use cynode_wire::workflow::jobs::JobOutcome;

use crate::{
    fake::{Fake, Fault},
    program::{
        Machine, Running, git, job, no_process, repository, say, shell, sleep_forever,
        some_process, write,
    },
};

struct Scene {
    fake: Fake,
    machine: Machine,
    origin: tempfile::TempDir,
    base: String,
}

impl Scene {
    async fn new() -> Self {
        let fake = Fake::start().await;
        let origin = tempfile::tempdir().unwrap();
        let base = repository(origin.path());
        fake.serve_repository(origin.path());
        let machine = Machine::joined(&fake);
        Self { fake, machine, origin, base }
    }

    /// A job that adds a line to a file, so that doing it twice would show.
    fn adding(&self, before: &str) -> cynode_wire::nodes::JobAssignment {
        let mut assignment = job(vec![shell(before), shell("echo line >> lines"), say("added")]);
        assignment.base = Some(self.base.clone());
        assignment
    }

    /// Waits until something is held, and kills the program there.
    async fn kill_when_held(&self, running: Running) {
        self.fake.until("something is held", |world| (world.held > 0).then_some(())).await;
        running.kill();
    }

    /// Starts the program again: the result comes once, with one line, and nothing is left.
    async fn comes_to_one_result(&self, assignment: &cynode_wire::nodes::JobAssignment) {
        no_process(&assignment.job_id.to_string()).await;
        self.fake.release();
        let _running = self.machine.start();
        let result = self.fake.result(assignment.job_id).await;
        assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
        let bundle = result.result.bundle.unwrap();
        let file = self.origin.path().join("work.bundle");
        std::fs::write(&file, &self.fake.world().blobs[&bundle.sha256]).unwrap();
        let from = file.to_str().unwrap();
        git(self.origin.path(), &["fetch", "--quiet", from, "refs/heads/cynode/work:back"]);
        assert_eq!(git(self.origin.path(), &["show", "back:lines"]), "line");
        assert_eq!(git(self.origin.path(), &["rev-parse", "back^"]), self.base);
        self.machine.cleared().await;
        no_process(&assignment.job_id.to_string()).await;
        assert_eq!(self.fake.world().jobs[&assignment.job_id].results.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_it_hears_of_the_claim() {
    let scene = Scene::new().await;
    scene.fake.fault("/claim", Fault::HoldAnswer, 1);
    let assignment = scene.adding("true");
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    scene.kill_when_held(running).await;
    assert_eq!(scene.fake.world().claims.len(), 1);
    scene.comes_to_one_result(&assignment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_repository_is_fetched() {
    let scene = Scene::new().await;
    scene.fake.fault("/git/info/refs", Fault::Hold, 1);
    let assignment = scene.adding("true");
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    scene.kill_when_held(running).await;
    // As git leaves behind what it has not got all of.
    let mut mirrors = std::fs::read_dir(scene.machine.state().join("mirrors")).unwrap();
    let objects = mirrors.next().unwrap().unwrap().path().join("objects");
    let left = ["pack/tmp_pack_a1b2c3", "ab/tmp_obj_a1b2c3"].map(|name| objects.join(name));
    for path in &left {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "half").unwrap();
    }
    scene.comes_to_one_result(&assignment).await;
    assert_eq!(left.map(|path| path.exists()), [false, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_worker_works() {
    let scene = Scene::new().await;
    let wait =
        "if [ -e /home/agent/x ]; then true; else echo early >> lines; exec sleep 71234521; fi";
    let mut assignment = scene.adding(wait);
    assignment.attempt = 1;
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    some_process("sleep 71234521").await;
    running.kill();
    no_process("sleep 71234521").await;
    // It begins anew with an empty workspace and an empty home: it would wait again, so it is told to end.
    let running = scene.machine.start();
    some_process("sleep 71234521").await;
    scene.fake.world().jobs.get_mut(&assignment.job_id).unwrap().stop = Some("enough".to_owned());
    no_process("sleep 71234521").await;
    scene.machine.cleared().await;
    drop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_work_is_uploaded() {
    let scene = Scene::new().await;
    scene.fake.fault("/blobs/", Fault::Hold, 1);
    let assignment = scene.adding("true");
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    scene.kill_when_held(running).await;
    scene.comes_to_one_result(&assignment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_result_arrives() {
    let scene = Scene::new().await;
    scene.fake.fault("/result", Fault::Hold, 1);
    let assignment = scene.adding("true");
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    scene.kill_when_held(running).await;
    scene.comes_to_one_result(&assignment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_it_hears_that_the_result_arrived() {
    let scene = Scene::new().await;
    scene.fake.fault("/result", Fault::HoldAnswer, 1);
    let assignment = scene.adding("true");
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    scene.kill_when_held(running).await;
    assert_eq!(scene.fake.world().jobs[&assignment.job_id].results.len(), 1);
    scene.comes_to_one_result(&assignment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_not_wanted_any_more_after_a_restart_is_cleared_away() {
    let scene = Scene::new().await;
    let assignment = job(vec![sleep_forever("71234522")]);
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    some_process("sleep 71234522").await;
    running.kill();
    no_process("sleep 71234522").await;
    assert_eq!(scene.machine.jobs(), 1);
    scene.fake.world().jobs.get_mut(&assignment.job_id).unwrap().stop = Some("lost".to_owned());
    let _running = scene.machine.start();
    scene.machine.cleared().await;
    no_process("sleep 71234522").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_ends_its_sandboxes_and_takes_the_job_up_again_later() {
    let scene = Scene::new().await;
    let assignment = job(vec![write("a", "b"), sleep_forever("71234523")]);
    scene.fake.give(assignment.clone());
    let running = scene.machine.start();
    scene.fake.phase(assignment.job_id, JobPhase::Working).await;
    some_process("sleep 71234523").await;
    running.terminate();
    let status = running.ended().await;
    assert!(status.success(), "{status}\n{}", scene.machine.log());
    no_process("sleep 71234523").await;
    assert_eq!(scene.machine.jobs(), 1);
    let again = scene.machine.start();
    some_process("sleep 71234523").await;
    drop(again);
    no_process("sleep 71234523").await;
}
