//! A rule that is tried on recorded calls. A record names the caller and the tool, and holds no arguments.

use std::slice;

use cedar_policy::{Policy, PolicyId};
use serde_json::{Map, Value, json};

use super::{PolicyRule, RuleError, RuleSet, parse_rule, subjects::mentions_attribute};
use crate::{
    agents::AgentIdentity,
    catalogue::{CatalogueTool, ToolCatalogue},
};

/// What no record holds.
const UNRECORDED_FACTS: &[&str] = &["arguments"];

/// What only the agent's token says.
const TOKEN_FACTS: &[&str] = &["handoff", "profile", "network"];

/// What a rule says about a recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialResult {
    /// It applies.
    Applies,
    /// It does not apply.
    DoesNotApply,
    /// It depends on what was not recorded.
    Undecidable(MissingFact),
}

/// What a record lacks for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingFact {
    /// The arguments of the call.
    Arguments,
    /// Profile, network or handoff of an agent whose token is gone.
    Agent,
}

/// One rule, ready to be tried on recorded calls.
#[derive(Debug)]
pub struct RuleTrial {
    exact: RuleSet,
    /// The rule without the conditions that look at arguments. Whatever the rule applies to, this one applies to, too.
    without_arguments: RuleSet,
    /// The same, and without the conditions that look at what only the token says.
    without_token: RuleSet,
    reads_arguments: bool,
    reads_token: bool,
}

impl RuleTrial {
    /// Checks the rule as [`RuleSet::load_rules`] does.
    pub fn load_rule(rule: &PolicyRule, catalogue: &ToolCatalogue) -> Result<Self, RuleError> {
        let exact = load_one(rule, catalogue)?;
        let policy = parse_rule(rule)?.to_json();
        let policy = policy.map_err(|error| RuleError::Syntax(error.to_string()))?;
        let relax = |facts: &[&str]| -> Result<RuleSet, RuleError> {
            if mentions_attribute(&policy, facts) {
                relax_rule(rule, &policy, facts, catalogue)
            } else {
                Ok(exact.clone())
            }
        };
        let without_arguments = relax(UNRECORDED_FACTS)?;
        let without_token = relax(&[UNRECORDED_FACTS, TOKEN_FACTS].concat())?;
        let reads_arguments = mentions_attribute(&policy, UNRECORDED_FACTS);
        let reads_token = mentions_attribute(&policy, TOKEN_FACTS);
        Ok(Self { exact, without_arguments, without_token, reads_arguments, reads_token })
    }

    /// Asks the rule about a recorded call. `token_known` says whether profile, network and handoff of the agent are known.
    pub fn evaluate_call(
        &self,
        agent: &AgentIdentity,
        tool: &CatalogueTool,
        token_known: bool,
    ) -> TrialResult {
        let (set, missing) = match (self.reads_arguments, self.reads_token && !token_known) {
            (false, false) => (&self.exact, None),
            (true, false) => (&self.without_arguments, Some(MissingFact::Arguments)),
            (true, true) => (&self.without_token, Some(MissingFact::Arguments)),
            (false, true) => (&self.without_token, Some(MissingFact::Agent)),
        };
        match (set.evaluate_rules(agent, tool, None).has_match(), missing) {
            (false, _) => TrialResult::DoesNotApply,
            (true, None) => TrialResult::Applies,
            (true, Some(fact)) => TrialResult::Undecidable(fact),
        }
    }
}

fn load_one(rule: &PolicyRule, catalogue: &ToolCatalogue) -> Result<RuleSet, RuleError> {
    RuleSet::load_rules(slice::from_ref(rule), catalogue).map_err(|(_, error)| error)
}

/// Loads a rule without the conditions that mention one of the facts.
fn relax_rule(
    rule: &PolicyRule,
    policy: &Value,
    facts: &[&str],
    catalogue: &ToolCatalogue,
) -> Result<RuleSet, RuleError> {
    let conditions = policy.get("conditions").and_then(Value::as_array);
    let conditions: Vec<_> = conditions
        .into_iter()
        .flatten()
        .filter_map(|condition| relax_condition(condition, facts))
        .collect();
    let relaxed = load_with_conditions(rule, policy, conditions, catalogue);
    // The head alone applies to no less.
    relaxed.or_else(|_| load_with_conditions(rule, policy, Vec::new(), catalogue))
}

fn load_with_conditions(
    rule: &PolicyRule,
    policy: &Value,
    conditions: Vec<Value>,
    catalogue: &ToolCatalogue,
) -> Result<RuleSet, RuleError> {
    let mut policy = policy.clone();
    policy["conditions"] = Value::Array(conditions);
    let policy = Policy::from_json(Some(PolicyId::new(&rule.name)), policy)
        .map_err(|error| RuleError::Syntax(error.to_string()))?;
    let text = policy.to_cedar().ok_or_else(|| RuleError::Syntax("it is a template".into()))?;
    load_one(&PolicyRule { text, ..rule.clone() }, catalogue)
}

/// What is left of a condition when nothing of it may mention one of the facts.
fn relax_condition(condition: &Value, facts: &[&str]) -> Option<Value> {
    let kind = condition.get("kind")?.as_str()?;
    // All parts of a `when` must hold, and no part of an `unless` may.
    let operator = if kind == "when" { "&&" } else { "||" };
    let body = relax_expression(condition.get("body")?, operator, facts)?;
    Some(json!({ "kind": kind, "body": body }))
}

/// Leaves out the operands that mention one of the facts.
fn relax_expression(body: &Value, operator: &str, facts: &[&str]) -> Option<Value> {
    if !mentions_attribute(body, facts) {
        return Some(body.clone());
    }
    let operands = body.get(operator)?;
    let relax = |side: &str| relax_expression(operands.get(side)?, operator, facts);
    match (relax("left"), relax("right")) {
        (Some(left), Some(right)) => {
            let mut both = Map::new();
            both.insert(operator.to_owned(), json!({ "left": left, "right": right }));
            Some(Value::Object(both))
        }
        (left, right) => left.or(right),
    }
}
