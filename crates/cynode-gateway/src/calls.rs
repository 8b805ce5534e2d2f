//! The lifecycle of a tool call, from the policy decision to the record of its outcome.
//!
//! The order is fixed: authenticate the caller, decide by policy, apply rate limits and quotas (refused calls count
//! too), obtain an approval where a rule requires one, write the decision to the audit log, check that the decision
//! still holds, execute the call, record its outcome, answer. A call whose decision cannot be recorded is not executed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use cynode_app::{
    OperationRequest,
    platform::{body_budget::count_json_values, tokens::PresentedToken},
    tools::{
        agent_tokens::ResolvedAgentToken,
        approvals::{self, Approval, ApprovalOutcome, ApprovalRequest},
        audit::{AgentFacts, AppendError, AuditEntry, KeyedDigest, Outcome, Phase, Verdict},
        call_validation,
        catalogue::CallLimits,
    },
};
use cynode_core::{
    ids::CallId,
    trace::{TraceId, TraceParent},
};
use cynode_policy::{
    catalogue::{CatalogueTool, ToolOrigin},
    decision::PolicySnapshot,
    digest::Sha256Digest as Plain,
    reasons::RefusalReason,
};
use serde::{Deserialize, Serialize};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    GatewayShared,
    envelope::{self, ProtocolEra},
    limits::LimitExceeded,
    policy_cache::{CachedPolicy, CallWatch},
    responses::{self, ResultReader, RpcError, code},
    signed_state::{self, StateKind},
    tools::{ToolError, ToolInvocation},
    upstream::{self, CallProgress, UpstreamError, UpstreamReply},
};

/// Result of the policy decision about a call.
pub(crate) enum CallDecision {
    /// The call has ended with this answer.
    Over(CallAnswer),
    /// The call is admitted and may be executed.
    Admitted(Box<AdmittedCall>),
}

/// Answer to a call.
pub(crate) struct CallAnswer {
    /// Id of the call.
    pub(crate) call: CallId,
    /// Rendered response, or the protocol error.
    pub(crate) said: Result<String, RpcError>,
}

/// An admitted call. If it is dropped without being executed, the audit log records its outcome as cut off.
pub(crate) struct AdmittedCall {
    inner: Arc<GatewayShared>,
    gate: Arc<CachedPolicy>,
    era: ProtocolEra,
    id: Value,
    call: envelope::McpToolCall,
    known: ResolvedAgentToken,
    tool: Arc<CatalogueTool>,
    watch: CallWatch,
    entry: AuditEntry,
    started: Instant,
    trace: TraceId,
    round: CallRound,
}

/// A call during its decision, with the facts that are known so far.
struct CallAttempt {
    known: ResolvedAgentToken,
    request: envelope::McpRequest,
    call: envelope::McpToolCall,
    trace: TraceId,
    started: Instant,
    /// Digest of the arguments that the caller sent.
    arguments: KeyedDigest,
    /// Tool that is called. `None` until the policy is evaluated, and if the caller may not know that the tool exists.
    tool: Option<Arc<CatalogueTool>>,
    /// Audit entry with the known facts. Its decision, reason, rules and outcome are set when the attempt ends.
    entry: AuditEntry,
}

/// A call that passed all checks.
struct PermittedCall {
    gate: Arc<CachedPolicy>,
    tool: Arc<CatalogueTool>,
    round: CallRound,
    /// Rules that required an approval, which the call has consumed.
    rules: Vec<String>,
}

/// Reason why a call is not admitted.
enum CallRejection {
    /// A check refuses the call. `until` is the time at which the call is allowed again.
    Refused { reason: RefusalReason, until: Option<OffsetDateTime> },
    /// A limit refuses the call, and the agent has too many refusals for another record.
    Throttled(RefusalReason),
    /// The state of an earlier round was not issued for this call.
    InvalidState(RpcError),
    /// The call waits for an approval, which the result asks for.
    NeedsApproval { result: Value, rules: Vec<String> },
}

impl From<RefusalReason> for CallRejection {
    fn from(reason: RefusalReason) -> Self {
        Self::Refused { reason, until: None }
    }
}

/// One round of a call that may take several rounds.
struct CallRound {
    /// Agent, tool and arguments that signed states of the call are bound to.
    binding: Vec<u8>,
    /// Input of an earlier round, which is forwarded with the arguments.
    earlier: EarlierRound,
}

/// Input of an earlier round, which goes to a tool server beside the arguments.
#[derive(Debug, Serialize, Deserialize)]
struct EarlierRound {
    /// The server's own state, unchanged.
    state: Option<Box<RawValue>>,
    /// Responses to the server's input requests, unchanged.
    responses: Option<Box<RawValue>>,
}

/// Cancels a call when its caller no longer waits. Tells an explicit cancellation from a lost connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancellation {
    pub(crate) token: CancellationToken,
    gone: Arc<AtomicBool>,
}

/// Guard that is dropped with the caller's connection, which cancels the call.
pub(crate) struct ConnectionGuard(Cancellation);

