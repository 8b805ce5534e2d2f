//! `doctor`: reports what works on this machine, what does not, and how to fix it.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use cynode_core::nodes::NodeState;
use cynode_net::tls::{CertificateFacts, load_certificates};
use cynode_packages::Upstreams;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    client::NodeClient,
    host::{self, HostCommands},
    job::environment::system_packages::REQUIRED_PROGRAMS,
    key::NodeKey,
    node::{AvailableBackend, NodeSettings, WorkerFactory},
    report,
    sandbox::{Backend, SandboxError},
    store::NodeStore,
    trust,
};

/// Status of one check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DoctorStatus {
    /// The check passed.
    Good(String),
    /// The check failed, and the node can work without the feature.
    Missing(String),
    /// The check failed, and the node cannot work.
    Bad(String),
}

/// Subject of a check and its status.
#[derive(Debug)]
pub(crate) struct DoctorFinding {
    what: &'static str,
    standing: DoctorStatus,
}

impl fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, text) = match &self.standing {
            DoctorStatus::Good(text) => ('✓', text),
            DoctorStatus::Missing(text) => ('!', text),
            DoctorStatus::Bad(text) => ('✗', text),
        };
        write!(f, "{sign} {:<14}{text}", self.what)
    }
}

impl DoctorFinding {
    pub(crate) const fn is_failure(&self) -> bool {
        matches!(self.standing, DoctorStatus::Bad(_))
    }
}

/// Time that a registry has to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Configuration of the package proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackageDiagnosis<'a> {
    /// Registries.
    pub(crate) upstreams: &'a Upstreams,
    /// Warnings about configuration that cannot be used.
    pub(crate) warnings: &'a [String],
}

/// Runs every check of the machine that jobs depend on.
pub(crate) async fn run_diagnostics(
    store: &NodeStore,
    settings: &NodeSettings,
    host: &HostCommands,
    backends: Result<Vec<Arc<dyn Backend>>, SandboxError>,
    workshop: &dyn WorkerFactory,
    warnings: &[String],
    packages: PackageDiagnosis<'_>,
) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let mut note = |what, standing| findings.push(DoctorFinding { what, standing });
    note("machine", check_machine());
    note("disk", check_disk(store, settings));
    note("git", check_git(host).await);
    for warning in warnings {
        note("show", DoctorStatus::Missing(warning.clone()));
    }
    note("packages", check_packages(store, settings, packages.upstreams).await);
    for warning in packages.warnings {
        note("packages", DoctorStatus::Missing(warning.clone()));
    }
    note("apt", check_system_packages());
    let mut working = Vec::new();
    let backends = backends.unwrap_or_else(|error| {
        note("sandbox", DoctorStatus::Bad(format_error_chain(error)));
        Vec::new()
    });
    for backend in &backends {
        let what = match backend.backend_kind() {
            cynode_core::workflow::jobs::SandboxBackend::Bubblewrap => "bubblewrap",
            cynode_core::workflow::jobs::SandboxBackend::Podman => "podman",
        };
        note(
            what,
            match backend.probe_backend().await {
                Ok(version) => {
                    working.push(AvailableBackend {
                        backend: Arc::clone(backend),
                        version: version.clone(),
                    });
                    DoctorStatus::Good(version)
                }
                Err(error) => DoctorStatus::Missing(format_error_chain(error)),
            },
        );
    }
    note(
        "sandbox",
        match working.len() {
            0 => DoctorStatus::Bad(
                "no backend works; mend what is said of bubblewrap or podman above (without both: `apt-get install bubblewrap`)"
                    .to_owned(),
            ),
            count => DoctorStatus::Good(format!("{count} of {} backends work", backends.len())),
        },
    );
    if !working.is_empty() {
        let layered: Vec<_> = working
            .iter()
            .filter(|tried| tried.backend.supports_overlays())
            .map(|tried| tried.version.as_str())
            .collect();
        note(
            "environments",
            if layered.is_empty() {
                let advice = "no overlays: jobs copy their environment, and system packages need an image; \
                              a kernel with overlayfs (5.11, where the node is not root) mends that";
                DoctorStatus::Missing(advice.to_owned())
            } else {
                DoctorStatus::Good(format!(
                    "jobs start over kept environments ({})",
                    layered.join(", ")
                ))
            },
        );
    }
    if let Some(tried) = working.first() {
        let agents = workshop.detect_agents(&tried.backend).await;
        let names: Vec<_> =
            agents.iter().map(|agent| format!("{} {}", agent.agent, agent.version)).collect();
        note(
            "agents",
            if names.is_empty() {
                let advice = "none is installed; `cynode-node agents list` shows which there are";
                DoctorStatus::Missing(advice.to_owned())
            } else {
                DoctorStatus::Good(names.join(", "))
            },
        );
    }
    note("orchestrator", check_orchestrator(store).await);
    if let Some(standing) = check_certificate(store) {
        note("certificate", standing);
    }
    findings
}

fn format_error_chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

fn check_machine() -> DoctorStatus {
    let facts = report::collect_host_facts();
    let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
    let cgroups = fact("cgroups");
    let text = format!(
        "{} cores, {} MiB, {}, kernel {}, control groups {cgroups}",
        report::available_cores(),
        report::memory_mib(),
        fact("system"),
        fact("kernel"),
    );
    if cgroups == "none" {
        DoctorStatus::Bad(format!("{text}: without control groups jobs cannot be limited"))
    } else {
        DoctorStatus::Good(text)
    }
}

