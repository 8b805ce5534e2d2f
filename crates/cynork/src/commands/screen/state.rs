//! What is shown: which pane, which row, how far it is scrolled, what is being typed.

use std::collections::BTreeMap;

use cynode_core::{
    delivery::PullRequestState,
    ids::{ApprovalId, JobId, NodeId, ProjectId, PullRequestId, TaskId, WaitId},
    workflow::{
        instructions::InstructionKind,
        plan::UnitKey,
        timeline::JobEntry,
        units::{UnitState, UnitView},
        waits::WaitReason,
    },
};
use cynode_wire::{
    delivery::PullRequestView,
    models::ModelView,
    nodes::NodeView,
    tasks::{TaskView, projects::ProjectView},
    workflow::timeline::{PullRequestEntry, TaskTimeline},
};
use ratatui::layout::Rect;
use time::OffsetDateTime;

use super::{
    cache::{FetchCache, TaskListQuery},
    input::LineInput,
    store::{InboxItem, ScreenStore},
};
use crate::failure::CliError;

/// The panes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pane {
    Tasks,
    Inbox,
    Nodes,
    Spend,
    Projects,
    PullRequests,
    Models,
    Chat,
}

impl Pane {
    pub(super) const ALL: [Self; 8] = [
        Self::Tasks,
        Self::Inbox,
        Self::Nodes,
        Self::Spend,
        Self::Projects,
        Self::PullRequests,
        Self::Models,
        Self::Chat,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Tasks => "Tasks",
            Self::Inbox => "Inbox",
            Self::Nodes => "Nodes",
            Self::Spend => "Spend",
            Self::Projects => "Projects",
            Self::PullRequests => "PRs",
            Self::Models => "Models",
            Self::Chat => "Chat",
        }
    }
}

/// The parts of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TaskPart {
    Plan,
    Timeline,
    Logs,
    Diff,
    Evidence,
}

impl ScrollArea {
    /// Whether its lines can be searched, and shown whole instead of wrapped.
    pub(super) const fn is_text(self) -> bool {
        matches!(self, Self::Timeline | Self::Log | Self::Diff | Self::Evidence)
    }
}

impl TaskPart {
    pub(super) const ALL: [Self; 5] =
        [Self::Plan, Self::Timeline, Self::Logs, Self::Diff, Self::Evidence];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Plan => "Plan",
            Self::Timeline => "Timeline",
            Self::Logs => "Logs",
            Self::Diff => "Diff",
            Self::Evidence => "Evidence",
        }
    }

    /// Where it is scrolled.
    pub(super) const fn scroll_area(self) -> ScrollArea {
        match self {
            Self::Plan => ScrollArea::Plan,
            Self::Timeline => ScrollArea::Timeline,
            Self::Logs => ScrollArea::Log,
            Self::Diff => ScrollArea::Diff,
            Self::Evidence => ScrollArea::Evidence,
        }
    }
}

/// Which side keys are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    List,
    Detail,
}

/// Something that scrolls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScrollArea {
    Tasks,
    Inbox,
    Item,
    Nodes,
    Node,
    Spend,
    Budgets,
    Projects,
    Project,
    PullRequests,
    PullRequest,
    Models,
    Model,
    Chat,
    Plan,
    Timeline,
    Jobs,
    Log,
    Files,
    Diff,
    Evidence,
    Help,
    Dialog,
}

/// What a click means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClickTarget {
    Pane(Pane),
    Part(TaskPart),
    /// A row of a list, by its number.
    Row(ScrollArea, usize),
    /// Anywhere in what scrolls.
    Area(ScrollArea),
    /// A field of the form.
    Field(usize),
    Yes,
    No,
    Help,
}

/// What was drawn, as far as keys and clicks must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScreenLayout {
    /// What is where; what comes later lies on top.
    pub(super) hits: Vec<(Rect, ClickTarget)>,
    /// The first line of each place that was shown.
    pub(super) tops: BTreeMap<ScrollArea, usize>,
    /// How many lines of it were.
    pub(super) pages: BTreeMap<ScrollArea, usize>,
    /// The last line that can be the first.
    pub(super) ends: BTreeMap<ScrollArea, usize>,
    /// The lines of the place in sight that hold what is searched for.
    pub(super) matches: Vec<usize>,
    /// How many cells of its longest line are hidden on the right while lines are not wrapped.
    pub(super) overflow: usize,
}

