//! Service loop: claims handoffs, works on several at once (a semaphore bounds them) and reports each result.
//!
//! **Invariant**: the loop decides nothing. Between claims the process long-polls the orchestrator and asks no model.

use std::{sync::Arc, time::Duration};

use cynode_core::workflow::handoffs::{HandoffAnswer, HandoffRequest};
use cynode_wire::manager::handoffs::{
    ClaimHandoff, CompleteHandoff, DelegateHandoff, FailHandoff, HandoffAssignment, RenewHandoff,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    chat,
    decision_context::{BoxedFuture, DecisionContext, DecisionError},
    decisions::HandoffOutcome,
    llm::LiveBackend,
    mcp_client::{McpToolClient, ORCHESTRATOR_BACKOFF, OrchestratorError, PlanningRecorder},
    role_runtime::RoleRuntime,
};

/// Wait of one long-poll claim.
const CLAIM_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of the last report about a handoff at shutdown.
const SHUTDOWN_REPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Concurrency and time limits of the service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimits {
    /// Maximum number of concurrent handoffs.
    pub handoffs: usize,
    /// Lease of a handoff.
    pub lease: Duration,
    /// Grace period for work in progress after a stop signal.
    pub grace: Duration,
}

/// Handler that decides the outcome of a handoff.
pub type HandoffHandler =
    for<'a> fn(&'a DecisionContext<'a>) -> BoxedFuture<'a, Result<HandoffOutcome, DecisionError>>;

/// Result to report about a handoff.
#[derive(Debug)]
enum HandoffResult {
    Complete(Box<HandoffAnswer>),
    Delegate,
    Fail {
        transient: bool,
        timed_out: bool,
        reason: String,
    },
    /// The orchestrator has the handoff again: nothing is reported.
    Returned,
}

/// Runs until `stop`. It tolerates an unreachable orchestrator.
pub async fn run_service(
    office: Arc<RoleRuntime>,
    pace: ServiceLimits,
    judge: HandoffHandler,
    stop: CancellationToken,
) {
    let (tracker, let_go) = (TaskTracker::new(), CancellationToken::new());
    let places = Arc::new(Semaphore::new(pace.handoffs));
    let mut claim = new_claim(pace);
    let mut backoff = ORCHESTRATOR_BACKOFF;
    let mut reached = true;
    loop {
        let claimed = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((place, office.host.claim_handoff(&claim).await))
        };
        let claimed = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            claimed = claimed => claimed,
        };
        let Some((place, claimed)) = claimed else { break };
        let handoff = match claimed {
            Ok(handoff) => handoff,
            Err(error) => {
                if std::mem::take(&mut reached) {
                    tracing::warn!(event = "orchestrator.unreachable", error = %error, "no handoff can be claimed now");
                }
                // The answer may be lost although the claim succeeded: a retry with the same claim returns the same handoff.
                if !matches!(error, OrchestratorError::Away(_)) {
                    claim = self::new_claim(pace);
                }
                drop(place);
                let _ = timeout(backoff.next_delay(), stop.cancelled()).await;
                continue;
            }
        };
        if !std::mem::replace(&mut reached, true) {
            tracing::info!(event = "orchestrator.reachable", "handoffs can be claimed again");
        }
        backoff.reset_failures();
        claim = self::new_claim(pace);
        if let Some(handoff) = handoff {
            let (office, let_go) = (office.clone(), let_go.clone());
            tracker.spawn(async move {
                work_on_handoff(&office, *handoff, pace, judge, &let_go).await;
                drop(place);
            });
        }
    }
    tracker.close();
    if timeout(pace.grace, tracker.wait()).await.is_err() {
        let_go.cancel();
        tracker.wait().await;
    }
}

/// Creates a new claim.
fn new_claim(pace: ServiceLimits) -> ClaimHandoff {
    ClaimHandoff {
        claim_id: uuid::Builder::from_random_bytes(rand::random()).into_uuid(),
        wait_ms: u32::try_from(CLAIM_WAIT_TIMEOUT.as_millis()).ok(),
        expires_in_seconds: lease_seconds(pace.lease),
    }
}

/// Converts a lease to whole seconds, at least one.
fn lease_seconds(lease: Duration) -> Option<u32> {
    u32::try_from(lease.as_secs().max(1)).ok()
}

/// Works on one handoff until it is done, lost or returned.
async fn work_on_handoff(
    office: &RoleRuntime,
    mut handoff: HandoffAssignment,
    pace: ServiceLimits,
    judge: HandoffHandler,
    let_go: &CancellationToken,
) {
    office.drop_foreign_preferences(&mut handoff);
    let id = handoff.handoff_id;
    let (kind, trace_id) = (handoff.request.handoff_kind().as_str(), &handoff.context.trace_id);
    tracing::info!(event = "handoff.started", handoff = %id, kind, attempt = handoff.attempt, trace_id);
    let work = async {
        let ending = decide_handoff(office, &handoff, judge).await;
        report_result(office, &handoff, ending).await
    };
    let said = tokio::select! {
        biased;
        () = renew_until_lost(office, &handoff, pace.lease) => "lost",
        said = work => said,
        () = let_go.cancelled() => {
            let reason = "the process that worked on it was stopped".to_owned();
            let _ = timeout(SHUTDOWN_REPORT_TIMEOUT, report_result(office, &handoff, HandoffResult::Fail { transient: true, timed_out: false, reason })).await;
            "let_go"
        }
    };
    tracing::info!(event = "handoff.ended", handoff = %id, kind, said, trace_id);
}

