//! The parts of one task: plan, timeline, logs, diff, evidence.

use cynode_core::{
    evidence::CheckTally,
    ids::TaskId,
    workflow::{
        evidence::{BaseChecks, EvidenceState, EvidenceView},
        findings::ReviewIssue,
        plan::Plan,
        timeline::{JobEntry, StepEntry, WaitEntry},
        units::{JobState, UnitState, UnitView},
    },
};
use cynode_wire::{
    delivery::{DiffView, evidence::TaskEvidence},
    tasks::TaskView,
    workflow::timeline::TaskTimeline,
};
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};
use time::{Duration, OffsetDateTime};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, ERROR_STYLE, MAX_UNWRAPPED_CELLS, SUCCESS_STYLE,
    ScreenPainter, WARNING_STYLE, column_line, line_from_spans, styled_span, wrap_lines,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        graph::{self, GraphUnit},
        state::{ClickTarget, Focus, ScreenState, ScrollArea, TaskPart},
        store::{LogLine, LogSource},
        text,
    },
    draw,
    terminal::{Colorizer, sanitize_text},
};

/// Minimum width at which the selection is beside the content.
const MIN_SIDE_BY_SIDE_CELLS: u16 = 96;

/// Width of a check's outcome.
const CHECK_FACTS_CELLS: usize = 26;

/// Line width of a text for another program.
const TEXT_CELLS: usize = 100;

/// Minimum number of free rows below a plan that show the latest steps.
const MIN_RECENT_ROWS: u16 = 6;

/// Returns the mark and colour of a unit.
const fn unit_sign(state: UnitState) -> (&'static str, Style) {
    match state {
        UnitState::Pending => ("○", DIM_STYLE),
        UnitState::Dispatched => ("▸", ACTIVE_STYLE),
        UnitState::Collected => ("◆", ACTIVE_STYLE),
        UnitState::Done => ("✓", SUCCESS_STYLE),
        UnitState::Failed => ("✗", ERROR_STYLE),
        UnitState::Cancelled => ("–", DIM_STYLE),
    }
}

/// Returns the label of a unit's state.
const fn unit_word(state: UnitState) -> &'static str {
    match state {
        UnitState::Pending => "waits for its turn",
        UnitState::Dispatched => "is worked on",
        UnitState::Collected => "is judged",
        UnitState::Done => "is done",
        UnitState::Failed => "was given up",
        UnitState::Cancelled => "is not wanted any more",
    }
}

fn graph_units(units: &[UnitView]) -> Vec<GraphUnit> {
    let place = |key: &_| units.iter().position(|it| it.key == *key);
    let one = |unit: &UnitView| {
        let (mark, style) = unit_sign(unit.state);
        let again = if unit.attempts > 1 { format!(" ({})", unit.attempts) } else { String::new() };
        GraphUnit {
            key: unit.key.as_str().to_owned(),
            title: format!("{mark}{again} {}", text::first_sanitized_line(unit.title.as_str())),
            style,
            after: unit.depends_on.iter().filter_map(place).collect(),
        }
    };
    units.iter().map(one).collect()
}

fn planned_graph_units(plan: &Plan) -> Vec<GraphUnit> {
    let steps = plan.planned_units();
    let place = |key: &_| steps.iter().position(|it| it.key == *key);
    let one = |unit: &cynode_core::workflow::plan::PlannedUnit| GraphUnit {
        key: unit.key.as_str().to_owned(),
        title: format!("○ {}", text::first_sanitized_line(unit.title.as_str())),
        style: Style::new(),
        after: unit.depends_on.iter().filter_map(place).collect(),
    };
    steps.iter().map(one).collect()
}

