//! Sync thread: syncs records to the disk, once for all waiting callers (group commit).

use std::{
    io,
    sync::{Arc, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use super::{
    AppendError, WriterShared,
    state::{SyncThreadState, WriterState},
};

/// Progress of the sync thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncProgress {
    pub(super) upto: u64,
    /// The sync failed: no further record will reach the disk.
    pub(super) broken: bool,
}

pub(super) fn spawn_sync_thread(inner: Arc<WriterShared>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("audit-sync".to_owned()).spawn(move || inner.run_sync_loop())
}

impl WriterShared {
    pub(super) async fn wait_durable(&self, upto: u64) -> Result<(), AppendError> {
        let wake = {
            let mut book = self.lock_state();
            if book.synced_count() >= upto {
                return Ok(());
            }
            if book.is_broken() {
                return Err(AppendError::Broken);
            }
            book.request_sync(upto)
        };
        if wake {
            self.wake.notify_one();
        }
        self.wait_synced(upto).await
    }

    /// Waits for a record whose sync was already requested.
    pub(super) async fn wait_synced(&self, upto: u64) -> Result<(), AppendError> {
        let mut synced = self.synced.subscribe();
        let reached = synced.wait_for(|synced| synced.upto >= upto || synced.broken).await;
        match reached {
            Ok(synced) if synced.upto >= upto => Ok(()),
            _ => Err(AppendError::Broken),
        }
    }

    /// Syncs at once while a caller waits, and lazily otherwise.
    fn run_sync_loop(&self) {
        let mut book = self.lock_state();
        loop {
            book = self.wait_for_sync_request(book);
            if !book.is_halted() && !book.is_dirty() {
                book = self.wait_for_record(book);
                continue;
            }
            if book.is_halted() || book.is_broken() {
                self.publish_if_broken(&book);
                return;
            }
            book.set_thread(SyncThreadState::Busy);
            let (file, upto) = book.pending_sync();
            drop(book);
            let done = file.sync_data();
            book = self.lock_state();
            match done {
                Ok(()) => book.set_synced(upto),
                Err(error) => {
                    // After a failed sync, the kernel may report success for the next one. That success is false.
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the audit file could not be brought to the disk"
                    );
                    book.mark_broken();
                }
            }
            let synced = SyncProgress { upto: book.synced_count(), broken: book.is_broken() };
            // A thread that is woken now must not find the state locked.
            drop(book);
            self.publish_sync_progress(synced);
            book = self.lock_state();
        }
    }

    /// Waits for a sync request, but at most [`super::AuditWriterOptions::lazy_sync`]. So no record stays off the disk for longer: any
    /// unsynced record was written after this wait began.
    fn wait_for_sync_request<'a>(
        &self,
        mut book: MutexGuard<'a, WriterState>,
    ) -> MutexGuard<'a, WriterState> {
        book.set_thread(SyncThreadState::Dozing);
        let idle = |book: &mut WriterState| !book.is_halted() && !book.is_sync_requested();
        let (book, _) = self
            .wake
            .wait_timeout_while(book, self.options.lazy_sync, idle)
            .unwrap_or_else(PoisonError::into_inner);
        book
    }

    /// Waits until there is a record that is not on the disk.
    fn wait_for_record<'a>(
        &self,
        mut book: MutexGuard<'a, WriterState>,
    ) -> MutexGuard<'a, WriterState> {
        book.set_thread(SyncThreadState::Asleep);
        let idle = |book: &mut WriterState| !book.is_halted() && !book.is_dirty();
        self.wake.wait_while(book, idle).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish_synced(&self, book: &WriterState) {
        self.publish_sync_progress(SyncProgress {
            upto: book.synced_count(),
            broken: book.is_broken(),
        });
    }

    /// Publishes the progress. Two threads may publish at once and out of order, so values never decrease.
    fn publish_sync_progress(&self, now: SyncProgress) {
        self.synced.send_modify(|synced| {
            synced.upto = synced.upto.max(now.upto);
            synced.broken |= now.broken;
        });
    }

    pub(super) fn publish_if_broken(&self, book: &WriterState) {
        if book.is_broken() {
            self.publish_synced(book);
        }
    }
}
