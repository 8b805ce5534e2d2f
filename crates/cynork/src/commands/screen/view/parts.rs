//! The parts of one task: plan, timeline, logs, diff, evidence.

use cynode_core::{
    evidence::Tally,
    ids::TaskId,
    workflow::{
        plan::Plan,
        units::{JobState, UnitState},
    },
};
use cynode_wire::{
    evidence::{EvidenceState, EvidenceView},
    reports::ReviewIssue,
    tasks::TaskView,
    timeline::{JobEntry, StepEntry, Timeline, WaitEntry},
    workflow::UnitView,
};
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};
use time::{Duration, OffsetDateTime};

use super::{BAD, BOLD, DIM, GOOD, LIVE, Sheet, WARN, columns, line, span, wrapped};
use crate::{
    commands::screen::{
        graph::{self, Unit},
        known::{Said, Voice},
        shelf::Topic,
        state::{Focus, Hit, Place},
        text,
    },
    draw,
    terminal::clean,
};

/// From this width on, what can be chosen stands beside what is shown.
const BESIDE: u16 = 96;

/// The cells for how a check ended.
const FACTS: usize = 26;

/// With as many rows left below a plan, they tell what happened last.
const LATELY: u16 = 6;

/// The mark and colour of a unit.
const fn unit_sign(state: UnitState) -> (&'static str, Style) {
    match state {
        UnitState::Pending => ("○", DIM),
        UnitState::Dispatched => ("▸", LIVE),
        UnitState::Collected => ("◆", LIVE),
        UnitState::Done => ("✓", GOOD),
        UnitState::Failed => ("✗", BAD),
        UnitState::Cancelled => ("–", DIM),
    }
}

/// What a state of a unit means.
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

fn drawn_units(units: &[UnitView]) -> Vec<Unit> {
    let place = |key: &_| units.iter().position(|it| it.key == *key);
    let one = |unit: &UnitView| {
        let (mark, style) = unit_sign(unit.state);
        let again = if unit.attempts > 1 { format!(" ({})", unit.attempts) } else { String::new() };
        Unit {
            key: unit.key.as_str().to_owned(),
            title: format!("{mark}{again} {}", text::first(unit.title.as_str())),
            style,
            after: unit.depends_on.iter().filter_map(place).collect(),
        }
    };
    units.iter().map(one).collect()
}

fn planned_units(plan: &Plan) -> Vec<Unit> {
    let steps = plan.steps();
    let place = |key: &_| steps.iter().position(|it| it.key == *key);
    let one = |unit: &cynode_core::workflow::plan::PlannedUnit| Unit {
        key: unit.key.as_str().to_owned(),
        title: format!("○ {}", text::first(unit.title.as_str())),
        style: Style::new(),
        after: unit.depends_on.iter().filter_map(place).collect(),
    };
    steps.iter().map(one).collect()
}

