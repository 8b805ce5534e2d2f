//! Kinds of tools that not every dialect has.
//!
//! Responses has tools that are called with free text, and groups of tools. Towards a provider that knows only functions a
//! free-text tool becomes a function with one property, and a grouped tool gets the group's name before its own. What the
//! model then calls is turned back here, so that the client sees the tools that it offered.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    dialect::Dialect,
    talk::{
        Answer, CustomTool, Event, Format, FunctionTool, Input, Opening, Part, Request, Tool,
        ToolCall,
    },
};

/// The one property of a function that stands for a free-text tool.
const PROPERTY: &str = "input";

/// What a tool is called by a provider that knows no groups.
pub(crate) fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

/// The function that stands for a free-text tool.
pub(crate) fn as_function(tool: &CustomTool) -> FunctionTool {
    let grammar = match &tool.format {
        Some(Format::Grammar { syntax, definition }) => Some(format!(
            "Give the whole text as `{PROPERTY}`. It must follow this {syntax} grammar:\n{definition}"
        )),
        Some(Format::Text) | None => None,
    };
    let description: Vec<String> = tool.description.clone().into_iter().chain(grammar).collect();
    FunctionTool {
        name: tool.name.clone(),
        description: (!description.is_empty()).then(|| description.join("\n\n")),
        parameters: json!({
            "type": "object",
            "properties": { PROPERTY: { "type": "string", "description": "The text for the tool." } },
            "required": [PROPERTY],
            "additionalProperties": false,
        }),
        strict: false,
        extras: tool.extras.clone(),
    }
}

/// What such a function is given instead of `text`.
pub(crate) fn as_arguments(text: &str) -> String {
    json!({ PROPERTY: text }).to_string()
}

/// The text that such a function was given, or all of it if the model did not keep to the form.
fn as_text(arguments: &str) -> String {
    let given: Option<Value> = serde_json::from_str(arguments).ok();
    let text = given.as_ref().and_then(|given| given.get(PROPERTY)).and_then(Value::as_str);
    text.unwrap_or(arguments).to_owned()
}

/// Turns calls of stand-ins back into calls of the tools that the client offered.
#[derive(Clone, Debug, Default)]
pub struct Restore {
    tools: BTreeMap<String, Original>,
    /// Calls of free-text tools that are still being written.
    open: BTreeMap<usize, String>,
}

#[derive(Clone, Debug)]
struct Original {
    name: String,
    namespace: Option<String>,
    custom: bool,
}

impl Restore {
    /// What must be turned back in answers to `request` of a provider that speaks `provider`.
    pub fn new(request: &Request, provider: Dialect) -> Self {
        let mut tools = BTreeMap::new();
        if provider != Dialect::Responses {
            collect(&request.tools, None, &mut tools);
        }
        Self { tools, open: BTreeMap::new() }
    }

    /// Whether answers stay as they are.
    pub fn is_idle(&self) -> bool {
        self.tools.is_empty()
    }

    /// Turns a whole answer back.
    pub fn answer(&self, answer: &mut Answer) {
        for part in &mut answer.parts {
            if let Part::ToolCall(call) = part {
                self.call(call);
            }
        }
    }

    fn call(&self, call: &mut ToolCall) {
        let Some(original) = self.tools.get(&call.name) else { return };
        call.name.clone_from(&original.name);
        call.namespace.clone_from(&original.namespace);
        if let (true, Input::Json(arguments)) = (original.custom, &call.input) {
            call.input = Input::Free(as_text(arguments));
        }
    }

    /// Turns one event back. The text of a free-text tool comes in one piece, when its call is complete.
    pub fn event(&mut self, event: Event) -> Vec<Event> {
        match event {
            Event::PartStarted {
                index,
                opening: Opening::ToolCall { id, name, namespace, free },
            } => {
                let opening = match self.tools.get(&name) {
                    None => Opening::ToolCall { id, name, namespace, free },
                    Some(original) => {
                        if original.custom && !free {
                            self.open.insert(index, String::new());
                        }
                        Opening::ToolCall {
                            id,
                            name: original.name.clone(),
                            namespace: original.namespace.clone(),
                            free: original.custom,
                        }
                    }
                };
                vec![Event::PartStarted { index, opening }]
            }
            Event::ArgumentsDelta { index, text } => match self.open.get_mut(&index) {
                Some(held) => {
                    held.push_str(&text);
                    Vec::new()
                }
                None => vec![Event::ArgumentsDelta { index, text }],
            },
            Event::PartEnded { index } => {
                let text = self.open.remove(&index).map(|held| as_text(&held));
                let delta = text.map(|text| Event::ArgumentsDelta { index, text });
                delta.into_iter().chain([Event::PartEnded { index }]).collect()
            }
            event => vec![event],
        }
    }
}

fn collect(tools: &[Tool], namespace: Option<&str>, into: &mut BTreeMap<String, Original>) {
    for tool in tools {
        let (name, custom) = match tool {
            Tool::Function(tool) if namespace.is_some() => (&tool.name, false),
            Tool::Custom(tool) => (&tool.name, true),
            Tool::Namespace(space) => {
                collect(&space.tools, Some(&space.name), into);
                continue;
            }
            Tool::Function(_) | Tool::Foreign(_) => continue,
        };
        let namespace = namespace.map(str::to_owned);
        let flat = flat_name(namespace.as_deref(), name);
        into.insert(flat, Original { name: name.clone(), namespace, custom });
    }
}
