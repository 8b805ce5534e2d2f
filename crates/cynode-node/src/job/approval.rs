//! Permission requests to people.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cynode_wire::nodes::{AskPermission, PermissionAnswer};
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::NodeJob;
use crate::{
    client::{CALL_BACKOFF, call_with_retry},
    node::NodeContext,
    workers::PermissionPrompt,
};

/// Wait of one long-poll request.
const PERMISSION_WAIT_MS: u32 = 20_000;

/// Minimum duration of a real long poll. An earlier empty response did not wait.
const MIN_LONG_POLL_DURATION: Duration = Duration::from_secs(1);

/// Asks for permission through the orchestrator until a person has answered, or until the job ends.
pub(super) struct PermissionRequester {
    pub(super) node: Arc<NodeContext>,
    pub(super) job: Arc<NodeJob>,
}

impl PermissionRequester {
    async fn poll_permission(&self, title: String, input: Value) -> bool {
        let fencing_token = self.job.fencing_token();
        let ask = AskPermission { fencing_token, title, input, wait_ms: PERMISSION_WAIT_MS };
        let mut backoff = CALL_BACKOFF;
        loop {
            let began = Instant::now();
            match call_with_retry(|| self.node.client.request_permission(self.job.job_id(), &ask))
                .await
            {
                Ok(PermissionAnswer::Allowed) => return true,
                Ok(PermissionAnswer::Refused) => return false,
                // Backs off if the server returns at once without an answer.
                Ok(PermissionAnswer::Waiting) if began.elapsed() < MIN_LONG_POLL_DURATION => {
                    backoff.wait_next_delay().await;
                }
                Ok(PermissionAnswer::Waiting) => backoff.reset_failures(),
                Err(error) => {
                    self.job.push_note(format!("nobody could be asked: {error}"));
                    return false;
                }
            }
        }
    }
}

impl PermissionPrompt for PermissionRequester {
    fn request_permission(&self, title: String, input: Value) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let _while_asking = OpenQuestionGuard::new(&self.job);
            self.poll_permission(title, input).await
        })
    }
}

/// Counts a question as open for the guard's lifetime.
struct OpenQuestionGuard<'a>(&'a NodeJob);

impl<'a> OpenQuestionGuard<'a> {
    fn new(job: &'a NodeJob) -> Self {
        job.asking.fetch_add(1, Ordering::Relaxed);
        Self(job)
    }
}

impl Drop for OpenQuestionGuard<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}
