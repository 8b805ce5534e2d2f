//! The display state: pane, selection, scroll position, text inputs.

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
    /// Returns whether its lines can be searched and shown unwrapped.
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

    /// Returns its scroll area.
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

/// The side that has the keyboard focus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    List,
    Detail,
}

/// A scrollable area.
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

/// The target of a click.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClickTarget {
    Pane(Pane),
    Part(TaskPart),
    /// A row of a list, by its number.
    Row(ScrollArea, usize),
    /// Any other position in a scroll area.
    Area(ScrollArea),
    /// A field of the form.
    Field(usize),
    Yes,
    No,
    Help,
}

/// The layout of the last frame, as far as keys and clicks need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScreenLayout {
    /// The rectangles of targets; later ones are on top.
    pub(super) hits: Vec<(Rect, ClickTarget)>,
    /// The first visible line of each area.
    pub(super) tops: BTreeMap<ScrollArea, usize>,
    /// The number of visible lines of each area.
    pub(super) pages: BTreeMap<ScrollArea, usize>,
    /// The last possible first line of each area.
    pub(super) ends: BTreeMap<ScrollArea, usize>,
    /// The lines of the visible area that contain a match.
    pub(super) matches: Vec<usize>,
    /// Number of cells of the longest line that are hidden on the right in unwrapped mode.
    pub(super) overflow: usize,
}

/// State of the connection to the server.
#[derive(Clone, Debug)]
pub(super) enum ConnectionState {
    /// The first connection is being opened.
    Opening,
    /// The event stream is open.
    Live,
    /// The connection is lost.
    Lost {
        since: OffsetDateTime,
        /// Time of the next attempt; `None` while one is in progress.
        again: Option<OffsetDateTime>,
        tries: u32,
        why: CliError,
    },
}

/// The login form.
#[derive(Clone, Debug, Default)]
pub(super) struct LoginForm {
    pub(super) handle: LineInput,
    pub(super) password: LineInput,
    /// Which of the two fields is active.
    pub(super) field: usize,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
}

/// An action on the installation: the same operations as those of the commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScreenAction {
    /// Approve or reject the plan of exactly this wait.
    Approve { task: TaskId, wait: WaitId, yes: bool },
    /// Answer the question of this wait.
    Answer { task: TaskId, wait: WaitId },
    /// Approve or deny a tool call.
    Decide { approval: ApprovalId, yes: bool },
    /// Send an instruction.
    Instruct { task: TaskId, kind: InstructionKind },
    /// Cancel a task.
    Cancel { task: TaskId },
    /// Merge a pull request.
    Merge { task: TaskId, pull_request: PullRequestId },
    /// Retry the step that the task asks about.
    TryAgain { task: TaskId, wait: WaitId },
}

/// The purpose of a confirmation dialog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DialogPurpose {
    /// Perform an action on an existing object.
    Act(ScreenAction),
    /// Create a new task like one that has ended.
    AskAgain(TaskId),
}

/// Whether the dialog takes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextRequirement {
    None,
    Optional,
    Needed,
}

/// A confirmation dialog.
#[derive(Clone, Debug)]
pub(super) struct Dialog {
    pub(super) purpose: DialogPurpose,
    /// The question of the dialog.
    pub(super) question: String,
    /// The exact object of the question.
    pub(super) body: Vec<String>,
    pub(super) words: TextRequirement,
    pub(super) input: LineInput,
    /// The wait that it is about: another wait is another question.
    pub(super) about: Option<WaitId>,
    /// Number of the attempt, for its idempotency key.
    pub(super) number: u64,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
    /// The note after success.
    pub(super) done: String,
}

/// The form of a new task. One empty check follows the filled ones.
#[derive(Clone, Debug)]
pub(super) struct TaskForm {
    pub(super) project: LineInput,
    pub(super) words: LineInput,
    pub(super) checks: Vec<LineInput>,
    pub(super) budget: LineInput,
    /// The number of the active field: project, description, each check, budget.
    pub(super) field: usize,
    /// Number of the attempt, for its idempotency key.
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

    /// Returns the number of fields.
    pub(super) const fn field_count(&self) -> usize {
        self.checks.len() + 3
    }

    /// Returns each field with its name.
    pub(super) fn named_fields(&self) -> Vec<(&'static str, &LineInput)> {
        let checks = self.checks.iter().map(|check| ("check", check));
        let first = [("project", &self.project), ("task", &self.words)];
        first.into_iter().chain(checks).chain([("budget", &self.budget)]).collect()
    }

    /// Returns the active field.
    pub(super) fn active_field(&mut self) -> &mut LineInput {
        match self.field {
            0 => &mut self.project,
            1 => &mut self.words,
            at => self.checks.get_mut(at - 2).unwrap_or(&mut self.budget),
        }
    }

