//! Notifications end to end: real processes, a mail server, an ntfy server, and a webhook receiver that is down for a while,
//! for `prove/resilience/notifications`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use cynode_e2e::{
    Executor, Scripts,
    world::{Victim, World},
};
use cynode_testkit::{
    inbox::{NtfyInbox, SmtpInbox, WebhookInbox},
    pause,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::Places;

/// People who are told, and who answer by a link.
#[derive(Args)]
pub(crate) struct Notify {
    #[command(flatten)]
    places: Places,
    /// How many tasks wait for a yes.
    #[arg(long, default_value_t = 20)]
    tasks: usize,
    /// How often the orchestrator is killed while it tells people.
    #[arg(long, default_value_t = 5)]
    kills: usize,
}

const PUBLIC: &str = "https://people.example";

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const PLAN: &str = "1. The only unit (only)";

/// Timeout of every wait.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(100);

struct Story {
    world: World,
    mail: SmtpInbox,
    ntfy: NtfyInbox,
    http: reqwest::Client,
    good: bool,
    /// Read by the orchestrator at every start.
    _password: tempfile::NamedTempFile,
}

impl Story {
    fn check(&mut self, well: bool, what: &str) {
        println!("{} {what}", if well { "ok" } else { "NOT SO:" });
        self.good &= well;
    }

    async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.world.pool).await.unwrap()
    }

    async fn until(&mut self, what: &str, query: &'static str, wanted: i64) {
        let begun = Instant::now();
        while self.number(query).await != wanted {
            if begun.elapsed() > DELIVERY_TIMEOUT {
                self.check(false, &format!("{what}: {} of {wanted}", self.number(query).await));
                return;
            }
            pause(Duration::from_millis(50)).await;
        }
    }

    async fn add(&self, body: Value) {
        self.world.post("/v1/notification-channels", body).await;
    }

    /// Requests the page behind a link, or sends its form, at the port that people reach by its public name.
    async fn at(&self, link: &str, form: Option<&str>) -> (u16, String) {
        let url = link.replace(PUBLIC, &format!("http://{}", self.world.user));
        let request = match form {
            Some(form) => self
                .http
                .post(url)
                .header("content-type", "application/x-www-form-urlencoded")
                .body(form.to_owned()),
            None => self.http.get(url),
        };
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

async fn begin(cli: &Notify) -> Story {
    let mail = SmtpInbox::start(Some(("cynode", "hunter2"))).await;
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), "hunter2\n").unwrap();
    let mut setup = cli.places.setup(5, false);
    setup.settings = vec![
        format!("server.public_url={PUBLIC}"),
        format!("mail.server={}", mail.url()),
        "mail.from=CyNode <cynode@cynode.example>".to_owned(),
        "mail.user=cynode".to_owned(),
        format!("mail.password_file={}", password.path().display()),
    ];
    let world = World::start(setup).await;
    let ntfy = NtfyInbox::start(Some("tk_right")).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let story = Story { world, mail, ntfy, http, good: true, _password: password };
    let value = json!({ "value": true, "expected_version": 0 });
    story.world.put("/v1/settings/notifications.allow_private", &value).await;
    story.world.ask_about_plans(true, 1).await;
    story
}

pub(crate) async fn run(cli: Notify) -> bool {
    let mut story = begin(&cli).await;
    // It listens and does not answer, so deliveries wait.
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = format!("http://{}/hook", away.local_addr().unwrap());
    story
        .add(json!({ "name": "hook", "kind": "webhook", "address": hook, "secret": SECRET }))
        .await;
    story.add(json!({ "name": "mail", "kind": "mail", "address": "ada@example.com" })).await;
    let topic = story.ntfy.topic("ada");
    story
        .add(json!({ "name": "phone", "kind": "ntfy", "address": topic, "secret": "tk_right" }))
        .await;

    for _ in 0..cli.tasks {
        story.world.task("one-unit").await;
    }
    for _ in 0..cli.kills {
        let begun = Instant::now();
        let sending =
            "SELECT count(*) FROM notifications WHERE claim_id IS NOT NULL AND due_at > now()";
        while story.number(sending).await == 0 && begun.elapsed() < DELIVERY_TIMEOUT {
            pause(Duration::from_millis(5)).await;
        }
        story.world.processes.kill(Victim::Orchestrator);
        story.world.processes.start(Victim::Orchestrator);
        story.world.wait_until_it_works().await;
    }
    let cut = "SELECT count(*) FROM notifications WHERE state = 'pending' AND total_attempts > 0";
    let cut = story.number(cut).await;
    story.check(cut > 0, &format!("the orchestrator was killed {} times while it told people; {cut} notices were begun and not ended", cli.kills));

    // The receiver knows the secret before the first delivery.
    let hooks = WebhookInbox::over(away, &[SECRET]);
    let tasks = i64::try_from(cli.tasks).unwrap();
    let waiting = "SELECT count(*) FROM events WHERE kind = 'task.waiting'";
    story.until("plans wait", waiting, tasks).await;
    let sent = "SELECT count(*) FROM notifications WHERE state = 'sent' AND kind = 'task.waiting'";
    story.until("notices are told", sent, 3 * tasks).await;
    compare(&mut story, &hooks, "task.waiting", cli.tasks).await;

    answer(&mut story, &cli, tasks).await;
    let done =
        "SELECT count(*) FROM notifications WHERE state = 'sent' AND kind = 'task.completed'";
    story.until("ends are told", done, 3).await;
    compare(&mut story, &hooks, "task.completed", 1).await;
    story.good
}

