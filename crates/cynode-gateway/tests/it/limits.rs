//! How much agents may call, and what they are told when it is too much.

use std::{collections::BTreeMap, time::Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::bench::{Bench, promised};

#[tokio::test]
async fn too_many_calls_in_a_second_are_refused_with_the_time_to_wait() {
    let bench = Bench::new().await;
    bench.setting("gateway.calls_per_second", json!(2)).await;
    let agent = bench.agent("developer").await;
    let call =
        async |number: u32| agent.call("help.tool", json!({ "tool": number.to_string() })).await;
    let mut verdicts = Vec::new();
    for number in 0..2 {
        verdicts.push(call(number).await.verdict());
    }
    assert_eq!(verdicts, ["failed not_found", "failed not_found"]);
    let refused = call(3).await;
    let said = &refused.value()["refused"];
    assert_eq!(
        (refused.verdict(), &said["step"]),
        ("refused rate_limited".into(), &json!("limits"))
    );
    let wait = said["retry_after_ms"].as_u64().unwrap();
    assert!((1..=500).contains(&wait), "{wait}");
    let at = said["reset_at"].as_str().unwrap();
    assert!(at.starts_with("2026-11-01T12:00:00."), "{at}");
    assert!(refused.text().contains(at), "{}", refused.text());
    // Another tool and another agent have their own.
    assert_eq!(agent.call("skills.list", json!({})).await.verdict(), "ok");
    let other = bench.agent("developer").await;
    assert_eq!(other.call("help.tool", json!({ "tool": "x" })).await.verdict(), "failed not_found");
    let last = bench.story().await;
    assert!(
        last.contains(&"developer help.tool decision deny rate_limited not_forwarded".to_owned())
    );
}

#[tokio::test]
async fn the_same_call_again_and_again_is_refused_until_something_else_is_called() {
    let bench = Bench::new().await;
    bench.setting("gateway.max_identical_calls", json!(3)).await;
    let agent = bench.agent("developer").await;
    let same = async || agent.call("skills.list", json!({})).await.verdict();
    for _ in 0..3 {
        assert_eq!(same().await, "ok");
    }
    for _ in 0..2 {
        assert_eq!(same().await, "refused duplicate_call");
    }
    let refused = agent.call("skills.list", json!({})).await.value();
    assert_eq!(refused["refused"]["retry_after_ms"], Value::Null);
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    assert_eq!(same().await, "ok");
    // Being alive is said again and again.
    for _ in 0..6 {
        let alive = agent.call("agent.heartbeat", json!({ "task_id": bench.task })).await;
        assert_eq!(alive.verdict(), "ok");
    }
}

#[tokio::test]
async fn two_replicas_share_the_hour_of_a_task() {
    let bench = Bench::new().await;
    // Calls are taken from the hour in batches of fifty.
    bench.setting("gateway.calls_per_task_hour", json!(60)).await;
    bench.setting("gateway.calls_per_second", json!(1000)).await;
    let second = bench.app.another_gateway().await;
    let here = bench.agent_with("developer", json!({ "expires_in_seconds": 36000 })).await;
    let there =
        bench.agent_with("tester", json!({ "expires_in_seconds": 36000 })).await.at(&second);
    let mut passed = 0;
    let mut refusal = Value::Null;
    for number in 0..80 {
        let agent = if number % 2 == 0 { &here } else { &there };
        let answer = agent.call("help.tool", json!({ "tool": number.to_string() })).await;
        match answer.verdict().as_str() {
            "failed not_found" => passed += 1,
            "refused quota_exceeded" => refusal = answer.value()["refused"].clone(),
            other => panic!("{other}"),
        }
    }
    // Fifty for one replica, the last ten for the other: each used up what it took.
    assert_eq!(passed, 40 + 10);
    assert_eq!(refusal["reset_at"], "2026-11-01T13:00:00Z");
    assert_eq!(refusal["retry_after_ms"], 3_600_000);
    assert_eq!(bench.app.db.number("SELECT used_calls FROM task_call_quotas").await, 60);
    // Another task has an hour of its own, and the next hour is a new one.
    let other = bench.another_task().await;
    let elsewhere = bench.agent_with("developer", json!({ "task_id": other })).await;
    assert_eq!(elsewhere.call("skills.list", json!({})).await.verdict(), "ok");
    bench.app.clock.advance(time::Duration::hours(1));
    assert_eq!(there.call("skills.list", json!({})).await.verdict(), "ok");
    second.close().await;
}

#[tokio::test]
async fn an_agent_without_a_task_has_an_hour_of_its_own() {
    let bench = Bench::new().await;
    bench.setting("gateway.calls_per_task_hour", json!(5)).await;
    let manager = async || {
        let more = json!({ "task_id": null, "expires_in_seconds": 36000 });
        bench.agent_with("project_manager", more).await
    };
    let (agent, other) = (manager().await, manager().await);
    let call = async |number: u32| {
        agent.call("help.tool", json!({ "tool": number.to_string() })).await.verdict()
    };
    for number in 0..5 {
        assert_eq!(call(number).await, "failed not_found");
    }
    assert_eq!(call(5).await, "refused quota_exceeded");
    assert_eq!(other.call("help.overview", json!({})).await.verdict(), "ok");
    bench.app.clock.advance(time::Duration::hours(1));
    assert_eq!(call(6).await, "failed not_found");
}

#[tokio::test]
async fn a_changed_limit_holds_at_once_and_a_value_that_is_none_is_refused() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let burst = async || {
        let mut passed = 0;
        for number in 0..8 {
            let answer = agent.call("help.tool", json!({ "tool": number.to_string() })).await;
            passed += u32::from(answer.verdict() != "refused rate_limited");
        }
        passed
    };
    assert_eq!(burst().await, 8);
    let set = async |value: Value, version: u32| {
        let body = json!({ "value": value, "expected_version": version });
        bench.admin.put("/v1/settings/gateway.calls_per_second", body).await.status
    };
    assert_eq!(set(json!(1), 0).await, 200);
    promised().await;
    let few = burst().await;
    assert!((1..8).contains(&few), "{few}");
    for wrong in [json!(0), json!(-1), json!("5"), json!(1_000_001), json!(null), json!(1.5)] {
        assert_eq!(set(wrong, 1).await, 422);
    }
    assert_eq!(set(json!(1000), 1).await, 200);
    promised().await;
    assert_eq!(burst().await, 8);
}

