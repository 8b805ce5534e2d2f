//! The updates of a task as they happen: each once and in order, from its class to its pull request.
//!
//! The event stream signals that something has changed, and the poller reads the task itself. After any failure the request is
//! repeated, and the stream resumes after the last received event.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cynode_core::{
    tasks::TaskStateName,
    workflow::{
        decisions::{IssueScope, PipelineStage, WorkClass},
        evidence::{BaseChecks, EvidenceView},
        handoffs::{PlanAnswer, WorkAssignment},
        reports::ReportView,
        timeline::{JobEntry, StepEntry, WaitEntry},
        waits::WaitReason,
    },
};
use cynode_wire::{
    delivery::evidence::TaskEvidence,
    manager::handoffs::HandoffView,
    models::UsageSum,
    nodes::JobEventView,
    tasks::TaskView,
    tools::ApprovalView,
    workflow::timeline::{PullRequestEntry, TaskTimeline},
};
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use self::dedup::job_name;

use self::dedup::UpdateDedup;
use crate::{
    client::{
        ApiClient, ApiRequest, CliError, CliErrorKind, ListResponse, Result, STREAM_IDLE_TIMEOUT,
    },
    operations,
};

/// Interval at which the task is polled without an event.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before the stream is reopened.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(300);

/// Delay before the stream is opened again when the account has too many. Meanwhile the task is polled.
const LIMITED_INTERVAL: Duration = Duration::from_secs(5);

/// Status of a response that asks for fewer requests.
const TOO_MANY_REQUESTS: u16 = 429;

/// Maximum number of job events in one response.
const MAX_JOB_EVENTS: usize = 500;

/// Number of polls between two requests for values that change without an event: the cost of work, and the blocker of a
/// decision.
const POLLS_PER_SLOW_POLL: u32 = 5;

/// An update of a task.
#[derive(Clone, Debug)]
pub enum TaskUpdate {
    /// Its class of work, and the reason.
    Class(WorkClass, String),
    /// Its scope, and the reason.
    Scope(IssueScope, String),
    /// The stages of its workflow.
    Workflow(&'static [PipelineStage]),
    /// The plan, or a replacement.
    Plan(Box<PlanAnswer>),
    /// The workers and models of the units.
    Assigned(Vec<WorkAssignment>),
    /// A step of its run.
    Step(StepEntry),
    /// A wait began; repeated if its question changed.
    Wait(WaitEntry),
    /// That wait has ended.
    Waited(WaitEntry),
    /// An event of a job.
    Job(Box<JobUpdate>),
    /// A report of an agent. A report is a claim.
    Report(Box<ReportView>),
    /// Results of the checks before any change.
    BaseChecks(Box<BaseChecks>),
    /// Results of checks.
    Evidence(Box<EvidenceView>),
    /// A tool call waits for approval; with its arguments.
    Approval(Box<ApprovalView>),
    /// Its pull request, or a new state of it.
    PullRequest(PullRequestEntry),
    /// Its cost so far, in millionths.
    Cost(u64),
    /// Why the project manager is blocked, or that it continues; it retries by itself.
    Held(Option<String>),
    /// Its timeline, whenever it has changed.
    Standing(Box<TaskTimeline>),
    /// The server does not respond; requests are retried.
    Away(String),
    /// The server responds again.
    Back,
    /// It has ended; no update follows.
    Ended(Box<TaskTimeline>),
}

/// An update and its time.
#[derive(Clone, Debug)]
pub struct TimedUpdate {
    /// Time of the update; `None` for the present state.
    pub at: Option<OffsetDateTime>,
    /// The update.
    pub news: TaskUpdate,
}

impl TaskUpdate {
    const fn at_time(self, at: OffsetDateTime) -> TimedUpdate {
        TimedUpdate { at: Some(at), news: self }
    }

