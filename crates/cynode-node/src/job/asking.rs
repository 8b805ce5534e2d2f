//! Asking people for permission.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cynode_wire::nodes::{AskPermission, Permission};
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::Job;
use crate::{
    client::{Backoff, until_answered},
    node::Node,
    workers::Permissions,
};

/// How long one call waits for the answer.
const WAIT_MS: u32 = 20_000;

/// An answer that came sooner than this did not wait for anybody.
const SOON: Duration = Duration::from_secs(1);

/// Asks through the orchestrator until somebody has answered. When the job ends meanwhile, so does the asking.
pub(super) struct Asking {
    pub(super) node: Arc<Node>,
    pub(super) job: Arc<Job>,
}

impl Asking {
    async fn answer(&self, title: String, input: Value) -> bool {
        let fencing_token = self.job.fencing_token();
        let ask = AskPermission { fencing_token, title, input, wait_ms: WAIT_MS };
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            match until_answered(|| self.node.client.permission(self.job.id(), &ask)).await {
                Ok(Permission::Allowed) => return true,
                Ok(Permission::Refused) => return false,
                // Whoever answers at once without an answer is not to be asked again at once.
                Ok(Permission::Waiting) if began.elapsed() < SOON => backoff.pause().await,
                Ok(Permission::Waiting) => backoff = Backoff::default(),
                Err(error) => {
                    self.job.note(format!("nobody could be asked: {error}"));
                    return false;
                }
            }
        }
    }
}

impl Permissions for Asking {
    fn ask(&self, title: String, input: Value) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let _while_asking = Counted::new(&self.job);
            self.answer(title, input).await
        })
    }
}

/// Counts a question for as long as it is open.
struct Counted<'a>(&'a Job);

impl<'a> Counted<'a> {
    fn new(job: &'a Job) -> Self {
        job.asking.fetch_add(1, Ordering::Relaxed);
        Self(job)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}
