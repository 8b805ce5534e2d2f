//! Checks a rule without taking it, and says where in its text it is wrong.

use std::ops::Range;

use cedar_policy::{Policy, PolicyId, PolicySet, ValidationMode, Validator, ffi::DetailedError};
use cynode_core::agents::AgentRole;

use super::{PolicyRule, RuleError, cedar_schema, parse_rule, subjects::RuleScope};
use crate::{catalogue::ToolCatalogue, tool_names::ToolName};

/// Most problems of one rule that are reported.
const MAX_PROBLEMS: usize = 20;

/// One thing that is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// The stable name of the error.
    pub code: &'static str,
    /// What is wrong, in a sentence.
    pub message: String,
    /// What would be right, where it is known.
    pub help: Option<String>,
    /// The bytes of the text that it is about.
    pub span: Option<Range<usize>>,
}

/// What checking a rule showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCheck {
    /// What is wrong; the rule can be taken when there is nothing.
    pub problems: Vec<RuleProblem>,
    /// Whether the rule looks at the arguments of calls.
    pub reads_arguments: bool,
    /// The tools that its head speaks of.
    pub tools: Vec<ToolName>,
    /// The roles that its head speaks of.
    pub roles: Vec<AgentRole>,
}

/// Checks a rule against the catalogue, as [`super::RuleSet::load_rules`] does, and reports every problem with its place.
pub fn check_rule(rule: &PolicyRule, catalogue: &ToolCatalogue) -> RuleCheck {
    match find_subjects(rule, catalogue) {
        Ok(check) => check,
        Err(problems) => {
            // The same problem is found once for each tool that the rule speaks of.
            let mut distinct: Vec<RuleProblem> = Vec::new();
            for problem in problems {
                if distinct.len() < MAX_PROBLEMS && !distinct.contains(&problem) {
                    distinct.push(problem);
                }
            }
            RuleCheck { problems: distinct, ..RuleCheck::default() }
        }
    }
}

fn find_subjects(
    rule: &PolicyRule,
    catalogue: &ToolCatalogue,
) -> Result<RuleCheck, Vec<RuleProblem>> {
    let policy = parse_rule(rule).map_err(|error| match &error {
        RuleError::Syntax(_) => list_syntax_problems(rule, &error),
        _ => vec![to_problem(&error)],
    })?;
    let wrong = |error: RuleError| vec![to_problem(&error)];
    let schema = cedar_schema::build_cedar_schema(catalogue);
    let schema = schema.map_err(|error| wrong(RuleError::Schema(error)))?;
    let groups = schema.action_entities();
    let groups = groups.map_err(|error| wrong(RuleError::Schema(error.to_string())))?;
    let set = PolicySet::from_policies([policy.clone()]);
    let set = set.map_err(|error| wrong(RuleError::Syntax(error.to_string())))?;
    let result = Validator::new(schema).validate(&set, ValidationMode::Strict);
    let code = RuleError::Invalid(String::new()).error_code();
    let errors = result.validation_errors().map(|error| locate(code, DetailedError::from(error)));
    // A rule that can never apply is a rule that somebody misspelt.
    let warnings =
        result.validation_warnings().map(|warning| locate(code, DetailedError::from(warning)));
    let problems: Vec<_> = errors.chain(warnings).collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    let head = RuleScope::from_policy(policy);
    let (tools, roles) = head.list_subjects(catalogue, &groups).map_err(wrong)?;
    Ok(RuleCheck { problems: Vec::new(), reads_arguments: head.reads_arguments(), tools, roles })
}

/// Reads the text once more for the places of its errors.
fn list_syntax_problems(rule: &PolicyRule, error: &RuleError) -> Vec<RuleProblem> {
    match Policy::parse(Some(PolicyId::new(&rule.name)), &rule.text) {
        Ok(_) => vec![to_problem(error)],
        Err(errors) => {
            let code = error.error_code();
            errors.iter().map(|error| locate(code, DetailedError::from(error))).collect()
        }
    }
}

fn to_problem(error: &RuleError) -> RuleProblem {
    let (code, message) = (error.error_code(), error.to_string());
    RuleProblem { code, message, help: None, span: None }
}

fn locate(code: &'static str, error: DetailedError) -> RuleProblem {
    let span = error.source_locations.first().map(|label| label.loc.start..label.loc.end);
    RuleProblem { code, message: error.message, help: error.help, span }
}
