//! What is known of the installation, and how what is heard changes it.

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

/// What came of asking.
#[derive(Clone, Debug)]
pub(super) enum TopicAnswer {
    /// Who is asking.
    Me(Box<MeView>),
    /// The projects.
    Projects(Vec<ProjectView>),
    /// A page of tasks.
    Tasks(ListResponse<TaskView>),
    /// Sums.
    Sums(Vec<UsageSum>),
    /// The story of a task.
    Timeline(Box<TaskTimeline>),
    /// The plan that a task waits with, if the project manager made it.
    Plan(Option<Box<PlanAnswer>>),
    /// What is to be known before a yes to that plan, each with its name.
    Before(Vec<(&'static str, String)>),
    /// What was shown of a task.
    Evidence(Box<TaskEvidence>),
    /// What happened in a job, and whether there may be more.
    Log(Vec<JobEventView>, bool),
    /// Files.
    Files(ChangedFiles),
    /// What is changed in one.
    Diff(DiffView),
    /// What the work on a task has changed, if it has left anything.
    Work(Option<Box<TaskDiff>>),
    /// Calls that wait.
    Approvals(Vec<ApprovalView>),
    /// One call with its arguments.
    Approval(Box<ApprovalView>),
    /// Pull requests, newest first.
    Pulls(Vec<PullRequestView>),
    /// One, with what was checked and said.
    Pull(Box<PullRequestDetail>),
    /// A repository, if the project has one.
    Repository(Option<RepositoryView>),
    /// Models.
    Models(Vec<ModelView>),
    /// Nodes.
    Nodes(Vec<NodeView>),
    Readiness(Readiness),
    /// Ceilings.
    Budgets(Vec<BudgetStatusView>),
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskWait {
    /// Which it is; an answer names it.
    pub(super) id: WaitId,
    /// What for.
    pub(super) reason: WaitReason,
    /// What is asked.
    pub(super) question: Option<String>,
    /// Since when.
    pub(super) since: OffsetDateTime,
    /// The task's name.
    pub(super) name: String,
    /// Where it lives.
    pub(super) project: Option<ProjectId>,
}

/// Something that waits for the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InboxItem {
    /// A plan of a task.
    Plan(TaskId),
    /// A question of a task.
    Question(TaskId),
    /// A call of a tool.
    Call(ApprovalId),
}

impl InboxItem {
    /// The task, if it is one that waits itself.
    pub(super) const fn waiting_task(self) -> Option<TaskId> {
        match self {
            Self::Plan(task) | Self::Question(task) => Some(task),
            Self::Call(_) => None,
        }
    }
}

/// A few values by key; those that were put in first go first.
#[derive(Clone, Debug)]
pub(super) struct RecentCache<K, V>(Vec<(K, V)>);

impl<K, V> Default for RecentCache<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// How many of what can be looked at again are kept.
const MAX_CACHED_ENTRIES: usize = 16;

impl<K: PartialEq, V> RecentCache<K, V> {
    /// One of them.
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

/// What kind of line of a log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogSource {
    /// The agent says or thinks something.
    Agent,
    /// The agent does something.
    Deed,
    /// A program wrote it.
    Program,
    /// A program complained.
    Complaint,
    /// The system says it.
    System,
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogLine {
    /// Milliseconds since the job was claimed; on the first line of what was said.
    pub(super) at: Option<u64>,
    /// Whose it is.
    pub(super) voice: LogSource,
    /// The line.
    pub(super) text: String,
}

/// What happened in a job, as lines.
#[derive(Clone, Debug, Default)]
pub(super) struct JobLog {
    /// The lines that are kept.
    pub(super) lines: VecDeque<LogLine>,
    /// How many were dropped.
    pub(super) dropped: usize,
    /// The number of the first event that is not known yet.
    pub(super) next: u64,
}

/// How many lines of a log are kept.
const MAX_LOG_LINES: usize = 5000;

/// How much of one line.
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

/// Whose the words of an event are.
fn log_source_of(event: &JobEventView) -> LogSource {
    match event.event.as_str() {
        "said" | "thought" => LogSource::Agent,
        "tool" | "permission" => LogSource::Deed,
        "output" if event.data["stream"] == "stderr" => LogSource::Complaint,
        "output" => LogSource::Program,
        _ => LogSource::System,
    }
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct ScreenStore {
    /// Who is asking.
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
    /// Those that are listed.
    pub(super) listed: BTreeSet<TaskId>,
    /// How the list goes on.
    pub(super) more: Option<String>,
    /// What tasks cost, in millionths.
    pub(super) costs: BTreeMap<TaskId, u64>,
    /// What tasks wait for.
    pub(super) waits: BTreeMap<TaskId, TaskWait>,
    /// Tasks of which it must be looked what they wait for.
    pub(super) unsure: BTreeSet<TaskId>,
    /// Tasks of which it was looked: what comes after is heard.
    looked: BTreeSet<TaskId>,
    pub(super) timelines: RecentCache<TaskId, TaskTimeline>,
    /// Plans by the wait that was open when they were asked for.
    plans: RecentCache<WaitId, Option<PlanAnswer>>,
    befores: RecentCache<WaitId, Vec<(&'static str, String)>>,
    pub(super) evidence: RecentCache<TaskId, TaskEvidence>,
    pub(super) logs: RecentCache<JobId, JobLog>,
    pub(super) files: RecentCache<PullRequestId, ChangedFiles>,
    pub(super) diffs: RecentCache<(PullRequestId, String), DiffView>,
    pub(super) works: RecentCache<TaskId, Option<TaskDiff>>,
    /// Calls that wait.
    pub(super) approvals: Vec<ApprovalView>,
    /// Those that were looked at, with their arguments.
    pub(super) looked_at: RecentCache<ApprovalId, ApprovalView>,
    pub(super) nodes: Vec<NodeView>,
    /// Whether work can be done, as far as the person may see it.
    pub(super) readiness: Option<Readiness>,
    pub(super) budgets: Vec<BudgetStatusView>,
    pub(super) by_project: Vec<UsageSum>,
    pub(super) by_model: Vec<UsageSum>,
}

impl ScreenStore {
    /// What money is counted in.
    pub(super) fn display_currency(&self) -> Currency {
        self.me.as_ref().map(|me| me.currency).unwrap_or_default()
    }

    /// What keeps work from being done, if something does; else what somebody should look at on a node.
    pub(super) fn worst_check(&self) -> Option<&ReadinessCheck> {
        let checks = || self.readiness.iter().flat_map(|seen| &seen.checks);
        let failed = checks().find(|check| check.status == ReadinessStatus::Failed);
        failed.or_else(|| checks().find(|check| check.status == ReadinessStatus::Warning))
    }

    /// A project's name, or its id.
    pub(super) fn project_name(&self, id: ProjectId) -> String {
        self.projects.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// The project of a name.
    pub(super) fn find_project(&self, name: &str) -> Option<ProjectId> {
        self.projects.iter().find(|(_, it)| it.as_str() == name).map(|(id, _)| *id)
    }

    /// A task that was just made is in the list at once.
    pub(super) fn add_created_task(&mut self, task: TaskView) {
        self.listed.insert(task.id);
        self.tasks.insert(task.id, task);
    }

    /// What waits for the person, oldest first.
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

    /// Puts in what came; `listed` is what the list is looked for by now. Whether there is more of it to ask for at once.
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
            // What was asked for under another filter is not what is listed now.
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
            // Between the newest and the last of the page nothing else is in the list.
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

    /// All tasks that run: others wait for nobody.
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
            // It was told before the task began to wait for what is known.
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

    /// A task waits. An event and a story may give the same wait times that differ a little: it stays the same.
    fn record_wait(&mut self, id: TaskId, wait: TaskWait) {
        if self.waits.get(&id).is_none_or(|it| it.id != wait.id) {
            self.waits.insert(id, wait);
        }
    }

    /// The plan that a task waits with now; nothing in it when there is none to be had. A plan of an earlier wait is not it.
    pub(super) fn pending_plan(&self, task: TaskId) -> Option<&Option<PlanAnswer>> {
        self.plans.get(&self.waits.get(&task)?.id)
    }

    /// What is to be known before a yes to it, as far as it was looked up.
    pub(super) fn plan_preview(&self, task: TaskId) -> &[(&'static str, String)] {
        let facts = self.waits.get(&task).and_then(|wait| self.befores.get(&wait.id));
        facts.map(Vec::as_slice).unwrap_or_default()
    }

    /// The units of a task that waits, when its story was told during the same wait.
    pub(super) fn pending_units(&self, task: TaskId) -> &[UnitView] {
        let wait = self.waits.get(&task).map(|wait| wait.id);
        let same =
            |it: &&TaskTimeline| wait.is_some() && open_wait(it).map(|it| it.wait_id) == wait;
        self.timelines.get(&task).filter(same).map(|it| it.units.as_slice()).unwrap_or_default()
    }

    /// What an event says by itself, without asking; and what is old because of it.
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
            Some(EventKind::UserUpdated | EventKind::GroupUpdated) => {
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
                    // What cannot be read is not what was known before either.
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

/// What a task waits for a person with, by its story.
fn open_wait(timeline: &TaskTimeline) -> Option<&WaitEntry> {
    let open = |wait: &&WaitEntry| wait.resolved_at.is_none() && wait.reason.blocks_start();
    let open = timeline.waits.iter().rev().find(open);
    open.filter(|_| timeline.state == TaskStateName::Running)
}

/// What a task waits for, as an event tells it.
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
