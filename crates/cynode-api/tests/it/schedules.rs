//! Schedules: made by people, fired once, whoever is there and whatever dies. (S000-028, S002-21, S002-49, B023-16)

use cynode_app::{
    App, AppEnvironment, LifetimePolicy, background::maintenance, workflow::schedules,
};
use cynode_core::{ids::ProjectId, roles::UserRole};
use cynode_testkit::{Client, SeededRandom, TestApp};
use serde_json::{Value, json};
use time::{Duration, format_description::well_known::Rfc3339, macros::datetime};

/// A project, and somebody who works in it and stays logged in however much time goes by.
struct Scene {
    app: TestApp,
    admin: Client,
    ada: Client,
    project: ProjectId,
}

impl Scene {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let admin = lasting(&app.admin().await).await;
        let project = app.project(&admin, "web").await;
        let ada = lasting(&app.user("ada", None).await).await;
        app.member(project, &ada, UserRole::Operator).await;
        Self { app, admin, ada, project }
    }

    fn schedule(&self, name: &str, when: &Value, what: &Value) -> Value {
        json!({ "project_id": self.project, "name": name, "trigger": when, "action": what })
    }

    /// A schedule of Ada that makes a task every day at nine, with what `more` says otherwise. Gives its path.
    async fn daily(&self, more: Value) -> String {
        let mut body = self.schedule("nightly", &cron("0 9 * * *", "UTC"), &task("Build it all."));
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let made = self.ada.post("/v1/schedules", body).await.expect(201);
        format!("/v1/schedules/{}", made.text("schedule_id"))
    }

    /// Time goes by until that moment.
    fn at(&self, moment: time::OffsetDateTime) {
        use cynode_app::Clock as _;
        self.app.clock.advance(moment - self.app.clock.now());
    }

    /// Fires what is due; gives how many.
    async fn turn(&self) -> usize {
        schedules::fire_due_schedules(&self.app.app).await.unwrap()
    }

    async fn read(&self, path: &str) -> Value {
        self.ada.get(path).await.expect(200).json()
    }

    async fn tasks(&self) -> Vec<String> {
        self.app.db.texts("SELECT name FROM tasks ORDER BY name").await
    }
}

/// The same person with a key that lives for years.
async fn lasting(client: &Client) -> Client {
    let body = json!({ "name": "test", "expires_in_days": 3650 });
    let key = client.post("/v1/api-keys", body).await.expect(201);
    client.with_token(&key.text("token"))
}

/// Another process over the same database.
fn replica(app: &TestApp, seed: u64) -> App {
    let environment = AppEnvironment::new(app.clock.clone(), SeededRandom::new(seed << 40));
    App::new(app.db.pool(), environment, LifetimePolicy::default())
}

fn cron(expression: &str, timezone: &str) -> Value {
    json!({ "kind": "cron", "expression": expression, "timezone": timezone })
}

fn task(description: &str) -> Value {
    json!({ "kind": "task", "description": description, "acceptance_criteria": [{ "text": "it builds" }] })
}

fn words(text: &str) -> Value {
    json!({ "kind": "words", "text": text })
}

/// The first time at which the daily schedule is due.
const NINE: time::OffsetDateTime = datetime!(2026-11-02 09:00 UTC);

