//! The client of the engine. The orchestrator dispatches a due run to it; it calls the runner, at least once and one call at a
//! time for each task.
//!
//! The engine may be restarted, wiped or replaced at any moment. The reconciler dispatches again what the engine lost; the
//! lease and the checkpoint's number make duplicate calls harmless.

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use anyhow::{Context, bail};
use cynode_app::background::reconciler::{DueRun, EngineError, EngineHealth, WorkflowEngine};
use reqwest::StatusCode;
use serde_json::json;
use tokio::{net::TcpStream, sync::Mutex};

use crate::{config, restate};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Address of a part of the engine.
pub(crate) enum EngineAddress {
    Url(String),
    /// A socket in a directory that only the user of the engine and root may enter: the engine itself asks nobody for a credential.
    Socket(PathBuf),
}

impl EngineAddress {
    /// Reads an address of the configuration: a URL, or `unix:` and the path of a socket.
    fn from_text(text: &str) -> Self {
        match text.strip_prefix(config::ENGINE_SOCKET_PREFIX) {
            Some(path) => Self::Socket(path.into()),
            None => Self::Url(text.to_owned()),
        }
    }
}

/// A connected part of the engine.
struct EngineConnection {
    http: reqwest::Client,
    base: String,
    /// The address as people know it.
    place: String,
}

impl EngineConnection {
    fn new(address: EngineAddress) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).no_proxy();
        Ok(match address {
            EngineAddress::Url(url) => {
                let base = url.trim_end_matches('/').to_owned();
                Self { http: http.build()?, place: base.clone(), base }
            }
            EngineAddress::Socket(path) => {
                let place = path.display().to_string();
                Self {
                    http: http.unix_socket(path).build()?,
                    base: "http://localhost".to_owned(),
                    place,
                }
            }
        })
    }
}

/// An engine over HTTP.
pub(crate) struct RestateClient {
    ingress: EngineConnection,
    admin: Option<EngineConnection>,
    runner: Option<String>,
    /// Whether the runner was registered since this process started; one registration at a time.
    registered: Mutex<bool>,
}

/// Addresses of the engine and of the runner.
pub(crate) struct EngineEndpoints {
    pub(crate) ingress: EngineAddress,
    pub(crate) admin: Option<EngineAddress>,
    pub(crate) runner: Option<String>,
}

impl EngineEndpoints {
    /// Returns those of an external engine, if one is configured.
    pub(crate) fn from_config(config: &config::EngineConfig) -> Option<Self> {
        let ingress = EngineAddress::from_text(config.ingress_url.as_deref()?);
        let admin = config.admin_url.as_deref().map(EngineAddress::from_text);
        Some(Self { ingress, admin, runner: config.runner_url.clone() })
    }

    /// Returns those of the engine that `up` starts in `directory`.
    pub(crate) fn for_local_engine(directory: &Path, runner: SocketAddr) -> Self {
        let [ingress, admin] = restate::engine_sockets(directory).map(EngineAddress::Socket);
        Self { ingress, admin: Some(admin), runner: Some(format!("http://{runner}")) }
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
        Ok(Self {
            ingress: EngineConnection::new(places.ingress)?,
            admin: places.admin.map(EngineConnection::new).transpose()?,
            runner: places.runner,
            registered: Mutex::new(false),
        })
    }

    async fn post_advance(&self, due: &DueRun) -> anyhow::Result<StatusCode> {
        let url = format!("{}/TaskDriver/{}/advance/send", self.ingress.base, due.task);
        // The idempotency key: a repeated dispatch is one call; a new wakeup, or a call since then, makes another.
        let key = format!("{}:{}:{}", due.run, due.wakes, due.fencing_token);
        let answer = self.ingress.http.post(url).header("idempotency-key", key).send().await?;
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
                let url = format!("{}/services/TaskDriver", admin.base);
                let known = admin.http.get(url).send().await?;
                if known.status().is_success() {
                    return Ok(());
                }
            }
        }
        let body = json!({ "uri": runner, "force": true });
        let url = format!("{}/deployments", admin.base);
        let answer = admin.http.post(url).json(&body).send().await?;
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
        let place = &self.ingress.place;
        let url = format!("{}/restate/health", self.ingress.base);
        let answer = self.ingress.http.get(url).timeout(PROBE_TIMEOUT).send().await;
        match answer.map(|answer| answer.status()) {
            Ok(status) if status.is_success() => Ok("the engine answers".to_owned()),
            Ok(status) => Err(format!("the engine at {place} answers {status}")),
            Err(_) => Err(format!("the engine at {place} does not answer")),
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

    fn engine_version(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async move {
            let admin = self.admin.as_ref()?;
            let asked = admin.http.get(format!("{}/version", admin.base)).timeout(PROBE_TIMEOUT);
            let body = asked.send().await.ok()?.error_for_status().ok()?.bytes().await.ok()?;
            let said: serde_json::Value = serde_json::from_slice(&body).ok()?;
            said.get("version")?.as_str().map(str::to_owned)
        })
    }

    fn dispatch_run<'a>(
        &'a self,
        due: &'a DueRun,
    ) -> Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>> {
        Box::pin(async move {
            let place = &self.ingress.place;
            let told = self.advance_run(due).await.with_context(|| format!("engine at {place}"));
            told.map_err(|error| EngineError(format!("{error:#}")))
        })
    }
}
