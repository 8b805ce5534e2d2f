use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(entries: &[(&str, Value)]) -> (ReviewOptions, Vec<String>) {
    let preferences =
        entries.iter().map(|(key, value)| (key.parse().unwrap(), value.clone())).collect();
    let (options, notes) = ReviewOptions::from_preferences(&preferences);
    (options, notes.iter().map(ToString::to_string).collect())
}

fn issues(critical: usize, major: usize, minor: usize) -> IssueCounts {
    IssueCounts { critical, major, minor }
}

#[test]
fn without_preferences_two_revisions_no_minor_issues_and_passing_tests() {
    let (options, notes) = read(&[("workflow.max_step_retries", json!(9))]);
    assert_eq!(
        options,
        ReviewOptions {
            max_review_iterations: 2,
            skip_minor_issues: true,
            require_tests_pass: true,
            on_limit: OnLimit::BySeverity,
        },
        "S004-112, S004-113, S004-114, S004-138"
    );
    assert!(notes.is_empty());
}

#[test]
fn preferences_change_the_options_and_bad_ones_become_the_default_with_a_note() {
    let (options, notes) = read(&[
        ("agents.project_manager.review.max_review_iterations", json!(99)),
        ("agents.project_manager.review.on_limit", json!("shout")),
        ("agents.project_manager.review.require_tests_pass", json!("no")),
        ("agents.project_manager.review.skip_minor_issues", json!(false)),
    ]);
    assert_eq!(
        options,
        ReviewOptions {
            max_review_iterations: 5,
            skip_minor_issues: false,
            ..ReviewOptions::default()
        },
        "S004-138: preferences change the options"
    );
    assert_eq!(
        notes,
        [
            "agents.project_manager.review.max_review_iterations is 99, which is outside 0 to 5: using 5",
            "agents.project_manager.review.on_limit must be by_severity, escalate or proceed: using by_severity",
            "agents.project_manager.review.require_tests_pass must be true or false: using true",
        ]
    );
    let (options, notes) = read(&[
        ("agents.project_manager.review.max_review_iterations", json!("many")),
        ("agents.project_manager.review.on_limit", json!("escalate")),
    ]);
    assert_eq!(options, ReviewOptions { on_limit: OnLimit::Escalate, ..ReviewOptions::default() });
    assert_eq!(
        notes,
        [
            "agents.project_manager.review.max_review_iterations is not a number (6 characters): using 2"
        ]
    );
}

#[test]
fn the_first_and_second_failed_review_send_work_back_and_the_third_does_not() {
    let options = ReviewOptions::default();
    let after = |used, issues| {
        decide_after_review(ReviewConclusion::ChangesRequested, issues, used, &options)
    };
    for used in [0, 1] {
        assert_eq!(after(used, issues(1, 0, 0)), ReviewNextStep::Revise, "S004-108, S004-115");
        assert_eq!(after(used, issues(0, 1, 0)), ReviewNextStep::Revise, "S004-109, S004-116");
        assert_eq!(after(used, issues(0, 0, 0)), ReviewNextStep::Revise, "a bare no is a no");
    }
    assert_eq!(
        after(2, issues(1, 1, 1)),
        ReviewNextStep::Escalate,
        "S004-117, S004-119: something critical is left"
    );
    assert_eq!(after(2, issues(0, 3, 1)), ReviewNextStep::ProceedNoted, "S004-117, S004-119");
}

#[test]
fn a_preference_decides_what_follows_the_last_failure() {
    let with = |on_limit, issues| {
        let options = ReviewOptions { on_limit, ..ReviewOptions::default() };
        decide_after_review(ReviewConclusion::ChangesRequested, issues, 2, &options)
    };
    assert_eq!(with(OnLimit::Escalate, issues(0, 1, 0)), ReviewNextStep::Escalate, "S004-119");
    assert_eq!(with(OnLimit::Proceed, issues(4, 1, 0)), ReviewNextStep::ProceedNoted, "S004-119");
}

