//! Which rules can apply to which tool and role, found out once. A rule whose head names another role, tool or server says
//! nothing about a call, so it need not be asked; and most calls are not spoken of by any rule.

use std::{
    collections::{BTreeSet, HashMap},
    str::FromStr,
    sync::Arc,
};

use cedar_policy::{
    ActionConstraint, Context, Entities, EntityId, EntityTypeName, EntityUid, Policy, PolicyId,
    PolicySet, PrincipalConstraint, Request, ResourceConstraint, RestrictedExpression,
};
use cynode_core::agents::AgentRole;
use serde_json::Value;

use super::{RuleError, cedar_schema::ArgumentShape};
use crate::{
    agents::AgentIdentity,
    catalogue::{CatalogueTool, ToolCatalogue, ToolOrigin},
    tool_names::ToolName,
};

/// Why a question cannot be put.
type CedarRequestError = Box<dyn std::error::Error>;

/// A rule, and what its head speaks of.
pub(super) struct RuleScope {
    policy: Policy,
    principal: PrincipalConstraint,
    action: ActionConstraint,
    resource: ResourceConstraint,
    reads_arguments: bool,
}

impl RuleScope {
    pub(super) fn from_policy(policy: Policy) -> Self {
        Self {
            principal: policy.principal_constraint(),
            action: policy.action_constraint(),
            resource: policy.resource_constraint(),
            reads_arguments: reads_arguments(&policy),
            policy,
        }
    }

    /// Whether the rule looks at the arguments of a call.
    pub(super) const fn reads_arguments(&self) -> bool {
        self.reads_arguments
    }

    /// The tools of the catalogue and the roles that the head speaks of.
    pub(super) fn list_subjects(
        &self,
        catalogue: &ToolCatalogue,
        groups: &Entities,
    ) -> Result<(Vec<ToolName>, Vec<AgentRole>), RuleError> {
        let wrong = |error: CedarRequestError| RuleError::Schema(error.to_string());
        let mut tools = Vec::new();
        let mut spoken_of = BTreeSet::new();
        for tool in catalogue.iter_tools() {
            let ToolRules { action, resource, .. } = ToolRules::new(tool).map_err(wrong)?;
            let mut fits = false;
            for role in AgentRole::ALL {
                let principal = entity_uid("Role", role.as_str()).map_err(wrong)?;
                if self.matches_scope(&principal, &action, &resource, groups) {
                    fits = true;
                    spoken_of.insert(role);
                }
            }
            if fits {
                tools.push(tool.definition.name.clone());
            }
        }
        Ok((tools, spoken_of.into_iter().collect()))
    }

    /// Whether the head fits, which is all that Cedar would look at if it did not.
    fn matches_scope(
        &self,
        principal: &EntityUid,
        action: &EntityUid,
        resource: &EntityUid,
        groups: &Entities,
    ) -> bool {
        let within =
            |one: &EntityUid, group: &EntityUid| one == group || groups.is_ancestor_of(group, one);
        let is = |one: &EntityUid, kind: &EntityTypeName| one.type_name() == kind;
        let principal = match &self.principal {
            PrincipalConstraint::Any => true,
            PrincipalConstraint::In(group) => within(principal, group),
            PrincipalConstraint::Eq(one) => principal == one,
            PrincipalConstraint::Is(kind) => is(principal, kind),
            PrincipalConstraint::IsIn(kind, group) => {
                is(principal, kind) && within(principal, group)
            }
        };
        let action = match &self.action {
            ActionConstraint::Any => true,
            ActionConstraint::In(list) => list.iter().any(|group| within(action, group)),
            ActionConstraint::Eq(one) => action == one,
        };
        let resource = match &self.resource {
            ResourceConstraint::Any => true,
            ResourceConstraint::In(group) => within(resource, group),
            ResourceConstraint::Eq(one) => resource == one,
            ResourceConstraint::Is(kind) => is(resource, kind),
            ResourceConstraint::IsIn(kind, group) => is(resource, kind) && within(resource, group),
        };
        principal && action && resource
    }
}

