//! The PostgreSQL cluster of `cynode up`, under the data directory.
//!
//! It listens on a socket in a directory that only its user may enter, requires a random password, and is never reachable over
//! the network. Killed at any moment, it recovers by itself at the next start.

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use cynode_app::AppEnvironment;
use cynode_db::{
    DbOptions,
    platform::database_roles::{self, RUNTIME_ROLE},
};
use cynode_net::backoff::{Backoff, Jitter};
use data_encoding::HEXLOWER;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use secrecy::{ExposeSecret, SecretString};
use tokio::process::{Child, Command};

use crate::{output, restate::open_private_log};

/// How long PostgreSQL may take to start; after a crash it replays its write-ahead log first.
const START_STOP_TIMEOUT: Duration = Duration::from_mins(1);

/// How long the replay of a restored cluster may take.
const RECOVERY_TIMEOUT: Duration = Duration::from_hours(12);

/// Backoff between restarts of a server that does not start.
const RESTART_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(10), Jitter::None);

/// The oldest version with the features that the schema uses (`NULLS NOT DISTINCT`).
pub(crate) const MIN_POSTGRES_VERSION: u32 = 15;

/// A running cluster.
pub(crate) struct PostgresCluster {
    paths: ClusterPaths,
    password: SecretString,
    programs: PathBuf,
    /// Arguments with further settings of the server.
    settings: Vec<String>,
    /// `None` if it was already running: an earlier `up` was killed and left it.
    child: Option<Child>,
}

struct ClusterPaths {
    dir: PathBuf,
    data: PathBuf,
    socket: PathBuf,
    password: PathBuf,
    runtime_password: PathBuf,
    restore_wal: PathBuf,
    log: PathBuf,
}

/// The role that owns the schema: it migrates and backs up. A running server has [`RUNTIME_ROLE`].
const OWNER_ROLE: &str = "cynode";

/// The file name of PostgreSQL's socket.
const SOCKET_FILE_NAME: &str = ".s.PGSQL.5432";

impl ClusterPaths {
    fn in_data_dir(dir: &Path) -> Self {
        Self {
            dir: dir.join("postgres"),
            data: dir.join("postgres/data"),
            socket: dir.join("postgres/run"),
            password: dir.join("postgres/password"),
            runtime_password: dir.join("postgres/runtime-password"),
            restore_wal: dir.join("postgres/restore-wal"),
            log: dir.join("postgres/server.log"),
        }
    }

    fn connection_url(&self, role: &str, password: &SecretString) -> SecretString {
        let (password, socket) = (password.expose_secret(), percent_encode_path(&self.socket));
        format!("postgres://{role}:{password}@localhost/postgres?host={socket}").into()
    }
}

/// Returns whether the directory contains a cluster.
pub(crate) fn has_cluster(dir: &Path) -> bool {
    ClusterPaths::in_data_dir(dir).data.exists()
}

/// Returns the URL of the cluster that a running `cynode up` has in that directory.
pub(crate) fn running_cluster_url(dir: &Path) -> anyhow::Result<SecretString> {
    let paths = ClusterPaths::in_data_dir(dir);
    let place = dir.display();
    ensure!(
        paths.password.exists(),
        "the database of {place} is not its own: set DATABASE_URL or database.url_file as for its `cynode up`"
    );
    let password = fs::read_to_string(&paths.password).with_context(|| {
        format!("only the account that starts `cynode up` over {place} may do this")
    })?;
    ensure!(
        UnixStream::connect(paths.socket.join(SOCKET_FILE_NAME)).is_ok(),
        "the database of {place} does not run: start `cynode up --data-dir {place}` first"
    );
    Ok(paths.connection_url(OWNER_ROLE, &password.trim().to_owned().into()))
}

/// Returns a client program of PostgreSQL that works on the running cluster of that directory as its owner. The password is in its
/// environment, which only its own user and root can read, and nothing else of ours is.
pub(crate) fn client_command(dir: &Path, program: &str) -> anyhow::Result<std::process::Command> {
    let paths = ClusterPaths::in_data_dir(dir);
    let programs = find_programs(cluster_version(&paths)).context("PostgreSQL is not installed")?;
    let password = fs::read_to_string(&paths.password).with_context(|| {
        format!("only the account that starts `cynode up` over {} may do this", dir.display())
    })?;
    let path = std::env::join_paths(crate::config::search_path())
        .context("the search path of programs cannot be read")?;
    let mut command = std::process::Command::new("setpriv");
    command
        // If this process is killed, the program is killed too.
        .args(["--pdeathsig=KILL", "--"])
        .arg(programs.join(program))
        .env_clear()
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8")
        .env("PGHOST", &paths.socket)
        .env("PGUSER", OWNER_ROLE)
        .env("PGDATABASE", "postgres")
        .env("PGPASSWORD", password.trim());
    Ok(command)
}

