//! Drafts a rule from one call that a person decided about. A draft is a text for people: nobody takes it unseen.

use cynode_core::{agents::AgentRole, ids::ProjectId};
use serde_json::{Map, Value};

use super::{
    cedar_schema::ArgumentShape,
    vocabulary::{attribute_path, is_plain_name},
};
use crate::catalogue::CatalogueTool;

/// Most bytes of a text that a draft quotes.
const MAX_QUOTED_BYTES: usize = 1000;

/// Arguments that are different for every task. The gateway checks them, so a rule need not.
const ID_ARGUMENTS: [&str; 4] = ["task_id", "run_id", "job_id", "project_id"];

/// A call that a person decided about.
#[derive(Clone, Copy, Debug)]
pub struct DecidedCall<'a> {
    /// The tool.
    pub tool: &'a CatalogueTool,
    /// The role of the agent.
    pub role: AgentRole,
    /// The project of the agent.
    pub project: Option<ProjectId>,
    /// The arguments, while they are known.
    pub arguments: Option<&'a Value>,
}

/// A drafted rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDraft {
    /// One Cedar `forbid`.
    pub text: String,
    /// The arguments of the call that the rule does not look at.
    pub omitted: Vec<String>,
}

/// Drafts a rule that applies to calls like this one.
pub fn draft_refusal(call: DecidedCall<'_>) -> RuleDraft {
    let mut terms = ConditionTerms::default();
    terms.add_facts(call, false);
    let head = format!(
        "forbid (\n    principal == Role::\"{}\",\n    action == Action::\"{}\",\n    resource\n)",
        call.role.as_str(),
        call.tool.definition.name,
    );
    let text = if terms.terms.is_empty() {
        format!("{head};")
    } else {
        format!("{head}\nwhen {{\n    {}\n}};", terms.terms.join(" &&\n    "))
    };
    RuleDraft { text, omitted: terms.omitted }
}

/// Drafts the rule of this text without calls like this one. Fails with `None` when the text does not end with its rule.
pub fn narrow_rule(text: &str, call: DecidedCall<'_>) -> Option<RuleDraft> {
    let rule = text.trim_end().strip_suffix(';')?;
    let mut terms = ConditionTerms::default();
    // The tool comes first: its arguments are known to the validation only behind it.
    terms.terms.push(format!("action == Action::\"{}\"", call.tool.definition.name));
    terms.terms.push(format!("principal == Role::\"{}\"", call.role.as_str()));
    terms.add_facts(call, true);
    let text = format!("{rule}\nunless {{\n    {}\n}};", terms.terms.join(" &&\n    "));
    Some(RuleDraft { text, omitted: terms.omitted })
}

/// The parts of a condition, all of which must hold.
#[derive(Default)]
struct ConditionTerms {
    terms: Vec<String>,
    omitted: Vec<String>,
}

impl ConditionTerms {
    /// Adds project and arguments of the call. `exactly`: no call with further arguments is meant.
    fn add_facts(&mut self, call: DecidedCall<'_>, exactly: bool) {
        if let Some(project) = call.project {
            self.terms.push(format!("context.agent.project == \"{project}\""));
        }
        let Some(Value::Object(arguments)) = call.arguments else { return };
        let shape = ArgumentShape::from_schema(&call.tool.definition.input);
        let ArgumentShape::Record(fields) = &shape else { return };
        let fields: Vec<_> =
            fields.iter().filter(|(name, _)| !ID_ARGUMENTS.contains(&name.as_str())).collect();
        let is_shown = |name: &str| fields.iter().any(|(shown, _)| shown == name);
        let omitted = arguments.iter().filter(|(name, value)| {
            !value.is_null() && !is_shown(name) && !ID_ARGUMENTS.contains(&name.as_str())
        });
        self.omitted.extend(omitted.map(|(name, _)| name.clone()));
        for (name, shape) in fields {
            self.add_argument("context.arguments", name, shape, arguments, exactly);
        }
    }

    fn add_argument(
        &mut self,
        path: &str,
        name: &str,
        shape: &ArgumentShape,
        given: &Map<String, Value>,
        exactly: bool,
    ) {
        let key = if is_plain_name(name) {
            name.to_owned()
        } else {
            format!("\"{}\"", name.escape_default())
        };
        let Some(value) = given.get(name).filter(|value| !value.is_null()) else {
            if exactly {
                self.terms.push(format!("!({path} has {key})"));
            }
            return;
        };
        let own = attribute_path(path, name);
        match (shape, value) {
            (ArgumentShape::Record(fields), Value::Object(given)) => {
                self.terms.push(format!("{path} has {key}"));
                for (name, shape) in fields {
                    self.add_argument(&own, name, shape, given, exactly);
                }
            }
            _ => match to_literal(shape, value) {
                Some(literal) => {
                    self.terms.push(format!("{path} has {key} && {own} == {literal}"));
                }
                None => self.omitted.push(name.to_owned()),
            },
        }
    }
}

/// Writes a value as Cedar does.
fn to_literal(shape: &ArgumentShape, value: &Value) -> Option<String> {
    match (shape, value) {
        (ArgumentShape::Text, Value::String(text)) if text.len() <= MAX_QUOTED_BYTES => {
            Some(format!("\"{}\"", text.escape_default()))
        }
        (ArgumentShape::Flag, Value::Bool(flag)) => Some(flag.to_string()),
        (ArgumentShape::Number, Value::Number(number)) => {
            number.as_i64().map(|number| number.to_string())
        }
        // The type of an empty set cannot be told.
        (ArgumentShape::Set(element), Value::Array(items)) if !items.is_empty() => {
            let items = items.iter().map(|item| to_literal(element, item));
            Some(format!("[{}]", items.collect::<Option<Vec<_>>>()?.join(", ")))
        }
        _ => None,
    }
}
