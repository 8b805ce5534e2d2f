//! What people are told, and the links by which they answer.

use std::time::Duration;

use cynode_app::{
    notifications,
    tools::approvals::{self, ApprovalOutcome, ApprovalRequest},
};
use cynode_core::{
    ids::{CallId, ProjectId},
    notifications::NotificationState,
    roles::UserRole,
};
use cynode_notify::MailServer;
use cynode_testkit::{
    Client, Reply, TestApp,
    inbox::{NtfyInbox, SmtpInbox, WebhookInbox, WebhookRequest},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::workflow::Drive;

const LEASE: Duration = Duration::from_mins(2);

/// A task, somebody who may steer it, and where that person is told.
pub(crate) struct Scene {
    pub(crate) drive: Drive,
    pub(crate) ada: Client,
    hooks: WebhookInbox,
    channel: String,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let drive = Drive::new().await;
        let value = json!({ "value": true, "expected_version": 0 });
        drive.admin.put("/v1/settings/notifications.allow_private", value).await.expect(200);
        let ada = drive.app.user("ada", None).await;
        drive.app.member(drive.project.parse().unwrap(), &ada, UserRole::Operator).await;
        let hooks = WebhookInbox::start().await;
        let channel = webhook(&ada, &hooks, json!({})).await;
        Self { drive, ada, hooks, channel }
    }

    /// Brings the task to where its plan waits for a yes.
    pub(crate) async fn plan_waits(&self) {
        let mut held = self.drive.start().await;
        self.drive.go(&mut held, "pass", json!({})).await;
        let units = json!([
            { "key": "api", "title": "Write the <b>API</b>" },
            { "key": "ui", "title": "Write the page", "depends_on": ["api"] },
        ]);
        let ask = json!({
            "state": { "plan": { "steps": units } },
            "effects": [{ "effect": "plan_units", "units": units }],
            "wait": { "reason": "approval", "question": "May the plan of 2 units be carried out?" },
            "cost_micros": 1_250_000,
        });
        self.drive.step(&held, "wait", ask).await.expect(200);
    }

    /// Brings the task to where it waits for an answer.
    async fn question_waits(&self, question: &str) {
        let held = self.drive.start().await;
        let ask = json!({ "wait": { "reason": "human_input", "question": question } });
        self.drive.step(&held, "wait", ask).await.expect(200);
    }

    /// Tells what is due; gives how many were taken.
    pub(crate) async fn turn(&self) -> usize {
        notifications::deliver_due(&self.drive.app.app, LEASE).await.unwrap()
    }

    /// The path of the link in the last notice.
    async fn link(&self) -> String {
        self.turn().await;
        path(self.hooks.messages().last().unwrap())
    }

    pub(crate) async fn listed(&self) -> Vec<Value> {
        let listed = self.ada.get("/v1/notifications").await.expect(200).json();
        listed["items"].as_array().unwrap().clone()
    }

    async fn waits_open(&self) -> i64 {
        self.drive.app.db.number("SELECT count(*) FROM waits WHERE resolved_at IS NULL").await
    }

    /// Time goes by until what failed is tried again.
    pub(crate) async fn later(&self) {
        self.drive
            .app
            .db
            .execute("UPDATE notifications SET due_at = now() WHERE state = 'pending'")
            .await;
    }
}

async fn webhook(by: &Client, hooks: &WebhookInbox, more: Value) -> String {
    let mut body = json!({ "name": "hook", "kind": "webhook", "address": hooks.url() });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let made = by.post("/v1/notification-channels", body).await.expect(201).json();
    hooks.trust(made["secret"].as_str().unwrap());
    made["channel"]["channel_id"].as_str().unwrap().to_owned()
}

fn path(hook: &WebhookRequest) -> String {
    let url = hook.body["data"]["links"][0]["url"].as_str().unwrap();
    url.strip_prefix("https://people.example").unwrap().to_owned()
}

async fn open(app: &TestApp, path: &str) -> Reply {
    app.anonymous().get(path).await
}

async fn submit(app: &TestApp, path: &str, form: &str) -> Reply {
    let client = app.anonymous().with_header("content-type", "application/x-www-form-urlencoded");
    let response = client.raw("POST".parse().unwrap(), path, Some(form.to_owned())).await;
    let (parts, body) = response.into_parts();
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    Reply { status: parts.status.as_u16(), headers: parts.headers, body }
}

fn words(reply: &Reply) -> String {
    String::from_utf8(reply.body.to_vec()).unwrap()
}

