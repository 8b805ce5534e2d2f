//! One turn of an agent, from the prompt to its end.

use std::{sync::Arc, time::Duration};

use agent_client_protocol_schema::v1::{
    ContentBlock, PermissionOption, PermissionOptionId, PermissionOptionKind, PromptRequest,
    PromptResponse, RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse,
    SelectedPermissionOutcome, SessionNotification, StopReason,
};
use cynode_core::nodes::{JobEventData, WorkStopReason};
use futures::{
    StreamExt as _,
    future::{BoxFuture, FutureExt as _},
    stream::FuturesUnordered,
};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until},
};

use super::{
    super::{RepetitionDetector, TurnOutcome, WorkerInstruction, process::send_event},
    AcpSession,
    updates::UpdateCollector,
    wire::AgentMessage,
};

/// Interval at which pending lines are flushed.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of open permission requests.
const MAX_OPEN_QUESTIONS: usize = 8;
/// Prompt after a pause.
const RESUME_PROMPT: &str = "You were paused. Go on where you stopped, and do nothing twice.";

/// Next state after a prompt has ended.
enum PromptOutcome {
    /// The turn is over.
    Over(TurnOutcome),
    /// The agent gets this prompt next.
    Tell(String),
    /// The agent waits until it is resumed.
    Pause,
}

/// Reason of a stop request to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StopCause {
    /// The turn ends with this stop reason.
    Stop(WorkStopReason),
    /// The agent gets another prompt.
    Tell(String),
    /// The agent pauses.
    Pause,
}

/// An open permission request.
struct PermissionQuestion {
    id: Value,
    request: String,
    title: String,
    options: Vec<PermissionOption>,
}

/// State of a prompt.
struct PromptState {
    prompt: u64,
    updates: UpdateCollector,
    repetition: RepetitionDetector,
    questions: FuturesUnordered<BoxFuture<'static, (u64, bool)>>,
    asked: Vec<(u64, PermissionQuestion)>,
    /// Reason of the stop request, and the end of its grace period.
    ending: Option<(StopCause, Option<Instant>)>,
    heard: Instant,
    tick: Interval,
}

