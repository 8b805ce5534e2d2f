//! Single sign-on: logins at an identity provider, groups, removal, logout, links, and logins of devices.

use std::collections::BTreeMap;

use cynode_app::{
    Clock as _,
    identity::{
        identity_providers::{self, FileProvider},
        provider_grants,
    },
    tools::agent_tokens::{self, TokenState},
    workflow::schedules,
};
use cynode_core::roles::UserRole;
use cynode_db::{
    identity::{accounts, provider_grants as stored_grants},
    notifications::{self, NotificationTopic},
};
use cynode_testkit::{
    Client, Reply, TestApp,
    identity_provider::{CLIENT_ID, CLIENT_SECRET, TestIdentityProvider},
};
use cynode_wire::identity::accounts::SecretText;
use serde_json::{Value, json};
use time::Duration;

const HOST: &str = "localhost:12080";
const ORIGIN: &str = "http://localhost:12080";
/// Longer than a session works without another check, and less than a minute.
const CHECK_DUE: Duration = Duration::seconds(50);

/// An installation with one provider and its admin.
struct Site {
    app: TestApp,
    idp: TestIdentityProvider,
    admin: Client,
}

impl Site {
    async fn new() -> Self {
        let idp = TestIdentityProvider::start().await;
        let app = TestApp::with_private_issuers(vec![idp.host()]).await;
        let admin = app.admin().await;
        let site = Self { app, idp, admin };
        site.set_provider(json!({})).await;
        // Longer than a test takes.
        let idle = json!({ "value": 720, "expected_version": 0 });
        site.admin.put("/v1/settings/auth.session_idle_minutes", idle).await.expect(200);
        site.idp.set_person("7", ada(&["builders"]));
        site
    }

    /// Sets the provider `company`, with these changes.
    async fn set_provider(&self, changes: Value) -> Value {
        let mut body = json!({
            "display_name": "Company account",
            "issuer": self.idp.issuer(),
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
        });
        let Value::Object(changes) = changes else { panic!("changes are an object") };
        body.as_object_mut().unwrap().extend(changes);
        self.admin.put("/v1/identity-providers/company", body).await.expect(200).json()
    }

    /// Creates a group with a role and maps a group of the provider to it.
    async fn map_group(&self, claim_value: &str, group: &str, role: &str) -> String {
        let created = self.admin.post("/v1/groups", json!({ "name": group })).await.expect(201);
        let id = created.text("id");
        let path = format!("/v1/groups/{id}");
        self.admin.patch(&path, json!({ "role": role })).await.expect(200);
        let mappings = json!([{ "claim_value": claim_value, "group_id": id }]);
        self.set_provider(json!({ "mappings": mappings })).await;
        id
    }

    /// A browser on this machine.
    fn browser(&self) -> Client {
        self.app.anonymous().with_header("host", HOST)
    }

    /// Begins a login. Returns the browser with its cookie, and the address that it is sent to.
    async fn begin(&self, browser: &Client) -> (Client, String) {
        let reply = browser.get("/v1/sso/company/login?return_to=/tasks").await.expect(303);
        (with_cookies(browser, &reply), location(&reply))
    }

    /// Logs a person in. Returns the last answer, and the browser with its cookies.
    async fn try_login(&self, subject: &str) -> (Reply, Client) {
        let (browser, address) = self.begin(&self.browser()).await;
        let answer = self.idp.log_in(subject, &address);
        let reply = browser.get(&answer.callback()).await.expect(303);
        let browser = with_cookies(&self.browser(), &reply);
        (reply, browser)
    }

    /// Logs a person in who may.
    async fn log_in(&self, subject: &str) -> Client {
        let (reply, browser) = self.try_login(subject).await;
        assert_eq!(location(&reply), "/tasks");
        browser
    }

    fn advance(&self, by: Duration) {
        self.app.clock.advance(by);
        self.idp.clock.advance(by);
    }

    /// A program with an API key of the person in that browser.
    async fn program(&self, browser: &Client) -> Client {
        let key = page(browser).post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
        self.app.anonymous().with_token(&key.text("token"))
    }

    /// Removes the sessions and the grants that are over for a day, as the maintenance does.
    async fn prune_logins(&self) {
        let (mut conn, before) = (self.app.db.conn().await, self.app.clock.now() - Duration::DAY);
        accounts::prune_sessions(&mut conn, before, 100).await.unwrap();
        stored_grants::prune_grants(&mut conn, before, 100).await.unwrap();
    }

    async fn events(&self, kind: &str) -> usize {
        let kinds = self.app.db.texts("SELECT kind FROM events").await;
        kinds.iter().filter(|recorded| *recorded == kind).count()
    }
}

fn ada(groups: &[&str]) -> Value {
    json!({ "name": "Ada Lovelace", "preferred_username": "Ada@example.com", "email": "ada@example.com",
        "email_verified": true, "groups": groups })
}

fn location(reply: &Reply) -> String {
    reply.headers["location"].to_str().unwrap().to_owned()
}

/// Returns the browser with the cookies that an answer sets, and only those.
fn with_cookies(browser: &Client, reply: &Reply) -> Client {
    let set = reply.headers.get_all("set-cookie").iter();
    let cookies: Vec<String> = set
        .map(|value| value.to_str().unwrap().split(';').next().unwrap().to_owned())
        .filter(|cookie| !cookie.ends_with('='))
        .collect();
    browser.with_header("cookie", &cookies.join("; "))
}

/// A page of the console in that browser.
fn page(browser: &Client) -> Client {
    browser
        .with_header("origin", ORIGIN)
        .with_header("sec-fetch-site", "same-origin")
        .with_header("content-type", "application/json")
}

#[tokio::test]
async fn a_person_logs_in_at_the_provider_and_has_the_rights_of_the_mapped_groups() {
    let site = Site::new().await;
    site.map_group("builders", "operators", "operator").await;
    let options = site.browser().get("/v1/login-options").await.expect(200).json();
    let provider = json!({ "name": "company", "display_name": "Company account", "login_path": "/v1/sso/company/login" });
    assert_eq!(options, json!({ "password": true, "providers": [provider] }));

    let browser = site.log_in("7").await;
    let me = browser.get("/v1/me").await.expect(200).json();
    assert_eq!(me["user"]["handle"], "ada");
    assert_eq!(me["user"]["display_name"], "Ada Lovelace");
    assert_eq!(me["user"]["email"], "ada@example.com");
    assert_eq!((&me["user"]["role"], &me["installation_role"]), (&json!(null), &json!("operator")));
    // The same person comes back to the same account.
    let again = site.log_in("7").await.get("/v1/me").await.expect(200).json();
    assert_eq!(again["user"]["id"], me["user"]["id"]);
    let sessions = browser.get("/v1/sessions").await.expect(200).json();
    let methods: Vec<_> = sessions["items"].as_array().unwrap().iter().collect();
    assert_eq!(methods.len(), 2);
    for session in methods {
        assert_eq!(
            (&session["method"], &session["provider"]),
            (&json!("provider"), &json!("Company account"))
        );
        assert_eq!(session["source"], "127.0.0.1");
    }
}

#[tokio::test]
async fn a_group_that_is_not_mapped_gives_no_right() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    assert_eq!(browser.get("/v1/me").await.expect(200).json()["installation_role"], json!(null));
    browser.get("/v1/users").await.expect(403);
}

