//! Environment of a project: what its build and its tests need. A version of it is immutable; people accept versions, nodes set them up
//! once and start jobs over the result.
//!
//! The same form stands in the project's settings and, as TOML, in [`REPOSITORY_FILE`] of its repository.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::evidence::{EvidenceCheck, MAX_CHECK_SECONDS, is_plain_path};

/// Path of the environment in a repository.
pub const REPOSITORY_FILE: &str = ".cynode/environment.toml";

/// Maximum number of entries of each list of an environment.
pub const MAX_LIST_ENTRIES: usize = 200;

/// Maximum number of characters of a command.
pub const MAX_COMMAND_CHARS: usize = 4000;

/// Default timeout of the whole set-up, in seconds.
pub const DEFAULT_SETUP_SECONDS: u32 = 1800;

/// Environment of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentSpec {
    /// System below the sandbox: the node's own, an image, or a Debian release.
    pub base: EnvironmentBase,
    /// Debian packages that are added to the base. Their files are extracted; their maintainer scripts do not run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_packages: Vec<String>,
    /// Shell commands that prepare the workspace once, in order. Tracked files must stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    /// Commands that build, test, lint or check the format.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<EnvironmentCheck>,
    /// Programs that run beside checks and agents, in the same sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<EnvironmentService>,
    /// Environment variables of set-up, agents and checks.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// Secrets of the project that set-up gets as variables: variable to name of the secret. A policy must allow it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Directories below the workspace that hold build results, such as `target`. They are kept per project and branch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    /// Files whose change makes the set-up run again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lock_files: Vec<String>,
    /// Registries that set-up may fetch packages from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub package_sources: Vec<PackageSource>,
    /// Whether agents and checks may fetch packages too. Set-up always may.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub packages_during_work: bool,
    /// Resources.
    pub limits: EnvironmentLimits,
}

/// System below a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentBase {
    /// The node's own system, read-only.
    #[default]
    Host,
    /// A container image that the installation allows.
    Image(String),
    /// A root directory that the node makes from the packages of a Debian release, such as `bookworm`.
    Debian(String),
}

/// Command of an environment that shows something about a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentCheck {
    /// Purpose of the command.
    pub kind: EnvironmentCheckKind,
    /// Shell command, run in the workspace.
    pub command: String,
    /// Where its results per test are; recognised from its output when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<TestReportSource>,
    /// File below the workspace that says which lines its tests ran: lcov, Cobertura XML, JSON of coverage.py or Istanbul, or a profile of go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<String>,
    /// Timeout, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

impl EnvironmentCheck {
    /// Returns the command as a check that gathers evidence.
    pub fn to_evidence_check(&self) -> EvidenceCheck {
        let mut check = EvidenceCheck::from_shell_line(&self.command);
        check.time_limit_seconds = self.timeout_seconds;
        check.report.clone_from(&self.report);
        check.coverage.clone_from(&self.coverage);
        check
    }
}

/// Purpose of a command of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentCheckKind {
    /// It builds.
    Build,
    /// It tests.
    Test,
    /// It lints.
    Lint,
    /// It checks the format.
    Format,
}

impl EnvironmentCheckKind {
    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Test => "test",
            Self::Lint => "lint",
            Self::Format => "format",
        }
    }
}

/// Source of results per test.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestReportSource {
    /// Format of the report.
    pub format: TestReportFormat,
    /// File below the workspace that the command writes; its standard output when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Format of results per test.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TestReportFormat {
    /// `JUnit` XML, which most frameworks can write.
    Junit,
    /// Text of `pytest -rA` or `pytest -v`.
    Pytest,
    /// Text of `cargo test`.
    Cargo,
    /// Text of `cargo nextest`.
    Nextest,
    /// Test Anything Protocol: tape, ava, `node --test`, vitest.
    Tap,
    /// JSON of jest, or of vitest with `--reporter=json`.
    Jest,
    /// Text of mocha's `spec` reporter.
    Mocha,
    /// Lines of `go test -json`.
    Go,
    /// Text of `ctest`.
    Ctest,
    /// Text of automake's `make check`.
    Automake,
}

/// Program that runs beside the tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentService {
    /// Name of the service, for people.
    pub name: String,
    /// Shell command that stays in the foreground.
    pub command: String,
    /// Shell command that succeeds once the service answers.
    pub ready: String,
    /// Timeout until it answers, in seconds; 60 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_seconds: Option<u32>,
}

/// Registry of packages.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PackageSource {
    /// Rust crates.
    Crates,
    /// Python packages.
    Pypi,
    /// JavaScript packages.
    Npm,
    /// Debian packages.
    Debian,
}

