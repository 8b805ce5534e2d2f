//! Reads all pages of a server's tool list into [`UpstreamTool`]s.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use cynode_app::tools::tool_servers::{
    MAX_DEFINITION_BYTES, MAX_SERVER_DEFINITION_BYTES, MAX_SERVER_TOOLS,
};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ExchangeFailure;
use super::header::{self, HeaderMirror};
use super::{UpstreamError, UpstreamTool};

/// Maximum number of pages of a tool list.
pub(super) const MAX_PAGES: usize = 50;
/// Maximum size of a page, with its envelope. A page that is larger is not read to its end.
pub(super) const MAX_PAGE_BYTES: usize = MAX_SERVER_DEFINITION_BYTES + 64 * 1024;
/// Maximum number of commas, brackets and braces of a tool list: a bound of its JSON values, each of which takes far more memory than text.
const MAX_LISTING_VALUES: usize = 32 * 1024;

/// Arguments that are mirrored into headers, by tool.
pub(super) type HeaderMirrors = HashMap<String, Vec<HeaderMirror>>;

/// Pages of a tool list that were read so far.
#[derive(Debug, Default)]
pub(super) struct UpstreamCatalog {
    names: HashSet<String>,
    tools: Vec<UpstreamTool>,
    /// Size of all definitions so far.
    bytes: usize,
    /// Number of commas, brackets and braces so far.
    values: usize,
    pages: usize,
    cursor: Option<String>,
}

impl UpstreamCatalog {
    /// Returns the cursor of the next page. `None` for the first page.
    pub(super) fn next_cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Adds a page. Returns all tools after the last page, and otherwise continues with the next page. A list that exceeds a limit is refused
    /// as a whole, before its definitions are parsed.
    pub(super) fn add_page(
        mut self,
        page: &RawValue,
    ) -> Result<ControlFlow<Vec<UpstreamTool>, Self>, ExchangeFailure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ToolListPage<'a> {
            #[serde(borrow)]
            tools: Vec<&'a RawValue>,
            next_cursor: Option<String>,
        }
        let refuse = |what| ExchangeFailure::keep_connection(UpstreamError::Malformed(what));
        self.values += count_values(page.get());
        if page.get().len() > MAX_PAGE_BYTES || self.values > MAX_LISTING_VALUES {
            return Err(refuse("a longer list of tools than a server may have"));
        }
        let ToolListPage { tools, next_cursor } =
            serde_json::from_str(page.get()).map_err(|_| refuse("a page of the tools"))?;
        self.pages += 1;
        if self.tools.len() + tools.len() > MAX_SERVER_TOOLS {
            return Err(refuse("more tools than a server may have"));
        }
        if self.pages == MAX_PAGES && next_cursor.is_some() {
            return Err(refuse("more pages than a list may have"));
        }
        self.bytes += tools.iter().map(|tool| tool.get().len()).sum::<usize>();
        if self.bytes > MAX_SERVER_DEFINITION_BYTES
            || tools.iter().any(|tool| tool.get().len() > MAX_DEFINITION_BYTES)
        {
            return Err(refuse("larger definitions than the tools of a server may have"));
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
    fn push_tool(&mut self, raw: &RawValue) {
        let Some(tool) = serde_json::from_str(raw.get()).ok().and_then(parse_tool) else {
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
    tools.retain(|tool| match header::find_mirrors(&tool.raw["inputSchema"]) {
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

/// Counts what separates or opens values, in texts as well: there are hardly more values than that.
fn count_values(text: &str) -> usize {
    text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count()
}

fn parse_tool(raw: Value) -> Option<UpstreamTool> {
    let Value::Object(object) = &raw else { return None };
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    object.get("inputSchema").filter(|schema| schema.is_object())?;
    Some(UpstreamTool {
        name: text("name").filter(|name| !name.is_empty())?,
        title: text("title"),
        description: text("description"),
        raw,
    })
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
        let tools: Vec<Value> =
            (0..=MAX_SERVER_TOOLS).map(|n| json!({"name": n.to_string()})).collect();
        assert!(UpstreamCatalog::default().add_page(&page(&json!({ "tools": tools }))).is_err());
    }

    /// Why a list of one page is refused whose tools have this in them, each.
    fn refusal(tools: usize, more: &str) -> String {
        let tool = format!(r#"{{"name": "a", "inputSchema": {{"type": "object"}}, "x": {more}}}"#);
        let page = format!(r#"{{"tools": [{}]}}"#, vec![tool; tools].join(","));
        let page = RawValue::from_string(page).unwrap();
        let Err(failure) = UpstreamCatalog::default().add_page(&page) else {
            panic!("the list is taken")
        };
        failure.error.to_string()
    }

    #[test]
    fn a_list_that_would_take_much_memory_is_refused_before_it_is_parsed() {
        let values = |count: usize| format!("[0{}]", ",0".repeat(count));
        let text = |bytes: usize| format!("{:?}", "x".repeat(bytes));
        let longer = "the server sent something that is not MCP: a longer list of tools than a server may have";
        let larger = "the server sent something that is not MCP: larger definitions than the tools of a server may have";
        // Eight million bytes of values, and as many of text.
        assert_eq!(refusal(1, &values(4_000_000)), longer);
        assert_eq!(refusal(1, &text(8_000_000)), longer);
        // Few bytes, but many values.
        assert_eq!(refusal(1, &values(MAX_LISTING_VALUES)), longer);
        // One definition, and all of them.
        assert_eq!(refusal(1, &text(MAX_DEFINITION_BYTES)), larger);
        assert_eq!(refusal(5, &text(110 * 1024)), larger);
    }

    #[test]
    fn the_definitions_of_all_pages_count_together() {
        let tool = |n: usize| json!({"name": n.to_string(), "inputSchema": {"type": "object"}, "x": "x".repeat(120 * 1024)});
        let mut catalog = UpstreamCatalog::default();
        let mut read = 0;
        loop {
            let next = page(&json!({"tools": [tool(read)], "nextCursor": "more"}));
            match catalog.add_page(&next) {
                Ok(ControlFlow::Continue(more)) => catalog = more,
                Ok(ControlFlow::Break(_)) => panic!("there are more pages"),
                Err(_) => break,
            }
            read += 1;
        }
        assert_eq!(read, MAX_SERVER_DEFINITION_BYTES / (120 * 1024));
    }
}