impl AcpSession {
    /// Runs the agent until its turn is over, with as many prompts as people's instructions require.
    pub(super) async fn run_turn(
        &mut self,
        text: &str,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> TurnOutcome {
        let mut next = text.to_owned();
        loop {
            if self.over {
                return self.crash_outcome(&UpdateCollector::default());
            }
            match self.prompt_once(next, orders).await {
                PromptOutcome::Over(turn) => return turn,
                PromptOutcome::Tell(text) => next = text,
                PromptOutcome::Pause => match self.wait_for_resume(orders).await {
                    Ok(text) => next = text,
                    Err(stop) => return TurnOutcome::new(stop),
                },
            }
        }
    }

    /// Waits while paused. Returns the next prompt, or the outcome if the turn ends.
    async fn wait_for_resume(
        &mut self,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> Result<String, WorkStopReason> {
        self.send_note("The agent is paused.").await;
        loop {
            let order = tokio::select! {
                order = orders.recv() => order,
                () = sleep_until(self.limits.until) => return Err(WorkStopReason::Timeout),
            };
            match order {
                Some(WorkerInstruction::Pause) => {}
                Some(WorkerInstruction::Resume) => return Ok(RESUME_PROMPT.into()),
                Some(WorkerInstruction::Tell(text)) => return Ok(text),
                Some(WorkerInstruction::Cancel) | None => return Err(WorkStopReason::Cancelled),
            }
        }
    }

    async fn prompt_once(
        &mut self,
        text: String,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> PromptOutcome {
        let content = vec![ContentBlock::from(text.clone())];
        let ask = PromptRequest::new(self.session.clone(), content);
        let mut tick = interval_at(Instant::now() + FLUSH_INTERVAL, FLUSH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut course = PromptState {
            prompt: self.wire.send_request("session/prompt", &ask),
            updates: UpdateCollector::default(),
            repetition: RepetitionDetector::new(self.limits.repeats),
            questions: FuturesUnordered::new(),
            asked: Vec::new(),
            ending: None,
            heard: Instant::now(),
            tick,
        };
        send_event(&self.events, JobEventData::Prompt { text }).await;
        let after = loop {
            if let Some(after) = self.handle_next(&mut course, orders).await {
                break after;
            }
        };
        let left =
            course.updates.flush_text().into_iter().chain(self.wire.flush_strays()).collect();
        self.send_events(left).await;
        after
    }

    /// Handles the next message, instruction or timeout. Returns the next state if the prompt is over.
    async fn handle_next(
        &mut self,
        course: &mut PromptState,
        orders: &mut mpsc::Receiver<WorkerInstruction>,
    ) -> Option<PromptOutcome> {
        let deadline = course.next_deadline(self.limits.until, self.limits.inactive);
        tokio::select! {
            incoming = self.wire.next() => self.handle_incoming(course, incoming).await,
            Some(order) = orders.recv(), if course.ending.is_none() => {
                self.handle_instruction(course, order).await;
                None
            }
            Some((number, allowed)) = course.questions.next() => {
                self.handle_permission_answer(course, number, allowed).await;
                None
            }
            _ = course.tick.tick() => {
                let told = course.updates.flush_lines();
                self.send_events(told.into_iter().collect()).await;
                None
            }
            () = sleep_until(deadline) => self.handle_timeout(course),
        }
    }

    async fn handle_incoming(
        &mut self,
        course: &mut PromptState,
        incoming: AgentMessage,
    ) -> Option<PromptOutcome> {
        match incoming {
            AgentMessage::Answer { id, answer } if id == course.prompt => {
                return Some(self.handle_prompt_end(course, answer));
            }
            AgentMessage::Answer { .. } => {}
            AgentMessage::Notification { method, params } => {
                course.heard = Instant::now();
                if method == "session/update" {
                    self.handle_update(course, params).await;
                }
            }
            AgentMessage::Request { id, method, params } => {
                course.heard = Instant::now();
                if method == "session/request_permission" {
                    self.handle_permission_request(course, id, params).await;
                } else {
                    self.reject_request(&id, &method);
                }
            }
            // Stray output does not count as activity.
            AgentMessage::Stray(told) => self.send_events(told).await,
            AgentMessage::TooLong(bytes) => {
                send_event(&self.events, JobEventData::Truncated { bytes }).await;
            }
            AgentMessage::Gone => {
                self.over = true;
                return Some(match &course.ending {
                    Some((StopCause::Stop(stop), _)) => {
                        PromptOutcome::Over(build_turn_outcome(course, *stop))
                    }
                    _ => PromptOutcome::Over(self.crash_outcome(&course.updates)),
                });
            }
        }
        None
    }

    async fn handle_update(&mut self, course: &mut PromptState, params: Value) {
        let Ok(update) = serde_json::from_value::<SessionNotification>(params) else {
            return;
        };
        // Subagents have their own sessions; their work is visible in its effects.
        if update.session_id != self.session {
            return;
        }
        let told = course.updates.collect_update(update.update);
        self.send_events(told).await;
        let mut stuck = false;
        for done in std::mem::take(&mut course.updates.done) {
            stuck |= course.repetition.is_stuck_after(done);
        }
        if stuck && course.ending.is_none() {
            self.request_stop(course, StopCause::Stop(WorkStopReason::NoProgress));
        }
    }

    /// Forwards a permission request to a person, in both modes: the node never grants a permission itself.
    async fn handle_permission_request(
        &mut self,
        course: &mut PromptState,
        id: Value,
        params: Value,
    ) {
        let Ok(request) = serde_json::from_value::<RequestPermissionRequest>(params) else {
            self.wire.send_error(&id, -32602, "this is not a request for permission");
            return;
        };
        if course.ending.is_some() {
            self.wire.send_response(
                &id,
                &RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled),
            );
            return;
        }
        let named = request.tool_call.tool_call_id.to_string();
        let told = course.updates.flush_text();
        self.send_events(told.into_iter().collect()).await;
        let room = course.asked.len() < MAX_OPEN_QUESTIONS;
        let Some((title, input)) =
            course.updates.permission_subject(&request.tool_call).filter(|_| room)
        else {
            self.send_permission_decision(&id, &request.options, false);
            let title = request.tool_call.fields.title.unwrap_or_default();
            send_event(&self.events, permission_event(&named, &title, "refused")).await;
            return;
        };
        let number = course.asked.last().map_or(0, |(number, _)| number + 1);
        send_event(&self.events, permission_event(&named, &title, "asked")).await;
        let permissions = Arc::clone(&self.permissions);
        let asked = title.clone();
        let answer = async move { (number, permissions.request_permission(asked, input).await) };
        course.questions.push(answer.boxed());
        let question = PermissionQuestion { id, request: named, title, options: request.options };
        course.asked.push((number, question));
    }

    /// Forwards a person's answer to the agent.
    async fn handle_permission_answer(
        &mut self,
        course: &mut PromptState,
        number: u64,
        allowed: bool,
    ) {
        course.heard = Instant::now();
        let Some(at) = course.asked.iter().position(|(asked, _)| *asked == number) else {
            return;
        };
        let (_, question) = course.asked.remove(at);
        self.send_permission_decision(&question.id, &question.options, allowed);
        let state = if allowed { "allowed" } else { "refused" };
        send_event(&self.events, permission_event(&question.request, &question.title, state)).await;
    }

    /// Sends a permission decision to the agent.
    fn send_permission_decision(
        &mut self,
        id: &Value,
        options: &[PermissionOption],
        allowed: bool,
    ) {
        let outcome = match select_option(options, allowed) {
            Some(option) => {
                RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option))
            }
            // The agent offers no matching option, so the request is denied.
            None => RequestPermissionOutcome::Cancelled,
        };
        self.wire.send_response(id, &RequestPermissionResponse::new(outcome));
    }

    async fn handle_instruction(&mut self, course: &mut PromptState, order: WorkerInstruction) {
        match order {
            WorkerInstruction::Cancel => {
                self.request_stop(course, StopCause::Stop(WorkStopReason::Cancelled));
            }
            WorkerInstruction::Tell(text) => self.request_stop(course, StopCause::Tell(text)),
            WorkerInstruction::Pause => self.request_stop(course, StopCause::Pause),
            WorkerInstruction::Resume => self.send_note("It is not paused.").await,
        }
    }

    /// Requests that the agent stops, and records why.
    fn request_stop(&mut self, course: &mut PromptState, ending: StopCause) {
        self.cancel_prompt();
        for (_, question) in course.asked.drain(..) {
            let cancelled = RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled);
            self.wire.send_response(&question.id, &cancelled);
        }
        course.questions.clear();
        course.ending = Some((ending, Some(Instant::now() + self.limits.grace)));
    }