#[tokio::test]
async fn a_person_without_an_account_is_refused_where_none_is_made_and_an_address_is_no_account() {
    let site = Site::new().await;
    let known = json!({ "handle": "ada", "display_name": "Ada", "email": "ada@example.com", "password": "long enough!" });
    let known = site.admin.post("/v1/users", known).await.expect(201).text("id");
    site.set_provider(json!({ "create_accounts": false })).await;
    let (reply, browser) = site.try_login("7").await;
    assert_eq!(location(&reply), "/login?sso=no_account");
    browser.get("/v1/me").await.expect(401);
    assert_eq!(site.events("provider_login.refused").await, 1);
    site.set_provider(json!({ "create_accounts": true })).await;
    let me = site.log_in("7").await.get("/v1/me").await.expect(200).json();
    assert_ne!(me["user"]["id"], known.as_str());
    assert_eq!(me["user"]["handle"], "ada-2");
}

#[tokio::test]
async fn a_state_works_once_in_its_own_browser_and_for_its_own_provider() {
    let site = Site::new().await;
    let (browser, address) = site.begin(&site.browser()).await;
    let answer = site.idp.log_in("7", &address);
    let stale = |reply: &Reply| assert_eq!(location(reply), "/login?sso=stale");
    // Another browser, and one with the cookie of another login.
    stale(&site.browser().get(&answer.callback()).await.expect(303));
    let (other, _) = site.begin(&site.browser()).await;
    stale(&other.get(&answer.callback()).await.expect(303));
    // Another provider.
    let second = TestIdentityProvider::start().await;
    let body =
        json!({ "display_name": "Other", "issuer": "https://other.example", "client_id": "x" });
    site.admin.put("/v1/identity-providers/other", body).await.expect(200);
    let mixed_up = answer.callback().replace("/company/", "/other/");
    stale(&browser.get(&mixed_up).await.expect(303));
    let mut foreign = answer.clone();
    foreign.issuer = second.issuer();
    let refused = browser.get(&foreign.callback()).await.expect(303);
    assert_eq!(location(&refused), "/login?sso=provider");
    // That attempt used the state up.
    stale(&browser.get(&answer.callback()).await.expect(303));

    let (browser, address) = site.begin(&site.browser()).await;
    let answer = site.idp.log_in("7", &address);
    assert_eq!(location(&browser.get(&answer.callback()).await.expect(303)), "/tasks");
    stale(&browser.get(&answer.callback()).await.expect(303));

    let (browser, address) = site.begin(&site.browser()).await;
    let answer = site.idp.log_in("7", &address);
    site.advance(Duration::minutes(11));
    stale(&browser.get(&answer.callback()).await.expect(303));
}

#[tokio::test]
async fn a_token_that_is_not_right_logs_nobody_in() {
    let site = Site::new().await;
    let past = cynode_testkit::NOW.unix_timestamp() - 3600;
    for changes in [
        json!({ "nonce": "another" }),
        json!({ "nonce": null }),
        json!({ "aud": "another" }),
        json!({ "aud": [CLIENT_ID, "another"] }),
        json!({ "azp": "another" }),
        json!({ "iss": "https://another.example" }),
        json!({ "exp": past }),
        json!({ "iat": past + 7200 }),
        json!({ "sub": "" }),
        json!({ "sub": "8" }),
    ] {
        site.idp.change_next_id_token(changes.clone());
        let (reply, browser) = site.try_login("7").await;
        assert_eq!(location(&reply), "/login?sso=provider", "{changes}");
        browser.get("/v1/me").await.expect(401);
    }
    assert_eq!(site.app.db.number("SELECT count(*) FROM external_identities").await, 0);
    site.log_in("7").await;
}

#[tokio::test]
async fn keys_are_fetched_again_when_they_were_rotated_but_not_without_end() {
    let site = Site::new().await;
    site.log_in("7").await;
    assert_eq!(site.idp.key_fetches(), 1);
    site.idp.rotate_key();
    site.log_in("7").await;
    assert_eq!(site.idp.key_fetches(), 2);
    site.log_in("7").await;
    assert_eq!(site.idp.key_fetches(), 2, "known keys are not fetched");
    let mut refused = 0;
    for _ in 0..20 {
        site.idp.rotate_key();
        refused += usize::from(location(&site.try_login("7").await.0) != "/tasks");
    }
    assert!(site.idp.key_fetches() < 12, "{}", site.idp.key_fetches());
    assert!(refused > 8, "{refused}");
}

#[tokio::test]
async fn a_person_who_was_removed_at_the_provider_has_no_access_within_a_minute() {
    let site = Site::new().await;
    let group = site.map_group("builders", "operators", "operator").await;
    let browser = site.log_in("7").await;
    let key = page(&browser).post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let key = site.app.anonymous().with_token(&key.text("token"));
    key.get("/v1/users").await.expect(200);
    site.idp.remove_person("7");
    browser.get("/v1/me").await.expect(200);
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(401);
    browser.get("/v1/me").await.expect(401);
    // The keys went with it, and so did the groups.
    key.get("/v1/users").await.expect(401);
    let members = site.admin.get("/v1/groups").await.expect(200).json();
    let found = members["items"].as_array().unwrap().iter().find(|one| one["id"] == group.as_str());
    assert_eq!(found.unwrap()["members"], json!([]));
    assert_eq!(site.events("session.ended").await, 1);
}

#[tokio::test]
async fn a_session_that_nobody_uses_any_more_keeps_no_rights_for_a_person_who_was_removed() {
    let site = Site::new().await;
    site.map_group("builders", "operators", "operator").await;
    // Nobody ever logs out of it, so that nobody asks the provider about it again.
    site.log_in("7").await;
    let browser = site.log_in("7").await;
    let key = page(&browser).post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let key = site.app.anonymous().with_token(&key.text("token"));
    site.idp.remove_person("7");
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(401);
    assert_eq!(site.app.db.number("SELECT count(*) FROM group_members").await, 0);
    key.get("/v1/users").await.expect(401);
}

