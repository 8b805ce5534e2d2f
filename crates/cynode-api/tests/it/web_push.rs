//! Browsers that are told by web push.

use cynode_core::roles::UserRole;
use cynode_testkit::{
    Client, NOW, TestApp,
    inbox::{Browser, PushMessage, PushService},
};
use serde_json::{Value, json};

use crate::notices::Scene;

const CHANNELS: &str = "/v1/notification-channels";
const SUBSCRIPTIONS: &str = "/v1/web-push/subscriptions";
const CHANGES: &str = "SELECT data ->> 'change' FROM events WHERE kind = 'notification_channel.set' ORDER BY xact, seq";
const PASSWORD: &str = "correct horse battery";

fn subscription(browser: &Browser) -> Value {
    json!({
        "name": format!("browser {}", browser.number),
        "endpoint": browser.endpoint,
        "p256dh": browser.p256dh,
        "auth": browser.auth,
    })
}

/// Subscribes a browser; gives the channel.
async fn subscribe(client: &Client, browser: &Browser) -> Value {
    client.post(SUBSCRIPTIONS, subscription(browser)).await.expect(201).json()
}

async fn public_key(client: &Client) -> String {
    client.get("/v1/web-push/key").await.expect(200).text("public_key")
}

/// The names of the browsers that a person is told by.
async fn browsers(client: &Client) -> Vec<String> {
    let listed = client.get(CHANNELS).await.expect(200).json();
    let items = listed["items"].as_array().unwrap().clone();
    let own = items.iter().filter(|item| item["kind"] == "web_push");
    own.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

async fn try_channel(client: &Client, channel: &Value) {
    let path = format!("{CHANNELS}/{}/test", channel["channel_id"].as_str().unwrap());
    client.post(&path, json!(null)).await.expect(202);
}

async fn allow_private(admin: &Client) {
    let value = json!({ "value": true, "expected_version": 0 });
    admin.put("/v1/settings/notifications.allow_private", value).await.expect(200);
}

#[tokio::test]
async fn the_key_of_an_installation_is_made_once_and_stored_sealed() {
    let app = TestApp::new().await;
    let (admin, ada) = (app.admin().await, app.user("ada", None).await);
    let first = futures::future::join_all((0..4).map(|_| public_key(&ada))).await;
    let key = public_key(&admin).await;
    assert_eq!(first, vec![key; 4]);
    // The name of the key that seals it, a nonce, the 32 bytes of the key and a tag.
    let stored = "SELECT octet_length(sealed_private_key)::bigint FROM web_push_keys";
    assert_eq!(app.db.number(stored).await, 24 + 24 + 32 + 16);
}

#[tokio::test]
async fn a_question_reaches_the_browser_with_a_page_to_open_and_no_link_that_answers() {
    let scene = Scene::new().await;
    let service = PushService::start().await;
    let browser = service.subscribe();
    let sender = public_key(&scene.ada).await;
    let channel = subscribe(&scene.ada, &browser).await;
    assert_eq!(
        (&channel["kind"], &channel["scope"], &channel["name"], &channel["address"]),
        (&json!("web_push"), &json!("user"), &json!("browser 1"), &json!(browser.endpoint))
    );
    scene.plan_waits().await;
    assert_eq!(scene.turn().await, 2);
    let waits = "SELECT data ->> 'wait_id' FROM events WHERE kind = 'task.waiting'";
    let wait = scene.drive.app.db.texts(waits).await.concat();
    let listed = scene.listed().await;
    let own = listed.iter().find(|item| item["channel_id"] == channel["channel_id"]).unwrap();
    let id = own["notification_id"].as_str().unwrap();
    assert_eq!(own["state"], "sent");
    assert_eq!(
        service.messages(),
        [PushMessage {
            browser: 1,
            ttl: "86400".into(),
            urgency: "high".into(),
            topic: id.strip_prefix("ntf_").unwrap().to_owned(),
            claims: json!({
                "aud": format!("http://127.0.0.1:{}", service.port()),
                "exp": NOW.unix_timestamp() + 12 * 3600,
                "sub": "https://people.example/",
            }),
            sender,
            body: json!({
                "id": id,
                "kind": "task.waiting",
                "title": "May the plan of mend-it be carried out?",
                "text": "Asked by the project manager, for task mend-it in web. Spent so far: 1.2500 of 5.0000 USD.",
                "path": format!("/?item={wait}"),
                "asks": true,
            }),
        }]
    );
    let stored = "SELECT row_to_json(c)::text FROM notification_channels c";
    for row in scene.drive.app.db.texts(stored).await {
        assert!(!row.contains(&browser.auth) && !row.contains(&browser.p256dh));
    }
}

#[tokio::test]
async fn a_subscription_that_has_ended_is_removed_and_others_stay() {
    let scene = Scene::new().await;
    let service = PushService::start().await;
    let (ended, other) = (service.subscribe(), service.subscribe());
    public_key(&scene.ada).await;
    let channels = [subscribe(&scene.ada, &ended).await, subscribe(&scene.ada, &other).await];
    service.unsubscribe(&ended);
    for channel in &channels {
        try_channel(&scene.ada, channel).await;
    }
    assert_eq!(scene.turn().await, 2);
    assert_eq!(browsers(&scene.ada).await, ["browser 2"]);
    let got: Vec<_> = service.messages().iter().map(|message| message.browser).collect();
    assert_eq!(got, [2]);
    let path = format!("{CHANNELS}/{}", channels[0]["channel_id"].as_str().unwrap());
    scene.ada.get(&path).await.expect(404);
    let changes = scene.drive.app.db.texts(CHANGES).await;
    assert_eq!(changes, ["added", "added", "added", "gone"]);
    assert_eq!(scene.drive.app.db.number("SELECT count(*) FROM notifications").await, 1);
}

#[tokio::test]
async fn a_push_service_that_is_busy_is_asked_again() {
    let scene = Scene::new().await;
    let service = PushService::start().await;
    public_key(&scene.ada).await;
    let channel = subscribe(&scene.ada, &service.subscribe()).await;
    service.answer(429, Some(30));
    service.answer(503, None);
    try_channel(&scene.ada, &channel).await;
    for _ in 0..3 {
        scene.turn().await;
        scene.later().await;
    }
    let listed = scene.listed().await;
    let answers: Vec<_> = listed[0]["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| attempt["answer"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(answers, ["the answer was 429", "the answer was 503", "201"]);
    assert_eq!(service.messages().len(), 1);
    assert_eq!(service.messages()[0].body["path"], "/settings/notifications");
    assert_eq!(service.messages()[0].urgency, "normal");
}

#[tokio::test]
async fn a_browser_leads_only_to_public_places_unless_an_admin_says_otherwise() {
    let app = TestApp::new().await;
    let (admin, ada) = (app.admin().await, app.user("ada", None).await);
    let service = PushService::start().await;
    let browser = service.subscribe();
    public_key(&ada).await;
    let lets =
        "the setting `notifications.allow_private` lets it, once an admin has set it to true";
    let refused = async |endpoint: &str| {
        let body = json!({ "name": "x", "endpoint": endpoint, "p256dh": browser.p256dh, "auth": browser.auth });
        ada.post(SUBSCRIPTIONS, body).await.expect(422).text("detail")
    };
    let private = format!("`endpoint`: the address is not a public one; {lets}");
    for endpoint in [
        browser.endpoint.as_str(),
        "https://10.0.0.1/x",
        "https://[::1]/x",
        "https://169.254.169.254/x",
    ] {
        assert_eq!(refused(endpoint).await, private, "{endpoint}");
    }
    assert_eq!(
        refused("http://push.example.com/x").await,
        format!("`endpoint`: a public address is https; {lets}")
    );
    assert_eq!(refused("push").await, "`endpoint` is no address: it begins with https://");
    allow_private(&admin).await;
    let channel = subscribe(&ada, &browser).await;
    // What was allowed when it was made may be forbidden when it is told.
    admin.delete("/v1/settings/notifications.allow_private?expected_version=1").await.expect(204);
    try_channel(&ada, &channel).await;
    cynode_app::notifications::deliver_due(&app.app, std::time::Duration::from_mins(2))
        .await
        .unwrap();
    let told = ada.get("/v1/notifications").await.expect(200).json();
    assert_eq!(
        (&told["items"][0]["state"], &told["items"][0]["reason"]),
        (&json!("failed"), &json!("the address is not a public one"))
    );
    assert_eq!(service.messages(), []);
}

#[tokio::test]
async fn what_is_no_subscription_is_refused_and_a_browser_is_no_channel_by_hand() {
    let app = TestApp::new().await;
    let ada = app.user("ada", None).await;
    let good = json!({ "name": "x", "endpoint": "https://push.example.com/x", "auth": "BTBZMqHH6r4Tts7J_aSIgg",
        "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4" });
    let long = format!("https://push.example.com/{}", "x".repeat(2000));
    for (field, value) in [
        ("auth", json!("short")),
        ("auth", good["p256dh"].clone()),
        ("p256dh", json!("")),
        ("p256dh", good["auth"].clone()),
        ("endpoint", json!(long)),
        ("endpoint", json!("https://a:b@push.example.com/x")),
        ("name", json!("")),
        ("kinds", json!(["task.created"])),
        ("kinds", json!([])),
    ] {
        let mut body = good.clone();
        body[field] = value;
        ada.post(SUBSCRIPTIONS, body).await.expect(422);
    }
    let by_hand =
        json!({ "name": "x", "kind": "web_push", "address": "https://push.example.com/x" });
    let refused = ada.post(CHANNELS, by_hand).await.expect(422);
    assert_eq!(
        refused.text("detail"),
        "a browser subscribes itself: press `Notify this browser` in the web console"
    );
    assert_eq!(app.db.number("SELECT count(*) FROM notification_channels").await, 0);
    ada.post(SUBSCRIPTIONS, good).await.expect(201);
}

#[tokio::test]
async fn a_browser_is_of_whoever_subscribed_it_last_and_renewed_without_a_second_channel() {
    let app = TestApp::new().await;
    let (admin, ada, bob) =
        (app.admin().await, app.user("ada", None).await, app.user("bob", None).await);
    allow_private(&admin).await;
    let service = PushService::start().await;
    let browser = service.subscribe();
    let first = subscribe(&ada, &browser).await;
    let path = format!("{CHANNELS}/{}", first["channel_id"].as_str().unwrap());
    ada.patch(&path, json!({ "enabled": false, "kinds": ["task.failed"] })).await.expect(200);
    let renewed = subscribe(&ada, &browser).await;
    assert_eq!(
        (&renewed["channel_id"], &renewed["enabled"], &renewed["kinds"]),
        (&first["channel_id"], &json!(true), &json!(["task.failed"]))
    );
    let second = subscribe(&bob, &browser).await;
    assert_ne!(second["channel_id"], first["channel_id"]);
    assert_eq!((browsers(&ada).await, browsers(&bob).await), (vec![], vec!["browser 1".into()]));
    let changes = app.db.texts(CHANGES).await;
    assert_eq!(changes, ["added", "changed", "changed", "removed", "added"]);
}

#[tokio::test]
async fn a_subscription_ends_with_the_session_that_made_it() {
    let app = TestApp::new().await;
    let (admin, ada) = (app.admin().await, app.user("ada", Some(UserRole::Viewer)).await);
    allow_private(&admin).await;
    let service = PushService::start().await;
    subscribe(&ada, &service.subscribe()).await;
    ada.delete("/v1/sessions/current").await.expect(204);
    assert_eq!(app.db.texts(CHANGES).await, ["added", "removed"]);
    // Somebody who changes their own password keeps this browser and loses the others.
    let carol = json!({ "handle": "carol", "display_name": "Carol", "password": PASSWORD });
    admin.post("/v1/users", carol).await.expect(201);
    let log_in = async || {
        let login = json!({ "handle": "carol", "password": PASSWORD });
        let session = app.anonymous().post("/v1/sessions", login).await.expect(201);
        app.anonymous().with_token(&session.text("token"))
    };
    let (here, elsewhere) = (log_in().await, log_in().await);
    subscribe(&here, &service.subscribe()).await;
    subscribe(&elsewhere, &service.subscribe()).await;
    let change = json!({ "old_password": PASSWORD, "new_password": "another horse battery" });
    here.put("/v1/me/password", change).await.expect(204);
    assert_eq!(browsers(&here).await, ["browser 2"]);
    // Somebody who is switched off is told nowhere.
    let bob = app.user("bob", Some(UserRole::Viewer)).await;
    subscribe(&bob, &service.subscribe()).await;
    let path = format!("/v1/users/{}", bob.user.unwrap());
    admin.patch(&path, json!({ "active": false })).await.expect(200);
    let left = app.db.texts("SELECT name FROM notification_channels").await;
    assert_eq!(left, ["browser 2"]);
}

#[tokio::test]
async fn a_session_that_expires_leaves_its_browser_subscribed() {
    let app = TestApp::new().await;
    let (admin, ada) = (app.admin().await, app.user("ada", None).await);
    allow_private(&admin).await;
    let service = PushService::start().await;
    public_key(&ada).await;
    let channel = subscribe(&ada, &service.subscribe()).await;
    try_channel(&ada, &channel).await;
    app.clock.advance(time::Duration::hours(25));
    ada.get(CHANNELS).await.expect(401);
    app.db.execute("DELETE FROM user_sessions").await;
    cynode_app::notifications::deliver_due(&app.app, std::time::Duration::from_mins(2))
        .await
        .unwrap();
    assert_eq!(service.messages().len(), 1);
}

#[tokio::test]
async fn one_person_has_a_bounded_number_of_browsers_and_channels() {
    let app = TestApp::new().await;
    let (admin, ada) = (app.admin().await, app.user("ada", None).await);
    allow_private(&admin).await;
    let service = PushService::start().await;
    let first = service.subscribe();
    subscribe(&ada, &first).await;
    for _ in 1..50 {
        subscribe(&ada, &service.subscribe()).await;
    }
    let refused = ada.post(SUBSCRIPTIONS, subscription(&service.subscribe())).await.expect(422);
    assert_eq!(refused.text("detail"), "one person makes at most 50 channels");
    // One that is subscribed is still renewed.
    subscribe(&ada, &first).await;
}
