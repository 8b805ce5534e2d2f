use cynode_testkit::TestApp;
use serde_json::json;

const PATH: &str = "/v1/settings/models.default";
const NUMBER: &str = "/v1/settings/manager.max_concurrent_analysts";

#[tokio::test]
async fn a_setting_is_written_only_over_the_version_that_the_writer_saw() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let write = async |value: &str, version: u32| {
        admin.put(PATH, json!({ "value": value, "expected_version": version })).await
    };
    assert_eq!(write("debian", 0).await.expect(200).json()["version"], 1);
    let conflict = write("alpine", 0).await.expect(409);
    assert_eq!(conflict.text("code"), "version_conflict");
    assert_eq!(conflict.text("detail"), "`models.default` is at version 1, not at 0");
    assert_eq!(write("alpine", 1).await.expect(200).json()["version"], 2);
    write("fedora", 1).await.expect(409);
    write("fedora", 7).await.expect(409);
    assert_eq!(admin.get(PATH).await.expect(200).json()["value"], "alpine");
}

#[tokio::test]
async fn of_two_writers_at_the_same_moment_one_wins() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for version in 0..10 {
        let write = |value: u32| json!({ "value": value, "expected_version": version });
        let (left, right) = tokio::join!(admin.put(NUMBER, write(1)), admin.put(NUMBER, write(2)));
        let mut statuses = [left.status, right.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
    }
}

#[tokio::test]
async fn every_write_is_kept_and_a_deleted_setting_goes_on_counting() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.put(NUMBER, json!({ "value": 1, "expected_version": 0 })).await.expect(200);
    admin.delete(&format!("{NUMBER}?expected_version=2")).await.expect(409);
    admin.delete(&format!("{NUMBER}?expected_version=1")).await.expect(204);
    admin.get(NUMBER).await.expect(404);
    admin.delete(&format!("{NUMBER}?expected_version=2")).await.expect(404);
    let again = admin.put(NUMBER, json!({ "value": 2, "expected_version": 0 })).await.expect(200);
    assert_eq!(again.json()["version"], 3);
    let history = admin.get(&format!("{NUMBER}/history")).await.expect(200).json();
    let kept: Vec<_> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| json!([change["version"], change["deleted"], change["value"]]))
        .collect();
    assert_eq!(kept, [json!([3, false, 2]), json!([2, true, null]), json!([1, false, 1])]);
}

#[tokio::test]
async fn a_value_that_cannot_be_kept_is_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for value in [json!("a\u{0}b"), json!({ "a\u{0}": 1 }), json!("x".repeat(20_000))] {
        let body = json!({ "value": value, "expected_version": 0 });
        assert_eq!(admin.put(PATH, body.clone()).await.expect(422).text("code"), "invalid");
        let preference = "/v1/preferences/standards.b?scope_type=system";
        assert_eq!(admin.put(preference, body).await.expect(422).text("code"), "invalid");
    }
}

#[tokio::test]
async fn a_value_that_was_left_out_is_not_null() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.put(PATH, json!({ "expected_version": 0 })).await.expect(400);
    admin.put(PATH, json!({ "value": 1 })).await.expect(400);
    admin.put(PATH, json!({ "value": 1, "expected_version": 0, "force": true })).await.expect(400);
}

#[tokio::test]
async fn what_would_be_ignored_is_refused_with_what_is_right() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let refused = async |key: &str, value: serde_json::Value| {
        let body = json!({ "value": value, "expected_version": 0 });
        admin.put(&format!("/v1/settings/{key}"), body).await.expect(422).text("detail")
    };
    for (key, value, rule) in [
        ("notifications.allow_private", json!("maybe"), "true or false"),
        ("workflow.force_reclaim", json!(1), "true or false"),
        ("gateway.calls_per_second", json!("5"), "1 to 1000000"),
        ("manager.max_concurrent_analysts", json!(1001), "0 to 1000"),
        ("models.loop_guard.max_identical_calls", json!(0), "1 to 2147483647"),
        ("models.default", json!(true), "the id of a model"),
        ("delivery.author", json!("Ada"), "written `Name <address>`"),
        (
            "packages.forbidden",
            json!("npm:left-pad"),
            "a list of at most 200 names, each of 1 to 300 visible characters without spaces",
        ),
        ("packages.min_age_days", json!(-1), "0 to 3650"),
        ("tools.max_servers_per_project", json!(-1), "0 to 10000"),
        ("tools.max_servers_per_user", json!("many"), "0 to 10000"),
        (
            "budget.user_default",
            json!(0),
            "an amount above 0 with at most six decimals, such as 5 or 2.50, or \"none\"",
        ),
    ] {
        assert_eq!(refused(key, value).await, format!("`{key}` is {rule}"));
    }
    assert_eq!(
        refused("notifications.alow_private", json!(true)).await,
        "there is no setting `notifications.alow_private`; is `notifications.allow_private` meant?"
    );
    let told = refused("nope", json!(true)).await;
    assert!(
        told.starts_with("there is no setting `nope`; there are `approvals.four_eyes`, "),
        "{told}"
    );
    let listed = admin.get("/v1/settings").await.expect(200).json();
    assert_eq!(listed["items"], json!([]));
}

#[tokio::test]
async fn the_currency_is_told_to_everybody_and_is_a_code() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let currency = async || bob.get("/v1/me").await.expect(200).text("currency");
    assert_eq!(currency().await, "USD");
    let body = json!({ "value": "EUR", "expected_version": 0 });
    admin.put("/v1/settings/budget.currency", body).await.expect(200);
    assert_eq!(currency().await, "EUR");
    let body = json!({ "value": "euro", "expected_version": 1 });
    let refused = admin.put("/v1/settings/budget.currency", body).await.expect(422);
    assert_eq!(
        refused.text("detail"),
        "`budget.currency` is an ISO 4217 code of three capital letters, such as \"USD\" or \"EUR\""
    );
}
