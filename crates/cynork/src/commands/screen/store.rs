//! The client-side data store, and its updates by events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cynode_core::{
    budget::Currency,
    events::{EventKind, EventView},
    ids::{ApprovalId, JobId, ProjectId, PullRequestId, TaskId, WaitId},
    tasks::TaskStateName,
    workflow::{handoffs::PlanAnswer, timeline::WaitEntry, units::UnitView, waits::WaitReason},
};
use cynode_wire::{
    delivery::{
        ChangedFiles, DiffView, PullRequestDetail, PullRequestView, TaskDiff,
        evidence::TaskEvidence,
    },
    identity::accounts::MeView,
    models::{BudgetStatusView, ModelView, UsageSum},
    nodes::{JobEventView, NodeView, RepositoryView},
    platform::health::{Readiness, ReadinessCheck, ReadinessStatus},
    tasks::{TaskView, projects::ProjectView},
    tools::ApprovalView,
    workflow::timeline::TaskTimeline,
};
use time::OffsetDateTime;

use super::{
    cache::{FetchCache, FetchTopic, TaskListQuery},
    text,
};
use crate::{client::ListResponse, draw, terminal::Colorizer};

/// The result of a fetch.
#[derive(Clone, Debug)]
pub(super) enum TopicAnswer {
    /// The authenticated user.
    Me(Box<MeView>),
    /// The projects.
    Projects(Vec<ProjectView>),
    /// A page of tasks.
    Tasks(ListResponse<TaskView>),
    /// Usage sums.
    Sums(Vec<UsageSum>),
    /// The timeline of a task.
    Timeline(Box<TaskTimeline>),
    /// The plan of a waiting task, if the project manager made it.
    Plan(Option<Box<PlanAnswer>>),
    /// The preview of that plan, as named lines.
    Before(Vec<(&'static str, String)>),
    /// The evidence of a task.
    Evidence(Box<TaskEvidence>),
    /// Events of a job, and whether there may be more.
    Log(Vec<JobEventView>, bool),
    /// Changed files.
    Files(ChangedFiles),
    /// The diff of one file.
    Diff(DiffView),
    /// The unoffered changes of a task, if there are any.
    Work(Option<Box<TaskDiff>>),
    /// Tool calls that wait for approval.
    Approvals(Vec<ApprovalView>),
    /// One tool call with its arguments.
    Approval(Box<ApprovalView>),
    /// Pull requests, newest first.
    Pulls(Vec<PullRequestView>),
    /// One pull request, with its checks and comments.
    Pull(Box<PullRequestDetail>),
    /// The repository, if the project has one.
    Repository(Option<RepositoryView>),
    /// The models.
    Models(Vec<ModelView>),
    /// The nodes.
    Nodes(Vec<NodeView>),
    Readiness(Readiness),
    /// The budgets.
    Budgets(Vec<BudgetStatusView>),
}

/// The wait of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskWait {
    /// Id of the wait; an answer names it.
    pub(super) id: WaitId,
    /// Reason of the wait.
    pub(super) reason: WaitReason,
    /// The question to the person.
    pub(super) question: Option<String>,
    /// Start of the wait.
    pub(super) since: OffsetDateTime,
    /// Name of the task.
    pub(super) name: String,
    /// Project of the task.
    pub(super) project: Option<ProjectId>,
}

/// An item of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InboxItem {
    /// A plan of a task.
    Plan(TaskId),
    /// A question of a task.
    Question(TaskId),
    /// A tool call.
    Call(ApprovalId),
}

impl InboxItem {
    /// Returns the task, if the task itself waits.
    pub(super) const fn waiting_task(self) -> Option<TaskId> {
        match self {
            Self::Plan(task) | Self::Question(task) => Some(task),
            Self::Call(_) => None,
        }
    }
}

/// A small cache by key; the oldest entries are evicted first.
#[derive(Clone, Debug)]
pub(super) struct RecentCache<K, V>(Vec<(K, V)>);

