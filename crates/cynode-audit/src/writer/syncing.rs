//! The thread that brings records to the disk, for all who wait at once.

use std::{
    io,
    sync::{Arc, PoisonError},
    thread::{self, JoinHandle},
};

use super::{Inner, Refused, book::Book};

/// What is on the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Synced {
    pub(super) upto: u64,
    /// Nothing more will be.
    pub(super) broken: bool,
}

pub(super) fn start(inner: Arc<Inner>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("audit-sync".to_owned()).spawn(move || inner.keep_syncing())
}

impl Inner {
    pub(super) async fn durable(&self, upto: u64) -> Result<(), Refused> {
        let new = {
            let mut book = self.book();
            if book.synced() >= upto {
                return Ok(());
            }
            if book.is_broken() {
                return Err(Refused::Broken);
            }
            book.want(upto)
        };
        if new {
            self.wake.notify_one();
        }
        let mut synced = self.synced.subscribe();
        let reached = synced.wait_for(|synced| synced.upto >= upto || synced.broken).await;
        match reached {
            Ok(synced) if synced.upto >= upto => Ok(()),
            _ => Err(Refused::Broken),
        }
    }

    /// Syncs at once while somebody waits, and lazily what nobody waits for.
    fn keep_syncing(&self) {
        let mut book = self.book();
        loop {
            book = self
                .wake
                .wait_while(book, |book| !book.is_halted() && !book.is_dirty())
                .unwrap_or_else(PoisonError::into_inner);
            let idle = |book: &mut Book| !book.is_halted() && !book.is_wanted();
            book = self
                .wake
                .wait_timeout_while(book, self.options.lazy_sync, idle)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if book.is_halted() || book.is_broken() {
                self.tell_if_broken(&book);
                return;
            }
            let (file, upto) = book.unsynced();
            drop(book);
            let done = file.sync_data();
            book = self.book();
            match done {
                Ok(()) => book.set_synced(upto),
                Err(error) => {
                    // After a failed sync the kernel may say that all is well; it is not.
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the audit file could not be brought to the disk"
                    );
                    book.break_down();
                }
            }
            self.tell_synced(&book);
        }
    }

    pub(super) fn tell_synced(&self, book: &Book) {
        let _ = self.synced.send_replace(Synced { upto: book.synced(), broken: book.is_broken() });
    }

    pub(super) fn tell_if_broken(&self, book: &Book) {
        if book.is_broken() {
            self.tell_synced(book);
        }
    }
}
