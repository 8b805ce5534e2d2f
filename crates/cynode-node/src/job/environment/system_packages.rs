//! System packages of an environment: Debian packages that apt resolves and fetches through the package proxy.
//!
//! Everything runs in a sandbox of the set-up, over the node's own system. apt has its own state, cache and sources, and checks the
//! signatures with the node's keyrings. The files of the packages are extracted; **maintainer scripts never run**. Of what they would
//! have done, programs need the links of alternatives ([`ALTERNATIVES`]) and the bundle of certificates. Not done: users of services,
//! locales other than `C.UTF-8`, the cache of the dynamic linker (libraries in a directory that only `ld.so.conf.d` names are not
//! found), Java's own certificate store.
//!
//! Over the node's own system only what it lacks is fetched. A package that it has costs nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use cynode_core::environments::EnvironmentBase;
use futures::future::BoxFuture;

use crate::sandbox::{BindMount, SandboxError};

/// Directory of the packages inside the sandbox.
const PACKAGES_DIR: &str = "/packages";

/// Directory of the node's apt configuration inside the sandbox.
const INSIDE_APT_DIR: &str = "/run/apt";

/// Directory of the node's apt configuration.
const HOST_APT_DIR: &str = "/etc/apt";

/// Directories with keyrings of apt.
const KEYRING_DIRS: [&str; 2] = ["trusted.gpg.d", "keyrings"];

/// List of the node's own packages.
const HOST_STATUS_FILE: &str = "/var/lib/dpkg/status";

/// Programs of the node that the steps use.
pub(crate) const REQUIRED_PROGRAMS: [&str; 4] =
    ["/usr/bin/apt-get", "/usr/bin/dpkg-deb", "/usr/bin/gpgv", "/usr/bin/tar"];

/// Packages of a system that is made of a release: those that every Debian system has (a pattern of apt), git, and what the programs of
/// coding agents are linked with. The agents themselves are mounted beside the system.
const RELEASE_PACKAGES: [&str; 5] =
    ["?essential", "ca-certificates", "git", "libgcc-s1", "libstdc++6"];

/// Marks the line in which the last step says what was added.
const SUMMARY_MARK: &str = "system packages added:";

/// Runs steps of a set-up in its sandbox.
pub(crate) trait SetupSandbox: Send + Sync {
    /// Runs a program to its end, over the node's own system.
    fn run_step<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<StepEnd, SandboxError>>;
}

/// End of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepEnd {
    /// Exit code, if the step ended by itself.
    pub(crate) exit_code: Option<i32>,
    /// Tail of its output.
    pub(crate) tail: String,
}

/// Where apt finds packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AptSources {
    /// Lines of apt's sources that lead through the package proxy.
    pub(crate) lines: String,
    /// Whether an index that has expired is refused.
    pub(crate) check_expiry: bool,
}

/// Packages that were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemPackages {
    /// Number of packages.
    pub(crate) packages: u64,
    /// Size of their archives in bytes.
    pub(crate) bytes: u64,
}

/// Reason why system packages could not be added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SystemPackageError {
    /// An image brings its own system.
    #[error("an image has its own packages: install them in the image, or use the base `debian`")]
    Image,
    /// A program is missing on the node.
    #[error("the node has no {0}: install apt, dpkg, gpgv and tar on it, or use an image")]
    MissingProgram(&'static str),
    /// The list of the node's packages cannot be read.
    #[error(
        "the list of the node's own packages cannot be read: use the base `debian`, or an image"
    )]
    HostStatus(#[source] io::Error),
    /// There are no sources.
    #[error(
        "the node knows no archive of Debian packages: name one as `debian` in `package_upstreams` of its node.toml"
    )]
    NoSources,
    /// There is no such package.
    #[error("there is no Debian package `{package}`{}", format_nearest(.nearest))]
    UnknownPackage {
        /// The name.
        package: String,
        /// Names that begin alike.
        nearest: Vec<String>,
    },
    /// There is no such version.
    #[error(
        "there is no version `{version}` of the Debian package `{package}`: leave the version out, or see which there are"
    )]
    UnknownVersion {
        /// Name of the package.
        package: String,
        /// The version.
        version: String,
    },
    /// The packages do not fit those of the node, or each other.
    #[error(
        "the packages do not fit those that the node has: use the base `debian` of the environment ({0})"
    )]
    Conflict(String),
    /// The index is not signed by a key of the node.
    #[error(
        "the signature of the package index does not fit a keyring of the node: install debian-archive-keyring, or the keyring of the mirror ({0})"
    )]
    Signature(String),
    /// The index has expired.
    #[error(
        "the package index has expired: look whether the mirror is up to date, and the clock of the node ({0})"
    )]
    Expired(String),
    /// The archive cannot be reached, or the proxy refused something.
    #[error("packages could not be fetched through the package proxy: {0}")]
    Fetch(String),
    /// A step failed in another way.
    #[error("{step} {exit}: {tail}")]
    Step {
        /// The step.
        step: &'static str,
        /// How it ended, such as `failed with exit code 1`.
        exit: String,
        /// Last lines of its output.
        tail: String,
    },
    /// The sandbox failed.
    #[error("the sandbox of the system packages did not work")]
    Sandbox(#[from] SandboxError),
}

