//! Environment of a project, as a run and its project manager know it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    environments::{
        EnvironmentBase, EnvironmentCheck, EnvironmentLimits, EnvironmentRef, EnvironmentSpec,
        ProposalReason,
    },
    workflow::jobs::SandboxNeeds,
};

/// Maximum number of lines of a proposal that a person is shown in a question.
pub const MAX_SHOWN_LINES: usize = 30;

/// Maximum number of characters of a shown line and of a shown reason.
const MAX_SHOWN_CHARS: usize = 200;

/// Maximum number of checks of an environment that a project manager is told.
const MAX_TOLD_CHECKS: usize = 20;

/// Beginning of the question about a proposed environment, by which clients know it.
pub const PROPOSAL_QUESTION_START: &str =
    "The project has no environment, and its files say that it needs one to be built and tested.";

/// Answer that accepts a proposed environment.
pub const ACCEPT_ANSWER: &str = "accept";

/// Returns whether an answer accepts a proposed environment, and says nothing else.
pub fn is_accept_answer(answer: &str) -> bool {
    answer.trim_matches(|c: char| !c.is_alphanumeric()).eq_ignore_ascii_case(ACCEPT_ANSWER)
}

/// Answer that goes on without a proposed environment.
pub const GO_ON_WITHOUT_PROPOSAL: &str = "go on";

/// Beginning of the error of checks whose environment could not be set up. No other machine and no agent can mend that.
pub const SETUP_FAILURE_PREFIX: &str = "the environment could not be set up: ";

/// What is known of the environment of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentFacts {
    /// The accepted environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<EnvironmentBrief>,
    /// The newest proposal that nobody has decided about, where none is accepted and jobs would need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed: Option<EnvironmentOffer>,
}

/// Accepted environment, without what only a node needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentBrief {
    /// The version.
    pub reference: EnvironmentRef,
    /// System below the sandbox.
    #[serde(default)]
    pub base: EnvironmentBase,
    /// Resources.
    #[serde(default)]
    pub limits: EnvironmentLimits,
    /// Commands that build, test, lint or check the format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<EnvironmentCheck>,
    /// Names of the services that run beside the tests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Whether agents and checks may fetch packages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packages_during_work: bool,
}

impl EnvironmentBrief {
    /// Creates the brief of a version.
    pub fn new(reference: EnvironmentRef, spec: &EnvironmentSpec) -> Self {
        Self {
            reference,
            base: spec.base.clone(),
            limits: spec.limits,
            checks: spec.checks.iter().take(MAX_TOLD_CHECKS).cloned().collect(),
            services: spec.services.iter().map(|service| service.name.clone()).collect(),
            packages_during_work: spec.packages_during_work,
        }
    }

    /// Returns the needs of a job that runs in the environment.
    pub fn sandbox_needs(&self) -> SandboxNeeds {
        SandboxNeeds::in_environment(self.reference.clone(), &self.base, self.limits)
    }
}

/// Proposed environment, as a person is asked about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentOffer {
    /// The version.
    pub reference: EnvironmentRef,
    /// Its first lines, with their reasons.
    pub lines: Vec<ProposalReason>,
    /// Number of lines that are left out.
    #[serde(default)]
    pub more_lines: u32,
    /// What a person should look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl EnvironmentOffer {
    /// Creates the offer of a proposed version.
    pub fn new(reference: EnvironmentRef, reasons: &[ProposalReason], warnings: &[String]) -> Self {
        let lines = reasons.iter().take(MAX_SHOWN_LINES).map(|line| ProposalReason {
            line: shorten_line(&line.line),
            file: shorten_line(&line.file),
            reason: shorten_line(&line.reason),
        });
        let more_lines = reasons.len().saturating_sub(MAX_SHOWN_LINES);
        Self {
            reference,
            lines: lines.collect(),
            more_lines: u32::try_from(more_lines).unwrap_or(u32::MAX),
            warnings: warnings.iter().take(5).map(|text| shorten_line(text)).collect(),
        }
    }

    /// Describes the proposal, a line each.
    pub fn describe_lines(&self) -> String {
        let mut text = String::new();
        for ProposalReason { line, file, reason } in &self.lines {
            let from = if file.is_empty() { String::new() } else { format!(" ({file})") };
            let _ = write!(text, "\n- `{line}`: {reason}{from}");
        }
        if self.more_lines > 0 {
            let _ = write!(text, "\n- and {} more lines", self.more_lines);
        }
        for warning in &self.warnings {
            let _ = write!(text, "\n- look at this: {warning}");
        }
        text
    }
}