/// A tool, as the rules are asked about it.
pub(super) struct ToolRules {
    action: EntityUid,
    resource: EntityUid,
    /// What rules see of the tool itself.
    facts: RestrictedExpression,
    /// What they see of its arguments.
    shape: ArgumentShape,
    roles: HashMap<AgentRole, RoleRules>,
}

/// The rules that can apply when an agent of a role calls.
struct RoleRules {
    principal: EntityUid,
    /// Asked with the arguments of a call.
    all: Option<Arc<PolicySet>>,
    /// Asked when nothing but the tool is known: those that do not look at arguments.
    general: Option<Arc<PolicySet>>,
}

/// Every tool of the catalogue, with the rules that speak of it.
pub(super) fn index_rules_by_tool(
    heads: &[RuleScope],
    catalogue: &ToolCatalogue,
    groups: &Entities,
) -> Result<HashMap<ToolName, ToolRules>, RuleError> {
    let mut sets = PolicySetCache { heads, made: HashMap::new() };
    let wrong = |error: CedarRequestError| RuleError::Schema(error.to_string());
    let mut subjects = HashMap::new();
    for tool in catalogue.iter_tools() {
        let mut subject = ToolRules::new(tool).map_err(wrong)?;
        for role in AgentRole::ALL {
            let principal = entity_uid("Role", role.as_str()).map_err(wrong)?;
            let speaking: Vec<usize> = (0..heads.len())
                .filter(|&at| {
                    let ToolRules { action, resource, .. } = &subject;
                    heads[at].matches_scope(&principal, action, resource, groups)
                })
                .collect();
            let general: Vec<usize> =
                speaking.iter().copied().filter(|&at| !heads[at].reads_arguments).collect();
            let (all, general) = (sets.get_or_build(speaking)?, sets.get_or_build(general)?);
            subject.roles.insert(role, RoleRules { principal, all, general });
        }
        subjects.insert(tool.definition.name.clone(), subject);
    }
    Ok(subjects)
}

/// Sets of rules. Most tools and roles share one.
struct PolicySetCache<'a> {
    heads: &'a [RuleScope],
    made: HashMap<Vec<usize>, Arc<PolicySet>>,
}

impl PolicySetCache<'_> {
    /// The set of those rules, if there are any.
    fn get_or_build(&mut self, rules: Vec<usize>) -> Result<Option<Arc<PolicySet>>, RuleError> {
        if rules.is_empty() {
            return Ok(None);
        }
        if let Some(made) = self.made.get(&rules) {
            return Ok(Some(made.clone()));
        }
        let mut set = base_policy_set();
        for &at in &rules {
            set.add(self.heads[at].policy.clone())
                .map_err(|error| RuleError::Syntax(error.to_string()))?;
        }
        let set = Arc::new(set);
        self.made.insert(rules, set.clone());
        Ok(Some(set))
    }
}

impl ToolRules {
    fn new(tool: &CatalogueTool) -> Result<Self, CedarRequestError> {
        let annotations = &tool.definition.annotations;
        let facts = [
            ("read_only", annotations.read_only),
            ("destructive", annotations.destructive),
            ("open_world", annotations.open_world),
        ];
        Ok(Self {
            action: entity_uid("Action", tool.definition.name.as_str())?,
            resource: match &tool.definition.origin {
                ToolOrigin::Native => entity_uid("Server", "native")?,
                ToolOrigin::Server { id, .. } => entity_uid("Server", &id.to_string())?,
            },
            facts: record_expression(
                facts.map(|(name, flag)| (name, RestrictedExpression::new_bool(flag))),
            )?,
            shape: ArgumentShape::from_schema(&tool.definition.input),
            roles: HashMap::new(),
        })
    }

    /// Whether a rule that looks at arguments speaks of calls of an agent of that role.
    pub(super) fn depends_on_arguments(&self, role: AgentRole) -> bool {
        let count = |set: Option<&Arc<PolicySet>>| set.map_or(0, |set| set.policies().count());
        let asked = self.roles.get(&role);
        asked.is_some_and(|asked| count(asked.all.as_ref()) != count(asked.general.as_ref()))
    }

