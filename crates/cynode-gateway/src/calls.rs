//! A call of a tool, from the question whether it may be made to the record of how it ended.
//!
//! The order is fixed: who calls, what the gate says, how much was called already (refused calls count too), a person's yes
//! where a rule wants one, the record of the decision on the disk, whether all that still holds, the call itself, the record
//! of its outcome, the answer. A call whose decision cannot be recorded is not made.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use cynode_app::{
    Request,
    agents::Known,
    approvals::{self, Asked, Standing},
    audit::{AgentFacts, Digest, Entry, Outcome, Phase, Refused, Verdict},
    tokens::Presented,
};
use cynode_core::{
    ids::CallId,
    trace::{TraceId, TraceParent},
};
use cynode_policy::{
    catalogue::{Origin, Tool},
    digest::Digest as Plain,
    gate::{self, decide},
    reasons::Reason,
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
    Inner,
    answers::{self, Failure, Reader, code},
    envelope::{self, Era},
    keeper::{State, Watch},
    states::{self, StateKind},
    tools::{Invocation, ToolError},
    upstream::{self, Progress, Reply, UpstreamError},
};

/// What came of the first half of a call.
pub(crate) enum Decided {
    /// It is over: this is the answer.
    Over(Answer),
    /// It may be made.
    Admitted(Box<Admitted>),
}

/// An answer to a call.
pub(crate) struct Answer {
    /// The call.
    pub(crate) call: CallId,
    /// What is said.
    pub(crate) said: Result<String, Failure>,
}

/// A call that may be made. Whoever drops it without carrying it out leaves it to be recorded as cut off.
pub(crate) struct Admitted {
    inner: Arc<Inner>,
    gate: Arc<State>,
    era: Era,
    id: Value,
    call: envelope::Call,
    known: Known,
    tool: Arc<Tool>,
    watch: Watch,
    entry: Entry,
    started: Instant,
    trace: TraceId,
    round: Round,
}

/// One round of a call that may take several.
struct Round {
    /// What the states of the call are good for.
    binding: Vec<u8>,
    /// What is passed on besides the arguments.
    earlier: Earlier,
}

/// What goes to a tool's server besides the arguments: what belongs to an earlier round.
#[derive(Debug, Serialize, Deserialize)]
struct Earlier {
    /// The server's own state, as it wrote it.
    state: Option<Box<RawValue>>,
    /// Answers to what the server asked, as the caller wrote them.
    responses: Option<Box<RawValue>>,
}

/// Says that nobody waits for a call any more, and whether they said so or just went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hangup {
    pub(crate) token: CancellationToken,
    gone: Arc<AtomicBool>,
}

/// Dropped with the connection of the caller.
pub(crate) struct Line(Hangup);

impl Hangup {
    /// Notices when what is returned is dropped.
    pub(crate) fn line(&self) -> Line {
        Line(self.clone())
    }

    /// Whether it is of the same call.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.gone, &other.gone)
    }

    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.0.token.is_cancelled() {
            self.0.gone.store(true, Ordering::Relaxed);
            self.0.token.cancel();
        }
    }
}

/// How the call itself went.
struct Went {
    outcome: Outcome,
    reason: &'static str,
    said: Result<String, Failure>,
}

