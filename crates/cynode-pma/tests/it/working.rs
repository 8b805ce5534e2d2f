//! The loop: claims, keeps, ends.

use std::{sync::Arc, time::Duration};

use cynode_core::workflow::handoffs::{HandoffAnswer, HandoffRequest};
use cynode_pma::{
    decision_context::{BoxedFuture, DecisionContext, DecisionError, DecisionKind, DecisionOutput},
    decisions::HandoffOutcome,
    role::PmaRole,
    service::{self, ServiceLimits},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

use crate::fake::{self, Fake, HOST, Reply, TOKEN, TRACE};

const LONG: Duration = Duration::from_secs(20);

const PACE: ServiceLimits = ServiceLimits { handoffs: 4, lease: LONG, grace: LONG };

#[derive(Serialize, Deserialize, JsonSchema)]
struct Word {
    word: String,
}

impl DecisionOutput for Word {
    const KIND: DecisionKind = DecisionKind::Summarise;
    const TIER: cynode_core::models::Tier = cynode_core::models::Tier::Fast;
}

/// A judge that does what the text of a schedule says: thinks, calls, delegates.
fn obeying<'a>(
    desk: &'a DecisionContext<'a>,
) -> BoxedFuture<'a, Result<HandoffOutcome, DecisionError>> {
    Box::pin(async {
        let HandoffRequest::Schedule { text, .. } = &desk.handoff.request else {
            return Ok(HandoffOutcome::Delegate);
        };
        let note = match text.split_once(' ') {
            Some(("think", prompt)) => desk.make_decision::<Word>(prompt).await?.word,
            Some(("call", tool)) => desk.call_tool(tool, json!({ "a": 1 })).await?.to_string(),
            _ => desk.system.clone(),
        };
        Ok(HandoffOutcome::Answer(Box::new(HandoffAnswer::Interpreted { tasks: vec![], note })))
    })
}

/// A loop that runs until it is dropped or stopped.
struct Running {
    stop: CancellationToken,
    handle: AbortOnDropHandle<()>,
}

fn start(fake: &Fake, role: PmaRole, pace: ServiceLimits) -> Running {
    let office = Arc::new(fake.office(role, LONG));
    let stop = CancellationToken::new();
    let run = service::run_service(office, pace, obeying, stop.clone());
    Running { stop, handle: AbortOnDropHandle::new(TaskTracker::new().spawn(run)) }
}

fn schedule(text: &str) -> Value {
    fake::handoff(&json!({ "kind": "schedule", "schedule": "s", "text": text }))
}

#[tokio::test]
async fn a_handoff_is_claimed_worked_on_and_completed_with_its_fencing_token() {
    let fake = Fake::start().await;
    fake.hand(&schedule("think hard"));
    fake.reply("model", Reply::Text("{\"word\":\"done\"}".into()));
    let _running = start(&fake, PmaRole::ProjectManager, PACE);
    let completed = fake.until("handoff.complete", 1).await;
    assert_eq!(
        completed[0].body,
        json!({ "handoff_id": "hof_00000000000000000000000000000001", "fencing_token": 7,
"answer" : { "answer" : "interpreted" , "tasks" : [ ] , "note" : "done" } } ),
        "S004-121, S004-124, S004-132, S004-143, S000-015: the loop takes a message, asks for a typed decision and answers"
    );
    assert_eq!((completed[0].token.as_str(), completed[0].trace.as_deref()), (HOST, Some(TRACE)));
    let seen = fake.seen();
    let whats: Vec<&str> = seen.iter().map(|seen| seen.what.as_str()).collect();
    let steps = ["model", "think.record", "handoff.complete"];
    assert_eq!(
        whats, steps,
        "S004-121, S004-125, S004-132, S004-004, S004-019, S000-064, S000-066: one call of a model, and no agent is started; one call for one decision, all at a double; nobody is asked for the context: it comes with the handoff"
    );
    // Project, task and additional context are in every question.
    let system = seen[0].body["messages"][0]["content"].as_str().unwrap();
    for part in
        ["BASELINE", "INSTRUCTIONS", "name: Shop", "name: dark-mode", "- It is dark", "Be brief."]
    {
        assert!(
            system.contains(part),
            "S000-064, S000-066, S000-071, CYNAI.PMAGNT.LLMContextComposition, {part}: {system}"
        );
    }
    let claims = fake.until("handoff.claim", 2).await;
    assert_eq!(
        (&claims[0].body["wait_ms"], &claims[0].body["expires_in_seconds"]),
        (&json!(20000), &json!(20))
    );
    let (first, next) = (&claims[0].body["claim_id"], &claims[1].body["claim_id"]);
    assert_ne!(first, next, "S004-013: the loop goes on to the next handoff");
    let calls = fake.asked("model").len();
    assert_eq!(calls, 1, "S004-003, S004-012: no model is asked between two decisions");
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_repeated_and_another_is_not() {
    let fake = Fake::start().await;
    fake.reply("handoff.claim", Reply::Status(503, json!({})));
    fake.reply("handoff.claim", Reply::Failed("unavailable"));
    fake.reply("handoff.claim", Reply::Given(json!({ "handoff": null })));
    fake.reply("handoff.claim", Reply::Refused("not_allowlisted"));
    let _running = start(&fake, PmaRole::ProjectManager, PACE);
    let claims = fake.until("handoff.claim", 5).await;
    let ids: Vec<&Value> = claims.iter().map(|claim| &claim.body["claim_id"]).collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "{ids:?}");
    assert!(ids[2] != ids[3] && ids[3] != ids[4], "{ids:?}");
}

