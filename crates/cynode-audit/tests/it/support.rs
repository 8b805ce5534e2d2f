//! A place to write in, entries to write, and a store to ship to.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cynode_audit::{
    AgentFacts, AuditCheckpoint, AuditEntry, AuditRecord, AuditStore, AuditStoreError, AuditWriter,
    AuditWriterOptions, ChainCheck, ChainRegistryHead, ChainStart, LinkCheck, NewChain, Outcome,
    Phase, RecoveryReport, StoreFuture, UnshippedError, Verdict, VerifiedChain,
};
use ed25519_dalek::SigningKey;
use tempfile::TempDir;
use time::macros::datetime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) fn key() -> SigningKey {
    SigningKey::from_bytes(&[42; 32])
}

/// The decision that a call may be made.
pub(crate) fn decision(call: u128) -> AuditEntry {
    AuditEntry {
        call: Uuid::from_u128(call),
        at: datetime!(2026-11-15 12:00 UTC),
        phase: Phase::Decision,
        decision: Verdict::Allow,
        reason: "permitted".to_owned(),
        rules: vec!["role.developer".to_owned(), "task:own".to_owned()],
        shadow: vec!["trial-7".to_owned()],
        outcome: None,
        agent: Some(AgentFacts {
            token: Uuid::from_u128(70),
            kind: "coder".to_owned(),
            role: "developer".to_owned(),
            user: Some(Uuid::from_u128(71)),
            project: Some(Uuid::from_u128(72)),
            task: Some(Uuid::from_u128(73)),
            run: Some(Uuid::from_u128(74)),
            job: Some(Uuid::from_u128(75)),
            profile: Some("default".to_owned()),
        }),
        method: "tools/call".to_owned(),
        tool: Some("files.read_File-2".to_owned()),
        definition: Some([1; 32]),
        server: Some(Uuid::from_u128(76)),
        node: Some(Uuid::from_u128(77)),
        policy: [2; 32],
        catalogue: [3; 32],
        trace: "4bf92f3577b34da6a3ce929d0e0e4736".to_owned(),
        arguments: None,
        arguments_size: 17,
        result: None,
        result_size: 0,
        duration_us: 5,
    }
}

/// How the call ended.
pub(crate) fn outcome(call: u128) -> AuditEntry {
    AuditEntry { phase: Phase::Outcome, outcome: Some(Outcome::Success), ..decision(call) }
}

/// A decision that is complete in one record.
pub(crate) fn denial(call: u128) -> AuditEntry {
    AuditEntry {
        decision: Verdict::Deny,
        outcome: Some(Outcome::NotForwarded),
        reason: "no_rule".to_owned(),
        ..decision(call)
    }
}

/// A directory and what writers in it need. Ids and moments are counted, so runs are alike.
pub(crate) struct Place {
    directory: TempDir,
    counter: Arc<AtomicU64>,
    pub(crate) options: AuditWriterOptions,
}

impl Place {
    pub(crate) fn new() -> Self {
        let options = AuditWriterOptions {
            linger: Duration::from_millis(1),
            longest_pause: Duration::from_millis(64),
            ..AuditWriterOptions::new("gateway-1")
        };
        let counter = Arc::new(AtomicU64::new(1));
        Self { directory: TempDir::new().unwrap(), counter, options }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("audit")
    }

    pub(crate) fn open(&self) -> (AuditWriter, Vec<RecoveryReport>) {
        self.open_in(&self.path())
    }

    pub(crate) fn open_in(&self, path: &Path) -> (AuditWriter, Vec<RecoveryReport>) {
        let (ids, moments) = (Arc::clone(&self.counter), Arc::clone(&self.counter));
        let tick = move || moments.fetch_add(1, Ordering::Relaxed);
        let start = datetime!(2026-11-15 12:00 UTC);
        AuditWriter::open_in_directory(
            path,
            self.options.clone(),
            key(),
            Arc::new(move || start + Duration::from_micros(tick())),
            Arc::new(move || Uuid::from_u128(ids.fetch_add(1, Ordering::Relaxed).into())),
        )
        .unwrap()
    }

    /// What a power loss at this moment would leave, if all that was written reached the disk:
    /// a copy of the files, which no process holds.
    pub(crate) fn snapshot(&self) -> PathBuf {
        let copy = self.directory.path().join(format!("copy-{}", self.tick()));
        fs::create_dir(&copy).unwrap();
        for file in files(&self.path()) {
            fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
        }
        copy
    }

    fn tick(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }
}

/// The files of chains in a directory, and those set aside.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|item| item.unwrap().path())
        .filter(|path| path.extension().is_some())
        .collect();
    files.sort();
    files
}

/// Ships everything and closes the writer.
pub(crate) async fn end(writer: &AuditWriter, store: &Arc<Memory>) -> Result<(), UnshippedError> {
    let stop = CancellationToken::new();
    stop.cancel();
    writer.ship_records(Arc::clone(store) as Arc<dyn AuditStore>, stop).await
}

