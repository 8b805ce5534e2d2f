use cynode_core::agents::ToolScope;
use serde_json::json;

use super::*;
use crate::fixtures::{definition, entry, installed};

fn refused(definitions: Vec<McpToolDefinition>) -> Vec<CatalogueError> {
    ToolCatalogue::from_entries(definitions.into_iter().map(entry)).1
}

#[test]
fn a_tool_that_is_tied_to_a_task_and_does_not_ask_for_it_is_not_registered() {
    let mut tool = definition("db.task.get", IdBinding::TASK);
    tool.input = json!({ "type": "object", "properties": { "task_id": { "type": "string" } } });
    let name = tool.name.clone();
    let unbound = [CatalogueError::Unbound(name, "task_id")];
    assert_eq!(refused(vec![tool]), unbound, "S003-08, REQ-MCPGAT-0103");
}

#[test]
fn a_tool_that_should_ask_for_its_run_or_job_and_does_not_is_pointed_out() {
    let mut tool = definition("agent.heartbeat", IdBinding { task: true, run: true, job: true });
    assert_eq!(tool.missing_id_arguments(), Vec::<&str>::new());
    tool.input["required"] = json!(["task_id"]);
    let missing = tool.missing_id_arguments();
    assert_eq!(missing, ["run_id", "job_id"], "S003-09, S003-10, REQ-MCPGAT-0104, REQ-MCPGAT-0105");
    assert_eq!(refused(vec![tool]), []);
}

#[test]
fn a_native_tool_outside_the_namespaces_and_a_foreign_one_inside_are_not_registered() {
    let outside = definition("tools.task", IdBinding::NONE);
    let look_alike = definition("dbx.task", IdBinding::NONE);
    let inside = installed("db.task", ToolAudience::Everybody);
    for tool in [outside, look_alike, inside] {
        let name = tool.name.clone();
        assert_eq!(
            refused(vec![tool]),
            [CatalogueError::Namespace(name)],
            "S001-37, S001-38, S001-79, X-14"
        );
    }
}

#[test]
fn a_tool_without_a_schema_of_an_object_is_not_registered() {
    let mut tool = definition("help.x", IdBinding::NONE);
    tool.input = json!({});
    let name = tool.name.clone();
    let missing = CatalogueError::Schema(name, ToolSchemaError::NotAnObject);
    assert_eq!(refused(vec![tool]), [missing], "S001-39: a tool without a schema is refused");
}

#[test]
fn names_and_aliases_are_taken_once_and_the_first_keeps_them() {
    let mut first = definition("pm.report", IdBinding::NONE);
    first.aliases = vec!["apmas_report_to_pm".parse().unwrap()];
    let mut second = installed("apmas_report_to_pm", ToolAudience::Everybody);
    second.description = "Another.".into();
    let taken = second.name.clone();
    let (catalogue, refused) = ToolCatalogue::from_entries([first, second].map(entry));
    assert_eq!(refused, [CatalogueError::Twice(taken)]);
    for name in ["apmas_report_to_pm", "pm__report", "pm.report"] {
        let found = catalogue.find_by_wire_name(name).unwrap();
        assert_eq!(found.definition.name.as_str(), "pm.report", "{name}");
    }
}

#[test]
fn another_word_of_the_definition_is_another_digest_and_any_change_another_version() {
    let tool = definition("help.x", IdBinding::NONE);
    let version = |entry: CatalogueEntry| ToolCatalogue::from_entries([entry]).0.version_digest();
    let before = version(entry(tool.clone()));
    let mut words = tool.clone();
    words.description.push('!');
    assert_ne!(words.definition_digest(), tool.definition_digest());
    let off = ToolOverride { enabled: Some(false), scope: None };
    let moved = ToolOverride { enabled: None, scope: Some(ToolScope::Pm) };
    let changed = [
        entry(words),
        CatalogueEntry { set: off, ..entry(tool.clone()) },
        CatalogueEntry { set: moved, ..entry(tool.clone()) },
        CatalogueEntry { pin: DefinitionPin::Quarantined, ..entry(tool.clone()) },
    ];
    for changed in changed {
        assert_ne!(version(changed), before);
    }
    assert_eq!(version(entry(tool)), before);
}

#[test]
fn a_rebuilt_catalogue_is_the_one_that_would_be_built_anew() {
    let (same, mut other) =
        (definition("help.x", IdBinding::NONE), definition("help.y", IdBinding::NONE));
    let (before, _) = ToolCatalogue::from_entries([same.clone(), other.clone()].map(entry));
    other.input = json!({ "type": "object", "required": ["n"] });
    let entries = || [same.clone(), other.clone()].map(entry);
    let (rebuilt, refused) = before.rebuild_from(entries());
    assert_eq!(refused, []);
    let (anew, _) = ToolCatalogue::from_entries(entries());
    assert_eq!(rebuilt.version_digest(), anew.version_digest());
    let takes_nothing = |catalogue: &ToolCatalogue, name: &str| {
        let tool = catalogue.find_by_wire_name(name).unwrap();
        tool.arguments.find_violation(&json!({})).is_none()
    };
    for name in ["help.x", "help.y"] {
        assert_eq!(takes_nothing(&rebuilt, name), takes_nothing(&anew, name), "{name}");
    }
    assert!(takes_nothing(&before, "help.y") && !takes_nothing(&rebuilt, "help.y"));
    assert!(before.rebuild_from([]).0.iter_tools().next().is_none());
}