#[tokio::test]
async fn an_orchestrator_that_is_not_there_is_waited_for_without_asking_a_model() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap();
    let office =
        Arc::new(fake::office_at(&format!("http://{port}"), PmaRole::ProjectManager, LONG));
    let stop = CancellationToken::new();
    let run = service::run_service(office, PACE, obeying, stop.clone());
    let run = AbortOnDropHandle::new(TaskTracker::new().spawn(run));
    // It was tried, and nobody is there for a while.
    drop(listener.accept().await.unwrap());
    drop(listener);
    let fake = Fake::start_at(port).await;
    fake.until("handoff.claim", 1).await;
    assert_eq!(fake.seen(), [], "S004-003, S004-012: no model is asked without a decision");
    stop.cancel();
    run.await.unwrap();
    assert_eq!(fake.seen(), []);
}

#[tokio::test]
async fn work_on_a_handoff_that_somebody_else_has_is_dropped() {
    let fake = Fake::start().await;
    fake.hand(&schedule("call slow.tool"));
    fake.reply("slow.tool", Reply::Never);
    fake.reply("handoff.keep", Reply::Given(json!({})));
    fake.reply("handoff.keep", Reply::Failed("fenced"));
    let _running = start(
        &fake,
        PmaRole::ProjectManager,
        ServiceLimits { lease: Duration::from_millis(90), ..PACE },
    );
    fake.until_left("slow.tool").await;
    let keeps = fake.asked("handoff.keep");
    assert_eq!(keeps.len(), 2);
    assert_eq!(
        keeps[0].body,
        json!({ "handoff_id": "hof_00000000000000000000000000000001", "fencing_token": 7, "expires_in_seconds": 1 })
    );
    let whats: Vec<String> = fake.seen().into_iter().map(|seen| seen.what).collect();
    assert_eq!(whats, ["slow.tool"]);
}

#[tokio::test]
async fn a_lease_that_cannot_be_kept_in_its_time_is_taken_for_lost() {
    let fake = Fake::start().await;
    fake.hand(&schedule("call slow.tool"));
    fake.reply("slow.tool", Reply::Never);
    for _ in 0..20 {
        fake.reply("handoff.keep", Reply::Status(503, json!({})));
    }
    let _running = start(
        &fake,
        PmaRole::ProjectManager,
        ServiceLimits { lease: Duration::from_millis(90), ..PACE },
    );
    fake.until_left("slow.tool").await;
    assert!(fake.asked("handoff.keep").len() >= 2);
}

#[tokio::test]
async fn no_more_handoffs_are_claimed_than_can_be_worked_on_at_once() {
    let fake = Fake::start().await;
    for _ in 0..3 {
        fake.hand(&schedule("call slow.tool"));
    }
    let (first, second) = (Reply::Never, Reply::Never);
    fake.reply("slow.tool", first);
    fake.reply("slow.tool", second);
    let running = start(
        &fake,
        PmaRole::ProjectManager,
        ServiceLimits { handoffs: 2, grace: Duration::ZERO, ..PACE },
    );
    fake.until("slow.tool", 2).await;
    assert_eq!(fake.asked("handoff.claim").len(), 2);
    running.stop.cancel();
    running.handle.await.unwrap();
    assert_eq!((fake.asked("handoff.claim").len(), fake.asked("slow.tool").len()), (2, 2));
}