#[tokio::test]
async fn a_schedule_makes_its_task_at_its_time_and_says_what_came_of_it() {
    let scene = Scene::new().await;
    let path = scene.daily(json!({})).await;
    let made = scene.read(&path).await;
    assert_eq!(made["next_at"], "2026-11-02T09:00:00Z");
    assert_eq!((&made["last_firing"], &made["firings"]), (&Value::Null, &json!(0)));
    assert_eq!((&made["missed_policy"], &made["enabled"]), (&json!("once"), &json!(true)));

    scene.at(NINE - Duration::SECOND);
    assert_eq!(scene.turn().await, 0);
    scene.at(NINE + Duration::SECOND);
    assert_eq!(scene.turn().await, 1);
    assert_eq!(scene.turn().await, 0, "a time is due once");

    let fired = scene.read(&path).await;
    assert_eq!(fired["next_at"], "2026-11-03T09:00:00Z");
    let last = &fired["last_firing"];
    assert_eq!((&last["number"], &last["cause"]), (&json!(1), &json!("due")));
    assert_eq!((&last["outcome"], &last["missed_count"]), (&json!("task"), &json!(0)));
    assert_eq!(last["due_at"], "2026-11-02T09:00:00Z");
    let made = &last["tasks"][0];
    assert_eq!(
        (&made["name"], &made["state"]),
        (&json!("nightly-20261102-0900"), &json!("queued"))
    );
    let listed = scene.read("/v1/schedules?project=web").await;
    assert_eq!(listed["items"], json!([fired]));

    // It is a task as everybody's: asked for in Ada's name, with a run that the engine is told of.
    let task = scene.read(&format!("/v1/tasks/{}", made["task_id"].as_str().unwrap())).await;
    assert_eq!(task["description"], "Build it all.");
    assert_eq!(task["acceptance_criteria"][0]["text"], "it builds");
    assert_eq!(task["created_by"], json!(scene.ada.user.unwrap()));
    let runs = scene.app.db.number("SELECT count(*) FROM workflow_runs").await;
    assert_eq!(runs, 1, "S002-21, X-04: a schedule asks for a run as people do");
    let handoffs = scene.app.db.number("SELECT count(*) FROM handoffs").await;
    assert_eq!(handoffs, 0, "B023-16: what is whole needs no project manager");
    let jobs = scene.app.db.number("SELECT count(*) FROM jobs").await;
    assert_eq!(jobs, 0, "S002-21: jobs come from the run alone");
    let events = "SELECT kind FROM events WHERE kind LIKE 'schedule.%' ORDER BY xact, seq";
    assert_eq!(scene.app.db.texts(events).await, ["schedule.set", "schedule.fired"]);
}

#[tokio::test]
async fn of_several_processes_that_look_at_once_one_fires_each_schedule() {
    let scene = Scene::new().await;
    for number in 0..20 {
        scene.daily(json!({ "name": format!("s-{number}") })).await;
    }
    scene.at(NINE + Duration::SECOND);
    let processes: Vec<App> = (1..=4).map(|seed| replica(&scene.app, seed)).collect();
    let fired =
        futures::future::join_all(processes.iter().map(schedules::fire_due_schedules)).await;
    let fired: usize = fired.into_iter().map(Result::unwrap).sum();
    // Whoever came too late to some left them to the others, who may have been done by then.
    let left = scene.turn().await;
    assert_eq!(fired + left, 20);
    assert_eq!(scene.tasks().await.len(), 20);
    assert_eq!(scene.app.db.number("SELECT count(*) FROM schedule_firings").await, 20);
}

#[tokio::test]
async fn a_process_that_dies_while_it_fires_leaves_nothing_behind_and_another_does_it() {
    let scene = Scene::new().await;
    let path = scene.daily(json!({})).await;
    scene.at(NINE + Duration::SECOND);
    // The last thing that is written before the commit fails, as if the process had been killed there.
    scene
        .app
        .db
        .execute("ALTER TABLE schedules ADD CONSTRAINT dies CHECK (next_at < '2026-11-03')")
        .await;
    assert_eq!(scene.turn().await, 0);
    assert_eq!(scene.tasks().await, Vec::<String>::new());
    assert_eq!(scene.app.db.number("SELECT count(*) FROM schedule_firings").await, 0);
    assert_eq!(scene.read(&path).await["next_at"], "2026-11-02T09:00:00Z");
    // While another holds it, nobody waits for it.
    let mut holder = scene.app.db.begin().await;
    let id = path.rsplit('/').next().unwrap().parse().unwrap();
    cynode_db::workflow::schedules::lock_schedule(&mut holder, id).await.unwrap();
    assert_eq!(schedules::fire_due_schedules(&replica(&scene.app, 9)).await.unwrap(), 0);
    drop(holder);
    scene.app.db.execute("ALTER TABLE schedules DROP CONSTRAINT dies").await;
    assert_eq!(schedules::fire_due_schedules(&replica(&scene.app, 9)).await.unwrap(), 1);
    assert_eq!(scene.tasks().await, ["nightly-20261102-0900"]);
}