/// Renews the lease of a handoff and returns when the lease is lost.
async fn renew_until_lost(office: &RoleRuntime, handoff: &HandoffAssignment, lease: Duration) {
    let third = lease / 3;
    let keep = RenewHandoff {
        handoff_id: handoff.handoff_id,
        fencing_token: handoff.fencing_token,
        expires_in_seconds: lease_seconds(lease),
    };
    let mut heard = Instant::now();
    let mut ticks = interval_at(heard + third, third);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked = ticks.tick().await;
        match timeout(third, office.host.renew_handoff(&handoff.context.trace_id, &keep)).await {
            Ok(Ok(())) => heard = asked,
            Ok(Err(OrchestratorError::Fenced(_) | OrchestratorError::Refused(_))) => return,
            // No renewal succeeded for a whole lease: another process may have the handoff by now.
            Ok(Err(OrchestratorError::Away(_))) | Err(_) if heard.elapsed() >= lease => return,
            Ok(Err(OrchestratorError::Away(_))) | Err(_) => {}
        }
    }
}

/// Decides the result of a handoff.
async fn decide_handoff(
    office: &RoleRuntime,
    handoff: &HandoffAssignment,
    judge: HandoffHandler,
) -> HandoffResult {
    let kind = handoff.request.handoff_kind();
    let role = office.bundle.role;
    if kind.assigned_role() != role.agent_role() {
        let reason = format!("a handoff of the kind {} is not for {role}", kind.as_str());
        return HandoffResult::Fail { transient: false, timed_out: false, reason };
    }
    let outcome = if let HandoffRequest::Chat { messages } = &handoff.request {
        let content = chat::complete_chat(office, handoff, messages).await;
        content.map(|content| HandoffOutcome::Answer(Box::new(HandoffAnswer::Chatted { content })))
    } else {
        let brain = LiveBackend::new(
            handoff,
            office.llm_client(handoff),
            office.host.clone(),
            office.tuning.temperature,
        );
        let hands = McpToolClient::for_handoff(office.gate.clone(), handoff);
        let system = office.system_prompt(handoff);
        let recorder = PlanningRecorder::new(&office.host, handoff);
        let max_steps = office.tuning.max_steps;
        let desk = DecisionContext::new(handoff, system, max_steps, &brain, &hands, &recorder);
        judge(&desk).await
    };
    match outcome {
        Ok(HandoffOutcome::Answer(answer)) => HandoffResult::Complete(answer),
        Ok(HandoffOutcome::Delegate) => HandoffResult::Delegate,
        Err(DecisionError::Paused) => HandoffResult::Returned,
        Err(trouble) => {
            let timed_out = matches!(trouble, DecisionError::Late(_));
            let transient = timed_out
                || matches!(
                    trouble,
                    DecisionError::Transient(_)
                        | DecisionError::Budget(_)
                        | DecisionError::Untraced(_)
                );
            HandoffResult::Fail { transient, timed_out, reason: trouble.to_string() }
        }
    }
}

/// Reports the result of a handoff until it is acknowledged. Repeated reports are idempotent.
async fn report_result(
    office: &RoleRuntime,
    handoff: &HandoffAssignment,
    mut ending: HandoffResult,
) -> &'static str {
    let HandoffAssignment { handoff_id, fencing_token, .. } = *handoff;
    let trace = &handoff.context.trace_id;
    let mut backoff = ORCHESTRATOR_BACKOFF;
    loop {
        let (said, told) = match &ending {
            HandoffResult::Complete(answer) => {
                let answer = HandoffAnswer::clone(answer);
                let answer = CompleteHandoff { handoff_id, fencing_token, answer };
                ("completed", office.host.complete_handoff(trace, &answer).await)
            }
            HandoffResult::Delegate => {
                let share = DelegateHandoff { handoff_id, fencing_token };
                ("delegated", office.host.delegate_handoff(trace, &share).await)
            }
            HandoffResult::Fail { transient, timed_out, reason } => {
                let (transient, timed_out, reason) = (*transient, *timed_out, reason.clone());
                let failure =
                    FailHandoff { handoff_id, fencing_token, transient, timed_out, reason };
                let said = if transient { "failed_for_now" } else { "failed" };
                (said, office.host.fail_handoff(trace, &failure).await)
            }
            HandoffResult::Returned => return "paused",
        };
        match told {
            Ok(()) => return said,
            Err(OrchestratorError::Fenced(_)) => return "lost",
            Err(OrchestratorError::Away(_)) => backoff.wait_next_delay().await,
            Err(OrchestratorError::Refused(_)) if matches!(ending, HandoffResult::Fail { .. }) => {
                return "unheard";
            }
            Err(OrchestratorError::Refused(why)) => {
                let reason = format!("the orchestrator did not take the answer: {why}");
                ending = HandoffResult::Fail { transient: false, timed_out: false, reason };
            }
        }
    }
}
