//! `cynode doctor`: what this machine has, and how to mend what it lacks.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;
use cynode_wire::health::{Check, Readiness};

use crate::{cluster, config::Config, output, restate, supervise};

/// Looks at this machine.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Space that a small installation needs.
const DISK: u64 = 2 << 30;

pub(crate) fn run(doctor: &Doctor, config: &Config) -> anyhow::Result<ExitCode> {
    let mut checks = vec![postgresql(config), user_namespaces(), cgroups(), bubblewrap(), disk()];
    checks.insert(1, engine(config));
    checks.insert(2, programs(config));
    checks.push(port("port", config.server.listen, "server.listen"));
    checks.push(port("internal port", config.server.internal_listen, "server.internal_listen"));
    if config.engine.ingress_url.is_none() {
        let own = config.engine.own;
        checks.push(port("runner port", own.runner, "engine.runner_listen"));
        checks.push(port("engine port", own.ingress, "engine.ingress_listen"));
        checks.push(port("engine admin port", own.admin, "engine.admin_listen"));
        checks.push(port("engine node port", own.node, "engine.node_listen"));
    }
    if config.manager.url.is_none() {
        checks.push(port("manager port", config.manager.listen, "manager.listen"));
        checks.push(port("analyst port", config.manager.analyst_listen, "manager.analyst_listen"));
    }
    let readiness = Readiness::from(checks);
    if doctor.json {
        output::json(&readiness)?;
    } else {
        output::checks(&readiness.checks);
    }
    Ok(if readiness.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What `cynode demo` needs: the ports are its own.
pub(super) fn for_demo(config: &Config) -> Vec<Check> {
    vec![
        postgresql(config),
        engine(config),
        programs(config),
        user_namespaces(),
        cgroups(),
        bubblewrap(),
        disk(),
    ]
}

fn postgresql(config: &Config) -> Check {
    const NAME: &str = "postgresql";
    const INSTALL: &str = "apt-get update && apt-get install -y postgresql";
    if config.database.url.is_some() {
        return Check::ok(
            NAME,
            "a database elsewhere is configured (`/readyz` tells whether it answers)",
        );
    }
    let Some(programs) = cluster::find_programs(None) else {
        return Check::failed(NAME, "the server's programs are not installed", INSTALL);
    };
    let (version, major) = cluster::version_of(&programs);
    match major {
        Some(major) if major >= cluster::OLDEST => {
            Check::ok(NAME, format!("{version} in {}", programs.display()))
        }
        Some(_) | None => {
            let detail = format!("{version} is older than {}", cluster::OLDEST);
            Check::failed(NAME, detail, INSTALL)
        }
    }
}

fn engine(config: &Config) -> Check {
    const NAME: &str = "restate-server";
    if config.engine.ingress_url.is_some() {
        return Check::ok(NAME, "an engine elsewhere is configured");
    }
    let Some(program) = restate::find() else {
        let detail = "the engine that drives tasks is not installed";
        return Check::failed(NAME, detail, restate::INSTALL);
    };
    match Command::new(&program).arg("--version").output() {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Check::ok(NAME, format!("{version} in {}", program.display()))
        }
        Ok(_) | Err(_) => {
            let detail = format!("{} does not run", program.display());
            Check::failed(NAME, detail, restate::INSTALL)
        }
    }
}

/// The other programs of an installation, and what the project manager is told to do.
fn programs(config: &Config) -> Check {
    const NAME: &str = "programs";
    let (there, mut lacking): (Vec<_>, Vec<_>) = ["cynode-runner", "cynode-pma", "cynode-node"]
        .into_iter()
        .partition(|program| supervise::beside_us(program).is_ok());
    let us = std::env::current_exe().unwrap_or_default();
    if super::up::instructions(config.manager.instructions.clone(), &us).is_none() {
        lacking.push("instructions");
    }
    if lacking.is_empty() {
        return Check::ok(NAME, format!("{} and instructions are there", there.join(", ")));
    }
    let detail = format!("{} are not beside this program, so tasks wait", lacking.join(", "));
    let fix = "install everything that a build makes: the programs beside each other, and the directory `instructions` beside them or \
               in ../share/cynode";
    Check::warning(NAME, detail, fix)
}

fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    let made = Command::new("unshare").args(["--user", "--map-root-user", "true"]).output();
    match made {
        Ok(output) if output.status.success() => Check::ok(NAME, "can be made, for sandboxes"),
        Ok(_) => Check::failed(
            NAME,
            "cannot be made, so sandboxes cannot be sealed",
            "sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1",
        ),
        Err(_) => {
            Check::failed(NAME, "`unshare` is not installed", "apt-get install -y util-linux")
        }
    }
}

fn cgroups() -> Check {
    const NAME: &str = "cgroups";
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(root.join("cgroup.controllers"));
    let has = |name: &str| {
        controllers.as_ref().is_ok_and(|text| text.split_whitespace().any(|c| c == name))
    };
    let (version, place) = if has("memory") && has("pids") {
        ("version 2", own_cgroup(root))
    } else {
        ("version 1", root.join("pids"))
    };
    if version == "version 2" || root.join("memory").is_dir() && place.is_dir() {
        if rustix::fs::access(&place, rustix::fs::Access::WRITE_OK).is_ok() {
            return Check::ok(NAME, format!("{version} with memory and pids limits"));
        }
        Check::warning(
            NAME,
            format!("{version}, but this account may make none, so no job can run on this machine"),
            "run `cynode up` as root, or where cgroups are yours: `systemd-run --user --scope -p Delegate=yes cynode up`",
        )
    } else {
        Check::failed(
            NAME,
            "no memory and pids limits, so a job could take the whole machine",
            "mount -t cgroup2 none /sys/fs/cgroup",
        )
    }
}

/// The cgroup that this process is in, as version 2 names it.
fn own_cgroup(root: &Path) -> PathBuf {
    let told = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = told.lines().find_map(|line| line.strip_prefix("0::/"));
    root.join(own.unwrap_or_default())
}

fn bubblewrap() -> Check {
    const NAME: &str = "bubblewrap";
    let printed = Command::new("bwrap").arg("--version").output();
    match printed {
        Ok(output) if output.status.success() => {
            Check::ok(NAME, String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(_) | Err(_) => Check::warning(
            NAME,
            "not installed; nodes on this machine will need it",
            "apt-get install -y bubblewrap",
        ),
    }
}

fn disk() -> Check {
    const NAME: &str = "disk";
    match rustix::fs::statvfs("/var/tmp") {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let gigabytes = free / (1 << 30);
            if free >= DISK {
                Check::ok(NAME, format!("{gigabytes} GiB free"))
            } else {
                let fix = "free some space: at least 2 GiB for the database and its journal";
                Check::failed(NAME, format!("only {gigabytes} GiB free"), fix)
            }
        }
        Err(error) => {
            Check::warning(NAME, format!("cannot be measured: {error}"), "look with `df -h`")
        }
    }
}

fn port(name: &str, address: SocketAddr, key: &str) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(name, format!("{address} is free")),
        Err(error) => Check::failed(
            name,
            format!("{address}: {error}"),
            format!(
                "see who has it with `ss -ltnp 'sport = :{}'`, or use --set {key}=HOST:PORT",
                address.port()
            ),
        ),
    }
}
