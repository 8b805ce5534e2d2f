use cynode_core::{
    ids::JobId,
    nodes::{JobEventData, JobPhase},
};
use cynode_wire::workflow::jobs::JobOutcome;

use crate::{
    fake::{Fake, Fault},
    program::{
        Machine, job, no_process, repository, say, shell, sleep_forever, some_process, write,
    },
};

/// A job whose every call goes wrong first, in the given way.
async fn every_call_goes_wrong(fault: Fault) {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    for path in [
        "/challenge",
        "/token",
        "/report",
        "/heartbeat",
        "/claim",
        "/events",
        "/blobs",
        "/result",
        "/git",
    ] {
        fake.fault(path, fault, 2);
    }
    let _running = machine.start();
    let mut assignment = job(vec![shell("echo out"), write("file", "text"), say("done")]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
    assert!(result.result.commit.is_some());
    machine.cleared().await;
    let world = fake.world();
    let record = &world.jobs[&assignment.job_id];
    assert_eq!(record.results.len(), 1);
    let said =
        record.events.iter().filter(|event| matches!(event.data, JobEventData::Message { .. }));
    assert_eq!(said.count(), 1);
    let output =
        record.events.iter().filter(|event| matches!(event.data, JobEventData::Output { .. }));
    assert_eq!(output.count(), 1);
    assert_eq!(world.claims.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_lost_after_the_effect_change_nothing() {
    every_call_goes_wrong(Fault::LoseAnswer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_500_change_nothing() {
    every_call_goes_wrong(Fault::Fail).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_change_nothing() {
    every_call_goes_wrong(Fault::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_is_replaced() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    fake.until("it is heard", |world| (world.heartbeats > 0).then_some(())).await;
    let before = fake.world().challenges.len();
    fake.world().tokens.iter_mut().for_each(|token| token.push_str("-revoked"));
    let assignment = job(vec![say("done")]);
    fake.give(assignment.clone());
    assert_eq!(fake.result(assignment.job_id).await.outcome, JobOutcome::Succeeded);
    assert!(fake.world().challenges.len() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heartbeat_goes_on_while_everything_else_hangs() {
    let fake = Fake::start().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    fake.serve_repository(origin.path());
    let machine = Machine::joined(&fake);
    for path in ["/git", "/events", "/report"] {
        fake.fault(path, Fault::Hold, 1);
    }
    let _running = machine.start();
    let mut assignment = job(vec![say("done")]);
    assignment.base = Some(base);
    fake.give(assignment.clone());
    fake.phase(assignment.job_id, JobPhase::Preparing).await;
    let heard = fake.world().heartbeats;
    fake.until("it is heard twice more", |world| (world.heartbeats >= heard + 2).then_some(()))
        .await;
    fake.release();
    assert_eq!(fake.result(assignment.job_id).await.outcome, JobOutcome::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_heard_ends_its_jobs_and_goes_on_when_it_is_heard_again() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake).with(&["--lease-seconds", "2"]);
    let _running = machine.start();
    let assignment = job(vec![sleep_forever("71234511")]);
    fake.give(assignment.clone());
    fake.phase(assignment.job_id, JobPhase::Working).await;
    some_process("sleep 71234511").await;
    fake.world().deaf = true;
    no_process("sleep 71234511").await;
    assert_eq!(machine.jobs(), 1);
    fake.world().deaf = false;
    some_process("sleep 71234511").await;
    fake.world().jobs.get_mut(&assignment.job_id).unwrap().stop = Some("enough".to_owned());
    no_process("sleep 71234511").await;
    machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_not_heard_for_too_long_gives_up_what_is_not_its_own_any_more() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake).with(&["--lease-seconds", "2"]);
    let _running = machine.start();
    let assignment = job(vec![sleep_forever("71234512")]);
    fake.give(assignment.clone());
    fake.phase(assignment.job_id, JobPhase::Working).await;
    some_process("sleep 71234512").await;
    fake.world().deaf = true;
    no_process("sleep 71234512").await;
    {
        let mut world = fake.world();
        world.jobs.get_mut(&assignment.job_id).unwrap().fencing_token = 8;
        world.deaf = false;
    }
    machine.cleared().await;
    assert_eq!(fake.world().jobs[&assignment.job_id].posts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_claimed_anew_replaces_its_older_claim() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake).with(&["--slots", "2"]);
    let _running = machine.start();
    let older = job(vec![sleep_forever("71234513")]);
    fake.give(older.clone());
    fake.phase(older.job_id, JobPhase::Working).await;
    some_process("sleep 71234513").await;
    let mut newer = job(vec![say("anew")]);
    newer.job_id = older.job_id;
    newer.fencing_token = 8;
    fake.give(newer.clone());
    let result = fake.result(newer.job_id).await;
    assert_eq!((result.fencing_token, result.outcome), (8, JobOutcome::Succeeded));
    no_process("sleep 71234513").await;
    machine.cleared().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn very_much_output_arrives_in_order_and_does_not_keep_the_job_from_ending() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _running = machine.start();
    let assignment = job(vec![shell("seq 1 200000"), say("done")]);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded);
    let id: JobId = assignment.job_id;
    let world = fake.world();
    let numbers: Vec<u64> = world.jobs[&id]
        .events
        .iter()
        .filter_map(|event| match &event.data {
            JobEventData::Output { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .flat_map(str::lines)
        .filter_map(|line| line.parse().ok())
        .collect();
    assert!(numbers.len() > 100);
    assert!(numbers.first() == Some(&1));
}
