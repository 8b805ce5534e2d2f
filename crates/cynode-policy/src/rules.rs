//! Rules that people write, in Cedar. They are asked after everything else and can only refuse.
//!
//! A rule is one `forbid`. It is checked against a schema made from the catalogue before it is taken, so that a rule that
//! misspells an argument is refused when it is written and not ignored when it matters. A rule that cannot be decided refuses.

mod cedar_schema;

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use cedar_policy::{
    Authorizer, Context, Effect, Entities, EntityUid, Policy, PolicyId, PolicySet, Request, Schema,
    ValidationMode, Validator,
};
use cynode_core::causes::told;
use serde_json::{Value, json};

use crate::{
    agents::Agent,
    catalogue::{Catalogue, Origin, Tool},
    digest::Digest,
    reasons::Reason,
};

/// What a rule does when it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The call is refused.
    Refuse,
    /// The call waits for a person's approval.
    Approve,
    /// Only noted: the rule is on trial. It never changes a decision.
    Shadow,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Approve, Self::Shadow];

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
pub struct Rule {
    /// What it is called: it is in records and answers.
    pub name: String,
    /// What it does.
    pub mode: Mode,
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
    #[error("a rule has at most {MOST_BYTES} bytes")]
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
pub const MOST_BYTES: usize = 16 * 1024;

/// Rules that were checked against a catalogue.
#[derive(Clone)]
pub struct RuleSet {
    /// Asked with the arguments of a call.
    all: Arc<PolicySet>,
    /// Asked when nothing but the tool is known: those that do not look at arguments.
    general: Arc<PolicySet>,
    modes: Arc<BTreeMap<String, Mode>>,
    /// The rule that could not be loaded; while there is one, everything is refused.
    broken: Option<Arc<str>>,
    schema: Option<Arc<Schema>>,
    /// Which tools are in which groups.
    groups: Arc<Entities>,
    version: Digest,
}

/// What the rules say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruling {
    /// Why not.
    pub refusal: Option<Reason>,
    /// Rules on trial that would have refused.
    pub shadow: Vec<String>,
}

impl RuleSet {
    /// No rules.
    pub fn none() -> Self {
        Self {
            all: Arc::default(),
            general: Arc::default(),
            modes: Arc::default(),
            broken: None,
            schema: None,
            groups: Arc::new(Entities::empty()),
            version: Digest::of(b""),
        }
    }

    /// What stands in for rules that cannot be loaded: it refuses everything.
    pub fn broken(rule: String) -> Self {
        let version = Digest::of(format!("broken {rule}").as_bytes());
        Self { broken: Some(rule.into()), version, ..Self::none() }
    }

    /// Checks every rule against the catalogue. One bad rule, and none is taken.
    pub fn load(rules: &[Rule], catalogue: &Catalogue) -> Result<Self, (String, RuleError)> {
        if rules.is_empty() {
            return Ok(Self::none());
        }
        let wrong = |error| (String::new(), error);
        let schema = cedar_schema::of(catalogue).map_err(RuleError::Schema).map_err(wrong)?;
        let groups = schema.action_entities();
        let groups = groups.map_err(|error| wrong(RuleError::Schema(error.to_string())))?;
        let (groups, kept) = (Arc::new(groups), Some(Arc::new(schema.clone())));
        let mut set = Self { schema: kept, groups, ..Self::none() };
        let validator = Validator::new(schema);
        let (mut all, mut general) = (base(), base());
        let mut modes = BTreeMap::new();
        for rule in rules {
            let wrong = |error| (rule.name.clone(), error);
            let policy = read(rule).map_err(wrong)?;
            if modes.insert(rule.name.clone(), rule.mode).is_some() {
                return Err(wrong(RuleError::Name));
            }
            validate(&validator, &policy).map_err(wrong)?;
            if !reads_arguments(&policy) {
                add(&mut general, policy.clone()).map_err(wrong)?;
            }
            add(&mut all, policy).map_err(wrong)?;
        }
        (set.all, set.general, set.modes) = (Arc::new(all), Arc::new(general), Arc::new(modes));
        set.version = version(rules);
        Ok(set)
    }

    /// Names these rules.
    pub const fn version(&self) -> Digest {
        self.version
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }

    /// Asks the rules about a call, or about the tool whatever the arguments.
    pub fn ask(&self, agent: &Agent, tool: &Tool, arguments: Option<&Value>) -> Ruling {
        if let Some(rule) = &self.broken {
            let refusal = Some(Reason::RuleFailed(vec![rule.to_string()]));
            return Ruling { refusal, shadow: Vec::new() };
        }
        if self.is_empty() {
            return Ruling::default();
        }
        let policies = if arguments.is_some() { &self.all } else { &self.general };
        let Ok(request) = request(agent, tool, arguments) else {
            // What cannot be asked is not answered with yes.
            return Ruling { refusal: Some(Reason::RuleFailed(Vec::new())), shadow: Vec::new() };
        };
        let response = Authorizer::new().is_authorized(&request, policies, &self.groups);
        let mut ruling = Sorted::default();
        for id in response.diagnostics().reason() {
            ruling.applies(id.as_ref(), &self.modes);
        }
        for error in response.diagnostics().errors() {
            let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
            ruling.fails(error.policy_id().as_ref(), &self.modes);
        }
        ruling.ruling()
    }

    /// What the schema for rules looks like, for whoever writes one.
    pub fn schema(&self) -> Option<&Schema> {
        self.schema.as_deref()
    }
}

