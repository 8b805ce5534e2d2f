//! Rules that people write, in Cedar. They are asked after everything else and can only refuse.
//!
//! A rule is one `forbid`. It is checked against a schema made from the catalogue before it is taken, so that a rule that
//! misspells an argument is refused when it is written and not ignored when it matters. A rule that cannot be decided refuses.

mod cedar_schema;
mod draft;
mod rule_check;
mod subjects;
mod trial;
mod vocabulary;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use cedar_policy::{
    Authorizer, Effect, Entities, Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator,
};
use cynode_core::error_chain::format_error_chain;
use serde_json::{Value, json};

use crate::{
    agents::AgentIdentity,
    catalogue::{CatalogueTool, ToolCatalogue},
    digest::Sha256Digest,
    reasons::RefusalReason,
    tool_names::ToolName,
};
pub use draft::{DecidedCall, RuleDraft, draft_refusal, narrow_rule};
pub use rule_check::{RuleCheck, RuleProblem, check_rule};
use subjects::{RuleScope, ToolRules};
pub use trial::{MissingFact, RuleTrial, TrialResult};
pub use vocabulary::{
    ContextField, RuleOperator, VisibleArgument, describe_arguments, list_context_fields,
    list_operators,
};

/// What a rule does when it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleMode {
    /// The call is refused.
    Refuse,
    /// The call waits for a person's approval.
    Approve,
    /// Only noted: the rule is on trial. It never changes a decision.
    Shadow,
}

impl RuleMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Approve, Self::Shadow];

    /// What it does, in one sentence.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Refuse => "The call is refused.",
            Self::Approve => "The call waits until a person approves it.",
            Self::Shadow => "The call goes on. Its record names the rule.",
        }
    }

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Approve => "approve",
            Self::Shadow => "shadow",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

/// A rule as a person wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// What it is called: it is in records and answers.
    pub name: String,
    /// What it does.
    pub mode: RuleMode,
    /// One Cedar `forbid`.
    pub text: String,
}

/// Why a rule is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The name is unfit.
    #[error("a rule's name has 1 to 60 of a-z, 0-9 and `-`, and two rules have two names")]
    Name,
    /// It is too long.
    #[error("a rule has at most {MAX_RULE_BYTES} bytes")]
    TooLong,
    /// It is no Cedar policy.
    #[error("the rule cannot be read: {0}")]
    Syntax(String),
    /// It permits.
    #[error(
        "a rule can only forbid: write `forbid (…) unless {{ … }}` for what is to stay permitted"
    )]
    Permits,
    /// It does not fit the tools that there are.
    #[error("the rule does not fit the tools: {0}")]
    Invalid(String),
    /// The tools make no schema, which is our fault.
    #[error("the tools cannot be described to the rules: {0}")]
    Schema(String),
}

/// Most bytes of one rule.
pub const MAX_RULE_BYTES: usize = 16 * 1024;

/// Rules that were checked against a catalogue.
#[derive(Clone)]
pub struct RuleSet {
    /// What is asked about each tool of the catalogue.
    subjects: Arc<HashMap<ToolName, ToolRules>>,
    modes: Arc<BTreeMap<String, RuleMode>>,
    /// The rule that could not be loaded; while there is one, everything is refused.
    broken: Option<Arc<str>>,
    schema: Option<Arc<Schema>>,
    /// Which tools are in which groups.
    groups: Arc<Entities>,
    version: Sha256Digest,
}

/// What the rules say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSetVerdict {
    /// Why not.
    pub refusal: Option<RefusalReason>,
    /// Rules on trial that would have refused.
    pub shadow: Vec<String>,
}

impl RuleSetVerdict {
    /// Whether a rule applies, whatever it does then.
    pub fn has_match(&self) -> bool {
        self.refusal.is_some() || !self.shadow.is_empty()
    }
}

