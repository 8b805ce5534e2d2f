//! Notices on the wire, to receivers that speak the real formats.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use cynode_notify::{
    BrowserKeys, DeliveryChannel, DeliveryEgress, DeliveryError, DeliveryReceipt, MailServer,
    NotificationLink, NotificationMessage, NotificationSender, PushTarget, VapidKey, WebhookSecret,
};
use cynode_testkit::inbox::{
    Browser, NtfyInbox, PushMessage, PushService, SmtpInbox, WebhookInbox,
};
use secrecy::SecretString;
use serde_json::json;
use time::{OffsetDateTime, macros::datetime};

const NOW: OffsetDateTime = datetime!(2026-11-15 12:00 UTC);

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const OLD: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn notice() -> NotificationMessage {
    let link = |label: &str, post: Option<&str>| NotificationLink {
        label: label.into(),
        url: "https://cynode.example/answer/token".into(),
        post: post.map(str::to_owned),
    };
    NotificationMessage {
        id: "ntf_0192d5c8b6f07cc1a1a3c2b4d5e6f708".into(),
        kind: "approval.requested".into(),
        title: "May an agent do this? Größe\r\nBcc: evil@example.com".into(),
        text: "Asked by an agent.".into(),
        exact: Some("command: rm -rf build && echo '.'\n.\nQUIT\ncwd: /work — äöü".into()),
        links: vec![link("Look", None), link("Approve", Some("decision=approve"))],
        path: "/?item=apr_1".into(),
        about: json!({ "task_id": "tsk_1" }),
        at: NOW,
    }
}

fn webhook(inbox: &WebhookInbox, secrets: &[&str]) -> DeliveryChannel {
    let secrets = secrets.iter().map(|text| WebhookSecret::parse_secret(text).unwrap()).collect();
    DeliveryChannel::Webhook { url: inbox.url().parse().unwrap(), secrets }
}

async fn send(
    channel: &DeliveryChannel,
    egress: DeliveryEgress,
) -> Result<DeliveryReceipt, DeliveryError> {
    NotificationSender::new(None).unwrap().send_notification(channel, &notice(), egress, NOW).await
}

#[tokio::test]
async fn a_webhook_is_signed_so_that_another_implementation_accepts_it() {
    let inbox = WebhookInbox::start().await;
    inbox.trust(SECRET);
    let sent = send(&webhook(&inbox, &[SECRET]), DeliveryEgress::Anywhere).await;
    assert_eq!(sent, Ok(DeliveryReceipt { answer: "204".into() }));
    let taken = inbox.messages();
    assert_eq!((taken[0].verified, taken[0].signatures, taken.len()), (1, 1, 1));
    assert_eq!(
        (taken[0].id.as_str(), taken[0].timestamp),
        (notice().id.as_str(), NOW.unix_timestamp())
    );
    assert_eq!(
        taken[0].body,
        json!({
            "type": "approval.requested",
            "timestamp": "2026-11-15T12:00:00Z",
            "data": {
                "notification_id": notice().id,
                "title": notice().title,
                "text": "Asked by an agent.",
                "exact": notice().exact,
                "links": [
                    { "label": "Look", "url": "https://cynode.example/answer/token" },
                    { "label": "Approve", "url": "https://cynode.example/answer/token", "post": "decision=approve" },
                ],
                "about": { "task_id": "tsk_1" },
            },
        }),
        "S004-147"
    );
}

#[tokio::test]
async fn while_a_secret_is_replaced_receivers_of_either_accept() {
    for (trusted, verified) in
        [(SECRET, 1), (OLD, 1), ("whsec_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB", 0)]
    {
        let inbox = WebhookInbox::start().await;
        inbox.trust(trusted);
        send(&webhook(&inbox, &[SECRET, OLD]), DeliveryEgress::Anywhere).await.unwrap();
        assert_eq!((inbox.messages()[0].verified, inbox.messages()[0].signatures), (verified, 2));
    }
}

#[tokio::test]
async fn what_a_receiver_answers_says_whether_it_is_tried_again() {
    let inbox = WebhookInbox::start().await;
    let failed = |again, after: Option<u64>, gone, why: &str| DeliveryError {
        again,
        after: after.map(Duration::from_secs),
        gone,
        why: why.to_owned(),
    };
    for (status, after, expected) in [
        (500, None, failed(true, None, false, "the answer was 500")),
        (503, Some(7), failed(true, Some(7), false, "the answer was 503")),
        (429, Some(1_000_000), failed(true, Some(3600), false, "the answer was 429")),
        (404, None, failed(true, None, false, "the answer was 404")),
        // Nobody is followed elsewhere.
        (302, None, failed(true, None, false, "the answer was 302")),
        (410, None, failed(false, None, true, "the answer was 410")),
    ] {
        inbox.answer(status, after);
        assert_eq!(
            send(&webhook(&inbox, &[SECRET]), DeliveryEgress::Anywhere).await,
            Err(expected)
        );
    }
    assert_eq!(inbox.messages().len(), 6);
}

