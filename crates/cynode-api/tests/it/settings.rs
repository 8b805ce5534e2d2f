use cynode_testkit::TestApp;
use serde_json::json;

const PATH: &str = "/v1/settings/sandbox.default_image";

#[tokio::test]
async fn a_setting_is_written_only_over_the_version_that_the_writer_saw() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let write = async |value: &str, version: u32| {
        admin.put(PATH, json!({ "value": value, "expected_version": version })).await
    };
    assert_eq!(write("debian", 0).await.expect(200).json()["version"], 1);
    let conflict = write("alpine", 0).await.expect(409);
    assert_eq!(conflict.text("code"), "version");
    assert_eq!(conflict.text("detail"), "`sandbox.default_image` is at version 1, not at 0");
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
        let (left, right) = tokio::join!(admin.put(PATH, write(1)), admin.put(PATH, write(2)));
        let mut statuses = [left.status, right.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
    }
}

#[tokio::test]
async fn every_write_is_kept_and_a_deleted_setting_goes_on_counting() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.put(PATH, json!({ "value": 1, "expected_version": 0 })).await.expect(200);
    admin.delete(&format!("{PATH}?expected_version=2")).await.expect(409);
    admin.delete(&format!("{PATH}?expected_version=1")).await.expect(204);
    admin.get(PATH).await.expect(404);
    admin.delete(&format!("{PATH}?expected_version=2")).await.expect(404);
    let again = admin.put(PATH, json!({ "value": null, "expected_version": 0 })).await.expect(200);
    assert_eq!(again.json()["version"], 3);
    let history = admin.get(&format!("{PATH}/history")).await.expect(200).json();
    let kept: Vec<_> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| json!([change["version"], change["deleted"], change["value"]]))
        .collect();
    assert_eq!(kept, [json!([3, false, null]), json!([2, true, null]), json!([1, false, 1])]);
}

#[tokio::test]
async fn a_value_that_cannot_be_kept_is_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for value in [json!("a\u{0}b"), json!({ "a\u{0}": 1 }), json!("x".repeat(20_000))] {
        let body = json!({ "value": value, "expected_version": 0 });
        assert_eq!(admin.put(PATH, body.clone()).await.expect(422).text("code"), "invalid");
        let preference = "/v1/preferences/a.b?scope_type=system";
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