/// A call of an agent that waits for a person.
async fn asked(drive: &Drive, arguments: &Value) -> String {
    let token = json!({ "role": "developer", "project_id": drive.project, "task_id": drive.task });
    let agent =
        drive.admin.post("/v1/agent-tokens", token).await.expect(201).text("agent_token_id");
    let asked = ApprovalRequest {
        agent: agent.parse().unwrap(),
        project: Some(drive.project.parse::<ProjectId>().unwrap()),
        task: Some(drive.task.parse().unwrap()),
        tool: "git.push".into(),
        arguments: [1; 32],
        policy: [2; 32],
        rules: vec!["careful".into()],
    };
    let app = &drive.app.app;
    let trace = app.environment().new_trace_id();
    let request = cynode_app::OperationRequest { caller: None, trace, attempt: None };
    let call: CallId = "cal_00000000000000000000000000000001".parse().unwrap();
    match approvals::obtain_approval(app, &request, &asked, &arguments.to_string(), call)
        .await
        .unwrap()
    {
        ApprovalOutcome::Waiting(approval) => approval.id.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_plan_that_waits_is_told_word_for_word_with_a_link() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    assert_eq!(scene.turn().await, 1);
    let taken = scene.hooks.messages();
    assert_eq!((taken.len(), taken[0].verified), (1, 1));
    let url = taken[0].body["data"]["links"][0]["url"].clone();
    let listed = scene.listed().await;
    assert_eq!(listed[0]["notification_id"], taken[0].id);
    let event = "SELECT data ->> 'wait_id' FROM events WHERE kind = 'task.waiting'";
    let wait = scene.drive.app.db.texts(event).await;
    assert_eq!(
        taken[0].body["data"],
        json!({
            "notification_id": taken[0].id,
            "title": "May the plan of mend-it be carried out?",
            "text": "Asked by the project manager, for task mend-it in web. Spent so far: 1.2500 of 5.0000 USD.",
            "exact": "1. Write the <b>API</b> (api)\n2. Write the page (ui), after api",
            "links": [
                { "label": "Look and answer", "url": url },
                { "label": "Approve", "url": url, "post": "decision=approve" },
                { "label": "Refuse", "url": url, "post": "decision=refuse" },
            ],
            "about": {
                "project_id": scene.drive.project,
                "task_id": scene.drive.task,
                "trace_id": taken[0].body["data"]["about"]["trace_id"],
                "data": {
                    "name": "mend-it", "reason": "approval",
                    "question": "May the plan of 2 units be carried out?", "wait_id": wait[0],
                },
            },
        }),
        "S004-139: a person is notified"
    );
    assert_eq!(scene.turn().await, 0, "it is told once");
}

#[tokio::test]
async fn a_task_that_ends_is_told_and_what_nobody_listens_to_is_not_kept() {
    let scene = Scene::new().await;
    let path = format!("/v1/notification-channels/{}", scene.channel);
    scene.ada.patch(&path, json!({ "kinds": ["task.failed"] })).await.expect(200);
    let mut held = scene.drive.start().await;
    for verdict in ["pass", "pass", "done"] {
        scene.drive.go(&mut held, verdict, json!({})).await;
    }
    scene
        .drive
        .step(&held, "pass", json!({ "state": { "summary": "All done" } }))
        .await
        .expect(200);
    assert_eq!(scene.drive.app.db.number("SELECT count(*) FROM notifications").await, 0);
    scene.ada.patch(&path, json!({ "kinds": ["task.failed", "task.completed"] })).await.expect(200);
    let other = scene.drive.another(json!([])).await;
    let mut held = scene.drive.start_task(&other).await;
    for verdict in ["pass", "pass", "done"] {
        scene.drive.go(&mut held, verdict, json!({})).await;
    }
    scene
        .drive
        .step(&held, "pass", json!({ "state": { "summary": "All done" } }))
        .await
        .expect(200);
    scene.turn().await;
    let taken = scene.hooks.messages();
    let told: Vec<_> = taken
        .iter()
        .map(|hook| (&hook.body["type"], &hook.body["data"]["title"], &hook.body["data"]["text"]))
        .collect();
    assert_eq!(
        told,
        [(
            &json!("task.completed"),
            &json!("mend-it-2 is done (web)"),
            &json!("All done\n\nSpent: 0.0000 of 5.0000 USD.")
        )],
        "S004-147: a webhook gets the event"
    );
}

#[tokio::test]
async fn a_paused_task_is_told_with_what_was_said_unless_it_goes_on_already() {
    let scene = Scene::new().await;
    let path = format!("/v1/tasks/{}/instructions", scene.drive.task);
    let tell = async |body: Value| scene.drive.admin.post(&path, body).await.expect(202);
    let mut held = scene.drive.start().await;
    tell(json!({ "kind": "pause", "text": "Which key may I use?" })).await;
    scene.drive.go(&mut held, "pass", json!({})).await;
    assert_eq!(scene.turn().await, 1);
    let taken = scene.hooks.messages();
    let data = &taken[0].body["data"];
    assert_eq!(
        (&data["title"], &data["text"], &data["links"]),
        (
            &json!("mend-it is paused (web)"),
            &json!("Which key may I use?\n\nIt goes on when somebody resumes it."),
            &json!([]),
        ),
        "B004-60"
    );
    tell(json!({ "kind": "resume" })).await;
    let mut held = scene.drive.start().await;
    tell(json!({ "kind": "pause", "text": "And which now?" })).await;
    scene.drive.go(&mut held, "pass", json!({})).await;
    tell(json!({ "kind": "resume" })).await;
    assert_eq!(scene.turn().await, 1);
    assert_eq!(scene.hooks.messages().len(), 1);
    let dropped = "SELECT reason FROM notifications WHERE state = 'dropped'";
    assert_eq!(scene.drive.app.db.texts(dropped).await, ["it is not paused any more"]);
}

#[tokio::test]
async fn only_those_are_told_who_may_see_the_project_then_and_now() {
    let scene = Scene::new().await;
    let app = &scene.drive.app;
    let stranger = app.user("stranger", None).await;
    let strange = WebhookInbox::start().await;
    webhook(&stranger, &strange, json!({})).await;
    let viewer = app.user("viewer", Some(UserRole::Viewer)).await;
    let views = WebhookInbox::start().await;
    webhook(&viewer, &views, json!({})).await;
    scene.plan_waits().await;
    // Between the event and the telling, ada is taken out of the project.
    let path = format!("/v1/projects/web/members/{}", scene.ada.user.unwrap());
    scene.drive.admin.delete(&path).await.expect(204);
    assert_eq!(scene.turn().await, 2);
    assert_eq!(
        (strange.messages().len(), scene.hooks.messages().len(), views.messages().len()),
        (0, 0, 1)
    );
    assert_eq!(
        views.messages()[0].body["data"]["links"],
        json!([]),
        "who may not answer has no link"
    );
    let dropped = "SELECT reason FROM notifications WHERE state = 'dropped'";
    assert_eq!(app.db.texts(dropped).await, ["the channel may not be told of this any more"]);
}

#[tokio::test]
async fn a_channel_that_many_read_has_no_link() {
    let scene = Scene::new().await;
    let shared = WebhookInbox::start().await;
    let more = json!({ "scope": "project", "project_id": scene.drive.project });
    webhook(&scene.drive.admin, &shared, more).await;
    let all = WebhookInbox::start().await;
    webhook(&scene.drive.admin, &all, json!({ "scope": "installation" })).await;
    scene.plan_waits().await;
    assert_eq!(scene.turn().await, 3);
    for inbox in [shared, all] {
        assert_eq!(inbox.messages()[0].body["data"]["links"], json!([]));
    }
}

#[tokio::test]
async fn a_receiver_that_is_down_is_told_later_once_and_under_the_same_id() {
    let scene = Scene::new().await;
    scene.hooks.answer(503, None);
    scene.hooks.answer(500, None);
    scene.plan_waits().await;
    scene.turn().await;
    assert_eq!(scene.turn().await, 0, "it is not tried before its time");
    scene.later().await;
    scene.turn().await;
    scene.later().await;
    scene.turn().await;
    scene.later().await;
    assert_eq!(scene.turn().await, 0);
    let taken = scene.hooks.messages();
    let answered: Vec<_> = taken.iter().map(|hook| hook.answered).collect();
    assert_eq!(answered, [503, 500, 204]);
    assert!(taken.iter().all(|hook| hook.id == taken[0].id && hook.body == taken[0].body));
    let listed = scene.listed().await;
    assert_eq!((&listed[0]["state"], &listed[0]["reason"]), (&json!("sent"), &json!(null)));
    let attempts: Vec<_> = listed[0]["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| {
            (attempt["number"].clone(), attempt["sent"].clone(), attempt["answer"].clone())
        })
        .collect();
    assert_eq!(
        attempts,
        [
            (json!(1), json!(false), json!("the answer was 503")),
            (json!(2), json!(false), json!("the answer was 500")),
            (json!(3), json!(true), json!("204")),
        ]
    );
}