#[tokio::test]
async fn what_was_due_before_a_restore_is_left_to_a_person_and_later_times_are_done() {
    let scene = Scene::new().await;
    let daily = scene.daily(json!({})).await;
    let restored =
        "INSERT INTO installation_epochs (epoch, reason, began_at, backup_id, backup_taken_at)
        VALUES (2, 'restored', '2026-11-02 10:00Z', gen_random_uuid(), '2026-11-02 08:00Z')";
    scene.app.db.execute(restored).await;
    scene.at(datetime!(2026-11-02 10:01 UTC));
    assert_eq!(scene.turn().await, 1);
    let held = scene.read(&daily).await;
    assert_eq!(
        (&held["last_firing"]["outcome"], &held["last_firing"]["missed_count"]),
        (&json!("skipped"), &json!(1))
    );
    assert!(held["last_firing"]["note"].as_str().unwrap().contains("restored"), "{held}");
    assert_eq!(scene.tasks().await, Vec::<String>::new());
    scene.at(datetime!(2026-11-03 09:00 UTC));
    assert_eq!(scene.turn().await, 1);
    assert_eq!(scene.tasks().await, ["nightly-20261103-0900"]);
}

#[tokio::test]
async fn times_that_were_missed_are_done_once_or_left() {
    let scene = Scene::new().await;
    let once = scene.daily(json!({ "name": "once" })).await;
    let skip = scene.daily(json!({ "name": "skip", "missed_policy": "skip" })).await;
    // Nobody was there for three mornings.
    scene.at(datetime!(2026-11-04 18:00 UTC));
    assert_eq!(scene.turn().await, 2);
    let (once, skip) = (scene.read(&once).await, scene.read(&skip).await);
    assert_eq!(
        (&once["last_firing"]["outcome"], &once["last_firing"]["missed_count"]),
        (&json!("task"), &json!(2))
    );
    assert_eq!(once["last_firing"]["tasks"][0]["name"], "once-20261104-0900");
    assert_eq!(
        (&skip["last_firing"]["outcome"], &skip["last_firing"]["missed_count"]),
        (&json!("skipped"), &json!(3))
    );
    assert!(skip["last_firing"]["note"].as_str().unwrap().contains("missed"), "{skip}");
    for schedule in [once, skip] {
        assert_eq!(schedule["next_at"], "2026-11-05T09:00:00Z");
    }
    // On time, both are done.
    scene.at(datetime!(2026-11-05 09:00:02 UTC));
    assert_eq!(scene.turn().await, 2);
    let tasks = ["once-20261104-0900", "once-20261105-0900", "skip-20261105-0900"];
    assert_eq!(scene.tasks().await, tasks);
}

#[tokio::test]
async fn a_time_of_the_day_stays_one_when_the_clock_changes() {
    let scene = Scene::new().await;
    // In New York the clock goes forward on 2027-03-14: there is no 02:30, and nine is an hour earlier from then on.
    scene.at(datetime!(2027-03-13 12:00 UTC));
    maintenance::run_maintenance_once(&scene.app.app).await.unwrap();
    let when = |expression| json!({ "name": expression_name(expression), "trigger": cron(expression, "America/New_York") });
    let nine = scene.daily(when("0 9 * * *")).await;
    let gap = scene.daily(when("30 2 * * *")).await;
    let mut fired = Vec::new();
    for _ in 0..4 {
        let next = [&nine, &gap].map(|path| scene.read(path));
        let next = futures::future::join_all(next).await;
        let soonest = next.iter().map(|schedule| schedule["next_at"].as_str().unwrap()).min();
        let soonest = soonest.unwrap().to_owned();
        scene.at(time::OffsetDateTime::parse(&soonest, &Rfc3339).unwrap());
        assert_eq!(scene.turn().await, 1);
        fired.push(soonest);
    }
    let expected = [
        "2027-03-13T14:00:00Z",
        "2027-03-14T07:00:00Z",
        "2027-03-14T13:00:00Z",
        "2027-03-15T06:30:00Z",
    ];
    assert_eq!(fired, expected);
    assert_eq!(scene.tasks().await.len(), 4);
}

