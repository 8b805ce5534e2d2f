//! The fetch cache: when each topic was fetched, whether it is stale, what is in flight, why a fetch failed.

use std::{
    collections::{BTreeMap, HashMap},
    mem::Discriminant,
};

use cynode_core::ids::{ApprovalId, JobId, ProjectId, PullRequestId, TaskId, WaitId};
use time::{Duration, OffsetDateTime};

use crate::failure::CliError;

/// A topic that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FetchTopic {
    /// The authenticated user.
    Me,
    /// The projects, for their names.
    Projects,
    /// The newest tasks that match the filter.
    Tasks(TaskListQuery),
    /// The page of tasks after a cursor.
    More(TaskListQuery, String),
    /// All running tasks, for their waits.
    Running,
    /// The cost of each task.
    Costs,
    /// The timeline of a task.
    Timeline(TaskId),
    /// The plan of a waiting task; another wait has another plan.
    Plan(ProjectId, TaskId, WaitId),
    /// The preview of that plan: workers, models, possible cost.
    Before(ProjectId, TaskId, WaitId),
    /// The evidence of a task.
    Evidence(TaskId),
    /// The events of a job.
    Log(JobId),
    /// The changed files of a pull request.
    Files(PullRequestId),
    /// The diff of one of them.
    Diff(PullRequestId, String),
    /// The unoffered changes of a task.
    Work(TaskId),
    /// The tool calls that wait for approval.
    Approvals,
    /// One of them, with its arguments.
    Approval(ApprovalId),
    /// The pull requests of one project, or of all.
    Pulls(Option<ProjectId>),
    /// One of them, with its checks and comments.
    Pull(PullRequestId),
    /// The repository of a project.
    Repository(ProjectId),
    /// The models.
    Models,
    /// The nodes.
    Nodes,
    /// The readiness checks.
    Readiness,
    /// The budgets.
    Budgets,
    /// Spending by project.
    ByProject,
    /// Spending by model.
    ByModel,
}

/// The filter of the task list.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskListQuery {
    /// Only tasks in this state.
    pub(super) state: Option<String>,
    /// Only tasks of this project.
    pub(super) project: Option<String>,
}

/// The fetch status of one topic.
#[derive(Clone, Debug, Default)]
struct FetchStatus {
    /// Time of the last success.
    got: Option<OffsetDateTime>,
    /// Time at which the last attempt ended.
    tried: Option<OffsetDateTime>,
    /// Whether a relevant event happened since the last fetch.
    old: bool,
    failure: Option<CliError>,
    failures: u32,
}

/// Minimum interval between two fetches of a topic.
const MIN_REFETCH_INTERVAL: Duration = Duration::milliseconds(300);

/// Duration after which a fetch is shown as in progress.
const SLOW_FETCH_THRESHOLD: Duration = Duration::milliseconds(500);

/// The fetch status of all topics.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchCache {
    marks: BTreeMap<FetchTopic, FetchStatus>,
    underway: HashMap<Discriminant<FetchTopic>, (FetchTopic, OffsetDateTime)>,
}

impl FetchCache {
    /// Returns whether a topic should be fetched now. At most one fetch of each kind is in flight.
    pub(super) fn is_fetch_due(
        &self,
        topic: &FetchTopic,
        period: Option<Duration>,
        now: OffsetDateTime,
    ) -> bool {
        if self.underway.contains_key(&std::mem::discriminant(topic)) {
            return false;
        }
        let Some(mark) = self.marks.get(topic) else { return true };
        let since = |then: Option<OffsetDateTime>| then.map(|then| now - then);
        let rested = |least| since(mark.tried).is_none_or(|it| it >= least);
        if mark.failures > 0 {
            return rested(Duration::seconds(2 * i64::from(mark.failures.min(8))));
        }
        (mark.old && rested(MIN_REFETCH_INTERVAL))
            || period.is_some_and(|period| since(mark.got).is_none_or(|it| it >= period))
    }

    /// Marks a topic as in flight.
    pub(super) fn start_fetch(&mut self, topic: &FetchTopic, now: OffsetDateTime) {
        self.underway.insert(std::mem::discriminant(topic), (topic.clone(), now));
        self.marks.entry(topic.clone()).or_default().old = false;
    }

    /// Records the result of a fetch.
    pub(super) fn finish_fetch(
        &mut self,
        topic: &FetchTopic,
        now: OffsetDateTime,
        failure: Option<CliError>,
    ) {
        let kind = std::mem::discriminant(topic);
        if self.underway.get(&kind).is_some_and(|(asked, _)| asked == topic) {
            self.underway.remove(&kind);
        }
        let mark = self.marks.entry(topic.clone()).or_default();
        mark.tried = Some(now);
        if failure.is_some() {
            mark.failures += 1;
            mark.old = true;
        } else {
            mark.failures = 0;
            mark.got = Some(now);
        }
        mark.failure = failure;
    }

    /// Marks matching topics as stale.
    pub(super) fn mark_stale(&mut self, which: impl Fn(&FetchTopic) -> bool) {
        let marks = self.marks.iter_mut().filter(|(topic, _)| which(topic));
        marks.for_each(|(_, mark)| mark.old = true);
    }

    /// Discards fetches in flight and failures, and marks everything as stale.
    pub(super) fn reset_all(&mut self) {
        self.underway.clear();
        for mark in self.marks.values_mut() {
            (mark.old, mark.tried, mark.failures, mark.failure) = (true, None, 0, None);
        }
    }