impl ScreenPainter<'_> {
    pub(super) fn draw_plan(&mut self, area: Rect, task: &TaskView) {
        let state = self.state;
        let Some(timeline) = state.chosen_timeline() else { return };
        if timeline.units.is_empty() {
            return self.draw_task_request(area, task);
        }
        let told = state.chosen_unit();
        let shown = told.filter(|_| state.unit.is_some() || state.focus == Focus::Detail);
        let room = usize::from(area.width).saturating_sub(1);
        let drawing = graph::draw_graph(&graph_units(&timeline.units), room, shown);
        let told = told.and_then(|it| timeline.units.get(it));
        let words = told.map_or_else(Vec::new, |unit| unit_lines(unit, room));
        // The drawing first; then at least two lines of text; the latest steps get the rest.
        let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let picture = small(drawing.lines.len());
        let least = area.height.saturating_sub(picture).max(3);
        let foot = small(words.len()).saturating_add(1).min(least).min(area.height);
        let left = area.height.saturating_sub(picture).saturating_sub(foot);
        let lately = if left >= MIN_RECENT_ROWS { left } else { 0 };
        let part = [Constraint::Min(0), Constraint::Length(foot), Constraint::Length(lately)];
        let [top, foot, end] = Layout::vertical(part).areas(area);
        self.draw_plan_graph(top, &drawing, shown);
        if let Some(unit) = told {
            let rest = self.draw_rule(foot, unit.key.as_str());
            self.draw_lines(rest, &words);
        }
        if lately > 0 {
            let (title, lines) = match &timeline.summary {
                Some(summary) => ("what came of it", wrap_lines(summary, room, Style::new())),
                None => ("lately", timeline_lines(timeline, state.now, room)),
            };
            let rest = self.draw_rule(end, title);
            // The end of a timeline, the beginning of a summary.
            let skipped = lines.len().saturating_sub(usize::from(rest.height));
            let skipped = if timeline.summary.is_some() { 0 } else { skipped };
            self.draw_lines(rest, &lines[skipped..]);
        }
    }

    /// Draws lines without scrolling.
    fn draw_lines(&mut self, area: Rect, lines: &[Line]) {
        for (row, line) in (area.y..area.bottom()).zip(lines) {
            self.put_line(area.x, row, line, area.width);
        }
    }

    fn draw_plan_graph(
        &mut self,
        area: Rect,
        drawing: &graph::GraphDrawing,
        chosen: Option<usize>,
    ) {
        let page = usize::from(area.height);
        let end = drawing.lines.len().saturating_sub(page);
        let mut top = self.state.scroll_offset(ScrollArea::Plan).min(end);
        if let Some((_, y, _, height)) = chosen.and_then(|it| drawing.places.get(it)) {
            top = top.min(*y).max((y + height).saturating_sub(page)).min(end);
        }
        for (row, line) in (area.y..area.bottom()).zip(drawing.lines.iter().skip(top)) {
            self.put_line(area.x, row, line, area.width);
        }
        self.record_scroll(area, ScrollArea::Plan, (top, page, end));
        for (unit, (x, y, wide, height)) in drawing.places.iter().enumerate() {
            let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
            let from = area.y.saturating_add(small(y.saturating_sub(top)));
            let hidden = top.saturating_sub(*y);
            let height = small(height.saturating_sub(hidden));
            let spot = Rect::new(area.x.saturating_add(small(*x)), from, small(*wide), height);
            self.add_click_target(
                spot.intersection(area),
                ClickTarget::Row(ScrollArea::Plan, unit),
            );
        }
    }

    /// Draws the description, if there is no plan yet or it waits for approval.
    fn draw_task_request(&mut self, area: Rect, task: &TaskView) {
        let room = usize::from(area.width).saturating_sub(1);
        let mut lines = vec![Line::raw("")];
        lines.extend(wrap_lines(task.description.as_str(), room, Style::new()));
        for criterion in &task.acceptance_criteria {
            lines.extend(wrap_lines(
                &format!("must be shown: {}", criterion.text.as_str()),
                room,
                DIM_STYLE,
            ));
            if let Some(check) = &criterion.check {
                lines.extend(wrap_lines(
                    &format!("            by: {}", check.command_line()),
                    room,
                    DIM_STYLE,
                ));
            }
        }
        lines.push(Line::raw(""));
        match self.state.known.pending_plan(task.id) {
            Some(Some(planned)) => {
                lines.push(Line::styled("The plan, as it waits for a yes:", WARNING_STYLE));
                lines.extend(
                    graph::draw_graph(&planned_graph_units(&planned.plan), room, None).lines,
                );
            }
            _ => lines.push(Line::styled("There is no plan yet.", DIM_STYLE)),
        }
        self.draw_text(area, ScrollArea::Plan, &lines);
    }

    pub(super) fn draw_timeline(&mut self, area: Rect) {
        let Some(timeline) = self.state.chosen_timeline() else { return };
        let lines = timeline_lines(timeline, self.state.now, self.text_room(area));
        self.draw_text(area, ScrollArea::Timeline, &lines);
    }

    pub(super) fn draw_logs(&mut self, area: Rect) {
        let Some(timeline) = self.state.chosen_timeline() else { return };
        let Some(job) = self.state.chosen_job() else {
            let lines = [Line::styled("No job has begun yet.", DIM_STYLE)];
            return self.draw_text(area, ScrollArea::Log, &lines);
        };
        let at = timeline.jobs.iter().position(|it| it.job_id == job.job_id).unwrap_or(0);
        let mut rest = area;
        if area.width >= MIN_SIDE_BY_SIDE_CELLS {
            let part = Layout::horizontal([Constraint::Length(34), Constraint::Min(1)]);
            let [list, log] = part.areas(area);
            self.draw_job_list(list, timeline, at);
            rest = super::indent_area(log);
        }
        let topic = FetchTopic::Log(job.job_id);
        let (word, style) = job_sign(job);
        let follows = if self.state.follow { "follows" } else { "stays here" };
        let title = line_from_spans([
            styled_span(format!("job {} of {}: ", at + 1, timeline.jobs.len()), DIM_STYLE),
            styled_span(job_name(timeline, at), BOLD_STYLE),
            styled_span(format!("  {word}  "), style),
            styled_span(format!("{}  {follows}", job_time(job, self.state.now)), DIM_STYLE),
        ]);
        rest = self.draw_heading(rest, &title, Some(&topic));
        let room = self.text_room(rest);
        let lines = match self.state.known.logs.get(&job.job_id) {
            None => self.placeholder_lines(&topic, room).unwrap_or_default(),
            Some(log) if log.lines.is_empty() => {
                vec![Line::styled("It has said nothing yet.", DIM_STYLE)]
            }
            Some(log) => {
                let dropped = (log.dropped > 0)
                    .then(|| Line::styled(format!("… {} earlier lines", log.dropped), DIM_STYLE));
                let mut last = None;
                let said = log.lines.iter().flat_map(|said| log_lines(said, &mut last, room));
                dropped.into_iter().chain(said).collect()
            }
        };
        self.draw_text(rest, ScrollArea::Log, &lines);
    }

    fn draw_job_list(&mut self, area: Rect, timeline: &TaskTimeline, chosen: usize) {
        let room = usize::from(area.width).saturating_sub(1);
        let rest = self.draw_heading(area, &Line::styled("Jobs", BOLD_STYLE), None);
        let focused = self.state.focus == Focus::Detail;
        let now = self.state.now;
        let count = timeline.jobs.len();
        self.draw_rows(rest, ScrollArea::Jobs, (count, Some(chosen), focused), |at| {
            let job = &timeline.jobs[at];
            let (word, style) = job_sign(job);
            let mark = word.split(' ').next().unwrap_or_default().to_owned();
            let time = text::align_right(&job_time(job, now), 7);
            column_line(&[
                (mark, 1, style),
                (job_name(timeline, at), room.saturating_sub(10), Style::new()),
                (time, 7, DIM_STYLE),
            ])
        });
    }

    pub(super) fn draw_diff(&mut self, area: Rect) {
        let state = self.state;
        let room = usize::from(area.width).saturating_sub(1);
        let Some(entry) = state.pull_request() else {
            return self.draw_unoffered_work(area);
        };
        let topic = FetchTopic::Files(entry.id);
        if let Some(lines) = self.placeholder_lines(&topic, room) {
            return self.draw_text(area, ScrollArea::Diff, &lines);
        }
        let Some(files) = state.known.files.get(&entry.id) else { return };
        let path = state.chosen_file().unwrap_or_default().to_owned();
        let at = files.files.iter().position(|file| file.path == path).unwrap_or(0);
        let mut rest = area;
        if area.width >= MIN_SIDE_BY_SIDE_CELLS {
            let part = Layout::horizontal([Constraint::Length(40), Constraint::Min(1)]);
            let [list, diff] = part.areas(area);
            self.draw_file_list(list, files, at);
            rest = super::indent_area(diff);
        }
        let topic = FetchTopic::Diff(entry.id, path.clone());
        let change = files.files.get(at).map_or_else(String::new, change_counts);
        let title = line_from_spans([
            styled_span(
                format!("file {} of {}: ", (at + 1).min(files.files.len()), files.files.len()),
                DIM_STYLE,
            ),
            styled_span(&path, BOLD_STYLE),
            styled_span(format!("  {change}"), DIM_STYLE),
        ]);
        rest = self.draw_heading(rest, &title, Some(&topic));
        let room = self.text_room(rest);
        let lines = match state.known.diffs.get(&(entry.id, path)) {
            _ if files.files.is_empty() => vec![Line::styled("It changes no file.", DIM_STYLE)],
            None => self.placeholder_lines(&topic, room).unwrap_or_default(),
            Some(diff) => changed_lines(diff, room),
        };
        self.draw_text(rest, ScrollArea::Diff, &lines);
    }

    /// Draws the unoffered changes of a task: of work in progress, and of failed work.
    fn draw_unoffered_work(&mut self, area: Rect) {
        let Some(task) = self.state.task else { return };
        let room = self.text_room(area);
        let topic = FetchTopic::Work(task);
        let Some(known) = self.state.known.works.get(&task) else {
            let lines = self.placeholder_lines(&topic, room).unwrap_or_default();
            return self.draw_text(area, ScrollArea::Diff, &lines);
        };
        let Some(work) = known else {
            let words = "No work was kept yet: there is a diff when a unit has left a commit.";
            let lines = wrap_lines(words, room, DIM_STYLE);
            return self.draw_text(area, ScrollArea::Diff, &lines);
        };
        let title = line_from_spans([
            styled_span("not offered: ", DIM_STYLE),
            styled_span(&work.unit, BOLD_STYLE),
            styled_span(
                format!(
                    "  attempt {}, {} of {} checks held",
                    work.attempt, work.checks_passed, work.checks
                ),
                DIM_STYLE,
            ),
        ]);
        let lines = changed_lines(&work.diff, room);
        let rest = self.draw_heading(area, &title, Some(&topic));
        self.draw_text(rest, ScrollArea::Diff, &lines);
    }

    fn draw_file_list(
        &mut self,
        area: Rect,
        files: &cynode_wire::delivery::ChangedFiles,
        chosen: usize,
    ) {
        let room = usize::from(area.width).saturating_sub(1);
        let rest = self.draw_heading(area, &Line::styled("Files", BOLD_STYLE), None);
        let focused = self.state.focus == Focus::Detail;
        let count = files.files.len();
        self.draw_rows(rest, ScrollArea::Files, (count, Some(chosen), focused), |at| {
            let file = &files.files[at];
            let change = text::align_right(&change_counts(file), 9);
            column_line(&[
                (text::sanitize_for_display(&file.path), room.saturating_sub(10), Style::new()),
                (change, 9, DIM_STYLE),
            ])
        });
    }

    pub(super) fn draw_evidence(&mut self, area: Rect, task: TaskId) {
        let room = self.text_room(area);
        let topic = FetchTopic::Evidence(task);
        let lines = match self.state.known.evidence.get(&task) {
            None => self.placeholder_lines(&topic, room).unwrap_or_default(),
            Some(shown) => all_evidence(shown, room),
        };
        let rest = self.draw_heading(area, &Line::styled("newest first", DIM_STYLE), Some(&topic));
        self.draw_text(rest, ScrollArea::Evidence, &lines);
    }
}