fn format_nearest(nearest: &[String]) -> String {
    if nearest.is_empty() {
        " in the archives that the node uses".to_owned()
    } else {
        format!("; there are: {}", nearest.join(", "))
    }
}

fn format_exit(exit_code: Option<i32>) -> String {
    exit_code.map_or_else(|| "was ended".to_owned(), |code| format!("failed with exit code {code}"))
}

/// Adds packages to a directory that is laid over the base, or is the base.
pub(crate) async fn install_system_packages(
    sandbox: &dyn SetupSandbox,
    base: &EnvironmentBase,
    packages: &[String],
    root: &Path,
    sources: &AptSources,
) -> Result<SystemPackages, SystemPackageError> {
    let mut names = match base {
        EnvironmentBase::Image(_) if packages.is_empty() => return Ok(SystemPackages::default()),
        EnvironmentBase::Image(_) => return Err(SystemPackageError::Image),
        EnvironmentBase::Host if packages.is_empty() => return Ok(SystemPackages::default()),
        EnvironmentBase::Host => {
            let status = fs::read(HOST_STATUS_FILE).map_err(SystemPackageError::HostStatus)?;
            let installed = InstalledPackages::parse_status(&String::from_utf8_lossy(&status));
            let missing = packages.iter().filter(|name| !installed.satisfies(name));
            missing.cloned().collect()
        }
        EnvironmentBase::Debian(_) => {
            let own = RELEASE_PACKAGES.map(str::to_owned).into_iter();
            own.chain(packages.iter().cloned()).collect::<Vec<_>>()
        }
    };
    if names.is_empty() {
        return Ok(SystemPackages::default());
    }
    names.sort();
    names.dedup();
    if let Some(missing) = REQUIRED_PROGRAMS.iter().find(|path| !Path::new(path).exists()) {
        return Err(SystemPackageError::MissingProgram(missing));
    }
    if sources.lines.trim().is_empty() {
        return Err(SystemPackageError::NoSources);
    }
    let over_host = *base == EnvironmentBase::Host;
    let steps = PackageSteps {
        sandbox,
        env: step_environment(sources, over_host),
        binds: step_binds(root, over_host),
    };
    steps.run_script("reading the package index", UPDATE_SCRIPT, &[]).await?;
    match steps.run_script("fetching the packages", FETCH_SCRIPT, &names).await {
        Err(SystemPackageError::UnknownPackage { package, .. }) => {
            let nearest = steps.find_nearest_names(&package).await;
            return Err(SystemPackageError::UnknownPackage { package, nearest });
        }
        fetched => fetched?,
    };
    let tail = steps.run_script("extracting the packages", EXTRACT_SCRIPT, &[]).await?;
    Ok(parse_summary(&tail).unwrap_or_default())
}

/// Steps over the directories of one set-up.
struct PackageSteps<'a> {
    sandbox: &'a dyn SetupSandbox,
    env: BTreeMap<String, String>,
    binds: Vec<BindMount>,
}