/// Returns the major version of PostgreSQL that made the cluster.
fn cluster_version(paths: &ClusterPaths) -> Option<u32> {
    let version = fs::read_to_string(paths.data.join("PG_VERSION")).ok()?;
    version.trim().parse().ok()
}

/// Returns the major version of PostgreSQL of the cluster in that directory.
pub(crate) fn postgres_version(dir: &Path) -> anyhow::Result<u32> {
    let version = cluster_version(&ClusterPaths::in_data_dir(dir));
    version.with_context(|| format!("there is no database in {}", dir.display()))
}

/// Finds PostgreSQL's programs; those of `version` if a cluster needs them.
pub(crate) fn find_programs(version: Option<u32>) -> Option<PathBuf> {
    let has = |dir: &PathBuf| dir.join("initdb").exists() && dir.join("postgres").exists();
    let path = crate::config::search_path();
    // Debian keeps them off the PATH, one directory for each version; the newest is used.
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let wanted =
        versions.iter().find(|(found, _)| Some(*found) == version).map(|(_, dir)| dir.clone());
    wanted.into_iter().chain(path).chain(versions.into_iter().map(|(_, dir)| dir)).find(has)
}

/// Returns the version text of a server, and the major version, which its clusters depend on.
pub(crate) fn server_version(programs: &Path) -> (String, Option<u32>) {
    let printed = std::process::Command::new(programs.join("postgres")).arg("--version").output();
    let printed = printed.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let version = printed.unwrap_or_default();
    let major = version.split_whitespace().find_map(|word| word.split('.').next()?.parse().ok());
    (version, major)
}

impl PostgresCluster {
    /// Creates the cluster if there is none, and starts it unless it runs. Its write-ahead log is archived to `wal_archive`, if one is
    /// named.
    pub(crate) async fn start_in(dir: &Path, wal_archive: Option<&Path>) -> anyhow::Result<Self> {
        let settings = match wal_archive {
            Some(archive) => {
                prepare_archive(archive)?;
                archive_settings(archive)
            }
            None => Vec::new(),
        };
        Self::start_within(dir, settings, START_STOP_TIMEOUT).await
    }

    /// Starts a restored cluster, which replays its write-ahead log as far as it is told. That may take long.
    pub(crate) async fn start_restored(dir: &Path, recovery: Vec<String>) -> anyhow::Result<Self> {
        Self::start_within(dir, recovery, RECOVERY_TIMEOUT).await
    }

    async fn start_within(
        dir: &Path,
        settings: Vec<String>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let paths = ClusterPaths::in_data_dir(dir);
        // The kernel limits the length of a socket's path.
        let socket = paths.socket.join(SOCKET_FILE_NAME);
        ensure!(
            socket.as_os_str().len() <= 107,
            "the path {} is too long for a socket: choose a shorter --data-dir",
            socket.display()
        );
        // A cluster stays with the version that created it, even if a newer one is installed beside it.
        let version = cluster_version(&paths);
        let programs = find_programs(version).context(
            "PostgreSQL is not installed: `apt-get install postgresql` (15 or newer), \
             or set DATABASE_URL to a database elsewhere",
        )?;
        if let (Some(made_by), (_, Some(there))) = (version, server_version(&programs)) {
            ensure!(
                made_by == there,
                "the database in {} was made by PostgreSQL {made_by}, and {} has {there}: `apt-get install postgresql-{made_by}`, \
                 or bring it to {there} with pg_upgrade",
                paths.data.display(),
                programs.display()
            );
        }
        prepare_directories(&paths)?;
        let password = load_or_create_password(&paths.password)?;
        if !paths.data.exists() {
            initialize_cluster(&programs, &paths).await?;
        }
        let mut cluster = Self { paths, password, programs, settings, child: None };
        if !cluster.attach_to_running().await? {
            cluster.spawn_server()?;
            cluster.wait_until_ready(timeout).await?;
        }
        tracing::info!(event = "backend.started", backend = "postgresql", "the database runs");
        Ok(cluster)
    }

