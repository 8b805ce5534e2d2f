//! What happens to a task, as it happens: each thing once and in order, from its class to its pull request.
//!
//! The event stream says that something has happened, the task itself says what: whoever is killed on the way, the question is asked
//! again, and the stream goes on behind the last event that was heard.

mod seen;

use std::time::Duration;

use cynode_core::{
    judgement::{IssueScope, Stage, WorkClass},
    tasks::TaskStateName,
    workflow::waits::WaitReason,
};
use cynode_wire::{
    evidence::{EvidenceView, TaskEvidence},
    gate::ApprovalView,
    handoffs::{Assigned, HandoffView, Planned},
    models::UsageSum,
    nodes::JobEventView,
    reports::ReportView,
    tasks::TaskView,
    timeline::{JobEntry, PullRequestEntry, StepEntry, Timeline, WaitEntry},
};
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use self::seen::job_name;

use self::seen::Seen;
use crate::{
    client::{Call, Client, Failure, Items, Kind, Result, SILENCE},
    operations,
};

/// How often the task is looked at though nothing was heard of it.
const POLL: Duration = Duration::from_secs(1);

/// The pause before the stream is asked for again.
const PAUSE: Duration = Duration::from_millis(300);

/// Most events of a job in one answer.
const MOST_EVENTS: usize = 500;

/// After how many looks it is asked for what may have changed though nothing shows it: the cost of work, what thinking waits for.
const SELDOM: u32 = 5;

/// Something new about a task.
#[derive(Clone, Debug)]
pub enum News {
    /// What kind of work it is, and why.
    Class(WorkClass, String),
    /// How much it touches, and why.
    Scope(IssueScope, String),
    /// The stages that such work has.
    Workflow(&'static [Stage]),
    /// The plan, or another one in its place.
    Plan(Box<Planned>),
    /// Who does which unit, and with what models.
    Assigned(Vec<Assigned>),
    /// A step of its run.
    Step(StepEntry),
    /// It waits; again after a look at it that found another question.
    Wait(WaitEntry),
    /// That wait has ended.
    Waited(WaitEntry),
    /// Something happened in a job.
    Job(Box<InJob>),
    /// What an agent says. A claim.
    Report(Box<ReportView>),
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
    Standing(Box<Timeline>),
    /// Nobody answers; it is asked again.
    Away(String),
    /// Somebody answers again.
    Back,
    /// It has ended; nothing follows.
    Ended(Box<Timeline>),
}

/// News, and when it happened.
#[derive(Clone, Debug)]
pub struct Told {
    /// When; none for what holds now.
    pub at: Option<OffsetDateTime>,
    /// What.
    pub news: News,
}

impl News {
    const fn at(self, at: OffsetDateTime) -> Told {
        Told { at: Some(at), news: self }
    }

    const fn now(self) -> Told {
        Told { at: None, news: self }
    }
}

/// Something that happened in a job.
#[derive(Clone, Debug)]
pub struct InJob {
    /// The job.
    pub job: JobEntry,
    /// What people call it: its unit, or the checks of its unit.
    pub name: String,
    /// What happened.
    pub event: JobEventView,
}

/// A task that is followed. Dropped, nothing is asked any more.
#[derive(Debug)]
pub struct Follow {
    news: mpsc::UnboundedReceiver<Result<Told>>,
    _stop: DropGuard,
}

impl Follow {
    /// Follows a task, by its id.
    pub fn begin(client: Client, task: impl Into<String>) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let task = task.into();
        let (call, heard) = mpsc::unbounded_channel();
        let tracker = TaskTracker::new();
        let ears = listen(client.clone(), task.clone(), call);
        let looking =
            Eyes { client, task, tell, seen: Seen::default(), found: Vec::new(), looks: 0 }
                .watch(heard);
        tracker.spawn(stop.clone().run_until_cancelled_owned(ears));
        tracker.spawn(stop.clone().run_until_cancelled_owned(looking));
        Self { news, _stop: stop.drop_guard() }
    }

