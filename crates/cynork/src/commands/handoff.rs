//! `cynork handoff`: what was given to the project manager and to analysts, and what they thought.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use cynode_wire::handoffs::HandoffView;
use serde_json::Value;

use crate::{
    answers::Pages,
    client::Call,
    context::Context,
    failure::Result,
    look::{Look, all_visible, money, plain, pretty},
    names::In,
    operations,
    output::{record, table},
};

#[derive(Subcommand)]
pub(crate) enum Handoff {
    /// Lists what was handed off in a project, newest first.
    #[command(after_help = "Example: cynork handoff list --project web")]
    List(List),
    /// Shows what was handed off, what was thought, and the answer.
    #[command(after_help = "Example: cynork handoff show hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Its id.
        handoff: String,
    },
    /// Shows the whole question behind a thought, while it is kept.
    #[command(after_help = "Example: cynork handoff prompt hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708 0")]
    Prompt {
        /// The handoff.
        handoff: String,
        /// The number of the thought, from 0.
        step: u32,
    },
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    place: In,
    /// Only of this task, by name or id.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

/// A word of the wire.
fn word(value: impl serde::Serialize) -> String {
    plain(&serde_json::to_value(value).unwrap_or_default())
}

impl Handoff {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List(list) => list.run(context).await,
            Self::Show { handoff } => {
                let value = context.ask(&Call::to(operations::GET_HANDOFF, [handoff])).await?;
                context.show(
                    &value,
                    |it: &HandoffView| vec![it.handoff_id.to_string()],
                    |it, look| shown(it, &value, look),
                )
            }
            Self::Prompt { handoff, step } => {
                let call = Call::to(operations::GET_PROMPT, [handoff, step.to_string()]);
                let value = context.ask(&call).await?;
                context.show(&value, |it: &Value| vec![pretty(it)], asked)
            }
        }
    }
}

impl List {
    async fn run(self, context: &Context) -> Result<()> {
        let project = context.project(self.place.project)?;
        let task = context.task_id_if(self.task.as_deref(), Some(&project)).await?;
        let call = Call::to(operations::LIST_HANDOFFS, [project]).query("task_id", task);
        let heads = ["id", "kind", "state", "by", "thoughts", "cost", "when"];
        let name = |it: &HandoffView| it.handoff_id.to_string();
        context
            .list(&call, Some(&self.pages), name, heads, |it: &HandoffView, look| {
                [
                    it.handoff_id.to_string(),
                    look.bold(&word(it.kind)),
                    look.state(&word(it.state)),
                    word(it.role),
                    it.thoughts.len().to_string(),
                    money(it.cost_micros),
                    look.when(it.created_at),
                ]
            })
            .await
    }
}

fn shown(it: &HandoffView, value: &Value, look: &Look) -> String {
    let mut text = record(
        look.paint,
        &[
            ("asked for", look.bold(&word(it.kind))),
            ("state", look.state(&word(it.state))),
            ("by", word(it.role)),
            ("attempts", it.attempt.to_string()),
            ("cost", money(it.cost_micros)),
            ("made", look.when(it.created_at)),
            ("ended", look.when_ever(it.ended_at)),
            ("failure", it.failure.clone().unwrap_or_default()),
            ("task", it.task_id.map(|id| id.to_string()).unwrap_or_default()),
            ("trace", it.trace_id.clone()),
            ("id", it.handoff_id.to_string()),
        ],
    );
    let rows = it.thoughts.iter().map(|thought| {
        let tokens = format!("{} in, {} out", thought.input_tokens, thought.output_tokens);
        let took = format!("{} ms", thought.latency_ms);
        [
            thought.step.to_string(),
            thought.kind.clone(),
            thought.model.clone(),
            tokens,
            took,
            thought.attempts.to_string(),
        ]
    });
    if !it.thoughts.is_empty() {
        let heads = ["step", "thought", "model", "tokens", "took", "asked"];
        let _ = write!(text, "\n{}\n", table(look.paint, heads, rows.collect()));
    }
    if !value["answer"].is_null() {
        let _ = write!(
            text,
            "\n{}\n{}",
            look.bold("answer"),
            pretty(&all_visible(value["answer"].clone()))
        );
    }
    text
}

/// A question as it was put: its messages, or all of it.
fn asked(value: &Value, look: &Look) -> String {
    let Some(messages) = value["messages"].as_array() else { return pretty(value) };
    let told = messages.iter().map(|message| {
        format!("{}\n{}", look.bold(&plain(&message["role"])), plain(&message["content"]))
    });
    told.collect::<Vec<_>>().join("\n\n")
}
