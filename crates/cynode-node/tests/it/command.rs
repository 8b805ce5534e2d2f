//! Commands in order.

use std::{sync::atomic::Ordering, time::Duration};

use cynode_core::{
    nodes::{CommandOutcome, JobEventData, WorkStopReason},
    workflow::jobs::{CommandStep, OnFailure, WorkerChoice},
};
use cynode_node::{
    sandbox::ExitReason,
    workers::{TurnOutcome, WorkerInstruction},
};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::support::{Bench, Line};

fn step(script: &str) -> CommandStep {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    CommandStep { argv, timeout_seconds: None, on_failure: OnFailure::Stop }
}

fn bench(steps: Vec<CommandStep>) -> Bench {
    Bench::new(WorkerChoice::Command { steps })
}

/// The turn without the times, which are never the same.
fn timeless(mut turn: TurnOutcome) -> TurnOutcome {
    turn.steps.iter_mut().for_each(|step| step.milliseconds = 0);
    turn
}

fn outcome(step: &CommandStep, exit_code: Option<i32>, output: &str) -> CommandOutcome {
    let sha256 = HEXLOWER.encode(&Sha256::digest(output));
    CommandOutcome {
        sha256,
        argv: step.argv.clone(),
        exit_code,
        output: output.into(),
        expected: None,
        truncated: false,
        milliseconds: 0,
        tests: None,
    }
}

fn turn(stop: WorkStopReason, said: &str, steps: Vec<CommandOutcome>) -> TurnOutcome {
    TurnOutcome { said: said.into(), steps, ..TurnOutcome::new(stop) }
}

