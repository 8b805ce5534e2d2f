//! The engine that `cynode up` runs: on sockets, without telemetry, with its own key that signs its calls.

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use data_encoding::BASE64;
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};

use crate::{
    program_zone::ProgramZone,
    supervise::{SupervisedProgram, find_on_path, find_sibling_program},
};

/// How to install the engine.
pub(crate) const INSTALL_HINT: &str = "install the package `cynode-engine`; `scripts/install` of the source installs it by its lockfile (or \
     `npm install -g --ignore-scripts @restatedev/restate-server@1.7.12`, or put the binary of that release on the PATH)";

/// The version of the engine that CyNode is tested with.
pub(crate) const TESTED_VERSION: &str = "1.7.12";

/// Returns whether an engine that prints this version is of the tested release: patches may differ.
pub(crate) fn is_tested_release(printed: &str) -> bool {
    let tested = TESTED_VERSION.rsplit_once('.').map(|(release, _)| release);
    printed
        .split_whitespace()
        .filter_map(|word| word.rsplit_once('.'))
        .any(|(release, _)| Some(release) == tested)
}

/// Finds the engine's program. npm puts a script on the path that starts it: the script's child would survive a kill, so the
/// program itself is used.
pub(crate) fn find_engine_program() -> Option<PathBuf> {
    let name = "restate-server";
    // An archive that was unpacked anywhere has it beside this program.
    let found = find_sibling_program(name).ok().or_else(|| find_on_path(name))?;
    let found = fs::canonicalize(found).ok()?;
    if found.extension().is_none_or(|extension| extension != "js") {
        return Some(found);
    }
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "x64",
    };
    let package = format!("restate-server-linux-{architecture}/bin/restate-server");
    // Beside the script's package, or inside it.
    let scope = found.ancestors().nth(3)?;
    let inside = scope.join("restate-server/node_modules/@restatedev").join(&package);
    [scope.join(&package), inside].into_iter().find(|path| path.is_file())
}

/// Finds the engine's program, and refuses one of another release than the tested one: its stored state may not be read.
pub(crate) fn find_tested_engine() -> anyhow::Result<PathBuf> {
    let program = find_engine_program().with_context(|| {
        format!("the engine that drives tasks is not installed: {INSTALL_HINT}")
    })?;
    let version = engine_version(&program)?;
    ensure!(
        is_tested_release(&version),
        "{version} in {} is not of the release {TESTED_VERSION} that CyNode is tested with: {INSTALL_HINT}",
        program.display()
    );
    Ok(program)
}

/// Returns what the engine says its version is.
pub(crate) fn engine_version(program: &Path) -> anyhow::Result<String> {
    let printed = Command::new(program).arg("--version").output();
    let printed = printed.with_context(|| format!("{} does not run", program.display()))?;
    ensure!(printed.status.success(), "{} does not run", program.display());
    Ok(String::from_utf8_lossy(&printed.stdout).trim().to_owned())
}

/// The files of an engine.
pub(crate) struct EngineFiles {
    dir: PathBuf,
    pub(crate) public_key: PathBuf,
    zone: ProgramZone,
}

/// Name of the engine's only node, which is also that of the directory of its data and sockets.
const ENGINE_NODE_NAME: &str = "cynode";
/// Where the engine keeps calls that do not fit in memory, below its data. The system's directory of temporary files is not always open to
/// its user, and an engine that cannot write there takes no call and does not end. It is named by TMPDIR: the engine's own setting names one
/// directory for all partitions, and each of them empties it.
const SPILL_DIR: &str = "spill";

/// Returns the sockets of the engine in `dir` for calls and for its administration.
pub(crate) fn engine_sockets(dir: &Path) -> [PathBuf; 2] {
    ["ingress.sock", "admin.sock"].map(|name| dir.join("data").join(ENGINE_NODE_NAME).join(name))
}

impl EngineFiles {
    /// Prepares an engine in `dir`: its key is created once, its configuration is rewritten. The directory is ours, so that the user of the
    /// engine cannot exchange files that we write; only `data` is its own.
    pub(crate) fn prepare_in(dir: &Path, zone: ProgramZone) -> anyhow::Result<Self> {
        create_private_dir(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(zone.directory_mode()))?;
        let private_key = dir.join("key.pem");
        let public_key = dir.join("key.pub");
        if !private_key.exists() || !public_key.exists() {
            create_key_pair(&private_key, &public_key)?;
        }
        let config = dir.join("config.toml");
        write_private_file(&config, &render_engine_config(dir, &private_key))?;
        for file in [&private_key, &config] {
            zone.own_file(file)?;
        }
        let data = dir.join("data");
        fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        empty_spill_dir(&data.join(SPILL_DIR))?;
        zone.own_tree(&data)?;
        let [ingress, _] = engine_sockets(dir);
        ensure!(
            ingress.as_os_str().len() <= 107,
            "the path {} is too long for a socket: choose a shorter --data-dir",
            ingress.display()
        );
        Ok(Self { dir: dir.to_owned(), public_key, zone })
    }