impl Cancellation {
    /// Returns a guard. Dropping it marks the caller as disconnected.
    pub(crate) fn connection_guard(&self) -> ConnectionGuard {
        ConnectionGuard(self.clone())
    }

    /// Returns whether both belong to the same call.
    pub(crate) fn is_same_call(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.gone, &other.gone)
    }

    fn is_disconnected(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if !self.0.token.is_cancelled() {
            self.0.gone.store(true, Ordering::Relaxed);
            self.0.token.cancel();
        }
    }
}

/// Result of the execution of a call.
struct CallResult {
    outcome: Outcome,
    reason: &'static str,
    said: Result<String, RpcError>,
}

impl GatewayShared {
    /// Decides a call and records the decision.
    pub(crate) async fn decide_call(
        self: &Arc<Self>,
        shown: PresentedToken,
        known: ResolvedAgentToken,
        request: envelope::McpRequest,
        call: envelope::McpToolCall,
        trace: TraceId,
    ) -> CallDecision {
        let mut attempt = self.start_attempt(known, request, call, trace);
        match self.check_call(&mut attempt).await {
            Ok(permitted) => self.admit_call(shown, attempt, permitted).await,
            Err(rejection) => CallDecision::Over(self.reject_call(attempt, rejection).await),
        }
    }

    fn start_attempt(
        &self,
        known: ResolvedAgentToken,
        request: envelope::McpRequest,
        call: envelope::McpToolCall,
        trace: TraceId,
    ) -> CallAttempt {
        let started = Instant::now();
        let now = self.app.environment().now();
        let id = CallId::from_uuid(self.app.environment().new_uuid(now));
        let arguments = self.keys.digest_key().digest_bytes(call.raw.get().as_bytes());
        let entry = AuditEntry {
            arguments: Some(arguments),
            arguments_size: byte_size(call.raw.get()),
            ..Self::build_audit_entry(id, trace, Some(&known), now)
        };
        CallAttempt { known, request, call, trace, started, arguments, tool: None, entry }
    }

    /// Checks a call in the fixed order. Adds the facts that it learns to the attempt, and writes no audit record.
    async fn check_call(&self, attempt: &mut CallAttempt) -> Result<PermittedCall, CallRejection> {
        let gate = self.keeper.fresh_policy().await?;
        let refusal = attempt.evaluate_policy(&gate.loaded.gate).await;
        // Refused calls count too, so that an agent that keeps retrying reaches the rate limit.
        self.check_limits(attempt, gate.loaded.limits).await?;
        let Some(tool) = attempt.tool.clone() else {
            return Err(refusal.unwrap_or(RefusalReason::UnknownTool).into());
        };
        let approval_rules = required_approval(refusal)?;
        let round = self
            .resume_round(&attempt.call, &attempt.known, &tool, &attempt.arguments)
            .map_err(CallRejection::InvalidState)?;
        let digest = self.digest_full_call(attempt, &round.earlier);
        // The approval is consumed last, when no other check can refuse the call.
        let rules = match approval_rules {
            None => Vec::new(),
            Some(rules) => {
                let policy = attempt.entry.policy;
                let asked = build_approval_request(&attempt.known, &tool, digest.0, policy, rules);
                self.check_approval(attempt, &tool, &round, asked).await?
            }
        };
        Ok(PermittedCall { gate, tool, round, rules })
    }

    /// Counts the call against the limits of its agent. A refusal may be delayed.
    async fn check_limits(
        &self,
        attempt: &CallAttempt,
        limits: CallLimits,
    ) -> Result<(), CallRejection> {
        let agent = &attempt.known.agent;
        let (name, digest) = match &attempt.tool {
            Some(tool) => (tool.definition.name.as_str(), tool.digest),
            None => ("", Plain::of_bytes(b"")),
        };
        let call = Plain::of_bytes(&[digest.0, attempt.arguments.0].concat());
        let counted = self.counter.count_call(&self.app, limits, agent, (name, digest), call).await;
        let Err(LimitExceeded { reason, until }) = counted else { return Ok(()) };
        if self.counter.throttle_refusal(agent.token, &reason).await {
            Err(CallRejection::Refused { reason, until })
        } else {
            Err(CallRejection::Throttled(reason))
        }
    }

    /// Records that a call is allowed, and admits it. The call is watched from before the record is written.
    async fn admit_call(
        self: &Arc<Self>,
        shown: PresentedToken,
        attempt: CallAttempt,
        permitted: PermittedCall,
    ) -> CallDecision {
        let CallAttempt { known, request, mut call, trace, started, entry, .. } = attempt;
        let PermittedCall { gate, tool, round, rules } = permitted;
        if tool.definition.origin != ToolOrigin::Native {
            // A tool server gets the bytes. The parsed form may be much larger.
            call.arguments = Value::Null;
        }
        let watch =
            self.keeper.watch_call(shown, known.agent.clone(), tool.clone(), gate.loaded.epoch);
        let entry = AuditEntry {
            decision: Verdict::Allow,
            reason: if rules.is_empty() { "allowed" } else { "approved" }.into(),
            rules: truncate_rule_names(rules),
            ..entry
        };
        if let Err(failure) = self.record_decision(&entry).await {
            let said = Err(failure.with_request_id(Some(request.id)));
            return CallDecision::Over(CallAnswer { call: CallId::from_uuid(entry.call), said });
        }
        CallDecision::Admitted(Box::new(AdmittedCall {
            inner: self.clone(),
            gate,
            era: request.era,
            id: request.id,
            call,
            known,
            tool,
            watch,
            entry,
            started,
            trace,
            round,
        }))
    }

