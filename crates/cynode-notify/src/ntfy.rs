//! ntfy: push notifications with action buttons. They are published as JSON, so that no text is ever in a header.

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;

use crate::{
    DeliveryEgress, DeliveryError, DeliveryReceipt, NotificationLink, NotificationMessage,
    egress::{DeliveryResponse, EgressClients, to_transport_error},
    text,
};

/// Maximum size of a message: a longer one becomes an attachment that a phone does not show.
const MAX_MESSAGE_BYTES: usize = 3800;

/// Maximum number of action buttons.
const MAX_ACTION_COUNT: usize = 3;

/// Splits a URL into server and topic; `None` if it names no topic.
fn split_topic_url(url: &Url) -> Option<(Url, String)> {
    let mut server = url.clone();
    let path = url.path().trim_matches('/');
    let (before, topic) = path.rsplit_once('/').unwrap_or(("", path));
    let good = (1..=64).contains(&topic.len())
        && topic.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    server.set_path(before);
    server.set_query(None);
    good.then(|| (server, topic.to_owned()))
}

/// Renders the message. Also returns whether it is complete.
fn render_message(notice: &NotificationMessage) -> (String, bool) {
    let whole = match &notice.exact {
        Some(exact) => format!("{}\n\n{exact}", notice.text),
        None => notice.text.clone(),
    };
    match text::truncate_to_bytes(&whole, MAX_MESSAGE_BYTES) {
        Some(part) => (format!("{part}\n… (cut off: open the link for the rest)"), false),
        None => (whole, true),
    }
}

fn render_action(link: &NotificationLink) -> Value {
    match &link.post {
        Some(form) => json!({
            "action": "http",
            "label": link.label,
            "url": link.url,
            "method": "POST",
            "headers": { "Content-Type": "application/x-www-form-urlencoded" },
            "body": form,
            "clear": true,
        }),
        None => json!({ "action": "view", "label": link.label, "url": link.url }),
    }
}

/// Builds the publish request.
pub(crate) fn build_publish_body(notice: &NotificationMessage, topic: &str) -> Value {
    let (message, whole) = render_message(notice);
    let asks = !notice.links.is_empty();
    // A truncated message has no one-tap answers: a person must see the whole question first.
    let links = notice.links.iter().filter(|link| whole || link.post.is_none());
    let actions: Vec<Value> = links.take(MAX_ACTION_COUNT).map(render_action).collect();
    let opened = notice.links.iter().find(|link| link.post.is_none());
    let mut body = json!({
        "topic": topic,
        "title": text::to_single_line(&notice.title),
        "message": message,
        "priority": if asks { 4 } else { 3 },
        "tags": [if asks { "raised_hand" } else { "information_source" }, notice.kind],
        "actions": actions,
    });
    if let Some(link) = opened {
        body["click"] = json!(link.url);
    }
    body
}

pub(crate) async fn send_ntfy(
    ways: &EgressClients,
    url: &Url,
    token: Option<&SecretString>,
    notice: &NotificationMessage,
    reach: DeliveryEgress,
) -> Result<DeliveryReceipt, DeliveryError> {
    let client = ways.client_for(url, reach)?;
    let (server, topic) = split_topic_url(url)
        .ok_or_else(|| DeliveryError::permanent_error("the address names no topic of ntfy"))?;
    let mut request = client
        .post(server)
        .header("content-type", "application/json")
        .body(build_publish_body(notice, &topic).to_string());
    if let Some(token) = token {
        request = request.bearer_auth(token.expose_secret());
    }
    let response = request.send().await.map_err(|error| to_transport_error(&error))?;
    let answer = DeliveryResponse::read_response(response).await;
    match answer.status.as_u16() {
        200..=299 => Ok(answer.to_delivery_receipt()),
        // These statuses are permanent rejections.
        400 | 401 | 403 | 404 | 413 => Err(answer.to_delivery_error(false)),
        _ => Err(answer.to_delivery_error(true)),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn notice(exact: &str) -> NotificationMessage {
        let url = "https://cynode.example/answer/x".to_owned();
        let link = |label: &str, post: Option<&str>| NotificationLink {
            label: label.into(),
            url: url.clone(),
            post: post.map(str::to_owned),
        };
        NotificationMessage {
            id: "ntf_1".into(),
            kind: "task.waiting".into(),
            title: "May it?\r\nX-Evil: 1".into(),
            text: "A task waits.".into(),
            exact: Some(exact.into()),
            links: vec![link("Look", None), link("Approve", Some("decision=approve"))],
            path: "/?item=wai_1".into(),
            about: Value::Null,
            at: datetime!(2026-11-15 12:00 UTC),
        }
    }

    #[test]
    fn a_question_has_its_words_and_its_buttons() {
        insta::assert_json_snapshot!(build_publish_body(&notice("rm -rf build"), "topic"), @r#"
        {
          "topic": "topic",
          "title": "May it? X-Evil: 1",
          "message": "A task waits.\n\nrm -rf build",
          "priority": 4,
          "tags": [
            "raised_hand",
            "task.waiting"
          ],
          "actions": [
            {
              "action": "view",
              "label": "Look",
              "url": "https://cynode.example/answer/x"
            },
            {
              "action": "http",
              "label": "Approve",
              "url": "https://cynode.example/answer/x",
              "method": "POST",
              "headers": {
                "Content-Type": "application/x-www-form-urlencoded"
              },
              "body": "decision=approve",
              "clear": true
            }
          ],
          "click": "https://cynode.example/answer/x"
        }
        "#);
    }

    #[test]
    fn what_is_too_long_to_be_read_whole_cannot_be_approved_by_one_tap() {
        let body = build_publish_body(&notice(&"x".repeat(5000)), "topic");
        assert!(body["message"].as_str().unwrap().len() < 4096);
        let actions: Vec<_> =
            body["actions"].as_array().unwrap().iter().map(|a| &a["action"]).collect();
        assert_eq!(actions, ["view"]);
    }

    #[test]
    fn an_address_names_a_server_and_a_topic() {
        let topic = |text: &str| {
            split_topic_url(&text.parse().unwrap())
                .map(|(server, topic)| format!("{server} {topic}"))
        };
        assert_eq!(topic("https://ntfy.sh/mine").unwrap(), "https://ntfy.sh/ mine");
        assert_eq!(topic("https://a.b/push/mine/").unwrap(), "https://a.b/push mine");
        assert_eq!(topic("https://ntfy.sh/"), None);
        assert_eq!(topic("https://ntfy.sh/a%20b"), None);
    }
}