    const fn into_current(self) -> TimedUpdate {
        TimedUpdate { at: None, news: self }
    }
}

/// An event of a job.
#[derive(Clone, Debug)]
pub struct JobUpdate {
    /// The job.
    pub job: JobEntry,
    /// Name of the job: its unit, or the checks of its unit.
    pub name: String,
    /// The event.
    pub event: JobEventView,
}

/// The updates of a followed task. Dropping it stops all requests.
#[derive(Debug)]
pub struct TaskUpdateStream {
    news: mpsc::UnboundedReceiver<Result<TimedUpdate>>,
    _stop: DropGuard,
}

impl TaskUpdateStream {
    /// Follows a task by its id.
    pub fn follow_task(client: ApiClient, task: impl Into<String>) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let task = task.into();
        let (call, heard) = mpsc::unbounded_channel();
        let tracker = TaskTracker::new();
        let ears = forward_task_events(client.clone(), task.clone(), call);
        let looking = TaskPoller {
            client,
            task,
            tell,
            seen: UpdateDedup::default(),
            found: Vec::new(),
            looks: 0,
            interrupted: AtomicBool::new(false),
        }
        .poll_task(heard);
        tracker.spawn(stop.clone().run_until_cancelled_owned(ears));
        tracker.spawn(stop.clone().run_until_cancelled_owned(looking));
        Self { news, _stop: stop.drop_guard() }
    }

    /// Returns the next update; `None` after the end. Cancellation-safe.
    pub async fn next(&mut self) -> Option<Result<TimedUpdate>> {
        self.news.recv().await
    }
}

/// A signal of a task's event stream.
#[derive(Debug)]
pub enum StreamSignal {
    /// An event arrived.
    Event,
    /// The server ended the stream with an error.
    Interrupted(CliError),
}

/// Signals events of a task. After a disconnection, it resumes after the last received event.
pub async fn forward_task_events(
    client: ApiClient,
    task: String,
    tell: mpsc::UnboundedSender<StreamSignal>,
) {
    let mut last = "0.0".to_owned();
    let mut turn = tokio::time::interval(RECONNECT_INTERVAL);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !tell.is_closed() {
        turn.tick().await;
        let call = ApiRequest::with_path_params(operations::FOLLOW_EVENTS, [""; 0])
            .with_query("task_id", Some(&task))
            .with_query("after", Some(&last));
        let mut events = match client.open_event_stream(&call).await {
            Ok(events) => events.with_idle_timeout(STREAM_IDLE_TIMEOUT),
            Err(failure) if failure.is_transient() => {
                if failure.status == Some(TOO_MANY_REQUESTS) {
                    turn.reset_after(LIMITED_INTERVAL);
                }
                continue;
            }
            // A person who may not subscribe can still poll.
            Err(_) => return,
        };
        while let Some(heard) = events.next().await {
            if !heard.id.is_empty() {
                last = heard.id;
            }
            if tell.send(StreamSignal::Event).is_err() {
                return;
            }
        }
        if let Some(failure) = events.take_error() {
            let _ = tell.send(StreamSignal::Interrupted(failure));
        }
    }
}

/// Polls a task.
struct TaskPoller {
    client: ApiClient,
    task: String,
    tell: mpsc::UnboundedSender<Result<TimedUpdate>>,
    seen: UpdateDedup,
    /// The updates of this poll.
    found: Vec<TimedUpdate>,
    looks: u32,
    /// Whether the stream was ended by an error, and no response has arrived since.
    interrupted: AtomicBool,
}

impl TaskPoller {
    async fn poll_task(mut self, mut heard: mpsc::UnboundedReceiver<StreamSignal>) {
        if let Err(failure) = self.poll_until_final(&mut heard).await {
            let _ = self.tell.send(Err(failure));
        }
    }

