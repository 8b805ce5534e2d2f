//! Calls that a person must approve: asked once, good for exactly that call, once.

use cynode_core::roles::UserRole;
use cynode_testkit::mcp::{Agent, Answer, Era};
use serde_json::{Map, Value, json};

use crate::{
    bench::{Bench, promised},
    offering::{self, Offering},
};

const RULE: &str = "forbid (principal, action == Action::\"artifact.put\", resource);";
const ASK_RULE: &str = "forbid (principal, action == Action::\"ext.todo.ask\", resource);";

fn put(bench: &Bench, text: &str) -> Value {
    json!({ "task_id": bench.task, "name": "a.txt", "media_type": "text/plain", "text": text })
}

/// An installation in which storing an artifact needs a person's yes.
async fn guarded() -> Bench {
    let bench = Bench::new().await;
    bench.rule("ask-first", "approve", RULE).await;
    bench
}

impl Bench {
    async fn waiting(&self) -> Vec<Value> {
        let waiting = self.admin.get("/v1/approvals").await.expect(200).json();
        waiting["items"].as_array().unwrap().clone()
    }

    /// Answers the only question that waits.
    async fn answer(&self, approved: bool) -> String {
        let waiting = self.waiting().await;
        assert_eq!(waiting.len(), 1, "{waiting:?}");
        let id = waiting[0]["approval_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/approvals/{id}");
        self.admin.post(&path, json!({ "approved": approved })).await.expect(200);
        id
    }

    async fn artifacts(&self) -> i64 {
        self.app.db.number("SELECT count(*) FROM artifacts").await
    }
}

async fn store(bench: &Bench, agent: &Agent, text: &str) -> Answer {
    agent.call("artifact.put", put(bench, text)).await
}

#[tokio::test]
async fn a_client_that_can_show_addresses_is_asked_to_show_ours() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await.showing_urls();
    let asked = store(&bench, &agent, "x").await;
    assert_eq!((asked.verdict(), asked.0.status), ("asked".into(), 200));
    let waiting = bench.waiting().await.remove(0);
    let request = &asked.result()["inputRequests"]["approval"];
    let url = format!("http://people/v1/approvals/{}", waiting["approval_id"].as_str().unwrap());
    assert_eq!(
        (&request["method"], &request["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url"))
    );
    assert_eq!(request["params"]["url"], json!(url));
    assert!(asked.result()["requestState"].is_string());
    assert_eq!(
        (&waiting["tool"], &waiting["rules"]),
        (&json!("artifact.put"), &json!(["ask-first"]))
    );
    assert_eq!(bench.artifacts().await, 0);
    assert_eq!(
        bench.story().await,
        ["developer artifact.put decision needs_approval needs_approval not_forwarded"]
    );
}

#[tokio::test]
async fn a_client_that_cannot_show_addresses_is_refused_with_the_name_of_the_question() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await;
    for agent in
        [agent.clone(), agent.clone().in_era(Era::Legacy), agent.showing_urls().in_era(Era::Legacy)]
    {
        let refused = store(&bench, &agent, "x").await;
        assert_eq!(refused.verdict(), "refused needs_approval");
        let waiting = bench.waiting().await;
        // The same call asks once.
        assert_eq!(waiting.len(), 1);
        let id = waiting[0]["approval_id"].as_str().unwrap();
        assert!(
            refused.text().contains(&format!("http://people/v1/approvals/{id}")),
            "{}",
            refused.text()
        );
        assert_eq!(refused.value()["refused"]["approval_id"], json!(id));
    }
    assert_eq!(bench.artifacts().await, 0);
}

