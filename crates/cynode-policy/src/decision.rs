//! The decision: a pure function of who calls, what there is, and what is called.

use std::sync::Arc;

use cynode_core::agents::AgentKind;
use serde_json::{Map, Value};

use crate::{
    agents::AgentIdentity,
    allowlists::{self, AllowlistVerdict, EnabledSwitches},
    catalogue::{CatalogueTool, DefinitionPin, ToolAudience, ToolCatalogue, ToolOrigin},
    digest::Sha256Digest,
    reasons::RefusalReason,
    rules::{RuleSet, RuleSetVerdict},
};

/// Namespace of the tools for the memory of a project.
const MEMORY_NAMESPACE: &str = "memory";

/// Most bytes of arguments of a native tool whose decision is always cheap.
const MAX_TRUSTED_BYTES: usize = 64 * 1024;

/// Everything a decision depends on, beside the caller and the call. A changed gate is a new one.
#[derive(Clone, Debug)]
pub struct PolicySnapshot {
    /// The tools.
    pub catalogue: ToolCatalogue,
    /// The rules of people.
    pub rules: RuleSet,
    /// The settings that allowlists ask for.
    pub switches: EnabledSwitches,
    policy: Sha256Digest,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    /// The tool, by the name on the wire or the dotted one.
    pub tool: &'a str,
    /// The arguments: an object.
    pub arguments: &'a Value,
}

/// What the gate says.
#[derive(Clone, Debug)]
pub struct PolicyDecision {
    /// The tool, if the caller may know that there is one.
    pub tool: Option<Arc<CatalogueTool>>,
    /// Why not; `None` is the yes.
    pub refusal: Option<RefusalReason>,
    /// Rules on trial that would have refused.
    pub shadow: Vec<String>,
    /// The arguments with the ids that the caller left out and that its token has; `None` when nothing was filled in.
    pub filled: Option<Value>,
}

impl PolicyDecision {
    /// A no without a tool.
    pub const fn from_refusal(reason: RefusalReason) -> Self {
        Self { tool: None, refusal: Some(reason), shadow: Vec::new(), filled: None }
    }
}

impl PolicySnapshot {
    /// Puts the parts together.
    pub fn new(catalogue: ToolCatalogue, rules: RuleSet, switches: EnabledSwitches) -> Self {
        let lists =
            format!("{:?}", cynode_core::agents::AgentRole::ALL.map(allowlists::allowlist_of));
        let policy = Sha256Digest::of_bytes(
            format!("{lists}\n{switches:?}\n{}", rules.version_digest()).as_bytes(),
        );
        Self { catalogue, rules, switches, policy }
    }

    /// Whether a call of that tool, with a JSON text of that many bytes, is decided in so short a time that nobody has to wait for it.
    pub fn validates_cheaply(&self, tool: &str, bytes: usize) -> bool {
        let Some(tool) = self.catalogue.find_by_wire_name(tool) else { return true };
        // Our own schemas are no attack.
        let trusted = tool.definition.origin == ToolOrigin::Native && bytes <= MAX_TRUSTED_BYTES;
        trusted || tool.arguments.is_cheap_for(bytes)
    }

    /// Names the policy: allowlists, settings and rules. It is in every record.
    pub const fn policy_digest(&self) -> Sha256Digest {
        self.policy
    }
}

/// Decides a call. The order of the questions is fixed, and each can only refuse.
pub fn decide(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    call: CallRequest<'_>,
) -> PolicyDecision {
    if !agent.profile.is_known() {
        return PolicyDecision::from_refusal(RefusalReason::UnknownProfile);
    }
    let tool = match find_visible_tool(agent, gate, call.tool) {
        Ok(tool) => tool,
        Err(reason) => return PolicyDecision::from_refusal(reason),
    };
    let filled = fill_ids(agent, &tool, call.arguments);
    let arguments = filled.as_ref().unwrap_or(call.arguments);
    let natively = check_static_policy(agent, gate, &tool)
        .and_then(|()| check_id_binding(agent, &tool, arguments))
        .and_then(|()| match tool.arguments.find_violation(arguments) {
            Some(complaint) => Err(RefusalReason::InvalidArguments(complaint)),
            None => Ok(()),
        });
    let (refusal, shadow) = match natively {
        Err(reason) => (Some(reason), Vec::new()),
        Ok(()) => split_verdict(gate.rules.evaluate_rules(agent, &tool, Some(arguments))),
    };
    PolicyDecision { tool: Some(tool), refusal, shadow, filled }
}

/// Decides a call whose arguments are not known. Questions that depend on them are left out.
pub fn decide_without_arguments(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    tool: &str,
) -> PolicyDecision {
    if !agent.profile.is_known() {
        return PolicyDecision::from_refusal(RefusalReason::UnknownProfile);
    }
    let tool = match find_visible_tool(agent, gate, tool) {
        Ok(tool) => tool,
        Err(reason) => return PolicyDecision::from_refusal(reason),
    };
    let natively = check_static_policy(agent, gate, &tool).and_then(|()| {
        let mut bound_to = tool.definition.binding.id_arguments();
        bound_to.try_for_each(|name| require_token_id(agent, name))
    });
    let (refusal, shadow) = match natively {
        Err(reason) => (Some(reason), Vec::new()),
        Ok(()) => split_verdict(gate.rules.evaluate_rules(agent, &tool, None)),
    };
    PolicyDecision { tool: Some(tool), refusal, shadow, filled: None }
}

