//! The decision: a pure function of who calls, what there is, and what is called.

use std::sync::Arc;

use cynode_core::agents::AgentKind;
use serde_json::{Map, Value};

use crate::{
    agents::Agent,
    allowlists::{self, Listed, Switches},
    catalogue::{Audience, Catalogue, Origin, Pin, Tool},
    digest::Digest,
    reasons::Reason,
    rules::{RuleSet, Ruling},
};

/// Everything a decision depends on, beside the caller and the call. A changed gate is a new one.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The tools.
    pub catalogue: Catalogue,
    /// The rules of people.
    pub rules: RuleSet,
    /// The settings that allowlists ask for.
    pub switches: Switches,
    policy: Digest,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The tool, by the name on the wire or the dotted one.
    pub tool: &'a str,
    /// The arguments: an object.
    pub arguments: &'a Value,
}

/// What the gate says.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The tool, if the caller may know that there is one.
    pub tool: Option<Arc<Tool>>,
    /// Why not; `None` is the yes.
    pub refusal: Option<Reason>,
    /// Rules on trial that would have refused.
    pub shadow: Vec<String>,
}

impl Gate {
    /// Puts the parts together.
    pub fn new(catalogue: Catalogue, rules: RuleSet, switches: Switches) -> Self {
        let lists = format!("{:?}", cynode_core::agents::AgentRole::ALL.map(allowlists::of));
        let policy = Digest::of(format!("{lists}\n{switches:?}\n{}", rules.version()).as_bytes());
        Self { catalogue, rules, switches, policy }
    }

    /// Names the policy: allowlists, settings and rules. It is in every record.
    pub const fn policy(&self) -> Digest {
        self.policy
    }
}

/// Decides a call. The order of the questions is fixed, and each can only refuse.
pub fn decide(agent: &Agent, gate: &Gate, call: Call<'_>) -> Decision {
    let tool = match known(agent, gate, call.tool) {
        Ok(tool) => tool,
        Err(reason) => return Decision { tool: None, refusal: Some(reason), shadow: Vec::new() },
    };
    let natively = standing(agent, gate, &tool)
        .and_then(|()| bound(agent, &tool, call.arguments))
        .and_then(|()| match tool.arguments.complaint(call.arguments) {
            Some(complaint) => Err(Reason::InvalidArguments(complaint)),
            None => Ok(()),
        });
    let (refusal, shadow) = match natively {
        Err(reason) => (Some(reason), Vec::new()),
        Ok(()) => ruled(gate.rules.ask(agent, &tool, Some(call.arguments))),
    };
    Decision { tool: Some(tool), refusal, shadow }
}

/// Whether the tool is open to the caller at all, whatever the arguments: the decision behind `tools/list`.
pub fn open_to(agent: &Agent, gate: &Gate, tool: &Arc<Tool>) -> Result<(), Reason> {
    if !seen_by(agent, tool) {
        return Err(Reason::UnknownTool);
    }
    unchanged(tool)?;
    standing(agent, gate, tool)?;
    for name in tool.definition.binding.arguments() {
        holds(agent, name)?;
    }
    match gate.rules.ask(agent, tool, None) {
        // With a person's yes it can be called.
        Ruling { refusal: Some(Reason::NeedsApproval(_)) | None, .. } => Ok(()),
        Ruling { refusal: Some(reason), .. } => Err(reason),
    }
}

/// The tools that are open to the caller, by name.
pub fn list<'a>(agent: &Agent, gate: &'a Gate) -> Vec<&'a Arc<Tool>> {
    gate.catalogue.tools().filter(|tool| open_to(agent, gate, tool).is_ok()).collect()
}

fn ruled(ruling: Ruling) -> (Option<Reason>, Vec<String>) {
    (ruling.refusal, ruling.shadow)
}

/// The tool, if there is one for this caller, with the definition that was accepted.
fn known(agent: &Agent, gate: &Gate, name: &str) -> Result<Arc<Tool>, Reason> {
    let tool = gate.catalogue.on_the_wire(name).filter(|tool| seen_by(agent, tool));
    let tool = tool.ok_or(Reason::UnknownTool)?;
    unchanged(tool)?;
    Ok(tool.clone())
}