    /// The next news; `None` behind the end. Given up in between, nothing is lost.
    pub async fn next(&mut self) -> Option<Result<Told>> {
        self.news.recv().await
    }
}

/// Says that something has happened to a task. Cut off, it goes on behind the last event that was heard.
pub async fn listen(client: Client, task: String, tell: mpsc::UnboundedSender<String>) {
    let mut last = "0.0".to_owned();
    let mut turn = tokio::time::interval(PAUSE);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !tell.is_closed() {
        turn.tick().await;
        let call = Call::to(operations::FOLLOW_EVENTS, [""; 0])
            .query("task_id", Some(&task))
            .query("after", Some(&last));
        let mut events = match client.events(&call).await {
            Ok(events) => events.at_most_silent(SILENCE),
            Err(failure) if failure.may_pass() => continue,
            // Whoever may not listen can still look.
            Err(_) => return,
        };
        while let Some(heard) = events.next().await {
            if !heard.id.is_empty() {
                last = heard.id;
            }
            if tell.send(heard.event).is_err() {
                return;
            }
        }
    }
}

/// Who looks at the task.
struct Eyes {
    client: Client,
    task: String,
    tell: mpsc::UnboundedSender<Result<Told>>,
    seen: Seen,
    /// What was found in this look.
    found: Vec<Told>,
    looks: u32,
}

impl Eyes {
    async fn watch(mut self, mut heard: mpsc::UnboundedReceiver<String>) {
        if let Err(failure) = self.until_ended(&mut heard).await {
            let _ = self.tell.send(Err(failure));
        }
    }

