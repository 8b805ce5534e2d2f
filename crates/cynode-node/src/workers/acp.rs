//! Worker that drives a coding agent by the Agent Client Protocol.
//!
//! The agent runs in the sandbox and speaks over its standard input and output. It has its own files and commands and
//! gets none from here. It is untrusted: every message is validated, every buffer is bounded, and every turn ends.

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
use cynode_core::{nodes::JobEventData, skills::SkillFile};
use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use self::wire::{AcpConnection, AgentMessage};
use super::{
    AGENTS_DIR, AgentRecipe, JobWorker, PLACEHOLDER_KEY, PermissionPrompt, SessionStart, TOOLS_URL,
    TurnOutcome, WORKSPACE_DIR, WorkerError, WorkerInstruction, WorkerSession, WorkerTimeouts,
    install,
    process::{self, InstructionListener, base_environment, send_event},
    recipes,
};
use crate::sandbox::{BindMount, SandboxExit, SandboxProcess};

mod turn;
mod updates;
mod wire;

/// Name of the gateway as an MCP server of the agent.
const GATEWAY_SERVER_NAME: &str = "cynode";
/// JSON-RPC error code "method not found".
const METHOD_NOT_FOUND_CODE: i32 = -32601;

/// Worker that drives a coding agent.
pub(super) struct AcpWorker {
    recipe: AgentRecipe,
    place: PathBuf,
}

impl AcpWorker {
    /// Creates the worker for a recipe, installed below `agents`.
    pub(super) fn new(recipe: AgentRecipe, agents: &Path) -> Self {
        Self { recipe, place: agents.to_owned() }
    }

    async fn start_agent(&self, start: SessionStart<'_>) -> Result<AcpSession, WorkerError> {
        let name = || self.recipe.name.clone();
        if !install::is_installed(&self.recipe, &self.place) {
            return Err(WorkerError::NotInstalled(name()));
        }
        let model = start.assignment.work.models.first();
        let model = model.ok_or_else(|| WorkerError::NoModel(name()))?;
        if !recipes::is_plain_model(model) {
            return Err(WorkerError::BadModel(model.clone()));
        }
        let until = start.limits.until.min(Instant::now() + start.limits.startup);
        self.write_home(&start, model, until).await?;
        let mut env = base_environment();
        env.extend(self.recipe.agent_environment(model, start.ask_permission));
        let binds = [agent_bind_mount(&self.recipe, &self.place.join(&self.recipe.name))];
        let mut running =
            start.sandbox.run_program(&self.recipe.program_argv(model), &env, &binds).await?;
        let stdin = running.stdin.take().map(|pipe| Box::new(pipe) as _);
        let stdout = running.stdout.take().map(|pipe| Box::new(pipe) as _);
        let stderr = running.stderr.take().map(|pipe| Box::new(pipe) as _);
        let mut agent = AcpSession {
            name: name(),
            running,
            wire: AcpConnection::new(stdin, stdout, stderr),
            session: SessionId::new(""),
            resumed: false,
            events: start.events,
            permissions: start.permissions,
            limits: start.limits,
            over: false,
        };
        agent
            .initialize_session(
                start.resume,
                self.recipe.asking_mode(start.ask_permission).mode.as_deref(),
                until,
            )
            .await?;
        Ok(agent)
    }

    /// Writes the files of the recipe and of the skills into the agent's home directory. Nothing of it is in the workspace.
    async fn write_home(
        &self,
        start: &SessionStart<'_>,
        model: &str,
        until: Instant,
    ) -> Result<(), WorkerError> {
        let skills = &start.assignment.work.context.skills;
        let own = self.recipe.home_files(model, !skills.is_empty()).into_iter();
        let own = own.map(|(path, text)| SkillFile { path, text, executable: false });
        for file in own.chain(self.recipe.skill_files(skills)) {
            let (_, mut orders) = mpsc::channel(1);
            let mut ear = InstructionListener::new(&mut orders, start.events.clone());
            let (sandbox, path, text) = (&*start.sandbox, &file.path, &file.text);
            let written = if file.executable {
                process::write_program(sandbox, path, text, until, &start.events, &mut ear).await?
            } else {
                process::write_file(sandbox, path, text, until, &start.events, &mut ear).await?
            };
            if !written.is_success() {
                let agent = self.recipe.name.clone();
                return Err(WorkerError::Ended { agent, told: written.output });
            }
        }
        Ok(())
    }
}

impl JobWorker for AcpWorker {
    fn skills_dir(&self) -> Option<String> {
        self.recipe.skills_dir()
    }

    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>> {
        Box::pin(async move {
            let agent: Box<dyn WorkerSession> = Box::new(self.start_agent(start).await?);
            Ok(agent)
        })
    }
}

/// Returns the bind mount of an installed agent.
pub(super) fn agent_bind_mount(recipe: &AgentRecipe, place: &Path) -> BindMount {
    let inside = PathBuf::from(format!("{AGENTS_DIR}/{}", recipe.name));
    BindMount { host: place.to_owned(), inside, writable: false }
}

/// Session of a running agent.
struct AcpSession {
    name: String,
    running: SandboxProcess,
    wire: AcpConnection,
    session: SessionId,
    resumed: bool,
    events: mpsc::Sender<JobEventData>,
    permissions: Arc<dyn PermissionPrompt>,
    limits: WorkerTimeouts,
    /// Whether the session has ended.
    over: bool,
}