/// Checks that every recipient got every notification, under one id for each channel and event, with the exact text.
async fn compare(story: &mut Story, hooks: &WebhookInbox, kind: &'static str, events: usize) {
    let stored: Vec<(String, uuid::Uuid)> = sqlx::query_as(
        "SELECT c.kind, n.notification_id FROM notifications n JOIN notification_channels c USING (channel_id) WHERE n.kind = $1",
    )
    .bind(kind)
    .fetch_all(&story.world.pool)
    .await
    .unwrap();
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (channel, id) in stored {
        ids.entry(channel).or_default().insert(format!("ntf_{}", id.simple()));
    }
    let taken: Vec<_> =
        hooks.messages().into_iter().filter(|hook| hook.body["type"] == kind).collect();
    let told: BTreeSet<_> = taken.iter().map(|hook| hook.id.clone()).collect();
    let signed = taken.iter().filter(|hook| hook.verified == 1).count();
    let words = |text: &str| kind != "task.waiting" || text.contains(PLAN);
    let exact = taken
        .iter()
        .filter(|hook| words(hook.body["data"]["exact"].as_str().unwrap_or_default()))
        .count();
    story.check(
        Some(&told) == ids.get("webhook") && told.len() == events && signed == taken.len() && exact == taken.len(),
        &format!("S004-139, S004-147: {kind}: {events} events came to the webhook as {} ids in {} requests, {signed} signed rightly, {exact} with the exact words", told.len(), taken.len()),
    );
    let letters: Vec<_> = story
        .mail
        .messages()
        .into_iter()
        .filter(|letter| letter.text().contains(&format!("-- \n{kind} ")))
        .collect();
    let told: BTreeSet<_> = letters
        .iter()
        .filter_map(|letter| {
            Some(letter.header("message-id")?.trim_start_matches('<').split('@').next()?.to_owned())
        })
        .collect();
    let exact = letters.iter().filter(|letter| words(&letter.text())).count();
    story.check(
        Some(&told) == ids.get("mail") && told.len() == events && exact == letters.len(),
        &format!(
            "{kind}: as {} ids in {} letters, {exact} with the exact words",
            told.len(),
            letters.len()
        ),
    );
    let published: Vec<_> =
        story.ntfy.messages().into_iter().filter(|one| one.body["tags"][1] == kind).collect();
    let exact = published
        .iter()
        .filter(|one| words(one.body["message"].as_str().unwrap_or_default()))
        .count();
    let there = ids.get("ntfy").map_or(0, BTreeSet::len);
    story.check(
        there == events && published.len() >= events && exact == published.len(),
        &format!(
            "{kind}: {} messages to the telephone, {exact} with the exact words",
            published.len()
        ),
    );
}

/// Checks that the link approves its plan, once, and the task continues to its end.
async fn answer(story: &mut Story, cli: &Notify, tasks: i64) {
    let scripts = Scripts::read(&cli.places.scripts);
    let base = format!("http://{}", story.world.internal);
    let worker = Arc::new(Executor::new(&base, &story.world.worker_token, scripts, 600));
    let crew = TaskTracker::new();
    crew.spawn(worker.clone().run());
    let published = story.ntfy.messages();
    let actions = &published[0].body["actions"];
    let (link, tap) = (actions[1]["url"].as_str().unwrap(), actions[1]["body"].as_str().unwrap());
    let open = "SELECT count(*) FROM waits WHERE resolved_at IS NULL AND reason = 'approval'";
    let (status, page) = story.at(link, None).await;
    let before = story.number(open).await;
    story.check(
        status == 200 && page.contains(&format!("<pre>{PLAN}</pre>")) && before == tasks,
        &format!("the link shows the plan ({status}), and {before} plans still wait"),
    );
    let first = story.at(link, Some(tap)).await.0;
    let after = story.number(open).await;
    let second = story.at(link, Some(tap)).await.0;
    let mut forged = link.to_owned();
    let last = forged.pop();
    forged.push(if last == Some('A') { 'B' } else { 'A' });
    let forged = story.at(&forged, Some(tap)).await.0;
    story.check(
        (first, second, forged, after) == (200, 410, 404, tasks - 1),
        &format!("one tap approves ({first}), a second is refused ({second}), a forged one too ({forged}); {after} plans wait"),
    );
    story
        .until("the approved task ends", "SELECT count(*) FROM tasks WHERE state = 'completed'", 1)
        .await;
    worker.stop();
}