/// The question to Cedar.
fn request(
    agent: &Agent,
    tool: &Tool,
    arguments: Option<&Value>,
) -> Result<Request, Box<dyn std::error::Error>> {
    let principal = uid("Role", agent.role.as_str())?;
    let action = uid("Action", tool.definition.name.as_str())?;
    let resource = match &tool.definition.origin {
        Origin::Native => uid("Server", "native")?,
        Origin::Server { id, .. } => uid("Server", &id.to_string())?,
    };
    let id = |id: Option<String>| id.unwrap_or_default();
    let mut context = json!({
        "agent": {
            "kind": agent.kind().as_str(),
            "user": id(agent.user.map(|id| id.to_string())),
            "project": id(agent.project.map(|id| id.to_string())),
            "task": id(agent.task.map(|id| id.to_string())),
            "profile": &*agent.profile.name,
            "network": agent.profile.network,
        },
        "tool": {
            "read_only": tool.definition.annotations.read_only,
            "destructive": tool.definition.annotations.destructive,
            "open_world": tool.definition.annotations.open_world,
        },
    });
    if let Some(arguments) = arguments {
        // An argument that a rule could ask for and that cannot be shown to it must not slip past it.
        let readable = cedar_schema::readable(&tool.definition.input, arguments);
        context["arguments"] = readable.ok_or("an argument cannot be shown to the rules")?;
    }
    let context = Context::from_json_value(context, None)?;
    Ok(Request::new(principal, action, resource, context, None)?)
}

/// The rules that applied or failed, by what they do.
#[derive(Default)]
struct Sorted {
    refuse: Vec<String>,
    approve: Vec<String>,
    shadow: Vec<String>,
    failed: Vec<String>,
}

impl Sorted {
    fn applies(&mut self, name: &str, modes: &BTreeMap<String, Mode>) {
        let list = match modes.get(name) {
            Some(Mode::Refuse) => &mut self.refuse,
            Some(Mode::Approve) => &mut self.approve,
            Some(Mode::Shadow) => &mut self.shadow,
            // The permission that all rules take away from.
            None => return,
        };
        list.push(name.to_owned());
    }

    fn fails(&mut self, name: &str, modes: &BTreeMap<String, Mode>) {
        match modes.get(name) {
            Some(Mode::Shadow) => self.shadow.push(name.to_owned()),
            Some(Mode::Refuse | Mode::Approve) | None => self.failed.push(name.to_owned()),
        }
    }

    fn ruling(mut self) -> Ruling {
        for list in [&mut self.refuse, &mut self.approve, &mut self.shadow, &mut self.failed] {
            list.sort_unstable();
        }
        let refusal = if !self.refuse.is_empty() {
            Some(Reason::Rule(self.refuse))
        } else if !self.failed.is_empty() {
            Some(Reason::RuleFailed(self.failed))
        } else if !self.approve.is_empty() {
            Some(Reason::NeedsApproval(self.approve))
        } else {
            None
        };
        Ruling { refusal, shadow: self.shadow }
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleSet").field("modes", &self.modes).finish_non_exhaustive()
    }
}

/// The permission that rules take away from: whoever comes here has passed the gate.
fn base() -> PolicySet {
    let mut set = PolicySet::new();
    if let Ok(permit) = Policy::from_str("permit (principal, action, resource);") {
        // Without it everything is refused, so a failure here would be safe.
        let _ = set.add(permit.new_id(PolicyId::new("*")));
    }
    set
}

fn add(set: &mut PolicySet, policy: Policy) -> Result<(), RuleError> {
    set.add(policy).map_err(|error| RuleError::Syntax(error.to_string()))
}

fn uid(kind: &str, id: &str) -> Result<EntityUid, Box<dyn std::error::Error>> {
    Ok(EntityUid::from_type_name_and_id(kind.parse()?, cedar_policy::EntityId::new(id)))
}

fn version(rules: &[Rule]) -> Digest {
    let mut rules: Vec<_> = rules.iter().collect();
    rules.sort_unstable_by_key(|rule| &rule.name);
    let lines = rules.iter().map(|rule| json!([rule.name, rule.mode.as_str(), rule.text]));
    Digest::of_json(&Value::Array(lines.collect()))
}

/// Reads one rule.
fn read(rule: &Rule) -> Result<Policy, RuleError> {
    let named = (1..=60).contains(&rule.name.len())
        && rule.name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if !named {
        return Err(RuleError::Name);
    }
    if rule.text.len() > MOST_BYTES {
        return Err(RuleError::TooLong);
    }
    let policy = Policy::parse(Some(PolicyId::new(&rule.name)), &rule.text)
        .map_err(|error| RuleError::Syntax(told(&error)))?;
    match policy.effect() {
        Effect::Forbid => Ok(policy),
        Effect::Permit => Err(RuleError::Permits),
    }
}

fn validate(validator: &Validator, policy: &Policy) -> Result<(), RuleError> {
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

/// Whether a rule looks at the arguments of a call. Asked about a tool as such, it has no say.
fn reads_arguments(policy: &Policy) -> bool {
    fn mentions(value: &Value) -> bool {
        match value {
            Value::Object(map) => map.iter().any(|(key, value)| match key.as_str() {
                // The attribute of `.` and of `has`, whatever it is an attribute of: rather too often than too seldom.
                "attr" => value == "arguments" || mentions(value),
                _ => mentions(value),
            }),
            Value::Array(items) => items.iter().any(|item| item == "arguments" || mentions(item)),
            _ => false,
        }
    }
    policy.to_json().map_or(true, |json| mentions(&json))
}

#[cfg(test)]
mod tests;
