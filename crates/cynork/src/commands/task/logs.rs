//! Messages and actions of agents and output of programs, of all jobs of a task in order of time.

use std::time::Duration;

use clap::Args;
use cynode_core::workflow::timeline::JobEntry;
use cynode_wire::{
    nodes::JobEventView, tasks::events::JOB_ENDED_KIND, workflow::timeline::TaskTimeline,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::time::MissedTickBehavior;

use super::{TaskSelector, fetch_timeline};
use crate::{
    client::{ApiRequest, ListResponse, STREAM_IDLE_TIMEOUT},
    context::CliContext,
    draw,
    failure::{CliError, CliErrorKind, Result},
    follow::{JobUpdate, TaskUpdate, TaskUpdateStream, job_name},
    operations,
    output::{CliOutput, CliOutputFormat, is_stdout_closed, print_line},
    terminal::{Colorizer, TextStyle, format_clock},
};

/// Delay before a broken stream is opened again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of events in one response.
const JOB_EVENT_PAGE_SIZE: usize = 500;

#[derive(Args)]
pub(crate) struct TaskLogsArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Follow the logs until the task ends.
    #[arg(long, short)]
    follow: bool,
    /// Filter by job.
    #[arg(long)]
    job: Option<String>,
    /// Filter by unit of the plan.
    #[arg(long)]
    unit: Option<String>,
    /// Show the full output of programs.
    #[arg(long)]
    full: bool,
}

/// Number of lines at the beginning and at the end of a program's folded output.
const FOLDED_LINES: usize = 10;

/// Folds the middle of a long output.
fn fold_lines(lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(2 * FOLDED_LINES);
    // A mark in place of one line is no gain.
    if more < 2 {
        return lines;
    }
    let mut folded = lines[..FOLDED_LINES].to_vec();
    folded.push(format!("… {more} lines more: --full"));
    folded.extend_from_slice(&lines[lines.len() - FOLDED_LINES..]);
    folded
}

/// Renders several events; consecutive output of a program is folded, unless all of it is wanted.
fn render_event_lines(
    events: &[JobUpdate],
    full: bool,
    mut draw: impl FnMut(&JobUpdate) -> Vec<String>,
) -> Vec<String> {
    let together = |first: &JobUpdate, second: &JobUpdate| {
        let output = |it: &JobUpdate| it.event.event == "output";
        output(first) && output(second) && first.job.job_id == second.job.job_id
    };
    let mut lines = Vec::new();
    for group in events.chunk_by(together) {
        let drawn: Vec<String> = group.iter().flat_map(&mut draw).collect();
        let output = group.first().is_some_and(|it| it.event.event == "output");
        lines.extend(if output && !full { fold_lines(drawn) } else { drawn });
    }
    lines
}