    async fn poll_until_final(
        &mut self,
        heard: &mut mpsc::UnboundedReceiver<StreamSignal>,
    ) -> Result<()> {
        let task: TaskView = self
            .fetch_with_retry(&ApiRequest::with_path_params(operations::GET_TASK, [&self.task]))
            .await?;
        let project = task.project_id.to_string();
        let mut turn = tokio::time::interval(POLL_INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deaf = false;
        loop {
            let ended = self.poll_changes(&project).await?;
            if ended {
                return Ok(());
            }
            tokio::select! {
                signal = heard.recv(), if !deaf => match signal {
                    Some(signal) => self.handle_signal(signal),
                    None => deaf = true,
                },
                _ = turn.tick() => {}
            }
            while let Ok(signal) = heard.try_recv() {
                self.handle_signal(signal);
            }
        }
    }

    /// Reports an interruption once; the next response reports its end.
    fn handle_signal(&self, signal: StreamSignal) {
        if let StreamSignal::Interrupted(failure) = signal
            && failure.is_transient()
            && !self.interrupted.swap(true, Ordering::SeqCst)
        {
            let _ = self.tell.send(Ok(TaskUpdate::Away(failure.detail).into_current()));
        }
    }

    /// Sends a request and retries while there is no response; the outage and its end are reported once.
    async fn fetch_with_retry<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        let mut away = self.interrupted.swap(false, Ordering::SeqCst);
        let answer = self.client.send_with_retry_hook(call, |failure| {
            if !away {
                away = true;
                let _ = self.tell.send(Ok(TaskUpdate::Away(failure.detail.clone()).into_current()));
            }
        });
        let answer = answer.await;
        if away {
            let _ = self.tell.send(Ok(TaskUpdate::Back.into_current()));
        }
        answer
    }

    /// Polls everything that may have changed. Returns whether the task has ended.
    async fn poll_changes(&mut self, project: &str) -> Result<bool> {
        let timeline: TaskTimeline = self
            .fetch_with_retry(&ApiRequest::with_path_params(
                operations::TASK_TIMELINE,
                [&self.task],
            ))
            .await?;
        let changed = self.seen.has_changed(&timeline);
        self.looks += 1;
        let thinking = timeline
            .waits
            .last()
            .is_some_and(|wait| wait.reason == WaitReason::Agent && wait.resolved_at.is_none());
        let seldom = self.looks.is_multiple_of(POLLS_PER_SLOW_POLL);
        if changed || !self.seen.has_plan() || thinking && seldom {
            self.poll_handoffs(project).await?;
        }
        if changed {
            self.found.extend(self.seen.collect_timeline(&timeline));
        }
        let mut happened = false;
        for job in self.seen.open_jobs(&timeline) {
            happened |= self.poll_job_events(&job).await?;
        }
        if changed || happened {
            self.poll_reports().await?;
        }
        let working = timeline.jobs.iter().any(|job| job.state == "running");
        if working {
            self.poll_approvals(&timeline).await?;
        }
        if changed || working && seldom {
            self.poll_cost(timeline.cost_micros).await?;
        }
        let ended = match timeline.state {
            TaskStateName::Queued | TaskStateName::Running => false,
            TaskStateName::Completed | TaskStateName::Failed | TaskStateName::Cancelled => true,
        };
        self.send_updates();
        if changed {
            let _ =
                self.tell.send(Ok(TaskUpdate::Standing(Box::new(timeline.clone())).into_current()));
        }
        if ended {
            let _ = self.tell.send(Ok(TaskUpdate::Ended(Box::new(timeline)).into_current()));
        }
        Ok(ended)
    }

    /// Sends the updates in order of time; those of the present state come last.
    fn send_updates(&mut self) {
        self.found.sort_by_key(|told| (told.at.is_none(), told.at));
        for told in self.found.drain(..) {
            // Without a receiver the poller stops.
            let _ = self.tell.send(Ok(told));
        }
    }

