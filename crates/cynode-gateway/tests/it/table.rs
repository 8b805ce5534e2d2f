//! The whole gate as a table: every role, every tool of ours, each scope, switched on and off, with the caller's own task,
//! another one and none. The table is kept, so that a changed decision is a changed line that somebody has to look at.

use std::{collections::BTreeMap, fmt::Write as _};

use cynode_core::{
    agents::{AgentRole, ToolScope},
    ids::{AgentTokenId, JobId, ProjectId, RunId, TaskId, UserId},
};
use cynode_gateway::tools::tool_definitions;
use cynode_policy::{
    agents::{AgentIdentity, AgentProfile},
    allowlists::EnabledSwitches,
    catalogue::{CatalogueEntry, DefinitionPin, McpToolDefinition, ToolCatalogue, ToolOverride},
    decision::{CallRequest, PolicySnapshot, decide},
    rules::RuleSet,
};
use serde_json::{Value, json};
use uuid::Uuid;

const KEPT: &str = include_str!("gate-table.txt");

/// An agent that is tied to everything that its kind is tied to.
fn agent(role: AgentRole) -> AgentIdentity {
    let id = Uuid::from_u128;
    let runner = role.agent_kind().is_service_program();
    AgentIdentity {
        token: AgentTokenId::from_uuid(id(1)),
        role,
        user: (!runner).then(|| UserId::from_uuid(id(2))),
        project: (!runner).then(|| ProjectId::from_uuid(id(3))),
        task: (!runner).then(|| TaskId::from_uuid(id(4))),
        run: (!runner).then(|| RunId::from_uuid(id(5))),
        job: (!runner).then(|| JobId::from_uuid(id(6))),
        handoff: None,
        profile: AgentProfile::from_shipped("research").unwrap(),
        tools: None,
        operates: true,
        expires_at: None,
    }
}

/// Everybody who calls: each role on its task, and the manager as it is without one.
fn callers() -> Vec<(String, AgentIdentity)> {
    let mut callers: Vec<_> =
        AgentRole::ALL.map(|role| (role.as_str().to_owned(), agent(role))).into();
    let free =
        AgentIdentity { task: None, run: None, job: None, ..agent(AgentRole::ProjectManager) };
    callers.insert(1, ("project_manager_without_task".into(), free));
    callers
}

fn gate(
    definition: &McpToolDefinition,
    set: ToolOverride,
    switches: EnabledSwitches,
) -> PolicySnapshot {
    let entry =
        CatalogueEntry { definition: definition.clone(), set, pin: DefinitionPin::Accepted };
    let (catalogue, refused) = ToolCatalogue::from_entries([entry]);
    assert_eq!(refused, []);
    PolicySnapshot::new(catalogue, RuleSet::empty(), switches)
}