#[tokio::test]
async fn a_process_that_is_stopped_claims_no_more_and_lets_go_of_what_it_cannot_finish() {
    let fake = Fake::start().await;
    fake.hand(&schedule("call slow.tool"));
    fake.reply("slow.tool", Reply::Never);
    let running =
        start(&fake, PmaRole::ProjectManager, ServiceLimits { grace: Duration::ZERO, ..PACE });
    fake.until("slow.tool", 1).await;
    fake.until("handoff.claim", 2).await;
    running.stop.cancel();
    running.handle.await.unwrap();
    let failed = fake.asked("handoff.fail");
    assert_eq!(failed.len(), 1);
    assert_eq!(
        (&failed[0].body["transient"], &failed[0].body["reason"]),
        (&json!(true), &json!("the process that worked on it was stopped"))
    );
    assert_eq!(fake.asked("handoff.claim").len(), 2);
}

#[tokio::test]
async fn a_process_that_is_stopped_finishes_what_it_can() {
    let fake = Fake::start().await;
    fake.hand(&schedule("call quick.tool"));
    fake.reply("quick.tool", Reply::Given(json!({ "b": 2 })));
    let running = start(&fake, PmaRole::ProjectManager, PACE);
    fake.until("quick.tool", 1).await;
    running.stop.cancel();
    running.handle.await.unwrap();
    let completed = fake.asked("handoff.complete");
    assert_eq!(completed[0].body["answer"]["note"], "{\"b\":2}");
}

#[tokio::test]
async fn a_refusal_of_the_gate_is_a_hard_failure_and_the_tool_is_called_once() {
    for (reply, transient, why) in [
        (Reply::Refused("denied_by_rule"), false, "the gate refused `db.task.get`: because"),
        (Reply::Refused("stale_policy"), true, "`db.task.get` (stale_policy): because"),
        (
            Reply::Status(
                403,
                json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": 403, "message": "no" } }),
            ),
            false,
            "the gate refused `db.task.get`: no",
        ),
        (
            Reply::Asks,
            false,
            "the gate refused `db.task.get`: the call waits for something that cannot be given here",
        ),
        (Reply::Failed("not_found"), false, "`db.task.get` failed (not_found): it went wrong"),
        (Reply::Failed("unavailable"), true, "`db.task.get` failed (unavailable): it went wrong"),
        (
            Reply::Status(503, json!({})),
            true,
            "`db.task.get`: the gate cannot be reached: 503 Service Unavailable",
        ),
    ] {
        let fake = Fake::start().await;
        fake.hand(&schedule("call db.task.get"));
        fake.reply("db.task.get", reply);
        let _running = start(&fake, PmaRole::ProjectManager, PACE);
        let failed = fake.until("handoff.fail", 1).await;
        assert_eq!(
            (&failed[0].body["transient"], &failed[0].body["reason"]),
            (&json!(transient), &json!(why)),
            "S000-094: the failure is reported upward"
        );
        let calls = fake.asked("db.task.get");
        assert_eq!(calls.len(), 1, "S000-094: the call is not repeated");
        let whats: Vec<String> = fake.seen().into_iter().map(|seen| seen.what).collect();
        assert_eq!(whats, ["db.task.get", "handoff.fail"], "S000-094: no other route is tried");
        // In the name of the person, in the trace of the handoff.
        assert_eq!(
            (calls[0].token.as_str(), calls[0].trace.as_deref(), &calls[0].body),
            (TOKEN, Some(TRACE), &json!({ "a": 1 })),
            "S000-084: the handoff's token is presented"
        );
    }
}

#[tokio::test]
async fn a_skills_tool_that_the_gateway_refused_is_not_called_again() {
    let fake = Fake::start().await;
    fake.hand(&schedule("call skills.create"));
    fake.reply("skills.create", Reply::Refused("denied_by_rule"));
    let _running = start(&fake, PmaRole::ProjectManager, PACE);
    let failed = fake.until("handoff.fail", 1).await;
    assert_eq!(failed[0].body["reason"], "the gate refused `skills.create`: because");
    assert_eq!(fake.asked("skills.create").len(), 1, "S000-099: a refused skills tool is left");
}

#[tokio::test]
async fn a_share_for_the_analyst_is_delegated() {
    let fake = Fake::start().await;
    fake.hand(&fake::handoff(&json!({ "kind": "summarise", "units": [] })));
    let _running = start(&fake, PmaRole::ProjectManager, PACE);
    let delegated = fake.until("handoff.delegate", 1).await;
    assert_eq!(
        delegated[0].body,
        json!({"handoff_id": "hof_00000000000000000000000000000001", "fencing_token": 7}),
        "S000-024, S002-42"
    );
}

