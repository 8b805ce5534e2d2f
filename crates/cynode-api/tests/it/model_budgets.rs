//! Reservations that do not starve: calls wait for the reservations of others, in order, and no budget is ever exceeded.

use std::time::Duration;

use cynode_testkit::{
    Client, Reply, TestApp,
    provider::{Behaviour, TestProvider},
};
use futures::{StreamExt, stream::FuturesUnordered};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::models::{ask, chat, model, networked, open, spent};

/// What a call costs, by what the provider reports.
const COST: i64 = 23;

/// Makes the database refuse what would exceed a budget at any moment.
const REFUSE_OVERSHOOT: &str =
    "CREATE FUNCTION refuse_overshoot() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM budgets b WHERE b.budget_id = NEW.budget_id
                AND NEW.spent_micros + NEW.reserved_micros > b.max_cost_micros) THEN
            RAISE EXCEPTION 'the budget is exceeded';
        END IF;
        RETURN NEW;
    END $$";
const WATCH_COUNTERS: &str =
    "CREATE TRIGGER refuse_overshoot AFTER INSERT OR UPDATE ON budget_counters
    FOR EACH ROW EXECUTE FUNCTION refuse_overshoot()";

struct Scene {
    app: TestApp,
    admin: Client,
    provider: TestProvider,
    /// The worst case of a call.
    worst: i64,
}

fn question(text: &str) -> Value {
    let mut body = chat("small", &format!("question {text}"));
    body["stream"] = json!(true);
    body
}

fn stalling() -> Behaviour {
    Behaviour { stalls: true, ..Behaviour::default() }
}

/// A model whose calls cost far less than they might. The provider stalls.
async fn scene() -> Scene {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.db.execute(REFUSE_OVERSHOOT).await;
    app.db.execute(WATCH_COUNTERS).await;
    let provider = TestProvider::serve(stalling()).await;
    networked(&admin, "far", "chat", &provider).await;
    model(&admin, "small", &["far"], json!({})).await;
    let streaming = open(&admin, question("x")).await;
    let [(0, worst)] = spent(&admin, "?scope_type=installation").await[..] else {
        panic!("nothing is reserved")
    };
    assert!(worst > 100 * COST, "{worst}");
    provider.go_on();
    streaming.collect().await.unwrap();
    app.settled().await;
    Scene { app, admin, provider, worst }
}

impl Scene {
    async fn set_budget(&self, most: i64) {
        let budget =
            json!({ "scope_type": "installation", "period": "total", "max_cost_micros": most });
        self.admin.put("/v1/budgets", budget).await.expect(200);
    }

    async fn waiting(&self) -> i64 {
        self.app.db.number("SELECT count(*) FROM budget_waiters").await
    }

    /// Goes on with the calls until that many wait.
    async fn until_waiting(
        &self,
        calls: &mut FuturesUnordered<impl Future<Output = Reply>>,
        count: i64,
    ) {
        loop {
            tokio::select! {
                waiting = self.waiting() => if waiting == count { return },
                Some(_) = calls.next() => panic!("a call did not wait"),
            }
        }
    }
}

#[tokio::test]
async fn calls_that_fit_one_at_a_time_all_succeed_in_order_and_the_budget_is_never_exceeded() {
    let scene = scene().await;
    let Scene { app, admin, provider, worst } = &scene;
    scene.set_budget(worst + 7 * COST).await;
    let first = open(admin, question("0")).await;
    provider.behave(Behaviour::default());
    let mut calls = FuturesUnordered::new();
    for number in 1..=7 {
        calls.push(ask(admin, question(&number.to_string())));
        scene.until_waiting(&mut calls, number).await;
    }
    provider.go_on();
    let (first, replies) = tokio::join!(first.collect(), calls.collect::<Vec<_>>());
    first.unwrap();
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200; 7]);
    app.settled().await;
    assert_eq!(spent(admin, "?scope_type=installation").await, [(9 * COST, 0), (8 * COST, 0)]);
    assert_eq!(scene.waiting().await, 0);
    let sent = provider.sent();
    let order: Vec<_> = sent
        .iter()
        .map(|sent| sent.body["messages"][0]["content"].as_str().unwrap().to_owned())
        .collect();
    let expected = ["x", "0", "1", "2", "3", "4", "5", "6", "7"].map(|n| format!("question {n}"));
    assert_eq!(order, expected);
}

#[tokio::test]
async fn a_large_call_that_waits_does_not_delay_small_ones_and_gets_its_turn() {
    let scene = scene().await;
    let Scene { app, admin, provider, worst } = &scene;
    // Each byte more is a token more in the worst case, and a token costs one.
    let large = question(&"y".repeat(10_000));
    scene.set_budget(worst + 9_999 + 2 * COST).await;
    let first = open(admin, question("0")).await;
    provider.behave(Behaviour::default());
    let mut calls = FuturesUnordered::new();
    calls.push(ask(admin, large));
    scene.until_waiting(&mut calls, 1).await;
    ask(admin, question("1")).await.expect(200);
    assert_eq!(scene.waiting().await, 1);
    provider.go_on();
    let (first, replies) = tokio::join!(first.collect(), calls.collect::<Vec<_>>());
    first.unwrap();
    assert_eq!(replies[0].status, 200);
    app.settled().await;
    assert_eq!(spent(admin, "?scope_type=installation").await, [(4 * COST, 0), (3 * COST, 0)]);
}

#[tokio::test]
async fn a_call_that_would_not_fit_if_all_others_were_free_is_refused_at_once() {
    let scene = scene().await;
    let Scene { admin, provider, worst, .. } = &scene;
    scene.set_budget(*worst).await;
    let first = open(admin, question("0")).await;
    scene.set_budget(worst - 1).await;
    let refused = tokio::time::timeout(Duration::from_secs(10), ask(admin, question("1"))).await;
    let refused = refused.unwrap().expect(402).json();
    assert_eq!(refused["error"]["code"], "budget_exhausted");
    assert_eq!(scene.waiting().await, 0);
    provider.go_on();
    first.collect().await.unwrap();
}

#[tokio::test]
async fn a_call_that_waited_as_long_as_it_may_is_refused_and_gives_up_its_place() {
    let scene = scene().await;
    let Scene { app, admin, provider, worst } = &scene;
    let second = json!({ "value": 1, "expected_version": 0 });
    admin.put("/v1/settings/models.budget_wait_seconds", second).await.expect(200);
    scene.set_budget(worst + COST).await;
    let first = open(admin, question("0")).await;
    let refused = ask(admin, question("1")).await.expect(402);
    assert_eq!(refused.headers["x-should-retry"], "false");
    assert_eq!(refused.json()["error"]["code"], "budget_exhausted");
    assert_eq!(scene.waiting().await, 0);
    // The first goes on as if nothing had been asked, and what it did not use is there for the next.
    provider.go_on();
    first.collect().await.unwrap();
    app.settled().await;
    provider.behave(Behaviour::default());
    ask(admin, question("2")).await.expect(200);
}
