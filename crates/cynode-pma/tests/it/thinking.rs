//! Thinking at the egress.

use std::time::Duration;

use cynode_core::models::Tier;
use cynode_pma::{
    decision_context::{DecisionBackend as _, DecisionError, DecisionRequest},
    llm::{AnswerValidator, LiveBackend, LlmClient, request_digest},
    mcp_client::{self, McpClient, OrchestratorClient, RequestCredentials},
};
use serde_json::{Value, json};

use crate::fake::{self, Fake, HOST, Reply, Seen, TOKEN, TRACE};

const LONG: Duration = Duration::from_secs(20);

fn ask() -> DecisionRequest {
    let labels = json!({ "type": "object", "properties": { "class": { "enum": ["a", "b"] } }, "required": ["class"] });
    DecisionRequest {
        step: 0,
        kind: cynode_pma::decision_context::DecisionKind::Classify,
        tier: Tier::Deep,
        schema: labels,
        system: "SYSTEM".into(),
        user: "Which?".into(),
    }
}

/// Nothing is wrong.
const FINE: AnswerValidator<'static> = &|_| Ok(());

/// Asks with what the fake hands over.
async fn think(fake: &Fake, handoff: &Value, patience: Duration) -> Result<Value, DecisionError> {
    let handoff = fake::read(handoff);
    let http = mcp_client::build_http_client().unwrap();
    let host =
        OrchestratorClient::new(McpClient::new(http.clone(), &fake.base), HOST.to_owned().into());
    let endpoint = format!("{}/v1/chat/completions", fake.base);
    let voice =
        LlmClient::new(http, endpoint, RequestCredentials::from_handoff(&handoff), patience)
            .with_think_seconds(handoff.think_seconds.clone());
    LiveBackend::new(&handoff, voice, host, 0.7).request_decision(ask(), FINE).await
}

fn handoff() -> Value {
    fake::handoff(&json!({ "kind": "summarise", "units": [] }))
}

fn whats(seen: &[Seen]) -> Vec<&str> {
    seen.iter().map(|seen| seen.what.as_str()).collect()
}

fn good() -> Reply {
    Reply::Text("{\"class\":\"a\"}".into())
}

