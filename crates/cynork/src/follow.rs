//! What happens to a task, as it happens: each thing once and in order, from its class to its pull request.
//!
//! The event stream says that something has happened, the task itself says what: whoever is killed on the way, the question is asked
//! again, and the stream goes on behind the last event that was heard.

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

/// How often the task is looked at though nothing was heard of it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before the stream is asked for again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(300);

/// Most events of a job in one answer.
const MAX_JOB_EVENTS: usize = 500;

/// After how many looks it is asked for what may have changed though nothing shows it: the cost of work, what thinking waits for.
const POLLS_PER_SLOW_POLL: u32 = 5;

/// Something new about a task.
#[derive(Clone, Debug)]
pub enum TaskUpdate {
    /// What kind of work it is, and why.
    Class(WorkClass, String),
    /// How much it touches, and why.
    Scope(IssueScope, String),
    /// The stages that such work has.
    Workflow(&'static [PipelineStage]),
    /// The plan, or another one in its place.
    Plan(Box<PlanAnswer>),
    /// Who does which unit, and with what models.
    Assigned(Vec<WorkAssignment>),
    /// A step of its run.
    Step(StepEntry),
    /// It waits; again after a look at it that found another question.
    Wait(WaitEntry),
    /// That wait has ended.
    Waited(WaitEntry),
    /// Something happened in a job.
    Job(Box<JobUpdate>),
    /// What an agent says. A claim.
    Report(Box<ReportView>),
    /// What the checks came to before any change.
    BaseChecks(Box<BaseChecks>),
    /// What checks showed.
    Evidence(Box<EvidenceView>),
    /// A call of a tool waits for a person; with its arguments.
    Approval(Box<ApprovalView>),
    /// What it was delivered as, or another state of it.
    PullRequest(PullRequestEntry),
    /// What it has cost so far, in millionths.
    Cost(u64),
    /// Why the project manager gets nowhere for now, or that it goes on; it tries again by itself.
    Held(Option<String>),
    /// Where it stands, whenever that has changed.
    Standing(Box<TaskTimeline>),
    /// Nobody answers; it is asked again.
    Away(String),
    /// Somebody answers again.
    Back,
    /// It has ended; nothing follows.
    Ended(Box<TaskTimeline>),
}

/// News, and when it happened.
#[derive(Clone, Debug)]
pub struct TimedUpdate {
    /// When; none for what holds now.
    pub at: Option<OffsetDateTime>,
    /// What.
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

/// Something that happened in a job.
#[derive(Clone, Debug)]
pub struct JobUpdate {
    /// The job.
    pub job: JobEntry,
    /// What people call it: its unit, or the checks of its unit.
    pub name: String,
    /// What happened.
    pub event: JobEventView,
}

/// A task that is followed. Dropped, nothing is asked any more.
#[derive(Debug)]
pub struct TaskUpdateStream {
    news: mpsc::UnboundedReceiver<Result<TimedUpdate>>,
    _stop: DropGuard,
}

impl TaskUpdateStream {
    /// Follows a task, by its id.
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

    /// The next news; `None` behind the end. Given up in between, nothing is lost.
    pub async fn next(&mut self) -> Option<Result<TimedUpdate>> {
        self.news.recv().await
    }
}

/// What the stream of a task brings.
#[derive(Debug)]
pub enum StreamSignal {
    /// Something has happened.
    Event,
    /// The server ended the stream and said why.
    Interrupted(CliError),
}

/// Says that something has happened to a task. Cut off, it goes on behind the last event that was heard.
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
            Err(failure) if failure.is_transient() => continue,
            // Whoever may not listen can still look.
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

/// Who looks at the task.
struct TaskPoller {
    client: ApiClient,
    task: String,
    tell: mpsc::UnboundedSender<Result<TimedUpdate>>,
    seen: UpdateDedup,
    /// What was found in this look.
    found: Vec<TimedUpdate>,
    looks: u32,
    /// The stream was ended by a failure, and nobody has answered since.
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

    /// An interruption is told once; the next answer says that it is over.
    fn handle_signal(&self, signal: StreamSignal) {
        if let StreamSignal::Interrupted(failure) = signal
            && failure.is_transient()
            && !self.interrupted.swap(true, Ordering::SeqCst)
        {
            let _ = self.tell.send(Ok(TaskUpdate::Away(failure.detail).into_current()));
        }
    }

    /// Asks, again and again while nobody answers; that nobody does, and that somebody does again, is told once.
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

    /// Looks at everything that may have changed; whether it has ended.
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

    /// Tells what was found in the order in which it happened; what holds now comes last.
    fn send_updates(&mut self) {
        self.found.sort_by_key(|told| (told.at.is_none(), told.at));
        for told in self.found.drain(..) {
            // Nobody listens any more: then nobody looks any more either.
            let _ = self.tell.send(Ok(told));
        }
    }

    /// What the project manager thought: class, scope, plans, who does what.
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

    /// What happened in a job since the last look; whether anything did.
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
            // Answered in between, it need not be asked any more.
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

    /// What models were paid for it, or what its steps say if that is more.
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

/// What was found; nothing when it is not there any more or not for this person.
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