    /// Returns the connection URL of the owner, which contains the password.
    pub(crate) fn connection_url(&self) -> SecretString {
        self.paths.connection_url(OWNER_ROLE, &self.password)
    }

    /// Returns the connection URL of a running server: its role reads and writes rows and creates nothing. The role is created, or gets
    /// the password of this installation.
    pub(crate) async fn runtime_url(&self) -> anyhow::Result<SecretString> {
        let password = load_or_create_password(&self.paths.runtime_password)?;
        let options = owner_options(&self.connection_url());
        let pool = cynode_db::connect_pool(&options)?;
        let mut conn = cynode_db::acquire_connection(&pool).await?;
        database_roles::ensure_runtime_role(&mut conn, password.expose_secret()).await?;
        drop(conn);
        pool.close().await;
        Ok(self.paths.connection_url(RUNTIME_ROLE, &password))
    }

    /// Keeps the server running: an unexpected exit leads to a restart, with backoff and without a limit. Never returns.
    pub(crate) async fn supervise_server(&mut self) -> Infallible {
        loop {
            let ended = self.wait_for_exit().await;
            let log = self.paths.log.display().to_string();
            tracing::error!(
                event = "backend.exited",
                backend = "postgresql",
                log,
                "{ended}; it is started again"
            );
            output::print_line(&format!(
                "PostgreSQL {ended}; it is started again, nothing that was committed is lost"
            ));
            let mut backoff = RESTART_BACKOFF;
            while let Err(error) = self.restart_server().await {
                let why = format!("{error:#}");
                tracing::error!(
                    event = "backend.start_failed",
                    backend = "postgresql",
                    error = why,
                    "tried again"
                );
                output::print_line(&format!(
                    "PostgreSQL does not start: {why}; it is tried again. Read {log}, and make room with `df -h` if a disk is full"
                ));
                backoff.wait_next_delay().await;
            }
            tracing::info!(
                event = "backend.started",
                backend = "postgresql",
                "the database runs again"
            );
            output::print_line("PostgreSQL runs again");
        }
    }

    /// Waits until the server has exited unexpectedly. Returns how it ended.
    async fn wait_for_exit(&mut self) -> String {
        match &mut self.child {
            Some(child) => match child.wait().await {
                Ok(status) => format!("ended by itself with {status}"),
                Err(error) => format!("cannot be watched: {error}"),
            },
            // A server that an earlier `up` started is not our child.
            None => {
                let mut turn = tokio::time::interval(Duration::from_millis(500));
                while running_server_pid(&self.paths).is_some() {
                    turn.tick().await;
                }
                "ended by itself".to_owned()
            }
        }
    }

    /// Restarts the server. It waits for the remaining processes of the old one: two servers must never share the data.
    async fn restart_server(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_none()
        {
            // It was started before and is not ready yet.
            return self.wait_until_ready(START_STOP_TIMEOUT).await;
        }
        self.spawn_server()?;
        self.wait_until_ready(START_STOP_TIMEOUT).await
    }

