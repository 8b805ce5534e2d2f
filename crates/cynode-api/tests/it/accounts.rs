use cynode_app::{OperationRequest, identity::bootstrap};
use cynode_core::roles::UserRole;
use cynode_testkit::TestApp;
use cynode_wire::identity::accounts::{SecretText, UserView};
use serde_json::json;
use time::Duration;

const PASSWORD: &str = "correct horse battery";

#[tokio::test]
async fn the_first_admin_is_made_with_the_one_time_token_and_can_log_in() {
    let app = TestApp::new().await;
    let token = bootstrap::issue_bootstrap_token(&app.app).await.unwrap().unwrap();
    let body = json!({
        "token": token.0, "handle": "ada", "display_name": "Ada", "password": PASSWORD,
    });
    let anonymous = app.anonymous();
    let made = anonymous.post("/v1/bootstrap", body.clone()).await.expect(201);
    assert_eq!(made.json()["role"], "admin");

    // The token is used up, and there is no second first admin.
    let again = anonymous.post("/v1/bootstrap", body).await.expect(401);
    assert_eq!(again.text("code"), "unauthenticated");
    assert!(bootstrap::issue_bootstrap_token(&app.app).await.unwrap().is_none());

    let login = json!({ "handle": "ada", "password": PASSWORD });
    let session = anonymous.post("/v1/sessions", login).await.expect(201);
    let ada = anonymous.with_token(&session.text("token"));
    let me = ada.get("/v1/me").await.expect(200).json();
    assert_eq!(me["installation_role"], "admin");
    assert_eq!(me["user"]["handle"], "ada");
}

#[tokio::test]
async fn a_bootstrap_token_expires_and_a_newer_one_replaces_it() {
    let app = TestApp::new().await;
    let body = |token: &str| json!({ "token": token, "handle": "ada", "display_name": "Ada", "password": PASSWORD });
    let old = bootstrap::issue_bootstrap_token(&app.app).await.unwrap().unwrap();
    let new = bootstrap::issue_bootstrap_token(&app.app).await.unwrap().unwrap();
    app.anonymous().post("/v1/bootstrap", body(&old.0)).await.expect(401);
    app.clock.advance(Duration::hours(25));
    app.anonymous().post("/v1/bootstrap", body(&new.0)).await.expect(401);
    assert_eq!(app.db.number("SELECT count(*) FROM users").await, 0);
}

#[tokio::test]
async fn of_two_first_admins_at_the_same_moment_one_is_made() {
    let app = TestApp::new().await;
    let first = bootstrap::issue_bootstrap_token(&app.app).await.unwrap().unwrap();
    // Keeps the first token alive while the second is issued, as two processes at once might.
    app.db.execute("UPDATE bootstrap_tokens SET used_at = now()").await;
    let second = bootstrap::issue_bootstrap_token(&app.app).await.unwrap().unwrap();
    app.db.execute("UPDATE bootstrap_tokens SET used_at = NULL").await;
    // The passwords are hashed before, so that nothing but the operation itself puts one after the other.
    let password = app.app.hash_password(&SecretText(PASSWORD.into())).await.unwrap();
    let redeem = async |token: &str, handle: &str| {
        let body =
            json!({ "token": token, "handle": handle, "display_name": "A", "password": PASSWORD });
        let body = serde_json::from_value(body).unwrap();
        let request = OperationRequest {
            caller: None,
            trace: app.app.environment().new_trace_id(),
            attempt: None,
        };
        let password = password.clone();
        let made = app.app.mutate(&request, |ctx| {
            Box::pin(async move {
                Ok(UserView::from(bootstrap::redeem_bootstrap_token(ctx, body, password).await?))
            })
        });
        if made.await.is_ok() { 201 } else { 409 }
    };
    let (left, right) = tokio::join!(redeem(&first.0, "ada"), redeem(&second.0, "eve"));
    let mut statuses = [left, right];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    assert_eq!(app.db.number("SELECT count(*) FROM users").await, 1);
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user_get_the_same_answer() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD });
    admin.post("/v1/users", user).await.expect(201);
    let try_login = async |handle: &str, password: &str| {
        let body = json!({ "handle": handle, "password": password });
        let mut problem = app.anonymous().post("/v1/sessions", body).await.expect(401).json();
        problem["trace_id"].take();
        problem
    };
    let wrong = try_login("bob", "wrong password!").await;
    assert_eq!(wrong, try_login("nobody", PASSWORD).await);
    assert_eq!(wrong["code"], "unauthenticated");
}