#[tokio::test]
async fn a_handoff_of_the_other_role_is_not_worked_on() {
    let fake = Fake::start().await;
    fake.hand(&schedule("think hard"));
    let _running = start(&fake, PmaRole::ProjectAnalyst, PACE);
    let failed = fake.until("handoff.fail", 1).await;
    assert_eq!(
        failed[0].body["reason"],
        "a handoff of the kind schedule is not for project_analyst"
    );
    assert_eq!(fake.asked("model").len(), 0);
}

#[tokio::test]
async fn the_end_of_a_handoff_is_said_until_it_is_heard_and_an_answer_that_is_not_taken_fails_it() {
    let fake = Fake::start().await;
    fake.hand(&schedule("nothing"));
    fake.reply("handoff.complete", Reply::Status(503, json!({})));
    fake.reply("handoff.complete", Reply::Failed("invalid"));
    let _running = start(&fake, PmaRole::ProjectManager, PACE);
    let failed = fake.until("handoff.fail", 1).await;
    assert_eq!(fake.asked("handoff.complete").len(), 2);
    let why = "the orchestrator did not take the answer: `handoff.complete` failed (invalid): it went wrong";
    assert_eq!(
        (&failed[0].body["reason"], &failed[0].body["transient"]),
        (&json!(why), &json!(false))
    );
}

#[tokio::test]
async fn a_chat_that_nobody_listens_to_is_answered_as_a_whole() {
    let fake = Fake::start().await;
    fake.hand(&fake::handoff(
        &json!({ "kind": "chat", "messages": [{ "role": "user", "content": "hi" }] }),
    ));
    let said = |text: &str| fake::piece(&json!({ "content": text }), None);
    fake.reply(
        "model",
        fake::pieces([said("Good "), said("day"), fake::piece(&json!({}), Some("stop"))]),
    );
    let _running = start(&fake, PmaRole::ProjectManager, PACE);
    let completed = fake.until("handoff.complete", 1).await;
    assert_eq!(completed[0].body["answer"], json!({ "answer": "chatted", "content": "Good day" }));
}

/// The whole of a question is made from the handoff and the question itself: whatever was asked before, it does not grow.
#[tokio::test]
async fn the_same_question_has_the_same_size_however_many_came_before() {
    let fake = Fake::start().await;
    for _ in 0..6 {
        fake.hand(&schedule("think hard"));
        fake.reply(
            "model",
            Reply::Text("{\"word\":\"a long answer that must not come back\"}".into()),
        );
    }
    let _running = start(&fake, PmaRole::ProjectManager, ServiceLimits { handoffs: 1, ..PACE });
    fake.until("handoff.complete", 6).await;
    let questions: Vec<Value> = fake.asked("model").into_iter().map(|asked| asked.body).collect();
    let is_same = questions.iter().all(|question| *question == questions[0]);
    assert!(
        is_same,
        "X-01, S004-009, S004-010, S004-017: each question begins anew: {questions:?}"
    );
}

#[tokio::test]
async fn while_the_task_is_paused_no_model_is_asked_and_nothing_is_said_of_the_handoff() {
    let fake = Fake::start().await;
    fake.hand(&schedule("think hard"));
    fake.reply("think.begin", Reply::Given(json!({ "paused": true })));
    // It is given again when the task goes on.
    fake.hand(&schedule("think again"));
    fake.reply("think.begin", Reply::Given(json!({ "paused": false })));
    fake.reply("model", Reply::Text("{\"word\":\"done\"}".into()));
    let _running = start(&fake, PmaRole::ProjectManager, ServiceLimits { handoffs: 1, ..PACE });
    fake.until("handoff.complete", 1).await;
    let begun = fake.asked("think.begin");
    assert_eq!(begun.len(), 2);
    assert_eq!(
        begun[0].body,
        json!({ "handoff_id": "hof_00000000000000000000000000000001", "fencing_token": 7 })
    );
    assert_eq!((begun[0].token.as_str(), begun[0].trace.as_deref()), (HOST, Some(TRACE)));
    let seen: Vec<String> = fake.seen().into_iter().map(|seen| seen.what).collect();
    assert_eq!(seen, ["model", "think.record", "handoff.complete"]);
}