    /// Stops the server: running statements are aborted, committed data is durable.
    pub(crate) async fn stop_server(self) -> anyhow::Result<()> {
        // A child that has exited has no id any more.
        let own = self
            .child
            .as_ref()
            .map(|child| child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
        if let Some(pid) = own.unwrap_or_else(|| running_server_pid(&self.paths)) {
            kill_process(pid, Signal::INT).context("PostgreSQL could not be told to stop")?;
        }
        let late = || format!("PostgreSQL did not stop; see {}", self.paths.log.display());
        match self.child {
            Some(mut child) => {
                tokio::time::timeout(START_STOP_TIMEOUT, child.wait())
                    .await
                    .with_context(late)??;
            }
            None => wait_for_shutdown(&self.paths).await?,
        }
        Ok(())
    }

    /// Takes over a server that an earlier `up` left behind. Returns `false` if none runs.
    async fn attach_to_running(&self) -> anyhow::Result<bool> {
        let mut turn = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..START_STOP_TIMEOUT.as_millis() / 50 {
            if running_server_pid(&self.paths).is_none() {
                return Ok(false);
            }
            if self.accepts_connections().await {
                return Ok(true);
            }
            // It is starting or shutting down.
            turn.tick().await;
        }
        bail!(
            "a PostgreSQL server runs in {} and does not answer: end it first",
            self.paths.data.display()
        )
    }

    fn spawn_server(&mut self) -> anyhow::Result<()> {
        let log = open_private_log(&self.paths.log)?;
        let mut command = command_as_postgres(&self.programs.join("postgres"), Some("INT"));
        command
            .arg("-D")
            .arg(&self.paths.data)
            .arg("-k")
            .arg(&self.paths.socket)
            .args(["-c", "listen_addresses=", "-c", "max_connections=200"])
            .args(&self.settings)
            .current_dir(&self.paths.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C goes to the whole process group; `up` itself stops PostgreSQL, after the server.
            .process_group(0);
        self.child = Some(command.spawn().context("PostgreSQL could not be started")?);
        Ok(())
    }

    async fn wait_until_ready(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let mut turn = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..timeout.as_millis() / 20 {
            turn.tick().await;
            if self.accepts_connections().await {
                return Ok(());
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                // After a crash the processes of the old server may still be exiting: alive with its shared memory, or dead and
                // not yet reaped.
                if !self.log_ends_with("still in use")? && !self.log_ends_with("already exists")? {
                    bail!("PostgreSQL ended with {status}; see {}", self.paths.log.display());
                }
                for _ in 0..5 {
                    turn.tick().await;
                }
                self.spawn_server()?;
            }
        }
        bail!("PostgreSQL did not become ready; see {}", self.paths.log.display())
    }

    /// Returns whether the last lines of the server's log contain `text`.
    fn log_ends_with(&self, text: &str) -> anyhow::Result<bool> {
        let log = fs::read(&self.paths.log)?;
        let tail = &log[log.len().saturating_sub(600)..];
        Ok(String::from_utf8_lossy(tail).contains(text))
    }

    async fn accepts_connections(&self) -> bool {
        let options = DbOptions {
            url: self.connection_url().expose_secret().to_owned(),
            max_connections: 1,
            // The pool itself retries a refused connection; a short timeout lets us check the process instead.
            acquire_timeout: Duration::from_millis(300),
            statement_timeout: Duration::from_secs(2),
        };
        let Ok(pool) = cynode_db::connect_pool(&options) else { return false };
        let answers = match cynode_db::acquire_connection(&pool).await {
            Ok(mut conn) => cynode_db::platform::health::ping_database(&mut conn).await.is_ok(),
            Err(_) => false,
        };
        pool.close().await;
        answers
    }
}

async fn wait_for_shutdown(paths: &ClusterPaths) -> anyhow::Result<()> {
    let mut turn = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..START_STOP_TIMEOUT.as_millis() / 50 {
        if running_server_pid(paths).is_none() {
            return Ok(());
        }
        turn.tick().await;
    }
    bail!("PostgreSQL did not stop; see {}", paths.log.display())
}

/// Returns the server that runs in the data directory, if one does. A process id that was reused is recognised by the working
/// directory of its process.
fn running_server_pid(paths: &ClusterPaths) -> Option<Pid> {
    let text = fs::read_to_string(paths.data.join("postmaster.pid")).ok()?;
    let pid = Pid::from_raw(text.lines().next()?.trim().parse().ok()?)?;
    test_kill_process(pid).ok()?;
    let works_in = fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).ok()?;
    (works_in == fs::canonicalize(&paths.data).ok()?).then_some(pid)
}

/// Creates the directories. The parent is ours, so that PostgreSQL's user cannot replace files that we write or hand over; only
/// `data` and `run` belong to that user.
fn prepare_directories(paths: &ClusterPaths) -> anyhow::Result<()> {
    let root = rustix::process::geteuid().is_root();
    create_directory(&paths.dir, if root { 0o711 } else { 0o700 })?;
    if create_directory(&paths.socket, 0o700)? {
        chown_to_postgres(&paths.socket)?;
    }
    Ok(())
}

/// Creates a directory. Returns `false` if it existed. An existing file that is not a directory is refused.
fn create_directory(dir: &Path, mode: u32) -> anyhow::Result<bool> {
    match fs::DirBuilder::new().mode(mode).create(dir) {
        Ok(()) => {
            // The umask may have removed permissions.
            fs::set_permissions(dir, fs::Permissions::from_mode(mode))?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            ensure!(fs::symlink_metadata(dir)?.is_dir(), "{} is not a directory", dir.display());
            Ok(false)
        }
        Err(error) => Err(error).with_context(|| format!("cannot make {}", dir.display())),
    }
}

/// Returns a password of this installation's database, which is created once.
fn load_or_create_password(path: &Path) -> anyhow::Result<SecretString> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned().into()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = HEXLOWER.encode(&AppEnvironment::from_system().random_bytes::<32>());
            let dir = path.parent().context("a password has a directory")?;
            // Written to a temporary file, synced and renamed: after a kill or a power failure there is never half a password.
            let draft = path.with_extension("new");
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            chown_to_postgres(&draft)?;
            fs::rename(&draft, path)?;
            File::open(dir)?.sync_all()?;
            Ok(text.into())
        }
        Err(error) => Err(error).context("cannot read a database password"),
    }
}