fn expression_name(expression: &str) -> String {
    format!("at-{}", expression.split(' ').take(2).collect::<Vec<_>>().join("-"))
}

#[tokio::test]
async fn a_schedule_that_is_switched_off_rests_until_it_is_switched_on() {
    let scene = Scene::new().await;
    let path = scene.daily(json!({ "enabled": false })).await;
    assert_eq!(scene.read(&path).await["next_at"], Value::Null);
    scene.at(datetime!(2026-11-03 10:00 UTC));
    assert_eq!(scene.turn().await, 0);
    let on = json!({ "expected_version": 1, "enabled": true });
    let on = scene.ada.patch(&path, on).await.expect(200).json();
    // What went by while it was off was not missed.
    assert_eq!((&on["next_at"], &on["version"]), (&json!("2026-11-04T09:00:00Z"), &json!(2)));
    assert_eq!(scene.turn().await, 0);
    let off = json!({ "expected_version": 2, "enabled": false });
    assert_eq!(scene.ada.patch(&path, off).await.expect(200).json()["next_at"], Value::Null);
    scene.at(datetime!(2026-11-05 10:00 UTC));
    assert_eq!(scene.turn().await, 0);
    assert_eq!(scene.tasks().await, Vec::<String>::new());
}

#[tokio::test]
async fn one_time_is_done_once_and_is_over() {
    let scene = Scene::new().await;
    let at = json!({ "kind": "once", "at": "2026-11-02T09:00:00Z" });
    let path = scene.daily(json!({ "trigger": at })).await;
    scene.at(NINE + Duration::minutes(1));
    assert_eq!((scene.turn().await, scene.turn().await), (1, 0));
    let over = scene.read(&path).await;
    assert_eq!((&over["next_at"], &over["last_firing"]["outcome"]), (&Value::Null, &json!("task")));
    let again = json!({ "expected_version": 1, "trigger": at });
    let told = scene.ada.patch(&path, again).await.expect(422).text("detail");
    assert!(told.contains("over"), "{told}");
    let later = json!({ "kind": "once", "at": "2026-11-03T09:00:00Z" });
    let later = json!({ "expected_version": 1, "trigger": later });
    scene.ada.patch(&path, later).await.expect(200);
    scene.at(datetime!(2026-11-03 09:00 UTC));
    assert_eq!(scene.turn().await, 1);
}

#[tokio::test]
async fn words_are_handed_to_the_project_manager_and_nothing_else_is_done() {
    let scene = Scene::new().await;
    let text = "Look for outdated dependencies and mend what is behind.";
    let when = cron("0 9 * * mon", "Europe/Berlin");
    let body = scene.schedule("updates", &when, &words(text));
    let path = format!(
        "/v1/schedules/{}",
        scene.ada.post("/v1/schedules", body).await.expect(201).text("schedule_id")
    );
    scene.at(datetime!(2026-11-02 08:00 UTC));
    assert_eq!(scene.turn().await, 1);
    let fired = scene.read(&path).await;
    let last = &fired["last_firing"];
    let outcome = (&last["outcome"], &last["handoff_state"]);
    assert_eq!(outcome, (&json!("handoff"), &json!("queued")), "B023-16");
    assert_eq!(last["tasks"], json!([]), "S002-49");
    let handoff = format!("/v1/handoffs/{}", last["handoff_id"].as_str().unwrap());
    let handoff = scene.read(&handoff).await;
    let kind = (&handoff["kind"], &handoff["category"]);
    assert_eq!(kind, (&json!("schedule"), &json!("other")), "S000-028");
    assert_eq!(handoff["user_id"], json!(scene.ada.user.unwrap()));
    assert_eq!(handoff["request"]["text"], text, "S002-47");
    let told = handoff["request"]["schedule"].as_str().unwrap();
    assert!(
        told.starts_with("updates, due at `0 9 * * 1` by the clock of Europe/Berlin"),
        "{told}"
    );
    assert!(told.ends_with("Monday 2026-11-02 09:00 +01:00"), "{told}");
    // The scheduler makes no task and asks for no workflow.
    assert_eq!(scene.tasks().await, Vec::<String>::new(), "S002-49");
    let runs = scene.app.db.number("SELECT count(*) FROM workflow_runs").await;
    assert_eq!(runs, 0, "S002-49");
}

