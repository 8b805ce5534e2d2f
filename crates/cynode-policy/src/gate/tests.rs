use cynode_core::{
    agents::{AgentRole, ToolScope},
    ids::{ProjectId, TaskId, UserId},
};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::{
    catalogue::{Audience, Binding, Definition, Entry, Override},
    fixtures::{agent, definition, entry, gate, installed},
    rules::{Mode, Rule},
};

const TASK: &str = "tsk_00000000000000000000000000000004";

fn verdict(agent: &Agent, gate: &Gate, tool: &str, arguments: &Value) -> Option<Reason> {
    decide(agent, gate, Call { tool, arguments }).refusal
}

#[test]
fn every_question_refuses_with_its_own_reason_in_the_fixed_order() {
    let sandbox = agent(AgentRole::Developer);
    let good = json!({ "task_id": TASK });
    let tool = || definition("agent.heartbeat", Binding::TASK);
    let ask = |entry: Entry, arguments: &Value| {
        verdict(&sandbox, &gate(vec![entry], &[]), "agent__heartbeat", arguments)
    };
    assert_eq!(ask(entry(tool()), &good), None);
    let other = entry(definition("agent.other", Binding::NONE));
    assert_eq!(ask(other, &good), Some(Reason::UnknownTool));
    let changed = Entry { pin: Pin::Quarantined, ..entry(tool()) };
    assert_eq!(ask(changed, &good), Some(Reason::DefinitionChanged));
    let off = Override { enabled: Some(false), scope: Some(ToolScope::Pm) };
    assert_eq!(ask(Entry { set: off, ..entry(tool()) }, &good), Some(Reason::Disabled));
    let moved = Override { enabled: None, scope: Some(ToolScope::Pm) };
    let moved = Entry { set: moved, ..entry(tool()) };
    assert_eq!(ask(moved, &good), Some(Reason::WrongScope(ToolScope::Pm)));
    let later = Definition { missing: Some("there is no node"), ..tool() };
    assert_eq!(ask(entry(later), &good), Some(Reason::Unavailable("there is no node")));
    assert_eq!(ask(entry(tool()), &json!({})), Some(Reason::MissingId("task_id")));
    assert_eq!(ask(entry(tool()), &json!({ "task_id": null })), Some(Reason::MissingId("task_id")));
    let wrong = json!({ "task_id": "tsk_00000000000000000000000000000009" });
    assert_eq!(ask(entry(tool()), &wrong), Some(Reason::WrongId("task_id")));
    let odd = json!({ "task_id": [TASK] });
    assert_eq!(ask(entry(tool()), &odd), Some(Reason::WrongId("task_id")));
    let more = json!({ "task_id": TASK, "count": "many" });
    assert!(matches!(ask(entry(tool()), &more), Some(Reason::InvalidArguments(_))));
    assert!(matches!(ask(entry(tool()), &json!([TASK])), Some(Reason::InvalidArguments(_))));
}

#[test]
fn a_role_that_the_caller_claims_is_checked_and_never_believed() {
    let gate = gate(vec![entry(definition("pm.report", Binding::TASK))], &[]);
    let ask = |role: &str| {
        let arguments = json!({ "task_id": TASK, "agent_role": role });
        verdict(&agent(AgentRole::Reviewer), &gate, "pm__report", &arguments)
    };
    assert_eq!(ask("reviewer"), None);
    assert_eq!(ask("project_manager"), Some(Reason::WrongRole));
}

#[test]
fn managing_sandboxes_and_being_in_one_are_different_things() {
    let manage = Definition { scope: ToolScope::Pm, ..definition("sandbox.exec", Binding::NONE) };
    let inside =
        Definition { scope: ToolScope::Sandbox, ..definition("agent.complete", Binding::TASK) };
    let gate = gate(vec![entry(manage), entry(inside)], &[]);
    let arguments = json!({ "task_id": TASK });
    let ask = |role, tool| verdict(&agent(role), &gate, tool, &arguments);
    assert_eq!(ask(AgentRole::ProjectManager, "sandbox.exec"), None);
    assert_eq!(ask(AgentRole::Developer, "sandbox.exec"), Some(Reason::WrongScope(ToolScope::Pm)));
    assert_eq!(ask(AgentRole::Developer, "agent.complete"), None);
    assert_eq!(
        ask(AgentRole::ProjectManager, "agent.complete"),
        Some(Reason::WrongScope(ToolScope::Sandbox))
    );
}

#[test]
fn somebody_elses_installed_tool_does_not_exist() {
    let id = Uuid::from_u128;
    for (audience, seen) in [
        (Audience::Everybody, true),
        (Audience::Project(ProjectId::from_uuid(id(3))), true),
        (Audience::Project(ProjectId::from_uuid(id(33))), false),
        (Audience::User(UserId::from_uuid(id(2))), true),
        (Audience::User(UserId::from_uuid(id(22))), false),
    ] {
        let gate = gate(vec![entry(installed("ext.todo.add", audience))], &[]);
        let refusal = verdict(&agent(AgentRole::Developer), &gate, "ext__todo__add", &json!({}));
        assert_eq!(refusal, (!seen).then_some(Reason::UnknownTool), "{audience:?}");
        assert_eq!(list(&agent(AgentRole::Developer), &gate).len(), usize::from(seen));
    }
}