impl Sheet<'_> {
    pub(super) fn plan(&mut self, area: Rect, task: &TaskView) {
        let state = self.state;
        let Some(timeline) = state.timeline() else { return };
        if timeline.units.is_empty() {
            return self.unplanned(area, task);
        }
        let told = state.chosen_unit();
        let shown = told.filter(|_| state.unit.is_some() || state.focus == Focus::Detail);
        let room = usize::from(area.width).saturating_sub(1);
        let drawing = graph::draw(&drawn_units(&timeline.units), room, shown);
        let told = told.and_then(|it| timeline.units.get(it));
        let words = told.map_or_else(Vec::new, |unit| unit_lines(unit, room));
        // The picture first; then words, two lines at least; what is left is for what happened last.
        let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let picture = small(drawing.lines.len());
        let least = area.height.saturating_sub(picture).max(3);
        let foot = small(words.len()).saturating_add(1).min(least).min(area.height);
        let left = area.height.saturating_sub(picture).saturating_sub(foot);
        let lately = if left >= LATELY { left } else { 0 };
        let part = [Constraint::Min(0), Constraint::Length(foot), Constraint::Length(lately)];
        let [top, foot, end] = Layout::vertical(part).areas(area);
        self.picture(top, &drawing, shown);
        if let Some(unit) = told {
            let rest = self.rule(foot, unit.key.as_str());
            self.lines(rest, &words);
        }
        if lately > 0 {
            let (title, lines) = match &timeline.summary {
                Some(summary) => ("what came of it", wrapped(summary, room, Style::new())),
                None => ("lately", story(timeline, state.now, room)),
            };
            let rest = self.rule(end, title);
            // Of a story its end, of a summary its beginning.
            let skipped = lines.len().saturating_sub(usize::from(rest.height));
            let skipped = if timeline.summary.is_some() { 0 } else { skipped };
            self.lines(rest, &lines[skipped..]);
        }
    }

    /// Lines that do not scroll.
    fn lines(&mut self, area: Rect, lines: &[Line]) {
        for (row, line) in (area.y..area.bottom()).zip(lines) {
            self.put(area.x, row, line, area.width);
        }
    }

    fn picture(&mut self, area: Rect, drawing: &graph::Drawing, chosen: Option<usize>) {
        let page = usize::from(area.height);
        let end = drawing.lines.len().saturating_sub(page);
        let mut top = self.state.offset(Place::Plan).min(end);
        if let Some((_, y, _, height)) = chosen.and_then(|it| drawing.places.get(it)) {
            top = top.min(*y).max((y + height).saturating_sub(page)).min(end);
        }
        for (row, line) in (area.y..area.bottom()).zip(drawing.lines.iter().skip(top)) {
            self.put(area.x, row, line, area.width);
        }
        self.scrolled(area, Place::Plan, (top, page, end));
        for (unit, (x, y, wide, height)) in drawing.places.iter().enumerate() {
            let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
            let from = area.y.saturating_add(small(y.saturating_sub(top)));
            let hidden = top.saturating_sub(*y);
            let height = small(height.saturating_sub(hidden));
            let spot = Rect::new(area.x.saturating_add(small(*x)), from, small(*wide), height);
            self.hit(spot.intersection(area), Hit::Row(Place::Plan, unit));
        }
    }

    /// What was asked for, when there is no plan yet or it waits for a yes.
    fn unplanned(&mut self, area: Rect, task: &TaskView) {
        let room = usize::from(area.width).saturating_sub(1);
        let mut lines = vec![Line::raw("")];
        lines.extend(wrapped(task.description.as_str(), room, Style::new()));
        for criterion in &task.acceptance_criteria {
            lines.extend(wrapped(
                &format!("must be shown: {}", criterion.text.as_str()),
                room,
                DIM,
            ));
            if let Some(check) = &criterion.check {
                lines.extend(wrapped(&format!("            by: {}", check.told()), room, DIM));
            }
        }
        lines.push(Line::raw(""));
        match self.state.known.plan(task.id) {
            Some(Some(planned)) => {
                lines.push(Line::styled("The plan, as it waits for a yes:", WARN));
                lines.extend(graph::draw(&planned_units(&planned.plan), room, None).lines);
            }
            _ => lines.push(Line::styled("There is no plan yet.", DIM)),
        }
        self.text(area, Place::Plan, &lines);
    }

    pub(super) fn timeline(&mut self, area: Rect) {
        let Some(timeline) = self.state.timeline() else { return };
        let room = usize::from(area.width).saturating_sub(1);
        let lines = story(timeline, self.state.now, room);
        self.text(area, Place::Timeline, &lines);
    }

    pub(super) fn logs(&mut self, area: Rect) {
        let Some(timeline) = self.state.timeline() else { return };
        let Some(job) = self.state.chosen_job() else {
            let lines = [Line::styled("No job has begun yet.", DIM)];
            return self.text(area, Place::Log, &lines);
        };
        let at = timeline.jobs.iter().position(|it| it.job_id == job.job_id).unwrap_or(0);
        let mut rest = area;
        if area.width >= BESIDE {
            let part = Layout::horizontal([Constraint::Length(34), Constraint::Min(1)]);
            let [list, log] = part.areas(area);
            self.jobs(list, timeline, at);
            rest = super::indented(log);
        }
        let topic = Topic::Log(job.job_id);
        let (word, style) = job_sign(job);
        let follows = if self.state.follow { "follows" } else { "stays here" };
        let title = line([
            span(format!("job {} of {}: ", at + 1, timeline.jobs.len()), DIM),
            span(job_name(timeline, at), BOLD),
            span(format!("  {word}  "), style),
            span(format!("{}  {follows}", job_time(job, self.state.now)), DIM),
        ]);
        rest = self.heading(rest, &title, Some(&topic));
        let room = usize::from(rest.width).saturating_sub(1);
        let lines = match self.state.known.logs.get(&job.job_id) {
            None => self.absent(&topic, room).unwrap_or_default(),
            Some(log) if log.lines.is_empty() => {
                vec![Line::styled("It has said nothing yet.", DIM)]
            }
            Some(log) => {
                let dropped = (log.dropped > 0)
                    .then(|| Line::styled(format!("… {} earlier lines", log.dropped), DIM));
                let mut last = None;
                let said = log.lines.iter().flat_map(|said| log_lines(said, &mut last, room));
                dropped.into_iter().chain(said).collect()
            }
        };
        self.text(rest, Place::Log, &lines);
    }

    fn jobs(&mut self, area: Rect, timeline: &Timeline, chosen: usize) {
        let room = usize::from(area.width).saturating_sub(1);
        let rest = self.heading(area, &Line::styled("Jobs", BOLD), None);
        let focused = self.state.focus == Focus::Detail;
        let now = self.state.now;
        let count = timeline.jobs.len();
        self.rows(rest, Place::Jobs, (count, Some(chosen), focused), |at| {
            let job = &timeline.jobs[at];
            let (word, style) = job_sign(job);
            let mark = word.split(' ').next().unwrap_or_default().to_owned();
            let time = text::right(&job_time(job, now), 7);
            columns(&[
                (mark, 1, style),
                (job_name(timeline, at), room.saturating_sub(10), Style::new()),
                (time, 7, DIM),
            ])
        });
    }

    pub(super) fn diff(&mut self, area: Rect) {
        let state = self.state;
        let room = usize::from(area.width).saturating_sub(1);
        let Some(entry) = state.pull_request() else {
            let words =
                "Nothing is offered yet: there is a diff when the task has brought a pull request.";
            let lines = wrapped(words, room, DIM);
            return self.text(area, Place::Diff, &lines);
        };
        let topic = Topic::Files(entry.id);
        if let Some(lines) = self.absent(&topic, room) {
            return self.text(area, Place::Diff, &lines);
        }
        let Some(files) = state.known.files.get(&entry.id) else { return };
        let path = state.chosen_file().unwrap_or_default().to_owned();
        let at = files.files.iter().position(|file| file.path == path).unwrap_or(0);
        let mut rest = area;
        if area.width >= BESIDE {
            let part = Layout::horizontal([Constraint::Length(40), Constraint::Min(1)]);
            let [list, diff] = part.areas(area);
            self.files(list, files, at);
            rest = super::indented(diff);
        }
        let topic = Topic::Diff(entry.id, path.clone());
        let change = files.files.get(at).map_or_else(String::new, change);
        let title = line([
            span(
                format!("file {} of {}: ", (at + 1).min(files.files.len()), files.files.len()),
                DIM,
            ),
            span(&path, BOLD),
            span(format!("  {change}"), DIM),
        ]);
        rest = self.heading(rest, &title, Some(&topic));
        let room = usize::from(rest.width).saturating_sub(1);
        let lines = match state.known.diffs.get(&(entry.id, path)) {
            _ if files.files.is_empty() => vec![Line::styled("It changes no file.", DIM)],
            None => self.absent(&topic, room).unwrap_or_default(),
            Some(diff) => {
                let mut lines = diff_lines(&diff.text, room);
                if diff.truncated {
                    lines.push(Line::styled("… there is more than is shown", WARN));
                }
                lines
            }
        };
        self.text(rest, Place::Diff, &lines);
    }

    fn files(&mut self, area: Rect, files: &cynode_wire::delivery::ChangedFiles, chosen: usize) {
        let room = usize::from(area.width).saturating_sub(1);
        let rest = self.heading(area, &Line::styled("Files", BOLD), None);
        let focused = self.state.focus == Focus::Detail;
        let count = files.files.len();
        self.rows(rest, Place::Files, (count, Some(chosen), focused), |at| {
            let file = &files.files[at];
            let change = text::right(&change(file), 9);
            columns(&[
                (text::plain(&file.path), room.saturating_sub(10), Style::new()),
                (change, 9, DIM),
            ])
        });
    }

    pub(super) fn evidence(&mut self, area: Rect, task: TaskId) {
        let room = usize::from(area.width).saturating_sub(1);
        let topic = Topic::Evidence(task);
        let lines = match self.state.known.evidence.get(&task) {
            None => self.absent(&topic, room).unwrap_or_default(),
            Some(shown) => {
                let mut lines = Vec::new();
                for view in shown.evidence.iter().rev() {
                    lines.extend(evidence_lines(view, room));
                    lines.push(Line::raw(""));
                }
                if lines.is_empty() {
                    lines.push(Line::styled("Nothing was checked yet.", DIM));
                }
                let feedback = &shown.feedback;
                if !feedback.summary.is_empty() {
                    lines.extend(wrapped(&feedback.summary, room, Style::new()));
                }
                for (word, style, issues) in [
                    ("critical", BAD, &feedback.critical_issues),
                    ("major", WARN, &feedback.major_issues),
                    ("minor", DIM, &feedback.minor_issues),
                ] {
                    lines.extend(issues.iter().flat_map(|it| issue_lines(word, style, it, room)));
                }
                lines
            }
        };
        let rest = self.heading(area, &Line::styled("newest first", DIM), Some(&topic));
        self.text(rest, Place::Evidence, &lines);
    }
}

