//! `cynork metrics`: the numbers of the server.

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{client::Call, context::Context, failure::Result, operations};

/// Shows the numbers of the server, in Prometheus' text format.
#[derive(Args)]
#[command(after_help = "Example: cynork metrics --name http_requests")]
pub(crate) struct Metrics {
    /// Only those whose name has this in it.
    #[arg(long)]
    name: Option<String>,
}

/// One number.
#[derive(Debug, PartialEq, Serialize)]
struct Sample {
    name: String,
    labels: Map<String, Value>,
    value: f64,
}

/// All of them.
#[derive(Serialize)]
struct Samples {
    items: Vec<Sample>,
}

impl Metrics {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        let text = context.client.text(&Call::of(operations::METRICS)).await?;
        let wanted = |name: &str| self.name.as_deref().is_none_or(|part| name.contains(part));
        let samples: Vec<Sample> =
            text.lines().filter_map(sample).filter(|it| wanted(&it.name)).collect();
        context.out.show(
            &Samples { items: samples },
            |samples| samples.items.iter().map(|it| it.name.clone()).collect(),
            |_, _| text.lines().filter(|line| wanted(line)).collect::<Vec<_>>().join("\n"),
        )
    }
}

/// Reads a line of Prometheus' text format; remarks are none.
fn sample(line: &str) -> Option<Sample> {
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
        let end = closing(behind)?;
        let text =
            behind.get(..end)?.replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\");
        labels.insert(label.trim_start_matches(',').to_owned(), text.into());
        rest = behind.get(end + 1..)?;
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Where a quoted text ends.
fn closing(text: &str) -> Option<usize> {
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
        let read = sample("http_requests{path=\"/a,b\",said=\"\\\"x\\\"\"} 12").unwrap();
        let labels = json!({ "path": "/a,b", "said": "\"x\"" });
        assert_eq!(
            (read.name.as_str(), Value::Object(read.labels), read.value),
            ("http_requests", labels, 12.0)
        );
        assert_eq!(sample("up 1").unwrap().labels, Map::new());
        assert_eq!(sample("# HELP up Whether"), None);
        assert_eq!(sample(""), None);
    }
}
