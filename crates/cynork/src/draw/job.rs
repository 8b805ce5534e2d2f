//! What happens in jobs: what agents say and do, what programs write.

use cynode_wire::nodes::JobEventView;
use serde_json::Value;

use crate::terminal::{Paint, Style, clean, first_line};

/// What happened, with everything that was written; each line begins with nothing, whoever draws it says whose it is.
pub fn happened(event: &JobEventView, paint: Paint) -> Vec<String> {
    let text = |name: &str| clean(event.data[name].as_str().unwrap_or_default());
    let all = |words: &str, style: Option<Style>| -> Vec<String> {
        let lines = words.lines().filter(|line| !line.trim().is_empty());
        lines.map(|line| style.map_or(line.to_owned(), |it| paint.dye(it, line))).collect()
    };
    match event.event.as_str() {
        "said" => all(&text("text"), None),
        "thought" => all(&text("text"), Some(Style::Dim)),
        "told" => all(&first_line(&text("text")), Some(Style::Dim)),
        "output" if event.data["stream"] == "stderr" => all(&text("text"), Some(Style::Yellow)),
        "output" => all(&text("text"), Some(Style::Dim)),
        "note" => all(&text("text"), Some(Style::Yellow)),
        "tool" => tool(event, paint).into_iter().collect(),
        "permission" => {
            let words = format!("permission {}: {}", text("state"), text("title"));
            vec![paint.dye(Style::Yellow, &words)]
        }
        "phase" => vec![paint.dye(Style::Dim, &format!("· {}", text("phase")))],
        "session" => {
            let word = if event.data["resumed"] == true { "taken up again" } else { "begun" };
            vec![paint.dye(Style::Dim, &format!("· session {word}"))]
        }
        "truncated" => {
            let words = format!("· {} bytes more were left out", event.data["bytes"]);
            vec![paint.dye(Style::Dim, &words)]
        }
        "plan" => plan(&event.data["entries"], paint),
        _ => Vec::new(),
    }
}

/// What an agent does with a tool: when it begins, and when it came to nothing.
fn tool(event: &JobEventView, paint: Paint) -> Option<String> {
    let title = first_line(event.data["title"].as_str().unwrap_or_default());
    match event.data["status"].as_str() {
        Some("pending" | "in_progress") => {
            let input = input(&event.data["input"], &title);
            Some(format!("{} {title}{input}", paint.dye(Style::Cyan, "▸")))
        }
        Some("failed") => Some(format!("{} {title}", paint.dye(Style::Red, "✗"))),
        _ => None,
    }
}

/// The exact command, when the title does not say it.
fn input(input: &Value, title: &str) -> String {
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

fn plan(entries: &Value, paint: Paint) -> Vec<String> {
    let one = |entry: &Value| {
        let sign = match entry["status"].as_str() {
            Some("completed") => "✓",
            Some("in_progress") => "▸",
            _ => "·",
        };
        let words = first_line(entry["content"].as_str().unwrap_or_default());
        paint.dye(Style::Dim, &format!("{sign} {words}"))
    };
    entries.as_array().into_iter().flatten().map(one).collect()
}

/// What is worth a line of its own when somebody watches: what agents say, and what they begin.
pub fn said(event: &JobEventView, paint: Paint) -> Vec<String> {
    match event.event.as_str() {
        "said" | "note" | "permission" => happened(event, paint),
        "tool" if event.data["status"] != "completed" => happened(event, paint),
        _ => Vec::new(),
    }
}