#[tokio::test]
async fn a_login_that_waited_while_the_password_was_changed_is_worth_nothing() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD });
    let bob = admin.post("/v1/users", user).await.expect(201).text("id");
    let client = app.anonymous();
    let login = json!({ "handle": "bob", "password": PASSWORD });
    // They read the old password at once and wait for their turn to compare it.
    let logins =
        futures::future::join_all((0..20).map(|_| client.post("/v1/sessions", login.clone())));
    let path = format!("/v1/users/{bob}");
    let change = admin.patch(&path, json!({ "password": "another password" }));
    let (replies, changed) = tokio::join!(logins, change);
    changed.expect(200);
    for reply in replies.iter().filter(|reply| reply.status == 201) {
        client.with_token(&reply.text("token")).get("/v1/me").await.expect(401);
    }
    client.post("/v1/sessions", login).await.expect(401);
}

#[tokio::test]
async fn a_flood_of_logins_is_turned_away_before_it_can_queue_and_keeps_no_admin_waiting() {
    let app = TestApp::new().await;
    let (admin, client) = (app.admin().await, app.anonymous());
    let logins = (0..60).map(|number| {
        let body = json!({ "handle": format!("nobody-{number}"), "password": PASSWORD });
        let client = client.clone();
        async move { client.post("/v1/sessions", body).await }
    });
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD });
    let (replies, made) =
        tokio::join!(futures::future::join_all(logins), admin.post("/v1/users", user));
    made.expect(201);
    let with = |status| replies.iter().filter(|reply| reply.status == status).count();
    assert_eq!(with(401) + with(429), 60);
    assert!(with(429) > 0, "nobody was turned away");
    assert!(with(401) >= 32, "only {} were served", with(401));
}

#[tokio::test]
async fn whoever_guesses_at_a_handle_waits_and_nobody_else_does() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for handle in ["bob", "ann"] {
        let user = json!({ "handle": handle, "display_name": handle, "password": PASSWORD });
        admin.post("/v1/users", user).await.expect(201);
    }
    let client = app.anonymous();
    let login = async |handle: &str, password: &str| {
        client.post("/v1/sessions", json!({ "handle": handle, "password": password })).await
    };
    let before = login("bob", PASSWORD).await.expect(201).text("token");
    let mut refusals = Vec::new();
    for handle in ["bob", "nobody"] {
        for _ in 0..10 {
            login(handle, "wrong password!").await.expect(401);
        }
        let refused = login(handle, PASSWORD).await.expect(429);
        assert_eq!(refused.headers["retry-after"], "1");
        let mut problem = refused.json();
        problem["trace_id"].take();
        refusals.push(problem);
    }
    assert_eq!(refusals[0]["code"], "rate_limited");
    assert_eq!(refusals[0], refusals[1], "the answer says whether there is such a user");
    login("ann", PASSWORD).await.expect(201);
    client.with_token(&before).get("/v1/me").await.expect(200);

    app.clock.advance(Duration::SECOND);
    login("bob", PASSWORD).await.expect(201);
    login("bob", "wrong password!").await.expect(401);
    login("bob", PASSWORD).await.expect(201);
}

#[tokio::test]
async fn forty_waiting_logins_of_one_source_keep_nobody_else_out() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD });
    admin.post("/v1/users", user).await.expect(201);
    let attacker = app.anonymous().at_address("192.0.2.7");
    let flood = (0..40).map(|number| {
        let body = json!({ "handle": format!("nobody-{number}"), "password": PASSWORD });
        let attacker = attacker.clone();
        async move { attacker.post("/v1/sessions", body).await }
    });
    let login = json!({ "handle": "bob", "password": PASSWORD });
    let elsewhere = app.anonymous().at_address("192.0.2.8");
    let (flood, reply) = tokio::join!(
        futures::future::join_all(flood),
        elsewhere.post("/v1/sessions", login.clone())
    );
    reply.expect(201);
    let with = |status| flood.iter().filter(|reply| reply.status == status).count();
    assert_eq!(with(401) + with(429), 40);
    assert!(with(429) > 0, "nobody was turned away");
    assert!(with(401) >= 8, "only {} were served", with(401));
    app.anonymous().post("/v1/sessions", login).await.expect(201);
}

