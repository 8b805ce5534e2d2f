//! Following a task: permanent lines are printed once, live lines are redrawn below, and questions of the task are put to the
//! person.

mod asking;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use cynode_core::workflow::{
    handoffs::PlanAnswer,
    timeline::StepEntry,
    units::{UnitState, UnitView},
};
use cynode_wire::{
    tasks::TaskView,
    workflow::timeline::{StallView, TaskTimeline},
};
use time::OffsetDateTime;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior},
};

use self::asking::PendingQuestion;
use super::{
    before::{PlanPreview, render_stages},
    ending::FinalState,
};
use crate::{
    context::CliContext,
    draw,
    failure::{CliError, CliErrorKind, Result},
    follow::{JobUpdate, TaskUpdate, TaskUpdateStream, TimedUpdate},
    output::CliOutputFormat,
    terminal::{
        Colorizer, LineReader, LiveTerminal, TextStyle, first_line, format_clock, truncate_to_width,
    },
};

/// Interval at which the live area is redrawn.
const FRAME_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of agent output lines in the live area.
const MAX_TAIL_LINES: usize = 3;

/// Columns of a job's name there.
const JOB_NAME_COLUMNS: usize = 20;

/// Maximum length of a rejection reason; `cynork task timeline --json` has the whole text.
const MAX_NOTE_COLUMNS: usize = 220;

/// A followed task.
pub(super) struct TaskFollower<'a> {
    context: &'a CliContext,
    task: TaskView,
    paint: Colorizer,
    /// The terminal; `None` if only the outcome is wanted.
    screen: Option<LiveTerminal>,
    begun: Instant,
    /// How long the task had been running before it was followed.
    since: Duration,
    timeline: Option<TaskTimeline>,
    planned: Option<PlanAnswer>,
    units: BTreeMap<String, (UnitState, u32)>,
    cost: u64,
    tail: VecDeque<String>,
    /// The current action of each job, by its id.
    actions: BTreeMap<String, String>,
    away: Option<String>,
    held_up: Option<String>,
    open: VecDeque<PendingQuestion>,
    asked: Option<PendingQuestion>,
    typist: LineReader,
    /// Lines that are printed after the current question is answered.
    held: Vec<String>,
    /// Time of the event that is being printed.
    at: Option<OffsetDateTime>,
}