/// Returns all evidence, newest first, and the findings.
fn all_evidence(shown: &TaskEvidence, room: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(base) = &shown.base {
        lines.extend(base_lines(base, room));
        lines.push(Line::raw(""));
    }
    for view in shown.evidence.iter().rev() {
        lines.extend(evidence_lines(view, room));
        lines.push(Line::raw(""));
    }
    if lines.is_empty() {
        lines.push(Line::styled("Nothing was checked yet.", DIM_STYLE));
    }
    let feedback = &shown.feedback;
    if !feedback.summary.is_empty() {
        lines.extend(wrap_lines(&feedback.summary, room, Style::new()));
    }
    for (word, style, issues) in [
        ("critical", ERROR_STYLE, &feedback.critical_issues),
        ("major", WARNING_STYLE, &feedback.major_issues),
        ("minor", DIM_STYLE, &feedback.minor_issues),
    ] {
        lines.extend(issues.iter().flat_map(|it| issue_lines(word, style, it, room)));
    }
    lines
}

/// Returns the whole text of the visible part, for another program; a diff is fetched separately.
pub(in super::super) fn part_text(state: &ScreenState) -> Option<String> {
    let (task, timeline) = (state.chosen_task()?, state.chosen_timeline()?);
    let room = TEXT_CELLS;
    let lines = match state.part {
        TaskPart::Plan => {
            let mut lines = wrap_lines(task.description.as_str(), room, Style::new());
            lines.push(Line::raw(""));
            let drawn = match state.known.pending_plan(task.id) {
                Some(Some(planned)) => draw::render_plan(&planned.plan, Colorizer(false)),
                _ => draw::render_units(&timeline.units, Colorizer(false)),
            };
            lines.extend(drawn.into_iter().map(Line::raw));
            lines
        }
        TaskPart::Timeline => timeline_lines(timeline, state.now, MAX_UNWRAPPED_CELLS),
        TaskPart::Logs => {
            let log = state.known.logs.get(&state.chosen_job()?.job_id)?;
            let mut last = None;
            log.lines
                .iter()
                .flat_map(|said| log_lines(said, &mut last, MAX_UNWRAPPED_CELLS))
                .collect()
        }
        TaskPart::Evidence => all_evidence(state.known.evidence.get(&task.id)?, TEXT_CELLS),
        TaskPart::Diff => return None,
    };
    let lines = lines.iter().map(|line| format!("{}\n", line.to_string().trim_end()));
    Some(lines.collect())
}

