//! The worker that drives a coding agent by the Agent Client Protocol.
//!
//! The agent runs in the sandbox and speaks over its standard input and output. It has files and commands of its own, so it gets none
//! from here. What it says is untrusted: every answer is checked, everything is bounded, and whatever it does a turn ends.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        CancelNotification, ClientCapabilities, HttpHeader, Implementation, InitializeRequest,
        InitializeResponse, LoadSessionRequest, McpServer, McpServerHttp, NewSessionRequest,
        NewSessionResponse, ResumeSessionRequest, SessionId, SetSessionModeRequest,
    },
};
use cynode_wire::nodes::Happened;
use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use self::wire::{Incoming, Wire};
use super::{
    AGENTS, NO_KEY, Order, Patience, Permissions, Recipe, Session, Start, TOOLS_AT, Turn,
    WORKSPACE, Worker, WorkerError,
    inside::{self, Ear, environment, tell},
    install, recipes,
};
use crate::sandbox::{Bind, Ended, Running};

mod turn;
mod updates;
mod wire;

/// What the tool gate is called towards agents.
const GATE: &str = "cynode";
/// The code of JSON-RPC for a method that is not there.
const NO_METHOD: i32 = -32601;

/// A coding agent.
pub(super) struct Acp {
    recipe: Recipe,
    place: PathBuf,
}

impl Acp {
    /// The agent of a recipe, installed below the folder.
    pub(super) fn new(recipe: Recipe, agents: &Path) -> Self {
        Self { recipe, place: agents.to_owned() }
    }

    async fn begin(&self, start: Start<'_>) -> Result<Agent, WorkerError> {
        let name = || self.recipe.name.clone();
        if !install::is_installed(&self.recipe, &self.place) {
            return Err(WorkerError::NotInstalled(name()));
        }
        let model = start.assignment.work.models.first();
        let model = model.ok_or_else(|| WorkerError::NoModel(name()))?;
        if !recipes::plain_model(model) {
            return Err(WorkerError::BadModel(model.clone()));
        }
        let until = start.limits.until.min(Instant::now() + start.limits.startup);
        for (path, text) in self.recipe.files(model) {
            let (_, mut orders) = mpsc::channel(1);
            let mut ear = Ear::new(&mut orders, start.events.clone());
            let sandbox = &*start.sandbox;
            let written =
                inside::write_file(sandbox, &path, &text, until, &start.events, &mut ear).await?;
            if !written.succeeded() {
                return Err(WorkerError::Ended { agent: name(), told: written.output });
            }
        }
        let mut env = environment();
        env.extend(self.recipe.environment(model, start.ask));
        let binds = [bind(&self.recipe, &self.place.join(&self.recipe.name))];
        let mut running = start.sandbox.run(&self.recipe.argv(model), &env, &binds).await?;
        let stdin = running.stdin.take().map(|pipe| Box::new(pipe) as _);
        let stdout = running.stdout.take().map(|pipe| Box::new(pipe) as _);
        let stderr = running.stderr.take().map(|pipe| Box::new(pipe) as _);
        let mut agent = Agent {
            name: name(),
            running,
            wire: Wire::new(stdin, stdout, stderr),
            session: SessionId::new(""),
            resumed: false,
            events: start.events,
            permissions: start.permissions,
            limits: start.limits,
            over: false,
        };
        agent.greet(start.resume, self.recipe.manner(start.ask).mode.as_deref(), until).await?;
        Ok(agent)
    }
}

impl Worker for Acp {
    fn start<'a>(
        &'a self,
        start: Start<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Session>, WorkerError>> {
        Box::pin(async move {
            let agent: Box<dyn Session> = Box::new(self.begin(start).await?);
            Ok(agent)
        })
    }
}

/// Where an installed agent is seen inside.
pub(super) fn bind(recipe: &Recipe, place: &Path) -> Bind {
    let inside = PathBuf::from(format!("{AGENTS}/{}", recipe.name));
    Bind { host: place.to_owned(), inside, writable: false }
}

/// An agent with a session.
struct Agent {
    name: String,
    running: Running,
    wire: Wire,
    session: SessionId,
    resumed: bool,
    events: mpsc::Sender<Happened>,
    permissions: Arc<dyn Permissions>,
    limits: Patience,
    /// Whether it has ended.
    over: bool,
}

