use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;

const TASK: &str = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
const PROJECT: &str = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
const USER: &str = "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
const JOB: &str = "job_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
const SECOND: &str = "job_0192d5c8b6f07cc1a1a3c2b4d5e6f709";

fn timeline(state: &str, steps: usize) -> Value {
    let step = |number: usize| {
        json!({ "sequence": number, "node": "plan_steps", "verdict": "pass", "attempt": 1,
            "actor": "runner", "duration_ms": 1, "cost_micros": 0, "at": "2026-01-01T00:00:00Z" })
    };
    json!({
        "task_id": TASK, "run_id": "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "trace_id": "",
        "state": state, "standing": "works", "retries_used": 0, "cost_micros": 5,
        "steps": (1..=steps).map(step).collect::<Vec<_>>(), "waits": [], "units": [], "jobs": [],
        "mermaid": "", "plan_mermaid": "",
    })
}

fn read(value: Value) -> TaskTimeline {
    serde_json::from_value(value).unwrap()
}

fn job(id: &str, attempt: u32, ended: bool) -> Value {
    let mut job = json!({ "job_id": id, "unit": "add", "attempt": attempt, "state": "running",
        "queued_at": "2026-01-01T00:00:00Z", "started_at": "2026-01-01T00:00:01Z" });
    if ended {
        job["ended_at"] = json!("2026-01-01T00:00:02Z");
    }
    job
}

fn handoff(
    kind: &str,
    state: &str,
    thoughts: &[(&str, Value)],
    answer: Option<&Value>,
) -> HandoffView {
    let thoughts = thoughts.iter().enumerate().map(|(step, (kind, output))| {
        json!({ "step": step, "kind": kind, "prompt_digest": "", "schema_digest": "", "model": "m",
            "output": output, "attempts": 1, "input_tokens": 1, "output_tokens": 1, "latency_ms": 1 })
    });
    serde_json::from_value(json!({
        "handoff_id": "hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "kind": kind, "category": "planning",
        "role": "project_manager", "state": state, "parent_id": null, "user_id": USER,
        "project_id": PROJECT, "task_id": TASK, "run_id": null, "job_id": null, "thread_id": null,
        "attempt": 1, "worker": null, "cost_micros": 0, "failure": null, "trace_id": "",
        "created_at": "2026-01-01T00:00:00Z", "ended_at": null,
        "decisions": thoughts.collect::<Vec<_>>(), "answer": answer,
    }))
    .unwrap()
}

/// A word for each piece of news.
fn word(news: &TaskUpdate) -> String {
    match news {
        TaskUpdate::Class(class, why) => format!("class {} {why}", class.as_str()),
        TaskUpdate::Scope(scope, why) => format!("scope {} {why}", scope.as_str()),
        TaskUpdate::Workflow(stages) => format!("workflow {}", stages.len()),
        TaskUpdate::Plan(planned) => format!("plan {}", planned.plan.planned_units().len()),
        TaskUpdate::Assigned(assigned) => format!("assigned {}", assigned.len()),
        TaskUpdate::Step(step) => format!("step {}", step.sequence),
        TaskUpdate::Wait(wait) => format!("wait {}", wait.reason.as_str()),
        TaskUpdate::Waited(wait) => format!("waited {}", wait.reason.as_str()),
        TaskUpdate::Job(it) => format!("job {} {}", it.name, it.event.number),
        TaskUpdate::Report(report) => format!("report {}", report.kind.as_str()),
        TaskUpdate::BaseChecks(base) => format!("base checks {}", base.state.as_str()),
        TaskUpdate::Evidence(view) => format!("evidence {}", view.state.as_str()),
        TaskUpdate::Approval(call) => format!("approval {}", call.tool),
        TaskUpdate::PullRequest(entry) => format!("pull request {}", entry.state.as_str()),
        TaskUpdate::Cost(micros) => format!("cost {micros}"),
        TaskUpdate::Held(why) => format!("held {}", why.as_deref().unwrap_or("-")),
        TaskUpdate::Standing(it) => format!("standing {}", it.state.as_str()),
        TaskUpdate::Away(_) => "away".to_owned(),
        TaskUpdate::Back => "back".to_owned(),
        TaskUpdate::Ended(it) => format!("ended {}", it.state.as_str()),
    }
}