#[tokio::test]
async fn an_answer_is_asked_with_the_handoffs_token_and_recorded_with_the_hosts_before_it_is_used()
{
    let fake = Fake::start().await;
    fake.reply("model", good());
    assert_eq!(
        think(&fake, &handoff(), LONG).await,
        Ok(json!({ "class": "a" })),
        "S004-124, S004-125, S004-141: a question in, a structured answer out"
    );
    let seen = fake.seen();
    assert_eq!(
        whats(&seen),
        ["model", "think.record"],
        "S004-125, S004-141, S004-164, X-01: one request for one decision"
    );
    let question = json!({
        "model": "cynodeai.standard",
        "messages": [{ "role": "system", "content": "SYSTEM" }, { "role": "user", "content": "Which?" }],
        "temperature": 0.0,
        "max_tokens": 512,
        "response_format": { "type": "json_schema", "json_schema": { "name": "classify", "strict": true, "schema": {
            "type": "object", "required": ["class"], "properties": { "class": { "enum": ["a", "b"] } }, "additionalProperties": false,
        } } },
    });
    assert_eq!(
        seen[0].body, question,
        "S004-125, S004-141, S004-160: the API of the model is called with a schema and without tools"
    );
    let passes: Vec<_> =
        seen.iter().map(|seen| (seen.token.as_str(), seen.trace.as_deref())).collect();
    assert_eq!(passes, [(TOKEN, Some(TRACE)), (HOST, Some(TRACE))]);
    let mut record = seen[1].body.clone();
    record["decision"]["latency_ms"] = json!(0);
    let schema_digest = record["decision"]["schema_digest"].clone();
    assert_eq!(
        record,
        json!({
            "handoff_id": "hof_00000000000000000000000000000001",
            "fencing_token": 7,
            "decision": { "step": 0, "kind": "classify", "prompt_digest": request_digest(&ask()), "schema_digest": schema_digest,
                "model": "cynodeai.standard", "output": { "class": "a" }, "attempts": 1, "validation_errors": [],
                "input_tokens": 10, "output_tokens": 3, "latency_ms": 0 },
            "prompt": question,
            "calls": ["call_1"],
        }),
        "S004-164: the tokens and the model calls of the decision are recorded"
    );
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again_with_the_last_complaint_only() {
    let fake = Fake::start().await;
    fake.reply("model", Reply::Text("FIRST WRONG".into()));
    fake.reply("model", Reply::Text("{\"class\":\"SECOND WRONG\"}".into()));
    fake.reply("model", good());
    assert_eq!(think(&fake, &handoff(), LONG).await, Ok(json!({ "class": "a" })));
    let questions = fake.asked("model");
    let users: Vec<&str> = questions
        .iter()
        .map(|asked| asked.body["messages"][1]["content"].as_str().unwrap())
        .collect();
    assert_eq!(users[0], "Which?");
    assert!(
        users[1].starts_with("Which?\n\nAn answer to this was not taken: it is not JSON"),
        "{}",
        users[1]
    );
    let rooms: Vec<&Value> = questions.iter().map(|asked| &asked.body["max_tokens"]).collect();
    assert_eq!(rooms, [512, 2048, 2048]);
    assert!(users[2].contains("`/class`") && !users[2].contains("not JSON"), "{}", users[2]);
    // Never a conversation that grows.
    assert!(questions.iter().all(|asked| asked.body["messages"].as_array().unwrap().len() == 2));
    assert!(!users.iter().any(|user| user.contains("FIRST WRONG")));
    let record = &fake.asked("think.record")[0].body;
    assert_eq!(
        (&record["decision"]["attempts"], &record["calls"]),
        (&json!(3), &json!(["call_1", "call_1", "call_1"]))
    );
}

#[tokio::test]
async fn three_answers_that_do_not_fit_are_an_error_and_never_a_guess() {
    let fake = Fake::start().await;
    for _ in 0..4 {
        fake.reply("model", Reply::Text("a, I would say".into()));
    }
    let trouble = think(&fake, &handoff(), LONG).await.unwrap_err();
    assert!(
        matches!(&trouble, DecisionError::Permanent(why) if why.contains("no usable answer to `classify` in 3 attempts")),
        "S004-018: an error: {trouble}"
    );
    assert_eq!(whats(&fake.seen()), ["model", "model", "model", "think.record"]);
    let output = &fake.asked("think.record")[0].body["decision"]["output"];
    assert_eq!(*output, Value::Null, "S004-018: never a guess");
}

#[tokio::test]
async fn silence_is_borne_once_and_then_told() {
    let fake = Fake::start().await;
    fake.reply("model", Reply::Never);
    fake.reply("model", Reply::Never);
    let trouble = think(&fake, &handoff(), Duration::from_millis(50)).await.unwrap_err();
    // The second time longer: whoever thinks long does so again, and is paid for it.
    let why = "no model answered: `cynodeai.standard` took longer than 150ms; give all models more time with \
        `cynork settings set manager.think_timeout_seconds N`, or one with `cynork model set MODEL --think-seconds N`";
    assert_eq!(trouble, DecisionError::Late(why.into()), "S004-163: it fails gracefully");
    assert_eq!(whats(&fake.seen()), ["model", "model"], "S004-163: it is tried once more");

    // What somebody said about the model goes before what the process was started with.
    let fake = Fake::start().await;
    fake.reply("model", Reply::Never);
    fake.reply("model", good());
    let mut patient = handoff();
    patient["think_seconds"] = json!({ "cynodeai.standard": 1 });
    assert_eq!(
        think(&fake, &patient, LONG).await,
        Ok(json!({ "class": "a" })),
        "S004-163: the time is configurable"
    );

    let fake = Fake::start().await;
    for _ in 0..2 {
        fake.reply("model", Reply::Status(503, json!({ "error": { "message": "busy" } })));
    }
    let trouble = think(&fake, &handoff(), LONG).await.unwrap_err();
    assert_eq!(trouble, DecisionError::Transient("no model answered: busy".into()));
    assert_eq!(whats(&fake.seen()), ["model", "model"]);

    let fake = Fake::start().await;
    fake.reply("model", Reply::Status(503, json!({ "error": { "message": "busy" } })));
    fake.reply("model", good());
    assert_eq!(think(&fake, &handoff(), LONG).await, Ok(json!({ "class": "a" })));
}

#[tokio::test]
async fn a_question_that_was_answered_before_is_not_asked_again() {
    let fake = Fake::start().await;
    let mut handoff = handoff();
    let thought = |step: u32, digest: &str, output: Value| {
        json!({ "step": step, "kind": "classify", "prompt_digest": digest, "schema_digest": "", "model": "m", "output": output,
            "attempts": 1, "validation_errors": [], "input_tokens": 1, "output_tokens": 1, "latency_ms": 1 })
    };
    let own = request_digest(&ask());
    handoff["decisions"] = json!([
        thought(1, &own, json!({ "class": "a" })),
        thought(0, "another", json!({ "class": "a" })),
        thought(0, &own, Value::Null),
        thought(0, &own, json!({ "class": "b" })),
    ]);
    let stored = think(&fake, &handoff, LONG).await;
    assert_eq!(stored, Ok(json!({"class": "b"})), "S004-161, S004-020: the stored answer is used");
    assert_eq!(
        fake.seen(),
        [],
        "S004-161, S004-020: a restarted process does not ask again; no model is asked for it again"
    );
    // What does not fit any more is asked for anew.
    handoff["decisions"] = json!([thought(0, &own, json!({ "class": "gone" }))]);
    fake.reply("model", good());
    assert_eq!(think(&fake, &handoff, LONG).await, Ok(json!({ "class": "a" })));
}

#[tokio::test]
async fn an_answer_that_cannot_be_kept_is_not_used() {
    for (reply, transient) in [
        (Reply::Failed("fenced"), true),
        (Reply::Refused("not_allowlisted"), false),
        (
            Reply::Status(
                401,
                json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": 401, "message": "no" } }),
            ),
            false,
        ),
    ] {
        let fake = Fake::start().await;
        fake.reply("model", good());
        fake.reply("think.record", reply);
        let trouble = think(&fake, &handoff(), LONG).await.unwrap_err();
        assert_eq!(matches!(trouble, DecisionError::Transient(_)), transient, "{trouble}");
        assert_eq!(whats(&fake.seen()), ["model", "think.record"]);
    }
}

#[tokio::test]
async fn what_the_egress_refuses_is_told_in_its_words_and_asked_once() {
    for (status, code, transient) in [
        (402, "budget_exhausted", true),
        (402, "quota_exhausted", true),
        (402, "task_parked", true),
        (403, "model_not_allowed", false),
        (429, "rate_limit_exceeded", true),
        (401, "invalid_api_key", true),
        (400, "", false),
        (404, "model_not_found", false),
    ] {
        let fake = Fake::start().await;
        let error = json!({ "error": { "message": "the words", "type": "t", "param": null, "code": code } });
        fake.reply("model", Reply::Status(status, error));
        let trouble = think(&fake, &handoff(), LONG).await.unwrap_err();
        let expected = "the words".to_owned();
        let expected = match (code, transient) {
            ("budget_exhausted" | "quota_exhausted" | "task_parked", _) => {
                DecisionError::Budget(expected)
            }
            (_, true) => DecisionError::Transient(expected),
            (_, false) => DecisionError::Permanent(expected),
        };
        assert_eq!(trouble, expected, "{status} {code}");
        assert_eq!(whats(&fake.seen()), ["model"], "S000-079: nothing else is tried");
    }
}

#[tokio::test]
async fn a_handoff_without_models_asks_nobody_and_waits_for_one() {
    let fake = Fake::start().await;
    let mut handoff = handoff();
    handoff["models"] = json!([]);
    let why = cynode_core::models::no_model_message();
    assert_eq!(think(&fake, &handoff, LONG).await, Err(DecisionError::Transient(why)));
    assert_eq!(fake.seen(), []);
}

#[tokio::test]
async fn an_answer_that_leads_elsewhere_is_not_followed() {
    let (fake, other) = (Fake::start().await, Fake::start().await);
    fake.reply("model", Reply::Elsewhere(format!("{}/v1/chat/completions", other.base)));
    assert!(matches!(think(&fake, &handoff(), LONG).await, Err(DecisionError::Permanent(_))));
    fake.reply("model", good());
    fake.reply("think.record", Reply::Elsewhere(format!("{}/mcp", other.base)));
    assert!(matches!(think(&fake, &handoff(), LONG).await, Err(DecisionError::Permanent(_))));
    assert_eq!(other.seen(), [], "S000-079, S000-082: no connection leads elsewhere");
}
