//! `cynork handoff`: handoffs to the project manager and to analysts, their decisions, and replays of these.

use std::{fmt::Write as _, time::Duration};

use clap::{Args, Subcommand};
use cynode_core::workflow::replays::FieldDifference;
use cynode_wire::manager::handoffs::{DecisionReplayView, DecisionReplays, HandoffView};
use serde_json::{Value, json};

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    draw::render_given_rows,
    failure::Result,
    format::{ValueFormatter, escape_invisible_in_json, to_plain_text, to_pretty_json},
    input,
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
    /// Ask a model again what it was asked for a decision; nothing of the task changes.
    #[command(
        after_help = "Example: cynork handoff replay hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708 0 --model cynodeai.deep"
    )]
    Replay {
        /// Handoff id.
        handoff: String,
        /// Number of the decision, from 0.
        step: u32,
        /// Model to ask, by id or tier; the recorded one by default.
        #[arg(long)]
        model: Option<String>,
    },
    /// Compare a decision with its replays.
    #[command(
        after_help = "Example: cynork handoff compare hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708 0"
    )]
    Compare {
        /// Handoff id.
        handoff: String,
        /// Number of the decision, from 0.
        step: u32,
    },
}

/// Timeout of a replay: the server waits up to ten minutes for the model.
const REPLAY_TIMEOUT: Duration = Duration::from_mins(12);

/// Maximum number of characters of a value in a comparison.
const MAX_COMPARED_CHARS: usize = 120;

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
            Self::Replay { handoff, step, model } => {
                let path = [handoff, step.to_string()];
                let body = input::without_nulls(json!({ "model": model }));
                let call = ApiRequest::with_path_params(operations::REPLAY_DECISION, path)
                    .with_json_body(&body);
                let value: Value = context.client.send_with_timeout(&call, REPLAY_TIMEOUT).await?;
                let names = |it: &DecisionReplayView| vec![it.replay_id.to_string()];
                context.show_answer(&value, names, render_replay)
            }
            Self::Compare { handoff, step } => {
                let path = [handoff, step.to_string()];
                let call = ApiRequest::with_path_params(operations::LIST_REPLAYS, path);
                let value = context.send_request(&call).await?;
                let names = |it: &DecisionReplays| {
                    it.replays.iter().map(|replay| replay.replay_id.to_string()).collect::<Vec<_>>()
                };
                context.show_answer(&value, names, render_comparison)
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
    let given = render_given_rows(&it.given);
    if !given.is_empty() {
        let heads = ["claim", "given", "score", "profile"];
        let _ = write!(text, "\n{}\n", render_table(look.paint, heads, given));
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

fn render_replay(it: &DecisionReplayView, look: &ValueFormatter) -> String {
    let by = [it.provider.as_deref(), it.upstream.as_deref()];
    let mut text = render_record(
        look.paint,
        &[
            ("state", look.style_state(it.state.as_str())),
            ("model", look.style_bold(&it.model)),
            ("answered by", by.into_iter().flatten().collect::<Vec<_>>().join(" ")),
            ("same", it.is_same.map(|same| look.format_yes_no(same)).unwrap_or_default()),
            ("tokens", format_tokens(it.input_tokens, it.output_tokens)),
            ("took", it.latency_ms.map(|took| format!("{took} ms")).unwrap_or_default()),
            ("cost", format_cost(it.cost_micros, look)),
            ("error", it.error.clone().unwrap_or_default()),
            ("answer", it.answer_text.clone().unwrap_or_default()),
            ("id", it.replay_id.to_string()),
        ],
    );
    if !it.differences.is_empty() {
        let _ = write!(text, "\n{}", render_differences(&it.differences, look));
    }
    text
}

/// Renders a decision and its replays as a table, and the fields in which the newest replay differs.
fn render_comparison(it: &DecisionReplays, look: &ValueFormatter) -> String {
    let decision = &it.decision;
    let recorded = [
        "recorded".to_owned(),
        look.style_bold(&decision.model),
        String::new(),
        format_tokens(Some(decision.input_tokens), Some(decision.output_tokens)),
        format!("{} ms", decision.latency_ms),
        look.format_money(it.cost_micros),
        String::new(),
    ];
    let replays = it.replays.iter().map(|replay| {
        [
            look.format_relative_time(replay.created_at),
            look.style_bold(&replay.model),
            look.style_state(replay.state.as_str()),
            format_tokens(replay.input_tokens, replay.output_tokens),
            replay.latency_ms.map(|took| format!("{took} ms")).unwrap_or_default(),
            format_cost(replay.cost_micros, look),
            replay.is_same.map(|same| look.format_yes_no(same)).unwrap_or_default(),
        ]
    });
    let rows = std::iter::once(recorded).chain(replays).collect();
    let heads = ["when", "model", "state", "tokens", "took", "cost", "same"];
    let mut text = render_table(look.paint, heads, rows);
    let newest = it.replays.iter().find(|replay| replay.is_same.is_some());
    if let Some(replay) = newest.filter(|replay| !replay.differences.is_empty()) {
        let _ = write!(text, "\n\n{}", render_differences(&replay.differences, look));
    }
    if !it.prompt_held {
        text.push_str("\n\nthe prompt is no longer stored: it cannot be asked again");
    }
    text
}

fn render_differences(differences: &[FieldDifference], look: &ValueFormatter) -> String {
    let written = |value: Option<&Value>| {
        let text = value.map(to_plain_text).unwrap_or_default();
        text.chars().take(MAX_COMPARED_CHARS).collect::<String>()
    };
    let rows = differences.iter().map(|difference| {
        [
            difference.path.clone(),
            written(difference.original.as_ref()),
            written(difference.replay.as_ref()),
        ]
    });
    render_table(look.paint, ["field", "recorded", "replay"], rows.collect())
}

fn format_tokens(input: Option<u64>, output: Option<u64>) -> String {
    match (input, output) {
        (Some(input), Some(output)) => format!("{input} in, {output} out"),
        _ => String::new(),
    }
}

/// Formats the cost of a replay. That of a call without an answer is not known to the replay.
fn format_cost(micros: Option<i64>, look: &ValueFormatter) -> String {
    micros.map_or_else(|| "unknown".to_owned(), |micros| look.format_money(micros))
}
