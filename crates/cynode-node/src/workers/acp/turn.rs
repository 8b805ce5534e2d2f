//! One turn of an agent: from what it is told to its end, whatever that is.

use std::{sync::Arc, time::Duration};

use agent_client_protocol_schema::v1::{
    ContentBlock, PermissionOption, PermissionOptionId, PermissionOptionKind, PromptRequest,
    PromptResponse, RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse,
    SelectedPermissionOutcome, SessionNotification, StopReason,
};
use cynode_wire::nodes::Happened;
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
    super::{Order, Repetition, Turn, inside::tell, stops},
    Agent,
    updates::Updates,
    wire::Incoming,
};

/// How often lines are told that wait for more.
const FLUSH: Duration = Duration::from_millis(500);
/// The most questions to people that are open at once.
const MOST_OPEN: usize = 8;
/// What an agent is told after a pause.
const GO_ON: &str = "You were paused. Go on where you stopped, and do nothing twice.";

/// What comes after a prompt has ended.
enum After {
    /// The turn is over.
    Over(Turn),
    /// The agent is told this next.
    Tell(String),
    /// It waits until it may go on.
    Pause,
}

/// Why the agent was told to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    /// For this reason, and then the turn is over.
    Stop(&'static str),
    /// To be told something else.
    Tell(String),
    /// To wait.
    Pause,
}

/// A question to a person.
struct Question {
    id: Value,
    request: String,
    title: String,
    options: Vec<PermissionOption>,
}

/// What is known in the course of a prompt.
struct Course {
    prompt: u64,
    updates: Updates,
    repetition: Repetition,
    questions: FuturesUnordered<BoxFuture<'static, (u64, bool)>>,
    asked: Vec<(u64, Question)>,
    /// Why it was told to stop, and until when it may take.
    ending: Option<(Ending, Option<Instant>)>,
    heard: Instant,
    tick: Interval,
}

impl Agent {
    /// Has the agent work until its turn is over, with as many prompts as people's orders make of it.
    pub(super) async fn work(&mut self, text: &str, orders: &mut mpsc::Receiver<Order>) -> Turn {
        let mut next = text.to_owned();
        loop {
            if self.over {
                return self.crashed(&Updates::default());
            }
            match self.prompt_once(next, orders).await {
                After::Over(turn) => return turn,
                After::Tell(text) => next = text,
                After::Pause => match self.paused(orders).await {
                    Ok(text) => next = text,
                    Err(stop) => return Turn { stop: stop.into(), ..Turn::default() },
                },
            }
        }
    }

