//! The SCIM 2.0 directory: what it provisions, what it ends, and what it cannot touch.

use cynode_core::roles::UserRole;
use cynode_testkit::{Client, Reply, TestApp};
use serde_json::{Value, json};
use time::Duration;

struct Directory {
    app: TestApp,
    admin: Client,
    client: Client,
}

impl Directory {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let admin = app.admin().await;
        let made = admin.post("/v1/scim-tokens", json!({ "name": "entra" })).await.expect(201);
        let token = made.text("token");
        assert!(token.starts_with("cyn_scim_"));
        let client = app.anonymous().with_token(&token);
        let client = client.with_header("content-type", "application/scim+json");
        Self { app, admin, client }
    }

    async fn user(&self, name: &str) -> Value {
        let body = json!({
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
            "userName": name,
            "externalId": format!("ext-{name}"),
            "displayName": "Ada Lovelace",
            "emails": [{ "value": "ada@example.com", "primary": true }],
        });
        self.client.post("/scim/v2/Users", body).await.expect(201).json()
    }

    async fn patch(&self, path: &str, operations: Value) -> Reply {
        let schema = "urn:ietf:params:scim:api:messages:2.0:PatchOp";
        let body = json!({ "schemas": [schema], "Operations": operations });
        self.client.patch(path, body).await
    }

    /// A session of a user, as an identity provider would start it.
    async fn session(&self, id: &str) -> Client {
        let password = json!({ "password": "correct horse battery" });
        self.admin.patch(&format!("/v1/users/{id}"), password).await.expect(200);
        let user = self.admin.get(&format!("/v1/users/{id}")).await.expect(200).text("handle");
        let login = json!({ "handle": user, "password": "correct horse battery" });
        let session = self.app.anonymous().post("/v1/sessions", login).await.expect(201);
        self.app.anonymous().with_token(&session.text("token"))
    }
}

fn id_of(resource: &Value) -> &str {
    resource["id"].as_str().unwrap()
}

#[tokio::test]
async fn a_directory_creates_a_user_without_a_role_and_reads_it_back() {
    let directory = Directory::new().await;
    let made = directory.user("ada@example.com").await;
    let path = format!("/scim/v2/Users/{}", id_of(&made));
    let read = directory.client.get(&path).await.expect(200);
    assert_eq!(read.json(), made);
    assert_eq!(read.headers["content-type"], "application/scim+json");
    assert_eq!(read.headers["etag"], made["meta"]["version"].as_str().unwrap());
    let mut plain = made.clone();
    plain.as_object_mut().unwrap().remove("meta");
    assert_eq!(
        plain,
        json!({
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
            "id": id_of(&made),
            "userName": "ada@example.com",
            "externalId": "ext-ada@example.com",
            "displayName": "Ada Lovelace",
            "name": { "formatted": "Ada Lovelace" },
            "emails": [{ "value": "ada@example.com", "type": "work", "primary": true }],
            "active": true,
        })
    );
    let user = format!("/v1/users/{}", id_of(&made));
    let user = directory.admin.get(&user).await.expect(200).json();
    assert_eq!((&user["handle"], &user["role"]), (&json!("ada"), &Value::Null));
    // A second one of that name is refused; one with the same handle gets another.
    let body = json!({ "userName": "ADA@example.com" });
    let refused = directory.client.post("/scim/v2/Users", body).await.expect(409).json();
    assert_eq!((&refused["scimType"], &refused["status"]), (&json!("uniqueness"), &json!("409")));
    let other = directory.user("ada@example.org").await;
    let user = format!("/v1/users/{}", id_of(&other));
    assert_eq!(directory.admin.get(&user).await.expect(200).text("handle"), "ada-2");
}

#[tokio::test]
async fn a_replacement_that_does_not_say_active_enables_no_disabled_user() {
    let directory = Directory::new().await;
    let made = directory.user("ada@example.com").await;
    let path = format!("/scim/v2/Users/{}", id_of(&made));
    let off = json!([{ "op": "replace", "path": "active", "value": false }]);
    directory.patch(&path, off).await.expect(200);
    let body = json!({ "userName": "ada@example.com", "displayName": "Ada King" });
    let replaced = directory.client.put(&path, body).await.expect(200).json();
    assert_eq!(
        (&replaced["displayName"], &replaced["active"]),
        (&json!("Ada King"), &json!(false))
    );
    let body = json!({ "userName": "ada@example.com", "active": true });
    assert_eq!(directory.client.put(&path, body).await.expect(200).json()["active"], true);
}