/// Returns the details of a unit.
fn unit_lines(unit: &UnitView, room: usize) -> Vec<Line<'static>> {
    let (mark, style) = unit_sign(unit.state);
    let tried = match unit.attempts {
        0 => "not tried yet".to_owned(),
        1 => "1 attempt".to_owned(),
        more => format!("{more} attempts"),
    };
    let after: Vec<&str> = unit.depends_on.iter().map(|key| key.as_str()).collect();
    let after =
        if after.is_empty() { String::new() } else { format!(", after {}", after.join(", ")) };
    let mut lines = vec![line_from_spans([
        styled_span(format!("{mark} {}", unit_word(unit.state)), style),
        styled_span(format!(", {tried}{after}"), DIM_STYLE),
    ])];
    lines.extend(wrap_lines(unit.title.as_str(), room, Style::new()));
    for finding in &unit.findings {
        let at = finding.at.as_deref().map_or(String::new(), |at| format!("{at}: "));
        let words = format!("{}: {at}{}", severity_word(finding.severity), finding.text);
        lines.extend(wrap_lines(&words, room, WARNING_STYLE));
    }
    lines
}

const fn severity_word(severity: cynode_core::workflow::findings::FindingSeverity) -> &'static str {
    use cynode_core::workflow::findings::FindingSeverity;
    match severity {
        FindingSeverity::Critical => "critical",
        FindingSeverity::Major => "major",
        FindingSeverity::Minor => "minor",
        FindingSeverity::Note => "note",
    }
}

