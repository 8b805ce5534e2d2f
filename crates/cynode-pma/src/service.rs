//! The loop: claims handoffs, works on a few at once, and says what came of each.
//!
//! **Invariant**: nothing is decided here. Between claims the process waits at the orchestrator and asks no model.

use std::{sync::Arc, time::Duration};

use cynode_wire::handoffs::{
    ClaimHandoff, CompleteHandoff, DelegateHandoff, FailHandoff, Handoff, HandoffAnswer,
    HandoffRequest, KeepHandoff,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    backoff::Backoff,
    brain::Live,
    chat,
    desk::{Boxed, Desk, Trouble},
    gate::{GateHands, HostError},
    judge::Outcome,
    office::Office,
};

/// How long the orchestrator is waited at for a handoff.
const WAIT: Duration = Duration::from_secs(20);

/// How long the last word about a handoff may take when the process ends.
const FAREWELL: Duration = Duration::from_secs(3);

/// How much at once, and how long without a sign.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Most handoffs at once.
    pub handoffs: usize,
    /// How long silence is believed.
    pub lease: Duration,
    /// How long work may go on after the process was told to stop.
    pub grace: Duration,
}

/// Decides what comes of a handoff.
pub type Judge = for<'a> fn(&'a Desk<'a>) -> Boxed<'a, Result<Outcome, Trouble>>;

/// What is said about a handoff in the end.
#[derive(Debug)]
enum Ending {
    Complete(Box<HandoffAnswer>),
    Delegate,
    Fail {
        transient: bool,
        late: bool,
        why: String,
    },
    /// The orchestrator has it again: nothing is said.
    Returned,
}

