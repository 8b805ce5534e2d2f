//! `cynode doctor`: checks this machine, and says how to fix each problem.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;
use cynode_app::{
    AppEnvironment,
    background::doctor::{check_archiver, check_last_backup},
};
use cynode_db::platform::backup::{self as records, ArchiverStatus, BackupRecord};
use cynode_wire::platform::health::{Readiness, ReadinessCheck};

use super::{block_on, open_app};
use crate::{
    backup::{self, StoredBackup},
    cluster,
    config::CynodeConfig,
    installation::InstallationArgs,
    master_key, output, restate, supervise,
};

/// Check this machine.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Check instead whether the installation could be restored: age and verification of its last backup.
    #[arg(long)]
    restore: bool,
    /// With --restore: directory of the backups; without it, the running installation is asked.
    #[arg(long, value_name = "DIRECTORY", requires = "restore")]
    backups: Option<PathBuf>,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Minimum free disk space of a small installation.
const MIN_FREE_DISK_BYTES: u64 = 2 << 30;

pub(crate) fn run_doctor(
    doctor: &DoctorArgs,
    config: &mut CynodeConfig,
) -> anyhow::Result<ExitCode> {
    let checks =
        if doctor.restore { restore_checks(doctor, config)? } else { machine_checks(config) };
    let readiness = Readiness::from(checks);
    if doctor.json {
        output::print_json(&readiness)?;
    } else {
        output::print_checks(&readiness.checks);
    }
    Ok(if readiness.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the running installation says about its backups.
struct OwnBackups {
    last: Option<BackupRecord>,
    /// Public keys with which it has signed its backups.
    public_keys: Vec<String>,
    /// Its archiver of the write-ahead log, if there is one.
    archiver: Option<ArchiverStatus>,
}

/// Checks whether the installation could be restored.
fn restore_checks(
    doctor: &DoctorArgs,
    config: &mut CynodeConfig,
) -> anyhow::Result<Vec<ReadinessCheck>> {
    let now = AppEnvironment::from_system().now();
    let own = match doctor.installation.fill_config(config, true) {
        Ok(()) if doctor.backups.is_none() || config.database.url.is_some() => {
            Some(block_on(load_own_backups(config, doctor.backups.as_deref()))?)
        }
        // On a machine that has the backups only, they are looked at by themselves.
        Ok(()) => None,
        Err(_) if doctor.backups.is_some() && !doctor.installation.is_given() => None,
        Err(error) => return Err(error),
    };
    let public_keys = own.as_ref().map(|own| own.public_keys.as_slice());
    let (last, stored) = match (&doctor.backups, &own) {
        (Some(directory), _) => {
            let stored = backup::find_newest_backup(directory, public_keys)?;
            let record = stored.as_ref().map(|stored| match public_keys {
                Some(keys) => stored.to_record(keys),
                None => stored.to_unchecked_record(),
            });
            (record, stored.map(Ok))
        }
        (None, Some(own)) => {
            let stored =
                own.last.as_ref().map(|last| backup::open_stored_backup(Path::new(&last.location)));
            (own.last.clone(), stored)
        }
        (None, None) => (None, None),
    };
    let age = match &last {
        Some(last) => check_last_backup(last, now),
        None => ReadinessCheck::failed_check("backups", "there is no backup", "make one")
            .with_commands(["cynode backup DIRECTORY --verify --recipient AGE1… --identity FILE"]),
    };
    let files = stored.map(|stored| check_stored_backup(&stored, last.as_ref(), public_keys));
    let archiver = own.and_then(|own| own.archiver).map(|status| check_archiver(&status));
    Ok([age].into_iter().chain(files).chain(archiver).collect())
}

/// Asks the running installation. It is told first of the backups in a directory, and of verifications that were made elsewhere.
async fn load_own_backups(
    config: &CynodeConfig,
    directory: Option<&Path>,
) -> anyhow::Result<OwnBackups> {
    let options = config.database.pool_options()?;
    let keys = master_key::load_keys(config, &open_app(config, &options)?).await?;
    let public_keys = backup::public_keys_of(&keys);
    let pool = cynode_db::connect_pool(&options)?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    if let Some(directory) = directory {
        backup::import_backups(&mut conn, directory, &public_keys).await?;
    }
    Ok(OwnBackups {
        last: records::list_backups(&mut conn, 1).await?.pop(),
        archiver: records::get_archiver_status(&mut conn).await?,
        public_keys,
    })
}

/// Checks that a backup is where it was recorded, whole, and signed by the installation.
fn check_stored_backup(
    stored: &anyhow::Result<StoredBackup>,
    last: Option<&BackupRecord>,
    public_keys: Option<&[String]>,
) -> ReadinessCheck {
    const NAME: &str = "backup files";
    let stored = match stored {
        Ok(stored) => stored,
        Err(error) => {
            let fix = "mount the disk, or name where the backups are now with --backups DIRECTORY";
            return ReadinessCheck::failed_check(NAME, format!("{error:#}"), fix);
        }
    };
    let place = stored.path.display();
    if last.is_some_and(|last| last.id != stored.manifest.backup_id) {
        let detail = format!("{place} is another backup than the one that was recorded there");
        return ReadinessCheck::failed_check(NAME, detail, "make another backup");
    }
    let missing = stored.missing_parts();
    if missing > 0 {
        let detail = format!("{missing} parts are missing or cut off in {place}");
        return ReadinessCheck::failed_check(NAME, detail, "make another backup");
    }
    match public_keys {
        Some(keys) if stored.is_signed_by(keys) => {
            let detail = format!("all parts are in {place}, signed by this installation");
            ReadinessCheck::passed_check(NAME, detail)
        }
        Some(_) => {
            let detail = format!("{place} is not what this installation signed");
            ReadinessCheck::failed_check(NAME, detail, "make another backup")
        }
        None => {
            let detail = format!("all parts are in {place}; whose backup it is was not checked");
            let fix =
                "run it where the installation is, or `cynode restore --check` with --public-key";
            ReadinessCheck::warning_check(NAME, detail, fix)
        }
    }
}

/// Checks what this machine needs for `cynode up`.
fn machine_checks(config: &CynodeConfig) -> Vec<ReadinessCheck> {
    let mut checks = vec![
        check_postgresql(config),
        check_user_namespaces(),
        check_cgroups(),
        check_bubblewrap(),
        check_git(),
        check_disk_space(),
    ];
    checks.insert(1, check_engine(config));
    checks.insert(2, check_programs(config));
    checks.push(check_port_free("port", config.server.listen, "server.listen"));
    checks.push(check_port_free(
        "internal port",
        config.server.internal_listen,
        "server.internal_listen",
    ));
    checks.extend(crate::tls::check_tls(config));
    if config.engine.ingress_url.is_none() {
        let runner = config.engine.runner_listen;
        checks.push(check_port_free("runner port", runner, "engine.runner_listen"));
    }
    if config.manager.url.is_none() {
        checks.push(check_port_free("manager port", config.manager.listen, "manager.listen"));
        checks.push(check_port_free(
            "analyst port",
            config.manager.analyst_listen,
            "manager.analyst_listen",
        ));
    }
    checks
}

/// Checks the requirements of `cynode demo`, which uses its own ports.
pub(super) fn demo_checks(config: &CynodeConfig) -> Vec<ReadinessCheck> {
    vec![
        check_postgresql(config),
        check_engine(config),
        check_programs(config),
        check_user_namespaces(),
        check_cgroups(),
        check_bubblewrap(),
        check_git(),
        check_disk_space(),
    ]
}

fn check_postgresql(config: &CynodeConfig) -> ReadinessCheck {
    const NAME: &str = "postgresql";
    const INSTALL_COMMAND: &str = "apt-get update && apt-get install -y postgresql";
    if config.database.url.is_some() {
        return ReadinessCheck::passed_check(
            NAME,
            "a database elsewhere is configured (`/readyz` tells whether it answers)",
        );
    }
    let Some(programs) = cluster::find_programs(None) else {
        return ReadinessCheck::failed_check(
            NAME,
            "the server's programs are not installed",
            INSTALL_COMMAND,
        );
    };
    let (version, major) = cluster::server_version(&programs);
    match major {
        Some(major) if major >= cluster::MIN_POSTGRES_VERSION => {
            ReadinessCheck::passed_check(NAME, format!("{version} in {}", programs.display()))
        }
        Some(_) | None => {
            let detail = format!("{version} is older than {}", cluster::MIN_POSTGRES_VERSION);
            ReadinessCheck::failed_check(NAME, detail, INSTALL_COMMAND)
        }
    }
}

fn check_engine(config: &CynodeConfig) -> ReadinessCheck {
    const NAME: &str = "restate-server";
    if config.engine.ingress_url.is_some() {
        return ReadinessCheck::passed_check(NAME, "an engine elsewhere is configured");
    }
    let Some(program) = restate::find_engine_program() else {
        let detail = "the engine that drives tasks is not installed";
        return ReadinessCheck::failed_check(NAME, detail, restate::INSTALL_HINT);
    };
    let failed = |detail| ReadinessCheck::failed_check(NAME, detail, restate::INSTALL_HINT);
    match restate::engine_version(&program) {
        Ok(version) => {
            let detail = format!("{version} in {}", program.display());
            if restate::is_tested_release(&version) {
                return ReadinessCheck::passed_check(NAME, detail);
            }
            failed(format!("{detail}, but CyNode is tested with {}", restate::TESTED_VERSION))
        }
        Err(error) => failed(format!("{error:#}")),
    }
}

/// Checks the other programs of an installation, and the instructions of the project manager.
fn check_programs(config: &CynodeConfig) -> ReadinessCheck {
    const NAME: &str = "programs";
    let (there, mut lacking): (Vec<_>, Vec<_>) = ["cynode-runner", "cynode-pma", "cynode-node"]
        .into_iter()
        .partition(|program| supervise::find_sibling_program(program).is_ok());
    let us = std::env::current_exe().unwrap_or_default();
    if super::up::find_instructions(config.manager.instructions.clone(), &us).is_none() {
        lacking.push("instructions");
    }
    if lacking.is_empty() {
        return ReadinessCheck::passed_check(
            NAME,
            format!("{} and instructions are there", there.join(", ")),
        );
    }
    let detail = format!("{} are not beside this program, so tasks wait", lacking.join(", "));
    let fix = "install everything that a build makes: the programs beside each other, and the directory `instructions` beside them or \
               in ../share/cynode";
    ReadinessCheck::warning_check(NAME, detail, fix)
}

fn check_user_namespaces() -> ReadinessCheck {
    const NAME: &str = "user namespaces";
    let made = Command::new("unshare").args(["--user", "--map-root-user", "true"]).output();
    match made {
        Ok(output) if output.status.success() => {
            ReadinessCheck::passed_check(NAME, "can be made, for sandboxes")
        }
        Ok(_) => ReadinessCheck::failed_check(
            NAME,
            "cannot be made, so sandboxes cannot be sealed",
            "sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1",
        ),
        Err(_) => ReadinessCheck::failed_check(
            NAME,
            "`unshare` is not installed",
            "apt-get install -y util-linux",
        ),
    }
}

fn check_cgroups() -> ReadinessCheck {
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
            return ReadinessCheck::passed_check(
                NAME,
                format!("{version} with memory and pids limits"),
            );
        }
        ReadinessCheck::warning_check(
            NAME,
            format!("{version}, but this account may make none, so no job can run on this machine"),
            "run `cynode up` as root, or where cgroups are yours: `systemd-run --user --scope -p Delegate=yes cynode up`",
        )
    } else {
        ReadinessCheck::failed_check(
            NAME,
            "no memory and pids limits, so a job could take the whole machine",
            "mount -t cgroup2 none /sys/fs/cgroup",
        )
    }
}

