use std::collections::BTreeSet;

use cynode_policy::{
    catalogue::{Catalogue, Entry, Override, Pin},
    names::NATIVE,
};

use super::*;

fn entries() -> Vec<Entry> {
    let entry = |definition: &Definition| Entry {
        definition: definition.clone(),
        set: Override::default(),
        pin: Pin::Accepted,
    };
    definitions().iter().map(entry).collect()
}

#[test]
fn every_tool_has_a_schema_a_namespace_of_ours_and_asks_for_what_it_is_tied_to() {
    let (catalogue, refused) = Catalogue::build(entries());
    assert_eq!(refused, []);
    assert_eq!(catalogue.tools().count(), definitions().len());
    for tool in catalogue.tools() {
        let definition = &tool.definition;
        assert_eq!(definition.lints(), Vec::<&str>::new(), "{}", definition.name);
        assert!(NATIVE.contains(&definition.name.namespace()), "{}", definition.name);
        assert!(!definition.title.is_empty() && !definition.description.is_empty());
        assert_eq!(definition.input["additionalProperties"], false, "{}", definition.name);
    }
}

#[test]
fn what_can_be_called_can_be_carried_out_and_what_cannot_says_why() {
    let tools = Tools::all();
    for definition in definitions().iter() {
        let native = tools.get(&definition.name).unwrap();
        assert_eq!(native.run.is_some(), definition.missing.is_none(), "{}", definition.name);
    }
}

#[test]
fn the_old_names_of_reports_and_instructions_lead_to_the_same_tools() {
    let (catalogue, _) = Catalogue::build(entries());
    for (old, new) in [("apmas_report_to_pm", "pm.report"), ("apmas_pm_instruct", "pm.instruct")] {
        assert_eq!(catalogue.on_the_wire(old).unwrap().definition.name.as_str(), new);
    }
    let tied: BTreeSet<_> = catalogue
        .tools()
        .filter(|tool| ["pm", "agent"].contains(&tool.definition.name.namespace()))
        .map(|tool| tool.definition.binding.task)
        .collect();
    assert_eq!(tied, BTreeSet::from([true]));
}

#[test]
fn no_tool_writes_settings_switches_rules_budgets_or_tokens() {
    for definition in definitions().iter() {
        let name = definition.name.as_str();
        for word in ["setting", "rule", "budget", "token", "policy", "allowlist", "preference.set"]
        {
            assert!(!name.contains(word), "{name}");
        }
    }
}