#[tokio::test]
async fn commands_run_in_order_in_one_workspace_and_their_output_is_told() {
    let steps = [step("echo one > a; echo written"), step("cat a; echo two >&2; cat")];
    let (turn, heard, ended) = bench(steps.to_vec()).turn("").await;
    let turn = timeless(turn);
    let mut second = turn.steps[1].output.lines().collect::<Vec<_>>();
    second.sort_unstable();
    assert_eq!(second, ["one", "two"], "S001-17: the second step sees what the first did");
    assert_eq!(turn.steps[0], outcome(&steps[0], Some(0), "written\n"), "S001-17: in order");
    assert_eq!(
        (turn.stop, turn.said.as_str()),
        (WorkStopReason::EndTurn, "All 2 commands succeeded.")
    );
    for (stream, text) in [("stdout", "written\n"), ("stdout", "one\n"), ("stderr", "two\n")] {
        let output = JobEventData::Output { stream: stream.into(), text: text.into() };
        assert!(heard.contains(&output), "{heard:?}");
    }
    assert!(
        ended.cpu > Duration::ZERO && ended.peak_memory > 0 && ended.why == ExitReason::Exited,
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_failure_stops_the_rest_unless_it_may_go_on() {
    let mut steps = vec![step("exit 3"), step("touch b")];
    let stopping = bench(steps.clone());
    let (turn, ..) = stopping.turn("").await;
    let failed = outcome(&steps[0], Some(3), "");
    let said = "Command 1 of 2 failed with exit code 3.";
    assert_eq!(timeless(turn), self::turn(WorkStopReason::Failed, said, vec![failed.clone()]));
    assert_eq!(stopping.file("b"), None);
    steps[0].on_failure = OnFailure::Continue;
    let going = bench(steps.clone());
    let (turn, ..) = going.turn("").await;
    let said = format!("1 of 2 commands failed and the others were run. {said}");
    let outcomes = vec![failed, outcome(&steps[1], Some(0), "")];
    assert_eq!(timeless(turn), self::turn(WorkStopReason::EndTurn, &said, outcomes));
    assert_eq!(going.file("b").as_deref(), Some(""));
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_everything_it_started() {
    let mut steps = vec![step("(sleep 1000; touch late) & echo started; sleep 1000")];
    steps[0].timeout_seconds = Some(1);
    let (turn, ..) = bench(steps.clone()).turn("").await;
    let late = outcome(&steps[0], None, "started\n");
    assert_eq!(
        timeless(turn),
        self::turn(WorkStopReason::Failed, "Command 1 of 1 took too long.", vec![late])
    );
}

#[tokio::test]
async fn a_command_that_closed_its_output_has_no_more_time_than_others() {
    let mut steps = vec![step("sleep 1000; exit 0")];
    steps[0].timeout_seconds = Some(1);
    let mute = bench(steps.clone());
    mute.sandbox.mute.store(true, Ordering::Relaxed);
    let (turn, ..) = mute.turn("").await;
    let late = outcome(&steps[0], None, "");
    assert_eq!(
        timeless(turn),
        self::turn(WorkStopReason::Failed, "Command 1 of 1 took too long.", vec![late])
    );
    // One that ends in time ends as it wants to.
    let short = [step("exit 3")];
    let mute = bench(short.to_vec());
    mute.sandbox.mute.store(true, Ordering::Relaxed);
    let (turn, ..) = mute.turn("").await;
    assert_eq!(timeless(turn).steps, [outcome(&short[0], Some(3), "")]);
}

#[tokio::test]
async fn people_stop_a_command_that_closed_its_output() {
    let bench = bench(vec![step("sleep 1000")]);
    bench.sandbox.mute.store(true, Ordering::Relaxed);
    let (mut session, mut line) = bench.start().await.unwrap();
    let cancel = async {
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Tool { .. })).await;
        line.orders.send(WorkerInstruction::Cancel).await.unwrap();
    };
    let (turn, ()) = tokio::join!(session.run_prompt("", &mut line.ears), cancel);
    assert_eq!(turn.unwrap().stop, WorkStopReason::Cancelled);
    assert_eq!(session.close_session().await.why, ExitReason::Killed);
}

#[tokio::test]
async fn the_time_of_the_job_is_the_most_that_any_command_has() {
    let mut bench = bench(vec![step("sleep 1000")]);
    bench.limits.until = Instant::now() + Duration::from_millis(500);
    let (turn, ..) = bench.turn("").await;
    assert_eq!(turn.stop, WorkStopReason::Timeout);
}

#[tokio::test]
async fn too_much_output_is_cut_and_the_end_is_kept() {
    let steps = vec![step("yes | head -c 3000000; echo the end")];
    let (turn, heard, _) = bench(steps).turn("").await;
    let told: usize = heard
        .iter()
        .map(|it| match it {
            JobEventData::Output { text, .. } => text.len(),
            _ => 0,
        })
        .sum();
    let step = &turn.steps[0];
    assert_eq!((told, step.output.len(), step.truncated), (1 << 20, 32 * 1024, true));
    assert!(step.output.ends_with("the end\n"));
    assert!(heard.contains(&JobEventData::Truncated { bytes: 3_000_008 - (1 << 20) }));
}

#[tokio::test]
async fn people_stop_a_command_in_the_middle() {
    let bench = bench(vec![step("echo here; sleep 1000"), step("touch b")]);
    let (mut session, mut line) = bench.start().await.unwrap();
    let cancel = async {
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Output { .. })).await;
        line.orders.send(WorkerInstruction::Cancel).await.unwrap();
    };
    let (turn, ()) = tokio::join!(session.run_prompt("", &mut line.ears), cancel);
    let turn = turn.unwrap();
    assert_eq!(
        (turn.stop, turn.said.as_str()),
        (WorkStopReason::Cancelled, "Command 1 of 2 was stopped.")
    );
    assert_eq!(session.close_session().await.why, ExitReason::Killed);
}

#[tokio::test]
async fn a_pause_holds_the_next_command_back() {
    let bench =
        bench(vec![step("echo one; until [ -e go ]; do sleep 0.02; done"), step("touch b")]);
    let (mut session, mut line) = bench.start().await.unwrap();
    let work = bench.sandbox.work.clone();
    let pause = async {
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Output { .. })).await;
        line.orders.send(WorkerInstruction::Pause).await.unwrap();
        line.orders.send(WorkerInstruction::Tell("hurry".into())).await.unwrap();
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Note { .. })).await;
        std::fs::write(work.join("go"), "").unwrap();
        Line::until(
            &mut line.events,
            |it| matches!(it, JobEventData::Tool { status, .. } if status == "completed"),
        )
        .await;
        assert_eq!(bench.file("b"), None);
        line.orders.send(WorkerInstruction::Resume).await.unwrap();
    };
    let (turn, ()) = tokio::join!(session.run_prompt("", &mut line.ears), pause);
    assert_eq!(turn.unwrap().said, "All 2 commands succeeded.");
    assert_eq!(bench.file("b").as_deref(), Some(""));
}
