//! Says what works on this machine, what does not, and what to do.

use std::{fmt, sync::Arc};

use crate::{
    client::Client,
    host::{self, Host},
    key::Key,
    node::{Settings, Tried, Workshop},
    report,
    sandbox::{Backend, SandboxError},
    store::Store,
};

/// How one thing stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It works.
    Good(String),
    /// It does not, and the node can do without.
    Missing(String),
    /// The node cannot work like this.
    Bad(String),
}

/// What was looked at, and how it stands.
#[derive(Debug)]
pub(crate) struct Finding {
    what: &'static str,
    standing: Standing,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, text) = match &self.standing {
            Standing::Good(text) => ('✓', text),
            Standing::Missing(text) => ('!', text),
            Standing::Bad(text) => ('✗', text),
        };
        write!(f, "{sign} {:<14}{text}", self.what)
    }
}

impl Finding {
    pub(crate) const fn is_bad(&self) -> bool {
        matches!(self.standing, Standing::Bad(_))
    }
}

/// Looks at everything that jobs need.
pub(crate) async fn examine(
    store: &Store,
    settings: &Settings,
    host: &Host,
    backends: Result<Vec<Arc<dyn Backend>>, SandboxError>,
    workshop: &dyn Workshop,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut note = |what, standing| findings.push(Finding { what, standing });
    note("machine", machine());
    note("disk", disk(store, settings));
    note("git", git(host).await);
    let mut working = Vec::new();
    let backends = backends.unwrap_or_else(|error| {
        note("sandbox", Standing::Bad(chain(error)));
        Vec::new()
    });
    for backend in &backends {
        let what = match backend.kind() {
            cynode_wire::work::SandboxBackend::Bubblewrap => "bubblewrap",
            cynode_wire::work::SandboxBackend::Podman => "podman",
        };
        note(
            what,
            match backend.probe().await {
                Ok(version) => {
                    working.push(Tried { backend: Arc::clone(backend), version: version.clone() });
                    Standing::Good(version)
                }
                Err(error) => Standing::Missing(chain(error)),
            },
        );
    }
    note(
        "sandbox",
        match working.len() {
            0 => Standing::Bad(
                "no backend works; install bubblewrap (`apt-get install bubblewrap`)".to_owned(),
            ),
            count => Standing::Good(format!("{count} of {} backends work", backends.len())),
        },
    );
    if let Some(tried) = working.first() {
        let agents = workshop.found(&tried.backend).await;
        let names: Vec<_> =
            agents.iter().map(|agent| format!("{} {}", agent.agent, agent.version)).collect();
        note(
            "agents",
            if names.is_empty() {
                let advice = "none is installed; `cynode-node agents list` shows which there are";
                Standing::Missing(advice.to_owned())
            } else {
                Standing::Good(names.join(", "))
            },
        );
    }
    note("orchestrator", orchestrator(store).await);
    findings
}

fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

fn machine() -> Standing {
    let facts = report::facts();
    let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
    let cgroups = fact("cgroups");
    let text = format!(
        "{} cores, {} MiB, {}, kernel {}, control groups {cgroups}",
        report::cores(),
        report::memory_mib(),
        fact("system"),
        fact("kernel"),
    );
    if cgroups == "none" {
        Standing::Bad(format!("{text}: without control groups jobs cannot be limited"))
    } else {
        Standing::Good(text)
    }
}

fn disk(store: &Store, settings: &Settings) -> Standing {
    let mib = |bytes: u64| bytes / (1024 * 1024);
    match store.free() {
        Ok(free) if free >= settings.disk_floor => {
            Standing::Good(format!("{} MiB free in {}", mib(free), store.root().display()))
        }
        Ok(free) => Standing::Bad(format!(
            "{} MiB free in {}, and no job is taken below {}: make room, or lower disk_floor_mib",
            mib(free),
            store.root().display(),
            mib(settings.disk_floor),
        )),
        Err(error) => Standing::Bad(error.to_string()),
    }
}

async fn git(host: &Host) -> Standing {
    let mut git = host.command("git");
    git.arg("--version");
    match host::run("git", git, std::time::Duration::from_secs(10)).await {
        Ok(version) => Standing::Good(version.trim().trim_start_matches("git version ").to_owned()),
        Err(error) => Standing::Bad(format!("{error}; install git (`apt-get install git`)")),
    }
}

async fn orchestrator(store: &Store) -> Standing {
    let identity = match store.identity() {
        Ok(Some(identity)) => identity,
        Ok(None) => {
            return Standing::Bad(
                "this machine is no node yet: `cynode-node join --url … --token-file …`".to_owned(),
            );
        }
        Err(error) => return Standing::Bad(error.to_string()),
    };
    let key = match Key::read(&store.key_file()) {
        Ok(key) => key,
        Err(error) => return Standing::Bad(error.to_string()),
    };
    let checked = match Client::new(&identity.url, identity.node_id, key) {
        Ok(client) => client.check().await,
        Err(error) => Err(error),
    };
    let who = format!("{} ({}) of {}", identity.name, identity.node_id, identity.url);
    match checked {
        Ok(()) => Standing::Good(who),
        Err(error) => Standing::Bad(format!("{who}: {}", chain(error))),
    }
}
