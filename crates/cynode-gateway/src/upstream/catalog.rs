//! The tools of a server: all pages of its list, read into [`Definition`]s.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::Failure;
use super::header::{self, Mirror};
use super::{Definition, UpstreamError};

/// How many pages of a list are followed.
pub(super) const MAX_PAGES: usize = 50;
/// How many tools a server may have.
pub(super) const MAX_TOOLS: usize = 2_000;

/// Which arguments have to be mirrored into headers, by tool.
pub(super) type Mirrors = HashMap<String, Vec<Mirror>>;

/// The pages read so far.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    names: HashSet<String>,
    tools: Vec<Definition>,
    pages: usize,
    cursor: Option<String>,
}

impl Catalog {
    /// Where the next page is; `None` for the first.
    pub(super) fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Takes a page in. All tools when it was the last one, otherwise what is to be asked next.
    pub(super) fn add(
        mut self,
        page: &RawValue,
    ) -> Result<ControlFlow<Vec<Definition>, Self>, Failure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            tools: Vec<Value>,
            next_cursor: Option<String>,
        }
        let refuse = |what| Failure::keep(UpstreamError::Malformed(what));
        let Page { tools, next_cursor } =
            serde_json::from_str(page.get()).map_err(|_| refuse("a page of the tools"))?;
        self.pages += 1;
        if self.tools.len() + tools.len() > MAX_TOOLS {
            return Err(refuse("more tools than a server may have"));
        }
        if self.pages == MAX_PAGES && next_cursor.is_some() {
            return Err(refuse("more pages than a list may have"));
        }
        for tool in tools {
            self.push(tool);
        }
        self.cursor = next_cursor;
        Ok(if self.cursor.is_some() {
            ControlFlow::Continue(self)
        } else {
            ControlFlow::Break(self.tools)
        })
    }

    /// Adds one tool. What cannot be one is left out, so that it does not hide the others.
    fn push(&mut self, raw: Value) {
        let Some(tool) = definition(raw) else {
            tracing::warn!("a tool without a name or a schema is left out");
            return;
        };
        // The first of a name wins: a later one could only be there to be taken for it.
        if !self.names.insert(tool.name.clone()) {
            tracing::warn!(tool.name, "a tool that is listed twice is left out");
            return;
        }
        self.tools.push(tool);
    }
}

/// Leaves out the tools whose `x-mcp-header` annotations are invalid, as the protocol demands of a
/// client over HTTP, and says what is to be mirrored for the others.
pub(super) fn mirrored(tools: &mut Vec<Definition>) -> Mirrors {
    let mut all = Mirrors::new();
    tools.retain(|tool| match header::mirrors(&tool.input_schema) {
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

fn definition(raw: Value) -> Option<Definition> {
    let Value::Object(object) = &raw else { return None };
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    Some(Definition {
        name: text("name").filter(|name| !name.is_empty())?,
        title: text("title"),
        description: text("description"),
        input_schema: schema(object, "inputSchema")?,
        output_schema: schema(object, "outputSchema"),
        annotations: object.get("annotations").filter(|value| value.is_object()).cloned(),
        raw,
    })
}

fn schema(object: &Map<String, Value>, key: &str) -> Option<Value> {
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
        let ControlFlow::Break(tools) = Catalog::default().add(&page(&tools)).unwrap() else {
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
        let mut catalog = Catalog::default();
        let endless = page(&json!({"tools": [], "nextCursor": "again"}));
        let mut read = 0;
        while let Ok(ControlFlow::Continue(next)) = catalog.add(&endless) {
            catalog = next;
            read += 1;
        }
        assert_eq!(read, MAX_PAGES - 1);
    }

    #[test]
    fn too_many_tools_are_refused() {
        let tools: Vec<Value> = (0..=MAX_TOOLS).map(|n| json!({"name": n.to_string()})).collect();
        assert!(Catalog::default().add(&page(&json!({ "tools": tools }))).is_err());
    }
}