    /// The question to Cedar about a call, or about the tool whatever the arguments, and the rules to put it to; none when no
    /// rule speaks of it.
    pub(super) fn build_cedar_request(
        &self,
        agent: &AgentIdentity,
        arguments: Option<&Value>,
    ) -> Result<Option<(Request, &PolicySet)>, CedarRequestError> {
        let asked = self.roles.get(&agent.role).ok_or("a role that nobody knows")?;
        let set = if arguments.is_some() { &asked.all } else { &asked.general };
        let Some(set) = set else { return Ok(None) };
        // An argument that a rule could ask for and that cannot be shown to it must not slip past it.
        let shown = match arguments {
            Some(arguments) => {
                let shown = self.shape.to_expression(arguments);
                Some(shown.ok_or("an argument cannot be shown to the rules")?)
            }
            None => None,
        };
        let facts = [
            ("agent".to_owned(), caller_attributes(agent)?),
            ("tool".to_owned(), self.facts.clone()),
        ];
        let shown = shown.map(|shown| ("arguments".to_owned(), shown));
        let context = Context::from_pairs(facts.into_iter().chain(shown))?;
        let (principal, action, resource) =
            (asked.principal.clone(), self.action.clone(), self.resource.clone());
        Ok(Some((Request::new(principal, action, resource, context, None)?, set)))
    }
}

/// What rules see of the caller.
fn caller_attributes(agent: &AgentIdentity) -> Result<RestrictedExpression, CedarRequestError> {
    let text = RestrictedExpression::new_string;
    let id = |id: Option<String>| text(id.unwrap_or_default());
    record_expression([
        ("kind", text(agent.agent_kind().as_str().to_owned())),
        ("user", id(agent.user.map(|id| id.to_string()))),
        ("project", id(agent.project.map(|id| id.to_string()))),
        ("task", id(agent.task.map(|id| id.to_string()))),
        ("handoff", id(agent.handoff.map(|kind| kind.as_str().to_owned()))),
        ("profile", text(agent.profile.name.to_string())),
        ("network", RestrictedExpression::new_bool(agent.profile.network())),
    ])
}

fn record_expression<const N: usize>(
    fields: [(&str, RestrictedExpression); N],
) -> Result<RestrictedExpression, CedarRequestError> {
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    Ok(RestrictedExpression::new_record(fields)?)
}

/// The permission that rules take away from: whoever comes here has passed the gate.
fn base_policy_set() -> PolicySet {
    let mut set = PolicySet::new();
    if let Ok(permit) = Policy::from_str("permit (principal, action, resource);") {
        // Without it everything is refused, so a failure here would be safe.
        let _ = set.add(permit.new_id(PolicyId::new("*")));
    }
    set
}

fn entity_uid(kind: &str, id: &str) -> Result<EntityUid, CedarRequestError> {
    Ok(EntityUid::from_type_name_and_id(kind.parse()?, EntityId::new(id)))
}

/// Whether a rule looks at the arguments of a call. Asked about a tool as such, it has no say.
fn reads_arguments(policy: &Policy) -> bool {
    policy.to_json().map_or(true, |json| mentions_attribute(&json, &["arguments"]))
}

/// Whether a rule, or a part of one, as JSON looks at an attribute of one of these names.
pub(super) fn mentions_attribute(value: &Value, names: &[&str]) -> bool {
    let is_named = |value: &Value| value.as_str().is_some_and(|text| names.contains(&text));
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| match key.as_str() {
            // The attribute of `.` and of `has`, whatever it is an attribute of: rather too often than too seldom.
            "attr" => is_named(value) || mentions_attribute(value, names),
            _ => mentions_attribute(value, names),
        }),
        Value::Array(items) => {
            items.iter().any(|item| is_named(item) || mentions_attribute(item, names))
        }
        _ => false,
    }
}
