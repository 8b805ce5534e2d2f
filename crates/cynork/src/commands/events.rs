//! `cynork events`: the live event stream.

use std::time::Duration;

use clap::Args;
use cynode_core::events::EventView;
use tokio::time::MissedTickBehavior;

use crate::{
    client::{ApiRequest, STREAM_IDLE_TIMEOUT},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, escape_invisible_in_json, to_plain_text},
    operations,
    output::{CliOutputFormat, is_stdout_closed, print_line},
};

/// Delay before a broken stream is reopened.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

/// Stream events as they happen; with `--json`, one line of JSON per event. Reconnects when the stream breaks.
#[derive(Args)]
#[command(after_help = "Example: cynork events --project web --limit 10")]
pub(crate) struct EventsArgs {
    /// Filter by project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Filter by task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Start after this event id; `0.0` starts with the oldest stored event.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Stop after this many events.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

impl EventsArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let project = self.project.as_deref();
        let task = context.optional_task_id(self.task.as_deref(), project).await?;
        let project = context.optional_project_id(project).await?;
        let mut after = self.after;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut turn = tokio::time::interval(RECONNECT_INTERVAL);
        // There is one delay before each reconnection, however long a stream lasted.
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while left > 0 {
            turn.tick().await;
            let call = ApiRequest::for_operation(operations::FOLLOW_EVENTS)
                .with_query("project_id", project.as_ref())
                .with_query("task_id", task.as_ref())
                .with_query("after", after.as_ref());
            let mut events = match context.client.open_event_stream(&call).await {
                Ok(events) => events.with_idle_timeout(STREAM_IDLE_TIMEOUT),
                // After the first event, an unreachable server is expected to come back.
                Err(failure) if failure.kind == CliErrorKind::Unreachable && after.is_some() => {
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            while left > 0
                && let Some(heard) = events.next().await
            {
                show_event(context, &heard.data)?;
                if is_stdout_closed() {
                    return Ok(());
                }
                after = Some(heard.id);
                left -= 1;
            }
            if let Some(failure) = events.take_error().filter(|failure| !failure.is_transient()) {
                return Err(failure);
            }
        }
        Ok(())
    }
}

fn show_event(context: &CliContext, data: &str) -> Result<()> {
    let event: EventView = serde_json::from_str(data)
        .and_then(|value| serde_json::from_value(escape_invisible_in_json(value)))
        .map_err(|error| CliError::internal_error(format!("an event cannot be read: {error}")))?;
    match context.out.form {
        // Unchanged, on one line.
        CliOutputFormat::Json => print_line(data),
        CliOutputFormat::Quiet => print_line(&event.kind),
        CliOutputFormat::Readable => {
            print_line(&render_event_line(&event, &context.value_formatter()));
        }
    }
    Ok(())
}

fn render_event_line(event: &EventView, look: &ValueFormatter) -> String {
    let about = event
        .task_id
        .map(|id| id.to_string())
        .or_else(|| event.project_id.map(|id| id.to_string()));
    let about = about.unwrap_or_default();
    let data = match &event.data {
        serde_json::Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| format!("{name}={}", to_plain_text(value)));
            fields.collect::<Vec<_>>().join(" ")
        }
        serde_json::Value::Null => String::new(),
        other => to_plain_text(other),
    };
    let time = event.occurred_at.time();
    let clock = format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    let line = format!(
        "{}  {}  {}  {data}",
        look.style_dim(&clock),
        look.style_bold(&event.kind),
        look.style_dim(&about)
    );
    line.trim_end().to_owned()
}