impl Agent {
    /// Finds out what the agent can do and begins a session, or takes one up again.
    async fn greet(
        &mut self,
        resume: Option<&str>,
        mode: Option<&str>,
        until: Instant,
    ) -> Result<(), WorkerError> {
        let us = Implementation::new("cynode-node", env!("CARGO_PKG_VERSION"));
        let hello = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new())
            .client_info(us);
        let can: InitializeResponse = self.ask("initialize", &hello, until).await?;
        if can.protocol_version != ProtocolVersion::V1 {
            let told = format!("protocol version {}", can.protocol_version);
            return Err(self.refused("initialize", told));
        }
        let can = can.agent_capabilities;
        let servers = if can.mcp_capabilities.http {
            let header = HttpHeader::new("Authorization", format!("Bearer {NO_KEY}"));
            vec![McpServer::Http(McpServerHttp::new(GATE, TOOLS_AT).headers(vec![header]))]
        } else {
            self.note("The agent cannot reach the tools of the gate: it knows no MCP over HTTP.")
                .await;
            Vec::new()
        };
        if let Some(before) = resume {
            let taken: Result<Value, _> = if can.session_capabilities.resume.is_some() {
                let ask = ResumeSessionRequest::new(before.to_owned(), WORKSPACE);
                self.ask("session/resume", &ask.mcp_servers(servers.clone()), until).await
            } else if can.load_session {
                // The agent tells the whole session again; nobody listens until it has answered.
                let ask = LoadSessionRequest::new(before.to_owned(), WORKSPACE);
                self.ask("session/load", &ask.mcp_servers(servers.clone()), until).await
            } else {
                Err(self.refused("session/resume", "it cannot take up sessions".into()))
            };
            match taken {
                Ok(_) => {
                    self.session = SessionId::new(before.to_owned());
                    self.resumed = true;
                }
                Err(error @ WorkerError::Refused { .. }) => {
                    self.note(&format!("The session could not be taken up again: {error}")).await;
                }
                Err(error) => return Err(error),
            }
        }
        if !self.resumed {
            let ask = NewSessionRequest::new(WORKSPACE).mcp_servers(servers);
            let new: NewSessionResponse = self.ask("session/new", &ask, until).await?;
            self.session = new.session_id;
        }
        let (session, resumed) = (self.session.to_string(), self.resumed);
        tell(&self.events, Happened::Session { session, resumed }).await;
        if let Some(mode) = mode {
            let ask = SetSessionModeRequest::new(self.session.clone(), mode.to_owned());
            match self.ask::<Value>("session/set_mode", &ask, until).await {
                // It will ask more often than it need, which is safe.
                Err(error @ WorkerError::Refused { .. }) => self.note(&error.to_string()).await,
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Asks the agent something outside of a turn and waits for the answer.
    async fn ask<T: DeserializeOwned>(
        &mut self,
        method: &'static str,
        params: &(impl Serialize + Sync),
        until: Instant,
    ) -> Result<T, WorkerError> {
        let asked = self.wire.request(method, params);
        loop {
            let Ok(incoming) = tokio::time::timeout_at(until, self.wire.next()).await else {
                let seconds = self.limits.startup.as_secs();
                let told = self.wire.strays();
                return Err(WorkerError::Slow { agent: self.name.clone(), seconds, told });
            };
            match incoming {
                Incoming::Answer { id, answer } if id == asked => {
                    let answer = answer.map_err(|told| self.refused(method, told))?;
                    return serde_json::from_value(answer)
                        .map_err(|error| self.refused(method, error.to_string()));
                }
                Incoming::Gone => {
                    let told = self.wire.strays();
                    return Err(WorkerError::Ended { agent: self.name.clone(), told });
                }
                Incoming::Request { id, method, .. } => self.refuse(&id, &method),
                Incoming::Stray(told) => self.tell_all(told).await,
                Incoming::TooLong(bytes) => {
                    tell(&self.events, Happened::Truncated { bytes }).await;
                }
                Incoming::Answer { .. } | Incoming::Notification { .. } => {}
            }
        }
    }

    /// Refuses what the agent asks of us: it has files and commands of its own.
    fn refuse(&mut self, id: &Value, method: &str) {
        let told = format!("{method} is not offered here: use your own files and commands");
        self.wire.refuse(id, NO_METHOD, &told);
    }

    fn refused(&self, method: &'static str, told: String) -> WorkerError {
        WorkerError::Refused { agent: self.name.clone(), method, told }
    }

    async fn note(&mut self, text: &str) {
        tell(&self.events, Happened::Note { text: text.to_owned() }).await;
    }

    async fn tell_all(&mut self, all: Vec<Happened>) {
        for happened in all {
            tell(&self.events, happened).await;
        }
    }

    /// Tells the agent to stop what it is doing.
    fn cancel(&mut self) {
        self.wire.notify("session/cancel", &CancelNotification::new(self.session.clone()));
    }
}

impl Session for Agent {
    fn id(&self) -> Option<&str> {
        Some(&self.session.0)
    }

    fn resumed(&self) -> bool {
        self.resumed
    }

    fn prompt<'a>(
        &'a mut self,
        text: &'a str,
        orders: &'a mut mpsc::Receiver<Order>,
    ) -> BoxFuture<'a, Result<Turn, WorkerError>> {
        Box::pin(async move { Ok(self.work(text, orders).await) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Ended> {
        Box::pin(async move {
            let Self { running, wire, .. } = *self;
            drop(wire);
            running.kill();
            running.wait().await
        })
    }
}
