//! Any text is a rule or is refused; a rule that was taken can be asked, and never makes a refusal a yes.
#![no_main]

use std::sync::OnceLock;

use cynode_core::{agents::{AgentRole, ToolScope}, ids::AgentTokenId};
use cynode_policy::{
    agents::{Agent, Profile},
    catalogue::{Annotations, Binding, Catalogue, Definition, Entry, Origin, Override, Pin},
    rules::{Mode, Rule, RuleSet},
};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use uuid::Uuid;

fn catalogue() -> &'static Catalogue {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let tool = |name: &str| Entry {
            definition: Definition {
                name: name.parse().unwrap(),
                aliases: Vec::new(),
                title: name.into(),
                description: name.into(),
                input: json!({ "type": "object", "properties": {
                    "url": { "type": "string" }, "count": { "type": "integer" }, "deep": { "type": "object", "properties": {
                        "flag": { "type": "boolean" } } }, "tags": { "type": "array", "items": { "type": "string" } } } }),
                output: None,
                scope: ToolScope::Both,
                binding: Binding::NONE,
                annotations: Annotations::UNKNOWN,
                origin: Origin::Native,
                network: false,
                missing: None,
            },
            set: Override::default(),
            pin: Pin::Accepted,
        };
        Catalogue::build(["web.fetch", "db.task.get", "help.overview"].map(tool)).0
    })
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rule = Rule { name: "r".into(), mode: Mode::Refuse, text: text.into() };
    let Ok(set) = RuleSet::load(&[rule], catalogue()) else { return };
    let agent = Agent {
        token: AgentTokenId::from_uuid(Uuid::nil()),
        role: AgentRole::Developer,
        user: None,
        project: None,
        task: None,
        run: None,
        job: None,
        profile: Profile::default(),
        tools: None,
        expires_at: None,
    };
    for tool in catalogue().tools() {
        for arguments in [json!({}), json!({ "url": "http://x/", "count": i64::MAX, "tags": ["a"], "deep": { "flag": true } })] {
            let once = set.ask(&agent, tool, Some(&arguments));
            assert_eq!(once, set.ask(&agent, tool, Some(&arguments)));
        }
        set.ask(&agent, tool, None);
    }
});