/// Somebody else's tool does not exist for the caller.
fn seen_by(agent: &Agent, tool: &Tool) -> bool {
    match &tool.definition.origin {
        Origin::Native => true,
        Origin::Server { audience, .. } => match audience {
            Audience::Everybody => true,
            Audience::Project(project) => agent.project == Some(*project),
            Audience::User(user) => agent.user == Some(*user),
        },
    }
}

fn unchanged(tool: &Tool) -> Result<(), Reason> {
    match tool.pin {
        Pin::Accepted => Ok(()),
        Pin::Quarantined => Err(Reason::DefinitionChanged),
    }
}

/// What does not depend on the arguments: switch, scope, lists, profile, person.
fn standing(agent: &Agent, gate: &Gate, tool: &Tool) -> Result<(), Reason> {
    if !tool.enabled {
        return Err(Reason::Disabled);
    }
    if let Some(why) = tool.definition.missing {
        return Err(Reason::Unavailable(why));
    }
    if !tool.scope.admits(agent.kind()) {
        return Err(Reason::WrongScope(tool.scope));
    }
    listed(agent, gate, tool)?;
    if tool.definition.network && !agent.profile.network {
        return Err(Reason::NoNetwork);
    }
    // Our own operations ask for the person's role themselves. What reaches beyond them asks nobody else.
    let beyond = tool.definition.network || tool.definition.origin != Origin::Native;
    if beyond && !agent.operates {
        return Err(Reason::PersonMayNot);
    }
    Ok(())
}

fn listed(agent: &Agent, gate: &Gate, tool: &Tool) -> Result<(), Reason> {
    let name = &tool.definition.name;
    match &tool.definition.origin {
        Origin::Native => match allowlists::listed(agent.role, name, gate.switches) {
            Listed::Yes => {}
            Listed::No => return Err(Reason::NotListed(agent.role)),
            Listed::Off(switch) => return Err(Reason::SettingOff(switch.key())),
        },
        // Whoever installed it chose the scope and the audience; the installation's own programs have no use for it.
        Origin::Server { .. } if agent.kind().is_program() => {
            return Err(Reason::NotListed(agent.role));
        }
        Origin::Server { .. } => {}
    }
    match &agent.tools {
        Some(tools) if !tools.contains(name) => Err(Reason::NotInToken),
        Some(_) | None => Ok(()),
    }
}

/// The ids of the call against those of the token. Ids are compared as text: there is one way to write each.
fn bound(agent: &Agent, tool: &Tool, arguments: &Value) -> Result<(), Reason> {
    let Some(arguments) = arguments.as_object() else {
        return Err(Reason::InvalidArguments("the arguments are not an object".into()));
    };
    for name in tool.definition.binding.arguments() {
        if arguments.get(name).is_none_or(Value::is_null) {
            return Err(Reason::MissingId(name));
        }
        equal(agent, name, arguments)?;
    }
    // Our own tools mean the same by these names wherever they appear; a foreign tool may mean anything.
    if tool.definition.origin == Origin::Native {
        for name in ["task_id", "run_id", "job_id", "project_id"] {
            equal(agent, name, arguments)?;
        }
        let claimed = arguments.get("agent_role").or_else(|| arguments.get("agentRole"));
        if claimed.is_some_and(|claimed| claimed != agent.role.as_str()) {
            return Err(Reason::WrongRole);
        }
    }
    Ok(())
}

/// What the token says for the argument of that name.
fn token_id(agent: &Agent, name: &str) -> Option<String> {
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
fn holds(agent: &Agent, name: &'static str) -> Result<(), Reason> {
    match agent.kind() {
        AgentKind::Pm | AgentKind::Runner | AgentKind::Host => Ok(()),
        AgentKind::Pa | AgentKind::Sandbox => match token_id(agent, name) {
            Some(_) => Ok(()),
            None => Err(Reason::UnboundToken(name)),
        },
    }
}

fn equal(agent: &Agent, name: &'static str, arguments: &Map<String, Value>) -> Result<(), Reason> {
    match (arguments.get(name), token_id(agent, name)) {
        (Some(Value::Null) | None, _) => Ok(()),
        (Some(_), None) => holds(agent, name),
        (Some(Value::String(given)), Some(own)) if *given == own => Ok(()),
        (Some(_), Some(_)) => Err(Reason::WrongId(name)),
    }
}

#[cfg(test)]
mod tests;
