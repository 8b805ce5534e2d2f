//! `cynork usage`: what models were used for.

use clap::{Args, Subcommand};
use cynode_wire::models::{UsageCall, UsageSum};

use crate::{
    answers::Pages,
    client::Call,
    context::Context,
    failure::Result,
    given::{self, Moment},
    look::{Look, money, number},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum Usage {
    /// Sums up what models were used for, dearest first.
    #[command(after_help = "Example: cynork usage sum --by project --from 7d")]
    Sum {
        /// What the sums have in common; one sum of all when it is left out.
        #[arg(long, value_parser = ["model", "provider", "user", "project", "task", "role", "day"])]
        by: Option<String>,
        #[command(flatten)]
        of: Of,
    },
    /// Lists calls of models, newest first. What was said is not kept.
    #[command(
        after_help = "Example: cynork usage calls --task tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708 --limit 10"
    )]
    Calls {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        pages: Pages,
    },
}

/// Of which calls.
#[derive(Args)]
pub(crate) struct Of {
    /// Of one user, by handle or id; `me` is you.
    #[arg(long)]
    user: Option<String>,
    /// In one project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// For one task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Not before: a time, a day, or `2h`, `3d` for so long ago.
    #[arg(long, value_name = "TIME", value_parser = given::moment)]
    from: Option<Moment>,
    /// Before: a time, a day, or `2h`, `3d` for so long ago.
    #[arg(long, value_name = "TIME", value_parser = given::moment)]
    to: Option<Moment>,
}

impl Of {
    async fn narrow(&self, context: &Context, call: Call) -> Result<Call> {
        let project = self.project.as_deref();
        let now = context.look().now;
        let written = |moment: Option<Moment>| moment.map(|it| it.written(now)).transpose();
        Ok(call
            .query("user_id", context.user_if(self.user.as_deref()).await?)
            .query("project_id", context.project_id_if(project).await?)
            .query("task_id", context.task_id_if(self.task.as_deref(), project).await?)
            .query("from", written(self.from)?)
            .query("to", written(self.to)?))
    }
}

impl Usage {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::Sum { by, of } => {
                let call = of
                    .narrow(context, Call::of(operations::SUM_USAGE).query("by", by.as_ref()))
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
                context.list(&call, None, name, heads, sum).await
            }
            Self::Calls { of, pages } => {
                let call = of.narrow(context, Call::of(operations::LIST_CALLS)).await?;
                let heads = ["when", "model", "by", "cost", "in", "out", "took", "outcome"];
                context
                    .list(&call, Some(&pages), |it: &UsageCall| it.call_id.to_string(), heads, one)
                    .await
            }
        }
    }
}

fn sum(sum: &UsageSum, look: &Look) -> [String; 7] {
    [
        look.bold(sum.key.as_deref().unwrap_or("all")),
        money(sum.cost_micros),
        number(sum.calls),
        number(sum.failed),
        number(sum.input_tokens),
        number(sum.cached_tokens),
        number(sum.output_tokens),
    ]
}

fn one(call: &UsageCall, look: &Look) -> [String; 8] {
    let outcome = call.outcome.as_str();
    [
        look.when(call.at),
        look.bold(&call.model),
        call.agent_role.clone().unwrap_or_else(|| "a person".to_owned()),
        money(call.cost_micros),
        number(call.input_tokens),
        number(call.output_tokens),
        call.duration_ms.map(|it| format!("{} ms", number(it.into()))).unwrap_or_default(),
        call.error
            .as_ref()
            .map_or_else(|| look.state(outcome), |why| format!("{}: {why}", look.state(outcome))),
    ]
}