    /// Returns the program for the supervisor.
    pub(crate) fn to_program(&self, path: PathBuf) -> SupervisedProgram {
        let arguments = vec!["--config-file".into(), self.dir.join("config.toml").into()];
        let log = self.dir.join("server.log");
        let zone = self.zone.with_variable("TMPDIR", self.dir.join("data").join(SPILL_DIR));
        SupervisedProgram {
            timer_slack: Some(TIMER_SLACK),
            after_start: Some(relax_clock),
            ..SupervisedProgram::new("restate-server", path, arguments, log, zone)
        }
    }
}

/// The timer slack of the engine: its workers wake less often with it.
const TIMER_SLACK: Duration = Duration::from_millis(50);

/// The engine's thread that updates its cached time. It sets a slack of its own when it starts and then wakes every millisecond, which
/// is most of the cost of an idle engine.
const CLOCK_THREAD: &str = "rs-clock";

/// Sets the timer slack of the engine's clock thread, where the system permits it: that needs the right to change priorities,
/// and is only an optimisation. Returns whether there is nothing more to do.
fn relax_clock(engine: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{engine}/task")) else { return true };
    for thread in threads.flatten() {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.trim_end() == CLOCK_THREAD {
            let slack = format!("/proc/{}/timerslack_ns", thread.file_name().display());
            let relaxed = fs::write(slack, TIMER_SLACK.as_nanos().to_string());
            tracing::debug!(
                event = "engine.clock_relaxed",
                ?relaxed,
                "set the timer slack of the engine's clock"
            );
            return true;
        }
    }
    false
}

/// Makes the directory anew: the engine leaves a part in it at each of its starts and uses none again.
fn empty_spill_dir(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot empty {}", dir.display()));
        }
        _ => {}
    }
    fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn render_engine_config(dir: &Path, private_key: &Path) -> String {
    let (dir, key) = (dir.display(), private_key.display());
    format!(
        r#"# Written by `cynode up` at every start.
node-name = "{ENGINE_NODE_NAME}"
base-dir = "{dir}/data"
disable-telemetry = true
default-num-partitions = 4
# Its ports ask nobody for a credential: it has sockets in its own directory and no port.
listen-mode = "unix"
log-format = "json"
rocksdb-total-memory-size = "256 MiB"
# It is the only one of its cluster: nobody else is to be heard of, often or at all.
gossip-tick-interval = "1s"
metadata-update-interval = "60s"

[admin]
disable-web-ui = true
heartbeat-interval = "10s"

[metadata-server]
raft-tick-interval = "500ms"
status-update-interval = "60s"

[networking]
http2-keep-alive-interval = "30s"
http2-keep-alive-timeout = "20s"

[worker.invoker]
request-identity-private-key-pem-file = "{key}"
"#
    )
}

/// Creates a key pair. Each file is written to a temporary place and renamed; the public one last, so that it is never alone.
pub(crate) fn create_key_pair(private: &Path, public: &Path) -> anyhow::Result<()> {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let document = document.map_err(|_| anyhow::anyhow!("no key could be made"))?;
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref());
    let pair = pair.map_err(|_| anyhow::anyhow!("the new key cannot be read"))?;
    let body = BASE64.encode(document.as_ref());
    let lines: Vec<_> = body.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    let pem =
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    let text = format!("publickeyv1_{}\n", bs58::encode(pair.public_key().as_ref()).into_string());
    write_private_file(private, &pem)?;
    write_private_file(public, &text)
}

/// Creates a private directory, and removes the access of others from an existing one. A directory of another account stays as
/// it is.
pub(crate) fn create_private_dir(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let found = fs::metadata(dir)?;
    let mode = found.mode() & 0o7777;
    if found.uid() == rustix::process::geteuid().as_raw() && mode & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(mode & !0o077))
            .with_context(|| format!("cannot close {} to others", dir.display()))?;
    }
    Ok(())
}

/// Opens a log to append to it. Only its owner may read it, also if an older version left it open to others.
pub(crate) fn open_private_log(path: &Path) -> std::io::Result<fs::File> {
    let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    close_file_to_others(&file)?;
    Ok(file)
}

