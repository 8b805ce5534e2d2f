//! Tools and agents for tests.

use cynode_core::{
    agents::{AgentRole, ToolScope},
    ids::{AgentTokenId, JobId, ProjectId, RunId, ServerId, TaskId, UserId},
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    agents::{Agent, Profile},
    allowlists::Switches,
    catalogue::{
        Annotations, Audience, Binding, Catalogue, Definition, Entry, Origin, Override, Pin,
    },
    gate::Gate,
    rules::{Rule, RuleSet},
};

pub(crate) fn definition(name: &str, binding: Binding) -> Definition {
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
    required.extend(binding.arguments());
    Definition {
        name: name.parse().unwrap(),
        aliases: Vec::new(),
        title: name.to_owned(),
        description: "A tool.".to_owned(),
        input: json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false }),
        output: None,
        scope: ToolScope::Both,
        binding,
        annotations: Annotations::READS,
        origin: Origin::Native,
        network: false,
        missing: None,
    }
}

pub(crate) fn installed(name: &str, audience: Audience) -> Definition {
    let origin = Origin::Server {
        id: ServerId::from_uuid(Uuid::from_u128(77)),
        tool: name.to_owned(),
        audience,
    };
    Definition { origin, ..definition(name, Binding::NONE) }
}

pub(crate) fn entry(definition: Definition) -> Entry {
    Entry { definition, set: Override::default(), pin: Pin::Accepted }
}

pub(crate) fn gate(entries: Vec<Entry>, rules: &[Rule]) -> Gate {
    let (catalogue, refused) = Catalogue::build(entries);
    assert_eq!(refused, []);
    let rules = RuleSet::load(rules, &catalogue).unwrap();
    Gate::new(catalogue, rules, Switches::default())
}

/// An agent that is tied to everything it can be tied to.
pub(crate) fn agent(role: AgentRole) -> Agent {
    let id = Uuid::from_u128;
    Agent {
        token: AgentTokenId::from_uuid(id(1)),
        role,
        user: Some(UserId::from_uuid(id(2))),
        project: Some(ProjectId::from_uuid(id(3))),
        task: Some(TaskId::from_uuid(id(4))),
        run: Some(RunId::from_uuid(id(5))),
        job: Some(JobId::from_uuid(id(6))),
        profile: Profile { name: "default".into(), network: true },
        tools: None,
        operates: true,
        expires_at: None,
    }
}
