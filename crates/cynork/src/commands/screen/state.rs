//! What is shown: which pane, which row, how far it is scrolled, what is being typed.

use std::collections::BTreeMap;

use cynode_core::{
    delivery::PullRequestState,
    ids::{ApprovalId, JobId, NodeId, PullRequestId, TaskId, WaitId},
    workflow::{instructions::InstructionKind, plan::UnitKey, units::UnitState, waits::WaitReason},
};
use cynode_wire::{
    nodes::NodeView,
    tasks::TaskView,
    timeline::{JobEntry, PullRequestEntry, Timeline},
    workflow::UnitView,
};
use ratatui::layout::Rect;
use time::OffsetDateTime;

use super::{
    input::Input,
    known::{Item, Knowledge},
    shelf::{Query, Shelf},
};
use crate::failure::Failure;

/// The panes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pane {
    Tasks,
    Inbox,
    Nodes,
    Spend,
}

impl Pane {
    pub(super) const ALL: [Self; 4] = [Self::Tasks, Self::Inbox, Self::Nodes, Self::Spend];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Tasks => "Tasks",
            Self::Inbox => "Inbox",
            Self::Nodes => "Nodes",
            Self::Spend => "Spend",
        }
    }
}

/// The parts of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Plan,
    Timeline,
    Logs,
    Diff,
    Evidence,
}

impl Part {
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
    pub(super) const fn place(self) -> Place {
        match self {
            Self::Plan => Place::Plan,
            Self::Timeline => Place::Timeline,
            Self::Logs => Place::Log,
            Self::Diff => Place::Diff,
            Self::Evidence => Place::Evidence,
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
pub(super) enum Place {
    Tasks,
    Inbox,
    Item,
    Nodes,
    Node,
    Spend,
    Budgets,
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
pub(super) enum Hit {
    Pane(Pane),
    Part(Part),
    /// A row of a list, by its number.
    Row(Place, usize),
    /// Anywhere in what scrolls.
    Area(Place),
    /// A field of the form.
    Field(usize),
    Yes,
    No,
    Help,
}

/// What was drawn, as far as keys and clicks must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    /// What is where; what comes later lies on top.
    pub(super) hits: Vec<(Rect, Hit)>,
    /// The first line of each place that was shown.
    pub(super) tops: BTreeMap<Place, usize>,
    /// How many lines of it were.
    pub(super) pages: BTreeMap<Place, usize>,
    /// The last line that can be the first.
    pub(super) ends: BTreeMap<Place, usize>,
}

/// How it is with the server.
#[derive(Clone, Debug)]
pub(super) enum Link {
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
        why: Failure,
    },
}

/// The form for whoever is not logged in.
#[derive(Clone, Debug, Default)]
pub(super) struct Login {
    pub(super) handle: Input,
    pub(super) password: Input,
    /// Which of the two is typed.
    pub(super) field: usize,
    pub(super) sending: bool,
    pub(super) failure: Option<Failure>,
}

/// Something that is done to the installation: the same operations as the commands'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
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
}

/// Whether words belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    None,
    Optional,
    Needed,
}

/// A question before something is done.
#[derive(Clone, Debug)]
pub(super) struct Dialog {
    pub(super) deed: Deed,
    /// What is asked.
    pub(super) question: String,
    /// What it is about, exactly.
    pub(super) body: Vec<String>,
    pub(super) words: Words,
    pub(super) input: Input,
    /// The wait that it is about: another wait is another question.
    pub(super) about: Option<WaitId>,
    /// Names the attempt.
    pub(super) number: u64,
    pub(super) sending: bool,
    pub(super) failure: Option<Failure>,
    /// What is told when it is done.
    pub(super) done: String,
}

/// A line that is shown for a while.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) text: String,
    pub(super) good: bool,
    pub(super) since: OffsetDateTime,
}

/// What is looked for in the list of tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) input: Input,
    pub(super) typing: bool,
    /// What the server was asked for: the words `state:…` and `project:…`.
    pub(super) query: Query,
}

impl Filter {
    /// What the server can look for.
    pub(super) fn asked(&self) -> Query {
        let word = |name: &str| {
            let mut words = self.input.text().split_whitespace();
            words
                .find_map(|it| it.strip_prefix(name).filter(|it| !it.is_empty()))
                .map(str::to_owned)
        };
        Query { state: word("state:"), project: word("project:") }
    }

