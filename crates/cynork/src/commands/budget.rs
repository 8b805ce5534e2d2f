//! `cynork budget`: limits on the spending for models.

use clap::{Args, Subcommand};
use cynode_core::models::Period;
use cynode_wire::models::{BudgetScopeType, BudgetSource, BudgetStatusView};
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, format_signed_amount, group_digits},
    input, operations,
    terminal::TextStyle,
};

#[derive(Subcommand)]
pub(crate) enum BudgetCommand {
    /// List budgets and how much of each is spent.
    #[command(after_help = "Example: cynork budget list --project web")]
    List(BudgetScopeArgs),
    /// Set the budget of a scope and period.
    #[command(after_help = "Example: cynork budget set --project web --period month --max-cost 50")]
    Set(BudgetSetArgs),
    /// Delete a budget.
    #[command(after_help = "Example: cynork budget delete bdg_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Delete {
        /// Budget id.
        budget: String,
    },
}

/// Scope of a budget.
#[derive(Args)]
pub(crate) struct BudgetScopeArgs {
    /// Scope: the whole installation.
    #[arg(long, conflicts_with_all = ["user", "project", "task"])]
    installation: bool,
    /// Scope: a user, by handle or id; `me` is you.
    #[arg(long, conflicts_with_all = ["project", "task"])]
    user: Option<String>,
    /// Scope: a project, by name or id; with --task, the project of that task.
    #[arg(long, short)]
    project: Option<String>,
    /// Scope: a task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
}

#[derive(Args)]
pub(crate) struct BudgetSetArgs {
    #[command(flatten)]
    whose: BudgetScopeArgs,
    /// Period of the budget, in UTC.
    #[arg(long, default_value = "total", value_parser = ["total", "day", "month"])]
    period: String,
    /// Maximum cost, in the installation's currency.
    #[arg(long, value_name = "AMOUNT", value_parser = input::parse_money, required_unless_present = "max_tokens")]
    max_cost: Option<u64>,
    /// Maximum number of tokens, input and output together.
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
}

impl BudgetScopeArgs {
    /// Resolves kind and id of the scope.
    async fn resolve_scope(
        &self,
        context: &CliContext,
    ) -> Result<Option<(&'static str, Option<String>)>> {
        let project = self.project.as_deref();
        Ok(Some(match (&self.task, project, &self.user) {
            (Some(task), ..) => {
                let id = context.task_id(task, self.project.clone()).await?;
                ("task", Some(id))
            }
            (None, Some(project), _) => ("project", Some(context.project_id(project).await?)),
            (None, None, Some(user)) => ("user", Some(context.user_id(user).await?)),
            (None, None, None) if self.installation => ("installation", None),
            (None, None, None) => return Ok(None),
        }))
    }
}

impl BudgetCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        context.fetch_currency().await;
        match self {
            Self::List(whose) => {
                let (kind, id) = whose.resolve_scope(context).await?.unzip();
                let call = ApiRequest::for_operation(operations::LIST_BUDGETS)
                    .with_query("scope_type", kind)
                    .with_query("scope_id", id.flatten());
                context
                    .show_list(
                        &call,
                        None,
                        |it: &BudgetStatusView| it.budget_id.to_string(),
                        ["whose", "per", "money", "tokens", "since", "set by", "id"],
                        budget_row,
                    )
                    .await
            }
            Self::Set(set) => set.run(context).await,
            Self::Delete { budget } => {
                context.confirm_action(&format!("Delete the budget {budget}?"))?;
                context
                    .send_and_confirm(
                        &ApiRequest::with_path_params(operations::DELETE_BUDGET, [&budget]),
                        "the budget is deleted",
                    )
                    .await
            }
        }
    }
}

fn budget_scope_label(ceiling: &BudgetStatusView) -> String {
    let kind = serde_json::to_value(ceiling.scope_type).unwrap_or_default();
    let kind = kind.as_str().unwrap_or_default().to_owned();
    ceiling.scope_id.as_ref().map_or_else(|| kind.clone(), |id| format!("{kind} {id}"))
}