impl<K, V> Default for RecentCache<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Maximum number of entries.
const MAX_CACHED_ENTRIES: usize = 16;

impl<K: PartialEq, V> RecentCache<K, V> {
    /// Returns an entry.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.0.iter().find(|(it, _)| it == key).map(|(_, value)| value)
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.iter_mut().find(|(it, _)| it == key).map(|(_, value)| value)
    }

    fn insert_entry(&mut self, key: K, value: V) {
        self.0.retain(|(it, _)| *it != key);
        if self.0.len() >= MAX_CACHED_ENTRIES {
            self.0.remove(0);
        }
        self.0.push((key, value));
    }
}

/// The source of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogSource {
    /// Message or reasoning of the agent.
    Agent,
    /// Action of the agent.
    Deed,
    /// Standard output of a program.
    Program,
    /// Standard error of a program.
    Complaint,
    /// Message of the system.
    System,
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogLine {
    /// Milliseconds since the job was claimed; on the first line of an event.
    pub(super) at: Option<u64>,
    /// Source of the line.
    pub(super) voice: LogSource,
    /// Text of the line.
    pub(super) text: String,
}

/// The events of a job, as lines.
#[derive(Clone, Debug, Default)]
pub(super) struct JobLog {
    /// The stored lines.
    pub(super) lines: VecDeque<LogLine>,
    /// Number of dropped lines.
    pub(super) dropped: usize,
    /// The number of the next event to fetch.
    pub(super) next: u64,
}

/// Maximum number of stored lines of a log.
const MAX_LOG_LINES: usize = 5000;

/// Maximum length of one line.
const MAX_LOG_LINE_CELLS: usize = 8000;

impl JobLog {
    fn append_events(&mut self, events: &[JobEventView]) {
        for event in events.iter().filter(|it| it.number >= self.next).collect::<Vec<_>>() {
            self.next = event.number + 1;
            let voice = log_source_of(event);
            for (at, line) in draw::render_job_event(event, Colorizer(false)).iter().enumerate() {
                let at = (at == 0).then_some(event.at_ms);
                let text =
                    text::truncate_to_cells(&text::sanitize_for_display(line), MAX_LOG_LINE_CELLS);
                self.lines.push_back(LogLine { at, voice, text });
            }
        }
        while self.lines.len() > MAX_LOG_LINES {
            self.lines.pop_front();
            self.dropped += 1;
        }
    }
}

/// Returns the source of an event's text.
fn log_source_of(event: &JobEventView) -> LogSource {
    match event.event.as_str() {
        "message" | "reasoning" => LogSource::Agent,
        "tool" | "permission" => LogSource::Deed,
        "output" if event.data["stream"] == "stderr" => LogSource::Complaint,
        "output" => LogSource::Program,
        _ => LogSource::System,
    }
}

