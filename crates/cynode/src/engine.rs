//! The way to the engine: told that a run is due, it calls the runner, at least once and one call at a time for each task.
//!
//! The engine may be restarted, wiped or replaced at any moment. Whatever it forgets, the sweep tells it again; whatever
//! it does twice, the lease and the checkpoint's number make once.

use std::{future::Future, pin::Pin, time::Duration};

use anyhow::{Context, bail};
use cynode_app::sweep::{Due, Engine, EngineError};
use reqwest::StatusCode;
use serde_json::json;
use tokio::sync::Mutex;

use crate::config;

/// Longest time of one call.
const PATIENCE: Duration = Duration::from_secs(10);

/// An engine that is reached over HTTP.
pub(crate) struct Restate {
    http: reqwest::Client,
    ingress: String,
    admin: Option<String>,
    runner: Option<String>,
    /// Whether the runner was made known since this process started; one registration at a time.
    registered: Mutex<bool>,
}

/// Where the engine is, and where it finds the runner.
pub(crate) struct Places {
    pub(crate) ingress: String,
    pub(crate) admin: Option<String>,
    pub(crate) runner: Option<String>,
}

impl Places {
    /// Those of an engine that runs elsewhere, if one is configured.
    pub(crate) fn elsewhere(config: &config::Engine) -> Option<Self> {
        let ingress = config.ingress_url.clone()?;
        Some(Self { ingress, admin: config.admin_url.clone(), runner: config.runner_url.clone() })
    }

    /// Those of the engine that `up` starts.
    pub(crate) fn own(ports: config::Ports) -> Self {
        Self {
            ingress: format!("http://{}", ports.ingress),
            admin: Some(format!("http://{}", ports.admin)),
            runner: Some(format!("http://{}", ports.runner)),
        }
    }
}

/// Why the runner is made known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    FirstTime,
    Forgotten,
}

impl Restate {
    pub(crate) fn new(places: Places) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
        let trim = |url: String| url.trim_end_matches('/').to_owned();
        Ok(Self {
            http,
            ingress: trim(places.ingress),
            admin: places.admin.map(trim),
            runner: places.runner,
            registered: Mutex::new(false),
        })
    }

    async fn send(&self, due: &Due) -> anyhow::Result<StatusCode> {
        let url = format!("{}/TaskDriver/{}/advance/send", self.ingress, due.task);
        // The same wish said twice is one call; what came since, or a call that was made since, is another.
        let key = format!("{}:{}:{}", due.run, due.wakes, due.fencing_token);
        let answer = self.http.post(url).header("idempotency-key", key).send().await?;
        Ok(answer.status())
    }

    async fn told(&self, due: &Due) -> anyhow::Result<()> {
        // Once in a life, since the runner may have moved or changed; and whenever the engine has forgotten it.
        self.register(Why::FirstTime).await?;
        let mut status = self.send(due).await?;
        if status == StatusCode::NOT_FOUND {
            self.register(Why::Forgotten).await?;
            status = self.send(due).await?;
        }
        // A conflict says that it was told before.
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        bail!("it answered {status}")
    }

    /// Makes the runner known to the engine.
    async fn register(&self, why: Why) -> anyhow::Result<()> {
        let mut registered = self.registered.lock().await;
        let (Some(admin), Some(runner)) = (&self.admin, &self.runner) else {
            // Whoever runs the engine made the runner known to it, or must.
            return match why {
                Why::FirstTime => Ok(()),
                Why::Forgotten => bail!(
                    "it does not know the runner, and engine.admin_url or engine.runner_url is not set"
                ),
            };
        };
        match why {
            Why::FirstTime if *registered => return Ok(()),
            Why::FirstTime => {}
            Why::Forgotten => {
                // Somebody may have done it while we waited.
                let known = self.http.get(format!("{admin}/services/TaskDriver")).send().await?;
                if known.status().is_success() {
                    return Ok(());
                }
            }
        }
        let body = json!({ "uri": runner, "force": true });
        let answer = self.http.post(format!("{admin}/deployments")).json(&body).send().await?;
        let status = answer.status();
        if !status.is_success() {
            let why = answer.text().await.unwrap_or_default();
            bail!("the runner at {runner} could not be made known ({status}): {why}");
        }
        *registered = true;
        tracing::info!(event = "engine.registered", runner, "the engine knows the runner");
        Ok(())
    }
}

impl Engine for Restate {
    fn tell<'a>(
        &'a self,
        due: &'a Due,
    ) -> Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>> {
        Box::pin(async move {
            let told = self.told(due).await.with_context(|| format!("engine at {}", self.ingress));
            told.map_err(|error| EngineError(format!("{error:#}")))
        })
    }
}