#[test]
fn a_yes_with_grave_issues_is_no_yes_and_a_no_with_minor_ones_is_no_no() {
    let options = ReviewOptions::default();
    let strict = ReviewOptions { skip_minor_issues: false, ..options };
    assert_eq!(
        decide_after_review(ReviewConclusion::Approved, issues(0, 0, 7), 0, &options),
        ReviewNextStep::Accept
    );
    assert_eq!(
        decide_after_review(ReviewConclusion::Approved, issues(1, 0, 0), 0, &options),
        ReviewNextStep::Revise
    );
    assert_eq!(
        decide_after_review(ReviewConclusion::Approved, issues(0, 1, 0), 0, &options),
        ReviewNextStep::Revise
    );
    assert_eq!(
        decide_after_review(ReviewConclusion::ChangesRequested, issues(0, 0, 2), 0, &options),
        ReviewNextStep::Accept
    );
    assert_eq!(
        decide_after_review(ReviewConclusion::ChangesRequested, issues(0, 0, 2), 0, &strict),
        ReviewNextStep::Revise
    );
}

#[test]
fn tests_that_ran_must_pass_and_only_a_person_lets_failures_through() {
    let options = ReviewOptions::default();
    let loose = ReviewOptions { require_tests_pass: false, on_limit: OnLimit::Proceed, ..options };
    let proceed = ReviewOptions { on_limit: OnLimit::Proceed, ..options };
    assert_eq!(decide_after_tests(false, 9, &options), ReviewNextStep::Accept);
    assert_eq!(decide_after_tests(true, 1, &options), ReviewNextStep::Revise, "S004-158");
    assert_eq!(decide_after_tests(true, 2, &options), ReviewNextStep::Escalate, "S004-158");
    assert_eq!(decide_after_tests(true, 2, &proceed), ReviewNextStep::Escalate);
    assert_eq!(decide_after_tests(true, 0, &loose), ReviewNextStep::ProceedNoted);
}

fn options() -> impl Strategy<Value = ReviewOptions> {
    let on_limit =
        prop_oneof![Just(OnLimit::BySeverity), Just(OnLimit::Escalate), Just(OnLimit::Proceed)];
    (0_u32..=5, any::<bool>(), any::<bool>(), on_limit).prop_map(
        |(max_review_iterations, skip_minor_issues, require_tests_pass, on_limit)| ReviewOptions {
            max_review_iterations,
            skip_minor_issues,
            require_tests_pass,
            on_limit,
        },
    )
}

proptest! {
    #[test]
    fn work_never_goes_back_more_often_than_allowed(
        options in options(),
        verdicts in prop::collection::vec((any::<bool>(), 0_usize..3, 0_usize..3, 0_usize..3), 0..40),
        tested in prop::collection::vec(any::<bool>(), 0..40),
    ) {
        let mut sent_back = 0;
        for (approved, critical, major, minor) in verdicts {
            let verdict = if approved { ReviewConclusion::Approved } else { ReviewConclusion::ChangesRequested };
            if decide_after_review(verdict, issues(critical, major, minor), sent_back, &options) == ReviewNextStep::Revise {
                sent_back += 1;
            }
        }
        prop_assert!(sent_back <= options.max_review_iterations, "S004-118, S004-135");
        let mut sent_back = 0;
        for failed in tested {
            if decide_after_tests(failed, sent_back, &options) == ReviewNextStep::Revise {
                sent_back += 1;
            }
        }
        prop_assert!(sent_back <= options.max_review_iterations);
    }

    #[test]
    fn nothing_critical_passes_in_silence(
        options in options(), approved: bool, critical in 1_usize..9, major in 0_usize..3, used in 0_u32..9,
    ) {
        let verdict = if approved { ReviewConclusion::Approved } else { ReviewConclusion::ChangesRequested };
        let next = decide_after_review(verdict, issues(critical, major, 0), used, &options);
        prop_assert_ne!(next, ReviewNextStep::Accept, "S004-108");
    }
}