impl PackageSteps<'_> {
    /// Runs a script with arguments and returns the tail of its output.
    async fn run_script(
        &self,
        step: &'static str,
        script: &str,
        arguments: &[String],
    ) -> Result<String, SystemPackageError> {
        let mut argv = ["/bin/sh", "-c", script, "sh"].map(str::to_owned).to_vec();
        argv.extend_from_slice(arguments);
        let end = self.sandbox.run_step(&argv, &self.env, &self.binds).await?;
        match end.exit_code {
            Some(0) => Ok(end.tail),
            exit_code => Err(classify_failure(step, exit_code, &end.tail)),
        }
    }

    /// Returns names of packages that begin as a name does. A failure gives none: the name itself is what matters.
    async fn find_nearest_names(&self, package: &str) -> Vec<String> {
        let arguments = [package.to_owned()];
        let tail = self.run_script("searching the package index", NEAREST_SCRIPT, &arguments).await;
        let names = tail.unwrap_or_default();
        names.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }
}

fn step_environment(sources: &AptSources, over_host: bool) -> BTreeMap<String, String> {
    let moved = format!("signed-by={INSIDE_APT_DIR}/");
    let lines = sources.lines.replace(&format!("signed-by={HOST_APT_DIR}/"), &moved);
    let own_status = format!("{PACKAGES_DIR}/.apt/status");
    let host_status = format!("{INSIDE_APT_DIR}/status");
    let pairs = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME", "/tmp".to_owned()),
        ("LC_ALL", "C.UTF-8".to_owned()),
        ("APT_CONFIG", format!("{PACKAGES_DIR}/.apt/apt.conf")),
        ("PACKAGES_DIR", PACKAGES_DIR.to_owned()),
        ("APT_KEYS_DIR", format!("{INSIDE_APT_DIR}/{}", KEYRING_DIRS[0])),
        ("APT_SOURCES", lines),
        ("APT_STATUS", if over_host { host_status } else { own_status }),
        ("APT_CHECK_EXPIRY", sources.check_expiry.to_string()),
        ("OVER_HOST", if over_host { "/" } else { "" }.to_owned()),
        ("ALTERNATIVES", format_alternatives()),
        ("SUMMARY_MARK", SUMMARY_MARK.to_owned()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn step_binds(root: &Path, over_host: bool) -> Vec<BindMount> {
    let mut binds =
        vec![BindMount { host: root.to_owned(), inside: PACKAGES_DIR.into(), writable: true }];
    let mut add_readable = |host: std::path::PathBuf, name: &str| {
        if host.exists() {
            let inside = Path::new(INSIDE_APT_DIR).join(name);
            binds.push(BindMount { host, inside, writable: false });
        }
    };
    for name in KEYRING_DIRS {
        add_readable(Path::new(HOST_APT_DIR).join(name), name);
    }
    if over_host {
        add_readable(HOST_STATUS_FILE.into(), "status");
    }
    binds
}

/// Packages that a system has.
#[derive(Debug, Default, PartialEq, Eq)]
struct InstalledPackages {
    versions: BTreeMap<String, String>,
    provided: BTreeSet<String>,
}

impl InstalledPackages {
    /// Parses dpkg's list of packages.
    fn parse_status(text: &str) -> Self {
        let mut installed = Self::default();
        for stanza in text.split("\n\n") {
            let field = |name: &str| {
                let mut lines = stanza.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            };
            if field("Status") != Some("install ok installed") {
                continue;
            }
            if let (Some(name), Some(version)) = (field("Package"), field("Version")) {
                installed.versions.insert(name.to_owned(), version.to_owned());
            }
            let provided = field("Provides").unwrap_or_default().split(',');
            let provided = provided.filter_map(|entry| entry.split_whitespace().next());
            installed.provided.extend(provided.map(str::to_owned));
        }
        installed
    }

    /// Returns whether a name, or a name with `=` and a version, is there already.
    fn satisfies(&self, request: &str) -> bool {
        match request.split_once('=') {
            Some((name, version)) => self.versions.get(name).is_some_and(|own| own == version),
            None => self.versions.contains_key(request) || self.provided.contains(request),
        }
    }
}

/// Returns whether the configuration of apt on this machine refuses an index that has expired. It does unless it says otherwise.
pub(crate) fn machine_checks_expiry() -> bool {
    let folder = Path::new(HOST_APT_DIR);
    let parts = fs::read_dir(folder.join("apt.conf.d")).into_iter().flatten().flatten();
    let mut files: Vec<_> = parts.map(|entry| entry.path()).collect();
    files.sort();
    files.push(folder.join("apt.conf"));
    let texts = files.iter().filter_map(|path| fs::read_to_string(path).ok());
    let mut settings = texts.filter_map(|text| parse_expiry_setting(&text));
    settings.next_back().unwrap_or(true)
}

/// Parses the setting in a configuration file of apt, if it is there.
fn parse_expiry_setting(text: &str) -> Option<bool> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '/']));
    let mut values = lines.filter_map(|line| line.strip_prefix("Acquire::Check-Valid-Until"));
    let value = values.next_back()?;
    let value = value.trim().trim_end_matches(';').trim().trim_matches('"').to_ascii_lowercase();
    Some(!matches!(value.as_str(), "false" | "no" | "0" | "off" | "without" | "disable"))
}

