//! `cynork metrics`: the metrics of the server.

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

/// Show the metrics of the server in the Prometheus text format.
#[derive(Args)]
#[command(after_help = "Example: cynork metrics --name http_requests")]
pub(crate) struct MetricsArgs {
    /// Filter by a part of the metric name.
    #[arg(long)]
    name: Option<String>,
}

/// One sample.
#[derive(Debug, PartialEq, Serialize)]
struct MetricSample {
    name: String,
    labels: Map<String, Value>,
    value: f64,
}

/// All samples.
#[derive(Serialize)]
struct MetricSamples {
    items: Vec<MetricSample>,
}

impl MetricsArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let text =
            context.client.fetch_text(&ApiRequest::for_operation(operations::METRICS)).await?;
        let wanted = |name: &str| self.name.as_deref().is_none_or(|part| name.contains(part));
        let samples: Vec<MetricSample> =
            text.lines().filter_map(parse_sample).filter(|it| wanted(&it.name)).collect();
        context.out.print_answer(
            &MetricSamples { items: samples },
            |samples| samples.items.iter().map(|it| it.name.clone()).collect(),
            |_, _| text.lines().filter(|line| wanted(line)).collect::<Vec<_>>().join("\n"),
        )
    }
}

/// Parses a line of the Prometheus text format; comments return `None`.
fn parse_sample(line: &str) -> Option<MetricSample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let (name, rest) = head.split_once('{').unwrap_or((head, ""));
    let mut labels = Map::new();
    let mut rest = rest.trim_end_matches('}');
    while let Some((label, behind)) = rest.split_once("=\"") {
        let end = find_closing_quote(behind)?;
        let text =
            behind.get(..end)?.replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\");
        labels.insert(label.trim_start_matches(',').to_owned(), text.into());
        rest = behind.get(end + 1..)?;
    }
    Some(MetricSample { name: name.to_owned(), labels, value })
}

/// Returns the position of the closing quote.
fn find_closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            '"' if !escaped => return Some(at),
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_read_with_their_labels_and_remarks_are_none() {
        let read = parse_sample("http_requests{path=\"/a,b\",said=\"\\\"x\\\"\"} 12").unwrap();
        let labels = json!({ "path": "/a,b", "said": "\"x\"" });
        assert_eq!(
            (read.name.as_str(), Value::Object(read.labels), read.value),
            ("http_requests", labels, 12.0)
        );
        assert_eq!(parse_sample("up 1").unwrap().labels, Map::new());
        assert_eq!(parse_sample("# HELP up Whether"), None);
        assert_eq!(parse_sample(""), None);
    }
}