fn words(told: impl IntoIterator<Item = TimedUpdate>) -> Vec<String> {
    told.into_iter().map(|it| word(&it.news)).collect()
}

#[test]
fn class_scope_and_workflow_are_told_as_soon_as_each_is_known_and_once() {
    let mut seen = UpdateDedup::default();
    let class = ("classify", json!({ "class": "bug_fix", "reason": "it is broken" }));
    let scope = ("assess_scope", json!({ "scope": "small", "reason": "one line" }));
    let first = [handoff("plan", "claimed", std::slice::from_ref(&class), None)];
    assert_eq!(words(seen.collect_decisions(&first)), ["class quick_fix it is broken"]);
    let both = [handoff("plan", "claimed", &[class, scope], None)];
    assert_eq!(words(seen.collect_decisions(&both)), ["scope small one line", "workflow 1"]);
    assert_eq!(words(seen.collect_decisions(&both)), [""; 0]);
    assert_eq!(seen.unreported_handoffs(&both), [""; 0]);
}

#[test]
fn what_holds_the_project_manager_up_is_told_until_it_goes_on() {
    let mut seen = UpdateDedup::default();
    let mut stuck = handoff("plan", "queued", &[], None);
    assert_eq!(words(seen.collect_decisions(std::slice::from_ref(&stuck))), [""; 0]);
    stuck.failure = Some("no budget".to_owned());
    assert_eq!(words(seen.collect_decisions(std::slice::from_ref(&stuck))), ["held no budget"]);
    assert_eq!(words(seen.collect_decisions(std::slice::from_ref(&stuck))), [""; 0]);
    stuck.ended_at = Some(time::macros::datetime!(2026-01-01 0:00 UTC));
    assert_eq!(words(seen.collect_decisions(&[stuck])), ["held -"]);
}

#[test]
fn a_plan_brings_class_and_scope_when_nobody_thought_about_them() {
    let mut seen = UpdateDedup::default();
    let answer = json!({ "answer": "planned", "plan": { "steps": [{ "key": "add", "title": "Add" }] },
        "class": "feature_request", "scope": "small", "project": {} });
    let done = handoff("plan", "done", &[], Some(&answer));
    assert_eq!(
        seen.unreported_handoffs(std::slice::from_ref(&done)),
        [done.handoff_id.to_string()]
    );
    assert!(!seen.has_plan());
    assert_eq!(
        words(seen.collect_handoff(&done)),
        ["class feature_request ", "scope small ", "workflow 2", "plan 1"]
    );
    assert!(seen.has_plan() && seen.unreported_handoffs(&[done]).is_empty());
}

#[test]
fn steps_and_waits_are_told_once_and_a_wait_again_when_it_ends() {
    let mut seen = UpdateDedup::default();
    let mut value = timeline("running", 2);
    value["waits"] = json!([{ "wait_id": "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "reason": "approval", "owner": "person",
            "opened_at": "2026-01-01T00:00:00Z" }]);
    let open = read(value.clone());
    assert!(seen.has_changed(&open));
    assert_eq!(words(seen.collect_timeline(&open)), ["step 1", "step 2", "wait approval"]);
    assert!(!seen.has_changed(&open));
    value["waits"][0]["resolved_at"] = json!("2026-01-01T00:00:05Z");
    let answered = read(value);
    assert!(seen.has_changed(&answered));
    assert_eq!(words(seen.collect_timeline(&answered)), ["waited approval"]);
    assert_eq!(words(seen.collect_timeline(&answered)), [""; 0]);
}