/// Turns the output of a failed step into a reason.
fn classify_failure(step: &'static str, exit_code: Option<i32>, tail: &str) -> SystemPackageError {
    let lines = || tail.lines().map(str::trim);
    for line in lines() {
        if let Some(name) = line.strip_prefix("E: Unable to locate package ") {
            return SystemPackageError::UnknownPackage {
                package: name.to_owned(),
                nearest: Vec::new(),
            };
        }
        // apt says this of a name that only other packages mention.
        let virtual_name = line
            .strip_prefix("E: Package '")
            .and_then(|rest| rest.strip_suffix("' has no installation candidate"));
        if let Some(name) = virtual_name {
            return SystemPackageError::UnknownPackage {
                package: name.to_owned(),
                nearest: Vec::new(),
            };
        }
        let version = line.strip_prefix("E: Version '").and_then(|rest| {
            let (version, rest) = rest.split_once("' for '")?;
            Some((version, rest.strip_suffix("' was not found")?))
        });
        if let Some((version, package)) = version {
            return SystemPackageError::UnknownVersion {
                package: package.to_owned(),
                version: version.to_owned(),
            };
        }
    }
    let reason = summarize_errors(tail);
    let says = |texts: &[&str]| lines().any(|line| texts.iter().any(|text| line.contains(text)));
    if says(&["GPG error", "NO_PUBKEY", "is not signed", "BADSIG", "couldn't be verified"]) {
        SystemPackageError::Signature(reason)
    } else if says(&["is expired", "is not valid yet"]) {
        SystemPackageError::Expired(reason)
    } else if says(&["unmet dependencies", "held broken packages", "remove is disabled"]) {
        SystemPackageError::Conflict(reason)
    } else if says(&["E: Failed to fetch", "Err:", "Could not connect", "Some index files failed"])
    {
        SystemPackageError::Fetch(reason)
    } else {
        SystemPackageError::Step { step, exit: format_exit(exit_code), tail: reason }
    }
}

/// Maximum number of lines of a reason.
const MAX_REASON_LINES: usize = 6;

/// Maximum number of characters of a reason.
const MAX_REASON_CHARS: usize = 1000;

/// Returns the lines of an output that say what went wrong, in one line.
fn summarize_errors(tail: &str) -> String {
    let lines: Vec<_> = tail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let telling = |line: &&&str| {
        line.starts_with("E: ")
            || line.starts_with("Err:")
            || line.contains(" : Depends: ")
            || line.contains(" : Conflicts: ")
            || line.contains("GPG error")
    };
    let errors: Vec<&str> = lines.iter().filter(telling).copied().collect();
    let chosen = if errors.is_empty() { &lines } else { &errors };
    let from = chosen.len().saturating_sub(MAX_REASON_LINES);
    let text = chosen.iter().skip(from).copied().collect::<Vec<_>>().join("; ");
    text.chars().take(MAX_REASON_CHARS).collect()
}

/// Parses the last step's line about what was added.
fn parse_summary(tail: &str) -> Option<SystemPackages> {
    let line = tail.lines().rev().find_map(|line| line.trim().strip_prefix(SUMMARY_MARK))?;
    let mut numbers = line.split_whitespace().map(str::parse);
    Some(SystemPackages { packages: numbers.next()?.ok()?, bytes: numbers.next()?.ok()? })
}

