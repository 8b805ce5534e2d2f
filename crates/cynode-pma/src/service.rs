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
    mcp_client::{McpToolClient, ORCHESTRATOR_BACKOFF, OrchestratorError},
    role_runtime::RoleRuntime,
};

/// How long the orchestrator is waited at for a handoff.
const CLAIM_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the last word about a handoff may take when the process ends.
const SHUTDOWN_REPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// How much at once, and how long without a sign.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimits {
    /// Most handoffs at once.
    pub handoffs: usize,
    /// How long silence is believed.
    pub lease: Duration,
    /// How long work may go on after the process was told to stop.
    pub grace: Duration,
}

/// Decides what comes of a handoff.
pub type HandoffHandler =
    for<'a> fn(&'a DecisionContext<'a>) -> BoxedFuture<'a, Result<HandoffOutcome, DecisionError>>;

/// What is said about a handoff in the end.
#[derive(Debug)]
enum HandoffResult {
    Complete(Box<HandoffAnswer>),
    Delegate,
    Fail {
        transient: bool,
        timed_out: bool,
        reason: String,
    },
    /// The orchestrator has it again: nothing is said.
    Returned,
}

/// Works until `stop`. The orchestrator may come and go meanwhile.
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
                // The answer may be lost and the handoff ours: the same claim gets the same handoff.
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

/// A new claim.
fn new_claim(pace: ServiceLimits) -> ClaimHandoff {
    ClaimHandoff {
        claim_id: uuid::Builder::from_random_bytes(rand::random()).into_uuid(),
        wait_ms: u32::try_from(CLAIM_WAIT_TIMEOUT.as_millis()).ok(),
        expires_in_seconds: lease_seconds(pace.lease),
    }
}

/// A lease in whole seconds; less than one is one.
fn lease_seconds(lease: Duration) -> Option<u32> {
    u32::try_from(lease.as_secs().max(1)).ok()
}

/// Works on one handoff: until it is done, lost, or to be let go.
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

/// Says again and again that the handoff is worked on, and returns when it is not ours any more.
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
            // Nobody heard of us for as long as silence is believed: somebody else has it by now.
            Ok(Err(OrchestratorError::Away(_))) | Err(_) if heard.elapsed() >= lease => return,
            Ok(Err(OrchestratorError::Away(_))) | Err(_) => {}
        }
    }
}

/// What comes of a handoff.
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
        let desk = DecisionContext::new(handoff, system, office.tuning.max_steps, &brain, &hands);
        judge(&desk).await
    };
    match outcome {
        Ok(HandoffOutcome::Answer(answer)) => HandoffResult::Complete(answer),
        Ok(HandoffOutcome::Delegate) => HandoffResult::Delegate,
        Err(DecisionError::Paused) => HandoffResult::Returned,
        Err(trouble) => {
            let timed_out = matches!(trouble, DecisionError::Late(_));
            let transient = timed_out || matches!(trouble, DecisionError::Transient(_));
            HandoffResult::Fail { transient, timed_out, reason: trouble.to_string() }
        }
    }
}

/// Says what came of a handoff until it is heard. What was said twice counts once.
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