#[tokio::test]
async fn whoever_does_not_wait_fires_a_schedule_in_their_own_name() {
    let scene = Scene::new().await;
    let path = scene.daily(json!({ "enabled": false })).await;
    let bob = scene.app.user("bob", None).await;
    scene.app.member(scene.project, &bob, UserRole::Operator).await;
    let run = format!("{path}/run");
    let bob = bob.with_header("idempotency-key", "now");
    let fired = bob.post(&run, json!(null)).await.expect(201).json();
    assert_eq!((&fired["cause"], &fired["outcome"]), (&json!("asked"), &json!("task")));
    assert_eq!(
        bob.post(&run, json!(null)).await.expect(201).json(),
        fired,
        "asked again, done once"
    );
    let task = format!("/v1/tasks/{}", fired["tasks"][0]["task_id"].as_str().unwrap());
    assert_eq!(scene.read(&task).await["created_by"], json!(bob.user.unwrap()));
    let after = scene.read(&path).await;
    assert_eq!(
        (&after["next_at"], &after["acts_for"]),
        (&Value::Null, &json!(scene.ada.user.unwrap()))
    );
    // In the same minute the name is taken, and the next is found.
    scene.ada.post(&run, json!(null)).await.expect(201);
    assert_eq!(scene.tasks().await, ["nightly-20261101-1200", "nightly-20261101-1200-2"]);
}

#[tokio::test]
async fn a_schedule_of_somebody_who_may_no_longer_ask_is_switched_off() {
    let scene = Scene::new().await;
    let path = scene.daily(json!({})).await;
    let read = async |path: &str| scene.admin.get(path).await.expect(200).json();
    // The account is switched off. A key changes accounts only if it was made for that.
    let chief = json!({ "name": "accounts", "expires_in_days": 365, "scopes": ["accounts"] });
    let session = scene.app.user("chief", Some(UserRole::Admin)).await;
    let key = session.post("/v1/api-keys", chief).await.expect(201).text("token");
    let chief = session.with_token(&key);
    let user = format!("/v1/users/{}", scene.ada.user.unwrap());
    chief.patch(&user, json!({ "active": false })).await.expect(200);
    scene.at(NINE);
    assert_eq!(scene.turn().await, 1);
    let refused = read(&path).await;
    assert_eq!((&refused["enabled"], &refused["next_at"]), (&json!(false), &Value::Null));
    assert_eq!(refused["last_firing"]["outcome"], "refused");
    let note = refused["last_firing"]["note"].as_str().unwrap();
    assert!(note.contains("account") && note.contains("switched off"), "{note}");
    // Somebody who may takes it over.
    let on = json!({ "expected_version": 1, "enabled": true });
    let on = scene.admin.patch(&path, on).await.expect(200).json();
    assert_eq!(on["acts_for"], json!(scene.admin.user.unwrap()));
    scene.at(datetime!(2026-11-03 09:00 UTC));
    assert_eq!(scene.turn().await, 1);
    assert_eq!(scene.tasks().await, ["nightly-20261103-0900"]);

    // The role in the project is taken away.
    chief.patch(&user, json!({ "active": true })).await.expect(200);
    let other = scene.daily(json!({ "name": "other" })).await;
    let member = format!("/v1/projects/web/members/{}", scene.ada.user.unwrap());
    scene.admin.delete(&member).await.expect(204);
    scene.at(datetime!(2026-11-04 09:00 UTC));
    assert_eq!(scene.turn().await, 2);
    let refused = read(&other).await;
    assert_eq!(
        (&refused["enabled"], &refused["last_firing"]["outcome"]),
        (&json!(false), &json!("refused"))
    );
    assert!(refused["last_firing"]["note"].as_str().unwrap().contains("project"), "{refused}");
    let told =
        "SELECT data->>'name' FROM events WHERE kind = 'schedule.refused' ORDER BY xact, seq";
    assert_eq!(scene.app.db.texts(told).await, ["nightly", "other"]);

    // The project is gone, and its schedules with it.
    for statement in ["DELETE FROM project_members", "DELETE FROM tasks", "DELETE FROM projects"] {
        scene.app.db.execute(statement).await;
    }
    scene.at(datetime!(2026-11-05 09:00 UTC));
    assert_eq!(scene.turn().await, 0);
    scene.admin.get(&path).await.expect(404);
}