impl AcpSession {
    /// Negotiates capabilities with the agent and starts or resumes a session.
    async fn initialize_session(
        &mut self,
        resume: Option<&str>,
        mode: Option<&str>,
        until: Instant,
    ) -> Result<(), WorkerError> {
        let us = Implementation::new("cynode-node", env!("CARGO_PKG_VERSION"));
        let hello = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new())
            .client_info(us);
        let can: InitializeResponse = self.call_agent("initialize", &hello, until).await?;
        if can.protocol_version != ProtocolVersion::V1 {
            let told = format!("protocol version {}", can.protocol_version);
            return Err(self.refusal_error("initialize", told));
        }
        let can = can.agent_capabilities;
        let servers = if can.mcp_capabilities.http {
            let header = HttpHeader::new("Authorization", format!("Bearer {PLACEHOLDER_KEY}"));
            vec![McpServer::Http(
                McpServerHttp::new(GATEWAY_SERVER_NAME, TOOLS_URL).headers(vec![header]),
            )]
        } else {
            self.send_note(
                "The agent cannot reach the tools of the gate: it knows no MCP over HTTP.",
            )
            .await;
            Vec::new()
        };
        if let Some(before) = resume {
            let taken: Result<Value, _> = if can.session_capabilities.resume.is_some() {
                let ask = ResumeSessionRequest::new(before.to_owned(), WORKSPACE_DIR);
                self.call_agent("session/resume", &ask.mcp_servers(servers.clone()), until).await
            } else if can.load_session {
                // The agent replays the whole session. Its updates are ignored until it has answered.
                let ask = LoadSessionRequest::new(before.to_owned(), WORKSPACE_DIR);
                self.call_agent("session/load", &ask.mcp_servers(servers.clone()), until).await
            } else {
                Err(self.refusal_error("session/resume", "it cannot take up sessions".into()))
            };
            match taken {
                Ok(_) => {
                    self.session = SessionId::new(before.to_owned());
                    self.resumed = true;
                }
                Err(error @ WorkerError::Refused { .. }) => {
                    self.send_note(&format!("The session could not be taken up again: {error}"))
                        .await;
                }
                Err(error) => return Err(error),
            }
        }
        if !self.resumed {
            let ask = NewSessionRequest::new(WORKSPACE_DIR).mcp_servers(servers);
            let new: NewSessionResponse = self.call_agent("session/new", &ask, until).await?;
            self.session = new.session_id;
        }
        let (session, resumed) = (self.session.to_string(), self.resumed);
        send_event(&self.events, JobEventData::Session { session, resumed }).await;
        if let Some(mode) = mode {
            let ask = SetSessionModeRequest::new(self.session.clone(), mode.to_owned());
            match self.call_agent::<Value>("session/set_mode", &ask, until).await {
                // Without this mode the agent asks more often than necessary, which is safe.
                Err(error @ WorkerError::Refused { .. }) => {
                    self.send_note(&error.to_string()).await;
                }
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Calls a method of the agent outside of a turn and waits for the answer.
    async fn call_agent<T: DeserializeOwned>(
        &mut self,
        method: &'static str,
        params: &(impl Serialize + Sync),
        until: Instant,
    ) -> Result<T, WorkerError> {
        let asked = self.wire.send_request(method, params);
        loop {
            let Ok(incoming) = tokio::time::timeout_at(until, self.wire.next()).await else {
                let seconds = self.limits.startup.as_secs();
                let told = self.wire.stray_tail();
                return Err(WorkerError::Slow { agent: self.name.clone(), seconds, told });
            };
            match incoming {
                AgentMessage::Answer { id, answer } if id == asked => {
                    let answer = answer.map_err(|told| self.refusal_error(method, told))?;
                    return serde_json::from_value(answer)
                        .map_err(|error| self.refusal_error(method, error.to_string()));
                }
                AgentMessage::Gone => {
                    let told = self.wire.stray_tail();
                    return Err(WorkerError::Ended { agent: self.name.clone(), told });
                }
                AgentMessage::Request { id, method, .. } => self.reject_request(&id, &method),
                AgentMessage::Stray(told) => self.send_events(told).await,
                AgentMessage::TooLong(bytes) => {
                    send_event(&self.events, JobEventData::Truncated { bytes }).await;
                }
                AgentMessage::Answer { .. } | AgentMessage::Notification { .. } => {}
            }
        }
    }

    /// Rejects a request of the agent: it has its own files and commands.
    fn reject_request(&mut self, id: &Value, method: &str) {
        let told = format!("{method} is not offered here: use your own files and commands");
        self.wire.send_error(id, METHOD_NOT_FOUND_CODE, &told);
    }

    fn refusal_error(&self, method: &'static str, told: String) -> WorkerError {
        WorkerError::Refused { agent: self.name.clone(), method, told }
    }

    async fn send_note(&mut self, text: &str) {
        send_event(&self.events, JobEventData::Note { text: text.to_owned() }).await;
    }

    async fn send_events(&mut self, all: Vec<JobEventData>) {
        for happened in all {
            send_event(&self.events, happened).await;
        }
    }

    /// Tells the agent to cancel the current prompt.
    fn cancel_prompt(&mut self) {
        self.wire
            .send_notification("session/cancel", &CancelNotification::new(self.session.clone()));
    }
}

impl WorkerSession for AcpSession {
    fn session_id(&self) -> Option<&str> {
        Some(&self.session.0)
    }

    fn is_resumed(&self) -> bool {
        self.resumed
    }

    fn run_prompt<'a>(
        &'a mut self,
        text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>> {
        Box::pin(async move { Ok(self.run_turn(text, orders).await) })
    }

    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit> {
        Box::pin(async move {
            let Self { running, wire, .. } = *self;
            drop(wire);
            running.kill();
            running.wait_for_exit().await
        })
    }
}
