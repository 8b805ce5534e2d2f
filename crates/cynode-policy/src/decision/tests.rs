use cynode_core::{
    agents::{AgentRole, ToolScope},
    ids::{ProjectId, TaskId, UserId},
    tools::ToolAnnotations,
};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::{
    agents::AgentProfile,
    catalogue::{CatalogueEntry, IdBinding, McpToolDefinition, ToolAudience, ToolOverride},
    fixtures::{agent, definition, entry, gate, installed},
    rules::{PolicyRule, RuleMode},
};

fn profile(name: &str, spec: Value) -> AgentProfile {
    let spec = serde_json::from_value(spec).unwrap();
    AgentProfile { name: name.into(), version: 1, spec: Arc::new(spec) }
}

const TASK: &str = "tsk_00000000000000000000000000000004";

fn verdict(
    agent: &AgentIdentity,
    gate: &PolicySnapshot,
    tool: &str,
    arguments: &Value,
) -> Option<RefusalReason> {
    decide(agent, gate, CallRequest { tool, arguments }).refusal
}

#[test]
fn every_question_refuses_with_its_own_reason_in_the_fixed_order() {
    let sandbox = agent(AgentRole::Developer);
    let good = json!({ "task_id": TASK });
    let tool = || definition("agent.heartbeat", IdBinding::TASK);
    let ask = |entry: CatalogueEntry, arguments: &Value| {
        verdict(&sandbox, &gate(vec![entry], &[]), "agent__heartbeat", arguments)
    };
    assert_eq!(ask(entry(tool()), &good), None);
    let other = entry(definition("agent.other", IdBinding::NONE));
    assert_eq!(ask(other, &good), Some(RefusalReason::UnknownTool));
    let changed = CatalogueEntry { pin: DefinitionPin::Quarantined, ..entry(tool()) };
    assert_eq!(ask(changed, &good), Some(RefusalReason::DefinitionChanged));
    let off = ToolOverride { enabled: Some(false), scope: Some(ToolScope::Pm) };
    assert_eq!(
        ask(CatalogueEntry { set: off, ..entry(tool()) }, &good),
        Some(RefusalReason::Disabled)
    );
    let moved = ToolOverride { enabled: None, scope: Some(ToolScope::Pm) };
    let moved = CatalogueEntry { set: moved, ..entry(tool()) };
    assert_eq!(ask(moved, &good), Some(RefusalReason::WrongScope(ToolScope::Pm)));
    assert_eq!(ask(entry(tool()), &json!({})), None, "the token has it");
    assert_eq!(ask(entry(tool()), &json!({ "task_id": null })), None, "the token has it");
    let unbound = AgentIdentity { task: None, ..agent(AgentRole::ProjectManager) };
    let all = gate(vec![entry(definition("db.task.get", IdBinding::TASK))], &[]);
    let missing = Some(RefusalReason::MissingId("task_id"));
    let nameless = verdict(&unbound, &all, "db__task__get", &json!({}));
    assert_eq!(nameless, missing, "B023-11, S003-11: REQ-MCPGAT-0106");
    let wrong = json!({ "task_id": "tsk_00000000000000000000000000000009" });
    assert_eq!(ask(entry(tool()), &wrong), Some(RefusalReason::WrongId("task_id")));
    let odd = json!({ "task_id": [TASK] });
    assert_eq!(ask(entry(tool()), &odd), Some(RefusalReason::WrongId("task_id")));
    let more = json!({ "task_id": TASK, "count": "many" });
    assert!(matches!(ask(entry(tool()), &more), Some(RefusalReason::InvalidArguments(_))));
    assert!(matches!(ask(entry(tool()), &json!([TASK])), Some(RefusalReason::InvalidArguments(_))));
}

#[test]
fn ids_of_the_token_are_filled_in_where_a_tool_asks_for_them_and_nowhere_else() {
    let bound = definition("agent.heartbeat", IdBinding::JOB);
    let free = definition("agent.other", IdBinding::NONE);
    let foreign = installed("ext.todo.add", ToolAudience::Everybody);
    let foreign = McpToolDefinition { input: bound.input.clone(), ..foreign };
    let gate = gate(vec![entry(bound), entry(free), entry(foreign)], &[]);
    let agent = agent(AgentRole::Developer);
    let filled = |tool: &str, arguments: &Value| {
        decide(&agent, &gate, CallRequest { tool, arguments }).filled
    };
    let ids =
        json!({ "text": "x", "task_id": TASK, "job_id": "job_00000000000000000000000000000006" });
    assert_eq!(filled("agent__heartbeat", &json!({ "text": "x" })), Some(ids.clone()));
    assert_eq!(filled("agent__heartbeat", &ids), None);
    assert_eq!(filled("agent__other", &json!({})), None);
    assert_eq!(filled("ext__todo__add", &json!({})), None);
}