impl TaskLogsArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.named.resolve_task_id(context).await?;
        if self.follow {
            return self.follow_events(context, &id).await;
        }
        let timeline = fetch_timeline(context, &id).await?;
        let events = self.fetch_events(context, &timeline).await?;
        let value = json!({ "items": events.iter().map(event_to_json).collect::<Vec<_>>() });
        let first = events.first().map(|event| event.event.at);
        context.out.print_answer(
            &value,
            |_| {
                render_event_lines(&events, true, |it| {
                    draw::render_job_event(&it.event, Colorizer(false))
                })
            },
            |_, paint| {
                let lines =
                    render_event_lines(&events, self.full, |it| render_event(it, first, paint));
                if lines.is_empty() {
                    return paint.apply_style(TextStyle::Dim, "nothing was said or done yet");
                }
                lines.join("\n")
            },
        )
    }

    fn includes_job(&self, job: &JobEntry) -> bool {
        self.job.as_ref().is_none_or(|id| *id == job.job_id.to_string())
            && self.unit.as_ref().is_none_or(|unit| *unit == job.unit)
    }

    /// Fetches all events so far, in order.
    async fn fetch_events(
        &self,
        context: &CliContext,
        timeline: &TaskTimeline,
    ) -> Result<Vec<JobUpdate>> {
        let jobs: Vec<&JobEntry> =
            timeline.jobs.iter().filter(|job| self.includes_job(job)).collect();
        if jobs.is_empty() && (self.job.is_some() || self.unit.is_some()) {
            return Err(unknown_job_error());
        }
        let mut happened = Vec::new();
        for job in jobs {
            let (name, mut from) = (job_name(timeline, job), 0);
            loop {
                let call =
                    ApiRequest::with_path_params(operations::JOB_EVENTS, [job.job_id.to_string()])
                        .with_query("from", Some(from))
                        .with_query("limit", Some(JOB_EVENT_PAGE_SIZE));
                let page: ListResponse<JobEventView> = context.client.send(&call).await?;
                let full = page.items.len() == JOB_EVENT_PAGE_SIZE;
                for event in page.items {
                    from = event.number + 1;
                    happened.push(JobUpdate { job: job.clone(), name: name.clone(), event });
                }
                if !full {
                    break;
                }
            }
        }
        // Events of one job stay in order: the sort is stable.
        happened.sort_by_key(|it| it.event.at);
        Ok(happened)
    }

    /// Follows the log of one job until it has ended.
    async fn follow_job(&self, context: &CliContext, id: &str, job_id: &str) -> Result<()> {
        let timeline = fetch_timeline(context, id).await?;
        let job = timeline.jobs.iter().find(|job| self.includes_job(job));
        let job = job.ok_or_else(unknown_job_error)?;
        let name = job_name(&timeline, job);
        let (mut printer, mut from) = (EventPrinter::default(), 0);
        let mut turn = tokio::time::interval(RECONNECT_INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turn.tick().await;
            let call = ApiRequest::with_path_params(operations::FOLLOW_JOB_EVENTS, [job_id])
                .with_query("from", Some(from));
            let mut log = match context.client.open_event_stream(&call).await {
                Ok(log) => log.with_idle_timeout(STREAM_IDLE_TIMEOUT),
                // After the first event, an unreachable server is expected to come back.
                Err(failure) if failure.kind == CliErrorKind::Unreachable && from > 0 => continue,
                Err(failure) => return Err(failure),
            };
            while let Some(received) = log.next().await {
                if received.event == JOB_ENDED_KIND {
                    return printer.finish(context);
                }
                let event: JobEventView =
                    serde_json::from_str(&received.data).map_err(|error| {
                        CliError::internal_error(format!("an event cannot be read: {error}"))
                    })?;
                from = event.number + 1;
                let update = JobUpdate { job: job.clone(), name: name.clone(), event };
                printer.print_update(context, &update, self.full);
                if is_stdout_closed() {
                    return Ok(());
                }
            }
            if let Some(failure) = log.take_error().filter(|failure| !failure.is_transient()) {
                return Err(failure);
            }
        }
    }

    async fn follow_events(&self, context: &CliContext, id: &str) -> Result<()> {
        if let Some(job) = &self.job {
            return self.follow_job(context, id, job).await;
        }
        let mut follow = TaskUpdateStream::follow_task(context.client.clone(), id);
        let mut printer = EventPrinter::default();
        while let Some(news) = follow.next().await {
            match news?.news {
                TaskUpdate::Job(it) if self.includes_job(&it.job) => {
                    printer.print_update(context, &it, self.full);
                    if is_stdout_closed() {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        printer.finish(context)
    }
}

/// Prints events as they come. Programs get all of them as one value in the end.
#[derive(Default)]
struct EventPrinter {
    /// Time of the first event.
    first: Option<OffsetDateTime>,
    items: Vec<Value>,
}

impl EventPrinter {
    fn print_update(&mut self, context: &CliContext, update: &JobUpdate, full: bool) {
        let first = *self.first.get_or_insert(update.event.at);
        let lines = match context.out.form {
            CliOutputFormat::Json => {
                self.items.push(event_to_json(update));
                return;
            }
            CliOutputFormat::Quiet => draw::render_job_event(&update.event, Colorizer(false)),
            CliOutputFormat::Readable => {
                render_event_lines(std::slice::from_ref(update), full, |it| {
                    render_event(it, Some(first), context.out.paint)
                })
            }
        };
        for line in &lines {
            print_line(line);
        }
    }

    fn finish(self, context: &CliContext) -> Result<()> {
        if context.out.form == CliOutputFormat::Json {
            CliOutput::print_json(&json!({ "items": self.items }))?;
        }
        Ok(())
    }
}

fn unknown_job_error() -> CliError {
    CliError::new(CliErrorKind::NotFound, "the task has no such job")
        .with_fix("see its jobs and units: `cynork task timeline TASK --json`")
}

/// Returns one event with its job as JSON.
fn event_to_json(it: &JobUpdate) -> Value {
    json!({ "job_id": it.job.job_id, "unit": it.job.unit, "attempt": it.job.attempt,
        "number": it.event.number, "at": to_rfc3339(it.event.at), "at_ms": it.event.at_ms,
        "event": it.event.event, "data": it.event.data })
}

fn to_rfc3339(at: OffsetDateTime) -> Value {
    let format = time::format_description::well_known::Rfc3339;
    at.format(&format).map_or(Value::Null, Value::String)
}

fn render_event(it: &JobUpdate, first: Option<OffsetDateTime>, paint: Colorizer) -> Vec<String> {
    let since = first.map_or(time::Duration::ZERO, |first| it.event.at - first);
    let at = format_clock(std::time::Duration::try_from(since).unwrap_or_default());
    let head = paint.apply_style(TextStyle::Dim, &format!("{at:>5}"));
    let name = paint.apply_style(TextStyle::Cyan, &it.name);
    let lines = draw::render_job_event(&it.event, paint).into_iter();
    lines.map(|line| format!("{head}  {name}  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_wrote_is_folded_when_it_is_long() {
        let lines = |count: usize| (1..=count).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(fold_lines(lines(21)), lines(21));
        let folded = fold_lines(lines(140));
        assert_eq!((folded.len(), folded[10].as_str()), (21, "… 120 lines more: --full"));
        assert_eq!((folded[9].as_str(), folded[11].as_str()), ("10", "131"));
    }
}
