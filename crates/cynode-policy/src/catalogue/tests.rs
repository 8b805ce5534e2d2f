use cynode_core::agents::ToolScope;
use serde_json::json;

use super::*;
use crate::fixtures::{definition, entry, installed};

fn refused(definitions: Vec<Definition>) -> Vec<CatalogueError> {
    Catalogue::build(definitions.into_iter().map(entry)).1
}

#[test]
fn a_tool_that_is_tied_to_a_task_and_does_not_ask_for_it_is_not_registered() {
    let mut tool = definition("db.task.get", Binding::TASK);
    tool.input = json!({ "type": "object", "properties": { "task_id": { "type": "string" } } });
    let name = tool.name.clone();
    assert_eq!(refused(vec![tool]), [CatalogueError::Unbound(name, "task_id")]);
}

#[test]
fn a_tool_that_should_ask_for_its_run_or_job_and_does_not_is_pointed_out() {
    let mut tool = definition("agent.heartbeat", Binding { task: true, run: true, job: true });
    assert_eq!(tool.lints(), Vec::<&str>::new());
    tool.input["required"] = json!(["task_id"]);
    assert_eq!(tool.lints(), ["run_id", "job_id"]);
    assert_eq!(refused(vec![tool]), []);
}

#[test]
fn a_native_tool_outside_the_namespaces_and_a_foreign_one_inside_are_not_registered() {
    let outside = definition("tools.task", Binding::NONE);
    let look_alike = definition("dbx.task", Binding::NONE);
    let inside = installed("db.task", Audience::Everybody);
    for tool in [outside, look_alike, inside] {
        let name = tool.name.clone();
        assert_eq!(refused(vec![tool]), [CatalogueError::Namespace(name)]);
    }
}

#[test]
fn a_tool_without_a_schema_of_an_object_is_not_registered() {
    let mut tool = definition("help.x", Binding::NONE);
    tool.input = json!({});
    let name = tool.name.clone();
    assert_eq!(refused(vec![tool]), [CatalogueError::Schema(name, SchemaError::NotAnObject)]);
}

#[test]
fn names_and_aliases_are_taken_once_and_the_first_keeps_them() {
    let mut first = definition("pm.report", Binding::NONE);
    first.aliases = vec!["apmas_report_to_pm".parse().unwrap()];
    let mut second = installed("apmas_report_to_pm", Audience::Everybody);
    second.description = "Another.".into();
    let taken = second.name.clone();
    let (catalogue, refused) = Catalogue::build([first, second].map(entry));
    assert_eq!(refused, [CatalogueError::Twice(taken)]);
    for name in ["apmas_report_to_pm", "pm__report", "pm.report"] {
        let found = catalogue.on_the_wire(name).unwrap();
        assert_eq!(found.definition.name.as_str(), "pm.report", "{name}");
    }
}

#[test]
fn another_word_of_the_definition_is_another_digest_and_any_change_another_version() {
    let tool = definition("help.x", Binding::NONE);
    let version = |entry: Entry| Catalogue::build([entry]).0.version();
    let before = version(entry(tool.clone()));
    let mut words = tool.clone();
    words.description.push('!');
    assert_ne!(words.digest(), tool.digest());
    let off = Override { enabled: Some(false), scope: None };
    let moved = Override { enabled: None, scope: Some(ToolScope::Pm) };
    let changed = [
        entry(words),
        Entry { set: off, ..entry(tool.clone()) },
        Entry { set: moved, ..entry(tool.clone()) },
        Entry { pin: Pin::Quarantined, ..entry(tool.clone()) },
    ];
    for changed in changed {
        assert_ne!(version(changed), before);
    }
    assert_eq!(version(entry(tool)), before);
}