#[tokio::test]
async fn what_cannot_be_told_is_given_up_told_as_an_event_and_can_be_replayed() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    for _ in 0..12 {
        scene.hooks.answer(500, None);
        scene.turn().await;
        scene.later().await;
    }
    assert_eq!(scene.turn().await, 0);
    let listed = scene.listed().await;
    assert_eq!(
        (&listed[0]["state"], listed[0]["attempts"].as_array().unwrap().len()),
        (&json!("failed"), 12)
    );
    let events = "SELECT data ->> 'reason' FROM events WHERE kind = 'notification.failed'";
    assert_eq!(scene.drive.app.db.texts(events).await, ["the answer was 500"]);
    let path =
        format!("/v1/notifications/{}/replay", listed[0]["notification_id"].as_str().unwrap());
    let stranger = scene.drive.app.user("stranger", None).await;
    stranger.post(&path, json!(null)).await.expect(404);
    let replayed = scene.ada.post(&path, json!(null)).await.expect(202).json();
    assert_eq!(replayed["state"], "pending");
    scene.ada.post(&path, json!(null)).await.expect(409);
    // Whoever was refused may still hold the row for a moment.
    while scene.turn().await == 0 {
        tokio::task::yield_now().await;
    }
    let taken = scene.hooks.messages();
    assert_eq!((taken.len(), &taken[12].id, taken[12].answered), (13, &taken[0].id, 204));
    assert_eq!(scene.listed().await[0]["attempts"].as_array().unwrap().len(), 13);
    let sent = scene.ada.get("/v1/notifications?state=sent").await.expect(200).json();
    assert_eq!(sent["items"].as_array().unwrap().len(), 1);
    let failed = scene.ada.get("/v1/notifications?state=failed").await.expect(200).json();
    assert_eq!(failed, json!({ "items": [] }));
}

#[tokio::test]
async fn nothing_is_tried_after_a_day() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    scene
        .drive
        .app
        .db
        .execute("UPDATE notifications SET queued_at = now() - interval '24 hours'")
        .await;
    scene.hooks.answer(500, None);
    scene.turn().await;
    assert_eq!(scene.listed().await[0]["state"], "failed");
}

