//! `cynork events`: what happens, as it happens.

use std::time::Duration;

use clap::Args;
use cynode_wire::events::EventView;
use tokio::time::MissedTickBehavior;

use crate::{
    client::{Call, SILENCE},
    context::Context,
    failure::{Failure, Kind, Result},
    look::{Look, all_visible, plain},
    operations,
    output::{Form, closed, say},
};

/// The pause before a stream that broke is opened again.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells what happens, as it happens; with `--json` a line of JSON for each. A stream that breaks is taken up again.
#[derive(Args)]
#[command(after_help = "Example: cynork events --project web --limit 10")]
pub(crate) struct Events {
    /// Only of this project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Only of this task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Begins behind this event, by its id; `0.0` begins with the first that is kept.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Ends after so many.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

impl Events {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        let project = self.project.as_deref();
        let task = context.task_id_if(self.task.as_deref(), project).await?;
        let project = context.project_id_if(project).await?;
        let mut after = self.after;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut turn = tokio::time::interval(PAUSE);
        // However long a stream lasted, one pause comes before the next.
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while left > 0 {
            turn.tick().await;
            let call = Call::of(operations::FOLLOW_EVENTS)
                .query("project_id", project.as_ref())
                .query("task_id", task.as_ref())
                .query("after", after.as_ref());
            let mut events = match context.client.events(&call).await {
                Ok(events) => events.at_most_silent(SILENCE),
                // Once something was heard, whoever is away comes back.
                Err(failure) if failure.kind == Kind::Unreachable && after.is_some() => continue,
                Err(failure) => return Err(failure),
            };
            while left > 0
                && let Some(heard) = events.next().await
            {
                show(context, &heard.data)?;
                if closed() {
                    return Ok(());
                }
                after = Some(heard.id);
                left -= 1;
            }
        }
        Ok(())
    }
}

fn show(context: &Context, data: &str) -> Result<()> {
    let event: EventView = serde_json::from_str(data)
        .and_then(|value| serde_json::from_value(all_visible(value)))
        .map_err(|error| Failure::internal(format!("an event cannot be read: {error}")))?;
    match context.out.form {
        // As it came, on one line.
        Form::Json => say(data),
        Form::Quiet => say(&event.kind),
        Form::Readable => say(&line(&event, &context.look())),
    }
    Ok(())
}

fn line(event: &EventView, look: &Look) -> String {
    let about = event
        .task_id
        .map(|id| id.to_string())
        .or_else(|| event.project_id.map(|id| id.to_string()));
    let about = about.unwrap_or_default();
    let data = match &event.data {
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}={}", plain(value)));
            fields.collect::<Vec<_>>().join(" ")
        }
        serde_json::Value::Null => String::new(),
        other => plain(other),
    };
    let time = event.occurred_at.time();
    let clock = format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    let line =
        format!("{}  {}  {}  {data}", look.dim(&clock), look.bold(&event.kind), look.dim(&about));
    line.trim_end().to_owned()
}
