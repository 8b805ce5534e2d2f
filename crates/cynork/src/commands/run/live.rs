//! A task that is followed: what stays is told once, what moves is drawn below, and where the task asks, the person is asked.

mod asking;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use cynode_core::workflow::units::UnitState;
use cynode_wire::{
    handoffs::Planned,
    tasks::TaskView,
    timeline::{StepEntry, Timeline},
    workflow::UnitView,
};
use time::OffsetDateTime;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior},
};

use self::asking::Question;
use super::{
    before::{Before, stages},
    ending::Ended,
};
use crate::{
    context::Context,
    draw,
    failure::{Failure, Kind, Result},
    follow::{Follow, InJob, News, Told},
    output::Form,
    terminal::{Paint, Screen, Style, Typist, clock, first_line, fit},
};

/// How often what moves is drawn anew.
const FRAME: Duration = Duration::from_millis(250);

/// How many lines of what is said and written are shown.
const TAIL: usize = 3;

/// How many columns the name of a job takes there.
const NAME: usize = 20;

/// How much of why something was sent back is told; `cynork task timeline --json` has all of it.
const NOTE: usize = 220;

/// A task that is followed.
pub(super) struct Scene<'a> {
    context: &'a Context,
    task: TaskView,
    paint: Paint,
    /// Where it is told; nowhere when only the end is wanted.
    screen: Option<Screen>,
    begun: Instant,
    /// How long it had been going on before it was looked at.
    since: Duration,
    timeline: Option<Timeline>,
    planned: Option<Planned>,
    units: BTreeMap<String, (UnitState, u32)>,
    cost: u64,
    tail: VecDeque<String>,
    /// What is being done in each job, by its id.
    actions: BTreeMap<String, String>,
    away: Option<String>,
    held_up: Option<String>,
    open: VecDeque<Question>,
    asked: Option<Question>,
    typist: Typist,
    /// What is told when the question that is put was answered.
    held: Vec<String>,
    /// When what is being told happened.
    at: Option<OffsetDateTime>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(context: &'a Context, task: TaskView, plain: bool, since: Duration) -> Self {
        let readable = context.out.form == Form::Readable;
        let paint = if plain { Paint(false) } else { context.out.paint };
        let screen = readable.then(|| Screen::new(plain, !paint.0));
        Self {
            context,
            task,
            paint,
            screen,
            begun: Instant::now(),
            since,
            timeline: None,
            planned: None,
            units: BTreeMap::new(),
            cost: 0,
            tail: VecDeque::new(),
            actions: BTreeMap::new(),
            away: None,
            held_up: None,
            open: VecDeque::new(),
            asked: None,
            typist: Typist::default(),
            held: Vec::new(),
            at: None,
        }
    }

    /// Follows it to its end.
    pub(super) async fn play(mut self) -> Result<Ended> {
        let mut follow = Follow::begin(self.context.client.clone(), self.task.id.to_string());
        let mut interrupts = interrupts()?;
        let mut turn = tokio::time::interval(FRAME);
        turn.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = interrupts.recv() => return Err(self.left()),
                line = self.typist.line(), if self.asked.is_some() => {
                    self.at = None;
                    let Some(line) = line else { return Err(self.left()) };
                    let deed = self.decide(&line);
                    // What was pressed in an editor was meant for the editor.
                    interrupts = self::interrupts()?;
                    if let Some(deed) = deed {
                        tokio::select! {
                            done = Box::pin(self.act(deed)) => done?,
                            _ = interrupts.recv() => return Err(self.left()),
                        }
                    }
                }
                news = follow.next() => {
                    let gone = || Failure::internal("the task cannot be followed any more");
                    let news = news.ok_or_else(gone)??;
                    let heard = tokio::select! {
                        heard = Box::pin(self.hear(news)) => heard?,
                        _ = interrupts.recv() => return Err(self.left()),
                    };
                    if let Some(ended) = heard {
                        return Ok(ended);
                    }
                }
                _ = turn.tick() => {}
            }
            self.put();
            self.draw();
        }
    }

    fn elapsed(&self) -> Duration {
        self.since + self.begun.elapsed()
    }

    fn dye(&self, style: Style, words: &str) -> String {
        self.paint.dye(style, words)
    }

    /// A line that stays, with the time.
    fn say(&mut self, words: &str) {
        let happened = self.at.and_then(|at| Duration::try_from(at - self.task.created_at).ok());
        let at = clock(happened.unwrap_or_else(|| self.elapsed()));
        let at = self.dye(Style::Dim, &format!("{at:>5}"));
        self.line(format!("{at}  {words}"));
    }

    /// A line that stays, below one that has the time.
    fn more(&mut self, words: &str) {
        self.line(format!("       {words}"));
    }

    fn line(&mut self, line: String) {
        if self.asked.is_some() {
            self.held.push(line);
        } else if let Some(screen) = &mut self.screen {
            screen.say(&line);
        }
    }

    /// What moves.
    fn draw(&mut self) {
        let (Some(screen), Some(timeline)) = (&mut self.screen, &self.timeline) else { return };
        if self.asked.is_some() || !screen.is_live() {
            return;
        }
        let (columns, rows) = screen.room();
        let tail: Vec<String> = self.tail.iter().cloned().collect();
        let view = draw::Live {
            elapsed: self.since + self.begun.elapsed(),
            timeline,
            spent: self.cost,
            most: self.task.budget.max_cost_micros.map(u64::from),
            action: self.actions.values().next_back().map(String::as_str),
            tail: &tail,
            held: self.held_up.as_deref(),
            away: self.away.as_deref(),
        };
        let lines = draw::live(&view, columns, rows, screen.paint);
        screen.below(lines);
    }

    /// Leaves it to itself.
    fn left(&mut self) -> Failure {
        self.asked = None;
        if let Some(screen) = &mut self.screen {
            screen.below(Vec::new());
            screen.say("");
        }
        Failure::new(Kind::Left, "you have left; the task goes on without you")
            .fix(format!("come back with `cynork task watch {}`", self.task.id))
    }

    /// Tells what is new; what it ended with, when it has.
    async fn hear(&mut self, Told { at, news }: Told) -> Result<Option<Ended>> {
        self.at = at;
        match news {
            News::Class(class, reason) => self.fact("class", class.as_str(), &reason),
            News::Scope(scope, reason) => self.fact("scope", scope.as_str(), &reason),
            News::Workflow(found) => self.fact("workflow", &stages(found), ""),
            News::Plan(planned) => self.plan(*planned).await?,
            News::Assigned(assigned) => self.assigned(&assigned),
            News::Step(step) => self.step(&step),
            News::Wait(wait) => self.wait(&wait).await?,
            News::Waited(wait) => self.waited(&wait),
            News::Job(it) => self.job(&it),
            News::Report(report) => {
                let role = self.dye(Style::Cyan, report.agent_role.as_str());
                let summary = first_line(&report.summary);
                self.say(&format!("{role} reports {}: {summary}", report.kind.as_str()));
            }
            News::Evidence(view) => {
                for (at, line) in draw::evidence(&view, self.paint).iter().enumerate() {
                    if at == 0 { self.say(line) } else { self.more(line) }
                }
            }
            News::Approval(call) => self.call(call),
            News::PullRequest(entry) => {
                let words = format!(
                    "pull request #{} {}: {}",
                    entry.number,
                    entry.state.as_str(),
                    first_line(&entry.title)
                );
                self.say(&words);
            }
            News::Cost(micros) => self.cost = micros,
            News::Held(why) => {
                if let Some(why) = &why {
                    let why = first_line(why);
                    self.notice(&format!("held up, and tried again by itself: {why}"));
                }
                self.held_up = why;
            }
            News::Standing(timeline) => self.stands(*timeline),
            News::Away(why) => {
                let words =
                    self.dye(Style::Yellow, &format!("{}; it is asked again", first_line(&why)));
                self.say(&words);
                self.away = Some(why);
            }
            News::Back => {
                self.away = None;
                let words =
                    self.dye(Style::Green, "the installation answers again; nothing was lost");
                self.say(&words);
            }
            News::Ended(timeline) => return Ok(Some(self.ended(*timeline))),
        }
        Ok(None)
    }

    fn ended(&mut self, timeline: Timeline) -> Ended {
        self.settle();
        if let Some(screen) = &mut self.screen {
            screen.below(Vec::new());
        }
        let plan = self.planned.take().map(|planned| planned.plan);
        Ended { timeline, plan, cost_micros: self.cost }
    }

    fn fact(&mut self, name: &str, what: &str, why: &str) {
        let (name, what) =
            (self.dye(Style::Dim, &format!("{name:<9}")), self.dye(Style::Bold, what));
        let why = first_line(why);
        let parts = [what.as_str(), why.as_str()].into_iter().filter(|part| !part.is_empty());
        let words = parts.collect::<Vec<_>>().join("  ");
        self.line(format!("  {name} {words}").trim_end().to_owned());
    }

    async fn plan(&mut self, planned: Planned) -> Result<()> {
        let first = self.planned.is_none();
        if first {
            let Before { agents, models, estimate, cap } =
                Before::find(self.context, &self.task, &planned).await?;
            for (name, words) in
                [("agents", agents), ("models", models), ("estimate", estimate), ("cap", cap)]
            {
                if !words.is_empty() {
                    self.fact(name, "", &words);
                }
            }
            self.fact("plan", "", "");
        } else {
            let words = self.dye(Style::Yellow, "the plan was made anew");
            self.say(&words);
        }
        let units = self.timeline.as_ref().map(|it| it.units.clone()).unwrap_or_default();
        let paint = self.paint;
        let begun = |unit: &UnitView| unit.state != UnitState::Pending;
        let units: Vec<UnitView> = units.into_iter().filter(begun).collect();
        let drawn = draw::planned(&planned.plan, &units, paint);
        for line in drawn {
            self.line(format!("    {line}"));
        }
        self.planned = Some(planned);
        Ok(())
    }

    fn assigned(&mut self, assigned: &[cynode_wire::handoffs::Assigned]) {
        for one in assigned {
            let models = one.work.models.join(", ");
            let words = format!("{} is given to a {}", one.unit, one.work.role.as_str());
            let words =
                if models.is_empty() { words } else { format!("{words}, who asks {models}") };
            self.say(&words);
        }
    }

    /// What was sent back is worth a line; the rest can be seen below.
    fn step(&mut self, step: &StepEntry) {
        if let Some(note) = step.note.as_deref()
            && matches!(step.verdict.as_str(), "redo" | "revise" | "fail")
        {
            let note = fit(&first_line(note), NOTE);
            let words = format!("sent back: {}", note.trim_end_matches(':'));
            let words = self.dye(Style::Yellow, &words);
            self.say(&words);
        }
    }

    /// Where it stands; each unit that has come further is told.
    fn stands(&mut self, timeline: Timeline) {
        let plain = self.screen.as_ref().is_some_and(|screen| !screen.is_live());
        for unit in &timeline.units {
            let now = (unit.state, unit.attempts);
            let before = self.units.insert(unit.key.to_string(), now);
            let worth = match unit.state {
                UnitState::Done | UnitState::Failed => true,
                UnitState::Dispatched => plain,
                UnitState::Pending | UnitState::Collected | UnitState::Cancelled => false,
            };
            if before == Some(now) || !worth {
                continue;
            }
            let style = match unit.state {
                UnitState::Done => Style::Green,
                UnitState::Failed => Style::Red,
                UnitState::Pending
                | UnitState::Dispatched
                | UnitState::Collected
                | UnitState::Cancelled => Style::Dim,
            };
            let state = self.dye(style, unit.state.as_str());
            let tried = match unit.attempts {
                0 | 1 => String::new(),
                count => format!(", attempt {count}"),
            };
            self.say(&format!("{state}{tried}  {}", first_line(unit.title.as_str())));
        }
        let out = |id: &String| {
            let job = timeline.jobs.iter().find(|job| job.job_id.to_string() == *id);
            job.is_some_and(|job| job.ended_at.is_none())
        };
        self.actions.retain(|id, _| out(id));
        self.timeline = Some(timeline);
    }

    /// What agents say and do: below while somebody looks on, else line by line.
    fn job(&mut self, it: &InJob) {
        let id = it.job.job_id.to_string();
        let data = &it.event.data;
        if it.event.event == "tool" {
            let title = first_line(data["title"].as_str().unwrap_or_default());
            match data["status"].as_str() {
                Some("pending" | "in_progress") => {
                    self.actions.insert(id, format!("{}: {title}", it.name));
                }
                _ => {
                    self.actions.remove(&id);
                }
            }
        }
        let paint = Paint(false);
        if self.screen.as_ref().is_some_and(Screen::is_live) {
            for line in draw::happened(&it.event, paint) {
                self.tail.push_back(format!("{}  {line}", fit(&it.name, NAME)));
            }
            while self.tail.len() > TAIL {
                self.tail.pop_front();
            }
            return;
        }
        for line in draw::said(&it.event, self.paint) {
            let name = self.dye(Style::Cyan, &it.name);
            self.say(&format!("{name}  {line}"));
        }
    }
}

fn interrupts() -> Result<Signal> {
    signal(SignalKind::interrupt()).map_err(|error| Failure::internal(error.to_string()))
}