/// Shortens a text to one line that cannot end a quotation.
fn shorten_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "'");
    let short: String = line.chars().take(MAX_SHOWN_CHARS).collect();
    if short.len() < line.len() { format!("{short} …") } else { short }
}

/// What people decided about the environment of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentChoice {
    /// The proposed version that a person is asked about now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<EnvironmentRef>,
    /// Whether that person wants it to be accepted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_requested: bool,
    /// Whether the task goes on without an environment.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without: bool,
}

impl EnvironmentChoice {
    /// Returns the choice to go on without an environment.
    pub const fn without_environment() -> Self {
        Self { asked: None, accept_requested: false, without: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{environments::EnvironmentService, workflow::jobs::SandboxBackend};

    fn reference() -> EnvironmentRef {
        EnvironmentRef { version: 3, digest: "d".repeat(64) }
    }

    #[test]
    fn a_job_needs_what_the_environment_says() {
        let spec = EnvironmentSpec {
            base: EnvironmentBase::Image("builder:1".to_owned()),
            services: vec![EnvironmentService {
                name: "redis".to_owned(),
                command: "redis-server".to_owned(),
                ready: "redis-cli ping".to_owned(),
                ready_seconds: None,
            }],
            limits: EnvironmentLimits {
                memory_mib: Some(4096),
                cpu_percent: Some(200),
                processes: Some(512),
                disk_mib: Some(8192),
                setup_seconds: None,
            },
            ..EnvironmentSpec::default()
        };
        let brief = EnvironmentBrief::new(reference(), &spec);
        assert_eq!(brief.services, ["redis"]);
        assert_eq!(
            brief.sandbox_needs(),
            SandboxNeeds {
                backend: Some(SandboxBackend::Podman),
                image: Some("builder:1".to_owned()),
                memory_mib: Some(4096),
                cpu_percent: Some(200),
                processes: Some(512),
                disk_mib: Some(8192),
                egress_hosts: Vec::new(),
                environment: Some(reference()),
            },
            "B001-17"
        );
        let host = EnvironmentBrief::new(reference(), &EnvironmentSpec::default());
        let plain =
            SandboxNeeds { environment: Some(reference()), ..SandboxNeeds::plain_sandbox() };
        assert_eq!(host.sandbox_needs(), plain);
    }

    #[test]
    fn a_proposal_is_shown_in_bounded_lines_that_end_no_quotation() {
        let line = |text: &str| ProposalReason {
            line: text.to_owned(),
            file: "package.json".to_owned(),
            reason: "it has\na lock file".to_owned(),
        };
        let mut reasons = vec![line("setup: npm `ci`")];
        reasons.extend((0..MAX_SHOWN_LINES).map(|_| line(&"x".repeat(300))));
        let warnings = ["`.npmrc` names another registry".to_owned()];
        let offer = EnvironmentOffer::new(reference(), &reasons, &warnings);
        let text = offer.describe_lines();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "- `setup: npm 'ci'`: it has a lock file (package.json)");
        assert_eq!(lines.len(), 1 + MAX_SHOWN_LINES + 2);
        assert_eq!(
            lines[MAX_SHOWN_LINES + 1..],
            ["- and 1 more lines", "- look at this: '.npmrc' names another registry"]
        );
    }
}