#[tokio::test]
async fn a_receiver_that_says_it_is_gone_is_told_nothing_more() {
    let scene = Scene::new().await;
    scene.hooks.answer(410, None);
    scene.plan_waits().await;
    scene.turn().await;
    let path = format!("/v1/notification-channels/{}", scene.channel);
    let channel = scene.ada.get(&path).await.expect(200).json();
    assert_eq!(
        (&channel["enabled"], &channel["disabled_reason"]),
        (&json!(false), &json!("the answer was 410"))
    );
    scene.ada.post(&format!("{path}/test"), json!(null)).await.expect(409);
    scene.drive.another(json!([])).await;
    let path = format!("/v1/tasks/{}/cancel", scene.drive.task);
    scene.drive.admin.post(&path, json!(null)).await.expect(200);
    assert_eq!(scene.drive.app.db.number("SELECT count(*) FROM notifications").await, 1);
}

#[tokio::test]
async fn what_a_dead_worker_had_taken_comes_back_and_its_late_word_counts_for_nothing() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let db = &scene.drive.app.db;
    let dead = scene.ada.user.unwrap().as_uuid();
    let taken =
        cynode_db::notifications::claim_notifications(&mut *db.conn().await, dead, 60_000, 10)
            .await
            .unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(scene.turn().await, 0, "whoever has it is left alone");
    // The worker is dead: its claim ends by the clock of the database.
    scene.later().await;
    assert_eq!(scene.turn().await, 1);
    let ended = cynode_db::notifications::NotificationOutcome::Ended(
        NotificationState::Failed,
        Some("late"),
    );
    let late = cynode_db::notifications::finish_notification(
        &mut *db.conn().await,
        taken[0].id,
        dead,
        ended,
    )
    .await;
    assert!(!late.unwrap());
    assert_eq!(
        (scene.hooks.messages().len(), scene.listed().await[0]["state"].clone()),
        (1, json!("sent"))
    );
}