/// What is to be said of a unit.
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
    let mut lines = vec![line([
        span(format!("{mark} {}", unit_word(unit.state)), style),
        span(format!(", {tried}{after}"), DIM),
    ])];
    lines.extend(wrapped(unit.title.as_str(), room, Style::new()));
    for finding in &unit.findings {
        let at = finding.at.as_deref().map_or(String::new(), |at| format!("{at}: "));
        let words = format!("{}: {at}{}", severity(finding.severity), finding.text);
        lines.extend(wrapped(&words, room, WARN));
    }
    lines
}

const fn severity(severity: cynode_wire::workflow::Severity) -> &'static str {
    use cynode_wire::workflow::Severity;
    match severity {
        Severity::Critical => "critical",
        Severity::Major => "major",
        Severity::Minor => "minor",
        Severity::Note => "note",
    }
}

/// What happened, steps and waits in one order.
fn story(timeline: &Timeline, now: OffsetDateTime, room: usize) -> Vec<Line<'static>> {
    enum Entry<'a> {
        Step(&'a StepEntry),
        Wait(&'a WaitEntry),
    }
    let steps = timeline.steps.iter().filter(|step| step.verdict != "wait");
    let steps = steps.map(|step| (step.at, Entry::Step(step)));
    let waits = timeline.waits.iter().filter(|it| it.reason.blocks() || it.resolved_at.is_none());
    let waits = waits.map(|wait| (wait.opened_at, Entry::Wait(wait)));
    let mut entries: Vec<_> = steps.chain(waits).collect();
    entries.sort_by_key(|(at, _)| *at);
    let Some(first) = entries.first().map(|(at, _)| *at) else {
        return vec![Line::styled("Nothing has happened yet.", DIM)];
    };
    let mut lines = Vec::new();
    for (at, entry) in &entries {
        let at = text::right(&offset(*at - first), 8);
        match entry {
            Entry::Step(step) => lines.push(step_line(step, &at, room)),
            Entry::Wait(wait) => lines.extend(wait_lines(wait, &at, now, room)),
        }
    }
    if let Some(summary) = &timeline.summary {
        lines.push(Line::raw(""));
        lines.extend(wrapped(summary, room, Style::new()));
    }
    lines
}

