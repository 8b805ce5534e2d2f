//! Rate limits of accounts at the user-facing port.

use cynode_app::AccountLimits;
use cynode_testkit::TestApp;
use serde_json::json;

#[tokio::test]
async fn an_account_that_floods_the_server_has_to_wait_while_another_goes_on() {
    let app = TestApp::new().await;
    let (eve, bob) = (app.user("eve", None).await, app.user("bob", None).await);
    let limits = AccountLimits { requests_per_second: 1, ..AccountLimits::default() };
    let limited = app.with_account_limits(limits);
    let (eve, bob) =
        (limited.with_token(&eve.token().unwrap()), limited.with_token(&bob.token().unwrap()));
    let mut refused = Vec::new();
    for n in 0..1000 {
        let reply = eve.get("/v1/me").await;
        if reply.status == 429 {
            refused.push(reply);
        } else {
            reply.expect(200);
        }
        if n % 10 == 0 {
            bob.get("/v1/me").await.expect(200);
        }
    }
    assert!(refused.len() > 500, "{} of 1000 were refused", refused.len());
    let (first, problem) = (&refused[0], refused[0].json());
    assert_eq!(first.headers["retry-after"], "1");
    assert_eq!(
        (&problem["code"], &problem["detail"], &problem["fix"]),
        (
            &json!("rate_limited"),
            &json!("this account sends more requests than `server.requests_per_second` allows"),
            &json!("try again after the seconds that `Retry-After` names"),
        )
    );
    // What changes something and what asks a model count with the rest.
    let asked = json!({ "model": "small", "messages": [{ "role": "user", "content": "hi" }] });
    for (path, body) in
        [("/v1/api-keys", json!({ "name": "more" })), ("/v1/chat/completions", asked)]
    {
        let mut refused = None;
        for _ in 0..20 {
            let reply = eve.post(path, body.clone()).await;
            refused = refused.or(Some(reply).filter(|reply| reply.status == 429));
        }
        assert!(refused.unwrap().headers.contains_key("retry-after"), "{path}");
    }
}