#[test]
fn a_role_that_the_caller_claims_is_checked_and_never_believed() {
    let gate = gate(vec![entry(definition("pm.report", IdBinding::TASK))], &[]);
    let ask = |role: &str| {
        let arguments = json!({ "task_id": TASK, "agent_role": role });
        verdict(&agent(AgentRole::Reviewer), &gate, "pm__report", &arguments)
    };
    assert_eq!(ask("reviewer"), None);
    let claimed = ask("project_manager");
    assert_eq!(claimed, Some(RefusalReason::WrongRole), "B004-65, X-06, S003-42: REQ-MCPGAT-0116");
}

#[test]
fn managing_sandboxes_and_being_in_one_are_different_things() {
    let manage =
        McpToolDefinition { scope: ToolScope::Pm, ..definition("sandbox.exec", IdBinding::NONE) };
    let inside = McpToolDefinition {
        scope: ToolScope::Sandbox,
        ..definition("agent.complete", IdBinding::TASK)
    };
    let gate = gate(vec![entry(manage), entry(inside)], &[]);
    let arguments = json!({ "task_id": TASK });
    let ask = |role, tool| verdict(&agent(role), &gate, tool, &arguments);
    assert_eq!(ask(AgentRole::ProjectManager, "sandbox.exec"), None);
    assert_eq!(
        ask(AgentRole::Developer, "sandbox.exec"),
        Some(RefusalReason::WrongScope(ToolScope::Pm)),
        "X-07, S003-31: REQ-MCPGAT-0114"
    );
    assert_eq!(ask(AgentRole::Developer, "agent.complete"), None);
    for role in [AgentRole::ProjectManager, AgentRole::ProjectAnalyst] {
        assert_eq!(
            ask(role, "agent.complete"),
            Some(RefusalReason::WrongScope(ToolScope::Sandbox)),
            "S000-086, S000-087, X-07, S003-32: {role:?}; REQ-MCPGAT-0114"
        );
    }
}

#[test]
fn somebody_elses_installed_tool_does_not_exist() {
    let id = Uuid::from_u128;
    for (audience, seen) in [
        (ToolAudience::Everybody, true),
        (ToolAudience::Project(ProjectId::from_uuid(id(3))), true),
        (ToolAudience::Project(ProjectId::from_uuid(id(33))), false),
        (ToolAudience::User(UserId::from_uuid(id(2))), true),
        (ToolAudience::User(UserId::from_uuid(id(22))), false),
    ] {
        let gate = gate(vec![entry(installed("ext.todo.add", audience))], &[]);
        let refusal = verdict(&agent(AgentRole::Developer), &gate, "ext__todo__add", &json!({}));
        assert_eq!(refusal, (!seen).then_some(RefusalReason::UnknownTool), "{audience:?}");
        assert_eq!(
            list_permitted_tools(&agent(AgentRole::Developer), &gate).len(),
            usize::from(seen)
        );
    }
}

#[test]
fn a_tool_that_needs_the_network_is_refused_to_a_profile_without_it() {
    let fetch = McpToolDefinition { network: true, ..definition("web.fetch", IdBinding::NONE) };
    let gate = gate(vec![entry(fetch)], &[]);
    let mut caller = agent(AgentRole::Developer);
    assert_eq!(verdict(&caller, &gate, "web.fetch", &json!({})), None);
    caller.profile = AgentProfile::default();
    assert_eq!(
        verdict(&caller, &gate, "web.fetch", &json!({})),
        Some(RefusalReason::NetworkDenied)
    );
}

#[test]
fn a_tool_that_the_profile_does_not_name_is_refused_before_its_handler() {
    let tools = ["help.a", "artifact.put"].map(|name| entry(definition(name, IdBinding::NONE)));
    let gate = gate(tools.into(), &[]);
    let mut caller = agent(AgentRole::Developer);
    caller.profile = profile("narrow", json!({ "tools": ["help.*"] }));
    assert_eq!(verdict(&caller, &gate, "help__a", &json!({})), None, "B001-13");
    let refusal = verdict(&caller, &gate, "artifact__put", &json!({}));
    assert_eq!(refusal, Some(RefusalReason::NotInProfile("narrow".into())), "B001-13, S001-10");
    let shown = list_permitted_tools(&caller, &gate);
    assert_eq!(shown.len(), 1, "B001-14: what the profile does not name is not listed");
}