/// Whether the tool is open to the caller at all, whatever the arguments: the decision behind `tools/list`.
pub fn check_tool_access(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    tool: &Arc<CatalogueTool>,
) -> Result<(), RefusalReason> {
    if !agent.profile.is_known() {
        return Err(RefusalReason::UnknownProfile);
    }
    if !is_visible_to(agent, tool) {
        return Err(RefusalReason::UnknownTool);
    }
    check_definition_pin(tool)?;
    check_static_policy(agent, gate, tool)?;
    for name in tool.definition.binding.id_arguments() {
        require_token_id(agent, name)?;
    }
    match gate.rules.evaluate_rules(agent, tool, None) {
        // With a person's yes it can be called.
        RuleSetVerdict { refusal: Some(RefusalReason::NeedsApproval(_)) | None, .. } => Ok(()),
        RuleSetVerdict { refusal: Some(reason), .. } => Err(reason),
    }
}

/// The tools that are open to the caller, by name.
pub fn list_permitted_tools<'a>(
    agent: &AgentIdentity,
    gate: &'a PolicySnapshot,
) -> Vec<&'a Arc<CatalogueTool>> {
    gate.catalogue
        .iter_tools()
        .filter(|tool| check_tool_access(agent, gate, tool).is_ok())
        .collect()
}

fn split_verdict(ruling: RuleSetVerdict) -> (Option<RefusalReason>, Vec<String>) {
    (ruling.refusal, ruling.shadow)
}

/// The tool, if there is one for this caller, with the definition that was accepted.
fn find_visible_tool(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    name: &str,
) -> Result<Arc<CatalogueTool>, RefusalReason> {
    let tool = gate.catalogue.find_by_wire_name(name).filter(|tool| is_visible_to(agent, tool));
    let tool = tool.ok_or(RefusalReason::UnknownTool)?;
    check_definition_pin(tool)?;
    Ok(tool.clone())
}

/// Somebody else's tool does not exist for the caller.
fn is_visible_to(agent: &AgentIdentity, tool: &CatalogueTool) -> bool {
    match &tool.definition.origin {
        ToolOrigin::Native => true,
        ToolOrigin::Server { audience, .. } => match audience {
            ToolAudience::Everybody => true,
            ToolAudience::Project(project) => agent.project == Some(*project),
            ToolAudience::User(user) => agent.user == Some(*user),
        },
    }
}

fn check_definition_pin(tool: &CatalogueTool) -> Result<(), RefusalReason> {
    match tool.pin {
        DefinitionPin::Accepted => Ok(()),
        DefinitionPin::Quarantined => Err(RefusalReason::DefinitionChanged),
    }
}

/// What does not depend on the arguments: switch, scope, lists, profile, person.
fn check_static_policy(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    tool: &CatalogueTool,
) -> Result<(), RefusalReason> {
    if !tool.enabled {
        return Err(RefusalReason::Disabled);
    }
    if !tool.scope.allows_kind(agent.agent_kind()) {
        return Err(RefusalReason::WrongScope(tool.scope));
    }
    check_tool_allowlisted(agent, gate, tool)?;
    check_profile(agent, tool)?;
    // Our own operations ask for the person's role themselves. What reaches beyond them asks nobody else.
    let beyond = tool.definition.network || tool.definition.origin != ToolOrigin::Native;
    if beyond && !agent.operates {
        return Err(RefusalReason::UserLacksPermission);
    }
    Ok(())
}

/// What the profile does not name is not there.
fn check_profile(agent: &AgentIdentity, tool: &CatalogueTool) -> Result<(), RefusalReason> {
    let (profile, definition) = (&agent.profile, &tool.definition);
    let name = definition.name.as_str();
    // Native tools for the memory of the project depend on the access to it.
    let in_memory =
        definition.origin == ToolOrigin::Native && definition.name.namespace() == MEMORY_NAMESPACE;
    let reads = definition.annotations.read_only;
    let has_memory = if reads { profile.spec.reads_memory() } else { profile.spec.writes_memory() };
    if !profile.spec.allows_tool(name) || (in_memory && !has_memory) {
        return Err(RefusalReason::NotInProfile(profile.name.clone()));
    }
    if definition.network && !profile.network() {
        return Err(RefusalReason::NetworkDenied);
    }
    // Nothing checks the requests of a server against the profile: who means its tools names them.
    let foreign = definition.origin != ToolOrigin::Native;
    if definition.network && foreign && !profile.spec.names_tool(name) {
        return Err(RefusalReason::NotInProfile(profile.name.clone()));
    }
    Ok(())
}