/// Renders the used part of a budget, coloured by how close it is to the limit. Reserved amounts count as used.
fn render_budget_usage(
    used: i64,
    most: Option<i64>,
    written: fn(i64) -> String,
    unit: &str,
    look: &ValueFormatter,
) -> String {
    let Some(most) = most else { return format!("{}{unit}", written(used)) };
    let text = format!("{} of {}{unit}", written(used), written(most));
    let style = match used.saturating_mul(100).checked_div(most) {
        Some(..80) => TextStyle::Green,
        Some(80..100) => TextStyle::Yellow,
        _ => TextStyle::Red,
    };
    look.paint.apply_style(style, &text)
}

/// Describes the source of a budget, and how to change a default one.
fn budget_source(ceiling: &BudgetStatusView) -> String {
    match ceiling.source {
        BudgetSource::Person => "a person",
        BudgetSource::Task => "its task",
        BudgetSource::Default if ceiling.scope_type == BudgetScopeType::User => {
            "the default of new users (`cynork budget set --user HANDLE --period month --max-cost …` changes it)"
        }
        BudgetSource::Default => {
            "the installation's default (`cynork budget set --installation --period month --max-cost …` changes it)"
        }
    }
    .to_owned()
}

fn budget_row(it: &BudgetStatusView, look: &ValueFormatter) -> [String; 7] {
    let cost = render_budget_usage(
        it.spent_micros + it.reserved_micros,
        it.max_cost_micros.map(|it| it.as_i64()),
        format_signed_amount,
        &format!(" {}", look.currency),
        look,
    );
    let most_tokens = it.max_tokens.map(|it| it.as_i64());
    let tokens = render_budget_usage(
        it.spent_tokens + it.reserved_tokens,
        most_tokens,
        group_digits,
        "",
        look,
    );
    [
        look.style_bold(&budget_scope_label(it)),
        it.period.as_str().to_owned(),
        cost,
        tokens,
        // A total budget has no meaningful start.
        if it.period == Period::Total {
            String::new()
        } else {
            look.format_relative_time(it.since)
        },
        budget_source(it),
        look.style_dim(&it.budget_id.to_string()),
    ]
}

impl BudgetSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let (kind, id) = self.whose.resolve_scope(context).await?.ok_or_else(|| {
            CliError::new(CliErrorKind::Usage, "whose spending?")
                .with_fix("say it with --installation, --user, --project or --task")
        })?;
        let body = input::without_nulls(
            json!({ "scope_type": kind, "scope_id": id, "period": self.period,
            "max_cost_micros": self.max_cost, "max_tokens": self.max_tokens }),
        );
        let call = ApiRequest::for_operation(operations::SET_BUDGET).with_json_body(&body);
        let sentence = |it: &BudgetStatusView, look: &ValueFormatter| {
            let [whose, period, cost, tokens, ..] = budget_row(it, look);
            format!("{whose}, {period}: {cost} spent, {tokens} tokens")
        };
        context
            .show_outcome(&call, |it: &BudgetStatusView| it.budget_id.to_string(), sentence)
            .await
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::budget::Currency;
    use time::macros::datetime;

    use super::*;
    use crate::terminal::Colorizer;

    #[test]
    fn only_what_begins_anew_has_a_beginning() {
        let look = ValueFormatter {
            paint: Colorizer(false),
            now: datetime!(2026-11-16 12:00 UTC),
            currency: Currency::USD,
        };
        let since = |period: &str, since: &str| {
            let ceiling = json!({ "budget_id": "bdg_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "scope_type": "installation",
                "scope_id": null, "period": period, "since": since, "max_cost_micros": 500_000, "max_tokens": null,
                "spent_micros": 0, "reserved_micros": 0, "spent_tokens": 0, "reserved_tokens": 0 });
            budget_row(&serde_json::from_value(ceiling).unwrap(), &look)[4].clone()
        };
        assert_eq!(since("total", "2000-01-01T00:00:00Z"), "");
        assert_eq!(since("month", "2026-11-01T00:00:00Z"), "16 d ago");
    }
}
