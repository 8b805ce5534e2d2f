use serde_json::{Value, json};

use super::*;

fn issue(description: &str) -> Value {
    json!({ "description": description, "file_location": "src/x.rs:42", "how_to_fix": "turn it round" })
}

#[test]
fn a_review_has_a_verdict_issues_of_three_severities_and_a_summary_and_nothing_else() {
    let form = json!({
        "verdict": "changes_requested",
        "critical_issues": [issue("it crashes")],
        "major_issues": [issue("no test")],
        "minor_issues": [issue("spaces")],
        "summary": "not yet",
    });
    let read: ReviewFeedback = serde_json::from_value(form.clone()).unwrap();
    let of = |description: &str| ReviewIssue {
        description: description.into(),
        file_location: "src/x.rs:42".into(),
        how_to_fix: "turn it round".into(),
    };
    assert_eq!(
        read,
        ReviewFeedback {
            verdict: ReviewOutcome::ChangesRequested,
            critical_issues: vec![of("it crashes")],
            major_issues: vec![of("no test")],
            minor_issues: vec![of("spaces")],
            summary: "not yet".into(),
        },
        "S004-106, S004-111"
    );
    assert_eq!(serde_json::to_value(&read).unwrap(), form, "S004-106, S004-111");
    let more = json!({ "score": 5 });
    assert!(serde_json::from_value::<ReviewFeedback>(more).is_err(), "S004-106");
}

#[test]
fn a_review_approves_or_requests_changes_and_there_is_no_third_verdict() {
    let read = |name: &str| {
        serde_json::from_value::<ReviewOutcome>(name.into()).map_err(|error| error.to_string())
    };
    assert_eq!(read("approved"), Ok(ReviewOutcome::Approved));
    assert_eq!(read("changes_requested"), Ok(ReviewOutcome::ChangesRequested));
    let names = "unknown variant `rejected`, expected `approved` or `changes_requested`";
    assert_eq!(read("rejected"), Err(names.to_owned()), "S004-107: the names of all verdicts");
}