/// Returns the options of a connection for a short action of the owner.
fn owner_options(url: &SecretString) -> DbOptions {
    DbOptions {
        url: url.expose_secret().to_owned(),
        max_connections: 1,
        acquire_timeout: Duration::from_secs(10),
        statement_timeout: Duration::from_secs(20),
    }
}

/// Creates the directory of archived segments, which PostgreSQL's user writes.
fn prepare_archive(archive: &Path) -> anyhow::Result<()> {
    ensure!(
        is_plain_path(archive),
        "database.wal_archive {} must be an absolute path of letters, digits and `/._-`: it becomes part of a command",
        archive.display()
    );
    if create_directory(archive, 0o700)? {
        chown_to_postgres(archive)?;
    }
    Ok(())
}

/// Returns the settings that archive the write-ahead log.
fn archive_settings(archive: &Path) -> Vec<String> {
    to_arguments([
        "archive_mode=on".to_owned(),
        format!("archive_command={}", archive_command(archive)),
        "archive_timeout=60".to_owned(),
    ])
}

/// Returns the command that archives a segment. It gets its name when it is whole, and none is replaced. After a crash PostgreSQL archives
/// the last one again: that it is there already is a success, or nothing would be archived any more and the disk would fill.
fn archive_command(archive: &Path) -> String {
    let archive = archive.display();
    format!(
        "if test -f {archive}/%f; then cmp -s %p {archive}/%f; else cp %p {archive}/%f.new && sync {archive}/%f.new && \
         mv {archive}/%f.new {archive}/%f && sync {archive}; fi"
    )
}

/// Returns settings as arguments of the server. They are not written into its directory, which belongs to its user.
fn to_arguments(settings: impl IntoIterator<Item = String>) -> Vec<String> {
    settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

/// Returns whether a path can be part of a shell command as it is.
fn is_plain_path(path: &Path) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    path.is_absolute() && path.as_os_str().as_bytes().iter().all(plain)
}

/// Where the replay of a restored cluster ends.
pub(crate) enum RecoveryTarget<'a> {
    /// At the restore point of a backup.
    Point(&'a str),
    /// At a time.
    Time(&'a str),
    /// At the end of the archived log.
    Latest,
}

/// A restored cluster before its first start.
pub(crate) struct RestoredCluster {
    paths: ClusterPaths,
}

impl RestoredCluster {
    /// Prepares the directories of a cluster that is restored. What an interrupted restore left of the cluster is removed.
    pub(crate) fn prepare_in(dir: &Path) -> anyhow::Result<Self> {
        let paths = ClusterPaths::in_data_dir(dir);
        ensure!(
            is_plain_path(&paths.dir),
            "{} must be a path of letters, digits and `/._-`: it becomes part of a command",
            dir.display()
        );
        ensure!(running_server_pid(&paths).is_none(), "a database runs in {}", dir.display());
        prepare_directories(&paths)?;
        let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        fs::set_permissions(&paths.dir, fs::Permissions::from_mode(mode))?;
        for directory in [&paths.data, &paths.restore_wal] {
            if directory.exists() {
                fs::remove_dir_all(directory)?;
            }
            create_directory(directory, 0o700)?;
        }
        Ok(Self { paths })
    }

    /// Returns the directory of the cluster's files.
    pub(crate) fn data_path(&self) -> &Path {
        &self.paths.data
    }

    /// Returns the directory of the segments that are replayed.
    pub(crate) fn wal_path(&self) -> &Path {
        &self.paths.restore_wal
    }

    /// Gives the files to PostgreSQL's user, and returns the arguments that say how far to replay. Segments come from the backup, then from
    /// `archive`.
    pub(crate) fn request_recovery(
        &self,
        target: &RecoveryTarget<'_>,
        archive: Option<&Path>,
    ) -> anyhow::Result<Vec<String>> {
        let mut fetch = format!("restore_command=cp {}/%f %p", self.paths.restore_wal.display());
        if let Some(archive) = archive {
            ensure!(
                is_plain_path(archive),
                "{} must be an absolute path of letters, digits and `/._-`: it becomes part of a command",
                archive.display()
            );
            let later = format!(" || cp {}/%f %p", archive.display());
            fetch.push_str(&later);
        }
        fs::write(self.paths.data.join("recovery.signal"), "")?;
        for directory in [&self.paths.data, &self.paths.restore_wal] {
            give_tree_to_postgres(directory)?;
        }
        for file in [&self.paths.password, &self.paths.runtime_password] {
            if file.exists() {
                chown_to_postgres(file)?;
            }
        }
        let end = match target {
            RecoveryTarget::Point(name) => Some(format!("recovery_target_name={name}")),
            RecoveryTarget::Time(time) => Some(format!("recovery_target_time={time}")),
            RecoveryTarget::Latest => None,
        };
        let promote = "recovery_target_action=promote".to_owned();
        Ok(to_arguments([fetch, promote].into_iter().chain(end)))
    }

    /// Removes the segments that were replayed.
    pub(crate) fn remove_segments(&self) -> anyhow::Result<()> {
        if self.paths.restore_wal.exists() {
            fs::remove_dir_all(&self.paths.restore_wal)?;
        }
        Ok(())
    }
}

/// Makes PostgreSQL's user the owner of a directory and all that is in it, if we are root.
fn give_tree_to_postgres(path: &Path) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    chown_to_postgres(path)?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_tree_to_postgres(&entry?.path())?;
        }
    }
    Ok(())
}