    /// Returns whether a topic was ever fetched.
    pub(super) fn has_fetched(&self, topic: &FetchTopic) -> bool {
        self.marks.get(topic).is_some_and(|mark| mark.got.is_some())
    }

    /// Returns the last failure of a topic.
    pub(super) fn last_failure(&self, topic: &FetchTopic) -> Option<&CliError> {
        self.marks.get(topic)?.failure.as_ref()
    }

    /// Returns whether a fetch has been in flight long enough to show it.
    pub(super) fn is_fetch_slow(&self, topic: &FetchTopic, now: OffsetDateTime) -> bool {
        let underway = self.underway.get(&std::mem::discriminant(topic));
        underway
            .is_some_and(|(asked, since)| asked == topic && now - *since >= SLOW_FETCH_THRESHOLD)
    }

    /// Returns whether any fetch has.
    pub(super) fn has_slow_fetch(&self, now: OffsetDateTime) -> bool {
        self.underway.values().any(|(_, since)| now - *since >= SLOW_FETCH_THRESHOLD)
    }

    /// Removes topics whose data is no longer stored.
    pub(super) fn evict_topics(&mut self, which: impl Fn(&FetchTopic) -> bool) {
        self.marks.retain(|topic, _| !which(topic));
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::failure::CliErrorKind;

    const NOW: OffsetDateTime = datetime!(2026-11-01 12:00 UTC);

    fn after(milliseconds: i64) -> OffsetDateTime {
        NOW + Duration::milliseconds(milliseconds)
    }

    #[test]
    fn of_each_kind_one_is_under_way_at_most() {
        let mut shelf = FetchCache::default();
        let (one, other) = (
            FetchTopic::More(TaskListQuery::default(), "a".into()),
            FetchTopic::More(TaskListQuery::default(), "b".into()),
        );
        assert!(shelf.is_fetch_due(&one, None, NOW));
        shelf.start_fetch(&one, NOW);
        assert!(!shelf.is_fetch_due(&one, None, NOW));
        assert!(!shelf.is_fetch_due(&other, None, NOW));
        assert!(shelf.is_fetch_due(&FetchTopic::Nodes, None, NOW));
        shelf.finish_fetch(&one, NOW, None);
        assert!(shelf.is_fetch_due(&other, None, NOW));
        assert!(!shelf.is_fetch_due(&one, None, after(60_000)), "nothing happened since");
    }

    #[test]
    fn many_events_are_one_question_and_those_that_come_meanwhile_one_more() {
        let mut shelf = FetchCache::default();
        shelf.start_fetch(&FetchTopic::Approvals, NOW);
        shelf.mark_stale(|_| true);
        shelf.mark_stale(|_| true);
        shelf.finish_fetch(&FetchTopic::Approvals, after(50), None);
        assert!(!shelf.is_fetch_due(&FetchTopic::Approvals, None, after(100)), "too soon");
        assert!(shelf.is_fetch_due(&FetchTopic::Approvals, None, after(350)));
        shelf.start_fetch(&FetchTopic::Approvals, after(350));
        shelf.finish_fetch(&FetchTopic::Approvals, after(400), None);
        assert!(!shelf.is_fetch_due(&FetchTopic::Approvals, None, after(9_000)));
    }

    #[test]
    fn what_changes_without_an_event_is_asked_for_after_its_time() {
        let mut shelf = FetchCache::default();
        shelf.start_fetch(&FetchTopic::Nodes, NOW);
        shelf.finish_fetch(&FetchTopic::Nodes, NOW, None);
        let period = Some(Duration::seconds(5));
        assert!(!shelf.is_fetch_due(&FetchTopic::Nodes, period, after(4_900)));
        assert!(shelf.is_fetch_due(&FetchTopic::Nodes, period, after(5_000)));
    }

    #[test]
    fn what_fails_is_asked_for_less_and_less_often() {
        let mut shelf = FetchCache::default();
        for wait in [2_000, 4_000, 6_000] {
            shelf.start_fetch(&FetchTopic::Nodes, NOW);
            shelf.finish_fetch(
                &FetchTopic::Nodes,
                NOW,
                Some(CliError::new(CliErrorKind::Refused, "no")),
            );
            assert!(!shelf.is_fetch_due(&FetchTopic::Nodes, None, after(wait - 1)), "{wait}");
            assert!(shelf.is_fetch_due(&FetchTopic::Nodes, None, after(wait)), "{wait}");
        }
        assert!(
            shelf.last_failure(&FetchTopic::Nodes).is_some()
                && !shelf.has_fetched(&FetchTopic::Nodes)
        );
        shelf.reset_all();
        assert!(
            shelf.is_fetch_due(&FetchTopic::Nodes, None, NOW)
                && shelf.last_failure(&FetchTopic::Nodes).is_none()
        );
    }

    #[test]
    fn only_what_takes_long_is_told_to_be_on_its_way() {
        let mut shelf = FetchCache::default();
        shelf.start_fetch(&FetchTopic::Nodes, NOW);
        assert!(
            !shelf.is_fetch_slow(&FetchTopic::Nodes, after(400))
                && !shelf.has_slow_fetch(after(400))
        );
        assert!(
            shelf.is_fetch_slow(&FetchTopic::Nodes, after(500)) && shelf.has_slow_fetch(after(500))
        );
        assert!(!shelf.is_fetch_slow(&FetchTopic::Budgets, after(500)));
    }
}