impl<'a> TaskFollower<'a> {
    pub(super) fn new(
        context: &'a CliContext,
        task: TaskView,
        plain: bool,
        since: Duration,
    ) -> Self {
        let readable = context.out.form == CliOutputFormat::Readable;
        let paint = if plain { Colorizer(false) } else { context.out.paint };
        let screen = readable.then(|| LiveTerminal::new(plain, !paint.0));
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
            typist: LineReader::default(),
            held: Vec::new(),
            at: None,
        }
    }

    /// Follows the task to its end.
    pub(super) async fn follow_to_end(mut self) -> Result<FinalState> {
        let mut follow =
            TaskUpdateStream::follow_task(self.context.client.clone(), self.task.id.to_string());
        let mut interrupts = listen_for_interrupts()?;
        let mut turn = tokio::time::interval(FRAME_INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = interrupts.recv() => return Err(self.leave_task()),
                line = self.typist.next_line(), if self.asked.is_some() => {
                    self.at = None;
                    let Some(line) = line else { return Err(self.leave_task()) };
                    let deed = self.interpret_answer(&line);
                    // A Ctrl-C in an editor was meant for the editor.
                    interrupts = self::listen_for_interrupts()?;
                    if let Some(deed) = deed {
                        tokio::select! {
                            done = Box::pin(self.perform_action(deed)) => done?,
                            _ = interrupts.recv() => return Err(self.leave_task()),
                        }
                    }
                }
                news = follow.next() => {
                    let gone = || CliError::internal_error("the task cannot be followed any more");
                    let news = news.ok_or_else(gone)??;
                    let heard = tokio::select! {
                        heard = Box::pin(self.handle_news(news)) => heard?,
                        _ = interrupts.recv() => return Err(self.leave_task()),
                    };
                    if let Some(ended) = heard {
                        return Ok(ended);
                    }
                }
                _ = turn.tick() => {}
            }
            self.ask_next_question();
            self.draw_live_area();
        }
    }

    fn elapsed_time(&self) -> Duration {
        self.since + self.begun.elapsed()
    }

    fn paint_text(&self, style: TextStyle, words: &str) -> String {
        self.paint.apply_style(style, words)
    }

    /// Prints a permanent line with the time.
    fn print_timed_line(&mut self, words: &str) {
        let happened = self.at.and_then(|at| Duration::try_from(at - self.task.created_at).ok());
        let at = format_clock(happened.unwrap_or_else(|| self.elapsed_time()));
        let at = self.paint_text(TextStyle::Dim, &format!("{at:>5}"));
        self.print_line(format!("{at}  {words}"));
    }

    /// Prints a permanent line below one with the time.
    fn print_continuation(&mut self, words: &str) {
        self.print_line(format!("       {words}"));
    }

    fn print_line(&mut self, line: String) {
        if self.asked.is_some() {
            self.held.push(line);
        } else if let Some(screen) = &mut self.screen {
            screen.print_line(&line);
        }
    }

    /// Draws the live area.
    fn draw_live_area(&mut self) {
        let (Some(screen), Some(timeline)) = (&mut self.screen, &self.timeline) else { return };
        if self.asked.is_some() || !screen.is_live() {
            return;
        }
        let (columns, rows) = screen.available_size();
        let tail: Vec<String> = self.tail.iter().cloned().collect();
        let view = draw::TaskProgress {
            elapsed: self.since + self.begun.elapsed(),
            timeline,
            spent: self.cost,
            most: self.task.budget.max_cost_micros.map(u64::from),
            currency: self.context.currency(),
            action: self.actions.values().next_back().map(String::as_str),
            tail: &tail,
            held: self.held_up.as_deref(),
            away: self.away.as_deref(),
        };
        let lines = draw::render_progress(&view, columns, rows, screen.paint);
        screen.set_status_lines(lines);
    }

    /// Stops following; the task continues.
    fn leave_task(&mut self) -> CliError {
        self.asked = None;
        if let Some(screen) = &mut self.screen {
            screen.set_status_lines(Vec::new());
            screen.print_line("");
        }
        CliError::new(CliErrorKind::Interrupted, "you have left; the task goes on without you")
            .with_fix(format!(
                "come back with `cynork task watch {}`",
                self.context.task_reference(&self.task)
            ))
    }

    /// Prints several lines, the first with its time.
    fn print_lines(&mut self, lines: &[String]) {
        for (at, line) in lines.iter().enumerate() {
            if at == 0 { self.print_timed_line(line) } else { self.print_continuation(line) }
        }
    }

    /// Prints an update. Returns the final state if the task has ended.
    async fn handle_news(
        &mut self,
        TimedUpdate { at, news }: TimedUpdate,
    ) -> Result<Option<FinalState>> {
        self.at = at;
        match news {
            TaskUpdate::Class(class, reason) => self.print_fact("class", class.as_str(), &reason),
            TaskUpdate::Scope(scope, reason) => self.print_fact("scope", scope.as_str(), &reason),
            TaskUpdate::Workflow(found) => self.print_fact("workflow", &render_stages(found), ""),
            TaskUpdate::Plan(planned) => self.show_plan(*planned).await?,
            TaskUpdate::Assigned(assigned) => self.show_assignments(&assigned),
            TaskUpdate::Step(step) => self.show_step(&step),
            TaskUpdate::Wait(wait) => self.handle_wait(&wait).await?,
            TaskUpdate::Waited(wait) => self.resolve_wait(&wait),
            TaskUpdate::Job(it) => self.show_job_event(&it),
            TaskUpdate::Report(report) => {
                let role = self.paint_text(TextStyle::Cyan, report.agent_role.as_str());
                let summary = first_line(&report.summary);
                self.print_timed_line(&format!(
                    "{role} reports {}: {summary}",
                    report.kind.as_str()
                ));
            }
            TaskUpdate::BaseChecks(base) => {
                self.print_lines(&draw::render_base_checks(&base, self.paint));
            }
            TaskUpdate::Evidence(view) => {
                self.print_lines(&draw::render_evidence(&view, self.paint));
            }
            TaskUpdate::Approval(call) => self.queue_call_approval(call),
            TaskUpdate::PullRequest(entry) => {
                let words = format!(
                    "pull request #{} {}: {}",
                    entry.number,
                    entry.state.as_str(),
                    first_line(&entry.title)
                );
                self.print_timed_line(&words);
            }
            TaskUpdate::Cost(micros) => self.cost = micros,
            TaskUpdate::Held(why) => {
                if let Some(why) = &why {
                    let why = first_line(why);
                    self.print_alert(&format!(
                        "it cannot go on now and is tried again by itself: {why}"
                    ));
                }
                self.held_up = why;
            }
            TaskUpdate::Standing(timeline) => self.apply_timeline(*timeline),
            TaskUpdate::Away(why) => {
                let words = self.paint_text(
                    TextStyle::Yellow,
                    &format!(
                        "{}; it is asked again (`cynork status` says what is wrong)",
                        first_line(&why)
                    ),
                );
                self.print_timed_line(&words);
                self.away = Some(why);
            }
            TaskUpdate::Back => {
                self.away = None;
                let words = self.paint_text(
                    TextStyle::Green,
                    "the installation answers again; nothing was lost",
                );
                self.print_timed_line(&words);
            }
            TaskUpdate::Ended(timeline) => return Ok(Some(self.finish_task(*timeline))),
        }
        Ok(None)
    }

    fn finish_task(&mut self, timeline: TaskTimeline) -> FinalState {
        self.withdraw_question();
        if let Some(screen) = &mut self.screen {
            screen.set_status_lines(Vec::new());
        }
        let plan = self.planned.take().map(|planned| planned.plan);
        FinalState { timeline, plan, cost_micros: self.cost }
    }

    fn print_fact(&mut self, name: &str, what: &str, why: &str) {
        let (name, what) = (
            self.paint_text(TextStyle::Dim, &format!("{name:<9}")),
            self.paint_text(TextStyle::Bold, what),
        );
        let why = first_line(why);
        let parts = [what.as_str(), why.as_str()].into_iter().filter(|part| !part.is_empty());
        let words = parts.collect::<Vec<_>>().join("  ");
        self.print_line(format!("  {name} {words}").trim_end().to_owned());
    }

    async fn show_plan(&mut self, planned: PlanAnswer) -> Result<()> {
        let first = self.planned.is_none();
        if first {
            self.context.fetch_currency().await;
            let (client, currency) = (&self.context.client, self.context.currency());
            let before =
                PlanPreview::fetch_for_task(client, currency, &self.task, &planned).await?;
            for (name, words) in before.to_lines() {
                self.print_fact(name, "", &words);
            }
            self.print_fact("plan", "", "");
        } else {
            let words = self.paint_text(TextStyle::Yellow, "the plan was made anew");
            self.print_timed_line(&words);
        }
        let units = self.timeline.as_ref().map(|it| it.units.clone()).unwrap_or_default();
        let paint = self.paint;
        let begun = |unit: &UnitView| unit.state != UnitState::Pending;
        let units: Vec<UnitView> = units.into_iter().filter(begun).collect();
        let drawn = draw::render_plan_status(&planned.plan, &units, paint);
        for line in drawn {
            self.print_line(format!("    {line}"));
        }
        self.planned = Some(planned);
        Ok(())
    }

    fn show_assignments(&mut self, assigned: &[cynode_core::workflow::handoffs::WorkAssignment]) {
        for one in assigned {
            let models = one.work.models.join(", ");
            let words = format!("{} is given to a {}", one.unit, one.work.role.as_str());
            let words = if models.is_empty() { words } else { format!("{words}, model {models}") };
            self.print_timed_line(&words);
        }
    }

    /// Prints a line for a rejected result; the other steps are in the live area.
    fn show_step(&mut self, step: &StepEntry) {
        if let Some(note) = step.note.as_deref()
            && matches!(step.verdict.as_str(), "redo" | "revise" | "fail")
        {
            let note = truncate_to_width(&first_line(note), MAX_NOTE_COLUMNS);
            let words = format!("sent back: {}", note.trim_end_matches(':'));
            let words = self.paint_text(TextStyle::Yellow, &words);
            self.print_timed_line(&words);
        }
    }

    /// Applies a timeline and prints each unit that has progressed.
    fn apply_timeline(&mut self, timeline: TaskTimeline) {
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
                UnitState::Done => TextStyle::Green,
                UnitState::Failed => TextStyle::Red,
                UnitState::Pending
                | UnitState::Dispatched
                | UnitState::Collected
                | UnitState::Cancelled => TextStyle::Dim,
            };
            let state = self.paint_text(style, unit.state.as_str());
            let tried = match unit.attempts {
                0 | 1 => String::new(),
                count => format!(", attempt {count}"),
            };
            self.print_timed_line(&format!("{state}{tried}  {}", first_line(unit.title.as_str())));
        }
        let known = self.timeline.as_ref().map(|it| it.stalls.clone()).unwrap_or_default();
        let new = |stall: &&StallView| !known.iter().any(|old| old.detail == stall.detail);
        for stall in timeline.stalls.iter().filter(new) {
            let words = self.paint_text(TextStyle::Red, &first_line(&stall.detail));
            self.print_timed_line(&words);
            for command in &stall.commands {
                self.print_continuation(&format!("next: {}", first_line(command)));
            }
        }
        if timeline.stalls.is_empty() && !known.is_empty() {
            let words = self.paint_text(TextStyle::Green, "it goes on");
            self.print_timed_line(&words);
        }
        let out = |id: &String| {
            let job = timeline.jobs.iter().find(|job| job.job_id.to_string() == *id);
            job.is_some_and(|job| job.ended_at.is_none())
        };
        self.actions.retain(|id, _| out(id));
        self.timeline = Some(timeline);
    }

    /// Shows messages and actions of agents: in the live area on a terminal, else line by line.
    fn show_job_event(&mut self, it: &JobUpdate) {
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
        let paint = Colorizer(false);
        if self.screen.as_ref().is_some_and(LiveTerminal::is_live) {
            for line in draw::render_job_event(&it.event, paint) {
                self.tail.push_back(format!(
                    "{}  {line}",
                    truncate_to_width(&it.name, JOB_NAME_COLUMNS)
                ));
            }
            while self.tail.len() > MAX_TAIL_LINES {
                self.tail.pop_front();
            }
            return;
        }
        for line in draw::render_job_highlight(&it.event, self.paint) {
            let name = self.paint_text(TextStyle::Cyan, &it.name);
            self.print_timed_line(&format!("{name}  {line}"));
        }
    }
}

fn listen_for_interrupts() -> Result<Signal> {
    signal(SignalKind::interrupt()).map_err(|error| CliError::internal_error(error.to_string()))
}