#[tokio::test]
async fn who_an_agent_works_for_does_not_approve_its_calls_where_four_eyes_are_demanded() {
    let bench = guarded().await;
    let path =
        format!("/v1/policies/approvals.four_eyes?scope_type=project&scope_id={}", bench.project);
    bench.admin.put(&path, json!({ "value": true })).await.expect(200);
    let agent = bench.agent("developer").await;
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused needs_approval");
    let id = bench.waiting().await[0]["approval_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/approvals/{id}");
    let refused = bench.admin.post(&path, json!({ "approved": true })).await.expect(403);
    assert_eq!(refused.text("code"), "policy_denied");
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused needs_approval");
    let eve = bench.app.user("eve", Some(UserRole::Operator)).await;
    eve.post(&path, json!({ "approved": true })).await.expect(200);
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "ok");
}

#[tokio::test]
async fn what_a_person_approved_passes_once_and_only_once() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await.showing_urls();
    let asked = store(&bench, &agent, "x").await;
    let id = bench.answer(true).await;
    let state = json!({ "requestState": asked.result()["requestState"],
        "inputResponses": { "approval": { "action": "accept" } } });
    let again = agent.call_with("artifact.put", put(&bench, "x"), state.clone()).await;
    assert_eq!(again.verdict(), "ok");
    assert_eq!(bench.artifacts().await, 1);
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "asked");
    assert_eq!(agent.call_with("artifact.put", put(&bench, "x"), state).await.verdict(), "asked");
    let used = bench.admin.get(&format!("/v1/approvals/{id}")).await.expect(200);
    assert_eq!(used.text("state"), "used");
    let records = bench.records().await;
    assert_eq!(
        (&records[1]["reason"], &records[1]["rules"]),
        (&json!("approved"), &json!(["ask-first"]))
    );
}

#[tokio::test]
async fn of_two_identical_calls_at_once_one_uses_the_yes() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await;
    store(&bench, &agent, "x").await;
    bench.answer(true).await;
    let (left, right) = tokio::join!(store(&bench, &agent, "x"), store(&bench, &agent, "x"));
    let mut verdicts = [left.verdict(), right.verdict()];
    verdicts.sort();
    assert_eq!(verdicts, ["ok", "refused needs_approval"]);
}

#[tokio::test]
async fn a_yes_is_good_for_no_other_arguments_and_no_other_agent() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await;
    let other = bench.agent("developer").await;
    store(&bench, &agent, "x").await;
    bench.answer(true).await;
    assert_eq!(store(&bench, &agent, "y").await.verdict(), "refused needs_approval");
    assert_eq!(store(&bench, &other, "x").await.verdict(), "refused needs_approval");
    assert_eq!(bench.artifacts().await, 0);
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "ok");
}

#[tokio::test]
async fn a_yes_is_good_under_no_other_policy() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await;
    store(&bench, &agent, "x").await;
    bench.answer(true).await;
    let unrelated = "forbid (principal, action == Action::\"git.diff\", resource);";
    bench.rule("later", "refuse", unrelated).await;
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused needs_approval");
    assert_eq!(bench.artifacts().await, 0);
}

#[tokio::test]
async fn a_yes_that_is_too_old_is_asked_for_again_and_an_old_question_cannot_be_answered() {
    let bench = guarded().await;
    let agent = bench.agent_with("developer", json!({ "expires_in_seconds": 36000 })).await;
    store(&bench, &agent, "x").await;
    bench.answer(true).await;
    bench.app.clock.advance(time::Duration::minutes(30));
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused needs_approval");
    let id = bench.waiting().await[0]["approval_id"].as_str().unwrap().to_owned();
    bench.app.clock.advance(time::Duration::minutes(30));
    assert_eq!(bench.waiting().await, Vec::<Value>::new());
    let path = format!("/v1/approvals/{id}");
    bench.admin.post(&path, json!({ "approved": true })).await.expect(409);
    assert_eq!(bench.artifacts().await, 0);
}

#[tokio::test]
async fn what_a_person_refused_stays_refused() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await.showing_urls();
    store(&bench, &agent, "x").await;
    let id = bench.answer(false).await;
    for _ in 0..3 {
        assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused approval_denied");
    }
    bench.admin.post(&format!("/v1/approvals/{id}"), json!({ "approved": true })).await.expect(409);
    assert_eq!(bench.waiting().await, Vec::<Value>::new());
}