impl RuleSet {
    /// No rules.
    pub fn empty() -> Self {
        Self {
            subjects: Arc::default(),
            modes: Arc::default(),
            broken: None,
            schema: None,
            groups: Arc::new(Entities::empty()),
            version: Sha256Digest::of_bytes(b""),
        }
    }

    /// What stands in for rules that cannot be loaded: it refuses everything.
    pub fn refuse_all(rule: String) -> Self {
        let version = Sha256Digest::of_bytes(format!("broken {rule}").as_bytes());
        Self { broken: Some(rule.into()), version, ..Self::empty() }
    }

    /// Checks every rule against the catalogue. One bad rule, and none is taken.
    pub fn load_rules(
        rules: &[PolicyRule],
        catalogue: &ToolCatalogue,
    ) -> Result<Self, (String, RuleError)> {
        if rules.is_empty() {
            return Ok(Self::empty());
        }
        let wrong = |error| (String::new(), error);
        let schema = cedar_schema::build_cedar_schema(catalogue)
            .map_err(RuleError::Schema)
            .map_err(wrong)?;
        let groups = schema.action_entities();
        let groups = groups.map_err(|error| wrong(RuleError::Schema(error.to_string())))?;
        let (groups, kept) = (Arc::new(groups), Some(Arc::new(schema.clone())));
        let mut set = Self { schema: kept, groups, ..Self::empty() };
        let validator = Validator::new(schema);
        let mut heads = Vec::with_capacity(rules.len());
        let mut modes = BTreeMap::new();
        for rule in rules {
            let wrong = |error| (rule.name.clone(), error);
            let policy = parse_rule(rule).map_err(wrong)?;
            if modes.insert(rule.name.clone(), rule.mode).is_some() {
                return Err(wrong(RuleError::Name));
            }
            validate_rule(&validator, &policy).map_err(wrong)?;
            heads.push(RuleScope::from_policy(policy));
        }
        set.subjects =
            Arc::new(subjects::index_rules_by_tool(&heads, catalogue, &set.groups).map_err(wrong)?);
        set.modes = Arc::new(modes);
        set.version = rules_digest(rules);
        Ok(set)
    }

    /// Whether the verdict about a call of this tool can depend on its arguments.
    pub fn depends_on_arguments(&self, agent: &AgentIdentity, tool: &CatalogueTool) -> bool {
        let subject = self.subjects.get(&tool.definition.name);
        subject.is_some_and(|subject| subject.depends_on_arguments(agent.role))
    }

    /// Names these rules.
    pub const fn version_digest(&self) -> Sha256Digest {
        self.version
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }

    /// Asks the rules about a call, or about the tool whatever the arguments.
    pub fn evaluate_rules(
        &self,
        agent: &AgentIdentity,
        tool: &CatalogueTool,
        arguments: Option<&Value>,
    ) -> RuleSetVerdict {
        if let Some(rule) = &self.broken {
            let refusal = Some(RefusalReason::RuleFailed(vec![rule.to_string()]));
            return RuleSetVerdict { refusal, shadow: Vec::new() };
        }
        if self.is_empty() {
            return RuleSetVerdict::default();
        }
        // What cannot be asked is not answered with yes.
        let failed = || RuleSetVerdict {
            refusal: Some(RefusalReason::RuleFailed(Vec::new())),
            shadow: Vec::new(),
        };
        let Some(subject) = self.subjects.get(&tool.definition.name) else { return failed() };
        let Ok(question) = subject.build_cedar_request(agent, arguments) else { return failed() };
        let Some((request, policies)) = question else { return RuleSetVerdict::default() };
        let response = Authorizer::new().is_authorized(&request, policies, &self.groups);
        let mut ruling = RuleMatches::default();
        for id in response.diagnostics().reason() {
            ruling.record_match(id.as_ref(), &self.modes);
        }
        for error in response.diagnostics().errors() {
            let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
            ruling.record_failure(error.policy_id().as_ref(), &self.modes);
        }
        ruling.into_verdict()
    }

