//! Gitea and Forgejo, REST v1: the fields that clients read, with its statuses, errors and pages.

use axum::{http::Method, response::Response};
use serde_json::{Value, json};

use super::{
    BOT, Call, Comment, ForgeState, Hook, Issue, Level, Pull, REPOSITORY, Source, Verdict,
    github::is_pull, json_response, matching_issues, open_pull, stamp, store_comment,
};

fn missing() -> Response {
    json_response(404, &json!({ "errors": null, "message": "not found", "url": "/api/swagger" }))
}

fn user(login: &str) -> Value {
    json!({ "id": login.len(), "login": login, "username": login, "full_name": "" })
}

fn pull(shared: &ForgeState, pull: &Pull) -> Value {
    let (source, id) = match &pull.source {
        Source::Here => (json!({ "id": 1, "full_name": REPOSITORY, "fork": false }), 1),
        Source::Fork(owner) => {
            (json!({ "id": 2, "full_name": format!("{owner}/web-too"), "fork": true }), 2)
        }
        Source::Gone => (Value::Null, -1),
    };
    // A merge deletes the branch, as is common.
    let reference = match &pull.merged {
        Some(_) => format!("refs/pull/{}/head", pull.number),
        None => pull.branch.clone(),
    };
    json!({
        "id": 1000 + pull.number,
        "number": pull.number,
        "title": pull.title,
        "body": pull.body,
        "user": user(&pull.author),
        "state": if pull.open { "open" } else { "closed" },
        "merged": pull.merged.is_some(),
        "merge_commit_sha": pull.merged,
        "html_url": format!("{}/{REPOSITORY}/pulls/{}", shared.base, pull.number),
        "head": { "label": pull.branch, "ref": reference, "sha": shared.head(pull), "repo_id": id, "repo": source },
        "base": {
            "label": pull.base, "ref": pull.base, "sha": shared.tip(&pull.base).unwrap_or_default(), "repo_id": 1,
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
    let assignees: Vec<Value> = issue.assignees.iter().map(|login| user(login)).collect();
    json!({
        "id": 2000 + issue.number,
        "number": issue.number,
        "title": issue.title,
        "body": issue.body,
        "user": user(&issue.author),
        "labels": labels,
        "assignees": if assignees.is_empty() { Value::Null } else { json!(assignees) },
        "state": if issue.open { "open" } else { "closed" },
        "updated_at": stamp(issue.updated_at),
        "html_url": format!("{}/{REPOSITORY}/issues/{}", shared.base, issue.number),
        "pull_request": null,
    })
}

fn comment(said: &Comment) -> Value {
    let mut comment = json!({
        "id": said.id,
        "user": user(&said.author),
        "body": said.body,
        "created_at": stamp(said.at),
        "updated_at": stamp(said.at),
    });
    if let Some((path, line)) = &said.place {
        comment["path"] = json!(path);
        comment["position"] = json!(line);
        comment["original_position"] = json!(0);
        comment["pull_request_review_id"] = json!(said.id);
    }
    comment
}

fn review(said: &Comment) -> Value {
    let state = match said.verdict {
        Some(Verdict::Approve) => "APPROVED",
        Some(Verdict::Changes) => "REQUEST_CHANGES",
        None => "COMMENT",
    };
    let inline = said.place.is_some();
    json!({
        "id": said.id, "user": user(&said.author), "body": if inline { "" } else { &said.body }, "state": state,
        "stale": false, "official": true, "dismissed": false, "comments_count": u64::from(inline), "submitted_at": stamp(said.at),
    })
}

fn listed(call: &Call<'_>, all: Vec<Value>) -> Response {
    call.linked(all, "limit", 30)
}

#[expect(clippy::too_many_lines, reason = "one arm for each path of the API, in one place")]
pub(super) fn answer(call: &Call<'_>, known: bool) -> Response {
    if !known {
        return json_response(
            401,
            &json!({ "message": "invalid username, password or token", "url": "/api/swagger" }),
        );
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
            let world = shared.world();
            if *login != BOT && world.level(BOT) != Some(Level::Admin) {
                let said = "Only admins can query all permissions, repo admins can query all repo permissions, collaborators can query only their own";
                return json_response(403, &json!({ "message": said, "url": "/api/swagger" }));
            }
            let permission = match world.level(login) {
                Some(Level::Admin) => "admin",
                Some(Level::Write) => "write",
                Some(Level::Read) => "read",
                None => return missing(),
            };
            json_response(
                200,
                &json!({ "permission": permission, "role_name": permission, "user": user(login) }),
            )
        }
        (&Method::GET, ["pulls"]) => {
            let mut pulls = shared.world().pulls.clone();
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
                Err(Some(found)) => {
                    let said = format!(
                        "pull request already exists for these targets [id: {found}, issue_id: {found}]"
                    );
                    json_response(409, &json!({ "message": said, "url": "/api/swagger" }))
                }
                Err(None) => missing(),
            }
        }
        (&Method::GET, ["pulls", at]) => {
            let found = shared.world().pulls.iter().find(|pull| pull.number == number(at)).cloned();
            found.map_or_else(missing, |found| json_response(200, &pull(shared, &found)))
        }
        (&Method::GET, ["pulls", at, "reviews"]) => {
            let all = shared.world().comments.clone();
            let judged = |said: &&Comment| said.verdict.is_some() || said.place.is_some();
            let of =
                all.iter().filter(|said| said.on_pull && said.number == number(at)).filter(judged);
            listed(call, of.map(review).collect())
        }
        (&Method::GET, ["pulls", at, "reviews", id, "comments"]) => {
            let all = shared.world().comments.clone();
            let of = all.iter().filter(|said| {
                said.number == number(at) && said.id == number(id) && said.place.is_some()
            });
            json_response(200, &Value::Array(of.map(comment).collect()))
        }
        (&Method::GET, ["issues", at, "comments"]) => {
            let (all, since) = (shared.world().comments.clone(), call.since("since"));
            let plain = |said: &&Comment| {
                said.place.is_none() && said.verdict.is_none() && said.at >= since
            };
            let of = all.iter().filter(|said| said.number == number(at)).filter(plain);
            // This list has no pages.
            json_response(200, &Value::Array(of.map(comment).collect()))
        }
        (&Method::POST, ["issues", at, "comments"]) => json_response(
            201,
            &comment(&store_comment(call, is_pull(shared, number(at)), number(at))),
        ),
        (&Method::GET, ["issues"]) => {
            let found = matching_issues(call, "labels", "assigned_by", "since");
            listed(call, found.iter().map(|one| issue(shared, one)).collect())
        }
        (&Method::GET, ["issues", at]) => {
            let found =
                shared.world().issues.iter().find(|issue| issue.number == number(at)).cloned();
            found.map_or_else(missing, |found| json_response(200, &issue(shared, &found)))
        }
        (&Method::GET, ["commits", sha, "status"]) => {
            let checks = shared.world().checks.clone();
            let (page, size) = call.window("limit", 30);
            let of = checks.iter().filter(|check| check.commit == *sha);
            let statuses: Vec<Value> = of
                .map(|check| json!({ "id": 1, "context": check.name, "status": check.state, "target_url": "", "description": check.summary }))
                .collect();
            let total = statuses.len();
            let statuses: Vec<Value> =
                statuses.into_iter().skip((page - 1) * size).take(size).collect();
            let statuses = if statuses.is_empty() { Value::Null } else { json!(statuses) };
            json_response(
                200,
                &json!({ "state": "pending", "sha": sha, "total_count": total, "statuses": statuses }),
            )
        }
        _ => missing(),
    }
}

pub(super) fn hook(hook: &Hook) -> (&'static str, Value) {
    let (event, mut body) = match hook {
        Hook::Labelled(number) => (
            "issues",
            json!({ "action": "label_updated", "number": number, "issue": { "number": number } }),
        ),
        Hook::Remark(number) => (
            "issue_comment",
            json!({ "action": "created", "is_pull": true, "issue": { "number": number } }),
        ),
        Hook::Review(number) => (
            "pull_request_rejected",
            json!({ "action": "reviewed", "number": number, "pull_request": { "number": number } }),
        ),
        Hook::Merged(number) => (
            "pull_request",
            json!({ "action": "closed", "number": number, "pull_request": { "number": number, "merged": true } }),
        ),
        Hook::Checks(commit) => {
            ("status", json!({ "sha": commit, "state": "failure", "context": "ci" }))
        }
        Hook::Push => ("push", json!({ "ref": "refs/heads/main" })),
    };
    body["repository"] = json!({ "full_name": REPOSITORY });
    (event, body)
}