impl PackageSource {
    /// All registries.
    pub const ALL: [Self; 4] = [Self::Crates, Self::Pypi, Self::Npm, Self::Debian];

    /// Returns the name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Crates => "crates",
            Self::Pypi => "pypi",
            Self::Npm => "npm",
            Self::Debian => "debian",
        }
    }
}

/// What policy says about packages. The package proxy of a node enforces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PackagePolicy {
    /// Packages that are refused: `npm:left-pad`, or `pypi:requests==2.0` for one version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbidden: Vec<String>,
    /// Minimum age of a version, in days; 0 for none. A version whose age is unknown is refused if it is above 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub min_age_days: u32,
    /// Licences that are refused, as SPDX identifiers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbidden_licences: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Fetch of a package by a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PackageFetch {
    /// Registry.
    pub source: PackageSource,
    /// Name of the package; the path for a file that belongs to none.
    pub package: String,
    /// Version; empty for a file that belongs to none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// SHA-256 of the file, in hexadecimal; empty when it was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// Size in bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Whether it came from the cache.
    #[serde(default)]
    pub cached: bool,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Resources of an environment. A node clamps them to its own limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentLimits {
    /// Memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// CPU, in hundredths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Number of processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Disk space, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Timeout of the whole set-up, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup_seconds: Option<u32>,
}

/// Version of an environment that a job runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRef {
    /// Version, counted per project from 1.
    pub version: u32,
    /// SHA-256 of the canonical JSON of the specification, in hexadecimal.
    pub digest: String,
}

/// State of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentState {
    /// Nobody has decided about it.
    Proposed,
    /// Jobs run in it.
    Accepted,
    /// A person has refused it.
    Rejected,
    /// A later version was accepted, or proposed by the same source.
    Superseded,
}

impl EnvironmentState {
    const ALL: [Self; 4] = [Self::Proposed, Self::Accepted, Self::Rejected, Self::Superseded];

    /// Returns the name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Superseded => "superseded",
        }
    }

    /// Returns the state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// Where a version comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentOrigin {
    /// A person wrote it.
    Person,
    /// It was detected from the files of the repository.
    Detected,
    /// It stands in the repository ([`REPOSITORY_FILE`]).
    Repository,
    /// It was read from a devcontainer file of the repository.
    Devcontainer,
}

impl EnvironmentOrigin {
    const ALL: [Self; 4] = [Self::Person, Self::Detected, Self::Repository, Self::Devcontainer];

    /// Returns the name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Detected => "detected",
            Self::Repository => "repository",
            Self::Devcontainer => "devcontainer",
        }
    }

    /// Returns the origin of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.as_str() == name)
    }
}

/// Proposal of an environment, with a reason for each line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentProposal {
    /// The proposed environment.
    pub spec: EnvironmentSpec,
    /// Reasons, in the order of the lines.
    pub reasons: Vec<ProposalReason>,
    /// What a person should look at, such as a file that could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Reason for a line of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProposalReason {
    /// The line, such as `setup: npm ci`.
    pub line: String,
    /// The file that it follows from.
    pub file: String,
    /// The reason, in a sentence.
    pub reason: String,
}

impl EnvironmentSpec {
    /// Returns whether jobs need anything that a plain sandbox does not have.
    pub fn needs_setup(&self) -> bool {
        self.base != EnvironmentBase::Host
            || !self.setup.is_empty()
            || !self.system_packages.is_empty()
            || !self.services.is_empty()
    }

    /// Returns the timeout of the whole set-up, in seconds.
    pub fn setup_seconds(&self) -> u32 {
        self.limits.setup_seconds.unwrap_or(DEFAULT_SETUP_SECONDS)
    }

    /// Returns the directories below the workspace that hold build results: those that it names, or the ones of its toolchains.
    pub fn cache_dirs(&self) -> Vec<&str> {
        let mut dirs: Vec<&str> = self.caches.iter().map(String::as_str).collect();
        if dirs.is_empty() && self.package_sources.contains(&PackageSource::Crates) {
            dirs.push("target");
        }
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }

    /// Returns the commands of a kind.
    pub fn checks_of(&self, kind: EnvironmentCheckKind) -> impl Iterator<Item = &EnvironmentCheck> {
        self.checks.iter().filter(move |check| check.kind == kind)
    }