/// Creates the cluster in a temporary place and renames it: after a kill, the next start begins anew.
async fn initialize_cluster(programs: &Path, paths: &ClusterPaths) -> anyhow::Result<()> {
    let draft = paths.dir.join("data.new");
    if draft.exists() {
        fs::remove_dir_all(&draft)?;
    }
    create_directory(&draft, 0o700)?;
    chown_to_postgres(&draft)?;
    let mut command = command_as_postgres(&programs.join("initdb"), None);
    command
        .arg("-D")
        .arg(&draft)
        .args(["-U", OWNER_ROLE, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8"])
        .arg(format!("--pwfile={}", paths.password.display()))
        .current_dir(&paths.dir);
    let output = command.output().await.context("initdb could not be started")?;
    ensure!(
        output.status.success(),
        "initdb failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    fs::rename(&draft, &paths.data)?;
    Ok(())
}

/// Percent-encodes a path for a URL.
fn percent_encode_path(path: &Path) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                text.push(char::from(*byte));
            }
            byte => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// Returns a command that runs as PostgreSQL's user, since PostgreSQL refuses to run as root, and that gets a signal when this
/// process dies.
fn command_as_postgres(program: &Path, on_death: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    if let Some(signal) = on_death {
        command.arg(format!("--pdeathsig={signal}"));
    }
    command.arg("--").arg(program);
    command
}

/// Makes PostgreSQL's user the owner of a file, if we are root.
fn chown_to_postgres(path: &Path) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let accounts = fs::read_to_string("/etc/passwd")?;
    let account = accounts.lines().find(|line| line.starts_with("postgres:"));
    let account =
        account.context("there is no user `postgres`: `apt-get install postgresql` makes it")?;
    let mut fields = account.split(':').skip(2).map(str::parse);
    let (Some(Ok(user)), Some(Ok(group))) = (fields.next(), fields.next()) else {
        bail!("the entry of `postgres` in /etc/passwd cannot be read");
    };
    chown(path, Some(user), Some(group))
        .with_context(|| format!("cannot give away {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_is_archived_again_is_there_already_and_another_one_never_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let (archive, segment) = (dir.path().join("archive"), dir.path().join("segment"));
        fs::create_dir(&archive).unwrap();
        let run = |content: &str| {
            fs::write(&segment, content).unwrap();
            let command = archive_command(&archive)
                .replace("%f", "000000010000000000000001")
                .replace("%p", segment.to_str().unwrap());
            std::process::Command::new("sh").arg("-c").arg(command).status().unwrap().success()
        };
        assert!(run("one"));
        // PostgreSQL died before it noted that.
        assert!(run("one"));
        assert!(!run("two"));
        let stored: Vec<_> =
            fs::read_dir(&archive).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(stored, [archive.join("000000010000000000000001")]);
        assert_eq!(fs::read_to_string(&stored[0]).unwrap(), "one");
    }
}