/// Removes the access of others from a file. A device, or a file of another account, stays as it is.
pub(crate) fn close_file_to_others(file: &fs::File) -> std::io::Result<()> {
    let found = file.metadata()?;
    let mode = found.mode() & 0o7777;
    let own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
    if own && mode & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(mode & !0o077))?;
    }
    Ok(())
}

/// Writes a private file atomically. It is on the disk under its name when this returns: what refers to it may be stored then.
pub(crate) fn write_private_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = write_private_draft(path, text, None)?;
    fs::rename(&draft, path).with_context(|| format!("{} could not be written", path.display()))?;
    sync_parent(path)
}

/// Writes a private file that is never replaced. Returns `false` if there is one already, also if another process wrote it just now.
pub(crate) fn create_private_file(path: &Path, text: &str) -> anyhow::Result<bool> {
    create_file_from_draft(path, text, None)
}

/// Writes such a file with the owner, the group and the mode of another one: who reads that one reads this one, whoever wrote it.
pub(crate) fn create_sibling_file(path: &Path, text: &str, like: &Path) -> anyhow::Result<bool> {
    create_file_from_draft(path, text, Some(like))
}

fn create_file_from_draft(path: &Path, text: &str, like: Option<&Path>) -> anyhow::Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    let draft = write_private_draft(path, text, like)?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Writes the draft of a file beside it. Each process has its own, so that two of them never write one file.
fn write_private_draft(path: &Path, text: &str, like: Option<&Path>) -> anyhow::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let draft = PathBuf::from(name);
    // One that a process of this id left when it was killed.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", draft.display()));
        }
        _ => {}
    }
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
    let mut file = file.with_context(|| format!("cannot write {}", draft.display()))?;
    file.write_all(text.as_bytes())?;
    if let Some(like) = like {
        copy_access(&file, like).with_context(|| {
            format!("cannot give {} the owner of {}", draft.display(), like.display())
        })?;
    }
    file.sync_all()?;
    Ok(draft)
}

/// Gives an open file the owner, the group and the mode of another one. By its descriptor: nobody can put another file in its place.
fn copy_access(file: &fs::File, like: &Path) -> std::io::Result<()> {
    let (own, wanted) = (file.metadata()?, fs::metadata(like)?);
    if (own.uid(), own.gid()) != (wanted.uid(), wanted.gid()) {
        std::os::unix::fs::fchown(file, Some(wanted.uid()), Some(wanted.gid()))?;
    }
    file.set_permissions(fs::Permissions::from_mode(wanted.mode() & 0o7777))
}

/// Writes the entry of a file in its directory to the disk.
fn sync_parent(path: &Path) -> anyhow::Result<()> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("cannot write {} to the disk", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_of_another_release_is_not_the_tested_one() {
        let printed = [
            "restate-server 1.7.12",
            "restate-server 1.7.99 (x86_64-unknown-linux-musl)",
            "restate-server 1.8.0",
            "restate-server 11.7.12",
            "restate-server",
            "",
        ];
        assert_eq!(printed.map(is_tested_release), [true, true, false, false, false, false]);
    }

    #[test]
    fn the_engine_spills_into_a_directory_of_its_own_that_each_start_empties() {
        let dir = tempfile::tempdir().unwrap();
        let prepare = || EngineFiles::prepare_in(dir.path(), ProgramZone::example()).unwrap();
        drop(prepare());
        let spill = dir.path().join("data/spill");
        fs::create_dir(spill.join("invoker-of-an-earlier-start")).unwrap();
        drop(prepare());
        assert_eq!(fs::read_dir(&spill).unwrap().count(), 0);
        let mut command = tokio::process::Command::new("setpriv");
        prepare().to_program("restate-server".into()).zone.apply_to(&mut command);
        let variable = command.as_std().get_envs().find(|(name, _)| *name == "TMPDIR");
        assert_eq!(variable, Some(("TMPDIR".as_ref(), Some(spill.as_os_str()))));
    }

    #[test]
    fn a_private_file_that_is_there_is_not_replaced_and_no_draft_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("master.key.next");
        assert!(create_private_file(&path, "first").unwrap());
        assert!(!create_private_file(&path, "second").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        write_private_file(&path, "third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["master.key.next"]);
    }

    #[test]
    fn the_tested_version_is_the_one_that_is_installed() {
        let pinned = include_str!("../../../scripts/engine/package.json");
        assert!(pinned.contains(&format!("\"@restatedev/restate-server\": \"{TESTED_VERSION}\"")));
        assert!(INSTALL_HINT.contains(&format!("@{TESTED_VERSION}`")));
    }
}