#[tokio::test]
async fn a_key_of_a_removed_person_who_has_no_session_is_refused_within_a_minute() {
    let site = Site::new().await;
    // Of two grants one stays as long as there is a key.
    site.log_in("7").await;
    let key = site.program(&site.log_in("7").await).await;
    for _ in 0..3 {
        site.advance(Duration::days(1));
        site.prune_logins().await;
        key.get("/v1/me").await.expect(200);
    }
    let left = "SELECT (SELECT count(*) FROM user_sessions s JOIN provider_grants USING (provider_grant_id))
        || ' ' || (SELECT count(*) FROM provider_grants)";
    assert_eq!(site.app.db.texts(left).await, ["0 1"]);
    site.idp.remove_person("7");
    key.get("/v1/me").await.expect(200);
    site.advance(CHECK_DUE);
    key.get("/v1/me").await.expect(401);
    key.get("/v1/me").await.expect(401);
    // The person comes back, and the key with them.
    site.idp.set_person("7", ada(&[]));
    key.get("/v1/me").await.expect(401);
    site.log_in("7").await;
    key.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_key_works_for_the_hours_of_a_setting_where_no_token_is_left_to_ask_the_provider_with() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    let key = site.program(&browser).await;
    // A logout forgets the tokens.
    page(&browser).post("/v1/sessions/current/provider-logout", json!(null)).await.expect(200);
    site.advance(Duration::hours(2));
    key.get("/v1/me").await.expect(200);
    let set = async |hours: u32, version: u32| {
        let body = json!({ "value": hours, "expected_version": version });
        site.admin.put("/v1/settings/auth.api_key_confirmation_hours", body).await.expect(200);
    };
    set(1, 0).await;
    key.get("/v1/me").await.expect(401);
    set(24, 1).await;
    site.advance(Duration::hours(21));
    key.get("/v1/me").await.expect(200);
    site.advance(Duration::HOUR);
    key.get("/v1/me").await.expect(401);

    // A provider without refresh tokens can be asked for a few minutes only.
    site.idp.disable_refresh_tokens();
    let browser = site.log_in("7").await;
    site.advance(Duration::minutes(6));
    key.get("/v1/me").await.expect(200);
    browser.get("/v1/me").await.expect(401);
    site.advance(Duration::DAY);
    key.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_key_of_a_person_with_a_password_needs_no_provider_until_passwords_are_switched_off() {
    let site = Site::new().await;
    let body = json!({ "handle": "ada", "display_name": "Ada", "password": "long enough!" });
    let own = site.admin.post("/v1/users", body).await.expect(201).text("id");
    let credentials = json!({ "handle": "ada", "password": "long enough!" });
    let reply = page(&site.browser()).post("/v1/sessions", credentials).await.expect(200);
    let session = with_cookies(&site.browser(), &reply);
    let begun = page(&session).post("/v1/me/identities", json!({ "provider": "company" })).await;
    let begun = begun.expect(200);
    let attempt =
        begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let answer = site.idp.log_in("7", &begun.text("authorization_url"));
    let cookies = format!("{}; {attempt}", session.header("cookie").unwrap());
    session.with_header("cookie", &cookies).get(&answer.callback()).await.expect(303);
    let browser = site.log_in("7").await;
    assert_eq!(browser.get("/v1/me").await.expect(200).json()["user"]["id"], own.as_str());
    let key = site.program(&browser).await;
    site.idp.remove_person("7");
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(401);
    key.get("/v1/me").await.expect(200);
    site.map_group("leads", "leads", "admin").await;
    let off = json!({ "value": true, "expected_version": 0 });
    site.admin.put("/v1/settings/login.disable_local", off).await.expect(200);
    key.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn groups_follow_the_provider_within_a_minute_and_those_that_a_person_gave_stay() {
    let site = Site::new().await;
    site.map_group("builders", "operators", "operator").await;
    let browser = site.log_in("7").await;
    let role = async || browser.get("/v1/me").await.expect(200).json()["installation_role"].clone();
    assert_eq!(role().await, "operator");
    site.idp.set_person("7", ada(&[]));
    site.advance(CHECK_DUE);
    assert_eq!(role().await, json!(null));
    assert_eq!(site.events("identity.groups_changed").await, 2);

    let me = browser.get("/v1/me").await.expect(200).json();
    let groups = site.admin.get("/v1/groups").await.expect(200).json();
    let group = format!("/v1/groups/{}", groups["items"][0]["id"].as_str().unwrap());
    site.admin.patch(&group, json!({ "add": [me["user"]["id"]] })).await.expect(200);
    site.advance(CHECK_DUE);
    assert_eq!(role().await, "operator");
}

#[tokio::test]
async fn who_came_by_a_name_that_is_mapped_no_more_leaves_at_once_and_the_others_stay() {
    let site = Site::new().await;
    let group = site.map_group("builders", "operators", "operator").await;
    let map = async |names: &[&str]| {
        let entry = |name: &&str| json!({ "claim_value": name, "group_id": group });
        let mappings: Vec<Value> = names.iter().map(entry).collect();
        site.set_provider(json!({ "mappings": mappings })).await;
    };
    map(&["builders", "everybody"]).await;
    site.idp.set_person("8", json!({ "name": "Bob", "groups": ["everybody"] }));
    let (ada, bob) = (site.log_in("7").await, site.log_in("8").await);
    let key = page(&bob).post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let key = site.app.anonymous().with_token(&key.text("token"));
    key.get("/v1/users").await.expect(200);
    map(&["builders"]).await;
    // Bob asks for nothing in his session, and his key is worth nothing all the same.
    key.get("/v1/users").await.expect(403);
    ada.get("/v1/users").await.expect(200);
    bob.get("/v1/users").await.expect(403);
    // A name more takes nothing away.
    map(&["builders", "operators"]).await;
    assert_eq!(site.app.db.number("SELECT count(*) FROM group_members").await, 1);
}

#[tokio::test]
async fn a_mapping_that_gives_or_takes_rights_is_recorded() {
    let site = Site::new().await;
    let group = site.map_group("builders", "operators", "operator").await;
    // The same once more changes nothing.
    let same = json!([{ "claim_value": "builders", "group_id": group }]);
    site.set_provider(json!({ "mappings": same })).await;
    site.set_provider(json!({ "mappings": [] })).await;
    let recorded = "SELECT data::text FROM events
        WHERE kind = 'identity_provider.set' AND data->>'change' = 'mapped' ORDER BY xact, seq";
    let recorded = site.app.db.texts(recorded).await;
    let recorded: Vec<Value> =
        recorded.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let change = |added: &Value, removed: &Value| json!({ "provider": "company", "change": "mapped", "added": added, "removed": removed });
    let entry = json!([{ "claim_value": "builders", "group_id": group }]);
    assert_eq!(recorded, [change(&entry, &json!([])), change(&json!([]), &entry)]);
}

#[tokio::test]
async fn a_claim_that_is_left_out_names_no_group_where_the_provider_named_them_before() {
    let site = Site::new().await;
    site.map_group("builders", "operators", "operator").await;
    let role = async |browser: &Client| {
        browser.get("/v1/me").await.expect(200).json()["installation_role"].clone()
    };
    // The groups are at the userinfo endpoint.
    let browser = site.log_in("7").await;
    assert_eq!(role(&browser).await, "operator");
    site.idp.set_person("7", json!({ "name": "Ada Lovelace" }));
    site.advance(CHECK_DUE);
    assert_eq!(role(&browser).await, json!(null));
    // The groups are in the ID token.
    site.idp.change_next_id_token(json!({ "groups": ["builders"] }));
    let browser = site.log_in("7").await;
    assert_eq!(role(&browser).await, "operator");
    site.idp.change_next_id_token(json!({ "groups": ["builders"] }));
    site.advance(CHECK_DUE);
    assert_eq!(role(&browser).await, "operator");
    site.advance(CHECK_DUE);
    assert_eq!(role(&browser).await, json!(null));
}

#[tokio::test]
async fn without_a_refresh_token_the_access_token_is_asked_about_and_its_end_is_the_end() {
    let site = Site::new().await;
    site.idp.disable_refresh_tokens();
    let browser = site.log_in("7").await;
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(200);
    site.advance(Duration::minutes(5));
    browser.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn sessions_go_on_for_the_grace_period_while_the_provider_cannot_be_reached() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    let key = site.program(&browser).await;
    site.idp.set_available(false);
    for _ in 0..11 {
        site.advance(CHECK_DUE);
        browser.get("/v1/me").await.expect(200);
        key.get("/v1/me").await.expect(200);
    }
    assert_eq!(site.events("identity_provider.unreachable").await, 1);
    site.advance(Duration::minutes(1));
    let problem = browser.get("/v1/me").await.expect(503);
    assert_eq!(problem.text("code"), "upstream_unavailable");
    key.get("/v1/me").await.expect(503);
    // Nobody was logged out: it goes on when the provider is back.
    site.idp.set_available(true);
    browser.get("/v1/me").await.expect(200);
    let none = json!({ "value": 0, "expected_version": 0 });
    site.admin.put("/v1/settings/login.provider_grace_minutes", none).await.expect(200);
    site.idp.set_available(false);
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(503);
}

#[tokio::test]
async fn a_logout_token_of_the_provider_ends_the_sessions_that_it_names_once() {
    let site = Site::new().await;
    site.idp.set_person("8", json!({ "name": "Bob" }));
    let (ada, bob) = (site.log_in("7").await, site.log_in("8").await);
    let form =
        site.app.anonymous().with_header("content-type", "application/x-www-form-urlencoded");
    let send = async |token: &str| {
        let body = Some(format!("logout_token={token}"));
        let path = "/v1/sso/company/backchannel-logout";
        form.raw(axum::http::Method::POST, path, body).await.status().as_u16()
    };
    for wrong in [
        json!({ "sub": "7", "aud": "another" }),
        json!({ "sub": "7", "nonce": "n" }),
        json!({ "sub": "7", "events": {} }),
        json!({}),
    ] {
        assert_eq!(send(&site.idp.logout_token(&wrong)).await, 400, "{wrong}");
    }
    assert_eq!(send("a.b.c").await, 400);
    ada.get("/v1/me").await.expect(200);
    let token = site.idp.logout_token(&json!({ "sid": "session-of-7" }));
    assert_eq!(send(&token).await, 200);
    ada.get("/v1/me").await.expect(401);
    bob.get("/v1/me").await.expect(200);
    let ada = site.log_in("7").await;
    assert_eq!(send(&token).await, 400, "a token works once");
    ada.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_provider_that_is_switched_off_or_deleted_ends_its_sessions_at_once() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    let key = site.program(&browser).await;
    site.set_provider(json!({ "enabled": false })).await;
    browser.get("/v1/me").await.expect(401);
    key.get("/v1/me").await.expect(401);
    let options = site.browser().get("/v1/login-options").await.expect(200).json();
    assert_eq!(options["providers"], json!([]));
    let refused = site.browser().get("/v1/sso/company/login").await.expect(303);
    assert_eq!(location(&refused), "/login?sso=unreachable");
    site.set_provider(json!({ "enabled": true })).await;
    key.get("/v1/me").await.expect(401);
    let browser = site.log_in("7").await;
    key.get("/v1/me").await.expect(200);
    site.admin.delete("/v1/identity-providers/company").await.expect(204);
    browser.get("/v1/me").await.expect(401);
    key.get("/v1/me").await.expect(401);
    assert_eq!(site.events("api_key.revoked").await, 1);
}

#[tokio::test]
async fn an_account_is_linked_only_in_its_own_session() {
    let site = Site::new().await;
    let body = json!({ "handle": "ada", "display_name": "Ada", "password": "long enough!" });
    let own = site.admin.post("/v1/users", body).await.expect(201).text("id");
    let credentials = json!({ "handle": "ada", "password": "long enough!" });
    let reply = page(&site.browser()).post("/v1/sessions", credentials).await.expect(200);
    let session = with_cookies(&site.browser(), &reply);
    let begun = page(&session)
        .post("/v1/me/identities", json!({ "provider": "company" }))
        .await
        .expect(200);
    let attempt =
        begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let answer = site.idp.log_in("7", &begun.text("authorization_url"));
    // Without the session the login links nothing, and starts no session either.
    let without = site.browser().with_header("cookie", &attempt);
    let refused = without.get(&answer.callback()).await.expect(303);
    assert_eq!(location(&refused), "/login?sso=stale");

    let begun = page(&session)
        .post("/v1/me/identities", json!({ "provider": "company" }))
        .await
        .expect(200);
    let attempt =
        begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let answer = site.idp.log_in("7", &begun.text("authorization_url"));
    let cookies = format!("{}; {attempt}", session.header("cookie").unwrap());
    let linked = session.with_header("cookie", &cookies).get(&answer.callback()).await.expect(303);
    assert_eq!(location(&linked), "/settings/sessions");
    assert_eq!(
        site.log_in("7").await.get("/v1/me").await.expect(200).json()["user"]["id"],
        own.as_str()
    );
    let identities = session.get("/v1/me/identities").await.expect(200).json();
    assert_eq!(identities["items"][0]["subject"], "7");
    let id = identities["items"][0]["id"].as_str().unwrap().to_owned();
    site.admin.delete(&format!("/v1/me/identities/{id}")).await.expect(404);
    page(&session).delete(&format!("/v1/me/identities/{id}")).await.expect(204);
    // The next login of that person is another account.
    assert_ne!(
        site.log_in("7").await.get("/v1/me").await.expect(200).json()["user"]["id"],
        own.as_str()
    );
}

#[tokio::test]
async fn a_session_that_was_left_open_links_no_account() {
    let site = Site::new().await;
    let body = json!({ "handle": "ada", "display_name": "Ada", "password": "long enough!" });
    site.admin.post("/v1/users", body).await.expect(201);
    let credentials = json!({ "handle": "ada", "password": "long enough!" });
    let reply = page(&site.browser()).post("/v1/sessions", credentials).await.expect(200);
    let session = page(&with_cookies(&site.browser(), &reply));
    let link = json!({ "provider": "company" });
    site.advance(Duration::minutes(15));
    session.post("/v1/me/identities", link.clone()).await.expect(200);
    site.advance(Duration::seconds(1));
    let refused = session.post("/v1/me/identities", link).await.expect(409);
    assert!(refused.text("detail").contains("log in again"));
}

#[tokio::test]
async fn the_only_way_to_log_in_is_not_unlinked() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    let identities = browser.get("/v1/me/identities").await.expect(200).json();
    let path = format!("/v1/me/identities/{}", identities["items"][0]["id"].as_str().unwrap());
    assert_eq!(page(&browser).delete(&path).await.expect(409).text("code"), "conflict");
}

#[tokio::test]
async fn a_logout_leads_to_the_provider_and_ends_the_session_here() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    let reply = page(&browser).post("/v1/sessions/current/provider-logout", json!(null)).await;
    let url = reply.expect(200).text("logout_url");
    let expected =
        format!("{}/logout?client_id=cynode&post_logout_redirect_uri=", site.idp.issuer());
    assert!(url.starts_with(&expected) && url.contains("id_token_hint="), "{url}");
    browser.get("/v1/me").await.expect(401);
    assert_eq!(
        site.app.db.number("SELECT octet_length(sealed_tokens)::bigint FROM provider_grants").await,
        0
    );
}

