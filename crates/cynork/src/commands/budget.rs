//! `cynork budget`: ceilings on what models may cost.

use clap::{Args, Subcommand};
use cynode_core::models::Period;
use cynode_wire::models::CeilingView;
use serde_json::json;

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::{Look, money, number},
    operations,
    terminal::Style,
};

#[derive(Subcommand)]
pub(crate) enum Budget {
    /// Lists the ceilings, and how near they are.
    #[command(after_help = "Example: cynork budget list --project web")]
    List(Whose),
    /// Sets a ceiling: one for each scope and period.
    #[command(after_help = "Example: cynork budget set --project web --per month --money 50")]
    Set(Set),
    /// Removes a ceiling.
    #[command(after_help = "Example: cynork budget remove bdg_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Remove {
        /// Its id.
        budget: String,
    },
}

/// Whose spending.
#[derive(Args)]
pub(crate) struct Whose {
    /// Of the whole installation.
    #[arg(long, conflicts_with_all = ["user", "project", "task"])]
    installation: bool,
    /// Of a user, by handle or id; `me` is you.
    #[arg(long, conflicts_with_all = ["project", "task"])]
    user: Option<String>,
    /// Of a project, by name or id; with --task, where that task is.
    #[arg(long, short)]
    project: Option<String>,
    /// Of a task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
}

#[derive(Args)]
pub(crate) struct Set {
    #[command(flatten)]
    whose: Whose,
    /// Over which time, in UTC.
    #[arg(long, value_name = "PERIOD", default_value = "total", value_parser = ["total", "day", "month"])]
    per: String,
    /// Most money, in the installation's currency.
    #[arg(long, value_name = "AMOUNT", value_parser = given::money, required_unless_present = "tokens")]
    money: Option<u64>,
    /// Most tokens, in and out together.
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
}

impl Whose {
    /// Its kind and its id.
    async fn scope(&self, context: &Context) -> Result<Option<(&'static str, Option<String>)>> {
        let project = self.project.as_deref();
        Ok(Some(match (&self.task, project, &self.user) {
            (Some(task), ..) => {
                let id = context.task_id(task, self.project.clone()).await?;
                ("task", Some(id))
            }
            (None, Some(project), _) => ("project", Some(context.project_id(project).await?)),
            (None, None, Some(user)) => ("user", Some(context.user(user).await?)),
            (None, None, None) if self.installation => ("installation", None),
            (None, None, None) => return Ok(None),
        }))
    }
}

impl Budget {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List(whose) => {
                let (kind, id) = whose.scope(context).await?.unzip();
                let call = Call::of(operations::LIST_BUDGETS)
                    .query("scope_type", kind)
                    .query("scope_id", id.flatten());
                context
                    .list(
                        &call,
                        None,
                        |it: &CeilingView| it.budget_id.to_string(),
                        ["whose", "per", "money", "tokens", "since", "id"],
                        row,
                    )
                    .await
            }
            Self::Set(set) => set.run(context).await,
            Self::Remove { budget } => {
                context.sure(&format!("Remove the ceiling {budget}?"))?;
                context
                    .done(&Call::to(operations::REMOVE_BUDGET, [&budget]), "the ceiling is removed")
                    .await
            }
        }
    }
}

fn whose(ceiling: &CeilingView) -> String {
    let kind = serde_json::to_value(ceiling.scope_type).unwrap_or_default();
    let kind = kind.as_str().unwrap_or_default().to_owned();
    ceiling.scope_id.as_ref().map_or_else(|| kind.clone(), |id| format!("{kind} {id}"))
}

/// What is used of what may be, in the colour of how near it is; what calls under way may still use counts.
fn used(used: i64, most: Option<i64>, written: fn(i64) -> String, look: &Look) -> String {
    let Some(most) = most else { return written(used) };
    let text = format!("{} of {}", written(used), written(most));
    let style = match used.saturating_mul(100).checked_div(most) {
        Some(..80) => Style::Green,
        Some(80..100) => Style::Yellow,
        _ => Style::Red,
    };
    look.paint.dye(style, &text)
}

fn row(it: &CeilingView, look: &Look) -> [String; 6] {
    let cost = used(
        it.spent_micros + it.held_micros,
        it.max_cost_micros.map(|it| it.as_i64()),
        money,
        look,
    );
    let tokens =
        used(it.spent_tokens + it.held_tokens, it.max_tokens.map(|it| it.as_i64()), number, look);
    [
        look.bold(&whose(it)),
        it.period.as_str().to_owned(),
        cost,
        tokens,
        // What holds for ever has no beginning that means anything.
        if it.period == Period::Total { String::new() } else { look.when(it.since) },
        look.dim(&it.budget_id.to_string()),
    ]
}

impl Set {
    async fn run(self, context: &Context) -> Result<()> {
        let (kind, id) = self.whose.scope(context).await?.ok_or_else(|| {
            Failure::new(Kind::Usage, "whose spending?")
                .fix("say it with --installation, --user, --project or --task")
        })?;
        let body = given::said(json!({ "scope_type": kind, "scope_id": id, "period": self.per,
            "max_cost_micros": self.money, "max_tokens": self.tokens }));
        let call = Call::of(operations::SET_BUDGET).body(&body);
        let sentence = |it: &CeilingView, look: &Look| {
            let [whose, period, cost, tokens, ..] = row(it, look);
            format!("{whose}, {period}: {cost} spent, {tokens} tokens")
        };
        context.told(&call, |it: &CeilingView| it.budget_id.to_string(), sentence).await
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::terminal::Paint;

    #[test]
    fn only_what_begins_anew_has_a_beginning() {
        let look = Look { paint: Paint(false), now: datetime!(2026-11-16 12:00 UTC) };
        let since = |period: &str, since: &str| {
            let ceiling = json!({ "budget_id": "bdg_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "scope_type": "installation",
                "scope_id": null, "period": period, "since": since, "max_cost_micros": 500_000, "max_tokens": null,
                "spent_micros": 0, "held_micros": 0, "spent_tokens": 0, "held_tokens": 0 });
            row(&serde_json::from_value(ceiling).unwrap(), &look)[4].clone()
        };
        assert_eq!(since("total", "2000-01-01T00:00:00Z"), "");
        assert_eq!(since("month", "2026-11-01T00:00:00Z"), "16 d ago");
    }
}