    /// Records a call that is not admitted, and returns its answer. A throttled call is not recorded.
    async fn reject_call(&self, attempt: CallAttempt, rejection: CallRejection) -> CallAnswer {
        let CallAttempt { request, tool, entry, .. } = attempt;
        match rejection {
            CallRejection::Refused { reason, until } => {
                let (era, tool) = (request.era, tool.as_deref());
                self.refuse_call(entry, era, &request.id, &reason, until, tool).await
            }
            CallRejection::Throttled(reason) => {
                let failure =
                    RpcError::too_many_requests(&reason).with_request_id(Some(request.id));
                CallAnswer { call: CallId::from_uuid(entry.call), said: Err(failure) }
            }
            CallRejection::InvalidState(failure) => {
                self.reject_state(entry, failure.with_request_id(Some(request.id))).await
            }
            CallRejection::NeedsApproval { result, rules } => {
                self.request_approval(entry, &request.id, result, rules).await
            }
        }
    }

    /// Builds the fields that every record of a call has in common.
    pub(crate) fn build_audit_entry(
        call: CallId,
        trace: TraceId,
        known: Option<&ResolvedAgentToken>,
        now: OffsetDateTime,
    ) -> AuditEntry {
        AuditEntry {
            call: call.as_uuid(),
            at: now,
            phase: Phase::Decision,
            decision: Verdict::Deny,
            reason: "refused".into(),
            rules: Vec::new(),
            shadow: Vec::new(),
            outcome: None,
            agent: known.map(agent_facts),
            method: "tools/call".into(),
            tool: None,
            definition: None,
            server: None,
            node: None,
            policy: [0; 32],
            catalogue: [0; 32],
            trace: trace.to_string(),
            arguments: None,
            arguments_size: 0,
            result: None,
            result_size: 0,
            duration_us: 0,
        }
    }

    /// Records a refusal and returns its answer.
    pub(crate) async fn refuse_call(
        &self,
        mut entry: AuditEntry,
        era: ProtocolEra,
        id: &Value,
        reason: &RefusalReason,
        until: Option<OffsetDateTime>,
        tool: Option<&CatalogueTool>,
    ) -> CallAnswer {
        entry.decision = Verdict::Deny;
        entry.reason = reason.reason_code().into();
        entry.rules = truncate_rule_names(reason.deciding_rules().to_vec());
        let said = match reason {
            RefusalReason::StalePolicy | RefusalReason::AuditUnavailable => {
                Err(RpcError::service_unavailable(format!("{reason}. {}", reason.caller_advice()))
                    .with_request_id(Some(id.clone())))
            }
            // The protocol has its own error for an unknown tool.
            RefusalReason::UnknownTool => Err(RpcError::bad_request(
                code::INVALID_PARAMS,
                format!("Unknown tool: {reason}. {}", reason.caller_advice()),
            )
            .with_request_id(Some(id.clone()))),
            _ => {
                let mut refusal = responses::refusal_result(era, reason, until, entry.at);
                if let Some(tool) = tool {
                    refusal = responses::fit_output_schema(tool, refusal);
                }
                Ok(responses::render_result(id, &refusal.to_string()))
            }
        };
        self.finish_unforwarded(entry, said).await
    }

    /// Records a call with an invalid state of an earlier round, and returns the error.
    async fn reject_state(&self, entry: AuditEntry, failure: RpcError) -> CallAnswer {
        let entry = AuditEntry {
            decision: Verdict::Deny,
            reason: "invalid_request_state".into(),
            rules: Vec::new(),
            ..entry
        };
        self.finish_unforwarded(entry, Err(failure)).await
    }

    /// Records that the call needs approval, and returns the request for it.
    async fn request_approval(
        &self,
        entry: AuditEntry,
        id: &Value,
        result: Value,
        rules: Vec<String>,
    ) -> CallAnswer {
        let entry = AuditEntry {
            decision: Verdict::NeedsApproval,
            reason: "needs_approval".into(),
            rules: truncate_rule_names(rules),
            ..entry
        };
        let said = Ok(responses::render_result(id, &result.to_string()));
        self.finish_unforwarded(entry, said).await
    }

    /// Records a call that is not forwarded, and returns its answer.
    async fn finish_unforwarded(
        &self,
        mut entry: AuditEntry,
        said: Result<String, RpcError>,
    ) -> CallAnswer {
        let call = CallId::from_uuid(entry.call);
        entry.outcome = Some(Outcome::NotForwarded);
        match self.record_decision(&entry).await {
            Ok(()) => CallAnswer { call, said },
            Err(failure) => CallAnswer { call, said: Err(failure) },
        }
    }

