//! The database of a backup: base backup, write-ahead log and the fence, by PostgreSQL's own programs.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use age::x25519;
use anyhow::{Context, bail, ensure};
use cynode_db::{
    Pool,
    platform::backup::{self, FencedCounts, RestorePoint},
    tools::audit,
};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    files::{FileClass, FileListing, InstallationFiles, SourceFile},
    parts::{PartRecord, PartWriter},
};
use crate::cluster;

/// How long the receiver of the write-ahead log may take to connect, and to get the last segment.
const RECEIVER_TIMEOUT: Duration = Duration::from_mins(2);

/// Interval at which files of the receiver are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Number of attempts to raise the fence. Writers of the tables are never made to wait longer than one attempt.
const MAX_FENCE_ATTEMPTS: u32 = 200;

/// Maximum size of the files that are read within the fence: writers wait meanwhile.
const MAX_FENCED_BYTES: u64 = 1 << 30;

/// How often the files that change are read when some of them are removed in between.
const MAX_READS: usize = 20;

/// Receives the write-ahead log while a backup is made. Dropping it ends the receiver.
pub(super) struct WalReceiver {
    child: Child,
    directory: PathBuf,
    log: PathBuf,
}

impl WalReceiver {
    /// Starts to receive into an empty directory, and waits until it does.
    pub(super) fn start(data_dir: &Path, scratch: &Path) -> anyhow::Result<Self> {
        let (directory, log) = (scratch.join("wal"), scratch.join("receiver.log"));
        fs::create_dir_all(&directory)?;
        let child = cluster::client_command(data_dir, "pg_receivewal")?
            .arg("--directory")
            .arg(&directory)
            .args(["--no-loop", "--no-password"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("pg_receivewal could not be started: is PostgreSQL's client installed?")?;
        let mut receiver = Self { child, directory, log };
        receiver.wait_for(|directory| Ok(fs::read_dir(directory)?.flatten().next().is_some()))?;
        Ok(receiver)
    }

    /// Waits until the segment is whole, and ends the receiver.
    pub(super) fn finish(mut self, segment: &str) -> anyhow::Result<PathBuf> {
        self.wait_for(|directory| directory.join(segment).try_exists())?;
        self.stop();
        Ok(self.directory.clone())
    }

    fn wait_for(&mut self, is_there: impl Fn(&Path) -> io::Result<bool>) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !is_there(&self.directory)? {
            if let Some(status) = self.child.try_wait()? {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("pg_receivewal ended with {status}: {}", said.trim());
            }
            ensure!(
                begun.elapsed() < RECEIVER_TIMEOUT,
                "the write-ahead log was not received in time"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn stop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
            let _ = self.child.wait();
        }
    }
}

impl Drop for WalReceiver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Copies the cluster as it is now. Together with the write-ahead log from before its begin it can be restored to any later moment.
pub(super) fn copy_cluster(
    data_dir: &Path,
    directory: &Path,
    key: &x25519::Recipient,
) -> anyhow::Result<PartRecord> {
    let mut writer = PartWriter::create(directory, "database.tar", key)?;
    let mut child = cluster::client_command(data_dir, "pg_basebackup")?
        .args(["--pgdata=-", "--format=tar", "--wal-method=none", "--checkpoint=fast"])
        .args(["--no-password", "--label=cynode"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("pg_basebackup could not be started: is PostgreSQL's client installed?")?;
    let mut output = child.stdout.take().context("pg_basebackup has no output")?;
    let mut errors = child.stderr.take().context("pg_basebackup has no error output")?;
    let (copied, said) = std::thread::scope(|scope| {
        let said = scope.spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let copied = io::copy(&mut output, &mut writer);
        // A reader that failed must not leave the writer waiting.
        drop(output);
        (copied, said.join().unwrap_or_default())
    });
    let status = child.wait()?;
    copied.context("the copy of the database could not be written")?;
    ensure!(status.success(), "pg_basebackup ended with {status}: {}", said.trim());
    writer.finish()
}

/// Writes the received write-ahead log.
pub(super) fn store_wal(
    wal: &Path,
    directory: &Path,
    key: &x25519::Recipient,
) -> anyhow::Result<PartRecord> {
    let mut archive = tar::Builder::new(PartWriter::create(directory, "wal.tar", key)?);
    let mut segments: Vec<PathBuf> =
        fs::read_dir(wal)?.flatten().map(|entry| entry.path()).collect();
    segments.retain(|path| path.extension().is_none_or(|extension| extension != "partial"));
    segments.sort();
    for segment in segments {
        let name = segment.file_name().context("a segment has a name")?.to_owned();
        archive.append_path_with_name(&segment, name)?;
    }
    archive.into_inner()?.finish()
}

/// What was read within the fence.
pub(super) struct FencedState {
    pub(super) point: RestorePoint,
    pub(super) counts: FencedCounts,
    pub(super) files: Vec<(SourceFile, Vec<u8>)>,
    pub(super) directories: BTreeMap<String, u32>,
    /// How long writers waited at most.
    pub(super) duration: Duration,
}

/// Raises the fence, reads the files that change, and marks the moment in the write-ahead log.
pub(super) async fn read_fenced_state(
    pool: &Pool,
    source: &InstallationFiles,
    name: &str,
) -> anyhow::Result<FencedState> {
    for attempt in 0..MAX_FENCE_ATTEMPTS {
        let mut fence = cynode_db::begin_transaction(pool).await?;
        let begun = Instant::now();
        if !backup::raise_fence(&mut fence).await? {
            drop(fence);
            // A writer was in the way. The pause grows, so that a busy installation finds a gap.
            std::thread::sleep(POLL_INTERVAL * (attempt % 10 + 1));
            continue;
        }
        // Its snapshot is of the fenced moment; it is read when writers go on.
        let mut snapshot = cynode_db::begin_transaction(pool).await?;
        audit::set_repeatable_read(&mut snapshot).await?;
        cynode_db::platform::health::ping_database(&mut snapshot).await?;
        let (files, directories) = read_changing_files(source)?;
        let point = backup::create_restore_point(&mut fence, name).await?;
        fence.commit().await.context("the fence could not be lowered")?;
        let duration = begun.elapsed();
        let counts = backup::count_fenced_rows(&mut snapshot).await?;
        return Ok(FencedState { point, counts, files, directories, duration });
    }
    bail!(
        "the installation is too busy for a backup: writers were in the way {MAX_FENCE_ATTEMPTS} times; try again at a quieter time"
    )
}

type ReadFiles = (Vec<(SourceFile, Vec<u8>)>, BTreeMap<String, u32>);

/// Reads the files that change. If one is removed in between, all are read again: a ref may have moved into another file.
fn read_changing_files(source: &InstallationFiles) -> anyhow::Result<ReadFiles> {
    for _ in 0..MAX_READS {
        if let Some(read) = read_listing(source.list_class(FileClass::Fenced)?)? {
            return Ok(read);
        }
    }
    bail!("refs of repositories changed again and again while they were read: try again later")
}

/// Reads files. Returns `None` if one of them is no longer there.
fn read_listing(mut listing: FileListing) -> anyhow::Result<Option<ReadFiles>> {
    // As git reads them: a ref that is packed meanwhile is in the file that is read last.
    listing.files.sort_by_key(|file| file.path.ends_with("/packed-refs"));
    let total: u64 = listing.files.iter().map(|file| file.bytes).sum();
    ensure!(
        total <= MAX_FENCED_BYTES,
        "the files that change have {total} bytes, more than a backup reads while writers wait"
    );
    let mut files = Vec::new();
    for mut file in listing.files {
        match fs::read(&file.source) {
            Ok(content) => {
                // It may have grown since it was listed.
                file.bytes = content.len() as u64;
                files.push((file, content));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot read {}", file.source.display()));
            }
        }
    }
    Ok(Some((files, listing.directories)))
}
