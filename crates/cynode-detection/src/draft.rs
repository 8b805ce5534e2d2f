//! Draft of a proposal: lines with their reasons. A line that no environment may have becomes a warning.

use std::collections::BTreeMap;

use cynode_core::environments::{
    EnvironmentCheck, EnvironmentCheckKind, EnvironmentLimits, EnvironmentProposal,
    EnvironmentService, EnvironmentSpec, MAX_LIST_ENTRIES, PackageSource, ProposalReason,
    TestReportFormat, TestReportSource,
};

/// Maximum number of warnings of a proposal.
const MAX_WARNINGS: usize = 40;

/// Maximum number of characters of a warning or of a line in a reason.
const MAX_TEXT_CHARS: usize = 600;

/// Proposal that grows.
#[derive(Default)]
pub(crate) struct ProposalDraft {
    spec: EnvironmentSpec,
    reasons: Vec<ProposalReason>,
    warnings: Vec<String>,
}

impl ProposalDraft {
    /// Returns whether nothing is proposed yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.spec.setup.is_empty() && self.spec.checks.is_empty()
    }

    /// Returns whether a test command is proposed.
    pub(crate) fn has_tests(&self) -> bool {
        self.spec.checks_of(EnvironmentCheckKind::Test).next().is_some()
    }

    pub(crate) fn add_package(&mut self, name: &str, file: &str, reason: &str) {
        if self.spec.system_packages.iter().any(|known| known == name) {
            return;
        }
        let probe = EnvironmentSpec {
            system_packages: vec![name.to_owned()],
            ..EnvironmentSpec::default()
        };
        if self.is_acceptable(&format!("system_packages: {name}"), &probe, file, reason) {
            self.spec.system_packages.push(name.to_owned());
        }
    }

    pub(crate) fn add_packages(&mut self, names: &[&str], file: &str, reason: &str) {
        for name in names {
            self.add_package(name, file, reason);
        }
    }

    pub(crate) fn add_setup(&mut self, command: impl Into<String>, file: &str, reason: &str) {
        let command = command.into();
        if self.spec.setup.contains(&command) {
            return;
        }
        let probe = EnvironmentSpec { setup: vec![command.clone()], ..EnvironmentSpec::default() };
        if self.is_acceptable(&format!("setup: {command}"), &probe, file, reason) {
            self.spec.setup.push(command);
        }
    }

    pub(crate) fn add_check(&mut self, check: EnvironmentCheck, file: &str, reason: &str) {
        let same = |known: &EnvironmentCheck| known.command == check.command;
        if self.spec.checks.iter().any(same) {
            return;
        }
        let line = format!("checks: {}: {}", check.kind.as_str(), check.command);
        let probe = EnvironmentSpec { checks: vec![check.clone()], ..EnvironmentSpec::default() };
        if self.is_acceptable(&line, &probe, file, reason) {
            self.spec.checks.push(check);
        }
    }

    pub(crate) fn add_service(&mut self, service: EnvironmentService, file: &str, reason: &str) {
        if self.spec.services.iter().any(|known| known.name == service.name) {
            return;
        }
        let line = format!("services: {}", service.name);
        let probe =
            EnvironmentSpec { services: vec![service.clone()], ..EnvironmentSpec::default() };
        if self.is_acceptable(&line, &probe, file, reason) {
            self.spec.services.push(service);
        }
    }

    /// Adds a variable. The first value of a name stays.
    pub(crate) fn add_variable(&mut self, name: &str, value: &str, file: &str, reason: &str) {
        if self.spec.variables.contains_key(name) {
            return;
        }
        let variables = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let probe = EnvironmentSpec { variables, ..EnvironmentSpec::default() };
        if self.is_acceptable(&format!("variables: {name}={value}"), &probe, file, reason) {
            self.spec.variables.insert(name.to_owned(), value.to_owned());
        }
    }

    pub(crate) fn add_cache(&mut self, path: &str, file: &str, reason: &str) {
        if self.spec.caches.iter().any(|known| known == path) {
            return;
        }
        let probe = EnvironmentSpec { caches: vec![path.to_owned()], ..EnvironmentSpec::default() };
        if self.is_acceptable(&format!("caches: {path}"), &probe, file, reason) {
            self.spec.caches.push(path.to_owned());
        }
    }

    pub(crate) fn add_lock_file(&mut self, path: &str) {
        if self.spec.lock_files.iter().any(|known| known == path) {
            return;
        }
        let probe =
            EnvironmentSpec { lock_files: vec![path.to_owned()], ..EnvironmentSpec::default() };
        let reason = "Set-up runs again when it changes.";
        if self.is_acceptable(&format!("lock_files: {path}"), &probe, path, reason) {
            self.spec.lock_files.push(path.to_owned());
        }
    }

    pub(crate) fn add_source(&mut self, source: PackageSource, file: &str, reason: &str) {
        if !self.spec.package_sources.contains(&source) {
            self.spec.package_sources.push(source);
            self.add_reason(&format!("package_sources: {}", source.as_str()), file, reason);
        }
    }

    /// Asks for at least that much memory.
    pub(crate) fn require_memory(&mut self, mib: u32, file: &str, reason: &str) {
        if self.spec.limits.memory_mib.is_none_or(|known| known < mib) {
            self.spec.limits = EnvironmentLimits { memory_mib: Some(mib), ..self.spec.limits };
            self.reasons.retain(|reason| !reason.line.starts_with("limits: memory_mib"));
            self.add_reason(&format!("limits: memory_mib = {mib}"), file, reason);
        }
    }

    pub(crate) fn add_warning(&mut self, text: impl Into<String>) {
        let text = shorten(&text.into());
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }

    /// Returns the proposal.
    pub(crate) fn finish(mut self) -> EnvironmentProposal {
        if !self.spec.system_packages.is_empty() {
            let file = self.reasons.first().map(|reason| reason.file.clone()).unwrap_or_default();
            let reason = "The packages of the system come from Debian.";
            self.add_source(PackageSource::Debian, &file, reason);
        }
        self.spec.package_sources.sort_unstable();
        EnvironmentProposal { spec: self.spec, reasons: self.reasons, warnings: self.warnings }
    }

    /// Records the reason of a line, or the warning that it is left out.
    fn is_acceptable(
        &mut self,
        line: &str,
        probe: &EnvironmentSpec,
        file: &str,
        reason: &str,
    ) -> bool {
        let full = [
            self.spec.system_packages.len(),
            self.spec.setup.len(),
            self.spec.checks.len(),
            self.spec.services.len(),
            self.spec.variables.len(),
            self.spec.caches.len(),
            self.spec.lock_files.len(),
        ]
        .into_iter()
        .any(|length| length >= MAX_LIST_ENTRIES);
        let error = if full {
            Some(format!("a list has at most {MAX_LIST_ENTRIES} entries"))
        } else if line.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
            Some("it has control characters".to_owned())
        } else {
            probe.validation_error()
        };
        if let Some(error) = error {
            self.add_warning(format!("`{line}` is left out: {error}."));
            return false;
        }
        self.add_reason(line, file, reason);
        true
    }

    fn add_reason(&mut self, line: &str, file: &str, reason: &str) {
        self.reasons.push(ProposalReason {
            line: shorten(line),
            file: shorten(file),
            reason: shorten(reason),
        });
    }
}

/// Text of bounded length without control characters.
fn shorten(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_TEXT_CHARS).collect()
}

/// Makes a check without a report.
pub(crate) fn plain_check(
    kind: EnvironmentCheckKind,
    command: impl Into<String>,
) -> EnvironmentCheck {
    EnvironmentCheck {
        kind,
        command: command.into(),
        report: None,
        coverage: None,
        timeout_seconds: None,
    }
}

/// Makes a test whose results are in its output, or in a file.
pub(crate) fn reported_test(
    command: impl Into<String>,
    format: TestReportFormat,
    path: Option<String>,
) -> EnvironmentCheck {
    let report = Some(TestReportSource { format, path });
    EnvironmentCheck { report, ..plain_check(EnvironmentCheckKind::Test, command) }
}
