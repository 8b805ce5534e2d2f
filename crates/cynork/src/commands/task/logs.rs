//! What agents said and did and what programs wrote, of all jobs of a task in the order in which it happened.

use clap::Args;
use cynode_wire::{
    nodes::JobEventView,
    timeline::{JobEntry, Timeline},
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{Named, timeline_of};
use crate::{
    client::{Call, Items},
    context::Context,
    draw,
    failure::{Failure, Kind, Result},
    follow::{Follow, InJob, News, job_name},
    operations,
    output::{Form, Output, closed, say},
    terminal::{Paint, Style, clock},
};

/// Most events in one answer.
const PAGE: usize = 500;

#[derive(Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    named: Named,
    /// Goes on until the task has ended.
    #[arg(long, short)]
    follow: bool,
    /// Only of this job.
    #[arg(long)]
    job: Option<String>,
    /// Only of this unit of the plan.
    #[arg(long)]
    unit: Option<String>,
}

impl Logs {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let id = self.named.id(context).await?;
        if self.follow {
            return self.follow(context, &id).await;
        }
        let timeline = timeline_of(context, &id).await?;
        let events = self.all(context, &timeline).await?;
        let value = json!({ "items": events.iter().map(told).collect::<Vec<_>>() });
        let first = events.first().map(|event| event.event.at);
        context.out.show(
            &value,
            |_| events.iter().flat_map(|it| draw::happened(&it.event, Paint(false))).collect(),
            |_, paint| {
                let lines = events.iter().flat_map(|it| drawn(it, first, paint));
                let lines: Vec<String> = lines.collect();
                if lines.is_empty() {
                    return paint.dye(Style::Dim, "nothing was said or done yet");
                }
                lines.join("\n")
            },
        )
    }

    fn wants(&self, job: &JobEntry) -> bool {
        self.job.as_ref().is_none_or(|id| *id == job.job_id.to_string())
            && self.unit.as_ref().is_none_or(|unit| *unit == job.unit)
    }

    /// All that happened so far, in order.
    async fn all(&self, context: &Context, timeline: &Timeline) -> Result<Vec<InJob>> {
        let jobs: Vec<&JobEntry> = timeline.jobs.iter().filter(|job| self.wants(job)).collect();
        if jobs.is_empty() && (self.job.is_some() || self.unit.is_some()) {
            return Err(Failure::new(Kind::NotFound, "the task has no such job")
                .fix("see its jobs and units: `cynork task timeline TASK --json`"));
        }
        let mut happened = Vec::new();
        for job in jobs {
            let (name, mut from) = (job_name(timeline, job), 0);
            loop {
                let call = Call::to(operations::JOB_EVENTS, [job.job_id.to_string()])
                    .query("from", Some(from))
                    .query("limit", Some(PAGE));
                let page: Items<JobEventView> = context.client.send(&call).await?;
                let full = page.items.len() == PAGE;
                for event in page.items {
                    from = event.number + 1;
                    happened.push(InJob { job: job.clone(), name: name.clone(), event });
                }
                if !full {
                    break;
                }
            }
        }
        // Those of one job stay in their order: the sort is stable.
        happened.sort_by_key(|it| it.event.at);
        Ok(happened)
    }

    async fn follow(&self, context: &Context, id: &str) -> Result<()> {
        let mut follow = Follow::begin(context.client.clone(), id);
        let (mut first, mut kept) = (None, Vec::new());
        while let Some(news) = follow.next().await {
            match news?.news {
                News::Job(it) if self.wants(&it.job) => {
                    let first = *first.get_or_insert(it.event.at);
                    let lines = match context.out.form {
                        Form::Json => {
                            kept.push(told(&it));
                            continue;
                        }
                        Form::Quiet => draw::happened(&it.event, Paint(false)),
                        Form::Readable => drawn(&it, Some(first), context.out.paint),
                    };
                    for line in &lines {
                        say(line);
                    }
                    if closed() {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        if context.out.form == Form::Json {
            Output::json(&json!({ "items": kept }))?;
        }
        Ok(())
    }
}

/// One event, with whose it is.
fn told(it: &InJob) -> Value {
    json!({ "job_id": it.job.job_id, "unit": it.job.unit, "attempt": it.job.attempt,
        "number": it.event.number, "at": rfc3339(it.event.at), "at_ms": it.event.at_ms,
        "event": it.event.event, "data": it.event.data })
}

fn rfc3339(at: OffsetDateTime) -> Value {
    let format = time::format_description::well_known::Rfc3339;
    at.format(&format).map_or(Value::Null, Value::String)
}

fn drawn(it: &InJob, first: Option<OffsetDateTime>, paint: Paint) -> Vec<String> {
    let since = first.map_or(time::Duration::ZERO, |first| it.event.at - first);
    let at = clock(std::time::Duration::try_from(since).unwrap_or_default());
    let head = paint.dye(Style::Dim, &format!("{at:>5}"));
    let name = paint.dye(Style::Cyan, &it.name);
    let lines = draw::happened(&it.event, paint).into_iter();
    lines.map(|line| format!("{head}  {name}  {line}")).collect()
}
