//! Rules before they hold: their check, their vocabulary and their history.

use cynode_core::roles::UserRole;
use cynode_testkit::TestApp;
use serde_json::{Value, json};

#[tokio::test]
async fn a_check_says_what_a_rule_speaks_of_or_where_it_is_wrong_and_stores_nothing() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let before = app.db.number("SELECT count(*) FROM policy_rules").await;
    let check = async |text: &str| {
        let body = json!({ "name": "tried", "mode": "refuse", "text": text });
        admin.post("/v1/rules/check", body).await.expect(200).json()
    };
    let good = check(
        "forbid (principal == Role::\"tester\", action == Action::\"artifact.put\", resource) when { context.arguments has name };",
    )
    .await;
    assert_eq!(
        good,
        json!({ "valid": true, "errors": [], "reads_arguments": true, "tools": ["artifact.put"], "roles": ["tester"] })
    );
    let misspelt =
        check("forbid (principal,\n  action == Action::\"artifact.putt\", resource);").await;
    assert_eq!(misspelt["valid"], false);
    let error = &misspelt["errors"][0];
    assert_eq!(error["code"], "does_not_fit");
    assert!(error["message"].as_str().unwrap().contains("artifact.putt"), "{error}");
    assert!(error["line"].is_u64() && error["start"].is_u64(), "{error}");
    let unreadable = check("forbid (principal, action, resource)\nwhere { true };").await;
    assert_eq!(
        (&unreadable["errors"][0]["code"], &unreadable["errors"][0]["line"]),
        (&json!("syntax"), &json!(2))
    );
    let unknown = json!({ "mode": "maybe", "text": "forbid (principal, action, resource);" });
    admin.post("/v1/rules/check", unknown).await.expect(422);
    assert_eq!(app.db.number("SELECT count(*) FROM policy_rules").await, before);
}

#[tokio::test]
async fn every_tool_role_and_group_of_the_vocabulary_can_be_used_in_a_rule() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let words = admin.get("/v1/rules/vocabulary").await.expect(200).json();
    let list = |field: &str| words[field].as_array().unwrap().clone();
    assert_eq!(list("servers"), [json!({ "id": "native", "name": "native" })]);
    let modes: Vec<_> = list("modes").iter().map(|mode| mode["name"].clone()).collect();
    assert_eq!(modes, ["refuse", "approve", "shadow"]);
    assert_eq!(words["max_bytes"], 16384);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut heads = Vec::new();
    heads.extend(
        list("roles")
            .iter()
            .map(|role| format!("principal == Role::\"{}\", action, resource", text(role))),
    );
    heads.extend(
        list("groups")
            .iter()
            .map(|group| format!("principal, action in Action::\"{}\", resource", text(group))),
    );
    let tools = list("tools");
    assert!(tools.len() > 20, "{}", tools.len());
    heads.extend(
        tools.iter().take(5).map(|tool| {
            format!("principal, action == Action::\"{}\", resource", text(&tool["name"]))
        }),
    );
    for head in heads {
        let body = json!({ "mode": "shadow", "text": format!("forbid ({head});") });
        let checked = admin.post("/v1/rules/check", body).await.expect(200).json();
        assert_eq!(checked["valid"], true, "{head}: {checked}");
    }
    let argument = tools.iter().flat_map(|tool| {
        let name = text(&tool["name"]);
        let arguments = tool["arguments"].as_array().unwrap().clone();
        arguments.into_iter().map(move |argument| (name.clone(), argument))
    });
    let (tool, argument) =
        argument.into_iter().find(|(_, argument)| argument["kind"] == "String").unwrap();
    let path = text(&argument["path"]);
    let name = path.strip_prefix("context.arguments.").unwrap();
    let rule = format!(
        "forbid (principal, action == Action::\"{tool}\", resource) when {{ context.arguments has {name} && {path} == \"x\" }};"
    );
    let body = json!({ "mode": "shadow", "text": rule });
    let checked = admin.post("/v1/rules/check", body).await.expect(200).json();
    assert_eq!(
        (&checked["valid"], &checked["reads_arguments"]),
        (&json!(true), &json!(true)),
        "{checked}"
    );
}

#[tokio::test]
async fn the_history_of_a_rule_names_every_version_and_who_wrote_it() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let eve = app.user("eve", Some(UserRole::Admin)).await;
    let all = "forbid (principal, action, resource);";
    let rule = |mode: &str| json!({ "mode": mode, "text": all });
    assert_eq!(admin.put("/v1/rules/mine", rule("shadow")).await.expect(200).json()["version"], 1);
    assert_eq!(eve.put("/v1/rules/mine", rule("refuse")).await.expect(200).json()["version"], 2);
    eve.delete("/v1/rules/mine").await.expect(204);
    assert_eq!(admin.put("/v1/rules/mine", rule("shadow")).await.expect(200).json()["version"], 4);
    let history = admin.get("/v1/rules/mine/history").await.expect(200).json();
    let (first, second) = (admin.user.unwrap().to_string(), eve.user.unwrap().to_string());
    let versions: Vec<_> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| json!([it["version"], it["mode"], it["deleted"], it["changed_by"]]))
        .collect();
    assert_eq!(
        versions,
        [
            json!([4, "shadow", false, first]),
            json!([3, null, true, second]),
            json!([2, "refuse", false, second]),
            json!([1, "shadow", false, first]),
        ]
    );
    // A rule that came with the installation has its beginning, too.
    let shipped = admin.get("/v1/rules/ask-before-tasks/history").await.expect(200).json();
    assert_eq!(shipped["items"].as_array().unwrap().len(), 1);
    admin.get("/v1/rules/none/history").await.expect(404);
    // A rule that is not stored leaves no version.
    admin
        .put(
            "/v1/rules/wrong",
            json!({ "mode": "refuse", "text": "permit (principal, action, resource);" }),
        )
        .await
        .expect(422);
    admin.get("/v1/rules/wrong/history").await.expect(404);
}