    /// Keeps exactly one empty check after the filled ones.
    pub(super) fn normalize_checks(&mut self) {
        if self.checks.last().is_none_or(|check| !check.as_str().is_empty()) {
            // A cursor in the budget stays there.
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

/// The author of a chat message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChatSpeaker {
    Person,
    Manager,
}

/// The conversation with the project manager.
#[derive(Clone, Debug, Default)]
pub(super) struct ChatConversation {
    /// The messages, oldest first; the last may be incomplete.
    pub(super) turns: Vec<(ChatSpeaker, String)>,
    pub(super) input: LineInput,
    /// The project of the conversation; the preference `chat.default_project` decides if there is none.
    pub(super) project: Option<ProjectId>,
    /// Number of the pending question.
    pub(super) number: u64,
    pub(super) sending: bool,
    pub(super) failure: Option<CliError>,
}

/// A text search.
#[derive(Clone, Debug, Default)]
pub(super) struct TextSearch {
    pub(super) input: LineInput,
    pub(super) typing: bool,
}

/// The direction of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchDirection {
    /// To the first match from the top of the visible area.
    Here,
    Next,
    Previous,
}

/// A note that is shown for a while.
#[derive(Clone, Debug)]
pub(super) struct StatusNote {
    pub(super) text: String,
    pub(super) good: bool,
    pub(super) since: OffsetDateTime,
}

/// The filter of the task list.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskListFilter {
    pub(super) input: LineInput,
    pub(super) typing: bool,
    /// The part that the server applies: the words `state:…` and `project:…`.
    pub(super) query: TaskListQuery,
}

impl TaskListFilter {
    /// Returns the part of the filter for the server.
    pub(super) fn server_query(&self) -> TaskListQuery {
        let word = |name: &str| {
            let mut words = self.input.as_str().split_whitespace();
            words
                .find_map(|it| it.strip_prefix(name).filter(|it| !it.is_empty()))
                .map(str::to_owned)
        };
        TaskListQuery { state: word("state:"), project: word("project:") }
    }

    /// Returns whether a task matches.
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

/// The size of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminalSize {
    pub(super) width: u16,
    pub(super) height: u16,
}

impl TerminalSize {
    /// Returns whether it is too small for any useful display.
    pub(super) const fn is_too_small(self) -> bool {
        self.width < 60 || self.height < 15
    }

    /// Returns whether a list and its detail fit side by side.
    pub(super) const fn is_wide(self) -> bool {
        self.width >= 120
    }
}

/// The whole state of the screen.
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own")]
#[derive(Debug)]
pub(super) struct ScreenState {
    /// Address of the installation.
    pub(super) base: String,
    /// The current time.
    pub(super) now: OffsetDateTime,
    pub(super) size: TerminalSize,
    pub(super) colour: bool,
    /// Whether it must be redrawn.
    pub(super) changed: bool,
    /// Prefix of the idempotency keys.
    pub(super) seed: String,
    /// Number of attempts so far.
    pub(super) attempts: u64,
    /// Present if nobody is logged in.
    pub(super) login: Option<LoginForm>,
    pub(super) link: ConnectionState,
    /// Id of the last received event.
    pub(super) position: Option<String>,
    /// Number of consecutive requests without any response.
    pub(super) unanswered: u32,
    pub(super) shelf: FetchCache,
    pub(super) known: ScreenStore,
    pub(super) pane: Pane,
    pub(super) part: TaskPart,
    pub(super) focus: Focus,
    pub(super) filter: TaskListFilter,
    /// The selected items; the first item if there is none.
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
    /// Time of the last selection change, for debouncing: items that are only passed are not fetched.
    pub(super) chosen_at: OffsetDateTime,
    /// Whether a log follows its end.
    pub(super) follow: bool,
    /// Whether long lines are wrapped.
    pub(super) wrap: bool,
    /// Number of cells that are hidden on the left in unwrapped mode.
    pub(super) shift: usize,
    pub(super) search: TextSearch,
    /// The pending search direction: matches are found while drawing.
    pub(super) seek: Option<SearchDirection>,
    /// The line of the current match.
    pub(super) found: Option<usize>,
    /// The text of the prompt.
    pub(super) prompt: Option<LineInput>,
    pub(super) form: Option<TaskForm>,
    pub(super) chat: ChatConversation,
    /// The project of the working directory, or the configured default: a name or an id.
    pub(super) home: Option<String>,
    pub(super) offsets: BTreeMap<ScrollArea, usize>,
    pub(super) drawn: ScreenLayout,
    pub(super) dialog: Option<Dialog>,
    pub(super) help: bool,
    pub(super) note: Option<StatusNote>,
}

impl ScreenState {
    /// Creates the initial state.
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

    /// Returns the listed tasks, newest first.
    pub(super) fn listed_tasks(&self) -> Vec<&TaskView> {
        let listed = self.known.listed.iter().rev().filter_map(|id| self.known.tasks.get(id));
        listed.filter(|task| self.filter.matches_task(task)).collect()
    }

