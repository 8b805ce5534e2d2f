//! `cynork inbox`: everything that waits for a decision of yours.

use clap::Args;
use cynode_wire::notifications::inbox::InboxItem;
use serde_json::Value;

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

/// List what waits for you: plans, questions, calls, environments, tools, failed deliveries, parked tasks. What holds up most
/// comes first.
#[derive(Args)]
#[command(after_help = "Example: cynork inbox --kind plan")]
pub(crate) struct InboxArgs {
    /// Filter by kind.
    #[arg(long, value_parser = KINDS)]
    kind: Option<String>,
}

/// The kinds of items.
const KINDS: [&str; 7] =
    ["plan", "question", "call", "environment", "tool_definition", "delivery", "parked"];

impl InboxArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let heads = ["kind", "title", "project", "since", "holds up", "id"];
        let call = ApiRequest::for_operation(operations::LIST_INBOX);
        let mut inbox = context.send_request(&call).await?;
        if let (Some(kind), Some(Value::Array(items))) = (self.kind, inbox.get_mut("items")) {
            items.retain(|it| it["kind"] == kind.as_str());
        }
        let id = |it: &InboxItem| it.id.clone();
        context.show_table(&inbox, id, heads, |it: &InboxItem, look| {
            [
                it.kind.as_str().to_owned(),
                look.style_bold(&it.title),
                it.project_slug.clone().unwrap_or_default(),
                look.format_relative_time(it.since),
                format_blocked(it),
                it.id.clone(),
            ]
        })
    }
}

/// Formats what stands still because of an item.
fn format_blocked(item: &InboxItem) -> String {
    let count = |number: u32, noun: &str| match number {
        0 => None,
        1 => Some(format!("1 {noun}")),
        _ => Some(format!("{number} {noun}s")),
    };
    let parts = [count(item.blocked_tasks, "task"), count(item.blocked_units, "unit")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use cynode_core::notifications::InboxKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_can_be_filtered_by() {
        assert_eq!(InboxKind::ALL.map(InboxKind::as_str), KINDS);
    }

    #[test]
    fn what_stands_still_is_counted_in_words() {
        let blocked = |tasks: u32, units: u32| {
            let item = json!({
                "id": "tsk_1", "kind": "parked", "title": "web is parked", "text": "again", "actions": ["unpark"],
                "since": "2026-11-17T10:00:00Z", "blocked_tasks": tasks, "blocked_units": units,
            });
            format_blocked(&serde_json::from_value(item).unwrap())
        };
        assert_eq!(blocked(1, 3), "1 task, 3 units");
        assert_eq!(blocked(2, 0), "2 tasks");
        assert_eq!(blocked(0, 0), "");
    }
}