#[tokio::test]
async fn the_secret_of_a_provider_and_the_tokens_of_people_are_nowhere_in_the_clear() {
    let site = Site::new().await;
    site.log_in("7").await;
    let shown = site.admin.get("/v1/identity-providers").await.expect(200);
    assert_eq!(shown.json()["items"][0]["has_secret"], true);
    assert!(!String::from_utf8_lossy(&shown.body).contains(CLIENT_SECRET));
    let stored = "SELECT count(*) FROM identity_providers p, provider_grants g
        WHERE p::text LIKE '%idp-secret%' OR g::text LIKE '%refresh-%' OR position('idp-secret'::bytea IN p.sealed_secret) > 0
           OR position('refresh-'::bytea IN g.sealed_tokens) > 0";
    assert_eq!(site.app.db.number(stored).await, 0);
    assert_eq!(site.app.db.number("SELECT count(*) FROM provider_grants").await, 1);
}

#[tokio::test]
async fn a_provider_is_public_and_keeps_its_issuer() {
    let site = Site::new().await;
    let put = async |name: &str, issuer: &str| {
        let body = json!({ "display_name": "x", "issuer": issuer, "client_id": "x" });
        site.admin.put(&format!("/v1/identity-providers/{name}"), body).await.status
    };
    assert_eq!(put("inside", "https://10.0.0.1").await, 422);
    assert_eq!(put("inside", "http://127.0.0.1:1").await, 422);
    assert_eq!(put("plain", "http://id.example").await, 422);
    assert_eq!(put("company", "https://id.example").await, 409, "the issuer stays");
    assert_eq!(put("twice", &site.idp.issuer()).await, 409, "one provider for one issuer");
    assert_eq!(put("Bad_Name", "https://id.example").await, 422);
    let found = site
        .admin
        .post("/v1/identity-providers/company/test", json!(null))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&found["issuer"], &found["names_issuer"]),
        (&json!(site.idp.issuer()), &json!(true))
    );
    site.idp.set_available(false);
    site.admin.post("/v1/identity-providers/company/test", json!(null)).await.expect(503);
}