#[tokio::test]
async fn several_workers_at_once_tell_each_notice_once() {
    let scene = Scene::new().await;
    for _ in 0..3 {
        let path = format!("/v1/notification-channels/{}/test", scene.channel);
        scene.ada.post(&path, json!(null)).await.expect(202);
    }
    let turns = futures::future::join_all((0..4).map(|_| scene.turn())).await;
    assert_eq!(turns.iter().sum::<usize>(), 3);
    let mut ids: Vec<_> = scene.hooks.messages().into_iter().map(|hook| hook.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_keeps_nobody_else_waiting() {
    let scene = Scene::new().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/hook", silent.local_addr().unwrap());
    let body = json!({ "name": "slow", "kind": "webhook", "address": address });
    let made = scene.ada.post("/v1/notification-channels", body).await.expect(201).json();
    let slow = made["channel"]["channel_id"].as_str().unwrap();
    let stop = CancellationToken::new();
    let pace = notifications::OutboxTiming::default();
    let run = notifications::run_outbox_worker(scene.drive.app.app.clone(), pace, stop.clone());
    let telling = TaskTracker::new().spawn(run);
    let tried = |channel: &str| format!("/v1/notification-channels/{channel}/test");
    scene.ada.post(&tried(slow), json!(null)).await.expect(202);
    let _asked = silent.accept().await.unwrap();
    for told in 1..=2 {
        scene.ada.post(&tried(&scene.channel), json!(null)).await.expect(202);
        // Less than the time that is given to whoever does not answer.
        tokio::time::timeout(Duration::from_secs(10), scene.hooks.until(told)).await.unwrap();
    }
    stop.cancel();
    telling.await.unwrap();
}

#[tokio::test]
async fn there_is_quiet_after_a_notice_and_what_happened_meanwhile_is_told_afterwards() {
    let scene = Scene::new().await;
    let path = format!("/v1/notification-channels/{}", scene.channel);
    scene.ada.patch(&path, json!({ "min_gap_seconds": 600 })).await.expect(200);
    for _ in 0..2 {
        scene.ada.post(&format!("{path}/test"), json!(null)).await.expect(202);
    }
    assert_eq!(scene.turn().await, 1);
    assert_eq!(scene.turn().await, 0);
    scene.later().await;
    assert_eq!(scene.turn().await, 0, "the quiet is the channel's");
    scene
        .drive
        .app
        .db
        .execute("UPDATE notification_channels SET quiet_until = now() - interval '1 second'")
        .await;
    assert_eq!(scene.turn().await, 1);
    let attempts = scene.drive.app.db.number("SELECT sum(attempts) FROM notifications").await;
    assert_eq!((scene.hooks.messages().len(), attempts), (2, 2), "waiting is no attempt");
}

#[tokio::test]
async fn a_secret_is_shown_once_stored_sealed_and_replaced_without_a_gap() {
    let scene = Scene::new().await;
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let body =
        json!({ "name": "own", "kind": "webhook", "address": scene.hooks.url(), "secret": given });
    let made = scene.ada.post("/v1/notification-channels", body).await.expect(201).json();
    assert_eq!((&made["secret"], &made["channel"]["has_secret"]), (&json!(null), &json!(true)));
    let stored = "SELECT row_to_json(c)::text FROM notification_channels c";
    let key = data_encoding::HEXLOWER.encode(given.as_bytes());
    let raw = data_encoding::HEXLOWER
        .encode(&data_encoding::BASE64.decode(&given.as_bytes()[6..]).unwrap());
    for row in scene.drive.app.db.texts(stored).await {
        assert!(!row.contains(given) && !row.contains(&key) && !row.contains(&raw));
    }
    let path = format!("/v1/notification-channels/{}", scene.channel);
    let rotated = scene.ada.patch(&path, json!({ "rotate_secret": true })).await.expect(200).json();
    let fresh = WebhookInbox::start().await;
    fresh.trust(rotated["secret"].as_str().unwrap());
    scene.ada.post(&format!("{path}/test"), json!(null)).await.expect(202);
    scene.turn().await;
    let hook = &scene.hooks.messages()[0];
    assert_eq!((hook.signatures, hook.verified), (2, 1), "the old secret is still good");
    scene.hooks.trust(rotated["secret"].as_str().unwrap());
    scene.drive.app.clock.advance(time::Duration::hours(25));
    let ada = scene.ada.clone();
    // A day later her login is over; the channel's old secret too.
    ada.get(&path).await.expect(401);
    scene
        .drive
        .app
        .db
        .execute("UPDATE notifications SET state = 'pending', due_at = now(), ended_at = NULL")
        .await;
    scene.turn().await;
    let hook = &scene.hooks.messages()[1];
    assert_eq!((hook.signatures, hook.verified), (1, 1));
}

#[tokio::test]
async fn a_channel_leads_only_to_public_places_unless_an_admin_says_otherwise() {
    let drive = Drive::new().await;
    let ada = drive.app.user("ada", None).await;
    let add = async |kind: &str, address: &str| {
        let body = json!({ "name": "x", "kind": kind, "address": address });
        let reply = ada.post("/v1/notification-channels", body).await;
        (reply.status, reply.json()["detail"].as_str().unwrap_or_default().to_owned())
    };
    let lets =
        "the setting `notifications.allow_private` lets it, once an admin has set it to true";
    let private = (422, format!("`address`: the address is not a public one; {lets}"));
    for address in [
        "https://127.0.0.1/",
        "http://[::1]:8/x",
        "https://169.254.169.254/latest",
        "https://10.0.0.1/",
    ] {
        assert_eq!(add("webhook", address).await, private);
    }
    assert_eq!(
        add("ntfy", "http://ntfy.sh/x").await.1,
        format!("`address`: a public address is https; {lets}")
    );
    assert_eq!(add("ntfy", "ntfy.sh").await.1, "`address` is no address: it begins with https://");
    assert_eq!(add("webhook", "https://a:b@example.com/").await.0, 422);
    assert_eq!(add("webhook", "javascript:alert(1)").await.0, 422);
    assert_eq!(add("ntfy", "https://ntfy.sh/").await.0, 422);
    let long = (422, "`address` has at most 2000 bytes".to_owned());
    assert_eq!(add("webhook", &format!("https://example.com/{}", "a".repeat(2000))).await, long);
    assert_eq!(
        add("mail", "ada@example.com").await.1,
        "no mail server is configured: set mail.server and mail.from"
    );
    assert_eq!(add("ntfy", "https://ntfy.sh/mine").await.0, 201);
    assert_eq!(add("webhook", "https://example.com/hook").await.0, 201);
    let value = json!({ "value": true, "expected_version": 0 });
    drive.admin.put("/v1/settings/notifications.allow_private", value).await.expect(200);
    assert_eq!(add("webhook", "http://127.0.0.1:9/x").await.0, 201);
    // What was allowed when it was made may be forbidden when it is told.
    drive
        .admin
        .delete("/v1/settings/notifications.allow_private?expected_version=1")
        .await
        .expect(204);
    let listed = ada.get("/v1/notification-channels").await.expect(200).json();
    let channels = listed["items"].as_array().unwrap();
    let channel = channels.iter().find(|it| it["address"] == "http://127.0.0.1:9/x").unwrap();
    let last = channel["channel_id"].as_str().unwrap();
    ada.post(&format!("/v1/notification-channels/{last}/test"), json!(null)).await.expect(202);
    notifications::deliver_due(&drive.app.app, LEASE).await.unwrap();
    let told = ada.get("/v1/notifications").await.expect(200).json();
    assert_eq!(
        (&told["items"][0]["state"], &told["items"][0]["reason"]),
        (&json!("failed"), &json!("the address is not a public one"))
    );
}

#[tokio::test]
async fn everybody_has_channels_of_their_own_and_admins_see_all() {
    let scene = Scene::new().await;
    let bob = scene.drive.app.user("bob", None).await;
    let path = format!("/v1/notification-channels/{}", scene.channel);
    for reply in [
        bob.get(&path).await,
        bob.patch(&path, json!({ "enabled": false })).await,
        bob.delete(&path).await,
        bob.post(&format!("{path}/test"), json!(null)).await,
    ] {
        assert_eq!(reply.status, 404);
    }
    assert_eq!(
        bob.get("/v1/notification-channels").await.expect(200).json(),
        json!({ "items": [] })
    );
    bob.get("/v1/notification-channels?all=true").await.expect(403);
    bob.get("/v1/notifications?all=true").await.expect(403);
    let body = json!({ "name": "x", "kind": "ntfy", "address": "https://ntfy.sh/x", "scope": "project", "project_id": scene.drive.project });
    scene.ada.post("/v1/notification-channels", body).await.expect(403);
    let body = json!({ "name": "x", "kind": "ntfy", "address": "https://ntfy.sh/x", "scope": "installation" });
    scene.ada.post("/v1/notification-channels", body).await.expect(403);
    let all = scene.drive.admin.get("/v1/notification-channels?all=true").await.expect(200).json();
    assert_eq!(all["items"].as_array().unwrap().len(), 1);
    scene.drive.admin.patch(&path, json!({ "enabled": false })).await.expect(200);
    scene.ada.delete(&path).await.expect(204);
    scene.ada.get(&path).await.expect(404);
    let events =
        "SELECT data ->> 'change' FROM events WHERE kind = 'notification_channel.set' ORDER BY seq";
    assert_eq!(scene.drive.app.db.texts(events).await, ["added", "changed", "removed"]);
}

#[tokio::test]
async fn nobody_sends_words_of_their_own_or_more_than_a_few_notices_by_trying_channels() {
    let scene = Scene::new().await;
    let path = |channel: &str| format!("/v1/notification-channels/{channel}");
    let own = json!({ "name": "verify now: https://evil.example" });
    scene.ada.patch(&path(&scene.channel), own).await.expect(200);
    let test = format!("{}/test", path(&scene.channel));
    let first = scene.ada.post(&test, json!(null)).await.expect(202).text("notification_id");
    scene.turn().await;
    let said = &scene.hooks.messages()[0].body["data"];
    assert_eq!(
        (&said["title"], &said["text"]),
        (
            &json!("CyNode can reach you here"),
            &json!("Somebody tried this channel. There is nothing to do.")
        )
    );
    for _ in 0..8 {
        scene.ada.post(&test, json!(null)).await.expect(202);
    }
    let replay = format!("/v1/notifications/{first}/replay");
    scene.ada.post(&replay, json!(null)).await.expect(202);
    // Neither the same nor a new channel begins anew; another person does.
    scene.ada.delete(&path(&scene.channel)).await.expect(204);
    let next = webhook(&scene.ada, &scene.hooks, json!({})).await;
    let test = format!("{}/test", path(&next));
    let refused = scene.ada.post(&test, json!(null)).await.expect(429);
    assert_eq!(refused.text("code"), "rate_limited");
    assert_eq!(refused.headers["retry-after"], "3600");
    scene.drive.admin.post(&test, json!(null)).await.expect(202);
    // Whoever goes on working keeps the session.
    for _ in 0..2 {
        scene.drive.app.clock.advance(time::Duration::minutes(30));
        scene.ada.get("/v1/me").await.expect(200);
    }
    scene.ada.post(&test, json!(null)).await.expect(202);
}

#[tokio::test]
async fn a_link_shows_exactly_what_is_asked_and_looking_changes_nothing() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    let events = app.db.number("SELECT count(*) FROM events").await;
    for _ in 0..3 {
        let shown = open(app, &link).await.expect(200);
        let text = words(&shown);
        for part in [
            "<h1>May the plan of mend-it be carried out?</h1>",
            "<pre>1. Write the &lt;b&gt;API&lt;/b&gt; (api)\n2. Write the page (ui), after api</pre>",
            "<dt>Task</dt><dd>mend-it</dd><dt>Project</dt><dd>web</dd><dt>Spent so far</dt><dd>1.2500 of 5.0000 USD</dd><dt>You are</dt><dd>ada</dd>",
            "value=approve",
            "value=refuse",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("<script") && !text.contains("<b>"));
        let header = |name: &str| shown.headers[name].to_str().unwrap().to_owned();
        assert_eq!(
            (header("referrer-policy"), header("cache-control")),
            ("no-referrer".into(), "no-store".into())
        );
        let policy = header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; style-src 'sha256-")
                && !policy.contains("unsafe"),
            "{policy}"
        );
    }
    assert_eq!(app.db.number("SELECT count(*) FROM events").await, events);
    assert_eq!(
        (scene.waits_open().await, app.db.number("SELECT count(*) FROM used_answer_links").await),
        (1, 0)
    );
}

