//! Money, and how much of what is allowed was spent.

use std::fmt::Write as _;

use cynode_wire::{models::UsageSum, tasks::TaskView, timeline::Timeline};

use crate::{
    output::table,
    terminal::{Paint, Style, first_line},
};

/// Money, from millionths.
pub fn money(micros: u64) -> String {
    let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
    format!("{whole}.{:04}", rest / 100)
}

/// A part of a whole, as a bar of so many columns.
pub fn bar(part: u64, whole: u64, columns: usize) -> String {
    let wide = u64::try_from(columns).unwrap_or(0);
    let full = if whole == 0 { 0 } else { (part.min(whole) * wide).div_ceil(whole) };
    let full = usize::try_from(full).unwrap_or(0);
    format!("{}{}", "█".repeat(full), "░".repeat(columns - full))
}

/// What was spent, against what may be.
pub fn spent(micros: u64, most: Option<u64>, paint: Paint) -> String {
    let Some(most) = most else { return format!("cost {} (no cap)", money(micros)) };
    let share = micros.saturating_mul(100).checked_div(most).unwrap_or(100);
    let style = match share {
        0..=69 => Style::Green,
        70..=99 => Style::Yellow,
        _ => Style::Red,
    };
    let drawn = paint.dye(style, &bar(micros, most, 10));
    format!("cost {} of {}  {drawn} {share} %", money(micros), money(most))
}

/// What a task cost: by node and unit, by model.
pub fn cost(task: &TaskView, timeline: &Timeline, models: &[UsageSum], paint: Paint) -> String {
    let used = crate::follow::spent(models);
    let most = task.budget.max_cost_micros.map(u64::from);
    let mut text = spent(used.max(timeline.cost_micros), most, paint);
    if let Some(most) = task.budget.max_tokens.map(u64::from) {
        let tokens: i64 = models.iter().map(|sum| sum.input_tokens + sum.output_tokens).sum();
        let _ = write!(text, "\ntokens {tokens} of {most}");
    }
    text.push_str("\n\n");
    let mut rows: Vec<([String; 3], u64, usize)> = Vec::new();
    for step in timeline.steps.iter().filter(|step| step.cost_micros > 0) {
        let unit = first_line(step.unit.as_deref().unwrap_or_default());
        let same = rows.iter_mut().find(|(row, ..)| row[0] == step.node && row[1] == unit);
        if let Some((_, cost, times)) = same {
            (*cost, *times) = (*cost + step.cost_micros, *times + 1);
        } else {
            rows.push(([step.node.clone(), unit, String::new()], step.cost_micros, 1));
        }
    }
    let rows = rows
        .into_iter()
        .map(|([node, unit, _], cost, times)| [node, unit, times.to_string(), money(cost)]);
    text.push_str(&table(paint, ["step", "unit", "times", "cost"], rows.collect()));
    text.push_str("\n\n");
    let row = |sum: &UsageSum| {
        let cost = money(u64::try_from(sum.cost_micros).unwrap_or(0));
        let name = first_line(sum.key.as_deref().unwrap_or("?"));
        let tokens = |count: i64| count.to_string();
        [name, tokens(sum.calls), tokens(sum.input_tokens), tokens(sum.output_tokens), cost]
    };
    let heads = ["model", "calls", "tokens in", "tokens out", "cost"];
    text.push_str(&table(paint, heads, models.iter().map(row).collect()));
    text
}