#[tokio::test]
async fn nothing_reaches_this_machine_unless_it_is_said_so() {
    let inbox = WebhookInbox::start().await;
    let lasting =
        |why: &str| DeliveryError { again: false, after: None, gone: false, why: why.to_owned() };
    let to = |url: String| DeliveryChannel::Webhook {
        url: url.parse().unwrap(),
        secrets: vec![WebhookSecret::parse_secret(SECRET).unwrap()],
    };
    let sent = send(&to(inbox.url()), DeliveryEgress::Public).await;
    assert_eq!(sent, Err(lasting("the address is not a public one")));
    // A name that leads here is found out when it is looked up.
    let named = format!("https://localhost:{}/hook", inbox.address.port());
    let sent = send(&to(named), DeliveryEgress::Public).await;
    assert_eq!(
        sent.map_err(|failed| (failed.again, failed.why)),
        Err((true, "there was no connection".into()))
    );
    assert_eq!(inbox.messages(), []);
}

#[tokio::test]
async fn nobody_there_may_pass() {
    let url = {
        let gone = WebhookInbox::start().await;
        gone.url()
    };
    // The port is not listened to any more, or not yet closed; both may pass.
    let secrets = vec![WebhookSecret::parse_secret(SECRET).unwrap()];
    let _ = send(
        &DeliveryChannel::Webhook { url: url.parse().unwrap(), secrets: secrets.clone() },
        DeliveryEgress::Anywhere,
    )
    .await;
    let nobody = "http://127.0.0.1:9/".parse().unwrap();
    let failed = send(&DeliveryChannel::Webhook { url: nobody, secrets }, DeliveryEgress::Anywhere)
        .await
        .unwrap_err();
    assert_eq!((failed.again, failed.gone), (true, false));
}

#[tokio::test]
async fn a_topic_is_opened_by_its_token_and_closed_without() {
    let inbox = NtfyInbox::start(Some("tk_right")).await;
    let channel = |token: Option<&str>| DeliveryChannel::Ntfy {
        url: inbox.topic("mine").parse().unwrap(),
        token: token.map(|token| SecretString::from(token.to_owned())),
    };
    let failed = send(&channel(None), DeliveryEgress::Anywhere).await.unwrap_err();
    assert_eq!((failed.again, failed.why.starts_with("the answer was 403")), (false, true));
    send(&channel(Some("tk_right")), DeliveryEgress::Anywhere).await.unwrap();
    let taken = inbox.messages();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].authorization.as_deref(), Some("Bearer tk_right"));
    let exact = notice().exact.unwrap();
    assert_eq!(taken[0].body["topic"], "mine");
    assert_eq!(taken[0].body["message"], format!("Asked by an agent.\n\n{exact}"));
    assert_eq!(taken[0].body["title"], "May an agent do this? Größe Bcc: evil@example.com");
}

fn vapid() -> VapidKey {
    VapidKey::from_bytes(&[9; 32]).unwrap()
}

fn push(browser: &Browser, endpoint: &str) -> DeliveryChannel {
    DeliveryChannel::WebPush(Box::new(PushTarget {
        endpoint: endpoint.parse().unwrap(),
        keys: BrowserKeys::parse_keys(&browser.p256dh, &browser.auth).unwrap(),
        vapid: vapid(),
        subject: "https://cynode.example/".into(),
    }))
}

#[tokio::test]
async fn a_push_is_encrypted_and_signed_so_that_another_implementation_reads_it() {
    let service = PushService::start().await;
    let browsers = [service.subscribe(), service.subscribe()];
    for browser in &browsers {
        let sent = send(&push(browser, &browser.endpoint), DeliveryEgress::Anywhere).await;
        assert_eq!(sent, Ok(DeliveryReceipt { answer: "201".into() }));
    }
    let expected = |browser: u8| PushMessage {
        browser,
        ttl: "86400".into(),
        urgency: "high".into(),
        topic: "0192d5c8b6f07cc1a1a3c2b4d5e6f708".into(),
        claims: json!({
            "aud": format!("http://127.0.0.1:{}", service.port()),
            "exp": NOW.unix_timestamp() + 12 * 3600,
            "sub": "https://cynode.example/",
        }),
        sender: vapid().encode_public_key(),
        body: json!({
            "id": notice().id,
            "kind": "approval.requested",
            "title": "May an agent do this? Größe Bcc: evil@example.com",
            "text": "Asked by an agent.",
            "path": "/?item=apr_1",
            "asks": true,
        }),
    };
    assert_eq!(service.messages(), [expected(1), expected(2)]);
    // What was encrypted for one browser is nothing to another.
    let sent = send(&push(&browsers[0], &browsers[1].endpoint), DeliveryEgress::Anywhere).await;
    assert_eq!(sent.unwrap_err().why, "the answer was 400");
}

