//! `cynork schedule`: tasks that are created at set times.

use clap::{Args, Subcommand};
use cynode_wire::workflow::schedules::{FiringView, ScheduleView};
use serde_json::{Value, json};

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, to_plain_text},
    input::{self, TimeArgument},
    names::{ProjectSelector, SCHEDULE},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List the schedules you may see, newest first.
    #[command(after_help = "Example: cynork schedule list --project web")]
    List {
        /// Filter by project, by name or id.
        #[arg(long, short)]
        project: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show a schedule, its next run and its last result.
    #[command(after_help = "Example: cynork schedule show weekly-updates")]
    Show {
        /// Schedule, by name or id.
        schedule: String,
    },
    /// Create a schedule, which acts in your name.
    #[command(
        after_help = "Example: cynork schedule create weekly-updates --cron \"0 9 * * mon\" --timezone Europe/Berlin --words \"look for outdated dependencies\" --project web"
    )]
    Create(ScheduleCreateArgs),
    /// Update a schedule; it acts in your name from then on.
    #[command(after_help = "Example: cynork schedule update weekly-updates --disable")]
    Update(ScheduleUpdateArgs),
    /// Run a schedule now.
    #[command(after_help = "Example: cynork schedule run weekly-updates")]
    Run {
        /// Schedule, by name or id.
        schedule: String,
    },
    /// Mark a schedule that an agent wrote as reviewed by you.
    #[command(after_help = "Example: cynork schedule review weekly-updates")]
    Review {
        /// Schedule, by name or id.
        schedule: String,
    },
    /// Delete a schedule; the tasks it created stay.
    #[command(after_help = "Example: cynork schedule delete weekly-updates")]
    Delete {
        /// Schedule, by name or id.
        schedule: String,
    },
}

/// Trigger of a schedule.
#[derive(Args)]
pub(crate) struct ScheduleTriggerArgs {
    /// Cron expression: minute, hour, day of the month, month, day of the week.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "at")]
    cron: Option<String>,
    /// Time zone of the cron expression; defaults to `UTC`.
    #[arg(long, requires = "cron")]
    timezone: Option<String>,
    /// Time of a single run.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    at: Option<TimeArgument>,
}

/// Action of a schedule.
#[derive(Args)]
pub(crate) struct ScheduleActionArgs {
    /// Request that the project manager turns into tasks at each run; `@FILE` reads a file.
    #[arg(long, value_name = "TEXT", conflicts_with = "task")]
    words: Option<String>,
    /// Description of the task to create at each run; `@FILE` reads a file.
    #[arg(long, value_name = "TEXT")]
    task: Option<String>,
}

#[derive(Args)]
pub(crate) struct ScheduleCreateArgs {
    /// Name, unique in the project.
    name: String,
    #[command(flatten)]
    trigger: ScheduleTriggerArgs,
    #[command(flatten)]
    action: ScheduleActionArgs,
    /// Policy for runs missed while CyNode was down.
    #[arg(long, value_parser = ["skip", "once"])]
    missed: Option<String>,
    /// Profile that its work is done under; defaults to that of the preferences, then to `default`.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct ScheduleUpdateArgs {
    /// Schedule, by name or id.
    schedule: String,
    #[command(flatten)]
    trigger: ScheduleTriggerArgs,
    #[command(flatten)]
    action: ScheduleActionArgs,
    /// Policy for runs missed while CyNode was down.
    #[arg(long, value_parser = ["skip", "once"])]
    missed: Option<String>,
    /// Profile that its work is done under.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Enable the schedule.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Disable the schedule.
    #[arg(long)]
    disable: bool,
    /// Version that you expect; defaults to the current one.
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<u32>,
}

impl ScheduleTriggerArgs {
    fn into_trigger_body(self, look: &ValueFormatter) -> Result<Option<Value>> {
        Ok(match (self.cron, self.at) {
            (Some(expression), _) => {
                let timezone = self.timezone;
                Some(input::without_nulls(
                    json!({ "kind": "cron", "expression": expression, "timezone": timezone }),
                ))
            }
            (None, Some(at)) => Some(json!({ "kind": "once", "at": at.to_rfc3339(look.now)? })),
            (None, None) => None,
        })
    }
}

impl ScheduleActionArgs {
    fn into_action_body(self) -> Result<Option<Value>> {
        Ok(match (self.words, self.task) {
            (Some(words), _) => {
                Some(json!({ "kind": "words", "text": input::read_text_argument(&words)? }))
            }
            (None, Some(task)) => {
                Some(json!({ "kind": "task", "description": input::read_text_argument(&task)? }))
            }
            (None, None) => None,
        })
    }
}