/// Works until `stop`. The orchestrator may come and go meanwhile.
pub async fn run(office: Arc<Office>, pace: Pace, judge: Judge, stop: CancellationToken) {
    let (tracker, let_go) = (TaskTracker::new(), CancellationToken::new());
    let places = Arc::new(Semaphore::new(pace.handoffs));
    let mut claim = claim(pace);
    let mut backoff = Backoff::default();
    let mut reached = true;
    loop {
        let claimed = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((place, office.host.claim(&claim).await))
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
                    tracing::warn!(event = "orchestrator.away", error = %error, "no handoff can be claimed now");
                }
                // The answer may be lost and the handoff ours: the same claim gets the same handoff.
                if !matches!(error, HostError::Away(_)) {
                    claim = self::claim(pace);
                }
                drop(place);
                let _ = timeout(backoff.next(), stop.cancelled()).await;
                continue;
            }
        };
        if !std::mem::replace(&mut reached, true) {
            tracing::info!(event = "orchestrator.back", "handoffs can be claimed again");
        }
        backoff = Backoff::default();
        claim = self::claim(pace);
        if let Some(handoff) = handoff {
            let (office, let_go) = (office.clone(), let_go.clone());
            tracker.spawn(async move {
                attend(&office, *handoff, pace, judge, &let_go).await;
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
fn claim(pace: Pace) -> ClaimHandoff {
    ClaimHandoff {
        claim_id: uuid::Builder::from_random_bytes(rand::random()).into_uuid(),
        wait_ms: u32::try_from(WAIT.as_millis()).ok(),
        expires_in_seconds: seconds(pace.lease),
    }
}

/// A lease in whole seconds; less than one is one.
fn seconds(lease: Duration) -> Option<u32> {
    u32::try_from(lease.as_secs().max(1)).ok()
}

/// Works on one handoff: until it is done, lost, or to be let go.
async fn attend(
    office: &Office,
    mut handoff: Handoff,
    pace: Pace,
    judge: Judge,
    let_go: &CancellationToken,
) {
    office.receive(&mut handoff);
    let id = handoff.handoff_id;
    let (kind, trace_id) = (handoff.request.kind().as_str(), &handoff.context.trace_id);
    tracing::info!(event = "handoff.begun", handoff = %id, kind, attempt = handoff.attempt, trace_id);
    let work = async {
        let ending = decide(office, &handoff, judge).await;
        tell(office, &handoff, ending).await
    };
    let said = tokio::select! {
        biased;
        () = lost(office, &handoff, pace.lease) => "lost",
        said = work => said,
        () = let_go.cancelled() => {
            let why = "the process that worked on it was stopped".to_owned();
            let _ = timeout(FAREWELL, tell(office, &handoff, Ending::Fail { transient: true, late: false, why })).await;
            "let_go"
        }
    };
    tracing::info!(event = "handoff.ended", handoff = %id, kind, said, trace_id);
}

/// Says again and again that the handoff is worked on, and returns when it is not ours any more.
async fn lost(office: &Office, handoff: &Handoff, lease: Duration) {
    let third = lease / 3;
    let keep = KeepHandoff {
        handoff_id: handoff.handoff_id,
        fencing_token: handoff.fencing_token,
        expires_in_seconds: seconds(lease),
    };
    let mut heard = Instant::now();
    let mut ticks = interval_at(heard + third, third);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked = ticks.tick().await;
        match timeout(third, office.host.keep(&handoff.context.trace_id, &keep)).await {
            Ok(Ok(())) => heard = asked,
            Ok(Err(HostError::Fenced(_) | HostError::Refused(_))) => return,
            // Nobody heard of us for as long as silence is believed: somebody else has it by now.
            Ok(Err(HostError::Away(_))) | Err(_) if heard.elapsed() >= lease => return,
            Ok(Err(HostError::Away(_))) | Err(_) => {}
        }
    }
}

/// What comes of a handoff.
async fn decide(office: &Office, handoff: &Handoff, judge: Judge) -> Ending {
    let kind = handoff.request.kind();
    let role = office.bundle.role;
    if kind.role() != role.agent() {
        let why = format!("a handoff of the kind {} is not for {role}", kind.as_str());
        return Ending::Fail { transient: false, late: false, why };
    }
    let outcome = if let HandoffRequest::Chat { messages } = &handoff.request {
        let content = chat::whole(office, handoff, messages).await;
        content.map(|content| Outcome::Answer(Box::new(HandoffAnswer::Chatted { content })))
    } else {
        let brain = Live::new(
            handoff,
            office.voice(handoff),
            office.host.clone(),
            office.tuning.temperature,
        );
        let hands = GateHands::of(office.gate.clone(), handoff);
        let system = office.system(handoff);
        let desk = Desk::new(handoff, system, office.tuning.max_steps, &brain, &hands);
        judge(&desk).await
    };
    match outcome {
        Ok(Outcome::Answer(answer)) => Ending::Complete(answer),
        Ok(Outcome::Delegate) => Ending::Delegate,
        Err(Trouble::Paused) => Ending::Returned,
        Err(trouble) => {
            let late = matches!(trouble, Trouble::Late(_));
            let transient = late || matches!(trouble, Trouble::Transient(_));
            Ending::Fail { transient, late, why: trouble.to_string() }
        }
    }
}

/// Says what came of a handoff until it is heard. What was said twice counts once.
async fn tell(office: &Office, handoff: &Handoff, mut ending: Ending) -> &'static str {
    let Handoff { handoff_id, fencing_token, .. } = *handoff;
    let trace = &handoff.context.trace_id;
    let mut backoff = Backoff::default();
    loop {
        let (said, told) = match &ending {
            Ending::Complete(answer) => {
                let answer = HandoffAnswer::clone(answer);
                let answer = CompleteHandoff { handoff_id, fencing_token, answer };
                ("completed", office.host.complete(trace, &answer).await)
            }
            Ending::Delegate => {
                let share = DelegateHandoff { handoff_id, fencing_token };
                ("delegated", office.host.delegate(trace, &share).await)
            }
            Ending::Fail { transient, late, why } => {
                let (transient, late, why) = (*transient, *late, why.clone());
                let failure = FailHandoff { handoff_id, fencing_token, transient, late, why };
                let said = if transient { "failed_for_now" } else { "failed" };
                (said, office.host.fail(trace, &failure).await)
            }
            Ending::Returned => return "paused",
        };
        match told {
            Ok(()) => return said,
            Err(HostError::Fenced(_)) => return "lost",
            Err(HostError::Away(_)) => backoff.pass().await,
            Err(HostError::Refused(_)) if matches!(ending, Ending::Fail { .. }) => return "unheard",
            Err(HostError::Refused(why)) => {
                let why = format!("the orchestrator did not take the answer: {why}");
                ending = Ending::Fail { transient: false, late: false, why };
            }
        }
    }
}