#[test]
fn tools_of_a_server_that_reaches_the_network_are_open_only_to_a_profile_that_names_them() {
    let reaching =
        McpToolDefinition { network: true, ..installed("ext.todo.add", ToolAudience::Everybody) };
    let gate = gate(vec![entry(reaching)], &[]);
    let mut caller = agent(AgentRole::Developer);
    let refused = |name: &str| Some(RefusalReason::NotInProfile(name.into()));
    assert_eq!(verdict(&caller, &gate, "ext__todo__add", &json!({})), refused("default"), "`*`");
    caller.profile = AgentProfile::from_shipped("research").unwrap();
    assert_eq!(verdict(&caller, &gate, "ext__todo__add", &json!({})), refused("research"));
    let network = json!([{ "domain": "*", "methods": ["GET"] }]);
    for tools in ["ext.todo.add", "ext.*"] {
        caller.profile = profile("p", json!({ "tools": ["*", tools], "network": network }));
        assert_eq!(verdict(&caller, &gate, "ext__todo__add", &json!({})), None, "{tools}");
    }
}

#[test]
fn an_agent_whose_profile_is_gone_can_call_nothing() {
    let gate = gate(vec![entry(definition("help.a", IdBinding::NONE))], &[]);
    let mut caller = agent(AgentRole::Developer);
    caller.profile = AgentProfile::unknown("gone");
    let refusal = verdict(&caller, &gate, "help__a", &json!({}));
    assert_eq!(refusal, Some(RefusalReason::UnknownProfile));
    let unasked = decide_without_arguments(&caller, &gate, "help__a").refusal;
    assert_eq!(unasked, Some(RefusalReason::UnknownProfile));
    assert!(list_permitted_tools(&caller, &gate).is_empty());
}

#[test]
fn tools_for_the_memory_need_the_access_that_they_use() {
    let write = McpToolDefinition {
        annotations: ToolAnnotations::ADDITIVE_WRITE,
        ..definition("memory.remember", IdBinding::NONE)
    };
    let tools = vec![entry(definition("memory.search", IdBinding::NONE)), entry(write)];
    let (catalogue, _) = ToolCatalogue::from_entries(tools);
    for (access, search, remember) in
        [("none", false, false), ("read", true, false), ("write", true, true)]
    {
        let mut caller = agent(AgentRole::Developer);
        caller.profile = profile("p", json!({ "tools": ["*"], "memory": access }));
        for (name, open) in [("memory__search", search), ("memory__remember", remember)] {
            let tool = catalogue.find_by_wire_name(name).unwrap();
            assert_eq!(check_profile(&caller, tool).is_ok(), open, "S001-14: {access} {name}");
        }
    }
}

#[test]
fn the_offline_profile_has_every_tool_of_the_product_that_reaches_nothing() {
    let offline = AgentProfile::from_shipped("offline").unwrap();
    for namespace in crate::tool_names::NATIVE_NAMESPACES {
        let reaches = ["web", "api"].contains(&namespace);
        let allowed = offline.spec.allows_tool(&format!("{namespace}.anything"));
        assert_eq!(allowed, !reaches, "S001-40: {namespace}");
    }
    assert!(!offline.spec.allows_tool("server.tool"));
}

#[test]
fn a_profile_without_network_is_the_same_in_everything_else() {
    let research = AgentProfile::from_shipped("research").unwrap();
    let narrowed = research.clone().without_network();
    assert!(research.network() && !narrowed.network());
    assert_eq!((narrowed.name, narrowed.version), (research.name, research.version));
    assert_eq!(narrowed.spec.tools, research.spec.tools);
}

#[test]
fn a_token_for_some_tools_opens_no_other() {
    let tools = ["help.a", "help.b"].map(|name| entry(definition(name, IdBinding::NONE)));
    let gate = gate(tools.into(), &[]);
    let mut caller = agent(AgentRole::Developer);
    caller.tools = Some(Arc::from(["help.a".parse().unwrap()]));
    assert_eq!(verdict(&caller, &gate, "help.a", &json!({})), None);
    assert_eq!(
        verdict(&caller, &gate, "help.b", &json!({})),
        Some(RefusalReason::NotGrantedByToken)
    );
}

#[test]
fn an_agent_that_is_tied_to_nothing_cannot_name_a_task_unless_it_works_on_many() {
    let gate = gate(vec![entry(definition("verification.record", IdBinding::TASK))], &[]);
    for role in [AgentRole::ProjectManager, AgentRole::ProjectAnalyst, AgentRole::WorkflowRunner] {
        let mut caller = agent(role);
        caller.task = None;
        let refusal = verdict(&caller, &gate, "verification.record", &json!({ "task_id": TASK }));
        let wanted =
            (role == AgentRole::ProjectAnalyst).then_some(RefusalReason::UnboundToken("task_id"));
        assert_eq!(refusal, wanted, "{role:?}");
    }
}

fn any_role() -> impl Strategy<Value = AgentRole> {
    prop::sample::select(AgentRole::ALL.to_vec())
}

const NAMES: [&str; 8] = [
    "db.task.get",
    "sandbox.exec",
    "agent.complete",
    "help.x",
    "artifact.put",
    "workflow.start",
    "pm.report",
    "verification.record",
];

