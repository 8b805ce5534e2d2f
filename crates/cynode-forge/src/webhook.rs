//! Webhook deliveries of a forge.
//!
//! The signature is verified first: no part of an unverified body is read. The event is only a hint with a kind and a number; the
//! current state is requested from the forge. A repeated or late delivery is therefore harmless.

use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::HeaderMap;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::ForgeKind;

/// Headers of a delivery.
pub type WebhookHeaders = HeaderMap;

/// Minimum length of a webhook secret.
pub const MIN_SECRET_BYTES: usize = 16;

/// A verified delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookDelivery {
    /// Delivery id of the forge. It is not covered by the signature.
    pub id: String,
    /// Digest of the body. It identifies a repeated delivery, independent of its id.
    pub digest: [u8; 32],
    /// Repository that the delivery names.
    pub repository: Option<String>,
    /// Event of the delivery.
    pub event: WebhookEvent,
}

/// Event on a forge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WebhookEvent {
    /// An issue was opened, labelled or assigned.
    Issue {
        /// Number of the issue.
        number: u64,
    },
    /// A comment was added to a pull request.
    Remark {
        /// Number of the pull request.
        number: u64,
    },
    /// A review was submitted on a pull request.
    Review {
        /// Number of the pull request.
        number: u64,
    },
    /// A pull request was merged or closed.
    Ended {
        /// Number of the pull request.
        number: u64,
    },
    /// Checks on a commit have completed.
    Checks {
        /// Id of the commit.
        commit: String,
    },
    /// Any other event.
    Ignored,
}

/// Reason for rejecting a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// The signature is missing.
    #[error("the delivery is not signed: set the webhook's secret on the forge")]
    Unsigned,
    /// The signature is invalid.
    #[error("the delivery's signature is not good: is the secret the same on both sides?")]
    Forged,
    /// There is no secret to verify it with.
    #[error("the project's remote has no webhook secret")]
    NoSecret,
    /// The body is signed and is not JSON.
    #[error("the delivery is not JSON: choose `application/json` as its content type on the forge")]
    NotJson,
}

