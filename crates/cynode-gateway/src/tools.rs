//! Native tools. Each calls an operation of `cynode-app`: an agent may do only what its user may do there.
//!
//! A tool takes typed arguments, whose schema is the tool's schema, and a context ([`ToolInvocation`]) with the caller,
//! the profile and the trace. It returns a value or a typed error. A tool that is not implemented yet is registered
//! with the reason and cannot be called.

mod agents;
mod artifacts;
mod database;
mod delivery;
mod handoffs;
mod help;
mod memory;
mod models;
mod nodes;
mod repository;
mod schedules;
mod schema;
mod skills;
mod web;
mod workflow;

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc};

use cynode_app::{App, Error, OperationRequest, tools::agent_tokens::ResolvedAgentToken};
use cynode_core::{agents::ToolScope, tools::ToolAnnotations, trace::TraceId};
use cynode_policy::{
    agents::AgentIdentity,
    catalogue::{IdBinding, McpToolDefinition, ToolOrigin},
    decision::PolicySnapshot,
    tool_names::ToolName,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::{egress::EgressClient, policy_cache::CallPermit};

/// Returns whether a call of that tool waits for work and checks its permission again before it takes any.
pub(crate) fn waits_for_work(tool: &McpToolDefinition) -> bool {
    tool.origin == ToolOrigin::Native && tool.name.as_str() == handoffs::CLAIM_TOOL_NAME
}

/// Context of a tool invocation.
#[derive(Clone)]
pub struct ToolInvocation {
    /// The application's operations.
    pub app: App,
    /// Caller and trace of the operation.
    pub request: OperationRequest,
    /// The calling agent, with its profile.
    pub agent: Arc<AgentIdentity>,
    /// The agent's token, with the models that it opens.
    pub token: ResolvedAgentToken,
    /// Name of the calling program, if it belongs to the installation.
    pub service: Option<String>,
    /// Policy snapshot that allowed the call.
    pub gate: Arc<PolicySnapshot>,
    /// Client for outgoing requests.
    pub egress: EgressClient,
    /// Arguments of the call.
    pub arguments: Value,
    /// Cancelled when the caller no longer waits. Only a tool that waits may then stop, between two operations.
    pub gone: CancellationToken,
    /// Checks whether the call is still permitted.
    pub permit: CallPermit,
}

impl ToolInvocation {
    /// Returns the trace id of the call.
    pub const fn trace_id(&self) -> TraceId {
        self.request.trace
    }

    /// Returns the name of the agent's profile.
    pub fn profile_name(&self) -> &str {
        &self.agent.profile.name
    }
}

/// Error of a tool. It is never dropped: the code is in the audit record, the message in the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolError {
    /// Stable error code.
    pub code: &'static str,
    /// Message.
    pub detail: String,
    /// Advice for the caller.
    pub fix: Option<&'static str>,
}

impl ToolError {
    /// Creates the error of invalid arguments.
    pub(crate) fn invalid_arguments(detail: impl Into<String>) -> Self {
        Self { code: "invalid", detail: detail.into(), fix: None }
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Unauthenticated => "unauthenticated",
            Error::SecondFactorRequired => "second_factor_required",
            Error::KeyDenied(_) => "key_denied",
            Error::Forbidden { .. } => "forbidden",
            Error::NotFound { .. } => "not_found",
            Error::Invalid(_) => "invalid",
            Error::PolicyDenied(_) => "policy_denied",
            Error::AlreadyExists { .. } => "already_exists",
            Error::InvalidState(_) => "invalid_state",
            Error::VersionConflict { .. } => "version_conflict",
            Error::Conflict(_) => "conflict",
            Error::ChainTruncated { .. } => "chain_truncated",
            Error::MergeConflict(_) => "merge_conflict",
            Error::UpstreamRejected(_) => "upstream_rejected",
            Error::LimitExceeded(_) => "limit_exceeded",
            Error::StorageFull(_) => "storage_full",
            Error::TooLarge(_) => "too_large",
            Error::IdempotencyKeyReused => "idempotency_key_reused",
            Error::Overloaded => "overloaded",
            Error::RateLimited { .. } => "rate_limited",
            Error::LeaseHeld { .. } => "lease_held",
            Error::NotRunnable(_) => "not_runnable",
            Error::TaskEnded => "task_ended",
            Error::Fenced(_) => "fenced",
            Error::UpstreamUnavailable { .. } => "upstream_unavailable",
            Error::Unavailable(_) => "unavailable",
            Error::Internal(_) => "internal",
        };
        if let Error::Internal(cause) | Error::Unavailable(cause) = &error {
            tracing::error!(
                event = "tool_call.failed",
                error = format!("{cause:#}"),
                "a tool failed"
            );
        }
        Self { code, detail: error.to_string(), fix: error.suggested_fix() }
    }
}