#[tokio::test]
async fn a_link_approves_a_plan_as_the_person_it_stands_for_and_works_once() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    submit(app, &link, "decision=perhaps").await.expect(422);
    submit(app, &link, "decision=answer&text=hm").await.expect(422);
    assert_eq!(scene.waits_open().await, 1);
    let done = submit(app, &link, "decision=approve").await.expect(200);
    assert!(words(&done).contains("You said yes."));
    let by = "SELECT resolution || ' ' || resolved_by FROM waits";
    assert_eq!(app.db.texts(by).await, [format!("approved {}", scene.ada.user.unwrap().as_uuid())]);
    for reply in [submit(app, &link, "decision=approve").await, open(app, &link).await] {
        assert_eq!(reply.status, 410);
        assert!(words(&reply).contains("this link was used already"));
    }
    let held = scene.drive.start().await;
    assert_eq!(
        held.position["ended_wait"],
        json!({ "reason": "approval", "resolution": "approved" })
    );
}

#[tokio::test]
async fn a_no_by_link_carries_what_should_be_different() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    submit(&scene.drive.app, &link, "decision=refuse&text=Use+the+old+API").await.expect(200);
    let held = scene.drive.start().await;
    let ended =
        json!({ "reason": "approval", "resolution": "rejected", "answer": "Use the old API" });
    assert_eq!(held.position["ended_wait"], ended);
}

#[tokio::test]
async fn of_two_who_use_a_link_at_once_one_wins() {
    for _ in 0..5 {
        let scene = Scene::new().await;
        scene.plan_waits().await;
        let link = scene.link().await;
        let app = &scene.drive.app;
        let (yes, no) = tokio::join!(
            submit(app, &link, "decision=approve"),
            submit(app, &link, "decision=refuse")
        );
        let mut both = [yes.status, no.status];
        both.sort_unstable();
        assert_eq!(both, [200, 410]);
        let said = "SELECT count(*) FROM events WHERE kind = 'task.instructed'";
        assert_eq!(app.db.number(said).await, 1);
    }
}

