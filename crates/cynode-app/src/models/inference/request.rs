//! The inference request and its caller.

use std::{str::FromStr, sync::Arc};

use cynode_core::{
    agents::AgentRole,
    budget::Amount,
    ids::{AgentTokenId, CallId, IdError, JobId, ProjectId, RunId, TaskId, ThreadId, UserId},
    models::Period,
    names::ProfileName,
    roles::UserRole,
    trace::TraceId,
};
use cynode_models::dialect::Dialect;
use cynode_wire::models::{BudgetScopeType, BudgetStatusView};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::tools::agent_tokens::ResolvedAgentToken;

/// Header that is forwarded to a provider: name and value.
pub type ForwardedHeader = (String, String);

/// Caller of a model.
#[derive(Clone, Debug)]
pub struct InferenceCaller {
    /// The user, or the user that the agent works for.
    pub user: UserId,
    /// Project that is charged.
    pub project: Option<ProjectId>,
    /// Agent, if the caller is one.
    pub agent: Option<Arc<ResolvedAgentToken>>,
    /// Role of the user in the installation.
    pub role_everywhere: Option<UserRole>,
    /// Kind of the presented credential: `session`, `api_key` or `agent`.
    pub credential: &'static str,
    /// Whether the caller may talk to the project manager, which acts with all rights of its user.
    pub can_chat: bool,
}

impl InferenceCaller {
    /// Whether the caller has any role: in the installation, in the project that it names, or as an agent.
    pub fn has_any_role(&self) -> bool {
        self.project.is_some() || self.agent.is_some() || self.role_everywhere.is_some()
    }

    /// Returns the task that the caller works on.
    pub fn task_id(&self) -> Option<TaskId> {
        self.agent.as_ref().and_then(|known| known.agent.task)
    }

    pub(super) fn run_id(&self) -> Option<RunId> {
        self.agent.as_ref().and_then(|known| known.agent.run)
    }

    pub(super) fn job_id(&self) -> Option<JobId> {
        self.agent.as_ref().and_then(|known| known.agent.job)
    }

    pub(super) fn agent_token(&self) -> Option<AgentTokenId> {
        self.agent.as_ref().map(|known| known.agent.token)
    }

    pub(super) fn agent_role(&self) -> Option<AgentRole> {
        self.agent.as_ref().map(|known| known.agent.role)
    }
}

/// Conversation that a message to the project manager belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadChoice {
    /// The user's last conversation in the project, unless it has been idle for too long.
    #[default]
    Recent,
    /// A new conversation.
    New,
    /// One conversation of the user.
    Existing(ThreadId),
}

impl FromStr for ThreadChoice {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text {
            "new" => Ok(Self::New),
            id => id.parse().map(Self::Existing),
        }
    }
}

/// A request for a model.
#[derive(Debug)]
pub struct InferenceRequest {
    /// Dialect of the request.
    pub dialect: Dialect,
    /// Complete body.
    pub body: Value,
    /// Size of the body in bytes.
    pub size: usize,
    /// Authenticated caller.
    pub who: InferenceCaller,
    /// Trace that the request belongs to.
    pub trace: TraceId,
    /// Headers that may be forwarded to a provider of the same dialect.
    pub headers: Vec<ForwardedHeader>,
    /// Cancelled when the client has disconnected.
    pub left: CancellationToken,
    /// Conversation of a message to the project manager.
    pub thread: ThreadChoice,
    /// Profile that the project manager answers under. A conversation that exists keeps its own.
    pub profile: Option<ProfileName>,
    /// Whether the default skill is added as for the project manager: a person repeats its request.
    pub(crate) manager_skill: bool,
}

impl InferenceRequest {
    /// Creates a request.
    pub fn new(
        dialect: Dialect,
        body: Value,
        size: usize,
        who: InferenceCaller,
        trace: TraceId,
        headers: Vec<ForwardedHeader>,
    ) -> Self {
        let left = CancellationToken::new();
        Self {
            dialect,
            body,
            size,
            who,
            trace,
            headers,
            left,
            thread: ThreadChoice::default(),
            profile: None,
            manager_skill: false,
        }
    }

    /// Returns the request with the default skill that the project manager's requests get.
    #[must_use]
    pub(crate) fn with_manager_skill(mut self) -> Self {
        self.manager_skill = true;
        self
    }

    /// Returns the headers that are forwarded.
    pub(super) fn forwarded_headers(&self, same: bool) -> Vec<ForwardedHeader> {
        if same { self.headers.clone() } else { Vec::new() }
    }

    /// Returns an id for a response without one, in the format of the dialect.
    pub(crate) fn answer_id(&self, call: CallId) -> String {
        let call = call.as_uuid().simple();
        match self.dialect {
            Dialect::Chat => format!("chatcmpl-{call}"),
            Dialect::Responses => format!("resp_{call}"),
            Dialect::Messages => format!("msg_{call}"),
        }
    }
}

/// Renders a message for a budget that has nothing left for any call. Returns `None` otherwise.
pub(super) fn render_if_exhausted(view: &BudgetStatusView) -> Option<String> {
    let used = |spent: i64, held: i64, most: Option<Amount>| {
        most.is_some_and(|most| spent.saturating_add(held) >= most.as_i64())
    };
    let is_full = used(view.spent_micros, view.reserved_micros, view.max_cost_micros)
        || used(view.spent_tokens, view.reserved_tokens, view.max_tokens);
    is_full.then(|| render_exhausted_budget(view))
}

/// Renders a message for an exhausted budget.
pub(super) fn render_exhausted_budget(view: &BudgetStatusView) -> String {
    let whose = match view.scope_type {
        BudgetScopeType::Installation => "the installation's",
        BudgetScopeType::User => "your",
        BudgetScopeType::Project => "the project's",
        BudgetScopeType::Task => "the task's",
    };
    let period = match view.period {
        Period::Total => "budget",
        Period::Day => "budget of the day",
        Period::Month => "budget of the month",
    };
    let money = view.max_cost_micros.map(|most| {
        let (most, used) = (u64::from(most), view.spent_micros.unsigned_abs());
        format!(
            "{} of {} spent, {} held by calls under way",
            format_micros(used),
            format_micros(most),
            format_micros(view.reserved_micros.unsigned_abs())
        )
    });
    let tokens = view.max_tokens.map(|most| {
        format!(
            "{} of {} tokens used, {} held by calls under way",
            view.spent_tokens,
            u64::from(most),
            view.reserved_tokens
        )
    });
    let parts: Vec<String> = money.into_iter().chain(tokens).collect();
    format!(
        "{whose} {period} does not cover the worst case of this call ({}); ask an admin to raise it (`cynork budget set`)",
        parts.join("; ")
    )
}

/// Formats millionths as a decimal number.
fn format_micros(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