impl ScheduleCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { project, pages } => {
                let call = ApiRequest::for_operation(operations::LIST_SCHEDULES)
                    .with_query("project", project);
                let heads = ["name", "trigger", "action", "next", "on", "reviewed"];
                let name = |it: &ScheduleView| it.name.as_str().to_owned();
                context.show_list(&call, Some(&pages), name, heads, schedule_row).await
            }
            Self::Show { schedule } => {
                let id = SCHEDULE.resolve_id(context, &schedule).await?;
                let call = ApiRequest::with_path_params(operations::GET_SCHEDULE, [&id]);
                context
                    .show_item(
                        &call,
                        |it: &ScheduleView| it.schedule_id.to_string(),
                        schedule_fields,
                    )
                    .await
            }
            Self::Create(create) => create.run(context).await,
            Self::Update(update) => update.run(context).await,
            Self::Run { schedule } => {
                let id = SCHEDULE.resolve_id(context, &schedule).await?;
                let call = ApiRequest::with_path_params(operations::RUN_SCHEDULE, [&id]);
                let name = |it: &FiringView| it.number.to_string();
                let words = |it: &FiringView, _: &ValueFormatter| {
                    format!("{schedule} was asked for; {}", it.outcome)
                };
                context.show_outcome(&call, name, words).await
            }
            Self::Review { schedule } => {
                let body = json!({ "schedule_id": SCHEDULE.resolve_id(context, &schedule).await? });
                let call =
                    ApiRequest::for_operation(operations::REVIEW_CONTENT).with_json_body(&body);
                context.send_and_confirm(&call, &format!("{schedule} is reviewed")).await
            }
            Self::Delete { schedule } => {
                let id = SCHEDULE.resolve_id(context, &schedule).await?;
                context.confirm_action(&format!("Delete the schedule {schedule}?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_SCHEDULE, [&id]);
                context.send_and_confirm(&call, &format!("{schedule} is deleted")).await
            }
        }
    }
}

/// Renders the trigger briefly: a time or a cron expression.
fn render_trigger(it: &ScheduleView) -> String {
    let trigger = json!(it.trigger);
    match trigger["expression"].as_str() {
        Some(expression) => {
            let timezone = trigger["timezone"].as_str().unwrap_or_default();
            format!("{expression} {timezone}").trim().to_owned()
        }
        None => to_plain_text(&trigger["at"]),
    }
}

/// Renders the first line of its action.
fn render_action(it: &ScheduleView) -> String {
    let action = json!(it.action);
    let text = action["text"].as_str().or(action["description"].as_str()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn schedule_row(it: &ScheduleView, look: &ValueFormatter) -> [String; 6] {
    [
        look.style_bold(it.name.as_str()),
        render_trigger(it),
        render_action(it),
        look.format_optional_time(it.next_at),
        look.format_yes_no(it.enabled),
        look.format_yes_no(!it.unreviewed),
    ]
}

fn schedule_fields(it: &ScheduleView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    let last = it.last_firing.as_ref();
    let last = last.map(|it| format!("{}: {}", look.format_relative_time(it.fired_at), it.outcome));
    vec![
        ("name", look.style_bold(it.name.as_str())),
        ("id", it.schedule_id.to_string()),
        ("trigger", render_trigger(it)),
        ("action", render_action(it)),
        ("profile", it.profile.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("on", look.format_yes_no(it.enabled)),
        ("reviewed", look.format_yes_no(!it.unreviewed)),
        ("next", look.format_optional_time(it.next_at)),
        ("fired", it.firings.to_string()),
        ("last firing", last.unwrap_or_default()),
        ("version", it.version.to_string()),
    ]
}

impl ScheduleCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let lacks = |what: &str, fix: &str| {
            CliError::new(CliErrorKind::Usage, what.to_owned()).with_fix(fix)
        };
        let trigger = self.trigger.into_trigger_body(&context.value_formatter())?;
        let trigger = trigger.ok_or_else(|| lacks("when?", "say it with --cron or --at"))?;
        let action = self.action.into_action_body()?;
        let action = action.ok_or_else(|| lacks("what?", "say it with --words or --task"))?;
        let project = context.project_id(&context.require_project(self.place.project)?).await?;
        let body = json!({ "project_id": project, "name": self.name, "trigger": trigger, "action": action,
            "missed_policy": self.missed, "profile": self.profile });
        let call = ApiRequest::for_operation(operations::CREATE_SCHEDULE)
            .with_json_body(&input::without_nulls(body));
        let name = |it: &ScheduleView| it.schedule_id.to_string();
        let words = |it: &ScheduleView, look: &ValueFormatter| {
            format!("{} is due {}", it.name.as_str(), look.format_optional_time(it.next_at))
        };
        context.show_outcome(&call, name, words).await
    }
}

impl ScheduleUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = SCHEDULE.resolve_id(context, &self.schedule).await?;
        let version = match self.expected_version {
            Some(version) => json!(version),
            None => context
                .send_request(&ApiRequest::with_path_params(operations::GET_SCHEDULE, [&id]))
                .await?["version"]
                .take(),
        };
        let enabled = (self.enable || self.disable).then_some(self.enable);
        let body = input::require_changes(
            json!({ "trigger": self.trigger.into_trigger_body(&context.value_formatter())?,
            "action": self.action.into_action_body()?, "missed_policy": self.missed, "enabled": enabled, "profile": self.profile }),
        )?;
        let mut body = body;
        body["expected_version"] = version;
        let call =
            ApiRequest::with_path_params(operations::UPDATE_SCHEDULE, [&id]).with_json_body(&body);
        let name = |it: &ScheduleView| it.schedule_id.to_string();
        let words = |it: &ScheduleView, look: &ValueFormatter| {
            if it.enabled {
                format!("{} is due {}", it.name.as_str(), look.format_optional_time(it.next_at))
            } else {
                format!("{} is switched off", it.name.as_str())
            }
        };
        context.show_outcome(&call, name, words).await
    }
}