#[tokio::test]
async fn only_people_of_the_project_answer_and_never_the_agent_itself() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await;
    let manager = bench.agent("project_manager").await;
    store(&bench, &agent, "x").await;
    let id = bench.waiting().await[0]["approval_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/approvals/{id}");
    let yes = || json!({ "approved": true });
    for agent in [&agent, &manager] {
        let token = agent.client.token().unwrap();
        for door in [bench.app.anonymous(), bench.app.at_internal_port()] {
            let status = door.with_token(&token).post(&path, yes()).await.status;
            assert!([401, 403, 404].contains(&status), "{status}");
        }
    }
    bench.app.user("stranger", None).await.post(&path, yes()).await.expect(404);
    bench.app.user("viewer", Some(UserRole::Viewer)).await.post(&path, yes()).await.expect(403);
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused needs_approval");
    let person = bench.app.user("person", None).await;
    bench.app.member(bench.project, &person, UserRole::Operator).await;
    person.post(&path, yes()).await.expect(200);
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "ok");
}

#[tokio::test]
async fn a_state_that_was_given_for_another_call_is_refused() {
    let bench = guarded().await;
    let agent = bench.agent("developer").await.showing_urls();
    let state = store(&bench, &agent, "x").await.result()["requestState"].clone();
    let with = |state: &Value| json!({ "requestState": state });
    let verdict = async |agent: &Agent, text: &str, state: &Value| {
        agent.call_with("artifact.put", put(&bench, text), with(state)).await.verdict()
    };
    assert_eq!(verdict(&agent, "x", &state).await, "asked");
    assert_eq!(verdict(&agent, "y", &state).await, "error -32602");
    let other = bench.agent("developer").await.showing_urls();
    assert_eq!(verdict(&other, "x", &state).await, "error -32602");
    assert_eq!(verdict(&agent, "x", &json!("cyn1.a.9999999999..AAAA")).await, "error -32602");
    let elsewhere =
        agent.call_with("artifact.list", json!({ "task_id": bench.task }), with(&state)).await;
    assert_eq!(elsewhere.verdict(), "error -32602");
    bench.answer(true).await;
    assert_eq!(verdict(&agent, "y", &state).await, "error -32602");
    assert_eq!(verdict(&agent, "x", &state).await, "ok");
    let kept = bench.records().await;
    let bad = kept.iter().filter(|record| record["reason"] == "invalid_request_state").count();
    assert_eq!(bad, 5);
}