#[test]
fn a_tool_that_needs_the_network_is_refused_to_a_profile_without_it() {
    let fetch = Definition { network: true, ..definition("web.fetch", Binding::NONE) };
    let gate = gate(vec![entry(fetch)], &[]);
    let mut caller = agent(AgentRole::Developer);
    assert_eq!(verdict(&caller, &gate, "web.fetch", &json!({})), None);
    caller.profile = crate::agents::Profile::default();
    assert_eq!(verdict(&caller, &gate, "web.fetch", &json!({})), Some(Reason::NoNetwork));
}

#[test]
fn a_token_for_some_tools_opens_no_other() {
    let tools = ["help.a", "help.b"].map(|name| entry(definition(name, Binding::NONE)));
    let gate = gate(tools.into(), &[]);
    let mut caller = agent(AgentRole::Developer);
    caller.tools = Some(Arc::from(["help.a".parse().unwrap()]));
    assert_eq!(verdict(&caller, &gate, "help.a", &json!({})), None);
    assert_eq!(verdict(&caller, &gate, "help.b", &json!({})), Some(Reason::NotInToken));
}

#[test]
fn an_agent_that_is_tied_to_nothing_cannot_name_a_task_unless_it_works_on_many() {
    let gate = gate(vec![entry(definition("verification.record", Binding::TASK))], &[]);
    for role in [AgentRole::ProjectManager, AgentRole::ProjectAnalyst, AgentRole::WorkflowRunner] {
        let mut caller = agent(role);
        caller.task = None;
        let refusal = verdict(&caller, &gate, "verification.record", &json!({ "task_id": TASK }));
        let wanted = (role == AgentRole::ProjectAnalyst).then_some(Reason::UnboundToken("task_id"));
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

fn any_tool() -> impl Strategy<Value = Entry> {
    let scope = prop::option::of(prop::sample::select(ToolScope::ALL.to_vec()));
    let binding = prop::sample::select(vec![Binding::NONE, Binding::TASK, Binding::JOB]);
    (0..NAMES.len(), scope, any::<Option<bool>>(), any::<bool>(), any::<bool>(), binding).prop_map(
        |(at, scope, enabled, pinned, network, binding)| {
            let mut tool = definition(NAMES[at], binding);
            tool.network = network;
            let pin = if pinned { Pin::Accepted } else { Pin::Quarantined };
            Entry { set: Override { enabled, scope }, pin, ..entry(tool) }
        },
    )
}

fn any_gate() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec(any_tool(), 1..8).prop_map(|mut tools| {
        tools.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        tools.dedup_by(|a, b| a.definition.name == b.definition.name);
        tools
    })
}

/// Rules of many shapes, all of which can be loaded.
fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
    let texts = vec![
        "forbid (principal, action, resource);",
        "forbid (principal == Role::\"developer\", action, resource);",
        "forbid (principal, action, resource) when { context.tool.read_only };",
        "forbid (principal, action, resource) unless { context.agent.kind == \"pm\" };",
        "forbid (principal, action, resource) when { context.agent.network };",
    ];
    let mode = prop::sample::select(Mode::ALL.to_vec());
    prop::collection::vec((prop::sample::select(texts), mode), 0..5).prop_map(|rules| {
        let named = rules.into_iter().enumerate();
        named
            .map(|(at, (text, mode))| Rule { name: format!("r{at}"), mode, text: text.into() })
            .collect()
    })
}

fn arguments(tool: &Tool) -> Value {
    let ids = [("task_id", TASK), ("job_id", "job_00000000000000000000000000000006")];
    let asked: Vec<_> = tool.definition.binding.arguments().collect();
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
        caller.profile.network = network;
        let (bare, ruled) = (gate(tools.clone(), &[]), gate(tools, &rules));
        for tool in bare.catalogue.tools() {
            let arguments = arguments(tool);
            let name = tool.definition.name.wire();
            let without = verdict(&caller, &bare, &name, &arguments);
            let with = verdict(&caller, &ruled, &name, &arguments);
            if without.is_some() {
                prop_assert_eq!(with, without);
            }
        }
    }

    #[test]
    fn the_list_shows_exactly_what_a_call_would_be_allowed(
        role in any_role(), tools in any_gate(), rules in any_rules(), network in any::<bool>(), bound in any::<bool>(),
        operates in any::<bool>(),
    ) {
        let mut caller = agent(role);
        caller.profile.network = network;
        caller.operates = operates;
        if !bound {
            (caller.task, caller.run, caller.job) = (None, None, None);
        }
        let gate = gate(tools, &rules);
        let shown: Vec<_> = list(&caller, &gate).iter().map(|tool| tool.definition.name.clone()).collect();
        for tool in gate.catalogue.tools() {
            let refusal = verdict(&caller, &gate, &tool.definition.name.wire(), &arguments(tool));
            // With a person's yes it can be called, so it is shown.
            let callable = matches!(refusal, None | Some(Reason::NeedsApproval(_)));
            prop_assert_eq!(callable, shown.contains(&tool.definition.name), "{:?}", refusal);
        }
    }

    #[test]
    fn another_task_is_refused_whatever_the_role_and_tool(
        role in any_role(), tools in any_gate(), other in 5_u128..,
    ) {
        let gate = gate(tools, &[]);
        let foreign = TaskId::from_uuid(Uuid::from_u128(other)).to_string();
        for tool in gate.catalogue.tools() {
            let mut arguments = arguments(tool);
            arguments["task_id"] = json!(foreign);
            prop_assert!(verdict(&agent(role), &gate, &tool.definition.name.wire(), &arguments).is_some());
        }
    }
}