/// The client-side data.
#[derive(Clone, Debug, Default)]
pub(super) struct ScreenStore {
    /// The authenticated user.
    pub(super) me: Option<MeView>,
    /// Names of projects.
    pub(super) projects: BTreeMap<ProjectId, String>,
    /// Projects, by name.
    pub(super) project_views: Vec<ProjectView>,
    pub(super) repositories: RecentCache<ProjectId, Option<RepositoryView>>,
    /// Pull requests, newest first.
    pub(super) pulls: Vec<PullRequestView>,
    pub(super) pull_details: RecentCache<PullRequestId, PullRequestDetail>,
    pub(super) models: Vec<ModelView>,
    /// Tasks, listed or not.
    pub(super) tasks: BTreeMap<TaskId, TaskView>,
    /// The listed tasks.
    pub(super) listed: BTreeSet<TaskId>,
    /// Cursor of the next page.
    pub(super) more: Option<String>,
    /// Cost of tasks, in millionths.
    pub(super) costs: BTreeMap<TaskId, u64>,
    /// Waits of tasks.
    pub(super) waits: BTreeMap<TaskId, TaskWait>,
    /// Tasks whose wait must be fetched.
    pub(super) unsure: BTreeSet<TaskId>,
    /// Tasks whose wait was fetched: later changes arrive as events.
    looked: BTreeSet<TaskId>,
    pub(super) timelines: RecentCache<TaskId, TaskTimeline>,
    /// Plans, by the wait that was open at the fetch.
    plans: RecentCache<WaitId, Option<PlanAnswer>>,
    befores: RecentCache<WaitId, Vec<(&'static str, String)>>,
    pub(super) evidence: RecentCache<TaskId, TaskEvidence>,
    pub(super) logs: RecentCache<JobId, JobLog>,
    pub(super) files: RecentCache<PullRequestId, ChangedFiles>,
    pub(super) diffs: RecentCache<(PullRequestId, String), DiffView>,
    pub(super) works: RecentCache<TaskId, Option<TaskDiff>>,
    /// Tool calls that wait for approval.
    pub(super) approvals: Vec<ApprovalView>,
    /// Tool calls that were viewed, with their arguments.
    pub(super) looked_at: RecentCache<ApprovalId, ApprovalView>,
    pub(super) nodes: Vec<NodeView>,
    /// The readiness checks that the person may see.
    pub(super) readiness: Option<Readiness>,
    pub(super) budgets: Vec<BudgetStatusView>,
    pub(super) by_project: Vec<UsageSum>,
    pub(super) by_model: Vec<UsageSum>,
}

impl ScreenStore {
    /// Returns the currency of amounts.
    pub(super) fn display_currency(&self) -> Currency {
        self.me.as_ref().map(|me| me.currency).unwrap_or_default()
    }

    /// Returns the check that blocks work, if there is one; else a warning of a node.
    pub(super) fn worst_check(&self) -> Option<&ReadinessCheck> {
        let checks = || self.readiness.iter().flat_map(|seen| &seen.checks);
        let failed = checks().find(|check| check.status == ReadinessStatus::Failed);
        failed.or_else(|| checks().find(|check| check.status == ReadinessStatus::Warning))
    }