/// Future of a tool's result.
pub type ToolFuture = Pin<Box<dyn Future<Output = Result<Value, ToolError>> + Send>>;

type ToolHandler = Box<dyn Fn(ToolInvocation) -> ToolFuture + Send + Sync>;

/// A native tool.
pub struct NativeTool {
    definition: McpToolDefinition,
    run: ToolHandler,
}

impl NativeTool {
    /// Runs the tool.
    pub(crate) fn run_tool(&self, invocation: ToolInvocation) -> ToolFuture {
        (self.run)(invocation)
    }
}

/// Native tools, by name.
pub struct NativeTools(HashMap<ToolName, NativeTool>);

impl NativeTools {
    /// Returns all native tools.
    pub fn all_tools() -> Self {
        Self(
            list_native_tools()
                .into_iter()
                .map(|tool| (tool.definition.name.clone(), tool))
                .collect(),
        )
    }

    /// Returns the tool of that name.
    pub(crate) fn find_tool(&self, name: &ToolName) -> Option<&NativeTool> {
        self.0.get(name)
    }
}

/// Returns the definitions of the native tools, for the catalogue.
pub fn tool_definitions() -> Arc<[McpToolDefinition]> {
    list_native_tools().into_iter().map(|tool| tool.definition).collect()
}

fn list_native_tools() -> Vec<NativeTool> {
    [
        database::database_tools(),
        workflow::workflow_tools(),
        artifacts::artifact_tools(),
        agents::agent_tools(),
        skills::skill_tools(),
        schedules::schedule_tools(),
        nodes::node_tools(),
        handoffs::handoff_tools(),
        repository::repository_tools(),
        delivery::delivery_tools(),
        help::help_tools(),
        memory::memory_tools(),
        models::model_tools(),
        web::web_tools(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Specification of a tool.
struct ToolSpec {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    scope: ToolScope,
    binding: IdBinding,
    annotations: ToolAnnotations,
}

impl ToolSpec {
    #[expect(clippy::panic, reason = "a name in this program's own list; a test builds them all")]
    fn into_definition(self, input: Value) -> McpToolDefinition {
        let Ok(name) = self.name.parse() else { panic!("`{}` is no name", self.name) };
        McpToolDefinition {
            name,
            aliases: Vec::new(),
            title: self.title.into(),
            description: self.description.into(),
            input,
            output: None,
            scope: self.scope,
            binding: self.binding,
            annotations: self.annotations,
            origin: ToolOrigin::Native,
            network: false,
        }
    }

    /// Builds a tool that takes arguments of type `T`.
    fn with_handler<T, F, W, O>(self, work: F) -> NativeTool
    where
        T: DeserializeOwned + ToSchema + Send + 'static,
        F: Fn(ToolInvocation, T) -> W + Send + Sync + Copy + 'static,
        W: Future<Output = Result<O, ToolError>> + Send + 'static,
        O: Serialize,
    {
        let run = move |mut invocation: ToolInvocation| -> ToolFuture {
            Box::pin(async move {
                let arguments = std::mem::take(&mut invocation.arguments);
                let arguments = serde_json::from_value(arguments).map_err(|error| {
                    ToolError::invalid_arguments(format!("the arguments are wrong: {error}"))
                })?;
                let value = work(invocation, arguments).await?;
                serde_json::to_value(value).map_err(|_| ToolError {
                    code: "internal",
                    detail: "the result cannot be written".into(),
                    fix: None,
                })
            })
        };
        let definition = self.into_definition(schema::tool_schema_of::<T>());
        NativeTool { definition, run: Box::new(run) }
    }
}

/// Returns the value of a completed operation.
fn answer_value(answer: &cynode_app::OperationAnswer) -> Result<Value, ToolError> {
    serde_json::from_slice(&answer.body).map_err(|_| ToolError {
        code: "internal",
        detail: "the result cannot be read".into(),
        fix: None,
    })
}

#[cfg(test)]
mod tests;
