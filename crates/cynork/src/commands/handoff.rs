//! `cynork handoff`: handoffs to the project manager and to analysts, and their decisions.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use cynode_wire::manager::handoffs::HandoffView;
use serde_json::Value;

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::{ValueFormatter, escape_invisible_in_json, to_plain_text, to_pretty_json},
    names::ProjectSelector,
    operations,
    output::{render_record, render_table},
};

#[derive(Subcommand)]
pub(crate) enum HandoffCommand {
    /// List handoffs to the project manager in a project, newest first.
    #[command(after_help = "Example: cynork handoff list --project web")]
    List(HandoffListArgs),
    /// Show a handoff: its input, the decisions and the answer.
    #[command(after_help = "Example: cynork handoff show hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Handoff id.
        handoff: String,
    },
    /// Show the full prompt of a decision, while it is stored.
    #[command(after_help = "Example: cynork handoff prompt hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708 0")]
    Prompt {
        /// Handoff id.
        handoff: String,
        /// Number of the decision, from 0.
        step: u32,
    },
}

#[derive(Args)]
pub(crate) struct HandoffListArgs {
    #[command(flatten)]
    place: ProjectSelector,
    /// Filter by task, by name or id.
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    pages: PageArgs,
}

/// Returns a value's word in the wire format.
fn to_wire_word(value: impl serde::Serialize) -> String {
    to_plain_text(&serde_json::to_value(value).unwrap_or_default())
}

impl HandoffCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        context.fetch_currency().await;
        match self {
            Self::List(list) => list.run(context).await,
            Self::Show { handoff } => {
                let value = context
                    .send_request(&ApiRequest::with_path_params(operations::GET_HANDOFF, [handoff]))
                    .await?;
                context.show_answer(
                    &value,
                    |it: &HandoffView| vec![it.handoff_id.to_string()],
                    |it, look| render_handoff(it, &value, look),
                )
            }
            Self::Prompt { handoff, step } => {
                let call = ApiRequest::with_path_params(
                    operations::GET_PROMPT,
                    [handoff, step.to_string()],
                );
                let value = context.send_request(&call).await?;
                context.show_answer(&value, |it: &Value| vec![to_pretty_json(it)], render_prompt)
            }
        }
    }
}

impl HandoffListArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project(self.place.project)?;
        let task = context.optional_task_id(self.task.as_deref(), Some(&project)).await?;
        let call = ApiRequest::with_path_params(operations::LIST_HANDOFFS, [project])
            .with_query("task_id", task);
        let heads = ["id", "kind", "state", "by", "decisions", "cost", "when"];
        let name = |it: &HandoffView| it.handoff_id.to_string();
        context
            .show_list(&call, Some(&self.pages), name, heads, |it: &HandoffView, look| {
                [
                    it.handoff_id.to_string(),
                    look.style_bold(&to_wire_word(it.kind)),
                    look.style_state(&to_wire_word(it.state)),
                    to_wire_word(it.role),
                    it.decisions.len().to_string(),
                    look.format_money(it.cost_micros),
                    look.format_relative_time(it.created_at),
                ]
            })
            .await
    }
}

fn render_handoff(it: &HandoffView, value: &Value, look: &ValueFormatter) -> String {
    let mut text = render_record(
        look.paint,
        &[
            ("asked for", look.style_bold(&to_wire_word(it.kind))),
            ("state", look.style_state(&to_wire_word(it.state))),
            ("by", to_wire_word(it.role)),
            ("attempts", it.attempt.to_string()),
            ("cost", look.format_money(it.cost_micros)),
            ("made", look.format_relative_time(it.created_at)),
            ("ended", look.format_optional_time(it.ended_at)),
            ("failure", it.failure.clone().unwrap_or_default()),
            ("task", it.task_id.map(|id| id.to_string()).unwrap_or_default()),
            ("trace", it.trace_id.clone()),
            ("id", it.handoff_id.to_string()),
        ],
    );
    let rows = it.decisions.iter().map(|decision| {
        let tokens = format!("{} in, {} out", decision.input_tokens, decision.output_tokens);
        let took = format!("{} ms", decision.latency_ms);
        [
            decision.step.to_string(),
            decision.kind.clone(),
            decision.model.clone(),
            tokens,
            took,
            decision.attempts.to_string(),
        ]
    });
    if !it.decisions.is_empty() {
        let heads = ["step", "decision", "model", "tokens", "took", "asked"];
        let _ = write!(text, "\n{}\n", render_table(look.paint, heads, rows.collect()));
    }
    if !value["answer"].is_null() {
        let _ = write!(
            text,
            "\n{}\n{}",
            look.style_bold("answer"),
            to_pretty_json(&escape_invisible_in_json(value["answer"].clone()))
        );
    }
    text
}

/// Renders a prompt: its messages, or the whole value.
fn render_prompt(value: &Value, look: &ValueFormatter) -> String {
    let Some(messages) = value["messages"].as_array() else { return to_pretty_json(value) };
    let told = messages.iter().map(|message| {
        format!(
            "{}\n{}",
            look.style_bold(&to_plain_text(&message["role"])),
            to_plain_text(&message["content"])
        )
    });
    told.collect::<Vec<_>>().join("\n\n")
}