    /// Returns a project's name, or its id.
    pub(super) fn project_name(&self, id: ProjectId) -> String {
        self.projects.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// Finds a project by name.
    pub(super) fn find_project(&self, name: &str) -> Option<ProjectId> {
        self.projects.iter().find(|(_, it)| it.as_str() == name).map(|(id, _)| *id)
    }

    /// Adds a created task to the list at once.
    pub(super) fn add_created_task(&mut self, task: TaskView) {
        self.listed.insert(task.id);
        self.tasks.insert(task.id, task);
    }

    /// Returns the items of the inbox, oldest first.
    pub(super) fn inbox_items(&self, now: OffsetDateTime) -> Vec<InboxItem> {
        let tasks = self.waits.iter().filter_map(|(task, wait)| match wait.reason {
            WaitReason::Approval => Some((wait.since, InboxItem::Plan(*task))),
            WaitReason::HumanInput => Some((wait.since, InboxItem::Question(*task))),
            _ => None,
        });
        let calls = self.approvals.iter().filter(|it| it.expires_at > now);
        let calls = calls.map(|call| (call.asked_at, InboxItem::Call(call.approval_id)));
        let mut items: Vec<_> = tasks.chain(calls).collect();
        items.sort_unstable();
        items.into_iter().map(|(_, item)| item).collect()
    }

    /// Stores the result of a fetch; `listed` is the current filter of the list. Returns whether there is more to fetch at
    /// once.
    pub(super) fn apply_answer(
        &mut self,
        topic: &FetchTopic,
        answer: TopicAnswer,
        listed: &TaskListQuery,
    ) -> bool {
        let mut again = false;
        match (topic, answer) {
            (FetchTopic::Me, TopicAnswer::Me(me)) => self.me = Some(*me),
            (FetchTopic::Projects, TopicAnswer::Projects(projects)) => {
                let names = projects.iter().map(|it| (it.id, it.slug.as_str().to_owned()));
                self.projects = names.collect();
                self.project_views = projects;
                self.project_views.sort_by(|one, other| one.slug.as_str().cmp(other.slug.as_str()));
            }
            // A page for another filter does not belong to the current list.
            (FetchTopic::Tasks(query) | FetchTopic::More(query, _), TopicAnswer::Tasks(page))
                if query == listed =>
            {
                self.apply_task_page(topic, page);
            }
            (FetchTopic::Running, TopicAnswer::Tasks(page)) => self.apply_running_tasks(page),
            (FetchTopic::Costs, TopicAnswer::Sums(sums)) => {
                let cost = |sum: UsageSum| {
                    let task = sum.key?.parse().ok()?;
                    Some((task, u64::try_from(sum.cost_micros).ok()?))
                };
                self.costs = sums.into_iter().filter_map(cost).collect();
            }
            (FetchTopic::Timeline(task), TopicAnswer::Timeline(timeline)) => {
                self.apply_timeline(*task, *timeline);
            }
            (FetchTopic::Plan(_, _, wait), TopicAnswer::Plan(plan)) => {
                self.plans.insert_entry(*wait, plan.map(|it| *it));
            }
            (FetchTopic::Before(_, _, wait), TopicAnswer::Before(facts)) => {
                self.befores.insert_entry(*wait, facts);
            }
            (FetchTopic::Evidence(task), TopicAnswer::Evidence(shown)) => {
                self.evidence.insert_entry(*task, *shown);
            }
            (FetchTopic::Log(job), TopicAnswer::Log(events, more)) => {
                if self.logs.get(job).is_none() {
                    self.logs.insert_entry(*job, JobLog::default());
                }
                if let Some(log) = self.logs.get_mut(job) {
                    log.append_events(&events);
                }
                again = more;
            }
            (FetchTopic::Files(id), TopicAnswer::Files(files)) => {
                self.files.insert_entry(*id, files);
            }
            (FetchTopic::Diff(id, path), TopicAnswer::Diff(diff)) => {
                self.diffs.insert_entry((*id, path.clone()), diff);
            }
            (FetchTopic::Work(task), TopicAnswer::Work(work)) => {
                self.works.insert_entry(*task, work.map(|it| *it));
            }
            (FetchTopic::Approvals, TopicAnswer::Approvals(calls)) => self.approvals = calls,
            (FetchTopic::Approval(id), TopicAnswer::Approval(call)) => {
                self.looked_at.insert_entry(*id, *call);
            }
            (FetchTopic::Pulls(_), TopicAnswer::Pulls(pulls)) => self.pulls = pulls,
            (FetchTopic::Pull(id), TopicAnswer::Pull(pull)) => {
                self.pull_details.insert_entry(*id, *pull);
            }
            (FetchTopic::Repository(id), TopicAnswer::Repository(repository)) => {
                self.repositories.insert_entry(*id, repository);
            }
            (FetchTopic::Models, TopicAnswer::Models(models)) => self.models = models,
            (FetchTopic::Nodes, TopicAnswer::Nodes(nodes)) => self.nodes = nodes,
            (FetchTopic::Readiness, TopicAnswer::Readiness(seen)) => self.readiness = Some(seen),
            (FetchTopic::Budgets, TopicAnswer::Budgets(budgets)) => self.budgets = budgets,
            (FetchTopic::ByProject, TopicAnswer::Sums(sums)) => self.by_project = sums,
            (FetchTopic::ByModel, TopicAnswer::Sums(sums)) => self.by_model = sums,
            _ => {}
        }
        again
    }

    fn apply_task_page(&mut self, topic: &FetchTopic, page: ListResponse<TaskView>) {
        let first = matches!(topic, FetchTopic::Tasks(_));
        let oldest = page.items.last().map(|task| task.id);
        if first {
            // No other task is between the newest and the last of the page.
            let beyond = oldest.filter(|_| page.next_cursor.is_some());
            self.listed.retain(|it| beyond.is_some_and(|beyond| *it < beyond));
        }
        if !first || self.listed.is_empty() {
            self.more.clone_from(&page.next_cursor);
        }
        for task in page.items {
            self.listed.insert(task.id);
            self.tasks.insert(task.id, task);
        }
    }

    /// Stores all running tasks: others wait for nobody.
    fn apply_running_tasks(&mut self, page: ListResponse<TaskView>) {
        let whole = page.next_cursor.is_none();
        let runs: BTreeSet<TaskId> = page.items.iter().map(|task| task.id).collect();
        if whole {
            self.waits.retain(|task, _| runs.contains(task));
        }
        self.unsure = runs.difference(&self.looked).copied().collect();
        self.tasks.extend(page.items.into_iter().map(|task| (task.id, task)));
    }

    fn apply_timeline(&mut self, id: TaskId, timeline: TaskTimeline) {
        self.unsure.remove(&id);
        self.looked.insert(id);
        let known = self.waits.get(&id);
        match open_wait(&timeline) {
            // This response is older than the known wait.
            Some(wait)
                if known.is_some_and(|it| it.id != wait.wait_id && it.since > wait.opened_at) => {}
            Some(wait) => {
                let task = self.tasks.get(&id);
                let name =
                    task.map_or_else(|| id.to_string(), |task| task.name.as_str().to_owned());
                let wait = TaskWait {
                    id: wait.wait_id,
                    reason: wait.reason,
                    question: wait.question.clone(),
                    since: wait.opened_at,
                    name,
                    project: task.map(|task| task.project_id),
                };
                self.record_wait(id, wait);
            }
            None => {
                self.waits.remove(&id);
            }
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.state = timeline.state;
        }
        self.timelines.insert_entry(id, timeline);
    }

    /// Records the wait of a task. An event and a timeline may have slightly different times for the same wait: it stays the
    /// same.
    fn record_wait(&mut self, id: TaskId, wait: TaskWait) {
        if self.waits.get(&id).is_none_or(|it| it.id != wait.id) {
            self.waits.insert(id, wait);
        }
    }

    /// Returns the plan of a task's current wait; it is `None` inside if there is no plan. A plan of an earlier wait does not
    /// count.
    pub(super) fn pending_plan(&self, task: TaskId) -> Option<&Option<PlanAnswer>> {
        self.plans.get(&self.waits.get(&task)?.id)
    }

    /// Returns the preview of that plan, as far as it was fetched.
    pub(super) fn plan_preview(&self, task: TaskId) -> &[(&'static str, String)] {
        let facts = self.waits.get(&task).and_then(|wait| self.befores.get(&wait.id));
        facts.map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the units of a waiting task, if its timeline was fetched during the same wait.
    pub(super) fn pending_units(&self, task: TaskId) -> &[UnitView] {
        let wait = self.waits.get(&task).map(|wait| wait.id);
        let same =
            |it: &&TaskTimeline| wait.is_some() && open_wait(it).map(|it| it.wait_id) == wait;
        self.timelines.get(&task).filter(same).map(|it| it.units.as_slice()).unwrap_or_default()
    }

    /// Applies the content of an event, and marks topics as stale because of it.
    pub(super) fn apply_event(&mut self, event: &EventView, shelf: &mut FetchCache) {
        let kind = EventKind::from_name(&event.kind);
        if let Some(task) = event.task_id {
            self.apply_task_event(kind, task, event, shelf);
        }
        match kind {
            Some(EventKind::ApprovalRequested | EventKind::ApprovalDecided) => {
                shelf.mark_stale(|topic| {
                    matches!(topic, FetchTopic::Approvals | FetchTopic::Approval(_))
                });
            }
            Some(EventKind::NodeJoined | EventKind::NodeUpdated | EventKind::NodeRemoved) => {
                shelf.mark_stale(|topic| *topic == FetchTopic::Nodes);
            }
            Some(EventKind::BudgetSet | EventKind::BudgetExhausted) => {
                shelf.mark_stale(|topic| *topic == FetchTopic::Budgets);
            }
            Some(EventKind::ProjectCreated | EventKind::ProjectUpdated) => {
                shelf.mark_stale(|topic| *topic == FetchTopic::Projects);
            }
            Some(
                EventKind::UserUpdated | EventKind::GroupUpdated | EventKind::IdentityGroupsChanged,
            ) => {
                shelf.mark_stale(|topic| *topic == FetchTopic::Me);
            }
            Some(EventKind::PullRequestUpdated | EventKind::PullRequestOpened) => {
                shelf.mark_stale(|topic| {
                    let of_one = matches!(topic, FetchTopic::Files(_) | FetchTopic::Diff(..));
                    of_one || matches!(topic, FetchTopic::Pulls(_) | FetchTopic::Pull(_))
                });
            }
            Some(EventKind::ModelSet | EventKind::ProviderSet) => {
                shelf.mark_stale(|topic| *topic == FetchTopic::Models);
            }
            _ => {}
        }
    }

    fn apply_task_event(
        &mut self,
        kind: Option<EventKind>,
        id: TaskId,
        event: &EventView,
        shelf: &mut FetchCache,
    ) {
        let at = event.occurred_at;
        let (state, failure) = match kind {
            Some(EventKind::TaskStarted) => (Some(TaskStateName::Running), None),
            Some(EventKind::TaskCompleted) => (Some(TaskStateName::Completed), None),
            Some(EventKind::TaskCancelled) => (Some(TaskStateName::Cancelled), None),
            Some(EventKind::TaskFailed) => {
                let why = event.data["failure"].as_str().map(str::to_owned);
                (Some(TaskStateName::Failed), why)
            }
            _ => (None, None),
        };
        if let (Some(task), Some(state)) = (self.tasks.get_mut(&id), state) {
            (task.state, task.failure, task.updated_at) = (state, failure, at);
            match state {
                TaskStateName::Running => task.started_at = Some(at),
                _ => task.ended_at = Some(at),
            }
        }
        let ended = state.is_some_and(|it| it != TaskStateName::Running);
        if ended {
            self.waits.remove(&id);
            self.unsure.remove(&id);
        }
        match kind {
            Some(EventKind::TaskCreated) => {
                shelf.mark_stale(|it| matches!(it, FetchTopic::Tasks(_)));
            }
            Some(EventKind::TaskWaiting) => {
                if let Some(wait) = parse_wait(event) {
                    self.record_wait(id, wait);
                    self.unsure.remove(&id);
                } else {
                    // An unreadable wait is not the earlier one either.
                    self.waits.remove(&id);
                    self.unsure.insert(id);
                }
            }
            _ if !ended && self.waits.contains_key(&id) => {
                self.unsure.insert(id);
            }
            _ => {}
        }
        shelf.mark_stale(|topic| match topic {
            FetchTopic::Timeline(it) | FetchTopic::Evidence(it) => *it == id,
            FetchTopic::Costs => ended,
            _ => false,
        });
    }
}

/// Returns the wait for a person in a timeline.
fn open_wait(timeline: &TaskTimeline) -> Option<&WaitEntry> {
    let open = |wait: &&WaitEntry| wait.resolved_at.is_none() && wait.reason.blocks_start();
    let open = timeline.waits.iter().rev().find(open);
    open.filter(|_| timeline.state == TaskStateName::Running)
}

/// Parses the wait of a task from an event.
fn parse_wait(event: &EventView) -> Option<TaskWait> {
    Some(TaskWait {
        id: event.data["wait_id"].as_str()?.parse().ok()?,
        reason: WaitReason::from_name(event.data["reason"].as_str()?)?,
        question: event.data["question"].as_str().map(str::to_owned),
        since: event.occurred_at,
        name: event.data["name"].as_str()?.to_owned(),
        project: event.project_id,
    })
}