#[tokio::test]
async fn a_password_logs_nobody_in_where_that_is_switched_off() {
    let site = Site::new().await;
    let body = json!({ "handle": "ada", "display_name": "Ada", "password": "long enough!" });
    site.admin.post("/v1/users", body).await.expect(201);
    let off = json!({ "value": true, "expected_version": 0 });
    let setting = "/v1/settings/login.disable_local";
    // Nobody could administer any more.
    site.admin.put(setting, off.clone()).await.expect(409);
    site.map_group("leads", "leads", "admin").await;
    site.set_provider(json!({ "enabled": false })).await;
    site.admin.put(setting, off.clone()).await.expect(409);
    site.set_provider(json!({ "enabled": true })).await;
    site.admin.put(setting, off).await.expect(200);
    let credentials = json!({ "handle": "ada", "password": "long enough!" });
    let problem = site.app.anonymous().post("/v1/sessions", credentials).await.expect(403);
    assert_eq!(problem.text("code"), "policy_denied");
    let options = site.browser().get("/v1/login-options").await.expect(200).json();
    assert_eq!(options["password"], false);
    site.log_in("7").await.get("/v1/me").await.expect(200);
}

/// Asks for the login of a device. Returns the secret of the device and the code for the person.
async fn ask_for_device(site: &Site) -> (String, String) {
    let device = json!({ "device": "cynork on build-3" });
    let asked = site.browser().post("/v1/device-logins", device).await.expect(200).json();
    assert_eq!((&asked["interval"], &asked["expires_in"]), (&json!(5), &json!(600)));
    let code = asked["user_code"].as_str().unwrap().to_owned();
    assert_eq!(asked["verification_uri_complete"], format!("{ORIGIN}/device?code={code}"));
    (asked["device_code"].as_str().unwrap().to_owned(), code)
}

async fn poll_device(site: &Site, secret: &str) -> Value {
    let body = json!({ "device_code": secret });
    site.browser().post("/v1/device-logins/token", body).await.expect(200).json()
}

#[tokio::test]
async fn a_device_gets_a_session_of_the_person_who_confirms_its_code() {
    let site = Site::new().await;
    let browser = page(&site.log_in("7").await);
    let (secret, code) = ask_for_device(&site).await;
    assert_eq!(poll_device(&site, &secret).await["status"], "authorization_pending");
    assert_eq!(poll_device(&site, &secret).await["status"], "slow_down");
    let path = format!("/v1/device-logins/{}", code.to_lowercase().replace('-', ""));
    let shown = browser.get(&path).await.expect(200).json();
    assert_eq!(
        (&shown["device"], &shown["source"], &shown["user_code"]),
        (&json!("cynork on build-3"), &json!("127.0.0.1"), &json!(code)),
    );
    browser.post(&path, json!({ "approved": true })).await.expect(200);
    site.advance(Duration::seconds(5));
    let granted = poll_device(&site, &secret).await;
    assert_eq!(granted["status"], "granted");
    let device = site.app.anonymous().with_token(granted["session"]["token"].as_str().unwrap());
    assert_eq!(device.get("/v1/me").await.expect(200).json()["user"]["handle"], "ada");
    assert_eq!(poll_device(&site, &secret).await["status"], "expired_token", "it is given once");
    // It ends with what the provider says, as the session does that confirmed it.
    site.idp.remove_person("7");
    site.advance(CHECK_DUE);
    device.get("/v1/me").await.expect(401);
    browser.get("/v1/me").await.expect(401);
}

/// Whether a session counts as one with a second factor.
async fn is_verified(client: &Client) -> Value {
    client.get("/v1/me/second-factor").await.expect(200).json()["session_verified"].clone()
}

#[tokio::test]
async fn a_session_has_a_second_factor_only_if_the_signed_token_of_its_login_says_so() {
    let site = Site::new().await;
    let mut boasting = ada(&["builders"]);
    boasting["amr"] = json!(["mfa"]);
    site.idp.set_person("7", boasting);
    assert_eq!(is_verified(&site.log_in("7").await).await, false, "userinfo says nothing about it");
    for (claims, expected) in [
        (json!({ "amr": ["pwd"] }), false),
        (json!({ "amr": ["pwd", "mfa"] }), true),
        (json!({ "amr": ["otp"] }), true),
        (json!({ "amr": ["hwk"] }), true),
        (json!({ "acr": "gold" }), false),
    ] {
        site.idp.change_next_id_token(claims.clone());
        assert_eq!(is_verified(&site.log_in("7").await).await, expected, "{claims}");
    }
    // It is a list; a token with anything else is malformed.
    site.idp.change_next_id_token(json!({ "amr": "mfa" }));
    assert_eq!(location(&site.try_login("7").await.0), "/login?sso=provider");
    site.set_provider(json!({ "second_factor_contexts": ["gold"] })).await;
    site.idp.change_next_id_token(json!({ "acr": "gold" }));
    let browser = site.log_in("7").await;
    assert_eq!(is_verified(&browser).await, true);

    // A device has what its person has shown.
    let (secret, code) = ask_for_device(&site).await;
    let path = format!("/v1/device-logins/{code}");
    page(&browser).post(&path, json!({ "approved": true })).await.expect(200);
    let answer = poll_device(&site, &secret).await;
    let token = answer["session"]["token"].as_str().unwrap();
    assert_eq!(is_verified(&site.app.anonymous().with_token(token)).await, true);
}