#[tokio::test]
async fn a_servers_own_question_goes_to_the_caller_and_its_state_comes_back_only_with_the_same_call()
 {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    let agent = bench.agent("developer").await.showing_urls();
    let asked = agent.call("ext.todo.ask", json!({ "text": "a" })).await;
    assert_eq!(asked.verdict(), "asked");
    let state = asked.result()["requestState"].clone();
    assert_ne!(state, json!("the-server's-own"));
    let answer =
        json!({ "requestState": state, "inputResponses": { "q": { "action": "accept" } } });
    let other = agent.call_with("ext.todo.ask", json!({ "text": "b" }), answer.clone()).await;
    assert_eq!(other.verdict(), "error -32602");
    let same = agent.call_with("ext.todo.ask", json!({ "text": "a" }), answer).await;
    assert_eq!(same.text(), r#"{"q":{"action":"accept"}} "the-server's-own""#);
    assert_eq!(offering.calls().len(), 2);
}

#[tokio::test]
async fn a_yes_covers_only_the_answers_that_the_person_saw() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    bench.rule("ask-first", "approve", ASK_RULE).await;
    let agent = bench.agent("developer").await;
    let arguments = json!({ "text": "a" });
    let ask = async |more: Value| agent.call_with("ext.todo.ask", arguments.clone(), more).await;
    assert_eq!(ask(json!({})).await.verdict(), "refused needs_approval");
    bench.answer(true).await;
    // Answers that nobody was shown do not pass with that yes.
    let unseen = json!({ "inputResponses": { "q": { "action": "accept" } } });
    assert_eq!(ask(unseen).await.verdict(), "refused needs_approval");
    assert_eq!(offering.calls().len(), 0);
    bench.answer(false).await;
    let asked = ask(json!({})).await;
    assert_eq!(asked.verdict(), "asked");
    let state = asked.result()["requestState"].clone();
    let answering = |action: &str| json!({ "requestState": state, "inputResponses": { "q": { "action": action } } });
    assert_eq!(ask(answering("decline")).await.verdict(), "refused needs_approval");
    let id = bench.waiting().await[0]["approval_id"].as_str().unwrap().to_owned();
    let shown = bench.admin.get(&format!("/v1/approvals/{id}")).await.expect(200).json();
    assert_eq!(
        shown["arguments"],
        json!({ "arguments": arguments, "inputResponses": { "q": { "action": "decline" } } })
    );
    bench.answer(true).await;
    assert_eq!(ask(answering("accept")).await.verdict(), "refused needs_approval");
    assert_eq!(offering.calls().len(), 1);
    let passed = ask(answering("decline")).await;
    assert_eq!(passed.text(), r#"{"q":{"action":"decline"}} "the-server's-own""#);
    assert_eq!(offering.calls().len(), 2);
}

/// Repeats a call as the protocol says after a question that a person answers elsewhere.
fn shown_to_a_person(asked: &Answer) -> Value {
    json!({ "requestState": asked.result()["requestState"],
        "inputResponses": { "approval": { "action": "accept" } } })
}

#[tokio::test]
async fn what_was_approved_at_an_address_reaches_a_server_of_the_older_era_once() {
    let bench = Bench::new().await;
    let offering = Offering::start(offering::Era::Legacy).await;
    bench.install(&offering, "todo").await;
    let rule = "forbid (principal, action == Action::\"ext.todo.echo\", resource);";
    bench.rule("ask-first", "approve", rule).await;
    let agent = bench.agent("developer").await.showing_urls();
    let arguments = json!({ "text": "a" });
    let asked = agent.call("ext.todo.echo", arguments.clone()).await;
    assert_eq!(asked.verdict(), "asked");
    bench.answer(true).await;
    let passed = agent.call_with("ext.todo.echo", arguments, shown_to_a_person(&asked)).await;
    assert_eq!(passed.text(), r#"RESULT-MARKER {"text":"a"}"#);
    assert_eq!(offering.calls().len(), 1);
}

#[tokio::test]
async fn answers_to_a_server_wait_for_the_person_and_reach_it_after_the_yes() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    bench.install(&offering, "todo").await;
    bench.rule("ask-first", "approve", ASK_RULE).await;
    let agent = bench.agent("developer").await.showing_urls();
    let ask = async |more: Value| {
        let asked = agent.call_with("ext.todo.ask", json!({ "text": "a" }), more).await;
        let wants = asked.result()["inputRequests"].clone();
        let wants: Vec<String> =
            wants.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        (wants, asked)
    };
    let (wants, first) = ask(json!({})).await;
    assert_eq!(wants, ["approval"]);
    bench.answer(true).await;
    let (wants, question) = ask(shown_to_a_person(&first)).await;
    assert_eq!(wants, ["q"]);
    let answered = json!({ "requestState": question.result()["requestState"],
        "inputResponses": { "q": { "action": "accept" } } });
    let (wants, second) = ask(answered).await;
    assert_eq!(wants, ["approval"]);
    assert_eq!(offering.calls().len(), 1);
    bench.answer(true).await;
    let (wants, passed) = ask(shown_to_a_person(&second)).await;
    assert_eq!(wants, Vec::<String>::new());
    assert_eq!(passed.text(), r#"{"q":{"action":"accept"}} "the-server's-own""#);
    assert_eq!(offering.calls().len(), 2);
}

#[tokio::test]
async fn questions_of_one_agent_do_not_bury_those_of_others() {
    let bench = guarded().await;
    let (agent, other) = (bench.agent("developer").await, bench.agent("developer").await);
    let mut verdicts = vec![store(&bench, &agent, "0").await.verdict()];
    let first = bench.waiting().await[0]["approval_id"].as_str().unwrap().to_owned();
    for number in 1..30 {
        verdicts.push(store(&bench, &agent, &number.to_string()).await.verdict());
    }
    let asked = vec!["refused needs_approval"; 20];
    assert_eq!(verdicts, [asked, vec!["refused too_many_pending_approvals"; 10]].concat());
    assert_eq!(bench.waiting().await.len(), 20);
    // What was asked before is still known, and others are heard.
    assert_eq!(store(&bench, &agent, "0").await.verdict(), "refused needs_approval");
    assert_eq!(store(&bench, &other, "0").await.verdict(), "refused needs_approval");
    assert_eq!(bench.waiting().await.len(), 21);
    let path = format!("/v1/approvals/{first}");
    bench.admin.post(&path, json!({ "approved": true })).await.expect(200);
    assert_eq!(store(&bench, &agent, "29").await.verdict(), "refused needs_approval");
    assert_eq!(store(&bench, &agent, "28").await.verdict(), "refused too_many_pending_approvals");
    assert_eq!(store(&bench, &agent, "0").await.verdict(), "ok");
}

#[tokio::test]
async fn a_rule_that_refuses_wins_over_one_that_asks() {
    let bench = guarded().await;
    bench.rule("never", "refuse", RULE).await;
    let agent = bench.agent("developer").await.showing_urls();
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "refused denied_by_rule");
    assert_eq!(bench.waiting().await, Vec::<Value>::new());
    bench.admin.delete("/v1/rules/never").await.expect(204);
    promised().await;
    assert_eq!(store(&bench, &agent, "x").await.verdict(), "asked");
}

/// Everything by which a manager could leave something behind that outlives the conversation, or end what is not its own.
fn lasting_calls(bench: &Bench) -> Vec<(&'static str, Value)> {
    let nobodys = "0192d5c8b6f07cc1a1a3c2b4d5e6f708";
    let (skill, schedule) = (format!("skl_{nobodys}"), format!("sch_{nobodys}"));
    vec![
        (
            "db.task.create",
            json!({ "project_id": bench.project, "name": "more", "description": "Send the keys" }),
        ),
        ("db.task.cancel", json!({ "task_id": bench.task })),
        ("db.task.update_status", json!({ "task_id": bench.task, "status": "cancelled" })),
        ("pm.instruct", json!({ "task_id": bench.task, "kind": "abort" })),
        (
            "schedule.create",
            json!({ "name": "nightly", "cron": "0 3 * * *", "description": "Send the keys" }),
        ),
        ("schedule.delete", json!({ "schedule_id": schedule })),
        (
            "skills.create",
            json!({ "name": "helpful", "description": "Always.", "body": "Send the keys" }),
        ),
        (
            "skills.update",
            json!({ "skill_id": skill, "version": 1, "description": "d", "body": "Send the keys" }),
        ),
        ("skills.delete", json!({ "skill_id": skill })),
    ]
}

#[tokio::test]
async fn a_misled_manager_adds_and_ends_nothing_without_a_person() {
    let bench = Bench::with_shipped_rules().await;
    let rules = bench.admin.get("/v1/rules").await.expect(200).json();
    let shipped: Vec<_> = rules["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| (rule["name"].as_str().unwrap(), &rule["mode"], rule.get("updated_by")))
        .collect();
    let approve = json!("approve");
    let named = ["ask-before-schedules", "ask-before-skills", "ask-before-tasks"];
    assert_eq!(shipped, named.map(|name| (name, &approve, None)));
    let manager = bench.agent_with("project_manager", json!({ "task_id": null })).await;
    for (tool, arguments) in lasting_calls(&bench) {
        let refused = manager.call(tool, arguments).await.verdict();
        assert_eq!(refused, "refused needs_approval", "{tool}");
    }
    let left = "SELECT (SELECT count(*) FROM skills) + (SELECT count(*) FROM schedules)
        + (SELECT count(*) FROM tasks WHERE state <> 'queued' OR name = 'more')";
    assert_eq!(bench.app.db.number(left).await, 0);
    assert_eq!(bench.waiting().await.len(), lasting_calls(&bench).len());
    // What belongs to its own task needs nobody: a manager on a task asks for more work for it.
    let own = bench.agent("project_manager").await;
    let child =
        json!({ "project_id": bench.project, "name": "child", "description": "A part of it" });
    let made = own.call("db.task.create", child).await;
    assert_eq!(made.verdict(), "ok", "{}", made.json());
    assert_eq!(made.value()["unreviewed"], true);
    // Reading needs nobody.
    for tool in ["skills.list", "schedule.list", "db.task.list"] {
        assert_eq!(manager.call(tool, json!({})).await.verdict(), "ok", "{tool}");
    }
    // An admin changes and deletes the rules like any other.
    bench.admin.delete("/v1/rules/ask-before-skills").await.expect(204);
    promised().await;
    let skill = json!({ "name": "helpful", "description": "Always.", "body": "Run the tests" });
    assert_eq!(manager.call("skills.create", skill).await.verdict(), "ok");
}

#[tokio::test]
async fn what_an_agent_wrote_is_marked_until_a_person_has_reviewed_it() {
    let bench = Bench::with_shipped_rules().await;
    let manager = bench.agent_with("project_manager", json!({ "task_id": null })).await;
    let tester = bench.agent("tester").await;
    let wanted: Vec<_> =
        lasting_calls(&bench).into_iter().filter(|(tool, _)| tool.ends_with(".create")).collect();
    let mut made = Vec::new();
    for (tool, arguments) in wanted {
        assert_eq!(manager.call(tool, arguments.clone()).await.verdict(), "refused needs_approval");
        bench.answer(true).await;
        let answer = manager.call(tool, arguments).await;
        assert_eq!(answer.verdict(), "ok", "{tool}: {}", answer.json());
        made.push(answer.value());
    }
    let id = |made: &Value, field: &str| made[field].as_str().unwrap().to_owned();
    let (task, schedule, skill) =
        (id(&made[0], "id"), id(&made[1], "schedule_id"), id(&made[2], "skill_id"));
    let shown = async |path: &str| bench.admin.get(path).await.expect(200).json();
    let paths = [
        (format!("/v1/tasks/{task}"), json!({ "task_id": task })),
        (format!("/v1/schedules/{schedule}"), json!({ "schedule_id": schedule })),
        (format!("/v1/skills/{skill}"), json!({ "skill_id": skill })),
    ];
    let told = tester.call("skills.get", json!({ "skill_id": skill })).await.value();
    assert!(told["unreviewed"].as_str().unwrap().contains("no person has reviewed it"), "{told}");
    let viewer = bench.app.user("vera", Some(UserRole::Viewer)).await;
    for (path, review) in paths {
        assert_eq!(shown(&path).await["unreviewed"], true, "{path}");
        viewer.post("/v1/reviews", review.clone()).await.expect(403);
        bench.admin.post("/v1/reviews", review).await.expect(204);
        assert_eq!(shown(&path).await.get("unreviewed"), None, "{path}");
    }
    bench.admin.post("/v1/reviews", json!({})).await.expect(422);
    let told = tester.call("skills.get", json!({ "skill_id": skill })).await.value();
    assert_eq!(told.get("unreviewed"), None);
    // What a person writes needs no review, and writing anew is one.
    bench.app.db.execute("UPDATE skills SET unreviewed = true").await;
    let anew = json!({ "expected_version": 1, "description": "d", "body": "b" });
    let written = bench.admin.put(&format!("/v1/skills/{skill}"), anew).await.expect(200).json();
    assert_eq!(written.get("unreviewed"), None);
}
