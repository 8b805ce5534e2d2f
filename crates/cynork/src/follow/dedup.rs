//! Deduplication of task updates. Pure: it takes the present data and returns the new updates.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::workflow::{
    decisions::{IssueScope, WorkClass, workflow_stages},
    evidence::{BaseChecks, EvidenceState, EvidenceView},
    handoffs::{HandoffAnswer, HandoffKind, HandoffState, PlanAnswer},
    reports::ReportView,
    timeline::JobEntry,
    waits::WaitReason,
};
use cynode_wire::{
    manager::handoffs::HandoffView,
    nodes::JobEventView,
    tools::ApprovalView,
    workflow::timeline::{PullRequestEntry, TaskTimeline},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use time::OffsetDateTime;

use super::{JobUpdate, TaskUpdate, TimedUpdate};

/// The updates that were already reported.
#[derive(Debug, Default)]
pub(super) struct UpdateDedup {
    class: Option<WorkClass>,
    scope: Option<IssueScope>,
    workflow: bool,
    planned: bool,
    handoffs: BTreeSet<String>,
    last: Option<TaskTimeline>,
    steps: i64,
    /// The waits whose begin was reported, and those whose end was, by time.
    waits: BTreeSet<OffsetDateTime>,
    waited: BTreeSet<OffsetDateTime>,
    jobs: BTreeMap<String, JobReadPosition>,
    reports: BTreeSet<String>,
    evidence: BTreeSet<(String, bool)>,
    base_checks: Option<BaseChecks>,
    approvals: BTreeSet<String>,
    pull_request: Option<PullRequestEntry>,
    cost: Option<u64>,
    held: Option<String>,
}

/// The read position in the events of a job.
#[derive(Debug, Default)]
struct JobReadPosition {
    next: u64,
    whole: bool,
}

impl UpdateDedup {
    /// Returns whether the timeline differs from the last one.
    pub(super) fn has_changed(&self, timeline: &TaskTimeline) -> bool {
        self.last.as_ref() != Some(timeline)
    }

    /// Returns whether a plan was reported.
    pub(super) const fn has_plan(&self) -> bool {
        self.planned
    }

    /// Returns class and scope from the decisions of the project manager so far.
    pub(super) fn collect_decisions(&mut self, handoffs: &[HandoffView]) -> Vec<TimedUpdate> {
        let mut news = Vec::new();
        // The list is newest first, and the earliest decision counts.
        let plans = handoffs.iter().rev().filter(|it| it.kind == HandoffKind::Plan);
        for handoff in plans {
            let at = handoff.created_at;
            for decision in &handoff.decisions {
                let Some(output) = &decision.output else { continue };
                let reason = output["reason"].as_str().unwrap_or_default().to_owned();
                match decision.kind.as_str() {
                    "classify" => news.extend(self.collect_class(
                        parse_enum_word(&output["class"]),
                        reason,
                        at,
                    )),
                    "assess_scope" => news.extend(self.collect_scope(
                        parse_enum_word(&output["scope"]),
                        reason,
                        at,
                    )),
                    _ => {}
                }
            }
            news.extend(self.collect_workflow(at));
        }
        news.extend(self.collect_blocker(handoffs));
        news
    }

    /// Returns the blocker of the latest handoff: an exhausted budget, an unavailable provider.
    fn collect_blocker(&mut self, handoffs: &[HandoffView]) -> Option<TimedUpdate> {
        let open = handoffs.iter().find(|it| it.ended_at.is_none());
        let why = open.and_then(|it| it.failure.clone());
        (self.held != why).then(|| {
            self.held.clone_from(&why);
            TaskUpdate::Held(why).into_current()
        })
    }

    fn collect_class(
        &mut self,
        class: Option<WorkClass>,
        why: String,
        at: OffsetDateTime,
    ) -> Option<TimedUpdate> {
        let class = class.filter(|_| self.class.is_none())?;
        self.class = Some(class);
        Some(TaskUpdate::Class(class, why).at_time(at))
    }

    fn collect_scope(
        &mut self,
        scope: Option<IssueScope>,
        why: String,
        at: OffsetDateTime,
    ) -> Option<TimedUpdate> {
        let scope = scope.filter(|_| self.scope.is_none())?;
        self.scope = Some(scope);
        Some(TaskUpdate::Scope(scope, why).at_time(at))
    }

    /// Returns the workflow, which follows from class and scope.
    fn collect_workflow(&mut self, at: OffsetDateTime) -> Option<TimedUpdate> {
        let (class, scope) = (self.class?, self.scope?);
        (!std::mem::replace(&mut self.workflow, true))
            .then(|| TaskUpdate::Workflow(workflow_stages(class, scope)).at_time(at))
    }

    /// Returns the handoffs whose answers are unreported, oldest first.
    pub(super) fn unreported_handoffs(&self, handoffs: &[HandoffView]) -> Vec<String> {
        let done = handoffs.iter().rev().filter(|it| {
            matches!(it.kind, HandoffKind::Plan | HandoffKind::Dispatch)
                && it.state == HandoffState::Done
        });
        let ids = done.map(|it| it.handoff_id.to_string());
        ids.filter(|id| !self.handoffs.contains(id)).collect()
    }

    /// Returns the updates of a handoff.
    pub(super) fn collect_handoff(&mut self, whole: &HandoffView) -> Vec<TimedUpdate> {
        self.handoffs.insert(whole.handoff_id.to_string());
        let at = whole.ended_at.unwrap_or(whole.created_at);
        match whole.answer.as_deref() {
            Some(HandoffAnswer::Planned(planned)) => self.collect_plan(planned, at),
            Some(HandoffAnswer::Assigned { assignments }) => {
                vec![TaskUpdate::Assigned(assignments.clone()).at_time(at)]
            }
            _ => Vec::new(),
        }
    }

    fn collect_plan(&mut self, planned: &PlanAnswer, at: OffsetDateTime) -> Vec<TimedUpdate> {
        self.planned = true;
        let mut news = Vec::new();
        news.extend(self.collect_class(Some(planned.class), String::new(), at));
        news.extend(self.collect_scope(Some(planned.scope), String::new(), at));
        news.extend(self.collect_workflow(at));
        news.push(TaskUpdate::Plan(Box::new(planned.clone())).at_time(at));
        news
    }

    /// Returns steps, waits, and the pull request.
    pub(super) fn collect_timeline(&mut self, timeline: &TaskTimeline) -> Vec<TimedUpdate> {
        let mut news = Vec::new();
        for step in timeline.steps.iter().filter(|step| step.sequence > self.steps) {
            news.push(TaskUpdate::Step(step.clone()).at_time(step.at));
        }
        self.steps = timeline.steps.last().map_or(self.steps, |step| step.sequence);
        for wait in &timeline.waits {
            let told = self.waits.contains(&wait.opened_at);
            let Some(ended) = wait.resolved_at else {
                if self.waits.insert(wait.opened_at) {
                    news.push(TaskUpdate::Wait(wait.clone()).at_time(wait.opened_at));
                }
                continue;
            };
            if (told || is_question(wait.reason)) && self.waited.insert(wait.opened_at) {
                news.push(TaskUpdate::Waited(wait.clone()).at_time(ended));
            }
        }
        if timeline.pull_request != self.pull_request {
            self.pull_request.clone_from(&timeline.pull_request);
            news.extend(
                timeline.pull_request.clone().map(|it| TaskUpdate::PullRequest(it).into_current()),
            );
        }
        self.last = Some(timeline.clone());
        news
    }

    /// Returns the jobs with unread events.
    pub(super) fn open_jobs(&self, timeline: &TaskTimeline) -> Vec<JobEntry> {
        let whole =
            |job: &&JobEntry| self.jobs.get(&job.job_id.to_string()).is_some_and(|read| read.whole);
        // A job that has not started has no events.
        let begun = timeline.jobs.iter().filter(|job| job.started_at.is_some());
        begun.filter(|job| !whole(job)).cloned().collect()
    }

    /// Returns the number of a job's next event.
    pub(super) fn next_event(&self, job: &JobEntry) -> u64 {
        self.jobs.get(&job.job_id.to_string()).map_or(0, |read| read.next)
    }

    /// Returns the new events of a job; `more` if there are more to fetch.
    pub(super) fn collect_job_events(
        &mut self,
        job: &JobEntry,
        events: Vec<JobEventView>,
        more: bool,
    ) -> Vec<TimedUpdate> {
        let name = self.last.as_ref().map_or_else(|| job.unit.clone(), |it| job_name(it, job));
        let read = self.jobs.entry(job.job_id.to_string()).or_default();
        // The job had ended before the fetch, so this is the rest.
        read.whole = job.ended_at.is_some() && !more;
        let mut news = Vec::new();
        let from = read.next;
        for event in events.into_iter().filter(|event| event.number >= from) {
            read.next = event.number + 1;
            let at = event.at;
            let it = JobUpdate { job: job.clone(), name: name.clone(), event };
            news.push(TaskUpdate::Job(Box::new(it)).at_time(at));
        }
        news
    }

    /// Returns the new reports of agents.
    pub(super) fn collect_reports(&mut self, reports: Vec<ReportView>) -> Vec<TimedUpdate> {
        let new = reports.into_iter().filter(|it| self.reports.insert(it.report_id.to_string()));
        let told = |report: ReportView| {
            let at = report.reported_at;
            TaskUpdate::Report(Box::new(report)).at_time(at)
        };
        new.map(told).collect()
    }

    /// Returns the results of the checks before any change; again after a retry.
    pub(super) fn collect_base_checks(&mut self, base: BaseChecks) -> Option<TimedUpdate> {
        if base.state == EvidenceState::Gathering || self.base_checks.as_ref() == Some(&base) {
            return None;
        }
        let at = base.ended_at.unwrap_or(base.opened_at);
        self.base_checks = Some(base.clone());
        Some(TaskUpdate::BaseChecks(Box::new(base)).at_time(at))
    }

    /// Returns check results: once when they are complete, and again when a person has overridden them.
    pub(super) fn collect_evidence(&mut self, shown: Vec<EvidenceView>) -> Vec<TimedUpdate> {
        let new = shown.into_iter().filter(|view| {
            let name = (view.evidence_id.to_string(), view.waived.is_some());
            view.state != EvidenceState::Gathering && self.evidence.insert(name)
        });
        let told = |view: EvidenceView| {
            let at = view.ended_at.unwrap_or(view.opened_at);
            TaskUpdate::Evidence(Box::new(view)).at_time(at)
        };
        new.map(told).collect()
    }

    /// Returns the unreported tool calls of this task that wait for approval; only of running jobs, since ended ones do not
    /// wait for them.
    pub(super) fn unreported_approvals(
        &mut self,
        timeline: &TaskTimeline,
        waiting: &[ApprovalView],
    ) -> Vec<String> {
        let running = timeline.jobs.iter().filter(|job| job.ended_at.is_none());
        let Some(since) = running.filter_map(|job| job.started_at).min() else { return Vec::new() };
        let ours = waiting.iter().filter(|it| it.task_id == Some(timeline.task_id));
        let ours = ours.filter(|it| it.asked_at >= since);
        let ids: Vec<String> = ours.map(|it| it.approval_id.to_string()).collect();
        ids.into_iter().filter(|id| self.approvals.insert(id.clone())).collect()
    }

    /// Returns the cost, if it has changed.
    pub(super) fn collect_cost(&mut self, micros: u64) -> Option<TimedUpdate> {
        (self.cost.replace(micros) != Some(micros)).then(|| TaskUpdate::Cost(micros).into_current())
    }
}

/// Parses an enum value; `None` if it is unknown.
fn parse_enum_word<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

/// Returns whether the wait is a question that is reported even if it was answered before the first poll.
const fn is_question(reason: WaitReason) -> bool {
    matches!(reason, WaitReason::Approval | WaitReason::HumanInput | WaitReason::Paused)
}

/// Returns the name of a job: the job after the work of an attempt runs its checks.
pub fn job_name(timeline: &TaskTimeline, job: &JobEntry) -> String {
    let mut before = timeline.jobs.iter().take_while(|it| it.job_id != job.job_id);
    // Before any change there are only checks.
    if job.attempt > 0 && before.any(|it| it.unit == job.unit && it.attempt == job.attempt) {
        format!("checks of {}", job.unit)
    } else {
        job.unit.clone()
    }
}
