//! Kinds of tools that not every dialect supports.
//!
//! Responses has custom tools, which are called with free text, and namespaces of tools. For a provider that supports only functions, a
//! custom tool becomes a function with one property, and the name of a grouped tool is prefixed with its namespace. This module converts
//! the model's calls back, so that the client sees the tools that it offered.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::dialect::{
    Dialect,
    canonical::{
        CanonicalEvent, CanonicalRequest, CanonicalResponse, CanonicalTool, ContentPart,
        CustomTool, CustomToolFormat, FunctionTool, PartStart, ToolCall, ToolInput,
    },
};

/// The only property of a function that replaces a custom tool.
const INPUT_PROPERTY: &str = "input";

/// Returns the name of a tool for a provider that does not support namespaces.
pub(crate) fn flat_tool_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

/// Returns the function that replaces a custom tool.
pub(crate) fn to_function_tool(tool: &CustomTool) -> FunctionTool {
    let grammar = match &tool.format {
        Some(CustomToolFormat::Grammar { syntax, definition }) => Some(format!(
            "Give the whole text as `{INPUT_PROPERTY}`. It must follow this {syntax} grammar:\n{definition}"
        )),
        Some(CustomToolFormat::Text) | None => None,
    };
    let description: Vec<String> = tool.description.clone().into_iter().chain(grammar).collect();
    FunctionTool {
        name: tool.name.clone(),
        description: (!description.is_empty()).then(|| description.join("\n\n")),
        parameters: json!({
            "type": "object",
            "properties": { INPUT_PROPERTY: { "type": "string", "description": "The text for the tool." } },
            "required": [INPUT_PROPERTY],
            "additionalProperties": false,
        }),
        strict: false,
        extras: tool.extras.clone(),
    }
}

/// Returns the arguments of such a function for the free text `text`.
pub(crate) fn wrap_arguments(text: &str) -> String {
    json!({ INPUT_PROPERTY: text }).to_string()
}

/// Returns the free text from the arguments of such a function, or the arguments themselves if the model did not follow the schema.
fn unwrap_arguments(arguments: &str) -> String {
    let given: Option<Value> = serde_json::from_str(arguments).ok();
    let text = given.as_ref().and_then(|given| given.get(INPUT_PROPERTY)).and_then(Value::as_str);
    text.unwrap_or(arguments).to_owned()
}

/// Converts calls of replacement functions back into calls of the tools that the client offered.
#[derive(Clone, Debug, Default)]
pub struct ToolRestorer {
    tools: BTreeMap<String, OriginalTool>,
    /// Arguments of custom tool calls that are not complete yet.
    open: BTreeMap<usize, String>,
}

#[derive(Clone, Debug)]
struct OriginalTool {
    name: String,
    namespace: Option<String>,
    custom: bool,
}

impl ToolRestorer {
    /// Creates a restorer for responses to `request` of a provider that uses `provider`.
    pub fn new(request: &CanonicalRequest, provider: Dialect) -> Self {
        let mut tools = BTreeMap::new();
        if provider != Dialect::Responses {
            collect_originals(&request.tools, None, &mut tools);
        }
        Self { tools, open: BTreeMap::new() }
    }

    /// Returns whether responses stay unchanged.
    pub fn is_idle(&self) -> bool {
        self.tools.is_empty()
    }

    /// Restores the tool calls of a complete response.
    pub fn restore_response(&self, answer: &mut CanonicalResponse) {
        for part in &mut answer.parts {
            if let ContentPart::ToolCall(call) = part {
                self.restore_call(call);
            }
        }
    }

    fn restore_call(&self, call: &mut ToolCall) {
        let Some(original) = self.tools.get(&call.name) else { return };
        call.name.clone_from(&original.name);
        call.namespace.clone_from(&original.namespace);
        if let (true, ToolInput::Json(arguments)) = (original.custom, &call.input) {
            call.input = ToolInput::Free(unwrap_arguments(arguments));
        }
    }

    /// Restores one event. The text of a custom tool is emitted in one piece, when its call is complete.
    pub fn restore_event(&mut self, event: CanonicalEvent) -> Vec<CanonicalEvent> {
        match event {
            CanonicalEvent::PartStarted {
                index,
                opening: PartStart::ToolCall { id, name, namespace, free },
            } => {
                let opening = match self.tools.get(&name) {
                    None => PartStart::ToolCall { id, name, namespace, free },
                    Some(original) => {
                        if original.custom && !free {
                            self.open.insert(index, String::new());
                        }
                        PartStart::ToolCall {
                            id,
                            name: original.name.clone(),
                            namespace: original.namespace.clone(),
                            free: original.custom,
                        }
                    }
                };
                vec![CanonicalEvent::PartStarted { index, opening }]
            }
            CanonicalEvent::ArgumentsDelta { index, text } => match self.open.get_mut(&index) {
                Some(held) => {
                    held.push_str(&text);
                    Vec::new()
                }
                None => vec![CanonicalEvent::ArgumentsDelta { index, text }],
            },
            CanonicalEvent::PartEnded { index } => {
                let text = self.open.remove(&index).map(|held| unwrap_arguments(&held));
                let delta = text.map(|text| CanonicalEvent::ArgumentsDelta { index, text });
                delta.into_iter().chain([CanonicalEvent::PartEnded { index }]).collect()
            }
            event => vec![event],
        }
    }
}

fn collect_originals(
    tools: &[CanonicalTool],
    namespace: Option<&str>,
    into: &mut BTreeMap<String, OriginalTool>,
) {
    for tool in tools {
        let (name, custom) = match tool {
            CanonicalTool::Function(tool) if namespace.is_some() => (&tool.name, false),
            CanonicalTool::Custom(tool) => (&tool.name, true),
            CanonicalTool::Namespace(space) => {
                collect_originals(&space.tools, Some(&space.name), into);
                continue;
            }
            CanonicalTool::Function(_) | CanonicalTool::Foreign(_) => continue,
        };
        let namespace = namespace.map(str::to_owned);
        let flat = flat_tool_name(namespace.as_deref(), name);
        into.insert(flat, OriginalTool { name: name.clone(), namespace, custom });
    }
}