    /// Returns its lines in the form in which reasons name them, such as `setup: npm ci`; first what runs and which secrets it gets.
    pub fn list_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match &self.base {
            EnvironmentBase::Host => {}
            EnvironmentBase::Image(name) => lines.push(format!("base: image {name}")),
            EnvironmentBase::Debian(release) => lines.push(format!("base: debian {release}")),
        }
        lines.extend(self.secrets.iter().map(|(name, secret)| format!("secrets: {name}={secret}")));
        lines.extend(self.setup.iter().map(|it| format!("setup: {it}")));
        lines.extend(
            self.services.iter().map(|it| format!("services: {}: {}", it.name, it.command)),
        );
        let check = |it: &EnvironmentCheck| format!("checks: {}: {}", it.kind.as_str(), it.command);
        lines.extend(self.checks.iter().map(check));
        if self.packages_during_work {
            lines.push("packages_during_work: true".to_owned());
        }
        lines.extend(
            self.package_sources.iter().map(|it| format!("package_sources: {}", it.as_str())),
        );
        lines.extend(self.system_packages.iter().map(|it| format!("system_packages: {it}")));
        lines.extend(
            self.variables.iter().map(|(name, value)| format!("variables: {name}={value}")),
        );
        lines
    }

    /// Returns why it is no valid environment, if it is none.
    pub fn validation_error(&self) -> Option<String> {
        let lists = [
            ("system_packages", self.system_packages.len()),
            ("setup", self.setup.len()),
            ("checks", self.checks.len()),
            ("services", self.services.len()),
            ("variables", self.variables.len()),
            ("secrets", self.secrets.len()),
            ("caches", self.caches.len()),
            ("lock_files", self.lock_files.len()),
        ];
        if let Some((name, _)) = lists.iter().find(|(_, length)| *length > MAX_LIST_ENTRIES) {
            return Some(format!("`{name}` has at most {MAX_LIST_ENTRIES} entries"));
        }
        if let Some(name) = self.system_packages.iter().find(|name| !is_debian_package(name)) {
            return Some(format!("`{name}` is no name of a Debian package"));
        }
        let commands = (self.setup.iter().chain(self.checks.iter().map(|check| &check.command)))
            .chain(self.services.iter().flat_map(|service| [&service.command, &service.ready]));
        for command in commands {
            if command.trim().is_empty()
                || command.chars().count() > MAX_COMMAND_CHARS
                || command.contains('\0')
            {
                return Some(format!("a command has 1 to {MAX_COMMAND_CHARS} characters"));
            }
        }
        let is_plain_name = |name: &str| {
            (1..=100).contains(&name.chars().count()) && !name.chars().any(char::is_control)
        };
        if self.services.iter().any(|service| !is_plain_name(&service.name)) {
            return Some("the name of a service has 1 to 100 characters".to_owned());
        }
        if let Some(name) = self.secrets.values().find(|name| !is_secret_name(name)) {
            return Some(format!("{name:?} is no name of a secret: {SECRET_NAME_RULE}"));
        }
        let variables = self.variables.keys().chain(self.secrets.keys());
        if let Some(name) = variables.into_iter().find(|name| !is_variable_name(name)) {
            return Some(format!(
                "`{name}` is no name of a variable: letters, digits and `_`, and none that CyNode sets"
            ));
        }
        if self
            .variables
            .values()
            .any(|value| value.len() > MAX_COMMAND_CHARS || value.contains('\0'))
        {
            return Some(format!("a variable has at most {MAX_COMMAND_CHARS} bytes"));
        }
        let reports = self.checks.iter().filter_map(|check| check.report.as_ref()?.path.as_ref());
        let coverage = self.checks.iter().filter_map(|check| check.coverage.as_ref());
        let mut paths = self.caches.iter().chain(&self.lock_files).chain(reports).chain(coverage);
        if let Some(path) = paths.find(|path| !is_plain_path(path)) {
            return Some(format!("`{path}` is no path below the workspace"));
        }
        let timeouts = self.checks.iter().filter_map(|check| check.timeout_seconds);
        if timeouts.into_iter().any(|seconds| !(1..=MAX_CHECK_SECONDS).contains(&seconds)) {
            return Some(format!("a check takes 1 to {MAX_CHECK_SECONDS} seconds"));
        }
        if !(1..=4 * MAX_CHECK_SECONDS).contains(&self.setup_seconds()) {
            return Some(format!("the set-up takes 1 to {} seconds", 4 * MAX_CHECK_SECONDS));
        }
        match &self.base {
            EnvironmentBase::Host => None,
            EnvironmentBase::Image(name) => {
                let is_text = |c: char| !c.is_whitespace() && !c.is_control();
                (name.is_empty() || name.len() > 300 || !name.chars().all(is_text))
                    .then(|| "`base.image` is the name of an image".to_owned())
            }
            EnvironmentBase::Debian(release) => (release.is_empty()
                || release.len() > 40
                || !release.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
            .then(|| "`base.debian` is the name of a release, such as `bookworm`".to_owned()),
        }
    }
}