/// Returns steps and waits in one order.
fn timeline_lines(timeline: &TaskTimeline, now: OffsetDateTime, room: usize) -> Vec<Line<'static>> {
    enum TimelineRow<'a> {
        Step(&'a StepEntry),
        Wait(&'a WaitEntry),
    }
    let steps = timeline.steps.iter().filter(|step| step.verdict != "wait");
    let steps = steps.map(|step| (step.at, TimelineRow::Step(step)));
    let waits =
        timeline.waits.iter().filter(|it| it.reason.blocks_start() || it.resolved_at.is_none());
    let waits = waits.map(|wait| (wait.opened_at, TimelineRow::Wait(wait)));
    let mut entries: Vec<_> = steps.chain(waits).collect();
    entries.sort_by_key(|(at, _)| *at);
    let Some(first) = entries.first().map(|(at, _)| *at) else {
        return vec![Line::styled("Nothing has happened yet.", DIM_STYLE)];
    };
    let mut lines = Vec::new();
    for (at, entry) in &entries {
        let at = text::align_right(&format_offset(*at - first), 8);
        match entry {
            TimelineRow::Step(step) => lines.extend(step_lines(step, &at, room)),
            TimelineRow::Wait(wait) => lines.extend(wait_lines(wait, &at, now, room)),
        }
    }
    if let Some(summary) = &timeline.summary {
        lines.push(Line::raw(""));
        lines.extend(wrap_lines(summary, room, Style::new()));
    }
    lines
}