fn any_tool() -> impl Strategy<Value = CatalogueEntry> {
    let scope = prop::option::of(prop::sample::select(ToolScope::ALL.to_vec()));
    let binding = prop::sample::select(vec![IdBinding::NONE, IdBinding::TASK, IdBinding::JOB]);
    (0..NAMES.len(), scope, any::<Option<bool>>(), any::<bool>(), any::<bool>(), binding).prop_map(
        |(at, scope, enabled, pinned, network, binding)| {
            let mut tool = definition(NAMES[at], binding);
            tool.network = network;
            let pin = if pinned { DefinitionPin::Accepted } else { DefinitionPin::Quarantined };
            CatalogueEntry { set: ToolOverride { enabled, scope }, pin, ..entry(tool) }
        },
    )
}

fn any_gate() -> impl Strategy<Value = Vec<CatalogueEntry>> {
    prop::collection::vec(any_tool(), 1..8).prop_map(|mut tools| {
        tools.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        tools.dedup_by(|a, b| a.definition.name == b.definition.name);
        tools
    })
}

/// Rules of many shapes, all of which can be loaded.
fn any_rules() -> impl Strategy<Value = Vec<PolicyRule>> {
    let texts = vec![
        "forbid (principal, action, resource);",
        "forbid (principal == Role::\"developer\", action, resource);",
        "forbid (principal, action, resource) when { context.tool.read_only };",
        "forbid (principal, action, resource) unless { context.agent.kind == \"pm\" };",
        "forbid (principal, action, resource) when { context.agent.network };",
    ];
    let mode = prop::sample::select(RuleMode::ALL.to_vec());
    prop::collection::vec((prop::sample::select(texts), mode), 0..5).prop_map(|rules| {
        let named = rules.into_iter().enumerate();
        named
            .map(|(at, (text, mode))| PolicyRule {
                name: format!("r{at}"),
                mode,
                text: text.into(),
            })
            .collect()
    })
}

fn arguments(tool: &CatalogueTool) -> Value {
    let ids = [("task_id", TASK), ("job_id", "job_00000000000000000000000000000006")];
    let asked: Vec<_> = tool.definition.binding.id_arguments().collect();
    ids.into_iter()
        .filter(|(name, _)| asked.contains(name))
        .map(|(name, id)| (name.to_owned(), json!(id)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_rules_widen_what_the_gate_allows_without_them(
        role in any_role(), tools in any_gate(), rules in any_rules(), network in any::<bool>(),
    ) {
        let mut caller = agent(role);
        if !network {
            caller.profile = caller.profile.without_network();
        }
        let (bare, ruled) = (gate(tools.clone(), &[]), gate(tools, &rules));
        for tool in bare.catalogue.iter_tools() {
            let arguments = arguments(tool);
            let name = tool.definition.name.to_wire_name();
            let without = verdict(&caller, &bare, &name, &arguments);
            let with = verdict(&caller, &ruled, &name, &arguments);
            if without.is_some() {
                prop_assert_eq!(with, without, "S000-093: a rule never widens");
            }
        }
    }

    #[test]
    fn the_list_shows_exactly_what_a_call_would_be_allowed(
        role in any_role(), tools in any_gate(), rules in any_rules(), network in any::<bool>(), bound in any::<bool>(),
        operates in any::<bool>(),
    ) {
        let mut caller = agent(role);
        if !network {
            caller.profile = caller.profile.without_network();
        }
        caller.operates = operates;
        if !bound {
            (caller.task, caller.run, caller.job) = (None, None, None);
        }
        let gate = gate(tools, &rules);
        let shown: Vec<_> = list_permitted_tools(&caller, &gate).iter().map(|tool| tool.definition.name.clone()).collect();
        for tool in gate.catalogue.iter_tools() {
            let refusal = verdict(&caller, &gate, &tool.definition.name.to_wire_name(), &arguments(tool));
            // With a person's yes it can be called, so it is shown.
            let callable = matches!(refusal, None | Some(RefusalReason::NeedsApproval(_)));
            prop_assert_eq!(callable, shown.contains(&tool.definition.name), "{:?}", refusal);
        }
    }

    #[test]
    fn another_task_is_refused_whatever_the_role_and_tool(
        role in any_role(), tools in any_gate(), other in 5_u128..,
    ) {
        let gate = gate(tools, &[]);
        let foreign = TaskId::from_uuid(Uuid::from_u128(other)).to_string();
        for tool in gate.catalogue.iter_tools() {
            let mut arguments = arguments(tool);
            arguments["task_id"] = json!(foreign);
            let refusal = verdict(&agent(role), &gate, &tool.definition.name.to_wire_name(), &arguments);
            prop_assert!(refusal.is_some(), "S003-02, S003-12, REQ-MCPGAT-0001, REQ-MCPGAT-0106");
        }
    }
}