/// Links that maintainer scripts make by `update-alternatives`: the link, and its targets relative to it. The first target that is there
/// wins; a target may be a pattern of the shell, and so may the directory of the link.
const ALTERNATIVES: [(&str, &str); 40] = [
    ("usr/bin/aclocal", "aclocal-[0-9]*"),
    ("usr/bin/automake", "automake-[0-9]*"),
    ("usr/bin/awk", "gawk mawk original-awk"),
    ("usr/bin/c++", "g++ clang++ clang++-[0-9]*"),
    ("usr/bin/c89", "c89-gcc"),
    ("usr/bin/c99", "c99-gcc"),
    ("usr/bin/cc", "gcc clang clang-[0-9]*"),
    ("usr/bin/editor", "nano vim.basic vim.nox vim.tiny"),
    ("usr/bin/f77", "gfortran"),
    ("usr/bin/f95", "gfortran"),
    ("usr/bin/fakeroot", "fakeroot-sysv fakeroot-tcp"),
    ("usr/bin/faked", "faked-sysv faked-tcp"),
    ("usr/bin/jar", "../lib/jvm/*/bin/jar"),
    ("usr/bin/jarsigner", "../lib/jvm/*/bin/jarsigner"),
    ("usr/bin/java", "../lib/jvm/*/bin/java"),
    ("usr/bin/javac", "../lib/jvm/*/bin/javac"),
    ("usr/bin/javadoc", "../lib/jvm/*/bin/javadoc"),
    ("usr/bin/javap", "../lib/jvm/*/bin/javap"),
    ("usr/bin/jlink", "../lib/jvm/*/bin/jlink"),
    ("usr/bin/jshell", "../lib/jvm/*/bin/jshell"),
    ("usr/bin/keytool", "../lib/jvm/*/bin/keytool"),
    ("usr/bin/js", "nodejs node"),
    ("usr/bin/lex", "flex"),
    ("usr/bin/lua", "lua5.[0-9]"),
    ("usr/bin/luac", "luac5.[0-9]"),
    ("usr/bin/mvn", "../share/maven/bin/mvn"),
    ("usr/bin/nawk", "gawk mawk original-awk"),
    ("usr/bin/nc", "nc.openbsd nc.traditional"),
    ("usr/bin/pager", "less more"),
    ("usr/bin/php", "php[0-9]*.[0-9]"),
    ("usr/bin/vi", "vim.basic vim.nox vim.tiny nvi"),
    ("usr/bin/vim", "vim.basic vim.nox vim.gtk3"),
    ("usr/bin/which", "which.debianutils"),
    ("usr/bin/yacc", "bison.yacc byacc"),
    ("usr/lib/*-linux-*/libblas.so", "openblas-pthread/libblas.so blas/libblas.so"),
    ("usr/lib/*-linux-*/libblas.so.3", "openblas-pthread/libblas.so.3 blas/libblas.so.3"),
    ("usr/lib/*-linux-*/liblapack.so", "openblas-pthread/liblapack.so lapack/liblapack.so"),
    ("usr/lib/*-linux-*/liblapack.so.3", "openblas-pthread/liblapack.so.3 lapack/liblapack.so.3"),
    ("usr/lib/*-linux-*/libopenblas.so", "openblas-pthread/libopenblas.so"),
    ("usr/lib/*-linux-*/libopenblas.so.0", "openblas-pthread/libopenblas.so.0"),
];

fn format_alternatives() -> String {
    let lines = ALTERNATIVES.iter().map(|(link, targets)| format!("{link} {targets}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes apt's configuration and reads the package index.
const UPDATE_SCRIPT: &str = include_str!("system_packages/update.sh");

/// Fetches the named packages and all that they need.
const FETCH_SCRIPT: &str = include_str!("system_packages/fetch.sh");

/// Prints names of packages that begin as a name does.
const NEAREST_SCRIPT: &str = include_str!("system_packages/nearest.sh");

/// Extracts the packages, makes links, and removes apt's files.
const EXTRACT_SCRIPT: &str = include_str!("system_packages/extract.sh");

#[cfg(test)]
mod tests;