    /// Polls the decisions of the project manager: class, scope, plans, assignments.
    async fn poll_handoffs(&mut self, project: &str) -> Result<()> {
        let call = ApiRequest::with_path_params(operations::LIST_HANDOFFS, [project])
            .with_query("task_id", Some(&self.task))
            .with_query("limit", Some(200));
        let listed: Result<ListResponse<HandoffView>> = self.fetch_with_retry(&call).await;
        let listed = match skip_inaccessible(listed)? {
            Some(listed) => listed.items,
            None => return Ok(()),
        };
        self.found.extend(self.seen.collect_decisions(&listed));
        for id in self.seen.unreported_handoffs(&listed) {
            let whole: HandoffView = self
                .fetch_with_retry(&ApiRequest::with_path_params(operations::GET_HANDOFF, [&id]))
                .await?;
            self.found.extend(self.seen.collect_handoff(&whole));
        }
        Ok(())
    }

    /// Polls the events of a job. Returns whether there were any.
    async fn poll_job_events(&mut self, job: &JobEntry) -> Result<bool> {
        let mut happened = false;
        loop {
            let call =
                ApiRequest::with_path_params(operations::JOB_EVENTS, [job.job_id.to_string()])
                    .with_query("from", Some(self.seen.next_event(job)))
                    .with_query("limit", Some(MAX_JOB_EVENTS));
            let events: ListResponse<JobEventView> = self.fetch_with_retry(&call).await?;
            let full = events.items.len() == MAX_JOB_EVENTS;
            happened |= !events.items.is_empty();
            self.found.extend(self.seen.collect_job_events(job, events.items, full));
            if !full {
                return Ok(happened);
            }
        }
    }

    async fn poll_reports(&mut self) -> Result<()> {
        let call = ApiRequest::with_path_params(operations::LIST_REPORTS, [&self.task]);
        let reports: ListResponse<ReportView> = self.fetch_with_retry(&call).await?;
        self.found.extend(self.seen.collect_reports(reports.items));
        let call = ApiRequest::with_path_params(operations::TASK_EVIDENCE, [&self.task]);
        let shown: TaskEvidence = self.fetch_with_retry(&call).await?;
        self.found.extend(shown.base.and_then(|base| self.seen.collect_base_checks(base)));
        self.found.extend(self.seen.collect_evidence(shown.evidence));
        Ok(())
    }

    async fn poll_approvals(&mut self, timeline: &TaskTimeline) -> Result<()> {
        let call = ApiRequest::with_path_params(operations::LIST_APPROVALS, [""; 0]);
        let Some(waiting) =
            skip_inaccessible(self.fetch_with_retry::<ListResponse<ApprovalView>>(&call).await)?
        else {
            return Ok(());
        };
        for id in self.seen.unreported_approvals(timeline, &waiting.items) {
            // A call that was decided in between needs no answer.
            let call = ApiRequest::with_path_params(operations::GET_APPROVAL, [&id]);
            if let Some(whole) =
                skip_inaccessible(self.fetch_with_retry::<ApprovalView>(&call).await)?
                && whole.state == "asked"
            {
                let asked = whole.asked_at;
                self.found.push(TaskUpdate::Approval(Box::new(whole)).at_time(asked));
            }
        }
        Ok(())
    }

    /// Polls the cost of its model calls, or uses that of its steps if it is higher.
    async fn poll_cost(&mut self, steps: u64) -> Result<()> {
        let call = ApiRequest::with_path_params(operations::SUM_USAGE, [""; 0])
            .with_query("task_id", Some(&self.task))
            .with_query("by", Some("model"));
        let used = skip_inaccessible(self.fetch_with_retry::<ListResponse<UsageSum>>(&call).await)?;
        let used = used.map_or(0, |sums| crate::draw::sum_cost_micros(&sums.items));
        self.found.extend(self.seen.collect_cost(used.max(steps)));
        Ok(())
    }
}

/// Returns `None` if the object is gone or not visible to the person.
fn skip_inaccessible<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(CliError { kind: CliErrorKind::Refused | CliErrorKind::NotFound, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

mod dedup;
#[cfg(test)]
mod tests;