#[tokio::test]
async fn a_question_is_answered_in_words_and_shown_as_text() {
    let scene = Scene::new().await;
    let question = "Which <script>alert(1)</script> & \"colour\"?\u{202e}";
    scene.question_waits(question).await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    let text = words(&open(app, &link).await.expect(200));
    assert!(text.contains(
        "<pre>Which &lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;colour&quot;?\\u{202e}</pre>"
    ));
    submit(app, &link, "decision=approve").await.expect(422);
    submit(app, &link, "decision=answer&text=").await.expect(422);
    submit(app, &link, "decision=answer&text=Blue%2C+please").await.expect(200);
    let held = scene.drive.start().await;
    let ended = json!({ "reason": "human_input", "resolution": "answered", "question": question, "answer": "Blue, please" });
    assert_eq!(held.position["ended_wait"], ended);
}

#[tokio::test]
async fn a_call_is_told_with_its_arguments_and_approved_by_link() {
    let scene = Scene::new().await;
    let approval =
        asked(&scene.drive, &json!({ "command": "git push origin main", "force": false })).await;
    scene.turn().await;
    let hook = scene.hooks.messages()[0].clone();
    let data = &hook.body["data"];
    assert_eq!(
        (&hook.body["type"], &data["title"], &data["exact"], &data["text"]),
        (
            &json!("approval.requested"),
            &json!("May an agent call git.push?"),
            &json!("git.push\ncommand: git push origin main\nforce: false"),
            &json!(
                "Asked by an agent, held by the rules careful, for task mend-it in web. Spent so far: 0.0000 of 5.0000 USD."
            ),
        )
    );
    let app = &scene.drive.app;
    let link = path(&hook);
    assert!(words(&open(app, &link).await.expect(200)).contains("command: git push origin main"));
    submit(app, &link, "decision=approve").await.expect(200);
    let view = scene.drive.admin.get(&format!("/v1/approvals/{approval}")).await.expect(200).json();
    assert_eq!((&view["state"], &view["arguments"]), (&json!("approved"), &json!(null)));
    submit(app, &link, "decision=refuse").await.expect(410);
}

#[tokio::test]
async fn what_was_answered_elsewhere_is_neither_told_nor_answered_again() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    let path = format!("/v1/tasks/{}/approve", scene.drive.task);
    scene.drive.admin.post(&path, json!({ "approved": false })).await.expect(200);
    let app = &scene.drive.app;
    for reply in [open(app, &link).await, submit(app, &link, "decision=approve").await] {
        assert_eq!(reply.status, 409);
        assert!(words(&reply).contains("answered already"));
    }
    // A second plan that waits is not the one that the link stands for.
    let mut held = scene.drive.start().await;
    if held.position["next"]["node"] == "load_task_context" {
        scene.drive.go(&mut held, "pass", json!({})).await;
    }
    let ask = json!({ "wait": { "reason": "approval", "question": "And this?" } });
    scene.drive.step(&held, "wait", ask).await.expect(200);
    submit(app, &link, "decision=approve").await.expect(409);
    assert_eq!(
        (scene.waits_open().await, app.db.number("SELECT count(*) FROM used_answer_links").await),
        (1, 0)
    );
    scene.drive.admin.post(&path, json!({ "approved": true })).await.expect(200);
    assert_eq!((scene.turn().await, scene.hooks.messages().len()), (1, 1));
    let states = "SELECT state FROM notifications ORDER BY state";
    assert_eq!(app.db.texts(states).await, ["dropped", "sent"]);
}

#[tokio::test]
async fn a_link_is_refused_to_who_lost_the_role_or_the_account() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    let project = scene.drive.project.parse().unwrap();
    app.member(project, &scene.ada, UserRole::Viewer).await;
    for reply in [open(app, &link).await, submit(app, &link, "decision=approve").await] {
        assert_eq!(reply.status, 403);
        assert!(words(&reply).contains("you may not answer this any more"));
    }
    app.member(project, &scene.ada, UserRole::Operator).await;
    let path = format!("/v1/users/{}", scene.ada.user.unwrap());
    scene.drive.admin.patch(&path, json!({ "active": false })).await.expect(200);
    for reply in [open(app, &link).await, submit(app, &link, "decision=approve").await] {
        assert_eq!(reply.status, 403);
    }
    assert_eq!(scene.waits_open().await, 1);
    scene.drive.admin.patch(&path, json!({ "active": true })).await.expect(200);
    submit(app, &link, "decision=approve").await.expect(200);
}

#[tokio::test]
async fn a_link_that_was_sent_before_the_password_was_changed_works_no_more() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    open(app, &link).await.expect(200);
    app.clock.advance(time::Duration::SECOND);
    let path = format!("/v1/users/{}", scene.ada.user.unwrap());
    let password = json!({ "password": "correct horse battery" });
    scene.drive.admin.patch(&path, password).await.expect(200);
    for reply in [open(app, &link).await, submit(app, &link, "decision=approve").await] {
        assert_eq!(reply.status, 403);
        assert!(words(&reply).contains("you may not answer this any more"));
    }
    assert_eq!(scene.waits_open().await, 1);
    // Switched on again by whoever it belongs to, the channel is told of it with a link that works.
    let channel = format!("/v1/notification-channels/{}", scene.channel);
    scene.drive.admin.patch(&channel, json!({ "enabled": true })).await.expect(200);
    app.db
        .execute("UPDATE notifications SET state = 'pending', due_at = now(), ended_at = NULL")
        .await;
    submit(app, &scene.link().await, "decision=approve").await.expect(200);
}