/// Verifies and parses a delivery.
pub fn verify_delivery(
    kind: ForgeKind,
    headers: &HeaderMap,
    body: &[u8],
    secret: &SecretString,
) -> Result<WebhookDelivery, WebhookError> {
    let secret = secret.expose_secret().as_bytes();
    if secret.len() < MIN_SECRET_BYTES {
        return Err(WebhookError::NoSecret);
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let good = match kind {
        ForgeKind::Github => {
            let signature = header("x-hub-signature-256").ok_or(WebhookError::Unsigned)?;
            is_signature_valid(
                secret,
                body,
                signature.strip_prefix("sha256=").ok_or(WebhookError::Forged)?,
            )
        }
        ForgeKind::Gitea => {
            let signature = header("x-gitea-signature").or_else(|| header("x-forgejo-signature"));
            is_signature_valid(secret, body, signature.ok_or(WebhookError::Unsigned)?)
        }
        ForgeKind::Gitlab => {
            let token = header("x-gitlab-token").ok_or(WebhookError::Unsigned)?;
            is_secret_equal(secret, token.as_bytes())
        }
    };
    if !good {
        return Err(WebhookError::Forged);
    }
    let value: Value = serde_json::from_slice(body).map_err(|_| WebhookError::NotJson)?;
    let digest: [u8; 32] = Sha256::digest(body).into();
    let (names, repository): (&[&str], &Value) = match kind {
        ForgeKind::Github => (&["x-github-delivery"], &value["repository"]["full_name"]),
        ForgeKind::Gitlab => {
            (&["idempotency-key", "x-gitlab-event-uuid"], &value["project"]["path_with_namespace"])
        }
        ForgeKind::Gitea => {
            (&["x-gitea-delivery", "x-forgejo-delivery"], &value["repository"]["full_name"])
        }
    };
    let id = names.iter().find_map(|name| header(name)).map(|id| id.chars().take(100).collect());
    let event = match kind {
        ForgeKind::Github => {
            parse_github_event(header("x-github-event").unwrap_or_default(), &value)
        }
        ForgeKind::Gitlab => {
            parse_gitlab_event(header("x-gitlab-event").unwrap_or_default(), &value)
        }
        ForgeKind::Gitea => {
            let event = header("x-gitea-event").or_else(|| header("x-forgejo-event"));
            parse_gitea_event(event.unwrap_or_default(), &value)
        }
    };
    Ok(WebhookDelivery {
        id: id.unwrap_or_else(|| data_encoding::HEXLOWER.encode(&digest)),
        digest,
        repository: repository.as_str().map(Into::into),
        event: event.unwrap_or(WebhookEvent::Ignored),
    })
}

/// Returns whether the hexadecimal signature matches the body, in constant time.
fn is_signature_valid(secret: &[u8], body: &[u8], signature: &str) -> bool {
    let Ok(signature) = data_encoding::HEXLOWER.decode(signature.as_bytes()) else { return false };
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else { return false };
    mac.update(body);
    mac.verify_slice(&signature).is_ok()
}

/// Compares two secrets in constant time.
fn is_secret_equal(own: &[u8], told: &[u8]) -> bool {
    let (own, told) = (Sha256::digest(own), Sha256::digest(told));
    own.iter().zip(told.iter()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Returns the value if it is a commit id.
fn parse_commit_id(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (matches!(text.len(), 40 | 64) && digits).then(|| text.to_owned())
}

fn parse_github_event(event: &str, body: &Value) -> Option<WebhookEvent> {
    let action = body["action"].as_str().unwrap_or_default();
    let issue = &body["issue"];
    Some(match (event, action) {
        ("issues", "opened" | "labeled" | "assigned" | "reopened") => {
            WebhookEvent::Issue { number: issue["number"].as_u64()? }
        }
        ("issue_comment", "created") if issue["pull_request"].is_object() => {
            WebhookEvent::Remark { number: issue["number"].as_u64()? }
        }
        ("pull_request_review_comment", "created") => {
            WebhookEvent::Remark { number: body["pull_request"]["number"].as_u64()? }
        }
        ("pull_request_review", "submitted") => {
            WebhookEvent::Review { number: body["pull_request"]["number"].as_u64()? }
        }
        ("pull_request", "closed") => {
            WebhookEvent::Ended { number: body["pull_request"]["number"].as_u64()? }
        }
        ("check_run", "completed") => {
            WebhookEvent::Checks { commit: parse_commit_id(&body["check_run"]["head_sha"])? }
        }
        ("check_suite", "completed") => {
            WebhookEvent::Checks { commit: parse_commit_id(&body["check_suite"]["head_sha"])? }
        }
        ("status", _) if body["state"] != "pending" => {
            WebhookEvent::Checks { commit: parse_commit_id(&body["sha"])? }
        }
        _ => return None,
    })
}

fn parse_gitlab_event(event: &str, body: &Value) -> Option<WebhookEvent> {
    let what = &body["object_attributes"];
    let action = what["action"].as_str().unwrap_or_default();
    Some(match (event, action) {
        ("Issue Hook", "open" | "update" | "reopen") => {
            WebhookEvent::Issue { number: what["iid"].as_u64()? }
        }
        ("Note Hook", _) if what["noteable_type"] == "MergeRequest" => {
            WebhookEvent::Remark { number: body["merge_request"]["iid"].as_u64()? }
        }
        ("Merge Request Hook", "approved" | "approval" | "unapproved" | "unapproval") => {
            WebhookEvent::Review { number: what["iid"].as_u64()? }
        }
        ("Merge Request Hook", "merge" | "close") => {
            WebhookEvent::Ended { number: what["iid"].as_u64()? }
        }
        ("Pipeline Hook", _) => match what["status"].as_str()? {
            "success" | "failed" | "canceled" | "skipped" => {
                WebhookEvent::Checks { commit: parse_commit_id(&what["sha"])? }
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn parse_gitea_event(event: &str, body: &Value) -> Option<WebhookEvent> {
    let action = body["action"].as_str().unwrap_or_default();
    let number = || {
        let of = [&body["issue"]["number"], &body["pull_request"]["number"], &body["number"]];
        of.into_iter().find_map(Value::as_u64)
    };
    let is_pull = body["is_pull"] == true || body["issue"]["pull_request"].is_object();
    Some(match (event, action) {
        (
            "issues" | "issue_label" | "issue_assign",
            "opened" | "label_updated" | "assigned" | "reopened",
        ) => WebhookEvent::Issue { number: number()? },
        ("issue_comment", "created") if is_pull => WebhookEvent::Remark { number: number()? },
        ("pull_request_comment", "created" | "reviewed") => {
            WebhookEvent::Remark { number: number()? }
        }
        ("pull_request_approved" | "pull_request_rejected", _) => {
            WebhookEvent::Review { number: number()? }
        }
        ("pull_request", "closed") => WebhookEvent::Ended { number: number()? },
        ("status", _) if body["state"] != "pending" => {
            WebhookEvent::Checks { commit: parse_commit_id(&body["sha"])? }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SECRET: &str = "a secret of some length";

    fn sign(body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(body);
        data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes())
    }

    fn headers(kind: ForgeKind, event: &str, body: &[u8]) -> HeaderMap {
        let pairs = match kind {
            ForgeKind::Github => [
                ("x-github-event", event.to_owned()),
                ("x-github-delivery", "d-1".to_owned()),
                ("x-hub-signature-256", format!("sha256={}", sign(body))),
            ],
            ForgeKind::Gitlab => [
                ("x-gitlab-event", event.to_owned()),
                ("x-gitlab-event-uuid", "d-1".to_owned()),
                ("x-gitlab-token", SECRET.to_owned()),
            ],
            ForgeKind::Gitea => [
                ("x-gitea-event", event.to_owned()),
                ("x-gitea-delivery", "d-1".to_owned()),
                ("x-gitea-signature", sign(body)),
            ],
        };
        pairs
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn event(kind: ForgeKind, event: &str, body: &Value) -> WebhookEvent {
        let body = body.to_string().into_bytes();
        let delivery =
            verify_delivery(kind, &headers(kind, event, &body), &body, &SECRET.into()).unwrap();
        assert_eq!(delivery.id, "d-1");
        delivery.event
    }

    #[test]
    fn each_forge_says_the_same_things_in_its_own_words() {
        use ForgeKind::{Gitea, Github, Gitlab};
        let sha = "a1".repeat(20);
        let issue = WebhookEvent::Issue { number: 7 };
        let body = json!({ "action": "labeled", "issue": { "number": 7 } });
        assert_eq!(event(Github, "issues", &body), issue);
        let body = json!({ "object_attributes": { "iid": 7, "action": "update" } });
        assert_eq!(event(Gitlab, "Issue Hook", &body), issue);
        let body = json!({ "action": "label_updated", "number": 7, "issue": { "number": 7 } });
        assert_eq!(event(Gitea, "issues", &body), issue);

        let remark = WebhookEvent::Remark { number: 3 };
        let body = json!({ "action": "created", "issue": { "number": 3, "pull_request": {} } });
        assert_eq!(event(Github, "issue_comment", &body), remark);
        let body = json!({ "object_attributes": { "noteable_type": "MergeRequest" }, "merge_request": { "iid": 3 } });
        assert_eq!(event(Gitlab, "Note Hook", &body), remark);
        let body = json!({ "action": "created", "is_pull": true, "issue": { "number": 3 } });
        assert_eq!(event(Gitea, "issue_comment", &body), remark);

        let review = WebhookEvent::Review { number: 3 };
        let body = json!({ "action": "submitted", "pull_request": { "number": 3 } });
        assert_eq!(event(Github, "pull_request_review", &body), review);
        let body = json!({ "object_attributes": { "iid": 3, "action": "approved" } });
        assert_eq!(event(Gitlab, "Merge Request Hook", &body), review);
        let body = json!({ "action": "reviewed", "pull_request": { "number": 3 } });
        assert_eq!(event(Gitea, "pull_request_rejected", &body), review);

        let ended = WebhookEvent::Ended { number: 3 };
        let body = json!({ "action": "closed", "pull_request": { "number": 3 } });
        assert_eq!(event(Github, "pull_request", &body), ended);
        assert_eq!(event(Gitea, "pull_request", &body), ended);
        let body = json!({ "object_attributes": { "iid": 3, "action": "merge" } });
        assert_eq!(event(Gitlab, "Merge Request Hook", &body), ended);

        let checks = WebhookEvent::Checks { commit: sha.clone() };
        let body = json!({ "action": "completed", "check_suite": { "head_sha": sha } });
        assert_eq!(event(Github, "check_suite", &body), checks);
        let body = json!({ "object_attributes": { "sha": sha, "status": "failed" } });
        assert_eq!(event(Gitlab, "Pipeline Hook", &body), checks);
        let body = json!({ "sha": sha, "state": "failure" });
        assert_eq!(event(Gitea, "status", &body), checks);
        assert_eq!(event(Github, "status", &body), checks);
    }

    #[test]
    fn everything_else_is_ignored() {
        for kind in ForgeKind::ALL {
            for name in ["ping", "push", "Push Hook", "issues", "issue_comment", "status", ""] {
                assert_eq!(
                    event(kind, name, &json!({ "zen": 1, "state": "success" })),
                    WebhookEvent::Ignored
                );
                assert_eq!(event(kind, name, &json!([1])), WebhookEvent::Ignored);
            }
        }
        let body = json!({ "action": "created", "issue": { "number": 3 } });
        assert_eq!(event(ForgeKind::Github, "issue_comment", &body), WebhookEvent::Ignored);
        let body = json!({ "sha": "--upload-pack", "state": "failure" });
        assert_eq!(event(ForgeKind::Github, "status", &body), WebhookEvent::Ignored);
    }

    #[test]
    fn a_delivery_with_any_one_bit_changed_is_refused() {
        let body =
            json!({ "action": "labeled", "issue": { "number": 7 } }).to_string().into_bytes();
        for kind in [ForgeKind::Github, ForgeKind::Gitea] {
            let good = headers(kind, "issues", &body);
            assert!(verify_delivery(kind, &good, &body, &SECRET.into()).is_ok());
            for at in 0..body.len() * 8 {
                let mut other = body.clone();
                other[at / 8] ^= 1 << (at % 8);
                assert_eq!(
                    verify_delivery(kind, &good, &other, &SECRET.into()),
                    Err(WebhookError::Forged)
                );
            }
        }
    }

    #[test]
    fn a_signature_with_any_one_character_changed_is_refused() {
        let body = b"{}";
        for (kind, name) in [
            (ForgeKind::Github, "x-hub-signature-256"),
            (ForgeKind::Gitea, "x-gitea-signature"),
            (ForgeKind::Gitlab, "x-gitlab-token"),
        ] {
            let good = headers(kind, "x", body);
            let value = good[name].as_bytes().to_vec();
            for at in 0..value.len() {
                let mut other = value.clone();
                other[at] = if other[at] == b'0' { b'1' } else { b'0' };
                let mut forged = good.clone();
                forged.insert(name, other.as_slice().try_into().unwrap());
                assert_eq!(
                    verify_delivery(kind, &forged, body, &SECRET.into()),
                    Err(WebhookError::Forged),
                    "{kind} {at}"
                );
                let mut cut = good.clone();
                cut.insert(name, value[..at].try_into().unwrap());
                assert_eq!(
                    verify_delivery(kind, &cut, body, &SECRET.into()),
                    Err(WebhookError::Forged),
                    "{kind} {at}"
                );
            }
            let mut unsigned = good.clone();
            unsigned.remove(name);
            assert_eq!(
                verify_delivery(kind, &unsigned, body, &SECRET.into()),
                Err(WebhookError::Unsigned)
            );
            assert_eq!(verify_delivery(kind, &good, body, &"".into()), Err(WebhookError::NoSecret));
            assert_eq!(
                verify_delivery(kind, &good, body, &"another secret of length".into()),
                Err(WebhookError::Forged)
            );
        }
    }

    #[test]
    fn what_is_signed_and_no_json_is_said_to_be_so() {
        let body = b"payload=%7B%7D";
        let sent = headers(ForgeKind::Github, "issues", body);
        assert_eq!(
            verify_delivery(ForgeKind::Github, &sent, body, &SECRET.into()),
            Err(WebhookError::NotJson)
        );
    }
}
