//! Events of jobs: messages and actions of agents, output of programs.

use cynode_wire::nodes::JobEventView;
use serde_json::Value;

use super::live::describe_setup;
use crate::terminal::{Colorizer, TextStyle, first_line, sanitize_text};

/// Renders an event with its whole output; the caller adds the name of the job to each line.
pub fn render_job_event(event: &JobEventView, paint: Colorizer) -> Vec<String> {
    let text = |name: &str| sanitize_text(event.data[name].as_str().unwrap_or_default());
    let all = |words: &str, style: Option<TextStyle>| -> Vec<String> {
        let lines = words.lines().filter(|line| !line.trim().is_empty());
        lines.map(|line| style.map_or(line.to_owned(), |it| paint.apply_style(it, line))).collect()
    };
    match event.event.as_str() {
        "message" => all(&text("text"), None),
        "reasoning" => all(&text("text"), Some(TextStyle::Dim)),
        "prompt" => all(&first_line(&text("text")), Some(TextStyle::Dim)),
        "output" if event.data["stream"] == "stderr" => all(&text("text"), Some(TextStyle::Yellow)),
        "output" => all(&text("text"), Some(TextStyle::Dim)),
        "note" => all(&text("text"), Some(TextStyle::Yellow)),
        "tool" => render_tool_call(event, paint).into_iter().collect(),
        "permission" => {
            let words = format!("permission {}: {}", text("state"), text("title"));
            vec![paint.apply_style(TextStyle::Yellow, &words)]
        }
        "phase" if event.data["phase"] == "setting_up" => {
            vec![paint.apply_style(TextStyle::Dim, &format!("· {}", describe_setup("")))]
        }
        "setup" => render_setup_step(event, paint).into_iter().collect(),
        "packages" => render_refused_packages(event, paint),
        "phase" => vec![paint.apply_style(TextStyle::Dim, &format!("· {}", text("phase")))],
        "session" => {
            let word = if event.data["resumed"] == true { "taken up again" } else { "begun" };
            vec![paint.apply_style(TextStyle::Dim, &format!("· session {word}"))]
        }
        "truncated" => {
            let words = format!("· {} bytes more were left out", event.data["bytes"]);
            vec![paint.apply_style(TextStyle::Dim, &words)]
        }
        "plan" => render_plan_entries(&event.data["entries"], paint),
        _ => Vec::new(),
    }
}

/// Renders a step of the set-up of an environment: when it begins, and when it fails.
fn render_setup_step(event: &JobEventView, paint: Colorizer) -> Option<String> {
    let step = sanitize_text(event.data["step"].as_str().unwrap_or_default());
    let place = format!("{} of {}: {step}", event.data["number"], event.data["of"]);
    match event.data["succeeded"].as_bool() {
        None => {
            let words = format!("· {}", describe_setup(&place));
            Some(paint.apply_style(TextStyle::Dim, &words))
        }
        Some(false) => {
            let sign = paint.apply_style(TextStyle::Red, "✗");
            Some(format!("{sign} {} failed", describe_setup(&place)))
        }
        Some(true) => None,
    }
}

/// Renders the packages that a job was refused.
fn render_refused_packages(event: &JobEventView, paint: Colorizer) -> Vec<String> {
    let fetches = event.data["fetches"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |fetch: &Value, name: &str| {
        first_line(&sanitize_text(fetch[name].as_str().unwrap_or_default()))
    };
    let refused = fetches.iter().filter(|fetch| fetch["refused"].is_string());
    refused
        .map(|fetch| {
            let (source, package) = (text(fetch, "source"), text(fetch, "package"));
            let (version, reason) = (text(fetch, "version"), text(fetch, "refused"));
            let version = if version.is_empty() { version } else { format!(" {version}") };
            let words = format!("package refused: {source}:{package}{version}: {reason}");
            paint.apply_style(TextStyle::Yellow, &words)
        })
        .collect()
}

/// Renders a tool call of an agent: when it begins, and when it fails.
fn render_tool_call(event: &JobEventView, paint: Colorizer) -> Option<String> {
    let title = first_line(event.data["title"].as_str().unwrap_or_default());
    match event.data["status"].as_str() {
        Some("pending" | "in_progress") => {
            let input = format_tool_input(&event.data["input"], &title);
            Some(format!("{} {title}{input}", paint.apply_style(TextStyle::Cyan, "▸")))
        }
        Some("failed") => Some(format!("{} {title}", paint.apply_style(TextStyle::Red, "✗"))),
        _ => None,
    }
}

/// Returns the exact command, if the title does not contain it.
fn format_tool_input(input: &Value, title: &str) -> String {
    let words = input["argv"].as_array().or_else(|| input["command"].as_array());
    let command = match words {
        Some(words) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        None => input["command"].as_str().unwrap_or_default().to_owned(),
    };
    let command = first_line(&command);
    if command.is_empty() || title.contains(&command) {
        String::new()
    } else {
        format!(": {command}")
    }
}

fn render_plan_entries(entries: &Value, paint: Colorizer) -> Vec<String> {
    let one = |entry: &Value| {
        let sign = match entry["status"].as_str() {
            Some("completed") => "✓",
            Some("in_progress") => "▸",
            _ => "·",
        };
        let words = first_line(entry["content"].as_str().unwrap_or_default());
        paint.apply_style(TextStyle::Dim, &format!("{sign} {words}"))
    };
    entries.as_array().into_iter().flatten().map(one).collect()
}

/// Renders the events that deserve a permanent line: messages of agents, and the actions they begin.
pub fn render_job_highlight(event: &JobEventView, paint: Colorizer) -> Vec<String> {
    match event.event.as_str() {
        "message" | "note" | "permission" | "setup" | "packages" => render_job_event(event, paint),
        "tool" if event.data["status"] != "completed" => render_job_event(event, paint),
        _ => Vec::new(),
    }
}