    /// What the schema for rules looks like, for whoever writes one.
    pub fn cedar_schema(&self) -> Option<&Schema> {
        self.schema.as_deref()
    }
}

/// The rules that applied or failed, by what they do.
#[derive(Default)]
struct RuleMatches {
    refuse: Vec<String>,
    approve: Vec<String>,
    shadow: Vec<String>,
    failed: Vec<String>,
}

impl RuleMatches {
    fn record_match(&mut self, name: &str, modes: &BTreeMap<String, RuleMode>) {
        let list = match modes.get(name) {
            Some(RuleMode::Refuse) => &mut self.refuse,
            Some(RuleMode::Approve) => &mut self.approve,
            Some(RuleMode::Shadow) => &mut self.shadow,
            // The permission that all rules take away from.
            None => return,
        };
        list.push(name.to_owned());
    }

    fn record_failure(&mut self, name: &str, modes: &BTreeMap<String, RuleMode>) {
        match modes.get(name) {
            Some(RuleMode::Shadow) => self.shadow.push(name.to_owned()),
            Some(RuleMode::Refuse | RuleMode::Approve) | None => self.failed.push(name.to_owned()),
        }
    }

    fn into_verdict(mut self) -> RuleSetVerdict {
        for list in [&mut self.refuse, &mut self.approve, &mut self.shadow, &mut self.failed] {
            list.sort_unstable();
        }
        let refusal = if !self.refuse.is_empty() {
            Some(RefusalReason::DeniedByRule(self.refuse))
        } else if !self.failed.is_empty() {
            Some(RefusalReason::RuleFailed(self.failed))
        } else if !self.approve.is_empty() {
            Some(RefusalReason::NeedsApproval(self.approve))
        } else {
            None
        };
        RuleSetVerdict { refusal, shadow: self.shadow }
    }
}

impl RuleError {
    /// The stable name of the error.
    pub const fn error_code(&self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::TooLong => "too_long",
            Self::Syntax(_) => "syntax",
            Self::Permits => "permits",
            Self::Invalid(_) => "does_not_fit",
            Self::Schema(_) => "schema",
        }
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleSet").field("modes", &self.modes).finish_non_exhaustive()
    }
}

fn rules_digest(rules: &[PolicyRule]) -> Sha256Digest {
    let mut rules: Vec<_> = rules.iter().collect();
    rules.sort_unstable_by_key(|rule| &rule.name);
    let lines = rules.iter().map(|rule| json!([rule.name, rule.mode.as_str(), rule.text]));
    Sha256Digest::of_json(&Value::Array(lines.collect()))
}

/// Reads one rule.
fn parse_rule(rule: &PolicyRule) -> Result<Policy, RuleError> {
    let named = (1..=60).contains(&rule.name.len())
        && rule.name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if !named {
        return Err(RuleError::Name);
    }
    if rule.text.len() > MAX_RULE_BYTES {
        return Err(RuleError::TooLong);
    }
    let policy = Policy::parse(Some(PolicyId::new(&rule.name)), &rule.text)
        .map_err(|error| RuleError::Syntax(format_error_chain(&error)))?;
    match policy.effect() {
        Effect::Forbid => Ok(policy),
        Effect::Permit => Err(RuleError::Permits),
    }
}

fn validate_rule(validator: &Validator, policy: &Policy) -> Result<(), RuleError> {
    let set = PolicySet::from_policies([policy.clone()])
        .map_err(|error| RuleError::Syntax(error.to_string()))?;
    let result = validator.validate(&set, ValidationMode::Strict);
    match result.validation_errors().next() {
        Some(error) => Err(RuleError::Invalid(error.to_string())),
        // A rule that can never apply is a rule that somebody misspelt.
        None => match result.validation_warnings().next() {
            Some(warning) => Err(RuleError::Invalid(warning.to_string())),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests;