    /// Handles the expiry of a deadline.
    fn handle_timeout(&mut self, course: &mut PromptState) -> Option<PromptOutcome> {
        let out_of_time = Instant::now() >= self.limits.until;
        match &mut course.ending {
            Some((StopCause::Stop(stop), _)) => {
                let stop = *stop;
                return Some(PromptOutcome::Over(build_turn_outcome(course, stop)));
            }
            // The agent did not stop in time; it gets the next prompt when it has ended by itself.
            Some((_, grace @ Some(_))) if !out_of_time => *grace = None,
            _ => {
                let why =
                    if out_of_time { WorkStopReason::Timeout } else { WorkStopReason::Inactive };
                self.request_stop(course, StopCause::Stop(why));
            }
        }
        None
    }

    /// Handles the agent's answer to the prompt.
    fn handle_prompt_end(
        &mut self,
        course: &PromptState,
        answer: Result<Value, String>,
    ) -> PromptOutcome {
        let ending = course.ending.as_ref().map(|(ending, _)| ending.clone());
        let usage = answer.as_ref().map(|answer| answer["usage"].clone()).unwrap_or_default();
        let mut turn = match (ending, answer) {
            (Some(StopCause::Tell(text)), _) => return PromptOutcome::Tell(text),
            (Some(StopCause::Pause), _) => return PromptOutcome::Pause,
            (Some(StopCause::Stop(stop)), _) => build_turn_outcome(course, stop),
            (None, Ok(answer)) => match serde_json::from_value::<PromptResponse>(answer) {
                Ok(answer) => build_turn_outcome(course, stop_reason_of(answer.stop_reason)),
                Err(error) => TurnOutcome {
                    said: format!("{} ended its turn with nonsense: {error}", self.name),
                    ..build_turn_outcome(course, WorkStopReason::Failed)
                },
            },
            (None, Err(told)) => {
                TurnOutcome { said: told, ..build_turn_outcome(course, WorkStopReason::Failed) }
            }
        };
        turn.usage = usage;
        PromptOutcome::Over(turn)
    }

    /// Builds the outcome of an agent that exited during the turn.
    fn crash_outcome(&mut self, updates: &UpdateCollector) -> TurnOutcome {
        let strays = self.wire.stray_tail();
        let why = if strays.is_empty() { updates.last_message().to_owned() } else { strays };
        let said = format!("{} ended in the middle of its turn. {why}", self.name);
        TurnOutcome {
            said: said.trim_end().to_owned(),
            ..TurnOutcome::new(WorkStopReason::Crashed)
        }
    }
}

impl PromptState {
    /// Returns the next deadline. Waiting for a person does not count as inactivity.
    fn next_deadline(&self, until: Instant, inactive: Duration) -> Instant {
        match &self.ending {
            Some((StopCause::Stop(_), Some(grace))) => *grace,
            Some((_, Some(grace))) => (*grace).min(until),
            _ if !self.asked.is_empty() => until,
            _ => until.min(self.heard + inactive),
        }
    }
}

/// Builds the outcome of a turn with a stop reason.
fn build_turn_outcome(course: &PromptState, stop: WorkStopReason) -> TurnOutcome {
    TurnOutcome { said: course.updates.last_message().to_owned(), ..TurnOutcome::new(stop) }
}

const fn stop_reason_of(reason: StopReason) -> WorkStopReason {
    match reason {
        StopReason::EndTurn => WorkStopReason::EndTurn,
        StopReason::Refusal => WorkStopReason::Refused,
        StopReason::Cancelled => WorkStopReason::Cancelled,
        StopReason::MaxTokens | StopReason::MaxTurnRequests => WorkStopReason::Limit,
        _ => WorkStopReason::Failed,
    }
}

/// Selects the option that matches the person's answer, preferably one that applies once.
fn select_option(options: &[PermissionOption], allowed: bool) -> Option<PermissionOptionId> {
    use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let wanted = if allowed { [AllowOnce, AllowAlways] } else { [RejectOnce, RejectAlways] };
    let of = |kind| options.iter().find(|option| option.kind == kind);
    wanted.into_iter().find_map(of).map(|option| option.option_id.clone())
}

fn permission_event(request: &str, title: &str, state: &str) -> JobEventData {
    let (request, title, state) = (request.to_owned(), title.to_owned(), state.to_owned());
    JobEventData::Permission { request, title, state }
}