/// How long after the beginning.
fn offset(time: Duration) -> String {
    let seconds = time.whole_seconds().max(0);
    match seconds {
        0..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

fn step_line(step: &StepEntry, at: &str, room: usize) -> Line<'static> {
    let style = match step.verdict.as_str() {
        "pass" | "done" => GOOD,
        "fail" => BAD,
        _ => WARN,
    };
    let note = step.note.as_deref().map(text::first).unwrap_or_default();
    let unit = (room / 4).clamp(14, 30);
    columns(&[
        (at.to_owned(), 8, DIM),
        (step.node.replace('_', " "), 20, Style::new()),
        (step.verdict.clone(), 7, style),
        (step.unit.clone().unwrap_or_default(), unit, LIVE),
        (note.trim_end_matches(':').to_owned(), room.saturating_sub(39 + unit), DIM),
    ])
}

fn wait_lines(wait: &WaitEntry, at: &str, now: OffsetDateTime, room: usize) -> Vec<Line<'static>> {
    let reason = wait.reason.as_str().replace('_', " ");
    let (word, time) = match wait.resolved_at {
        Some(end) => (format!("waited for {reason}"), text::took(end - wait.opened_at)),
        None => (format!("waits for {reason}"), text::took(now - wait.opened_at)),
    };
    let how = wait.resolution.as_deref().map_or(String::new(), |how| format!(", {how}"));
    let mut lines = vec![line([
        span(at, DIM),
        span(format!(" {word} {time}{how}"), if wait.resolved_at.is_none() { WARN } else { DIM }),
    ])];
    let indent = " ".repeat(9);
    let said = |text: &String, mark: &str| {
        let lines = text.lines().take(4).map(text::plain);
        let lines =
            lines.flat_map(|it| text::wrap(&format!("{mark}{it}"), room.saturating_sub(10)));
        lines.map(|it| Line::styled(format!("{indent}{it}"), DIM)).collect::<Vec<_>>()
    };
    lines.extend(wait.question.iter().flat_map(|it| said(it, "")));
    lines.extend(wait.answer.iter().flat_map(|it| said(it, "» ")));
    lines
}

