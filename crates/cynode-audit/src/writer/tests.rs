//! What happens when the disk does not do what it should.

use std::fs::File;

use ed25519_dalek::SigningKey;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tempfile::TempDir;
use time::macros::datetime;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{AuditCheckpoint, AuditRecord, NewChain, Outcome, Phase, StoreFuture, Verdict};

fn denial(call: u128) -> AuditEntry {
    AuditEntry {
        call: Uuid::from_u128(call),
        at: datetime!(2026-11-15 12:00 UTC),
        phase: Phase::Decision,
        decision: Verdict::Deny,
        reason: "no_rule".to_owned(),
        rules: Vec::new(),
        shadow: Vec::new(),
        outcome: Some(Outcome::NotForwarded),
        agent: None,
        method: "tools/call".to_owned(),
        tool: None,
        definition: None,
        server: None,
        node: None,
        policy: [0; 32],
        catalogue: [0; 32],
        trace: "0".repeat(32),
        arguments: None,
        arguments_size: 0,
        result: None,
        result_size: 0,
        duration_us: 0,
    }
}

fn open(directory: &TempDir) -> (AuditWriter, Vec<RecoveryReport>) {
    open_with(directory, Duration::from_mins(10))
}

fn open_with(directory: &TempDir, lazy_sync: Duration) -> (AuditWriter, Vec<RecoveryReport>) {
    let at = datetime!(2026-11-15 12:00 UTC);
    let ids =
        std::sync::atomic::AtomicU64::new(directory.path().read_dir().unwrap().count() as u64);
    let next = move || ids.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let options = AuditWriterOptions { lazy_sync, ..AuditWriterOptions::new("gateway-1") };
    let (now, new_id): (Now, NewId) =
        (Arc::new(move || at), Arc::new(move || Uuid::from_u128(next().into())));
    AuditWriter::open_in_directory(
        directory.path(),
        options,
        SigningKey::from_bytes(&[1; 32]),
        now,
        new_id,
    )
    .unwrap()
}

/// A device that has no room and knows neither syncing nor cutting.
fn full_disk() -> File {
    File::options().append(true).open("/dev/full").unwrap()
}

/// A file that takes no more, and is then as it was before.
fn closed_file() -> File {
    let file = memfd_create("audit", MemfdFlags::ALLOW_SEALING).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    File::from(file)
}

/// Counts the records it is given.
#[derive(Default)]
struct Counting(Mutex<Vec<AuditRecord>>);

impl AuditStore for Counting {
    fn register_chain<'a>(&'a self, _: &'a NewChain) -> StoreFuture<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn store_records<'a>(&'a self, records: &'a [AuditRecord]) -> StoreFuture<'a> {
        self.0.lock().unwrap().extend_from_slice(records);
        Box::pin(std::future::ready(Ok(())))
    }

    fn store_checkpoint<'a>(&'a self, _: &'a AuditCheckpoint) -> StoreFuture<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn a_file_that_may_end_in_half_a_record_gets_no_other() {
    let directory = TempDir::new().unwrap();
    let (writer, _) = open(&directory);
    let ticket = writer.append_entry(denial(1)).unwrap();
    writer.inner.lock_state().write_to(full_disk());
    assert_eq!(writer.append_entry(denial(2)), Err(AppendError::Broken));
    assert_eq!(writer.append_entry(denial(3)), Err(AppendError::Broken));
    assert_eq!(writer.wait_durable(ticket).await, Err(AppendError::Broken));
    assert!(writer.writer_status().broken);
    drop(writer);
    let (_writer, recovered) = open(&directory);
    assert_eq!(recovered[0].records, 1);
}

#[tokio::test]
async fn a_chain_that_cannot_be_followed_by_another_goes_on() {
    let directory = TempDir::new().unwrap();
    let (writer, _) = open(&directory);
    writer.append_entry(denial(1)).unwrap();
    // The name of the next file is taken.
    std::fs::create_dir(directory.path().join(format!("{}.wal", Uuid::from_u128(1).simple())))
        .unwrap();
    writer.inner.rotate_chain(&mut writer.inner.lock_state());
    writer.append_entry(denial(2)).unwrap();
    assert_eq!(writer.writer_status().chains, 1);
    // The one after it is not.
    writer.inner.rotate_chain(&mut writer.inner.lock_state());
    writer.append_entry(denial(3)).unwrap();
    assert_eq!(writer.writer_status().chains, 2);
}