#[tokio::test]
async fn an_account_of_the_directory_logs_in_by_the_provider_of_the_directory_and_no_other() {
    let site = Site::new().await;
    let token = site.admin.post("/v1/scim-tokens", json!({ "name": "entra" })).await.expect(201);
    let directory = site.app.anonymous().with_token(&token.text("token"));
    let directory = directory.with_header("content-type", "application/scim+json");
    let body = json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
        "userName": "ada@example.com",
        "externalId": "7",
    });
    let made = directory.post("/scim/v2/Users", body).await.expect(201).text("id");
    site.set_provider(json!({ "create_accounts": false })).await;
    let (reply, _) = site.try_login("7").await;
    assert_eq!(location(&reply), "/login?sso=no_account");
    site.set_provider(json!({ "links_directory": true })).await;
    let browser = site.log_in("7").await;
    let me = browser.get("/v1/me").await.expect(200).json();
    assert_eq!(me["user"]["id"], made.as_str());
    let key = site.program(&browser).await;
    // The directory vouches for its people: the provider is not asked about their keys.
    site.idp.set_available(false);
    site.advance(Duration::hours(11));
    key.get("/v1/me").await.expect(200);
    site.idp.set_available(true);
    browser.get("/v1/me").await.expect(200);
    let body = json!({
        "schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
        "Operations": [{ "op": "replace", "path": "active", "value": false }],
    });
    directory.patch(&format!("/scim/v2/Users/{made}"), body).await.expect(200);
    browser.get("/v1/me").await.expect(401);
    key.get("/v1/me").await.expect(401);
    let (reply, _) = site.try_login("7").await;
    assert_eq!(location(&reply), "/login?sso=disabled");
}

#[tokio::test]
async fn a_device_that_is_denied_late_or_confirmed_by_no_browser_gets_nothing() {
    let site = Site::new().await;
    let browser = page(&site.log_in("7").await);
    let (secret, code) = ask_for_device(&site).await;
    let path = format!("/v1/device-logins/{code}");
    let key = browser.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    site.app
        .anonymous()
        .with_token(&key)
        .post(&path, json!({ "approved": true }))
        .await
        .expect(403);
    browser.post(&path, json!({ "approved": false })).await.expect(200);
    browser.post(&path, json!({ "approved": true })).await.expect(404);
    assert_eq!(poll_device(&site, &secret).await["status"], "access_denied");

    let (secret, code) = ask_for_device(&site).await;
    site.advance(Duration::minutes(11));
    browser.get(&format!("/v1/device-logins/{code}")).await.expect(404);
    assert_eq!(poll_device(&site, &secret).await["status"], "expired_token");
    assert_eq!(poll_device(&site, "nothing").await["status"], "expired_token");

    // Approved in a session that has ended since.
    let (secret, code) = ask_for_device(&site).await;
    browser
        .post(&format!("/v1/device-logins/{code}"), json!({ "approved": true }))
        .await
        .expect(200);
    browser.delete("/v1/sessions/current").await.expect(204);
    assert_eq!(poll_device(&site, &secret).await["status"], "access_denied");
}

#[tokio::test]
async fn codes_of_devices_cannot_be_guessed_and_not_asked_for_without_end() {
    let site = Site::new().await;
    let browser = page(&site.log_in("7").await);
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(browser.get("/v1/device-logins/BCDF-GHJK").await.status);
    }
    assert_eq!(statuses[..10], [404; 10]);
    assert_eq!(statuses[10..], [429; 2]);
    for _ in 0..20 {
        ask_for_device(&site).await;
    }
    let body = json!({ "device": "x" });
    site.browser().post("/v1/device-logins", body).await.expect(429);
}

#[tokio::test]
async fn a_session_is_ended_by_its_user_or_an_admin_and_by_nobody_else() {
    let site = Site::new().await;
    let (first, second) = (page(&site.log_in("7").await), site.log_in("7").await);
    let listed = second.get("/v1/sessions").await.expect(200).json();
    let other = listed["items"].as_array().unwrap().iter().find(|one| one["current"] == false);
    let path = format!("/v1/sessions/{}", other.unwrap()["id"].as_str().unwrap());
    let stranger = site.app.user("bob", Some(UserRole::Operator)).await;
    stranger.delete(&path).await.expect(404);
    first.get("/v1/me").await.expect(200);
    page(&second).delete(&path).await.expect(204);
    first.get("/v1/me").await.expect(401);
    second.get("/v1/me").await.expect(200);
}

/// The provider of the file of a configuration.
fn file_provider(idp: &TestIdentityProvider) -> FileProvider {
    FileProvider {
        name: "company".into(),
        display_name: "Company account".parse().unwrap(),
        issuer: idp.issuer(),
        client_id: CLIENT_ID.into(),
        client_secret: Some(SecretText(CLIENT_SECRET.into())),
        scopes: None,
        groups_claim: None,
        create_accounts: true,
        mapped_groups_only: false,
        required_claims: BTreeMap::new(),
        links_directory: false,
        directory_claim: None,
        second_factor_contexts: Vec::new(),
        groups: BTreeMap::from([("builders".to_owned(), "operators".parse().unwrap())]),
        roles: BTreeMap::from([("operators".parse().unwrap(), UserRole::Operator)]),
    }
}

#[tokio::test]
async fn a_provider_of_the_file_is_changed_there_only_and_is_switched_off_when_it_leaves() {
    let site = Site::new().await;
    site.admin.delete("/v1/identity-providers/company").await.expect(204);
    let apply = async |providers: Vec<FileProvider>| {
        identity_providers::apply_provider_file(&site.app.app, providers).await.unwrap();
    };
    // Two replicas start together.
    let both = (vec![file_provider(&site.idp)], vec![file_provider(&site.idp)]);
    tokio::join!(apply(both.0), apply(both.1));
    // Applied again at the next start, it is the same.
    apply(vec![file_provider(&site.idp)]).await;
    assert_eq!(site.events("group.updated").await, 1, "the role is recorded once");
    let browser = site.log_in("7").await;
    let me = browser.get("/v1/me").await.expect(200).json();
    assert_eq!(me["installation_role"], "operator");
    let shown = site.admin.get("/v1/identity-providers").await.expect(200).json();
    let provider = &shown["items"][0];
    assert_eq!(provider["from_file"], true);
    assert_eq!(provider["mappings"][0]["group_name"], "operators");
    let body = json!({ "display_name": "x", "issuer": site.idp.issuer(), "client_id": "x" });
    site.admin.put("/v1/identity-providers/company", body).await.expect(409);
    site.admin.delete("/v1/identity-providers/company").await.expect(409);
    apply(Vec::new()).await;
    browser.get("/v1/me").await.expect(401);
    let options = site.browser().get("/v1/login-options").await.expect(200).json();
    assert_eq!(options["providers"], json!([]));
}

/// An account with a password and a linked account at the provider. Returns its id and its session in a browser.
async fn link_account(site: &Site, handle: &str, subject: &str) -> (String, Client) {
    let body = json!({ "handle": handle, "display_name": handle, "password": "long enough!" });
    let own = site.admin.post("/v1/users", body).await.expect(201).text("id");
    let credentials = json!({ "handle": handle, "password": "long enough!" });
    let reply = page(&site.browser()).post("/v1/sessions", credentials).await.expect(200);
    let session = with_cookies(&site.browser(), &reply);
    let begun = page(&session).post("/v1/me/identities", json!({ "provider": "company" })).await;
    let begun = begun.expect(200);
    let attempt = begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();
    let cookies = format!("{}; {attempt}", session.header("cookie").unwrap());
    let answer = site.idp.log_in(subject, &begun.text("authorization_url"));
    let back = session.with_header("cookie", &cookies).get(&answer.callback()).await.expect(303);
    assert_eq!(location(&back), "/settings/sessions");
    (own, session)
}