    async fn until_ended(&mut self, heard: &mut mpsc::UnboundedReceiver<String>) -> Result<()> {
        let task: TaskView = self.ask(&Call::to(operations::GET_TASK, [&self.task])).await?;
        let project = task.project_id.to_string();
        let mut turn = tokio::time::interval(POLL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deaf = false;
        loop {
            let ended = self.look(&project).await?;
            if ended {
                return Ok(());
            }
            tokio::select! {
                kind = heard.recv(), if !deaf => deaf = kind.is_none(),
                _ = turn.tick() => {}
            }
            while heard.try_recv().is_ok() {}
        }
    }

    /// Asks, again and again while nobody answers; that nobody does, and that somebody does again, is told once.
    async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T> {
        let mut away = false;
        let answer = self.client.patiently(call, |failure| {
            if !away {
                away = true;
                let _ = self.tell.send(Ok(News::Away(failure.detail.clone()).now()));
            }
        });
        let answer = answer.await;
        if away {
            let _ = self.tell.send(Ok(News::Back.now()));
        }
        answer
    }

    /// Looks at everything that may have changed; whether it has ended.
    async fn look(&mut self, project: &str) -> Result<bool> {
        let timeline: Timeline =
            self.ask(&Call::to(operations::TASK_TIMELINE, [&self.task])).await?;
        let changed = self.seen.is_other(&timeline);
        self.looks += 1;
        let thinking = timeline
            .waits
            .last()
            .is_some_and(|wait| wait.reason == WaitReason::Agent && wait.resolved_at.is_none());
        let seldom = self.looks.is_multiple_of(SELDOM);
        if changed || !self.seen.is_planned() || thinking && seldom {
            self.handoffs(project).await?;
        }
        if changed {
            self.found.extend(self.seen.timeline(&timeline));
        }
        let mut happened = false;
        for job in self.seen.open_jobs(&timeline) {
            happened |= self.job(&job).await?;
        }
        if changed || happened {
            self.reports().await?;
        }
        let working = timeline.jobs.iter().any(|job| job.state == "running");
        if working {
            self.approvals(&timeline).await?;
        }
        if changed || working && seldom {
            self.cost(timeline.cost_micros).await?;
        }
        let ended = match timeline.state {
            TaskStateName::Queued | TaskStateName::Running => false,
            TaskStateName::Completed | TaskStateName::Failed | TaskStateName::Cancelled => true,
        };
        self.tell_found();
        if changed {
            let _ = self.tell.send(Ok(News::Standing(Box::new(timeline.clone())).now()));
        }
        if ended {
            let _ = self.tell.send(Ok(News::Ended(Box::new(timeline)).now()));
        }
        Ok(ended)
    }

    /// Tells what was found in the order in which it happened; what holds now comes last.
    fn tell_found(&mut self) {
        self.found.sort_by_key(|told| (told.at.is_none(), told.at));
        for told in self.found.drain(..) {
            // Nobody listens any more: then nobody looks any more either.
            let _ = self.tell.send(Ok(told));
        }
    }

    /// What the project manager thought: class, scope, plans, who does what.
    async fn handoffs(&mut self, project: &str) -> Result<()> {
        let call = Call::to(operations::LIST_HANDOFFS, [project])
            .query("task_id", Some(&self.task))
            .query("limit", Some(200));
        let listed: Result<Items<HandoffView>> = self.ask(&call).await;
        let listed = match allowed(listed)? {
            Some(listed) => listed.items,
            None => return Ok(()),
        };
        self.found.extend(self.seen.thoughts(&listed));
        for id in self.seen.untold(&listed) {
            let whole: HandoffView = self.ask(&Call::to(operations::GET_HANDOFF, [&id])).await?;
            self.found.extend(self.seen.handoff(&whole));
        }
        Ok(())
    }

    /// What happened in a job since the last look; whether anything did.
    async fn job(&mut self, job: &JobEntry) -> Result<bool> {
        let mut happened = false;
        loop {
            let call = Call::to(operations::JOB_EVENTS, [job.job_id.to_string()])
                .query("from", Some(self.seen.next_event(job)))
                .query("limit", Some(MOST_EVENTS));
            let events: Items<JobEventView> = self.ask(&call).await?;
            let full = events.items.len() == MOST_EVENTS;
            happened |= !events.items.is_empty();
            self.found.extend(self.seen.events(job, events.items, full));
            if !full {
                return Ok(happened);
            }
        }
    }

    async fn reports(&mut self) -> Result<()> {
        let call = Call::to(operations::LIST_REPORTS, [&self.task]);
        let reports: Items<ReportView> = self.ask(&call).await?;
        self.found.extend(self.seen.reports(reports.items));
        let call = Call::to(operations::TASK_EVIDENCE, [&self.task]);
        let shown: TaskEvidence = self.ask(&call).await?;
        self.found.extend(self.seen.evidence(shown.evidence));
        Ok(())
    }

    async fn approvals(&mut self, timeline: &Timeline) -> Result<()> {
        let call = Call::to(operations::LIST_APPROVALS, [""; 0]);
        let Some(waiting) = allowed(self.ask::<Items<ApprovalView>>(&call).await)? else {
            return Ok(());
        };
        for id in self.seen.unasked(timeline, &waiting.items) {
            // Answered in between, it need not be asked any more.
            let call = Call::to(operations::GET_APPROVAL, [&id]);
            if let Some(whole) = allowed(self.ask::<ApprovalView>(&call).await)?
                && whole.state == "asked"
            {
                let asked = whole.asked_at;
                self.found.push(News::Approval(Box::new(whole)).at(asked));
            }
        }
        Ok(())
    }

    /// What models were paid for it, or what its steps say if that is more.
    async fn cost(&mut self, steps: u64) -> Result<()> {
        let call = Call::to(operations::SUM_USAGE, [""; 0])
            .query("task_id", Some(&self.task))
            .query("by", Some("model"));
        let used = allowed(self.ask::<Items<UsageSum>>(&call).await)?;
        let used = used.map_or(0, |sums| spent(&sums.items));
        self.found.extend(self.seen.cost(used.max(steps)));
        Ok(())
    }
}

/// What calls of models cost together, in millionths.
pub fn spent(sums: &[UsageSum]) -> u64 {
    sums.iter().map(|sum| u64::try_from(sum.cost_micros).unwrap_or(0)).sum()
}

/// What was found; nothing when it is not there any more or not for this person.
fn allowed<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Failure { kind: Kind::Refused | Kind::NotFound, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests;