#[tokio::test]
async fn whoever_guesses_from_one_source_does_not_keep_the_right_person_out_on_another() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD });
    admin.post("/v1/users", user).await.expect(201);
    let login = async |address: &str, password: &str| {
        let client = app.anonymous().at_address(address);
        client.post("/v1/sessions", json!({ "handle": "bob", "password": password })).await
    };
    for _ in 0..10 {
        login("192.0.2.7", "wrong password!").await.expect(401);
    }
    login("192.0.2.7", PASSWORD).await.expect(429);
    login("192.0.2.8", PASSWORD).await.expect(201);
    // Many sources together are delayed for a second, and no longer.
    for number in 0..30 {
        let address = format!("198.51.100.{number}");
        login(&address, "wrong password!").await.expect(401);
    }
    let refused = login("192.0.2.8", PASSWORD).await.expect(429);
    assert_eq!(refused.headers["retry-after"], "1");
    app.clock.advance(Duration::SECOND);
    login("192.0.2.8", PASSWORD).await.expect(201);
}

#[tokio::test]
async fn a_short_password_is_refused_before_anything_is_stored() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": "short" });
    let problem = admin.post("/v1/users", user).await.expect(422);
    assert_eq!(problem.text("detail"), "a password has 12 to 256 characters");
    assert_eq!(app.db.number("SELECT count(*) FROM users").await, 1);
}

#[tokio::test]
async fn logging_out_ends_the_session_at_once() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.delete("/v1/sessions/current").await.expect(204);
    admin.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_session_ends_by_itself() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let idle = json!({ "value": 720, "expected_version": 0 });
    admin.put("/v1/settings/auth.session_idle_minutes", idle).await.expect(200);
    app.clock.advance(Duration::hours(12) - Duration::SECOND);
    admin.get("/v1/me").await.expect(200);
    app.clock.advance(Duration::SECOND);
    admin.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn an_api_key_is_shown_once_stored_hashed_and_revocable_at_once_in_every_process() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let made = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let (token, id) =
        (made.text("token"), made.json()["api_key"]["id"].as_str().unwrap().to_owned());
    assert!(token.starts_with("cyn_key_"));

    let listed = admin.get("/v1/api-keys").await.expect(200);
    assert!(!String::from_utf8_lossy(&listed.body).contains(&token));
    let stored = app.db.texts("SELECT row_to_json(k)::text FROM api_keys k").await.join("");
    assert!(!stored.contains(&token[8..]));

    let elsewhere = app.replica().with_token(&token);
    elsewhere.get("/v1/me").await.expect(200);
    admin.delete(&format!("/v1/api-keys/{id}")).await.expect(200);
    elsewhere.get("/v1/me").await.expect(401);
    app.anonymous().with_token(&token).get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn an_api_key_expires() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let body = json!({ "name": "ci", "expires_in_days": 1 });
    let token = admin.post("/v1/api-keys", body).await.expect(201).text("token");
    let program = app.anonymous().with_token(&token);
    program.get("/v1/me").await.expect(200);
    app.clock.advance(Duration::days(1));
    program.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_key_cannot_make_keys_and_no_key_lives_zero_days() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let token = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let program = app.anonymous().with_token(&token);
    program.post("/v1/api-keys", json!({ "name": "more" })).await.expect(403);
    let body = json!({ "name": "accounts", "scopes": ["accounts"] });
    let token = admin.post("/v1/api-keys", body).await.expect(201).text("token");
    let program = app.anonymous().with_token(&token);
    program.post("/v1/api-keys", json!({ "name": "more" })).await.expect(409);
    for days in [0, 3651] {
        let body = json!({ "name": "ci", "expires_in_days": days });
        admin.post("/v1/api-keys", body).await.expect(422);
    }
}

