//! `cynork usage`: usage of models.

use clap::{Args, Subcommand};
use cynode_wire::models::{UsageCall, UsagePoint, UsageSum};
use time::format_description::well_known::Rfc3339;

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::{ValueFormatter, group_digits},
    input::{self, TimeArgument},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum UsageCommand {
    /// Show model usage by cost, descending.
    #[command(after_help = "Example: cynork usage sum --by project --since 7d")]
    Sum {
        /// Group by this field; defaults to one total.
        #[arg(long, value_parser = ["model", "provider", "user", "project", "task", "role", "day"])]
        by: Option<String>,
        #[command(flatten)]
        of: UsageFilterArgs,
    },
    /// Show model usage over time, oldest first.
    #[command(after_help = "Example: cynork usage series --step hour --since 1d")]
    Series {
        /// Length of one step.
        #[arg(long, value_parser = ["hour", "day"], default_value = "hour")]
        step: String,
        /// Group by this field; defaults to one total.
        #[arg(long, value_parser = ["model", "provider", "user", "project", "task", "role"])]
        by: Option<String>,
        #[command(flatten)]
        of: UsageFilterArgs,
    },
    /// List model calls, newest first. Messages are not stored.
    #[command(
        after_help = "Example: cynork usage calls --task tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708 --limit 10"
    )]
    Calls {
        #[command(flatten)]
        of: UsageFilterArgs,
        #[command(flatten)]
        pages: PageArgs,
    },
}

/// Filters of calls.
#[derive(Args)]
pub(crate) struct UsageFilterArgs {
    /// Filter by user, by handle or id; `me` is you.
    #[arg(long)]
    user: Option<String>,
    /// Filter by project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Filter by task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Start time: a time, a day, or a duration ago such as `2h` or `3d`.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    since: Option<TimeArgument>,
    /// End time, exclusive: a time, a day, or a duration ago such as `2h` or `3d`.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    until: Option<TimeArgument>,
}

impl UsageFilterArgs {
    async fn apply_to_call(&self, context: &CliContext, call: ApiRequest) -> Result<ApiRequest> {
        let project = self.project.as_deref();
        let now = context.value_formatter().now;
        let written =
            |moment: Option<TimeArgument>| moment.map(|it| it.to_rfc3339(now)).transpose();
        Ok(call
            .with_query("user_id", context.optional_user_id(self.user.as_deref()).await?)
            .with_query("project_id", context.optional_project_id(project).await?)
            .with_query("task_id", context.optional_task_id(self.task.as_deref(), project).await?)
            .with_query("from", written(self.since)?)
            .with_query("to", written(self.until)?))
    }
}

impl UsageCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        context.fetch_currency().await;
        match self {
            Self::Sum { by, of } => {
                let call = of
                    .apply_to_call(
                        context,
                        ApiRequest::for_operation(operations::SUM_USAGE)
                            .with_query("by", by.as_ref()),
                    )
                    .await?;
                let heads = [
                    by.as_deref().unwrap_or("of"),
                    "cost",
                    "calls",
                    "failed",
                    "in",
                    "cached",
                    "out",
                ];
                let name = |sum: &UsageSum| sum.key.clone().unwrap_or_else(|| "all".to_owned());
                context.show_list(&call, None, name, heads, usage_sum_row).await
            }
            Self::Series { step, by, of } => {
                let call = ApiRequest::for_operation(operations::USAGE_SERIES)
                    .with_query("step", Some(step))
                    .with_query("by", by.as_ref());
                let call = of.apply_to_call(context, call).await?;
                let heads =
                    ["at", by.as_deref().unwrap_or("of"), "cost", "calls", "failed", "in", "out"];
                let name = |point: &UsagePoint| format_step(point);
                context.show_list(&call, None, name, heads, usage_point_row).await
            }
            Self::Calls { of, pages } => {
                let call = of
                    .apply_to_call(context, ApiRequest::for_operation(operations::LIST_CALLS))
                    .await?;
                let heads = ["when", "model", "by", "cost", "in", "out", "took", "outcome"];
                context
                    .show_list(
                        &call,
                        Some(&pages),
                        |it: &UsageCall| it.call_id.to_string(),
                        heads,
                        usage_call_row,
                    )
                    .await
            }
        }
    }
}

fn usage_sum_row(sum: &UsageSum, look: &ValueFormatter) -> [String; 7] {
    [
        look.style_bold(sum.key.as_deref().unwrap_or("all")),
        look.format_money(sum.cost_micros),
        group_digits(sum.calls),
        group_digits(sum.failed),
        group_digits(sum.input_tokens),
        group_digits(sum.cached_tokens),
        group_digits(sum.output_tokens),
    ]
}

/// Formats the begin of a step in UTC.
fn format_step(point: &UsagePoint) -> String {
    point.at.format(&Rfc3339).unwrap_or_default()
}

fn usage_point_row(point: &UsagePoint, look: &ValueFormatter) -> [String; 7] {
    [
        format_step(point),
        look.style_bold(point.key.as_deref().unwrap_or("all")),
        look.format_money(point.cost_micros),
        group_digits(point.calls),
        group_digits(point.failed),
        group_digits(point.input_tokens),
        group_digits(point.output_tokens),
    ]
}

fn usage_call_row(call: &UsageCall, look: &ValueFormatter) -> [String; 8] {
    let outcome = call.outcome.as_str();
    [
        look.format_relative_time(call.at),
        look.style_bold(&call.model),
        call.agent_role.clone().unwrap_or_else(|| "a person".to_owned()),
        look.format_money(call.cost_micros),
        group_digits(call.input_tokens),
        group_digits(call.output_tokens),
        call.duration_ms.map(|it| format!("{} ms", group_digits(it.into()))).unwrap_or_default(),
        call.error.as_ref().map_or_else(
            || look.style_state(outcome),
            |why| format!("{}: {why}", look.style_state(outcome)),
        ),
    ]
}
