//! GitLab, REST v4: the fields that clients read, with its statuses, errors and pages.

use axum::{http::Method, response::Response};
use serde_json::{Value, json};

use super::{
    BOT, Call, Comment, ForgeState, Hook, Issue, Level, Pull, REPOSITORY, Source, Verdict,
    json_response, matching_issues, open_pull, stamp, store_comment,
};

fn missing() -> Response {
    json_response(404, &json!({ "message": "404 Not found" }))
}

fn user(login: &str) -> Value {
    json!({ "id": login.len(), "username": login, "name": login, "state": "active" })
}

fn merge(shared: &ForgeState, pull: &Pull) -> Value {
    let state = match (pull.open, &pull.merged) {
        (true, _) => "opened",
        (false, Some(_)) => "merged",
        (false, None) => "closed",
    };
    let source = match &pull.source {
        Source::Here => Some(1),
        Source::Fork(_) => Some(2),
        Source::Gone => None,
    };
    json!({
        "id": 1000 + pull.number,
        "iid": pull.number,
        "project_id": 1,
        "title": pull.title,
        "description": pull.body,
        "state": state,
        "source_branch": pull.branch,
        "target_branch": pull.base,
        "source_project_id": source,
        "target_project_id": 1,
        "author": user(&pull.author),
        "sha": shared.head(pull),
        "merge_commit_sha": null,
        "squash_commit_sha": null,
        "draft": false,
        "web_url": format!("{}/{REPOSITORY}/-/merge_requests/{}", shared.base, pull.number),
    })
}

fn issue(shared: &ForgeState, issue: &Issue) -> Value {
    json!({
        "id": 2000 + issue.number,
        "iid": issue.number,
        "project_id": 1,
        "title": issue.title,
        "description": issue.body,
        "state": if issue.open { "opened" } else { "closed" },
        "author": user(&issue.author),
        "labels": issue.labels,
        "assignees": issue.assignees.iter().map(|login| user(login)).collect::<Vec<_>>(),
        "updated_at": stamp(issue.updated_at),
        "web_url": format!("{}/{REPOSITORY}/-/issues/{}", shared.base, issue.number),
    })
}

fn note(said: &Comment) -> Value {
    let (system, body) = match said.verdict {
        Some(Verdict::Approve) => (true, "approved this merge request"),
        Some(Verdict::Changes) => (true, "requested changes"),
        None => (false, said.body.as_str()),
    };
    let mut note = json!({
        "id": said.id,
        "type": null,
        "body": body,
        "author": user(&said.author),
        "created_at": stamp(said.at),
        "updated_at": stamp(said.at),
        "system": system,
        "noteable_type": if said.on_pull { "MergeRequest" } else { "Issue" },
        "resolvable": false,
    });
    if let Some((path, line)) = &said.place {
        note["type"] = json!("DiffNote");
        note["position"] = json!({
            "position_type": "text", "old_path": path, "new_path": path, "new_line": line, "old_line": null,
        });
    }
    note
}

fn listed(call: &Call<'_>, all: Vec<Value>) -> Response {
    let (page, size) = call.window("per_page", 20);
    let total = all.len();
    let entries: Vec<Value> = all.into_iter().skip((page - 1) * size).take(size).collect();
    let mut response = json_response(200, &Value::Array(entries));
    let next = if page * size < total { (page + 1).to_string() } else { String::new() };
    let headers = response.headers_mut();
    headers.insert("x-page", page.into());
    headers.insert("x-per-page", size.into());
    headers.insert("x-total", total.into());
    headers.insert("x-next-page", next.parse().unwrap());
    response
}

fn status(state: &str) -> &str {
    if state == "failure" { "failed" } else { state }
}

