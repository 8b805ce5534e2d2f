//! Review loop: what follows a verdict, and how many revisions are allowed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    names::DottedKey,
    tuning::{BoundedNumber, TuningNote},
};

/// How often a review may send work back.
pub const MAX_REVIEW_ITERATIONS: BoundedNumber<i64> = BoundedNumber {
    name: "agents.project_manager.review.max_review_iterations",
    min: 0,
    max: 5,
    default: 2,
};

const REVIEW_PREFERENCE_PREFIX: &str = "agents.project_manager.review.";

/// How strict reviews are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewOptions {
    /// How often work is sent back at most.
    pub max_review_iterations: u32,
    /// Whether minor issues are noted only, and never given to a fixer.
    pub skip_minor_issues: bool,
    /// Whether tests that ran must pass. Whether tests must run at all is for the workflow, or a decision of its own.
    pub require_tests_pass: bool,
    /// What follows when work was sent back often enough and is still not good.
    pub on_limit: OnLimit,
}

/// What follows when work was sent back often enough and is still not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLimit {
    /// A person is asked if something critical is left; else it goes on with the issues noted.
    BySeverity,
    /// A person is asked.
    Escalate,
    /// It goes on with the issues noted.
    Proceed,
}

impl Default for ReviewOptions {
    fn default() -> Self {
        Self {
            max_review_iterations: 2,
            skip_minor_issues: true,
            require_tests_pass: true,
            on_limit: OnLimit::BySeverity,
        }
    }
}

impl ReviewOptions {
    /// Reads the preferences that hold; a value that cannot be used becomes the default, with a note.
    pub fn from_preferences(preferences: &BTreeMap<DottedKey, Value>) -> (Self, Vec<TuningNote>) {
        let mut notes = Vec::new();
        let mut options = Self::default();
        for (key, value) in preferences {
            let Some(name) = key.as_str().strip_prefix(REVIEW_PREFERENCE_PREFIX) else { continue };
            match name {
                "max_review_iterations" => {
                    let (taken, note) = match value.as_i64() {
                        Some(wanted) => MAX_REVIEW_ITERATIONS.clamp_value(wanted),
                        None => MAX_REVIEW_ITERATIONS.default_for_unreadable(&value.to_string()),
                    };
                    options.max_review_iterations = u32::try_from(taken).unwrap_or(0);
                    notes.extend(note);
                }
                "skip_minor_issues" => {
                    apply_flag(key, value, &mut options.skip_minor_issues, &mut notes);
                }
                "require_tests_pass" => {
                    apply_flag(key, value, &mut options.require_tests_pass, &mut notes);
                }
                "on_limit" => match value.as_str() {
                    Some("by_severity") => options.on_limit = OnLimit::BySeverity,
                    Some("escalate") => options.on_limit = OnLimit::Escalate,
                    Some("proceed") => options.on_limit = OnLimit::Proceed,
                    Some(_) | None => notes.push(TuningNote::new(format!(
                        "{key} must be by_severity, escalate or proceed: using by_severity"
                    ))),
                },
                _ => {}
            }
        }
        (options, notes)
    }
}

fn apply_flag(key: &DottedKey, value: &Value, taken: &mut bool, notes: &mut Vec<TuningNote>) {
    match value.as_bool() {
        Some(value) => *taken = value,
        None => notes.push(TuningNote::new(format!("{key} must be true or false: using {taken}"))),
    }
}

/// Whether a review says yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewConclusion {
    /// It does.
    Approved,
    /// It does not.
    ChangesRequested,
}

/// How many issues a review found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssueCounts {
    /// Must be mended.
    pub critical: usize,
    /// Should be mended.
    pub major: usize,
    /// Could be mended.
    pub minor: usize,
}

/// What follows a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewNextStep {
    /// The work is good.
    Accept,
    /// The work goes back.
    Revise,
    /// The work went back often enough; it goes on with the issues noted.
    ProceedNoted,
    /// The work went back often enough; a person decides.
    Escalate,
}

/// What follows a review of work that went back `used` times already.
///
/// A yes that names something critical or major is no yes, and a no that names only minor issues is no reason to send work back
/// when minor ones are not mended.
pub const fn decide_after_review(
    verdict: ReviewConclusion,
    issues: IssueCounts,
    used: u32,
    options: &ReviewOptions,
) -> ReviewNextStep {
    let grave = issues.critical > 0 || issues.major > 0;
    let light = issues.minor > 0 && !options.skip_minor_issues;
    let good = match verdict {
        ReviewConclusion::Approved => !grave,
        // A no without a single issue is still a no.
        ReviewConclusion::ChangesRequested => !grave && !light && issues.minor > 0,
    };
    if good {
        return ReviewNextStep::Accept;
    }
    if used < options.max_review_iterations {
        return ReviewNextStep::Revise;
    }
    match options.on_limit {
        OnLimit::Escalate => ReviewNextStep::Escalate,
        OnLimit::Proceed => ReviewNextStep::ProceedNoted,
        OnLimit::BySeverity if issues.critical > 0 => ReviewNextStep::Escalate,
        OnLimit::BySeverity => ReviewNextStep::ProceedNoted,
    }
}

/// What follows tests that ran, of work that went back `used` times because of tests already.
pub const fn decide_after_tests(
    failed: bool,
    used: u32,
    options: &ReviewOptions,
) -> ReviewNextStep {
    match (failed, options.require_tests_pass) {
        (false, _) => ReviewNextStep::Accept,
        (true, false) => ReviewNextStep::ProceedNoted,
        (true, true) if used < options.max_review_iterations => ReviewNextStep::Revise,
        // Tests must pass: nobody but a person lets it through.
        (true, true) => ReviewNextStep::Escalate,
    }
}

#[cfg(test)]
mod tests;