    /// Writes a decision durably to the audit log.
    pub(crate) async fn record_decision(&self, entry: &AuditEntry) -> Result<(), RpcError> {
        self.audit.record_durably(entry.clone()).await.map_err(|refused| {
            tracing::error!(event = "audit.write_failed", error = %refused, "a call was refused because it could not be recorded");
            audit_failure(&refused)
        })
    }

    /// Consumes the approval of a call. Returns the rules that required it.
    async fn check_approval(
        &self,
        attempt: &CallAttempt,
        tool: &CatalogueTool,
        round: &CallRound,
        asked: ApprovalRequest,
    ) -> Result<Vec<String>, CallRejection> {
        let about = OperationRequest { caller: None, trace: attempt.trace, attempt: None };
        let seen = round.earlier.render_for_approval(&attempt.call.raw);
        let id = CallId::from_uuid(attempt.entry.call);
        let found = approvals::obtain_approval(&self.app, &about, &asked, &seen, id).await;
        match found {
            Ok(ApprovalOutcome::Spent(_)) => Ok(asked.rules),
            Ok(ApprovalOutcome::Refused(_)) => Err(RefusalReason::ApprovalDenied.into()),
            Ok(ApprovalOutcome::TooMany) => Err(RefusalReason::TooManyPendingApprovals.into()),
            Ok(ApprovalOutcome::Waiting(approval)) => {
                let result = self.build_approval_result(attempt, round, &asked, &approval);
                let result = responses::fit_output_schema(tool, result);
                Err(CallRejection::NeedsApproval { result, rules: asked.rules })
            }
            Err(error) => {
                tracing::warn!(event = "approval.lookup_failed", %error, "an approval could not be looked up");
                Err(RefusalReason::StalePolicy.into())
            }
        }
    }

    /// Builds the result that asks for an approval: an input request if the client can show a URL, otherwise an error.
    fn build_approval_result(
        &self,
        attempt: &CallAttempt,
        round: &CallRound,
        asked: &ApprovalRequest,
        approval: &Approval,
    ) -> Value {
        let era = attempt.request.era;
        let where_to = format!("{}/v1/approvals/{}", self.public_url, approval.id);
        let told = format!(
            "The call of {} needs a person's approval ({}). Rules: {}.",
            asked.tool,
            approval.id,
            asked.rules.join(", ")
        );
        if era == ProtocolEra::Modern
            && signed_state::supports_url_elicitation(attempt.call.capabilities.as_deref())
            && let Some(state) = self.seal_approval_state(round, approval.expires_at)
        {
            return json!({
                "resultType": "input_required",
                "inputRequests": { "approval": {
                    "method": "elicitation/create",
                    "params": {
                        "mode": "url",
                        "message": told,
                        "url": where_to,
                    },
                } },
                "requestState": state,
            });
        }
        let reason = RefusalReason::NeedsApproval(asked.rules.clone());
        let text = format!("{told} {} A person answers at {where_to}.", reason.caller_advice());
        let mut refused = responses::refusal_details(&reason);
        refused["approval_id"] = json!(approval.id);
        refused["approve_at"] = json!(where_to);
        responses::error_result(era, &text, &json!({ "refused": refused }))
    }

    /// Signs the state that goes with an approval request. The state holds the input for the server, because the caller sends back nothing
    /// else. Returns `None` if the state would be too large.
    fn seal_approval_state(&self, round: &CallRound, until: OffsetDateTime) -> Option<String> {
        let inner = serde_json::to_string(&round.earlier).ok()?;
        let state = signed_state::seal_state(
            &self.keys,
            StateKind::Approval,
            &round.binding,
            &inner,
            until,
        );
        (state.len() <= signed_state::MAX_STATE_BYTES).then_some(state)
    }

    /// Returns the earlier round of a call. Rejects a state that was not issued to this agent for this very call.
    fn resume_round(
        &self,
        call: &envelope::McpToolCall,
        known: &ResolvedAgentToken,
        tool: &CatalogueTool,
        arguments: &KeyedDigest,
    ) -> Result<CallRound, RpcError> {
        let binding =
            state_binding(known.agent.token.as_uuid(), tool.definition.name.as_str(), &arguments.0);
        let responses = call.responses.clone();
        let Some(state) = &call.state else {
            return Ok(CallRound { binding, earlier: EarlierRound { state: None, responses } });
        };
        let now = self.app.environment().now();
        let earlier = match signed_state::open_state(&self.keys, state, &binding, now) {
            Some((StateKind::Upstream, inner)) => {
                Some(EarlierRound { state: to_raw_value(&inner).ok(), responses })
            }
            // The caller's responses answer the approval request and are not for the server. The input for the server is inside the state.
            Some((StateKind::Approval, inner)) => EarlierRound::from_approval_state(&inner),
            None => None,
        };
        let earlier = earlier.ok_or_else(|| {
            RpcError::bad_request(
                code::INVALID_PARAMS,
                "`requestState` is not one that was given for this call",
            )
        })?;
        Ok(CallRound { binding, earlier })
    }