/// Formats the time since the beginning.
fn format_offset(time: Duration) -> String {
    let seconds = time.whole_seconds().max(0);
    match seconds {
        0..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

fn step_lines(step: &StepEntry, at: &str, room: usize) -> Vec<Line<'static>> {
    let style = match step.verdict.as_str() {
        "pass" | "done" => SUCCESS_STYLE,
        "fail" => ERROR_STYLE,
        _ => WARNING_STYLE,
    };
    let note = step.note.as_deref().map(text::first_sanitized_line).unwrap_or_default();
    let unit = (room / 4).clamp(14, 30);
    let begin = 39 + unit;
    let note = note.trim_end_matches(':');
    // A note that does not fit beside its step is below it, whole.
    let beside = text::display_width(note) <= room.saturating_sub(begin);
    let head = column_line(&[
        (at.to_owned(), 8, DIM_STYLE),
        (draw::step_label(&step.node), 20, Style::new()),
        (step.verdict.clone(), 7, style),
        (step.unit.clone().unwrap_or_default(), unit, ACTIVE_STYLE),
        (
            if beside { note.to_owned() } else { String::new() },
            room.saturating_sub(begin),
            DIM_STYLE,
        ),
    ]);
    let indent = " ".repeat(9);
    let below = if beside { Vec::new() } else { text::wrap_words(note, room.saturating_sub(10)) };
    let below = below.into_iter().map(|it| Line::styled(format!("{indent}{it}"), DIM_STYLE));
    std::iter::once(head).chain(below).collect()
}

fn wait_lines(wait: &WaitEntry, at: &str, now: OffsetDateTime, room: usize) -> Vec<Line<'static>> {
    let reason = wait.reason.as_str().replace('_', " ");
    let (word, time) = match wait.resolved_at {
        Some(end) => (format!("waited for {reason}"), text::format_duration(end - wait.opened_at)),
        None => (format!("waits for {reason}"), text::format_duration(now - wait.opened_at)),
    };
    let how = wait.resolution.as_deref().map_or(String::new(), |how| format!(", {how}"));
    let mut lines = vec![line_from_spans([
        styled_span(at, DIM_STYLE),
        styled_span(
            format!(" {word} {time}{how}"),
            if wait.resolved_at.is_none() { WARNING_STYLE } else { DIM_STYLE },
        ),
    ])];
    let indent = " ".repeat(9);
    let said = |text: &String, mark: &str| {
        let lines = text.lines().take(4).map(text::sanitize_for_display);
        let lines =
            lines.flat_map(|it| text::wrap_words(&format!("{mark}{it}"), room.saturating_sub(10)));
        lines.map(|it| Line::styled(format!("{indent}{it}"), DIM_STYLE)).collect::<Vec<_>>()
    };
    lines.extend(wait.question.iter().flat_map(|it| said(it, "")));
    lines.extend(wait.answer.iter().flat_map(|it| said(it, "» ")));
    lines
}

/// Returns the name of a job: its unit; the job after the work of an attempt runs its checks.
fn job_name(timeline: &TaskTimeline, at: usize) -> String {
    let Some(job) = timeline.jobs.get(at) else { return String::new() };
    let same = |it: &JobEntry| it.unit == job.unit && it.attempt == job.attempt;
    if timeline.jobs.iter().take(at).any(same) {
        format!("checks of {} #{}", job.unit, job.attempt)
    } else {
        format!("{} #{}", job.unit, job.attempt)
    }
}

fn job_sign(job: &JobEntry) -> (&'static str, Style) {
    match JobState::from_name(&job.state) {
        Some(JobState::Queued) => ("· queued", DIM_STYLE),
        Some(JobState::Running) => ("▸ running", ACTIVE_STYLE),
        Some(JobState::Succeeded) => ("✓ succeeded", SUCCESS_STYLE),
        Some(JobState::Failed) => ("✗ failed", ERROR_STYLE),
        Some(JobState::Lost) => ("✗ lost", ERROR_STYLE),
        Some(JobState::Cancelled) => ("– cancelled", DIM_STYLE),
        None => ("? unknown", WARNING_STYLE),
    }
}