    /// Waits while there is a pause: what the agent is told after it, or why there is no after.
    async fn paused(&mut self, orders: &mut mpsc::Receiver<Order>) -> Result<String, &'static str> {
        self.note("The agent is paused.").await;
        loop {
            let order = tokio::select! {
                order = orders.recv() => order,
                () = sleep_until(self.limits.until) => return Err(stops::TIMEOUT),
            };
            match order {
                Some(Order::Pause) => {}
                Some(Order::Continue) => return Ok(GO_ON.into()),
                Some(Order::Tell(text)) => return Ok(text),
                Some(Order::Cancel) | None => return Err(stops::CANCELLED),
            }
        }
    }

    async fn prompt_once(&mut self, text: String, orders: &mut mpsc::Receiver<Order>) -> After {
        let content = vec![ContentBlock::from(text.clone())];
        let ask = PromptRequest::new(self.session.clone(), content);
        let mut tick = interval_at(Instant::now() + FLUSH, FLUSH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut course = Course {
            prompt: self.wire.request("session/prompt", &ask),
            updates: Updates::default(),
            repetition: Repetition::new(self.limits.repeats),
            questions: FuturesUnordered::new(),
            asked: Vec::new(),
            ending: None,
            heard: Instant::now(),
            tick,
        };
        tell(&self.events, Happened::Told { text }).await;
        let after = loop {
            if let Some(after) = self.step(&mut course, orders).await {
                break after;
            }
        };
        let left = course.updates.flush().into_iter().chain(self.wire.flush()).collect();
        self.tell_all(left).await;
        after
    }

    /// Waits for whatever comes next and deals with it; what comes after the prompt, when it is over.
    async fn step(
        &mut self,
        course: &mut Course,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Option<After> {
        let deadline = course.deadline(self.limits.until, self.limits.inactive);
        tokio::select! {
            incoming = self.wire.next() => self.incoming(course, incoming).await,
            Some(order) = orders.recv(), if course.ending.is_none() => {
                self.order(course, order).await;
                None
            }
            Some((number, allowed)) = course.questions.next() => {
                self.answered(course, number, allowed).await;
                None
            }
            _ = course.tick.tick() => {
                let told = course.updates.flush_lines();
                self.tell_all(told.into_iter().collect()).await;
                None
            }
            () = sleep_until(deadline) => self.late(course),
        }
    }

    async fn incoming(&mut self, course: &mut Course, incoming: Incoming) -> Option<After> {
        match incoming {
            Incoming::Answer { id, answer } if id == course.prompt => {
                return Some(self.ended(course, answer));
            }
            Incoming::Answer { .. } => {}
            Incoming::Notification { method, params } => {
                course.heard = Instant::now();
                if method == "session/update" {
                    self.update(course, params).await;
                }
            }
            Incoming::Request { id, method, params } => {
                course.heard = Instant::now();
                if method == "session/request_permission" {
                    self.question(course, id, params).await;
                } else {
                    self.refuse(&id, &method);
                }
            }
            // Noise is no sign of work.
            Incoming::Stray(told) => self.tell_all(told).await,
            Incoming::TooLong(bytes) => tell(&self.events, Happened::Truncated { bytes }).await,
            Incoming::Gone => {
                self.over = true;
                return Some(match &course.ending {
                    Some((Ending::Stop(stop), _)) => After::Over(over(course, stop)),
                    _ => After::Over(self.crashed(&course.updates)),
                });
            }
        }
        None
    }

    async fn update(&mut self, course: &mut Course, params: Value) {
        let Ok(update) = serde_json::from_value::<SessionNotification>(params) else {
            return;
        };
        // Agents below the agent have sessions of their own; what they do shows in what they change.
        if update.session_id != self.session {
            return;
        }
        let told = course.updates.take(update.update);
        self.tell_all(told).await;
        let mut stuck = false;
        for done in std::mem::take(&mut course.updates.done) {
            stuck |= course.repetition.stuck_after(done);
        }
        if stuck && course.ending.is_none() {
            self.stop(course, Ending::Stop(stops::NO_PROGRESS));
        }
    }

    /// Asks a person what the agent asks, be it told to ask or not: nobody says yes in a person's place.
    async fn question(&mut self, course: &mut Course, id: Value, params: Value) {
        let Ok(request) = serde_json::from_value::<RequestPermissionRequest>(params) else {
            self.wire.refuse(&id, -32602, "this is not a request for permission");
            return;
        };
        if course.ending.is_some() {
            self.wire
                .answer(&id, &RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled));
            return;
        }
        let named = request.tool_call.tool_call_id.to_string();
        let told = course.updates.flush();
        self.tell_all(told.into_iter().collect()).await;
        let room = course.asked.len() < MOST_OPEN;
        let Some((title, input)) = course.updates.asked(&request.tool_call).filter(|_| room) else {
            self.decide(&id, &request.options, false);
            let title = request.tool_call.fields.title.unwrap_or_default();
            tell(&self.events, permission(&named, &title, "refused")).await;
            return;
        };
        let number = course.asked.last().map_or(0, |(number, _)| number + 1);
        tell(&self.events, permission(&named, &title, "asked")).await;
        let permissions = Arc::clone(&self.permissions);
        let asked = title.clone();
        let answer = async move { (number, permissions.ask(asked, input).await) };
        course.questions.push(answer.boxed());
        let question = Question { id, request: named, title, options: request.options };
        course.asked.push((number, question));
    }

    /// Passes on what a person answered.
    async fn answered(&mut self, course: &mut Course, number: u64, allowed: bool) {
        course.heard = Instant::now();
        let Some(at) = course.asked.iter().position(|(asked, _)| *asked == number) else {
            return;
        };
        let (_, question) = course.asked.remove(at);
        self.decide(&question.id, &question.options, allowed);
        let state = if allowed { "allowed" } else { "refused" };
        tell(&self.events, permission(&question.request, &question.title, state)).await;
    }

    /// Tells the agent whether it may.
    fn decide(&mut self, id: &Value, options: &[PermissionOption], allowed: bool) {
        let outcome = match chosen(options, allowed) {
            Some(option) => {
                RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option))
            }
            // It offers no way to say so: then it may not.
            None => RequestPermissionOutcome::Cancelled,
        };
        self.wire.answer(id, &RequestPermissionResponse::new(outcome));
    }

    async fn order(&mut self, course: &mut Course, order: Order) {
        match order {
            Order::Cancel => self.stop(course, Ending::Stop(stops::CANCELLED)),
            Order::Tell(text) => self.stop(course, Ending::Tell(text)),
            Order::Pause => self.stop(course, Ending::Pause),
            Order::Continue => self.note("It is not paused.").await,
        }
    }

    /// Tells the agent to stop, and why that is for us.
    fn stop(&mut self, course: &mut Course, ending: Ending) {
        self.cancel();
        for (_, question) in course.asked.drain(..) {
            let cancelled = RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled);
            self.wire.answer(&question.id, &cancelled);
        }
        course.questions.clear();
        course.ending = Some((ending, Some(Instant::now() + self.limits.grace)));
    }

    /// Something took too long.
    fn late(&mut self, course: &mut Course) -> Option<After> {
        let out_of_time = Instant::now() >= self.limits.until;
        match &mut course.ending {
            Some((Ending::Stop(stop), _)) => {
                let stop = *stop;
                return Some(After::Over(over(course, stop)));
            }
            // It did not stop, so it is told when it has ended by itself.
            Some((_, grace @ Some(_))) if !out_of_time => *grace = None,
            _ => {
                let why = if out_of_time { stops::TIMEOUT } else { stops::INACTIVE };
                self.stop(course, Ending::Stop(why));
            }
        }
        None
    }

    /// The agent says that the prompt is over.
    fn ended(&mut self, course: &Course, answer: Result<Value, String>) -> After {
        let ending = course.ending.as_ref().map(|(ending, _)| ending.clone());
        let usage = answer.as_ref().map(|answer| answer["usage"].clone()).unwrap_or_default();
        let mut turn = match (ending, answer) {
            (Some(Ending::Tell(text)), _) => return After::Tell(text),
            (Some(Ending::Pause), _) => return After::Pause,
            (Some(Ending::Stop(stop)), _) => over(course, stop),
            (None, Ok(answer)) => match serde_json::from_value::<PromptResponse>(answer) {
                Ok(answer) => over(course, stop_of(answer.stop_reason)),
                Err(error) => Turn {
                    said: format!("{} ended its turn with nonsense: {error}", self.name),
                    ..over(course, stops::FAILED)
                },
            },
            (None, Err(told)) => Turn { said: told, ..over(course, stops::FAILED) },
        };
        turn.usage = usage;
        After::Over(turn)
    }

    /// The agent ended in the middle.
    fn crashed(&mut self, updates: &Updates) -> Turn {
        let strays = self.wire.strays();
        let why = if strays.is_empty() { updates.said().to_owned() } else { strays };
        let said = format!("{} ended in the middle of its turn. {why}", self.name);
        Turn { stop: stops::CRASHED.into(), said: said.trim_end().to_owned(), ..Turn::default() }
    }
}

