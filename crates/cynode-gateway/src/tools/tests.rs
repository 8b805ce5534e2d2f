use std::collections::BTreeSet;

use cynode_core::agents::AgentRole;
use cynode_policy::{
    allowlists::{AllowlistVerdict, EnabledSwitches, check_allowlist},
    catalogue::{CatalogueEntry, DefinitionPin, ToolCatalogue, ToolOverride},
    tool_names::NATIVE_NAMESPACES,
};

use super::*;

fn entries() -> Vec<CatalogueEntry> {
    let entry = |definition: &McpToolDefinition| CatalogueEntry {
        definition: definition.clone(),
        set: ToolOverride::default(),
        pin: DefinitionPin::Accepted,
    };
    tool_definitions().iter().map(entry).collect()
}

#[test]
fn every_tool_has_a_schema_a_namespace_of_ours_and_asks_for_what_it_is_tied_to() {
    let (catalogue, refused) = ToolCatalogue::from_entries(entries());
    assert_eq!(
        refused,
        [],
        "S001-39, B001-31, S003-02, S003-08: every tool declares a schema that is accepted; no tool hides another; REQ-MCPGAT-0103: each tool has its `task_id`"
    );
    assert_eq!(catalogue.iter_tools().count(), tool_definitions().len(), "B001-31");
    for tool in catalogue.iter_tools() {
        let definition = &tool.definition;
        let missing = definition.missing_id_arguments();
        assert_eq!(missing, Vec::<&str>::new(), "S003-09, S003-10: {}", definition.name);
        assert!(
            NATIVE_NAMESPACES.contains(&definition.name.namespace()),
            "S001-37: {}",
            definition.name
        );
        assert!(!definition.title.is_empty() && !definition.description.is_empty());
        assert_eq!(definition.input["additionalProperties"], false, "S001-39: {}", definition.name);
    }
}

#[test]
fn every_tool_of_the_catalogue_can_be_called_by_some_role() {
    let switches = EnabledSwitches { pm_allowed_images: true };
    for definition in tool_definitions().iter() {
        let callable = AgentRole::ALL.into_iter().any(|role| {
            definition.scope.allows_kind(role.agent_kind())
                && check_allowlist(role, &definition.name, switches) == AllowlistVerdict::Yes
        });
        assert!(callable, "{} is in the catalogue, and no role can call it", definition.name);
    }
}

#[test]
fn the_default_skill_names_only_tools_that_the_manager_may_call() {
    let skill = include_str!("../../../cynode-app/src/models/inference/default_skill.md");
    let quoted = skill.split('`').skip(1).step_by(2);
    let named: Vec<&str> = quoted.filter(|word| word.contains('.')).collect();
    assert!(named.len() > 3, "{named:?}");
    let definitions = tool_definitions();
    for name in named {
        let tool = definitions.iter().find(|tool| tool.name.as_str() == name);
        let tool = tool.unwrap_or_else(|| panic!("S000-095: there is no tool `{name}`"));
        let role = AgentRole::ProjectManager;
        let verdict = check_allowlist(role, &tool.name, EnabledSwitches::default());
        assert_eq!(verdict, AllowlistVerdict::Yes, "S000-095: {name}");
        assert!(tool.scope.allows_kind(role.agent_kind()), "S000-095: {name}");
    }
}

#[test]
fn the_old_names_of_reports_and_instructions_lead_to_the_same_tools() {
    let (catalogue, _) = ToolCatalogue::from_entries(entries());
    for (old, new) in [("apmas_report_to_pm", "pm.report"), ("apmas_pm_instruct", "pm.instruct")] {
        let found = catalogue.find_by_wire_name(old).unwrap();
        assert_eq!(found.definition.name.as_str(), new, "X-05");
    }
    let tied: BTreeSet<_> = catalogue
        .iter_tools()
        .filter(|tool| ["pm", "agent"].contains(&tool.definition.name.namespace()))
        .map(|tool| tool.definition.binding.task)
        .collect();
    assert_eq!(tied, BTreeSet::from([true]), "X-05: all of them ask for the task");
}

#[test]
fn no_tool_writes_settings_switches_rules_budgets_or_tokens() {
    for definition in tool_definitions().iter() {
        let name = definition.name.as_str();
        for word in ["setting", "rule", "budget", "token", "policy", "allowlist", "preference.set"]
        {
            assert!(!name.contains(word), "{name}");
        }
    }
}
