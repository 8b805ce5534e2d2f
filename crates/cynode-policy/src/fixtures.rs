//! Tools and agents for tests.

use std::sync::Arc;

use cynode_core::{
    agents::{AgentRole, ToolScope},
    ids::{AgentTokenId, JobId, ProjectId, RunId, ServerId, TaskId, UserId},
    profiles::{NetworkRule, ProfileSpec},
    tools::ToolAnnotations,
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    agents::{AgentIdentity, AgentProfile},
    allowlists::EnabledSwitches,
    catalogue::{
        CatalogueEntry, DefinitionPin, IdBinding, McpToolDefinition, ToolAudience, ToolCatalogue,
        ToolOrigin, ToolOverride,
    },
    decision::PolicySnapshot,
    rules::{PolicyRule, RuleSet},
};

pub(crate) fn definition(name: &str, binding: IdBinding) -> McpToolDefinition {
    let mut properties = json!({
        "text": { "type": "string" },
        "count": { "type": "integer" },
        "agent_role": { "type": "string" },
        "tags": { "type": "array", "items": { "type": "string" } },
    });
    let mut required = Vec::new();
    for id in ["task_id", "run_id", "job_id"] {
        properties[id] = json!({ "type": "string" });
    }
    required.extend(binding.id_arguments());
    McpToolDefinition {
        name: name.parse().unwrap(),
        aliases: Vec::new(),
        title: name.to_owned(),
        description: "A tool.".to_owned(),
        input: json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false }),
        output: None,
        scope: ToolScope::Both,
        binding,
        annotations: ToolAnnotations::READ_ONLY,
        origin: ToolOrigin::Native,
        network: false,
    }
}

pub(crate) fn installed(name: &str, audience: ToolAudience) -> McpToolDefinition {
    let origin = ToolOrigin::Server {
        id: ServerId::from_uuid(Uuid::from_u128(77)),
        tool: name.to_owned(),
        audience,
    };
    McpToolDefinition { origin, ..definition(name, IdBinding::NONE) }
}

pub(crate) fn entry(definition: McpToolDefinition) -> CatalogueEntry {
    CatalogueEntry { definition, set: ToolOverride::default(), pin: DefinitionPin::Accepted }
}

pub(crate) fn gate(entries: Vec<CatalogueEntry>, rules: &[PolicyRule]) -> PolicySnapshot {
    let (catalogue, refused) = ToolCatalogue::from_entries(entries);
    assert_eq!(refused, []);
    let rules = RuleSet::load_rules(rules, &catalogue).unwrap();
    PolicySnapshot::new(catalogue, rules, EnabledSwitches::default())
}

/// The default profile, with every request.
fn with_network() -> AgentProfile {
    let profile = AgentProfile::default();
    let every = NetworkRule { domain: "*".into(), methods: vec!["*".into()] };
    let spec = ProfileSpec { network: vec![every], ..ProfileSpec::clone(&profile.spec) };
    AgentProfile { spec: Arc::new(spec), ..profile }
}

/// An agent that is tied to everything it can be tied to.
pub(crate) fn agent(role: AgentRole) -> AgentIdentity {
    let id = Uuid::from_u128;
    AgentIdentity {
        token: AgentTokenId::from_uuid(id(1)),
        role,
        user: Some(UserId::from_uuid(id(2))),
        project: Some(ProjectId::from_uuid(id(3))),
        task: Some(TaskId::from_uuid(id(4))),
        run: Some(RunId::from_uuid(id(5))),
        job: Some(JobId::from_uuid(id(6))),
        handoff: None,
        profile: with_network(),
        tools: None,
        operates: true,
        expires_at: None,
    }
}