#[tokio::test]
async fn nobody_but_its_owner_and_an_admin_can_revoke_a_key() {
    let app = TestApp::new().await;
    let (owner, other) =
        (app.user("bob", None).await, app.user("eve", Some(UserRole::Operator)).await);
    let made = owner.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).json();
    let path = format!("/v1/api-keys/{}", made["api_key"]["id"].as_str().unwrap());
    other.delete(&path).await.expect(404);
    let program = app.anonymous().with_token(made["token"].as_str().unwrap());
    program.get("/v1/me").await.expect(200);
    app.admin().await.delete(&path).await.expect(200);
    program.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn switching_a_user_off_ends_sessions_and_keys_at_once() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", Some(UserRole::Viewer)).await);
    let key = bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let program = app.anonymous().with_token(&key);
    let path = format!("/v1/users/{}", bob.user.unwrap());
    let off = admin.patch(&path, json!({ "active": false })).await.expect(200);
    assert_eq!(off.json()["active"], false);
    bob.get("/v1/me").await.expect(401);
    program.get("/v1/me").await.expect(401);
    // Switched on again, the key works and the old session does not come back.
    admin.patch(&path, json!({ "active": true })).await.expect(200);
    program.get("/v1/me").await.expect(200);
    bob.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_password_that_an_admin_sets_puts_out_whoever_else_got_in_as_that_user() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", Some(UserRole::Viewer)).await);
    let key = bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let program = app.anonymous().with_token(&key);
    let body = json!({ "name": "phone", "kind": "ntfy", "address": "https://ntfy.sh/x" });
    let channel = bob.post("/v1/notification-channels", body).await.expect(201).json();
    let path = format!("/v1/users/{}", bob.user.unwrap());
    admin.patch(&path, json!({ "role": "operator" })).await.expect(200);
    program.get("/v1/me").await.expect(200);

    admin.patch(&path, json!({ "password": PASSWORD })).await.expect(200);
    bob.get("/v1/me").await.expect(401);
    program.get("/v1/me").await.expect(401);
    let channel = channel["channel"]["channel_id"].as_str().unwrap();
    let channel =
        admin.get(&format!("/v1/notification-channels/{channel}")).await.expect(200).json();
    assert_eq!(
        (&channel["enabled"], &channel["disabled_reason"]),
        (&json!(false), &json!("an admin set a new password: switch it on if it is yours"))
    );
    let told = "SELECT kind || ' ' || (data ->> 'keys_revoked') || ' ' || (data ->> 'channels_switched_off')
        FROM events WHERE kind = 'user.updated' ORDER BY seq";
    assert_eq!(app.db.texts(told).await, ["user.updated 0 0", "user.updated 1 1"]);
    assert_eq!(
        app.db.number("SELECT count(*) FROM events WHERE kind = 'api_key.revoked'").await,
        1
    );
}

#[tokio::test]
async fn whoever_changes_their_own_password_stays_logged_in_and_keeps_their_keys_unless_asked() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user = json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD });
    admin.post("/v1/users", user).await.expect(201);
    let log_in = async |password: &str| {
        let body = json!({ "handle": "bob", "password": password });
        app.anonymous().post("/v1/sessions", body).await
    };
    let here = app.anonymous().with_token(&log_in(PASSWORD).await.expect(201).text("token"));
    let elsewhere = app.anonymous().with_token(&log_in(PASSWORD).await.expect(201).text("token"));
    let key = here.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let program = app.anonymous().with_token(&key);

    let change = json!({ "old_password": PASSWORD, "new_password": "another password" });
    here.put("/v1/me/password", change).await.expect(204);
    elsewhere.get("/v1/me").await.expect(401);
    here.get("/v1/me").await.expect(200);
    program.get("/v1/me").await.expect(200);
    log_in(PASSWORD).await.expect(401);
    log_in("another password").await.expect(201);
    let change = json!({
        "old_password": "another password", "new_password": PASSWORD, "revoke_keys": true,
    });
    here.put("/v1/me/password", change).await.expect(204);
    program.get("/v1/me").await.expect(401);
    here.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn the_own_password_is_changed_with_the_old_one_in_a_session_and_in_no_other_way() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user =
        json!({ "handle": "bob", "display_name": "Bob", "password": PASSWORD, "role": "admin" });
    let id = admin.post("/v1/users", user).await.expect(201).text("id");
    let login = json!({ "handle": "bob", "password": PASSWORD });
    let bob = app.anonymous().post("/v1/sessions", login).await.expect(201).text("token");
    let bob = app.anonymous().with_token(&bob);
    let change = |old: &str, new: &str| json!({ "old_password": old, "new_password": new });
    let refused = bob.put("/v1/me/password", change("wrong password!", "a longer one")).await;
    assert_eq!(refused.expect(422).text("detail"), "your present password is another one");
    let refused = bob.put("/v1/me/password", change(PASSWORD, "short")).await.expect(422);
    assert_eq!(refused.text("detail"), "a password has 12 to 256 characters");
    let refused = bob.put("/v1/me/password", change(PASSWORD, PASSWORD)).await.expect(422);
    assert_eq!(refused.text("detail"), "the new password is the old one");
    // An admin cannot pass by the old password.
    bob.patch(&format!("/v1/users/{id}"), json!({ "password": "a longer one" })).await.expect(409);
    // A key that may change accounts is no session.
    let body = json!({ "name": "ci", "scopes": ["accounts"] });
    let key = bob.post("/v1/api-keys", body).await.expect(201).text("token");
    let program = app.anonymous().with_token(&key);
    let refused =
        program.put("/v1/me/password", change(PASSWORD, "a longer one")).await.expect(403);
    assert_eq!(refused.text("code"), "key_denied");
    // Guesses in a session are throttled like those at the login.
    for _ in 0..10 {
        bob.put("/v1/me/password", change("wrong password!", "a longer one")).await;
    }
    bob.put("/v1/me/password", change(PASSWORD, "a longer one")).await.expect(429);
}

