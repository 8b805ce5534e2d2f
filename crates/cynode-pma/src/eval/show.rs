//! Renders the figures as text for a terminal.

use std::fmt::Write as _;

use super::{
    rows::EvalTable,
    score::{AskMethod, EvalMetrics, EvalReport, TableMetrics},
};

/// Renders the whole report.
pub fn render_report(report: &EvalReport) -> String {
    let mut out = format!("model {}\n\n", report.model);
    out += &render_summary(report);
    out.extend(render_cost(report));
    for table in &report.tables {
        out.push('\n');
        out += &render_confusions(table);
    }
    out
}

/// Renders one line for each table and method, and one for the total.
fn render_summary(report: &EvalReport) -> String {
    let mut out = String::new();
    push_line(&mut out, "table", "way", &COLUMN_HEADINGS.map(str::to_owned));
    for TableMetrics { table, all, tuning, held_out } in &report.tables {
        for (way, figures) in all {
            let halves = [tuning.get(way), held_out.get(way)];
            push_line(&mut out, table.as_str(), way.as_str(), &summary_cells(figures, halves));
        }
    }
    for (way, figures) in &report.total {
        push_line(&mut out, "all", way.as_str(), &summary_cells(figures, [None, None]));
    }
    out
}

const COLUMN_HEADINGS: [&str; 10] = [
    "rows",
    "right",
    "tuning",
    "held out",
    "form",
    "at once",
    "tokens in",
    "out",
    "p50 ms",
    "p95 ms",
];

fn summary_cells(
    figures: &EvalMetrics,
    [tuning, held_out]: [Option<&EvalMetrics>; 2],
) -> [String; 10] {
    let half = |figures: Option<&EvalMetrics>| {
        figures.map_or_else(String::new, |half| format_percent(half.accuracy()))
    };
    [
        figures.asked.to_string(),
        format_percent(figures.accuracy()),
        half(tuning),
        half(held_out),
        format_percent(figures.validity()),
        format_percent(figures.first_attempt_validity()),
        figures.input_tokens.to_string(),
        figures.output_tokens.to_string(),
        figures.latency_p50_ms.to_string(),
        figures.latency_p95_ms.to_string(),
    ]
}

fn push_line(out: &mut String, table: &str, way: &str, cells: &[String; 10]) {
    let _ = write!(out, "{table:<9} {way:<10}");
    for cell in cells {
        let _ = write!(out, " {cell:>9}");
    }
    out.push('\n');
}

/// Renders the confusion matrices of a table: correct answers in rows, given answers in columns.
fn render_confusions(figures: &TableMetrics) -> String {
    let mut out = String::new();
    for (way, figures_of_way) in &figures.all {
        let _ = write!(out, "{:<31}", format!("{}, {}", figures.table.as_str(), way.as_str()));
        for said in answer_columns(figures.table) {
            let _ = write!(out, " {:>8}", short_label(said));
        }
        out.push('\n');
        for truth in figures.table.answer_labels() {
            let _ = write!(out, "    {truth:<27}");
            for said in answer_columns(figures.table) {
                let _ = write!(out, " {:>8}", confusion_count(figures_of_way, truth, said));
            }
            out.push('\n');
        }
    }
    out
}

/// Returns the columns of a matrix: the labels, and `none`.
pub fn answer_columns(table: EvalTable) -> impl Iterator<Item = &'static str> {
    table.answer_labels().iter().copied().chain(["none"])
}

/// Returns how often an answer was given where another was correct.
pub fn confusion_count(figures: &EvalMetrics, truth: &str, said: &str) -> u32 {
    figures.confusion.get(truth).and_then(|row| row.get(said)).copied().unwrap_or_default()
}

/// Shortens a label for a narrow column.
pub fn short_label(label: &str) -> &str {
    match label {
        "feature_request" => "feature",
        "new_project" => "new",
        "quick_fix" => "fix",
        "needs_clarification" => "unclear",
        "reduce_scope" => "reduce",
        "architect" => "archit.",
        "developer" => "develop.",
        other => other,
    }
}

/// Formats a share in per cent.
pub fn format_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Renders the cost, if prices are known.
fn render_cost(report: &EvalReport) -> Option<String> {
    let of = |(way, figures): (&AskMethod, &EvalMetrics)| {
        Some(format!("{} {:.6}", way.as_str(), figures.cost?))
    };
    let costs: Vec<String> = report.total.iter().filter_map(of).collect();
    (!costs.is_empty()).then(|| format!("\ncost: {}\n", costs.join(", ")))
}