/// Form of the name of a secret, in words.
pub const SECRET_NAME_RULE: &str = "1 to 63 of a-z, 0-9, `-` and `_`, a letter first";

/// Returns whether a text can be the name of a secret.
pub fn is_secret_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
}

fn is_debian_package(name: &str) -> bool {
    let (name, version) = name.split_once('=').unwrap_or((name, "1"));
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let versioned = |c: char| c.is_ascii_alphanumeric() || "+-.~:".contains(c);
    name.len() >= 2
        && name.len() <= 100
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(plain)
        && !version.is_empty()
        && version.chars().all(versioned)
}

/// Variables that decide which programs run or what they load; CyNode sets the first two itself.
const RESERVED_VARIABLES: [&str; 4] = ["HOME", "CYNODE", "LD_PRELOAD", "LD_LIBRARY_PATH"];

fn is_variable_name(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let reserved = RESERVED_VARIABLES.contains(&name) || name.starts_with("CYNODE_");
    first && rest && name.len() <= 100 && !reserved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_the_same_in_toml_and_in_json() {
        let text = r#"
            system_packages = ["cmake"]
            setup = ["npm ci"]
            lock_files = ["package-lock.json"]
            package_sources = ["npm", "debian"]
            [base]
            debian = "bookworm"
            [[checks]]
            kind = "test"
            command = "npm test"
            report = { format = "tap" }
            [limits]
            memory_mib = 512
        "#;
        let spec: EnvironmentSpec = toml::from_str(text).unwrap();
        let json = serde_json::to_value(&spec).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "base": { "debian": "bookworm" },
                "system_packages": ["cmake"],
                "setup": ["npm ci"],
                "checks": [{ "kind": "test", "command": "npm test", "report": { "format": "tap" } }],
                "lock_files": ["package-lock.json"],
                "package_sources": ["npm", "debian"],
                "limits": { "memory_mib": 512 }
            })
        );
        assert_eq!(serde_json::from_value::<EnvironmentSpec>(json).unwrap(), spec);
        assert_eq!(spec.validation_error(), None);
        assert!(toml::from_str::<EnvironmentSpec>("setups = []").is_err());
    }

    #[test]
    fn build_results_are_where_the_environment_says_or_where_the_toolchain_puts_them() {
        let named = EnvironmentSpec {
            caches: ["out/b", "out/a", "out/b"].map(str::to_owned).into(),
            package_sources: vec![PackageSource::Crates],
            ..EnvironmentSpec::default()
        };
        assert_eq!(named.cache_dirs(), ["out/a", "out/b"]);
        let rust = EnvironmentSpec { caches: Vec::new(), ..named };
        assert_eq!(rust.cache_dirs(), ["target"]);
        assert_eq!(EnvironmentSpec::default().cache_dirs(), Vec::<&str>::new());
    }

    #[test]
    fn what_no_sandbox_may_be_given_is_refused_with_the_place() {
        let with = |change: fn(&mut EnvironmentSpec)| {
            let mut spec = EnvironmentSpec::default();
            change(&mut spec);
            spec.validation_error().unwrap_or_default()
        };
        let told = [
            with(|spec| spec.system_packages.push("a b".to_owned())),
            with(|spec| spec.setup.push(" ".to_owned())),
            with(|spec| drop(spec.variables.insert("LD_PRELOAD".to_owned(), String::new()))),
            with(|spec| spec.caches.push("../elsewhere".to_owned())),
            with(|spec| spec.base = EnvironmentBase::Debian("../x".to_owned())),
            with(|spec| spec.limits.setup_seconds = Some(0)),
            with(|spec| drop(spec.secrets.insert("T".to_owned(), "a\0".to_owned()))),
        ];
        assert_eq!(
            told,
            [
                "`a b` is no name of a Debian package",
                "a command has 1 to 4000 characters",
                "`LD_PRELOAD` is no name of a variable: letters, digits and `_`, and none that CyNode sets",
                "`../elsewhere` is no path below the workspace",
                "`base.debian` is the name of a release, such as `bookworm`",
                "the set-up takes 1 to 14400 seconds",
                "\"a\\0\" is no name of a secret: 1 to 63 of a-z, 0-9, `-` and `_`, a letter first",
            ]
        );
        assert_eq!(EnvironmentSpec::default().validation_error(), None);
    }
}