/// A value that a schema takes.
fn example(schema: &Value, whole: &Value) -> Value {
    if let Some(target) = schema["$ref"].as_str() {
        return example(whole.pointer(target.trim_start_matches('#')).unwrap(), whole);
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        if let Some(first) = schema[several].get(0) {
            return example(first, whole);
        }
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind {
        Some("object") | None => {
            let required = schema["required"].as_array().into_iter().flatten();
            let each = required.map(|name| {
                let name = name.as_str().unwrap();
                (name.to_owned(), example(&schema["properties"][name], whole))
            });
            Value::Object(each.collect())
        }
        Some("string") => json!("x"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some(other) => panic!("no example for {other}"),
    }
}

/// Arguments that are right but for the task.
fn arguments(definition: &McpToolDefinition, task: Option<u128>) -> Value {
    let mut arguments = example(&definition.input, &definition.input);
    let ids = [
        ("run_id", RunId::from_uuid(Uuid::from_u128(5)).to_string()),
        ("job_id", JobId::from_uuid(Uuid::from_u128(6)).to_string()),
        ("project_id", ProjectId::from_uuid(Uuid::from_u128(3)).to_string()),
    ];
    let object = arguments.as_object_mut().unwrap();
    for (name, id) in ids {
        if object.contains_key(name) {
            object.insert(name.to_owned(), json!(id));
        }
    }
    if definition.input["properties"].get("task_id").is_some() {
        object.remove("task_id");
        if let Some(task) = task {
            let id = TaskId::from_uuid(Uuid::from_u128(task)).to_string();
            object.insert("task_id".into(), json!(id));
        }
    }
    arguments
}

/// What the gate says for the own task, another one and none; one word when that makes no difference.
fn said(agent: &AgentIdentity, gate: &PolicySnapshot, definition: &McpToolDefinition) -> String {
    let words = [Some(4), Some(99), None].map(|task| {
        let arguments = arguments(definition, task);
        let call = CallRequest { tool: definition.name.as_str(), arguments: &arguments };
        decide(agent, gate, call).refusal.map_or("ALLOWED", |reason| reason.reason_code())
    });
    if words.iter().all(|word| *word == words[0]) { words[0].to_owned() } else { words.join("/") }
}

/// The same tool in every state that people can bring it into.
struct States {
    on: Vec<(ToolScope, PolicySnapshot)>,
    off: Vec<PolicySnapshot>,
}

impl States {
    fn of(definition: &McpToolDefinition, switches: EnabledSwitches) -> Self {
        let gate = |scope, enabled| {
            let set = ToolOverride { enabled: Some(enabled), scope: Some(scope) };
            gate(definition, set, switches)
        };
        Self {
            on: ToolScope::ALL.map(|scope| (scope, gate(scope, true))).into(),
            off: ToolScope::ALL.map(|scope| gate(scope, false)).into(),
        }
    }

    fn row(&self, agent: &AgentIdentity, definition: &McpToolDefinition) -> String {
        // Switched off it is off, whatever else holds.
        for gate in &self.off {
            assert_eq!(said(agent, gate, definition), "disabled");
        }
        let cells = self
            .on
            .iter()
            .map(|(scope, gate)| format!("{}={}", scope.as_str(), said(agent, gate, definition)));
        cells.collect::<Vec<_>>().join(" ")
    }
}

/// One line for each tool and answer, with everybody who gets that answer.
fn table() -> String {
    let mut text = String::new();
    let callers = callers();
    let mut definitions = tool_definitions().to_vec();
    definitions.sort_by(|a, b| a.name.cmp(&b.name));
    for switch in [false, true] {
        let _ = writeln!(text, "# gateway.pm_allowed_images {}", if switch { "on" } else { "off" });
        for definition in &definitions {
            let images = definition.name.as_str().starts_with("sandbox.allowed_images.");
            if switch && !images {
                continue;
            }
            let states = States::of(definition, EnabledSwitches { pm_allowed_images: switch });
            let mut answers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for (name, agent) in &callers {
                answers.entry(states.row(agent, definition)).or_default().push(name);
            }
            let (name, own) = (definition.name.as_str(), definition.scope.as_str());
            let _ = writeln!(text, "{name} (scope {own})");
            for (row, names) in answers {
                let _ = writeln!(text, "    {row}  {}", names.join(","));
            }
        }
    }
    text
}

#[test]
fn the_gate_decides_every_case_as_the_kept_table_says() {
    let table = table();
    if table != KEPT {
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/gate-table.txt");
        std::fs::write(path, &table).unwrap();
        panic!(
            "the gate decides otherwise than tests/it/gate-table.txt says: compare it with {path}"
        );
    }
}

#[test]
fn whoever_may_call_a_tool_is_on_its_side_and_the_kept_table_has_no_other_yes() {
    let on_pm_side = [
        "project_manager",
        "project_manager_without_task",
        "project_analyst",
        "workflow_runner",
        "manager_host",
        "analyst_host",
    ];
    let mut yes = 0;
    for line in KEPT.lines().filter(|line| line.starts_with("    ")) {
        let (cells, names) = line.trim().rsplit_once("  ").unwrap();
        for (scope, cell) in cells.split(' ').map(|cell| cell.split_once('=').unwrap()) {
            if !cell.contains("ALLOWED") {
                continue;
            }
            for name in names.split(',') {
                yes += 1;
                match scope {
                    "pm" => assert!(
                        on_pm_side.contains(&name),
                        "S003-31, S003-42, REQ-MCPGAT-0114: {line}"
                    ),
                    "sandbox" => assert!(
                        !on_pm_side.contains(&name),
                        "S003-32, S003-42, REQ-MCPGAT-0114: {line}"
                    ),
                    _ => {}
                }
                // Only who works on many tasks is let through with one that its token does not name, and only
                // whose token names one may leave it out.
                let of_many = ["project_manager_without_task", "workflow_runner"].contains(&name);
                let answers: Vec<_> = cell.split('/').collect();
                if answers.len() == 3 && answers[1] == "ALLOWED" {
                    assert!(of_many, "{line}");
                }
                if answers.len() == 3 && answers[2] == "ALLOWED" {
                    assert!(!of_many, "{line}");
                }
            }
        }
    }
    assert!(yes > 100, "{yes}");
}

#[test]
fn a_tool_that_is_off_is_refused_to_every_caller_in_every_scope() {
    let definitions = tool_definitions().to_vec();
    for definition in &definitions {
        let states = States::of(definition, EnabledSwitches { pm_allowed_images: true });
        for (name, agent) in &callers() {
            for off in &states.off {
                let answer = said(agent, off, definition);
                let tool = definition.name.as_str();
                assert_eq!(answer, "disabled", "S003-26, REQ-MCPGAT-0113: {tool} {name}");
            }
        }
    }
}

#[test]
fn every_requirement_of_the_gateway_that_is_built_is_named_by_a_test() {
    let sources = [
        include_str!("audit.rs"),
        include_str!("scoping.rs"),
        include_str!("servers.rs"),
        include_str!("table.rs"),
        include_str!("tokens.rs"),
        include_str!("traps.rs"),
        include_str!("../../../cynode-policy/src/catalogue/tests.rs"),
        include_str!("../../../cynode-policy/src/decision/tests.rs"),
    ];
    // 0112, edge enforcement, is not built.
    let built = [1, 2].into_iter().chain(100..=111).chain(113..=116);
    let missing: Vec<String> = built
        .map(|number| format!("REQ-MCPGAT-{number:04}"))
        .filter(|id| !sources.iter().any(|text| text.contains(id.as_str())))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "S003-01");
}