    /// Returns the selected task, even if it is not listed any more.
    pub(super) fn chosen_task(&self) -> Option<&TaskView> {
        match self.task {
            Some(id) => self.known.tasks.get(&id),
            None => self.listed_tasks().first().copied(),
        }
    }

    /// Returns whether one task is visible.
    pub(super) fn shows_task(&self) -> bool {
        self.pane == Pane::Tasks && (self.size.is_wide() || self.focus == Focus::Detail)
    }

    /// Returns the items of the inbox.
    pub(super) fn inbox_items(&self) -> Vec<InboxItem> {
        self.known.inbox_items(self.now)
    }

    /// Returns the selected item of the inbox.
    pub(super) fn chosen_item(&self) -> Option<InboxItem> {
        let inbox = self.inbox_items();
        self.item.filter(|item| inbox.contains(item)).or_else(|| inbox.first().copied())
    }

    /// Returns the selected node.
    pub(super) fn chosen_node(&self) -> Option<&NodeView> {
        let chosen = self.known.nodes.iter().find(|node| Some(node.node_id) == self.node);
        chosen.or_else(|| self.known.nodes.first())
    }

    /// Returns the selected project.
    pub(super) fn chosen_project(&self) -> Option<&ProjectView> {
        let projects = &self.known.project_views;
        let chosen = projects.iter().find(|it| Some(it.id) == self.project);
        chosen.or_else(|| projects.first())
    }

    /// Returns the pull request that is selected in its pane.
    pub(super) fn chosen_pull_request(&self) -> Option<&PullRequestView> {
        let pulls = &self.known.pulls;
        pulls.iter().find(|it| Some(it.id) == self.pull).or_else(|| pulls.first())
    }

    /// Returns the selected model.
    pub(super) fn chosen_model(&self) -> Option<&ModelView> {
        let models = &self.known.models;
        let chosen = models.iter().find(|it| Some(&it.id) == self.model.as_ref());
        chosen.or_else(|| models.first())
    }

    /// Returns the default project of a new task or a conversation: the visible one, else that of the directory.
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

    /// Returns the visible text area that can be searched and scrolled sideways.
    pub(super) fn visible_text_area(&self) -> Option<ScrollArea> {
        let place = self.part.scroll_area();
        (self.shows_task() && place.is_text()).then_some(place)
    }

    /// Returns the timeline of the selected task.
    pub(super) fn chosen_timeline(&self) -> Option<&TaskTimeline> {
        self.known.timelines.get(&self.chosen_task()?.id)
    }

    /// Returns the unit whose details are shown: the selected one, else the first in progress.
    pub(super) fn chosen_unit(&self) -> Option<usize> {
        let units = &self.chosen_timeline()?.units;
        let chosen = units.iter().position(|unit| Some(&unit.key) == self.unit.as_ref());
        let works = |unit: &UnitView| {
            matches!(unit.state, UnitState::Dispatched | UnitState::Collected | UnitState::Failed)
        };
        chosen.or_else(|| units.iter().position(works)).or((!units.is_empty()).then_some(0))
    }

    /// Returns the job whose log is shown: the selected one, else the last that has started.
    pub(super) fn chosen_job(&self) -> Option<&JobEntry> {
        let jobs = &self.chosen_timeline()?.jobs;
        let chosen = jobs.iter().find(|job| Some(job.job_id) == self.job);
        chosen.or_else(|| jobs.iter().rev().find(|job| job.started_at.is_some())).or(jobs.last())
    }

    /// Returns the pull request of the selected task.
    pub(super) fn pull_request(&self) -> Option<&PullRequestEntry> {
        self.chosen_timeline()?.pull_request.as_ref()
    }

    /// Returns the file whose diff is shown.
    pub(super) fn chosen_file(&self) -> Option<&str> {
        let files = &self.known.files.get(&self.pull_request()?.id)?.files;
        let chosen = files.iter().find(|file| Some(&file.path) == self.file.as_ref());
        chosen.or_else(|| files.first()).map(|file| file.path.as_str())
    }

    /// Returns the reason why a task waits for a person.
    pub(super) fn wait_reason_of(&self, task: TaskId) -> Option<WaitReason> {
        self.known.waits.get(&task).map(|wait| wait.reason)
    }

    /// Returns the pull request of the selected task, if it can be merged here.
    pub(super) fn mergeable_pull_request(&self) -> Option<&PullRequestEntry> {
        self.pull_request().filter(|it| it.state == PullRequestState::Open)
    }

    /// Returns the scroll offset of an area.
    pub(super) fn scroll_offset(&self, place: ScrollArea) -> usize {
        self.offsets.get(&place).copied().unwrap_or(0)
    }

    /// Shows a note for a while.
    pub(super) fn show_note(&mut self, text: impl Into<String>, good: bool) {
        self.note = Some(StatusNote { text: text.into(), good, since: self.now });
        self.changed = true;
    }
}
