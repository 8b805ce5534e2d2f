//! What is known of the installation, and how what is heard changes it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cynode_core::{
    events::EventKind,
    ids::{ApprovalId, JobId, ProjectId, PullRequestId, TaskId, WaitId},
    tasks::TaskStateName,
    workflow::waits::WaitReason,
};
use cynode_wire::{
    accounts::MeView,
    delivery::{ChangedFiles, DiffView},
    events::EventView,
    evidence::TaskEvidence,
    gate::ApprovalView,
    handoffs::Planned,
    models::{CeilingView, UsageSum},
    nodes::{JobEventView, NodeView},
    projects::ProjectView,
    tasks::TaskView,
    timeline::{Timeline, WaitEntry},
    workflow::UnitView,
};
use time::OffsetDateTime;

use super::{
    shelf::{Query, Shelf, Topic},
    text,
};
use crate::{client::Items, terminal::clean};

/// What came of asking.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// Who is asking.
    Me(Box<MeView>),
    /// The projects.
    Projects(Vec<ProjectView>),
    /// A page of tasks.
    Tasks(Items<TaskView>),
    /// Sums.
    Sums(Vec<UsageSum>),
    /// The story of a task.
    Timeline(Box<Timeline>),
    /// The plan that a task waits with, if the project manager made it.
    Plan(Option<Box<Planned>>),
    /// What was shown of a task.
    Evidence(Box<TaskEvidence>),
    /// What happened in a job, and whether there may be more.
    Log(Vec<JobEventView>, bool),
    /// Files.
    Files(ChangedFiles),
    /// What is changed in one.
    Diff(DiffView),
    /// Calls that wait.
    Approvals(Vec<ApprovalView>),
    /// One call with its arguments.
    Approval(Box<ApprovalView>),
    /// Nodes.
    Nodes(Vec<NodeView>),
    /// Ceilings.
    Budgets(Vec<CeilingView>),
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
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
pub(super) enum Item {
    /// A plan of a task.
    Plan(TaskId),
    /// A question of a task.
    Question(TaskId),
    /// A call of a tool.
    Call(ApprovalId),
}

impl Item {
    /// The task, if it is one that waits itself.
    pub(super) const fn task(self) -> Option<TaskId> {
        match self {
            Self::Plan(task) | Self::Question(task) => Some(task),
            Self::Call(_) => None,
        }
    }
}

/// A few values by key; those that were put in first go first.
#[derive(Clone, Debug)]
pub(super) struct Recent<K, V>(Vec<(K, V)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// How many of what can be looked at again are kept.
const KEPT: usize = 16;

impl<K: PartialEq, V> Recent<K, V> {
    /// One of them.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.0.iter().find(|(it, _)| it == key).map(|(_, value)| value)
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.iter_mut().find(|(it, _)| it == key).map(|(_, value)| value)
    }

    fn put(&mut self, key: K, value: V) {
        self.0.retain(|(it, _)| *it != key);
        if self.0.len() >= KEPT {
            self.0.remove(0);
        }
        self.0.push((key, value));
    }
}

/// What kind of line of a log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
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
pub(super) struct Said {
    /// Milliseconds since the job was claimed; on the first line of what was said.
    pub(super) at: Option<u64>,
    /// Whose it is.
    pub(super) voice: Voice,
    /// The line.
    pub(super) text: String,
}

/// What happened in a job, as lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// The lines that are kept.
    pub(super) lines: VecDeque<Said>,
    /// How many were dropped.
    pub(super) dropped: usize,
    /// The number of the first event that is not known yet.
    pub(super) next: u64,
}

/// How many lines of a log are kept.
const LINES: usize = 5000;

/// How much of one line.
const LONGEST: usize = 1000;

impl Log {
    fn add(&mut self, events: &[JobEventView]) {
        for event in events.iter().filter(|it| it.number >= self.next).collect::<Vec<_>>() {
            self.next = event.number + 1;
            let (voice, words) = told(event);
            for (at, line) in clean(&words).lines().enumerate() {
                let at = (at == 0).then_some(event.at_ms);
                let text = text::cut(&text::plain(line), LONGEST);
                self.lines.push_back(Said { at, voice, text });
            }
        }
        while self.lines.len() > LINES {
            self.lines.pop_front();
            self.dropped += 1;
        }
    }
}