#[tokio::test]
async fn a_failure_of_the_provider_or_of_our_client_is_no_word_about_the_person() {
    let site = Site::new().await;
    site.map_group("builders", "operators", "operator").await;
    let browser = site.log_in("7").await;
    let key = site.program(&browser).await;
    for (path, status, error) in [
        ("/token", 401, "invalid_client"),
        ("/token", 403, "access_denied"),
        ("/token", 400, "invalid_request"),
        // The refresh token was renewed before this failed.
        ("/userinfo", 500, "server_error"),
        ("/userinfo", 403, "insufficient_scope"),
        ("/userinfo", 429, "slow_down"),
    ] {
        site.idp.fail_endpoint(path, status, error);
        for _ in 0..2 {
            site.advance(CHECK_DUE);
            let me = browser.get("/v1/me").await.expect(200).json();
            assert_eq!(me["installation_role"], "operator", "{path} {status}");
        }
        site.idp.mend_endpoints();
        site.advance(CHECK_DUE);
        browser.get("/v1/me").await.expect(200);
    }
    assert_eq!(site.events("identity_provider.unreachable").await, 6);
    // After the grace period it is refused without a word about the person, and goes on when it is mended.
    site.idp.fail_endpoint("/token", 401, "invalid_client");
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(200);
    site.advance(Duration::minutes(11));
    assert_eq!(browser.get("/v1/me").await.expect(503).text("code"), "upstream_unavailable");
    key.get("/v1/me").await.expect(503);
    site.idp.mend_endpoints();
    let me = browser.get("/v1/me").await.expect(200).json();
    assert_eq!(me["installation_role"], "operator");
    assert_eq!(site.events("session.ended").await, 0);
    // Its word about the person counts at once.
    site.idp.fail_endpoint("/token", 400, "invalid_grant");
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_discovery_document_that_cannot_be_had_any_more_is_used_on() {
    let site = Site::new().await;
    site.log_in("7").await;
    site.advance(Duration::hours(2));
    let document = "/.well-known/openid-configuration";
    site.idp.fail_endpoint(document, 404, "gone");
    let browser = site.log_in("7").await;
    site.advance(CHECK_DUE);
    browser.get("/v1/me").await.expect(200);
    site.admin.post("/v1/identity-providers/company/test", json!(null)).await.expect(503);
}

#[tokio::test]
async fn forged_logout_tokens_do_not_keep_people_from_logging_in() {
    let site = Site::new().await;
    site.log_in("7").await;
    let form =
        site.app.anonymous().with_header("content-type", "application/x-www-form-urlencoded");
    for _ in 0..20 {
        // A key that nobody has ever published: the real one comes back below.
        site.idp.rotate_key();
        let token = site.idp.logout_token(&json!({ "sub": "7" }));
        let (_, rest) = token.split_once('.').unwrap();
        let forged = format!("{}.{rest}", forged_header());
        let path = "/v1/sso/company/backchannel-logout";
        let body = Some(format!("logout_token={forged}"));
        let answer = form.raw(axum::http::Method::POST, path, body).await;
        assert!(!answer.status().is_success());
    }
    site.idp.rotate_key();
    site.log_in("7").await;
}

/// The header of a logout token that names an unknown key.
fn forged_header() -> String {
    let header = json!({ "alg": "EdDSA", "typ": "logout+jwt", "kid": "forged" });
    data_encoding::BASE64URL_NOPAD.encode(header.to_string().as_bytes())
}

#[tokio::test]
async fn what_acts_for_a_person_ends_when_the_provider_says_no() {
    let site = Site::new().await;
    site.map_group("builders", "operators", "operator").await;
    let browser = page(&site.log_in("7").await);
    let project = site.app.project(&site.admin, "web").await;
    let body = json!({ "project_id": project, "description": "x" });
    let task = browser.post("/v1/tasks", body).await.expect(201).text("id");
    let body = json!({ "role": "developer", "project_id": project, "task_id": task });
    let token = browser.post("/v1/agent-tokens", body).await.expect(201).text("token");
    let shown = cynode_app::platform::tokens::parse_token(&token).unwrap();
    let state = async || {
        let found = agent_tokens::resolve_agent_tokens(&site.app.app, &[shown]).await.unwrap();
        found[0].1.state
    };
    let schedule = json!({
        "project_id": project, "name": "nightly", "action": { "kind": "words", "text": "Look." },
        "trigger": { "kind": "cron", "expression": "* * * * *", "timezone": "UTC" },
    });
    browser.post("/v1/schedules", schedule).await.expect(201);
    let fired = "SELECT outcome FROM schedule_firings ORDER BY number";
    let channel = "INSERT INTO notification_channels (channel_id, scope, user_id, name, kind, address, event_kinds, min_gap_seconds, enabled,
            created_by, created_at, updated_at)
        SELECT gen_random_uuid(), 'user', user_id, 'own', 'webhook', 'https://hooks.example', '{task.waiting}', 0, true, user_id, now(), now()
        FROM users WHERE handle = 'ada'";
    site.app.db.execute(channel).await;
    let told = async || {
        let (mut conn, now) = (site.app.db.conn().await, site.app.clock.now());
        let about =
            NotificationTopic { kind: "task.waiting", project: Some(project), subject: None };
        notifications::list_subscribed_channels(&mut conn, about, None, now).await.unwrap().len()
    };
    assert_eq!(told().await, 1);
    // Rounds of checks go on while nobody uses the session.
    for _ in 0..4 {
        site.advance(Duration::seconds(40));
        assert_eq!(provider_grants::check_due_users(&site.app.app).await.unwrap(), 1);
        assert_eq!(state().await, TokenState::Good);
    }
    assert_eq!(schedules::fire_due_schedules(&site.app.app).await.unwrap(), 1);
    assert_eq!(site.app.db.texts(fired).await, ["handoff"]);
    // An outage does not stop what goes on within the grace period.
    site.idp.set_available(false);
    site.advance(CHECK_DUE);
    provider_grants::check_due_users(&site.app.app).await.unwrap();
    assert_eq!(state().await, TokenState::Good);
    site.idp.set_available(true);
    site.idp.remove_person("7");
    site.advance(CHECK_DUE);
    provider_grants::check_due_users(&site.app.app).await.unwrap();
    assert_eq!((state().await, told().await), (TokenState::Revoked, 0));
    site.advance(Duration::minutes(1));
    schedules::fire_due_schedules(&site.app.app).await.unwrap();
    assert_eq!(site.app.db.texts(fired).await, ["handoff", "refused"]);
    // The person comes back, and the token with them.
    site.idp.set_person("7", ada(&["builders"]));
    site.log_in("7").await;
    assert_eq!(state().await, TokenState::Good);
}

#[tokio::test]
async fn an_account_that_was_linked_later_is_dropped_with_a_new_password_of_an_admin() {
    let site = Site::new().await;
    site.idp.set_person("8", json!({ "name": "Bob" }));
    let (own, _) = link_account(&site, "bob", "8").await;
    let browser = site.log_in("8").await;
    assert_eq!(browser.get("/v1/me").await.expect(200).json()["user"]["id"], own.as_str());
    let password = json!({ "password": "another password" });
    site.admin.patch(&format!("/v1/users/{own}"), password).await.expect(200);
    browser.get("/v1/me").await.expect(401);
    assert_eq!(site.events("identity.unlinked").await, 1);
    let me = site.log_in("8").await.get("/v1/me").await.expect(200).json();
    assert_ne!(me["user"]["id"], own.as_str(), "the link is gone");

    // The account that a login made keeps that login.
    let made = me["user"]["id"].as_str().unwrap().to_owned();
    let password = json!({ "password": "another password" });
    site.admin.patch(&format!("/v1/users/{made}"), password).await.expect(200);
    let me = site.log_in("8").await.get("/v1/me").await.expect(200).json();
    assert_eq!(me["user"]["id"], made.as_str());
}