#[test]
fn a_pull_request_is_told_whenever_its_state_is_another() {
    let mut seen = UpdateDedup::default();
    let mut value = timeline("running", 0);
    for (state, wanted) in [("opening", 1), ("opening", 0), ("open", 1)] {
        value["pull_request"] = json!({ "id": "pul_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "number": 1,
            "url": "/", "state": state, "title": "t", "branch": "b" });
        assert_eq!(seen.collect_timeline(&read(value.clone())).len(), wanted, "{state}");
    }
}

fn event(number: u64) -> JobEventView {
    serde_json::from_value(json!({ "number": number, "at": "2026-01-01T00:00:00Z", "at_ms": 0,
        "event": "message", "data": { "text": "x" } }))
    .unwrap()
}

#[test]
fn a_job_is_read_to_its_end_and_its_checks_have_a_name_of_their_own() {
    let mut seen = UpdateDedup::default();
    let mut value = timeline("running", 0);
    value["jobs"] = json!([job(JOB, 1, false), job(SECOND, 1, false)]);
    let working = read(value.clone());
    seen.collect_timeline(&working);
    let jobs = seen.open_jobs(&working);
    assert_eq!(jobs.len(), 2);
    assert_eq!(
        words(seen.collect_job_events(&jobs[0], vec![event(0), event(1)], false)),
        ["job add 0", "job add 1"]
    );
    assert_eq!(
        words(seen.collect_job_events(&jobs[1], vec![event(0)], false)),
        ["job checks of add 0"]
    );
    assert_eq!(seen.next_event(&jobs[0]), 2);
    // Asked again before anything happened, nothing is told twice.
    assert_eq!(words(seen.collect_job_events(&jobs[0], vec![event(1)], false)), [""; 0]);
    value["jobs"] = json!([job(JOB, 1, true), job(SECOND, 1, false)]);
    let ended = read(value);
    seen.collect_timeline(&ended);
    let jobs = seen.open_jobs(&ended);
    assert_eq!(jobs.len(), 2);
    // There is more of it: it stays open.
    seen.collect_job_events(&jobs[0], vec![event(2)], true);
    assert_eq!(seen.open_jobs(&ended).len(), 2);
    seen.collect_job_events(&jobs[0], vec![event(3)], false);
    assert_eq!(seen.open_jobs(&ended).len(), 1);
}

#[test]
fn only_calls_of_this_task_and_its_jobs_are_asked_about_and_each_once() {
    let call = |task: Option<&str>, asked: &str| -> ApprovalView {
        serde_json::from_value(json!({
            "approval_id": "apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "agent_token_id": "agt_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "project_id": null,
            "task_id": task, "tool": "sh", "arguments_digest": "", "policy_hash": "", "rules": [],
            "state": "asked", "asked_at": asked, "expires_at": "2026-01-02T00:00:00Z",
        }))
        .unwrap()
    };
    let (before, after) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z");
    let mut value = timeline("running", 0);
    value["jobs"] = json!([job(JOB, 1, false)]);
    let working = read(value.clone());
    let mut seen = UpdateDedup::default();
    assert_eq!(seen.unreported_approvals(&working, &[call(None, after)]).len(), 0);
    // Of a job that has ended since.
    assert_eq!(seen.unreported_approvals(&working, &[call(Some(TASK), before)]).len(), 0);
    assert_eq!(seen.unreported_approvals(&working, &[call(Some(TASK), after)]).len(), 1);
    assert_eq!(seen.unreported_approvals(&working, &[call(Some(TASK), after)]).len(), 0);
    value["jobs"] = json!([job(JOB, 1, true)]);
    assert_eq!(
        UpdateDedup::default().unreported_approvals(&read(value), &[call(Some(TASK), after)]).len(),
        0
    );
}

#[test]
fn what_it_costs_is_told_when_it_changes() {
    let mut seen = UpdateDedup::default();
    let told: Vec<_> = [0, 0, 7, 7].map(|micros| seen.collect_cost(micros).is_some()).into();
    assert_eq!(told, [true, false, true, false]);
}

/// A server that answers as its script says, and keeps what it was asked.
#[derive(Clone, Default)]
struct Server {
    asked: Arc<Mutex<Vec<String>>>,
    looks: Arc<Mutex<usize>>,
    /// Its first stream ends because the database was lost, and nothing else goes wrong.
    loses_database: bool,
}