fn job_time(job: &JobEntry, now: OffsetDateTime) -> String {
    match (job.started_at, job.ended_at) {
        (Some(begun), Some(ended)) => text::format_duration(ended - begun),
        (Some(begun), None) => text::format_duration(now - begun),
        (None, _) => String::new(),
    }
}

/// Returns a line of a log; the time is shown when it changes.
fn log_lines(said: &LogLine, last: &mut Option<String>, room: usize) -> Vec<Line<'static>> {
    let style = match said.voice {
        LogSource::Agent => Style::new(),
        LogSource::Deed => ACTIVE_STYLE,
        LogSource::Complaint => WARNING_STYLE,
        LogSource::Program | LogSource::System => DIM_STYLE,
    };
    let time =
        said.at.map(|at| format_offset(Duration::milliseconds(i64::try_from(at).unwrap_or(0))));
    let new = time.filter(|time| Some(time) != last.as_ref());
    if new.is_some() {
        last.clone_from(&new);
    }
    let time = text::align_right(&new.unwrap_or_default(), 6);
    let wrapped = text::wrap_words(&said.text, room.saturating_sub(8));
    let wrapped = if wrapped.is_empty() { vec![String::new()] } else { wrapped };
    let lines = wrapped.into_iter().enumerate().map(|(at, words)| {
        let time = if at == 0 { time.clone() } else { " ".repeat(6) };
        line_from_spans([styled_span(format!("{time}  "), DIM_STYLE), styled_span(words, style)])
    });
    lines.collect()
}

/// Returns the numbers of added and removed lines.
fn change_counts(file: &cynode_wire::delivery::ChangedFile) -> String {
    match (file.insertions, file.deletions) {
        (Some(came), Some(went)) => format!("+{came} -{went}"),
        _ => "no text".to_owned(),
    }
}

fn changed_lines(diff: &DiffView, room: usize) -> Vec<Line<'static>> {
    let mut lines = diff_lines(&diff.text, room);
    if diff.truncated {
        lines.push(Line::styled("… there is more than is shown", WARNING_STYLE));
    }
    lines
}

fn diff_lines(diff: &str, room: usize) -> Vec<Line<'static>> {
    let known =
        |it: &str| ["diff ", "index ", "--- ", "+++ "].iter().any(|begin| it.starts_with(begin));
    // After the header of a file, a line that looks like a header is a changed line.
    let shown =
        draw::mark_header_lines(diff).filter(|(head, it)| !(*head && known(it))).map(|(_, it)| it);
    let style = |line: &str| match line.as_bytes() {
        [b'+', ..] => SUCCESS_STYLE,
        [b'-', ..] => ERROR_STYLE,
        [b'@', b'@', ..] => ACTIVE_STYLE,
        _ => Style::new(),
    };
    let shown = shown.flat_map(|it| {
        let pieces =
            text::hard_wrap(&text::sanitize_for_display(it), room.saturating_sub(1)).into_iter();
        pieces.enumerate().map(move |(at, piece)| {
            let more = if at == 0 { "" } else { "↪" };
            line_from_spans([styled_span(more, DIM_STYLE), styled_span(piece, style(it))])
        })
    });
    shown.collect()
}

fn base_lines(base: &BaseChecks, room: usize) -> Vec<Line<'static>> {
    let told = match base.state {
        EvidenceState::Gathering => vec!["they are being tried".to_owned()],
        EvidenceState::Passed | EvidenceState::Failed | EvidenceState::Unable => {
            base.describe_checks()
        }
    };
    let mut lines = vec![line_from_spans([styled_span("checks before any change", BOLD_STYLE)])];
    let style = if base.blocked_checks().next().is_some() { WARNING_STYLE } else { DIM_STYLE };
    lines.extend(told.iter().flat_map(|it| wrap_lines(&format!("  {it}"), room, style)));
    lines
}

/// Maximum number of names of each list of tests.
const MAX_NAMED_TESTS: usize = 5;