#[tokio::test]
async fn an_admin_lists_the_keys_of_somebody_else_and_nobody_else_does() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let made = bob.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).json();
    let path = format!("/v1/api-keys?user_id={}", bob.user.unwrap());
    let listed = admin.get(&path).await.expect(200).json();
    assert_eq!(listed, json!({ "items": [made["api_key"]] }));
    assert_eq!(bob.get(&path).await.expect(200).json(), listed);
    app.user("eve", Some(UserRole::Operator)).await.get(&path).await.expect(403);
    let nobody = "/v1/api-keys?user_id=usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
    admin.get(nobody).await.expect(404);
}

#[tokio::test]
async fn the_last_admin_can_neither_be_switched_off_nor_lose_the_role() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let path = format!("/v1/users/{}", admin.user.unwrap());
    for change in
        [json!({ "active": false }), json!({ "role": "viewer" }), json!({ "role": "none" })]
    {
        let problem = admin.patch(&path, change).await.expect(409);
        assert_eq!(problem.text("code"), "conflict");
    }
    app.user("second", Some(UserRole::Admin)).await;
    admin.patch(&path, json!({ "role": "none" })).await.expect(200);
    admin.get("/v1/users").await.expect(403);
}

#[tokio::test]
async fn a_role_given_to_a_group_reaches_its_members_and_leaves_with_them() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    bob.get("/v1/users").await.expect(403);
    let group =
        admin.post("/v1/groups", json!({ "name": "auditors" })).await.expect(201).text("id");
    let path = format!("/v1/groups/{group}");
    let change = json!({ "role": "viewer", "add": [bob.user] });
    let changed = admin.patch(&path, change).await.expect(200).json();
    assert_eq!(changed["members"], json!([bob.user]));
    bob.get("/v1/users").await.expect(200);
    admin.patch(&path, json!({ "remove": [bob.user] })).await.expect(200);
    bob.get("/v1/users").await.expect(403);
}

#[tokio::test]
async fn lists_are_read_page_by_page_without_gap_or_repeat() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for number in 0..7 {
        app.user(&format!("user-{number}"), None).await;
    }
    let mut seen = Vec::new();
    let mut path = "/v1/users?limit=3".to_owned();
    loop {
        let page = admin.get(&path).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 3);
        seen.extend(items.iter().map(|user| user["handle"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/users?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    seen.sort();
    let expected = ["admin", "user-0", "user-1", "user-2", "user-3", "user-4", "user-5", "user-6"];
    assert_eq!(seen, expected);
    admin.get("/v1/users?cursor=nonsense").await.expect(400);
    admin.get("/v1/users?limit=0").await.expect(400);
    admin.get("/v1/users?limit=201").await.expect(400);
}