/// A job by its unit; what comes after the work of an attempt are its checks.
fn job_name(timeline: &Timeline, at: usize) -> String {
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
        Some(JobState::Queued) => ("· queued", DIM),
        Some(JobState::Running) => ("▸ running", LIVE),
        Some(JobState::Succeeded) => ("✓ succeeded", GOOD),
        Some(JobState::Failed) => ("✗ failed", BAD),
        Some(JobState::Lost) => ("✗ lost", BAD),
        Some(JobState::Cancelled) => ("– cancelled", DIM),
        None => ("? unknown", WARN),
    }
}

fn job_time(job: &JobEntry, now: OffsetDateTime) -> String {
    match (job.started_at, job.ended_at) {
        (Some(begun), Some(ended)) => text::took(ended - begun),
        (Some(begun), None) => text::took(now - begun),
        (None, _) => String::new(),
    }
}

/// A line of a log; the time is said when it is another than the last.
fn log_lines(said: &Said, last: &mut Option<String>, room: usize) -> Vec<Line<'static>> {
    let style = match said.voice {
        Voice::Agent => Style::new(),
        Voice::Deed => LIVE,
        Voice::Complaint => WARN,
        Voice::Program | Voice::System => DIM,
    };
    let time = said.at.map(|at| offset(Duration::milliseconds(i64::try_from(at).unwrap_or(0))));
    let new = time.filter(|time| Some(time) != last.as_ref());
    if new.is_some() {
        last.clone_from(&new);
    }
    let time = text::right(&new.unwrap_or_default(), 6);
    let wrapped = text::wrap(&said.text, room.saturating_sub(8));
    let wrapped = if wrapped.is_empty() { vec![String::new()] } else { wrapped };
    let lines = wrapped.into_iter().enumerate().map(|(at, words)| {
        let time = if at == 0 { time.clone() } else { " ".repeat(6) };
        line([span(format!("{time}  "), DIM), span(words, style)])
    });
    lines.collect()
}