/// How it is with the server.
#[derive(Clone, Debug)]
pub(super) enum ConnectionState {
    /// Nothing was heard yet.
    Opening,
    /// What happens is heard.
    Live,
    /// It is not.
    Lost {
        since: OffsetDateTime,
        /// When it is tried again; none while it is.
        again: Option<OffsetDateTime>,
        tries: u32,
        why: CliError,
    },
}

/// The form for whoever is not logged in.
#[derive(Clone, Debug, Default)]
pub(super) struct LoginForm {
    pub(super) handle: LineInput,
    pub(super) password: LineInput,
    /// Which of the two is typed.
    pub(super) field: usize,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
}

/// Something that is done to the installation: the same operations as the commands'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScreenAction {
    /// Yes or no to the plan that was shown: to its wait and to no other.
    Approve { task: TaskId, wait: WaitId, yes: bool },
    /// An answer to the question that was shown.
    Answer { task: TaskId, wait: WaitId },
    /// Yes or no to a call.
    Decide { approval: ApprovalId, yes: bool },
    /// An instruction.
    Instruct { task: TaskId, kind: InstructionKind },
    /// The end of a task.
    Cancel { task: TaskId },
    /// A merge.
    Merge { task: TaskId, pull_request: PullRequestId },
    /// Another attempt at what the task asks about.
    TryAgain { task: TaskId, wait: WaitId },
}

/// What a question before something is done is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DialogPurpose {
    /// Something is done to what there is.
    Act(ScreenAction),
    /// A new task asks for the same as one that has ended.
    AskAgain(TaskId),
}

/// Whether words belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextRequirement {
    None,
    Optional,
    Needed,
}

/// A question before something is done.
#[derive(Clone, Debug)]
pub(super) struct Dialog {
    pub(super) purpose: DialogPurpose,
    /// What is asked.
    pub(super) question: String,
    /// What it is about, exactly.
    pub(super) body: Vec<String>,
    pub(super) words: TextRequirement,
    pub(super) input: LineInput,
    /// The wait that it is about: another wait is another question.
    pub(super) about: Option<WaitId>,
    /// Names the attempt.
    pub(super) number: u64,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
    /// What is told when it is done.
    pub(super) done: String,
}

/// The form for a new task. Behind the checks that are filled in there is an empty one.
#[derive(Clone, Debug)]
pub(super) struct TaskForm {
    pub(super) project: LineInput,
    pub(super) words: LineInput,
    pub(super) checks: Vec<LineInput>,
    pub(super) budget: LineInput,
    /// The number of the field that is typed: project, words, each check, budget.
    pub(super) field: usize,
    /// Names the attempt.
    pub(super) number: u64,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
}

impl TaskForm {
    pub(super) fn new(project: &str, number: u64) -> Self {
        Self {
            project: LineInput::with_text(project),
            words: LineInput::default(),
            checks: vec![LineInput::default()],
            budget: LineInput::default(),
            field: usize::from(!project.is_empty()),
            number,
            sending: false,
            failure: None,
        }
    }

    /// How many fields it has.
    pub(super) const fn field_count(&self) -> usize {
        self.checks.len() + 3
    }

    /// Each field with its name.
    pub(super) fn named_fields(&self) -> Vec<(&'static str, &LineInput)> {
        let checks = self.checks.iter().map(|check| ("check", check));
        let first = [("project", &self.project), ("task", &self.words)];
        first.into_iter().chain(checks).chain([("budget", &self.budget)]).collect()
    }

    /// The field that is typed.
    pub(super) fn active_field(&mut self) -> &mut LineInput {
        match self.field {
            0 => &mut self.project,
            1 => &mut self.words,
            at => self.checks.get_mut(at - 2).unwrap_or(&mut self.budget),
        }
    }

    /// Keeps one empty check behind those that are filled in.
    pub(super) fn normalize_checks(&mut self) {
        if self.checks.last().is_none_or(|check| !check.as_str().is_empty()) {
            // Whoever stands in the budget stays there.
            self.field += usize::from(self.field == self.field_count() - 1);
            self.checks.push(LineInput::default());
        }
        let is_spare = |at: usize, form: &Self| {
            form.checks.get(at).is_some_and(|check| check.as_str().is_empty())
        };
        while self.checks.len() > 1
            && is_spare(self.checks.len() - 1, self)
            && is_spare(self.checks.len() - 2, self)
        {
            self.field -= usize::from(self.field > self.checks.len());
            self.checks.pop();
        }
    }
}