impl Course {
    /// When something has taken too long. Whoever waits for a person is not inactive.
    fn deadline(&self, until: Instant, inactive: Duration) -> Instant {
        match &self.ending {
            Some((Ending::Stop(_), Some(grace))) => *grace,
            Some((_, Some(grace))) => (*grace).min(until),
            _ if !self.asked.is_empty() => until,
            _ => until.min(self.heard + inactive),
        }
    }
}

/// A turn that is over for a reason.
fn over(course: &Course, stop: &str) -> Turn {
    Turn { stop: stop.into(), said: course.updates.said().to_owned(), ..Turn::default() }
}

const fn stop_of(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndTurn => stops::END_TURN,
        StopReason::Refusal => stops::REFUSED,
        StopReason::Cancelled => stops::CANCELLED,
        StopReason::MaxTokens | StopReason::MaxTurnRequests => stops::LIMIT,
        _ => stops::FAILED,
    }
}

/// The option that says what the person said, and only for this time where there is such a one.
fn chosen(options: &[PermissionOption], allowed: bool) -> Option<PermissionOptionId> {
    use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let wanted = if allowed { [AllowOnce, AllowAlways] } else { [RejectOnce, RejectAlways] };
    let of = |kind| options.iter().find(|option| option.kind == kind);
    wanted.into_iter().find_map(of).map(|option| option.option_id.clone())
}

fn permission(request: &str, title: &str, state: &str) -> Happened {
    let (request, title, state) = (request.to_owned(), title.to_owned(), state.to_owned());
    Happened::Permission { request, title, state }
}