    /// Returns the digest of the arguments and the input of an earlier round, since both are approved and recorded. Updates the audit
    /// entry if there is an earlier round.
    fn digest_full_call(&self, attempt: &mut CallAttempt, earlier: &EarlierRound) -> KeyedDigest {
        let Some(full) = earlier.join_with_arguments(&attempt.call.raw) else {
            return attempt.arguments;
        };
        let digest = self.keys.digest_key().digest_bytes(full.as_bytes());
        attempt.entry.arguments = Some(digest);
        attempt.entry.arguments_size = byte_size(&full);
        digest
    }
}

impl CallAttempt {
    /// Evaluates the policy and adds its facts to the audit entry. Returns the refusal, which may be the need of an approval.
    async fn evaluate_policy(&mut self, policy: &Arc<PolicySnapshot>) -> Option<RefusalReason> {
        self.entry.policy = policy.policy_digest().0;
        self.entry.catalogue = policy.catalogue.version_digest().0;
        let (arguments, bytes) =
            (std::mem::take(&mut self.call.arguments), self.call.raw.get().len());
        let (agent, name) = (&self.known.agent, &self.call.name);
        let (decision, arguments) =
            call_validation::decide_call(agent, policy, name, arguments, bytes).await;
        self.call.arguments = arguments;
        self.entry.shadow = truncate_rule_names(decision.shadow);
        // Adds the ids that the caller omitted and its token holds. The audit record keeps the arguments that the caller sent.
        if let Some(filled) = decision.filled {
            self.call.arguments = filled;
        }
        if let Some(tool) = &decision.tool {
            describe_tool(&mut self.entry, tool);
        }
        self.tool = decision.tool;
        decision.refusal
    }
}

/// Returns the rules that require an approval, or `None` if the call is allowed without one. Fails with any other refusal.
fn required_approval(refusal: Option<RefusalReason>) -> Result<Option<Vec<String>>, RefusalReason> {
    match refusal {
        None => Ok(None),
        Some(RefusalReason::NeedsApproval(rules)) => Ok(Some(rules)),
        Some(reason) => Err(reason),
    }
}

impl EarlierRound {
    /// Decodes the input inside an approval state. States of an earlier version are empty.
    fn from_approval_state(inner: &str) -> Option<Self> {
        if inner.is_empty() {
            return Some(Self { state: None, responses: None });
        }
        serde_json::from_str(inner).ok()
    }

    /// Joins the arguments with the input of the earlier round. Returns `None` if there is no earlier round.
    fn join_with_arguments(&self, arguments: &RawValue) -> Option<String> {
        let Self { state, responses } = self;
        if state.is_none() && responses.is_none() {
            return None;
        }
        let parts = [Some(arguments), responses.as_deref(), state.as_deref()];
        // JSON holds no zero byte, so the separator makes the boundaries unambiguous.
        Some(parts.map(|part| part.map_or("", RawValue::get)).join("\0"))
    }

    /// Renders the arguments and input of the call for the approver.
    fn render_for_approval(&self, arguments: &RawValue) -> String {
        match &self.responses {
            None => arguments.get().to_owned(),
            Some(responses) => {
                format!("{{\"arguments\":{arguments},\"inputResponses\":{responses}}}")
            }
        }
    }
}

/// Builds the approval request for a call.
fn build_approval_request(
    known: &ResolvedAgentToken,
    tool: &CatalogueTool,
    arguments: [u8; 32],
    policy: [u8; 32],
    rules: Vec<String>,
) -> ApprovalRequest {
    ApprovalRequest {
        agent: known.agent.token,
        project: known.agent.project,
        task: known.agent.task,
        tool: tool.definition.name.to_string(),
        arguments,
        // A tool of the same name with another definition, or of another server, is another tool.
        policy: Plain::of_bytes(&[policy, tool.digest.0, server_digest_of(tool)].concat()).0,
        rules,
    }
}

/// Returns a digest that identifies the server of a tool.
fn server_digest_of(tool: &CatalogueTool) -> [u8; 32] {
    match &tool.definition.origin {
        ToolOrigin::Native => [0; 32],
        ToolOrigin::Server { id, .. } => Plain::of_bytes(id.as_uuid().as_bytes()).0,
    }
}

/// Returns the binding of a state: one agent, one tool, one set of arguments.
fn state_binding(agent: uuid::Uuid, tool: &str, arguments: &[u8; 32]) -> Vec<u8> {
    let mut bytes = Vec::from(*agent.as_bytes());
    bytes.extend_from_slice(arguments);
    bytes.extend_from_slice(tool.as_bytes());
    bytes
}

fn audit_failure(refused: &AppendError) -> RpcError {
    let told = format!(
        "calls cannot be recorded now, so none is carried out: {refused}. Try again in a moment."
    );
    RpcError::service_unavailable(told)
}

/// Truncates the rule names to the number that a record holds.
fn truncate_rule_names(mut names: Vec<String>) -> Vec<String> {
    names.truncate(16);
    names
}

fn describe_tool(entry: &mut AuditEntry, tool: &CatalogueTool) {
    entry.tool = Some(tool.definition.name.to_string());
    entry.definition = Some(tool.digest.0);
    entry.server = match &tool.definition.origin {
        ToolOrigin::Native => None,
        ToolOrigin::Server { id, .. } => Some(id.as_uuid()),
    };
}