impl Server {
    fn streams(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|path| path.starts_with("/v1/events")).cloned().collect()
    }

    async fn answer(self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        while !bytes.windows(4).any(|it| it == b"\r\n\r\n") {
            let mut piece = [0; 1024];
            match stream.read(&mut piece).await {
                Ok(read) if read > 0 => bytes.extend_from_slice(&piece[..read]),
                _ => return,
            }
        }
        let text = String::from_utf8(bytes).unwrap();
        let path = text.split(' ').nth(1).unwrap().to_owned();
        self.asked.lock().unwrap().push(path.clone());
        let items = json!({ "items": [] });
        let body = match path.split('?').next().unwrap() {
            "/v1/events" => {
                // One event, and the line is cut.
                let first = path.contains("after=0.0");
                let id = if first { "1.1" } else { "1.2" };
                let end = if self.loses_database && first { LOST_DATABASE } else { "" };
                let words = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nid: {id}\nevent: task.started\ndata: {{}}\n\n{end}"
                );
                let _ = stream.write_all(words.as_bytes()).await;
                return;
            }
            path if path.ends_with("/timeline") => {
                let look = {
                    let mut looks = self.looks.lock().unwrap();
                    *looks += 1;
                    *looks
                };
                match look {
                    1 => timeline("running", 1),
                    // Killed in the middle of an answer.
                    2 if !self.loses_database => {
                        let _ = stream
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                            .await;
                        return;
                    }
                    _ if self.streams().len() < 2 => timeline("running", 1),
                    _ => timeline("completed", 2),
                }
            }
            path if path.ends_with("/evidence") => {
                json!({ "evidence": [], "feedback": { "summary": "" } })
            }
            path if path.ends_with(TASK) => json!({
                "id": TASK, "project_id": PROJECT, "name": "add", "description": "Add",
                "acceptance_criteria": [], "budget": { "max_cost_micros": null, "max_tokens": null },
                "state": "running", "depends_on": [], "created_by": USER,
                "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
            }),
            _ => items,
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all((head + &body).as_bytes()).await;
    }
}

const LOST_DATABASE: &str = "event: stream.failed\ndata: {\"type\":\"urn:cynode:problem:unavailable\",\"title\":\"\",\"status\":503,\
    \"code\":\"unavailable\",\"detail\":\"the database cannot be reached\"}\n\n";

/// Everything that is told of a task of that server.
async fn follow_to_the_end(server: &Server) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (tracker, serving) = (TaskTracker::new(), server.clone());
    let accepting = tracker.clone();
    tracker.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            accepting.spawn(serving.clone().answer(stream));
        }
    });
    let mut follow = TaskUpdateStream::follow_task(ApiClient::new(&base).unwrap(), TASK);
    let mut told = Vec::new();
    while let Some(news) = follow.next().await {
        told.push(word(&news.unwrap().news));
    }
    told
}

#[tokio::test]
async fn a_database_that_was_lost_is_told_though_every_question_is_answered() {
    let server = Server { loses_database: true, ..Server::default() };
    let told = follow_to_the_end(&server).await;
    let begun = ["step 1", "cost 5", "standing running", "away", "back"];
    assert_eq!(told[..5], begun);
    assert_eq!(told[5..], ["step 2", "standing completed", "ended completed"]);
}

#[tokio::test]
async fn a_server_that_is_killed_costs_nothing_and_the_stream_goes_on_behind_the_last_event() {
    let server = Server::default();
    let told = follow_to_the_end(&server).await;
    assert_eq!(
        told,
        [
            "step 1",
            "cost 5",
            "standing running",
            "away",
            "back",
            "step 2",
            "standing completed",
            "ended completed"
        ]
    );
    let stream = |after: &str| format!("/v1/events?task_id={TASK}&after={after}");
    assert_eq!(server.streams()[..2], [stream("0.0"), stream("1.1")]);
}