/// What an event of a job says to people.
fn told(event: &JobEventView) -> (Voice, String) {
    let word = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
    match event.event.as_str() {
        "said" => (Voice::Agent, format!("“{}”", word("text").trim_end())),
        "thought" => (Voice::Agent, format!("({})", word("text").trim_end())),
        "told" => (Voice::System, format!("told: {}", text::first(&word("text")))),
        "phase" => (Voice::System, format!("· {}", word("phase").replace('_', " "))),
        "session" => (Voice::System, "· a session of the agent".to_owned()),
        "tool" => {
            // What it is done with is said once.
            let begins = matches!(event.data["status"].as_str(), Some("pending" | "in_progress"));
            let input = match &event.data["input"] {
                input if begins && !input.is_null() => format!("  {input}"),
                _ => String::new(),
            };
            (Voice::Deed, format!("▸ {} [{}]{input}", word("title"), word("status")))
        }
        "permission" => (Voice::Deed, format!("⚑ {} [{}]", word("title"), word("state"))),
        "output" if word("stream") == "stderr" => (Voice::Complaint, word("text")),
        "output" => (Voice::Program, word("text")),
        "truncated" => {
            (Voice::System, format!("· {} bytes of output were left out", event.data["bytes"]))
        }
        "note" => (Voice::System, format!("· {}", word("text"))),
        other => (Voice::System, format!("· {other} {}", event.data)),
    }
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge {
    /// Who is asking.
    pub(super) me: Option<MeView>,
    /// Names of projects.
    pub(super) projects: BTreeMap<ProjectId, String>,
    /// Tasks, listed or not.
    pub(super) tasks: BTreeMap<TaskId, TaskView>,
    /// Those that are listed.
    pub(super) listed: BTreeSet<TaskId>,
    /// How the list goes on.
    pub(super) more: Option<String>,
    /// What tasks cost, in millionths.
    pub(super) costs: BTreeMap<TaskId, u64>,
    /// What tasks wait for.
    pub(super) waits: BTreeMap<TaskId, Wait>,
    /// Tasks of which it must be looked what they wait for.
    pub(super) unsure: BTreeSet<TaskId>,
    /// Tasks of which it was looked: what comes after is heard.
    looked: BTreeSet<TaskId>,
    pub(super) timelines: Recent<TaskId, Timeline>,
    /// Plans by the wait that was open when they were asked for.
    plans: Recent<WaitId, Option<Planned>>,
    pub(super) evidence: Recent<TaskId, TaskEvidence>,
    pub(super) logs: Recent<JobId, Log>,
    pub(super) files: Recent<PullRequestId, ChangedFiles>,
    pub(super) diffs: Recent<(PullRequestId, String), DiffView>,
    /// Calls that wait.
    pub(super) approvals: Vec<ApprovalView>,
    /// Those that were looked at, with their arguments.
    pub(super) looked_at: Recent<ApprovalId, ApprovalView>,
    pub(super) nodes: Vec<NodeView>,
    pub(super) budgets: Vec<CeilingView>,
    pub(super) by_project: Vec<UsageSum>,
    pub(super) by_model: Vec<UsageSum>,
}

impl Knowledge {
    /// A project's name, or its id.
    pub(super) fn project(&self, id: ProjectId) -> String {
        self.projects.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// What waits for the person, oldest first.
    pub(super) fn inbox(&self, now: OffsetDateTime) -> Vec<Item> {
        let tasks = self.waits.iter().filter_map(|(task, wait)| match wait.reason {
            WaitReason::Approval => Some((wait.since, Item::Plan(*task))),
            WaitReason::HumanInput => Some((wait.since, Item::Question(*task))),
            _ => None,
        });
        let calls = self.approvals.iter().filter(|it| it.expires_at > now);
        let calls = calls.map(|call| (call.asked_at, Item::Call(call.approval_id)));
        let mut items: Vec<_> = tasks.chain(calls).collect();
        items.sort_unstable();
        items.into_iter().map(|(_, item)| item).collect()
    }

    /// Puts in what came; `listed` is what the list is looked for by now. Whether there is more of it to ask for at once.
    pub(super) fn learn(&mut self, topic: &Topic, answer: Answer, listed: &Query) -> bool {
        let mut again = false;
        match (topic, answer) {
            (Topic::Me, Answer::Me(me)) => self.me = Some(*me),
            (Topic::Projects, Answer::Projects(projects)) => {
                let names = projects.into_iter().map(|it| (it.id, it.slug.as_str().to_owned()));
                self.projects = names.collect();
            }
            // What was asked for under another filter is not what is listed now.
            (Topic::Tasks(query) | Topic::More(query, _), Answer::Tasks(page))
                if query == listed =>
            {
                self.page(topic, page);
            }
            (Topic::Running, Answer::Tasks(page)) => self.running(page),
            (Topic::Costs, Answer::Sums(sums)) => {
                let cost = |sum: UsageSum| {
                    let task = sum.key?.parse().ok()?;
                    Some((task, u64::try_from(sum.cost_micros).ok()?))
                };
                self.costs = sums.into_iter().filter_map(cost).collect();
            }
            (Topic::Timeline(task), Answer::Timeline(timeline)) => {
                self.story(*task, *timeline);
            }
            (Topic::Plan(_, _, wait), Answer::Plan(plan)) => {
                self.plans.put(*wait, plan.map(|it| *it));
            }
            (Topic::Evidence(task), Answer::Evidence(shown)) => self.evidence.put(*task, *shown),
            (Topic::Log(job), Answer::Log(events, more)) => {
                if self.logs.get(job).is_none() {
                    self.logs.put(*job, Log::default());
                }
                if let Some(log) = self.logs.get_mut(job) {
                    log.add(&events);
                }
                again = more;
            }
            (Topic::Files(id), Answer::Files(files)) => self.files.put(*id, files),
            (Topic::Diff(id, path), Answer::Diff(diff)) => {
                self.diffs.put((*id, path.clone()), diff);
            }
            (Topic::Approvals, Answer::Approvals(calls)) => self.approvals = calls,
            (Topic::Approval(id), Answer::Approval(call)) => self.looked_at.put(*id, *call),
            (Topic::Nodes, Answer::Nodes(nodes)) => self.nodes = nodes,
            (Topic::Budgets, Answer::Budgets(budgets)) => self.budgets = budgets,
            (Topic::ByProject, Answer::Sums(sums)) => self.by_project = sums,
            (Topic::ByModel, Answer::Sums(sums)) => self.by_model = sums,
            _ => {}
        }
        again
    }

    fn page(&mut self, topic: &Topic, page: Items<TaskView>) {
        let first = matches!(topic, Topic::Tasks(_));
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
    fn running(&mut self, page: Items<TaskView>) {
        let whole = page.next_cursor.is_none();
        let runs: BTreeSet<TaskId> = page.items.iter().map(|task| task.id).collect();
        if whole {
            self.waits.retain(|task, _| runs.contains(task));
        }
        self.unsure = runs.difference(&self.looked).copied().collect();
        self.tasks.extend(page.items.into_iter().map(|task| (task.id, task)));
    }

    fn story(&mut self, id: TaskId, timeline: Timeline) {
        self.unsure.remove(&id);
        self.looked.insert(id);
        let known = self.waits.get(&id);
        match open(&timeline) {
            // It was told before the task began to wait for what is known.
            Some(wait)
                if known.is_some_and(|it| it.id != wait.wait_id && it.since > wait.opened_at) => {}
            Some(wait) => {
                let task = self.tasks.get(&id);
                let name =
                    task.map_or_else(|| id.to_string(), |task| task.name.as_str().to_owned());
                let wait = Wait {
                    id: wait.wait_id,
                    reason: wait.reason,
                    question: wait.question.clone(),
                    since: wait.opened_at,
                    name,
                    project: task.map(|task| task.project_id),
                };
                self.wait(id, wait);
            }
            None => {
                self.waits.remove(&id);
            }
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.state = timeline.state;
        }
        self.timelines.put(id, timeline);
    }

    /// A task waits. An event and a story may give the same wait times that differ a little: it stays the same.
    fn wait(&mut self, id: TaskId, wait: Wait) {
        if self.waits.get(&id).is_none_or(|it| it.id != wait.id) {
            self.waits.insert(id, wait);
        }
    }

    /// The plan that a task waits with now; nothing in it when there is none to be had. A plan of an earlier wait is not it.
    pub(super) fn plan(&self, task: TaskId) -> Option<&Option<Planned>> {
        self.plans.get(&self.waits.get(&task)?.id)
    }

    /// The units of a task that waits, when its story was told during the same wait.
    pub(super) fn units(&self, task: TaskId) -> &[UnitView] {
        let wait = self.waits.get(&task).map(|wait| wait.id);
        let same = |it: &&Timeline| wait.is_some() && open(it).map(|it| it.wait_id) == wait;
        self.timelines.get(&task).filter(same).map(|it| it.units.as_slice()).unwrap_or_default()
    }

    /// What an event says by itself, without asking; and what is old because of it.
    pub(super) fn hear(&mut self, event: &EventView, shelf: &mut Shelf) {
        let kind = EventKind::from_name(&event.kind);
        if let Some(task) = event.task_id {
            self.hear_of_task(kind, task, event, shelf);
        }
        match kind {
            Some(EventKind::ApprovalAsked | EventKind::ApprovalDecided) => {
                shelf.outdate(|topic| matches!(topic, Topic::Approvals | Topic::Approval(_)));
            }
            Some(EventKind::NodeJoined | EventKind::NodeUpdated | EventKind::NodeRemoved) => {
                shelf.outdate(|topic| *topic == Topic::Nodes);
            }
            Some(EventKind::BudgetSet | EventKind::BudgetExhausted) => {
                shelf.outdate(|topic| *topic == Topic::Budgets);
            }
            Some(EventKind::ProjectCreated | EventKind::ProjectUpdated) => {
                shelf.outdate(|topic| *topic == Topic::Projects);
            }
            Some(EventKind::UserUpdated | EventKind::GroupUpdated) => {
                shelf.outdate(|topic| *topic == Topic::Me);
            }
            Some(EventKind::PullRequestUpdated | EventKind::PullRequestOpened) => {
                shelf.outdate(|topic| matches!(topic, Topic::Files(_) | Topic::Diff(..)));
            }
            _ => {}
        }
    }

    fn hear_of_task(
        &mut self,
        kind: Option<EventKind>,
        id: TaskId,
        event: &EventView,
        shelf: &mut Shelf,
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
            Some(EventKind::TaskCreated) => shelf.outdate(|it| matches!(it, Topic::Tasks(_))),
            Some(EventKind::TaskWaiting) => {
                if let Some(wait) = wait(event) {
                    self.wait(id, wait);
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
        shelf.outdate(|topic| match topic {
            Topic::Timeline(it) | Topic::Evidence(it) => *it == id,
            Topic::Costs => ended,
            _ => false,
        });
    }
}

/// What a task waits for a person with, by its story.
fn open(timeline: &Timeline) -> Option<&WaitEntry> {
    let open = |wait: &&WaitEntry| wait.resolved_at.is_none() && wait.reason.blocks();
    let open = timeline.waits.iter().rev().find(open);
    open.filter(|_| timeline.state == TaskStateName::Running)
}

/// What a task waits for, as an event tells it.
fn wait(event: &EventView) -> Option<Wait> {
    Some(Wait {
        id: event.data["wait_id"].as_str()?.parse().ok()?,
        reason: WaitReason::from_name(event.data["reason"].as_str()?)?,
        question: event.data["question"].as_str().map(str::to_owned),
        since: event.occurred_at,
        name: event.data["name"].as_str()?.to_owned(),
        project: event.project_id,
    })
}