/// Who said something in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChatSpeaker {
    Person,
    Manager,
}

/// The conversation with the project manager.
#[derive(Clone, Debug, Default)]
pub(super) struct ChatConversation {
    /// What was said, oldest first; the last may still be on its way.
    pub(super) turns: Vec<(ChatSpeaker, String)>,
    pub(super) input: LineInput,
    /// The project that it is about; the preference `chat.default_project` decides when there is none.
    pub(super) project: Option<ProjectId>,
    /// Names the question that is answered now.
    pub(super) number: u64,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
}

/// What is searched for in a text.
#[derive(Clone, Debug, Default)]
pub(super) struct TextSearch {
    pub(super) input: LineInput,
    pub(super) typing: bool,
}

/// Where a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchDirection {
    /// To the first match from the top of what is in sight.
    Here,
    Next,
    Previous,
}

/// A line that is shown for a while.
#[derive(Clone, Debug)]
pub(super) struct StatusNote {
    pub(super) text: String,
    pub(super) good: bool,
    pub(super) since: OffsetDateTime,
}

/// What is looked for in the list of tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskListFilter {
    pub(super) input: LineInput,
    pub(super) typing: bool,
    /// What the server was asked for: the words `state:…` and `project:…`.
    pub(super) query: TaskListQuery,
}

impl TaskListFilter {
    /// What the server can look for.
    pub(super) fn server_query(&self) -> TaskListQuery {
        let word = |name: &str| {
            let mut words = self.input.as_str().split_whitespace();
            words
                .find_map(|it| it.strip_prefix(name).filter(|it| !it.is_empty()))
                .map(str::to_owned)
        };
        TaskListQuery { state: word("state:"), project: word("project:") }
    }

    /// Whether a task is one of those.
    pub(super) fn matches_task(&self, task: &TaskView) -> bool {
        let is = |wanted: &Option<String>, it: &str| wanted.as_deref().is_none_or(|all| all == it);
        if !is(&self.query.state, task.state.as_str()) {
            return false;
        }
        let mut words = self.input.as_str().split_whitespace();
        words.all(|word| {
            let word = word.to_lowercase();
            word.starts_with("state:")
                || word.starts_with("project:")
                || task.name.as_str().to_lowercase().contains(&word)
                || task.description.as_str().to_lowercase().contains(&word)
                || task.state.as_str().contains(&word)
        })
    }
}

/// The rows and columns of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminalSize {
    pub(super) width: u16,
    pub(super) height: u16,
}

impl TerminalSize {
    /// Too small to show anything that helps.
    pub(super) const fn is_too_small(self) -> bool {
        self.width < 60 || self.height < 15
    }

    /// Whether a list and what is chosen in it have room beside each other.
    pub(super) const fn is_wide(self) -> bool {
        self.width >= 120
    }
}