#[tokio::test]
async fn only_the_token_of_a_directory_opens_scim_and_it_opens_nothing_else() {
    let directory = Directory::new().await;
    let Directory { app, admin, client } = &directory;
    let key = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let strangers = [
        app.anonymous(),
        app.anonymous().with_token("hunter2"),
        app.anonymous().with_token(&admin.token().unwrap()),
        app.anonymous().with_token(&key),
    ];
    let paths = [
        "/scim/v2/Users",
        "/scim/v2/Groups",
        "/scim/v2/ServiceProviderConfig",
        "/scim/v2/ResourceTypes",
        "/scim/v2/Schemas",
    ];
    for stranger in &strangers {
        for path in paths {
            let refused = stranger.get(path).await.expect(401);
            assert_eq!(refused.json()["status"], "401", "{path}");
            assert_eq!(refused.headers["www-authenticate"], "Bearer");
        }
        stranger.post("/scim/v2/Users", json!({ "userName": "eve" })).await.expect(401);
    }
    for path in ["/v1/me", "/v1/users", "/v1/groups", "/v1/projects", "/v1/models", "/metrics"] {
        client.get(path).await.expect(401);
    }
    assert_eq!(app.db.number("SELECT count(*) FROM users").await, 1);
}

#[tokio::test]
async fn a_revoked_or_expired_token_stops_working_at_once() {
    let directory = Directory::new().await;
    let Directory { app, admin, client } = &directory;
    client.get("/scim/v2/Users").await.expect(200);
    let listed = admin.get("/v1/scim-tokens").await.expect(200).json();
    assert_eq!(listed["items"][0]["last_used_at"], "2026-11-01T12:00:00Z");
    let path = format!("/v1/scim-tokens/{}", id_of(&listed["items"][0]));
    admin.delete(&path).await.expect(200);
    client.get("/scim/v2/Users").await.expect(401);
    let body = json!({ "name": "short", "expires_in_days": 1 });
    let made = admin.post("/v1/scim-tokens", body).await.expect(201).text("token");
    let short = app.anonymous().with_token(&made);
    short.get("/scim/v2/Users").await.expect(200);
    app.clock.advance(Duration::days(1));
    short.get("/scim/v2/Users").await.expect(401);
}

#[tokio::test]
async fn disabling_a_user_ends_sessions_keys_and_agent_tokens_at_once() {
    let directory = Directory::new().await;
    let Directory { app, admin, .. } = &directory;
    let made = directory.user("ada@example.com").await;
    let ada = directory.session(id_of(&made)).await;
    let key = ada.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let program = app.anonymous().with_token(&key);
    let path = format!("/scim/v2/Users/{}", id_of(&made));
    let off = json!([{ "op": "Replace", "path": "active", "value": "False" }]);
    let changed = directory.patch(&path, off.clone()).await.expect(200).json();
    assert_eq!(changed["active"], false);
    assert_ne!(changed["meta"]["version"], made["meta"]["version"]);
    ada.get("/v1/me").await.expect(401);
    program.get("/v1/me").await.expect(401);
    // Enabled again, nothing of it comes back.
    let on = json!([{ "op": "replace", "value": { "active": true } }]);
    directory.patch(&path, on).await.expect(200);
    ada.get("/v1/me").await.expect(401);
    program.get("/v1/me").await.expect(401);
    let told = "SELECT (data ->> 'active') || ' ' || (data ->> 'sessions_ended') || ' ' || (data ->> 'keys_revoked')
        FROM events WHERE kind = 'user.updated' AND data ? 'scim_token_id' ORDER BY seq";
    assert_eq!(app.db.texts(told).await, ["false 1 1", "true 0 0"]);

    directory.patch(&path, off).await.expect(200);
    directory.client.delete(&path).await.expect(204);
    directory.client.get(&path).await.expect(404);
    let user = admin.get(&format!("/v1/users/{}", id_of(&made))).await.expect(200).json();
    assert_eq!(user["active"], false);
}