fn agent_facts(known: &ResolvedAgentToken) -> AgentFacts {
    let agent = &known.agent;
    AgentFacts {
        token: agent.token.as_uuid(),
        kind: agent.agent_kind().as_str().into(),
        role: agent.role.as_str().into(),
        user: agent.user.map(|id| id.as_uuid()),
        project: agent.project.map(|id| id.as_uuid()),
        task: agent.task.map(|id| id.as_uuid()),
        run: agent.run.map(|id| id.as_uuid()),
        job: agent.job.map(|id| id.as_uuid()),
        profile: Some(agent.profile.name.to_string()),
    }
}

fn byte_size(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

impl AdmittedCall {
    /// Returns whether the call may report progress while it runs.
    pub(crate) fn reports_progress(&self) -> bool {
        self.call.progress.is_some()
            && matches!(self.tool.definition.origin, ToolOrigin::Server { .. })
    }

    /// Returns the progress token of the caller.
    pub(crate) fn progress_token(&self) -> Option<Value> {
        self.call.progress.clone()
    }

    /// Returns the id of the call.
    pub(crate) fn call_id(&self) -> CallId {
        CallId::from_uuid(self.entry.call)
    }

    /// Executes the call, records its outcome, and only then returns the answer.
    pub(crate) async fn execute_call(
        mut self,
        cancel: Cancellation,
        progress: Option<mpsc::Sender<CallProgress>>,
    ) -> CallAnswer {
        let permitted = self.watch.check_permitted().await;
        let arguments = std::mem::take(&mut self.call.arguments);
        let went = match (&self.tool.definition.origin, permitted) {
            (_, Err(reason)) => self.build_revocation(&reason),
            (ToolOrigin::Native, Ok(())) => self.call_native_tool(arguments, &cancel).await,
            (ToolOrigin::Server { id, tool, .. }, Ok(())) => match self.gate.servers.get(id) {
                Some(server) => self.forward_call(server, tool, &cancel, progress).await,
                None => self.build_failure(
                    Outcome::ToolError,
                    "server_disabled",
                    "the tool's server is switched off",
                ),
            },
        };
        let call = self.call_id();
        let mut entry = self.entry;
        entry.at = self.inner.app.environment().now();
        entry.phase = Phase::Outcome;
        entry.outcome = Some(went.outcome);
        entry.reason = went.reason.into();
        entry.duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Ok(said) = &went.said {
            entry.result = Some(self.inner.keys.digest_key().digest_bytes(said.as_bytes()));
            entry.result_size = byte_size(said);
        }
        // The outcome is written before the answer is sent, so that the outcome of an answered call survives a crash of the process. After
        // a power loss before the sync, the call has an unknown outcome in the log, which is then correct.
        let said = match self.inner.audit.append_entry(entry) {
            Ok(_) => went.said.map_err(|failure| failure.with_request_id(Some(self.id))),
            Err(refused) => {
                tracing::error!(event = "audit.write_failed", error = %refused, "an outcome could not be recorded");
                let told = "the call was made, and how it ended could not be recorded; do not make it again without looking";
                Err(RpcError::service_unavailable(told).with_request_id(Some(self.id)))
            }
        };
        CallAnswer { call, said }
    }

    fn build_failure(&self, outcome: Outcome, reason: &'static str, text: &str) -> CallResult {
        let result = responses::error_result(
            self.era,
            text,
            &json!({ "error": { "code": reason, "detail": text } }),
        );
        let result = responses::fit_output_schema(&self.tool, result);
        CallResult {
            outcome,
            reason,
            said: Ok(responses::render_result(&self.id, &result.to_string())),
        }
    }

    fn build_revocation(&self, reason: &RefusalReason) -> CallResult {
        let now = self.inner.app.environment().now();
        let said = if *reason == RefusalReason::StalePolicy {
            Err(RpcError::service_unavailable(format!("{reason}. {}", reason.caller_advice())))
        } else {
            let result = responses::refusal_result(self.era, reason, None, now);
            let result = responses::fit_output_schema(&self.tool, result);
            Ok(responses::render_result(&self.id, &result.to_string()))
        };
        CallResult { outcome: Outcome::Revoked, reason: reason.reason_code(), said }
    }

    /// Executes a native tool. It runs to its end even if the caller no longer waits: a partial operation is worse than an unneeded one.
    async fn call_native_tool(&self, arguments: Value, cancel: &Cancellation) -> CallResult {
        let Some(tool) = self.inner.tools.find_tool(&self.tool.definition.name) else {
            return self.build_failure(
                Outcome::ToolError,
                "unavailable",
                "the tool is not part of this program",
            );
        };
        let invocation = ToolInvocation {
            app: self.inner.app.clone(),
            request: OperationRequest {
                caller: self.known.caller,
                trace: self.trace,
                attempt: None,
            },
            agent: self.known.agent.clone(),
            token: self.known.clone(),
            service: self.known.service.clone(),
            gate: self.gate.loaded.gate.clone(),
            egress: self.inner.egress.clone(),
            arguments,
            gone: cancel.token.clone(),
            permit: self.watch.call_permit().clone(),
        };
        let work = TaskTracker::new().spawn(tool.run_tool(invocation));
        tokio::select! {
            done = work => match done {
                Ok(Ok(value)) => {
                    let program = self.known.service.is_some();
                    let reader = if program { ResultReader::Program } else { ResultReader::Model };
                    let result = responses::success_result(self.era, value, reader);
                    let said = Ok(responses::render_result(&self.id, &result.to_string()));
                    CallResult { outcome: Outcome::Success, reason: "ok", said }
                }
                Ok(Err(ToolError { code, detail, fix })) => {
                    let text = match fix {
                        Some(fix) => format!("{detail}. {fix}"),
                        None => detail.clone(),
                    };
                    let structured = json!({ "error": { "code": code, "detail": detail } });
                    let result = responses::error_result(self.era, &text, &structured);
                    let said = Ok(responses::render_result(&self.id, &result.to_string()));
                    CallResult { outcome: Outcome::ToolError, reason: code, said }
                }
                Err(_) => self.build_failure(Outcome::ToolError, "internal", "something went wrong on our side"),
            },
            reason = self.watch.wait_forbidden() => self.build_revocation(&reason),
            () = cancel.token.cancelled() => self.build_cancellation(cancel),
            () = sleep_for(self.inner.patience) => self.build_failure(Outcome::Timeout, "timeout", "the tool took too long"),
        }
    }

    /// Forwards the call to an installed tool server.
    async fn forward_call(
        &self,
        server: &upstream::UpstreamServer,
        tool: &str,
        cancel: &Cancellation,
        progress: Option<mpsc::Sender<CallProgress>>,
    ) -> CallResult {
        let parent =
            TraceParent { trace: self.trace, span: self.new_span_id(), flags: 1 }.to_string();
        let EarlierRound { state, responses } = &self.round.earlier;
        let input = (responses.is_some() || state.is_some()).then_some(upstream::UpstreamInput {
            responses: responses.as_deref(),
            state: state.as_deref(),
        });
        let call = upstream::UpstreamCall {
            trace: Some(&parent),
            capabilities: self.call.capabilities.as_deref(),
            input,
            progress,
            cancel: cancel.token.clone(),
            ..upstream::UpstreamCall::new(tool, &self.call.raw)
        };
        let reply = tokio::select! {
            biased;
            reason = self.watch.wait_forbidden() => return self.build_revocation(&reason),
            reply = self.inner.upstreams.call_server_tool(server, call) => reply,
        };
        match reply {
            Ok(UpstreamReply::Result { result, is_error }) => {
                self.build_upstream_result(result, is_error).await
            }
            Ok(UpstreamReply::InputRequired(asked)) => self.build_input_request(&asked),
            Err(UpstreamError::Cancelled) => self.build_cancellation(cancel),
            Err(error) => self.build_upstream_failure(error),
        }
    }

    /// Builds the result of a call whose caller no longer waits.
    fn build_cancellation(&self, cancel: &Cancellation) -> CallResult {
        if cancel.is_disconnected() {
            return self.build_failure(
                Outcome::Disconnected,
                "client_disconnected",
                "the caller went away",
            );
        }
        self.build_failure(Outcome::Cancelled, "cancelled", "the call was given up")
    }

    fn new_span_id(&self) -> u64 {
        u64::from_ne_bytes(self.inner.app.environment().random_bytes()).max(1)
    }

    /// Builds the result of an upstream tool. The result is forwarded unchanged if it matches the tool's output schema.
    async fn build_upstream_result(&self, result: Box<RawValue>, is_error: bool) -> CallResult {
        if is_error {
            let said = Ok(responses::render_result(&self.id, &self.mark_result_complete(&result)));
            return CallResult { outcome: Outcome::ToolError, reason: "tool_error", said };
        }
        match call_validation::check_tool_result(&self.tool, result).await {
            Ok(result) => {
                let text = self.mark_result_complete(&result);
                let said = Ok(responses::render_result(&self.id, &text));
                CallResult { outcome: Outcome::Success, reason: "ok", said }
            }
            Err(violation) => {
                let text = format!("the tool's answer is not what it promised: {violation}");
                self.build_failure(Outcome::ProtocolError, "output_schema_violation", &text)
            }
        }
    }

    /// Returns the result in the form of the caller's era. All other bytes are unchanged.
    fn mark_result_complete(&self, result: &RawValue) -> String {
        #[derive(serde::Deserialize)]
        struct ResultTypePeek<'a> {
            #[serde(borrow, rename = "resultType")]
            kind: Option<&'a RawValue>,
        }
        let text = result.get();
        let stated =
            serde_json::from_str::<ResultTypePeek<'_>>(text).is_ok_and(|peek| peek.kind.is_some());
        match text.trim_start().strip_prefix('{') {
            Some(rest) if self.era == ProtocolEra::Modern && !stated => {
                let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
                format!("{{\"resultType\":\"complete\"{comma}{rest}")
            }
            _ => text.to_owned(),
        }
    }

    /// Builds the result for a server that requests input from the caller.
    fn build_input_request(&self, asked: &RawValue) -> CallResult {
        if self.era == ProtocolEra::Legacy {
            let text = "the tool wants to ask something back, which this revision of the protocol cannot carry";
            return self.build_failure(Outcome::ToolError, "input_required", text);
        }
        let Some(mut asked) = parse_bounded_json(asked) else {
            return self.build_failure(
                Outcome::ProtocolError,
                "malformed",
                "the server's question cannot be read",
            );
        };
        if let Some(Value::String(state)) = asked.get("requestState") {
            let until = self.inner.app.environment().now() + time::Duration::minutes(30);
            let (keys, binding) = (&self.inner.keys, &self.round.binding);
            asked["requestState"] =
                json!(signed_state::seal_state(keys, StateKind::Upstream, binding, state, until));
        }
        let said = Ok(responses::render_result(&self.id, &asked.to_string()));
        CallResult { outcome: Outcome::Success, reason: "input_required", said }
    }

    fn build_upstream_failure(&self, error: UpstreamError) -> CallResult {
        let text = error.to_string();
        match error {
            UpstreamError::Protocol { code, message, data } => {
                let data = data.and_then(|data| parse_bounded_json(&data));
                let said = Err(RpcError::from_upstream(code, message, data));
                CallResult { outcome: Outcome::ProtocolError, reason: "protocol_error", said }
            }
            UpstreamError::Timeout => self.build_failure(Outcome::Timeout, "timeout", &text),
            UpstreamError::Cancelled => self.build_failure(Outcome::Cancelled, "cancelled", &text),
            UpstreamError::Unreachable(_) => {
                self.build_failure(Outcome::Disconnected, "unreachable", &text)
            }
            UpstreamError::Closed => {
                self.build_failure(Outcome::Disconnected, "connection_closed", &text)
            }
            UpstreamError::CircuitOpen { .. } => {
                self.build_failure(Outcome::ToolError, "circuit_open", &text)
            }
            UpstreamError::Overloaded => {
                self.build_failure(Outcome::ToolError, "overloaded", &text)
            }
            UpstreamError::Status { .. } => {
                self.build_failure(Outcome::ProtocolError, "http_status", &text)
            }
            UpstreamError::Malformed(_) => {
                self.build_failure(Outcome::ProtocolError, "malformed", &text)
            }
            UpstreamError::TooLarge { .. } => {
                self.build_failure(Outcome::ProtocolError, "too_large", &text)
            }
            UpstreamError::Misconfigured(_) => {
                self.build_failure(Outcome::ToolError, "misconfigured", &text)
            }
            UpstreamError::Sandbox(_) => {
                self.build_failure(Outcome::ToolError, "sandbox_failed", &text)
            }
        }
    }
}