/// All that the screen is.
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own")]
#[derive(Debug)]
pub(super) struct ScreenState {
    /// Where the installation is.
    pub(super) base: String,
    /// The time, as it was last told.
    pub(super) now: OffsetDateTime,
    pub(super) size: TerminalSize,
    pub(super) colour: bool,
    /// Whether it must be drawn anew.
    pub(super) changed: bool,
    /// How the names of attempts begin.
    pub(super) seed: String,
    /// How many there were.
    pub(super) attempts: u64,
    /// There when nobody is logged in.
    pub(super) login: Option<LoginForm>,
    pub(super) link: ConnectionState,
    /// The last event that was heard.
    pub(super) position: Option<String>,
    /// How many questions in a row were not answered at all.
    pub(super) unanswered: u32,
    pub(super) shelf: FetchCache,
    pub(super) known: ScreenStore,
    pub(super) pane: Pane,
    pub(super) part: TaskPart,
    pub(super) focus: Focus,
    pub(super) filter: TaskListFilter,
    /// What is chosen; the first when there is none.
    pub(super) task: Option<TaskId>,
    pub(super) item: Option<InboxItem>,
    pub(super) node: Option<NodeId>,
    pub(super) project: Option<ProjectId>,
    pub(super) pull: Option<PullRequestId>,
    pub(super) model: Option<String>,
    /// The only project whose pull requests are listed.
    pub(super) scope: Option<ProjectId>,
    pub(super) unit: Option<UnitKey>,
    pub(super) job: Option<JobId>,
    pub(super) file: Option<String>,
    /// When something else was chosen last: what is passed over quickly is not asked for.
    pub(super) chosen_at: OffsetDateTime,
    /// Whether the end of a log stays in sight.
    pub(super) follow: bool,
    /// Whether long lines are wrapped.
    pub(super) wrap: bool,
    /// How many cells of long lines are hidden on the left while they are not.
    pub(super) shift: usize,
    pub(super) search: TextSearch,
    /// Where the search goes once the lines that hold it are known: they are found while it is drawn.
    pub(super) seek: Option<SearchDirection>,
    /// The line of the match that was gone to last.
    pub(super) found: Option<usize>,
    /// What is typed behind the colon.
    pub(super) prompt: Option<LineInput>,
    pub(super) form: Option<TaskForm>,
    pub(super) chat: ChatConversation,
    /// The project that the directory belongs to, or the one that was chosen for good: a name or an id.
    pub(super) home: Option<String>,
    pub(super) offsets: BTreeMap<ScrollArea, usize>,
    pub(super) drawn: ScreenLayout,
    pub(super) dialog: Option<Dialog>,
    pub(super) help: bool,
    pub(super) note: Option<StatusNote>,
}

impl ScreenState {
    /// The screen as it opens.
    pub(super) fn new(base: &str, seed: String, now: OffsetDateTime, size: TerminalSize) -> Self {
        Self {
            base: base.to_owned(),
            now,
            size,
            colour: true,
            changed: true,
            seed,
            attempts: 0,
            login: None,
            link: ConnectionState::Opening,
            position: None,
            unanswered: 0,
            shelf: FetchCache::default(),
            known: ScreenStore::default(),
            pane: Pane::Tasks,
            part: TaskPart::Plan,
            focus: Focus::List,
            filter: TaskListFilter::default(),
            task: None,
            item: None,
            node: None,
            project: None,
            pull: None,
            model: None,
            scope: None,
            unit: None,
            job: None,
            file: None,
            chosen_at: now - time::Duration::seconds(1),
            follow: true,
            wrap: true,
            shift: 0,
            search: TextSearch::default(),
            seek: None,
            found: None,
            prompt: None,
            form: None,
            chat: ChatConversation::default(),
            home: None,
            offsets: BTreeMap::new(),
            drawn: ScreenLayout::default(),
            dialog: None,
            help: false,
            note: None,
        }
    }

    /// The tasks of the list, newest first.
    pub(super) fn listed_tasks(&self) -> Vec<&TaskView> {
        let listed = self.known.listed.iter().rev().filter_map(|id| self.known.tasks.get(id));
        listed.filter(|task| self.filter.matches_task(task)).collect()
    }

    /// The task that is chosen; it stays so when it is not in the list any more.
    pub(super) fn chosen_task(&self) -> Option<&TaskView> {
        match self.task {
            Some(id) => self.known.tasks.get(&id),
            None => self.listed_tasks().first().copied(),
        }
    }

    /// Whether one task is in sight.
    pub(super) fn shows_task(&self) -> bool {
        self.pane == Pane::Tasks && (self.size.is_wide() || self.focus == Focus::Detail)
    }

    /// What waits for the person.
    pub(super) fn inbox_items(&self) -> Vec<InboxItem> {
        self.known.inbox_items(self.now)
    }

    /// What is chosen there.
    pub(super) fn chosen_item(&self) -> Option<InboxItem> {
        let inbox = self.inbox_items();
        self.item.filter(|item| inbox.contains(item)).or_else(|| inbox.first().copied())
    }

    /// The node that is chosen.
    pub(super) fn chosen_node(&self) -> Option<&NodeView> {
        let chosen = self.known.nodes.iter().find(|node| Some(node.node_id) == self.node);
        chosen.or_else(|| self.known.nodes.first())
    }

    /// The project that is chosen.
    pub(super) fn chosen_project(&self) -> Option<&ProjectView> {
        let projects = &self.known.project_views;
        let chosen = projects.iter().find(|it| Some(it.id) == self.project);
        chosen.or_else(|| projects.first())
    }

