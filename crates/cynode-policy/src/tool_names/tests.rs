use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = String> {
    prop::collection::vec("[A-Za-z0-9]{1,4}([_-][A-Za-z0-9]{1,4}){0,2}", 1..4)
        .prop_map(|parts| parts.join("."))
}

proptest! {
    #[test]
    fn a_name_on_the_wire_leads_back_to_itself_and_fits_every_model_api(text in name()) {
        if let Ok(name) = text.parse::<ToolName>() {
            let wire = name.to_wire_name();
            prop_assert!(wire.len() <= MAX_WIRE_NAME_LEN && MAX_WIRE_NAME_LEN <= 64, "X-21");
            let plain = wire.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            prop_assert!(plain, "X-21: {wire}");
            prop_assert_eq!(ToolName::from_wire_name(&wire), Ok(name), "X-21");
        }
    }

    #[test]
    fn two_names_are_never_written_alike(one in name(), other in name()) {
        if let (Ok(one), Ok(other)) = (one.parse::<ToolName>(), other.parse::<ToolName>()) {
            prop_assert_eq!(one.to_wire_name() == other.to_wire_name(), one == other, "X-21");
        }
    }

    #[test]
    fn any_text_is_read_or_refused_and_what_was_read_is_written_the_same(text in ".{0,80}") {
        if let Ok(name) = ToolName::from_wire_name(&text) {
            prop_assert_eq!(ToolName::from_wire_name(&name.to_wire_name()), Ok(name));
        }
    }
}

#[test]
fn a_path_an_empty_part_or_a_double_underscore_is_no_name() {
    for text in [
        "",
        ".",
        "db.",
        ".db",
        "db..task",
        "../db",
        "/etc/passwd",
        "db/task",
        "db task",
        "db__task",
        "_db",
        "db_",
        "db._task",
        "db.-x",
        "dé.b",
        "db.task\n",
        "db\0",
    ] {
        assert_eq!(text.parse::<ToolName>(), Err(NameError::Shape), "S001-38: {text:?}");
    }
    assert_eq!("a".repeat(65).parse::<ToolName>(), Err(NameError::Length));
    assert_eq!(format!("{}.b", "a".repeat(62)).parse::<ToolName>(), Err(NameError::Length));
}

#[test]
fn only_the_closed_namespaces_are_native_and_not_those_that_look_alike() {
    let native = |text: &str| text.parse::<ToolName>().is_ok_and(|name| name.is_native());
    assert!(native("db.task.get"));
    for text in ["db", "dbx.task", "db-task.get", "Db.task", "ext.db.task", "x.db.y", "database.x"]
    {
        assert!(!native(text), "S001-38, S001-79: {text}");
    }
}

#[test]
fn a_group_means_what_is_inside_it() {
    let matches = |pattern, name: &str| ToolPattern(pattern).matches_name(&name.parse().unwrap());
    assert!(matches("db.*", "db.task.get"));
    assert!(matches("db.task.*", "db.task.get"));
    assert!(matches("web.fetch", "web.fetch"));
    assert!(!matches("db.*", "db"));
    assert!(!matches("db.*", "dbx.task"));
    assert!(!matches("web.fetch", "web.fetch.all"));
    let groups: Vec<_> = "db.task.get".parse::<ToolName>().unwrap().group_patterns().collect();
    assert_eq!(groups, ["db.task.*", "db.*"]);
}
