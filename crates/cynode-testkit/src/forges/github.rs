//! GitHub, REST of 2022-11-28: the fields that clients read, with its statuses, errors and pages.

use axum::{http::Method, response::Response};
use serde_json::{Value, json};

use super::{
    BOT, Call, Comment, ForgeState, Hook, Issue, Level, Pull, REPOSITORY, Source, Verdict,
    json_response, matching_issues, open_pull, stamp, store_comment,
};

const DOCS: &str = "https://docs.github.com/rest";

fn missing() -> Response {
    json_response(
        404,
        &json!({ "message": "Not Found", "documentation_url": DOCS, "status": "404" }),
    )
}

fn user(login: &str) -> Value {
    json!({ "login": login, "id": login.len(), "type": "User", "site_admin": false })
}

/// Returns owner and branch in the format of the list filter.
fn label(pull: &Pull) -> String {
    let owner = match &pull.source {
        Source::Here => "acme",
        Source::Fork(owner) => owner.as_str(),
        Source::Gone => "unknown",
    };
    format!("{owner}:{}", pull.branch)
}

fn pull(shared: &ForgeState, pull: &Pull) -> Value {
    let number = pull.number;
    let source = match &pull.source {
        Source::Here => json!({ "id": 1, "full_name": REPOSITORY, "fork": false }),
        Source::Fork(owner) => {
            json!({ "id": 2, "full_name": format!("{owner}/web-too"), "fork": true })
        }
        Source::Gone => Value::Null,
    };
    json!({
        "id": 1000 + number,
        "number": number,
        "state": if pull.open { "open" } else { "closed" },
        "locked": false,
        "title": pull.title,
        "body": pull.body,
        "user": user(&pull.author),
        "html_url": format!("{}/{REPOSITORY}/pull/{number}", shared.base),
        "draft": false,
        "merged_at": pull.merged.as_ref().map(|_| "2026-11-01T12:00:00Z"),
        // Before the merge, this is the commit of a test merge.
        "merge_commit_sha": pull.merged.clone().unwrap_or_else(|| "f".repeat(40)),
        "head": { "label": label(pull), "ref": pull.branch, "sha": shared.head(pull), "repo": source },
        "base": {
            "label": format!("acme:{}", pull.base), "ref": pull.base, "sha": shared.tip(&pull.base),
            "repo": { "id": 1, "full_name": REPOSITORY, "fork": false },
        },
    })
}

fn issue(shared: &ForgeState, issue: &Issue) -> Value {
    let labels: Vec<Value> = issue
        .labels
        .iter()
        .map(|name| json!({ "id": 1, "name": name, "color": "ededed" }))
        .collect();
    json!({
        "id": 2000 + issue.number,
        "number": issue.number,
        "state": if issue.open { "open" } else { "closed" },
        "title": issue.title,
        "body": if issue.body.is_empty() { Value::Null } else { json!(issue.body) },
        "user": user(&issue.author),
        "labels": labels,
        "assignees": issue.assignees.iter().map(|login| user(login)).collect::<Vec<_>>(),
        "html_url": format!("{}/{REPOSITORY}/issues/{}", shared.base, issue.number),
        "created_at": stamp(issue.updated_at),
        "updated_at": stamp(issue.updated_at),
        "author_association": "NONE",
    })
}

fn comment(said: &Comment) -> Value {
    let mut comment = json!({
        "id": said.id,
        "user": user(&said.author),
        "body": said.body,
        "created_at": stamp(said.at),
        "updated_at": stamp(said.at),
        "author_association": "MEMBER",
    });
    if let Some((path, line)) = &said.place {
        comment["path"] = json!(path);
        comment["line"] = json!(line);
        comment["original_line"] = json!(line);
        comment["side"] = json!("RIGHT");
    }
    comment
}

fn review(said: &Comment) -> Value {
    let state = match said.verdict {
        Some(Verdict::Approve) => "APPROVED",
        Some(Verdict::Changes) => "CHANGES_REQUESTED",
        None => "COMMENTED",
    };
    json!({ "id": said.id, "user": user(&said.author), "body": said.body, "state": state, "submitted_at": stamp(said.at) })
}

fn listed(call: &Call<'_>, all: Vec<Value>) -> Response {
    call.linked(all, "per_page", 30)
}

