//! Findings of verification and of reviews.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing that verification noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerificationFinding {
    /// How bad it is: `critical`, `major`, `minor` or `note`.
    pub severity: FindingSeverity,
    /// What was found.
    pub text: String,
    /// Where, as `src/x.rs:42`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how_to_fix: Option<String>,
}

impl VerificationFinding {
    /// Something that was found.
    pub fn new(severity: FindingSeverity, text: impl Into<String>) -> Self {
        Self { severity, text: text.into(), at: None, how_to_fix: None }
    }

    /// In one line: where, what, and what to do about it.
    pub fn describe_finding(&self) -> String {
        let place = self.at.as_ref().map(|at| format!("{at}: ")).unwrap_or_default();
        let remedy = self.how_to_fix.as_ref().map(|how| format!(" ({how})")).unwrap_or_default();
        format!("{place}{}{remedy}", self.text)
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// It must not be so.
    Critical,
    /// It should not be so.
    Major,
    /// It could be better.
    Minor,
    /// Worth knowing.
    Note,
}

/// What a review found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReviewFeedback {
    /// The verdict; the kind of the report decides it.
    pub verdict: ReviewOutcome,
    /// Must be mended.
    pub critical_issues: Vec<ReviewIssue>,
    /// Should be mended.
    pub major_issues: Vec<ReviewIssue>,
    /// Could be mended; never given to a fixer unless asked for.
    pub minor_issues: Vec<ReviewIssue>,
    /// In short.
    pub summary: String,
}

impl ReviewFeedback {
    /// What everybody found, as one review: nothing that must or should be mended is a yes.
    pub fn from_findings<'a>(
        findings: impl IntoIterator<Item = &'a VerificationFinding>,
        summary: String,
    ) -> Self {
        let mut feedback = Self { summary, ..Self::default() };
        for finding in findings {
            let issues = match finding.severity {
                FindingSeverity::Critical => &mut feedback.critical_issues,
                FindingSeverity::Major => &mut feedback.major_issues,
                FindingSeverity::Minor => &mut feedback.minor_issues,
                FindingSeverity::Note => continue,
            };
            let issue = ReviewIssue {
                description: finding.text.clone(),
                file_location: finding.at.clone().unwrap_or_default(),
                how_to_fix: finding.how_to_fix.clone().unwrap_or_default(),
            };
            if !issues.contains(&issue) {
                issues.push(issue);
            }
        }
        if feedback.critical_issues.is_empty() && feedback.major_issues.is_empty() {
            feedback.verdict = ReviewOutcome::Approved;
        }
        feedback
    }

    /// The findings, worst first.
    pub fn to_findings(&self) -> Vec<VerificationFinding> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let of = |severity: FindingSeverity, issues: &[ReviewIssue]| -> Vec<VerificationFinding> {
            let found = issues.iter().map(|issue| VerificationFinding {
                at: given(&issue.file_location),
                how_to_fix: given(&issue.how_to_fix),
                ..VerificationFinding::new(severity, issue.description.as_str())
            });
            found.collect()
        };
        let mut findings = of(FindingSeverity::Critical, &self.critical_issues);
        findings.extend(of(FindingSeverity::Major, &self.major_issues));
        findings.extend(of(FindingSeverity::Minor, &self.minor_issues));
        findings
    }
}

/// The verdict of a review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ReviewOutcome)]
pub enum ReviewOutcome {
    /// It is good.
    Approved,
    /// It is not good yet.
    #[default]
    ChangesRequested,
}

/// One thing that a review found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewIssue {
    /// What is wrong.
    pub description: String,
    /// Where, as `src/x.rs:42`.
    #[serde(default)]
    pub file_location: String,
    /// What to do about it.
    #[serde(default)]
    pub how_to_fix: String,
}

#[cfg(test)]
mod tests;