/// Returns the cgroup (version 2) of this process.
fn own_cgroup(root: &Path) -> PathBuf {
    let told = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = told.lines().find_map(|line| line.strip_prefix("0::/"));
    root.join(own.unwrap_or_default())
}

fn check_bubblewrap() -> ReadinessCheck {
    const NAME: &str = "bubblewrap";
    let printed = Command::new("bwrap").arg("--version").output();
    match printed {
        Ok(output) if output.status.success() => {
            ReadinessCheck::passed_check(NAME, String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(_) | Err(_) => ReadinessCheck::warning_check(
            NAME,
            "not installed; nodes and tool servers that are programs will need it",
            "apt-get install -y bubblewrap",
        ),
    }
}

/// Checks that git runs under resource limits, as it does where it reads the packs of others.
fn check_git() -> ReadinessCheck {
    const NAME: &str = "git";
    const INSTALL_COMMAND: &str = "apt-get install -y git util-linux";
    let mut limited = Command::new("prlimit");
    limited.args(["--core=0", "--data=234881024", "--as=536870912", "--cpu=120:125"]);
    let printed = limited.args(["--fsize=4294967296", "--", "git", "version"]).output();
    match printed {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            ReadinessCheck::passed_check(NAME, format!("{}, under limits", version.trim()))
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let detail = format!("does not run under limits: {}", said.trim());
            ReadinessCheck::failed_check(NAME, detail, INSTALL_COMMAND)
        }
        Err(_) => {
            let detail = "`prlimit` is not installed, and git does not run without limits";
            ReadinessCheck::failed_check(NAME, detail, INSTALL_COMMAND)
        }
    }
}

fn check_disk_space() -> ReadinessCheck {
    const NAME: &str = "disk";
    match rustix::fs::statvfs("/var/tmp") {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let gigabytes = free / (1 << 30);
            if free >= MIN_FREE_DISK_BYTES {
                ReadinessCheck::passed_check(NAME, format!("{gigabytes} GiB free"))
            } else {
                let fix = "free some space: at least 2 GiB for the database and its journal";
                ReadinessCheck::failed_check(NAME, format!("only {gigabytes} GiB free"), fix)
            }
        }
        Err(error) => ReadinessCheck::warning_check(
            NAME,
            format!("cannot be measured: {error}"),
            "look with `df -h`",
        ),
    }
}

fn check_port_free(name: &str, address: SocketAddr, key: &str) -> ReadinessCheck {
    match TcpListener::bind(address) {
        Ok(_) => ReadinessCheck::passed_check(name, format!("{address} is free")),
        Err(error) => ReadinessCheck::failed_check(
            name,
            format!("{address}: {error}"),
            format!(
                "see who has it with `ss -ltnp 'sport = :{}'`, or use --set {key}=HOST:PORT",
                address.port()
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use cynode_wire::platform::health::ReadinessStatus;

    use super::*;

    #[test]
    fn a_backup_that_is_not_where_it_was_recorded_fails() {
        let dir = tempfile::tempdir().unwrap();
        let gone = backup::open_stored_backup(&dir.path().join("cynode-1"));
        let check = check_stored_backup(&gone, None, Some(&[]));
        assert_eq!(check.status, ReadinessStatus::Failed);
        assert!(check.detail.contains("is no complete backup"), "{}", check.detail);
    }
}