fn evidence_lines(view: &EvidenceView, room: usize) -> Vec<Line<'static>> {
    let (word, style) = match view.state {
        EvidenceState::Gathering => ("is gathered", ACTIVE_STYLE),
        EvidenceState::Passed => ("holds", SUCCESS_STYLE),
        EvidenceState::Failed => ("does not hold", ERROR_STYLE),
        EvidenceState::Unable => ("could not be had", WARNING_STYLE),
    };
    let commit = view.commit.as_deref().unwrap_or("none");
    let commit = commit.get(..10).unwrap_or(commit).to_owned();
    let old = if view.stale { ", of an older commit" } else { "" };
    let mut lines = vec![line_from_spans([
        styled_span(format!("{} #{}", view.unit.as_str(), view.attempt), BOLD_STYLE),
        styled_span(format!("  {word}  "), style),
        styled_span(format!("commit {commit}{old}"), DIM_STYLE),
    ])];
    for result in &view.checks {
        let (mark, style) = match result.tally {
            CheckTally::Passed => ("✓ passed", SUCCESS_STYLE),
            CheckTally::Flaky => ("~ flaky", WARNING_STYLE),
            CheckTally::Before => ("~ before", WARNING_STYLE),
            CheckTally::Failed => ("✗ failed", ERROR_STYLE),
            CheckTally::Again => ("… runs", DIM_STYLE),
        };
        let exit = result.exit_code.map_or("ended".to_owned(), |code| format!("exit {code}"));
        let runs =
            if result.rounds > 1 { format!(", {} runs", result.rounds) } else { String::new() };
        let facts = format!("{exit}, {} ms{runs}", result.milliseconds);
        let told = text::sanitize_for_display(&result.check.command_line());
        let begin = 11;
        // Beside the outcome if there is room, else below it, whole.
        let beside = text::display_width(&told) + CHECK_FACTS_CELLS + begin < room;
        lines.push(column_line(&[
            (String::new(), 1, DIM_STYLE),
            (mark.to_owned(), 8, style),
            (facts, CHECK_FACTS_CELLS, DIM_STYLE),
            (
                if beside { told.clone() } else { String::new() },
                room.saturating_sub(begin + CHECK_FACTS_CELLS + 1),
                Style::new(),
            ),
        ]));
        if !beside {
            let pieces = text::wrap_words(&told, room.saturating_sub(begin));
            let pieces = pieces.into_iter().map(|it| format!("{}{it}", " ".repeat(begin)));
            lines.extend(pieces.map(Line::raw));
        }
        if let Some(tests) = &result.tests {
            let summary = std::iter::once(format!("tests: {}", tests.summary_line()));
            let lists = summary.chain(tests.describe_lists(MAX_NAMED_TESTS));
            lines.extend(lists.flat_map(|it| {
                let it = text::sanitize_for_display(&it);
                wrap_lines(&format!("      {it}"), room, DIM_STYLE)
            }));
        }
        if !result.tally.is_good() {
            let words = sanitize_text(&result.excerpt);
            let words: Vec<&str> = words.lines().filter(|it| !it.is_empty()).collect();
            let last = words.iter().skip(words.len().saturating_sub(6));
            let last = last.flat_map(|it| {
                text::hard_wrap(&text::sanitize_for_display(it), room.saturating_sub(6))
            });
            lines.extend(last.map(|it| Line::styled(format!("      {it}"), DIM_STYLE)));
        }
    }
    lines.extend(
        view.error.iter().flat_map(|why| wrap_lines(&format!("  {why}"), room, WARNING_STYLE)),
    );
    let waived = view.waived.iter().map(|why| format!("  taken all the same: {why}"));
    lines.extend(waived.flat_map(|why| wrap_lines(&why, room, WARNING_STYLE)));
    lines
}

fn issue_lines(word: &str, style: Style, issue: &ReviewIssue, room: usize) -> Vec<Line<'static>> {
    let at = if issue.file_location.is_empty() {
        String::new()
    } else {
        format!("{}: ", issue.file_location)
    };
    let mut lines = wrap_lines(&format!("{word}: {at}{}", issue.description), room, style);
    if !issue.how_to_fix.is_empty() {
        lines.extend(wrap_lines(&format!("       {}", issue.how_to_fix), room, DIM_STYLE));
    }
    lines
}