#[tokio::test]
async fn a_forged_or_old_link_is_refused_with_a_page_that_says_so() {
    let scene = Scene::new().await;
    scene.plan_waits().await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    for place in 8..link.len() {
        let mut other = link.clone().into_bytes();
        other[place] = if other[place] == b'A' { b'B' } else { b'A' };
        let other = String::from_utf8(other).unwrap();
        let reply = submit(app, &other, "decision=approve").await;
        assert_eq!(reply.status, 404, "{other}");
        assert!(words(&reply).contains("this link is not one of ours"));
    }
    open(app, "/answer/x").await.expect(404);
    assert_eq!(scene.waits_open().await, 1);
    app.clock.advance(time::Duration::hours(24));
    for reply in [open(app, &link).await, submit(app, &link, "decision=approve").await] {
        assert_eq!(reply.status, 410);
        assert!(words(&reply).contains("this is over"));
    }
    assert_eq!(scene.waits_open().await, 1);
}

#[tokio::test]
async fn a_link_does_not_outlive_what_it_answers() {
    let scene = Scene::new().await;
    asked(&scene.drive, &json!({ "command": "rm -rf build" })).await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    app.clock.advance(time::Duration::minutes(29));
    open(app, &link).await.expect(200);
    app.clock.advance(time::Duration::minutes(1));
    for reply in [open(app, &link).await, submit(app, &link, "decision=approve").await] {
        assert_eq!(reply.status, 410);
        assert!(words(&reply).contains("this is over"));
    }
    let states = app.db.texts("SELECT state FROM approvals").await;
    assert_eq!(states, ["asked"]);
}

#[tokio::test]
async fn a_link_of_a_call_is_over_when_nobody_is_left_who_could_make_it() {
    let scene = Scene::new().await;
    asked(&scene.drive, &json!({ "command": "rm -rf build" })).await;
    let link = scene.link().await;
    let app = &scene.drive.app;
    open(app, &link).await.expect(200);
    app.db.execute("UPDATE agent_tokens SET revoked_at = now()").await;
    let seen = [open(app, &link).await, submit(app, &link, "decision=approve").await];
    assert_eq!(seen.map(|reply| reply.status), [409, 409]);
    assert_eq!(app.db.texts("SELECT state FROM approvals").await, ["asked"]);
}

#[tokio::test]
async fn mail_and_ntfy_bear_the_same_words_and_the_same_link() {
    let mail = SmtpInbox::start(Some(("cynode", "hunter2"))).await;
    let server = MailServer {
        server: mail.url().parse().unwrap(),
        user: Some("cynode".into()),
        password: Some("hunter2".to_owned().into()),
        from: "CyNode <cynode@cynode.example>".into(),
    };
    let drive = Drive::over(TestApp::with_mail(server).await).await;
    let value = json!({ "value": true, "expected_version": 0 });
    drive.admin.put("/v1/settings/notifications.allow_private", value).await.expect(200);
    let ntfy = NtfyInbox::start(Some("tk_right")).await;
    let ada = drive.app.user("ada", None).await;
    drive.app.member(drive.project.parse().unwrap(), &ada, UserRole::Operator).await;
    for body in [
        json!({ "name": "mail", "kind": "mail", "address": "ada@example.com" }),
        json!({ "name": "phone", "kind": "ntfy", "address": ntfy.topic("ada"), "secret": "tk_right" }),
    ] {
        ada.post("/v1/notification-channels", body).await.expect(201);
    }
    let approval = asked(&drive, &json!({ "command": "rm -rf build" })).await;
    assert_eq!(notifications::deliver_due(&drive.app.app, LEASE).await.unwrap(), 2);
    let (letters, published) = (mail.messages(), ntfy.messages());
    assert_eq!((letters.len(), published.len()), (1, 1));
    assert!(letters[0].text().contains("git.push\ncommand: rm -rf build\n"));
    assert_eq!(letters[0].header("subject").as_deref(), Some("May an agent call git.push?"));
    let message = published[0].body["message"].as_str().unwrap();
    assert!(message.ends_with("git.push\ncommand: rm -rf build"), "{message}");
    let actions = published[0].body["actions"].as_array().unwrap();
    let labels: Vec<_> = actions
        .iter()
        .map(|action| (action["action"].as_str().unwrap(), action["label"].as_str().unwrap()))
        .collect();
    assert_eq!(labels, [("view", "Look and answer"), ("http", "Approve"), ("http", "Refuse")]);
    let url = actions[0]["url"].as_str().unwrap();
    assert!(letters[0].text().contains(&format!("Look and answer: {url}\n")));
    // One tap on the telephone.
    let tap = actions[1]["body"].as_str().unwrap();
    submit(&drive.app, url.strip_prefix("https://people.example").unwrap(), tap).await.expect(200);
    let view = drive.admin.get(&format!("/v1/approvals/{approval}")).await.expect(200).json();
    assert_eq!(view["state"], "approved");
}