    /// The pull request that is chosen in its pane.
    pub(super) fn chosen_pull_request(&self) -> Option<&PullRequestView> {
        let pulls = &self.known.pulls;
        pulls.iter().find(|it| Some(it.id) == self.pull).or_else(|| pulls.first())
    }

    /// The model that is chosen.
    pub(super) fn chosen_model(&self) -> Option<&ModelView> {
        let models = &self.known.models;
        let chosen = models.iter().find(|it| Some(&it.id) == self.model.as_ref());
        chosen.or_else(|| models.first())
    }

    /// The project that a new task or a conversation is about when nobody says: the one in sight, else that of the directory.
    pub(super) fn default_project(&self) -> Option<ProjectId> {
        let by_name = |name: &str| {
            let id = name.parse().ok().filter(|id| self.known.projects.contains_key(id));
            id.or_else(|| self.known.find_project(name))
        };
        let in_sight = match self.pane {
            Pane::Projects => self.chosen_project().map(|it| it.id),
            Pane::PullRequests => self.chosen_pull_request().map(|it| it.project_id),
            _ => self.filter.query.project.as_deref().and_then(by_name),
        };
        let home = || self.home.as_deref().and_then(by_name);
        let only = || self.known.projects.keys().next().copied();
        let task = || self.chosen_task().map(|task| task.project_id);
        in_sight.or_else(home).or_else(task).or_else(only)
    }

    /// The place whose text is in sight and can be searched and scrolled sideways.
    pub(super) fn visible_text_area(&self) -> Option<ScrollArea> {
        let place = self.part.scroll_area();
        (self.shows_task() && place.is_text()).then_some(place)
    }

    /// The story of the task that is chosen.
    pub(super) fn chosen_timeline(&self) -> Option<&TaskTimeline> {
        self.known.timelines.get(&self.chosen_task()?.id)
    }

    /// The unit whose words are shown: the one that was chosen, else the first that is worked on.
    pub(super) fn chosen_unit(&self) -> Option<usize> {
        let units = &self.chosen_timeline()?.units;
        let chosen = units.iter().position(|unit| Some(&unit.key) == self.unit.as_ref());
        let works = |unit: &UnitView| {
            matches!(unit.state, UnitState::Dispatched | UnitState::Collected | UnitState::Failed)
        };
        chosen.or_else(|| units.iter().position(works)).or((!units.is_empty()).then_some(0))
    }

    /// The job whose log is shown: the one that was chosen, else the last that has begun.
    pub(super) fn chosen_job(&self) -> Option<&JobEntry> {
        let jobs = &self.chosen_timeline()?.jobs;
        let chosen = jobs.iter().find(|job| Some(job.job_id) == self.job);
        chosen.or_else(|| jobs.iter().rev().find(|job| job.started_at.is_some())).or(jobs.last())
    }

    /// What the chosen task was delivered as.
    pub(super) fn pull_request(&self) -> Option<&PullRequestEntry> {
        self.chosen_timeline()?.pull_request.as_ref()
    }

    /// The file whose changes are shown.
    pub(super) fn chosen_file(&self) -> Option<&str> {
        let files = &self.known.files.get(&self.pull_request()?.id)?.files;
        let chosen = files.iter().find(|file| Some(&file.path) == self.file.as_ref());
        chosen.or_else(|| files.first()).map(|file| file.path.as_str())
    }

    /// What the chosen task waits for from a person.
    pub(super) fn wait_reason_of(&self, task: TaskId) -> Option<WaitReason> {
        self.known.waits.get(&task).map(|wait| wait.reason)
    }

    /// Whether what the chosen task brought can be merged here.
    pub(super) fn mergeable_pull_request(&self) -> Option<&PullRequestEntry> {
        self.pull_request().filter(|it| it.state == PullRequestState::Open)
    }

    /// How far a place is scrolled.
    pub(super) fn scroll_offset(&self, place: ScrollArea) -> usize {
        self.offsets.get(&place).copied().unwrap_or(0)
    }

    /// Says something for a while.
    pub(super) fn show_note(&mut self, text: impl Into<String>, good: bool) {
        self.note = Some(StatusNote { text: text.into(), good, since: self.now });
        self.changed = true;
    }
}