/// How often each answer was given.
fn counted(answers: impl Iterator<Item = String>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn whoever_goes_on_calling_too_much_is_held_back_and_cannot_fill_the_records() {
    let bench = Bench::new().await;
    bench.setting("gateway.calls_per_second", json!(1)).await;
    let agent = bench.agent("developer").await;
    let since = Instant::now();
    let calls = (0..250).map(|number: u32| {
        let agent = agent.clone();
        async move { agent.call("help.tool", json!({ "tool": number.to_string() })).await.verdict() }
    });
    let answers = counted(join_all(calls).await.into_iter());
    let took = since.elapsed().as_secs_f64();
    assert!(took >= 1.0, "nobody waited: {took}");
    // On a machine that is slow enough each has its record.
    let known = ["error 429", "failed not_found", "refused rate_limited"];
    assert!(answers.keys().all(|answer| known.contains(&answer.as_str())), "{answers:?}");
    // Each refusal has its record, or says that it has none.
    let refused = answers["refused rate_limited"];
    assert!(refused >= 100, "{refused}");
    assert!(f64::from(refused) <= 101.0 + 20.0 * took, "{refused} in {took} seconds");
    bench.app.recorded().await;
    let recorded = "SELECT count(*) FROM audit_records WHERE reason = 'rate_limited'";
    assert_eq!(bench.app.db.number(recorded).await, i64::from(refused));
    // Nobody else has to wait for that.
    let other = bench.agent("developer").await;
    assert_eq!(other.call("help.overview", json!({})).await.verdict(), "ok");
}

#[tokio::test]
async fn callers_without_a_token_cannot_fill_the_records_and_hinder_nobody() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let stranger = bench.app.at_gateway().await.modern();
    let since = Instant::now();
    let calls = (0..2500).map(|_| {
        let stranger = stranger.clone();
        async move { stranger.send_once("tools/list", json!({})).await }
    });
    let answers = join_all(calls).await;
    let took = since.elapsed().as_secs_f64();
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
    let turned = counted(answers.iter().map(|answer| answer.0.status.to_string()));
    let (recorded, left_out) = (turned["401"], turned.get("429").copied().unwrap_or_default());
    assert_eq!(recorded + left_out, 2500, "{turned:?}");
    assert!(f64::from(recorded) <= 1001.0 + 500.0 * took, "{recorded} in {took} seconds");
    bench.app.recorded().await;
    let found = "SELECT count(*) FROM audit_records WHERE reason = 'invalid_token'";
    let found = bench.app.db.number(found).await;
    assert_eq!(found, i64::from(recorded), "S003-03, S003-14: only the answers with 429 have none");
}