impl Inner {
    /// Decides a call and records the decision.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        shown: Presented,
        known: Known,
        request: envelope::Request,
        call: envelope::Call,
        trace: TraceId,
    ) -> Decided {
        let started = Instant::now();
        let now = self.app.environment().now();
        let id = CallId::from_uuid(self.app.environment().uuid(now));
        let arguments = self.keys.digest().digest(call.raw.get().as_bytes());
        let mut entry = Self::entry(id, trace, Some(&known), now);
        entry.arguments = Some(arguments);
        entry.arguments_size = size(call.raw.get());
        let era = request.era;
        let asked_by = request.id.clone();
        let no = async |entry: Entry, tool: Option<Arc<Tool>>, reason: Reason, until: Option<_>| {
            let tool = tool.as_deref();
            Decided::Over(self.refuse(entry, era, &asked_by, &reason, until, tool).await)
        };
        let state = match self.keeper.state().await {
            Ok(state) => state,
            Err(reason) => return no(entry, None, reason, None).await,
        };
        let loaded = &state.loaded;
        entry.policy = loaded.gate.policy().0;
        entry.catalogue = loaded.gate.catalogue.version().0;
        let question = gate::Call { tool: &call.name, arguments: &call.arguments };
        let decision = decide(&known.agent, &loaded.gate, question);
        entry.shadow = clipped(decision.shadow);
        if let Some(tool) = &decision.tool {
            describe(&mut entry, tool);
        }
        // Refused calls count too: whoever tries again and again is told to stop.
        let named = decision.tool.as_ref().map_or("", |tool| tool.definition.name.as_str());
        let kind = decision.tool.as_ref().map_or_else(|| Plain::of(b""), |tool| tool.digest);
        let whole = Plain::of(&[kind.0, arguments.0].concat());
        let asking = (named, kind);
        let counted = self.counter.count(&self.app, loaded.limits, &known.agent, asking, whole);
        if let Err(much) = counted.await {
            if !self.counter.hold_back(known.agent.token, &much.reason).await {
                let failure = Failure::too_many(&much.reason).of(Some(request.id));
                return Decided::Over(Answer { call: id, said: Err(failure) });
            }
            return no(entry, decision.tool, much.reason, much.until).await;
        }
        let (tool, wanting) = match (decision.tool, decision.refusal) {
            (Some(tool), None) => (tool, None),
            (Some(tool), Some(Reason::NeedsApproval(rules))) => (tool, Some(rules)),
            (tool, refusal) => {
                let reason = refusal.unwrap_or(Reason::UnknownTool);
                return no(entry, tool, reason, None).await;
            }
        };
        let round = match self.round(&call, &known, &tool, &arguments) {
            Ok(round) => round,
            Err(failure) => {
                entry.reason = "bad_state".into();
                let failure = failure.of(Some(request.id.clone()));
                return Decided::Over(self.end_at_once(entry, Err(failure)).await);
            }
        };
        let exact = self.exact(&mut entry, &call, &round.earlier).unwrap_or(arguments);
        // A person's yes is used up last, when nothing else can say no.
        if let Some(rules) = wanting {
            let asked = Asked {
                agent: known.agent.token,
                project: known.agent.project,
                task: known.agent.task,
                tool: tool.definition.name.to_string(),
                arguments: exact.0,
                // The same name with another definition, or of another server, is another tool.
                policy: Plain::of(&[entry.policy, tool.digest.0, server_of(&tool)].concat()).0,
                rules: rules.clone(),
            };
            match self.approved(&asked, &call, &round, id, trace, &request).await {
                Ok(()) => entry.rules = clipped(rules),
                Err(Unapproved::Refused(reason)) => {
                    entry.rules = clipped(rules);
                    return no(entry, Some(tool), reason, None).await;
                }
                Err(Unapproved::Asked(result)) => {
                    let result = answers::fitting(&tool, result);
                    return Decided::Over(self.asks(entry, &request.id, result, rules).await);
                }
            }
        }
        let watch = self.keeper.watch(shown, known.agent.clone(), tool.clone(), loaded.epoch);
        entry.decision = Verdict::Allow;
        entry.reason = if entry.rules.is_empty() { "allowed" } else { "approved" }.into();
        if let Err(failure) = self.record(&entry).await {
            return Decided::Over(Answer { call: id, said: Err(failure.of(Some(request.id))) });
        }
        Decided::Admitted(Box::new(Admitted {
            inner: self.clone(),
            gate: state.clone(),
            era,
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

    /// What every record of a call says.
    pub(crate) fn entry(
        call: CallId,
        trace: TraceId,
        known: Option<&Known>,
        now: OffsetDateTime,
    ) -> Entry {
        Entry {
            call: call.as_uuid(),
            at: now,
            phase: Phase::Decision,
            decision: Verdict::Deny,
            reason: "refused".into(),
            rules: Vec::new(),
            shadow: Vec::new(),
            outcome: None,
            agent: known.map(facts),
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

    /// Records a refusal and says it.
    pub(crate) async fn refuse(
        &self,
        mut entry: Entry,
        era: Era,
        id: &Value,
        reason: &Reason,
        until: Option<OffsetDateTime>,
        tool: Option<&Tool>,
    ) -> Answer {
        entry.decision = Verdict::Deny;
        entry.reason = reason.code().into();
        entry.rules = clipped(reason.rules().to_vec());
        let said = match reason {
            Reason::Stale | Reason::NoAudit => {
                Err(Failure::unavailable(format!("{reason}. {}", reason.advice()))
                    .of(Some(id.clone())))
            }
            // The protocol has a word of its own for this one.
            Reason::UnknownTool => Err(Failure::bad(
                code::INVALID_PARAMS,
                format!("Unknown tool: {reason}. {}", reason.advice()),
            )
            .of(Some(id.clone()))),
            _ => {
                let mut refusal = answers::refusal(era, reason, until, entry.at);
                if let Some(tool) = tool {
                    refusal = answers::fitting(tool, refusal);
                }
                Ok(answers::result(id, &refusal.to_string()))
            }
        };
        self.end_at_once(entry, said).await
    }

    /// Records that a person must be asked, and asks.
    async fn asks(
        &self,
        mut entry: Entry,
        id: &Value,
        result: Value,
        rules: Vec<String>,
    ) -> Answer {
        entry.decision = Verdict::NeedsApproval;
        entry.reason = "needs_approval".into();
        entry.rules = clipped(rules);
        let said = Ok(answers::result(id, &result.to_string()));
        self.end_at_once(entry, said).await
    }

    /// Records a call that goes no further, and answers it.
    async fn end_at_once(&self, mut entry: Entry, said: Result<String, Failure>) -> Answer {
        let call = CallId::from_uuid(entry.call);
        entry.outcome = Some(Outcome::NotForwarded);
        match self.record(&entry).await {
            Ok(()) => Answer { call, said },
            Err(failure) => Answer { call, said: Err(failure) },
        }
    }

    /// Brings a decision to the disk.
    pub(crate) async fn record(&self, entry: &Entry) -> Result<(), Failure> {
        self.audit.record(entry.clone()).await.map_err(|refused| {
            tracing::error!(event = "audit.refused", error = %refused, "a call was refused because it could not be recorded");
            unrecorded(&refused)
        })
    }

    async fn approved(
        &self,
        asked: &Asked,
        call: &envelope::Call,
        round: &Round,
        id: CallId,
        trace: TraceId,
        request: &envelope::Request,
    ) -> Result<(), Unapproved> {
        let about = Request { caller: None, trace, attempt: None };
        let seen = round.earlier.beside(&call.raw);
        let found = approvals::seek(&self.app, &about, asked, &seen, id).await;
        match found {
            Ok(Standing::Spent(_)) => Ok(()),
            Ok(Standing::Refused(_)) => Err(Unapproved::Refused(Reason::NotApproved)),
            Ok(Standing::TooMany) => Err(Unapproved::Refused(Reason::TooManyWaiting)),
            Ok(Standing::Waiting(approval)) => {
                let where_to = format!("{}/v1/approvals/{}", self.public_url, approval.id);
                let told = format!(
                    "The call of {} needs a person's approval ({}). Rules: {}.",
                    asked.tool,
                    approval.id,
                    asked.rules.join(", ")
                );
                if request.era == Era::Modern
                    && states::can_show_urls(call.capabilities.as_deref())
                    && let Some(state) = self.waiting_state(round, approval.expires_at)
                {
                    return Err(Unapproved::Asked(json!({
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
                    })));
                }
                let reason = Reason::NeedsApproval(asked.rules.clone());
                let text = format!("{told} {} A person answers at {where_to}.", reason.advice());
                let mut refused = answers::told(&reason);
                refused["approval_id"] = json!(approval.id);
                refused["approve_at"] = json!(where_to);
                Err(Unapproved::Asked(answers::failed(
                    request.era,
                    &text,
                    &json!({ "refused": refused }),
                )))
            }
            Err(error) => {
                tracing::warn!(event = "error", %error, "an approval could not be looked up");
                Err(Unapproved::Refused(Reason::Stale))
            }
        }
    }

    /// The state that goes with our question to a person. What the server waits for is kept in it: the caller brings nothing
    /// else back. `None`: that is too much to be kept there.
    fn waiting_state(&self, round: &Round, until: OffsetDateTime) -> Option<String> {
        let inner = serde_json::to_string(&round.earlier).ok()?;
        let state = states::seal(&self.keys, StateKind::Approval, &round.binding, &inner, until);
        (state.len() <= states::MOST).then_some(state)
    }

    /// What a call brings of an earlier round, if that was given to this agent for this very call.
    fn round(
        &self,
        call: &envelope::Call,
        known: &Known,
        tool: &Tool,
        arguments: &Digest,
    ) -> Result<Round, Failure> {
        let binding =
            bind(known.agent.token.as_uuid(), tool.definition.name.as_str(), &arguments.0);
        let responses = call.responses.clone();
        let Some(state) = &call.state else {
            return Ok(Round { binding, earlier: Earlier { state: None, responses } });
        };
        let now = self.app.environment().now();
        let earlier = match states::open(&self.keys, state, &binding, now) {
            Some((StateKind::Upstream, inner)) => {
                Some(Earlier { state: to_raw_value(&inner).ok(), responses })
            }
            // What comes with it answers our own question, and is no business of the server. What is, waits inside.
            Some((StateKind::Approval, inner)) => Earlier::waiting(&inner),
            None => None,
        };
        let earlier = earlier.ok_or_else(|| {
            Failure::bad(
                code::INVALID_PARAMS,
                "`requestState` is not one that was given for this call",
            )
        })?;
        Ok(Round { binding, earlier })
    }

    /// What goes to a server besides the arguments is part of what is approved and recorded. Gives the digest of all of it.
    fn exact(&self, entry: &mut Entry, call: &envelope::Call, earlier: &Earlier) -> Option<Digest> {
        let Earlier { state, responses } = earlier;
        if state.is_none() && responses.is_none() {
            return None;
        }
        let parts = [Some(&*call.raw), responses.as_deref(), state.as_deref()];
        // No JSON holds a zero byte: where each of them ends is never in doubt.
        let exact = parts.map(|part| part.map_or("", RawValue::get)).join("\0");
        let digest = self.keys.digest().digest(exact.as_bytes());
        entry.arguments = Some(digest);
        entry.arguments_size = size(&exact);
        Some(digest)
    }
}

impl Earlier {
    /// What waits inside of a state that went with our own question. Those of an earlier version hold nothing.
    fn waiting(inner: &str) -> Option<Self> {
        if inner.is_empty() {
            return Some(Self { state: None, responses: None });
        }
        serde_json::from_str(inner).ok()
    }

    /// What is carried out, as a person is shown it.
    fn beside(&self, arguments: &RawValue) -> String {
        match &self.responses {
            None => arguments.get().to_owned(),
            Some(responses) => {
                format!("{{\"arguments\":{arguments},\"inputResponses\":{responses}}}")
            }
        }
    }
}

/// The server of a tool, in as many bytes as a digest has.
fn server_of(tool: &Tool) -> [u8; 32] {
    match &tool.definition.origin {
        Origin::Native => [0; 32],
        Origin::Server { id, .. } => Plain::of(id.as_uuid().as_bytes()).0,
    }
}

/// Why a person's yes is missing.
enum Unapproved {
    Refused(Reason),
    Asked(Value),
}

/// What a state is good for: one agent, one tool, one set of arguments.
fn bind(agent: uuid::Uuid, tool: &str, arguments: &[u8; 32]) -> Vec<u8> {
    let mut bytes = Vec::from(*agent.as_bytes());
    bytes.extend_from_slice(arguments);
    bytes.extend_from_slice(tool.as_bytes());
    bytes
}

fn unrecorded(refused: &Refused) -> Failure {
    let told = format!(
        "calls cannot be recorded now, so none is carried out: {refused}. Try again in a moment."
    );
    Failure::unavailable(told)
}

/// Names of rules, as many as a record holds.
fn clipped(mut names: Vec<String>) -> Vec<String> {
    names.truncate(16);
    names
}

fn describe(entry: &mut Entry, tool: &Tool) {
    entry.tool = Some(tool.definition.name.to_string());
    entry.definition = Some(tool.digest.0);
    entry.server = match &tool.definition.origin {
        Origin::Native => None,
        Origin::Server { id, .. } => Some(id.as_uuid()),
    };
}

fn facts(known: &Known) -> AgentFacts {
    let agent = &known.agent;
    AgentFacts {
        token: agent.token.as_uuid(),
        kind: agent.kind().as_str().into(),
        role: agent.role.as_str().into(),
        user: agent.user.map(|id| id.as_uuid()),
        project: agent.project.map(|id| id.as_uuid()),
        task: agent.task.map(|id| id.as_uuid()),
        run: agent.run.map(|id| id.as_uuid()),
        job: agent.job.map(|id| id.as_uuid()),
    }
}

fn size(text: &str) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

impl Admitted {
    /// Whether progress may be told while it runs.
    pub(crate) fn tells_progress(&self) -> bool {
        self.call.progress.is_some() && matches!(self.tool.definition.origin, Origin::Server { .. })
    }

    /// How progress is labelled.
    pub(crate) fn progress_token(&self) -> Option<Value> {
        self.call.progress.clone()
    }

    /// The call.
    pub(crate) fn id(&self) -> CallId {
        CallId::from_uuid(self.entry.call)
    }

    /// Makes the call, records how it went, and only then says so.
    pub(crate) async fn carry_out(
        self,
        cancel: Hangup,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Answer {
        let permitted = self.watch.still_permitted().await;
        let went = match (&self.tool.definition.origin, permitted) {
            (_, Err(reason)) => self.forbidden(&reason),
            (Origin::Native, Ok(())) => self.native(&cancel).await,
            (Origin::Server { id, tool, .. }, Ok(())) => match self.gate.servers.get(id) {
                Some(server) => self.forwarded(server, tool, &cancel, progress).await,
                None => self.failed(
                    Outcome::ToolError,
                    "server_off",
                    "the tool's server is switched off",
                ),
            },
        };
        let call = self.id();
        let mut entry = self.entry;
        entry.at = self.inner.app.environment().now();
        entry.phase = Phase::Outcome;
        entry.outcome = Some(went.outcome);
        entry.reason = went.reason.into();
        entry.duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Ok(said) = &went.said {
            entry.result = Some(self.inner.keys.digest().digest(said.as_bytes()));
            entry.result_size = size(said);
        }
        // Written before it is said: what was answered is known, also if we die now. If the power goes before the disk has
        // it, the call is recorded as one of unknown outcome, which is then true.
        let said = match self.inner.audit.append(entry) {
            Ok(_) => went.said.map_err(|failure| failure.of(Some(self.id))),
            Err(refused) => {
                tracing::error!(event = "audit.refused", error = %refused, "an outcome could not be recorded");
                let told = "the call was made, and how it ended could not be recorded; do not make it again without looking";
                Err(Failure::unavailable(told).of(Some(self.id)))
            }
        };
        Answer { call, said }
    }

    fn failed(&self, outcome: Outcome, reason: &'static str, text: &str) -> Went {
        let result = answers::failed(
            self.era,
            text,
            &json!({ "error": { "code": reason, "detail": text } }),
        );
        let result = answers::fitting(&self.tool, result);
        Went { outcome, reason, said: Ok(answers::result(&self.id, &result.to_string())) }
    }

    fn forbidden(&self, reason: &Reason) -> Went {
        let now = self.inner.app.environment().now();
        let said = if *reason == Reason::Stale {
            Err(Failure::unavailable(format!("{reason}. {}", reason.advice())))
        } else {
            let result = answers::refusal(self.era, reason, None, now);
            let result = answers::fitting(&self.tool, result);
            Ok(answers::result(&self.id, &result.to_string()))
        };
        Went { outcome: Outcome::Revoked, reason: reason.code(), said }
    }

    /// One of our own tools. It is carried out to its end, also when nobody waits for it any more: half an operation is
    /// worse than one too many.
    async fn native(&self, cancel: &Hangup) -> Went {
        let Some(tool) = self.inner.tools.get(&self.tool.definition.name) else {
            return self.failed(
                Outcome::ToolError,
                "unavailable",
                "the tool is not part of this program",
            );
        };
        let invocation = Invocation {
            app: self.inner.app.clone(),
            request: Request { caller: self.known.caller, trace: self.trace, attempt: None },
            agent: self.known.agent.clone(),
            service: self.known.service.clone(),
            gate: self.gate.loaded.gate.clone(),
            egress: self.inner.egress.clone(),
            arguments: self.call.arguments.clone(),
            gone: cancel.token.clone(),
        };
        let work = TaskTracker::new().spawn(tool.run(invocation));
        tokio::select! {
            done = work => match done {
                Ok(Ok(value)) => {
                    let program = self.known.service.is_some();
                    let reader = if program { Reader::Program } else { Reader::Model };
                    let result = answers::succeeded(self.era, value, reader);
                    let said = Ok(answers::result(&self.id, &result.to_string()));
                    Went { outcome: Outcome::Success, reason: "ok", said }
                }
                Ok(Err(ToolError { code, detail, fix })) => {
                    let text = match fix {
                        Some(fix) => format!("{detail}. {fix}"),
                        None => detail.clone(),
                    };
                    let structured = json!({ "error": { "code": code, "detail": detail } });
                    let result = answers::failed(self.era, &text, &structured);
                    let said = Ok(answers::result(&self.id, &result.to_string()));
                    Went { outcome: Outcome::ToolError, reason: code, said }
                }
                Err(_) => self.failed(Outcome::ToolError, "internal", "something went wrong on our side"),
            },
            reason = self.watch.forbidden() => self.forbidden(&reason),
            () = cancel.token.cancelled() => self.given_up(cancel),
            () = until(self.inner.patience) => self.failed(Outcome::Timeout, "timeout", "the tool took too long"),
        }
    }

    /// A tool of a server that somebody installed.
    async fn forwarded(
        &self,
        server: &upstream::Server,
        tool: &str,
        cancel: &Hangup,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Went {
        let parent = TraceParent { trace: self.trace, span: self.span(), flags: 1 }.to_string();
        let Earlier { state, responses } = &self.round.earlier;
        let input = (responses.is_some() || state.is_some()).then_some(upstream::Input {
            responses: responses.as_deref(),
            state: state.as_deref(),
        });
        let call = upstream::Call {
            trace: Some(&parent),
            capabilities: self.call.capabilities.as_deref(),
            input,
            progress,
            cancel: cancel.token.clone(),
            ..upstream::Call::new(tool, &self.call.raw)
        };
        let reply = tokio::select! {
            biased;
            reason = self.watch.forbidden() => return self.forbidden(&reason),
            reply = self.inner.upstreams.call(server, call) => reply,
        };
        match reply {
            Ok(Reply::Result { result, is_error }) => self.passed(&result, is_error),
            Ok(Reply::InputRequired(asked)) => self.needs_input(&asked),
            Err(UpstreamError::Cancelled) => self.given_up(cancel),
            Err(error) => self.broken(error),
        }
    }

    /// The caller does not wait for the answer any more.
    fn given_up(&self, cancel: &Hangup) -> Went {
        if cancel.gone() {
            return self.failed(Outcome::Disconnected, "caller_gone", "the caller went away");
        }
        self.failed(Outcome::Cancelled, "cancelled", "the call was given up")
    }

    fn span(&self) -> u64 {
        u64::from_ne_bytes(self.inner.app.environment().bytes()).max(1)
    }

    /// A result is passed on as it is, if it is what the tool promised.
    fn passed(&self, result: &RawValue, is_error: bool) -> Went {
        if is_error {
            let said = Ok(answers::result(&self.id, &self.completed(result)));
            return Went { outcome: Outcome::ToolError, reason: "tool_error", said };
        }
        if self.tool.definition.output.is_some() {
            let whole: Value = serde_json::from_str(result.get()).unwrap_or(Value::Null);
            if let Some(complaint) = self.tool.output_complaint(whole.get("structuredContent")) {
                let text = format!("the tool's answer is not what it promised: {complaint}");
                return self.failed(Outcome::ProtocolError, "broken_promise", &text);
            }
        }
        let said = Ok(answers::result(&self.id, &self.completed(result)));
        Went { outcome: Outcome::Success, reason: "ok", said }
    }

    /// The result in the words of the caller's era, its bytes otherwise untouched.
    fn completed(&self, result: &RawValue) -> String {
        #[derive(serde::Deserialize)]
        struct Peek<'a> {
            #[serde(borrow, rename = "resultType")]
            kind: Option<&'a RawValue>,
        }
        let text = result.get();
        let stated = serde_json::from_str::<Peek<'_>>(text).is_ok_and(|peek| peek.kind.is_some());
        match text.trim_start().strip_prefix('{') {
            Some(rest) if self.era == Era::Modern && !stated => {
                let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
                format!("{{\"resultType\":\"complete\"{comma}{rest}")
            }
            _ => text.to_owned(),
        }
    }

    /// The server wants to know something of the caller's side.
    fn needs_input(&self, asked: &RawValue) -> Went {
        if self.era == Era::Legacy {
            let text = "the tool wants to ask something back, which this revision of the protocol cannot carry";
            return self.failed(Outcome::ToolError, "input_required", text);
        }
        let Ok(mut asked) = serde_json::from_str::<Value>(asked.get()) else {
            return self.failed(
                Outcome::ProtocolError,
                "malformed",
                "the server's question cannot be read",
            );
        };
        if let Some(Value::String(state)) = asked.get("requestState") {
            let until = self.inner.app.environment().now() + time::Duration::minutes(30);
            let (keys, binding) = (&self.inner.keys, &self.round.binding);
            asked["requestState"] =
                json!(states::seal(keys, StateKind::Upstream, binding, state, until));
        }
        let said = Ok(answers::result(&self.id, &asked.to_string()));
        Went { outcome: Outcome::Success, reason: "input_required", said }
    }

    fn broken(&self, error: UpstreamError) -> Went {
        let text = error.to_string();
        match error {
            UpstreamError::Protocol { code, message, data } => {
                let data = data.and_then(|data| serde_json::from_str(data.get()).ok());
                let said = Err(Failure::passed_on(code, message, data));
                Went { outcome: Outcome::ProtocolError, reason: "protocol_error", said }
            }
            UpstreamError::Timeout => self.failed(Outcome::Timeout, "timeout", &text),
            UpstreamError::Cancelled => self.failed(Outcome::Cancelled, "cancelled", &text),
            UpstreamError::Unreachable(_) => {
                self.failed(Outcome::Disconnected, "unreachable", &text)
            }
            UpstreamError::Closed => self.failed(Outcome::Disconnected, "closed", &text),
            UpstreamError::Broken { .. } => self.failed(Outcome::ToolError, "resting", &text),
            UpstreamError::Busy => self.failed(Outcome::ToolError, "busy", &text),
            UpstreamError::Status { .. } => self.failed(Outcome::ProtocolError, "status", &text),
            UpstreamError::Malformed(_) => self.failed(Outcome::ProtocolError, "malformed", &text),
            UpstreamError::TooLarge { .. } => {
                self.failed(Outcome::ProtocolError, "too_large", &text)
            }
            UpstreamError::Misconfigured(_) => {
                self.failed(Outcome::ToolError, "misconfigured", &text)
            }
            UpstreamError::Sandbox(_) => self.failed(Outcome::ToolError, "sandbox", &text),
        }
    }
}

/// Ends after that time.
async fn until(patience: std::time::Duration) {
    let _ = tokio::time::timeout(patience, std::future::pending::<()>()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_a_newer_version_was_installed_can_still_be_answered() {
        let parts = |inner: &str| {
            let Earlier { state, responses } = Earlier::waiting(inner)?;
            Some([state, responses].map(|part| part.map(|part| part.get().to_owned())))
        };
        assert_eq!(parts(""), Some([None, None]));
        let both = r#"{"state":"s","responses":{"q":1}}"#;
        assert_eq!(parts(both), Some([r#""s""#, r#"{"q":1}"#].map(|part| Some(part.to_owned()))));
        assert_eq!(parts("nonsense"), None);
    }
}
