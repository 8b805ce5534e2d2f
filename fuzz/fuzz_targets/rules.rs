//! Any text is a rule or is refused; a rule that was taken can be asked, and never makes a refusal a yes.
#![no_main]

use std::sync::OnceLock;

use cynode_core::{
    agents::{AgentRole, ToolScope},
    ids::AgentTokenId,
    tools::ToolAnnotations,
};
use cynode_policy::{
    agents::{AgentIdentity, AgentProfile},
    catalogue::{
        CatalogueEntry, DefinitionPin, IdBinding, McpToolDefinition, ToolCatalogue, ToolOrigin,
        ToolOverride,
    },
    rules::{PolicyRule, RuleMode, RuleSet},
};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use uuid::Uuid;

fn catalogue() -> &'static ToolCatalogue {
    static CATALOGUE: OnceLock<ToolCatalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let tool = |name: &str| CatalogueEntry {
            definition: McpToolDefinition {
                name: name.parse().unwrap(),
                aliases: Vec::new(),
                title: name.into(),
                description: name.into(),
                input: json!({ "type": "object", "properties": {
                    "url": { "type": "string" }, "count": { "type": "integer" }, "deep": { "type": "object", "properties": {
                        "flag": { "type": "boolean" } } }, "tags": { "type": "array", "items": { "type": "string" } } } }),
                output: None,
                scope: ToolScope::Both,
                binding: IdBinding::NONE,
                annotations: ToolAnnotations::UNKNOWN,
                origin: ToolOrigin::Native,
                network: false,
            },
            set: ToolOverride::default(),
            pin: DefinitionPin::Accepted,
        };
        ToolCatalogue::from_entries(["web.fetch", "db.task.get", "help.overview"].map(tool)).0
    })
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rule = PolicyRule { name: "r".into(), mode: RuleMode::Refuse, text: text.into() };
    let Ok(set) = RuleSet::load_rules(&[rule], catalogue()) else { return };
    let agent = AgentIdentity {
        token: AgentTokenId::from_uuid(Uuid::nil()),
        role: AgentRole::Developer,
        user: None,
        project: None,
        task: None,
        run: None,
        job: None,
        handoff: None,
        profile: AgentProfile::default(),
        tools: None,
        operates: true,
        expires_at: None,
    };
    for tool in catalogue().iter_tools() {
        for arguments in [
            json!({}),
            json!({ "url": "http://x/", "count": i64::MAX, "tags": ["a"], "deep": { "flag": true } }),
        ] {
            let once = set.evaluate_rules(&agent, tool, Some(&arguments));
            assert_eq!(once, set.evaluate_rules(&agent, tool, Some(&arguments)));
        }
        set.evaluate_rules(&agent, tool, None);
    }
});
