//! What was asked for: when it came, whether it is old, what is under way, why it did not come.

use std::{
    collections::{BTreeMap, HashMap},
    mem::Discriminant,
};

use cynode_core::ids::{ApprovalId, JobId, ProjectId, PullRequestId, TaskId, WaitId};
use time::{Duration, OffsetDateTime};

use crate::failure::CliError;

/// Something that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FetchTopic {
    /// Who is asking.
    Me,
    /// The projects, for their names.
    Projects,
    /// The newest tasks that are looked for.
    Tasks(TaskListQuery),
    /// Those behind a page.
    More(TaskListQuery, String),
    /// All that run, for what they wait for.
    Running,
    /// What each task cost.
    Costs,
    /// The story of a task.
    Timeline(TaskId),
    /// The plan that a task waits with; another wait is for another plan.
    Plan(ProjectId, TaskId, WaitId),
    /// Who will carry that plan out, with what models, and what it may cost.
    Before(ProjectId, TaskId, WaitId),
    /// What was shown of a task.
    Evidence(TaskId),
    /// What happened in a job.
    Log(JobId),
    /// The files that a pull request changes.
    Files(PullRequestId),
    /// What it changes in one of them.
    Diff(PullRequestId, String),
    /// What the work on a task has changed that is not offered.
    Work(TaskId),
    /// The calls that wait.
    Approvals,
    /// One of them, with its arguments.
    Approval(ApprovalId),
    /// The pull requests of one project, or of all.
    Pulls(Option<ProjectId>),
    /// One of them, with what was checked and said.
    Pull(PullRequestId),
    /// What a project has of its repository.
    Repository(ProjectId),
    /// The models.
    Models,
    /// The nodes.
    Nodes,
    /// Whether work can be done.
    Readiness,
    /// Ceilings on spending.
    Budgets,
    /// What projects spent.
    ByProject,
    /// What models cost.
    ByModel,
}

/// Which tasks the server is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskListQuery {
    /// Only in this state.
    pub(super) state: Option<String>,
    /// Only of this project.
    pub(super) project: Option<String>,
}

/// What is known of asking for one topic.
#[derive(Clone, Debug, Default)]
struct FetchStatus {
    /// When it last came.
    got: Option<OffsetDateTime>,
    /// When a try last ended.
    tried: Option<OffsetDateTime>,
    /// Whether something happened since it was last asked for.
    old: bool,
    failure: Option<CliError>,
    failures: u32,
}

/// What is asked for again and again is not asked for more often.
const MIN_REFETCH_INTERVAL: Duration = Duration::milliseconds(300);

/// What takes longer is worth a sign that it is on its way.
const SLOW_FETCH_THRESHOLD: Duration = Duration::milliseconds(500);

/// All that was asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchCache {
    marks: BTreeMap<FetchTopic, FetchStatus>,
    underway: HashMap<Discriminant<FetchTopic>, (FetchTopic, OffsetDateTime)>,
}

impl FetchCache {
    /// Whether a topic should be asked for now. Of each kind one is under way at most.
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

    /// It is asked for.
    pub(super) fn start_fetch(&mut self, topic: &FetchTopic, now: OffsetDateTime) {
        self.underway.insert(std::mem::discriminant(topic), (topic.clone(), now));
        self.marks.entry(topic.clone()).or_default().old = false;
    }

    /// It came, or not.
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

    /// Something happened since those were asked for.
    pub(super) fn mark_stale(&mut self, which: impl Fn(&FetchTopic) -> bool) {
        let marks = self.marks.iter_mut().filter(|(topic, _)| which(topic));
        marks.for_each(|(_, mark)| mark.old = true);
    }

    /// Whatever was asked for will not be answered; all is old, and failures are forgotten.
    pub(super) fn reset_all(&mut self) {
        self.underway.clear();
        for mark in self.marks.values_mut() {
            (mark.old, mark.tried, mark.failures, mark.failure) = (true, None, 0, None);
        }
    }

    /// Whether it ever came.
    pub(super) fn has_fetched(&self, topic: &FetchTopic) -> bool {
        self.marks.get(topic).is_some_and(|mark| mark.got.is_some())
    }

    /// Why it did not come the last time.
    pub(super) fn last_failure(&self, topic: &FetchTopic) -> Option<&CliError> {
        self.marks.get(topic)?.failure.as_ref()
    }

    /// Whether it is on its way for so long that people should be told.
    pub(super) fn is_fetch_slow(&self, topic: &FetchTopic, now: OffsetDateTime) -> bool {
        let underway = self.underway.get(&std::mem::discriminant(topic));
        underway
            .is_some_and(|(asked, since)| asked == topic && now - *since >= SLOW_FETCH_THRESHOLD)
    }

    /// Whether anything is.
    pub(super) fn has_slow_fetch(&self, now: OffsetDateTime) -> bool {
        self.underway.values().any(|(_, since)| now - *since >= SLOW_FETCH_THRESHOLD)
    }

    /// Forgets topics that nothing is kept of any more.
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
