//! Limits of open streams, per account and per source, so that nobody takes all connections of the server.

use std::time::Duration;

use cynode_core::ids::UserId;
use cynode_net::{
    concurrency::{ConcurrencyLimiter, ConcurrencyPermit},
    server::ClientSource,
};

use crate::{App, Error};

/// Maximum number of event streams of one account.
pub const MAX_EVENT_STREAMS_PER_ACCOUNT: usize = 16;

/// Maximum number of model requests of one account on the user-facing port.
pub const MAX_CHAT_STREAMS_PER_ACCOUNT: usize = 64;

/// Maximum number of streams of all kinds from one source on another machine.
const MAX_STREAMS_PER_SOURCE: usize = 128;

/// How long a refused caller waits before a retry. The limit names no time: a stream ends when its client closes it.
const STREAM_RETRY_DELAY: Duration = Duration::from_secs(5);

/// What streams are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamScope {
    /// Event streams of an account.
    Events(UserId),
    /// Model requests of an account.
    Chats(UserId),
    /// All streams of a source.
    Source(ClientSource),
}

/// Open streams of this process.
pub(crate) type StreamLimiter = ConcurrencyLimiter<StreamScope>;

/// An open stream, until it is dropped.
pub type StreamPermit = ConcurrencyPermit<StreamScope>;

impl App {
    /// Counts an event stream. Rejects a caller with too many of them.
    pub fn open_event_stream(
        &self,
        user: UserId,
        source: ClientSource,
    ) -> Result<StreamPermit, Error> {
        self.open_stream((StreamScope::Events(user), MAX_EVENT_STREAMS_PER_ACCOUNT), source)
    }

    /// Counts a model request, whose answer may be a stream. Rejects a caller with too many of them.
    pub fn open_chat_stream(
        &self,
        user: UserId,
        source: ClientSource,
    ) -> Result<StreamPermit, Error> {
        self.open_stream((StreamScope::Chats(user), MAX_CHAT_STREAMS_PER_ACCOUNT), source)
    }

    fn open_stream(
        &self,
        own: (StreamScope, usize),
        source: ClientSource,
    ) -> Result<StreamPermit, Error> {
        let source =
            (!source.is_local()).then_some((StreamScope::Source(source), MAX_STREAMS_PER_SOURCE));
        let permit = self.shared_state().streams.try_acquire([own].into_iter().chain(source));
        permit.map_err(|scope| Error::RateLimited {
            what: match scope {
                StreamScope::Events(_) => "this account has too many event streams open: close one",
                StreamScope::Chats(_) => {
                    "this account has too many model requests open: wait until one ends"
                }
                StreamScope::Source(_) => {
                    "too many streams are open from your address: close one, or wait until one ends"
                }
            },
            after: STREAM_RETRY_DELAY,
        })
    }
}
