//! What a rule can speak of, for whoever writes one.

use cynode_core::{agents::AgentKind, workflow::handoffs::HandoffKind};
use serde_json::Value;

use super::cedar_schema::ArgumentShape;

/// A fact about the caller or the tool that conditions can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextField {
    /// How a condition names it.
    pub path: &'static str,
    /// Its type in Cedar.
    pub kind: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// The values that it can have, where they are few.
    pub values: Vec<&'static str>,
}

/// A word or sign that conditions are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOperator {
    /// The word or sign.
    pub name: &'static str,
    /// A condition that uses it.
    pub example: &'static str,
    /// What it means.
    pub summary: &'static str,
}

/// An argument of a tool, as conditions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleArgument {
    /// How a condition names it.
    pub path: String,
    /// Its type in Cedar.
    pub kind: String,
    /// Whether the schema of the tool requires it.
    pub required: bool,
    /// What the schema of the tool says about it.
    pub summary: Option<String>,
}

/// The facts about the caller and the tool.
pub fn list_context_fields() -> Vec<ContextField> {
    let field = |path, kind, summary| ContextField { path, kind, summary, values: Vec::new() };
    let text = |path, summary| field(path, "String", summary);
    let flag = |path, summary| field(path, "Boolean", summary);
    vec![
        ContextField {
            values: AgentKind::ALL.map(AgentKind::as_str).to_vec(),
            ..text("context.agent.kind", "The type of agent: where it runs.")
        },
        text("context.agent.user", "The id of the person whom the agent works for, or empty."),
        text("context.agent.project", "The id of the project that the agent works in, or empty."),
        text("context.agent.task", "The id of the task that the agent works on, or empty."),
        ContextField {
            values: HandoffKind::ALL.map(HandoffKind::as_str).to_vec(),
            ..text(
                "context.agent.handoff",
                "The kind of handoff that the agent works on, or empty.",
            )
        },
        text("context.agent.profile", "The name of the profile that the agent works under."),
        flag("context.agent.network", "Whether the profile of the agent permits the network."),
        flag("context.tool.read_only", "Whether the tool changes nothing."),
        flag("context.tool.destructive", "Whether the tool can destroy something."),
        flag("context.tool.open_world", "Whether the tool reaches beyond the installation."),
    ]
}

/// The words and signs of conditions that are used most.
pub const fn list_operators() -> &'static [RuleOperator] {
    &[
        RuleOperator {
            name: "==",
            example: "context.agent.kind == \"sandbox\"",
            summary: "Both sides are equal.",
        },
        RuleOperator {
            name: "!=",
            example: "context.agent.handoff != \"schedule\"",
            summary: "Both sides differ.",
        },
        RuleOperator {
            name: "&&",
            example: "context.tool.destructive && context.tool.open_world",
            summary: "Both sides hold.",
        },
        RuleOperator {
            name: "||",
            example: "context.tool.destructive || context.tool.open_world",
            summary: "One of the sides holds.",
        },
        RuleOperator {
            name: "!",
            example: "!context.tool.read_only",
            summary: "The expression does not hold.",
        },
        RuleOperator {
            name: "has",
            example: "context.arguments has branch",
            summary: "The call has this argument. Ask it before the argument is used.",
        },
        RuleOperator {
            name: "like",
            example: "context.arguments.url like \"*internal*\"",
            summary: "The text fits the pattern; `*` stands for any characters.",
        },
        RuleOperator {
            name: "<",
            example: "context.arguments.count < 10",
            summary: "The number is smaller; also `<=`, `>` and `>=`.",
        },
        RuleOperator {
            name: "contains",
            example: "context.arguments.labels.contains(\"urgent\")",
            summary: "The set has this element.",
        },
        RuleOperator {
            name: "containsAny",
            example: "context.arguments.labels.containsAny([\"urgent\", \"secret\"])",
            summary: "The set has one of these elements.",
        },
        RuleOperator {
            name: "containsAll",
            example: "context.arguments.labels.containsAll([\"urgent\", \"secret\"])",
            summary: "The set has all of these elements.",
        },
        RuleOperator {
            name: "isEmpty",
            example: "context.arguments.labels.isEmpty()",
            summary: "The set has no element.",
        },
        RuleOperator {
            name: "if then else",
            example: "if context.tool.read_only then false else true",
            summary: "Chooses between two conditions.",
        },
    ]
}

/// The arguments that conditions see of a tool with this schema, and the names of those that they do not see.
pub fn describe_arguments(schema: &Value) -> (Vec<VisibleArgument>, Vec<String>) {
    let mut visible = Vec::new();
    let shape = ArgumentShape::from_schema(schema);
    append_fields("context.arguments", &shape, schema, &mut visible);
    let ArgumentShape::Record(fields) = &shape else { return (visible, Vec::new()) };
    let declared = schema.get("properties").and_then(Value::as_object);
    let hidden = declared.into_iter().flatten().map(|(name, _)| name);
    let hidden = hidden.filter(|name| !fields.iter().any(|(shown, _)| shown == *name));
    (visible, hidden.cloned().collect())
}

fn append_fields(
    path: &str,
    shape: &ArgumentShape,
    schema: &Value,
    visible: &mut Vec<VisibleArgument>,
) {
    let ArgumentShape::Record(fields) = shape else { return };
    let required = schema.get("required").and_then(Value::as_array);
    for (name, shape) in fields {
        let property = schema.get("properties").and_then(|all| all.get(name));
        let summary = property.and_then(|property| property.get("description"));
        let path = attribute_path(path, name);
        visible.push(VisibleArgument {
            path: path.clone(),
            kind: shape.cedar_type_name(),
            required: required.is_some_and(|all| all.iter().any(|one| one == name.as_str())),
            summary: summary.and_then(Value::as_str).map(str::to_owned),
        });
        if let Some(property) = property {
            append_fields(&path, shape, property, visible);
        }
    }
}

/// Words of Cedar that are no names.
const RESERVED_WORDS: [&str; 11] =
    ["true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar", "principal"];

/// Whether a condition can write the name of an attribute without quotation marks.
pub(super) fn is_plain_name(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
        && !RESERVED_WORDS.contains(&name)
}

/// How a condition names an attribute of what `path` names.
pub(super) fn attribute_path(path: &str, name: &str) -> String {
    if is_plain_name(name) {
        format!("{path}.{name}")
    } else {
        format!("{path}[\"{}\"]", name.escape_default())
    }
}