#[expect(clippy::too_many_lines, reason = "one arm for each path of the API, in one place")]
pub(super) fn answer(call: &Call<'_>, known: bool) -> Response {
    if !known {
        return json_response(401, &json!({ "message": "401 Unauthorized" }));
    }
    let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
    let shared = call.shared;
    match path.as_slice() {
        ["user"] => return json_response(200, &user(BOT)),
        ["users"] => {
            let named = call.query_value("username").unwrap_or_default();
            let world = shared.world();
            let found: Vec<Value> = world
                .members
                .keys()
                .filter(|login| *login == named)
                .map(|login| user(login))
                .collect();
            return json_response(200, &Value::Array(found));
        }
        _ => {}
    }
    let ["projects", REPOSITORY, rest @ ..] = path.as_slice() else {
        return json_response(404, &json!({ "message": "404 Project Not Found" }));
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    match (&call.method, rest) {
        (&Method::GET, ["members", "all", id]) => {
            let world = shared.world();
            let member = world.members.iter().find(|(login, _)| login.len().to_string() == *id);
            let Some((login, level)) = member else { return missing() };
            let access = match level {
                Level::Read => 20,
                Level::Write => 30,
                Level::Admin => 50,
            };
            let mut body = user(login);
            body["access_level"] = json!(access);
            json_response(200, &body)
        }
        (&Method::GET, ["merge_requests"]) => {
            let mut pulls = shared.world().pulls.clone();
            if let Some(branch) = call.query_value("source_branch") {
                pulls.retain(|pull| pull.branch == branch);
            }
            pulls.reverse();
            listed(call, pulls.iter().map(|one| merge(shared, one)).collect())
        }
        (&Method::POST, ["merge_requests"]) => {
            let made = open_pull(
                call,
                call.text("source_branch"),
                call.text("target_branch"),
                call.text("description"),
            );
            match made {
                Ok(made) => json_response(201, &merge(shared, &made)),
                Err(Some(found)) => {
                    let said = format!(
                        "Another open merge request already exists for this source branch: !{found}"
                    );
                    json_response(409, &json!({ "message": [said] }))
                }
                Err(None) => {
                    json_response(422, &json!({ "message": ["Source branch does not exist"] }))
                }
            }
        }
        (&Method::GET, ["merge_requests", at]) => {
            let found = shared.world().pulls.iter().find(|pull| pull.number == number(at)).cloned();
            found.map_or_else(missing, |found| json_response(200, &merge(shared, &found)))
        }
        (method, [of @ ("merge_requests" | "issues"), at, "notes"]) => {
            let on_pull = *of == "merge_requests";
            if *method == Method::POST {
                return json_response(201, &note(&store_comment(call, on_pull, number(at))));
            }
            let all = shared.world().comments.clone();
            let of = all.iter().filter(|said| said.on_pull == on_pull && said.number == number(at));
            listed(call, of.map(note).collect())
        }
        (&Method::GET, ["issues"]) => {
            let found = matching_issues(call, "labels", "assignee_username", "updated_after");
            listed(call, found.iter().map(|one| issue(shared, one)).collect())
        }
        (&Method::GET, ["issues", at]) => {
            let found =
                shared.world().issues.iter().find(|issue| issue.number == number(at)).cloned();
            found.map_or_else(missing, |found| json_response(200, &issue(shared, &found)))
        }
        (&Method::GET, ["repository", "commits", sha, "statuses"]) => {
            let checks = shared.world().checks.clone();
            let of = checks.iter().filter(|check| check.commit == *sha).map(|check| {
                json!({
                    "id": 1, "sha": sha, "name": check.name, "status": status(check.state), "description": check.summary,
                    "target_url": null, "allow_failure": false,
                })
            });
            listed(call, of.collect())
        }
        (&Method::GET, ["pipelines"]) => {
            let checks = shared.world().checks.clone();
            let commit = call.query_value("sha").unwrap_or_default();
            let of = checks.iter().filter(|check| check.commit == commit).map(|check| check.state);
            let worst = of.max_by_key(|state| (*state == "failure", *state == "pending"));
            let pipelines = worst.map(
                |state| json!({ "id": 5, "sha": commit, "status": status(state), "web_url": null }),
            );
            listed(call, pipelines.into_iter().collect())
        }
        _ => missing(),
    }
}

pub(super) fn hook(hook: &Hook) -> (&'static str, Value) {
    let (event, mut body) = match hook {
        Hook::Labelled(number) => (
            "Issue Hook",
            json!({ "object_kind": "issue", "object_attributes": { "iid": number, "action": "update" } }),
        ),
        Hook::Remark(number) => (
            "Note Hook",
            json!({ "object_kind": "note", "object_attributes": { "noteable_type": "MergeRequest" }, "merge_request": { "iid": number } }),
        ),
        Hook::Review(number) => (
            "Merge Request Hook",
            json!({ "object_attributes": { "iid": number, "action": "approved" } }),
        ),
        Hook::Merged(number) => (
            "Merge Request Hook",
            json!({ "object_attributes": { "iid": number, "action": "merge" } }),
        ),
        Hook::Checks(commit) => {
            ("Pipeline Hook", json!({ "object_attributes": { "sha": commit, "status": "failed" } }))
        }
        Hook::Push => ("Push Hook", json!({ "ref": "refs/heads/main" })),
    };
    body["project"] = json!({ "path_with_namespace": REPOSITORY });
    (event, body)
}