#[tokio::test]
async fn a_chain_that_may_have_been_followed_by_another_does_not_go_on() {
    let directory = TempDir::new().unwrap();
    let (writer, _) = open(&directory);
    let ticket = writer.append_entry(denial(1)).unwrap();
    writer.wait_durable(ticket).await.unwrap();
    let inner = &writer.inner;
    inner.lock_state().write_to(closed_file());
    // The old chain cannot be closed, and the new file is removed.
    inner.rotate_chain(&mut inner.lock_state());
    assert_eq!((writer.writer_status().broken, writer.writer_status().chains), (false, 1));
    // Where it cannot be removed either, both would say how the calls under way ended.
    let rotated = inner.lock_state().rotate_for_good(
        &inner.directory,
        &inner.options,
        &inner.now,
        &inner.new_id,
    );
    assert!(rotated.is_err());
    assert_eq!((writer.writer_status().broken, writer.writer_status().chains), (true, 1));
    assert_eq!(writer.append_entry(denial(2)), Err(AppendError::Broken));
}

#[tokio::test]
async fn a_failed_sync_refuses_everything_from_then_on() {
    let directory = TempDir::new().unwrap();
    let (writer, _) = open(&directory);
    let first = writer.append_entry(denial(1)).unwrap();
    writer.wait_durable(first).await.unwrap();
    let second = writer.append_entry(denial(2)).unwrap();
    writer.inner.lock_state().sync_to(full_disk());
    assert_eq!(writer.wait_durable(second).await, Err(AppendError::Broken));
    assert_eq!(writer.wait_durable(second).await, Err(AppendError::Broken));
    writer.wait_durable(first).await.unwrap();
    assert_eq!(writer.append_entry(denial(3)), Err(AppendError::Broken));
    assert_eq!(writer.wait_flushed().await, Err(AppendError::Broken));
}

#[tokio::test]
async fn what_reached_the_disk_before_it_failed_is_shipped_and_no_more() {
    let directory = TempDir::new().unwrap();
    let (writer, _) = open(&directory);
    let first = writer.append_entry(denial(1)).unwrap();
    writer.wait_durable(first).await.unwrap();
    writer.append_entry(denial(2)).unwrap();
    writer.inner.lock_state().sync_to(full_disk());
    let (store, stop) = (Arc::new(Counting::default()), CancellationToken::new());
    let shipping = writer.ship_records(Arc::clone(&store) as Arc<dyn AuditStore>, stop.clone());
    let (shipped, _) = tokio::join!(shipping, async {
        let broken = writer.wait_flushed().await;
        stop.cancel();
        broken
    });
    assert_eq!(shipped, Err(UnshippedError { chains: 1 }));
    let stored = store.0.lock().unwrap();
    assert_eq!(stored.iter().map(|record| record.seq).collect::<Vec<_>>(), [0]);
}

#[tokio::test]
async fn a_record_that_is_waited_for_is_on_the_disk_or_refused() {
    let directory = TempDir::new().unwrap();
    let (writer, _) = open(&directory);
    writer.record_durably(denial(1)).await.unwrap();
    assert_eq!(writer.writer_status().synced, 1);
    writer.inner.lock_state().sync_to(full_disk());
    assert_eq!(writer.record_durably(denial(2)).await, Err(AppendError::Broken));
    assert_eq!(writer.record_durably(denial(3)).await, Err(AppendError::Broken));
    assert_eq!(writer.writer_status().synced, 1);
}

/// Nobody wakes the thread who need not; whoever forgot to when it is needed would wait for ever.
#[tokio::test]
async fn records_come_to_the_disk_whatever_the_thread_is_doing() {
    async fn until(done: impl Fn() -> bool) {
        let since = std::time::Instant::now();
        while !done() {
            assert!(since.elapsed() < Duration::from_secs(10));
            tokio::task::yield_now().await;
        }
    }
    let directory = TempDir::new().unwrap();
    let (writer, _) = open_with(&directory, Duration::from_millis(5));
    let asleep = || writer.inner.lock_state().is_thread_asleep();
    for call in (0..30).step_by(3) {
        writer.append_entry(denial(call)).unwrap();
        until(|| writer.writer_status().synced == writer.writer_status().written).await;
        // It has just been busy, and is on its way to rest.
        writer.record_durably(denial(call + 1)).await.unwrap();
        until(asleep).await;
        writer.record_durably(denial(call + 2)).await.unwrap();
        until(asleep).await;
    }
    assert_eq!(writer.writer_status().synced, 30);
}
