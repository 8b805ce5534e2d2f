//! Amounts of money, and the used part of a budget.

use std::fmt::Write as _;

use cynode_core::budget::Currency;
use cynode_wire::{models::UsageSum, tasks::TaskView, workflow::timeline::TaskTimeline};

use super::step_label;
use crate::format::format_amount;
use crate::{
    output::render_table,
    terminal::{Colorizer, TextStyle, first_line},
};

/// Formats an amount in millionths with its currency.
pub fn format_money(micros: u64, currency: Currency) -> String {
    format!("{} {currency}", format_amount(micros))
}

/// Renders a part of a whole as a bar: rounded, and full only for the whole.
pub fn render_bar(part: u64, whole: u64, columns: usize) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    let wide = u128::try_from(columns).unwrap_or(0);
    let rounded = (part * wide + whole / 2) / whole;
    let most = if part < whole { wide.saturating_sub(1) } else { wide };
    let full = usize::try_from(rounded.min(most)).unwrap_or(0);
    format!("{}{}", "█".repeat(full), "░".repeat(columns - full))
}

/// Renders the spending and its limit.
pub fn render_spending(
    micros: u64,
    most: Option<u64>,
    currency: Currency,
    paint: Colorizer,
) -> String {
    let Some(most) = most else {
        return format!("cost {} (no limit)", format_money(micros, currency));
    };
    let share = micros.saturating_mul(100).checked_div(most).unwrap_or(100);
    let style = match share {
        0..=69 => TextStyle::Green,
        70..=99 => TextStyle::Yellow,
        _ => TextStyle::Red,
    };
    let drawn = paint.apply_style(style, &render_bar(micros, most, 10));
    format!("cost {} of {}  {drawn} {share} %", format_amount(micros), format_money(most, currency))
}

/// Renders the cost of a task: by step and unit, by model.
pub fn render_task_cost(
    task: &TaskView,
    timeline: &TaskTimeline,
    models: &[UsageSum],
    currency: Currency,
    paint: Colorizer,
) -> String {
    let used = sum_cost_micros(models);
    let most = task.budget.max_cost_micros.map(u64::from);
    let mut text = render_spending(used.max(timeline.cost_micros), most, currency, paint);
    if let Some(most) = task.budget.max_tokens.map(u64::from) {
        let tokens: i64 = models.iter().map(|sum| sum.input_tokens + sum.output_tokens).sum();
        let _ = write!(text, "\ntokens {tokens} of {most}");
    }
    text.push_str("\n\n");
    let mut rows: Vec<([String; 3], u64, usize)> = Vec::new();
    for step in timeline.steps.iter().filter(|step| step.cost_micros > 0) {
        let unit = first_line(step.unit.as_deref().unwrap_or_default());
        let same =
            rows.iter_mut().find(|(row, ..)| row[0] == step_label(&step.node) && row[1] == unit);
        if let Some((_, cost, times)) = same {
            (*cost, *times) = (*cost + step.cost_micros, *times + 1);
        } else {
            rows.push(([step_label(&step.node), unit, String::new()], step.cost_micros, 1));
        }
    }
    let rows = rows.into_iter().map(|([node, unit, _], cost, times)| {
        [node, unit, times.to_string(), format_money(cost, currency)]
    });
    text.push_str(&render_table(paint, ["step", "unit", "times", "cost"], rows.collect()));
    text.push_str("\n\n");
    let row = |sum: &UsageSum| {
        let cost = format_money(u64::try_from(sum.cost_micros).unwrap_or(0), currency);
        let name = first_line(sum.key.as_deref().unwrap_or("?"));
        let tokens = |count: i64| count.to_string();
        [name, tokens(sum.calls), tokens(sum.input_tokens), tokens(sum.output_tokens), cost]
    };
    let heads = ["model", "calls", "tokens in", "tokens out", "cost"];
    text.push_str(&render_table(paint, heads, models.iter().map(row).collect()));
    text
}

/// Sums the cost of model calls, in millionths.
pub fn sum_cost_micros(sums: &[UsageSum]) -> u64 {
    sums.iter().map(|sum| u64::try_from(sum.cost_micros).unwrap_or(0)).sum()
}