/// Maximum number of JSON values of a server's question or error that is parsed.
const MAX_UPSTREAM_VALUES: usize = 10_000;

/// Parses a question or an error of a server, unless it would become many times as large.
fn parse_bounded_json(text: &RawValue) -> Option<Value> {
    let values = count_json_values(text.get().as_bytes());
    (values <= MAX_UPSTREAM_VALUES).then(|| serde_json::from_str(text.get()).ok()).flatten()
}

/// Waits for that time.
async fn sleep_for(patience: std::time::Duration) {
    let _ = tokio::time::timeout(patience, std::future::pending::<()>()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_a_newer_version_was_installed_can_still_be_answered() {
        let parts = |inner: &str| {
            let EarlierRound { state, responses } = EarlierRound::from_approval_state(inner)?;
            Some([state, responses].map(|part| part.map(|part| part.get().to_owned())))
        };
        assert_eq!(parts(""), Some([None, None]));
        let both = r#"{"state":"s","responses":{"q":1}}"#;
        assert_eq!(parts(both), Some([r#""s""#, r#"{"q":1}"#].map(|part| Some(part.to_owned()))));
        assert_eq!(parts("nonsense"), None);
    }

    #[test]
    fn the_digest_of_a_call_covers_the_input_of_an_earlier_round() {
        let to_raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let joined = |state: Option<&str>, responses: Option<&str>| {
            let earlier =
                EarlierRound { state: state.map(to_raw), responses: responses.map(to_raw) };
            earlier.join_with_arguments(&to_raw(r#"{"a":1}"#))
        };
        assert_eq!(joined(None, None), None);
        assert_eq!(joined(Some(r#""s""#), None).as_deref(), Some("{\"a\":1}\0\0\"s\""));
        assert_eq!(joined(None, Some("[]")).as_deref(), Some("{\"a\":1}\0[]\0"));
    }

    #[test]
    fn only_the_need_of_an_approval_lets_a_refused_call_go_on() {
        let rules = vec!["deploys".to_owned()];
        assert_eq!(required_approval(None), Ok(None));
        let needed = RefusalReason::NeedsApproval(rules.clone());
        assert_eq!(required_approval(Some(needed)), Ok(Some(rules.clone())));
        let denied = RefusalReason::DeniedByRule(rules);
        assert_eq!(required_approval(Some(denied.clone())), Err(denied));
    }
}