#[tokio::test]
async fn a_directory_touches_no_account_and_no_group_that_it_does_not_manage() {
    let directory = Directory::new().await;
    let Directory { app, admin, client } = &directory;
    let group = admin.post("/v1/groups", json!({ "name": "local" })).await.expect(201).text("id");
    let user = format!("/scim/v2/Users/{}", admin.user.unwrap());
    let off = json!([{ "op": "replace", "path": "active", "value": false }]);
    client.get(&user).await.expect(404);
    client.delete(&user).await.expect(404);
    directory.patch(&user, off.clone()).await.expect(404);
    client.put(&user, json!({ "userName": "x" })).await.expect(404);
    let group = format!("/scim/v2/Groups/{group}");
    client.get(&group).await.expect(404);
    client.delete(&group).await.expect(404);
    let body = json!({ "displayName": "Ops", "members": [{ "value": admin.user }] });
    let refused = client.post("/scim/v2/Groups", body).await.expect(400).json();
    assert_eq!(refused["scimType"], "invalidValue");
    assert_eq!(client.get("/scim/v2/Users").await.expect(200).json()["totalResults"], 0);
    // An admin hands an account over. The last admin stays one all the same.
    let own = format!("/v1/users/{}", admin.user.unwrap());
    admin.patch(&own, json!({ "scim_user_name": "root@example.com" })).await.expect(200);
    client.get(&user).await.expect(200);
    directory.patch(&user, off.clone()).await.expect(409);
    admin.get("/v1/me").await.expect(200);
    app.user("second", Some(UserRole::Admin)).await;
    directory.patch(&user, off).await.expect(200);
    admin.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn the_groups_of_a_directory_open_what_an_admin_bound_to_them_and_nothing_else() {
    let directory = Directory::new().await;
    let Directory { app, admin, client } = &directory;
    let made = directory.user("ada@example.com").await;
    let ada = directory.session(id_of(&made)).await;
    let members = json!([{ "value": id_of(&made) }]);
    let body = json!({ "displayName": "Platform Engineers", "members": members });
    let group = client.post("/scim/v2/Groups", body.clone()).await.expect(201).json();
    assert_eq!(group["members"][0]["value"], made["id"]);
    let again = client.post("/scim/v2/Groups", body).await.expect(409).json();
    assert_eq!(again["scimType"], "uniqueness");
    ada.get("/v1/users").await.expect(403);
    let listed = admin.get("/v1/groups").await.expect(200).json();
    assert_eq!(listed["items"][0]["name"], "platform-engineers");
    let local = format!("/v1/groups/{}", id_of(&group));
    admin.patch(&local, json!({ "role": "viewer" })).await.expect(200);
    ada.get("/v1/users").await.expect(200);

    let path = format!("/scim/v2/Groups/{}", id_of(&group));
    let remove = format!("members[value eq \"{}\"]", id_of(&made));
    directory.patch(&path, json!([{ "op": "remove", "path": remove }])).await.expect(200);
    ada.get("/v1/users").await.expect(403);
    let add = json!([{ "op": "add", "path": "members", "value": members }]);
    directory.patch(&path, add).await.expect(200);
    ada.get("/v1/users").await.expect(200);
    let replace = json!({ "displayName": "Platform", "members": [] });
    let replaced = client.put(&path, replace).await.expect(200).json();
    assert_eq!((&replaced["displayName"], &replaced["members"]), (&json!("Platform"), &json!([])));
    ada.get("/v1/users").await.expect(403);
    client.delete(&path).await.expect(204);
    client.get(&path).await.expect(404);
    // Who came and who went is recorded.
    let recorded = "SELECT concat(data->>'added', ' ', data->>'removed') FROM events
        WHERE kind = 'group.updated' AND data->>'scim_token_id' IS NOT NULL ORDER BY xact, seq";
    let (came, went) = (format!("[\"{}\"] []", id_of(&made)), format!("[] [\"{}\"]", id_of(&made)));
    assert_eq!(app.db.texts(recorded).await, [&came, &went, &came, &went].map(String::as_str));
}

#[tokio::test]
async fn a_directory_that_repeats_itself_makes_no_replica_load_its_policy_again() {
    let directory = Directory::new().await;
    let Directory { app, client, .. } = &directory;
    let made = directory.user("ada@example.com").await;
    let members = json!([{ "value": id_of(&made) }]);
    let body = json!({ "displayName": "Platform", "members": members });
    let group = client.post("/scim/v2/Groups", body.clone()).await.expect(201).json();
    let path = format!("/scim/v2/Groups/{}", id_of(&group));
    let epoch = "SELECT epoch FROM policy_epoch";
    let events = "SELECT count(*) FROM events";
    let before = (app.db.number(epoch).await, app.db.number(events).await);
    assert_eq!(client.put(&path, body).await.expect(200).json(), group);
    assert_eq!((app.db.number(epoch).await, app.db.number(events).await), before);
    let renamed = json!({ "displayName": "Engineers", "members": members });
    client.put(&path, renamed).await.expect(200);
    assert_eq!((app.db.number(epoch).await, app.db.number(events).await), (before.0, before.1 + 1));
    client.put(&path, json!({ "displayName": "Engineers", "members": [] })).await.expect(200);
    assert!(app.db.number(epoch).await > before.0);
}

#[tokio::test]
async fn lists_are_filtered_and_read_page_by_page() {
    let directory = Directory::new().await;
    let client = &directory.client;
    for name in ["ada", "bob", "cyd"] {
        directory.user(name).await;
        client.post("/scim/v2/Groups", json!({ "displayName": name })).await.expect(201);
        // Lists are ordered by id, and ids by time.
        directory.app.clock.advance(Duration::SECOND);
    }
    let names = async |query: &str| {
        let list = client.get(&format!("/scim/v2/Users?{query}")).await.expect(200).json();
        let found = list["Resources"].as_array().unwrap().iter();
        let found: Vec<String> =
            found.map(|user| user["userName"].as_str().unwrap().to_owned()).collect();
        (list["totalResults"].as_i64().unwrap(), found.join(" "))
    };
    assert_eq!(names("").await, (3, "ada bob cyd".to_owned()));
    assert_eq!(names("startIndex=2&count=1").await, (3, "bob".to_owned()));
    assert_eq!(names("startIndex=4").await, (3, String::new()));
    assert_eq!(names("count=0").await, (3, String::new()));
    assert_eq!(names("filter=userName%20eq%20%22BOB%22").await, (1, "bob".to_owned()));
    assert_eq!(names("filter=externalId+eq+%22ext-cyd%22").await, (1, "cyd".to_owned()));
    let both = "filter=displayName+eq+%22Ada+Lovelace%22+and+userName+eq+%22ada%22";
    assert_eq!(names(both).await, (1, "ada".to_owned()));
    let neither = "filter=externalId+eq+%22ext-cyd%22+and+userName+eq+%22ada%22";
    assert_eq!(names(neither).await, (0, String::new()));
    assert_eq!(names("filter=displayName+eq+%22ada+lovelace%22&count=2").await.0, 3);
    for wrong in ["filter=userName+co+%22a%22", "filter=", "count=many"] {
        let refused = client.get(&format!("/scim/v2/Users?{wrong}")).await.expect(400).json();
        assert!(refused["scimType"].as_str().unwrap().starts_with("invalid"), "{wrong}");
    }
    let groups = client.get("/scim/v2/Groups?filter=displayName+eq+%22bob%22").await.expect(200);
    assert_eq!(groups.json()["totalResults"], 1);
}

#[tokio::test]
async fn a_change_of_a_version_that_is_gone_is_refused_and_a_known_version_is_not_sent_again() {
    let directory = Directory::new().await;
    let made = directory.user("ada").await;
    let path = format!("/scim/v2/Users/{}", id_of(&made));
    let version = made["meta"]["version"].as_str().unwrap();
    let read = directory.client.with_header("if-none-match", version);
    read.get(&path).await.expect(304);
    let writer = directory.client.with_header("if-match", version);
    let change = json!({ "userName": "ada", "displayName": "Ada" });
    writer.put(&path, change.clone()).await.expect(200);
    let refused = writer.put(&path, change).await.expect(412);
    assert_eq!(refused.json()["status"], "412");
    writer.delete(&path).await.expect(412);
    read.get(&path).await.expect(200);
}

#[tokio::test]
async fn what_the_directory_says_wrongly_is_refused_in_the_words_of_the_standard() {
    let directory = Directory::new().await;
    let made = directory.user("ada").await;
    let path = format!("/scim/v2/Users/{}", id_of(&made));
    let kind = |reply: Reply| reply.expect(400).json()["scimType"].as_str().unwrap().to_owned();
    let patch = async |operation: Value| directory.patch(&path, json!([operation])).await;
    assert_eq!(
        kind(patch(json!({ "op": "replace", "path": "color", "value": 1 })).await),
        "invalidPath"
    );
    assert_eq!(kind(patch(json!({ "op": "jump", "path": "active" })).await), "invalidSyntax");
    assert_eq!(kind(patch(json!({ "op": "remove" })).await), "noTarget");
    assert_eq!(
        kind(patch(json!({ "op": "add", "path": "password", "value": "x" })).await),
        "mutability"
    );
    assert_eq!(kind(directory.client.post("/scim/v2/Users", json!({})).await), "invalidValue");
    let text = directory.client.with_header("content-type", "text/plain");
    text.post("/scim/v2/Users", json!({ "userName": "x" })).await.expect(415);
    directory.client.get("/scim/v2/Users/nobody").await.expect(404);
    let config = directory.client.get("/scim/v2/ServiceProviderConfig").await.expect(200).json();
    assert_eq!(
        (&config["patch"]["supported"], &config["etag"]["supported"], &config["bulk"]["supported"]),
        (&json!(true), &json!(true), &json!(false))
    );
    for path in ["/scim/v2/ResourceTypes", "/scim/v2/Schemas"] {
        let list = directory.client.get(path).await.expect(200).json();
        assert_eq!(list["totalResults"], 2);
        for resource in list["Resources"].as_array().unwrap() {
            let place = resource["meta"]["location"].as_str().unwrap();
            assert_eq!(&directory.client.get(place).await.expect(200).json(), resource);
        }
    }
}