#[tokio::test]
async fn what_cannot_be_a_schedule_is_refused_with_what_to_write() {
    let scene = Scene::new().await;
    let bad = json!({ "text": "x", "check": { "argv": [] } });
    let checked = json!({ "kind": "task", "description": "x", "acceptance_criteria": [bad] });
    let daily = || cron("0 9 * * *", "UTC");
    for (when, what, hint) in [
        (cron("0 9 * *", "UTC"), words("x"), "0 9 * * mon"),
        (cron("* 0 9 * * *", "UTC"), words("x"), "five fields"),
        (cron("0 9 * * *", "Nowhere/City"), words("x"), "Europe/Berlin"),
        (cron("0 0 30 2 *", "UTC"), words("x"), "never comes"),
        (json!({ "kind": "once", "at": "2026-11-01T11:59:00Z" }), words("x"), "over"),
        (daily(), checked, "a check has a program"),
    ] {
        let told =
            scene.ada.post("/v1/schedules", scene.schedule("x", &when, &what)).await.expect(422);
        assert!(told.text("detail").contains(hint), "{hint}: {}", told.text("detail"));
    }
    for (when, what) in [
        (daily(), json!({ "kind": "words", "text": "" })),
        (daily(), json!({ "kind": "words", "text": "x", "description": "x" })),
        (json!({ "kind": "cron" }), words("x")),
        (json!({ "kind": "daily" }), words("x")),
    ] {
        scene.ada.post("/v1/schedules", scene.schedule("x", &when, &what)).await.expect(400);
    }
    let path = scene.daily(json!({})).await;
    let body = scene.schedule("nightly", &daily(), &words("x"));
    assert_eq!(
        scene.ada.post("/v1/schedules", body).await.expect(409).text("code"),
        "already_exists"
    );
    let stale = json!({ "expected_version": 7, "enabled": false });
    assert_eq!(scene.ada.patch(&path, stale).await.expect(409).text("code"), "version_conflict");
    assert_eq!(scene.read(&path).await["version"], 1);
}

#[tokio::test]
async fn a_schedule_is_seen_by_its_project_changed_by_operators_and_not_there_for_others() {
    let scene = Scene::new().await;
    let path = scene.daily(json!({})).await;
    let bob = scene.app.user("bob", None).await;
    let hidden = [
        bob.get(&path).await,
        bob.get("/v1/schedules?project=web").await,
        bob.patch(&path, json!({ "expected_version": 1, "enabled": false })).await,
        bob.delete(&path).await,
        bob.post(&format!("{path}/run"), json!(null)).await,
    ];
    for reply in hidden {
        reply.expect(404);
    }
    assert_eq!(bob.get("/v1/schedules").await.expect(200).json(), json!({ "items": [] }));
    scene.app.member(scene.project, &bob, UserRole::Viewer).await;
    assert_eq!(bob.get("/v1/schedules").await.expect(200).json()["items"][0]["name"], "nightly");
    bob.get(&path).await.expect(200);
    bob.patch(&path, json!({ "expected_version": 1, "enabled": false })).await.expect(403);
    bob.delete(&path).await.expect(403);
    bob.post(&format!("{path}/run"), json!(null)).await.expect(403);
    // What it asked for stays when it is removed.
    scene.ada.post(&format!("{path}/run"), json!(null)).await.expect(201);
    scene.ada.delete(&path).await.expect(204);
    scene.ada.get(&path).await.expect(404);
    assert_eq!(scene.tasks().await.len(), 1);
    assert_eq!(scene.app.db.number("SELECT count(*) FROM schedule_firings").await, 0);
}
