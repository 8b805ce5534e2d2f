//! The thread that brings records to the disk, for all who wait at once.

use std::{
    io,
    sync::{Arc, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use super::{
    Inner, Refused,
    book::{Book, Thread},
};

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
        let wake = {
            let mut book = self.book();
            if book.synced() >= upto {
                return Ok(());
            }
            if book.is_broken() {
                return Err(Refused::Broken);
            }
            book.want(upto)
        };
        if wake {
            self.wake.notify_one();
        }
        self.reached(upto).await
    }

    /// Waits for a record that the thread knows to be wanted.
    pub(super) async fn reached(&self, upto: u64) -> Result<(), Refused> {
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
            book = self.doze(book);
            if !book.is_halted() && !book.is_dirty() {
                book = self.sleep(book);
                continue;
            }
            if book.is_halted() || book.is_broken() {
                self.tell_if_broken(&book);
                return;
            }
            book.set_thread(Thread::Busy);
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
            let synced = Synced { upto: book.synced(), broken: book.is_broken() };
            // Whoever is woken, or runs in our place, must not find the book locked.
            drop(book);
            self.tell(synced);
            book = self.book();
        }
    }

    /// Returns when somebody waits for the disk, and otherwise when the oldest record that may be
    /// off it has been so for long enough: it was not there when this began.
    fn doze<'a>(&self, mut book: MutexGuard<'a, Book>) -> MutexGuard<'a, Book> {
        book.set_thread(Thread::Dozing);
        let idle = |book: &mut Book| !book.is_halted() && !book.is_wanted();
        let (book, _) = self
            .wake
            .wait_timeout_while(book, self.options.lazy_sync, idle)
            .unwrap_or_else(PoisonError::into_inner);
        book
    }

    /// Returns when there is a record that is not on the disk.
    fn sleep<'a>(&self, mut book: MutexGuard<'a, Book>) -> MutexGuard<'a, Book> {
        book.set_thread(Thread::Asleep);
        let idle = |book: &mut Book| !book.is_halted() && !book.is_dirty();
        self.wake.wait_while(book, idle).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_synced(&self, book: &Book) {
        self.tell(Synced { upto: book.synced(), broken: book.is_broken() });
    }

    /// Two may tell at once, and the later one what was true earlier: nothing is taken back.
    fn tell(&self, now: Synced) {
        self.synced.send_modify(|synced| {
            synced.upto = synced.upto.max(now.upto);
            synced.broken |= now.broken;
        });
    }

    pub(super) fn tell_if_broken(&self, book: &Book) {
        if book.is_broken() {
            self.tell_synced(book);
        }
    }
}