/// How many lines came and went.
fn change(file: &cynode_wire::delivery::ChangedFile) -> String {
    match (file.insertions, file.deletions) {
        (Some(came), Some(went)) => format!("+{came} -{went}"),
        _ => "no text".to_owned(),
    }
}

fn diff_lines(diff: &str, room: usize) -> Vec<Line<'static>> {
    let known =
        |it: &str| ["diff ", "index ", "--- ", "+++ "].iter().any(|begin| it.starts_with(begin));
    // Behind the head of a file a line may begin like one, and is what came or went.
    let shown = draw::headed(diff).filter(|(head, it)| !(*head && known(it))).map(|(_, it)| it);
    let style = |line: &str| match line.as_bytes() {
        [b'+', ..] => GOOD,
        [b'-', ..] => BAD,
        [b'@', b'@', ..] => LIVE,
        _ => Style::new(),
    };
    let shown = shown.flat_map(|it| {
        let pieces = text::chop(&text::plain(it), room.saturating_sub(1)).into_iter();
        pieces.enumerate().map(move |(at, piece)| {
            let more = if at == 0 { "" } else { "↪" };
            line([span(more, DIM), span(piece, style(it))])
        })
    });
    shown.collect()
}

fn evidence_lines(view: &EvidenceView, room: usize) -> Vec<Line<'static>> {
    let (word, style) = match view.state {
        EvidenceState::Gathering => ("is gathered", LIVE),
        EvidenceState::Passed => ("holds", GOOD),
        EvidenceState::Failed => ("does not hold", BAD),
        EvidenceState::Unable => ("could not be had", WARN),
    };
    let commit = view.commit.as_deref().unwrap_or("none");
    let commit = commit.get(..10).unwrap_or(commit).to_owned();
    let old = if view.stale { ", of an older commit" } else { "" };
    let mut lines = vec![line([
        span(format!("{} #{}", view.unit.as_str(), view.attempt), BOLD),
        span(format!("  {word}  "), style),
        span(format!("commit {commit}{old}"), DIM),
    ])];
    for result in &view.checks {
        let (mark, style) = match result.tally {
            Tally::Passed => ("✓ passed", GOOD),
            Tally::Flaky => ("~ flaky", WARN),
            Tally::Before => ("~ before", WARN),
            Tally::Failed => ("✗ failed", BAD),
            Tally::Again => ("… runs", DIM),
        };
        let exit = result.exit_code.map_or("ended".to_owned(), |code| format!("exit {code}"));
        let runs =
            if result.rounds > 1 { format!(", {} runs", result.rounds) } else { String::new() };
        let facts = format!("{exit}, {} ms{runs}", result.milliseconds);
        let told = room.saturating_sub(12 + FACTS);
        lines.push(columns(&[
            (String::new(), 1, DIM),
            (mark.to_owned(), 8, style),
            (text::plain(&result.check.told()), told, Style::new()),
            (text::right(&facts, FACTS), FACTS, DIM),
        ]));
        if !result.tally.is_good() {
            let words = clean(&result.excerpt);
            let words: Vec<&str> = words.lines().filter(|it| !it.is_empty()).collect();
            let last = words.iter().skip(words.len().saturating_sub(6));
            let last = last.map(|it| text::cut(&text::plain(it), room.saturating_sub(6)));
            lines.extend(last.map(|it| Line::styled(format!("      {it}"), DIM)));
        }
    }
    lines.extend(view.trouble.iter().flat_map(|why| wrapped(&format!("  {why}"), room, WARN)));
    let waived = view.waived.iter().map(|why| format!("  taken all the same: {why}"));
    lines.extend(waived.flat_map(|why| wrapped(&why, room, WARN)));
    lines
}

fn issue_lines(word: &str, style: Style, issue: &ReviewIssue, room: usize) -> Vec<Line<'static>> {
    let at = if issue.file_location.is_empty() {
        String::new()
    } else {
        format!("{}: ", issue.file_location)
    };
    let mut lines = wrapped(&format!("{word}: {at}{}", issue.description), room, style);
    if !issue.how_to_fix.is_empty() {
        lines.extend(wrapped(&format!("       {}", issue.how_to_fix), room, DIM));
    }
    lines
}
