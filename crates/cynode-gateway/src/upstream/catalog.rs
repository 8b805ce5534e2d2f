//! Reads all pages of a server's tool list into [`UpstreamTool`]s.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::ExchangeFailure;
use super::header::{self, HeaderMirror};
use super::{UpstreamError, UpstreamTool};

/// Maximum number of pages of a tool list.
pub(super) const MAX_PAGES: usize = 50;
/// Maximum number of tools of a server.
pub(super) const MAX_TOOLS: usize = 2_000;

/// Arguments that are mirrored into headers, by tool.
pub(super) type HeaderMirrors = HashMap<String, Vec<HeaderMirror>>;

/// Pages of a tool list that were read so far.
#[derive(Debug, Default)]
pub(super) struct UpstreamCatalog {
    names: HashSet<String>,
    tools: Vec<UpstreamTool>,
    pages: usize,
    cursor: Option<String>,
}

impl UpstreamCatalog {
    /// Returns the cursor of the next page. `None` for the first page.
    pub(super) fn next_cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Adds a page. Returns all tools after the last page, and otherwise continues with the next page.
    pub(super) fn add_page(
        mut self,
        page: &RawValue,
    ) -> Result<ControlFlow<Vec<UpstreamTool>, Self>, ExchangeFailure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ToolListPage {
            tools: Vec<Value>,
            next_cursor: Option<String>,
        }
        let refuse = |what| ExchangeFailure::keep_connection(UpstreamError::Malformed(what));
        let ToolListPage { tools, next_cursor } =
            serde_json::from_str(page.get()).map_err(|_| refuse("a page of the tools"))?;
        self.pages += 1;
        if self.tools.len() + tools.len() > MAX_TOOLS {
            return Err(refuse("more tools than a server may have"));
        }
        if self.pages == MAX_PAGES && next_cursor.is_some() {
            return Err(refuse("more pages than a list may have"));
        }
        for tool in tools {
            self.push_tool(tool);
        }
        self.cursor = next_cursor;
        Ok(if self.cursor.is_some() {
            ControlFlow::Continue(self)
        } else {
            ControlFlow::Break(self.tools)
        })
    }

    /// Adds one tool. An invalid one is skipped, so that it does not hide the others.
    fn push_tool(&mut self, raw: Value) {
        let Some(tool) = parse_tool(raw) else {
            tracing::warn!("a tool without a name or a schema is left out");
            return;
        };
        // The first tool of a name wins: a later one could only be an impersonation.
        if !self.names.insert(tool.name.clone()) {
            tracing::warn!(tool.name, "a tool that is listed twice is left out");
            return;
        }
        self.tools.push(tool);
    }
}

/// Removes the tools whose `x-mcp-header` annotations are invalid, as the protocol requires of a client over HTTP. Returns the arguments to
/// mirror for the others.
pub(super) fn extract_mirrors(tools: &mut Vec<UpstreamTool>) -> HeaderMirrors {
    let mut all = HeaderMirrors::new();
    tools.retain(|tool| match header::find_mirrors(&tool.input_schema) {
        Ok(mirrors) => {
            if !mirrors.is_empty() {
                all.insert(tool.name.clone(), mirrors);
            }
            true
        }
        Err(reason) => {
            tracing::warn!(tool.name, reason, "a tool is left out");
            false
        }
    });
    all
}

fn parse_tool(raw: Value) -> Option<UpstreamTool> {
    let Value::Object(object) = &raw else { return None };
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    Some(UpstreamTool {
        name: text("name").filter(|name| !name.is_empty())?,
        title: text("title"),
        description: text("description"),
        input_schema: schema_field(object, "inputSchema")?,
        output_schema: schema_field(object, "outputSchema"),
        annotations: object.get("annotations").filter(|value| value.is_object()).cloned(),
        raw,
    })
}

fn schema_field(object: &Map<String, Value>, key: &str) -> Option<Value> {
    object.get(key).filter(|value| value.is_object()).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn page(value: &Value) -> Box<RawValue> {
        to_raw_value(value).unwrap()
    }

    #[test]
    fn what_is_no_tool_does_not_hide_the_others() {
        let tools = json!({"tools": [
            {"name": "", "inputSchema": {}},
            {"name": "schemaless"},
            17,
            {"name": "good", "inputSchema": {"type": "object"}, "x": 1},
            {"name": "good", "inputSchema": {"type": "object"}, "description": "another"},
        ]});
        let ControlFlow::Break(tools) = UpstreamCatalog::default().add_page(&page(&tools)).unwrap()
        else {
            panic!("there is but one page")
        };
        assert_eq!(tools.len(), 1);
        assert_eq!(
            tools[0].raw,
            json!({"name": "good", "inputSchema": {"type": "object"}, "x": 1})
        );
    }

    #[test]
    fn a_list_without_end_is_refused() {
        let mut catalog = UpstreamCatalog::default();
        let endless = page(&json!({"tools": [], "nextCursor": "again"}));
        let mut read = 0;
        while let Ok(ControlFlow::Continue(next)) = catalog.add_page(&endless) {
            catalog = next;
            read += 1;
        }
        assert_eq!(read, MAX_PAGES - 1);
    }

    #[test]
    fn too_many_tools_are_refused() {
        let tools: Vec<Value> = (0..=MAX_TOOLS).map(|n| json!({"name": n.to_string()})).collect();
        assert!(UpstreamCatalog::default().add_page(&page(&json!({ "tools": tools }))).is_err());
    }
}
