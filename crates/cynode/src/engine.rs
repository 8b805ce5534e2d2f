//! The client of the engine. The orchestrator dispatches a due run to it; it calls the runner, at least once and one call at a
//! time for each task.
//!
//! The engine may be restarted, wiped or replaced at any moment. The reconciler dispatches again what the engine lost; the
//! lease and the checkpoint's number make duplicate calls harmless.

use std::{future::Future, pin::Pin, time::Duration};

use anyhow::{Context, bail};
use cynode_app::background::reconciler::{DueRun, EngineError, EngineHealth, WorkflowEngine};
use reqwest::StatusCode;
use serde_json::json;
use tokio::{net::TcpStream, sync::Mutex};

use crate::config;

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// An engine over HTTP.
pub(crate) struct RestateClient {
    http: reqwest::Client,
    ingress: String,
    admin: Option<String>,
    runner: Option<String>,
    /// Whether the runner was registered since this process started; one registration at a time.
    registered: Mutex<bool>,
}

/// Addresses of the engine and of the runner.
pub(crate) struct EngineEndpoints {
    pub(crate) ingress: String,
    pub(crate) admin: Option<String>,
    pub(crate) runner: Option<String>,
}

impl EngineEndpoints {
    /// Returns those of an external engine, if one is configured.
    pub(crate) fn from_config(config: &config::EngineConfig) -> Option<Self> {
        let ingress = config.ingress_url.clone()?;
        Some(Self { ingress, admin: config.admin_url.clone(), runner: config.runner_url.clone() })
    }

    /// Returns those of the engine that `up` starts.
    pub(crate) fn for_local_engine(ports: config::EnginePorts) -> Self {
        Self {
            ingress: format!("http://{}", ports.ingress),
            admin: Some(format!("http://{}", ports.admin)),
            runner: Some(format!("http://{}", ports.runner)),
        }
    }
}

/// Why the runner is registered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegistrationReason {
    FirstTime,
    Forgotten,
}

impl RestateClient {
    pub(crate) fn new(places: EngineEndpoints) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).no_proxy().build()?;
        let trim = |url: String| url.trim_end_matches('/').to_owned();
        Ok(Self {
            http,
            ingress: trim(places.ingress),
            admin: places.admin.map(trim),
            runner: places.runner,
            registered: Mutex::new(false),
        })
    }

    async fn post_advance(&self, due: &DueRun) -> anyhow::Result<StatusCode> {
        let url = format!("{}/TaskDriver/{}/advance/send", self.ingress, due.task);
        // The idempotency key: a repeated dispatch is one call; a new wakeup, or a call since then, makes another.
        let key = format!("{}:{}:{}", due.run, due.wakes, due.fencing_token);
        let answer = self.http.post(url).header("idempotency-key", key).send().await?;
        Ok(answer.status())
    }

    async fn advance_run(&self, due: &DueRun) -> anyhow::Result<()> {
        // Once per process, since the runner may have moved or changed; and whenever the engine has lost it.
        self.register_runner(RegistrationReason::FirstTime).await?;
        let mut status = self.post_advance(due).await?;
        if status == StatusCode::NOT_FOUND {
            self.register_runner(RegistrationReason::Forgotten).await?;
            status = self.post_advance(due).await?;
        }
        // A conflict means that it was dispatched before.
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        bail!("it answered {status}")
    }

    /// Registers the runner at the engine.
    async fn register_runner(&self, why: RegistrationReason) -> anyhow::Result<()> {
        let mut registered = self.registered.lock().await;
        let (Some(admin), Some(runner)) = (&self.admin, &self.runner) else {
            // The operator of an external engine registers the runner.
            return match why {
                RegistrationReason::FirstTime => Ok(()),
                RegistrationReason::Forgotten => bail!(
                    "it does not know the runner, and engine.admin_url or engine.runner_url is not set"
                ),
            };
        };
        match why {
            RegistrationReason::FirstTime if *registered => return Ok(()),
            RegistrationReason::FirstTime => {}
            RegistrationReason::Forgotten => {
                // Another request may have registered it while this one waited.
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

/// Timeout of a liveness probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

impl RestateClient {
    async fn probe_engine(&self) -> Result<String, String> {
        let url = format!("{}/restate/health", self.ingress);
        let answer = self.http.get(url).timeout(PROBE_TIMEOUT).send().await;
        match answer.map(|answer| answer.status()) {
            Ok(status) if status.is_success() => Ok("the engine answers".to_owned()),
            Ok(status) => Err(format!("the engine at {} answers {status}", self.ingress)),
            Err(_) => Err(format!("the engine at {} does not answer", self.ingress)),
        }
    }

    /// Checks whether the runner's address accepts connections; `None` if the address is not known here.
    async fn probe_runner(&self) -> Option<Result<String, String>> {
        let address = self.runner.as_ref()?;
        let url = url::Url::parse(address).ok()?;
        let place = (url.host_str()?.to_owned(), url.port_or_known_default()?);
        let connected = tokio::time::timeout(PROBE_TIMEOUT, TcpStream::connect(place)).await;
        Some(match connected {
            Ok(Ok(_)) => Ok("the runner listens".to_owned()),
            Ok(Err(_)) | Err(_) => Err(format!("the runner at {address} does not answer")),
        })
    }
}

impl WorkflowEngine for RestateClient {
    fn check_health(&self) -> Pin<Box<dyn Future<Output = EngineHealth> + Send + '_>> {
        Box::pin(async move {
            let (engine, runner) = tokio::join!(self.probe_engine(), self.probe_runner());
            EngineHealth { engine: Some(engine), runner }
        })
    }

    fn dispatch_run<'a>(
        &'a self,
        due: &'a DueRun,
    ) -> Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>> {
        Box::pin(async move {
            let told =
                self.advance_run(due).await.with_context(|| format!("engine at {}", self.ingress));
            told.map_err(|error| EngineError(format!("{error:#}")))
        })
    }
}