#[tokio::test]
async fn an_admin_lists_the_accounts_of_a_user_and_removes_one() {
    let site = Site::new().await;
    let browser = site.log_in("7").await;
    let id = browser.get("/v1/me").await.expect(200).json()["user"]["id"].clone();
    let path = format!("/v1/users/{}/identities", id.as_str().unwrap());
    page(&browser).get(&path).await.expect(403);
    let listed = site.admin.get(&path).await.expect(200).json();
    assert_eq!(listed["items"][0]["subject"], "7");
    let one = format!("{path}/{}", listed["items"][0]["id"].as_str().unwrap());
    page(&browser).delete(&one).await.expect(403);
    // It is that user's, and nobody else's.
    let stranger = site.app.user("bob", None).await.user.unwrap();
    let other = one.replace(id.as_str().unwrap(), &stranger.to_string());
    site.admin.delete(&other).await.expect(404);
    site.admin.delete(&one).await.expect(204);
    browser.get("/v1/me").await.expect(401);
    assert_eq!(site.admin.get(&path).await.expect(200).json(), json!({ "items": [] }));
}

#[tokio::test]
async fn a_session_of_a_provider_enrols_a_second_factor_only_after_a_recent_login_in_a_browser() {
    let site = Site::new().await;
    let browser = page(&site.log_in("7").await);
    let (secret, code) = ask_for_device(&site).await;
    let path = format!("/v1/device-logins/{code}");
    browser.post(&path, json!({ "approved": true })).await.expect(200);
    let granted = poll_device(&site, &secret).await;
    let device = site.app.anonymous().with_token(granted["session"]["token"].as_str().unwrap());
    device.post("/v1/me/second-factor", json!({})).await.expect(409);
    site.advance(Duration::minutes(16));
    let refused = browser.post("/v1/me/second-factor", json!({})).await.expect(409);
    assert!(refused.text("detail").contains("log in again"));
    page(&site.log_in("7").await).post("/v1/me/second-factor", json!({})).await.expect(200);
}

#[tokio::test]
async fn a_device_is_logged_in_no_longer_than_the_session_that_approved_it() {
    let site = Site::new().await;
    let browser = page(&site.log_in("7").await);
    let ends =
        browser.get("/v1/sessions").await.expect(200).json()["items"][0]["expires_at"].clone();
    site.advance(Duration::minutes(5));
    let (secret, code) = ask_for_device(&site).await;
    let path = format!("/v1/device-logins/{code}");
    browser.post(&path, json!({ "approved": true })).await.expect(200);
    let granted = poll_device(&site, &secret).await;
    assert_eq!(granted["session"]["expires_at"], ends);
}

#[tokio::test]
async fn only_people_of_the_required_claims_and_of_mapped_groups_get_an_account() {
    let site = Site::new().await;
    site.set_provider(json!({ "required_claims": { "hd": ["example.com"] } })).await;
    assert_eq!(location(&site.try_login("7").await.0), "/login?sso=no_account");
    let mut person = ada(&[]);
    person["hd"] = json!("evil.example");
    site.idp.set_person("7", person.clone());
    assert_eq!(location(&site.try_login("7").await.0), "/login?sso=no_account");
    person["hd"] = json!("example.com");
    site.idp.set_person("7", person.clone());
    site.map_group("builders", "operators", "operator").await;
    site.set_provider(json!({ "mapped_groups_only": true })).await;
    assert_eq!(location(&site.try_login("7").await.0), "/login?sso=no_account");
    assert_eq!(site.app.db.number("SELECT count(*) FROM external_identities").await, 0);
    person["groups"] = json!(["builders"]);
    site.idp.set_person("7", person);
    site.log_in("7").await;
    let wrong = json!({ "display_name": "x", "issuer": site.idp.issuer(), "client_id": CLIENT_ID,
        "required_claims": { "hd": [] } });
    site.admin.put("/v1/identity-providers/company", wrong).await.expect(422);
}

#[tokio::test]
async fn an_account_of_the_directory_is_found_by_the_claim_that_was_set_once() {
    let site = Site::new().await;
    let token = site.admin.post("/v1/scim-tokens", json!({ "name": "entra" })).await.expect(201);
    let directory = site.app.anonymous().with_token(&token.text("token"));
    let directory = directory.with_header("content-type", "application/scim+json");
    let body = json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
        "userName": "ada@example.com",
        "externalId": "o-7",
    });
    let made = directory.post("/scim/v2/Users", body).await.expect(201).text("id");
    let body = |claim: &str| {
        json!({ "display_name": "Company", "issuer": site.idp.issuer(), "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET, "links_directory": true, "create_accounts": false,
            "directory_claim": claim })
    };
    let path = "/v1/identity-providers/company";
    site.admin.put(path, body("oid")).await.expect(409);
    site.admin.delete(path).await.expect(204);
    site.admin.put(path, body("oid")).await.expect(200);
    assert_eq!(location(&site.try_login("7").await.0), "/login?sso=no_account");
    let mut person = ada(&[]);
    person["oid"] = json!("o-7");
    site.idp.set_person("7", person);
    let me = site.log_in("7").await.get("/v1/me").await.expect(200).json();
    assert_eq!(me["user"]["id"], made.as_str());

    // What an admin disables, the directory does not lift.
    let account = format!("/v1/users/{made}");
    let patch = |active: bool| {
        json!({
            "schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
            "Operations": [{ "op": "replace", "path": "active", "value": active }],
        })
    };
    let provisioned = format!("/scim/v2/Users/{made}");
    site.admin.patch(&account, json!({ "active": false })).await.expect(200);
    let told = directory.patch(&provisioned, patch(true)).await.expect(200).json();
    assert_eq!(told["active"], false);
    assert_eq!(location(&site.try_login("7").await.0), "/login?sso=disabled");
    site.admin.patch(&account, json!({ "active": true })).await.expect(200);
    directory.patch(&provisioned, patch(false)).await.expect(200);
    let told = directory.patch(&provisioned, patch(true)).await.expect(200).json();
    assert_eq!(told["active"], true);
    site.log_in("7").await;
}

#[tokio::test]
async fn two_people_of_the_same_name_who_log_in_first_at_the_same_moment_both_get_an_account() {
    let site = Site::new().await;
    let mut logins = Vec::new();
    for number in 0..2 {
        let subject = format!("twin-{number}");
        site.idp.set_person(&subject, json!({ "name": "Twin" }));
        let (browser, address) = site.begin(&site.browser()).await;
        let answer = site.idp.log_in(&subject, &address);
        logins.push(async move { location(&browser.get(&answer.callback()).await.expect(303)) });
    }
    let pages = futures::future::join_all(logins).await;
    assert_eq!(pages, ["/tasks", "/tasks"]);
    let handles = "SELECT handle FROM users WHERE handle LIKE 'twin%' ORDER BY 1";
    assert_eq!(site.app.db.texts(handles).await, ["twin", "twin-2"]);
}