#[tokio::test]
async fn what_a_push_service_answers_says_whether_it_is_tried_again_or_over() {
    let service = PushService::start().await;
    let browser = service.subscribe();
    let channel = push(&browser, &browser.endpoint);
    for (status, after, again, gone) in [
        (429, Some(7), true, false),
        (500, None, true, false),
        (503, None, true, false),
        (302, None, true, false),
        (400, None, false, false),
        (403, None, false, false),
        (413, None, false, false),
        (404, None, false, true),
        (410, None, false, true),
    ] {
        service.answer(status, after);
        let after = after.map(Duration::from_secs);
        let why = format!("the answer was {status}");
        assert_eq!(
            send(&channel, DeliveryEgress::Anywhere).await,
            Err(DeliveryError { again, after, gone, why })
        );
    }
    service.unsubscribe(&browser);
    assert!(send(&channel, DeliveryEgress::Anywhere).await.unwrap_err().gone);
    assert_eq!(service.messages(), []);
}

#[tokio::test]
async fn no_push_reaches_this_machine_unless_it_is_said_so() {
    let service = PushService::start().await;
    let browser = service.subscribe();
    for (endpoint, why) in [
        (browser.endpoint.clone(), "the address is not a public one"),
        ("http://push.example.com/1".to_owned(), "a public address is https"),
        ("https://169.254.169.254/1".to_owned(), "the address is not a public one"),
    ] {
        let sent = send(&push(&browser, &endpoint), DeliveryEgress::Public).await;
        let failed = DeliveryError { again: false, after: None, gone: false, why: why.to_owned() };
        assert_eq!(sent, Err(failed), "{endpoint}");
    }
    // A name that leads here is found out when it is looked up.
    let named = format!("https://localhost:{}/push/1", service.port());
    let sent = send(&push(&browser, &named), DeliveryEgress::Public).await;
    assert_eq!(
        sent.map_err(|failed| (failed.again, failed.why)),
        Err((true, "there was no connection".into()))
    );
    assert_eq!(service.messages(), []);
}

fn server(inbox: &SmtpInbox, password: &str) -> MailServer {
    MailServer {
        server: inbox.url().parse().unwrap(),
        user: Some("cynode".into()),
        password: Some(SecretString::from(password.to_owned())),
        from: "CyNode <cynode@cynode.example>".into(),
    }
}

#[tokio::test]
async fn a_mail_has_the_exact_words_one_recipient_and_a_name_that_repeats() {
    let inbox = SmtpInbox::start(Some(("cynode", "hunter2"))).await;
    let courier = NotificationSender::new(Some(server(&inbox, "hunter2"))).unwrap();
    let channel = DeliveryChannel::Mail { to: "ada@example.com".into() };
    for _ in 0..2 {
        courier.send_notification(&channel, &notice(), DeliveryEgress::Public, NOW).await.unwrap();
    }
    let taken = inbox.messages();
    assert_eq!(taken[0].user.as_deref(), Some("cynode"));
    assert_eq!(
        (taken[0].from.as_str(), &taken[0].to[..]),
        ("cynode@cynode.example", &["ada@example.com".to_owned()][..])
    );
    let id = format!("<{}@cynode.example>", notice().id);
    assert!(taken.iter().all(|letter| letter.header("message-id").as_ref() == Some(&id)));
    assert_eq!(taken[0].header("bcc"), None);
    assert_eq!(
        taken[0].text().trim_end(),
        format!(
            "Asked by an agent.\n\n{}\n\nLook: https://cynode.example/answer/token\n\n-- \napproval.requested {}",
            notice().exact.unwrap(),
            notice().id,
        )
    );
}

#[tokio::test]
async fn a_mailbox_that_does_not_exist_is_not_tried_again_and_our_own_mistake_is() {
    let inbox = SmtpInbox::start(Some(("cynode", "hunter2"))).await;
    let channel = DeliveryChannel::Mail { to: "ada@example.com".into() };
    let courier = NotificationSender::new(Some(server(&inbox, "hunter2"))).unwrap();
    for (line, again) in [("550 5.1.1 no such mailbox", false), ("451 4.3.0 try later", true)] {
        inbox.refuse(line);
        let failed = courier
            .send_notification(&channel, &notice(), DeliveryEgress::Public, NOW)
            .await
            .unwrap_err();
        assert_eq!(failed.again, again, "{failed:?}");
    }
    let wrong = NotificationSender::new(Some(server(&inbox, "wrong"))).unwrap();
    let failed = wrong
        .send_notification(&channel, &notice(), DeliveryEgress::Public, NOW)
        .await
        .unwrap_err();
    assert!(failed.again && !failed.why.contains("wrong"), "{failed:?}");
    let none = NotificationSender::new(None).unwrap();
    assert!(
        none.send_notification(&channel, &notice(), DeliveryEgress::Public, NOW)
            .await
            .unwrap_err()
            .again
    );
    assert_eq!(inbox.messages(), []);
}
