//! A worker that runs scripts: it stands in for nodes behind the real jobs table.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cynode_core::workflow::jobs::ClaimedJob;
use cynode_testkit::pause;
use cynode_wire::workflow::jobs::{ClaimJobs, ClaimedJobs, JobReport};
use reqwest::StatusCode;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::script::Scripts;

/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The work of a worker, to compare with the expected work.
#[derive(Debug, Default)]
pub struct WorkLedger {
    entries: Mutex<BTreeMap<(String, String, u32), u32>>,
}

impl WorkLedger {
    /// Records that an attempt of a task's unit was worked on.
    pub fn note(&self, task: &str, unit: &str, attempt: u32) {
        let key = (task.to_owned(), unit.to_owned(), attempt);
        *self.entries.lock().unwrap().entry(key).or_default() += 1;
    }

    /// Returns how often each attempt of each unit of each task was worked on.
    pub fn entries(&self) -> BTreeMap<(String, String, u32), u32> {
        self.entries.lock().unwrap().clone()
    }
}

/// A scripted worker.
pub struct Executor {
    http: reqwest::Client,
    base: String,
    token: String,
    scripts: Scripts,
    /// Ledger of its work.
    pub ledger: Arc<WorkLedger>,
    stop: AtomicBool,
    silence_seconds: u32,
}

impl Executor {
    /// Creates a worker of the orchestrator at `base`, its internal port.
    pub fn new(base: &str, token: &str, scripts: Scripts, silence_seconds: u32) -> Self {
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().unwrap();
        Self {
            http,
            base: base.to_owned(),
            token: token.to_owned(),
            scripts,
            ledger: Arc::default(),
            stop: AtomicBool::new(false),
            silence_seconds,
        }
    }

    /// Stops the worker.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Works until it is stopped. A claim or report without an answer is repeated unchanged, until it gets one.
    pub async fn run(self: Arc<Self>) {
        let jobs = TaskTracker::new();
        while !self.stopped() {
            let claim = ClaimJobs {
                claim_id: Uuid::from_u128(rand::random()),
                max_jobs: 100,
                expires_in_seconds: Some(self.silence_seconds),
                wait_ms: Some(1000),
            };
            let Some(claimed) = self.persist::<ClaimedJobs>("/v1/jobs/claim", &claim).await else {
                continue;
            };
            for job in claimed.jobs {
                let worker = self.clone();
                jobs.spawn(async move { worker.work(job).await });
            }
        }
        jobs.close();
        jobs.wait().await;
    }

    async fn work(&self, job: ClaimedJob) {
        let unit = &job.payload.unit;
        let script = unit["script"].as_str().unwrap_or_default();
        self.ledger.note(&job.task_id.to_string(), job.unit.as_str(), job.attempt);
        let work = unit["work_ms"].as_u64().unwrap_or(0);
        if work > 0 {
            pause(Duration::from_millis(work)).await;
        }
        let outcome = self.scripts.outcome(script, job.unit.as_str(), job.attempt);
        let Some((outcome, result)) = outcome else { return };
        let report = JobReport { fencing_token: job.fencing_token, outcome, result };
        let path = format!("/v1/jobs/{}/result", job.job_id);
        self.persist::<serde_json::Value>(&path, &report).await;
    }

    /// Sends until it gets an answer. Returns `None` if it was refused or is stopped.
    async fn persist<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Option<T> {
        loop {
            let url = format!("{}{path}", self.base);
            let sent = self.http.post(url).bearer_auth(&self.token).json(body).send().await;
            match sent {
                Ok(answer) if answer.status().is_success() => {
                    if let Ok(body) = answer.json().await {
                        return Some(body);
                    }
                }
                Ok(answer)
                    if answer.status().is_client_error()
                        && answer.status() != StatusCode::TOO_MANY_REQUESTS =>
                {
                    return None;
                }
                Ok(_) | Err(_) => {}
            }
            if self.stopped() {
                return None;
            }
            pause(PAUSE).await;
        }
    }
}