/// Does something while the writer ships.
pub(crate) async fn while_shipping<T>(
    writer: &AuditWriter,
    store: &Arc<Memory>,
    work: impl Future<Output = T>,
) -> T {
    let stop = CancellationToken::new();
    tokio::select! {
        done = work => done,
        _ = writer.ship_records(Arc::clone(store) as Arc<dyn AuditStore>, stop) => panic!("shipping ended"),
    }
}

#[derive(Default)]
struct Kept {
    starts: Vec<ChainStart>,
    records: Vec<AuditRecord>,
    checkpoints: Vec<AuditCheckpoint>,
    batches: usize,
}

/// A store in memory that keeps the promises a store makes, and can be down.
#[derive(Default)]
pub(crate) struct Memory {
    kept: Mutex<Kept>,
    /// Refuses everything.
    pub(crate) down: AtomicBool,
    /// Keeps what it is given and says that it failed, like a connection lost at the commit.
    pub(crate) forgetful: AtomicBool,
    /// Never answers.
    pub(crate) silent: AtomicBool,
}

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn records(&self) -> Vec<AuditRecord> {
        self.kept.lock().unwrap().records.clone()
    }

    pub(crate) fn checkpoints(&self) -> Vec<AuditCheckpoint> {
        self.kept.lock().unwrap().checkpoints.clone()
    }

    pub(crate) fn starts(&self) -> Vec<ChainStart> {
        self.kept.lock().unwrap().starts.clone()
    }

    pub(crate) fn batches(&self) -> usize {
        self.kept.lock().unwrap().batches
    }

    /// What was said about which call, in the order it was stored.
    pub(crate) fn said(&self) -> Vec<(u128, Phase)> {
        let said = |record: &AuditRecord| (record.entry.call.as_u128(), record.entry.phase);
        self.records().iter().map(said).collect()
    }

    /// The outcomes of a call.
    pub(crate) fn outcomes(&self, call: u128) -> Vec<Outcome> {
        self.records()
            .iter()
            .filter(|record| record.entry.call.as_u128() == call)
            .filter_map(|record| record.entry.outcome)
            .collect()
    }

    /// Checks everything that is stored, as an auditor would.
    pub(crate) fn verify(&self) -> Vec<VerifiedChain> {
        let keys = [key().verifying_key()];
        let mut links = LinkCheck::new(&keys);
        let check = |start: &ChainStart| {
            links.verify_next_start(start).unwrap();
            let of = |checkpoint: &AuditCheckpoint| checkpoint.chain == start.chain;
            let checkpoints = self.checkpoints().into_iter().filter(of);
            let mut check = ChainCheck::new(start.chain, &keys, checkpoints).unwrap();
            for record in self.records().iter().filter(|record| record.chain == start.chain) {
                check.verify_next_record(record).unwrap();
            }
            check.finish_verification().unwrap()
        };
        self.starts().iter().map(check).collect()
    }

    /// Puts a record where the next one belongs.
    pub(crate) fn forge_next(&self) {
        let mut kept = self.kept.lock().unwrap();
        let mut forged = kept.records.last().unwrap().clone();
        forged.seq += 1;
        kept.records.push(forged);
    }

    /// Does one piece of work as a store would, with its failures.
    fn work(&self, work: impl FnOnce(&mut Kept) -> Result<(), AuditStoreError>) -> StoreFuture<'_> {
        if self.silent.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let failed = || AuditStoreError::Unavailable("the store is down".into());
        let done = if self.down.load(Ordering::SeqCst) {
            Err(failed())
        } else {
            let done = work(&mut self.kept.lock().unwrap());
            if self.forgetful.load(Ordering::SeqCst) { Err(failed()) } else { done }
        };
        Box::pin(std::future::ready(done))
    }
}

impl AuditStore for Memory {
    fn register_chain<'a>(&'a self, chain: &'a NewChain) -> StoreFuture<'a> {
        self.work(|kept| {
            if kept.starts.iter().all(|start| start.chain != chain.chain) {
                let tip =
                    kept.starts.last().map_or(ChainRegistryHead::ORIGIN, ChainStart::registry_head);
                kept.starts.push(chain.sign_start(tip, &key()));
            }
            Ok(())
        })
    }

    fn store_records<'a>(&'a self, records: &'a [AuditRecord]) -> StoreFuture<'a> {
        self.work(|kept| {
            kept.batches += 1;
            for record in records {
                assert!(kept.starts.iter().any(|start| start.chain == record.chain));
                let place =
                    |kept: &&AuditRecord| (kept.chain, kept.seq) == (record.chain, record.seq);
                match kept.records.iter().find(place) {
                    None => kept.records.push(record.clone()),
                    Some(there) if there == record => {}
                    Some(_) => return Err(AuditStoreError::Conflict(record.seq.to_string())),
                }
            }
            Ok(())
        })
    }

    fn store_checkpoint<'a>(&'a self, checkpoint: &'a AuditCheckpoint) -> StoreFuture<'a> {
        self.work(|kept| {
            kept.checkpoints.push(checkpoint.clone());
            Ok(())
        })
    }
}
