//! A request body that has to come at a minimum rate.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// How fast a body has to come. Only time in which the server waits for its client counts.
#[derive(Clone, Copy, Debug)]
pub struct BodyPace {
    /// Time that a body may make the server wait, however small it is, and longest single wait.
    pub grace: Duration,
    /// Bytes that earn a further second.
    pub min_bytes_per_second: u64,
}

impl BodyPace {
    /// Returns how long a body may have made the server wait by the time that it has brought this many bytes.
    fn allowed_wait(self, received: u64) -> Duration {
        let earned = received / self.min_bytes_per_second.max(1);
        self.grace.saturating_add(Duration::from_secs(earned))
    }
}

/// The client sends its body too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body comes too slowly")]
pub struct BodyTooSlow;

/// A wait for the next bytes.
#[derive(Debug)]
struct BodyWait {
    since: Instant,
    end: Pin<Box<Sleep>>,
}

/// A request body that fails when its client sends it too slowly, so that it cannot hold what was reserved for it.
#[derive(Debug)]
pub struct PacedBody {
    body: Incoming,
    pace: BodyPace,
    received: u64,
    /// Time spent in waits that have ended.
    waited: Duration,
    wait: Option<BodyWait>,
}

impl PacedBody {
    pub(super) const fn new(body: Incoming, pace: BodyPace) -> Self {
        Self { body, pace, received: 0, waited: Duration::ZERO, wait: None }
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(wait) = this.wait.take() {
                this.waited += wait.since.elapsed();
            }
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
            {
                let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
                this.received = this.received.saturating_add(bytes);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let left = this.pace.allowed_wait(this.received).saturating_sub(this.waited);
        let left = left.min(this.pace.grace);
        let wait = this.wait.get_or_insert_with(|| {
            let since = Instant::now();
            BodyWait { since, end: Box::pin(sleep_until(since + left)) }
        });
        ready!(wait.end.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyTooSlow.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_earn_time_and_drops_earn_none() {
        let pace = BodyPace { grace: Duration::from_secs(30), min_bytes_per_second: 8192 };
        let seconds = |received| pace.allowed_wait(received).as_secs();
        assert_eq!([0, 1, 8191, 8192, 1 << 20].map(seconds), [30, 30, 30, 31, 158]);
    }
}
