use serde_json::{Value, json};

use super::*;

const PLAIN: Colorizer = Colorizer(false);

fn task(state: &str) -> TaskView {
    serde_json::from_value(json!({
        "id": "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "project_id": "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "name": "slug-max", "description": "Add it", "acceptance_criteria": [],
        "budget": { "max_cost_micros": 500_000, "max_tokens": null }, "state": state,
        "failure": "the checks never held", "depends_on": [],
        "created_by": "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:01:05Z",
    }))
    .unwrap()
}

fn shown() -> TaskEvidence {
    let view = |id: u32, attempt: u32, state: &str, tally: &str| {
        json!({ "evidence_id": format!("evd_0192d5c8b6f07cc1a1a3c2b4d5e6f70{id}"), "unit": "add",
            "attempt": attempt, "commit": "0123456789abcdef", "state": state, "stale": false,
            "checks": [{ "check": { "argv": ["sh", "-c", "make test"] }, "tally": tally, "rounds": 1,
                "exit_code": 0, "milliseconds": 12 }],
            "attempts": 1, "opened_at": "2026-01-01T00:00:00Z" })
    };
    let minor = json!({ "description": "A word is missing", "file_location": "slug:6", "how_to_fix": "add it" });
    serde_json::from_value(json!({
        "evidence": [view(1, 1, "failed", "failed"), view(2, 2, "passed", "passed")],
        "feedback": { "verdict": "approved", "minor_issues": [minor], "summary": "good" },
    }))
    .unwrap()
}

fn offered(url: &str, state: &str) -> PullRequestDetail {
    serde_json::from_value(json!({
        "id": "pul_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "project_id": "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "task_id": "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "number": 3, "forge": "local",
        "branch": "cynode/slug-max-708", "base_branch": "main", "base_commit": "1", "title": "Add it",
        "body": "", "state": state, "url": url, "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z", "checks": [], "comments": [], "reviews": [],
        "deliveries": [], "follow_ups": [],
    }))
    .unwrap()
}

fn ending(state: &str) -> TaskOutcome {
    let changed = json!({ "base": "1", "head": "2", "truncated": false, "files": [
        { "path": "slug", "insertions": 8, "deletions": 3 }] });
    TaskOutcome {
        task: task(state),
        plan: Some(
            serde_json::from_value(json!({ "steps": [{ "key": "add", "title": "Add it" }] }))
                .unwrap(),
        ),
        evidence: Some(shown()),
        pull_request: Some(offered("/v1/pull-requests/pul_1", "open")),
        cost_micros: 12_300,
        seconds: 65.0,
        timeline: None,
        changed: Some(serde_json::from_value(changed).unwrap()),
    }
}

/// How the task and its pull request are named in what is typed next.
fn names() -> (String, String) {
    ("slug-max".to_owned(), "3 --project web".to_owned())
}

#[test]
fn the_end_says_what_changed_what_was_shown_and_found_what_it_cost_and_what_is_next() {
    assert_eq!(
        ending("completed").render_lines(&names(), Currency::USD, PLAIN),
        [
            "",
            "✓ completed in 1:05: slug-max",
            "",
            "1 file, +8 -3 lines",
            "  slug      +8 -3  ++++++++---",
            "",
            "evidence for attempt 2 of add, commit 0123456789: passed",
            "  ✓ passed  make test  exit 0, 12 ms",
            "findings: 1 minor",
            "  minor     slug:6: A word is missing (add it)",
            "",
            "cost 0.0123 of 0.5000 USD  ░░░░░░░░░░ 2 %",
            "pull request #3 Add it  cynode/slug-max-708 → main (open)",
            "  cynork pr show 3",
            "  next: cynork task diff slug-max",
            "        cynork pr merge 3 --project web",
        ]
    );
    let elsewhere =
        render_pull_request(&offered("https://forge/pull/3", "merged"), &names(), PLAIN);
    assert_eq!(elsewhere[1], "  https://forge/pull/3");
    assert_eq!(elsewhere[2], "  next: cynork pr show 3 --project web");
}

/// As much of JSON Schema as the schema uses.
fn complaint(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = |wanted: &str| wanted == kind || wanted == "number" && kind == "integer";
    let right = match &schema["type"] {
        Value::String(wanted) => fits(wanted),
        Value::Array(all) => all.iter().filter_map(Value::as_str).any(fits),
        _ => true,
    };
    if !right {
        return Some(format!("{at} is {kind}"));
    }
    if let Some(all) = schema["enum"].as_array()
        && !all.contains(value)
    {
        return Some(format!("{at} is {value}"));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !text.starts_with(pattern.trim_start_matches('^'))
    {
        return Some(format!("{at} is {text}"));
    }
    if let Some(fields) = value.as_object() {
        let needed = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for name in needed {
            if !fields.contains_key(name) {
                return Some(format!("{at} has no {name}"));
            }
        }
        for (name, inner) in fields {
            let known = schema["properties"].get(name);
            if known.is_none() && schema["additionalProperties"] == false {
                return Some(format!("{at} has {name}"));
            }
            if let Some(found) =
                known.and_then(|known| complaint(known, inner, &format!("{at}.{name}")))
            {
                return Some(found);
            }
        }
    }
    let mut each = value.as_array().into_iter().flatten();
    each.find_map(|inner| complaint(&schema["items"], inner, &format!("{at}[]")))
}

#[test]
fn what_programs_are_given_is_of_the_form_that_is_promised() {
    let schema: Value = serde_json::from_str(RUN_OUTPUT_SCHEMA).unwrap();
    for ending in
        [ending("completed"), ending("failed"), TaskOutcome::for_detached_task(&task("queued"))]
    {
        let value = serde_json::to_value(&ending).unwrap();
        assert_eq!(complaint(&schema, &value, "run"), None);
    }
    let mut wrong = serde_json::to_value(ending("completed")).unwrap();
    wrong["task"]["state"] = json!("asleep");
    assert_eq!(complaint(&schema, &wrong, "run").unwrap(), "run.task.state is \"asleep\"");
    wrong["more"] = json!(1);
    wrong["task"]["state"] = json!("failed");
    assert_eq!(complaint(&schema, &wrong, "run").unwrap(), "run has more");
}