    /// Whether a task is one of those.
    pub(super) fn takes(&self, task: &TaskView) -> bool {
        let is = |wanted: &Option<String>, it: &str| wanted.as_deref().is_none_or(|all| all == it);
        if !is(&self.query.state, task.state.as_str()) {
            return false;
        }
        let mut words = self.input.text().split_whitespace();
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
pub(super) struct Size {
    pub(super) width: u16,
    pub(super) height: u16,
}

impl Size {
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
pub(super) struct State {
    /// Where the installation is.
    pub(super) base: String,
    /// The time, as it was last told.
    pub(super) now: OffsetDateTime,
    pub(super) size: Size,
    pub(super) colour: bool,
    /// Whether it must be drawn anew.
    pub(super) changed: bool,
    /// How the names of attempts begin.
    pub(super) seed: String,
    /// How many there were.
    pub(super) attempts: u64,
    /// There when nobody is logged in.
    pub(super) login: Option<Login>,
    pub(super) link: Link,
    /// The last event that was heard.
    pub(super) position: Option<String>,
    /// How many questions in a row were not answered at all.
    pub(super) unanswered: u32,
    pub(super) shelf: Shelf,
    pub(super) known: Knowledge,
    pub(super) pane: Pane,
    pub(super) part: Part,
    pub(super) focus: Focus,
    pub(super) filter: Filter,
    /// What is chosen; the first when there is none.
    pub(super) task: Option<TaskId>,
    pub(super) item: Option<Item>,
    pub(super) node: Option<NodeId>,
    pub(super) unit: Option<UnitKey>,
    pub(super) job: Option<JobId>,
    pub(super) file: Option<String>,
    /// When something else was chosen last: what is passed over quickly is not asked for.
    pub(super) chosen_at: OffsetDateTime,
    /// Whether the end of a log stays in sight.
    pub(super) follow: bool,
    pub(super) offsets: BTreeMap<Place, usize>,
    pub(super) drawn: Drawn,
    pub(super) dialog: Option<Dialog>,
    pub(super) help: bool,
    pub(super) note: Option<Note>,
}

impl State {
    /// The screen as it opens.
    pub(super) fn new(base: &str, seed: String, now: OffsetDateTime, size: Size) -> Self {
        Self {
            base: base.to_owned(),
            now,
            size,
            colour: true,
            changed: true,
            seed,
            attempts: 0,
            login: None,
            link: Link::Opening,
            position: None,
            unanswered: 0,
            shelf: Shelf::default(),
            known: Knowledge::default(),
            pane: Pane::Tasks,
            part: Part::Plan,
            focus: Focus::List,
            filter: Filter::default(),
            task: None,
            item: None,
            node: None,
            unit: None,
            job: None,
            file: None,
            chosen_at: now - time::Duration::seconds(1),
            follow: true,
            offsets: BTreeMap::new(),
            drawn: Drawn::default(),
            dialog: None,
            help: false,
            note: None,
        }
    }

    /// The tasks of the list, newest first.
    pub(super) fn listed(&self) -> Vec<&TaskView> {
        let listed = self.known.listed.iter().rev().filter_map(|id| self.known.tasks.get(id));
        listed.filter(|task| self.filter.takes(task)).collect()
    }

    /// The task that is chosen; it stays so when it is not in the list any more.
    pub(super) fn chosen_task(&self) -> Option<&TaskView> {
        match self.task {
            Some(id) => self.known.tasks.get(&id),
            None => self.listed().first().copied(),
        }
    }

    /// Whether one task is in sight.
    pub(super) fn shows_task(&self) -> bool {
        self.pane == Pane::Tasks && (self.size.is_wide() || self.focus == Focus::Detail)
    }

    /// What waits for the person.
    pub(super) fn inbox(&self) -> Vec<Item> {
        self.known.inbox(self.now)
    }

    /// What is chosen there.
    pub(super) fn chosen_item(&self) -> Option<Item> {
        let inbox = self.inbox();
        self.item.filter(|item| inbox.contains(item)).or_else(|| inbox.first().copied())
    }

    /// The node that is chosen.
    pub(super) fn chosen_node(&self) -> Option<&NodeView> {
        let chosen = self.known.nodes.iter().find(|node| Some(node.node_id) == self.node);
        chosen.or_else(|| self.known.nodes.first())
    }

    /// The story of the task that is chosen.
    pub(super) fn timeline(&self) -> Option<&Timeline> {
        self.known.timelines.get(&self.chosen_task()?.id)
    }

    /// The unit whose words are shown: the one that was chosen, else the first that is worked on.
    pub(super) fn chosen_unit(&self) -> Option<usize> {
        let units = &self.timeline()?.units;
        let chosen = units.iter().position(|unit| Some(&unit.key) == self.unit.as_ref());
        let works = |unit: &UnitView| {
            matches!(unit.state, UnitState::Dispatched | UnitState::Collected | UnitState::Failed)
        };
        chosen.or_else(|| units.iter().position(works)).or((!units.is_empty()).then_some(0))
    }

    /// The job whose log is shown: the one that was chosen, else the last that has begun.
    pub(super) fn chosen_job(&self) -> Option<&JobEntry> {
        let jobs = &self.timeline()?.jobs;
        let chosen = jobs.iter().find(|job| Some(job.job_id) == self.job);
        chosen.or_else(|| jobs.iter().rev().find(|job| job.started_at.is_some())).or(jobs.last())
    }

    /// What the chosen task was delivered as.
    pub(super) fn pull_request(&self) -> Option<&PullRequestEntry> {
        self.timeline()?.pull_request.as_ref()
    }

    /// The file whose changes are shown.
    pub(super) fn chosen_file(&self) -> Option<&str> {
        let files = &self.known.files.get(&self.pull_request()?.id)?.files;
        let chosen = files.iter().find(|file| Some(&file.path) == self.file.as_ref());
        chosen.or_else(|| files.first()).map(|file| file.path.as_str())
    }

    /// What the chosen task waits for from a person.
    pub(super) fn waits_for(&self, task: TaskId) -> Option<WaitReason> {
        self.known.waits.get(&task).map(|wait| wait.reason)
    }

    /// Whether what the chosen task brought can be merged here.
    pub(super) fn may_merge(&self) -> Option<&PullRequestEntry> {
        self.pull_request().filter(|it| it.state == PullRequestState::Open)
    }

    /// How far a place is scrolled.
    pub(super) fn offset(&self, place: Place) -> usize {
        self.offsets.get(&place).copied().unwrap_or(0)
    }

    /// Says something for a while.
    pub(super) fn tell(&mut self, text: impl Into<String>, good: bool) {
        self.note = Some(Note { text: text.into(), good, since: self.now });
        self.changed = true;
    }
}