#[expect(clippy::too_many_lines, reason = "one arm for each path of the API, in one place")]
pub(super) fn answer(call: &Call<'_>, known: bool) -> Response {
    if !known {
        let body =
            json!({ "message": "Bad credentials", "documentation_url": DOCS, "status": "401" });
        return json_response(401, &body);
    }
    let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
    let shared = call.shared;
    if path == ["user"] {
        return json_response(200, &user(BOT));
    }
    let ["repos", "acme", "web", rest @ ..] = path.as_slice() else { return missing() };
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    match (&call.method, rest) {
        (&Method::GET, ["collaborators", login, "permission"]) => {
            let level = shared.world().level(login);
            let (permission, role) = match level {
                Some(Level::Admin) => ("admin", "admin"),
                Some(Level::Write) => ("write", "write"),
                Some(Level::Read) => ("read", "triage"),
                None => return missing(),
            };
            json_response(
                200,
                &json!({ "permission": permission, "role_name": role, "user": user(login) }),
            )
        }
        (&Method::GET, ["pulls"]) => {
            let mut pulls = shared.world().pulls.clone();
            if let Some(head) = call.query_value("head") {
                pulls.retain(|pull| label(pull) == head);
            }
            match call.query_value("state").unwrap_or("open") {
                "open" => pulls.retain(|pull| pull.open),
                "closed" => pulls.retain(|pull| !pull.open),
                _ => {}
            }
            pulls.reverse();
            listed(call, pulls.iter().map(|one| pull(shared, one)).collect())
        }
        (&Method::POST, ["pulls"]) => {
            match open_pull(call, call.text("head"), call.text("base"), call.text("body")) {
                Ok(made) => json_response(201, &pull(shared, &made)),
                Err(found) => {
                    let error = match found {
                        Some(_) => json!({
                            "resource": "PullRequest",
                            "code": "custom",
                            "message": format!("A pull request already exists for acme:{}.", call.text("head")),
                        }),
                        None => {
                            json!({ "resource": "PullRequest", "field": "head", "code": "invalid" })
                        }
                    };
                    let body = json!({ "message": "Validation Failed", "errors": [error], "documentation_url": DOCS, "status": "422" });
                    json_response(422, &body)
                }
            }
        }
        (&Method::GET, ["pulls", at]) => {
            let found = shared.world().pulls.iter().find(|pull| pull.number == number(at)).cloned();
            found.map_or_else(missing, |found| json_response(200, &pull(shared, &found)))
        }
        (&Method::GET, ["pulls", at, "reviews"]) => {
            let all = shared.world().comments.clone();
            let of = all
                .iter()
                .filter(|said| said.on_pull && said.number == number(at) && said.verdict.is_some());
            listed(call, of.map(review).collect())
        }
        (&Method::GET, ["pulls", at, "comments"]) => {
            let (all, since) = (shared.world().comments.clone(), call.since("since"));
            let of = all.iter().filter(|said| {
                said.number == number(at) && said.place.is_some() && said.at >= since
            });
            listed(call, of.map(comment).collect())
        }
        (&Method::GET, ["issues", at, "comments"]) => {
            let (all, since) = (shared.world().comments.clone(), call.since("since"));
            let plain = |said: &&Comment| {
                said.place.is_none() && said.verdict.is_none() && said.at >= since
            };
            let of = all.iter().filter(|said| said.number == number(at)).filter(plain);
            listed(call, of.map(comment).collect())
        }
        (&Method::POST, ["issues", at, "comments"]) => json_response(
            201,
            &comment(&store_comment(call, is_pull(shared, number(at)), number(at))),
        ),
        (&Method::GET, ["issues"]) => {
            let found = matching_issues(call, "labels", "assignee", "since");
            let mut all: Vec<Value> = found.iter().map(|one| issue(shared, one)).collect();
            // Pull requests are issues here.
            if call.query_value("assignee").is_none() {
                for one in shared.world().pulls.iter().filter(|pull| pull.open) {
                    all.push(json!({
                        "number": one.number, "state": "open", "title": one.title, "body": one.body, "user": user(&one.author),
                        "labels": [], "assignees": [], "html_url": "", "updated_at": "2026-11-01T12:00:00Z", "pull_request": {},
                    }));
                }
            }
            listed(call, all)
        }
        (&Method::GET, ["issues", at]) => {
            let found =
                shared.world().issues.iter().find(|issue| issue.number == number(at)).cloned();
            found.map_or_else(missing, |found| json_response(200, &issue(shared, &found)))
        }
        (&Method::GET, ["commits", sha, "check-runs"]) => {
            let checks = shared.world().checks.clone();
            let runs: Vec<Value> = checks
                .iter()
                .filter(|check| check.commit == *sha && check.run)
                .map(|check| {
                    let (status, conclusion) = match check.state {
                        "pending" => ("in_progress", None),
                        state => ("completed", Some(state)),
                    };
                    json!({
                        "id": 1, "name": check.name, "head_sha": sha, "status": status, "conclusion": conclusion,
                        "html_url": format!("{}/{REPOSITORY}/runs/{}", shared.base, check.name),
                        "output": { "title": check.summary, "summary": null },
                    })
                })
                .collect();
            json_response(200, &json!({ "total_count": runs.len(), "check_runs": runs }))
        }
        (&Method::GET, ["commits", sha, "status"]) => {
            let checks = shared.world().checks.clone();
            let statuses: Vec<Value> = checks
                .iter()
                .filter(|check| check.commit == *sha && !check.run)
                .map(|check| json!({ "context": check.name, "state": check.state, "target_url": null, "description": check.summary }))
                .collect();
            json_response(
                200,
                &json!({ "state": "pending", "sha": sha, "total_count": statuses.len(), "statuses": statuses }),
            )
        }
        _ => missing(),
    }
}

pub(super) fn is_pull(shared: &ForgeState, number: u64) -> bool {
    shared.world().pulls.iter().any(|pull| pull.number == number)
}

pub(super) fn hook(hook: &Hook) -> (&'static str, Value) {
    let (event, mut body) = match hook {
        Hook::Labelled(number) => {
            ("issues", json!({ "action": "labeled", "issue": { "number": number } }))
        }
        Hook::Remark(number) => (
            "issue_comment",
            json!({ "action": "created", "issue": { "number": number, "pull_request": {} } }),
        ),
        Hook::Review(number) => (
            "pull_request_review",
            json!({ "action": "submitted", "pull_request": { "number": number } }),
        ),
        Hook::Merged(number) => (
            "pull_request",
            json!({ "action": "closed", "pull_request": { "number": number, "merged": true } }),
        ),
        Hook::Checks(commit) => (
            "check_suite",
            json!({ "action": "completed", "check_suite": { "head_sha": commit, "conclusion": "failure" } }),
        ),
        Hook::Push => ("push", json!({ "ref": "refs/heads/main" })),
    };
    body["repository"] = json!({ "full_name": REPOSITORY });
    (event, body)
}