fn check_tool_allowlisted(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    tool: &CatalogueTool,
) -> Result<(), RefusalReason> {
    let name = &tool.definition.name;
    match &tool.definition.origin {
        ToolOrigin::Native => match allowlists::check_allowlist(agent.role, name, gate.switches) {
            AllowlistVerdict::Yes => {}
            AllowlistVerdict::No => return Err(RefusalReason::NotAllowlisted(agent.role)),
            AllowlistVerdict::Off(switch) => {
                return Err(RefusalReason::DisabledBySetting(switch.setting_key()));
            }
        },
        // Whoever installed it chose the scope and the audience; the installation's own programs have no use for it.
        ToolOrigin::Server { .. } if agent.agent_kind().is_service_program() => {
            return Err(RefusalReason::NotAllowlisted(agent.role));
        }
        ToolOrigin::Server { .. } => {}
    }
    match &agent.tools {
        Some(tools) if !tools.contains(name) => Err(RefusalReason::NotGrantedByToken),
        Some(_) | None => Ok(()),
    }
}

/// The ids of the call against those of the token. Ids are compared as text: there is one way to write each.
fn check_id_binding(
    agent: &AgentIdentity,
    tool: &CatalogueTool,
    arguments: &Value,
) -> Result<(), RefusalReason> {
    let Some(arguments) = arguments.as_object() else {
        return Err(RefusalReason::InvalidArguments("the arguments are not an object".into()));
    };
    for name in tool.definition.binding.id_arguments() {
        if arguments.get(name).is_none_or(Value::is_null) {
            return Err(RefusalReason::MissingId(name));
        }
        check_id_matches(agent, name, arguments)?;
    }
    // Our own tools mean the same by these names wherever they appear; a foreign tool may mean anything.
    if tool.definition.origin == ToolOrigin::Native {
        for name in BINDING_ID_ARGUMENTS {
            check_id_matches(agent, name, arguments)?;
        }
        let claimed = arguments.get("agent_role").or_else(|| arguments.get("agentRole"));
        if claimed.is_some_and(|claimed| claimed != agent.role.as_str()) {
            return Err(RefusalReason::WrongRole);
        }
    }
    Ok(())
}

/// The ids that a call may carry.
const BINDING_ID_ARGUMENTS: [&str; 4] = ["task_id", "run_id", "job_id", "project_id"];

/// The ids that a tool asks for and that the caller's token has: the caller may leave them out. A foreign tool may mean anything by them.
pub fn optional_ids(agent: &AgentIdentity, tool: &CatalogueTool) -> Vec<&'static str> {
    if tool.definition.origin != ToolOrigin::Native {
        return Vec::new();
    }
    let asked = |name: &&str| tool.definition.requires_argument(name);
    BINDING_ID_ARGUMENTS
        .into_iter()
        .filter(asked)
        .filter(|name| token_id(agent, name).is_some())
        .collect()
}

/// The arguments with the ids of the token for those that were left out; `None` when none was.
fn fill_ids(agent: &AgentIdentity, tool: &CatalogueTool, arguments: &Value) -> Option<Value> {
    let given = arguments.as_object()?;
    let absent = |name: &&str| given.get(*name).is_none_or(Value::is_null);
    let absent: Vec<_> = optional_ids(agent, tool).into_iter().filter(absent).collect();
    if absent.is_empty() {
        return None;
    }
    let mut filled = given.clone();
    for name in absent {
        if let Some(id) = token_id(agent, name) {
            filled.insert(name.to_owned(), Value::String(id));
        }
    }
    Some(Value::Object(filled))
}

/// What the token says for the argument of that name.
fn token_id(agent: &AgentIdentity, name: &str) -> Option<String> {
    match name {
        "task_id" => agent.task.map(|id| id.to_string()),
        "run_id" => agent.run.map(|id| id.to_string()),
        "job_id" => agent.job.map(|id| id.to_string()),
        "project_id" => agent.project.map(|id| id.to_string()),
        _ => None,
    }
}

/// Whether the token is for one at all. The manager and the runner work on many tasks: which of them is theirs is for the
/// operation to say, by project and by lease.
fn require_token_id(agent: &AgentIdentity, name: &'static str) -> Result<(), RefusalReason> {
    match agent.agent_kind() {
        AgentKind::Pm | AgentKind::Runner | AgentKind::Host => Ok(()),
        AgentKind::Pa | AgentKind::Sandbox => match token_id(agent, name) {
            Some(_) => Ok(()),
            None => Err(RefusalReason::UnboundToken(name)),
        },
    }
}

fn check_id_matches(
    agent: &AgentIdentity,
    name: &'static str,
    arguments: &Map<String, Value>,
) -> Result<(), RefusalReason> {
    match (arguments.get(name), token_id(agent, name)) {
        (Some(Value::Null) | None, _) => Ok(()),
        (Some(_), None) => require_token_id(agent, name),
        (Some(Value::String(given)), Some(own)) if *given == own => Ok(()),
        (Some(_), Some(_)) => Err(RefusalReason::WrongId(name)),
    }
}

#[cfg(test)]
mod tests;