fn check_disk(store: &NodeStore, settings: &NodeSettings) -> DoctorStatus {
    let mib = |bytes: u64| bytes / (1024 * 1024);
    match store.free_bytes() {
        Ok(free) if free >= settings.min_free_disk_bytes => {
            DoctorStatus::Good(format!("{} MiB free in {}", mib(free), store.root_dir().display()))
        }
        Ok(free) => DoctorStatus::Bad(format!(
            "{} MiB free in {}, and no job is taken below {}: make room, or lower min_free_disk_mib",
            mib(free),
            store.root_dir().display(),
            mib(settings.min_free_disk_bytes),
        )),
        Err(error) => DoctorStatus::Bad(error.to_string()),
    }
}

/// Checks the package proxy. Its cache is not opened: the node may be running.
async fn check_packages(
    store: &NodeStore,
    settings: &NodeSettings,
    upstreams: &Upstreams,
) -> DoctorStatus {
    let packages = &settings.packages;
    if let Some(path) = packages.advisories.as_ref().filter(|path| !path.is_file()) {
        return DoctorStatus::Missing(format!(
            "{} is no file, so environments that need packages are not set up: correct package_advisories in node.toml",
            path.display()
        ));
    }
    let cache = format!(
        "a cache of at most {} MiB in {}",
        packages.max_cache_bytes / (1024 * 1024),
        store.packages_dir().display()
    );
    if packages.offline {
        return DoctorStatus::Good(format!("from the cache only (packages_offline), {cache}"));
    }
    let hosts = upstreams.registry_hosts();
    let all: Vec<_> = hosts
        .iter()
        .map(|(source, host, _)| {
            let by_node = packages.upstreams.contains_key(source.as_str());
            let by = if by_node { " (node.toml)" } else { "" };
            format!("{} from {host}{by}", source.as_str())
        })
        .collect();
    let text = format!("{}; {cache}", all.join(", "));
    // Through an HTTP proxy the registries themselves are not connected to.
    if upstreams.has_http_proxy() {
        return DoctorStatus::Good(text);
    }
    let connections = hosts.iter().map(|(_, host, port)| async move {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect((host.as_str(), *port))).await;
        (!matches!(connected, Ok(Ok(_)))).then_some(host.as_str())
    });
    let unreachable: Vec<_> =
        futures::future::join_all(connections).await.into_iter().flatten().collect();
    if unreachable.is_empty() {
        DoctorStatus::Good(text)
    } else {
        DoctorStatus::Missing(format!(
            "{text}; not reached: {}: allow the node to connect there, or name a mirror in package_upstreams of node.toml",
            unreachable.join(", ")
        ))
    }
}

fn check_system_packages() -> DoctorStatus {
    let missing = REQUIRED_PROGRAMS.iter().copied().filter(|path| !Path::new(path).exists());
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        DoctorStatus::Good("apt and dpkg are there".to_owned())
    } else {
        DoctorStatus::Missing(format!(
            "{} are missing: environments with `system_packages` or the base `debian` are not set up here; install apt, dpkg, gpgv and tar",
            missing.join(", ")
        ))
    }
}

async fn check_git(host: &HostCommands) -> DoctorStatus {
    // It runs as it does for jobs: under limits, and as its own user.
    let mut git = host.build_git_command();
    git.arg("--version");
    match host::run_program("git", git, std::time::Duration::from_secs(10)).await {
        Ok(version) => {
            DoctorStatus::Good(version.trim().trim_start_matches("git version ").to_owned())
        }
        Err(error) => DoctorStatus::Bad(format!(
            "{error}; install git (`apt-get install git`), for every user, and allow the node its resource limits"
        )),
    }
}

/// Checks the client certificate; `None` if the node has none, because its orchestrator speaks clear text on this machine.
fn check_certificate(store: &NodeStore) -> Option<DoctorStatus> {
    let path = store.certificate_file();
    if !path.exists() {
        return None;
    }
    let chain = load_certificates(&path).unwrap_or_default();
    let facts = chain.first().and_then(|leaf| CertificateFacts::parse_der(leaf).ok());
    Some(match facts {
        Some(facts) => {
            DoctorStatus::Good(format!("the client certificate is valid until {}", facts.not_after))
        }
        None => DoctorStatus::Bad(format!(
            "{} holds no certificate; restart the node, which then gets another",
            path.display()
        )),
    })
}

async fn check_orchestrator(store: &NodeStore) -> DoctorStatus {
    let identity = match store.load_identity() {
        Ok(Some(identity)) => identity,
        Ok(None) => {
            return DoctorStatus::Bad(
                "this machine is no node yet: `cynode-node join --url … --token-file …`".to_owned(),
            );
        }
        Err(error) => return DoctorStatus::Bad(error.to_string()),
    };
    let key = match NodeKey::load_key(&store.key_file()) {
        Ok(key) => key,
        Err(error) => return DoctorStatus::Bad(error.to_string()),
    };
    let tls = match trust::open_tls(store, &key) {
        Ok(tls) => tls,
        Err(error) => return DoctorStatus::Bad(format!("{error:#}")),
    };
    let checked = match NodeClient::with_tls(&identity.url, identity.node_id, key, tls) {
        Ok(client) => client.verify_key().await,
        Err(error) => Err(error),
    };
    let who = format!("{} ({}) of {}", identity.name, identity.node_id, identity.url);
    match checked {
        Ok(known) if known.state == NodeState::Draining => DoctorStatus::Missing(format!(
            "{who} gets no more jobs: an admin drains it; `cynork node undrain {}` ends that",
            known.name
        )),
        Ok(known) if known.alive => DoctorStatus::Good(who),
        Ok(_) => DoctorStatus::Missing(format!(
            "{who} knows this machine and hears nothing of its node: start it with `cynode-node --state {} run`",
            store.root_dir().display()
        )),
        Err(error) => DoctorStatus::Bad(format!("{who}: {}", format_error_chain(error))),
    }
}
